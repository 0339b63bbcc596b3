//! What this process has looked at since it began: look-ups, runs, filters, scans, pages. EXPLAIN (ANALYZE) shows the difference.
//!
//! A parallel worker adds what it has seen to its leader's entry in shared memory before it says that it is done, which the
//! leader waits for:
//!
//! ```text
//!  by_workers[number of the leader's PGPROC] <- worker, at the end of its part of the transaction
//! ```
//!
//! The entries are never set back; a leader takes differences. A leader that dies leaves its PGPROC to its workers until the
//! last of them is gone, so nobody's late report ends up with somebody else. When a query fails, its workers are gone before
//! the transaction or savepoint is rolled back.

use crate::host::global;
use crate::pg::bindings_am::raw;
use loosekv_engine::host::Saw;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const KINDS: usize = Saw::MergedScan as usize + 1;

/// One process is one thread, and each has its own; the atomics are for the language.
static SEEN: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];
static PAGES: AtomicU64 = AtomicU64::new(0);
static ASKED: AtomicU64 = AtomicU64::new(0);

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

/// Shared buffers that this process has had filled, by PostgreSQL's own count.
#[inline]
pub fn fetched() -> u64 {
    // SAFETY: a count of this process.
    unsafe { raw::pgBufferUsage.shared_blks_read as u64 }
}

/// The kernel was asked for so many pages beforehand.
pub fn asked(pages: u32) {
    ASKED.store(ASKED.load(Relaxed) + u64::from(pages), Relaxed);
}

/// All counts at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    counts: [u64; KINDS],
    pub pages: u64,
    /// Of pages, those that the kernel was asked for beforehand.
    pub asked: u64,
}

impl Seen {
    pub fn now() -> Seen {
        let counts = std::array::from_fn(|i| SEEN[i].load(Relaxed));
        Seen { counts, pages: PAGES.load(Relaxed), asked: ASKED.load(Relaxed) }
    }

    /// What this process's parallel workers have seen: those that are done.
    pub fn of_workers() -> Seen {
        // SAFETY: set at process start.
        entry_of(unsafe { pg_sys::MyProc }).map(OfWorkers::seen).unwrap_or_default()
    }

    pub fn and(&self, other: &Seen) -> Seen {
        let counts = std::array::from_fn(|i| self.counts[i] + other.counts[i]);
        Seen { counts, pages: self.pages + other.pages, asked: self.asked + other.asked }
    }

    /// What has come since `before`.
    pub fn since(&self, before: &Seen) -> Seen {
        let counts = std::array::from_fn(|i| self.counts[i] - before.counts[i]);
        Seen { counts, pages: self.pages - before.pages, asked: self.asked - before.asked }
    }

    pub fn of(&self, what: Saw) -> u64 {
        self.counts[what as usize]
    }

    pub fn is_empty(&self) -> bool {
        self.pages == 0 && self.counts.iter().all(|count| *count == 0)
    }
}

/// What the parallel workers of one process have seen.
#[repr(align(64))]
#[derive(Default)]
pub struct OfWorkers {
    counts: [AtomicU64; KINDS],
    pages: AtomicU64,
    asked: AtomicU64,
}

impl OfWorkers {
    // The message that a worker is done orders what it wrote before what its leader reads.
    fn add(&self, seen: &Seen) {
        for (sum, count) in self.counts.iter().zip(seen.counts) {
            sum.fetch_add(count, Relaxed);
        }
        self.pages.fetch_add(seen.pages, Relaxed);
        self.asked.fetch_add(seen.asked, Relaxed);
    }

    fn seen(&self) -> Seen {
        let counts = std::array::from_fn(|i| self.counts[i].load(Relaxed));
        Seen { counts, pages: self.pages.load(Relaxed), asked: self.asked.load(Relaxed) }
    }
}

/// All processes' entries, by the numbers of their PGPROCs.
pub struct ByWorkers {
    first: *const OfWorkers,
    len: usize,
}

// SAFETY: points to the segment, which all processes see at this address.
unsafe impl Sync for ByWorkers {}

impl ByWorkers {
    /// # Safety
    /// `first` is the first of `len` entries that live as long as the segment.
    pub unsafe fn new(first: *const OfWorkers, len: usize) -> ByWorkers {
        ByWorkers { first, len }
    }
}

fn entry_of(process: *const pg_sys::PGPROC) -> Option<&'static OfWorkers> {
    // SAFETY: null, or an entry of PostgreSQL's array; its number never changes.
    let number = unsafe { process.as_ref() }?.pgprocno;
    let all = &global::get()?.by_workers;
    let at = usize::try_from(number).ok().filter(|at| *at < all.len)?;
    // SAFETY: within the array.
    Some(unsafe { &*all.first.add(at) })
}

/// This process is a parallel worker, and its work is done.
pub fn report_to_leader() {
    // SAFETY: set at process start; a worker joins its leader's group before anything else, and leaves it when it ends.
    let leader = unsafe { (*pg_sys::MyProc).lockGroupLeader };
    if let Some(entry) = entry_of(leader) {
        entry.add(&Seen::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_sees_the_sum_of_its_workers_reports() {
        let entry = OfWorkers::default();
        let report = Seen { counts: std::array::from_fn(|i| i as u64), pages: 7, asked: 3 };
        entry.add(&report);
        let before = entry.seen();
        entry.add(&report);
        entry.add(&report);
        let seen = entry.seen().since(&before);
        assert_eq!(seen.counts, std::array::from_fn(|i| 2 * i as u64));
        assert_eq!((seen.pages, seen.asked), (14, 6));
        assert_eq!(seen.and(&before).counts, entry.seen().counts);
        assert!(entry.seen().since(&entry.seen()).is_empty());
    }
}
