//! Values up to many megabytes in the embedded store: through flushes, merges and crashes.

use loosekv_engine::embedded::sim::{Random, SimFs};
use loosekv_engine::embedded::{Background, Batch, Options, Reads, Store, WriteOptions};
use loosekv_engine::error::Error;
use loosekv_engine::options::TreeOptions;
use std::collections::BTreeMap;
use std::sync::Arc;

const DIR: &str = "/store";
const MIB: usize = 1 << 20;

fn options() -> Options {
    Options {
        tree: TreeOptions { memtable_bytes: 8 << 20, fan_in: 3, value_log_threshold: 0, ..TreeOptions::default() },
        reads: Reads::Cached { bytes: MIB },
        background: Background::Caller,
        flush_on_close: false,
        ..Options::default()
    }
}

fn open(sim: &SimFs) -> Store {
    Store::open_on(Arc::new(sim.clone()), DIR, &options()).unwrap()
}

fn value(length: usize, salt: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ (i >> 16) as u8 ^ salt).collect()
}

#[test]
fn large_values_come_back_from_log_run_and_crash() {
    let sim = SimFs::new(1);
    let mut store = open(&sim);
    let lengths = [0, 5, 6000, 7000, 8000, 8192, 9000, 100_000, MIB, 20 * MIB];
    let key = |length: usize| format!("{length:010}").into_bytes();
    for (salt, length) in lengths.into_iter().enumerate() {
        store.put(&key(length), &value(length, salt as u8)).unwrap();
    }
    let check = |store: &Store| {
        for (salt, length) in lengths.into_iter().enumerate() {
            assert!(store.get(&key(length)).unwrap() == Some(value(length, salt as u8)), "{length}");
        }
        let mut iter = store.iter().unwrap();
        for length in lengths {
            assert!(iter.next().unwrap());
            assert_eq!((iter.key(), iter.value().len()), (key(length).as_slice(), length));
        }
        assert!(!iter.next().unwrap());
    };
    check(&store);
    store.sync().unwrap();
    for step in 0..4 {
        match step {
            0 => {}
            1 => store.flush().unwrap(),
            _ => store.compact().unwrap(),
        }
        check(&store);
        sim.crash();
        drop(store);
        store = open(&sim);
        check(&store);
    }
    assert!(store.statistics().unwrap().value_pages >= (21 * MIB / 8192) as u64);
}

#[test]
fn values_that_went_free_their_pages() {
    let sim = SimFs::new(2);
    let store = open(&sim);
    let mut pages = Vec::new();
    for round in 0..12u8 {
        for i in 0..4 {
            store.put(&[b'k', i], &value(2 * MIB + 1000 * usize::from(i), round)).unwrap();
        }
        store.compact().unwrap();
        let statistics = store.statistics().unwrap();
        // Back to back, but a value stays within one extent.
        let full = (4 * 2 * MIB + 6000usize).div_ceil(8152) as u64;
        assert!((full..full + 4).contains(&statistics.value_pages), "round {round}: {}", statistics.value_pages);
        pages.push(statistics.file_pages);
    }
    // The old values, the new ones, and those that await their last reader; then the file grows no more.
    assert!(pages[11] < 6 * (8 * MIB / 8192) as u32 && pages[11] == pages[6], "{pages:?}");
    for i in 0..4 {
        assert!(store.get(&[b'k', i]).unwrap() == Some(value(2 * MIB + 1000 * usize::from(i), 11)));
        store.delete(&[b'k', i]).unwrap();
    }
    store.compact().unwrap();
    assert_eq!(store.statistics().unwrap().value_pages, 0);
}

#[test]
fn a_snapshot_keeps_values_that_were_replaced() {
    let sim = SimFs::new(3);
    let store = open(&sim);
    store.put(b"a", &value(3 * MIB, 1)).unwrap();
    store.flush().unwrap();
    let snapshot = store.snapshot();
    let mut iter = snapshot.iter().unwrap();
    for salt in 2..6 {
        store.put(b"a", &value(3 * MIB, salt)).unwrap();
        store.compact().unwrap();
    }
    assert!(snapshot.get(b"a").unwrap() == Some(value(3 * MIB, 1)));
    assert!(iter.next().unwrap() && iter.value() == value(3 * MIB, 1));
    drop((iter, snapshot));
    store.put(b"b", b"a flush").unwrap();
    store.compact().unwrap();
    assert!(store.get(b"a").unwrap() == Some(value(3 * MIB, 5)));
    assert_eq!(store.statistics().unwrap().value_pages, (3 * MIB).div_ceil(8152) as u64);
}

/// After a crash: a state that was reached, and none from before the last sync.
#[test]
fn crashes_leave_whole_values() {
    for seed in 0..4 {
        let sim = SimFs::new(seed);
        let mut random = Random::new(seed + 100);
        let mut store = open(&sim);
        let mut states: Vec<BTreeMap<Vec<u8>, (usize, u8)>> = vec![BTreeMap::new()];
        for step in 0..40u8 {
            let mut next = states.last().unwrap().clone();
            let mut batch = Batch::new();
            for _ in 0..1 + random.below(3) {
                let key = vec![b'a' + random.below(6) as u8];
                let limit = [100, 10_000, 100_000, 500_000][random.below(4) as usize];
                let length = random.below(limit) as usize;
                batch.put(&key, &value(length, step));
                next.insert(key, (length, step));
            }
            let sync = random.chance(30);
            store.write_with(&batch, WriteOptions { sync }).unwrap();
            states.push(next);
            if sync {
                states.drain(..states.len() - 1);
            }
            match random.below(12) {
                0 => {
                    store.flush().unwrap();
                    states.drain(..states.len() - 1);
                }
                1 => {
                    store.compact().unwrap();
                    states.drain(..states.len() - 1);
                }
                2 => {
                    sim.crash();
                    drop(store);
                    store = open(&sim);
                    let found: BTreeMap<Vec<u8>, Vec<u8>> =
                        store.iter().unwrap().pairs().collect::<Result<_, Error>>().unwrap();
                    let is = |state: &BTreeMap<Vec<u8>, (usize, u8)>| {
                        state.len() == found.len()
                            && state.iter().all(|(key, (length, _))| found.get(key).is_some_and(|v| v.len() == *length))
                            && state.iter().all(|(key, (length, salt))| found[key] == value(*length, *salt))
                    };
                    let at = states.iter().rposition(is).unwrap_or_else(|| panic!("seed {seed}, step {step}"));
                    states = vec![states.swap_remove(at)];
                }
                _ => {}
            }
        }
    }
}
