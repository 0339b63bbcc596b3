//! A full disk: what the store keeps back for it, and what is done there.
//!
//! ```text
//!                    free pages
//!  inserts, updates  |============|-- for deletes --|-- as many as the row log has --|-- manifest --|
//!  deletes           |=====================|        |                                |
//!  merges            |==============================|                                |
//!  flushes           |===============================================================|
//! ```
//!
//! Where the disk has little room left the store grows ahead, and has a *reserve* of free pages. Those who bring something new are the
//! first to be refused pages. As many as the row log has are for flushes alone: a flush finds room for its run, and gives the log's
//! pages back. So who is refused some flushes, and tries again. And rows can be deleted, and the merges that find them get their pages
//! back: when writers have little left all runs are merged as soon as that gains a part of what they take, and on a full disk no merge
//! is begun that would not find the room that it needs at its end.

use crate::error::{Error, Result};
use crate::host::{Horizon, Host};
use crate::manifest::RunDesc;
use crate::mutation::{on, Mutation::NothingReserved};
use crate::tree::garbage::kept_by_merges;
use crate::tree::pick::{Job, Pick};
use crate::tree::shared::{Ledger, Shared};
use crate::tree::version::SuperVersion;
use crate::tree::Tree;
use crate::types::Writer;
use loosekv_shm::scope;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// The store has little room where it could grow by less than this, or by less than so many times its reserve.
const MUCH_ROOM: u64 = 1 << 17;
const ROOM_BY_RESERVE: u64 = 8;
/// This part of the store is for deletes and merges, or so many pages, where that is not more than another part of a small store.
const PART_FOR_DELETES: u32 = 32;
const LEAST_FOR_DELETES: u32 = 512;
const PART_OF_SMALL: u32 = 4;
/// All is merged where that drops this part of the rows.
const PART_WORTH_MERGING: u64 = 16;
/// There is more to a slice than data: at least so many pages, which stay taken until the merge ends.
const BESIDE_DATA: u64 = 4;

/// Who is refused pages flushes a memtable of so many bytes of log, or of such a part of its size; a row has so many beside key and body.
const WORTH_A_RUN: u64 = 128 << 10;
const PART_WORTH_A_RUN: u64 = 8;
const LOGGED_BESIDE: u64 = 24;

/// Where there is little room a log outside of the page store takes this part of it at once, or so many pages.
const LOG_BY_ROOM: u64 = 8;
const LEAST_OF_LOG: u32 = 8;

/// Whether a store that could grow by so many pages has more than a little room, if it keeps back so many.
pub fn is_much_room(left: u64, kept: u64) -> bool {
    left >= kept.saturating_mul(ROOM_BY_RESERVE).max(MUCH_ROOM)
}

/// Pages that a store of so many keeps back for deletes.
pub fn for_deletes(high: u32) -> u32 {
    (high / PART_FOR_DELETES).max(LEAST_FOR_DELETES.min(high / PART_OF_SMALL))
}

/// Who takes pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taker {
    /// A writer, for the row log or the value log.
    Write,
    /// A writer of tombstones alone.
    Delete,
    Merge,
    Flush,
}

impl Ledger {
    /// As many pages have to stay free on a full disk when this one takes some; `log` are those that the log is to get.
    pub(super) fn kept_on_full_disk(&self, taker: Taker, log: u32) -> u32 {
        let logs = self.manifest.log_extents.iter().map(|log| log.extent.pages);
        let logged = logs.fold(log.saturating_add(self.logged_outside), u32::saturating_add);
        match taker {
            Taker::Flush => self.for_the_flip(),
            _ if on(NothingReserved) => self.for_the_flip(),
            Taker::Merge => logged.saturating_add(self.for_the_flip()),
            Taker::Delete => logged.saturating_add(self.for_deletes() / 2),
            Taker::Write => logged.saturating_add(self.for_deletes()),
        }
    }

    /// Pages that are kept back for deletes, and half of them from these.
    fn for_deletes(&self) -> u32 {
        for_deletes(self.free.high())
    }

    /// Looks how much room there is, and how much the log takes.
    fn look(&mut self, host: &impl Host) {
        self.left = host.room_to_grow();
        self.logged_outside = host.log_pages();
    }

    /// The same as things are: none, unless there is little room.
    pub(super) fn kept_from(&mut self, taker: Taker, log: u32, host: &impl Host) -> u32 {
        self.look(host);
        let kept = self.kept_on_full_disk(taker, log);
        match taker {
            // It takes what is kept.
            Taker::Flush if !self.full => 0,
            _ => self.little_room(kept).map_or(0, |_| kept),
        }
    }

    /// By how many pages the store could grow when it was last asked, if that is little beside so many that it keeps back.
    fn little_room(&self, kept: u32) -> Option<u64> {
        let left = if self.full { Some(0) } else { self.left };
        left.filter(|left| !is_much_room(*left, kept.into()))
    }
}

impl<H: Host> Shared<H> {
    /// Where there is little room: pages that merges may take.
    pub(super) fn pages_for_merges(&self) -> Option<u32> {
        let ledger = self.ledger.lock();
        let kept = ledger.kept_on_full_disk(Taker::Merge, 0);
        let left = ledger.little_room(kept)?;
        let pages = (ledger.free.pages() + left).saturating_sub(kept.into());
        // Others go on meanwhile, but for what is kept back from all of them.
        let pages = pages.min(u64::from(ledger.for_deletes() / 2).max(pages / 2));
        Some(u32::try_from(pages).unwrap_or(u32::MAX))
    }

    /// Where there is little room: pages that a merge may take for values that it moves.
    pub(super) fn pages_for_values(&self, view: &SuperVersion, job: &Job) -> Option<u64> {
        let free = self.pages_for_merges()?;
        Some(u64::from(free).saturating_sub(self.needed_by(view, job, Writer(0), free)))
    }

    /// What is to be merged: everything, if writers are about to be refused pages, and it gains enough.
    pub(super) fn pick_for_room(
        &self,
        view: &SuperVersion,
        unseen: Writer,
        whole: impl FnOnce() -> Option<Job>,
        pick: Option<Pick>,
    ) -> Option<Pick> {
        let Some(free) = self.pages_for_merges().filter(|_| self.is_used_up()) else { return pick };
        let rows: u64 = view.runs.iter().map(|run| run.rows()).sum();
        let gains = |job: &Job| {
            job.runs == (0..view.runs.len())
                && self.dropped_by(view, job, unseen) >= rows.div_ceil(PART_WORTH_MERGING)
                && self.needed_by(view, job, unseen, free) <= u64::from(free)
        };
        let begun = view.runs.iter().any(|run| run.cut.is_some());
        whole().filter(|job| !begun && gains(job)).map(Pick::Merge).or(pick)
    }

    /// Writers have hardly more pages left than are kept back from them.
    fn is_used_up(&self) -> bool {
        let ledger = self.ledger.lock();
        let kept = u64::from(ledger.kept_on_full_disk(Taker::Write, 0));
        ledger.little_room(0).is_some_and(|left| ledger.free.pages() + left < 2 * kept)
    }

    /// Rows that a merge drops, as far as is known: only where it comes to the oldest run. Somebody may not see what writers from `unseen`
    /// on have done.
    fn dropped_by(&self, view: &SuperVersion, job: &Job, unseen: Writer) -> u64 {
        let rows = inputs(view, job).iter().map(|run| run.rows()).sum();
        // Of these nobody knows whether they, and what they delete, will be dropped.
        let unsettled = view.runs.iter().filter(|run| !run.settled).map(|run| run.left_of(run.shape.tombstones));
        let kept = kept_by_merges(&view.runs, unseen).saturating_add(2 * unsettled.sum::<u64>());
        let tombstones = || view.runs.iter().map(|run| run.left_of(run.shape.tombstones)).sum::<u64>();
        // Where nobody knows, what tombstones say is all: a merge that does not come to its end keeps what it has taken.
        let dead = self.garbage(view).map_or_else(|| 2 * tombstones(), |garbage| garbage.dead);
        match job.runs.end < view.runs.len() {
            true => 0,
            false => dead.saturating_sub(kept).min(rows),
        }
    }

    /// Pages that a merge needs beside what it reads, and has not given back before its end.
    fn needed_by(&self, view: &SuperVersion, job: &Job, unseen: Writer, free: u32) -> u64 {
        let runs = inputs(view, job);
        let rows: u64 = runs.iter().map(|run| run.rows()).sum::<u64>().max(1);
        let dropped = self.dropped_by(view, job, unseen);
        let part = |pages: u64, rows_of: u64| (u128::from(pages) * u128::from(rows_of) / u128::from(rows)) as u64;
        let pages: u64 = runs.iter().map(|run| run.pages()).sum();
        let data = |run: &RunDesc| run.left_of(run.shape.data_pages.into()).min(run.pages());
        let leading: u64 = runs.iter().map(|run| run.left_of(run.pages() - data(run))).sum();
        let data: u64 = runs.iter().map(|run| data(run)).sum();
        let slice = slice_of(free, pages);
        if pages < 2 * slice {
            return part(pages, rows - dropped);
        }
        // What leads to the rows is written for each slice, and again for all of them.
        let slices = data.div_ceil(slice) * BESIDE_DATA;
        let beside = 2 * part(leading, rows - dropped) + slices;
        beside.saturating_sub(part(data, dropped)) + slice + slice / 2
    }
}

/// Pages of a slice of a merge of so many where so many are free. Of small ones there are many, each with pages beside its data; larger
/// ones need more room for themselves: half as much again as they have pages of data. A third of what is free, or what needs least room
/// in all, up to half of what is free.
pub(super) fn slice_of(free: u32, pages: u64) -> u64 {
    let least_in_all = (pages * BESIDE_DATA * 2 / 3).isqrt();
    let free = u64::from(free);
    least_in_all.min(free / 2).max(free / 3).max(1)
}

fn inputs<'v>(view: &'v SuperVersion, job: &Job) -> &'v [Arc<RunDesc>] {
    view.runs.get(job.runs.clone()).unwrap_or_default()
}

impl<H: Host> Tree<'_, H> {
    /// Refuses a merge that would not find its room, nor some for so many pages of values that it moves.
    pub(super) fn find_room_for(&self, view: &SuperVersion, job: &Job, values: u64) -> Result<()> {
        self.shared.ledger.lock().look(&self.host);
        let Some(free) = self.shared.pages_for_merges() else { return Ok(()) };
        let needed = self.shared.needed_by(view, job, self.host.horizon().standing().oldest, free) + values;
        if needed <= u64::from(free) {
            return Ok(());
        }
        // There may be room again since the store was last to grow.
        let more = u32::try_from(needed - u64::from(free)).unwrap_or(u32::MAX);
        self.grow_by(&mut self.shared.ledger.lock(), more).map_err(|failed| match failed {
            Error::NoSpace(why) => {
                Error::NoSpace(format!("a merge needs about {needed} pages of room, and has {free}: {why}"))
            }
            failed => failed,
        })
    }

    /// Adds so many free pages.
    fn grow_by(&self, ledger: &mut Ledger, pages: u32) -> Result<()> {
        let [added] = self.take_reached(ledger, |free| Ok([free.take_new(pages)?]), |_, _| None)?;
        scope::with(|| ledger.free.give(added));
        Ok(())
    }

    /// For hosts whose row log has files of its own, which have room for `room` pages more: how many of `pages` the log may take, at
    /// least so many. Where there is little room the store keeps a free page for each of them. `deletes`: for tombstones alone.
    pub fn room_for_log(&self, least: u32, pages: u32, room: u64, deletes: bool) -> Result<u32> {
        let taker = if deletes { Taker::Delete } else { Taker::Write };
        let mut ledger = self.shared.ledger.lock();
        self.reap(&mut ledger);
        ledger.look(&self.host);
        let kept = ledger.kept_on_full_disk(taker, 0);
        if ledger.little_room(kept).is_none() {
            return Ok(pages);
        }
        let kept = u64::from(kept);
        let (free, left) = (ledger.free.pages(), ledger.left.unwrap_or(0));
        let inside = free.saturating_sub(kept).min(room);
        // For each page that the log takes the store grows by another one.
        let beside = ((free + left).saturating_sub(kept) / 2).min(left);
        let few = u32::try_from(room / LOG_BY_ROOM).unwrap_or(u32::MAX).max(least).max(LEAST_OF_LOG).min(pages);
        let most = |most: u64| u32::try_from(most).unwrap_or(u32::MAX).min(few);
        let missing = |pages: u32| u32::try_from((kept + u64::from(pages)).saturating_sub(free)).unwrap_or(u32::MAX);
        let mut taken = most(inside.max(beside));
        if taken >= least && missing(taken) > 0 && self.grow_by(&mut ledger, missing(taken)).is_err() {
            taken = most(inside);
        }
        match taken >= least {
            true => Ok(taken),
            false => {
                let what =
                    format!("the row log needs {least} pages of room: {room} are left, {free} free, {kept} kept");
                Err(Error::NoSpace(what))
            }
        }
    }

    /// Somebody was refused pages while there are as many as the flush of what was written needs: with it the log's pages become
    /// free. False: that has been done, and did not help.
    #[cold]
    pub(super) fn flush_the_reserve(&self) -> Result<bool> {
        let (before, last, logged) = {
            let view = self.pin();
            let active = view.active();
            let logged = active.logged.load(Relaxed) + active.table.rows() * LOGGED_BESIDE;
            (view.flushed, active.table.generation(), logged)
        };
        // A run has pages beside those for its rows: of small memtables, one for each that is refused, there would soon be no room left.
        let worth = logged >= (self.shared.options.memtable_bytes() / PART_WORTH_A_RUN).min(WORTH_A_RUN);
        let flush = || -> Result<()> {
            if worth {
                self.rotate_from(last)?;
            }
            // Not pinned while it is flushed: what it had in the log would stay.
            let oldest = || self.pin().frozen.last().map(|frozen| frozen.table.generation());
            while let Some(oldest) = oldest() {
                self.host.make_room(self)?;
                // Others may have flushed it, and go on writing.
                let flushed = self.pin().flushed;
                if flushed < oldest || flushed >= last {
                    break;
                }
            }
            Ok(())
        };
        match flush() {
            Ok(()) | Err(Error::NoSpace(_)) => Ok(self.pin().flushed > before),
            Err(failed) => Err(failed),
        }
    }
}
