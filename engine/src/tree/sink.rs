//! Sinking: pages of runs at the end of the page store go into the free space below, so that the end becomes free and can
//! be given back.
//!
//! ```text
//!  |  run 3  |  free  |  run 4  | free |  run 5  |          |  run 3  | 5.. |  run 4  | ..5 |..|
//!                                   ^ mark        high                                        ^ mark
//! ```
//!
//! Above the *mark* stand as many pages as there are free ones below it: these are copied, and nothing else. The run stays
//! the same, with other extents; what it has left waits in limbo for superversions that know it
//! there. The manifest's body goes along by itself, for the flip writes it anew; the row log goes when its rows
//! are flushed ([`Ebb::Flush`]). Values stay where they are: the mark is above them.

use crate::error::{Consumer, Error, Result};
use crate::extent::FreeSpace;
use crate::host::{Flip, Host, Lagging, Work};
use crate::manifest::RunDesc;
use crate::mutation::Pause;
use crate::page::PageBuf;
use crate::pieces::Pieces;
use crate::run::PageSource;
use crate::tree::read::Pages;
use crate::tree::shared::{Ledger, Shared};
use crate::tree::version::SuperVersion;
use crate::tree::Tree;
use crate::types::{Extent, PageNo, RunId};
use loosekv_shm::scope;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// Smallest free piece that is used, and how many such pieces a store has at the most: a scan seeks once for each, and who
/// looks for a page of a run walks over its extents.
const LEAST_PIECE: u32 = if cfg!(test) { 2 } else { 64 };
const MOST_PIECES: u32 = 256;
/// Pages copied at once.
const BATCH: usize = 32;
/// Share of the file that has to be won.
const WORTH_SHARE: u32 = 16;

/// What is to be moved for the end of the page store to become free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    /// Pages of runs from here on are to be moved below.
    mark: u32,
    /// How many there are.
    pages: u32,
}

/// What stands in the page store, as far as it need not stay where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Region {
    Free,
    Run,
    /// The manifest's body: every flip writes it elsewhere.
    Body,
    /// A log whose rows are to be flushed first.
    Log,
}

fn least_piece(high: u32) -> u32 {
    LEAST_PIECE.max(high / MOST_PIECES)
}

/// Lowers the mark from the end of the store as long as all above it finds room below. `taken`: what may be moved.
fn plan(free: &FreeSpace, taken: impl Iterator<Item = (Extent, Region)>) -> Plan {
    let least = least_piece(free.high());
    let usable = |pages: u32| if pages >= least { pages } else { 0 };
    let mut below: u32 = free.pieces().map(|piece| usable(piece.pages)).sum();
    let mut regions: Vec<(Extent, Region)> = taken.collect();
    regions.extend(free.pieces().map(|piece| (piece, Region::Free)));
    regions.sort_unstable_by_key(|(extent, _)| std::cmp::Reverse(extent.start));
    let mut plan = Plan { mark: free.high(), pages: 0 };
    for (extent, region) in regions {
        let lost = match region {
            Region::Free => usable(extent.pages),
            Region::Body => extent.pages,
            Region::Run | Region::Log => 0,
        };
        if extent.end().0 != plan.mark || below < plan.pages + lost {
            break;
        }
        below -= lost;
        let moved = if region == Region::Run { extent.pages.min(below - plan.pages) } else { 0 };
        plan.pages += moved;
        plan.mark -= if region == Region::Run { moved } else { extent.pages };
        if region == Region::Run && moved < extent.pages {
            break;
        }
    }
    plan
}

/// The part of an extent below the mark, and that from it on.
fn divide(extent: &Extent, mark: u32) -> (Extent, Extent) {
    let low = mark.clamp(extent.start.0, extent.end().0) - extent.start.0;
    let high = Extent { start: PageNo(extent.start.0 + low), pages: extent.pages - low, ..*extent };
    (Extent { pages: low, ..*extent }, high)
}

/// Extents of a run with those parts that stand above the mark replaced by `room`, which has as many pages.
fn moved(extents: &[Extent], mark: u32, room: &[Extent]) -> Vec<Extent> {
    let mut result: Vec<Extent> = Vec::with_capacity(extents.len() + room.len());
    let mut room = room.iter().copied();
    let mut place = room.next();
    for extent in extents {
        let (low, high) = divide(extent, mark);
        result.extend((low.pages > 0).then_some(low));
        let mut rest = high.pages;
        while let Some(next) = place.filter(|_| rest > 0) {
            let pages = next.pages.min(rest);
            result.push(Extent { pages, ..next });
            rest -= pages;
            place = match next.pages - pages {
                0 => room.next(),
                left => Some(Extent { start: PageNo(next.start.0 + pages), pages: left, ..next }),
            };
        }
    }
    result
}

impl<H: Host> Tree<'_, H> {
    /// Moves pages of one run, or the manifest's body alone, if that makes a good part of the store's end free. False: there
    /// is nothing to do. The caller holds the maintenance lock; flushes may go on meanwhile.
    pub fn sink_one(&self, least: u32) -> Result<bool> {
        self.catch_up()?;
        let view = self.pin();
        let (next, least_piece) = {
            let mut ledger = self.shared.ledger.lock();
            self.reap(&mut ledger);
            let next = next_move(&ledger, &view, least);
            ledger.body_sinks = matches!(next, Some(Move::Run { .. } | Move::Body));
            (next, least_piece(ledger.free.high()))
        };
        match next {
            Some(Move::Run { id, mark, pages }) => {
                let room = self.take_below(mark, pages, least_piece)?;
                if room.is_empty() {
                    return Ok(false);
                }
                let sunk = self.sink(&view, id, mark, &room).inspect_err(|_| self.give_extents(&room))?;
                self.install_sunk(&sunk).map(|()| true)
            }
            Some(Move::Body) => self.commit(|_| Ok(()), &[], &[], &Flip::default()).map(|()| true),
            Some(Move::Log) | None => Ok(false),
        }
    }

    /// Copies the pages of a run from the mark on into this room, and flips. The run as it is then.
    fn sink(&self, view: &SuperVersion, id: RunId, mark: u32, room: &[Extent]) -> Result<Arc<RunDesc>> {
        let run = view.runs.iter().find(|run| run.id == id);
        let run = run.ok_or_else(|| Error::structure("a run vanished before it was moved"))?;
        let extents = moved(&run.extents, mark, room);
        let left: Vec<Extent> = run.extents.iter().map(|e| divide(e, mark).1).filter(|e| e.pages > 0).collect();
        self.copy_pages(&left, room)?;
        self.shared.reserve_install()?;
        let changed = scope::with(|| -> Result<Arc<RunDesc>> {
            let mut there = run.try_clone().map_err(|_| self.shared.full(Consumer::Versions))?;
            there.extents = Pieces::try_of(&extents).map_err(|_| self.shared.full(Consumer::Versions))?;
            Ok(Arc::new(there))
        })?;
        self.commit(
            |next| {
                let run = next.runs.iter_mut().find(|run| run.id == id);
                let run = run.ok_or_else(|| Error::structure("a run vanished while it was moved"))?;
                run.extents = extents.clone().into();
                Ok(())
            },
            room,
            &[],
            &Flip::default(),
        )?;
        let pages: u64 = room.iter().map(|extent| u64::from(extent.pages)).sum();
        self.shared.counters.compacted_pages.fetch_add(pages, Relaxed);
        Ok(changed)
    }

    fn install_sunk(&self, sunk: &Arc<RunDesc>) -> Result<()> {
        self.pause(Pause::Sunk);
        self.shared.install_flipped(|current| {
            let mut parts = current.edit();
            parts.runs.iter_mut().filter(|run| run.id == sunk.id).for_each(|run| *run = sunk.clone());
            SuperVersion::new(current.number + 1, parts)
        })?;
        Ok(())
    }

    /// Copies pages in their order.
    fn copy_pages(&self, from: &[Extent], to: &[Extent]) -> Result<()> {
        let pages = Pages(&self.host);
        let mut sources = from.iter().flat_map(|e| (e.start.0..e.end().0).map(|no| (PageNo(no), e.seq)));
        let all: u64 = to.iter().map(|extent| u64::from(extent.pages)).sum();
        let mut done = 0;
        for extent in to {
            let mut at = extent.start.0;
            while at < extent.end().0 {
                let count = BATCH.min((extent.end().0 - at) as usize);
                let mut images: Vec<PageBuf> = Vec::with_capacity(count);
                for (no, seq) in sources.by_ref().take(count) {
                    let page = pages.page(no)?;
                    let kind = page.kind().ok_or_else(|| Error::page(no, 0, "no page of a run"))?;
                    page.expect(no, kind, seq)?;
                    let mut image = (*page).clone();
                    image.set_seq(extent.seq);
                    images.push(image);
                }
                self.host.write_pages(PageNo(at), &mut images)?;
                at += count as u32;
                done += count as u64;
                self.host.merging(self)?;
                self.host.at_work(Work::Merge, done, all);
            }
        }
        Ok(())
    }
}

/// What goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    /// From the mark on, so many pages.
    Run {
        id: RunId,
        mark: u32,
        pages: u32,
    },
    Body,
    Log,
}

/// `None`: too little would be won.
fn next_move(ledger: &Ledger, view: &SuperVersion, least: u32) -> Option<Move> {
    let Ledger { free, manifest, .. } = ledger;
    let least = least.max(free.high() / WORTH_SHARE);
    if free.pages() < u64::from(least) {
        return None;
    }
    // A run that has just been flushed may be in the manifest alone.
    let known = |id: RunId| view.runs.iter().any(|run| run.id == id);
    let extents = || {
        let runs = manifest.runs.iter().filter(|run| known(run.id));
        runs.flat_map(|run| run.extents.iter().map(|extent| (run.id, *extent)))
    };
    let regions = || {
        let runs = extents().map(|(_, extent)| (extent, Region::Run));
        runs.chain(manifest.body.iter().map(|extent| (*extent, Region::Body)))
    };
    let logs = manifest.log_extents.iter().map(|log| (log.extent, Region::Log));
    let worth = |plan: &Plan| free.high() - plan.mark >= least;
    let Some(plan) = Some(plan(free, regions())).filter(worth) else {
        return worth(&plan(free, regions().chain(logs))).then_some(Move::Log);
    };
    if plan.pages > 0 {
        let (id, _) = extents().max_by_key(|(_, extent)| extent.start)?;
        let above = extents().filter(|(run, _)| *run == id).map(|(_, extent)| divide(&extent, plan.mark).1.pages);
        return Some(Move::Run { id, mark: plan.mark, pages: above.sum() });
    }
    let fits = |body: &Extent| free.pieces().any(|piece| piece.pages >= body.pages && piece.end().0 <= plan.mark);
    manifest.body.iter().any(|body| body.start.0 >= plan.mark && fits(body)).then_some(Move::Body)
}

/// How the end of the page store can be made free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ebb {
    Sink,
    /// The log is in the way: the memtables are to be flushed first.
    Flush,
}

impl<H: Host> Shared<H> {
    /// Whether so many pages, or more, would become free at the end, and by what.
    pub fn ebb(&self, least: u32, lagging: Option<Lagging>) -> Option<Ebb> {
        let view = self.current.pin::<H>();
        let mut ledger = self.ledger.lock();
        self.reap(&mut ledger, lagging, |_| ());
        match next_move(&ledger, &view, least)? {
            Move::Log => Some(Ebb::Flush),
            Move::Run { .. } | Move::Body => Some(Ebb::Sink),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ExtentSeq;

    fn extent(start: u32, pages: u32) -> Extent {
        Extent { start: PageNo(start), pages, seq: ExtentSeq(u64::from(start)) }
    }

    fn planned(high: u32, runs: &[Extent], others: &[Extent]) -> Plan {
        let taken = runs.iter().chain(others).copied();
        plan(&FreeSpace::complement(1, high, taken).unwrap(), runs.iter().map(|run| (*run, Region::Run)))
    }

    #[test]
    fn as_much_is_moved_as_finds_room_below() {
        // Free: 1..11 and 31..41.
        let runs = [extent(11, 20), extent(41, 30)];
        assert_eq!(planned(71, &runs, &[]), Plan { mark: 51, pages: 20 });
        // What is free above all runs is won with them.
        assert_eq!(planned(91, &runs, &[]), Plan { mark: 51, pages: 20 });
        // A run that fits whole below a free piece: that piece, too, is above the mark.
        assert_eq!(planned(46, &[extent(11, 20), extent(41, 5)], &[]), Plan { mark: 26, pages: 10 });
    }

    #[test]
    fn nothing_moves_from_below_what_cannot_move() {
        let values = [extent(60, 5)];
        assert_eq!(planned(65, &[extent(20, 40)], &values), Plan { mark: 65, pages: 0 });
        assert_eq!(planned(80, &[extent(20, 40), extent(65, 10)], &values), Plan { mark: 65, pages: 10 });
    }

    #[test]
    fn a_manifest_and_a_log_that_is_flushed_are_passed_over() {
        let (run, body, log) =
            ((extent(20, 40), Region::Run), (extent(60, 3), Region::Body), (extent(63, 7), Region::Log));
        let planned = |taken: &[(Extent, Region)]| {
            let all = [run, body, log].map(|(extent, _)| extent);
            plan(&FreeSpace::complement(1, 70, all.into_iter()).unwrap(), taken.iter().copied())
        };
        // Of the 19 free pages below, 3 are for the manifest.
        assert_eq!(planned(&[run, body, log]), Plan { mark: 44, pages: 16 });
        assert_eq!(planned(&[run, body]), Plan { mark: 70, pages: 0 });
        assert_eq!(planned(&[run, log]), Plan { mark: 63, pages: 0 });
    }

    #[test]
    fn pieces_that_are_too_small_are_not_filled() {
        let runs = [extent(2, 20), extent(23, 20)];
        assert_eq!(planned(43, &runs, &[]), Plan { mark: 43, pages: 0 });
    }

    #[test]
    fn the_pages_of_a_run_keep_their_order() {
        let run = [extent(50, 10), extent(5, 10), extent(30, 20)];
        let room = [extent(100, 3), extent(200, 17)];
        let after = moved(&run, 40, &room);
        let part = |of: Extent, start: u32, pages: u32| Extent { start: PageNo(start), pages, ..of };
        let expected = [room[0], part(room[1], 200, 7), run[1], part(run[2], 30, 10), part(room[1], 207, 10)];
        assert_eq!(after, expected);
    }
}
