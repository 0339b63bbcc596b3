//! The table access method's callbacks for DDL: files made, emptied, moved, rewritten; and how large a table is.

use super::bindings_am::guarded;
use super::hooks::utility::leaves_us;
use super::{catalog, table_scan, xact};
use crate::host::registry;
use crate::table::{info, recent, rewrite, Open};
use pgrx::pg_sys;
use pgrx::pg_sys::{ForkNumber, Relation};
use pgrx::prelude::*;

#[pg_guard]
pub unsafe extern "C-unwind" fn set_new_file(
    rel: Relation,
    node: *const pg_sys::RelFileNode,
    persistence: std::ffi::c_char,
    freeze_xid: *mut pg_sys::TransactionId,
    min_multi: *mut pg_sys::MultiXactId,
) {
    // SAFETY: the caller's pointers. A file without pages is an empty table: its first page is made when it is first used.
    unsafe {
        // What a change of key copies keeps its writer if that is not below the oldest that somebody does not see.
        let oldest = xact::oldest_visible(rel).min(xact::full(pg_sys::RecentXmin));
        *freeze_xid = pg_sys::TransactionId::from(oldest as u32);
        *min_multi = pg_sys::GetOldestMultiXactId();
        let smgr = pg_sys::RelationCreateStorage(*node, persistence, true);
        if persistence as u8 == pg_sys::RELPERSISTENCE_UNLOGGED {
            pg_sys::smgrcreate(smgr, ForkNumber::INIT_FORKNUM, false);
            guarded!(log_smgrcreate(node, ForkNumber::INIT_FORKNUM));
            // As heap: a checkpoint may come before the transaction's end, and recovery from there makes no file.
            pg_sys::smgrimmedsync(smgr, ForkNumber::INIT_FORKNUM);
        }
        pg_sys::smgrclose(smgr);
        rewrite::new_file(rel, u32::from((*node).relNode));
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn truncate(rel: Relation) {
    // SAFETY: the relation is open and locked exclusively.
    unsafe {
        pg_sys::RelationTruncate(rel, 0);
        registry::forget_relation(rel);
        recent::forget();
    }
}

#[pg_guard]
pub unsafe extern "C-unwind" fn copy_file(rel: Relation, node: *const pg_sys::RelFileNode) {
    // SAFETY: the relation is open and locked exclusively; as heap does it.
    unsafe {
        let persistence = (*(*rel).rd_rel).relpersistence;
        let source = pg_sys::smgropen((*rel).rd_node, (*rel).rd_backend);
        pg_sys::FlushRelationBuffers(rel);
        let target = pg_sys::RelationCreateStorage(*node, persistence, true);
        pg_sys::RelationCopyStorage(source, target, ForkNumber::MAIN_FORKNUM, persistence);
        if pg_sys::smgrexists(source, ForkNumber::INIT_FORKNUM) {
            pg_sys::smgrcreate(target, ForkNumber::INIT_FORKNUM, false);
            let permanent = persistence as u8 == pg_sys::RELPERSISTENCE_PERMANENT;
            if permanent || persistence as u8 == pg_sys::RELPERSISTENCE_UNLOGGED {
                guarded!(log_smgrcreate(node, ForkNumber::INIT_FORKNUM));
            }
            pg_sys::RelationCopyStorage(source, target, ForkNumber::INIT_FORKNUM, persistence);
        }
        let format = info::of(rel).codec.key.clone();
        info::note_format((*rel).rd_id, u32::from((*node).relNode), format);
        pg_sys::RelationDropStorage(rel);
        pg_sys::smgrclose(target);
    }
}

#[pg_guard]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C-unwind" fn copy_for_cluster(
    old: Relation,
    new: Relation,
    _index: Relation,
    _use_sort: bool,
    oldest: pg_sys::TransactionId,
    xid_cutoff: *mut pg_sys::TransactionId,
    _multi_cutoff: *mut pg_sys::MultiXactId,
    tuples: *mut f64,
    vacuumed: *mut f64,
    recently_dead: *mut f64,
) {
    // SAFETY: both tables are open, and locked exclusively; PostgreSQL's counters. The rows come out in key order whatever
    // order is asked for: it is the only one there is.
    unsafe {
        let from = Open::new(old);
        let key = from.info.codec.key.clone();
        info::note_format((*new).rd_id, catalog::file_of(new), key);
        let to = Open::new(new);
        let (oldest, frozen) = (xact::full(oldest), xact::full(*xid_cutoff));
        let counts = from.ok(rewrite::copy_versions(&from, &to, oldest, frozen));
        *tuples = counts.live;
        *vacuumed = counts.dead;
        *recently_dead = counts.recently_dead;
    }
}

/// Virtual blocks: ANALYZE, samples, TIDs and BRIN count in these.
#[pg_guard]
pub unsafe extern "C-unwind" fn size(rel: Relation, fork: ForkNumber::Type) -> u64 {
    if fork != ForkNumber::MAIN_FORKNUM && fork != ForkNumber::InvalidForkNumber {
        return 0;
    }
    // SAFETY: the relation is open.
    unsafe {
        super::hooks::utility::no_prefetch();
        let open = Open::new(rel);
        u64::from(table_scan::virtual_blocks(&open)) * u64::from(pg_sys::BLCKSZ)
    }
}

/// Large values of ours need no table beside. But a table that is about to become one of heap needs what heap needs, before it is
/// rewritten.
#[pg_guard]
pub unsafe extern "C-unwind" fn needs_toast_table(rel: Relation) -> bool {
    // SAFETY: the relation is open; heap looks at its columns alone.
    unsafe {
        let heap = &*pg_sys::GetHeapamTableAmRoutine();
        leaves_us() && heap.relation_needs_toast_table.is_some_and(|needs| needs(rel))
    }
}

/// The access method of such a table.
#[pg_guard]
pub unsafe extern "C-unwind" fn toast_am(_rel: Relation) -> pg_sys::Oid {
    pg_sys::HEAP_TABLE_AM_OID
}

/// What heap takes for itself of a row and of a page.
const HEAP_OVERHEAD: usize = 28;
const HEAP_USABLE: usize = pg_sys::BLCKSZ as usize - 24;

/// Pages are physical here, for they are what a scan costs. Rows: as many as the tree knows of; else what ANALYZE counted, in
/// proportion to the virtual blocks that were begun since; without a count, all row ids.
#[pg_guard]
pub unsafe extern "C-unwind" fn estimate_size(
    rel: Relation,
    widths: *mut i32,
    pages: *mut pg_sys::BlockNumber,
    tuples: *mut f64,
    all_visible: *mut f64,
) {
    // SAFETY: the relation is open; the planner's pointers.
    unsafe {
        let open = Open::new(rel);
        let smgr = pg_sys::smgropen((*rel).rd_node, (*rel).rd_backend);
        *pages = pg_sys::smgrnblocks(smgr, ForkNumber::MAIN_FORKNUM);
        let given_out = open.tree.next_row_id().0 as f64;
        let (counted, at) = ((*(*rel).rd_rel).reltuples, (*(*rel).rd_rel).relpages);
        *tuples = if let Some(known) = open.tree.rows_about() {
            known as f64
        } else if counted >= 0.0 && at > 0 {
            let growth = f64::from(table_scan::virtual_blocks(&open)) / f64::from(at);
            (f64::from(counted) * growth.clamp(0.5, 10.0)).min(given_out).ceil()
        } else {
            given_out
        };
        if counted < 0.0 {
            // A table about which nothing is known may grow before the plan is used: PostgreSQL has a rule for that.
            let (mut least_pages, mut least_tuples) = (0, 0.0);
            pg_sys::table_block_relation_estimate_size(
                rel,
                widths,
                &raw mut least_pages,
                &raw mut least_tuples,
                all_visible,
                HEAP_OVERHEAD,
                HEAP_USABLE,
            );
            if least_pages > *pages {
                (*pages, *tuples) = (least_pages, (*tuples).max(least_tuples));
            }
        }
        *all_visible = 0.0;
    }
}
