//! The shared heap: one memory segment that forked processes allocate from, without any lock.
//!
//! ```text
//!  base                                                                              base + size (at most 32 GiB)
//!  | header: roots, collector, counters, | chunk  | use of | chunk 0 | chunk 1 |  ...  | chunk n |
//!  | bumps, a BatchStack per class       | bitmap | chunks | small objects ->      <- large blocks |
//!
//!  this process:  magazine per class (class.rs)  <-- batches -->  BatchStack in the header (stack.rs)
//!                                                <-- carved  ---  bump in the current chunk (carve.rs) <- chunks.rs
//! ```
//!
//! Small objects (up to 16 KiB) come from this process's magazines, which are plain statics: while the heap is attached exactly
//! one thread of a process may use it (PostgreSQL's backends have one). A magazine takes from and gives to the central stack of
//! its class in batches; when that is empty, objects are carved from chunks, or from larger free objects once growth may take
//! no more chunks. Larger blocks are runs of chunks and merge again when freed. Chunks whose small objects are all free are
//! given back when somebody finds no chunk (give_back.rs). What grows with the data, and can do with less, stops at a bound
//! ([`limit_growth`]), so that small objects do not take all of the heap.
//!
//! Nobody ever holds a lock, so a process that dies at any instruction leaves the heap sound; what its magazines held is
//! lost until the heap is created anew, as the host does when a process was killed.
//!
//! All processes are forks of the one that called [`create`], so the segment lies at the same address in all, and so do
//! functions and vtables: pointers may be stored. A fork starts with empty magazines whatever its parent held.
//!
//! Keeps design invariant I19 by construction: [`create`] forgets everything.

#![allow(clippy::indexing_slicing, reason = "arrays with a place for each class, level and root")]

use crate::carve::{carve, split, Bump, ChunkUse};
use crate::chunks::{words_for, Chunks, Level, CHUNK};
use crate::class;
use crate::give_back::{self, Passes};
pub use crate::give_back::{free_chunks, heed};
use crate::growth::is_overgrown;
pub use crate::growth::{growth_left, is_exceeded, limit_growth, room_for_blocks};
use crate::reserve;
use crate::stack::{link, next, Batch, BatchStack};
use crate::{epoch, latch, scope};
use crossbeam_epoch::Collector;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::mem::{size_of, MaybeUninit};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

/// Number of root slots.
pub const ROOTS: usize = 16;
/// Offsets in units of 8 bytes fit 32 bits.
pub const MAX_SIZE: usize = 32 << 30;
/// The smallest segment that [`create`] accepts.
pub const MIN_SIZE: usize = 1 << 20;
/// What [`alloc_block`] aligns to.
pub const BLOCK_ALIGN: usize = 64;
/// Objects of a size that a reservation guarantees.
pub(crate) const RESERVED: u32 = 4;

const MAGIC: u64 = 0x4c4f_4f53_454b_5631;
const PAGE: usize = 4096;

/// The head of the segment.
#[repr(C)]
pub(crate) struct Header {
    magic: u64,
    size: usize,
    /// Address of chunk 0.
    chunks_at: *mut u8,
    roots: [AtomicUsize; ROOTS],
    collector: MaybeUninit<Collector>,
    pub(crate) counters: Counters,
    pub(crate) chunks: Chunks,
    /// Where small objects are carved, a chunk for each level: who may not use the emergency area must not get at a chunk
    /// that somebody else took from it.
    bumps: [Bump; Level::ALL.len()],
    uses: *const ChunkUse,
    /// How many chunks growth may make into small objects.
    pub(crate) growth: AtomicUsize,
    pub(crate) passes: Passes,
    pub(crate) marks: epoch::Marks,
    central: [Central; class::COUNT],
}

#[repr(C, align(128))]
pub(crate) struct Counters {
    /// Chunks in large blocks.
    block_chunks: AtomicUsize,
    /// Chunks of small objects.
    pub(crate) object_chunks: AtomicUsize,
    /// Reservations refused.
    refused: AtomicU64,
    /// Times that small objects were carved from the emergency area, and from its last quarter.
    pub emergencies: AtomicU64,
    pub last: AtomicU64,
    /// Bytes lost at the ends of chunks.
    pub scraps: AtomicUsize,
}

#[repr(C, align(128))]
struct Central {
    stack: BatchStack,
    carved: AtomicU64,
}

static BASE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static SIZE: AtomicUsize = AtomicUsize::new(0);

/// State of this process that one thread uses.
pub(crate) struct OneThread<T>(UnsafeCell<T>);

// SAFETY: while the heap is attached one thread of the process uses it (see the module's page), and while it is not,
// nothing touches these statics.
unsafe impl<T> Sync for OneThread<T> {}

impl<T> OneThread<T> {
    pub const fn new(value: T) -> Self {
        OneThread(UnsafeCell::new(value))
    }

    #[inline(always)]
    pub fn get(&self) -> *mut T {
        debug_assert!(on_the_one_thread(), "two threads of a process use a shared heap");
        self.0.get()
    }
}

/// Is this the thread that first used the heap since this process was attached? For assertions.
fn on_the_one_thread() -> bool {
    if !attached() {
        return true;
    }
    // SAFETY: always allowed. A fork keeps its thread's identity.
    let me = unsafe { libc::pthread_self() } as usize;
    let first = THE_ONE_THREAD.compare_exchange(0, me, Relaxed, Relaxed).unwrap_or_else(|first| first);
    first == 0 || first == me
}

static THE_ONE_THREAD: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Copy)]
struct Magazine {
    first: *mut u8,
    count: u32,
}

struct Magazines {
    of: [Magazine; class::COUNT],
    /// Classes with fewer than [`RESERVED`] objects.
    low: u128,
    /// Blocks reserved for one allocation each.
    held: [(*mut u8, usize); HELD],
}

/// How many large blocks a process can hold in reserve.
pub(crate) const HELD: usize = 8;

const EMPTY: Magazines = Magazines {
    of: [Magazine { first: ptr::null_mut(), count: 0 }; class::COUNT],
    low: !0,
    held: [(ptr::null_mut(), 0); HELD],
};

static MAGAZINES: OneThread<Magazines> = OneThread::new(EMPTY);

/// Objects a magazine holds at most; half of them go back when it is full.
const fn capacity(c: usize) -> u32 {
    let by_bytes = (CHUNK / class::size(c)) as u32;
    if by_bytes < 2 * RESERVED {
        2 * RESERVED
    } else if by_bytes > 128 {
        128
    } else {
        by_bytes
    }
}

static CAPACITY: [u32; class::COUNT] = {
    let mut all = [0; class::COUNT];
    let mut c = 0;
    while c < class::COUNT {
        all[c] = capacity(c);
        c += 1;
    }
    all
};

/// Makes a new heap of the `size` bytes at `mem` and attaches this process and its later forks to it. Of these,
/// `emergency` bytes serve only operations that free memory. Called where the segment is made, and again after a crash
/// restart: it forgets every earlier heap, and all that this process knew of it.
///
/// Panics if the segment is smaller than [`MIN_SIZE`] plus the emergency area, or if [`crate::SharedAlloc`] is not the
/// global allocator; what is beyond [`MAX_SIZE`] is not used.
///
/// # Safety
/// `mem` is mapped shared for `size` bytes, for as long as any process is attached, 128-aligned, and used by nobody. No
/// other thread of this process runs inside this crate. Nothing made in an earlier heap is used any more.
pub unsafe fn create(mem: *mut u8, size: usize, emergency: usize) {
    assert!(mem.addr().is_multiple_of(128), "the segment must be 128-aligned");
    assert!(size >= MIN_SIZE.saturating_add(emergency), "a shared heap of {size} bytes is too small");
    let size = size.min(MAX_SIZE);
    forget_process_state();
    watch_forks();

    let bitmap_at = size_of::<Header>().next_multiple_of(128);
    let bitmap_words = words_for(size / CHUNK);
    let uses_at = bitmap_at + bitmap_words * 8;
    let uses_end = uses_at + size / CHUNK * size_of::<ChunkUse>();
    let chunks_at = mem.wrapping_add(uses_end);
    let chunks_at = chunks_at.wrapping_add(chunks_at.align_offset(PAGE));
    let count = (size - (chunks_at.addr() - mem.addr())) / CHUNK;
    let kept = emergency.div_ceil(CHUNK);

    // SAFETY: the header, the bitmap and the uses lie in the segment, which is ours; zeroes are valid for all but
    // `collector`, which is MaybeUninit, and the fields written here.
    unsafe {
        ptr::write_bytes(mem, 0, uses_end);
        let header = mem.cast::<Header>();
        ptr::addr_of_mut!((*header).chunks).write(Chunks::new(mem.add(bitmap_at).cast(), count, kept));
        ptr::addr_of_mut!((*header).chunks_at).write(chunks_at);
        ptr::addr_of_mut!((*header).uses).write(mem.add(uses_at).cast());
        (*header).growth.store(count, Relaxed);
        ptr::addr_of_mut!((*header).size).write(size);
        ptr::addr_of_mut!((*header).magic).write(MAGIC);
    }
    BASE.store(mem, Relaxed);
    SIZE.store(size, Relaxed);

    let collector = scope::with(|| {
        let probe = Box::new(0u64);
        assert!(contains(&raw const *probe), "loosekv_shm::SharedAlloc must be the global allocator");
        Collector::new()
    });
    // SAFETY: the header is ours alone until this process forks.
    unsafe { ptr::addr_of_mut!((*mem.cast::<Header>()).collector).write(MaybeUninit::new(collector)) };
}

/// Takes this process (not the others) off the heap: it uses private memory from now on.
///
/// # Safety
/// Nothing in the heap is used by this process any more; no other thread runs inside this crate.
pub unsafe fn detach() {
    forget_process_state();
    BASE.store(ptr::null_mut(), Relaxed);
    SIZE.store(0, Relaxed);
}

/// Statics as in a process that never used a heap; gives nothing back.
fn forget_process_state() {
    THE_ONE_THREAD.store(0, Relaxed);
    // SAFETY: one thread.
    unsafe { *MAGAZINES.get() = EMPTY };
    epoch::forget();
    scope::reset();
    latch::forget_held();
}

/// In a fork the magazines and the epoch handle are still the parent's: the child must not use its copies.
fn watch_forks() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn in_child() {
        if attached() {
            forget_process_state();
        }
    }
    if !cfg!(miri) && !WATCHING.swap(true, Relaxed) {
        // SAFETY: the handler only stores to statics, which is allowed between fork and exec.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        assert_eq!(failed, 0, "pthread_atfork");
    }
}

/// Is this process attached to a shared heap?
#[inline(always)]
pub fn attached() -> bool {
    SIZE.load(Relaxed) != 0
}

/// Address of the segment; 0 when not attached.
#[inline(always)]
pub fn base() -> usize {
    base_ptr().addr()
}

impl Header {
    pub(crate) fn bump(&self, level: Level) -> &Bump {
        &self.bumps[level as usize]
    }

    pub(crate) fn stack(&self, c: usize) -> &BatchStack {
        &self.central[c].stack
    }

    pub(crate) fn count_carved(&self, c: usize, objects: usize) {
        self.central[c].carved.fetch_add(objects as u64, Relaxed);
    }

    pub(crate) fn count_uncarved(&self, c: usize, objects: usize) {
        self.central[c].carved.fetch_sub(objects as u64, Relaxed);
    }

    /// Offset of a chunk in the segment.
    pub(crate) fn offset_of(&self, chunk: usize) -> usize {
        self.chunks_at.addr() + chunk * CHUNK - base()
    }

    /// The chunk of an offset in the segment.
    pub(crate) fn chunk_of(&self, offset: usize) -> usize {
        (base() + offset - self.chunks_at.addr()) / CHUNK
    }

    pub(crate) fn use_of(&self, chunk: usize) -> &ChunkUse {
        assert!(chunk < self.chunks.count());
        // SAFETY: there is one for each chunk; zeroes are valid, and all in it is atomic.
        unsafe { &*self.uses.add(chunk) }
    }

    pub(crate) fn use_at(&self, offset: usize) -> &ChunkUse {
        self.use_of(self.chunk_of(offset))
    }

    /// A chunk to carve small objects from.
    pub(crate) fn take_for_objects(&self, level: Level) -> Option<usize> {
        let taken = &self.counters.object_chunks;
        let most = if level == Level::Growth { self.growth.load(Relaxed) } else { usize::MAX };
        taken.fetch_update(Relaxed, Relaxed, |n| (n < most).then_some(n + 1)).ok()?;
        let chunk = self.chunks.take_one(level);
        if chunk.is_none() {
            taken.fetch_sub(1, Relaxed);
        }
        chunk
    }

    /// Back with a chunk that no object is in.
    pub(crate) fn give_of_objects(&self, chunk: usize) {
        self.chunks.give(chunk, 1);
        self.counters.object_chunks.fetch_sub(1, Relaxed);
    }
}

/// Start of the segment; null when not attached.
#[inline(always)]
pub fn base_ptr() -> *mut u8 {
    BASE.load(Relaxed)
}

/// Is this an address in the segment? Never when not attached.
#[inline(always)]
pub fn contains<T: ?Sized>(ptr: *const T) -> bool {
    ptr.cast::<u8>().addr().wrapping_sub(base()) < SIZE.load(Relaxed)
}

#[inline(always)]
pub(crate) fn header() -> &'static Header {
    debug_assert!(attached(), "no shared heap");
    // SAFETY: attached, so `create` has written the header, and the segment stays mapped. What changes later is atomic.
    unsafe { &*base_ptr().cast::<Header>() }
}

/// One of the [`ROOTS`] words from which processes find what lives in the heap. Zero in a new heap.
///
/// Panics when not attached, or when there is no such root.
pub fn root(i: usize) -> &'static AtomicUsize {
    assert!(attached(), "no shared heap");
    &header().roots[i]
}

/// The collector in the heap; only when attached.
#[inline(always)]
pub(crate) fn collector() -> &'static Collector {
    // SAFETY: `create` wrote it before anybody could get here.
    unsafe { header().collector.assume_init_ref() }
}

// ---- small objects

#[inline(always)]
fn magazines() -> *mut Magazines {
    MAGAZINES.get()
}

/// Takes memory for a layout from the heap; null when there is none. Small objects may use the emergency area, since
/// Rust's answer to null is to abort: who wants to be refused instead reserves first.
#[inline]
pub(crate) fn allocate(bytes: usize, align: usize) -> *mut u8 {
    let Some(c) = class::of_layout(bytes, align) else { return allocate_chunks(bytes, align, Level::Normal) };
    // SAFETY: one thread; objects in a magazine are free and linked.
    unsafe {
        let magazine = &raw mut (*magazines()).of[c];
        if (*magazine).count == 0 && !refill(c, Level::Last) {
            return ptr::null_mut();
        }
        let object = (*magazine).first;
        (*magazine).first = next(object);
        (*magazine).count -= 1;
        if (*magazine).count < RESERVED {
            (*magazines()).low |= 1 << c;
        }
        object
    }
}

/// # Safety
/// `ptr` came from [`allocate`] with the same layout, and nobody uses it.
#[inline]
pub(crate) unsafe fn release(ptr: *mut u8, bytes: usize, align: usize) {
    let Some(c) = class::of_layout(bytes, align) else {
        // SAFETY: by the caller's promise.
        return unsafe { release_chunks(ptr, bytes) };
    };
    // SAFETY: one thread; the object is free and ours now.
    unsafe {
        let magazine = &raw mut (*magazines()).of[c];
        link(ptr, (*magazine).first);
        (*magazine).first = ptr;
        (*magazine).count += 1;
        if (*magazine).count >= CAPACITY[c] {
            spill(c, CAPACITY[c] / 2);
        }
    }
}

/// Do both layouts get memory of the same size?
pub(crate) fn same_room(bytes: usize, new_bytes: usize, align: usize) -> bool {
    match (class::of_layout(bytes, align), class::of_layout(new_bytes, align)) {
        (Some(a), Some(b)) => a == b,
        (None, None) => bytes.div_ceil(CHUNK) == new_bytes.div_ceil(CHUNK),
        _ => false,
    }
}

/// Gets at least one more object into the magazine of class `c`.
#[cold]
#[inline(never)]
pub(crate) fn refill(c: usize, level: Level) -> bool {
    while level == Level::Growth && is_overgrown() {
        if !give_back::run() {
            return false;
        }
    }
    let got = loop {
        let passes = header().passes.now();
        // SAFETY: what central stacks hold is free memory of the class.
        let batch = unsafe { header().central[c].stack.pop(base_ptr()) };
        // What is free is cut up before more is taken than growth may take: who frees something would take it as often as growth, which
        // has had it then, comes back.
        let batch = batch.or_else(|| carve(c, Level::Growth)).or_else(|| split(c)).or_else(|| carve(c, level));
        match batch {
            Some(batch) => break batch,
            // Somebody may have had in hand what is free.
            None if header().passes.wait_for_another(passes) => {}
            None if give_back::run() => {}
            None => return false,
        }
    };
    // SAFETY: one thread; the batch is ours and linked.
    unsafe {
        let all = magazines();
        let magazine = &raw mut (*all).of[c];
        if !(*magazine).first.is_null() {
            let mut last = got.first;
            for _ in 1..got.count {
                last = next(last);
            }
            link(last, (*magazine).first);
        }
        (*magazine).first = got.first;
        (*magazine).count += got.count;
        if (*magazine).count >= RESERVED {
            (*all).low &= !(1 << c);
        }
    }
    true
}

/// Gives `count` objects of a magazine to the central stack.
#[cold]
#[inline(never)]
fn spill(c: usize, count: u32) {
    // SAFETY: one thread; objects in a magazine are free and linked.
    unsafe {
        let magazine = &raw mut (*magazines()).of[c];
        debug_assert!(count > 0 && count <= (*magazine).count);
        let first = (*magazine).first;
        let mut last = first;
        for _ in 1..count {
            last = next(last);
        }
        (*magazine).first = next(last);
        (*magazine).count -= count;
        if (*magazine).count < RESERVED {
            (*magazines()).low |= 1 << c;
        }
        link(last, ptr::null_mut());
        header().central[c].stack.push(base_ptr(), Batch { first, count });
    }
}

/// Gives back everything that this process holds in reserve: before the process forks (or the reserve is of no use to
/// anybody until it exits), and when it exits.
pub fn flush_magazines() {
    if !attached() {
        return;
    }
    for (c, capacity) in CAPACITY.iter().enumerate() {
        loop {
            // SAFETY: one thread.
            let count = unsafe { (*magazines()).of[c].count };
            if count == 0 {
                break;
            }
            spill(c, count.min(capacity / 2));
        }
    }
    release_reserved();
}

// ---- chunks

fn allocate_chunks(bytes: usize, align: usize, level: Level) -> *mut u8 {
    if align > PAGE {
        return ptr::null_mut();
    }
    let n = bytes.div_ceil(CHUNK).max(1);
    take_held(n).or_else(|| take_chunks(n, level)).unwrap_or(ptr::null_mut())
}

fn take_chunks(n: usize, level: Level) -> Option<*mut u8> {
    let start = loop {
        match header().chunks.take_run(n, level) {
            Some(start) => break start,
            None if give_back::run() => {}
            None => return None,
        }
    };
    header().counters.block_chunks.fetch_add(n, Relaxed);
    Some(header().chunks_at.wrapping_add(start * CHUNK))
}

/// Gives to all what this process has of small objects beyond what a reservation guarantees.
pub(crate) fn spill_surplus() {
    for c in 0..class::COUNT {
        // SAFETY: one thread.
        let count = unsafe { (*magazines()).of[c].count };
        if count > RESERVED {
            spill(c, count - RESERVED);
        }
    }
}

/// # Safety
/// As for [`release`].
unsafe fn release_chunks(ptr: *mut u8, bytes: usize) {
    let n = bytes.div_ceil(CHUNK).max(1);
    let at = ptr.addr() - header().chunks_at.addr();
    debug_assert!(at.is_multiple_of(CHUNK), "not a block");
    header().counters.block_chunks.fetch_sub(n, Relaxed);
    header().chunks.give(at / CHUNK, n);
}

fn take_held(n: usize) -> Option<*mut u8> {
    // SAFETY: one thread.
    let held = unsafe { &mut (*magazines()).held };
    let slot = held.iter_mut().find(|(p, chunks)| !p.is_null() && *chunks == n)?;
    Some(std::mem::replace(slot, (ptr::null_mut(), 0)).0)
}

/// Makes sure that for each of the sizes, which are larger than any class, one block is held. Sizes given twice get two.
pub(crate) fn hold(sizes: impl Iterator<Item = usize>, level: Level) -> bool {
    let mut needed: [usize; HELD] = [0; HELD];
    for (i, bytes) in sizes.enumerate() {
        match needed.get_mut(i) {
            Some(slot) => *slot = bytes.div_ceil(CHUNK),
            None => return false,
        }
    }
    // SAFETY: one thread.
    let held = unsafe { &mut (*magazines()).held };
    let mut claimed = [false; HELD];
    for n in needed.into_iter().filter(|n| *n > 0) {
        if let Some(i) = (0..HELD).find(|&i| held[i].1 == n && !claimed[i]) {
            claimed[i] = true;
            continue;
        }
        // Prefer an empty slot; a block held for another size, and not used since, goes back.
        let free = (0..HELD).find(|&i| held[i].0.is_null());
        let Some(i) = free.or_else(|| (0..HELD).find(|&i| !claimed[i] && !needed.contains(&held[i].1))) else {
            return false;
        };
        let (old, chunks) = std::mem::replace(&mut held[i], (ptr::null_mut(), 0));
        if !old.is_null() {
            // SAFETY: a block that this process held and nobody used.
            unsafe { release_chunks(old, chunks * CHUNK) };
        }
        let Some(block) = take_chunks(n, level) else { return false };
        held[i] = (block, n);
        claimed[i] = true;
    }
    true
}

/// Gives back the large blocks that [`crate::reserve()`] set aside and nobody used.
pub fn release_reserved() {
    if !attached() {
        return;
    }
    for i in 0..HELD {
        // SAFETY: one thread; a block that this process held and nobody used.
        unsafe {
            let (block, n) = std::mem::replace(&mut (*magazines()).held[i], (ptr::null_mut(), 0));
            if !block.is_null() {
                release_chunks(block, n * CHUNK);
            }
        }
    }
}

/// Memory of `bytes`, 64-byte aligned and not zeroed: in the shared heap when attached, inside the scope or not, else from
/// the system. `None` when there is none, or only what is left to others ([`limit_growth`]): nothing aborts. Meant for blocks of
/// 32 KiB and more.
pub fn alloc_block(bytes: usize) -> Option<NonNull<u8>> {
    let layout = block_layout(bytes)?;
    if !attached() {
        // SAFETY: not of size zero.
        return NonNull::new(unsafe { System.alloc(layout) });
    }
    match class::of_layout(layout.size(), layout.align()) {
        None => NonNull::new(allocate_chunks(layout.size(), layout.align(), Level::Growth)),
        // A fallible call must not eat the emergency area, so no `allocate` here.
        // SAFETY: one thread.
        Some(c) if unsafe { (*magazines()).of[c].count } > 0 || refill(c, Level::Normal) => {
            NonNull::new(allocate(layout.size(), layout.align()))
        }
        Some(_) => None,
    }
}

/// Frees a block.
///
/// # Safety
/// `ptr` came from [`alloc_block`] for as many `bytes`, in any process of this heap, and nobody uses it.
pub unsafe fn free_block(ptr: NonNull<u8>, bytes: usize) {
    let Some(layout) = block_layout(bytes) else { return debug_assert!(false, "no block is that large") };
    // SAFETY: by the caller's promise; an address in the segment came from there.
    unsafe {
        if contains(ptr.as_ptr()) {
            release(ptr.as_ptr(), layout.size(), layout.align());
        } else {
            System.dealloc(ptr.as_ptr(), layout);
        }
    }
}

fn block_layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), BLOCK_ALIGN).ok()
}

// ---- reservations (the policy is in reserve.rs)

/// The classes whose magazines are low.
#[inline(always)]
pub(crate) fn low() -> u128 {
    // SAFETY: one thread.
    unsafe { (*magazines()).low }
}

/// Fills the magazine of class `c` until it holds what a reservation guarantees.
pub(crate) fn stock(c: usize, level: Level) -> bool {
    loop {
        // SAFETY: one thread.
        unsafe {
            if (*magazines()).of[c].count >= RESERVED {
                (*magazines()).low &= !(1 << c);
                return true;
            }
        }
        if !refill(c, level) {
            return false;
        }
    }
}

/// Has this process at least that many objects of each class in the set?
pub(crate) fn has(needs: reserve::Needs, count: u32) -> bool {
    // SAFETY: one thread.
    needs.classes().all(|c| unsafe { (*magazines()).of[c].count } >= count)
}

/// Was the last quarter of the emergency area ever needed?
pub(crate) fn last_was_needed() -> bool {
    header().counters.last.load(Relaxed) > 0
}

/// Has this process an object of each class for every `n` that are not known to be free?
pub(crate) fn has_one_in(needs: reserve::Needs, n: u64) -> bool {
    needs.classes().all(|c| {
        let central = &header().central[c];
        let used = central.carved.load(Relaxed).saturating_sub(central.stack.objects());
        // SAFETY: one thread.
        let mine = u64::from(unsafe { (*magazines()).of[c].count });
        mine * n >= used
    })
}

pub(crate) fn count_refusal() -> reserve::Full {
    header().counters.refused.fetch_add(1, Relaxed);
    reserve::Full
}

// ---- statistics

/// What the heap holds. Exact when no other process uses it; a process that was killed skews it for good.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct HeapStats {
    /// Bytes of the segment.
    pub size: usize,
    /// Bytes of chunks that nobody has taken, the emergency area included.
    pub free: usize,
    /// Bytes of those that are kept for emergencies.
    pub emergency: usize,
    /// Bytes in large blocks.
    pub blocks: usize,
    /// Bytes that were ever made into small objects.
    pub carved: usize,
    /// Bytes of small objects that are free for every process.
    pub central: usize,
    /// Bytes of small objects and blocks that this process keeps for itself.
    pub mine: usize,
    /// Bytes lost to alignment and at the ends of chunks.
    pub scraps: usize,
    /// Bytes in use: blocks and small objects, what other processes keep for themselves included.
    pub live: usize,
    /// Reservations that were refused.
    pub refused: u64,
    /// Times the emergency area was used.
    pub emergencies: u64,
    /// Times its last quarter was used.
    pub last: u64,
}

/// See [`HeapStats`]. All zero when not attached.
pub fn stats() -> HeapStats {
    if !attached() {
        return HeapStats::default();
    }
    let header = header();
    let mut stats = HeapStats {
        size: header.size,
        free: header.chunks.free() * CHUNK,
        emergency: header.chunks.kept() * CHUNK,
        blocks: header.counters.block_chunks.load(Relaxed) * CHUNK,
        scraps: header.counters.scraps.load(Relaxed),
        refused: header.counters.refused.load(Relaxed),
        emergencies: header.counters.emergencies.load(Relaxed),
        last: header.counters.last.load(Relaxed),
        ..HeapStats::default()
    };
    for class in class_stats() {
        stats.carved += class.bytes * class.carved;
        stats.central += class.bytes * class.central;
        stats.mine += class.bytes * class.mine;
    }
    // SAFETY: one thread.
    let held = unsafe { (*magazines()).held };
    stats.mine += held.iter().map(|(_, n)| n * CHUNK).sum::<usize>();
    stats.live = (stats.blocks + stats.carved).saturating_sub(stats.central + stats.mine);
    stats
}

/// Objects of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassStats {
    /// Bytes of an object.
    pub bytes: usize,
    /// Objects that were ever made.
    pub carved: usize,
    /// Of these, free for every process.
    pub central: usize,
    /// Of these, free in this process.
    pub mine: usize,
}

/// The sizes of which the heap has objects. Nothing when not attached.
pub fn class_stats() -> impl Iterator<Item = ClassStats> {
    let classes = if attached() { class::COUNT } else { 0 };
    (0..classes)
        .map(|c| ClassStats {
            bytes: class::size(c),
            carved: header().central[c].carved.load(Relaxed) as usize,
            central: header().central[c].stack.objects() as usize,
            // SAFETY: one thread.
            mine: unsafe { (*magazines()).of[c].count as usize },
        })
        .filter(|c| c.carved > 0)
}
