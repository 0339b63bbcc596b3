//! Little-endian varints and a reader that never runs past the end.

use crate::error::{Error, Result};

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
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
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::structure(format!("number too long before byte {}", self.at)))
    }

    pub fn varint32(&mut self) -> Result<u32> {
        let at = self.at;
        u32::try_from(self.varint()?).map_err(|_| Error::structure(format!("number too large at byte {at}")))
    }

    pub fn u64(&mut self) -> Result<u64> {
        let bytes = self.take(8)?;
        Ok(bytes.iter().rev().fold(0, |value, b| value << 8 | u64::from(*b)))
    }

    pub fn u32(&mut self) -> Result<u32> {
        let bytes = self.take(4)?;
        Ok(bytes.iter().rev().fold(0, |value, b| value << 8 | u32::from(*b)))
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
}
