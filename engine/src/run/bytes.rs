//! Checked reading of little-endian numbers and packed bits: `None` past the end, never a panic.

pub use crate::bytes::{u16_at, u32_at, u64_at};

/// The first eight bytes, as a number that orders as they do.
#[inline]
pub fn head_word(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk::<8>().map(|b| u64::from_be_bytes(*b))
}

/// A number of `width` bytes (0 to 8).
#[inline]
pub fn narrow_at(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    if width == 0 {
        return Some(0);
    }
    if let Some(word) = u64_at(bytes, at) {
        return Some(word & mask_of(width));
    }
    let tail = bytes.get(at..at + width)?;
    Some(tail.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

/// What of a word a number of `width` bytes at its beginning is.
#[inline]
pub fn mask_of(width: usize) -> u64 {
    u64::MAX.checked_shl(8 * width as u32).map_or(u64::MAX, |above| !above)
}

/// Bytes needed for `value`.
pub fn width_of(value: u64) -> usize {
    (bits_of(value) as usize).div_ceil(8)
}

/// Bits needed for `value`.
pub fn bits_of(value: u64) -> u32 {
    64 - value.leading_zeros()
}

/// Appends `value` in `width` bytes.
pub fn put_narrow(out: &mut Vec<u8>, value: u64, width: usize) {
    debug_assert!(width >= width_of(value));
    out.extend(value.to_le_bytes().into_iter().take(width));
}

/// The number of `width` bits (at most 64) that stands at bit `bit`, counted from the start of `bytes`.
#[inline]
pub fn packed_at(bytes: &[u8], bit: usize, width: u32) -> Option<u64> {
    if width == 0 {
        return Some(0);
    }
    let (byte, shift) = (bit / 8, bit % 8);
    let word = match bytes.get(byte..byte + 16).and_then(|b| b.first_chunk::<16>()) {
        Some(chunk) => u128::from_le_bytes(*chunk),
        None => {
            let tail = bytes.get(byte..)?;
            if tail.len() * 8 < shift + width as usize {
                return None;
            }
            tail.iter().rev().fold(0u128, |word, byte| word << 8 | u128::from(*byte))
        }
    };
    Some((word >> shift) as u64 & (u64::MAX >> (64 - width)))
}

/// Appends numbers of a fixed width, bit after bit, to a byte vector.
pub struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    word: u128,
    bits: u32,
}

impl<'a> BitWriter<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> BitWriter<'a> {
        BitWriter { out, word: 0, bits: 0 }
    }

    pub fn put(&mut self, value: u64, width: u32) {
        debug_assert!(bits_of(value) <= width);
        self.word |= u128::from(value) << self.bits;
        self.bits += width;
        while self.bits >= 8 {
            self.out.push(self.word as u8);
            self.word >>= 8;
            self.bits -= 8;
        }
    }

    /// Fills up the last byte.
    pub fn finish(self) {
        if self.bits > 0 {
            self.out.push(self.word as u8);
        }
    }
}

/// Length of the longest common prefix.
#[inline]
pub fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    let mut at = 0;
    while let (Some(x), Some(y)) = (a.get(at..).and_then(head_word), b.get(at..).and_then(head_word)) {
        if x != y {
            return at + ((x ^ y).leading_zeros() / 8) as usize;
        }
        at += 8;
    }
    at + a.iter().skip(at).zip(b.iter().skip(at)).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_numbers_round_trip() {
        for width in 1..=64u32 {
            let values: Vec<u64> = (0..100u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - width)).collect();
            let mut out = Vec::new();
            let mut writer = BitWriter::new(&mut out);
            values.iter().for_each(|v| writer.put(*v, width));
            writer.finish();
            assert_eq!(out.len(), (100 * width as usize).div_ceil(8));
            for (i, value) in values.iter().enumerate() {
                assert_eq!(packed_at(&out, i * width as usize, width), Some(*value), "{width} {i}");
            }
            assert_eq!(packed_at(&out, 100 * width as usize + 7, width), None);
        }
        assert_eq!(packed_at(&[], 800, 0), Some(0));
        assert_eq!(packed_at(&[], 800, 1), None);
    }

    #[test]
    fn narrow_numbers_round_trip() {
        for shift in 0..64 {
            let value = u64::MAX >> shift;
            let mut out = Vec::new();
            put_narrow(&mut out, value, width_of(value));
            assert_eq!(narrow_at(&out, 0, width_of(value)), Some(value));
            out.extend([0xff; 8]);
            assert_eq!(narrow_at(&out, 0, width_of(value)), Some(value));
            assert_eq!(narrow_at(&out, out.len(), 1), None);
        }
    }

    #[test]
    fn prefixes() {
        let base: Vec<u8> = (0..40).collect();
        for n in 0..40 {
            let mut other = base.clone();
            other[n] ^= 1;
            assert_eq!(shared_prefix(&base, &other), n);
            assert_eq!(shared_prefix(&base, &base[..n]), n);
        }
    }
}
