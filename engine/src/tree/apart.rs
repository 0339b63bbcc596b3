//! Scans of all keys in no order: run after run instead of a merge, where no key is in two runs.
//!
//! ```text
//! memtables + newest run -> memtables + next run, but only what comes from the run -> ...
//! ```
//!
//! A complete index has one entry for each key that is in a run. So when there are as many row versions in the runs as entries in
//! the index, no key is in two of them, nor twice in one. (While entries are being removed there are fewer of them, which
//! rules it out; while some are being added a memtable is frozen, and then nothing is concluded.)
//!
//! Keeps I15: the same answer as one scan, in another order.

use crate::error::Result;
use crate::host::Host;
use crate::mutation::{on, Mutation::I15RunsTakenForApart};
use crate::tree::scan::Cursor;
use crate::tree::version::SuperVersion;
use crate::tree::{Direction, Tree};
use std::ops::Bound;
use std::rc::Rc;

/// The memtables are read once for each run: they may have one row for so many in the runs.
const ROWS_A_MEMTABLE_ROW: u64 = if cfg!(test) { 1 } else { 4 };

impl<H: Host> Tree<'_, H> {
    /// Scans of all keys, each in order, that one after the other give each key once. Their reader has to see of every writer
    /// what he saw when they were made.
    pub fn scan_apart(&self, direction: Direction) -> Result<Vec<Cursor<H>>> {
        let begun = self.shared.barren.now();
        let view = self.pin();
        if view.runs.is_empty() || !self.are_apart(&view) {
            return Ok(vec![self.scan(Bound::Unbounded, Bound::Unbounded, direction)?]);
        }
        let view = Rc::new(view);
        Ok((0..view.runs.len()).map(|run| Cursor::of_run(&view, run, direction, begun)).collect())
    }

    fn are_apart(&self, view: &SuperVersion) -> bool {
        let rows: u64 = view.runs.iter().map(|run| run.shape.rows).sum();
        let logged = view.active().table.rows().saturating_mul(view.runs.len() as u64);
        logged.saturating_mul(ROWS_A_MEMTABLE_ROW) <= rows && self.has_each_key_once(view)
    }

    /// Whether no key is in two runs of the superversion, which was pinned just now, nor twice in one.
    pub(super) fn has_each_key_once(&self, view: &SuperVersion) -> bool {
        let keys = self.shared.index.len() as u64;
        // How many rows a run has that was cut is not known.
        if view.runs.iter().any(|run| run.cut.is_some()) {
            return false;
        }
        // No flush was adding keys meanwhile.
        if !view.frozen.is_empty() || self.pin().number != view.number {
            return false;
        }
        let rows: u64 = view.runs.iter().map(|run| run.shape.rows).sum();
        let complete = self.shared.first_unindexed(view) == view.runs.len() && self.shared.is_exact(view);
        complete && (rows == keys || on(I15RunsTakenForApart))
    }
}
