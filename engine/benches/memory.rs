//! Costs of the structures in memory: nanoseconds an operation and bytes a key, at one million keys (or as many as the
//! first argument says).
//!
//!     cargo bench -p loosekv-engine --bench memory [-- [index] keys]      index: that one alone

use loosekv_engine::host::Budget;
use loosekv_engine::key_index::{IndexEntry, KeyChunk, KeyIndex, SweepCursor};
use loosekv_engine::memtable::Memtable;
use loosekv_engine::run_map::RunMap;
use loosekv_engine::tree::Direction;
use loosekv_engine::types::{Head, L0Id, LogAddr, RowId, Writer};
use loosekv_shm::ThreadLatch;
use std::hint::black_box;
use std::ops::Bound;
use std::sync::atomic::Ordering;
use std::time::Instant;

fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A random key of 16 bytes, as a uuid is.
fn uuid(n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mix(n).to_be_bytes());
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

/// A key of 31 bytes whose first bytes are those of all others.
fn text(n: u64) -> Vec<u8> {
    format!("customer:account:{:014}", mix(n) % 100_000_000_000_000).into_bytes()
}

/// Random look-ups, the best of many short passes: others may be using the machine's caches.
fn look_ups(what: &str, count: u64, mut one: impl FnMut(u64)) {
    const PASS: u64 = 10_000;
    let mut best = f64::MAX;
    for pass in 0..100 {
        let start = Instant::now();
        for n in 0..PASS {
            one(mix(pass * PASS + n) % count);
        }
        best = best.min(start.elapsed().as_nanos() as f64 / PASS as f64);
    }
    println!("{what:<44} {best:>9.1} ns");
}

fn time<R>(what: &str, count: u64, run: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = run();
    let nanos = start.elapsed().as_nanos() as f64;
    println!("{what:<44} {:>9.1} ns", nanos / count as f64);
    result
}

fn put(table: &Memtable, key: &[u8], row: u64) {
    let head = Head { row_id: RowId(row), writer: Writer(row / 10), ..Head::default() };
    let Some(room) = table.room(key.len(), &head) else { panic!("the memtable is full") };
    let splice = table.probe_for(key, &room);
    table.link(&splice, room, key, &head, LogAddr(row));
}

fn memtable<K: AsRef<[u8]> + Sync>(name: &str, keys: &[K]) {
    let count = keys.len() as u64;
    let table = Memtable::new(L0Id(1), RowId(0), Writer(0), 1 << 30, 1 << 20).expect("memory");
    time(&format!("memtable put, {name}"), count, || {
        for (row, key) in keys.iter().enumerate() {
            put(&table, key.as_ref(), row as u64);
        }
    });
    look_ups(&format!("memtable get, {name}"), count, |n| {
        black_box(table.newest(keys[n as usize].as_ref()).expect("there").head());
    });
    look_ups(&format!("memtable get of nothing, {name}"), count, |n| {
        black_box(table.newest(&mix(n ^ 0xABCD).to_be_bytes()).is_none());
    });
    look_ups(&format!("memtable by row, {name}"), count, |n| {
        black_box(table.by_row(RowId(n)).expect("there").addr());
    });
    time(&format!("memtable forward, {name}"), count, || {
        let mut node = table.first();
        while let Some(n) = node {
            black_box(n.head());
            node = n.next();
        }
    });
    time(&format!("memtable backward, {name}"), count / 10, || {
        let mut node = table.last();
        let mut back = Vec::new();
        for _ in 0..count / 10 {
            let Some(n) = node else { break };
            black_box(n.head());
            if back.is_empty() {
                table.some_before(n.key(), usize::MAX, &mut back);
            }
            // SAFETY: of this memtable.
            node = back.pop().map(|id| unsafe { table.resume(id) });
        }
    });
    println!("{:<44} {:>9.1} bytes", format!("memtable a row, {name}"), table.bytes_used() as f64 / count as f64);
    time(&format!("memtable drop, {name}"), count, || drop(table));
    let table = Memtable::new(L0Id(1), RowId(0), Writer(0), 1 << 30, 1 << 20).expect("memory");
    time(&format!("memtable put, 2 threads, {name}"), count, || {
        std::thread::scope(|threads| {
            for half in 0..2 {
                let table = &table;
                threads.spawn(move || {
                    for (row, key) in keys.iter().enumerate().skip(half).step_by(2) {
                        put(table, key.as_ref(), row as u64);
                    }
                });
            }
        });
    });
}

/// Nanoseconds of CPU time of this thread: the machine may have other things to do.
fn cpu() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is alive.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn spent<R>(what: &str, count: u64, run: impl FnOnce() -> R) -> R {
    let start = cpu();
    let result = run();
    println!("{what:<52} {:>9.1} ns", (cpu() - start) / count as f64);
    result
}

type Index = KeyIndex<ThreadLatch>;

fn raise(index: &Index, batch: &[(&[u8], IndexEntry)], budget: &Budget) {
    index.raise_batch(batch, budget).expect("room");
}

/// Keys of one flush.
const FLUSH: u64 = 28_000;

/// Looks for many keys, in passes; prints the median pass.
fn probes(what: &str, index: &Index, key: impl Fn(u64) -> Vec<u8>, there: bool) {
    let mut passes: Vec<f64> = (0..31)
        .map(|pass| {
            let keys: Vec<_> = (0..4000).map(|n| key(mix(pass << 32 | n))).collect();
            let start = cpu();
            for key in &keys {
                assert_eq!(black_box(index.get(key)).is_some(), there);
            }
            (cpu() - start) / keys.len() as f64
        })
        .collect();
    passes.sort_unstable_by(f64::total_cmp);
    println!("{what:<52} {:>9.1} ns", passes[passes.len() / 2]);
}

/// One flush: these keys, in their order.
fn flush(index: &Index, keys: impl Iterator<Item = Vec<u8>>, l0: u64, budget: &Budget) -> f64 {
    let mut keys: Vec<_> = keys.collect();
    keys.sort_unstable();
    let entry = IndexEntry { l0: L0Id(l0), tombstone: false };
    let batch: Vec<(&[u8], IndexEntry)> = keys.iter().map(|key| (key.as_slice(), entry)).collect();
    let start = cpu();
    for piece in batch.chunks(1024) {
        raise(index, piece, budget);
    }
    cpu() - start
}

/// An index that came about by flushes of random keys (or ever larger ones), then what is done with it.
fn index(name: &str, count: u64, key: impl Fn(u64) -> Vec<u8>) {
    let budget = Budget::default();
    budget.limit.store(u64::MAX, Ordering::Relaxed);
    let index = Index::new();
    let (mut n, mut nanos) = (0, 0.0);
    while n < count {
        let end = (n + FLUSH).min(count);
        nanos += flush(&index, (n..end).map(&key), 1, &budget);
        n = end;
    }
    println!("{:<52} {:>9.1} ns", format!("index, building by flushes, {name}"), nanos / count as f64);
    println!("{:<52} {:>9.1} bytes", format!("index, a key, {name}"), index.bytes() as f64 / count as f64);
    probes(&format!("index get, {name}"), &index, |n| key(n % count), true);
    probes(&format!("index get of nothing, {name}"), &index, |n| [key(n % count).as_slice(), b"+"].concat(), false);
    for (direction, part) in [(Direction::Forward, count), (Direction::Backward, count / 10)] {
        spent(&format!("index {direction:?} in chunks, {name}"), part, || {
            let mut chunk = KeyChunk::new();
            let (mut last, mut seen) = (Vec::new(), 0);
            while seen < part {
                let from = if seen == 0 { Bound::Unbounded } else { Bound::Excluded(last.as_slice()) };
                index.next_chunk(from, direction, 128, &mut chunk);
                seen += chunk.len() as u64;
                let Some((key, _)) = chunk.last() else { break };
                last.clear();
                last.extend_from_slice(key);
            }
        });
    }
    let new = flush(&index, (count..count + FLUSH).map(&key), 2, &budget);
    println!("{:<52} {:>9.1} ns", format!("index flush of new keys, {name}"), new / FLUSH as f64);
    let old = flush(&index, (0..FLUSH).map(|n| key(mix(n) % count)), 3, &budget);
    println!("{:<52} {:>9.1} ns", format!("index flush of existing keys, {name}"), old / FLUSH as f64);
    spent(&format!("index sweep, nothing to do, {name}"), count, || {
        let mut cursor = SweepCursor::new();
        while !cursor.is_done() {
            index.sweep_tombstones(|_| true, &mut cursor, 1024, &budget);
        }
    });
    spent(&format!("index sweep of everything, {name}"), count, || {
        let mut cursor = SweepCursor::new();
        while !cursor.is_done() {
            index.sweep_below(L0Id(10), &mut cursor, 1024, &budget);
        }
    });
    assert!(index.is_empty());
}

fn indexes(count: u64) {
    index("8 bytes ascending", count, |n| n.to_be_bytes().to_vec());
    index("16 bytes random", count, |n| uuid(n).to_vec());
    index("40 bytes text", count, |n| format!("tenant:{:04}:customer:account:{:010}", mix(n) % 1000, n).into_bytes());
}

fn run_map() {
    let intervals: Vec<_> = (0..64).map(|run| (L0Id(1 + run * 8), L0Id(8 + run * 8))).collect();
    let map = RunMap::build(&intervals).expect("contiguous");
    let count = 10_000_000;
    time("run map, 64 runs", count, || {
        for n in 0..count {
            black_box(map.run_of(L0Id(1 + mix(n) % 512)));
        }
    });
}

fn main() {
    let number = |arg: String| arg.parse().ok();
    let keys = std::env::args().filter_map(number).next().unwrap_or(1_000_000);
    if std::env::args().any(|arg| arg == "index") {
        return indexes(keys);
    }
    let uuids: Vec<_> = (0..keys).map(uuid).collect();
    let texts: Vec<_> = (0..keys).map(text).collect();
    memtable("16 bytes", &uuids);
    memtable("31 bytes", &texts);
    indexes(keys);
    run_map();
}
