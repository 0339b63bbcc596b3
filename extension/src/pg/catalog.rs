//! Questions to the catalog.

use super::error;
use crate::codec::key::KeyCodec;
use crate::host::process_local::ProcessLocal;
use pgrx::pg_sys;
use pgrx::pg_sys::{Oid, Relation};
use pgrx::PgSqlErrorCode;
use std::cell::Cell;

/// Name of the index access method that serves the primary keys of our tables.
pub const KEY_AM: &std::ffi::CStr = c"loosekv_key";

/// An index as far as rows are concerned.
pub struct IndexFacts {
    pub oid: Oid,
    /// It is the primary key, and ours.
    pub is_key: bool,
    /// Unique, or an exclusion constraint.
    pub is_unique: bool,
    /// A foreign key may point to its columns: unique, of columns alone, and of all rows.
    pub is_referable: bool,
    pub attributes: Vec<i16>,
}

/// Number of a relation's file.
///
/// # Safety
/// `rel` is open.
pub unsafe fn file_of(rel: Relation) -> u32 {
    // SAFETY: by the contract.
    u32::from(unsafe { (*rel).rd_node.relNode })
}

/// Whether the table is one of ours.
///
/// # Safety
/// `rel` is open.
pub unsafe fn is_our_table(rel: Relation) -> bool {
    // SAFETY: by the contract.
    unsafe { std::ptr::eq((*rel).rd_tableam, super::table_am::routine()) }
}

/// Whether the index is served by our access method (its `relam` may be masked).
///
/// # Safety
/// `index` is open.
pub unsafe fn is_our_index(index: Relation) -> bool {
    // SAFETY: by the contract; the routine of an open index is loaded.
    unsafe {
        let routine = (*index).rd_indam;
        !routine.is_null()
            && (*routine).ambuild.is_some_and(|f| f as usize == super::index_am::build as *const () as usize)
    }
}

/// The indexes of an open table that take part in writes.
pub fn indexes_of(rel: Relation) -> Vec<IndexFacts> {
    let mut facts = Vec::new();
    // SAFETY: the table is open and locked, so its indexes do not go away; errors unwind.
    unsafe {
        let list = pg_sys::RelationGetIndexList(rel);
        // Opening an index takes in invalidations, which empty this field until the list is asked for again.
        let key = (*rel).rd_pkindex;
        for oid in oids(list) {
            let index = pg_sys::index_open(oid, pg_sys::AccessShareLock as i32);
            let form = (*index).rd_index;
            let natts = usize::try_from((*form).indnkeyatts).unwrap_or(0);
            facts.push(IndexFacts {
                oid,
                is_key: oid == key && is_our_index(index),
                is_unique: (*form).indisunique || (*form).indisexclusion,
                is_referable: (*form).indisunique && is_of_columns(index),
                attributes: (*form).indkey.values.as_slice(natts).to_vec(),
            });
            pg_sys::index_close(index, pg_sys::AccessShareLock as i32);
        }
        pg_sys::list_free(list);
    }
    facts
}

/// Whether an index has neither expressions nor a condition.
///
/// # Safety
/// `index` is open.
unsafe fn is_of_columns(index: Relation) -> bool {
    let columns = [pg_sys::Anum_pg_index_indexprs, pg_sys::Anum_pg_index_indpred];
    // SAFETY: by the contract; the tuple of an open index is loaded.
    let is_null = |attno| unsafe { pg_sys::heap_attisnull((*index).rd_indextuple, attno as i32, std::ptr::null_mut()) };
    columns.into_iter().all(is_null)
}

/// The key that an index of ours gives to its table.
pub fn key_codec(index: Oid) -> KeyCodec {
    // SAFETY: the index exists: its table is open and names it.
    unsafe {
        let rel = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
        let codec = KeyCodec::for_index(rel);
        pg_sys::index_close(rel, pg_sys::AccessShareLock as i32);
        codec.unwrap_or_else(|unsupported| unsupported.report())
    }
}

/// The cells of a list.
///
/// # Safety
/// `list` is null or a valid list, and not changed while they are used.
unsafe fn cells<'a>(list: *const pg_sys::List) -> &'a [pg_sys::ListCell] {
    if list.is_null() {
        return &[];
    }
    // SAFETY: a list has `length` cells.
    unsafe { std::slice::from_raw_parts((*list).elements, (*list).length as usize) }
}

/// The members of a list of oids.
///
/// # Safety
/// `list` is null or a valid list of oids, and not changed while they are used.
pub unsafe fn oids<'a>(list: *const pg_sys::List) -> impl Iterator<Item = Oid> + 'a {
    // SAFETY: by the contract; the cells hold oids.
    unsafe { cells(list).iter().map(|cell| cell.oid_value) }
}

/// The members of a list of nodes.
///
/// # Safety
/// `list` is null or a valid list of pointers to `T`, and not changed while they are used.
pub unsafe fn nodes<'a, T>(list: *const pg_sys::List) -> impl ExactSizeIterator<Item = *mut T> + 'a {
    // SAFETY: by the contract; the cells hold pointers.
    unsafe { cells(list).iter().map(|cell| cell.ptr_value.cast::<T>()) }
}

static KEY_AM_OID: ProcessLocal<Cell<Oid>> = ProcessLocal::new(Cell::new(Oid::INVALID));

/// Our index access method's oid; invalid where the extension is not installed.
pub fn key_am() -> Oid {
    let known = KEY_AM_OID.get();
    if known != Oid::INVALID {
        return known;
    }
    // SAFETY: a catalog lookup; errors unwind.
    let found = unsafe { pg_sys::get_index_am_oid(KEY_AM.as_ptr(), true) };
    KEY_AM_OID.set(found);
    found
}

/// Our index access method's oid, which somebody needs.
pub fn required_key_am() -> Oid {
    let am = key_am();
    if am == Oid::INVALID {
        error::raise(
            PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
            "access method \"loosekv_key\" does not exist",
            Some("Run CREATE EXTENSION loosekv."),
        );
    }
    am
}

/// The extension may have been dropped and created again.
pub fn forget_key_am() {
    KEY_AM_OID.set(Oid::INVALID);
}

/// GETSTRUCT.
///
/// # Safety
/// A tuple of the catalog that `T` stands for.
pub unsafe fn get_struct<T>(tuple: pg_sys::HeapTuple) -> *mut T {
    // SAFETY: a catalog tuple has its fixed part behind its header.
    unsafe { (*tuple).t_data.byte_add(usize::from((*(*tuple).t_data).t_hoff)).cast() }
}

/// The access method of a relation; invalid if there is no such relation.
pub fn access_method_of(relid: Oid) -> Oid {
    let class = cached(pg_sys::SysCacheIdentifier::RELOID, relid, |class: &pg_sys::FormData_pg_class| class.relam);
    class.unwrap_or(Oid::INVALID)
}

/// Whether rows that are written come into this index: not before CREATE INDEX CONCURRENTLY has built it.
pub fn takes_rows(index: Oid) -> bool {
    let of_index = |index: &pg_sys::FormData_pg_index| index.indisready;
    cached(pg_sys::SysCacheIdentifier::INDEXRELID, index, of_index).unwrap_or(false)
}

/// What is read from a catalog's row with this oid, if there is one. `F` is what that cache's rows are.
fn cached<F, T>(cache: pg_sys::SysCacheIdentifier::Type, oid: Oid, read: impl FnOnce(&F) -> T) -> Option<T> {
    // SAFETY: a syscache look-up; the tuple is released.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(cache as i32, pg_sys::Datum::from(oid));
        if tuple.is_null() {
            return None;
        }
        let found = read(&*get_struct::<F>(tuple));
        pg_sys::ReleaseSysCache(tuple);
        Some(found)
    }
}

/// The key of the table of which this relation is the copy that a rewrite makes.
pub fn key_of_rewritten(copy: Relation) -> Option<KeyCodec> {
    rewritten(copy).map(|(_, key)| key_codec(key))
}

/// That table, and the index that is its key, or will be when the table has become one of ours. While the copy is made nothing but its name
/// tells, which a table of a user's may have, too.
pub fn rewritten(copy: Relation) -> Option<(Oid, Oid)> {
    let name = error::relation_name(copy);
    let oid = Oid::from(name.strip_prefix("pg_temp_")?.parse::<u32>().ok()?);
    // SAFETY: the relation is open; a look into the cache.
    unsafe {
        if (*(*copy).rd_rel).relrewrite != oid && access_method_of((*copy).rd_id) != Oid::INVALID {
            return None;
        }
    }
    // SAFETY: looks the original up; it is locked by whoever rewrites it.
    unsafe {
        let original = pg_sys::try_relation_open(oid, pg_sys::NoLock as i32);
        if original.is_null() {
            return None;
        }
        let locked = pg_sys::CheckRelationLockedByMe(original, pg_sys::AccessExclusiveLock as i32, true);
        let key = match is_our_table(original) {
            _ if !locked => None,
            true => key_index_of(original),
            false => primary_key_of(original),
        };
        pg_sys::relation_close(original, pg_sys::NoLock as i32);
        key.map(|key| (oid, key))
    }
}

/// The primary key of a table, whosever it is.
///
/// # Safety
/// `rel` is open.
pub unsafe fn primary_key_of(rel: Relation) -> Option<Oid> {
    // SAFETY: by the contract.
    unsafe {
        if (*(*rel).rd_rel).relkind as u8 != pg_sys::RELKIND_RELATION {
            return None;
        }
        // (The relation's entry does not name one that is deferrable.)
        let list = pg_sys::RelationGetIndexList(rel);
        let key = oids(list).find(|oid| {
            let index = pg_sys::index_open(*oid, pg_sys::AccessShareLock as i32);
            let primary = (*(*index).rd_index).indisprimary;
            pg_sys::index_close(index, pg_sys::AccessShareLock as i32);
            primary
        });
        pg_sys::list_free(list);
        key
    }
}

/// The index of ours that is this table's primary key.
///
/// # Safety
/// `rel` is open.
pub unsafe fn key_index_of(rel: Relation) -> Option<Oid> {
    // SAFETY: by the contract.
    unsafe {
        if (*(*rel).rd_rel).relkind as u8 != pg_sys::RELKIND_RELATION {
            return None;
        }
        pg_sys::list_free(pg_sys::RelationGetIndexList(rel));
        let key = (*rel).rd_pkindex;
        if key == Oid::INVALID {
            return None;
        }
        let index = pg_sys::index_open(key, pg_sys::AccessShareLock as i32);
        let ours = is_our_index(index);
        pg_sys::index_close(index, pg_sys::AccessShareLock as i32);
        ours.then_some(key)
    }
}

/// Whether a table has no index, or one that is its key.
///
/// # Safety
/// The relation is open.
pub unsafe fn has_no_index_but_its_key(rel: Relation) -> bool {
    // SAFETY: the relation is open; its list of indexes stands as long as nothing is looked up in the catalog.
    unsafe {
        if !(*rel).rd_indexvalid {
            pg_sys::list_free(pg_sys::RelationGetIndexList(rel));
        }
        let key = (*rel).rd_pkindex;
        oids((*rel).rd_indexlist).all(|index| index == key)
    }
}
