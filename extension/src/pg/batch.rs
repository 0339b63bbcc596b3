//! Statements that write many rows: those of one statement are gathered and appended together, as COPY does it.
//!
//! ```text
//!  ExecutorRun begins   may this statement's rows be gathered? then its table is the *target*
//!  tuple_insert         of the target, from the second row on:    the batch is full: appended
//!                       encoded, and kept here
//!  tuple_update         the same of a row that ON CONFLICT replaces unread
//!  tuple_delete         the same of the tombstone, from the second row on
//!  Open::new            of a table of which rows are kept here:   appended first, whoever it is that wants to look
//!  ExecutorRun          of another statement begins (a function): appended first
//!  ExecutorRun ends     what is left is appended
//! ```
//!
//! Nobody may ask for a row between the executor's insertion of it and the batch's: so the table has no trigger, no index but
//! its key, and the statement returns nothing. The rows carry the (sub)transaction and command that inserted them. A row
//! leaves the batch when it has been appended, not before: where a look from within the statement's own functions finds a
//! duplicate, or fails, the rows stay, and the statement itself reports it, for nobody else may catch that error. What such a look
//! has found to be a duplicate is one, even if the other row goes before the statement comes to report it. And where an error of
//! another row ends the statement, those that wait are looked up: of several errors the first row's is the one.
//!
//! Rows that ON CONFLICT replaces ([`super::replacing`]), and those that are deleted, are locked when they are found, and stay so
//! until their new versions are appended: nobody changes them meanwhile, so nothing can stand in the way of the append. The
//! statement itself goes on to look for its next rows; where it comes to the key of a row kept here, what waits is appended first,
//! and the row found as written by the statement. (Its snapshot sees rows that it has deleted as before, in the tree or not.) Not
//! under SERIALIZABLE, where readers in between would count.

use super::bindings_am::raw;
use super::error::Duplicate;
use super::{catalog, replacing, slot, ssi, table_am, xact};
use crate::host::process_local::{ProcessLocal, WithBorrow};
use crate::table::lock::MOST_GATHERED;
use crate::table::write::{self, Change, Draft, Replacing};
use crate::table::{unread, Open};
use loosekv_engine::filter::key_hash;
use loosekv_engine::types::{Head, RowBuf, RowId, Writer};
use pgrx::pg_guard;
use pgrx::pg_sys;
use pgrx::pg_sys::{CmdType, NodeTag, QueryDesc, Relation, TupleTableSlot};
use std::cell::{Cell, RefCell};

/// As many as are looked up and appended at once.
const MOST_ROWS: usize = loosekv_engine::tree::MOST_STRIPED;
const MOST_BYTES: usize = 64 << 10;
/// A row that came so many milliseconds after the one before was long in coming. (Longer than a step of the clock.)
const SLOW_ROW: i64 = 10;

/// Whose rows are gathered.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Target {
    /// Open as long as the statement runs. Null: nobody's.
    rel: Relation,
    command: pg_sys::CommandId,
    /// Depth of the subtransaction in which it runs.
    level: i32,
    gathers: Gathers,
    /// It has come to a row already.
    begun: bool,
    /// When it last came to a row that it inserts, in milliseconds; 0: never.
    last_row: i64,
}

/// What a statement makes of which versions are gathered.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum Gathers {
    New,
    /// Rows that replace others.
    Replacing,
    Deleted,
}

/// Rows that are not appended yet.
struct Batch {
    target: Target,
    writer: Writer,
    rows: usize,
    bytes: usize,
    /// The first `rows` of them; the others are room.
    drafts: Vec<Draft>,
    /// The first of them has been found to be a duplicate.
    doomed: bool,
    /// Where the statement replaces or deletes rows: what each of them replaces, and the hash of its key.
    replacing: Vec<Replacing>,
    hashes: Vec<u64>,
}

const NOBODY: Target =
    Target { rel: std::ptr::null_mut(), command: 0, level: 0, gathers: Gathers::New, begun: false, last_row: 0 };
const EMPTY: Batch = Batch {
    target: NOBODY,
    writer: Writer(0),
    rows: 0,
    bytes: 0,
    drafts: Vec::new(),
    doomed: false,
    replacing: Vec::new(),
    hashes: Vec::new(),
};

static TARGET: ProcessLocal<Cell<Target>> = ProcessLocal::new(Cell::new(NOBODY));
static BATCH: ProcessLocal<RefCell<Batch>> = ProcessLocal::new(RefCell::new(EMPTY));
/// The table of which rows wait to be appended; null: none do, or they are being appended.
static WAITING: ProcessLocal<Cell<Relation>> = ProcessLocal::new(Cell::new(std::ptr::null_mut()));

/// The target of a statement that runs, and the one before it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Targets {
    own: Target,
    outer: Target,
}

impl Targets {
    /// New rows of the statement are gathered: of one of them it may turn out late that it is a duplicate.
    pub fn may_have_duplicates(&self) -> bool {
        !self.own.rel.is_null() && self.own.gathers == Gathers::New
    }
}

impl Target {
    fn is(&self, rel: Relation, gathers: Gathers) -> bool {
        std::ptr::eq(self.rel, rel) && self.gathers == gathers
    }
}

/// A statement begins to run; which rows it leaves unread is known.
///
/// # Safety
/// The executor's query, set up.
pub unsafe fn begin(query: *mut QueryDesc) -> Targets {
    if !WAITING.get().is_null() {
        append_waiting();
    }
    // Rows that could not be appended wait for their own statement to say why.
    let free = WAITING.get().is_null();
    // SAFETY: by the contract.
    let own = if free { unsafe { target_of(query) } } else { NOBODY };
    Targets { own, outer: TARGET.replace(own) }
}

/// A statement has run. Null: its rows are appended.
pub fn end(targets: Targets) -> *mut Duplicate {
    TARGET.set(targets.outer);
    if targets.own.rel.is_null() {
        // Rows that wait are those of an outer statement.
        return std::ptr::null_mut();
    }
    append()
}

/// The table of a statement whose rows nobody will ask for before it ends.
unsafe fn target_of(query: *mut QueryDesc) -> Target {
    // SAFETY: as the executor sets it up.
    unsafe {
        let state = (*query).planstate;
        let planned = (*query).plannedstmt;
        let operation = (*query).operation;
        if !matches!(operation, CmdType::CMD_INSERT | CmdType::CMD_DELETE)
            || (*planned).hasModifyingCTE
            || (*planned).hasReturning
            || state.is_null()
            || (*state).type_ != NodeTag::T_ModifyTableState
            || yields_one_row((*(*state).plan).lefttree)
        {
            return NOBODY;
        }
        let plan = (*state).plan.cast::<pg_sys::ModifyTable>();
        let state = state.cast::<pg_sys::ModifyTableState>();
        let rel = (*(*state).resultRelInfo).ri_RelationDesc;
        let serializable = ssi::serializable();
        let (gathers, kind_fits) = match (*plan).onConflictAction {
            _ if operation == CmdType::CMD_DELETE => (Gathers::Deleted, !serializable),
            pg_sys::OnConflictAction::ONCONFLICT_NONE => (Gathers::New, catalog::has_no_index_but_its_key(rel)),
            _ => (Gathers::Replacing, !serializable && unread::is_wanted(rel, true)),
        };
        let plain = kind_fits && (*state).mt_nrels == 1 && catalog::is_our_table(rel) && replacing::is_unwatched(state);
        if !plain {
            return NOBODY;
        }
        let command = (*(*state).ps.state).es_output_cid;
        Target { rel, command, level: raw::GetCurrentTransactionNestLevel(), gathers, begun: false, last_row: 0 }
    }
}

/// INSERT ... VALUES of one row.
unsafe fn yields_one_row(plan: *mut pg_sys::Plan) -> bool {
    // SAFETY: a plan, or null.
    unsafe { !plan.is_null() && (*plan).type_ == NodeTag::T_Result && (*plan).lefttree.is_null() }
}

/// Whether the row that is being inserted may be kept here. Not a statement's first one, nor one that was long in coming: nobody
/// else is to take the key of a row while the statement is busy with the next.
#[inline]
pub fn takes(rel: Relation, command: pg_sys::CommandId) -> bool {
    let target = TARGET.get();
    if !target.is(rel, Gathers::New) || target.command != command {
        return false;
    }
    let now = coarse_clock();
    TARGET.set(Target { last_row: now, ..target });
    now <= target.last_row + SLOW_ROW
}

/// Milliseconds of a clock that goes on in steps of some, and takes next to no time to read.
#[inline]
fn coarse_clock() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure; this clock is there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

/// Whether the new version of a row that is being replaced unread may be kept here.
#[inline]
pub fn takes_replaced(rel: Relation, command: pg_sys::CommandId) -> bool {
    let target = TARGET.get();
    target.is(rel, Gathers::Replacing) && target.command == command
}

/// Whether the tombstone of a row that is being deleted may be kept here: a statement's first row is deleted at once, and often
/// is its only one.
#[inline]
pub fn takes_deleted(rel: Relation, command: pg_sys::CommandId) -> bool {
    let target = TARGET.get();
    let takes = target.is(rel, Gathers::Deleted) && target.command == command;
    if takes && !target.begun {
        TARGET.set(Target { begun: true, ..target });
    }
    takes && target.begun
}

/// Whether the statement that runs gathers rows of this table that replace others, or tombstones.
#[inline]
pub fn replaces(rel: Relation) -> bool {
    let target = TARGET.get();
    std::ptr::eq(target.rel, rel) && target.gathers != Gathers::New
}

/// Keeps the row in the slot, of a statement whose rows it [`takes`]. Null, unless that filled the batch and a row in it is a
/// duplicate.
///
/// # Safety
/// `slot` holds a row of the table.
pub unsafe fn keep(rel: Relation, slot: *mut TupleTableSlot) -> *mut Duplicate {
    // SAFETY: by the contract.
    let full = unsafe {
        let open = Open::with_rows_waiting(rel);
        let writer = xact::current_writer();
        let mut draft = BATCH.with_borrow_mut(Batch::room);
        open.draft(slot, &mut draft);
        // Its row id is not known yet, and nobody asks.
        slot::mark_written(slot, open.relid(), &Head { writer, ..Head::default() });
        BATCH.with_borrow_mut(|batch| {
            (batch.target, batch.writer) = (TARGET.get(), writer);
            batch.add(draft);
            batch.rows == MOST_ROWS || batch.bytes >= MOST_BYTES || batch.doomed
        })
    };
    WAITING.set(rel);
    // SAFETY: the relation is open.
    unsafe { raw::pgstat_count_heap_insert(rel, 1) };
    if full {
        append()
    } else {
        std::ptr::null_mut()
    }
}

/// Keeps the row in the slot, of a statement whose rows it takes ([`takes_replaced`]), which replaces the one that was left unread
/// under this row id. False: it has to be replaced at once.
///
/// # Safety
/// `slot` holds a row of the table.
pub unsafe fn keep_replaced(open: &Open, slot: *mut TupleTableSlot, unread: RowId) -> bool {
    let mut draft = BATCH.with_borrow_mut(Batch::room);
    // SAFETY: by the contract.
    unsafe { open.draft(slot, &mut draft) };
    let Some(replacing) = write::prepare_unread(open, unread, &draft.key) else { return false };
    let writer = keep_prepared(open, draft, replacing);
    // SAFETY: by the contract; the relation is open.
    unsafe {
        // Its row id is not known yet, and nobody asks.
        slot::mark_written(slot, open.relid(), &Head { writer, ..Head::default() });
        pg_sys::pgstat_count_heap_update(open.rel, false);
    }
    true
}

/// Keeps the tombstone of a row, of a statement of which it takes them ([`takes_deleted`]). False: the row has to be deleted at
/// once, or cannot be.
pub fn keep_deleted(open: &Open, old: &RowBuf, change: Change) -> bool {
    // The statement may come to a row a second time.
    before_look_at(open.rel, &old.key);
    let Some(replacing) = open.ok(write::prepare_delete(open, old, change)) else { return false };
    let mut draft = BATCH.with_borrow_mut(Batch::room);
    draft.key.clone_from(&old.key);
    draft.body.clear();
    keep_prepared(open, draft, replacing);
    true
}

/// Keeps a version whose row is locked until it is appended. Returns its writer.
fn keep_prepared(open: &Open, draft: Draft, replacing: Replacing) -> Writer {
    let writer = xact::current_writer();
    let full = BATCH.with_borrow_mut(|batch| {
        (batch.target, batch.writer) = (TARGET.get(), writer);
        batch.hashes.push(key_hash(&draft.key));
        batch.replacing.push(replacing);
        batch.add(draft);
        batch.rows == MOST_GATHERED || batch.bytes >= MOST_BYTES
    });
    WAITING.set(open.rel);
    if full {
        append_waiting();
    }
    writer
}

/// The statement that runs is about to look for a row with this key.
#[inline]
pub fn before_look_at(rel: Relation, key: &[u8]) {
    if std::ptr::eq(WAITING.get(), rel) && BATCH.with_borrow(|batch| batch.may_have(key)) {
        append_waiting();
    }
}

/// The duplicate among rows of this statement that wait, if there is one: after an error that was caught, its rows are not
/// kept any more.
pub fn earlier_duplicate(rel: Relation, command: pg_sys::CommandId) -> *mut Duplicate {
    let own = std::ptr::eq(WAITING.get(), rel) && BATCH.with_borrow(|batch| batch.target.command == command);
    if own {
        append()
    } else {
        std::ptr::null_mut()
    }
}

/// An error has ended the statement: the first duplicate among its rows that wait, if there is one, which came before.
///
/// # Safety
/// Called in the statement's own memory context and for its own resource owner.
#[pg_guard]
pub unsafe extern "C-unwind" fn duplicate_that_waits(targets: &Targets) -> *mut Duplicate {
    let own = targets.own;
    // SAFETY: looks into this process's memory.
    let level = unsafe { raw::GetCurrentTransactionNestLevel() };
    let waits = std::ptr::eq(WAITING.get(), own.rel) && own.level == level && own.gathers == Gathers::New;
    let Some(appending) = waits.then(Appending::take).flatten() else { return std::ptr::null_mut() };
    let batch = &appending.batch;
    if batch.target.command != own.command {
        return std::ptr::null_mut();
    }
    // SAFETY: the statement has the relation open; the draft is a row of it.
    unsafe {
        let open = Open::with_rows_waiting(own.rel);
        let drafts = &batch.drafts[..batch.rows];
        let first = if batch.doomed { Some(0) } else { open.ok(write::first_duplicate(&open, drafts)) };
        first.map_or(std::ptr::null_mut(), |at| table_am::duplicate_of_draft(&open, &drafts[at]))
    }
}

/// Somebody wants to look into the table.
#[inline]
pub fn before_use(rel: Relation) {
    if std::ptr::eq(WAITING.get(), rel) {
        append_waiting();
    }
}

/// This process is about to wait for another one, for who knows how long: what the statement has replaced or deleted is shown to
/// others, who would wait for it.
#[inline]
pub fn before_wait() {
    if !WAITING.get().is_null() && TARGET.get().gathers != Gathers::New {
        append_waiting();
    }
}

/// Appends what waits, on behalf of somebody who is not to learn of a duplicate.
#[cold]
fn append_waiting() {
    let _ = append_but_for_duplicates();
}

/// Appends what waits, and describes the duplicate that stopped it.
fn append() -> *mut Duplicate {
    if WAITING.get().is_null() {
        return std::ptr::null_mut();
    }
    match append_but_for_duplicates() {
        // SAFETY: the draft is a row of the table, which is open.
        Some(open) => BATCH.with_borrow(|batch| unsafe { table_am::duplicate_of_draft(&open, &batch.drafts[0]) }),
        None => std::ptr::null_mut(),
    }
}

/// Appends rows up to the first duplicate. Returns the table if there is one.
fn append_but_for_duplicates() -> Option<Open> {
    let appending = Appending::take()?;
    let Appending { batch, appended, doomed } = &appending;
    let target = batch.target;
    // Recovery learns of transaction ids from the WAL's records, which name the current subtransaction.
    xact::current_writer();
    // SAFETY: the statement has the relation open.
    let open = unsafe { Open::with_rows_waiting(target.rel) };
    if batch.doomed {
        return Some(open);
    }
    let drafts = &batch.drafts[..batch.rows];
    if target.gathers != Gathers::New {
        let done = |count| appended.set(count);
        open.ok(write::replace_many(&open, drafts, &batch.replacing, (batch.writer, target.command), done));
        return None;
    }
    let done = |at, _| appended.set(at + 1);
    open.ok(write::insert_many(&open, drafts, batch.writer, target.command, done))?;
    doomed.set(true);
    Some(open)
}

impl Batch {
    /// A draft for the next row.
    fn room(&mut self) -> Draft {
        self.drafts.get_mut(self.rows).map(std::mem::take).unwrap_or_default()
    }

    fn add(&mut self, draft: Draft) {
        self.bytes += draft.bytes();
        match self.drafts.get_mut(self.rows) {
            Some(place) => *place = draft,
            None => self.drafts.push(draft),
        }
        self.rows += 1;
    }

    /// False: it has no row with this key.
    fn may_have(&self, key: &[u8]) -> bool {
        let hash = key_hash(key);
        self.hashes.iter().fold(false, |found, one| found | (*one == hash))
    }

    /// The first rows have been appended.
    fn remove(&mut self, count: usize) {
        if self.target.gathers != Gathers::New {
            self.replacing.drain(..count);
            self.hashes.drain(..count);
        }
        for draft in &mut self.drafts[..count] {
            self.bytes -= draft.bytes();
            draft.make_room();
        }
        self.drafts[..self.rows].rotate_left(count);
        self.rows -= count;
    }
}

/// The batch while it is being appended, when looks into the table find it empty. What is left of it goes back, after an
/// error too.
struct Appending {
    batch: Batch,
    /// How many of its rows are.
    appended: Cell<usize>,
    /// The one after these is a duplicate.
    doomed: Cell<bool>,
}

impl Appending {
    fn take() -> Option<Appending> {
        if WAITING.replace(std::ptr::null_mut()).is_null() {
            return None;
        }
        Some(Appending { batch: BATCH.replace(EMPTY), appended: Cell::new(0), doomed: Cell::new(false) })
    }
}

impl Drop for Appending {
    fn drop(&mut self) {
        let mut batch = std::mem::replace(&mut self.batch, EMPTY);
        batch.remove(self.appended.get());
        batch.doomed |= self.doomed.get();
        if batch.rows > 0 {
            WAITING.set(batch.target.rel);
        }
        BATCH.replace(batch);
    }
}

/// The transaction has ended, or the subtransactions from this depth on were rolled back: rows of theirs are not wanted any
/// more, and which statement runs now is not known.
pub fn rolled_back(level: i32) {
    TARGET.set(NOBODY);
    BATCH.with_borrow_mut(|batch| {
        if batch.target.level >= level {
            (batch.rows, batch.bytes, batch.doomed) = (0, 0, false);
            batch.replacing.clear();
            batch.hashes.clear();
            WAITING.set(std::ptr::null_mut());
        }
    });
}
