//! The row cache: rows that are read from the disk again and again, without the pages on which they stand.
//!
//! Where data are larger than memory a buffer that holds a page for one row that is asked for often holds some twenty others for
//! nothing. Here such a row takes its own room and a few words.
//!
//! ```text
//!   name     (table, L0 id, key): what the key index says of a key. Its newest version, once committed, is the same for ever: when
//!            there is another one the index names a newer run. So nothing here is ever out of date, and nothing is taken out
//!            but to make room.
//!   places   buckets of 8 words, one line:  [ tag of the name 13 | kind 3 | number 48 ]
//!            seen      its row was let go lately; the number tells when
//!            young     the row stands in the young ring; the number is its position, counted from the beginning of time
//!            proven    the same in the proven ring
//!            wanted    either of them, and it has been asked for since it was put there
//!   rings    records one after the other; `tail` is the oldest, `head` where the next one goes
//!            [ words 16 | key bytes 16 | body bytes 32 ] name's hash, table, L0 id, row id and marks, writer, command, key, body
//!
//!   page read for a row --> young --wanted--> proven --wanted--> proven, once more
//!                             '--> seen --page read--^  '--> gone
//! ```
//!
//! So a row stays that is asked for while it is young, or again soon after; those of one pass over all rows push nothing but each other
//! out. (It is the algorithm known as S3-FIFO.)
//!
//! Readers take no latch. All words are atomic, and whatever a reader finds in a ring counts only if the tail has not passed it
//! afterwards: the tail moves before what it has passed is written over (`ring.rs`). One process at a time keeps rows; who comes
//! meanwhile goes without. Nothing in here needs to be freed, by whomever it was last used.

mod ring;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use crate::filter::key_hash;
use crate::types::{Flags, Head, L0Id, RowBuf, RowId, RowRef, Writer};
use loosekv_shm::RawLatch;
use ring::{Ring, Room, Size, HEADER};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Larger rows are not kept, in bytes of key and body.
const MOST_BYTES: usize = 2048;
const BUCKET: usize = 8;
/// A bucket for so many bytes of the ring: for each row of some 300 bytes two names that were only seen.
const BYTES_A_BUCKET: usize = 800;
const TAG_SHIFT: u32 = 51;
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
    Free = 0,
    Seen = 1,
    Young = IS_ROW,
    Proven = IS_ROW | IS_PROVEN,
}

/// Bits of a kind.
const IS_PROVEN: isize = 2;
const IS_ROW: isize = 4;
const WANTED: u64 = 1 << KIND_SHIFT;

/// What a place says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Note(u64);

impl Note {
    const FREE: Note = Note(0);

    fn new(hash: u64, kind: Kind, number: u64) -> Note {
        Note(hash << TAG_SHIFT | (kind as u64) << KIND_SHIFT | number & NUMBER)
    }

    fn kind(self) -> Kind {
        match (self.0 >> KIND_SHIFT) as isize & (IS_ROW | IS_PROVEN) {
            IS_ROW => Kind::Young,
            0 if self.0 & WANTED == 0 => Kind::Free,
            0 => Kind::Seen,
            _ => Kind::Proven,
        }
    }

    fn is_row(self) -> bool {
        matches!(self.kind(), Kind::Young | Kind::Proven)
    }

    fn is_of(self, hash: u64) -> bool {
        self.0 >> TAG_SHIFT == hash << TAG_SHIFT >> TAG_SHIFT && self.kind() != Kind::Free
    }

    fn number(self) -> u64 {
        self.0 & NUMBER
    }

    /// Of a row.
    fn is_wanted(self) -> bool {
        self.0 & WANTED != 0
    }

    fn wanted(self) -> Note {
        Note(self.0 | WANTED)
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

/// Written by every look-up that finds its row: on a line without what the others read.
#[repr(align(128))]
#[derive(Default)]
struct Apart(AtomicU64);

/// See the module's page. Lives where all processes see it, as does what it points to.
pub struct RowCache<L> {
    young: Ring,
    proven: Ring,
    places: *const [Place; BUCKET],
    buckets: usize,
    /// Counts names that were seen.
    seen: AtomicU64,
    tables: AtomicU64,
    rows: AtomicU64,
    kept: AtomicU64,
    found: Apart,
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
    pub const LEAST: usize = 14 * MOST_WORDS * 8;

    /// A cache in this memory; `None`: that is too little.
    ///
    /// # Safety
    /// `bytes` of zeros, aligned to a line of the processor's cache, that nothing else uses as long as the cache is.
    pub unsafe fn new(memory: *mut u8, bytes: usize) -> Option<RowCache<L>> {
        if bytes < Self::LEAST {
            return None;
        }
        let buckets = bytes / (BYTES_A_BUCKET + size_of::<[Place; BUCKET]>());
        let words = bytes / 8 - buckets * BUCKET;
        let young = words / YOUNG;
        // SAFETY: the buckets come first, then the young ring, and the other one has what is left; all are aligned as the memory is.
        let (young, proven) = unsafe {
            let rings = memory.cast::<AtomicU64>().add(buckets * BUCKET);
            (Ring::new(rings, young), Ring::new(rings.add(young), words - young))
        };
        Some(RowCache {
            most_again: MOST_AGAIN.min((proven.capacity() as usize / MOST_WORDS).saturating_sub(6) / 2),
            young,
            proven,
            places: memory.cast(),
            buckets,
            seen: AtomicU64::new(0),
            tables: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            found: Apart::default(),
            kept: AtomicU64::new(0),
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
            bytes: (self.young.used() + self.proven.used()) * 8,
            room: (self.young.capacity() + self.proven.capacity()) * 8,
            found: self.found.0.load(Relaxed),
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
        !self.young.is_untouched() && self.look_up(name, body, out)
    }

    fn look_up(&self, name: &Name<'_>, body: bool, out: &mut RowBuf) -> bool {
        let hash = name.hash();
        for place in self.bucket(hash) {
            let note = Note(place.load(Acquire));
            let ring = match note.kind() {
                Kind::Young => &self.young,
                Kind::Proven => &self.proven,
                Kind::Free | Kind::Seen => continue,
            };
            if !note.is_of(hash) || !copy_record(ring, note.number(), name, body, out) {
                continue;
            }
            if !note.is_wanted() {
                // Whoever is at this place at the same time knows better.
                let _ = place.compare_exchange(note.0, note.wanted().0, Relaxed, Relaxed);
            }
            self.found.0.fetch_add(1, Relaxed);
            return true;
        }
        false
    }

    /// Whether a row of this name, or of one with the same hash, is here.
    pub fn seems_to_have(&self, name: &Name<'_>) -> bool {
        let hash = name.hash();
        let is_its = |note: Note| note.is_row() && note.is_of(hash);
        !self.young.is_untouched() && self.bucket(hash).iter().any(|place| is_its(Note(place.load(Relaxed))))
    }

    /// A page was read from the disk for this row.
    pub fn read_for(&self, name: &Name<'_>, row: &RowRef<'_>) {
        if row.key.len() + row.body.len() > MOST_BYTES {
            return;
        }
        let hash = name.hash();
        let notes = || self.bucket(hash).iter().map(|place| (place, Note(place.load(Relaxed))));
        let known = notes().find(|(_, note)| note.is_of(hash));
        // Where no place is free, the name goes that was seen the longest ago.
        let age = |note: Note| if note.kind() == Kind::Seen { 1 + note.number() } else { 0 };
        let oldest = || notes().filter(|(_, note)| !note.is_row()).min_by_key(|(_, note)| age(*note));
        if let Some((place, note)) = known.or_else(oldest).filter(|(_, note)| !note.is_row()) {
            let kind = if known.is_some() { Kind::Proven } else { Kind::Young };
            self.keep(kind, place, note, &record_of(hash, name, row));
        }
    }

    /// Puts a row into the ring of this kind. `before`: what its place has said.
    #[cold]
    fn keep(&self, kind: Kind, place: &Place, before: Note, record: &[u64]) {
        let Some(_held) = self.latch.try_write() else { return };
        // Rows that go to the head of the proven ring.
        let mut proven: Vec<(&Place, Vec<u64>)> = Vec::new();
        if kind == Kind::Young {
            let room = loop {
                match self.young.room_for(std::iter::once(record.len())) {
                    Some(room) => break room,
                    None => proven.extend(self.let_go(&self.young, true)),
                }
            };
            self.put_new(&self.young, &room, Note::new(hash_of(record), kind, 0), place, before, record);
            if proven.is_empty() {
                return;
            }
        }
        let new = Some(record).filter(|_| kind == Kind::Proven);
        let mut again = 0;
        let room = loop {
            let sizes = proven.iter().map(|(_, record)| record.len()).chain(new.map(<[u64]>::len));
            if let Some(room) = self.proven.room_for(sizes) {
                break room;
            }
            let row = self.let_go(&self.proven, again < self.most_again);
            again += usize::from(row.is_some());
            proven.extend(row);
        };
        for (place, record) in &proven {
            let at = self.proven.put(&room, record);
            // Only who holds the latch changes a row's place, but for whether it is wanted.
            place.store(Note::new(hash_of(record), Kind::Proven, at).0, Release);
        }
        if let Some(record) = new {
            self.put_new(&self.proven, &room, Note::new(hash_of(record), kind, 0), place, before, record);
        }
    }

    /// A row that was not here. The latch is held.
    fn put_new(&self, ring: &Ring, room: &Room, note: Note, place: &Place, before: Note, record: &[u64]) {
        let note = Note(note.0 | ring.put(room, record) & NUMBER);
        if place.compare_exchange(before.0, note.0, Release, Relaxed).is_ok() {
            self.rows.fetch_add(1, Relaxed);
            self.kept.fetch_add(1, Relaxed);
        }
    }

    /// Lets the oldest record of a ring go. If it is wanted, and those may stay, it is to be put to the head of the proven ring. The latch
    /// is held.
    fn let_go(&self, ring: &Ring, may_stay: bool) -> Option<(&Place, Vec<u64>)> {
        let at = ring.tail();
        let kind = if std::ptr::eq(ring, &self.young) { Kind::Young } else { Kind::Proven };
        let stays = ring.hash_of(at).and_then(|hash| {
            let of_it = |note: Note| note.kind() == kind && note.number() == at & NUMBER;
            let place = self.bucket(hash).iter().find(|place| of_it(Note(place.load(Relaxed))))?;
            if may_stay && Note(place.load(Relaxed)).is_wanted() {
                return Some((place, ring.take(at)));
            }
            let left = match kind {
                Kind::Young => Note::new(hash, Kind::Seen, self.seen.fetch_add(1, Relaxed)),
                _ => Note::FREE,
            };
            place.store(left.0, Relaxed);
            self.rows.fetch_sub(1, Relaxed);
            None
        });
        ring.pass(at);
        stays
    }
}

/// The most words that a record has.
const MOST_WORDS: usize = HEADER + MOST_BYTES / 8 + 2;
/// The part of the rings that is for young rows: one in so many words.
const YOUNG: usize = 4;
/// So many proven rows at most stay for one that is new: then wanted ones have to go, too. (Fewer, if the ring is small: all that are put
/// there at once find room in it, with what is left over at its end.)
const MOST_AGAIN: usize = 8;

/// Copies a record, if it is the one of this name and was there until all was copied.
fn copy_record(ring: &Ring, at: u64, name: &Name<'_>, body: bool, out: &mut RowBuf) -> bool {
    let Some((size, [_, _, table, l0, row, writer, command], rest)) = ring.record(at) else { return false };
    if table != name.table.0 || l0 != name.l0.0 || size.key_bytes != name.key.len() {
        return false;
    }
    let (key, rest) = rest.split_at(words(size.key_bytes));
    copy(key, size.key_bytes, &mut out.key);
    if out.key != name.key {
        return false;
    }
    copy(rest, if body { size.body_bytes } else { 0 }, &mut out.body);
    out.head = Head {
        row_id: RowId(row & RowId::MAX.0),
        writer: Writer(writer),
        command: command as u32,
        flags: Flags((row >> 40) as u8),
        incarnation: (row >> 48) as u16,
    };
    ring.was_there(at)
}

/// The hash in a record.
fn hash_of(record: &[u64]) -> u64 {
    record.get(1).copied().unwrap_or_default()
}

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
