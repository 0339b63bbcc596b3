//! The arena of a memtable: blocks handed out one after another, addressed by 32-bit offsets, freed all at once.
//!
//! ```text
//!   base ------------------------------------------------------------------> addresses
//!     [ chunk: next, bytes | block block block ... ]     [ chunk | block ... cursor ... end ]
//!                            ^ offset = (address - base) / 8
//! ```
//!
//! An offset is followed by `base + offset * 8`, whatever chunk it is in. In the shared heap the base is that of the
//! heap, the same in every process, and chunks are blocks of the heap, small ones first. Without a shared heap there is
//! one chunk: a range of addresses as large as the arena may become, of which only the pages touched cost memory. The range
//! of the arena that was freed last is kept for the next one ([`spare`]).
//!
//! Blocks are handed out without a lock; only a new chunk is fetched by one appender at a time.

use loosekv_shm::heap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Offsets count units of this many bytes.
pub(super) const UNIT: usize = 8;

/// The least chunk, but for the first one of an arena that is to take little ([`LITTLE`]).
pub(super) const LEAST_CHUNK: usize = 32 << 10;
/// A chunk where memory is scarce: a small object, for which the heap has room when it has no block any more.
pub(super) const LITTLE: usize = 12 << 10;
const LARGEST_CHUNK: usize = 1 << 20;
const PAGE: usize = 4096;

/// At the start of every chunk of the shared heap.
#[repr(C)]
struct Chunk {
    next: *mut Chunk,
    bytes: usize,
}

/// Where chunks come from.
enum Source {
    Heap,
    Range {
        bytes: usize,
    },
    #[cfg(test)]
    Test(std::sync::Arc<test_heap::TestHeap>),
}

/// What appenders write, on cache lines of its own.
#[repr(C, align(64))]
struct Growth {
    /// Offset of the next free unit (low half) and of the end of the chunk (high half).
    cursor: AtomicU64,
    /// Bytes of all chunks.
    taken: AtomicUsize,
    chunks: AtomicPtr<Chunk>,
    growing: AtomicBool,
}

pub(super) struct Arena {
    base: *mut u8,
    source: Source,
    capacity: usize,
    /// Bytes of its first chunk.
    first: usize,
    /// Where the heap has no block it takes small objects.
    makes_do: bool,
    growth: Growth,
}

// SAFETY: the pointers lead to memory that the arena owns and that every thread (every process, in the shared heap)
// sees at the same address; what is shared in here is atomic.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

pub(super) fn pack(cursor: u32, end: u32) -> u64 {
    u64::from(end) << 32 | u64::from(cursor)
}

pub(super) fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Arena {
    /// An arena that never takes more than `capacity` bytes, `first` of them to begin with; `None` when there is no memory for it at all.
    pub(super) fn new(capacity: usize, first: usize) -> Option<Arena> {
        if heap::attached() {
            let base = std::ptr::with_exposed_provenance_mut(heap::base());
            return Some(Arena::with(base, Source::Heap, capacity, first, pack(0, 0)));
        }
        let bytes = capacity.min(u32::MAX as usize * UNIT).next_multiple_of(PAGE);
        let base = spare::take(bytes).or_else(|| range::take(bytes))?;
        // The first line stays unused: offset 0 means none.
        let end = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX);
        let arena = Arena::with(base.as_ptr(), Source::Range { bytes }, capacity, first, pack(8, end));
        arena.growth.taken.store(bytes, Ordering::Relaxed);
        Some(arena)
    }

    fn with(base: *mut u8, source: Source, capacity: usize, first: usize, cursor: u64) -> Arena {
        let growth = Growth {
            cursor: AtomicU64::new(cursor),
            taken: AtomicUsize::new(0),
            chunks: AtomicPtr::new(std::ptr::null_mut()),
            growing: AtomicBool::new(false),
        };
        Arena { base, source, capacity, first, makes_do: false, growth }
    }

    /// The same arena, which is to have what it needs: where the heap has no block, chunks are small objects.
    pub(super) fn making_do(mut self) -> Arena {
        self.makes_do = true;
        self
    }

    #[cfg(test)]
    pub(super) fn in_test_heap(heap: &std::sync::Arc<test_heap::TestHeap>, capacity: usize, first: usize) -> Arena {
        Arena::with(heap.base(), Source::Test(heap.clone()), capacity, first, pack(0, 0))
    }

    /// The address of an offset.
    ///
    /// # Safety
    /// The offset was handed out by this arena (or lies inside a block that was).
    #[inline(always)]
    pub(super) unsafe fn at(&self, offset: u32) -> *mut u8 {
        // SAFETY: the caller's promise: the result lies in one of the arena's chunks.
        unsafe { self.base.add(offset as usize * UNIT) }
    }

    /// A block of `units`, contents undefined; `None` when the arena is full. Never fails in between: nothing is
    /// changed then.
    pub(super) fn alloc(&self, units: u32) -> Option<u32> {
        debug_assert!(units > 0);
        let mut word = self.growth.cursor.load(Ordering::Acquire);
        loop {
            let (cursor, end) = unpack(word);
            if end - cursor < units {
                word = self.grow(word, units)?;
                continue;
            }
            let taken = pack(cursor + units, end);
            match self.growth.cursor.compare_exchange_weak(word, taken, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(cursor),
                Err(now) => word = now,
            }
        }
    }

    /// Takes back a block that nobody has seen, if it is the last one handed out; otherwise its space is lost.
    pub(super) fn give_back(&self, offset: u32, units: u32) {
        let word = self.growth.cursor.load(Ordering::Acquire);
        let (cursor, end) = unpack(word);
        // Blocks of an earlier chunk cannot end at the cursor of a later one: a chunk begins with its header.
        if cursor == offset + units {
            let _ = self.growth.cursor.compare_exchange(word, pack(offset, end), Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Bytes that it may take.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of the blocks handed out, with what is lost at the ends of chunks.
    pub(super) fn used(&self) -> usize {
        let (cursor, end) = unpack(self.growth.cursor.load(Ordering::Acquire));
        let taken = self.growth.taken.load(Ordering::Acquire);
        // The two are read one after the other; a chunk may have come in between.
        taken.saturating_sub((end - cursor) as usize * UNIT)
    }

    /// Bytes of memory that the arena occupies.
    pub(super) fn memory(&self) -> usize {
        match self.source {
            Source::Range { .. } => self.used().next_multiple_of(PAGE),
            _ => self.growth.taken.load(Ordering::Acquire),
        }
    }

    /// Fetches another chunk, unless the cursor has moved from `seen` meanwhile; returns where the cursor is now.
    #[cold]
    fn grow(&self, seen: u64, units: u32) -> Option<u64> {
        if matches!(self.source, Source::Range { .. }) {
            return None;
        }
        let mut spins = 0u32;
        while self.growth.growing.swap(true, Ordering::Acquire) {
            spins += 1;
            if spins.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        let now = self.growth.cursor.load(Ordering::Acquire);
        let grown = if now == seen { self.add_chunk(units as usize * UNIT) } else { Some(now) };
        self.growth.growing.store(false, Ordering::Release);
        grown
    }

    /// Only one at a time, see [`Arena::grow`].
    fn add_chunk(&self, need: usize) -> Option<u64> {
        let header = std::mem::size_of::<Chunk>();
        let taken = self.growth.taken.load(Ordering::Relaxed);
        // Each chunk as large as all before it: few chunks, and little is wasted on a table that gets few rows.
        let usual = if taken == 0 { self.first } else { taken.next_power_of_two().clamp(LEAST_CHUNK, LARGEST_CHUNK) };
        let bytes = usual.max(need + header).min(self.capacity.saturating_sub(taken)) & !(UNIT - 1);
        if bytes < need + header {
            return None;
        }
        let (block, bytes) = match self.take(bytes) {
            Some(block) => (block, bytes),
            None if self.makes_do && (need + header..bytes).contains(&LITTLE) => (self.take(LITTLE)?, LITTLE),
            None => return None,
        };
        let start = (block.as_ptr().addr() - self.base.addr()) / UNIT;
        let (Ok(first), Ok(end)) = (u32::try_from(start + header / UNIT), u32::try_from(start + bytes / UNIT)) else {
            // Past the reach of an offset: as good as no memory.
            self.free(block, bytes);
            return None;
        };
        debug_assert_eq!(block.as_ptr().addr() % UNIT, self.base.addr() % UNIT);
        let chunk = block.as_ptr().cast::<Chunk>();
        let before = self.growth.chunks.load(Ordering::Relaxed);
        // SAFETY: the block is ours, aligned and larger than its header.
        unsafe { chunk.write(Chunk { next: before, bytes }) };
        self.growth.chunks.store(chunk, Ordering::Release);
        self.growth.taken.store(taken + bytes, Ordering::Release);
        let word = pack(first, end);
        // What is left of the chunk before is lost; whoever is about to take it sees the cursor changed.
        self.growth.cursor.store(word, Ordering::Release);
        Some(word)
    }

    fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        match &self.source {
            Source::Heap => heap::alloc_block(bytes),
            Source::Range { .. } => None,
            #[cfg(test)]
            Source::Test(heap) => heap.alloc(bytes),
        }
    }

    fn free(&self, block: NonNull<u8>, bytes: usize) {
        match &self.source {
            // SAFETY: the callers free each chunk once, with the size it was made with.
            Source::Heap => unsafe { heap::free_block(block, bytes) },
            Source::Range { .. } => {}
            #[cfg(test)]
            Source::Test(heap) => heap.free(bytes),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let Source::Range { bytes } = self.source {
            // SAFETY: the range is ours, and nobody refers to it any more.
            unsafe { spare::put(self.base, bytes) };
            return;
        }
        let mut chunk = *self.growth.chunks.get_mut();
        while let Some(block) = NonNull::new(chunk) {
            // SAFETY: chunks are linked when whole, and freed only here.
            let Chunk { next, bytes } = unsafe { block.as_ptr().read() };
            self.free(block.cast(), bytes);
            chunk = next;
        }
    }
}

mod spare {
    //! One range that nobody uses. It is often a writer who frees a memtable, as the last one who was pinned; to unmap it
    //! stops all threads of the process for milliseconds, and the next memtable would have to get its pages again.
    use super::range;
    use std::ptr::{self, NonNull};
    use std::sync::{Mutex, PoisonError};

    /// Larger ones are given back at once.
    const LARGEST: usize = 64 << 20;

    struct Range {
        start: *mut u8,
        bytes: usize,
    }

    // SAFETY: nobody else refers to the range.
    unsafe impl Send for Range {}

    impl Drop for Range {
        fn drop(&mut self) {
            if !self.start.is_null() {
                // SAFETY: from `range::take`, with this length; it was not taken out.
                unsafe { range::give_back(self.start, self.bytes) };
            }
        }
    }

    static SPARE: Mutex<Option<Range>> = Mutex::new(None);

    /// The spare range if it has this length; what was written to it is still there.
    pub(super) fn take(bytes: usize) -> Option<NonNull<u8>> {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let range = spare.as_mut().filter(|range| range.bytes == bytes)?;
        let start = NonNull::new(std::mem::replace(&mut range.start, ptr::null_mut()));
        *spare = None;
        start
    }

    /// # Safety
    /// The range is from [`range::take`], with the same length, and not used any more.
    pub(super) unsafe fn put(start: *mut u8, bytes: usize) {
        let range = Range { start, bytes };
        if bytes <= LARGEST {
            let before = SPARE.lock().unwrap_or_else(PoisonError::into_inner).replace(range);
            drop(before);
        }
    }
}

#[cfg(not(miri))]
mod range {
    //! A range of addresses from the operating system.
    use std::ptr::NonNull;

    const HUGE_PAGE: usize = 2 << 20;

    pub(super) fn take(bytes: usize) -> Option<NonNull<u8>> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping at an address of the system's choice touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        // A large table is searched a fifth faster in huge pages; a small one is not to cost one.
        if bytes > 2 * HUGE_PAGE {
            // SAFETY: the mapping was just made and reaches beyond its second huge page.
            let rest = unsafe { start.cast::<u8>().add(HUGE_PAGE) };
            let rest = rest.map_addr(|address| address.next_multiple_of(HUGE_PAGE));
            let rest_bytes = start.addr() + bytes - rest.addr();
            // SAFETY: advice on a part of the mapping; whether it is taken does not matter.
            unsafe { libc::madvise(rest.cast(), rest_bytes, libc::MADV_HUGEPAGE) };
        }
        NonNull::new(start.cast())
    }

    /// # Safety
    /// The range is from [`take`], with the same length, and not used any more.
    pub(super) unsafe fn give_back(start: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise.
        let result = unsafe { libc::munmap(start.cast(), bytes) };
        debug_assert_eq!(result, 0);
    }
}

#[cfg(miri)]
mod range {
    //! A range of addresses from the allocator, where there is no operating system to ask.
    use std::alloc::{alloc_zeroed, dealloc, Layout};
    use std::ptr::NonNull;

    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes, 64).ok()
    }

    pub(super) fn take(bytes: usize) -> Option<NonNull<u8>> {
        let layout = layout(bytes).filter(|l| l.size() > 0)?;
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    /// # Safety
    /// The range is from [`take`], with the same length, and not used any more.
    pub(super) unsafe fn give_back(start: *mut u8, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: the caller's promise.
            unsafe { dealloc(start, layout) }
        }
    }
}

#[cfg(test)]
pub(super) mod test_heap {
    //! Stands for the shared heap: blocks scattered over one range, with garbage in them.
    use std::alloc::{alloc, dealloc, Layout};
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;

    pub struct TestHeap {
        base: *mut u8,
        layout: Layout,
        next: AtomicUsize,
        pub live: AtomicUsize,
    }

    // SAFETY: the range lives as long as this, and blocks are handed out once.
    unsafe impl Send for TestHeap {}
    // SAFETY: as above.
    unsafe impl Sync for TestHeap {}

    impl Drop for TestHeap {
        fn drop(&mut self) {
            // SAFETY: allocated so; every arena in it holds this alive.
            unsafe { dealloc(self.base, self.layout) }
        }
    }

    impl TestHeap {
        pub fn new(bytes: usize) -> Arc<TestHeap> {
            let layout = Layout::from_size_align(bytes, 64).expect("a small size");
            // SAFETY: the size is not zero.
            let base = unsafe { alloc(layout) };
            assert!(!base.is_null());
            Arc::new(TestHeap { base, layout, next: AtomicUsize::new(64), live: AtomicUsize::new(0) })
        }

        pub fn base(&self) -> *mut u8 {
            self.base
        }

        pub fn alloc(&self, bytes: usize) -> Option<NonNull<u8>> {
            // A gap before each block: chunks are not neighbours.
            let end = |start: usize| start + bytes.next_multiple_of(64) + 64;
            let fits = |start| (start + bytes <= self.layout.size()).then(|| end(start));
            let start = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
            self.live.fetch_add(bytes, Ordering::Relaxed);
            // SAFETY: inside the range, and nobody else's.
            let block = unsafe { self.base.add(start) };
            // SAFETY: as above.
            unsafe { block.write_bytes(0xA5, bytes) };
            NonNull::new(block)
        }

        pub fn free(&self, bytes: usize) {
            self.live.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::test_heap::TestHeap;
    use super::*;

    #[test]
    fn range_is_full_at_its_capacity() {
        let arena = Arena::new(8192, LEAST_CHUNK).expect("memory");
        let mut got = Vec::new();
        while let Some(offset) = arena.alloc(16) {
            assert!(offset > 0);
            // SAFETY: the block is ours.
            unsafe { arena.at(offset).write_bytes(got.len() as u8, 128) };
            got.push(offset);
        }
        assert_eq!(got.len(), (8192 - 64) / 128);
        for (i, offset) in got.iter().enumerate() {
            // SAFETY: the block is ours.
            assert!(unsafe { std::slice::from_raw_parts(arena.at(*offset), 128) }.iter().all(|b| *b == i as u8));
        }
        assert!(arena.used() <= 8192 && arena.memory() == 8192);
    }

    #[test]
    fn chunks_grow_and_are_all_freed() {
        let heap = TestHeap::new(1 << 20);
        let arena = Arena::in_test_heap(&heap, 200_000, LEAST_CHUNK);
        let mut count = 0;
        while let Some(offset) = arena.alloc(10) {
            // SAFETY: the block is ours.
            unsafe { arena.at(offset).write_bytes(7, 80) };
            count += 1;
        }
        assert_eq!(heap.live.load(Ordering::Relaxed), 200_000);
        assert_eq!(arena.memory(), 200_000);
        assert!(arena.used() > 200_000 - 80);
        assert!(count > 200_000 / 80 - 10, "little is lost at the ends of chunks: {count}");
        drop(arena);
        assert_eq!(heap.live.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn full_heap_leaves_the_arena_as_it_was() {
        let heap = TestHeap::new(40 << 10);
        let arena = Arena::in_test_heap(&heap, 1 << 20, LEAST_CHUNK);
        while arena.alloc(100).is_some() {}
        let used = arena.used();
        assert_eq!(arena.alloc(2000), None);
        assert_eq!(arena.used(), used);
        assert!(arena.alloc(1).is_some(), "a small block still fits the last chunk");
    }

    #[test]
    fn last_block_goes_back() {
        let arena = Arena::new(1 << 16, LEAST_CHUNK).expect("memory");
        let a = arena.alloc(4).expect("room");
        let b = arena.alloc(4).expect("room");
        arena.give_back(a, 4);
        assert_ne!(arena.alloc(4), Some(a), "not the last: lost");
        let c = arena.alloc(6).expect("room");
        arena.give_back(c, 6);
        assert_eq!(arena.alloc(6), Some(c));
        assert_ne!(b, c);
    }
}
