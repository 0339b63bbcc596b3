//! The slots that this process has used last: the way to a table without a look at the registry.

use super::registry;
use super::slot::{FileKey, Slot, LIVE};
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::*;

/// Slots that this process has used last and found to be of the file they should be.
pub(super) struct Recent {
    entries: UnsafeCell<[RecentEntry; RECENT]>,
}

const RECENT: usize = 16;

#[derive(Clone, Copy)]
struct RecentEntry {
    key: FileKey,
    relid: u32,
    stamp: u64,
    slot: Option<&'static Slot>,
}

// SAFETY: per process, and a process is one thread.
unsafe impl Sync for Recent {}

const EMPTY: RecentEntry =
    RecentEntry { key: FileKey { tablespace: 0, database: 0, file: 0, backend: 0 }, relid: 0, stamp: 0, slot: None };
pub(super) static RECENTLY: Recent = Recent { entries: UnsafeCell::new([EMPTY; RECENT]) };

impl Recent {
    fn entry(&self, key: &FileKey) -> *mut RecentEntry {
        // SAFETY: the index is within the array.
        unsafe { self.entries.get().cast::<RecentEntry>().add(key.hash() as usize % RECENT) }
    }

    /// The slot, counted as used, if it is still the one that was found before.
    pub(super) fn find(&self, key: &FileKey) -> Option<&'static Slot> {
        // SAFETY: this process is one thread and the copy ends the borrow.
        let entry = unsafe { *self.entry(key) };
        let slot = entry.slot.filter(|_| entry.key == *key)?;
        slot.users.fetch_add(1, SeqCst);
        if slot.stamp.load(SeqCst) == entry.stamp && slot.state.load(SeqCst) == LIVE {
            return Some(slot);
        }
        if let Ok(registry) = registry() {
            registry.leave(slot);
        }
        None
    }

    pub(super) fn note(&self, key: FileKey, relid: u32, slot: &'static Slot) {
        let entry = RecentEntry { key, relid, stamp: slot.stamp.load(Acquire), slot: Some(slot) };
        // SAFETY: this process is one thread.
        unsafe { *self.entry(&key) = entry };
    }

    /// `relid` 0: all.
    pub(super) fn forget(&self, relid: u32) {
        for i in 0..RECENT {
            // SAFETY: within the array; this process is one thread.
            unsafe {
                let entry = self.entries.get().cast::<RecentEntry>().add(i);
                if relid == 0 || (*entry).relid == relid {
                    *entry = EMPTY;
                }
            }
        }
    }
}
