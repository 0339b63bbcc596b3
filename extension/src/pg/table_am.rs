//! The table access method: its routine, and the callbacks that write and lock.
//!
//! Callbacks that may meet a duplicate key come in two layers. The inner one, guarded, does the work and returns a
//! description of the duplicate; the outer one has nothing to drop, so that it can raise PostgreSQL's own error, with the
//! names of table and constraint, by a jump.

use super::bindings_am::raw;
use super::error::{self, Duplicate};
use super::slot_values::same_value;
use super::{batch, catalog, logical, slot, slots, startup, table_ddl, table_index_build, table_scan, table_vacuum};
use crate::host::process_local::{ProcessLocal, WithBorrow};
use crate::pg::xact::{self, Purpose};
use crate::table::info;
use crate::table::lock::{self, Got, KeyLock, Line};
use crate::table::mvcc::{self, Standing};
use crate::table::write::{self, Change, Draft, Inserted, Ready, Refusal, Updated};
use crate::table::{recent, tid, unread, Open};
use loosekv_engine::tree::Observed;
use loosekv_engine::types::{Flags, Head, RowBuf, RowId, RowRef};
use pgrx::pg_sys;
use pgrx::pg_sys::{LockTupleMode, LockWaitPolicy, Relation, TM_FailureData, TM_Result, TupleTableSlot};
use pgrx::prelude::*;
use std::cell::RefCell;
use std::ffi::CStr;

static ROUTINE: pg_sys::TableAmRoutine = pg_sys::TableAmRoutine {
    type_: pg_sys::NodeTag::T_TableAmRoutine,
    slot_callbacks: Some(slot_callbacks),

    scan_begin: Some(table_scan::begin),
    scan_end: Some(table_scan::end),
    scan_rescan: Some(table_scan::rescan),
    scan_getnextslot: Some(table_scan::next),
    scan_set_tidrange: Some(table_scan::set_tid_range),
    scan_getnextslot_tidrange: Some(table_scan::next_in_tid_range),
    parallelscan_estimate: Some(table_scan::parallel_size),
    parallelscan_initialize: Some(table_scan::parallel_begin),
    parallelscan_reinitialize: Some(table_scan::parallel_rescan),
    scan_bitmap_next_block: Some(table_scan::bitmap_block),
    scan_bitmap_next_tuple: Some(table_scan::bitmap_row),
    scan_sample_next_block: Some(table_scan::sample_block),
    scan_sample_next_tuple: Some(table_scan::sample_row),
    scan_analyze_next_block: Some(table_scan::analyze_block),
    scan_analyze_next_tuple: Some(table_scan::analyze_row),

    index_fetch_begin: Some(table_scan::fetch_begin),
    index_fetch_reset: Some(table_scan::fetch_reset),
    index_fetch_end: Some(table_scan::fetch_end),
    index_fetch_tuple: Some(table_scan::fetch_row),
    tuple_fetch_row_version: Some(table_scan::fetch_row_version),
    tuple_tid_valid: Some(table_scan::tid_valid),
    tuple_get_latest_tid: Some(table_scan::latest_tid),
    tuple_satisfies_snapshot: Some(table_scan::satisfies_snapshot),
    index_delete_tuples: Some(table_scan::index_delete),

    tuple_insert: Some(insert),
    tuple_insert_speculative: Some(insert_speculative),
    tuple_complete_speculative: Some(complete_speculative),
    multi_insert: Some(multi_insert),
    tuple_delete: Some(delete),
    tuple_update: Some(update),
    tuple_lock: Some(lock_row),
    finish_bulk_insert: Some(finish_bulk_insert),

    relation_set_new_filenode: Some(table_ddl::set_new_file),
    relation_nontransactional_truncate: Some(table_ddl::truncate),
    relation_copy_data: Some(table_ddl::copy_file),
    relation_copy_for_cluster: Some(table_ddl::copy_for_cluster),
    relation_size: Some(table_ddl::size),
    relation_needs_toast_table: Some(table_ddl::needs_toast_table),
    relation_toast_am: Some(table_ddl::toast_am),
    relation_fetch_toast_slice: None,
    relation_estimate_size: Some(table_ddl::estimate_size),
    relation_vacuum: Some(table_vacuum::vacuum),
    index_build_range_scan: Some(table_index_build::build_range_scan),
    index_validate_scan: Some(table_index_build::validate_scan),
};

/// Our routine; a table is ours if its relcache entry points to it.
pub fn routine() -> &'static pg_sys::TableAmRoutine {
    &ROUTINE
}

/// `loosekv.table_handler(internal) returns table_am_handler`.
///
/// # Safety
/// Called by PostgreSQL's function manager.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn loosekv_table_handler(_fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    startup::require();
    pg_sys::Datum::from(&raw const ROUTINE)
}

#[no_mangle]
pub extern "C-unwind" fn pg_finfo_loosekv_table_handler() -> &'static pg_sys::Pg_finfo_record {
    &pg_sys::Pg_finfo_record { api_version: 1 }
}

unsafe extern "C-unwind" fn slot_callbacks(_rel: Relation) -> *const pg_sys::TupleTableSlotOps {
    &raw const slot::SLOT_OPS
}

/// Room for rows on their way, kept from call to call.
static DRAFTS: ProcessLocal<RefCell<Vec<Draft>>> = ProcessLocal::new(RefCell::new(Vec::new()));

/// Drafts that are always kept; and bytes up to which all are.
const FEW_DRAFTS: usize = 64;
const MOST_DRAFTED: usize = 1 << 20;

/// Lends `count` drafts. Not by reference into the keeper: a call may come back here from within (triggers do not, but
/// index expressions might).
fn with_drafts<T>(count: usize, work: impl FnOnce(&mut [Draft]) -> T) -> T {
    let mut drafts = DRAFTS.take();
    if drafts.len() < count {
        drafts.resize_with(count, Draft::default);
    }
    let result = work(&mut drafts[..count]);
    let bytes = |draft: &Draft| draft.key.capacity() + draft.body.capacity();
    if count > FEW_DRAFTS && drafts.iter().map(bytes).sum::<usize>() > MOST_DRAFTED {
        drafts.truncate(FEW_DRAFTS);
    }
    DRAFTS.replace(drafts);
    result
}

/// Describes the duplicate that the row in the slot is.
///
/// # Safety
/// `slot` holds a row of the table.
unsafe fn duplicate_of(open: &Open, slot: *mut TupleTableSlot) -> *mut Duplicate {
    // SAFETY: the key's columns are attributes of the row.
    unsafe {
        let (values, nulls) = slot::all_attributes(slot);
        let Some(index) = open.info.key_index else {
            error::raise(
                PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION,
                format!("duplicate key value violates the former primary key of table \"{}\"", open.name()),
                None,
            )
        };
        let columns = open.info.codec.key.columns();
        let at = |attno: i16| attno as usize - 1;
        let mut key_values = [pg_sys::Datum::from(0); pg_sys::INDEX_MAX_KEYS as usize];
        let mut key_nulls = [false; pg_sys::INDEX_MAX_KEYS as usize];
        for (i, column) in columns.iter().enumerate() {
            key_values[i] = values[at(column.attno)];
            key_nulls[i] = nulls[at(column.attno)];
        }
        error::duplicate(open.rel, index, key_values.as_mut_ptr(), key_nulls.as_mut_ptr())
    }
}

/// The same of a row that is in no slot.
///
/// # Safety
/// The draft is a row of the table.
pub unsafe fn duplicate_of_draft(open: &Open, draft: &Draft) -> *mut Duplicate {
    let row = RowRef { key: &draft.key, head: Head::default(), body: &draft.body };
    // SAFETY: the slot has the table's descriptor; what is described does not point into it.
    unsafe {
        let slot = pg_sys::MakeSingleTupleTableSlot((*open.rel).rd_att, &slot::SLOT_OPS);
        slots::store(slot, open, row);
        let duplicate = duplicate_of(open, slot);
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        duplicate
    }
}

unsafe extern "C-unwind" fn insert(
    rel: Relation,
    slot: *mut TupleTableSlot,
    cid: pg_sys::CommandId,
    options: i32,
    _bulk: *mut pg_sys::BulkInsertStateData,
) {
    // SAFETY: the executor's relation and slot; this frame has nothing to drop.
    unsafe {
        let duplicate = insert_guarded(rel, slot, cid, options);
        if !duplicate.is_null() {
            error::raise_duplicate(duplicate);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn insert_guarded(
    rel: Relation,
    slot: *mut TupleTableSlot,
    cid: pg_sys::CommandId,
    options: i32,
) -> *mut Duplicate {
    // SAFETY: as above.
    unsafe {
        let told = logical::wants_inserted(rel, options);
        if !told && batch::takes(rel, cid) {
            return batch::keep(rel, slot);
        }
        let earlier = batch::earlier_duplicate(rel, cid);
        if !earlier.is_null() {
            return earlier;
        }
        let open = Open::new(rel);
        let inserted = with_drafts(1, |drafts| {
            open.draft(slot, &mut drafts[0]);
            open.ok(write::insert(&open, &drafts[0], xact::current_writer(), cid, Flags::default()))
        });
        match inserted {
            Inserted::Row(head) => {
                slots::written(slot, &open, &head);
                if told {
                    logical::inserted(rel, slot);
                }
                raw::pgstat_count_heap_insert(rel, 1);
                std::ptr::null_mut()
            }
            Inserted::Duplicate if is_noted_in_copy(&open, slot) => std::ptr::null_mut(),
            Inserted::Duplicate => duplicate_of(&open, slot),
        }
    }
}

/// The first duplicate that was met in the copy of a table that ALTER TABLE makes, and which copy that is. With heap, the key is
/// built when all rows are there, and whatever else is wrong with one of them is told before.
static IN_COPY: ProcessLocal<RefCell<Option<(pg_sys::Oid, String)>>> = ProcessLocal::new(RefCell::new(None));

/// Whether the duplicate in the slot can wait until the copy is complete.
unsafe fn is_noted_in_copy(open: &Open, slot: *mut TupleTableSlot) -> bool {
    if open.info.key_index.is_some() || catalog::rewritten(open.rel).is_none() {
        return false;
    }
    if IN_COPY.with_borrow(|noted| noted.as_ref().is_none_or(|(copy, _)| *copy != open.relid())) {
        // SAFETY: by the contract.
        let key = unsafe { text_of_key(open, slot) };
        IN_COPY.replace(Some((open.relid(), key)));
    }
    // SAFETY: the slot holds the row.
    unsafe { ((*slot).tts_tableOid, (*slot).tts_tid) = (open.relid(), tid::nowhere()) };
    true
}

/// "(k)=(1)".
unsafe fn text_of_key(open: &Open, slot: *mut TupleTableSlot) -> String {
    let (mut names, mut texts) = (Vec::new(), Vec::new());
    // SAFETY: the key's columns are attributes of the row, and none of them is null.
    unsafe {
        let (values, _) = slot::all_attributes(slot);
        let attributes = (*(*slot).tts_tupleDescriptor).attrs.as_slice(values.len());
        for column in open.info.codec.key.columns() {
            let at = column.attno as usize - 1;
            let (mut output, mut varlena) = (pg_sys::Oid::INVALID, false);
            pg_sys::getTypeOutputInfo(attributes[at].atttypid, &mut output, &mut varlena);
            let text = pg_sys::OidOutputFunctionCall(output, values[at]);
            names.push(CStr::from_ptr(attributes[at].attname.data.as_ptr()).to_string_lossy());
            texts.push(CStr::from_ptr(text).to_string_lossy());
        }
    }
    format!("({})=({})", names.join(", "), texts.join(", "))
}

unsafe extern "C-unwind" fn finish_bulk_insert(rel: Relation, _options: i32) {
    // SAFETY: as for `insert`.
    unsafe {
        let duplicate = noted_in_copy(rel);
        if !duplicate.is_null() {
            error::raise_duplicate(duplicate);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn noted_in_copy(rel: Relation) -> *mut Duplicate {
    // SAFETY: the relation is open; the table that it is a copy of is locked.
    unsafe {
        let noted = IN_COPY.with_borrow_mut(|noted| noted.take_if(|(copy, _)| *copy == (*rel).rd_id));
        let of_whom = noted.and_then(|(_, key)| Some((catalog::rewritten(rel)?, key)));
        of_whom.map_or(std::ptr::null_mut(), |((table, index), key)| error::duplicate_in_copy(table, index, &key))
    }
}

unsafe extern "C-unwind" fn multi_insert(
    rel: Relation,
    slots: *mut *mut TupleTableSlot,
    count: i32,
    cid: pg_sys::CommandId,
    options: i32,
    _bulk: *mut pg_sys::BulkInsertStateData,
) {
    // SAFETY: as for `insert`.
    unsafe {
        let duplicate = multi_insert_guarded(rel, slots, count, cid, options);
        if !duplicate.is_null() {
            error::raise_duplicate(duplicate);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn multi_insert_guarded(
    rel: Relation,
    slots: *mut *mut TupleTableSlot,
    count: i32,
    cid: pg_sys::CommandId,
    options: i32,
) -> *mut Duplicate {
    // SAFETY: `slots` are `count` slots with rows of the table.
    unsafe {
        let slots = std::slice::from_raw_parts(slots, usize::try_from(count).unwrap_or(0));
        let open = Open::new(rel);
        let told_later = open.info.key_index.is_some();
        let refused = with_drafts(slots.len(), |drafts| {
            let mut pairs = slots.iter().zip(drafts.iter_mut());
            // The rows before one whose key cannot be come first.
            let unfit = pairs.position(|(slot, draft)| match open.try_draft(*slot, draft) {
                Err(e) if !told_later => open.report_key(e),
                drafted => drafted.is_err(),
            });
            let done = |i: usize, head: Head| slots::written(slots[i], &open, &head);
            let fit = &drafts[..unfit.unwrap_or(slots.len())];
            open.ok(write::insert_many(&open, fit, xact::current_writer(), cid, done)).or(unfit)
        });
        if logical::wants_inserted(rel, options) {
            slots.iter().take(refused.unwrap_or(slots.len())).for_each(|slot| logical::inserted(rel, *slot));
        }
        if let Some(refused) = refused {
            if !told_later {
                return duplicate_of(&open, slots[refused]);
            }
            // The key's `aminsert` is shown the rows one after the other, when PostgreSQL knows the line of each.
            (*slots[refused]).tts_tableOid = open.relid();
            (*slots[refused]).tts_tid = tid::nowhere();
        }
        raw::pgstat_count_heap_insert(rel, refused.unwrap_or(slots.len()) as i64);
        std::ptr::null_mut()
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn insert_speculative(
    rel: Relation,
    slot: *mut TupleTableSlot,
    cid: pg_sys::CommandId,
    _options: i32,
    _bulk: *mut pg_sys::BulkInsertStateData,
    _token: u32,
) {
    // SAFETY: the executor's relation and slot.
    unsafe {
        let open = Open::at_a_row(rel);
        with_drafts(1, |drafts| {
            open.draft(slot, &mut drafts[0]);
            match open.ok(write::insert_speculative(&open, &drafts[0], cid)) {
                Some(head) => slots::written(slot, &open, &head),
                None => {
                    (*slot).tts_tableOid = open.relid();
                    (*slot).tts_tid = tid::nowhere();
                }
            }
        });
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn complete_speculative(
    rel: Relation,
    slot: *mut TupleTableSlot,
    _token: u32,
    succeeded: bool,
) {
    // SAFETY: the slot holds the row that insert_speculative saw.
    unsafe {
        if tid::is_limbo(&(*slot).tts_tid) {
            debug_assert!(!succeeded);
            return;
        }
        let Some(row) = tid::to_row(&(*slot).tts_tid) else { return };
        let open = Open::at_a_row(rel);
        with_drafts(1, |drafts| {
            let key = &mut drafts[0].key;
            speculative_key(&open, slot, key);
            let command = pg_sys::GetCurrentCommandId(true);
            open.ok(write::complete_speculative(&open, key, row, succeeded, command));
        });
        if succeeded {
            if logical::is_wanted(rel) {
                logical::inserted(rel, slot);
            }
            raw::pgstat_count_heap_insert(rel, 1);
        }
    }
}

/// The key under which the row in the slot was inserted.
///
/// # Safety
/// `slot` holds a row that `insert_speculative` has written.
unsafe fn speculative_key(open: &Open, slot: *mut TupleTableSlot, key: &mut Vec<u8>) {
    // SAFETY: by the contract.
    unsafe {
        if open.info.is_keyed() {
            let mut draft = Draft::default();
            open.draft(slot, &mut draft);
            *key = draft.key;
            return;
        }
        let mut row = RowBuf::default();
        if !open.ok(write::named_row(open, &(*slot).tts_tid, &mut row)) {
            error::raise(
                PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
                format!("a row inserted into table \"{}\" is not there any more", open.name()),
                None,
            );
        }
        *key = row.key;
    }
}

#[pg_guard]
#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn delete(
    rel: Relation,
    tid: pg_sys::ItemPointer,
    cid: pg_sys::CommandId,
    _snapshot: pg_sys::Snapshot,
    crosscheck: pg_sys::Snapshot,
    wait: bool,
    failure: *mut TM_FailureData,
    changing_partition: bool,
) -> TM_Result::Type {
    // SAFETY: the executor's relation and pointers.
    unsafe {
        let open = Open::at_a_row(rel);
        let mut old = RowBuf::default();
        if !open.ok(write::named_row(&open, &*tid, &mut old)) {
            return nothing_there(&mut *failure, &*tid);
        }
        let change = Change { command: cid, crosscheck, wait, purpose: Purpose::Delete };
        let told = logical::is_wanted(rel);
        let put_off = !told && batch::takes_deleted(rel, cid) && batch::keep_deleted(&open, &old, change);
        if !put_off {
            if let Some(refusal) = open.ok(write::delete(&open, &old, change, changing_partition)) {
                return refusal.tell(&mut *failure);
            }
        }
        if told {
            logical::deleted(&open, &old);
        }
        pg_sys::pgstat_count_heap_delete(rel);
        TM_Result::TM_Ok
    }
}

fn nothing_there(failure: &mut TM_FailureData, tid: &pg_sys::ItemPointerData) -> TM_Result::Type {
    failure.ctid = *tid;
    failure.xmax = pg_sys::InvalidTransactionId;
    failure.cmax = pg_sys::InvalidCommandId;
    TM_Result::TM_Deleted
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn update(
    rel: Relation,
    tid: pg_sys::ItemPointer,
    slot: *mut TupleTableSlot,
    cid: pg_sys::CommandId,
    _snapshot: pg_sys::Snapshot,
    crosscheck: pg_sys::Snapshot,
    wait: bool,
    failure: *mut TM_FailureData,
    mode: *mut LockTupleMode::Type,
    update_indexes: *mut bool,
) -> TM_Result::Type {
    // SAFETY: as for `insert`.
    unsafe {
        let mut result = TM_Result::TM_Ok;
        let duplicate = update_guarded(rel, tid, slot, cid, crosscheck, wait, failure, mode, &raw mut result);
        if !duplicate.is_null() {
            error::raise_duplicate(duplicate);
        }
        // Every version has a row id of its own, which every secondary index must get to know. Rows are left unread where there is
        // none.
        *update_indexes = result == TM_Result::TM_Ok && tid::to_unread(&*tid).is_none();
        result
    }
}

#[pg_guard]
#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn update_guarded(
    rel: Relation,
    tid: pg_sys::ItemPointer,
    slot: *mut TupleTableSlot,
    cid: pg_sys::CommandId,
    crosscheck: pg_sys::Snapshot,
    wait: bool,
    failure: *mut TM_FailureData,
    mode: *mut LockTupleMode::Type,
    result: *mut TM_Result::Type,
) -> *mut Duplicate {
    // SAFETY: the executor's relation, slot and pointers.
    unsafe {
        let open = Open::at_a_row(rel);
        let mut old = RowBuf::default();
        let unread = tid::to_unread(&*tid);
        let told = logical::is_wanted(rel);
        if let Some(unread) = unread.filter(|_| !told && crosscheck.is_null() && batch::takes_replaced(rel, cid)) {
            if batch::keep_replaced(&open, slot, unread) {
                *mode = LockTupleMode::LockTupleNoKeyExclusive;
                *result = TM_Result::TM_Ok;
                return std::ptr::null_mut();
            }
        }
        if unread.is_none() && !open.ok(write::named_row(&open, &*tid, &mut old)) {
            *result = nothing_there(&mut *failure, &*tid);
            return std::ptr::null_mut();
        }
        let updated = with_drafts(1, |drafts| {
            let draft = &mut drafts[0];
            open.draft(slot, draft);
            let change = Change { command: cid, crosscheck, wait, purpose: Purpose::Update };
            if let Some(unread) = unread {
                *mode = LockTupleMode::LockTupleNoKeyExclusive;
                // Who is told of the change may have to be told of the old row.
                let updated = if told { None } else { open.ok(write::replace_unread(&open, unread, draft, change)) };
                if let Some(updated) = updated {
                    return updated;
                }
                if !open.ok(unread::read(&open, unread, &mut old)) {
                    return Updated::No(Refusal::new(TM_Result::TM_Deleted, unread));
                }
            }
            if !open.info.is_keyed() {
                draft.key.clone_from(&old.key);
            }
            let key_changed = draft.key != old.key || other_keys_differ(&open, &old, slot);
            *mode =
                if key_changed { LockTupleMode::LockTupleExclusive } else { LockTupleMode::LockTupleNoKeyExclusive };
            open.ok(write::update(&open, &old, draft, change, key_changed))
        });
        match updated {
            Updated::Row { head, was_locked } => {
                slots::written(slot, &open, &head);
                if was_locked {
                    slot::mark_locked(slot);
                }
                if told {
                    logical::updated(&open, &old, slot);
                }
                pg_sys::pgstat_count_heap_update(rel, false);
                *result = TM_Result::TM_Ok;
            }
            Updated::No(refusal) => *result = refusal.tell(&mut *failure),
            Updated::Duplicate => return duplicate_of(&open, slot),
        }
        std::ptr::null_mut()
    }
}

/// Whether the new row differs from the old one in a column of another index which a foreign key may point to.
///
/// # Safety
/// `slot` holds the new row.
unsafe fn other_keys_differ(open: &Open, old: &RowBuf, slot: *mut TupleTableSlot) -> bool {
    if open.info.other_key_attributes.is_empty() {
        return false;
    }
    // SAFETY: both slots hold rows of this table; the old one's values live until its slot is dropped.
    unsafe {
        let desc = (*open.rel).rd_att;
        let old_slot = pg_sys::MakeSingleTupleTableSlot(desc, &slot::SLOT_OPS);
        slots::store(old_slot, open, old.as_ref());
        let (old_values, old_nulls) = slot::all_attributes(old_slot);
        let (values, nulls) = slot::all_attributes(slot);
        let attributes = (*desc).attrs.as_slice((*desc).natts as usize);
        let mut differ = false;
        for attno in &open.info.other_key_attributes {
            let at = usize::from(attno.unsigned_abs()) - 1;
            let same_null = old_nulls[at] == nulls[at];
            differ = !same_null || (!nulls[at] && !same_value(old_values[at], values[at], &attributes[at]));
            if differ {
                break;
            }
        }
        pg_sys::ExecDropSingleTupleTableSlot(old_slot);
        differ
    }
}

#[pg_guard]
#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn lock_row(
    rel: Relation,
    tid: pg_sys::ItemPointer,
    _snapshot: pg_sys::Snapshot,
    slot: *mut TupleTableSlot,
    cid: pg_sys::CommandId,
    mode: LockTupleMode::Type,
    policy: LockWaitPolicy::Type,
    flags: u8,
    failure: *mut TM_FailureData,
) -> TM_Result::Type {
    // SAFETY: the executor's relation, slot and pointers.
    unsafe {
        let open = Open::at_a_row(rel);
        let failure = &mut *failure;
        failure.traversed = false;
        let mut row = RowBuf::default();
        if let Some(unread) = tid::to_unread(&*tid) {
            match lock_unread(&open, unread, mode, &mut row) {
                Unread::Locked => {
                    slots::store(slot, &open, row.as_ref());
                    return TM_Result::TM_Ok;
                }
                Unread::Read => *tid = tid::from_row(row.head.row_id),
                Unread::Gone => return nothing_there(failure, &*tid),
            }
        } else if !open.ok(write::named_row(&open, &*tid, &mut row)) {
            let _ = nothing_there(failure, &*tid);
            return TM_Result::TM_Invisible;
        }
        let follow = u32::from(flags) & pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION != 0;
        let mut wish = Wish { command: cid, mode, policy, newest: false };
        loop {
            // A statement may lock rows of the table that it changes.
            batch::before_look_at(rel, &row.key);
            match lock_version(&open, &row, wish) {
                Locking::Locked => {
                    recent::note(&open, row.as_ref());
                    slots::store(slot, &open, row.as_ref());
                    return TM_Result::TM_Ok;
                }
                Locking::No(refusal) => {
                    if refusal.result == TM_Result::TM_Invisible {
                        slots::store(slot, &open, row.as_ref());
                    }
                    let moved = tid::to_row(&refusal.tid);
                    let result = refusal.tell(failure);
                    if result == TM_Result::TM_Updated && follow && tid::says_moved(&refusal.tid) {
                        error::raise(
                            PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
                            "tuple to be locked was already moved to another partition due to concurrent update",
                            None,
                        );
                    }
                    if result != TM_Result::TM_Updated || !follow || moved.is_none() {
                        return result;
                    }
                    if !open.ok(write::named_row(&open, &refusal.tid, &mut row)) {
                        return TM_Result::TM_Deleted;
                    }
                    *tid = refusal.tid;
                    failure.traversed = true;
                    wish.newest = true;
                }
                Locking::WouldBlock => return TM_Result::TM_WouldBlock,
            }
        }
    }
}

enum Unread {
    /// It is locked, and the row buffer stands for it.
    Locked,
    /// It had to be read, and is not locked yet.
    Read,
    Gone,
}

/// Locks a row that was left unread, if that is possible at once, and the row still the one that was found.
fn lock_unread(open: &Open, unread: RowId, mode: LockTupleMode::Type, row: &mut RowBuf) -> Unread {
    let observed = open.ok(unread::recall(open, unread, row).ok_or_else(unread::forgotten));
    let lock = KeyLock::on(open, &row.key);
    let got = lock.take(open, mode);
    if !matches!(got, Got::WouldBlock(_)) && open.tree.is_as_observed(&row.key, observed) {
        if got == Got::Locked {
            lock.keep(mode);
        }
        unread::locked(unread);
        return Unread::Locked;
    }
    if got == Got::Locked {
        lock.release(mode);
    }
    if !open.ok(unread::read(open, unread, row)) {
        return Unread::Gone;
    }
    recent::note(open, row.as_ref());
    Unread::Read
}

enum Locking {
    Locked,
    No(write::Refusal),
    WouldBlock,
}

/// What lock is wanted, and of which version.
#[derive(Clone, Copy)]
struct Wish {
    command: u32,
    mode: LockTupleMode::Type,
    policy: LockWaitPolicy::Type,
    /// Only of the newest: the one that the snapshot sees was given up, and heap goes to the end of the chain then.
    newest: bool,
}

/// Locks one version of a row, unless it has been replaced.
fn lock_version(open: &Open, row: &RowBuf, wish: Wish) -> Locking {
    let lock = KeyLock::on_row(open, row);
    let mut line = Line::new(wish.mode, super::xact::is_mine(row.head.writer));
    let locking = loop {
        match try_to_lock(open, row, wish, (&lock, &mut line)) {
            Tried::Done(locking) => break locking,
            Tried::Again => {}
            // Without holding anything that he may want: he may go on changing the row.
            Tried::Busy(head) => {
                line.get_in(&lock);
                super::xact::wait_for(open.rel, &head, Purpose::Lock);
            }
        }
    };
    line.leave(&lock);
    if matches!(locking, Locking::WouldBlock) && wish.policy == LockWaitPolicy::LockWaitError {
        lock::not_available(open);
    }
    locking
}

enum Tried {
    Done(Locking),
    /// Somebody who had locked the row was waited for.
    Again,
    /// The writer of this version, who is still at work, has to be waited for.
    Busy(Head),
}

fn try_to_lock(open: &Open, row: &RowBuf, wish: Wish, (lock, line): (&KeyLock, &mut Line)) -> Tried {
    let Wish { mode, policy, .. } = wish;
    // Who is in the way is found before the lock is taken: others may meet it, and then nobody could get in line behind them.
    let seen = match look_at_newest(open, row, wish) {
        Ok(seen) => seen,
        Err(tried) => return tried,
    };
    let got = lock.take(open, mode);
    if let Got::WouldBlock(blocker) = got {
        if policy != LockWaitPolicy::LockWaitBlock {
            return Tried::Done(Locking::WouldBlock);
        }
        line.get_in(lock);
        lock.wait_for(open, blocker);
        return Tried::Again;
    }
    let as_seen = seen.is_some_and(|seen| open.tree.is_as_observed(&row.key, seen));
    let again = if as_seen { Ok(seen) } else { look_at_newest(open, row, wish) };
    let tried = again.map_or_else(|tried| tried, |_| Tried::Done(Locking::Locked));
    if got == Got::Locked {
        match tried {
            Tried::Done(Locking::Locked) => lock.keep(mode),
            _ => lock.release(mode),
        }
    }
    tried
}

/// Is it the row that was meant, and nobody at work on it? Then what was observed of it; nothing, where an older version will do.
fn look_at_newest(open: &Open, row: &RowBuf, wish: Wish) -> std::result::Result<Option<Observed>, Tried> {
    let Wish { command, policy, .. } = wish;
    let change = Change { command, crosscheck: std::ptr::null_mut(), wait: false, purpose: Purpose::Lock };
    loop {
        let refusal = match open.ok(write::prepare(open, row, change)) {
            Ready::Go(observed) => return Ok(Some(observed)),
            Ready::No(refusal) => refusal,
        };
        let replaced = matches!(refusal.result, TM_Result::TM_BeingModified | TM_Result::TM_Updated);
        if replaced && shares_key(open, row, wish) {
            return Ok(None);
        }
        if refusal.result != TM_Result::TM_BeingModified {
            return Err(Tried::Done(Locking::No(refusal)));
        }
        // Somebody is replacing the row.
        let mut newest_row = RowBuf::default();
        let (newest, _) = open.ok(mvcc::newest(open, &row.key, &mut newest_row));
        let Some(newest) = newest.filter(|newest| newest.standing == Standing::InProgress) else { continue };
        if policy != LockWaitPolicy::LockWaitBlock {
            return Err(Tried::Done(Locking::WouldBlock));
        }
        return Err(Tried::Busy(newest.head));
    }
}

/// A KEY SHARE lock on an old version of a row is as good as one on the newest, as long as its keys are the same.
fn shares_key(open: &Open, row: &RowBuf, wish: Wish) -> bool {
    wish.mode == LockTupleMode::LockTupleKeyShare && !wish.newest && open.ok(write::key_is_as_in(open, row))
}

/// The catalog's idea of a table has changed.
pub fn relation_changed(relid: pg_sys::Oid) {
    info::forget((relid != pg_sys::Oid::INVALID).then_some(relid));
}
