//! Rust values whose life is bound to a PostgreSQL memory context: dropped when their owner says so, or, after an error,
//! when the context goes (then without the pins that they kept, see [`crate::host::pins`]).

use super::bindings_am::raw;
use super::palloc;
use crate::host::pins;
use pgrx::pg_sys;
use std::ffi::c_void;
use std::mem::ManuallyDrop;

/// A value in a memory context, which watches over it.
#[repr(C)]
pub struct Owned<T> {
    callback: pg_sys::MemoryContextCallback,
    context: pg_sys::MemoryContext,
    value: ManuallyDrop<T>,
    is_there: bool,
}

impl<T> Owned<T> {
    /// Moves `value` into the current memory context.
    pub fn new(value: T) -> *mut Owned<T> {
        const { assert!(align_of::<Owned<T>>() <= pg_sys::MAXIMUM_ALIGNOF as usize) }
        // SAFETY: memory of that size, aligned for it (or an error, by which `value` is dropped), of which all is written; the
        // callback's struct lives in the context that it is registered with.
        unsafe {
            let context = pg_sys::CurrentMemoryContext;
            let owned = palloc::allocate(context, size_of::<Owned<T>>()).cast::<Owned<T>>();
            let callback = pg_sys::MemoryContextCallback {
                func: Some(Owned::<T>::on_reset),
                arg: owned.cast(),
                next: std::ptr::null_mut(),
            };
            owned.write(Owned { callback, context, value: ManuallyDrop::new(value), is_there: true });
            raw::MemoryContextRegisterResetCallback(context, &raw mut (*owned).callback);
            owned
        }
    }

    /// # Safety
    /// `owned` came from [`Owned::new`], was not released, and nobody else holds a reference to its value.
    pub unsafe fn get<'a>(owned: *mut Owned<T>) -> &'a mut T {
        // SAFETY: by the contract: the value is there until it is released.
        unsafe { &mut (*owned).value }
    }

    /// Drops the value now, and leaves nothing behind: a statement may scan once for each of its rows.
    ///
    /// # Safety
    /// As for [`Owned::get`]; it is not used afterwards.
    pub unsafe fn release(owned: *mut Owned<T>) {
        // SAFETY: by the contract. The context is there as long as what was allocated in it, and its callbacks are a list, of which
        // those that come last are the first.
        unsafe {
            Owned::drop_value(owned);
            let callback = &raw mut (*owned).callback;
            let mut at = &raw mut (*(*owned).context).reset_cbs;
            while !(*at).is_null() && !std::ptr::eq(*at, callback) {
                at = &raw mut (**at).next;
            }
            if !(*at).is_null() {
                *at = (*callback).next;
                palloc::free(owned);
            }
        }
    }

    /// # Safety
    /// As for [`Owned::release`].
    unsafe fn drop_value(owned: *mut Owned<T>) {
        // SAFETY: by the contract. What says that it is there is cleared first, so that the callback does nothing later.
        unsafe {
            if std::mem::replace(&mut (*owned).is_there, false) {
                ManuallyDrop::drop(&mut (*owned).value);
            }
        }
    }

    unsafe extern "C-unwind" fn on_reset(arg: *mut c_void) {
        // SAFETY: `arg` is the Owned that registered this callback.
        pins::abandon(|| unsafe { Owned::drop_value(arg.cast::<Owned<T>>()) });
    }
}
