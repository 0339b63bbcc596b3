//! Rust values whose life is bound to a PostgreSQL memory context: dropped when their owner says so, or, after an error,
//! when the context goes (then without the pins that they kept, see [`crate::host::pins`]).

use crate::host::pins;
use pgrx::pg_sys;
use std::ffi::c_void;

/// A value on the Rust heap that a memory context watches over.
#[repr(C)]
pub struct Owned<T> {
    callback: pg_sys::MemoryContextCallback,
    context: pg_sys::MemoryContext,
    value: *mut T,
}

impl<T> Owned<T> {
    /// Moves `value` to the heap, bound to the current memory context.
    pub fn new(value: T) -> *mut Owned<T> {
        // SAFETY: palloc0 returns memory of that size, aligned for any type, or raises an error (then `value` is dropped
        // by unwinding); the callback's struct lives in the context that it is registered with.
        unsafe {
            let owned = pg_sys::palloc0(size_of::<Owned<T>>()).cast::<Owned<T>>();
            (*owned).callback.func = Some(Owned::<T>::on_reset);
            (*owned).callback.arg = owned.cast();
            (*owned).context = pg_sys::CurrentMemoryContext;
            pg_sys::MemoryContextRegisterResetCallback((*owned).context, &raw mut (*owned).callback);
            (*owned).value = Box::into_raw(Box::new(value));
            owned
        }
    }

    /// # Safety
    /// `owned` came from [`Owned::new`], was not released, and nobody else holds a reference to its value.
    pub unsafe fn get<'a>(owned: *mut Owned<T>) -> &'a mut T {
        // SAFETY: by the contract.
        unsafe { &mut *(*owned).value }
    }

    /// Drops the value now, and leaves nothing behind: a statement may scan once for each of its rows.
    ///
    /// # Safety
    /// As for [`Owned::get`]; it is not used afterwards.
    pub unsafe fn release(owned: *mut Owned<T>) {
        // SAFETY: by the contract. The context is there as long as what was allocated in it, and its callbacks are a list, of which
        // those that come last are the first.
        unsafe {
            drop(Owned::take(owned));
            let callback = &raw mut (*owned).callback;
            let mut at = &raw mut (*(*owned).context).reset_cbs;
            while !(*at).is_null() && !std::ptr::eq(*at, callback) {
                at = &raw mut (**at).next;
            }
            if !(*at).is_null() {
                *at = (*callback).next;
                pg_sys::pfree(owned.cast());
            }
        }
    }

    /// # Safety
    /// As for [`Owned::release`].
    unsafe fn take(owned: *mut Owned<T>) -> Option<Box<T>> {
        // SAFETY: by the contract; the pointer is cleared first, so that the callback does nothing later.
        unsafe {
            let value = std::mem::replace(&mut (*owned).value, std::ptr::null_mut());
            (!value.is_null()).then(|| Box::from_raw(value))
        }
    }

    unsafe extern "C-unwind" fn on_reset(arg: *mut c_void) {
        // SAFETY: `arg` is the Owned that registered this callback.
        pins::abandon(unsafe { Owned::take(arg.cast::<Owned<T>>()) });
    }
}
