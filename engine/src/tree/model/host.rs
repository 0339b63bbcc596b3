//! The model's host: pages and logs in memory, faults on demand, and something else done whenever the engine pauses.

use super::world::World;
use super::{check, scenarios, steps};
use crate::error::{Error, Result};
use crate::host::{Budgets, Ended, Flip, Horizon, Host, RowByRow, SideFile};
use crate::manifest::Manifest;
use crate::mutation::Pause;
use crate::page::PageBuf;
use crate::row_cache::testing::Own;
use crate::row_cache::RowCache;
use crate::run::testing::SideBytes;
use crate::tree::Tree;
use crate::types::{Extent, Fate, Head, L0Id, LogAddr, PageNo, Writer};
use loosekv_shm::latch::ThreadLatch;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;

/// So little that rows have to go, too.
const ROW_CACHE: usize = 32 << 10;

#[derive(Clone)]
pub(in crate::tree) struct TestHost {
    pub world: Rc<RefCell<World>>,
    pub budgets: Rc<Budgets>,
    pub row_cache: Rc<Own>,
}

impl TestHost {
    pub fn new(world: World) -> TestHost {
        TestHost::with(world, check::unlimited())
    }

    pub fn with(world: World, budgets: Budgets) -> TestHost {
        TestHost {
            world: Rc::new(RefCell::new(world)),
            budgets: Rc::new(budgets),
            row_cache: Rc::new(Own::new(ROW_CACHE)),
        }
    }

    pub fn log(&self, generation: L0Id, records: &[&[u8]], link: &mut dyn FnMut(usize, LogAddr)) {
        for (at, record) in records.iter().enumerate() {
            let addr = self.world.borrow_mut().log(generation, record);
            link(at, addr);
        }
    }
}

pub(in crate::tree) struct Owned<T: ?Sized>(Box<T>);

impl<T: ?Sized> Deref for Owned<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// As things stood when it was made.
pub(in crate::tree) struct TestHorizon {
    fates: BTreeMap<u64, Fate>,
    oldest: u64,
    running: Vec<u64>,
    next: u64,
}

impl Horizon for TestHorizon {
    fn fate(&mut self, head: &Head) -> Fate {
        match self.fates.get(&head.writer.0) {
            Some(Fate::Committed) if head.writer.0 < self.oldest => Fate::VisibleToAll,
            Some(fate) => *fate,
            None => Fate::Aborted,
        }
    }
    fn oldest(&self) -> Writer {
        Writer(self.oldest)
    }
    fn ended(&self) -> Ended {
        let running: Vec<Writer> = self.running.iter().copied().map(Writer).collect();
        let next = Writer(self.next);
        Ended { below: running.iter().copied().min().unwrap_or(next), but: next, running }
    }
}

impl Host for TestHost {
    type Latch = ThreadLatch;
    type Page = Owned<PageBuf>;
    type Held = Owned<PageBuf>;
    type LogRow = Owned<[u8]>;
    type LogReader<'h> = RowByRow<'h, Self>;
    type LogState = ();
    type Horizon = TestHorizon;
    const NAME_PENDING: bool = true;

    fn read_page(&self, page: PageNo) -> Result<Owned<PageBuf>> {
        let mut world = self.world.borrow_mut();
        world.fault("read")?;
        world.fetched += 1;
        world.last_read = Some(page);
        world.page(page).map(|p| Owned(Box::new(p)))
    }
    fn hold_page(&self, page: Owned<PageBuf>, _spare: Option<Owned<PageBuf>>) -> Owned<PageBuf> {
        page
    }
    /// They never came to the disk.
    fn discard(&self, extents: &[Extent]) {
        let mut world = self.world.borrow_mut();
        let pages = extents.iter().flat_map(|extent| extent.start.0..extent.end().0);
        pages.for_each(|page| {
            if let Some(page) = world.disk.pages.get_mut(page as usize) {
                page.0.fill(0xdd);
            }
        });
    }
    fn prefetch(&self, first: PageNo, pages: u32) {
        let mut world = self.world.borrow_mut();
        assert!(
            first.0 as usize + pages as usize <= world.disk.pages.len(),
            "{pages} pages from {first:?} on are asked for"
        );
        world.asked.clear();
        world.asked.extend((first.0..first.0 + pages).map(PageNo));
    }
    fn pages_fetched(&self) -> u64 {
        self.world.borrow().fetched
    }
    fn row_cache(&self) -> Option<&RowCache<ThreadLatch>> {
        Some(&self.row_cache)
    }
    fn pages(&self) -> Result<u32> {
        Ok(self.world.borrow().disk.pages.len() as u32)
    }
    fn write_pages(&self, start: PageNo, pages: &mut [PageBuf]) -> Result<()> {
        let mut world = self.world.borrow_mut();
        if let Some(left) = world.no_room.checked_sub(1) {
            world.no_room = left;
            return Err(Error::NoSpace("as the test wants it".into()));
        }
        let failed = world.fault("write");
        // A write that fails has perhaps been done in part.
        let done = if failed.is_err() { pages.len() / 2 } else { pages.len() };
        for (at, page) in pages.iter().enumerate().take(done) {
            world.disk.pages[start.0 as usize + at] = page.clone();
        }
        failed
    }
    fn extend(&self, pages: u32) -> Result<()> {
        let mut world = self.world.borrow_mut();
        world.fault("extend")?;
        world.extend(pages as usize)
    }
    fn room_to_grow(&self) -> Option<u64> {
        let world = self.world.borrow();
        world.room.map(|room| room.saturating_sub(world.disk.pages.len()) as u64)
    }
    fn shrink(&self, _pages: u32) -> Result<()> {
        Ok(())
    }
    fn flip(&self, meta: &mut PageBuf, _flip: &Flip) -> Result<()> {
        let mut world = self.world.borrow_mut();
        world.flip_fault()?;
        world.disk.meta = Some(meta.clone());
        Ok(())
    }
    fn read_meta(&self) -> Result<Option<PageBuf>> {
        Ok(self.world.borrow().disk.meta.clone())
    }
    fn append(
        &self,
        _tree: &Tree<'_, Self>,
        generation: L0Id,
        records: &[&[u8]],
        link: &mut dyn FnMut(usize, LogAddr),
    ) -> Result<()> {
        self.world.borrow_mut().fault("append")?;
        self.log(generation, records, link);
        Ok(())
    }
    fn log_row(&self, generation: L0Id, addr: LogAddr) -> Result<Owned<[u8]>> {
        let world = self.world.borrow();
        let log = world.disk.logs.get(&generation).ok_or_else(|| Error::structure("log is gone"))?;
        let record = &log[addr.0 as usize..];
        let length = crate::row::record_len(record).ok_or_else(|| Error::structure("no record"))?;
        Ok(Owned(record[..length].into()))
    }
    fn log_reader(&self, generation: L0Id) -> Result<RowByRow<'_, Self>> {
        Ok(RowByRow { host: self, generation })
    }
    fn replay(&self, manifest: &Manifest, show: &mut dyn FnMut(L0Id, LogAddr, &[u8]) -> Result<()>) -> Result<()> {
        let logs = self.world.borrow().disk.logs.clone();
        for (generation, log) in logs.range(L0Id(manifest.flushed.0 + 1)..) {
            let mut at = 0;
            while at < log.len() {
                let (_, len) = crate::row::decode_record(&log[at..])?;
                show(*generation, LogAddr(at as u64), &log[at..at + len])?;
                at += len;
            }
        }
        Ok(())
    }
    fn forget_log(&self, upto: L0Id) -> Result<()> {
        // A pinned superversion may still read it: it goes with the next crash.
        let mut world = self.world.borrow_mut();
        world.disk.forgotten = world.disk.forgotten.max(upto);
        Ok(())
    }
    fn horizon(&self) -> TestHorizon {
        let world = self.world.borrow();
        TestHorizon {
            fates: world.fates.clone(),
            oldest: world.oldest(),
            running: world.snapshot().running.clone(),
            next: world.snapshot().before,
        }
    }
    /// So little that the model's runs have something in side files.
    fn aside_memory(&self) -> usize {
        64
    }
    fn side_file(&self) -> Result<Box<dyn SideFile>> {
        self.world.borrow_mut().fault("side file")?;
        Ok(Box::<SideBytes>::default())
    }
    fn budgets(&self) -> &Budgets {
        &self.budgets
    }
    fn make_room(&self, tree: &Tree<'_, Self>) -> Result<()> {
        if self.world.borrow().flushing {
            return Ok(());
        }
        // Who waits for that in the midst of an append must look at the key once more.
        self.world.borrow_mut().acts += 1;
        steps::flush(tree).map(|_| ())
    }
    fn merge_piled_up(&self, tree: &Tree<'_, Self>) -> Result<()> {
        if self.world.borrow().flushing {
            return Ok(());
        }
        // A merge may leave open whether what was observed is still so.
        if steps::maintain(tree, "merge of what has piled up", || tree.merge_piled_up()) != Some(false) {
            self.world.borrow_mut().acts += 1;
        }
        Ok(())
    }
    fn merging(&self, tree: &Tree<'_, Self>) -> Result<()> {
        self.world.borrow_mut().fault("merging")?;
        scenarios::come_meanwhile(tree)?;
        steps::in_between(tree, Pause::Rebuilding);
        Ok(())
    }
    fn paused(&self, tree: &Tree<'_, Self>, at: Pause) {
        steps::in_between(tree, at);
        scenarios::evicting(tree, at);
        scenarios::moving(tree, at);
        let installs = matches!(at, Pause::FlushIndexed | Pause::MergeIndexed | Pause::Described | Pause::Sunk);
        if installs && self.world.borrow_mut().fault("install").is_err() {
            tree.shared.refuses.store(1, SeqCst);
        }
    }
}
