//! Building an index over our table: rows fed to the index's own code.

use super::bindings_am::raw;
use super::owned::Owned;
use super::{catalog, slots, whole_errors, xact};
use crate::table::by_row;
use crate::table::key_scan::KeyScan;
use crate::table::mvcc::{self, Standing};
use crate::table::{recent, tid, Open};
use loosekv_engine::tree::{Direction, Hint, Looked, Placed};
use loosekv_engine::types::{Head, RowBuf, RowId, Verdict, Writer};
use pgrx::pg_sys;
use pgrx::pg_sys::{BlockNumber, Datum, IndexInfo, Relation, TableScanDesc, TupleTableSlot};
use pgrx::prelude::*;
use std::ffi::c_void;
use std::ops::Bound;

/// To be called where an ERROR goes on whole.
mod unguarded {
    use pgrx::pg_sys;

    extern "C-unwind" {
        pub fn MemoryContextReset(context: pg_sys::MemoryContext);
        pub fn FormIndexDatum(
            info: *mut pg_sys::IndexInfo,
            slot: *mut pg_sys::TupleTableSlot,
            state: *mut pg_sys::EState,
            values: *mut pg_sys::Datum,
            nulls: *mut bool,
        );
    }
}

/// What evaluating index expressions and predicates needs.
struct Evaluation {
    state: *mut pg_sys::EState,
    context: *mut pg_sys::ExprContext,
    predicate: *mut pg_sys::ExprState,
    slot: *mut TupleTableSlot,
    info: *mut IndexInfo,
}

impl Evaluation {
    /// # Safety
    /// `table` is open, and `info` belongs to an index of it.
    unsafe fn begin(table: Relation, info: *mut IndexInfo) -> Evaluation {
        // SAFETY: by the contract; what is made here lives until `end`, or until the transaction is aborted.
        unsafe {
            let state = pg_sys::CreateExecutorState();
            let mut context = (*state).es_per_tuple_exprcontext;
            if context.is_null() {
                context = pg_sys::MakePerTupleExprContext(state);
            }
            let slot = pg_sys::table_slot_create(table, std::ptr::null_mut());
            (*context).ecxt_scantuple = slot;
            let predicate = pg_sys::ExecPrepareQual((*info).ii_Predicate, state);
            Evaluation { state, context, predicate, slot, info }
        }
    }

    /// The index's columns for the row in the slot; `None`: the predicate leaves the row out.
    unsafe fn columns(&mut self) -> Option<Columns> {
        // SAFETY: the slot holds a row.
        unsafe { whole_errors::run(|| self.form_columns()) }
    }

    /// The same. To be called where an ERROR goes on whole.
    ///
    /// # Safety
    /// Raises ERROR by longjmp: the caller's frames own nothing, up to the guard.
    unsafe fn form_columns(&self) -> Option<Columns> {
        // SAFETY: the slot holds a row.
        unsafe {
            unguarded::MemoryContextReset((*self.context).ecxt_per_tuple_memory);
            if !self.predicate.is_null() && !qual(self.predicate, self.context) {
                return None;
            }
            let mut columns = Columns::default();
            let (values, nulls) = (columns.values.as_mut_ptr(), columns.nulls.as_mut_ptr());
            unguarded::FormIndexDatum(self.info, self.slot, self.state, values, nulls);
            Some(columns)
        }
    }

    unsafe fn end(self) {
        // SAFETY: made by `begin`. The info's expression states lived in the executor state.
        unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::FreeExecutorState(self.state);
            (*self.info).ii_ExpressionsState = std::ptr::null_mut();
            (*self.info).ii_PredicateState = std::ptr::null_mut();
        }
    }
}

struct Columns {
    values: [Datum; pg_sys::INDEX_MAX_KEYS as usize],
    nulls: [bool; pg_sys::INDEX_MAX_KEYS as usize],
}

impl Default for Columns {
    fn default() -> Columns {
        let none = Datum::from(0);
        Columns { values: [none; pg_sys::INDEX_MAX_KEYS as usize], nulls: [false; pg_sys::INDEX_MAX_KEYS as usize] }
    }
}

/// ExecQual. To be called where an ERROR goes on whole.
unsafe fn qual(state: *mut pg_sys::ExprState, context: *mut pg_sys::ExprContext) -> bool {
    // SAFETY: a prepared expression has its function; evaluated in the context's own memory.
    unsafe {
        let Some(evaluate) = (*state).evalfunc else { return true };
        let before = pg_sys::MemoryContextSwitchTo((*context).ecxt_per_tuple_memory);
        let mut null = false;
        let result = evaluate(state, context, &raw mut null);
        pg_sys::MemoryContextSwitchTo(before);
        result.value() != 0
    }
}

/// What the access method's function is given.
#[derive(Clone, Copy)]
#[repr(C)]
struct Range {
    table: Relation,
    index: Relation,
    info: *mut IndexInfo,
    any_visible: bool,
    start: BlockNumber,
    blocks: BlockNumber,
    callback: pg_sys::IndexBuildCallback,
    callback_state: *mut c_void,
    scan: TableScanDesc,
}

/// Feeds rows to the index. Not guarded: errors of functions go on whole.
///
/// # Safety
/// Called by PostgreSQL as its table access methods are.
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C-unwind" fn build_range_scan(
    table: Relation,
    index: Relation,
    info: *mut IndexInfo,
    _allow_sync: bool,
    any_visible: bool,
    _progress: bool,
    start: BlockNumber,
    blocks: BlockNumber,
    callback: pg_sys::IndexBuildCallback,
    callback_state: *mut c_void,
    scan: TableScanDesc,
) -> f64 {
    let range = Range { table, index, info, any_visible, start, blocks, callback, callback_state, scan };
    // SAFETY: PostgreSQL's pointers; this frame has nothing to drop.
    unsafe {
        let rows = build_range(&range);
        if rows < 0.0 {
            raw::pg_re_throw();
        }
        rows
    }
}

/// The number of rows. Negative: an ERROR waits to go on.
#[pg_guard]
unsafe extern "C-unwind" fn build_range(range: &Range) -> f64 {
    let Range { table, index, info, any_visible, start, blocks, callback, callback_state, scan } = *range;
    // SAFETY: PostgreSQL's pointers; the tables stay open during the call.
    let rows = whole_errors::catch(|| unsafe {
        let mut feed = Feed { index, callback, callback_state, rows: 0.0 };
        let mut evaluation = Evaluation::begin(table, info);
        if !scan.is_null() {
            feed.parallel(table, scan, !(*info).ii_Concurrent, &mut evaluation);
        } else if (*info).ii_Concurrent {
            feed.snapshot(table, &mut evaluation);
        } else if start == 0 && blocks == pg_sys::InvalidBlockNumber && !any_visible && !goes_by_blocks(index) {
            feed.newest(table, &mut evaluation);
        } else {
            feed.block_range(table, start, blocks, &mut evaluation);
        }
        evaluation.end();
        feed.rows
    });
    rows.unwrap_or(-1.0)
}

/// Whether the index wants rows in the order of their TIDs: it is a BRIN.
unsafe fn goes_by_blocks(index: Relation) -> bool {
    // SAFETY: the index is open.
    unsafe { (*(*index).rd_rel).relam == pg_sys::BRIN_AM_OID }
}

/// Feeds rows to the index.
struct Feed {
    index: Relation,
    callback: pg_sys::IndexBuildCallback,
    callback_state: *mut c_void,
    rows: f64,
}

impl Feed {
    /// The row is in the evaluation's slot.
    unsafe fn row(&mut self, evaluation: &mut Evaluation, alive: bool) {
        // SAFETY: the index code's callback, called as its contract says.
        unsafe {
            let Some(callback) = self.callback else { return };
            let (index, state) = (self.index, self.callback_state);
            let tid = &raw mut (*evaluation.slot).tts_tid;
            let fed = whole_errors::run(|| match evaluation.form_columns() {
                Some(mut columns) => {
                    let (values, nulls) = (columns.values.as_mut_ptr(), columns.nulls.as_mut_ptr());
                    callback(index, tid, values, nulls, alive, state);
                    true
                }
                None => false,
            });
            if fed && alive {
                self.rows += 1.0;
            }
        }
    }

    /// A worker's share of a parallel build. `older`: versions that older snapshots may need are wanted, too. (Not beside
    /// writers: what one supersedes who has not ended is what the scan sees.)
    unsafe fn parallel(&mut self, table: Relation, scan: TableScanDesc, older: bool, evaluation: &mut Evaluation) {
        // SAFETY: a scan of our table.
        unsafe {
            // Of one participant: the leader.
            if pg_sys::ParallelWorkerNumber < 0 {
                let open = Open::new(table);
                if older {
                    self.older(&open, xact::oldest_visible(table), evaluation);
                } else {
                    tell_of_snapshot(&open, (*scan).rs_snapshot);
                }
            }
            let forward = pg_sys::ScanDirection::ForwardScanDirection;
            while super::table_scan::next(scan, forward, evaluation.slot) {
                pgrx::check_for_interrupts!();
                self.row(evaluation, true);
            }
            // Whoever began the scan leaves its end to us.
            super::table_scan::end(scan);
        }
    }

    /// CREATE INDEX CONCURRENTLY: what a snapshot sees.
    unsafe fn snapshot(&mut self, table: Relation, evaluation: &mut Evaluation) {
        // SAFETY: the snapshot is registered for the time of the scan.
        unsafe {
            let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetTransactionSnapshot());
            let open = Open::new(table);
            tell_of_snapshot(&open, snapshot);
            let mut scan = KeyScan::new(&open, snapshot, KeyScan::everything());
            while open.ok(scan.next(&open, Direction::Forward)) {
                pgrx::check_for_interrupts!();
                slots::store(evaluation.slot, &open, scan.row());
                self.row(evaluation, true);
            }
            drop(scan);
            pg_sys::UnregisterSnapshot(snapshot);
        }
    }

    /// The newest versions, and older ones that older snapshots may need.
    unsafe fn newest(&mut self, table: Relation, evaluation: &mut Evaluation) {
        // SAFETY: the table is open and locked against writers.
        unsafe {
            let open = Open::new(table);
            self.older(&open, xact::oldest_visible(table), evaluation);
            for mut cursor in open.ok(open.tree.scan_apart(Direction::Forward)) {
                loop {
                    pgrx::check_for_interrupts!();
                    let choose = |head: &Head, hint: &Hint<'_>| match mvcc::standing(head, hint) {
                        Standing::Aborted => Verdict::Skip,
                        _ => Verdict::Take,
                    };
                    // In a settled run the newest version of a key is never an aborted one.
                    if !open.ok(cursor.next_in_place(&open.tree, Writer(u64::MAX), choose)) {
                        break;
                    }
                    match cursor.spot() {
                        Some(spot) if slots::may_be_lent(evaluation.slot, &open) => {
                            slots::lend(evaluation.slot, &open, spot);
                        }
                        _ => slots::store(evaluation.slot, &open, cursor.row()),
                    }
                    self.row(evaluation, true);
                }
            }
        }
    }

    /// The versions that are not the newest of their key but that some snapshot may still see, as heap's index builds do: a
    /// transaction that has begun may use the index when it has been rebuilt. On standbys there may be older ones yet.
    unsafe fn older(&mut self, open: &Open, oldest: u64, evaluation: &mut Evaluation) {
        // SAFETY: the table is open and locked against writers.
        unsafe {
            open.ok(open.tree.tell_superseded(Writer(oldest)));
            let mut row = RowBuf::default();
            for id in superseded_lately(open, oldest) {
                pgrx::check_for_interrupts!();
                if open.ok(recent::find_row(open, id, &mut row)) && !is_newest(open, &row) {
                    slots::store(evaluation.slot, open, row.as_ref());
                    self.row(evaluation, false);
                }
            }
        }
    }

    /// All versions that are not aborted, of some virtual blocks: BRIN summarizes a range, or all.
    unsafe fn block_range(
        &mut self,
        table: Relation,
        start: BlockNumber,
        blocks: BlockNumber,
        evaluation: &mut Evaluation,
    ) {
        // SAFETY: the table is open.
        unsafe {
            let open = Open::new(table);
            // All of them are wanted block by block, those of one range in any order.
            let whole = blocks == pg_sys::InvalidBlockNumber;
            let (end, step) = match whole {
                true => (by_row::blocks(&open), 1),
                false => (start.saturating_add(blocks), BLOCKS_TOGETHER),
            };
            let mut rows = Default::default();
            for first in (start..end).step_by(step as usize) {
                let piece = first..end.min(first.saturating_add(step));
                let ids = piece.flat_map(|block| by_row::rows_of_block(&open, block)).map(RowId);
                for Placed { row: id, .. } in open.ok(by_row::by_place(&open, ids)) {
                    by_row::let_others();
                    self.version(&open, id, &mut rows, evaluation);
                }
            }
        }
    }

    /// A version of a block's, if it is not aborted. `rows`: room for it and for the newest of its key.
    unsafe fn version(&mut self, open: &Open, id: RowId, rows: &mut (RowBuf, RowBuf), evaluation: &mut Evaluation) {
        let (row, newest) = rows;
        let mut own = Standing::Aborted;
        let mut is_newest = true;
        let looked = recent::look_at_row(open, id, row, |head, hint| own = mvcc::standing(head, hint));
        let looked = open.ok(looked);
        if looked == Looked::Gone || row.head.flags.is_tombstone() {
            return;
        }
        if looked == Looked::Found {
            let choose = |head: &Head, hint: &Hint<'_>| {
                let standing = mvcc::standing(head, hint);
                if head.row_id > id {
                    is_newest &= standing == Standing::Aborted;
                    return Verdict::Skip;
                }
                own = standing;
                Verdict::Take
            };
            open.ok(open.tree.find(&row.key, choose, newest));
        }
        if own != Standing::Aborted {
            // SAFETY: the table is open.
            unsafe {
                slots::store(evaluation.slot, open, row.as_ref());
                self.row(evaluation, is_newest);
            }
        }
    }
}

/// Blocks whose rows are read together.
const BLOCKS_TOGETHER: u32 = 256;

/// An index is built of what this snapshot sees. Before it is used PostgreSQL waits for those who have older ones, but not for
/// those on standbys.
unsafe fn tell_of_snapshot(open: &Open, snapshot: pg_sys::Snapshot) {
    // SAFETY: the snapshot is registered for the time of the build.
    let end = unsafe { xact::full((*snapshot).xmax) };
    open.ok(open.tree.tell_superseded(Writer(end)));
}

/// Versions, some of them the newest of their keys, that were superseded by writers that not every snapshot sees. In the order
/// of their numbers, in which they are quickest to read.
fn superseded_lately(open: &Open, oldest: u64) -> Vec<RowId> {
    let mut found = Vec::new();
    if open.tree.newest_writer().is_none_or(|newest| newest.0 < oldest) {
        return found;
    }
    let mut cursor = open.ok(open.tree.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward));
    let mut row = RowBuf::default();
    // A version above was written lately. (Maybe one of the key before, when all of that key's were.)
    let mut lately = false;
    loop {
        pgrx::check_for_interrupts!();
        let choose = |head: &Head, hint: &Hint<'_>| {
            if mvcc::standing(head, hint) == Standing::Aborted {
                return Verdict::Skip;
            }
            let old = head.writer.0 < oldest;
            if (lately || !old) && !head.flags.is_tombstone() {
                found.push(head.row_id);
            }
            lately = !old;
            if old {
                Verdict::Take
            } else {
                Verdict::Skip
            }
        };
        if !open.ok(cursor.next(&open.tree, choose, &mut row)) {
            found.sort_unstable();
            return found;
        }
    }
}

/// Whether no version of the key is above this one, but aborted ones.
fn is_newest(open: &Open, row: &RowBuf) -> bool {
    let mut newest = RowBuf::default();
    let choose = |head: &Head, hint: &Hint<'_>| match mvcc::standing(head, hint) {
        Standing::Aborted => Verdict::Skip,
        _ => Verdict::Take,
    };
    open.ok(open.tree.find(&row.key, choose, &mut newest)).taken && newest.head.row_id == row.head.row_id
}

/// CREATE INDEX CONCURRENTLY, second pass: inserts what the snapshot sees and the index does not have.
///
/// # Safety
/// Called by PostgreSQL as its table access methods are.
pub unsafe extern "C-unwind" fn validate_scan(
    table: Relation,
    index: Relation,
    info: *mut IndexInfo,
    snapshot: pg_sys::Snapshot,
    state: *mut pg_sys::ValidateIndexState,
) {
    // SAFETY: PostgreSQL's pointers; this frame has nothing to drop.
    unsafe {
        if !validate(table, index, info, snapshot, state) {
            raw::pg_re_throw();
        }
    }
}

/// False: an ERROR waits to go on.
#[pg_guard]
unsafe extern "C-unwind" fn validate(
    table: Relation,
    index: Relation,
    info: *mut IndexInfo,
    snapshot: pg_sys::Snapshot,
    state: *mut pg_sys::ValidateIndexState,
) -> bool {
    // SAFETY: PostgreSQL's pointers; the snapshot is registered.
    let validated = whole_errors::catch(|| unsafe {
        if catalog::is_our_index(index) {
            return;
        }
        let indexed = tids_of(state);
        let mut evaluation = Evaluation::begin(table, info);
        let open = Open::new(table);
        // Versions that came after the first pass, of writers who did not know the index yet, and are superseded by now.
        tell_of_snapshot(&open, snapshot);
        let scan = Owned::new(KeyScan::new(&open, snapshot, KeyScan::everything()));
        let rows = Owned::get(scan);
        while open.ok(rows.next(&open, Direction::Forward)) {
            pgrx::check_for_interrupts!();
            (*state).htups += 1.0;
            let tid = tid::from_row(rows.row().head.row_id);
            if indexed.binary_search(&encode_tid(&tid)).is_ok() {
                continue;
            }
            slots::store(evaluation.slot, &open, rows.row());
            let Some(mut columns) = evaluation.columns() else { continue };
            let unique = if (*info).ii_Unique {
                pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES
            } else {
                pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO
            };
            let (values, nulls) = (columns.values.as_mut_ptr(), columns.nulls.as_mut_ptr());
            pg_sys::index_insert(index, values, nulls, &raw mut (*evaluation.slot).tts_tid, table, unique, false, info);
            (*state).tups_inserted += 1.0;
        }
        Owned::release(scan);
        evaluation.end();
    });
    validated.is_some()
}

/// As `itemptr_encode` does it.
fn encode_tid(tid: &pg_sys::ItemPointerData) -> i64 {
    i64::from(tid::block_of(tid)) << 16 | i64::from(tid.ip_posid)
}

/// The TIDs that the index has, ascending.
unsafe fn tids_of(state: *mut pg_sys::ValidateIndexState) -> Vec<i64> {
    let mut tids = Vec::new();
    // SAFETY: the sort has been performed; it holds eight-byte integers.
    unsafe {
        let (mut value, mut null) = (Datum::from(0), false);
        while pg_sys::tuplesort_getdatum((*state).tuplesort, true, &mut value, &mut null, std::ptr::null_mut()) {
            tids.push(value.value() as i64);
        }
    }
    debug_assert!(tids.is_sorted());
    tids
}
