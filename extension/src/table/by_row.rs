//! Reading by row id: what a TID, a bitmap, a sample or an index entry points to.

use super::mvcc::{self, Sight, View};
use super::{tid, Open};
use crate::pg::ssi;
use loosekv_engine::error::Result;
use loosekv_engine::tree::Placed;
use loosekv_engine::types::{RowBuf, RowId};
use pgrx::pg_sys;

/// Rows whose places are looked for at a time.
const LOCATED_TOGETHER: usize = 256;

/// Reads rows by id, with room for one row at a time.
#[derive(Default)]
pub struct ByRow {
    pub row: RowBuf,
    scratch: RowBuf,
    ahead: Ahead,
}

/// Rows that were read together, and are asked for in this order.
#[derive(Default)]
struct Ahead {
    rows: Vec<Placed>,
    read: Vec<RowBuf>,
    /// How they stand to the snapshot, as far as that was said.
    sights: Vec<Option<Sight>>,
    next: usize,
    /// The snapshot, and the command that it stood at.
    seen_by: Option<(pg_sys::Snapshot, pg_sys::CommandId)>,
}

impl Ahead {
    fn is_seen_by(&self, snapshot: pg_sys::Snapshot) -> bool {
        // SAFETY: who fetches has a valid snapshot.
        self.seen_by.is_some_and(|(of, command)| of == snapshot && unsafe { (*snapshot).curcid } == command)
    }

    /// The row and how it stands, if it was read and comes next; it is not read any more then.
    fn take(&mut self, row: RowId, out: &mut RowBuf) -> Option<Option<Sight>> {
        let at = self.next + self.rows.get(self.next..)?.iter().position(|read| read.row == row)?;
        let known = *self.sights.get(at)?;
        std::mem::swap(out, self.read.get_mut(at)?);
        self.next = at + 1;
        Some(known)
    }
}

impl ByRow {
    /// Reads the row version with this TID if `view` sees it; it is in `row` then.
    pub fn fetch(
        &mut self,
        open: &Open,
        view: &mut View,
        snapshot: pg_sys::Snapshot,
        tid: &pg_sys::ItemPointerData,
    ) -> Result<Sight> {
        let Some(row) = mvcc::row_id_of_tid(tid) else { return Ok(Sight::Gone) };
        if self.ahead.is_seen_by(snapshot) {
            match self.ahead.take(row, &mut self.row) {
                Some(Some(sight)) => return Ok(sight),
                Some(None) => return view.look_at(open, &self.row, &mut self.scratch),
                None => {}
            }
        }
        let sight = view.look_by_row(open, row, &mut self.row, &mut self.scratch)?;
        if view.is_mvcc() && sight != Sight::Gone && ssi::serializable() {
            ssi::read_key(open.rel, &self.row.key, snapshot);
            // Which key to mark is known only now; who wrote it meanwhile has not seen the mark.
            return view.look_at(open, &self.row, &mut self.scratch);
        }
        Ok(sight)
    }

    /// Reads rows that will be fetched next, in this order, if they may be. For [`View::may_look_ahead`]. How many were read.
    pub fn read_together(
        &mut self,
        open: &Open,
        view: &mut View,
        snapshot: pg_sys::Snapshot,
        rows: impl Iterator<Item = Placed>,
    ) -> Result<usize> {
        let Ahead { rows: ahead, read, sights, next, seen_by } = &mut self.ahead;
        // SAFETY: as for `is_seen_by`.
        *seen_by = Some((snapshot, unsafe { (*snapshot).curcid }));
        *next = 0;
        ahead.clear();
        ahead.extend(rows);
        read.resize_with(ahead.len().max(read.len()), RowBuf::default);
        sights.resize(ahead.len(), None);
        let done = view.look_by_rows(open, ahead, read, sights);
        ahead.truncate(*done.as_ref().unwrap_or(&0));
        done
    }

    /// Whether the next row to be fetched is this one, and was read ahead.
    pub fn is_ahead(&self, snapshot: pg_sys::Snapshot, tid: &pg_sys::ItemPointerData) -> bool {
        let next = self.ahead.rows.get(self.ahead.next);
        next.is_some_and(|next| tid::to_row(tid) == Some(next.row)) && self.ahead.is_seen_by(snapshot)
    }

    /// Forgets what was read and not fetched.
    pub fn forget_ahead(&mut self) {
        self.ahead.rows.clear();
        self.ahead.seen_by = None;
    }

    /// The same by row id, for those who go through many and have marked the table as read.
    pub fn fetch_row(&mut self, open: &Open, view: &mut View, row: RowId) -> Result<bool> {
        Ok(view.look_by_row(open, row, &mut self.row, &mut self.scratch)? == Sight::Seen)
    }
}

/// The row ids in a virtual block.
pub fn rows_of_block(open: &Open, block: u32) -> std::ops::Range<u64> {
    let first = u64::from(block) * tid::ROWS_PER_BLOCK;
    let end = (first + tid::ROWS_PER_BLOCK).min(open.tree.next_row_id().0);
    first.min(end)..end
}

/// How many virtual blocks the table has.
pub fn blocks(open: &Open) -> u32 {
    u32::try_from(open.tree.next_row_id().0.div_ceil(tid::ROWS_PER_BLOCK)).unwrap_or(u32::MAX - 1)
}

/// Those of these rows that there are, in the order of their places: each page is read, and unpacked, once for all of its rows.
pub fn by_place(open: &Open, rows: impl IntoIterator<Item = RowId>) -> Result<Vec<Placed>> {
    let (mut rows, mut some) = (rows.into_iter(), Vec::with_capacity(LOCATED_TOGETHER));
    let mut found = Vec::with_capacity(rows.size_hint().0);
    loop {
        let_others();
        some.clear();
        some.extend(rows.by_ref().take(LOCATED_TOGETHER));
        if some.is_empty() {
            break;
        }
        open.tree.locate_rows(&some, |row| found.push(row))?;
    }
    found.sort_unstable_by_key(|placed: &Placed| (placed.order(), placed.row));
    Ok(found)
}

/// Between two of many rows: others may want this to end, or VACUUM's settings that it pauses.
#[inline]
pub fn let_others() {
    // SAFETY: may wait, or raise an error, which unwinds.
    unsafe { pg_sys::vacuum_delay_point() }
}
