//! The key index: from each key on disk to the newest run that contains it.
//!
//! ```text
//!   skip list:  key --> value, 64 bits:  [ tombstone 1 ][ uncounted 1 ][ L0 id 62 ]      all ones: dead
//! ```
//!
//! - I3: an entry names the newest installed run containing the key, values and tombstones alike; it only moves
//!   forward.
//! - I12: values change in place, by compare-and-swap. The list's own insertion would take the old entry out before it
//!   puts the new one in, and readers would miss a key that always exists.
//! - I5: an entry is purged only as it was seen. Whoever removes one first swaps its value for the dead mark, which is
//!   final: a node is taken out of the list only when dead, by the remover or by whoever meets it. So a raise either
//!   comes before the mark (and the remover finds the entry changed) or puts a node of its own in the dead one's place.
//!
//! A new node begins uncounted; whoever clears that bit adds the node to the accounts, so each is counted once although
//! the list does not tell whose insertion came first.
//!
//! Everything that touches the list is inside the scope and one short pin; what it needs from the heap is reserved
//! before.

mod chunk;
mod key;
mod sweep;
#[cfg(test)]
mod tests;

pub use chunk::KeyChunk;
pub use key::fuzz_key_order;
pub use sweep::SweepCursor;

use crate::error::{Consumer, Error};
use crate::host::Budget;
use crate::mutation::{on, Mutation::*};
use crate::tree::Direction;
use crate::types::{L0Id, MAX_KEY};
use crossbeam_epoch::Guard;
use crossbeam_skiplist::base::SkipList;
use key::{IndexKey, Probe, INLINE};
use loosekv_shm::scope::Scope;
use loosekv_shm::{epoch, Needs};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

const TOMBSTONE: u64 = 1 << 63;
const UNCOUNTED: u64 = 1 << 62;
const L0_BITS: u64 = UNCOUNTED - 1;
const DEAD: u64 = u64::MAX;

/// A node of the list without its tower: value, key, reference count and height.
const NODE_BASE: usize = 8 + std::mem::size_of::<IndexKey>() + 8;
const TALLEST: usize = 32;

/// What a node may take from the heap, and the garbage that is put aside meanwhile.
#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const NODE_NEEDS: Needs = {
    let mut sizes = [0; TALLEST];
    let mut height = 0;
    while height < TALLEST {
        sizes[height] = NODE_BASE + 8 * (height + 1);
        height += 1;
    }
    Needs::of(&sizes).and(epoch::NEEDS)
};

/// Most keys of a chunk: the pin is short.
const LARGEST_CHUNK: usize = 4096;

/// Where the newest version of a key on disk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexEntry {
    /// The run containing it, by the L0 id that it was flushed with.
    pub l0: L0Id,
    /// It is a tombstone.
    pub tombstone: bool,
}

/// No room for another key; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full {
    pub limit: u64,
}

impl From<Full> for Error {
    fn from(full: Full) -> Error {
        Error::MemoryFull { consumer: Consumer::KeyIndex, limit: full.limit }
    }
}

pub struct KeyIndex {
    list: SkipList<IndexKey, AtomicU64>,
    /// What this index has added to the budget.
    bytes: AtomicU64,
}

impl Default for KeyIndex {
    fn default() -> KeyIndex {
        KeyIndex::new()
    }
}

impl KeyIndex {
    pub fn new() -> KeyIndex {
        KeyIndex { list: SkipList::new(epoch::collector().clone()), bytes: AtomicU64::new(0) }
    }

    /// Number of keys (approximate while others change it).
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the keys and their nodes take, as accounted in the budget.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn get(&self, key: &[u8]) -> Option<IndexEntry> {
        let key = Probe::new(key);
        let _scope = Scope::enter();
        let pin = epoch::pin();
        let found = self.list.get(&*key, &pin)?;
        // Dead: the key was absent at a moment since this look-up began.
        IndexEntry::decode(found.value().load(Ordering::Acquire))
    }

    /// Inserts the key, or moves its entry forward; an entry of a newer run stays as it is. An entry of the same run
    /// gets the new tombstone bit. Only a key that is not there yet can meet a full index.
    pub fn raise(&self, key: &[u8], entry: IndexEntry, budget: &Budget) -> Result<(), Full> {
        if on(I12RemoveAndInsert) {
            if let Some(seen) = self.get(key).filter(|seen| seen.l0 <= entry.l0) {
                self.remove_if(key, seen, budget);
            }
        }
        self.put(key, entry, budget, |now| if now.l0 > entry.l0 { now } else { entry }).map(|_| ())
    }

    /// Inserts the key, unless it has an entry, which stays as it is. True: inserted
    /// (of several at once, at most one is told so).
    pub fn insert_if_absent(&self, key: &[u8], entry: IndexEntry, budget: &Budget) -> Result<bool, Full> {
        self.put(key, entry, budget, |now| now)
    }

    /// Removes the key's entry, if it is as it was seen. (False also when the heap has no room for the garbage: the
    /// entry then stays, which is always allowed.)
    pub fn remove_if(&self, key: &[u8], seen: IndexEntry, budget: &Budget) -> bool {
        if epoch::NEEDS.reserve_emergency().is_err() {
            return false;
        }
        let probe = Probe::new(key);
        let _scope = Scope::enter();
        let pin = epoch::pin();
        let Some(found) = self.list.get(&*probe, &pin) else { return false };
        let killed = self.kill(found.value(), key.len(), budget, |now| now == seen || on(I5RemovedUnseen));
        if killed {
            found.remove();
        }
        killed
    }

    /// Replaces the key's entry by an older one, if it is as it was seen: the run that it named holds the key no more.
    pub fn replace_if(&self, key: &[u8], seen: IndexEntry, entry: IndexEntry) -> bool {
        let probe = Probe::new(key);
        let _scope = Scope::enter();
        let pin = epoch::pin();
        let Some(found) = self.list.get(&*probe, &pin) else { return false };
        let mut now = found.value().load(Ordering::Acquire);
        while IndexEntry::decode(now) == Some(seen) {
            let next = entry.encode() | now & UNCOUNTED;
            match found.value().compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Copies the next keys from a bound on into `out`, as many as `max` and its memory allow, at least one if there is
    /// one.
    pub fn next_chunk(&self, from: Bound<&[u8]>, direction: Direction, max: usize, out: &mut KeyChunk) {
        let max = max.clamp(1, LARGEST_CHUNK);
        out.prepare(max);
        let probe = match from {
            Bound::Included(key) => Bound::Included(Probe::new(key)),
            Bound::Excluded(key) => Bound::Excluded(Probe::new(key)),
            Bound::Unbounded => Bound::Unbounded,
        };
        let bound = probe.as_ref().map(|probe| &**probe);
        let _scope = Scope::enter();
        let pin = epoch::pin();
        let mut next = match direction {
            Direction::Forward => self.list.lower_bound(bound, &pin),
            Direction::Backward => self.list.upper_bound(bound, &pin),
        };
        while let Some(found) = next {
            if out.len() == max {
                return;
            }
            if let Some(entry) = IndexEntry::decode(found.value().load(Ordering::Acquire)) {
                if !out.push(found.key(), entry) {
                    debug_assert!(!out.is_empty(), "a chunk has space for any key");
                    return;
                }
            }
            next = match direction {
                Direction::Forward => found.next(),
                Direction::Backward => found.prev(),
            };
        }
        out.complete = true;
    }

    /// Takes this index out of the budget, for good: it is about to be dropped.
    pub fn uncount(&self, budget: &Budget) {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        budget.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Inserts the key with `new`, or changes the entry that it has. True: inserted.
    fn put(
        &self,
        key: &[u8],
        new: IndexEntry,
        budget: &Budget,
        change: impl Fn(IndexEntry) -> IndexEntry,
    ) -> Result<bool, Full> {
        assert!(key.len() <= MAX_KEY && new.l0.0 < L0_BITS, "{} bytes, L0 id {}", key.len(), new.l0);
        let probe = Probe::new(key);
        let cost = cost(key.len());
        let _scope = Scope::enter();
        let full = Full { limit: budget.limit.load(Ordering::Relaxed) };
        loop {
            let room = self.has_room(cost, budget).and_then(|()| NODE_NEEDS.reserve().map_err(|_| full));
            // A short key that may be inserted is looked for and inserted in one go.
            if room.is_err() || key.len() > INLINE {
                let pin = epoch::pin();
                if let Some(found) = self.list.get(&*probe, &pin) {
                    if self.change(found.value(), cost, budget, &change).is_some() {
                        return Ok(false);
                    }
                    found.remove();
                    continue;
                }
            }
            room?;
            let own = self.own_key(key).map_err(|_| full)?;
            // Again: the key's block may have come from what was reserved for the node.
            NODE_NEEDS.reserve().map_err(|_| full)?;
            let pin = epoch::pin();
            if let Some(inserted) = self.insert(own, new, cost, budget, &change, &pin) {
                return Ok(inserted);
            }
        }
    }

    /// One attempt to insert; `None` if it met a dead node (and took that out of the way).
    fn insert(
        &self,
        key: IndexKey,
        new: IndexEntry,
        cost: u64,
        budget: &Budget,
        change: &impl Fn(IndexEntry) -> IndexEntry,
        pin: &Guard,
    ) -> Option<bool> {
        let found = self.list.get_or_insert(key, AtomicU64::new(new.encode() | UNCOUNTED), pin);
        let changed = self.change(found.value(), cost, budget, change);
        if changed.is_none() {
            found.remove(pin);
        }
        // It has no Drop.
        found.release(pin);
        changed
    }

    /// Changes a value in place; tells whether it was new. `None`: it is dead.
    fn change(
        &self,
        value: &AtomicU64,
        cost: u64,
        budget: &Budget,
        change: &impl Fn(IndexEntry) -> IndexEntry,
    ) -> Option<bool> {
        let mut now = value.load(Ordering::Acquire);
        loop {
            let next = change(IndexEntry::decode(now)?).encode();
            if next == now {
                return Some(false);
            }
            match value.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        let new = now & UNCOUNTED != 0;
        if new {
            self.bytes.fetch_add(cost, Ordering::Relaxed);
            budget.used.fetch_add(cost, Ordering::Relaxed);
        }
        Some(new)
    }

    /// Marks a value dead, if it is still as wanted; the caller takes the node out.
    fn kill(&self, value: &AtomicU64, key_len: usize, budget: &Budget, wanted: impl Fn(IndexEntry) -> bool) -> bool {
        let mut now = value.load(Ordering::Acquire);
        loop {
            if !IndexEntry::decode(now).is_some_and(&wanted) {
                return false;
            }
            match value.compare_exchange_weak(now, DEAD, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        if now & UNCOUNTED == 0 {
            let cost = cost(key_len);
            self.bytes.fetch_sub(cost, Ordering::Relaxed);
            budget.used.fetch_sub(cost, Ordering::Relaxed);
        }
        true
    }

    fn has_room(&self, cost: u64, budget: &Budget) -> Result<(), Full> {
        let limit = budget.limit.load(Ordering::Relaxed);
        if budget.used.load(Ordering::Relaxed).saturating_add(cost) > limit {
            return Err(Full { limit });
        }
        Ok(())
    }

    /// A key for the list, with a block of its own if it is long.
    fn own_key(&self, key: &[u8]) -> Result<IndexKey, loosekv_shm::Full> {
        if key.len() > INLINE {
            loosekv_shm::reserve(&[key.len()])?;
        }
        Ok(IndexKey::new(key))
    }
}

impl IndexEntry {
    fn encode(self) -> u64 {
        self.l0.0 | if self.tombstone { TOMBSTONE } else { 0 }
    }

    /// `None`: dead.
    fn decode(value: u64) -> Option<IndexEntry> {
        (value != DEAD).then_some(IndexEntry { l0: L0Id(value & L0_BITS), tombstone: value & TOMBSTONE != 0 })
    }
}

/// What a key adds to the budget: a node of mean height and the block of a long key.
fn cost(key_len: usize) -> u64 {
    let block = if key_len > INLINE { key_len.next_multiple_of(16) } else { 0 };
    (NODE_BASE + 2 * 8 + block) as u64
}
