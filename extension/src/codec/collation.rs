//! What a collation's order is to a key that is compared byte by byte.
//!
//! Under a collation that orders by bytes the encoded key is the text itself. Under any other deterministic collation the
//! key is the text as well: equality is equality of bytes there too, so that look-ups and uniqueness are right, but the
//! order of the keys is not the collation's, and the planner must not rely on it. Sort keys are not stored: those of libc
//! disagree with its comparison, and those of either provider change with its version, which would break uniqueness.

use super::Unsupported;
use pgrx::pg_sys;
use std::ffi::{c_char, CStr};

/// The beginning of `struct pg_locale_struct`.
#[repr(C)]
struct Locale {
    provider: c_char,
}

extern "C-unwind" {
    fn lc_collate_is_c(collation: pg_sys::Oid) -> bool;
    static default_locale: Locale;
}

const PROVIDER_LIBC: c_char = b'c' as c_char;

/// Whether the collation orders by bytes. Refuses collations under which different bytes may be equal.
pub fn orders_by_bytes(collation: pg_sys::Oid) -> Result<bool, Unsupported> {
    if collation == pg_sys::InvalidOid {
        return Err(Unsupported::new(
            "could not determine which collation to use for a key column",
            "Use the COLLATE clause to set the collation explicitly.",
        ));
    }
    // SAFETY: the collation exists, for it is named by an index that we hold open.
    if !unsafe { pg_sys::get_collation_isdeterministic(collation) } {
        return Err(Unsupported::new(
            "nondeterministic collations are not supported for primary keys of loosekv tables",
            "Use a deterministic collation for the column, for example COLLATE \"C\".",
        ));
    }
    // SAFETY: as above; the guard turns an error of PostgreSQL into one of ours.
    let is_c = unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| lc_collate_is_c(collation)) };
    Ok(is_c || (is_utf8() && libc_locale(collation).is_some_and(|name| orders_by_code_point(&name))))
}

fn is_utf8() -> bool {
    // SAFETY: reads a setting of the backend.
    unsafe { pg_sys::GetDatabaseEncoding() == pg_sys::pg_enc::PG_UTF8 as i32 }
}

/// Since glibc 2.35 C.UTF-8 compares with strcmp, by definition.
fn orders_by_code_point(locale: &str) -> bool {
    // SAFETY: returns a constant string.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    let version = version.to_str().ok().and_then(|v| {
        let mut parts = v.split('.').map(|p| p.parse::<u32>().ok());
        Some((parts.next()??, parts.next()??))
    });
    version >= Some((2, 35)) && ["C.UTF-8", "C.UTF8", "C.utf-8", "C.utf8"].contains(&locale)
}

/// The LC_COLLATE of a collation that libc provides.
fn libc_locale(collation: pg_sys::Oid) -> Option<String> {
    if collation == pg_sys::DEFAULT_COLLATION_OID {
        // SAFETY: a backend has set its locale long ago; the string stands until the locale is set again.
        return unsafe {
            let name = libc::setlocale(libc::LC_COLLATE, std::ptr::null());
            (default_locale.provider == PROVIDER_LIBC && !name.is_null())
                .then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
        };
    }
    // SAFETY: ordinary use of the system cache: the tuple is read before it is released.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::COLLOID as i32;
        let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(collation));
        if tuple.is_null() {
            return None;
        }
        let form: *const pg_sys::FormData_pg_collation = pg_sys::GETSTRUCT(tuple).cast();
        let mut null = true;
        let attno = pg_sys::Anum_pg_collation_collcollate as pg_sys::AttrNumber;
        let name = pg_sys::SysCacheGetAttr(cache, tuple, attno, &mut null);
        let name = ((*form).collprovider == PROVIDER_LIBC && !null).then(|| {
            let name = super::datum::Flat::new(name);
            String::from_utf8_lossy(name.bytes()).into_owned()
        });
        pg_sys::ReleaseSysCache(tuple);
        name
    }
}
