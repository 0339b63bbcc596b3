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
//! fail (the next page, the next extent) comes before it.

use crate::host::buffer::log_page::{self, LogHead};
use crate::host::buffer::RawPage;
use crate::host::critical::Critical;
use crate::host::latch::LwLatch;
use crate::host::pages::{zero_and_lock, Page, ReadBufferExtended, MAIN};
use crate::host::PgHost;
use crate::pg::{bindings, rmgr};
use loosekv_engine::error::{Error, Place, Result};
use loosekv_engine::manifest::{LogExtent, Manifest};
use loosekv_engine::page::{PageBuf, PageKind};
use loosekv_engine::row::record_len;
use loosekv_engine::types::{ExtentSeq, L0Id, LogAddr, PageNo, HOST_HEADER, PAGE_SIZE};
use loosekv_shm::RawLatch;
use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::atomic::Ordering::Relaxed;

/// Tails of a generation.
pub const TAILS: usize = 8;
/// A tail's first extent of a generation, and its largest: small tables stay small, busy ones flip seldom.
const FIRST_EXTENT: u32 = 8;
const LARGEST_EXTENT: u32 = 64;

/// Takes one record of a generation.
pub(super) type Show<'a> = &'a mut dyn FnMut(L0Id, LogAddr, &[u8]) -> Result<()>;

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
                log_page::init(page, &head);
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

    pub(super) fn log_record(&self, generation: L0Id, addr: LogAddr) -> Result<LogRow> {
        let (number, offset) = split(addr);
        let page = self.read(number)?;
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

    /// See [`loosekv_engine::host::Host::replay`]. Within a generation: tail by tail, each in its order of arrival. Asked
    /// again, the same host shows the same records, whatever a standby has received meanwhile.
    pub(super) fn replay_log(&self, manifest: &Manifest, show: Show<'_>) -> Result<()> {
        let mut extents: Vec<&LogExtent> =
            manifest.log_extents.iter().filter(|log| log.generation > manifest.flushed).collect();
        extents.sort_by_key(|log| (log.generation, log.tail, log.extent.seq));
        let length = self.file_pages();
        let mut ends = self.replayed.borrow_mut();
        let mut page = PageBuf::boxed();
        for log in extents {
            let known = ends.pages.get(&log.extent.seq.0).copied();
            let end = self.replay_extent(log, length, known, &mut page, show)?;
            ends.pages.insert(log.extent.seq.0, end);
        }
        Ok(())
    }

    /// Shows the records of an extent, no further than `known`; returns where they end.
    fn replay_extent(
        &self,
        log: &LogExtent,
        length: u32,
        known: Option<LogEnd>,
        page: &mut PageBuf,
        show: Show<'_>,
    ) -> Result<LogEnd> {
        let mut end = LogEnd { page: log.extent.start.0, used: 0 };
        let last = known.map_or(log.extent.end().0, |known| known.page + 1);
        for number in log.extent.start.0..last.min(length) {
            self.read_copy(PageNo(number), page)?;
            if !is_log_page(page, log) {
                break;
            }
            let mut used = page.used();
            if let Some(known) = known.filter(|known| known.page == number) {
                used = used.min(known.used);
            }
            walk(page, number, log_page::RECORDS..used, log.generation, show)?;
            end = LogEnd { page: number, used };
        }
        Ok(end)
    }

    /// Shows the records that have come since `reached`, which is moved on. Whoever asks keeps the old value until all that was
    /// shown is safe: a record may be shown twice.
    pub(super) fn follow_log(&self, log: &[LogExtent], reached: &mut Reached, show: Show<'_>) -> Result<()> {
        let mut extents: Vec<&LogExtent> = log.iter().collect();
        extents.sort_by_key(|log| (log.generation, log.tail, log.extent.seq));
        reached.retain(&extents);
        let (known, length) = (reached.seq, self.file_pages());
        let mut page = PageBuf::boxed();
        for log in extents {
            let from = match reached.end_of(log) {
                Some(end) => end,
                // Its tail has left it, or its generation is complete.
                None if log.extent.seq <= known => continue,
                None => LogEnd { page: log.extent.start.0, used: 0 },
            };
            let end = self.follow_extent(log, from, length, &mut page, show)?;
            reached.note(log, end);
        }
        Ok(())
    }

    fn follow_extent(
        &self,
        log: &LogExtent,
        mut end: LogEnd,
        length: u32,
        page: &mut PageBuf,
        show: Show<'_>,
    ) -> Result<LogEnd> {
        for number in end.page..log.extent.end().0.min(length) {
            self.read_copy(PageNo(number), page)?;
            if !is_log_page(page, log) {
                break;
            }
            let from = if number == end.page { end.used.max(log_page::RECORDS) } else { log_page::RECORDS };
            walk(page, number, from..page.used(), log.generation, show)?;
            end = LogEnd { page: number, used: page.used() };
        }
        Ok(end)
    }

    /// Whether nothing was appended since. On a standby, which appends nothing itself. An append that leaves a part in one extent
    /// and goes on in the next is complete when that next one has its part.
    pub(super) fn tails_end_at(&self, reached: &Reached) -> Result<bool> {
        for [mark, _] in reached.tails.iter().filter(|[mark, _]| mark.seq.0 != 0) {
            let ends = |page: u32| -> Result<usize> {
                if !self.reaches(page + 1) {
                    return Ok(0);
                }
                self.look(PageNo(page), |page| if page.is(PageKind::Log, mark.seq.0) { page.lower() } else { 0 })
            };
            if ends(mark.end.page)? != mark.end.used {
                return Ok(false);
            }
            if mark.end.page + 1 < mark.extent_end && ends(mark.end.page + 1)? != 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Where the records of an extent end: the last page that holds some, and the end of its contents (0: none holds any).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogEnd {
    page: u32,
    used: usize,
}

/// An extent of a tail, and where its records ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TailMark {
    seq: ExtentSeq,
    end: LogEnd,
    extent_end: u32,
}

/// How far a standby has followed a table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reached {
    pub meta_lsn: u64,
    /// The newest log extent seen.
    seq: ExtentSeq,
    /// The newest extent of each tail, and the one before: only those may still grow.
    tails: [[TailMark; 2]; TAILS],
}

impl Reached {
    /// What a replay has shown.
    pub fn of_replay(meta_lsn: u64, replayed: &Replayed, log: &[LogExtent]) -> Reached {
        let mut reached = Reached { meta_lsn, ..Reached::default() };
        let mut extents: Vec<&LogExtent> = log.iter().collect();
        extents.sort_by_key(|log| (log.generation, log.tail, log.extent.seq));
        for log in extents {
            if let Some(end) = replayed.pages.get(&log.extent.seq.0) {
                reached.note(log, *end);
            }
        }
        reached
    }

    fn end_of(&self, log: &LogExtent) -> Option<LogEnd> {
        let marks = self.tails.get(usize::from(log.tail))?;
        marks.iter().find(|mark| mark.seq == log.extent.seq).map(|mark| mark.end)
    }

    fn note(&mut self, log: &LogExtent, end: LogEnd) {
        self.seq = self.seq.max(log.extent.seq);
        let Some(marks) = self.tails.get_mut(usize::from(log.tail)) else { return };
        match marks.iter_mut().find(|mark| mark.seq == log.extent.seq) {
            Some(mark) => mark.end = end,
            None => *marks = [TailMark { seq: log.extent.seq, end, extent_end: log.extent.end().0 }, marks[0]],
        }
    }

    /// Forgets extents that are not among these: they may hold something else by now.
    fn retain(&mut self, log: &[&LogExtent]) {
        for marks in &mut self.tails {
            let open = |mark: &TailMark| log.iter().any(|log| log.extent.seq == mark.seq);
            let [newest, before] = *marks;
            *marks = match (open(&newest), open(&before)) {
                (true, true) => [newest, before],
                (true, false) => [newest, TailMark::default()],
                (false, true) => [before, TailMark::default()],
                (false, false) => [TailMark::default(); 2],
            };
        }
    }
}

/// What a replay has shown.
#[derive(Default)]
pub(super) struct Replayed {
    /// By sequence number of the extent.
    pages: BTreeMap<u64, LogEnd>,
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

/// Pages locked at once: half of what PostgreSQL allows a process.
const MAX_PARTS: usize = 100;

/// Pins the tail's page and locks it exclusively. To be called inside a guard.
///
/// # Safety
/// Raises ERROR by longjmp: the caller's frames own nothing, up to the guard.
unsafe fn lock_tail_page(rel: pg_sys::Relation, place: &TailPlace) -> pg_sys::Buffer {
    extern "C-unwind" {
        fn ReadRecentBuffer(
            node: pg_sys::RelFileNode,
            fork: pg_sys::ForkNumber::Type,
            block: pg_sys::BlockNumber,
            recent: pg_sys::Buffer,
        ) -> bool;
    }
    // SAFETY: the caller's word; the relation is open.
    unsafe {
        if place.used == 0 {
            return zero_and_lock(rel, place.page, std::ptr::null_mut());
        }
        let recent = place.recent;
        let buffer = if recent != 0 && ReadRecentBuffer((*rel).rd_node, MAIN, place.page, recent) {
            recent
        } else {
            let normal = pg_sys::ReadBufferMode::RBM_NORMAL;
            ReadBufferExtended(rel, MAIN, place.page, normal, std::ptr::null_mut())
        };
        bindings::LockBuffer(buffer, pg_sys::BUFFER_LOCK_EXCLUSIVE as i32);
        buffer
    }
}

fn is_log_page(page: &PageBuf, log: &LogExtent) -> bool {
    let head = page.0.get(HOST_HEADER..log_page::RECORDS).and_then(LogHead::decode);
    head == Some(LogHead { generation: log.generation, tail: log.tail, seq: log.extent.seq })
}

/// Shows the records of a part of a page.
fn walk(page: &PageBuf, number: u32, part: Range<usize>, generation: L0Id, show: Show<'_>) -> Result<()> {
    let mut at = part.start;
    while at < part.end {
        let record = page.0.get(at..part.end).and_then(|bytes| bytes.get(..record_len(bytes)?));
        let Some(record) = record else {
            return Err(Error::page(PageNo(number), at, "a log record is cut off"));
        };
        show(generation, addr(number, at), record)?;
        at += record.len();
    }
    Ok(())
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
