//! Gives the memory of free chunks back to the kernel, which has other uses for it, such as the page cache: what memtables have
//! filled once would else be the segment's for ever. The chunks stay the segment's, and are memory again when they are
//! touched.
//!
//! Words of the chunks' bitmap are claimed one at a time, as any other claim is made, so that nobody else gets at their chunks
//! meanwhile; and only where much is free, so that nobody misses them.

use crate::chunks::CHUNK;
use crate::heap::{self, header};

/// How often chunks were taken or given back so far; 0 when not attached.
pub fn changes() -> u64 {
    if heap::attached() {
        header().chunks.changes()
    } else {
        0
    }
}

/// Gives the kernel what it can of the free chunks, unless nothing has changed since this was last done. Returns how many bytes.
/// Worth it when nobody has needed any for a while.
pub fn give_to_kernel() -> usize {
    if !heap::attached() {
        return 0;
    }
    let header = header();
    let mut given = 0;
    header.chunks.with_free_words(|start, n| {
        // SAFETY: the chunks are claimed, so nobody else uses them; what is in them is of no use to anybody.
        given += unsafe { discard(heap::base_ptr().add(header.offset_of(start)), n * CHUNK) };
    });
    given
}

/// # Safety
/// Nobody needs what is in this memory.
unsafe fn discard(start: *mut u8, len: usize) -> usize {
    // SAFETY: asks for a plain value.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let first = start.addr().next_multiple_of(page);
    let bytes = (start.addr() + len).saturating_sub(first) / page * page;
    // SAFETY: whole pages within the range. Memory that is not shared, or of huge pages, may refuse, and stays as it is.
    let done = unsafe { libc::madvise(start.with_addr(first).cast(), bytes, libc::MADV_REMOVE) };
    if done == 0 {
        bytes
    } else {
        0
    }
}
