//! Flush: the oldest frozen memtable becomes one L0 run.
//!
//! ```text
//! memtable in key order -> drop what is dead for all -> run pages -> flip -> key index -> superversion -> log freed
//! ```
//!
//! Keeps I2 (memtables are flushed oldest first), I3, I6 (the order above), I9, I11.

use crate::error::Result;
use crate::filter::key_hash;
use crate::host::{Flip, Horizon, Host, LogReader, Work};
use crate::key_index::IndexEntry;
use crate::manifest::{close_gaps, LogExtent, RunDesc};
use crate::mutation::{on, Mutation::*, Pause};
use crate::run::{RunShape, RunWriter};
use crate::tree::full_disk::Taker;
use crate::tree::indexing::EVICTION;
use crate::tree::ledger::Building;
use crate::tree::read::{copy_record, Pages};
use crate::tree::retention::{Keep, Retention};
use crate::tree::value_write::ValueWriter;
use crate::tree::version::{Generation, SuperVersion};
use crate::tree::Tree;
use crate::types::{Extent, Fate, L0Id, RowBuf, RunId};
use loosekv_shm::scope;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::Arc;

/// Index entries that are raised together.
const RAISED_AT_ONCE: usize = if cfg!(test) { 4 } else { 1024 };
/// Rows between two reports of progress.
const ROWS_A_REPORT: u64 = 4096;

impl<H: Host> Tree<'_, H> {
    /// Writes the oldest frozen memtable to a run. False: there was none. One flush at a time: the caller sees to it.
    pub fn flush_one(&self) -> Result<bool> {
        let view = self.pin();
        let oldest = if on(I2NewestMemtableFirst) { view.frozen.first() } else { view.frozen.last() };
        let Some(oldest) = oldest else { return Ok(false) };
        let generation = oldest.table.generation();
        if let Some(run) = self.flipped(generation) {
            self.install_flushed(generation, run, false)?;
            self.shared.counters.left_out(1);
            drop(view);
            self.reclaim();
            self.host.forget_log(generation)?;
            return Ok(true);
        }
        let mut kept = Kept::default();
        let (bytes, rows) = (oldest.logged.load(Relaxed), oldest.table.rows());
        let estimate = bytes.min(rows * self.most_inline()) / 7000 + rows / 300 + 8;
        // What is kept aside is less than the memtable.
        let mut building = Building::new(self, Taker::Flush, estimate, usize::MAX)?;
        let mut values = ValueWriter::new(self, Taker::Flush, bytes, BTreeSet::new());
        let shape = self.write_generation(&view, oldest, &mut building, &mut values, &mut kept)?;
        let (used, mut unused) = building.finish()?;
        let large = values.finish(&mut unused)?;
        // What comes after the flip must not fail.
        self.shared.reserve_install()?;
        self.pause(Pause::FlushWritten);
        if on(I6LogForgottenBeforeFlip) {
            self.host.forget_log(generation)?;
            self.pause(Pause::FlushWritten);
        }
        let mut new_run = None;
        self.commit(
            |next| {
                next.flushed = generation;
                next.next_generation = next.next_generation.max(L0Id(generation.0 + 1));
                next.log_extents.retain(|l| l.generation > generation);
                if shape.rows > 0 {
                    let first_l0 = L0Id(next.runs.last().map_or(0, |r| r.last_l0.0) + 1);
                    let settled = !kept.in_progress;
                    let id = next.next_run;
                    next.next_run = RunId(id.0 + 1);
                    let (last_l0, values) = (generation, large.uses);
                    next.values.extend(large.extents);
                    let run = RunDesc {
                        id,
                        level: 0,
                        first_l0,
                        last_l0,
                        extents: used.into(),
                        values,
                        shape,
                        settled,
                        cut: None,
                    };
                    new_run = Some(run.clone());
                    if !on(I19RunInMemoryOnly) {
                        next.runs.push(run);
                    }
                }
                close_gaps(&mut next.runs);
                Ok(())
            },
            &[building.taken(), values.taken()].concat(),
            &unused,
            &Flip { superseded: kept.superseded, ..Flip::default() },
        )?;
        self.shared.counters.flushed_pages.fetch_add(building.written, Relaxed);
        building.committed();
        drop(building);
        values.committed();
        self.pause(Pause::FlushCommitted);

        let mut indexed = true;
        if on(I6InstalledBeforeIndexed) {
            self.install_flushed(generation, new_run.clone(), indexed)?;
            self.pause(Pause::FlushInstalled);
            self.index_generation(&view, oldest, &kept);
            return Ok(true);
        }
        if on(I6MemtableDroppedFirst) {
            self.install_flushed(generation, None, indexed)?;
            self.pause(Pause::FlushIndexed);
        }
        if new_run.is_some() {
            indexed = self.index_generation(&view, oldest, &kept);
        }
        self.pause(Pause::FlushIndexed);
        self.install_flushed(generation, new_run, indexed)?;
        self.shared.counters.left_out(kept.dropped);
        self.pause(Pause::FlushInstalled);
        self.shared.counters.flushes.fetch_add(1, Relaxed);
        self.shared.judge_index_anew();
        drop(view);
        self.reclaim();
        self.host.forget_log(generation)?;
        Ok(true)
    }

    /// What an earlier flush of the generation came to that failed (for want of memory) between its flip and its
    /// superversion: the run, if it has rows. How far that flush had got with the index nobody knows, so the run counts as
    /// not indexed.
    fn flipped(&self, generation: L0Id) -> Option<Option<RunDesc>> {
        let ledger = self.shared.ledger.lock();
        let manifest = &ledger.manifest;
        (manifest.flushed >= generation).then(|| manifest.runs.iter().rev().find(|r| r.last_l0 == generation).cloned())
    }

    /// `indexed`: all keys of the run are in the index.
    fn install_flushed(&self, generation: L0Id, new_run: Option<RunDesc>, indexed: bool) -> Result<()> {
        self.shared.install(|current| {
            let mut parts = current.edit();
            parts.frozen.retain(|g| g.table.generation() != generation);
            parts.flushed = generation;
            if !indexed {
                // Entries of its keys, where older runs have them, or are just coming into the index, do not tell of it.
                self.shared.strays.come(L0Id(generation.0 + 1));
                // Also where the index covers no run at all: one that is coming into it is older than this one, which it would then cover.
                self.shared.evictions.fetch_add(EVICTION, SeqCst);
                parts.indexed_from = parts.indexed_from.max(L0Id(generation.0 + 1));
            }
            if let Some(run) = new_run {
                parts.runs.insert(0, Arc::new(scope::with(|| run.clone())));
            }
            SuperVersion::new(current.number + 1, parts)
        })?;
        Ok(())
    }

    /// Writes what is kept of the memtable, in key order.
    fn write_generation(
        &self,
        view: &SuperVersion,
        generation: &Generation,
        building: &mut Building<'_, '_, H>,
        values: &mut ValueWriter<'_, '_, H>,
        kept: &mut Kept,
    ) -> Result<RunShape> {
        let mut horizon = self.host.horizon();
        let last_l0 = generation.table.generation();
        self.fetch_log(last_l0)?;
        let first_l0 = L0Id(view.runs.first().map_or(0, |r| r.last_l0.0) + 1);
        let options = self.shared.options.run().at_level(0, H::FILTER_STEP);
        let mut writer = RunWriter::new(&mut *building, &options, first_l0, last_l0)?;
        let mut retention = Retention::default();
        let mut row = RowBuf::default();
        let mut key: &[u8] = &[];
        let log = self.host.log_reader(last_l0)?;
        let (mut rows, total) = (0, generation.table.rows());
        for node in generation.table.in_order(|node| log.touch(node.addr())) {
            if rows % ROWS_A_REPORT == 0 {
                self.host.at_work(Work::Flush, rows, total);
            }
            rows += 1;
            if node.key() != key {
                key = node.key();
                retention.next_key();
                kept.keys.push(None);
            }
            let head = node.head();
            let fate = horizon.fate(&head);
            kept.in_progress |= matches!(fate, Fate::InProgress);
            let keep = match retention.decide(&head, fate, &mut kept.superseded) {
                Keep::Yes => true,
                Keep::No => false,
                Keep::OverOlder => self.may_be_older(view, 0, key)?,
            };
            if keep {
                copy_record(&log.row(node.addr())?, &node, &mut row)?;
                values.place(&mut row)?;
                writer.add(&row.as_ref())?;
                if let Some(newest @ None) = kept.keys.last_mut() {
                    *newest = Some(head.flags.is_tombstone());
                }
            } else {
                kept.dropped += 1;
            }
        }
        Ok(writer.finish()?.0)
    }

    /// All of the generation's log will be read now.
    fn fetch_log(&self, generation: L0Id) -> Result<()> {
        let of_it = |log: &LogExtent| (log.generation == generation).then_some(log.extent);
        let extents: Vec<Extent> = self.shared.ledger.lock().manifest.log_extents.iter().filter_map(of_it).collect();
        self.host.fetch_log(&extents)
    }

    /// Whether one of the runs from `from` on (newest first) may hold the key.
    pub(super) fn may_be_older(&self, view: &SuperVersion, from: usize, key: &[u8]) -> Result<bool> {
        let mut hash = None;
        if on(I9OlderRunsIgnored) {
            return Ok(false);
        }
        for desc in view.runs.iter().skip(from) {
            if !desc.spans(key) {
                continue;
            }
            let hash = *hash.get_or_insert_with(|| key_hash(key));
            if desc.run().may_contain(&Pages(&self.host), hash)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Raises the index entries of every key kept. Where the index may not grow, the oldest runs leave it, or all if it is not worth its
    /// upkeep. False: this one has to do without it.
    fn index_generation(&self, view: &SuperVersion, generation: &Generation, kept: &Kept) -> bool {
        let l0 = generation.table.generation();
        if self.shared.index_is_left_alone() {
            // Where there is no memory for the superversion that says so, the entries stay until the next flush.
            let _ = self.empty_index(l0);
            // The next memtable is as large as what the index has left allows.
            loosekv_shm::heap::free_chunks();
            return false;
        }
        let mut floor = view.indexed_from;
        let mut key: &[u8] = &[];
        let mut newest_of_keys = generation.table.in_order(|_| ()).filter(|node| {
            let first = node.key() != key;
            key = node.key();
            first
        });
        let mut batch = Vec::with_capacity(kept.keys.len().min(RAISED_AT_ONCE));
        for piece in kept.keys.chunks(RAISED_AT_ONCE) {
            batch.clear();
            for (newest, node) in piece.iter().zip(&mut newest_of_keys) {
                if let Some(tombstone) = newest.filter(|tombstone| !(*tombstone && on(I3TombstonesNotIndexed))) {
                    batch.push((node.key(), IndexEntry { l0, tombstone }));
                }
            }
            let mut rest = batch.as_slice();
            while let Err(full) = self.shared.index.raise_batch(rest, &self.host.budgets().key_index) {
                rest = rest.get(full.done..).unwrap_or_default();
                if self.shared.leaves_index_alone(view) {
                    let _ = self.empty_index(l0);
                    return false;
                }
                match self.evict_oldest(floor, l0) {
                    Ok(Some(higher)) => floor = higher,
                    // Nothing is left to evict, or no memory for it: this run, too, stays outside the index.
                    Ok(None) | Err(_) => return false,
                }
            }
        }
        true
    }
}

/// What a flush decided.
#[derive(Default)]
struct Kept {
    /// For each key of the memtable in order: whether its newest kept version is a tombstone; `None`: none was kept.
    keys: Vec<Option<bool>>,
    in_progress: bool,
    superseded: Option<crate::types::Writer>,
    dropped: u64,
}
