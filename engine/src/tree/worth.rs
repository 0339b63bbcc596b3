//! Whether the key index is worth its upkeep.
//!
//! Where a table has many times the keys that the index has room for, and rows are only inserted, each flush takes out what the flushes
//! before it have put in, a part of every leaf, and nobody finds anything there meanwhile: new keys are in no run. Then the index is *left
//! alone*: it is emptied, its memory is the memtables', and keys are looked for by the runs' filters. As soon as look-ups find rows again, by
//! those filters, it is worth something: one of them that reads a page for it costs as much as the upkeep of a dozen entries.

use crate::host::Host;
use crate::tree::shared::{Counters, Shared};
use crate::tree::version::SuperVersion;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// An index with less than such a part of the keys may be left alone ...
const LITTLE: u64 = 4;
/// ... when for so many rows written not one was found by a look-up ...
const ROWS_A_FIND: u64 = 8;
/// ... and so many rows, or look-ups that found one, tell something.
const TELLING: u64 = if cfg!(test) { 8 } else { 1024 };

/// What was counted when it was last looked at, and what came of it.
#[derive(Default)]
pub struct Worth {
    left_alone: AtomicBool,
    found: AtomicU64,
    written: AtomicU64,
}

impl Worth {
    /// Look-ups that found a row in a run, and rows written since.
    fn since(&self, counters: &Counters) -> (u64, u64) {
        let since = |now: u64, then: &AtomicU64| now.saturating_sub(then.load(Relaxed));
        (since(found(counters), &self.found), since(counters.rows_written.load(Relaxed), &self.written))
    }
}

/// A look into a run finds the row, mostly.
fn found(counters: &Counters) -> u64 {
    counters.runs_looked_into.load(Relaxed) + counters.left_unread.load(Relaxed)
}

impl<H: Host> Shared<H> {
    /// Whether the index stays empty for now.
    pub fn index_is_left_alone(&self) -> bool {
        if !self.worth.left_alone.load(Relaxed) {
            return false;
        }
        let (found, written) = self.worth.since(&self.counters);
        let useful = found >= TELLING && found >= written / ROWS_A_FIND;
        if useful {
            self.worth.left_alone.store(false, Relaxed);
        }
        !useful
    }

    /// The index has no room for what comes. Whether it is to be left alone from here on.
    pub(super) fn leaves_index_alone(&self, view: &SuperVersion) -> bool {
        let keys: u64 = view.runs.iter().map(|run| run.shape.keys).sum();
        let (found, written) = self.worth.since(&self.counters);
        let little = (self.index.len() as u64) < keys / LITTLE;
        let alone = little && written >= TELLING && found < written / ROWS_A_FIND;
        if alone {
            self.worth.left_alone.store(true, Relaxed);
        }
        alone
    }

    /// A memtable was flushed: what comes from here on tells whether the next one's keys are worth an entry.
    pub(super) fn judge_index_anew(&self) {
        self.worth.found.store(found(&self.counters), Relaxed);
        self.worth.written.store(self.counters.rows_written.load(Relaxed), Relaxed);
    }
}
