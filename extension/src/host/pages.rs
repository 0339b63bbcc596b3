//! The page store: blocks of the table's main fork, through the buffer manager, logged as PostgreSQL's own full-page
//! images.
//!
//! Pages of runs never change between their writing and the reuse of their extent, so readers hold a pin and no lock.
//! Block 0 is the meta page; it changes by [`PgHost::replace_meta`] alone, one WAL record each time.

use crate::host::buffer::RawPage;
use crate::host::critical::Critical;
use crate::host::room::Room;
use crate::host::{interrupt, room, seen, whereabouts, writers, PgHost};
use crate::pg::bindings;
use crate::pg::rmgr::{self, FlipRecord};
use crate::pg::worker;
use loosekv_engine::error::{Error, Result};
use loosekv_engine::host::Flip;
use loosekv_engine::page::PageBuf;
use loosekv_engine::types::{PageNo, PAGE_SIZE};
use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use std::cell::Cell;
use std::mem::align_of;
use std::ops::Deref;
use std::sync::atomic::Ordering::Relaxed;

pub(super) const MAIN: pg_sys::ForkNumber::Type = pg_sys::ForkNumber::MAIN_FORKNUM;

/// Pages that one WAL record carries, at most.
pub(super) const PAGES_A_RECORD: usize = pg_sys::XLR_MAX_BLOCK_ID as usize;
/// They are pinned together, and are not to be more than this part of the buffers.
const PART_OF_BUFFERS: usize = 8;
/// Highest block number that PostgreSQL's files have.
const MAX_BLOCK: u32 = pg_sys::InvalidBlockNumber - 1;
/// Blocks added to a file between two looks for a cancel request.
const BLOCKS_A_STEP: u32 = 512;

pub(super) static ZERO: PageBuf = PageBuf::ZERO;

/// A page, pinned until dropped.
pub enum Page {
    Pinned {
        buffer: pg_sys::Buffer,
        page: *const PageBuf,
    },
    /// A temporary table's buffers are not aligned as the engine's pages are.
    Copied(Box<PageBuf>),
}

impl Deref for Page {
    type Target = PageBuf;

    #[inline]
    fn deref(&self) -> &PageBuf {
        match self {
            // SAFETY: the buffer is pinned and aligned. What the caller reads of it does not change while it is pinned:
            // pages of runs not at all, of log pages only the bytes past the records that the caller knows of.
            Page::Pinned { page, .. } => unsafe { &**page },
            Page::Copied(page) => page,
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let Page::Pinned { buffer, .. } = self {
            // SAFETY: pinned by `read`, released once.
            unsafe { bindings::ReleaseBuffer(*buffer) }
        }
    }
}

/// A buffer ring, so that a sweep through a table does not wash everything else out of the buffers.
pub(super) struct Ring {
    kind: pg_sys::BufferAccessStrategyType::Type,
    strategy: Cell<pg_sys::BufferAccessStrategy>,
}

impl Ring {
    pub(super) const fn new(kind: pg_sys::BufferAccessStrategyType::Type) -> Ring {
        Ring { kind, strategy: Cell::new(std::ptr::null_mut()) }
    }

    fn get(&self) -> pg_sys::BufferAccessStrategy {
        if self.strategy.get().is_null() {
            // SAFETY: allocated where no reset reaches it before `drop` frees it.
            unsafe {
                let context = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
                self.strategy.set(pg_sys::GetAccessStrategy(self.kind));
                pg_sys::MemoryContextSwitchTo(context);
            }
        }
        self.strategy.get()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.strategy.get().is_null() {
            // SAFETY: made by `get`, freed once.
            unsafe { pg_sys::FreeAccessStrategy(self.strategy.get()) }
        }
    }
}

/// Much is read, through a ring.
pub(super) struct Sweep(pub(super) Ring);

impl Drop for Sweep {
    fn drop(&mut self) {
        super::read_ahead::leave_all_to_kernel();
    }
}

impl PgHost {
    /// `RelationGetSmgr`: the open file, which any invalidation may have closed since the last call.
    pub(super) fn smgr(&self) -> pg_sys::SMgrRelation {
        // SAFETY: the relation is open for as long as the host is used.
        unsafe {
            let rel = self.rel();
            if (*rel).rd_smgr.is_null() {
                pg_sys::smgrsetowner(&mut (*rel).rd_smgr, pg_sys::smgropen((*rel).rd_node, (*rel).rd_backend));
            }
            (*rel).rd_smgr
        }
    }

    /// Length of the file. Not `RelationGetNumberOfBlocks`, which asks the table AM for its virtual blocks.
    pub(super) fn file_pages(&self) -> u32 {
        // SAFETY: the file exists as long as the relation does.
        unsafe { pg_sys::smgrnblocks(self.smgr(), MAIN) }
    }

    /// Whether the file is known to be `pages` long, by a look at the file if need be.
    pub(super) fn reaches(&self, pages: u32) -> bool {
        // On a standby replay cuts files, and tells nobody.
        let Some(slot) = self.slot.filter(|slot| !slot.is_standby()) else { return self.file_pages() >= pages };
        if slot.file_pages.load(Relaxed) >= pages {
            return true;
        }
        let length = self.file_pages();
        slot.file_pages.fetch_max(length, Relaxed);
        length >= pages
    }

    /// The ring to read through; null: none.
    pub(super) fn read_strategy(&self) -> pg_sys::BufferAccessStrategy {
        self.sweep.as_ref().map_or(std::ptr::null_mut(), |sweep| sweep.0.get())
    }

    pub(super) fn read(&self, page: PageNo) -> Result<Page> {
        interrupt::poll()?;
        seen::page();
        let Some(Sweep(ring)) = &self.sweep else { return Ok(self.read_or_find(page)) };
        worker::between_pages()?;
        Ok(self.pinned(self.read_buffer(page, ring.get())))
    }

    /// The same, whether or not the host reads through a ring: the page will be wanted again.
    pub(super) fn read_to_stay(&self, page: PageNo) -> Result<Page> {
        interrupt::poll()?;
        seen::page();
        if self.sweep.is_some() {
            worker::between_pages()?;
        }
        Ok(self.read_or_find(page))
    }

    #[inline]
    fn read_or_find(&self, page: PageNo) -> Page {
        self.read_where_it_was(page).unwrap_or_else(|| {
            let buffer = self.read_buffer(page, std::ptr::null_mut());
            whereabouts::note(self.rel(), page.0, buffer);
            self.pinned(buffer)
        })
    }

    fn read_buffer(&self, page: PageNo, strategy: pg_sys::BufferAccessStrategy) -> pg_sys::Buffer {
        let (rel, normal) = (self.rel(), pg_sys::ReadBufferMode::RBM_NORMAL);
        // SAFETY: the guarded call turns an ERROR (bad checksum, past the end of the file) into a panic that names the file.
        unsafe { pg_sys::ReadBufferExtended(rel, MAIN, page.0, normal, strategy) }
    }

    /// The page, if it is in the buffer where it was found last.
    #[inline]
    fn read_where_it_was(&self, page: PageNo) -> Option<Page> {
        let rel = self.rel();
        let buffer = whereabouts::find(rel, page.0)?;
        // SAFETY: the relation is open; the guarded call turns an ERROR (out of memory) into a panic.
        unsafe {
            let statistics = (*rel).pgstat_info;
            let node = (*rel).rd_node;
            let there = !statistics.is_null()
                && pg_guard_ffi_boundary(|| bindings::ReadRecentBuffer(node, MAIN, page.0, buffer));
            whereabouts::was_there(there);
            if !there {
                return None;
            }
            // As the buffer manager counts.
            (*statistics).t_counts.t_blocks_fetched += 1;
            (*statistics).t_counts.t_blocks_hit += 1;
        }
        Some(self.pinned(buffer))
    }

    /// Takes over the pin of `buffer`.
    pub(super) fn pinned(&self, buffer: pg_sys::Buffer) -> Page {
        // SAFETY: the buffer is pinned.
        let raw = unsafe { RawPage::of(buffer) };
        let page = raw.as_ptr().cast_const().cast::<PageBuf>();
        if buffer > 0 {
            debug_assert!(page.is_aligned(), "shared buffers are aligned to {}", align_of::<PageBuf>());
            return Page::Pinned { buffer, page };
        }
        let mut copy = PageBuf::boxed();
        raw.copy_to(&mut copy);
        // SAFETY: pinned by the caller.
        unsafe { bindings::ReleaseBuffer(buffer) };
        Page::Copied(copy)
    }

    /// Looks at a page that others may be writing. `see` must not fail or wait.
    pub(super) fn look<R>(&self, page: PageNo, see: impl FnOnce(RawPage) -> R) -> Result<R> {
        interrupt::poll()?;
        let (rel, normal) = (self.rel(), pg_sys::ReadBufferMode::RBM_NORMAL);
        // SAFETY: as in `read`; nothing between lock and unlock may fail.
        unsafe {
            let buffer = pg_sys::ReadBufferExtended(rel, MAIN, page.0, normal, std::ptr::null_mut());
            bindings::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let seen = see(RawPage::of(buffer));
            bindings::UnlockReleaseBuffer(buffer);
            Ok(seen)
        }
    }

    /// A copy of a page that others may be writing.
    pub(super) fn read_copy(&self, page: PageNo, copy: &mut PageBuf) -> Result<()> {
        self.look(page, |raw| raw.copy_to(copy))
    }

    /// The LSN of the meta page: when it was last flipped. 0: there is none.
    pub fn meta_lsn(&self) -> Result<u64> {
        if !self.reaches(1) {
            return Ok(0);
        }
        self.look(PageNo(0), RawPage::lsn)
    }

    pub(super) fn meta(&self) -> Result<Option<PageBuf>> {
        // A file of no blocks was just created, or is what is left of a dropped table.
        if !self.reaches(1) {
            return Ok(None);
        }
        let mut page = PageBuf::ZERO;
        self.read_copy(PageNo(0), &mut page)?;
        // Zeros: the server stopped between the extension of the file and the first flip.
        Ok(page.0.iter().any(|byte| *byte != 0).then_some(page))
    }

    pub(super) fn grow(&self, pages: u32) -> Result<()> {
        if self.reaches(pages) {
            return Ok(());
        }
        interrupt::poll()?;
        let lock = pg_sys::ExclusiveLock as pg_sys::LOCKMODE;
        // SAFETY: guarded calls. After an ERROR (no space) the lock is released by the transaction's abort; the file may
        // be longer than it was, but nothing names those blocks.
        unsafe { pg_sys::LockRelationForExtension(self.rel(), lock) };
        let result = self.grow_locked(pages);
        // SAFETY: taken above.
        unsafe { pg_sys::UnlockRelationForExtension(self.rel(), lock) };
        result
    }

    /// See [`loosekv_engine::host::Host::room_to_grow`].
    pub(super) fn room_on_disk(&self) -> Option<u64> {
        // SAFETY: the relation is open, so its file is.
        room::blocks_left(unsafe { (*self.smgr()).smgr_rnode })
    }

    fn grow_locked(&self, pages: u32) -> Result<()> {
        let mut length = self.file_pages();
        while length < pages {
            let upto = pages.min(length + BLOCKS_A_STEP).min(room::segment_end(length));
            let smgr = self.smgr();
            // SAFETY: the relation is open, so its file is.
            let node = unsafe { (*smgr).smgr_rnode };
            // The last block is written even so: that the file has to be synced is noted where blocks are written.
            let unwritten = match room::set_aside(node, length, upto) {
                Room::SetAside => upto - 1,
                Room::Full(why) => {
                    return Err(Error::NoSpace(format!("its file cannot grow from {length} to {pages} pages: {why}")));
                }
                Room::Unknown => length,
            };
            // SAFETY: the closure owns nothing that an ERROR would skip. smgrextend only reads the zeros.
            unsafe {
                pg_guard_ffi_boundary(|| {
                    for block in unwritten..upto {
                        smgrextend(smgr, MAIN, block, ZERO.0.as_ptr().cast_mut().cast(), false);
                    }
                });
            }
            length = upto;
            interrupt::poll()?;
        }
        if let Some(slot) = self.slot {
            slot.file_pages.fetch_max(length, Relaxed);
        }
        Ok(())
    }

    pub(super) fn write(&self, start: PageNo, pages: &[PageBuf]) -> Result<()> {
        let end = u32::try_from(pages.len()).ok().and_then(|n| start.0.checked_add(n));
        let Some(end) = end.filter(|end| *end <= MAX_BLOCK) else {
            return Err(Error::NoSpace(format!("block numbers are used up at page {start}")));
        };
        self.grow(end)?;
        if self.wal {
            // SAFETY: guarded; outside a critical section and before XLogBeginInsert, as it demands.
            unsafe { pg_sys::XLogEnsureRecordSpace(pg_sys::XLR_MAX_BLOCK_ID as i32, 0) };
        }
        // SAFETY: set before any process is started.
        let buffers = usize::try_from(unsafe { pg_sys::NBuffers }).unwrap_or(0);
        let each = (buffers / PART_OF_BUFFERS).clamp(1, PAGES_A_RECORD);
        for (chunk, part) in pages.chunks(each).enumerate() {
            interrupt::poll()?;
            self.write_record(start.0 + (chunk * each) as u32, part);
        }
        Ok(())
    }

    /// Writes up to [`PAGES_A_RECORD`] pages, in one WAL record.
    fn write_record(&self, start: u32, pages: &[PageBuf]) {
        let mut buffers = [0; PAGES_A_RECORD];
        let (rel, ring) = (self.rel(), self.write_ring.get());
        // SAFETY: the closure owns nothing that an ERROR would skip; after one, the transaction's abort unlocks and unpins.
        unsafe {
            pg_guard_ffi_boundary(|| {
                for (i, buffer) in buffers.iter_mut().enumerate().take(pages.len()) {
                    *buffer = zero_and_lock(rel, start + i as u32, ring);
                }
            });
        }
        let critical = Critical::enter();
        // SAFETY: the buffers are pinned and locked exclusively; in a critical section no call returns by longjmp.
        unsafe {
            for (page, buffer) in pages.iter().zip(buffers) {
                RawPage::of(buffer).fill(page);
                bindings::MarkBufferDirty(buffer);
            }
            if self.wal {
                bindings::XLogBeginInsert();
                for (i, buffer) in buffers.iter().enumerate().take(pages.len()) {
                    bindings::XLogRegisterBuffer(i as u8, *buffer, FULL_IMAGE);
                }
                let lsn = bindings::XLogInsert(pg_sys::RmgrIds::RM_XLOG_ID as u8, pg_sys::XLOG_FPI as u8);
                for buffer in buffers.iter().take(pages.len()) {
                    RawPage::of(*buffer).set_lsn(lsn);
                }
            }
        }
        drop(critical);
        for buffer in buffers.iter().take(pages.len()) {
            // SAFETY: pinned and locked above.
            unsafe { bindings::UnlockReleaseBuffer(*buffer) };
        }
        if let Some(slot) = self.slot {
            slot.counters.pages_written.fetch_add(pages.len() as u64, Relaxed);
        }
    }

    pub(super) fn replace_meta(&self, meta: &PageBuf, flip: &Flip) -> Result<()> {
        self.grow(1)?;
        let mut record = FlipRecord {
            superseded: flip.superseded.map_or(0, |writer| writer.0),
            reused: flip.reused.map_or(0, |version| self.slot.map_or(0, |slot| slot.freed_before(version))),
            // SAFETY: the relation is open.
            node: unsafe { (*self.rel()).rd_node },
            reserved: 0,
        };
        let rel = self.rel();
        // SAFETY: the closure owns nothing that an ERROR would skip. The page is replaced whole, so it need not be read.
        let buffer = unsafe { pg_guard_ffi_boundary(|| zero_and_lock(rel, 0, std::ptr::null_mut())) };
        let critical = Critical::enter();
        // SAFETY: the buffer is pinned and locked exclusively; in a critical section no call returns by longjmp.
        unsafe {
            let page = RawPage::of(buffer);
            page.fill(meta);
            bindings::MarkBufferDirty(buffer);
            if self.wal {
                bindings::XLogBeginInsert();
                bindings::XLogRegisterData((&raw mut record).cast(), size_of::<FlipRecord>() as u32);
                bindings::XLogRegisterBuffer(0, buffer, FULL_IMAGE);
                page.set_lsn(bindings::XLogInsert(rmgr::ID, rmgr::FLIP));
            }
        }
        drop(critical);
        // SAFETY: pinned and locked above.
        unsafe { bindings::UnlockReleaseBuffer(buffer) };
        if let Some(slot) = self.slot {
            slot.note_flip(writers::next());
            slot.counters.flips.fetch_add(1, Relaxed);
        }
        Ok(())
    }
}

const FULL_IMAGE: u8 = (pg_sys::REGBUF_FORCE_IMAGE | pg_sys::REGBUF_STANDARD) as u8;

/// A buffer for a page that will be replaced whole. To be called inside a guard.
///
/// # Safety
/// Raises ERROR by longjmp: the caller's frames own nothing, up to the guard.
pub(super) unsafe fn zero_and_lock(
    rel: pg_sys::Relation,
    block: u32,
    ring: pg_sys::BufferAccessStrategy,
) -> pg_sys::Buffer {
    // SAFETY: the caller's word.
    unsafe { ReadBufferExtended(rel, MAIN, block, pg_sys::ReadBufferMode::RBM_ZERO_AND_LOCK, ring) }
}

extern "C-unwind" {
    /// Unguarded: for several calls under one guard.
    pub(super) fn ReadBufferExtended(
        rel: pg_sys::Relation,
        fork: pg_sys::ForkNumber::Type,
        block: pg_sys::BlockNumber,
        mode: pg_sys::ReadBufferMode::Type,
        ring: pg_sys::BufferAccessStrategy,
    ) -> pg_sys::Buffer;
    fn smgrextend(
        smgr: pg_sys::SMgrRelation,
        fork: pg_sys::ForkNumber::Type,
        block: pg_sys::BlockNumber,
        page: *mut std::ffi::c_char,
        skip_fsync: bool,
    );
}

const _: () = assert!(PAGE_SIZE.is_multiple_of(align_of::<PageBuf>()));
