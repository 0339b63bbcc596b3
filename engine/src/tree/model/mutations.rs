//! Every mutation must be noticed: by the model, by the simulator of the embedded store, by a scenario, in some order of its steps, or by a check of its own.
//!
//! | invariant | broken by | noticed by |
//! |---|---|---|
//! | I1-I11, I13-I17, I19 | the switches in [`crate::mutation`] with that number | the table below |
//! | I12 | `I12RemoveAndInsert` | a reader beside a writer, below |
//! | I18 | `I18SyncTriedAgain` when embedded | the simulator; PostgreSQL itself panics at a failed fsync |
//!
//! I5 has no switch for its part about superversions: whoever has one pinned without the tombstone either holds a snapshot
//! that does not see it, or may as well be told that the key is gone.
//!
//! A mutation is run with one seed after the other until something panics; none may survive [`MOST`] seeds.

use super::barren::*;
use super::full_disk::what_was_logged_can_be_flushed;
use super::index_room::{
    entries_of_before_a_run_without_entries_are_not_believed, strays_that_came_after_a_look_are_not_believed,
};
use super::scenarios::*;
use super::{run_seed, Trouble};
use crate::error::{Error, Result};
use crate::host::Budget;
use crate::interleave::Order;
use crate::key_index::{IndexEntry, KeyIndex};
use crate::mutation::{with, Mutation, Mutation::*, ALL};
use crate::tree::interleaved::pins;
use crate::tree::value_tests::*;
use crate::tree::Direction;
use crate::types::{L0Id, RowBuf, Verdict};
use loosekv_shm::ThreadLatch;
use std::ops::Bound;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Seeds that a mutation may take.
const MOST: u64 = 500;

#[derive(Clone, Copy, Debug)]
enum By {
    Model(Trouble),
    Simulator,
    Race,
    Interleaving,
    Scenario(fn()),
}

use By::{Interleaving, Model, Race, Scenario, Simulator};
use Trouble::{Calm, Faulty, Restless};

const TABLE: &[(Mutation, By)] = &[
    (I1IntervalTooShort, Model(Calm)),
    (I1MergedRunIsNewest, Model(Calm)),
    (I2NewestMemtableFirst, Model(Calm)),
    (I2ExpectationIgnored, Model(Restless)),
    (I2LaterRunsIgnored, Model(Calm)),
    (I3TombstonesNotIndexed, Model(Calm)),
    (I3CorrectedUnseen, Model(Restless)),
    (I3RebuildReplaces, Model(Calm)),
    (I4IncompleteIndexTrusted, Model(Calm)),
    (I4EvictionNotTold, Model(Restless)),
    (I5PurgeBeforeSeen, Model(Calm)),
    (I5RemovedUnseen, Scenario(an_entry_raised_meanwhile_stays)),
    (I5PurgesForgotten, Scenario(purged_tombstones_stay_in_force)),
    (I5RebuildForgetsPurges, Scenario(purged_tombstones_stay_in_force)),
    (I6InstalledBeforeIndexed, Model(Restless)),
    (I6MemtableDroppedFirst, Model(Restless)),
    (I6LogForgottenBeforeFlip, Model(Restless)),
    (I6PagesNotSynced, Simulator),
    (I7NewerEntryIsNone, Model(Restless)),
    (I7IndexFirst, Model(Restless)),
    (I8OldSuperversionEdited, Model(Restless)),
    (I8OldManifestEdited, Model(Restless)),
    (I9OlderRunsIgnored, Model(Calm)),
    (I9DroppedBeforeSeen, Model(Calm)),
    (I10NotSeenByAll, Scenario(stale_values_are_dropped_early)),
    (I10TombstoneDropped, Scenario(stale_values_are_dropped_early)),
    (I11SnapshotsIgnored, Model(Calm)),
    (I12RemoveAndInsert, Race),
    (RevivedKeyNotTold, Scenario(a_key_that_comes_to_life_is_found)),
    (GuideTrusted, Scenario(a_key_of_a_leaf_that_was_split_is_found)),
    (I13RowIdsReused, Model(Calm)),
    (I13GenerationsReused, Model(Calm)),
    (I14OldestFirst, Model(Calm)),
    (I15OlderNotLookedFor, Model(Calm)),
    (CachedRowOutlivesEntry, Model(Calm)),
    (CachedRowOfAnyWriter, Scenario(rows_of_running_writers_are_not_kept)),
    (RowTakenForAlone, Model(Calm)),
    (BarrenNotStruckOff, Scenario(barren_stretches_serve_who_sees_all_of_them)),
    (BarrenNotForgotten, Scenario(barren_stretches_end_where_rows_come_in_runs)),
    (BarrenToAll, Scenario(barren_stretches_serve_who_sees_all_of_them)),
    (I15RunsTakenForApart, Model(Calm)),
    (I15KeyTwice, Model(Calm)),
    (I15BackwardOldest, Model(Calm)),
    (I15MissTakenForNone, Scenario(a_key_that_is_not_where_the_index_says_is_an_error)),
    (I16RunsIgnored, Model(Calm)),
    (I16MemtablesIgnored, Model(Calm)),
    (I16WriterNotAwaited, Scenario(an_extent_waits_for_the_writer_who_has_taken_pages_of_it)),
    (I16PinnedIgnored, Model(Calm)),
    (I16CurrentIgnored, Scenario(an_extent_waits_for_the_run_that_does_without_it)),
    (I17GenerationLost, Model(Calm)),
    (I17TornTailBelieved, Simulator),
    (I18SyncTriedAgain, Simulator),
    (I19RunInMemoryOnly, Model(Calm)),
    (PinNotRechecked, Interleaving),
    (PinnedFreed, Interleaving),
    (ExtentsReusedPinned, Model(Calm)),
    (ExtentsReusedCurrent, Model(Restless)),
    (MovedUnnamed, Model(Restless)),
    (CutNotFollowed, Model(Restless)),
    (CutRowsShown, Model(Restless)),
    (SlicesGivenUpWhole, Model(Calm)),
    (SliceNotAskedBeforePurge, Scenario(a_tombstone_in_a_slice_is_purged_when_all_see_it)),
    (CoarseTakenForExact, Model(Restless)),
    (GoneNotTold, Scenario(a_key_taken_out_stays_deleted_for_readers_of_before)),
    (FailedFlipLeaks, Model(Faulty)),
    (AbandonedLeaks, Model(Faulty)),
    (RefusedPagesStay, Model(Faulty)),
    (NothingReserved, Scenario(what_was_logged_can_be_flushed)),
    (UnreadNotSeenByAll, Model(Calm)),
    (UnreadTombstone, Model(Calm)),
    (ScannedRowTakenForNewest, Model(Calm)),
    (StrayEntryTrusted, Scenario(entries_of_before_a_run_without_entries_are_not_believed)),
    (StraysCameUnseen, Scenario(strays_that_came_after_a_look_are_not_believed)),
    (RebuildClaimsEvicted, Model(Restless)),
    (EvictionNotAwaited, Scenario(a_run_is_not_indexed_while_entries_leave)),
    (RunningTakenForEnded, Model(Calm)),
];

/// The seed that notices it.
fn noticed(mutation: Mutation, by: By) -> Option<u64> {
    (1..=MOST).find(|seed| {
        let run = || match by {
            Model(trouble) => run_seed(*seed, 2500, trouble),
            Simulator => crate::sim_store::run_seed(*seed),
            Scenario(play) => play(),
            Interleaving => {
                pins(Some(mutation), 1, Order::All(100_000)).expect("a superversion is freed while it is pinned");
            }
            Race => assert!(always_found(Some(mutation), *seed), "missed a key that is always there"),
        };
        with(Some(mutation), || catch_unwind(run)).is_err()
    })
}

/// An entry is taken out only as it was seen: a flush may have raised it since.
fn an_entry_raised_meanwhile_stays() {
    let (index, budget) = (KeyIndex::<ThreadLatch>::new(), Budget::default());
    budget.limit.store(u64::MAX, Relaxed);
    let entry = |l0, tombstone| IndexEntry { l0: L0Id(l0), tombstone };
    index.raise(b"key", entry(1, true), &budget).unwrap();
    let seen = index.get(b"key").unwrap();
    index.raise(b"key", entry(2, false), &budget).unwrap();
    assert!(!index.remove_if(b"key", seen, &budget));
    assert_eq!(index.get(b"key"), Some(entry(2, false)));
    let seen = index.get(b"key").unwrap();
    assert!(index.remove_if(b"key", seen, &budget));
    assert_eq!(index.get(b"key"), None);
}

#[test]
fn an_entry_that_was_raised_meanwhile_stays() {
    an_entry_raised_meanwhile_stays();
}

/// Keys that the key filter was made without are found when they come back, also where they are still in their leaf, dead.
fn a_key_that_comes_to_life_is_found() {
    let (index, budget) = (KeyIndex::<ThreadLatch>::new(), Budget::default());
    budget.limit.store(u64::MAX, Relaxed);
    let entry = IndexEntry { l0: L0Id(1), tombstone: false };
    let raise = |i: u32| index.raise(&i.to_be_bytes(), entry, &budget).unwrap();
    (0..1000).for_each(raise);
    (0..1000u32).step_by(7).for_each(|i| assert!(index.remove_if(&i.to_be_bytes(), entry, &budget)));
    // Larger filters take the place of the first ones.
    (1000..20_000).for_each(raise);
    (0..1000).step_by(7).for_each(raise);
    let missing: Vec<u32> = (0..20_000u32).filter(|i| index.get(&i.to_be_bytes()).is_none()).collect();
    assert_eq!(missing, []);
}

#[test]
fn a_key_that_came_to_life_is_found() {
    a_key_that_comes_to_life_is_found();
}

fn a_key_of_a_leaf_that_was_split_is_found() {
    let (index, budget) = (KeyIndex::<ThreadLatch>::new(), Budget::default());
    budget.limit.store(u64::MAX, Relaxed);
    let entry = IndexEntry { l0: L0Id(1), tombstone: false };
    let raise = |i: &u32| index.raise(&i.to_be_bytes(), entry, &budget).unwrap();
    let (spread, crowded): (Vec<u32>, Vec<u32>) =
        ((0..40_000).map(|i| i * 1000).collect(), (7_000_001..7_000_400).collect());
    spread.iter().for_each(raise);
    index.settle(&budget);
    assert!(index.guide_bytes() > 0);
    crowded.iter().for_each(raise);
    let missing: Vec<_> = spread.iter().chain(&crowded).filter(|i| index.get(&i.to_be_bytes()).is_none()).collect();
    assert_eq!(missing, <[&u32; 0]>::default());
}

#[test]
fn a_key_of_a_leaf_that_had_been_split_is_found() {
    a_key_of_a_leaf_that_was_split_is_found();
}

/// A run that lacks a key which a complete index says it has: for look-ups and for scans something is broken.
fn a_key_that_is_not_where_the_index_says_is_an_error() {
    let run = calm();
    let tree = run.tree();
    // So many runs that scans are guided.
    (1..4).for_each(|writer| run.flush(writer, &[(b"a", Some(b"row")), (b"c", Some(b"row"))]));
    let stray = IndexEntry { l0: L0Id(3), tombstone: false };
    tree.shared().index.raise(b"b", stray, &run.host.budgets.key_index).unwrap();
    let mut out = RowBuf::default();
    let is_corrupt = |found: Result<bool>| assert!(matches!(found, Err(Error::Corrupt { .. })), "{found:?}");
    is_corrupt(tree.find(b"b", |_, _| Verdict::Take, &mut out).map(|found| found.taken));
    for direction in [Direction::Forward, Direction::Backward] {
        let mut cursor = tree.scan(Bound::Unbounded, Bound::Unbounded, direction).unwrap();
        assert!(cursor.next(&tree, |_, _| Verdict::Take, &mut out).unwrap());
        is_corrupt(cursor.next(&tree, |_, _| Verdict::Take, &mut out));
    }
}

#[test]
fn a_key_that_is_not_where_the_index_says_is_found_out() {
    a_key_that_is_not_where_the_index_says_is_an_error();
}

/// A key whose entry is raised again and again is found by every reader.
fn always_found(mutation: Option<Mutation>, seed: u64) -> bool {
    let (index, budget, done) = (KeyIndex::<ThreadLatch>::new(), Budget::default(), AtomicBool::new(false));
    budget.limit.store(u64::MAX, Relaxed);
    let entry = |l0| IndexEntry { l0: L0Id(l0), tombstone: false };
    index.raise(b"key", entry(seed), &budget).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            with(mutation, || {
                (1..20_000).for_each(|l0| index.raise(b"key", entry(seed + l0), &budget).unwrap());
            });
            done.store(true, Relaxed);
        });
        let mut found = true;
        while !done.load(Relaxed) {
            found &= index.get(b"key").is_some();
        }
        found
    })
}

/// `LOOSEKV_MUTATION=I8` runs those whose names begin so.
#[test]
fn every_mutation_is_noticed() {
    let only = std::env::var("LOOSEKV_MUTATION").unwrap_or_default();
    let mut survived = Vec::new();
    for (mutation, by) in TABLE.iter().filter(|(m, _)| format!("{m:?}").starts_with(&only)) {
        let seed = noticed(*mutation, *by);
        println!("mutation {mutation:?}: {by:?}, seed {seed:?}");
        if seed.is_none() {
            survived.push(mutation);
        }
    }
    assert!(survived.is_empty(), "nothing noticed {survived:?}");
}

#[test]
fn every_mutation_is_in_the_table() {
    let named: Vec<Mutation> = TABLE.iter().map(|(m, _)| *m).collect();
    assert_eq!(named, ALL);
}

#[test]
fn a_key_is_always_found_without_the_mutation() {
    assert!((1..4).all(|seed| always_found(None, seed)));
}
