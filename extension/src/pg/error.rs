//! Errors as PostgreSQL reports them.

use super::bindings_am::raw;
use super::sight;
use crate::host::caught;
use loosekv_engine::error::{Consumer, Error, Result};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode};
use std::ffi::{c_char, CStr};

/// What helps where the disk is full.
pub const NO_SPACE: &str =
    "Check free disk space, or delete rows: that is possible, and VACUUM then finds room for others.";

/// Raises an error.
pub fn raise(code: PgSqlErrorCode, message: impl Into<String>, hint: Option<&str>) -> ! {
    let mut report = ErrorReport::new(code, message.into(), "loosekv");
    if let Some(hint) = hint {
        report = report.set_hint(hint);
    }
    report.report(PgLogLevel::ERROR);
    unreachable!("an error was reported and control came back")
}

/// Raises FEATURE_NOT_SUPPORTED with a hint what to do instead.
pub fn unsupported(message: impl Into<String>, hint: &str) -> ! {
    raise(PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED, message, Some(hint))
}

pub fn relation_name(rel: pg_sys::Relation) -> String {
    // SAFETY: the relation is open; names are NUL-terminated.
    unsafe { CStr::from_ptr((*(*rel).rd_rel).relname.data.as_ptr()) }.to_string_lossy().into_owned()
}

/// The value, or an error that names the table.
pub fn or_report<T>(rel: pg_sys::Relation, result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => report(rel, &caught::rethrow(error)),
    }
}

fn report(rel: pg_sys::Relation, error: &Error) -> ! {
    let (code, hint) = match error {
        Error::Corrupt { .. } => (PgSqlErrorCode::ERRCODE_DATA_CORRUPTED, None),
        Error::Format { .. } => (
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
            Some("The table was written by another version of the loosekv library."),
        ),
        Error::MemoryFull { consumer: Consumer::Tables, .. } => (
            PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
            Some("Use fewer tables or partitions in one statement, or raise loosekv.shared_memory and restart the server."),
        ),
        Error::MemoryFull { .. } => (
            PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
            Some(
                "Flush the table with loosekv.flush(), use fewer tables or partitions in one statement, or raise \
                 loosekv.shared_memory and restart the server.",
            ),
        ),
        Error::NoSpace(_) => (PgSqlErrorCode::ERRCODE_DISK_FULL, Some(NO_SPACE)),
        Error::Invalid(_) => (PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED, None),
        Error::Unavailable(_) => (PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, None),
        Error::Io { .. } => (PgSqlErrorCode::ERRCODE_IO_ERROR, None),
    };
    raise(code, message(rel, error), hint)
}

/// What went wrong with the table.
pub fn message(rel: pg_sys::Relation, error: &Error) -> String {
    format!("table \"{}\": {}", relation_name(rel), sight::of_message(rel, error.to_string()))
}

/// A duplicate key, in memory of the current context, ready to be raised.
#[repr(C)]
pub struct Duplicate {
    rel: pg_sys::Relation,
    index: pg_sys::Relation,
    /// "(k)=(1)"; null if the user may not see it.
    key: *mut c_char,
    /// It was found when the index was made.
    made: bool,
}

/// Describes the duplicate: the key columns of `index` have these values.
///
/// # Safety
/// `rel` is open and `index_oid` its key; `values` and `nulls` have an element for every column of the index.
pub unsafe fn duplicate(
    rel: pg_sys::Relation,
    index_oid: pg_sys::Oid,
    values: *mut pg_sys::Datum,
    nulls: *mut bool,
) -> *mut Duplicate {
    // SAFETY: by the contract; errors unwind. The index is closed when the error is cleaned up.
    unsafe {
        let index = pg_sys::index_open(index_oid, pg_sys::AccessShareLock as i32);
        let key = pg_sys::BuildIndexValueDescription(index, values, nulls);
        let duplicate = pg_sys::palloc(size_of::<Duplicate>()).cast::<Duplicate>();
        duplicate.write(Duplicate { rel, index, key, made: false });
        duplicate
    }
}

/// Describes a duplicate in a copy of this table, which gets such a key as the table has.
///
/// # Safety
/// Both exist and are locked.
pub unsafe fn duplicate_in_copy(table: pg_sys::Oid, index: pg_sys::Oid, key: &str) -> *mut Duplicate {
    // SAFETY: by the contract; errors unwind. What is opened is closed when the error is cleaned up.
    unsafe {
        let rel = pg_sys::relation_open(table, pg_sys::NoLock as i32);
        let index = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
        let key = pg_sys::pnstrdup(key.as_ptr().cast(), key.len());
        let duplicate = pg_sys::palloc(size_of::<Duplicate>()).cast::<Duplicate>();
        duplicate.write(Duplicate { rel, index, key, made: true });
        duplicate
    }
}

/// Raises the error that btree raises, with its names of table and constraint. pgrx's own reports have no room for those, so
/// this jumps, and must be called outside of any guard, from frames without destructors.
///
/// # Safety
/// `duplicate` came from [`duplicate`]; no frame between here and PostgreSQL has anything to drop.
pub unsafe fn raise_duplicate(duplicate: *const Duplicate) -> ! {
    // SAFETY: by the contract; errfinish does not return.
    unsafe {
        let Duplicate { rel, index, key, made } = duplicate.read();
        let (message, detail) = match made {
            true => (c"could not create unique index \"%s\"", c"Key %s is duplicated."),
            false => (c"duplicate key value violates unique constraint \"%s\"", c"Key %s already exists."),
        };
        let constraint = (*(*index).rd_rel).relname.data.as_ptr();
        raw::errstart(PgLogLevel::ERROR as i32, std::ptr::null());
        raw::errcode(PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION as i32);
        raw::errmsg_internal(message.as_ptr(), constraint);
        if !key.is_null() {
            raw::errdetail_internal(detail.as_ptr(), key);
        }
        raw::errtableconstraint(rel, constraint);
        raw::errfinish(c"loosekv".as_ptr(), 0, c"insert".as_ptr());
        std::hint::unreachable_unchecked()
    }
}
