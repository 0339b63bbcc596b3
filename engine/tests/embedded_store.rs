//! The store on real files, with its threads: the API, concurrency, bad input, damaged files, a process that is killed.

use loosekv_engine::embedded::{Background, Batch, Options, Reads, Store, Task, WriteOptions, MAX_VALUE};
use loosekv_engine::error::Error;
use loosekv_engine::options::TreeOptions;
use loosekv_engine::tree::Direction;
use loosekv_engine::types::{MAX_KEY, PAGE_SIZE};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A directory of its own for a test, removed with everything in it at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("loosekv-store-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn dir(&self) -> PathBuf {
        self.0.join("store")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn small() -> Options {
    Options {
        tree: TreeOptions { memtable_bytes: 256 << 10, fan_in: 3, max_frozen: 4, ..TreeOptions::default() },
        log_chunk: 64 << 10,
        ..Options::default()
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
}

fn value(n: u64, round: u64) -> Vec<u8> {
    format!("value {n} of round {round} ").repeat(8).into_bytes()
}

fn all(store: &Store) -> BTreeMap<Vec<u8>, Vec<u8>> {
    store.iter().unwrap().pairs().map(|pair| pair.unwrap()).collect()
}

#[test]
fn what_is_put_is_found_until_it_is_deleted_and_after_every_kind_of_end() {
    for reads in [Reads::Mapped, Reads::Cached { bytes: 1 << 20 }] {
        let scratch = Scratch::new();
        let options = Options { reads, ..small() };
        let mut model = BTreeMap::new();
        for round in 0..6u64 {
            let store = Store::open(scratch.dir(), &options).unwrap();
            assert_eq!(all(&store), model);
            for n in 0..3000 {
                let n = n * (round + 1) % 5000;
                if n % 7 == round {
                    store.delete(&key(n)).unwrap();
                    model.remove(&key(n));
                } else {
                    store.put(&key(n), &value(n, round)).unwrap();
                    model.insert(key(n), value(n, round));
                }
            }
            for n in 0..5000 {
                assert_eq!(store.get(&key(n)).unwrap().as_ref(), model.get(&key(n)));
            }
            match round % 3 {
                0 => store.close().unwrap(),
                1 => drop(store),
                _ => {
                    store.compact().unwrap();
                    assert_eq!(all(&store), model);
                    let levels = store.statistics().unwrap().levels;
                    assert_eq!(levels.iter().map(|l| l.runs).sum::<usize>(), 1);
                    store.close().unwrap();
                }
            }
        }
    }
}

/// Rows that take more room in a memtable than in its log, which is full before the log is long; what is too much for any memtable does
/// the others no harm.
#[test]
fn memtables_that_are_full_of_keys_make_room_for_the_next_rows() {
    const WRITERS: u64 = 4;
    const ROUNDS: u64 = 40;
    const ROWS: u64 = 120;
    let scratch = Scratch::new();
    let store = Store::open(scratch.dir(), &small()).unwrap();
    let batch = |writer: u64, round: u64| {
        let mut batch = Batch::new();
        let first = (writer * ROUNDS + round) * ROWS;
        for n in first..first + ROWS {
            batch.put(&key(n)[..8], b"");
        }
        batch
    };
    let mut large = Batch::new();
    for n in 0..10_000 {
        large.put(&key(n), b"");
    }
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (store, large) = (&store, &large);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    store.write(&batch(writer, round)).unwrap();
                    if writer == 0 && round % 4 == 0 {
                        assert!(matches!(store.write(large), Err(Error::MemoryFull { .. })));
                    }
                }
            });
        }
    });
    (0..20).for_each(|_| assert!(matches!(store.write(&large), Err(Error::MemoryFull { .. }))));
    for n in 0..5000 {
        store.put(&key(n), b"").unwrap();
    }
    assert!(store.metrics().flushes > 5 && store.trouble().is_none());
    let found =
        |store: &Store| store.iter().unwrap().pairs().filter(|pair| pair.as_ref().unwrap().1.is_empty()).count();
    let rows = (WRITERS * ROUNDS * ROWS + 5000) as usize;
    assert_eq!(found(&store), rows);
    drop(store);
    let store = Store::open(scratch.dir(), &small()).unwrap();
    assert_eq!(found(&store), rows);
    assert!(store.check().unwrap().is_empty());
}

#[test]
fn a_cleanly_closed_store_has_no_log_and_its_metrics_add_up() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.dir(), &small()).unwrap();
    for n in 0..5000 {
        store.put(&key(n), &value(n, 0)).unwrap();
    }
    store.write_with(Batch::new().put(b"a", b"1").delete(b"b"), WriteOptions { sync: true }).unwrap();
    let metrics = store.metrics();
    assert_eq!((metrics.writes, metrics.changes), (5001, 5002));
    assert!(metrics.log_bytes > metrics.user_bytes && metrics.log_syncs >= 1);
    store.flush().unwrap();
    store.settle().unwrap();
    let metrics = store.metrics();
    assert!(metrics.flushes > 3 && metrics.merges > 0 && metrics.write_amplification() > 1.5, "{metrics:?}");
    let statistics = store.statistics().unwrap();
    assert_eq!((statistics.log_segments, statistics.rows - statistics.tombstones), (0, 5001), "{statistics:?}");
    store.close().unwrap();
    let mut names: Vec<_> = fs::read_dir(scratch.dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["lock", "meta.lkv", "pages.lkv"]);
}

/// What the key index is for: a get looks into one run at the most, and a miss reads no page.
#[test]
fn a_get_looks_into_one_run_and_a_miss_reads_no_page() {
    const KEYS: u64 = 2000;
    for reads in [Reads::Mapped, Reads::Cached { bytes: 64 << 10 }] {
        let scratch = Scratch::new();
        let mut options = Options { reads, background: Background::Caller, ..small() };
        options.tree = TreeOptions { fan_in: 64, space_percent: 1000, memtable_bytes: 4 << 20, ..options.tree };
        let store = Store::open(scratch.dir(), &options).unwrap();
        for round in 0..5 {
            (0..KEYS).filter(|n| round == 0 || n % (round + 1) == 0).for_each(|n| {
                store.put(&key(n), &value(n, round)).unwrap();
            });
            store.flush().unwrap();
        }
        let check = |store: &Store| {
            assert!(store.wait_until_indexed().unwrap());
            let before = store.metrics();
            assert!(before.index_complete && before.index_keys == KEYS && before.index_bytes > KEYS * 16);
            assert_eq!(store.statistics().unwrap().levels[0].runs, 5);
            (0..KEYS).for_each(|n| assert!(store.get(&key(n)).unwrap().is_some()));
            let hits = store.metrics();
            assert_eq!(hits.runs_looked_into - before.runs_looked_into, KEYS);
            assert!(hits.pages_read > before.pages_read);
            for n in 0..KEYS {
                assert_eq!(store.get(&key(KEYS + n)).unwrap(), None);
                assert_eq!(store.get(format!("{n}").as_bytes()).unwrap(), None);
            }
            let misses = store.metrics();
            assert_eq!(misses.runs_looked_into, hits.runs_looked_into);
            assert_eq!(misses.pages_read, hits.pages_read);
            assert_eq!((misses.filter_probes, misses.gets - hits.gets), (before.filter_probes, 2 * KEYS));
        };
        check(&store);
        store.close().unwrap();
        // The index is built anew; until then the runs are asked, by their filters.
        let store = Store::open(scratch.dir(), &options).unwrap();
        assert!(!store.metrics().index_complete && store.metrics().indexed_from > 5);
        (0..100).for_each(|n| assert!(store.get(&key(n)).unwrap().is_some()));
        let unindexed = store.metrics();
        assert!(unindexed.filter_probes > 0 && unindexed.filter_hits >= 100);
        check(&store);
    }
}

/// Rows that come in the order of their keys are in runs that follow each other: these move from level to level as they are, and a
/// scan reads the ones that it comes to.
#[test]
fn rows_that_come_in_order_are_written_once() {
    const RUNS: u64 = 20;
    const ROWS: u64 = 200;
    let in_order = |n: u64| format!("{n:08}").into_bytes();
    let scratch = Scratch::new();
    let store = Store::open(scratch.dir(), &Options { background: Background::Caller, ..small() }).unwrap();
    for run in 0..RUNS {
        (run * ROWS..(run + 1) * ROWS).for_each(|n| store.put(&in_order(n), &value(n, 0)).unwrap());
        store.flush().unwrap();
        while store.step(Task::Merge).unwrap() {}
    }
    let metrics = store.metrics();
    assert_eq!((metrics.merges, metrics.runs_moved), (0, RUNS / 3 * 3));
    assert_eq!(store.statistics().unwrap().levels[1].runs as u64, RUNS / 3 * 3);
    let rows = |from: u64, direction| {
        let bound = in_order(from);
        let (lower, upper) = match direction {
            Direction::Forward => (Bound::Included(bound.as_slice()), Bound::Unbounded),
            Direction::Backward => (Bound::Unbounded, Bound::Included(bound.as_slice())),
        };
        let before = store.metrics().pages_read;
        let mut iter = store.range(lower, upper, direction).unwrap();
        let mut found = Vec::new();
        while found.len() < 20 && (if direction == Direction::Forward { iter.next() } else { iter.prev() }).unwrap() {
            found.push(iter.key().to_vec());
        }
        (found, store.metrics().pages_read - before)
    };
    for from in (0..RUNS * ROWS).step_by(37) {
        let (forward, pages) = rows(from, Direction::Forward);
        assert!(forward.into_iter().eq((from..RUNS * ROWS).take(20).map(in_order)), "from {from}");
        assert!(pages <= 6, "{pages} pages from {from}");
        let (backward, pages) = rows(from, Direction::Backward);
        assert!(backward.into_iter().eq((0..=from).rev().take(20).map(in_order)), "back from {from}");
        assert!(pages <= 6, "{pages} pages back from {from}");
    }
    assert!(store.check().unwrap().is_empty());
    // What comes over them is merged with them.
    for n in (0..RUNS * ROWS).step_by(10) {
        store.put(&in_order(n), &value(n, 1)).unwrap();
    }
    store.compact().unwrap();
    let found = all(&store);
    assert_eq!(found.len() as u64, RUNS * ROWS);
    assert!((0..RUNS * ROWS).all(|n| found[&in_order(n)] == value(n, u64::from(n % 10 == 0))));
}

/// Without room for all keys in the index gets are right all the same, and the metrics tell.
#[test]
fn an_index_without_room_says_so() {
    let scratch = Scratch::new();
    let options = Options { key_index_budget: 20_000, background: Background::Caller, ..small() };
    let store = Store::open(scratch.dir(), &options).unwrap();
    for round in 0..3 {
        (0..1000).for_each(|n| store.put(&key(n + 1000 * round), &value(n, round)).unwrap());
        store.flush().unwrap();
    }
    assert!(!store.wait_until_indexed().unwrap());
    let metrics = store.metrics();
    assert!(!metrics.index_complete && metrics.index_keys < 3000 && metrics.index_bytes <= 20_000);
    (0..3000).for_each(|n| assert!(store.get(&key(n)).unwrap().is_some()));
    assert!(store.metrics().filter_probes > 0);
}

/// Sweeps of an index that has no room for all keys wait until it has; the background does not turn in circles meanwhile.
#[test]
fn a_store_whose_index_has_no_room_comes_to_rest() {
    let scratch = Scratch::new();
    let options = Options { key_index_budget: 20_000, background: Background::Caller, ..small() };
    let store = Store::open(scratch.dir(), &options).unwrap();
    for n in 0..5000 {
        store.put(&key(n), &value(n, 0)).unwrap();
        store.delete(&key(n / 2)).unwrap();
        while n % 500 == 0 && store.step(Task::Flush).unwrap() {}
    }
    store.flush().unwrap();
    let steps = std::iter::from_fn(|| store.step(Task::Merge).unwrap().then_some(())).take(1000).count();
    assert!(store.metrics().merges > 0 && !store.metrics().index_complete);
    assert!(steps < 1000, "there is always something to do");
}

#[test]
fn an_idle_store_gives_the_end_of_its_page_file_back() {
    for reads in [Reads::Mapped, Reads::Cached { bytes: 1 << 20 }] {
        let scratch = Scratch::new();
        let options = Options { reads, background: Background::Caller, ..small() };
        let store = Store::open(scratch.dir(), &options).unwrap();
        for round in 0..3 {
            for n in 0..20_000 {
                store.put(&key(n * (round + 1) % 20_000), &value(n, round)).unwrap();
                while n % 500 == 0 && (store.step(Task::Flush).unwrap() || store.step(Task::Merge).unwrap()) {}
            }
        }
        let before = all(&store);
        let mut iter = store.iter().unwrap();
        assert!(iter.next().unwrap());
        store.compact().unwrap();
        let file = scratch.dir().join("pages.lkv");
        let length = || std::fs::metadata(&file).unwrap().len();
        let long = length();
        while store.step(Task::Sink).unwrap() {}
        // The iterator goes on where it was.
        let mut seen = vec![(iter.key().to_vec(), iter.value().to_vec())];
        while iter.next().unwrap() {
            seen.push((iter.key().to_vec(), iter.value().to_vec()));
        }
        assert!(before.clone().into_iter().eq(seen));
        drop(iter);
        store.put(&key(1), &value(1, 9)).unwrap();
        store.compact().unwrap();
        while store.step(Task::Sink).unwrap() {}
        let pages: u64 = store.statistics().unwrap().run_pages;
        assert!(length() < long * 2 / 3 && length() < pages * 8192 * 5 / 4, "{} of {long}, {pages} pages", length());
        assert!(store.check().unwrap().is_empty());
        for n in 0..20_000 {
            store.put(&key(n), &value(n, 10)).unwrap();
        }
        store.close().unwrap();
        let store = Store::open(scratch.dir(), &options).unwrap();
        assert_eq!(all(&store).len(), before.len());
        assert_eq!(store.get(&key(77)).unwrap(), Some(value(77, 10)));
    }
}

#[test]
fn the_statistics_tell_what_an_open_would_have_to_read() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.dir(), &Options::default()).unwrap();
    let mut before = store.statistics().unwrap();
    assert_eq!((before.log_segments, before.log_bytes), (0, 0));
    for rounds in 1..=3 {
        let mut written = 0;
        for n in 0..100 {
            store.put(&key(n), &value(n, rounds)).unwrap();
            written += (key(n).len() + value(n, rounds).len()) as u64;
            let logged = store.statistics().unwrap();
            assert!(logged.log_segments == 1 && logged.log_bytes >= written, "{written}: {logged:?}");
        }
        store.flush().unwrap();
        let now = store.statistics().unwrap();
        assert!(now.flushed > before.flushed && now.version > before.version, "{before:?} {now:?}");
        assert_eq!((now.log_segments, now.log_bytes), (0, 0));
        before = now;
    }
}

#[test]
fn a_store_to_which_nobody_writes_puts_itself_in_order() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.dir(), &small()).unwrap();
    for round in 0..3 {
        (0..20_000).for_each(|n| store.put(&key(n * 7 % 20_000), &value(n, round)).unwrap());
    }
    let before = all(&store);
    assert!(store.statistics().unwrap().log_segments > 0);
    let begun = Instant::now();
    let tidied = loop {
        let now = store.statistics().unwrap();
        // The memtable is in a run, one of a few (a small one may stay by itself, and the oldest), and the file is about as long as
        // these.
        let runs: usize = now.levels.iter().map(|level| level.runs).sum();
        let free = u64::from(now.file_pages).saturating_sub(now.run_pages);
        if (now.log_segments == 0 && runs <= 3 && free <= now.run_pages / 4) || begun.elapsed().as_secs() > 60 {
            break now;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(begun.elapsed().as_secs() <= 60, "{tidied:?}");
    assert_eq!(all(&store), before);
    assert!(store.check().unwrap().is_empty());
    store.put(&key(1), &value(1, 9)).unwrap();
    store.close().unwrap();
    let store = Store::open(scratch.dir(), &small()).unwrap();
    assert_eq!(store.get(&key(1)).unwrap(), Some(value(1, 9)));
    assert_eq!(all(&store).len(), before.len());
}

#[test]
fn snapshots_and_iterators_stay_as_they_were() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.dir(), &small()).unwrap();
    for n in 0..2000 {
        store.put(&key(n), &value(n, 0)).unwrap();
    }
    let before = all(&store);
    let snapshot = store.snapshot();
    let mut iter = store.iter().unwrap();
    assert!(iter.next().unwrap());
    let mut at_end = store.iter().unwrap();
    while at_end.next().unwrap() {}
    assert_eq!((at_end.key(), at_end.value()), (&b""[..], &b""[..]));
    drop(at_end);
    for round in 1..4 {
        for n in 0..2500 {
            store.put(&key(n), &value(n, round)).unwrap();
        }
        for n in 0..700 {
            store.delete(&key(n)).unwrap();
        }
        store.compact().unwrap();
    }
    assert_eq!(snapshot.iter().unwrap().pairs().map(|p| p.unwrap()).collect::<BTreeMap<_, _>>(), before);
    assert_eq!(snapshot.get(&key(5)).unwrap(), Some(value(5, 0)));
    assert_eq!(store.get(&key(5)).unwrap(), None);
    assert_eq!(store.multi_get(&[key(5), key(900)]).unwrap(), [None, Some(value(900, 3))]);
    let mut seen = vec![(iter.key().to_vec(), iter.value().to_vec())];
    while iter.next().unwrap() {
        seen.push((iter.key().to_vec(), iter.value().to_vec()));
    }
    assert!(before.into_iter().eq(seen));
    let rows = store.statistics().unwrap().rows;
    drop((snapshot, iter));
    store.put(b"x", b"y").unwrap();
    store.compact().unwrap();
    assert!(store.statistics().unwrap().rows < rows, "what only the snapshot saw is gone");
}

#[test]
fn iterators_keep_to_their_bounds_seek_and_turn() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.dir(), &small()).unwrap();
    for n in 0..100u8 {
        store.put(&[n], &[n]).unwrap();
        if n % 30 == 0 {
            store.flush().unwrap();
        }
    }
    let (lower, upper) = (Bound::Excluded(&[10u8][..]), Bound::Included(&[90u8][..]));
    let mut iter = store.range(lower, upper, Direction::Forward).unwrap();
    let mut step = |forward: bool| {
        let found = if forward { iter.next() } else { iter.prev() };
        found.unwrap().then(|| iter.key()[0])
    };
    assert_eq!([step(true), step(true), step(false), step(false)], [Some(11), Some(12), Some(11), None]);
    let mut iter = store.range(lower, upper, Direction::Forward).unwrap();
    assert!(iter.prev().unwrap());
    assert_eq!(iter.key(), [90]);
    iter.seek(&[50]);
    assert!(iter.prev().unwrap());
    assert_eq!(iter.value(), [50]);
    iter.restart(Direction::Forward).unwrap();
    assert!(iter.next().unwrap());
    assert_eq!(iter.key(), [11]);
    iter.seek(&[200]);
    assert!(!iter.next().unwrap());
}

#[test]
fn writers_and_readers_run_side_by_side() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.dir(), &small()).unwrap();
    let done = AtomicBool::new(false);
    const WRITERS: u64 = 4;
    const EACH: u64 = 4000;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|w| {
                let store = &store;
                scope.spawn(move || {
                    for n in 0..EACH {
                        // The two keys of a batch always have the same value.
                        let (a, b) = (key(w * 1000 + n % 500), key(w * 1000 + n % 500 + 500));
                        let sync = WriteOptions { sync: n % 200 == 0 };
                        store.write_with(Batch::new().put(&a, &value(w, n)).put(&b, &value(w, n)), sync).unwrap();
                        assert_eq!(store.get(&a).unwrap(), Some(value(w, n)), "one reads one's own writes");
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                let mut n = 0;
                while !done.load(Ordering::Relaxed) {
                    n += 1;
                    let (a, b) = (key(n % WRITERS * 1000 + n % 500), key(n % WRITERS * 1000 + n % 500 + 500));
                    let pair = store.multi_get(&[a, b]).unwrap();
                    assert_eq!(pair[0], pair[1], "a batch is seen whole or not at all");
                    if n % 64 == 0 {
                        let snapshot = store.snapshot();
                        let count = |direction| {
                            let iter = snapshot.range(Bound::Unbounded, Bound::Unbounded, direction).unwrap();
                            iter.pairs().inspect(|p| assert!(p.is_ok(), "{:?}", p.as_ref().err())).count()
                        };
                        assert_eq!(count(Direction::Forward), count(Direction::Backward));
                    }
                }
            });
        }
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let metrics = store.metrics();
    assert_eq!(metrics.writes, WRITERS * EACH);
    let found = all(&store);
    assert_eq!(found.len() as u64, WRITERS * 1000);
    drop(store);
    assert_eq!(all(&Store::open(scratch.dir(), &small()).unwrap()), found);
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.dir(), &small()).unwrap();
    store.put(b"k", b"v").unwrap();
    let invalid = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
    invalid(store.put(b"", b"v"));
    invalid(store.delete(b""));
    invalid(store.put(&vec![0; MAX_KEY + 1], b"v"));
    invalid(store.put(b"k", &vec![0; MAX_VALUE + 1]));
    invalid(store.write(Batch::new().put(b"k", b"new").put(b"", b"v")));
    assert_eq!(store.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!(store.get(b"").unwrap(), None);
    assert_eq!(store.get(&vec![0; 5000]).unwrap(), None);
    store.write(&Batch::new()).unwrap();
    store.put(&vec![1; MAX_KEY], &vec![2; MAX_VALUE]).unwrap();
    store.put(b"\0", b"").unwrap();
    store.compact().unwrap();
    assert_eq!(store.get(&vec![1; MAX_KEY]).unwrap(), Some(vec![2; MAX_VALUE]));
    assert_eq!(store.get(b"\0").unwrap(), Some(vec![]));
}

#[test]
fn directories_that_will_not_do_are_refused() {
    let scratch = Scratch::new();
    let said = |result: Result<Store, Error>| match result {
        Ok(_) => panic!("opened"),
        Err(e) => e.to_string(),
    };
    let missing = Options { create: false, ..small() };
    assert!(said(Store::open(scratch.dir(), &missing)).contains("cannot lock"));
    let store = Store::open(scratch.dir(), &small()).unwrap();
    assert!(said(Store::open(scratch.dir(), &small())).contains("is open in another"));
    drop(store);
    let new = Options { create_new: true, ..small() };
    assert!(said(Store::open(scratch.dir(), &new)).contains("already"));
    let file = scratch.0.join("file");
    fs::write(&file, b"x").unwrap();
    assert!(said(Store::open(&file, &small())).contains("cannot make"));
    assert!(said(Store::open(scratch.0.join("no/such"), &small())).contains("cannot make"));
    let nonsense = Options { log_chunk: 0, ..small() };
    assert!(said(Store::open(scratch.dir(), &nonsense)).contains("log_chunk"));
    fs::remove_file(scratch.dir().join("meta.lkv")).unwrap();
    let store = Store::open(scratch.dir(), &small()).unwrap();
    store.put(b"k", b"v").unwrap();
    drop(store);
    fs::remove_file(scratch.dir().join("meta.lkv")).unwrap();
    assert!(said(Store::open(scratch.dir(), &small())).contains("no meta page"));
    let flushed = Scratch::new();
    let store = Store::open(flushed.dir(), &small()).unwrap();
    store.put(b"k", b"v").unwrap();
    store.close().unwrap();
    fs::remove_file(flushed.dir().join("meta.lkv")).unwrap();
    assert!(said(Store::open(flushed.dir(), &small())).contains("pages, but no meta page"));
}

/// Every file of a store, with bytes flipped here and there: reads give the right answer or an error, never a wrong one.
#[test]
fn flipped_bytes_are_found() {
    let scratch = Scratch::new();
    let options = Options { background: Background::Caller, flush_on_close: false, ..small() };
    let store = Store::open(scratch.dir(), &options).unwrap();
    for n in 0..1500 {
        store.put(&key(n), &value(n, 0)).unwrap();
    }
    store.flush().unwrap();
    for n in 0..300 {
        store.put(&key(n), &value(n, 1)).unwrap();
    }
    let good = all(&store);
    store.close().unwrap();
    let (mut found, mut harmless) = (0, 0);
    for entry in fs::read_dir(scratch.dir()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let stride = (bytes.len() / 60).max(1);
        for at in (0..bytes.len()).step_by(stride) {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << (at % 8);
            let copy = Scratch::new();
            fs::create_dir(copy.dir()).unwrap();
            for other in fs::read_dir(scratch.dir()).unwrap() {
                let other = other.unwrap().path();
                fs::copy(&other, copy.dir().join(other.file_name().unwrap())).unwrap();
            }
            fs::write(copy.dir().join(path.file_name().unwrap()), &bad).unwrap();
            match check_copy(&copy.dir(), &options, &good) {
                Ok(()) => harmless += 1,
                Err(e @ (Error::Corrupt { .. } | Error::Format { .. })) => {
                    let (said, name) = (e.to_string(), path.file_name().unwrap().to_str().unwrap());
                    assert!(said.contains(name), "{name} at {at}: {said}");
                    found += 1;
                }
                Err(e) => panic!("{} at {at}: {e}", path.display()),
            }
        }
    }
    assert!(found > 60, "{found} found, {harmless} harmless");
}

/// Also where nobody looks at checksums: what is wrong is told of a page of the file.
#[test]
fn errors_name_the_file_without_checksums() {
    let scratch = Scratch::new();
    let options = Options { background: Background::Caller, verify_checksums: false, ..small() };
    let store = Store::open(scratch.dir(), &options).unwrap();
    for n in 0..1500 {
        store.put(&key(n), &value(n, 0)).unwrap();
    }
    store.flush().unwrap();
    let good = all(&store);
    store.close().unwrap();
    let path = scratch.dir().join("pages.lkv");
    let bytes = fs::read(&path).unwrap();
    let mut found = 0;
    for page in 1..bytes.len() / PAGE_SIZE {
        let mut bad = bytes.clone();
        // No kind of page.
        bad[page * PAGE_SIZE + 24] = 200;
        fs::write(&path, &bad).unwrap();
        let failed = Store::open(scratch.dir(), &options).and_then(|store| {
            good.keys().try_for_each(|key| store.get(key).map(|_| ()))?;
            store.iter()?.pairs().try_for_each(|pair| pair.map(|_| ()))
        });
        if let Err(e) = failed {
            let said = e.to_string();
            assert!(said.contains("pages.lkv") && said.contains("found kind 200"), "{page}: {said}");
            found += 1;
        }
    }
    assert!(found > 10, "{found} of {}", bytes.len() / PAGE_SIZE);
}

fn check_copy(dir: &Path, options: &Options, good: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<(), Error> {
    let store = Store::open(dir, options)?;
    let mut failed = None;
    for (key, value) in good {
        match store.get(key) {
            Ok(found) => assert_eq!(found.as_ref(), Some(value), "a wrong answer"),
            Err(e) => failed = Some(e),
        }
    }
    let pairs: Result<BTreeMap<_, _>, Error> = store.iter()?.pairs().collect();
    assert_eq!(pairs?, *good, "a wrong scan");
    store.compact()?;
    failed.map_or(Ok(()), Err)
}

#[test]
fn a_file_that_was_cut_short_is_found() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.dir(), &small()).unwrap();
    for n in 0..3000 {
        store.put(&key(n), &value(n, 0)).unwrap();
    }
    store.close().unwrap();
    let file = fs::OpenOptions::new().write(true).open(scratch.dir().join("pages.lkv")).unwrap();
    file.set_len(5 * PAGE_SIZE as u64 + 100).unwrap();
    let result = Store::open(scratch.dir(), &small()).and_then(|store| {
        (0..3000).try_for_each(|n| store.get(&key(n)).map(|found| assert!(found.is_none_or(|v| v == value(n, 0)))))
    });
    let said = result.unwrap_err().to_string();
    assert!(said.contains("pages.lkv") && said.contains("ends at page 5"), "{said}");
}

/// A process that is killed loses nothing that was acknowledged, synced or not: the machine goes on.
#[test]
fn a_killed_process_loses_nothing() {
    if let Ok(dir) = std::env::var("LOOSEKV_TEST_KILL_ME") {
        let store = Store::open(&dir, &small()).unwrap();
        let from = fs::read(format!("{dir}.acknowledged")).map_or(0, |b| b.len() as u64);
        let told = fs::OpenOptions::new().create(true).append(true).open(format!("{dir}.acknowledged")).unwrap();
        let begun = Instant::now();
        // Nobody may have come to kill it.
        for n in (from..).take_while(|_| begun.elapsed().as_secs() < 20) {
            store.write(Batch::new().put(&key(n), &value(n, 0)).put(b"last", &n.to_le_bytes())).unwrap();
            std::io::Write::write_all(&mut &told, b".").unwrap();
        }
        return;
    }
    let scratch = Scratch::new();
    for round in 0..6u64 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["a_killed_process_loses_nothing", "--exact", "--nocapture"])
            .env("LOOSEKV_TEST_KILL_ME", scratch.dir())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(120 + 70 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let store = Store::open(scratch.dir(), &small()).unwrap();
        let acknowledged = fs::read(scratch.0.join("store.acknowledged")).map_or(0, |b| b.len() as u64);
        let Some(last) = store.get(b"last").unwrap() else {
            assert_eq!(acknowledged, 0);
            continue;
        };
        let last = u64::from_le_bytes(last.try_into().unwrap());
        assert!(last + 1 >= acknowledged, "{last} {acknowledged}");
        for n in 0..=last {
            assert_eq!(store.get(&key(n)).unwrap(), Some(value(n, 0)));
        }
        assert_eq!(store.get(&key(last + 1)).unwrap(), None);
        fs::write(scratch.0.join("store.acknowledged"), vec![b'.'; last as usize + 1]).unwrap();
        store.close().unwrap();
    }
}

#[test]
fn a_check_finds_every_byte_that_was_flipped() {
    for reads in [Reads::Mapped, Reads::Cached { bytes: 1 << 20 }] {
        let scratch = Scratch::new();
        // No threads: pages must not move while they are looked at.
        let options = Options { reads, background: Background::Caller, ..small() };
        let store = Store::open(scratch.dir(), &options).unwrap();
        for n in 0..9000 {
            store.put(&key(n % 4000), &value(n, n / 4000)).unwrap();
            if n % 1000 == 0 {
                store.put(&key(n), &value(n, 9).repeat(100)).unwrap();
                store.delete(&key(n + 1)).unwrap();
            }
        }
        assert_eq!(store.check().unwrap(), []);
        store.compact().unwrap();
        for n in 0..500 {
            store.put(&key(n), &value(n, 77)).unwrap();
        }
        assert_eq!(store.check().unwrap(), []);
        let path = scratch.dir().join("pages.lkv");
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let pages = file.metadata().unwrap().len() / PAGE_SIZE as u64;
        let mut found = 0;
        for page in 1..pages {
            let at = page * PAGE_SIZE as u64 + 24 + page * 37 % 8000;
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
            let findings = store.check().unwrap();
            file.write_all_at(&byte, at).unwrap();
            if findings.iter().any(|f| f.what.contains(&format!("page {page} at"))) {
                found += 1;
            } else {
                // Nobody's page: what merges have left behind.
                assert_eq!(findings, [], "page {page}");
            }
        }
        let owned = store.statistics().unwrap();
        assert!(found as u64 > owned.run_pages, "{found} of {pages} pages, {owned:?}");
        assert_eq!(store.check().unwrap(), []);
    }
}

#[test]
fn a_check_runs_beside_everything_else() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.dir(), &small()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for salt in 0..2u64 {
            let (store, done) = (&store, &done);
            threads.spawn(move || {
                for n in 0..20_000u64 {
                    let n = n.wrapping_mul(7919 + salt) % 3000;
                    if n % 5 == salt {
                        store.delete(&key(n)).unwrap();
                    } else {
                        store.put(&key(n), &value(n, salt).repeat(1 + (n % 97 == 0) as usize * 40)).unwrap();
                    }
                }
                done.store(true, Ordering::Release);
            });
        }
        let mut checks = 0;
        while !done.load(Ordering::Acquire) || checks < 3 {
            assert_eq!(store.check().unwrap(), []);
            checks += 1;
        }
    });
}
