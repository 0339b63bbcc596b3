//! Whereabouts of pages: which buffer held a page when it was last asked for.
//!
//! The buffer manager finds a page by a hash table under a lock, which costs several cache misses. Here stands, for a hash of
//! the page's number, the buffer that it was found in; PostgreSQL then only looks whether the page is still there
//! (`ReadRecentBuffer`). A wrong entry costs that look and nothing else, so entries are written and read without any order.
//!
//! That way a page's usage count is not raised, by which the buffers' clock tells what is in use. So reads of a page whose
//! count is low take the long way, and of the others every few. And where data are much larger than the buffers, the look is in vain
//! mostly, and two lines of cache have to be waited for: a process that has seldom found a page looks only now and then.

use crate::host::global;
use loosekv_engine::cpu::{fetch, prefetch, Near};
use loosekv_engine::types::PAGE_SIZE;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

/// Pages whose places are the same push each other out.
const PER_BUFFER: usize = 4;
/// One read in so many is left to the buffer manager.
const LONG_WAY_EACH: u32 = 8;
/// Pages that the clock would soon take for unused are left to it, too (the count ends at 5).
const USED: u32 = 3;
/// A process that has been out of luck looks once in so many reads.
const LOOKED_EACH: u32 = 8;
/// How much luck one page that was found is, and how much there can be. One that was not costs one.
const LUCK_OF_ONE: u32 = 2;
const MOST_LUCK: u32 = 64;
/// Where the usage count stands in a buffer's state.
const USAGE_SHIFT: u32 = 18;
const USAGE_MASK: u32 = 0xf;

pub struct Whereabouts {
    entries: *const AtomicI32,
    mask: usize,
}

// SAFETY: the entries are atomic and live as long as the segment.
unsafe impl Sync for Whereabouts {}

/// Reads of this process. One process is one thread; the atomic is for the language.
static READS: AtomicU32 = AtomicU32::new(0);
/// How much luck this process has had lately.
static LUCK: AtomicU32 = AtomicU32::new(MOST_LUCK);

impl Whereabouts {
    /// So many entries are wanted for the server's buffers.
    pub fn wanted() -> usize {
        // SAFETY: set before shared memory is asked for.
        let buffers = usize::try_from(unsafe { pg_sys::NBuffers }).unwrap_or(0);
        (PER_BUFFER * buffers).next_power_of_two()
    }

    /// # Safety
    /// `entries` are `count` zeros, a power of two, for the life of the segment.
    pub unsafe fn new(entries: *const AtomicI32, count: usize) -> Whereabouts {
        debug_assert!(count.is_power_of_two());
        Whereabouts { entries, mask: count - 1 }
    }

    fn entry(&self, file: pg_sys::Oid, page: u32) -> &AtomicI32 {
        // Neighbours in a file are neighbours here.
        let at = (u32::from(file).wrapping_mul(0x9e37_79b9) as usize).wrapping_add(page as usize) & self.mask;
        // SAFETY: within the array.
        unsafe { &*self.entries.add(at) }
    }
}

/// The buffer that may hold a page of this relation; `None`: ask the buffer manager.
#[inline]
pub(super) fn find(rel: pg_sys::Relation, page: u32) -> Option<pg_sys::Buffer> {
    let reads = READS.load(Relaxed).wrapping_add(1);
    READS.store(reads, Relaxed);
    // SAFETY: the relation is open.
    let (file, shared) = unsafe { ((*rel).rd_node.relNode, (*rel).rd_backend == pg_sys::InvalidBackendId) };
    let is_tried = LUCK.load(Relaxed) > 0 || reads % LOOKED_EACH == 1;
    if reads.is_multiple_of(LONG_WAY_EACH) || !is_tried || !shared {
        return None;
    }
    let buffer = global::get()?.whereabouts.entry(file, page).load(Relaxed);
    let found = (buffer > 0 && usage(buffer) >= USED).then_some(buffer);
    if found.is_none() {
        was_there(false);
    }
    found
}

/// Whether the page was in the buffer that [`find`] has named.
#[inline]
pub(super) fn was_there(was: bool) {
    let luck = LUCK.load(Relaxed);
    LUCK.store(if was { MOST_LUCK.min(luck + LUCK_OF_ONE) } else { luck.saturating_sub(1) }, Relaxed);
}

/// Whether the page is in the buffer where it was found last. Where not, it may be in another.
#[inline]
pub(super) fn knows(tag: &pg_sys::BufferTag) -> bool {
    holder(tag).is_some()
}

/// The buffer where the page was found last, if it seems to be there still.
pub(super) fn holder(tag: &pg_sys::BufferTag) -> Option<pg_sys::Buffer> {
    let buffer = global::get()?.whereabouts.entry(tag.rnode.relNode, tag.blockNum).load(Relaxed);
    if buffer <= 0 {
        return None;
    }
    // Nothing keeps the tag from being changed meanwhile: what is read may be wrong, and is believed for no more than a hint.
    // SAFETY: a buffer's number, so it has a descriptor.
    let there =
        unsafe { (&raw const (*pg_sys::BufferDescriptors.add(buffer as usize - 1)).bufferdesc.tag).read_volatile() };
    same(&there, tag).then_some(buffer)
}

/// Whether these are one page's.
pub(super) fn same(a: &pg_sys::BufferTag, b: &pg_sys::BufferTag) -> bool {
    let (file, other) = (&a.rnode, &b.rnode);
    let files = file.relNode == other.relNode && file.dbNode == other.dbNode && file.spcNode == other.spcNode;
    files && a.blockNum == b.blockNum && a.forkNum == b.forkNum
}

/// Lets the processor fetch these places of the page, and what is looked at on the way to them, where it was last asked for. (What is
/// there by now may be another page; that does no harm.)
#[inline]
pub(super) fn touch(rel: pg_sys::Relation, page: u32, places: impl Iterator<Item = usize>, near: Near) {
    let Some(global) = global::get() else { return };
    // SAFETY: the relation is open.
    let (file, shared) = unsafe { ((*rel).rd_node.relNode, (*rel).rd_backend == pg_sys::InvalidBackendId) };
    let buffer = global.whereabouts.entry(file, page).load(Relaxed);
    if !shared || buffer <= 0 {
        return;
    }
    let at = buffer as usize - 1;
    // SAFETY: set at process start.
    let (descriptors, blocks) = unsafe { (pg_sys::BufferDescriptors, pg_sys::BufferBlocks.cast::<u8>()) };
    prefetch(descriptors.wrapping_add(at));
    places.for_each(|place| fetch(blocks.wrapping_add(at * PAGE_SIZE + place), near));
}

/// A buffer's usage count, as of now.
#[inline]
fn usage(buffer: pg_sys::Buffer) -> u32 {
    // SAFETY: a buffer's number, so it has a descriptor, whose state is read and written as an atomic by all.
    let state = unsafe {
        let padded = pg_sys::BufferDescriptors.add(buffer as usize - 1);
        AtomicU32::from_ptr(&raw mut (*padded).bufferdesc.state.value).load(Relaxed)
    };
    state >> USAGE_SHIFT & USAGE_MASK
}

/// The page was found in this buffer.
#[inline]
pub(super) fn note(rel: pg_sys::Relation, page: u32, buffer: pg_sys::Buffer) {
    if let (Some(global), true) = (global::get(), buffer > 0) {
        // SAFETY: the relation is open.
        let entry = global.whereabouts.entry(unsafe { (*rel).rd_node.relNode }, page);
        // Many have the line. Who seldom finds a page has not: for him to load it is to wait.
        if LUCK.load(Relaxed) == 0 || entry.load(Relaxed) != buffer {
            entry.store(buffer, Relaxed);
        }
    }
}
