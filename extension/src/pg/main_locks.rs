//! PostgreSQL's own lightweight locks, by their places in its array (its lwlocknames.h).

use pgrx::pg_sys;

#[derive(Clone, Copy)]
pub enum MainLock {
    XidGen = 3,
    ProcArray = 4,
    XactTruncation = 44,
}

impl MainLock {
    pub fn get(self) -> *mut pg_sys::LWLock {
        // SAFETY: the array is there since the server's start, and has these places in all of PostgreSQL 15.
        unsafe { &raw mut (*pg_sys::MainLWLockArray.add(self as usize)).lock }
    }
}
