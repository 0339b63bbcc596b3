//! One row version in a memtable.
//!
//! ```text
//!   cold                                                        tower                      hot    key
//!   [far writer 8]? [writer 4][command 4][addr 4+2][incarn. 2] [pad 4]? [next h-1]..[next 0] | [hot 8][key ...]
//!                                                                                            ^ the node's offset
//!   hot: [key length and height 2][flags 1][hint 1][row 4]
//! ```
//!
//! The offset points between the tower, which grows downwards, and the rest: a search touches next 0, next 1, the row
//! number and the first bytes of the key side by side, mostly in one cache line. The row is counted from the memtable's
//! first, the writer as a signed distance from the memtable's; a writer too far away takes eight more bytes. The key is
//! padded with zeros to a multiple of eight bytes, at least eight, so that its first eight can always be loaded as one
//! big-endian word. All but flags, hint and tower never changes once the node is linked.

use crate::types::{Flags, Head, LogAddr, RowId, Writer, MAX_KEY};
use std::cmp::Ordering as Cmp;
use std::sync::atomic::{AtomicU32, AtomicU8, Ordering};

/// Enough for 2^20 rows and more: every second node is higher than 1, every fourth higher than 2.
pub(super) const MAX_HEIGHT: usize = 20;

const COLD: usize = 16;
const WIDE: usize = 8;
const HOT: usize = 8;
/// Shortest key as stored.
const WORD: usize = 8;

const KEY_BITS: u16 = (1 << 11) - 1;
const HEIGHT_SHIFT: u16 = 11;

/// In place of a writer's distance: it stands whole before the cold part.
const FAR: i32 = i32::MIN;

const _: () = assert!(MAX_KEY <= KEY_BITS as usize && MAX_HEIGHT < 32);

/// Key length and height.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape(u16);

impl Shape {
    pub(super) fn new(key_len: usize, height: usize) -> Shape {
        debug_assert!(key_len <= MAX_KEY && (1..=MAX_HEIGHT).contains(&height));
        Shape(key_len as u16 | (height as u16) << HEIGHT_SHIFT)
    }

    pub(super) fn key_len(self) -> usize {
        usize::from(self.0 & KEY_BITS)
    }

    pub(super) fn height(self) -> usize {
        usize::from(self.0 >> HEIGHT_SHIFT)
    }

    /// Bytes between the cold part and the node's offset.
    fn tower_bytes(self) -> usize {
        tower_bytes(self.height())
    }

    /// Bytes before the node's offset; `far` is [`is_far`] of the writer.
    pub(super) fn front(self, far: bool) -> usize {
        COLD + self.tower_bytes() + if far { WIDE } else { 0 }
    }

    /// All bytes of the node.
    pub(super) fn bytes(self, far: bool) -> usize {
        self.front(far) + HOT + self.key_len().next_multiple_of(WORD).max(WORD)
    }
}

pub(super) fn tower_bytes(height: usize) -> usize {
    (height * 4).next_multiple_of(WORD)
}

/// Where in the order to look: before a row of a key, before all rows of a key, or after all of them.
pub(super) struct Want<'k> {
    word: u64,
    /// What follows the first word.
    second: u64,
    key: &'k [u8],
    row: i64,
}

impl<'k> Want<'k> {
    #[inline(always)]
    fn of(key: &'k [u8], row: i64) -> Want<'k> {
        Want { word: first_word(key), second: first_word(key.get(WORD..).unwrap_or_default()), key, row }
    }

    /// Just before the newest version of `key` that is possible.
    pub(super) fn before(key: &'k [u8]) -> Want<'k> {
        Want::of(key, i64::MAX)
    }

    /// Just after the oldest version of `key` that is possible.
    pub(super) fn after(key: &'k [u8]) -> Want<'k> {
        Want::of(key, -1)
    }

    /// Where the version `row` of `key` stands.
    pub(super) fn row(key: &'k [u8], row: u32) -> Want<'k> {
        Want::of(key, i64::from(row))
    }

    pub(super) fn key(&self) -> &'k [u8] {
        self.key
    }
}

#[inline(always)]
pub(super) fn first_word(key: &[u8]) -> u64 {
    match key.first_chunk::<WORD>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; WORD];
            for (to, from) in bytes.iter_mut().zip(key) {
                *to = *from;
            }
            u64::from_be_bytes(bytes)
        }
    }
}

/// A node, by the address between its tower and its hot word. Copied about freely; every use is unsafe: the node must
/// be initialised (linked, or the caller's own) and its memtable alive.
#[derive(Clone, Copy)]
pub(super) struct Node(pub(super) *mut u8);

impl Node {
    /// Writes everything but the tower.
    ///
    /// # Safety
    /// The shape's `front` bytes before the node's address and the rest of its `bytes` after it are the caller's alone,
    /// and the address is a multiple of 8.
    pub(super) unsafe fn write(self, shape: Shape, row: u32, base: Writer, key: &[u8], head: &Head, addr: LogAddr) {
        debug_assert_eq!(shape.key_len(), key.len());
        let padded = key.len().next_multiple_of(WORD).max(WORD);
        // SAFETY: all of this lies within the block; the offsets are aligned by the layout.
        unsafe {
            self.0.cast::<u16>().write(shape.0);
            self.0.add(2).write(head.flags.0);
            self.0.add(3).write(0);
            self.0.add(4).cast::<u32>().write(row);
            let to = self.0.add(HOT);
            // The last word first: it zeroes the padding.
            to.add(padded - WORD).cast::<u64>().write(0);
            std::ptr::copy_nonoverlapping(key.as_ptr(), to, key.len());
            let cold = self.0.sub(shape.tower_bytes() + COLD);
            match near_distance(head.writer, base) {
                Some(distance) => cold.cast::<i32>().write(distance),
                None => {
                    cold.cast::<i32>().write(FAR);
                    cold.sub(WIDE).cast::<u64>().write(head.writer.0);
                }
            }
            cold.add(4).cast::<u32>().write(head.command);
            cold.add(8).cast::<u32>().write(addr.0 as u32);
            cold.add(12).cast::<u16>().write((addr.0 >> 32) as u16);
            cold.add(14).cast::<u16>().write(head.incarnation);
        }
    }

    /// The link to the next node of this level.
    ///
    /// # Safety
    /// As for the type; `level` is below the node's height.
    #[inline(always)]
    pub(super) unsafe fn next<'a>(self, level: usize) -> &'a AtomicU32 {
        // SAFETY: the tower stands below the node's address.
        unsafe { &*self.0.sub(4 * (level + 1)).cast::<AtomicU32>() }
    }

    /// Begins to fetch what a search looks at. Any address will do.
    #[inline(always)]
    pub(super) fn prefetch(self) {
        crate::cpu::prefetch(self.0);
        crate::cpu::prefetch(self.0.wrapping_add(HOT + WORD));
    }

    /// Begins to fetch all of it, if it is not a very high one or of a long key. Any address will do.
    #[inline(always)]
    pub(super) fn prefetch_whole(self) {
        crate::cpu::prefetch(self.0.wrapping_sub(COLD + 2 * 4));
        crate::cpu::prefetch(self.0.wrapping_add(HOT + WORD));
    }

    /// # Safety
    /// As for the type.
    pub(super) unsafe fn shape(self) -> Shape {
        // SAFETY: the caller's promise.
        Shape(unsafe { self.0.cast::<u16>().read() })
    }

    /// # Safety
    /// As for the type.
    pub(super) unsafe fn row(self) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(4).cast::<u32>().read() }
    }

    /// # Safety
    /// As for the type; the result must not outlive the memtable.
    pub(super) unsafe fn key<'a>(self) -> &'a [u8] {
        // SAFETY: the key stands behind the hot word.
        unsafe { std::slice::from_raw_parts(self.0.add(HOT), self.shape().key_len()) }
    }

    /// # Safety
    /// As for the type; the result must not outlive the memtable.
    pub(super) unsafe fn flags<'a>(self) -> &'a AtomicU8 {
        // SAFETY: nobody accesses this byte other than atomically once the node is linked.
        unsafe { &*self.0.add(2).cast::<AtomicU8>() }
    }

    /// # Safety
    /// As for the type; the result must not outlive the memtable.
    pub(super) unsafe fn hint<'a>(self) -> &'a AtomicU8 {
        // SAFETY: as for flags.
        unsafe { &*self.0.add(3).cast::<AtomicU8>() }
    }

    /// # Safety
    /// As for the type.
    pub(super) unsafe fn addr(self) -> LogAddr {
        // SAFETY: the caller's promise, and the layout.
        unsafe {
            let cold = self.0.sub(self.shape().tower_bytes() + COLD);
            let low = cold.add(8).cast::<u32>().read();
            let high = cold.add(12).cast::<u16>().read();
            LogAddr(u64::from(high) << 32 | u64::from(low))
        }
    }

    /// # Safety
    /// As for the type; the bases are those of its memtable.
    pub(super) unsafe fn head(self, base_row: RowId, base_writer: Writer) -> Head {
        // SAFETY: the caller's promise, and the layout.
        unsafe {
            let shape = self.shape();
            let cold = self.0.sub(shape.tower_bytes() + COLD);
            let writer = match cold.cast::<i32>().read() {
                FAR => cold.sub(WIDE).cast::<u64>().read(),
                distance => base_writer.0.wrapping_add_signed(i64::from(distance)),
            };
            Head {
                row_id: RowId(base_row.0 + u64::from(self.row())),
                writer: Writer(writer),
                command: cold.add(4).cast::<u32>().read(),
                flags: Flags(self.flags().load(Ordering::Acquire)),
                incarnation: cold.add(14).cast::<u16>().read(),
            }
        }
    }

    /// The first word of its key.
    ///
    /// # Safety
    /// As for the type.
    #[inline(always)]
    pub(super) unsafe fn word(self) -> u64 {
        // SAFETY: every key is stored with at least eight bytes.
        u64::from_be(unsafe { self.0.add(HOT).cast::<u64>().read() })
    }

    /// Does the node stand before the place that is looked for? Keys ascend as unsigned bytes, a key before its
    /// extensions; within a key the rows descend.
    ///
    /// # Safety
    /// As for the type.
    #[inline(always)]
    pub(super) unsafe fn is_before(self, want: &Want<'_>) -> bool {
        // SAFETY: the caller's promise.
        let word = unsafe { self.word() };
        if word != want.word {
            return word < want.word;
        }
        // Zeros that a key was filled up with come before, or are like, what a longer one has there.
        // SAFETY: the caller's promise; a key of more than eight bytes is stored with at least sixteen.
        let second = match unsafe { self.shape() }.key_len() > WORD {
            true => u64::from_be(unsafe { self.0.add(HOT + WORD).cast::<u64>().read() }),
            false => 0,
        };
        if second != want.second {
            return second < want.second;
        }
        // SAFETY: the caller's promise.
        unsafe { self.is_before_slow(want) }
    }

    /// # Safety
    /// As for the type.
    #[inline(never)]
    unsafe fn is_before_slow(self, want: &Want<'_>) -> bool {
        // SAFETY: the caller's promise.
        let (key, row) = unsafe { (self.key(), self.row()) };
        // The first two words are equal, but one key may end in them: lengths decide then, as they do for whole keys.
        let rest = match (key.get(2 * WORD..), want.key.get(2 * WORD..)) {
            (Some(rest), Some(wanted)) => rest.cmp(wanted),
            _ => Cmp::Equal,
        };
        match rest.then(key.len().cmp(&want.key.len())) {
            Cmp::Less => true,
            Cmp::Greater => false,
            Cmp::Equal => i64::from(row) > want.row,
        }
    }
}

fn near_distance(writer: Writer, base: Writer) -> Option<i32> {
    i32::try_from(writer.0.wrapping_sub(base.0) as i64).ok().filter(|distance| *distance != FAR)
}

/// Must this writer be stored whole?
pub(super) fn is_far(writer: Writer, base: Writer) -> bool {
    near_distance(writer, base).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(key: &[u8], height: usize, base: Writer, head: &Head, addr: LogAddr) -> (Vec<u64>, Node, Shape) {
        let (shape, far) = (Shape::new(key.len(), height), is_far(head.writer, base));
        let mut block = vec![u64::MAX; shape.bytes(far) / 8];
        let node = Node(block.as_mut_ptr().cast::<u8>().wrapping_add(shape.front(far)));
        // SAFETY: the block is as large as the shape says.
        unsafe { node.write(shape, 5, base, key, head, addr) };
        (block, node, shape)
    }

    #[test]
    fn comes_back_as_written() {
        let base = Writer(1 << 40);
        for key_len in [0, 1, 7, 8, 9, 16, 23, 24, 1899, MAX_KEY] {
            for height in [1, 2, 3, MAX_HEIGHT] {
                for writer in
                    [0, 3, base.0, base.0 - 9, base.0 + (1 << 31), base.0 + (1 << 31) - 1, base.0 - (1 << 31), u64::MAX]
                {
                    let key: Vec<u8> = (0..key_len).map(|i| i as u8 | 1).collect();
                    let flags = Flags::TOMBSTONE.with(Flags::MOVED);
                    let row_id = RowId(105);
                    let head =
                        Head { row_id, writer: Writer(writer), command: u32::MAX - 1, flags, incarnation: 0xFEDC };
                    let addr = LogAddr(0xBA98_7654_3210);
                    let (block, node, shape) = node(&key, height, base, &head, addr);
                    // SAFETY: written above.
                    unsafe {
                        assert_eq!(node.key(), key);
                        assert_eq!(node.head(RowId(100), base), head);
                        assert_eq!(node.addr(), addr);
                        assert_eq!((node.shape(), shape.height()), (shape, height));
                        for level in 0..height {
                            node.next(level).store(0, Ordering::Relaxed);
                        }
                        assert_eq!(node.head(RowId(100), base), head, "the tower is apart from the rest");
                        assert_eq!(node.key(), key);
                    }
                    drop(block);
                }
            }
        }
    }

    #[test]
    fn sixteen_byte_key_takes_48_bytes() {
        assert_eq!(Shape::new(16, 1).bytes(false), 48);
        assert_eq!(Shape::new(16, 2).bytes(false), 48);
        assert_eq!(Shape::new(16, 3).bytes(false), 56);
        assert_eq!(Shape::new(16, 1).bytes(true), 56);
    }

    #[test]
    fn order_is_that_of_bytes_then_newest_first() {
        let keys: [&[u8]; 22] = [
            b"",
            b"\0",
            b"\0\0",
            b"\0\0\0\0\0\0\0\0",
            b"\0\0\0\0\0\0\0\0\0",
            b"a",
            b"a\0",
            b"a\0\0\0\0\0\0\0",
            b"a\0\0\0\0\0\0\0\0",
            b"a\0\0\0\0\0\0\x01",
            b"ab",
            b"abcdefgh",
            b"abcdefgh\0",
            b"abcdefgh\0\0\0\0\0\0\0\0",
            b"abcdefgh\0\0\0\0\0\0\0\0\0",
            b"abcdefgh\0\x01",
            b"abcdefghi",
            b"abcdefghijklmnop",
            b"abcdefghijklmnop\0",
            b"abcdefghijklmnopq",
            b"abcdefghijklmnoq",
            b"\xff",
        ];
        let (base, addr) = (Writer(0), LogAddr(0));
        for (i, stored) in keys.iter().enumerate() {
            let (_block, node, _) = node(stored, 1, base, &Head::default(), addr);
            for (j, wanted) in keys.iter().enumerate() {
                // SAFETY: written above (as row 5).
                unsafe {
                    assert_eq!(node.is_before(&Want::before(wanted)), i < j);
                    assert_eq!(node.is_before(&Want::after(wanted)), i <= j);
                    assert_eq!(node.is_before(&Want::row(wanted, 4)), i <= j);
                    assert_eq!(node.is_before(&Want::row(wanted, 6)), i < j);
                }
            }
        }
    }
}
