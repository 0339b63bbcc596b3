//! Reading the key index in its order: leaf by leaf under one short pin, copied out into a [`KeyChunk`].
//!
//! Each leaf is asked for a range of keys that begins where the one before ended, or, backwards, ends there. So a split or
//! a merge in between shows no key twice, and a key that is there all the time is shown.

use super::chunk::KeyChunk;
use super::key::{no_space, IndexKey, Probe};
use super::leaf::Leaf;
use super::KeyIndex;
use crate::tree::Direction;
use crossbeam_epoch::Guard;
use loosekv_shm::scope::Scope;
use loosekv_shm::{epoch, RawLatch};
use std::ops::Bound;

/// Most keys of a chunk: the pin is short.
const LARGEST_CHUNK: usize = 4096;

impl<L: RawLatch> KeyIndex<L> {
    /// Copies the next keys from a bound on into `out`, as many as `max` and its memory allow, at least one if there is
    /// one.
    pub fn next_chunk(&self, from: Bound<&[u8]>, direction: Direction, max: usize, out: &mut KeyChunk) {
        let max = max.clamp(1, LARGEST_CHUNK);
        out.prepare(max);
        let _scope = Scope::enter();
        let pin = epoch::pin();
        out.complete = match direction {
            Direction::Forward => self.forward(from, max, out, &pin),
            Direction::Backward => self.backward(from, max, out, &pin),
        };
        debug_assert!(out.complete || !out.is_empty(), "a chunk has space for any key");
    }

    /// True: the end was reached.
    fn forward<'g>(&'g self, from: Bound<&'g [u8]>, max: usize, out: &mut KeyChunk, pin: &'g Guard) -> bool {
        let mut from = from;
        loop {
            let Some(leaf) = self.leaf_from(from, pin) else { return true };
            let start = match from {
                Bound::Unbounded => 0,
                Bound::Included(key) => leaf.find(key).unwrap_or_else(|at| at),
                Bound::Excluded(key) => leaf.find(key).map_or_else(|at| at, |at| at + 1),
            };
            if !out.extend(leaf, start..leaf.count(), max) {
                return false;
            }
            match leaf.high() {
                Some(high) => from = Bound::Included(high),
                None => return true,
            }
        }
    }

    /// The leaf in which a forward scan goes on.
    fn leaf_from<'g>(&'g self, from: Bound<&[u8]>, pin: &'g Guard) -> Option<Leaf<'g>> {
        let (Bound::Included(key) | Bound::Excluded(key)) = from else {
            // SAFETY: pinned.
            return unsafe { self.first.load() };
        };
        self.leaf_of(key, pin)
    }

    fn backward(&self, from: Bound<&[u8]>, max: usize, out: &mut KeyChunk, pin: &Guard) -> bool {
        let probe = match from {
            Bound::Included(key) => Bound::Included(Probe::new(key)),
            Bound::Excluded(key) => Bound::Excluded(Probe::new(key)),
            Bound::Unbounded => Bound::Unbounded,
        };
        let mut upto: Bound<&IndexKey> = probe.as_ref().map(|probe| &**probe);
        loop {
            let (slot, low) = match self.directory.upper_bound(upto, pin) {
                Some(entry) => (entry.value(), Some(entry.key())),
                None => (&self.first, None),
            };
            // SAFETY: pinned.
            let Some(leaf) = (unsafe { slot.load() }) else {
                match low {
                    // Gone since it was found.
                    Some(_) => continue,
                    None => return true,
                }
            };
            let (mut included, mut excluded) = (no_space(), no_space());
            let bound = match upto {
                Bound::Included(key) => Bound::Included(key.bytes(&mut included)),
                Bound::Excluded(key) => Bound::Excluded(key.bytes(&mut excluded)),
                Bound::Unbounded => Bound::Unbounded,
            };
            let Some(end) = end_below(leaf, bound) else { continue };
            if !out.extend(leaf, (0..end).rev(), max) {
                return false;
            }
            match low {
                Some(low) => upto = Bound::Excluded(low),
                None => return true,
            }
        }
    }
}

/// How many keys of the leaf are within the bound. `None`: it has been split, and does not reach up to the bound any more.
fn end_below(leaf: Leaf<'_>, upto: Bound<&[u8]>) -> Option<usize> {
    match upto {
        Bound::Included(key) => leaf.covers(key).then(|| leaf.find(key).map_or_else(|at| at, |at| at + 1)),
        // It may end there.
        Bound::Excluded(key) => {
            leaf.high().is_none_or(|high| high >= key).then(|| leaf.find(key).unwrap_or_else(|at| at))
        }
        Bound::Unbounded => leaf.high().is_none().then(|| leaf.count()),
    }
}
