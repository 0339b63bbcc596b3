//! The header of a variable-length value as bytes. Knows nothing of PostgreSQL but this layout (little endian).
//!
//! ```text
//! xxxxxx00 + 3 bytes   plain: four bytes of header, total length << 2
//! xxxxxx10 + 3 bytes   compressed in place: the same with bit 1
//! 00000001             a pointer to something elsewhere (TOAST, expanded): never stored in a row body
//! xxxxxxx1             short: one byte of header, total length << 1
//! ```

#[cfg(not(target_endian = "little"))]
compile_error!("the layout of variable-length values is known for little-endian machines only");

/// Longest total length with a short header.
pub const SHORT_MAX: usize = 0x7F;
/// Longest total length at all.
pub const LONG_MAX: usize = 0x3FFF_FFFF;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Plain,
    Compressed,
    Short,
    External,
}

/// What a first byte says.
#[inline]
pub fn form(first: u8) -> Form {
    match first {
        1 => Form::External,
        b if b & 1 == 1 => Form::Short,
        b if b & 3 == 0 => Form::Plain,
        _ => Form::Compressed,
    }
}

/// Total length of a short value that begins with this byte.
#[inline]
pub fn short_len(first: u8) -> usize {
    usize::from(first >> 1)
}

/// Total length of a plain or compressed value with these four bytes of header.
#[inline]
pub fn long_len(header: [u8; 4]) -> usize {
    (u32::from_le_bytes(header) >> 2) as usize
}

/// First byte of a short value.
#[inline]
pub fn short(total: usize) -> u8 {
    debug_assert!((1..=SHORT_MAX).contains(&total));
    (total << 1) as u8 | 1
}

/// Header of a plain value.
#[inline]
pub fn plain(total: usize) -> [u8; 4] {
    debug_assert!((4..=LONG_MAX).contains(&total));
    ((total as u32) << 2).to_le_bytes()
}

/// The next multiple of `align`, a power of two.
#[inline]
pub fn align_up(offset: usize, align: usize) -> usize {
    debug_assert!(align.is_power_of_two());
    (offset + align - 1) & !(align - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back() {
        for total in 2..=SHORT_MAX {
            assert_eq!(form(short(total)), Form::Short);
            assert_eq!(short_len(short(total)), total);
        }
        for total in [4, 5, 64, 127, 128, 65_536, LONG_MAX] {
            let header = plain(total);
            assert_eq!(form(header[0]), Form::Plain);
            assert_eq!(long_len(header), total);
        }
        assert_eq!(form(1), Form::External);
        assert_eq!(form(2), Form::Compressed);
        assert_eq!(align_up(5, 4), 8);
        assert_eq!(align_up(8, 8), 8);
        assert_eq!(align_up(3, 1), 3);
    }
}
