//! Compaction: neighbours in age become one run.
//!
//! ```text
//! pick -> merge of the runs' cursors -> drop what is dead for all -> run pages -> flip -> index entries of keys
//!                                                                   that are gone -> superversion
//! ```
//!
//! Index entries stay as they are: they name L0 ids, and the run map finds the run that holds them now.
//! Keeps I1, I6, I8 to I11.

use crate::error::{Error, Result};
use crate::filter::key_hash;
use crate::host::{Flip, Horizon, Host, Standing, Work};
use crate::key_index::IndexEntry;
use crate::manifest::{close_gaps, Manifest, RunDesc};
use crate::mutation::{on, Mutation::*, Pause};
use crate::run::{RunShape, RunWriter, Scratch};
use crate::tree::chain::Chain;
use crate::tree::full_disk::Taker;
use crate::tree::ledger::Building;
use crate::tree::pick::{begun, everything, pick, pick_newer, piled_up, Effort, Job, Pick, RunInfo, Tidying};
use crate::tree::read::Pages;
use crate::tree::retention::{Keep, Retention};
use crate::tree::shared::Shared;
use crate::tree::slices::Slices;
use crate::tree::sources::Sources;
use crate::tree::stale::Stale;
use crate::tree::value_write::ValueWriter;
use crate::tree::version::{Edit, SuperVersion};
use crate::tree::{Direction, Tree};
use crate::types::{Fate, Head, L0Id, RowBuf, RunId, Verdict, Writer};
use std::ops::Bound;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::Arc;

/// Rows between two questions to the host whether to go on.
const ROWS_A_PIECE: u64 = if cfg!(test) { 8 } else { 4096 };

/// A merge, and what it has decided.
pub(super) struct Merge<'v> {
    pub view: &'v SuperVersion,
    pub job: &'v Job,
    pub slices: Slices,
    pub in_progress: bool,
    pub superseded: Option<Writer>,
    /// It is done in the midst of another one.
    nested: bool,
    /// Since the last slice, as the next.
    changed: Vec<Changed>,
    pub dropped: u64,
}

/// A key whose newest version in the merged runs was dropped, and whose index entry names one of them: it has to be corrected.
/// (An entry may come to name a newer run meanwhile, never one of these.)
struct Changed {
    key: Vec<u8>,
    /// Whether the newest version that was kept is a tombstone; `None`: none was kept.
    kept: Option<bool>,
    /// An older run may hold the key.
    may_be_older: bool,
}

/// What the index entry of a key is to be.
pub(super) struct Correction {
    key: Vec<u8>,
    now: Now,
}

enum Now {
    Kept { tombstone: bool },
    Older(IndexEntry),
    Gone,
}

impl<H: Host> Tree<'_, H> {
    /// Does one merge, if one is due (or, with `force`, if anything is left to merge). False: there is nothing to do.
    /// The caller holds the maintenance lock; flushes may go on meanwhile.
    pub fn compact_one(&self, force: bool) -> Result<bool> {
        self.catch_up()?;
        let view = self.pin().of_runs();
        match self.shared.pick(&view, &self.host.horizon().standing(), force) {
            Some(pick) => {
                match self.do_picked_or_begun(&view, &pick) {
                    // Without what aborted writers have left there may be room.
                    Err(Error::NoSpace(_)) if self.settle(|view, at| view.merge_of(at).is_none())? => return Ok(true),
                    done => done?,
                }
                if matches!(pick, Pick::Merge(_)) {
                    self.shared.sought.store(0, Relaxed);
                    self.shared.told.store(false, Relaxed);
                }
                Ok(true)
            }
            None => {
                self.shared.told.store(false, Relaxed);
                self.collect_values(force)
            }
        }
    }

    /// Merges the newest runs where they have piled up, and are small. False: they have not. Same lock.
    pub fn merge_piled_up(&self) -> Result<bool> {
        self.catch_up()?;
        let view = self.pin().of_runs();
        let infos = infos(&view.runs, view.flushed, &self.host.horizon().standing());
        match piled_up(&infos, &self.shared.options.get()) {
            Some(Pick::Merge(job)) => self.do_job(&view, &job).map(|()| true),
            Some(Pick::Move(job)) => self.move_runs(&view, &job).map(|()| true),
            None => Ok(false),
        }
    }

    /// Settles one run whose writers have all ended: if they have all committed, by an edit of the manifest; else by
    /// writing it anew without those that aborted. False: there is none. Same lock.
    pub fn settle_one(&self) -> Result<bool> {
        self.settle(|_, _| true)
    }

    /// The same, for one of the runs that may be settled.
    fn settle(&self, may_be: impl Fn(&SuperVersion, usize) -> bool) -> Result<bool> {
        self.catch_up()?;
        let view = self.pin().of_runs();
        let ended = self.host.horizon().ended();
        let unsettled =
            |(at, run): (usize, &Arc<RunDesc>)| !run.settled && run.is_finished(&ended) && may_be(&view, at);
        let Some(at) = view.runs.iter().enumerate().position(unsettled) else { return Ok(false) };
        if let Some(desc) = view.runs.get(at).filter(|_| !matches!(self.holds_aborted(&view, at), Ok(false))) {
            let level = desc.level;
            return match view.merge_of(at) {
                // That merge comes first, and does as much.
                Some(_) => self.compact_one(false),
                None => self.do_job(&view, &Job { runs: at..at + 1, level }).map(|()| true),
            };
        }
        self.describe(view.runs.get(at..at + 1).unwrap_or_default(), |run| run.settled = true)?;
        Ok(true)
    }

    /// Makes the runs of a job runs of its level.
    fn move_runs(&self, view: &SuperVersion, job: &Job) -> Result<()> {
        let runs = view.runs.get(job.runs.clone()).unwrap_or_default();
        self.describe(runs, |run| run.level = job.level)?;
        self.shared.counters.runs_moved.fetch_add(runs.len() as u64, Relaxed);
        Ok(())
    }

    /// Changes what the manifest says of these runs; they themselves stay as they are.
    fn describe(&self, runs: &[Arc<RunDesc>], change: impl Fn(&mut RunDesc)) -> Result<()> {
        let ids: Vec<RunId> = runs.iter().map(|run| run.id).collect();
        self.shared.reserve_install()?;
        let edit = |next: &mut Manifest| {
            next.runs.iter_mut().filter(|run| ids.contains(&run.id)).for_each(&change);
            Ok(())
        };
        self.commit(edit, &[], &[], &Flip::default())?;
        self.pause(Pause::Described);
        self.shared.install_flipped(|current| {
            let mut parts = current.edit();
            for run in parts.runs.iter_mut().filter(|run| ids.contains(&run.id)) {
                let mut changed = (**run).clone();
                change(&mut changed);
                *run = Arc::new(changed);
            }
            SuperVersion::new(current.number + 1, parts)
        })?;
        Ok(())
    }

    /// Whether a version in this run is by a writer that aborted.
    fn holds_aborted(&self, view: &SuperVersion, at: usize) -> Result<bool> {
        let mut horizon = self.host.horizon();
        let mut sources = Sources::new(view, false, at..at + 1, Direction::Forward);
        sources.seek(self, view, (Bound::Unbounded, Bound::Unbounded), Direction::Forward)?;
        let mut rows = 0;
        while sources.key(view).is_some() {
            sources.open_top(self, view)?;
            loop {
                if sources.with_head(view, |head, _| horizon.fate(head)) == Some(Fate::Aborted) {
                    return Ok(true);
                }
                rows += 1;
                if rows % ROWS_A_PIECE == 0 {
                    self.host.merging(self)?;
                }
                if !sources.older(self, view)? {
                    break;
                }
            }
        }
        Ok(false)
    }

    /// Does what was picked. Where there is no room for it the merge that was begun is done after all, which it goes before: that one
    /// gives room back.
    fn do_picked_or_begun(&self, view: &SuperVersion, pick: &Pick) -> Result<()> {
        let infos = || infos(&view.runs, view.flushed, &self.host.horizon().standing());
        let begun = || begun(&infos()).filter(|begun| begun != pick.job());
        let done = match pick {
            Pick::Merge(job) => self.do_due(view, job, false),
            Pick::Move(job) => self.move_runs(view, job),
        };
        match done {
            Err(no_room @ (Error::NoSpace(_) | Error::MemoryFull { .. })) if !self.shared.is_behind() => {
                begun().map_or(Err(no_room), |begun| self.do_due(view, &begun, false))
            }
            done => done,
        }
    }

    /// Merges the runs of a job, or rewrites the one there is. To be given the runs alone: memtables are frozen and flushed meanwhile, and
    /// those of its beginning would fill the memory.
    pub(super) fn do_job(&self, view: &SuperVersion, job: &Job) -> Result<()> {
        self.do_merge(view, job, false)
    }

    /// The same, if there is room for it.
    fn do_due(&self, view: &SuperVersion, job: &Job, nested: bool) -> Result<()> {
        self.find_room_for(view, job, 0)?;
        self.do_merge(view, job, nested)
    }

    fn do_merge(&self, view: &SuperVersion, job: &Job, nested: bool) -> Result<()> {
        let inputs = view.runs.get(job.runs.clone()).unwrap_or_default();
        let pages: u64 = inputs.iter().map(|run| run.pages()).sum();
        let slices = Slices::new(inputs, &self.host.horizon().ended(), self.slice_pages(pages))?;
        let (first_l0, last_l0) = (slices.first_l0, slices.last_l0);
        let stale = on(I8OldSuperversionEdited).then(|| self.pin().edit());

        let estimate = slices.each().map_or(pages, u64::from);
        // Another one may be done in its midst.
        let aside = if nested || slices.each().is_some() { 2 } else { 1 };
        let mut building = Building::new(self, Taker::Merge, estimate, self.host.aside_memory() / aside)?;
        let (moved_bytes, moved) = self.to_be_moved(view, job);
        let mut values = ValueWriter::new(self, Taker::Merge, moved_bytes, moved);
        let (in_progress, superseded, changed, dropped) = (false, None, Vec::new(), 0);
        let mut merge = Merge { view, job, slices, in_progress, superseded, nested, changed, dropped };
        let shape = self.merge(&mut merge, &mut building, &mut values)?;
        let (used, mut unused) = building.finish()?;
        let large = values.finish(&mut unused)?;
        let shape_rows = shape.rows;
        // What comes after the flip must not fail: the index entries to be are found, and memory is reserved, before.
        let corrections = self.corrections(&mut merge)?;
        let (id, level, settled) = (RunId(0), job.level, !merge.in_progress);
        let slices = &merge.slices;
        let (extents, values_there) = (slices.extents(used), slices.uses(large.uses));
        let run = RunDesc { id, level, first_l0, last_l0, extents, values: values_there, shape, settled, cut: None };
        let mut run = Some(run).filter(|run| run.shape.rows > 0);
        let mut installed_run = run.as_ref().map(|run| self.shared.share(run)).transpose()?;
        self.shared.reserve_install()?;
        let old_manifest = on(I8OldManifestEdited).then(|| self.manifest());
        self.pause(Pause::MergeWritten);
        self.commit(
            |next| {
                if let Some(old) = old_manifest {
                    next.runs = old.runs;
                }
                let at = next.runs.iter().position(|r| slices.has(r.id));
                let at = at.ok_or_else(|| Error::structure("a run vanished while it was merged"))?;
                let oldest = next.runs.get(at).map_or(last_l0, |run| run.last_l0);
                next.runs.retain(|r| !slices.has(r.id));
                let id = next.next_run;
                next.next_run = RunId(id.0 + 1);
                for run in run.iter_mut().chain(installed_run.as_mut().and_then(Arc::get_mut)) {
                    run.id = id;
                    run.last_l0 = if on(I1IntervalTooShort) { oldest } else { last_l0 };
                }
                if let Some(run) = &run {
                    next.values.extend(large.extents);
                    next.runs.insert(at, run.clone());
                }
                close_gaps(&mut next.runs);
                Ok(())
            },
            &[building.taken(), values.taken()].concat(),
            &unused,
            &Flip { superseded: merge.superseded, ..Flip::default() },
        )?;
        building.committed();
        values.committed();
        self.shared.counters.compactions.fetch_add(1, Relaxed);
        let rows_in: u64 = inputs.iter().map(|run| run.rows()).sum();
        self.shared.counters.dropped(rows_in.saturating_sub(shape_rows));
        self.shared.counters.compacted_pages.fetch_add(building.written, Relaxed);
        self.pause(Pause::MergeCommitted);
        self.correct_index(view, &corrections, first_l0, last_l0);
        self.pause(Pause::MergeIndexed);
        let installed = self.install_merged(slices, installed_run, stale)?;
        self.shared.counters.left_out(merge.dropped);
        self.shared.gone_before.fetch_min(installed, SeqCst);
        Ok(())
    }

    fn install_merged(&self, slices: &Slices, result: Option<Arc<RunDesc>>, stale: Option<Edit>) -> Result<u64> {
        self.shared.install_flipped(|current| {
            let mut parts = stale.unwrap_or_else(|| current.edit());
            let at = parts.runs.iter().position(|r| slices.has(r.id));
            let at = at.ok_or_else(|| Error::structure("a merged run is in no superversion"))?;
            parts.runs.retain(|r| !slices.has(r.id));
            if let Some(run) = result {
                let at = if on(I1MergedRunIsNewest) { 0 } else { at };
                parts.runs.insert(at, run);
            }
            SuperVersion::new(current.number + 1, parts)
        })
    }

    fn merge(
        &self,
        merge: &mut Merge<'_>,
        building: &mut Building<'_, '_, H>,
        values: &mut ValueWriter<'_, '_, H>,
    ) -> Result<RunShape> {
        let mut horizon = self.host.horizon();
        let (view, job) = (merge.view, merge.job);
        let (first_l0, last_l0) = (merge.slices.first_l0, merge.slices.last_l0);
        let options = self.shared.options.run().at_level(job.level, H::FILTER_STEP);
        let mut writer = RunWriter::new(&mut *building, &options, first_l0, last_l0)?;
        if merge.slices.each().is_some() {
            // Where the index has all keys nobody asks a filter.
            writer.make_slices(view.first_unindexed(view.indexed_from) < view.runs.len());
        }
        let mut sources = Sources::new(view, false, job.runs.clone(), Direction::Forward);
        sources.seek(self, view, (Bound::Unbounded, Bound::Unbounded), Direction::Forward)?;
        let mut retention = Retention::default();
        let all: u64 = view.runs.get(job.runs.clone()).unwrap_or_default().iter().map(|run| run.shape.rows).sum();
        self.host.at_work(Work::Merge, 0, all);
        let mut stale = Stale::new(self, last_l0, all, horizon.oldest());
        let (mut row, mut key, mut rows) = (RowBuf::default(), Vec::new(), 0);
        while let Some(next) = sources.key(view) {
            key.clear();
            key.extend_from_slice(next);
            if merge.slices.is_due(&writer) {
                self.end_slice(merge, &mut writer, values, sources.left(view))?;
                stale.rest();
                self.merge_newer(merge)?;
                stale.renew();
                merge.slices.go_on(self.slice_pages(merge.slices.pages));
                writer.sink().go_on(merge.slices.each().map_or(0, u64::from))?;
            }
            sources.open_top(self, view)?;
            retention.next_key();
            let stale_since = stale.since(&key);
            let (mut kept, mut may_be_older, mut dropped_newest) = (None, true, false);
            while let Some((head, settled)) = sources.with_head(view, |head, hint| (*head, hint.get())) {
                let fate = fate_of(&mut horizon, &head, settled);
                merge.in_progress |= fate == Fate::InProgress;
                let keep = match retention.decide(&head, fate, &mut merge.superseded) {
                    Keep::Yes if stale_since.is_some() && !head.flags.is_tombstone() => {
                        merge.superseded = merge.superseded.max(stale_since);
                        self.shared.counters.stale_dropped.fetch_add(1, Relaxed);
                        false
                    }
                    Keep::OverOlder if stale_since.is_some() && on(I10TombstoneDropped) => false,
                    Keep::Yes => true,
                    Keep::No => false,
                    Keep::OverOlder => {
                        may_be_older = self.may_be_older(view, job.runs.end, &key)?;
                        may_be_older
                    }
                };
                if keep {
                    sources.copy(self, view, &mut row)?;
                    values.place(&mut row)?;
                    writer.add(&row.as_ref())?;
                    kept.get_or_insert(head.flags.is_tombstone());
                } else {
                    merge.dropped += 1;
                }
                dropped_newest |= kept.is_none();
                rows += 1;
                if rows % ROWS_A_PIECE == 0 {
                    self.host.merging(self)?;
                    stale.renew();
                    self.host.at_work(Work::Merge, rows, all);
                }
                if !sources.older(self, view)? {
                    break;
                }
            }
            // A stale key's entry names a run outside of the merge, and is right.
            if dropped_newest && stale_since.is_none() && self.names(&key, first_l0, last_l0).is_some() {
                merge.changed.push(Changed { key: key.clone(), kept, may_be_older });
            }
        }
        Ok(writer.finish()?.0)
    }

    /// Merges a level of newer runs that has become full since the merge began: writers and readers are not to wait for the end of
    /// a long one. To be called after a slice, when the merge owns nothing that the manifest does not know.
    fn merge_newer(&self, merge: &Merge<'_>) -> Result<()> {
        if merge.nested || self.shared.is_behind() {
            return Ok(());
        }
        let view = self.pin().of_runs();
        let newer = view.runs.iter().position(|run| merge.slices.has(run.id)).and_then(|at| view.runs.get(..at));
        let newer = infos(newer.unwrap_or_default(), view.flushed, &self.host.horizon().standing());
        let due = pick_newer(&newer, &self.shared.options.get());
        // Levels ascend with age.
        let done = match due.filter(|pick| pick.job().level <= merge.job.level) {
            Some(Pick::Merge(job)) => self.do_due(&view, &job, true),
            Some(Pick::Move(job)) => self.move_runs(&view, &job),
            None => Ok(()),
        };
        match done {
            // The merge that goes on gives room back.
            Err(Error::NoSpace(_) | Error::MemoryFull { .. }) => Ok(()),
            done => done,
        }
    }

    /// What the index is to say of the keys that the merge changed: for those of which nothing was kept, the newest
    /// older run that holds the key.
    pub(super) fn corrections(&self, merge: &mut Merge<'_>) -> Result<Vec<Correction>> {
        let (view, older) = (merge.view, merge.job.runs.end);
        let correction = |Changed { key, kept, may_be_older }| {
            let now = match kept {
                Some(tombstone) => Now::Kept { tombstone },
                None if may_be_older => self.newest_entry(view, older, &key)?.map_or(Now::Gone, Now::Older),
                None => Now::Gone,
            };
            Ok(Correction { key, now })
        };
        std::mem::take(&mut merge.changed).into_iter().map(correction).collect()
    }

    /// The index entry of a key, if it names one of these L0 ids.
    fn names(&self, key: &[u8], first: L0Id, last: L0Id) -> Option<IndexEntry> {
        self.shared.index.get(key).filter(|entry| (first..=last).contains(&entry.l0))
    }

    /// Corrects the index entries, where they still name a run of the merge.
    pub(super) fn correct_index(&self, view: &SuperVersion, corrections: &[Correction], first: L0Id, last: L0Id) {
        self.shared.coarse_before.fetch_max(view.number, SeqCst);
        if corrections.iter().any(|correction| matches!(correction.now, Now::Gone)) {
            // Until the merged run is installed.
            self.shared.gone_before.store(u64::MAX, SeqCst);
        }
        for Correction { key, now } in corrections {
            let Some(seen) = self.names(key, first, last) else { continue };
            self.pause(Pause::MergeCorrecting);
            let seen = match on(I3CorrectedUnseen).then(|| self.shared.index.get(key)).flatten() {
                Some(whatever) => whatever,
                None => seen,
            };
            let entry = match *now {
                Now::Kept { tombstone } => Some(IndexEntry { l0: seen.l0, tombstone }),
                Now::Older(entry) => Some(entry),
                Now::Gone => None,
            };
            let corrected = match entry {
                Some(entry) => self.shared.index.replace_if(key, seen, entry),
                None => self.shared.index.remove_if(key, seen, &self.host.budgets().key_index),
            };
            if !corrected && self.shared.index.get(key) == Some(seen) {
                // No memory to remove it: a miss in the run that it names is no corruption from now on.
                self.shared.coarse_before.store(u64::MAX, SeqCst);
            }
        }
    }

    /// The index entry for `key` if only the runs from `from` on existed.
    fn newest_entry(&self, view: &SuperVersion, from: usize, key: &[u8]) -> Result<Option<IndexEntry>> {
        let (pages, hash) = (Pages(&self.host), key_hash(key));
        let mut scratch = Scratch::default();
        for (at, desc) in view.runs.iter().enumerate().skip(from) {
            let run = desc.run();
            if !desc.spans(key) || !run.may_contain(&pages, hash)? {
                continue;
            }
            let mut newest = None;
            run.get(&pages, key, &mut scratch, |row| {
                newest = Some(IndexEntry { l0: view.newest_l0(at), tombstone: row.head.flags.is_tombstone() });
                Verdict::Take
            })?;
            if newest.is_some() {
                return Ok(newest);
            }
        }
        Ok(None)
    }
}

impl<H: Host> Shared<H> {
    /// How many runs the merge or move that is due would take; `None`: none is, and who scans has been listened to, until the host is
    /// told of more scans.
    pub fn merge_due(&self, standing: &Standing) -> Option<usize> {
        let view = self.current.pin::<H>();
        let due = self.pick(&view, standing, false).map(|pick| pick.job().runs.len());
        if due.is_none() {
            self.told.store(false, Relaxed);
        }
        due
    }

    fn pick(&self, view: &SuperVersion, standing: &Standing, force: bool) -> Option<Pick> {
        let effort = match force {
            true => Effort::All,
            false if self.tidy.load(Relaxed) => Effort::Tidy,
            false => Effort::Due,
        };
        let sought = if self.told.load(Relaxed) { self.sought.load(Relaxed) } else { 0 };
        let paid = sought.saturating_mul(H::A_RUN_MORE);
        let tidying = Tidying { ratio: H::TIDY_RATIO, paid };
        let (infos, options) = (infos(&view.runs, view.flushed, standing), self.options.get());
        let room = self.room(view, !self.rested.load(Relaxed));
        let due = pick(&infos, room, &options, effort, tidying);
        self.pick_for_room(view, standing.oldest, || everything(&infos, &options), due)
    }
}

/// The fate of a version in a run: a settled run's writers have all committed, only how long ago is open.
fn fate_of(horizon: &mut impl Horizon, head: &Head, settled: Option<Fate>) -> Fate {
    match settled {
        Some(Fate::Committed) if head.writer < horizon.oldest() => Fate::VisibleToAll,
        Some(Fate::Committed) => Fate::Committed,
        _ => horizon.fate(head),
    }
}

/// What `pick` looks at. Tombstones and outdated versions count only where a merge could drop them.
pub(super) fn infos(runs: &[Arc<RunDesc>], flushed: L0Id, standing: &Standing) -> Vec<RunInfo> {
    let mut newer: Option<(u8, Chain<'_>)> = None;
    let infos = runs.iter().map(|run| {
        // A merge of runs that are chained would drop nothing.
        let plain = run.shape.has_each_key_once() && run.shape.tombstones == 0;
        let chained = plain && newer.as_mut().is_some_and(|(level, chain)| *level == run.level && chain.take_in(run));
        if !chained {
            newer = plain.then(|| (run.level, Chain::begin(run)));
        }
        let flushes = (run.last_l0.0 + 1 - run.first_l0.0).max(1);
        let seen = run.shape.max_writer < standing.oldest;
        RunInfo {
            level: run.level,
            bytes: run.pages() * crate::types::PAGE_SIZE as u64 + run.value_bytes(),
            rows: run.rows(),
            tombstones: if seen { run.shape.tombstones } else { 0 },
            outdated: if seen { run.outdated() } else { 0 },
            flushes,
            age: (flushed.0 - run.last_l0.0.min(flushed.0)) / flushes,
            finished: run.is_finished(&standing.ended),
            chained,
            cut: run.cut.is_some(),
        }
    });
    infos.collect()
}
