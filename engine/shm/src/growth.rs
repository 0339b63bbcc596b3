//! What grows with the data, and can do with less, and what it leaves to the others: bounds on both.

use crate::chunks::CHUNK;
use crate::give_back;
use crate::heap::{attached, header};
use std::sync::atomic::Ordering::Relaxed;

/// Bounds what may be made into small objects for what asks with [`crate::Needs::reserve_growth`] and
/// [`crate::reserve_growth`]: `bytes`, the objects of all others counted in. It and blocks ([`crate::heap::alloc_block`]) leave `left` bytes
/// free for the others, for those come to an end without them. Without this there is no such bound.
///
/// Panics when not attached.
pub fn limit_growth(bytes: usize, left: usize) {
    assert!(attached(), "no shared heap");
    header().growth.store(bytes / CHUNK, Relaxed);
    header().chunks.leave(left / CHUNK);
}

/// How many bytes of small objects such growth can still get, about: what is carved already and free may be of the wrong
/// sizes. Endless when not attached.
pub fn growth_left() -> usize {
    if !attached() {
        return usize::MAX;
    }
    if is_overgrown() {
        return 0;
    }
    let header = header();
    let chunks = header.growth.load(Relaxed).saturating_sub(header.counters.object_chunks.load(Relaxed));
    chunks.min(header.chunks.free_for_growth()) * CHUNK + give_back::free_objects()
}

/// Whether the others have made so much into small objects that half of what was to be left to blocks is gone: growth has to do
/// without what is free of them, too. It would take that as fast as it comes free, the others would need chunks for the next they want,
/// and no chunk would ever come free.
pub(crate) fn is_overgrown() -> bool {
    let header = header();
    let bound = header.growth.load(Relaxed);
    let slack = header.chunks.for_growth().saturating_sub(bound) / 2;
    header.counters.object_chunks.load(Relaxed) > bound + slack
}

/// Whether the others have made a sixteenth more into small objects than growth may. What frees something later on, and can be left as
/// it is for now, takes no more then.
pub fn is_exceeded() -> bool {
    if !attached() {
        return false;
    }
    let bound = header().growth.load(Relaxed);
    header().counters.object_chunks.load(Relaxed) > bound + bound / 16
}

/// How many bytes blocks can have, those that are taken counted in, as long as small objects get no more chunks. Endless when not
/// attached.
pub fn room_for_blocks() -> usize {
    if !attached() {
        return usize::MAX;
    }
    let header = header();
    let objects = header.counters.object_chunks.load(Relaxed);
    header.chunks.for_growth().saturating_sub(objects) * CHUNK
}
