//! What a store, its snapshots, its iterators and its threads share: the tree over the host, kept until the last of them is gone.

use super::commit::Committer;
use super::fs::Fs;
use super::health::lock;
use super::host::EmbeddedHost;
use super::meta_file::META_NAME;
use super::metrics::{add, get, Level, Metrics, Statistics};
use super::options::Options;
use super::page_file::PAGES_NAME;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::key_index::SweepCursor;
use crate::tree::{Finding, Phase, Shared, Tree, Watch};
use crate::types::{Head, PageNo, RowBuf, Verdict};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Pages of the page file that are worth moving others for, and giving back: 1 MB.
const WORTH_SINKING: u32 = 128;

/// A memtable that is filled to this part is written to a run while nobody writes.
const WORTH_A_RUN: u64 = 16;

pub struct Core {
    /// Refers to `shared`, and so goes first; see `drop`.
    tree: Option<Tree<'static, EmbeddedHost>>,
    shared: NonNull<Shared<EmbeddedHost>>,
    host: EmbeddedHost,
    pub committer: Committer,
    /// Where the sweep for tombstones in the key index stands; `None`: none is due.
    sweep: Mutex<Option<SweepCursor>>,
}

// SAFETY: the shared state is made for use by several threads (and processes), and the pointer owns it.
unsafe impl Send for Core where Shared<EmbeddedHost>: Send + Sync {}
// SAFETY: as above.
unsafe impl Sync for Core where Shared<EmbeddedHost>: Send + Sync {}

impl Drop for Core {
    fn drop(&mut self) {
        self.tree = None;
        // SAFETY: from `Box::into_raw`; the tree, the only one that referred to it, is gone.
        drop(unsafe { Box::from_raw(self.shared.as_ptr()) });
    }
}

/// What is wrong with a page is wrong with one of the page file, or with the meta page, which has files of its own.
#[cold]
pub fn in_pages(error: Error) -> Error {
    error.in_file(|page| if page == PageNo(0) { META_NAME } else { PAGES_NAME })
}

impl Core {
    pub fn open(fs: Arc<dyn Fs>, dir: &Path, options: &Options) -> Result<Core> {
        options.check()?;
        let host = EmbeddedHost::open(fs, dir, options)?;
        if host.read_meta()?.is_none() {
            let id = host.fs.random().map_err(|e| Error::io("cannot get random bits", e))?;
            host.set_storage_id(id);
            Tree::create(&host, id)?;
        }
        let shared = Tree::load(&host, &options.tree).map_err(in_pages)?;
        let shared = NonNull::from(Box::leak(shared));
        // SAFETY: lives until `drop`, which lets go of the tree first; the tree is not given out but by reference.
        let tree = Tree::new(unsafe { shared.as_ref() }, host.clone());
        let core = Core { tree: Some(tree), shared, host, committer: Committer::default(), sweep: Mutex::default() };
        // Whatever has been replayed was written; the next row id is not below any writer.
        core.host.sequences.publish(core.tree()?.next_row_id().0);
        core.measure()?;
        Ok(core)
    }

    pub fn tree(&self) -> Result<&Tree<'static, EmbeddedHost>> {
        self.tree.as_ref().ok_or_else(|| Error::Unavailable("the store is gone".into()))
    }

    pub fn host(&self) -> &EmbeddedHost {
        &self.host
    }

    /// Copies the newest version of `key` that `sees` admits to `out`. False: there is none, or it is a tombstone.
    pub fn find(&self, key: &[u8], sees: impl Fn(&Head) -> bool, out: &mut RowBuf) -> Result<bool> {
        add(&self.host.counters.gets, 1);
        if key.is_empty() {
            return Ok(false);
        }
        let choose = |head: &Head| if sees(head) { Verdict::Take } else { Verdict::Skip };
        let found = self.tree()?.find(key, |head, _| choose(head), out).map_err(in_pages)?;
        Ok(found.taken && !out.head.flags.is_tombstone())
    }

    /// As [`Core::find`], for whoever reads what is newest. What is visible is looked at anew for each version: a version that
    /// became visible after the look began is as good an answer, and no flush can have dropped the last one that was.
    pub fn find_newest(&self, key: &[u8], out: &mut RowBuf) -> Result<bool> {
        self.find(key, |head| head.writer.0 <= self.host.sequences.visible(), out)
    }

    /// Flushes the oldest frozen memtable. False: there is none.
    pub fn flush_one(&self) -> Result<bool> {
        let done = {
            let _one = lock(&self.host.flushing);
            self.host.health.check()?;
            let _under_way = self.host.pace.flush_begins();
            let done = self.tree()?.flush_one().map_err(in_pages)?;
            // Counted before anybody else can find that there is nothing left to do.
            add(&self.host.counters.flushes, u64::from(done));
            done
        };
        if done {
            self.measure()?;
            self.host.pace.flushed();
        }
        Ok(done)
    }

    /// Does a piece of merging. False: nothing is due.
    pub fn compact_one(&self, force: bool) -> Result<bool> {
        let done = {
            let _one = lock(&self.host.merging);
            self.host.health.check()?;
            let done = self.tree()?.compact_one(force).map_err(in_pages)?;
            if done {
                lock(&self.sweep).get_or_insert_with(SweepCursor::new);
            }
            done
        };
        if done {
            self.measure()?;
        }
        Ok(done)
    }

    /// Moves pages from the end of the page file into free space below, or gives a free end back. False: too little would be
    /// won.
    pub fn sink_one(&self) -> Result<bool> {
        let _one = lock(&self.host.merging);
        self.host.health.check()?;
        let tree = self.tree()?;
        if tree.sink_one(WORTH_SINKING).map_err(in_pages)? {
            return Ok(true);
        }
        let (tail, pages) = tree.shared().tail();
        Ok(tail >= WORTH_SINKING.max(pages / 16) && tree.give_back_tail()? > 0)
    }

    /// Changes written since the open.
    pub fn changes(&self) -> u64 {
        get(&self.host.counters.changes)
    }

    /// Look-ups and scans since the open.
    pub fn reads(&self) -> u64 {
        let scans = self.tree().map_or(0, |tree| {
            let counters = &tree.shared().counters;
            get(&counters.guided_scans) + get(&counters.merged_scans)
        });
        get(&self.host.counters.gets) + scans
    }

    /// Whether nothing is being written, and whether that has been so for a while.
    pub fn set_at_rest(&self, at_rest: bool, quiet: bool) {
        if let Ok(tree) = self.tree() {
            tree.shared().at_rest.store(at_rest, Ordering::Relaxed);
            // Nothing logs what a merge writes here.
            tree.shared().rested.store(at_rest, Ordering::Relaxed);
            tree.shared().tidy.store(quiet, Ordering::Relaxed);
        }
    }

    /// Has what is in memory written to a run, if that is worth a run of its own: its log takes more room, and an open would
    /// have to read it. True: that has begun.
    pub fn write_out(&self) -> bool {
        let worth = self.host.log.newest_bytes() > self.host.options.tree.memtable_bytes / WORTH_A_RUN;
        // What goes wrong is the next writer's concern.
        worth && self.tree().is_ok_and(|tree| tree.rotate().is_ok())
    }

    /// Does a piece of index building. False: the index is as complete as it may be.
    pub fn index_one(&self) -> Result<bool> {
        let _one = lock(&self.host.merging);
        self.tree()?.rebuild_index().map_err(in_pages)
    }

    /// Builds the key index, as far as there is room for it. True: it covers every run.
    pub fn index_all(&self) -> Result<bool> {
        while self.index_one()? {}
        Ok(self.tree()?.shared().coverage().complete)
    }

    /// Looks at some more entries of the key index whose keys are deleted for everybody. False: no sweep is due, or it has to
    /// wait until the index is complete.
    pub fn sweep_one(&self) -> Result<bool> {
        let _one = lock(&self.host.merging);
        let mut sweep = lock(&self.sweep);
        let Some(cursor) = sweep.as_mut() else { return Ok(false) };
        let swept = self.tree()?.sweep_tombstones(cursor).is_some();
        if cursor.is_done() {
            *sweep = None;
        }
        Ok(swept)
    }

    /// Checks the store, beside whatever else goes on.
    pub fn check(&self) -> Result<Vec<Finding>> {
        struct Beside<'c>(&'c Core);
        impl Watch for Beside<'_> {
            fn progress(&mut self, _phase: Phase, _done: u64, _total: u64) -> Result<()> {
                self.0.host.health.check()
            }

            fn alone(&mut self, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
                let _no_merge = lock(&self.0.host.merging);
                let _no_flush = lock(&self.0.host.flushing);
                work()
            }
        }
        self.tree()?.check(&mut Beside(self))
    }

    /// Tells the pace how things stand, and lets go of what no reader needs any more.
    fn measure(&self) -> Result<()> {
        let runs = self.tree()?.manifest().runs.iter().filter(|r| r.level == 0).count();
        let frozen = self.host.log.segment_count().saturating_sub(1);
        self.host.log.release(&self.tree()?.shared().logs_in_use());
        self.host.pace.set_garbage(self.tree()?.shared().garbage_beyond());
        self.host.pace.set(u32::try_from(frozen).unwrap_or(u32::MAX), u32::try_from(runs).unwrap_or(u32::MAX));
        Ok(())
    }

    pub fn metrics(&self) -> Metrics {
        let (host, counters) = (&self.host, &self.host.counters);
        // SAFETY: lives until `drop`.
        let shared = unsafe { self.shared.as_ref() };
        let (tree, covered) = (&shared.counters, shared.coverage());
        Metrics {
            writes: get(&counters.writes),
            changes: get(&counters.changes),
            user_bytes: get(&counters.user_bytes),
            groups: get(&counters.groups),
            gets: get(&counters.gets),
            runs_looked_into: get(&tree.runs_looked_into),
            filter_probes: get(&tree.filter_probes),
            filter_hits: get(&tree.filter_hits),
            log_bytes: get(&host.log.counters.bytes),
            log_frames: get(&host.log.counters.frames),
            log_syncs: get(&host.log.counters.syncs),
            pages_read: get(&host.pages.reads),
            page_bytes_written: get(&host.pages.written),
            meta_flips: get(&counters.meta_flips),
            flushes: get(&counters.flushes),
            merges: get(&tree.compactions),
            slices: get(&tree.slices),
            runs_moved: get(&tree.runs_moved),
            stale_dropped: get(&tree.stale_dropped),
            index_keys: shared.index.len() as u64,
            index_bytes: shared.index.bytes(),
            index_complete: covered.complete,
            indexed_from: covered.from.0,
            delays: get(&counters.delays),
            delayed: Duration::from_nanos(get(&counters.delayed_nanos)),
            stalls: get(&counters.stalls),
            stalled: Duration::from_nanos(get(&counters.stalled_nanos)),
            snapshots: host.sequences.held().0,
            visible_sequence: host.sequences.visible(),
        }
    }

    pub fn statistics(&self) -> Result<Statistics> {
        let manifest = self.tree()?.manifest();
        let mut statistics = Statistics {
            version: manifest.version,
            file_pages: self.host.pages.pages(),
            flushed: manifest.flushed.0,
            log_segments: self.host.log.segment_count(),
            log_bytes: self.host.log.bytes(),
            memtable_bytes: self.host.budgets.memtables.used.load(Ordering::Relaxed),
            key_index_bytes: self.host.budgets.key_index.used.load(Ordering::Relaxed),
            ..Statistics::default()
        };
        for run in &manifest.runs {
            let level = usize::from(run.level);
            if statistics.levels.len() <= level {
                statistics.levels.resize(level + 1, Level::default());
            }
            let pages: u64 = run.extents.iter().map(|e| u64::from(e.pages)).sum();
            if let Some(level) = statistics.levels.get_mut(level) {
                level.runs += 1;
                level.rows += run.rows();
                level.pages += pages;
            }
            statistics.rows += run.rows();
            statistics.tombstones += run.left_of(run.shape.tombstones);
            statistics.run_pages += pages;
        }
        statistics.value_pages = manifest.values.iter().map(|e| u64::from(e.pages)).sum();
        Ok(statistics)
    }
}
