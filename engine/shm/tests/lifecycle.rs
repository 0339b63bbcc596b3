//! Life of a heap and of its processes: before one is attached, scope and routing, forks with full magazines, exits while
//! pinned, creation anew, and that the sizes named by `epoch::RESERVE` are the ones that epochs allocate.

mod common;
use common::*;
use loosekv_shm::{epoch, heap, latch, pin, scope, RawLatch, Scope, ThreadLatch};
use std::panic::{catch_unwind, AssertUnwindSafe};

const SEGMENT: usize = 16 << 20;

fn create(mem: *mut u8) {
    // SAFETY: the segment is ours, no other process is attached (any more).
    unsafe { heap::create(mem, SEGMENT, 1 << 20) };
    Index::create();
}

fn without_a_heap_everything_is_private() {
    assert!(!heap::attached());
    assert_eq!(heap::base(), 0);
    let v = scope::with(|| {
        assert!(!scope::active());
        vec![1u8; 100]
    });
    assert!(!heap::contains(v.as_ptr()));
    let block = heap::alloc_block(1 << 20).expect("memory");
    assert!(block.as_ptr().addr().is_multiple_of(64) && !heap::contains(block.as_ptr()));
    // SAFETY: from alloc_block, with that size.
    unsafe { heap::free_block(block, 1 << 20) };
    drop(pin());
    epoch::detach();
    heap::flush_magazines();
    assert_eq!(heap::stats(), heap::HeapStats::default());
}

fn values_live_where_they_were_born() {
    let mut shared: Vec<u64> = scope::with(|| Vec::with_capacity(1));
    let mut private: Vec<u64> = Vec::with_capacity(1);
    let mut s = String::new();
    scope::with(|| {
        private.extend(0..10_000);
        scope::outside(|| s.push_str("outside"));
        assert!(scope::active());
    });
    shared.extend(0..10_000);
    assert!(!heap::contains(private.as_ptr()) && !heap::contains(s.as_ptr()));
    assert!(heap::contains(shared.as_ptr()));
    assert!(shared.iter().eq(private.iter()));
    shared.truncate(3);
    shared.shrink_to_fit();
    assert_eq!(shared, [0, 1, 2]);
    let zeroes = scope::with(|| vec![0u64; 1000]);
    assert!(heap::contains(zeroes.as_ptr()) && zeroes.iter().all(|z| *z == 0));
    #[repr(align(128))]
    struct Line([u8; 200]);
    #[repr(align(1024))]
    struct Wide(u8);
    let (line, wide) = scope::with(|| (Box::new(Line([7; 200])), Box::new(Wide(1))));
    assert!((&raw const *line).addr().is_multiple_of(128) && (&raw const *wide).addr().is_multiple_of(1024));
    assert!(heap::contains(&raw const *line) && heap::contains(&raw const *wide));
    assert_eq!(line.0[199] + wide.0, 8);
}

fn panics_restore_the_scope() {
    let caught = catch_unwind(AssertUnwindSafe(|| scope::with(|| panic!("on purpose {}", 1))));
    assert!(caught.is_err() && !scope::active());
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _scope = Scope::enter();
        scope::outside(|| panic!("on purpose {}", 2))
    }));
    assert!(caught.is_err() && !scope::active());
    // What a longjmp over Rust frames leaves behind:
    std::mem::forget(Scope::enter());
    std::mem::forget(pin());
    let latch = ThreadLatch::new();
    std::mem::forget(latch.read());
    assert!(scope::active() && epoch::pinned());
    loosekv_shm::recover();
    assert!(!scope::active() && !epoch::pinned() && latch::held() == 0);
}

/// The parent does not flush: the child must not use the parent's magazines or its handle.
fn a_fork_inherits_nothing() {
    let _held = pin();
    let parents: Vec<Box<u64>> = scope::with(|| {
        let mut v = scope::outside(Vec::new);
        for _ in 0..10 {
            let b = Box::new(1);
            scope::outside(|| v.push(b));
        }
        v
    });
    let (mine, free) = (heap::stats().mine, heap::stats().free);
    assert!(mine > 0 && free > 0);
    let child = fork(|| {
        assert_eq!(heap::stats().mine, 0);
        assert!(!epoch::pinned());
        scope::with(|| (0..5000).for_each(|_| std::mem::forget(Box::new(2u64))));
        drop(pin());
    });
    let more = scope::with(|| {
        let mut v: Vec<Box<u64>> = scope::outside(Vec::new);
        for _ in 0..5000 {
            let b = Box::new(1);
            scope::outside(|| v.push(b));
        }
        v
    });
    assert_eq!(child.wait(), Ok(()));
    assert!(parents.iter().chain(&more).all(|b| **b == 1), "the child got our objects");
    assert!(epoch::pinned());
}

/// A process that exits while pinned, without unwinding, lets the others reclaim; one that is killed does not.
fn exits_unpin_and_kills_do_not() {
    let retired_are_freed = || {
        let before = heap::stats().blocks;
        let big = scope::with(|| Box::into_raw(Box::new([0u64; 20_000])));
        // SAFETY: nobody else knows it.
        unsafe { pin().retire(big) };
        assert!(heap::stats().blocks > before);
        epoch::collect(1000);
        heap::stats().blocks == before
    };
    loosekv_shm::leave();
    let child = fork(|| std::mem::forget(pin())); // `fork` calls leave
    assert_eq!(child.wait(), Ok(()));
    assert!(retired_are_freed());
    let (child, told) = (fork_pinned_sleeper(), ());
    child.kill();
    assert_eq!(child.wait(), Err(-libc::SIGKILL));
    assert_eq!(told, ());
    assert!(!retired_are_freed(), "a killed process keeps its pin until the heap is created anew");
}

fn fork_pinned_sleeper() -> Child {
    heap::root(5).store(0, std::sync::atomic::Ordering::SeqCst);
    let child = fork(|| {
        let _pin = pin();
        heap::root(5).store(1, std::sync::atomic::Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_secs(100));
    });
    while heap::root(5).load(std::sync::atomic::Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    child
}

fn creation_forgets_everything(mem: *mut u8) {
    let index = Index::get_shared();
    index.put(&key(1, 1), 1).expect("room");
    heap::root(7).store(77, std::sync::atomic::Ordering::SeqCst);
    std::mem::forget(pin());
    std::mem::forget(Scope::enter());
    create(mem);
    assert_eq!(heap::root(7).load(std::sync::atomic::Ordering::SeqCst), 0);
    assert!(!epoch::pinned() && !scope::active());
    let index = Index::get_shared();
    assert_eq!(index.get(&key(1, 1)), None);
    index.put(&key(1, 1), 2).expect("room");
    assert_eq!(index.get(&key(1, 1)), Some(2));
}

fn epochs_allocate_what_they_say(mem: *mut u8) {
    create(mem);
    loosekv_shm::leave();
    let carved = || heap::class_stats().map(|c| (c.bytes, c.carved)).collect::<Vec<_>>();
    // The collector itself, and what the index is made of.
    let before: Vec<usize> = carved().into_iter().map(|(bytes, _)| bytes).collect();
    epoch::attach().expect("room");
    let with_reserve = carved();
    for (bytes, _) in &with_reserve {
        assert!(before.contains(bytes) || epoch::RESERVE.iter().any(|r| r <= bytes && bytes - r < r / 4), "{bytes}");
    }
    for _ in 0..1000 {
        let p = pin();
        for _ in 0..100 {
            // SAFETY: captures nothing.
            unsafe { p.defer_unchecked(|| ()) };
        }
        drop(p);
        epoch::collect(1);
    }
    epoch::detach();
    assert_eq!(
        carved().iter().map(|c| c.0).collect::<Vec<_>>(),
        with_reserve.iter().map(|c| c.0).collect::<Vec<_>>(),
        "epochs allocated a size that they do not name"
    );
    loosekv_shm::leave();
}

fn main() {
    std::panic::set_hook(Box::new(|info| {
        if !info.to_string().contains("on purpose") {
            eprintln!("{info}");
        }
    }));
    without_a_heap_everything_is_private();
    let mem = segment(SEGMENT);
    create(mem);
    values_live_where_they_were_born();
    panics_restore_the_scope();
    a_fork_inherits_nothing();
    exits_unpin_and_kills_do_not();
    creation_forgets_everything(mem);
    epochs_allocate_what_they_say(mem);
    // SAFETY: nothing of the heap is used any more.
    unsafe { heap::detach() };
    without_a_heap_everything_is_private();
}
