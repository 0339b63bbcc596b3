//! Hooks into PostgreSQL.
//!
//! | module | what it does |
//! |---|---|
//! | [`object_access`] | makes a new primary key of our table an index of ours; notes when one is dropped |
//! | [`access_method`] | makes the key of a table that becomes ours an index of ours, and of one that leaves a btree |
//! | [`planner`] | shows our key to the planner as the btree it looks like |
//! | [`executor`] | ON CONFLICT and row comparisons, which PostgreSQL allows with btree alone |
//! | [`databases`] | databases that are dropped or moved |
//! | [`options`] | options of single tables, in CREATE and ALTER TABLE |
//! | [`explain`] | what EXPLAIN (ANALYZE) says of scans on our tables |
//! | [`utility`] | statements that need a hand, and those that cannot work |
//!
//! A hook that calls on is no place for pgrx's guard: it would turn every error of every statement into a panic and back,
//! and lose the parts that pgrx does not know (names of constraints, positions in the query). So such a hook is a frame
//! with nothing to drop: it calls guarded functions before and after, and PostgreSQL's directly in between. What a hook has
//! set up when an error jumps over it is undone by [`transaction_ended`] and [`subtransaction_ended`].

pub mod access_method;
pub mod databases;
pub mod executor;
pub mod explain;
pub mod object_access;
pub mod options;
pub mod planner;
pub mod utility;

pub use object_access::key_built;

use super::{batch, catalog, relam_mask};
use crate::table::{info, lock, recent, unread};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::c_void;

/// To be called while shared_preload_libraries are loaded; the processes inherit all of it.
pub fn install() {
    super::row_locks::install();
    object_access::install();
    planner::install();
    executor::install();
    utility::install();
    explain::install();
    // SAFETY: functions that live as long as the server.
    unsafe {
        pg_sys::RegisterXactCallback(Some(transaction_ended), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(subtransaction_ended), std::ptr::null_mut());
        pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), pg_sys::Datum::from(0));
        let am = pg_sys::SysCacheIdentifier::AMNAME as i32;
        pg_sys::CacheRegisterSyscacheCallback(am, Some(access_method_changed), pg_sys::Datum::from(0));
    }
}

/// Without a guard where there is nothing to do.
unsafe extern "C-unwind" fn transaction_ended(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    if event != pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT {
        clean_up(event);
    } else if object_access::commits() {
        object_access::rewrite_before_commit();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn clean_up(event: pg_sys::XactEvent::Type) {
    use pg_sys::XactEvent::*;
    if event == XACT_EVENT_PRE_PREPARE {
        lock::before_prepare();
    }
    if event == XACT_EVENT_PARALLEL_COMMIT {
        crate::host::seen::report_to_leader();
    }
    if matches!(event, XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE) {
        relam_mask::forget();
        executor::rolled_back();
        batch::rolled_back(0);
        unread::rolled_back(0);
        crate::host::progress::ended();
        object_access::forget();
        if event == XACT_EVENT_ABORT {
            utility::failed(0);
        }
        databases::forget();
        options::forget();
        explain::forget();
        lock::end_of_transaction(event == XACT_EVENT_PREPARE);
        recent::set_noting(false);
        info::end_of_transaction();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn subtransaction_ended(
    event: pg_sys::SubXactEvent::Type,
    _id: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        // SAFETY: the subtransaction is still the current one.
        let level = unsafe { super::bindings_am::raw::GetCurrentTransactionNestLevel() };
        relam_mask::rolled_back(level);
        executor::rolled_back();
        explain::rolled_back(level);
        utility::failed(level);
        options::rolled_back(level);
        batch::rolled_back(level);
        unread::rolled_back(level);
        lock::rolled_back();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn relation_changed(_arg: pg_sys::Datum, relid: pg_sys::Oid) {
    relam_mask::relation_changed(relid);
    planner::relation_changed(relid);
    info::forget((relid != pg_sys::Oid::INVALID).then_some(relid));
    recent::forget();
}

#[pg_guard]
unsafe extern "C-unwind" fn access_method_changed(_arg: pg_sys::Datum, _cache: i32, _hash: u32) {
    catalog::forget_key_am();
}
