//! A table's options in shared memory: they may be changed while the table is in use.
//!
//! Each number stands for itself: whoever reads while somebody writes may see some of the old and some of the new. No two of
//! them have to fit each other.

use crate::filter::FilterKind;
use crate::options::{Compression, KeyPages, RunOptions, TreeOptions};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug, Default)]
pub struct LiveOptions {
    /// 0: none, else the level.
    compression: AtomicU64,
    filter_bits: AtomicU64,
    key_pages: AtomicU64,
    directory: AtomicU64,
    memtable_bytes: AtomicU64,
    max_frozen: AtomicU64,
    fan_in: AtomicU64,
    space_percent: AtomicU64,
    tombstone_percent: AtomicU64,
    value_log_threshold: AtomicU64,
}

impl LiveOptions {
    pub fn new(options: &TreeOptions) -> LiveOptions {
        let live = LiveOptions::default();
        live.set(options);
        live
    }

    /// In force from now on: for the next memtable, the next run, the next decision.
    pub fn set(&self, options: &TreeOptions) {
        let compression = match options.run.compression {
            Compression::None => 0,
            Compression::Zstd(level) => level.unsigned_abs(),
        };
        for (place, value) in [
            (&self.compression, u64::from(compression)),
            (&self.filter_bits, u64::from(options.run.filter_bits)),
            (&self.key_pages, options.run.key_pages as u64),
            (&self.directory, u64::from(options.run.directory)),
            (&self.memtable_bytes, options.memtable_bytes),
            (&self.max_frozen, u64::from(options.max_frozen)),
            (&self.fan_in, u64::from(options.fan_in)),
            (&self.space_percent, u64::from(options.space_percent)),
            (&self.tombstone_percent, u64::from(options.tombstone_percent)),
            (&self.value_log_threshold, options.value_log_threshold),
        ] {
            // The line is read by every writer.
            if place.load(Relaxed) != value {
                place.store(value, Relaxed);
            }
        }
    }

    pub fn get(&self) -> TreeOptions {
        let number = |place: &AtomicU64| u32::try_from(place.load(Relaxed)).unwrap_or(u32::MAX);
        TreeOptions {
            run: self.run(),
            memtable_bytes: self.memtable_bytes(),
            max_frozen: self.max_frozen(),
            fan_in: number(&self.fan_in),
            space_percent: number(&self.space_percent),
            tombstone_percent: number(&self.tombstone_percent),
            value_log_threshold: self.value_log_threshold(),
        }
    }

    pub fn run(&self) -> RunOptions {
        let number = |place: &AtomicU64| u32::try_from(place.load(Relaxed)).unwrap_or(u32::MAX);
        RunOptions {
            compression: match i32::try_from(self.compression.load(Relaxed)) {
                Ok(level @ 1..) => Compression::Zstd(level),
                _ => Compression::None,
            },
            filter_bits: number(&self.filter_bits),
            filter: FilterKind::Bloom,
            key_pages: {
                let now = self.key_pages.load(Relaxed);
                KeyPages::ALL.into_iter().find(|key_pages| *key_pages as u64 == now).unwrap_or_default()
            },
            directory: self.directory.load(Relaxed) != 0,
        }
    }

    pub fn memtable_bytes(&self) -> u64 {
        self.memtable_bytes.load(Relaxed)
    }

    pub fn max_frozen(&self) -> u32 {
        u32::try_from(self.max_frozen.load(Relaxed)).unwrap_or(u32::MAX)
    }

    #[inline]
    pub fn value_log_threshold(&self) -> u64 {
        self.value_log_threshold.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_comes_back() {
        let all = [("compression", "zstd:7"), ("key_pages", "off"), ("fan_in", "5"), ("value_log_threshold", "4kB")];
        let changed = TreeOptions::parse(all).unwrap();
        let live = LiveOptions::new(&TreeOptions::default());
        assert_eq!(live.get(), TreeOptions::default());
        live.set(&changed);
        assert_eq!(live.get(), changed);
    }
}
