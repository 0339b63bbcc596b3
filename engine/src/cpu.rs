//! The processor's cache, and what it can be told.

/// A line of it, in bytes.
pub const LINE: usize = 64;

/// How near to the processor a line is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Near {
    /// It is looked at next.
    First,
    /// One of many, for later: in the first cache they would be in the way of what comes before.
    Second,
}

/// Begins to fetch the line of cache at this address. Any address will do.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    fetch(address, Near::First);
}

/// The same, as near as is wanted.
#[inline(always)]
pub fn fetch<T>(address: *const T, near: Near) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect but on caches, wherever it is.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0, _MM_HINT_T1};
        match near {
            Near::First => _mm_prefetch::<_MM_HINT_T0>(address.cast()),
            Near::Second => _mm_prefetch::<_MM_HINT_T1>(address.cast()),
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (address, near);
}
