//! A table in memory: the file that it is known by, and its slot in the registry.

use super::NONE;
use crate::host::standby::Progress;
use crate::host::PgHost;
use crate::work::ask;
use loosekv_engine::tree::Shared;
use pgrx::pg_sys;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// What a table is known by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct FileKey {
    pub tablespace: u32,
    pub database: u32,
    pub file: u32,
    /// Backend number of a temporary table, else -1.
    pub backend: i32,
}

impl FileKey {
    pub(super) fn of(node: pg_sys::RelFileNode, backend: pg_sys::BackendId) -> FileKey {
        FileKey {
            tablespace: node.spcNode.to_u32(),
            database: node.dbNode.to_u32(),
            file: node.relNode.to_u32(),
            backend,
        }
    }

    /// The file of a relation.
    ///
    /// # Safety
    /// `rel` is open.
    pub unsafe fn of_relation(rel: pg_sys::Relation) -> FileKey {
        // SAFETY: the caller's word.
        unsafe { FileKey::of((*rel).rd_node, (*rel).rd_backend) }
    }

    pub fn node(&self) -> pg_sys::RelFileNode {
        let oid = pg_sys::Oid::from;
        pg_sys::RelFileNode { spcNode: oid(self.tablespace), dbNode: oid(self.database), relNode: oid(self.file) }
    }

    pub(super) fn hash(&self) -> u64 {
        let low = u64::from(self.file) << 32 | u64::from(self.database);
        let mixed = (low ^ u64::from(self.tablespace) << 17 ^ u64::from(self.backend as u32))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    }
}

pub(super) const FREE: u32 = 0;
/// Can be found; its tree may still be missing.
pub(super) const LIVE: u32 = 1;
/// Cannot be found any more; to be freed by its last user.
pub(super) const DOOMED: u32 = 2;

/// A table in memory, or a free place for one. Never freed; a change of owner raises `stamp`.
#[repr(align(128))]
pub struct Slot {
    /// These three are written with the registry latched exclusively, and read with it latched.
    pub(super) key: UnsafeCell<FileKey>,
    pub(super) next: AtomicU32,
    pub(super) state: AtomicU32,
    pub(super) stamp: AtomicU64,
    pub(super) users: AtomicU32,
    /// The tree follows the replay of WAL, see [`standby`].
    pub(super) standby: AtomicBool,
    pub(in crate::host) progress: Progress,
    pub(super) tree: AtomicPtr<Shared<PgHost>>,
    /// Statement time of the last use, in microseconds.
    pub(super) used: AtomicU64,
    /// Known length of the file, in pages; the file may be longer.
    pub file_pages: AtomicU32,
    /// Every transaction that may have been running at the last flip is below this one.
    pub(super) last_flip: AtomicU64,
    /// Nanoseconds by which each KiB written is delayed; see [`crate::work::pace`].
    pub write_delay: AtomicU32,
    pub counters: TableCounters,
}

// SAFETY: `key` is guarded by the registry's latch.
unsafe impl Sync for Slot {}

/// What was written for a table since it was loaded.
#[derive(Default)]
pub struct TableCounters {
    /// Bytes of log records.
    pub log_bytes: AtomicU64,
    /// Pages of runs and manifests.
    pub pages_written: AtomicU64,
    pub flips: AtomicU64,
}

impl Slot {
    pub fn free() -> Slot {
        Slot {
            key: UnsafeCell::new(FileKey::default()),
            next: AtomicU32::new(NONE),
            state: AtomicU32::new(FREE),
            stamp: AtomicU64::new(0),
            users: AtomicU32::new(0),
            standby: AtomicBool::new(false),
            progress: Progress::default(),
            tree: AtomicPtr::new(std::ptr::null_mut()),
            used: AtomicU64::new(0),
            file_pages: AtomicU32::new(0),
            last_flip: AtomicU64::new(0),
            write_delay: AtomicU32::new(0),
            counters: TableCounters::default(),
        }
    }

    /// Prepares a free slot for a table. With the registry latched exclusively.
    pub(super) fn occupy(&self, key: FileKey) {
        debug_assert_eq!(self.state.load(Relaxed), FREE);
        debug_assert!(self.tree.load(Relaxed).is_null());
        // SAFETY: the registry is latched exclusively.
        unsafe { *self.key.get() = key };
        self.stamp.fetch_add(1, AcqRel);
        self.standby.store(false, Relaxed);
        self.file_pages.store(0, Relaxed);
        self.last_flip.store(0, Relaxed);
        self.write_delay.store(0, Relaxed);
        self.counters.log_bytes.store(0, Relaxed);
        self.counters.pages_written.store(0, Relaxed);
        self.counters.flips.store(0, Relaxed);
        self.state.store(LIVE, Release);
    }

    pub(in crate::host) fn tree(&self) -> *const Shared<PgHost> {
        self.tree.load(Acquire)
    }

    pub(in crate::host) fn is_standby(&self) -> bool {
        self.standby.load(Acquire)
    }

    /// The tree has been taken over.
    pub(in crate::host) fn is_primary_now(&self) {
        self.standby.store(false, Release);
        ask::worker();
    }

    /// Notes that a flip is done; `next` is the next transaction id after it.
    pub(in crate::host) fn note_flip(&self, next: u64) {
        self.last_flip.fetch_max(next, Relaxed);
    }

    /// Snapshots that could hold extents freed at or before a version of the manifest are older than this transaction.
    /// (An upper bound: the newest flip's.)
    pub(in crate::host) fn freed_before(&self, _version: u64) -> u64 {
        self.last_flip.load(Relaxed)
    }
}
