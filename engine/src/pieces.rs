//! The pieces that a run consists of: its extents, in the order of its pages.
//!
//! Every page that is read is looked for here first, and a large run has hundreds of extents: where each ends, counted in
//! pages of the run, is kept beside.

use crate::types::{Extent, ExtentSeq, PageNo};
use std::collections::TryReserveError;
use std::ops::Deref;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    extents: Vec<Extent>,
    ends: Vec<u32>,
}

impl From<Vec<Extent>> for Pieces {
    fn from(extents: Vec<Extent>) -> Pieces {
        let ends = ends(&extents).collect();
        Pieces { extents, ends }
    }
}

fn ends(extents: &[Extent]) -> impl Iterator<Item = u32> + '_ {
    extents.iter().scan(0u32, |end, extent| {
        *end = end.saturating_add(extent.pages);
        Some(*end)
    })
}

impl Deref for Pieces {
    type Target = [Extent];
    fn deref(&self) -> &[Extent] {
        &self.extents
    }
}

impl<'p> IntoIterator for &'p Pieces {
    type Item = &'p Extent;
    type IntoIter = std::slice::Iter<'p, Extent>;
    fn into_iter(self) -> Self::IntoIter {
        self.extents.iter()
    }
}

impl Pieces {
    /// A copy in memory that may run out.
    pub fn try_of(extents: &[Extent]) -> Result<Pieces, TryReserveError> {
        let mut pieces = Pieces::default();
        pieces.extents.try_reserve_exact(extents.len())?;
        pieces.ends.try_reserve_exact(extents.len())?;
        pieces.extents.extend_from_slice(extents);
        pieces.ends.extend(ends(extents));
        Ok(pieces)
    }

    /// Where page `index` of the run stands.
    #[inline]
    pub fn locate(&self, index: u32) -> Option<(PageNo, ExtentSeq)> {
        let (extent, within) = self.extent_of(index)?;
        Some((PageNo(extent.start.0.checked_add(within)?), extent.seq))
    }

    /// Where page `index` stands, and how many of the run's pages stand side by side from there on.
    pub fn stretch(&self, index: u32) -> Option<(PageNo, u32)> {
        let (extent, within) = self.extent_of(index)?;
        Some((PageNo(extent.start.0.checked_add(within)?), extent.pages - within))
    }

    /// The extent that has page `index`, and the page's place in it.
    #[inline]
    fn extent_of(&self, index: u32) -> Option<(&Extent, u32)> {
        let at = self.ends.partition_point(|end| *end <= index);
        let extent = self.extents.get(at)?;
        let before = at.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        Some((extent, index - before))
    }

    #[cfg(test)]
    pub fn change(&mut self, change: impl FnOnce(&mut [Extent])) {
        change(&mut self.extents);
        *self = Pieces::from(std::mem::take(&mut self.extents));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_in_their_pieces() {
        let extent = |start, pages, seq| Extent { start: PageNo(start), pages, seq: ExtentSeq(seq) };
        let extents = vec![extent(50, 3, 1), extent(7, 0, 2), extent(10, 1, 3), extent(90, 4, 1)];
        let pieces = Pieces::from(extents.clone());
        assert_eq!(Pieces::try_of(&extents).unwrap(), pieces);
        let found: Vec<_> = (0..9).map(|index| pieces.locate(index).map(|(page, seq)| (page.0, seq.0))).collect();
        let expected = [(50, 1), (51, 1), (52, 1), (10, 3), (90, 1), (91, 1), (92, 1), (93, 1)];
        assert_eq!(found, expected.into_iter().map(Some).chain([None]).collect::<Vec<_>>());
        assert_eq!(pieces.stretch(1), Some((PageNo(51), 2)));
        assert_eq!(pieces.stretch(7), Some((PageNo(93), 1)));
        assert_eq!(Pieces::default().locate(0), None);
    }
}
