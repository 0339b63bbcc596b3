//! Processes share one key index in a heap that is too small for them: each checks its own keys against a model and keys that
//! always exist, scans see both, and a full heap refuses new keys and never aborts.
//!
//! `LOOSEKV_STRESS_SECONDS` sets how long they work.

use loosekv_engine::host::Budget;
use loosekv_engine::key_index::{IndexEntry, KeyChunk, KeyIndex, SweepCursor};
use loosekv_engine::tree::Direction;
use loosekv_engine::types::L0Id;
use loosekv_shm::{epoch, heap, scope, SharedAlloc, ThreadLatch};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOC: SharedAlloc = SharedAlloc;

const SEGMENT: usize = 6 << 20;
const EMERGENCY: usize = 512 << 10;
const CLIENTS: u64 = 4;
const STABLE: u64 = 500;

struct Shared {
    index: KeyIndex<ThreadLatch>,
    budget: Budget,
}

fn shared() -> &'static Shared {
    // SAFETY: the parent stored it before it forked, and nobody frees it.
    unsafe { &*(heap::root(0).load(Acquire) as *const Shared) }
}

fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Clients' keys and the stable ones lie among one another; a few are long.
fn key(client: u64, n: u64) -> Vec<u8> {
    let mut key = [mix(n).to_be_bytes(), n.to_be_bytes()].concat();
    key.push(client as u8);
    key.extend(std::iter::repeat_n(b'x', if n.is_multiple_of(50) { 700 } else { 0 }));
    key
}

fn at(client: u64, tombstone: bool) -> IndexEntry {
    IndexEntry { l0: L0Id(client), tombstone }
}

fn client(me: u64, time: Duration) {
    let Shared { index, budget } = shared();
    let (start, mut r, mut full, mut rounds) = (Instant::now(), mix(me), 0, 0);
    let mut model: BTreeMap<Vec<u8>, IndexEntry> = BTreeMap::new();
    while start.elapsed() < time || full == 0 {
        rounds += 1;
        r = mix(r);
        let keys: BTreeSet<_> = (0..r % 900).map(|i| key(me, mix(r + i) % 200_000)).collect();
        let entry = at(me, r.is_multiple_of(3));
        let batch: Vec<_> = keys.iter().map(|key| (key.as_slice(), entry)).collect();
        let done = index.raise_batch(&batch, budget).map_or_else(|full| full.done, |()| batch.len());
        model.extend(keys.iter().take(done).map(|key| (key.clone(), entry)));
        for key in keys.iter().skip(done) {
            // Those that were there may have been raised.
            if let Some(known) = model.get_mut(key) {
                *known = index.get(key).expect("it was there");
            }
        }
        if done < batch.len() {
            full += 1;
            if let Some((key, known)) = model.iter_mut().next() {
                index.raise(key, at(me, true), budget).expect("existing keys always can");
                *known = at(me, true);
            }
            let half: Vec<_> = model.iter().step_by(2).map(|(key, entry)| (key.clone(), *entry)).collect();
            for (key, entry) in half {
                assert!(index.remove_if(&key, entry, budget));
                model.remove(&key);
            }
            let mut cursor = SweepCursor::new();
            while !cursor.is_done() {
                index.sweep_tombstones(|l0| l0 == L0Id(me), &mut cursor, 1024, budget);
            }
            model.retain(|_, entry| !entry.tombstone);
        }
        check(me, &model, r);
    }
    let mut cursor = SweepCursor::new();
    while !cursor.is_done() {
        index.sweep_tombstones(|l0| l0 == L0Id(me), &mut cursor, 1024, budget);
    }
    for (key, entry) in model.iter().filter(|(_, entry)| !entry.tombstone) {
        assert!(index.remove_if(key, *entry, budget));
    }
    println!("client {me}: {rounds} rounds, {full} times full");
}

fn check(me: u64, model: &BTreeMap<Vec<u8>, IndexEntry>, r: u64) {
    let index = &shared().index;
    for n in 0..STABLE {
        assert_eq!(index.get(&key(0, n)), Some(at(0, false)), "a key that exists is missed");
    }
    for i in 0..100 {
        let key = key(me, mix(r ^ i) % 200_000);
        assert_eq!(index.get(&key), model.get(&key).copied());
    }
    let direction = if r.is_multiple_of(2) { Direction::Forward } else { Direction::Backward };
    let (mut chunk, mut last, mut stable, mut own) = (KeyChunk::new(), None::<Vec<u8>>, 0, 0);
    loop {
        let from = last.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_slice()));
        index.next_chunk(from, direction, 200, &mut chunk);
        for (key, entry) in chunk.iter() {
            let onwards = |last: &Vec<u8>| match direction {
                Direction::Forward => last.as_slice() < key,
                Direction::Backward => last.as_slice() > key,
            };
            assert!(last.as_ref().is_none_or(onwards), "twice or out of order");
            last = Some(key.to_vec());
            stable += u64::from(entry.l0.0 == 0);
            if entry.l0.0 == me {
                own += 1;
                assert_eq!(model.get(key), Some(&entry));
            }
        }
        if chunk.is_complete() {
            break;
        }
    }
    assert_eq!((stable, own), (STABLE, model.len()));
}

fn segment() -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let mem = unsafe { libc::mmap(std::ptr::null_mut(), SEGMENT, protection, flags, -1, 0) };
    assert_ne!(mem, libc::MAP_FAILED);
    mem.cast()
}

fn fork(run: impl FnOnce()) -> i32 {
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        0 => {
            let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_ok();
            loosekv_shm::leave();
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(if ok { 0 } else { 101 }) }
        }
        pid => pid,
    }
}

fn main() {
    let seconds = std::env::var("LOOSEKV_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(5);
    // SAFETY: the segment is ours, and no other process is attached.
    unsafe { heap::create(segment(), SEGMENT, EMERGENCY) };
    loosekv_shm::reserve(&[std::mem::size_of::<Shared>()]).expect("room in a new heap");
    let made = scope::with(|| Box::into_raw(Box::new(Shared { index: KeyIndex::new(), budget: Budget::default() })));
    heap::root(0).store(made as usize, Release);
    let Shared { index, budget } = shared();
    budget.limit.store(u64::MAX, Relaxed);
    for n in 0..STABLE {
        index.raise(&key(0, n), at(0, false), budget).expect("room");
    }
    loosekv_shm::leave();
    let children: Vec<_> = (1..=CLIENTS).map(|me| fork(|| client(me, Duration::from_secs(seconds)))).collect();
    for pid in children {
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "a client ended with status {status:x}");
    }
    assert_eq!(index.len() as u64, STABLE);
    assert_eq!(index.bytes(), budget.used.load(Relaxed));
    epoch::collect(10_000);
    println!("{} bytes for {STABLE} keys, {:?}", index.bytes(), heap::stats());
    loosekv_shm::leave();
}
