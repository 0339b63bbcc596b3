//! The value log, step by step.

use super::model::{TestHost, World};
use super::*;
use crate::error::Result;
use crate::host::Budgets;
use crate::options::TreeOptions;
use crate::page::{CAPACITY, CONTENT};
use crate::row::ValuePointer;
use crate::tree::full_disk::Taker;
use crate::types::*;
use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;

struct Table {
    host: TestHost,
    shared: Box<Shared<TestHost>>,
    options: TreeOptions,
}

impl Table {
    fn new() -> Table {
        let mut world = World::default();
        world.next_writer = 1;
        let host = TestHost::with(world, Budgets::default());
        host.budgets.memtables.limit.store(u64::MAX, Relaxed);
        host.budgets.key_index.limit.store(u64::MAX, Relaxed);
        let options = TreeOptions { memtable_bytes: 1 << 20, ..TreeOptions::default() };
        Tree::create(&host, 7).unwrap();
        let shared = Tree::load(&host, &options).unwrap();
        Table { host, shared, options }
    }

    fn tree(&self) -> Tree<'_, TestHost> {
        Tree::new(&self.shared, self.host.clone())
    }

    /// Memory is gone.
    fn crash(&mut self) {
        self.host.budgets.key_index.used.store(0, Relaxed);
        self.shared = Tree::load(&self.host, &self.options).unwrap();
    }

    fn writer(&self, fate: Fate) -> Writer {
        let mut world = self.host.world.borrow_mut();
        let writer = world.next_writer;
        world.next_writer += 1;
        world.fates.insert(writer, fate);
        Writer(writer)
    }

    fn try_put(&self, key: &[u8], body: Option<&[u8]>, fate: Fate) -> Result<RowId> {
        let flags = if body.is_some() { Flags::default() } else { Flags::TOMBSTONE };
        let writer = self.writer(fate);
        let body = body.unwrap_or_default();
        let row = NewRow { key, body, writer, command: 0, flags, incarnation: 0, begins: true, expect: None };
        Ok(self.tree().append(&[row])?.first)
    }

    fn put(&self, key: &[u8], body: &[u8]) -> RowId {
        self.try_put(key, Some(body), Fate::Committed).unwrap()
    }

    fn delete(&self, key: &[u8]) {
        self.try_put(key, None, Fate::Committed).unwrap();
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut out = RowBuf::default();
        let found = self.tree().find(key, |head, _| self.sees(head), &mut out).unwrap();
        assert!(!found.taken || !out.head.flags.has(Flags::POINTER));
        (found.taken && !out.head.flags.is_tombstone()).then_some(out.body)
    }

    fn sees(&self, head: &Head) -> Verdict {
        match self.host.world.borrow().fates.get(&head.writer.0) {
            Some(Fate::Committed) => Verdict::Take,
            _ => Verdict::Skip,
        }
    }

    /// The row as it is stored.
    fn raw(&self, key: &[u8]) -> RowBuf {
        let (tree, mut out) = (self.tree(), RowBuf::default());
        let view = tree.pin();
        assert!(tree.find_in(&view, key, |_, _| Verdict::Take, &mut out).unwrap().taken);
        out
    }

    fn pointer(&self, key: &[u8]) -> ValuePointer {
        let row = self.raw(key);
        assert!(row.head.flags.has(Flags::POINTER), "{:?}", row.head);
        ValuePointer::decode(&row.body).unwrap()
    }

    fn flush(&self) {
        self.tree().rotate().unwrap();
        while self.tree().flush_one().unwrap() {}
    }

    fn compact(&self) {
        while self.tree().compact_one(true).unwrap() {}
    }

    fn value_pages(&self) -> u32 {
        self.tree().manifest().values.iter().map(|e| e.pages).sum()
    }

    /// Pages that are neither free nor the meta page's nor the manifest's.
    fn pages_in_use(&self) -> u64 {
        let mut ledger = self.shared.ledger.lock();
        self.shared.reap(&mut ledger, None, |_| ());
        let body: u32 = ledger.manifest.body.iter().map(|e| e.pages).sum();
        u64::from(ledger.free.high()) - ledger.free.pages() - 1 - u64::from(body)
    }
}

fn body(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|i| ((i * 31 + i / 251 + salt * 7) % 251) as u8).collect()
}

#[test]
fn bodies_of_every_length_come_back() {
    let mut table = Table::new();
    let threshold = table.options.value_log_threshold as usize;
    let lengths =
        [0, 1, threshold - 1, threshold, 5000, 8000, 8040, 8060, 8061, 8107, 8108, 8109, CAPACITY, CAPACITY + 1]
            .into_iter()
            .chain([2 * CAPACITY - 1, 2 * CAPACITY, 100_000, 33 * CAPACITY + 5, 3 << 20]);
    let lengths: Vec<usize> = lengths.collect();
    let check = |table: &Table| {
        for length in &lengths {
            assert!(table.get(format!("{length}").as_bytes()) == Some(body(*length, *length)), "{length}");
        }
    };
    for length in &lengths {
        table.put(format!("{length}").as_bytes(), &body(*length, *length));
    }
    check(&table);
    table.crash();
    check(&table);
    table.flush();
    check(&table);
    for length in &lengths {
        let large = table.raw(format!("{length}").as_bytes()).head.flags.has(Flags::POINTER);
        assert_eq!(large, *length >= threshold, "{length}");
    }
    table.put(b"x", b"another run");
    table.flush();
    table.compact();
    check(&table);
    table.crash();
    check(&table);
    assert_eq!(table.tree().manifest().runs.len(), 1);
}

#[test]
fn keys_of_every_length_do_not_make_rows_too_long() {
    let table = Table::new();
    for key in [1, 100, MAX_KEY - 1, MAX_KEY] {
        for length in 6100..6200 {
            table.put(&vec![b'k'; key], &body(length, key));
        }
        table.flush();
        assert_eq!(table.get(&vec![b'k'; key]), Some(body(6199, key)));
    }
}

// Changing any of these bytes is a new format version.
#[test]
fn golden() {
    let table = Table::new();
    table.put(b"a", &body(CAPACITY + 100, 1));
    let pointer = table.pointer(b"a");
    assert_eq!(
        pointer,
        ValuePointer { start: pointer.start, offset: 40, seq: pointer.seq, length: CAPACITY as u64 + 100 }
    );
    let world = table.host.world.borrow();
    let page = &world.disk.pages[pointer.start.0 as usize + 1];
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    assert_eq!(hex(&page.0[24..40]), format!("0a010000{}0000{:02x}00000000000000", "8c00", pointer.seq.0));
    assert_eq!(page.0[CONTENT..CONTENT + 100], body(CAPACITY + 100, 1)[CAPACITY..]);
    assert!(page.0[CONTENT + 100..].iter().all(|b| *b == 0));
}

#[test]
fn values_of_a_flush_and_of_a_batch_stand_back_to_back() {
    let table = Table::new();
    for i in 0..100 {
        table.put(format!("{i:03}").as_bytes(), &body(3000, i));
    }
    assert_eq!(table.value_pages(), 0, "they are in the log");
    table.flush();
    assert_eq!(table.value_pages(), (100 * 3000usize).div_ceil(CAPACITY) as u32);
    assert_eq!(table.pointer(b"001").offset, CONTENT as u16 + 3000);

    let table = Table::new();
    let bodies: Vec<_> = (0..10).map(|i| body(9000 * usize::from(i != 5), i)).collect();
    let keys: Vec<_> = (0..10).map(|i| format!("{i}")).collect();
    let (writer, flags) = (table.writer(Fate::Committed), Flags::default());
    let row = |(key, body)| NewRow { key, body, writer, command: 0, flags, incarnation: 0, begins: true, expect: None };
    let rows: Vec<_> = keys.iter().map(|k| k.as_bytes()).zip(bodies.iter().map(Vec::as_slice)).map(row).collect();
    assert_eq!(table.tree().append(&rows).unwrap().written, 10);
    assert_eq!(table.tree().shared().counters.value_pages.load(Relaxed), (9 * 9000usize).div_ceil(CAPACITY) as u64);
    for (key, body) in keys.iter().zip(bodies) {
        assert_eq!(table.get(key.as_bytes()), Some(body));
    }
}

#[test]
fn lazy_reads_read_what_they_are_asked_for() {
    let table = Table::new();
    let whole = body(50_000, 3);
    let row = table.put(b"large", &whole);
    table.put(b"small", b"inline");
    let (tree, mut out, mut value) = (table.tree(), RowBuf::default(), Vec::new());
    for flushed in [false, true] {
        let (found, large) = tree.find_lazy(b"large", |_, _| Verdict::Take, &mut out).unwrap();
        let large = large.expect("a large value");
        assert!(found.taken && out.body.is_empty() && out.key == b"large");
        assert_eq!(large.length(), 50_000);
        for (at, length) in [(0, 10), (8150, 5), (40_000, 10_000), (0, 50_000), (50_000, 0)] {
            let mut piece = vec![0; length];
            large.read_at(&tree, at as u64, &mut piece).unwrap();
            assert_eq!(piece, whole[at..at + length]);
        }
        assert!(large.read_at(&tree, 49_999, &mut [0; 2]).is_err());
        large.read(&tree, &mut value).unwrap();
        assert_eq!(value, whole);
        let (found, large) = tree.find_row_lazy(row, &mut out).unwrap();
        assert!(found && large.is_some_and(|l| l.length() == 50_000));
        let (_, none) = tree.find_lazy(b"small", |_, _| Verdict::Take, &mut out).unwrap();
        assert!(none.is_none() && out.body == b"inline");
        let mut cursor = tree.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward).unwrap();
        assert!(cursor.next_lazy(&tree, |_, _| Verdict::Take, &mut out).unwrap());
        assert!(out.head.flags.has(Flags::POINTER));
        tree.resolve(&mut out).unwrap();
        assert_eq!(out.body, whole);
        if !flushed {
            table.flush();
        }
    }
}

#[test]
fn a_cursor_reads_values_that_were_moved_and_dropped_meanwhile() {
    let table = Table::new();
    for i in 0..200 {
        table.put(format!("{i:03}").as_bytes(), &body(3000 + 60 * (i % 80), i));
    }
    table.flush();
    let before = table.tree().manifest().values;
    let last = table.writer(Fate::Committed);
    let sees = |head: &Head| if head.writer < last { Verdict::Take } else { Verdict::Skip };
    let tree = table.tree();
    // Of the one run: such a cursor keeps the superversion of its beginning.
    let mut cursor = tree.scan_apart(Direction::Forward).unwrap().remove(0);
    for i in (0..200).filter(|i| i % 5 != 0) {
        table.delete(format!("{i:03}").as_bytes());
    }
    table.flush();
    table.compact();
    let now = tree.manifest();
    assert!(tree.shared().counters.values_moved.load(Relaxed) >= 40, "values were moved");
    assert!(now.values.iter().all(|e| before.iter().all(|b| b.seq != e.seq)), "all extents are new");
    assert_eq!(now.runs.iter().map(|r| r.shape.rows).sum::<u64>(), 40);
    // Whatever is free is written over.
    for i in 0..100 {
        table.put(format!("other {i}").as_bytes(), &body(20_000, i));
    }
    table.flush();
    let mut out = RowBuf::default();
    for i in 0..200 {
        assert!(cursor.next(&tree, |head, _| sees(head), &mut out).unwrap());
        assert!(out.body == body(3000 + 60 * (i % 80), i), "row {i}");
    }
    drop(cursor);
    for i in (0..200).step_by(5) {
        assert!(table.get(format!("{i:03}").as_bytes()) == Some(body(3000 + 60 * (i % 80), i)));
    }
    let in_use = table.pages_in_use();
    let mut ledger = tree.shared().ledger.lock();
    tree.shared().reap(&mut ledger, None, |_| ());
    assert_eq!((ledger.limbo.len(), ledger.manifest.pending.len()), (0, 0));
    let owned: u64 = ledger.manifest.owned().map(|e| u64::from(e.pages)).sum();
    assert_eq!(in_use, owned - ledger.manifest.body.iter().map(|e| u64::from(e.pages)).sum::<u64>());
}

#[test]
fn nothing_is_left_of_deleted_values() {
    for crash in [false, true] {
        let mut table = Table::new();
        for i in 0..50 {
            table.put(format!("{i}").as_bytes(), &body(1000 * (i + 1), i));
            if i % 20 == 10 {
                table.flush();
            }
        }
        if crash {
            table.crash();
        }
        assert!(table.value_pages() > 64);
        for i in 0..50 {
            table.delete(format!("{i}").as_bytes());
        }
        table.flush();
        table.compact();
        assert_eq!(table.tree().manifest().values, [], "crash: {crash}");
        assert_eq!(table.pages_in_use(), 0, "crash: {crash}");
    }
}

#[test]
fn bytes_without_a_row_are_found_and_freed() {
    let mut table = Table::new();
    table.put(b"a", &body(100_000, 1));
    // Or its flush would help the next one.
    table.flush();
    // A writer that fails while it writes its bytes, one that ends in between, and one that aborts.
    table.host.world.borrow_mut().no_room = 2;
    assert!(table.try_put(b"b", Some(&body(200_000, 1)), Fate::Committed).is_err());
    let view = table.tree().pin();
    table.tree().take_value_pages(300, view.active().table.generation()).unwrap();
    drop(view);
    table.try_put(b"c", Some(&body(300_000, 1)), Fate::Aborted).unwrap();
    assert!(table.value_pages() >= 300 + 25 + 37 + 13);
    for crash in [false, true] {
        if crash {
            table.crash();
        }
        table.put(b"d", b"so that there is something to flush");
        table.flush();
        table.compact();
        assert!(table.value_pages() <= 64, "{:?}", table.tree().manifest().values);
        assert_eq!(table.get(b"a"), Some(body(100_000, 1)));
        assert_eq!((table.get(b"b"), table.get(b"c")), (None, None));
    }
}

/// Also a check for the mutations of the model.
#[test]
pub(super) fn an_extent_waits_for_the_writer_who_has_taken_pages_of_it() {
    let table = Table::new();
    let tree = table.tree();
    let view = tree.pin();
    let taken = tree.take_value_pages(100, view.active().table.generation()).unwrap();
    for i in 0..5 {
        table.put(format!("{i}").as_bytes(), b"x");
        table.flush();
        table.compact();
        assert!(tree.manifest().values.iter().any(|e| e.seq == taken.seq), "flush {i}");
    }
    drop(view);
    table.compact();
    assert_eq!(tree.manifest().values, []);
}

/// The same for who reads a value that a merge has moved, before the merge's run is installed. Also a check for the mutations of the model.
#[test]
pub(super) fn an_extent_waits_for_the_run_that_does_without_it() {
    let mut table = Table::new();
    // Of such bodies an extent is full.
    let key = |i: usize| format!("{i:02}").into_bytes();
    for i in 0..20 {
        table.put(&key(i), &body(64_000, i));
    }
    table.flush();
    (1..20).for_each(|i| table.delete(&key(i)));
    table.flush();
    // Of what was there at the start it is known at once that nobody writes to it.
    table.crash();
    let before = table.pointer(&key(0)).seq;
    while table.pointer(&key(0)).seq == before {
        table.host.world.borrow_mut().read_moved = Some((key(0), body(64_000, 0)));
        assert!(table.tree().compact_one(true).unwrap());
    }
    assert!(table.host.world.borrow().read_moved.is_none(), "moved by a merge");
    assert_eq!(table.get(&key(0)), Some(body(64_000, 0)));
}

#[test]
fn a_row_in_a_memtable_keeps_its_extent() {
    let mut table = Table::new();
    table.put(b"a", &body(1 << 20, 1));
    for i in 0..5 {
        if i == 3 {
            table.crash();
        }
        // Flips and superversions, but the row is not flushed.
        table.compact();
        let tree = table.tree();
        tree.shared().install(|now| super::version::SuperVersion::new(now.number + 1, now.edit())).unwrap();
        table.compact();
        assert_eq!(table.get(b"a"), Some(body(1 << 20, 1)));
    }
    table.flush();
    table.compact();
    assert_eq!(table.get(b"a"), Some(body(1 << 20, 1)));
}

#[test]
fn sparse_extents_are_emptied_unasked() {
    let table = Table::new();
    for round in 0..12 {
        for i in 0..40 {
            table.put(format!("{i:02}").as_bytes(), &body(20_000, i + round));
        }
        for i in 0..40 {
            table.put(format!("{round} {i:02}").as_bytes(), &body(3_000, i + round));
        }
        table.flush();
        while table.tree().compact_one(false).unwrap() {}
    }
    let live = (40 * 20_000 + 12 * 40 * 3_000) / CAPACITY as u32;
    assert!(table.value_pages() < 3 * live, "{} pages for {live}", table.value_pages());
    for i in 0..40 {
        assert!(table.get(format!("{i:02}").as_bytes()) == Some(body(20_000, i + 11)));
    }
}

#[test]
fn a_stale_writer_writes_no_bytes() {
    let table = Table::new();
    let (tree, mut out) = (table.tree(), RowBuf::default());
    let seen = tree.find(b"a", |_, _| Verdict::Skip, &mut out).unwrap();
    table.put(b"a", b"came in between");
    let (large, writer) = (body(1 << 20, 1), table.writer(Fate::Committed));
    let expect = Some(seen.observed);
    let flags = Flags::default();
    let row = NewRow { key: b"a", body: &large, writer, command: 0, flags, incarnation: 0, begins: true, expect };
    assert_eq!(tree.append(&[row]).unwrap().written, 0);
    assert_eq!(table.value_pages(), 0);
}

#[test]
fn arbitrary_pointers_are_errors() {
    let table = Table::new();
    table.put(b"a", &body(40_000, 1));
    let (tree, right, mut out) = (table.tree(), table.pointer(b"a"), Vec::new());
    let mut state = 9u64;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 20
    };
    let mut good = 0;
    for i in 0..20_000 {
        let mut wrong = right;
        match i % 5 {
            0 => wrong.start = PageNo((next() >> (next() % 44)) as u32),
            1 => wrong.offset = next() as u16,
            2 => wrong.seq = ExtentSeq(next() % 16),
            3 => wrong.length = next() << 8 >> (next() % 64),
            _ => {
                let mut bytes = wrong.encode();
                bytes[next() as usize % bytes.len()] = next() as u8;
                wrong = ValuePointer::decode(&bytes).unwrap();
            }
        }
        good += u32::from(tree.read_value(&wrong, &mut out).is_ok());
        let _ = tree.read_value_at(&wrong, next() % 50_000, &mut [0; 100]);
    }
    assert!(good < 15_000);
    assert!(out.capacity() <= 2 << 20, "no memory is taken for what is not there");
    let huge = ValuePointer { length: MAX_VALUE as u64, ..right };
    assert!(tree.read_value(&huge, &mut Vec::new()).is_err());
    assert!(tree.read_value(&ValuePointer { length: u64::MAX, ..right }, &mut out).is_err());
}

#[test]
fn a_body_that_is_too_long_is_refused() {
    let table = Table::new();
    let long = vec![0; MAX_VALUE + 1];
    let said = table.try_put(b"a", Some(&long), Fate::Committed).unwrap_err().to_string();
    assert!(said.contains("1073741825 bytes"), "{said}");
    assert_eq!(table.value_pages(), 0);
}

/// Large values fill no memtable, and what they leave behind is found when it is flushed.
#[test]
fn large_values_that_are_overwritten_do_not_pile_up() {
    let table = Table::new();
    let body = vec![5; 1 << 20];
    for _ in 0..400 {
        table.put(b"a", &body);
        // As a host does in the background.
        table.tree().flush_one().unwrap();
    }
    let pages = table.host.world.borrow().disk.pages.len();
    assert!(pages * PAGE_SIZE < 200 << 20, "{pages} pages");
}

/// On a full disk a flush takes the pages that it needs, not those that it might: else it would never end, and give nothing back.
#[test]
fn a_flush_finds_its_room_on_a_full_disk() {
    let table = Table::new();
    let bodies = |round: u8| (0..5u8).map(move |key| ([key], vec![round; 3000]));
    let pages = || table.host.world.borrow().disk.pages.len();
    // Of so many versions few are left.
    let put_all = |rounds: std::ops::Range<u8>| {
        for (key, body) in rounds.flat_map(bodies) {
            table.put(&key, &body);
        }
    };
    put_all(0..60);
    // Some pages are free, in one piece, and there will be no more.
    let (tree, spare) = (table.tree(), 14);
    let free = tree.take_extent(Taker::Flush, spare, spare, spare).unwrap();
    tree.give_extents(&[free]);
    table.host.world.borrow_mut().room = Some(pages());
    tree.rotate().unwrap();
    // The first time it may not know yet that the disk is full.
    let flushed = (0..2).any(|_| tree.flush_one().is_ok());
    assert!(flushed, "{:?} free", tree.shared().space());
    bodies(59).for_each(|(key, body)| assert_eq!(table.get(&key), Some(body)));
    assert_eq!(pages(), table.host.world.borrow().room.unwrap());
    // Room again: the store grows.
    table.host.world.borrow_mut().room = None;
    put_all(60..200);
    tree.rotate().unwrap();
    assert!(tree.flush_one().unwrap());
    bodies(199).for_each(|(key, body)| assert_eq!(table.get(&key), Some(body)));
}

/// On a full disk a merge moves as many values as there is room for. Those that it leaves behind come free with the next one.
#[test]
fn values_are_moved_some_at_a_time_on_a_full_disk() {
    let table = Table::new();
    let (keys, body) = (|| (0..600u16).map(|key| key.to_be_bytes()), |key: [u8; 2]| vec![key[1]; 8000]);
    for key in keys() {
        table.put(&key, &body(key));
        if key[1] % 50 == 49 {
            table.flush();
        }
    }
    let kept = |key: &[u8; 2]| u16::from_be_bytes(*key).is_multiple_of(3);
    keys().filter(|key| !kept(key)).for_each(|key| table.delete(&key));
    table.flush();
    let (tree, live) = (table.tree(), keys().filter(kept).count() as u32);
    assert!(table.value_pages() > 2 * live);
    let full = table.host.world.borrow().disk.pages.len();
    table.host.world.borrow_mut().room = Some(full);
    // Others have all but a few of the free pages.
    while let Some(many) = (tree.shared().space().0 as u32).checked_sub(live / 2).filter(|many| *many > 0) {
        tree.take_extent(Taker::Flush, 1, many, many).unwrap();
    }
    table.compact();
    assert!(table.value_pages() < live * 3 / 2, "{} pages", table.value_pages());
    assert!(table.host.world.borrow().disk.pages.len() <= full);
    keys().for_each(|key| assert_eq!(table.get(&key), kept(&key).then(|| body(key))));
}
