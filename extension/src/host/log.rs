//! The row log: log pages in the table's main fork, logged by this extension's own WAL records.
//!
//! Each generation is written through several *tails*, chosen by backend, so that writers do not all queue for one page.
//! A tail fills the pages of its extents one after the other; extents are named in the manifest before they are used.
//!
//! ```text
//!  LogAddr: | 16 bits 0 | page: 32 bits | offset in the page: 16 bits |
//! ```
//!
//! Appending is one critical section: copy into the page, WAL record, link into memory (rule 1 of the pages). All that may
//! fail (the next page, the next extent) comes before it. How the log is read: [`super::log_reader`].

use crate::host::buffer::log_page;
use crate::host::buffer::RawPage;
use crate::host::critical::Critical;
use crate::host::latch::LwLatch;
use crate::host::log_head::LogHead;
use crate::host::pages::{zero_and_lock, Page, ReadBufferExtended, MAIN};
use crate::host::{unwritten, whereabouts, PgHost};
use crate::pg::{bindings, rmgr};
use loosekv_engine::cpu::{Near, LINE};
use loosekv_engine::error::{Error, Place, Result};
use loosekv_engine::host::LogReader;
use loosekv_engine::manifest::LogExtent;
use loosekv_engine::page::PageKind;
use loosekv_engine::row::record_len;
use loosekv_engine::types::{Extent, ExtentSeq, L0Id, LogAddr, PageNo, HOST_HEADER, PAGE_SIZE};
use loosekv_shm::RawLatch;
use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use std::cell::UnsafeCell;
use std::ops::{Deref, Range};
use std::sync::atomic::Ordering::Relaxed;

/// Tails of a generation.
pub const TAILS: usize = 8;
/// A tail's first extent of a generation, and its largest: small tables stay small, busy ones flip seldom.
const FIRST_EXTENT: u32 = 8;
const LARGEST_EXTENT: u32 = 64;

/// What all processes know of a table's tails.
#[derive(Default)]
pub struct LogState {
    tails: [Tail; TAILS],
}

#[repr(align(128))]
struct Tail {
    latch: LwLatch,
    /// Only touched with the latch held.
    place: UnsafeCell<TailPlace>,
}

// SAFETY: `place` is guarded by `latch`.
unsafe impl Sync for Tail {}
// SAFETY: plain values and a latch.
unsafe impl Send for Tail {}

impl Default for Tail {
    fn default() -> Tail {
        Tail { latch: LwLatch::new(), place: UnsafeCell::new(TailPlace::default()) }
    }
}

/// Where the next record goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TailPlace {
    generation: L0Id,
    seq: ExtentSeq,
    /// The page being filled, and the end of its contents (0: the page is not begun).
    page: u32,
    used: usize,
    /// First page after the extent; `page == end`: a new extent is needed.
    end: u32,
    extents: u32,
    /// The buffer that held `page` last time: a pin without a search.
    recent: pg_sys::Buffer,
}

impl TailPlace {
    fn fresh(generation: L0Id) -> TailPlace {
        TailPlace { generation, ..TailPlace::default() }
    }

    /// Size of the extent to ask for next.
    fn extent_pages(&self) -> u32 {
        FIRST_EXTENT.checked_shl(self.extents).unwrap_or(LARGEST_EXTENT).min(LARGEST_EXTENT)
    }

    fn room(&self) -> usize {
        if self.page == self.end {
            return 0;
        }
        PAGE_SIZE - self.used.max(log_page::RECORDS)
    }

    fn next_page(&mut self) {
        debug_assert!(self.page < self.end);
        self.page += 1;
        self.used = 0;
        self.recent = 0;
    }

    fn enter(&mut self, extent: &LogExtent) {
        debug_assert_eq!(extent.generation, self.generation);
        *self = TailPlace {
            generation: self.generation,
            seq: extent.extent.seq,
            page: extent.extent.start.0,
            end: extent.extent.end().0,
            used: 0,
            extents: self.extents + 1,
            recent: 0,
        };
    }
}

pub fn addr(page: u32, offset: usize) -> LogAddr {
    debug_assert!(offset < PAGE_SIZE);
    LogAddr(u64::from(page) << 16 | offset as u64)
}

pub fn split(addr: LogAddr) -> (PageNo, usize) {
    (PageNo((addr.0 >> 16) as u32), (addr.0 & 0xffff) as usize)
}

/// The records of one call that go to one page: one WAL record.
struct Part {
    place: TailPlace,
    records: Range<usize>,
    buffer: pg_sys::Buffer,
}

/// This process's tail.
fn my_tail() -> usize {
    // SAFETY: MyProc is set before anything can be written.
    unsafe { (*pg_sys::MyProc).pgprocno as usize % TAILS }
}

impl PgHost {
    /// See [`loosekv_engine::host::Host::append`]; `more` names a fresh extent in the manifest.
    pub(super) fn append_records(
        &self,
        state: &LogState,
        more: &mut dyn FnMut(L0Id, u16, u32) -> Result<LogExtent>,
        generation: L0Id,
        records: &[&[u8]],
        link: &mut dyn FnMut(usize, LogAddr),
    ) -> Result<()> {
        let number = my_tail();
        let Some(tail) = state.tails.get(number) else { return Err(Error::structure("tail number")) };
        let _latch = tail.latch.write();
        // SAFETY: the latch is held for as long as the reference lives.
        let place = unsafe { &mut *tail.place.get() };
        if place.generation != generation {
            debug_assert!(place.generation < generation, "appenders hold the rotation latch");
            *place = TailPlace::fresh(generation);
        }
        let bytes: usize = records.iter().map(|record| record.len()).sum();
        if bytes <= place.room() {
            let mut part = [Part { place: *place, records: 0..records.len(), buffer: 0 }];
            return self.append_parts(number, place, &mut part, records, link);
        }
        let mut parts = plan(place, number, more, records)?;
        self.append_parts(number, place, &mut parts, records, link)
    }

    /// Pins and locks the pages, then writes and logs them, links, and moves the tail on.
    fn append_parts(
        &self,
        tail: usize,
        place: &mut TailPlace,
        parts: &mut [Part],
        records: &[&[u8]],
        link: &mut dyn FnMut(usize, LogAddr),
    ) -> Result<()> {
        if let Some(last) = parts.last() {
            if !self.reaches(last.place.page + 1) {
                self.grow(last.place.end)?;
            }
        }
        self.lock_parts(parts)?;
        let mut logged = 0;
        let critical = Critical::enter();
        for part in parts.iter_mut() {
            logged += self.append_part(tail, part, records, link);
        }
        drop(critical);
        for part in parts.iter() {
            // SAFETY: pinned and locked by `lock_parts`.
            unsafe { bindings::UnlockReleaseBuffer(part.buffer) };
            *place = part.place;
        }
        if let Some(slot) = self.slot {
            slot.counters.log_bytes.fetch_add(logged as u64, Relaxed);
        }
        Ok(())
    }

    /// On failure the transaction's abort unlocks and unpins what was locked; the pages are unchanged.
    fn lock_parts(&self, parts: &mut [Part]) -> Result<()> {
        let rel = self.rel();
        // SAFETY: the closure owns nothing that an ERROR would skip.
        unsafe {
            pg_guard_ffi_boundary(|| {
                for part in parts.iter_mut() {
                    part.buffer = lock_tail_page(rel, &part.place);
                }
            });
        }
        for part in parts.iter() {
            // SAFETY: pinned and locked above.
            let page = unsafe { RawPage::of(part.buffer) };
            let place = &part.place;
            if place.used != 0 && !(page.is(PageKind::Log, place.seq.0) && page.lower() == place.used) {
                let found =
                    format!("expected a log page ending at {}, found one ending at {}", place.used, page.lower());
                let error = Error::page(PageNo(place.page), 12, found);
                for part in parts.iter() {
                    // SAFETY: as above.
                    unsafe { bindings::UnlockReleaseBuffer(part.buffer) };
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// One page: copy, log, link. In a critical section. Returns the bytes written.
    fn append_part(
        &self,
        tail: usize,
        part: &mut Part,
        records: &[&[u8]],
        link: &mut dyn FnMut(usize, LogAddr),
    ) -> usize {
        let (buffer, place) = (part.buffer, &mut part.place);
        let begun = place.used != 0;
        // SAFETY: the buffer is pinned and locked exclusively; the records fit, as planned; no call returns by longjmp.
        unsafe {
            let page = RawPage::of(buffer);
            let mut at = place.used;
            if !begun {
                let head = LogHead { generation: place.generation, tail: tail as u16, seq: place.seq };
                let stamp = if self.wal { unwritten::stamp(page) } else { Default::default() };
                log_page::init(page, &head, stamp);
                at = log_page::RECORDS;
            }
            let first = at;
            for record in records.iter().take(part.records.end).skip(part.records.start) {
                page.write(at, record);
                at += record.len();
            }
            page.set_used(at);
            bindings::MarkBufferDirty(buffer);
            if self.wal {
                // One piece of the page itself, so that the record needs no list of pieces.
                let (from, flags, info) = if begun {
                    (first, pg_sys::REGBUF_STANDARD, rmgr::APPEND)
                } else {
                    (HOST_HEADER, pg_sys::REGBUF_STANDARD | pg_sys::REGBUF_WILL_INIT, rmgr::APPEND_INIT)
                };
                bindings::XLogBeginInsert();
                bindings::XLogRegisterBuffer(0, buffer, flags as u8);
                bindings::XLogRegisterBufData(0, page.as_ptr().add(from).cast(), (at - from) as u32);
                page.set_lsn(bindings::XLogInsert(rmgr::ID, info));
            }
            let mut offset = first;
            for i in part.records.clone() {
                link(i, addr(place.page, offset));
                offset += records.get(i).map_or(0, |record| record.len());
            }
            place.used = at;
            place.recent = buffer;
            at - first
        }
    }

    /// Reads what there is of a log into the buffers, page after page. Whoever works in the background reads through a small ring of
    /// buffers otherwise; the rows of a page, wanted in the order of their keys, would each need a read of the disk.
    pub(super) fn read_log(&self, extents: &[Extent]) -> Result<()> {
        let length = self.file_pages();
        self.leave_to_kernel();
        for extent in extents {
            for no in extent.start.0..extent.end().0.min(length) {
                let page = self.read_to_stay(PageNo(no))?;
                // An extent need not have been begun, nor be full.
                if page.kind() != Some(PageKind::Log) || page.seq() != extent.seq {
                    break;
                }
            }
        }
        Ok(())
    }

    pub(super) fn log_record(&self, generation: L0Id, addr: LogAddr) -> Result<LogRow> {
        let (number, offset) = split(addr);
        let page = self.read_to_stay(number)?;
        let corrupt = |what: &str| Error::Corrupt {
            place: Place::Log { generation: generation.0, offset: addr.0 },
            what: format!("page {number}: {what}"),
        };
        if page.kind() != Some(PageKind::Log) {
            return Err(corrupt("this is no log page"));
        }
        let bytes = page.0.get(offset..page.used()).filter(|_| offset >= log_page::RECORDS);
        let whole = |bytes: &[u8]| record_len(bytes).filter(|len| *len <= bytes.len());
        match bytes.and_then(whole) {
            Some(len) => Ok(LogRow { page, range: offset..offset + len }),
            None => Err(corrupt("there is no record")),
        }
    }
}

/// Divides the records among pages, asking for extents as needed. `place` follows as far as an extent was entered, so that
/// none is lost if something fails later.
fn plan(
    place: &mut TailPlace,
    tail: usize,
    more: &mut dyn FnMut(L0Id, u16, u32) -> Result<LogExtent>,
    records: &[&[u8]],
) -> Result<Vec<Part>> {
    if let Some(large) = records.iter().find(|record| record.len() > log_page::CAPACITY) {
        return Err(Error::Invalid(format!("a row version of {} bytes does not fit a log page", large.len())));
    }
    let mut parts: Vec<Part> = Vec::new();
    let mut at = *place;
    let mut first = 0;
    while first < records.len() {
        let mut room = at.room();
        let mut end = first;
        while let Some(left) = records.get(end).and_then(|record| room.checked_sub(record.len())) {
            room = left;
            end += 1;
        }
        if end > first {
            if parts.len() == MAX_PARTS {
                return Err(Error::Invalid(format!("more than {MAX_PARTS} log pages in one call")));
            }
            parts.push(Part { place: at, records: first..end, buffer: 0 });
            first = end;
        }
        if first < records.len() {
            if at.page != at.end {
                at.next_page();
            }
            if at.page == at.end {
                at.enter(&more(at.generation, tail as u16, at.extent_pages())?);
                if parts.is_empty() {
                    *place = at;
                }
            }
        }
    }
    Ok(parts)
}

/// So many lines of cache of a record are fetched beforehand; the processor fetches what follows as it sees it read in order.
const LINES_TOUCHED: usize = 3;

/// Pages locked at once: half of what PostgreSQL allows a process.
const MAX_PARTS: usize = 100;

/// Pins the tail's page and locks it exclusively. To be called inside a guard.
///
/// # Safety
/// Raises ERROR by longjmp: the caller's frames own nothing, up to the guard.
unsafe fn lock_tail_page(rel: pg_sys::Relation, place: &TailPlace) -> pg_sys::Buffer {
    // SAFETY: the caller's word; the relation is open.
    unsafe {
        if place.used == 0 {
            return zero_and_lock(rel, place.page, std::ptr::null_mut());
        }
        let recent = place.recent;
        let buffer = if recent != 0 && bindings::ReadRecentBuffer((*rel).rd_node, MAIN, place.page, recent) {
            recent
        } else {
            let normal = pg_sys::ReadBufferMode::RBM_NORMAL;
            ReadBufferExtended(rel, MAIN, place.page, normal, std::ptr::null_mut())
        };
        bindings::LockBuffer(buffer, pg_sys::BUFFER_LOCK_EXCLUSIVE as i32);
        buffer
    }
}

/// The log of a generation.
pub struct LogPages<'h> {
    pub(super) host: &'h PgHost,
    pub(super) generation: L0Id,
}

impl LogReader for LogPages<'_> {
    type Row = LogRow;

    fn row(&self, addr: LogAddr) -> Result<LogRow> {
        self.host.log_record(self.generation, addr)
    }

    #[inline]
    fn touch(&self, addr: LogAddr) {
        let (page, offset) = split(addr);
        let lines = (offset..).step_by(LINE).take(LINES_TOUCHED);
        whereabouts::touch(self.host.rel, page.0, lines, Near::First);
    }
}

/// A record in its page, pinned until dropped.
pub struct LogRow {
    page: Page,
    range: Range<usize>,
}

impl Deref for LogRow {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // In range since `log_record`; an empty slice would be reported as a corrupt record.
        self.page.0.get(self.range.clone()).unwrap_or(&[])
    }
}
