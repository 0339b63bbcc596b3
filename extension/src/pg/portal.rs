//! The portal that is being run: a query that a client, or a function, fetches the rows of.

use pgrx::pg_sys;

/// Whether somebody may go back over the rows of the query that is being run, or count them from its beginning again. (A query inside
/// of it that has no portal of its own is taken for a part of it.)
pub fn may_go_back() -> bool {
    // SAFETY: this process's own, null or alive for as long as it is being run.
    let portal = unsafe { pg_sys::ActivePortal.as_ref() };
    portal.is_some_and(|portal| portal.cursorOptions & pg_sys::CURSOR_OPT_SCROLL as i32 != 0)
}
