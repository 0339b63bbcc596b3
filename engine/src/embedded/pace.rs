//! The pace between writers and the background: who is to be woken, who is to wait, and how much writers are slowed.
//!
//! The delay of a write grows with the square of the pressure, from nothing at the soft limits to its full size at the
//! hard ones, so that writers and background meet at a steady rate rather than in stops and bursts. Only where the disk
//! cannot keep up at all do writers wait, at the hard limit of frozen memtables: the queue is bounded.
//!
//! Rows that are written again and again leave garbage faster than a merge of everything drops it. Where there is more of it than
//! such a merge is begun for, writers are slowed as well, but gently: a store that takes more room for a while is none that fails.

use super::cores::Cores;
use super::health::{lock, Health};
use super::metrics::{add, nanos, Counters};
use super::options::{Background, Options};
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Delay for each KiB written, at full pressure.
const FULL_DELAY_PER_KIB: u64 = 400_000;
/// Shorter delays than this are saved up.
const SHORTEST_SLEEP: u64 = 250_000;
const LONGEST_SLEEP: u64 = 1_000_000;
/// So much garbage beyond what starts a merge of everything, as a part of what is live, makes for as much pressure as garbage can ...
const MUCH_GARBAGE: f64 = 0.25;
/// ... which is so much.
const MOST_BY_GARBAGE: f64 = 0.5;
/// How long to wait until an attempt that failed for want of room is made again.
const RETRY: Duration = Duration::from_millis(200);
/// A merge waits no longer than this for a flush.
const LONGEST_WAY: Duration = Duration::from_secs(1);
/// A store to which nothing was written for so long is at rest.
const QUIET: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Pace {
    limits: Limits,
    threads: bool,
    pub cores: Cores,
    /// A flush is under way.
    flushing: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    frozen: AtomicU32,
    runs: AtomicU32,
    /// Pressure by garbage, in millionths.
    garbage: AtomicU32,
    /// Delay that is owed, in nanoseconds.
    owed: AtomicU64,
}

#[derive(Debug)]
struct Limits {
    frozen: (u32, u32),
    runs: (u32, u32),
}

#[derive(Debug, Default)]
struct State {
    flush: bool,
    merge: bool,
    stop: bool,
    /// Flushes done.
    flushed: u64,
    /// Why the background is not getting on, while it is not, and how often a flush was tried in vain.
    trouble: Option<String>,
    troubles: u64,
}

/// What a background thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Flush,
    Merge,
    /// Of an idle store: pages at the end of the page file move into free space below, and a free end is given back.
    Sink,
}

/// How a wait for work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Work,
    Quiet,
    Stop,
}

impl Pace {
    pub fn new(options: &Options) -> Pace {
        Pace {
            limits: Limits {
                frozen: (options.frozen_soft, options.tree.max_frozen),
                runs: (options.runs_soft, options.runs_hard),
            },
            threads: options.background == Background::Threads,
            cores: Cores::new(),
            flushing: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
            frozen: AtomicU32::new(0),
            runs: AtomicU32::new(0),
            garbage: AtomicU32::new(0),
            owed: AtomicU64::new(0),
        }
    }

    /// Whether threads of the store do the work.
    pub fn has_threads(&self) -> bool {
        self.threads
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, RETRY).unwrap_or_else(PoisonError::into_inner).0
    }

    /// A memtable was frozen, or there may be something to merge.
    pub fn wake(&self, task: Task) {
        let mut state = lock(&self.state);
        match task {
            Task::Flush => state.flush = true,
            Task::Merge => state.merge = true,
            // Nobody asks for it: it is done when nothing else is.
            Task::Sink => {}
        }
        drop(state);
        self.changed.notify_all();
    }

    pub fn stop(&self) {
        lock(&self.state).stop = true;
        self.changed.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        lock(&self.state).stop
    }

    /// Waits for work, or (`until_quiet`) until there was none for a while. After trouble, work is tried again after a while.
    pub fn next(&self, task: Task, until_quiet: bool) -> Next {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                return Next::Stop;
            }
            let wanted = match task {
                Task::Flush => std::mem::take(&mut state.flush),
                Task::Merge => std::mem::take(&mut state.merge),
                Task::Sink => false,
            };
            if wanted {
                return Next::Work;
            }
            if !until_quiet {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (guard, waited) = self.changed.wait_timeout(state, QUIET).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if waited.timed_out() {
                return Next::Quiet;
            }
        }
    }

    /// Rests before another try.
    pub fn rest(&self) {
        let state = lock(&self.state);
        if !state.stop {
            drop(self.wait(state));
        }
    }

    /// The calling thread writes: it gets a core to itself while the background gets on without that.
    pub fn writer_is_here(&self) {
        match self.pressure() > 0.0 {
            true => self.cores.leave_none(),
            false => self.cores.leave_this(),
        }
    }

    /// A flush is under way for as long as what this returns lives.
    pub fn flush_begins(&self) -> Flushing<'_> {
        self.flushing.store(true, Ordering::Release);
        Flushing(self)
    }

    /// A merge lets a flush pass, for which writers may have to wait, where there are few cores.
    pub fn let_flush_pass(&self) {
        if !self.cores.are_few() || !self.threads || !self.flushing.load(Ordering::Acquire) {
            return;
        }
        let state = lock(&self.state);
        let under_way = |state: &mut State| self.flushing.load(Ordering::Acquire) && !state.stop;
        drop(self.changed.wait_timeout_while(state, LONGEST_WAY, under_way));
    }

    /// A flush is done.
    pub fn flushed(&self) {
        let mut state = lock(&self.state);
        state.flushed += 1;
        state.merge = true;
        drop(state);
        self.changed.notify_all();
    }

    /// Why the background is not getting on with a task; `None`: it is. Who waits for a flush goes on waiting when a merge finds no room.
    pub fn set_trouble(&self, task: Task, trouble: Option<String>) {
        let mut state = lock(&self.state);
        state.troubles += u64::from(trouble.is_some() && task == Task::Flush);
        state.trouble = trouble;
        drop(state);
        self.changed.notify_all();
    }

    pub fn trouble(&self) -> Option<String> {
        lock(&self.state).trouble.clone()
    }

    /// Waits until a flush is done that was not when this began, or one was tried in vain.
    pub fn wait_for_flush(&self, health: &Health, counters: &Counters) -> Result<()> {
        let begun = Instant::now();
        let mut state = lock(&self.state);
        state.flush = true;
        self.changed.notify_all();
        let (before, troubles) = (state.flushed, state.troubles);
        let result = loop {
            if state.flushed > before {
                break Ok(());
            }
            if let Err(e) = health.check() {
                break Err(e);
            }
            if let Some(trouble) = state.trouble.as_ref().filter(|_| state.troubles > troubles) {
                break Err(Error::NoSpace(format!("memtables cannot be flushed: {trouble}")));
            }
            if state.stop {
                break Err(Error::Unavailable("the store is being closed".into()));
            }
            state = self.wait(state);
        };
        drop(state);
        add(&counters.stalls, 1);
        add(&counters.stalled_nanos, nanos(begun.elapsed()));
        result
    }

    /// How things stand: frozen memtables, runs of level 0.
    pub fn set(&self, frozen: u32, runs: u32) {
        self.set_frozen(frozen);
        self.set_runs(runs);
    }

    pub fn set_runs(&self, runs: u32) {
        self.runs.store(runs, Ordering::Relaxed);
    }

    pub fn set_frozen(&self, frozen: u32) {
        self.frozen.store(frozen, Ordering::Relaxed);
    }

    /// How much garbage there is beyond what starts a merge of everything, as a part of what is live.
    pub fn set_garbage(&self, beyond: f64) {
        let pressure = (beyond / MUCH_GARBAGE).clamp(0.0, 1.0) * MOST_BY_GARBAGE;
        self.garbage.store((pressure * 1e6) as u32, Ordering::Relaxed);
    }

    /// From 0 (no delay) to 1.
    pub fn pressure(&self) -> f64 {
        let part = |now: &AtomicU32, (soft, hard): (u32, u32)| {
            let over = f64::from(now.load(Ordering::Relaxed)) - f64::from(soft);
            (over / f64::from(hard.saturating_sub(soft).max(1))).clamp(0.0, 1.0)
        };
        let garbage = f64::from(self.garbage.load(Ordering::Relaxed)) / 1e6;
        part(&self.frozen, self.limits.frozen).max(part(&self.runs, self.limits.runs)).max(garbage)
    }

    /// Nanoseconds by which a write of so many bytes is to be delayed now: short delays are saved up.
    pub fn delay(&self, bytes: usize) -> Option<Duration> {
        let pressure = self.pressure();
        if pressure <= 0.0 || !self.threads {
            return None;
        }
        let more = (pressure * pressure * FULL_DELAY_PER_KIB as f64 * bytes as f64 / 1024.0) as u64;
        let owed = self.owed.fetch_add(more, Ordering::Relaxed) + more;
        if owed < SHORTEST_SLEEP {
            return None;
        }
        let now = owed.min(LONGEST_SLEEP);
        self.owed.fetch_sub(now, Ordering::Relaxed);
        // What is owed beyond a few sleeps is forgiven: the pressure has changed by then.
        self.owed.fetch_min(4 * LONGEST_SLEEP, Ordering::Relaxed);
        Some(Duration::from_nanos(now))
    }
}

/// See [`Pace::flush_begins`].
pub struct Flushing<'a>(&'a Pace);

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        // Under the latch: who has just looked is waiting by now.
        let state = lock(&self.0.state);
        self.0.flushing.store(false, Ordering::Release);
        drop(state);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_smoothly_with_the_pressure() {
        let pace = Pace::new(&Options { frozen_soft: 2, runs_soft: 10, runs_hard: 30, ..Options::default() });
        let mut last = Duration::ZERO;
        for frozen in 0..10 {
            pace.set(frozen, 0);
            pace.owed.store(0, Ordering::Relaxed);
            let total: Duration = (0..10_000).filter_map(|_| pace.delay(256)).sum();
            assert!(if frozen <= 2 { total.is_zero() } else { total > last || frozen > 6 }, "{frozen}: {total:?}");
            last = total;
        }
        pace.set(0, 20);
        assert!((pace.pressure() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn garbage_slows_gently() {
        let pace = Pace::new(&Options::default());
        let pressure = |beyond| {
            pace.set_garbage(beyond);
            pace.pressure()
        };
        assert_eq!(pressure(0.0), 0.0);
        assert!(pressure(0.1) > 0.0 && pressure(0.2) > pressure(0.1));
        assert_eq!(pressure(100.0), MOST_BY_GARBAGE);
        assert_eq!(pressure(0.0), 0.0);
    }

    #[test]
    fn a_merge_lets_a_flush_pass_where_there_are_few_cores() {
        let pace = Pace { cores: Cores::few(true), ..Pace::new(&Options::default()) };
        pace.let_flush_pass();
        let flushing = pace.flush_begins();
        let passed = AtomicBool::new(false);
        std::thread::scope(|s| {
            let merge = s.spawn(|| {
                pace.let_flush_pass();
                passed.load(Ordering::Acquire)
            });
            std::thread::sleep(Duration::from_millis(20));
            passed.store(true, Ordering::Release);
            drop(flushing);
            assert!(merge.join().unwrap(), "the merge went on beside the flush");
        });
        let many = Pace { cores: Cores::few(false), ..Pace::new(&Options::default()) };
        let _flushing = many.flush_begins();
        many.let_flush_pass();
        let _flushing = pace.flush_begins();
        pace.stop();
        pace.let_flush_pass();
    }

    #[test]
    fn a_wait_ends_with_the_flush_the_trouble_or_the_stop() {
        let pace = Pace::new(&Options::default());
        let (health, counters) = (Health::default(), Counters::default());
        std::thread::scope(|s| {
            let waiter = s.spawn(|| pace.wait_for_flush(&health, &counters));
            assert_eq!(pace.next(Task::Flush, false), Next::Work);
            pace.flushed();
            waiter.join().unwrap().unwrap();
        });
        pace.set_trouble(Task::Flush, Some("full".into()));
        std::thread::scope(|s| {
            let waiter = s.spawn(|| pace.wait_for_flush(&health, &counters));
            assert_eq!(pace.next(Task::Flush, false), Next::Work);
            pace.set_trouble(Task::Flush, Some("still full".into()));
            assert!(matches!(waiter.join().unwrap(), Err(Error::NoSpace(what)) if what.contains("still")));
        });
        pace.set_trouble(Task::Flush, None);
        pace.stop();
        assert!(matches!(pace.wait_for_flush(&health, &counters), Err(Error::Unavailable(_))));
        assert_eq!(pace.next(Task::Merge, true), Next::Stop);
        assert_eq!(counters.stalls.load(Ordering::Relaxed), 3);
    }
}
