//! A lock-free stack of batches of free objects (Treiber's, with a tag against ABA).
//!
//! ```text
//!  head:   tag:32 | first object of the top batch, as offset from the heap's base / 8 : 32     (0 = empty)
//!
//!  first object of a batch                    the others
//!  +0  next object of the batch (or null)     +0  next object (or null)
//!  +8  count:32 | next batch:32
//! ```
//!
//! Nothing here is ever locked: a process killed between any two instructions leaves a sound stack, and loses at most the
//! batch in its hands. A pop may read the words of a batch that another process has popped meanwhile and is already
//! writing to; what it read is then thrown away, since the tag in `head` has moved. The tag wraps after 2^32 changes;
//! a process would have to sleep through an exact multiple of that, between two adjacent instructions.

use crate::broken::{on, Broken::StackTagStays};
use crate::interleave::AtomicU64;
use std::ptr;
use std::sync::atomic::{self, Ordering::*};

/// Objects linked through their first word, owned by whoever holds this value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub first: *mut u8,
    pub count: u32,
}

/// See the module's page. The zero state is the empty stack.
#[repr(C, align(128))]
pub(crate) struct BatchStack {
    head: AtomicU64,
    /// Objects in the stack: statistics only, not exact while others push and pop.
    objects: atomic::AtomicU64,
}

const OFFSET: u64 = u32::MAX as u64;

fn next_tag(head: u64) -> u64 {
    ((head >> 32).wrapping_add(u64::from(!on(StackTagStays)))) << 32
}

/// # Safety
/// `object` is a free object of at least 16 bytes, 8-aligned.
unsafe fn batch_word<'a>(object: *mut u8) -> &'a AtomicU64 {
    // SAFETY: by the caller's promise; atomic, because a late pop may read it while we write.
    unsafe { AtomicU64::from_ptr(object.add(8).cast::<u64>()) }
}

impl BatchStack {
    #[cfg(test)]
    pub fn new() -> Self {
        BatchStack { head: AtomicU64::new(0), objects: atomic::AtomicU64::new(0) }
    }

    pub fn objects(&self) -> u64 {
        // A batch may be popped before who pushed it has counted it.
        (self.objects.load(Relaxed) as i64).max(0) as u64
    }

    /// # Safety
    /// The batch's objects are in the 32 GiB above `base` and not at `base` itself, at least 16 bytes, 8-aligned, used by
    /// nobody, and linked through their first words; every user of the stack passes the same `base`.
    pub unsafe fn push(&self, base: *mut u8, batch: Batch) {
        debug_assert!(!batch.first.is_null() && batch.count > 0);
        let offset = (batch.first.addr() - base.addr()) as u64 / 8;
        debug_assert!(offset != 0 && offset <= OFFSET);
        // SAFETY: the caller owns the batch.
        let word = unsafe { batch_word(batch.first) };
        let mut head = self.head.load(Relaxed);
        loop {
            word.store(u64::from(batch.count) << 32 | (head & OFFSET), Relaxed);
            match self.head.compare_exchange_weak(head, next_tag(head) | offset, Release, Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        self.objects.fetch_add(u64::from(batch.count), Relaxed);
    }

    /// # Safety
    /// As for [`BatchStack::push`]; the memory above `base` stays mapped.
    pub unsafe fn pop(&self, base: *mut u8) -> Option<Batch> {
        loop {
            // SAFETY: the caller's promise.
            let top = unsafe { self.look(base)? };
            if let Some(batch) = self.take(top) {
                return Some(batch);
            }
        }
    }

    /// Takes all batches, to be looked through one after another.
    ///
    /// # Safety
    /// As for [`BatchStack::pop`].
    pub unsafe fn take_all(&self, base: *mut u8) -> Taken<'_> {
        let mut head = self.head.load(Acquire);
        while let Err(now) = self.head.compare_exchange_weak(head, next_tag(head), AcqRel, Acquire) {
            head = now;
        }
        Taken { from: self, base, next: head & OFFSET }
    }

    /// # Safety
    /// As for [`BatchStack::pop`].
    unsafe fn look(&self, base: *mut u8) -> Option<Top> {
        let head = self.head.load(Acquire);
        if head & OFFSET == 0 {
            return None;
        }
        let first = base.wrapping_add((head & OFFSET) as usize * 8);
        // SAFETY: an object of the heap, whoever owns it now; see the module's page for the race.
        let word = unsafe { batch_word(first) }.load(Relaxed);
        Some(Top { head, first, word })
    }

    /// Unlinks what was the top, if the stack has not changed since.
    fn take(&self, top: Top) -> Option<Batch> {
        let new = next_tag(top.head) | (top.word & OFFSET);
        self.head.compare_exchange(top.head, new, AcqRel, Relaxed).ok()?;
        let count = (top.word >> 32) as u32;
        self.objects.fetch_sub(u64::from(count), Relaxed);
        Some(Batch { first: top.first, count })
    }
}

/// Batches that only this process has.
pub(crate) struct Taken<'s> {
    from: &'s BatchStack,
    base: *mut u8,
    next: u64,
}

impl Iterator for Taken<'_> {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        if self.next == 0 {
            return None;
        }
        let first = self.base.wrapping_add(self.next as usize * 8);
        // SAFETY: a batch that was taken, so ours; what follows it is read before it is handed on.
        let word = unsafe { batch_word(first) }.load(Relaxed);
        self.next = word & OFFSET;
        let count = (word >> 32) as u32;
        self.from.objects.fetch_sub(u64::from(count), Relaxed);
        Some(Batch { first, count })
    }
}

/// What a pop has seen.
#[derive(Clone, Copy)]
struct Top {
    head: u64,
    first: *mut u8,
    word: u64,
}

/// # Safety
/// `object` is a free object that the caller owns.
#[inline(always)]
pub(crate) unsafe fn link(object: *mut u8, next: *mut u8) {
    // SAFETY: at least 16 bytes, 8-aligned, owned.
    unsafe { ptr::write(object.cast::<*mut u8>(), next) }
}

/// # Safety
/// `object` is a free object that the caller owns and that was linked.
#[inline(always)]
pub(crate) unsafe fn next(object: *mut u8) -> *mut u8 {
    // SAFETY: by the caller's promise.
    unsafe { ptr::read(object.cast::<*mut u8>()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broken::{self, Broken};
    use crate::interleave::{explore, Order, Steps};
    use std::collections::HashSet;
    use std::sync::Arc;

    const OBJECT: usize = 16;

    fn memory(objects: usize) -> Box<[u64]> {
        vec![0u64; (objects + 1) * OBJECT / 8].into_boxed_slice()
    }

    /// Batches of 1, 2, 3, 1, 2, 3 ... objects over the memory, pushed.
    fn fill(stack: &BatchStack, base: *mut u8, objects: usize) {
        let mut i = 1;
        let mut want = 1;
        while i <= objects {
            let count = want.min(objects - i + 1);
            for k in 0..count {
                let at = base.wrapping_add((i + k) * OBJECT);
                let to = if k + 1 < count { at.wrapping_add(OBJECT) } else { ptr::null_mut() };
                // SAFETY: inside `memory`, owned by this test.
                unsafe { link(at, to) };
            }
            // SAFETY: as above.
            unsafe { stack.push(base, Batch { first: base.wrapping_add(i * OBJECT), count: count as u32 }) };
            i += count;
            want = want % 3 + 1;
        }
    }

    #[test]
    fn pops_what_was_pushed_last_first() {
        let mut mem = memory(6);
        let base = mem.as_mut_ptr().cast::<u8>();
        let stack = BatchStack::new();
        fill(&stack, base, 6);
        assert_eq!(stack.objects(), 6);
        let mut counts = vec![];
        // SAFETY: same base, memory alive.
        while let Some(b) = unsafe { stack.pop(base) } {
            counts.push(b.count);
        }
        assert_eq!(counts, [3, 2, 1]);
        assert_eq!(stack.objects(), 0);
    }

    #[test]
    fn a_pop_notices_that_the_top_went_and_came_back() {
        let mut mem = memory(6);
        let base = mem.as_mut_ptr().cast::<u8>();
        let stack = BatchStack::new();
        fill(&stack, base, 6);
        // SAFETY: same base, memory alive, batches popped are pushed.
        unsafe {
            let seen = stack.look(base).expect("three batches");
            let a = stack.pop(base).expect("three batches");
            let b = stack.pop(base).expect("two batches");
            stack.push(base, a);
            assert!(stack.take(seen).is_none(), "would make {b:?} the top, which is not in the stack");
            assert_eq!(stack.pop(base).map(|top| top.first), Some(a.first));
        }
    }

    /// One pops two batches and puts the first back, others pop, in every order; who holds a batch writes to its words.
    fn explored(broken: Option<Broken>) -> std::thread::Result<usize> {
        struct Base(*mut u8);
        // SAFETY: the threads touch only batches they popped.
        unsafe impl Sync for Base {}
        // SAFETY: as above.
        unsafe impl Send for Base {}
        let body = || {
            let mem: &'static mut [u64] = Box::leak(memory(4));
            let whole = std::ptr::from_mut(mem);
            let shared = Arc::new((BatchStack::new(), Base(mem.as_mut_ptr().cast())));
            fill(&shared.0, shared.1 .0, 4);
            let take = |stack: &BatchStack, base: *mut u8| {
                // SAFETY: same base, memory alive.
                let batch = unsafe { stack.pop(base) };
                if let Some(batch) = &batch {
                    // SAFETY: popped by this thread.
                    unsafe { ptr::write(batch.first.add(8).cast::<u64>(), 0) };
                }
                batch
            };
            let other = {
                let shared = Arc::clone(&shared);
                shuttle::thread::spawn(move || take(&shared.0, shared.1 .0).map(|batch| batch.first.addr()))
            };
            let (stack, base) = (&shared.0, shared.1 .0);
            let mut held: Vec<Batch> = (0..2).filter_map(|_| take(stack, base)).collect();
            if !held.is_empty() {
                // SAFETY: popped by this thread.
                unsafe { stack.push(base, held.remove(0)) };
            }
            let mut all: Vec<usize> = held.iter().map(|batch| batch.first.addr()).collect();
            all.extend(other.join().expect("no panic"));
            all.extend(std::iter::from_fn(|| take(stack, base)).map(|batch| batch.first.addr()));
            let distinct: HashSet<usize> = all.iter().copied().collect();
            assert!(distinct.len() == all.len() && all.len() == 3, "{all:x?} is not each of three batches once");
            // SAFETY: leaked above, and nobody else has it any more.
            drop(unsafe { Box::from_raw(whole) });
        };
        explore(Steps::Atomics, Order::All(100_000), move || broken::set(broken), body)
    }

    #[test]
    fn in_whatever_order_no_batch_is_lost_or_popped_twice() {
        if cfg!(miri) {
            return; // the scheduler switches stacks by hand
        }
        let orders = explored(None).expect("no batch is lost");
        assert!((10..100_000).contains(&orders), "{orders} orders are not all there are");
        assert!(explored(Some(Broken::StackTagStays)).is_err());
    }

    #[test]
    fn no_batch_is_lost_or_popped_twice_by_racing_threads() {
        let (objects, rounds) = if cfg!(miri) { (12, 40) } else { (240, 50_000) };
        let mut mem = memory(objects);
        let base = mem.as_mut_ptr().cast::<u8>();
        let stack = BatchStack::new();
        fill(&stack, base, objects);
        struct Base(*mut u8);
        // SAFETY: the threads touch only batches they popped.
        unsafe impl Sync for Base {}
        let shared = Base(base);
        std::thread::scope(|s| {
            for t in 0..3usize {
                let (stack, shared) = (&stack, &shared);
                s.spawn(move || {
                    let base = shared.0;
                    let mut mine: Vec<Batch> = vec![];
                    for r in 0..rounds {
                        if (r + t) % 5 < 3 {
                            // SAFETY: same base, memory alive.
                            mine.extend(unsafe { stack.pop(base) });
                        } else if let Some(b) = mine.pop() {
                            // SAFETY: popped by this thread.
                            unsafe { stack.push(base, b) };
                        }
                    }
                    for b in mine {
                        // SAFETY: popped by this thread.
                        unsafe { stack.push(base, b) };
                    }
                });
            }
        });
        let mut seen = HashSet::new();
        // SAFETY: same base, memory alive; chains are as `fill` made them.
        unsafe {
            while let Some(b) = stack.pop(base) {
                let (mut p, mut n) = (b.first, 0);
                while !p.is_null() {
                    assert!(seen.insert(p.addr()), "object in two batches");
                    p = next(p);
                    n += 1;
                }
                assert_eq!(n, b.count);
            }
        }
        assert_eq!(seen.len(), objects);
    }
}
