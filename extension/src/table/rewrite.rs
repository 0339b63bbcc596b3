//! Copying a table into another file of the same format, as VACUUM FULL and CLUSTER do. ([`super::rekey`] changes the format.)

use super::mvcc::{self, Standing};
use super::{info, Open};
use crate::codec::key::KeyCodec;
use crate::codec::row::RowLayout;
use crate::host::writers;
use crate::pg::{catalog, slots};
use crate::work::memory;
use loosekv_engine::error::Result;
use loosekv_engine::tree::{Hint, NewRow};
use loosekv_engine::types::{Flags, Head, RowBuf, RowId, Verdict};
use pgrx::pg_sys;

/// What a copy came to.
#[derive(Default, Clone, Copy, Debug)]
pub struct Counts {
    pub live: f64,
    pub dead: f64,
    pub recently_dead: f64,
}

/// A relation got a new, empty file. Rows are written to it by number until a key is built over them. But when it is a table with a
/// key that is truncated, or the copy that ALTER TABLE makes of one, then by that key, which the catalog knows already.
pub fn new_file(rel: pg_sys::Relation, file: u32) {
    // SAFETY: the relation is open. One that is being made has no index yet, and is not asked for them.
    let own = unsafe { (*(*rel).rd_rel).relhasindex.then(|| catalog::key_index_of(rel)).flatten() };
    let key = own.map(catalog::key_codec).or_else(|| catalog::key_of_rewritten(rel));
    // SAFETY: the relation is open.
    info::note_format(unsafe { (*rel).rd_id }, file, key.unwrap_or_else(KeyCodec::row_id));
}

/// Copies the row versions that somebody may still see, in their order, to a table of the same format, with their writers unless
/// everybody sees those, or they are older than `frozen`, which the new file's relfrozenxid will be. Columns that a row does not store
/// get their values now, for PostgreSQL forgets the defaults of columns that were added since, once the table has a new file.
///
/// `frozen` may be younger than `oldest`, for that goes back: VACUUM does not mind what runs in other databases, but the snapshots that
/// are taken after it remember it.
pub fn copy_versions(from: &Open, to: &Open, oldest: u64, frozen: u64) -> Result<Counts> {
    let mut counts = Counts::default();
    let (mut row, mut scratch, mut body) = (RowBuf::default(), RowBuf::default(), Vec::new());
    // SAFETY: the relation is open until the end of this function.
    let slot = unsafe { pg_sys::MakeSingleTupleTableSlot((*from.rel).rd_att, &crate::pg::slot::SLOT_OPS) };
    let columns = from.info.codec.layout.len();
    let settled = oldest.max(frozen);
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
            append_as_is(to, &row.key, &body, &row.head, settled)?;
        } else {
            append_as_is(to, &row.key, &row.body, &row.head, settled)?;
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
pub(super) fn append_as_is(to: &Open, key: &[u8], body: &[u8], head: &Head, oldest: u64) -> Result<()> {
    let flags = head.flags.without(Flags::POINTER).without(Flags::SPECULATIVE);
    let writer = if head.writer.0 < oldest { writers::FROZEN } else { head.writer };
    memory::append(&to.tree, &[NewRow::first(key, body, &Head { writer, flags, ..*head }, None)])?;
    Ok(())
}
