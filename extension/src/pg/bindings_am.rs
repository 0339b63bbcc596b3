//! What PostgreSQL exports and pgrx does not declare, and what it declares behind a guard that per-row code cannot
//! afford.
//!
//! [`raw`] holds functions that never raise an error (they look into this process's or shared memory), so no guard is
//! needed around them, and those that a hook calls from a frame without destructors, where an error may fly through.
//! Everything else goes through pgrx's guard: [`guarded!`] makes one.

use pgrx::pg_sys;
use std::ffi::{c_char, c_int, c_void};

pub mod raw {
    use super::*;

    extern "C-unwind" {
        // Never raise an error.
        pub fn TransactionIdIsCurrentTransactionId(xid: pg_sys::TransactionId) -> bool;
        pub fn GetTopFullTransactionIdIfAny() -> pg_sys::FullTransactionId;
        pub fn GetCurrentFullTransactionIdIfAny() -> pg_sys::FullTransactionId;
        pub fn ReadNextFullTransactionId() -> pg_sys::FullTransactionId;
        pub fn GetCurrentSubTransactionId() -> pg_sys::SubTransactionId;
        pub fn GetCurrentTransactionNestLevel() -> c_int;
        pub fn IsInParallelMode() -> bool;
        pub fn GetCurrentTransactionStartTimestamp() -> pg_sys::TimestampTz;
        pub fn pgstat_count_heap_insert(rel: pg_sys::Relation, n: pg_sys::PgStat_Counter);
        pub fn datumIsEqual(one: pg_sys::Datum, other: pg_sys::Datum, by_value: bool, len: c_int) -> bool;
        pub fn datum_image_eq(one: pg_sys::Datum, other: pg_sys::Datum, by_value: bool, len: c_int) -> bool;
        pub fn CheckForSerializableConflictOutNeeded(rel: pg_sys::Relation, snapshot: pg_sys::Snapshot) -> bool;
        pub fn GetCurrentStatementStartTimestamp() -> pg_sys::TimestampTz;
        pub fn bms_next_member(set: *const pg_sys::Bitmapset, before: c_int) -> c_int;

        // Raise nothing but errors about what is no memory of a context, or no size: see [`crate::pg::palloc`].
        pub fn MemoryContextAllocExtended(
            context: pg_sys::MemoryContext,
            size: pg_sys::Size,
            flags: c_int,
        ) -> *mut c_void;
        pub fn MemoryContextRegisterResetCallback(
            context: pg_sys::MemoryContext,
            callback: *mut pg_sys::MemoryContextCallback,
        );
        pub fn pfree(memory: *mut c_void);

        // May raise an error.
        pub fn PredicateLockPage(rel: pg_sys::Relation, block: pg_sys::BlockNumber, snapshot: pg_sys::Snapshot);
        pub fn PredicateLockRelation(rel: pg_sys::Relation, snapshot: pg_sys::Snapshot);
        pub fn TransferPredicateLocksToHeapRelation(rel: pg_sys::Relation);
        pub fn CheckForSerializableConflictIn(
            rel: pg_sys::Relation,
            tid: pg_sys::ItemPointer,
            block: pg_sys::BlockNumber,
        );
        pub fn CheckForSerializableConflictOut(
            rel: pg_sys::Relation,
            xid: pg_sys::TransactionId,
            snapshot: pg_sys::Snapshot,
        );
        pub fn btcostestimate(
            root: *mut pg_sys::PlannerInfo,
            path: *mut pg_sys::IndexPath,
            loop_count: f64,
            startup: *mut pg_sys::Cost,
            total: *mut pg_sys::Cost,
            selectivity: *mut pg_sys::Selectivity,
            correlation: *mut f64,
            pages: *mut f64,
        );
        pub fn RangeVarGetRelidExtended(
            relation: *const pg_sys::RangeVar,
            lockmode: pg_sys::LOCKMODE,
            flags: u32,
            callback: pg_sys::RangeVarGetRelidCallback,
            arg: *mut c_void,
        ) -> pg_sys::Oid;
        pub fn RangeVarCallbackOwnsRelation(
            relation: *const pg_sys::RangeVar,
            relid: pg_sys::Oid,
            old: pg_sys::Oid,
            arg: *mut c_void,
        );
        pub fn btoptions(reloptions: pg_sys::Datum, validate: bool) -> *mut pg_sys::bytea;
        pub fn find_all_inheritors(
            parent: pg_sys::Oid,
            lockmode: pg_sys::LOCKMODE,
            numparents: *mut *mut pg_sys::List,
        ) -> *mut pg_sys::List;
        pub fn log_smgrcreate(node: *const pg_sys::RelFileNode, fork: pg_sys::ForkNumber::Type);
        pub fn planstate_tree_walker(
            state: *mut pg_sys::PlanState,
            walker: unsafe extern "C-unwind" fn(*mut pg_sys::PlanState, *mut c_void) -> bool,
            context: *mut c_void,
        ) -> bool;

        // Called from frames without destructors.
        pub fn RelationGetIndexScan(index: pg_sys::Relation, keys: c_int, orderbys: c_int) -> pg_sys::IndexScanDesc;
        pub fn standard_planner(
            query: *mut pg_sys::Query,
            text: *const c_char,
            options: c_int,
            params: pg_sys::ParamListInfo,
        ) -> *mut pg_sys::PlannedStmt;
        pub fn standard_ExecutorStart(query: *mut pg_sys::QueryDesc, eflags: c_int);
        pub fn standard_ExecutorFinish(query: *mut pg_sys::QueryDesc);
        pub fn standard_ExecutorRun(
            query: *mut pg_sys::QueryDesc,
            direction: pg_sys::ScanDirection::Type,
            count: u64,
            once: bool,
        );
        pub fn standard_ExecutorEnd(query: *mut pg_sys::QueryDesc);
        pub fn geterrcode() -> c_int;
        pub fn FlushErrorState();
        pub fn CopyErrorData() -> *mut pg_sys::ErrorData;
        pub fn FreeErrorData(error: *mut pg_sys::ErrorData);
        pub fn pg_re_throw() -> !;
        pub fn pg_plan_query(
            query: *mut pg_sys::Query,
            text: *const c_char,
            options: c_int,
            params: pg_sys::ParamListInfo,
        ) -> *mut pg_sys::PlannedStmt;
        pub fn ExplainOnePlan(
            plan: *mut pg_sys::PlannedStmt,
            into: *mut pg_sys::IntoClause,
            es: *mut pg_sys::ExplainState,
            text: *const c_char,
            params: pg_sys::ParamListInfo,
            env: *mut pg_sys::QueryEnvironment,
            planning: *const pg_sys::instr_time,
            buffers: *const pg_sys::BufferUsage,
        );
        pub fn ExplainOneUtility(
            statement: *mut pg_sys::Node,
            into: *mut pg_sys::IntoClause,
            es: *mut pg_sys::ExplainState,
            text: *const c_char,
            params: pg_sys::ParamListInfo,
            env: *mut pg_sys::QueryEnvironment,
        );
        pub fn BufferUsageAccumDiff(
            to: *mut pg_sys::BufferUsage,
            add: *const pg_sys::BufferUsage,
            sub: *const pg_sys::BufferUsage,
        );
        pub fn standard_ProcessUtility(
            statement: *mut pg_sys::PlannedStmt,
            text: *const c_char,
            read_only_tree: bool,
            context: pg_sys::ProcessUtilityContext::Type,
            params: pg_sys::ParamListInfo,
            env: *mut pg_sys::QueryEnvironment,
            dest: *mut pg_sys::DestReceiver,
            completion: *mut pg_sys::QueryCompletion,
        );

        // For an error that names its constraint, which pgrx cannot carry.
        pub fn errstart(elevel: c_int, domain: *const c_char) -> bool;
        pub fn errcode(sqlerrcode: c_int) -> c_int;
        pub fn errmsg_internal(fmt: *const c_char, ...) -> c_int;
        pub fn errdetail_internal(fmt: *const c_char, ...) -> c_int;
        pub fn errtableconstraint(rel: pg_sys::Relation, name: *const c_char) -> c_int;
        pub fn errfinish(file: *const c_char, line: c_int, function: *const c_char);

        pub static mut pgBufferUsage: pg_sys::BufferUsage;
        pub static mut maintenance_io_concurrency: c_int;
        pub static max_prepared_xacts: c_int;
    }
}

/// Calls a [`raw`] function that may raise an error, with pgrx's guard around the call: the error becomes a panic, and
/// destructors run. The arguments are evaluated outside the guard.
macro_rules! guarded {
    ($name:ident ( $($arg:expr),* $(,)? )) => {
        match ($($arg,)*) {
            #[allow(unused_parens)]
            args => guarded!(@call $name args $($arg),*)
        }
    };
    (@call $name:ident $args:ident $a:expr) => {
        pgrx::pg_sys::ffi::pg_guard_ffi_boundary(move || $crate::pg::bindings_am::raw::$name($args.0))
    };
    (@call $name:ident $args:ident $a:expr, $b:expr) => {
        pgrx::pg_sys::ffi::pg_guard_ffi_boundary(move || $crate::pg::bindings_am::raw::$name($args.0, $args.1))
    };
    (@call $name:ident $args:ident $a:expr, $b:expr, $c:expr) => {
        pgrx::pg_sys::ffi::pg_guard_ffi_boundary(move || {
            $crate::pg::bindings_am::raw::$name($args.0, $args.1, $args.2)
        })
    };
    (@call $name:ident $args:ident $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => {
        pgrx::pg_sys::ffi::pg_guard_ffi_boundary(move || {
            $crate::pg::bindings_am::raw::$name($args.0, $args.1, $args.2, $args.3, $args.4)
        })
    };
    (@call $name:ident $args:ident $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr, $g:expr, $h:expr) => {
        pgrx::pg_sys::ffi::pg_guard_ffi_boundary(move || {
            $crate::pg::bindings_am::raw::$name(
                $args.0, $args.1, $args.2, $args.3, $args.4, $args.5, $args.6, $args.7,
            )
        })
    };
}
pub(crate) use guarded;

/// MovedPartitionsOffsetNumber with an invalid block: the row went to another partition.
pub const MOVED_PARTITIONS_OFFSET: u16 = 0xfffd;
