//! One piece of background work: a flush, a merge, a run's keys for the index, a part of a sweep. Each is a transaction of its
//! own, without a snapshot, under the weakest lock on the table.
//!
//! The lock is never waited for, and DDL does not wait long for it: between the pages of a merge the piece looks whether
//! somebody waits for the table, and gives up if so (what it had taken of the file is free again). Flushes go on, they are
//! short; a very long one is cancelled as autovacuum would be.
//!
//! An error ends the piece, not the worker: destructors run, the transaction aborts, the table rests for a while.

use super::{catalog, error, worker};
use crate::host::critical::in_critical_section;
use crate::host::maintenance::Maintenance;
use crate::host::process_local::{later, Later, ProcessLocal, WithBorrow};
use crate::host::registry::{self, FileKey, Table};
use crate::host::{caught, interrupt, progress, writers, PgHost};
use crate::work::agenda::{Outcome, Task};
use crate::work::need::WORTH_TRIMMING;
use crate::work::{memory, need, pace};
use loosekv_engine::error::{Error, Result};
use loosekv_engine::key_index::SweepCursor;
use loosekv_engine::tree::Tree;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::pg_sys::Oid;
use pgrx::prelude::*;
use pgrx::PgTryBuilder;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::CString;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

const LOCK: i32 = pg_sys::AccessShareLock as i32;
/// To cut the file. Had only where nobody is in the table, and for a moment.
const ALONE: i32 = pg_sys::AccessExclusiveLock as i32;
/// Stands in line behind whoever wants the table for himself. Not the mode held, for that would be granted at once.
const PROBE: i32 = pg_sys::RowShareLock as i32;
/// Between two looks, during a merge, whether somebody waits for the table, and other tables have something to flush.
const LOOK: Duration = Duration::from_millis(20);
/// Most pages between two looks at the clock, of which there are some for each key that a merge removes. Fewer where pages are slow.
const PAGES_A_CLOCK: u32 = 16;
/// The same failure of the same table is logged again after this time.
const LOG_AGAIN: Duration = Duration::from_secs(3600);

extern "C-unwind" {
    fn RelidByRelfilenode(tablespace: Oid, file: Oid) -> Oid;
}

/// What is being merged.
#[derive(Clone, Copy)]
struct Current {
    table: FileKey,
    relid: Oid,
    looked: Duration,
    /// The last look at the clock, and how many pages were to come until the next, of which so many still are.
    clock: Duration,
    stride: u32,
    pages: u32,
    /// Somebody waits for the table.
    gives_way: bool,
}

impl Current {
    fn begin(table: FileKey, relid: Oid) -> Current {
        let now = worker::elapsed();
        Current { table, relid, looked: now, clock: now, stride: 1, pages: 1, gives_way: false }
    }

    /// One page more. Whether it is time to look around.
    fn count_page(&mut self) -> bool {
        self.pages -= 1;
        if self.pages > 0 {
            return false;
        }
        let now = worker::elapsed();
        self.stride =
            if now > self.clock + LOOK { self.stride.div_ceil(2) } else { PAGES_A_CLOCK.min(self.stride * 2) };
        self.pages = self.stride;
        self.clock = now;
        now >= self.looked + LOOK
    }
}

static CURRENT: ProcessLocal<Cell<Option<Current>>> = ProcessLocal::new(Cell::new(None));
static LOGGED: Later<HashMap<FileKey, (String, Duration)>> = later();

/// How a piece ended, and why.
enum Ended {
    Well(bool),
    GaveWay,
    Badly(String),
}

/// Does a piece of work in a transaction of its own.
pub(super) fn perform(table: FileKey, task: Task) -> Outcome {
    let ended = PgTryBuilder::new(AssertUnwindSafe(|| {
        // SAFETY: guarded calls of a process that has a database and no transaction.
        unsafe {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
        }
        let ended = work_on(table, task);
        // SAFETY: ends what was begun above.
        unsafe {
            match ended {
                Ended::Well(_) => pg_sys::CommitTransactionCommand(),
                _ => pg_sys::AbortCurrentTransaction(),
            }
        }
        ended
    }))
    .catch_others(caught)
    .execute();
    CURRENT.set(None);
    progress::ended();
    settle(table, task, ended)
}

/// An error has unwound up to here.
fn caught(cause: CaughtError) -> Ended {
    if in_critical_section() {
        cause.rethrow();
    }
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic { ereport: report, .. }) = &cause;
    let cancelled = report.sql_error_code() == PgSqlErrorCode::ERRCODE_QUERY_CANCELED;
    let message = report.message().to_owned();
    // SAFETY: as every loop over transactions does after an error; interrupts wait until the abort is over.
    unsafe {
        pg_sys::InterruptHoldoffCount += 1;
        pg_sys::QueryCancelPending = 0;
        pg_sys::AbortCurrentTransaction();
        pg_sys::InterruptHoldoffCount = pg_sys::InterruptHoldoffCount.saturating_sub(1);
    }
    if cancelled {
        Ended::GaveWay
    } else {
        Ended::Badly(message)
    }
}

fn settle(table: FileKey, task: Task, ended: Ended) -> Outcome {
    match ended {
        Ended::Well(done) => {
            LOGGED.with_borrow_mut(|logged| logged.remove(&table));
            if done {
                Outcome::Done
            } else {
                Outcome::Nothing
            }
        }
        Ended::GaveWay => Outcome::GaveWay,
        Ended::Badly(message) => {
            log_once(table, task, message);
            Outcome::Failed
        }
    }
}

fn log_once(table: FileKey, task: Task, message: String) {
    let now = worker::elapsed();
    let fresh = LOGGED.with_borrow_mut(|logged| {
        let fresh = logged.get(&table).is_none_or(|(text, at)| *text != message || now > *at + LOG_AGAIN);
        if fresh {
            logged.insert(table, (message.clone(), now));
        }
        fresh
    });
    if fresh {
        let what = match task {
            Task::Flush | Task::Spill => "flush",
            Task::Index => "rebuild the key index of",
            Task::Merge => "merge runs of",
            Task::Sweep => "sweep the key index of",
            Task::Sink => "move the end of the file of",
            Task::Trim => "give back the free end of the file of",
        };
        log!("loosekv worker could not {what} the table in file {}, and will try again: {message}", table.file);
    }
}

/// A table of this database, locked and open.
struct Locked {
    rel: pg_sys::Relation,
    relid: Oid,
    mode: i32,
}

impl Locked {
    /// `None`: it is gone, or somebody has it for himself.
    fn try_open(table: FileKey, mode: i32) -> Option<Locked> {
        let (tablespace, file) = (Oid::from(table.tablespace), Oid::from(table.file));
        // SAFETY: guarded calls in a transaction. A relation that is not what was asked for is closed again.
        unsafe {
            let relid = pg_sys::ffi::pg_guard_ffi_boundary(|| RelidByRelfilenode(tablespace, file));
            if relid == Oid::INVALID || !pg_sys::ConditionalLockRelationOid(relid, mode) {
                return None;
            }
            let rel = pg_sys::try_relation_open(relid, pg_sys::NoLock as i32);
            if rel.is_null() {
                pg_sys::UnlockRelationOid(relid, mode);
                return None;
            }
            let locked = Locked { rel, relid, mode };
            // If it is not, it is dropped here.
            (FileKey::of_relation(rel) == table && catalog::is_our_table(rel)).then_some(locked)
        }
    }

    fn name(&self) -> String {
        // SAFETY: the relation is open; the name of its schema is copied.
        unsafe {
            let schema = pg_sys::get_namespace_name((*(*self.rel).rd_rel).relnamespace);
            let name = error::relation_name(self.rel);
            if schema.is_null() {
                return name;
            }
            format!("{}.{name}", std::ffi::CStr::from_ptr(schema).to_string_lossy())
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // While an ERROR unwinds, PostgreSQL is not to be called: the abort that follows closes and unlocks.
        if !std::thread::panicking() {
            // SAFETY: opened and locked by `try_open`.
            unsafe {
                pg_sys::relation_close(self.rel, pg_sys::NoLock as i32);
                pg_sys::UnlockRelationOid(self.relid, self.mode);
            }
        }
    }
}

fn work_on(table: FileKey, task: Task) -> Ended {
    let mode = if task == Task::Trim { ALONE } else { LOCK };
    let Some(locked) = Locked::try_open(table, mode) else {
        // An idle end of a file can wait.
        return if task == Task::Trim { Ended::Well(false) } else { Ended::GaveWay };
    };
    let name = locked.name();
    // Looking at the catalog has left a snapshot behind, and vacuum would have to heed it.
    forget_snapshot();
    if !matches!(task, Task::Flush | Task::Trim) {
        CURRENT.set(Some(Current::begin(table, locked.relid)));
    }
    match with_table(&locked, task, &name) {
        Ok(Some(done)) => Ended::Well(done),
        Ok(None) => Ended::GaveWay,
        Err(_) if CURRENT.get().is_some_and(|current| current.gives_way) => Ended::GaveWay,
        Err(failed) => Ended::Badly(format!("table \"{name}\": {failed}")),
    }
}

/// `None`: another is at work on the table.
fn with_table(locked: &Locked, task: Task, name: &str) -> Result<Option<bool>> {
    let open = registry::open(locked.rel)?;
    // The table's options were looked up.
    forget_snapshot();
    // SAFETY: the relation stays open.
    let Some(_maintenance) = (unsafe { Maintenance::try_lock(locked.rel) }) else { return Ok(None) };
    let done = match task {
        Task::Flush => flush(locked, &open, name),
        Task::Spill => {
            report(&format!("flushing {name} early"));
            let tree = open.tree(locked.rel);
            memory::with_relief(&tree, || tree.rotate())?;
            interrupt::held(|| tree.flush_one())
        }
        Task::Index => {
            report(&format!("indexing a run of {name}"));
            let tree = open.sweeping_tree(locked.rel);
            // The keys find their room or do without it; what may be missing is a little for the list of runs.
            memory::with_relief(&tree, || interrupt::held(|| tree.rebuild_index()))
        }
        Task::Merge => {
            let runs = open.shared().merge_due(&writers::standing());
            report(&format!("merging {} runs of {name}", runs.unwrap_or_default()));
            let tree = open.sweeping_tree(locked.rel);
            let done = interrupt::held(|| tree.compact_one(false));
            pace::update(&tree);
            done
        }
        Task::Sweep => {
            report(&format!("sweeping the key index of {name}"));
            interrupt::held(|| sweep(&open.tree(locked.rel)))
        }
        Task::Sink => {
            report(&format!("moving the end of {name} down"));
            interrupt::held(|| open.sweeping_tree(locked.rel).sink_one(WORTH_TRIMMING))
        }
        Task::Trim => {
            report(&format!("giving back the free end of {name}"));
            interrupt::held(|| open.tree(locked.rel).give_back_tail().map(|pages| pages > 0))
        }
    };
    done.map(Some)
}

fn flush(locked: &Locked, open: &Table, name: &str) -> Result<bool> {
    report(&format!("flushing {name}"));
    let tree = open.tree(locked.rel);
    let done = memory::with_relief(&tree, || interrupt::held(|| tree.flush_one()));
    pace::update(&tree);
    done
}

fn sweep(tree: &Tree<'_, PgHost>) -> Result<bool> {
    let mut cursor = SweepCursor::new();
    while !cursor.is_done() {
        if tree.sweep_tombstones(&mut cursor).is_none() {
            return Ok(false);
        }
        interrupt::poll()?;
        between_pages()?;
    }
    Ok(true)
}

/// Between the pages of a merge. In any other process than a worker it does nothing.
#[inline]
pub fn between_pages() -> Result<()> {
    match CURRENT.get() {
        Some(current) => look_around(current),
        None => Ok(()),
    }
}

fn look_around(mut current: Current) -> Result<()> {
    if !current.count_page() {
        CURRENT.set(Some(current));
        return Ok(());
    }
    // Looking may take locks and read pages, and is not to look around itself.
    CURRENT.set(None);
    let gives_way = worker::is_stopped() || somebody_waits(current.relid) || !flush_others(current.table)?;
    let now = worker::elapsed();
    CURRENT.set(Some(Current { looked: now, clock: now, gives_way, ..current }));
    if gives_way {
        return Err(Error::Unavailable("the background worker gives way".into()));
    }
    Ok(())
}

/// Whether somebody stands in line for a lock on the table that ours is in the way of.
fn somebody_waits(relid: Oid) -> bool {
    // SAFETY: guarded calls in a transaction.
    let waits = unsafe {
        if pg_sys::ConditionalLockRelationOid(relid, PROBE) {
            pg_sys::UnlockRelationOid(relid, PROBE);
            false
        } else {
            true
        }
    };
    // Locking takes note of what others have changed in the catalog, and may have looked there.
    forget_snapshot();
    waits
}

/// Flushes what other tables have frozen while a merge goes on. False: the merge is to go on in another transaction, for this one is
/// lost, and holds locks that others wait for.
fn flush_others(merged: FileKey) -> Result<bool> {
    // SAFETY: set when the worker connected.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    let mut tables = Vec::new();
    registry::each_tree(database, |table, tree, _| {
        if table != merged && need::is_frozen(tree) {
            tables.push(table);
        }
    });
    if tables.is_empty() {
        return Ok(true);
    }
    let activity = Activity::current();
    for table in tables {
        let now = worker::elapsed();
        if worker::AGENDA.with_borrow(|agenda| agenda.is_resting(table, Task::Flush, now)) {
            continue;
        }
        if let Err(failed) = flush_other(table) {
            // A request to stop is the merge's, too.
            interrupt::poll()?;
            worker::AGENDA.with_borrow_mut(|agenda| agenda.rest(table, Task::Flush, Outcome::Failed, now));
            log_once(table, Task::Flush, failed.to_string());
            if caught::is_caught(&failed) {
                return Ok(false);
            }
        }
    }
    drop(activity);
    Ok(true)
}

fn flush_other(table: FileKey) -> Result<bool> {
    let Some(locked) = Locked::try_open(table, LOCK) else { return Ok(false) };
    let name = locked.name();
    forget_snapshot();
    Ok(with_table(&locked, Task::Flush, &name)?.unwrap_or(false))
}

fn forget_snapshot() {
    // SAFETY: guarded; the catalog's snapshot is taken anew when it is needed.
    unsafe { pg_sys::InvalidateCatalogSnapshot() }
}

fn report(what: &str) {
    ACTIVITY.with_borrow_mut(|activity| what.clone_into(activity));
    if let Ok(text) = CString::new(what) {
        // SAFETY: guarded; the text is copied.
        unsafe { pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, text.as_ptr()) }
    }
}

static ACTIVITY: ProcessLocal<RefCell<String>> = ProcessLocal::new(RefCell::new(String::new()));

/// What was being done is reported again when this is dropped.
struct Activity(String);

impl Activity {
    fn current() -> Activity {
        Activity(ACTIVITY.with_borrow(String::clone))
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            report(&self.0);
        }
    }
}
