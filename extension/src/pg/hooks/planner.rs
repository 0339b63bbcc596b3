//! The planner takes our key for a btree whose pages cost nothing: they are the table's.

use crate::pg::bindings_am::raw;
use crate::pg::{catalog, relam_mask};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::RefCell;
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
        let masked = relam_mask::depth() > 0;
        if masked {
            relam_mask::lift(true);
        }
        let planned = match PREVIOUS_PLANNER {
            Some(previous) => previous(query, text, options, params),
            None => raw::standard_planner(query, text, options, params),
        };
        if masked {
            relam_mask::lift(false);
        }
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
            describe_keys(rel);
        }
    }
}

thread_local! {
    /// Whether keys come in the order of their operator classes: by index.
    static ORDERED: RefCell<HashMap<u32, bool>> = RefCell::new(HashMap::new());
}

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
