//! The ring of records: written at the head, let go at the tail, read without a latch.
//!
//! Positions count words since the beginning of time; where one stands is the remainder by the ring's size. A record never goes
//! around the end: what is left there is a filler, a record with a key of no bytes.

use super::{words, MOST_BYTES};
use std::sync::atomic::{fence, AtomicU64, Ordering::*};

/// Words before key and body.
pub(super) const HEADER: usize = 7;

/// The first word of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size {
    /// Of the whole record.
    pub words: usize,
    pub key_bytes: usize,
    pub body_bytes: usize,
}

impl Size {
    pub(super) fn encode(self) -> u64 {
        (self.words as u64) << 48 | (self.key_bytes as u64) << 32 | self.body_bytes as u64
    }

    fn decode(word: u64) -> Size {
        Size {
            words: (word >> 48) as usize,
            key_bytes: (word >> 32 & 0xffff) as usize,
            body_bytes: (word & 0xffff_ffff) as usize,
        }
    }
}

/// What is left over at the end of the ring. (It may be longer than a size can tell.)
const FILLER: Size = Size { words: 0, key_bytes: 0, body_bytes: 0 };

pub(super) struct Ring {
    words: *const AtomicU64,
    capacity: u64,
    head: AtomicU64,
    tail: AtomicU64,
}

/// That there is room at the head.
pub(super) struct Room(());

impl Ring {
    /// # Safety
    /// `words` zeros that nothing else uses as long as the ring is.
    pub(super) unsafe fn new(at: *const AtomicU64, words: usize) -> Ring {
        Ring { words: at, capacity: words as u64, head: AtomicU64::new(0), tail: AtomicU64::new(0) }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn is_untouched(&self) -> bool {
        self.head.load(Relaxed) == 0
    }

    pub(super) fn used(&self) -> u64 {
        self.head.load(Relaxed).saturating_sub(self.tail.load(Relaxed))
    }

    pub(super) fn tail(&self) -> u64 {
        self.tail.load(Relaxed)
    }

    /// The words from this position to the ring's end.
    fn words(&self, at: u64) -> &[AtomicU64] {
        let start = at % self.capacity;
        // SAFETY: within the words that the ring has (contract of `new`).
        unsafe { std::slice::from_raw_parts(self.words.add(start as usize), (self.capacity - start) as usize) }
    }

    fn size(&self, at: u64) -> Size {
        self.words(at).first().map_or(FILLER, |word| Size::decode(word.load(Relaxed)))
    }

    // ---- readers: whatever they find counts only if it `was_there` afterwards

    /// What stands there: the sizes, the header, and the words of key and body. `None`: it is no record.
    pub(super) fn record(&self, at: u64) -> Option<(Size, [u64; HEADER], &[AtomicU64])> {
        let rest = self.words(at);
        let size = Size::decode(rest.first()?.load(Relaxed));
        let sound = size.words == HEADER + words(size.key_bytes) + words(size.body_bytes);
        if !sound || size.key_bytes == 0 || size.key_bytes + size.body_bytes > MOST_BYTES {
            return None;
        }
        let (header, contents) = rest.get(..size.words)?.split_first_chunk::<HEADER>()?;
        Some((size, header.each_ref().map(|word| word.load(Relaxed)), contents))
    }

    /// Whether all that was read of the record was still the record.
    pub(super) fn was_there(&self, at: u64) -> bool {
        fence(Acquire);
        self.tail.load(Relaxed) <= at
    }

    // ---- who keeps rows: one at a time

    /// Whether records of these sizes, one after the other, find room at the head.
    pub(super) fn room_for(&self, records: impl Iterator<Item = usize>) -> Option<Room> {
        let head = self.head.load(Relaxed);
        let end = records.fold(head, |at, words| at + self.gap(at, words) + words as u64);
        (end - self.tail.load(Relaxed) <= self.capacity).then_some(Room(()))
    }

    /// What is left at the end of the ring, if a record does not fit there.
    fn gap(&self, at: u64, words: usize) -> u64 {
        let left = self.capacity - at % self.capacity;
        if left < words as u64 {
            left
        } else {
            0
        }
    }

    /// The hash of the record at the tail; `None`: it is a filler.
    pub(super) fn hash_of(&self, at: u64) -> Option<u64> {
        let hash = self.words(at).get(1).filter(|_| self.size(at).key_bytes > 0)?;
        Some(hash.load(Relaxed))
    }

    /// The record at the tail, as it stands there.
    pub(super) fn take(&self, at: u64) -> Vec<u64> {
        self.words(at).iter().take(self.size(at).words).map(|word| word.load(Relaxed)).collect()
    }

    /// Lets the record at the tail go.
    pub(super) fn pass(&self, at: u64) {
        let size = self.size(at);
        let words = if size.key_bytes == 0 { self.words(at).len() } else { size.words };
        debug_assert!(words > 0 && at + words as u64 <= self.head.load(Relaxed), "the tail passes the head");
        self.tail.store(at + words as u64, Relaxed);
    }

    /// Puts a record at the head; returns its position.
    pub(super) fn put(&self, _room: &Room, record: &[u64]) -> u64 {
        // Who sees what is written now sees that the tail has passed what was there.
        fence(Release);
        let head = self.head.load(Relaxed);
        let gap = self.gap(head, record.len());
        if let (true, Some(word)) = (gap > 0, self.words(head).first()) {
            word.store(FILLER.encode(), Relaxed);
        }
        let at = head + gap;
        for (word, new) in self.words(at).iter().zip(record) {
            word.store(*new, Relaxed);
        }
        self.head.store(at + record.len() as u64, Relaxed);
        debug_assert!(self.used() <= self.capacity, "a record without room");
        at
    }
}
