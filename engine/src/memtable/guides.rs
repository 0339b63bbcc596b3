//! Guides: which node of the list stands near a key, told by the key's place on a scale ([`super::scale`]).
//!
//! ```text
//!   keys' numbers:       low ............................................ high
//!   level 0:             | slot | slot | slot | slot | slot | slot | slot | slot |      2^n slots
//!   level 1:             |     slot    |     slot    |     slot    |     slot    |      half as many
//!   ...
//!   slot:  0 | the node linked last of those that are so high and belong here
//! ```
//!
//! A search from the list's head visits two nodes a level, and the lower half of them costs a cache miss each. Where keys are
//! spread evenly between `low` and `high`, or come in ascending order, a slot leads to within a few nodes of the place. Where they
//! are not, a search by guides gives up after a few steps, and is not tried any more once that has happened often.
//!
//! A memtable gets them when it has so many rows that they pay, or at once if the one before had. The scale is learned from some of
//! the rows that are there then, in the one or the other.
//!
//! Guides are hints: they name nodes that are linked on the slot's level, and a search makes sure itself of where they stand.

use super::arena::UNIT;
use super::node::Want;
use super::scale::Scale;
use super::skip_list::{Path, SkipList};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Levels with slots; one node in 2^8 is higher, and is placed from the head.
pub(super) const LEVELS: usize = 8;
const LEAST_BITS: u32 = LEVELS as u32;
const MOST_BITS: u32 = 19;
/// Steps along a level before a search gives up.
pub(super) const MOST_STEPS: u32 = 12;
/// Empty slots to go back over.
const MOST_EMPTY: usize = 16;
/// Searches that may give up before it is asked whether they are too many.
const FORGIVEN: u32 = 512;

/// Rows from which on guides pay.
const LEAST_ROWS: u64 = 8192;
/// About so many keys, or up to twice as many, tell what the scale is to be like.
const SAMPLE: u64 = 256;
/// Bytes of arena that a row takes when nothing better is known: generous, for guides are to be few rather than many.
const ROW: u64 = 128;

pub(super) struct Guides {
    /// The block of the line and the slots behind it; 0: there is none.
    block: AtomicU32,
    bits: u32,
    given_up: AtomicU32,
    off: AtomicBool,
}

/// How keys' numbers are divided among the slots.
struct Line {
    scale: Scale,
    low: u64,
    high: u64,
    /// A number less `low`, shifted so, is its slot on level 0.
    shift: u32,
}

/// Bytes of the line in the block.
const LINE: usize = size_of::<Line>().next_multiple_of(64);
const _: () = assert!(align_of::<Line>() <= UNIT);

impl Line {
    /// For keys like those of a list with about so many rows, between 2^`bits` slots.
    fn like(list: &SkipList, rows: u64, bits: u32) -> Line {
        let level = (rows / SAMPLE).checked_ilog2().unwrap_or(0) as usize;
        // SAFETY: the keys are not used longer than the list is borrowed.
        let keys = list.on_level(level).map(|node| unsafe { node.key() });
        let scale = Scale::of(keys.clone());
        let number = |key: Option<&[u8]>| key.map_or(0, |key| scale.number(key));
        let (low, high) = (number(keys.clone().next()), number(keys.last()));
        let shift = (u64::BITS - (high - low).leading_zeros()).saturating_sub(bits);
        Line { scale, low, high, shift }
    }
}

impl Guides {
    /// Guides for about so many rows (0: nobody knows), whose keys are like those of the list `before`.
    pub(super) fn new(list: &SkipList, rows: u64, before: Option<&SkipList>) -> Guides {
        let expected = if rows < LEAST_ROWS { list.arena.capacity() as u64 / ROW } else { rows };
        let bits = expected.checked_ilog2().unwrap_or(0).saturating_sub(1).clamp(LEAST_BITS, MOST_BITS);
        let (block, given_up, off) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
        let guides = Guides { block, bits, given_up, off };
        if let Some(before) = before.filter(|_| rows >= LEAST_ROWS) {
            guides.take_memory(list, before, rows);
        }
        guides
    }

    /// Takes memory, once so many rows are worth it.
    #[inline]
    pub(super) fn begin(&self, list: &SkipList, rows: u64) {
        if rows >= LEAST_ROWS && self.block.load(Ordering::Relaxed) == 0 && !self.off.load(Ordering::Relaxed) {
            self.take_memory(list, list, rows);
        }
    }

    #[cold]
    fn take_memory(&self, list: &SkipList, like: &SkipList, rows: u64) {
        let (slots, units) = (8usize << self.bits, ((LINE + (8usize << self.bits)) / UNIT) as u32);
        let Some(block) = list.arena.alloc(units) else {
            return self.off.store(true, Ordering::Relaxed);
        };
        // SAFETY: the block is ours, and aligned to units; zeros are empty slots.
        unsafe {
            let start = list.arena.at(block);
            start.cast::<Line>().write(Line::like(like, rows, self.bits));
            start.add(LINE).write_bytes(0, slots);
        }
        // Release: who finds the block finds it whole.
        if self.block.compare_exchange(0, block, Ordering::Release, Ordering::Relaxed).is_err() {
            list.arena.give_back(block, units);
        }
    }

    /// The block, if guides are in use.
    #[inline]
    pub(super) fn block(&self) -> Option<u32> {
        let block = self.block.load(Ordering::Acquire);
        (block != 0 && !self.off.load(Ordering::Relaxed)).then_some(block)
    }

    /// Slot of a key on level 0; it does not fall as keys rise.
    #[inline]
    pub(super) fn slot_of(&self, list: &SkipList, block: u32, key: &[u8]) -> usize {
        // SAFETY: the block begins with a line, which never changes.
        let line = unsafe { &*list.arena.at(block).cast::<Line>() };
        let slots = 1u64 << self.bits;
        // Keys above all that the scale was learned from share the last slot: ascending ones each find the one before.
        let number = line.scale.number(key).min(line.high);
        (number.saturating_sub(line.low) >> line.shift).min(slots - 1) as usize
    }

    pub(super) fn slot<'a>(&self, list: &'a SkipList, block: u32, level: usize, at: usize) -> &'a AtomicU32 {
        // Level 0 takes the upper half of the block, level 1 the upper half of the rest, and so on.
        let first = 1usize << (self.bits as usize - level);
        debug_assert!(level < LEVELS && at < first);
        // SAFETY: the block has 2^(bits + 1) slots.
        unsafe { &*list.arena.at(block).add(LINE).cast::<AtomicU32>().add(first + at) }
    }

    /// Notes a node that has been linked on all its levels, by the path that led to its place.
    pub(super) fn note(&self, list: &SkipList, key: &[u8], path: &Path, offset: u32, height: usize) {
        let Some(block) = self.block() else { return };
        let slot = path.slot.map_or_else(|| self.slot_of(list, block, key), |slot| slot as usize);
        for level in 0..height.min(LEVELS) {
            // Release: who finds the node finds it whole.
            self.slot(list, block, level, slot >> level).store(offset, Ordering::Release);
        }
    }

    /// As [`SkipList::path`], as far as the levels below `height` are concerned. `None`: search from the head.
    pub(super) fn path(&self, list: &SkipList, want: &Want<'_>, height: usize) -> Option<Path> {
        let block = self.block().filter(|_| height <= LEVELS)?;
        let slot = self.slot_of(list, block, want.key());
        let mut near = [0; LEVELS];
        for (level, near) in near.iter_mut().enumerate().take(height) {
            *near = self.near(list, block, level, slot >> level)?;
            // SAFETY: the offset of a node, or of the head.
            unsafe { list.node(*near) }.prefetch();
        }
        let mut path = list.empty_path();
        path.slot = u32::try_from(slot).ok();
        for (level, near) in near.iter().enumerate().take(height).rev() {
            // SAFETY: the nodes of a slot are linked on its level.
            let (before, after) = unsafe { self.walk(list, block, (level, slot >> level), *near, want)? };
            path.set(level, before, after);
        }
        Some(path)
    }

    /// As [`SkipList::seek_on`], on one of the levels that have slots. `None`: search from the head.
    pub(super) fn seek_on(&self, list: &SkipList, level: usize, want: &Want<'_>) -> Option<(u32, u32)> {
        let block = self.block()?;
        let slot = self.slot_of(list, block, want.key()) >> level;
        let near = self.near(list, block, level, slot)?;
        // SAFETY: as in `path`.
        unsafe { self.walk(list, block, (level, slot), near, want) }
    }

    /// A node in this slot, or in one of those before it; the head, if these are all there are.
    pub(super) fn near(&self, list: &SkipList, block: u32, level: usize, slot: usize) -> Option<u32> {
        for back in 0..=MOST_EMPTY {
            let Some(at) = slot.checked_sub(back) else { return Some(list.head()) };
            let near = self.slot(list, block, level, at).load(Ordering::Acquire);
            if near != 0 {
                return Some(near);
            }
        }
        None
    }

    /// From `near` to the neighbours of the place on this level.
    ///
    /// # Safety
    /// `near` is the head or a node of this list that is linked on this level.
    unsafe fn walk(
        &self,
        list: &SkipList,
        block: u32,
        (level, slot): (usize, usize),
        near: u32,
        want: &Want<'_>,
    ) -> Option<(u32, u32)> {
        let mut before = near;
        // SAFETY: the caller's promise.
        if near != list.head() && !unsafe { list.node(near).is_before(want) } {
            // It is in the place's own slot: nodes of slots before that stand before the place.
            before = match slot.checked_sub(1) {
                Some(slot) => self.near(list, block, level, slot)?,
                None => list.head(),
            };
        }
        for _ in 0..MOST_STEPS {
            // SAFETY: `before` is linked on this level, and stands before the place.
            let next = unsafe { list.link(before, level) }.load(Ordering::Acquire);
            // SAFETY: linked nodes are whole.
            if next == 0 || !unsafe { list.node(next).is_before(want) } {
                return Some((before, next));
            }
            before = next;
        }
        self.give_up();
        None
    }

    #[cold]
    pub(super) fn give_up(&self) {
        self.given_up.fetch_add(1, Ordering::Relaxed);
    }

    /// Looks whether guides are of use to a list with so many rows.
    pub(super) fn weigh(&self, rows: u64) {
        let given_up = self.given_up.load(Ordering::Relaxed);
        if given_up > FORGIVEN && u64::from(given_up) > rows / 4 {
            self.off.store(true, Ordering::Relaxed);
        }
    }
}
