//! Rows that are replaced unread.
//!
//! INSERT ... ON CONFLICT DO UPDATE finds the row that is in the way, locks it, and replaces it. Where the statement wants
//! nothing of the old row but its key ([`crate::pg::upsert`]), and the key index tells alone that it is there, the row is not
//! read, which saves most of the work, and far beyond memory a page from disk.
//!
//! ```text
//!  scan of the key     the row is left unread: noted here, under a row id that stands for it (`tid::unread`)
//!  tuple_lock          the row lock is taken; with it held, the key must still be as it was observed
//!  tuple_update        a version is appended on that condition, of the life of the row below it (`write::same_life`)
//! ```
//!
//! Where it is not as it was observed any more, the row is read after all ([`read`]), and goes the ordinary way.

use super::mvcc::{self, Standing};
use super::Open;
use crate::host::process_local::{ProcessLocal, WithBorrow};
use crate::pg::xact;
use loosekv_engine::error::Result;
use loosekv_engine::tree::{Hint, Observed};
use loosekv_engine::types::{Head, RowBuf, RowId, Verdict, Writer};
use std::cell::{Cell, RefCell};

/// A statement comes back to a row at once; its functions may do the same in between.
const KEPT: usize = 8;

struct Unread {
    row: RowId,
    file: u32,
    key: Vec<u8>,
    observed: Observed,
}

static KEEPER: ProcessLocal<RefCell<Vec<Unread>>> = ProcessLocal::new(RefCell::new(Vec::new()));
static NEXT: ProcessLocal<Cell<u64>> = ProcessLocal::new(Cell::new(0));

/// Writers below this one are seen by everybody; it only grows.
static SEEN_BELOW: ProcessLocal<Cell<u64>> = ProcessLocal::new(Cell::new(0));
/// That has been asked in the statement that runs.
static ASKED: ProcessLocal<Cell<bool>> = ProcessLocal::new(Cell::new(false));

/// Another statement begins.
pub fn statement_begins() {
    ASKED.set(false);
}

/// Whether everybody sees what writers up to this one have written to the table, which is not a temporary one.
pub fn is_seen_by_all(open: &Open, writer: Writer) -> bool {
    if writer.0 >= SEEN_BELOW.get() && !ASKED.replace(true) {
        SEEN_BELOW.set(xact::oldest_visible(open.rel).max(SEEN_BELOW.get()));
    }
    writer.0 < SEEN_BELOW.get()
}

/// Notes a row that is left unread. `out` stands for it: it has the row's key, and the row id under which it is noted.
pub fn note(open: &Open, key: &[u8], observed: Observed, out: &mut RowBuf) {
    let number = NEXT.get();
    NEXT.set(number.wrapping_add(1));
    let row = super::tid::unread(number);
    stand_for(open, row, key, out);
    KEEPER.with_borrow_mut(|kept| {
        let place = number as usize % KEPT;
        match kept.get_mut(place) {
            Some(unread) => {
                (unread.row, unread.file, unread.observed) = (row, open.file(), observed);
                unread.key.clear();
                unread.key.extend_from_slice(key);
            }
            None => kept.push(Unread { row, file: open.file(), key: key.to_vec(), observed }),
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

/// What was observed of the row with this key that is noted under this row id.
pub fn observed(open: &Open, row: RowId, key: &[u8]) -> Option<Observed> {
    KEEPER.with_borrow(|kept| {
        let is_it = |unread: &&Unread| unread.row == row && unread.file == open.file() && unread.key == key;
        kept.iter().find(is_it).map(|unread| unread.observed)
    })
}

/// What stands for the row that is noted under this row id, and what was observed of it. `None`: nothing is noted any more.
pub fn recall(open: &Open, row: RowId, out: &mut RowBuf) -> Option<Observed> {
    KEEPER.with_borrow(|kept| {
        let unread = kept.iter().find(|unread| unread.row == row && unread.file == open.file())?;
        stand_for(open, row, &unread.key, out);
        Some(unread.observed)
    })
}

/// Reads a row that was left unread: the newest version of its key that others have committed. False: the row is gone.
pub fn read(open: &Open, key: &[u8], out: &mut RowBuf) -> Result<bool> {
    let committed = |head: &Head, hint: &Hint<'_>| match mvcc::standing(head, hint) {
        Standing::Committed => Verdict::Take,
        Standing::Mine | Standing::InProgress | Standing::Aborted => Verdict::Skip,
    };
    Ok(open.tree.find(key, committed, out)?.taken && !out.head.flags.is_tombstone())
}
