//! One segment of the row log: a file `log-<generation>.lkv` with the rows of one memtable.
//!
//! ```text
//! header:  0         8        12       16           24           32            40                    48                  64
//!          | magic   | crc32c | format | storage id | generation | first frame | previous generation | its first frame ... |
//! frame:   0        4       8        12        (16)
//!          | crc32c | shape | number | (behind) | payload: records, each after its length as a varint |
//! ```
//!
//! A frame is one append, whole or not there: its checksum covers everything from `shape` on, and begins with one of the
//! storage id and the generation, so that a stale frame of another file is never taken for one of this. `shape` holds the
//! payload's length in the low 30 bits. Frames are numbered through all segments; `number` counts from the segment's
//! first frame. With bit 31 of the shape comes `behind`: when the frame was appended, every frame up to `number - behind` had been
//! synced. A frame that is missing below such a mark has been lost by the device; one that is missing above all marks was
//! never promised to anybody.
//!
//! A row version's address is the offset of its record's length in the file.

use super::crc32c;
use super::fs::{File, Mapping};
use crate::bytes::{get_varint, put_bytes, u32_at, u64_at, varint_len};
use crate::cpu::{prefetch, LINE};
use crate::error::{Error, Place, Result};
use crate::host::LogReader;
use crate::mutation::{on, Mutation::I17TornTailBelieved};
use crate::types::{L0Id, LogAddr};
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

pub const HEADER: usize = 64;
const MAGIC: [u8; 8] = *b"lkvlog\r\n";
const FORMAT: u32 = 1;
/// Bytes before the payload, without and with a mark.
const FRAME: usize = 12;
const MARKED_FRAME: usize = 16;
const MARK: u32 = 1 << 31;
/// Longest payload.
pub const MAX_PAYLOAD: usize = (1 << 30) - 1;
/// Pages of a mapped segment are got so many bytes at a time.
const PIECE: u64 = 64 << 10;
/// Longest segment; address space of this size is set aside for each.
pub const MAX_SEGMENT: u64 = 4 << 30;
/// So much of a record is fetched beforehand; what follows, the processor fetches as it sees it read in order.
const TOUCHED: usize = 3 * LINE;
/// No log has so many frames; the first is number 1.
const MOST_FRAMES: u64 = 1 << 60;

/// What a segment's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub storage_id: u64,
    pub generation: L0Id,
    /// Number of the segment's first frame, counted through all segments.
    pub first_frame: u64,
    /// The segment before this one when it was begun (0: there was none), and its first frame.
    pub previous: L0Id,
    pub previous_first: u64,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let words = [self.storage_id, self.generation.0, self.first_frame, self.previous.0, self.previous_first];
        let fields = FORMAT.to_le_bytes().into_iter().chain(words.into_iter().flat_map(u64::to_le_bytes));
        bytes.iter_mut().skip(12).zip(fields).for_each(|(to, from)| *to = from);
        let crc = crc32c::checksum(bytes.get(12..).unwrap_or_default());
        let head = MAGIC.into_iter().chain(crc.to_le_bytes());
        bytes.iter_mut().zip(head).for_each(|(to, from)| *to = from);
        bytes
    }

    /// `Ok(None)`: no whole header. A whole one of another format is an error.
    pub fn decode(bytes: &[u8]) -> Result<Option<Header>> {
        let Some(bytes) = bytes.get(..HEADER) else { return Ok(None) };
        let crc = crc32c::checksum(bytes.get(12..).unwrap_or_default());
        if !bytes.starts_with(&MAGIC) || u32_at(bytes, 8) != Some(crc) {
            return Ok(None);
        }
        let word = |at| u64_at(bytes, at).unwrap_or(0);
        match u32_at(bytes, 12) {
            Some(FORMAT) if !(1..=MOST_FRAMES).contains(&word(32)) || word(48) > MOST_FRAMES => {
                Err(Error::structure(format!("a log segment that begins with frame {}", word(32))))
            }
            Some(FORMAT) => Ok(Some(Header {
                storage_id: word(16),
                generation: L0Id(word(24)),
                first_frame: word(32),
                previous: L0Id(word(40)),
                previous_first: word(48),
            })),
            found => Err(Error::Format { found: found.unwrap_or(0), known: FORMAT }),
        }
    }
}

/// What the checksums of a segment's frames begin with.
pub fn seed(storage_id: u64, generation: L0Id) -> u32 {
    crc32c::extend(crc32c::checksum(&storage_id.to_le_bytes()), &generation.0.to_le_bytes())
}

/// Puts a frame together in `out`; `behind` is the mark. Returns where in `out` the first record's length is.
pub fn encode_frame(
    seed: u32,
    number: u32,
    behind: Option<u32>,
    records: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<usize> {
    out.clear();
    out.resize(if behind.is_some() { MARKED_FRAME } else { FRAME }, 0);
    let payload = out.len();
    for record in records {
        put_bytes(out, record);
    }
    let len = u32::try_from(out.len() - payload).ok().filter(|len| *len as usize <= MAX_PAYLOAD);
    let len = len.ok_or_else(|| Error::Invalid(format!("{} bytes in one batch", out.len() - payload)))?;
    let shape = if behind.is_some() { len | MARK } else { len };
    let fields = [shape, number].into_iter().chain(behind).flat_map(u32::to_le_bytes);
    out.iter_mut().skip(4).zip(fields).for_each(|(to, from)| *to = from);
    let crc = crc32c::extend(seed, out.get(4..).unwrap_or_default());
    out.iter_mut().zip(crc.to_le_bytes()).for_each(|(to, from)| *to = from);
    Ok(payload)
}

/// Bytes that a record of this length takes in a payload.
pub fn stored_len(len: usize) -> usize {
    len + varint_len(len as u64)
}

/// A record's length, and how many bytes tell it.
fn get_length(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut width = 0;
    let len = get_varint(bytes, &mut width)?;
    (len <= MAX_PAYLOAD as u64).then_some((len as usize, width))
}

/// A whole frame found in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub number: u32,
    /// Every frame of the segment up to this number was synced; negative: counted from its first frame back.
    pub durable: Option<i64>,
    pub payload: Range<usize>,
}

impl Frame {
    /// The frame that begins at `at`, if a whole one does.
    pub fn decode(bytes: &[u8], at: usize, seed: u32) -> Option<Frame> {
        let shape = u32_at(bytes, at.checked_add(4)?)?;
        let number = u32_at(bytes, at + 8)?;
        let marked = shape & MARK != 0;
        let len = (shape & !MARK) as usize;
        let start = at + if marked { MARKED_FRAME } else { FRAME };
        if len > MAX_PAYLOAD || (len == 0 && !marked) {
            return None;
        }
        let end = start.checked_add(len).filter(|end| *end <= bytes.len())?;
        let durable = match marked {
            true => Some(i64::from(number) - i64::from(u32_at(bytes, at + 12)?)),
            false => None,
        };
        let crc = crc32c::extend(seed, bytes.get(at + 4..end)?);
        (u32_at(bytes, at)? == crc || on(I17TornTailBelieved)).then_some(Frame { number, durable, payload: start..end })
    }

    /// Shows each record with its offset in the segment.
    pub fn records(&self, bytes: &[u8], mut show: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let payload = bytes.get(self.payload.clone()).unwrap_or_default();
        let mut at = 0;
        while at < payload.len() {
            let rest = payload.get(at..).unwrap_or_default();
            let record = get_length(rest).and_then(|(len, width)| rest.get(width..width.checked_add(len)?));
            let Some(record) = record else {
                return Err(Error::structure("a record's length reaches past the end of its frame"));
            };
            show(self.payload.start + at, record)?;
            at += stored_len(record.len());
        }
        Ok(())
    }
}

/// Goes through what follows the last frame that counts, looking for whole frames with higher numbers: traces of a frame in
/// between that is gone. `found` is shown each; returns whether there was any.
pub fn search(bytes: &[u8], from: usize, seed: u32, above: i64, mut found: impl FnMut(&Frame)) -> bool {
    let mut any = false;
    let mut at = from;
    while let Some(nonzero) = bytes.get(at..).and_then(next_nonzero) {
        // A checksum may begin with zero bytes; a frame whose checksum is zero altogether will not be missed, its shape
        // is not zero, and it is tried from four bytes further back.
        let first = (at + nonzero).saturating_sub(8).max(at);
        let mut after = at + nonzero + 1;
        for start in first..after {
            if !seems_a_frame(bytes, start, above, (start - from) / FRAME) {
                continue;
            }
            if let Some(frame) = Frame::decode(bytes, start, seed) {
                found(&frame);
                any = true;
                after = frame.payload.end;
                break;
            }
        }
        at = after;
    }
    any
}

/// Whether a frame with a higher number may begin here, before its checksum is looked at: that of what is torn of a large frame would
/// be made for each of its bytes. There is room for so many frames before it, and records, none of which is empty, fill a frame.
fn seems_a_frame(bytes: &[u8], at: usize, above: i64, before: usize) -> bool {
    let (Some(shape), Some(number)) = (u32_at(bytes, at + 4), u32_at(bytes, at + 8)) else { return false };
    let len = (shape & !MARK) as usize;
    let start = at + if shape & MARK != 0 { MARKED_FRAME } else { FRAME };
    let most = above.saturating_add(1).saturating_add(before as i64);
    if len > MAX_PAYLOAD || start + len > bytes.len() || !(above + 1..=most).contains(&i64::from(number)) {
        return false;
    }
    let (mut from, end) = (start, start + len);
    while from < end {
        match bytes.get(from..end).and_then(get_length) {
            Some((len, width)) if len > 0 => from += len + width,
            _ => return false,
        }
    }
    from == end
}

fn next_nonzero(bytes: &[u8]) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<64>();
    let whole = words.iter().take_while(|w| **w == [0; 64]).count();
    let tail = bytes.get(whole * 64..).unwrap_or(rest);
    tail.iter().position(|b| *b != 0).map(|at| whole * 64 + at)
}

/// Room that a segment may take.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    pub bytes: u64,
    /// Anybody may use it.
    pub open: bool,
}

/// Who wants to append asks for room.
pub struct Grant<'a> {
    /// At least so many bytes, or so many that the segment would like to have.
    pub room: &'a dyn Fn(u64, u64) -> Result<Granted>,
    /// Nothing but tombstones is appended.
    pub deletes: &'a dyn Fn() -> bool,
}

/// An open segment.
pub struct Segment {
    pub generation: L0Id,
    pub first_frame: u64,
    pub seed: u32,
    pub name: String,
    pub file: Arc<dyn File>,
    map: Option<Mapping>,
    /// The mapping may be written to: the room below `allocated` is reserved on the device.
    reserved: bool,
    /// End of the file's allocated part; changed by the appender alone.
    allocated: AtomicU64,
    /// End of what anybody may write to; the rest is for deletes on a full disk. Changed by the appender alone.
    open: AtomicU64,
    /// End of the part whose pages the mapping has got; changed by the appender alone.
    populated: AtomicU64,
    /// End of the frames that may be read.
    end: AtomicU64,
}

impl Segment {
    /// A segment over a file that has so many bytes of frames and is so long.
    pub fn new(header: &Header, name: String, file: Arc<dyn File>, end: u64, len: u64, reserved: bool) -> Segment {
        // Without a mapping (out of address space, or a file system that has none) the segment is read and written by calls.
        let map = file.map(0, MAX_SEGMENT as usize, true).ok().flatten();
        Segment {
            generation: header.generation,
            first_frame: header.first_frame,
            seed: seed(header.storage_id, header.generation),
            name,
            file,
            map,
            reserved,
            allocated: AtomicU64::new(len),
            open: AtomicU64::new(len),
            populated: AtomicU64::new(0),
            end: AtomicU64::new(end),
        }
    }

    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Makes room for `len` more bytes, by a chunk if that is granted. Nothing has changed when it fails. For the appender alone.
    pub fn make_room(&self, len: u64, chunk: u64, grant: &Grant<'_>) -> Result<()> {
        let wanted = self.end() + len;
        if wanted <= self.open.load(Ordering::Relaxed) {
            return Ok(());
        }
        let old = self.allocated();
        if wanted <= old && (grant.deletes)() {
            return Ok(());
        }
        if wanted > MAX_SEGMENT {
            return Err(Error::NoSpace(format!("{} cannot grow: it has {old} bytes", self.name)));
        }
        let rounded = wanted.max(old + 1).next_multiple_of(chunk.max(1)).min(MAX_SEGMENT);
        let granted = (grant.room)(wanted.saturating_sub(old).max(1), rounded.saturating_sub(old))?;
        let room = (old + granted.bytes).min(rounded.max(old));
        let failed = |e| Error::io_or_no_space(format!("{} cannot grow", self.name), e);
        self.file.allocate(room).map_err(failed)?;
        self.allocated.store(room, Ordering::Relaxed);
        if granted.open {
            self.open.store(room, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What is allocated is for deletes.
    pub fn shut(&self) {
        self.open.store(self.end(), Ordering::Relaxed);
    }

    /// Something is about to be written at the end. A hint.
    pub fn touch_end(&self) {
        self.touch(self.end());
    }

    fn touch(&self, offset: u64) {
        if let Some(start) = self.map.as_ref().and_then(|map| map.at(offset as usize, 1)) {
            (0..TOUCHED).step_by(LINE).for_each(|at| prefetch(start.as_ptr().wrapping_add(at)));
        }
    }

    /// Writes a frame at the end. It can be read once [`Segment::publish`] has been called. For the appender alone.
    pub fn write(&self, frame: &[u8]) -> std::io::Result<()> {
        let at = self.end();
        debug_assert!(at + frame.len() as u64 <= self.allocated());
        match self.map.as_ref().filter(|_| self.reserved).and_then(|map| map.at(at as usize, frame.len())) {
            Some(to) => {
                self.populate(at + frame.len() as u64);
                // SAFETY: within the mapping and the file's reserved part; no reader looks past `end`, and this is the only
                // writer.
                unsafe { std::ptr::copy_nonoverlapping(frame.as_ptr(), to.as_ptr(), frame.len()) };
                Ok(())
            }
            None => self.file.write_at(frame, at),
        }
    }

    /// Gets the pages of the mapping up to `end`, and some more that are going to be written next.
    fn populate(&self, end: u64) {
        let from = self.populated.load(Ordering::Relaxed);
        if let Some(map) = self.map.as_ref().filter(|_| end > from) {
            let upto = end.next_multiple_of(PIECE).min(self.allocated());
            map.populate(from as usize, (upto - from) as usize);
            self.populated.store(upto.next_multiple_of(PIECE), Ordering::Relaxed);
        }
    }

    pub fn publish(&self, len: u64) {
        self.end.store(self.end() + len, Ordering::Release);
    }

    /// Writes the frames from `from` on once more, as they are read, and syncs the file.
    pub fn rewrite(&self, from: u64, most: usize) -> Result<()> {
        let context = |e| Error::io(format!("cannot write {} once more", self.name), e);
        let mut at = from;
        while at < self.end() {
            let mut bytes = vec![0; usize::try_from(self.end() - at).map_or(most, |left| left.min(most))];
            let got = self.file.read_at(&mut bytes, at).map_err(context)?;
            if got != bytes.len() {
                return Err(Error::structure(format!("{} became shorter while it was read", self.name)));
            }
            self.file.write_at(&bytes, at).map_err(context)?;
            at += got as u64;
        }
        self.file.sync().map_err(context)
    }

    /// Cuts off what is allocated past the end.
    pub fn trim(&self) -> std::io::Result<()> {
        self.file.set_len(self.end())?;
        self.allocated.store(self.end(), Ordering::Relaxed);
        self.open.store(self.end(), Ordering::Relaxed);
        Ok(())
    }

    /// The record at an address.
    pub fn row(self: &Arc<Segment>, addr: LogAddr) -> Result<LogRow> {
        let room = self.end().saturating_sub(addr.0) as usize;
        let lost = || {
            let place = Place::Log { generation: self.generation.0, offset: addr.0 };
            Error::Corrupt { place, what: format!("{}: no record, frames end at {}", self.name, self.end()) }
        };
        match self.map.as_ref().and_then(|map| map.at(addr.0 as usize, room)) {
            Some(start) => {
                // SAFETY: published bytes are in the file, and never written again.
                let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr(), room) };
                let (len, width) = get_length(bytes).filter(|(len, width)| len + width <= room).ok_or_else(lost)?;
                // SAFETY: within `bytes`, as just checked.
                let start = unsafe { start.add(width) };
                Ok(LogRow::Mapped { start, len, _segment: Arc::clone(self) })
            }
            None => {
                let mut head = [0; 5];
                let read = |buf: &mut [u8], at| {
                    let got = self.file.read_at(buf, at);
                    got.map_err(|e| Error::io(format!("cannot read {} at {at}", self.name), e))
                };
                let got = read(&mut head, addr.0)?.min(room);
                let length = head.get(..got).and_then(get_length);
                let (len, width) = length.filter(|(len, width)| len + width <= room).ok_or_else(lost)?;
                let mut row = vec![0; len];
                match read(&mut row, addr.0 + width as u64)? == len {
                    true => Ok(LogRow::Copied(row)),
                    false => Err(lost()),
                }
            }
        }
    }
}

/// See [`crate::host::Host::LogReader`].
pub struct SegmentReader(pub Arc<Segment>);

impl LogReader for SegmentReader {
    type Row = LogRow;

    fn row(&self, addr: LogAddr) -> Result<LogRow> {
        self.0.row(addr)
    }

    #[inline]
    fn touch(&self, addr: LogAddr) {
        self.0.touch(addr.0);
    }
}

/// A record being read.
pub enum LogRow {
    Mapped { start: NonNull<u8>, len: usize, _segment: Arc<Segment> },
    Copied(Vec<u8>),
}

// SAFETY: the bytes are published, so nobody writes them, and the segment they are mapped by is kept by the reference.
unsafe impl Send for LogRow {}
// SAFETY: as above.
unsafe impl Sync for LogRow {}

impl Deref for LogRow {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            // SAFETY: see above.
            LogRow::Mapped { start, len, .. } => unsafe { std::slice::from_raw_parts(start.as_ptr(), *len) },
            LogRow::Copied(row) => row,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::put_varint;

    const HEAD: Header = Header {
        storage_id: 0x0102_0304_0506_0708,
        generation: L0Id(9),
        first_frame: 100,
        previous: L0Id(8),
        previous_first: 90,
    };

    #[test]
    fn golden_bytes() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(
            hex(&HEAD.encode()),
            "6c6b766c6f670d0a27509533010000000807060504030201090000000000000064000000000000000800000000000000\
             5a000000000000000000000000000000"
        );
        let mut out = Vec::new();
        let seed = seed(HEAD.storage_id, HEAD.generation);
        encode_frame(seed, 3, Some(2), &[b"abc", &[7; 130]], &mut out).unwrap();
        assert_eq!(&hex(&out)[8..44], "880000800300000002000000036162638201");
        encode_frame(seed, 4, None, &[b"x"], &mut out).unwrap();
        assert_eq!(hex(&out), "53770a4e02000000040000000178");
    }

    #[test]
    fn headers_come_back_and_damage_is_told_from_other_formats() {
        let bytes = HEAD.encode();
        assert_eq!(Header::decode(&bytes).unwrap(), Some(HEAD));
        for at in 0..HEADER {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert_eq!(Header::decode(&bad).unwrap(), None, "byte {at}");
        }
        assert_eq!(Header::decode(&bytes[..63]).unwrap(), None);
        let mut newer = bytes;
        newer[12] = 2;
        let crc = crc32c::checksum(&newer[12..]);
        newer[8..12].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(Header::decode(&newer), Err(Error::Format { found: 2, known: 1 })));
    }

    fn frames(bytes: &[u8], seed: u32) -> Vec<(u32, Vec<Vec<u8>>)> {
        let mut all = Vec::new();
        let mut at = 0;
        while let Some(frame) = Frame::decode(bytes, at, seed) {
            let mut records = Vec::new();
            frame
                .records(bytes, |_, r| {
                    records.push(r.to_vec());
                    Ok(())
                })
                .unwrap();
            all.push((frame.number, records));
            at = frame.payload.end;
        }
        all
    }

    #[test]
    fn frames_come_back_and_are_found_behind_a_gap() {
        let mut log = Vec::new();
        let mut starts = Vec::new();
        let mut out = Vec::new();
        for number in 0..20u32 {
            let records: Vec<Vec<u8>> = (0..=number % 3).map(|i| vec![i as u8; (number * 40 + i) as usize]).collect();
            let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
            starts.push(log.len());
            encode_frame(5, number, (number % 4 == 3).then_some(2), &slices, &mut out).unwrap();
            log.extend_from_slice(&out);
        }
        let all = frames(&log, 5);
        assert_eq!(all.len(), 20);
        assert!(all.iter().enumerate().all(|(i, (n, r))| *n as usize == i && r.len() == i % 3 + 1));
        assert!(frames(&log, 6).is_empty());

        // Every single damaged byte of a frame hides it, and the later ones are still found.
        for at in starts[5]..starts[6] {
            let mut bad = log.clone();
            bad[at] ^= 0x40;
            assert_eq!(frames(&bad, 5).len(), 5);
            let mut later = Vec::new();
            assert!(search(&bad, starts[5], 5, 4, |f| later.push((f.number, f.durable))));
            assert_eq!(later.len(), 14, "byte {}", at - starts[5]);
            assert!(later.contains(&(7, Some(5))) && later.contains(&(8, None)));
        }
        // Zeros instead of a frame, too.
        let mut bad = log.clone();
        bad[starts[5]..starts[6]].fill(0);
        let mut later = 0;
        assert!(search(&bad, starts[5], 5, 4, |_| later += 1));
        assert_eq!(later, 14);
        assert!(!search(&log, starts[5], 5, 19, |_| {}));
    }

    #[test]
    fn no_bytes_make_a_decoder_panic() {
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        for len in 0..200usize {
            let bytes: Vec<u8> = (0..len).map(|_| random()).collect();
            let _ = Header::decode(&bytes);
            for at in 0..=len {
                let _ = Frame::decode(&bytes, at, 1);
                let frame = Frame { number: 0, durable: None, payload: at..len };
                let _ = frame.records(&bytes, |_, _| Ok(()));
            }
            search(&bytes, 0, 1, -1, |_| {});
        }
    }

    #[test]
    fn lengths_take_as_many_bytes_as_told() {
        for len in [0, 1, 127, 128, 300, 16383, 16384, 2_097_151, 2_097_152, MAX_PAYLOAD] {
            let mut out = Vec::new();
            put_varint(&mut out, len as u64);
            assert_eq!(get_length(&out), Some((len, out.len())));
            assert_eq!(stored_len(len), len + out.len());
        }
    }
}
