//! What to merge next. Pure: a decision over the sizes and levels of the runs.
//!
//! Runs stand by age, newest first; levels ascend with age. Only neighbours in age are merged (I1), all runs of a level
//! at once: when a level has `fan_in` runs they become one run of the next. Two more reasons: there is more garbage than the
//! space amplification allows, and the runs above the oldest one have grown enough to make a merge of all worth its while (which goes
//! before full levels where the garbage is known: they are part of it);
//! a run consists largely of tombstones, or has had some for long. And runs are *tidied*: ordered reads begin in every run, and
//! the fewer there are the faster they are. That is done while nobody writes, and when scans have spent as much on beginning in
//! runs that a merge would make one as that merge takes. What becomes of them, and of a merge of all, goes to the level where
//! runs of so many flushes belong: on a lower one it would soon be written again, with far fewer new rows.
//!
//! A merge that was begun, and cut short by a crash or an error, goes before all but full levels of newer runs. Those do not wait for
//! the end of a long merge either ([`pick_newer`]).
//!
//! Runs of a level whose keys follow each other are a *chain*: rows that came in the order of their keys. A scan reads the runs of a
//! chain one after the other, a merge would write the same rows in the same order. So a chain counts as one run, until it is very
//! long; and where a chain is all there is in the first level it moves to the next as it is.

use crate::options::TreeOptions;
use crate::tree::garbage::{Garbage, Room};
use std::ops::Range;

/// What the decision looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunInfo {
    pub level: u8,
    pub bytes: u64,
    pub rows: u64,
    pub tombstones: u64,
    /// Versions that have a newer one of their key in the same run, which everybody sees: a merge would drop them.
    pub outdated: u64,
    /// So many flushes went into it.
    pub flushes: u64,
    /// So many times as much as went into it was flushed after it.
    pub age: u64,
    /// All its writers have ended.
    pub finished: bool,
    /// It is of one chain with the next newer run.
    pub chained: bool,
    /// It was cut: the next older run has to do with the same merge, which was begun.
    pub cut: bool,
}

/// How much work is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// What is due, whoever writes meanwhile.
    Due,
    /// Nobody is going to write for a while, most likely: runs are tidied, whoever pays for it.
    Tidy,
    /// Everything is to become a single run.
    All,
}

/// What is worth tidying.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tidying {
    /// The largest run of a merge is at most so many times as large as the others together: so a run is written anew only after
    /// a good part of its size was written.
    pub ratio: u64,
    /// Bytes that could have been merged in the time that scans have spent since the last merge because there was not one run alone.
    pub paid: u64,
}

/// A merge: neighbours in the order of the runs given (newest first), and the level of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub runs: Range<usize>,
    pub level: u8,
}

/// What is to be done with the runs of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pick {
    Merge(Job),
    /// They are of the job's level from now on, as they are.
    Move(Job),
}

impl Pick {
    pub fn job(&self) -> &Job {
        let (Pick::Merge(job) | Pick::Move(job)) = self;
        job
    }
}

/// What is due.
pub fn pick(runs: &[RunInfo], room: Room, options: &TreeOptions, effort: Effort, tidying: Tidying) -> Option<Pick> {
    if let Some(job) = begun(runs) {
        // If it takes long, or fails again and again, writers are not to wait for it.
        let newer = runs.get(..job.runs.start).and_then(|newer| pick_newer(newer, options));
        return newer.or(Some(Pick::Merge(job)));
    }
    if effort != Effort::All {
        if let Some(job) = chain_to_move(runs, options.fan_in as usize) {
            return Some(Pick::Move(job));
        }
    }
    if effort == Effort::All {
        return stretches(runs).iter().rev().find_map(|stretch| whole(runs, stretch, options)).map(Pick::Merge);
    }
    let apart = |job| keep_apart(runs, job);
    // What is merged with everything, for that is known to be worth it, need not be merged by itself before. Levels that fill
    // meanwhile do not wait for it.
    let known = space(runs, room, options)
        .filter(|job| room.garbage.is_some() && apart(job.clone()).as_ref() == Some(job))
        .map(Pick::Merge);
    let other = || {
        space(runs, room, options)
            .and_then(apart)
            .or_else(|| tombstones(runs, options).and_then(apart))
            .or_else(|| tidy(runs, options, effort, tidying))
            .map(Pick::Merge)
    };
    let full = || full_level(runs, options.fan_in as usize).and_then(|job| empty_level(runs, job));
    known.or_else(full).or_else(other)
}

/// What does not wait for a merge that was begun: full levels of the runs that are newer than those of the merge. (None of another
/// merge that was begun: it is to be done whole.)
pub fn pick_newer(newer: &[RunInfo], options: &TreeOptions) -> Option<Pick> {
    if newer.iter().any(|run| run.cut) {
        return None;
    }
    let fan_in = options.fan_in as usize;
    if let Some(job) = chain_to_move(newer, fan_in) {
        return Some(Pick::Move(job));
    }
    empty_level(newer, full_level(newer, fan_in)?)
}

/// A merge that was begun and has not ended: its runs and slices, of which the last is whole.
pub fn begun(runs: &[RunInfo]) -> Option<Job> {
    let first = runs.iter().position(|run| run.cut)?;
    let end = first + runs.iter().skip(first).take_while(|run| run.cut).count();
    let level = runs.get(end)?.level;
    Some(Job { runs: first..end + 1, level })
}

/// A chain has so many times more runs than a level has, at most.
const LONGEST_CHAIN: usize = 8;

/// How many chains these runs of one level are; a run by itself is one, too.
fn chains(runs: &[RunInfo]) -> usize {
    runs.iter().enumerate().filter(|(at, run)| *at == 0 || !run.chained).count()
}

/// Whether these runs, and `more` beside, are too many for their level. In the first one each counts, for writers wait for it.
fn too_many(runs: &[RunInfo], more: usize, fan_in: usize) -> bool {
    let in_first = runs.first().is_some_and(|run| run.level == 0);
    let count = if in_first { runs.len() } else { chains(runs) };
    count + more >= fan_in || runs.len() + more >= fan_in.saturating_mul(LONGEST_CHAIN)
}

/// The first level, if it has as many runs as it may have, and they are one chain.
fn chain_to_move(runs: &[RunInfo], fan_in: usize) -> Option<Job> {
    let first = runs.partition_point(|run| run.level == 0);
    let chain = runs.get(..first)?;
    (first >= fan_in && chains(chain) == 1).then_some(Job { runs: 0..first, level: 1 })
}

/// The runs that may be merged with each other, newest first. A run with a writer who has not ended is not merged with runs whose
/// writers need never be asked about again: their rows would have to be asked about once more, and what became of their writers may be
/// forgotten by then.
fn stretches(runs: &[RunInfo]) -> Vec<Range<usize>> {
    let mut stretches: Vec<Range<usize>> = Vec::new();
    for stretch in runs.chunk_by(|newer, older| newer.finished == older.finished) {
        let start = stretches.last().map_or(0, |newer| newer.end);
        stretches.push(start..start + stretch.len());
    }
    stretches
}

/// What remains of a merge where not all of its runs may be merged with each other.
fn keep_apart(runs: &[RunInfo], job: Job) -> Option<Job> {
    let inputs = runs.get(job.runs.clone())?;
    let older = inputs.iter().rev().take_while(|run| run.finished).count();
    if older == inputs.len() || inputs.iter().all(|run| !run.finished) {
        return Some(job);
    }
    if older > 1 {
        return Some(Job { runs: job.runs.end - older..job.runs.end, level: job.level });
    }
    let newer = inputs.iter().take_while(|run| !run.finished).count();
    let level = inputs.iter().take(newer).map(|run| run.level).max()?;
    (newer > 1).then(|| Job { runs: job.runs.start..job.runs.start + newer, level })
}

/// What a full level is relieved of: its oldest runs become one of the next level, as many as may be merged with each other. Where
/// that is one alone, it goes there as it is: else a writer who has a row in it, and does not end for long, would hold up all that
/// is written after.
fn empty_level(runs: &[RunInfo], job: Job) -> Option<Pick> {
    let inputs = runs.get(job.runs.clone())?;
    let oldest = inputs.last()?;
    let alike = inputs.iter().rev().take_while(|run| run.finished == oldest.finished).count();
    let alike = Job { runs: job.runs.end - alike..job.runs.end, ..job };
    match alike.runs.len() {
        1 => (oldest.level < alike.level).then_some(Pick::Move(alike)),
        _ => Some(Pick::Merge(alike)),
    }
}

/// The level where a run made of these belongs, if not on a lower one than they are: a merge of `fan_in` runs of a level, or of about
/// so many, is one of the next.
fn level_of(runs: &[RunInfo], options: &TreeOptions) -> u8 {
    let fan_in = f64::from(options.fan_in.max(2));
    let flushes: u64 = runs.iter().map(|run| run.flushes).sum();
    let fitting = (flushes.max(1) as f64).log(fan_in).round() as u8;
    runs.iter().map(|run| run.level).max().unwrap_or(0).max(fitting)
}

/// Every run of a stretch into one; nothing when there is only one that has nothing to drop.
fn whole(runs: &[RunInfo], stretch: &Range<usize>, options: &TreeOptions) -> Option<Job> {
    let inputs = runs.get(stretch.clone())?;
    let older = runs.get(stretch.end);
    let drops = older.is_none() && inputs.last()?.tombstones > 0;
    let level = level_of(inputs, options).max(1).min(older.map_or(u8::MAX, |run| run.level));
    (inputs.len() > 1 || drops).then(|| Job { runs: stretch.clone(), level })
}

/// Every run into one, if all of them may be merged with each other.
pub fn everything(runs: &[RunInfo], options: &TreeOptions) -> Option<Job> {
    match stretches(runs).as_slice() {
        [all] => whole(runs, all, options),
        _ => None,
    }
}

/// The lowest level that has enough runs. Higher levels that would be full with the result are taken along.
fn full_level(runs: &[RunInfo], fan_in: usize) -> Option<Job> {
    let mut job: Option<Job> = None;
    let mut at = 0;
    while at < runs.len() {
        let level = runs.get(at)?.level;
        let end = at + runs.iter().skip(at).take_while(|r| r.level == level).count();
        let level_runs = runs.get(at..end)?;
        match &mut job {
            None if too_many(level_runs, 0, fan_in) => {
                job = Some(Job { runs: at..end, level: level.saturating_add(1) })
            }
            Some(found) if found.level == level && too_many(level_runs, 1, fan_in) => {
                *found = Job { runs: found.runs.start..end, level: level.saturating_add(1) };
            }
            Some(_) => break,
            None => {}
        }
        at = end;
    }
    job
}

/// The first level has piled up when it has so many times more runs than it is merged with.
const PILED_UP: u32 = 3;
/// A writer may be asked to merge so many bytes, or as many as a memtable has: the smallest run takes a few pages.
const PILED_UP_BYTES: u64 = 8 << 20;

/// Whether nobody has merged the first level, which has so many runs, for long.
pub fn is_piled_up(first_level: usize, options: &TreeOptions) -> bool {
    first_level >= options.fan_in.saturating_mul(PILED_UP) as usize
}

/// What a writer merges where the first level has piled up: it, and those after it that would be full, as far as all of it is no more
/// than a memtable, or little: a memtable he may have to write, too. Chains are merged, for these runs are small.
pub fn piled_up(runs: &[RunInfo], options: &TreeOptions) -> Option<Pick> {
    let mut job: Option<Job> = None;
    let (mut at, mut bytes) = (0, 0u64);
    while let Some(level) = runs.get(at).map(|run| run.level) {
        let end = at + runs.iter().skip(at).take_while(|run| run.level == level).count();
        let level_runs = runs.get(at..end)?;
        bytes = level_runs.iter().fold(bytes, |sum, run| sum.saturating_add(run.bytes));
        let full = match &job {
            None => level == 0 && is_piled_up(end, options),
            Some(below) => below.level == level && end - at + 1 >= options.fan_in as usize,
        };
        if !full || bytes > options.memtable_bytes.max(PILED_UP_BYTES) || level_runs.iter().any(|run| run.cut) {
            break;
        }
        job = Some(Job { runs: 0..end, level: level.saturating_add(1) });
        at = end;
    }
    empty_level(runs, job?)
}

/// A merge of everything, for the garbage.
pub(super) fn space(runs: &[RunInfo], room: Room, options: &TreeOptions) -> Option<Job> {
    if let Some(job) = freed(runs, room, options) {
        return Some(job);
    }
    let (oldest, above) = runs.split_last()?;
    // Rows that are new are no garbage. But what cannot be dropped yet, for somebody may still see it, must not be merged
    // again and again.
    let grown = above.iter().map(|r| r.bytes).sum::<u64>() > oldest.bytes.saturating_mul(room.percent) / 100;
    let dirty = room.garbage.is_none_or(|garbage| garbage.beyond(room.percent) > 0.0);
    (above.len() > 1 && grown && dirty).then(|| whole(runs, &(0..runs.len()), options)).flatten()
}

/// A merge that drops what earlier ones had to keep, for somebody could see it, and nobody does any more: of one run alone, if need be.
/// Runs with writers who have not ended are left out.
fn freed(runs: &[RunInfo], room: Room, options: &TreeOptions) -> Option<Job> {
    let finished = runs.iter().rev().take_while(|run| run.finished).count();
    let inputs = runs.get(runs.len() - finished..)?;
    let dead = inputs.iter().map(|run| run.outdated).sum::<u64>() + inputs.last()?.tombstones;
    let rows: u64 = runs.iter().map(|run| run.rows).sum();
    let due = Garbage { dead, live: rows.saturating_sub(dead) }.beyond(room.percent) > 0.0;
    due.then(|| Job { runs: runs.len() - finished..runs.len(), level: level_of(inputs, options).max(1) })
}

/// The age at which a run is old, as a multiple of the fan-in: a full level has merged it long before, mostly.
const OLD: u64 = 2;

/// A run that consists of tombstones to a large part is merged with its older neighbour. So is one with a few that no merge has
/// come by for long: what was deleted is not to stay for ever.
fn tombstones(runs: &[RunInfo], options: &TreeOptions) -> Option<Job> {
    let many = |run: &RunInfo| run.tombstones * 100 > run.rows * u64::from(options.tombstone_percent);
    let old = |run: &RunInfo| run.tombstones > 0 && run.age >= OLD * u64::from(options.fan_in);
    let above = runs.len().saturating_sub(1);
    let at = runs.iter().enumerate().position(|(at, run)| many(run) || (at < above && old(run)))?;
    let end = (at + 2).min(runs.len());
    let level = runs.get(end - 1)?.level;
    Some(Job { runs: at..end, level })
}

/// A tidying merge writes no more than this: it is over soon when somebody writes after all ...
const MOST_TIDIED: u64 = 256 << 20;
/// ... and no more than this share of all, for it needs as much room beside ...
const MOST_TIDIED_PERCENT: u64 = 60;
/// ... but if scans have paid for it it may write so much, and be of everything.
const MOST_PAID: u64 = 1 << 30;

/// As many of the newest runs as are worth it, of the newest stretch where some are.
fn tidy(runs: &[RunInfo], options: &TreeOptions, effort: Effort, tidying: Tidying) -> Option<Job> {
    stretches(runs).iter().find_map(|stretch| tidy_stretch(runs, stretch, options, effort, tidying))
}

fn tidy_stretch(
    runs: &[RunInfo],
    stretch: &Range<usize>,
    options: &TreeOptions,
    effort: Effort,
    Tidying { ratio, paid }: Tidying,
) -> Option<Job> {
    let all: u64 = runs.iter().map(|run| run.bytes).sum();
    let unpaid = match effort {
        Effort::Tidy => MOST_TIDIED.min(all / 100 * MOST_TIDIED_PERCENT),
        _ => 0,
    };
    let beyond_one = chains(runs).saturating_sub(1) as u64;
    let worth = |end: &usize| {
        let inputs = runs.get(stretch.start..*end).unwrap_or_default();
        let sum: u64 = inputs.iter().map(|run| run.bytes).sum();
        let largest = inputs.iter().map(|run| run.bytes).max().unwrap_or(0);
        let saved = chains(inputs).saturating_sub(1) as u64;
        // Of what scans have spent, it would have saved them this part.
        let paid = u128::from(sum) * u128::from(beyond_one) <= u128::from(paid) * u128::from(saved);
        saved > 0 && (sum <= unpaid || (paid && sum <= MOST_PAID)) && largest <= ratio.saturating_mul(sum - largest)
    };
    let end = (stretch.start + 2..=stretch.end).rev().find(worth)?;
    let highest = runs.get(end).map_or(u8::MAX, |run| run.level);
    let inputs = runs.get(stretch.start..end)?;
    Some(Job { runs: stretch.start..end, level: level_of(inputs, options).min(highest) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::garbage::Garbage;

    fn run(level: u8, bytes: u64) -> RunInfo {
        RunInfo {
            level,
            bytes,
            rows: bytes,
            tombstones: 0,
            outdated: 0,
            flushes: 1,
            age: 0,
            finished: true,
            chained: false,
            cut: false,
        }
    }

    fn merge(runs: Range<usize>, level: u8) -> Option<Pick> {
        Some(Pick::Merge(Job { runs, level }))
    }

    /// Nothing is to be tidied but where nobody writes.
    const UNPAID: Tidying = Tidying { ratio: 4, paid: 0 };

    fn pick(runs: &[RunInfo], garbage: Option<Garbage>, options: &TreeOptions, effort: Effort) -> Option<Pick> {
        super::pick(runs, room(garbage, options), options, effort, UNPAID)
    }

    fn room(garbage: Option<Garbage>, options: &TreeOptions) -> Room {
        Room { garbage, percent: options.space_percent.into() }
    }

    fn options() -> TreeOptions {
        TreeOptions { fan_in: 4, space_percent: 200, ..TreeOptions::default() }
    }

    #[test]
    fn a_full_level_becomes_one_run_of_the_next() {
        let mut runs = vec![run(0, 1); 4];
        runs.push(run(1, 100));
        assert_eq!(pick(&runs, None, &options(), Effort::Due), merge(0..4, 1));
        assert_eq!(pick(&runs[1..], None, &options(), Effort::Due), None);
    }

    #[test]
    fn a_merge_that_was_begun_comes_first() {
        let cut = |level| RunInfo { cut: true, ..run(level, 1) };
        let mut runs = vec![run(0, 1); 4];
        runs.extend([cut(1), cut(1), cut(2), run(2, 1), run(2, 500)]);
        for effort in [Effort::Due, Effort::All] {
            assert_eq!(pick(&runs, None, &options(), effort), merge(0..4, 1), "nobody waits for it");
            assert_eq!(pick(&runs[1..], None, &options(), effort), merge(3..7, 2));
        }
    }

    #[test]
    fn a_chain_moves_as_it_is() {
        let chained = |level| RunInfo { chained: true, ..run(level, 1) };
        let mut runs = vec![run(0, 1), chained(0), chained(0)];
        assert_eq!(pick(&runs, None, &options(), Effort::Due), None);
        runs.push(chained(0));
        assert_eq!(pick(&runs, None, &options(), Effort::Due), Some(Pick::Move(Job { runs: 0..4, level: 1 })));
        runs.push(run(1, 100));
        assert_eq!(pick(&runs, None, &options(), Effort::Due), Some(Pick::Move(Job { runs: 0..4, level: 1 })));
        assert_eq!(pick(&runs, None, &options(), Effort::All), merge(0..5, 1));
        runs[2].chained = false;
        assert_eq!(pick(&runs, None, &options(), Effort::Due), merge(0..4, 1));
    }

    #[test]
    fn a_chain_counts_as_one_run_until_it_is_very_long() {
        let options = TreeOptions { space_percent: 10_000, ..options() };
        let chained = RunInfo { chained: true, ..run(1, 1) };
        let mut runs = vec![run(1, 1)];
        runs.extend([chained; 30]);
        assert_eq!(pick(&runs, None, &options, Effort::Due), None);
        assert_eq!(pick(&runs, None, &options, Effort::Tidy), None);
        runs.push(chained);
        assert_eq!(pick(&runs, None, &options, Effort::Due), merge(0..32, 2));
        let mut beside = runs.split_off(12);
        beside[0].chained = false;
        beside[5].chained = false;
        runs.extend(beside);
        runs.truncate(25);
        assert_eq!(pick(&runs, None, &options, Effort::Due), None);
        runs[3].chained = false;
        assert_eq!(pick(&runs, None, &options, Effort::Due), merge(0..25, 2));
    }

    #[test]
    fn levels_that_would_fill_are_taken_along() {
        let mut runs = vec![run(0, 1); 4];
        runs.extend([run(1, 4); 3]);
        runs.push(run(2, 500));
        assert_eq!(pick(&runs, None, &options(), Effort::Due), merge(0..7, 2));
    }

    #[test]
    fn space_amplification_merges_everything() {
        let runs = [run(0, 90), run(1, 90), run(2, 50)];
        assert_eq!(pick(&runs, None, &options(), Effort::Due), merge(0..3, 2));
    }

    #[test]
    fn unfinished_runs_are_merged_among_themselves() {
        let mut runs = vec![run(0, 1); 4];
        runs.push(run(1, 100));
        let pick = |runs: &[RunInfo], effort| pick(runs, None, &options(), effort);
        runs[0].finished = false;
        assert_eq!(pick(&runs, Effort::Due), merge(1..4, 1));
        assert_eq!(pick(&runs, Effort::All), merge(1..5, 1));
        runs[2].finished = false;
        let moved = |runs, level| Some(Pick::Move(Job { runs, level }));
        assert_eq!(pick(&runs, Effort::Due), moved(3..4, 1));
        runs[1].finished = false;
        assert_eq!(pick(&runs, Effort::Due), moved(3..4, 1));
        assert_eq!(pick(&runs, Effort::All), merge(3..5, 1));
        runs[3].finished = false;
        assert_eq!(pick(&runs, Effort::Due), merge(0..4, 1));
        runs[4].finished = false;
        runs[1].finished = true;
        assert_eq!(pick(&runs, Effort::All), merge(2..5, 1));
        runs[4].finished = true;
        // One writer does not hold up what is written after.
        (runs[0].finished, runs[1].finished, runs[2].finished) = (true, true, true);
        assert_eq!(pick(&runs, Effort::Due), moved(3..4, 1));
        assert_eq!(pick(&runs, Effort::All), merge(0..3, 0), "no level above that of the older run");
        runs[3].level = 1;
        assert_eq!(pick(&runs, Effort::All), merge(0..3, 1));
        assert_eq!(pick(&runs, Effort::Tidy), merge(0..3, 1));
        assert_eq!(pick(&runs[2..], Effort::All), None, "neither with each other nor alone");
        runs[2].tombstones = 1;
        assert_eq!(pick(&runs[2..], Effort::All), None, "an older run may have the key");
        let deepest =
            [run(u8::MAX, 1), run(u8::MAX, 1), run(u8::MAX, 1), RunInfo { finished: false, ..run(u8::MAX, 1) }];
        assert_eq!(pick(&deepest, Effort::Due), None);
    }

    #[test]
    fn new_rows_are_no_garbage() {
        let runs = [run(0, 90), run(1, 90), run(2, 50)];
        let pick = |dead| pick(&runs, Some(Garbage { dead, live: 100 }), &options(), Effort::Due);
        assert_eq!(pick(200), None);
        assert_eq!(pick(201), merge(0..3, 2));
    }

    #[test]
    fn a_merge_of_everything_goes_before_full_levels() {
        let mut runs = vec![run(0, 90); 4];
        runs.push(run(2, 50));
        let pick = |dead| pick(&runs, Some(Garbage { dead, live: 100 }), &options(), Effort::Due);
        assert_eq!(pick(200), merge(0..4, 1));
        assert_eq!(pick(201), merge(0..5, 2));
        assert_eq!(super::tests::pick(&runs, None, &options(), Effort::Due), merge(0..4, 1), "nobody knows");
        runs.insert(4, RunInfo { finished: false, ..run(1, 90) });
        let pick =
            |runs: &[RunInfo]| super::tests::pick(runs, Some(Garbage { dead: 900, live: 1 }), &options(), Effort::Due);
        assert_eq!(pick(&runs), merge(0..4, 1), "it cannot be of everything");
    }

    #[test]
    fn newer_runs_do_not_wait_for_a_merge() {
        let mut runs = vec![run(0, 1); 3];
        assert_eq!(pick_newer(&runs, &options()), None);
        runs.push(run(0, 1));
        assert_eq!(pick_newer(&runs, &options()), merge(0..4, 1));
        runs[1..].iter_mut().for_each(|run| run.chained = true);
        assert_eq!(pick_newer(&runs, &options()), Some(Pick::Move(Job { runs: 0..4, level: 1 })));
        runs[2].cut = true;
        assert_eq!(pick_newer(&runs, &options()), None);
    }

    #[test]
    fn what_cannot_be_dropped_is_not_merged_again_at_once() {
        let runs = [run(0, 5), run(0, 5), run(2, 500)];
        assert_eq!(pick(&runs, Some(Garbage { dead: 900, live: 100 }), &options(), Effort::Due), None);
    }

    #[test]
    fn runs_are_tidied_while_nobody_writes() {
        const MB: u64 = 1 << 20;
        let loaded = [run(0, 16 * MB), run(0, 16 * MB), run(1, 128 * MB), run(1, 128 * MB)];
        let loose = TreeOptions { fan_in: 8, space_percent: 10_000, ..options() };
        let pick = |runs: &[RunInfo], effort| pick(runs, None, &loose, effort);
        assert_eq!(pick(&loaded, Effort::Due), None);
        assert_eq!(pick(&loaded, Effort::Tidy), merge(0..3, 1));
        assert_eq!(pick(&[run(1, 160 * MB), run(1, 128 * MB)], Effort::Tidy), None, "it would need room for all of it");
        assert_eq!(pick(&[run(0, MB), run(1, 160 * MB), run(1, 128 * MB)], Effort::Tidy), None, "too little is new");
        let more = [run(0, MB), run(0, 2 * MB), run(1, 100 * MB), run(1, 128 * MB)];
        assert_eq!(pick(&more, Effort::Tidy), merge(0..2, 0));
        let new = [run(0, 3 * MB), run(0, 15 * MB), run(1, 125 * MB), run(1, 125 * MB)];
        assert_eq!(pick(&new, Effort::Tidy), None);
        let larger = Tidying { ratio: 10, paid: 0 };
        assert_eq!(super::pick(&new, room(None, &loose), &loose, Effort::Tidy, larger), merge(0..3, 1));
        let large = [run(0, 600 * MB), run(1, 600 * MB), run(2, 9000 * MB)];
        assert_eq!(pick(&large, Effort::Tidy), None, "it would take long");
    }

    #[test]
    fn runs_are_tidied_when_scans_have_paid_for_it() {
        const MB: u64 = 1 << 20;
        let loose = TreeOptions { space_percent: 10_000, ..options() };
        let pick = |runs: &[RunInfo], paid, effort| {
            super::pick(runs, room(None, &loose), &loose, effort, Tidying { ratio: 4, paid })
        };
        let runs = [run(0, 2 * MB), run(0, 2 * MB), run(0, 12 * MB), run(1, 500 * MB)];
        // 4 MB that save scans one of three runs, or 16 MB that save two.
        let (one, two) = (3 * 4 * MB, 3 * 16 * MB / 2);
        assert_eq!(pick(&runs, one - 1, Effort::Due), None);
        assert_eq!(pick(&runs, one, Effort::Due), merge(0..2, 0));
        assert_eq!(pick(&runs, two, Effort::Due), merge(0..3, 1));
        assert_eq!(pick(&runs, u64::MAX, Effort::Due), merge(0..3, 1), "the rest is too large, whoever pays");
        assert_eq!(pick(&runs, 0, Effort::Tidy), merge(0..3, 1));
        let alike = [run(1, 160 * MB), run(1, 128 * MB)];
        assert_eq!(pick(&alike, 288 * MB, Effort::Due), merge(0..2, 1), "all of them, if it is paid for");
        let large = [run(1, 600 * MB), run(1, 600 * MB)];
        assert_eq!(pick(&large, u64::MAX, Effort::Due), None, "it would take long");
    }

    #[test]
    fn what_was_tidied_is_of_the_level_of_its_size() {
        let loose = TreeOptions { fan_in: 8, space_percent: 10_000, ..options() };
        let of = |level, flushes| RunInfo { flushes, ..run(level, flushes) };
        let pick = |runs: &[RunInfo]| pick(runs, None, &loose, Effort::Tidy);
        assert_eq!(pick(&[of(0, 1), of(0, 1), of(2, 500)]), merge(0..2, 0));
        assert_eq!(pick(&[of(0, 1), of(0, 4), of(2, 500)]), merge(0..2, 1));
        assert_eq!(pick(&[of(0, 1), of(0, 4), of(0, 500)]), merge(0..2, 0), "not above an older one");
        let all = [of(0, 100), of(0, 100)];
        assert_eq!(super::pick(&all, room(None, &loose), &loose, Effort::All, UNPAID), merge(0..2, 3));
        // New runs fill the first level by themselves.
        let mut runs = vec![of(0, 1); 7];
        runs.push(of(1, 5));
        assert_eq!(super::pick(&runs, room(None, &loose), &loose, Effort::Due, UNPAID), None);
    }

    #[test]
    fn tombstones_go_down() {
        let mut runs = vec![run(0, 10), run(1, 100), run(2, 1000)];
        runs[1].tombstones = 60;
        assert_eq!(pick(&runs, None, &options(), Effort::Due), merge(1..3, 2));
        let alone = [RunInfo { tombstones: 60, ..run(2, 100) }];
        assert_eq!(pick(&alone, None, &options(), Effort::Due), merge(0..1, 2));
    }

    #[test]
    fn what_a_snapshot_has_held_up_goes_when_it_has_gone() {
        let held = |outdated| [run(0, 1), RunInfo { outdated, ..run(2, 100) }];
        let garbage = Some(Garbage { dead: 90, live: 11 });
        assert_eq!(pick(&held(0), garbage, &options(), Effort::Due), None, "somebody may see it still");
        assert_eq!(pick(&held(90), garbage, &options(), Effort::Due), merge(0..2, 2));
        assert_eq!(pick(&held(90)[1..], garbage, &options(), Effort::Due), merge(0..1, 2), "one run alone, too");
        assert_eq!(pick(&held(60), garbage, &options(), Effort::Due), None, "less than is put up with");
        let mut busy = vec![RunInfo { finished: false, ..run(0, 1) }; 2];
        busy.extend(held(90));
        assert_eq!(
            pick(&busy, garbage, &options(), Effort::Due),
            merge(2..4, 2),
            "what is still being written does not take part"
        );
    }

    #[test]
    fn old_tombstones_go_down() {
        let mut runs = vec![run(0, 10), run(1, 100), run(2, 1000)];
        (runs[1].tombstones, runs[1].age) = (1, 7);
        assert_eq!(pick(&runs, None, &options(), Effort::Due), None);
        runs[1].age = 8;
        assert_eq!(pick(&runs, None, &options(), Effort::Due), merge(1..3, 2));
        (runs[1].tombstones, runs[2].tombstones, runs[2].age) = (0, 1, 1000);
        assert_eq!(pick(&runs, None, &options(), Effort::Due), None, "nothing is below it");
    }

    #[test]
    fn force_leaves_a_single_clean_run_alone() {
        assert_eq!(pick(&[run(2, 10)], None, &options(), Effort::All), None);
        assert_eq!(pick(&[], None, &options(), Effort::All), None);
        assert_eq!(pick(&[run(0, 1), run(2, 10)], None, &options(), Effort::All), merge(0..2, 2));
    }
}
