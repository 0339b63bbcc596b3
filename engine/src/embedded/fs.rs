//! What the embedded store asks of a file system, and the real one.
//!
//! [`Fs`] is small on purpose: the simulator ([`super::sim`]) implements the same few calls with a model of what a power
//! failure leaves behind, so that the store's order of writes and syncs can be tested rather than believed. A file's
//! bytes are durable after [`File::sync`], its name after [`Fs::sync_dir`], and nothing is durable before.

use crate::disk;
use std::any::Any;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Held for as long as the store's directory is locked.
pub type Lock = Box<dyn Any + Send + Sync>;

pub trait Fs: Send + Sync + 'static {
    /// Makes the directory unless it is there.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Makes a new file; fails if the name is taken.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Makes a file that has no name, and is gone when it is closed, on the device of a directory.
    fn create_unnamed(&self, dir: &Path) -> io::Result<Arc<dyn File>>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Makes creations, renames and removals in this directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Locks the file (made if need be) against other opens; `WouldBlock` when another holds it.
    fn lock(&self, path: &Path) -> io::Result<Lock>;
    /// Bytes that files in a directory could grow by, if that is known.
    fn room(&self, dir: &Path) -> Option<u64>;
    /// 64 random bits.
    fn random(&self) -> io::Result<u64>;
    fn sleep(&self, time: Duration);
}

#[allow(clippy::len_without_is_empty)]
pub trait File: Send + Sync {
    /// Fills `buf` from `offset`; returns fewer bytes than asked for only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Makes the file's bytes and length durable.
    fn sync(&self) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes the file at least this long. True: its room on the device is reserved, writes within it will not run out of space.
    fn allocate(&self, len: u64) -> io::Result<bool>;
    /// Maps a range of the file, which may reach past the file's end. `None`: this file system has no mappings.
    fn map(&self, offset: u64, len: usize, writable: bool) -> io::Result<Option<Mapping>>;
    /// Tells the system what becomes of a range, as far as it wants to know.
    fn advise(&self, _offset: u64, _len: usize, _advice: Advice) {}
}

/// See [`File::advise`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// It will be read soon.
    WillNeed,
    /// It will not be read soon.
    DontNeed,
    /// Pages are read here and there: none is to be read that was not asked for.
    Random,
    /// It has been written and will be synced: the device may begin.
    WriteOut,
}

/// A shared mapping of a file.
pub struct Mapping {
    address: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory, owned by this value; what may be read and written when is the callers' contract.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Where the byte `offset` is; `None` when `len` bytes from there are not within the mapping.
    pub fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        // SAFETY: within the mapping, as just checked.
        (end <= self.len).then(|| unsafe { self.address.add(offset) })
    }

    /// Gets pages that are about to be written, within the file: in one call, which is cheaper than a fault for each. Where that
    /// is not possible they come with the faults.
    pub fn populate(&self, offset: usize, len: usize) {
        let Some(start) = self.at(offset, len) else { return };
        // SAFETY: advice on a part of the mapping; no byte changes.
        unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `RealFile::map` with this address and length, and nobody holds a reference into it any more.
        let result = unsafe { libc::munmap(self.address.as_ptr().cast(), self.len) };
        debug_assert_eq!(result, 0);
    }
}

/// The operating system's files.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealFs;

struct RealFile(fs::File);

impl Fs for RealFs {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            other => other,
        }
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file =
            fs::OpenOptions::new().read(true).write(true).create_new(true).custom_flags(libc::O_CLOEXEC).open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn create_unnamed(&self, dir: &Path) -> io::Result<Arc<dyn File>> {
        let path = dir.join(format!("side-{:016x}", self.random()?));
        let file = self.create(&path)?;
        self.remove(&path)?;
        Ok(file)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Lock> {
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        // SAFETY: a system call on a descriptor that `file` holds open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Box::new(RealLock { file, holder: process::id() }))
    }

    fn room(&self, dir: &Path) -> Option<u64> {
        disk::room(dir)
    }

    fn random(&self) -> io::Result<u64> {
        let mut bytes = [0u8; 8];
        // SAFETY: the buffer is eight bytes long, and so many are asked for.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        match got {
            8 => Ok(u64::from_le_bytes(bytes)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A locked file, which a child process may have inherited. Its descriptor is the same lock, and closing ours would not end
/// that before the child has run another program, or ends.
struct RealLock {
    file: fs::File,
    /// A child that drops its copy of the store leaves its parent's locked.
    holder: u32,
}

impl Drop for RealLock {
    fn drop(&mut self) {
        if process::id() == self.holder {
            // SAFETY: a system call on a descriptor that `file` holds open.
            unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
        }
    }
}

fn offset_of(value: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(value).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

impl File for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<bool> {
        let old = self.len()?;
        if old >= len {
            return Ok(true);
        }
        // SAFETY: a system call on an open descriptor.
        if unsafe { libc::fallocate(self.0.as_raw_fd(), 0, offset_of(old)?, offset_of(len - old)?) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // This file system cannot reserve; the file is made long enough, and writes may still find the device full.
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => self.0.set_len(len).map(|()| false),
            _ => {
                // A failed reservation may have grown the file part of the way: nothing shall have changed.
                let _ = self.0.set_len(old);
                Err(error)
            }
        }
    }

    fn map(&self, offset: u64, len: usize, writable: bool) -> io::Result<Option<Mapping>> {
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let (fd, at) = (self.0.as_raw_fd(), offset_of(offset)?);
        // SAFETY: asks for a fresh mapping at an address of the kernel's choosing.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, at) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        let mapping = Mapping { address, len };
        // Pages are read one at a time and at random: reading around them is what ruins a cache-limited store. And where a file
        // is written for the first time it would fill megabytes with zeros while the writer waits.
        // SAFETY: advice on the range just mapped.
        unsafe { libc::madvise(mapping.address.as_ptr().cast(), len, libc::MADV_RANDOM) };
        Ok(Some(mapping))
    }

    fn advise(&self, offset: u64, len: usize, advice: Advice) {
        let advice = match advice {
            Advice::WriteOut => return self.write_out(offset, len),
            Advice::WillNeed => libc::POSIX_FADV_WILLNEED,
            Advice::DontNeed => libc::POSIX_FADV_DONTNEED,
            Advice::Random => libc::POSIX_FADV_RANDOM,
        };
        if let (Ok(offset), Ok(len)) = (offset_of(offset), offset_of(len as u64)) {
            // SAFETY: a system call on an open descriptor; it changes what is cached, and no byte.
            unsafe { libc::posix_fadvise(self.0.as_raw_fd(), offset, len, advice) };
        }
    }
}

impl RealFile {
    #[cfg(target_os = "linux")]
    fn write_out(&self, offset: u64, len: usize) {
        if let (Ok(offset), Ok(len)) = (offset_of(offset), offset_of(len as u64)) {
            // SAFETY: a system call on an open descriptor; it changes no byte. An error will come up when the file is synced.
            unsafe { libc::sync_file_range(self.0.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn write_out(&self, _offset: u64, _len: usize) {}
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A directory of its own for a test, removed with everything in it at the end.
    pub(crate) struct Scratch(pub PathBuf);

    impl Scratch {
        pub(crate) fn new() -> Scratch {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("loosekv-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_are_read_written_mapped_and_listed() {
        let dir = Scratch::new();
        let path = dir.0.join("a");
        let file = RealFs.create(&path).unwrap();
        assert!(RealFs.create(&path).is_err());
        file.write_at(b"hello", 3).unwrap();
        let mut buf = [9u8; 16];
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), 8);
        assert_eq!(&buf[..8], b"\0\0\0hello");
        let map = file.map(0, 1 << 20, false).unwrap().unwrap();
        file.allocate(8192).unwrap();
        assert_eq!(file.len().unwrap(), 8192);
        file.write_at(b"far", 8000).unwrap();
        // SAFETY: the file reaches that far, and nothing writes there.
        let seen = unsafe { std::slice::from_raw_parts(map.at(8000, 3).unwrap().as_ptr(), 3) };
        assert_eq!(seen, b"far");
        assert!(map.at(1 << 20, 1).is_none());
        RealFs.rename(&path, &dir.0.join("b")).unwrap();
        RealFs.sync_dir(&dir.0).unwrap();
        assert_eq!(RealFs.list(&dir.0).unwrap(), ["b"]);
    }

    #[test]
    fn a_lock_is_exclusive_until_dropped() {
        let dir = Scratch::new();
        let held = RealFs.lock(&dir.0.join("lock")).unwrap();
        assert_eq!(RealFs.lock(&dir.0.join("lock")).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(held);
        assert!(RealFs.lock(&dir.0.join("lock")).is_ok());
    }

    #[test]
    fn a_lock_ends_with_its_holder_while_a_child_has_the_file_too() {
        let dir = Scratch::new();
        let path = dir.0.join("lock");
        let held = RealFs.lock(&path).unwrap();
        let lock = held.downcast_ref::<RealLock>().unwrap();
        let inherited = lock.file.try_clone().unwrap();
        // A child that ends, or drops the store, unlocks nothing.
        drop(RealLock { file: lock.file.try_clone().unwrap(), holder: lock.holder + 1 });
        assert_eq!(RealFs.lock(&path).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(held);
        assert!(RealFs.lock(&path).is_ok());
        drop(inherited);
    }
}
