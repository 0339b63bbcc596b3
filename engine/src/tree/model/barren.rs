//! Barren stretches ([`crate::tree::barren`]), step by step.

use super::scenarios::{calm, numbered, write};
use super::world::Snapshot;
use super::TestHost;
use crate::tree::{Direction, Hint, Tree};
use crate::types::*;
use std::cell::Cell;
use std::ops::Bound;

/// The first key that a snapshot before this writer sees.
fn first_seen(tree: &Tree<'_, TestHost>, before: u64) -> Option<Vec<u8>> {
    let snapshot = Snapshot { before, running: vec![], own: None };
    let mut cursor = tree.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward).unwrap();
    let choose = |head: &Head, _: &Hint<'_>| snapshot.choose(&tree.host.world.borrow(), head);
    let found = cursor.next_in_place(tree, snapshot.sees_below(), choose).unwrap();
    found.then(|| cursor.row().key.to_vec())
}

/// What is remembered of a queue's head serves those who see all that was taken, and nobody else; and nobody any more when a row
/// comes back there.
pub(super) fn barren_stretches_serve_who_sees_all_of_them() {
    let run = calm();
    let tree = run.tree();
    let first = |before| first_seen(&tree, before);
    let jump = |before| tree.shared().barren.begin(Bound::Unbounded, Writer(before), 0).1;
    let names: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
    let _held = run.host.world.borrow_mut().hold(Snapshot { before: 2, running: vec![], own: None });
    run.flush(1, &names.map(|name| (name, Some(name))));
    run.flush(2, &[(b"a", None), (b"b", None), (b"c", None), (b"d", None)]);
    for _ in 0..3 {
        assert_eq!(first(3).as_deref(), Some(&b"e"[..]));
    }
    assert_eq!((jump(3), jump(2)), (Some(b"d".to_vec()), None));
    assert_eq!(first(2).as_deref(), Some(&b"a"[..]), "somebody older sees what was there");
    run.flush(3, &[(b"f", Some(b"f3"))]);
    assert!(jump(4).is_some(), "others write elsewhere");
    run.flush(4, &[(b"b", Some(b"b4"))]);
    assert_eq!(first(5).as_deref(), Some(&b"b"[..]), "a row came back");
    assert_eq!(first(4).as_deref(), Some(&b"e"[..]));
}

#[test]
fn barren_stretches_are_jumped_over_by_who_sees_all_of_them() {
    barren_stretches_serve_who_sees_all_of_them();
}

/// A standby that was not looked at meanwhile meets rows in a run, and was never shown them one by one.
pub(super) fn barren_stretches_end_where_rows_come_in_runs() {
    let run = calm();
    let standby = Tree::new(&run.follower, run.host.clone());
    let first = |before| {
        run.catch_up();
        first_seen(&standby, before)
    };
    let names: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
    let _held = run.host.world.borrow_mut().hold(Snapshot { before: 2, running: vec![], own: None });
    run.flush(1, &names.map(|name| (name, Some(name))));
    run.flush(2, &[(b"a", None), (b"b", None), (b"c", None), (b"d", None)]);
    for _ in 0..3 {
        assert_eq!(first(3).as_deref(), Some(&b"e"[..]));
    }
    assert!(standby.shared().barren.begin(Bound::Unbounded, Writer(3), 0).1.is_some());
    run.flush(3, &[(b"b", Some(b"b3"))]);
    assert_eq!(first(4).as_deref(), Some(&b"b"[..]), "a row came back, in a run");
}

#[test]
fn barren_stretches_end_on_a_standby_where_rows_come_in_runs() {
    barren_stretches_end_where_rows_come_in_runs();
}

/// A scan that has failed and goes on elsewhere proposes no stretch with what lies between.
#[test]
fn a_scan_that_failed_and_was_put_elsewhere_walks_no_more() {
    let run = calm();
    let tree = run.tree();
    let keys = numbered(100);
    let live = [61, 99];
    let _held = run.host.world.borrow_mut().hold(Snapshot { before: 2, running: vec![], own: None });
    write(&tree, 1, Fate::Committed, &keys.iter().map(|key| (&key[..], Some(&[1u8; 400][..]))).collect::<Vec<_>>());
    tree.rotate().unwrap();
    tree.flush_one().unwrap();
    let dead = keys.iter().enumerate().filter(|(at, _)| !live.contains(at));
    run.flush(2, &dead.map(|(_, key)| (&key[..], None)).collect::<Vec<_>>());
    let snapshot = Snapshot { before: 3, running: vec![], own: None };
    let reads_fail = |fail| run.host.world.borrow_mut().faults.percent = if fail { 100 } else { 0 };
    let first = |fails: bool| {
        let mut cursor = tree.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward).unwrap();
        let seen = Cell::new(0);
        let mut next = |seek: Option<&[u8]>| {
            seek.into_iter().for_each(|key| cursor.seek(key));
            let choose = |head: &Head, _: &Hint<'_>| {
                seen.set(seen.get() + 1);
                if fails && seen.get() == 10 {
                    reads_fail(true);
                }
                snapshot.choose(&run.host.world.borrow(), head)
            };
            let found = cursor.next_in_place(&tree, snapshot.sees_below(), choose)?;
            Ok::<_, crate::error::Error>(found.then(|| cursor.row().key.to_vec()))
        };
        let found = next(None);
        reads_fail(false);
        match fails {
            true => found.err().map(|_| next(Some(&keys[62])).unwrap()),
            false => Some(found.unwrap()),
        }
    };
    for _ in 0..2 {
        assert_eq!(first(true), Some(Some(keys[99].clone())), "the read of a page failed");
    }
    assert_eq!(first(false), Some(Some(keys[61].clone())));
}
