//! A btree primary key being created on a table of ours becomes an index of ours: its `relam` in pg_class is overwritten in
//! place, before anybody has opened it. pg_index keeps btree's operator classes. (One that comes with its table from heap:
//! [`access_method`].)
//!
//! When a key is dropped, what its rows look like is noted, and after the statement (when a session exits, before it commits that) the
//! table is rewritten without one: the catalog would no longer tell how to read it.

use super::{access_method, databases, utility};
use crate::codec::key::{self, KeyCodec};
use crate::host::process_local::{ProcessLocal, WithBorrow};
use crate::pg::{catalog, error, index_am};
use crate::table::info;
use crate::table::rekey::{self, Rekeyed};
use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, Oid};
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;

static mut PREVIOUS: pg_sys::object_access_hook_type = None;

/// Tables that have lost their key in this transaction and were not rewritten yet, and the depth of the statement.
static KEYLESS: ProcessLocal<RefCell<Vec<(Oid, usize)>>> = ProcessLocal::new(RefCell::new(Vec::new()));

/// The transaction is being committed: tables that are dropped ON COMMIT go after that.
static COMMITS: ProcessLocal<Cell<bool>> = ProcessLocal::new(Cell::new(false));

pub fn install() {
    // SAFETY: the postmaster is one thread.
    unsafe {
        PREVIOUS = pg_sys::object_access_hook;
        pg_sys::object_access_hook = Some(hook);
    }
}

unsafe extern "C-unwind" fn hook(
    access: pg_sys::ObjectAccessType::Type,
    class: Oid,
    object: Oid,
    part: i32,
    arg: *mut c_void,
) {
    // SAFETY: nothing to drop here; see the module of hooks.
    unsafe {
        if let Some(previous) = PREVIOUS {
            previous(access, class, object, part, arg);
        }
        if class.to_u32() == pg_sys::RelationRelationId.to_u32() && part == 0 {
            if access == pg_sys::ObjectAccessType::OAT_POST_CREATE {
                created(object);
            } else if access == pg_sys::ObjectAccessType::OAT_DROP {
                dropped(object);
            } else if access == pg_sys::ObjectAccessType::OAT_POST_ALTER {
                access_method::altered(object);
            }
        } else if class.to_u32() == pg_sys::DatabaseRelationId.to_u32() && part == 0 {
            database(access, object);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn created(relid: Oid) {
    // SAFETY: catalog look-ups; the table is locked by whoever creates its index.
    unsafe {
        if is_by_name_a_copy(relid) {
            return;
        }
        let Some((table, immediate)) = table_of_key(relid) else { return };
        let rel = pg_sys::relation_open(table, pg_sys::NoLock as i32);
        let ours = catalog::is_our_table(rel);
        if ours && info::noted_format(catalog::file_of(rel)).is_none() {
            // The catalog will name the key before the rows are written under it: a rewrite that the same ALTER TABLE
            // makes comes first.
            info::note_format(table, catalog::file_of(rel), KeyCodec::row_id());
        }
        pg_sys::relation_close(rel, pg_sys::NoLock as i32);
        if !ours {
            return;
        }
        if !immediate {
            key::deferrable().report();
        }
        overwrite_relam(relid, catalog::required_key_am());
    }
}

/// A new table of ours may have the name of the copy that a rewrite makes, and be none: then it has no key yet. (When its file is made
/// nothing but the name tells.)
unsafe fn is_by_name_a_copy(relid: Oid) -> bool {
    // SAFETY: the relation is open while it is created.
    unsafe {
        let rel = pg_sys::RelationIdGetRelation(relid);
        let named = !rel.is_null() && catalog::is_our_table(rel) && catalog::rewritten(rel).is_some();
        if named && (*(*rel).rd_rel).relrewrite == Oid::INVALID {
            info::note_format(relid, catalog::file_of(rel), KeyCodec::row_id());
        }
        if !rel.is_null() {
            pg_sys::RelationClose(rel);
        }
        named
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn database(access: pg_sys::ObjectAccessType::Type, database: Oid) {
    match access {
        pg_sys::ObjectAccessType::OAT_DROP => databases::dropping(database),
        pg_sys::ObjectAccessType::OAT_POST_ALTER => databases::altered(database),
        _ => {}
    }
}

/// The table of which this new relation is the primary key, and whether it is checked at once.
unsafe fn table_of_key(index: Oid) -> Option<(Oid, bool)> {
    // SAFETY: the row is newer than the catalog snapshot, hence SnapshotSelf.
    unsafe {
        let catalog = pg_sys::table_open(pg_sys::IndexRelationId, pg_sys::AccessShareLock as i32);
        let mut key = oid_key(pg_sys::Anum_pg_index_indexrelid, index);
        let own = &raw mut pg_sys::SnapshotSelfData;
        let scan = pg_sys::systable_beginscan(catalog, Oid::from(pg_sys::IndexRelidIndexId), true, own, 1, &mut key);
        let tuple = pg_sys::systable_getnext(scan);
        let found = if tuple.is_null() {
            None
        } else {
            let form = catalog::get_struct::<pg_sys::FormData_pg_index>(tuple);
            (*form).indisprimary.then(|| ((*form).indrelid, (*form).indimmediate))
        };
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(catalog, pg_sys::AccessShareLock as i32);
        found
    }
}

unsafe fn overwrite_relam(index: Oid, am: Oid) {
    // SAFETY: the row was inserted by this command; nobody else has seen it.
    unsafe { change_method(index, am, |catalog, row| pg_sys::heap_inplace_update(catalog, row)) }
}

/// Gives an index another access method; `put` writes its row to pg_class.
pub(super) unsafe fn change_method(index: Oid, method: Oid, put: impl FnOnce(pg_sys::Relation, pg_sys::HeapTuple)) {
    // SAFETY: the index exists, and nobody else can see it.
    unsafe {
        let catalog = pg_sys::table_open(pg_sys::RelationRelationId, pg_sys::RowExclusiveLock as i32);
        let row = own_class_row(catalog, index);
        (*catalog::get_struct::<pg_sys::FormData_pg_class>(row)).relam = method;
        put(catalog, row);
        pg_sys::heap_freetuple(row);
        pg_sys::table_close(catalog, pg_sys::RowExclusiveLock as i32);
    }
}

/// A copy of the relation's row in pg_class, as this command has left it.
///
/// # Safety
/// `catalog` is pg_class, open.
pub(super) unsafe fn own_class_row(catalog: pg_sys::Relation, relid: Oid) -> pg_sys::HeapTuple {
    // SAFETY: by the contract.
    unsafe {
        let mut key = oid_key(pg_sys::Anum_pg_class_oid, relid);
        let own = &raw mut pg_sys::SnapshotSelfData;
        let scan = pg_sys::systable_beginscan(catalog, Oid::from(pg_sys::ClassOidIndexId), true, own, 1, &mut key);
        let row = pg_sys::systable_getnext(scan);
        if row.is_null() {
            error::raise(PgSqlErrorCode::ERRCODE_INTERNAL_ERROR, format!("relation {relid} is not in pg_class"), None);
        }
        let copy = pg_sys::heap_copytuple(row);
        pg_sys::systable_endscan(scan);
        copy
    }
}

unsafe fn oid_key(attribute: u32, value: Oid) -> pg_sys::ScanKeyData {
    let mut key = pg_sys::ScanKeyData::default();
    let (attribute, equal) = (attribute as i16, pg_sys::BTEqualStrategyNumber as u16);
    // SAFETY: fills the key.
    unsafe { pg_sys::ScanKeyInit(&mut key, attribute, equal, pg_sys::Oid::from(pg_sys::F_OIDEQ), Datum::from(value)) };
    key
}

#[pg_guard]
unsafe extern "C-unwind" fn dropped(relid: Oid) {
    // SAFETY: catalog look-ups; the index and its table are locked by whoever drops them.
    unsafe {
        let am = catalog::key_am();
        if am == Oid::INVALID || catalog::access_method_of(relid) != am {
            return;
        }
        let table = pg_sys::IndexGetRelation(relid, true);
        if table == Oid::INVALID {
            return;
        }
        let rel = pg_sys::try_relation_open(table, pg_sys::NoLock as i32);
        if rel.is_null() {
            return;
        }
        if catalog::is_our_table(rel) && catalog::key_index_of(rel) == Some(relid) {
            // Nobody is called after this. (The tables that go themselves are temporary.)
            if COMMITS.get() && (*(*rel).rd_rel).relpersistence as u8 != pg_sys::RELPERSISTENCE_TEMP {
                let name = error::relation_name(rel);
                error::unsupported(
                    format!("cannot drop the primary key of loosekv table \"{name}\" at commit"),
                    "It depends on a temporary table that is dropped ON COMMIT. Drop that table before.",
                );
            }
            let format = info::of(rel).codec.key.clone();
            info::note_format(table, catalog::file_of(rel), format);
            KEYLESS.with_borrow_mut(|tables| tables.push((table, utility::depth())));
        }
        pg_sys::relation_close(rel, pg_sys::NoLock as i32);
    }
}

/// A key was built: the table is not without one.
pub fn key_built(table: Oid) {
    KEYLESS.with_borrow_mut(|tables| tables.retain(|(keyless, _)| *keyless != table));
}

/// Rewrites the tables that are without a key now. After the statement that dropped it.
pub fn rewrite_keyless() {
    for table in KEYLESS.with_borrow_mut(utility::due) {
        // SAFETY: the table, if it is still there, is locked exclusively by this transaction.
        unsafe {
            pg_sys::CommandCounterIncrement();
            let rel = pg_sys::try_relation_open(table, pg_sys::NoLock as i32);
            if rel.is_null() {
                continue;
            }
            if catalog::is_our_table(rel) && catalog::key_index_of(rel).is_none() {
                let current = info::of(rel).codec.key.clone();
                if !current.is_row_id() {
                    index_am::require_no_copies(rel, Oid::INVALID);
                    let rekeyed = error::or_report(rel, rekey::rekey(rel, current, KeyCodec::row_id()));
                    debug_assert!(matches!(rekeyed, Rekeyed::Done { .. }));
                    index_am::rebuild_others(rel, Oid::INVALID);
                }
            }
            pg_sys::relation_close(rel, pg_sys::NoLock as i32);
        }
    }
}

/// The transaction is about to commit. True: tables have lost their key outside of any statement.
pub fn commits() -> bool {
    COMMITS.set(true);
    KEYLESS.with_borrow(|tables| !tables.is_empty())
}

/// What a session leaves behind goes when it exits, and with a temporary domain the key columns of that type: no statement ends then.
#[pg_guard]
pub unsafe extern "C-unwind" fn rewrite_before_commit() {
    // SAFETY: the transaction still runs; indexes that are built again may have expressions, which need a snapshot.
    unsafe {
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        rewrite_keyless();
        pg_sys::PopActiveSnapshot();
    }
}

/// The transaction is over.
pub fn forget() {
    COMMITS.set(false);
    KEYLESS.with_borrow_mut(Vec::clear);
}
