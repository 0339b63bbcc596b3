//! Which rows a btree's scan will name next.
//!
//! PostgreSQL fetches the rows that an index names one by one, but a btree's scan takes all matches from a page of the index at once: they
//! are there to be seen, and rows that are known ahead are read together. A scan is found by its node, which the executor's hook tells of
//! where many rows are to be expected; what stands there is believed if the row that is being fetched stands where it should.

use super::owned::Owned;
use crate::host::pins;
use crate::host::process_local::{later, Later, WithBorrow};
use crate::table::tid;
use loosekv_engine::types::RowId;
use pgrx::pg_sys;

/// No row is read ahead for plans that expect fewer.
const FEWEST_EXPECTED: f64 = 4.0;
/// How many rows are read together, at most: first one, then ever more, for the scan may not want all.
const MOST: usize = 32;

/// Most items of a page: `MaxTIDsPerBTreePage`.
const MOST_ITEMS: i32 = ((pg_sys::BLCKSZ as usize - 24 - 16) / size_of::<pg_sys::ItemPointerData>()) as i32;

/// `BTScanPosItem`.
#[repr(C)]
struct Item {
    tid: pg_sys::ItemPointerData,
    index_offset: u16,
    tuple_offset: u16,
}

/// `BTScanPosData`, without its items.
#[repr(C)]
struct Position {
    buffer: pg_sys::Buffer,
    lsn: pg_sys::XLogRecPtr,
    page: pg_sys::BlockNumber,
    next_page: pg_sys::BlockNumber,
    more_left: bool,
    more_right: bool,
    next_tuple_offset: i32,
    first: i32,
    last: i32,
    at: i32,
    items: [Item; 0],
}

/// `BTScanOpaqueData`, as far as the scan's position.
#[repr(C)]
struct Opaque {
    qual_ok: bool,
    arrays_started: bool,
    number_of_keys: i32,
    keys: pg_sys::ScanKey,
    array_keys: pg_sys::ScanKey,
    array_key_count: [i32; 2],
    array_infos: *mut std::ffi::c_void,
    array_context: pg_sys::MemoryContext,
    killed: *mut i32,
    killed_count: i32,
    tuples: [*mut std::ffi::c_char; 2],
    mark_item: i32,
    position: Position,
}

/// A node of a plan that runs: where it keeps its scan, once that has begun.
struct Watched(*mut pg_sys::IndexScanDesc);

static WATCHED: Later<Vec<*mut pg_sys::IndexScanDesc>> = later();

impl Drop for Watched {
    fn drop(&mut self) {
        WATCHED.with_borrow_mut(|all| {
            // Those that come last go first.
            if let Some(at) = all.iter().rposition(|scan| *scan == self.0) {
                all.swap_remove(at);
            }
        });
    }
}

/// Whether it is worth while to watch a node of this plan.
///
/// # Safety
/// The executor's plan.
pub unsafe fn is_to_be_watched(plan: *mut pg_sys::Plan) -> bool {
    // SAFETY: by the contract.
    unsafe { (*plan).plan_rows >= FEWEST_EXPECTED }
}

/// A node has been set up that scans this index of a table of ours.
///
/// # Safety
/// The executor's node, which lives as long as its query's memory context; `scan` is a part of it.
pub unsafe fn watch(node: *mut pg_sys::PlanState, index: pg_sys::Relation, scan: *mut pg_sys::IndexScanDesc) {
    // SAFETY: by the contract.
    unsafe {
        let is_btree = !index.is_null() && (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID;
        if is_btree && is_to_be_watched((*node).plan) {
            let before = pg_sys::MemoryContextSwitchTo((*(*node).state).es_query_cxt);
            Owned::new(Watched(scan));
            pg_sys::MemoryContextSwitchTo(before);
            WATCHED.with_borrow_mut(|all| all.push(scan));
        }
    }
}

/// What a scan names next.
pub struct IndexAhead {
    scan: pg_sys::IndexScanDesc,
    /// Page of the index, and place of the row that was read last there.
    page: pg_sys::BlockNumber,
    at: i32,
    together: usize,
}

impl IndexAhead {
    /// The scan for which these rows are fetched, if it is watched.
    pub fn of(fetch: *mut pg_sys::IndexFetchTableData) -> Option<IndexAhead> {
        // SAFETY: nodes are watched as long as they live, and have a scan that is begun, or none.
        let is_it = |scan: &pg_sys::IndexScanDesc| unsafe { !scan.is_null() && (**scan).xs_heapfetch == fetch };
        // SAFETY: as above.
        let scans = |all: &Vec<*mut pg_sys::IndexScanDesc>| all.iter().rev().map(|at| unsafe { **at }).find(is_it);
        WATCHED.with_borrow(scans).map(|scan| IndexAhead { scan, page: pg_sys::InvalidBlockNumber, at: 0, together: 0 })
    }

    /// The scan begins anew.
    pub fn rewind(&mut self) {
        (self.page, self.together) = (pg_sys::InvalidBlockNumber, 0);
    }

    /// The rows to be read together from this one on; none, if there is only this one. To be called while the scan fetches it.
    pub fn rows_from(&mut self, from: &pg_sys::ItemPointerData, rows: &mut Vec<RowId>) {
        rows.clear();
        let together = self.together;
        self.together = (2 * together).clamp(2, MOST.min(pins::most()).max(2));
        // SAFETY: the scan ends after its fetches do. It is a btree's, so its own state is that of a btree's scan; the items from the
        // first to the last are set.
        unsafe {
            let opaque = (*self.scan).opaque.cast::<Opaque>();
            if opaque.is_null() {
                return;
            }
            let position = &raw const (*opaque).position;
            let (first, last, at) = ((*position).first, (*position).last, (*position).at);
            if !(0 <= first && first <= at && at <= last && last < MOST_ITEMS) {
                return;
            }
            let item = |place: i32| (&raw const (*position).items).cast::<Item>().add(place as usize);
            let row_of = |place: i32| tid::to_row(&(*item(place)).tid);
            if row_of(at) != tid::to_row(from) {
                return;
            }
            let same_page = self.page == (*position).page;
            self.page = (*position).page;
            let backward = if same_page { at < self.at } else { at == last };
            self.at = at;
            let step = if backward { -1 } else { 1 };
            let places = std::iter::successors(Some(at), |place| Some(place + step));
            rows.extend(places.take_while(|at| (first..=last).contains(at)).take(together).map_while(row_of));
            self.at += step * (rows.len() as i32 - 1).max(0);
        }
    }
}
