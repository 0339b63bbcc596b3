//! Presenting a key of ours as a btree index for a while.
//!
//! Parts of PostgreSQL ask for a btree by its oid: comparing indexes when a partition is attached, row comparisons, ON
//! CONFLICT into partitioned tables. Our keys have btree's operator classes and behave as btree does, so the relcache entry,
//! pinned, says "btree" during such an operation. The planner is never to see it so: it would read btree's meta page. While it plans
//! masks are lifted, whatever happens meanwhile: it may learn that an index has changed, or run a function, whose statements have
//! masks of their own.
//!
//! An error jumps over whoever set a mask (see [`super::hooks`]), so masks belong to a level of subtransactions, and go when
//! that level is rolled back; so it is with what is planned and run.

use super::bindings_am::{guarded, raw};
use super::catalog;
use crate::host::process_local::{ProcessLocal, WithBorrow};
use pgrx::pg_sys;
use pgrx::pg_sys::Relation;
use std::cell::RefCell;

struct Masked {
    index: Relation,
    level: i32,
}

/// What is done now, within what was begun before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Planning,
    /// Within planning.
    Running,
}

static MASKED: ProcessLocal<RefCell<Vec<Masked>>> = ProcessLocal::new(RefCell::new(Vec::new()));
/// Each with its level of subtransactions.
static PHASES: ProcessLocal<RefCell<Vec<(Phase, i32)>>> = ProcessLocal::new(RefCell::new(Vec::new()));

fn lifted() -> bool {
    PHASES.with_borrow(|phases| matches!(phases.last(), Some((Phase::Planning, _))))
}

/// A phase begins in which masks are lifted, or on again. Returns what [`leave`] wants to know.
pub fn enter(phase: Phase) -> usize {
    let before = PHASES.with_borrow(Vec::len);
    let changes = match phase {
        Phase::Planning => depth() > 0,
        Phase::Running => lifted(),
    };
    if changes {
        // SAFETY: reads process memory.
        let level = unsafe { raw::GetCurrentTransactionNestLevel() };
        PHASES.with_borrow_mut(|phases| phases.push((phase, level)));
        put_all_as_they_are_to_be();
    }
    before
}

/// It has ended.
pub fn leave(before: usize) {
    if PHASES.with_borrow(Vec::len) > before {
        PHASES.with_borrow_mut(|phases| phases.truncate(before));
        put_all_as_they_are_to_be();
    }
}

fn put_all_as_they_are_to_be() {
    let on = !lifted();
    MASKED.with_borrow(|masked| put_all(masked, on));
}

/// btree's oid.
pub const BTREE: u32 = 403;

fn put(index: Relation, on: bool) {
    // SAFETY: the relcache entry is pinned by whoever masked it.
    unsafe {
        (*(*index).rd_rel).relam = if on { pg_sys::Oid::from(BTREE) } else { catalog::key_am() };
    }
}

fn put_all(masked: &[Masked], on: bool) {
    masked.iter().for_each(|masked| put(masked.index, on));
}

/// How many masks there are, for [`end`].
pub fn depth() -> usize {
    MASKED.with_borrow(Vec::len)
}

/// Masks an index; if it is not ours it is closed again. The lock is kept.
pub fn mask(index: pg_sys::Oid, lock: u32) {
    // SAFETY: the index exists: the statement names it.
    unsafe {
        let rel = pg_sys::index_open(index, lock as i32);
        if !catalog::is_our_index(rel) {
            pg_sys::index_close(rel, pg_sys::NoLock as i32);
            return;
        }
        // Once, while that is allowed: the catalog is not to be asked when masks change.
        catalog::key_am();
        let level = raw::GetCurrentTransactionNestLevel();
        MASKED.with_borrow_mut(|masked| masked.push(Masked { index: rel, level }));
        put(rel, !lifted());
    }
}

/// Masks the keys of all partitions below a partitioned table, which the statement has locked, and the copies of keys that REINDEX
/// CONCURRENTLY makes, or has left.
///
/// # Safety
/// The partitions may be locked in this mode.
pub unsafe fn mask_partitions(parent: pg_sys::Oid, lock: u32) {
    // SAFETY: by the contract; partitions are locked as the statement will lock them.
    unsafe {
        if pg_sys::get_rel_relkind(parent) as u8 != pg_sys::RELKIND_PARTITIONED_TABLE {
            return;
        }
        let no_parents = std::ptr::null_mut::<*mut pg_sys::List>();
        let partitions = guarded!(find_all_inheritors(parent, pg_sys::NoLock as i32, no_parents));
        for partition in catalog::oids(partitions) {
            // Those on heap are not locked: the statement may not come to them.
            let is_table = pg_sys::get_rel_relkind(partition) as u8 == pg_sys::RELKIND_RELATION;
            if !is_table || catalog::access_method_of(partition) == pg_sys::HEAP_TABLE_AM_OID {
                continue;
            }
            let rel = pg_sys::table_open(partition, lock as i32);
            let ours = catalog::is_our_table(rel);
            let indexes = if ours { pg_sys::RelationGetIndexList(rel) } else { std::ptr::null_mut() };
            pg_sys::table_close(rel, pg_sys::NoLock as i32);
            // Others are not locked: of many partitions they may be very many.
            let keys = catalog::oids(indexes).filter(|index| catalog::access_method_of(*index) == catalog::key_am());
            keys.for_each(|index| mask(index, lock));
            pg_sys::list_free(indexes);
        }
    }
}

/// Takes off all masks above `depth`.
pub fn end(depth: usize) {
    let ended = MASKED.with_borrow_mut(|masked| {
        let from = depth.min(masked.len());
        let ended: Vec<Masked> = masked.drain(from..).collect();
        put_all(&ended, false);
        ended
    });
    put_all_as_they_are_to_be();
    for masked in ended {
        // SAFETY: opened by `mask`.
        unsafe { pg_sys::index_close(masked.index, pg_sys::NoLock as i32) };
    }
}

/// A relcache entry may have been read anew.
pub fn relation_changed(relid: pg_sys::Oid) {
    let on = !lifted();
    MASKED.with_borrow(|masked| {
        for masked in masked {
            // SAFETY: pinned.
            if relid == pg_sys::Oid::INVALID || relid == unsafe { (*masked.index).rd_id } {
                put(masked.index, on);
            }
        }
    });
}

/// This level of subtransactions, and those above it, are rolled back; PostgreSQL unpins the entries.
pub fn rolled_back(level: i32) {
    PHASES.with_borrow_mut(|phases| phases.retain(|(_, of)| *of < level));
    MASKED.with_borrow_mut(|masked| {
        put_all(masked, false);
        masked.retain(|masked| masked.level < level);
    });
    put_all_as_they_are_to_be();
}

/// The transaction is over.
pub fn forget() {
    rolled_back(0);
}
