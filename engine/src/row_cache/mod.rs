//! The row cache: rows that were read from the disk more than once lately, without the pages on which they stand.
//!
//! Where data are larger than memory a buffer that holds a page for one row that is asked for often holds some twenty others for
//! nothing. Here such a row takes its own room and a few words.
//!
//! ```text
//!   name     (table, L0 id, key): what the key index says of a key. Its newest version, once committed, is the same for ever: when
//!            there is another one the index names a newer run. So nothing here is ever out of date, and nothing is taken out
//!            but to make room.
//!   places   buckets of 8 words, one line:  [ tag of the name 14 | kind 2 | number 48 ]
//!            seen      its page was read from the disk lately; the number tells when
//!            kept      the row stands in the ring; the number is its position, counted from the beginning of time
//!            wanted    the same, and it has been asked for since it was put there
//!   ring     records one after the other; `tail` is the oldest, `head` where the next one goes
//!            [ words 16 | key bytes 16 | body bytes 32 ] name's hash, table, L0 id, row id and marks, writer, command, key, body
//! ```
//!
//! A row is kept when its page has to be read from the disk although its name has been seen, or while the ring has never been full
//! (`ring.rs`). Rows that are wanted by the time that the tail comes to them go to the head once more.
//!
//! Readers take no latch. All words are atomic, and whatever a reader finds in the ring counts only if the tail has not passed it
//! afterwards: the tail moves before what it has passed is written over. One process at a time keeps rows; who comes meanwhile goes
//! without. Nothing in here needs to be freed, by whomever it was last used.

mod ring;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use crate::filter::key_hash;
use crate::types::{Flags, Head, L0Id, RowBuf, RowId, RowRef, Writer};
use loosekv_shm::RawLatch;
use ring::{Ring, Size, HEADER};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Larger rows are not kept, in bytes of key and body.
const MOST_BYTES: usize = 2048;
const BUCKET: usize = 8;
/// A bucket for so many bytes of the ring: for each row of some 300 bytes two names that were only seen.
const BYTES_A_BUCKET: usize = 800;
const TAG_SHIFT: u32 = 50;
const KIND_SHIFT: u32 = 48;
const NUMBER: u64 = (1 << KIND_SHIFT) - 1;

/// The table that rows belong to: a number of its own for each time that a table is loaded into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CachedTable(u64);

/// What the key index says of a key: the name of the newest version on disk.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    pub table: CachedTable,
    pub l0: L0Id,
    pub key: &'a [u8],
}

impl Name<'_> {
    fn hash(&self) -> u64 {
        let owner = self.table.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.l0.0.wrapping_mul(0xd6e8_feb8_6659_fd93);
        let product = u128::from(key_hash(self.key) ^ owner) * u128::from(0xa076_1d64_78bd_642f_u64);
        product as u64 ^ (product >> 64) as u64
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Free,
    Seen,
    Kept,
    Wanted,
}

/// What a place says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Note(u64);

impl Note {
    const FREE: Note = Note(0);

    fn new(hash: u64, kind: Kind, number: u64) -> Note {
        Note(hash << TAG_SHIFT | (kind as u64) << KIND_SHIFT | number & NUMBER)
    }

    fn kind(self) -> Kind {
        match self.0 >> KIND_SHIFT & 3 {
            0 => Kind::Free,
            1 => Kind::Seen,
            2 => Kind::Kept,
            _ => Kind::Wanted,
        }
    }

    fn is_row(self) -> bool {
        matches!(self.kind(), Kind::Kept | Kind::Wanted)
    }

    fn is_of(self, hash: u64) -> bool {
        self.0 >> TAG_SHIFT == hash << TAG_SHIFT >> TAG_SHIFT && self.kind() != Kind::Free
    }

    fn number(self) -> u64 {
        self.0 & NUMBER
    }

    fn at(self, number: u64) -> Note {
        Note(self.0 & !NUMBER | number & NUMBER)
    }

    fn as_kind(self, kind: Kind) -> Note {
        Note(self.0 & !(3 << KIND_SHIFT) | (kind as u64) << KIND_SHIFT)
    }
}

/// What is in the cache, and what has come of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Rows that are kept.
    pub rows: u64,
    /// Bytes that records take, and may take.
    pub bytes: u64,
    pub room: u64,
    /// Look-ups that have found their row.
    pub found: u64,
    /// Rows that were ever kept.
    pub kept: u64,
}

type Place = AtomicU64;

/// See the module's page. Lives where all processes see it, as does what it points to.
pub struct RowCache<L> {
    ring: Ring,
    places: *const [Place; BUCKET],
    buckets: usize,
    /// Counts names that were seen.
    seen: AtomicU64,
    tables: AtomicU64,
    rows: AtomicU64,
    found: AtomicU64,
    kept: AtomicU64,
    most_again: usize,
    /// Who keeps rows holds it. It is never waited for.
    latch: L,
}

// SAFETY: what the pointers lead to is atomic, and lives as long as the cache (contract of `new`).
unsafe impl<L: RawLatch> Send for RowCache<L> {}
// SAFETY: as above.
unsafe impl<L: RawLatch> Sync for RowCache<L> {}

impl<L: RawLatch> RowCache<L> {
    /// What `new` needs at least, in bytes.
    pub const LEAST: usize = 5 * MOST_WORDS * 8;

    /// A cache in this memory; `None`: that is too little.
    ///
    /// # Safety
    /// `bytes` of zeros, aligned to a line of the processor's cache, that nothing else uses as long as the cache is.
    pub unsafe fn new(memory: *mut u8, bytes: usize) -> Option<RowCache<L>> {
        if bytes < Self::LEAST {
            return None;
        }
        let buckets = bytes / (BYTES_A_BUCKET + size_of::<[Place; BUCKET]>());
        let rest = bytes - buckets * size_of::<[Place; BUCKET]>();
        // SAFETY: the buckets come first, and the ring has what is left; both are aligned as the memory is.
        let ring = unsafe { Ring::new(memory.add(buckets * size_of::<[Place; BUCKET]>()).cast(), rest / 8) };
        Some(RowCache {
            ring,
            places: memory.cast(),
            buckets,
            seen: AtomicU64::new(0),
            tables: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            found: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            most_again: MOST_AGAIN.min((rest / 8 / MOST_WORDS).saturating_sub(4) / 2),
            latch: L::new(),
        })
    }

    /// A table was loaded: a number that no other has had.
    pub fn new_table(&self) -> CachedTable {
        CachedTable(self.tables.fetch_add(1, Relaxed) + 1)
    }

    pub fn counts(&self) -> Counts {
        Counts {
            rows: self.rows.load(Relaxed),
            bytes: self.ring.used() * 8,
            room: self.ring.capacity() * 8,
            found: self.found.load(Relaxed),
            kept: self.kept.load(Relaxed),
        }
    }

    fn bucket(&self, hash: u64) -> &[Place; BUCKET] {
        let at = (u128::from(hash) * self.buckets as u128) >> 64;
        // SAFETY: below the number of buckets.
        unsafe { &*self.places.add(at as usize) }
    }

    /// Copies the row of this name to `out`, the body only if it is wanted. False: it is not here.
    #[inline]
    pub fn get(&self, name: &Name<'_>, body: bool, out: &mut RowBuf) -> bool {
        // Where nothing was ever kept there is no need to fetch a line for it.
        !self.ring.is_untouched() && self.look_up(name, body, out)
    }

    fn look_up(&self, name: &Name<'_>, body: bool, out: &mut RowBuf) -> bool {
        let hash = name.hash();
        for place in self.bucket(hash) {
            let note = Note(place.load(Acquire));
            if !note.is_of(hash) || !note.is_row() || !self.copy(note.number(), name, body, out) {
                continue;
            }
            if note.kind() == Kind::Kept {
                // Whoever is at this place at the same time knows better.
                let _ = place.compare_exchange(note.0, note.as_kind(Kind::Wanted).0, Relaxed, Relaxed);
            }
            self.found.fetch_add(1, Relaxed);
            return true;
        }
        false
    }

    /// Copies a record, if it is the one of this name and was there until all was copied.
    fn copy(&self, at: u64, name: &Name<'_>, body: bool, out: &mut RowBuf) -> bool {
        let Some((record, [_, _, table, l0, row, writer, command], rest)) = self.ring.record(at) else { return false };
        if table != name.table.0 || l0 != name.l0.0 || record.key_bytes != name.key.len() {
            return false;
        }
        let (key, rest) = rest.split_at(words(record.key_bytes));
        copy(key, record.key_bytes, &mut out.key);
        if out.key != name.key {
            return false;
        }
        copy(rest, if body { record.body_bytes } else { 0 }, &mut out.body);
        out.head = Head {
            row_id: RowId(row & RowId::MAX.0),
            writer: Writer(writer),
            command: command as u32,
            flags: Flags((row >> 40) as u8),
            incarnation: (row >> 48) as u16,
        };
        self.ring.was_there(at)
    }

    /// A page was read from the disk for this row: it is kept if that is not the first time, or there is room that was never used.
    pub fn read_for(&self, name: &Name<'_>, row: &RowRef<'_>) {
        if row.key.len() + row.body.len() > MOST_BYTES {
            return;
        }
        let hash = name.hash();
        let bucket = self.bucket(hash);
        let notes = || bucket.iter().map(|place| (place, Note(place.load(Relaxed))));
        if let Some((place, note)) = notes().find(|(_, note)| note.is_of(hash)) {
            if note.kind() == Kind::Seen {
                self.keep(place, note, hash, name, row);
            }
            return;
        }
        // Where no place is free, the name goes that was seen the longest ago.
        let age = |note: Note| if note.kind() == Kind::Seen { 1 + note.number() } else { 0 };
        let oldest = notes().filter(|(_, note)| !note.is_row()).min_by_key(|(_, note)| age(*note));
        let Some((place, old)) = oldest else { return };
        if self.ring.has_unused(MOST_WORDS) {
            self.keep(place, old, hash, name, row);
        } else {
            let seen = Note::new(hash, Kind::Seen, self.seen.fetch_add(1, Relaxed));
            let _ = place.compare_exchange(old.0, seen.0, Relaxed, Relaxed);
        }
    }

    #[cold]
    fn keep(&self, place: &Place, before: Note, hash: u64, name: &Name<'_>, row: &RowRef<'_>) {
        let record = record_of(hash, name, row);
        let Some(_held) = self.latch.try_write() else { return };
        let mut again: Vec<(&Place, Vec<u64>)> = Vec::new();
        let room = loop {
            let sizes = again.iter().map(|(_, record)| record.len()).chain([record.len()]);
            if let Some(room) = self.ring.room_for(sizes) {
                break room;
            }
            self.let_go(&mut again);
        };
        for (place, record) in &again {
            let at = self.ring.put(&room, record);
            // Only who holds the latch changes a row's place, but for its kind.
            let note = Note(place.load(Relaxed)).as_kind(Kind::Kept).at(at);
            place.store(note.0, Release);
        }
        let at = self.ring.put(&room, &record);
        if place.compare_exchange(before.0, Note::new(hash, Kind::Kept, at).0, Release, Relaxed).is_ok() {
            self.rows.fetch_add(1, Relaxed);
            self.kept.fetch_add(1, Relaxed);
        }
    }

    /// Lets the oldest record go; if it is wanted, it is to be put to the head once more. The latch is held.
    fn let_go<'a>(&'a self, again: &mut Vec<(&'a Place, Vec<u64>)>) {
        let at = self.ring.tail();
        if let Some(hash) = self.ring.hash_of(at) {
            let of_it = |note: Note| note.is_row() && note.number() == at & NUMBER;
            if let Some(place) = self.bucket(hash).iter().find(|place| of_it(Note(place.load(Relaxed)))) {
                if Note(place.load(Relaxed)).kind() == Kind::Wanted && again.len() < self.most_again {
                    again.push((place, self.ring.take(at)));
                } else {
                    place.store(Note::FREE.0, Relaxed);
                    self.rows.fetch_sub(1, Relaxed);
                }
            }
        }
        self.ring.pass(at);
    }
}

/// The most words that a record has.
const MOST_WORDS: usize = HEADER + MOST_BYTES / 8 + 2;
/// So many rows at most go to the head once more for one that is new: then wanted ones have to go, too. (Fewer, if the ring is small:
/// all of them find room in half of it, and what is left over at its end in the rest.)
const MOST_AGAIN: usize = 8;

/// Copies what so many bytes of these words are.
fn copy(from: &[AtomicU64], bytes: usize, out: &mut Vec<u8>) {
    out.clear();
    for word in from.iter().take(words(bytes)) {
        out.extend_from_slice(&word.load(Relaxed).to_le_bytes());
    }
    out.truncate(bytes);
}

/// Words that so many bytes take.
fn words(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

fn record_of(hash: u64, name: &Name<'_>, row: &RowRef<'_>) -> Vec<u64> {
    let head = &row.head;
    let mut record = Vec::with_capacity(HEADER + words(row.key.len()) + words(row.body.len()));
    let words = Size { words: record.capacity(), key_bytes: row.key.len(), body_bytes: row.body.len() };
    let marks = u64::from(head.flags.0) << 40 | u64::from(head.incarnation) << 48;
    let row_id = head.row_id.0 | marks;
    record.extend([words.encode(), hash, name.table.0, name.l0.0, row_id, head.writer.0, u64::from(head.command)]);
    for bytes in [row.key, row.body] {
        record.extend(bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            u64::from_le_bytes(word)
        }));
    }
    record
}
