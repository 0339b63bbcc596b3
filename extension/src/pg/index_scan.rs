//! Scans of the key: the table read in its order.
//!
//! `amgettuple` decides visibility and leaves the row it found with the fetch state of the same scan, so that nothing is
//! looked up twice.

use super::bindings_am::raw;
use super::owned::Owned;
use super::{slot, slots, statistics, table_scan};
use crate::table::key_scan::KeyScan;
use crate::table::{tid, Open};
use loosekv_engine::tree::Direction;
use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, IndexScanDesc, Relation, ScanKey};
use pgrx::prelude::*;

/// Between `ambeginscan` and the first `amrescan` neither table nor snapshot is known.
struct Scan {
    running: Option<Running>,
    /// What is taken apart of scan keys: arrays, values of other types. Null: nothing so far.
    arguments: pg_sys::MemoryContext,
    /// Where the scan began: that lives as long as it does.
    home: pg_sys::MemoryContext,
}

struct Running {
    /// Before `table`: it uses it.
    keys: KeyScan,
    open: Open,
    /// Every row in the ranges matches.
    exact: bool,
    /// The table was opened here, because the caller did not say which it is (bitmap scans).
    own_table: bool,
    /// To make index tuples from.
    slot: *mut pg_sys::TupleTableSlot,
}

/// # Safety
/// `scan` came from [`begin`].
unsafe fn state<'a>(scan: IndexScanDesc) -> &'a mut Scan {
    // SAFETY: by the contract.
    unsafe { Owned::get((*scan).opaque.cast::<Owned<Scan>>()) }
}

/// # Safety
/// A callback of the index access method.
pub unsafe extern "C-unwind" fn begin(index: Relation, nkeys: i32, norderbys: i32) -> IndexScanDesc {
    // SAFETY: the index is open; an error flies through a frame with nothing to drop.
    unsafe {
        let scan = raw::RelationGetIndexScan(index, nkeys, norderbys);
        begin_ours(scan);
        scan
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn begin_ours(scan: IndexScanDesc) {
    // SAFETY: the scan was made just now.
    unsafe {
        (*scan).opaque =
            Owned::new(Scan { running: None, arguments: std::ptr::null_mut(), home: pg_sys::CurrentMemoryContext })
                .cast();
        (*scan).xs_itupdesc = (*(*scan).indexRelation).rd_att;
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn rescan(
    scan: IndexScanDesc,
    keys: ScanKey,
    _nkeys: i32,
    _orderbys: ScanKey,
    _norderbys: i32,
) {
    // SAFETY: the executor's scan keys.
    unsafe {
        let count = usize::try_from((*scan).numberOfKeys).unwrap_or(0);
        if !keys.is_null() && count > 0 {
            (*scan).keyData.copy_from(keys, count);
        }
        let scan_keys = if count == 0 { &[] } else { std::slice::from_raw_parts((*scan).keyData, count) };
        let state = state(scan);
        if state.running.is_none() {
            state.running = Some(start(scan));
        }
        let Scan { running: Some(running), arguments, home } = state else { return };
        let codec = &running.open.info.codec.key;
        let before = codec.takes_memory(scan_keys).then(|| enter(arguments, *home));
        if running.keys.restart_at(|key| codec.search_point(scan_keys, key)) {
            running.exact = true;
            statistics::count_scans((*scan).indexRelation, 1);
            leave(before);
            return;
        }
        let search = codec.search(scan_keys);
        leave(before);
        // As btree counts: each element of an array is a search of its own.
        statistics::count_scans((*scan).indexRelation, search.ranges.len());
        running.exact = search.is_exact();
        running.keys.restart(search.ranges);
    }
}

/// Makes a scan's memory for arguments the current one, empty. Returns what was it before.
unsafe fn enter(arguments: &mut pg_sys::MemoryContext, home: pg_sys::MemoryContext) -> pg_sys::MemoryContext {
    // SAFETY: the memory goes with the scan's.
    unsafe {
        if arguments.is_null() {
            let (init, max) = (pg_sys::ALLOCSET_SMALL_INITSIZE as usize, pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize);
            *arguments = pg_sys::AllocSetContextCreateInternal(home, c"loosekv scan keys".as_ptr(), 0, init, max);
        } else {
            pg_sys::MemoryContextReset(*arguments);
        }
        pg_sys::MemoryContextSwitchTo(*arguments)
    }
}

unsafe fn leave(before: Option<pg_sys::MemoryContext>) {
    if let Some(before) = before {
        // SAFETY: it was the current one.
        unsafe { pg_sys::MemoryContextSwitchTo(before) };
    }
}

unsafe fn start(scan: IndexScanDesc) -> Running {
    // SAFETY: the table is locked by the statement; the snapshot outlives the scan.
    unsafe {
        let own_table = (*scan).heapRelation.is_null();
        let rel = if own_table {
            pg_sys::table_open((*(*(*scan).indexRelation).rd_index).indrelid, pg_sys::NoLock as i32)
        } else {
            (*scan).heapRelation
        };
        let open = Open::at_a_row(rel);
        let keys = KeyScan::new(&open, (*scan).xs_snapshot, Vec::new());
        Running { keys, open, exact: true, own_table, slot: std::ptr::null_mut() }
    }
}

/// Without a guard where the next row has been found ahead, or there is none behind the only key: then nothing can fail.
///
/// # Safety
/// A callback of the index access method.
pub unsafe extern "C-unwind" fn next(scan: IndexScanDesc, direction: pg_sys::ScanDirection::Type) -> bool {
    // SAFETY: the executor's scan. The row stays on its page until the scan moves or ends.
    unsafe {
        if let Some(running) = &mut state(scan).running {
            if table_scan::heading(direction) == Direction::Forward && running.keys.leave_only_key() {
                return false;
            }
            if !(*scan).xs_want_itup && running.keys.step(table_scan::heading(direction)) {
                if let Some(spot) = running.keys.spot() {
                    (*scan).xs_heaptid = tid::from_row(spot.row_id());
                    (*scan).xs_recheck = !running.exact;
                    if !(*scan).xs_heapfetch.is_null() {
                        table_scan::fetch_state((*scan).xs_heapfetch).expect_ahead(&running.open, spot);
                    }
                    return true;
                }
            }
        }
        find_next(scan, direction)
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn find_next(scan: IndexScanDesc, direction: pg_sys::ScanDirection::Type) -> bool {
    // SAFETY: the executor's scan.
    unsafe {
        let Some(running) = &mut state(scan).running else { return false };
        let found = running.keys.next(&running.open, table_scan::heading(direction));
        if !running.open.ok(found) {
            return false;
        }
        let row_id = match running.keys.spot() {
            Some(spot) => spot.row_id(),
            None => running.keys.row().head.row_id,
        };
        (*scan).xs_heaptid = tid::from_row(row_id);
        (*scan).xs_recheck = !running.exact;
        if !(*scan).xs_heapfetch.is_null() {
            let fetch = table_scan::fetch_state((*scan).xs_heapfetch);
            match running.keys.spot() {
                Some(spot) => fetch.expect_ahead(&running.open, spot),
                None => fetch.expect(&running.open, running.keys.row()),
            }
        }
        if (*scan).xs_want_itup {
            form_index_tuple(scan, running);
        }
        true
    }
}

/// The planner looks at the ends of an index as if it were a btree.
unsafe fn form_index_tuple(scan: IndexScanDesc, running: &mut Running) {
    // SAFETY: the index's columns are attributes of the row in the slot.
    unsafe {
        let index = (*scan).indexRelation;
        if running.slot.is_null() {
            running.slot = pg_sys::MakeSingleTupleTableSlot((*running.open.rel).rd_att, &slot::SLOT_OPS);
        }
        slots::store(running.slot, &running.open, running.keys.row());
        let (values, nulls) = slot::all_attributes(running.slot);
        let count = |of: i16| usize::try_from(of).unwrap_or(0);
        let all = count((*(*index).rd_index).indnatts);
        // It does not look at columns that are only included, which may be as large as they like.
        let attnos = (*(*index).rd_index).indkey.values.as_slice(count((*(*index).rd_index).indnkeyatts));
        let mut index_values: Vec<Datum> = attnos.iter().map(|attno| values[*attno as usize - 1]).collect();
        let mut index_nulls: Vec<bool> = attnos.iter().map(|attno| nulls[*attno as usize - 1]).collect();
        index_values.resize(all, Datum::from(0));
        index_nulls.resize(all, true);
        if !(*scan).xs_itup.is_null() {
            pg_sys::pfree((*scan).xs_itup.cast());
        }
        (*scan).xs_itup =
            pg_sys::index_form_tuple((*scan).xs_itupdesc, index_values.as_mut_ptr(), index_nulls.as_mut_ptr());
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn bitmap(scan: IndexScanDesc, bitmap: *mut pg_sys::TIDBitmap) -> i64 {
    // SAFETY: the executor's scan and bitmap.
    unsafe {
        let Some(running) = &mut state(scan).running else { return 0 };
        let mut count = 0;
        loop {
            let found = running.keys.next(&running.open, Direction::Forward);
            if !running.open.ok(found) {
                return count;
            }
            pgrx::check_for_interrupts!();
            let mut tid = tid::from_row(running.keys.row().head.row_id);
            pg_sys::tbm_add_tuples(bitmap, &raw mut tid, 1, !running.exact);
            count += 1;
        }
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn end(scan: IndexScanDesc) {
    // SAFETY: the scan is not used afterwards.
    unsafe {
        let arguments = state(scan).arguments;
        if !arguments.is_null() {
            pg_sys::MemoryContextDelete(arguments);
        }
        let running = state(scan).running.take();
        let table = running.as_ref().filter(|running| running.own_table).map(|running| running.open.rel);
        let slot = running.as_ref().map_or(std::ptr::null_mut(), |running| running.slot);
        drop(running);
        Owned::release((*scan).opaque.cast::<Owned<Scan>>());
        if !slot.is_null() {
            pg_sys::ExecDropSingleTupleTableSlot(slot);
        }
        if let Some(table) = table {
            pg_sys::table_close(table, pg_sys::NoLock as i32);
        }
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn set_mark(scan: IndexScanDesc) {
    // SAFETY: the executor's scan.
    unsafe {
        if let Some(running) = &mut state(scan).running {
            running.keys.set_mark();
        }
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn return_to_mark(scan: IndexScanDesc) {
    // SAFETY: the executor's scan.
    unsafe {
        if let Some(running) = &mut state(scan).running {
            let returned = running.keys.return_to_mark(&running.open);
            running.open.ok(returned);
        }
    }
}
