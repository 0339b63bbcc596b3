//! A buffer's page as PostgreSQL lays it out, and what both appending and redo do to it.
//!
//! ```text
//!  0    8          10      12      14      16        18       20        24                    40        used   8192
//!  | LSN| checksum | flags | lower | upper | special | version| prune   | the engine's head   | contents | zero |
//! ```
//!
//! `lower` is the engine's `used`, `upper` and `special` are the end of the page: what lies between is the hole that
//! PostgreSQL leaves out of full-page images.

use crate::pg::bindings;
use loosekv_engine::page::{PageBuf, PageKind};
use loosekv_engine::types::{HOST_HEADER, PAGE_SIZE};
use pgrx::pg_sys;

const LOWER_AT: usize = 12;
/// Offset of `used` in the engine's head.
pub(super) const USED_AT: usize = HOST_HEADER + 4;
pub(super) const KIND_AT: usize = HOST_HEADER;
pub(super) const SEQ_AT: usize = HOST_HEADER + 8;

const _: () = assert!(PAGE_SIZE == pg_sys::BLCKSZ as usize);

/// The bytes of a pinned buffer. No reference to them is made, for another process may write other parts of the page.
#[derive(Clone, Copy)]
pub struct RawPage(*mut u8);

impl RawPage {
    /// # Safety
    /// `buffer` is pinned, and stays so while the value is used. To write, it is locked exclusively.
    pub unsafe fn of(buffer: pg_sys::Buffer) -> RawPage {
        debug_assert!(buffer != 0);
        // SAFETY: a valid buffer number indexes one of the two arrays that PostgreSQL keeps for the process's life.
        unsafe {
            if buffer < 0 {
                RawPage((*pg_sys::LocalBufferBlockPointers.add((-buffer - 1) as usize)).cast())
            } else {
                RawPage(pg_sys::BufferBlocks.cast::<u8>().add((buffer - 1) as usize * PAGE_SIZE))
            }
        }
    }

    pub fn as_ptr(self) -> *mut u8 {
        self.0
    }

    fn u16_at(self, at: usize) -> usize {
        debug_assert!(at + 2 <= PAGE_SIZE);
        // SAFETY: inside the page, which is pinned.
        usize::from(u16::from_le(unsafe { self.0.add(at).cast::<u16>().read_unaligned() }))
    }

    pub fn u64_at(self, at: usize) -> u64 {
        debug_assert!(at + 8 <= PAGE_SIZE);
        // SAFETY: inside the page, which is pinned.
        u64::from_le(unsafe { self.0.add(at).cast::<u64>().read_unaligned() })
    }

    fn set_u16(self, at: usize, value: usize) {
        debug_assert!(at + 2 <= PAGE_SIZE && value <= PAGE_SIZE);
        // SAFETY: inside the page, which is locked exclusively.
        unsafe { self.0.add(at).cast::<u16>().write_unaligned((value as u16).to_le()) }
    }

    /// End of the contents by PostgreSQL's header.
    pub fn lower(self) -> usize {
        self.u16_at(LOWER_AT)
    }

    /// A page that was never written (PostgreSQL extends files with zeros).
    pub fn is_new(self) -> bool {
        self.u16_at(14) == 0
    }

    pub fn kind(self) -> u8 {
        // SAFETY: inside the page, which is pinned.
        unsafe { *self.0.add(KIND_AT) }
    }

    pub fn seq(self) -> u64 {
        self.u64_at(SEQ_AT)
    }

    /// A written page of this kind and extent.
    pub fn is(self, kind: PageKind, seq: u64) -> bool {
        !self.is_new() && self.kind() == kind as u8 && self.seq() == seq
    }

    pub fn lsn(self) -> pg_sys::XLogRecPtr {
        // SAFETY: the page begins with the two halves of the LSN, the high one first.
        unsafe {
            let (high, low) = (self.0.cast::<u32>().read_unaligned(), self.0.add(4).cast::<u32>().read_unaligned());
            u64::from(high) << 32 | u64::from(low)
        }
    }

    pub fn set_lsn(self, lsn: pg_sys::XLogRecPtr) {
        // SAFETY: the page begins with the two halves of the LSN, the high one first.
        unsafe {
            self.0.cast::<u32>().write_unaligned((lsn >> 32) as u32);
            self.0.add(4).cast::<u32>().write_unaligned(lsn as u32);
        }
    }

    /// Empties the page and gives it PostgreSQL's header. Always to be done to a new page: `RBM_ZERO_AND_LOCK` does not
    /// zero a buffer that was valid.
    pub fn init(self) {
        // SAFETY: the page is locked exclusively; PageInit raises nothing.
        unsafe { bindings::PageInit(self.0.cast(), PAGE_SIZE, 0) }
    }

    /// Ends the contents at `used`, in both heads.
    pub fn set_used(self, used: usize) {
        self.set_u16(LOWER_AT, used);
        self.set_u16(USED_AT, used);
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Safety
    /// The page is locked exclusively, and `at + bytes.len()` is within it.
    pub unsafe fn write(self, at: usize, bytes: &[u8]) {
        debug_assert!(at >= HOST_HEADER && at + bytes.len() <= PAGE_SIZE);
        // SAFETY: the caller's word; `bytes` is not in the page.
        unsafe { self.0.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Makes the page what `from` is, under PostgreSQL's header.
    pub fn fill(self, from: &PageBuf) {
        let used = from.used().clamp(HOST_HEADER, PAGE_SIZE);
        self.init();
        // SAFETY: `used` is within both pages.
        unsafe { self.write(HOST_HEADER, &from.0[HOST_HEADER..used]) }
        self.set_used(used);
    }

    pub fn copy_to(self, to: &mut PageBuf) {
        // SAFETY: the page is pinned, `to` is ours and as large.
        unsafe { to.0.as_mut_ptr().copy_from_nonoverlapping(self.0, PAGE_SIZE) }
    }
}

/// What [`super::log_head`] tells, in a buffer's page.
pub mod log_page {
    use super::*;
    use crate::host::log_head::{LogHead, RedoPoint, GENERATION_AT, REDO_AT};

    /// Where the records begin.
    pub const RECORDS: usize = crate::host::redo::RECORDS;
    /// Room for records.
    pub const CAPACITY: usize = PAGE_SIZE - RECORDS;

    /// A fresh log page without records.
    ///
    /// # Safety
    /// The page is locked exclusively.
    pub unsafe fn init(page: RawPage, head: &LogHead, redo: RedoPoint) {
        page.init();
        // SAFETY: the head lies within the page.
        unsafe { page.write(HOST_HEADER, &head.encode(redo)) }
        page.set_used(RECORDS);
    }

    pub fn generation(page: RawPage) -> u64 {
        page.u64_at(GENERATION_AT)
    }

    /// Where redo would have begun when the page was.
    pub fn redo_point(page: RawPage) -> RedoPoint {
        // SAFETY: inside the page, which is pinned, or kept from being replaced.
        unsafe { page.as_ptr().add(REDO_AT).cast::<RedoPoint>().read() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loosekv_engine::types::ExtentSeq;

    #[test]
    fn offsets_are_the_engines() {
        let mut page = PageBuf::ZERO;
        page.init(PageKind::Log, ExtentSeq(0x0102_0304_0506_0708));
        page.set_used(0x1234);
        assert_eq!(page.0[USED_AT..USED_AT + 2], [0x34, 0x12]);
        assert_eq!(page.0[KIND_AT], PageKind::Log as u8);
        assert_eq!(page.0[SEQ_AT..SEQ_AT + 8], [8, 7, 6, 5, 4, 3, 2, 1]);
    }
}
