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
    let mut result = None;
    // SAFETY: as PG_TRY does it. After a jump the result is not looked at.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let (stack, callbacks) = (pg_sys::PG_exception_stack, pg_sys::error_context_stack);
        let failed = call_with_sigsetjmp(false, |place| {
            pg_sys::PG_exception_stack = std::ptr::from_ref(place).cast_mut().cast();
            result = Some(call());
            0
        });
        (pg_sys::PG_exception_stack, pg_sys::error_context_stack) = (stack, callbacks);
        match result {
            Some(result) if failed == 0 => result,
            _ => {
                pg_sys::CurrentMemoryContext = context;
                resume_unwind(Box::new(Waits))
            }
        }
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
