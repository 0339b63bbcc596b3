//! The body of a row: the attributes that its key does not give back.
//!
//! ```text
//! | attributes * 2 + nulls? | [a bit for each attribute: null] | values ...
//!   varint                    only if there is a null
//! ```
//!
//! Values stand in the table's order. Those passed by value are not aligned. Those passed by reference are used in place, so
//! they are aligned as PostgreSQL wants them, counted from the start of the body (which a slot keeps at a multiple of
//! eight); padding is zero. Variable-length values have a one-byte header and no alignment where that is possible. As in
//! heap tuples a zero byte where one begins is padding or an aligned header, anything else is a header. Strings of bytes are not
//! aligned either, unless their header begins with a zero byte.
//!
//! Fewer attributes than the table has: the rest was added later (ALTER TABLE ADD COLUMN).
//!
//! Large values are compressed as their column says. Nothing in a body points outside: TOAST pointers and expanded objects
//! are flattened.

use super::header::{self, align_up, Form};
use super::key::KeyCodec;
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;
use std::ffi::{c_char, c_int};

/// Uncompressed values longer than this are compressed, if their column allows.
const COMPRESS_ABOVE: usize = 2000;

extern "C-unwind" {
    fn toast_compress_datum(value: Datum, method: c_char) -> Datum;
    static default_toast_compression: c_int;
}

/// Types whose values are bytes behind a header. The header's four bytes are read at any address where the machine does that.
const BYTE_STRINGS: [pg_sys::Oid; 5] =
    [pg_sys::BYTEAOID, pg_sys::TEXTOID, pg_sys::VARCHAROID, pg_sys::BPCHAROID, pg_sys::JSONOID];
const READS_UNALIGNED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// What a body knows of one attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attribute {
    /// Bytes; -1 variable-length, -2 a C string.
    len: i16,
    align: u8,
    by_value: bool,
    /// The key gives it back, so the body leaves it out (even of a column dropped since: its values are not there).
    from_key: bool,
    dropped: bool,
    /// A short header is allowed.
    short: bool,
    /// A string of bytes behind its header: whoever reads it wants no alignment.
    bytes: bool,
    /// Compression is allowed, by this method.
    compress: Option<c_char>,
}

/// How the bodies of one table are laid out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowLayout {
    attributes: Vec<Attribute>,
}

/// Where the decoding of a body stands.
#[derive(Clone, Copy, Default, Debug)]
pub struct Progress {
    /// Attributes in the body.
    pub stored: u32,
    /// Where the null bits begin; 0: there are none.
    nulls: u32,
    /// Next attribute to decode, and where it begins.
    next: u32,
    offset: usize,
}

/// A body that is not what was written, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadBody {
    pub attribute: u32,
    pub offset: usize,
}

impl RowLayout {
    /// # Safety
    /// `desc` is a valid tuple descriptor.
    pub unsafe fn new(desc: pg_sys::TupleDesc, key: &KeyCodec) -> RowLayout {
        // SAFETY: a descriptor has so many attributes.
        let attributes = unsafe { (*desc).attrs.as_slice((*desc).natts as usize) };
        let attributes = attributes.iter().map(|a| Attribute::new(a, key.gives_back(a.attnum))).collect();
        RowLayout { attributes }
    }

    pub fn len(&self) -> usize {
        self.attributes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.attributes.is_empty()
    }

    /// Whether rows read under `desc` are laid out like this.
    ///
    /// # Safety
    /// `desc` is a valid tuple descriptor.
    pub unsafe fn fits(&self, desc: pg_sys::TupleDesc) -> bool {
        // SAFETY: a descriptor has so many attributes.
        let attributes = unsafe { (*desc).attrs.as_slice((*desc).natts as usize) };
        attributes.len() == self.attributes.len()
            && attributes.iter().zip(&self.attributes).all(|(a, mine)| Attribute::new(a, mine.from_key) == *mine)
    }

    /// Appends the body of a row, which begins with `out` empty.
    ///
    /// # Safety
    /// The values are valid and of the types of the descriptor that the layout was made for, one for each attribute.
    pub unsafe fn encode(&self, values: &[Datum], nulls: &[bool], out: &mut Vec<u8>) {
        debug_assert!(out.is_empty());
        debug_assert!(values.len() == self.attributes.len() && nulls.len() == self.attributes.len());
        let is_null = |i: usize, a: &Attribute| a.dropped || nulls[i];
        let any_null = self.attributes.iter().enumerate().any(|(i, a)| is_null(i, a));
        put_varint(out, self.attributes.len() << 1 | usize::from(any_null));
        if any_null {
            let from = out.len();
            out.resize(from + self.attributes.len().div_ceil(8), 0);
            for (i, attribute) in self.attributes.iter().enumerate() {
                if is_null(i, attribute) {
                    out[from + i / 8] |= 1 << (i % 8);
                }
            }
        }
        for (i, attribute) in self.attributes.iter().enumerate() {
            if !attribute.from_key && !is_null(i, attribute) {
                // SAFETY: the value is of the attribute's type.
                unsafe { attribute.put(values[i], out) };
            }
        }
    }

    /// So many leading attributes are given back by the key.
    pub fn leading_from_key(&self) -> usize {
        self.attributes.iter().take_while(|attribute| attribute.from_key).count()
    }

    /// Appends a body that has these attributes and no others, as of a row of which the key alone is known.
    pub fn put_none(&self, out: &mut Vec<u8>) {
        put_varint(out, self.leading_from_key() << 1);
    }

    /// Begins with a body: reads how many attributes it has. `None`: it is none.
    #[inline]
    pub fn begin(body: &[u8]) -> Option<Progress> {
        let (first, mut offset) = get_varint(body)?;
        let stored = first >> 1;
        let nulls = if first & 1 == 0 { 0 } else { offset };
        if nulls != 0 {
            offset += stored.div_ceil(8) as usize;
        }
        (offset <= body.len()).then_some(Progress { stored, nulls: nulls as u32, next: 0, offset })
    }

    /// Decodes on, up to the attribute numbered `upto` (from 1) or the last in the body. Values by reference point into the
    /// body; where that stands at no multiple of eight, one may be refused as not aligned. Attributes that the key gives back are passed by; their values are the caller's affair.
    ///
    /// # Safety
    /// `values` and `nulls` have room for `upto` elements, and `upto` is at most the number of attributes of the layout.
    #[inline]
    pub unsafe fn decode(
        &self,
        body: &[u8],
        progress: &mut Progress,
        upto: usize,
        values: *mut Datum,
        nulls: *mut bool,
    ) -> Result<(), BadBody> {
        let first = progress.next as usize;
        let end = upto.min(progress.stored as usize).min(self.attributes.len());
        let bits = if progress.nulls == 0 { &[] } else { body.get(progress.nulls as usize..).unwrap_or(&[]) };
        let mut offset = progress.offset;
        for (i, attribute) in (first..end).zip(self.attributes.get(first..end).unwrap_or(&[])) {
            let null = bits.get(i / 8).is_some_and(|byte| byte >> (i % 8) & 1 == 1);
            let value = if null {
                Datum::from(0usize)
            } else if attribute.from_key {
                // Not null: whoever has decoded the key has put it there.
                continue;
            } else if let Some(value) = attribute.get(body, &mut offset) {
                value
            } else {
                return Err(BadBody { attribute: i as u32 + 1, offset });
            };
            // SAFETY: i < upto, and the caller promises room for so many.
            unsafe {
                *values.add(i) = value;
                *nulls.add(i) = null;
            }
        }
        progress.offset = offset;
        progress.next = end.max(first) as u32;
        Ok(())
    }
}

impl Attribute {
    fn new(attribute: &pg_sys::FormData_pg_attribute, from_key: bool) -> Attribute {
        let storage = attribute.attstorage as u8;
        let may_compress = storage == pg_sys::TYPSTORAGE_EXTENDED || storage == pg_sys::TYPSTORAGE_MAIN;
        Attribute {
            len: attribute.attlen,
            align: match attribute.attalign as u8 {
                pg_sys::TYPALIGN_DOUBLE => 8,
                pg_sys::TYPALIGN_INT => 4,
                pg_sys::TYPALIGN_SHORT => 2,
                _ => 1,
            },
            by_value: attribute.attbyval,
            from_key,
            dropped: attribute.attisdropped,
            short: attribute.attlen == -1 && storage != pg_sys::TYPSTORAGE_PLAIN,
            bytes: READS_UNALIGNED && BYTE_STRINGS.contains(&attribute.atttypid),
            compress: (attribute.attlen == -1 && may_compress).then_some(attribute.attcompression),
        }
    }

    /// # Safety
    /// `value` is of this attribute's type.
    #[inline]
    unsafe fn put(&self, value: Datum, out: &mut Vec<u8>) {
        // SAFETY (whole function): the value is of the type, so it has the length and the form that the attribute says.
        unsafe {
            if self.by_value {
                let raw = value.value();
                match self.len {
                    1 => out.push(raw as u8),
                    2 => out.extend_from_slice(&(raw as u16).to_ne_bytes()),
                    4 => out.extend_from_slice(&(raw as u32).to_ne_bytes()),
                    _ => out.extend_from_slice(&(raw as u64).to_ne_bytes()),
                }
            } else if self.len >= 0 {
                pad(out, self.align);
                out.extend_from_slice(std::slice::from_raw_parts(value.cast_mut_ptr::<u8>(), self.len as usize));
            } else if self.len == -1 {
                self.put_varlena(value.cast_mut_ptr(), out);
            } else {
                pad(out, self.align);
                out.extend_from_slice(std::ffi::CStr::from_ptr(value.cast_mut_ptr()).to_bytes_with_nul());
            }
        }
    }

    /// # Safety
    /// `start` points to a valid variable-length value.
    unsafe fn put_varlena(&self, start: *const u8, out: &mut Vec<u8>) {
        // SAFETY (whole function): a valid value has the length that its header says.
        unsafe {
            let form = header::form(*start);
            if form == Form::Short {
                out.extend_from_slice(std::slice::from_raw_parts(start, header::short_len(*start)));
                return;
            }
            if form == Form::External {
                let flat = pg_sys::detoast_external_attr(start.cast_mut().cast());
                self.put_varlena(flat.cast(), out);
                pg_sys::pfree(flat.cast());
                return;
            }
            let total = header::long_len(start.cast::<[u8; 4]>().read());
            let whole = std::slice::from_raw_parts(start, total);
            if form == Form::Plain && self.short && total - 3 <= header::SHORT_MAX {
                out.push(header::short(total - 3));
                out.extend_from_slice(&whole[4..]);
                return;
            }
            if let (Form::Plain, Some(method), true) = (form, self.compress, total > COMPRESS_ABOVE) {
                if self.put_compressed(start, method, out) {
                    return;
                }
            }
            self.put_whole(whole, out);
        }
    }

    /// Puts a value with a header of four bytes.
    fn put_whole(&self, value: &[u8], out: &mut Vec<u8>) {
        if !self.bytes || value[0] == 0 {
            pad(out, self.align);
        }
        out.extend_from_slice(value);
    }

    /// False: it does not get shorter.
    ///
    /// # Safety
    /// `start` points to a valid plain variable-length value.
    #[cold]
    unsafe fn put_compressed(&self, start: *const u8, method: c_char, out: &mut Vec<u8>) -> bool {
        // SAFETY: the value is valid; the guard turns an error of PostgreSQL into one of ours. What comes back is ours.
        unsafe {
            let value = Datum::from(start as usize);
            let method = if method == 0 { default_toast_compression as c_char } else { method };
            let compressed = pg_sys::ffi::pg_guard_ffi_boundary(|| toast_compress_datum(value, method));
            if compressed.is_null() {
                return false;
            }
            let start: *const u8 = compressed.cast_mut_ptr();
            let total = header::long_len(start.cast::<[u8; 4]>().read());
            self.put_whole(std::slice::from_raw_parts(start, total), out);
            pg_sys::pfree(compressed.cast_mut_ptr());
            true
        }
    }

    /// The value that begins at `offset` or after the padding there. `None`: the body ends before it does, or stands where the value
    /// is not aligned.
    #[inline]
    fn get(&self, body: &[u8], offset: &mut usize) -> Option<Datum> {
        if self.by_value {
            let value = match self.len {
                1 => i64::from(*body.get(*offset)? as i8),
                2 => i64::from(i16::from_ne_bytes(*body.get(*offset..)?.first_chunk()?)),
                4 => i64::from(i32::from_ne_bytes(*body.get(*offset..)?.first_chunk()?)),
                _ => i64::from_ne_bytes(*body.get(*offset..)?.first_chunk()?),
            };
            *offset += self.len as usize;
            return Some(super::datum::by_value(value));
        }
        let (start, len) = match self.len {
            -1 => varlena_at(body, *offset, self.align)?,
            -2 => {
                let start = align_up(*offset, usize::from(self.align));
                (start, body.get(start..)?.iter().position(|b| *b == 0)? + 1)
            }
            len => (align_up(*offset, usize::from(self.align)), len as usize),
        };
        let value = body.get(start..start + len)?;
        // At an offset that is not aligned only a string of bytes was put; its column's type may have changed since.
        let align = usize::from(self.align);
        let any_address = self.align == 1
            || self.bytes
            || (self.len == -1
                && (header::form(*value.first()?) == Form::Short || (READS_UNALIGNED && start % align != 0)));
        if !any_address && !(value.as_ptr() as usize).is_multiple_of(align) {
            return None;
        }
        *offset = start + len;
        Some(Datum::from(value.as_ptr() as usize))
    }
}

/// Where the variable-length value at `offset` really begins, and how long it is.
#[inline]
fn varlena_at(body: &[u8], offset: usize, align: u8) -> Option<(usize, usize)> {
    let first = *body.get(offset)?;
    let form = header::form(first);
    if form == Form::Short {
        return Some((offset, header::short_len(first)));
    }
    let start = if first == 0 { align_up(offset, usize::from(align)) } else { offset };
    let head = *body.get(start..)?.first_chunk::<4>()?;
    let good = matches!(header::form(head[0]), Form::Plain | Form::Compressed);
    let len = header::long_len(head);
    (good && len >= 4).then_some((start, len))
}

#[inline]
fn pad(out: &mut Vec<u8>, align: u8) {
    out.resize(align_up(out.len(), usize::from(align)), 0);
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The number (at most 21 bits: a table has up to 1600 columns) and the bytes that it takes up.
#[inline]
fn get_varint(bytes: &[u8]) -> Option<(u32, usize)> {
    let mut value = 0;
    for (i, byte) in bytes.iter().enumerate().take(3) {
        value |= u32::from(byte & 0x7F) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, i + 1));
        }
    }
    None
}

// What is written comes from PostgreSQL's values, which take a server to make; what is read back needs none.
#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(8))]
    struct Aligned<const N: usize>([u8; N]);

    /// Of a smallint, a text, an integer, an interval, a bigint, which the key gives back, and a text.
    fn layout() -> RowLayout {
        let plain = |len, align, by_value| Attribute {
            len,
            align,
            by_value,
            from_key: false,
            dropped: false,
            short: len == -1,
            bytes: len == -1,
            compress: None,
        };
        let text = plain(-1, 4, false);
        let from_key = Attribute { from_key: true, ..plain(8, 8, true) };
        let attributes = vec![plain(2, 2, true), text, plain(4, 4, true), plain(16, 8, false), from_key, text];
        RowLayout { attributes }
    }

    // Changing any of these bytes is a new format version.
    #[test]
    fn golden() {
        let body = Aligned(*b"\x0d\x04\xfe\xff\x07ab\0sixteen bytes :)\x14\0\0\0c");
        let body = &body.0;
        let (mut values, mut nulls) = ([Datum::from(7usize); 6], [true; 6]);
        let mut progress = RowLayout::begin(body).unwrap();
        assert_eq!(progress.stored, 6);
        // SAFETY: there is room for as many values as the layout has.
        let read = unsafe { layout().decode(body, &mut progress, 6, values.as_mut_ptr(), nulls.as_mut_ptr()) };
        assert_eq!(read, Ok(()));
        // The one that the key gives back is left alone.
        assert_eq!(nulls, [false, false, true, false, true, false]);
        assert_eq!((values[0].value() as i64, values[4].value()), (-2, 7));
        let at = [1, 3, 5].map(|i: usize| values[i].value() - body.as_ptr() as usize);
        assert_eq!(at, [4, 8, 24]);
        // Strings of bytes stand anywhere, but where the header begins with zero.
        let strings = RowLayout { attributes: vec![layout().attributes[1]; 2] };
        let body =
            Aligned(*b"\x04\x14\0\0\0c\0\0\0\x01\0\0------------------------------------------------------------");
        let mut progress = RowLayout::begin(&body.0).unwrap();
        // SAFETY: there is room for as many values as the layout has.
        let read = unsafe { strings.decode(&body.0, &mut progress, 2, values.as_mut_ptr(), nulls.as_mut_ptr()) };
        assert_eq!(read, Ok(()));
        assert_eq!([0, 1].map(|i: usize| values[i].value() - body.0.as_ptr() as usize), [1, 8]);
        let mut none = Vec::new();
        let all = RowLayout { attributes: vec![layout().attributes[4]; 100] };
        all.put_none(&mut none);
        assert_eq!(none, [0xc8, 0x01]);
        assert_eq!(RowLayout::begin(&none).unwrap().stored, 100);
    }
}
