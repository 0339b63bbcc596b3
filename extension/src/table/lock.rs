//! Row locks. A lock is on a key, not on a row version: whoever changes the row meets it whatever version he has.
//!
//! They stand in [`crate::pg::row_locks`], for as long as the transaction that took them runs; a writer holds one for the
//! moment of his change. Once a row is changed its new version, in progress, is what others wait for; so a lock that was
//! taken only to change the row (ON CONFLICT DO UPDATE) is given back then, and a large upsert does not fill the table.
//!
//! ```text
//!                    KEY SHARE   SHARE   NO KEY UPDATE   UPDATE
//! KEY SHARE                                              conflict
//! SHARE                                  conflict        conflict
//! NO KEY UPDATE                  conflict conflict       conflict
//! UPDATE             conflict    conflict conflict       conflict
//! ```
//!
//! Who has to wait gets in line first ([`Line`]), so that rows go to those who wait in the order of their coming; then he waits, without
//! the lock, for one of those who are in the way, and looks at the row again. Who meets a lock waits for its transaction to end, also if
//! that gives it back meanwhile. So only those get in line for whom nobody can be waiting. And who has changed the row minds no lock
//! that stands against that: its owner has come since, and will wait for him.
//!
//! Row locks of prepared transactions have to outlive the server: PREPARE TRANSACTION takes them as PostgreSQL's tuple
//! locks as well, and if there were prepared transactions when this server started everybody looks for those too.

use super::{write, Open};
use crate::host::process_local::{ProcessLocal, WithBorrow};
use crate::pg::row_locks::{self, Attempt, Tag};
use crate::pg::{batch, error, xact};
use loosekv_engine::filter::key_hash;
use loosekv_engine::types::{RowBuf, Writer};
use pgrx::pg_sys;
use pgrx::pg_sys::LockTupleMode as Mode;
use pgrx::PgSqlErrorCode;
use std::cell::{Cell, RefCell};

/// A transaction that holds so many row locks in a table locks all of it, if nobody else has locked rows that it could not have.
const MOST_ROWS: usize = 8192;
/// Half of what there is room for: with so many it does so in any case.
const FAR_TOO_MANY: usize = 32768;
/// From [`MOST_ROWS`] on they are counted whenever so many have been added.
const COUNTED_EVERY: usize = 1024;
/// Row locks that a statement may take before it changes the first of their rows: few, for there is room for so many in the table.
pub const MOST_GATHERED: usize = 32;
/// Row locks that PREPARE TRANSACTION takes along.
const MOST_PREPARED: usize = 1000;

struct Kept {
    tag: Tag,
    mode: Mode::Type,
    writer: Writer,
}

/// The locks that this transaction keeps to its end.
static KEPT: ProcessLocal<RefCell<Vec<Kept>>> = ProcessLocal::new(RefCell::new(Vec::new()));
/// The writers in whose name it has locked whole tables.
static WHOLE: ProcessLocal<RefCell<Vec<Writer>>> = ProcessLocal::new(RefCell::new(Vec::new()));

/// So many are told apart of [`GIVEN_BACK`].
const MOST_GIVEN_BACK: usize = 64;
/// Rows whose locks this transaction has given back as they were: others may have met them, and wait for it. All rows, if it is full.
static GIVEN_BACK: ProcessLocal<RefCell<Vec<Tag>>> = ProcessLocal::new(RefCell::new(Vec::new()));

/// Locks to be kept before they are counted again.
static UNCOUNTED: ProcessLocal<Cell<usize>> = ProcessLocal::new(Cell::new(0));

pub struct KeyLock {
    tag: Tag,
    /// The newest version of the row is this transaction's, and stands for a lock in this mode.
    changed: Option<Mode::Type>,
}

/// A place in the line of those who wait for a row: a heavyweight lock, whose queue is the line. Whoever holds it waits for
/// the row itself, without being in anybody's way. It goes with the transaction, should the wait fail.
///
/// Not for whom the others may be waiting: who has the row, in a weaker mode or changed, or had it for a moment, would wait behind
/// them for ever.
pub struct Line {
    mode: Mode::Type,
    exempt: bool,
    lined_up: bool,
}

impl Line {
    /// `own`: the newest version of the row is this transaction's.
    pub fn new(mode: Mode::Type, own: bool) -> Line {
        Line { mode, exempt: own, lined_up: false }
    }

    /// Waits until nobody else is before us.
    pub fn get_in(&mut self, lock: &KeyLock) {
        if self.exempt || self.lined_up || lock.is_held_somehow() || lock.was_held() {
            return;
        }
        batch::before_wait();
        let (tag, mode) = (line_tag(&lock.tag), lock_mode(self.mode));
        // SAFETY: a heavyweight lock; errors and cancels unwind.
        unsafe { pg_sys::LockAcquire(&raw const tag, mode, false, false) };
        self.lined_up = true;
    }

    /// The wait is over.
    pub fn leave(self, lock: &KeyLock) {
        if self.lined_up {
            let (tag, mode) = (line_tag(&lock.tag), lock_mode(self.mode));
            // SAFETY: taken by `get_in` in this transaction.
            unsafe { pg_sys::LockRelease(&raw const tag, mode, false) };
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Got {
    /// To be kept or given back.
    Locked,
    /// The transaction has it from before.
    Held,
    WouldBlock(Blocker),
}

/// Who is in the way of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocker {
    Writer(Writer),
    /// A transaction that was prepared before this server started.
    Prepared(pg_sys::TransactionId),
}

impl KeyLock {
    pub fn on(open: &Open, key: &[u8]) -> KeyLock {
        // SAFETY: a plain variable of this process.
        let database = u32::from(unsafe { pg_sys::MyDatabaseId });
        KeyLock { tag: Tag { database, table: u32::from(open.relid()), key: key_hash(key) }, changed: None }
    }

    /// On a row of which this version has been read.
    pub fn on_row(open: &Open, row: &RowBuf) -> KeyLock {
        let changed = xact::is_mine(row.head.writer).then(|| write::stands_for(&row.head));
        KeyLock { changed, ..KeyLock::on(open, &row.key) }
    }

    /// This transaction has the row or the whole table, in whatever mode.
    fn is_held_somehow(&self) -> bool {
        let (tag, weakest) = (&self.tag, Mode::LockTupleKeyShare);
        row_locks::holds(tag, weakest) || !WHOLE.with_borrow(Vec::is_empty) && row_locks::holds_whole(tag, weakest)
    }

    /// This transaction had the row, and left it as it was.
    fn was_held(&self) -> bool {
        GIVEN_BACK.with_borrow(|rows| rows.len() == MOST_GIVEN_BACK || rows.contains(&self.tag))
    }

    /// Takes the lock, if nobody is in the way.
    pub fn take(&self, open: &Open, mode: Mode::Type) -> Got {
        let me = xact::current_writer();
        if let Some(xid) = self.prepared_holder(mode) {
            return Got::WouldBlock(Blocker::Prepared(xid));
        }
        let mut tidied = false;
        loop {
            let blocker = match row_locks::attempt(self.tag, mode, me, self.changed) {
                Attempt::Taken => return Got::Locked,
                Attempt::Held => return Got::Held,
                Attempt::Blocked(writer) => writer,
                Attempt::Full if !tidied => {
                    row_locks::tidy(&self.tag);
                    tidied = true;
                    continue;
                }
                Attempt::Full => match self.lock_whole(mode, me) {
                    Attempt::Taken | Attempt::Held => continue,
                    Attempt::Blocked(writer) => writer,
                    Attempt::Full => no_room(open),
                },
            };
            if !xact::has_ended(blocker) {
                return Got::WouldBlock(Blocker::Writer(blocker));
            }
            row_locks::forget_writer(&self.tag, blocker);
        }
    }

    /// Waits for who is in the way, without taking the lock: the row may have changed by then, and who went on to wait for that
    /// with the lock in his hands would be in the way of others.
    pub fn wait_for(&self, open: &Open, blocker: Blocker) {
        match blocker {
            Blocker::Writer(writer) => {
                xact::wait_for_writer(open.rel, writer);
                row_locks::forget_writer(&self.tag, writer);
            }
            Blocker::Prepared(xid) => xact::wait_for_xid(open.rel, xid),
        }
    }

    /// Locks the whole table as well, as far as others do not hold rows of it.
    fn lock_whole(&self, mode: Mode::Type, me: Writer) -> Attempt {
        let mut attempt = row_locks::attempt_whole(self.tag, mode, me);
        if !matches!(attempt, Attempt::Taken | Attempt::Held) {
            row_locks::tidy_wholes();
            attempt = row_locks::attempt_whole(self.tag, mode, me);
        }
        if attempt == Attempt::Taken {
            WHOLE.with_borrow_mut(|whole| whole.push(me));
        }
        attempt
    }

    /// A transaction from before this server that was prepared, and has the row. There are only ever fewer of them.
    fn prepared_holder(&self, mode: Mode::Type) -> Option<pg_sys::TransactionId> {
        let may_be = row_locks::may_outlive_a_server();
        may_be.then(|| xact::prepared_holder(&prepared_tag(&self.tag), lock_mode(mode))).flatten()
    }

    /// The lock, taken just now, stays until the row is changed, which is soon: it does not count among the many that a transaction
    /// may keep.
    pub fn keep_until_changed(&self, mode: Mode::Type) {
        let kept = Kept { tag: self.tag, mode, writer: xact::current_writer() };
        KEPT.with_borrow_mut(|all| all.push(kept));
    }

    /// The lock, taken just now, stays until the transaction ends.
    pub fn keep(&self, mode: Mode::Type) {
        self.keep_until_changed(mode);
        let (tag, writer) = (self.tag, xact::current_writer());
        let rows = KEPT.with_borrow_mut(|kept| {
            let uncounted = UNCOUNTED.get();
            if uncounted > 0 || kept.len() < MOST_ROWS {
                UNCOUNTED.set(uncounted.saturating_sub(1));
                return 0;
            }
            UNCOUNTED.set(COUNTED_EVERY);
            // Many weak locks are no reason to lock the whole table in a strong mode.
            kept.iter().filter(|kept| kept.tag.table == tag.table && kept.mode >= mode).count()
        });
        if rows < MOST_ROWS || rows < FAR_TOO_MANY && row_locks::others_hold_rows(&tag, mode) {
            return;
        }
        // Where there is no room for that either it stays with its rows.
        if matches!(self.lock_whole(mode, writer), Attempt::Taken | Attempt::Held) {
            // Locks of this subtransaction, and of its children, which are younger, go when the whole goes at the latest.
            KEPT.with_borrow_mut(|kept| {
                kept.retain(|kept| {
                    let of_it = kept.tag.table == tag.table && kept.writer >= writer;
                    !(of_it && row_locks::give_back_to_whole(kept.tag, kept.mode, kept.writer, mode))
                });
            });
        }
    }

    /// This transaction keeps a lock in this mode, or a stronger one, from before.
    pub fn is_kept(&self, mode: Mode::Type) -> bool {
        let many_or_it = |kept: &Vec<Kept>| {
            kept.len() > MOST_GATHERED || kept.iter().any(|kept| kept.tag == self.tag && kept.mode >= mode)
        };
        let may_be = KEPT.with_borrow(many_or_it) || !WHOLE.with_borrow(Vec::is_empty);
        may_be && (row_locks::holds(&self.tag, mode) || row_locks::holds_whole(&self.tag, mode))
    }

    /// Gives back a lock that was taken just now; the row is as it was.
    pub fn release(&self, mode: Mode::Type) {
        GIVEN_BACK.with_borrow_mut(|rows| {
            if rows.len() < MOST_GIVEN_BACK && !rows.contains(&self.tag) {
                rows.push(self.tag);
            }
        });
        self.release_changed(mode);
    }

    /// The same; the row has a new version of ours.
    pub fn release_changed(&self, mode: Mode::Type) {
        row_locks::give_back(self.tag, mode, xact::current_writer());
    }

    /// The row has a new version of ours, which others will wait for as they would for a lock in this mode: locks taken to
    /// make it are not needed any more.
    pub fn changed(&self, mode: Mode::Type) {
        self.changed_by(mode, xact::current_writer());
    }

    /// The same of a version that carries this writer, who took the locks.
    pub fn changed_by(&self, mode: Mode::Type, writer: Writer) {
        let tag = self.tag;
        let kept = KEPT.with_borrow_mut(|kept| {
            let lately = kept.len().saturating_sub(MOST_GATHERED + 1);
            let is_it = |kept: &Kept| kept.tag == tag && kept.writer == writer && kept.mode <= mode;
            let found = kept.iter().skip(lately).rposition(is_it).map(|at| kept.remove(lately + at));
            found.is_some()
        });
        if kept {
            row_locks::give_back_weaker(tag, mode, writer);
        }
    }
}

pub fn not_available(open: &Open) -> ! {
    error::raise(
        PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE,
        format!("could not obtain lock on row in relation \"{}\"", open.name()),
        None,
    )
}

fn no_room(open: &Open) -> ! {
    error::raise(
        PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
        format!("no room for another row lock in table \"{}\"", open.name()),
        Some("Too many transactions hold too many row locks. Commit earlier, or lock the table with LOCK TABLE."),
    )
}

/// What a row lock of a prepared transaction is called in PostgreSQL's lock table.
fn lock_mode(mode: Mode::Type) -> pg_sys::LOCKMODE {
    let lock = match mode {
        Mode::LockTupleKeyShare => pg_sys::AccessShareLock,
        Mode::LockTupleShare => pg_sys::RowShareLock,
        Mode::LockTupleNoKeyExclusive => pg_sys::ExclusiveLock,
        _ => pg_sys::AccessExclusiveLock,
    };
    lock as pg_sys::LOCKMODE
}

fn prepared_tag(tag: &Tag) -> pg_sys::LOCKTAG {
    heavyweight_tag(tag, tag.key as u16 & !1)
}

/// What the line of those who wait for it is called there.
fn line_tag(tag: &Tag) -> pg_sys::LOCKTAG {
    heavyweight_tag(tag, tag.key as u16 | 1)
}

fn heavyweight_tag(tag: &Tag, field4: u16) -> pg_sys::LOCKTAG {
    pg_sys::LOCKTAG {
        locktag_field1: tag.database,
        locktag_field2: tag.table,
        locktag_field3: (tag.key >> 16) as u32,
        locktag_field4: field4,
        locktag_type: pg_sys::LockTagType::LOCKTAG_TUPLE as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
    }
}

/// PREPARE TRANSACTION: makes the row locks outlive the server.
pub fn before_prepare() {
    let too_many = !WHOLE.with_borrow(Vec::is_empty) || KEPT.with_borrow(Vec::len) > MOST_PREPARED;
    if too_many {
        error::unsupported(
            "cannot PREPARE a transaction that has locked very many rows of loosekv tables",
            "Lock fewer rows, or the table with LOCK TABLE.",
        );
    }
    let locks: Vec<_> =
        KEPT.with_borrow(|kept| kept.iter().map(|kept| (prepared_tag(&kept.tag), lock_mode(kept.mode))).collect());
    for (tag, lock) in locks {
        // SAFETY: an ordinary transaction lock, which goes into the transaction's state file; errors unwind.
        unsafe { pg_sys::LockAcquire(&raw const tag, lock, false, false) };
    }
}

/// A subtransaction is rolled back: what it and its children have locked is free. They took it last, for both lists are in the
/// order of age.
pub fn rolled_back() {
    let live = |writer: &Writer| xact::is_mine(*writer);
    let kept = KEPT.with_borrow_mut(|kept| {
        let first = kept.iter().rposition(|kept| live(&kept.writer)).map_or(0, |last| last + 1);
        kept.split_off(first)
    });
    let whole = WHOLE.with_borrow_mut(|whole| {
        let first = whole.iter().rposition(live).map_or(0, |last| last + 1);
        whole.split_off(first)
    });
    give_back(&kept, &whole);
}

/// The transaction is over. A prepared one keeps its entries: its writers still run.
pub fn end_of_transaction(prepared: bool) {
    GIVEN_BACK.with_borrow_mut(Vec::clear);
    let kept = KEPT.with_borrow_mut(std::mem::take);
    let whole = WHOLE.with_borrow_mut(std::mem::take);
    if !prepared {
        give_back(&kept, &whole);
    }
}

fn give_back(kept: &[Kept], whole: &[Writer]) {
    for kept in kept {
        row_locks::give_back(kept.tag, kept.mode, kept.writer);
    }
    if !whole.is_empty() {
        row_locks::forget_own_wholes(whole);
    }
}
