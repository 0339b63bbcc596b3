//! Utility statements: some need a hand, and what cannot work is refused before anything is done.

use super::{databases, explain, object_access, options};
use crate::host::process_local::{ProcessLocal, WithBorrow};
use crate::pg::bindings_am::{guarded, raw};
use crate::pg::{catalog, error, index_am, relam_mask};
use pgrx::pg_sys;
use pgrx::pg_sys::{AlterTableType, NodeTag, Oid, PlannedStmt};
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};
use std::ffi::{c_char, CStr};

static mut PREVIOUS: pg_sys::ProcessUtility_hook_type = None;

/// While ANALYZE runs: the setting to be restored, and the level of subtransactions.
static PREFETCH: ProcessLocal<Cell<Option<(i32, i32)>>> = ProcessLocal::new(Cell::new(None));

/// A utility statement that runs.
#[derive(Clone, Copy)]
struct Running {
    /// Level of subtransactions.
    level: i32,
    /// It gives a table of ours another access method.
    leaves_us: bool,
}

/// Those that run, each within the one before it.
static RUNNING: ProcessLocal<RefCell<Vec<Running>>> = ProcessLocal::new(RefCell::new(Vec::new()));

/// How many run.
pub fn depth() -> usize {
    RUNNING.with_borrow(Vec::len)
}

/// What statements have left to be done at their end: takes what is to be done now, at the end of the one that runs, and leaves what is of
/// those around it. Each stands there with the depth of its statement.
pub fn due<T>(left: &mut Vec<(T, usize)>) -> Vec<T> {
    let depth = depth();
    left.extract_if(.., |(_, of)| *of == 0 || *of >= depth).map(|(what, _)| what).collect()
}

/// A table of ours becomes one of another access method.
pub fn leaves_us() -> bool {
    RUNNING.with_borrow(|running| running.iter().any(|statement| statement.leaves_us))
}

pub fn install() {
    // SAFETY: the postmaster is one thread.
    unsafe {
        PREVIOUS = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(hook);
    }
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn hook(
    statement: *mut PlannedStmt,
    text: *const c_char,
    read_only: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    env: *mut pg_sys::QueryEnvironment,
    dest: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: nothing to drop here; see the module of hooks.
    unsafe {
        let (masks, nesting) = (relam_mask::depth(), depth());
        let statement = before(statement, read_only);
        match PREVIOUS {
            Some(previous) => previous(statement, text, read_only, context, params, env, dest, completion),
            None => raw::standard_ProcessUtility(statement, text, read_only, context, params, env, dest, completion),
        }
        after(statement, masks, nesting);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn before(statement: *mut PlannedStmt, read_only: bool) -> *mut PlannedStmt {
    // SAFETY: PostgreSQL's statement; each node is what its tag says.
    unsafe {
        let level = raw::GetCurrentTransactionNestLevel();
        RUNNING.with_borrow_mut(|running| running.push(Running { level, leaves_us: false }));
        let statement = options::before(statement, read_only);
        let node = (*statement).utilityStmt;
        match (*node).type_ {
            NodeTag::T_IndexStmt => return index(statement, read_only),
            NodeTag::T_ExplainStmt => return explain::before(statement),
            NodeTag::T_AlterTableStmt => alter_table(node.cast()),
            NodeTag::T_DropdbStmt => databases::before_drop(node.cast()),
            NodeTag::T_AlterDatabaseStmt => databases::before_alter(node.cast()),
            NodeTag::T_VacuumStmt if PREFETCH.get().is_none() => {
                PREFETCH.set(Some((raw::maintenance_io_concurrency, level)));
            }
            _ => {}
        }
        statement
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn after(statement: *mut PlannedStmt, masks: usize, nesting: usize) {
    if relam_mask::depth() > masks {
        relam_mask::end(masks);
    }
    // SAFETY: the statement is still there.
    unsafe { options::after(statement) };
    // SAFETY: as above.
    match unsafe { (*(*statement).utilityStmt).type_ } {
        NodeTag::T_VacuumStmt => restore_prefetch(),
        NodeTag::T_DropdbStmt | NodeTag::T_AlterDatabaseStmt => databases::after(),
        NodeTag::T_TransactionStmt => {}
        _ => object_access::rewrite_keyless(),
    }
    RUNNING.with_borrow_mut(|running| running.truncate(nesting));
}

/// ANALYZE has the operating system prefetch blocks of the table; those of ours are virtual, and may lie beyond the end of
/// the file. Called when the size of a table of ours is asked for.
pub fn no_prefetch() {
    // SAFETY: plain variables of this process.
    unsafe {
        let autovacuum = pg_sys::MyBackendType == pg_sys::BackendType::B_AUTOVAC_WORKER;
        if autovacuum || PREFETCH.get().is_some() {
            raw::maintenance_io_concurrency = 0;
        }
    }
}

fn restore_prefetch() {
    if let Some((setting, _)) = PREFETCH.take() {
        // SAFETY: a plain variable of this process.
        unsafe { raw::maintenance_io_concurrency = setting };
    }
}

/// Statements of this level of subtransactions, and of those above it, have failed. (VACUUM commits several transactions: the setting stays
/// in force until it has ended.)
pub fn failed(level: i32) {
    if PREFETCH.get().is_some_and(|(_, of)| of >= level) {
        restore_prefetch();
    }
    RUNNING.with_borrow_mut(|running| running.retain(|statement| statement.level < level));
}

/// LIKE INCLUDING INDEXES names our access method; to the parser the key is a btree. So does a dump of a copy of the key that REINDEX
/// CONCURRENTLY has left, and that somebody has reindexed. Nobody else may name it.
unsafe fn index(statement: *mut PlannedStmt, read_only: bool) -> *mut PlannedStmt {
    // SAFETY: an IndexStmt; the tree is copied before it is changed.
    unsafe {
        let index = (*statement).utilityStmt.cast::<pg_sys::IndexStmt>();
        if (*index).unique && !(*index).relation.is_null() {
            // An index of a partitioned table takes the indexes in that its partitions have already.
            if let Some(table) = lookup_partitioned((*index).relation, pg_sys::ShareLock) {
                relam_mask::mask_partitions(table, pg_sys::ShareLock);
            }
        }
        let method = (*index).accessMethod;
        if method.is_null() || CStr::from_ptr(method) != catalog::KEY_AM {
            return statement;
        }
        match ((*index).primary, (*index).unique) {
            (true, _) => {}
            (false, true) => index_am::tell_of_btree(),
            (false, false) => index_am::refuse_other_use(),
        }
        let statement =
            if read_only { pg_sys::copyObjectImpl(statement.cast()).cast::<PlannedStmt>() } else { statement };
        (*(*statement).utilityStmt.cast::<pg_sys::IndexStmt>()).accessMethod = pg_sys::pstrdup(c"btree".as_ptr());
        statement
    }
}

unsafe fn alter_table(alter: *mut pg_sys::AlterTableStmt) {
    // SAFETY: an AlterTableStmt.
    unsafe {
        for command in catalog::nodes::<pg_sys::AlterTableCmd>((*alter).cmds) {
            match (*command).subtype {
                AlterTableType::AT_AttachPartition => {
                    // PostgreSQL locks the parent first, and only for its owner.
                    lookup_owned((*alter).relation, pg_sys::ShareUpdateExclusiveLock);
                    attach((*command).def.cast());
                }
                AlterTableType::AT_AlterColumnType => refuse_beside_copy((*alter).relation, (*command).name),
                AlterTableType::AT_AddConstraint => {
                    let constraint = (*command).def.cast::<pg_sys::Constraint>();
                    let primary = (*constraint).contype == pg_sys::ConstrType::CONSTR_PRIMARY;
                    if primary && !(*constraint).indexname.is_null() {
                        refuse_using_index((*alter).relation);
                    }
                    if primary || (*constraint).contype == pg_sys::ConstrType::CONSTR_UNIQUE {
                        index_below((*alter).relation, primary);
                    }
                }
                AlterTableType::AT_SetAccessMethod => note_leaving((*alter).relation, (*command).name),
                _ => {}
            }
        }
    }
}

/// A constraint is added to a partitioned table: the keys that its partitions have already may serve it.
unsafe fn index_below(table: *mut pg_sys::RangeVar, primary: bool) {
    // SAFETY: the statement's table. A partitioned table that has a primary key cannot get another; and what the same
    // statement drops must not be in use.
    unsafe {
        let Some(relid) = lookup_partitioned(table, pg_sys::AccessExclusiveLock) else { return };
        if !has_primary_key(relid) {
            // A primary key's columns are made NOT NULL.
            let lock = if primary { pg_sys::AccessExclusiveLock } else { pg_sys::ShareLock };
            relam_mask::mask_partitions(relid, lock);
        }
    }
}

/// The statement gives the table the access method of this name: if it is one of ours, another.
unsafe fn note_leaving(table: *mut pg_sys::RangeVar, method: *mut c_char) {
    // SAFETY: the statement's table; a name.
    let leaves = unsafe { !method.is_null() && CStr::from_ptr(method) != c"loosekv" && our_table(table).is_some() };
    RUNNING.with_borrow_mut(|running| running.iter_mut().last().into_iter().for_each(|last| last.leaves_us = leaves));
}

unsafe fn has_primary_key(table: Oid) -> bool {
    // SAFETY: the table is locked.
    unsafe {
        let rel = pg_sys::relation_open(table, pg_sys::NoLock as i32);
        pg_sys::list_free(pg_sys::RelationGetIndexList(rel));
        let found = (*rel).rd_pkindex != Oid::INVALID;
        pg_sys::relation_close(rel, pg_sys::NoLock as i32);
        found
    }
}

unsafe fn lookup(name: *mut pg_sys::RangeVar, lock: u32) -> Option<Oid> {
    // SAFETY: the parser's name; a missing relation is somebody else's error.
    unsafe {
        let flags = pg_sys::RVROption::RVR_MISSING_OK;
        let oid = pg_sys::RangeVarGetRelidExtended(name, lock as i32, flags, None, std::ptr::null_mut());
        (oid != Oid::INVALID).then_some(oid)
    }
}

/// As [`lookup`], for partitioned tables only: nothing else is locked.
unsafe fn lookup_partitioned(name: *mut pg_sys::RangeVar, lock: u32) -> Option<Oid> {
    // SAFETY: as for `lookup`.
    unsafe {
        let relid = lookup(name, pg_sys::NoLock)?;
        let partitioned = pg_sys::get_rel_relkind(relid) as u8 == pg_sys::RELKIND_PARTITIONED_TABLE;
        partitioned.then(|| lookup_owned(name, lock)).flatten()
    }
}

/// As [`lookup`]; an error where the relation is somebody else's, who is not to be kept waiting by a lock.
unsafe fn lookup_owned(name: *mut pg_sys::RangeVar, lock: u32) -> Option<Oid> {
    // SAFETY: as for `lookup`; a callback of PostgreSQL's own.
    unsafe {
        let (flags, none) = (pg_sys::RVROption::RVR_MISSING_OK, std::ptr::null_mut());
        let callback = Some(raw::RangeVarCallbackOwnsRelation as _);
        let oid = guarded!(RangeVarGetRelidExtended(name, lock as i32, flags, callback, none));
        (oid != Oid::INVALID).then_some(oid)
    }
}

/// The name of the relation, if it is a table of ours.
unsafe fn our_table(name: *mut pg_sys::RangeVar) -> Option<String> {
    // SAFETY: as for `lookup`; opened only for a look.
    unsafe {
        let rel = pg_sys::try_relation_open(lookup(name, pg_sys::AccessShareLock)?, pg_sys::NoLock as i32);
        if rel.is_null() {
            return None;
        }
        let ours = catalog::is_our_table(rel).then(|| error::relation_name(rel));
        pg_sys::relation_close(rel, pg_sys::NoLock as i32);
        ours
    }
}

/// The type of a column is to change. Copies of the key have it, too, and cannot be made anew.
unsafe fn refuse_beside_copy(table: *mut pg_sys::RangeVar, column: *const c_char) {
    // SAFETY: the statement's table, locked as the statement will lock it, and its column.
    unsafe {
        let Some(relid) = lookup_owned(table, pg_sys::AccessExclusiveLock) else { return };
        let rel = pg_sys::relation_open(relid, pg_sys::NoLock as i32);
        if catalog::is_our_table(rel) {
            if let Some(key) = catalog::key_index_of(rel) {
                let column = pg_sys::get_attnum(relid, column);
                let indexes = catalog::indexes_of(rel);
                if indexes.iter().any(|index| index.is_key && index.attributes.contains(&column)) {
                    index_am::require_no_copies(rel, key);
                }
            }
        }
        pg_sys::relation_close(rel, pg_sys::NoLock as i32);
    }
}

unsafe fn refuse_using_index(table: *mut pg_sys::RangeVar) {
    // SAFETY: the statement's table.
    if let Some(name) = unsafe { our_table(table) } {
        error::unsupported(
            format!("ADD PRIMARY KEY USING INDEX is not supported on loosekv table \"{name}\""),
            "The primary key is the table itself. Use ADD PRIMARY KEY (columns), and drop the index.",
        );
    }
}

/// PostgreSQL compares the indexes of parent and partition, access methods included.
unsafe fn attach(partition: *mut pg_sys::PartitionCmd) {
    // SAFETY: the statement's partition (or, for ALTER INDEX, its index).
    unsafe {
        let Some(relid) = lookup((*partition).name, pg_sys::AccessExclusiveLock) else { return };
        let kind = pg_sys::get_rel_relkind(relid) as u8;
        if kind == pg_sys::RELKIND_INDEX {
            relam_mask::mask(relid, pg_sys::AccessShareLock);
        } else if kind == pg_sys::RELKIND_PARTITIONED_TABLE {
            relam_mask::mask_partitions(relid, pg_sys::AccessExclusiveLock);
        } else if kind == pg_sys::RELKIND_RELATION {
            let rel = pg_sys::relation_open(relid, pg_sys::NoLock as i32);
            let key = if catalog::is_our_table(rel) { catalog::key_index_of(rel) } else { None };
            pg_sys::relation_close(rel, pg_sys::NoLock as i32);
            if let Some(key) = key {
                relam_mask::mask(key, pg_sys::AccessShareLock);
            }
        }
    }
}
