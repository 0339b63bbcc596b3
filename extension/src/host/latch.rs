//! A latch of the shared structures: an LWLock in place, so that PostgreSQL releases it on every way out of a process.

use crate::pg::bindings;
use loosekv_shm::RawLatch;
use pgrx::pg_sys;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Set by the postmaster when it makes the segment; children inherit it.
static TRANCHE: AtomicI32 = AtomicI32::new(0);

/// Registers the name under which waits show in `pg_stat_activity`.
pub fn register_tranche() {
    // SAFETY: called in the postmaster while it makes shared memory, as both functions demand; the name is static.
    unsafe {
        let tranche = pg_sys::LWLockNewTrancheId();
        pg_sys::LWLockRegisterTranche(tranche, c"LooseKV".as_ptr());
        TRANCHE.store(tranche, Relaxed);
    }
}

#[repr(transparent)]
pub struct LwLatch(UnsafeCell<pg_sys::LWLock>);

// SAFETY: an LWLock is made for use by many processes.
unsafe impl Send for LwLatch {}
// SAFETY: as above.
unsafe impl Sync for LwLatch {}

impl LwLatch {
    fn release(&self) {
        // SAFETY: the callers hold the lock. An ERROR on the way here has set InterruptHoldoffCount to zero, though the
        // lock is still held; LWLockRelease would take it below zero (LWLockReleaseAll does the same).
        unsafe {
            if pg_sys::InterruptHoldoffCount == 0 {
                pg_sys::InterruptHoldoffCount = 1;
            }
            bindings::LWLockRelease(self.0.get());
        }
    }
}

impl RawLatch for LwLatch {
    fn new() -> LwLatch {
        let mut lock = MaybeUninit::<pg_sys::LWLock>::zeroed();
        // SAFETY: LWLockInitialize fills the lock in; a free lock holds no pointer to itself and may be moved.
        unsafe {
            bindings::LWLockInitialize(lock.as_mut_ptr(), TRANCHE.load(Relaxed));
            LwLatch(UnsafeCell::new(lock.assume_init()))
        }
    }

    fn lock_shared(&self) {
        // SAFETY: the lock is initialized and does not move while shared.
        unsafe { bindings::LWLockAcquire(self.0.get(), pg_sys::LWLockMode::LW_SHARED) };
    }

    fn lock_exclusive(&self) {
        // SAFETY: as above.
        unsafe { bindings::LWLockAcquire(self.0.get(), pg_sys::LWLockMode::LW_EXCLUSIVE) };
    }

    fn try_lock_exclusive(&self) -> bool {
        // SAFETY: as above.
        unsafe { bindings::LWLockConditionalAcquire(self.0.get(), pg_sys::LWLockMode::LW_EXCLUSIVE) }
    }

    unsafe fn unlock_shared(&self) {
        self.release();
    }

    unsafe fn unlock_exclusive(&self) {
        self.release();
    }
}
