//! The table access method's callbacks that read.

use super::hooks::executor;
use super::index_ahead::IndexAhead;
use super::owned::Owned;
use super::{palloc, slots, ssi, statistics, xact};
use crate::table::by_row::ByRow;
use crate::table::mvcc::{Sight, View};
use crate::table::scan::{Pieces, TableScan};
use crate::table::{bitmap, by_row, recent, splits, tid, unread, Open};
use loosekv_engine::error::Result;
use loosekv_engine::host::Host;
use loosekv_engine::run::Spot;
use loosekv_engine::tree::{Direction, Placed};
use loosekv_engine::types::{RowBuf, RowId, RowRef};
use pgrx::pg_sys;
use pgrx::pg_sys::{ItemPointer, Relation, Snapshot, TableScanDesc, TupleTableSlot};
use pgrx::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A scan as PostgreSQL sees it.
#[repr(C)]
struct Scan {
    base: pg_sys::TableScanDescData,
    state: *mut Owned<TableScan>,
}

/// # Safety
/// `scan` came from [`begin`], and no other reference to its state is in use.
unsafe fn state<'a>(scan: TableScanDesc) -> &'a mut TableScan {
    // SAFETY: by the contract.
    unsafe { Owned::get((*scan.cast::<Scan>()).state) }
}

pub fn heading(direction: pg_sys::ScanDirection::Type) -> Direction {
    if direction == pg_sys::ScanDirection::BackwardScanDirection {
        Direction::Backward
    } else {
        Direction::Forward
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn begin(
    rel: Relation,
    snapshot: Snapshot,
    nkeys: i32,
    key: *mut pg_sys::ScanKeyData,
    parallel: pg_sys::ParallelTableScanDesc,
    flags: u32,
) -> TableScanDesc {
    // SAFETY: the relation is open, and the scan keeps it open; the snapshot outlives the scan.
    unsafe {
        debug_assert_eq!(nkeys, 0, "only catalogs are scanned with keys");
        let any = &raw mut pg_sys::SnapshotAnyData;
        let snapshot_in_use = if snapshot.is_null() { any } else { snapshot };
        let scan = palloc::zeroed::<Scan>();
        (*scan).state = Owned::new(TableScan::new(Open::new(rel), snapshot_in_use));
        pg_sys::RelationIncrementReferenceCount(rel);
        let base = &mut (*scan).base;
        base.rs_rd = rel;
        base.rs_snapshot = snapshot;
        base.rs_nkeys = nkeys;
        base.rs_key = key;
        base.rs_flags = flags;
        base.rs_parallel = parallel;
        let whole = pg_sys::ScanOptions::SO_TYPE_SEQSCAN
            | pg_sys::ScanOptions::SO_TYPE_SAMPLESCAN
            | pg_sys::ScanOptions::SO_TYPE_TIDRANGESCAN;
        if flags & whole != 0 && !snapshot.is_null() && (*snapshot).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC
        {
            ssi::read_table(rel, snapshot);
        }
        if flags & whole != 0 {
            statistics::count_scans(rel, 1);
        }
        scan.cast()
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn end(scan: TableScanDesc) {
    // SAFETY: the scan is not used afterwards.
    unsafe {
        Owned::release((*scan.cast::<Scan>()).state);
        pg_sys::RelationDecrementReferenceCount((*scan).rs_rd);
        if (*scan).rs_flags & pg_sys::ScanOptions::SO_TEMP_SNAPSHOT != 0 {
            pg_sys::UnregisterSnapshot((*scan).rs_snapshot);
        }
        palloc::free(scan);
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn rescan(
    scan: TableScanDesc,
    _key: *mut pg_sys::ScanKeyData,
    _set_params: bool,
    _allow_strat: bool,
    _allow_sync: bool,
    _allow_pagemode: bool,
) {
    // SAFETY: the scan is in use by nobody else.
    unsafe { state(scan).rescan() }
}

/// Puts the row found, if any, into the slot.
///
/// # Safety
/// `slot` is a slot for rows of the table.
unsafe fn give(open: *const Open, found: Result<Option<RowRef<'_>>>, slot: *mut TupleTableSlot) -> bool {
    // SAFETY: the table stays open during the call.
    unsafe {
        match (*open).ok(found) {
            Some(row) => {
                slots::store(slot, &*open, row);
                true
            }
            None => {
                slots::clear(slot);
                false
            }
        }
    }
}

/// Without a guard where the next row has been found ahead: then nothing can fail.
///
/// # Safety
/// A callback of the table access method.
pub unsafe extern "C-unwind" fn next(
    scan: TableScanDesc,
    direction: pg_sys::ScanDirection::Type,
    slot: *mut TupleTableSlot,
) -> bool {
    // SAFETY: the scan's state is used by this call alone. The row stays on its page until the scan moves or ends.
    unsafe {
        let state = state(scan);
        if slots::may_be_lent(slot, &state.open) && state.step(heading(direction)) {
            if let Some(spot) = state.spot() {
                slots::lend(slot, &state.open, spot);
                statistics::count_row((*scan).rs_rd);
                return true;
            }
        }
        find_next(scan, direction, slot)
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn find_next(
    scan: TableScanDesc,
    direction: pg_sys::ScanDirection::Type,
    slot: *mut TupleTableSlot,
) -> bool {
    // SAFETY: the scan's state is used by this call alone; `open` is a part of it that does not change.
    unsafe {
        let state = state(scan);
        let open = &raw const state.open;
        let parallel = (*scan).rs_parallel;
        let found = if parallel.is_null() {
            state.next(heading(direction))
        } else {
            state.next_shared(&*parallel.cast::<Parallel>())
        };
        if !(*open).ok(found) {
            slots::clear(slot);
            return false;
        }
        match state.spot() {
            Some(spot) if slots::may_be_lent(slot, &*open) => slots::lend(slot, &*open, spot),
            _ => slots::store(slot, &*open, state.row()),
        }
        statistics::count_row((*scan).rs_rd);
        true
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn set_tid_range(scan: TableScanDesc, from: ItemPointer, to: ItemPointer) {
    // SAFETY: the executor's TIDs.
    unsafe { state(scan).set_tid_range(&*from, &*to) }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn next_in_tid_range(
    scan: TableScanDesc,
    direction: pg_sys::ScanDirection::Type,
    slot: *mut TupleTableSlot,
) -> bool {
    // SAFETY: as for `next`.
    unsafe {
        let state = state(scan);
        let open = &raw const state.open;
        give(open, state.next_in_tid_range(heading(direction)), slot)
    }
}

/// What the workers of a parallel scan share, in dynamic shared memory.
#[repr(C)]
pub struct Parallel {
    base: pg_sys::ParallelTableScanDescData,
    next: AtomicU64,
    borders_len: u32,
    borders: [u8; splits::ROOM],
}

impl Pieces for Parallel {
    fn claim(&self) -> usize {
        usize::try_from(self.next.fetch_add(1, Relaxed)).unwrap_or(usize::MAX)
    }

    fn borders(&self) -> &[u8] {
        self.borders.get(..self.borders_len as usize).unwrap_or(&[])
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn parallel_size(_rel: Relation) -> pg_sys::Size {
    size_of::<Parallel>()
}

#[pg_guard]
pub unsafe extern "C-unwind" fn parallel_begin(rel: Relation, scan: pg_sys::ParallelTableScanDesc) -> pg_sys::Size {
    // SAFETY: PostgreSQL gives as much room as `parallel_size` asked for.
    unsafe {
        let open = Open::new(rel);
        let borders = splits::encode(&open.ok(splits::choose(&open)));
        let shared = scan.cast::<Parallel>();
        (*shared).base.phs_relid = (*rel).rd_id;
        (*shared).base.phs_syncscan = false;
        (&raw mut (*shared).next).write(AtomicU64::new(0));
        (*shared).borders_len = borders.len() as u32;
        (&raw mut (*shared).borders).cast::<u8>().copy_from_nonoverlapping(borders.as_ptr(), borders.len());
        size_of::<Parallel>()
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn parallel_rescan(_rel: Relation, scan: pg_sys::ParallelTableScanDesc) {
    // SAFETY: made by `parallel_begin`; no worker is running.
    unsafe { (*scan.cast::<Parallel>()).next.store(0, Relaxed) }
}

/// The node was set up: its scan of a table of ours will go through its bitmap.
///
/// # Safety
/// The executor's node, with its scan begun.
pub unsafe fn set_bitmap_node(node: *mut pg_sys::BitmapHeapScanState) {
    // SAFETY: by the contract; the scan ends before its node does.
    unsafe { state((*node).ss.ss_currentScanDesc).set_bitmap(node) };
}

#[pg_guard]
pub unsafe extern "C-unwind" fn bitmap_block(scan: TableScanDesc, page: *mut pg_sys::TBMIterateResult) -> bool {
    // SAFETY: as for `next`.
    unsafe {
        if !state(scan).has_bitmap() {
            executor::prepare_second_look();
        }
        let state = state(scan);
        let recheck = state.begin_bitmap_page((*page).blockno, bitmap::offsets_of(page), (*page).recheck);
        (*page).recheck = state.open.ok(recheck);
    }
    true
}

#[pg_guard]
pub unsafe extern "C-unwind" fn bitmap_row(
    scan: TableScanDesc,
    _page: *mut pg_sys::TBMIterateResult,
    slot: *mut TupleTableSlot,
) -> bool {
    // SAFETY: as for `next`.
    unsafe {
        let state = state(scan);
        let open = &raw const state.open;
        let found = state.next_in_bitmap_page();
        let given = give(open, found, slot);
        if given {
            statistics::count_fetched((*scan).rs_rd);
        }
        given
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn sample_block(scan: TableScanDesc, sample: *mut pg_sys::SampleScanState) -> bool {
    // SAFETY: as for `next`; the sampling method's functions are called as its contract says.
    unsafe {
        let state = state(scan);
        let blocks = state.blocks();
        state.block = match (*(*sample).tsmroutine).NextSampleBlock {
            Some(choose) => {
                let block = pg_sys::ffi::pg_guard_ffi_boundary(|| choose(sample, blocks));
                (block != pg_sys::InvalidBlockNumber).then_some(block)
            }
            None => Some(state.block.map_or(0, |block| block + 1)).filter(|block| *block < blocks),
        };
        state.block.is_some()
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn sample_row(
    scan: TableScanDesc,
    sample: *mut pg_sys::SampleScanState,
    slot: *mut TupleTableSlot,
) -> bool {
    // SAFETY: as for `sample_block`.
    unsafe {
        let state = state(scan);
        let open = &raw const state.open;
        let (Some(block), Some(choose)) = (state.block, (*(*sample).tsmroutine).NextSampleTuple) else {
            slots::clear(slot);
            return false;
        };
        loop {
            let offset = pg_sys::ffi::pg_guard_ffi_boundary(|| {
                choose(sample, block, tid::ROWS_PER_BLOCK as pg_sys::OffsetNumber)
            });
            if offset == 0 {
                slots::clear(slot);
                return false;
            }
            if let Some(row) = (*open).ok(state.sampled(offset)) {
                slots::store(slot, &*open, row);
                return true;
            }
        }
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn analyze_block(
    scan: TableScanDesc,
    block: pg_sys::BlockNumber,
    _strategy: pg_sys::BufferAccessStrategy,
) -> bool {
    // SAFETY: as for `next`.
    unsafe { state(scan).begin_analyze_block(block) };
    true
}

#[pg_guard]
pub unsafe extern "C-unwind" fn analyze_row(
    scan: TableScanDesc,
    _oldest: pg_sys::TransactionId,
    live: *mut f64,
    dead: *mut f64,
    slot: *mut TupleTableSlot,
) -> bool {
    // SAFETY: as for `next`; PostgreSQL's counters.
    unsafe {
        let state = state(scan);
        let open = &raw const state.open;
        let found = state.next_to_analyze(&mut *live, &mut *dead);
        give(open, found, slot)
    }
}

/// What an index scan keeps of our table between its fetches.
#[repr(C)]
pub struct Fetch {
    base: pg_sys::IndexFetchTableData,
    state: *mut Owned<FetchState>,
}

#[derive(Default)]
pub struct FetchState {
    /// A row that our own index has found, and decided to be visible, for the next fetch.
    found: Option<(*const Open, Expected)>,
    /// Made when a row is first looked up here: a scan of our key has the table open itself.
    looking_up: Option<Box<LookingUp>>,
}

/// What it takes to find the rows that an index which is not ours names.
struct LookingUp {
    open: Open,
    by_row: ByRow,
    /// The scan of the index, if its next rows can be told.
    ahead: Option<IndexAhead>,
    /// Rows to be read together.
    together: Vec<RowId>,
    /// How many pages had been fetched when rows were read last.
    fetched: Option<u64>,
}

enum Expected {
    Row(RowRef<'static>),
    Ahead(Spot<'static>),
}

impl FetchState {
    fn rewind(&mut self) {
        self.found = None;
        if let Some(looking_up) = &mut self.looking_up {
            looking_up.by_row.forget_ahead();
            if let Some(ahead) = &mut looking_up.ahead {
                ahead.rewind();
            }
        }
    }

    /// The scan of our key has found this row.
    ///
    /// # Safety
    /// Both stay where they are until the scan is asked for the next row, and that one is fetched before.
    pub unsafe fn expect(&mut self, open: &Open, row: RowRef<'_>) {
        // SAFETY: by the contract.
        self.found = Some((open, Expected::Row(unsafe { std::mem::transmute::<RowRef<'_>, RowRef<'static>>(row) })));
    }

    /// The same for a row that was found ahead.
    ///
    /// # Safety
    /// As for [`FetchState::expect`].
    #[inline]
    pub unsafe fn expect_ahead(&mut self, open: &Open, spot: Spot<'_>) {
        // SAFETY: by the contract.
        self.found = Some((open, Expected::Ahead(unsafe { std::mem::transmute::<Spot<'_>, Spot<'static>>(spot) })));
    }
}

impl LookingUp {
    /// Reads this row and those that the scan will name next together, where that can be done.
    fn read_together(&mut self, view: &mut View, snapshot: Snapshot, tid: &pg_sys::ItemPointerData) -> Result<()> {
        let LookingUp { open, ahead: Some(ahead), .. } = self else { return Ok(()) };
        if !view.may_look_ahead() || self.by_row.is_ahead(snapshot, tid) {
            return Ok(());
        }
        ahead.rows_from(tid, &mut self.together);
        let before = self.fetched.replace(open.tree.host.pages_fetched());
        if self.together.len() > 1 {
            if before != self.fetched {
                self.together.iter().try_for_each(|row| open.tree.ask_for_row(*row))?;
            }
            let rows = self.together.iter().copied().map(Placed::unknown);
            self.by_row.read_together(open, view, snapshot, rows)?;
        }
        Ok(())
    }
}

/// # Safety
/// `fetch` was made by [`fetch_begin`].
pub unsafe fn fetch_state<'a>(fetch: *mut pg_sys::IndexFetchTableData) -> &'a mut FetchState {
    // SAFETY: by the contract.
    unsafe { Owned::get((*fetch.cast::<Fetch>()).state) }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn fetch_begin(rel: Relation) -> *mut pg_sys::IndexFetchTableData {
    // SAFETY: the relation stays open as long as the fetch state is used.
    unsafe {
        let fetch = palloc::zeroed::<Fetch>();
        (*fetch).base.rel = rel;
        (*fetch).state = Owned::new(FetchState::default());
        fetch.cast()
    }
}

/// Without a guard: nothing can fail.
///
/// # Safety
/// A callback of the table access method.
pub unsafe extern "C-unwind" fn fetch_reset(fetch: *mut pg_sys::IndexFetchTableData) {
    // SAFETY: made by `fetch_begin`.
    unsafe { fetch_state(fetch).rewind() }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn fetch_end(fetch: *mut pg_sys::IndexFetchTableData) {
    // SAFETY: made by `fetch_begin`, and not used afterwards.
    unsafe {
        Owned::release((*fetch.cast::<Fetch>()).state);
        palloc::free(fetch);
    }
}

/// Without a guard where our index has found the row ahead: then nothing can fail.
///
/// # Safety
/// A callback of the table access method.
pub unsafe extern "C-unwind" fn fetch_row(
    fetch: *mut pg_sys::IndexFetchTableData,
    tid: ItemPointer,
    snapshot: Snapshot,
    slot: *mut TupleTableSlot,
    call_again: *mut bool,
    all_dead: *mut bool,
) -> bool {
    // SAFETY: the index code's pointers. The row stays on its page until the index scan moves or ends.
    unsafe {
        let state = fetch_state(fetch);
        if let Some((open, Expected::Ahead(spot))) = state.found {
            if slots::may_be_lent(slot, &*open) {
                state.found = None;
                *call_again = false;
                if !all_dead.is_null() {
                    *all_dead = false;
                }
                slots::lend(slot, &*open, spot);
                return true;
            }
        }
        find_row(fetch, tid, snapshot, slot, call_again, all_dead)
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn find_row(
    fetch: *mut pg_sys::IndexFetchTableData,
    tid: ItemPointer,
    snapshot: Snapshot,
    slot: *mut TupleTableSlot,
    call_again: *mut bool,
    all_dead: *mut bool,
) -> bool {
    // SAFETY: the index code's pointers; a row that our index left is still where it was.
    unsafe {
        let state = fetch_state(fetch);
        *call_again = false;
        if !all_dead.is_null() {
            *all_dead = false;
        }
        match state.found.take() {
            Some((open, Expected::Row(found))) => slots::store(slot, &*open, found),
            Some((open, Expected::Ahead(spot))) => {
                let (first, rest) = spot.key();
                let key = [first, rest].concat();
                slots::store(slot, &*open, RowRef { key: &key, head: spot.head(), body: spot.body() });
            }
            None => return fetch_by_row(fetch, tid, snapshot, slot, all_dead),
        }
        true
    }
}

/// What an index that is not ours has found.
///
/// # Safety
/// The index code's pointers.
unsafe fn fetch_by_row(
    fetch: *mut pg_sys::IndexFetchTableData,
    tid: ItemPointer,
    snapshot: Snapshot,
    slot: *mut TupleTableSlot,
    all_dead: *mut bool,
) -> bool {
    // SAFETY: by the contract.
    unsafe {
        let rel = (*fetch).rel;
        let looking_up = fetch_state(fetch).looking_up.get_or_insert_with(|| {
            let (by_row, together) = (ByRow::default(), Vec::new());
            Box::new(LookingUp { open: Open::new(rel), by_row, ahead: IndexAhead::of(fetch), together, fetched: None })
        });
        let mut view = View::new(rel, snapshot);
        let read = looking_up.read_together(&mut view, snapshot, &*tid);
        let LookingUp { open, by_row, .. } = &mut **looking_up;
        open.ok(read);
        let sight = by_row.fetch(open, &mut view, snapshot, &*tid);
        let sight = open.ok(sight);
        if sight == Sight::Seen {
            recent::note_scanned(open, by_row.row.as_ref());
            slots::store(slot, open, by_row.row.as_ref());
            return true;
        }
        if !all_dead.is_null() {
            // The index marks its entry by a hint, of which the log does not tell.
            *all_dead = sight.is_dead_to_all(|| xact::oldest_visible(rel)) && open.ok(sight.outlasts_a_crash(open));
        }
        false
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn fetch_row_version(
    rel: Relation,
    tid: ItemPointer,
    snapshot: Snapshot,
    slot: *mut TupleTableSlot,
) -> bool {
    // SAFETY: the executor's pointers.
    unsafe {
        let open = Open::new(rel);
        if let Some(unread) = tid::to_unread(&*tid) {
            // For the new row, which takes no more of the old one than what stands for it has.
            let mut row = RowBuf::default();
            let found = unread::recall(&open, unread, &mut row).is_some();
            if found {
                slots::store(slot, &open, row.as_ref());
            }
            return found;
        }
        let mut view = View::new(rel, snapshot);
        let mut by_row = ByRow::default();
        let sight = open.ok(by_row.fetch(&open, &mut view, snapshot, &*tid));
        if sight != Sight::Seen {
            return false;
        }
        recent::note(&open, by_row.row.as_ref());
        slots::store(slot, &open, by_row.row.as_ref());
        true
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn tid_valid(scan: TableScanDesc, tid: ItemPointer) -> bool {
    // SAFETY: the executor's pointers.
    unsafe {
        let state = state(scan);
        tid::to_row(&*tid).is_some_and(|row| row < state.open.tree.next_row_id())
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn latest_tid(scan: TableScanDesc, tid: ItemPointer) {
    // SAFETY: the executor's pointers.
    unsafe {
        let state = state(scan);
        let latest = state.latest(&*tid);
        *tid = state.open.ok(latest);
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn satisfies_snapshot(
    rel: Relation,
    slot: *mut TupleTableSlot,
    snapshot: Snapshot,
) -> bool {
    // SAFETY: the executor's pointers.
    unsafe {
        if tid::to_unread(&(*slot).tts_tid).is_some() {
            // Only what everybody sees is left unread.
            return true;
        }
        let open = Open::new(rel);
        let mut view = View::new(rel, snapshot);
        let sight = open.ok(ByRow::default().fetch(&open, &mut view, snapshot, &(*slot).tts_tid));
        sight == Sight::Seen
    }
}

/// Which of these index entries point to rows that nobody will see again? To btrees, which ask before they choose: none, as far as we
/// can tell at that price; their entries go with VACUUM. Hash and GiST indexes are about to take out what scans have marked as
/// dead, and do so whatever we say. They ask whose snapshots on standbys may still need it.
#[pg_guard]
pub unsafe extern "C-unwind" fn index_delete(
    rel: Relation,
    operation: *mut pg_sys::TM_IndexDeleteOp,
) -> pg_sys::TransactionId {
    // SAFETY: the index code's struct, with as many entries as it says.
    unsafe {
        if (*operation).bottomup || (*(*(*operation).irel).rd_rel).relam == pg_sys::BTREE_AM_OID {
            (*operation).ndeltids = 0;
            return pg_sys::InvalidTransactionId;
        }
        let open = Open::new(rel);
        let own = &raw mut pg_sys::SnapshotSelfData;
        let (mut view, mut by_row, mut newest) = (View::new(rel, own), ByRow::default(), None);
        for entry in 0..(*operation).ndeltids.max(0) as usize {
            let tid = &(*(*operation).deltids.add(entry)).tid;
            // What is gone from the tree was told of when it went.
            if let Sight::Superseded(by) = open.ok(by_row.fetch(&open, &mut view, own, tid)) {
                newest = newest.max(Some(by.writer));
            }
        }
        newest.map_or(pg_sys::InvalidTransactionId, xact::short)
    }
}

/// How many virtual blocks a table has.
pub fn virtual_blocks(open: &Open) -> u32 {
    by_row::blocks(open)
}
