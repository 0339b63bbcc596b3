//! The row log where a segment was begun and nothing appended to it, and where what was appended is torn.

use loosekv_engine::embedded::sim::{Random, SimFs};
use loosekv_engine::embedded::{Background, Batch, Options, Reads, Store, WriteOptions};
use loosekv_engine::options::TreeOptions;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SYNC: WriteOptions = WriteOptions { sync: true };

fn options() -> Options {
    Options {
        tree: TreeOptions { memtable_bytes: 64 << 10, max_frozen: 3, fan_in: 3, ..TreeOptions::default() },
        frozen_soft: 1,
        log_chunk: 4096,
        reads: Reads::Cached { bytes: 1 << 20 },
        background: Background::Caller,
        flush_on_close: false,
        ..Options::default()
    }
}

fn open(sim: &SimFs) -> Store {
    Store::open_on(Arc::new(sim.clone()), "/store", &options()).unwrap()
}

/// Bytes on the simulated disk.
fn used(sim: &SimFs) -> u64 {
    sim.files().iter().map(|(_, bytes)| *bytes as u64).sum()
}

/// Batches that are too large for what room there is. Each takes room in the memtable before that is found out.
fn refused(store: &Store, batches: u32) -> u32 {
    let batch = |number: u32| {
        let mut batch = Batch::new();
        for row in number * 20..number * 20 + 20 {
            batch.put(&[&[7; 1000][..], &row.to_be_bytes()].concat(), &[1; 3000]);
        }
        batch
    };
    (0..batches).filter(|number| store.write(&batch(*number)).is_err()).count() as u32
}

/// A batch that no memtable has room for: each attempt goes on to the next generation.
fn too_large(store: &Store) {
    let mut batch = Batch::new();
    (0..10_000u32).for_each(|n| {
        batch.put(&n.to_be_bytes(), b"");
    });
    assert!(store.write(&batch).is_err());
}

/// A segment is begun, and the disk has no room for its first frame; what is synced later goes to the segment after it.
#[test]
fn what_is_synced_after_an_empty_segment_survives() {
    let mut in_two_segments = 0;
    for seed in 0..100 {
        let sim = SimFs::new(seed);
        let store = open(&sim);
        sim.set_capacity(used(&sim) + 40_000);
        assert!(refused(&store, 20) > 10);
        sim.set_capacity(1 << 30);
        too_large(&store);
        store.write_with(Batch::new().put(b"promised", b"kept"), SYNC).unwrap();
        in_two_segments += u32::from(store.statistics().unwrap().log_segments > 1);
        sim.crash();
        drop(store);
        assert_eq!(open(&sim).get(b"promised").unwrap().as_deref(), Some(&b"kept"[..]), "seed {seed}");
    }
    assert!(in_two_segments > 90, "{in_two_segments}");
}

/// The last segment is of a later generation than any row: whoever opens the store then can write to it.
#[test]
fn a_store_whose_last_segment_is_empty_can_be_written_to() {
    for end in ["kill", "close", "crash"] {
        for more in [0u64, 5_000, 10_000, 20_000, 30_000, 40_000, 50_000] {
            let sim = SimFs::new(more);
            let store = open(&sim);
            let before = used(&sim);
            sim.set_capacity(before);
            assert_eq!(refused(&store, 20), 20);
            too_large(&store);
            sim.set_capacity(before + more);
            assert_eq!(refused(&store, 20), 20);
            sim.set_capacity(1 << 40);
            match end {
                "kill" => sim.kill(),
                "crash" => sim.crash(),
                _ => {}
            }
            drop(store);
            open(&sim).put(b"a", b"b").unwrap_or_else(|e| panic!("{end}, {more}: {e}"));
        }
    }
}

/// The same without a full disk: the device has kept the header of the last segment and not all of its first frame.
#[test]
fn a_power_failure_after_a_batch_that_was_too_large_leaves_a_store_that_can_be_written_to() {
    for seed in 0..100 {
        let sim = SimFs::new(seed);
        let store = open(&sim);
        too_large(&store);
        store.put(b"small", &[3; 3000]).unwrap();
        sim.crash();
        drop(store);
        open(&sim).put(b"a", b"b").unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// A process that is killed while it copies a large frame leaves a part of it, in which there may be anything.
#[test]
fn a_torn_frame_of_random_bytes_is_passed_over_at_once() {
    let scratch = std::env::temp_dir().join(format!("loosekv-row-log-{}", std::process::id()));
    let (whole, copy) = (scratch.join("whole"), scratch.join("copy"));
    fs::create_dir_all(&copy).unwrap();
    let options = Options { background: Background::Caller, flush_on_close: false, ..Options::default() };
    let store = Store::open(&whole, &options).unwrap();
    store.write_with(Batch::new().put(b"synced", b"kept"), SYNC).unwrap();
    let mut random = Random::new(1);
    let value: Vec<u8> = (0..4 << 17).flat_map(|_| random.bits().to_le_bytes()).collect();
    store.put(b"torn", &value).unwrap();
    for entry in fs::read_dir(&whole).unwrap().map(Result::unwrap).filter(|entry| entry.file_name() != "lock") {
        let mut bytes = fs::read(entry.path()).unwrap();
        if entry.file_name().to_string_lossy().starts_with("log-") {
            let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
            bytes[end - 100..].fill(0);
        }
        fs::write(copy.join(entry.file_name()), bytes).unwrap();
    }
    drop(store);
    let begun = Instant::now();
    let store = Store::open(&copy, &options).unwrap();
    let took = begun.elapsed();
    assert_eq!(store.get(b"synced").unwrap().as_deref(), Some(&b"kept"[..]));
    assert!(store.get(b"torn").unwrap().is_none());
    drop(store);
    fs::remove_dir_all(&scratch).unwrap();
    assert!(took < Duration::from_secs(2), "{took:?}");
}
