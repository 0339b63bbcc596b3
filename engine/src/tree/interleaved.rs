//! Flushes, merges and readers in every order: shuttle lets them go on by turns at the engine's pauses, and those who pin and
//! retire superversions at each of their atomic operations.
//!
//! The tree is the real one, over the pages and logs of the model's host. Its latches are such that the scheduler knows who waits.
//! What the publish order promises is that a reader who begins at any moment finds the newest version that it sees: I6 says in
//! which order things come, I7 in which order a reader looks. Each is broken once, and has to be noticed.

use super::model::{Snapshot, TestHorizon, TestHost, World};
use super::version::{Current, Edit, Generation, SuperVersion};
use super::{Direction, NewRow, Shared, Tree};
use crate::error::Result;
use crate::host::{Budgets, Flip, Host, RowByRow, SideFile};
use crate::interleave::{explore, pause, wait, wake, Order, Steps};
use crate::manifest::Manifest;
use crate::memtable::Memtable;
use crate::mutation::{self, Mutation, Mutation::*, Pause};
use crate::options::TreeOptions;
use crate::page::PageBuf;
use crate::types::*;
use loosekv_shm::RawLatch;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// A latch of which the scheduler knows who waits for it.
struct Latch(AtomicI32);

impl Latch {
    fn lock_when(&self, free: impl Fn(i32) -> bool, by: i32) {
        while !free(self.0.load(SeqCst)) {
            wait(std::ptr::from_ref(self).addr());
        }
        self.0.fetch_add(by, SeqCst);
    }

    fn unlock(&self, by: i32) {
        self.0.fetch_sub(by, SeqCst);
        wake(std::ptr::from_ref(self).addr(), usize::MAX);
    }
}

const WRITER: i32 = 1000;

impl RawLatch for Latch {
    fn new() -> Latch {
        Latch(AtomicI32::new(0))
    }
    fn lock_shared(&self) {
        self.lock_when(|held| held < WRITER, 1);
    }
    fn lock_exclusive(&self) {
        self.lock_when(|held| held == 0, WRITER);
    }
    fn try_lock_exclusive(&self) -> bool {
        self.0.compare_exchange(0, WRITER, SeqCst, SeqCst).is_ok()
    }
    unsafe fn unlock_shared(&self) {
        self.unlock(1);
    }
    unsafe fn unlock_exclusive(&self) {
        self.unlock(WRITER);
    }
}

/// The model's host in the hands of the scheduler.
#[derive(Clone)]
struct Explored(TestHost);

// SAFETY: what shuttle calls threads are coroutines of one thread, that of `explore`, and none rests inside the host.
unsafe impl Send for Explored {}
// SAFETY: as above.
unsafe impl Sync for Explored {}

impl Host for Explored {
    type Latch = Latch;
    type Page = <TestHost as Host>::Page;
    type Held = <TestHost as Host>::Held;
    type LogRow = <TestHost as Host>::LogRow;
    type LogReader<'h> = RowByRow<'h, Self>;
    type LogState = ();
    type Horizon = TestHorizon;
    const NAME_PENDING: bool = true;

    fn read_page(&self, page: PageNo) -> Result<Self::Page> {
        self.0.read_page(page)
    }
    fn pages(&self) -> Result<u32> {
        self.0.pages()
    }
    fn hold_page(&self, page: Self::Page, spare: Option<Self::Held>) -> Self::Held {
        self.0.hold_page(page, spare)
    }
    fn write_pages(&self, start: PageNo, pages: &mut [PageBuf]) -> Result<()> {
        self.0.write_pages(start, pages)
    }
    fn extend(&self, pages: u32) -> Result<()> {
        self.0.extend(pages)
    }
    fn shrink(&self, pages: u32) -> Result<()> {
        self.0.shrink(pages)
    }
    fn flip(&self, meta: &mut PageBuf, flip: &Flip) -> Result<()> {
        self.0.flip(meta, flip)
    }
    fn read_meta(&self) -> Result<Option<PageBuf>> {
        self.0.read_meta()
    }
    fn append(
        &self,
        _tree: &Tree<'_, Self>,
        generation: L0Id,
        records: &[&[u8]],
        link: &mut dyn FnMut(usize, LogAddr),
    ) -> Result<()> {
        self.0.log(generation, records, link);
        Ok(())
    }
    fn log_row(&self, generation: L0Id, addr: LogAddr) -> Result<Self::LogRow> {
        self.0.log_row(generation, addr)
    }
    fn log_reader(&self, generation: L0Id) -> Result<RowByRow<'_, Self>> {
        Ok(RowByRow { host: self, generation })
    }
    fn replay(&self, manifest: &Manifest, show: &mut dyn FnMut(L0Id, LogAddr, &[u8]) -> Result<()>) -> Result<()> {
        self.0.replay(manifest, show)
    }
    fn forget_log(&self, upto: L0Id) -> Result<()> {
        self.0.forget_log(upto)
    }
    fn horizon(&self) -> TestHorizon {
        self.0.horizon()
    }
    fn aside_memory(&self) -> usize {
        self.0.aside_memory()
    }
    fn side_file(&self) -> Result<Box<dyn SideFile>> {
        self.0.side_file()
    }
    fn budgets(&self) -> &Budgets {
        self.0.budgets()
    }
    fn paused(&self, _tree: &Tree<'_, Self>, _at: Pause) {
        pause();
    }
}

/// The table that everybody works on: two runs, a frozen memtable.
struct Table {
    host: Explored,
    shared: Box<Shared<Explored>>,
}

/// A key and its body.
type Row = (&'static [u8], Option<&'static [u8]>);

/// What is in it: each writer's keys and bodies, oldest first; no body: a tombstone.
const WRITTEN: [&[Row]; 3] = [
    &[(b"a", Some(b"a1")), (b"b", Some(b"b1")), (b"c", Some(b"c1")), (b"d", Some(b"d1"))],
    &[(b"b", Some(b"b2")), (b"d", None)],
    &[(b"a", Some(b"a3")), (b"c", None), (b"e", Some(b"e3"))],
];
const KEYS: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"f"];

/// What somebody finds who sees the writers up to this one.
fn expected(key: &[u8], upto: u64) -> Option<&'static [u8]> {
    let seen = WRITTEN.iter().take(upto as usize).rev();
    seen.flat_map(|rows| rows.iter()).find(|row| row.0 == key).and_then(|row| row.1)
}

impl Table {
    fn new() -> Arc<Table> {
        let host = Explored(TestHost::new(World::new(1)));
        Tree::create(&host, 1).unwrap();
        let options = TreeOptions { memtable_bytes: 64 << 10, ..TreeOptions::default() };
        let shared = Tree::load(&host, &options).unwrap();
        let table = Table { host, shared };
        for (at, rows) in WRITTEN.iter().enumerate() {
            table.write(at as u64 + 1, rows);
            table.tree().rotate().unwrap();
            if at < 2 {
                table.tree().flush_one().unwrap();
            }
        }
        // Somebody does not see the third writer.
        table.host.0.world.borrow_mut().hold(Snapshot { before: 3, running: Vec::new(), own: None });
        Arc::new(table)
    }

    fn tree(&self) -> Tree<'_, Explored> {
        Tree::new(&self.shared, self.host.clone())
    }

    fn write(&self, writer: u64, rows: &[Row]) {
        {
            let mut world = self.host.0.world.borrow_mut();
            world.fates.insert(writer, Fate::Committed);
            world.next_writer = writer + 1;
        }
        for (key, body) in rows {
            let flags = if body.is_some() { Flags::default() } else { Flags::TOMBSTONE };
            let (body, writer) = (body.unwrap_or_default(), Writer(writer));
            let row = NewRow::first(key, body, &Head { writer, flags, ..Head::default() }, None);
            assert_eq!(self.tree().append(&[row]).unwrap().written, 1);
        }
    }

    fn get(&self, key: &[u8], upto: u64) {
        let mut out = RowBuf::default();
        let choose = |head: &Head, _: &super::Hint<'_>| match head.writer.0 <= upto {
            true => Verdict::Take,
            false => Verdict::Skip,
        };
        let found = self.tree().find(key, choose, &mut out).unwrap();
        let got = (found.taken && !out.head.flags.is_tombstone()).then_some(out.body.as_slice());
        assert_eq!(got, expected(key, upto), "{:?} by who sees up to {upto}", String::from_utf8_lossy(key));
    }

    fn scan(&self, direction: Direction, upto: u64) {
        let (tree, mut out) = (self.tree(), RowBuf::default());
        let mut cursor = tree.scan(Bound::Unbounded, Bound::Unbounded, direction).unwrap();
        let mut left: Vec<&[u8]> = KEYS.into_iter().filter(|key| expected(key, upto).is_some()).collect();
        if direction == Direction::Forward {
            left.reverse();
        }
        let sees = |head: &Head, _: &super::Hint<'_>| match head.writer.0 <= upto {
            true => Verdict::Take,
            false => Verdict::Skip,
        };
        while cursor.next(&tree, sees, &mut out).unwrap() {
            assert_eq!(Some(out.key.as_slice()), left.pop());
            assert_eq!(Some(out.body.as_slice()), expected(&out.key, upto));
        }
        assert!(left.is_empty(), "not found: {left:?}");
    }
}

/// Who works beside the reader.
#[derive(Clone, Copy, Debug)]
enum Beside {
    Flush,
    Merge,
    Both,
}

/// One reads, others flush and merge; afterwards all is there.
fn read_beside(beside: Beside, key: Option<&'static [u8]>, upto: u64) {
    let table = Table::new();
    let mut threads = Vec::new();
    if !matches!(beside, Beside::Merge) {
        let table = Arc::clone(&table);
        threads.push(shuttle::thread::spawn(move || assert!(table.tree().flush_one().unwrap())));
    }
    if !matches!(beside, Beside::Flush) {
        let table = Arc::clone(&table);
        threads.push(shuttle::thread::spawn(move || assert!(table.tree().compact_one(true).unwrap())));
    }
    // The others may come before the first pin, too.
    pause();
    match key {
        Some(key) => table.get(key, upto),
        None => [Direction::Forward, Direction::Backward].into_iter().for_each(|way| table.scan(way, upto)),
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for upto in [2, 3] {
        KEYS.iter().for_each(|key| table.get(key, upto));
        table.scan(Direction::Forward, upto);
    }
}

/// In how many orders it goes well.
fn orders(beside: Beside, order: Order, mutation: Option<Mutation>) -> std::thread::Result<usize> {
    let mut count = 0;
    let keys = KEYS.into_iter().map(Some).chain([None]);
    for (key, upto) in keys.flat_map(|key| [(key, 2), (key, 3)]) {
        count +=
            explore(Steps::Pauses, order, move || mutation::set(mutation), move || read_beside(beside, key, upto))?;
    }
    Ok(count)
}

const MOST: usize = 1500;

#[test]
fn readers_find_what_they_see_in_every_order_of_a_flush() {
    let count = orders(Beside::Flush, Order::All(MOST), None).expect("every reader finds what it sees");
    assert!(count > 500 && count < 14 * MOST, "{count} orders");
}

#[test]
fn readers_find_what_they_see_in_every_order_of_a_merge() {
    let count = orders(Beside::Merge, Order::All(MOST), None).expect("every reader finds what it sees");
    assert!(count > 500 && count < 14 * MOST, "{count} orders");
}

#[test]
fn readers_find_what_they_see_while_flush_and_merge_go_on() {
    for order in [Order::Random(60), Order::Few(3, 60)] {
        orders(Beside::Both, order, None).expect("every reader finds what it sees");
    }
}

#[test]
fn a_broken_publish_order_is_noticed() {
    let broken = [
        (I6InstalledBeforeIndexed, Beside::Flush, Order::All(MOST)),
        (I6MemtableDroppedFirst, Beside::Flush, Order::All(MOST)),
        (I7IndexFirst, Beside::Flush, Order::All(MOST)),
        (I7NewerEntryIsNone, Beside::Flush, Order::All(MOST)),
    ];
    let well = |(mutation, beside, order)| orders(beside, order, Some(mutation)).map(|count| (mutation, count)).ok();
    let unnoticed: Vec<_> = broken.into_iter().filter_map(well).collect();
    assert!(unnoticed.is_empty(), "orders in which nothing noticed: {unnoticed:?}");
}

/// Who has a superversion pinned, while others replace it, keeps it from being freed.
pub(super) fn pins(mutation: Option<Mutation>, readers: usize, order: Order) -> std::thread::Result<usize> {
    let body = move || {
        let table = Memtable::new(L0Id(1), RowId(1), Writer(0), 64 << 10, 0).unwrap();
        let generation =
            Arc::new(Generation { table, logged: AtomicU64::new(0), apart: AtomicU64::new(0), balance: None });
        let version = |number| {
            let (active, zero) = (Arc::clone(&generation), L0Id(0));
            let parts = Edit { active, frozen: vec![], runs: vec![], flushed: zero, indexed_from: zero };
            Box::new(SuperVersion::new(number, parts).unwrap())
        };
        let current = Arc::new(Current::new(version(1)));
        // All are made before the first is freed, so their addresses are theirs alone.
        let later: Vec<_> = (2..4).map(version).collect();
        let freed = Arc::new(Mutex::new(BTreeSet::new()));
        let threads: Vec<_> = (0..readers)
            .map(|_| {
                let (current, freed) = (Arc::clone(&current), Arc::clone(&freed));
                shuttle::thread::spawn(move || {
                    let pinned = current.pin::<Explored>();
                    let address = std::ptr::from_ref(&*pinned).addr();
                    assert!(!freed.lock().unwrap().contains(&address), "pinned when it was freed");
                    pause();
                    assert!(!freed.lock().unwrap().contains(&address), "freed while it was pinned");
                })
            })
            .collect();
        let mut retired = Vec::new();
        for next in later {
            retired.push(current.replace(next));
            for version in std::mem::take(&mut retired) {
                if version.is_pinned() {
                    retired.push(version);
                } else {
                    freed.lock().unwrap().insert(std::ptr::from_ref(&*version).addr());
                    version.free();
                }
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(retired.iter().all(|version| !version.is_pinned()), "nobody is left");
        retired.into_iter().for_each(|version| version.free());
    };
    explore(Steps::Atomics, order, move || mutation::set(mutation), body)
}

#[test]
fn a_pinned_superversion_is_not_freed_in_whatever_order() {
    let count = pins(None, 1, Order::All(100_000)).expect("what is pinned stays");
    assert!((10..100_000).contains(&count), "{count} orders");
    for order in [Order::Random(2000), Order::Few(3, 2000)] {
        pins(None, 3, order).expect("what is pinned stays");
    }
}
