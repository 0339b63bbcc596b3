//! The scope: while it is entered, this process's allocations come from the shared heap.
//!
//! It is a flag of the process, not of a thread (a thread-local costs a call in a loaded library, and attached processes
//! use the heap from one thread only). When no heap is attached nothing reads or writes it, so that an embedded engine's
//! threads can run the same code.
//!
//! Keep it short, and let nothing private be made in it: what is made inside lives in the segment, and an allocation that
//! finds the heap full aborts unless it was [reserved](crate::reserve()).

use crate::heap;
use crate::reserve::{Full, Needs};
use std::alloc::Layout;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering::*};

static ACTIVE: AtomicBool = AtomicBool::new(false);

/// Do allocations come from the shared heap now?
#[inline(always)]
pub fn active() -> bool {
    ACTIVE.load(Relaxed)
}

/// Inside the scope while this lives. Dropping it restores what was before, also when a panic unwinds.
#[must_use = "the scope ends where this is dropped"]
pub struct Scope {
    before: bool,
    _this_thread: PhantomData<*const ()>,
}

impl Scope {
    /// Enters the scope; does nothing when no heap is attached.
    #[inline(always)]
    pub fn enter() -> Scope {
        Scope::switch(true)
    }

    #[inline(always)]
    fn switch(to: bool) -> Scope {
        let before = active();
        if heap::attached() {
            ACTIVE.store(to, Relaxed);
        }
        Scope { before, _this_thread: PhantomData }
    }
}

impl Drop for Scope {
    #[inline(always)]
    fn drop(&mut self) {
        if heap::attached() {
            ACTIVE.store(self.before, Relaxed);
        }
    }
}

/// Runs `f` inside the scope.
#[inline(always)]
pub fn with<R>(f: impl FnOnce() -> R) -> R {
    let _scope = Scope::enter();
    f()
}

/// Runs `f` outside the scope, wherever we are now.
#[inline(always)]
pub fn outside<R>(f: impl FnOnce() -> R) -> R {
    let _scope = Scope::switch(false);
    f()
}

/// A `value` in a shared box, or [`Full`]: never aborts. For values up to [`Needs::MAX_BYTES`]; what the value itself
/// points to must have been made in the scope as well.
pub fn try_box<T>(value: T) -> Result<Box<T>, Full> {
    const { assert!(size_of::<T>() <= Needs::MAX_BYTES) };
    if size_of::<T>() > 0 {
        const { Needs::of_layout(Layout::new::<T>()) }.reserve()?;
    }
    Ok(with(|| Box::new(value)))
}

/// Leaves the scope whatever happened: for the start of a statement, after a longjmp may have skipped drops.
#[inline(always)]
pub fn reset() {
    if active() {
        ACTIVE.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_heap_the_flag_is_never_touched() {
        with(|| assert!(!active()));
        let outer = Scope::enter();
        outside(|| assert!(!active()));
        drop(outer);
        assert_eq!(*try_box(7).expect("private memory"), 7);
    }
}
