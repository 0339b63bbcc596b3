//! PostgreSQL as the engine's host.
//!
//! | module | what it is |
//! |---|---|
//! | [`global`] | the layout of our piece of shared memory |
//! | [`registry`] | the tables that are in memory |
//! | [`pages`], [`buffer`] | the page store: the table's main fork, through the buffer manager |
//! | [`room`], [`cut`] | making that file longer, and shorter |
//! | [`pins`] | pages that scans keep between calls |
//! | [`read_ahead`] | asking the kernel for pages that a scan will come to |
//! | [`whereabouts`] | which buffer held a page last |
//! | [`log`], [`log_reader`] | the row log: log pages in the main fork; written, and read |
//! | [`log_head`] | what such a page begins with |
//! | [`standby`], [`readers`] | reading while WAL is being replayed, and who does so |
//! | [`redo`] | what replay of a record decides before it touches a page |
//! | [`maintenance`] | one flush or merge at a time |
//! | [`writers`] | transaction ids and what became of them |
//! | [`progress`] | how far long work has come, for those who look |
//! | [`side_file`] | temporary files, for what a merge keeps aside |
//! | [`seen`] | what this process and its parallel workers have looked at, for EXPLAIN |
//! | [`verify`] | reading a page that may be bad |
//! | [`latch`] | LWLocks in place |
//! | [`interrupt`], [`critical`] | cancel and terminate requests; critical sections |
//! | [`caught`] | PostgreSQL's errors as values |
//! | [`held`] | what to let go of when a process ends without unwinding |
//!
//! An ERROR that PostgreSQL raises in a call from here becomes a panic (pgrx guards the call), which unwinds through the engine
//! and is raised again at the entry from SQL. So destructors run, and the engine's own errors and PostgreSQL's take the
//! same way out. Calls without that guard stand in [`crate::pg::bindings`], with the reason why that is right.

pub mod buffer;
pub mod caught;
pub mod critical;
mod cut;
pub mod global;
pub mod held;
pub mod interrupt;
pub mod latch;
pub mod log;
pub mod log_head;
pub mod log_reader;
pub mod maintenance;
pub mod pages;
pub mod pins;
pub mod process_local;
pub mod progress;
mod read_ahead;
pub mod readers;
pub mod redo;
pub mod registry;
mod room;
pub mod seen;
mod side_file;
pub mod standby;
mod unwritten;
pub mod verify;
pub mod whereabouts;
pub mod writers;

use held::HeldList;
use loosekv_engine::cpu::Near;
use loosekv_engine::error::Result;
use loosekv_engine::host::{Budgets, Flip, Host, Lagging, Saw, SideFile, Work};
use loosekv_engine::manifest::Manifest;
use loosekv_engine::page::PageBuf;
use loosekv_engine::row::are_tombstones;
use loosekv_engine::row_cache::RowCache;
use loosekv_engine::tree::{unpin_by_force, SuperVersion, Tree};
use loosekv_engine::types::{Extent, L0Id, LogAddr, PageNo};
use pages::{Ring, Sweep};
use pgrx::pg_sys;
use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;

/// A table's pages, log and writers, through an open relation. Made for one use, and valid while the relation is open.
pub struct PgHost {
    rel: pg_sys::Relation,
    slot: Option<&'static registry::Slot>,
    /// Changes are logged: neither unlogged, nor temporary, nor a file of this transaction under wal_level = minimal.
    wal: bool,
    write_ring: Ring,
    sweep: Option<Sweep>,
    /// What [`Host::replay`] has shown.
    replayed: RefCell<log_reader::Replayed>,
}

/// Superversions that this process has pinned, in case it ends without unwinding.
static PINNED: HeldList = HeldList::new();

impl PgHost {
    pub fn new(rel: pg_sys::Relation, slot: Option<&'static registry::Slot>) -> PgHost {
        PgHost {
            rel,
            slot,
            wal: needs_wal(rel),
            write_ring: Ring::new(pg_sys::BufferAccessStrategyType::BAS_BULKWRITE),
            sweep: None,
            replayed: RefCell::default(),
        }
    }

    /// Reads through a ring of buffers from now on.
    pub fn sweeping(mut self) -> PgHost {
        self.sweep = Some(Sweep(Ring::new(pg_sys::BufferAccessStrategyType::BAS_BULKREAD)));
        self
    }

    pub fn rel(&self) -> pg_sys::Relation {
        self.rel
    }

    /// The table's place in shared memory.
    pub fn slot(&self) -> Option<&'static registry::Slot> {
        self.slot
    }

    /// Whether other processes can work on the table, too: it is not temporary.
    pub fn is_shared(&self) -> bool {
        // SAFETY: the relation is open.
        unsafe { (*self.rel).rd_backend == pg_sys::InvalidBackendId }
    }

    /// Lets go of superversions that this process still has pinned. At its exit.
    pub fn unpin_by_force() {
        while let Some(version) = PINNED.pop() {
            // SAFETY: noted as pinned and not unpinned since; this process runs nothing more that could use it.
            unsafe { unpin_by_force(version as *const SuperVersion) };
            if let Some(global) = global::get() {
                global.counters.forced_unpins.fetch_add(1, Relaxed);
            }
        }
    }
}

/// More superversions than a table ever has from one load to the next.
const VERSIONS_A_LOAD: u64 = 1 << 32;
const NO_SUBTRANSACTION: pg_sys::SubTransactionId = 0;

/// `RelationNeedsWAL`.
fn needs_wal(rel: pg_sys::Relation) -> bool {
    // SAFETY: the relation is open.
    unsafe {
        let new_file =
            (*rel).rd_createSubid != NO_SUBTRANSACTION || (*rel).rd_firstRelfilenodeSubid != NO_SUBTRANSACTION;
        let minimal = pg_sys::wal_level < pg_sys::WalLevel::WAL_LEVEL_REPLICA as i32;
        (*(*rel).rd_rel).relpersistence as u8 == pg_sys::RELPERSISTENCE_PERMANENT && !(minimal && new_file)
    }
}

impl Host for PgHost {
    type Latch = latch::LwLatch;
    type Page = pages::Page;
    type Held = pins::HeldPage;
    type LogRow = log::LogRow;
    type LogReader<'h> = log::LogPages<'h>;
    type LogState = log::LogState;
    type Horizon = writers::XidHorizon;
    const NAME_PENDING: bool = true;
    /// Every new key is looked for before it is written.
    const FILTER_STEP: u32 = 3;
    const MERGES_ASK: bool = true;

    fn read_page(&self, page: PageNo) -> Result<pages::Page> {
        self.read(page)
    }

    fn read_page_in_order(&self, page: PageNo) -> Result<pages::Page> {
        self.leave_to_kernel();
        self.read(page)
    }

    #[inline]
    fn hold_page(&self, page: pages::Page, spare: Option<pins::HeldPage>) -> pins::HeldPage {
        pins::HeldPage::keep(page, spare)
    }

    fn discard(&self, extents: &[Extent]) {
        self.leave_unwritten(extents);
    }

    fn prefetch(&self, first: PageNo, pages: u32) {
        self.ask_for(first, pages);
    }

    #[inline]
    fn touch_page(&self, page: PageNo, places: impl Iterator<Item = usize>, near: Near) {
        whereabouts::touch(self.rel, page.0, places, near);
    }

    fn scanned(&self) {
        // SAFETY: reads a flag in shared memory.
        if self.is_shared() && !unsafe { pg_sys::RecoveryInProgress() } {
            crate::work::ask::worker();
        }
    }

    fn verify_page(&self, page: PageNo) -> Result<()> {
        self.verify(page)
    }

    #[inline]
    fn pages_fetched(&self) -> u64 {
        seen::fetched()
    }

    #[inline]
    fn row_cache(&self) -> Option<&RowCache<latch::LwLatch>> {
        global::get()?.row_cache.as_ref().filter(|_| self.is_shared())
    }

    fn first_version(&self) -> u64 {
        global::get().map_or(1, |global| global.counters.first_versions.fetch_add(VERSIONS_A_LOAD, Relaxed) + 1)
    }

    fn pages(&self) -> Result<u32> {
        Ok(self.file_pages())
    }

    fn write_pages(&self, start: PageNo, pages: &mut [PageBuf]) -> Result<()> {
        caught::catch(|| self.write(start, pages))
    }

    fn extend(&self, pages: u32) -> Result<()> {
        caught::catch(|| self.grow(pages))
    }

    fn room_to_grow(&self) -> Option<u64> {
        caught::catch(|| Ok(self.room_on_disk())).ok().flatten()
    }

    fn shrink(&self, pages: u32) -> Result<()> {
        self.cut(pages)
    }

    fn flip(&self, meta: &mut PageBuf, flip: &Flip) -> Result<()> {
        caught::catch(|| self.replace_meta(meta, flip))
    }

    fn read_meta(&self) -> Result<Option<PageBuf>> {
        self.meta()
    }

    fn append(
        &self,
        tree: &Tree<'_, Self>,
        generation: L0Id,
        records: &[&[u8]],
        link: &mut dyn FnMut(usize, LogAddr),
    ) -> Result<()> {
        let deletes = || are_tombstones(records);
        let mut more = |generation, tail, pages| tree.add_log_extent(generation, tail, pages, deletes());
        self.append_records(&tree.shared().log, &mut more, generation, records, link)
    }

    fn fetch_log(&self, extents: &[Extent]) -> Result<()> {
        self.read_log(extents)
    }

    fn log_row(&self, generation: L0Id, addr: LogAddr) -> Result<log::LogRow> {
        self.log_record(generation, addr)
    }

    fn log_reader(&self, generation: L0Id) -> Result<log::LogPages<'_>> {
        Ok(log::LogPages { host: self, generation })
    }

    fn replay(&self, manifest: &Manifest, show: &mut dyn FnMut(L0Id, LogAddr, &[u8]) -> Result<()>) -> Result<()> {
        self.replay_log(manifest, show)
    }

    /// The flip has freed the extents; nothing else is kept of them.
    fn forget_log(&self, _upto: L0Id) -> Result<()> {
        if let Some(global) = global::get() {
            global.counters.flushes.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn horizon(&self) -> writers::XidHorizon {
        // SAFETY: the relation is open while the host is used.
        unsafe { writers::XidHorizon::now(self.rel) }
    }

    fn lagging(&self) -> Option<Lagging> {
        // Temporary and unlogged tables have no readers elsewhere.
        self.wal.then(writers::standbys).flatten()
    }

    fn aside_memory(&self) -> usize {
        side_file::memory()
    }

    fn side_file(&self) -> Result<Box<dyn SideFile>> {
        side_file::SideFile::create().map(|file| Box::new(file) as Box<dyn SideFile>)
    }

    fn budgets(&self) -> &Budgets {
        match global::get() {
            Some(global) => &global.budgets,
            None => unreachable!("a host is made after the library was found preloaded"),
        }
    }

    fn note_pin(pinned: *const SuperVersion, held: bool) {
        let Some(global) = global::get() else { return };
        if held {
            PINNED.push(pinned as usize);
            global.readers.publish(pinned as usize);
        } else {
            PINNED.remove(pinned as usize);
            global.readers.withdraw(pinned as usize);
        }
    }

    fn frozen(&self) {
        if self.is_shared() {
            crate::work::ask::worker();
        }
    }

    fn make_room(&self, tree: &Tree<'_, Self>) -> Result<()> {
        maintenance::make_room(tree)
    }

    fn wait_for_merge(&self, tree: &Tree<'_, Self>) -> Result<bool> {
        Ok(maintenance::wait_for_merge(tree))
    }

    fn merge_piled_up(&self, tree: &Tree<'_, Self>) -> Result<()> {
        maintenance::merge_piled_up(tree)
    }

    #[inline]
    fn saw(&self, what: Saw, times: u64) {
        seen::add(what, times);
    }

    fn at_work(&self, work: Work, done: u64, total: u64) {
        progress::report(self.rel, progress::Command::of(work), done, total);
    }

    fn merging(&self, tree: &Tree<'_, Self>) -> Result<()> {
        maintenance::merging(tree)
    }
}
