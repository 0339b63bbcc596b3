//! A key index in a heap that is too small for it is filled, loses its oldest runs, and is filled again, as where a flush has to make
//! room and the index is completed afterwards. What leaves of one size have left is of use to those of other sizes: each time most of the
//! keys find room that did the first time, and hardly more of the heap is taken.

use loosekv_engine::host::Budget;
use loosekv_engine::key_index::{IndexEntry, KeyIndex, SweepCursor};
use loosekv_engine::types::L0Id;
use loosekv_shm::{epoch, heap, scope, SharedAlloc, ThreadLatch};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

#[global_allocator]
static ALLOC: SharedAlloc = SharedAlloc;

const SEGMENT: usize = 32 << 20;
const EMERGENCY: usize = 1 << 20;
/// Of it, what leaves may take.
const BOUND: usize = 16 << 20;
const RUN: u64 = 40_000;
/// Keys that a flush or a rebuild puts in at once.
const BATCH: usize = 400;
const ROUNDS: u64 = 12;
/// Of the keys that found room the first time, in percent, what finds it later at least.
const AGAIN: u64 = 60;
/// What collecting garbage, and leaves that are made to free something, may take beyond the bound.
const BEYOND: usize = BOUND / 16 + (512 << 10);

type Index = KeyIndex<ThreadLatch>;

fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The keys of a run, in order.
fn keys(run: u64) -> Vec<[u8; 16]> {
    let key = |n: u64| (u128::from(mix(n)) << 64 | u128::from(n)).to_be_bytes();
    let mut keys: Vec<_> = (run * RUN..(run + 1) * RUN).map(key).collect();
    keys.sort_unstable();
    keys
}

/// False: not all of them found room.
fn put(index: &Index, budget: &Budget, run: u64, first: bool) -> bool {
    let (keys, entry) = (keys(run), IndexEntry { l0: L0Id(run + 1), tombstone: false });
    let all_in = keys.chunks(BATCH).all(|keys| {
        let batch: Vec<_> = keys.iter().map(|key| (key.as_slice(), entry)).collect();
        if first { index.raise_first(&batch, budget) } else { index.raise_batch(&batch, budget) }.is_ok()
    });
    epoch::collect(1000);
    all_in
}

fn sweep_below(index: &Index, budget: &Budget, floor: u64) {
    let mut cursor = SweepCursor::new();
    while !cursor.is_done() {
        index.sweep_below(L0Id(floor + 1), &mut cursor, 1024, budget);
    }
    index.keys_had_to_go();
    epoch::collect(1000);
}

fn main() {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), SEGMENT, protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    // SAFETY: the segment is ours, and no other process is attached.
    unsafe { heap::create(memory.cast(), SEGMENT, EMERGENCY) };
    heap::limit_growth(BOUND, 0);
    let budget = Budget::default();
    budget.limit.store(BOUND as u64, Relaxed);
    let index: &Index = scope::with(|| Box::leak(Box::new(KeyIndex::new())));
    let mut runs = VecDeque::new();
    while put(index, &budget, runs.len() as u64, false) {
        runs.push_back(runs.len() as u64);
    }
    let most = index.len() as u64;
    let mut next = runs.len() as u64 + 1;
    println!("{most} keys of {} runs found room, {} bytes", runs.len(), index.bytes());
    for round in 0..ROUNDS {
        // A part of the runs goes, another one each time, and those that come are as many keys, or more.
        let gone = runs.len() * (1 + round as usize % 4) / 6;
        runs.drain(..gone);
        sweep_below(index, &budget, runs.front().copied().unwrap_or(next));
        let left = index.len() as u64;
        while put(index, &budget, next, round % 2 == 0) {
            runs.push_back(next);
            next += 1;
        }
        next += 1;
        let now = index.len() as u64;
        let taken = heap::stats().carved;
        println!("round {round}: {left} keys were left, then {now} found room, {} bytes of {taken}", index.bytes());
        assert!(now * 100 >= most * AGAIN, "{now} keys, {most} the first time");
        assert!(taken <= BOUND + BEYOND, "{taken} bytes are taken");
    }
}
