//! What EXPLAIN (ANALYZE) says of our tables: a section for the query, in every format.
//!
//! ```text
//!  Execution Time, or "LooseKV": ...    <- printed when the executor ends, within the query's group
//!  LooseKV: look-ups=1 runs=1 filter probes=0 hits=0 scans guided=0 merged=0 pages=3
//! ```
//!
//! PostgreSQL 15 lets nobody add to the lines of a plan's node, so the numbers are the query's: what this process has looked at
//! between the start and the end of the executor. Parallel workers count for themselves and are not in them; the section
//! says so. `EXPLAIN EXECUTE` does not come by this hook, and has no section.

use crate::host::process_local::ProcessLocal;
use crate::host::seen::Seen;
use crate::pg::bindings_am::raw;
use loosekv_engine::host::Saw;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::{c_char, CString};

static mut PREVIOUS_EXPLAIN: pg_sys::ExplainOneQuery_hook_type = None;
static mut PREVIOUS_END: pg_sys::ExecutorEnd_hook_type = None;

/// A query that is being explained.
#[derive(Clone, Copy)]
struct Explained {
    state: *mut pg_sys::ExplainState,
    /// Its executor; null until it starts.
    query: *mut pg_sys::QueryDesc,
    before: Seen,
    /// Of the transaction in which it began.
    level: i32,
}

static EXPLAINED: ProcessLocal<Cell<Option<Explained>>> = ProcessLocal::new(Cell::new(None));

pub fn install() {
    // SAFETY: the postmaster is one thread.
    unsafe {
        PREVIOUS_EXPLAIN = pg_sys::ExplainOneQuery_hook;
        pg_sys::ExplainOneQuery_hook = Some(explain);
        PREVIOUS_END = pg_sys::ExecutorEnd_hook;
        pg_sys::ExecutorEnd_hook = Some(end);
    }
}

/// The transaction is over.
pub fn forget() {
    EXPLAINED.set(None);
}

/// A subtransaction is rolled back.
pub fn rolled_back(level: i32) {
    if EXPLAINED.get().is_some_and(|explained| level <= explained.level) {
        EXPLAINED.set(None);
    }
}

/// As ExplainOneQuery does it where there is no hook.
unsafe extern "C-unwind" fn explain(
    query: *mut pg_sys::Query,
    options: i32,
    into: *mut pg_sys::IntoClause,
    state: *mut pg_sys::ExplainState,
    text: *const c_char,
    params: pg_sys::ParamListInfo,
    env: *mut pg_sys::QueryEnvironment,
) {
    // SAFETY: nothing to drop here; see the module of hooks.
    unsafe {
        if let Some(previous) = PREVIOUS_EXPLAIN {
            let outer = begin(state);
            previous(query, options, into, state, text, params, env);
            EXPLAINED.set(outer);
            return;
        }
        let buffers_before = raw::pgBufferUsage;
        let clock = monotonic();
        let plan = raw::pg_plan_query(query, text, options, params);
        let planning = since(clock);
        let mut buffers = pg_sys::BufferUsage::default();
        raw::BufferUsageAccumDiff(&mut buffers, &raw const raw::pgBufferUsage, &buffers_before);
        let buffers = if (*state).buffers { &raw const buffers } else { std::ptr::null() };
        let outer = begin(state);
        raw::ExplainOnePlan(plan, into, state, text, params, env, &planning, buffers);
        EXPLAINED.set(outer);
    }
}

/// PostgreSQL's instr_time is a timespec on Linux.
fn monotonic() -> pg_sys::instr_time {
    let mut now = pg_sys::instr_time::default();
    // SAFETY: fills the value.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, (&raw mut now).cast()) };
    now
}

fn since(start: pg_sys::instr_time) -> pg_sys::instr_time {
    let mut now = monotonic();
    now.tv_sec -= start.tv_sec;
    now.tv_nsec -= start.tv_nsec;
    if now.tv_nsec < 0 {
        now.tv_nsec += 1_000_000_000;
        now.tv_sec -= 1;
    }
    now
}

/// Returns what was being explained before: a function of the query may explain another.
fn begin(state: *mut pg_sys::ExplainState) -> Option<Explained> {
    // SAFETY: reads process state.
    let level = unsafe { raw::GetCurrentTransactionNestLevel() };
    EXPLAINED.replace(Some(Explained { state, query: std::ptr::null_mut(), before: Seen::default(), level }))
}

/// An executor starts: the first one since the query's plan was made is the query's.
pub fn executor_starts(query: *mut pg_sys::QueryDesc) {
    if let Some(explained) = EXPLAINED.get().filter(|explained| explained.query.is_null()) {
        EXPLAINED.set(Some(Explained { query, before: Seen::now(), ..explained }));
    }
}

unsafe extern "C-unwind" fn end(query: *mut pg_sys::QueryDesc) {
    // SAFETY: nothing to drop here.
    unsafe {
        if EXPLAINED.get().is_some_and(|explained| explained.query == query) {
            print(query);
        }
        match PREVIOUS_END {
            Some(previous) => previous(query),
            None => raw::standard_ExecutorEnd(query),
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn print(query: *mut pg_sys::QueryDesc) {
    let Some(Explained { state, before, .. }) = EXPLAINED.take() else { return };
    let seen = Seen::now().since(&before);
    // SAFETY: EXPLAIN's state, which outlives its query; the query's executor.
    unsafe {
        if !(*state).analyze || seen.is_empty() {
            return;
        }
        let parallel = !(*query).estate.is_null() && (*(*query).estate).es_use_parallel_mode;
        let numbers = [
            (c"Look-ups", seen.of(Saw::Get)),
            (c"Runs Looked Into", seen.of(Saw::Run)),
            (c"Filter Probes", seen.of(Saw::FilterProbe)),
            (c"Filter Hits", seen.of(Saw::FilterHit)),
            (c"Guided Scans", seen.of(Saw::GuidedScan)),
            (c"Merged Scans", seen.of(Saw::MergedScan)),
            (c"Pages", seen.pages),
        ];
        if (*state).format == pg_sys::ExplainFormat::EXPLAIN_FORMAT_TEXT {
            let shown = numbers.map(|(name, number)| format!("{}={number}", name.to_string_lossy().to_lowercase()));
            let note = if parallel { " (without parallel workers)" } else { "" };
            if let Ok(line) = CString::new(shown.join(" ") + note) {
                pg_sys::ExplainPropertyText(c"LooseKV".as_ptr(), line.as_ptr(), state);
            }
            return;
        }
        pg_sys::ExplainOpenGroup(c"LooseKV".as_ptr(), c"LooseKV".as_ptr(), true, state);
        for (name, number) in numbers {
            pg_sys::ExplainPropertyInteger(name.as_ptr(), std::ptr::null(), number as i64, state);
        }
        pg_sys::ExplainPropertyBool(c"Parallel Workers Counted".as_ptr(), !parallel, state);
        pg_sys::ExplainCloseGroup(c"LooseKV".as_ptr(), c"LooseKV".as_ptr(), true, state);
    }
}
