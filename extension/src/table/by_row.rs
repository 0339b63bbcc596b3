//! Reading by row id: what a TID, a bitmap, a sample or an index entry points to.

use super::mvcc::{self, Sight, View};
use super::{tid, Open};
use crate::pg::ssi;
use loosekv_engine::error::Result;
use loosekv_engine::types::{RowBuf, RowId};
use pgrx::pg_sys;

/// Reads rows by id, with room for one row at a time.
#[derive(Default)]
pub struct ByRow {
    pub row: RowBuf,
    scratch: RowBuf,
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
        let sight = view.look_by_row(open, row, &mut self.row, &mut self.scratch)?;
        if view.is_mvcc() && sight != Sight::Gone {
            ssi::read_key(open.rel, &self.row.key, snapshot);
        }
        Ok(sight)
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
