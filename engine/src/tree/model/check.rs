//! What must be true at rest, after a crash, and at any moment the power may fail.

use super::host::TestHost;
use super::steps::{check_get, check_scan, rebuild, rows, survey, world};
use super::world::World;
use crate::extent::FreeSpace;
use crate::host::Budgets;
use crate::mutation::Pause;
use crate::tree::{Direction, Tree};
use crate::types::{RowRef, Verdict, Writer};
use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;

/// Every key, every live row, both directions, for whoever looks now.
pub(super) fn everything(tree: &Tree<'_, TestHost>) {
    let now = world(tree).snapshot();
    let hold = world(tree).hold(now.clone());
    let keys: Vec<Vec<u8>> = world(tree).history.keys().cloned().collect();
    for key in &keys {
        check_get(tree, key, &now);
    }
    for direction in [Direction::Forward, Direction::Backward] {
        check_scan(tree, &Bound::Unbounded, &Bound::Unbounded, direction, &now);
    }
    rows(tree);
    survey(tree);
    world(tree).snapshots.remove(&hold);
}

/// Nothing that the check of a table looks at is wrong.
pub(super) fn sound(tree: &Tree<'_, TestHost>) {
    struct Alone;
    impl crate::tree::Watch for Alone {
        fn alone(&mut self, work: &mut dyn FnMut() -> crate::error::Result<()>) -> crate::error::Result<()> {
            work()
        }
    }
    let found = tree.check(&mut Alone).expect("the check ends");
    assert!(found.is_empty(), "{found:#?}");
}

/// Everything is somebody's exactly once, or free, and what is free at the end is there. To be called while nothing is being
/// built.
pub(super) fn space(tree: &Tree<'_, TestHost>) {
    let ledger = tree.shared().ledger.lock();
    assert!(ledger.manifest.pending.is_empty(), "under construction: {:?}", ledger.manifest.pending);
    let limbo = ledger.limbo.iter().map(|l| l.extent);
    let free = FreeSpace::complement(1, ledger.free.high(), ledger.manifest.owned().chain(limbo)).unwrap();
    assert_eq!(free, ledger.free, "pages are lost, or free twice");
    let world = world(tree);
    let (high, pages) = (ledger.free.high(), world.disk.pages.len().max(world.had));
    assert!(high as usize <= pages || ledger.free.tail() == 0, "of {pages} pages those up to {high} are free");
}

/// As [`space`], and nothing waits for readers any more: there are none.
pub(super) fn space_at_rest(tree: &Tree<'_, TestHost>) {
    {
        let mut ledger = tree.shared().ledger.lock();
        tree.shared().reap(&mut ledger, None, |_| ());
        assert!(ledger.limbo.is_empty(), "waiting for nobody: {:?}", ledger.limbo);
    }
    assert!(tree.shared().versions.lock().retired.is_empty());
    space(tree);
}

/// Loads the store from what is on disk at this moment, and checks all of it. The one that runs goes on.
pub(super) fn power_failure(tree: &Tree<'_, TestHost>, at: Pause) {
    let image = {
        let world = world(tree);
        let mut image = World::new(1);
        image.disk = world.disk.clone();
        image.fates = world.fates.clone();
        image.next_writer = world.next_writer;
        image.history = world.history.clone();
        image.keys = world.keys;
        image.crash();
        image
    };
    let host = TestHost::new(image);
    let shared =
        Tree::load(&host, &tree.shared().options.get()).unwrap_or_else(|e| panic!("power failed at {at:?}: {e}"));
    let after = Tree::new(&shared, host);
    everything(&after);
    while rebuild(&after) {}
    everything(&after);
    sound(&after);
}

pub(super) fn unlimited() -> Budgets {
    let budgets = Budgets::default();
    budgets.memtables.limit.store(u64::MAX, Relaxed);
    budgets.key_index.limit.store(u64::MAX, Relaxed);
    budgets
}

/// All that is known of a key, for the one who looks into a failure.
pub(super) fn story(tree: &Tree<'_, TestHost>, key: &[u8]) -> String {
    let mut story = format!("key {:?}\n", String::from_utf8_lossy(key));
    let percent = std::mem::take(&mut world(tree).faults.percent);
    for version in world(tree).history.get(key).into_iter().flatten() {
        let fate = tree.host.world.try_borrow().map(|w| w.fate(Writer(version.writer)));
        let length = version.body.len();
        story += &format!(
            "written: row {} by {} ({fate:?}), tombstone {}, {length} bytes\n",
            version.row, version.writer, version.tombstone
        );
    }
    let view = tree.pin();
    story += &format!("index: {:?}, indexed from {}\n", tree.shared().index.get(key), view.indexed_from);
    for generation in view.memtables() {
        let rows: Vec<_> = generation.table.versions(key).map(|n| n.head()).collect();
        story += &format!("memtable {}: {rows:?}\n", generation.table.generation());
    }
    for desc in &view.runs {
        let mut rows = Vec::new();
        let run = desc.run();
        let mut scratch = crate::run::Scratch::default();
        let show = |row: RowRef<'_>| {
            rows.push(row.head);
            Verdict::Skip
        };
        let read = run.get(&crate::tree::read::Pages(&tree.host), key, &mut scratch, show);
        story += &format!(
            "run {} of {}..{}: {rows:?} {}\n",
            desc.id,
            desc.first_l0,
            desc.last_l0,
            if read.is_ok() { "" } else { "unreadable" }
        );
    }
    world(tree).faults.percent = percent;
    story
}
