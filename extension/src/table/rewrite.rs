//! Copying a table into another file of the same format, as VACUUM FULL and CLUSTER do. ([`super::rekey`] changes the format.)

use super::mvcc::{self, Standing};
use super::write::Draft;
use super::{info, Open};
use crate::codec::key::KeyCodec;
use crate::codec::row::RowLayout;
use crate::host::writers;
use crate::pg::{catalog, slots};
use crate::work::memory;
use loosekv_engine::error::Result;
use loosekv_engine::tree::{Hint, NewRow, MOST_STRIPED};
use loosekv_engine::types::{Flags, Head, RowBuf, RowId, Verdict};
use pgrx::pg_sys;

/// As many bytes, or a row more, are appended at once.
const MOST_BYTES: usize = 64 << 10;

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
    let (mut row, mut scratch) = (RowBuf::default(), RowBuf::default());
    // SAFETY: the relation is open until the end of this function.
    let slot = unsafe { pg_sys::MakeSingleTupleTableSlot((*from.rel).rd_att, &crate::pg::slot::SLOT_OPS) };
    let columns = from.info.codec.layout.len();
    let mut copies = Copies::new(to, oldest.max(frozen));
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
        let mut draft = copies.room();
        draft.key.clone_from(&row.key);
        if stored < columns && !row.head.flags.is_tombstone() {
            // SAFETY: a slot for the table's rows, filled before it is read.
            unsafe {
                slots::store(slot, from, row.as_ref());
                from.draft_body(slot, &mut draft.body);
            }
        } else {
            draft.body.clone_from(&row.body);
        }
        copies.add(draft, &row.head);
        if copies.are_many() {
            copies.append()?;
        }
    }
    copies.append()?;
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

/// Versions that are copied as they are, some at a time. None of them is aborted. Those whose writers everybody sees are written as
/// frozen: where they come from that is known for good, and the commit log may have forgotten the writer, or do so soon, for PostgreSQL
/// takes the new file's rows to be as young as it is.
pub(super) struct Copies<'a> {
    to: &'a Open,
    /// Everybody sees what writers below this one have committed.
    oldest: u64,
    /// The first `count` wait to be appended; the others are room.
    rows: Vec<(Draft, Head)>,
    count: usize,
    bytes: usize,
}

impl<'a> Copies<'a> {
    pub fn new(to: &'a Open, oldest: u64) -> Copies<'a> {
        Copies { to, oldest, rows: Vec::new(), count: 0, bytes: 0 }
    }

    /// A draft for the next version.
    pub fn room(&mut self) -> Draft {
        self.rows.get_mut(self.count).map(|(draft, _)| std::mem::take(draft)).unwrap_or_default()
    }

    pub fn add(&mut self, draft: Draft, head: &Head) {
        self.bytes += draft.bytes();
        match self.rows.get_mut(self.count) {
            Some(place) => *place = (draft, *head),
            None => self.rows.push((draft, *head)),
        }
        self.count += 1;
    }

    pub fn are_many(&self) -> bool {
        self.count == MOST_STRIPED || self.bytes >= MOST_BYTES
    }

    pub fn waiting(&mut self) -> &mut [(Draft, Head)] {
        &mut self.rows[..self.count]
    }

    pub fn append(&mut self) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let as_is = |head: &Head| {
            let flags = head.flags.without(Flags::POINTER).without(Flags::SPECULATIVE);
            let writer = if head.writer.0 < self.oldest { writers::FROZEN } else { head.writer };
            Head { writer, flags, ..*head }
        };
        let waiting = self.rows.iter().take(self.count);
        let rows = waiting.map(|(draft, head)| NewRow::first(&draft.key, &draft.body, &as_is(head), None));
        let rows: Vec<NewRow<'_>> = rows.collect();
        let mut from = 0;
        while from < rows.len() {
            from += memory::append(&self.to.tree, &rows[from..])?.written;
        }
        self.waiting().iter_mut().for_each(|(draft, _)| draft.make_room());
        (self.count, self.bytes) = (0, 0);
        Ok(())
    }
}
