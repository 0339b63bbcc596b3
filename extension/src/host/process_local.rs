//! What a process keeps for itself.
//!
//! Thread-locals will not do: when a library calls `exit()`, or PostgreSQL itself does since the postmaster is gone, they are
//! destroyed first, and the callbacks that end the transaction come after. Values here are never destroyed.

use std::cell::{LazyCell, RefCell};
use std::ops::Deref;

/// A value of this process, in a `static`.
pub struct ProcessLocal<T>(T);

// SAFETY: PostgreSQL's processes have one thread.
unsafe impl<T> Sync for ProcessLocal<T> {}

impl<T> ProcessLocal<T> {
    pub const fn new(value: T) -> ProcessLocal<T> {
        ProcessLocal(value)
    }
}

/// What is made when it is wanted.
pub type Later<T> = ProcessLocal<LazyCell<RefCell<T>>>;

pub const fn later<T: Default>() -> Later<T> {
    ProcessLocal::new(LazyCell::new(Default::default))
}

impl<T> Deref for ProcessLocal<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Borrows that end with a closure.
pub trait WithBorrow<T> {
    fn with_borrow<R>(&self, f: impl FnOnce(&T) -> R) -> R;
    fn with_borrow_mut<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
}

impl<T> WithBorrow<T> for RefCell<T> {
    #[inline]
    fn with_borrow<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        f(&self.borrow())
    }

    #[inline]
    fn with_borrow_mut<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.borrow_mut())
    }
}
