//! Reading by row id: what a TID, an index entry, a sample names.
//!
//! ```text
//!   memtables -> row directory of the run that has the id -> data page -> the row version
//!                                                                |
//!                                   alone?  first of its key in the run, in no memtable,
//!                                           and the key index names this run
//! ```
//!
//! Most versions are the newest of their keys. For these [`Tree::look_at_row`] spares the look-up by key that says so; the
//! index is asked after the memtables, as in every look-up (I7), and not at all where no key is in two runs (`apart.rs`).

use crate::error::Result;
use crate::host::{Host, Saw};
use crate::mutation::{on, Mutation::RowTakenForAlone, Pause};
use crate::run::{Run, Scratch};
use crate::tree::read::{Pages, SCRATCH};
use crate::tree::version::SuperVersion;
use crate::tree::{Hint, Tree};
use crate::types::{Head, RowBuf, RowId};

/// What became of a row version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Looked {
    /// There is none with this id (any more).
    Gone,
    /// There was no newer version of its key.
    Alone,
    /// There may be newer versions of its key.
    Found,
}

impl<H: Host> Tree<'_, H> {
    /// The row version with this row id will be looked at: asks for its data page, if it has one. A hint.
    pub fn ask_for_row(&self, row: RowId) -> Result<()> {
        let view = self.pin();
        if view.memtables().all(|generation| generation.table.by_row(row).is_none()) {
            let ask = |run: &Run<'_>, pages: &Pages<'_, H>, scratch: &mut Scratch| {
                let page = run.page_left_of_row(pages, row, scratch)?;
                Ok(page.map(|page| run.prefetch(pages, page..page.saturating_add(1))))
            };
            SCRATCH.with_borrow_mut(|scratch| self.in_runs(&view, row, scratch, ask))?;
        }
        Ok(())
    }

    /// The row version with this row id, visible or not. False: there is none (any more).
    pub fn find_row(&self, row: RowId, out: &mut RowBuf) -> Result<bool> {
        let view = self.pin();
        let found = self.find_row_in(&view, row, out)?;
        if found {
            self.resolve(out)?;
        }
        Ok(found)
    }

    pub(super) fn find_row_in(&self, view: &SuperVersion, row: RowId, out: &mut RowBuf) -> Result<bool> {
        if self.logged_row(view, row, out)? {
            return Ok(true);
        }
        let found = SCRATCH.with_borrow_mut(|scratch| self.row_in_runs(view, row, scratch, out))?;
        Ok(found.is_some())
    }

    /// As [`Tree::find_row`]; a version that is the newest of its key is shown to `see`, so that no look-up by key is needed.
    pub fn look_at_row(&self, row: RowId, out: &mut RowBuf, see: impl FnOnce(&Head, &Hint<'_>)) -> Result<Looked> {
        let view = self.pin();
        let alone = if self.logged_row(&view, row, out)? {
            None
        } else {
            let found = SCRATCH.with_borrow_mut(|scratch| self.row_in_runs(&view, row, scratch, out))?;
            let Some((at, newest)) = found else { return Ok(Looked::Gone) };
            (newest && self.is_newest_in(&view, at, &out.key, &mut None)).then(|| view.runs.get(at)).flatten()
        };
        if let Some(run) = alone {
            see(&out.head, &Hint::of_run(run));
        }
        self.resolve(out)?;
        Ok(if alone.is_some() { Looked::Alone } else { Looked::Found })
    }

    pub(super) fn logged_row(&self, view: &SuperVersion, row: RowId, out: &mut RowBuf) -> Result<bool> {
        for generation in view.memtables() {
            if let Some(node) = generation.table.by_row(row) {
                return self.copy_logged(generation, &node, out).map(|()| true);
            }
        }
        Ok(false)
    }

    /// Place of the run that has it, and whether it is the newest of its key there.
    pub(super) fn row_in_runs(
        &self,
        view: &SuperVersion,
        row: RowId,
        scratch: &mut Scratch,
        out: &mut RowBuf,
    ) -> Result<Option<(usize, bool)>> {
        self.in_runs(view, row, scratch, |run, pages, scratch| run.by_row(pages, row, scratch, out))
    }

    /// What `look` finds in a run that may have the row id, and the run's place.
    fn in_runs<R>(
        &self,
        view: &SuperVersion,
        row: RowId,
        scratch: &mut Scratch,
        mut look: impl FnMut(&Run<'_>, &Pages<'_, H>, &mut Scratch) -> Result<Option<R>>,
    ) -> Result<Option<(usize, R)>> {
        let pages = Pages(&self.host);
        for (at, desc) in view.runs.iter().enumerate() {
            if row < desc.shape.min_row || row > desc.shape.max_row {
                continue;
            }
            self.host.saw(Saw::Run, 1);
            if let Some(found) = look(&desc.run(), &pages, scratch)? {
                return Ok(Some((at, found)));
            }
        }
        Ok(None)
    }

    /// Whether no memtable and no newer run has a version of the key, which the run at this place has. `once`: what is known of whether
    /// the superversion's runs have each key once.
    pub(super) fn is_newest_in(&self, view: &SuperVersion, at: usize, key: &[u8], once: &mut Option<bool>) -> bool {
        if view.memtables().any(|generation| generation.table.newest(key).is_some()) {
            return false;
        }
        self.pause(Pause::MemtablesRead);
        if at == 0 || on(RowTakenForAlone) || *once.get_or_insert_with(|| self.has_each_key_once(view)) {
            return true;
        }
        let Some(entry) = self.shared.index.get(key) else { return false };
        let uncovered = view.runs.get(self.shared.first_unindexed(view));
        uncovered.is_none_or(|newest| entry.l0 > newest.last_l0)
            && entry.l0 <= view.flushed
            && view.run_with(entry.l0, key) == Some(at)
    }

    /// Row versions that are held, tombstones apart: at least as many as there are rows.
    pub fn rows_held(&self) -> u64 {
        let view = self.pin();
        let logged: u64 = view.memtables().map(|generation| generation.table.rows()).sum();
        view.runs.iter().fold(logged, |rows, run| rows + run.shape.rows.saturating_sub(run.shape.tombstones))
    }
}
