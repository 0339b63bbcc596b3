//! What a statement may read and write.
//!
//! [`Open`] is a table in use: its relation, its [`Info`] (key and row layout, kept from use to use) and the tree. On it
//! stand [`mvcc`] (which version a snapshot sees), [`write`] (insert, update, delete), [`unread`] (rows replaced unread),
//! [`lock`] (row locks), [`scan`] and [`key_scan`] (reading in key order), [`by_row`] (reading by row id), [`bitmap`] (which row ids a
//! bitmap names), [`sample`] (what ANALYZE reads), [`rewrite`] and [`rekey`] (copies of the table).

pub mod bitmap;
pub mod by_row;
pub mod info;
pub mod key_scan;
pub mod last_look;
pub mod lock;
pub mod mvcc;
pub mod recent;
pub mod rekey;
pub mod rewrite;
pub mod sample;
pub mod scan;
pub mod splits;
pub mod tid;
pub mod unread;
pub mod write;

use crate::codec::KeyError;
use crate::host::process_local::ProcessLocal;
use crate::host::PgHost;
use crate::pg::{batch, catalog, error, xact};
use info::Info;
use loosekv_engine::error::Result;
use loosekv_engine::tree::Tree;
use pgrx::pg_sys;
use std::cell::Cell;
use std::rc::Rc;
use write::Draft;

pub type TableTree = Tree<'static, PgHost>;
pub type TableCursor = loosekv_engine::tree::Cursor<PgHost>;

/// A table in use.
pub struct Open {
    /// Open, and locked as the statement needs it, for as long as this value lives.
    pub rel: pg_sys::Relation,
    pub info: Rc<Info>,
    pub tree: TableTree,
    /// Keeps what the tree refers to; dropped after it.
    _table: crate::host::registry::Table,
}

impl Open {
    /// # Safety
    /// `rel` is an open loosekv table, and stays open while the value lives.
    pub unsafe fn new(rel: pg_sys::Relation) -> Open {
        batch::before_use(rel);
        // SAFETY: by the contract.
        unsafe { Open::with_rows_waiting(rel) }
    }

    /// For the statement that runs, where it comes to one row: rows that it gathers have other keys.
    ///
    /// # Safety
    /// As for [`Open::new`].
    pub unsafe fn at_a_row(rel: pg_sys::Relation) -> Open {
        if !batch::replaces(rel) {
            batch::before_use(rel);
        }
        // SAFETY: by the contract.
        unsafe { Open::with_rows_waiting(rel) }
    }

    /// For who does not mind that rows which the statement has inserted may not be in the tree yet.
    ///
    /// # Safety
    /// As for [`Open::new`].
    pub unsafe fn with_rows_waiting(rel: pg_sys::Relation) -> Open {
        let info = info::of(rel);
        // SAFETY: by the contract.
        unsafe { Open::with(rel, info) }
    }

    /// The same with another idea of the rows' format than the catalog's.
    ///
    /// # Safety
    /// As for [`Open::new`].
    pub unsafe fn with(rel: pg_sys::Relation, info: Rc<Info>) -> Open {
        let table = error::or_report(rel, crate::host::registry::open(rel));
        // SAFETY: the tree borrows from the table, which lies behind a pointer, is kept beside it and dropped after it.
        let tree = unsafe { std::mem::transmute::<Tree<'_, PgHost>, TableTree>(table.tree(rel)) };
        Open { rel, info, tree, _table: table }
    }

    /// The tree once more, for reading much: through a ring of buffers.
    pub fn sweeping_tree(&self) -> Tree<'_, PgHost> {
        self._table.sweeping_tree(self.rel)
    }

    pub fn relid(&self) -> pg_sys::Oid {
        // SAFETY: the relation is open.
        unsafe { (*self.rel).rd_id }
    }

    /// Number of the table's file.
    pub fn file(&self) -> u32 {
        // SAFETY: the relation is open.
        u32::from(unsafe { (*self.rel).rd_node.relNode })
    }

    pub fn name(&self) -> String {
        error::relation_name(self.rel)
    }

    /// Value of a result, or an error that names the table.
    pub fn ok<T>(&self, result: Result<T>) -> T {
        error::or_report(self.rel, result)
    }

    /// Name of a column of the key, counted from 1.
    fn key_column_name(&self, column: usize) -> String {
        let attno = column.checked_sub(1).and_then(|at| self.info.codec.key.columns().get(at)).map(|c| c.attno);
        // SAFETY: the relation is open; a key's columns are attributes of it, and their names end with a NUL.
        unsafe {
            let attributes = (*(*self.rel).rd_att).attrs.as_slice((*(*self.rel).rd_att).natts as usize);
            let attribute = attno.and_then(|attno| attributes.get(attno as usize - 1));
            attribute.map_or_else(String::new, |a| {
                std::ffi::CStr::from_ptr(a.attname.data.as_ptr()).to_string_lossy().into_owned()
            })
        }
    }

    /// The row in the slot as the tree stores it.
    ///
    /// # Safety
    /// `slot` holds a row of this table.
    pub unsafe fn draft(&self, slot: *mut pg_sys::TupleTableSlot, draft: &mut Draft) {
        // SAFETY: by the contract.
        if let Err(e) = unsafe { self.try_draft(slot, draft) } {
            self.report_key(e);
        }
    }

    /// The same, where it is said later that the row's key cannot be.
    ///
    /// # Safety
    /// `slot` holds a row of this table.
    #[inline]
    pub unsafe fn try_draft(
        &self,
        slot: *mut pg_sys::TupleTableSlot,
        draft: &mut Draft,
    ) -> std::result::Result<(), KeyError> {
        draft.key.clear();
        // SAFETY: by the contract; all attributes are fetched before they are read.
        unsafe {
            if self.info.is_keyed() {
                let (values, nulls) = crate::pg::slot::all_attributes(slot);
                self.info.codec.key.encode_row(values, nulls, &mut draft.key)?;
            } else {
                put_unkeyed(&mut draft.key);
            }
            self.draft_body(slot, &mut draft.body);
        }
        Ok(())
    }

    /// Raises what is wrong with a key.
    pub fn report_key(&self, error: KeyError) -> ! {
        // Of a copy that a rewrite makes, the user knows the table.
        let table = catalog::rewritten(self.rel).map(|(table, _)| {
            // SAFETY: it is locked; the error closes it.
            error::relation_name(unsafe { pg_sys::relation_open(table, pg_sys::NoLock as i32) })
        });
        error.report(&table.unwrap_or_else(|| self.name()), |column| self.key_column_name(column))
    }

    /// What the tree stores beside the key for the row in the slot.
    ///
    /// # Safety
    /// `slot` holds a row of this table.
    pub unsafe fn draft_body(&self, slot: *mut pg_sys::TupleTableSlot, body: &mut Vec<u8>) {
        body.clear();
        // SAFETY: by the contract; all attributes are fetched before they are read.
        unsafe {
            let (values, nulls) = crate::pg::slot::all_attributes(slot);
            self.info.codec.layout.encode(values, nulls, body);
        }
    }
}

static UNKEYED: ProcessLocal<Cell<u64>> = ProcessLocal::new(Cell::new(0));

/// The key of a row in a table without a primary key: unique, and in the order of arrival within a transaction. Seven bytes
/// of the writer's id, five of a counter of this process. (The row id itself is not known before the row is appended.)
fn put_unkeyed(key: &mut Vec<u8>) {
    put_unkeyed_number(key, take_unkeyed(1));
}

/// Sets so many numbers of such keys aside; returns the first.
fn take_unkeyed(count: u64) -> u64 {
    let first = UNKEYED.get();
    UNKEYED.set(first + count);
    first
}

/// The key with this number.
fn put_unkeyed_number(key: &mut Vec<u8>, number: u64) {
    let writer = xact::current_writer().0.to_be_bytes();
    key.extend_from_slice(&writer[1..]);
    key.extend_from_slice(&number.to_be_bytes()[3..]);
}
