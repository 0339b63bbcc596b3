//! Reading the row log from its pages, while others may be writing them: when a table is opened, and to follow a standby.
//!
//! ```text
//!  a tail:   extent of generation 7 | extent of generation 7 | extent of generation 8 | named, not begun
//!              page page page ...       page page ..^
//!              complete                             mark: read up to here
//! ```
//!
//! The pages of a tail form one chain, which is filled from its begin to its end: a page is complete when a later one has been
//! begun. So a reader asks first how far the chain has been begun, and reads after that: whatever he goes past is complete.
//! (Asked the other way round, a page may be read, then get its last records, and the next one be begun before it is looked
//! at: those records would never be read.) An extent may have been named without being begun, even for good.

use crate::host::buffer::log_page;
use crate::host::log::{addr, TAILS};
use crate::host::log_head::LogHead;
use crate::host::PgHost;
use loosekv_engine::error::{Error, Result};
use loosekv_engine::manifest::{LogExtent, Manifest};
use loosekv_engine::page::{PageBuf, PageKind};
use loosekv_engine::row::record_len;
use loosekv_engine::types::{ExtentSeq, L0Id, LogAddr, PageNo, HOST_HEADER};
use std::collections::BTreeMap;
use std::ops::Range;

/// Takes one record of a generation.
pub(super) type Show<'a> = &'a mut dyn FnMut(L0Id, LogAddr, &[u8]) -> Result<()>;

/// The pages that a log is read from.
trait LogPages {
    fn file_pages(&self) -> u32;
    fn copy_page(&self, page: u32, copy: &mut PageBuf) -> Result<()>;
    /// End of the contents of a page of this extent; 0: it is none.
    fn end_of_page(&self, page: u32, seq: ExtentSeq) -> Result<usize>;
}

impl LogPages for PgHost {
    fn file_pages(&self) -> u32 {
        PgHost::file_pages(self)
    }

    fn copy_page(&self, page: u32, copy: &mut PageBuf) -> Result<()> {
        self.read_copy(PageNo(page), copy)
    }

    fn end_of_page(&self, page: u32, seq: ExtentSeq) -> Result<usize> {
        if !self.reaches(page + 1) {
            return Ok(0);
        }
        self.look(PageNo(page), |page| if page.is(PageKind::Log, seq.0) { page.lower() } else { 0 })
    }
}

/// Where the records of an extent end: the last page that holds some, and the end of its contents (0: none holds any).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogEnd {
    page: u32,
    used: usize,
}

impl LogEnd {
    fn start_of(log: &LogExtent) -> LogEnd {
        LogEnd { page: log.extent.start.0, used: 0 }
    }
}

/// Where an extent stands in the chain of its tail.
fn position(log: &LogExtent) -> (L0Id, ExtentSeq) {
    (log.generation, log.extent.seq)
}

/// How far a tail has been followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TailMark {
    /// The last extent that was begun (sequence number 0: none was), where its records ended, and where it ends itself.
    generation: L0Id,
    seq: ExtentSeq,
    end: LogEnd,
    extent_end: u32,
    /// Extents after it were named.
    more_named: bool,
}

/// How far a standby has followed a table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reached {
    pub meta_lsn: u64,
    tails: [TailMark; TAILS],
}

impl Reached {
    /// What a replay has shown.
    pub fn of_replay(meta_lsn: u64, replayed: &Replayed, log: &[LogExtent]) -> Reached {
        let mut reached = Reached { meta_lsn, ..Reached::default() };
        for log in in_order(log.iter()) {
            let end = replayed.ends.get(&log.extent.seq.0).copied();
            reached.note(log, end.unwrap_or_else(|| LogEnd::start_of(log)));
        }
        reached
    }

    /// Where to go on in an extent; `None`: all of it is known.
    fn end_of(&self, log: &LogExtent) -> Option<LogEnd> {
        let mark = self.tails.get(usize::from(log.tail)).copied().unwrap_or_default();
        match position(log).cmp(&(mark.generation, mark.seq)) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => Some(mark.end),
            std::cmp::Ordering::Greater => Some(LogEnd::start_of(log)),
        }
    }

    /// The records of an extent, the next in its chain, end here.
    fn note(&mut self, log: &LogExtent, end: LogEnd) {
        let Some(mark) = self.tails.get_mut(usize::from(log.tail)) else { return };
        if end.used == 0 {
            mark.more_named = true;
        } else {
            let (generation, seq) = position(log);
            *mark = TailMark { generation, seq, end, extent_end: log.extent.end().0, more_named: false };
        }
    }

    /// Forgets marks in extents that are not among these: they may hold something else by now.
    fn retain(&mut self, log: &[LogExtent]) {
        for mark in &mut self.tails {
            mark.more_named = false;
            if !log.iter().any(|log| log.extent.seq == mark.seq) {
                *mark = TailMark::default();
            }
        }
    }
}

/// What a replay has shown.
#[derive(Default)]
pub(super) struct Replayed {
    /// By sequence number of the extent.
    ends: BTreeMap<u64, LogEnd>,
}

impl PgHost {
    /// See [`loosekv_engine::host::Host::replay`]. Within a generation: tail by tail, each in its order of arrival. Asked
    /// again, the same host shows the same records, whatever a standby has received meanwhile.
    pub(super) fn replay_log(&self, manifest: &Manifest, show: Show<'_>) -> Result<()> {
        replay(self, manifest, &mut self.replayed.borrow_mut(), show)
    }

    /// Shows the records that have come since `reached`, which is moved on. Whoever asks keeps the old value until all that was
    /// shown is safe: a record may be shown twice.
    pub(super) fn follow_log(&self, log: &[LogExtent], reached: &mut Reached, show: Show<'_>) -> Result<()> {
        follow(self, log, reached, show)
    }

    /// Whether nothing was appended since. On a standby, which appends nothing itself.
    pub(super) fn tails_end_at(&self, reached: &Reached) -> Result<bool> {
        for mark in &reached.tails {
            if mark.more_named {
                return Ok(false);
            }
            if mark.seq.0 == 0 {
                continue;
            }
            let next = mark.end.page + 1;
            if self.end_of_page(mark.end.page, mark.seq)? != mark.end.used
                || (next < mark.extent_end && self.end_of_page(next, mark.seq)? != 0)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn replay(pages: &impl LogPages, manifest: &Manifest, replayed: &mut Replayed, show: Show<'_>) -> Result<()> {
    let open = in_order(manifest.log_extents.iter().filter(|log| log.generation > manifest.flushed));
    let length = pages.file_pages();
    let begun = begun(pages, &open, length)?;
    let mut page = PageBuf::boxed();
    for log in open {
        if let Some(end) = replayed.ends.get(&log.extent.seq.0) {
            read_again(pages, log, *end, &mut page, show)?;
        } else {
            let mut end = LogEnd::start_of(log);
            if begun.reach(log) {
                end = read_on(pages, log, end, length, &mut page, show)?;
            }
            replayed.ends.insert(log.extent.seq.0, end);
        }
    }
    Ok(())
}

fn follow(pages: &impl LogPages, log: &[LogExtent], reached: &mut Reached, show: Show<'_>) -> Result<()> {
    reached.retain(log);
    let known = *reached;
    let unknown: Vec<&LogExtent> = in_order(log.iter()).into_iter().filter(|log| known.end_of(log).is_some()).collect();
    let length = pages.file_pages();
    let begun = begun(pages, &unknown, length)?;
    let mut page = PageBuf::boxed();
    for log in unknown {
        let mut end = known.end_of(log).unwrap_or_else(|| LogEnd::start_of(log));
        if begun.reach(log) {
            end = read_on(pages, log, end, length, &mut page, show)?;
        }
        reached.note(log, end);
    }
    Ok(())
}

fn in_order<'a>(log: impl Iterator<Item = &'a LogExtent>) -> Vec<&'a LogExtent> {
    let mut log: Vec<_> = log.collect();
    log.sort_by_key(|log| (log.generation, log.tail, log.extent.seq));
    log
}

/// The last extent of each tail that had been begun at some moment.
struct Begun([Option<(L0Id, ExtentSeq)>; TAILS]);

impl Begun {
    /// Whether the log of the extent's tail came as far as to it, at that moment.
    fn reach(&self, log: &LogExtent) -> bool {
        self.0.get(usize::from(log.tail)).copied().flatten().is_some_and(|last| position(log) <= last)
    }
}

fn begun(pages: &impl LogPages, log: &[&LogExtent], length: u32) -> Result<Begun> {
    let mut begun = Begun([None; TAILS]);
    for log in log {
        let Some(last) = begun.0.get_mut(usize::from(log.tail)) else {
            return Err(Error::structure(format!("log tail {}", log.tail)));
        };
        if log.extent.start.0 < length && pages.end_of_page(log.extent.start.0, log.extent.seq)? != 0 {
            *last = (*last).max(Some(position(log)));
        }
    }
    Ok(begun)
}

/// Shows the records of an extent from `end` on; returns where they end now.
fn read_on(
    pages: &impl LogPages,
    log: &LogExtent,
    mut end: LogEnd,
    length: u32,
    page: &mut PageBuf,
    show: Show<'_>,
) -> Result<LogEnd> {
    let limit = log.extent.end().0.min(length);
    while end.page < limit {
        let next = end.page + 1;
        let goes_on = next < limit && pages.end_of_page(next, log.extent.seq)? != 0;
        pages.copy_page(end.page, page)?;
        if !is_log_page(page, log) {
            break;
        }
        walk(page, end.page, end.used.max(log_page::RECORDS)..page.used(), log.generation, show)?;
        end.used = page.used();
        if !goes_on {
            break;
        }
        end = LogEnd { page: next, used: 0 };
    }
    Ok(end)
}

/// Shows the records of an extent that were there when it was found to end at `end`.
fn read_again(pages: &impl LogPages, log: &LogExtent, end: LogEnd, page: &mut PageBuf, show: Show<'_>) -> Result<()> {
    if end.used == 0 {
        return Ok(());
    }
    for number in log.extent.start.0..=end.page {
        pages.copy_page(number, page)?;
        if !is_log_page(page, log) {
            break;
        }
        let used = if number == end.page { end.used.min(page.used()) } else { page.used() };
        walk(page, number, log_page::RECORDS..used, log.generation, show)?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use loosekv_engine::row::{decode_record, encode_record};
    use loosekv_engine::types::{Extent, Flags, Head, RowId, RowRef, Writer, PAGE_SIZE};
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;

    /// A tail of the log, and who writes it whenever somebody looks at it.
    struct Busy {
        pages: RefCell<Vec<PageBuf>>,
        log: RefCell<Vec<LogExtent>>,
        /// The extent being filled, and the page.
        at: Cell<(usize, u32)>,
        next_row: Cell<u64>,
        state: Cell<u64>,
        /// How likely something is written at a look, of 100.
        restless: Cell<u64>,
    }

    impl Busy {
        fn new(seed: u64) -> Busy {
            let busy = Busy {
                pages: RefCell::default(),
                log: RefCell::default(),
                at: Cell::new((0, 0)),
                next_row: Cell::new(1),
                state: Cell::new(seed),
                restless: Cell::new(0),
            };
            busy.name(7);
            busy
        }

        fn below(&self, bound: u64) -> u64 {
            self.state
                .set(self.state.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
            (self.state.get() >> 33) % bound
        }

        /// Names an extent of a few pages.
        fn name(&self, generation: u64) {
            let mut log = self.log.borrow_mut();
            let (start, seq) = (1 + self.pages.borrow().len() as u32, 1 + log.len() as u64);
            let pages = 1 + self.below(3) as u32;
            let extent = Extent { start: PageNo(start), pages, seq: ExtentSeq(seq) };
            self.pages.borrow_mut().resize((start + pages - 1) as usize, PageBuf::ZERO);
            log.push(LogExtent { generation: L0Id(generation), tail: 3, extent });
        }

        fn write(&self) {
            let row = self.next_row.replace(self.next_row.get() + 1);
            let body = vec![1; 500 + self.below(3000) as usize];
            let head =
                Head { row_id: RowId(row), writer: Writer(9), command: 0, flags: Flags::default(), incarnation: 0 };
            let mut record = Vec::new();
            encode_record(&RowRef { key: b"k", body: &body, head }, &mut record);
            loop {
                let (extent, page) = self.at.get();
                let log = self.log.borrow()[extent];
                if page < log.extent.pages {
                    let pages = &mut self.pages.borrow_mut();
                    let bytes = &mut pages[(log.extent.start.0 + page) as usize - 1];
                    if !is_log_page(bytes, &log) {
                        let head = LogHead { generation: log.generation, tail: log.tail, seq: log.extent.seq };
                        bytes.0[HOST_HEADER..log_page::RECORDS].copy_from_slice(&head.encode(Default::default()));
                        bytes.set_used(log_page::RECORDS);
                    }
                    let used = bytes.used();
                    if used + record.len() <= PAGE_SIZE {
                        bytes.0[used..used + record.len()].copy_from_slice(&record);
                        bytes.set_used(used + record.len());
                        return;
                    }
                    self.at.set((extent, page + 1));
                    continue;
                }
                // Sometimes an extent is named in vain, and sometimes the generation changes.
                for _ in 0..=u64::from(self.below(4) == 0) {
                    self.name(log.generation.0 + u64::from(self.below(3) == 0));
                }
                self.at.set((self.log.borrow().len() - 1, 0));
            }
        }

        fn let_write(&self) {
            while self.below(100) < self.restless.get() {
                self.write();
            }
        }
    }

    impl LogPages for Busy {
        fn file_pages(&self) -> u32 {
            self.let_write();
            1 + self.pages.borrow().len() as u32
        }

        fn copy_page(&self, page: u32, copy: &mut PageBuf) -> Result<()> {
            self.let_write();
            copy.0.copy_from_slice(&self.pages.borrow()[page as usize - 1].0);
            Ok(())
        }

        fn end_of_page(&self, page: u32, seq: ExtentSeq) -> Result<usize> {
            self.let_write();
            let pages = self.pages.borrow();
            let page = &pages[page as usize - 1];
            Ok(if page.kind() == Some(PageKind::Log) && page.seq() == seq { page.used() } else { 0 })
        }
    }

    fn note(rows: &mut BTreeSet<u64>) -> impl FnMut(L0Id, LogAddr, &[u8]) -> Result<()> + '_ {
        |_, _, record| {
            rows.insert(decode_record(record)?.0.head.row_id.0);
            Ok(())
        }
    }

    #[test]
    fn a_follower_misses_no_record_of_a_tail_that_is_being_filled() {
        for seed in 0..300 {
            let busy = Busy::new(seed);
            let (mut reached, mut rows) = (Reached::default(), BTreeSet::new());
            for _ in 0..40 {
                busy.restless.set(busy.below(80));
                let there = busy.next_row.get();
                let log = busy.log.borrow().clone();
                follow(&busy, &log, &mut reached, &mut note(&mut rows)).unwrap();
                assert!((1..there).all(|row| rows.contains(&row)), "seed {seed}: {there} rows, but not {rows:?}");
            }
        }
    }

    #[test]
    fn a_replay_shows_all_that_was_there_and_the_same_again_and_following_goes_on_from_it() {
        for seed in 0..300 {
            let busy = Busy::new(seed);
            (0..busy.below(60)).for_each(|_| busy.write());
            busy.restless.set(busy.below(80));
            let there = busy.next_row.get();
            let manifest = Manifest { log_extents: busy.log.borrow().clone(), ..Manifest::new(1) };
            let (mut replayed, mut rows, mut again) = (Replayed::default(), BTreeSet::new(), BTreeSet::new());
            replay(&busy, &manifest, &mut replayed, &mut note(&mut rows)).unwrap();
            replay(&busy, &manifest, &mut replayed, &mut note(&mut again)).unwrap();
            assert_eq!(rows, again, "seed {seed}");
            assert!((1..there).all(|row| rows.contains(&row)), "seed {seed}: {there} rows, but not {rows:?}");
            let mut reached = Reached::of_replay(0, &replayed, &manifest.log_extents);
            busy.restless.set(0);
            let log = busy.log.borrow().clone();
            follow(&busy, &log, &mut reached, &mut note(&mut rows)).unwrap();
            assert!((1..busy.next_row.get()).all(|row| rows.contains(&row)), "seed {seed}: going on");
        }
    }
}
