//! Key to newest row version, by hash: what makes a point look-up in a memtable two or three cache misses where the skip
//! list takes twenty.
//!
//! ```text
//!   root:  2^n slots, by the low bits of the hash        fork:  [0 8][slot 4] * 8, by three more bits each time
//!   slot:  0 | offset of a node | offset of a fork       (a node's first two bytes are never 0)
//! ```
//!
//! Insert-only, like the list: a slot goes from empty to a node, from a node to a newer version of the same key, or to a fork
//! that holds the node. Nothing moves, so readers need no lock. Should there be no room for a fork, or two keys have one hash, the
//! trie is *incomplete* from then on, and look-ups take the list.
//!
//! Rows find room before they are linked, until the arena is full: those that are last would find none for their forks, and most
//! look-ups of a full memtable come after that. So a trie that has come so far has a *reserve* for these.

use super::arena::{pack, unpack, UNIT};
use super::node::Node;
use super::skip_list::SkipList;
use crate::filter::key_hash;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

const FORK_BITS: u32 = 3;
const FORK_SLOTS: usize = 1 << FORK_BITS;
const FORK_BYTES: usize = UNIT + 4 * FORK_SLOTS;
const FORK_UNITS: u32 = (FORK_BYTES / UNIT) as u32;

/// A root for few rows, or for nobody knows how many: between these, by how much memory the memtable may take.
const LEAST_ROOT_BITS: u32 = 6;
const USUAL_ROOT_BITS: u32 = 11;
const MOST_ROOT_BITS: u32 = 20;

/// Which part of what the memtable may take is in reserve, from so many rows on, or when half of it is taken.
const RESERVE: usize = 128;
const LEAST_ROWS: u64 = 8192;

/// Levels that are fetched ahead.
const LEVELS_AHEAD: usize = 4;

pub(super) struct KeyTrie {
    root: u32,
    root_bits: u32,
    incomplete: AtomicBool,
    /// Offsets of the next fork and of the end of the reserve, packed; 0: there is none yet.
    reserve: AtomicU64,
}

impl KeyTrie {
    /// A trie for so many rows, more or less; it works with any number. `None`: the arena is full.
    pub(super) fn new(list: &SkipList, rows: u64) -> Option<KeyTrie> {
        let usual = (list.arena.capacity() as u64 / 256).checked_ilog2().unwrap_or(0);
        let least = usual.clamp(LEAST_ROOT_BITS, USUAL_ROOT_BITS);
        let root_bits = rows.checked_ilog2().unwrap_or(0).clamp(least, MOST_ROOT_BITS);
        let bytes = 4usize << root_bits;
        let root = list.arena.alloc((bytes / UNIT) as u32)?;
        // SAFETY: the block is ours; zeros are empty slots.
        unsafe { list.arena.at(root).write_bytes(0, bytes) };
        let (incomplete, reserve) = (AtomicBool::new(false), AtomicU64::new(0));
        Some(KeyTrie { root, root_bits, incomplete, reserve })
    }

    /// Takes the reserve, once it is worth it for so many rows.
    #[inline]
    pub(super) fn begin(&self, list: &SkipList, rows: u64) {
        if self.reserve.load(Ordering::Relaxed) != 0 {
            return;
        }
        if rows >= LEAST_ROWS || 2 * list.arena.used() >= list.arena.capacity() {
            self.take_reserve(list);
        }
    }

    #[cold]
    fn take_reserve(&self, list: &SkipList) {
        let units = (list.arena.capacity() / RESERVE / FORK_BYTES) as u32 * FORK_UNITS;
        let block = Some(units).filter(|units| *units > 0).and_then(|units| list.arena.alloc(units));
        // One that cannot be had has nothing left from the beginning: it is not asked for again.
        let reserve = block.map_or(pack(1, 1), |block| pack(block, block + units));
        let noted = self.reserve.compare_exchange(0, reserve, Ordering::Relaxed, Ordering::Relaxed);
        if let (Some(block), Err(_)) = (block, noted) {
            list.arena.give_back(block, units);
        }
    }

    /// Memory for a fork: the reserve's, where the arena has none any more.
    fn room_for_fork(&self, list: &SkipList) -> Option<u32> {
        let from_reserve = |reserve: u64| {
            let (next, end) = unpack(reserve);
            (next < end).then(|| reserve + u64::from(FORK_UNITS))
        };
        list.arena.alloc(FORK_UNITS).or_else(|| {
            let taken = self.reserve.fetch_update(Ordering::Relaxed, Ordering::Relaxed, from_reserve);
            taken.ok().map(|reserve| unpack(reserve).0)
        })
    }

    /// The newest version of the key, 0 if there is none. `None`: only the list can tell.
    pub(super) fn find(&self, list: &SkipList, key: &[u8]) -> Option<u32> {
        if self.incomplete.load(Ordering::Acquire) {
            return None;
        }
        let mut walk = Walk::new(self, list, key_hash(key));
        loop {
            let at = walk.slot.load(Ordering::Acquire);
            if at == 0 {
                return Some(0);
            }
            // SAFETY: slots hold offsets of linked nodes and of forks of this arena.
            let node = unsafe { list.node(at) };
            // SAFETY: as above; both begin with two bytes that tell which it is.
            if unsafe { node.is_fork() } {
                walk.down(list, at);
                continue;
            }
            // SAFETY: it is a node.
            return Some(if unsafe { node.key() } == key { at } else { 0 });
        }
    }

    /// Begins to fetch what look-ups of these keys, and their insertion, will look at: the misses of many keys at one time.
    pub(super) fn prefetch<'k>(&self, list: &SkipList, keys: impl Iterator<Item = &'k [u8]>) {
        let mut walks: Vec<Walk<'_>> = keys.map(|key| Walk::new(self, list, key_hash(key))).collect();
        for _ in 0..LEVELS_AHEAD {
            walks.iter().for_each(|walk| Node(std::ptr::from_ref(walk.slot).cast_mut().cast()).prefetch());
            for walk in &walks {
                // SAFETY: slots hold 0 or offsets of this arena; nothing is read there yet.
                unsafe { list.node(walk.slot.load(Ordering::Acquire)) }.prefetch();
            }
            walks.retain_mut(|walk| {
                let at = walk.slot.load(Ordering::Acquire);
                // SAFETY: as in `find`.
                let goes_on = at != 0 && unsafe { list.node(at).is_fork() };
                if goes_on {
                    walk.down(list, at);
                }
                goes_on
            });
        }
    }

    /// Begins to fetch what the insertion of this key will look at first.
    #[inline]
    pub(super) fn begin_insertion<'a>(&self, list: &'a SkipList, key: &[u8]) -> Begun<'a> {
        let slot = Walk::new(self, list, key_hash(key)).slot;
        Node(std::ptr::from_ref(slot).cast_mut().cast()).prefetch();
        Begun(slot)
    }

    /// Notes a node that has been linked into the list.
    pub(super) fn insert(&self, list: &SkipList, offset: u32, key: &[u8]) {
        let mut walk = Walk::new(self, list, key_hash(key));
        loop {
            let at = walk.slot.load(Ordering::Acquire);
            let next = if at == 0 {
                offset
            } else {
                // SAFETY: as in `find`; `offset` is that of a linked node.
                let (node, own) = unsafe { (list.node(at), list.node(offset)) };
                // SAFETY: as above.
                unsafe {
                    if node.is_fork() {
                        walk.down(list, at);
                        continue;
                    }
                    if node.key() == key {
                        if node.row() >= own.row() {
                            return;
                        }
                        offset
                    } else {
                        match walk.fork(self, list, (at, key_hash(node.key()))) {
                            Some(fork) => fork,
                            None => return self.incomplete.store(true, Ordering::Release),
                        }
                    }
                }
            };
            // Release: who finds the node, or the fork, finds it whole.
            let swapped = walk.slot.compare_exchange(at, next, Ordering::Release, Ordering::Relaxed).is_ok();
            if swapped && next == offset {
                return;
            }
            if !swapped && next != offset {
                list.arena.give_back(next, FORK_UNITS);
            }
        }
    }
}

/// Where the way of a key begins, see [`KeyTrie::begin_insertion`].
pub(super) struct Begun<'a>(&'a AtomicU32);

impl Begun<'_> {
    /// Once that is there: begins to fetch what is looked at next.
    #[inline]
    pub(super) fn prefetch(self, list: &SkipList) {
        // SAFETY: slots hold 0 or offsets of this arena; nothing is read there yet.
        unsafe { list.node(self.0.load(Ordering::Relaxed)) }.prefetch();
    }
}

/// A way from the root down to where a hash belongs.
struct Walk<'a> {
    slot: &'a AtomicU32,
    hash: u64,
    /// Bits of the hash used so far.
    used: u32,
}

impl<'a> Walk<'a> {
    fn new(trie: &KeyTrie, list: &'a SkipList, hash: u64) -> Walk<'a> {
        let at = (hash & ((1 << trie.root_bits) - 1)) as usize;
        // SAFETY: the root has so many slots.
        let slot = unsafe { &*list.arena.at(trie.root).cast::<AtomicU32>().add(at) };
        Walk { slot, hash, used: trie.root_bits }
    }

    fn down(&mut self, list: &'a SkipList, fork: u32) {
        let at = (self.hash >> self.used) as usize % FORK_SLOTS;
        // SAFETY: the offset is that of a fork.
        self.slot = unsafe { fork_slot(list, fork, at) };
        self.used += FORK_BITS;
    }

    /// A fork for this slot that holds the node in it, whose hash is `hash`. `None`: no room, or no bits are left.
    fn fork(&self, trie: &KeyTrie, list: &SkipList, (node, hash): (u32, u64)) -> Option<u32> {
        if self.used + FORK_BITS > u64::BITS {
            return None;
        }
        let fork = trie.room_for_fork(list)?;
        // SAFETY: the block is ours until the fork is put into a slot.
        unsafe {
            list.arena.at(fork).write_bytes(0, FORK_BYTES);
            fork_slot(list, fork, (hash >> self.used) as usize % FORK_SLOTS).store(node, Ordering::Relaxed);
        }
        Some(fork)
    }
}

/// # Safety
/// The offset is that of a fork of this arena.
unsafe fn fork_slot(list: &SkipList, fork: u32, at: usize) -> &AtomicU32 {
    // SAFETY: a fork has eight slots behind its first word.
    unsafe { &*list.arena.at(fork).add(UNIT).cast::<AtomicU32>().add(at % FORK_SLOTS) }
}

impl Node {
    /// # Safety
    /// The address is that of a linked node or of a fork.
    #[inline(always)]
    unsafe fn is_fork(self) -> bool {
        // SAFETY: the caller's promise: both have a word here. A node's shape, never 0, does not change.
        unsafe { self.0.cast::<u16>().read() == 0 }
    }
}
