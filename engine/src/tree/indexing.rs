//! The key index and the runs: which runs it covers, building it, and keeping it within its budget.
//!
//! `indexed_from` parts the runs: the index names every key of the runs from there on, and may name some of older ones.
//! It moves down while the index is being built, newest run first, and up when the index may not grow: then the oldest
//! runs leave it, and are served by filter and fence. A superversion with the new boundary is installed before the
//! first entry goes (and older superversions are told), and after the last one came.
//!
//! Of the runs that have left as many entries are kept as there is room for, and they are right (see [`super::strays`] for when not): a key
//! that has one is known to be there.
//!
//! Keeps I3 to I5, I14.

use crate::error::Result;
use crate::host::{Budget, Horizon, Host, Work};
use crate::key_index::{IndexEntry, SweepCursor};
use crate::manifest::RunDesc;
use crate::mutation::{on, Mutation::*, Pause};
use crate::run::Scratch;
use crate::tree::read::Pages;
use crate::tree::shared::Shared;
use crate::tree::strays::Coming;
use crate::tree::version::SuperVersion;
use crate::tree::Tree;
use crate::types::{L0Id, Writer};
use std::ops::Range;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

/// This part of the index, or a little more, goes at once when there is no room.
const EVICTED_PART: u64 = if cfg!(test) { 24 } else { 8 };
/// While a table is written to, a run comes into the index only if it leaves room for such a part of it to what will be flushed.
const LEFT_TO_WRITERS: u64 = EVICTED_PART;
/// Entries looked at in one go of a sweep.
const SWEEP: usize = if cfg!(test) { 16 } else { 1024 };

impl<H: Host> Tree<'_, H> {
    /// Indexes the keys of one more run, newest first. False: the index is complete, or at its budget. The caller holds
    /// the maintenance lock (no merge may run meanwhile).
    pub fn rebuild_index(&self) -> Result<bool> {
        self.catch_up()?;
        let budget = &self.host.budgets().key_index;
        let view = self.pin();
        if self.shared.run_to_index(&view, budget).is_none() {
            return Ok(false);
        }
        let purged = self.shared.purged.load(SeqCst);
        if purged > 0 && !on(I5RebuildForgetsPurges) {
            // An older version must not get the entry of a tombstone that was purged: these runs come once more.
            self.leave_index(L0Id(purged + 1))?;
            self.shared.purged.store(0, SeqCst);
        }
        if let Some(strays) = self.shared.strays.below() {
            // Scans that began before they came may be guided by them.
            self.leave_index(view.indexed_from)?;
            self.sweep_below(view.indexed_from, u64::MAX);
            self.shared.strays.have_gone(strays);
        }
        drop(view);
        let coming = Coming::begin(&self.shared.strays);
        let (evictions, view) = self.before_claim();
        let at = if on(I14OldestFirst) { view.runs.len() - 1 } else { view.first_unindexed(view.indexed_from) };
        let Some(desc) = view.runs.get(at).filter(|_| !is_leaving(evictions)) else { return Ok(false) };
        let room = room_in(budget);
        self.shared.coarse_before.fetch_max(view.number, SeqCst);
        // Slices have no L0 ids of their own: they come with the run before them.
        let slices = view.runs.iter().skip(at + 1).take_while(|run| run.is_slice());
        for (at, run) in (at..).zip(std::iter::once(desc).chain(slices)) {
            if !self.index_run(run, view.newest_l0(at), budget)? {
                self.shared.misfit.set(desc.last_l0, room);
                return Ok(false);
            }
        }
        drop(coming);
        let (from, mut claimed) = (desc.first_l0, true);
        self.set_indexed_from(|now| {
            // A flush that found the index full has made room meanwhile: what was put in may be gone.
            claimed = self.shared.evictions.load(SeqCst) == evictions || on(RebuildClaimsEvicted);
            match claimed {
                true => now.min(from),
                false => now,
            }
        })?;
        if self.shared.coverage().complete {
            self.shared.index.all_keys_fit();
        }
        self.shared.index.settle(budget);
        self.pause(Pause::Rebuilt);
        Ok(claimed)
    }

    /// The runs as they are, and the count of evictions that belongs to them: whoever changes both does so under the latch.
    fn before_claim(&self) -> (u64, SuperVersion) {
        let (evictions, view) = {
            let _installing = self.shared.versions.lock();
            (self.shared.evictions.load(SeqCst), self.pin())
        };
        (evictions, view.of_runs())
    }

    /// Puts the keys of a run into the index by this L0 id, unless they are there. False: they have no room.
    fn index_run(&self, desc: &RunDesc, l0: L0Id, budget: &Budget) -> Result<bool> {
        let (run, pages) = (desc.run(), Pages(&self.host));
        let (mut scratch, mut keys) = (Scratch::default(), PageKeys::default());
        let pieces = if desc.shape.key_pages > 0 { desc.shape.key_pages } else { desc.shape.data_pages };
        let total = u64::from(pieces);
        self.host.at_work(Work::Index, 0, total);
        let mut next = Some(0);
        while let Some(page) = next {
            self.pause(Pause::Rebuilding);
            keys.clear();
            next = run.for_each_key(&pages, page, &mut scratch, |key, tombstone| {
                if let Some(seen) = on(I3RebuildReplaces).then(|| self.shared.index.get(key)).flatten() {
                    self.shared.index.replace_if(key, seen, IndexEntry { l0, tombstone });
                }
                keys.push(key, tombstone);
                Ok(())
            })?;
            if self.shared.index.raise_first(&keys.entries(l0), budget).is_err() {
                return Ok(false);
            }
            self.host.merging(self)?;
            self.host.at_work(Work::Index, u64::from(page) + 1, total);
        }
        Ok(true)
    }

    /// Makes room in the index: what it still names of runs that it does not cover goes first, then the oldest runs that
    /// it covers. `None`: not even the run being flushed can be covered.
    pub(super) fn evict_oldest(&self, floor: L0Id, flushing: L0Id) -> Result<Option<L0Id>> {
        let leaving = Leaving::begin(self.shared, flushing);
        // A rebuild may have come further down than the floor known here: nothing goes that is still covered.
        self.leave_index(floor)?;
        self.pause(Pause::Evicting);
        // With random keys each run has some in every leaf: many are cheaper to take out together.
        let enough = self.shared.index.rows() / EVICTED_PART;
        let strays = self.shared.strays.below().filter(|_| leaving.alone);
        let gone = self.sweep_below(floor, if strays.is_some() { u64::MAX } else { enough });
        strays.into_iter().for_each(|below| self.shared.strays.have_gone(below));
        if gone > 0 {
            return Ok(Some(floor));
        }
        let view = self.pin();
        let (mut gone, mut keys) = (None, 0);
        for run in view.runs.iter().rev().filter(|r| r.first_l0 >= floor && r.last_l0 < flushing && !r.is_slice()) {
            gone = Some(run.last_l0);
            keys += run.shape.keys;
            if keys >= enough {
                break;
            }
        }
        let higher = L0Id(gone.unwrap_or(flushing).0 + 1);
        self.leave_index(higher)?;
        self.pause(Pause::Evicting);
        // What there is room for may stay, but not where this run is not covered either.
        self.sweep_below(higher, if gone.is_some() { enough } else { u64::MAX });
        self.pause(Pause::Evicted);
        Ok(gone.map(|_| higher))
    }

    /// Takes everything out of the index: it is left alone ([`super::worth`]), and the run being flushed is not covered either.
    pub(super) fn empty_index(&self, flushing: L0Id) -> Result<()> {
        if !self.shared.index.is_empty() {
            let _leaving = Leaving::begin(self.shared, flushing);
            let higher = L0Id(flushing.0 + 1);
            self.leave_index(higher)?;
            self.pause(Pause::Evicting);
            self.sweep_below(higher, u64::MAX);
            self.shared.index.settle(&self.host.budgets().key_index);
            self.pause(Pause::Evicted);
        }
        Ok(())
    }

    /// The runs that begin below `higher` are not covered any more; readers that have pinned an older superversion learn
    /// of it, too, before the first entry goes.
    fn leave_index(&self, higher: L0Id) -> Result<()> {
        let number = self.set_indexed_from(|now| {
            self.shared.evictions.fetch_add(EVICTION, SeqCst);
            now.max(higher)
        })?;
        if on(I4EvictionNotTold) {
            return Ok(());
        }
        self.shared.evicted_below.fetch_max(higher.0, SeqCst);
        self.shared.evicted_at.fetch_max(number, SeqCst);
        Ok(())
    }

    /// Takes out what is named below this L0 id, or as many entries as are `enough`. Returns how many.
    fn sweep_below(&self, floor: L0Id, enough: u64) -> u64 {
        let (mut sweep, mut gone) = (SweepCursor::new(), 0);
        while !sweep.is_done() && gone < enough.max(1) {
            let removed = self.shared.index.sweep_below(floor, &mut sweep, SWEEP, &self.host.budgets().key_index);
            gone += removed as u64;
        }
        if gone > 0 {
            self.shared.index.keys_had_to_go();
        }
        gone
    }

    fn set_indexed_from(&self, change: impl FnOnce(L0Id) -> L0Id) -> Result<u64> {
        self.shared.install(|current| {
            let mut parts = current.edit();
            parts.indexed_from = change(parts.indexed_from);
            SuperVersion::new(current.number + 1, parts)
        })
    }

    /// Removes the entries of keys whose newest version is a tombstone that everybody sees (I5). One bounded piece of
    /// the sweep; returns how many went. `None`: none may go while the index is incomplete, for an older version may stand in a
    /// run that is searched by its filter; the sweep can go on when it is complete. The caller holds the maintenance lock.
    pub fn sweep_tombstones(&self, sweep: &mut SweepCursor) -> Option<usize> {
        self.catch_up().ok()?;
        let view = self.pin();
        if view.first_unindexed(view.indexed_from) < view.runs.len() {
            return None;
        }
        let oldest = self.host.horizon().oldest();
        // Found out before: the sweep asks under an epoch pin, where nothing may wait.
        let seen = self.shared.seen_by_all(&view);
        let purgeable = |l0: L0Id| {
            let finished = |run: &RunDesc| is_finished(run, oldest) || on(I5PurgeBeforeSeen);
            l0 <= seen && view.runs_of(l0).is_some_and(|mut runs| runs.all(finished))
        };
        let ends = view.runs.iter().map(|run| run.last_l0.min(seen));
        let newest = ends.filter(|l0| purgeable(*l0)).max().unwrap_or_default();
        self.shared.purged.fetch_max(newest.0, SeqCst);
        Some(self.shared.index.sweep_tombstones(purgeable, sweep, SWEEP, &self.host.budgets().key_index))
    }
}

/// What one eviction more is in the count of them.
pub(super) const EVICTION: u64 = 2;

/// Whether entries were leaving the index when this was the count of evictions.
fn is_leaving(evictions: u64) -> bool {
    !evictions.is_multiple_of(EVICTION)
}

/// As long as it lives, entries leave the index, and the count of evictions says so. They may be those of a run that somebody is putting
/// in just now, who must not take it for covered: neither if he has begun before nor if he begins meanwhile.
struct Leaving<'s> {
    evictions: &'s AtomicU64,
    /// No run comes into the index meanwhile.
    alone: bool,
}

impl<'s> Leaving<'s> {
    /// `flushing`: whoever flushes this does so alone.
    fn begin<H: Host>(shared: &'s Shared<H>, flushing: L0Id) -> Leaving<'s> {
        if !on(EvictionNotAwaited) {
            shared.evictions.fetch_or(1, SeqCst);
        }
        // After that: a run of which this does not know yet does not come in.
        let alone = !shared.strays.come_beside_a_run(flushing);
        Leaving { evictions: &shared.evictions, alone }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if !on(EvictionNotAwaited) {
            self.evictions.fetch_add(1, SeqCst);
        }
    }
}

/// Everybody sees all that is in the run.
fn is_finished(run: &RunDesc, oldest: Writer) -> bool {
    run.settled && run.shape.max_writer < oldest
}

impl<H: Host> Shared<H> {
    /// Whether a sweep of tombstones would find some that the one before could not take. `oldest`: committed writers below it are
    /// visible to all.
    pub fn sweep_due(&self, view: &SuperVersion, oldest: Writer) -> bool {
        let purged = self.purged.load(Relaxed);
        let finds = |run: &RunDesc| run.shape.tombstones > 0 && is_finished(run, oldest);
        let found = view.runs.iter().enumerate().filter(|(_, run)| finds(run)).map(|(at, _)| view.newest_l0(at));
        let first = found.filter(|l0| l0.0 > purged).min();
        let complete = view.first_unindexed(view.indexed_from) == view.runs.len();
        complete && first.is_some_and(|l0| l0 <= self.seen_by_all(view))
    }

    /// The newest generation that every pinned superversion finds in a run. Superversions pinned later are no older.
    fn seen_by_all(&self, view: &SuperVersion) -> L0Id {
        let versions = self.versions.lock();
        let pinned = versions.retired.iter().filter(|v| v.is_pinned());
        pinned.map(|v| v.flushed).fold(view.flushed, L0Id::min)
    }

    /// Place in the superversion's runs of the one that the index is to cover next. `None`: it covers all of them, has no room for that one,
    /// or is left alone.
    pub fn run_to_index(&self, view: &SuperVersion, budget: &Budget) -> Option<usize> {
        let at = view.first_unindexed(view.indexed_from);
        let desc = view.runs.get(at).filter(|_| !self.index_is_left_alone())?;
        let room = room_in(budget);
        let fits = self.at_rest.load(Relaxed) || self.leaves_room(view, at, room);
        (!budget.is_full() && fits && !self.misfit.still(desc.last_l0, room)).then_some(at)
    }

    /// Whether the keys of the run at this place would leave some room to what is flushed next, which would take them out again otherwise.
    fn leaves_room(&self, view: &SuperVersion, at: usize, room: u64) -> bool {
        let keys = |runs: Range<usize>| view.runs.get(runs).unwrap_or_default().iter().map(|run| run.shape.keys).sum();
        // It may have been made of runs that were covered, and then many of its keys are there.
        let there = (self.index.len() as u64).saturating_sub(keys(0..at));
        let missing = u64::saturating_sub(keys(at..at + 1), there);
        let more = self.index.bytes_for(missing);
        more == 0 || more + (self.index.bytes() + more) / LEFT_TO_WRITERS <= room
    }
}

/// Bytes that key indexes may still take.
fn room_in(budget: &Budget) -> u64 {
    let left = budget.limit.load(Relaxed).saturating_sub(budget.used.load(Relaxed));
    left.min(loosekv_shm::heap::growth_left() as u64)
}

/// The run whose keys found no room in the index when it was last tried, and the room that there was: flushes take what was
/// indexed of it out again, and nothing is gained by trying the same once more.
#[derive(Default)]
pub struct Misfit {
    /// Its newest L0 id, and one; 0: none.
    run: AtomicU64,
    room: AtomicU64,
}

impl Misfit {
    fn set(&self, run: L0Id, room: u64) {
        self.room.store(room, Relaxed);
        self.run.store(run.0 + 1, Relaxed);
    }

    /// Whether it is this run, and there is hardly more room than there was.
    fn still(&self, run: L0Id, room: u64) -> bool {
        let had = self.room.load(Relaxed);
        self.run.load(Relaxed) == run.0 + 1 && room <= had.saturating_add(had / 8)
    }
}

/// The keys of one page, and whether each is a tombstone.
#[derive(Default)]
struct PageKeys {
    bytes: Vec<u8>,
    /// Where each key ends in `bytes`.
    keys: Vec<(usize, bool)>,
}

impl PageKeys {
    fn clear(&mut self) {
        self.bytes.clear();
        self.keys.clear();
    }

    fn push(&mut self, key: &[u8], tombstone: bool) {
        self.bytes.extend_from_slice(key);
        self.keys.push((self.bytes.len(), tombstone));
    }

    fn entries(&self, l0: L0Id) -> Vec<(&[u8], IndexEntry)> {
        let mut start = 0;
        let entry = |&(end, tombstone): &(usize, bool)| {
            let key = self.bytes.get(start..end).unwrap_or_default();
            start = end;
            (key, IndexEntry { l0, tombstone })
        };
        self.keys.iter().map(entry).collect()
    }
}
