//! The last few row versions that this process has looked at.
//!
//! A statement that changes a row names it by its TID, and does so two or three times: to read the old row, to lock it, to
//! replace it. It has just been read by a scan. A row version never changes, so a copy is as good as the original, and
//! saves the way through the row directory.

use super::{last_look, Open};
use crate::host::process_local::{ProcessLocal, WithBorrow};
use loosekv_engine::error::Result;
use loosekv_engine::tree::{Hint, Looked};
use loosekv_engine::types::{Head, RowBuf, RowId, RowRef};
use std::cell::{Cell, RefCell};

const KEPT: usize = 8;
/// Larger rows are not copied.
const LARGEST: usize = 4096;

struct Kept {
    /// File of the table; 0: empty place.
    file: u32,
    row: RowBuf,
}

static KEEPER: ProcessLocal<RefCell<Vec<Kept>>> = ProcessLocal::new(RefCell::new(Vec::new()));
static NEXT: ProcessLocal<Cell<usize>> = ProcessLocal::new(Cell::new(0));
static NOTING: ProcessLocal<Cell<bool>> = ProcessLocal::new(Cell::new(false));

/// Whether scans should note what they return: a statement that may come back to its rows is running.
pub fn set_noting(noting: bool) -> bool {
    last_look::forget();
    NOTING.replace(noting)
}

pub fn is_noting() -> bool {
    NOTING.get()
}

/// Notes what a scan returns.
#[inline]
pub fn note_scanned(open: &Open, row: RowRef<'_>) {
    if NOTING.get() {
        note(open, row);
    }
}

pub fn note(open: &Open, row: RowRef<'_>) {
    if row.body.len() > LARGEST {
        return;
    }
    KEEPER.with_borrow_mut(|kept| {
        let place = NEXT.get();
        NEXT.set((place + 1) % KEPT);
        if kept.len() <= place {
            kept.push(Kept { file: 0, row: RowBuf::default() });
        }
        if let Some(kept) = kept.get_mut(place) {
            kept.file = open.file();
            kept.row.set(&row);
        }
    });
}

/// The row version with this id, visible or not.
pub fn find_row(open: &Open, row: RowId, out: &mut RowBuf) -> Result<bool> {
    Ok(look_at_row(open, row, out, |_, _| {})? != Looked::Gone)
}

/// As [`Tree::look_at_row`], and with it as [`find_row`].
///
/// [`Tree::look_at_row`]: loosekv_engine::tree::Tree::look_at_row
pub fn look_at_row(open: &Open, row: RowId, out: &mut RowBuf, see: impl FnOnce(&Head, &Hint<'_>)) -> Result<Looked> {
    let file = open.file();
    let known = KEEPER.with_borrow(|kept| {
        let known = kept.iter().find(|kept| kept.file == file && kept.row.head.row_id == row);
        if let Some(known) = known {
            out.set(&known.row.as_ref());
        }
        known.is_some()
    });
    if known {
        return Ok(Looked::Found);
    }
    if row >= open.tree.next_row_id() {
        return Ok(Looked::Gone);
    }
    open.tree.look_at_row(row, out, see)
}

/// Row ids of a file may begin anew.
pub fn forget() {
    last_look::forget();
    KEEPER.with_borrow_mut(|kept| kept.iter_mut().for_each(|kept| kept.file = 0));
}
