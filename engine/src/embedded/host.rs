//! The embedded host: the engine's [`Host`] over files and threads.
//!
//! Keeps I6's durable part (pages are synced before the flip that names them) and I18 (a failed sync ends writing).

use super::fs::{File, Fs, Lock};
use super::health::{lock, Health};
use super::log_segment::{LogRow, SegmentReader};
use super::meta_file::MetaFile;
use super::metrics::{add, Counters};
use super::options::Options;
use super::pace::{Pace, Task};
use super::page_file::{Page, PageFile, PAGES_NAME};
use super::row_log::RowLog;
use super::sequence::{SequenceHorizon, Sequences};
use crate::cpu::Near;
use crate::error::{Error, Result};
use crate::host::{Budgets, Flip, Host, SideFile};
use crate::manifest::Manifest;
use crate::mutation::{on, Mutation::I6PagesNotSynced};
use crate::page::PageBuf;
use crate::tree::load::FIRST_PAGE;
use crate::tree::{for_deletes, is_much_room, Tree};
use crate::types::{L0Id, LogAddr, PageNo, PAGE_SIZE};
use loosekv_shm::latch::ThreadLatch;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub const LOCK_NAME: &str = "lock";

/// A handle on the host's parts; as cheap as a reference.
#[derive(Clone)]
pub struct EmbeddedHost(Arc<Parts>);

pub struct Parts {
    pub fs: Arc<dyn Fs>,
    pub dir: PathBuf,
    pub options: Options,
    pub health: Arc<Health>,
    pub meta: MetaFile,
    pub pages: PageFile,
    pub log: RowLog,
    pub sequences: Arc<Sequences>,
    pub budgets: Budgets,
    pub pace: Pace,
    pub counters: Counters,
    /// One flush at a time.
    pub flushing: Mutex<()>,
    /// One merge, or piece of index building, at a time.
    pub merging: Mutex<()>,
    storage_id: AtomicU64,
    _lock: Lock,
}

impl Deref for EmbeddedHost {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl EmbeddedHost {
    /// Locks the directory and opens the files in it. A new store has no meta page yet.
    pub fn open(fs: Arc<dyn Fs>, dir: &Path, options: &Options) -> Result<EmbeddedHost> {
        let shown = dir.display();
        if options.create {
            fs.create_dir(dir).map_err(|e| Error::io(format!("cannot make {shown}"), e))?;
        }
        let lock = fs.lock(&dir.join(LOCK_NAME)).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => Error::Unavailable(format!("{shown} is open in another process or store")),
            _ => Error::io(format!("cannot lock {shown}"), e),
        })?;
        let health = Arc::new(Health::default());
        let meta = MetaFile::open(Arc::clone(&fs), dir)?;
        if !meta.exists() {
            if let Some(generation) = RowLog::generations_on_disk(fs.as_ref(), dir)?.first() {
                let what = format!("{shown} has log generation {generation}, but no meta page");
                return Err(Error::structure(what));
            }
            if !options.create {
                return Err(Error::Unavailable(format!("there is no store in {shown}")));
            }
        } else if options.create_new {
            return Err(Error::Invalid(format!("there is a store in {shown} already")));
        }
        let pages = PageFile::open(fs.as_ref(), dir, options.reads, options.verify_checksums)?;
        // A store that was about to be made has the first pages alone.
        if !meta.exists() && pages.pages() > FIRST_PAGE {
            let what = format!("{shown} has {} pages, but no meta page", pages.pages());
            return Err(Error::structure(what));
        }
        let log = RowLog::new(Arc::clone(&fs), dir, options.log_chunk, Arc::clone(&health));
        let budgets = Budgets::default();
        budgets.memtables.limit.store(options.memtables_budget, Ordering::Relaxed);
        budgets.key_index.limit.store(options.key_index_budget, Ordering::Relaxed);
        let host = EmbeddedHost(Arc::new(Parts {
            fs,
            dir: dir.to_path_buf(),
            options: options.clone(),
            health,
            pages,
            log,
            sequences: Arc::default(),
            budgets,
            pace: Pace::new(options),
            counters: Counters::default(),
            flushing: Mutex::default(),
            merging: Mutex::default(),
            storage_id: AtomicU64::new(0),
            _lock: lock,
            meta,
        }));
        if let Some(id) = host.meta.storage_id() {
            host.set_storage_id(id);
        }
        Ok(host)
    }

    /// Before the first page is written or read.
    pub fn set_storage_id(&self, id: u64) {
        self.storage_id.store(id, Ordering::Release);
        self.pages.set_storage_id(id);
        self.log.set_storage_id(id);
    }

    /// Pages that there is room for on the disk, if that is known.
    fn room(&self) -> Option<u64> {
        self.fs.room(&self.dir).map(|bytes| bytes / PAGE_SIZE as u64)
    }

    /// So many of them the page file leaves to the row log, which could not have them back. Half of that is for deletes.
    fn kept_for_log(&self) -> u64 {
        u64::from(for_deletes(self.pages.pages()) / 2)
    }

    /// See [`super::row_log::Room`].
    fn room_for_log(&self, tree: &Tree<'_, Self>, least: u64, wanted: u64, deletes: bool) -> Result<u64> {
        let Some(room) = self.room() else { return Ok(wanted) };
        // The ledger knows what is kept, and would have to be waited for while a flip is synced. Twice that is more than it keeps.
        let kept = u64::from(self.log.pages()) + u64::from(for_deletes(self.pages.pages()));
        if is_much_room(room.saturating_sub(self.kept_for_log()), 2 * kept) {
            return Ok(wanted);
        }
        let room = if deletes { room } else { room.saturating_sub(self.kept_for_log() / 2) };
        let pages = |bytes: u64| u32::try_from(bytes.div_ceil(PAGE_SIZE as u64)).unwrap_or(u32::MAX);
        let got = tree.room_for_log(pages(least), pages(wanted), room, deletes)?;
        Ok(u64::from(got) * PAGE_SIZE as u64)
    }

    /// The same, once more if there are logs that readers have gone from since they were flushed.
    fn find_room_for_log(&self, tree: &Tree<'_, Self>, least: u64, wanted: u64, deletes: bool) -> Result<u64> {
        match self.room_for_log(tree, least, wanted, deletes) {
            Err(Error::NoSpace(_)) if self.log.release(&tree.shared().logs_in_use()) => {
                self.room_for_log(tree, least, wanted, deletes)
            }
            got => got,
        }
    }
}

impl Host for EmbeddedHost {
    type Latch = ThreadLatch;
    type Page = Page;
    type Held = Page;
    type LogRow = LogRow;
    type LogReader<'h> = SegmentReader;
    type LogState = ();
    type Horizon = SequenceHorizon;
    /// Nobody replays but who writes: an extent that no meta page names is free after a crash.
    const NAME_PENDING: bool = false;
    const MERGES_ASK: bool = true;
    /// Nothing logs what a merge writes.
    const GARBAGE_WHILE_WRITING: u64 = 1;
    const TIDY_RATIO: u64 = 10;
    const A_RUN_MORE: u64 = 1024;
    /// Large values are logged with their rows, so that one frame is all there is of a batch; flushes take them out.
    const MAX_RECORD: usize = super::log_segment::MAX_PAYLOAD - 16;

    fn read_page(&self, page: PageNo) -> Result<Page> {
        self.pages.read(page)
    }

    fn read_page_in_order(&self, page: PageNo) -> Result<Page> {
        self.pages.read_in_order(page)
    }

    fn hold_page(&self, page: Page, _spare: Option<Page>) -> Page {
        page
    }

    fn prefetch(&self, first: PageNo, pages: u32) {
        self.pages.prefetch(first, pages);
    }

    #[inline]
    fn pages_fetched(&self) -> u64 {
        self.pages.fetched.load(Ordering::Relaxed)
    }

    #[inline]
    fn touch_page(&self, page: PageNo, places: impl Iterator<Item = usize>, near: Near) {
        self.pages.touch(page, places, near);
    }

    fn verify_page(&self, page: PageNo) -> Result<()> {
        match page {
            // The meta page has files of its own.
            PageNo(0) => self.meta.read().map(|_| ()),
            page => self.pages.verify(page),
        }
    }

    fn pages(&self) -> Result<u32> {
        Ok(self.pages.pages())
    }

    fn write_pages(&self, start: PageNo, pages: &mut [PageBuf]) -> Result<()> {
        self.pages.write(start, pages, &self.health)
    }

    fn extend(&self, pages: u32) -> Result<()> {
        self.health.check()?;
        let more = u64::from(pages.saturating_sub(self.pages.pages()));
        match self.room_to_grow().filter(|left| *left < more) {
            Some(left) => {
                let what = format!("{PAGES_NAME} cannot grow to {pages} pages: there is room for {left} more");
                Err(Error::NoSpace(what))
            }
            None => self.pages.extend(pages),
        }
    }

    fn room_to_grow(&self) -> Option<u64> {
        self.room().map(|room| room.saturating_sub(self.kept_for_log()))
    }

    fn log_pages(&self) -> u32 {
        self.log.pages()
    }

    fn shrink(&self, pages: u32) -> Result<()> {
        self.health.check()?;
        self.pages.shrink(pages)
    }

    fn flip(&self, meta: &mut PageBuf, _flip: &Flip) -> Result<()> {
        self.health.check()?;
        if !on(I6PagesNotSynced) {
            self.pages.sync(&self.health)?;
        }
        self.meta.flip(meta, self.storage_id.load(Ordering::Acquire), &self.health)?;
        add(&self.counters.meta_flips, 1);
        Ok(())
    }

    fn read_meta(&self) -> Result<Option<PageBuf>> {
        self.meta.read()
    }

    fn append(
        &self,
        tree: &Tree<'_, Self>,
        generation: L0Id,
        records: &[&[u8]],
        link: &mut dyn FnMut(usize, LogAddr),
    ) -> Result<()> {
        let room = |least, wanted, deletes| self.find_room_for_log(tree, least, wanted, deletes);
        self.log.append(generation, records, &room, link)
    }

    fn log_row(&self, generation: L0Id, addr: LogAddr) -> Result<LogRow> {
        self.log.row(generation, addr)
    }

    fn log_reader(&self, generation: L0Id) -> Result<SegmentReader> {
        self.log.reader(generation)
    }

    fn replay(&self, manifest: &Manifest, show: &mut dyn FnMut(L0Id, LogAddr, &[u8]) -> Result<()>) -> Result<()> {
        self.log.replay(manifest.flushed, show)
    }

    fn newest_log(&self) -> L0Id {
        self.log.newest_generation()
    }

    fn forget_log(&self, upto: L0Id) -> Result<()> {
        self.log.forget(upto)
    }

    fn horizon(&self) -> SequenceHorizon {
        self.sequences.horizon()
    }

    fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    fn aside_memory(&self) -> usize {
        self.options.aside_memory
    }

    fn side_file(&self) -> Result<Box<dyn SideFile>> {
        let file =
            self.fs.create_unnamed(&self.dir).map_err(|e| Error::io_or_no_space("cannot make a side file", e))?;
        Ok(Box::new(Unnamed { file, len: 0 }))
    }

    fn scanned(&self) {
        self.pace.wake(Task::Merge);
    }

    fn frozen(&self) {
        self.pace.writer_is_here();
        self.pace.wake(Task::Flush);
    }

    fn make_room(&self, tree: &Tree<'_, Self>) -> Result<()> {
        if self.pace.has_threads() && !self.pace.is_stopped() {
            return self.pace.wait_for_flush(&self.health, &self.counters);
        }
        let _one = lock(&self.flushing);
        if tree.flush_one()? {
            add(&self.counters.flushes, 1);
            self.log.release(&tree.shared().logs_in_use());
        }
        Ok(())
    }

    fn merging(&self, tree: &Tree<'_, Self>) -> Result<()> {
        self.health.check()?;
        // Slices, and what was merged in between, have changed it.
        let runs = tree.shared().current.pin::<Self>().runs.iter().filter(|run| run.level == 0).count();
        self.pace.set_runs(u32::try_from(runs).unwrap_or(u32::MAX));
        self.pace.set_garbage(tree.shared().garbage_beyond());
        self.pace.let_flush_pass();
        match self.pace.is_stopped() {
            true => Err(Error::Unavailable("the store is being closed".into())),
            false => Ok(()),
        }
    }
}

struct Unnamed {
    file: Arc<dyn File>,
    len: u64,
}

impl SideFile for Unnamed {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_at(bytes, self.len).map_err(|e| Error::io_or_no_space("cannot write a side file", e))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<()> {
        match self.file.read_at(into, at) {
            Ok(read) if read == into.len() => Ok(()),
            Ok(_) => Err(Error::structure("a side file is shorter than what was written")),
            Err(e) => Err(Error::io("cannot read a side file", e)),
        }
    }
}
