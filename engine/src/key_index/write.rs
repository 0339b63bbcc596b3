//! What writers do, under the latch: new keys, and what is left where keys were removed.
//!
//! ```text
//!   insert   [a b c]            -> [a b' b c]
//!   split    [a b c d] high z   -> [c d] high z enters the directory under "c", then [a b] high c replaces the old leaf
//!   merge    [a] high c, [d]    -> [a d] high z replaces the left leaf, then "c" leaves the directory
//! ```
//!
//! No process but the one that holds the latch changes the directory, replaces a leaf, or stores a value. So what it
//! has found stays as it is and where it is until it changes that itself, pinned or not; it pins where the directory wants it.

use super::build::{Draft, For, Plan, Sizes};
use super::key::{IndexKey, Probe, INLINE};
use super::leaf::{self, Leaf, DEAD, MOST_KEYS, MOST_WEIGHT};
use super::{Ahead, Full, IndexEntry, KeyIndex, LeafSlot};
use crate::host::Budget;
use crate::mutation::{on, Mutation::*};
use crate::types::MAX_KEY;
use loosekv_shm::scope::Scope;
use loosekv_shm::{epoch, Needs, RawLatch};
use std::ops::{Bound, ControlFlow};
use std::ptr;
use std::sync::atomic::Ordering;

/// A node of the directory without its tower: value, key, reference count and height.
const NODE_BASE: usize = 8 + std::mem::size_of::<IndexKey>() + 8;
const TALLEST: usize = 32;

/// What the directory may take for a node, and the garbage that is put aside meanwhile.
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

/// Leaves written in one hold of the latch.
const LEAVES_A_HOLD: usize = 16;
/// New keys that are put into one leaf at once.
const NEW_KEYS: usize = 2 * MOST_KEYS;
/// Keys whose place in the filter is fetched ahead.
const KEYS_AHEAD: usize = 32;
/// Keys looked at in one go.
const BATCH: usize = 1024;

/// Where the keys of one leaf are, for the holder of the latch.
pub(super) struct Spot<'i> {
    pub slot: &'i LeafSlot,
    /// The leaf's key in the directory; the first one has none.
    pub low: Option<&'i IndexKey>,
    pub leaf: Option<Leaf<'i>>,
}

impl<'i> Spot<'i> {
    pub(super) fn find(&self, key: &[u8]) -> Option<(Leaf<'i>, usize)> {
        let leaf = self.leaf?;
        leaf.find(key).ok().map(|at| (leaf, at))
    }

    /// The first leaf.
    pub(super) fn first<L: RawLatch>(index: &'i KeyIndex<L>) -> Spot<'i> {
        // SAFETY: the latch is held.
        Spot { slot: &index.first, low: None, leaf: unsafe { index.first.load() } }
    }

    fn high(&self) -> Option<&'i [u8]> {
        self.leaf.and_then(Leaf::high)
    }

    fn alive(&self) -> usize {
        self.leaf.map_or(0, |leaf| leaf.count() - leaf.dead())
    }
}

/// Why a step did nothing: how many keys of the batch were there already, and how many new ones it was about to add.
struct Refused {
    before: usize,
    new: usize,
}

impl<L: RawLatch> KeyIndex<L> {
    /// Where a key belongs. The latch is held.
    pub(super) fn spot_of(&self, key: &[u8]) -> Spot<'_> {
        let spot = self.spot(Bound::Included(&Probe::new(key)));
        debug_assert!(spot.leaf.is_none_or(|leaf| leaf.covers(key)), "the directory names the wrong leaf");
        spot
    }

    /// The last leaf whose low key is within the bound.
    fn spot(&self, bound: Bound<&IndexKey>) -> Spot<'_> {
        let _scope = Scope::enter();
        let pin = epoch::pin();
        let (slot, low) = match self.directory.upper_bound(bound, &pin) {
            // SAFETY: a node of the directory stays until a holder of the latch has removed it, and that are we; where
            // we do, the spot is not used any more.
            Some(entry) => unsafe { (&*ptr::from_ref(entry.value()), Some(&*ptr::from_ref::<IndexKey>(entry.key()))) },
            None => (&self.first, None),
        };
        // SAFETY: the latch is held.
        Spot { slot, low, leaf: unsafe { slot.load() } }
    }

    /// Inserts keys, which ascend, or changes the entries that they have. Returns how many were inserted.
    pub(super) fn put(
        &self,
        batch: &[(&[u8], IndexEntry)],
        budget: &Budget,
        change: impl Fn(IndexEntry, IndexEntry) -> IndexEntry,
        ahead: Ahead,
    ) -> Result<usize, Full> {
        debug_assert!(batch.is_sorted_by(|a, b| a.0 < b.0), "the keys of a batch ascend");
        let (mut done, mut touched, mut inserted, mut plan) = (0, 0, 0, Plan::before(ahead));
        while done < batch.len() {
            let held = self.latch.write();
            for _ in 0..LEAVES_A_HOLD {
                let Some(rest) = batch.get(done..).filter(|rest| !rest.is_empty()) else { break };
                let soon = touched.max(done)..batch.len().min(done + KEYS_AHEAD);
                batch.get(soon).unwrap_or_default().iter().for_each(|(key, _)| self.filters.touch(key));
                touched = done + KEYS_AHEAD;
                let mut most = NEW_KEYS;
                let step = loop {
                    match self.put_into_leaf(rest, most, budget, &change, &mut plan, &mut inserted) {
                        Ok(step) => break step,
                        Err(refused) if refused.new > 1 => most = refused.new / 2,
                        Err(refused) if refused.new == 1 && self.make_room(ahead, budget) => {}
                        Err(refused) => {
                            let limit = budget.limit.load(Ordering::Relaxed);
                            return Err(Full { limit, done: done + refused.before });
                        }
                    }
                };
                done += step;
            }
            let (filter_wanting, guide_wanting) = (self.filters.wanting(self.len() as u64), self.wants_guide());
            drop(held);
            if filter_wanting {
                self.keep_filter(budget);
            }
            if guide_wanting {
                self.keep_guide(false, budget);
            }
        }
        Ok(inserted)
    }

    /// Keys need the room that the filter and the guide have. False: there was none to give. The latch is held.
    fn make_room(&self, ahead: Ahead, budget: &Budget) -> bool {
        // A run that comes in may be the last one that the index lacks.
        if self.filters.stay() && ahead == Ahead::Nothing {
            return false;
        }
        let before = self.bytes();
        self.give_up_filters(budget);
        self.give_up_guide(budget);
        self.bytes() < before
    }

    /// Puts the first keys of the batch into the leaf where they belong, up to `most` new ones; returns how many keys
    /// that were.
    fn put_into_leaf<'p>(
        &'p self,
        batch: &[(&'p [u8], IndexEntry)],
        most: usize,
        budget: &Budget,
        change: impl Fn(IndexEntry, IndexEntry) -> IndexEntry,
        plan: &mut Plan<'p>,
        inserted: &mut usize,
    ) -> Result<usize, Refused> {
        let Some((first, _)) = batch.first() else { return Ok(0) };
        let spot = self.spot_of(first);
        let count = spot.leaf.map_or(0, Leaf::count);
        plan.clear();
        let (mut taken, mut at, mut new, mut before, mut sizes) = (0, 0, 0, 0, Sizes::Many);
        let mut tombstones = 0;
        for (key, entry) in batch.iter().take(BATCH) {
            assert!(key.len() <= MAX_KEY, "a key of {} bytes", key.len());
            if taken > 0 && spot.leaf.is_some_and(|leaf| !leaf.covers(key)) {
                break;
            }
            match spot.leaf.map_or(Err(0), |leaf| leaf.find(key).map(|at| (leaf, at))) {
                Ok((leaf, at)) => match self.change(leaf, at, key, *entry, &change) {
                    Some(revived) => *inserted += usize::from(revived),
                    None if new > 0 => break,
                    None => return Err(Refused { before: taken, new }),
                },
                Err(_) if new == most => break,
                Err(place) => {
                    if new == 0 {
                        before = taken;
                        if place == count && spot.high().is_none() && plan.ahead == Ahead::Nothing {
                            sizes = Sizes::Full;
                        }
                    }
                    let Some(value) = entry.encode() else {
                        if new > 0 {
                            break;
                        }
                        return Err(Refused { before, new });
                    };
                    if let Some(leaf) = spot.leaf {
                        plan.push_old(leaf, at, place);
                    }
                    self.filters.tell(key);
                    plan.push_new(key, value);
                    tombstones += u64::from(entry.tombstone);
                    (at, new) = (place, new + 1);
                }
            }
            taken += 1;
        }
        if new == 0 {
            return Ok(taken);
        }
        if let Some(leaf) = spot.leaf {
            plan.push_old(leaf, at, count);
        }
        self.install(&spot, plan, sizes, budget).ok_or(Refused { before, new })?;
        self.keys.fetch_add(new as u64, Ordering::Release);
        self.tombstones.fetch_add(tombstones, Ordering::Release);
        *inserted += new;
        Ok(taken)
    }

    /// Changes a value in place; tells whether the key was dead. `None`: there is no value for this entry.
    fn change(
        &self,
        leaf: Leaf<'_>,
        at: usize,
        key: &[u8],
        new: IndexEntry,
        change: impl Fn(IndexEntry, IndexEntry) -> IndexEntry,
    ) -> Option<bool> {
        let value = leaf.value(at);
        let now = IndexEntry::decode(value.load(Ordering::Relaxed));
        let next = now.map_or(new, |now| change(now, new)).encode()?;
        if now.is_none() && !on(RevivedKeyNotTold) {
            self.filters.tell(key);
        }
        value.store(next, Ordering::Release);
        self.count_tombstone(now, IndexEntry::decode(next));
        if now.is_none() {
            leaf.set_dead(leaf.dead() - 1);
            self.keys.fetch_add(1, Ordering::Release);
        }
        Some(now.is_none())
    }

    /// The entry of a key has changed; `None`: it is dead.
    pub(super) fn count_tombstone(&self, before: Option<IndexEntry>, after: Option<IndexEntry>) {
        let tombstone = |entry: Option<IndexEntry>| entry.is_some_and(|entry| entry.tombstone);
        match (tombstone(before), tombstone(after)) {
            (false, true) => self.tombstones.fetch_add(1, Ordering::Release),
            (true, false) => self.tombstones.fetch_sub(1, Ordering::Release),
            _ => return,
        };
    }

    /// Marks a key dead that is alive.
    pub(super) fn kill(&self, leaf: Leaf<'_>, at: usize) {
        let value = leaf.value(at);
        self.count_tombstone(IndexEntry::decode(value.load(Ordering::Relaxed)), None);
        value.store(DEAD, Ordering::Release);
        leaf.set_dead(leaf.dead() + 1);
        self.keys.fetch_sub(1, Ordering::Release);
    }

    /// Makes the leaves of a plan that adds keys, and puts them in the place of the old one. `None`: there is no room,
    /// or they are too many; nothing was changed.
    fn install(&self, spot: &Spot<'_>, plan: &mut Plan<'_>, sizes: Sizes, budget: &Budget) -> Option<()> {
        let drafts = plan.draft_any(spot.high(), sizes, For::Growth).ok()??;
        let new: u64 = drafts.iter().map(size).sum();
        let old = spot.leaf.map_or(0, |leaf| leaf.size() as u64);
        let used = budget.used.load(Ordering::Relaxed);
        if new > old && used.saturating_add(new - old) > budget.limit.load(Ordering::Relaxed) {
            return None;
        }
        needs_of(&drafts).reserve_growth().ok()?;
        self.publish(spot, drafts);
        self.account(budget, new, old);
        Some(())
    }

    /// The entries of the other leaves first, from the right to the left, then the leaf in place: whoever finds its
    /// smaller high key finds them, too. Without drafts the place is empty then.
    fn publish(&self, spot: &Spot<'_>, drafts: Vec<Draft>) {
        let mut in_place = LeafSlot::none();
        let _scope = Scope::enter();
        let pin = epoch::pin();
        for draft in drafts.into_iter().rev() {
            let slot = draft.leaf.into_slot();
            match draft.key {
                // It has no Drop.
                Some(key) => {
                    self.directory.get_or_insert(key, slot, &pin).release(&pin);
                    self.guides.count_new();
                }
                None => in_place = slot,
            }
        }
        if let Some(old) = spot.slot.swap(in_place.take()) {
            // SAFETY: nobody who pins from now on finds it; it is in the heap, and told by one word.
            unsafe { pin.defer_unchecked(move || leaf::leave(old)) };
        }
    }

    pub(super) fn account(&self, budget: &Budget, more: u64, less: u64) {
        for of in [&self.bytes, &budget.used] {
            of.fetch_add(more, Ordering::Relaxed);
            of.fetch_sub(less, Ordering::Relaxed);
        }
    }

    /// Gives back what the dead keys of a leaf take, and joins it to its left neighbour if it has become small. Where memory is
    /// missing for that, or nothing would be gained, all stays as it is.
    pub(super) fn shrink(&self, spot: &Spot<'_>, budget: &Budget) {
        let Some(leaf) = spot.leaf else { return };
        if spot.alive() <= MOST_KEYS / 4 && self.join_left(spot, budget) == ControlFlow::Break(()) {
            return;
        }
        if leaf.dead() == 0 {
            return;
        }
        let mut plan = Plan::before(Ahead::Nothing);
        plan.push_old(leaf, 0, leaf.count());
        let mut new = 0;
        let mut drafts = Vec::new();
        // An index without keys has no leaf.
        if plan.keys() > 0 || leaf.high().is_some() || spot.low.is_some() {
            // As long as anything else will do nothing is taken that growth may not have: it would be missing elsewhere for long.
            let made = plan.draft_any(leaf.high(), Sizes::Many, For::AtHand);
            let Ok(Some(made)) = made.or_else(|_| plan.draft(leaf.high(), Sizes::Many, For::Freeing)) else { return };
            drafts = made;
            new = drafts.iter().map(size).sum();
        }
        if needs_of(&drafts).reserve_emergency().is_err() {
            return;
        }
        self.publish(spot, drafts);
        self.account(budget, new, leaf.size() as u64);
    }

    /// Adds a small leaf's keys to its left neighbour, if that is small enough; the entry leaves the directory. Break: done.
    fn join_left(&self, spot: &Spot<'_>, budget: &Budget) -> ControlFlow<()> {
        let (Some(low), Some(leaf)) = (spot.low, spot.leaf) else { return ControlFlow::Continue(()) };
        let left = self.spot(Bound::Excluded(low));
        let Some(neighbour) = left.leaf else { return ControlFlow::Continue(()) };
        let mut plan = Plan::before(Ahead::Nothing);
        plan.push_old(neighbour, 0, neighbour.count());
        plan.push_old(leaf, 0, leaf.count());
        let empty = spot.alive() == 0;
        let fits = plan.keys() <= MOST_KEYS / 2 && plan.weight() <= MOST_WEIGHT / 2 || empty && plan.is_small();
        if !fits {
            return ControlFlow::Continue(());
        }
        let nothing = plan.keys() == 0 && left.low.is_none() && leaf.high().is_none();
        let mut drafts = Vec::new();
        if !nothing {
            let mut draft = |purpose| plan.draft(leaf.high(), Sizes::Many, purpose);
            let Ok(Some(made)) = draft(For::AtHand).or_else(|_| draft(For::Freeing)) else {
                return ControlFlow::Continue(());
            };
            drafts = made;
        }
        let new = drafts.iter().map(size).sum();
        let old = (neighbour.size() + leaf.size()) as u64 + node_size(low.len());
        if new > old || NODE_NEEDS.reserve_emergency().is_err() {
            return ControlFlow::Continue(());
        }
        self.publish(&left, drafts);
        let _scope = Scope::enter();
        let pin = epoch::pin();
        if let Some(entry) = self.directory.get(low, &pin) {
            self.guides.forget(low, spot.slot);
            // Its leaf goes with the node.
            entry.remove();
            spot.slot.close();
        }
        self.account(budget, new, old);
        ControlFlow::Break(())
    }
}

/// What it takes to publish drafts in the place of a leaf.
fn needs_of(drafts: &[Draft]) -> Needs {
    if drafts.iter().any(|draft| draft.key.is_some()) {
        NODE_NEEDS
    } else {
        epoch::NEEDS
    }
}

/// What a draft adds to the budget.
fn size(draft: &Draft) -> u64 {
    draft.leaf.leaf().size() as u64 + if draft.key.is_some() { node_size(draft.key_len) } else { 0 }
}

/// What an entry of the directory takes: a node of mean height and the block of a long key.
pub(super) fn node_size(key_len: usize) -> u64 {
    let block = if key_len > INLINE { key_len.next_multiple_of(16) } else { 0 };
    (NODE_BASE + 2 * 8 + block) as u64
}
