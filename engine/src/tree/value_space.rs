//! What becomes of value extents: who fills them, who may point into them, when they go.
//!
//! ```text
//! a flush's or merge's:  named by its flip, full ------------------------------+
//! a writer's:  filling -> full, but writers may be between bytes and row       +-> quiet: only the memtables up to
//!                       -> the superversions that they had pinned are gone ----+   a generation may point into it
//! quiet, those generations are flushed, no run points into it -> given up at the next flip -> limbo -> free
//!                                       few bytes pointed to  -> merges move them (no flip names the extent then)
//! ```
//!
//! Every run tells in the manifest how many bytes it points to in which extent. So what is garbage is never counted, but
//! seen: it is what no run points to. That holds for versions dropped, for the bytes of writers that failed or crashed
//! before their row was appended, and for pages that were never filled. What is known beyond the manifest is memory's alone:
//! after a restart every extent counts as full, with the newest memtable of that time as the last that may point into it.
//!
//! An extent of which less than half is pointed to is *sparse*: every merge that meets a pointer into it moves the value to
//! a new extent. No compare-and-set is needed, for the merge owns its runs. When sparse extents make up a good part of the
//! value log, runs are rewritten for their sake alone.
//!
//! A writer keeps a superversion pinned from before it takes its pages until its row is linked. So once an extent is not filled any
//! more, and no superversion from before that moment is pinned, the rows that point into it are all in memtables, and none
//! will be added. Keeps I16.

use crate::error::{Consumer, Result};
use crate::extent::FreeSpace;
use crate::host::{Flip, Host};
use crate::manifest::{Manifest, RunDesc, ValueUse};
use crate::mutation::{on, Mutation::*};
use crate::tree::full_disk::Taker;
use crate::tree::pick::Job;
use crate::tree::shared::{Ledger, Limbo, Owner};
use crate::tree::value_write::pages_of;
use crate::tree::version::SuperVersion;
use crate::tree::Tree;
use crate::types::{Extent, ExtentSeq, L0Id, PageNo};
use loosekv_shm::scope;
use std::collections::{BTreeMap, BTreeSet};

/// Pages of an extent that writers share: a sixteenth of the value log, within these limits.
const LEAST_SHARED: u64 = 64;
const MOST_SHARED: u64 = 4096;

/// What is known of value extents beyond the manifest.
#[derive(Default)]
pub struct ValueSpace {
    filling: Option<Filling>,
    /// Ascending. An extent that is not here was found at the start.
    states: Vec<(ExtentSeq, State)>,
}

/// The extent that writers share.
#[derive(Clone, Copy)]
struct Filling {
    extent: Extent,
    used: u32,
    /// The active generation when a writer last took pages.
    last: L0Id,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nobody takes pages of it any more. Who did had pinned this superversion or an older one.
    Full(u64),
    /// Memtables up to this generation may point into it.
    Quiet(L0Id),
}

impl ValueSpace {
    fn take(&mut self, pages: u32, generation: L0Id) -> Option<Extent> {
        let filling = self.filling.as_mut()?;
        let Extent { start, pages: all, seq } = filling.extent;
        if all - filling.used < pages {
            return None;
        }
        let start = PageNo(start.0 + filling.used);
        filling.used += pages;
        filling.last = filling.last.max(generation);
        Some(Extent { start, pages, seq })
    }

    fn is_filling(&self, seq: ExtentSeq) -> bool {
        self.filling.is_some_and(|f| f.extent.seq == seq)
    }

    fn state(&self, seq: ExtentSeq) -> Option<State> {
        let at = self.states.binary_search_by_key(&seq, |s| s.0).ok()?;
        self.states.get(at).map(|s| s.1)
    }

    /// Up to which generation memtables may point into the extent, if that is settled.
    fn quiet(&self, seq: ExtentSeq) -> Option<L0Id> {
        match self.state(seq) {
            Some(State::Quiet(upto)) => Some(upto),
            _ => None,
        }
    }

    /// Makes room for states, so that adding them cannot fail. False: the shared heap is full.
    fn reserve(&mut self, more: usize) -> bool {
        scope::with(|| self.states.try_reserve(more)).is_ok()
    }

    fn set(&mut self, seq: ExtentSeq, state: State) {
        debug_assert!(self.states.capacity() > self.states.len() || self.state(seq).is_some());
        scope::with(|| match self.states.binary_search_by_key(&seq, |s| s.0) {
            Ok(at) => {
                if let Some(known) = self.states.get_mut(at) {
                    known.1 = state;
                }
            }
            Err(at) => self.states.insert(at, (seq, state)),
        });
    }

    /// Of these, `values` are value extents that a flush or merge has just named: only its run points into them.
    pub fn built(&mut self, built: &[Extent], values: &[Extent]) {
        let named: Vec<ExtentSeq> =
            built.iter().map(|b| b.seq).filter(|seq| values.iter().any(|v| v.seq == *seq)).collect();
        // Not knowing is no harm: a memtable that does not exist is waited for.
        if self.reserve(named.len()) {
            named.into_iter().for_each(|seq| self.set(seq, State::Quiet(L0Id(0))));
        }
    }

    /// These have been given up.
    pub fn forget(&mut self, waiting: &[Limbo]) {
        let gone = |seq| waiting.iter().any(|w| matches!(w.owner, Owner::Values(s, _) if s == seq));
        self.states.retain(|(seq, _)| !gone(*seq));
    }
}

impl<H: Host> Tree<'_, H> {
    /// Takes pages side by side for a writer that has a superversion pinned.
    pub(super) fn take_value_pages(&self, pages: u32, generation: L0Id) -> Result<Extent> {
        let mut ledger = self.shared.ledger.lock();
        if let Some(taken) = ledger.values.take(pages, generation) {
            return Ok(taken);
        }
        self.reap(&mut ledger);
        let held: u64 = ledger.manifest.values.iter().map(|e| u64::from(e.pages)).sum();
        let shared = (held / 16).clamp(LEAST_SHARED, MOST_SHARED) as u32;
        let own = pages > shared / 4;
        let (want, before) = (if own { pages } else { shared }, ledger.free.high());
        let kept = ledger.kept_from(Taker::Write, 0, &self.host);
        let mut extent = scope::with(|| ledger.free.take_beside(want, kept))?;
        let end = ledger.free.reach(before, extent.end().0);
        let mut grown = Ok(());
        if own {
            // A large extent: others need not wait until the file has grown by so much.
            drop(ledger);
            grown = self.host.extend(end);
            ledger = self.shared.ledger.lock();
        }
        if let Err(failed) = grown.and_then(|()| self.host.extend(end)) {
            let kept = ledger.kept_on_full_disk(Taker::Write, 0);
            let instead = |free: &mut FreeSpace, end| free.take_inside(end, pages, want.min(free.beyond(kept)));
            extent = self.take_instead(&mut ledger, before, &[extent], failed, instead)?;
        } else {
            ledger.full &= end <= before;
        }
        let full = ledger.values.filling.filter(|_| !own);
        let tail = full.map(|f| rest(f.extent, f.used));
        let flip = Flip { reused: ledger.untold_reuse(&[extent]), ..Flip::default() };
        // The flip may note the state of every extent that there is.
        let states = ledger.manifest.values.len() + 2;
        let room = match ledger.values.reserve(states) {
            true => Ok(()),
            false => Err(self.shared.full(Consumer::Versions)),
        };
        extent.seq = ledger.manifest.next_seq;
        let made = room.and_then(|()| {
            if H::NAME_PENDING {
                self.name_pending(&mut ledger, extent)?;
            }
            let add = |next: &mut Manifest| {
                next.pending.retain(|pending| pending.seq != extent.seq);
                next.next_seq = next.next_seq.max(ExtentSeq(extent.seq.0 + 1));
                next.values.push(extent);
                let full = full.and_then(|f| Some((next.values.iter_mut().find(|e| e.seq == f.extent.seq)?, f.used)));
                if let Some((full, used)) = full {
                    full.pages = used;
                }
                Ok(())
            };
            self.flip_body(&mut ledger, add, &[], tail.as_slice(), &flip)
        });
        if let Err(failed) = made {
            scope::with(|| ledger.free.give(extent));
            ledger.manifest.pending.retain(|pending| pending.seq != extent.seq);
            return Err(failed);
        }
        // Read after everybody who filled the extent had pinned theirs.
        let number = self.pin().number;
        if own {
            ledger.values.set(extent.seq, State::Full(number));
            return Ok(extent);
        }
        if let Some(full) = full {
            ledger.values.set(full.extent.seq, State::Full(number));
        }
        ledger.values.filling = Some(Filling { extent, used: pages, last: generation });
        Ok(Extent { pages, ..extent })
    }

    /// Looks which full extents are quiet by now.
    fn settle_values(&self, ledger: &mut Ledger) {
        if ledger.manifest.values.is_empty() || !ledger.values.reserve(ledger.manifest.values.len()) {
            return;
        }
        let versions = self.shared.versions.lock();
        let current = self.pin();
        let pinned = versions.retired.iter().filter(|v| v.is_pinned()).map(|v| v.number).min();
        let oldest = pinned.unwrap_or(current.number);
        let active = &current.active().table;
        let upto = if active.is_empty() { L0Id(active.generation().0 - 1) } else { active.generation() };
        let Ledger { manifest, values, .. } = ledger;
        for extent in &manifest.values {
            let quiet = match values.state(extent.seq) {
                Some(State::Quiet(_)) => false,
                Some(State::Full(number)) => number < oldest || on(I16WriterNotAwaited),
                None => !values.is_filling(extent.seq),
            };
            if quiet {
                values.set(extent.seq, State::Quiet(upto));
            }
        }
    }

    /// Takes the value extents that nobody points to out of `next`.
    pub(super) fn give_up_values(&self, ledger: &mut Ledger, next: &mut Manifest) -> Vec<Limbo> {
        self.settle_values(ledger);
        let (used, flushed) = (uses(&next.runs), next.flushed);
        let mut waiting = Vec::new();
        let in_memtables = |upto| upto > flushed && !on(I16MemtablesIgnored);
        let in_runs = |seq| used.contains_key(&seq) && !on(I16RunsIgnored);
        next.values.retain(|extent| match ledger.values.quiet(extent.seq) {
            Some(upto) if !in_memtables(upto) && !in_runs(extent.seq) => {
                waiting.push(Limbo { extent: *extent, owner: Owner::Values(extent.seq, upto) });
                false
            }
            _ => true,
        });
        waiting
    }

    /// Frees value extents that nobody points to, or else empties sparse ones if they weigh enough (with `force`, in any
    /// case). False: there is nothing to do. The caller holds the maintenance lock.
    pub(super) fn collect_values(&self, force: bool) -> Result<bool> {
        if self.free_values()? {
            return Ok(true);
        }
        let view = self.pin().of_runs();
        let Some((job, least)) = self.pick_sparse(&view, force) else { return Ok(false) };
        self.find_room_for(&view, &job, least)?;
        if self.to_be_moved(&view, &job).1.is_empty() {
            return Ok(false);
        }
        self.do_job(&view, &job).map(|()| true)
    }

    fn free_values(&self) -> Result<bool> {
        for again in [true, false] {
            let mut ledger = self.shared.ledger.lock();
            if ledger.manifest.values.is_empty() {
                return Ok(false);
            }
            let current = self.pin().number;
            let used = uses(&ledger.manifest.runs);
            end_filling(&mut ledger, &used, current);
            let mut next = ledger.manifest.clone();
            if !self.give_up_values(&mut ledger, &mut next).is_empty() {
                self.flip_body(&mut ledger, |_| Ok(()), &[], &[], &Flip::default())?;
                return Ok(true);
            }
            let waits = |seq| ledger.values.state(seq) == Some(State::Full(current));
            if !again || !ledger.manifest.values.iter().any(|e| !used.contains_key(&e.seq) && waits(e.seq)) {
                return Ok(false);
            }
            drop(ledger);
            self.shared.reserve_install()?;
            // Only a superversion from after the extent was full tells that its writers are gone.
            self.shared.install(|current| SuperVersion::new(current.number + 1, current.edit()))?;
        }
        Ok(false)
    }

    /// The run to rewrite for the sake of sparse extents, and the pages of values that it moves at least.
    fn pick_sparse(&self, view: &SuperVersion, force: bool) -> Option<(Job, u64)> {
        let mut ledger = self.shared.ledger.lock();
        self.settle_values(&mut ledger);
        let sparse = sparse(&ledger);
        let all: u64 = ledger.manifest.values.iter().map(|e| u64::from(e.pages)).sum();
        drop(ledger);
        let gain: u64 = sparse.values().sum();
        if !force && gain * 100 <= all * u64::from(self.shared.options.get().space_percent) {
            return None;
        }
        let weight = |run: &RunDesc| met(run, &sparse).map(|used| used.bytes).sum::<u64>();
        let heaviest = view.runs.iter().enumerate().max_by_key(|(_, run)| weight(run));
        let (at, run) = heaviest.filter(|(_, run)| weight(run) > 0)?;
        let least = met(run, &sparse).map(|used| pages_of(used.bytes)).min().unwrap_or(0);
        Some((Job { runs: at..at + 1, level: run.level }, least))
    }

    /// The extents that a merge is to move values out of, and how many bytes of values that are: those that take least, where there is
    /// not room for all.
    pub(super) fn to_be_moved(&self, view: &SuperVersion, job: &Job) -> (u64, BTreeSet<ExtentSeq>) {
        let mut room = self.shared.pages_for_values(view, job).unwrap_or(u64::MAX);
        let mut ledger = self.shared.ledger.lock();
        self.settle_values(&mut ledger);
        let sparse = sparse(&ledger);
        drop(ledger);
        let mut extents = BTreeMap::<ExtentSeq, u64>::new();
        let runs = view.runs.get(job.runs.clone()).unwrap_or_default();
        for used in runs.iter().flat_map(|run| met(run, &sparse)) {
            *extents.entry(used.seq).or_default() += used.bytes;
        }
        let mut extents: Vec<_> = extents.into_iter().collect();
        extents.sort_by_key(|(_, bytes)| *bytes);
        let (mut all, mut moved) = (0, BTreeSet::new());
        for (seq, bytes) in extents {
            let Some(left) = room.checked_sub(pages_of(bytes)) else { break };
            room = left;
            all += bytes;
            moved.insert(seq);
        }
        (all, moved)
    }
}

/// What a run has in these extents.
fn met<'r>(run: &'r RunDesc, sparse: &'r BTreeMap<ExtentSeq, u64>) -> impl Iterator<Item = &'r ValueUse> {
    run.values.iter().filter(|used| sparse.contains_key(&used.seq))
}

/// What a follower finds given up: rows of generations that have been flushed, and runs, may point into it.
pub(super) fn limbo_of_values(old: &Manifest, new: &Manifest) -> Vec<Limbo> {
    let gone = old.values.iter().filter(|e| new.values.iter().all(|kept| kept.seq != e.seq));
    gone.map(|e| Limbo { extent: *e, owner: Owner::Values(e.seq, new.flushed) }).collect()
}

/// Bytes that the runs point to, by extent.
fn uses(runs: &[RunDesc]) -> BTreeMap<ExtentSeq, u64> {
    let mut uses = BTreeMap::new();
    for used in runs.iter().flat_map(|r| &r.values) {
        *uses.entry(used.seq).or_default() += used.bytes;
    }
    uses
}

/// The extents that are to be emptied, and how many pages that would free in each: more than half.
fn sparse(ledger: &Ledger) -> BTreeMap<ExtentSeq, u64> {
    let Ledger { manifest, values, .. } = ledger;
    let used = uses(&manifest.runs);
    let gain = |extent: &Extent| {
        let settled = values.quiet(extent.seq).is_some_and(|upto| upto <= manifest.flushed);
        let live = pages_of(used.get(&extent.seq).copied().unwrap_or(0));
        let gain = u64::from(extent.pages).saturating_sub(live);
        (settled && gain * 2 > u64::from(extent.pages)).then_some((extent.seq, gain))
    };
    manifest.values.iter().filter_map(gain).collect()
}

/// The shared extent is not filled any more when most of what was put there seems to be gone again.
fn end_filling(ledger: &mut Ledger, used: &BTreeMap<ExtentSeq, u64>, current: u64) {
    let Some(filling) = ledger.values.filling else { return };
    let seq = filling.extent.seq;
    let live = pages_of(used.get(&seq).copied().unwrap_or(0));
    let sparse = live * 2 < u64::from(filling.used);
    if sparse && filling.last <= ledger.manifest.flushed && ledger.values.reserve(1) {
        ledger.values.filling = None;
        ledger.values.set(seq, State::Full(current));
    }
}

/// What is left of an extent of which so many pages are used.
fn rest(extent: Extent, used: u32) -> Extent {
    Extent { start: PageNo(extent.start.0 + used), pages: extent.pages - used, seq: extent.seq }
}
