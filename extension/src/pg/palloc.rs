//! Memory of PostgreSQL's contexts for what every statement does: none of this jumps, so none of it needs pgrx's guard, which costs
//! several times as much as the memory.

use super::bindings_am::raw;
use super::error;
use pgrx::pg_sys;
use pgrx::PgSqlErrorCode;
use std::ffi::c_void;

/// So many bytes in a context, aligned for any type. Too little memory is an error that unwinds.
///
/// # Safety
/// The context is valid. What is returned is not initialized, and lives as long as the context.
#[inline]
pub unsafe fn allocate(context: pg_sys::MemoryContext, size: usize) -> *mut c_void {
    // SAFETY: by the contract.
    unsafe { allocate_with(context, size, 0) }
}

/// A value's memory in the current context, all zeros.
pub fn zeroed<T>() -> *mut T {
    // SAFETY: there is always a current context.
    unsafe { allocate_with(pg_sys::CurrentMemoryContext, size_of::<T>(), pg_sys::MCXT_ALLOC_ZERO).cast() }
}

unsafe fn allocate_with(context: pg_sys::MemoryContext, size: usize, flags: u32) -> *mut c_void {
    let flags = flags | pg_sys::MCXT_ALLOC_NO_OOM | pg_sys::MCXT_ALLOC_HUGE;
    // SAFETY: the caller's promise.
    let memory = unsafe { raw::MemoryContextAllocExtended(context, size, flags as i32) };
    if memory.is_null() {
        out_of_memory(size);
    }
    memory
}

#[cold]
fn out_of_memory(size: usize) -> ! {
    error::raise(PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY, format!("out of memory: {size} bytes are wanted"), None)
}

/// Gives memory back.
///
/// # Safety
/// `memory` was allocated in a memory context, by whomever, and is not used afterwards.
#[inline]
pub unsafe fn free<T>(memory: *mut T) {
    // SAFETY: by the contract.
    unsafe { raw::pfree(memory.cast()) }
}
