//! Latches: short reader-writer locks inside shared structures, and guards for them.
//!
//! [`RawLatch`] is what the host provides; [`ThreadLatch`] is the one for threads and for forked processes outside
//! PostgreSQL.
//!
//! ```text
//!  state:  writers wait : 1 | readers wait : 1 | readers, or all ones for a writer : 30
//! ```
//!
//! A writer that waits keeps new readers out, and is woken first; the readers that queued behind it all go when it is
//! done. A waiter wakes up every 50 ms and looks again, whatever happened to its wake-up.
//!
//! A process that is killed while it holds a `ThreadLatch` leaves it held: the host must restart everybody, as
//! PostgreSQL does.

use crate::broken::{on, Broken::*};
#[cfg(test)]
use crate::interleave;
use crate::interleave::AtomicU32;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::*;

/// A reader-writer latch inside shared structures. Short holds only; a holder that dies restarts the cluster.
pub trait RawLatch: Send + Sync + Sized {
    /// A free latch.
    fn new() -> Self;
    fn lock_shared(&self);
    fn lock_exclusive(&self);
    fn try_lock_exclusive(&self) -> bool;
    /// # Safety
    /// The caller holds the latch shared.
    unsafe fn unlock_shared(&self);
    /// # Safety
    /// The caller holds the latch exclusively.
    unsafe fn unlock_exclusive(&self);

    /// Holds the latch shared until the guard is dropped. Not to be nested: a writer in between would wait for ever.
    #[inline]
    fn read(&self) -> SharedGuard<'_, Self> {
        self.lock_shared();
        count(1);
        SharedGuard { latch: self, _this_thread: PhantomData }
    }

    /// Holds the latch exclusively until the guard is dropped.
    #[inline]
    fn write(&self) -> ExclusiveGuard<'_, Self> {
        self.lock_exclusive();
        count(1);
        ExclusiveGuard { latch: self, _this_thread: PhantomData }
    }

    /// As [`RawLatch::write`], if it is free now.
    #[inline]
    fn try_write(&self) -> Option<ExclusiveGuard<'_, Self>> {
        if !self.try_lock_exclusive() {
            return None;
        }
        count(1);
        Some(ExclusiveGuard { latch: self, _this_thread: PhantomData })
    }
}

/// A latch held shared.
#[must_use = "the latch is released where this is dropped"]
pub struct SharedGuard<'a, L: RawLatch> {
    latch: &'a L,
    _this_thread: PhantomData<*const ()>,
}

impl<L: RawLatch> Drop for SharedGuard<'_, L> {
    #[inline]
    fn drop(&mut self) {
        count(-1);
        // SAFETY: the guard is the holding.
        unsafe { self.latch.unlock_shared() }
    }
}

/// A latch held exclusively.
#[must_use = "the latch is released where this is dropped"]
pub struct ExclusiveGuard<'a, L: RawLatch> {
    latch: &'a L,
    _this_thread: PhantomData<*const ()>,
}

impl<L: RawLatch> Drop for ExclusiveGuard<'_, L> {
    #[inline]
    fn drop(&mut self) {
        count(-1);
        // SAFETY: the guard is the holding.
        unsafe { self.latch.unlock_exclusive() }
    }
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

#[cfg(debug_assertions)]
fn count(by: i32) {
    let _ = HELD.try_with(|held| held.set(held.get().saturating_add_signed(by)));
}

#[cfg(not(debug_assertions))]
#[inline(always)]
fn count(_by: i32) {}

/// Latches that this thread holds through guards, in debug builds; else 0. For `debug_assert!` only.
pub fn held() -> u32 {
    #[cfg(debug_assertions)]
    return HELD.try_with(|held| held.get()).unwrap_or(0);
    #[cfg(not(debug_assertions))]
    0
}

/// Guards were skipped by a longjmp, or belong to the parent process: the latches are not this thread's (any more).
pub(crate) fn forget_held() {
    #[cfg(debug_assertions)]
    let _ = HELD.try_with(|held| held.set(0));
}

/// See the module's page. Works between threads, and between processes that map it shared.
#[derive(Debug, Default)]
pub struct ThreadLatch {
    state: AtomicU32,
    /// Changes whenever a writer is woken: what writers sleep on.
    turn: AtomicU32,
}

const READER: u32 = 1;
const HOLDERS: u32 = (1 << 30) - 1;
const WRITER: u32 = HOLDERS;
const READERS_WAIT: u32 = 1 << 30;
const WRITERS_WAIT: u32 = 1 << 31;

const SPINS: u32 = if cfg!(miri) { 2 } else { 100 };

/// How often a waiter looks before it sleeps.
fn spins() -> u32 {
    #[cfg(test)]
    if interleave::exploring() {
        return 1;
    }
    SPINS
}

const RECHECK_NANOS: i64 = 50_000_000;

impl RawLatch for ThreadLatch {
    fn new() -> Self {
        Self::default()
    }

    #[inline]
    fn lock_shared(&self) {
        let state = self.state.load(Relaxed);
        if !may_read(state) || self.state.compare_exchange_weak(state, state + READER, Acquire, Relaxed).is_err() {
            self.lock_shared_slowly();
        }
    }

    #[inline]
    fn lock_exclusive(&self) {
        if self.state.compare_exchange_weak(0, WRITER, Acquire, Relaxed).is_err() {
            self.lock_exclusive_slowly();
        }
    }

    #[inline]
    fn try_lock_exclusive(&self) -> bool {
        self.state.fetch_update(Acquire, Relaxed, |s| if s & HOLDERS == 0 { Some(s | WRITER) } else { None }).is_ok()
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        let state = self.state.fetch_sub(READER, Release) - READER;
        debug_assert!(state & HOLDERS < WRITER - 1, "released but not held shared");
        if state & HOLDERS == 0 && state != 0 {
            self.wake(state);
        }
    }

    #[inline]
    unsafe fn unlock_exclusive(&self) {
        let state = self.state.fetch_sub(WRITER, Release) - WRITER;
        debug_assert_eq!(state & HOLDERS, 0, "released but not held exclusively");
        if state != 0 {
            self.wake(state);
        }
    }
}

fn may_read(state: u32) -> bool {
    let free = state & HOLDERS < WRITER - 1 || on(LatchReaderBesideWriter);
    free && state & (READERS_WAIT | WRITERS_WAIT) == 0
}

impl ThreadLatch {
    #[cold]
    fn lock_shared_slowly(&self) {
        let mut state = self.spin(|s| s & HOLDERS != WRITER || s & (READERS_WAIT | WRITERS_WAIT) != 0);
        // After a wait that timed out nobody may be left to wake us: then the flags alone do not keep us out.
        let mut overdue = false;
        loop {
            let free = state & HOLDERS < WRITER - 1;
            if may_read(state) || (overdue && free) {
                match self.state.compare_exchange_weak(state, state + READER, Acquire, Relaxed) {
                    Ok(_) => return,
                    Err(now) => state = now,
                }
                continue;
            }
            if state & READERS_WAIT == 0 {
                if let Err(now) = self.state.compare_exchange(state, state | READERS_WAIT, Relaxed, Relaxed) {
                    state = now;
                    continue;
                }
            }
            overdue = !wait(&self.state, state | READERS_WAIT);
            state = self.spin(|s| s & HOLDERS != WRITER || s & (READERS_WAIT | WRITERS_WAIT) != 0);
        }
    }

    #[cold]
    fn lock_exclusive_slowly(&self) {
        let mut state = self.spin(|s| s & HOLDERS == 0 || s & WRITERS_WAIT != 0);
        let mut others_wait = 0;
        loop {
            if state & HOLDERS == 0 {
                // Having waited, we cannot know that no other writer does.
                match self.state.compare_exchange_weak(state, state | WRITER | others_wait, Acquire, Relaxed) {
                    Ok(_) => return,
                    Err(now) => state = now,
                }
                continue;
            }
            if state & WRITERS_WAIT == 0 {
                if let Err(now) = self.state.compare_exchange(state, state | WRITERS_WAIT, Relaxed, Relaxed) {
                    state = now;
                    continue;
                }
            }
            others_wait = if on(LatchOthersForgotten) { 0 } else { WRITERS_WAIT };
            let turn = self.turn.load(Acquire);
            state = self.state.load(Relaxed);
            if state & HOLDERS == 0 || state & WRITERS_WAIT == 0 {
                continue;
            }
            wait(&self.turn, turn);
            state = self.spin(|s| s & HOLDERS == 0 || s & WRITERS_WAIT != 0);
        }
    }

    /// Wakes a writer, or else all readers, after the last holder has gone and left `state`.
    #[cold]
    fn wake(&self, mut state: u32) {
        debug_assert_eq!(state & HOLDERS, 0);
        if state == WRITERS_WAIT {
            match self.state.compare_exchange(state, 0, Relaxed, Relaxed) {
                Ok(_) => return self.wake_writer(),
                Err(now) => state = now,
            }
        }
        if state == READERS_WAIT | WRITERS_WAIT {
            if self.state.compare_exchange(state, READERS_WAIT, Relaxed, Relaxed).is_err() {
                return; // somebody has it already, and will wake the others
            }
            self.turn.fetch_add(1, Release);
            if futex_wake(&self.turn, 1) > 0 {
                return;
            }
            // No writer slept. It may be about to look at the latch, or dead; the readers must not wait for it.
            state = READERS_WAIT;
        }
        if on(LatchReadersNotWoken) {
            return;
        }
        if state == READERS_WAIT && self.state.compare_exchange(state, 0, Relaxed, Relaxed).is_ok() {
            futex_wake(&self.state, i32::MAX);
        }
    }

    fn wake_writer(&self) {
        if on(LatchWriterNotWoken) {
            return;
        }
        self.turn.fetch_add(1, Release);
        futex_wake(&self.turn, 1);
    }

    fn spin(&self, done: impl Fn(u32) -> bool) -> u32 {
        let mut left = spins();
        loop {
            let state = self.state.load(Relaxed);
            if left == 0 || done(state) {
                return state;
            }
            left -= 1;
            std::hint::spin_loop();
        }
    }
}

/// Sleeps while the word has the value, at most [`RECHECK_NANOS`]; false if that long passed. Not a private futex, so that
/// it works between processes.
fn wait(word: &AtomicU32, value: u32) -> bool {
    #[cfg(test)]
    if interleave::exploring() {
        return explored::wait(word, value);
    }
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: RECHECK_NANOS };
    // SAFETY: the word is alive, and the timeout too.
    let woken = unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &timeout as *const libc::timespec)
    };
    woken == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}

fn futex_wake(word: &AtomicU32, count: i32) -> i64 {
    #[cfg(test)]
    if interleave::exploring() {
        return explored::wake(word, count);
    }
    // SAFETY: the word is alive.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) }
}

/// The latch in whatever order its users come. Here nobody wakes up by the clock: a wake-up that is lost is a deadlock.
#[cfg(test)]
mod explored {
    use super::*;
    use crate::broken::{self, Broken, ALL};
    use interleave::{explore, pause, Order, Steps};
    use std::sync::atomic::{self, AtomicI32};
    use std::sync::Arc;

    pub fn wait(word: &AtomicU32, value: u32) -> bool {
        interleave::pause();
        // SAFETY: the word is alive. Read without a step: who sleeps has looked, with nobody in between.
        let now = unsafe { atomic::AtomicU32::from_ptr(word.as_ptr()) }.load(Relaxed);
        if now == value {
            interleave::wait(word.as_ptr().addr());
        }
        true
    }

    pub fn wake(word: &AtomicU32, count: i32) -> i64 {
        interleave::pause();
        interleave::wake(word.as_ptr().addr(), usize::try_from(count).unwrap_or(0)) as i64
    }

    /// So many writers and readers, each coming twice. A writer counts itself a hundred times.
    fn run(writers: usize, readers: usize) {
        let shared = Arc::new((ThreadLatch::new(), AtomicI32::new(0)));
        let each = |writes: bool| {
            let shared = Arc::clone(&shared);
            shuttle::thread::spawn(move || {
                let (latch, inside) = (&shared.0, &shared.1);
                for _ in 0..2 {
                    let weight = if writes { 100 } else { 1 };
                    if writes {
                        latch.lock_exclusive()
                    } else {
                        latch.lock_shared()
                    }
                    let before = inside.fetch_add(weight, SeqCst);
                    assert!(if writes { before == 0 } else { before < 100 }, "somebody is there: {before}");
                    pause();
                    inside.fetch_sub(weight, SeqCst);
                    // SAFETY: locked above.
                    unsafe {
                        if writes {
                            latch.unlock_exclusive()
                        } else {
                            latch.unlock_shared()
                        }
                    }
                }
            })
        };
        let threads: Vec<_> = (0..writers + readers).map(|at| each(at < writers)).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }

    fn noticed(broken: Option<Broken>, order: Order) -> Option<(usize, usize)> {
        let kinds = [(2, 0), (1, 1), (1, 2), (2, 1), (3, 2)];
        let goes_wrong = |(writers, readers): &(usize, usize)| {
            let (writers, readers) = (*writers, *readers);
            explore(Steps::Atomics, order, move || broken::set(broken), move || run(writers, readers)).is_err()
        };
        kinds.into_iter().find(goes_wrong)
    }

    const ORDERS: [Order; 2] = [Order::Random(1500), Order::Few(4, 1500)];

    #[test]
    fn in_whatever_order_writers_are_alone_and_nobody_waits_for_ever() {
        if cfg!(miri) {
            return; // the scheduler switches stacks by hand
        }
        for order in ORDERS {
            assert_eq!(noticed(None, order), None);
        }
    }

    #[test]
    fn a_broken_latch_is_noticed() {
        if cfg!(miri) {
            return; // the scheduler switches stacks by hand
        }
        for broken in ALL.iter().filter(|broken| format!("{broken:?}").starts_with("Latch")) {
            let by = ORDERS.iter().find_map(|order| noticed(Some(*broken), *order));
            println!("{broken:?}: writers and readers {by:?}");
            assert!(by.is_some(), "nothing noticed {broken:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    #[test]
    fn guards_hold_and_release() {
        let latch = ThreadLatch::new();
        {
            let _a = latch.read();
            assert!(latch.try_write().is_none());
            assert_eq!(held(), u32::from(cfg!(debug_assertions)));
        }
        {
            let _w = latch.write();
            assert!(latch.try_write().is_none());
        }
        assert!(latch.try_write().is_some());
        assert_eq!(held(), 0);
    }

    #[test]
    fn a_panic_releases() {
        let latch = ThreadLatch::new();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _w = latch.write();
            panic!("on purpose");
        }));
        assert!(caught.is_err());
        assert!(latch.try_write().is_some());
        assert_eq!(held(), 0);
    }

    #[test]
    fn writers_exclude_everybody() {
        struct Pair(ThreadLatch, UnsafeCell<(u64, u64)>);
        // SAFETY: the cell is used under the latch.
        unsafe impl Sync for Pair {}
        let pair = Pair(ThreadLatch::new(), UnsafeCell::new((0, 0)));
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let pair = &pair;
                s.spawn(move || {
                    for r in 0..rounds {
                        if (r + t) % 4 == 0 {
                            let _w = pair.0.write();
                            // SAFETY: held exclusively.
                            let v = unsafe { &mut *pair.1.get() };
                            v.0 += 1;
                            std::hint::black_box(&v);
                            v.1 += 1;
                        } else {
                            let _r = pair.0.read();
                            // SAFETY: held shared.
                            let v = unsafe { &*pair.1.get() };
                            assert_eq!(v.0, v.1);
                        }
                    }
                });
            }
        });
        assert_eq!(pair.1.into_inner(), (rounds, rounds));
        assert_eq!(pair.0.state.load(Relaxed), 0);
    }

    #[test]
    fn a_writer_gets_in_between_readers_who_never_leave_together() {
        if cfg!(miri) {
            return; // a test of time
        }
        let latch = ThreadLatch::new();
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    while !done.load(Relaxed) {
                        let _r = latch.read();
                        std::thread::sleep(Duration::from_micros(200));
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            let start = Instant::now();
            for _ in 0..20 {
                drop(latch.write());
            }
            done.store(true, Relaxed);
            assert!(start.elapsed() < Duration::from_secs(5), "writers starve");
        });
    }
}
