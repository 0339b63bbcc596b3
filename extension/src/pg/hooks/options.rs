//! Statements that name options of ours: CREATE TABLE ... WITH, CREATE TABLE AS, ALTER TABLE ... SET and RESET.
//!
//! ```text
//! before: take our options out of the statement (and, for ALTER TABLE, out of pg_class), check them
//!         PostgreSQL's own code does the rest, and meets only options that it knows
//! after:  write ours to pg_class
//! ```
//!
//! PostgreSQL 15 knows one namespace of options, "toast", and an option registered for heap's relations would have to stand
//! in a table of its own code that nobody can add to. So the options are handled here, and kept where it keeps its own.

use crate::host::process_local::{ProcessLocal, WithBorrow};
use crate::pg::bindings_am::{guarded, raw};
use crate::pg::table_options::{self, Pair};
use crate::pg::{catalog, error};
use loosekv_engine::options::TreeOptions;
use pgrx::pg_sys;
use pgrx::pg_sys::{AlterTableType, NodeTag, Oid, PlannedStmt};
use pgrx::prelude::*;
use std::cell::RefCell;
use std::ffi::CStr;

/// What is to be written when a statement has been done.
struct Pending {
    /// The statement, as an address. One that failed has left it to another.
    statement: usize,
    /// Of the (sub)transaction that it is part of.
    level: i32,
    target: Target,
    /// The table's options as they are to be.
    options: Vec<Pair>,
}

enum Target {
    /// A table that the statement makes.
    New { schema: Oid, name: String },
    /// A table that it alters; whether ours stay at all.
    Old(Oid),
}

static PENDING: ProcessLocal<RefCell<Vec<Pending>>> = ProcessLocal::new(RefCell::new(Vec::new()));

/// The transaction is over.
pub fn forget() {
    PENDING.with_borrow_mut(Vec::clear);
}

/// A subtransaction is rolled back, and the statement with it.
pub fn rolled_back(level: i32) {
    PENDING.with_borrow_mut(|pending| pending.retain(|one| one.level < level));
}

/// The options of a table that a statement is still making.
pub fn pending_for(rel: pg_sys::Relation) -> Option<Vec<Pair>> {
    PENDING.with_borrow(|pending| {
        if pending.is_empty() {
            return None;
        }
        // SAFETY: the relation is open.
        let (schema, made_here) = unsafe { ((*(*rel).rd_rel).relnamespace, (*rel).rd_createSubid != 0) };
        let relation = error::relation_name(rel);
        let is_it = |one: &&Pending| match &one.target {
            Target::New { schema: of, name } => made_here && *of == schema && *name == relation,
            Target::Old(_) => false,
        };
        pending.iter().rev().find(is_it).map(|one| one.options.clone())
    })
}

/// What a statement says of our options: set to a value, or reset.
struct Change {
    name: String,
    value: Option<String>,
}

/// The name without the prefix, if the element is one of ours: `loosekv.fan_in`, or `"loosekv.fan_in"` as pg_dump writes it.
unsafe fn our_name(element: *mut pg_sys::DefElem) -> Option<String> {
    // SAFETY: an element from the parser.
    unsafe {
        let name = table_options::text((*element).defname);
        match table_options::text((*element).defnamespace).as_str() {
            "loosekv" => Some(name),
            "" => name.strip_prefix(table_options::PREFIX).map(str::to_owned),
            _ => None,
        }
    }
}

unsafe fn names_ours(list: *mut pg_sys::List) -> bool {
    // SAFETY: a list of DefElems.
    unsafe { catalog::nodes::<pg_sys::DefElem>(list).any(|element| our_name(element).is_some()) }
}

/// Takes ours out of a list of options.
unsafe fn take_ours(list: &mut *mut pg_sys::List, reset: bool, changes: &mut Vec<Change>) {
    // SAFETY: a list of DefElems, in a tree that may be changed.
    unsafe {
        let mut rest = std::ptr::null_mut();
        for element in catalog::nodes::<pg_sys::DefElem>(*list) {
            match our_name(element) {
                Some(name) => {
                    let value = (!reset).then(|| table_options::value_of(element));
                    changes.push(Change { name, value });
                }
                None => rest = pg_sys::lappend(rest, element.cast()),
            }
        }
        *list = rest;
    }
}

/// The options after the changes; an error names what cannot be taken.
fn changed(mut options: Vec<Pair>, changes: Vec<Change>) -> Vec<Pair> {
    for Change { name, value } in changes {
        if !table_options::NAMES.contains(&name.as_str()) {
            error::raise(
                PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("unrecognized parameter \"loosekv.{name}\""),
                Some(&format!("Options of loosekv tables are {}.", table_options::NAMES.join(", "))),
            );
        }
        options.retain(|(known, _)| *known != name);
        let Some(value) = value else { continue };
        if let Err(failed) = table_options::set(&mut TreeOptions::default(), &name, &value) {
            let why = failed.to_string();
            error::raise(
                PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("invalid value for parameter \"loosekv.{name}\": \"{value}\""),
                Some(&format!("{}.", why.trim_start_matches("invalid: "))),
            );
        }
        options.push((name, value));
    }
    options
}

fn refuse(what: &str, hint: &str) -> ! {
    error::raise(PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE, what, Some(hint))
}

/// Prepares a statement; the one to go on with is returned.
///
/// # Safety
/// PostgreSQL's statement.
pub unsafe fn before(statement: *mut PlannedStmt, read_only: bool) -> *mut PlannedStmt {
    // SAFETY: each node is what its tag says; a tree that is not ours is copied before it is changed.
    unsafe {
        let node = (*statement).utilityStmt;
        let ours = match (*node).type_ {
            NodeTag::T_CreateStmt => names_ours((*node.cast::<pg_sys::CreateStmt>()).options),
            NodeTag::T_CreateTableAsStmt => into_names_ours(node.cast()),
            NodeTag::T_AlterTableStmt => return alter(statement, read_only),
            _ => false,
        };
        if !ours {
            return statement;
        }
        let statement = own(statement, read_only);
        let node = (*statement).utilityStmt;
        match (*node).type_ {
            NodeTag::T_CreateStmt => create(statement, node.cast()),
            _ => create_as(statement, node.cast()),
        }
        statement
    }
}

unsafe fn own(statement: *mut PlannedStmt, read_only: bool) -> *mut PlannedStmt {
    match read_only {
        // SAFETY: copies the tree.
        true => unsafe { pg_sys::copyObjectImpl(statement.cast()).cast() },
        false => statement,
    }
}

unsafe fn into_names_ours(statement: *mut pg_sys::CreateTableAsStmt) -> bool {
    // SAFETY: a CreateTableAsStmt.
    unsafe { !(*statement).into.is_null() && names_ours((*(*statement).into).options) }
}

unsafe fn create(statement: *mut PlannedStmt, create: *mut pg_sys::CreateStmt) {
    // SAFETY: a CreateStmt that may be changed.
    unsafe {
        if !(*create).partspec.is_null() {
            refuse("options of loosekv tables cannot be set for a partitioned table", "Set them for its partitions.");
        }
        let (method, relation, exists) = ((*create).accessMethod, (*create).relation, (*create).if_not_exists);
        make(statement, &mut (*create).options, method, relation, exists);
    }
}

unsafe fn create_as(statement: *mut PlannedStmt, create: *mut pg_sys::CreateTableAsStmt) {
    // SAFETY: a CreateTableAsStmt that may be changed.
    unsafe {
        let into = (*create).into;
        make(statement, &mut (*into).options, (*into).accessMethod, (*into).rel, (*create).if_not_exists);
    }
}

unsafe fn make(
    statement: *mut PlannedStmt,
    list: &mut *mut pg_sys::List,
    method: *const std::ffi::c_char,
    relation: *mut pg_sys::RangeVar,
    if_not_exists: bool,
) {
    // SAFETY: the parts of a statement.
    unsafe {
        let method = if method.is_null() { pg_sys::default_table_access_method.cast_const() } else { method };
        if method.is_null() || CStr::from_ptr(method) != c"loosekv" {
            let name = table_options::text((*relation).relname);
            refuse(&format!("table \"{name}\" would not be a loosekv table"), "Add USING loosekv.");
        }
        let mut changes = Vec::new();
        take_ours(list, false, &mut changes);
        let options = changed(Vec::new(), changes);
        let mut existing = Oid::INVALID;
        let copy = pg_sys::copyObjectImpl(relation.cast()).cast::<pg_sys::RangeVar>();
        let schema = pg_sys::RangeVarGetAndCheckCreationNamespace(copy, pg_sys::NoLock as i32, &mut existing);
        if existing != Oid::INVALID && if_not_exists {
            return;
        }
        let name = table_options::text((*relation).relname);
        remember(statement, Target::New { schema, name }, options);
    }
}

fn remember(statement: *mut PlannedStmt, target: Target, options: Vec<Pair>) {
    // SAFETY: reads process memory.
    let level = unsafe { raw::GetCurrentTransactionNestLevel() };
    PENDING.with_borrow_mut(|pending| pending.push(Pending { statement: statement as usize, level, target, options }));
}

/// Options of a command, if it is about options: the list, and whether they are reset.
unsafe fn options_of(command: *mut pg_sys::AlterTableCmd) -> Option<bool> {
    // SAFETY: a command of ALTER TABLE.
    match unsafe { (*command).subtype } {
        AlterTableType::AT_SetRelOptions => Some(false),
        AlterTableType::AT_ResetRelOptions => Some(true),
        _ => None,
    }
}

unsafe fn alter(statement: *mut PlannedStmt, read_only: bool) -> *mut PlannedStmt {
    // SAFETY: an AlterTableStmt; it is copied before it is changed.
    unsafe {
        let alter = (*statement).utilityStmt.cast::<pg_sys::AlterTableStmt>();
        if !matches!((*alter).objtype, pg_sys::ObjectType::OBJECT_TABLE | pg_sys::ObjectType::OBJECT_MATVIEW) {
            return statement;
        }
        let commands = || catalog::nodes::<pg_sys::AlterTableCmd>((*alter).cmds);
        let lists = commands().filter(|command| options_of(*command).is_some());
        let (mut about, mut named) = (false, false);
        for command in lists {
            about = true;
            named |= names_ours((*command).def.cast());
        }
        let moves = commands().find(|command| (**command).subtype == AlterTableType::AT_SetAccessMethod);
        if !about && moves.is_none() {
            return statement;
        }
        let flags = pg_sys::RVROption::RVR_MISSING_OK;
        let no_lock = pg_sys::NoLock as i32;
        let none = std::ptr::null_mut();
        let found = pg_sys::RangeVarGetRelidExtended((*alter).relation, no_lock, flags, None, none);
        if found == Oid::INVALID || !named && table_options::stored(found).is_empty() {
            return statement;
        }
        // Now it is ours to change: with the lock and the right that PostgreSQL will ask for.
        let statement = own(statement, read_only);
        let alter = (*statement).utilityStmt.cast::<pg_sys::AlterTableStmt>();
        let mut changes = Vec::new();
        for command in catalog::nodes::<pg_sys::AlterTableCmd>((*alter).cmds) {
            if let Some(reset) = options_of(command) {
                let mut list = (*command).def.cast::<pg_sys::List>();
                take_ours(&mut list, reset, &mut changes);
                if list.is_null() {
                    list = nothing(reset);
                }
                (*command).def = list.cast();
            }
        }
        let lock = pg_sys::AlterTableGetLockLevel((*alter).cmds);
        let callback = Some(raw::RangeVarCallbackOwnsRelation as _);
        let relid = guarded!(RangeVarGetRelidExtended((*alter).relation, lock, flags, callback, none));
        if relid == Oid::INVALID {
            return statement;
        }
        if changes.iter().any(|change| change.value.is_some()) && !is_ours(relid) {
            let name = table_options::text((*(*alter).relation).relname);
            refuse(&format!("\"{name}\" is not a loosekv table"), "Only loosekv tables have options of loosekv.");
        }
        let (ours, others) = table_options::split(relid);
        if !ours.is_empty() {
            table_options::store(relid, &[], &others);
        }
        let leaves = moves.is_some_and(|command| {
            let method = (*command).name;
            !method.is_null() && CStr::from_ptr(method) != c"loosekv"
        });
        let options = changed(ours, changes);
        let options = if leaves { Vec::new() } else { options };
        remember(statement, Target::Old(relid), options);
        statement
    }
}

/// An option that changes nothing, for a command that has no other left: our tables have no TOAST tables. Without any option
/// PostgreSQL would lock the table as if for a rewrite.
unsafe fn nothing(reset: bool) -> *mut pg_sys::List {
    // SAFETY: allocated in the statement's memory.
    unsafe {
        let value = match reset {
            true => std::ptr::null_mut(),
            false => pg_sys::makeString(pg_sys::pstrdup(c"true".as_ptr())).cast::<pg_sys::Node>(),
        };
        let element = pg_sys::makeDefElemExtended(
            pg_sys::pstrdup(c"toast".as_ptr()),
            pg_sys::pstrdup(c"autovacuum_enabled".as_ptr()),
            value,
            pg_sys::DefElemAction::DEFELEM_UNSPEC,
            -1,
        );
        pg_sys::lappend(std::ptr::null_mut(), element.cast())
    }
}

unsafe fn is_ours(relid: Oid) -> bool {
    // SAFETY: opened only for a look; it is locked.
    unsafe {
        let rel = pg_sys::relation_open(relid, pg_sys::NoLock as i32);
        let ours = catalog::is_our_table(rel);
        pg_sys::relation_close(rel, pg_sys::NoLock as i32);
        ours
    }
}

/// The statement has been done.
///
/// # Safety
/// PostgreSQL's statement.
pub unsafe fn after(statement: *mut PlannedStmt) {
    let found = PENDING.with_borrow_mut(|pending| {
        let at = pending.iter().rposition(|one| one.statement == statement as usize)?;
        Some(pending.remove(at))
    });
    let Some(Pending { target, options, .. }) = found else { return };
    // SAFETY: catalog look-ups.
    unsafe {
        pg_sys::CommandCounterIncrement();
        let relid = match target {
            Target::Old(relid) => relid,
            Target::New { schema, name } => {
                let Ok(name) = std::ffi::CString::new(name) else { return };
                pg_sys::get_relname_relid(name.as_ptr(), schema)
            }
        };
        if relid != Oid::INVALID && !options.is_empty() {
            let (_, others) = table_options::split(relid);
            table_options::store(relid, &options, &others);
        }
    }
}
