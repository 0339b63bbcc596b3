//! Room on the disk for the blocks that a file is to grow by.
//!
//! PostgreSQL 15 makes a file longer by writing zeros. Nobody reads those: the blocks are written again as soon as they hold
//! something, and where memory is short the zeros have reached the disk by then. Here the file system only sets the blocks
//! aside, so that a full disk is still noticed when the file grows and not when a page is written back.

use pgrx::pg_sys;
use std::ffi::{CStr, OsStr};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Fewer blocks than that are as well written.
const LEAST_BLOCKS: u32 = 8;

/// Makes the main fork `upto` blocks long, with zeros from block `from` on, which is its end. `false`: the blocks are to be
/// written, one by one, which also tells what is wrong if something is. So it is where they reach into a file that does not
/// exist yet, where the file system knows no other way, and on a full disk.
pub(super) fn set_aside(file: pg_sys::RelFileNodeBackend, from: u32, upto: u32) -> bool {
    let segment = from / pg_sys::RELSEG_SIZE;
    if upto < from.saturating_add(LEAST_BLOCKS) || (upto - 1) / pg_sys::RELSEG_SIZE != segment {
        return false;
    }
    let Ok(opened) = OpenOptions::new().write(true).open(segment_path(file, segment)) else { return false };
    let bytes = |blocks: u32| libc::off64_t::from(blocks) * libc::off64_t::from(pg_sys::BLCKSZ);
    let start = bytes(from % pg_sys::RELSEG_SIZE);
    // SAFETY: the file is open.
    unsafe { libc::fallocate64(opened.as_raw_fd(), 0, start, bytes(upto - from)) == 0 }
}

/// The file of a segment, as seen from the server's working directory.
fn segment_path(file: pg_sys::RelFileNodeBackend, segment: u32) -> PathBuf {
    let pg_sys::RelFileNode { dbNode, spcNode, relNode } = file.node;
    // SAFETY: a guarded call, whose result is a string of its own.
    let mut name = unsafe {
        let path = pg_sys::GetRelationPath(dbNode, spcNode, relNode, file.backend, pg_sys::ForkNumber::MAIN_FORKNUM);
        let name = OsStr::from_bytes(CStr::from_ptr(path).to_bytes()).to_os_string();
        pg_sys::pfree(path.cast());
        name
    };
    if segment > 0 {
        name.push(format!(".{segment}"));
    }
    name.into()
}
