//! Room on the disk for the blocks that a file is to grow by.
//!
//! PostgreSQL 15 makes a file longer by writing zeros. Nobody reads those: the blocks are written again as soon as they hold
//! something, and where memory is short the zeros have reached the disk by then. Here the file system only sets the blocks
//! aside, so that a full disk is still noticed when the file grows and not when a page is written back. And it is noticed
//! without an ERROR of PostgreSQL: whoever wanted the blocks can do with others.

use crate::pg::bindings;
use loosekv_engine::disk;
use pgrx::pg_sys;
use std::ffi::{CStr, OsStr};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// What came of it.
pub(super) enum Room {
    SetAside,
    /// The disk is full, or the owner's share of it; the file is as it was.
    Full(io::Error),
    /// The blocks are to be written, one by one, which also tells what is wrong if something is.
    Unknown,
}

/// Makes the main fork `upto` blocks long, with zeros from block `from` on, which is its end. They are of one segment, whose file is
/// made if need be; that may stay behind empty, as PostgreSQL leaves those of a file that it cuts.
pub(super) fn set_aside(file: pg_sys::RelFileNodeBackend, from: u32, upto: u32) -> Room {
    let segment = from / pg_sys::RELSEG_SIZE;
    // SAFETY: set before any process is started.
    let mode = unsafe { bindings::pg_file_create_mode };
    let mut options = OpenOptions::new();
    options.write(true).create(from.is_multiple_of(pg_sys::RELSEG_SIZE)).mode(mode as u32);
    let opened = match options.open(segment_path(file, segment)) {
        Ok(opened) => opened,
        Err(failed) if is_full(&failed) => return Room::Full(failed),
        Err(_) => return Room::Unknown,
    };
    let bytes = |blocks: u32| libc::off64_t::from(blocks) * libc::off64_t::from(pg_sys::BLCKSZ);
    let start = bytes(from % pg_sys::RELSEG_SIZE);
    // SAFETY: the file is open.
    if unsafe { libc::fallocate64(opened.as_raw_fd(), 0, start, bytes(upto - from)) } == 0 {
        return Room::SetAside;
    }
    let failed = io::Error::last_os_error();
    if is_full(&failed) {
        Room::Full(failed)
    } else {
        Room::Unknown
    }
}

/// How many blocks more the file system has room for, if it tells.
pub(super) fn blocks_left(file: pg_sys::RelFileNodeBackend) -> Option<u64> {
    disk::room(&segment_path(file, 0)).map(|bytes| bytes / u64::from(pg_sys::BLCKSZ))
}

fn is_full(failed: &io::Error) -> bool {
    matches!(failed.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The end of a segment that begins at, or holds, the block.
pub(super) fn segment_end(block: u32) -> u32 {
    (block / pg_sys::RELSEG_SIZE + 1).saturating_mul(pg_sys::RELSEG_SIZE)
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
