//! A table that gets another access method takes its primary key along: it becomes an index of ours where the table becomes one of ours,
//! and a btree again where the table leaves. So neither is rewritten twice, and foreign keys may point to it meanwhile.
//!
//! ALTER TABLE ... SET ACCESS METHOD makes a copy of the table, whose rows are written under that key at once
//! ([`catalog::key_of_rewritten`]). When the copy's file has become the table's, PostgreSQL calls the object access hook; and builds all
//! indexes of the table after that. This change of pg_class is an ordinary one, which is undone with the transaction.

use super::object_access::{change_method, own_class_row};
use crate::pg::{catalog, table_am};
use pgrx::pg_sys;
use pgrx::pg_sys::{Oid, Relation, SysCacheIdentifier};
use pgrx::prelude::*;

/// This command has altered a relation.
#[pg_guard]
pub unsafe extern "C-unwind" fn altered(relid: Oid) {
    // SAFETY: the relation is locked by whoever alters it.
    unsafe {
        if pg_sys::get_rel_relkind(relid) as u8 != pg_sys::RELKIND_RELATION {
            return;
        }
        // The caches have the row as it was before this command.
        let before = catalog::access_method_of(relid);
        let after = own_method(relid);
        if after == before {
            return;
        }
        let rel = pg_sys::relation_open(relid, pg_sys::NoLock as i32);
        match (catalog::is_our_table(rel), is_ours(after)) {
            (false, true) => {
                let am = catalog::required_key_am();
                catalog::primary_key_of(rel).into_iter().for_each(|key| set_method(key, am));
            }
            (true, false) => {
                // The key, and copies of it that REINDEX CONCURRENTLY has left.
                let (indexes, am) = (pg_sys::RelationGetIndexList(rel), catalog::key_am());
                let ours = catalog::oids(indexes).filter(|index| catalog::access_method_of(*index) == am);
                ours.for_each(|index| set_method(index, pg_sys::BTREE_AM_OID));
                pg_sys::list_free(indexes);
            }
            _ => {}
        }
        pg_sys::relation_close(rel, pg_sys::NoLock as i32);
    }
}

/// The access method that this command has given to the relation.
unsafe fn own_method(relid: Oid) -> Oid {
    // SAFETY: a look into the catalog.
    unsafe {
        let classes = pg_sys::table_open(pg_sys::RelationRelationId, pg_sys::AccessShareLock as i32);
        let row = own_class_row(classes, relid);
        let method = (*catalog::get_struct::<pg_sys::FormData_pg_class>(row)).relam;
        pg_sys::heap_freetuple(row);
        pg_sys::table_close(classes, pg_sys::AccessShareLock as i32);
        method
    }
}

/// Whether tables of this access method are ours, whatever its name is.
///
/// # Safety
/// It is a method for tables, or none.
unsafe fn is_ours(method: Oid) -> bool {
    // SAFETY: a syscache look-up; the tuple is released.
    unsafe {
        let row = pg_sys::SearchSysCache1(SysCacheIdentifier::AMOID as i32, pg_sys::Datum::from(method));
        if row.is_null() {
            return false;
        }
        let handler = (*catalog::get_struct::<pg_sys::FormData_pg_am>(row)).amhandler;
        pg_sys::ReleaseSysCache(row);
        std::ptr::eq(pg_sys::GetTableAmRoutine(handler), table_am::routine())
    }
}

unsafe fn set_method(index: Oid, method: Oid) {
    // SAFETY: the index exists, and nobody else can see it: its table is locked exclusively.
    unsafe {
        change_method(index, method, |catalog, row| pg_sys::CatalogTupleUpdate(catalog, &raw mut (*row).t_self, row));
        let rel = pg_sys::index_open(index, pg_sys::NoLock as i32);
        make_forgettable(rel);
        pg_sys::index_close(rel, pg_sys::NoLock as i32);
    }
}

/// What PostgreSQL remembers of an index whose file was made by this transaction it does not forget when the catalog changes, but
/// corrects in part, so that the functions of its access method stay. It gets another file in a moment, which PostgreSQL will
/// know to be of this transaction. (Who goes back to a savepoint then has the file from before it, which is not known to be so: with
/// `wal_level = minimal` further changes to that are logged, although it will be synced.)
unsafe fn make_forgettable(index: Relation) {
    const NONE: pg_sys::SubTransactionId = 0;
    // SAFETY: the index is open.
    unsafe {
        (*index).rd_createSubid = NONE;
        (*index).rd_newRelfilenodeSubid = NONE;
        (*index).rd_firstRelfilenodeSubid = NONE;
    }
}
