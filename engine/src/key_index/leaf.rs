//! A leaf of the key index: some neighbouring keys and their values in one block. Only values change after it was made.
//!
//! ```text
//!   header 16 | prefix | high key | heads 4n | values 4n | starts 2n | rests
//!
//!   header   size of the block 4, keys n 2, dead among them 2, length of prefix 2, of high key 2 (all ones: none),
//!            of the suffixes 2 (all ones: they vary), place of the heads 2
//!   prefix   what all the keys begin with; the rest of each is its suffix
//!   high     the leaf answers for keys below this one (no high key: for all that follow)
//!   heads    first four bytes of the suffixes, padded with zeros, as numbers: ascending
//!   values   [ tombstone 1 ][ L0 id 31 ], all ones: dead
//!   starts   only if the suffixes vary: [ place of the rest in the rests 13 ][ length of the suffix, at most 4: 3 ]
//!   rests    what of each suffix follows its head
//! ```
//!
//! A search compares the prefix once, then halves the heads without a branch, and compares rests only where heads are
//! equal.

use super::LeafSlot;
use crate::cpu::{prefetch, LINE};
use loosekv_shm::epoch;
use std::cmp::Ordering;
use std::marker::PhantomData;
use std::mem::{align_of, size_of, MaybeUninit};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Most keys of a leaf.
pub(super) const MOST_KEYS: usize = 128;
/// Most that its keys may weigh ([`weight`]).
pub(super) const MOST_WEIGHT: usize = 8192;

/// The value of a key that is not there.
pub(super) const DEAD: u32 = u32::MAX;

/// What [`Header::suffix`] says when lengths differ.
const VARIES: u16 = u16::MAX;
const NO_HIGH: u16 = u16::MAX;
/// Bytes of a suffix that stand in its head.
const HEAD: usize = 4;
/// Bits of a start that tell the length of a short suffix.
const SHORT_BITS: u32 = 3;
/// Lines from the start of a leaf on among which its heads are, mostly.
const HEAD_LINES: usize = (size_of::<Header>() + 32 + HEAD * MOST_KEYS).div_ceil(LINE);
/// What short copies move at once.
const WIDE: usize = 16;

/// At most what a key of this length takes in a leaf.
pub(super) const fn weight(key_len: usize) -> usize {
    key_len + 4 + 4 + 2
}

// Starts have 13 bits, and any key fits a leaf of its own.
const _: () = assert!(MOST_WEIGHT <= 1 << (16 - SHORT_BITS) && weight(crate::types::MAX_KEY) <= MOST_WEIGHT);

#[repr(C)]
struct Header {
    size: u32,
    count: u16,
    dead: AtomicU16,
    prefix: u16,
    high: u16,
    suffix: u16,
    heads: u16,
}

/// What a leaf's block looks like, found out before it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub count: usize,
    pub prefix: usize,
    /// Length of all the suffixes; `None`: they vary.
    pub suffix: Option<usize>,
    /// Bytes of all the rests.
    pub rests: usize,
    pub high: Option<usize>,
}

impl Shape {
    fn heads(&self) -> usize {
        (size_of::<Header>() + self.prefix + self.high.unwrap_or(0)).next_multiple_of(align_of::<u32>())
    }

    fn rests_at(&self) -> usize {
        let each = if self.suffix.is_some() { 8 } else { 10 };
        self.heads() + each * self.count
    }

    /// Bytes of the block.
    pub(super) fn size(&self) -> usize {
        self.rests_at() + self.rests
    }
}

/// A leaf that somebody else keeps alive: the reader's pin, or the writers' latch.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'l> {
    base: NonNull<u8>,
    _alive: PhantomData<&'l [u8]>,
}

impl<'l> Leaf<'l> {
    /// # Safety
    /// `base` is a leaf's block, made by [`LeafWriter`], and stays allocated for `'l`.
    pub(super) unsafe fn at(base: NonNull<u8>) -> Leaf<'l> {
        Leaf { base, _alive: PhantomData }
    }

    #[inline(always)]
    fn header(self) -> &'l Header {
        // SAFETY: a leaf begins with its header; the block is aligned for it.
        unsafe { self.base.cast().as_ref() }
    }

    /// # Safety
    /// The block has a `T` there.
    #[inline(always)]
    unsafe fn part<T>(self, at: usize) -> *mut T {
        debug_assert!(at <= self.size());
        // SAFETY: the caller's promise.
        unsafe { self.base.as_ptr().add(at).cast() }
    }

    /// # Safety
    /// These bytes are within the block, and never change.
    #[inline(always)]
    unsafe fn bytes(self, at: usize, len: usize) -> &'l [u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.part(at), len) }
    }

    pub(super) fn size(self) -> usize {
        self.header().size as usize
    }

    #[inline(always)]
    pub(super) fn count(self) -> usize {
        usize::from(self.header().count)
    }

    pub(super) fn dead(self) -> usize {
        usize::from(self.header().dead.load(Relaxed))
    }

    /// Under the latch.
    pub(super) fn set_dead(self, dead: usize) {
        debug_assert!(dead <= self.count());
        self.header().dead.store(dead as u16, Relaxed);
    }

    #[inline(always)]
    pub(super) fn prefix(self) -> &'l [u8] {
        // SAFETY: the prefix follows the header.
        unsafe { self.bytes(size_of::<Header>(), usize::from(self.header().prefix)) }
    }

    #[inline(always)]
    pub(super) fn high(self) -> Option<&'l [u8]> {
        let header = self.header();
        if header.high == NO_HIGH {
            return None;
        }
        // SAFETY: the high key follows the prefix.
        Some(unsafe { self.bytes(size_of::<Header>() + usize::from(header.prefix), usize::from(header.high)) })
    }

    /// Does it answer for this key (which is not below its low key)?
    #[inline]
    pub(super) fn covers(self, key: &[u8]) -> bool {
        self.high().is_none_or(|high| key < high)
    }

    /// Length of all the suffixes; `None`: they vary.
    #[inline(always)]
    pub(super) fn suffixes(self) -> Option<usize> {
        let len = self.header().suffix;
        (len != VARIES).then_some(usize::from(len))
    }

    #[inline(always)]
    fn heads(self) -> *const u32 {
        // SAFETY: there are `count` of them.
        unsafe { self.part(usize::from(self.header().heads)) }
    }

    #[inline(always)]
    fn values_at(self) -> usize {
        usize::from(self.header().heads) + 4 * self.count()
    }

    #[inline(always)]
    fn rests_at(self) -> usize {
        self.values_at() + if self.suffixes().is_some() { 4 } else { 6 } * self.count()
    }

    #[inline(always)]
    pub(super) fn value(self, i: usize) -> &'l AtomicU32 {
        assert!(i < self.count());
        // SAFETY: there are `count` of them, aligned as the heads are.
        unsafe { &*self.part::<AtomicU32>(self.values_at() + 4 * i) }
    }

    /// Start `i` as stored. Only where suffixes vary.
    #[inline(always)]
    fn start(self, i: usize) -> usize {
        debug_assert!(i < self.count() && self.suffixes().is_none());
        // SAFETY: there are `count` starts, behind the values.
        usize::from(unsafe { *self.part::<u16>(self.values_at() + 4 * self.count() + 2 * i) })
    }

    /// Where the rest of key `i` begins; for `count`, where the last one ends.
    #[inline(always)]
    fn rest_at(self, i: usize) -> usize {
        debug_assert!(i <= self.count());
        match self.suffixes() {
            Some(len) => self.rests_at() + i * len.saturating_sub(HEAD),
            None if i == self.count() => self.size(),
            None => self.rests_at() + (self.start(i) >> SHORT_BITS),
        }
    }

    #[inline(always)]
    fn rest(self, i: usize) -> &'l [u8] {
        let from = self.rest_at(i);
        // SAFETY: rests stand one behind the other up to the end of the block.
        unsafe { self.bytes(from, self.rest_at(i + 1) - from) }
    }

    #[inline(always)]
    fn suffix_len(self, i: usize) -> usize {
        self.suffixes().unwrap_or_else(|| match self.start(i) & ((1 << SHORT_BITS) - 1) {
            HEAD => HEAD + self.rest(i).len(),
            short => short,
        })
    }

    #[inline]
    pub(super) fn key_len(self, i: usize) -> usize {
        self.prefix().len() + self.suffix_len(i)
    }

    /// What the keys `from..to` weigh.
    pub(super) fn weight(self, from: usize, to: usize) -> usize {
        match self.suffixes() {
            Some(suffix) => (to - from) * weight(self.prefix().len() + suffix),
            None => (from..to).map(|i| weight(self.key_len(i))).sum(),
        }
    }

    /// Where the key is, or where it would be.
    #[inline]
    pub(super) fn find(self, key: &[u8]) -> Result<usize, usize> {
        self.prefetch();
        let Some(suffix) = key.strip_prefix(self.prefix()) else {
            return Err(if key < self.prefix() { 0 } else { self.count() });
        };
        let head = head_of(suffix);
        let at = self.lower(0, self.count(), head);
        if at == self.count() || self.head(at) != head {
            return Err(at);
        }
        match self.cmp_suffix(at, suffix) {
            Ordering::Equal => Ok(at),
            Ordering::Greater => Err(at),
            Ordering::Less => self.find_among_equal(at + 1, head, suffix),
        }
    }

    /// Begins to fetch the heads, which a search looks at one after the other.
    #[inline(always)]
    fn prefetch(self) {
        (1..HEAD_LINES).for_each(|line| prefetch(self.base.as_ptr().wrapping_add(line * LINE)));
    }

    /// Goes on from `at`, among the keys of this head.
    fn find_among_equal(self, at: usize, head: u32, suffix: &[u8]) -> Result<usize, usize> {
        let mut to = match head.checked_add(1) {
            Some(next) => self.lower(at, self.count(), next),
            None => self.count(),
        };
        let mut from = at;
        while from < to {
            let middle = (from + to) / 2;
            match self.cmp_suffix(middle, suffix) {
                Ordering::Equal => return Ok(middle),
                Ordering::Less => from = middle + 1,
                Ordering::Greater => to = middle,
            }
        }
        Err(from)
    }

    #[inline(always)]
    fn head(self, i: usize) -> u32 {
        debug_assert!(i < self.count());
        // SAFETY: there are `count` of them.
        unsafe { *self.heads().add(i) }
    }

    /// The first of `from..to` whose head is not below this one.
    #[inline(always)]
    fn lower(self, from: usize, to: usize, head: u32) -> usize {
        debug_assert!(from <= to && to <= self.count());
        let (mut at, mut left) = (from, to - from);
        while left > 1 {
            let half = left / 2;
            // A conditional move: which way it goes cannot be foretold.
            at = if self.head(at + half - 1) < head { at + half } else { at };
            left -= half;
        }
        at + usize::from(left == 1 && self.head(at) < head)
    }

    /// Compares a key's suffix with another one whose head is equal.
    #[inline(always)]
    fn cmp_suffix(self, i: usize, suffix: &[u8]) -> Ordering {
        let len = self.suffix_len(i);
        if len < HEAD || suffix.len() < HEAD {
            // One of them is short, and then like the other up to its end.
            return len.cmp(&suffix.len());
        }
        self.rest(i).cmp(suffix.get(HEAD..).unwrap_or_default())
    }

    /// Appends key `i` to `out`, if that takes no allocation.
    #[inline]
    pub(super) fn append_key(self, i: usize, out: &mut Vec<u8>) -> bool {
        let (prefix, suffix) = (self.prefix(), self.suffix_len(i));
        let len = prefix.len() + suffix;
        let spare = out.capacity() - out.len();
        if spare < len {
            return false;
        }
        if spare < len + WIDE {
            out.extend_from_slice(prefix);
            out.extend_from_slice(self.head(i).to_be_bytes().get(..suffix.min(HEAD)).unwrap_or_default());
            out.extend_from_slice(self.rest(i));
            return true;
        }
        let rest = self.rest(i);
        // What is written beyond a part is overwritten by the next one or lies beyond the new length.
        // SAFETY: there is space for the key and one wide step more, so for each part; over-reading a part stays before
        // the values (the prefix) or in the block (the rest).
        unsafe {
            let to = out.as_mut_ptr().add(out.len());
            copy_short(prefix.as_ptr(), to, prefix.len(), self.values_at() - size_of::<Header>());
            to.add(prefix.len()).cast::<[u8; HEAD]>().write_unaligned(self.head(i).to_be_bytes());
            copy_short(rest.as_ptr(), to.add(prefix.len() + HEAD), rest.len(), self.size() - self.rest_at(i));
            out.set_len(out.len() + len);
        }
        true
    }

    /// Makes `out` key `i`.
    pub(super) fn key(self, i: usize, out: &mut Vec<u8>) {
        out.clear();
        out.reserve(self.key_len(i) + WIDE);
        let copied = self.append_key(i, out);
        debug_assert!(copied, "there is space");
    }
}

/// Copies in wide steps where these do not read past `readable` bytes; they may write one step past `len`.
///
/// # Safety
/// `from` may be read for `readable >= len` bytes, `to` written for `len + WIDE`.
#[inline(always)]
unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize, readable: usize) {
    if len.next_multiple_of(WIDE) > readable {
        // SAFETY: the caller's promise.
        return unsafe { ptr::copy_nonoverlapping(from, to, len) };
    }
    let mut at = 0;
    while at < len {
        // SAFETY: the caller's promise.
        unsafe { to.add(at).cast::<Step>().write_unaligned(from.add(at).cast::<Step>().read_unaligned()) };
        at += WIDE;
    }
}

type Step = [MaybeUninit<u8>; WIDE];

/// The first bytes of a suffix as a number.
#[inline(always)]
fn head_of(suffix: &[u8]) -> u32 {
    match suffix.first_chunk() {
        Some(bytes) => u32::from_be_bytes(*bytes),
        None => suffix.iter().enumerate().fold(0, |head, (i, byte)| head | u32::from(*byte) << (24 - 8 * i)),
    }
}

/// A leaf that nobody else knows.
pub(super) struct OwnLeaf(LeafSlot);

impl OwnLeaf {
    pub(super) fn leaf(&self) -> Leaf<'_> {
        // SAFETY: it lives as long as this.
        match unsafe { self.0.load() } {
            Some(leaf) => leaf,
            None => unreachable!("made with a leaf"),
        }
    }

    pub(super) fn into_slot(self) -> LeafSlot {
        self.0
    }
}

/// Fills a new leaf, key after key.
pub(super) struct LeafWriter {
    own: OwnLeaf,
    shape: Shape,
    done: usize,
    rests: usize,
}

impl LeafWriter {
    /// Takes the block from the heap, where the caller has reserved it; first frees what was left to whoever comes next.
    pub(super) fn new(shape: Shape, prefix: &[u8], high: Option<&[u8]>) -> LeafWriter {
        let size = shape.size();
        debug_assert!(prefix.len() == shape.prefix && high.map(<[u8]>::len) == shape.high);
        free_left();
        let layout = layout(size);
        // SAFETY: the size is not 0.
        let base = loosekv_shm::scope::with(|| unsafe { std::alloc::alloc(layout) });
        let Some(base) = NonNull::new(base) else { std::alloc::handle_alloc_error(layout) };
        let header = Header {
            size: size as u32,
            count: shape.count as u16,
            dead: AtomicU16::new(0),
            prefix: shape.prefix as u16,
            high: shape.high.map_or(NO_HIGH, |len| len as u16),
            suffix: shape.suffix.map_or(VARIES, |len| len as u16),
            heads: shape.heads() as u16,
        };
        // SAFETY: the block is that long, by its shape.
        unsafe {
            base.cast().write(header);
            let after = base.as_ptr().add(size_of::<Header>());
            ptr::copy_nonoverlapping(prefix.as_ptr(), after, prefix.len());
            if let Some(high) = high {
                ptr::copy_nonoverlapping(high.as_ptr(), after.add(prefix.len()), high.len());
            }
        }
        LeafWriter { own: OwnLeaf(LeafSlot::new(base)), shape, done: 0, rests: 0 }
    }

    /// Appends a key, which begins with the prefix and comes after the one before.
    pub(super) fn push(&mut self, key: &[u8], value: u32) {
        let suffix = key.get(self.shape.prefix..).unwrap_or_default();
        let rest = suffix.get(HEAD..).unwrap_or_default();
        let (leaf, i) = (self.own.leaf(), self.done);
        assert!(i < self.shape.count && self.rests + rest.len() <= self.shape.rests, "more than the shape says");
        // SAFETY: the place of key `i` in each part, within the block as asserted.
        unsafe {
            leaf.heads().cast_mut().add(i).write(head_of(suffix));
            leaf.part::<u32>(leaf.values_at() + 4 * i).write(value);
            if self.shape.suffix.is_none() {
                let start = self.rests << SHORT_BITS | suffix.len().min(HEAD);
                leaf.part::<u16>(leaf.values_at() + 4 * leaf.count() + 2 * i).write(start as u16);
            }
            ptr::copy_nonoverlapping(rest.as_ptr(), leaf.part(self.shape.rests_at() + self.rests), rest.len());
        }
        self.done += 1;
        self.rests += rest.len();
    }

    /// May [`LeafWriter::copy`] take keys of this leaf?
    pub(super) fn is_alike(&self, from: Leaf<'_>) -> bool {
        from.prefix().len() == self.shape.prefix && from.suffixes() == self.shape.suffix
    }

    /// Appends keys of a leaf that is alike, as they are there. Under the latch: their values do not change meanwhile.
    pub(super) fn copy(&mut self, from: Leaf<'_>, first: usize, end: usize) {
        debug_assert!(self.is_alike(from) && first <= end && end <= from.count());
        let (leaf, i, keys) = (self.own.leaf(), self.done, end - first);
        let (rest_from, rest_end) = (from.rest_at(first), from.rest_at(end));
        let rests = rest_end - rest_from;
        assert!(i + keys <= self.shape.count && self.rests + rests <= self.shape.rests, "more than the shape says");
        // SAFETY: as in `push`, for all these keys; the other leaf has as many behind `first`.
        unsafe {
            ptr::copy_nonoverlapping(from.heads().add(first), leaf.heads().cast_mut().add(i), keys);
            let values = from.part::<u32>(from.values_at() + 4 * first);
            ptr::copy_nonoverlapping(values, leaf.part::<u32>(leaf.values_at() + 4 * i), keys);
            if self.shape.suffix.is_none() {
                let shift = (self.rests as isize - (rest_from - from.rests_at()) as isize) << SHORT_BITS;
                let starts = leaf.part::<u16>(leaf.values_at() + 4 * leaf.count() + 2 * i);
                for key in 0..keys {
                    starts.add(key).write((from.start(first + key) as isize + shift) as u16);
                }
            }
            ptr::copy_nonoverlapping(from.part::<u8>(rest_from), leaf.part(self.shape.rests_at() + self.rests), rests);
        }
        self.done += keys;
        self.rests += rests;
    }

    pub(super) fn finish(self) -> OwnLeaf {
        assert!(self.done == self.shape.count && self.rests == self.shape.rests, "less than the shape says");
        self.own
    }
}

/// What is taken from the heap for a leaf of so many bytes: none of the objects that are for the collector alone.
pub(super) const fn room(size: usize) -> usize {
    size + (size == epoch::BAG || size == epoch::PARTICIPANT) as usize
}

fn layout(size: usize) -> std::alloc::Layout {
    // The alignment is that of the heap's objects; the size has been given out before, or is that of a leaf.
    std::alloc::Layout::from_size_align(room(size), align_of::<u64>())
        .unwrap_or_else(|_| unreachable!("a leaf is small"))
}

/// Leaves in private memory that nobody uses any more: a list through their blocks, behind the size.
static LEFT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// Where in the block of a leaf that was left the address of the next one is.
const NEXT: usize = 8;

const _: () = assert!(NEXT + size_of::<*mut u8>() <= size_of::<Header>());

/// Frees a leaf's block, or leaves that to the next who makes a leaf. For whoever was pinned last is often a writer or a reader of
/// the store, and the allocator's lock the one under which the flush makes leaves.
///
/// # Safety
/// Nobody can reach it.
pub(super) unsafe fn leave(base: NonNull<u8>) {
    if loosekv_shm::heap::attached() {
        // SAFETY: the caller's promise. The heap has no such lock.
        return unsafe { free(base) };
    }
    let mut first = LEFT.load(Relaxed);
    loop {
        // SAFETY: the block is ours, and longer than its header.
        unsafe { base.as_ptr().add(NEXT).cast::<*mut u8>().write(first) };
        match LEFT.compare_exchange_weak(first, base.as_ptr(), Release, Relaxed) {
            Ok(_) => return,
            Err(now) => first = now,
        }
    }
}

/// Frees what was left.
fn free_left() {
    if LEFT.load(Relaxed).is_null() {
        return;
    }
    let mut next = NonNull::new(LEFT.swap(ptr::null_mut(), Acquire));
    while let Some(leaf) = next {
        // SAFETY: taken out of the list, it is ours alone; `leave` has written there what follows.
        unsafe {
            next = NonNull::new(leaf.as_ptr().add(NEXT).cast::<*mut u8>().read());
            free(leaf);
        }
    }
}

/// Frees a leaf's block.
///
/// # Safety
/// Nobody can reach it.
pub(super) unsafe fn free(base: NonNull<u8>) {
    // SAFETY: the caller's promise; the block was allocated with the size that it tells.
    unsafe {
        let size = Leaf::at(base).size();
        std::alloc::dealloc(base.as_ptr(), layout(size));
    }
}
