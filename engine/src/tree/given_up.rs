//! What a flip gives up: pages that no run, or no log, has any more. They wait in limbo for who still reads them.
//!
//! ```text
//!   a run is gone, moved or cut        its old pages, less what runs of the new manifest have
//!   slices become one run              nothing of their data pages: the merged run has them
//! ```
//!
//! Pages are told apart by the number of their extent: a follower may miss some manifests, and find a page in another use.

use crate::manifest::{Manifest, RunDesc};
use crate::mutation::{on, Mutation::SlicesGivenUpWhole};
use crate::tree::shared::{Limbo, Owner};
use crate::types::{Extent, PageNo};

/// Extents, by their number.
pub(super) struct BySeq(Vec<Extent>);

impl BySeq {
    pub fn new<'e>(extents: impl Iterator<Item = &'e Extent>) -> BySeq {
        let mut all: Vec<Extent> = extents.copied().collect();
        all.sort_unstable_by_key(|extent| (extent.seq, extent.start));
        BySeq(all)
    }

    fn of_seq(&self, like: &Extent) -> impl Iterator<Item = &Extent> {
        let from = self.0.partition_point(|extent| extent.seq < like.seq);
        let seq = like.seq;
        self.0.iter().skip(from).take_while(move |extent| extent.seq == seq)
    }

    /// Whether one of them has a page of this extent.
    pub fn shared_with(&self, extent: &Extent) -> bool {
        self.of_seq(extent).any(|other| other.shares(extent))
    }

    /// The pieces of an extent that none of them has.
    fn without(&self, extent: Extent) -> Vec<Extent> {
        without(extent, self.of_seq(&extent))
    }
}

/// What the runs and logs of `old` have and those of `new` have not.
pub(super) fn given_up(old: &Manifest, new: &Manifest) -> Vec<Limbo> {
    let logs = old.log_extents.iter().filter(|log| log.generation <= new.flushed);
    let logs = logs.map(|log| Limbo { extent: log.extent, owner: Owner::Log(log.generation) });
    let runs = pages_of_runs(old, new).into_iter().map(|extent| Limbo { extent, owner: Owner::Run(extent) });
    runs.chain(logs).collect()
}

fn pages_of_runs(old: &Manifest, new: &Manifest) -> Vec<Extent> {
    let same = |a: &RunDesc, b: &RunDesc| a.id == b.id && a.extents == b.extents;
    let changed = |runs: &[RunDesc], others: &[RunDesc]| -> Vec<Extent> {
        let changed = runs.iter().filter(|run| !others.iter().any(|other| same(run, other)));
        changed.flat_map(|run| run.extents.iter().copied()).collect()
    };
    let before = changed(&old.runs, &new.runs);
    let after = match on(SlicesGivenUpWhole) {
        true => Vec::new(),
        false => changed(&new.runs, &old.runs),
    };
    let after = BySeq::new(after.iter());
    before.into_iter().flat_map(|extent| after.without(extent)).collect()
}

/// The pieces of an extent that are in none of the others.
pub(super) fn without<'e>(extent: Extent, others: impl Iterator<Item = &'e Extent>) -> Vec<Extent> {
    let mut pieces = vec![extent];
    for other in others {
        pieces = pieces.into_iter().flat_map(|piece| cut(piece, other)).collect();
    }
    pieces
}

fn cut(piece: Extent, other: &Extent) -> impl Iterator<Item = Extent> {
    let between = |from: PageNo, to: PageNo| Extent { start: from, pages: to.0.saturating_sub(from.0), ..piece };
    let before = between(piece.start, piece.end().min(other.start));
    let after = between(piece.start.max(other.end()), piece.end());
    [before, after].into_iter().filter(|piece| piece.pages > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ExtentSeq;

    fn extent(start: u32, pages: u32) -> Extent {
        Extent { start: PageNo(start), pages, seq: ExtentSeq(1) }
    }

    #[test]
    fn what_others_own_is_cut_out() {
        let whole = extent(10, 10);
        let without = |others: &[Extent]| without(whole, others.iter());
        assert_eq!(without(&[]), [whole]);
        assert_eq!(without(&[extent(0, 10), extent(20, 5)]), [whole]);
        assert_eq!(without(&[extent(12, 3), extent(18, 9)]), [extent(10, 2), extent(15, 3)]);
        assert_eq!(without(&[extent(5, 20)]), []);
        assert_eq!(without(&[extent(5, 6), extent(19, 1)]), [extent(11, 8)]);
    }

    #[test]
    fn pages_are_told_apart_by_the_number_of_their_extent() {
        let other = Extent { seq: ExtentSeq(2), ..extent(10, 10) };
        let all = BySeq::new([extent(0, 12), other, extent(30, 5)].iter());
        assert_eq!(all.without(extent(10, 10)), [extent(12, 8)]);
        assert_eq!(all.without(other), []);
        assert!(all.shared_with(&extent(34, 5)) && !all.shared_with(&extent(35, 5)));
        assert!(!all.shared_with(&Extent { seq: ExtentSeq(2), ..extent(30, 5) }));
    }
}
