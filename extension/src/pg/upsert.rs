//! INSERT ... ON CONFLICT DO UPDATE that wants nothing of the row that is in its way but the key.
//!
//! ```text
//!  ExecutorRun begins   does the statement replace all but the key? then its table is the *target*
//!  scan of the key      by the executor, for a row that is in the way: it may be left unread (`table::unread`)
//!  ExecutorRun ends     the target of the statement outside is the target again
//! ```
//!
//! Nobody else may ask for the old row: so the table has no trigger and no index but its key, and the statement has no WHERE
//! after DO UPDATE.

use super::catalog;
use crate::host::process_local::ProcessLocal;
use crate::table::{info, unread};
use pgrx::pg_sys;
use pgrx::pg_sys::{ModifyTable, NodeTag, OnConflictAction, QueryDesc, Relation, ResultRelInfo};
use std::cell::Cell;

/// Open as long as the statement runs. Null: nobody's.
static TARGET: ProcessLocal<Cell<Relation>> = ProcessLocal::new(Cell::new(std::ptr::null_mut()));

/// A statement begins to run. Returns what `end` wants to know.
///
/// # Safety
/// The executor's query, set up.
pub unsafe fn begin(query: *mut QueryDesc) -> Relation {
    // SAFETY: by the contract.
    let target = unsafe { target_of(query) };
    unread::statement_begins();
    TARGET.replace(target)
}

/// A statement has run.
pub fn end(outer: Relation) {
    TARGET.set(outer);
}

/// A statement has failed: which one runs now is not known.
pub fn rolled_back() {
    TARGET.set(std::ptr::null_mut());
}

/// Whether rows of this table that are in the way of the statement may be left unread.
#[inline]
pub fn leaves_rows(rel: Relation) -> bool {
    std::ptr::eq(TARGET.get(), rel)
}

unsafe fn target_of(query: *mut QueryDesc) -> Relation {
    // SAFETY: as the executor sets it up.
    unsafe {
        let state = (*query).planstate;
        if state.is_null() || (*state).type_ != NodeTag::T_ModifyTableState {
            return std::ptr::null_mut();
        }
        let plan = (*state).plan.cast::<ModifyTable>();
        let state = state.cast::<pg_sys::ModifyTableState>();
        let into = (*state).resultRelInfo;
        // Another one in a WITH clause would take this one's target for its own.
        let replaces = !(*(*query).plannedstmt).hasModifyingCTE
            && (*plan).onConflictAction == OnConflictAction::ONCONFLICT_UPDATE
            && (*plan).onConflictWhere.is_null()
            && (*state).mt_nrels == 1
            && catalog::is_our_table((*into).ri_RelationDesc)
            && is_plain(into)
            && takes_key_alone(plan, (*into).ri_RelationDesc);
        if replaces {
            (*into).ri_RelationDesc
        } else {
            std::ptr::null_mut()
        }
    }
}

/// Nobody but the statement itself looks at the rows that it replaces.
unsafe fn is_plain(into: *mut ResultRelInfo) -> bool {
    // SAFETY: as the executor sets it up; indexes were opened when the plan was.
    unsafe {
        let rel = (*into).ri_RelationDesc;
        (*into).ri_TrigDesc.is_null()
            && (*into).ri_WithCheckOptions.is_null()
            && (*into).ri_NumIndices == 1
            && !(*into).ri_IndexRelationDescs.is_null()
            && catalog::is_our_index(*(*into).ri_IndexRelationDescs)
            && (*(*rel).rd_rel).relpersistence as u8 != pg_sys::RELPERSISTENCE_TEMP
    }
}

/// Whether the statement takes no more of the old row than leading columns that the key gives back, and leaves the key as it is.
unsafe fn takes_key_alone(plan: *mut ModifyTable, rel: Relation) -> bool {
    // SAFETY: the plan of a statement with ON CONFLICT DO UPDATE; the relation is open.
    unsafe {
        let codec = &info::of(rel).codec;
        let given_back = codec.layout.leading_from_key() as i32;
        let columns = (*(*rel).rd_att).attrs.as_slice((*(*rel).rd_att).natts as usize);
        let assigned = IntList((*plan).onConflictCols);
        let kept = columns.iter().filter(|column| !column.attisdropped && !assigned.contains(column.attnum.into()));
        let taken_as_it_is = kept.map(|column| i32::from(column.attnum)).max().unwrap_or(0);
        let leaves_key = codec.key.columns().iter().all(|column| !assigned.contains(column.attno.into()));
        leaves_key && taken_as_it_is <= given_back && mentions_at_most(plan, given_back)
    }
}

struct IntList(*mut pg_sys::List);

impl IntList {
    /// # Safety
    /// A list of integers, or null.
    unsafe fn contains(&self, wanted: i32) -> bool {
        // SAFETY: by the contract; a list has so many elements.
        unsafe {
            let Some(list) = self.0.as_ref() else { return false };
            let elements = std::slice::from_raw_parts(list.elements, list.length as usize);
            elements.iter().any(|element| element.int_value == wanted)
        }
    }
}

/// Whether SET names no column of the old row but the first so many.
unsafe fn mentions_at_most(plan: *mut ModifyTable, most: i32) -> bool {
    // SAFETY: the first result relation is the table; the set of attributes is ours.
    unsafe {
        let table = (*(*(*plan).resultRelations).elements).int_value;
        let mut attributes = std::ptr::null_mut();
        pg_sys::pull_varattnos((*plan).onConflictSet.cast(), table as pg_sys::Index, &raw mut attributes);
        // Attributes are counted from the lowest of the system's; 0 is the whole row.
        let mut fits = true;
        let mut member = pg_sys::bms_next_member(attributes, -1);
        while member >= 0 {
            let attno = member + pg_sys::FirstLowInvalidHeapAttributeNumber;
            fits &= (1..=most).contains(&attno);
            member = pg_sys::bms_next_member(attributes, member);
        }
        pg_sys::bms_free(attributes);
        fits
    }
}
