//! What a store counts, and what it consists of, as plain structs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counted since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    pub writes: u64,
    /// Changes in those writes.
    pub changes: u64,
    /// Bytes of keys and values that applications wrote.
    pub user_bytes: u64,
    pub groups: u64,
    pub gets: u64,
    /// Runs that gets looked into.
    pub runs_looked_into: u64,
    /// Filters asked, for keys of which the index does not tell the run; and how many said that the run may hold the key.
    pub filter_probes: u64,
    pub filter_hits: u64,
    pub log_bytes: u64,
    pub log_frames: u64,
    pub log_syncs: u64,
    pub pages_read: u64,
    pub page_bytes_written: u64,
    pub meta_flips: u64,
    pub flushes: u64,
    pub merges: u64,
    /// Slices that merges of many pages were done in.
    pub slices: u64,
    /// Runs that came to another level without being written again.
    pub runs_moved: u64,
    /// Values that merges left out early, for a newer run holds a version that everybody sees.
    pub stale_dropped: u64,
    /// Keys in the key index, and the memory that they take.
    pub index_keys: u64,
    pub index_bytes: u64,
    /// The key index covers every run; or the runs from this L0 id on.
    pub index_complete: bool,
    pub indexed_from: u64,
    /// Writers slowed, and for how long altogether.
    pub delays: u64,
    pub delayed: Duration,
    /// Writers that had to wait for a flush, and for how long altogether.
    pub stalls: u64,
    pub stalled: Duration,
    pub snapshots: usize,
    pub visible_sequence: u64,
}

impl Metrics {
    /// Bytes written to files for each byte that applications wrote.
    pub fn write_amplification(&self) -> f64 {
        (self.log_bytes + self.page_bytes_written) as f64 / self.user_bytes.max(1) as f64
    }
}

/// What the store consists of now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Flips of the meta page since the store was made.
    pub version: u64,
    /// Level 0 first.
    pub levels: Vec<Level>,
    pub rows: u64,
    pub tombstones: u64,
    /// Pages named by runs.
    pub run_pages: u64,
    /// Pages of the value log.
    pub value_pages: u64,
    /// Length of the page file.
    pub file_pages: u32,
    /// The checkpoint that an open would begin with: the runs have every generation of the log up to this one ...
    pub flushed: u64,
    /// ... and there are so many newer ones, of so many bytes, to be read.
    pub log_segments: usize,
    pub log_bytes: u64,
    pub memtable_bytes: u64,
    pub key_index_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    pub runs: usize,
    pub rows: u64,
    pub pages: u64,
}

/// The counters behind [`Metrics`] that no other part keeps.
#[derive(Debug, Default)]
pub struct Counters {
    pub writes: AtomicU64,
    pub changes: AtomicU64,
    pub user_bytes: AtomicU64,
    pub groups: AtomicU64,
    pub gets: AtomicU64,
    pub meta_flips: AtomicU64,
    pub flushes: AtomicU64,
    pub delays: AtomicU64,
    pub delayed_nanos: AtomicU64,
    pub stalls: AtomicU64,
    pub stalled_nanos: AtomicU64,
}

pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Adds where one thread at a time does: cheaper than what keeps apart those who do so at once.
pub fn add_alone(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

pub fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
