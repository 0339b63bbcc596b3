//! Keys and rows as bytes.
//!
//! [`key`] turns the key columns of a row into one memcomparable string, [`row`] the other columns into a body, and both
//! back. [`bound`] turns the scan keys of an index scan into ranges of encoded keys. What knows only bytes stands in files
//! of its own ([`bytes`], [`numeric`], [`temporal`], [`network`], [`header`]): they call nothing of PostgreSQL.
//! What can do without a server is tested without one.
//!
//! The key definition under which a table's rows were written is part of the table's format: a body leaves out the columns
//! that its key can give back. [`key::KeyCodec::spec`] is that definition as bytes, to be kept with the table.

pub mod bound;
pub mod bytes;
pub mod collation;
pub mod column;
pub mod convert;
pub mod datum;
pub mod header;
pub mod key;
pub mod network;
pub mod numeric;
pub mod row;
pub mod temporal;

use key::KeyCodec;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode};
use row::RowLayout;

/// How the rows of one table are written: its key and its other columns. Made once per table definition and shared.
pub struct TableCodec {
    pub key: KeyCodec,
    pub layout: RowLayout,
}

impl TableCodec {
    /// `desc` must be the descriptor under which the rows are read or written (during a rewrite: the old one for reading).
    ///
    /// # Safety
    /// `desc` is a valid tuple descriptor.
    pub unsafe fn new(desc: pg_sys::TupleDesc, key: KeyCodec) -> TableCodec {
        // SAFETY: the caller's promise is passed on.
        let layout = unsafe { RowLayout::new(desc, &key) };
        TableCodec { key, layout }
    }
}

/// A key that cannot be stored, and what to do instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    pub what: String,
    pub hint: String,
}

impl Unsupported {
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Unsupported {
        Unsupported { what: what.into(), hint: hint.into() }
    }

    /// Raises FEATURE_NOT_SUPPORTED.
    pub fn report(self) -> ! {
        ErrorReport::new(PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED, self.what, "loosekv")
            .set_hint(self.hint)
            .report(PgLogLevel::ERROR);
        unreachable!("an error report returned")
    }
}

/// Why the key of a row cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    TooLong {
        bytes: usize,
    },
    /// Index column with a null in it, counted from 1.
    Null {
        column: usize,
    },
}

impl KeyError {
    /// Raises the error that the same row would meet in a btree (with our limit).
    pub fn report(self, relation: &str, column_name: impl FnOnce(usize) -> String) -> ! {
        match self {
            KeyError::TooLong { bytes } => ErrorReport::new(
                PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
                format!("key size {bytes} exceeds loosekv maximum {} for table \"{relation}\"", key::MAX_KEY),
                "loosekv",
            )
            .set_hint(
                "Values larger than that cannot be part of the primary key. Consider a key on a hash of the value.",
            )
            .report(PgLogLevel::ERROR),
            KeyError::Null { column } => ErrorReport::new(
                PgSqlErrorCode::ERRCODE_NOT_NULL_VIOLATION,
                format!("column \"{}\" of relation \"{relation}\" contains null values", column_name(column)),
                "loosekv",
            )
            .report(PgLogLevel::ERROR),
        }
        unreachable!("an error report returned")
    }
}
