//! The rows that a bitmap names, in an order in which it costs least to read them.
//!
//! PostgreSQL gives a bitmap page by page: a virtual block of row ids, and which of them. Rows whose ids are near each other lie far from
//! each other in the runs, mostly. So rows of many pages are taken together, a batch, and come in the order of their places, with the
//! first page of the batch. Each page of the table is read once for all that the batch has of it, and is asked for before the scan
//! comes to it, once the scan has had to wait for pages.
//!
//! ```text
//!   bitmap   | page 3 | page 4 | page 7 | page 9 | page 11 | ...
//!   scan       3 4 7    none     none     9 11 ...
//! ```
//!
//! The first batches are small, and the first one is as the bitmap has it, for the scan may not want all rows. So are all of a statement that
//! locks rows: those who lock some of the same do so in the same order. Where the rows of one page are to be checked again, those of
//! its batch are. Parallel workers claim pages of the bitmap that they share, each for its batches.

use super::{by_row, tid, Open};
use crate::host::pins;
use loosekv_engine::error::Result;
use loosekv_engine::host::Host;
use loosekv_engine::tree::{Asking, Placed};
use loosekv_engine::types::RowId;
use pgrx::pg_sys;

/// How many rows are read together, at most: first one, then ever more.
const MOST: usize = 32;

/// Rows from which on the first batch takes no more pages, and how many times as many it is of each next one.
const FIRST_BATCH: usize = 32;
const GROWTH: usize = 4;
/// The largest that a parallel worker claims, and of the rows that it is expected to read so many parts at least: the others have to wait for
/// who has claimed the last ones.
const LARGEST_CLAIM: usize = 1 << 14;
const CLAIMS_A_WORKER: f64 = 4.0;
/// The largest of which the rows come as the bitmap has them: they are only asked for ahead.
const LARGEST_UNORDERED: usize = 512;
/// What is known of a row while a batch is put in order: its id, in memory that has doubled, and where it is.
const BYTES_A_ROW: usize = 2 * size_of::<RowId>() + size_of::<Placed>();
/// Of a batch whose places have changed one part in so many has to have been read before it is put in order again.
const READ_PART: usize = 4;

/// Rows whose pages are asked for ahead.
const ASKED: usize = 256;

/// The rows that one page of a bitmap names, a virtual block: those at the offsets, or (`None`) any in it. An offset that no row can have
/// names none.
fn rows_of_page(block: u32, offsets: Option<&[u16]>) -> impl Iterator<Item = RowId> + '_ {
    let all = match offsets {
        Some(_) => 1..1,
        None => 1..tid::ROWS_PER_BLOCK + 1,
    };
    let offsets = offsets.unwrap_or_default().iter().map(|offset| u64::from(*offset)).chain(all);
    let first = u64::from(block) * tid::ROWS_PER_BLOCK;
    offsets.filter(|offset| (1..=tid::ROWS_PER_BLOCK).contains(offset)).map(move |offset| RowId(first + offset - 1))
}

/// The offsets in a page of a bitmap; `None`: any.
///
/// # Safety
/// `page` is a bitmap iterator's result, and stays so while the offsets are used.
pub unsafe fn offsets_of<'a>(page: *mut pg_sys::TBMIterateResult) -> Option<&'a [u16]> {
    // SAFETY: the page has as many offsets as it says.
    unsafe { usize::try_from((*page).ntuples).ok().map(|count| (*page).offsets.as_slice(count)) }
}

/// What pages of a bitmap are had from.
enum Pages {
    /// It is gone through a second time.
    Own(*mut pg_sys::TBMIterator),
    /// They are claimed from those that nobody has.
    Shared(*mut pg_sys::TBMSharedIterator),
}

/// The rows that a scan's bitmap names.
pub struct BitmapRows {
    /// Null: nothing is known but the pages that the scan comes to.
    node: *mut pg_sys::BitmapHeapScanState,
    /// `None` until more than the scan's own page was wanted.
    pages: Option<Pages>,
    /// The batch, how many rows of it the scan has come to, and how many it had when it was put in order.
    rows: Vec<Placed>,
    at: usize,
    ordered: usize,
    /// The last page of the batch.
    upto: Option<u32>,
    /// Rows from which on the next batch takes no more pages.
    enough: usize,
    /// Rows of the batch before this one have been read, or are about to be; and how many together.
    read: usize,
    together: usize,
    asking: Asking,
}

impl BitmapRows {
    /// # Safety
    /// The node is that of the scan, and outlives it.
    pub unsafe fn of(node: *mut pg_sys::BitmapHeapScanState) -> BitmapRows {
        BitmapRows {
            node,
            pages: None,
            rows: Vec::new(),
            at: 0,
            ordered: 0,
            upto: None,
            enough: FIRST_BATCH,
            read: 0,
            together: 0,
            asking: Asking::of_up_to(ASKED),
        }
    }

    /// Of a scan of which nothing is known but the pages that it comes to.
    pub fn of_pages() -> BitmapRows {
        // SAFETY: there is no node.
        unsafe { BitmapRows::of(std::ptr::null_mut()) }
    }

    /// The scan begins anew: with another bitmap.
    pub fn rewind(&mut self) {
        // SAFETY: begun here, and ended once; the bitmap itself is not looked at. The contract of `of` holds.
        unsafe {
            match self.pages {
                Some(Pages::Own(pages)) => pg_sys::tbm_end_iterate(pages),
                Some(Pages::Shared(pages)) => pg_sys::tbm_end_shared_iterate(pages),
                None => {}
            }
            *self = BitmapRows::of(self.node);
        }
    }

    /// The scan comes to a page of the bitmap: with the first one of a batch it gets all rows of that, with the others none. Whether they
    /// are to be checked again (`recheck`: those of this page are).
    pub fn enter(&mut self, open: &Open, block: u32, offsets: Option<&[u16]>, mut recheck: bool) -> Result<bool> {
        if self.upto.is_some_and(|upto| block <= upto) {
            return Ok(recheck);
        }
        let mut rows: Vec<RowId> = rows_of_page(block, offsets).collect();
        let mut upto = block;
        while rows.len() < self.enough {
            by_row::let_others();
            let Some(page) = self.page_behind(upto) else { break };
            // SAFETY: the iterator's last result.
            unsafe {
                (upto, recheck) = ((*page).blockno, recheck | (*page).recheck);
                rows.extend(rows_of_page(upto, offsets_of(page)));
            }
        }
        self.upto = Some(upto);
        self.rows = Vec::new();
        match self.enough == FIRST_BATCH || !self.may_order() {
            true => self.begin(rows.into_iter().map(Placed::unknown).collect()),
            false => self.begin(by_row::by_place(open, rows)?),
        }
        self.enough = (self.enough * GROWTH).min(self.largest_batch());
        Ok(recheck)
    }

    fn begin(&mut self, rows: Vec<Placed>) {
        self.rows = rows;
        (self.at, self.read, self.asking, self.ordered) = (0, 0, self.asking.anew(), self.rows.len());
    }

    /// Whether rows may come in another order than the bitmap's: nobody locks them.
    fn may_order(&self) -> bool {
        if self.node.is_null() {
            return false;
        }
        // SAFETY: the node runs, as a part of a planned statement.
        unsafe {
            let statement = (*(*self.node).ss.ps.state).es_plannedstmt;
            let reads = [pg_sys::CmdType::CMD_SELECT, pg_sys::CmdType::CMD_INSERT].contains(&(*statement).commandType);
            reads && !(*statement).hasModifyingCTE && (*statement).rowMarks.is_null()
        }
    }

    fn largest_batch(&self) -> usize {
        if !self.may_order() {
            return LARGEST_UNORDERED;
        }
        // SAFETY: a setting of this process; the node has a plan.
        unsafe {
            let memory = usize::try_from(pg_sys::work_mem).unwrap_or(0) << 10;
            let rows = (memory / BYTES_A_ROW).max(FIRST_BATCH);
            match self.pages {
                Some(Pages::Shared(_)) => {
                    let share = ((*(*self.node).ss.ps.plan).plan_rows / CLAIMS_A_WORKER) as usize;
                    rows.min(share.clamp(GROWTH * FIRST_BATCH, LARGEST_CLAIM))
                }
                _ => rows,
            }
        }
    }

    /// The scan's next row, and which rows are to be read together, from this one on: none, if it has been read, or `together` is not
    /// allowed.
    #[inline]
    pub fn next(&mut self, open: &Open, together: bool) -> Result<Option<(RowId, &[Placed])>> {
        let Some(placed) = self.rows.get(self.at) else { return Ok(None) };
        if self.at < self.read {
            let row = placed.row;
            self.at += 1;
            return Ok(Some((row, &[])));
        }
        if self.at * READ_PART >= self.ordered && placed.is_outdated(&open.tree) {
            let mut left: Vec<RowId> = self.rows.iter().skip(self.at).map(|placed| placed.row).collect();
            left.sort_unstable();
            self.begin(by_row::by_place(open, left)?);
        }
        let number = self.at;
        let Some(Placed { row, .. }) = self.rows.get(number).copied() else { return Ok(None) };
        self.at += 1;
        let ahead = self.asking.come_to(number, self.rows.len(), open.tree.host.pages_fetched());
        open.tree.ask_for_rows(self.rows.get(ahead).unwrap_or_default())?;
        if !together {
            return Ok(Some((row, &[])));
        }
        self.together = (2 * self.together).clamp(1, MOST.min(pins::most()).max(1));
        self.read = (number + self.asking.at_once(number, self.together)).min(self.rows.len());
        Ok(Some((row, self.rows.get(number..self.read).unwrap_or_default())))
    }

    /// Of those that were to be read together so many were.
    pub fn were_read(&mut self, count: usize) {
        self.read = self.at - 1 + count;
    }

    /// The bitmap's next page, behind this one; `None`: there is none, or only the scan knows.
    fn page_behind(&mut self, block: u32) -> Option<*mut pg_sys::TBMIterateResult> {
        if self.node.is_null() {
            return None;
        }
        // SAFETY: the node's bitmap is whole since the scan came to its first page. What goes through it lives as long as the statement, at
        // most.
        unsafe {
            let pages = match &self.pages {
                Some(pages) => pages,
                None => {
                    let before = pg_sys::MemoryContextSwitchTo((*(*self.node).ss.ps.state).es_query_cxt);
                    let pages = Pages::of(self.node);
                    pg_sys::MemoryContextSwitchTo(before);
                    self.pages.insert(pages?)
                }
            };
            loop {
                let page = match *pages {
                    Pages::Own(pages) => pg_sys::tbm_iterate(pages),
                    Pages::Shared(pages) => pg_sys::tbm_shared_iterate(pages),
                };
                if page.is_null() || (*page).blockno > block {
                    return (!page.is_null()).then_some(page);
                }
            }
        }
    }
}

impl Pages {
    /// # Safety
    /// The node is one that has come to a page of its bitmap.
    unsafe fn of(node: *mut pg_sys::BitmapHeapScanState) -> Option<Pages> {
        // SAFETY: by the contract.
        unsafe {
            let shared = (*node).pstate;
            if !shared.is_null() {
                let area = (*(*node).ss.ps.state).es_query_dsa;
                return Some(Pages::Shared(pg_sys::tbm_attach_shared_iterate(area, (*shared).tbmiterator)));
            }
            (!(*node).tbm.is_null()).then(|| Pages::Own(pg_sys::tbm_begin_iterate((*node).tbm)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_names_rows_of_its_block() {
        let first = 7 * tid::ROWS_PER_BLOCK;
        let named: Vec<_> = rows_of_page(7, Some(&[1, 5, 0, u16::MAX])).collect();
        assert_eq!(named, [RowId(first), RowId(first + 4)]);
        let all: Vec<_> = rows_of_page(7, None).collect();
        assert_eq!(all.len(), tid::ROWS_PER_BLOCK as usize);
        assert!(all.iter().enumerate().all(|(i, row)| *row == RowId(first + i as u64)));
    }
}
