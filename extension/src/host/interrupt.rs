//! Cancel and terminate requests.
//!
//! A terminate request ends the process where it is noticed, without unwinding: whatever shared structure was half built
//! is lost to everybody. So loading, flushing and merging run [`held`]: PostgreSQL notices nothing meanwhile, the host's
//! page calls look at the pending requests themselves and return an error, which unwinds, and the request is then served.

use crate::host::critical::in_critical_section;
use loosekv_engine::error::{Error, Result};
use pgrx::pg_sys;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How many [`Held`] this process has. Per process: children begin with the postmaster's zero.
static HELD: AtomicU32 = AtomicU32::new(0);

struct Held;

impl Held {
    fn new() -> Held {
        HELD.fetch_add(1, Relaxed);
        // SAFETY: what HOLD_INTERRUPTS does.
        unsafe { pg_sys::InterruptHoldoffCount += 1 };
        Held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Relaxed);
        // SAFETY: what RESUME_INTERRUPTS does, unless an ERROR on the way has set the count to zero.
        unsafe {
            pg_sys::InterruptHoldoffCount = pg_sys::InterruptHoldoffCount.saturating_sub(1);
        }
    }
}

/// Runs `work` so that cancel and terminate requests become errors of the host's page calls, then serves them.
pub fn held<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    let result = {
        let _held = Held::new();
        work()
    };
    if result.is_err() {
        check();
    }
    result
}

fn requested() -> bool {
    // SAFETY: flags that signal handlers set and anyone may read.
    unsafe { pg_sys::InterruptPending != 0 && (pg_sys::QueryCancelPending != 0 || pg_sys::ProcDiePending != 0) }
}

/// To be called between steps of long work: serves a pending request, or returns an error where that must wait.
#[inline]
pub fn poll() -> Result<()> {
    // SAFETY: a flag that signal handlers set.
    if unsafe { pg_sys::InterruptPending } == 0 {
        return Ok(());
    }
    if HELD.load(Relaxed) > 0 {
        if requested() {
            return Err(Error::Unavailable("interrupted by a cancel or terminate request".into()));
        }
        barrier();
        return Ok(());
    }
    check();
    Ok(())
}

/// Others wait until every process has gone through their barrier (DROP DATABASE, DROP TABLESPACE: all files are to be
/// closed), and flushes and merges are long. Between page calls there is nothing that closing files would harm.
fn barrier() {
    // SAFETY: a flag that a signal handler sets; the guarded call turns an ERROR into a panic.
    unsafe {
        if pg_sys::ProcSignalBarrierPending != 0 && !in_critical_section() {
            pg_sys::ProcessProcSignalBarrier();
        }
    }
}

/// CHECK_FOR_INTERRUPTS: a no-op where interrupts are held off.
#[inline]
pub fn check() {
    // SAFETY: the guarded call turns an ERROR into a panic.
    unsafe {
        if pg_sys::InterruptPending != 0 && !in_critical_section() {
            pg_sys::ProcessInterrupts();
        }
    }
}

/// Sleeps, but wakes for whatever PostgreSQL wants of this process, and serves it. No latch is held.
pub fn nap(time: std::time::Duration) {
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: guarded calls on this process's own latch.
    unsafe {
        pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, time.as_millis() as i64, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    check();
}
