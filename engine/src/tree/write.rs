//! Appending row versions.
//!
//! ```text
//! room in the memtable -> rotation latch (shared) -> key stripes -> nothing newer than observed?
//!                                             -> row ids -> row log, and linked into the memtable -> latches released
//! ```
//!
//! Everything that can fail comes before the append. Row ids are given out under the stripe, so that version order is
//! row-id order (I2 follows, for a rotation waits for all appenders).

use crate::error::{Consumer, Error, Result};
use crate::filter::key_hash;
use crate::host::Host;
use crate::mutation::{on, Mutation::I2ExpectationIgnored, Mutation::I2LaterRunsIgnored};
use crate::row::encode_record;
use crate::tree::count::more_by;
use crate::tree::read::Pages;
use crate::tree::shared::{Shared, STRIPES};
use crate::tree::version::{Edit, Generation, SuperVersion};
use crate::tree::{Appended, NewRow, Observed, Tree};
use crate::types::{Head, L0Id, RowId, RowRef, MAX_KEY};
use loosekv_shm::RawLatch;
use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;

/// Rows with expectations that one [`Tree::append`] checks and appends. More of them are not looked at.
pub const MOST_STRIPED: usize = 64;
/// Memtables that one append may fill before it gives up.
const MOST_ROTATIONS: usize = 8;
/// How often who finds the disk full waits a little for a merge that is at work.
const MOST_WAITS: usize = 1000;

/// A memtable is full, too, when the row log has so many times its size of rows: all of that is read after a crash, and written at once
/// by a flush. Rows have to be wide for it. The same for bodies in the value log, if they are not few: those that nobody sees any more
/// stay there until a flush has found that out.
const LOGGED_BY_SIZE: u64 = 16;
const MANY_APART: u64 = 64 << 20;

/// Bytes of records whose memory is kept from call to call.
const MOST_KEPT: usize = 1 << 20;

thread_local! {
    /// The records being appended, kept from call to call.
    static RECORDS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<H: Host> Tree<'_, H> {
    /// Appends rows in order, all or (see [`Appended`]) the first few of them. Rows without an expectation are appended
    /// as one unit of the row log.
    pub fn append(&self, rows: &[NewRow<'_>]) -> Result<Appended> {
        for row in rows {
            if row.key.is_empty() || row.key.len() > MAX_KEY {
                return Err(Error::Invalid(format!("a key of {} bytes (1 to {MAX_KEY} are possible)", row.key.len())));
            }
        }
        let rows = match rows.iter().any(|r| r.expect.is_some()) {
            true => rows.get(..MOST_STRIPED).unwrap_or(rows),
            false => rows,
        };
        let large = rows.iter().any(|row| self.is_too_long(row));
        let try_once = || if large { self.append_large(rows) } else { self.append_rows(rows) };
        let mut flushes = 0..MOST_ROTATIONS;
        loop {
            match try_once() {
                Err(Error::NoSpace(_)) if flushes.next().is_some() && self.flush_the_reserve()? => {}
                Err(Error::NoSpace(_)) => break,
                appended => return appended,
            }
        }
        // A merge has some pages only for as long as it takes.
        let mut waits = 0..MOST_WAITS;
        loop {
            let goes_on = waits.next().is_some() && self.host.wait_for_merge(self)?;
            match try_once() {
                Err(Error::NoSpace(_)) if goes_on => {}
                appended => return appended,
            }
        }
    }

    /// Appends rows whose records fit the row log.
    pub(super) fn append_rows(&self, rows: &[NewRow<'_>]) -> Result<Appended> {
        if self.shared.overdue.load(Relaxed) {
            self.flush_overdue()?;
        }
        RECORDS.with_borrow_mut(|records| {
            if records.capacity() > MOST_KEPT {
                *records = Vec::new();
            }
            for _ in 0..MOST_ROTATIONS {
                if let Some(appended) = self.try_append(rows, records)? {
                    return Ok(appended);
                }
                self.rotate()?;
            }
            Err(self.shared.full(Consumer::Memtable))
        })
    }

    /// Tells that these keys are about to be appended: much of what that waits for is fetched beforehand.
    pub fn prefetch<'k>(&self, keys: impl Iterator<Item = &'k [u8]> + Clone) {
        self.pin().active().table.prefetch(keys);
    }

    /// As [`Tree::prefetch`], for keys that are about to be looked up before, of which most are new.
    pub fn prefetch_new<'k>(&self, keys: impl Iterator<Item = &'k [u8]> + Clone) {
        let view = self.pin();
        view.active().table.prefetch(keys.clone());
        view.frozen.iter().for_each(|generation| generation.table.prefetch(keys.clone()));
        self.shared.index.touch(keys.clone());
        // A search of the runs begins with that of which the index knows nothing, and fetches what it wants of the others itself.
        if let Some(desc) = view.runs.get(self.shared.first_unindexed(&view)) {
            let (run, pages) = (desc.run(), Pages(&self.host));
            keys.for_each(|key| run.touch_filter(&pages, key_hash(key)));
        }
    }

    /// Whether the newest version of the key is still the one that was observed. False also when only another look-up can
    /// tell.
    pub fn is_as_observed(&self, key: &[u8], observed: Observed) -> bool {
        let view = self.pin();
        let newest = view.active().table.newest(key).map(|node| node.row_id());
        is_as_observed(&view, newest, key, observed) == Some(true)
    }

    /// What was observed of the key, as if it had been observed now, if its newest version is still the same. `None` also when
    /// only another look-up can tell.
    pub fn renew(&self, key: &[u8], observed: Observed) -> Option<Observed> {
        let view = self.pin();
        let newest = view.active().table.newest(key).map(|node| node.row_id());
        let holds = is_as_observed(&view, newest, key, observed).unwrap_or_else(|| {
            let newest = self.newest_flush(&view, key);
            newest.is_some_and(|newest| newest <= observed.flushed || on(I2LaterRunsIgnored))
        });
        holds.then(|| Observed::new(&view, observed.newest))
    }

    /// `None`: the memtable is full.
    fn try_append(&self, rows: &[NewRow<'_>], records: &mut Vec<u8>) -> Result<Option<Appended>> {
        let _rotation = self.shared.rotation.read();
        let view = self.pin();
        let most = self.shared.options.memtable_bytes().saturating_mul(LOGGED_BY_SIZE);
        let Generation { logged, apart, .. } = &**view.active();
        if logged.load(Relaxed) > most || apart.load(Relaxed) > most.max(MANY_APART) {
            return Ok(None);
        }
        let _stripes = Stripes::lock(self.shared, rows);
        let active = &view.active().table;
        let holds = |row: &NewRow<'_>| {
            let newest = || active.newest(row.key).map(|node| node.row_id());
            row.expect.is_none_or(|expect| is_as_observed(&view, newest(), row.key, expect) == Some(true))
        };
        let count = match rows {
            [row] => usize::from(holds(row)),
            _ => {
                let mut earlier = Earlier::default();
                let mut fits = |at, row| holds(row) && earlier.allow(rows, at, row);
                rows.iter().enumerate().take_while(|(at, row)| fits(*at, row)).count()
            }
        };
        self.append_checked(&view, rows.get(..count).unwrap_or_default(), records)
    }

    /// Appends rows whose expectations hold, for their stripes are held.
    fn append_checked(
        &self,
        view: &SuperVersion,
        rows: &[NewRow<'_>],
        records: &mut Vec<u8>,
    ) -> Result<Option<Appended>> {
        if rows.is_empty() {
            return Ok(Some(Appended { written: 0, first: RowId(0) }));
        }
        let first = RowId(self.shared.next_row.fetch_add(rows.len() as u64, Relaxed));
        if first.0 + rows.len() as u64 > RowId::MAX.0 {
            return Err(Error::NoSpace("row ids are used up: rewrite the table (VACUUM FULL)".into()));
        }
        let written = match rows {
            [row] => {
                let head = head_of(row, first, 0);
                let Some(room) = view.active().table.room(row.key.len(), &head) else { return Ok(None) };
                let splice = view.active().table.probe_for(row.key, &room);
                records.clear();
                encode_record(&RowRef { key: row.key, head, body: row.body }, records);
                let mut room = Some(room);
                let appended = self.host.append(self, view.active().table.generation(), &[records], &mut |_, addr| {
                    if let Some(room) = room.take() {
                        view.active().table.link(&splice, room, row.key, &head, addr);
                    }
                });
                if appended.is_err() {
                    // Else those who are refused again and again use the memtable up.
                    room.into_iter().for_each(|room| view.active().table.give_back(room));
                }
                appended?;
                1
            }
            _ => match self.append_many(view, rows, first, records)? {
                0 => return Ok(None),
                written => written,
            },
        };
        let rows = rows.get(..written).unwrap_or_default();
        self.shared.barren.written(rows.iter().filter(|row| !row.flags.is_tombstone()).map(|row| row.key));
        let bytes: usize = rows.iter().map(|r| r.key.len() + r.body.len()).sum();
        let last_writer = rows.iter().map(|r| r.writer.0).max().unwrap_or(0);
        view.active().logged.fetch_add(bytes as u64, Relaxed);
        if let Some(balance) = &view.active().balance {
            balance.fetch_add(rows.iter().map(more_by).sum(), Relaxed);
        }
        if self.shared.last_writer.load(Relaxed) < last_writer {
            self.shared.last_writer.fetch_max(last_writer, Relaxed);
        }
        self.shared.counters.rows_written.fetch_add(rows.len() as u64, Relaxed);
        self.shared.counters.bytes_written.fetch_add(bytes as u64, Relaxed);
        let replaced = rows.iter().filter(|row| row.expect.is_some_and(|expect| expect.newest.is_some())).count();
        if replaced > 0 {
            self.shared.counters.rows_replaced.fetch_add(replaced as u64, Relaxed);
        }
        let blind = rows.iter().filter(|row| row.expect.is_none()).count();
        if blind > 0 {
            self.shared.counters.rows_blind.fetch_add(blind as u64, Relaxed);
        }
        Ok(Some(Appended { written, first }))
    }

    /// How many of the rows there was room for; 0: the memtable is full. Those without an expectation are appended together or not at all.
    fn append_many(
        &self,
        view: &SuperVersion,
        rows: &[NewRow<'_>],
        first: RowId,
        records: &mut Vec<u8>,
    ) -> Result<usize> {
        let active = &view.active().table;
        let mut rooms = Vec::with_capacity(rows.len());
        for (at, row) in rows.iter().enumerate() {
            match active.room(row.key.len(), &head_of(row, first, at)) {
                Some(room) => rooms.push(Some(room)),
                None if row.expect.is_some() => break,
                None => {
                    // The last one first, or it would be the only one that can be had again.
                    rooms.into_iter().flatten().rev().for_each(|room| active.give_back(room));
                    return Ok(0);
                }
            }
        }
        let rows = rows.get(..rooms.len()).unwrap_or_default();
        if rows.is_empty() {
            return Ok(0);
        }
        let wanted = rows.iter().zip(&rooms).filter_map(|(row, room)| Some((row.key, room.as_ref()?)));
        let splices = active.probe_all(wanted);
        records.clear();
        let mut ends = Vec::with_capacity(rows.len());
        for (at, row) in rows.iter().enumerate() {
            encode_record(&RowRef { key: row.key, head: head_of(row, first, at), body: row.body }, records);
            ends.push(records.len());
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let pieces: Vec<&[u8]> =
            starts.zip(&ends).map(|(from, to)| records.get(from..*to).unwrap_or_default()).collect();
        let appended = self.host.append(self, active.generation(), &pieces, &mut |at, addr| {
            if let (Some(row), Some(splice), Some(room)) =
                (rows.get(at), splices.get(at), rooms.get_mut(at).and_then(Option::take))
            {
                active.link(splice, room, row.key, &head_of(row, first, at), addr);
            }
        });
        if appended.is_err() {
            rooms.into_iter().flatten().rev().for_each(|room| active.give_back(room));
        }
        appended?;
        Ok(rows.len())
    }

    /// Whoever loads a table freezes the memtable that was written to before. Where tables leave memory before somebody has flushed
    /// them, one after the other would wait for its flush, each with memory and log pages of its own, until the table could not be
    /// loaded any more: so whoever writes flushes one. Nor does anybody come to merge what they have flushed: runs of a row or two.
    #[cold]
    fn flush_overdue(&self) -> Result<()> {
        if self.shared.note_overdue() {
            self.host.make_room(self)?;
        }
        self.host.merge_piled_up(self)
    }

    /// Freezes the active memtable, unless it is empty. (One that is empty and used up, by those who wanted too much, makes way for
    /// another.)
    pub fn rotate(&self) -> Result<()> {
        let full = self.pin().active().table.generation();
        self.rotate_from(full)
    }

    /// Freezes the memtable of this generation, unless another has done so already.
    pub(super) fn rotate_from(&self, full: L0Id) -> Result<()> {
        let frozen = self.pin().frozen.len();
        if frozen >= self.shared.options.max_frozen() as usize {
            self.shared.counters.stalls.fetch_add(1, Relaxed);
            self.host.make_room(self)?;
        }
        {
            let _rotation = self.shared.rotation.write();
            let view = self.pin();
            let table = &view.active().table;
            if table.generation() != full || (table.is_empty() && !table.is_used_up()) {
                return Ok(());
            }
            let next = self.shared.generation(L0Id(full.0 + 1))?;
            self.shared.install(|current| {
                let mut frozen = Vec::with_capacity(current.frozen.len() + 1);
                frozen.extend(Some(current.active()).filter(|active| !active.table.is_empty()).cloned());
                frozen.extend(current.frozen.iter().cloned());
                let Edit { runs, flushed, indexed_from, .. } = current.edit();
                SuperVersion::new(current.number + 1, Edit { active: next, frozen, runs, flushed, indexed_from })
            })?;
            self.shared.counters.rotations.fetch_add(1, Relaxed);
        }
        self.host.frozen();
        Ok(())
    }

    /// Clears SPECULATIVE of a version that is still in a memtable: its insertion is confirmed. The log keeps the flag,
    /// which says nothing once the writer has ended.
    pub fn confirm(&self, row: RowId) {
        let _ = self.with_node(row, |node| node.clear_speculative());
    }

    /// First row id not given out yet.
    pub fn next_row_id(&self) -> RowId {
        RowId(self.shared.next_row.load(Relaxed))
    }
}

fn head_of(row: &NewRow<'_>, first: RowId, at: usize) -> Head {
    Head {
        row_id: RowId(first.0 + at as u64),
        writer: row.writer,
        command: row.command,
        flags: row.flags,
        incarnation: row.incarnation,
    }
}

/// Whether the newest version of `key`, of which the active memtable has `newest`, is still the one that was observed. Before
/// an append the key's stripe is held. `None`: it may be in a run that was made since.
fn is_as_observed(view: &SuperVersion, newest: Option<RowId>, key: &[u8], expect: Observed) -> Option<bool> {
    if on(I2ExpectationIgnored) {
        return Some(true);
    }
    if let Some(newest) = newest {
        return Some(expect.newest == Some(newest));
    }
    if view.number == expect.version {
        return Some(true);
    }
    // The active memtable of that time may be frozen now, or in a run.
    match view.frozen.iter().find_map(|g| g.table.versions(key).next().map(|n| n.head().row_id)) {
        Some(newest) => Some(expect.newest == Some(newest)),
        None => (view.flushed == expect.flushed).then_some(true),
    }
}

/// The key stripes of some rows, held exclusively in ascending order.
struct Stripes<'s, H: Host> {
    shared: &'s Shared<H>,
    held: u64,
}

impl<'s, H: Host> Stripes<'s, H> {
    /// Locks the stripes of the rows that have an expectation.
    fn lock(shared: &'s Shared<H>, rows: &[NewRow<'_>]) -> Self {
        let wanted = rows.iter().filter(|r| r.expect.is_some()).fold(0u64, |held, r| held | 1 << stripe_of(r.key));
        let mut stripes = Stripes { shared, held: 0 };
        for at in bits_of(wanted) {
            if let Some(latch) = shared.stripes.get(at) {
                latch.lock_exclusive();
                stripes.held |= 1 << at;
            }
        }
        stripes
    }
}

/// Which of the rows before one may have its key: those of its stripe.
struct Earlier([u64; STRIPES]);

impl Default for Earlier {
    fn default() -> Earlier {
        Earlier([0; STRIPES])
    }
}

impl Earlier {
    /// Whether none of the rows before has the key of this one, if it has an expectation. Where one has, they are not many.
    fn allow(&mut self, rows: &[NewRow<'_>], at: usize, row: &NewRow<'_>) -> bool {
        let (Some(before), Some(bit)) = (self.0.get_mut(stripe_of(row.key)), 1u64.checked_shl(at as u32)) else {
            return row.expect.is_none();
        };
        let mut alike = bits_of(*before).filter_map(|at| rows.get(at));
        let allowed = row.expect.is_none() || alike.all(|earlier| earlier.key != row.key);
        *before |= bit;
        allowed
    }
}

/// The numbers of the bits that are set, ascending.
fn bits_of(bits: u64) -> impl Iterator<Item = usize> {
    let rest = |bits: &u64| Some(bits & bits.wrapping_sub(1));
    std::iter::successors(Some(bits), rest).take_while(|bits| *bits != 0).map(|bits| bits.trailing_zeros() as usize)
}

impl<H: Host> Drop for Stripes<'_, H> {
    fn drop(&mut self) {
        for latch in bits_of(self.held).filter_map(|at| self.shared.stripes.get(at)) {
            // SAFETY: locked above, and unlocked nowhere else.
            unsafe { latch.unlock_exclusive() };
        }
    }
}

fn stripe_of(key: &[u8]) -> usize {
    let sum = key.iter().fold(0x9e37_79b9u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    (sum >> 8) as usize % STRIPES
}
