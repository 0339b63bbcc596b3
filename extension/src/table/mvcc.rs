//! Which version of a key a snapshot sees.
//!
//! The engine shows the versions of a key newest first; a [`View`] says which one to take. That is all of MVCC here: a
//! version carries its writer and the command within it, whatever stands above it in the key's order supersedes it, and a
//! tombstone is a version like any other. So there is no xmax, no combo command id, no chain to follow.
//!
//! A tombstone with KILLED takes a speculative insertion back, which was made where nothing lived. To everybody but MVCC
//! snapshots it says "the key is absent" whoever wrote it, and whatever became of him: nobody need wait for its writer.

use super::{last_look, recent, tid, unread, write, Open};
use crate::host::{writers, PgHost};
use crate::pg::xact::{self, SPECULATIVE_TOKEN};
use crate::pg::{batch, ssi};
use loosekv_engine::error::Result;
use loosekv_engine::tree::{Cursor, Found, Hint, Looked, Observed, Placed};
use loosekv_engine::types::{Fate, Flags, Head, RowBuf, RowId, Verdict, Writer};
use pgrx::pg_sys;

/// How a version's writer stands to the current transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    Mine,
    Committed,
    InProgress,
    Aborted,
}

pub fn standing(head: &Head, hint: &Hint<'_>) -> Standing {
    if head.flags.has(Flags::KILLED) {
        return Standing::Committed;
    }
    match hint.get() {
        Some(Fate::Aborted) => return Standing::Aborted,
        Some(Fate::Committed | Fate::VisibleToAll) => return Standing::Committed,
        Some(Fate::InProgress) | None => {}
    }
    if xact::is_mine(head.writer) {
        return Standing::Mine;
    }
    match xact::fate_of_other(head.writer) {
        Fate::InProgress => Standing::InProgress,
        Fate::Aborted => {
            hint.set(Fate::Aborted);
            Standing::Aborted
        }
        Fate::Committed | Fate::VisibleToAll => {
            hint.set(Fate::Committed);
            Standing::Committed
        }
    }
}

/// The newest version of a key whose writer did not abort.
#[derive(Clone, Copy, Debug)]
pub struct Newest {
    pub head: Head,
    pub standing: Standing,
}

impl Newest {
    /// A version that an MVCC snapshot sees.
    pub fn seen(head: Head) -> Newest {
        let standing = if xact::is_mine(head.writer) { Standing::Mine } else { Standing::Committed };
        Newest { head, standing }
    }

    /// The key is absent, for a writer that waits for nobody.
    pub fn is_absent(&self) -> bool {
        self.head.flags.is_tombstone()
    }
}

/// Finds it, and says what was observed for the append that may follow.
pub fn newest_head(open: &Open, key: &[u8]) -> Result<(Option<Newest>, Observed)> {
    if let Some(known) = last_look::recall(open, key) {
        return Ok(known);
    }
    let mut newest = None;
    let found = open.tree.find_head(key, choose_newest(&mut newest))?;
    last_look::note(open, key, newest, found.observed);
    Ok((newest, found.observed))
}

/// Finds it, copies it to `out`, and says what was observed for the append that may follow.
pub fn newest(open: &Open, key: &[u8], out: &mut RowBuf) -> Result<(Option<Newest>, Observed)> {
    let mut newest = None;
    let found = open.tree.find(key, choose_newest(&mut newest), out)?;
    Ok((newest, found.observed))
}

fn choose_newest(newest: &mut Option<Newest>) -> impl FnMut(&Head, &Hint<'_>) -> Verdict + '_ {
    |head, hint| match standing(head, hint) {
        Standing::Aborted => Verdict::Skip,
        standing => {
            *newest = Some(Newest { head: *head, standing });
            Verdict::Take
        }
    }
}

/// The newest version of a key that is there to stay, as far as this transaction is concerned.
pub fn newest_settled(open: &Open, key: &[u8], out: &mut RowBuf) -> Result<Option<Newest>> {
    let mut newest = None;
    let choose = |head: &Head, hint: &Hint<'_>| match standing(head, hint) {
        Standing::Aborted | Standing::InProgress => Verdict::Skip,
        standing => {
            newest = Some(Newest { head: *head, standing });
            Verdict::Take
        }
    };
    open.tree.find(key, choose, out)?;
    Ok(newest)
}

/// The newest version of the same life of the key as `row`, whose writer did not abort.
pub fn newest_of_life(open: &Open, row: &RowBuf, out: &mut RowBuf) -> Result<Option<Newest>> {
    let mut newest = None;
    let choose = |head: &Head, hint: &Hint<'_>| {
        if head.row_id < row.head.row_id || !write::same_life(head, &row.head) {
            return Verdict::Skip;
        }
        match standing(head, hint) {
            Standing::Aborted => Verdict::Skip,
            standing => {
                newest = Some(Newest { head: *head, standing });
                Verdict::Take
            }
        }
    };
    open.tree.find(&row.key, choose, out)?;
    Ok(newest)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// What was committed when the snapshot was taken, and what the transaction itself did before this command.
    Mvcc,
    /// What is committed now, and all that the transaction itself did.
    Own,
    /// Every row version there is.
    Any,
    /// As `Own`, and what others are doing right now, with a note of who they are.
    Dirty,
    /// Whatever somebody might still see; an answer may be generous.
    NotVacuumable,
}

/// A snapshot, ready to look at versions.
pub struct View {
    kind: Kind,
    snapshot: pg_sys::Snapshot,
    xmin: u64,
    xmax: u64,
    own_since: u64,
    /// The snapshot's list of running transactions is not the whole truth: ask PostgreSQL.
    incomplete: bool,
    /// SERIALIZABLE: remember the writers of versions that were passed over.
    watch: bool,
    passed: Vec<Writer>,
    /// Dirty reads: a version in progress by another was passed over.
    busy: Option<Head>,
}

impl View {
    /// # Safety
    /// `snapshot` is valid, and stays so while the view is used.
    pub unsafe fn new(rel: pg_sys::Relation, snapshot: pg_sys::Snapshot) -> View {
        // SAFETY: by the contract.
        let s = unsafe { &*snapshot };
        let kind = match s.snapshot_type {
            pg_sys::SnapshotType::SNAPSHOT_MVCC => Kind::Mvcc,
            pg_sys::SnapshotType::SNAPSHOT_SELF | pg_sys::SnapshotType::SNAPSHOT_TOAST => Kind::Own,
            pg_sys::SnapshotType::SNAPSHOT_ANY => Kind::Any,
            pg_sys::SnapshotType::SNAPSHOT_DIRTY => Kind::Dirty,
            pg_sys::SnapshotType::SNAPSHOT_NON_VACUUMABLE => Kind::NotVacuumable,
            other => crate::pg::error::unsupported(
                format!("snapshots of type {other} cannot read loosekv tables"),
                "Logical decoding of loosekv tables is not supported.",
            ),
        };
        let mut view = View {
            kind,
            snapshot,
            xmin: 0,
            xmax: 0,
            own_since: u64::MAX,
            incomplete: s.suboverflowed || s.takenDuringRecovery,
            watch: false,
            passed: Vec::new(),
            busy: None,
        };
        if kind == Kind::Mvcc {
            view.xmin = xact::full(s.xmin);
            view.xmax = xact::full(s.xmax);
            view.own_since = xact::own_since();
            view.watch = ssi::watches(rel, snapshot);
        }
        view
    }

    pub fn is_mvcc(&self) -> bool {
        self.kind == Kind::Mvcc
    }

    /// Whether rows may be looked at before they are asked for: what the snapshot sees does not change, and nobody has to know what it
    /// was asked.
    pub fn may_look_ahead(&self) -> bool {
        self.is_mvcc() && !ssi::serializable()
    }

    pub fn is_dirty(&self) -> bool {
        self.kind == Kind::Dirty
    }

    fn verdict(&mut self, head: &Head, hint: &Hint<'_>) -> Verdict {
        let take = match self.kind {
            Kind::Mvcc => self.mvcc_sees(head, hint),
            Kind::Own => matches!(standing(head, hint), Standing::Mine | Standing::Committed),
            Kind::Any | Kind::NotVacuumable => standing(head, hint) != Standing::Aborted,
            Kind::Dirty => match standing(head, hint) {
                Standing::Mine | Standing::Committed => true,
                Standing::Aborted => false,
                Standing::InProgress => {
                    self.busy.get_or_insert(*head);
                    false
                }
            },
        };
        if take {
            Verdict::Take
        } else {
            Verdict::Skip
        }
    }

    fn mvcc_sees(&mut self, head: &Head, hint: &Hint<'_>) -> bool {
        let known = hint.get();
        match known {
            Some(Fate::Aborted) => return false,
            Some(Fate::VisibleToAll) => return true,
            _ => {}
        }
        let writer = head.writer;
        if writer.0 >= self.own_since && xact::is_mine(writer) {
            // SAFETY: the snapshot is valid (contract of `new`); it may move on to a later command, so it is asked each time.
            return head.command < unsafe { (*self.snapshot).curcid };
        }
        if writer.0 >= self.xmin && self.was_running(writer) {
            if self.watch {
                self.passed.push(writer);
            }
            return false;
        }
        if known == Some(Fate::Committed) {
            return true;
        }
        let fate = xact::final_fate(writer);
        hint.set(fate);
        fate == Fate::Committed
    }

    /// XidInMVCCSnapshot, for a writer that is not below the snapshot's xmin.
    fn was_running(&self, writer: Writer) -> bool {
        if writer.0 >= self.xmax {
            return true;
        }
        if self.incomplete {
            // SAFETY: the snapshot is valid; may read the subtransaction log, an error unwinds.
            return unsafe { pg_sys::XidInMVCCSnapshot(xact::short(writer), self.snapshot) };
        }
        let xid = xact::short(writer);
        // SAFETY: a snapshot's arrays have as many entries as it says.
        let (running, subs) = unsafe {
            let s = &*self.snapshot;
            (slice_of(s.xip, s.xcnt as usize), slice_of(s.subxip, s.subxcnt.max(0) as usize))
        };
        running.contains(&xid) || subs.contains(&xid)
    }

    /// The version of `key` that the snapshot sees. False: none.
    pub fn find(&mut self, open: &Open, key: &[u8], out: &mut RowBuf) -> Result<bool> {
        self.busy = None;
        let found = open.tree.find(key, |head, hint| self.verdict(head, hint), out)?;
        self.judge(open, key, found, out)
    }

    /// Whether what was found is seen; tells those who have to know.
    fn judge(&mut self, open: &Open, key: &[u8], found: Found, out: &mut RowBuf) -> Result<bool> {
        self.check_passed(open.rel);
        if recent::is_noting() && matches!(self.kind, Kind::Mvcc | Kind::Dirty) && self.busy.is_none() {
            let newest = found.taken.then(|| Newest::seen(out.head));
            last_look::note(open, key, newest, found.observed);
        }
        let sees = found.taken && !out.head.flags.is_tombstone();
        if self.kind != Kind::Dirty {
            return Ok(sees);
        }
        match self.busy {
            None => {
                self.tell_dirty(None, None);
                Ok(sees)
            }
            Some(busy) if sees => {
                self.tell_dirty(None, Some(busy));
                Ok(true)
            }
            Some(busy) if busy.flags.is_tombstone() => {
                self.tell_dirty(None, None);
                Ok(false)
            }
            Some(busy) => {
                self.tell_dirty(Some(busy), None);
                let take_busy = |head: &Head, _: &Hint<'_>| {
                    if head.row_id == busy.row_id {
                        Verdict::Take
                    } else {
                        Verdict::Skip
                    }
                };
                Ok(open.tree.find(key, take_busy, out)?.taken)
            }
        }
    }

    /// As [`View::find`], for who replaces the row unread: where it need not be read it is not, and `out` is told to stand for it.
    pub fn find_or_leave(&mut self, open: &Open, key: &[u8], out: &mut RowBuf) -> Result<bool> {
        self.busy = None;
        let mut writers = Writer(0);
        let seen_by_all = |writer| {
            writers = writer;
            unread::is_seen_by_all(open, writer)
        };
        let found = open.tree.find_or_leave(key, seen_by_all, |head, hint| self.verdict(head, hint), out)?;
        if found.observed.is_unread() {
            if self.is_dirty() {
                self.tell_dirty(None, None);
            }
            unread::note(open, key, found.observed, writers, out);
            return Ok(true);
        }
        self.judge(open, key, found, out)
    }

    /// The next key of which the snapshot sees a version, copied to `out`.
    pub fn next(&mut self, open: &Open, cursor: &mut Cursor<PgHost>, out: &mut RowBuf) -> Result<bool> {
        let found = self.next_in_place(open, cursor)?;
        if found {
            out.set(&cursor.row());
        }
        Ok(found)
    }

    /// The next key of which the snapshot sees a version; the cursor tells the row.
    pub fn next_in_place(&mut self, open: &Open, cursor: &mut Cursor<PgHost>) -> Result<bool> {
        let dirty = self.kind == Kind::Dirty;
        let mut busy = None;
        let found = if dirty {
            // A range has no second look at a key: whoever is at work on it is shown, and its reader waits for him.
            let choose = |head: &Head, hint: &Hint<'_>| {
                let standing = standing(head, hint);
                busy = Some(*head).filter(|_| standing == Standing::InProgress);
                match standing {
                    Standing::Aborted => Verdict::Skip,
                    Standing::InProgress if head.flags.is_tombstone() => Verdict::Skip,
                    _ => Verdict::Take,
                }
            };
            cursor.next_in_place(&open.tree, Writer(0), choose)?
        } else {
            let sees_below = Writer(if self.kind == Kind::Mvcc { self.xmin } else { 0 });
            cursor.next_in_place(&open.tree, sees_below, |head, hint| self.verdict(head, hint))?
        };
        self.check_passed(open.rel);
        if dirty {
            self.tell_dirty(busy.filter(|_| found), None);
        }
        Ok(found)
    }

    /// Finds the row version with this row id, and how it stands to this snapshot. It is in `out` unless it is gone.
    pub fn look_by_row(&mut self, open: &Open, row: RowId, out: &mut RowBuf, scratch: &mut RowBuf) -> Result<Sight> {
        let mut alone = Sight::Hidden;
        let any = self.kind == Kind::Any;
        self.busy = None;
        let looked = recent::look_at_row(open, row, out, |head, hint| {
            alone = match head.flags.is_tombstone() {
                true => Sight::Hidden,
                false if any => Sight::Seen,
                false => self.look_at_itself(head, hint, None),
            };
        })?;
        match looked {
            Looked::Gone => Ok(Sight::Gone),
            Looked::Alone => {
                self.after_look(open.rel, alone, None);
                Ok(alone)
            }
            Looked::Found => self.look_at(open, out, scratch),
        }
    }

    /// As [`View::look_by_row`] for several rows, for who [may look ahead](View::may_look_ahead). How many were looked at. Of some it is
    /// left to [`View::look_at`] how they stand: `None`.
    pub fn look_by_rows(
        &mut self,
        open: &Open,
        rows: &[Placed],
        out: &mut [RowBuf],
        sights: &mut [Option<Sight>],
    ) -> Result<usize> {
        let mut sights = sights.iter_mut();
        open.tree.look_at_rows(rows, out, |row, looked, hint| {
            let sight = match (looked, hint) {
                (Looked::Gone, _) => Some(Sight::Gone),
                (Looked::Alone, _) if row.head.flags.is_tombstone() => Some(Sight::Hidden),
                (Looked::Alone, Some(hint)) => Some(self.look_at_itself(&row.head, hint, None)),
                _ => None,
            };
            if let Some(place) = sights.next() {
                *place = sight;
            }
        })
    }

    /// How one row version, found by its row id, stands to this snapshot.
    pub fn look_at(&mut self, open: &Open, row: &RowBuf, scratch: &mut RowBuf) -> Result<Sight> {
        if row.head.flags.is_tombstone() {
            return Ok(Sight::Hidden);
        }
        if self.kind == Kind::Any {
            return Ok(Sight::Seen);
        }
        self.busy = None;
        let wanted = row.head.row_id;
        let mut above: Option<Newest> = None;
        let mut sight = Sight::Hidden;
        let choose = |head: &Head, hint: &Hint<'_>| {
            if head.row_id > wanted {
                return self.look_above(head, hint, &mut above);
            }
            if head.row_id == wanted {
                sight = self.look_at_itself(head, hint, above);
            }
            Verdict::Take
        };
        open.tree.find(&row.key, choose, scratch)?;
        if sight != Sight::Seen {
            if let Some(newest) = above {
                if newest.standing == Standing::Committed || newest.standing == Standing::Mine {
                    sight = Sight::Superseded(newest.head);
                }
            }
        }
        self.after_look(open.rel, sight, above);
        Ok(sight)
    }

    /// Tells those who have to know. May raise an error.
    fn after_look(&mut self, rel: pg_sys::Relation, sight: Sight, above: Option<Newest>) {
        self.check_passed(rel);
        if self.kind == Kind::Dirty && sight == Sight::Seen {
            match (self.busy, above) {
                (Some(busy), _) => self.tell_dirty(Some(busy), None),
                (None, Some(newest)) if newest.standing == Standing::InProgress => {
                    self.tell_dirty(None, Some(newest.head));
                }
                _ => self.tell_dirty(None, None),
            }
        }
    }

    fn look_above(&mut self, head: &Head, hint: &Hint<'_>, above: &mut Option<Newest>) -> Verdict {
        if self.kind == Kind::Mvcc {
            if self.mvcc_sees(head, hint) {
                *above = Some(Newest { head: *head, standing: Standing::Committed });
                return Verdict::Take;
            }
            return Verdict::Skip;
        }
        match standing(head, hint) {
            Standing::Aborted => Verdict::Skip,
            Standing::InProgress if self.kind != Kind::Dirty => Verdict::Skip,
            standing => {
                above.get_or_insert(Newest { head: *head, standing });
                if standing == Standing::InProgress {
                    Verdict::Skip
                } else {
                    *above = Some(Newest { head: *head, standing });
                    Verdict::Take
                }
            }
        }
    }

    fn look_at_itself(&mut self, head: &Head, hint: &Hint<'_>, above: Option<Newest>) -> Sight {
        if self.kind == Kind::Mvcc {
            return if self.mvcc_sees(head, hint) { Sight::Seen } else { Sight::Hidden };
        }
        match standing(head, hint) {
            Standing::Aborted => Sight::Dead,
            Standing::InProgress if self.kind == Kind::Own => Sight::Hidden,
            Standing::InProgress => {
                // Superseded by its own writer, or still in the making.
                if above.is_some_and(|newest| newest.head.writer == head.writer) {
                    return Sight::Hidden;
                }
                self.busy = Some(*head);
                Sight::Seen
            }
            Standing::Mine | Standing::Committed => Sight::Seen,
        }
    }

    /// What a dirty snapshot tells its reader: who is inserting, who is deleting.
    fn tell_dirty(&mut self, inserting: Option<Head>, deleting: Option<Head>) {
        if inserting.is_some() || deleting.is_some() {
            // He will wait for them.
            batch::before_wait();
        }
        let xid = |head: Option<Head>| head.map_or(pg_sys::InvalidTransactionId, |h| xact::ends_with(h.writer));
        let (inserting, token) = match inserting {
            Some(head) if xact::is_speculating(&head) => (xact::short(head.writer), SPECULATIVE_TOKEN),
            inserting => (xid(inserting), 0),
        };
        // SAFETY: the snapshot is valid, and dirty snapshots are made for this.
        unsafe {
            (*self.snapshot).xmin = inserting;
            (*self.snapshot).xmax = xid(deleting);
            (*self.snapshot).speculativeToken = token;
        }
    }

    /// SERIALIZABLE: whose versions were passed over? Not to be called from within a choice: it may raise an error.
    fn check_passed(&mut self, rel: pg_sys::Relation) {
        if self.passed.is_empty() {
            return;
        }
        for writer in std::mem::take(&mut self.passed) {
            ssi::passed_over(rel, writer, self.snapshot);
        }
    }
}

/// How a row version stands to a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    Seen,
    /// Not (yet) visible.
    Hidden,
    /// This newer version took its place.
    Superseded(Head),
    /// Nobody will ever see it: its writer aborted.
    Dead,
    /// There is none: a flush or merge has dropped it, for nobody would ever see it again.
    Gone,
}

impl Sight {
    /// Nobody will ever see the row version: index entries that point to it may go. `oldest` is asked only if need be.
    pub fn is_dead_to_all(&self, oldest: impl FnOnce() -> u64) -> bool {
        match self {
            Sight::Seen | Sight::Hidden => false,
            Sight::Dead | Sight::Gone => true,
            Sight::Superseded(by) => by.writer.0 < oldest(),
        }
    }

    /// Whether a row version that is dead to all would be so after a crash, too. What superseded it may have committed
    /// asynchronously: as long as that commit is not on disk, a crash takes it back, and the row version lives again. Whoever
    /// marks something as dead without a WAL record of his own (that would come after the commit) has to ask.
    pub fn outlasts_a_crash(&self, open: &Open) -> Result<bool> {
        let proof = match self {
            Sight::Seen | Sight::Hidden => return Ok(false),
            Sight::Dead => return Ok(true),
            // The drop came after the commit, and the flip that tells of it after both.
            Sight::Gone => open.tree.host.meta_lsn()?,
            Sight::Superseded(by) => match writers::commit_lsn(by.writer) {
                Some(lsn) => lsn,
                None => return Ok(true),
            },
        };
        // SAFETY: looks into shared memory.
        Ok(!unsafe { pg_sys::XLogNeedsFlush(proof) })
    }
}

/// The row version with this TID, if it has one.
pub fn row_of_tid(open: &Open, tid: &pg_sys::ItemPointerData, out: &mut RowBuf) -> Result<bool> {
    row_id_of_tid(tid).map_or(Ok(false), |row| recent::find_row(open, row, out))
}

/// The row id that a TID stands for, if it stands for one.
pub fn row_id_of_tid(tid: &pg_sys::ItemPointerData) -> Option<RowId> {
    tid::to_row(tid).filter(|_| !tid::is_limbo(tid))
}

/// The row that a MOVED tombstone points to. `None`: into another partition, or not known any more.
pub fn moved_to(tombstone: &RowBuf) -> Option<RowId> {
    match <[u8; 8]>::try_from(tombstone.body.as_slice()).map(u64::from_le_bytes) {
        Ok(TO_ANOTHER_PARTITION) | Err(_) => None,
        Ok(row) => Some(RowId(row)),
    }
}

/// Body of a MOVED tombstone whose row went to another table.
pub const TO_ANOTHER_PARTITION: u64 = u64::MAX;

/// # Safety
/// `start` points to `len` values, or `len` is 0.
unsafe fn slice_of<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: by the contract.
    unsafe { std::slice::from_raw_parts(start, len) }
}
