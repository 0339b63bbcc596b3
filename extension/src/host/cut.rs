//! Cutting the free end off a table's file.
//!
//! ```text
//!  old primary:  ... parted | names of blocks 100 to 899, cut to 100, grown to 300 (200 to 299 unwritten)
//!  successor:    ... parted | 900 blocks, as they were
//! ```
//!
//! `pg_rewind`, which makes an old primary a standby of its successor, copies the blocks that the old one's log has named since they
//! parted, and what its files have too little at their end. The record of a cut names no block, nor is there one of a file that grows.
//! So of a file that was cut and has grown again, blocks would stay empty that hold something there. Therefore the blocks that a cut
//! takes away are named before it: 10 bytes a block, of each of which a full page was logged when it was written.
//!
//! The records are PostgreSQL's logical messages, of no database, so that nobody is sent them. Whoever replays them does nothing, also
//! with an older library than this.

use crate::host::pages::{MAIN, PAGES_A_RECORD, ZERO};
use crate::host::PgHost;
use crate::pg::bindings;
use loosekv_engine::error::Result;
use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// As `xl_logical_message`.
#[repr(C)]
struct Message {
    database: pg_sys::Oid,
    transactional: u32,
    prefix_size: usize,
    message_size: usize,
    prefix: [u8; 8],
}

const NAMED: Message =
    Message { database: pg_sys::InvalidOid, transactional: 0, prefix_size: 8, message_size: 0, prefix: *b"loosekv\0" };

const _: () = {
    assert!(
        size_of::<Message>() == 32 && offset_of!(Message, transactional) == 4 && offset_of!(Message, prefix_size) == 8
    );
    assert!(offset_of!(Message, message_size) == 16 && offset_of!(Message, prefix) == 24);
};
const LOGICAL_MESSAGE: u8 = 0;

impl PgHost {
    /// Whether this transaction has the table for itself, as one that it has created.
    pub fn is_alone(&self) -> bool {
        let lock = pg_sys::AccessExclusiveLock as pg_sys::LOCKMODE;
        // SAFETY: the relation is open; looks into this process's memory.
        unsafe { pg_sys::CheckRelationLockedByMe(self.rel(), lock, true) }
    }

    /// Cuts the file. Where others may be in the table (on a standby, too, which learns of the lock) it does nothing.
    pub(super) fn cut(&self, pages: u32) -> Result<()> {
        if !self.is_alone() {
            return Ok(());
        }
        // SAFETY: guarded calls on an open relation.
        unsafe {
            let length = self.file_pages();
            if length <= pages {
                return Ok(());
            }
            if self.wal && pg_sys::wal_level >= pg_sys::WalLevel::WAL_LEVEL_REPLICA as i32 {
                self.name_blocks(pages..length);
            }
            if let Some(slot) = self.slot {
                slot.file_pages.store(pages, Relaxed);
            }
            pg_sys::RelationTruncate(self.rel(), pages);
        }
        Ok(())
    }

    /// Logs which blocks are to go. Before they do, also on disk: the cut itself is logged, but nobody waits until that is on disk.
    fn name_blocks(&self, blocks: Range<u32>) {
        // SAFETY: the relation is open.
        let mut node = unsafe { (*self.rel()).rd_node };
        let mut message = NAMED;
        // SAFETY: guarded, and the closure owns nothing; outside a critical section. No page is looked at, for none is to be logged.
        unsafe {
            pg_guard_ffi_boundary(|| {
                let zeros = ZERO.0.as_ptr().cast_mut().cast();
                let mut end = 0;
                bindings::XLogEnsureRecordSpace(PAGES_A_RECORD as i32 - 1, 0);
                for first in blocks.clone().step_by(PAGES_A_RECORD) {
                    bindings::XLogBeginInsert();
                    bindings::XLogRegisterData((&raw mut message).cast(), size_of::<Message>() as u32);
                    for (id, block) in (first..blocks.end).take(PAGES_A_RECORD).enumerate() {
                        bindings::XLogRegisterBlock(id as u8, &raw mut node, MAIN, block, zeros, NO_PAGE);
                    }
                    end = bindings::XLogInsert(pg_sys::RmgrIds::RM_LOGICALMSG_ID as u8, LOGICAL_MESSAGE);
                }
                bindings::XLogFlush(end);
            });
        }
    }
}

/// Says of a block in a record that its page is in no need of reading: nor is it read, by those who replay the record or read ahead for it.
const NO_PAGE: u8 = pg_sys::REGBUF_WILL_INIT as u8;
