//! What this process has looked at since it began: look-ups, runs, filters, scans, pages. EXPLAIN (ANALYZE) shows the difference.

use loosekv_engine::host::Saw;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const KINDS: usize = Saw::MergedScan as usize + 1;

/// One process is one thread, and each has its own; the atomics are for the language.
static SEEN: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];
static PAGES: AtomicU64 = AtomicU64::new(0);

#[inline]
pub fn add(what: Saw, times: u64) {
    let place = &SEEN[what as usize];
    place.store(place.load(Relaxed) + times, Relaxed);
}

/// A page was asked of the buffer manager.
#[inline]
pub fn page() {
    PAGES.store(PAGES.load(Relaxed) + 1, Relaxed);
}

/// All counts at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    counts: [u64; KINDS],
    pub pages: u64,
}

impl Seen {
    pub fn now() -> Seen {
        Seen { counts: std::array::from_fn(|i| SEEN[i].load(Relaxed)), pages: PAGES.load(Relaxed) }
    }

    /// What has come since `before`.
    pub fn since(&self, before: &Seen) -> Seen {
        let counts = std::array::from_fn(|i| self.counts[i] - before.counts[i]);
        Seen { counts, pages: self.pages - before.pages }
    }

    pub fn of(&self, what: Saw) -> u64 {
        self.counts[what as usize]
    }

    pub fn is_empty(&self) -> bool {
        self.pages == 0 && self.counts.iter().all(|count| *count == 0)
    }
}
