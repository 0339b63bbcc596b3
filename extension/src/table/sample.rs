//! Which rows ANALYZE looks at.
//!
//! ANALYZE asks for every row of up to as many blocks as it wants rows. A virtual block has 256 row ids, several times what
//! a page of heap has, and each costs a look-up: most of what is read would be thrown away again. So of all the blocks' rows
//! only a share is looked at, chosen by a hash of the row id: enough for a full sample, from all over the blocks. Each row
//! counts for those that were left out beside it.

use super::{by_row, tid, Open};
use pgrx::pg_sys;

/// Rows that ANALYZE wants for each step of a column's statistics target.
const ROWS_A_STEP: u64 = 300;

/// One of so many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    of: u64,
}

impl Default for Share {
    fn default() -> Share {
        Share { of: 1 }
    }
}

impl Share {
    /// For a table as it is now.
    ///
    /// # Safety
    /// The table's relation is open.
    pub unsafe fn of(open: &Open) -> Share {
        // SAFETY: by the contract; a descriptor has as many attributes as it says.
        let target = unsafe {
            let desc = (*open.rel).rd_att;
            let attributes = (*desc).attrs.as_slice(usize::try_from((*desc).natts).unwrap_or(0));
            let own = attributes.iter().map(|attribute| attribute.attstattarget).max().unwrap_or(0);
            own.max(pg_sys::default_statistics_target)
        };
        let wanted = u64::try_from(target).unwrap_or(0).max(1) * ROWS_A_STEP;
        Share::choose(wanted, u64::from(by_row::blocks(open)), open.tree.rows_held())
    }

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
    pub fn has(self, row: u64) -> bool {
        let mut hash = row.wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (hash ^ (hash >> 31)).is_multiple_of(self.of)
    }

    pub fn weight(self) -> f64 {
        self.of as f64
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
        assert!((chosen * share.weight() - 1_000_000.0).abs() < 10_000.0);
        assert!((0..1000).all(|row| Share::default().has(row)));
    }
}
