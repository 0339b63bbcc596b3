//! Presenting a key of ours as a btree index for a while.
//!
//! Parts of PostgreSQL ask for a btree by its oid: comparing indexes when a partition is attached, row comparisons, ON
//! CONFLICT into partitioned tables. Our keys have btree's operator classes and behave as btree does, so the relcache entry,
//! pinned, says "btree" during such an operation. The planner is never to see it so: it would read btree's meta page.
//!
//! An error jumps over whoever set a mask (see [`super::hooks`]), so masks belong to a level of subtransactions, and go when
//! that level is rolled back.

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

static MASKED: ProcessLocal<RefCell<Vec<Masked>>> = ProcessLocal::new(RefCell::new(Vec::new()));

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
        put(rel, true);
    }
}

/// Masks the keys of all partitions below a partitioned table, which the statement has locked.
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
            if pg_sys::get_rel_relkind(partition) as u8 != pg_sys::RELKIND_RELATION {
                continue;
            }
            let rel = pg_sys::table_open(partition, lock as i32);
            let key = if catalog::is_our_table(rel) { catalog::key_index_of(rel) } else { None };
            pg_sys::table_close(rel, pg_sys::NoLock as i32);
            if let Some(key) = key {
                mask(key, lock);
            }
        }
    }
}

/// Takes off all masks above `depth`.
pub fn end(depth: usize) {
    let ended = MASKED.with_borrow_mut(|masked| {
        let from = depth.min(masked.len());
        let ended: Vec<Masked> = masked.drain(from..).collect();
        put_all(&ended, false);
        put_all(masked, true);
        ended
    });
    for masked in ended {
        // SAFETY: opened by `mask`.
        unsafe { pg_sys::index_close(masked.index, pg_sys::NoLock as i32) };
    }
}

/// Lifts all masks (for planning), or puts them on again.
pub fn lift(lifted: bool) {
    MASKED.with_borrow(|masked| put_all(masked, !lifted));
}

/// A relcache entry may have been read anew.
pub fn relation_changed(relid: pg_sys::Oid) {
    MASKED.with_borrow(|masked| {
        for masked in masked {
            // SAFETY: pinned.
            if relid == pg_sys::Oid::INVALID || relid == unsafe { (*masked.index).rd_id } {
                put(masked.index, true);
            }
        }
    });
}

/// This level of subtransactions, and those above it, are rolled back; PostgreSQL unpins the entries.
pub fn rolled_back(level: i32) {
    MASKED.with_borrow_mut(|masked| {
        put_all(masked, false);
        masked.retain(|masked| masked.level < level);
        put_all(masked, true);
    });
}

/// The transaction is over.
pub fn forget() {
    rolled_back(0);
}
