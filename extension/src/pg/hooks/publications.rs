//! Publications. Logical decoding does not see what is written to our tables, and a subscriber would not notice. So a table of
//! ours is not published by name, nor as a partition, nor does a published table become one of ours. Where all tables of a
//! schema or a database are published, a warning names one that is not.

use super::{access_method, utility};
use crate::host::process_local::{ProcessLocal, WithBorrow};
use crate::pg::bindings_am::guarded;
use crate::pg::{catalog, error};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::Oid;
use pgrx::prelude::*;
use std::cell::RefCell;
use std::ffi::{c_char, CStr};

const HINT: &str = "Logical decoding of loosekv tables is not supported. Physical replication is.";

/// Relations that a statement has made or changed in a way that may publish them, and its depth.
static CHANGED: ProcessLocal<RefCell<Vec<(Oid, usize)>>> = ProcessLocal::new(RefCell::new(Vec::new()));

/// The statement makes this relation, or changes its place or its access method.
pub fn note(relid: Oid) {
    CHANGED.with_borrow_mut(|changed| changed.push((relid, utility::depth())));
}

/// The transaction is over.
pub fn forget() {
    CHANGED.with_borrow_mut(Vec::clear);
}

/// A publication is to name this table; `descends`: with all that inherit from it.
pub fn before_adding(relid: Oid, descends: bool) {
    let members = if descends { family(relid) } else { vec![relid] };
    if let Some(table) = members.into_iter().find(|member| is_ours(*member)) {
        error::unsupported(format!("loosekv table \"{}\" cannot be published", name_of(table)), HINT);
    }
}

/// A publication was made or changed: of all tables, of schemas, or of neither.
///
/// # Safety
/// `name` is its name.
pub unsafe fn after_change(name: *const c_char, all_tables: bool) {
    // SAFETY: by the contract; catalog look-ups.
    let published = unsafe {
        pg_sys::CommandCounterIncrement();
        let publication = pg_sys::get_publication_oid(name, true);
        let leaves = pg_sys::PublicationPartOpt::PUBLICATION_PART_LEAF;
        let tables = match all_tables {
            true => pg_sys::GetAllTablesPublicationRelations(false),
            false => pg_sys::GetAllSchemaPublicationRelations(publication, leaves),
        };
        catalog::oids(tables)
    };
    if let Some(table) = published.filter(|table| is_ours(*table)).min_by_key(|table| table.to_u32()) {
        // SAFETY: by the contract.
        warn(table, &unsafe { CStr::from_ptr(name) }.to_string_lossy());
    }
}

/// The statement has ended.
pub fn after_statement() {
    let changed = CHANGED.with_borrow_mut(utility::due);
    // SAFETY: a catalog look-up.
    if changed.is_empty() || unsafe { pg_sys::get_table_am_oid(c"loosekv".as_ptr(), true) } == Oid::INVALID {
        return;
    }
    // SAFETY: what the statement has done is to be seen.
    unsafe { pg_sys::CommandCounterIncrement() };
    let mut tables: Vec<Oid> = changed.into_iter().flat_map(family).filter(|table| is_ours(*table)).collect();
    tables.sort_unstable_by_key(|table| table.to_u32());
    tables.dedup();
    tables.into_iter().for_each(check);
}

/// A table of ours is new where it stands.
fn check(table: Oid) {
    // SAFETY: catalog look-ups; lists of oids.
    unsafe {
        let mut line = vec![table];
        // (It follows plain inheritance, too, which publishes nothing.)
        if pg_sys::get_rel_relispartition(table) {
            line.extend(catalog::oids(guarded!(get_partition_ancestors(table))));
        }
        let by_name = line.iter().find_map(|member| first(pg_sys::GetRelationPublications(*member)));
        if let Some(publication) = by_name {
            error::unsupported(
                format!("loosekv table \"{}\" cannot be part of publication \"{publication}\"", name_of(table)),
                &format!("{HINT} Take the table, or its parent, out of the publication first."),
            );
        }
        let by_schema = |member: &Oid| first(pg_sys::GetSchemaPublications(pg_sys::get_rel_namespace(*member)));
        let by_place = line.iter().find_map(by_schema).or_else(|| first(pg_sys::GetAllTablesPublications()));
        if let Some(publication) = by_place {
            warn(table, &publication);
        }
    }
}

fn warn(table: Oid, publication: &str) {
    let what =
        format!("publication \"{publication}\" does not publish changes of loosekv table \"{}\"", name_of(table));
    let code = PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED;
    ErrorReport::new(code, what, "loosekv").set_hint(HINT).report(PgLogLevel::WARNING);
}

/// Name of the first publication of a list.
unsafe fn first(publications: *mut pg_sys::List) -> Option<String> {
    // SAFETY: a list of oids; a name in memory of the current context.
    unsafe {
        let publication = catalog::oids(publications).next()?;
        let name = pg_sys::get_publication_name(publication, true);
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}

/// The relation and all that inherit from it, its partitions among them.
fn family(relid: Oid) -> Vec<Oid> {
    // SAFETY: catalog look-ups; those who may change it are kept away by the statement's own lock on the parent.
    unsafe {
        let no_parents: *mut *mut pg_sys::List = std::ptr::null_mut();
        match pg_sys::get_rel_relkind(relid) as u8 {
            pg_sys::RELKIND_RELATION | pg_sys::RELKIND_PARTITIONED_TABLE => {
                catalog::oids(guarded!(find_all_inheritors(relid, pg_sys::NoLock as i32, no_parents))).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// A table of ours that could be published at all, were it a heap table.
fn is_ours(relid: Oid) -> bool {
    // SAFETY: catalog look-ups.
    unsafe {
        let (kind, persistence) = (pg_sys::get_rel_relkind(relid) as u8, pg_sys::get_rel_persistence(relid) as u8);
        kind == pg_sys::RELKIND_RELATION
            && persistence == pg_sys::RELPERSISTENCE_PERMANENT
            && access_method::is_ours(catalog::access_method_of(relid))
    }
}

fn name_of(relid: Oid) -> String {
    // SAFETY: a catalog look-up; a name in memory of the current context.
    unsafe {
        let name = pg_sys::get_rel_name(relid);
        if name.is_null() {
            return relid.to_u32().to_string();
        }
        CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}
