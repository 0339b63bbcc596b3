//! What is asked for before it is read ([`crate::tree::asking`]).

use super::scenarios::{calm, numbered, write};
use crate::types::*;

/// What is asked for ahead of a look-up, by key or by row id, is the page that it reads in the end; and nothing where it reads none.
#[test]
fn the_page_that_is_asked_for_is_the_one_that_is_read() {
    let run = calm();
    let tree = run.tree();
    let names = numbered(60);
    let body = [7; 600];
    let rows: Vec<(&[u8], Option<&[u8]>)> = names.iter().map(|name| (name.as_slice(), Some(&body[..]))).collect();
    run.flush(1, &rows);
    run.flush(2, rows.get(20..25).unwrap());
    write(&tree, 3, Fate::Committed, rows.get(40..45).unwrap());
    let world = || run.host.world.borrow_mut();
    let mut pages = std::collections::BTreeSet::new();
    for (number, name) in names.iter().enumerate() {
        let in_memory = (40..45).contains(&number);
        let mut out = RowBuf::default();
        for by_row in [false, true] {
            world().asked.clear();
            match by_row {
                false => tree.ask_for(name).unwrap(),
                true => tree.ask_for_row(out.head.row_id).unwrap(),
            }
            let asked = world().asked.clone();
            world().last_read = None;
            match by_row {
                false => assert!(tree.find(name, |_, _| Verdict::Take, &mut out).unwrap().taken),
                true => assert!(tree.find_row(out.head.row_id, &mut out).unwrap()),
            }
            let read = world().last_read;
            assert_eq!(read.is_none(), in_memory);
            assert_eq!(asked, read.into_iter().collect::<Vec<_>>(), "key {number}, by row: {by_row}");
            pages.extend(read);
        }
    }
    assert!(pages.len() > 5, "{pages:?}");
    world().asked.clear();
    tree.ask_for(b"nobody").unwrap();
    tree.ask_for_row(RowId(1 << 40)).unwrap();
    tree.ask_for(&names[59]).unwrap();
    assert!(world().asked.is_empty(), "nothing has to be read for these; the last key is in the row cache");
}
