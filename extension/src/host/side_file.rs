//! Side files: PostgreSQL's temporary files, which go with the transaction at the latest.

use super::{caught, maintenance};
use loosekv_engine::error::{Error, Result};
use loosekv_engine::host;
use pgrx::pg_sys;
use std::ffi::c_int;
use std::io;

pub struct SideFile {
    file: pg_sys::File,
    len: u64,
}

/// How much a process may keep in memory while it writes a run.
pub fn memory() -> usize {
    // SAFETY: a setting of this process.
    let limit = unsafe { pg_sys::temp_file_limit };
    // A merge that a session does along the way is not to fail by a limit for the files of its queries.
    if limit >= 0 {
        return usize::MAX;
    }
    maintenance::work_memory()
}

impl SideFile {
    pub fn create() -> Result<SideFile> {
        caught::catch(|| {
            // SAFETY: guarded, in a transaction. Names of tablespaces may be looked up in the catalog: the snapshot that leaves
            // behind must not be in the way of vacuum while a merge goes on.
            let file = unsafe {
                pg_sys::PrepareTempTablespaces();
                pg_sys::InvalidateCatalogSnapshot();
                pg_sys::OpenTemporaryFile(false)
            };
            Ok(SideFile { file, len: 0 })
        })
    }
}

impl host::SideFile for SideFile {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let (length, at) = sizes(bytes.len(), self.len)?;
        let event = pg_sys::WaitEventIO::WAIT_EVENT_BUFFILE_WRITE;
        // SAFETY: guarded; the bytes are only read.
        let written = caught::catch(|| unsafe {
            Ok(pg_sys::FileWrite(self.file, bytes.as_ptr().cast_mut().cast(), length, at, event))
        })?;
        if written != length {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::ENOSPC) => {
                    Error::NoSpace("the disk is full: no room for a temporary file of a merge".into())
                }
                _ => Error::io("cannot write a temporary file", error),
            });
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<()> {
        let (length, at) = sizes(into.len(), at)?;
        let event = pg_sys::WaitEventIO::WAIT_EVENT_BUFFILE_READ;
        // SAFETY: guarded; the buffer is so long.
        let read =
            caught::catch(|| unsafe { Ok(pg_sys::FileRead(self.file, into.as_mut_ptr().cast(), length, at, event)) })?;
        match read {
            read if read == length => Ok(()),
            read if read < 0 => Err(Error::io("cannot read a temporary file", io::Error::last_os_error())),
            _ => Err(Error::structure("a temporary file is shorter than what was written")),
        }
    }
}

fn sizes(length: usize, at: u64) -> Result<(c_int, pg_sys::off_t)> {
    let sizes = c_int::try_from(length).ok().zip(pg_sys::off_t::try_from(at).ok());
    sizes.ok_or_else(|| Error::structure("a temporary file is too long"))
}

impl Drop for SideFile {
    fn drop(&mut self) {
        // While an ERROR unwinds, PostgreSQL is not to be called: the abort that follows closes the file.
        if !std::thread::panicking() {
            // SAFETY: opened by `create`.
            unsafe { pg_sys::FileClose(self.file) };
        }
    }
}
