//! Transactions as the table code sees them: full transaction ids, what became of a writer, waiting for one.

use super::bindings::RecoveryInProgress;
use super::bindings_am::raw;
use super::{batch, error, palloc};
use crate::host::process_local::{ProcessLocal, WithBorrow};
use crate::host::writers;
use loosekv_engine::types::{Fate, Flags, Head, Writer};
use pgrx::pg_sys;
use pgrx::PgSqlErrorCode;
use std::cell::{Cell, RefCell};

/// Writers that this process has looked up lately. A fate is final, and full transaction ids are never used again, so an
/// entry is right for ever.
const REMEMBERED: usize = 256;

static FATES: ProcessLocal<RefCell<[(u64, Fate); REMEMBERED]>> =
    ProcessLocal::new(RefCell::new([(0, Fate::InProgress); REMEMBERED]));
/// A full transaction id near the present, and the start of the transaction that read it.
static NEAR: ProcessLocal<Cell<(i64, u64)>> = ProcessLocal::new(Cell::new((i64::MIN, 0)));

/// The writer that versions of the current (sub)transaction carry; assigns a transaction id if there is none yet.
pub fn current_writer() -> Writer {
    // SAFETY: both need only a running transaction.
    unsafe {
        let assigned = raw::GetCurrentFullTransactionIdIfAny().value;
        if assigned != 0 {
            return Writer(assigned);
        }
        Writer(pg_sys::GetCurrentFullTransactionId().value)
    }
}

/// The transaction id within its epoch, as PostgreSQL's lock and clog functions take it.
pub fn short(writer: Writer) -> pg_sys::TransactionId {
    pg_sys::TransactionId::from(writer.0 as u32)
}

/// The full id of a transaction id that lies within two thousand million of the present.
pub fn full(xid: pg_sys::TransactionId) -> u64 {
    let near = near_present();
    let xid = u32::from(xid);
    let distance = xid.wrapping_sub(near as u32) as i32;
    near.saturating_add_signed(i64::from(distance))
}

/// Whether two writers, who did not abort, are of one transaction. Subtransactions are known from `since` on
/// ([`oldest_snapshot_here`]).
pub fn same_transaction(one: Writer, other: Writer, since: u64) -> bool {
    one == other || is_mine(one) && is_mine(other) || top(one, since) == top(other, since)
}

/// Snapshots of this server's processes see what writers below this one have committed. As far back, and no further, PostgreSQL keeps
/// for sure whose subtransaction a writer is: the horizon may go back behind that when a standby, whose query is older than what has
/// been thrown away, connects again.
pub fn oldest_snapshot_here() -> u64 {
    let mut oldest = u64::MAX;
    // SAFETY: an array in shared memory that is there as long as the server; each field is read at once. No lock is needed: who takes
    // a snapshot now sees whatever has committed.
    unsafe {
        let (first, count) = ((*pg_sys::ProcGlobal).allProcs, (*pg_sys::ProcGlobal).allProcCount as usize);
        for process in (0..count).map(|at| first.add(at)) {
            let of_standby =
                u32::from((&raw const (*process).statusFlags).read_volatile()) & pg_sys::PROC_AFFECTS_ALL_HORIZONS;
            let xmin = (&raw const (*process).xmin).read_volatile();
            if xmin != pg_sys::InvalidTransactionId && of_standby == 0 {
                oldest = oldest.min(full(xmin));
            }
        }
    }
    oldest
}

/// The transaction that a writer belongs to.
fn top(writer: Writer, since: u64) -> Writer {
    let mut at = writer;
    while at.0 >= since {
        // SAFETY: may read a page of the subtransaction log, which is kept for this one; an error unwinds.
        let parent = unsafe { pg_sys::SubTransGetParent(short(at)) };
        if parent == pg_sys::InvalidTransactionId {
            break;
        }
        at = Writer(full(parent));
    }
    at
}

fn near_present() -> u64 {
    // SAFETY: reads process memory only.
    let started = unsafe { raw::GetCurrentTransactionStartTimestamp() };
    let (at, near) = NEAR.get();
    if at == started && near != 0 {
        return near;
    }
    // SAFETY: takes a lock in shared memory for a moment, never raises an error.
    let near = unsafe { raw::ReadNextFullTransactionId() }.value;
    NEAR.set((started, near));
    near
}

/// The first transaction id of this transaction, `u64::MAX` while it has none.
pub fn own_since() -> u64 {
    // SAFETY: reads process memory only.
    match unsafe { raw::GetTopFullTransactionIdIfAny() }.value {
        0 => u64::MAX,
        top => top,
    }
}

/// Whether this is the current transaction, or a subtransaction of it that has not been rolled back.
pub fn is_mine(writer: Writer) -> bool {
    // SAFETY: reads process memory only.
    writer.0 >= own_since() && unsafe { raw::TransactionIdIsCurrentTransactionId(short(writer)) }
}

fn remembered(writer: Writer) -> Option<Fate> {
    let (whose, fate) = FATES.with_borrow(|fates| fates[writer.0 as usize % REMEMBERED]);
    (whose == writer.0).then_some(fate)
}

/// The fate of a writer that is known not to run any more (a snapshot, or the process array, said so).
pub fn final_fate(writer: Writer) -> Fate {
    if let Some(fate) = remembered(writer) {
        return fate;
    }
    // Of it the commit log has never known anything.
    if writers::is_frozen(writer) {
        return Fate::Committed;
    }
    // SAFETY: plain state of the server.
    if unsafe { RecoveryInProgress() } && writers::may_be_forgotten(writer) {
        overtaken();
    }
    // SAFETY: may read a page of the commit log; an error unwinds.
    let committed = unsafe { pg_sys::TransactionIdDidCommit(short(writer)) };
    let fate = if committed { Fate::Committed } else { Fate::Aborted };
    FATES.with_borrow_mut(|fates| fates[writer.0 as usize % REMEMBERED] = (writer.0, fate));
    fate
}

/// A scan on a standby has before it what a table was when its primary had not frozen it yet, and the commit log has been cut since. (On
/// the primary VACUUM leaves what its scans may still ask about.)
#[cold]
fn overtaken() -> ! {
    let what = "canceling statement due to conflict with recovery";
    let hint = "Its table was frozen on the primary meanwhile. In a moment you should be able to repeat your command.";
    error::raise(PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE, what, Some(hint))
}

/// The fate of a writer that is not the current transaction.
pub fn fate_of_other(writer: Writer) -> Fate {
    if let Some(fate) = remembered(writer) {
        return fate;
    }
    // SAFETY: looks into the process array; may read a page of the subtransaction log; an error unwinds.
    if unsafe { pg_sys::TransactionIdIsInProgress(short(writer)) } {
        return Fate::InProgress;
    }
    final_fate(writer)
}

/// PostgreSQL gives out no more transaction ids before a transaction that runs is so many of them old.
const OLDER_THAN_ANY_WHO_RUNS: u64 = 1 << 31;
/// Where it is looked whether a writer is as old as that.
const OLD: u64 = 1 << 30;

/// The writer is not this transaction, and has ended. Of one who has ended long ago the commit log may know nothing any more: it is not
/// asked.
pub fn has_ended(writer: Writer) -> bool {
    if is_mine(writer) {
        return false;
    }
    let is_ancient = || {
        let before = |next: u64, by: u64| writer.0.saturating_add(by) <= next;
        // SAFETY: takes a lock in shared memory for a moment, never raises an error.
        before(near_present(), OLD)
            && before(unsafe { raw::ReadNextFullTransactionId() }.value, OLDER_THAN_ANY_WHO_RUNS)
    };
    // SAFETY: as in `fate_of_other`.
    remembered(writer).is_some() || is_ancient() || !unsafe { pg_sys::TransactionIdIsInProgress(short(writer)) }
}

/// What somebody waits for; it shows in the error context of a cancelled wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Insert,
    Update,
    Delete,
    Lock,
}

/// The token under which a speculative insertion of ours can be waited for. One is enough: the lock's tag has the writer
/// in it too, and a backend makes one speculative insertion at a time. (PostgreSQL's own token is known to the inserting
/// backend only: nothing in a row version has room for it.)
pub const SPECULATIVE_TOKEN: u32 = 0x4c4b_5631;

/// Whether the version is part of a speculative insertion that is neither confirmed nor taken back yet. (The flag alone does not
/// say: a version that had left the memtable when it was confirmed keeps it for ever.)
pub fn is_speculating(head: &Head) -> bool {
    if !head.flags.has(Flags::SPECULATIVE) {
        return false;
    }
    // SAFETY: row versions are looked at within transactions.
    unsafe { !is_free(&speculative_tag(head.writer)) }
}

/// Sleeps until the writer of `head` has ended, or (a speculative insertion) is confirmed or taken back.
pub fn wait_for(rel: pg_sys::Relation, head: &Head, purpose: Purpose) {
    batch::before_wait();
    if is_speculating(head) {
        // SAFETY: waits for a heavyweight lock; errors and cancels unwind.
        unsafe { pg_sys::SpeculativeInsertionWait(short(head.writer), SPECULATIVE_TOKEN) };
        return;
    }
    let mut tid = crate::table::tid::from_row(head.row_id);
    let oper = match purpose {
        Purpose::Insert => pg_sys::XLTW_Oper::XLTW_InsertIndex,
        Purpose::Update => pg_sys::XLTW_Oper::XLTW_Update,
        Purpose::Delete => pg_sys::XLTW_Oper::XLTW_Delete,
        Purpose::Lock => pg_sys::XLTW_Oper::XLTW_Lock,
    };
    // SAFETY: as above; the relation is open.
    unsafe { pg_sys::XactLockTableWait(ends_with(head.writer), rel, &raw mut tid, oper) }
}

/// Sleeps until a writer, who holds a row lock, has ended.
pub fn wait_for_writer(rel: pg_sys::Relation, writer: Writer) {
    wait_for_xid(rel, ends_with(writer));
}

/// Waits until this transaction has ended.
pub fn wait_for_xid(rel: pg_sys::Relation, xid: pg_sys::TransactionId) {
    batch::before_wait();
    let (no_tid, oper) = (std::ptr::null_mut(), pg_sys::XLTW_Oper::XLTW_None);
    // SAFETY: as above; without a TID the wait has no error context.
    unsafe { pg_sys::XactLockTableWait(xid, rel, no_tid, oper) }
}

/// A prepared transaction that holds this lock in a mode that conflicts with the one that is wanted. (Who would take the lock to find
/// out would queue behind those who wait for it, too.)
pub fn prepared_holder(tag: &pg_sys::LOCKTAG, mode: pg_sys::LOCKMODE) -> Option<pg_sys::TransactionId> {
    // SAFETY: reads the lock table; the list is ours, and ends with the count.
    unsafe {
        let mut count = 0;
        let holders = pg_sys::GetLockConflicts(std::ptr::from_ref(tag), mode, &raw mut count);
        let found = std::slice::from_raw_parts(holders, count as usize)
            .iter()
            // Of one that was prepared this is the transaction's id.
            .find(|holder| holder.backendId == pg_sys::InvalidBackendId)
            .map(|holder| pg_sys::TransactionId::from(holder.localTransactionId));
        palloc::free(holders);
        found
    }
}

/// The transaction to wait for until this writer has ended. A subtransaction that was released ends with the one around it, which
/// may be rolled back while the transaction goes on; PostgreSQL, left to itself, waits for the whole transaction.
pub fn ends_with(writer: Writer) -> pg_sys::TransactionId {
    let mut xid = short(writer);
    // SAFETY: look-ups in shared memory; may read a page of the subtransaction log, which has all who still run; errors unwind.
    unsafe {
        while !is_locked(xid) && pg_sys::TransactionIdIsInProgress(short(writer)) {
            match pg_sys::SubTransGetParent(xid) {
                pg_sys::InvalidTransactionId => break,
                parent => xid = parent,
            }
        }
    }
    xid
}

/// Whether somebody holds the lock that a (sub)transaction holds until it is over or released.
///
/// # Safety
/// Within a transaction, and not of this one.
unsafe fn is_locked(xid: pg_sys::TransactionId) -> bool {
    // As SET_LOCKTAG_TRANSACTION sets it.
    let tag = pg_sys::LOCKTAG {
        locktag_field1: u32::from(xid),
        locktag_field2: 0,
        locktag_field3: 0,
        locktag_field4: 0,
        locktag_type: pg_sys::LockTagType::LOCKTAG_TRANSACTION as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
    };
    // SAFETY: by the contract.
    unsafe { !is_free(&tag) }
}

/// Whether nobody holds a lock that others hold exclusively.
///
/// # Safety
/// Within a transaction, which does not hold the lock itself.
unsafe fn is_free(tag: &pg_sys::LOCKTAG) -> bool {
    // SAFETY: a heavyweight lock, taken without waiting and released; errors unwind.
    unsafe {
        let free = pg_sys::LockAcquire(tag, pg_sys::ShareLock as i32, false, true)
            != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL;
        if free {
            pg_sys::LockRelease(tag, pg_sys::ShareLock as i32, false);
        }
        free
    }
}

fn speculative_tag(writer: Writer) -> pg_sys::LOCKTAG {
    // As SET_LOCKTAG_SPECULATIVE_INSERTION sets it.
    pg_sys::LOCKTAG {
        locktag_field1: u32::from(short(writer)),
        locktag_field2: SPECULATIVE_TOKEN,
        locktag_field3: 0,
        locktag_field4: 0,
        locktag_type: pg_sys::LockTagType::LOCKTAG_SPECULATIVE_TOKEN as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
    }
}

/// Others that meet the speculative version wait until [`speculation_ends`].
pub fn speculation_begins(writer: Writer) {
    let tag = speculative_tag(writer);
    // SAFETY: an ordinary transaction lock; errors unwind.
    unsafe { pg_sys::LockAcquire(&raw const tag, pg_sys::ExclusiveLock as i32, false, false) };
}

pub fn speculation_ends(writer: Writer) {
    let tag = speculative_tag(writer);
    // SAFETY: taken by speculation_begins in this transaction.
    unsafe { pg_sys::LockRelease(&raw const tag, pg_sys::ExclusiveLock as i32, false) };
}

/// Every transaction below this one has ended, for every snapshot on this table that there is or will be.
pub fn oldest_visible(rel: pg_sys::Relation) -> u64 {
    // SAFETY: the relation is open; looks into the process array.
    full(unsafe { pg_sys::GetOldestNonRemovableTransactionId(rel) })
}
