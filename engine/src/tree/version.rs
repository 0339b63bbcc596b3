//! The superversion: the pinned unit of reading.
//!
//! A superversion never changes. Installing a new one makes the old one *retired*; it stays whole, and the extents that
//! it names stay untouched, until nobody has it pinned. Readers pin it first and read the key index second (I7).
//!
//! Pinning is a reference count, taken under an epoch pin: load the current one, count, look whether it is still the
//! current one. So a retired superversion whose count was seen as zero is never used again.

use crate::error::Result;
use crate::host::Host;
use crate::interleave::{AtomicPtr, AtomicU32};
use crate::manifest::RunDesc;
use crate::memtable::Memtable;
use crate::mutation::{on, Mutation::*};
use crate::run_map::RunMap;
use crate::tree::chain;
use crate::tree::shared::Owner;
use crate::types::L0Id;
use std::ops::{Deref, Range, RangeInclusive};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::Arc;

/// A memtable and what flushing it will take.
pub struct Generation {
    pub table: Memtable,
    /// Bytes of keys and bodies in the row log.
    pub logged: AtomicU64,
    /// Bytes of bodies in the value log to which its rows point, since it was loaded.
    pub apart: AtomicU64,
    /// How many rows more there are by what was written to it; `None`: nobody counted, for it comes from the log.
    pub balance: Option<AtomicI64>,
}

pub struct SuperVersion {
    /// Counts installs.
    pub number: u64,
    /// `None`: see [`SuperVersion::of_runs`].
    active: Option<Arc<Generation>>,
    /// Newest first.
    pub frozen: Vec<Arc<Generation>>,
    /// Newest first.
    pub runs: Vec<Arc<RunDesc>>,
    /// Intervals of the runs, oldest first (I1).
    pub map: RunMap,
    /// In so many runs at once a scan has to stand, at most.
    pub chains: usize,
    /// Places in `runs` of merges that were begun: runs that were cut, and the whole one in the end.
    begun: Vec<Range<usize>>,
    /// The newest generation that is not in a memtable any more.
    pub flushed: L0Id,
    /// Runs that begin below this are not (yet, or any more) indexed in full.
    pub indexed_from: L0Id,
    pins: AtomicU32,
}

/// What a superversion is made of.
pub struct Edit {
    pub active: Arc<Generation>,
    /// Newest first.
    pub frozen: Vec<Arc<Generation>>,
    /// Newest first.
    pub runs: Vec<Arc<RunDesc>>,
    pub flushed: L0Id,
    pub indexed_from: L0Id,
}

impl SuperVersion {
    pub fn new(number: u64, parts: Edit) -> Result<SuperVersion> {
        let Edit { active, frozen, runs, flushed, indexed_from } = parts;
        let runs = close_gaps(runs);
        let intervals: Vec<(L0Id, L0Id)> = runs.iter().rev().map(|r| (r.first_l0, r.last_l0)).collect();
        let map = RunMap::build(&intervals)?;
        let chains = chain::count(runs.iter().map(|run| &**run));
        let begun = begun(&runs);
        let (active, pins) = (Some(active), AtomicU32::new(0));
        Ok(SuperVersion { number, active, frozen, runs, map, chains, begun, flushed, indexed_from, pins })
    }

    /// Its parts, for making the next one. To be called in the shared heap's scope.
    pub fn edit(&self) -> Edit {
        Edit {
            active: self.active().clone(),
            frozen: self.frozen.clone(),
            runs: self.runs.clone(),
            flushed: self.flushed,
            indexed_from: self.indexed_from,
        }
    }

    /// What it says of the runs, for who works long on some of them and must not keep the memtables in memory meanwhile. It is this
    /// process's own, and pins nothing: the runs must stay for another reason, as they do for who holds the maintenance lock.
    pub fn of_runs(&self) -> SuperVersion {
        SuperVersion {
            number: self.number,
            active: None,
            frozen: Vec::new(),
            runs: self.runs.iter().map(|run| Arc::new((**run).clone())).collect(),
            map: self.map.clone(),
            chains: self.chains,
            begun: self.begun.clone(),
            flushed: self.flushed,
            indexed_from: self.indexed_from,
            pins: AtomicU32::new(0),
        }
    }

    /// The memtable that is being written to.
    #[inline]
    pub fn active(&self) -> &Arc<Generation> {
        match &self.active {
            Some(active) => active,
            None => unreachable!("who has only the runs looks at no memtable"),
        }
    }

    /// Memtables, newest first.
    pub fn memtables(&self) -> impl Iterator<Item = &Arc<Generation>> {
        self.active.iter().chain(&self.frozen)
    }

    /// Those of its memtables.
    pub fn generations(&self) -> RangeInclusive<L0Id> {
        self.oldest_generation()..=self.active().table.generation()
    }

    pub fn oldest_generation(&self) -> L0Id {
        self.frozen.last().unwrap_or(self.active()).table.generation()
    }

    /// Place in `runs` (newest first) of the run that holds `l0`.
    pub fn run_of(&self, l0: L0Id) -> Option<usize> {
        self.map.run_of(l0).map(|oldest_first| self.runs.len() - 1 - oldest_first)
    }

    /// Place in `runs` of the run that holds what `l0` held of this key.
    #[inline]
    pub fn run_with(&self, l0: L0Id, key: &[u8]) -> Option<usize> {
        let at = self.run_of(l0)?;
        if self.runs.get(at).is_some_and(|run| run.lacks(key)) && !on(CutNotFollowed) {
            return self.handed_on(at, key);
        }
        Some(at)
    }

    /// Who has what the run at this place handed on.
    #[cold]
    fn handed_on(&self, at: usize, key: &[u8]) -> Option<usize> {
        Some(at + not_lacking(self.runs.get(at..self.merge_of(at)?.end)?, key))
    }

    /// The L0 id by which the index is to name rows of the run at this place: its newest, or, for a slice, that of the newest run
    /// that was cut for it. In superversions of before, the way from there leads over all runs that had the slice's rows.
    pub fn newest_l0(&self, at: usize) -> L0Id {
        let is_slice = self.runs.get(at).is_some_and(|run| run.is_slice());
        let owner = self.merge_of(at).filter(|_| is_slice).map_or(at, |begun| begun.start);
        self.runs.get(owner).map_or(L0Id(0), |run| run.last_l0)
    }

    /// The runs that may hold what `l0` held: more than one where some were cut.
    pub fn runs_of(&self, l0: L0Id) -> Option<impl Iterator<Item = &RunDesc>> {
        let at = self.run_of(l0)?;
        let end = self.merge_of(at).filter(|_| !on(SliceNotAskedBeforePurge)).map_or(at + 1, |begun| begun.end);
        Some(self.runs.get(at..end)?.iter().map(|run| &**run))
    }

    /// The runs of the merge that was begun of this one, among others.
    pub fn merge_of(&self, at: usize) -> Option<&Range<usize>> {
        self.begun.iter().find(|begun| begun.contains(&at))
    }

    /// Place in `runs` of the newest one that begins below `indexed_from`.
    pub fn first_unindexed(&self, indexed_from: L0Id) -> usize {
        self.runs.partition_point(|r| r.first_l0 >= indexed_from)
    }

    pub fn is_pinned(&self) -> bool {
        self.pins.load(SeqCst) > 0 && !on(PinnedFreed)
    }

    /// Whether a reader of this superversion may look into what `owner` owned.
    pub fn names(&self, owner: Owner) -> bool {
        match owner {
            Owner::Run(pages) => self.runs.iter().flat_map(|run| &run.extents).any(|extent| extent.shares(&pages)),
            Owner::Log(generation) => self.memtables().any(|m| m.table.generation() == generation),
            Owner::Values(seq, upto) => {
                self.runs.iter().any(|r| r.uses(seq)) || self.memtables().any(|m| m.table.generation() <= upto)
            }
        }
    }
}

/// The first of these runs of a merge that does not lack the key. The inputs, which come first, are cut each at its own next key; of the
/// slices the newer one has the higher keys.
fn not_lacking(runs: &[Arc<RunDesc>], key: &[u8]) -> usize {
    let inputs = runs.iter().take_while(|run| !run.is_slice()).count();
    let lacking = runs.iter().take(inputs).take_while(|run| run.lacks(key)).count();
    let slices = runs.get(inputs..).filter(|_| lacking == inputs).unwrap_or_default();
    lacking + slices.partition_point(|run| run.lacks(key))
}

/// The merges that were begun: runs that were cut, and who the last of them hands on to.
fn begun(runs: &[Arc<RunDesc>]) -> Vec<Range<usize>> {
    let (mut begun, mut at) = (Vec::new(), 0);
    while let Some(skipped) = runs.iter().skip(at).position(|run| run.cut.is_some()) {
        let start = at + skipped;
        let cut = runs.iter().skip(start).take_while(|run| run.cut.is_some()).count();
        at = start + cut + 1;
        begun.push(start..at.min(runs.len()));
    }
    begun
}

/// As [`crate::manifest::close_gaps`], newest first.
fn close_gaps(mut runs: Vec<Arc<RunDesc>>) -> Vec<Arc<RunDesc>> {
    let mut next = L0Id(1);
    for run in runs.iter_mut().rev() {
        if run.first_l0 != next {
            let mut changed = (**run).clone();
            changed.begin_at(next);
            *run = Arc::new(changed);
        }
        next = L0Id(run.last_l0.0 + 1);
    }
    runs
}

/// The pointer to the current superversion.
pub struct Current(AtomicPtr<SuperVersion>);

impl Current {
    pub fn new(first: Box<SuperVersion>) -> Current {
        Current(AtomicPtr::new(Box::into_raw(first)))
    }

    pub fn pin<H: Host>(&self) -> Pinned<H> {
        let _epoch = loosekv_shm::epoch::pin();
        loop {
            let version = self.0.load(SeqCst);
            // SAFETY: a superversion is freed through the epoch collector after it ceased to be current, and the
            // epoch is pinned here.
            let pins = unsafe { &(*version).pins };
            pins.fetch_add(1, SeqCst);
            if self.0.load(SeqCst) == version || on(PinNotRechecked) {
                H::note_pin(version, true);
                return Pinned { version, host: std::marker::PhantomData };
            }
            pins.fetch_sub(1, SeqCst);
        }
    }

    /// The current one, without a pin.
    ///
    /// # Safety
    /// The caller holds the latch under which it is replaced, for as long as the reference lives.
    pub unsafe fn peek(&self) -> &SuperVersion {
        // SAFETY: not freed before it is replaced.
        unsafe { &*self.0.load(SeqCst) }
    }

    /// Makes `next` the current one; the caller owns the old one now, and may free it once it is not pinned.
    pub fn replace(&self, next: Box<SuperVersion>) -> Retired {
        Retired(self.0.swap(Box::into_raw(next), SeqCst))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        // SAFETY: nobody else can reach a value that is being dropped.
        drop(unsafe { Box::from_raw(self.0.load(SeqCst)) });
    }
}

/// A superversion that was current once.
pub struct Retired(*mut SuperVersion);

// SAFETY: a retired superversion is immutable but for its atomic count.
unsafe impl Send for Retired {}

impl Deref for Retired {
    type Target = SuperVersion;
    fn deref(&self) -> &SuperVersion {
        // SAFETY: freed only by `free`, which consumes self.
        unsafe { &*self.0 }
    }
}

impl Retired {
    /// Frees it when every process that may be about to look at its count has gone on.
    pub fn free(self) {
        // Its count may be above zero again for a moment: somebody who loaded the pointer before counts himself, looks, and
        // goes.
        let version = self.0;
        let epoch = loosekv_shm::epoch::pin();
        // SAFETY: not current any more and not pinned, so nobody can begin to use it; the collector waits for those
        // that loaded the pointer before.
        unsafe { epoch.defer_unchecked(move || drop(Box::from_raw(version))) };
    }
}

/// A superversion that stays while this lives.
pub struct Pinned<H: Host> {
    version: *const SuperVersion,
    host: std::marker::PhantomData<fn() -> H>,
}

impl<H: Host> Deref for Pinned<H> {
    type Target = SuperVersion;
    fn deref(&self) -> &SuperVersion {
        // SAFETY: counted in its pins until dropped.
        unsafe { &*self.version }
    }
}

impl<H: Host> Drop for Pinned<H> {
    fn drop(&mut self) {
        H::note_pin(self.version, false);
        self.pins.fetch_sub(1, SeqCst);
    }
}

/// Takes back one pin of a process that ends without unwinding.
///
/// # Safety
/// `version` was reported by [`Host::note_pin`] as held, and its `Pinned` will never be used or dropped.
pub unsafe fn unpin_by_force(version: *const SuperVersion) {
    // SAFETY: the pin that is being taken back has kept it alive.
    unsafe { (*version).pins.fetch_sub(1, SeqCst) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Cut, RunShape};
    use crate::types::{L0Id, RunId};

    #[test]
    fn the_first_run_of_a_merge_that_does_not_lack_a_key() {
        let run = |last_l0, cut: Option<u8>| {
            let cut = cut.map(|key| Cut { key: vec![key], pages: 0 });
            let (first_l0, last_l0) = (L0Id(5), L0Id(last_l0));
            let (extents, shape) = (Vec::new().into(), RunShape::default());
            let values = Vec::new();
            Arc::new(RunDesc { id: RunId(1), level: 0, first_l0, last_l0, extents, values, shape, settled: true, cut })
        };
        // The merge stands at 50; each input goes on at its own next key.
        let mut runs: Vec<_> = [90, 50, 80, 85].into_iter().map(|key| run(9, Some(key))).collect();
        runs.extend([Some(40), Some(30), Some(20), None].map(|cut| run(4, cut)));
        let mut one_by_one = runs.clone();
        one_by_one.push(run(4, None));
        for key in 0..100 {
            let expected = one_by_one.iter().position(|run| !run.lacks(&[key])).unwrap();
            assert_eq!(not_lacking(&runs, &[key]), expected, "{key}");
        }
        assert_eq!(begun(&runs).first(), Some(&(0..8)));
        runs.insert(0, run(9, None));
        assert_eq!(begun(&runs).first(), Some(&(1..9)));
    }
}
