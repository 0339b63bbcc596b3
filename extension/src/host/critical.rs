//! The critical section: from here to its end an ERROR restarts the server, for pages and log would disagree.

use pgrx::pg_sys;

/// Held over: changing pages, logging the change, linking it into memory. No allocation, no call that may fail.
pub struct Critical(());

impl Critical {
    pub fn enter() -> Critical {
        // SAFETY: what START_CRIT_SECTION does.
        unsafe { pg_sys::CritSectionCount += 1 };
        Critical(())
    }
}

impl Drop for Critical {
    fn drop(&mut self) {
        // A panic inside must find the section still entered when it is reported, to become PostgreSQL's PANIC.
        if !std::thread::panicking() {
            // SAFETY: what END_CRIT_SECTION does.
            unsafe { pg_sys::CritSectionCount -= 1 };
        }
    }
}

pub fn in_critical_section() -> bool {
    // SAFETY: a process-local counter.
    unsafe { pg_sys::CritSectionCount > 0 }
}
