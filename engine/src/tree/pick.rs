//! What to merge next. Pure: a decision over the sizes and levels of the runs.
//!
//! Runs stand by age, newest first; levels ascend with age. Only neighbours in age are merged (I1), all runs of a level
//! at once: when a level has `fan_in` runs they become one run of the next. Two more reasons: the runs above the oldest
//! one weigh more than the space amplification allows; a run consists largely of tombstones.

use crate::options::TreeOptions;
use std::ops::Range;

/// What the decision looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunInfo {
    pub level: u8,
    pub bytes: u64,
    pub rows: u64,
    pub tombstones: u64,
}

/// A merge: neighbours in the order of the runs given (newest first), and the level of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub runs: Range<usize>,
    pub level: u8,
}

/// The merge that is due, or with `force` one that makes everything a single run.
pub fn pick(runs: &[RunInfo], options: &TreeOptions, force: bool) -> Option<Job> {
    if force {
        return whole(runs);
    }
    full_level(runs, options.fan_in as usize).or_else(|| space(runs, options)).or_else(|| tombstones(runs, options))
}

/// Every run into one; nothing when there is only one that has nothing to drop.
fn whole(runs: &[RunInfo]) -> Option<Job> {
    let oldest = runs.last()?;
    (runs.len() > 1 || oldest.tombstones > 0)
        .then(|| Job { runs: 0..runs.len(), level: runs.iter().map(|r| r.level).max().unwrap_or(0).max(1) })
}

/// The lowest level that has enough runs. Higher levels that would be full with the result are taken along.
fn full_level(runs: &[RunInfo], fan_in: usize) -> Option<Job> {
    let mut job: Option<Job> = None;
    let mut at = 0;
    while at < runs.len() {
        let level = runs.get(at)?.level;
        let end = at + runs.iter().skip(at).take_while(|r| r.level == level).count();
        match &mut job {
            None if end - at >= fan_in => job = Some(Job { runs: at..end, level: level.saturating_add(1) }),
            Some(found) if found.level == level && end - at + 1 >= fan_in => {
                *found = Job { runs: found.runs.start..end, level: level.saturating_add(1) };
            }
            Some(_) => break,
            None => {}
        }
        at = end;
    }
    job
}

fn space(runs: &[RunInfo], options: &TreeOptions) -> Option<Job> {
    let (oldest, above) = runs.split_last()?;
    let weight: u64 = above.iter().map(|r| r.bytes).sum();
    let allowed = oldest.bytes.saturating_mul(u64::from(options.space_percent)) / 100;
    (above.len() > 1 && weight > allowed).then(|| whole(runs)).flatten()
}

/// A run that consists of tombstones to a large part is merged with its older neighbour.
fn tombstones(runs: &[RunInfo], options: &TreeOptions) -> Option<Job> {
    let at = runs.iter().position(|r| r.tombstones * 100 > r.rows * u64::from(options.tombstone_percent))?;
    let end = (at + 2).min(runs.len());
    let level = runs.get(end - 1)?.level;
    Some(Job { runs: at..end, level })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(level: u8, bytes: u64) -> RunInfo {
        RunInfo { level, bytes, rows: bytes, tombstones: 0 }
    }

    fn options() -> TreeOptions {
        TreeOptions { fan_in: 4, space_percent: 200, ..TreeOptions::default() }
    }

    #[test]
    fn a_full_level_becomes_one_run_of_the_next() {
        let mut runs = vec![run(0, 1); 4];
        runs.push(run(1, 100));
        assert_eq!(pick(&runs, &options(), false), Some(Job { runs: 0..4, level: 1 }));
        assert_eq!(pick(&runs[1..], &options(), false), None);
    }

    #[test]
    fn levels_that_would_fill_are_taken_along() {
        let mut runs = vec![run(0, 1); 4];
        runs.extend([run(1, 4); 3]);
        runs.push(run(2, 500));
        assert_eq!(pick(&runs, &options(), false), Some(Job { runs: 0..7, level: 2 }));
    }

    #[test]
    fn space_amplification_merges_everything() {
        let runs = [run(0, 90), run(1, 90), run(2, 50)];
        assert_eq!(pick(&runs, &options(), false), Some(Job { runs: 0..3, level: 2 }));
    }

    #[test]
    fn tombstones_go_down() {
        let mut runs = vec![run(0, 10), run(1, 100), run(2, 1000)];
        runs[1].tombstones = 60;
        assert_eq!(pick(&runs, &options(), false), Some(Job { runs: 1..3, level: 2 }));
        let alone = [RunInfo { tombstones: 60, ..run(2, 100) }];
        assert_eq!(pick(&alone, &options(), false), Some(Job { runs: 0..1, level: 2 }));
    }

    #[test]
    fn force_leaves_a_single_clean_run_alone() {
        assert_eq!(pick(&[run(2, 10)], &options(), true), None);
        assert_eq!(pick(&[], &options(), true), None);
        assert_eq!(pick(&[run(0, 1), run(2, 10)], &options(), true), Some(Job { runs: 0..2, level: 2 }));
    }
}
