//! SERIALIZABLE: what is read is marked, what is written is checked against the marks.
//!
//! A point read marks the "page" that its key hashes to, whether the key is there or not; a range marks the table. So both
//! PostgreSQL's rules for pages and for tables do what they say without a page of ours being involved.
//!
//! Who reads marks first and looks then; who writes checks when his version can be seen. So of two at the same moment the
//! reader finds the version, or the writer the mark. A writer also checks before he begins: that fails early, and is a better
//! reason than others that he would find.

use super::bindings_am::{guarded, raw};
use super::xact;
use loosekv_engine::types::Writer;
use pgrx::pg_sys;

/// Whether passing over versions matters to this snapshot.
pub fn watches(rel: pg_sys::Relation, snapshot: pg_sys::Snapshot) -> bool {
    // SAFETY: looks at process memory; the relation is open and the snapshot valid.
    unsafe {
        pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as i32
            && raw::CheckForSerializableConflictOutNeeded(rel, snapshot)
    }
}

pub fn serializable() -> bool {
    // SAFETY: a plain variable of this process.
    unsafe { pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as i32 }
}

/// The page that stands for a key.
fn page_of(key: &[u8]) -> pg_sys::BlockNumber {
    (loosekv_engine::filter::key_hash(key) >> 33) as pg_sys::BlockNumber
}

pub fn read_key(rel: pg_sys::Relation, key: &[u8], snapshot: pg_sys::Snapshot) {
    if serializable() {
        let page = page_of(key);
        // SAFETY: the relation is open and the snapshot valid; an error unwinds.
        unsafe { guarded!(PredicateLockPage(rel, page, snapshot)) };
    }
}

pub fn read_table(rel: pg_sys::Relation, snapshot: pg_sys::Snapshot) {
    if serializable() {
        // SAFETY: as above.
        unsafe { guarded!(PredicateLockRelation(rel, snapshot)) };
    }
}

/// A key is about to get a new version, or has just got one.
pub fn write_key(rel: pg_sys::Relation, key: &[u8]) {
    if serializable() {
        let page = page_of(key);
        let no_tid: pg_sys::ItemPointer = std::ptr::null_mut();
        // SAFETY: as above.
        unsafe { guarded!(CheckForSerializableConflictIn(rel, no_tid, page)) };
    }
}

/// Rows whose keys nobody can have asked for have come.
pub fn write_table(rel: pg_sys::Relation) {
    if serializable() {
        let no_tid: pg_sys::ItemPointer = std::ptr::null_mut();
        // SAFETY: as above.
        unsafe { guarded!(CheckForSerializableConflictIn(rel, no_tid, pg_sys::InvalidBlockNumber)) };
    }
}

/// The rows are about to get other keys: marks of the ones that they had become marks of the table.
pub fn rekey(rel: pg_sys::Relation) {
    // SAFETY: as above.
    unsafe { guarded!(TransferPredicateLocksToHeapRelation(rel)) };
}

/// A version of this writer was passed over because the snapshot does not see it.
pub fn passed_over(rel: pg_sys::Relation, writer: Writer, snapshot: pg_sys::Snapshot) {
    // SAFETY: as above; the subtransaction log goes back to the oldest transaction that anybody here sees running.
    unsafe {
        let is_over = |xid| pg_sys::TransactionIdPrecedes(xid, pg_sys::TransactionXmin);
        let mut xid = xact::short(writer);
        if is_over(xid) {
            return;
        }
        // PostgreSQL knows its conflicts by whole transactions.
        xid = pg_sys::SubTransGetTopmostTransaction(xid);
        if !is_over(xid) {
            guarded!(CheckForSerializableConflictOut(rel, xid, snapshot));
        }
    }
}
