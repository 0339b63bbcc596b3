//! What the planner learns of our tables: it takes the key for a btree whose pages cost nothing, for they are the table's;
//! and every row that another index points to costs a search in the row directory and a data page of its own, whatever
//! order the index has, but that rows of a bitmap share pages.

use crate::host::process_local::{later, Later, WithBorrow};
use crate::pg::bindings_am::raw;
use crate::pg::catalog;
use crate::pg::relam_mask::{self, Phase};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::collections::HashMap;
use std::ffi::c_char;

static mut PREVIOUS_PLANNER: pg_sys::planner_hook_type = None;
static mut PREVIOUS_INFO: pg_sys::get_relation_info_hook_type = None;

pub fn install() {
    // SAFETY: the postmaster is one thread.
    unsafe {
        PREVIOUS_PLANNER = pg_sys::planner_hook;
        pg_sys::planner_hook = Some(plan);
        PREVIOUS_INFO = pg_sys::get_relation_info_hook;
        pg_sys::get_relation_info_hook = Some(relation_info);
    }
}

/// Planning from within an execution (a function's statements) lifts the masks.
unsafe extern "C-unwind" fn plan(
    query: *mut pg_sys::Query,
    text: *const c_char,
    options: i32,
    params: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: nothing to drop here; see the module of hooks.
    unsafe {
        let phase = relam_mask::enter(Phase::Planning);
        let planned = match PREVIOUS_PLANNER {
            Some(previous) => previous(query, text, options, params),
            None => raw::standard_planner(query, text, options, params),
        };
        relam_mask::leave(phase);
        planned
    }
}

unsafe extern "C-unwind" fn relation_info(
    root: *mut pg_sys::PlannerInfo,
    relid: pg_sys::Oid,
    inherited: bool,
    rel: *mut pg_sys::RelOptInfo,
) {
    // SAFETY: nothing to drop here.
    unsafe {
        if let Some(previous) = PREVIOUS_INFO {
            previous(root, relid, inherited, rel);
        }
        if !(*rel).indexlist.is_null() {
            describe_others(relid, rel);
            describe_keys(rel);
        }
    }
}

type Estimate = unsafe extern "C-unwind" fn(
    *mut pg_sys::PlannerInfo,
    *mut pg_sys::IndexPath,
    f64,
    *mut pg_sys::Cost,
    *mut pg_sys::Cost,
    *mut pg_sys::Selectivity,
    *mut f64,
    *mut f64,
);

/// What reading a row by its id costs beside the page that it stands in, in units of cpu_tuple_cost. With this, indexes and
/// full scans cost the same where they take the same time (`bench/sql crossover`).
const ROW_BY_ID: f64 = 2.5;

/// How the access methods of other indexes estimate: by their oid.
static ESTIMATES: Later<HashMap<u32, Estimate>> = later();
/// Whether keys come in the order of their operator classes: by index.
static ORDERED: Later<HashMap<u32, bool>> = later();

fn is_ordered(index: pg_sys::Oid) -> bool {
    let known = ORDERED.with_borrow(|ordered| ordered.get(&index.to_u32()).copied());
    known.unwrap_or_else(|| {
        let found = catalog::key_codec(index).is_ordered();
        ORDERED.with_borrow_mut(|ordered| ordered.insert(index.to_u32(), found));
        found
    })
}

/// The catalog has changed.
pub fn relation_changed(relid: pg_sys::Oid) {
    ORDERED.with_borrow_mut(|ordered| {
        if relid == pg_sys::Oid::INVALID {
            ordered.clear();
        } else {
            ordered.remove(&relid.to_u32());
        }
    });
}

#[pg_guard]
unsafe extern "C-unwind" fn describe_keys(rel: *mut pg_sys::RelOptInfo) {
    let am = catalog::key_am();
    if am == pg_sys::Oid::INVALID {
        return;
    }
    // SAFETY: a list of IndexOptInfo.
    unsafe {
        for index in catalog::nodes::<pg_sys::IndexOptInfo>((*rel).indexlist) {
            if (*index).relam != am {
                continue;
            }
            (*index).pages = 1;
            (*index).tree_height = 0;
            if is_ordered((*index).indexoid) {
                (*index).relam = pg_sys::Oid::from(relam_mask::BTREE);
            } else {
                // Equality alone: its rows come in another order than the operator class's, and no end of it is the least value.
                (*index).sortopfamily = std::ptr::null_mut();
            }
        }
    }
}

/// Indexes that are not our key lead to rows by row id.
#[pg_guard]
unsafe extern "C-unwind" fn describe_others(relid: pg_sys::Oid, rel: *mut pg_sys::RelOptInfo) {
    let am = catalog::key_am();
    if am == pg_sys::Oid::INVALID {
        return;
    }
    // SAFETY: a list of IndexOptInfo, whose estimates are what access methods gave for that.
    unsafe {
        let others: Vec<_> =
            catalog::nodes::<pg_sys::IndexOptInfo>((*rel).indexlist).filter(|index| (**index).relam != am).collect();
        if others.is_empty() || !is_ours(relid) {
            return;
        }
        for index in others {
            let Some(estimate) = (*index).amcostestimate else { continue };
            let estimate = std::mem::transmute::<unsafe extern "C-unwind" fn(), Estimate>(estimate);
            ESTIMATES.with_borrow_mut(|known| known.insert((*index).relam.to_u32(), estimate));
            let ours: Estimate = cost_by_id;
            (*index).amcostestimate = Some(std::mem::transmute::<Estimate, unsafe extern "C-unwind" fn()>(ours));
        }
    }
}

/// # Safety
/// The relation exists, and somebody holds a lock on it.
unsafe fn is_ours(relid: pg_sys::Oid) -> bool {
    // SAFETY: opened and closed here.
    unsafe {
        let rel = pg_sys::RelationIdGetRelation(relid);
        if rel.is_null() {
            return false;
        }
        let ours = catalog::is_our_table(rel);
        pg_sys::RelationClose(rel);
        ours
    }
}

#[pg_guard]
#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn cost_by_id(
    root: *mut pg_sys::PlannerInfo,
    path: *mut pg_sys::IndexPath,
    loops: f64,
    startup: *mut pg_sys::Cost,
    total: *mut pg_sys::Cost,
    selectivity: *mut pg_sys::Selectivity,
    correlation: *mut f64,
    pages: *mut f64,
) {
    // SAFETY: the planner's pointers; the function that the access method named for this.
    unsafe {
        let index = (*path).indexinfo;
        let estimate = ESTIMATES.with_borrow(|known| known.get(&(*index).relam.to_u32()).copied());
        let Some(estimate) = estimate else { return };
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            estimate(root, path, loops, startup, total, selectivity, correlation, pages);
        });
        *correlation = 0.0;
        *total += *selectivity * (*(*index).rel).tuples * ROW_BY_ID * pg_sys::cpu_tuple_cost;
    }
}
