//! Copying a table into another file: VACUUM FULL and CLUSTER keep its format; a new primary key, or one that is dropped,
//! changes it.

use super::info::{self, Info};
use super::mvcc::{self, Standing, View};
use super::write::Draft;
use super::{put_unkeyed, recent, Open};
use crate::codec::key::KeyCodec;
use crate::codec::row::RowLayout;
use crate::host::writers;
use crate::pg::{catalog, file_copy, slots, xact};
use crate::work::memory;
use loosekv_engine::error::Result;
use loosekv_engine::tree::{Direction, Hint, NewRow};
use loosekv_engine::types::{Flags, Head, RowBuf, RowId, Verdict};
use pgrx::pg_sys;
use std::ops::Bound;

/// What a copy came to.
#[derive(Default, Clone, Copy, Debug)]
pub struct Counts {
    pub live: f64,
    pub dead: f64,
    pub recently_dead: f64,
}

/// A relation got a new, empty file. Rows are written to it by number until a key is built over them. But when it is the
/// copy that ALTER TABLE makes of a table with a key, then by that key, which the catalog knows already.
pub fn new_file(rel: pg_sys::Relation, file: u32) {
    let key = catalog::key_of_rewritten(rel).unwrap_or_else(KeyCodec::row_id);
    // SAFETY: the relation is open.
    info::note_format(unsafe { (*rel).rd_id }, file, key);
}

/// Copies the row versions that somebody may still see, with their writers and in their order, to a table of the same
/// format. Columns that a row does not store get their values now, for PostgreSQL forgets the defaults of columns that were
/// added since, once the table has a new file.
pub fn copy_versions(from: &Open, to: &Open, oldest: u64) -> Result<Counts> {
    let mut counts = Counts::default();
    let (mut row, mut scratch, mut body) = (RowBuf::default(), RowBuf::default(), Vec::new());
    // SAFETY: the relation is open until the end of this function.
    let slot = unsafe { pg_sys::MakeSingleTupleTableSlot((*from.rel).rd_att, &crate::pg::slot::SLOT_OPS) };
    let columns = from.info.codec.layout.len();
    for id in 0..from.tree.next_row_id().0 {
        pgrx::check_for_interrupts!();
        if !from.tree.find_row(RowId(id), &mut row)? {
            continue;
        }
        match worth(from, &row, oldest, &mut scratch)? {
            Worth::Nothing => {
                if !row.head.flags.is_tombstone() {
                    counts.dead += 1.0;
                }
                continue;
            }
            Worth::Live => counts.live += 1.0,
            Worth::RecentlyDead => counts.recently_dead += 1.0,
        }
        let stored = RowLayout::begin(&row.body).map_or(0, |body| body.stored as usize);
        if stored < columns && !row.head.flags.is_tombstone() {
            // SAFETY: a slot for the table's rows, filled before it is read.
            unsafe {
                slots::store(slot, from, row.as_ref());
                from.draft_body(slot, &mut body);
            }
            append_as_is(to, &row.key, &body, &row.head, oldest)?;
        } else {
            append_as_is(to, &row.key, &row.body, &row.head, oldest)?;
        }
    }
    // SAFETY: made above.
    unsafe { pg_sys::ExecDropSingleTupleTableSlot(slot) };
    Ok(counts)
}

enum Worth {
    Live,
    /// A version that has been replaced, or a tombstone, that matters to older snapshots.
    RecentlyDead,
    Nothing,
}

fn worth(open: &Open, row: &RowBuf, oldest: u64, scratch: &mut RowBuf) -> Result<Worth> {
    let (mut is_newest, mut aborted, mut pivot) = (true, true, None);
    let choose = |head: &Head, hint: &Hint<'_>| {
        let standing = mvcc::standing(head, hint);
        if head.row_id == row.head.row_id {
            aborted = standing == Standing::Aborted;
        } else if head.row_id > row.head.row_id && standing != Standing::Aborted {
            is_newest = false;
        }
        if standing == Standing::Committed && head.writer.0 < oldest {
            pivot = Some(head.row_id);
            return Verdict::Take;
        }
        Verdict::Skip
    };
    open.tree.find(&row.key, choose, scratch)?;
    let tombstone = row.head.flags.is_tombstone();
    let hidden = pivot.is_some_and(|pivot| row.head.row_id < pivot || (tombstone && row.head.row_id == pivot));
    Ok(match (aborted || hidden, is_newest && !tombstone) {
        (true, _) => Worth::Nothing,
        (false, true) => Worth::Live,
        (false, false) => Worth::RecentlyDead,
    })
}

/// A version that is not aborted. If everybody sees its writer it is written as frozen: where it comes from that is known for good,
/// and the commit log may have forgotten the writer, or do so soon, for PostgreSQL takes the new file's rows to be as young as it is.
fn append_as_is(to: &Open, key: &[u8], body: &[u8], head: &Head, oldest: u64) -> Result<()> {
    let flags = head.flags.without(Flags::POINTER).without(Flags::SPECULATIVE);
    let Head { command, incarnation, .. } = *head;
    let writer = if head.writer.0 < oldest { writers::FROZEN } else { head.writer };
    memory::append(&to.tree, &[NewRow { key, body, writer, command, flags, incarnation, expect: None }])?;
    Ok(())
}

/// What came in the way of a change of key.
pub enum Rekeyed {
    Done {
        rows: f64,
    },
    /// Two live rows have the same key: this one is in the slot.
    Duplicate(*mut pg_sys::TupleTableSlot),
}

/// Gives the table a new file with its live rows under another key. Their row ids are new: every other index has to be
/// built again. As with every rewrite of a table, older snapshots find what the rewriting transaction found.
pub fn rekey(rel: pg_sys::Relation, current: KeyCodec, target: KeyCodec) -> Result<Rekeyed> {
    let old = file_copy::OldFile::leave(rel);
    // SAFETY: both relations are open until the end of this function.
    unsafe {
        let (relid, file) = ((*rel).rd_id, catalog::file_of(rel));
        info::note_format(relid, file, target.clone());
        recent::forget();
        let from = Open::with(old.rel(), Info::with_key(old.rel(), current));
        let to = Open::new(rel);
        let slot = pg_sys::MakeSingleTupleTableSlot((*rel).rd_att, &crate::pg::slot::SLOT_OPS);
        let any = &raw mut pg_sys::SnapshotAnyData;
        let mut view = View::new(old.rel(), any);
        let mut cursor = from.tree.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward)?;
        let (mut row, mut draft) = (RowBuf::default(), Draft::default());
        let mut rows = 0.0;
        let oldest = xact::oldest_visible(rel);
        while view.next(&from, &mut cursor, &mut row)? {
            pgrx::check_for_interrupts!();
            slots::store(slot, &from, row.as_ref());
            to.draft(slot, &mut draft);
            if to.info.is_keyed() {
                let (newest, _) = mvcc::newest_head(&to, &draft.key)?;
                if newest.is_some_and(|newest| !newest.is_absent()) {
                    return Ok(Rekeyed::Duplicate(slot));
                }
            } else {
                draft.key.clear();
                put_unkeyed(&mut draft.key);
            }
            append_as_is(&to, &draft.key, &draft.body, &row.head, oldest)?;
            rows += 1.0;
        }
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        Ok(Rekeyed::Done { rows })
    }
}
