//! How far scans go: what is asked for at their beginning goes by how far those before have gone.
//!
//! Of a scan this counts the pages that it goes on to beyond those where it begins in each run, in all runs together; of its guided
//! part, if it has one, the keys. A thread keeps moving averages of both for each table that it has scanned lately: the
//! statements of one session resemble each other. They are hints, so tables that meet in one place of this little array do no harm.

use std::cell::Cell;

/// Tables that a thread remembers.
const TABLES: usize = 16;
/// More pages or keys are not foreseen: a long scan gets what it wants as it goes on.
const MOST: u32 = 64;
/// An average is kept in so many parts of a page or key ...
const PARTS: u32 = 64;
/// ... and the latest scan is so large a share of it.
const SHARE: u32 = 8;

/// What scans of one table have done.
#[derive(Clone, Copy, Default)]
struct Lately {
    /// Number of the table's store.
    table: u64,
    pages: u32,
    keys: u32,
}

thread_local! {
    static LATELY: [Cell<Lately>; TABLES] = const { [const { Cell::new(Lately { table: 0, pages: 0, keys: 0 }) }; TABLES] };
}

/// The table's place; what stands there may be another's.
fn place<R>(table: u64, use_it: impl FnOnce(&Cell<Lately>) -> R) -> Option<R> {
    // What is the same in the numbers of neighbours counts least.
    let at = (table.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % TABLES;
    LATELY.with(|all| all.get(at).map(use_it))
}

fn lately(table: u64) -> Lately {
    let found = place(table, Cell::get).unwrap_or_default();
    if found.table == table {
        found
    } else {
        Lately { table, ..Lately::default() }
    }
}

/// Of the pages that a scan will go on to, those in a run that has `part` of a table's `whole`.
pub(super) fn pages(table: u64, part: u64, whole: u64) -> u32 {
    let parts = u64::from(lately(table).pages).saturating_mul(part) / whole.max(1);
    // A page too many costs less than one that is read by itself.
    ((parts + u64::from(PARTS - PARTS / 4)) / u64::from(PARTS)) as u32
}

/// Keys that a guided scan will come to.
pub(super) fn keys(table: u64) -> u32 {
    lately(table).keys.div_ceil(PARTS)
}

/// A scan has gone on to so many pages.
pub(super) fn note_pages(table: u64, pages: u32) {
    let before = lately(table);
    place(table, |cell| cell.set(Lately { pages: averaged(before.pages, pages), ..before }));
}

/// A scan was guided to so many keys.
pub(super) fn note_keys(table: u64, keys: u32) {
    let before = lately(table);
    place(table, |cell| cell.set(Lately { keys: averaged(before.keys, keys), ..before }));
}

fn averaged(before: u32, now: u32) -> u32 {
    before - before / SHARE + now.min(MOST) * PARTS / SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_goes_by_the_scans_before_and_by_the_runs_share() {
        let table = 77;
        assert_eq!((pages(table, 9, 10), keys(table)), (0, 0));
        (0..64).for_each(|_| note_pages(table, 10));
        assert_eq!(pages(table, 9, 10), 9);
        assert_eq!(pages(table, 1, 100), 0);
        (0..64).for_each(|_| note_keys(table, 24));
        assert_eq!((pages(table, 1, 1), keys(table)), (10, 24));
        (0..64).for_each(|_| note_pages(table, 0));
        assert_eq!(pages(table, 9, 10), 0);
        (0..64).for_each(|_| note_pages(table, u32::MAX));
        assert_eq!(pages(table, 1, 1), MOST);
        // Another table begins anew, even in the same place.
        (0..=TABLES as u64).for_each(|other| assert_eq!((pages(1000 + other, 1, 1), keys(1000 + other)), (0, 0)));
    }
}
