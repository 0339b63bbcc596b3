//! What a bitmap names: its rows, and those that come next, whose pages are asked for before the scan comes to them.
//!
//! PostgreSQL asks for blocks of a bitmap as if they were blocks of the file; ours are row ids. So the bitmap is gone through a second
//! time here, further ahead, once the scan has had to wait for pages.

use super::{tid, Open};
use crate::host::pins;
use loosekv_engine::error::Result;
use loosekv_engine::host::Host;
use loosekv_engine::tree::Asking;
use loosekv_engine::types::RowId;
use pgrx::pg_sys;
use std::collections::VecDeque;
use std::ops::Range;

/// How many rows are read together, at most: first one, then ever more, for the scan may not want all.
const MOST: usize = 32;

/// The rows that one page of a bitmap names, a virtual block: those at the offsets, or (`None`) any in it. An offset that no row can have
/// names none.
pub fn entries(block: u32, offsets: Option<&[u16]>) -> impl Iterator<Item = Option<RowId>> + '_ {
    (0..).map_while(move |entry| entry_of(block, offsets, entry))
}

/// One of them; `None`: there are no more.
#[inline]
pub fn entry_of(block: u32, offsets: Option<&[u16]>, entry: usize) -> Option<Option<RowId>> {
    let offset = match offsets {
        Some(offsets) => u64::from(*offsets.get(entry)?),
        None => Some(entry as u64 + 1).filter(|offset| *offset <= tid::ROWS_PER_BLOCK)?,
    };
    let is_one = (1..=tid::ROWS_PER_BLOCK).contains(&offset);
    Some(is_one.then(|| RowId(u64::from(block) * tid::ROWS_PER_BLOCK + offset - 1)))
}

/// The offsets in a page of a bitmap; `None`: any.
///
/// # Safety
/// `page` is a bitmap iterator's result, and stays so while the offsets are used.
pub unsafe fn offsets_of<'a>(page: *mut pg_sys::TBMIterateResult) -> Option<&'a [u16]> {
    // SAFETY: the page has as many offsets as it says.
    unsafe { usize::try_from((*page).ntuples).ok().map(|count| (*page).offsets.as_slice(count)) }
}

/// Goes through a scan's bitmap ahead of the scan.
pub struct BitmapAhead {
    node: *mut pg_sys::BitmapHeapScanState,
    /// Null until something was asked for.
    iterator: *mut pg_sys::TBMIterator,
    /// Entries that come next, and the number of the first of them.
    rows: VecDeque<Option<RowId>>,
    first: usize,
    /// How many entries the scan has come to.
    at: usize,
    /// Entries before this one have been read, or are about to be; and how many together.
    read: usize,
    together: usize,
    asking: Asking,
}

impl BitmapAhead {
    /// # Safety
    /// The node is that of the scan, and outlives it.
    pub unsafe fn new(node: *mut pg_sys::BitmapHeapScanState) -> BitmapAhead {
        BitmapAhead {
            node,
            iterator: std::ptr::null_mut(),
            rows: VecDeque::new(),
            first: 0,
            at: 0,
            read: 0,
            together: 0,
            asking: Asking::default(),
        }
    }

    /// The scan begins anew: with another bitmap.
    pub fn rewind(&mut self) {
        if !self.iterator.is_null() {
            // SAFETY: begun here, and ended once. The bitmap itself is not looked at.
            unsafe { pg_sys::tbm_end_iterate(self.iterator) };
        }
        // SAFETY: by the contract of `new`.
        *self = unsafe { BitmapAhead::new(self.node) };
    }

    /// Whether parallel workers share the bitmap: each takes the next page that nobody has, and does not know the one after it.
    fn is_shared(&self) -> bool {
        // SAFETY: by the contract of `new`.
        unsafe { !(*self.node).pstate.is_null() }
    }

    /// The scan comes to a page of the bitmap.
    pub fn enter(&mut self, block: u32, offsets: Option<&[u16]>) {
        if self.is_shared() {
            self.rows.clear();
            self.rows.extend(entries(block, offsets));
            self.first = self.at;
            self.read = self.at;
        }
    }

    /// The scan comes to its next entry. Which entries are to be read together, from this one on: none, if it has been read, or `together`
    /// is not allowed.
    #[inline]
    pub fn step(&mut self, open: &Open, together: bool) -> Result<Range<usize>> {
        let number = self.at;
        self.at += 1;
        if number < self.read {
            return Ok(0..0);
        }
        let end = if self.is_shared() { self.first + self.rows.len() } else { usize::MAX };
        let wanted = self.asking.come_to(number, end, open.tree.host.pages_fetched());
        if !wanted.is_empty() {
            self.reach(number, wanted.end);
            self.rows_in(wanted).try_for_each(|row| open.tree.ask_for_row(row))?;
        }
        if !together {
            return Ok(0..0);
        }
        self.together = (2 * self.together).clamp(1, MOST.min(pins::most()).max(1));
        let until = number + self.asking.at_once(number, self.together);
        self.reach(number, until);
        self.read = until.min(self.first + self.rows.len());
        Ok(number..self.read)
    }

    /// The rows that these entries name.
    pub fn rows_in(&self, entries: Range<usize>) -> impl Iterator<Item = RowId> + '_ {
        let from = entries.start.saturating_sub(self.first).min(self.rows.len());
        let until = entries.end.saturating_sub(self.first).min(self.rows.len());
        self.rows.range(from..until.max(from)).copied().flatten()
    }

    /// Goes on until the entries before `end` are known, if there are so many; forgets those before `number`.
    fn reach(&mut self, number: usize, end: usize) {
        loop {
            // The scan may have gone far until it had to wait.
            let gone = number.saturating_sub(self.first).min(self.rows.len());
            self.rows.drain(..gone);
            self.first += gone;
            if self.first + self.rows.len() >= end || !self.take_page() {
                break;
            }
        }
    }

    /// The next page of the bitmap. False: there is none.
    fn take_page(&mut self) -> bool {
        // SAFETY: the node's bitmap is whole since the scan came to its first page.
        unsafe {
            if (*self.node).tbm.is_null() || self.is_shared() {
                return false;
            }
            if self.iterator.is_null() {
                // It lives as long as the statement, at most.
                let before = pg_sys::MemoryContextSwitchTo((*(*self.node).ss.ps.state).es_query_cxt);
                self.iterator = pg_sys::tbm_begin_iterate((*self.node).tbm);
                pg_sys::MemoryContextSwitchTo(before);
            }
            let page = pg_sys::tbm_iterate(self.iterator);
            if page.is_null() {
                return false;
            }
            self.rows.extend(entries((*page).blockno, offsets_of(page)));
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_rows_of_the_block() {
        let first = 7 * tid::ROWS_PER_BLOCK;
        let named: Vec<_> = entries(7, Some(&[1, 5, 0, u16::MAX])).collect();
        assert_eq!(named, [Some(RowId(first)), Some(RowId(first + 4)), None, None]);
        let all: Vec<_> = entries(7, None).collect();
        assert_eq!(all.len(), tid::ROWS_PER_BLOCK as usize);
        assert!(all.iter().enumerate().all(|(i, row)| *row == Some(RowId(first + i as u64))));
    }
}
