//! Gives chunks back whose small objects are all free, so that blocks, and objects of other sizes, can have them.
//!
//! ```text
//!   count:  each class: take all free objects, count them to their chunks, put them back
//!   pick:   each class: take all free objects of chunks that seemed free, put back the others
//!   judge:  chunks of which all bytes are in hand go; the objects of others are put back
//! ```
//!
//! One process at a time does it, when it has found no chunk. Nobody is stopped: who allocates or frees meanwhile may
//! change which chunks are free, and so only what is in hand in the end counts. Whoever finds no memory while objects are
//! in hand waits until they are back ([`Passes::wait_for_another`]). What other processes keep in their magazines holds
//! chunks back; they give it up when their transaction ends ([`heed`]). A process killed in between takes what it has in
//! hand with it, like what is in its magazines; the passes end with it.
//!
//! Keeps design invariant I19 as the heap does: [`crate::heap::create`] forgets all of this.

use crate::chunks::CHUNK;
use crate::class;
use crate::heap::{self, base_ptr, header, OneThread};
use crate::stack::{link, next, Batch};
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

/// A pass is worth it for so many bytes of objects that have become free since the last one.
const WORTH: usize = 8 * CHUNK;
/// For fewer, which may be the last of many chunks, it is after so many times the time that the last one took.
const REST: u64 = 16;
/// Longest wait for another process's pass: it looks through all free objects, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_micros(100);

/// In `found`: all of the chunk's objects were free when they were counted.
const CANDIDATE: u32 = 1 << 31;

#[repr(C, align(128))]
pub(crate) struct Passes {
    /// Odd while one is under way.
    number: AtomicU64,
    /// The one that somebody has waited for too long: its process was killed, most likely. Nobody else waits for it.
    overdue: AtomicU64,
    /// Bytes of free objects that the last one left.
    left: AtomicUsize,
    /// From when on another is worth it for any free object.
    rested: AtomicU64,
}

/// A clock that all processes share, in nanoseconds.
fn now() -> u64 {
    // SAFETY: plain values; the call writes `time`, and cannot fail for this clock.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Passes {
    pub fn now(&self) -> u64 {
        self.number.load(Acquire)
    }

    /// Was another process at it since `seen`? Then what it had in hand is back when this returns.
    pub fn wait_for_another(&self, seen: u64) -> bool {
        let mut now = self.now();
        if now == seen && now.is_multiple_of(2) {
            return false;
        }
        let since = Instant::now();
        while !now.is_multiple_of(2) {
            if self.overdue.load(Relaxed) == now {
                return false;
            }
            if since.elapsed() > PATIENCE {
                self.overdue.store(now, Relaxed);
                return false;
            }
            std::thread::sleep(NAP);
            now = self.now();
        }
        true
    }

    fn worth_it(&self) -> bool {
        let free = free_objects();
        let left = self.left.load(Relaxed);
        if free < left {
            self.left.store(free, Relaxed);
        }
        let freed = free.saturating_sub(left);
        freed >= WORTH || freed > 0 && now() >= self.rested.load(Relaxed)
    }
}

/// The pass after which this process last gave up its magazines.
static HEEDED: OneThread<u64> = OneThread::new(0);

/// Gives up this process's magazines if somebody has been looking for memory since it last did. For the end of a
/// transaction: what was reserved is no longer guaranteed.
#[inline]
pub fn heed() {
    if !heap::attached() {
        return;
    }
    let now = header().passes.now();
    // SAFETY: one thread.
    if unsafe { HEEDED.get().replace(now) } != now {
        heap::flush_magazines();
    }
}

/// Many small objects were freed: looks whether whole chunks are free, so that blocks find them, and those who ask how much room there is
/// for blocks.
pub fn free_chunks() {
    if heap::attached() {
        run();
    }
}

/// Looks for chunks to give back. False: none was found, or it is not worth looking.
#[cold]
pub(crate) fn run() -> bool {
    let passes = &header().passes;
    let seen = passes.now();
    if !seen.is_multiple_of(2) {
        return passes.wait_for_another(seen);
    }
    heap::spill_surplus();
    if !passes.worth_it() {
        return false;
    }
    if passes.number.compare_exchange(seen, seen + 1, AcqRel, Acquire).is_err() {
        return passes.wait_for_another(seen);
    }
    let begun = now();
    count();
    let given = if mark() { judge(pick()) } else { 0 };
    let ended = now();
    passes.left.store(free_objects(), Relaxed);
    passes.rested.store(ended + (ended - begun) * REST, Relaxed);
    passes.number.store(seen + 2, Release);
    given > 0
}

/// Bytes of small objects that are free for every process.
pub(crate) fn free_objects() -> usize {
    (0..class::COUNT).map(|c| class::size(c) * header().stack(c).objects() as usize).sum()
}

fn each_chunk() -> impl Iterator<Item = usize> {
    0..header().chunks.count()
}

fn chunk_of(object: *mut u8) -> usize {
    header().chunk_of(object.addr() - base_ptr().addr())
}

/// The objects of a batch.
///
/// # Safety
/// They are free, linked, and the caller's, also while it goes on: each is looked at no more once it was handed on.
unsafe fn objects(batch: Batch) -> impl Iterator<Item = *mut u8> {
    let mut at = batch.first;
    (0..batch.count).map(move |_| {
        let object = at;
        // SAFETY: the caller's promise.
        at = unsafe { next(object) };
        object
    })
}

/// Counts the free bytes of every chunk.
fn count() {
    each_chunk().for_each(|chunk| header().use_of(chunk).found.store(0, Relaxed));
    for c in 0..class::COUNT {
        let stack = header().stack(c);
        // SAFETY: a stack's batches are free objects of its class; taken, they are ours until pushed.
        unsafe {
            for batch in stack.take_all(base_ptr()) {
                for object in objects(batch) {
                    header().use_of(chunk_of(object)).found.fetch_add(class::size(c) as u32, Relaxed);
                }
                stack.push(base_ptr(), batch);
            }
        }
    }
}

/// Marks the chunks that seemed all free. False: there is none.
fn mark() -> bool {
    let mut any = false;
    for chunk in each_chunk() {
        let of = header().use_of(chunk);
        let found = of.found.load(Relaxed);
        let free = found > 0 && of.whole() == Some(found as usize);
        of.found.store(if free { CANDIDATE } else { 0 }, Relaxed);
        any |= free;
    }
    any
}

/// Objects in hand, linked; each says its class in its second word.
struct InHand(*mut u8);

impl InHand {
    /// # Safety
    /// The object is free and the caller's.
    unsafe fn add(&mut self, object: *mut u8, c: usize) {
        // SAFETY: the caller's promise; an object has two words. The second one may be read by a late pop.
        unsafe {
            link(object, self.0);
            AtomicUsize::from_ptr(object.add(8).cast()).store(c, Relaxed);
        }
        self.0 = object;
    }
}

impl Iterator for InHand {
    type Item = (*mut u8, usize);

    fn next(&mut self) -> Option<(*mut u8, usize)> {
        let object = self.0;
        if object.is_null() {
            return None;
        }
        // SAFETY: `add` wrote both words, and the object is still ours.
        unsafe {
            self.0 = next(object);
            Some((object, AtomicUsize::from_ptr(object.add(8).cast()).load(Relaxed)))
        }
    }
}

/// Takes the free objects of the chunks marked.
fn pick() -> InHand {
    let mut in_hand = InHand(ptr::null_mut());
    for c in 0..class::COUNT {
        let stack = header().stack(c);
        // SAFETY: as in `count`; each object goes to one place.
        unsafe {
            for batch in stack.take_all(base_ptr()) {
                let mut rest = Batch { first: ptr::null_mut(), count: 0 };
                for object in objects(batch) {
                    let found = &header().use_of(chunk_of(object)).found;
                    if found.load(Relaxed) & CANDIDATE != 0 {
                        found.fetch_add(class::size(c) as u32, Relaxed);
                        in_hand.add(object, c);
                    } else {
                        link(object, rest.first);
                        rest = Batch { first: object, count: rest.count + 1 };
                    }
                }
                if rest.count > 0 {
                    stack.push(base_ptr(), rest);
                }
            }
        }
    }
    in_hand
}

/// Gives back the chunks of which all is in hand; returns how many.
fn judge(in_hand: InHand) -> usize {
    let is_ours = |chunk: usize| {
        let of = header().use_of(chunk);
        of.found.load(Relaxed) & CANDIDATE != 0 && of.whole() == Some((of.found.load(Relaxed) & !CANDIDATE) as usize)
    };
    for (object, c) in in_hand {
        let chunk = chunk_of(object);
        if is_ours(chunk) {
            header().count_uncarved(c, 1);
        } else {
            // Whatever is cut of it from now on, it is no candidate any more.
            header().use_of(chunk).found.store(0, Relaxed);
            // SAFETY: in hand, so ours, and free.
            unsafe {
                link(object, ptr::null_mut());
                header().stack(c).push(base_ptr(), Batch { first: object, count: 1 });
            }
        }
    }
    let mut given = 0;
    for chunk in each_chunk().filter(|chunk| is_ours(*chunk)) {
        let of = header().use_of(chunk);
        header().counters.scraps.fetch_sub(CHUNK - of.whole().unwrap_or(CHUNK), Relaxed);
        of.reset();
        of.found.store(0, Relaxed);
        header().give_of_objects(chunk);
        given += 1;
    }
    given
}
