//! Datums as Rust values: what every type of ours needs to look at them, and room to make some.

use super::header::{self, Form};
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

/// The bytes of a variable-length value, detoasted if they had to be.
pub struct Flat {
    start: *const u8,
    len: usize,
    copy: *mut pg_sys::varlena,
}

impl Flat {
    /// # Safety
    /// `value` points to a valid variable-length value, which outlives this.
    #[inline]
    pub unsafe fn new(value: Datum) -> Flat {
        let start: *const u8 = value.cast_mut_ptr();
        // SAFETY: the value is valid, so its header and its contents are.
        unsafe {
            match header::form(*start) {
                Form::Short => Flat::short(start, std::ptr::null_mut()),
                Form::Plain => Flat::plain(start, std::ptr::null_mut()),
                Form::Compressed | Form::External => Flat::detoasted(value),
            }
        }
    }

    #[cold]
    unsafe fn detoasted(value: Datum) -> Flat {
        // SAFETY: the value is valid; what comes back is plain or short, and ours.
        unsafe {
            let copy = pg_sys::pg_detoast_datum_packed(value.cast_mut_ptr());
            let start: *const u8 = copy.cast();
            let owned = if std::ptr::eq(copy, value.cast_mut_ptr()) { std::ptr::null_mut() } else { copy };
            match header::form(*start) {
                Form::Short => Flat::short(start, owned),
                _ => Flat::plain(start, owned),
            }
        }
    }

    unsafe fn short(start: *const u8, copy: *mut pg_sys::varlena) -> Flat {
        // SAFETY: a short value begins with its one byte of header.
        unsafe { Flat { start: start.add(1), len: header::short_len(*start) - 1, copy } }
    }

    unsafe fn plain(start: *const u8, copy: *mut pg_sys::varlena) -> Flat {
        // SAFETY: a plain value begins with its four bytes of header.
        unsafe { Flat { start: start.add(4), len: header::long_len(start.cast::<[u8; 4]>().read()) - 4, copy } }
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `new` found these bytes behind the header, and the value outlives this.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl Drop for Flat {
    fn drop(&mut self) {
        if !self.copy.is_null() {
            // SAFETY: the copy was made by `detoasted` for us alone.
            unsafe { pg_sys::pfree(self.copy.cast()) };
        }
    }
}

/// The bytes of a fixed-length value passed by reference.
///
/// # Safety
/// `value` points to `N` bytes.
#[inline]
pub unsafe fn fixed<const N: usize>(value: Datum) -> [u8; N] {
    // SAFETY: the caller's promise; an array of bytes has no alignment.
    unsafe { value.cast_mut_ptr::<[u8; N]>().read() }
}

/// A signed integer as PostgreSQL's own tuples give it (`fetch_att` extends the sign, whatever the type).
#[inline]
pub fn by_value(value: i64) -> Datum {
    Datum::from(value as usize)
}

/// Room for values that a key gives back and that cannot stay where they are. Whoever makes it sees to it that the room is
/// large enough; a value that does not fit is not written.
pub struct Arena {
    at: usize,
    end: usize,
}

impl Arena {
    /// # Safety
    /// `start` begins `len` writable bytes, of which nobody else knows while values are put here.
    pub unsafe fn new(start: *mut u8, len: usize) -> Arena {
        Arena { at: start as usize, end: start as usize + len }
    }

    /// Some bytes, to be written by `fill` in full.
    pub fn put(&mut self, len: usize, align: usize, fill: impl FnOnce(&mut [u8])) -> Option<Datum> {
        let start = header::align_up(self.at, align);
        let end = start.checked_add(len).filter(|end| *end <= self.end)?;
        // SAFETY: start..end is inside the room given to `new`, and no other value was put there.
        let room = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, len) };
        fill(room);
        self.at = end;
        Some(Datum::from(start))
    }

    /// A variable-length value of `len` bytes.
    pub fn put_varlena(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Option<Datum> {
        if len < header::SHORT_MAX {
            return self.put(len + 1, 1, |room| {
                if let Some((first, contents)) = room.split_first_mut() {
                    *first = header::short(len + 1);
                    fill(contents);
                }
            });
        }
        self.put(len + 4, 4, |room| {
            if let Some((head, contents)) = room.split_first_chunk_mut::<4>() {
                *head = header::plain(len + 4);
                fill(contents);
            }
        })
    }
}
