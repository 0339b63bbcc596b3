//! The quarantine: what PostgreSQL calls.

pub mod admin;
pub mod bindings;
pub mod bindings_am;
pub mod catalog;
pub mod error;
pub mod exit;
pub mod file_copy;
pub mod hooks;
pub mod index_am;
pub mod index_scan;
pub mod owned;
pub mod relam_mask;
pub mod rmgr;
pub mod row_locks;
pub mod slot;
pub mod slots;
pub mod ssi;
pub mod startup;
pub mod table_am;
pub mod table_ddl;
pub mod table_index_build;
pub mod table_scan;
pub mod table_vacuum;
pub mod worker;
pub mod worker_piece;
pub mod xact;
