//! Values passed by reference that a slot makes its own, those in expanded objects among them; and whether two values are the same.

use super::bindings_am::raw;
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

/// Whether two values are the same, to the byte; but the same text may stand in a row with a short header, and come from an expression with a long one.
///
/// # Safety
/// Both are values of the attribute's type.
pub unsafe fn same_value(one: pg_sys::Datum, other: pg_sys::Datum, attribute: &pg_sys::FormData_pg_attribute) -> bool {
    let (by_value, len) = (attribute.attbyval, attribute.attlen.into());
    // SAFETY: by the contract; what may fail is a large value that has to be fetched, under a guard.
    unsafe {
        raw::datumIsEqual(one, other, by_value, len)
            || (len == -1 && pg_sys::ffi::pg_guard_ffi_boundary(|| raw::datum_image_eq(one, other, by_value, len)))
    }
}
