//! The key filter: of most keys that the index does not have it says so for one line of cache, where the directory and a leaf cost
//! many.
//!
//! ```text
//!   filter   pages of 256 blocks of 64 bytes; the hash of a key picks the block, and in it five bits
//!   life     begun, larger than the one before -> filled, leaf by leaf -> in use -> full: another one is begun -> retired
//! ```
//!
//! - *The bits of a key are there before its entry is*: whoever finds one missing may say that the key is not in the index.
//!   That holds for new keys and for dead ones that come to life, in the filter that is in use and in the one that is being filled.
//! - Filling goes through all the leaves, a few in one hold of the latch. Keys that come in behind it have set their bits
//!   themselves, and those that are removed meanwhile do no harm.
//! - Bits are never cleared: what was removed is forgotten with the filter.
//!
//! A small index has none, nor does one for whose filter there is no room: it is part of the index's budget, and made of what may grow.
//! Keys come first: a filter gives way to them. But where keys have had to go, others will, and the filter stays: of most keys that are
//! looked for then the index does not know, and what a filter takes is little beside what is gone.

use super::leaf::DEAD;
use super::sweep::SweepCursor;
use super::write::Spot;
use super::KeyIndex;
use crate::cpu::prefetch;
use crate::filter::key_hash;
use crate::host::Budget;
use crate::types::MAX_KEY;
use loosekv_shm::scope;
use loosekv_shm::{epoch, reserve_growth, Full, Needs, RawLatch};
use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// An index of fewer keys has no filter.
const FEWEST_KEYS: u64 = if cfg!(test) { 64 } else { 1 << 14 };
/// Bits for each key of a filter that is full.
const BITS_A_KEY: u64 = 6;
/// For so many times the keys that there are a filter is begun.
const GROWTH: u64 = 4;
/// The same where keys have had to go: the index stays about as large.
const GROWTH_IF_SHORT: u64 = 2;
/// One that has become this small gives its filters back.
const TOO_FEW_KEYS: u64 = FEWEST_KEYS / 4;
/// A filter for so many times the keys that are left gives its memory back.
const TOO_LARGE: u64 = 32;
/// A filter takes at most this part of the room that is left: keys come first.
const SHARE: u64 = 4;
const PROBES: u32 = 5;
const WORDS: usize = 8;
const BLOCKS: usize = 256;
/// Of a block, which bit: nine bits of the hash for each probe.
const BLOCK_BITS: u64 = 512;
/// What a list of pages may have, to be an object of the heap: a filter for 44 million keys.
const MOST_PAGES: usize = Needs::MAX_BYTES / size_of::<Box<Page>>();
/// Leaves whose keys are put into a filter in one hold of the latch.
const LEAVES_A_HOLD: usize = 64;

#[repr(C, align(64))]
struct Block([AtomicU64; WORDS]);

#[repr(C)]
struct Page([Block; BLOCKS]);

/// One filter. Lives in the heap with all that belongs to it.
pub(super) struct KeyFilter {
    pages: Vec<Box<Page>>,
    /// For how many keys it was made, and how many it has been told; keys that came twice count twice.
    capacity: u64,
    told: AtomicU64,
    /// Where filling it goes on. The holder of the latch has it.
    cursor: UnsafeCell<SweepCursor>,
}

impl KeyFilter {
    fn new(capacity: u64) -> Result<Box<KeyFilter>, Full> {
        let bits = capacity.saturating_mul(BITS_A_KEY);
        let pages = usize::try_from(bits.div_ceil(BLOCK_BITS * BLOCKS as u64)).map_err(|_| Full)?;
        if pages > MOST_PAGES {
            return Err(Full);
        }
        let sizes = [size_of::<KeyFilter>(), pages * size_of::<Box<Page>>(), MAX_KEY];
        reserve_growth(&sizes)?;
        let mut filter = scope::with(|| {
            Box::new(KeyFilter {
                pages: Vec::with_capacity(pages),
                capacity,
                told: AtomicU64::new(0),
                cursor: UnsafeCell::new(SweepCursor::new()),
            })
        });
        for _ in 0..pages {
            const { Needs::of_layout(Layout::new::<Page>()) }.reserve_growth()?;
            // SAFETY: zeros are a value of it.
            filter.pages.push(scope::with(|| unsafe { Box::<Page>::new_zeroed().assume_init() }));
        }
        Ok(filter)
    }

    fn bytes(&self) -> u64 {
        (size_of::<KeyFilter>() + MAX_KEY + self.pages.len() * (size_of::<Box<Page>>() + size_of::<Page>())) as u64
    }

    #[allow(clippy::indexing_slicing, reason = "the hash is reduced to the blocks that there are")]
    #[inline]
    fn block(&self, hash: u64) -> &Block {
        let at = ((u128::from(hash) * (self.pages.len() * BLOCKS) as u128) >> 64) as usize;
        &self.pages[at / BLOCKS].0[at % BLOCKS]
    }

    /// The latch is held: nobody else changes what is read here, and so keys need not wait for each other's line.
    fn tell(&self, hash: u64) {
        let block = self.block(hash);
        for (word, bit) in bits_of(hash) {
            let word = block.word(word);
            word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
        }
        self.told.store(self.told.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// A key that is looked for, and the block that knows of it.
pub(super) struct Wanted<'f> {
    block: &'f Block,
    hash: u64,
}

impl Wanted<'_> {
    /// Whether the index may have it.
    #[inline]
    pub(super) fn may_be_there(&self) -> bool {
        bits_of(self.hash).all(|(word, bit)| self.block.word(word).load(Ordering::Relaxed) & bit != 0)
    }
}

impl Block {
    #[allow(clippy::indexing_slicing, reason = "three bits")]
    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.0[at % WORDS]
    }
}

/// Which bits of which words of its block a key has.
#[inline(always)]
fn bits_of(hash: u64) -> impl Iterator<Item = (usize, u64)> {
    // The high bits of the hash have picked the block.
    let mixed = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..PROBES).map(move |probe| {
        let nine = mixed >> (19 + 9 * probe);
        ((nine >> 6) as usize % WORDS, 1 << (nine % 64))
    })
}

/// The filters of an index.
#[derive(Default)]
pub(super) struct KeyFilters {
    used: AtomicPtr<KeyFilter>,
    filling: AtomicPtr<KeyFilter>,
    /// There was no room for another one: it is tried again when there are so many keys. Changed under the latch.
    again: AtomicU64,
    /// Keys have had to go for want of room. Changed under the latch.
    short: AtomicBool,
}

impl KeyFilters {
    /// Begins to look for a key. `None`: there is no filter.
    ///
    /// # Safety
    /// For `'f` the caller is pinned.
    #[inline]
    pub(super) unsafe fn look_for<'f>(&self, key: &[u8]) -> Option<Wanted<'f>> {
        // SAFETY: a filter is retired when it has been taken out of its place, and the caller is pinned.
        let filter = unsafe { self.used.load(Ordering::Acquire).as_ref() }?;
        let hash = key_hash(key);
        let block = filter.block(hash);
        prefetch(block);
        Some(Wanted { block, hash })
    }

    /// The key is about to get an entry. The latch is held.
    pub(super) fn tell(&self, key: &[u8]) {
        let mut hash = None;
        for filter in [&self.used, &self.filling] {
            // SAFETY: only a holder of the latch takes it out, and that are we.
            if let Some(filter) = unsafe { filter.load(Ordering::Relaxed).as_ref() } {
                filter.tell(*hash.get_or_insert_with(|| key_hash(key)));
            }
        }
    }

    /// The key will be told, or asked about, soon. A hint. The latch is held, or the caller is pinned.
    #[inline]
    pub(super) fn touch(&self, key: &[u8]) {
        // SAFETY: only a holder of the latch takes it out, and it waits for those who are pinned.
        if let Some(filter) = unsafe { self.used.load(Ordering::Relaxed).as_ref() } {
            prefetch(filter.block(key_hash(key)));
        }
    }

    /// Whether the filter stays where there is no room for other keys than those that there are.
    pub(super) fn stay(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Is there something to do, for an index with so many keys? The latch is held.
    pub(super) fn wanting(&self, keys: u64) -> bool {
        if !self.filling.load(Ordering::Relaxed).is_null() {
            return true;
        }
        // SAFETY: only a holder of the latch takes it out, and that are we.
        let (told, most) = match unsafe { self.used.load(Ordering::Relaxed).as_ref() } {
            Some(used) if keys < TOO_FEW_KEYS || keys < used.capacity / TOO_LARGE => return true,
            Some(used) => (used.told.load(Ordering::Relaxed), used.capacity),
            None => (keys, FEWEST_KEYS),
        };
        told >= most.max(self.again.load(Ordering::Relaxed))
    }
}

impl Drop for KeyFilters {
    fn drop(&mut self) {
        for filter in [*self.used.get_mut(), *self.filling.get_mut()] {
            if !filter.is_null() {
                // SAFETY: from `Box::into_raw`, and nobody else knows it any more.
                drop(unsafe { Box::from_raw(filter) });
            }
        }
    }
}

impl<L: RawLatch> KeyIndex<L> {
    /// Is there something to do for the filter?
    pub(super) fn wants_filter(&self) -> bool {
        let _held = self.latch.write();
        self.filters.wanting(self.len() as u64)
    }

    /// Keys have gone for want of room, and have left some: the filter and the guide stay from now on.
    pub fn keys_had_to_go(&self) {
        let _held = self.latch.write();
        self.filters.short.store(true, Ordering::Relaxed);
        self.filters.again.store(0, Ordering::Relaxed);
        self.guides.try_again();
    }

    /// No key is missing: they come before the filter and the guide again. Where one of these gave way while keys came, for their old
    /// leaves took room as well until nobody looked at them, it has another chance.
    pub fn all_keys_fit(&self) {
        let _held = self.latch.write();
        self.filters.short.store(false, Ordering::Relaxed);
        self.filters.again.store(0, Ordering::Relaxed);
        self.guides.try_again();
    }

    /// Makes the filter that is wanted, fills the one that is being filled to the end, and brings the guide up to date: many keys have
    /// come, and others may not come soon.
    pub fn settle(&self, budget: &Budget) {
        if self.wants_filter() {
            self.keep_filter(budget);
        }
        while !self.filters.filling.load(Ordering::Relaxed).is_null() {
            self.keep_filter(budget);
        }
        self.keep_guide(true, budget);
    }

    /// Until there are half as many keys more: these need the room. The latch is held.
    pub(super) fn give_up_filters(&self, budget: &Budget) {
        self.give_up_filling(budget);
        self.give_up_used(budget);
        let keys = self.len() as u64;
        self.filters.again.store(keys + keys / 2, Ordering::Relaxed);
    }

    /// Bytes of the filters.
    #[cfg(test)]
    pub(crate) fn filter_bytes(&self) -> u64 {
        let _pin = epoch::pin();
        let filters = [&self.filters.used, &self.filters.filling];
        // SAFETY: pinned.
        filters.iter().filter_map(|at| unsafe { at.load(Ordering::Acquire).as_ref() }).map(KeyFilter::bytes).sum()
    }

    /// Does what is wanting for the filter: begins one, or fills it further.
    pub(super) fn keep_filter(&self, budget: &Budget) {
        let filling = &self.filters.filling;
        let keys = self.len() as u64;
        if keys < TOO_FEW_KEYS {
            let _held = self.latch.write();
            self.give_up_filling(budget);
            return self.give_up_used(budget);
        }
        if filling.load(Ordering::Relaxed).is_null() {
            let growth = if self.filters.stay() { GROWTH_IF_SHORT } else { GROWTH };
            let made = KeyFilter::new(growth * keys).ok();
            let _held = self.latch.write();
            if filling.load(Ordering::Relaxed).is_null() && self.filters.wanting(self.len() as u64) {
                self.begin_filter(made, budget);
            }
            return;
        }
        let _held = self.latch.write();
        // SAFETY: the latch is held; so the cursor is ours, too.
        let Some(filter) = (unsafe { filling.load(Ordering::Relaxed).as_ref() }) else { return };
        // SAFETY: as above.
        let cursor = unsafe { &mut *filter.cursor.get() };
        let mut key = Vec::new();
        for _ in 0..LEAVES_A_HOLD {
            if cursor.is_done() {
                self.use_filter(budget);
                return;
            }
            self.fill_from_leaf(filter, cursor, &mut key);
        }
    }

    /// Bytes that a filter or a guide may take: where keys may still come, a part like this of what is left.
    pub(super) fn room_beside_keys(&self, budget: &Budget, share: u64) -> u64 {
        let left = budget.limit.load(Ordering::Relaxed).saturating_sub(budget.used.load(Ordering::Relaxed));
        if self.filters.stay() {
            left
        } else {
            left / share
        }
    }

    /// The latch is held.
    fn begin_filter(&self, made: Option<Box<KeyFilter>>, budget: &Budget) {
        match made.filter(|made| made.bytes() <= self.room_beside_keys(budget, SHARE)) {
            Some(made) => {
                self.account(budget, made.bytes(), 0);
                self.filters.again.store(0, Ordering::Relaxed);
                self.filters.filling.store(Box::into_raw(made), Ordering::Release);
            }
            None => self.filter_without_room(budget),
        }
    }

    /// One that was told of far too many keys goes; else it serves on until there are half as many more. The latch is held.
    fn filter_without_room(&self, budget: &Budget) {
        // SAFETY: the latch is held.
        let used = unsafe { self.filters.used.load(Ordering::Relaxed).as_ref() };
        let told = used.map_or(self.len() as u64, |used| used.told.load(Ordering::Relaxed));
        match used {
            Some(used) if told > 2 * used.capacity => self.give_up_used(budget),
            _ => self.filters.again.store(told + told / 2, Ordering::Relaxed),
        }
    }

    fn fill_from_leaf(&self, filter: &KeyFilter, cursor: &mut SweepCursor, key: &mut Vec<u8>) {
        let spot = if cursor.started { self.spot_of(&cursor.from) } else { Spot::first(self) };
        let Some(leaf) = spot.leaf else {
            cursor.done = true;
            return;
        };
        for at in (0..leaf.count()).filter(|at| leaf.value(*at).load(Ordering::Relaxed) != DEAD) {
            leaf.key(at, key);
            filter.tell(key_hash(key));
        }
        cursor.started = true;
        match leaf.high() {
            Some(high) => high.clone_into(&mut cursor.from),
            None => cursor.done = true,
        }
    }

    /// The filter is filled. Where memory to retire the one in use is missing, that one stays. The latch is held.
    fn use_filter(&self, budget: &Budget) {
        if epoch::NEEDS.reserve_emergency().is_err() {
            return self.give_up_filling(budget);
        }
        let filled = self.filters.filling.swap(ptr::null_mut(), Ordering::Relaxed);
        self.replace_filter(filled, budget);
    }

    /// The latch is held.
    fn give_up_filling(&self, budget: &Budget) {
        let filling = self.filters.filling.swap(ptr::null_mut(), Ordering::Relaxed);
        if !filling.is_null() {
            // SAFETY: from `Box::into_raw`, and only holders of the latch have known it.
            let filling = unsafe { Box::from_raw(filling) };
            self.account(budget, 0, filling.bytes());
        }
    }

    /// Unless memory to retire it is missing. The latch is held.
    fn give_up_used(&self, budget: &Budget) {
        if epoch::NEEDS.reserve_emergency().is_ok() {
            self.replace_filter(ptr::null_mut(), budget);
        }
    }

    /// Puts a filter, or none, in the place of the one in use; what it takes to retire that has been reserved. The latch is held.
    fn replace_filter(&self, new: *mut KeyFilter, budget: &Budget) {
        let gone = self.filters.used.swap(new, Ordering::AcqRel);
        // SAFETY: only a holder of the latch takes it out, and that are we.
        if let Some(bytes) = unsafe { gone.as_ref() }.map(KeyFilter::bytes) {
            self.account(budget, 0, bytes);
            // SAFETY: who is not pinned already finds another one.
            unsafe { epoch::pin().retire(gone) };
        }
    }
}
