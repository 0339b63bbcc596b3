//! Copying a table into a file of another format: a primary key was added, dropped, exchanged.
//!
//! For PostgreSQL that is no rewrite: older snapshots go on to find what they found. So versions that they may see come along.
//! Under its old key a version is seen by whoever sees its writer and not yet the writer of what stands above it. Under the new
//! key, where other rows may have been before and after it, that is written out: each version is followed at once by a tombstone
//! of the writer who superseded it, whether he deleted the row, gave it another new key, or the same one again.
//!
//! Two rows may have had the same new key one after the other. They are copied in the order in which they ended, which is that
//! of the row ids of what superseded them: if one was there before the other, then whoever superseded it had committed before the other
//! was seen, and so before that one was superseded in its turn. Where a row began tells less: its writer may have committed long
//! after. The live versions come last. The copy's row ids have the same order, so that the next change of key finds it there.
//!
//! What a snapshot saw under one new key at the same time has only one place: it finds one of those rows, or, if it sees the end of one
//! that came later than another's, whose writer committed after it, none. And versions that have no key, for a column was null
//! or too long, have none.

use super::info::{self, Info};
use super::mvcc::{self, Standing, View, TO_ANOTHER_PARTITION};
use super::rewrite::Copies;
use super::write::{copied_life, Draft};
use super::{put_unkeyed, put_unkeyed_number, recent, take_unkeyed, Open};
use crate::codec::key::KeyCodec;
use crate::host::maintenance;
use crate::pg::{catalog, error, file_copy, slot, slots, ssi, xact};
use loosekv_engine::error::Result;
use loosekv_engine::filter::key_hash;
use loosekv_engine::tree::{Direction, Hint, MOST_STRIPED};
use loosekv_engine::types::{Flags, Head, RowBuf, RowId, RowRef, Verdict, Writer};
use pgrx::{pg_sys, PgSqlErrorCode};
use std::ops::Bound;

/// What came in the way of a change of key.
pub enum Rekeyed {
    Done {
        rows: f64,
    },
    /// Two live rows have the same key: this one is in the slot.
    Duplicate(*mut pg_sys::TupleTableSlot),
}

/// Gives the table a new file with its rows under another key. Their row ids are new: every other index has to be built again.
pub fn rekey(rel: pg_sys::Relation, current: KeyCodec, target: KeyCodec) -> Result<Rekeyed> {
    // SAFETY: both relations are open until the end of this function.
    unsafe {
        // Triggers that are still to come name rows by their ids. (PostgreSQL looks at the table that ALTER TABLE names alone.)
        if pg_sys::AfterTriggerPendingOnRel((*rel).rd_id) {
            let name = error::relation_name(rel);
            let what = format!("cannot change the key of table \"{name}\" because it has pending trigger events");
            error::raise(PgSqlErrorCode::ERRCODE_OBJECT_IN_USE, what, None);
        }
        ssi::rekey(rel);
        let old = file_copy::OldFile::leave(rel);
        let (relid, file) = ((*rel).rd_id, catalog::file_of(rel));
        info::note_format(relid, file, target);
        recent::forget();
        let from = Open::with(old.rel(), Info::with_key(old.rel(), current));
        let to = Open::new(rel);
        let slot = pg_sys::MakeSingleTupleTableSlot((*rel).rd_att, &slot::SLOT_OPS);
        let oldest = xact::oldest_visible(rel);
        let versions = from.tree.next_row_id().0;
        let mut copying = Copying {
            from: &from,
            to: &to,
            slot,
            oldest,
            told_apart_below: xact::oldest_snapshot_here(),
            numbers: None,
            copies: Copies::new(&to, oldest),
            hashes: Vec::with_capacity(MOST_STRIPED),
            live: 0,
        };
        copying.copy_superseded(versions)?;
        if !copying.copy_live()? {
            return Ok(Rekeyed::Duplicate(slot));
        }
        let live = copying.live;
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        // What stays behind is seen by no snapshot here, but maybe by some on standbys; and those may not see yet what is written as
        // frozen.
        from.tree.tell_superseded(Writer(oldest))?;
        Ok(Rekeyed::Done { rows: live as f64 })
    }
}

struct Copying<'a> {
    from: &'a Open,
    to: &'a Open,
    slot: *mut pg_sys::TupleTableSlot,
    /// Every snapshot sees what writers below this one have committed.
    oldest: u64,
    /// Whose subtransactions writers below this one are is not known: each is taken for a transaction of its own. No snapshot of this
    /// server can tell, for it sees them all.
    told_apart_below: u64,
    /// Without a new key: numbers for the rows of which older versions were copied. The row id of the newest is added.
    numbers: Option<u64>,
    copies: Copies<'a>,
    /// Of the keys that wait to be appended.
    hashes: Vec<u64>,
    live: u64,
}

impl Copying<'_> {
    /// Copies what older snapshots may see, in the order in which it was superseded.
    fn copy_superseded(&mut self, versions: u64) -> Result<()> {
        if self.from.tree.newest_writer().is_none_or(|newest| newest.0 < self.oldest) {
            return Ok(());
        }
        let mut row = RowBuf::default();
        match superseding(self.from, self.oldest)? {
            Some(found) => found.into_iter().try_for_each(|id| self.copy_superseded_by(id, versions, &mut row)),
            None => (0..versions).try_for_each(|id| self.copy_superseded_by(RowId(id), versions, &mut row)),
        }
    }

    /// Copies the version that this one superseded.
    fn copy_superseded_by(&mut self, id: RowId, versions: u64, row: &mut RowBuf) -> Result<()> {
        pgrx::check_for_interrupts!();
        let tree = &self.from.tree;
        if !tree.find_row(id, row)? || row.head.writer.0 < self.oldest {
            return Ok(());
        }
        let Some(end) = ending(self.from, row, self.oldest, self.told_apart_below)? else { return Ok(()) };
        if !tree.find_row(end.of, row)? {
            return Ok(());
        }
        let mut draft = self.copies.room();
        draft.key.clear();
        // SAFETY: a slot for the table's rows, filled before it is read.
        unsafe {
            slots::store(self.slot, self.from, row.as_ref());
            if self.to.info.is_keyed() {
                let (values, nulls) = slot::all_attributes(self.slot);
                if self.to.info.codec.key.encode_row(values, nulls, &mut draft.key).is_err() {
                    return Ok(());
                }
            } else {
                let first = *self.numbers.get_or_insert_with(|| take_unkeyed(versions));
                put_unkeyed_number(&mut draft.key, first + end.newest.0);
            }
            self.to.draft_body(self.slot, &mut draft.body);
        }
        let below = newest(self.to, &draft.key)?;
        let version = Head { incarnation: copied_life(&row.head, below.as_ref()), ..row.head };
        let (flags, body) = if end.by.flags.is_tombstone() && !end.by.flags.has(Flags::MOVED) {
            (Flags::TOMBSTONE, Vec::new())
        } else {
            // It went on; where, no snapshot asks that is older than the copy.
            (Flags::TOMBSTONE.with(Flags::MOVED), TO_ANOTHER_PARTITION.to_le_bytes().to_vec())
        };
        let by = Head { flags, incarnation: version.incarnation, ..end.by };
        let tombstone = Draft { key: draft.key.clone(), body };
        // What comes next looks for these.
        self.copies.add(draft, &version);
        self.copies.append()?;
        self.copies.add(tombstone, &by);
        self.copies.append()
    }

    /// Copies the live versions. False: two have the same key.
    fn copy_live(&mut self) -> Result<bool> {
        let any = &raw mut pg_sys::SnapshotAnyData;
        // SAFETY: PostgreSQL's constant snapshot.
        let mut view = unsafe { View::new(self.from.rel, any) };
        let mut cursor = self.from.tree.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward)?;
        let mut row = RowBuf::default();
        // PostgreSQL looks for nulls once it has an index, and that there are no duplicates.
        let mut impossible = None;
        while view.next(self.from, &mut cursor, &mut row)? {
            pgrx::check_for_interrupts!();
            let mut draft = self.copies.room();
            // SAFETY: a slot for the table's rows, filled before it is read.
            let drafted = unsafe {
                slots::store(self.slot, self.from, row.as_ref());
                self.to.try_draft(self.slot, &mut draft)
            };
            if let Err(error) = drafted {
                impossible.get_or_insert(error);
                continue;
            }
            let mut version = row.head;
            if !self.to.info.is_keyed() {
                version.incarnation = self.put_unkeyed_over_older(&version, &mut draft.key)?;
            }
            self.copies.add(draft, &version);
            if self.copies.are_many() && !self.append_live()? {
                return Ok(false);
            }
        }
        let unique = self.append_live()?;
        match impossible {
            Some(error) if unique => self.to.report_key(error),
            _ => Ok(unique),
        }
    }

    /// Appends the live versions that wait. False: one has the key of another, and is in the slot.
    fn append_live(&mut self) -> Result<bool> {
        let waiting = self.copies.waiting();
        self.live += waiting.len() as u64;
        if self.to.info.is_keyed() {
            self.to.tree.prefetch_new(waiting.iter().map(|(draft, _)| draft.key.as_slice()));
            self.hashes.clear();
            for at in 0..waiting.len() {
                let (before, rest) = waiting.split_at_mut(at);
                let Some((draft, head)) = rest.first_mut() else { break };
                let below = newest(self.to, &draft.key)?;
                let hash = key_hash(&draft.key);
                let mut alike = self.hashes.iter().zip(before).filter(|(other, _)| **other == hash);
                if below.is_some_and(|below| !below.flags.is_tombstone())
                    || alike.any(|(_, (earlier, _))| earlier.key == draft.key)
                {
                    let row = RowRef { key: &draft.key, head: *head, body: &draft.body };
                    // SAFETY: a slot for the table's rows.
                    unsafe { slots::store(self.slot, self.to, row) };
                    return Ok(false);
                }
                head.incarnation = copied_life(head, below.as_ref());
                self.hashes.push(hash);
            }
        }
        self.copies.append()?;
        Ok(true)
    }

    /// Makes the key of a live row in a table without one, which older versions of it may have already; returns its incarnation.
    fn put_unkeyed_over_older(&self, version: &Head, key: &mut Vec<u8>) -> Result<u16> {
        if let Some(first) = self.numbers.filter(|_| version.writer.0 >= self.oldest) {
            key.clear();
            put_unkeyed_number(key, first + version.row_id.0);
            let below = newest(self.to, key)?;
            if below.is_some() {
                return Ok(copied_life(version, below.as_ref()));
            }
        }
        key.clear();
        put_unkeyed(key);
        Ok(copied_life(version, None))
    }
}

/// The newest version of a key, but aborted ones.
fn newest(open: &Open, key: &[u8]) -> Result<Option<Head>> {
    let mut newest = None;
    let choose = |head: &Head, hint: &Hint<'_>| match mvcc::standing(head, hint) {
        Standing::Aborted => Verdict::Skip,
        _ => {
            newest = Some(*head);
            Verdict::Take
        }
    };
    open.tree.find_head(key, choose)?;
    Ok(newest)
}

/// Versions that may have superseded others that some snapshot still sees, in their order: all of these, and some more. `None`: they
/// are too many to be kept in memory.
fn superseding(open: &Open, oldest: u64) -> Result<Option<Vec<RowId>>> {
    let most = maintenance::work_memory() / size_of::<RowId>();
    let mut found: Vec<RowId> = Vec::new();
    let mut cursor = open.tree.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward)?;
    let mut row = RowBuf::default();
    // The version shown last. What is shown next stands below it, or it was the last of its key.
    let mut above: Option<Head> = None;
    loop {
        pgrx::check_for_interrupts!();
        let choose = |head: &Head, hint: &Hint<'_>| {
            if mvcc::standing(head, hint) == Standing::Aborted {
                return Verdict::Skip;
            }
            let superseded = |above: &Head| above.row_id > head.row_id && above.writer != head.writer;
            found.extend(above.take().filter(superseded).map(|above| above.row_id));
            if head.writer.0 < oldest || found.len() > most {
                return Verdict::Take;
            }
            above = Some(*head);
            Verdict::Skip
        };
        let more = cursor.next_lazy(&open.tree, choose, &mut row)?;
        if found.len() > most {
            return Ok(None);
        }
        if !more {
            found.sort_unstable();
            return Ok(Some(found));
        }
    }
}

/// How the time of a version ended.
struct Ending {
    /// The version.
    of: RowId,
    /// What its successor came to in the end.
    by: Head,
    /// The newest version of the key.
    newest: RowId,
}

/// The end that `successor` put to the version below it. `None`: it is the first of its key, or of an aborted writer, or its
/// transaction had superseded the version before; or nobody sees any more what was before it.
///
/// What a transaction has written over its own is seen by nobody else: of its versions the last counts. The first is what superseded.
fn ending(open: &Open, successor: &RowBuf, oldest: u64, told_apart_below: u64) -> Result<Option<Ending>> {
    let mut newest = None;
    // The last version of the transaction whose versions are being shown.
    let mut last: Option<Head> = None;
    let (mut come_by, mut end) = (false, None);
    let of_one = |one: &Head, other: &Head| xact::same_transaction(one.writer, other.writer, told_apart_below);
    let choose = |head: &Head, hint: &Hint<'_>| {
        if mvcc::standing(head, hint) == Standing::Aborted {
            return Verdict::Skip;
        }
        let newest = *newest.get_or_insert(head.row_id);
        if head.row_id < successor.head.row_id {
            let by = last.filter(|last| come_by && !of_one(last, head));
            end = by.filter(|_| !head.flags.is_tombstone()).map(|by| Ending { of: head.row_id, by, newest });
            return Verdict::Take;
        }
        if last.is_none_or(|last| !of_one(&last, head)) {
            last = Some(*head);
        }
        come_by |= head.row_id == successor.head.row_id;
        // Everybody sees this one.
        if head.writer.0 < oldest && !head.flags.has(Flags::KILLED) {
            Verdict::Take
        } else {
            Verdict::Skip
        }
    };
    open.tree.find_head(&successor.key, choose)?;
    Ok(end)
}
