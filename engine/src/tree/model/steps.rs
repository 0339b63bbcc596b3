//! What the model does to the tree: each step checks the answers that it gets. Steps may come in between other steps, at
//! the engine's pauses.

use super::check;
use super::host::TestHost;
use super::world::{Snapshot, World, Written};
use crate::error::{Error, Result};
use crate::key_index::SweepCursor;
use crate::mutation::Pause;
use crate::tree::{Direction, Hint, Looked, NewRow, Observed, Placed, Tree};
use crate::types::{Fate, Flags, Head, RowBuf, RowId, Verdict, Writer};
use std::cell::RefMut;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;

type T<'a> = Tree<'a, TestHost>;

pub(super) fn world<'t>(tree: &'t T<'_>) -> RefMut<'t, World> {
    tree.host.world.borrow_mut()
}

/// Errors that were injected are to be expected, others not.
pub(super) fn tolerate<R>(tree: &T<'_>, what: &str, result: Result<R>) -> Option<R> {
    match result {
        Ok(done) => Some(done),
        Err(Error::Io { .. } | Error::MemoryFull { .. } | Error::NoSpace(_)) if world(tree).faults.met > 0 => None,
        Err(wrong) => panic!("{what}: {wrong}"),
    }
}

/// The engine pauses: perhaps the power fails here, or somebody else does something.
pub(super) fn in_between(tree: &T<'_>, at: Pause) {
    let (dies, acts) = {
        let mut world = world(tree);
        // Readers pause much more often than whoever flushes and merges.
        let weight = if matches!(at, Pause::Pinned | Pause::MemtablesRead | Pause::IndexRead) { 1 } else { 8 };
        let (mortal, restless, deep) = (world.mortal * (weight / 4), world.restless * weight, world.depth >= 2);
        (world.random.chance(mortal), !deep && world.random.chance(restless))
    };
    if dies {
        check::power_failure(tree, at);
    }
    if !acts {
        return;
    }
    world(tree).depth += 1;
    world(tree).acts += 1;
    for _ in 0..1 + world_below(tree, 3) {
        match world_below(tree, 20) {
            0..=3 => write(tree),
            4 => world(tree).end_writer(),
            5 => get(tree),
            6 => drop(tolerate(tree, "rotate", tree.rotate())),
            7 | 8 => drop(tolerate(tree, "flush", flush(tree))),
            9 if world_below(tree, 3) == 0 => sink(tree),
            9 => merge(tree),
            10 => scan(tree),
            11 => {
                rows(tree);
                rows_together(tree);
            }
            12 | 13 => drop(rebuild(tree)),
            14 => sweep(tree, &mut SweepCursor::new()),
            15 => change_budget(tree),
            16 => settle(tree),
            17 if world_below(tree, 3) == 0 => survey(tree),
            17 => merge_piled_up(tree),
            18 => look_out(tree),
            _ => batch(tree),
        }
    }
    world(tree).depth -= 1;
}

fn world_below(tree: &T<'_>, limit: u64) -> u64 {
    world(tree).random.below(limit)
}

/// One flush at a time.
pub(super) fn flush(tree: &T<'_>) -> Result<bool> {
    if std::mem::replace(&mut world(tree).flushing, true) {
        return Ok(false);
    }
    let result = tree.flush_one();
    world(tree).flushing = false;
    result
}

/// One piece of maintenance at a time.
pub(super) fn maintain<R>(tree: &T<'_>, what: &str, work: impl FnOnce() -> Result<R>) -> Option<R> {
    if std::mem::replace(&mut world(tree).merging, true) {
        return None;
    }
    let result = work();
    world(tree).merging = false;
    tolerate(tree, what, result)
}

pub(super) fn merge(tree: &T<'_>) {
    if world(tree).random.chance(20) {
        return merge_some(tree);
    }
    let force = world(tree).random.chance(25);
    maintain(tree, "merge", || tree.compact_one(force));
}

/// Merges any neighbours, whether they are due or not.
fn merge_some(tree: &T<'_>) {
    let job = || {
        tree.catch_up()?;
        let view = tree.pin();
        let Some(last) = view.runs.len().checked_sub(1) else { return Ok(()) };
        if view.runs.iter().any(|run| run.cut.is_some()) {
            // A merge that was begun goes first.
            return tree.compact_one(false).map(drop);
        }
        let from = world_below(tree, last as u64 + 1) as usize;
        let until = (from + 1 + world_below(tree, 3) as usize).min(last + 1);
        let level = view.runs[until - 1].level.max(1);
        tree.do_job(&view, &crate::tree::pick::Job { runs: from..until, level })
    };
    maintain(tree, "merge of some", job);
}

/// Merges what has piled up in the first level.
pub(super) fn merge_piled_up(tree: &T<'_>) {
    maintain(tree, "merge of what has piled up", || tree.merge_piled_up());
}

/// More memory for the key index, or less than it takes now, or about as much.
pub(super) fn change_budget(tree: &T<'_>) {
    let budget = &tree.host.budgets.key_index;
    let limit = match world_below(tree, 6) {
        0 => world_below(tree, 100) * 64,
        1 | 2 => (budget.used.load(Relaxed) + world_below(tree, 400)).saturating_sub(200),
        _ => u64::MAX,
    };
    budget.limit.store(limit, Relaxed);
}

/// Moves pages of a run down.
pub(super) fn sink(tree: &T<'_>) {
    maintain(tree, "sink", || tree.sink_one(1));
}

/// Gives the free end of the store back.
pub(super) fn give_back(tree: &T<'_>) {
    maintain(tree, "give back", || tree.give_back_tail());
}

pub(super) fn settle(tree: &T<'_>) {
    maintain(tree, "settle", || tree.settle_one());
}

/// False: there is nothing more to index, or no room.
pub(super) fn rebuild(tree: &T<'_>) -> bool {
    maintain(tree, "rebuild", || tree.rebuild_index()) == Some(true)
}

pub(super) fn sweep(tree: &T<'_>, cursor: &mut SweepCursor) {
    maintain(tree, "sweep", || Ok(tree.sweep_tombstones(cursor)));
}

/// What was observed of a key, to be appended to later: so many rows there were before.
#[derive(Clone)]
pub(in crate::tree) struct Kept {
    key: Vec<u8>,
    expect: Observed,
    rows_before: RowId,
}

/// Observes a key, for one who will write long after.
pub(super) fn look_out(tree: &T<'_>) {
    let (key, rows_before) = (world(tree).key(), tree.next_row_id());
    let unread = world(tree).random.chance(50);
    let Some(expect) = (if unread { observe_or_leave(tree, &key) } else { observe(tree, &key) }) else { return };
    let mut world = world(tree);
    if world.kept.len() >= 8 {
        let at = world.random.below(8) as usize;
        world.kept.swap_remove(at);
    }
    world.kept.push(Kept { key, expect, rows_before });
}

/// What is known of a key, to be appended to.
fn observe(tree: &T<'_>, key: &[u8]) -> Option<Observed> {
    let found = tree.find(key, |_, _| Verdict::Skip, &mut RowBuf::default());
    tolerate(tree, "find", found).map(|found| found.observed)
}

/// The same by who need not know the row that is there.
fn observe_or_leave(tree: &T<'_>, key: &[u8]) -> Option<Observed> {
    let seen_by_all = |writer: Writer| writer.0 < world(tree).oldest();
    let rows_before = tree.next_row_id();
    let found = tree.find_or_leave(key, seen_by_all, |_, _| Verdict::Skip, &mut RowBuf::default());
    let observed = tolerate(tree, "find or leave", found)?.observed;
    if observed.is_unread() {
        let world = world(tree);
        let versions = world.history.get(key).map(Vec::as_slice).unwrap_or_default();
        let was_there = |v: &&Written| v.row < rows_before && world.fate(Writer(v.writer)) != Fate::Aborted;
        let newest = versions.iter().rev().find(was_there);
        let seen = newest.is_some_and(|v| !v.tombstone && v.writer < world.oldest());
        assert!(seen, "{key:?} was left unread, but its newest version is {newest:?}");
    }
    Some(observed)
}

/// One row version by a running writer, unless another running writer holds the key.
pub(super) fn write(tree: &T<'_>) {
    if world(tree).appending {
        return;
    }
    let kept = {
        let mut world = world(tree);
        let count = world.kept.len() as u64;
        let at = (count > 0 && world.random.chance(10)).then(|| world.random.below(count));
        at.map(|at| world.kept.swap_remove(at as usize))
    };
    let key = kept.as_ref().map_or_else(|| world(tree).key(), |kept| kept.key.clone());
    let Some(mine) = world(tree).writer_for(&key) else { return };
    let (acts, old) = (world(tree).acts, kept.is_some());
    let Some(Kept { expect, rows_before, .. }) = kept.or_else(|| {
        let rows_before = tree.next_row_id();
        let unread = world(tree).random.chance(50);
        let expect = (if unread { observe_or_leave(tree, &key) } else { observe(tree, &key) })?;
        Some(Kept { key: key.clone(), expect, rows_before })
    }) else {
        return;
    };
    if world(tree).random.chance(20) {
        in_between(tree, Pause::FlushWritten);
    }
    let renews = world(tree).random.chance(50);
    let expect = renews.then(|| tree.renew(&key, expect)).flatten().unwrap_or(expect);
    if !world(tree).may_write(mine, &key) {
        return;
    }
    let newest = newest_of(&world(tree), &key);
    let overtaken = newest.filter(|row| *row >= rows_before && expect.newest != Some(*row));
    let (tombstone, speculative) = {
        let mut world = world(tree);
        let now = world.snapshot();
        let gone =
            world.history.get(&key).is_none_or(|v| v.iter().all(|v| world.fate(Writer(v.writer)) != Fate::InProgress))
                && world.expected(&key, &now).is_none();
        let speculative = gone && world.random.chance(15);
        (!speculative && world.random.chance(25), speculative)
    };
    let body = if tombstone { Vec::new() } else { world(tree).body() };
    let flags = match (tombstone, speculative) {
        (true, _) => Flags::TOMBSTONE,
        (_, true) => Flags::SPECULATIVE,
        _ => Flags::default(),
    };
    let row = Row { key: key.clone(), body, writer: mine, flags };
    match append(tree, &[row], Some(&[expect])) {
        None => {}
        Some(0) => assert!(old || world(tree).acts != acts, "nobody came in between"),
        Some(_) => {
            assert!(
                overtaken.is_none(),
                "appended to {key:?} over row {overtaken:?}, which was not observed: {expect:?}"
            );
            if speculative {
                decide_speculation(tree, key, mine);
            }
        }
    }
}

/// A speculative insertion is confirmed, or taken back.
fn decide_speculation(tree: &T<'_>, key: Vec<u8>, writer: u64) {
    if !world(tree).random.chance(60) {
        let row = world(tree).history[&key].last().unwrap().row;
        return tree.confirm(row);
    }
    let Some(expect) = observe(tree, &key) else { return };
    if world(tree).may_write(writer, &key) {
        let flags = Flags::TOMBSTONE.with(Flags::KILLED);
        append(tree, &[Row { key, body: Vec::new(), writer, flags }], Some(&[expect]));
    }
}

pub(super) struct Row {
    key: Vec<u8>,
    body: Vec<u8>,
    writer: u64,
    flags: Flags,
}

/// Appends, and notes what was written. `None`: it failed, and nothing was.
fn append(tree: &T<'_>, rows: &[Row], expect: Option<&[Observed]>) -> Option<usize> {
    let commands: Vec<u32> = rows.iter().map(|r| world(tree).next_command(r.writer)).collect();
    let new: Vec<NewRow<'_>> = rows
        .iter()
        .enumerate()
        .map(|(at, row)| NewRow {
            key: &row.key,
            body: &row.body,
            writer: Writer(row.writer),
            command: commands[at],
            flags: row.flags,
            incarnation: 0,
            begins: true,
            expect: expect.map(|e| e[at]),
        })
        .collect();
    world(tree).appending = true;
    let appended = tree.append(&new);
    world(tree).appending = false;
    let appended = tolerate(tree, "append", appended)?;
    let mut world = world(tree);
    for (at, row) in rows.iter().enumerate().take(appended.written) {
        let written = Written {
            row: crate::types::RowId(appended.first.0 + at as u64),
            writer: row.writer,
            command: commands[at],
            tombstone: row.flags.is_tombstone(),
            body: row.body.clone(),
        };
        world.history.entry(row.key.clone()).or_default().push(written);
    }
    Some(appended.written)
}

/// Many rows at once, some of them of one key, with expectations or without.
pub(super) fn batch(tree: &T<'_>) {
    if world(tree).appending {
        return;
    }
    let (count, expecting) = (2 + world_below(tree, 80), world(tree).random.chance(50));
    let mut taken = BTreeMap::<Vec<u8>, u64>::new();
    let (mut rows, mut expect) = (Vec::new(), Vec::new());
    // Those without expectations have to fit one memtable, which is small where a follower has become a server of its own.
    let mut room = tree.shared().options.memtable_bytes() as usize / 2;
    for _ in 0..count {
        let key = world(tree).key();
        room = room.saturating_sub(key.len());
        if room == 0 && !expecting {
            break;
        }
        let writer = match taken.get(&key) {
            Some(writer) => *writer,
            None => match world(tree).writer_for(&key) {
                Some(writer) => writer,
                None => continue,
            },
        };
        taken.insert(key.clone(), writer);
        let tombstone = world(tree).random.chance(20);
        let body = if tombstone { Vec::new() } else { world(tree).body() };
        let flags = if tombstone { Flags::TOMBSTONE } else { Flags::default() };
        rows.push(Row { key, body, writer, flags });
    }
    if expecting {
        for row in &rows {
            let Some(observed) = observe(tree, &row.key) else { return };
            expect.push(observed);
        }
    }
    if rows.iter().any(|r| !world(tree).may_write(r.writer, &r.key)) {
        return;
    }
    let Some(written) = append(tree, &rows, expecting.then_some(&expect)) else { return };
    if !expecting {
        assert_eq!(written, rows.len(), "rows without expectations are one unit");
    }
    let mut seen = std::collections::BTreeSet::new();
    assert!(!expecting || rows.iter().take(written).all(|r| seen.insert(r.key.clone())), "a key twice");
}

/// The newest version of the key whose writer has not aborted.
fn newest_of(world: &World, key: &[u8]) -> Option<RowId> {
    let versions = world.history.get(key).map(Vec::as_slice).unwrap_or_default();
    let newest = versions.iter().rev().find(|version| world.fate(Writer(version.writer)) != Fate::Aborted);
    newest.map(|version| version.row)
}

/// Where a row that a scan has found is still as the scan observed it, it is the newest version of its key.
pub(super) fn check_observed(tree: &T<'_>, (key, row, observed): &(Vec<u8>, RowId, Observed)) {
    if tree.renew(key, *observed).is_some() {
        let newest = newest_of(&world(tree), key);
        let story = || check::story(tree, key);
        assert!(
            newest == Some(*row),
            "a scan has observed row {row}, the newest is {newest:?}: {observed:?}\n{}",
            story()
        );
    }
}

pub(super) fn get(tree: &T<'_>) {
    let key = world(tree).key();
    let (hold, snapshot) = world(tree).hold_any();
    tolerate(tree, "ask", tree.ask_for(&key));
    check_get(tree, &key, &snapshot);
    world(tree).snapshots.remove(&hold);
}

/// The snapshot is held.
pub(super) fn check_get(tree: &T<'_>, key: &[u8], snapshot: &Snapshot) {
    let mut out = RowBuf::default();
    let found = tree.find(key, once(tree, snapshot), &mut out);
    let Some(found) = tolerate(tree, "find", found) else { return };
    let got = (found.taken && !out.head.flags.is_tombstone()).then_some(out.body);
    let expected = world(tree).expected(key, snapshot);
    assert!(got == expected, "by {snapshot:?}: {found:?}\n{}", check::story(tree, key));
}

/// What the snapshot sees. No version is shown to it twice.
fn once<'a>(tree: &'a T<'_>, snapshot: &'a Snapshot) -> impl FnMut(&Head, &Hint<'_>) -> Verdict + 'a {
    let mut shown = std::collections::BTreeSet::new();
    move |head, _| {
        assert!(shown.insert(head.row_id), "version {:?} is shown twice", head.row_id);
        snapshot.choose(&tree.host.world.borrow(), head)
    }
}

pub(super) fn bounds(world: &mut World) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let mut bound = || match world.random.below(3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(()),
        _ => Bound::Excluded(()),
    };
    let (lower, upper) = (bound(), bound());
    (lower.map(|()| world.key()), upper.map(|()| world.key()))
}

pub(super) fn direction(world: &mut World) -> Direction {
    match world.random.chance(50) {
        true => Direction::Forward,
        false => Direction::Backward,
    }
}

pub(super) fn scan(tree: &T<'_>) {
    let (hold, snapshot) = world(tree).hold_any();
    let (lower, upper) = bounds(&mut world(tree));
    let direction = direction(&mut world(tree));
    check_scan(tree, &lower, &upper, direction, &snapshot);
    check_apart(tree, direction, &snapshot);
    world(tree).snapshots.remove(&hold);
}

/// Run after run gives the same rows as one scan.
fn check_apart(tree: &T<'_>, direction: Direction, snapshot: &Snapshot) {
    let expected = world(tree).expected_range(Bound::Unbounded, Bound::Unbounded, snapshot);
    let Some(parts) = tolerate(tree, "scan", tree.scan_apart(direction)) else { return };
    let (mut got, parts_made) = (Vec::new(), parts.len());
    let mut choose = |head: &Head, _: &Hint<'_>| snapshot.choose(&tree.host.world.borrow(), head);
    for mut cursor in parts {
        loop {
            in_between(tree, Pause::Pinned);
            let next = cursor.next_in_place(tree, snapshot.sees_below(), &mut choose);
            let Some(next) = tolerate(tree, "scan", next) else { return };
            if !next {
                break;
            }
            got.push((cursor.row().key.to_vec(), cursor.row().body.to_vec()));
        }
    }
    got.sort();
    assert_eq!(got, expected, "{parts_made} scans, {direction:?}, by {snapshot:?}");
}

pub(super) fn check_scan(
    tree: &T<'_>,
    lower: &Bound<Vec<u8>>,
    upper: &Bound<Vec<u8>>,
    direction: Direction,
    snapshot: &Snapshot,
) {
    let (lower, upper) = (crate::tree::scan::bound(lower), crate::tree::scan::bound(upper));
    let mut expected = world(tree).expected_range(lower, upper, snapshot);
    if direction == Direction::Backward {
        expected.reverse();
    }
    let mut cursor = tree.scan(lower, upper, direction).unwrap();
    let (mut got, mut out) = (Vec::new(), RowBuf::default());
    let mut choose = once(tree, snapshot);
    loop {
        in_between(tree, Pause::Pinned);
        let next = cursor.next_in_place(tree, snapshot.sees_below(), &mut choose);
        if next.as_ref().is_ok_and(|next| *next) {
            out.set(&cursor.row());
        }
        let Some(next) = tolerate(tree, "scan", next) else { return };
        if !next {
            break;
        }
        got.push((out.key.clone(), out.body.clone()));
    }
    if let Some(at) = (0..got.len().max(expected.len())).find(|at| got.get(*at) != expected.get(*at)) {
        let key = |rows: &[(Vec<u8>, Vec<u8>)]| rows.get(at).map(|r| r.0.clone()).unwrap_or_default();
        let (got, wanted) = (check::story(tree, &key(&got)), check::story(tree, &key(&expected)));
        panic!("{direction:?} scan by {snapshot:?}, row {at}, {lower:?} to {upper:?}: got {got}\nwanted {wanted}");
    }
}

/// Row ids lead to their versions as long as somebody may see them, and never to another.
pub(super) fn rows(tree: &T<'_>) {
    let live = world(tree).live();
    let mut out = RowBuf::default();
    for (key, written) in live {
        let Some(found) = tolerate(tree, "find row", tree.find_row(written.row, &mut out)) else { continue };
        assert!(found, "row {} is lost\n{}", written.row, check::story(tree, &key));
        tolerate(tree, "ask", tree.ask_for_row(written.row));
        if let Some(has) = tolerate(tree, "has row", tree.has_row(written.row)) {
            assert!(has, "row {} has no place\n{}", written.row, check::story(tree, &key));
        }
        assert_eq!((&out.key, &out.body, out.head.row_id), (&key, &written.body, written.row));
        assert_eq!((out.head.writer.0, out.head.command), (written.writer, written.command));
    }
    // Of others it says nothing, or the truth.
    let key = world(tree).key();
    let versions = world(tree).history.get(&key).cloned().unwrap_or_default();
    for (at, written) in versions.iter().enumerate() {
        let mut shown = None;
        let looked = tree.look_at_row(written.row, &mut out, |head, _| shown = Some(*head));
        let Some(looked) = tolerate(tree, "look at row", looked) else { continue };
        if looked != Looked::Gone {
            assert_eq!((&out.key, &out.body), (&key, &written.body));
        }
        assert_eq!(shown.map(|head| head.row_id), (looked == Looked::Alone).then_some(written.row));
        if looked == Looked::Alone {
            let aborted = |v: &Written| world(tree).fates.get(&v.writer) == Some(&Fate::Aborted);
            let newer = versions.iter().skip(at + 1).find(|v| v.row > written.row && !aborted(v));
            assert!(newer.is_none(), "row {} is not alone: {newer:?}\n{}", written.row, check::story(tree, &key));
        }
    }
}

/// Rows that are looked at together are what each is by itself: those that somebody may see are found, and one that was alone was so.
pub(super) fn rows_together(tree: &T<'_>) {
    let before = world(tree).live();
    let mut wanted: Vec<_> = before.iter().map(|(key, written)| (written.row, Some((key, written)))).collect();
    let beyond = wanted.iter().map(|(row, _)| row.0).max().unwrap_or(0) + 1_000_000;
    wanted.insert(world_below(tree, wanted.len() as u64 + 1) as usize, (RowId(beyond), None));
    if world_below(tree, 2) == 0 {
        wanted.sort_by_key(|(row, _)| *row);
    }
    wanted.truncate(1 + world_below(tree, 40) as usize);
    let ids: Vec<RowId> = wanted.iter().map(|(row, _)| *row).collect();
    let mut rows: Vec<Placed> = ids.iter().copied().map(Placed::unknown).collect();
    // Where they are may be known from before.
    if world_below(tree, 2) == 0 {
        let known =
            tree.locate_rows(&ids, |known| rows.iter_mut().filter(|r| r.row == known.row).for_each(|r| *r = known));
        if tolerate(tree, "locate rows", known).is_none() {
            return;
        }
        in_between(tree, Pause::IndexRead);
    }
    let mut out = vec![RowBuf::default(); rows.len()];
    let mut told = Vec::new();
    let looked = tree.look_at_rows(&rows, &mut out, |row, looked, hint| {
        assert_eq!(hint.is_some(), looked == Looked::Alone);
        told.push((row.head.row_id, looked));
    });
    let Some(done) = tolerate(tree, "look at rows", looked) else { return };
    assert!(done == told.len() && done >= 1, "{done} of {} rows, {} told", rows.len(), told.len());
    let after = world(tree).live();
    for (((row, wanted), out), (shown, looked)) in wanted.iter().zip(&out).zip(&told) {
        let Some((key, written)) = wanted else {
            assert_eq!(*looked, Looked::Gone);
            continue;
        };
        let is_left = |row: RowId| after.iter().any(|(_, left)| left.row == row);
        if *looked == Looked::Gone {
            assert!(!is_left(*row), "row {row} is lost\n{}", check::story(tree, key));
            continue;
        }
        assert_eq!((&out.key, &out.body, out.head.row_id, shown), (*key, &written.body, *row, row));
        if *looked == Looked::Alone {
            // Of one whose writer was rolled back meanwhile nothing may be left.
            let newer = before.iter().find(|(of, newer)| of == *key && newer.row > *row && is_left(newer.row));
            assert!(newer.is_none(), "row {row} is not alone: {newer:?}\n{}", check::story(tree, key));
        }
    }
}

/// All that somebody may see is shown, each once, and the newest version of a key first; older ones only if the tree expects some.
pub(super) fn survey(tree: &T<'_>) {
    let before = world(tree).live();
    let only_newest = || !tree.may_have_dead() && tree.pin().memtables().all(|memtable| memtable.table.is_empty());
    let (expected, acts, mut older) = (only_newest(), world(tree).acts, 0);
    let keys = 1 + world_below(tree, 30) as usize;
    let mut shown = std::collections::BTreeSet::new();
    let mut from = Some(Vec::new());
    while let Some(key) = from {
        let mut above = None;
        let next = tree.survey(&key, keys, |newest, head, _| {
            assert!(newest || above > Some(head.row_id), "row {} is shown below {above:?}", head.row_id);
            assert!(shown.insert(head.row_id), "row {} is shown twice", head.row_id);
            above = Some(head.row_id);
            older += u32::from(!newest);
        });
        let Some(next) = tolerate(tree, "survey", next) else { return };
        from = next;
        in_between(tree, Pause::IndexRead);
    }
    assert!(!expected || older == 0 || world(tree).acts != acts, "{older} versions are not expected");
    let after = world(tree).live();
    let lost =
        before.iter().find(|(_, row)| !shown.contains(&row.row) && after.iter().any(|(_, left)| left.row == row.row));
    assert!(
        lost.is_none(),
        "{lost:?} is not shown\n{}",
        lost.map_or_else(String::new, |(key, _)| check::story(tree, key))
    );
}
