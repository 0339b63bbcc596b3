//! A full heap refuses and never aborts; removing works in it, and what is freed can be used again.

mod common;
use common::*;
use loosekv_shm::{epoch, heap, reserve, reserve_emergency, scope, Full, Needs};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const SEGMENT: usize = 8 << 20;
const EMERGENCY: usize = 512 << 10;

fn create(mem: *mut u8) {
    // SAFETY: the segment is ours, no other process is attached (any more).
    unsafe { heap::create(mem, SEGMENT, EMERGENCY) };
    Index::create();
    loosekv_shm::leave();
}

/// While a process that is pinned waits for a core, garbage piles up and even removing may be refused: then wait for it.
fn remove(index: &Index, key: &Key) -> Option<u64> {
    for _ in 0..10_000 {
        if let Ok(removed) = index.remove(key) {
            return removed;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let bags = heap::class_stats().find(|c| c.bytes == 2304);
    panic!("removing was refused for ten seconds: {bags:?} {:?}", heap::stats());
}

fn several_processes_fill_it_and_empty_it(mem: *mut u8) {
    create(mem);
    let children: Vec<_> = (0..4u64)
        .map(|c| {
            fork(move || {
                let index = Index::get_shared();
                for round in 0..5 {
                    let mut n = 0u64;
                    while index.put(&key(c, n), n).is_ok() {
                        n += 1;
                    }
                    assert!(n > 0 || round > 0, "nothing fits");
                    for j in 0..n {
                        assert_eq!(index.get(&key(c, j)), Some(j));
                        assert_eq!(remove(index, &key(c, j)), Some(j));
                    }
                    epoch::collect(50);
                }
            })
        })
        .collect();
    for c in children {
        assert_eq!(c.wait(), Ok(()));
    }
    let stats = heap::stats();
    assert!(stats.refused >= 4, "{stats:?}");
    epoch::collect(10_000);
    Index::get_shared().put(&key(1, 1), 1).expect("room again");
    loosekv_shm::leave();
    println!("full: {stats:?}");
}

fn blocks_end_with_none_and_merge_again(mem: *mut u8) {
    create(mem);
    let mut blocks = vec![];
    for bytes in [1 << 20, 100_000, 32 << 10, 9000] {
        while let Some(b) = heap::alloc_block(bytes) {
            blocks.push((b, bytes));
        }
    }
    let stats = heap::stats();
    assert!(stats.free <= stats.emergency + (32 << 10), "{stats:?}");
    assert_eq!(stats.emergencies, 0, "blocks must not use the emergency area");
    assert_eq!(reserve(&[64 << 10]), Err(Full));
    assert_eq!(reserve_emergency(&[64 << 10]), Ok(()));
    heap::release_reserved();
    for (b, bytes) in blocks.drain(..) {
        // SAFETY: from alloc_block, with that size.
        unsafe { heap::free_block(b, bytes) };
    }
    assert_eq!(heap::stats().blocks, 0);
    // Chunks of small blocks stay with small objects; the rest is in one piece again.
    let most = heap::stats().free - heap::stats().emergency - (1 << 20);
    let all = heap::alloc_block(most).expect("one piece");
    // SAFETY: from alloc_block, with that size.
    unsafe { heap::free_block(all, most) };
    loosekv_shm::leave();
}

fn a_reservation_holds_when_others_take_everything(mem: *mut u8) {
    create(mem);
    const SIZES: [usize; 5] = [16, 100, 1000, 10_000, 200_000];
    reserve(&SIZES).expect("room");
    reserve(&SIZES).expect("still there");
    let before = heap::stats();
    assert_eq!(reserve(&SIZES).map(|()| heap::stats()), Ok(before), "reserving twice takes nothing more");
    // Another process takes everything, the emergency area too, and stays.
    let taker = fork(|| {
        let mut taken = 0u64;
        for bytes in [1 << 20, 32 << 10] {
            while let Some(b) = heap::alloc_block(bytes) {
                taken += b.as_ptr().addr() as u64 & 1;
            }
        }
        let mut c = Needs::MAX_BYTES;
        while c >= 16 {
            while Needs::of(&[c]).reserve_emergency().is_ok() {
                std::mem::forget(scope::with(|| Vec::<u8>::with_capacity(c)));
            }
            c /= 2;
        }
        assert_eq!(taken, 0);
    });
    assert_eq!(taker.wait(), Ok(()));
    assert_eq!(reserve(&[5000]), Err(Full));
    assert!(scope::try_box([0u8; 3000]).is_err());
    let boxes = scope::with(|| {
        let mut all: Vec<Vec<u8>> = scope::outside(Vec::new);
        for bytes in SIZES {
            let times = if bytes <= Needs::MAX_BYTES { Needs::OBJECTS } else { 1 };
            for _ in 0..times {
                let v = Vec::with_capacity(bytes);
                scope::outside(|| all.push(v));
            }
        }
        all
    });
    assert!(boxes.iter().all(|b| heap::contains(b.as_ptr())));
    assert_eq!(boxes.len(), 4 * Needs::OBJECTS + 1);
    let mut large: Vec<u8> = vec![];
    assert!(scope::with(|| large.try_reserve_exact(300_000)).is_err(), "try_reserve fails without an abort");
    drop(boxes);
    loosekv_shm::leave();
}

/// Reading, removing and leaving must go on when nothing is left, emergency area included.
fn readers_pin_in_an_exhausted_heap(mem: *mut u8) {
    create(mem);
    let index = Index::get_shared();
    let mut n = 0;
    while index.put(&key(3, n), n).is_ok() {
        n += 1;
    }
    epoch::attach().expect("removing works");
    let mut c = Needs::MAX_BYTES;
    while c >= 16 {
        // All but the sizes that epochs use, for what is in use of these comes back.
        while !epoch::RESERVE.iter().any(|r| Needs::of(&[*r]) == Needs::of(&[c]))
            && Needs::of(&[c]).reserve_emergency().is_ok()
        {
            std::mem::forget(scope::with(|| Vec::<u8>::with_capacity(c)));
        }
        c -= 8;
    }
    assert_eq!(Needs::of(&[100]).reserve_emergency(), Err(Full));
    for j in 0..n {
        assert_eq!(index.get(&key(3, j)), Some(j));
    }
    let mut removed = 0;
    while removed < n && remove(index, &key(3, removed)) == Some(removed) {
        removed += 1;
    }
    assert_eq!(removed, n, "bags come back while removing");
    let stats = heap::stats();
    println!("exhausted: {stats:?}");
    loosekv_shm::leave();
}

/// A process that is pinned, until it is told otherwise.
fn sleep_pinned(unpin: &'static AtomicUsize) -> Child {
    let pinned = heap::root(1);
    let sleeper = fork(|| {
        let pin = loosekv_shm::pin();
        pinned.store(1, SeqCst);
        while unpin.load(SeqCst) == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        drop(pin);
    });
    while pinned.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    sleeper
}

/// A process stays pinned while others retire all they have: they are refused in the end, and nobody aborts, not while
/// they wait and not when all that garbage is collected.
fn a_stuck_pin_ends_in_refusals(mem: *mut u8) {
    create(mem);
    let index = Index::get_shared();
    let keys = 30_000;
    for c in 0..2 {
        for j in 0..keys {
            index.put(&key(c, j), j).expect("room");
        }
    }
    loosekv_shm::leave();
    let (unpin, refused, attached) = (heap::root(2), heap::root(3), heap::root(4));
    let sleeper = sleep_pinned(unpin);
    let removers: Vec<_> = (0..2u64)
        .map(|c| {
            fork(move || {
                epoch::attach().expect("room");
                attached.fetch_add(1, SeqCst);
                while attached.load(SeqCst) < 2 {
                    std::thread::yield_now();
                }
                // Garbage of its own making, one bag for 64 boxes, until none is left for garbage.
                while epoch::NEEDS.and(Needs::of(&[16])).reserve_emergency().is_ok() {
                    let boxed = scope::with(|| Box::into_raw(Box::new(c)));
                    // SAFETY: nobody else knows it.
                    unsafe { loosekv_shm::pin().retire(boxed) };
                }
                let mut j = 0;
                for _ in 0..20 {
                    // What the other one has given up meanwhile may be enough for some.
                    while j < keys && index.remove(&key(c, j)) == Ok(Some(j)) {
                        j += 1;
                    }
                    assert!(j < keys, "never refused");
                    assert_eq!(index.get(&key(c, j)), Some(j), "reading goes on");
                    for _ in 0..500 {
                        drop(loosekv_shm::pin());
                    }
                }
                refused.fetch_add(1, SeqCst);
                for j in j..keys {
                    assert_eq!(remove(index, &key(c, j)), Some(j));
                }
            })
        })
        .collect();
    while refused.load(SeqCst) < 2 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    println!("stuck: {:?}", heap::stats());
    unpin.store(1, SeqCst);
    for c in removers.into_iter().chain([sleeper]) {
        assert_eq!(c.wait(), Ok(()));
    }
    assert_eq!(index.len(), 0);
}

/// Where not even a bag is left, who collects does without, and who comes is refused a place: neither aborts.
fn who_collects_in_an_exhausted_heap(mem: *mut u8) {
    create(mem);
    let unpin = heap::root(2);
    let sleeper = sleep_pinned(unpin);
    let collector = fork(|| {
        epoch::attach().expect("room");
        let boxes: Vec<*mut u64> =
            (0..SEGMENT / epoch::BAG).map(|n| scope::with(|| Box::into_raw(Box::new(n as u64)))).collect();
        let mut in_vain = 0;
        for boxed in boxes {
            let before = heap::stats().live;
            // SAFETY: nobody else knows it.
            unsafe { loosekv_shm::pin().retire(boxed) };
            epoch::collect(1);
            in_vain += usize::from(heap::stats().live == before);
            if in_vain == 16 {
                break;
            }
        }
        assert_eq!(in_vain, 16, "there were always bags");
        assert!(!epoch::drain(3));
    });
    let collected = collector.wait();
    let late = fork(|| {
        assert_eq!(epoch::attach(), Err(Full));
        epoch::collect(3);
        assert!(!epoch::drain(3));
    });
    let came = late.wait();
    unpin.store(1, SeqCst);
    assert_eq!((collected, came, sleeper.wait()), (Ok(()), Ok(()), Ok(())));
}

fn main() {
    let mem = segment(SEGMENT);
    several_processes_fill_it_and_empty_it(mem);
    blocks_end_with_none_and_merge_again(mem);
    a_reservation_holds_when_others_take_everything(mem);
    readers_pin_in_an_exhausted_heap(mem);
    a_stuck_pin_ends_in_refusals(mem);
    who_collects_in_an_exhausted_heap(mem);
}
