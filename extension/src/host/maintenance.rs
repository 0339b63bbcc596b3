//! Flushes and merges: one at a time for each table, by whoever gets there, a background worker or a writer that found no
//! room.
//!
//! The lock is a heavyweight one, so that whoever waits for it can be cancelled and a deadlock is noticed. It is held on a
//! "page" that no file has, and so does not meet the relation's own locks.

use crate::host::{interrupt, progress, PgHost};
use crate::pg::worker;
use crate::work::pace;
use loosekv_engine::error::{Error, Result};
use loosekv_engine::tree::Tree;
use pgrx::pg_sys;
use std::time::Duration;

/// The page that stands for the table's maintenance. The last one stands for its loading.
const PAGE: pg_sys::BlockNumber = pg_sys::InvalidBlockNumber - 2;
/// Between two looks whether another has flushed.
const NAP: Duration = Duration::from_millis(2);
/// Between two looks whether a merge has given back pages.
const NAP_FOR_MERGE: Duration = Duration::from_millis(10);
const MODE: pg_sys::LOCKMODE = pg_sys::ExclusiveLock as pg_sys::LOCKMODE;

/// The table's maintenance lock, held until dropped or until the transaction aborts.
pub struct Maintenance(pg_sys::Relation);

impl Maintenance {
    /// Waits for the lock.
    ///
    /// # Safety
    /// `rel` is open, and stays so while the lock is held.
    pub unsafe fn lock(rel: pg_sys::Relation) -> Maintenance {
        // SAFETY: the caller's word; guarded, so that a cancel becomes a panic.
        unsafe { pg_sys::LockPage(rel, PAGE, MODE) };
        Maintenance(rel)
    }

    /// Takes the lock if it is free.
    ///
    /// # Safety
    /// As for [`Maintenance::lock`].
    pub unsafe fn try_lock(rel: pg_sys::Relation) -> Option<Maintenance> {
        // SAFETY: the caller's word.
        let locked = unsafe { pg_sys::ConditionalLockPage(rel, PAGE, MODE) };
        // Made only if it is true: what is dropped unlocks.
        locked.then(|| Maintenance(rel))
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        // While an ERROR unwinds, PostgreSQL is not to be called: the abort that follows releases the lock.
        if !std::thread::panicking() {
            // SAFETY: taken by `lock` or `try_lock`, on a relation that is open.
            unsafe { pg_sys::UnlockPage(self.0, PAGE, MODE) };
        }
    }
}

/// A writer found too many memtables frozen: waits until one is flushed, or flushes one. It does not queue for the lock, for
/// a merge holds it long and flushes in between.
pub(super) fn make_room(tree: &Tree<'_, PgHost>) -> Result<()> {
    let before = flushed(tree);
    while flushed(tree) == before {
        // SAFETY: the host's relation is open.
        if let Some(_lock) = unsafe { Maintenance::try_lock(tree.host.rel()) } {
            if flushed(tree) == before {
                interrupt::held(|| tree.flush_one())?;
                pace::update(tree);
                progress::ended();
            }
            return Ok(());
        }
        interrupt::nap(NAP);
    }
    Ok(())
}

/// A writer finds the disk full. False: nobody is at work on the table who might give back pages.
pub(super) fn wait_for_merge(tree: &Tree<'_, PgHost>) -> bool {
    // SAFETY: the host's relation is open.
    let goes_on = unsafe { Maintenance::try_lock(tree.host.rel()) }.is_none();
    if goes_on {
        interrupt::nap(NAP_FOR_MERGE);
    }
    goes_on
}

/// A writer came to a table that may have runs piled up: merges them, if nobody else is at work on it. Where there is no room for that
/// they stay as they are.
pub(super) fn merge_piled_up(tree: &Tree<'_, PgHost>) -> Result<()> {
    // SAFETY: the host's relation is open.
    let Some(_lock) = (unsafe { Maintenance::try_lock(tree.host.rel()) }) else { return Ok(()) };
    let done = interrupt::held(|| tree.merge_piled_up());
    progress::ended();
    match done {
        Ok(_) | Err(Error::NoSpace(_) | Error::MemoryFull { .. }) => {
            pace::update(tree);
            Ok(())
        }
        Err(failed) => Err(failed),
    }
}

/// How much memory a maintenance command may take, in bytes.
pub fn work_memory() -> usize {
    // SAFETY: a setting of this process.
    usize::try_from(unsafe { pg_sys::maintenance_work_mem }).unwrap_or(0) << 10
}

/// Between the pages of a merge: flushes go first, requests to stop are heard, and whoever waits for the table is let
/// through.
pub(super) fn merging(tree: &Tree<'_, PgHost>) -> Result<()> {
    interrupt::poll()?;
    worker::between_pages()?;
    if frozen(tree) > 0 {
        tree.flush_one()?;
        pace::update(tree);
    }
    Ok(())
}

/// Memtables that wait for their flush.
pub fn frozen(tree: &Tree<'_, PgHost>) -> usize {
    tree.shared().current.pin::<PgHost>().frozen.len()
}

fn flushed(tree: &Tree<'_, PgHost>) -> u64 {
    tree.shared().current.pin::<PgHost>().flushed.0
}
