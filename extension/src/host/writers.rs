//! Writers are full transaction ids. What became of one, as of now, and conversions between 64 and 32 bits.

use crate::pg::bindings::{LWLockAcquire, LWLockRelease};
use crate::pg::main_locks::MainLock;
use crate::pg::xact;
use loosekv_engine::host::{Ended, Horizon, Lagging, Standing};
use loosekv_engine::types::{Fate, Head, Writer};
use pgrx::pg_sys;

/// Transaction ids below this one are no transactions: a row of such a writer was frozen when it was written.
const FIRST_NORMAL: u64 = pg_sys::TransactionId::FIRST_NORMAL.into_inner() as u64;

/// Of rows that are frozen when they are written.
pub const FROZEN: Writer = Writer(pg_sys::TransactionId::FROZEN.into_inner() as u64);

/// Whether the row of this writer was frozen when it was written.
pub fn is_frozen(writer: Writer) -> bool {
    writer.0 < FIRST_NORMAL
}

/// The 32 bits that PostgreSQL's own functions take.
#[inline]
pub fn xid(writer: Writer) -> pg_sys::TransactionId {
    pg_sys::TransactionId::from_inner(writer.0 as u32)
}

/// The transaction id that will be given out next. Every running or finished transaction is below it.
pub fn next() -> u64 {
    // SAFETY: guarded; reads shared memory under a lock.
    unsafe { pg_sys::ReadNextFullTransactionId().value }
}

/// The full id of a transaction id that is at most 2^31 older than `next`.
pub fn widen(xid: pg_sys::TransactionId, next: u64) -> Writer {
    let xid = u64::from(xid.into_inner());
    if xid < FIRST_NORMAL {
        return Writer(xid);
    }
    let full = (next & !u64::from(u32::MAX)) | xid;
    // A live id is never above the next one: then it is of the epoch before.
    Writer(if full > next { full.saturating_sub(1 << 32) } else { full })
}

/// The current (sub)transaction, which gets an id if it has none yet.
pub fn current() -> Writer {
    // SAFETY: guarded; an ERROR (in a parallel worker, or ids used up) becomes a panic.
    Writer(unsafe { pg_sys::GetCurrentFullTransactionId().value })
}

/// Whether the writer is this session's transaction or a subtransaction of it that was not rolled back.
#[inline]
pub fn is_current(writer: Writer) -> bool {
    // SAFETY: looks at process-local state and raises nothing.
    writer.0 >= FIRST_NORMAL && unsafe { crate::pg::bindings::TransactionIdIsCurrentTransactionId(xid(writer)) }
}

/// What became of a writer. `oldest`: committed writers below it are visible to all.
pub fn fate(writer: Writer, oldest: Writer) -> Fate {
    if is_frozen(writer) {
        return Fate::VisibleToAll;
    }
    if is_current(writer) {
        return Fate::InProgress;
    }
    // SAFETY: guarded. In progress must be asked first: a transaction leaves the list after its fate is in the log.
    unsafe {
        if pg_sys::TransactionIdIsInProgress(xid(writer)) {
            Fate::InProgress
        } else if !pg_sys::TransactionIdDidCommit(xid(writer)) {
            Fate::Aborted
        } else if writer < oldest {
            Fate::VisibleToAll
        } else {
            Fate::Committed
        }
    }
}

/// Whether the commit log may know nothing of a writer any more. It is cut while this is asked, or a moment later.
pub fn may_be_forgotten(writer: Writer) -> bool {
    // SAFETY: shared memory of the server; the value only grows.
    writer.0 < xact::full(unsafe { (*pg_sys::ShmemVariableCache).oldestClogXid })
}

/// Where the WAL has the commit of a writer who has committed. `None`: it has been on disk for so long that the commit log may know
/// nothing of him any more.
pub fn commit_lsn(writer: Writer) -> Option<pg_sys::XLogRecPtr> {
    let lock = MainLock::XactTruncation.get();
    // SAFETY: guarded. While the lock is held the commit log is not cut; an ERROR releases it.
    unsafe {
        LWLockAcquire(lock, pg_sys::LWLockMode::LW_SHARED);
        let lsn = (!may_be_forgotten(writer)).then(|| pg_sys::TransactionIdGetCommitLSN(xid(writer)));
        LWLockRelease(lock);
        lsn
    }
}

/// No snapshot, now or later, fails to see a committed writer of this table below the result.
///
/// # Safety
/// `rel` is open, or null: then the answer holds for every table of every database.
pub unsafe fn oldest_visible_to_all(rel: pg_sys::Relation) -> Writer {
    // SAFETY: guarded; the caller's word.
    let oldest = unsafe { pg_sys::GetOldestNonRemovableTransactionId(rel) };
    widen(oldest, next())
}

/// Which transactions have ended: those that all see, if `seen` they are below that, and those that do not run.
fn ended(seen: Writer) -> Ended {
    // SAFETY: guarded. The array is of this process; the two locks are taken by the call, shared, and its caller's to release. Nobody
    // merges on a standby, where it would not know of the primary's transactions.
    unsafe {
        let all = &*pg_sys::GetRunningTransactionData();
        let count = (all.xcnt + all.subxcnt) as usize;
        let running = if count == 0 { &[][..] } else { std::slice::from_raw_parts(all.xids, count) };
        LWLockRelease(MainLock::ProcArray.get());
        LWLockRelease(MainLock::XidGen.get());
        let next = next();
        let below = widen(all.oldestRunningXid, next).max(seen);
        // Where some have more subtransactions than there is a place for, it is not known which.
        match all.subxid_status {
            pg_sys::subxids_array_status::SUBXIDS_IN_ARRAY => {
                let running = running.iter().map(|xid| widen(*xid, next)).collect();
                Ended { below, but: widen(all.nextXid, next), running }
            }
            _ => Ended::below(below),
        }
    }
}

/// How far transactions have come, for every table of every database.
pub fn standing() -> Standing {
    // SAFETY: null: the answer holds for all tables.
    let oldest = unsafe { oldest_visible_to_all(std::ptr::null_mut()) };
    Standing { oldest, ended: ended(oldest) }
}

/// The oldest snapshot that standbys have reported (hot_standby_feedback), by their walsenders or their slots.
pub fn standbys() -> Option<Lagging> {
    // SAFETY: settings and shared structures that exist since the server's start. Others' ids are read without a lock, as
    // a hint: one that changes meanwhile is as if it were read a moment before or after.
    let oldest = unsafe {
        if pg_sys::max_wal_senders == 0 {
            return None;
        }
        let (mut slots, mut catalog) = (pg_sys::InvalidTransactionId, pg_sys::InvalidTransactionId);
        pg_sys::ProcArrayGetReplicationSlotXmin(&mut slots, &mut catalog);
        let next = next();
        let all = &*pg_sys::ProcGlobal;
        let processes = (0..all.allProcCount as usize).map(|i| &*all.allProcs.add(i));
        let senders = processes.filter(|proc| u32::from(proc.statusFlags) & pg_sys::PROC_AFFECTS_ALL_HORIZONS != 0);
        // A walsender that has ended leaves everything as it was, until another takes its place.
        let living = senders.filter(|proc| std::ptr::eq(pg_sys::BackendPidGetProc(proc.pid), *proc));
        let reported = living.map(|proc| proc.xmin).chain([slots]);
        reported.filter(|xmin| *xmin != pg_sys::InvalidTransactionId).map(|xmin| widen(xmin, next)).min()
    };
    oldest.map(|oldest| Lagging { oldest, next: Writer(next()) })
}

/// How things stand, for one flush or one merge.
pub struct XidHorizon {
    oldest: Writer,
    /// Rows of one writer tend to stand together.
    last: Option<(Writer, Fate)>,
}

impl XidHorizon {
    /// # Safety
    /// `rel` is open.
    pub unsafe fn now(rel: pg_sys::Relation) -> XidHorizon {
        // SAFETY: the caller's word.
        XidHorizon { oldest: unsafe { oldest_visible_to_all(rel) }, last: None }
    }
}

impl Horizon for XidHorizon {
    fn fate(&mut self, head: &Head) -> Fate {
        match self.last {
            Some((writer, fate)) if writer == head.writer => fate,
            _ => {
                let fate = fate(head.writer, self.oldest);
                if fate != Fate::InProgress {
                    self.last = Some((head.writer, fate));
                }
                fate
            }
        }
    }

    /// The commit log of what is frozen everywhere may be gone.
    fn known_fate(&mut self, head: &Head) -> Option<Fate> {
        (!may_be_forgotten(head.writer)).then(|| self.fate(head))
    }

    fn oldest(&self) -> Writer {
        self.oldest
    }

    fn ended(&self) -> Ended {
        ended(self.oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(xid: u32, next: u64) -> u64 {
        widen(pg_sys::TransactionId::from_inner(xid), next).0
    }

    #[test]
    fn ids_widen_into_the_epoch_of_the_next_one() {
        assert_eq!(wide(100, 200), 100);
        assert_eq!(wide(200, 200), 200);
        assert_eq!(wide(100, (5 << 32) | 200), (5 << 32) | 100);
        assert_eq!(wide(u32::MAX, (5 << 32) | 200), (4 << 32) | u64::from(u32::MAX));
        assert_eq!(wide(2, (5 << 32) | 200), 2);
    }
}
