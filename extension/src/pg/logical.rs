//! Logical decoding: what is written to our tables, as output plugins and subscribers want to be told.
//!
//! ```text
//!  the writer:  a row has been inserted, updated or deleted --> is there a slot for logical decoding?
//!                   --> CHANGE record: the tuples as heap would form them       (beside the row log, for logical decoding alone)
//!  a walsender: CHANGE record --> [`decode`] --> reorder buffer --> at the transaction's commit, the output plugin
//! ```
//!
//! ```text
//! CHANGE:  | tablespace (4) | database (4) | file (4) | kind (4) | length (4) | length (4) | new tuple | old tuple |
//! kind:    0 inserted, 1 updated, 2 deleted; a tuple of length 0 is not there
//! ```
//!
//! A tuple is as heap has it in memory, from its header on, with all its values within it.
//!
//! Rows of the row log cannot be decoded: which bytes of them are which column tells the table's definition of that time, and that is
//! known only when their transaction has been put together. Where there is no slot nothing is logged. That is looked at for each row,
//! once the writer has a transaction id: of a transaction that has got one before the slot was made nothing is decoded, and one
//! that gets it later finds the slot there. (A slot of any database: it may be copied into this one.)
//!
//! Replay does nothing at these records. TRUNCATE logs a record of PostgreSQL's own.

use super::bindings_am::raw;
use super::slot_values::same_value;
use super::{bindings, error, rmgr, slot, slots, xact};
use crate::table::Open;
use loosekv_engine::types::RowBuf;
use pgrx::pg_sys;
use pgrx::pg_sys::ReorderBufferChangeType as Kind;
use pgrx::pg_sys::{Datum, HeapTuple, Relation, TupleDesc, TupleTableSlot};
use pgrx::prelude::*;
use std::ffi::c_int;
use std::mem::{offset_of, size_of};

/// What stands before the tuples of a CHANGE record.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ChangeRecord {
    node: pg_sys::RelFileNode,
    /// 0 inserted, 1 updated, 2 deleted.
    kind: u32,
    /// Bytes of the new row, which stands first, and of the old one, or of what identifies it; 0: it is not there.
    new: u32,
    old: u32,
}

// Changing any of these places is a new format of WAL.
const _: () = {
    assert!(size_of::<ChangeRecord>() == 24 && offset_of!(ChangeRecord, node) == 0);
    assert!(offset_of!(ChangeRecord, kind) == 12 && offset_of!(ChangeRecord, new) == 16);
    assert!(offset_of!(ChangeRecord, old) == 20 && Kind::REORDER_BUFFER_CHANGE_DELETE == 2);
    assert!(Kind::REORDER_BUFFER_CHANGE_INSERT == 0 && Kind::REORDER_BUFFER_CHANGE_UPDATE == 1);
};

/// Bytes of a tuple before its bitmap of nulls (SizeofHeapTupleHeader).
const TUPLE_HEADER: usize = offset_of!(pg_sys::HeapTupleHeaderData, t_bits);
/// SNAPBUILD_FULL_SNAPSHOT: from here on transactions are decoded that begin.
const FULL_SNAPSHOT: c_int = 1;

/// PostgreSQL's XLogRecordBuffer.
#[repr(C)]
struct RecordBuffer {
    start: pg_sys::XLogRecPtr,
    end: pg_sys::XLogRecPtr,
    reader: *mut pg_sys::XLogReaderState,
}

extern "C-unwind" {
    fn toast_flatten_tuple(tuple: HeapTuple, desc: TupleDesc) -> HeapTuple;
    fn SnapBuildCurrentState(builder: *mut pg_sys::SnapBuild) -> c_int;
    fn SnapBuildProcessChange(
        builder: *mut pg_sys::SnapBuild,
        xid: pg_sys::TransactionId,
        lsn: pg_sys::XLogRecPtr,
    ) -> bool;
    fn filter_by_origin_cb_wrapper(context: *mut pg_sys::LogicalDecodingContext, origin: pg_sys::RepOriginId) -> bool;
}

/// Whether changes of the table are to be told that are about to be made, or have just been. Who asks has a transaction id from then on.
#[inline]
pub fn is_wanted(rel: Relation) -> bool {
    // SAFETY: a number of the server's.
    let logical = unsafe { pg_sys::wal_level >= pg_sys::WalLevel::WAL_LEVEL_LOGICAL as c_int };
    logical && is_decoded(rel)
}

/// The same of a row that is inserted with these options.
#[inline]
pub fn wants_inserted(rel: Relation, options: i32) -> bool {
    is_wanted(rel) && options & pg_sys::TABLE_INSERT_NO_LOGICAL as i32 == 0
}

#[cold]
fn is_decoded(rel: Relation) -> bool {
    // First: a slot that is made after this look waits for the transaction, and decodes nothing of it.
    xact::current_writer();
    // SAFETY: the relation is open; the slots stand in shared memory as long as the server runs.
    unsafe {
        let slots = (&raw const (*pg_sys::ReplicationSlotCtl).replication_slots).cast::<pg_sys::ReplicationSlot>();
        (*(*rel).rd_rel).relpersistence as u8 == pg_sys::RELPERSISTENCE_PERMANENT
            && (0..pg_sys::max_replication_slots as usize).map(|at| slots.add(at)).any(|slot| {
                (&raw const (*slot).in_use).read_volatile()
                    && (&raw const (*slot).data.database).read_volatile() != pg_sys::InvalidOid
            })
    }
}

/// The row in the slot has been inserted.
///
/// # Safety
/// `slot` holds a row of the table.
pub unsafe fn inserted(rel: Relation, slot: *mut TupleTableSlot) {
    // SAFETY: by the contract.
    unsafe {
        let new = Tuple::whole(slot);
        log(rel, Kind::REORDER_BUFFER_CHANGE_INSERT, Some(&new), None);
    }
}

/// The row in the slot has taken the place of the old one.
///
/// # Safety
/// `slot` holds a row of the table.
pub unsafe fn updated(open: &Open, old: &RowBuf, slot: *mut TupleTableSlot) {
    // SAFETY: by the contract.
    unsafe {
        let new = Tuple::whole(slot);
        let old = Tuple::identity(open, old, Some(slot));
        log(open.rel, Kind::REORDER_BUFFER_CHANGE_UPDATE, Some(&new), old.as_ref());
    }
}

/// This row has been deleted.
pub fn deleted(open: &Open, old: &RowBuf) {
    // SAFETY: the row is one of the table.
    unsafe {
        let old = Tuple::identity(open, old, None);
        log(open.rel, Kind::REORDER_BUFFER_CHANGE_DELETE, None, old.as_ref());
    }
}

/// A tuple of heap's, with all its values within it.
struct Tuple(HeapTuple);

impl Tuple {
    /// # Safety
    /// There is a value, or a mark that it is null, for each attribute of the descriptor.
    unsafe fn form(desc: TupleDesc, values: &[Datum], nulls: &[bool]) -> Tuple {
        // SAFETY: by the contract; PostgreSQL reads the arrays only.
        unsafe {
            let formed = Tuple(pg_sys::heap_form_tuple(desc, values.as_ptr().cast_mut(), nulls.as_ptr().cast_mut()));
            if u32::from((*(*formed.0).t_data).t_infomask) & pg_sys::HEAP_HASEXTERNAL == 0 {
                return formed;
            }
            Tuple(pg_sys::ffi::pg_guard_ffi_boundary(|| toast_flatten_tuple(formed.0, desc)))
        }
    }

    /// # Safety
    /// `slot` holds a row.
    unsafe fn whole(slot: *mut TupleTableSlot) -> Tuple {
        // SAFETY: by the contract.
        unsafe {
            let (values, nulls) = slot::all_attributes(slot);
            Tuple::form((*slot).tts_tupleDescriptor, values, nulls)
        }
    }

    /// What tells a subscriber which row has been deleted, or updated: as heap's ExtractReplicaIdentity. `None`: nothing is wanted, or
    /// the new row tells it.
    ///
    /// # Safety
    /// The old row is one of the table, and so is the new one in the slot, if there is one.
    unsafe fn identity(open: &Open, old: &RowBuf, new: Option<*mut TupleTableSlot>) -> Option<Tuple> {
        // SAFETY: by the contract; the slot has the table's descriptor, and its values stand until it is dropped.
        unsafe {
            let identity = (*(*open.rel).rd_rel).relreplident as u8;
            if identity == pg_sys::REPLICA_IDENTITY_NOTHING {
                return None;
            }
            let desc = (*open.rel).rd_att;
            let old_slot = pg_sys::MakeSingleTupleTableSlot(desc, &slot::SLOT_OPS);
            slots::store(old_slot, open, old.as_ref());
            let found = if identity == pg_sys::REPLICA_IDENTITY_FULL {
                Some(Tuple::whole(old_slot))
            } else {
                Tuple::key(open.rel, old_slot, new)
            };
            pg_sys::ExecDropSingleTupleTableSlot(old_slot);
            found
        }
    }

    /// The columns of the index that identifies rows, of the old row; `None`: there is none, or the new row has the same.
    unsafe fn key(rel: Relation, old: *mut TupleTableSlot, new: Option<*mut TupleTableSlot>) -> Option<Tuple> {
        // SAFETY: slots with rows of the table.
        unsafe {
            let columns =
                pg_sys::RelationGetIndexAttrBitmap(rel, pg_sys::IndexAttrBitmapKind::INDEX_ATTR_BITMAP_IDENTITY_KEY);
            let has = |at: usize| {
                let attno = at as c_int + 1;
                pg_sys::bms_is_member(attno - pg_sys::FirstLowInvalidHeapAttributeNumber, columns)
            };
            let (values, nulls) = slot::all_attributes(old);
            let attributes = (*(*rel).rd_att).attrs.as_slice(values.len());
            let changed = new.is_none_or(|new| {
                let (new_values, new_nulls) = slot::all_attributes(new);
                let differs = |at: usize| {
                    nulls[at] != new_nulls[at]
                        || (!nulls[at] && !same_value(values[at], new_values[at], &attributes[at]))
                };
                (0..values.len()).any(|at| has(at) && differs(at))
            });
            let wanted = changed && !columns.is_null();
            let found = wanted.then(|| {
                let nulls: Vec<bool> = (0..nulls.len()).map(|at| nulls[at] || !has(at)).collect();
                Tuple::form((*rel).rd_att, values, &nulls)
            });
            pg_sys::bms_free(columns);
            found
        }
    }

    fn bytes(&self) -> (*mut u8, u32) {
        // SAFETY: a tuple in memory.
        unsafe { ((*self.0).t_data.cast(), (*self.0).t_len) }
    }
}

impl Drop for Tuple {
    fn drop(&mut self) {
        // SAFETY: it was formed here, and nobody else has it.
        unsafe { raw::pfree(self.0.cast()) }
    }
}

/// A longer record could be written, but not be read (as in later versions of PostgreSQL, which refuse it).
const MOST_BYTES: u64 = 1020 << 20;

/// Writes the record, in the name of the transaction that has made the change.
fn log(rel: Relation, kind: Kind::Type, new: Option<&Tuple>, old: Option<&Tuple>) {
    let part = |tuple: Option<&Tuple>| tuple.map_or((std::ptr::null_mut(), 0), Tuple::bytes);
    let (new, old) = (part(new), part(old));
    let bytes = size_of::<ChangeRecord>() as u64 + u64::from(new.1) + u64::from(old.1);
    if bytes > MOST_BYTES {
        error::raise(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            format!("a change of {bytes} bytes is too large for logical decoding"),
            Some(
                "While there is a slot for logical decoding, a row with what identifies the old one may have 1020 MB.",
            ),
        );
    }
    // SAFETY: guarded, and the closure owns nothing; the data is copied. The relation is open.
    unsafe {
        let mut head = ChangeRecord { node: (*rel).rd_node, kind, new: new.1, old: old.1 };
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            bindings::XLogBeginInsert();
            pg_sys::XLogSetRecordFlags(pg_sys::XLOG_INCLUDE_ORIGIN as u8);
            bindings::XLogRegisterData((&raw mut head).cast(), size_of::<ChangeRecord>() as u32);
            for (data, len) in [new, old] {
                if len > 0 {
                    bindings::XLogRegisterData(data.cast(), len);
                }
            }
            bindings::XLogInsert(rmgr::ID, rmgr::CHANGE);
        });
    }
}

/// What `pg_walinspect` shows of a record.
///
/// # Safety
/// A record of a change, as PostgreSQL hands it to a resource manager.
pub unsafe fn describe(reader: *mut pg_sys::XLogReaderState) -> String {
    // SAFETY: by the contract.
    match parts(unsafe { rmgr::main_bytes(reader) }) {
        Some((change, new, old)) => {
            let kind = ["inserted", "updated", "deleted"].get(change.kind as usize).unwrap_or(&"?");
            format!("{kind}, new row of {} bytes, old one of {}", new.len(), old.len())
        }
        None => "malformed".into(),
    }
}

/// Decodes a record of ours: whatever it is, its transaction is one to know of.
#[pg_guard]
pub unsafe extern "C-unwind" fn decode(
    context: *mut pg_sys::LogicalDecodingContext,
    buffer: *mut pg_sys::XLogRecordBuffer,
) {
    // SAFETY: PostgreSQL's context, and a record that was read whole.
    unsafe {
        let buffer = buffer.cast::<RecordBuffer>();
        let record = (*(*buffer).reader).record;
        let (xid, lsn) = ((*record).header.xl_xid, (*buffer).start);
        pg_sys::ReorderBufferProcessXid((*context).reorder, xid, lsn);
        if rmgr::info((*buffer).reader) != rmgr::CHANGE {
            return;
        }
        let builder = (*context).snapshot_builder;
        // The transaction gets its snapshot here, which is needed also where its changes are passed by.
        if SnapBuildCurrentState(builder) < FULL_SNAPSHOT
            || !pg_sys::ffi::pg_guard_ffi_boundary(|| SnapBuildProcessChange(builder, xid, lsn))
            || (*context).fast_forward
        {
            return;
        }
        let Some((change, new, old)) = parts(rmgr::main_bytes((*buffer).reader)) else {
            error!("a record of a change to a loosekv table at {:X}/{:X} is malformed", lsn >> 32, lsn as u32);
        };
        let origin = (*record).record_origin;
        if change.node.dbNode != (*(*context).slot).data.database || is_of_no_interest(context, origin) {
            return;
        }
        queue(context, (xid, lsn, origin), change, [new, old]);
    }
}

/// # Safety
/// PostgreSQL's context.
unsafe fn is_of_no_interest(context: *mut pg_sys::LogicalDecodingContext, origin: pg_sys::RepOriginId) -> bool {
    // SAFETY: by the contract.
    unsafe {
        (*context).callbacks.filter_by_origin_cb.is_some()
            && pg_sys::ffi::pg_guard_ffi_boundary(|| filter_by_origin_cb_wrapper(context, origin))
    }
}

/// The head of a record, the new tuple and the old one.
fn parts(data: &[u8]) -> Option<(ChangeRecord, &[u8], &[u8])> {
    let (head, tuples) = data.split_at_checked(size_of::<ChangeRecord>())?;
    // SAFETY: so many bytes; any are such a head.
    let head = unsafe { head.as_ptr().cast::<ChangeRecord>().read_unaligned() };
    let (new, old) = tuples.split_at_checked(head.new as usize)?;
    let is_tuple = |bytes: &[u8]| bytes.is_empty() || bytes.len() > TUPLE_HEADER;
    let good = old.len() == head.old as usize && is_tuple(new) && is_tuple(old);
    (good && head.kind <= Kind::REORDER_BUFFER_CHANGE_DELETE).then_some((head, new, old))
}

/// Gives the change to the reorder buffer.
///
/// # Safety
/// PostgreSQL's context.
unsafe fn queue(
    context: *mut pg_sys::LogicalDecodingContext,
    (xid, lsn, origin): (pg_sys::TransactionId, pg_sys::XLogRecPtr, pg_sys::RepOriginId),
    head: ChangeRecord,
    tuples: [&[u8]; 2],
) {
    // SAFETY: by the contract; a tuple's buffer has room for its header and so many bytes more.
    unsafe {
        let reorder = (*context).reorder;
        let [new, old] = tuples.map(|bytes| {
            if bytes.is_empty() {
                return std::ptr::null_mut();
            }
            let tuple = pg_sys::ReorderBufferGetTupleBuf(reorder, bytes.len() - TUPLE_HEADER);
            let heap = &mut (*tuple).tuple;
            heap.t_len = bytes.len() as u32;
            heap.t_tableOid = pg_sys::InvalidOid;
            heap.t_self =
                pg_sys::ItemPointerData { ip_blkid: pg_sys::BlockIdData { bi_hi: 0xFFFF, bi_lo: 0xFFFF }, ip_posid: 0 };
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), heap.t_data.cast::<u8>(), bytes.len());
            tuple
        });
        let change = pg_sys::ReorderBufferGetChange(reorder);
        (*change).action = head.kind;
        (*change).origin_id = origin;
        let tuples = &mut (*change).data.tp;
        (tuples.relnode, tuples.clear_toast_afterwards) = (head.node, true);
        (tuples.oldtuple, tuples.newtuple) = (old, new);
        pg_sys::ReorderBufferQueueChange(reorder, xid, lsn, change, false);
    }
}
