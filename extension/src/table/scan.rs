//! A scan of a table: whole (alone or with parallel workers), by range of TIDs, by bitmap, by sample, for ANALYZE.

use super::bitmap::BitmapRows;
use super::by_row::{self, ByRow};
use super::key_scan::KeyScan;
use super::mvcc::{self, View};
use super::sample::Sample;
use super::{recent, splits, tid, write, Open};
use loosekv_engine::error::Result;
use loosekv_engine::run::Spot;
use loosekv_engine::tree::Direction;
use loosekv_engine::types::{Flags, RowBuf, RowId, RowRef};
use pgrx::pg_sys;

/// What the workers of a parallel scan share.
pub trait Pieces {
    /// Claims the next piece that nobody has.
    fn claim(&self) -> usize;
    /// The borders, as [`splits::encode`] wrote them.
    fn borders(&self) -> &[u8];
}

pub struct TableScan {
    pub open: Open,
    snapshot: pg_sys::Snapshot,
    in_order: KeyScan,
    /// A piece of a parallel scan is being read.
    in_piece: bool,
    view: View,
    by_row: ByRow,
    /// Row ids of a range of TIDs, or those still to be read of a virtual block.
    rows: std::ops::Range<u64>,
    /// Of a range of TIDs: one more than the row id that was read last.
    at: Option<u64>,
    bitmap: Option<BitmapRows>,
    /// Of a sample: the virtual block.
    pub block: Option<u32>,
    /// What ANALYZE looks at, once it has begun.
    sample: Option<Sample>,
}

impl TableScan {
    /// # Safety
    /// `open.rel` stays open, and `snapshot` valid, while the scan is used.
    pub unsafe fn new(open: Open, snapshot: pg_sys::Snapshot) -> TableScan {
        // SAFETY: by the contract.
        let (in_order, view) =
            unsafe { (KeyScan::new(&open, snapshot, KeyScan::everything()), View::new(open.rel, snapshot)) };
        // Who wants the same order each time (pg_dump) says so.
        // SAFETY: a setting of this process.
        let in_order = if unsafe { pg_sys::synchronize_seqscans } { in_order.in_any_order() } else { in_order };
        TableScan {
            open,
            snapshot,
            in_order,
            in_piece: false,
            view,
            by_row: ByRow::default(),
            rows: 0..0,
            at: None,
            bitmap: None,
            block: None,
            sample: None,
        }
    }

    pub fn rescan(&mut self) {
        match std::mem::take(&mut self.in_piece) {
            true => self.in_order.restart(KeyScan::everything()),
            false => self.in_order.rewind(),
        }
        self.rows = 0..0;
        self.at = None;
        self.block = None;
        self.by_row.forget_ahead();
        if let Some(bitmap) = &mut self.bitmap {
            bitmap.rewind();
        }
    }

    /// On to the next row, if it was found ahead.
    #[inline]
    pub fn step(&mut self, direction: Direction) -> bool {
        self.in_order.step(direction)
    }

    /// Where the row stands that was found last, if it was found ahead.
    #[inline]
    pub fn spot(&self) -> Option<Spot<'_>> {
        self.in_order.spot()
    }

    /// The next row in key order.
    pub fn next(&mut self, direction: Direction) -> Result<bool> {
        self.in_order.next(&self.open, direction)
    }

    /// The row found last, in key order.
    pub fn row(&self) -> RowRef<'_> {
        self.in_order.row()
    }

    /// The next row of the pieces that this worker claims.
    pub fn next_shared(&mut self, pieces: &dyn Pieces) -> Result<bool> {
        loop {
            if self.in_piece && self.in_order.next(&self.open, Direction::Forward)? {
                return Ok(true);
            }
            let Some(range) = splits::piece(pieces.borders(), pieces.claim()) else {
                self.in_piece = false;
                return Ok(false);
            };
            self.in_order.restart(vec![range]);
            self.in_piece = true;
        }
    }

    /// The rows from one TID to another, both included.
    pub fn set_tid_range(&mut self, from: &pg_sys::ItemPointerData, to: &pg_sys::ItemPointerData) {
        let first = u64::from(tid::block_of(from)) * tid::ROWS_PER_BLOCK
            + u64::from(from.ip_posid.saturating_sub(1)).min(tid::ROWS_PER_BLOCK);
        let end = u64::from(tid::block_of(to)) * tid::ROWS_PER_BLOCK + u64::from(to.ip_posid).min(tid::ROWS_PER_BLOCK);
        let end = end.min(self.open.tree.next_row_id().0);
        (self.rows, self.at) = (first.min(end)..end, None);
    }

    /// The next row of the range, in either direction: beyond its ends there is a place to come back from.
    pub fn next_in_tid_range(&mut self, direction: Direction) -> Result<Option<RowRef<'_>>> {
        let (first, end) = (self.rows.start, self.rows.end);
        let forward = direction == Direction::Forward;
        let mut at = self.at.unwrap_or(if forward { first } else { end + 1 });
        loop {
            let row = if forward { Some(at) } else { at.checked_sub(2) }.filter(|row| self.rows.contains(row));
            at = row.map_or(if forward { end + 1 } else { first }, |row| row + 1);
            self.at = Some(at);
            let Some(row) = row else { return Ok(None) };
            pgrx::check_for_interrupts!();
            if self.by_row.fetch_row(&self.open, &mut self.view, RowId(row))? {
                recent::note_scanned(&self.open, self.by_row.row.as_ref());
                return Ok(Some(self.by_row.row.as_ref()));
            }
        }
    }

    /// The scan goes through this node's bitmap, if it has not begun with it.
    ///
    /// # Safety
    /// The node outlives the scan.
    pub unsafe fn set_bitmap(&mut self, node: *mut pg_sys::BitmapHeapScanState) {
        // SAFETY: by the contract.
        self.bitmap.get_or_insert_with(|| unsafe { BitmapRows::of(node) });
    }

    /// It is known through whose bitmap the scan goes.
    pub fn has_bitmap(&self) -> bool {
        self.bitmap.is_some()
    }

    /// Comes to a page of a bitmap: `offsets` is `None` when all of its rows may match. Whether what it gives then is to be checked again.
    pub fn begin_bitmap_page(&mut self, block: u32, offsets: Option<&[u16]>, recheck: bool) -> Result<bool> {
        self.bitmap.get_or_insert_with(BitmapRows::of_pages).enter(&self.open, block, offsets, recheck)
    }

    /// The next visible row of the bitmap's page. (A row of a page that comes later may come with those of an earlier one.)
    pub fn next_in_bitmap_page(&mut self) -> Result<Option<RowRef<'_>>> {
        let Some(bitmap) = &mut self.bitmap else { return Ok(None) };
        while let Some((row, together)) = bitmap.next(&self.open, self.view.may_look_ahead())? {
            if !together.is_empty() {
                let together = together.iter().copied();
                let read = self.by_row.read_together(&self.open, &mut self.view, self.snapshot, together)?;
                bitmap.were_read(read);
            }
            let tid = tid::from_row(row);
            if self.by_row.fetch(&self.open, &mut self.view, self.snapshot, &tid)? == mvcc::Sight::Seen {
                recent::note_scanned(&self.open, self.by_row.row.as_ref());
                return Ok(Some(self.by_row.row.as_ref()));
            }
        }
        Ok(None)
    }

    /// How many virtual blocks there are to sample from.
    pub fn blocks(&self) -> u32 {
        by_row::blocks(&self.open)
    }

    /// The row with this offset in the block being sampled, if it is visible.
    pub fn sampled(&mut self, offset: u16) -> Result<Option<RowRef<'_>>> {
        let Some(block) = self.block else { return Ok(None) };
        let row = RowId(u64::from(block) * tid::ROWS_PER_BLOCK + u64::from(offset.saturating_sub(1)));
        let found = self.by_row.fetch_row(&self.open, &mut self.view, row)?;
        Ok(found.then(|| self.by_row.row.as_ref()))
    }

    /// Begins with a virtual block for ANALYZE.
    pub fn begin_analyze_block(&mut self, block: u32) {
        self.rows = by_row::rows_of_block(&self.open, block);
        if self.sample.is_none() {
            // SAFETY: the scan keeps the relation open.
            self.sample = Some(unsafe { Sample::of(&self.open) });
        }
    }

    /// The next live row of the block that is looked at; counts what it passes, each for those that are not looked at, too.
    pub fn next_to_analyze(&mut self, live: &mut f64, dead: &mut f64) -> Result<Option<RowRef<'_>>> {
        let Some(sample) = &mut self.sample else { return Ok(None) };
        let found = sample.next_of_block(&self.open, self.rows.clone(), dead, &mut self.by_row.row)?;
        if found {
            *live += sample.weight();
        }
        Ok(found.then(|| self.by_row.row.as_ref()))
    }

    /// The TID of the newest version, as this snapshot sees it, of the row that `tid` names, which a change of its key does
    /// not end. Another row that has its key by now is not it.
    pub fn latest(&mut self, tid: &pg_sys::ItemPointerData) -> Result<pg_sys::ItemPointerData> {
        let (mut row, mut other) = (RowBuf::default(), RowBuf::default());
        let mut found = mvcc::row_of_tid(&self.open, tid, &mut row)?;
        while found {
            let seen = self.view.find(&self.open, &row.key, &mut other)?;
            if seen && write::same_life(&other.head, &row.head) {
                return Ok(tid::from_row(other.head.row_id));
            }
            let last = mvcc::newest_of_life(&self.open, &row, &mut other)?;
            let moved = last.filter(|last| last.head.flags.has(Flags::MOVED)).and_then(|_| mvcc::moved_to(&other));
            let Some(moved) = moved else { break };
            found = recent::find_row(&self.open, moved, &mut row)?;
        }
        Ok(*tid)
    }
}
