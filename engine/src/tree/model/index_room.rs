//! What becomes of runs whose keys have no room in the key index.

use super::scenarios::calm;
use crate::types::*;
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
