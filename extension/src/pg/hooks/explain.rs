//! What EXPLAIN (ANALYZE) says of our tables: a section for the query, in every format.
//!
//! ```text
//!  Execution Time, or "LooseKV": ...    <- printed when the executor ends, within the query's group
//!  LooseKV: look-ups=1 runs=1 filter probes=0 hits=0 scans guided=0 merged=0 pages=3
//! ```
//!
//! PostgreSQL 15 lets nobody add to the lines of a plan's node, so the numbers are the query's: what this process and its
//! parallel workers have looked at between the start and the end of the executor.
//!
//! EXPLAIN EXECUTE does not come by ExplainOneQuery_hook, the only one that is handed EXPLAIN's state. So the statement is
//! shown to PostgreSQL as one that does, and the hook goes on with it as with what it is:
//!
//! ```text
//!  EXPLAIN of a Query { UTILITY, utilityStmt: EXECUTE }      what was parsed
//!  EXPLAIN of a Query { SELECT, utilityStmt: EXECUTE }       what ExplainQuery gets; it calls the hook, with its state
//!  ExplainOneUtility(EXECUTE, state)                         what the hook calls, and ExplainQuery would have called
//! ```
//!
//! A query's executor is known by the query's text, whose address PostgreSQL hands down: functions that run while
//! parameters are computed, or while a plan is made, have texts of their own.

use crate::host::process_local::{ProcessLocal, WithBorrow};
use crate::host::seen::Seen;
use crate::pg::bindings_am::raw;
use loosekv_engine::host::Saw;
use pgrx::pg_sys;
use pgrx::pg_sys::{CmdType, NodeTag};
use pgrx::prelude::*;
use std::cell::RefCell;
use std::ffi::{c_char, CString};

static mut PREVIOUS_EXPLAIN: pg_sys::ExplainOneQuery_hook_type = None;
static mut PREVIOUS_END: pg_sys::ExecutorEnd_hook_type = None;

/// A query that is being explained, or a prepared statement with its queries, one after the other.
#[derive(Clone, Copy)]
struct Explained {
    state: *mut pg_sys::ExplainState,
    text: *const c_char,
    /// The executor; null while there is none.
    query: *mut pg_sys::QueryDesc,
    before: Seen,
    workers_before: Seen,
    /// Workers of a query around this one may be running, and nobody can tell them from this one's.
    among_workers: bool,
    /// Of the transaction in which it began.
    level: i32,
}

/// The last one is the innermost: a function of a query may explain another.
static EXPLAINED: ProcessLocal<RefCell<Vec<Explained>>> = ProcessLocal::new(RefCell::new(Vec::new()));

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
    ended(0);
}

/// A subtransaction is rolled back.
pub fn rolled_back(level: i32) {
    EXPLAINED.with_borrow_mut(|all| all.retain(|explained| explained.level < level));
}

/// EXPLAIN EXECUTE, and EXPLAIN CREATE TABLE AS EXECUTE, are made to come by [`explain`]: a query that is a SELECT and has
/// a utility statement nevertheless. Copies, for the statement may stand in a cache of plans.
///
/// # Safety
/// An EXPLAIN that has been analyzed, as ProcessUtility gets it.
pub unsafe fn before(statement: *mut pg_sys::PlannedStmt) -> *mut pg_sys::PlannedStmt {
    // SAFETY: by the contract.
    unsafe {
        let parsed = (*statement).utilityStmt.cast::<pg_sys::ExplainStmt>();
        let query = (*parsed).query.cast::<pg_sys::Query>();
        if (*query).commandType != CmdType::CMD_UTILITY || executed((*query).utilityStmt).is_none() {
            return statement;
        }
        // A hook that comes before ours would take the query for a real one.
        let ours: unsafe extern "C-unwind" fn(_, _, _, _, _, _, _) = explain;
        if !pg_sys::ExplainOneQuery_hook.is_some_and(|hook| std::ptr::fn_addr_eq(hook, ours)) {
            return statement;
        }
        let query = copy(query);
        (*query).commandType = CmdType::CMD_SELECT;
        (*query).jointree = pg_sys::makeFromExpr(std::ptr::null_mut(), std::ptr::null_mut());
        let parsed = copy(parsed);
        (*parsed).query = query.cast();
        let statement = copy(statement);
        (*statement).utilityStmt = parsed.cast();
        statement
    }
}

/// A node with the same members.
unsafe fn copy<T>(node: *mut T) -> *mut T {
    // SAFETY: a whole node of this type.
    unsafe {
        let new = pg_sys::palloc(size_of::<T>()).cast::<T>();
        new.copy_from_nonoverlapping(node, 1);
        new
    }
}

/// The EXECUTE that a statement is, or makes a table of.
unsafe fn executed(statement: *mut pg_sys::Node) -> Option<*mut pg_sys::ExecuteStmt> {
    // SAFETY: an analyzed statement; each node is what its tag says.
    unsafe {
        match (*statement).type_ {
            NodeTag::T_ExecuteStmt => Some(statement.cast()),
            NodeTag::T_CreateTableAsStmt => {
                let made_of = (*statement.cast::<pg_sys::CreateTableAsStmt>()).query.cast::<pg_sys::Query>();
                let inner = (*made_of).utilityStmt;
                (!inner.is_null() && (*inner).type_ == NodeTag::T_ExecuteStmt).then_some(inner.cast())
            }
            _ => None,
        }
    }
}

/// The text of the prepared statement that is executed, as its executors will have it. Null: it does not exist.
#[pg_guard]
unsafe extern "C-unwind" fn text_of(statement: *mut pg_sys::Node) -> *const c_char {
    // SAFETY: as for `executed`; PostgreSQL keeps the text as long as the prepared statement.
    unsafe {
        let Some(execute) = executed(statement) else { return std::ptr::null() };
        let prepared = pg_sys::FetchPreparedStatement((*execute).name, false);
        if prepared.is_null() {
            return std::ptr::null();
        }
        (*(*prepared).plansource).query_string
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
        if !(*query).utilityStmt.is_null() {
            let depth = begin(state, text_of((*query).utilityStmt));
            raw::ExplainOneUtility((*query).utilityStmt, into, state, text, params, env);
            ended(depth);
            return;
        }
        if let Some(previous) = PREVIOUS_EXPLAIN {
            let depth = begin(state, text);
            previous(query, options, into, state, text, params, env);
            ended(depth);
            return;
        }
        let buffers_before = raw::pgBufferUsage;
        let clock = monotonic();
        let plan = raw::pg_plan_query(query, text, options, params);
        let planning = since(clock);
        let mut buffers = pg_sys::BufferUsage::default();
        raw::BufferUsageAccumDiff(&mut buffers, &raw const raw::pgBufferUsage, &buffers_before);
        let buffers = if (*state).buffers { &raw const buffers } else { std::ptr::null() };
        let depth = begin(state, text);
        raw::ExplainOnePlan(plan, into, state, text, params, env, &planning, buffers);
        ended(depth);
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

/// Returns how many are being explained around this one.
fn begin(state: *mut pg_sys::ExplainState, text: *const c_char) -> usize {
    // SAFETY: reads process state.
    let level = unsafe { raw::GetCurrentTransactionNestLevel() };
    let (before, workers_before) = (Seen::default(), Seen::default());
    let query = std::ptr::null_mut();
    let explained = Explained { state, text, query, before, workers_before, among_workers: false, level };
    EXPLAINED.with_borrow_mut(|all| {
        all.push(explained);
        all.len() - 1
    })
}

fn ended(depth: usize) {
    EXPLAINED.with_borrow_mut(|all| all.truncate(depth));
}

/// An executor starts: the explained query's, if it is for the same text.
///
/// # Safety
/// `query` is the executor's.
pub unsafe fn executor_starts(query: *mut pg_sys::QueryDesc) {
    EXPLAINED.with_borrow_mut(|all| {
        let Some(explained) = all.last_mut().filter(|explained| explained.query.is_null()) else { return };
        // SAFETY: by the contract; reads process state.
        unsafe {
            if explained.text == (*query).sourceText {
                explained.query = query;
                explained.before = Seen::now();
                explained.workers_before = Seen::of_workers();
                explained.among_workers = pg_sys::ParallelWorkerNumber < 0 && raw::IsInParallelMode();
            }
        }
    });
}

/// If it is the explained query's executor that ends: the query. A prepared statement may have another one after it.
fn executor_ends(query: *mut pg_sys::QueryDesc) -> Option<Explained> {
    EXPLAINED.with_borrow_mut(|all| {
        let explained = all.last_mut().filter(|explained| explained.query == query)?;
        let copy = *explained;
        explained.query = std::ptr::null_mut();
        Some(copy)
    })
}

unsafe extern "C-unwind" fn end(query: *mut pg_sys::QueryDesc) {
    // SAFETY: nothing to drop here.
    unsafe {
        if let Some(explained) = executor_ends(query) {
            print(&explained);
        }
        match PREVIOUS_END {
            Some(previous) => previous(query),
            None => raw::standard_ExecutorEnd(query),
        }
    }
}

/// So many numbers are told even if they are zero.
const ALWAYS_TOLD: usize = 7;

#[pg_guard]
unsafe extern "C-unwind" fn print(explained: &Explained) {
    let state = explained.state;
    // The workers are done: PostgreSQL has waited for them at the end of the plan's run.
    let by_workers = Seen::of_workers().since(&explained.workers_before);
    let unknown = explained.among_workers && !by_workers.is_empty();
    let own = Seen::now().since(&explained.before);
    let seen = if unknown { own } else { own.and(&by_workers) };
    // SAFETY: EXPLAIN's state, which outlives its query.
    unsafe {
        if !(*state).analyze || (seen.is_empty() && !unknown) {
            return;
        }
        let numbers = [
            (c"Look-ups", seen.of(Saw::Get)),
            (c"Runs Looked Into", seen.of(Saw::Run)),
            (c"Filter Probes", seen.of(Saw::FilterProbe)),
            (c"Filter Hits", seen.of(Saw::FilterHit)),
            (c"Guided Scans", seen.of(Saw::GuidedScan)),
            (c"Merged Scans", seen.of(Saw::MergedScan)),
            (c"Pages", seen.pages),
            (c"Cached Rows", seen.of(Saw::CachedRow)),
            (c"Read Ahead", seen.asked),
        ];
        if (*state).format == pg_sys::ExplainFormat::EXPLAIN_FORMAT_TEXT {
            // What comes from the row cache or is read ahead depends on what happens to be in memory: it is left out where there is
            // nothing to tell.
            let told = numbers
                .iter()
                .enumerate()
                .filter(|(at, (_, number))| *at < ALWAYS_TOLD || *number > 0)
                .map(|(_, told)| told);
            let shown = told.map(|(name, number)| format!("{}={number}", name.to_string_lossy().to_lowercase()));
            let note = if unknown { " (without parallel workers)" } else { "" };
            if let Ok(line) = CString::new(shown.collect::<Vec<_>>().join(" ") + note) {
                pg_sys::ExplainPropertyText(c"LooseKV".as_ptr(), line.as_ptr(), state);
            }
            return;
        }
        pg_sys::ExplainOpenGroup(c"LooseKV".as_ptr(), c"LooseKV".as_ptr(), true, state);
        for (name, number) in numbers {
            pg_sys::ExplainPropertyInteger(name.as_ptr(), std::ptr::null(), number as i64, state);
        }
        if unknown {
            pg_sys::ExplainPropertyBool(c"Parallel Workers Counted".as_ptr(), false, state);
        }
        pg_sys::ExplainCloseGroup(c"LooseKV".as_ptr(), c"LooseKV".as_ptr(), true, state);
    }
}
