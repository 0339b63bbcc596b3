//! A sound table has no finding; each way of breaking one has its own.

use super::*;
use crate::host::Budgets;
use crate::key_index::IndexEntry;
use crate::options::TreeOptions;
use crate::page::PageBuf;
use crate::tree::model::{TestHost, World};
use crate::tree::{NewRow, Shared};
use crate::types::{Head, L0Id, RowId};
use std::sync::atomic::Ordering::Relaxed;

struct Alone;

impl Watch for Alone {
    fn alone(&mut self, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        work()
    }
}

struct Table {
    host: TestHost,
    shared: Box<Shared<TestHost>>,
}

/// What is found, and what is done to have it found.
type Breaking<T> = (&'static str, fn(&mut T));

const KEYS: u32 = 3000;

fn key(n: u32) -> Vec<u8> {
    format!("key {:08x}", n.wrapping_mul(0x9e37_79b1)).into_bytes()
}

impl Table {
    /// Three runs (the first with values in the value log), a frozen and an active memtable; the index is complete.
    fn new() -> Table {
        let mut world = World::default();
        world.next_writer = 1;
        let host = TestHost::with(world, Budgets::default());
        host.budgets.memtables.limit.store(u64::MAX, Relaxed);
        host.budgets.key_index.limit.store(u64::MAX, Relaxed);
        let options = TreeOptions { memtable_bytes: 4 << 20, fan_in: 8, ..TreeOptions::default() };
        Tree::create(&host, 7).unwrap();
        let shared = Tree::load(&host, &options).unwrap();
        let table = Table { host, shared };
        for round in 0..5u32 {
            for n in (0..KEYS).filter(|n| round == 0 || n % (round + 1) == 0) {
                let length = if round == 0 && n % 500 == 0 { 9000 } else { 60 };
                let body = vec![(n % 251) as u8; length];
                table.put(&key(n), (n % 41 != round).then_some(&body), Fate::Committed);
            }
            if round < 4 {
                table.tree().rotate().unwrap();
            }
            if round < 3 {
                assert!(table.tree().flush_one().unwrap());
            }
        }
        assert_eq!(table.tree().pin().runs.len(), 3);
        table
    }

    fn tree(&self) -> Tree<'_, TestHost> {
        Tree::new(&self.shared, self.host.clone())
    }

    fn put(&self, key: &[u8], body: Option<&Vec<u8>>, fate: Fate) -> RowId {
        let writer = {
            let mut world = self.host.world.borrow_mut();
            let writer = world.next_writer;
            world.next_writer += 1;
            world.fates.insert(writer, fate);
            Writer(writer)
        };
        let flags = if body.is_some() { Flags::default() } else { Flags::TOMBSTONE };
        let body = body.map_or(&[][..], |body| body);
        let row = NewRow::first(key, body, &Head { writer, flags, ..Head::default() }, None);
        self.tree().append(&[row]).unwrap().first
    }

    fn check(&self) -> Vec<String> {
        self.tree().check(&mut Alone).unwrap().iter().map(Finding::to_string).collect()
    }

    /// The runs, newest first.
    fn runs(&self) -> Vec<RunDesc> {
        self.tree().pin().runs.iter().map(|run| (**run).clone()).collect()
    }

    /// Page `index` of a run, changed.
    fn change(&self, run: &RunDesc, index: u32, how: impl FnOnce(&mut PageBuf)) {
        let (no, _) = run.extents.locate(index).unwrap();
        how(&mut self.host.world.borrow_mut().disk.pages[no.0 as usize]);
    }

    fn swap(&self, run: &RunDesc, a: u32, b: u32) {
        let place = |index| run.extents.locate(index).unwrap().0 .0 as usize;
        let mut world = self.host.world.borrow_mut();
        let first = world.disk.pages[place(a)].clone();
        world.disk.pages[place(a)] = world.disk.pages[place(b)].clone();
        world.disk.pages[place(b)] = first;
    }

    /// What memory says of its runs, changed.
    fn edit(&self, how: impl Fn(&mut RunDesc)) {
        self.shared
            .install(|current| {
                let mut parts = current.edit();
                for run in &mut parts.runs {
                    let mut changed = (**run).clone();
                    how(&mut changed);
                    *run = std::sync::Arc::new(changed);
                }
                SuperVersion::new(current.number + 1, parts)
            })
            .unwrap();
    }

    /// Writes a meta page and a body of this manifest over those that there are.
    fn write_manifest(&self, how: impl FnOnce(&mut Manifest)) {
        let mut manifest = self.tree().manifest();
        how(&mut manifest);
        let body = manifest.encode_body();
        let meta = manifest.encode_meta(&body).unwrap();
        let extent = manifest.body[0];
        let mut world = self.host.world.borrow_mut();
        for (at, piece) in body.chunks(CAPACITY).enumerate() {
            let page = &mut world.disk.pages[extent.start.0 as usize + at];
            page.init(PageKind::Manifest, extent.seq);
            page.fill(piece).unwrap();
        }
        drop(world);
        let mut meta = meta;
        self.host.flip(&mut meta, &crate::host::Flip::default()).unwrap();
    }

    #[track_caller]
    fn says(&self, expected: &str) {
        let found = self.check();
        assert!(found.iter().any(|f| f.contains(expected)), "expected \"{expected}\", found {found:#?}");
    }
}

#[test]
fn a_sound_table_has_no_finding() {
    let table = Table::new();
    assert_eq!(table.check(), [""; 0]);
    while table.tree().flush_one().unwrap() {}
    assert_eq!(table.check(), [""; 0]);
    while table.tree().compact_one(true).unwrap() {}
    assert_eq!(table.check(), [""; 0]);
    let mut sweep = crate::key_index::SweepCursor::new();
    while !sweep.is_done() {
        table.tree().sweep_tombstones(&mut sweep).unwrap();
    }
    assert_eq!(table.check(), [""; 0]);
}

#[test]
fn pages_that_are_not_what_they_were() {
    let sections = |run: &RunDesc| {
        let shape = &run.shape;
        [
            (0, "data"),
            (shape.keys_start(), "key"),
            (shape.directory_start(), "directory"),
            (shape.filter_start(), "filter"),
            (shape.fence_start(), "fence"),
            (shape.footer_start(), "footer"),
        ]
    };
    for (at, kind) in sections(&Table::new().runs()[2]) {
        for (what, how) in [
            ("another kind", (|page: &mut PageBuf| page.0[24] = 77) as fn(&mut PageBuf)),
            ("another extent", |page| page.set_seq(ExtentSeq(page.seq().0 - 1))),
            ("another format", |page| page.0[25] = 9),
            ("nothing", |page| *page = PageBuf::ZERO),
            ("garbage", |page| page.0[CONTENT..].iter_mut().for_each(|b| *b = 0xee)),
        ] {
            let table = Table::new();
            let run = table.runs()[2].clone();
            table.change(&run, at, how);
            let found = table.check();
            let place = format!("run {}", run.id);
            assert!(found.iter().any(|f| f.starts_with(&place)), "a {kind} page turned into {what}: {found:?}");
        }
    }
}

#[test]
fn pages_that_changed_places() {
    let table = Table::new();
    let run = table.runs()[2].clone();
    table.swap(&run, 1, 2);
    table.says("comes after");
    let table = Table::new();
    table.swap(&run, run.shape.keys_start(), run.shape.keys_start() + 1);
    table.says("key pages do not have key");
}

#[test]
fn a_filter_that_denies() {
    let table = Table::new();
    let run = table.runs()[2].clone();
    table.change(&run, run.shape.filter_start(), |page| page.0[1000..2000].fill(0));
    table.says("its filter denies key");
}

#[test]
fn fences_and_directory_that_lead_astray() {
    let table = Table::new();
    let run = table.runs()[2].clone();
    // The separators' heads stand behind the head of the page and the common prefix.
    table.change(&run, run.shape.fence_start(), |page| page.0[CONTENT + 12 + 4..CONTENT + 60].reverse());
    table.says("the fences lead to");
    let table = Table::new();
    // Base page of the directory page.
    table.change(&run, run.shape.directory_start(), |page| page.0[CONTENT + 32] += 1);
    table.says("its directory says");
    let table = Table::new();
    // Base id.
    table.change(&run, run.shape.directory_start(), |page| page.0[CONTENT + 8] += 1);
    table.says("its directory");
}

#[test]
fn values_that_are_not_there() {
    let table = Table::new();
    let run = table.runs()[2].clone();
    assert!(run.value_bytes() > 0);
    let extent = *table.tree().manifest().values.first().unwrap();
    table.host.world.borrow_mut().disk.pages[extent.start.0 as usize].set_seq(ExtentSeq(99));
    table.says("expected extent");
    let table = Table::new();
    table.edit(|run| run.values.clear());
    table.says("points to value bytes");
}

#[test]
fn what_memory_says_of_a_run() {
    let changes: [Breaking<RunDesc>; 7] = [
        ("holds Totals", |run| run.shape.rows += 1),
        ("holds Totals", |run| run.shape.max_writer = Writer(1)),
        ("its keys go from", |run| run.shape.max_key.push(7)),
        ("its footer says", |run| run.last_l0 = L0Id(run.last_l0.0 + 10)),
        ("fence pages", |run| run.shape.fence_levels += 1),
        ("pages in the manifest", |run| run.extents.change(|extents| extents[0].pages -= 1)),
        ("the footer is that of another run", |run| run.shape.bytes += 1),
    ];
    for (expected, how) in changes {
        let table = Table::new();
        let oldest = table.runs()[2].id;
        // Intervals have to stay contiguous for a superversion to be made at all.
        let newest = table.runs()[0].id;
        table.edit(|run| {
            if run.id == if expected == "its footer says" { newest } else { oldest } {
                how(run);
            }
        });
        table.says(expected);
    }
}

#[test]
fn a_settled_run_with_an_unfinished_writer() {
    let table = Table::new();
    let writer = table.runs()[1].shape.min_writer;
    table.edit(|run| run.settled = true);
    assert_eq!(table.check(), [""; 0]);
    for fate in [Fate::Aborted, Fate::InProgress] {
        table.host.world.borrow_mut().fates.insert(writer.0, fate);
        table.says(&format!("of writer {writer} ({fate:?})"));
    }
}

#[test]
fn manifests_that_are_broken() {
    let changes: [Breaking<Manifest>; 9] = [
        ("belongs to", |m| m.values[0].start = m.runs[0].extents[0].start),
        ("is used twice", |m| {
            let other = m.runs[1].extents[0].seq;
            m.runs[0].extents.change(|extents| extents[0].seq = other);
        }),
        ("are not within", |m| m.allocated = 5),
        ("was not given out", |m| m.next_seq = ExtentSeq(2)),
        ("where 2 was to come", |m| m.runs[1].first_l0 = L0Id(7)),
        ("above the high-water marks", |m| m.next_run = crate::types::RunId(1)),
        ("row ids up to", |m| m.next_row_id = RowId(1 << 39)),
        ("memory and pages differ in: runs", |m| m.runs[0].settled = !m.runs[0].settled),
        ("names a log of generation", |m| {
            let extent = Extent { start: PageNo(m.allocated), pages: 0, seq: ExtentSeq(1) };
            m.log_extents.push(crate::manifest::LogExtent { generation: L0Id(1), tail: 0, extent });
        }),
    ];
    for (expected, how) in changes {
        let table = Table::new();
        table.write_manifest(how);
        table.says(expected);
    }
    let table = Table::new();
    table.host.world.borrow_mut().disk.pages[table.tree().manifest().body[0].start.0 as usize].0[CONTENT + 3] ^= 1;
    table.says("the manifest pages are not those");
}

#[test]
fn pages_that_are_free_and_owned() {
    let table = Table::new();
    let owned = table.runs()[0].extents[0];
    loosekv_shm::scope::with(|| table.shared.ledger.lock().free.give(owned));
    table.says(&format!("page {} is taken for free", owned.start));
}

#[test]
fn row_ids_that_are_not_ordered_by_age() {
    let table = Table::new();
    // The newest run's rows, once more at the place of the oldest.
    let runs = table.runs();
    table.edit(|run| {
        if run.id == runs[2].id {
            *run = RunDesc { id: run.id, first_l0: run.first_l0, last_l0: run.last_l0, ..runs[0].clone() };
        }
    });
    let found = table.check();
    assert!(found.iter().any(|f| f.contains("its footer says")), "{found:?}");
    // That alone keeps the keys from being compared; so they are, by themselves.
    let tree = table.tree();
    let (view, manifest) = tree.pin_with_manifest();
    let pages = Verified::new(&tree.host);
    let mut check = Check { tree: &tree, pages, view, manifest, report: Report::default(), watch: &mut Alone };
    check.keys().unwrap();
    assert!(check.report.findings.iter().any(|f| f.what.contains("is not older than what is newer")));
}

#[test]
fn an_index_that_is_wrong() {
    let budget = |table: &Table| table.host.budgets.clone();
    let table = Table::new();
    let newest = table.shared.index.get(&key(6)).unwrap();
    assert!(table.shared.index.remove_if(&key(6), newest, &budget(&table).key_index));
    table.says("key index: lacks key");
    let table = Table::new();
    assert!(table.shared.index.replace_if(&key(6), newest, IndexEntry { l0: L0Id(1), tombstone: false }));
    table.says("key index: says IndexEntry { l0: L0Id(1)");
    let table = Table::new();
    let stray = IndexEntry { l0: L0Id(2), tombstone: false };
    table.shared.index.raise(b"nobody's", stray, &budget(&table).key_index).unwrap();
    table.says("which is in no run");
    let table = Table::new();
    let flipped = IndexEntry { tombstone: !newest.tombstone, ..newest };
    assert!(table.shared.index.replace_if(&key(6), newest, flipped));
    table.says("key index: says");
}

#[test]
fn a_log_that_is_not_the_memtables() {
    let table = Table::new();
    let generation = table.tree().pin().active().table.generation();
    table.host.world.borrow_mut().disk.logs.get_mut(&generation).unwrap()[6] ^= 1;
    table.says(&format!("memtable {generation}"));
}

#[test]
fn findings_of_one_place_are_bounded() {
    let table = Table::new();
    let run = table.runs()[2].clone();
    for at in 0..run.shape.filter_pages {
        table.change(&run, run.shape.filter_start() + at, |page| page.0[64..].fill(0));
    }
    let found = table.check();
    assert_eq!(found.len(), MOST_OF_A_KIND + 1, "{found:?}");
    assert!(found.last().unwrap().ends_with("more findings here"));
}
