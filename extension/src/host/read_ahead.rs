//! Reading ahead: the kernel is asked for pages that a scan will come to, several with one request.
//!
//! PostgreSQL's own hint (`PrefetchBuffer`) is for a single page, and as many calls cost as much as the reads that they are to save. So
//! this asks by the file that PostgreSQL has open for the table (`md.c`): it goes when PostgreSQL closes it. Nothing depends on
//! whether the kernel heeds it; pages in the buffers are not asked for. `effective_io_concurrency = 0` turns it off, as it does
//! for PostgreSQL's scans.
//!
//! A merge asks for all that it will read, so what the kernel would read ahead by itself for each of its runs would only be in the way: where
//! memory is short, and the device's read-ahead large, it goes again before anybody comes to it. So the kernel is told to leave that
//! alone, until pages are read in their order without having been asked for.

use super::pages::MAIN;
use super::process_local::{later, Later, WithBorrow};
use super::{seen, whereabouts, PgHost};
use crate::pg::bindings;
use loosekv_engine::types::{PageNo, PAGE_SIZE};
use pgrx::pg_sys;

/// Files of which the kernel reads what it is asked for, and no more.
static BY_REQUEST: Later<Vec<pg_sys::File>> = later();

/// An open file of a relation, as `md.c` in PostgreSQL 15 has it.
#[repr(C)]
struct OpenSegment {
    file: pg_sys::File,
    number: pg_sys::BlockNumber,
}

impl PgHost {
    /// Asks for `pages` pages from `first` on, but for those at either end that are in the buffers.
    pub(super) fn ask_for(&self, first: PageNo, pages: u32) {
        if !self.is_shared() {
            return;
        }
        let (mut from, mut until) = (first.0, first.0.saturating_add(pages));
        while from < until && self.is_in_buffers(from) {
            from += 1;
        }
        while from < until && self.is_in_buffers(until - 1) {
            until -= 1;
        }
        // SAFETY: a setting of this process.
        if from == until || unsafe { pg_sys::effective_io_concurrency } == 0 {
            return;
        }
        seen::asked(until - from);
        while from < until {
            let end = until.min((from / pg_sys::RELSEG_SIZE + 1) * pg_sys::RELSEG_SIZE);
            self.ask_of_segment(from, end - from);
            from = end;
        }
    }

    /// The same of pages that are all in one file of the relation.
    fn ask_of_segment(&self, first: u32, pages: u32) {
        let (number, within) = (first / pg_sys::RELSEG_SIZE, first % pg_sys::RELSEG_SIZE);
        let (offset, bytes) = (i64::from(within) * PAGE_SIZE as i64, pages as usize * PAGE_SIZE);
        if let (Some(file), Ok(bytes)) = (self.segment(number), i32::try_from(bytes)) {
            let event = pg_sys::WaitEventIO::WAIT_EVENT_DATA_FILE_PREFETCH;
            // SAFETY: guarded; the file is open.
            unsafe { pg_sys::FilePrefetch(file, offset, bytes, event) };
            if self.sweep.is_some() && !BY_REQUEST.with_borrow(|files| files.contains(&file)) {
                BY_REQUEST.with_borrow_mut(|files| files.push(file));
                advise(file, libc::POSIX_FADV_RANDOM);
            }
        }
    }

    /// Pages will be read in their order, and not be asked for: the kernel may read ahead.
    pub(super) fn leave_to_kernel(&self) {
        if self.sweep.is_some() {
            leave_all_to_kernel();
        }
    }

    /// The file of the relation with this number, if it is open: the first read of a page in it opens it.
    fn segment(&self, number: u32) -> Option<pg_sys::File> {
        let main = MAIN as usize;
        // SAFETY: the relation is open, so its files are as `md.c` says; they are not closed before anything is called.
        unsafe {
            let smgr = self.smgr();
            let open = u32::try_from(*(*smgr).md_num_open_segs.get(main)?).ok()?;
            if (*smgr).smgr_which != 0 || number >= open {
                return None;
            }
            let segment = (*(*smgr).md_seg_fds.get(main)?).cast::<OpenSegment>().add(number as usize);
            debug_assert!((*segment).number == number);
            Some((*segment).file)
        }
    }

    /// Whether the page is in the shared buffers, at this moment.
    fn is_in_buffers(&self, page: u32) -> bool {
        // SAFETY: the relation is open.
        let rnode = unsafe { (*self.rel()).rd_node };
        let mut tag = pg_sys::BufferTag { rnode, forkNum: MAIN, blockNum: page };
        if whereabouts::knows(&tag) {
            return true;
        }
        // SAFETY: as the buffer manager does it; the lock is one of its partitions'.
        unsafe {
            let hash = bindings::BufTableHashCode(&mut tag);
            let partition = pg_sys::BUFFER_MAPPING_LWLOCK_OFFSET + hash % pg_sys::NUM_BUFFER_PARTITIONS;
            let lock = &raw mut (*pg_sys::MainLWLockArray.add(partition as usize)).lock;
            bindings::LWLockAcquire(lock, pg_sys::LWLockMode::LW_SHARED);
            let buffer = bindings::BufTableLookup(&mut tag, hash);
            bindings::LWLockRelease(lock);
            buffer >= 0
        }
    }
}

fn advise(file: pg_sys::File, advice: i32) {
    // SAFETY: a number of PostgreSQL's; should it have closed that file the system refuses the advice.
    unsafe { libc::posix_fadvise(bindings::FileGetRawDesc(file), 0, 0, advice) };
}

/// A sweep is over, or reads otherwise from here on.
pub(super) fn leave_all_to_kernel() {
    if !BY_REQUEST.with_borrow(Vec::is_empty) {
        let files = BY_REQUEST.with_borrow_mut(std::mem::take);
        files.into_iter().for_each(|file| advise(file, libc::POSIX_FADV_NORMAL));
    }
}
