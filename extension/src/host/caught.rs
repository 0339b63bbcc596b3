//! PostgreSQL's ERRORs as values, where the engine has something to put right before they go on.
//!
//! Elsewhere an ERROR unwinds through the engine as a panic, and destructors are all that is needed. But an extension of the
//! file that fails, say, must give its blocks back to the free space, and the engine does that for errors that it is given.
//! The ERROR goes with the engine's error to the entry from SQL, where [`rethrow`] lets it go on as if nothing had been.
//! In between the transaction is lost already: nobody may swallow the error and go on.

use loosekv_engine::error::{Error, Result};
use pgrx::pg_sys::panic::CaughtError;
use std::any::Any;
use std::fmt;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::Mutex;

/// A panic on its way. (The mutex is for `Sync`, which errors must be.)
struct Caught(Mutex<Option<Box<dyn Any + Send>>>);

impl fmt::Debug for Caught {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an error of PostgreSQL")
    }
}

impl fmt::Display for Caught {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let panic = self.0.lock();
        let cause = panic.iter().find_map(|panic| panic.as_ref()?.downcast_ref::<CaughtError>());
        let message = cause.map(|cause| match cause {
            CaughtError::PostgresError(report)
            | CaughtError::ErrorReport(report)
            | CaughtError::RustPanic { ereport: report, .. } => report.message(),
        });
        f.write_str(message.unwrap_or("an error of PostgreSQL"))
    }
}

impl std::error::Error for Caught {}

/// Runs `call`; an ERROR in it becomes an error.
pub fn catch<R>(call: impl FnOnce() -> Result<R>) -> Result<R> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(panic) => {
            let caught = Caught(Mutex::new(Some(panic)));
            Err(Error::Io { what: "page store".into(), source: std::io::Error::other(caught) })
        }
    }
}

/// Whether the error is an ERROR that was caught: the transaction is lost, and holds what it has locked until it ends.
pub fn is_caught(error: &Error) -> bool {
    let Error::Io { source, .. } = error else { return false };
    source.get_ref().is_some_and(|inner| inner.is::<Caught>())
}

/// Lets an ERROR that was caught go on; returns any other error.
pub fn rethrow(error: Error) -> Error {
    if let Error::Io { source, .. } = &error {
        let caught = source.get_ref().and_then(|inner| inner.downcast_ref::<Caught>());
        let panic = caught.and_then(|caught| caught.0.lock().ok()?.take());
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_goes_on_as_it_came() {
        let error = catch(|| -> Result<()> { std::panic::panic_any(42u8) }).expect_err("it panicked");
        assert!(is_caught(&error));
        let panic = catch_unwind(AssertUnwindSafe(|| rethrow(error))).expect_err("it goes on");
        assert_eq!(panic.downcast_ref::<u8>(), Some(&42));
    }

    #[test]
    fn other_errors_are_left_alone() {
        assert!(catch(|| Ok(1)).is_ok());
        let error = catch(|| -> Result<()> { Err(Error::NoSpace("x".into())) }).expect_err("given");
        assert!(!is_caught(&error));
        assert!(matches!(rethrow(error), Error::NoSpace(_)));
    }
}
