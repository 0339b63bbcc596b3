//! When memory for memtables runs short: the worker flushes the largest memtables before they are full, and whoever finds no
//! memory at all takes that of tables which nobody is using. Their rows are in their logs, and are read back when the table
//! is used again.

use super::{ask, pace};
use crate::host::maintenance::Maintenance;
use crate::host::{global, interrupt, registry, PgHost};
use crate::pg::worker;
use loosekv_engine::error::{Error, Result};
use loosekv_engine::tree::{Appended, NewRow, Tree};
use loosekv_shm::heap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Attempts to find memory before the error is the user's, where nobody is at work to free some.
const ATTEMPTS: u32 = 100;
/// How long to wait for somebody who is: a flush that has to make room in the key index first, or a merge in between, may take
/// seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Where all tables are in use, some of their statements end.
const NAP: Duration = Duration::from_millis(5);
/// Memtables smaller than this are not flushed early: their runs would be tiny.
const WORTH_FLUSHING: usize = 64 << 10;
/// But while somebody finds no memory, those that take more than a little one does are: where they are of many tables, there are no others.
const WORTH_IT_IN_NEED: usize = 24 << 10;
/// For so long somebody who found no memory goes on looking, if nobody says otherwise, in microseconds.
const NEED: u64 = 200_000;

/// Whether memtables are to be flushed before they are full.
pub fn is_short() -> bool {
    let Some(global) = global::get() else { return false };
    let heap = heap::stats();
    // Large blocks are memtables, and little else.
    let memtables = global.budgets.memtables.limit.load(Relaxed) as usize;
    heap.blocks > memtables / 4 * 3 || has_little_free()
}

/// Whether there is hardly any memory in whole chunks.
fn has_little_free() -> bool {
    let heap = heap::stats();
    heap.free.saturating_sub(heap.emergency) < heap.size / 16
}

/// Whether the largest memtable of so many tables is worth an early flush: what others hold, who look at memtables that are in runs
/// already, does not come free by it.
pub fn worth_flushing(largest: usize, tables: usize) -> bool {
    is_needed() && largest >= WORTH_IT_IN_NEED
        || largest >= WORTH_FLUSHING && largest * tables.max(1) >= heap::stats().blocks / 4
}

/// Whether somebody looks for memory, and has found none.
pub fn is_needed() -> bool {
    global::get().is_some_and(|global| (worker::now() as u64).abs_diff(global.counters.wanted.load(Relaxed)) < NEED)
}

/// Appends rows as [`Tree::append`] does, no faster than the background can follow. No latch is held.
pub fn append(tree: &Tree<'_, PgHost>, rows: &[NewRow<'_>]) -> Result<Appended> {
    pace::before_write(tree, rows.iter().map(|row| row.key.len() + row.body.len()).sum());
    let first = tree.append(rows);
    let Ok(done) = &first else {
        return match first {
            Err(Error::MemoryFull { .. }) => relieved(tree, || tree.append(rows)),
            _ => first,
        };
    };
    if tree.shared().is_starved() {
        make_rooms_of_cold()?;
    }
    let look = done.first.0 / ROWS_A_LOOK != (done.first.0 + done.written as u64) / ROWS_A_LOOK;
    // Once nobody writes any more, a worker is to make a run of these.
    if look && tree.host.is_shared() && !ask::is_served() {
        ask::worker();
    }
    first
}

/// Tables that nobody has used for so long, in microseconds, are of less use in memory than a memtable of one that is being written ...
const COLD: u64 = 10_000_000;
/// ... and up to so many go at a time, some by some. What they had is in small pieces among those of others: whole chunks come free when
/// many have gone.
const COLD_AT_ONCE: u32 = 64;
const SOME_COLD: u32 = 8;

/// Gives up the memory of tables that nobody is using, for one that is being written finds no more than a little for its memtables.
#[cold]
fn make_rooms_of_cold() -> Result<()> {
    for _ in 0..COLD_AT_ONCE / SOME_COLD {
        if !has_little_free() || !registry::make_rooms_of_cold(SOME_COLD, COLD)? {
            break;
        }
        loosekv_shm::heap::free_chunks();
    }
    Ok(())
}

/// Rows between two looks whether there is a worker.
const ROWS_A_LOOK: u64 = 1024;

/// Does what may find no memory; again then, once some was found.
pub fn with_relief<R>(tree: &Tree<'_, PgHost>, mut work: impl FnMut() -> Result<R>) -> Result<R> {
    match work() {
        Err(Error::MemoryFull { .. }) => relieved(tree, work),
        done => done,
    }
}

/// Does what has found no memory, once some was found.
#[cold]
fn relieved<R>(tree: &Tree<'_, PgHost>, mut work: impl FnMut() -> Result<R>) -> Result<R> {
    let mut patience = Patience::begin();
    loop {
        let mut at_work = false;
        if !patience.make_rooms()? {
            let relief = match flush_own(tree) {
                // It wants a little itself: what others are about to free.
                Err(Error::MemoryFull { .. }) => Relief::None,
                done => done?,
            };
            at_work = relief == Relief::Coming;
            if relief != Relief::Done {
                interrupt::nap(NAP);
            }
        }
        match work() {
            Err(Error::MemoryFull { .. }) if patience.lasts(at_work) => {}
            done => return done,
        }
    }
}

/// Who has found no memory: how long he goes on trying.
pub struct Patience {
    begun: Instant,
    /// When somebody was last seen to have flushed, and how often that had been done by then, to all tables together.
    since: Instant,
    flushes: u64,
    vain: u32,
}

impl Patience {
    pub fn begin() -> Patience {
        let now = Instant::now();
        Patience { begun: now, since: now, flushes: flushes(), vain: 0 }
    }

    /// Asks for what is done in the background, and gives up the memory of tables that nobody is using. False: there is none.
    pub fn make_rooms(&self) -> Result<bool> {
        if let Some(global) = global::get() {
            global.counters.wanted.store(worker::now() as u64, Relaxed);
        }
        ask::worker();
        // More each time: what one table had may be in small pieces.
        registry::make_rooms(1 << self.vain.min(6))
    }

    /// As [`Patience::make_rooms`], where nothing else can be done but to wait.
    pub fn make_rooms_or_wait(&self) -> Result<()> {
        if !self.make_rooms()? {
            interrupt::nap(NAP);
        }
        Ok(())
    }

    /// An attempt was in vain: whether to make another. As long as tables are flushed, whichever, memory comes free, though others may have
    /// been faster. `at_work`: somebody flushes the table itself.
    pub fn lasts(&mut self, at_work: bool) -> bool {
        let flushes = flushes();
        if flushes != self.flushes {
            (self.since, self.flushes) = (Instant::now(), flushes);
            if self.begun.elapsed() < PATIENCE {
                self.vain = 0;
            }
        }
        if at_work && self.since.elapsed() < PATIENCE {
            return true;
        }
        self.vain += 1;
        self.vain <= ATTEMPTS
    }
}

fn flushes() -> u64 {
    global::get().map_or(0, |global| global.counters.flushes.load(Relaxed))
}

#[derive(PartialEq, Eq)]
enum Relief {
    Done,
    /// Another is at work on the table.
    Coming,
    /// Nothing is frozen, or there is no memory for what flushing takes.
    None,
}

/// Flushes what this table has frozen, unless another is at it.
fn flush_own(tree: &Tree<'_, PgHost>) -> Result<Relief> {
    // SAFETY: the host's relation is open.
    match unsafe { Maintenance::try_lock(tree.host.rel()) } {
        Some(_lock) => Ok(if interrupt::held(|| tree.flush_one())? { Relief::Done } else { Relief::None }),
        None => Ok(Relief::Coming),
    }
}
