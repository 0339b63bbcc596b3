//! The background worker: a process that serves one database.
//!
//! ```text
//! arrive -> connect -> look at the tables -> do the most pressing piece -> look again ... -> nothing for a while -> leave
//! ```
//!
//! It holds nothing while it is idle: no transaction, no snapshot, no lock. To PostgreSQL it presents itself as an autovacuum
//! worker does (`PROC_IS_AUTOVACUUM`), for it wants the same treatment: who waits for a lock that it holds cancels it after
//! deadlock_timeout, and DROP DATABASE and its like, which want the database for themselves, terminate it.
//!
//! Which piece comes next is decided in [`crate::work`]; how one is done stands in [`super::worker_piece`].

use super::main_locks::MainLock;
use super::worker_piece;
pub use super::worker_piece::between_pages;
use crate::host::process_local::{later, Later, ProcessLocal, WithBorrow};
use crate::host::{global, interrupt, registry, writers, PgHost};
use crate::settings;
use crate::work::agenda::{Agenda, Task};
use crate::work::claims::{Idle, Seat};
use crate::work::{memory, need};
use loosekv_engine::tree::Shared;
use loosekv_shm::vacant;
use pgrx::pg_sys;
use pgrx::prelude::*;
use registry::FileKey;
use std::cell::{Cell, LazyCell};
use std::ffi::{c_char, CStr};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Naps without work after which the worker leaves.
const IDLE_NAPS: u32 = 60;

/// A table that nobody has used for so long, in microseconds, is idle.
const IDLE_TABLE: u64 = 10_000_000;

/// Free shared memory of which none has changed hands for so long goes back to the kernel.
const IDLE_MEMORY: Duration = Duration::from_secs(10);

/// What this process has freed goes back to the kernel so often at most.
const FREED_MEMORY: Duration = Duration::from_secs(10);

/// A table to which nobody has written for so long is quiet.
const QUIET: Duration = Duration::from_secs(3);
/// And after so long a merge of all of it, which is logged as a whole, may be for less garbage than among writes.
const RESTED: Duration = Duration::from_secs(60);
/// Such a merge is not waited for any longer without anything to do: somebody writes now and then.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// How long DROP DATABASE waits for the worker, and how long between two looks.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
const LEAVE_NAP: Duration = Duration::from_millis(5);

/// This process's place as a worker; `None` in every other process.
static SEAT: ProcessLocal<Cell<Option<Seat>>> = ProcessLocal::new(Cell::new(None));
/// What is to be done. Not borrowed while a piece is being done.
pub(super) static AGENDA: Later<Agenda<FileKey>> = later();
static STARTED: ProcessLocal<LazyCell<Instant>> = ProcessLocal::new(LazyCell::new(Instant::now));

mod raw {
    use std::ffi::c_int;

    extern "C-unwind" {
        // Handlers of signals.
        pub fn die(signal: c_int);
        pub fn SignalHandlerForConfigReload(signal: c_int);
        // Raise nothing.
        pub fn SetLatch(latch: *mut pgrx::pg_sys::Latch);
        pub fn GetCurrentTimestamp() -> i64;
    }
}

/// Microseconds, the same for all processes.
pub fn now() -> i64 {
    // SAFETY: reads the clock.
    unsafe { raw::GetCurrentTimestamp() }
}

/// Time since this process began to count.
pub(super) fn elapsed() -> Duration {
    STARTED.elapsed()
}

/// Wakes a worker.
pub fn wake(latch: *mut pg_sys::Latch) {
    if !latch.is_null() {
        // SAFETY: latches of processes stand in shared memory for good; one that has another owner by now is woken for
        // nothing.
        unsafe { raw::SetLatch(latch) }
    }
}

fn set_name(field: &mut [c_char], name: &str) {
    let room = field.len() - 1;
    for (to, from) in field.iter_mut().take(room).zip(name.bytes()) {
        *to = from as c_char;
    }
}

/// Has PostgreSQL start a worker for the database. False: none can be had now.
pub fn register(database: u32) -> bool {
    let mut worker = pg_sys::BackgroundWorker {
        bgw_flags: (pg_sys::BGWORKER_SHMEM_ACCESS | pg_sys::BGWORKER_BACKEND_DATABASE_CONNECTION) as i32,
        bgw_start_time: pg_sys::BgWorkerStartTime::BgWorkerStart_RecoveryFinished,
        bgw_restart_time: pg_sys::BGW_NEVER_RESTART,
        bgw_main_arg: pg_sys::Datum::from(pg_sys::Oid::from(database)),
        bgw_notify_pid: 0,
        bgw_name: [0; 96],
        bgw_type: [0; 96],
        bgw_library_name: [0; 96],
        bgw_function_name: [0; 96],
        bgw_extra: [0; 128],
    };
    set_name(&mut worker.bgw_name, &format!("loosekv worker for database {database}"));
    set_name(&mut worker.bgw_type, "loosekv worker");
    set_name(&mut worker.bgw_library_name, "loosekv");
    set_name(&mut worker.bgw_function_name, "loosekv_worker_main");
    // SAFETY: guarded; PostgreSQL copies the description.
    unsafe { pg_sys::RegisterDynamicBackgroundWorker(&mut worker, std::ptr::null_mut()) }
}

/// Where a worker begins and ends.
///
/// # Safety
/// Called by PostgreSQL in a new background worker.
#[no_mangle]
#[pg_guard]
pub unsafe extern "C-unwind" fn loosekv_worker_main(arg: pg_sys::Datum) {
    // SAFETY: as PostgreSQL asks of background workers: handlers first, then signals, then the database.
    unsafe {
        pg_sys::pqsignal(pg_sys::SIGHUP as i32, Some(raw::SignalHandlerForConfigReload));
        pg_sys::pqsignal(pg_sys::SIGTERM as i32, Some(raw::die));
        let database = pg_sys::Oid::from(arg.value() as u32);
        if !take_seat(database.to_u32()) {
            return;
        }
        pg_sys::BackgroundWorkerUnblockSignals();
        let flags = pg_sys::BGWORKER_BYPASS_ALLOWCONN;
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::Oid::INVALID, flags);
        override_settings();
        registry::become_caretaker();
        present_as_autovacuum();
    }
    super::exit::attach();
    serve();
}

/// Takes the place that was claimed for this worker. False: it is not wanted any more.
fn take_seat(database: u32) -> bool {
    let Some(global) = global::get() else { return false };
    // SAFETY: set at process start.
    let (pid, latch) = unsafe { (pg_sys::MyProcPid, pg_sys::MyLatch) };
    SEAT.set(global.workers.arrive(database, pid, latch));
    if SEAT.get().is_none() {
        return false;
    }
    // SAFETY: guarded; signals are still blocked, so nothing ends the process in between.
    unsafe { pg_sys::on_shmem_exit(Some(leave_seat), pg_sys::Datum::from(0)) };
    true
}

#[pg_guard]
unsafe extern "C-unwind" fn leave_seat(_code: i32, _arg: pg_sys::Datum) {
    if let (Some(global), Some(seat)) = (global::get(), SEAT.take()) {
        global.workers.leave(seat);
    }
}

/// What a database or role may have set for its sessions and would harm here.
fn override_settings() {
    let settings = [
        (c"zero_damaged_pages", c"false"),
        (c"statement_timeout", c"0"),
        (c"lock_timeout", c"0"),
        (c"default_transaction_isolation", c"read committed"),
        (c"default_transaction_read_only", c"false"),
        (c"temp_file_limit", c"-1"),
        // It waits for no standby: writers wait for it.
        (c"synchronous_commit", c"local"),
    ];
    for (name, value) in settings {
        set(name, value);
    }
}

fn set(name: &CStr, value: &CStr) {
    // SAFETY: guarded; the strings are copied.
    unsafe {
        let context = pg_sys::GucContext::PGC_SUSET;
        pg_sys::SetConfigOption(name.as_ptr(), value.as_ptr(), context, pg_sys::GucSource::PGC_S_OVERRIDE);
    }
}

fn present_as_autovacuum() {
    // SAFETY: the flags of this process's entry change under ProcArrayLock, as vacuum changes them; nothing in between
    // raises an error.
    unsafe {
        let lock = MainLock::ProcArray.get();
        super::bindings::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let me = pg_sys::MyProc;
        (*me).statusFlags |= pg_sys::PROC_IS_AUTOVACUUM as u8;
        *(*pg_sys::ProcGlobal).statusFlags.add((*me).pgxactoff as usize) = (*me).statusFlags;
        super::bindings::LWLockRelease(lock);
    }
}

/// Whether the worker is to end what it does.
pub(super) fn is_stopped() -> bool {
    match (global::get(), SEAT.get()) {
        (Some(global), Some(seat)) => global.workers.is_stopped(seat),
        _ => false,
    }
}

/// A database is about to be dropped: its worker goes first, if the user may drop it. PostgreSQL would terminate the worker,
/// too, but some time later, and WITH (FORCE) refuses where the user is no superuser.
///
/// # Safety
/// `name` is a C string.
pub unsafe fn leave_database(name: *const c_char) {
    let Some(global) = global::get() else { return };
    // SAFETY: guarded look-ups in a transaction.
    let database = unsafe {
        let database = pg_sys::get_database_oid(name, true);
        if database == pg_sys::Oid::INVALID || !pg_sys::pg_database_ownercheck(database, pg_sys::GetUserId()) {
            return;
        }
        database.to_u32()
    };
    let deadline = Instant::now() + LEAVE_TIMEOUT;
    while let Some(latch) = global.workers.stop(database) {
        wake(latch);
        if Instant::now() > deadline {
            return;
        }
        interrupt::nap(LEAVE_NAP);
    }
}

fn serve() {
    let (Some(global), Some(seat)) = (global::get(), SEAT.get()) else { return };
    let (mut worked, mut tidied) = (elapsed(), elapsed());
    loop {
        // SAFETY: this process's own latch.
        unsafe { pg_sys::ResetLatch(pg_sys::MyLatch) };
        if !serve_signals() || is_stopped() {
            return;
        }
        let seen = global.workers.requests(seat);
        survey();
        let now = elapsed();
        if worked > tidied && now.saturating_sub(tidied) > FREED_MEMORY {
            give_back_freed();
            tidied = now;
        }
        if let Some((table, task)) = AGENDA.with_borrow(|agenda| agenda.next(now)) {
            let outcome = worker_piece::perform(table, task);
            worked = elapsed();
            AGENDA.with_borrow_mut(|agenda| agenda.ended(table, task, outcome, worked));
            continue;
        }
        let nap = settings::worker_naptime();
        let rest = AGENDA.with_borrow(|agenda| agenda.wait(now));
        give_to_kernel(now);
        let unused = if rest.is_none() { now.saturating_sub(worked) } else { Duration::ZERO };
        let long = unused > nap * IDLE_NAPS && (unused > LONGEST_WAIT || !awaits_rest());
        match global.workers.idle(seat, seen, long) {
            Idle::Asked => {}
            Idle::Left => return,
            Idle::Wait => wait(rest.map_or(nap, |rest| rest.min(nap))),
        }
    }
}

/// How often shared memory had changed hands, and when that was last found to be more than before.
static CHANGES: ProcessLocal<Cell<(u64, Duration)>> = ProcessLocal::new(Cell::new((0, Duration::ZERO)));

/// Shared memory that nobody has needed for a while is of more use as page cache.
fn give_to_kernel(now: Duration) {
    let changes = vacant::changes();
    let (seen, since) = CHANGES.get();
    if changes != seen {
        CHANGES.set((changes, now));
    } else if now.saturating_sub(since) > IDLE_MEMORY {
        vacant::give_to_kernel();
    }
}

/// Merges may have used as much as maintenance_work_mem, and the C library keeps all that lies below anything still in use.
fn give_back_freed() {
    // SAFETY: whole pages of what is free already.
    unsafe { libc::malloc_trim(0) };
}

/// False: the process is to end.
fn serve_signals() -> bool {
    // SAFETY: flags that signal handlers set; guarded calls, outside a transaction.
    unsafe {
        if pg_sys::ConfigReloadPending != 0 {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
        // A request to stop the piece that has ended meanwhile.
        pg_sys::QueryCancelPending = 0;
        if pg_sys::ProcDiePending != 0 {
            return false;
        }
    }
    interrupt::check();
    settings::workers() > 0
}

/// Notes which tables of the database need something.
fn survey() {
    let Some(global) = global::get() else { return };
    // SAFETY: set when the worker connected.
    let (database, standing) = (unsafe { pg_sys::MyDatabaseId.to_u32() }, writers::standing());
    let now = elapsed();
    let now_micros = self::now() as u64;
    let (short, mut largest) = (memory::is_short() || memory::is_needed(), None);
    AGENDA.with_borrow_mut(|agenda| {
        agenda.begin_round();
        let mut known = 0;
        registry::each_tree(database, |table, tree, used| {
            known += 1;
            let unwritten = unwritten_for(tree, now_micros);
            let quiet = unwritten >= QUIET;
            // Use counts from when a statement turned to the table last, and one may write for long.
            let idle = quiet && now_micros.abs_diff(used) > IDLE_TABLE;
            let calm = need::Calm { quiet, rested: unwritten >= RESTED, idle };
            let task = need::look(tree, &global.budgets, &standing, calm);
            if let Some(task) = task {
                agenda.note(table, task, now);
            }
            let size = if short { need::filling(tree) } else { 0 };
            let more = largest.is_none_or(|(_, most)| size > most);
            if more && task != Some(Task::Flush) && !agenda.is_resting(table, Task::Spill, now) {
                largest = Some((table, size));
            }
        });
        if let Some((table, _)) = largest.filter(|(_, size)| memory::worth_flushing(*size, known)) {
            agenda.note(table, Task::Spill, now);
        }
        agenda.end_round();
    });
}

/// Whether there will be something to do as soon as nobody has written to a table for long enough.
fn awaits_rest() -> bool {
    // SAFETY: set when the worker connected.
    let database = unsafe { pg_sys::MyDatabaseId.to_u32() };
    let mut awaits = false;
    registry::each_tree(database, |_, tree, _| awaits |= tree.awaits_rest());
    awaits
}

/// For how long nothing was written to the table, as far as workers have looked.
fn unwritten_for(tree: &Shared<PgHost>, now: u64) -> Duration {
    let written = tree.counters.rows_written.load(Relaxed);
    if tree.last_written.swap(written, Relaxed) != written {
        tree.written_until.store(now, Relaxed);
    }
    Duration::from_micros(now.saturating_sub(tree.written_until.load(Relaxed)))
}

fn wait(time: Duration) {
    report_idle();
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    let millis = time.as_millis().clamp(1, 3_600_000) as i64;
    // SAFETY: guarded; this process's own latch.
    unsafe { pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, millis, pg_sys::PG_WAIT_EXTENSION) };
}

fn report_idle() {
    // SAFETY: guarded calls, outside a transaction.
    unsafe {
        pg_sys::pgstat_report_stat(false);
        pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null());
    }
}
