//! How a process takes its leave: of the shared structures when it exits, of dropped tables when a transaction ends.
//!
//! FATAL does not unwind, so what Rust destructors would have done is done here once more, from lists.

use super::bindings_am::raw;
use crate::host::{global, registry, PgHost};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The process that has registered its callbacks: a child must not take its parent's word.
static ATTACHED: AtomicI32 = AtomicI32::new(0);

/// To be called before a process touches the shared structures for the first time ([`super::startup::require`] does it).
/// Cheap afterwards.
#[inline]
pub fn attach() {
    // SAFETY: set at process start.
    if ATTACHED.load(Relaxed) != unsafe { pg_sys::MyProcPid } {
        attach_slow();
    }
}

#[cold]
fn attach_slow() {
    // SAFETY: guarded calls with functions that live as long as the process. `on_shmem_exit` is last, for only it must not
    // be registered without the flag being set.
    unsafe {
        pg_sys::RegisterXactCallback(Some(transaction_ended), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(subtransaction_ended), std::ptr::null_mut());
        pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), pg_sys::Datum::from(0));
        pg_sys::on_shmem_exit(Some(leave), pg_sys::Datum::from(0));
        ATTACHED.store(pg_sys::MyProcPid, Relaxed);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn leave(_code: i32, _arg: pg_sys::Datum) {
    // A scope that a FATAL error left entered, latches and epochs first: the rest allocates and pins.
    loosekv_shm::recover();
    PgHost::unpin_by_force();
    registry::release_by_force();
    if let Some(global) = global::get() {
        global.readers.clear();
    }
    // The buffers of temporary tables end with the process.
    registry::forget_temporary(|_| true);
    loosekv_shm::leave();
}

/// Without a guard where nothing can fail.
unsafe extern "C-unwind" fn transaction_ended(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    // SAFETY: the transaction is still the current one.
    let has_id = || unsafe { raw::GetTopFullTransactionIdIfAny() }.value != 0;
    match event {
        // Without an id it has dropped nothing.
        pg_sys::XactEvent::XACT_EVENT_COMMIT if !has_id() => loosekv_shm::heap::heed(),
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => {}
        _ => clean_up(event),
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn clean_up(event: pg_sys::XactEvent::Type) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_COMMIT => {
            forget_dropped(true);
            loosekv_shm::heap::heed();
        }
        pg_sys::XactEvent::XACT_EVENT_PREPARE => {
            // Whoever ends the transaction, elsewhere and maybe after a restart, is not told which files go then. Nobody comes to them
            // before; those that stay are loaded again.
            forget_dropped(true);
            forget_dropped(false);
        }
        pg_sys::XactEvent::XACT_EVENT_ABORT => {
            // Destructors ran when the error unwound; what C code jumped over is let go of here.
            loosekv_shm::recover();
            forget_dropped(false);
            loosekv_shm::heap::heed();
        }
        _ => {}
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
        loosekv_shm::recover();
        forget_dropped(false);
    }
}

/// PostgreSQL is about to delete these files (DROP, TRUNCATE, rewrites; or a creation that is rolled back).
fn forget_dropped(commit: bool) {
    if !registry::any_open() {
        return;
    }
    let mut nodes: *mut pg_sys::RelFileNode = std::ptr::null_mut();
    // SAFETY: guarded; the list is allocated for us.
    unsafe {
        let count = pg_sys::smgrGetPendingDeletes(commit, &mut nodes);
        for i in 0..count.max(0) as usize {
            registry::forget(*nodes.add(i));
        }
        if !nodes.is_null() {
            pg_sys::pfree(nodes.cast());
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn relation_changed(_arg: pg_sys::Datum, relid: pg_sys::Oid) {
    registry::relation_changed(relid);
}
