//! Giving a table a new file while the rows of the old one are still to be read.

use pgrx::pg_sys;
use pgrx::pg_sys::Relation;

/// The file that a table had, as a relation of its own.
pub struct OldFile {
    rel: Relation,
}

impl OldFile {
    /// Gives `rel` a new, empty file, and keeps the old one readable.
    pub fn leave(rel: Relation) -> OldFile {
        // SAFETY: the relation is open and locked exclusively. The copy lives in memory that is never freed by PostgreSQL,
        // for the storage manager points back into it; after an error it is leaked.
        unsafe {
            let before = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
            let copy = pg_sys::palloc(size_of::<pg_sys::RelationData>()).cast::<pg_sys::RelationData>();
            copy.copy_from_nonoverlapping(rel, 1);
            let form = pg_sys::palloc(size_of::<pg_sys::FormData_pg_class>()).cast::<pg_sys::FormData_pg_class>();
            form.copy_from_nonoverlapping((*rel).rd_rel, 1);
            (*copy).rd_rel = form;
            (*copy).rd_att = pg_sys::CreateTupleDescCopyConstr((*rel).rd_att);
            pg_sys::MemoryContextSwitchTo(before);
            (*copy).rd_smgr = std::ptr::null_mut();
            (*copy).pgstat_enabled = false;
            (*copy).pgstat_info = std::ptr::null_mut();
            pg_sys::RelationSetNewRelfilenode(rel, (*form).relpersistence);
            OldFile { rel: copy }
        }
    }

    pub fn rel(&self) -> Relation {
        self.rel
    }
}

impl Drop for OldFile {
    fn drop(&mut self) {
        // SAFETY: the storage manager forgets the pointer before the memory goes.
        unsafe {
            if !(*self.rel).rd_smgr.is_null() {
                pg_sys::smgrclearowner(&raw mut (*self.rel).rd_smgr, (*self.rel).rd_smgr);
            }
            pg_sys::FreeTupleDesc((*self.rel).rd_att);
            pg_sys::pfree((*self.rel).rd_rel.cast());
            pg_sys::pfree(self.rel.cast());
        }
    }
}
