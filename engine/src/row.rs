//! A row version as the row log holds it, and the pointer that stands for a body in the value log.
//!
//! ```text
//! record:   length (varint, of what follows) | marks (1) | row id (varint)
//!           | writer (varint)?  | command (varint)? | incarnation (varint)? | key length (varint) | key | body
//! marks:    bits 0-4 the flags of the row version, bit 5 writer follows, bit 6 command follows, bit 7 incarnation follows;
//!           what does not follow is zero
//! pointer:  start (4) | offset (2) | extent seq (8) | length (8)      little endian, 22 bytes
//! ```
//!
//! A record tells its own length first, so that a scanner of a log page can step from one to the next; a length of zero
//! is the end (the rest of a page is zero). Varints are LEB128, at most ten bytes.

use crate::bytes::{get_varint, put_varint, u16_at, u32_at, u64_at, varint_len};
use crate::error::{Error, Result};
use crate::types::{ExtentSeq, Flags, Head, PageNo, RowId, RowRef, Writer, MAX_KEY};

const FLAG_BITS: u8 = 0x1f;
const HAS_WRITER: u8 = 0x20;
const HAS_COMMAND: u8 = 0x40;
const HAS_INCARNATION: u8 = 0x80;

/// More than the head of any record takes: marks, four numbers, the key's length.
const MAX_RECORD_HEAD: usize = 1 + 4 * 10 + 3;

/// Appends the log record of a row version.
pub fn encode_record(row: &RowRef<'_>, out: &mut Vec<u8>) {
    let Head { row_id, writer, command, flags, incarnation } = row.head;
    debug_assert!(!row.key.is_empty() && row.key.len() <= MAX_KEY);
    debug_assert_eq!(flags.0 & !FLAG_BITS, 0);
    let mut head = 1 + varint_len(row_id.0) + varint_len(row.key.len() as u64);
    let mut marks = flags.0 & FLAG_BITS;
    for (value, mark) in optional_fields(writer, command, incarnation) {
        if value != 0 {
            marks |= mark;
            head += varint_len(value);
        }
    }
    put_varint(out, (head + row.key.len() + row.body.len()) as u64);
    let start = out.len();
    out.push(marks);
    put_varint(out, row_id.0);
    for (value, _) in optional_fields(writer, command, incarnation) {
        if value != 0 {
            put_varint(out, value);
        }
    }
    put_varint(out, row.key.len() as u64);
    debug_assert_eq!(out.len() - start, head);
    out.extend_from_slice(row.key);
    out.extend_from_slice(row.body);
}

fn optional_fields(writer: Writer, command: u32, incarnation: u16) -> [(u64, u8); 3] {
    [(writer.0, HAS_WRITER), (u64::from(command), HAS_COMMAND), (u64::from(incarnation), HAS_INCARNATION)]
}

/// Upper bound of what [`encode_record`] appends for a key and a body of these lengths.
pub fn max_record_len(key: usize, body: usize) -> usize {
    varint_len((MAX_RECORD_HEAD + key + body) as u64) + MAX_RECORD_HEAD + key + body
}

/// Length of the record that begins here, with the bytes of the length itself; `None` when no record begins here (the
/// length is zero or cut off).
pub fn record_len(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let rest = usize::try_from(get_varint(bytes, &mut at)?).ok()?;
    if rest == 0 {
        return None;
    }
    at.checked_add(rest)
}

/// Reads the record at the beginning of `bytes`; returns the row version and the length of the record.
#[inline]
pub fn decode_record(bytes: &[u8]) -> Result<(RowRef<'_>, usize)> {
    try_decode(bytes).ok_or_else(|| match record_len(bytes) {
        None => Error::structure("no log record here"),
        Some(length) if length > bytes.len() => {
            Error::structure(format!("log record of {length} bytes is cut off after {}", bytes.len()))
        }
        Some(length) => Error::structure(format!("log record of {length} bytes is malformed")),
    })
}

fn try_decode(bytes: &[u8]) -> Option<(RowRef<'_>, usize)> {
    let length = record_len(bytes)?;
    let record = bytes.get(..length)?;
    let mut at = 0;
    get_varint(record, &mut at)?;
    let marks = *record.get(at)?;
    at += 1;
    let row_id = RowId(get_varint(record, &mut at)?);
    let mut optional = |mark: u8| if marks & mark != 0 { get_varint(record, &mut at) } else { Some(0) };
    let writer = Writer(optional(HAS_WRITER)?);
    let command = u32::try_from(optional(HAS_COMMAND)?).ok()?;
    let incarnation = u16::try_from(optional(HAS_INCARNATION)?).ok()?;
    let key_len = usize::try_from(get_varint(record, &mut at)?).ok()?;
    if key_len == 0 || key_len > MAX_KEY {
        return None;
    }
    let key = record.get(at..at + key_len)?;
    let body = record.get(at + key_len..)?;
    let head = Head { row_id, writer, command, flags: Flags(marks & FLAG_BITS), incarnation };
    Some((RowRef { key, head, body }, length))
}

/// Where a body stands in the value log: the body of a row version flagged [`Flags::POINTER`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, PartialOrd, Ord, Hash)]
pub struct ValuePointer {
    /// Page on which the value begins.
    pub start: PageNo,
    /// Where on that page, counted from the start of the page.
    pub offset: u16,
    /// The extent that holds the value.
    pub seq: ExtentSeq,
    /// Bytes of the value.
    pub length: u64,
}

impl ValuePointer {
    pub const ENCODED: usize = 22;

    pub fn encode(&self) -> [u8; Self::ENCODED] {
        let mut out = [0; Self::ENCODED];
        out[..4].copy_from_slice(&self.start.0.to_le_bytes());
        out[4..6].copy_from_slice(&self.offset.to_le_bytes());
        out[6..14].copy_from_slice(&self.seq.0.to_le_bytes());
        out[14..].copy_from_slice(&self.length.to_le_bytes());
        out
    }

    pub fn decode(body: &[u8]) -> Result<ValuePointer> {
        let decoded = || {
            let seq = ExtentSeq(u64_at(body, 6)?);
            let (start, offset, length) = (PageNo(u32_at(body, 0)?), u16_at(body, 4)?, u64_at(body, 14)?);
            (body.len() == Self::ENCODED).then_some(ValuePointer { start, offset, seq, length })
        };
        decoded().ok_or_else(|| {
            Error::structure(format!("a value pointer has {} bytes, found {}", Self::ENCODED, body.len()))
        })
    }
}

/// Whether all of these records are of tombstones.
pub fn are_tombstones(records: &[&[u8]]) -> bool {
    records.iter().all(|record| decode_record(record).is_ok_and(|(row, _)| row.head.flags.is_tombstone()))
}

/// For fuzzing: decodes arbitrary bytes, and encodes what came out.
pub fn fuzz_record(bytes: &[u8]) {
    if let Ok((row, length)) = decode_record(bytes) {
        assert!(length <= bytes.len());
        let mut out = Vec::new();
        encode_record(&row, &mut out);
        assert_eq!(decode_record(&out).map(|(again, _)| again == row).ok(), Some(true));
    }
    let _ = ValuePointer::decode(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<'a>(key: &'a [u8], body: &'a [u8], head: Head) -> RowRef<'a> {
        RowRef { key, head, body }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    // Changing any of these bytes is a new format version.
    #[test]
    fn golden() {
        let mut out = Vec::new();
        encode_record(&row(b"k", b"body", Head { row_id: RowId(1), ..Head::default() }), &mut out);
        assert_eq!(hex(&out), "080001016b626f6479");
        out.clear();
        let head = Head {
            row_id: RowId(0x12_3456_789a),
            writer: Writer(300),
            command: 2,
            flags: Flags::TOMBSTONE.with(Flags::MOVED),
            incarnation: 129,
        };
        encode_record(&row(b"key", &[], head), &mut out);
        assert_eq!(hex(&out), "10e39af1d9a2a302ac02028101036b6579");
        let pointer = ValuePointer { start: PageNo(7), offset: 40, seq: ExtentSeq(0x0102), length: 0x0a0b0c }.encode();
        assert_eq!(hex(&pointer), "07000000280002010000000000000c0b0a0000000000");
    }

    #[test]
    fn round_trips_and_steps() {
        let mut state = 11u64;
        let mut next = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 20
        };
        let mut rows = Vec::new();
        let mut log = Vec::new();
        for i in 0..2000usize {
            let key: Vec<u8> =
                (0..1 + next() as usize % if i % 50 == 0 { MAX_KEY } else { 40 }).map(|_| next() as u8).collect();
            let body: Vec<u8> =
                (0..next() as usize % if i % 30 == 0 { 20_000 } else { 300 }).map(|_| next() as u8).collect();
            let head = Head {
                row_id: RowId(next() >> (next() % 40)),
                writer: Writer(if i % 3 == 0 { 0 } else { next() << 15 >> (next() % 60) }),
                command: if i % 4 == 0 { next() as u32 } else { 0 },
                flags: Flags(next() as u8 & 31),
                incarnation: if i % 5 == 0 { next() as u16 } else { 0 },
            };
            let before = log.len();
            encode_record(&row(&key, &body, head), &mut log);
            assert!(log.len() - before <= max_record_len(key.len(), body.len()));
            rows.push((key, head, body));
        }
        log.extend_from_slice(&[0; 8]);
        let mut at = 0;
        for (key, head, body) in &rows {
            let (found, length) = decode_record(&log[at..]).unwrap();
            assert_eq!(record_len(&log[at..]), Some(length));
            assert_eq!(found, row(key, body, *head));
            assert!(decode_record(&log[at..at + length - 1]).is_err());
            at += length;
        }
        assert_eq!(record_len(&log[at..]), None);
        assert!(decode_record(&log[at..]).is_err());
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        let mut state = 5u64;
        for _ in 0..200_000 {
            let mut bytes = [0u8; 24];
            for b in &mut bytes {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *b = (state >> 33) as u8;
            }
            bytes[0] %= 32;
            fuzz_record(&bytes);
        }
        fuzz_record(&[0xff; 30]);
        fuzz_record(&[]);
    }
}
