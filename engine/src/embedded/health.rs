//! Whether the store may still be written to.
//!
//! A failed fsync leaves the kernel's view of the file and the device's apart for good (I18), so the first one ends
//! writing: the reason is kept, and every later write is refused with it. Reads go on.

use crate::error::{Error, Result};
use crate::mutation::{on, Mutation::I18SyncTriedAgain};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub struct Health {
    failed: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Health {
    /// Refuses when the store has failed.
    pub fn check(&self) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Error::Unavailable(format!("the store stopped writing after: {}", self.reason().unwrap_or_default())))
    }

    /// Ends writing; the first reason is kept.
    pub fn fail(&self, reason: &str) {
        lock(&self.reason).get_or_insert_with(|| reason.to_string());
        self.failed.store(true, Ordering::Release);
    }

    pub fn reason(&self) -> Option<String> {
        lock(&self.reason).clone()
    }

    /// Passes the error of a call that must not fail through, having noted it.
    pub fn fatal(&self, error: Error) -> Error {
        if !on(I18SyncTriedAgain) {
            self.fail(&error.to_string());
        }
        error
    }
}

/// A panic elsewhere does not make the data behind a mutex of ours wrong: they are changed in one step.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_is_kept() {
        let health = Health::default();
        assert!(health.check().is_ok());
        health.fail("first");
        health.fail("second");
        let said = health.check().unwrap_err().to_string();
        assert!(said.contains("first") && !said.contains("second"), "{said}");
    }
}
