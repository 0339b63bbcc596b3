//! Memory of small objects that are free serves blocks and objects of other sizes; growth leaves room for blocks.

mod common;
use common::*;
use loosekv_shm::{heap, reserve, reserve_growth, scope, vacant, Full, Needs};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

const SEGMENT: usize = 16 << 20;
const EMERGENCY: usize = 512 << 10;
const BOUND: usize = 10 << 20;
const BLOCK: usize = 1 << 20;

fn create(mem: *mut u8) {
    // SAFETY: the segment is ours, no other process is attached (any more).
    unsafe { heap::create(mem, SEGMENT, EMERGENCY) };
    heap::limit_growth(BOUND, 0);
    loosekv_shm::leave();
}

type Object = Box<[u64]>;

fn object(bytes: usize, mark: u64) -> Object {
    scope::with(|| vec![mark; bytes / 8].into_boxed_slice())
}

/// Objects of this size until there is no room for another.
fn fill(bytes: usize) -> Vec<Object> {
    let mut all = Vec::new();
    while reserve_growth(&[bytes]).is_ok() {
        all.push(object(bytes, bytes as u64));
    }
    all
}

fn take_blocks(bytes: usize) -> Vec<NonNull<u8>> {
    std::iter::from_fn(|| heap::alloc_block(bytes)).collect()
}

fn give(blocks: Vec<NonNull<u8>>, bytes: usize) {
    for block in blocks {
        // SAFETY: from alloc_block, with that size.
        unsafe { heap::free_block(block, bytes) };
    }
}

/// Bytes of the segment that are memory.
fn resident(mem: *mut u8) -> usize {
    let mut pages = vec![0u8; SEGMENT / 4096];
    // SAFETY: a vector with a byte for each page of the segment, which begins with one.
    let done = unsafe { libc::mincore(mem.cast(), SEGMENT, pages.as_mut_ptr()) };
    assert_eq!(done, 0);
    pages.iter().filter(|page| **page & 1 == 1).count() * 4096
}

fn free_chunks_are_the_kernels(mem: *mut u8) {
    create(mem);
    let kept = object(1000, 7);
    let blocks = take_blocks(BLOCK);
    for block in &blocks {
        // SAFETY: a block of that size.
        unsafe { block.as_ptr().write_bytes(9, BLOCK) };
    }
    assert_eq!(vacant::give_to_kernel(), 0, "nothing is free");
    let last = blocks.len() - 1;
    let (held, freed) = (blocks[last], blocks[..last].to_vec());
    give(freed, BLOCK);
    let before = resident(mem);
    let given = vacant::give_to_kernel();
    assert!(given >= SEGMENT / 2, "{given} bytes");
    assert!(resident(mem) + given / 2 < before, "{} of {before} bytes", resident(mem));
    assert_eq!(vacant::give_to_kernel(), 0, "nothing has changed since");
    // SAFETY: a block of that size.
    assert!(unsafe { std::slice::from_raw_parts(held.as_ptr(), BLOCK) }.iter().all(|byte| *byte == 9));
    assert!(kept.iter().all(|word| *word == 7));
    let all = take_blocks(BLOCK);
    assert_eq!(all.len(), last, "they are the heap's as before");
    give(all, BLOCK);
    give(vec![held], BLOCK);
    drop(kept);
    loosekv_shm::leave();
}

fn growth_leaves_room_for_blocks(mem: *mut u8) {
    create(mem);
    let objects = fill(1000);
    assert_eq!(reserve_growth(&[1000]), Err(Full));
    assert_eq!(Needs::of(&[1000]).reserve_growth(), Err(Full));
    let carved = heap::stats().carved;
    assert!(carved <= BOUND && carved > BOUND - BOUND / 16, "{:?}", heap::stats());
    let blocks = take_blocks(BLOCK);
    assert!(blocks.len() >= (SEGMENT - BOUND - EMERGENCY) / BLOCK - 1, "{} blocks", blocks.len());
    give(blocks, BLOCK);
    assert_eq!(reserve(&[1000]), Ok(()), "others may go on");
    assert!(objects.iter().all(|o| o.iter().all(|word| *word == 1000)));
    drop(objects);
    loosekv_shm::leave();
}

/// What others have made into small objects beyond half of the blocks' part is theirs when it is free, until chunks have come back.
fn growth_does_not_live_on_what_others_carved(mem: *mut u8) {
    create(mem);
    let slack = (SEGMENT - EMERGENCY - BOUND) / 2;
    let carved = || heap::stats().carved;
    let mut others = Vec::new();
    while carved() < BOUND + slack / 2 {
        assert_eq!(reserve(&[1000]), Ok(()));
        others.push(object(1000, 1));
    }
    // One of them stays in nearly every chunk.
    let every = 31;
    let free = |others: &mut Vec<Object>| {
        let mut at = 0;
        others.retain(|_| {
            at += 1;
            at % every == 0
        });
        heap::flush_magazines();
    };
    let mut some = others.split_off(others.len() / 2);
    free(&mut some);
    assert_eq!(reserve_growth(&[1000]), Ok(()), "what is free may be used");
    loosekv_shm::leave();
    others.append(&mut some);
    while carved() < BOUND + slack + slack / 2 {
        assert_eq!(reserve(&[1000]), Ok(()));
        others.push(object(1000, 1));
    }
    free(&mut others);
    assert!(heap::stats().central > BOUND / 4 * 3, "{:?}", heap::stats());
    assert_eq!(reserve_growth(&[1000]), Err(Full));
    assert_eq!(heap::growth_left(), 0);
    assert_eq!(reserve(&[1000]), Ok(()), "others may go on");
    drop(others);
    heap::flush_magazines();
    assert_eq!(reserve_growth(&[1000]), Ok(()), "chunks came free");
    loosekv_shm::leave();
}

fn what_one_size_had_serves_others_and_blocks(mem: *mut u8) {
    create(mem);
    let mut fits = Vec::new();
    for bytes in [1104, 2304, 1104, 24, 16_384, 720] {
        let objects = fill(bytes);
        fits.push((bytes, objects.len() * bytes));
        drop(objects);
    }
    for (bytes, total) in fits {
        assert!(total > BOUND / 10 * 8, "only {total} bytes in objects of {bytes}");
    }
    let before = heap::stats();
    assert!(before.free < 8 << 20, "{before:?}");
    let blocks = take_blocks(BLOCK);
    assert!(blocks.len() >= (SEGMENT - EMERGENCY) / BLOCK - 1, "{} blocks, {:?}", blocks.len(), heap::stats());
    give(blocks, BLOCK);
    loosekv_shm::leave();
    // What no class has a size for is lost only while the chunk is cut up.
    assert!(heap::stats().scraps < before.size / 100, "{:?}", heap::stats());
}

/// Free objects whose chunks are in use serve smaller ones, which are as good as any others afterwards.
fn what_is_free_of_large_objects_serves_small_ones(mem: *mut u8) {
    create(mem);
    let large = fill(2048);
    let (kept, gone): (Vec<_>, Vec<_>) = large.into_iter().enumerate().partition(|(at, _)| at % 5 == 0);
    let freed = gone.len() * 2048;
    drop(gone);
    heap::flush_magazines();
    let before = heap::stats();
    let small = fill(480);
    let now = heap::stats();
    assert!(small.len() * 480 > freed / 10 * 8, "{} of {freed} bytes, {now:?}", small.len() * 480);
    assert!(now.free + (32 << 10) >= before.free, "{before:?} {now:?}");
    assert!(kept.iter().all(|(_, object)| object.iter().all(|word| *word == 2048)));
    assert!(small.iter().all(|object| object.iter().all(|word| *word == 480)));
    drop((kept, small));
    loosekv_shm::leave();
    std::thread::sleep(Duration::from_millis(100));
    let blocks = take_blocks(BLOCK);
    assert!(blocks.len() >= (SEGMENT - EMERGENCY) / BLOCK - 1, "{} blocks, {:?}", blocks.len(), heap::stats());
    give(blocks, BLOCK);
    loosekv_shm::leave();
}

/// Objects that live hold their chunks, and no others.
fn survivors_stay_what_they_are(mem: *mut u8) {
    create(mem);
    let kept: Vec<Object> = fill(504).into_iter().step_by(500).collect();
    // One chunk each, and not all in one piece.
    let bytes = 32 << 10;
    let blocks = take_blocks(bytes);
    let wanted = (SEGMENT - EMERGENCY) / bytes - kept.len() - 16;
    assert!(kept.len() > 20 && blocks.len() >= wanted, "{} blocks beside {} objects", blocks.len(), kept.len());
    for block in &blocks {
        // SAFETY: ours, of that size.
        unsafe { block.as_ptr().write_bytes(0xee, bytes) };
    }
    assert!(kept.iter().all(|o| o.iter().all(|word| *word == 504)));
    give(blocks, bytes);
    drop(kept);
    loosekv_shm::leave();
}

/// A process that is killed while it gives chunks back takes the passes with it: the others are refused sooner, and do not
/// wait for it each time.
fn a_killed_pass_holds_nobody_up(mem: *mut u8) {
    for kill in 0..10 {
        create(mem);
        let child = fork(|| loop {
            drop(fill(24));
            assert!(heap::alloc_block(SEGMENT).is_none());
        });
        std::thread::sleep(Duration::from_micros(20_000 + mix(kill) % 40_000));
        child.kill();
        assert_eq!(child.wait(), Err(-libc::SIGKILL));
        let began = Instant::now();
        for _ in 0..20 {
            assert!(heap::alloc_block(SEGMENT).is_none());
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{:?} for 20 refusals", began.elapsed());
        loosekv_shm::leave();
    }
}

/// What the others keep in their magazines comes when they heed.
fn magazines_are_given_up_when_memory_is_short(mem: *mut u8) {
    create(mem);
    let sizes = [40, 72, 136, 264, 520, 1032, 2056, 4104];
    let objects: Vec<Object> = sizes.iter().flat_map(|s| (0..500).map(|_| object(*s, 0))).collect();
    drop(objects);
    assert!(heap::stats().mine > 0);
    heap::heed();
    assert!(heap::stats().mine > 0, "nobody was looking for memory");
    let child = fork(|| {
        let objects = fill(24);
        assert!(heap::alloc_block(8 << 20).is_none());
        drop(objects);
    });
    assert_eq!(child.wait(), Ok(()));
    heap::heed();
    assert_eq!(heap::stats().mine, 0);
}

/// Processes take and give objects of changing sizes, each marked by its owner, while blocks are taken and given.
fn nobody_gets_what_another_has(mem: *mut u8) {
    create(mem);
    let before = heap::stats().live;
    let children: Vec<_> = (1..=4u64)
        .map(|client| {
            fork(move || {
                let mut held: Vec<(Object, u64)> = Vec::new();
                let mut blocks: Vec<(NonNull<u8>, u8)> = Vec::new();
                let (mut refused, mut served) = (0, 0);
                for step in 0..120_000u64 {
                    let r = mix(client << 32 | step);
                    // The size that most objects have changes: what was of another size before must change hands.
                    let phase = [24, 1000, 5000, 200, 16_000][(step / 3000) as usize % 5];
                    let bytes = phase + (r >> 8) as usize % (phase / 2);
                    let wanted = (3 << 20) / phase;
                    if held.len() > wanted || r.is_multiple_of(3) && !held.is_empty() {
                        let (object, mark) = held.swap_remove((r >> 20) as usize % held.len());
                        assert!(object.iter().all(|word| *word == mark), "object overwritten");
                    } else if reserve_growth(&[bytes]).is_ok() {
                        held.push((object(bytes, r), r));
                    } else {
                        refused += 1;
                        held.truncate(held.len() / 2);
                    }
                    if r % 100 < 2 {
                        let mark = (r >> 40) as u8;
                        if let Some(block) = heap::alloc_block(BLOCK) {
                            // SAFETY: ours, of that size.
                            unsafe { block.as_ptr().write_bytes(mark, BLOCK) };
                            blocks.push((block, mark));
                            served += 1;
                        }
                        if blocks.len() > 2 || r % 100 == 1 && !blocks.is_empty() {
                            let (block, mark) = blocks.swap_remove(0);
                            // SAFETY: ours, of that size.
                            let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), BLOCK) };
                            assert!(bytes.iter().all(|byte| *byte == mark), "block overwritten");
                            // SAFETY: from alloc_block, with that size.
                            unsafe { heap::free_block(block, BLOCK) };
                        }
                    }
                    if r.is_multiple_of(500) {
                        heap::heed();
                    }
                }
                assert!(served > 10, "{served} blocks, {refused} refusals");
                for (block, _) in blocks {
                    // SAFETY: from alloc_block, with that size.
                    unsafe { heap::free_block(block, BLOCK) };
                }
            })
        })
        .collect();
    for child in children {
        assert_eq!(child.wait(), Ok(()));
    }
    let stats = heap::stats();
    assert!(stats.live == before && stats.refused > 100, "{stats:?}");
    // What was freed since the last pass may be too little to be looked at at once.
    std::thread::sleep(Duration::from_millis(100));
    let blocks = take_blocks(BLOCK);
    assert!(blocks.len() >= (SEGMENT - EMERGENCY) / BLOCK - 4, "{} blocks, {:?}", blocks.len(), heap::stats());
    println!("given back: {:?}", heap::stats());
    give(blocks, BLOCK);
    loosekv_shm::leave();
}

fn main() {
    let mem = segment(SEGMENT);
    free_chunks_are_the_kernels(mem);
    growth_leaves_room_for_blocks(mem);
    growth_does_not_live_on_what_others_carved(mem);
    what_one_size_had_serves_others_and_blocks(mem);
    what_is_free_of_large_objects_serves_small_ones(mem);
    survivors_stay_what_they_are(mem);
    a_killed_pass_holds_nobody_up(mem);
    magazines_are_given_up_when_memory_is_short(mem);
    nobody_gets_what_another_has(mem);
}
