//! The TID of a row version is its row id: block = id / 256, offset = id % 256 + 1. The blocks are virtual, they have
//! nothing to do with the blocks of the main fork.

use crate::host::process_local::ProcessLocal;
use crate::pg::bindings_am::MOVED_PARTITIONS_OFFSET;
use crate::pg::xact;
use loosekv_engine::types::RowId;
use pgrx::pg_sys::{BlockIdData, ItemPointerData};
use std::cell::Cell;

/// Row versions in a virtual block.
pub const ROWS_PER_BLOCK: u64 = 256;

/// Row ids from here on are never given out: their blocks name rows that a speculative insertion did not write ("limbo").
const LIMBO: u64 = 0xfff0_0000 << 8;

/// Row ids from here on stand for rows that a statement has found and left unread. (The last block is PostgreSQL's.)
const UNREAD: u64 = 0xffff_0000 << 8;
const MOST_UNREAD: u64 = 0xfff0 << 8;

pub fn from_row(row: RowId) -> ItemPointerData {
    let block = (row.0 >> 8) as u32;
    ItemPointerData {
        ip_blkid: BlockIdData { bi_hi: (block >> 16) as u16, bi_lo: block as u16 },
        ip_posid: (row.0 & 255) as u16 + 1,
    }
}

/// `None`: no row version of ours has such a TID.
pub fn to_row(tid: &ItemPointerData) -> Option<RowId> {
    let block = block_of(tid);
    if tid.ip_posid == 0 || u64::from(tid.ip_posid) > ROWS_PER_BLOCK {
        return None;
    }
    Some(RowId(u64::from(block) << 8 | u64::from(tid.ip_posid - 1)))
}

pub fn block_of(tid: &ItemPointerData) -> u32 {
    u32::from(tid.ip_blkid.bi_hi) << 16 | u32::from(tid.ip_blkid.bi_lo)
}

/// A TID for a row that was not written, for it is a duplicate, or has no key that can be. Other indexes may get to see it before the key
/// does, and keep it until they are vacuumed: no other row may have had it. A transaction that such an entry is left of is not given its
/// number again.
pub fn nowhere() -> ItemPointerData {
    const A_WRITER: u64 = 16;
    static COUNT: ProcessLocal<Cell<u64>> = ProcessLocal::new(Cell::new(0));
    let count = COUNT.get() + 1;
    COUNT.set(count);
    limbo(xact::current_writer().0.wrapping_mul(A_WRITER) + count % A_WRITER)
}

/// A TID for a row that was not written. Many different ones, because btree wants the TIDs of equal keys to differ.
pub fn limbo(salt: u64) -> ItemPointerData {
    from_row(RowId(LIMBO + salt % (0xf_0000 << 8)))
}

pub fn is_limbo(tid: &ItemPointerData) -> bool {
    (u64::from(block_of(tid)) << 8) >= LIMBO
}

/// The row id that stands for the unread row with this number.
pub fn unread(number: u64) -> RowId {
    RowId(UNREAD + number % MOST_UNREAD)
}

pub fn is_unread(row: RowId) -> bool {
    (UNREAD..UNREAD + MOST_UNREAD).contains(&row.0)
}

/// The row id that the TID of an unread row stands for.
pub fn to_unread(tid: &ItemPointerData) -> Option<RowId> {
    to_row(tid).filter(|row| is_unread(*row))
}

/// Says of a row that an update moved it to another partition.
pub fn moved_partitions() -> ItemPointerData {
    ItemPointerData { ip_blkid: BlockIdData { bi_hi: u16::MAX, bi_lo: u16::MAX }, ip_posid: MOVED_PARTITIONS_OFFSET }
}

pub fn says_moved(tid: &ItemPointerData) -> bool {
    block_of(tid) == u32::MAX && tid.ip_posid == MOVED_PARTITIONS_OFFSET
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tid_names_its_row() {
        for id in [0u64, 1, 255, 256, 257, 65_535, 1 << 24, (1 << 39) + 77] {
            let tid = from_row(RowId(id));
            assert_eq!(to_row(&tid), Some(RowId(id)));
            assert!(!is_limbo(&tid));
        }
    }

    #[test]
    fn limbo_is_never_a_row_given_out() {
        for salt in [0u64, 1, 12_345_678, u64::MAX] {
            assert!(is_limbo(&limbo(salt)));
        }
        for number in [0u64, 1, 1 << 24, u64::MAX] {
            let tid = from_row(unread(number));
            assert!(is_limbo(&tid) && !says_moved(&tid) && to_unread(&tid) == Some(unread(number)));
        }
        assert!(!is_unread(RowId(LIMBO + (0xf_0000 << 8) - 1)) && to_unread(&moved_partitions()).is_none());
        assert!(to_row(&ItemPointerData { ip_blkid: Default::default(), ip_posid: 0 }).is_none());
        assert!(to_row(&ItemPointerData { ip_blkid: Default::default(), ip_posid: 257 }).is_none());
    }
}
