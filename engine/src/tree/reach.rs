//! How far scans go: what is asked for at their beginning goes by how far those before have gone.
//!
//! Of a scan this counts the pages that it goes on to beyond those where it begins in each run, in all runs together. A thread keeps a
//! moving average of it for each table that it has scanned lately: the statements of one session resemble each other. A hint, so
//! tables that meet in one place of this little array do no harm.

use std::cell::Cell;

/// Tables that a thread remembers.
const TABLES: usize = 16;
/// More pages are not foreseen: a long scan gets what it wants as it goes on.
const MOST: u32 = 64;
/// The average is kept in so many parts of a page ...
const PARTS: u32 = 64;
/// ... and the latest scan is so large a share of it.
const SHARE: u32 = 8;

thread_local! {
    /// Number of a table's store, and the average.
    static LATELY: [Cell<(u64, u32)>; TABLES] = const { [const { Cell::new((0, 0)) }; TABLES] };
}

fn place(table: u64) -> usize {
    // What is the same in the numbers of neighbours counts least.
    (table.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % TABLES
}

/// Of the pages that a scan will go on to, those in a run that has `part` of a table's `whole`.
pub(super) fn expected(table: u64, part: u64, whole: u64) -> u32 {
    let (of, average) = LATELY.with(|all| all.get(place(table)).map(Cell::get)).unwrap_or_default();
    if of != table {
        return 0;
    }
    let parts = u64::from(average).saturating_mul(part) / whole.max(1);
    ((parts + u64::from(PARTS / 2)) / u64::from(PARTS)) as u32
}

/// A scan has gone on to so many pages.
pub(super) fn note(table: u64, pages: u32) {
    let now = pages.min(MOST) * PARTS;
    LATELY.with(|all| {
        let Some(cell) = all.get(place(table)) else { return };
        let average = match cell.get() {
            (of, average) if of == table => average - average / SHARE + now / SHARE,
            _ => now / SHARE,
        };
        cell.set((table, average));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_goes_by_the_scans_before_and_by_the_runs_share() {
        let table = 77;
        assert_eq!(expected(table, 9, 10), 0);
        (0..64).for_each(|_| note(table, 10));
        assert_eq!(expected(table, 9, 10), 9);
        assert_eq!(expected(table, 1, 100), 0);
        (0..64).for_each(|_| note(table, 0));
        assert_eq!(expected(table, 9, 10), 0);
        (0..64).for_each(|_| note(table, u32::MAX));
        assert_eq!(expected(table, 1, 1), MOST);
        // Another table begins anew, even in the same place.
        (0..=TABLES as u64).for_each(|other| assert_eq!(expected(1000 + other, 1, 1), 0));
    }
}
