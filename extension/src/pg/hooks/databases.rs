//! Databases that are dropped, or moved to another tablespace: the background worker leaves them first, and what is in memory of
//! their files is forgotten while nobody can come in. A moved database may come back to where it was, and would find there
//! what its tables were when it left.
//!
//! Which database it is tells the object access hook, when PostgreSQL has locked it: before that, a name may be another's. Who
//! drops a database tells standbys, too, for the next one may have its oid, and tables of the same template.

use crate::host::process_local::ProcessLocal;
use crate::host::registry;
use crate::pg::{catalog, rmgr, worker};
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::CStr;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Statement {
    Other,
    Drop,
    Move,
    /// A drop has begun, of this database.
    Dropping(pg_sys::Oid),
}

/// What the statement does to a database. Both cannot be part of a transaction block: the end of a transaction ends them.
static STATEMENT: ProcessLocal<Cell<Statement>> = ProcessLocal::new(Cell::new(Statement::Other));

/// # Safety
/// `statement` is a DropdbStmt.
pub unsafe fn before_drop(statement: *const pg_sys::DropdbStmt) {
    // SAFETY: by the contract.
    unsafe { worker::leave_database((*statement).dbname) };
    STATEMENT.set(Statement::Drop);
}

/// # Safety
/// `statement` is an AlterDatabaseStmt.
pub unsafe fn before_alter(statement: *const pg_sys::AlterDatabaseStmt) {
    // SAFETY: by the contract; options have names.
    unsafe {
        let mut options = catalog::nodes::<pg_sys::DefElem>((*statement).options);
        if options.any(|option| CStr::from_ptr((*option).defname) == c"tablespace") {
            worker::leave_database((*statement).dbname);
            STATEMENT.set(Statement::Move);
        }
    }
}

/// A database, locked, is about to be dropped, if nobody is in it.
pub fn dropping(database: pg_sys::Oid) {
    if STATEMENT.get() == Statement::Drop {
        STATEMENT.set(Statement::Dropping(database));
    }
}

/// A database has been changed: if it was moved, it is locked, nobody is in it, and its files have been copied.
pub fn altered(database: pg_sys::Oid) {
    if STATEMENT.get() == Statement::Move {
        registry::forget_database(database);
    }
}

/// The statement has done it. What was dropped is locked to the end of the transaction, which is still to come.
pub fn after() {
    if let Statement::Dropping(database) = STATEMENT.replace(Statement::Other) {
        registry::forget_database(database);
        rmgr::log_dropped_database(database);
    }
}

/// The transaction is over.
pub fn forget() {
    STATEMENT.set(Statement::Other);
}
