//! Asking for background work: the database's worker is woken, or started if there is none.
//!
//! Nobody depends on the answer: where no worker can be had, writers flush and VACUUM merges.

use super::claims::Asked;
use crate::host::global;
use crate::pg::worker;
use crate::settings;
use pgrx::pg_sys;

/// This session's database has work. No latch is held, and this is no critical section.
pub fn worker() {
    let Some(global) = global::get() else { return };
    // SAFETY: set at process start.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    if database == 0 {
        return;
    }
    let now = worker::now();
    match global.workers.ask(database, now) {
        Asked::Serving(latch) => worker::wake(latch),
        Asked::Starting => {}
        Asked::Nobody => {
            if global.workers.claim(database, settings::workers(), now) && !worker::register(database) {
                global.workers.withdraw(database);
            }
        }
    }
}

/// Whether this session's database has a worker.
pub fn is_served() -> bool {
    // SAFETY: set at process start.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    global::get().is_some_and(|global| global.workers.is_served(database))
}
