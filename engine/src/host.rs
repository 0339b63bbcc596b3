//! What the engine asks of whoever hosts it: pages, a row log, what became of a writer, latches, memory budgets.
//!
//! There are two hosts: [`crate::embedded`] (one file of pages, log segments, threads) and the PostgreSQL extension (the
//! buffer manager, WAL-logged log pages, processes). The engine never blocks in a host call while an epoch is pinned.

use crate::cpu::Near;
use crate::error::Result;
use crate::manifest::Manifest;
use crate::mutation::{on, Mutation::RunningTakenForEnded};
use crate::page::PageBuf;
use crate::row_cache::RowCache;
use crate::tree::{SuperVersion, Tree};
use crate::types::{Extent, Fate, Head, L0Id, LogAddr, PageNo, Writer};
use loosekv_shm::RawLatch;
use std::ops::Deref;

/// A file of one process, which is written in order and then read anywhere. It is gone when this is dropped.
pub trait SideFile {
    fn append(&mut self, bytes: &[u8]) -> Result<()>;
    /// Fills `into` with what stands there.
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<()>;
}

/// Reads rows of one generation from its log.
pub trait LogReader {
    type Row: Deref<Target = [u8]>;
    /// As [`Host::log_row`].
    fn row(&self, addr: LogAddr) -> Result<Self::Row>;
    /// The record at `addr` will be read soon. A hint, as [`Host::touch_page`].
    #[inline]
    fn touch(&self, _addr: LogAddr) {}
}

/// Reads them as anybody does, and does not know of hints.
pub struct RowByRow<'h, H> {
    pub host: &'h H,
    pub generation: L0Id,
}

impl<H: Host> LogReader for RowByRow<'_, H> {
    type Row = H::LogRow;
    fn row(&self, addr: LogAddr) -> Result<H::LogRow> {
        self.host.log_row(self.generation, addr)
    }
}

pub trait Host: Sized + 'static {
    /// A reader-writer latch that lives inside the shared structures.
    type Latch: RawLatch;
    /// A pinned page; dropping it releases the pin.
    type Page: Deref<Target = PageBuf>;
    /// A page that a scan keeps between its calls, for as long as it has the superversion pinned that names the page.
    type Held: Deref<Target = PageBuf>;
    /// A pinned log record; dropping it releases the pin.
    type LogRow: Deref<Target = [u8]>;
    /// The row log of one generation.
    type LogReader<'h>: LogReader<Row = Self::LogRow>;
    /// What the host keeps in shared memory for a table's row log (its tails).
    type LogState: Default + Send + Sync;
    type Horizon: Horizon;
    /// Extents under construction are named in the meta page before they are written to (hosts with standbys).
    const NAME_PENDING: bool;
    /// Merges ask for every page beforehand, instead of leaving that to the system after a while. (Of many runs at once that would read
    /// more ahead than a small machine has room for.)
    const MERGES_ASK: bool = false;
    /// While rows are being written, so many times as much garbage is put up with.
    const GARBAGE_WHILE_WRITING: u64 = 2;
    /// What is worth tidying while nobody writes, see [`crate::tree`]: a run that is at most so many times as large as those that are
    /// merged with it.
    const TIDY_RATIO: u64 = 4;
    /// So many bytes are merged in the time that it takes a scan to read from one run more, all of them in memory.
    const A_RUN_MORE: u64 = 4096;
    /// Bits of filter a key by which each of the first levels has more than the next, see [`crate::options::RunOptions::at_level`].
    const FILTER_STEP: u32 = 0;
    /// Longest record that the row log takes. The body of a row whose record would be longer goes to the value log first.
    const MAX_RECORD: usize = crate::run::MAX_ROW;

    // Pages.

    /// Reads a page; fails when its checksum is wrong or the page is past the end. The caller checks kind and extent.
    fn read_page(&self, page: PageNo) -> Result<Self::Page>;
    /// As [`Host::read_page`], for one of many pages that are read in their order: the system below may read ahead.
    fn read_page_in_order(&self, page: PageNo) -> Result<Self::Page> {
        self.read_page(page)
    }
    /// Makes a page one that may be kept; `spare` is one that is kept no longer. (Where pins must not outlive a call: a copy.)
    fn hold_page(&self, page: Self::Page, spare: Option<Self::Held>) -> Self::Held;
    /// Nobody looks at these pages of the log any more until they are written anew: what they hold need not come to the disk. A hint.
    fn discard(&self, _extents: &[Extent]) {}
    /// These pages, side by side, will be read soon. A hint.
    fn prefetch(&self, _first: PageNo, _pages: u32) {}
    /// These places of the page will be looked at: where it is in memory, and can be found there with a few instructions, the
    /// processor is to fetch them. A hint.
    #[inline]
    fn touch_page(&self, _page: PageNo, _places: impl Iterator<Item = usize>, _near: Near) {}
    /// Whether the page's bytes are whole, as far as the host can tell: a bad page is an error, and no more than that
    /// (for a check, which goes on).
    fn verify_page(&self, page: PageNo) -> Result<()> {
        self.read_page(page).map(|_| ())
    }
    /// How many pages this process has had to wait for so far, because they were not in the host's memory.
    fn pages_fetched(&self) -> u64 {
        0
    }
    /// Where rows are kept whose pages have to be fetched again and again, if anywhere.
    fn row_cache(&self) -> Option<&RowCache<Self::Latch>> {
        None
    }
    /// A table is loaded: the number of its first superversion. Where tables leave memory and are loaded again, none that it had before:
    /// somebody may still go by what he observed then.
    fn first_version(&self) -> u64 {
        1
    }
    /// Length of the page store, in pages.
    fn pages(&self) -> Result<u32>;
    /// Writes new pages of an extent, side by side from `start`. They are durable, at the latest, before the next flip is.
    fn write_pages(&self, start: PageNo, pages: &mut [PageBuf]) -> Result<()>;
    /// Makes the page store at least `pages` long. Fails, with nothing changed, when there is no room.
    fn extend(&self, pages: u32) -> Result<()>;
    /// By how many pages the store could grow, if that is known. Others may use them up at any time.
    fn room_to_grow(&self) -> Option<u64> {
        None
    }
    /// Pages that what a row log outside of the page store holds, or has room for, would fill.
    fn log_pages(&self) -> u32 {
        0
    }
    /// Gives back the pages from `pages` on, when nothing names them any more. May do nothing.
    fn shrink(&self, pages: u32) -> Result<()>;
    /// Replaces the meta page, atomically and durably: after a crash there is the old one or this one, and this one only
    /// if every page written before is there too.
    fn flip(&self, meta: &mut PageBuf, flip: &Flip) -> Result<()>;
    /// The current meta page, `None` for a store that has none yet.
    fn read_meta(&self) -> Result<Option<PageBuf>>;

    // The row log.

    /// The newest generation of which the row log has anything, if only a segment without rows: what is appended from now on is of a
    /// newer one. To be asked after [`Host::replay`].
    fn newest_log(&self) -> L0Id {
        L0Id(0)
    }

    /// Appends records to the log of `generation` and, once nothing can fail any more, calls `link` for each of them
    /// with its address. Append, logging and link are one unit: whoever finds the record after a crash finds it whole.
    /// The records are made by [`crate::row::encode_record`] and tell their own length.
    fn append(
        &self,
        tree: &Tree<'_, Self>,
        generation: L0Id,
        records: &[&[u8]],
        link: &mut dyn FnMut(usize, LogAddr),
    ) -> Result<()>;
    /// The record at `addr`, exactly as appended.
    fn log_row(&self, generation: L0Id, addr: LogAddr) -> Result<Self::LogRow>;
    /// As [`Host::log_row`], for many rows of a generation.
    fn log_reader(&self, generation: L0Id) -> Result<Self::LogReader<'_>>;
    /// A flush is about to read what these extents hold of the log, all of it, in the order of the keys: a host that would read a page
    /// of it for each row reads it now, page after page.
    fn fetch_log(&self, _extents: &[Extent]) -> Result<()> {
        Ok(())
    }
    /// Shows every whole record of the generations that `manifest` does not hold in a run, each generation in its order of arrival.
    #[allow(clippy::type_complexity)]
    fn replay(&self, manifest: &Manifest, show: &mut dyn FnMut(L0Id, LogAddr, &[u8]) -> Result<()>) -> Result<()>;
    /// The generations up to and including this one are in runs now; their log may go.
    fn forget_log(&self, upto: L0Id) -> Result<()>;

    // Writers.

    /// How things stand now, for one flush or one merge.
    fn horizon(&self) -> Self::Horizon;

    /// What those who replay the flips elsewhere have said about their readers; `None`: nobody has.
    fn lagging(&self) -> Option<Lagging> {
        None
    }

    // Memory.

    fn budgets(&self) -> &Budgets;
    /// How much memory of its own a process may take for what it keeps aside while it merges runs, in bytes ...
    fn aside_memory(&self) -> usize;
    /// ... and where the rest goes.
    fn side_file(&self) -> Result<Box<dyn SideFile>>;
    /// A superversion was pinned (or unpinned) by this process. A host whose processes may end without unwinding keeps
    /// the list, and unpins by force at exit ([`crate::tree::unpin_by_force`]).
    fn note_pin(_pinned: *const SuperVersion, _held: bool) {}

    // Pace.

    /// A memtable was frozen: wake whoever flushes. No latch is held.
    fn frozen(&self) {}
    /// Too many memtables are frozen: wait until one is flushed, or flush one. No latch is held.
    fn make_room(&self, tree: &Tree<'_, Self>) -> Result<()> {
        tree.flush_one().map(|_| ())
    }
    /// The disk is full: wait a little, if a merge is at work, which gives back pages. False: there is none. No latch is held.
    fn wait_for_merge(&self, _tree: &Tree<'_, Self>) -> Result<bool> {
        Ok(false)
    }
    /// Runs may have piled up: merge them, unless somebody is at work on the table. No latch is held.
    fn merge_piled_up(&self, _tree: &Tree<'_, Self>) -> Result<()> {
        Ok(())
    }
    /// A test may do other things in between, as another thread or process could.
    #[cfg(test)]
    fn paused(&self, _tree: &Tree<'_, Self>, _at: crate::mutation::Pause) {}
    /// A reader has looked at something: told beside the table's counters, for a host that counts for whoever reads.
    #[inline(always)]
    fn saw(&self, _what: Saw, _times: u64) {}
    /// Scans have begun in a good many runs more than they would have had to if there were but one: there may be something to tidy.
    fn scanned(&self) {}
    /// So much of a piece of long work is done: rows of a flush or merge, pages of a run that is being indexed.
    fn at_work(&self, _work: Work, _done: u64, _total: u64) {}
    /// A merge is at work and asks every few pages whether to go on. No latch is held.
    fn merging(&self, _tree: &Tree<'_, Self>) -> Result<()> {
        Ok(())
    }
}

/// What readers come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Saw {
    /// A key was looked up.
    Get,
    /// Its row was in the row cache.
    CachedRow,
    /// A run was looked into, or takes part in a merge of cursors.
    Run,
    FilterProbe,
    /// The filter did not rule the run out.
    FilterHit,
    /// A scan went on, or began, in this way.
    GuidedScan,
    MergedScan,
}

/// Long work, of which [`Host::at_work`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Flush,
    Merge,
    Index,
}

/// What became of writers, as seen from one moment.
pub trait Horizon {
    fn fate(&mut self, head: &Head) -> Fate;
    /// The same for a version in a settled run, of whose writer the host may keep no record any more: then `None`.
    fn known_fate(&mut self, head: &Head) -> Option<Fate> {
        Some(self.fate(head))
    }
    /// No snapshot, now or later, fails to see a committed writer below this one.
    fn oldest(&self) -> Writer;
    /// Which writers have ended, whoever sees them.
    fn ended(&self) -> Ended;

    fn standing(&self) -> Standing {
        Standing { oldest: self.oldest(), ended: self.ended() }
    }
}

/// How far writers have come.
#[derive(Debug)]
pub struct Standing {
    /// Committed writers below it are visible to all.
    pub oldest: Writer,
    /// A snapshot that is kept for long holds up what all see, not this.
    pub ended: Ended,
}

/// Which writers have ended, as of one moment.
#[derive(Debug, Default)]
pub struct Ended {
    /// Every one below it.
    pub below: Writer,
    /// Of those below this one, too, all but ...
    pub but: Writer,
    /// ... these; a writer, and whatever writes on his behalf.
    pub running: Vec<Writer>,
}

impl Ended {
    /// Every writer below this one, and nothing is known of others.
    pub fn below(below: Writer) -> Ended {
        Ended { below, ..Ended::default() }
    }

    /// Whether every writer from the first to the last has.
    pub fn all_of(&self, first: Writer, last: Writer) -> bool {
        let runs = |running: &Writer| (first..=last).contains(running) && !on(RunningTakenForEnded);
        last < self.below || last < self.but && !self.running.iter().any(runs)
    }
}

/// Readers elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lagging {
    /// Their oldest snapshot may not see this writer; it sees those below that have ended.
    pub oldest: Writer,
    /// A snapshot taken now does not see this writer.
    pub next: Writer,
}

/// What a flip tells those who replay it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flip {
    /// The newest writer that superseded a row version which this flip drops: snapshots that do not see it yet may miss
    /// a row after this flip.
    pub superseded: Option<Writer>,
    /// Extents are being used again that were freed at or before this version of the manifest.
    pub reused: Option<u64>,
}

/// Limits on memory, shared by all tables of a host. `used` counts what is taken now.
#[derive(Debug, Default)]
pub struct Budgets {
    pub memtables: Budget,
    pub key_index: Budget,
}

#[derive(Debug, Default)]
pub struct Budget {
    pub limit: std::sync::atomic::AtomicU64,
    pub used: std::sync::atomic::AtomicU64,
}

impl Budget {
    /// Nothing more may be taken.
    pub fn is_full(&self) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        self.used.load(Relaxed) >= self.limit.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_have_ended_that_do_not_run() {
        let ended = Ended { below: Writer(10), but: Writer(20), running: vec![Writer(10), Writer(15)] };
        let all_of = |first, last| ended.all_of(Writer(first), Writer(last));
        assert!(all_of(1, 9) && all_of(11, 14) && all_of(16, 19));
        assert!(!all_of(9, 10) && !all_of(10, 11) && !all_of(11, 15) && !all_of(12, 17), "one of them runs");
        assert!(!all_of(16, 20) && !all_of(21, 22), "these began later");
        assert!(
            Ended::below(Writer(10)).all_of(Writer(1), Writer(9))
                && !Ended::below(Writer(10)).all_of(Writer(9), Writer(10))
        );
    }
}
