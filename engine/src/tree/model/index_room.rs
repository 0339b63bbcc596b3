//! What becomes of runs whose keys have no room in the key index.

use super::scenarios::{borrowed, calm, write};
use super::world::Snapshot;
use super::Run;
use crate::key_index::IndexEntry;
use crate::tree::Direction;
use crate::types::*;
use std::ops::{Bound, Range};
use std::sync::atomic::Ordering::Relaxed;

/// A run whose keys find no room in the index is left alone until there is more room than there was.
#[test]
fn a_run_that_does_not_fit_the_index_is_tried_once() {
    let run = calm();
    let tree = run.tree();
    let budget = &run.host.budgets.key_index;
    let names: Vec<Vec<u8>> = (0..400u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes().to_vec()).collect();
    let rows: Vec<(&[u8], Option<&[u8]>)> = names.iter().map(|name| (name.as_slice(), Some(b"v".as_slice()))).collect();
    run.flush(1, &rows);
    let needed = budget.used.load(Relaxed) - tree.shared().index.filter_bytes();
    budget.limit.store(needed / 2, Relaxed);
    run.flush(2, &[(b"x", Some(b"x2"))]);
    assert_eq!(tree.shared().coverage().from, L0Id(2));
    // Nobody writes: it is tried though some of its keys are there, and not much room is.
    tree.shared().at_rest.store(true, Relaxed);
    let wanted = || tree.shared().run_to_index(&tree.pin(), budget).is_some();
    assert!(wanted());
    assert!(!tree.rebuild_index().unwrap() && !wanted());
    for writer in 3..6 {
        // What was indexed of it goes again, and leaves the room that there was.
        run.flush(writer, &[(b"y", Some(b"y"))]);
        assert!(!wanted());
    }
    budget.limit.store(needed * 2, Relaxed);
    assert!(wanted() && tree.rebuild_index().unwrap());
    assert!(tree.shared().coverage().complete);
}

/// A run that would leave little room in the index waits while flushes want it, and comes in at rest.
#[test]
fn a_run_is_indexed_while_others_are_written_only_if_these_have_room() {
    let run = calm();
    let tree = run.tree();
    let (budget, at_rest) = (&run.host.budgets.key_index, &tree.shared().at_rest);
    let flush = |writer: u64, from: u32, count: u32| {
        let name = |n: u32| n.wrapping_mul(2_654_435_761).to_be_bytes();
        let names: Vec<_> = (from..from + count).map(name).collect();
        let rows: Vec<_> = names.iter().map(|name| (name.as_slice(), Some(b"v".as_slice()))).collect();
        run.flush(writer, &rows);
    };
    flush(1, 0, 400);
    flush(2, 400, 200);
    let needed = budget.used.load(Relaxed) - tree.shared().index.filter_bytes();
    budget.limit.store(needed, Relaxed);
    flush(3, 600, 100);
    assert_eq!(tree.shared().coverage().from, L0Id(2));
    let wanted = || tree.shared().run_to_index(&tree.pin(), budget).is_some();
    budget.limit.store(needed * 5 / 4, Relaxed);
    assert!(!wanted());
    at_rest.store(true, Relaxed);
    assert!(wanted());
    at_rest.store(false, Relaxed);
    // What others have of the room is no matter, as long as they leave enough.
    let others = 100 * needed;
    budget.used.fetch_add(others, Relaxed);
    budget.limit.store(others + 2 * needed, Relaxed);
    assert!(wanted() && tree.rebuild_index().unwrap());
    assert!(tree.shared().coverage().complete);
    budget.used.fetch_sub(others, Relaxed);
}

/// The index is left alone where rows are inserted into a table that has many times the keys that it has room for, and comes back when
/// some are found.
#[test]
fn an_index_that_is_not_worth_its_upkeep_is_left_alone() {
    let run = calm();
    let tree = run.tree();
    let (shared, budget) = (tree.shared(), &run.host.budgets.key_index);
    let name = |n: u32| n.wrapping_mul(2_654_435_761).to_be_bytes();
    let flush = |writer: u32| {
        let names: Vec<_> = (writer * 40..writer * 40 + 40).map(name).collect();
        let rows: Vec<_> = names.iter().map(|name| (name.as_slice(), Some(b"v".as_slice()))).collect();
        run.flush(writer.into(), &rows);
    };
    let find = |n: u32| {
        let found = tree.find(&name(n), |_, _| Verdict::Take, &mut RowBuf::default()).unwrap();
        assert!(found.taken, "{n}");
    };
    flush(1);
    budget.limit.store(budget.used.load(Relaxed) * 2, Relaxed);
    // Rows are found: what is newer takes the place of what is older.
    for writer in 2..12 {
        flush(writer);
        (40..80).for_each(find);
    }
    assert!(!shared.index_is_left_alone() && !shared.index.is_empty() && !shared.coverage().complete);
    // None are: the index is emptied, and stays so.
    for writer in 12..20 {
        flush(writer);
        assert_eq!(shared.index_is_left_alone(), shared.index.is_empty());
    }
    let wanted = || shared.run_to_index(&tree.pin(), budget).is_some();
    assert!(shared.index_is_left_alone() && !wanted());
    assert_eq!((shared.index.bytes(), shared.index.filter_bytes()), (0, 0));
    // Some are again: it comes back, with the newest runs.
    (40..800).for_each(find);
    assert!(!shared.index_is_left_alone() && wanted() && tree.rebuild_index().unwrap());
    assert_eq!(shared.index.len(), 40);
    flush(20);
    assert!(shared.index.len() >= 40);
    (40..840).for_each(find);
}

/// Numbered keys that are so long that a page holds but some of them.
fn long_keys(numbers: Range<u32>) -> Vec<Vec<u8>> {
    numbers.map(|number| [&number.to_be_bytes()[..], &[b'k'; 300]].concat()).collect()
}

/// A run of 80 rows, and their keys.
fn run_of_80() -> (Run, Vec<Vec<u8>>) {
    let (run, keys) = (calm(), long_keys(0..80));
    let rows: Vec<_> = keys.iter().map(|key| (key, Some(b"row"))).collect();
    run.flush(1, &borrowed(&rows));
    (run, keys)
}

/// Everything leaves the index, which finds no room for another row either; then all runs come in but the first.
fn index_all_but_the_first(run: &Run, writer: u64) {
    let (tree, room) = (run.tree(), &run.host.budgets.key_index.limit);
    room.store(0, Relaxed);
    run.flush(writer, &[(b"x", Some(b"x"))]);
    assert!(tree.shared().index.is_empty());
    room.store(u64::MAX, Relaxed);
    (1..writer).for_each(|_| assert!(tree.rebuild_index().unwrap()));
    assert_eq!(tree.shared().coverage().from, L0Id(2));
}

/// The index says that this key is a row, of a run that it does not cover, though it was deleted since, by this writer: it is not
/// believed.
fn a_stray_is_not_believed(run: &Run, deleted: &[u8], by: u64) {
    let tree = run.tree();
    let stray = tree.shared().index.get(deleted);
    assert_eq!(stray, Some(IndexEntry { l0: L0Id(1), tombstone: false }));
    // Somebody still sees the row.
    let held = run.host.world.borrow_mut().hold(Snapshot { before: by, running: vec![], own: None });
    while tree.compact_one(true).unwrap() {}
    run.host.world.borrow_mut().snapshots.remove(&held);
    let view = tree.pin();
    assert!(view.runs.len() == 1 && view.runs[0].settled && view.runs[0].shape.tombstones > 0);
    assert!(!tree.shared().coverage().complete && tree.shared().index.get(deleted) == stray);
    let found = tree.find_or_leave(deleted, |_| true, |_, _| Verdict::Skip, &mut RowBuf::default()).unwrap();
    assert!(!found.observed.is_unread(), "a row that was deleted is left unread");
    assert_eq!(run.get(deleted), None);
}

/// A flush finds no room in the index while an older run comes in.
pub(super) fn entries_of_before_a_run_without_entries_are_not_believed() {
    let (run, keys) = run_of_80();
    index_all_but_the_first(&run, 2);
    let last = keys[79].clone();
    run.host.world.borrow_mut().comes_between = Some((0, vec![(last.clone(), None)]));
    assert!(!run.tree().rebuild_index().unwrap());
    a_stray_is_not_believed(&run, &last, 3);
}

#[test]
fn entries_of_before_a_run_that_has_none_are_not_believed() {
    entries_of_before_a_run_without_entries_are_not_believed();
}

/// Most of 80 rows were deleted. The next rebuild puts in the run that has them, and meets a flush that makes room in the index: entries
/// of the newer run leave, and others take their place.
fn entries_to_come_while_others_leave() -> (Run, Vec<Vec<u8>>) {
    let (run, keys) = run_of_80();
    let deleted: Vec<_> = keys[20..].iter().map(|key| (key, None::<[u8; 0]>)).collect();
    run.flush(2, &borrowed(&deleted));
    index_all_but_the_first(&run, 3);
    // The index is worth its upkeep.
    assert!(keys[..20].iter().all(|key| run.get(key).is_some()));
    let used = run.host.budgets.key_index.used.load(Relaxed);
    let others = long_keys(100..150).into_iter().map(|key| (key, Some(vec![1]))).collect();
    run.host.world.borrow_mut().comes_between = Some((used, others));
    (run, keys)
}

#[test]
fn entries_that_came_while_others_left_are_not_believed() {
    let (run, keys) = entries_to_come_while_others_leave();
    assert!(!run.tree().rebuild_index().unwrap());
    assert_eq!(run.tree().shared().coverage().from, L0Id(3));
    a_stray_is_not_believed(&run, &keys[79], 2);
}

/// A reader has seen that there are no strays; before he looks into the index they come.
pub(super) fn strays_that_came_after_a_look_are_not_believed() {
    let (run, keys) = entries_to_come_while_others_leave();
    run.host.world.borrow_mut().reads_after_rebuild = true;
    assert_eq!(run.get(&keys[79]), None);
    assert_eq!(run.tree().shared().coverage().from, L0Id(3));
    assert_eq!(run.tree().shared().index.get(&keys[79]), Some(IndexEntry { l0: L0Id(1), tombstone: false }));
}

#[test]
fn strays_that_come_after_a_look_are_not_believed() {
    strays_that_came_after_a_look_are_not_believed();
}

/// Strays go, and with them what a scan that began before they came was to be guided by.
#[test]
fn a_scan_of_before_learns_that_strays_have_gone() {
    let (run, mut keys) = run_of_80();
    let tree = run.tree();
    // So many runs that the scan is guided.
    (2..4).for_each(|writer| run.flush(writer, &[(b"\0", Some(b"row")), (b"z", Some(b"row"))]));
    write(&tree, 4, Fate::Committed, &[(b"z", Some(b"new"))]);
    tree.rotate().unwrap();
    write(&tree, 5, Fate::Committed, &[(b"zz", Some(b"row"))]);
    keys.insert(0, b"\0".to_vec());
    keys.extend([b"z".to_vec(), b"zz".to_vec()]);
    let mut cursor = tree.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward).unwrap();
    let mut next = || {
        let mut out = RowBuf::default();
        cursor.next(&tree, |_, _| Verdict::Take, &mut out).unwrap().then_some(out.key)
    };
    let first = next();
    assert_eq!(tree.shared().counters.guided_scans.load(Relaxed), 1);
    // A flush that had no memory in the end does not know what it has told the index.
    run.shared.refuses.store(1, Relaxed);
    assert!(tree.flush_one().is_err() && tree.flush_one().unwrap());
    while tree.shared().coverage().from > L0Id(2) {
        tree.rebuild_index().unwrap();
    }
    run.host.world.borrow_mut().faults.percent = 100;
    assert!(tree.rebuild_index().is_err() && tree.shared().index.len() < keys.len());
    run.host.world.borrow_mut().faults.percent = 0;
    let seen: Vec<_> = first.into_iter().chain(std::iter::from_fn(next)).collect();
    assert!(seen == keys, "{} of {} keys", seen.len(), keys.len());
}

/// As many keys of the largest run stay in the index as there is room for, and are known to be there without a look into it.
#[test]
fn what_has_room_of_the_largest_run_stays_in_the_index() {
    let (run, keys) = run_of_80();
    let (tree, budget) = (run.tree(), &run.host.budgets.key_index);
    budget.limit.store(budget.used.load(Relaxed) - tree.shared().index.filter_bytes(), Relaxed);
    for writer in 2..5 {
        flush_of(&run, writer, 10);
        let left = unread(&run, &keys);
        assert!((20..80).contains(&left) && !tree.shared().coverage().complete, "{left} of 80 after run {writer}");
    }
    let before = unread(&run, &keys);
    while tree.compact_one(true).unwrap() {}
    assert_eq!((unread(&run, &keys), tree.pin().runs.len()), (before, 1));
    assert!(keys.iter().all(|key| run.get(key).is_some()));
}

/// A run of so many keys, which are numbered by its writer.
fn flush_of(run: &Run, writer: u32, rows: u32) -> Vec<Vec<u8>> {
    let keys = long_keys(writer * 100..writer * 100 + rows);
    let rows: Vec<_> = keys.iter().map(|key| (key, Some(b"row"))).collect();
    run.flush(writer.into(), &borrowed(&rows));
    keys
}

/// How many of these keys are known to be there without a look into a run.
fn unread(run: &Run, keys: &[Vec<u8>]) -> usize {
    let unread = |key: &&Vec<u8>| {
        let found = run.tree().find_or_leave(key, |_| true, |_, _| Verdict::Skip, &mut RowBuf::default()).unwrap();
        found.observed.is_unread()
    };
    keys.iter().filter(unread).count()
}

/// The same where another run has left before, of which nothing has room.
#[test]
fn what_has_room_of_a_run_stays_in_the_index_beside_one_that_has_left() {
    let (run, first) = run_of_80();
    let (tree, budget) = (run.tree(), &run.host.budgets.key_index);
    let second = flush_of(&run, 2, 80);
    budget.limit.store(budget.used.load(Relaxed) * 2 / 3, Relaxed);
    let mut writer = 3;
    while unread(&run, &second) == 80 {
        flush_of(&run, writer, 10);
        writer += 1;
    }
    let left = unread(&run, &second);
    assert!(left >= 20 && unread(&run, &first) == 0, "{left} of 80");
    assert!(tree.shared().coverage().from > L0Id(2));
    assert!(first.iter().chain(&second).all(|key| run.get(key).is_some()));
}

/// Strays go when room is made in the index, also where the run is never tried again for which they would have to; those that come
/// later are believed.
#[test]
fn strays_do_not_stay() {
    let (run, keys) = run_of_80();
    let (tree, budget) = (run.tree(), &run.host.budgets.key_index);
    let room = budget.used.load(Relaxed);
    index_all_but_the_first(&run, 2);
    let last = vec![(keys[79].clone(), None)];
    run.host.world.borrow_mut().comes_between = Some((0, last));
    assert!(!tree.rebuild_index().unwrap() && tree.shared().strays.below().is_some());
    budget.limit.store(room * 3 / 2, Relaxed);
    let mut writer = 4;
    while tree.shared().strays.below().is_some() {
        assert_eq!(unread(&run, &keys), 0);
        flush_of(&run, writer, 10);
        writer += 1;
    }
    let second = flush_of(&run, writer, 80);
    while unread(&run, &second) == 80 {
        writer += 1;
        flush_of(&run, writer, 10);
    }
    assert!(unread(&run, &second) > 20);
    assert_eq!(run.get(&keys[79]), None);
}
