//! The global allocator that puts values into the shared heap or into private memory.
//!
//! | call      | inside the scope | outside |
//! |-----------|------------------|---------|
//! | alloc     | shared           | private |
//! | dealloc   | by address       | by address |
//! | realloc   | stays where it is | stays where it is |
//!
//! A value that grows keeps living where it was born: a private vector pushed to inside the scope stays private, and a
//! shared one never becomes private by accident.

use crate::{epoch, heap, scope};
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

/// `#[global_allocator] static ALLOC: SharedAlloc = SharedAlloc;` in whatever uses a shared heap.
pub struct SharedAlloc;

// SAFETY: both the system's allocator and the heap give memory for the layout that nobody else uses, and free and
// reallocation go to the one that gave it, told by its address.
unsafe impl GlobalAlloc for SharedAlloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if scope::active() {
            heap::allocate(layout.size(), layout.align())
        } else {
            debug_assert_no_bag(layout);
            // SAFETY: the caller's promise.
            unsafe { System.alloc(layout) }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise; an address in the segment came from the heap.
        unsafe {
            if heap::contains(ptr) {
                heap::release(ptr, layout.size(), layout.align());
            } else {
                System.dealloc(ptr, layout);
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise; what the heap gave has the layout's size.
        unsafe {
            if !scope::active() {
                return System.alloc_zeroed(layout);
            }
            let ptr = heap::allocate(layout.size(), layout.align());
            if !ptr.is_null() {
                ptr::write_bytes(ptr, 0, layout.size());
            }
            ptr
        }
    }

    #[inline]
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe {
            if heap::contains(ptr) {
                realloc_shared(ptr, layout, new_size)
            } else {
                System.realloc(ptr, layout, new_size)
            }
        }
    }
}

/// In debug builds: garbage that others come upon must not lie in private memory. A panic would allocate.
#[inline(always)]
fn debug_assert_no_bag(layout: Layout) {
    if cfg!(debug_assertions) && heap::attached() && layout.size() == epoch::BAG && layout.align() == 8 {
        // SAFETY: plain bytes, to a descriptor.
        unsafe { libc::write(libc::STDERR_FILENO, NO_SCOPE.as_ptr().cast(), NO_SCOPE.len()) };
        std::process::abort();
    }
}

const NO_SCOPE: &[u8] = b"loosekv: garbage is handed over outside the scope\n";

/// # Safety
/// As for `GlobalAlloc::realloc`, with `ptr` in the segment.
unsafe fn realloc_shared(ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
    if heap::same_room(layout.size(), new_size, layout.align()) {
        return ptr;
    }
    let new = heap::allocate(new_size, layout.align());
    if !new.is_null() {
        // SAFETY: both are at least that long, and do not overlap; the old one is the caller's to free.
        unsafe {
            ptr::copy_nonoverlapping(ptr, new, layout.size().min(new_size));
            heap::release(ptr, layout.size(), layout.align());
        }
    }
    new
}
