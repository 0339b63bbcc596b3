//! What a table's or index's statistics count beside what PostgreSQL counts itself.

use pgrx::pg_sys;
use pgrx::pg_sys::{PgStat_TableCounts, Relation};

/// The relation's counters, if it is counted.
///
/// # Safety
/// `rel` is open. Raises ERROR: the callers' frames are guarded.
unsafe fn counts<'a>(rel: Relation) -> Option<&'a mut PgStat_TableCounts> {
    // SAFETY: by the contract; as pgstat_should_count_relation does it.
    unsafe {
        if (*rel).pgstat_info.is_null() && (*rel).pgstat_enabled {
            pg_sys::pgstat_assoc_relation(rel);
        }
        let info = (*rel).pgstat_info;
        (!info.is_null()).then(|| &mut (*info).t_counts)
    }
}

/// Scans of a table, or searches in an index, begin.
///
/// # Safety
/// As for [`counts`].
pub unsafe fn count_scans(rel: Relation, count: usize) {
    // SAFETY: by the contract.
    if let Some(counts) = unsafe { counts(rel) } {
        counts.t_numscans += count as i64;
    }
}

/// A row was fetched by what an index had said.
///
/// # Safety
/// As for [`counts`].
pub unsafe fn count_fetched(rel: Relation) {
    // SAFETY: by the contract.
    if let Some(counts) = unsafe { counts(rel) } {
        counts.t_tuples_fetched += 1;
    }
}

/// A row was read by a scan of the table, whose beginning was counted. Raises nothing.
///
/// # Safety
/// `rel` is open.
#[inline]
pub unsafe fn count_row(rel: Relation) {
    // SAFETY: by the contract.
    unsafe {
        let info = (*rel).pgstat_info;
        if !info.is_null() {
            (*info).t_counts.t_tuples_returned += 1;
        }
    }
}
