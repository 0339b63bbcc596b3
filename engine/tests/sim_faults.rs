//! The store when the device fails or is full: each case that was found, or is promised, by name.

use loosekv_engine::embedded::sim::{Fault, Protected, Random, SimFs};
use loosekv_engine::embedded::{Background, Batch, Options, Reads, Store, Task, WriteOptions};
use loosekv_engine::error::{Error, Result};
use loosekv_engine::options::{Compression, TreeOptions};
use std::sync::Arc;

fn options(background: Background) -> Options {
    Options {
        tree: TreeOptions { memtable_bytes: 64 << 10, max_frozen: 3, fan_in: 3, ..TreeOptions::default() },
        frozen_soft: 1,
        log_chunk: 4096,
        reads: Reads::Cached { bytes: 1 << 20 },
        background,
        flush_on_close: false,
        ..Options::default()
    }
}

fn open(sim: &SimFs, background: Background) -> Result<Store> {
    Store::open_on(Arc::new(sim.clone()), "/store", &options(background))
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn count(store: &Store) -> usize {
    store.iter().unwrap().pairs().inspect(|p| assert!(p.is_ok())).count()
}

const SYNC: WriteOptions = WriteOptions { sync: true };

/// A sync that failed leaves pages in the operating system's cache that look written and are not: whoever reads them after a
/// restart of the process must write them once more.
#[test]
fn what_a_failed_sync_left_in_the_cache_is_not_taken_for_durable() {
    // Fails each operation of a flush in turn, restarts the process, writes on, and then the power fails.
    for at in 0..40 {
        for seed in 0..8 {
            let sim = SimFs::new(seed);
            let store = open(&sim, Background::Caller).unwrap();
            for n in 0..50 {
                store.write_with(Batch::new().put(&key(n), &[n as u8; 1000]), SYNC).unwrap();
            }
            sim.fault_at(sim.operations() + at, Fault::Error);
            let _ = store.flush();
            sim.kill();
            drop(store);
            let store = open(&sim, Background::Caller).unwrap();
            store.write_with(Batch::new().put(&key(99), b"after"), SYNC).unwrap();
            store.step(Task::Flush).unwrap();
            sim.crash();
            drop(store);
            let store = open(&sim, Background::Caller).unwrap_or_else(|e| panic!("fault {at}, seed {seed}: {e}"));
            assert_eq!(count(&store), 51, "fault {at}, seed {seed}");
        }
    }
}

/// The same for the log: a write whose sync failed may be found after a restart, and is durable then.
#[test]
fn a_write_that_is_found_after_a_failed_sync_stays() {
    for seed in 0..60 {
        let sim = SimFs::new(seed);
        let store = open(&sim, Background::Caller).unwrap();
        store.write_with(Batch::new().put(&key(0), b"before"), SYNC).unwrap();
        sim.fault_at(sim.operations() + 1, Fault::Error);
        let failed = store.write_with(Batch::new().put(&key(1), &[1; 3000]), SYNC);
        assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
        assert_eq!(store.get(&key(1)).unwrap(), None, "it was not acknowledged");
        assert!(matches!(store.put(&key(2), b"x"), Err(Error::Unavailable(_))));
        assert!(matches!(store.flush(), Err(Error::Unavailable(_))));
        sim.kill();
        drop(store);
        let store = open(&sim, Background::Caller).unwrap();
        assert_eq!(count(&store), 2);
        store.write_with(Batch::new().put(&key(3), b"after"), SYNC).unwrap();
        sim.crash();
        drop(store);
        assert_eq!(count(&open(&sim, Background::Caller).unwrap()), 3);
    }
}

/// On a full device writers get an error, nothing acknowledged is lost, and the store goes on when there is room.
#[test]
fn a_full_device_stops_writers_until_there_is_room() {
    for background in [Background::Threads, Background::Caller] {
        let sim = SimFs::new(1);
        let store = open(&sim, background).unwrap();
        sim.set_capacity(1 << 20);
        // A merge that is under way has its inputs and its output on the device: what is full then may have room after it.
        let written = fill(&store, 0, |_| [7; 2000]);
        assert!((100..5000).contains(&written), "{written} rows");
        assert_eq!(count(&store), written as usize);
        store.snapshot().get(&key(0)).unwrap().unwrap();
        sim.set_capacity(1 << 30);
        let begun = std::time::Instant::now();
        while let Err(e) = store.put(&key(written), &[7; 2000]) {
            assert!(matches!(e, Error::NoSpace(_)), "{e}");
            assert!(begun.elapsed().as_secs() < 20, "the background has not noticed the room: {e}");
        }
        for n in written + 1..written + 500 {
            store.put(&key(n), &[8; 2000]).unwrap();
        }
        store.compact().unwrap();
        assert!(store.trouble().is_none());
        assert_eq!(count(&store), written as usize + 500);
        store.close().unwrap();
        assert_eq!(count(&open(&sim, background).unwrap()), written as usize + 500);
    }
}

/// Values that no compression makes shorter.
fn value(n: u32) -> Vec<u8> {
    let mut random = Random::new(n.into());
    (0..40).flat_map(|_| random.bits().to_le_bytes()).collect()
}

/// Does `write` until it succeeds, or is refused so many times; the background works in between. False: it is refused.
fn finds_room(store: &Store, attempts: u32, write: impl Fn() -> Result<()>) -> bool {
    for attempt in 0..attempts {
        match write() {
            Ok(()) => return true,
            Err(e) => assert!(matches!(e, Error::NoSpace(_)), "{e}"),
        }
        if attempt > 3 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        for task in [Task::Flush, Task::Merge] {
            while store.step(task).unwrap_or(false) {}
        }
    }
    false
}

/// Some seconds, where threads are to make room.
const DELETES: u32 = 1000;

/// Puts rows from here on until the device is full; returns the number of the next one.
fn fill<V: AsRef<[u8]>>(store: &Store, from: u32, value: impl Fn(u32) -> V) -> u32 {
    (from..).find(|n| !finds_room(store, 20, || store.put(&key(*n), value(*n).as_ref()))).unwrap()
}

/// A full device is emptied by deletes, however it became full, and filled again. What others try to write meanwhile takes no room
/// from them.
#[test]
fn a_full_device_is_emptied_by_deletes() {
    for (seed, background) in (0..).zip([Background::Threads, Background::Caller, Background::Caller]) {
        for compression in [Compression::None, Compression::Zstd(1)] {
            let sim = SimFs::new(seed);
            sim.set_capacity(16 << 20);
            let mut options = options(background);
            options.tree.run.compression = compression;
            options.tree.memtable_bytes = 256 << 10;
            options.log_chunk = [4096, 16 << 20][seed as usize % 2];
            let open = || Store::open_on(Arc::new(sim.clone()), "/store", &options).unwrap();
            let store = open();
            let rows = fill(&store, 0, value);
            assert!(rows > 5000, "{rows} rows");
            match seed {
                0 => store.close().unwrap(),
                1 => sim.kill(),
                _ => {
                    store.sync().unwrap();
                    sim.crash();
                }
            }
            let store = open();
            assert_eq!(count(&store), rows as usize);
            for n in 0..rows {
                if n % (rows / 8) == 0 {
                    let done = store.delete(b"noise").and_then(|()| store.compact());
                    assert!(done.is_ok() || matches!(done, Err(Error::NoSpace(_))), "{done:?}");
                }
                let gone = finds_room(&store, DELETES, || store.delete(&key(n)));
                assert!(gone, "row {n} of {rows} cannot be deleted: {:?}", store.trouble());
                if n % 100 == 0 {
                    let _ = store.put(b"noise", &value(0));
                }
            }
            assert!(finds_room(&store, DELETES, || store.delete(b"noise")));
            assert_eq!(count(&store), 0);
            let again = fill(&store, rows, value) - rows;
            assert!(again > rows / 10 * 8, "{again} rows after {rows}");
            assert_eq!(count(&store), again as usize);
            assert_eq!(store.check().unwrap(), []);
            store.close().unwrap();
            assert_eq!(count(&open()), again as usize);
        }
    }
}

/// An error of the background that is not want of room ends writing; the reason is kept, and reads go on.
#[test]
fn an_error_in_the_background_is_kept() {
    let sim = SimFs::new(2);
    let store = open(&sim, Background::Threads).unwrap();
    for n in 0..20 {
        store.put(&key(n), &[1; 1000]).unwrap();
    }
    // Only the background syncs here.
    sim.fail_sync();
    let mut n = 20;
    let error = loop {
        match store.put(&key(n), &[1; 1000]) {
            Ok(()) => n += 1,
            Err(e) => break e,
        }
        assert!(n < 10_000);
    };
    assert!(matches!(error, Error::Unavailable(_)) && error.to_string().contains("os error 5"), "{error}");
    assert!(store.trouble().is_some_and(|e| e.to_string() == error.to_string()));
    assert_eq!(count(&store), n as usize);
    sim.kill();
    drop(store);
    assert!(count(&open(&sim, Background::Threads).unwrap()) >= n as usize);
}

/// Threads of the store at work while the power fails: a prefix is found that holds all that was synced.
#[test]
fn a_crash_under_threads_leaves_a_prefix() {
    for seed in 0..25 {
        let sim = SimFs::new(seed);
        let mut expected = 0;
        for round in 0..4 {
            let store = open(&sim, Background::Threads).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let found = count(&store) as u32;
            assert!(found >= expected, "seed {seed}, round {round}: {found} of {expected}");
            for n in 0..found {
                assert_eq!(store.get(&key(n)).unwrap(), Some(vec![n as u8; 700]), "seed {seed}: a prefix");
            }
            for n in found..found + 300 {
                let sync = WriteOptions { sync: n % 40 == 0 };
                store.write_with(Batch::new().put(&key(n), &[n as u8; 700]), sync).unwrap();
                if sync.sync {
                    expected = n + 1;
                }
            }
            sim.crash();
            drop(store);
        }
    }
}

/// Where nothing may be written, or some of it not, the store says so when it is opened or written to; it can be read as long as it
/// is open, and nothing is lost that was acknowledged.
#[test]
fn a_store_that_may_not_be_written_to_says_so_and_loses_nothing() {
    for protected in [Protected::Names, Protected::Files, Protected::Device] {
        for background in [Background::Threads, Background::Caller] {
            play_protected(protected, background, false);
            play_protected(protected, background, true);
        }
    }
}

fn play_protected(protected: Protected, background: Background, crash: bool) {
    let case = format!("{protected:?}, {background:?}, crash: {crash}");
    let is_said = |e: &Error| {
        let (said, why) = (e.to_string(), if protected == Protected::Device { libc::EROFS } else { libc::EACCES });
        assert!(said.contains("/store") && said.contains(&format!("(os error {why})")), "{case}: {said}");
    };
    let sim = SimFs::new(1);
    let write = |store: &Store, n: u32| store.write_with(Batch::new().put(&key(n), &[1; 1000]), SYNC);
    // In a directory without files there are none to protect.
    if protected != Protected::Files {
        sim.protect(Some(protected));
        is_said(&open(&sim, background).err().unwrap());
        assert_eq!(sim.files(), []);
        sim.protect(None);
    }
    let store = open(&sim, background).unwrap();
    (0..200).for_each(|n| write(&store, n).unwrap());
    // The store is open when it comes about.
    sim.protect(Some(protected));
    let refused = (200..600).find_map(|n| write(&store, n).err().map(|e| (n, e)));
    let written = match refused {
        Some((written, e)) => {
            is_said(&e);
            is_said(&write(&store, written).unwrap_err());
            written
        }
        None => {
            assert_eq!(protected, Protected::Files, "{case}: files that are open can be written to");
            600
        }
    };
    assert_eq!(count(&store), written as usize, "{case}");
    if crash {
        sim.crash();
    } else {
        sim.kill();
    }
    drop(store);
    // Whoever opens it meanwhile is refused, or finds everything.
    match open(&sim, background) {
        Err(e) => is_said(&e),
        Ok(store) => assert!(protected == Protected::Names && count(&store) >= written as usize, "{case}"),
    }
    sim.protect(None);
    let store = open(&sim, background).unwrap();
    (0..written).for_each(|n| assert_eq!(store.get(&key(n)).unwrap(), Some(vec![1; 1000]), "{case}"));
    store.put(&key(9999), b"after").unwrap();
    store.compact().unwrap();
    assert_eq!(store.check().unwrap(), [], "{case}");
}
