//! Small objects out of chunks, or out of larger ones, and how much of each chunk they are.
//!
//! ```text
//!  bump (one a level):   offset / 8 : 32 | bytes left / 8 : 32      where the next objects are cut
//!  use of a chunk:       lost to alignment / 8 : 16 | objects / 8 : 16
//! ```
//!
//! Objects of all classes are cut from the same chunk, some of a class at once. A chunk whose use adds up to its size was
//! cut up completely: nothing in it is about to become an object. Only such a chunk can be given back ([`crate::give_back`]),
//! and then it may be cut up again: a bump's value says all there is to know, so it does no harm when one recurs.

use crate::chunks::{Level, CHUNK};
use crate::class;
use crate::heap::{base_ptr, header};
use crate::stack::{link, next, Batch};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Bytes of objects carved at once.
const PORTION: usize = 4096;
/// Units of the words here.
const UNIT: usize = 8;

/// Objects carved at once.
fn portion(c: usize) -> usize {
    (PORTION / class::size(c)).clamp(crate::heap::RESERVED as usize, 64)
}

/// See the module's page.
#[repr(C, align(128))]
pub(crate) struct Bump(AtomicU64);

/// What has become of a chunk that small objects are carved from.
#[repr(C)]
pub(crate) struct ChunkUse {
    cut: AtomicU32,
    /// For the process that gives chunks back: bytes of it that were found free.
    pub found: AtomicU32,
}

impl ChunkUse {
    fn add_objects(&self, bytes: usize) {
        self.cut.fetch_add((bytes / UNIT) as u32, Relaxed);
    }

    fn take_objects(&self, bytes: usize) {
        self.cut.fetch_sub((bytes / UNIT) as u32, Relaxed);
    }

    fn add_scraps(&self, bytes: usize) {
        self.cut.fetch_add(((bytes / UNIT) as u32) << 16, Relaxed);
    }

    /// Bytes of the objects in a chunk that was cut up completely.
    pub fn whole(&self) -> Option<usize> {
        let cut = self.cut.load(Relaxed);
        let (objects, scraps) = ((cut & 0xffff) as usize * UNIT, (cut >> 16) as usize * UNIT);
        (objects + scraps == CHUNK).then_some(objects)
    }

    /// It is about to be given back.
    pub fn reset(&self) {
        self.cut.store(0, Relaxed);
    }
}

/// Objects of class `c` from memory that holds none now.
pub(crate) fn carve(c: usize, level: Level) -> Option<Batch> {
    let (from, at, count) = Level::ALL
        .into_iter()
        .take_while(|l| *l as usize <= level as usize)
        .find_map(|l| carve_from(l, c).map(|(at, count)| (l, at, count)))?;
    let header = header();
    match from {
        Level::Growth | Level::Normal => {}
        Level::Freeing => _ = header.counters.emergencies.fetch_add(1, Relaxed),
        Level::Last => _ = header.counters.last.fetch_add(1, Relaxed),
    }
    // SAFETY: just carved, so ours.
    Some(unsafe { made(c, at, count) })
}

/// The objects of class `c` that memory at this offset has become.
///
/// # Safety
/// It holds so many of them, and is the caller's.
unsafe fn made(c: usize, at: usize, count: usize) -> Batch {
    let (header, size) = (header(), class::size(c));
    header.count_carved(c, count);
    header.use_at(at).add_objects(count * size);
    let first = base_ptr().wrapping_add(at);
    for i in 0..count {
        let object = first.wrapping_add(i * size);
        let to = if i + 1 < count { object.wrapping_add(size) } else { ptr::null_mut() };
        // SAFETY: the caller's promise.
        unsafe { link(object, to) };
    }
    Batch { first, count: count as u32 }
}

/// Objects of class `c` out of a larger one that is free, of the class that has the most to spare. As long as its pieces are not all
/// counted its chunk is not cut up completely, and afterwards it is as it was before.
pub(crate) fn split(c: usize) -> Option<Batch> {
    let (header, size, align) = (header(), class::size(c), class::align(c));
    let free = |d: &usize| class::size(*d) * header.stack(*d).objects() as usize;
    let first = if c == class::COLLECTING { class::smallest(size) } else { c + 1 };
    let larger =
        (first..class::COLLECTING).filter(|d| class::size(*d) >= size + align.saturating_sub(class::align(*d)));
    // What is left over is next to nothing, or of use.
    let goes_up =
        |d: &usize| matches!(class::size(*d) % size, left if left >= size / 2 || left <= class::size(*d) / 16);
    let from = larger.filter(|d| free(d) > 0 && goes_up(d)).max_by_key(free)?;
    // SAFETY: what central stacks hold is free memory of the class; popped, it is ours, and so are those that are not split.
    let at = unsafe {
        let batch = header.stack(from).pop(base_ptr())?;
        if batch.count > 1 {
            header.stack(from).push(base_ptr(), Batch { first: next(batch.first), count: batch.count - 1 });
        }
        batch.first.addr() - base_ptr().addr()
    };
    header.count_uncarved(from, 1);
    header.use_at(at).take_objects(class::size(from));
    let (start, end) = (at.next_multiple_of(align), at + class::size(from));
    let count = ((end - start) / size).min(portion(c));
    recycle(at, start - at);
    recycle(start + count * size, end - start - count * size);
    // SAFETY: within the object that was split, beside what was recycled.
    Some(unsafe { made(c, start, count) })
}

/// Offset and number of the objects.
fn carve_from(level: Level, c: usize) -> Option<(usize, usize)> {
    let header = header();
    let bump = header.bump(level);
    let (size, align) = (class::size(c), class::align(c));
    let pack = |at: usize, left: usize| ((at / UNIT) as u64) << 32 | (left / UNIT) as u64;
    let mut now = bump.0.load(Relaxed);
    loop {
        let (at, left) = ((now >> 32) as usize * UNIT, (now & u64::from(u32::MAX)) as usize * UNIT);
        // The segment is aligned to more than any class, so offsets align as addresses do.
        let start = at.next_multiple_of(align);
        let count = (left.saturating_sub(start - at) / size).min(portion(c));
        if count > 0 {
            let end = start + count * size;
            match bump.0.compare_exchange_weak(now, pack(end, left - (end - at)), Relaxed, Relaxed) {
                Ok(_) => {
                    lose(at, start - at);
                    return Some((start, count));
                }
                Err(other) => now = other,
            }
            continue;
        }
        let chunk = header.take_for_objects(level)?;
        let start = header.offset_of(chunk);
        let count = (CHUNK / size).min(portion(c));
        match bump.0.compare_exchange(now, pack(start + count * size, CHUNK - count * size), Relaxed, Relaxed) {
            Ok(_) => {
                recycle(at, left);
                return Some((start, count));
            }
            Err(other) => {
                header.give_of_objects(chunk);
                now = other;
            }
        }
    }
}

/// Cuts what is left of a chunk, or of an object, into objects of smaller classes.
fn recycle(mut at: usize, mut left: usize) {
    let header = header();
    while let Some(c) = class::largest_within(at, left) {
        header.count_carved(c, 1);
        header.use_at(at).add_objects(class::size(c));
        let first = base_ptr().wrapping_add(at);
        // SAFETY: the tail of a chunk that only the winner of the bump's exchange cuts up, or of an object that was popped.
        unsafe {
            link(first, ptr::null_mut());
            header.stack(c).push(base_ptr(), Batch { first, count: 1 });
        }
        at += class::size(c);
        left -= class::size(c);
    }
    lose(at, left);
}

/// Bytes that are too few, or lie between objects.
fn lose(at: usize, bytes: usize) {
    if bytes > 0 {
        header().counters.scraps.fetch_add(bytes, Relaxed);
        header().use_at(at).add_scraps(bytes);
    }
}
