//! Rows that are replaced unread.
//!
//! A statement finds a row, locks it, and replaces it. Where it wants nothing of the old row but its key
//! ([`crate::pg::replacing`]), and the key index tells alone that it is there, the row is not read, which saves most of the
//! work, and far beyond memory a page from disk.
//!
//! ```text
//!  scan of the key     the row is left unread: noted here, under a row id that stands for it (`tid::unread`)
//!  tuple_lock          ON CONFLICT: the row lock is taken; with it held, the key must still be as it was observed
//!  tuple_update        a version is appended on that condition, of the life of the row below it (`write::same_life`)
//! ```
//!
//! Where it is not as it was observed any more, the row is read after all ([`read`]), and goes the ordinary way.
//!
//! A statement comes to one row after the other, so that it has one note. Statements of functions run within it.

use super::Open;
use crate::host::process_local::{ProcessLocal, WithBorrow};
use crate::pg::xact;
use loosekv_engine::error::{Error, Result};
use loosekv_engine::tree::{Hint, Observed};
use loosekv_engine::types::{Head, RowBuf, RowId, Verdict, Writer};
use pgrx::pg_sys::Relation;
use std::cell::{Cell, RefCell};

/// Which rows a statement may leave unread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaves {
    Nothing,
    /// Those in the way of its new ones, which the executor looks for with a dirty snapshot.
    Conflicts,
    /// Those that it updates, which its plan's scan finds.
    Updated,
}

/// A statement that is being executed.
struct Running {
    /// Open as long as it runs. Null: it leaves nothing unread.
    rel: Relation,
    leaves: Leaves,
    /// Depth of the subtransaction in which it runs.
    level: i32,
    note: Note,
}

/// The row that it has left unread last.
struct Note {
    row: RowId,
    key: Vec<u8>,
    observed: Option<Observed>,
    /// Its lock is held, and was taken when so many statements had begun.
    locked: Option<u64>,
    /// Its writer is none above this one; those of newer versions all are.
    writers: Writer,
}

struct Stack {
    /// Of the first `running`; the others are kept for their space.
    statements: Vec<Running>,
    running: usize,
}

static STACK: ProcessLocal<RefCell<Stack>> =
    ProcessLocal::new(RefCell::new(Stack { statements: Vec::new(), running: 0 }));
/// Statements that have begun so far.
static BEGUN: ProcessLocal<Cell<u64>> = ProcessLocal::new(Cell::new(0));
/// Notes so far.
static NOTED: ProcessLocal<Cell<u64>> = ProcessLocal::new(Cell::new(0));

/// Writers below this one are seen by everybody; it only grows.
static SEEN_BELOW: ProcessLocal<Cell<u64>> = ProcessLocal::new(Cell::new(0));
/// That has been asked in the statement that runs.
static ASKED: ProcessLocal<Cell<bool>> = ProcessLocal::new(Cell::new(false));

/// A statement begins, in a subtransaction of this depth. Returns how many ran before, for [`ends`].
pub fn begins(rel: Relation, leaves: Leaves, level: i32) -> usize {
    ASKED.set(false);
    BEGUN.set(BEGUN.get().wrapping_add(1));
    STACK.with_borrow_mut(|stack| {
        let before = stack.running;
        match stack.statements.get_mut(before) {
            Some(place) => {
                (place.rel, place.leaves, place.level) = (rel, leaves, level);
                place.note.observed = None;
            }
            None => {
                let note = Note { row: RowId(0), key: Vec::new(), observed: None, locked: None, writers: Writer(0) };
                stack.statements.push(Running { rel, leaves, level, note });
            }
        }
        stack.running = before + 1;
        before
    })
}

/// It has run.
pub fn ends(before: usize) {
    STACK.with_borrow_mut(|stack| stack.running = before);
}

/// Subtransactions from this depth on were rolled back, and with them their statements.
pub fn rolled_back(level: i32) {
    STACK.with_borrow_mut(|stack| {
        let left = |statement: &Running| statement.level < level;
        stack.running = stack.statements[..stack.running].iter().take_while(|s| left(s)).count();
    });
}

/// Whether the statement that runs may leave rows of this table unread, which it looks for with a dirty snapshot, or not.
#[inline]
pub fn is_wanted(rel: Relation, dirty: bool) -> bool {
    STACK.with_borrow(|stack| {
        let Some(statement) = stack.running.checked_sub(1).and_then(|last| stack.statements.get(last)) else {
            return false;
        };
        let leaves = if dirty { Leaves::Conflicts } else { Leaves::Updated };
        std::ptr::eq(statement.rel, rel) && statement.leaves == leaves
    })
}

/// Whether everybody sees what writers up to this one have written to the table, which is not a temporary one.
pub fn is_seen_by_all(open: &Open, writer: Writer) -> bool {
    if writer.0 >= SEEN_BELOW.get() && !ASKED.replace(true) {
        SEEN_BELOW.set(xact::oldest_visible(open.rel).max(SEEN_BELOW.get()));
    }
    writer.0 < SEEN_BELOW.get()
}

/// Notes a row that is left unread, whose writer is none above this one. `out` stands for it: it has the row's key, and the
/// row id under which it is noted.
pub fn note(open: &Open, key: &[u8], observed: Observed, writers: Writer, out: &mut RowBuf) {
    let number = NOTED.get();
    NOTED.set(number.wrapping_add(1));
    let row = super::tid::unread(number);
    stand_for(open, row, key, out);
    STACK.with_borrow_mut(|stack| {
        let last = stack.running.checked_sub(1);
        if let Some(statement) = last.and_then(|last| stack.statements.get_mut(last)) {
            let note = &mut statement.note;
            (note.row, note.observed, note.writers) = (row, Some(observed), writers);
            note.locked = None;
            note.key.clear();
            note.key.extend_from_slice(key);
        }
    });
}

fn stand_for(open: &Open, row: RowId, key: &[u8], out: &mut RowBuf) {
    out.head = Head { row_id: row, ..Head::default() };
    out.key.clear();
    out.key.extend_from_slice(key);
    out.body.clear();
    open.info.codec.layout.put_none(&mut out.body);
}

/// The note under this row id.
fn with_note<R>(row: RowId, see: impl FnOnce(&Note, Observed) -> R) -> Option<R> {
    STACK.with_borrow(|stack| {
        let running = stack.statements.get(..stack.running).unwrap_or_default();
        let (note, observed) = running.iter().rev().find_map(|statement| {
            let note = &statement.note;
            note.observed.filter(|_| note.row == row).map(|observed| (note, observed))
        })?;
        Some(see(note, observed))
    })
}

/// What stands for the row that is noted under this row id, and what was observed of it. `None`: nothing is noted any more.
pub fn recall(open: &Open, row: RowId, out: &mut RowBuf) -> Option<Observed> {
    with_note(row, |note, observed| {
        stand_for(open, row, &note.key, out);
        observed
    })
}

/// What was observed of the row that is noted under this row id, if this is its key.
pub fn observed(row: RowId, key: &[u8]) -> Option<Observed> {
    with_note(row, |note, observed| (note.key == key).then_some(observed)).flatten()
}

/// The row that is noted under this row id, by the statement that runs, is locked, and still as it was observed.
pub fn locked(row: RowId) {
    STACK.with_borrow_mut(|stack| {
        let last = stack.running.checked_sub(1);
        if let Some(statement) = last.and_then(|last| stack.statements.get_mut(last)) {
            statement.note.locked = (statement.note.row == row).then(|| BEGUN.get());
        }
    });
}

/// What was observed of the row, and the writer above whom its own is not; if nobody can have changed it since: it is [`locked`],
/// and no statement has begun in this process.
pub fn undisturbed(row: RowId, key: &[u8]) -> Option<(Observed, Writer)> {
    let is_it = |note: &Note| note.key == key && note.locked == Some(BEGUN.get());
    with_note(row, |note, observed| is_it(note).then_some((observed, note.writers))).flatten()
}

/// Who asks for a row that was left unread is still at it: nothing can have come in between.
pub fn forgotten() -> Error {
    Error::structure("a row that was left unread is not known any more")
}

/// Reads the row that is noted under this row id, whatever has become of its key. False: it is not there any more.
pub fn read(open: &Open, row: RowId, out: &mut RowBuf) -> Result<bool> {
    let (key, writers) = with_note(row, |note, _| (note.key.clone(), note.writers)).ok_or_else(forgotten)?;
    let is_it = |head: &Head, _: &Hint<'_>| if head.writer <= writers { Verdict::Take } else { Verdict::Skip };
    Ok(open.tree.find(&key, is_it, out)?.taken && !out.head.flags.is_tombstone())
}
