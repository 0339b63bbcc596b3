//! PostgreSQL's ERRORs that come from functions of users, and go through frames of ours.
//!
//! pgrx's guard makes a report of its own out of an ERROR, which knows PostgreSQL's SQLSTATEs alone, and no names of constraints. Here the
//! ERROR stays where it is, on PostgreSQL's stack of errors, while our frames unwind; then it goes on as it was.
//!
//! ```text
//!  unguarded function     pg_re_throw
//!   └ guarded one         catch         the frames below drop what they have
//!      └ ...              run           the function of a user
//! ```

use cee_scape::call_with_sigsetjmp;
use pgrx::pg_sys;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

/// An ERROR waits to go on.
struct Waits;

/// Runs what may raise an ERROR by longjmp; it unwinds from here to [`catch`].
///
/// # Safety
/// Within a call of [`catch`]. What `call` has on its stack has nothing to drop.
pub unsafe fn run<R>(call: impl FnOnce() -> R) -> R {
    // SAFETY: by the contract.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        stopped(call).unwrap_or_else(|| {
            pg_sys::CurrentMemoryContext = context;
            resume_unwind(Box::new(Waits))
        })
    }
}

/// Runs what may raise an ERROR by longjmp, as PG_TRY does it. `None`: an ERROR waits, in the memory context where it was raised.
///
/// # Safety
/// What `call` has on its stack has nothing to drop. The ERROR is raised again by `pg_re_throw`, or another one in its place.
pub unsafe fn stopped<R>(call: impl FnOnce() -> R) -> Option<R> {
    let mut result = None;
    // SAFETY: the exception stack is put back either way; after a jump the result is not there.
    unsafe {
        let (stack, callbacks) = (pg_sys::PG_exception_stack, pg_sys::error_context_stack);
        let failed = call_with_sigsetjmp(false, |place| {
            pg_sys::PG_exception_stack = std::ptr::from_ref(place).cast_mut().cast();
            result = Some(call());
            0
        });
        (pg_sys::PG_exception_stack, pg_sys::error_context_stack) = (stack, callbacks);
        result.filter(|_| failed == 0)
    }
}

/// `None`: an ERROR waits. It has to be raised again, by `pg_re_throw`, as soon as no frame is left that has anything to drop.
pub fn catch<R>(call: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => Some(result),
        Err(panic) if panic.is::<Waits>() => None,
        Err(panic) => resume_unwind(panic),
    }
}
