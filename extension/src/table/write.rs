//! Insert, update, delete.
//!
//! Every change is one loop: look at the newest version of the key that has not been aborted; decide by what became of
//! its writer; append a version of ours on condition that the key is still as it was seen; if it is not, begin again.
//! At most one writer in progress has versions above the committed ones of a key, so order of versions is order of row ids.
//!
//! A change of the key is a new row under the new key, then a tombstone with MOVED under the old one, whose body is the new
//! row's id. The new row comes first, because the tombstone names it; if then the old key turns out to have changed after
//! all, the new row is taken back by a KILLED tombstone.
//!
//! A speculative insertion (ON CONFLICT) is an ordinary one where nothing but the key is unique, for `append` decides
//! alone. With other unique indexes the version carries SPECULATIVE, and others wait for a lock that its writer holds
//! until it is confirmed or taken back. Where the key is taken nothing is written at all: the slot gets a TID from the
//! limbo, and the key's `aminsert` says "conflict" when it is shown that TID.

use super::lock::{Got, KeyLock, Line};
use super::mvcc::{self, Newest, Standing, View, TO_ANOTHER_PARTITION};
use super::{last_look, recent, tid, unread, Open};
use crate::pg::ssi;
use crate::pg::xact::{self, Purpose};
use crate::work::memory;
use loosekv_engine::error::{Error, Result};
use loosekv_engine::tree::{Hint, NewRow, Observed, MOST_STRIPED};
use loosekv_engine::types::{Flags, Head, RowBuf, RowId, Verdict, Writer};
use pgrx::pg_sys;
use pgrx::pg_sys::LockTupleMode as Mode;
use pgrx::pg_sys::TM_Result;

/// Bit of the incarnation: the version changed a column of another unique index, to which a foreign key may point; or its writer
/// had locked the row FOR UPDATE, which announces as much, and heap takes for it. (The flags of a row version have no room left.)
const KEY_CHANGED: u16 = 1 << 15;

/// Bit of the incarnation: a version of this life replaced one that was not read ([`unread`]). It belongs to the same life as
/// that one, whatever its number.
const INHERITED: u16 = 1 << 14;

/// Which life of its key a version belongs to: a number, or none where it is inherited.
fn life(head: &Head) -> u16 {
    head.incarnation & !KEY_CHANGED
}

/// Whether two versions of a key, the older of which a running statement has before it, belong to the same life. Everybody sees
/// a row that is replaced unread: no statement can have one before it that is older than that, so whatever is asked about with
/// a version above is of the same life.
pub fn same_life(one: &Head, other: &Head) -> bool {
    let newer = if one.row_id > other.row_id { one } else { other };
    life(newer) & INHERITED != 0 || life(one) == life(other)
}

/// What a version carries that is copied to stand above `below` under another key, where it begins a life.
pub(super) fn copied_life(copied: &Head, below: Option<&Head>) -> u16 {
    let number = below.map_or(0, |below| life(below).wrapping_add(1) & !INHERITED & !KEY_CHANGED);
    number | (copied.incarnation & KEY_CHANGED)
}

/// The number of a life that begins above this tombstone, and is none that a running statement may have before it.
fn next_life(open: &Open, key: &[u8], tombstone: &Head) -> Result<u16> {
    let mut last = Some(*tombstone);
    if life(tombstone) & INHERITED != 0 {
        last = None;
        let numbered = |head: &Head, _: &Hint<'_>| match life(head) & INHERITED {
            0 => {
                last = Some(*head);
                Verdict::Take
            }
            _ => Verdict::Skip,
        };
        open.tree.find_head(key, numbered)?;
    }
    Ok(last.map_or(0, |head| life(&head).wrapping_add(1) & !INHERITED & !KEY_CHANGED))
}

/// The row with this version has gone on since, but in a way that a KEY SHARE lock on it goes together with.
pub fn key_is_as_in(open: &Open, row: &RowBuf) -> Result<bool> {
    let mut scratch = RowBuf::default();
    let mut intact = true;
    let choose = |head: &Head, hint: &Hint<'_>| {
        if head.row_id <= row.head.row_id {
            return Verdict::Take;
        }
        if mvcc::standing(head, hint) != Standing::Aborted {
            intact &= same_life(head, &row.head) && !head.flags.is_tombstone() && head.incarnation & KEY_CHANGED == 0;
        }
        Verdict::Skip
    };
    open.tree.find(&row.key, choose, &mut scratch)?;
    Ok(intact)
}

/// Room for larger rows is not kept.
const LARGEST_KEPT: usize = 4 << 10;

/// A row on its way into the tree.
#[derive(Default)]
pub struct Draft {
    pub key: Vec<u8>,
    pub body: Vec<u8>,
}

impl Draft {
    pub fn bytes(&self) -> usize {
        self.key.len() + self.body.len()
    }

    /// The row has been appended: what it took is room for another, unless it was large.
    pub fn make_room(&mut self) {
        if self.bytes() > LARGEST_KEPT {
            *self = Draft::default();
        }
    }
}

/// What an insertion came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inserted {
    Row(Head),
    /// A row with this key is there.
    Duplicate,
}

/// Inserts a row, waiting for whoever is at work on the key.
pub fn insert(open: &Open, draft: &Draft, writer: Writer, command: u32, flags: Flags) -> Result<Inserted> {
    ssi::write_key(open.rel, &draft.key);
    if !open.info.is_keyed() {
        return append_unkeyed(open, draft, writer, command, flags).map(Inserted::Row);
    }
    loop {
        let (newest, observed) = mvcc::newest_head(open, &draft.key)?;
        let incarnation = match newest {
            None => 0,
            Some(newest) if newest.standing == Standing::InProgress => {
                xact::wait_for(open.rel, &newest.head, Purpose::Insert);
                continue;
            }
            Some(newest) if !newest.is_absent() => {
                // Whoever was waited for may have made this transaction unserializable, which is the better reason.
                ssi::write_key(open.rel, &draft.key);
                return Ok(Inserted::Duplicate);
            }
            Some(newest) => next_life(open, &draft.key, &newest.head)?,
        };
        let mut head = Head { row_id: RowId(0), writer, command, flags, incarnation };
        if let Some(row_id) = append(open, &draft.key, &draft.body, &head, true, observed)? {
            head.row_id = row_id;
            return Ok(Inserted::Row(head));
        }
    }
}

fn append_unkeyed(open: &Open, draft: &Draft, writer: Writer, command: u32, flags: Flags) -> Result<Head> {
    let mut head = Head { writer, command, flags, ..Head::default() };
    let row = NewRow::first(&draft.key, &draft.body, &head, None);
    head.row_id = memory::append(&open.tree, &[row])?.first;
    ssi::write_table(open.rel);
    Ok(head)
}

/// `None`: the key has changed since it was observed. `begins`: there was no row with this key.
fn append(
    open: &Open,
    key: &[u8],
    body: &[u8],
    head: &Head,
    begins: bool,
    observed: Observed,
) -> Result<Option<RowId>> {
    let row = NewRow { begins, ..NewRow::first(key, body, head, Some(observed)) };
    let appended = memory::append(&open.tree, &[row])?;
    if appended.written == 0 {
        return Ok(None);
    }
    ssi::write_key(open.rel, key);
    Ok(Some(appended.first))
}

/// Inserts many rows. Stops at the first duplicate and says which one it is.
pub fn insert_many(
    open: &Open,
    drafts: &[Draft],
    writer: Writer,
    command: u32,
    mut done: impl FnMut(usize, Head),
) -> Result<Option<usize>> {
    let mut from = 0;
    while from < drafts.len() {
        // No more than are appended at once: the rest would have to be looked up again.
        let next = drafts.iter().skip(from).take(MOST_STRIPED);
        let mut rows = Vec::with_capacity(next.len());
        open.tree.prefetch_new(next.clone().map(|draft| draft.key.as_slice()));
        for draft in next {
            let (mut incarnation, mut expect) = (0, None);
            if open.info.is_keyed() {
                ssi::write_key(open.rel, &draft.key);
                let (newest, observed) = mvcc::newest_head(open, &draft.key)?;
                match newest {
                    None => {}
                    Some(newest) if newest.standing != Standing::InProgress && newest.is_absent() => {
                        incarnation = next_life(open, &draft.key, &newest.head)?;
                    }
                    // To be waited for, or a duplicate: the rows before it come first.
                    Some(_) => break,
                }
                expect = Some(observed);
            }
            let head = Head { writer, command, incarnation, ..Head::default() };
            rows.push(NewRow::first(&draft.key, &draft.body, &head, expect));
        }
        let mut written = 0;
        if !rows.is_empty() {
            let appended = memory::append(&open.tree, &rows)?;
            written = appended.written;
            for (i, row) in rows.iter().take(written).enumerate() {
                let row_id = RowId(appended.first.0 + i as u64);
                let head = Head { row_id, writer, command, flags: row.flags, incarnation: row.incarnation };
                done(from + i, head);
            }
            if open.info.is_keyed() {
                rows.iter().take(written).for_each(|row| ssi::write_key(open.rel, row.key));
            } else {
                ssi::write_table(open.rel);
            }
        }
        let planned = rows.len();
        from += written;
        // The row that stopped the batch goes alone.
        if let (true, Some(draft)) = (written < planned || planned == 0, drafts.get(from)) {
            match insert(open, draft, writer, command, Flags::default())? {
                Inserted::Row(head) => done(from, head),
                Inserted::Duplicate => return Ok(Some(from)),
            }
            from += 1;
        }
    }
    Ok(None)
}

/// The first of some rows that are not inserted yet, and would be a duplicate; `None` also where another transaction would have to be
/// waited for.
pub fn first_duplicate(open: &Open, drafts: &[Draft]) -> Result<Option<usize>> {
    if !open.info.is_keyed() {
        return Ok(None);
    }
    for (at, draft) in drafts.iter().enumerate() {
        if drafts.iter().take(at).any(|earlier| earlier.key == draft.key) {
            return Ok(Some(at));
        }
        match mvcc::newest_head(open, &draft.key)?.0 {
            Some(newest) if newest.standing == Standing::InProgress => return Ok(None),
            Some(newest) if !newest.is_absent() => return Ok(Some(at)),
            _ => {}
        }
    }
    Ok(None)
}

/// Inserts for ON CONFLICT. `None`: the key is taken, nothing was written.
pub fn insert_speculative(open: &Open, draft: &Draft, command: u32) -> Result<Option<Head>> {
    let speculative = open.info.has_other_unique();
    let flags = if speculative { Flags::SPECULATIVE } else { Flags::default() };
    let writer = xact::current_writer();
    if speculative {
        xact::speculation_begins(writer);
    }
    match insert(open, draft, writer, command, flags)? {
        Inserted::Row(head) => Ok(Some(head)),
        Inserted::Duplicate => {
            if speculative {
                xact::speculation_ends(writer);
            }
            Ok(None)
        }
    }
}

/// The second half of it, for a row that was written.
pub fn complete_speculative(open: &Open, draft_key: &[u8], row: RowId, succeeded: bool, command: u32) -> Result<()> {
    let speculative = open.info.has_other_unique();
    if succeeded {
        if speculative {
            open.tree.confirm(row);
        }
    } else {
        take_back(open, draft_key, row, command)?;
    }
    if speculative {
        xact::speculation_ends(xact::current_writer());
    }
    Ok(())
}

/// Writes a KILLED tombstone over a version of ours, on top of which nobody can have written meanwhile.
fn take_back(open: &Open, key: &[u8], row: RowId, command: u32) -> Result<()> {
    loop {
        let (newest, observed) = mvcc::newest_head(open, key)?;
        let Some(newest) = newest.filter(|newest| newest.head.row_id == row) else {
            return Err(Error::structure(format!(
                "row version {row} is to be taken back and is not the newest of its key"
            )));
        };
        let flags = Flags::TOMBSTONE.with(Flags::KILLED);
        let head = Head { row_id: RowId(0), writer: newest.head.writer, command, flags, ..newest.head };
        if append(open, key, &[], &head, false, observed)?.is_some() {
            return Ok(());
        }
    }
}

/// Why a row cannot be changed, in the words of the table AM.
pub struct Refusal {
    pub result: TM_Result::Type,
    pub tid: pg_sys::ItemPointerData,
    pub xmax: pg_sys::TransactionId,
    pub cmax: u32,
}

impl Refusal {
    pub fn new(result: TM_Result::Type, row: RowId) -> Refusal {
        let cmax = pg_sys::InvalidCommandId;
        Refusal { result, tid: tid::from_row(row), xmax: pg_sys::InvalidTransactionId, cmax }
    }

    pub fn tell(&self, failure: &mut pg_sys::TM_FailureData) -> TM_Result::Type {
        failure.ctid = self.tid;
        failure.xmax = self.xmax;
        failure.cmax = self.cmax;
        self.result
    }
}

/// Who wants to change a row, and how.
#[derive(Clone, Copy)]
pub struct Change {
    pub command: u32,
    pub crosscheck: pg_sys::Snapshot,
    pub wait: bool,
    pub purpose: Purpose,
}

pub enum Ready {
    /// `old` is the newest version; append on this condition.
    Go(Observed),
    No(Refusal),
}

/// May the current transaction change the row version `old`? Waits for others who are at it.
pub fn prepare(open: &Open, old: &RowBuf, change: Change) -> Result<Ready> {
    let mut scratch = RowBuf::default();
    loop {
        let (mut newest, mut observed) = mvcc::newest_head(open, &old.key)?;
        if newest.is_some_and(|newest| newest.head.row_id > old.head.row_id) {
            (newest, observed) = mvcc::newest(open, &old.key, &mut scratch)?;
        }
        let Some(newest) = newest.filter(|newest| newest.head.row_id >= old.head.row_id) else {
            return Ok(Ready::No(Refusal::new(TM_Result::TM_Invisible, old.head.row_id)));
        };
        if newest.head.row_id == old.head.row_id {
            let own_later = newest.standing == Standing::Mine && newest.head.command >= change.command;
            if newest.standing == Standing::InProgress || own_later {
                return Ok(Ready::No(Refusal::new(TM_Result::TM_Invisible, old.head.row_id)));
            }
            if !change.crosscheck.is_null() {
                // SAFETY: the executor's crosscheck snapshot is registered for the whole statement.
                let mut view = unsafe { View::new(open.rel, change.crosscheck) };
                if view.look_at(open, old, &mut scratch)? != mvcc::Sight::Seen {
                    return Ok(Ready::No(Refusal::new(TM_Result::TM_Updated, old.head.row_id)));
                }
            }
            return Ok(Ready::Go(observed));
        }
        if newest.standing != Standing::InProgress {
            return superseded(open, old, newest, &scratch, change.command).map(Ready::No);
        }
        // Whatever becomes of that one: a change below it that is there to stay decides already.
        if let Some(settled) = mvcc::newest_settled(open, &old.key, &mut scratch)? {
            if settled.head.row_id > old.head.row_id {
                return superseded(open, old, settled, &scratch, change.command).map(Ready::No);
            }
        }
        if !change.wait {
            let mut refusal = Refusal::new(TM_Result::TM_BeingModified, old.head.row_id);
            refusal.xmax = xact::short(newest.head.writer);
            return Ok(Ready::No(refusal));
        }
        xact::wait_for(open.rel, &newest.head, change.purpose);
    }
}

/// What to say of `old`, over which `newest` (a copy of it is in `newest_row`) has been written and is there to stay.
pub fn superseded(open: &Open, old: &RowBuf, newest: Newest, newest_row: &RowBuf, command: u32) -> Result<Refusal> {
    let mut refusal = Refusal::new(TM_Result::TM_Deleted, old.head.row_id);
    refusal.xmax = xact::short(newest.head.writer);
    let mut of_this_life = RowBuf::default();
    let (last, row) = if same_life(&newest.head, &old.head) {
        (newest, newest_row)
    } else {
        // The key was deleted and has been inserted again, or another row has come to have it: what ended the life of `old`?
        match mvcc::newest_of_life(open, old, &mut of_this_life)? {
            Some(last) => (last, &of_this_life),
            None => return Ok(refusal),
        }
    };
    let (standing, last) = (last.standing, last.head);
    refusal.xmax = xact::short(last.writer);
    if standing == Standing::Mine {
        refusal.result = TM_Result::TM_Invisible;
        if last.command >= command {
            refusal.cmax = last.command;
            refusal.result = TM_Result::TM_SelfModified;
        }
        return Ok(refusal);
    }
    if !last.flags.is_tombstone() {
        refusal.result = TM_Result::TM_Updated;
        refusal.tid = tid::from_row(last.row_id);
    } else if last.flags.has(Flags::MOVED) {
        refusal.result = TM_Result::TM_Updated;
        refusal.tid = match mvcc::moved_to(row) {
            Some(moved) => tid::from_row(moved),
            None => tid::moved_partitions(),
        };
    }
    Ok(refusal)
}

/// The lock that others meet a version in progress as.
pub fn stands_for(head: &Head) -> Mode::Type {
    if head.flags.is_tombstone() || head.incarnation & KEY_CHANGED != 0 {
        Mode::LockTupleExclusive
    } else {
        Mode::LockTupleNoKeyExclusive
    }
}

/// Holds the row's lock for the moment of a change; a lock that the statement holds already is used instead.
struct Guard<'a> {
    open: &'a Open,
    lock: KeyLock,
    mode: Mode::Type,
    held: bool,
    taken: bool,
}

enum Guarded {
    /// The lock is held, and nothing has happened since the row was looked at but what an append would notice.
    AtOnce,
    /// Somebody was waited for: look at the row again.
    Waited,
    WouldBlock,
}

impl<'a> Guard<'a> {
    fn new(open: &'a Open, lock: KeyLock, mode: Mode::Type) -> Guard<'a> {
        Guard { open, lock, mode, held: false, taken: false }
    }

    fn take(&mut self, wait: bool, line: &mut Line) -> Guarded {
        if self.held {
            return Guarded::AtOnce;
        }
        let got = self.lock.take(self.open, self.mode);
        if let Got::WouldBlock(blocker) = got {
            if !wait {
                return Guarded::WouldBlock;
            }
            line.get_in(&self.lock);
            self.lock.wait_for(self.open, blocker);
            return Guarded::Waited;
        }
        (self.held, self.taken) = (true, got == Got::Locked);
        Guarded::AtOnce
    }

    /// Gives back a lock that was taken for this change: somebody else is changing the row, and has to be waited for.
    fn let_go(&mut self) {
        if self.taken {
            self.lock.release(self.mode);
            (self.held, self.taken) = (false, false);
        }
    }

    /// Not `Drop`: after an error the transaction's end gives the lock back, and no code of ours must run for it.
    fn end(self, changed: bool) {
        match (self.taken, changed) {
            (true, true) => self.lock.release_changed(self.mode),
            (true, false) => self.lock.release(self.mode),
            (false, _) => {}
        }
        if changed {
            self.lock.changed(self.mode);
        }
    }
}

/// Deletes the row version `old`. `None`: done.
pub fn delete(open: &Open, old: &RowBuf, change: Change, to_another_partition: bool) -> Result<Option<Refusal>> {
    let writer = xact::current_writer();
    let mut guard = Guard::new(open, KeyLock::on_row(open, old), Mode::LockTupleExclusive);
    ssi::write_key(open.rel, &old.key);
    let (flags, body) = if to_another_partition {
        (Flags::TOMBSTONE.with(Flags::MOVED), TO_ANOTHER_PARTITION.to_le_bytes().to_vec())
    } else {
        (Flags::TOMBSTONE, Vec::new())
    };
    let over = Over { flags, marks: 0, body: &body };
    let refusal = replace(open, old, change, &mut guard, writer, over, None)?.err();
    guard.end(refusal.is_none());
    Ok(refusal)
}

/// A version to be written over another.
struct Over<'a> {
    flags: Flags,
    /// Bits of the incarnation.
    marks: u16,
    body: &'a [u8],
}

/// Writes a version over `old`. `allowed`: that has been found to be possible.
fn replace(
    open: &Open,
    old: &RowBuf,
    change: Change,
    guard: &mut Guard<'_>,
    writer: Writer,
    Over { flags, marks, body }: Over<'_>,
    mut allowed: Option<Observed>,
) -> Result<std::result::Result<Head, Refusal>> {
    loop {
        let observed =
            match allowed.take().map_or_else(|| allow(open, old, change, guard), |seen| Ok(Ready::Go(seen)))? {
                Ready::Go(observed) => observed,
                Ready::No(refusal) => return Ok(Err(refusal)),
            };
        let incarnation = same_life_as(&old.head) | marks;
        let mut head = Head { row_id: RowId(0), writer, command: change.command, flags, incarnation };
        if let Some(row_id) = append(open, &old.key, body, &head, false, observed)? {
            head.row_id = row_id;
            return Ok(Ok(head));
        }
    }
}

/// What a version carries that replaces this one.
fn same_life_as(old: &Head) -> u16 {
    // What one command changed in a key stays changed when a later command of the transaction changes something else.
    let earlier = if xact::is_mine(old.writer) { old.incarnation & KEY_CHANGED } else { 0 };
    life(old) | earlier
}

/// May the row be changed, and nobody else lock it?
fn allow(open: &Open, old: &RowBuf, change: Change, guard: &mut Guard<'_>) -> Result<Ready> {
    let mut line = Line::new(guard.mode, xact::is_mine(old.head.writer));
    let ready = allow_in_line(open, old, change, guard, &mut line);
    line.leave(&guard.lock);
    ready
}

fn allow_in_line(open: &Open, old: &RowBuf, change: Change, guard: &mut Guard<'_>, line: &mut Line) -> Result<Ready> {
    loop {
        let mut ready = prepare(open, old, Change { wait: false, ..change })?;
        let busy = matches!(&ready, Ready::No(refusal) if refusal.result == TM_Result::TM_BeingModified);
        if busy && change.wait {
            guard.let_go();
            line.get_in(&guard.lock);
            ready = prepare(open, old, change)?;
        }
        if let Ready::No(_) = ready {
            return Ok(ready);
        }
        match guard.take(change.wait, line) {
            Guarded::AtOnce => return Ok(ready),
            Guarded::Waited => {}
            Guarded::WouldBlock => return Ok(Ready::No(Refusal::new(TM_Result::TM_BeingModified, old.head.row_id))),
        }
    }
}

/// What an update came to.
pub enum Updated {
    Row {
        head: Head,
        /// The transaction had locked the row before.
        was_locked: bool,
    },
    No(Refusal),
    /// The new key is taken.
    Duplicate,
}

/// Replaces the row version `old` by `draft`. `key_changed`: a column that a foreign key may point to is different.
pub fn update(open: &Open, old: &RowBuf, draft: &Draft, change: Change, key_changed: bool) -> Result<Updated> {
    let writer = xact::current_writer();
    let mode = if key_changed { Mode::LockTupleExclusive } else { Mode::LockTupleNoKeyExclusive };
    let mut guard = Guard::new(open, KeyLock::on_row(open, old), mode);
    ssi::write_key(open.rel, &old.key);
    let updated = if draft.key == old.key {
        let marks = if key_changed || guard.lock.is_kept(Mode::LockTupleExclusive) { KEY_CHANGED } else { 0 };
        let over = Over { flags: Flags::default(), marks, body: &draft.body };
        match replace(open, old, change, &mut guard, writer, over, None)? {
            Ok(head) => Updated::Row { head, was_locked: !guard.taken },
            Err(refusal) => Updated::No(refusal),
        }
    } else {
        change_key(open, old, draft, change, &mut guard, writer)?
    };
    guard.end(matches!(updated, Updated::Row { .. }));
    Ok(updated)
}

/// Replaces the row that was left unread under this row id. `None`: nothing was done, for it may not be the newest any more.
pub fn replace_unread(open: &Open, row: RowId, draft: &Draft, change: Change) -> Result<Option<Updated>> {
    let Some(observed) = unread::observed(row, &draft.key) else { return Ok(None) };
    if !change.crosscheck.is_null() {
        return Ok(None);
    }
    let mode = Mode::LockTupleNoKeyExclusive;
    let mut guard = Guard::new(open, KeyLock::on(open, &draft.key), mode);
    ssi::write_key(open.rel, &draft.key);
    let taken = guard.take(false, &mut Line::new(mode, false));
    if matches!(taken, Guarded::WouldBlock) {
        return Ok(None);
    }
    let marks = if guard.lock.is_kept(Mode::LockTupleExclusive) { KEY_CHANGED } else { 0 };
    let mut head = Head {
        row_id: RowId(0),
        writer: xact::current_writer(),
        command: change.command,
        flags: Flags::default(),
        incarnation: INHERITED | marks,
    };
    let was_locked = !guard.taken;
    let appended = append(open, &draft.key, &draft.body, &head, false, observed)?;
    guard.end(appended.is_some());
    Ok(appended.map(|row_id| {
        head.row_id = row_id;
        Updated::Row { head, was_locked }
    }))
}

/// A row whose next version is written later: its lock is held, so nobody else changes it before.
pub struct Replacing {
    observed: Observed,
    below: Below,
    flags: Flags,
    incarnation: u16,
    lock: KeyLock,
    mode: Mode::Type,
}

/// Which version is replaced, as far as that is known.
#[derive(Clone, Copy)]
enum Below {
    /// That of a writer who is none above this one; it is committed.
    WrittenUpTo(Writer),
    Row(RowId),
}

/// Prepares to replace the row that was left unread under this row id, and locked, by one of this key. `None`: it cannot be put off.
pub fn prepare_unread(open: &Open, row: RowId, key: &[u8]) -> Option<Replacing> {
    let (observed, writers) = unread::undisturbed(row, key)?;
    let lock = KeyLock::on(open, key);
    let marks = if lock.is_kept(Mode::LockTupleExclusive) { KEY_CHANGED } else { 0 };
    let (below, mode) = (Below::WrittenUpTo(writers), Mode::LockTupleNoKeyExclusive);
    Some(Replacing { observed, below, flags: Flags::default(), incarnation: INHERITED | marks, lock, mode })
}

/// Prepares to delete the row version `old`, and locks it. `None`: it cannot be put off, or not be done at once.
pub fn prepare_delete(open: &Open, old: &RowBuf, change: Change) -> Result<Option<Replacing>> {
    let observed = match last_look::observed(open, old).filter(|_| change.crosscheck.is_null()) {
        Some(seen) => seen,
        None => match prepare(open, old, Change { wait: false, ..change })? {
            Ready::Go(observed) => observed,
            Ready::No(_) => return Ok(None),
        },
    };
    let (lock, mode) = (KeyLock::on_row(open, old), Mode::LockTupleExclusive);
    let got = lock.take(open, mode);
    // Who had the lock until now may have changed the row.
    let still = if matches!(got, Got::WouldBlock(_)) { None } else { open.tree.renew(&old.key, observed) };
    if got == Got::Locked {
        match still {
            Some(_) => lock.keep_until_changed(mode),
            None => lock.release(mode),
        }
    }
    let (below, incarnation) = (Below::Row(old.head.row_id), same_life_as(&old.head));
    Ok(still.map(|observed| Replacing { observed, below, flags: Flags::TOMBSTONE, incarnation, lock, mode }))
}

/// Replaces rows whose locks are held since they were prepared. `done` is told how many of them are, from the first.
pub fn replace_many(
    open: &Open,
    drafts: &[Draft],
    replacing: &[Replacing],
    (writer, command): (Writer, u32),
    mut done: impl FnMut(usize),
) -> Result<()> {
    let rows = drafts.iter().zip(replacing).map(|(draft, replacing)| NewRow {
        key: &draft.key,
        body: &draft.body,
        writer,
        command,
        flags: replacing.flags,
        incarnation: replacing.incarnation,
        begins: false,
        expect: Some(replacing.observed),
    });
    let mut rows: Vec<NewRow<'_>> = rows.collect();
    open.tree.prefetch(drafts.iter().map(|draft| draft.key.as_slice()));
    let mut from = 0;
    while let (Some(left), Some(first)) = (rows.get(from..), replacing.get(from)) {
        match memory::append(&open.tree, left)?.written {
            0 => {
                let observed = look_again(open, left[0].key, first.below)?;
                rows[from].expect = Some(observed);
            }
            written => from += written,
        }
        done(from);
    }
    for row in replacing.iter().rev() {
        row.lock.changed_by(row.mode, writer);
    }
    Ok(())
}

/// What is to be observed now of a locked row: it may have come to stand elsewhere.
fn look_again(open: &Open, key: &[u8], below: Below) -> Result<Observed> {
    let (newest, observed) = mvcc::newest_head(open, key)?;
    let same = |newest: &Newest| match below {
        Below::WrittenUpTo(writer) => {
            newest.standing == Standing::Committed && !newest.is_absent() && newest.head.writer <= writer
        }
        Below::Row(row) => newest.head.row_id == row,
    };
    match newest.filter(same) {
        Some(_) => Ok(observed),
        None => Err(Error::structure("a row has changed while its lock was held")),
    }
}

fn change_key(
    open: &Open,
    old: &RowBuf,
    draft: &Draft,
    change: Change,
    guard: &mut Guard<'_>,
    writer: Writer,
) -> Result<Updated> {
    // First see that the old row may be changed at all: most refusals come from here, with nothing written yet.
    let allowed = match allow(open, old, change, guard)? {
        Ready::Go(observed) => observed,
        Ready::No(refusal) => return Ok(Updated::No(refusal)),
    };
    let head = match insert(open, draft, writer, change.command, Flags::default())? {
        Inserted::Row(head) => head,
        Inserted::Duplicate => return Ok(Updated::Duplicate),
    };
    let moved = head.row_id.0.to_le_bytes();
    let over = Over { flags: Flags::TOMBSTONE.with(Flags::MOVED), marks: 0, body: &moved };
    match replace(open, old, change, guard, writer, over, Some(allowed))? {
        Ok(_) => Ok(Updated::Row { head, was_locked: !guard.taken }),
        Err(refusal) => {
            take_back(open, &draft.key, head.row_id, change.command)?;
            Ok(Updated::No(refusal))
        }
    }
}

/// The row version that a change names by its TID.
pub fn named_row(open: &Open, tid: &pg_sys::ItemPointerData, out: &mut RowBuf) -> Result<bool> {
    let found = mvcc::row_of_tid(open, tid, out)?;
    if found {
        recent::note(open, out.as_ref());
    }
    Ok(found)
}
