//! Removing entries all over the key index, a bounded piece at a time.

use super::{IndexEntry, IndexKey, KeyIndex, Probe};
use crate::host::Budget;
use crate::types::{L0Id, MAX_KEY};
use loosekv_shm::epoch;
use loosekv_shm::scope::Scope;
use std::ops::Bound;
use std::sync::atomic::Ordering;

/// Entries looked at under one pin.
const LOOKS: usize = 256;
/// Entries removed under one pin: their garbage fits what is reserved for it.
const REMOVALS: usize = 32;

/// Where a sweep goes on. Keys that come in behind it are not seen by this sweep.
#[derive(Clone, Debug)]
pub struct SweepCursor {
    /// The next key to look at.
    from: Vec<u8>,
    started: bool,
    done: bool,
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

impl KeyIndex {
    /// Looks at up to `max` entries and removes those of runs below `floor`, which are not indexed any more. Returns
    /// how many.
    pub fn sweep_below(&self, floor: L0Id, cursor: &mut SweepCursor, max: usize, budget: &Budget) -> usize {
        self.sweep(|entry| entry.l0 < floor, cursor, max, budget)
    }

    /// Looks at up to `max` entries and removes those of tombstones in runs of which `may_purge` says that the
    /// tombstone is older than every live snapshot and superversion (I5). Returns how many. `may_purge` is called under
    /// a pin: it must not allocate or wait.
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
        let mut removed = 0;
        let mut left = max;
        while left > 0 && !cursor.done && epoch::NEEDS.reserve_emergency().is_ok() {
            let (looked, taken) = self.sweep_piece(&wanted, cursor, left.min(LOOKS), budget);
            removed += taken;
            left -= looked.clamp(1, left);
        }
        removed
    }

    /// One pin's worth: how many entries were looked at, and how many removed.
    fn sweep_piece(
        &self,
        wanted: &impl Fn(IndexEntry) -> bool,
        cursor: &mut SweepCursor,
        max: usize,
        budget: &Budget,
    ) -> (usize, usize) {
        // Outside of the scope: the memory is this process's own.
        cursor.from.reserve(MAX_KEY.saturating_sub(cursor.from.len()));
        let (mut looked, mut removed) = (0, 0);
        let _scope = Scope::enter();
        let pin = epoch::pin();
        let mut next = {
            let probe = Probe::new(&cursor.from);
            let bound: Bound<&IndexKey> = if cursor.started { Bound::Included(&probe) } else { Bound::Unbounded };
            self.list.lower_bound(bound, &pin)
        };
        cursor.started = true;
        while let Some(found) = next {
            if looked == max || removed == REMOVALS {
                cursor.from.clear();
                let copied = found.key().append_to(&mut cursor.from);
                debug_assert!(copied, "there is space for any key");
                return (looked, removed);
            }
            looked += 1;
            next = found.next();
            // Looked at first without writing: most entries stay.
            let value = found.value();
            let promising = IndexEntry::decode(value.load(Ordering::Acquire)).is_some_and(wanted);
            if promising && self.kill(value, found.key().len(), budget, wanted) {
                found.remove();
                removed += 1;
            }
        }
        cursor.done = true;
        (looked, removed)
    }
}
