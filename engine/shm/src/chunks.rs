//! The heap's chunks: which 32 KiB pieces of the segment are taken, as a bitmap that is changed without locks.
//!
//! ```text
//!  words:  bit i of word w = chunk w * 64 + i is taken
//!  free:   chunks that nobody has taken or is about to take; `kept` of them are for emergencies, and growth leaves `left` more
//! ```
//!
//! A claim first takes its number from `free`, then finds a run of clear bits and sets them word by word; if somebody was
//! faster it undoes its own bits and searches on. Single chunks (they become small objects, and rarely come back) come from
//! the low end, runs (large blocks, which do) from the high end, so that small objects do not break up the room for runs.
//! A process killed halfway leaves bits set: chunks lost until the heap is created anew, nothing worse.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 32 << 10;

const ATTEMPTS: u32 = 16;

/// How far into the emergency area a claim may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    /// Not at all, nor into what is left to others; and small objects only up to a bound ([`crate::heap::limit_growth`]).
    Growth,
    /// Not at all.
    Normal,
    /// For operations that free memory: all but a quarter.
    Freeing,
    /// Where the alternative is to abort, or to stop reclaiming: all of it.
    Last,
}

impl Level {
    pub const ALL: [Level; 4] = [Level::Growth, Level::Normal, Level::Freeing, Level::Last];
}

/// See the module's page.
#[repr(C, align(128))]
pub(crate) struct Chunks {
    free: AtomicUsize,
    count: usize,
    kept: usize,
    /// Free chunks beside these that growth leaves to others.
    left: AtomicUsize,
    /// How often chunks were claimed or given back.
    changes: AtomicU64,
    /// What that was when the free words were last shown.
    shown_at: AtomicU64,
    words: *const AtomicU64,
}

// SAFETY: `words` is only read through, and what it points to is atomic.
unsafe impl Sync for Chunks {}
// SAFETY: as above; the memory is not tied to a thread.
unsafe impl Send for Chunks {}

/// Words of bitmap for `count` chunks.
pub(crate) const fn words_for(count: usize) -> usize {
    count.div_ceil(64)
}

impl Chunks {
    /// # Safety
    /// `words` points to `words_for(count)` zeroed words that live as long as this value.
    pub unsafe fn new(words: *const AtomicU64, count: usize, kept: usize) -> Self {
        assert!(kept < count, "the emergency area leaves no room");
        let this = Chunks {
            free: AtomicUsize::new(count),
            count,
            kept,
            left: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            shown_at: AtomicU64::new(0),
            words,
        };
        if !count.is_multiple_of(64) {
            // Bits past the end are taken for ever, so that no search needs to know where the end is.
            this.word(count / 64).store(!0 << (count % 64), Relaxed);
        }
        this
    }

    fn word(&self, w: usize) -> &AtomicU64 {
        assert!(w < words_for(self.count));
        // SAFETY: within the words promised to `new`.
        unsafe { &*self.words.add(w) }
    }

    pub fn free(&self) -> usize {
        self.free.load(Relaxed)
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Chunks of the emergency area.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Chunks that growth may take.
    pub fn free_for_growth(&self) -> usize {
        self.free().saturating_sub(self.kept + self.left.load(Relaxed))
    }

    /// Chunks that growth might take, if all were free.
    pub fn for_growth(&self) -> usize {
        self.count.saturating_sub(self.kept + self.left.load(Relaxed))
    }

    /// From now on growth leaves so many chunks to others.
    pub fn leave(&self, chunks: usize) {
        self.left.store(chunks, Relaxed);
    }

    /// Takes one chunk from the low end.
    pub fn take_one(&self, level: Level) -> Option<usize> {
        self.take(1, level, Self::find_low)
    }

    /// Takes `n` adjacent chunks, as high as possible. `None`: there is no such run, or only with the emergency area.
    pub fn take_run(&self, n: usize, level: Level) -> Option<usize> {
        self.take(n, level, Self::find_high)
    }

    fn take(&self, n: usize, level: Level, find: fn(&Self, usize) -> Option<usize>) -> Option<usize> {
        debug_assert!(n > 0);
        let floor = match level {
            Level::Growth => self.kept + self.left.load(Relaxed),
            Level::Normal => self.kept,
            Level::Freeing => self.kept / 4,
            Level::Last => 0,
        };
        let wanted = n.checked_add(floor)?;
        self.changes.fetch_add(1, Relaxed);
        self.free.fetch_update(Relaxed, Relaxed, |free| if free >= wanted { Some(free - n) } else { None }).ok()?;
        for _ in 0..ATTEMPTS {
            match find(self, n) {
                Some(start) if self.set(start, n) => return Some(start),
                Some(_) => {}
                None => break,
            }
        }
        self.free.fetch_add(n, Relaxed);
        None
    }

    /// How often chunks were claimed or given back.
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// Claims, for as long as it is shown each, the words of which all chunks are free: one at a time, and only while four
    /// times as many are free beside the emergency area. None, if nothing has changed since this was last done.
    pub fn with_free_words(&self, mut show: impl FnMut(usize, usize)) {
        let changes = self.changes();
        if self.shown_at.swap(changes, Relaxed) == changes {
            return;
        }
        for w in 0..self.count / 64 {
            let plenty = |free: usize| if free >= self.kept + 4 * 64 { Some(free - 64) } else { None };
            if self.word(w).load(Relaxed) != 0 || self.free.fetch_update(Relaxed, Relaxed, plenty).is_err() {
                continue;
            }
            if self.word(w).compare_exchange(0, !0, AcqRel, Relaxed).is_ok() {
                show(w * 64, 64);
                self.clear(w * 64, 64);
            }
            self.free.fetch_add(64, Relaxed);
        }
    }

    /// Gives chunks back.
    pub fn give(&self, start: usize, n: usize) {
        self.clear(start, n);
        self.free.fetch_add(n, Relaxed);
        self.changes.fetch_add(1, Relaxed);
    }

    /// The words and masks of the run.
    fn pieces(start: usize, n: usize) -> impl Iterator<Item = (usize, u64)> {
        let end = start + n;
        (start / 64..end.div_ceil(64)).map(move |w| {
            let from = start.max(w * 64) - w * 64;
            let to = end.min(w * 64 + 64) - w * 64;
            let ones = if to - from == 64 { !0 } else { (1u64 << (to - from)) - 1 };
            (w, ones << from)
        })
    }

    /// Sets all the bits, or none and says false because one was set.
    fn set(&self, start: usize, n: usize) -> bool {
        for (w, mask) in Self::pieces(start, n) {
            let taken = self.word(w).fetch_or(mask, AcqRel) & mask;
            if taken != 0 {
                self.word(w).fetch_and(!(mask & !taken), AcqRel);
                self.clear(start, w * 64 - start.min(w * 64));
                return false;
            }
        }
        true
    }

    fn clear(&self, start: usize, n: usize) {
        for (w, mask) in Self::pieces(start, n) {
            let was = self.word(w).fetch_and(!mask, AcqRel);
            debug_assert_eq!(was & mask, mask, "chunk given back twice");
        }
    }

    fn find_low(&self, n: usize) -> Option<usize> {
        debug_assert_eq!(n, 1);
        (0..words_for(self.count)).find_map(|w| {
            let clear = !self.word(w).load(Relaxed);
            (clear != 0).then(|| w * 64 + clear.trailing_zeros() as usize)
        })
    }

    /// The highest run of `n` clear bits.
    fn find_high(&self, n: usize) -> Option<usize> {
        let mut run = 0;
        for w in (0..words_for(self.count)).rev() {
            let taken = self.word(w).load(Relaxed);
            if taken == !0 {
                run = 0;
            } else if taken == 0 {
                run += 64;
                if run >= n {
                    return Some(w * 64 + run - n);
                }
            } else {
                for bit in (0..64).rev() {
                    run = if taken >> bit & 1 == 1 { 0 } else { run + 1 };
                    if run == n {
                        return Some(w * 64 + bit);
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{Level::*, *};

    fn with_chunks<R>(count: usize, kept: usize, f: impl FnOnce(&Chunks) -> R) -> R {
        let words: Vec<AtomicU64> = (0..words_for(count)).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: `words` outlives the value.
        let chunks = unsafe { Chunks::new(words.as_ptr(), count, kept) };
        f(&chunks)
    }

    #[test]
    fn singles_come_from_below_and_runs_from_above() {
        with_chunks(200, 0, |c| {
            assert_eq!(c.take_one(Normal), Some(0));
            assert_eq!(c.take_run(16, Normal), Some(184));
            assert_eq!(c.take_run(130, Normal), Some(54));
            assert_eq!(c.take_run(54, Normal), None);
            assert_eq!(c.take_run(53, Normal), Some(1));
            assert_eq!(c.free(), 0);
            assert_eq!(c.take_one(Last), None);
            c.give(54, 130);
            c.give(184, 16);
            assert_eq!(c.take_run(146, Normal), Some(54));
        });
    }

    #[test]
    fn the_emergency_area_is_kept_back() {
        with_chunks(100, 10, |c| {
            for _ in 0..90 {
                assert!(c.take_one(Normal).is_some());
            }
            assert_eq!(c.take_one(Normal), None);
            assert_eq!(c.take_run(1, Normal), None);
            assert!(c.take_one(Freeing).is_some());
            assert_eq!(c.take_run(8, Freeing), None);
            assert!(c.take_run(7, Freeing).is_some());
            assert_eq!(c.take_one(Freeing), None);
            assert!(c.take_run(2, Last).is_some());
            assert_eq!(c.take_one(Last), None);
        });
    }

    #[test]
    fn growth_leaves_some_to_others() {
        with_chunks(100, 10, |c| {
            c.leave(5);
            assert_eq!((c.take_run(86, Growth), c.free_for_growth()), (None, 85));
            assert!(c.take_run(85, Growth).is_some());
            assert_eq!((c.take_one(Growth), c.free_for_growth()), (None, 0));
            assert!(c.take_run(5, Normal).is_some());
            assert_eq!(c.take_one(Normal), None);
            assert_eq!(c.free_for_growth(), 0);
        });
    }

    #[test]
    fn a_claim_that_meets_another_undoes_itself() {
        with_chunks(256, 0, |c| {
            assert!(c.set(100, 10));
            for (start, n) in [(95, 6), (109, 1), (90, 100), (0, 101), (100, 10), (109, 147)] {
                assert!(!c.set(start, n), "{start} {n}");
            }
            let taken: u32 = (0..4).map(|w| c.word(w).load(Relaxed).count_ones()).sum();
            assert_eq!(taken, 10);
            c.clear(100, 10);
            assert!(c.set(0, 256));
        });
    }

    #[test]
    fn agrees_with_a_model() {
        let (count, rounds) = if cfg!(miri) { (130, 200) } else { (517, 20_000) };
        with_chunks(count, 0, |c| {
            let mut model = vec![false; count];
            let mut held: Vec<(usize, usize)> = vec![];
            let mut r = 7u64;
            for _ in 0..rounds {
                r = r.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let n = 1 + (r >> 33) as usize % if r >> 60 == 0 { 100 } else { 9 };
                if r >> 32 & 1 == 0 {
                    let highest = (0..=count.saturating_sub(n)).rev().find(|&s| model[s..s + n].iter().all(|t| !t));
                    assert_eq!(c.take_run(n, Normal), highest);
                    if let Some(s) = highest {
                        model[s..s + n].fill(true);
                        held.push((s, n));
                    }
                } else if !held.is_empty() {
                    let (s, n) = held.swap_remove((r >> 40) as usize % held.len());
                    c.give(s, n);
                    model[s..s + n].fill(false);
                }
                assert_eq!(c.free(), model.iter().filter(|t| !**t).count());
            }
        });
    }

    #[test]
    fn racing_threads_never_share_a_chunk() {
        let (count, rounds) = if cfg!(miri) { (150, 30) } else { (300, 20_000) };
        with_chunks(count, 0, |c| {
            let owners: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            std::thread::scope(|s| {
                for t in 1..=3usize {
                    let owners = &owners;
                    s.spawn(move || {
                        let mut held = vec![];
                        for r in 0..rounds {
                            let n = 1 + (r * 7 + t * 13) % 80;
                            if let Some(start) = if n == 1 { c.take_one(Normal) } else { c.take_run(n, Normal) } {
                                for o in &owners[start..start + n] {
                                    assert_eq!(o.swap(t, Relaxed), 0, "chunk taken twice");
                                }
                                held.push((start, n));
                            }
                            if r % 3 == 0 || held.len() > 3 {
                                for (start, n) in held.drain(..) {
                                    for o in &owners[start..start + n] {
                                        assert_eq!(o.swap(0, Relaxed), t);
                                    }
                                    c.give(start, n);
                                }
                            }
                        }
                        for (start, n) in held {
                            owners[start..start + n].iter().for_each(|o| o.store(0, Relaxed));
                            c.give(start, n);
                        }
                    });
                }
            });
            assert_eq!(c.free(), count);
            assert_eq!(c.take_run(count, Normal), Some(0));
        });
    }
}
