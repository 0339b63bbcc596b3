//! From row number to node: a tree of tables of 256 links, indexed by one byte of the row number each.
//!
//! ```text
//!   root (here) --byte 3--> table --byte 2--> table --byte 1--> table --byte 0--> offset of the node, 0: none
//! ```
//!
//! Rows come in nearly ascending order and with few gaps (row ids that went to nobody), so this takes a little over 4
//! bytes a row; a row far from all others takes 1 KiB. Tables come from the memtable's arena and go with it.

use super::arena::{Arena, UNIT};
use std::sync::atomic::{AtomicU32, Ordering};

const FANOUT: usize = 256;
const TABLE_UNITS: u32 = (FANOUT * std::mem::size_of::<AtomicU32>() / UNIT) as u32;
type Table = [AtomicU32; FANOUT];

pub(super) struct RowIndex {
    root: Table,
}

impl RowIndex {
    pub(super) fn new() -> RowIndex {
        RowIndex { root: std::array::from_fn(|_| AtomicU32::new(0)) }
    }

    /// The slot of a row; `None` if its table was never prepared.
    ///
    /// # Safety
    /// `arena` is always the same one.
    pub(super) unsafe fn slot<'a>(&'a self, arena: &'a Arena, row: u32) -> Option<&'a AtomicU32> {
        let mut table = &self.root;
        for shift in [24, 16, 8] {
            let next = entry(table, row, shift).load(Ordering::Acquire);
            if next == 0 {
                return None;
            }
            // SAFETY: only whole tables of this arena are linked.
            table = unsafe { table_at(arena, next) };
        }
        Some(entry(table, row, 0))
    }

    /// Makes sure that the row has a slot. False: the arena is full.
    ///
    /// # Safety
    /// `arena` is always the same one.
    pub(super) unsafe fn prepare(&self, arena: &Arena, row: u32) -> bool {
        let mut table = &self.root;
        for shift in [24, 16, 8] {
            let link = entry(table, row, shift);
            let mut next = link.load(Ordering::Acquire);
            if next == 0 {
                let Some(new) = arena.alloc(TABLE_UNITS) else { return false };
                // SAFETY: the block is ours and as large as a table; all zeros are empty slots.
                unsafe { arena.at(new).write_bytes(0, FANOUT * 4) };
                next = match link.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => new,
                    Err(other) => {
                        arena.give_back(new, TABLE_UNITS);
                        other
                    }
                };
            }
            // SAFETY: only whole tables of this arena are linked.
            table = unsafe { table_at(arena, next) };
        }
        true
    }
}

#[allow(clippy::indexing_slicing, reason = "a byte is always below the fan-out")]
#[inline]
fn entry(table: &Table, row: u32, shift: u32) -> &AtomicU32 {
    &table[usize::from((row >> shift) as u8)]
}

/// # Safety
/// `offset` is that of a whole table in `arena`.
unsafe fn table_at(arena: &Arena, offset: u32) -> &Table {
    // SAFETY: the caller's promise; units are aligned for 32-bit words.
    unsafe { &*arena.at(offset).cast::<Table>() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_distinct_and_stay() {
        let arena = Arena::new(1 << 20, 4096).expect("memory");
        let index = RowIndex::new();
        let rows = [0, 1, 255, 256, 65_535, 65_536, 1 << 24, u32::MAX - 1, u32::MAX];
        // SAFETY: one arena.
        unsafe {
            for (i, row) in rows.iter().enumerate() {
                assert!(index.prepare(&arena, *row));
                index.slot(&arena, *row).expect("prepared").store(i as u32 + 1, Ordering::Release);
            }
            for (i, row) in rows.iter().enumerate() {
                assert_eq!(index.slot(&arena, *row).expect("prepared").load(Ordering::Acquire), i as u32 + 1);
            }
            assert!(index.slot(&arena, 1 << 20).is_none());
            assert_eq!(index.slot(&arena, 2).expect("same table").load(Ordering::Acquire), 0);
        }
    }

    #[test]
    fn full_arena_is_told() {
        let arena = Arena::new(4096, 4096).expect("memory");
        let index = RowIndex::new();
        // SAFETY: one arena.
        unsafe {
            assert!(index.prepare(&arena, 7), "three tables of 1 KiB");
            assert!(!index.prepare(&arena, 1 << 24));
            assert!(index.slot(&arena, 7).is_some() && index.slot(&arena, 1 << 24).is_none());
        }
    }
}
