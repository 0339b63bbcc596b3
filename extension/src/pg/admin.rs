//! Functions for the people who run the database: `loosekv.flush`, `loosekv.compact`, `loosekv.runs`, `loosekv.table_stats`.
//!
//! The install script gives them their SQL names. Changing a table's files is its owner's affair; looking at it takes the
//! right to read it, or to read statistics.

use super::{catalog, error, sight, startup, table_vacuum};
use crate::host::{standby, PgHost};
use crate::table::Open;
use loosekv_engine::manifest::RunDesc;
use loosekv_engine::types::L0Id;
use pgrx::iter::TableIterator;
use pgrx::pg_sys;
use pgrx::pg_sys::Oid;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::sync::atomic::Ordering::Relaxed;

/// Opens a table of ours, and closes it when the work is done. After an error PostgreSQL closes it.
pub(super) fn with_table<T>(
    table: Oid,
    lock: u32,
    allowed: fn(Oid) -> pg_sys::AclResult::Type,
    work: impl FnOnce(&Open) -> T,
) -> T {
    require_by_name(table, allowed);
    // SAFETY: opened here, and closed by what it is handed to.
    unsafe { with_opened(pg_sys::relation_open(table, lock as i32), lock, allowed, work) }
}

/// As [`with_table`] with the least of locks, but never waits for it: `None` while somebody has the table to himself, or is about to,
/// when it is gone, and when it is unlogged on a standby. For those who watch, and want to hear of the other tables.
fn with_table_at_once<T>(
    table: Oid,
    allowed: fn(Oid) -> pg_sys::AclResult::Type,
    work: impl FnOnce(&Open) -> T,
) -> Option<T> {
    require_by_name(table, allowed);
    let lock = pg_sys::AccessShareLock;
    // SAFETY: the relation is locked before it is opened; if it is not there, the lock is given back.
    unsafe {
        if !pg_sys::ConditionalLockRelationOid(table, lock as i32) {
            return None;
        }
        let rel = pg_sys::try_relation_open(table, pg_sys::NoLock as i32);
        if rel.is_null() {
            pg_sys::UnlockRelationOid(table, lock as i32);
            return None;
        }
        if catalog::is_our_table(rel) && has_no_file_here(rel) {
            pg_sys::relation_close(rel, lock as i32);
            return None;
        }
        Some(with_opened(rel, lock, allowed, work))
    }
}

/// Who may not do it does not wait for a lock, nor lets others wait.
fn require_by_name(table: Oid, allowed: fn(Oid) -> pg_sys::AclResult::Type) {
    startup::require();
    // SAFETY: a catalog look-up; the name is the caller's.
    let name = unsafe { pg_sys::get_rel_name(table) };
    if !name.is_null() {
        // SAFETY: a C string.
        require(allowed(table), &unsafe { CStr::from_ptr(name) }.to_string_lossy());
    }
}

/// # Safety
/// The relation was just opened and locked by the caller; this closes it.
unsafe fn with_opened<T>(
    rel: pg_sys::Relation,
    lock: u32,
    allowed: fn(Oid) -> pg_sys::AclResult::Type,
    work: impl FnOnce(&Open) -> T,
) -> T {
    // SAFETY: by the contract.
    unsafe {
        let name = error::relation_name(rel);
        if !catalog::is_our_table(rel) {
            error::raise(
                PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
                format!("\"{name}\" is not a loosekv table"),
                Some("The tables are listed in the view loosekv.stats."),
            );
        }
        require(allowed((*rel).rd_id), &name);
        if has_no_file_here(rel) {
            let refused = "cannot access temporary or unlogged relations during recovery";
            error::raise(PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED, refused, None);
        }
        let result = {
            let open = Open::new(rel);
            work(&open)
        };
        pg_sys::relation_close(rel, lock as i32);
        result
    }
}

/// Standbys have nothing but definitions of such tables. (The planner refuses queries over them, but who asks for a table by its oid
/// does not come by there.)
unsafe fn has_no_file_here(rel: pg_sys::Relation) -> bool {
    // SAFETY: the relation is open.
    let persistence = unsafe { (*(*rel).rd_rel).relpersistence };
    persistence as u8 != pg_sys::RELPERSISTENCE_PERMANENT && standby::is_standby()
}

fn require(right: pg_sys::AclResult::Type, table: &str) {
    if right != pg_sys::AclResult::ACLCHECK_OK {
        let denied = format!("permission denied for table {table}");
        error::raise(PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE, denied, None);
    }
}

fn is_owner(table: Oid) -> pg_sys::AclResult::Type {
    // SAFETY: a catalog look-up.
    let owner = unsafe { pg_sys::pg_class_ownercheck(table, pg_sys::GetUserId()) };
    if owner {
        pg_sys::AclResult::ACLCHECK_OK
    } else {
        pg_sys::AclResult::ACLCHECK_NOT_OWNER
    }
}

/// Its owner, and those who watch over the server.
pub(super) fn may_check(table: Oid) -> pg_sys::AclResult::Type {
    // SAFETY: a catalog look-up.
    if unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), Oid::from(pg_sys::ROLE_PG_MONITOR)) } {
        return pg_sys::AclResult::ACLCHECK_OK;
    }
    is_owner(table)
}

/// Those who may read the table, or all statistics. A table that is gone may be seen by the latter.
pub(super) fn may_look(table: Oid) -> pg_sys::AclResult::Type {
    // SAFETY: catalog look-ups.
    unsafe {
        let user = pg_sys::GetUserId();
        if pg_sys::has_privs_of_role(user, Oid::from(pg_sys::ROLE_PG_READ_ALL_STATS)) {
            return pg_sys::AclResult::ACLCHECK_OK;
        }
        let mut gone = false;
        let mode = u64::from(pg_sys::ACL_SELECT) as pg_sys::AclMode;
        match pg_sys::pg_class_aclcheck_ext(table, user, mode, &mut gone) {
            _ if gone => pg_sys::AclResult::ACLCHECK_NO_PRIV,
            found => found,
        }
    }
}

fn not_in_recovery(command: &CStr) {
    // SAFETY: raises an error on a standby; the text is constant.
    unsafe { pg_sys::PreventCommandDuringRecovery(command.as_ptr()) };
}

/// Writes the table's memtables to runs.
#[pg_extern(volatile, parallel_unsafe)]
fn loosekv_flush(table: Oid) {
    not_in_recovery(c"loosekv.flush()");
    with_table(table, pg_sys::RowExclusiveLock, is_owner, table_vacuum::flush);
}

/// Flushes, and merges all runs into one.
#[pg_extern(volatile, parallel_unsafe)]
fn loosekv_compact(table: Oid) {
    not_in_recovery(c"loosekv.compact()");
    with_table(table, pg_sys::RowExclusiveLock, is_owner, |open| {
        table_vacuum::flush(open);
        table_vacuum::merge_all(open);
    });
}

type RunRow = (i64, i32, i64, i64, i64, i64, i64, i64, i64, bool, bool, Option<Vec<u8>>, Option<Vec<u8>>);

/// The runs of a table, newest first. Keys are for those who may read them.
#[pg_extern(volatile, parallel_unsafe)]
#[allow(clippy::type_complexity)]
fn loosekv_runs(
    table: Oid,
) -> TableIterator<
    'static,
    (
        name!(run, i64),
        name!(level, i32),
        name!(first_l0, i64),
        name!(last_l0, i64),
        name!(rows, i64),
        name!(keys, i64),
        name!(tombstones, i64),
        name!(row_bytes, i64),
        name!(pages, i64),
        name!(settled, bool),
        name!(compressed, bool),
        name!(min_key, Option<Vec<u8>>),
        name!(max_key, Option<Vec<u8>>),
    ),
> {
    let rows: Vec<RunRow> = with_table(table, pg_sys::AccessShareLock, may_look, |open| {
        let shown = sight::may_see_keys(open.rel);
        let describe = |run: &RunDesc| {
            let shape = &run.shape;
            (
                run.id.0 as i64,
                i32::from(run.level),
                run.first_l0.0 as i64,
                run.last_l0.0 as i64,
                run.rows() as i64,
                run.left_of(shape.keys) as i64,
                run.left_of(shape.tombstones) as i64,
                run.left_of(shape.bytes) as i64,
                run.extents.iter().map(|extent| i64::from(extent.pages)).sum(),
                run.settled,
                shape.compressed,
                shown.then(|| run.min_key().to_vec()),
                shown.then(|| shape.max_key.clone()),
            )
        };
        table_vacuum::runs(open).iter().rev().map(describe).collect()
    });
    TableIterator::new(rows)
}

/// The part of the runs' keys that the key index covers; without runs there is nothing to cover.
fn coverage(runs: &[RunDesc], indexed_from: L0Id) -> Option<f64> {
    let keys = |run: &RunDesc| run.left_of(run.shape.keys);
    let all: u64 = runs.iter().map(keys).sum();
    let covered: u64 = runs.iter().filter(|run| run.first_l0 >= indexed_from).map(keys).sum();
    (all > 0).then(|| covered as f64 / all as f64)
}

/// What `loosekv.stats` shows of one table; nothing while another session has it to itself. Counters begin when the table is loaded
/// into memory.
#[pg_extern(volatile, parallel_unsafe)]
#[allow(clippy::type_complexity)]
fn loosekv_table_stats(
    table: Oid,
) -> TableIterator<
    'static,
    (
        name!(levels, i32),
        name!(runs, i32),
        name!(run_rows, i64),
        name!(run_bytes, i64),
        name!(run_pages, i64),
        name!(memtables, i32),
        name!(memtable_rows, i64),
        name!(memtable_bytes, i64),
        name!(index_keys, i64),
        name!(index_bytes, i64),
        name!(indexed_runs, i32),
        name!(row_ids, i64),
        name!(rows_written, i64),
        name!(bytes_written, i64),
        name!(pages_written, i64),
        name!(write_amplification, Option<f64>),
        name!(flushes, i64),
        name!(compactions, i64),
        name!(stalls, i64),
        name!(gets, i64),
        name!(runs_looked_into, i64),
        name!(filter_probes, i64),
        name!(filter_hits, i64),
        name!(guided_scans, i64),
        name!(merged_scans, i64),
        name!(index_coverage, Option<f64>),
        name!(value_bytes, i64),
        name!(value_garbage_bytes, i64),
        name!(log_bytes, i64),
        name!(free_bytes, i64),
        name!(waiting_bytes, i64),
        name!(write_delay, i64),
    ),
> {
    let row = with_table_at_once(table, may_look, |open| {
        let runs = table_vacuum::runs(open);
        let shared = open.tree.shared();
        let (indexed_from, memtables, memtable_rows, memtable_bytes) = {
            let view = shared.current.pin::<PgHost>();
            let memtables = view.memtables().count() as i32;
            let rows: u64 = view.memtables().map(|memtable| memtable.table.rows()).sum();
            let bytes: u64 = view.memtables().map(|memtable| memtable.table.memory_used() as u64).sum();
            (view.indexed_from, memtables, rows as i64, bytes as i64)
        };
        let counters = &shared.counters;
        let bytes_written = counters.bytes_written.load(Relaxed);
        let pages_written = counters.flushed_pages.load(Relaxed)
            + counters.compacted_pages.load(Relaxed)
            + counters.value_pages.load(Relaxed);
        let slot = open.tree.host.slot();
        let page = i64::from(pg_sys::BLCKSZ);
        let (free, _, waiting) = shared.space();
        let value_bytes: u64 = runs.iter().map(RunDesc::value_bytes).sum();
        let value_space: u64 = open
            .tree
            .manifest()
            .values
            .iter()
            .map(|e| u64::from(e.pages) * loosekv_engine::page::CAPACITY as u64)
            .sum();
        let written_again = pages_written as f64 * f64::from(pg_sys::BLCKSZ);
        let amplification = (bytes_written > 0).then(|| 1.0 + written_again / bytes_written as f64);
        (
            runs.iter().map(|run| i32::from(run.level) + 1).max().unwrap_or(0),
            runs.len() as i32,
            runs.iter().map(|run| run.rows() as i64).sum(),
            runs.iter().map(|run| run.left_of(run.shape.bytes) as i64).sum(),
            runs.iter().flat_map(|run| &run.extents).map(|extent| i64::from(extent.pages)).sum(),
            memtables,
            memtable_rows,
            memtable_bytes,
            shared.index.len() as i64,
            shared.index.bytes() as i64,
            runs.iter().filter(|run| run.first_l0 >= indexed_from).count() as i32,
            open.tree.next_row_id().0 as i64,
            counters.rows_written.load(Relaxed) as i64,
            bytes_written as i64,
            pages_written as i64,
            amplification,
            counters.flushes.load(Relaxed) as i64,
            counters.compactions.load(Relaxed) as i64,
            counters.stalls.load(Relaxed) as i64,
            counters.gets.load(Relaxed) as i64,
            counters.runs_looked_into.load(Relaxed) as i64,
            counters.filter_probes.load(Relaxed) as i64,
            counters.filter_hits.load(Relaxed) as i64,
            counters.guided_scans.load(Relaxed) as i64,
            counters.merged_scans.load(Relaxed) as i64,
            coverage(&runs, indexed_from),
            value_bytes as i64,
            (value_space as i64 - value_bytes as i64).max(0),
            slot.map_or(0, |slot| slot.counters.log_bytes.load(Relaxed)) as i64,
            free as i64 * page,
            waiting as i64 * page,
            slot.map_or(0, |slot| i64::from(slot.write_delay.load(Relaxed))),
        )
    });
    TableIterator::new(row)
}
