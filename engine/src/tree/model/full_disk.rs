//! A full disk ([`crate::tree::full_disk`]).

use super::scenarios::{borrowed, calm, sixty, write};
use super::{check, Run};
use crate::error::Error;
use crate::manifest::LogExtent;
use crate::tree::full_disk::Taker;
use crate::tree::{NewRow, Observed};
use crate::types::*;
use std::sync::atomic::Ordering::Relaxed;

fn pages(run: &Run) -> u32 {
    run.host.world.borrow().disk.pages.len() as u32
}

/// From now on the disk has room for so many pages more.
fn room_for(run: &Run, more: u32) {
    let room = pages(run) + more;
    run.host.world.borrow_mut().room = Some(room as usize);
}

/// On a full disk the free pages are those that are there, and what fits into them is written, in small pieces if need be. A
/// store whose end was never written to, and is gone after a crash, is read and written even so.
#[test]
fn a_full_disk_is_used_up() {
    let mut run = calm();
    let rows: Vec<_> = (0..60).map(|i| (sixty(i), Some(vec![i as u8; 3000]))).collect();
    (1..3).for_each(|writer| run.flush(writer, &borrowed(&rows)));
    while run.tree().compact_one(true).unwrap() {}
    check::space_at_rest(&run.tree());
    room_for(&run, 0);
    let before = run.tree().shared().space();
    assert_eq!((before.1, before.2), (u64::from(pages(&run)), 0));
    for least in [before.0 as u32 + 1, 100_000] {
        let refused = run.tree().take_extent(Taker::Flush, least, least, least);
        assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
        let refused = run.tree().take_value_pages(least, L0Id(3));
        assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
        assert_eq!(run.tree().shared().space(), before);
        check::space(&run.tree());
    }
    for writer in 3..10 {
        run.flush(writer, &[(b"other", Some(&[writer as u8; 300]))]);
        assert_eq!(run.get(b"other"), Some(vec![writer as u8; 300]));
        check::space(&run.tree());
    }
    // Of what is asked for as much is had as there is.
    let free = run.tree().shared().space().0 as u32;
    let some = run.tree().take_extent(Taker::Flush, 1, free + 1, free + 1).unwrap();
    assert!(some.pages > 0 && some.end().0 <= pages(&run));
    run.tree().give_extents(&[some]);
    check::space(&run.tree());
    // Some pages more are handed out, and not written to.
    run.host.world.borrow_mut().room = None;
    let tall = pages(&run);
    let unwritten = run.tree().take_extent(Taker::Flush, 500, 500, 500).unwrap();
    run.host.world.borrow_mut().disk.pages.truncate(tall as usize);
    assert!(unwritten.end().0 > tall);
    run.host.world.borrow_mut().room = Some(tall as usize);
    run.crash();
    assert_eq!(run.get(b"other"), Some(vec![9; 300]));
    run.flush(10, &[(b"other", Some(b"ten"))]);
    assert_eq!(run.get(b"other").as_deref(), Some(&b"ten"[..]));
    check::sound(&run.tree());
    check::space(&run.tree());
}

/// Extents of the row log, until there is no room for another.
fn log_until_full(run: &Run, deletes: bool) -> Vec<LogExtent> {
    let generation = run.tree().pin().active().table.generation();
    let more = || run.tree().add_log_extent(generation, 0, 8, deletes);
    let mut got = Vec::new();
    loop {
        match more() {
            Ok(extent) => got.push(extent),
            Err(Error::NoSpace(_)) => return got,
            Err(failed) => panic!("{failed}"),
        }
    }
}

/// A full disk has room for the flush of all that was logged before it was; for deletes when there is none for anything else; and for
/// flushes even then.
pub(super) fn what_was_logged_can_be_flushed() {
    let run = calm();
    let rows: Vec<_> = (0..60).map(|i| (sixty(i), Some(vec![i as u8; 3000]))).collect();
    run.flush(1, &borrowed(&rows));
    room_for(&run, 300);
    let flush = |pages| {
        let taken = run.tree().take_extent(Taker::Flush, pages, pages, pages);
        run.tree().give_extents(&[taken.unwrap()]);
    };
    let mut logged = 0;
    for deletes in [false, true] {
        let got = log_until_full(&run, deletes);
        assert!(!got.is_empty());
        logged += got.iter().map(|log| log.extent.pages).sum::<u32>();
        let free = run.tree().shared().space().0;
        assert!(free >= logged.into(), "{free} pages free, {logged} logged");
        flush(8);
        check::space(&run.tree());
    }
    assert!(pages(&run) <= run.host.world.borrow().room.unwrap() as u32);
}

#[test]
fn what_was_logged_can_be_flushed_on_a_full_disk() {
    what_was_logged_can_be_flushed();
}

/// A merge that would drop nothing is not begun where it has no room. Where enough is deleted everything is merged, and the pages are
/// free. Who gets more of the disk need not write something first.
#[test]
fn a_full_disk_is_emptied_by_deletes() {
    let run = calm();
    let tree = run.tree();
    let keys: Vec<Vec<u8>> = (0..2000u32).map(|i| i.wrapping_mul(2654435761).to_be_bytes().to_vec()).collect();
    for (writer, keys) in (1..).zip(keys.chunks(500)) {
        let rows: Vec<_> = keys.iter().map(|key| (key, Some([7; 1000]))).collect();
        run.flush(writer, &borrowed(&rows));
    }
    room_for(&run, 30);
    // The store learns that the disk is full.
    log_until_full(&run, false);
    let before = (tree.pin().runs.len(), tree.shared().space());
    let refused = tree.compact_one(true);
    assert!(matches!(&refused, Err(Error::NoSpace(why)) if why.contains("a merge needs")), "{refused:?}");
    assert_eq!((tree.pin().runs.len(), tree.shared().counters.slices.load(Relaxed)), (before.0, 0));
    check::space(&tree);
    for (writer, keys) in (10..).zip(keys.chunks(1000)) {
        let rows: Vec<_> = keys.iter().map(|key| (key, None::<&[u8]>)).collect();
        // What nobody reads any more becomes free with the next pages that are taken.
        let free = || tree.shared().space().0 + tree.shared().space().2;
        let before = free();
        run.flush(writer, &borrowed(&rows));
        while tree.compact_one(false).unwrap() {}
        let gained = free() - before;
        assert!(gained >= 100, "{gained} pages free for {} rows", keys.len());
        assert!(keys.iter().all(|key| run.get(key).is_none()));
        check::space(&tree);
    }
    assert!(pages(&run) <= run.host.world.borrow().room.unwrap() as u32);

    let run = calm();
    let tree = run.tree();
    (1..4).for_each(|writer| {
        let rows: Vec<_> = keys.iter().map(|key| (key, Some([7; 1000]))).collect();
        run.flush(writer, &borrowed(&rows));
    });
    room_for(&run, 0);
    log_until_full(&run, false);
    run.host.world.borrow_mut().room = None;
    assert!(tree.compact_one(true).unwrap());
}

/// Rows that the row log has no room for cost the memtable nothing but their row ids, one or many.
#[test]
fn refused_rows_take_no_room_in_the_memtable() {
    let run = calm();
    let tree = run.tree();
    write(&tree, 1, Fate::Committed, &[(b"a", Some(b"there"))]);
    let used = || tree.pin().active().table.bytes_used();
    let absent = Observed { version: tree.pin().number, flushed: tree.pin().flushed, newest: None };
    for (count, expect) in [(1, None), (3, None), (3, Some(absent))] {
        let keys: Vec<_> = (0..count).map(sixty).collect();
        let rows = keys.iter().map(|key| {
            let (writer, flags) = (Writer(2), Flags::default());
            NewRow { key, body: b"", writer, command: 0, flags, incarnation: 0, begins: true, expect }
        });
        let (rows, before) = (rows.collect::<Vec<_>>(), used());
        run.host.world.borrow_mut().faults.percent = 100;
        for _ in 0..50 {
            assert!(tree.append(&rows).is_err());
        }
        run.host.world.borrow_mut().faults.percent = 0;
        // There is a table for 256 row ids each.
        assert!(used() - before < 2 * 256 * 4 + 100, "{count} rows: {} bytes", used() - before);
    }
}
