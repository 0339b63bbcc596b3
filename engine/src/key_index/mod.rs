//! The key index: from each key on disk to the newest run that contains it.
//!
//! ```text
//!   directory (skip list):   (none)      "cat"      "dog"       lowest key of a leaf --> the leaf
//!                               |          |          |
//!   leaves:               [ant bee ..] [cat cow] [dog eel ..]   up to 128 sorted keys and their values, one block each
//! ```
//!
//! A look-up takes the last entry of the directory that is not above the key, loads its leaf, and searches there.
//! The first leaf has no entry: it is where the look-up lands that finds none. Before all that a look-up asks the key filter
//! (`filter.rs`), which knows of most keys that are not there, and the guide (`guide.rs`), which mostly knows the leaf.
//!
//! - I3: an entry names the newest installed run containing the key, values and tombstones alike; it only moves
//!   forward.
//! - I12: values change in place, also those of keys that come and go.
//! - I5: an entry is purged only as it was seen: comparison and removal are one, under the latch.
//!
//! **Writers** exclude each other by one latch, held shortly; nothing waits or fails under it. What needs memory is
//! reserved before anything is changed. Keys of a leaf never change: a new key makes a new leaf of the old one (`build.rs`),
//! which takes its place by one store; the old one is retired. A dead key (removed in place) may come to life again.
//!
//! **Readers** take no latch. They pin, and so what they came upon stays readable. Each look-up answers with what was true
//! at some moment since it began, for:
//!
//! - *A leaf answers for the keys from its entry in the directory up to its high key*, and for others it is not asked:
//!   who finds that the key is not below the high key begins anew. A leaf that is split gets its smaller high key only
//!   after the entries for its other parts are in the directory, and an entry leaves the directory only after the leaf
//!   to the left of it has got the larger high key. So there is always another leaf to be found, and nobody waits.
//! - *The leaf is in its place when it is loaded.* Then its values are true until another one takes that place, and do
//!   not change after that. So an old leaf tells what was true when it was replaced, which was after it was loaded.
//! - *The entry was in the directory when it was found.* If it has been removed since, its last leaf tells what was true when
//!   that happened: the writer holds the latch from copying the leaf's keys to the left until the entry is gone and its place
//!   closed, so that no guide leads to it any more.
//!
//! Removing marks values dead; when half of a leaf is dead it is made anew without them, and what is left of it goes to
//! the left neighbour when it is little (`write.rs`).

mod build;
mod chunk;
mod filter;
mod guide;
mod key;
mod leaf;
mod reading;
mod scan;
mod sweep;
#[cfg(test)]
mod tests;
mod write;

pub use chunk::KeyChunk;
pub use key::fuzz_key_order;
pub use sweep::SweepCursor;

use crate::error::{Consumer, Error};
use crate::host::Budget;
use crate::mutation::{on, Mutation::*};
use crate::types::L0Id;
use crossbeam_epoch::Guard;
use crossbeam_skiplist::base::SkipList;
use filter::KeyFilters;
use guide::KeyGuides;
use key::{IndexKey, Probe};
use leaf::{Leaf, DEAD};
use loosekv_shm::scope::Scope;
use loosekv_shm::{epoch, RawLatch};
use std::ops::Bound;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// So many keys tell how large others are.
const KNOWN_FROM: u64 = if cfg!(test) { 64 } else { 1 << 12 };
const TOMBSTONE: u32 = 1 << 31;
/// L0 ids from here on can not be indexed: with a tombstone's bit this one would be the dead mark.
const L0_END: u32 = TOMBSTONE - 1;

/// Where the newest version of a key on disk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexEntry {
    /// The run containing it, by the L0 id that it was flushed with.
    pub l0: L0Id,
    /// It is a tombstone.
    pub tombstone: bool,
}

/// No room for another key. Of a batch the first `done` keys are in the index; of what comes after them nothing new is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full {
    pub limit: u64,
    pub done: usize,
}

impl From<Full> for Error {
    fn from(full: Full) -> Error {
        Error::MemoryFull { consumer: Consumer::KeyIndex, limit: full.limit }
    }
}

pub struct KeyIndex<L: RawLatch> {
    /// Writers hold it. Nothing is nested in it.
    latch: L,
    directory: SkipList<IndexKey, LeafSlot>,
    /// The leaf of the lowest keys; none if there are no keys.
    first: LeafSlot,
    keys: AtomicU64,
    /// Of them, those whose entries are tombstones.
    tombstones: AtomicU64,
    /// What this index has added to the budget.
    bytes: AtomicU64,
    filters: KeyFilters,
    guides: KeyGuides,
}

/// The newer one of an entry that is there and one that comes.
fn newer(now: IndexEntry, new: IndexEntry) -> IndexEntry {
    if now.l0 > new.l0 {
        now
    } else {
        new
    }
}

/// What is to be expected between keys that are put behind all others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ahead {
    /// What comes goes behind them in turn: their leaves are filled up.
    Nothing,
    Others,
}

impl<L: RawLatch> Default for KeyIndex<L> {
    fn default() -> KeyIndex<L> {
        KeyIndex::new()
    }
}

impl<L: RawLatch> KeyIndex<L> {
    pub fn new() -> KeyIndex<L> {
        KeyIndex {
            latch: L::new(),
            directory: SkipList::new(epoch::collector().clone()),
            first: LeafSlot::none(),
            keys: AtomicU64::new(0),
            tombstones: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            filters: KeyFilters::default(),
            guides: KeyGuides::default(),
        }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.keys.load(Ordering::Acquire) as usize
    }

    /// Number of keys whose entries are no tombstones.
    pub fn rows(&self) -> u64 {
        self.keys.load(Ordering::Acquire).saturating_sub(self.tombstones.load(Ordering::Acquire))
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all leaves, entries of the directory, filters and guides, as accounted in the budget.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// About so many bytes so many more keys would take, by what those take that there are; 0: nothing is known yet.
    pub fn bytes_for(&self, keys: u64) -> u64 {
        match self.len() as u64 {
            0..KNOWN_FROM => 0,
            known => keys.saturating_mul(self.bytes()) / known,
        }
    }

    pub fn get(&self, key: &[u8]) -> Option<IndexEntry> {
        // Searching the directory may take out of it what was removed, and retire that.
        let _scope = Scope::enter();
        let pin = epoch::pin();
        // Both begin to fetch what they will look at.
        // SAFETY: pinned.
        let (wanted, near) = unsafe { (self.filters.look_for(key), self.guides.near(key)) };
        if wanted.is_some_and(|wanted| !wanted.may_be_there()) {
            return None;
        }
        // SAFETY: pinned.
        if let Some(leaf) = near.and_then(|near| unsafe { near.place()?.load() }) {
            match leaf.find(key) {
                Ok(at) => return IndexEntry::decode(leaf.value(at).load(Ordering::Acquire)),
                // Below its first key it may be below its low key.
                Err(at) if at > 0 && (at < leaf.count() || leaf.covers(key)) => return None,
                Err(_) if on(GuideTrusted) => return None,
                Err(_) => {}
            }
        }
        self.search(key, &pin)
    }

    /// Begins to fetch what tells of these keys that they are not here.
    pub fn touch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let _pin = epoch::pin();
        keys.for_each(|key| self.filters.touch(key));
    }

    fn search(&self, key: &[u8], pin: &Guard) -> Option<IndexEntry> {
        let leaf = self.leaf_of(key, pin)?;
        let at = leaf.find(key).ok()?;
        IndexEntry::decode(leaf.value(at).load(Ordering::Acquire))
    }

    /// The leaf that answers for a key. `None`: there are no keys. In the scope.
    fn leaf_of<'g>(&'g self, key: &[u8], pin: &'g Guard) -> Option<Leaf<'g>> {
        let probe = Probe::new(key);
        loop {
            let entry = self.directory.upper_bound(Bound::Included(&*probe), pin);
            // SAFETY: pinned.
            match unsafe { entry.as_ref().map_or(&self.first, |entry| entry.value()).load() } {
                Some(leaf) if leaf.covers(key) => return Some(leaf),
                None if entry.is_none() => return None,
                // Split since it was found, or gone.
                _ => {}
            }
        }
    }

    /// Inserts the key, or moves its entry forward; an entry of a newer run stays as it is. An entry of the same run
    /// gets the new tombstone bit. Only a key that is not there yet can meet a full index.
    pub fn raise(&self, key: &[u8], entry: IndexEntry, budget: &Budget) -> Result<(), Full> {
        if on(I12RemoveAndInsert) {
            if let Some(seen) = self.get(key).filter(|seen| seen.l0 <= entry.l0) {
                self.remove_if(key, seen, budget);
            }
        }
        self.raise_batch(&[(key, entry)], budget)
    }

    /// Raises many keys, which ascend. The keys that fall into one leaf cost one new leaf together.
    pub fn raise_batch(&self, batch: &[(&[u8], IndexEntry)], budget: &Budget) -> Result<(), Full> {
        self.put(batch, budget, newer, Ahead::Nothing).map(|_| ())
    }

    /// As [`KeyIndex::raise_batch`], for keys among which others will come, though these ascend beyond all that are there.
    pub fn raise_first(&self, batch: &[(&[u8], IndexEntry)], budget: &Budget) -> Result<(), Full> {
        self.put(batch, budget, newer, Ahead::Others).map(|_| ())
    }

    /// Inserts the key, unless it has an entry, which stays as it is. True: inserted.
    pub fn insert_if_absent(&self, key: &[u8], entry: IndexEntry, budget: &Budget) -> Result<bool, Full> {
        self.put(&[(key, entry)], budget, |now, _| now, Ahead::Nothing).map(|inserted| inserted > 0)
    }

    /// Removes the key's entry, if it is as it was seen.
    pub fn remove_if(&self, key: &[u8], seen: IndexEntry, budget: &Budget) -> bool {
        let _held = self.latch.write();
        let spot = self.spot_of(key);
        let Some((leaf, at)) = spot.find(key) else { return false };
        let now = IndexEntry::decode(leaf.value(at).load(Ordering::Relaxed));
        if now.is_none() || now != Some(seen) && !on(I5RemovedUnseen) {
            return false;
        }
        self.kill(leaf, at);
        if 2 * leaf.dead() > leaf.count() {
            self.shrink(&spot, budget);
        }
        true
    }

    /// Replaces the key's entry by an older one, if it is as it was seen: the run that it named holds the key no more.
    pub fn replace_if(&self, key: &[u8], seen: IndexEntry, entry: IndexEntry) -> bool {
        let _held = self.latch.write();
        let (Some((leaf, at)), Some(next)) = (self.spot_of(key).find(key), entry.encode()) else { return false };
        let value = leaf.value(at);
        let as_seen = IndexEntry::decode(value.load(Ordering::Relaxed)) == Some(seen);
        if as_seen {
            value.store(next, Ordering::Release);
            self.count_tombstone(Some(seen), Some(entry));
        }
        as_seen
    }

    /// Takes this index out of the budget, for good: it is about to be dropped.
    pub fn uncount(&self, budget: &Budget) {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        budget.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl IndexEntry {
    /// `None`: there is no value for it.
    fn encode(self) -> Option<u32> {
        let l0 = u32::try_from(self.l0.0).ok().filter(|l0| *l0 < L0_END)?;
        Some(l0 | if self.tombstone { TOMBSTONE } else { 0 })
    }

    /// `None`: dead.
    #[inline]
    fn decode(value: u32) -> Option<IndexEntry> {
        let l0 = L0Id(u64::from(value & !TOMBSTONE));
        (value != DEAD).then_some(IndexEntry { l0, tombstone: value & TOMBSTONE != 0 })
    }
}

/// The place of a leaf; owns it.
struct LeafSlot(AtomicPtr<u8>);

/// A bit that no address of a leaf has.
const CLOSED: usize = 1;

fn is_closed(leaf: *mut u8) -> bool {
    leaf.addr() & CLOSED != 0
}

impl LeafSlot {
    const fn none() -> LeafSlot {
        LeafSlot(AtomicPtr::new(ptr::null_mut()))
    }

    fn new(leaf: NonNull<u8>) -> LeafSlot {
        LeafSlot(AtomicPtr::new(leaf.as_ptr()))
    }

    /// `None`: there is no leaf, or the slot is closed.
    ///
    /// # Safety
    /// For `'l` the caller is pinned (and reached this slot since), holds the latch, or is the only one who knows it.
    #[inline]
    unsafe fn load<'l>(&self) -> Option<Leaf<'l>> {
        let base = NonNull::new(self.0.load(Ordering::Acquire)).filter(|base| !is_closed(base.as_ptr()))?;
        // SAFETY: a slot holds nothing but leaves, and the caller keeps this one alive.
        Some(unsafe { Leaf::at(base) })
    }

    /// Its entry has left the directory: nobody gets the leaf from here any more. The slot owns it still.
    fn close(&self) {
        let leaf = self.0.load(Ordering::Relaxed);
        self.0.store(leaf.map_addr(|at| at | CLOSED), Ordering::Release);
    }

    /// Takes the leaf out of a slot that nobody else knows.
    fn take(mut self) -> *mut u8 {
        std::mem::replace(self.0.get_mut(), ptr::null_mut())
    }

    /// Puts another leaf there; the old one is the caller's now.
    fn swap(&self, leaf: *mut u8) -> Option<NonNull<u8>> {
        loosekv_shm::assert_shared(leaf);
        NonNull::new(self.0.swap(leaf, Ordering::AcqRel))
    }
}

impl Drop for LeafSlot {
    fn drop(&mut self) {
        if let Some(leaf) = NonNull::new(self.0.get_mut().map_addr(|at| at & !CLOSED)) {
            // SAFETY: whoever drops a slot is the last who knows it.
            unsafe { leaf::free(leaf) };
        }
    }
}
