//! Reading a page that may be bad, for a check that goes on afterwards.
//!
//! PostgreSQL raises an ERROR for a page whose checksum or header is wrong, or that the device cannot read. To go on after
//! an ERROR takes a subtransaction, which is rolled back then; it writes nothing, and so is had on a standby, too.

use crate::host::pages::MAIN;
use crate::host::{interrupt, PgHost};
use loosekv_engine::error::{Error, Result};
use loosekv_engine::types::PageNo;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;
use pgrx::PgTryBuilder;
use std::panic::AssertUnwindSafe;

impl PgHost {
    /// An error that says what PostgreSQL has against the page. A page that is in the buffers was found good when it came there.
    pub(super) fn verify(&self, page: PageNo) -> Result<()> {
        interrupt::poll()?;
        if !self.reaches(page.0.saturating_add(1)) {
            return Err(Error::page(page, 0, format!("the file ends at page {}", self.file_pages())));
        }
        let (rel, strategy) = (self.rel(), self.read_strategy());
        // SAFETY: guarded calls in a transaction; what the subtransaction pins it lets go of itself. Context and owner are put
        // back as PL/pgSQL does it.
        unsafe {
            let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
            pg_sys::BeginInternalSubTransaction(std::ptr::null());
            pg_sys::MemoryContextSwitchTo(context);
            let failed = PgTryBuilder::new(AssertUnwindSafe(|| {
                let normal = pg_sys::ReadBufferMode::RBM_NORMAL;
                let buffer = pg_sys::ReadBufferExtended(rel, MAIN, page.0, normal, strategy);
                pg_sys::ReleaseBuffer(buffer);
                None
            }))
            .catch_others(Some)
            .execute();
            match &failed {
                None => pg_sys::ReleaseCurrentSubTransaction(),
                Some(_) => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
            }
            pg_sys::MemoryContextSwitchTo(context);
            pg_sys::CurrentResourceOwner = owner;
            failed.map_or(Ok(()), |cause| judge(page, cause))
        }
    }
}

/// What is wrong with the page; an error that is not about the page goes on.
fn judge(page: PageNo, cause: CaughtError) -> Result<()> {
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic { ereport: report, .. }) = &cause;
    match report.sql_error_code() {
        PgSqlErrorCode::ERRCODE_DATA_CORRUPTED
        | PgSqlErrorCode::ERRCODE_IO_ERROR
        | PgSqlErrorCode::ERRCODE_UNDEFINED_FILE => Err(Error::page(page, 0, report.message())),
        _ => cause.rethrow(),
    }
}
