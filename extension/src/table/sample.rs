//! Which rows ANALYZE looks at.
//!
//! ANALYZE asks for every row of up to as many blocks as it wants rows. A virtual block has 256 row ids, several times what
//! a page of heap has, and each costs a look-up: most of what is read would be thrown away again. So of all the blocks' rows
//! only a share is looked at, chosen by a hash of the row id: enough for a full sample, from all over the blocks. Each row
//! counts for those that were left out beside it.
//!
//! Rows whose ids are near each other lie far from each other in the runs, mostly. Where ANALYZE wants all blocks, as it does of tables with
//! up to some millions of rows, it is known from the beginning which rows it will ask for. These are looked at beforehand, in
//! the order in which the runs have them: so each page is read, and unpacked, once.

use super::mvcc::{self, Standing};
use super::{by_row, recent, tid, Open};
use crate::host::maintenance;
use loosekv_engine::error::Result;
use loosekv_engine::tree::{Looked, Placed};
use loosekv_engine::types::{RowBuf, RowId};
use pgrx::pg_sys;
use std::collections::VecDeque;
use std::ops::Range;

/// Rows that ANALYZE wants for each step of a column's statistics target.
const ROWS_A_STEP: u64 = 300;

/// The rows that ANALYZE looks at.
pub struct Sample {
    share: Share,
    /// ANALYZE will want all blocks.
    whole: bool,
    /// Those with row ids below this have been looked at, from where ANALYZE began.
    upto: u64,
    /// What was found of them, in the order of their row ids.
    found: VecDeque<Found>,
    /// For rows that are not the one asked for.
    other: RowBuf,
}

enum Found {
    Live(RowBuf),
    /// There was no room for it.
    Unread(RowId),
}

impl Found {
    fn row_id(&self) -> RowId {
        match self {
            Found::Live(row) => row.head.row_id,
            Found::Unread(row) => *row,
        }
    }
}

impl Sample {
    /// For a table as it is now.
    ///
    /// # Safety
    /// The table's relation is open.
    pub unsafe fn of(open: &Open) -> Sample {
        // SAFETY: by the contract.
        let wanted = unsafe { rows_wanted(open) };
        let blocks = u64::from(by_row::blocks(open));
        let share = Share::choose(wanted, blocks, open.tree.rows_held());
        Sample { share, whole: blocks <= wanted, upto: 0, found: VecDeque::new(), other: RowBuf::default() }
    }

    /// A row counts for so many.
    pub fn weight(&self) -> f64 {
        self.share.of as f64
    }

    /// The next live row of a block with these row ids, if it has one more. Blocks have to come in their order.
    pub fn next_of_block(&mut self, open: &Open, rows: Range<u64>, dead: &mut f64, out: &mut RowBuf) -> Result<bool> {
        if rows.start >= self.upto && !rows.is_empty() {
            let end = if self.whole { open.tree.next_row_id().0 } else { rows.end };
            self.look_at_all(open, rows.start..end, dead)?;
        }
        while let Some(next) = self.found.pop_front_if(|next| next.row_id().0 < rows.end) {
            match next {
                Found::Live(row) if rows.contains(&row.head.row_id.0) => {
                    *out = row;
                    return Ok(true);
                }
                Found::Unread(row) if rows.contains(&row.0) && self.is_live(open, row, dead, out)? => return Ok(true),
                _ => {}
            }
        }
        Ok(false)
    }

    /// Looks at the chosen ones of these rows, in the order of their places.
    fn look_at_all(&mut self, open: &Open, rows: Range<u64>, dead: &mut f64) -> Result<()> {
        self.upto = rows.end;
        let chosen = by_row::by_place(open, rows.filter(|row| self.share.has(*row)).map(RowId))?;
        let mut room = maintenance::work_memory();
        let mut found = Vec::with_capacity(chosen.len());
        let mut read = RowBuf::default();
        for Placed { row, .. } in chosen {
            by_row::let_others();
            if room == 0 {
                found.push(Found::Unread(row));
            } else if self.is_live(open, row, dead, &mut read)? {
                room = room.saturating_sub(size_of::<Found>() + read.key.len() + read.body.len());
                found.push(Found::Live(std::mem::take(&mut read)));
            }
        }
        found.sort_unstable_by_key(Found::row_id);
        self.found = found.into();
        Ok(())
    }

    /// Whether this is the newest version of its key, and no tombstone, as heap has it: rows that others are inserting do not count yet.
    /// Others that it has superseded do.
    fn is_live(&mut self, open: &Open, row: RowId, dead: &mut f64, out: &mut RowBuf) -> Result<bool> {
        let mut standing = None;
        let looked = recent::look_at_row(open, row, out, |head, hint| standing = Some(mvcc::standing(head, hint)))?;
        if looked == Looked::Gone || out.head.flags.is_tombstone() {
            return Ok(false);
        }
        if looked == Looked::Found {
            let (newest, _) = mvcc::newest(open, &out.key, &mut self.other)?;
            if newest.is_some_and(|newest| newest.head.row_id > row) {
                *dead += self.weight();
            }
            standing = newest.filter(|newest| newest.head.row_id == row).map(|newest| newest.standing);
        }
        Ok(matches!(standing, Some(Standing::Mine | Standing::Committed)))
    }
}

/// How many rows ANALYZE wants for its sample.
///
/// # Safety
/// The table's relation is open.
unsafe fn rows_wanted(open: &Open) -> u64 {
    // SAFETY: by the contract; a descriptor has as many attributes as it says.
    let target = unsafe {
        let desc = (*open.rel).rd_att;
        let attributes = (*desc).attrs.as_slice(usize::try_from((*desc).natts).unwrap_or(0));
        let own = attributes.iter().map(|attribute| attribute.attstattarget).max().unwrap_or(0);
        own.max(pg_sys::default_statistics_target)
    };
    u64::try_from(target).unwrap_or(0).max(1) * ROWS_A_STEP
}

/// One of so many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    of: u64,
}

impl Share {
    /// `rows` of a table of so many virtual blocks, at most (versions that nobody sees any more count here).
    fn choose(wanted: u64, blocks: u64, rows: u64) -> Share {
        let ids = blocks * tid::ROWS_PER_BLOCK;
        let shown = blocks.min(wanted) * tid::ROWS_PER_BLOCK;
        // Of the row ids of the blocks that ANALYZE chooses, so many have a row.
        let filled = (u128::from(rows) * u128::from(shown) / u128::from(ids.max(1))) as u64;
        // A half more than needed: versions that are dead, and chance.
        Share { of: (filled / (wanted + wanted / 2)).max(1) }
    }

    #[inline]
    fn has(self, row: u64) -> bool {
        let mut hash = row.wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (hash ^ (hash >> 31)).is_multiple_of(self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_tables_are_looked_at_whole() {
        assert_eq!(Share::choose(30_000, 40, 10_000), Share { of: 1 });
        assert_eq!(Share::choose(30_000, 0, 0), Share { of: 1 });
        assert_eq!(Share::choose(30_000, 352, 89_999), Share { of: 1 });
    }

    #[test]
    fn large_tables_give_a_full_sample() {
        // All blocks are chosen, and all their row ids have rows.
        assert_eq!(Share::choose(30_000, 4000, 1_024_000), Share { of: 22 });
        // Many more blocks than are chosen.
        assert_eq!(Share::choose(30_000, 4_000_000, 1_024_000_000), Share { of: 170 });
        // Most row ids have no row any more.
        assert_eq!(Share::choose(30_000, 4_000_000, 10_240_000), Share { of: 1 });
    }

    #[test]
    fn the_share_is_what_it_says() {
        let share = Share { of: 10 };
        let chosen = (0..1_000_000).filter(|row| share.has(*row)).count() as f64;
        assert!((chosen * share.of as f64 - 1_000_000.0).abs() < 10_000.0);
        assert!((0..1000).all(|row| Share { of: 1 }.has(row)));
    }
}
