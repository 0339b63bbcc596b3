//! What PostgreSQL's executor allows with btree indexes alone.
//!
//! - ON CONFLICT on a table of ours: once the plan is set up, the indexes are opened here, and what the executor wants to
//!   know of an arbiter is filled in; it would refuse to do so itself.
//! - ON CONFLICT into a partitioned table: partitions' indexes are opened while the plan runs, so keys are masked then.
//! - Row comparisons `(a, b) > (x, y)`: the index is masked while the plan is set up, and as long as it may be set up once more.
//! - Statements in WITH clauses may run at the end, when the others have run: the same goes for them.
//! - Rows of which a statement wants nothing but to replace them: they need not be read ([`replacing`]).
//! - INSERT of many rows: they are gathered ([`batch`]) while the plan runs.
//! - Scans of our tables by btrees are told of to those who read rows together ([`index_ahead`]).
//! - Bitmap scans of our tables do not prefetch: blocks of TIDs are not blocks of the file. The scan asks for rows itself.

use crate::host::process_local::{later, Later, ProcessLocal, WithBorrow};
use crate::pg::bindings_am::raw;
use crate::pg::relam_mask::{self, Phase};
use crate::pg::{batch, catalog, error, index_ahead, palloc, replacing, table_scan, whole_errors};
use crate::table::{recent, unread};
use pgrx::pg_sys;
use pgrx::pg_sys::{NodeTag, Oid, Plan, QueryDesc};
use pgrx::prelude::*;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_void, CStr};

static mut PREVIOUS_START: pg_sys::ExecutorStart_hook_type = None;
static mut PREVIOUS_RUN: pg_sys::ExecutorRun_hook_type = None;
static mut PREVIOUS_FINISH: pg_sys::ExecutorFinish_hook_type = None;

/// The query that runs, if it [comes back](comes_back) to its rows.
static COMES_BACK: ProcessLocal<Cell<*mut QueryDesc>> = ProcessLocal::new(Cell::new(std::ptr::null_mut()));

pub fn install() {
    // SAFETY: the postmaster is one thread.
    unsafe {
        PREVIOUS_START = pg_sys::ExecutorStart_hook;
        pg_sys::ExecutorStart_hook = Some(start);
        PREVIOUS_RUN = pg_sys::ExecutorRun_hook;
        pg_sys::ExecutorRun_hook = Some(run);
        PREVIOUS_FINISH = pg_sys::ExecutorFinish_hook;
        pg_sys::ExecutorFinish_hook = Some(finish);
    }
}

unsafe extern "C-unwind" fn start(query: *mut QueryDesc, eflags: i32) {
    // SAFETY: nothing to drop here; see the module of hooks.
    unsafe {
        let phase = relam_mask::enter(Phase::Running);
        let begun = before_start(query);
        match PREVIOUS_START {
            Some(previous) => previous(query, eflags),
            None => raw::standard_ExecutorStart(query, eflags),
        }
        if begun.prepare || relam_mask::depth() > begun.depth {
            after_start(query, begun.depth);
        }
        relam_mask::leave(phase);
    }
}

unsafe extern "C-unwind" fn run(query: *mut QueryDesc, direction: pg_sys::ScanDirection::Type, count: u64, once: bool) {
    // SAFETY: nothing to drop here.
    unsafe {
        let begun = before_run(query);
        let run = || match PREVIOUS_RUN {
            Some(previous) => previous(query, direction, count, once),
            None => raw::standard_ExecutorRun(query, direction, count, once),
        };
        match begun.targets.may_have_duplicates() {
            true => run_gathering(&begun.targets, run),
            false => run(),
        }
        let duplicate = after_run(begun);
        if !duplicate.is_null() {
            error::raise_duplicate(duplicate);
        }
    }
}

/// Statements in WITH clauses that nobody reads, or not to their end, run when the others have run.
unsafe extern "C-unwind" fn finish(query: *mut QueryDesc) {
    // SAFETY: nothing to drop here.
    unsafe {
        let finish = || match PREVIOUS_FINISH {
            Some(previous) => previous(query),
            None => raw::standard_ExecutorFinish(query),
        };
        if (*(*query).estate).es_auxmodifytables.is_null() {
            return finish();
        }
        let begun = before_run(query);
        finish();
        // Where there are such statements no rows are gathered.
        after_run(begun);
    }
}

/// Runs a statement whose new rows are gathered. Where an error ends it, a row that came before may be a duplicate that nobody has looked
/// for yet: then that is the error.
unsafe fn run_gathering(targets: &batch::Targets, run: impl FnOnce()) {
    // SAFETY: a frame with nothing to drop; the ERROR goes on, or another one does.
    unsafe {
        let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        if whole_errors::stopped(run).is_some() {
            return;
        }
        if is_of_a_row(context) {
            let (error_context, its_owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
            (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner) = (context, owner);
            let duplicate = batch::duplicate_that_waits(targets);
            if !duplicate.is_null() {
                raw::FlushErrorState();
                error::raise_duplicate(duplicate);
            }
            (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner) = (error_context, its_owner);
        }
        raw::pg_re_throw()
    }
}

/// Whether the error that is being handled is of the kind that one row brings and another one does not: the server is well, and so is
/// the transaction up to there. What a function raises is, whatever code it has given it.
///
/// # Safety
/// There is one; `context` is a memory context that it does not live in.
unsafe fn is_of_a_row(context: pg_sys::MemoryContext) -> bool {
    // A class is two characters of six bits each.
    let class = |name: &[u8; 2]| i32::from(name[0] - b'0') | i32::from(name[1] - b'0') << 6;
    let others = [b"08", b"40", b"53", b"57", b"58", b"F0", b"XX"];
    // SAFETY: by the contract; the copy is freed.
    unsafe {
        let code = raw::geterrcode();
        if !others.iter().any(|name| code & 0xfff == class(name)) {
            return true;
        }
        let its_own = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = context;
        let error = raw::CopyErrorData();
        let function = (*error).funcname;
        let is_raised = !function.is_null() && CStr::from_ptr(function) == c"exec_stmt_raise";
        raw::FreeErrorData(error);
        pg_sys::CurrentMemoryContext = its_own;
        is_raised
    }
}

/// The statement changes or locks rows that it reads.
unsafe fn comes_back(query: *mut QueryDesc) -> bool {
    // SAFETY: the executor's query.
    unsafe {
        let planned = (*query).plannedstmt;
        (*query).operation != pg_sys::CmdType::CMD_SELECT
            || (*planned).hasModifyingCTE
            || !(*planned).rowMarks.is_null()
    }
}

/// Visits all nodes of a plan.
unsafe fn each_node(plan: *mut Plan, visit: &mut dyn FnMut(*mut Plan)) {
    if plan.is_null() {
        return;
    }
    visit(plan);
    // SAFETY: a plan tree; each node is what its tag says.
    unsafe {
        let members = match (*plan).type_ {
            NodeTag::T_Append => (*plan.cast::<pg_sys::Append>()).appendplans,
            NodeTag::T_MergeAppend => (*plan.cast::<pg_sys::MergeAppend>()).mergeplans,
            NodeTag::T_BitmapAnd => (*plan.cast::<pg_sys::BitmapAnd>()).bitmapplans,
            NodeTag::T_BitmapOr => (*plan.cast::<pg_sys::BitmapOr>()).bitmapplans,
            _ => std::ptr::null_mut(),
        };
        for member in catalog::nodes::<Plan>(members) {
            each_node(member, visit);
        }
        if (*plan).type_ == NodeTag::T_SubqueryScan {
            each_node((*plan.cast::<pg_sys::SubqueryScan>()).subplan, visit);
        }
        each_node((*plan).lefttree, visit);
        each_node((*plan).righttree, visit);
    }
}

unsafe fn each_node_of(query: *mut QueryDesc, visit: &mut dyn FnMut(*mut Plan)) {
    // SAFETY: the executor's query.
    unsafe {
        let planned = (*query).plannedstmt;
        each_node((*planned).planTree, visit);
        for plan in catalog::nodes::<Plan>((*planned).subplans) {
            each_node(plan, visit);
        }
    }
}

/// The index of a scan that has a row comparison among its conditions.
unsafe fn row_comparison(plan: *mut Plan) -> Option<Oid> {
    // SAFETY: each node is what its tag says.
    unsafe {
        let (index, conditions) = match (*plan).type_ {
            NodeTag::T_IndexScan => {
                let scan = plan.cast::<pg_sys::IndexScan>();
                ((*scan).indexid, (*scan).indexqual)
            }
            NodeTag::T_IndexOnlyScan => {
                let scan = plan.cast::<pg_sys::IndexOnlyScan>();
                ((*scan).indexid, (*scan).indexqual)
            }
            NodeTag::T_BitmapIndexScan => {
                let scan = plan.cast::<pg_sys::BitmapIndexScan>();
                ((*scan).indexid, (*scan).indexqual)
            }
            _ => return None,
        };
        let mut conditions = catalog::nodes::<pg_sys::Node>(conditions);
        conditions.any(|node| (*node).type_ == NodeTag::T_RowCompareExpr).then_some(index)
    }
}

/// What is to be done once a plan is set up.
#[repr(C)]
struct Begun {
    /// Masks that were there before.
    depth: usize,
    /// There are nodes to be prepared.
    prepare: bool,
}

#[pg_guard]
unsafe extern "C-unwind" fn before_start(query: *mut QueryDesc) -> Begun {
    // SAFETY: the executor's query.
    unsafe { super::explain::executor_starts(query) };
    let mut begun = Begun { depth: relam_mask::depth(), prepare: false };
    let mut indexes = Vec::new();
    // SAFETY: the executor's query.
    unsafe {
        each_node_of(query, &mut |plan| {
            indexes.extend(row_comparison(plan));
            begun.prepare |= is_to_be_prepared(plan);
        });
    }
    for index in indexes {
        relam_mask::mask(index, pg_sys::AccessShareLock);
    }
    begun
}

/// Whether [`prepare_state`] has something to do for this node, or for one below it that [`each_node`] does not know of.
unsafe fn is_to_be_prepared(plan: *mut Plan) -> bool {
    // SAFETY: each node is what its tag says.
    unsafe {
        match (*plan).type_ {
            NodeTag::T_BitmapHeapScan | NodeTag::T_CustomScan | NodeTag::T_ForeignScan => true,
            NodeTag::T_IndexScan | NodeTag::T_IndexOnlyScan => index_ahead::is_to_be_watched(plan),
            NodeTag::T_ModifyTable => {
                (*plan.cast::<pg_sys::ModifyTable>()).onConflictAction != pg_sys::OnConflictAction::ONCONFLICT_NONE
            }
            _ => false,
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn after_start(query: *mut QueryDesc, depth: usize) {
    if relam_mask::depth() > depth {
        relam_mask::end(depth);
    }
    // SAFETY: the executor's query, set up now.
    unsafe {
        if !(*query).planstate.is_null() {
            prepare_state((*query).planstate, std::ptr::null_mut());
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn prepare_state(state: *mut pg_sys::PlanState, context: *mut c_void) -> bool {
    if state.is_null() {
        return false;
    }
    // SAFETY: each node is what its tag says.
    unsafe {
        match (*state).type_ {
            NodeTag::T_ModifyTableState => prepare_arbiters(state.cast()),
            NodeTag::T_BitmapHeapScanState => prepare_bitmap_scan(state.cast()),
            NodeTag::T_IndexScanState => {
                let scan = state.cast::<pg_sys::IndexScanState>();
                if is_of_our_table(&(*scan).ss) {
                    index_ahead::watch(state, (*scan).iss_RelationDesc, &raw mut (*scan).iss_ScanDesc);
                }
            }
            NodeTag::T_IndexOnlyScanState => {
                let scan = state.cast::<pg_sys::IndexOnlyScanState>();
                if is_of_our_table(&(*scan).ss) {
                    index_ahead::watch(state, (*scan).ioss_RelationDesc, &raw mut (*scan).ioss_ScanDesc);
                }
            }
            _ => {}
        }
        pg_sys::ffi::pg_guard_ffi_boundary(|| raw::planstate_tree_walker(state, prepare_state, context))
    }
}

unsafe fn prepare_bitmap_scan(scan: *mut pg_sys::BitmapHeapScanState) {
    // SAFETY: as the executor sets it up.
    unsafe {
        if is_of_our_table(&(*scan).ss) {
            (*scan).prefetch_maximum = 0;
            if !(*scan).ss.ss_currentScanDesc.is_null() {
                table_scan::set_bitmap_node(scan);
            }
        }
    }
}

unsafe fn is_of_our_table(scan: &pg_sys::ScanState) -> bool {
    // SAFETY: the executor's node, with its relation open.
    unsafe { !scan.ss_currentRelation.is_null() && catalog::is_our_table(scan.ss_currentRelation) }
}

unsafe fn prepare_arbiters(state: *mut pg_sys::ModifyTableState) {
    // SAFETY: as the executor sets it up.
    unsafe {
        let plan = (*state).ps.plan.cast::<pg_sys::ModifyTable>();
        if (*plan).onConflictAction == pg_sys::OnConflictAction::ONCONFLICT_NONE
            || (*state).operation != pg_sys::CmdType::CMD_INSERT
        {
            return;
        }
        for i in 0..usize::try_from((*state).mt_nrels).unwrap_or(0) {
            let target = (*state).resultRelInfo.add(i);
            let rel = (*target).ri_RelationDesc;
            let is_table = (*(*rel).rd_rel).relkind as u8 == pg_sys::RELKIND_RELATION;
            if is_table && catalog::is_our_table(rel) && (*target).ri_IndexRelationDescs.is_null() {
                open_arbiters(target);
            }
        }
    }
}

unsafe fn open_arbiters(target: *mut pg_sys::ResultRelInfo) {
    // SAFETY: as ExecInsert would do it; PostgreSQL closes the indexes at the statement's end.
    unsafe {
        pg_sys::ExecOpenIndices(target, false);
        for i in 0..usize::try_from((*target).ri_NumIndices).unwrap_or(0) {
            let index = *(*target).ri_IndexRelationDescs.add(i);
            let info = *(*target).ri_IndexRelationInfo.add(i);
            if !(*info).ii_Unique {
                continue;
            }
            if catalog::is_our_index(index) {
                describe_arbiter(index, info);
            } else {
                pg_sys::BuildSpeculativeIndexInfo(index, info);
            }
        }
    }
}

/// BuildSpeculativeIndexInfo for our key.
unsafe fn describe_arbiter(index: pg_sys::Relation, info: *mut pg_sys::IndexInfo) {
    // SAFETY: an index has an operator family and type for each key column.
    unsafe {
        let count = usize::try_from((*info).ii_NumIndexKeyAttrs).unwrap_or(0);
        let allocate = |size: usize| palloc::allocate(pg_sys::CurrentMemoryContext, size * count);
        let operators = allocate(size_of::<Oid>()).cast::<Oid>();
        let functions = allocate(size_of::<Oid>()).cast::<Oid>();
        let strategies = allocate(size_of::<u16>()).cast::<u16>();
        for i in 0..count {
            let (operator, function) = equality(*(*index).rd_opfamily.add(i), *(*index).rd_opcintype.add(i));
            operators.add(i).write(operator);
            functions.add(i).write(function);
            strategies.add(i).write(pg_sys::BTEqualStrategyNumber as u16);
        }
        (*info).ii_UniqueOps = operators;
        (*info).ii_UniqueProcs = functions;
        (*info).ii_UniqueStrats = strategies;
    }
}

/// `=` of operator families and types, and its function. PostgreSQL remembers what is in an operator class as long.
static EQUALITIES: Later<HashMap<(u32, u32), (Oid, Oid)>> = later();

/// `=` of this operator family for this type, and its function.
fn equality(family: Oid, input: Oid) -> (Oid, Oid) {
    let key = (u32::from(family), u32::from(input));
    if let Some(known) = EQUALITIES.with_borrow(|known| known.get(&key).copied()) {
        return known;
    }
    // SAFETY: look-ups in the catalog; errors unwind.
    let found = unsafe {
        let operator = pg_sys::get_opfamily_member(family, input, input, pg_sys::BTEqualStrategyNumber as i16);
        (operator, pg_sys::get_opcode(operator))
    };
    EQUALITIES.with_borrow_mut(|known| known.insert(key, found));
    found
}

/// What was so before a statement ran.
#[repr(C)]
struct BeforeRun {
    phase: usize,
    masks: usize,
    noting: bool,
    comes_back: *mut QueryDesc,
    targets: batch::Targets,
    /// Statements that ran outside of this one.
    outside: usize,
}

#[pg_guard]
unsafe extern "C-unwind" fn before_run(query: *mut QueryDesc) -> BeforeRun {
    // SAFETY: the executor's query.
    unsafe {
        let phase = relam_mask::enter(Phase::Running);
        let outside = replacing::begin(query);
        let (masks, targets) = (relam_mask::depth(), batch::begin(query));
        let back = comes_back(query);
        if back {
            mask_for_run(query);
        }
        let noting = recent::set_noting(back);
        let comes_back = COMES_BACK.replace(if back { query } else { std::ptr::null_mut() });
        BeforeRun { phase, masks, noting, comes_back, targets, outside }
    }
}

/// Partitions into which ON CONFLICT may insert are opened while the statement runs; and rows that have changed meanwhile are looked at
/// with a plan that is set up then, with its row comparisons.
unsafe fn mask_for_run(query: *mut QueryDesc) {
    // SAFETY: the executor's query.
    unsafe {
        let planned = (*query).plannedstmt;
        let (mut targets, mut compared) = (Vec::new(), Vec::new());
        each_node_of(query, &mut |plan| {
            compared.extend(row_comparison(plan));
            if (*plan).type_ == NodeTag::T_ModifyTable {
                let modify = plan.cast::<pg_sys::ModifyTable>();
                if (*modify).onConflictAction != pg_sys::OnConflictAction::ONCONFLICT_NONE {
                    targets.push((*modify).nominalRelation);
                }
            }
        });
        compared.into_iter().for_each(|index| relam_mask::mask(index, pg_sys::AccessShareLock));
        for target in targets {
            let mut entries = catalog::nodes::<pg_sys::RangeTblEntry>((*planned).rtable);
            let Some(entry) = entries.nth((target as usize).wrapping_sub(1)) else { continue };
            if (*entry).relkind as u8 == pg_sys::RELKIND_PARTITIONED_TABLE {
                relam_mask::mask_partitions((*entry).relid, pg_sys::RowExclusiveLock);
            }
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn after_run(begun: BeforeRun) -> *mut error::Duplicate {
    COMES_BACK.set(begun.comes_back);
    recent::set_noting(begun.noting);
    if relam_mask::depth() > begun.masks {
        relam_mask::end(begun.masks);
    }
    unread::ends(begun.outside);
    relam_mask::leave(begun.phase);
    batch::end(begun.targets)
}

/// A bitmap scan begins that was not there when the statement's plan was set up: it is of a plan by which a row that has changed
/// meanwhile is looked at once more.
pub fn prepare_second_look() {
    let query = COMES_BACK.get();
    // SAFETY: the query runs; what looks at rows once more is set up node by node, before any of it runs.
    unsafe {
        if !query.is_null() && !(*query).planstate.is_null() {
            find_second_looks((*query).planstate, std::ptr::null_mut());
        }
    }
}

unsafe extern "C-unwind" fn find_second_looks(state: *mut pg_sys::PlanState, context: *mut c_void) -> bool {
    // SAFETY: each node is what its tag says; those of a second look are there, or it is null.
    unsafe {
        if state.is_null() {
            return false;
        }
        let look = match (*state).type_ {
            NodeTag::T_ModifyTableState => &raw const (*state.cast::<pg_sys::ModifyTableState>()).mt_epqstate,
            NodeTag::T_LockRowsState => &raw const (*state.cast::<pg_sys::LockRowsState>()).lr_epqstate,
            _ => std::ptr::null(),
        };
        if !look.is_null() && !(*look).recheckestate.is_null() {
            prepare_bitmap_scans((*look).recheckplanstate, context);
            for sub in catalog::nodes::<pg_sys::PlanState>((*(*look).recheckestate).es_subplanstates) {
                prepare_bitmap_scans(sub, context);
            }
        }
        raw::planstate_tree_walker(state, find_second_looks, context)
    }
}

unsafe extern "C-unwind" fn prepare_bitmap_scans(state: *mut pg_sys::PlanState, context: *mut c_void) -> bool {
    // SAFETY: as for `find_second_looks`.
    unsafe {
        if state.is_null() {
            return false;
        }
        if (*state).type_ == NodeTag::T_BitmapHeapScanState {
            prepare_bitmap_scan(state.cast());
        }
        raw::planstate_tree_walker(state, prepare_bitmap_scans, context)
    }
}

/// Which query runs is not known any more: an error has ended it, or one within it.
pub fn rolled_back() {
    COMES_BACK.set(std::ptr::null_mut());
}
