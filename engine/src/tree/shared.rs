//! A table's state in shared memory: a cache of its pages, to be rebuilt from them at any time (I19).
//!
//! Latches, in the order in which they may nest: `rotation`, key stripes, `ledger`, `versions`, the index's own; that of
//! `barren` stands alone. The ledger's is held over
//! a flip; the versions' only while a superversion is replaced.

use crate::error::{Consumer, Error, Result};
use crate::extent::FreeSpace;
use crate::host::{Host, Lagging};
use crate::key_index::KeyIndex;
use crate::manifest::{Manifest, RunDesc};
use crate::memtable::Memtable;
use crate::mutation::{on, Mutation::*};
use crate::options::TreeOptions;
use crate::row_cache::CachedTable;
use crate::tree::barren::Barren;
use crate::tree::given_up::BySeq;
use crate::tree::indexing::Misfit;
use crate::tree::latched::Latched;
use crate::tree::live_options::LiveOptions;
use crate::tree::pick::is_piled_up;
use crate::tree::strays::Strays;
use crate::tree::value_space::ValueSpace;
use crate::tree::version::{Current, Generation, Retired, SuperVersion};
use crate::tree::worth::Worth;
use crate::types::{Extent, ExtentSeq, L0Id, RowId, Writer};
use loosekv_shm::scope;
use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::Arc;

/// Latches over the keys that are being written.
pub const STRIPES: usize = 64;

/// When scans have begun in so many runs more than in one each, the host is told, and tidying may be worth while.
pub(super) const WORTH_TELLING: u64 = if cfg!(test) { 16 } else { 1 << 14 };

/// The storage id of no storage: that of a table whose first meta page is still to come.
pub const BLANK: u64 = 0;

pub struct Shared<H: Host> {
    pub options: LiveOptions,
    /// [`BLANK`] where a standby found no meta page; until it has followed the first.
    storage_id: AtomicU64,
    /// Whose rows those of the table are in the row cache.
    pub cached: CachedTable,
    /// Who links rows holds it shared, rotation exclusively.
    pub rotation: H::Latch,
    pub stripes: [H::Latch; STRIPES],
    pub ledger: Latched<H::Latch, Ledger>,
    pub versions: Latched<H::Latch, Versions>,
    pub current: Current,
    pub index: KeyIndex<H::Latch>,
    /// Runs that begin below this left the index, for superversions before number `evicted_at` (later ones know).
    pub evicted_below: AtomicU64,
    pub evicted_at: AtomicU64,
    pub strays: Strays,
    /// How often entries left the index to make room in it, twice; and one, while some are leaving.
    pub evictions: AtomicU64,
    pub misfit: Misfit,
    pub worth: Worth,
    /// In a superversion before this one, an index entry may name a run that is newer than the one that holds the key:
    /// runs that are one run by now were several then.
    pub coarse_before: AtomicU64,
    /// In a superversion before this one, a key may have no index entry because a merge has dropped all its versions: those
    /// in runs that are not indexed are still there, and what shadows them has no entry any more.
    pub gone_before: AtomicU64,
    /// A flip has changed the runs, and the superversion that says so could not be installed (module `behind`).
    pub behind: AtomicBool,
    /// It was loaded with more memtables than a crash leaves, or with runs that have piled up: writers flush and merge them first.
    pub overdue: AtomicBool,
    /// So many memtables in a row had to be little, for there was no memory for others.
    pub little: AtomicU32,
    /// The superversion of this number from now on finds no memory; 0: each does.
    #[cfg(test)]
    pub refuses: AtomicU64,
    /// What `rows_dropped` was when the host last began to take what points to such rows out of its own indexes. At first unknown.
    pub cleaned: AtomicU64,
    /// Newest L0 id of which a tombstone's index entry was purged.
    pub purged: AtomicU64,
    /// Nothing has been written for a while, says the host: the key index need not leave room to flushes.
    pub at_rest: AtomicBool,
    /// Nothing has been for long: garbage is merged away that is put up with otherwise.
    pub rested: AtomicBool,
    /// The host believes that nobody will write for a while.
    pub tidy: AtomicBool,
    /// How often scans have begun in a run since the last merge, beyond once each: what fewer runs would have spared them.
    pub sought: AtomicU64,
    /// It has become a good many more since that was last looked at: what scans have paid counts for as long as they go on, and is not
    /// for merges among later writes.
    pub told: AtomicBool,
    /// How many scans there had been when the host last saw rows being written.
    pub scans_while_written: AtomicU64,
    /// How many rows had been written when the host last looked, and since when, by its clock, it is so many.
    pub last_written: AtomicU64,
    pub written_until: AtomicU64,
    /// Where scans need not look.
    pub barren: Barren<H::Latch>,
    pub next_row: AtomicU64,
    pub last_writer: AtomicU64,
    pub counters: Counters,
    /// The host's part of the row log.
    pub log: H::LogState,
}

/// What is on disk, and what is free there.
pub struct Ledger {
    pub manifest: Manifest,
    /// The manifest's body, as it was last written.
    pub body: Vec<u8>,
    pub free: FreeSpace,
    /// There was no room on the disk when the store was last to grow.
    pub full: bool,
    /// By how many pages it could grow when that was last asked, if the host knows.
    pub left: Option<u64>,
    /// See [`Host::log_pages`], when that was last asked.
    pub logged_outside: u32,
    /// Given up by a flip, but superversions that name them may still be pinned.
    pub limbo: Vec<Limbo>,
    /// Out of limbo, but readers elsewhere may need them.
    pub held: Vec<Held>,
    /// Version of the manifest when extents last came out of limbo, and the one up to which the reuse of extents has been
    /// told to those who replay flips.
    pub freed: u64,
    pub reuse_told: u64,
    /// The next flip writes the manifest's body as low as it can: pages are sinking. (Elsewhere it would cut large pieces.)
    pub body_sinks: bool,
    pub values: ValueSpace,
}

/// An extent that waits for its last readers: the superversions that name its owner.
#[derive(Clone, Copy, Debug)]
pub struct Limbo {
    pub extent: Extent,
    pub owner: Owner,
}

/// An extent that waits for readers elsewhere whose snapshots do not see this writer.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub extent: Extent,
    pub since: Writer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A run had these pages.
    Run(Extent),
    Log(L0Id),
    /// A value extent: rows of generations up to this one may point into it, and runs that say so.
    Values(ExtentSeq, L0Id),
}

/// The superversions that are not current any more but may be pinned, oldest first.
#[derive(Default)]
pub struct Versions {
    pub retired: Vec<Retired>,
    pub next_generation: L0Id,
}

impl Drop for Versions {
    /// Those that are pinned by nobody; there are no others when a table's state is given up in an orderly way.
    fn drop(&mut self) {
        scope::with(|| {
            let retired = std::mem::take(&mut self.retired);
            retired.into_iter().filter(|version| !version.is_pinned()).for_each(Retired::free);
        });
    }
}

/// What happened to the table since it was loaded.
#[derive(Default, Debug)]
pub struct Counters {
    pub rows_written: AtomicU64,
    /// Of these, those over another version of their key, as far as their writers knew; less what merges have dropped since.
    pub rows_replaced: AtomicU64,
    /// And those whose writers had not looked.
    pub rows_blind: AtomicU64,
    pub bytes_written: AtomicU64,
    pub rotations: AtomicU64,
    pub flushes: AtomicU64,
    pub flushed_pages: AtomicU64,
    pub compactions: AtomicU64,
    pub compacted_pages: AtomicU64,
    /// Slices that merges were done in.
    pub slices: AtomicU64,
    /// Runs that came to another level as they are.
    pub runs_moved: AtomicU64,
    /// Values that merges left out because a newer run outside of them holds a version that everybody sees.
    pub stale_dropped: AtomicU64,
    /// Row versions that flushes and merges left out, for whatever reason, and that no new superversion has (or more).
    pub rows_dropped: AtomicU64,
    pub stalls: AtomicU64,
    pub gets: AtomicU64,
    pub runs_looked_into: AtomicU64,
    /// Rows found by the index alone, and not read.
    pub left_unread: AtomicU64,
    pub filter_probes: AtomicU64,
    pub filter_hits: AtomicU64,
    pub guided_scans: AtomicU64,
    pub merged_scans: AtomicU64,
    /// Pages of the value log written, by writers, flushes and merges.
    pub value_pages: AtomicU64,
    /// Values that merges moved out of extents of mostly garbage.
    pub values_moved: AtomicU64,
}

impl Counters {
    /// So many row versions are in no superversion any more: to be called when that is so, and not before, for [`Tree::note_cleaned`].
    pub(super) fn left_out(&self, rows: u64) {
        self.rows_dropped.fetch_add(rows, SeqCst);
    }

    /// A merge has dropped so many row versions.
    pub(super) fn dropped(&self, rows: u64) {
        let _ = self.rows_replaced.fetch_update(Relaxed, Relaxed, |replaced| Some(replaced.saturating_sub(rows)));
    }
}

/// Which runs the key index covers: those that begin at an L0 id or above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    pub from: L0Id,
    /// These are all.
    pub complete: bool,
}

impl<H: Host> Shared<H> {
    /// Puts the parts together. To be called in the shared heap's scope.
    pub fn assemble(
        options: TreeOptions,
        manifest: Manifest,
        body: Vec<u8>,
        free: FreeSpace,
        first: SuperVersion,
        next_row: RowId,
        last_writer: Writer,
    ) -> Shared<H> {
        let next_generation = L0Id(first.active().table.generation().0 + 1);
        // Free extents may have come out of limbo at any time before.
        let freed = manifest.version.max(1);
        Shared {
            options: LiveOptions::new(&options),
            storage_id: AtomicU64::new(manifest.storage_id),
            cached: CachedTable::default(),
            rotation: loosekv_shm::RawLatch::new(),
            stripes: std::array::from_fn(|_| loosekv_shm::RawLatch::new()),
            ledger: Latched::new(Ledger {
                manifest,
                body,
                free,
                limbo: Vec::new(),
                held: Vec::new(),
                freed,
                reuse_told: 0,
                full: false,
                left: None,
                logged_outside: 0,
                body_sinks: false,
                values: ValueSpace::default(),
            }),
            versions: Latched::new(Versions { retired: Vec::new(), next_generation }),
            current: Current::new(Box::new(first)),
            index: KeyIndex::new(),
            evicted_below: AtomicU64::new(0),
            evicted_at: AtomicU64::new(0),
            strays: Strays::default(),
            evictions: AtomicU64::new(0),
            misfit: Misfit::default(),
            worth: Worth::default(),
            coarse_before: AtomicU64::new(0),
            gone_before: AtomicU64::new(0),
            behind: AtomicBool::new(false),
            overdue: AtomicBool::new(false),
            #[cfg(test)]
            refuses: AtomicU64::new(0),
            cleaned: AtomicU64::new(u64::MAX),
            purged: AtomicU64::new(0),
            at_rest: AtomicBool::new(false),
            rested: AtomicBool::new(false),
            tidy: AtomicBool::new(false),
            sought: AtomicU64::new(0),
            told: AtomicBool::new(false),
            scans_while_written: AtomicU64::new(0),
            last_written: AtomicU64::new(u64::MAX),
            written_until: AtomicU64::new(0),
            barren: Barren::new(),
            next_row: AtomicU64::new(next_row.0),
            little: AtomicU32::new(0),
            last_writer: AtomicU64::new(last_writer.0),
            counters: Counters::default(),
            log: H::LogState::default(),
        }
    }

    /// What tells the table's pages from those of another that had the same file before.
    pub fn storage_id(&self) -> u64 {
        self.storage_id.load(Relaxed)
    }

    /// No meta page was there yet: the table is empty.
    pub fn is_blank(&self) -> bool {
        self.storage_id() == BLANK
    }

    /// Whether a meta page with this storage id is of this table.
    pub fn is_of(&self, storage_id: u64) -> bool {
        self.is_blank() || self.storage_id() == storage_id
    }

    pub(super) fn become_of(&self, storage_id: u64) {
        self.storage_id.store(storage_id, Relaxed);
    }

    /// Makes sure that the next `install` finds memory. It is what a flush, a merge and whatever takes keys out of the index end with,
    /// and what a memtable is frozen by, which is flushed then: all of them free memory.
    pub fn reserve_install(&self) -> Result<()> {
        reserve_version(self.current.pin::<H>().runs.len() + 1, None).map_err(|_| self.full(Consumer::Versions))
    }

    /// Whether more memtables wait for their flush than there were before a crash: all that may wait, and the one that was filled.
    pub fn note_overdue(&self) -> bool {
        let overdue = self.current.pin::<H>().frozen.len() > self.options.max_frozen() as usize + 1;
        self.overdue.store(overdue, Relaxed);
        overdue
    }

    /// Once it is loaded: whether writers are to flush, or to merge.
    pub(super) fn note_overdue_at_load(&self) {
        let piled_up = {
            let view = self.current.pin::<H>();
            is_piled_up(view.runs.iter().take_while(|run| run.level == 0).count(), &self.options.get())
        };
        if !self.note_overdue() && piled_up {
            self.overdue.store(true, Relaxed);
        }
    }

    /// A copy of a run for superversions.
    pub fn share(&self, run: &RunDesc) -> Result<Arc<RunDesc>> {
        share_run(run).ok_or_else(|| self.full(Consumer::Versions))
    }

    /// Replaces the current superversion by what `edit` makes of it (I8: an edit of the current one, under the latch).
    pub fn install(&self, edit: impl FnOnce(&SuperVersion) -> Result<SuperVersion>) -> Result<u64> {
        #[cfg(test)]
        if self.refuses.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) == Ok(1) {
            return Err(self.full(Consumer::Versions));
        }
        self.reserve_install()?;
        let mut versions = self.versions.lock();
        scope::with(|| {
            versions.retired.try_reserve(1).map_err(|_| self.full(Consumer::Versions))?;
            let current = self.current.pin::<H>();
            let next = edit(&current)?;
            debug_assert!(next.number == current.number + 1);
            drop(current);
            let number = next.number;
            let old = self.current.replace(Box::new(next));
            versions.retired.push(old);
            Ok(number)
        })
    }

    /// Frees the superversions that nobody has pinned, and moves what only they named from limbo to the free space: now, or
    /// when the readers elsewhere, too, are those of a later manifest. However much that is: as with heap, whoever reads for long
    /// makes the store grow. `discard`: is told which pages of the log nobody reads here any more, before others may write there.
    pub fn reap(&self, ledger: &mut Ledger, lagging: Option<Lagging>, discard: impl FnOnce(&[Extent])) {
        let gone = self.unnamed(ledger);
        let of_log = gone.iter().filter(|limbo| matches!(limbo.owner, Owner::Log(_)));
        discard(&of_log.map(|limbo| limbo.extent).collect::<Vec<_>>());
        let mut unnamed: Vec<Extent> = gone.iter().map(|limbo| limbo.extent).collect();
        let lagging = lagging.filter(|_| scope::with(|| ledger.held.try_reserve(unnamed.len())).is_ok());
        match lagging {
            Some(lagging) => {
                ledger.held.extend(unnamed.drain(..).map(|extent| Held { extent, since: lagging.next }));
                ledger.held.retain(|held| {
                    let keep = held.since >= lagging.oldest;
                    if !keep {
                        unnamed.push(held.extent);
                    }
                    keep
                });
            }
            None => unnamed.extend(ledger.held.drain(..).map(|held| held.extent)),
        }
        if !unnamed.is_empty() {
            ledger.freed = ledger.manifest.version;
        }
        scope::with(|| unnamed.into_iter().for_each(|extent| ledger.free.give(extent)));
    }

    /// Frees the superversions that nobody has pinned, and takes what only they named out of limbo.
    pub fn unnamed(&self, ledger: &mut Ledger) -> Vec<Limbo> {
        let mut versions = self.versions.lock();
        let mut gone = Vec::new();
        scope::with(|| {
            let mut at = 0;
            while at < versions.retired.len() {
                if versions.retired.get(at).is_some_and(|v| v.is_pinned()) {
                    at += 1;
                } else {
                    gone.push(versions.retired.remove(at));
                }
            }
            let any = !gone.is_empty();
            gone.into_iter().for_each(Retired::free);
            if any {
                // What a writer retires would stay with him, and with it the memtables, until he has retired a bag full.
                loosekv_shm::epoch::collect(1);
            }
        });
        // The current one too: a flip comes before the superversion that no longer names what it gave up.
        let current = self.current.pin::<H>();
        let namers: Vec<&SuperVersion> = Some(&*current)
            .filter(|_| !on(ExtentsReusedCurrent))
            .into_iter()
            .chain(versions.retired.iter().map(|v| &**v).filter(|_| !on(ExtentsReusedPinned)))
            .collect();
        let of_runs = ledger.limbo.iter().any(|waiting| matches!(waiting.owner, Owner::Run(_)));
        let moved = |run: &RunDesc| current.runs.iter().any(|now| now.id == run.id && now.extents != run.extents);
        let runs = namers.iter().filter(|_| of_runs).flat_map(|version| &version.runs);
        let pages = BySeq::new(runs.filter(|run| !on(MovedUnnamed) || !moved(run)).flat_map(|run| &run.extents));
        let named = |owner| match owner {
            Owner::Run(extent) => pages.shared_with(&extent),
            Owner::Values(..) if on(I16PinnedIgnored) => current.names(owner),
            Owner::Values(..) if on(I16CurrentIgnored) => versions.retired.iter().any(|version| version.names(owner)),
            _ => namers.iter().any(|version| version.names(owner)),
        };
        let mut unnamed = Vec::new();
        ledger.limbo.retain(|waiting| {
            let named = named(waiting.owner);
            if !named {
                unnamed.push(*waiting);
            }
            named
        });
        unnamed
    }

    /// The generations whose memtables the superversions name that are pinned, or may yet be: the log of others is read by nobody any
    /// more.
    pub fn logs_in_use(&self) -> Vec<RangeInclusive<L0Id>> {
        let versions = self.versions.lock();
        let current = self.current.pin::<H>();
        let pinned = versions.retired.iter().filter(|v| v.is_pinned()).map(|v| v.generations());
        pinned.chain([current.generations()]).collect()
    }

    /// The least writer of whom a reader may have to ask what became of him, whichever superversion he has pinned. A scan that began
    /// before a run was settled goes on with what the run was then.
    pub fn oldest_asked_about(&self) -> Option<Writer> {
        let asked_about = |view: &SuperVersion| {
            let memtables = view.memtables().filter_map(|memtable| memtable.table.min_writer());
            let unsettled = view.runs.iter().filter(|run| !run.settled).map(|run| run.shape.min_writer);
            memtables.chain(unsettled).min()
        };
        let versions = self.versions.lock();
        let current = self.current.pin::<H>();
        let pinned = versions.retired.iter().filter(|v| v.is_pinned()).filter_map(|v| asked_about(v));
        pinned.chain(asked_about(&current)).min()
    }

    /// Free pages at the end of the page store, and all pages.
    pub fn tail(&self) -> (u32, u32) {
        let ledger = self.ledger.lock();
        (ledger.free.tail(), ledger.free.high())
    }

    /// Place in the view's runs of the newest one that is not indexed in full. To be asked after the index was read: what
    /// has left it since the view was pinned counts, too.
    pub fn first_unindexed(&self, view: &SuperVersion) -> usize {
        if view.number >= self.evicted_at.load(SeqCst) {
            return view.first_unindexed(view.indexed_from);
        }
        view.first_unindexed(view.indexed_from.max(L0Id(self.evicted_below.load(SeqCst))))
    }

    /// Which runs the key index covers now.
    pub fn coverage(&self) -> Coverage {
        let view = self.current.pin::<H>();
        let complete = view.first_unindexed(view.indexed_from) == view.runs.len();
        Coverage { from: view.indexed_from, complete }
    }

    /// Whether a key must be in the run that the index names. To be asked after the index was read.
    pub fn is_exact(&self, view: &SuperVersion) -> bool {
        view.number >= self.coarse_before.load(SeqCst) || on(CoarseTakenForExact)
    }

    /// A memtable for the next generation: smaller than it might be, if the key indexes leave so little that it would not be full before
    /// the memory is. Where there is no more room for one, it is so little that it fits all the same: with it the memtable before it is
    /// frozen, and what that has can be had as soon as it is flushed. Tables of which all memory is in memtables that nobody can freeze
    /// would wait for each other.
    pub fn generation(&self, id: L0Id) -> Result<Arc<Generation>> {
        let base = RowId(self.next_row.load(Relaxed));
        let writer = Writer(self.last_writer.load(Relaxed));
        let view = self.current.pin::<H>();
        let share = loosekv_shm::heap::room_for_blocks() as u64 / MEMTABLES_IN_MEMORY;
        let bytes = self.options.memtable_bytes().min(share.max(LEAST_MEMTABLE));
        let capacity = usize::try_from(bytes).unwrap_or(usize::MAX);
        let like = || Memtable::like(&view.active().table, id, base, writer, capacity);
        let is_little = Cell::new(false);
        let little = || {
            is_little.set(true);
            Memtable::little(id, base, writer)
        };
        let made = as_generation(bytes, true, || like().or_else(little))?;
        match is_little.get() {
            true => _ = self.little.fetch_add(1, Relaxed),
            false => self.little.store(0, Relaxed),
        }
        Ok(made)
    }

    /// Whether a few memtables in a row had to be little, since somebody was last told. The host may have memory that is of less use.
    pub fn is_starved(&self) -> bool {
        self.little.load(Relaxed) >= STARVED && self.little.swap(0, Relaxed) >= STARVED
    }

    pub fn full(&self, consumer: Consumer) -> Error {
        Error::no_memory(consumer, self.options.memtable_bytes())
    }
}

/// Little memtables in a row: one alone is what any table makes do with for a moment.
const STARVED: u32 = 3;

/// So many memtables are to fit in memory: the one that fills, those that wait, one that somebody still looks at.
const MEMTABLES_IN_MEMORY: u64 = 5;
const LEAST_MEMTABLE: u64 = 256 << 10;

/// A list of a few merges that were begun.
const MERGES: usize = 4 * std::mem::size_of::<std::ops::Range<usize>>();

/// Makes sure that a superversion of so many runs finds memory, and something of a size beside.
pub(super) fn reserve_version(runs: usize, beside: Option<usize>) -> std::result::Result<(), loosekv_shm::Full> {
    // The lists of runs: copied, grown by one run (to double their size), and what the run map is made of; and merges.
    let list = runs * std::mem::size_of::<(L0Id, L0Id)>();
    let sizes: Vec<usize> = RESERVE.into_iter().chain([list; 4]).chain([MERGES]).chain(beside).collect();
    loosekv_shm::reserve_all_of_it(&sizes)
}

/// A copy of a run for superversions. `None`: there is no memory for it.
pub(super) fn share_run(run: &RunDesc) -> Option<Arc<RunDesc>> {
    loosekv_shm::reserve_all_of_it(&[std::mem::size_of::<RunDesc>() + 16]).ok()?;
    scope::with(|| run.try_clone().map(Arc::new)).ok()
}

/// Sizes of what installing a superversion allocates.
const RESERVE: [usize; 4] = [std::mem::size_of::<SuperVersion>(), GENERATION, 1024, 2 * 1024];

/// One that is shared.
const GENERATION: usize = std::mem::size_of::<Generation>() + 16;

/// An empty memtable for what is in the log already.
pub fn generation_of_log(id: L0Id, base: RowId, writer: Writer, bytes: u64) -> Result<Arc<Generation>> {
    let capacity = usize::try_from(bytes).unwrap_or(usize::MAX);
    as_generation(bytes, false, || Memtable::of_log(id, base, writer, capacity))
}

/// The same, for a table that comes into memory and may only be read: a little one, where there is no room for another.
pub fn first_generation(id: L0Id, base: RowId, writer: Writer, bytes: u64) -> Result<Arc<Generation>> {
    let capacity = usize::try_from(bytes).unwrap_or(usize::MAX);
    let usual = || Memtable::new(id, base, writer, capacity, 0);
    as_generation(bytes, true, || usual().or_else(|| Memtable::little(id, base, writer)))
}

fn as_generation(bytes: u64, counted: bool, make: impl FnOnce() -> Option<Memtable>) -> Result<Arc<Generation>> {
    let full = || Error::no_memory(Consumer::Memtable, bytes);
    loosekv_shm::reserve_emergency(&[GENERATION]).map_err(|_| full())?;
    scope::with(|| {
        let table = make().ok_or_else(full)?;
        let balance = counted.then(|| AtomicI64::new(0));
        Ok(Arc::new(Generation { table, logged: AtomicU64::new(0), apart: AtomicU64::new(0), balance }))
    })
}
