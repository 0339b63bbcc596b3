//! Processes work on one skip list in the shared heap, each checked against a model of its own keys, all on hot keys whose
//! values carry checksums, with large blocks on the side. Some are killed and started again.

mod common;
use common::*;
use loosekv_shm::{epoch, heap, scope, Full};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const SEGMENT: usize = 128 << 20;
const KEYS: u64 = 2000;
const HOT: u64 = 99;
const HOT_KEYS: u64 = 300;
/// Longer than any machine may stand still.
const UNTIL_KILLED: Duration = Duration::from_secs(3600);

/// Blocks filled with their owner's mark, checked when freed.
#[derive(Default)]
struct Blocks(Vec<(NonNull<u8>, usize)>);

impl Blocks {
    fn step(&mut self, client: u64, r: u64) {
        if r & 1 == 0 && self.0.len() < 6 {
            let bytes = 20_000 + (mix(r) % 500_000) as usize;
            if let Some(block) = heap::alloc_block(bytes) {
                assert!(block.as_ptr().addr().is_multiple_of(64) && heap::contains(block.as_ptr()));
                // SAFETY: ours, and that long.
                unsafe { block.as_ptr().write_bytes(client as u8, bytes) };
                self.0.push((block, bytes));
            }
        } else if let Some((block, bytes)) = self.0.pop() {
            // SAFETY: ours, that long, written.
            unsafe {
                let all = std::slice::from_raw_parts(block.as_ptr(), bytes);
                assert!(all.iter().all(|b| *b == client as u8), "somebody wrote into our block");
                heap::free_block(block, bytes);
            }
        }
    }
}

/// Works until the time is over; then removes what it has, if it is to. Where processes are killed their pins stay, nothing
/// is reclaimed any more and the heap may fill: then being refused is right.
fn client(client: u64, seed: u64, time: Duration, clean: bool, kills: bool) {
    if epoch::attach().is_err() {
        assert!(kills, "full");
        loop {
            std::thread::sleep(time); // until killed
        }
    }
    let index = Index::get_shared();
    // Left over from an earlier life that was killed.
    let mut model: BTreeMap<Key, u64> = index.scan(&low(client), &low(client + 1)).into_iter().collect();
    let mut blocks = Blocks::default();
    let mut r = mix(seed ^ mix(client));
    let start = Instant::now();
    let mut operations = 0u64;
    while operations & 63 != 0 || start.elapsed() < time {
        operations += 1;
        r = mix(r);
        let k = key(client, (r >> 8) % KEYS);
        match r % 100 {
            0..=34 => match index.put(&k, r >> 20) {
                Ok(()) => drop(model.insert(k, r >> 20)),
                Err(Full) => assert!(kills, "full"),
            },
            35..=54 => match index.remove(&k) {
                Ok(removed) => assert_eq!(removed, model.remove(&k), "remove {k:?}"),
                Err(Full) => assert!(kills, "full"),
            },
            55..=79 => assert_eq!(index.get(&k), model.get(&k).copied(), "get {k:?}"),
            80 => {
                let to = Key(k.0 + (1 << 34), Box::default()).min(low(client + 1));
                let found = index.scan(&k, &to);
                assert!(found.iter().map(|(k, v)| (k, v)).eq(model.range(k..to)), "scan");
            }
            81 => blocks.step(client, r >> 8),
            n => {
                let k = key(HOT, (r >> 8) % HOT_KEYS);
                match n % 3 {
                    0 => assert!(index.put(&k, checked(k.0, r >> 32)).is_ok() || kills, "full"),
                    1 => match index.remove(&k) {
                        Ok(removed) => assert!(removed.is_none_or(|v| is_checked(k.0, v)), "hot value"),
                        Err(Full) => assert!(kills, "full"),
                    },
                    _ => assert!(index.get(&k).is_none_or(|v| is_checked(k.0, v)), "hot value"),
                }
            }
        }
    }
    let found = index.scan(&low(client), &low(client + 1));
    assert!(found.iter().map(|(k, v)| (k, v)).eq(model.iter()), "state at the end");
    if clean {
        for k in model.keys() {
            assert!(index.remove(k).expect("room").is_some());
        }
    }
    while !blocks.0.is_empty() {
        blocks.step(client, 1);
    }
}

fn seconds() -> f64 {
    std::env::var("LOOSEKV_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2.0)
}

fn create(mem: *mut u8) {
    // SAFETY: the segment is ours, no other process is attached (any more).
    unsafe { heap::create(mem, SEGMENT, 1 << 20) };
    Index::create();
    loosekv_shm::leave();
}

/// Nobody is killed: afterwards everything is free again.
fn models_agree_and_nothing_leaks(mem: *mut u8) {
    create(mem);
    let before = heap::stats();
    let children: Vec<_> =
        (0..4).map(|c| fork(move || client(c, 11, Duration::from_secs_f64(seconds()), true, false))).collect();
    for c in children {
        assert_eq!(c.wait(), Ok(()));
    }
    let index = Index::get_shared();
    for j in 0..HOT_KEYS {
        index.remove(&key(HOT, j)).expect("room");
    }
    assert_eq!(index.len(), 0);
    epoch::collect(100_000);
    loosekv_shm::leave();
    epoch::collect(100); // frees what leaving has retired
    loosekv_shm::leave();
    let after = heap::stats();
    assert_eq!(after.blocks, before.blocks, "blocks leaked");
    // The last bag or two, and a participant, wait for the next collection.
    assert!(after.live < before.live + 16_384, "leaked: {before:?} {after:?}");
    println!("no leak: live {} -> {} of {} carved", before.live, after.live, after.carved);
}

/// Children are killed at random moments and started again, while the others go on undisturbed; then, as after a crash
/// restart, the heap is created anew.
fn killed_processes_disturb_nobody(mem: *mut u8) {
    create(mem);
    let end = Instant::now() + Duration::from_secs_f64(seconds());
    let whole = Duration::from_secs_f64(seconds());
    let survivors: Vec<_> = (0..2).map(|c| fork(move || client(c, 5, whole, false, true))).collect();
    let mut victims: Vec<_> = (2..5).map(|c| fork(move || client(c, 5, UNTIL_KILLED, false, true))).collect();
    let mut kills = 0;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_micros(500 + mix(kills) % 20_000));
        let i = kills as usize % victims.len();
        let client_number = 2 + i as u64;
        victims[i].kill();
        let again = fork(move || client(client_number, kills, UNTIL_KILLED, false, true));
        assert_eq!(std::mem::replace(&mut victims[i], again).wait(), Err(-libc::SIGKILL), "died of something else");
        kills += 1;
    }
    for c in survivors {
        assert_eq!(c.wait(), Ok(()));
    }
    for c in victims {
        c.kill();
        assert_eq!(c.wait(), Err(-libc::SIGKILL));
    }
    println!("{kills} kills survived");
    models_agree_and_nothing_leaks(mem);
}

/// Processes that carve and give back at the same time, as fast as they can, never get the same object.
fn an_object_belongs_to_one_process(mem: *mut u8) {
    create(mem);
    let (ready, processes) = (heap::root(1), 4);
    let children: Vec<_> = (1..=processes)
        .map(|c| {
            fork(move || {
                epoch::attach().expect("room");
                let mut mine: Vec<Box<[u64; 3]>> = Vec::with_capacity(200_000);
                ready.fetch_add(1, SeqCst);
                while ready.load(SeqCst) < processes {
                    std::hint::spin_loop();
                }
                for round in 0..5u64 {
                    while mine.len() < mine.capacity() {
                        let stamp = (c as u64) << 32 | mine.len() as u64;
                        mine.push(scope::with(|| Box::new([stamp, round, stamp])));
                    }
                    for (i, object) in mine.iter().enumerate() {
                        let stamp = (c as u64) << 32 | i as u64;
                        assert!(object[0] == stamp && object[2] == stamp, "somebody else has our object");
                    }
                    mine.truncate(1000 * round as usize);
                }
            })
        })
        .collect();
    for c in children {
        assert_eq!(c.wait(), Ok(()));
    }
}

fn main() {
    let mem = segment(SEGMENT);
    an_object_belongs_to_one_process(mem);
    models_agree_and_nothing_leaks(mem);
    killed_processes_disturb_nobody(mem);
}
