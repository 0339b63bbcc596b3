//! Numbers in bytes: little-endian ones, varints, and a reader that never runs past the end.

use crate::error::{Error, Result};

/// Appends `value` in groups of seven bits, lowest first.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a varint at `*at` and steps over it; `None` when it is cut off or too long.
#[inline]
pub fn get_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let first = *bytes.get(*at)?;
    if first < 0x80 {
        *at += 1;
        return Some(u64::from(first));
    }
    let mut value = 0u64;
    for i in 0..10 {
        let byte = *bytes.get(*at + i)?;
        if i == 9 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *at += i + 1;
            return Some(value);
        }
    }
    None
}

/// Bytes that [`put_varint`] takes.
pub fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

#[inline]
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk::<2>().map(|b| u16::from_le_bytes(*b))
}

#[inline]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk::<4>().map(|b| u32::from_le_bytes(*b))
}

#[inline]
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk::<8>().map(|b| u64::from_le_bytes(*b))
}

pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what `put_*` wrote; every read past the end, or of a varint that is too long, is an error.
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    pub fn position(&self) -> usize {
        self.at
    }

    pub fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub fn byte(&mut self) -> Result<u8> {
        let byte = self.bytes.get(self.at).copied().ok_or_else(|| self.short())?;
        self.at += 1;
        Ok(byte)
    }

    pub fn varint(&mut self) -> Result<u64> {
        get_varint(self.bytes, &mut self.at)
            .ok_or_else(|| Error::structure(format!("no number at byte {} of {}", self.at, self.bytes.len())))
    }

    pub fn varint32(&mut self) -> Result<u32> {
        let at = self.at;
        u32::try_from(self.varint()?).map_err(|_| Error::structure(format!("number too large at byte {at}")))
    }

    pub fn u64(&mut self) -> Result<u64> {
        let value = u64_at(self.bytes, self.at).ok_or_else(|| self.short())?;
        self.at += 8;
        Ok(value)
    }

    pub fn u32(&mut self) -> Result<u32> {
        let value = u32_at(self.bytes, self.at).ok_or_else(|| self.short())?;
        self.at += 4;
        Ok(value)
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len).ok_or_else(|| self.short())?;
        let bytes = self.bytes.get(self.at..end).ok_or_else(|| self.short())?;
        self.at = end;
        Ok(bytes)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = usize::try_from(self.varint()?).map_err(|_| self.short())?;
        self.take(len)
    }

    fn short(&self) -> Error {
        Error::structure(format!("bytes end at {} of {}", self.bytes.len(), self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_come_back() {
        let values = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
        let mut out = Vec::new();
        values.iter().for_each(|v| put_varint(&mut out, *v));
        let mut reader = Reader::new(&out);
        for value in values {
            assert_eq!(reader.varint().unwrap(), value);
        }
        assert!(reader.is_empty() && reader.byte().is_err());
    }

    #[test]
    fn too_long_is_an_error() {
        assert!(Reader::new(&[0xff; 10]).varint().is_err());
        assert!(Reader::new(&[0x80; 12]).varint().is_err());
        assert!(Reader::new(&[5, 1, 2]).bytes().is_err());
    }

    #[test]
    fn varints_have_the_length_foretold() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1u64 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!(out.len(), varint_len(value));
                let mut at = 0;
                assert_eq!(get_varint(&out, &mut at), Some(value));
                assert_eq!(at, out.len());
            }
        }
    }
}
