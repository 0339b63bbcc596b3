//! What the primitives cost, in nanoseconds of processor time: `cargo bench -p loosekv-shm`.

#[path = "../tests/common/mod.rs"]
mod common;
use common::*;
use loosekv_shm::{epoch, heap, pin, reserve, scope, Needs, RawLatch, ThreadLatch};
use std::hint::black_box;

/// Processor time, so that a busy machine does not matter much.
fn cpu_nanos() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is alive.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn time(what: &str, rounds: u64, mut f: impl FnMut(u64)) {
    let mut best = f64::MAX;
    for _ in 0..3 {
        let start = cpu_nanos();
        (0..rounds).for_each(&mut f);
        best = best.min((cpu_nanos() - start) as f64 / rounds as f64);
    }
    println!("{what:44} {best:8.1} ns");
}

fn all(kind: &str) {
    const M: u64 = 2_000_000;
    const NEEDS: Needs = Needs::of(&[32, 40, 48, 56, 64, 100]).and(epoch::NEEDS);
    println!("-- {kind}");
    time("pin + unpin", M, |_| drop(pin()));
    {
        let _outer = pin();
        time("nested pin + unpin", M, |_| drop(pin()));
    }
    time("Scope enter + leave", M, |_| scope::with(|| black_box(())));
    time("Needs::reserve", M, |_| black_box(NEEDS.reserve()).expect("room"));
    time("reserve(&[6 sizes])", M, |_| reserve(black_box(&[32, 40, 48, 56, 64, 100])).expect("room"));
    time("box 48 bytes in the scope + free", M, |_| scope::with(|| drop(black_box(Box::new([0u64; 6])))));
    time("box 48 bytes outside + free", M, |_| drop(black_box(Box::new([0u64; 6]))));
    let mut kept: Vec<Box<[u64; 6]>> = Vec::with_capacity(100_000);
    time("box 48 bytes in the scope, freed 100 k later", 2_000_000, |_| {
        if kept.len() == kept.capacity() {
            kept.clear();
        }
        kept.push(scope::with(|| Box::new([0u64; 6])));
    });
    drop(kept);
    time("alloc_block + free_block 1 MiB", 200_000, |_| {
        let b = heap::alloc_block(1 << 20).expect("room");
        // SAFETY: just allocated with that size.
        unsafe { heap::free_block(b, 1 << 20) };
    });
    let latch = ThreadLatch::new();
    time("ThreadLatch shared", M, |_| drop(latch.read()));
    time("ThreadLatch exclusive", M, |_| drop(latch.write()));
    time("retire a box of 48 bytes", M, |_| {
        NEEDS.reserve().expect("room");
        let b = scope::with(|| Box::into_raw(Box::new([0u64; 6])));
        // SAFETY: nobody else knows it.
        unsafe { pin().retire(b) };
    });
    epoch::collect(100);
}

fn main() {
    all("private");
    let size = 1 << 30;
    // SAFETY: the segment is ours.
    unsafe { heap::create(segment(size), size, 1 << 20) };
    all("shared");
    Index::create();
    let index = Index::get_shared();
    let k = |i: u64| Key(mix(i % 200_000), Box::default());
    time("index put, new or there (200 k random keys)", 200_000, |i| index.put(&k(i), i).expect("room"));
    time("index get", 1_000_000, |i| assert!(index.get(&k(i.wrapping_mul(0x9e37_79b1))).is_some()));
    println!("{:?}", heap::stats());
}
