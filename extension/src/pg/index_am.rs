//! The index access method `loosekv_key`: a primary key that is the table itself.
//!
//! It stores nothing. A row that is in the table is in the key; what is unique has been decided by the table's `append`. To
//! the catalog it is a btree index with another `relam` (see [`super::hooks`]), so operator classes are btree's.

use super::bindings_am::{guarded, raw};
use super::{catalog, error, index_scan, startup};
use crate::codec::key::KeyCodec;
use crate::table::rekey::{self, Rekeyed};
use crate::table::{info, tid, Open};
use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, IndexInfo, Relation};
use pgrx::prelude::*;

/// `loosekv.key_handler(internal) returns index_am_handler`.
///
/// # Safety
/// Called by PostgreSQL's function manager.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn loosekv_key_handler(_fcinfo: pg_sys::FunctionCallInfo) -> Datum {
    startup::require();
    // SAFETY: a node of the right size and tag, in memory that lives as long as the caller needs it.
    unsafe {
        let routine = pg_sys::palloc0(size_of::<pg_sys::IndexAmRoutine>()).cast::<pg_sys::IndexAmRoutine>();
        fill(&mut *routine);
        Datum::from(routine)
    }
}

#[no_mangle]
pub extern "C-unwind" fn pg_finfo_loosekv_key_handler() -> &'static pg_sys::Pg_finfo_record {
    &pg_sys::Pg_finfo_record { api_version: 1 }
}

/// BTNProcs and BTOPTIONS_PROC of access/nbtree.h.
const BTREE_SUPPORT_FUNCTIONS: u16 = 5;
const BTREE_OPTIONS_FUNCTION: u16 = 5;

fn fill(am: &mut pg_sys::IndexAmRoutine) {
    am.type_ = pg_sys::NodeTag::T_IndexAmRoutine;
    am.amstrategies = pg_sys::BTMaxStrategyNumber as u16;
    am.amsupport = BTREE_SUPPORT_FUNCTIONS;
    am.amoptsprocnum = BTREE_OPTIONS_FUNCTION;
    am.amcanorder = true;
    am.amcanbackward = true;
    am.amcanunique = true;
    am.amcanmulticol = true;
    am.amoptionalkey = true;
    am.amsearcharray = true;
    am.amsearchnulls = true;
    am.amclusterable = true;
    am.ampredlocks = true;
    am.amcaninclude = true;
    am.amkeytype = pg_sys::Oid::INVALID;
    am.ambuild = Some(build);
    am.ambuildempty = Some(build_empty);
    am.aminsert = Some(insert);
    am.ambulkdelete = Some(bulk_delete);
    am.amvacuumcleanup = Some(vacuum_cleanup);
    am.amcostestimate = Some(cost);
    am.amoptions = Some(options);
    am.amvalidate = Some(validate);
    am.ambeginscan = Some(index_scan::begin);
    am.amrescan = Some(index_scan::rescan);
    am.amgettuple = Some(index_scan::next);
    am.amgetbitmap = Some(index_scan::bitmap);
    am.amendscan = Some(index_scan::end);
    am.ammarkpos = Some(index_scan::set_mark);
    am.amrestrpos = Some(index_scan::return_to_mark);
}

/// Building the key makes its format the table's. An empty table takes it over as it stands; a filled one gets a new file.
///
/// # Safety
/// Called by PostgreSQL, with the table and an index of it.
pub unsafe extern "C-unwind" fn build(
    table: Relation,
    index: Relation,
    _info: *mut IndexInfo,
) -> *mut pg_sys::IndexBuildResult {
    // SAFETY: PostgreSQL's relations; this frame has nothing to drop.
    unsafe {
        let mut duplicate = std::ptr::null_mut();
        let result = build_guarded(table, index, &raw mut duplicate);
        if !duplicate.is_null() {
            raise_not_unique(table, index, duplicate);
        }
        result
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn build_guarded(
    table: Relation,
    index: Relation,
    duplicate: *mut *mut std::ffi::c_char,
) -> *mut pg_sys::IndexBuildResult {
    // SAFETY: PostgreSQL's relations.
    unsafe {
        if !catalog::is_our_table(table) {
            refuse_other_use();
        }
        let result = pg_sys::palloc0(size_of::<pg_sys::IndexBuildResult>()).cast::<pg_sys::IndexBuildResult>();
        if !(*(*index).rd_index).indisprimary {
            // The copy that REINDEX CONCURRENTLY makes: the table is in its order already.
            require_key_of(table, index);
            return result;
        }
        let rows = match adopt(table, index) {
            Rekeyed::Done { rows } => rows,
            Rekeyed::Duplicate(slot) => {
                *duplicate = describe(index, slot);
                0.0
            }
        };
        (*result).heap_tuples = rows;
        (*result).index_tuples = rows;
        result
    }
}

const ONLY_KEYS: &str = "access method \"loosekv_key\" serves only the primary keys of loosekv tables";

/// A unique index is about to be made that is no primary key.
pub fn tell_of_btree() {
    pgrx::notice!("{ONLY_KEYS}: the index is made a btree");
}

pub fn refuse_other_use() -> ! {
    error::unsupported(
        ONLY_KEYS,
        "Declare a PRIMARY KEY. Secondary indexes are btree, hash, gin, gist, spgist or brin indexes.",
    )
}

/// An index that is not the primary key serves as long as it has the same columns.
unsafe fn require_key_of(table: Relation, index: Relation) {
    // SAFETY: both are open.
    let same = unsafe {
        let copy = KeyCodec::for_index(index).unwrap_or_else(|unsupported| unsupported.report());
        info::of(table).codec.key.same_format(&copy)
    };
    if !same {
        let name = error::relation_name(index);
        error::unsupported(
            format!("index \"{name}\" is a copy of a primary key that its table has no more"),
            "REINDEX CONCURRENTLY has left it when it failed. Drop it with DROP INDEX.",
        );
    }
}

/// The key is about to change: a copy of it, which REINDEX CONCURRENTLY has left when it failed, would not be true any more.
///
/// # Safety
/// The table is open.
pub unsafe fn require_no_copies(table: Relation, key: pg_sys::Oid) {
    // SAFETY: by the contract.
    unsafe {
        let list = pg_sys::RelationGetIndexList(table);
        for oid in catalog::oids(list).filter(|oid| *oid != key) {
            let index = pg_sys::index_open(oid, pg_sys::NoLock as i32);
            let (ours, name) = (catalog::is_our_index(index), error::relation_name(index));
            pg_sys::index_close(index, pg_sys::NoLock as i32);
            if ours {
                let table = error::relation_name(table);
                error::unsupported(
                    format!(
                        "cannot change the primary key of table \"{table}\" while index \"{name}\" is a copy of it"
                    ),
                    "REINDEX CONCURRENTLY has left it when it failed. Drop it with DROP INDEX first.",
                );
            }
        }
        pg_sys::list_free(list);
    }
}

/// Makes the index's key the table's.
unsafe fn adopt(table: Relation, index: Relation) -> Rekeyed {
    // SAFETY: both are open, the table locked exclusively unless nothing has to be done.
    unsafe {
        let target = KeyCodec::for_index(index).unwrap_or_else(|unsupported| unsupported.report());
        let (relid, file) = ((*table).rd_id, catalog::file_of(table));
        let rebuilding = pg_sys::ReindexIsProcessingIndex((*index).rd_id);
        let current = match info::noted_format(file) {
            Some(noted) => noted,
            None if rebuilding => target.clone(),
            None => KeyCodec::row_id(),
        };
        super::hooks::key_built(relid);
        if current.same_format(&target) {
            info::note_format(relid, file, target);
            let known = Open::new(table).tree.rows_about().map(|rows| rows as f64);
            return Rekeyed::Done { rows: known.unwrap_or((*(*table).rd_rel).reltuples.max(0.0).into()) };
        }
        require_no_copies(table, (*index).rd_id);
        let open = Open::new(table);
        let untouched = open.tree.next_row_id().0 == 0;
        drop(open);
        if untouched && goes_with_its_file(table) {
            info::note_format(relid, file, target);
            return Rekeyed::Done { rows: 0.0 };
        }
        let rekeyed = error::or_report(table, rekey::rekey(table, current, target));
        if let Rekeyed::Done { .. } = rekeyed {
            rebuild_others(table, (*index).rd_id);
        }
        rekeyed
    }
}

/// Whether what is noted of the table's file need not be undone when the current subtransaction is rolled back: it is the transaction
/// itself, or it has made the file.
unsafe fn goes_with_its_file(table: Relation) -> bool {
    // SAFETY: the table is open; process state.
    unsafe {
        let current = pg_sys::GetCurrentSubTransactionId();
        raw::GetCurrentTransactionNestLevel() == 1
            || (*table).rd_createSubid == current
            || (*table).rd_newRelfilenodeSubid == current
    }
}

/// Rows have new row ids: builds all indexes again but this one, and but those that CREATE INDEX CONCURRENTLY has left without rows.
///
/// # Safety
/// `table` is open, and locked exclusively.
pub unsafe fn rebuild_others(table: Relation, but: pg_sys::Oid) {
    // SAFETY: the table is locked exclusively.
    unsafe {
        let list = pg_sys::RelationGetIndexList(table);
        let persistence = (*(*table).rd_rel).relpersistence;
        for oid in catalog::oids(list).filter(|oid| *oid != but && catalog::takes_rows(*oid)) {
            let mut params = pg_sys::ReindexParams::default();
            pg_sys::reindex_index(oid, true, persistence, &mut params);
        }
        pg_sys::list_free(list);
    }
}

unsafe fn describe(index: Relation, slot: *mut pg_sys::TupleTableSlot) -> *mut std::ffi::c_char {
    // SAFETY: the slot holds a row of the index's table.
    unsafe {
        let (values, nulls) = super::slot::all_attributes(slot);
        let count = usize::try_from((*(*index).rd_index).indnkeyatts).unwrap_or(0);
        let attnos = (*(*index).rd_index).indkey.values.as_slice(count);
        let mut key_values: Vec<Datum> = attnos.iter().map(|attno| values[*attno as usize - 1]).collect();
        let mut key_nulls: Vec<bool> = attnos.iter().map(|attno| nulls[*attno as usize - 1]).collect();
        let text = pg_sys::BuildIndexValueDescription(index, key_values.as_mut_ptr(), key_nulls.as_mut_ptr());
        if text.is_null() {
            pg_sys::pstrdup(c"".as_ptr())
        } else {
            text
        }
    }
}

/// Raises the error that btree raises, outside of any guard: see [`error::raise_duplicate`].
unsafe fn raise_not_unique(table: Relation, index: Relation, key: *const std::ffi::c_char) -> ! {
    // SAFETY: no frame up to PostgreSQL has anything to drop; errfinish does not return.
    unsafe {
        let name = (*(*index).rd_rel).relname.data.as_ptr();
        raw::errstart(PgLogLevel::ERROR as i32, std::ptr::null());
        raw::errcode(PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION as i32);
        raw::errmsg_internal(c"could not create unique index \"%s\"".as_ptr(), name);
        if *key != 0 {
            raw::errdetail_internal(c"Key %s is duplicated.".as_ptr(), key);
        } else {
            raw::errdetail_internal(c"Duplicate keys exist.".as_ptr());
        }
        raw::errtableconstraint(table, name);
        raw::errfinish(c"loosekv".as_ptr(), 0, c"build".as_ptr());
        std::hint::unreachable_unchecked()
    }
}

unsafe extern "C-unwind" fn build_empty(_index: Relation) {}

/// The table has decided already. Only a row that it did not write is news.
#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn insert(
    index: Relation,
    values: *mut Datum,
    nulls: *mut bool,
    row: pg_sys::ItemPointer,
    table: Relation,
    check: pg_sys::IndexUniqueCheck::Type,
    _unchanged: bool,
    _info: *mut IndexInfo,
) -> bool {
    // SAFETY: the executor's pointers; this frame has nothing to drop.
    unsafe {
        if !tid::is_limbo(&*row) {
            return true;
        }
        if check == pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES {
            let duplicate = describe_duplicate(table, index, values, nulls);
            error::raise_duplicate(duplicate);
        }
        false
    }
}

/// Describes it, or raises why the row can have no key.
#[pg_guard]
unsafe extern "C-unwind" fn describe_duplicate(
    table: Relation,
    index: Relation,
    values: *mut Datum,
    nulls: *mut bool,
) -> *mut error::Duplicate {
    // SAFETY: the index's columns, as the executor made them.
    unsafe {
        let open = Open::new(table);
        let codec = &open.info.codec.key;
        let columns = codec.columns().len();
        let (of_key, null) = (std::slice::from_raw_parts(values, columns), std::slice::from_raw_parts(nulls, columns));
        if let Err(e) = codec.encode(of_key, null, &mut Vec::new()) {
            open.report_key(e);
        }
        error::duplicate(table, (*index).rd_id, values, nulls)
    }
}

unsafe extern "C-unwind" fn bulk_delete(
    _info: *mut pg_sys::IndexVacuumInfo,
    stats: *mut pg_sys::IndexBulkDeleteResult,
    _callback: pg_sys::IndexBulkDeleteCallback,
    _state: *mut std::ffi::c_void,
) -> *mut pg_sys::IndexBulkDeleteResult {
    stats
}

unsafe extern "C-unwind" fn vacuum_cleanup(
    _info: *mut pg_sys::IndexVacuumInfo,
    stats: *mut pg_sys::IndexBulkDeleteResult,
) -> *mut pg_sys::IndexBulkDeleteResult {
    stats
}

#[pg_guard]
#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn cost(
    root: *mut pg_sys::PlannerInfo,
    path: *mut pg_sys::IndexPath,
    loops: f64,
    startup: *mut pg_sys::Cost,
    total: *mut pg_sys::Cost,
    selectivity: *mut pg_sys::Selectivity,
    correlation: *mut f64,
    pages: *mut f64,
) {
    // SAFETY: the planner's pointers. The table is in the order of its key.
    unsafe {
        guarded!(btcostestimate(root, path, loops, startup, total, selectivity, correlation, pages));
        *correlation = 1.0;
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn options(reloptions: Datum, validate: bool) -> *mut pg_sys::bytea {
    // SAFETY: btree's options, so that statements written for btree work.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| raw::btoptions(reloptions, validate)) }
}

unsafe extern "C-unwind" fn validate(_opclass: pg_sys::Oid) -> bool {
    true
}
