//! Values passed by reference that a slot makes its own, those in expanded objects among them.

use crate::codec::header::{form, long_len, short_len, Form};
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

/// Bytes of a value passed by reference, flattened if it is expanded.
///
/// # Safety
/// The value is of a type with this length.
pub unsafe fn size_of_value(len: i16, value: *const u8) -> usize {
    // SAFETY: the caller's word.
    unsafe {
        match len {
            -1 => match form(*value) {
                Form::Short => short_len(*value),
                Form::Plain | Form::Compressed => long_len(value.cast::<[u8; 4]>().read()),
                Form::External => match expanded(value) {
                    Some(object) => pg_sys::EOH_get_flat_size(object),
                    None => pgrx::varlena::varsize_any(value.cast()),
                },
            },
            -2 => libc::strlen(value.cast()) + 1,
            len => len as usize,
        }
    }
}

/// Copies such a value to a place that is large enough; tells its length.
///
/// # Safety
/// The value is of a type with this length, and the place as large as [`size_of_value`] tells.
pub unsafe fn copy_value(len: i16, value: *const u8, place: *mut u8) -> usize {
    // SAFETY: the caller's word.
    unsafe {
        let size = size_of_value(len, value);
        match if len == -1 { expanded(value) } else { None } {
            Some(object) => pg_sys::EOH_flatten_into(object, place.cast(), size),
            None => std::ptr::copy_nonoverlapping(value, place, size),
        }
        size
    }
}

/// The object that an expanded value points to.
unsafe fn expanded(value: *const u8) -> Option<*mut pg_sys::ExpandedObjectHeader> {
    // SAFETY: the value is of variable length; an external one has a tag.
    unsafe {
        let is_expanded = form(*value) == Form::External
            && pgrx::varlena::vartag_is_expanded(u32::from(*value.add(1)) as pg_sys::vartag_external::Type);
        is_expanded.then(|| pg_sys::DatumGetEOHP(Datum::from(value as usize)))
    }
}
