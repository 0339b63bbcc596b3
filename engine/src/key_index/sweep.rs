//! Removing entries all over the key index, a leaf at a time: each is made anew without what goes, for sweeps are there
//! to make room.

use super::write::Spot;
use super::{IndexEntry, KeyIndex};
use crate::host::Budget;
use crate::types::{L0Id, MAX_KEY};
use loosekv_shm::RawLatch;
use std::sync::atomic::Ordering;

/// Where a sweep goes on. Keys that come in behind it are not seen by this sweep.
#[derive(Clone, Debug)]
pub struct SweepCursor {
    /// The next key to look at.
    pub(super) from: Vec<u8>,
    pub(super) started: bool,
    pub(super) done: bool,
}

impl Default for SweepCursor {
    fn default() -> SweepCursor {
        SweepCursor::new()
    }
}

impl SweepCursor {
    /// At the first key.
    pub fn new() -> SweepCursor {
        SweepCursor { from: Vec::with_capacity(MAX_KEY), started: false, done: false }
    }

    /// The last key has been looked at.
    pub fn is_done(&self) -> bool {
        self.done
    }
}

impl<L: RawLatch> KeyIndex<L> {
    /// Looks at up to `max` entries and removes those of runs below `floor`, which are not indexed any more. Returns
    /// how many.
    pub fn sweep_below(&self, floor: L0Id, cursor: &mut SweepCursor, max: usize, budget: &Budget) -> usize {
        self.sweep(|entry| entry.l0 < floor, cursor, max, budget)
    }

    /// Looks at up to `max` entries and removes those of tombstones in runs of which `may_purge` says that the
    /// tombstone is older than every live snapshot and superversion (I5). Returns how many. `may_purge` is called under
    /// a latch: it must not wait or fail.
    pub fn sweep_tombstones(
        &self,
        may_purge: impl Fn(L0Id) -> bool,
        cursor: &mut SweepCursor,
        max: usize,
        budget: &Budget,
    ) -> usize {
        self.sweep(|entry| entry.tombstone && may_purge(entry.l0), cursor, max, budget)
    }

    fn sweep(
        &self,
        wanted: impl Fn(IndexEntry) -> bool,
        cursor: &mut SweepCursor,
        max: usize,
        budget: &Budget,
    ) -> usize {
        let (mut removed, mut left) = (0, max);
        while left > 0 && !cursor.done {
            let (looked, taken) = self.sweep_leaf(&wanted, cursor, left, budget);
            removed += taken;
            left -= looked.clamp(1, left);
        }
        if removed > 0 && self.wants_filter() {
            self.keep_filter(budget);
        }
        if removed > 0 {
            self.keep_guide(false, budget);
        }
        removed
    }

    /// How many entries of the leaf under the cursor were looked at, and how many removed.
    fn sweep_leaf(
        &self,
        wanted: &impl Fn(IndexEntry) -> bool,
        cursor: &mut SweepCursor,
        max: usize,
        budget: &Budget,
    ) -> (usize, usize) {
        let _held = self.latch.write();
        let spot = if cursor.started { self.spot_of(&cursor.from) } else { Spot::first(self) };
        let Some(leaf) = spot.leaf else {
            cursor.done = true;
            return (0, 0);
        };
        let start = if cursor.started { leaf.find(&cursor.from).unwrap_or_else(|at| at) } else { 0 };
        let end = leaf.count().min(start.saturating_add(max));
        let mut removed = 0;
        for at in start..end {
            if IndexEntry::decode(leaf.value(at).load(Ordering::Relaxed)).is_some_and(wanted) {
                self.kill(leaf, at);
                removed += 1;
            }
        }
        cursor.started = true;
        match leaf.high() {
            _ if end < leaf.count() => leaf.key(end, &mut cursor.from),
            Some(high) => high.clone_into(&mut cursor.from),
            None => cursor.done = true,
        }
        if leaf.dead() > 0 {
            self.shrink(&spot, budget);
        }
        (end - start, removed)
    }
}
