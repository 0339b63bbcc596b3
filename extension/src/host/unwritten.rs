//! Pages that are free again stay unwritten, if they still are.
//!
//! A log page is wanted until its rows are in a run, and that is soon. Yet the next checkpoint, or whoever wants its buffer, would write
//! it: in bytes another copy of each row. So where such a page is still in its buffer it is marked clean, and what the file has in
//! its place is older, or zeros. That is as good as what it holds: nobody reads a free page, and who takes it begins it anew.
//!
//! After a crash redo must not meet a page that is older than its records expect. It begins where a checkpoint began, which has
//! written what was changed before, but for pages that were marked clean until it came to them. A checkpoint that begins later does not
//! matter, for nothing changes the page until it is begun anew. One that is going on began at the redo point of now, and redo from there
//! must not need what the page held. It does not where the page was changed last before that point, nor where the first thing
//! that redo comes by begins it anew. It may have been begun more than once since, as another extent's, or have become a run's page and
//! free again. So a log page is stamped with the redo point when it is begun, unless it was changed after that point in a life that began
//! before: with `full_page_writes` off that may have been without an image. (Of a page that is not in the buffers then, redo needs no
//! more than the file has.) Where the stamp is the redo point of now the page is marked clean. Only log pages have stamps, and only
//! they are; runs are written through a ring of buffers, and few of their pages are still to be written when they go.
//!
//! Should the flip get lost by which the page became free, then no checkpoint has ended that passed over the page: it would have written out
//! the log up to itself. That does not hold of a restartpoint that a standby began before it was promoted. And who was promoted may be
//! rewound, to the last checkpoint record that it has replayed: by then nothing but its own first checkpoint has written all that was
//! changed before, and `pg_rewind` copies what was changed since. So until a checkpoint has begun and ended since this server first had
//! pages to leave, it leaves none.

use crate::host::buffer::{log_page, RawPage};
use crate::host::log_head::{self, RedoPoint};
use crate::host::pages::MAIN;
use crate::host::{global, whereabouts, PgHost};
use crate::pg::bindings;
use loosekv_engine::page::PageKind;
use loosekv_engine::types::Extent;
use pgrx::pg_sys;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, Release},
};

/// In place of where a checkpoint has to begin: one has passed.
const PASSED: u64 = u64::MAX;

/// To be written, and what a checkpoint notes of that.
const TO_WRITE: u32 = pg_sys::BM_DIRTY | pg_sys::BM_JUST_DIRTIED | pg_sys::BM_CHECKPOINT_NEEDED;

/// The stamp of a log page that is begun in this buffer, of which nothing was overwritten yet. It is locked exclusively.
pub(super) fn stamp(page: RawPage) -> RedoPoint {
    // SAFETY: it looks, under a spinlock.
    let redo = unsafe { bindings::GetRedoRecPtr() };
    let stamp = log_head::redo_point(redo);
    let is_stamped = page.kind() == PageKind::Log as u8 && log_page::redo_point(page) == stamp;
    if page.is_new() || page.lsn() <= redo || is_stamped {
        stamp
    } else {
        RedoPoint::default()
    }
}

impl PgHost {
    /// See [`loosekv_engine::host::Host::discard`].
    pub(super) fn leave_unwritten(&self, extents: &[Extent]) {
        // SAFETY: the relation is open; the function looks, under a spinlock.
        let (rnode, shared, redo) = unsafe {
            let rel = self.rel();
            ((*rel).rd_node, (*rel).rd_backend == pg_sys::InvalidBackendId, bindings::GetRedoRecPtr())
        };
        if !shared || !has_checkpoint_passed(redo) {
            return;
        }
        for page in extents.iter().flat_map(|extent| extent.start.0..extent.end().0) {
            let tag = pg_sys::BufferTag { rnode, forkNum: MAIN, blockNum: page };
            if let Some(buffer) = whereabouts::holder(&tag) {
                // SAFETY: the number of a buffer; nobody begins the page anew before the caller gives it away.
                unsafe { leave(buffer, &tag, redo) };
            }
        }
    }
}

/// Whether a checkpoint has begun and ended since this was first asked, by anybody since the server started.
fn has_checkpoint_passed(redo: pg_sys::XLogRecPtr) -> bool {
    let Some(global) = global::get() else { return false };
    let first = &global.counters.first_unwritten;
    match first.load(Relaxed) {
        PASSED => true,
        0 => {
            // SAFETY: it looks, under a spinlock.
            let _ = first.compare_exchange(0, unsafe { bindings::GetXLogInsertRecPtr() }, Relaxed, Relaxed);
            false
        }
        asked => {
            let passed = redo >= asked && redo_of_last_checkpoint() >= asked;
            if passed {
                first.store(PASSED, Relaxed);
            }
            passed
        }
    }
}

/// Where the last checkpoint began that has ended.
fn redo_of_last_checkpoint() -> pg_sys::XLogRecPtr {
    let (mut redo, mut timeline) = (0, 0);
    // SAFETY: a guarded call that looks into shared memory.
    unsafe { pg_sys::GetOldestRestartPoint(&mut redo, &mut timeline) };
    redo
}

/// Marks the buffer clean if it holds this page, and nobody is writing it.
///
/// # Safety
/// The buffer is a shared one. Nobody changes the page meanwhile.
unsafe fn leave(buffer: pg_sys::Buffer, tag: &pg_sys::BufferTag, redo: pg_sys::XLogRecPtr) {
    // SAFETY: while the header is locked the buffer goes on to hold this page, and nobody begins to write it.
    unsafe {
        let desc = &raw mut (*pg_sys::BufferDescriptors.add(buffer as usize - 1)).bufferdesc;
        let mut state = bindings::LockBufHdr(desc);
        let is_dirty = state & pg_sys::BM_VALID != 0 && state & pg_sys::BM_DIRTY != 0;
        let is_page = is_dirty && whereabouts::same(&(*desc).tag, tag);
        if is_page && state & pg_sys::BM_IO_IN_PROGRESS == 0 && redo_passes_by(RawPage::of(buffer), redo) {
            state &= !TO_WRITE;
        }
        // As the buffer manager does it.
        AtomicU32::from_ptr(&raw mut (*desc).state.value).store(state & !pg_sys::BM_LOCKED, Release);
    }
}

/// Whether redo from this point on would not miss what the page holds.
fn redo_passes_by(page: RawPage, redo: pg_sys::XLogRecPtr) -> bool {
    // A redo point that this process does not know of yet is behind all that it has logged.
    // SAFETY: this process's own.
    let is_known = page.lsn() <= unsafe { pg_sys::ProcLastRecPtr };
    let is_log = page.kind() == PageKind::Log as u8;
    is_log && is_known && (page.lsn() <= redo || log_page::redo_point(page) == log_head::redo_point(redo))
}
