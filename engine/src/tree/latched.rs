//! A value behind a latch, both in shared memory.

use loosekv_shm::RawLatch;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

pub struct Latched<L, T> {
    latch: L,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the guard, which holds the latch exclusively.
unsafe impl<L: RawLatch, T: Send> Sync for Latched<L, T> {}

impl<L: RawLatch, T> Latched<L, T> {
    pub fn new(value: T) -> Latched<L, T> {
        Latched { latch: L::new(), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> Locked<'_, L, T> {
        self.latch.lock_exclusive();
        Locked { of: self }
    }
}

pub struct Locked<'a, L: RawLatch, T> {
    of: &'a Latched<L, T>,
}

impl<L: RawLatch, T> Deref for Locked<'_, L, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the latch is held exclusively as long as this guard lives.
        unsafe { &*self.of.value.get() }
    }
}

impl<L: RawLatch, T> DerefMut for Locked<'_, L, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the latch is held exclusively as long as this guard lives.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<L: RawLatch, T> Drop for Locked<'_, L, T> {
    fn drop(&mut self) {
        // SAFETY: taken in `lock`.
        unsafe { self.of.latch.unlock_exclusive() }
    }
}
