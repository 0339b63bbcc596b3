//! Databases that are dropped, or moved to another tablespace: the background worker leaves them first, and what is in memory of
//! their files is forgotten when the files are gone. A moved database may come back to where it was, and would find there
//! what its tables were when it left.

use crate::host::process_local::ProcessLocal;
use crate::host::registry;
use crate::pg::{catalog, worker};
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::{c_char, CStr};

/// Files of a database: all, or those in one tablespace.
type Files = (u32, Option<u32>);

/// Whose files the statement takes away.
static LEAVING: ProcessLocal<Cell<Option<Files>>> = ProcessLocal::new(Cell::new(None));

/// # Safety
/// `statement` is a DropdbStmt.
pub unsafe fn before_drop(statement: *const pg_sys::DropdbStmt) {
    // SAFETY: by the contract.
    unsafe {
        let name = (*statement).dbname;
        worker::leave_database(name);
        LEAVING.set(files_of(name).map(|(database, _)| (database, None)));
    }
}

/// # Safety
/// `statement` is an AlterDatabaseStmt.
pub unsafe fn before_alter(statement: *const pg_sys::AlterDatabaseStmt) {
    // SAFETY: by the contract; options have names.
    unsafe {
        let options = catalog::nodes::<pg_sys::DefElem>((*statement).options);
        if !options.iter().any(|option| CStr::from_ptr((**option).defname) == c"tablespace") {
            LEAVING.set(None);
            return;
        }
        let name = (*statement).dbname;
        worker::leave_database(name);
        LEAVING.set(files_of(name));
    }
}

/// The statement has done it.
pub fn after() {
    if let Some((database, tablespace)) = LEAVING.take() {
        registry::forget_database(database, tablespace);
    }
}

/// A database and its tablespace.
///
/// # Safety
/// `name` is a C string.
unsafe fn files_of(name: *const c_char) -> Option<Files> {
    // SAFETY: guarded look-ups in a transaction; the form is read before the tuple is released.
    unsafe {
        let database = pg_sys::get_database_oid(name, true);
        let cache = pg_sys::SysCacheIdentifier::DATABASEOID as i32;
        let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(database));
        if tuple.is_null() {
            return None;
        }
        let form: *const pg_sys::FormData_pg_database = pg_sys::GETSTRUCT(tuple).cast();
        let tablespace = (*form).dattablespace.to_u32();
        pg_sys::ReleaseSysCache(tuple);
        Some((database.to_u32(), Some(tablespace)))
    }
}
