//! Situations that chance seldom brings about, step by step.

use super::check;
use super::host::TestHost;
use super::world::Snapshot;
use super::{Run, SweepCursor, TreeOptions, Trouble};
use crate::error::Result;
use crate::mutation::Pause;
use crate::tree::{pick, Direction, Hint, NewRow, Observed, Tree};
use crate::types::*;
use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;

pub(super) type Rows<'r> = &'r [(&'r [u8], Option<&'r [u8]>)];

/// What `flush` takes, of rows that own their keys and bodies.
pub(super) fn borrowed<K: AsRef<[u8]>, B: AsRef<[u8]>>(rows: &[(K, Option<B>)]) -> Vec<(&[u8], Option<&[u8]>)> {
    rows.iter().map(|(key, body)| (key.as_ref(), body.as_ref().map(B::as_ref))).collect()
}

/// A run without trouble and with room for every key in the index.
pub(super) fn calm() -> Run {
    let run = Run::new(3, Trouble::Calm);
    run.host.budgets.key_index.limit.store(u64::MAX, Relaxed);
    run
}

/// These rows by one writer, who commits; then they are flushed. No body: a tombstone.
fn flush(tree: &Tree<'_, TestHost>, writer: u64, rows: Rows<'_>) -> Result<()> {
    flush_with(tree, writer, Fate::Committed, rows)
}

/// The same, whatever becomes of the writer.
fn flush_with(tree: &Tree<'_, TestHost>, writer: u64, fate: Fate, rows: Rows<'_>) -> Result<()> {
    write(tree, writer, fate, rows);
    tree.rotate()?;
    tree.flush_one().map(|flushed| assert!(flushed))
}

/// The same, but they stay in memory.
pub(super) fn write(tree: &Tree<'_, TestHost>, writer: u64, fate: Fate, rows: Rows<'_>) {
    {
        let mut world = tree.host.world.borrow_mut();
        world.fates.insert(writer, fate);
        world.next_writer = writer + 1;
    }
    for (key, body) in rows {
        let flags = if body.is_some() { Flags::default() } else { Flags::TOMBSTONE };
        let (body, writer) = (body.unwrap_or_default(), Writer(writer));
        let row = NewRow { key, body, writer, command: 0, flags, incarnation: 0, begins: true, expect: None };
        assert_eq!(tree.append(&[row]).unwrap().written, 1);
    }
}

/// A piece of a merge is done, or of a run that comes into the index: one of the runs that are to come meanwhile comes.
pub(super) fn come_meanwhile(tree: &Tree<'_, TestHost>) -> Result<()> {
    let between = tree.host.world.borrow_mut().comes_between.take();
    if let Some((limit, rows)) = between {
        let (room, writer) = (&tree.host.budgets.key_index.limit, tree.host.world.borrow().next_writer);
        let before = room.swap(limit, Relaxed);
        flush(tree, writer, &borrowed(&rows))?;
        room.store(before, Relaxed);
        return Ok(());
    }
    let writer = {
        let mut world = tree.host.world.borrow_mut();
        let Some(left) = world.to_come.checked_sub(1) else { return Ok(()) };
        world.to_come = left;
        world.next_writer
    };
    let body = vec![writer as u8; 300];
    let rows: Vec<_> = (0..10).map(|i| (sixty(i * 6 + 1), Some(&body))).collect();
    flush(tree, writer, &borrowed(&rows))
}

/// Entries are leaving the index: a run is put in meanwhile, and a key of it looked for. Or a run is put in before a look into it.
pub(super) fn evicting(tree: &Tree<'_, TestHost>, at: Pause) {
    if at == Pause::MemtablesRead && std::mem::take(&mut tree.host.world.borrow_mut().reads_after_rebuild) {
        assert!(!tree.rebuild_index().unwrap());
    }
    let key = tree.host.world.borrow().read_evicted.clone();
    match (at, key) {
        (Pause::Evicting, Some(_)) => drop(tree.rebuild_index()),
        (Pause::Evicted, Some(key)) => {
            let found = tree.find(&key, |_, _| Verdict::Take, &mut RowBuf::default()).unwrap();
            assert!(found.taken, "its entry has gone, and the run that has it counts as indexed");
        }
        _ => {}
    }
}

/// A merge has flipped, and is yet to install its run: others take pages for values, and read one of those that it has moved.
pub(super) fn moving(tree: &Tree<'_, TestHost>, at: Pause) {
    if at != Pause::MergeCommitted {
        return;
    }
    let Some((key, body)) = tree.host.world.borrow_mut().read_moved.take() else { return };
    let writer = tree.host.world.borrow().next_writer;
    let other = vec![b'o'; body.len()];
    let rows: Vec<_> = (0..40).map(|i| (format!("other {i}"), Some(&other))).collect();
    write(tree, writer, Fate::Committed, &borrowed(&rows));
    let mut out = RowBuf::default();
    let found = tree.find(&key, |_, _| Verdict::Take, &mut out).unwrap();
    assert!(found.taken && out.body == body, "what the current runs point to was used again");
}

impl Run {
    pub(super) fn flush(&self, writer: u64, rows: Rows<'_>) {
        flush(&self.tree(), writer, rows).unwrap();
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut out = RowBuf::default();
        let found = self.tree().find(key, |_, _| Verdict::Take, &mut out).unwrap();
        (found.taken && !out.head.flags.is_tombstone()).then_some(out.body)
    }
}

/// A deleted key, whose tombstone's entry has left the index, stays deleted when an older run that holds a value of it leaves the
/// index, too, and when it comes back.
pub(super) fn purged_tombstones_stay_in_force() {
    let run = calm();
    run.flush(1, &[(b"a", Some(b"a1")), (b"b", Some(b"b1"))]);
    run.flush(2, &[(b"a", None), (b"c", Some(b"c2"))]);
    run.a_is_purged_for_good();
}

/// As before, and the tombstone's run was merged with one that somebody's superversion does not have yet.
#[test]
fn purged_tombstones_of_a_merged_run_stay_in_force() {
    let run = calm();
    let tree = run.tree();
    run.flush(1, &[(b"a", Some(b"a1")), (b"b", Some(b"b1"))]);
    run.flush(2, &[(b"a", None), (b"c", Some(b"c2"))]);
    let reader = tree.pin();
    run.flush(3, &[(b"e", Some(b"e3"))]);
    tree.do_job(&tree.pin().of_runs(), &pick::Job { runs: 0..2, level: 1 }).unwrap();
    run.a_is_purged_for_good();
    drop(reader);
}

impl Run {
    fn a_is_purged_for_good(&self) {
        let (run, tree) = (self, self.tree());
        let (mut sweep, mut purged) = (SweepCursor::new(), 0);
        while !sweep.is_done() {
            purged += tree.sweep_tombstones(&mut sweep).unwrap();
        }
        assert_eq!((purged, tree.shared().index.get(b"a")), (1, None));
        assert_eq!(run.get(b"a"), None);
        // There is no room for one key more: the oldest run makes it.
        let budget = &run.host.budgets.key_index;
        budget.limit.store(budget.used.load(Relaxed), Relaxed);
        run.flush(9, &[(b"d", Some(b"d9"))]);
        assert_eq!(tree.shared().coverage().from, L0Id(2));
        assert_eq!(run.get(b"a"), None, "an older run is looked into though its tombstone is newer");
        assert_eq!(run.get(b"b").as_deref(), Some(&b"b1"[..]));
        budget.limit.store(u64::MAX, Relaxed);
        while tree.rebuild_index().unwrap() {}
        assert!(tree.shared().coverage().complete);
        assert_eq!(run.get(b"a"), None, "the index names a run that is older than the tombstone");
        for (key, body) in [(b"b", b"b1"), (b"c", b"c2"), (b"d", b"d9")] {
            assert_eq!(run.get(key).as_deref(), Some(&body[..]));
        }
    }
}

/// What a writer reads of its own rows in a run is nobody else's: not kept for those who come when it has aborted, and the run, without
/// its rows, says of all others that they are committed.
pub(super) fn rows_of_running_writers_are_not_kept() {
    let run = calm();
    let (tree, mut out) = (run.tree(), RowBuf::default());
    run.flush(1, &[(b"a", Some(b"a1")), (b"b", Some(b"b1"))]);
    flush_with(&tree, 2, Fate::InProgress, &[(b"a", Some(b"a2"))]).unwrap();
    for _ in 0..3 {
        assert!(tree.find(b"a", |_, _| Verdict::Take, &mut out).unwrap().taken);
        assert_eq!(out.body, b"a2");
    }
    run.host.world.borrow_mut().fates.insert(2, Fate::Aborted);
    tree.do_job(&tree.pin().of_runs(), &pick::Job { runs: 0..2, level: 2 }).unwrap();
    let by_run = |_: &Head, hint: &Hint<'_>| match hint.get() {
        Some(Fate::Committed) => Verdict::Take,
        _ => Verdict::Skip,
    };
    assert!(tree.find(b"a", by_run, &mut out).unwrap().taken);
    assert_eq!(out.body, b"a1", "a row of an aborted writer was kept");
}

/// A writer that stays open holds up his own run alone: others are settled as soon as their writers have ended.
#[test]
fn an_old_writer_holds_up_his_own_run() {
    let run = calm();
    let tree = run.tree();
    flush_with(&tree, 1, Fate::InProgress, &[(b"z", Some(b"z1"))]).unwrap();
    flush_with(&tree, 2, Fate::InProgress, &[(b"a", Some(b"a2"))]).unwrap();
    assert!(!tree.settle_one().unwrap(), "both run");
    run.host.world.borrow_mut().fates.insert(2, Fate::Committed);
    assert!(tree.settle_one().unwrap() && !tree.settle_one().unwrap());
    let settled: Vec<bool> = tree.pin().runs.iter().map(|run| run.settled).collect();
    assert_eq!(settled, [true, false]);
}

#[test]
fn the_row_cache_keeps_rows_of_nobody_who_may_still_abort() {
    rows_of_running_writers_are_not_kept();
}

/// A row that is read again comes from the row cache; a newer version of it does not, until it was read, too.
#[test]
fn rows_that_are_read_again_come_from_the_row_cache() {
    let run = calm();
    let tree = run.tree();
    let cached = || run.host.row_cache.counts().found;
    run.flush(1, &[(b"a", Some(b"a1")), (b"b", Some(b"b1"))]);
    for reads in 0..4u64 {
        let fetched = run.host.world.borrow().fetched;
        assert_eq!(run.get(b"a").as_deref(), Some(&b"a1"[..]));
        assert_eq!(cached(), reads);
        assert_eq!(run.host.world.borrow().fetched == fetched, reads > 0);
    }
    run.flush(2, &[(b"a", Some(b"a2"))]);
    assert_eq!(run.get(b"a").as_deref(), Some(&b"a2"[..]));
    tree.do_job(&tree.pin().of_runs(), &pick::Job { runs: 0..2, level: 1 }).unwrap();
    assert_eq!((run.get(b"a"), cached()), (Some(b"a2".to_vec()), 4), "merges change nothing of it");
    // An older reader passes over what is kept, and finds the older version where it is.
    let old = |head: &Head, _: &Hint<'_>| if head.writer == Writer(1) { Verdict::Take } else { Verdict::Skip };
    assert!(!tree.find(b"a", old, &mut RowBuf::default()).unwrap().taken);
    assert_eq!(cached(), 5);
    // The same table in memory anew.
    let again = Tree::load(&run.host, &tree.shared().options.get()).unwrap();
    let tree = Tree::new(&again, run.host.clone());
    while tree.rebuild_index().unwrap() {}
    let mut out = RowBuf::default();
    assert!(tree.find(b"a", |_, _| Verdict::Take, &mut out).unwrap().taken);
    assert_eq!((out.body.as_slice(), cached()), (&b"a2"[..], 5));
}

/// A table that leaves memory before its memtable is flushed, again and again, does not come back with one more each time,
/// nor with one more run.
#[test]
fn memtables_of_a_table_that_leaves_memory_do_not_pile_up() {
    let mut run = calm();
    let options = run.tree().shared().options.get();
    let (most, mut found, mut runs) = (options.max_frozen as usize + 2, 0, 0);
    for writer in 1..60 {
        write(&run.tree(), writer, Fate::Committed, &[(&[writer as u8], Some(b"a"))]);
        run.shared = Tree::load(&run.host, &options).unwrap();
        found = found.max(run.tree().pin().frozen.len());
        runs = runs.max(run.tree().pin().runs.len());
    }
    assert_eq!(found, most, "all that may wait, the one that was filled, and one that nobody has come to");
    assert!(runs <= 4 * options.fan_in as usize, "{runs} runs with {}", options.fan_in);
    assert!((1..60).all(|key| run.get(&[key]).is_some()));
}

/// A reader who has pinned a superversion from before the flush of a tombstone needs its entry; nobody sweeps for nothing meanwhile.
#[test]
fn a_sweep_is_due_when_it_finds_something() {
    let run = calm();
    let tree = run.tree();
    let due = || tree.shared().sweep_due(&tree.pin(), Writer(run.host.world.borrow().oldest()));
    run.flush(1, &[(b"a", Some(b"a1")), (b"b", Some(b"b1"))]);
    assert!(!due());
    let before = tree.pin();
    run.flush(2, &[(b"a", None)]);
    let mut sweep = SweepCursor::new();
    while !sweep.is_done() {
        assert_eq!(tree.sweep_tombstones(&mut sweep), Some(0));
    }
    assert!(!due(), "a reader of before the flush is still there");
    drop(before);
    assert!(due());
    let (mut sweep, mut purged) = (SweepCursor::new(), 0);
    while !sweep.is_done() {
        purged += tree.sweep_tombstones(&mut sweep).unwrap();
    }
    assert_eq!((purged, due()), (1, false));
}

#[test]
fn purged_tombstones_stay_in_force_when_older_runs_leave_the_index() {
    purged_tombstones_stay_in_force();
}

/// A merge of everything takes a deleted key out of the index. Who has pinned the runs from before must not find an older value in
/// one that is not indexed.
pub(super) fn a_key_taken_out_stays_deleted_for_readers_of_before() {
    let run = calm();
    let tree = run.tree();
    run.flush(1, &[(b"a", Some(b"a1")), (b"b", Some(b"b1"))]);
    run.flush(2, &[(b"a", None)]);
    let budget = &run.host.budgets.key_index;
    budget.limit.store(budget.used.load(Relaxed), Relaxed);
    run.flush(3, &[(b"d", Some(b"d3"))]);
    assert_eq!(tree.shared().coverage().from, L0Id(2));
    let before = tree.pin();
    assert!(tree.compact_one(true).unwrap());
    assert_eq!((tree.pin().runs.len(), tree.shared().index.get(b"a")), (1, None));
    let mut out = RowBuf::default();
    let found = tree.find_in(&before, b"a", |_, _| Verdict::Take, &mut out).unwrap();
    assert!(!found.taken || out.head.flags.is_tombstone(), "found {:?}", out.head);
    assert_eq!(run.get(b"a"), None);
    assert_eq!(run.get(b"b").as_deref(), Some(&b"b1"[..]));
}

#[test]
fn a_key_that_a_merge_takes_out_of_the_index_stays_deleted() {
    a_key_taken_out_stays_deleted_for_readers_of_before();
}

/// A merge of older runs leaves out the values that a newer run has made stale, unless somebody still sees them, and never a
/// tombstone.
pub(super) fn stale_values_are_dropped_early() {
    let run = calm();
    let tree = run.tree();
    let merge = |runs| tree.do_job(&tree.pin(), &pick::Job { runs, level: 1 }).unwrap();
    let rows = || tree.pin().runs.iter().map(|run| run.shape.rows).collect::<Vec<_>>();
    run.flush(1, &[(b"a", Some(b"a1")), (b"b", Some(b"b1")), (b"c", Some(b"c1"))]);
    run.flush(2, &[(b"a", Some(b"a2")), (b"b", None), (b"c", Some(b"c2"))]);
    let held = run.host.world.borrow_mut().hold(Snapshot { before: 3, running: vec![], own: None });
    run.flush(3, &[(b"a", Some(b"a3")), (b"b", Some(b"b3")), (b"c", None)]);
    merge(1..2);
    assert_eq!(rows(), [3, 3, 3], "a snapshot sees them");
    run.host.world.borrow_mut().snapshots.remove(&held);
    merge(1..2);
    assert_eq!(rows(), [3, 1, 3], "the tombstone stays");
    merge(2..3);
    assert_eq!(rows(), [3, 1], "nothing is left of the oldest run");
    assert_eq!(tree.shared().counters.stale_dropped.load(Relaxed), 5);
    assert_eq!(tree.rows_dropped(), 5);
    for (key, body) in [(b"a", Some(b"a3")), (b"b", Some(b"b3")), (b"c", None)] {
        assert_eq!(run.get(key).as_deref(), body.map(|body| &body[..]));
    }
    check::space_at_rest(&tree);
}

#[test]
fn stale_values_are_dropped_early_unless_somebody_sees_them() {
    stale_values_are_dropped_early();
}

/// A run that comes while an older one is indexed, and is not indexed itself, is not taken for one that the index covers. (Its flush had
/// found neither room in the index nor memory for a superversion before.)
#[test]
fn a_run_that_comes_unindexed_while_another_is_indexed_is_searched() {
    for refused in 1..8 {
        let run = calm();
        let (tree, limit) = (run.tree(), &run.host.budgets.key_index.limit);
        run.flush(1, &[(b"a", Some(b"old"))]);
        limit.store(0, Relaxed);
        write(&tree, 2, Fate::Committed, &[(b"a", Some(b"new")), (b"b", Some(b"new"))]);
        tree.rotate().unwrap();
        run.shared.refuses.store(refused, Relaxed);
        let _ = tree.flush_one();
        run.shared.refuses.store(0, Relaxed);
        limit.store(u64::MAX, Relaxed);
        run.host.world.borrow_mut().to_come = 1;
        tree.rebuild_index().unwrap();
        assert_eq!(run.get(b"a").as_deref(), Some(b"new".as_slice()), "{refused}");
    }
}

/// What the index has been told of a run whose superversion found no memory is no damage to who checks the table.
#[test]
fn an_index_that_is_ahead_of_the_runs_is_no_damage() {
    let run = calm();
    let tree = run.tree();
    run.flush(1, &[(b"a", Some(b"old"))]);
    flush_with(&tree, 2, Fate::InProgress, &[(b"a", Some(b"new")), (b"b", Some(b"new"))]).unwrap();
    run.host.world.borrow_mut().fates.insert(2, Fate::Aborted);
    run.shared.refuses.store(1, Relaxed);
    assert!(tree.settle_one().is_err());
    check::sound(&tree);
    assert_eq!((run.get(b"a").as_deref(), run.get(b"b")), (Some(&b"old"[..]), None));
}

/// A run that is put into the index while others make room there, and take its keys out again, does not count as indexed.
pub(super) fn a_run_is_not_indexed_while_entries_leave() {
    let run = calm();
    let keys = numbered(80);
    let rows: Vec<_> = keys.iter().map(|key| (key, Some(b"row"))).collect();
    run.flush(1, &borrowed(&rows[..40]));
    let budget = &run.host.budgets.key_index;
    budget.limit.store(budget.used.load(Relaxed) + 1, Relaxed);
    run.shared.at_rest.store(true, Relaxed);
    run.host.world.borrow_mut().read_evicted = Some(keys[0].clone());
    run.flush(2, &borrowed(&rows[40..]));
    run.host.world.borrow_mut().read_evicted = None;
    assert!(keys.iter().all(|key| run.get(key).is_some()));
    assert!(run.shared.index.len() < keys.len(), "keys had to go");
    budget.limit.store(u64::MAX, Relaxed);
    while run.tree().rebuild_index().unwrap() {}
    assert!(run.shared.coverage().complete);
    assert!(keys.iter().all(|key| run.get(key).is_some()));
}

#[test]
fn a_run_that_comes_while_entries_leave_the_index_is_searched() {
    a_run_is_not_indexed_while_entries_leave();
}

/// Keys in order, a row of each.
pub(super) fn numbered(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|n| n.to_be_bytes().to_vec()).collect()
}

/// Garbage is merged away at once when it is twice what it may be, and when nobody has written for long if it is more than that.
#[test]
fn garbage_waits_for_a_long_rest() {
    let run = calm();
    let tree = run.tree();
    run.shared.options.set(&TreeOptions { fan_in: 8, space_percent: 25, ..run.shared.options.get() });
    let keys = numbered(100);
    let written = |writer: u64, first: usize, count: usize| {
        let rows: Vec<_> = keys[first..first + count].iter().map(|key| (key, Some([writer as u8; 300]))).collect();
        run.flush(writer, &borrowed(&rows));
    };
    let merged = || tree.compact_one(false).unwrap();
    written(1, 0, 100);
    written(2, 0, 20);
    written(3, 20, 20);
    run.shared.at_rest.store(true, Relaxed);
    assert!(!merged(), "it is 40 percent");
    run.shared.rested.store(true, Relaxed);
    assert!(merged() && tree.pin().runs.len() == 1);
    run.shared.rested.store(false, Relaxed);
    written(4, 0, 40);
    written(5, 40, 30);
    assert!(merged() && tree.pin().runs.len() == 1, "it is 70 percent");
}

/// A scan that takes its time keeps no memtables of its beginning in memory, and sees what its snapshot sees.
#[test]
fn a_scan_goes_on_with_the_current_superversion() {
    for direction in [Direction::Forward, Direction::Backward] {
        let run = calm();
        let tree = run.tree();
        let mut names = numbered(60);
        let rows: Vec<(&[u8], Option<&[u8]>)> =
            names.iter().map(|name| (name.as_slice(), Some(b"1".as_slice()))).collect();
        run.flush(1, &rows);
        let snapshot = Snapshot { before: 2, running: vec![], own: None };
        let _held = run.host.world.borrow_mut().hold(snapshot.clone());
        let mut cursor = tree.scan(Bound::Unbounded, Bound::Unbounded, direction).unwrap();
        let mut out = RowBuf::default();
        let mut next = || {
            let choose = |head: &Head, _: &crate::tree::Hint<'_>| snapshot.choose(&run.host.world.borrow(), head);
            assert!(cursor.next(&tree, choose, &mut out).unwrap());
            assert_eq!(out.body, b"1");
            out.key.clone()
        };
        let mut seen = vec![next()];
        for (writer, body) in [(2, Some(b"2".as_slice())), (3, None)] {
            let changed: Vec<(&[u8], Option<&[u8]>)> = rows.iter().map(|(name, _)| (*name, body)).collect();
            run.flush(writer, &changed);
        }
        tree.compact_one(true).unwrap();
        let pinned = || tree.shared().versions.lock().retired.iter().filter(|version| version.is_pinned()).count();
        assert_eq!(pinned(), 1);
        seen.extend((1..40).map(|_| next()));
        assert_eq!(pinned(), 0, "it has gone on");
        seen.extend((40..60).map(|_| next()));
        if direction == Direction::Backward {
            names.reverse();
        }
        assert_eq!(seen, names);
    }
}

/// What a merge has read it gives back while it goes on, so that it needs little room: here inputs and output are half garbage and as
/// large as the store.
#[test]
fn a_merge_of_all_needs_little_room() {
    let run = calm();
    let tree = run.tree();
    let keys: Vec<Vec<u8>> = (0..1000u32).map(|i| i.wrapping_mul(2654435761).to_be_bytes().to_vec()).collect();
    let body = vec![7; 1000];
    for writer in 1..4 {
        let rows: Vec<_> = keys.iter().map(|key| (key, Some(&body))).collect();
        run.flush(writer, &borrowed(&rows));
    }
    let before = tree.shared().tail().1;
    assert!(tree.compact_one(true).unwrap());
    let (free, after) = tree.shared().tail();
    assert!(tree.shared().counters.slices.load(Relaxed) >= 8);
    assert_eq!(tree.pin().runs.len(), 1);
    assert!(after <= before + before / 5, "{before} pages grew to {after}, {free} of them free at the end");
    assert!(keys.iter().all(|key| run.get(key).as_deref() == Some(&body)));
}

/// Three runs of sixty keys, by one writer each, of which the highest deletes the first key, and a merge of them that was begun and
/// failed. The snapshot that is held does not see that writer.
struct Begun {
    run: Run,
    writers: [u64; 3],
}

impl Begun {
    fn new(writers: [u64; 3]) -> Begun {
        let run = calm();
        let highest = writers.into_iter().max().unwrap_or(0);
        let mut deleted = false;
        for writer in writers {
            if writer == highest {
                let mut world = run.host.world.borrow_mut();
                world.next_writer = writers.into_iter().filter(|other| *other < highest).max().unwrap_or(0) + 1;
                let now = world.snapshot();
                world.hold(now);
            }
            let body = |i: u32| (i > 0 || writer != highest).then(|| vec![writer as u8; 300]);
            let rows: Vec<_> = (u32::from(deleted)..60).map(|i| (sixty(i), body(i))).collect();
            run.flush(writer, &borrowed(&rows));
            deleted |= writer == highest;
        }
        run.host.world.borrow_mut().faults.flips = Some(12);
        assert!(run.tree().compact_one(true).is_err());
        run.host.world.borrow_mut().faults.flips = None;
        let begun = Begun { run, writers };
        begun.is_right();
        assert!(begun.runs_cut() > 0);
        begun
    }

    fn runs_cut(&self) -> usize {
        self.run.tree().pin().runs.iter().filter(|run| run.cut.is_some()).count()
    }

    fn is_right(&self) {
        let newest = |i| (i > 0).then(|| vec![self.writers[2] as u8; 300]);
        assert!((0..60).all(|i| self.run.get(&sixty(i)) == newest(i)));
        check::sound(&self.run.tree());
    }

    /// The index is made anew.
    fn index_anew(&self) {
        let (tree, budget) = (self.run.tree(), &self.run.host.budgets.key_index);
        budget.limit.store(0, Relaxed);
        self.run.flush(20, &[(b"other", Some(b"row"))]);
        budget.limit.store(u64::MAX, Relaxed);
        while tree.rebuild_index().unwrap() {}
        assert!(tree.shared().coverage().complete);
    }
}

pub(super) fn sixty(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

/// Sixty keys in three runs, and four runs that come while those are merged: three of them are a full level.
struct Filling {
    run: Run,
    done: Result<bool>,
}

impl Filling {
    /// The merge of everything, with this trouble.
    fn new(trouble: impl FnOnce(&Run)) -> Filling {
        let run = calm();
        run.shared.options.set(&TreeOptions { fan_in: 3, ..run.shared.options.get() });
        for writer in 1..=3 {
            let body = vec![writer as u8; 300];
            let rows: Vec<_> = (0..60).map(|i| (sixty(i), Some(&body))).collect();
            run.flush(writer, &borrowed(&rows));
        }
        run.host.world.borrow_mut().to_come = 4;
        trouble(&run);
        let done = run.tree().compact_one(true);
        let mut world = run.host.world.borrow_mut();
        (world.to_come, world.faults.flips) = (0, None);
        drop(world);
        run.shared.refuses.store(0, Relaxed);
        let filling = Filling { run, done };
        filling.is_right();
        filling
    }

    fn came(&self) -> u64 {
        self.run.host.world.borrow().next_writer - 1
    }

    fn is_right(&self) {
        let newest = |i| if i % 6 == 1 { self.came() as u8 } else { 3 };
        assert!((0..60).all(|i| self.run.get(&sixty(i)) == Some(vec![newest(i); 300])), "{:?}", self.done);
    }

    fn is_sound(&self) {
        self.is_right();
        check::sound(&self.run.tree());
    }
}

/// The merge ends after `flips` of the host, or goes on; where it ended, the rest is done after a crash.
fn a_level_fills_during_a_merge(flips: Option<u64>) {
    let mut filling = Filling::new(|run| run.host.world.borrow_mut().faults.flips = flips);
    filling.is_sound();
    if filling.done.is_err() {
        assert!(flips.is_some());
        filling.run.crash();
        filling.is_sound();
        while filling.run.tree().rebuild_index().unwrap() {}
        filling.is_sound();
        while filling.run.tree().compact_one(false).unwrap() {}
        filling.is_sound();
        assert!(filling.run.tree().pin().runs.iter().all(|run| run.cut.is_none()));
        return;
    }
    let run = &filling.run;
    assert_eq!(filling.came(), 7);
    let runs: Vec<_> = run.tree().pin().runs.iter().map(|run| (run.level, run.rows())).collect();
    assert_eq!(runs, [(0, 10), (1, 10), (1, 60)], "the three that came first were merged meanwhile");
    assert_eq!(run.shared.counters.compactions.load(Relaxed), 2);
}

#[test]
fn levels_that_fill_do_not_wait_for_a_merge() {
    a_level_fills_during_a_merge(None);
    (0..40).for_each(|flips| a_level_fills_during_a_merge(Some(flips)));
}

/// A superversion that finds no memory after its flip costs the merge that it ends, and no more.
#[test]
fn what_could_not_be_installed_is_made_up_for() {
    let mut behind = 0;
    for refused in 1..60 {
        let filling = Filling::new(|run| run.shared.refuses.store(refused, Relaxed));
        let tree = filling.run.tree();
        behind += u32::from(tree.shared().is_behind());
        while tree.flush_one().unwrap() {}
        filling.is_right();
        while tree.compact_one(true).unwrap() {}
        filling.is_sound();
        assert!(!tree.shared().is_behind() && tree.pin().runs.len() == 1, "{refused}");
        check::space_at_rest(&tree);
    }
    assert!(behind >= 5, "{behind}");
}

/// Pages that a run was moved to are the run's, whether or not the superversion that says so found memory.
#[test]
fn a_run_that_was_moved_and_not_installed_keeps_its_pages() {
    let run = calm();
    let tree = run.tree();
    let rows = |writer: u8| (0..60).map(move |i| (sixty(i), Some(vec![writer; 300]))).collect::<Vec<_>>();
    (1..=3).for_each(|writer| run.flush(writer, &borrowed(&rows(writer as u8))));
    while tree.compact_one(true).unwrap() {}
    let before = tree.pin().runs[0].extents.clone();
    run.shared.refuses.store(1, Relaxed);
    assert!(tree.sink_one(1).is_err());
    assert!(tree.shared().is_behind());
    check::space(&tree);
    // These take what is free.
    (4..=6).for_each(|writer| run.flush(writer, &[(b"other", Some(&[writer as u8; 3000]))]));
    let is_right = || assert!((0..60).all(|i| run.get(&sixty(i)) == Some(vec![3; 300])));
    is_right();
    while tree.sink_one(1).unwrap() {}
    assert!(!tree.shared().is_behind());
    assert!(tree.pin().runs.iter().all(|run| run.extents != before));
    is_right();
    check::sound(&tree);
    check::space_at_rest(&tree);
}

/// Writers are slowed for what a merge would drop, not for what somebody needs.
#[test]
fn what_a_snapshot_keeps_is_no_garbage() {
    let run = calm();
    run.shared.options.set(&TreeOptions { space_percent: 25, ..run.shared.options.get() });
    let rows: Vec<_> = (0..10).map(|i| (sixty(i), Some(b"body"))).collect();
    let rows = borrowed(&rows);
    run.flush(1, &rows);
    assert_eq!(run.shared.garbage_beyond(), 0.0);
    let before = run.host.world.borrow().snapshot();
    run.host.world.borrow_mut().hold(before);
    run.flush(2, &rows);
    assert_eq!(run.shared.garbage_beyond(), 0.0, "a merge of two runs is not due");
    run.flush(3, &rows);
    assert_eq!(run.shared.garbage_beyond(), 1.5, "all are twice too often there, and half as many would be allowed");
    assert!(run.tree().compact_one(true).unwrap());
    assert_eq!(run.tree().pin().runs[0].rows(), 30);
    let deleted: Vec<_> = rows.iter().take(5).map(|(key, _)| (*key, None)).collect();
    (4..7).for_each(|writer| run.flush(writer, &deleted));
    assert_eq!(run.shared.garbage_beyond(), 3.6, "of 45 rows 5 are live, 20 are kept");
    assert!(run.tree().compact_one(true).unwrap());
    (7..9).for_each(|writer| run.flush(writer, &rows));
    assert_eq!(run.shared.garbage_beyond(), 0.0, "as many are kept as are new");
}

/// A merge that a crash cut short goes on: what it had given back is in its slices.
#[test]
fn a_merge_that_was_begun_is_merged_whole() {
    let mut begun = Begun::new([1, 2, 3]);
    begun.run.crash();
    begun.is_right();
    assert!(begun.runs_cut() > 0);
    while begun.run.tree().rebuild_index().unwrap() {}
    assert!(begun.run.tree().shared().coverage().complete);
    begun.is_right();
    assert!(begun.run.tree().compact_one(false).unwrap());
    begun.is_right();
    assert_eq!((begun.runs_cut(), begun.run.tree().pin().runs.len()), (0, 1));
}

/// A level that is full goes before a merge that was begun, unless there is no room for it: that merge gives room back.
#[test]
fn a_merge_that_was_begun_is_done_where_there_is_no_room_for_others() {
    for no_room in [false, true] {
        let mut begun = Begun::new([1, 2, 3]);
        begun.run.crash();
        begun.run.shared.options.set(&TreeOptions { fan_in: 2, ..begun.run.shared.options.get() });
        (11..13).for_each(|writer| begun.run.flush(writer, &[(b"other", Some(b"row"))]));
        begun.run.host.world.borrow_mut().no_room = no_room.into();
        assert!(begun.run.tree().compact_one(false).unwrap());
        assert_eq!(begun.run.host.world.borrow().no_room, 0);
        let levels: Vec<_> = begun.run.tree().pin().runs.iter().map(|run| run.level).collect();
        match no_room {
            // And in the midst of it the others are merged, which have room by then.
            true => assert_eq!((begun.runs_cut(), levels), (0, vec![1, 1])),
            false => assert!(begun.runs_cut() > 0 && levels[0] == 1, "{levels:?}"),
        }
        begun.is_right();
    }
}

/// The index, made anew, finds what is in a slice by the newest run of the merge; a tombstone of another run is not older for that.
pub(super) fn a_tombstone_in_a_slice_is_purged_when_all_see_it() {
    let begun = Begun::new([1, 9, 2]);
    begun.index_anew();
    let tree = begun.run.tree();
    assert_eq!(tree.shared().index.get(&sixty(0)).unwrap().l0, L0Id(3));
    let mut sweep = SweepCursor::new();
    while !sweep.is_done() {
        tree.sweep_tombstones(&mut sweep).unwrap();
    }
    let mut out = RowBuf::default();
    let before = |head: &Head, _: &Hint<'_>| if head.writer < Writer(9) { Verdict::Take } else { Verdict::Skip };
    assert!(tree.find(&sixty(0), before, &mut out).unwrap().taken, "who does not see it deleted finds it no more");
}

#[test]
fn a_tombstone_in_a_slice_stays_while_somebody_needs_it() {
    a_tombstone_in_a_slice_is_purged_when_all_see_it();
}

/// What was observed of a key before the runs of a merge were flushed is not so any more, though it is a slice that has the key.
#[test]
fn what_is_in_a_slice_may_be_as_new_as_the_merge() {
    let begun = Begun::new([1, 2, 3]);
    let (tree, key) = (begun.run.tree(), sixty(0));
    let view = tree.pin();
    let at = view.run_with(tree.shared().index.get(&key).unwrap().l0, &key).unwrap();
    assert!(view.runs[at].is_slice() && view.flushed == L0Id(3));
    for flushed in 0..=3 {
        let observed = Observed { version: 0, flushed: L0Id(flushed), newest: Some(RowId(0)) };
        assert_eq!(tree.renew(&key, observed).is_some(), flushed == 3, "{flushed}");
    }
}
