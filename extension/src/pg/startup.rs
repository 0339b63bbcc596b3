//! Shared memory at server start.

use crate::host::{global, latch};
use crate::pg::exit;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static mut PREVIOUS_REQUEST: pg_sys::shmem_request_hook_type = None;
static mut PREVIOUS_STARTUP: pg_sys::shmem_startup_hook_type = None;
static PRELOADED: AtomicBool = AtomicBool::new(false);

/// To be called while shared_preload_libraries are loaded.
pub fn install_hooks() {
    // SAFETY: the postmaster is one thread; hooks are chained.
    unsafe {
        PREVIOUS_REQUEST = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        PREVIOUS_STARTUP = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup);
    }
    PRELOADED.store(true, Relaxed);
}

/// Raises an error unless the library was preloaded and its shared memory is there, and makes this process one that takes
/// its leave. Cheap: for every entry from SQL, the access methods' handlers too, so that whoever drops a table has come by.
#[inline]
pub fn require() {
    if global::get().is_none() {
        refuse();
    }
    exit::attach();
}

#[cold]
fn refuse() -> ! {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        "loosekv is not loaded in the server",
        "require",
    )
    .set_hint("Add \"loosekv\" to shared_preload_libraries and restart the server.")
    .report(PgLogLevel::ERROR);
    unreachable!("ERROR returned")
}

#[pg_guard]
unsafe extern "C-unwind" fn request() {
    // SAFETY: the hook that was there before, called as PostgreSQL would; the size is asked for in the hook for that.
    unsafe {
        if let Some(previous) = PREVIOUS_REQUEST {
            previous();
        }
        pg_sys::RequestAddinShmemSpace(global::segment_size());
    }
}

/// Runs in the postmaster, at start and again after a crash of a child, when the segment is new.
#[pg_guard]
unsafe extern "C-unwind" fn startup() {
    // SAFETY: as above; the segment's piece is ours and nobody else has been forked yet.
    unsafe {
        if let Some(previous) = PREVIOUS_STARTUP {
            previous();
        }
        if pg_sys::IsUnderPostmaster {
            // A child that runs this hook was not forked: it has other addresses than the process that made the segment.
            ereport!(
                FATAL,
                PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
                "loosekv does not work with a server built with EXEC_BACKEND"
            );
        }
        let mut found = false;
        let size = global::segment_size();
        let piece = pg_sys::ShmemInitStruct(c"LooseKV".as_ptr(), size, &mut found);
        if found {
            ereport!(FATAL, PgSqlErrorCode::ERRCODE_INTERNAL_ERROR, "shared memory of loosekv exists already");
        }
        latch::register_tranche();
        global::create(piece.cast());
    }
    // What this process took from the heap beforehand must not be inherited by every child.
    loosekv_shm::leave();
}

/// `loosekv.require_preload()`: for the install script, which stops with the hint instead of half a table AM.
///
/// # Safety
/// Called by PostgreSQL's function manager.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn loosekv_require_preload(_fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    require();
    pg_sys::Datum::from(0)
}

#[no_mangle]
pub extern "C-unwind" fn pg_finfo_loosekv_require_preload() -> &'static pg_sys::Pg_finfo_record {
    &pg_sys::Pg_finfo_record { api_version: 1 }
}
