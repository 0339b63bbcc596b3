//! Who may see the keys of a table: whoever may read their columns, all rows of them. It is what PostgreSQL asks before it
//! names a key in an error, or shows the bounds of a histogram.

use crate::table::info;
use loosekv_engine::key_text;
use pgrx::pg_sys;
use pgrx::pg_sys::AclResult::ACLCHECK_OK;
use pgrx::pg_sys::CheckEnableRlsResult::RLS_ENABLED;

/// Whether the current user may see every key of an open table.
pub fn may_see_keys(rel: pg_sys::Relation) -> bool {
    let mode = u64::from(pg_sys::ACL_SELECT) as pg_sys::AclMode;
    // SAFETY: the relation is open; catalog look-ups.
    unsafe {
        let (table, user) = ((*rel).rd_id, pg_sys::GetUserId());
        if pg_sys::check_enable_rls(table, pg_sys::Oid::INVALID, true) == RLS_ENABLED as i32 {
            return false;
        }
        let may_read = |attno| pg_sys::pg_attribute_aclcheck(table, attno, user, mode) == ACLCHECK_OK;
        // Without a key rows are numbered, and the numbers are nobody's data.
        pg_sys::pg_class_aclcheck(table, user, mode) == ACLCHECK_OK
            || info::of(rel).codec.key.columns().iter().all(|column| may_read(column.attno))
    }
}

/// The message as the current user may see it.
pub fn of_message(rel: pg_sys::Relation, message: String) -> String {
    let hidden = key_text::hide(&message);
    if hidden == message || may_see_keys(rel) {
        message
    } else {
        hidden
    }
}
