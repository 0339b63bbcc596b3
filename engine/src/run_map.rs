//! The run map: from the L0 id of a run as it was flushed to the run that holds it now.
//!
//! ```text
//!   run          0            1      2          3
//!   L0 ids   [ 5 .. 12 ] [ 13 .. 13 ] [ 14 .. 20 ] [ 21 .. 21 ]
//!   starts     5           13          14           21            end: 22
//! ```
//!
//! Compaction merges neighbours in age only, so the runs cut the space of L0 ids into contiguous intervals (I1) and one
//! number a run is the whole map. A superversion owns one; it never changes.

use crate::error::{Error, Result};
use crate::types::L0Id;

/// Boundaries of the intervals of a superversion's runs, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunMap {
    starts: Box<[u64]>,
    /// One after the last L0 id of the newest run.
    end: u64,
}

impl RunMap {
    /// From the intervals of the runs (first and last L0 id, both included), oldest run first. Fails unless each begins
    /// where the one before it ended (I1). A run may cover none, if it is not the newest: slices of a merge that goes on.
    pub fn build(intervals: &[(L0Id, L0Id)]) -> Result<RunMap> {
        let mut end = None;
        for (position, (first, last)) in intervals.iter().enumerate() {
            let follows = end.is_none_or(|end| first.0 == end);
            let newest = position + 1 == intervals.len();
            let ends = last.0.checked_add(1).filter(|end| first.0 < *end || first.0 == *end && !newest);
            let (true, Some(next)) = (follows, ends) else {
                let before = end.map_or_else(|| "the first".to_owned(), |end| format!("after L0 id {}", end - 1));
                return Err(Error::structure(format!("run {position} ({before}) covers L0 ids {first} to {last}")));
            };
            end = Some(next);
        }
        let starts = intervals.iter().map(|interval| interval.0 .0).collect();
        Ok(RunMap { starts, end: end.unwrap_or(0) })
    }

    /// Position (0: oldest) of the run that holds what was flushed as `id`; `None` if none does.
    pub fn run_of(&self, id: L0Id) -> Option<usize> {
        if id.0 >= self.end {
            return None;
        }
        // Runs are few, and mostly one generation each near the end.
        self.starts.partition_point(|start| *start <= id.0).checked_sub(1)
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The oldest L0 id held, `None` without runs.
    pub fn first(&self) -> Option<L0Id> {
        self.starts.first().map(|start| L0Id(*start))
    }

    /// The newest L0 id held, `None` without runs.
    pub fn last(&self) -> Option<L0Id> {
        (!self.is_empty()).then(|| L0Id(self.end - 1))
    }

    /// First and last L0 id of the run at this position.
    pub fn interval(&self, run: usize) -> Option<(L0Id, L0Id)> {
        let start = *self.starts.get(run)?;
        let next = self.starts.get(run + 1).copied().unwrap_or(self.end);
        Some((L0Id(start), L0Id(next - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(intervals: &[(u64, u64)]) -> Result<RunMap> {
        let intervals: Vec<_> = intervals.iter().map(|(first, last)| (L0Id(*first), L0Id(*last))).collect();
        RunMap::build(&intervals)
    }

    #[test]
    fn no_runs() {
        let map = build(&[]).expect("valid");
        assert!(map.is_empty() && map.first().is_none() && map.last().is_none() && map.interval(0).is_none());
        assert!((0..5).chain([u64::MAX]).all(|id| map.run_of(L0Id(id)).is_none()));
        assert_eq!(map, RunMap::default());
    }

    #[test]
    fn every_id_has_one_run() {
        let intervals = [(5, 12), (13, 13), (14, 20), (21, 21)];
        let map = build(&intervals).expect("valid");
        assert_eq!((map.len(), map.first(), map.last()), (4, Some(L0Id(5)), Some(L0Id(21))));
        for id in 0..40 {
            let expected = intervals.iter().position(|(first, last)| (*first..=*last).contains(&id));
            assert_eq!(map.run_of(L0Id(id)), expected, "{id}");
        }
        assert_eq!(map.run_of(L0Id(u64::MAX)), None);
        for (run, (first, last)) in intervals.into_iter().enumerate() {
            assert_eq!(map.interval(run), Some((L0Id(first), L0Id(last))));
        }
        assert_eq!(map.interval(4), None);
    }

    #[test]
    fn broken_partitions_are_refused() {
        for intervals in [
            [(1, 3), (5, 6)].as_slice(),
            &[(1, 3), (3, 6)],
            &[(4, 6), (1, 3)],
            &[(3, 2)],
            &[(1, 3), (4, 3)],
            &[(1, 3), (1, 3)],
            &[(1, u64::MAX)],
            &[(1, u64::MAX), (0, 3)],
        ] {
            let error = build(intervals).expect_err("not contiguous");
            assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        }
    }
}
