//! Room on a disk.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes that files may grow by on the file system of a path, if it tells.
pub fn room(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut status = MaybeUninit::<libc::statvfs64>::uninit();
    // SAFETY: the path ends with a zero, and the status is filled in where the call succeeds.
    let status = unsafe { (libc::statvfs64(path.as_ptr(), status.as_mut_ptr()) == 0).then(|| status.assume_init()) }?;
    // The owner's share is less than what root may use. Some file systems do not know.
    (status.f_blocks > 0).then(|| status.f_bavail.saturating_mul(status.f_frsize))
}
