//! Small things about slots: what C does with macros and inline functions.

use crate::table::{mvcc, tid, unread, Open};
use loosekv_engine::run::Spot;
use loosekv_engine::types::{Head, RowBuf, RowRef};
use pgrx::pg_sys;
use pgrx::pg_sys::TupleTableSlot;

/// # Safety
/// `slot` is a slot.
pub unsafe fn clear(slot: *mut TupleTableSlot) {
    // SAFETY: every kind of slot has this operation.
    unsafe {
        if let Some(clear) = (*(*slot).tts_ops).clear {
            clear(slot);
        }
    }
}

/// Puts a row version into a slot for this table.
///
/// # Safety
/// `slot` is a slot for the table's rows.
pub unsafe fn store(slot: *mut TupleTableSlot, open: &Open, row: RowRef<'_>) {
    // SAFETY: by the contract.
    unsafe { super::slot::store(slot, open.relid(), &open.info.codec, row) }
}

/// Reads the row of which the slot has the key alone.
///
/// # Safety
/// `slot` holds a row of a table in use, which a statement has left unread.
pub unsafe fn read_unread(slot: *mut TupleTableSlot) {
    // SAFETY: by the contract.
    unsafe {
        let rel = pg_sys::table_open((*slot).tts_tableOid, pg_sys::NoLock as i32);
        let open = Open::new(rel);
        let mut row = RowBuf::default();
        let found = tid::to_unread(&(*slot).tts_tid).is_some_and(|id| open.ok(unread::read(&open, id, &mut row)));
        if !found {
            pgrx::error!("a row of table \"{}\" is not there any more", open.name());
        }
        super::slot::complete(slot, open.relid(), &open.info.codec, row.as_ref());
        drop(open);
        pg_sys::table_close(rel, pg_sys::NoLock as i32);
    }
}

/// The head of the row version that a slot with given values names by its TID, as those have it that an index returns in another
/// order than it finds them in.
///
/// # Safety
/// `slot` is a slot; if it has the oid of a table, that is in use.
pub unsafe fn head_of(slot: *mut TupleTableSlot) -> Option<Head> {
    // SAFETY: by the contract.
    unsafe {
        if (*slot).tts_tableOid == pg_sys::InvalidOid || mvcc::row_id_of_tid(&(*slot).tts_tid).is_none() {
            return None;
        }
        let rel = pg_sys::table_open((*slot).tts_tableOid, pg_sys::NoLock as i32);
        let mut row = RowBuf::default();
        let mut found = false;
        if super::catalog::is_our_table(rel) {
            let open = Open::new(rel);
            found = open.ok(mvcc::row_of_tid(&open, &(*slot).tts_tid, &mut row));
        }
        pg_sys::table_close(rel, pg_sys::NoLock as i32);
        found.then_some(row.head)
    }
}

/// Whether [`lend`] may be used: the slot has held rows of the table before.
///
/// # Safety
/// `slot` is a slot.
#[inline]
pub unsafe fn may_be_lent(slot: *mut TupleTableSlot, open: &Open) -> bool {
    // SAFETY: by the contract.
    unsafe { super::slot::may_be_lent(slot, &open.info.codec) }
}

/// As [`store`], but the row is left where it stands until it is needed.
///
/// # Safety
/// [`may_be_lent`]; and the row stays where it is until the slot is cleared or gets another row, or is not asked any more.
#[inline]
pub unsafe fn lend(slot: *mut TupleTableSlot, open: &Open, spot: Spot<'_>) {
    // SAFETY: by the contract.
    unsafe { super::slot::lend(slot, open.relid(), spot) }
}

/// The row in the slot has been written as this version.
///
/// # Safety
/// `slot` holds the row.
pub unsafe fn written(slot: *mut TupleTableSlot, open: &Open, head: &Head) {
    // SAFETY: by the contract.
    unsafe { super::slot::mark_written(slot, open.relid(), head) }
}
