//! VACUUM: flush, merge what is due, rid the secondary indexes of entries without a row, advance relfrozenxid, count.

use super::dead_rows::DeadRows;
use super::{catalog, error, xact};
use crate::host::maintenance::Maintenance;
use crate::host::{interrupt, progress, PgHost};
use crate::table::Open;
use crate::work::{memory, pace};
use loosekv_engine::error::{Error, Result};
use loosekv_engine::manifest::RunDesc;
use loosekv_engine::types::Writer;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::Relation;
use pgrx::prelude::*;
use pgrx::{PgLogLevel, PgSqlErrorCode};
use std::ffi::c_void;

#[pg_guard]
pub unsafe extern "C-unwind" fn vacuum(
    rel: Relation,
    params: *mut pg_sys::VacuumParams,
    strategy: pg_sys::BufferAccessStrategy,
) {
    // SAFETY: the relation is open and locked; PostgreSQL's parameters.
    unsafe {
        let min_multi = pg_sys::GetOldestMultiXactId();
        let oldest = xact::oldest_visible(rel);
        let open = Open::new(rel);
        flush(&open);
        let merged = merge(&open, false);
        let settled = if matches!(merged, Ok(()) | Err(Error::NoSpace(_))) { settle(&open) } else { Ok(()) };
        as_far_as_there_is_room(&open, merged.and(settled));
        let has_indexes = (*(*rel).rd_rel).relhasindex;
        let rows = live_rows(&open);
        if has_indexes && (*params).index_cleanup != pg_sys::VacOptValue::VACOPTVALUE_DISABLED {
            let forced = (*params).index_cleanup == pg_sys::VacOptValue::VACOPTVALUE_ENABLED;
            let dropped = open.tree.rows_dropped();
            let needed = forced || dropped != open.tree.cleaned() || open.tree.may_have_dead();
            clean_indexes(rel, oldest, rows, strategy, needed);
            if needed {
                open.tree.note_cleaned(dropped);
            }
        }
        let frozen = frozen_below(&open, oldest);
        let pages = super::table_scan::virtual_blocks(&open);
        let (mut xid_updated, mut multi_updated) = (false, false);
        pg_sys::vac_update_relstats(
            rel,
            pages,
            rows,
            0,
            has_indexes,
            pg_sys::TransactionId::from(frozen as u32),
            min_multi,
            &mut xid_updated,
            &mut multi_updated,
            false,
        );
        // What is kept for a snapshot is to be dropped by a later VACUUM: autovacuum comes again.
        let dead = open.tree.shared().held_up(Writer(xact::oldest_visible(rel)));
        pg_sys::pgstat_report_vacuum((*rel).rd_id, (*(*rel).rd_rel).relisshared, rows as i64, dead as i64);
    }
}

/// Between two looks whether another has flushed.
const NAP: std::time::Duration = std::time::Duration::from_millis(2);

/// Writes all memtables to runs. It does not queue for the maintenance lock: whoever merges flushes in between, and a merge is
/// long.
pub fn flush(open: &Open) {
    open.ok(memory::with_relief(&open.tree, || open.tree.rotate()));
    let newest = open.tree.shared().current.pin::<PgHost>().active().table.generation();
    let waiting = || {
        let view = open.tree.shared().current.pin::<PgHost>();
        view.frozen.iter().any(|frozen| frozen.table.generation() < newest)
    };
    while waiting() {
        // SAFETY: the relation stays open.
        match unsafe { Maintenance::try_lock(open.rel) } {
            Some(lock) => {
                open.ok(memory::with_relief(&open.tree, || interrupt::held(|| open.tree.flush_one())));
                drop(lock);
                pgrx::check_for_interrupts!();
            }
            None => interrupt::nap(NAP),
        }
    }
    pace::update(&open.tree);
    progress::ended();
}

/// Merges everything into one run.
pub fn merge_all(open: &Open) {
    open.ok(merge(open, true));
}

/// VACUUM has more to do than merges: it goes on where the disk has no room for one.
fn as_far_as_there_is_room(open: &Open, merged: Result<()>) {
    match merged {
        Err(full @ Error::NoSpace(_)) => {
            let what = format!("{}; its runs are not merged", error::message(open.rel, &full));
            let report = ErrorReport::new(PgSqlErrorCode::ERRCODE_DISK_FULL, what, "loosekv");
            report.set_hint(error::NO_SPACE).report(PgLogLevel::WARNING);
        }
        merged => open.ok(merged),
    }
}

/// Merges what is due (`all`: everything into one run).
fn merge(open: &Open, all: bool) -> Result<()> {
    let merged = maintain(open, || open.tree.compact_one(all));
    pace::update(&open.tree);
    merged
}

/// Settles every run whose writers have all ended, so that none of them needs to be looked up ever again.
fn settle(open: &Open) -> Result<()> {
    maintain(open, || open.tree.settle_one())
}

/// Does something until there is nothing more to do.
fn maintain(open: &Open, piece: impl Fn() -> Result<bool>) -> Result<()> {
    // SAFETY: as above.
    let lock = unsafe { Maintenance::lock(open.rel) };
    let mut done = Ok(true);
    while matches!(done, Ok(true)) {
        pgrx::check_for_interrupts!();
        done = interrupt::held(&piece);
    }
    drop(lock);
    progress::ended();
    done.map(|_| ())
}

/// The runs, oldest first.
pub fn runs(open: &Open) -> Vec<RunDesc> {
    open.tree.manifest().runs
}

/// Live rows, nearly: those that the index knows, or, where it does not know all runs, keys of all runs, without regard to
/// those that stand in several.
pub fn live_rows(open: &Open) -> f64 {
    let runs = runs(open);
    let tombstones: u64 = runs.iter().map(|run| run.left_of(run.shape.tombstones)).sum();
    let in_runs: u64 = runs.iter().map(|run| run.left_of(run.shape.keys)).sum();
    let shared = open.tree.shared();
    let (indexed_from, in_memtables) = {
        let view = shared.current.pin::<PgHost>();
        (view.indexed_from, view.memtables().map(|memtable| memtable.table.rows()).sum::<u64>())
    };
    let complete = runs.first().is_none_or(|oldest| indexed_from <= oldest.first_l0);
    let on_disk = if complete { shared.index.rows() } else { in_runs.saturating_sub(tombstones) };
    (on_disk + in_memtables) as f64
}

/// Below this transaction id nobody need be looked up: the runs know that their writers have committed, what is still in
/// memory was written later, and no scan has runs before it that did not know it yet.
fn frozen_below(open: &Open, oldest: u64) -> u64 {
    // Memory first: what is flushed after the look there is found in the runs.
    let in_memory = open.tree.shared().oldest_asked_about().map(|writer| writer.0);
    let unsettled = runs(open).iter().filter(|run| !run.settled).map(|run| run.shape.min_writer.0).min();
    [Some(oldest), unsettled, in_memory].into_iter().flatten().min().unwrap_or(oldest)
}

/// `needed`: they may have entries of rows that are gone, or dead. Finding them takes a pass over each index, and one over the table.
unsafe fn clean_indexes(rel: Relation, oldest: u64, rows: f64, strategy: pg_sys::BufferAccessStrategy, needed: bool) {
    // SAFETY: the relation is open; its indexes are locked as VACUUM locks them.
    unsafe {
        let lock = pg_sys::RowExclusiveLock as i32;
        let (mut count, mut indexes): (i32, *mut Relation) = (0, std::ptr::null_mut());
        pg_sys::vac_open_indexes(rel, lock, &mut count, &mut indexes);
        let mut dead = None;
        for i in 0..usize::try_from(count).unwrap_or(0) {
            let index = *indexes.add(i);
            if catalog::is_our_index(index) {
                let pages = u32::try_from((*(*index).rd_rel).relpages).unwrap_or(0);
                update_index(index, pages, rows);
            } else {
                let dead = needed.then(|| dead.get_or_insert_with(|| DeadRows::find(Open::new(rel), oldest)));
                clean_index(index, dead, rows, strategy);
            }
        }
        pg_sys::vac_close_indexes(count, indexes, pg_sys::NoLock as i32);
    }
}

unsafe fn clean_index(index: Relation, dead: Option<&mut DeadRows>, rows: f64, strategy: pg_sys::BufferAccessStrategy) {
    // SAFETY: the index and its table are open; the state lives until the calls are over.
    unsafe {
        let mut info = pg_sys::IndexVacuumInfo {
            index,
            analyze_only: false,
            report_progress: false,
            estimated_count: true,
            message_level: pg_sys::DEBUG2 as i32,
            num_heap_tuples: rows,
            strategy,
        };
        let stats = dead.map_or(std::ptr::null_mut(), |dead| {
            let state = std::ptr::from_mut(dead).cast::<c_void>();
            pg_sys::index_bulk_delete(&mut info, std::ptr::null_mut(), Some(is_dead), state)
        });
        let stats = pg_sys::index_vacuum_cleanup(&mut info, stats);
        if !stats.is_null() && !(*stats).estimated_count {
            update_index(index, (*stats).num_pages, (*stats).num_index_tuples);
        }
    }
}

unsafe fn update_index(index: Relation, pages: u32, rows: f64) {
    let (none, no_multi) = (pg_sys::InvalidTransactionId, pg_sys::TransactionId::from(0));
    let (mut xid_updated, mut multi_updated) = (false, false);
    // SAFETY: the index is open and locked.
    unsafe {
        pg_sys::vac_update_relstats(
            index,
            pages,
            rows,
            0,
            false,
            none,
            no_multi,
            &mut xid_updated,
            &mut multi_updated,
            false,
        );
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn is_dead(tid: pg_sys::ItemPointer, state: *mut c_void) -> bool {
    // SAFETY: `clean_index` passed its DeadRows, and waits for the index code to return.
    unsafe { (*state.cast::<DeadRows>()).is_dead(&*tid) }
}
