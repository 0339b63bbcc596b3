//! Shared heap, scope, epoch pin, latches: what lets the engine's memory live in a segment that several processes share.
//!
//! | module | what it is |
//! |---|---|
//! | [`heap`] | the segment: small objects, large blocks, roots, statistics |
//! | [`alloc`] | the global allocator that serves from the heap inside the scope |
//! | [`scope`] | the scope |
//! | [`mod@reserve`] | make sure that what follows can allocate, or be refused |
//! | [`epoch`] | when may memory that readers could still see be freed |
//! | [`latch`] | reader-writer latches |
//!
//! The order of an operation on something shared:
//!
//! ```
//! use loosekv_shm::{epoch, scope, Full, Needs};
//! const NEEDS: Needs = Needs::of(&[64]).and(epoch::NEEDS);
//!
//! fn operate() -> Result<(), Full> {
//!     NEEDS.reserve()?; // all that can fail
//!     let pin = epoch::pin();
//!     let value = scope::with(|| Box::new([0u8; 64]));
//!     // ... publish it, and later, when it has been unlinked:
//!     // SAFETY: nobody can reach it.
//!     unsafe { pin.retire(Box::into_raw(value)) };
//!     Ok(())
//! }
//! # operate().unwrap();
//! ```
//!
//! Life of a process, where the host is PostgreSQL: [`heap::create`] in the postmaster, which makes the shared structures
//! and calls [`leave`]; then in each fork [`recover`] at the start of a statement, and [`leave`] when it exits.

#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

#[macro_use]
mod switches;

pub mod alloc;
mod broken;
mod carve;
mod chunks;
mod class;
pub mod epoch;
mod give_back;
mod growth;
pub mod heap;
mod interleave;
pub mod latch;
pub mod reserve;
pub mod scope;
mod stack;
pub mod vacant;

pub use alloc::SharedAlloc;
pub use epoch::{pin, Pin};
pub use latch::{ExclusiveGuard, RawLatch, SharedGuard, ThreadLatch};
pub use reserve::{reserve, reserve_all_of_it, reserve_at_hand, reserve_emergency, reserve_growth, Full, Needs};
pub use scope::Scope;

/// In debug builds: what is about to be published to other processes must be in the segment, if there is one.
#[inline(always)]
#[track_caller]
pub fn assert_shared<T: ?Sized>(ptr: *const T) {
    debug_assert!(
        !heap::attached() || ptr.is_null() || heap::contains(ptr),
        "a private pointer is being published: {:p}",
        ptr
    );
}

/// Undoes what an error that skipped drops (a longjmp) left behind: scope, pins, counts of latches. For the start of a
/// statement; nothing when the process left nothing behind.
#[inline]
pub fn recover() {
    scope::reset();
    epoch::force_unpin_all();
    latch::forget_held();
}

/// Gives back all that this process has of the heap: before it forks, and when it exits, in whatever state it is.
pub fn leave() {
    recover();
    epoch::detach();
    heap::flush_magazines();
}
