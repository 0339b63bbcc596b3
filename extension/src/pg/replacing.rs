//! Statements that want nothing of the rows that they replace but the key.
//!
//! `INSERT ... ON CONFLICT DO UPDATE` and `UPDATE ... WHERE key = ...` that assign all columns but the key need not read the old
//! row ([`crate::table::unread`]). When a plan begins to run, it is looked at whether it is one of these; its table is
//! then the one of which rows may be left unread, until it has run.
//!
//! Nobody else may ask for the old row: so the table has no trigger and no index but its key, and the plan has no condition but
//! on the key, and reads the table nowhere else.

use super::bindings_am::raw;
use super::{catalog, palloc};
use crate::codec::TableCodec;
use crate::table::info;
use crate::table::unread::{self, Leaves};
use pgrx::pg_sys;
use pgrx::pg_sys::{CmdType, List, ModifyTable, ModifyTableState, NodeTag, OnConflictAction, Plan, QueryDesc};
use pgrx::pg_sys::{Relation, ResultRelInfo};

/// A statement begins to run. Returns what [`unread::ends`] wants to know.
///
/// # Safety
/// The executor's query, set up.
pub unsafe fn begin(query: *mut QueryDesc) -> usize {
    // SAFETY: by the contract.
    unsafe {
        let (rel, leaves) = target_of(query).unwrap_or((std::ptr::null_mut(), Leaves::Nothing));
        unread::begins(rel, leaves, raw::GetCurrentTransactionNestLevel())
    }
}

unsafe fn target_of(query: *mut QueryDesc) -> Option<(Relation, Leaves)> {
    // SAFETY: as the executor sets it up.
    unsafe {
        let state = (*query).planstate;
        // A statement in a WITH clause would take this one's target for its own.
        if state.is_null() || (*state).type_ != NodeTag::T_ModifyTableState || (*(*query).plannedstmt).hasModifyingCTE {
            return None;
        }
        let plan = (*state).plan.cast::<ModifyTable>();
        let state = state.cast::<ModifyTableState>();
        let into = (*state).resultRelInfo;
        let rel = (*into).ri_RelationDesc;
        let leaves = match (*plan).operation {
            CmdType::CMD_INSERT if (*plan).onConflictAction == OnConflictAction::ONCONFLICT_UPDATE => Leaves::Conflicts,
            CmdType::CMD_UPDATE => Leaves::Updated,
            _ => return None,
        };
        if (*state).mt_nrels != 1 || !catalog::is_our_table(rel) || !is_plain(state) {
            return None;
        }
        let codec = &info::of(rel).codec;
        let key_alone = match leaves {
            Leaves::Conflicts => replaces_conflicts(plan, rel, codec),
            _ => stays_where_it_is(state) && replaces_by_key(query, plan, rel, codec),
        };
        key_alone.then_some((rel, leaves))
    }
}

/// No trigger is told of the rows that a statement writes, and no view checks them.
///
/// # Safety
/// The state of its ModifyTable node, set up.
pub(super) unsafe fn is_unwatched(state: *mut ModifyTableState) -> bool {
    // SAFETY: by the contract.
    unsafe {
        let (into, root) = ((*state).resultRelInfo, (*state).rootResultRelInfo);
        let untriggered = |target: *mut ResultRelInfo| (*target).ri_TrigDesc.is_null();
        untriggered(into) && (root.is_null() || untriggered(root)) && (*into).ri_WithCheckOptions.is_null()
    }
}

/// Nobody but the statement itself looks at the rows that it replaces.
unsafe fn is_plain(state: *mut ModifyTableState) -> bool {
    // SAFETY: as the executor sets it up.
    unsafe {
        let rel = (*(*state).resultRelInfo).ri_RelationDesc;
        is_unwatched(state)
            && (*(*rel).rd_rel).relpersistence as u8 != pg_sys::RELPERSISTENCE_TEMP
            && catalog::has_no_index_but_its_key(rel)
    }
}

unsafe fn replaces_conflicts(plan: *mut ModifyTable, rel: Relation, codec: &TableCodec) -> bool {
    // SAFETY: the plan of an INSERT; its first result relation is the table.
    unsafe {
        let table = (*(*(*plan).resultRelations).elements).int_value;
        (*plan).onConflictWhere.is_null()
            && assigns_all_but_key(rel, codec, (*plan).onConflictCols)
            && mentions_at_most((*plan).onConflictSet, table, codec, &[])
    }
}

/// Whether a row whose key stays as it is stays in its partition: a key that the whole table has in common tells which that is.
unsafe fn stays_where_it_is(state: *mut ModifyTableState) -> bool {
    // SAFETY: as the executor sets it up.
    unsafe {
        let root = (*state).rootResultRelInfo;
        root.is_null()
            || std::ptr::eq(root, (*state).resultRelInfo)
            || pg_sys::RelationGetPrimaryKeyIndex((*root).ri_RelationDesc) != pg_sys::InvalidOid
    }
}

unsafe fn replaces_by_key(query: *mut QueryDesc, plan: *mut ModifyTable, rel: Relation, codec: &TableCodec) -> bool {
    // SAFETY: the plan of an UPDATE; each node is what its tag says.
    unsafe {
        let below: *mut Plan = (*plan).plan.lefttree;
        if below.is_null() || (*below).type_ != NodeTag::T_IndexScan || !(*(*query).plannedstmt).subplans.is_null() {
            return false;
        }
        let scan = below.cast::<pg_sys::IndexScan>();
        let own = [pg_sys::SelfItemPointerAttributeNumber, pg_sys::TableOidAttributeNumber];
        (*scan).indexid == (*rel).rd_pkindex
            && (*below).qual.is_null()
            && (*scan).indexorderby.is_null()
            && (*plan).rowMarks.is_null()
            && assigns_all_but_key(rel, codec, (*(*(*plan).updateColnosLists).elements).ptr_value.cast())
            && mentions_at_most((*below).targetlist, (*scan).scan.scanrelid as i32, codec, &own)
    }
}

/// Whether these are no columns of the key, and all that are not are leading columns that the key gives back.
unsafe fn assigns_all_but_key(rel: Relation, codec: &TableCodec, assigned: *mut List) -> bool {
    // SAFETY: the relation is open; a list of integers, or null, has so many elements.
    unsafe {
        let assigned = match assigned.as_ref() {
            Some(list) => std::slice::from_raw_parts(list.elements, list.length as usize),
            None => &[],
        };
        let is_assigned = |attno: i16| assigned.iter().any(|element| element.int_value == i32::from(attno));
        let columns = (*(*rel).rd_att).attrs.as_slice((*(*rel).rd_att).natts as usize);
        let given_back = codec.layout.leading_from_key();
        let mut kept = columns.iter().filter(|column| !column.attisdropped && !is_assigned(column.attnum));
        kept.all(|column| column.attnum as usize <= given_back)
            && !codec.key.columns().iter().any(|column| is_assigned(column.attno))
    }
}

/// Whether these expressions name no column of the table but leading ones that the key gives back, and these of the system's.
unsafe fn mentions_at_most(expressions: *mut List, table: i32, codec: &TableCodec, system: &[i32]) -> bool {
    let given_back = codec.layout.leading_from_key() as i32;
    let mut attributes = std::ptr::null_mut();
    // SAFETY: a plan's expressions; the set of attributes is ours.
    unsafe {
        pg_sys::pull_varattnos(expressions.cast(), table as pg_sys::Index, &raw mut attributes);
        // Attributes are counted from the lowest of the system's; 0 is the whole row.
        let mut fits = true;
        let mut member = raw::bms_next_member(attributes, -1);
        while member >= 0 {
            let attno = member + pg_sys::FirstLowInvalidHeapAttributeNumber;
            fits &= (1..=given_back).contains(&attno) || system.contains(&attno);
            member = raw::bms_next_member(attributes, member);
        }
        if !attributes.is_null() {
            palloc::free(attributes);
        }
        fits
    }
}
