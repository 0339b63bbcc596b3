//! A row cache for tests.

use super::RowCache;
use loosekv_shm::ThreadLatch;
use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::ops::Deref;

/// A cache in memory of its own.
pub(crate) struct Own(RowCache<ThreadLatch>, *mut u8, Layout);

// SAFETY: the memory is the cache's, which may be shared.
unsafe impl Sync for Own {}

impl Own {
    pub(crate) fn new(bytes: usize) -> Own {
        let layout = Layout::from_size_align(bytes, 64).unwrap();
        // SAFETY: not of size zero; freed after the cache was used.
        let memory = unsafe { alloc_zeroed(layout) };
        // SAFETY: zeros, aligned, and nobody else's.
        Own(unsafe { RowCache::new(memory, bytes) }.expect("enough memory"), memory, layout)
    }
}

impl Deref for Own {
    type Target = RowCache<ThreadLatch>;
    fn deref(&self) -> &RowCache<ThreadLatch> {
        &self.0
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: from `new`, once.
        unsafe { dealloc(self.1, self.2) }
    }
}
