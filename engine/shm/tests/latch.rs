//! A latch in the segment excludes between processes, and nobody waits for ever.

mod common;
use common::*;
use loosekv_shm::{heap, scope, RawLatch, ThreadLatch};
use std::cell::UnsafeCell;
use std::time::Instant;

struct Counters {
    latch: ThreadLatch,
    pair: UnsafeCell<(u64, u64)>,
}

const ROUNDS: u64 = 300_000;

fn main() {
    let mem = segment(4 << 20);
    // SAFETY: the segment is ours.
    unsafe { heap::create(mem, 4 << 20, 0) };
    let counters =
        scope::with(|| Box::leak(Box::new(Counters { latch: ThreadLatch::new(), pair: UnsafeCell::new((0, 0)) })));
    let counters: &'static Counters = counters;
    loosekv_shm::leave();
    let start = Instant::now();
    let children: Vec<_> = (0..4u64)
        .map(|c| {
            fork(move || {
                let mut tries = 0;
                for r in 0..ROUNDS {
                    if (r + c) % 3 == 0 {
                        let guard = if r % 2 == 0 { counters.latch.try_write() } else { None };
                        tries += u64::from(guard.is_some());
                        let _guard = guard.unwrap_or_else(|| counters.latch.write());
                        // SAFETY: held exclusively.
                        let pair = unsafe { &mut *counters.pair.get() };
                        pair.0 += 1;
                        if r % 64 == 0 {
                            std::thread::yield_now(); // so that somebody else meets it held
                        }
                        pair.1 += 1;
                    } else {
                        let _guard = counters.latch.read();
                        // SAFETY: held shared.
                        let pair = unsafe { std::ptr::read_volatile(counters.pair.get()) };
                        assert_eq!(pair.0, pair.1);
                    }
                }
                assert!(tries > 0);
            })
        })
        .collect();
    for c in children {
        assert_eq!(c.wait(), Ok(()));
    }
    // SAFETY: the others have ended.
    assert_eq!(unsafe { *counters.pair.get() }, (4 * ROUNDS / 3, 4 * ROUNDS / 3));
    println!("{} acquisitions in {:?}", 4 * ROUNDS, start.elapsed());
    assert!(counters.latch.try_write().is_some());
}
