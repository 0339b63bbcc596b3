//! Free space of the page store: the complement of what the manifest names.
//!
//! It is kept in memory alone, so that a crash between an allocation and the flip that names it leaks nothing.

use crate::error::{Error, Result};
use crate::manifest::try_copy;
use crate::types::{Extent, ExtentSeq, PageNo};
use std::cmp::Reverse;
use std::collections::TryReserveError;

/// Highest page number in use plus one (PostgreSQL's MaxBlockNumber).
const MAX_PAGES: u32 = u32::MAX - 1;
/// Pieces taken at once where the store cannot grow: the meta page has to name them.
const MOST_PIECES: usize = 64;

/// Pages that are added at once so that they stay free.
const MOST_ADDED: u32 = 2048;

/// The free pieces below the high-water mark, ascending and never adjacent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeSpace {
    pieces: Vec<Piece>,
    /// Pages from here on were never used.
    high: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    start: u32,
    pages: u32,
}

impl FreeSpace {
    /// A copy in memory that may run out.
    pub fn try_clone(&self) -> std::result::Result<FreeSpace, TryReserveError> {
        Ok(FreeSpace { pieces: try_copy(&self.pieces)?, high: self.high })
    }

    /// What is left when `taken` are in use and pages below `first` belong to the host or hold the meta page.
    pub fn complement(first: u32, high: u32, taken: impl Iterator<Item = Extent>) -> Result<FreeSpace> {
        let mut taken: Vec<Extent> = taken.filter(|e| e.pages > 0).collect();
        taken.sort_unstable_by_key(|e| e.start);
        let mut free = FreeSpace { pieces: Vec::new(), high: high.max(first) };
        let mut at = first;
        for extent in taken {
            if extent.start.0 < at {
                return Err(Error::structure(format!("two owners of page {}", extent.start)));
            }
            if extent.start.0 > at {
                free.pieces.push(Piece { start: at, pages: extent.start.0 - at });
            }
            at = extent.end().0;
        }
        if at > free.high {
            return Err(Error::structure(format!("an extent ends at page {at}, the store at {}", free.high)));
        }
        if at < free.high {
            free.pieces.push(Piece { start: at, pages: free.high - at });
        }
        Ok(free)
    }

    /// End of what is in use or free. The store may end before it, at pages that have an owner who never wrote to them.
    pub fn high(&self) -> u32 {
        self.high
    }

    /// A page that the other takes for free and this one does not.
    pub fn first_stray(&self, other: &FreeSpace) -> Option<PageNo> {
        let within = |piece: &Piece| {
            let at = self.pieces.partition_point(|p| p.start <= piece.start);
            let around = at.checked_sub(1).and_then(|at| self.pieces.get(at));
            around.map_or(piece.start, |p| p.start + p.pages)
        };
        let strays = other.pieces.iter().filter_map(|piece| {
            let end = within(piece);
            (end < piece.start + piece.pages).then_some(PageNo(end.max(piece.start)))
        });
        strays.min()
    }

    /// The free pieces, ascending.
    pub fn pieces(&self) -> impl Iterator<Item = Extent> + '_ {
        self.pieces.iter().map(|piece| extent(piece.start, piece.pages))
    }

    /// Takes `pages` below the page `mark`, lowest first, in pieces of `least` pages (the last may be smaller). Nothing, if
    /// there are too few.
    pub fn take_below(&mut self, mark: u32, pages: u32, least: u32) -> Vec<Extent> {
        let below = |p: &Piece| p.pages >= least && p.start + p.pages <= mark;
        let mut got = Vec::new();
        let mut want = pages;
        while let (true, Some(at)) = (want > 0, self.pieces.iter().position(below)) {
            let size = self.pieces.get(at).map_or(0, |p| p.pages.min(want));
            got.push(self.cut(at, size));
            want -= size;
        }
        if want > 0 {
            got.drain(..).for_each(|extent| self.give(extent));
        }
        got
    }

    /// Free pages below the high-water mark.
    pub fn pages(&self) -> u64 {
        self.pieces.iter().map(|p| u64::from(p.pages)).sum()
    }

    /// How many of them there are beyond so many.
    pub fn beyond(&self, pages: u32) -> u32 {
        u32::try_from(self.pages().saturating_sub(u64::from(pages))).unwrap_or(u32::MAX)
    }

    /// Takes `pages` side by side: the smallest free piece that holds them, else new ones at the end. Where most is free it
    /// is the first piece that holds them, so that the end becomes free and can be given back. The extent has no sequence
    /// number yet.
    pub fn take(&mut self, pages: u32) -> Result<Extent> {
        let mostly_free = self.pages() > u64::from(self.high / 2);
        let fitting = self.pieces.iter().enumerate().filter(|(_, p)| p.pages >= pages);
        match fitting.min_by_key(|(_, p)| p.pages) {
            Some((at, _)) if !mostly_free => Ok(self.cut(at, pages)),
            _ => self.take_lowest(pages),
        }
    }

    /// As [`FreeSpace::take`], from the first free piece that holds them.
    pub fn take_lowest(&mut self, pages: u32) -> Result<Extent> {
        debug_assert!(pages > 0);
        if let Some(at) = self.pieces.iter().position(|p| p.pages >= pages) {
            return Ok(self.cut(at, pages));
        }
        self.take_new(pages)
    }

    /// As [`FreeSpace::take`], but as many pages as `spared` stay free, or new ones are taken.
    pub fn take_sparing(&mut self, pages: u32, spared: u32) -> Result<Extent> {
        match self.beyond(spared) >= pages {
            true => self.take(pages),
            false => self.take_new(pages),
        }
    }

    /// As [`FreeSpace::take`], but as many pages as `spared` are free afterwards, in the end: new ones are added where there are too few.
    pub fn take_beside(&mut self, pages: u32, spared: u32) -> Result<Extent> {
        self.add_missing(pages, spared)?;
        self.take(pages)
    }

    /// Adds what is missing for these pages beside as many free ones as `spared`, if any are to stay free, or a good part of it.
    pub fn add_missing(&mut self, pages: u32, spared: u32) -> Result<()> {
        let missing = u64::from(pages).saturating_add(spared.into()).saturating_sub(self.pages());
        if spared > 0 && missing > 0 {
            let added = u32::try_from(missing).unwrap_or(u32::MAX).min(pages.max(MOST_ADDED));
            let new = self.take_new(added)?;
            self.give(new);
        }
        Ok(())
    }

    /// How far the store has to reach for an extent that ends here: what was added beside it since the high-water mark was `before` is
    /// to be there, too.
    pub fn reach(&self, before: u32, end: u32) -> u32 {
        if self.high > before {
            self.high
        } else {
            end
        }
    }

    /// Takes `pages` at the end, which were never used.
    pub fn take_new(&mut self, pages: u32) -> Result<Extent> {
        let room = MAX_PAGES - self.high;
        if room < pages {
            return Err(Error::NoSpace(format!("{pages} more pages exceed the highest page number")));
        }
        let start = self.high;
        self.high += pages;
        Ok(extent(start, pages))
    }

    /// Takes `pages` in as few pieces as there are, largest first, so that free space is used before the file grows;
    /// pieces below `least` pages are not worth a seek.
    pub fn take_scattered(&mut self, pages: u32, least: u32) -> Result<Vec<Extent>> {
        let mut got = Vec::new();
        let mut want = pages;
        while want > 0 {
            if self.pieces.iter().any(|p| p.pages >= want) {
                got.push(self.take(want)?);
                break;
            }
            let largest = self.pieces.iter().enumerate().max_by_key(|(_, p)| p.pages).filter(|(_, p)| p.pages >= least);
            match largest.map(|(at, p)| (at, p.pages)) {
                Some((at, size)) => {
                    got.push(self.cut(at, size));
                    want -= size;
                }
                None => {
                    match self.take(want) {
                        Ok(last) => got.push(last),
                        Err(full) => {
                            got.into_iter().for_each(|e| self.give(e));
                            return Err(full);
                        }
                    }
                    break;
                }
            }
        }
        Ok(got)
    }

    /// Takes up to `most` pages side by side of what is free below the page `end`, and at least `least`: of the smallest piece
    /// that holds `most`, else of the largest.
    pub fn take_inside(&mut self, end: u32, least: u32, most: u32) -> Option<Extent> {
        let inside = |p: &Piece| p.pages.min(end.saturating_sub(p.start));
        let least = least.max(1);
        let pieces = self.pieces.iter().enumerate().filter(|(_, p)| most >= least && inside(p) >= least);
        let best = pieces.max_by_key(|(_, p)| (inside(p).min(most), Reverse(inside(p))));
        let (at, pages) = best.map(|(at, p)| (at, inside(p).min(most)))?;
        Some(self.cut(at, pages))
    }

    /// Takes up to `pages` of what is free below the page `end`, the largest pieces first, however small, but not too many.
    pub fn take_pieces_inside(&mut self, end: u32, pages: u32) -> Vec<Extent> {
        let mut got = Vec::new();
        let mut want = pages;
        while want > 0 && got.len() < MOST_PIECES {
            let Some(piece) = self.take_inside(end, 1, want) else { break };
            want -= piece.pages;
            got.push(piece);
        }
        got
    }

    /// The store has `end` pages: of what is free at its end those are there, and no others.
    pub fn fit(&mut self, end: u32) {
        let old = self.high;
        if end > old {
            if self.try_reserve(1) {
                self.high = end;
                self.give(extent(old, end - old));
            }
        } else if let Some(last) = self.pieces.last_mut().filter(|last| last.start + last.pages == old) {
            self.high = end.max(last.start);
            last.pages = self.high - last.start;
            if last.pages == 0 {
                self.pieces.pop();
            }
        }
    }

    /// As [`FreeSpace::fit`], but nothing is added.
    pub fn end_by(&mut self, end: u32) {
        self.fit(end.min(self.high));
    }

    /// Makes sure that so many pieces can be given without asking for memory. False: there is none.
    pub fn try_reserve(&mut self, pieces: usize) -> bool {
        self.pieces.try_reserve(pieces).is_ok()
    }

    /// Gives pages back.
    pub fn give(&mut self, extent: Extent) {
        if extent.pages == 0 {
            return;
        }
        let at = self.pieces.partition_point(|p| p.start < extent.start.0);
        let (start, end) = (extent.start.0, extent.end().0);
        debug_assert!(at == 0 || self.pieces.get(at - 1).is_none_or(|p| p.start + p.pages <= start));
        debug_assert!(self.pieces.get(at).is_none_or(|p| end <= p.start));
        let joins_next = self.pieces.get(at).is_some_and(|p| p.start == end);
        let joins_last = at > 0 && self.pieces.get(at - 1).is_some_and(|p| p.start + p.pages == start);
        match (joins_last, joins_next) {
            (true, true) => {
                let next = self.pieces.remove(at);
                if let Some(last) = self.pieces.get_mut(at - 1) {
                    last.pages += extent.pages + next.pages;
                }
            }
            (true, false) => {
                if let Some(last) = self.pieces.get_mut(at - 1) {
                    last.pages += extent.pages;
                }
            }
            (false, true) => {
                if let Some(next) = self.pieces.get_mut(at) {
                    next.start = start;
                    next.pages += extent.pages;
                }
            }
            (false, false) => self.pieces.insert(at, Piece { start, pages: extent.pages }),
        }
    }

    /// Free pages at the end.
    pub fn tail(&self) -> u32 {
        let last = self.pieces.last().filter(|last| last.start + last.pages == self.high);
        last.map_or(0, |last| last.pages)
    }

    /// Lowers the high-water mark into a free tail, so far that as many pages as `spared` stay free, and returns it.
    pub fn trim(&mut self, spared: u32) -> u32 {
        let end = self.high - self.tail().min(self.beyond(spared));
        self.end_by(end);
        end
    }

    fn cut(&mut self, at: usize, pages: u32) -> Extent {
        let Some(piece) = self.pieces.get_mut(at) else { return extent(0, 0) };
        let start = piece.start;
        piece.start += pages;
        piece.pages -= pages;
        if piece.pages == 0 {
            self.pieces.remove(at);
        }
        extent(start, pages)
    }
}

fn extent(start: u32, pages: u32) -> Extent {
    Extent { start: PageNo(start), pages, seq: ExtentSeq(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complement_names_every_gap() {
        let free = FreeSpace::complement(1, 20, [extent(8, 2), extent(3, 2)].into_iter()).unwrap();
        assert_eq!(free.pages(), 2 + 3 + 10);
        assert!(FreeSpace::complement(1, 20, [extent(3, 3), extent(5, 2)].into_iter()).is_err(), "overlap");
        assert!(FreeSpace::complement(1, 4, [extent(3, 3)].into_iter()).is_err(), "past the end");
    }

    #[test]
    fn pieces_join_again() {
        let mut free = FreeSpace::complement(1, 1, std::iter::empty()).unwrap();
        let taken: Vec<_> = (0..10).map(|_| free.take(4).unwrap()).collect();
        assert_eq!(free.high(), 41);
        for i in [3, 1, 2, 9, 0, 5, 7, 6, 8, 4] {
            free.give(taken[i]);
        }
        assert_eq!((free.pages(), free.pieces.len()), (40, 1));
        assert_eq!((free.trim(30), free.pages()), (31, 30));
        assert_eq!((free.trim(40), free.pages()), (31, 30));
        assert_eq!(free.trim(0), 1);
        assert_eq!(free.pages(), 0);
    }

    #[test]
    fn below_takes_the_lowest_or_nothing() {
        let mut free =
            FreeSpace::complement(0, 60, [extent(2, 8), extent(20, 10), extent(40, 10)].into_iter()).unwrap();
        let before = free.clone();
        assert_eq!(free.take_below(40, 21, 4), []);
        assert_eq!(free, before);
        assert_eq!(free.take_below(40, 15, 4), [extent(10, 10), extent(30, 5)]);
        assert_eq!(free.pages(), before.pages() - 15);
    }

    #[test]
    fn what_is_free_ends_where_the_store_does() {
        let mut free = FreeSpace::complement(1, 30, [extent(10, 10)].into_iter()).unwrap();
        let before = free.clone();
        let taken = [free.take_lowest(15).unwrap(), free.take_lowest(15).unwrap()];
        assert_eq!(free.high(), 60);
        taken.into_iter().for_each(|e| free.give(e));
        free.fit(30);
        assert_eq!(free, before);
        free.fit(32);
        assert_eq!((free.high(), free.tail(), free.pages()), (32, 12, 9 + 12));
        free.end_by(40);
        assert_eq!((free.high(), free.tail()), (32, 12));
        // The store ends before pages that somebody owns.
        free.end_by(15);
        assert_eq!((free.high(), free.tail(), free.pages()), (20, 0, 9));
    }

    #[test]
    fn inside_takes_what_there_is() {
        let taken = [extent(4, 6), extent(15, 5), extent(28, 2)];
        // Free: 1..4, 10..15, 20..28, 30..40.
        let mut free = FreeSpace::complement(1, 40, taken.into_iter()).unwrap();
        let before = free.clone();
        assert_eq!(free.take_inside(40, 11, 20), None);
        assert_eq!(free.take_inside(40, 3, 2), None);
        assert_eq!(free.take_inside(40, 2, 4), Some(extent(10, 4)), "the smallest that holds as many");
        assert_eq!(free.take_inside(25, 2, 9), Some(extent(20, 5)), "the largest below the end");
        let mut free = before;
        assert_eq!(free.take_pieces_inside(36, 30), [extent(20, 8), extent(30, 6), extent(10, 5), extent(1, 3)]);
        assert_eq!((free.pages(), free.high()), (4, 40));
        assert_eq!(free.take_pieces_inside(36, 30), []);
    }

    #[test]
    fn beside_what_is_taken_others_stay_free() {
        let mut free = FreeSpace::complement(1, 20, [extent(5, 10)].into_iter()).unwrap();
        assert_eq!(free.take_beside(3, 5).unwrap(), extent(1, 3));
        assert_eq!((free.pages(), free.high()), (6, 20));
        // Of the new pages as many are taken as make one piece with the last.
        assert_eq!(free.take_beside(8, 5).unwrap(), extent(15, 8));
        assert_eq!((free.pages(), free.high()), (5, 27));
    }

    #[test]
    fn scattered_takes_free_pieces_before_growing() {
        let mut free = FreeSpace::complement(0, 30, [extent(10, 10)].into_iter()).unwrap();
        let got = free.take_scattered(25, 4).unwrap();
        assert_eq!(got.iter().map(|e| e.pages).sum::<u32>(), 25);
        assert_eq!(free.high(), 35);
    }
}
