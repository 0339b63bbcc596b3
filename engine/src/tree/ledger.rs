//! Allocation and flips: how the manifest changes.
//!
//! A flip is made of the ledger's current manifest by an edit, under the ledger's latch (I8). What an edit gives up goes
//! to limbo and becomes free when no superversion that names it is pinned any more.
//!
//! The store reaches to the end of whatever is handed out: it grows when an extent is taken that stands past its end. Where it
//! cannot, for the disk is full, the free space is as it was before, and what is asked for is looked for in smaller pieces
//! of the free pages that there are. Until it has grown again, what is under construction takes few pages at a time: a guess
//! that is too high must not leave the value log, or the manifest, without the pages that give others back.
//! See [`super::full_disk`].

use crate::error::{Consumer, Error, Result};
use crate::extent::FreeSpace;
use crate::host::{Flip, Host, SideFile};
use crate::manifest::{BodyRef, LogExtent, Manifest};
use crate::mutation::{on, Mutation::*};
use crate::page::{PageBuf, PageKind, CAPACITY};
use crate::tree::full_disk::Taker;
use crate::tree::given_up::given_up;
use crate::tree::shared::{Ledger, Shared};
use crate::tree::Tree;
use crate::types::{Extent, ExtentSeq, L0Id, Writer};
use loosekv_shm::scope;

/// Smallest free piece that is used for part of a larger allocation.
const LEAST_PIECE: u32 = 32;
/// Pages that something under construction takes at once on a full disk, at least.
const FEW_TAKEN: u32 = 8;
/// A slice of a merge is made of about so many pieces, at most. (With four, much of the store was free in smaller ones.)
const PIECES_OF_SLICE: u32 = 16;
/// So many extents of the log may be small, for want of room: the meta page names them all.
const SMALL_LOG_EXTENTS: usize = 128;
/// Pages of an extent of the log, at most, while there are few; twice as many for so many extents that there are.
const LOG_EXTENT: u32 = 2048;
const EXTENTS_A_DOUBLING: usize = 16;
/// For so many extents that the meta page names the smallest free piece that is used is twice as large.
const NAMED_A_DOUBLING: usize = 32;

/// Twice so many pages for each `doubling` extents that there are.
fn doubled(pages: u32, extents: usize, doubling: usize) -> u32 {
    pages << u32::try_from(extents / doubling).unwrap_or(u32::MAX).min(pages.leading_zeros())
}

/// Pages that something under construction takes at once, at most, which consists of so many pieces: the meta page has to name them until
/// the flip, however large it becomes.
pub(super) fn most_taken(most: u32, pieces: usize) -> u32 {
    doubled(most, pieces, EXTENTS_A_DOUBLING)
}

/// The same on a full disk.
pub(super) fn few_taken(pieces: usize) -> u32 {
    most_taken(FEW_TAKEN, pieces)
}

/// Pages of the next extent of the log, of whose generation extents have so many already, at least `least`. They grow with the generation,
/// and beyond what a tail may well leave unused with the number of all extents, which the meta page has to name.
fn log_extent(held: u32, least: u32, extents: usize) -> u32 {
    (held / 8).clamp(least.max(8), doubled(LOG_EXTENT, extents, EXTENTS_A_DOUBLING))
}

impl Ledger {
    /// For the flip that hands these extents out: the version up to which freed extents are used again from here on, if
    /// one of these was in use before and that has not been told yet.
    pub(super) fn untold_reuse(&self, taken: &[Extent]) -> Option<u64> {
        let again = taken.iter().any(|extent| extent.start.0 < self.manifest.allocated);
        (again && self.freed > self.reuse_told).then_some(self.freed)
    }

    /// For what is under construction on a full disk: as many pages have to stay free, or its flip finds no room for the manifest.
    pub(super) fn for_the_flip(&self) -> u32 {
        BodyRef::pages(self.body.len()) + 1
    }

    /// Extents that the meta page names.
    fn named(&self) -> usize {
        self.manifest.log_extents.len() + self.manifest.pending.len()
    }
}

/// How things are when pages are taken for something under construction.
struct Now {
    /// Extents that the meta page names.
    named: usize,
    full: bool,
    /// So many pages are to stay free.
    spared: u32,
}

/// Rounds of collecting that free what was just retired, and what the key index has retired before it, if nobody is pinned for long.
const ROUNDS: u32 = 256;

impl<H: Host> Tree<'_, H> {
    /// See [`Shared::reap`].
    pub(super) fn reap(&self, ledger: &mut Ledger) {
        self.shared.reap(ledger, self.host.lagging(), |freed| self.host.discard(freed));
    }

    /// Gives back, after a flush or a merge, what nobody uses any more: memory in the first place, for what this process
    /// has retired stays with it otherwise until it retires more.
    pub(super) fn reclaim(&self) {
        self.reap(&mut self.shared.ledger.lock());
        loosekv_shm::epoch::drain(ROUNDS);
    }

    /// Takes `pages` of the page store for something under construction, in pieces of at least so many, or more where the meta page names
    /// many already; on a full disk up to `few` of them. See [`Building`].
    fn take_extents(&self, taker: Taker, pages: u32, few: u32, least: u32) -> Result<Vec<Extent>> {
        let few = few.min(pages);
        let scattered = |free: &mut FreeSpace, now: &Now| match now.full {
            true => free.take_sparing(few, now.spared).map(|extent| vec![extent]),
            false => {
                free.add_missing(pages, now.spared)?;
                free.take_scattered(pages, doubled(least, now.named, NAMED_A_DOUBLING))
            }
        };
        let instead = |free: &mut FreeSpace, end, spared| {
            let got = free.take_pieces_inside(end, few.min(free.beyond(spared)));
            Some(got).filter(|got| !got.is_empty())
        };
        self.take_with(taker, scattered, instead)
    }

    /// As [`Tree::take_extents`], in one piece; `least` will do where there is no room for more.
    pub(super) fn take_extent(&self, taker: Taker, least: u32, few: u32, pages: u32) -> Result<Extent> {
        let few = few.max(least).min(pages);
        let take = |free: &mut FreeSpace, now: &Now| match now.full {
            true => free.take_sparing(few, now.spared).map(|extent| [extent]),
            false => free.take_beside(pages, now.spared).map(|extent| [extent]),
        };
        let instead = |free: &mut FreeSpace, end, spared| {
            free.take_inside(end, least, few.min(free.beyond(spared))).map(|extent| [extent])
        };
        self.take_with(taker, take, instead).map(|[extent]| extent)
    }

    /// Takes `pages` below the page `mark`; nothing, if there are too few.
    pub(super) fn take_below(&self, mark: u32, pages: u32, least: u32) -> Result<Vec<Extent>> {
        self.take_with(Taker::Merge, |free, _| Ok(free.take_below(mark, pages, least)), |_, _, _| None)
    }

    /// `instead` is told the end of the store, and how many pages are to stay free.
    fn take_with<T: AsMut<[Extent]>>(
        &self,
        taker: Taker,
        take: impl FnOnce(&mut FreeSpace, &Now) -> Result<T>,
        instead: impl FnOnce(&mut FreeSpace, u32, u32) -> Option<T>,
    ) -> Result<T> {
        let mut ledger = self.shared.ledger.lock();
        self.reap(&mut ledger);
        let spared = ledger.kept_from(taker, 0, &self.host);
        let now = Now { named: ledger.named(), full: ledger.full, spared };
        let spared = ledger.kept_on_full_disk(taker, 0);
        let instead = |free: &mut FreeSpace, end| instead(free, end, spared);
        let mut got = self.take_reached(&mut ledger, |free| take(free, &now), instead)?;
        let taken = got.as_mut();
        let mut seq = ledger.manifest.next_seq;
        for extent in taken.iter_mut() {
            extent.seq = seq;
            seq = ExtentSeq(seq.0 + 1);
        }
        if !H::NAME_PENDING {
            ledger.manifest.next_seq = seq;
            return Ok(got);
        }
        let mut next = ledger.manifest.clone();
        next.pending.extend(taken.iter().copied());
        next.next_seq = seq;
        let flip = Flip { reused: ledger.untold_reuse(taken), ..Flip::default() };
        match self.write_meta(&mut ledger, next, &flip) {
            Ok(()) => Ok(got),
            Err(failed) => {
                scope::with(|| taken.iter().for_each(|e| ledger.free.give(*e)));
                Err(failed)
            }
        }
    }

    /// Takes extents, to whose ends the store reaches then. Where it has no room to grow: what `instead` finds below its end,
    /// which it is told; that may be less.
    pub(super) fn take_reached<T: AsMut<[Extent]>>(
        &self,
        ledger: &mut Ledger,
        take: impl FnOnce(&mut FreeSpace) -> Result<T>,
        instead: impl FnOnce(&mut FreeSpace, u32) -> Option<T>,
    ) -> Result<T> {
        let before = ledger.free.high();
        let mut got = scope::with(|| {
            let got = take(&mut ledger.free);
            if got.is_err() {
                ledger.free.end_by(before);
            }
            got
        })?;
        let taken = got.as_mut();
        let end = taken.iter().map(|extent| extent.end().0).max().unwrap_or(0);
        let end = ledger.free.reach(before, end);
        match self.host.extend(end) {
            Ok(()) => {
                ledger.full &= end <= before;
                Ok(got)
            }
            Err(failed) => self.take_instead(ledger, before, taken, failed, instead),
        }
    }

    /// The store could not grow for what was taken when its high-water mark was `before`: takes what there is instead.
    pub(super) fn take_instead<T>(
        &self,
        ledger: &mut Ledger,
        before: u32,
        taken: &[Extent],
        failed: Error,
        instead: impl FnOnce(&mut FreeSpace, u32) -> Option<T>,
    ) -> Result<T> {
        // After any other failure the host is not to be asked.
        let full = matches!(failed, Error::NoSpace(_));
        ledger.full |= full;
        let end = if full { self.host.pages().ok() } else { None };
        let found = scope::with(|| {
            taken.iter().for_each(|extent| ledger.free.give(*extent));
            match end {
                _ if on(RefusedPagesStay) => None,
                Some(end) => {
                    ledger.free.fit(end);
                    instead(&mut ledger.free, end)
                }
                None => {
                    ledger.free.end_by(before);
                    None
                }
            }
        });
        found.ok_or(failed)
    }

    /// Gives back what an abandoned construction had taken.
    pub(super) fn give_extents(&self, extents: &[Extent]) {
        let mut ledger = self.shared.ledger.lock();
        scope::with(|| {
            extents.iter().for_each(|e| ledger.free.give(*e));
            ledger.manifest.pending.retain(|p| !extents.iter().any(|e| e.seq == p.seq));
        });
    }

    /// Changes the runs: writes the edited manifest's body aside, then flips to it. `built` is no longer pending, of it
    /// `unused` is free again; what no run has any more, and no log, waits in limbo.
    pub(super) fn commit(
        &self,
        edit: impl FnOnce(&mut Manifest) -> Result<()>,
        built: &[Extent],
        unused: &[Extent],
        flip: &Flip,
    ) -> Result<()> {
        let mut ledger = self.shared.ledger.lock();
        self.flip_body(&mut ledger, edit, built, unused, flip)
    }

    /// As [`Tree::commit`], with the ledger's latch held.
    pub(super) fn flip_body(
        &self,
        ledger: &mut Ledger,
        edit: impl FnOnce(&mut Manifest) -> Result<()>,
        built: &[Extent],
        unused: &[Extent],
        flip: &Flip,
    ) -> Result<()> {
        let mut next = ledger.manifest.clone();
        edit(&mut next)?;
        let mut waiting = given_up(&ledger.manifest, &next);
        waiting.extend(self.give_up_values(ledger, &mut next));
        next.pending.retain(|p| !built.iter().any(|b| b.seq == p.seq));
        // The copies that the ledger and the next superversion are to keep must not fail after the flip.
        let uses = next.runs.iter().map(|r| std::mem::size_of_val(r.values.as_slice())).max().unwrap_or(0);
        let sizes = [uses, uses, std::mem::size_of_val(next.values.as_slice())];
        loosekv_shm::reserve_all_of_it(&sizes.map(|s| s.max(16))).map_err(|_| self.shared.full(Consumer::Versions))?;
        let body = next.encode_body();
        let old_body = std::mem::take(&mut next.body);
        let mut kept_body = Vec::new();
        let room = scope::with(|| {
            kept_body.try_reserve_exact(body.len()).is_ok()
                && ledger.limbo.try_reserve(waiting.len()).is_ok()
                && ledger.free.try_reserve(old_body.len() + unused.len() + 1)
        });
        if !room {
            return Err(self.shared.full(Consumer::Versions));
        }
        kept_body.extend_from_slice(&body);
        self.write_body(ledger, &mut next, &body)?;
        let new_body = next.body.clone();
        next.next_row_id = self.next_row_id();
        if let Err(failed) = next.check().and_then(|()| self.write_meta_with(ledger, next, &body, flip)) {
            // Nothing names the new body; the numbers that it used up stay unused.
            if !on(FailedFlipLeaks) {
                scope::with(|| {
                    new_body.iter().for_each(|e| ledger.free.give(*e));
                    ledger.manifest.pending.retain(|p| !new_body.iter().any(|e| e.seq == p.seq));
                });
            }
            return Err(failed);
        }
        ledger.values.forget(&waiting);
        let Ledger { manifest, values, .. } = ledger;
        values.built(built, &manifest.values);
        scope::with(|| {
            ledger.body = kept_body;
            old_body.iter().chain(unused).for_each(|e| ledger.free.give(*e));
            ledger.limbo.extend(waiting);
        });
        Ok(())
    }

    fn write_body(&self, ledger: &mut Ledger, next: &mut Manifest, body: &[u8]) -> Result<()> {
        let pages = BodyRef::pages(body.len());
        let sinks = std::mem::take(&mut ledger.body_sinks);
        let pages = pages.max(1);
        let take = |free: &mut FreeSpace| match sinks {
            true => Ok([free.take_lowest(pages)?]),
            false => Ok([free.take(pages)?]),
        };
        let instead = |free: &mut FreeSpace, end| free.take_inside(end, pages, pages).map(|extent| [extent]);
        let [mut extent] = self.take_reached(ledger, take, instead)?;
        extent.seq = next.next_seq;
        next.next_seq = ExtentSeq(next.next_seq.0 + 1);
        // Named before it is written to: on a standby somebody may still be reading what was there.
        let named = if H::NAME_PENDING { self.name_pending(ledger, extent) } else { Ok(()) };
        next.version = ledger.manifest.version;
        let write = || -> Result<()> {
            named?;
            let mut images = vec![PageBuf::ZERO; pages as usize];
            for (image, piece) in images.iter_mut().zip(body.chunks(CAPACITY)) {
                image.init(PageKind::Manifest, extent.seq);
                image.fill(piece)?;
            }
            self.host.write_pages(extent.start, &mut images)
        };
        let written = write();
        if let Err(failed) = written {
            scope::with(|| {
                ledger.free.give(extent);
                ledger.manifest.pending.retain(|p| p.seq != extent.seq);
            });
            return Err(failed);
        }
        next.body = vec![extent];
        Ok(())
    }

    /// Names an extent in the meta page that nobody has written to yet.
    pub(super) fn name_pending(&self, ledger: &mut Ledger, extent: Extent) -> Result<()> {
        let mut next = ledger.manifest.clone();
        next.pending.push(extent);
        next.next_seq = next.next_seq.max(ExtentSeq(extent.seq.0 + 1));
        let flip = Flip { reused: ledger.untold_reuse(&[extent]), ..Flip::default() };
        self.write_meta(ledger, next, &flip)
    }

    /// Flips the meta page to a manifest whose runs are as before.
    fn write_meta(&self, ledger: &mut Ledger, next: Manifest, flip: &Flip) -> Result<()> {
        let body = ledger.body.clone();
        self.write_meta_with(ledger, next, &body, flip)
    }

    fn write_meta_with(&self, ledger: &mut Ledger, mut next: Manifest, body: &[u8], flip: &Flip) -> Result<()> {
        next.version += 1;
        next.allocated = ledger.free.high();
        next.next_row_id = self.next_row_id();
        let mut page = next.encode_meta(body)?;
        // After the flip nothing may fail any more.
        let kept = scope::with(|| next.try_clone()).map_err(|_| self.shared.full(Consumer::Versions))?;
        self.host.flip(&mut page, flip)?;
        ledger.reuse_told = flip.reused.map_or(ledger.reuse_told, |version| ledger.reuse_told.max(version));
        ledger.manifest = kept;
        Ok(())
    }

    /// For hosts whose row log lives in the page store: a fresh log extent, named in the meta page. `deletes`: it is wanted for
    /// tombstones alone. To be called with the tail's latch held.
    pub fn add_log_extent(&self, generation: L0Id, tail: u16, least: u32, deletes: bool) -> Result<LogExtent> {
        let taker = if deletes { Taker::Delete } else { Taker::Write };
        let mut ledger = self.shared.ledger.lock();
        self.reap(&mut ledger);
        let held: u32 =
            ledger.manifest.log_extents.iter().filter(|l| l.generation == generation).map(|l| l.extent.pages).sum();
        let pages = log_extent(held, least, ledger.manifest.log_extents.len());
        let small = if ledger.manifest.log_extents.len() < SMALL_LOG_EXTENTS { 1 } else { pages };
        let (kept, without) = (ledger.kept_from(taker, pages, &self.host), ledger.kept_on_full_disk(taker, 0));
        // For each page that is taken another one is kept back.
        let instead = |free: &mut FreeSpace, end| {
            let most = free.beyond(without) / 2;
            free.take_inside(end, small, pages.min(most)).map(|extent| [extent])
        };
        let [mut extent] = self.take_reached(&mut ledger, |free| Ok([free.take_beside(pages, kept)?]), instead)?;
        let mut next = ledger.manifest.clone();
        extent.seq = next.next_seq;
        next.next_seq = ExtentSeq(extent.seq.0 + 1);
        next.next_generation = next.next_generation.max(L0Id(generation.0 + 1));
        let log = LogExtent { generation, tail, extent };
        next.log_extents.push(log);
        let flip = Flip { reused: ledger.untold_reuse(&[extent]), ..Flip::default() };
        match self.write_meta(&mut ledger, next, &flip) {
            Ok(()) => Ok(log),
            Err(failed) => {
                scope::with(|| ledger.free.give(extent));
                Err(failed)
            }
        }
    }

    /// The highest writer of a version that is there.
    pub fn newest_writer(&self) -> Option<Writer> {
        let view = self.pin();
        let runs = view.runs.iter().map(|run| run.shape.max_writer);
        let tables = view.memtables().filter_map(|m| m.table.max_writer());
        runs.chain(tables).max()
    }

    /// Tells those who replay the flips that versions superseded before `oldest` will not be found any more by other ways than the
    /// tree's (secondary indexes let go of them). To be called before they are gone.
    pub fn tell_superseded(&self, oldest: Writer) -> Result<()> {
        let Some(newest) = self.newest_writer() else { return Ok(()) };
        let superseded = Some(newest.min(Writer(oldest.0.saturating_sub(1))));
        let mut ledger = self.shared.ledger.lock();
        let next = ledger.manifest.clone();
        self.write_meta(&mut ledger, next, &Flip { superseded, ..Flip::default() })
    }

    /// Gives the free pages at the end of the page store back; returns how many. The caller sees to it that nobody else
    /// uses the table meanwhile.
    pub fn give_back_tail(&self) -> Result<u32> {
        let mut ledger = self.shared.ledger.lock();
        self.reap(&mut ledger);
        let Ok(before) = scope::with(|| ledger.free.try_clone()) else { return Ok(0) };
        let kept = ledger.kept_from(Taker::Write, 0, &self.host);
        let high = ledger.free.trim(kept);
        if high == before.high() {
            return Ok(0);
        }
        // First nothing is said to be there any more, then it goes.
        let next = ledger.manifest.clone();
        if let Err(failed) = self.write_meta(&mut ledger, next, &Flip::default()) {
            scope::with(|| ledger.free = before);
            return Err(failed);
        }
        self.host.shrink(high)?;
        Ok(before.high() - high)
    }

    /// A copy of the manifest as it stands.
    pub fn manifest(&self) -> Manifest {
        self.shared.ledger.lock().manifest.clone()
    }
}

/// Pages being built for a run: taken from the free space piece by piece, given back when the construction is dropped
/// before it was committed.
pub(super) struct Building<'t, 'a, H: Host> {
    tree: &'t Tree<'a, H>,
    /// A flush or a merge.
    taker: Taker,
    taken: Vec<Extent>,
    /// Place in `taken` of the extent that is being filled, and pages used in it.
    filling: usize,
    used: u32,
    batch: Vec<PageBuf>,
    pub written: u64,
    /// How much memory the writer may take for what it keeps aside.
    memory: usize,
    /// Pages of a piece, at least.
    least: u32,
    /// Pages that it will be, about, beginning with the first of `taken`.
    estimate: u64,
}

/// Pages handed to the host at once.
const BATCH: usize = 32;
/// Most pages taken at once, while it consists of few pieces.
const MOST_TAKEN: u32 = 4096;

fn first_taken(estimate: u64) -> u32 {
    u32::try_from(estimate).unwrap_or(u32::MAX).clamp(8, MOST_TAKEN)
}

impl<'t, 'a, H: Host> Building<'t, 'a, H> {
    pub fn new(tree: &'t Tree<'a, H>, taker: Taker, estimate: u64, memory: usize) -> Result<Self> {
        let least = LEAST_PIECE;
        let taken = tree.take_extents(taker, first_taken(estimate), few_taken(0), least)?;
        let batch = Vec::with_capacity(BATCH);
        Ok(Building { tree, taker, taken, filling: 0, used: 0, batch, written: 0, memory, least, estimate })
    }

    fn extent(&self) -> Result<Extent> {
        self.taken.get(self.filling).copied().ok_or_else(|| Error::structure("no extent to fill"))
    }

    fn flush_batch(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let extent = self.extent()?;
        let start = crate::types::PageNo(extent.start.0 + self.used - self.batch.len() as u32);
        self.tree.host.write_pages(start, &mut self.batch)?;
        self.written += self.batch.len() as u64;
        self.batch.clear();
        Ok(())
    }

    /// The extent is full: on to the next.
    fn next_extent(&mut self) -> Result<()> {
        self.flush_batch()?;
        self.filling += 1;
        self.used = 0;
        if self.filling == self.taken.len() {
            let sofar: u32 = self.taken.iter().map(|e| e.pages).sum();
            let most =
                u64::from(most_taken(MOST_TAKEN, self.taken.len())).min(self.estimate.saturating_sub(sofar.into()));
            let most = u32::try_from(most).unwrap_or(u32::MAX).max(MOST_TAKEN);
            let (pages, few) = ((sofar / 2).clamp(32, most), few_taken(self.taken.len()));
            let more = self.tree.take_extents(self.taker, pages, few, self.least)?;
            self.taken.extend(more);
        }
        Ok(())
    }

    /// Writes what is left and tells the extents that were used since the last commit, and those pieces that were not.
    pub fn finish(&mut self) -> Result<(Vec<Extent>, Vec<Extent>)> {
        self.flush_batch()?;
        let (mut used, mut unused) = (Vec::new(), Vec::new());
        for (at, extent) in self.taken.iter().enumerate() {
            let keep = match at.cmp(&self.filling) {
                std::cmp::Ordering::Less => extent.pages,
                std::cmp::Ordering::Equal => self.used,
                std::cmp::Ordering::Greater => 0,
            };
            let start = crate::types::PageNo(extent.start.0 + keep);
            if keep > 0 {
                used.push(Extent { pages: keep, ..*extent });
            }
            if keep < extent.pages {
                unused.push(Extent { start, pages: extent.pages - keep, ..*extent });
            }
        }
        Ok((used, unused))
    }

    /// Everything that was taken.
    pub fn taken(&self) -> &[Extent] {
        &self.taken
    }

    /// The manifest names it now.
    pub fn committed(&mut self) {
        (self.filling, self.used) = (0, 0);
        self.taken.clear();
    }

    /// After a piece was committed: takes extents for the next.
    pub fn go_on(&mut self, estimate: u64) -> Result<()> {
        // What a merge gives back are small pieces at first. They grow together, and a run of fewer is read faster.
        self.least = LEAST_PIECE.max(first_taken(estimate) / PIECES_OF_SLICE);
        self.taken = self.tree.take_extents(self.taker, first_taken(estimate), few_taken(0), self.least)?;
        self.estimate = estimate;
        Ok(())
    }
}

impl<H: Host> Drop for Building<'_, '_, H> {
    fn drop(&mut self) {
        if on(AbandonedLeaks) {
            return;
        }
        self.tree.give_extents(&self.taken);
    }
}

impl<H: Host> crate::run::PageSink for &mut Building<'_, '_, H> {
    fn seq_of_next(&self) -> ExtentSeq {
        self.taken.get(self.filling).map_or(ExtentSeq(0), |e| e.seq)
    }

    fn put(&mut self, page: &mut PageBuf) -> Result<()> {
        debug_assert_eq!(page.seq(), self.seq_of_next());
        self.batch.push(page.clone());
        self.used += 1;
        if self.used == self.extent()?.pages {
            self.next_extent()
        } else if self.batch.len() == BATCH {
            self.flush_batch()
        } else {
            Ok(())
        }
    }

    fn memory(&self) -> usize {
        self.memory
    }

    fn side_file(&self) -> Result<Box<dyn SideFile>> {
        self.tree.host.side_file()
    }
}

impl<H: Host> Shared<H> {
    /// Free and total pages, and pages that wait for readers.
    pub fn space(&self) -> (u64, u64, u64) {
        let ledger = self.ledger.lock();
        let held = ledger.held.iter().map(|held| held.extent);
        let limbo = ledger.limbo.iter().map(|l| l.extent).chain(held).map(|extent| u64::from(extent.pages)).sum();
        (ledger.free.pages(), u64::from(ledger.free.high()), limbo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{PageNo, RowId};

    /// The meta page has room for the logs of as many memtables as there may be, however large the rows are that fill them.
    #[test]
    fn a_long_log_fits_the_meta_page() {
        const EACH: u32 = 4 << 20;
        let mut manifest = Manifest { version: 1 << 30, next_row_id: RowId(1 << 39), ..Manifest::new(u64::MAX) };
        for generation in 0..5 {
            let (mut held, mut tails) = (0, [8; 8]);
            while held < EACH {
                let tail = manifest.log_extents.len() % tails.len();
                let pages = log_extent(held, tails[tail], manifest.log_extents.len());
                tails[tail] = (2 * tails[tail]).min(64);
                held += pages;
                let extent = Extent { start: PageNo(1 << 24), pages, seq: ExtentSeq(1 << 20) };
                manifest.log_extents.push(LogExtent {
                    generation: L0Id((1 << 20) + generation),
                    tail: tail as u16,
                    extent,
                });
            }
            assert!(held < EACH + EACH / 8, "{held} pages");
        }
        manifest.encode_meta(&[]).unwrap();
        assert!(manifest.log_extents.len() < 600, "{} extents", manifest.log_extents.len());
        assert_eq!(
            [log_extent(1 << 20, 64, 0), log_extent(1 << 20, 64, 15), log_extent(80, 64, 700)],
            [2048, 2048, 64]
        );
        assert_eq!(log_extent(u32::MAX, 64, usize::MAX), u32::MAX / 8);
    }
}
