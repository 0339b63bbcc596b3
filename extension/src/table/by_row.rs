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

/// Those of these rows that there are, in the order of their places: each page is read, and unpacked, once for all of its rows.
pub fn by_place(open: &Open, rows: impl Iterator<Item = u64>) -> Result<Vec<RowId>> {
    let mut places = Vec::new();
    for row in rows.map(RowId) {
        let_others();
        if let Some(place) = open.tree.place_of_row(row)? {
            places.push((place, row));
        }
    }
    places.sort_unstable();
    Ok(places.into_iter().map(|(_, row)| row).collect())
}

/// Between two of many rows: others may want this to end, or VACUUM's settings that it pauses.
#[inline]
pub fn let_others() {
    // SAFETY: may wait, or raise an error, which unwinds.
    unsafe { pg_sys::vacuum_delay_point() }
}
