//! The tree against a model: random micro-steps on a host that lives in memory, every answer checked.
//!
//! The model is a list of all versions ever written. Writers begin, write several versions of a key, commit or abort;
//! snapshots are taken and held, some of them a writer's own; cursors stay open, turn and seek while memtables rotate,
//! flushes and merges install new superversions, the index is rebuilt, swept, starved of memory and given some again.
//! Wherever the engine pauses ([`crate::mutation::Pause`]) others come in between, one within the other: a flush within a
//! merge within a read. There, too, the power may fail: the store is loaded from what is on disk at that moment, and
//! checked as a whole. Reads, writes, flips and appends fail now and then, and the disk is full for a while; nothing may be
//! lost by that, and no page leak.
//! A standby follows what the disk shows, answers as the primary does, and is promoted at some crashes. Each seed is one
//! deterministic run.
//!
//! | module | what |
//! |---|---|
//! | `world` | what a crash leaves, writers, snapshots, everything ever written |
//! | `host` | the host over it |
//! | `steps` | what is done, each step with its check |
//! | `check` | what must be true at rest and after a crash |
//! | `scenarios`, `barren` | situations that chance seldom brings about, step by step |
//! | `mutations` | the proof that all this notices when an invariant is broken |

mod asking;
mod barren;
mod check;
mod full_disk;
mod host;
mod index_room;
mod mutations;
mod scenarios;
mod steps;
mod world;

use super::*;
use crate::key_index::SweepCursor;
use crate::manifest::LogExtent;
use crate::options::{Compression, KeyPages, TreeOptions};
use crate::page::{PageBuf, PageKind};
use crate::row::encode_record;
use crate::run::PageSink;
use crate::tree::full_disk::Taker;
use crate::tree::ledger::Building;
use crate::types::*;
pub(super) use host::{TestHorizon, TestHost};
use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;
use world::{above, below};
pub(super) use world::{Snapshot, World};

struct OpenCursor {
    cursor: Cursor<TestHost>,
    hold: u64,
    snapshot: Snapshot,
    /// What it should show, ascending.
    expected: Vec<(Vec<u8>, Vec<u8>)>,
    direction: Direction,
    /// Where it stands.
    from: Bound<Vec<u8>>,
    /// Its last step failed.
    failed: bool,
    /// The row found last: its key, its id, and what was seen of it, if it was the newest of the key.
    observed: Option<(Vec<u8>, RowId, Observed)>,
}

struct Run {
    /// First, for they refer to what `shared` holds.
    cursors: Vec<OpenCursor>,
    shared: Box<Shared<TestHost>>,
    /// A standby's state, which only reads what the other has written.
    follower: Box<Shared<TestHost>>,
    host: TestHost,
    sweep: SweepCursor,
}

/// How a run is troubled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    /// Not at all: one step after the other.
    Calm,
    /// Others come in between.
    Restless,
    /// Operations of the host fail, too.
    Faulty,
}

impl Run {
    fn new(seed: u64, trouble: Trouble) -> Run {
        let mut world = World::new(seed);
        let random = &mut world.random;
        let mut options = TreeOptions { memtable_bytes: 64 << 10, ..TreeOptions::default() };
        options.fan_in = 2 + random.below(3) as u32;
        options.space_percent = 25 + random.below(300) as u32;
        options.max_frozen = 1 + random.below(4) as u32;
        if random.chance(20) {
            options.run.compression = Compression::Zstd(1);
        }
        if random.chance(15) {
            options.run.filter_bits = 0;
        }
        options.run.key_pages = if random.chance(80) { KeyPages::On } else { KeyPages::Off };
        options.value_log_threshold = [0, 128, 1000, 2048][random.below(4) as usize];
        world.keys = 10 + world.random.below(90);
        if trouble != Trouble::Calm {
            world.restless = 3;
            world.mortal = 1;
        }
        let host = TestHost::new(world);
        // Every other standby meets the table before it has a page.
        let early = seed.is_multiple_of(2).then(|| Tree::blank_to_follow(&host, &smaller(&options)).unwrap());
        Tree::create(&host, seed + 1).unwrap();
        let shared = Tree::load(&host, &options).unwrap();
        let follower = early.unwrap_or_else(|| Tree::load_to_follow(&host, &smaller(&options)).unwrap());
        let run = Run { cursors: Vec::new(), shared, follower, host, sweep: SweepCursor::new() };
        steps::change_budget(&run.tree());
        if trouble == Trouble::Faulty {
            run.host.world.borrow_mut().faults.percent = 1;
        }
        run
    }

    fn tree(&self) -> Tree<'_, TestHost> {
        Tree::new(&self.shared, self.host.clone())
    }

    fn below(&self, limit: u64) -> u64 {
        self.host.world.borrow_mut().random.below(limit)
    }

    fn step(&mut self) {
        let tree = self.tree();
        match self.below(1000) {
            0..=429 => steps::write(&tree),
            430..=439 => steps::look_out(&tree),
            440..=449 => steps::batch(&tree),
            450..=529 => self.host.world.borrow_mut().end_writer(),
            530..=699 => steps::get(&tree),
            700..=749 => steps::scan(&tree),
            750..=829 => self.cursor(),
            830..=859 => self.hold_snapshot(),
            860..=889 => self.release_snapshot(),
            890..=914 => drop(steps::tolerate(&tree, "rotate", tree.rotate())),
            915..=939 => drop(steps::tolerate(&tree, "flush", steps::flush(&tree))),
            940..=953 => steps::merge(&tree),
            954..=956 => steps::sink(&tree),
            957 => steps::give_back(&tree),
            958..=959 => steps::settle(&tree),
            960..=971 => drop(steps::rebuild(&tree)),
            972..=979 => self.sweep(),
            980..=985 => self.change_limits(),
            986..=987 => self.crash(),
            988..=992 => check::space(&tree),
            993..=995 => self.follow(),
            996 => steps::survey(&tree),
            997 => steps::merge_piled_up(&tree),
            _ => steps::rows(&tree),
        }
    }

    /// A piece of a sweep, or all of one.
    fn sweep(&mut self) {
        let whole = self.below(3) == 0;
        let mut sweep = std::mem::take(&mut self.sweep);
        steps::sweep(&self.tree(), &mut sweep);
        for _ in 0..if whole { 20 } else { 0 } {
            steps::sweep(&self.tree(), &mut sweep);
        }
        self.sweep = if sweep.is_done() { SweepCursor::new() } else { sweep };
    }

    fn catch_up(&self) {
        let tree = Tree::new(&self.follower, self.host.clone());
        let meta = self.host.read_meta().unwrap().unwrap();
        tree.follow_manifest(tree.read_next(&meta).unwrap()).unwrap();
        let manifest = tree.manifest();
        manifest.check().unwrap();
        self.host.replay(&manifest, &mut |generation, addr, record| tree.follow_row(generation, addr, record)).unwrap();
    }

    /// A standby catches up, and answers as the primary does.
    fn follow(&self) {
        let percent = std::mem::take(&mut self.host.world.borrow_mut().faults.percent);
        let restless = std::mem::take(&mut self.host.world.borrow_mut().restless);
        let mortal = std::mem::take(&mut self.host.world.borrow_mut().mortal);
        self.catch_up();
        let tree = Tree::new(&self.follower, self.host.clone());
        (0..5).for_each(|_| steps::get(&tree));
        steps::scan(&tree);
        let mut world = self.host.world.borrow_mut();
        (world.faults.percent, world.restless, world.mortal) = (percent, restless, mortal);
    }

    fn change_limits(&self) {
        steps::change_budget(&self.tree());
        let mut world = self.host.world.borrow_mut();
        if world.faults.percent > 0 {
            world.change_room();
        }
    }

    /// Opens a cursor that stays open over other steps, or moves one.
    fn cursor(&mut self) {
        if self.cursors.len() < 3 && self.below(100) < 40 {
            let (hold, snapshot) = self.host.world.borrow_mut().hold_any();
            let (lower, upper) = steps::bounds(&mut self.host.world.borrow_mut());
            let direction = steps::direction(&mut self.host.world.borrow_mut());
            let (low, high) = (scan::bound(&lower), scan::bound(&upper));
            let expected = self.host.world.borrow().expected_range(low, high, &snapshot);
            let cursor = self.tree().scan(low, high, direction).unwrap();
            let from = Bound::Unbounded;
            self.cursors.push(OpenCursor {
                cursor,
                hold,
                snapshot,
                expected,
                direction,
                from,
                failed: false,
                observed: None,
            });
            return;
        }
        if self.cursors.is_empty() {
            return;
        }
        let which = self.below(self.cursors.len() as u64) as usize;
        let mut open = self.cursors.swap_remove(which);
        match self.below(10) {
            0 | 1 if !open.failed => {
                open.direction = steps::direction(&mut self.host.world.borrow_mut());
                open.cursor.turn(open.direction);
            }
            2 => {
                let key = self.host.world.borrow_mut().key();
                open.cursor.seek(&key);
                open.from = Bound::Included(key);
            }
            _ => {}
        }
        for _ in 0..self.below(20) {
            steps::in_between(&self.tree(), crate::mutation::Pause::Pinned);
            if !open.step(&self.tree()) {
                break;
            }
        }
        if self.below(100) < 10 {
            self.host.world.borrow_mut().snapshots.remove(&open.hold);
        } else {
            self.cursors.push(open);
        }
    }

    fn hold_snapshot(&mut self) {
        let mut world = self.host.world.borrow_mut();
        if world.snapshots.len() < 6 {
            let snapshot = world.snapshot();
            world.hold(snapshot);
        }
    }

    fn release_snapshot(&mut self) {
        let mut world = self.host.world.borrow_mut();
        let used = |hold: &u64| self.cursors.iter().any(|c| c.hold == *hold);
        let free = world.snapshots.keys().copied().find(|hold| !used(hold));
        free.map(|hold| world.snapshots.remove(&hold));
    }

    /// Memory is gone, running writers too.
    fn crash(&mut self) {
        self.cursors.clear();
        self.sweep = SweepCursor::new();
        let options = self.shared.options.get();
        let percent = std::mem::take(&mut self.host.world.borrow_mut().faults.percent);
        self.host.world.borrow_mut().crash();
        self.host.budgets.key_index.used.store(0, Relaxed);
        if self.below(100) < 40 {
            // The standby is promoted: what it follows has ended, and it goes on as it is.
            self.catch_up();
            Tree::new(&self.follower, self.host.clone()).take_over().unwrap();
            std::mem::swap(&mut self.shared, &mut self.follower);
        } else {
            self.shared = Tree::load(&self.host, &options).unwrap();
        }
        self.follower = Tree::load_to_follow(&self.host, &smaller(&options)).unwrap();
        check::space(&self.tree());
        self.host.world.borrow_mut().faults.percent = percent;
    }

    /// Brings everything to rest: then there is one run, a complete index, and no page too many.
    fn finish(&mut self) {
        self.cursors.clear();
        {
            let mut world = self.host.world.borrow_mut();
            world.snapshots.clear();
            world.room = None;
            (world.faults.percent, world.restless, world.mortal) = (0, 0, 0);
            for writer in world.running() {
                world.fates.insert(writer, Fate::Committed);
            }
        }
        self.host.budgets.key_index.limit.store(u64::MAX, Relaxed);
        let tree = self.tree();
        check::everything(&tree);
        check::sound(&tree);
        tree.rotate().unwrap();
        while tree.flush_one().unwrap() {}
        check::everything(&tree);
        check::sound(&tree);
        while steps::rebuild(&tree) {}
        check::everything(&tree);
        check::sound(&tree);
        while tree.compact_one(true).unwrap() {}
        check::everything(&tree);
        check::sound(&tree);
        check::space_at_rest(&tree);
        let view = tree.pin();
        assert!(view.runs.len() <= 1 && view.frozen.is_empty() && view.active().table.is_empty());
        drop(view);
        check::power_failure(&tree, crate::mutation::Pause::MergeIndexed);
        self.delete_everything();
    }

    /// Every key is deleted: nothing is left of the value log.
    fn delete_everything(&self) {
        let tree = self.tree();
        let writer = {
            let mut world = self.host.world.borrow_mut();
            let writer = world.next_writer;
            world.next_writer += 1;
            world.fates.insert(writer, Fate::Committed);
            Writer(writer)
        };
        let keys: Vec<_> = self.host.world.borrow().history.keys().cloned().collect();
        for key in &keys {
            let flags = Flags::TOMBSTONE;
            let row = NewRow { key, body: &[], writer, command: 0, flags, incarnation: 0, begins: true, expect: None };
            assert_eq!(tree.append(&[row]).unwrap().written, 1);
        }
        tree.rotate().unwrap();
        while tree.flush_one().unwrap() {}
        while tree.compact_one(true).unwrap() {}
        assert_eq!(tree.manifest().values, []);
        check::space_at_rest(&tree);
    }
}

impl OpenCursor {
    /// One step, checked. False: the end.
    fn step(&mut self, tree: &Tree<'_, TestHost>) -> bool {
        let mut out = RowBuf::default();
        let snapshot = self.snapshot.clone();
        let choose = |head: &Head, _: &Hint<'_>| snapshot.choose(&tree.host.world.borrow(), head);
        let got = self.cursor.next_in_place(tree, snapshot.sees_below(), choose);
        if got.as_ref().is_ok_and(|got| *got) {
            out.set(&self.cursor.row());
        }
        // What was found before may have changed by now.
        let observed = self.cursor.observed().map(|observed| (out.key.clone(), out.head.row_id, observed));
        let earlier = std::mem::replace(&mut self.observed, observed.filter(|_| matches!(got, Ok(true))));
        earlier.iter().chain(&self.observed).for_each(|observed| steps::check_observed(tree, observed));
        let got = steps::tolerate(tree, "cursor", got);
        // It may have passed keys that nobody sees; only in this direction that makes no difference.
        self.failed = got.is_none();
        let Some(got) = got else { return false };
        let from = scan::bound(&self.from);
        let expected = match self.direction {
            Direction::Forward => self.expected.iter().find(|(key, _)| above(key, from)),
            Direction::Backward => self.expected.iter().rev().find(|(key, _)| below(key, from)),
        };
        let place = format!("{:?} from {:?}", self.direction, self.from);
        match expected {
            Some((key, body)) => {
                assert!(got && out.key == *key && out.body == *body, "{place}: {got} {:?}, expected {key:?}", out.key);
                self.from = Bound::Excluded(key.clone());
            }
            None => {
                assert!(!got, "{place}: more than expected: {:?}", out.key);
                self.from = match (self.direction, self.expected.last(), self.expected.first()) {
                    // Beyond the last one.
                    (Direction::Forward, Some((last, _)), _) => Bound::Excluded([last.as_slice(), &[0]].concat()),
                    (Direction::Backward, _, Some((first, _))) => before(first),
                    _ => Bound::Unbounded,
                };
            }
        }
        got
    }
}

/// A place before this key and after all smaller ones that there are.
fn before(key: &[u8]) -> Bound<Vec<u8>> {
    let mut smaller = key.to_vec();
    match smaller.last_mut() {
        Some(last) if *last > 0 => {
            *last -= 1;
            smaller.push(255);
        }
        _ => drop(smaller.pop()),
    }
    Bound::Excluded(smaller)
}

/// A standby may have less memory than the server that it follows.
fn smaller(options: &TreeOptions) -> TreeOptions {
    TreeOptions { memtable_bytes: 32 << 10, ..options.clone() }
}

/// Runs one seed; panics where the tree and the model differ.
fn run_seed(seed: u64, steps: u32, trouble: Trouble) {
    let mut run = Run::new(seed, trouble);
    for step in 0..steps {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.step()));
        if let Err(panic) = outcome {
            eprintln!("seed {seed}, step {step}, {trouble:?}");
            std::panic::resume_unwind(panic);
        }
    }
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.finish()));
    if let Err(panic) = outcome {
        eprintln!("seed {seed}, at rest, {trouble:?}");
        std::panic::resume_unwind(panic);
    }
}

/// `LOOSEKV_SEEDS=from..to` runs others than the usual ones.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("LOOSEKV_SEEDS") else { return 1..usual + 1 };
    let (from, to) = text.split_once("..").expect("LOOSEKV_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn random_steps_match_the_model() {
    seeds(20).for_each(|seed| run_seed(seed, 2500, Trouble::Calm));
}

#[test]
fn random_steps_with_others_in_between_match_the_model() {
    seeds(30).for_each(|seed| run_seed(seed, 2500, Trouble::Restless));
}

#[test]
fn random_steps_with_faults_match_the_model() {
    seeds(30).for_each(|seed| run_seed(seed, 2500, Trouble::Faulty));
}

/// Rows with expectations need not all fit one memtable.
#[test]
fn rows_of_long_keys_go_into_as_many_memtables_as_they_take() {
    let mut run = scenarios::calm();
    run.shared = Tree::load(&run.host, &smaller(&run.tree().shared().options.get())).unwrap();
    let tree = run.tree();
    let keys: Vec<_> = (0..64).map(|n| format!("{n:0>MAX_KEY$}").into_bytes()).collect();
    let writer = Writer(1);
    run.host.world.borrow_mut().fates.insert(writer.0, Fate::Committed);
    let mut rest = keys.as_slice();
    let observe = |key: &[u8]| tree.find(key, |_, _| Verdict::Skip, &mut RowBuf::default()).unwrap().observed;
    while !rest.is_empty() {
        let rows = rest.iter().map(|key| {
            let (flags, expect) = (Flags::default(), Some(observe(key)));
            NewRow { key, body: b"", writer, command: 0, flags, incarnation: 0, begins: true, expect }
        });
        let written = tree.append(&rows.collect::<Vec<_>>()).unwrap().written;
        assert!(written < 64, "one memtable has room for all");
        rest = &rest[written..];
    }
    let found = |key: &&Vec<u8>| tree.find(key, |_, _| Verdict::Take, &mut RowBuf::default()).unwrap().taken;
    assert_eq!(keys.iter().filter(found).count(), 64);
}

/// However wide the rows are that a memtable has, the log does not have very much of them.
#[test]
fn memtables_of_wide_rows_are_frozen_before_they_are_full() {
    let run = scenarios::calm();
    let tree = run.tree();
    let body = vec![7; 8000];
    let most = 17 * tree.shared().options.memtable_bytes();
    for key in 0..1000u32 {
        scenarios::write(&tree, 1, Fate::Committed, &[(&key.to_be_bytes(), Some(&body))]);
        let log =
            tree.manifest().log_extents.iter().map(|log| u64::from(log.extent.pages)).sum::<u64>() * PAGE_SIZE as u64;
        assert!(log <= (tree.pin().frozen.len() as u64 + 1) * most, "{log}");
    }
    assert!(tree.shared().counters.rotations.load(Relaxed) > 3);
}

/// Who reads an extent that is written again is known for as long as it is pinned, and not longer.
#[test]
fn a_follower_knows_who_holds_an_extent_that_is_used_again() {
    let run = Run::new(1, Trouble::Calm);
    let tree = run.tree();
    (0..400).for_each(|_| steps::write(&tree));
    tree.rotate().unwrap();
    tree.flush_one().unwrap();
    let host = run.host.clone();
    let follower = Tree::new(&run.follower, host.clone());
    run.catch_up();
    let old = follower.manifest().runs[0].extents[0];
    let reused = Extent { seq: ExtentSeq(old.seq.0 + 1000), ..old };
    assert_eq!(run.follower.holders(&[old], L0Id(0)), [], "its own");
    let now = run.follower.holders(&[reused], L0Id(0));
    assert!(matches!(now[..], [Holder { current: true, pinned: false, .. }]), "{now:?}");
    let pin = follower.pin();
    let commit_all = || host.world.borrow_mut().fates.values_mut().for_each(|fate| *fate = Fate::Committed);
    commit_all();
    (0..400).for_each(|_| steps::write(&tree));
    tree.rotate().unwrap();
    tree.flush_one().unwrap();
    commit_all();
    tree.compact_one(true).unwrap();
    run.catch_up();
    let then = run.follower.holders(&[reused], L0Id(0));
    assert!(matches!(then[..], [Holder { current: false, pinned: true, .. }]), "{then:?}");
    drop(pin);
    assert_eq!(run.follower.holders(&[reused], L0Id(0)), []);
}

#[test]
fn an_encoded_record_is_what_the_log_shows() {
    let row = RowRef { key: b"k", head: Head { row_id: RowId(7), writer: Writer(9), ..Head::default() }, body: b"v" };
    let mut bytes = Vec::new();
    encode_record(&row, &mut bytes);
    assert_eq!(crate::row::decode_record(&bytes).unwrap(), (row, bytes.len()));
}

/// An extent that readers elsewhere may need is not used again, however much of the store waits for them.
#[test]
fn extents_wait_for_readers_elsewhere() {
    let run = Run::new(1, Trouble::Calm);
    let lagging = |oldest, next| Some(crate::host::Lagging { oldest: Writer(oldest), next: Writer(next) });
    let mut ledger = run.shared.ledger.lock();
    let take = |ledger: &mut super::shared::Ledger| ledger.free.take(10).unwrap();
    let (first, second) = (take(&mut ledger), take(&mut ledger));
    take(&mut ledger);
    take(&mut ledger);
    let wait = |extent| super::shared::Limbo { extent, owner: super::shared::Owner::Log(L0Id(99)) };
    ledger.limbo.push(wait(first));
    run.shared.reap(&mut ledger, lagging(5, 7), |_| ());
    assert_eq!((ledger.free.pages(), ledger.held.len()), (0, 1));
    run.shared.reap(&mut ledger, lagging(7, 9), |_| ());
    assert_eq!((ledger.free.pages(), ledger.held.len()), (0, 1), "a snapshot may still not see 7");
    run.shared.reap(&mut ledger, lagging(8, 9), |_| ());
    assert_eq!((ledger.free.pages(), ledger.held.len()), (10, 0));
    ledger.limbo.push(wait(second));
    run.shared.reap(&mut ledger, lagging(8, 9), |_| ());
    run.shared.reap(&mut ledger, None, |_| ());
    assert_eq!((ledger.free.pages(), ledger.held.len()), (20, 0), "nobody reads elsewhere any more");
    let large = ledger.free.take(200).unwrap();
    ledger.limbo.push(wait(large));
    run.shared.reap(&mut ledger, lagging(8, 9), |_| ());
    run.shared.reap(&mut ledger, lagging(9, 12), |_| ());
    assert_eq!(ledger.held.len(), 1, "most of the store");
    run.shared.reap(&mut ledger, lagging(10, 12), |_| ());
    assert_eq!(ledger.held.len(), 0);
}

/// The meta page has room for all pieces of what is under construction, where only small ones are free, beside those of a long log.
#[test]
fn many_small_pieces_under_construction_fit_the_meta_page() {
    const PIECES: u32 = 400;
    let run = Run::new(1, Trouble::Calm);
    {
        let mut ledger = run.shared.ledger.lock();
        let mut piece = || ledger.free.take(32).unwrap();
        let taken: Vec<_> = (0..2 * PIECES).map(|_| piece()).collect();
        taken.iter().step_by(2).for_each(|piece| ledger.free.give(*piece));
        let log = |extent: &Extent| LogExtent {
            generation: L0Id(1 << 20),
            tail: 1,
            extent: Extent { seq: ExtentSeq(1 << 30), ..*extent },
        };
        let logs = taken.iter().skip(1).step_by(2).cycle().take(500).map(log);
        ledger.manifest.log_extents.extend(logs);
        (ledger.manifest.version, ledger.manifest.next_seq) = (1 << 30, ExtentSeq(1 << 30));
    }
    let tree = run.tree();
    let mut building = Building::new(&tree, Taker::Merge, u64::MAX, 0).unwrap();
    let mut sink = &mut building;
    for _ in 0..32 * PIECES {
        let mut page = PageBuf::ZERO;
        page.init(PageKind::Data, sink.seq_of_next());
        sink.put(&mut page).unwrap();
    }
}
