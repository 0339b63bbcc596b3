//! A simulated file system, for tests: in memory, seeded, deterministic, and as forgetful as the rules allow.
//!
//! What has been written but not synced may be lost at a crash, sector by sector and in any combination; so may names that
//! were made, moved or removed since their directory was synced (a name may also outlive what its file was to hold). Errors
//! and a full device can be made to happen at any operation. After a crash every handle from before it is dead.

use super::fs::{File, Fs, Lock, Mapping};
use super::health::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Written whole or not at all.
const SECTOR: usize = 512;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails with EIO. A sync that fails leaves it open what has become durable.
    Error,
    /// The operation fails with ENOSPC if it takes room; operations that take none succeed.
    Full,
    /// The machine stops: this operation and all later ones fail, until [`SimFs::crash`].
    Stop,
}

/// What may not be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protected {
    /// The directory's names: files that are there can be written to.
    Names,
    /// The files that are there: names can be made and removed.
    Files,
    /// Anything: the device is mounted for reading alone.
    Device,
}

#[derive(Clone)]
pub struct SimFs(Arc<Mutex<Disk>>);

struct Disk {
    random: Random,
    /// Handles of other ages are dead.
    age: u64,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    /// Changes of names since their directory was synced, in order.
    renamings: Vec<Naming>,
    files: Vec<Data>,
    locked: bool,
    operations: u64,
    faults: Vec<(u64, Fault)>,
    /// Until then every operation that takes room fails.
    full: bool,
    stopped: bool,
    capacity: u64,
    /// The next sync fails.
    bad_sync: bool,
    protected: Option<Protected>,
}

#[derive(Clone)]
enum Naming {
    Make(PathBuf, usize),
    Move(PathBuf, PathBuf),
    Drop(PathBuf),
}

/// A file's bytes.
#[derive(Default)]
struct Data {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Since the last sync, in order.
    pending: Vec<Pending>,
    /// How often it is open: its room is given back when it has neither handle nor name.
    handles: usize,
}

enum Pending {
    Write(usize, Vec<u8>),
    Length(usize),
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n.max(1)
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

impl SimFs {
    pub fn new(seed: u64) -> SimFs {
        SimFs(Arc::new(Mutex::new(Disk {
            random: Random::new(seed),
            age: 0,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            renamings: Vec::new(),
            files: Vec::new(),
            locked: false,
            operations: 0,
            faults: Vec::new(),
            full: false,
            stopped: false,
            capacity: u64::MAX,
            bad_sync: false,
            protected: None,
        })))
    }

    /// Operations that change something, so far.
    pub fn operations(&self) -> u64 {
        lock(&self.0).operations
    }

    /// Makes the operation with this number go wrong.
    pub fn fault_at(&self, operation: u64, fault: Fault) {
        lock(&self.0).faults.push((operation, fault));
    }

    /// Makes the next sync of a file fail, as [`Fault::Error`] does.
    pub fn fail_sync(&self) {
        lock(&self.0).bad_sync = true;
    }

    /// From now on (or no longer) the device has no room left.
    pub fn set_full(&self, full: bool) {
        lock(&self.0).full = full;
    }

    /// From now on, whatever happens to machine and process, this may not be changed.
    pub fn protect(&self, what: Option<Protected>) {
        lock(&self.0).protected = what;
    }

    /// Room on the device.
    pub fn set_capacity(&self, bytes: u64) {
        lock(&self.0).capacity = bytes;
    }

    /// The power fails: what was not synced is kept or lost at random, and all handles are dead.
    pub fn crash(&self) {
        lock(&self.0).crash();
    }

    /// The process ends, and the machine goes on: nothing is lost, all handles are dead.
    pub fn kill(&self) {
        lock(&self.0).begin_age();
    }

    /// Changes a byte of a file as a failing device would.
    pub fn damage(&self, path: &Path, at: usize, mask: u8) -> bool {
        let mut disk = lock(&self.0);
        let Some(file) = disk.names.get(path).copied() else { return false };
        let Some(data) = disk.files.get_mut(file) else { return false };
        let mut hit = false;
        for bytes in [&mut data.now, &mut data.durable] {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= mask;
                hit = true;
            }
        }
        hit
    }

    fn handle(&self, disk: &mut Disk, file: usize) -> Arc<dyn File> {
        if let Some(data) = disk.files.get_mut(file) {
            data.handles += 1;
        }
        Arc::new(SimFile { fs: self.clone(), file, age: disk.age })
    }

    /// Whether the machine has stopped by a [`Fault::Stop`].
    pub fn is_stopped(&self) -> bool {
        lock(&self.0).stopped
    }

    /// The names there are, with the lengths of their files.
    pub fn files(&self) -> Vec<(PathBuf, usize)> {
        let disk = lock(&self.0);
        disk.names.iter().map(|(name, file)| (name.clone(), disk.files.get(*file).map_or(0, |d| d.now.len()))).collect()
    }
}

fn dead() -> io::Error {
    io::Error::other("the simulated machine has stopped")
}

fn full() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOSPC)
}

impl Disk {
    fn begin_age(&mut self) {
        self.age += 1;
        self.locked = false;
        self.stopped = false;
        self.full = false;
        self.faults.clear();
        self.bad_sync = false;
        self.files.iter_mut().for_each(|data| data.handles = 0);
    }

    fn crash(&mut self) {
        self.begin_age();
        // How much of what was not synced had been written anyway.
        let kept = match self.random.below(4) {
            0 => 0,
            1 => 100,
            _ => self.random.below(100),
        };
        let renamings = std::mem::take(&mut self.renamings);
        for naming in renamings {
            if self.random.chance(kept) {
                apply(&mut self.durable_names, &naming);
            }
        }
        self.names = self.durable_names.clone();
        let mut random = self.random.clone();
        for data in &mut self.files {
            data.settle(&mut random, kept);
            data.now.clone_from(&data.durable);
        }
        self.random = random;
    }

    /// Counts an operation that changes something, and lets it go wrong if that was asked for.
    fn operate(&mut self, takes_room: u64) -> io::Result<()> {
        let number = self.operations;
        self.operations += 1;
        let fault = self.faults.iter().find(|(at, _)| *at == number).map(|(_, fault)| *fault);
        if self.stopped {
            return Err(dead());
        }
        let left = if takes_room > 0 { self.left() } else { 0 };
        match fault {
            Some(Fault::Error) => Err(io::Error::from_raw_os_error(libc::EIO)),
            Some(Fault::Stop) => {
                self.stopped = true;
                Err(dead())
            }
            Some(Fault::Full) if takes_room > 0 => Err(full()),
            _ if takes_room > left => Err(full()),
            _ => Ok(()),
        }
    }

    /// Whether names may be made, moved and removed.
    fn may_name(&self) -> io::Result<()> {
        match self.protected {
            Some(Protected::Names) => Err(io::Error::from_raw_os_error(libc::EACCES)),
            Some(Protected::Device) => Err(io::Error::from_raw_os_error(libc::EROFS)),
            Some(Protected::Files) | None => Ok(()),
        }
    }

    /// Whether files may be opened to be written to.
    fn may_open(&self) -> io::Result<()> {
        match self.protected {
            Some(Protected::Files) => Err(io::Error::from_raw_os_error(libc::EACCES)),
            _ => self.may_write(),
        }
    }

    /// Whether open files may be written to.
    fn may_write(&self) -> io::Result<()> {
        match self.protected {
            Some(Protected::Device) => Err(io::Error::from_raw_os_error(libc::EROFS)),
            _ => Ok(()),
        }
    }

    fn file(&mut self, file: usize) -> io::Result<&mut Data> {
        self.files.get_mut(file).ok_or_else(dead)
    }

    /// Bytes that there is room for.
    fn left(&self) -> u64 {
        if self.full || self.capacity == u64::MAX {
            return if self.full { 0 } else { u64::MAX };
        }
        let named: BTreeSet<usize> = self.names.values().copied().collect();
        let there = self.files.iter().enumerate().filter(|(file, data)| data.handles > 0 || named.contains(file));
        self.capacity.saturating_sub(there.map(|(_, data)| data.now.len() as u64).sum())
    }
}

fn apply(names: &mut BTreeMap<PathBuf, usize>, naming: &Naming) {
    match naming {
        Naming::Make(path, file) => {
            names.insert(path.clone(), *file);
        }
        Naming::Move(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        Naming::Drop(path) => {
            names.remove(path);
        }
    }
}

impl Data {
    /// Lets some of what is pending become durable, and forgets the rest.
    fn settle(&mut self, random: &mut Random, kept: u64) {
        for pending in std::mem::take(&mut self.pending) {
            match pending {
                Pending::Length(len) => {
                    if random.chance(kept) {
                        self.durable.resize(len, 0);
                    }
                }
                Pending::Write(at, bytes) => self.settle_sectors(at, &bytes, random, kept),
            }
        }
    }

    fn settle_sectors(&mut self, at: usize, bytes: &[u8], random: &mut Random, kept: u64) {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let len = (SECTOR - (at + done) % SECTOR).min(rest.len());
            if random.chance(kept) {
                put(&mut self.durable, at + done, rest.get(..len).unwrap_or_default());
            }
            done += len;
        }
    }
}

fn put(to: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if to.len() < at + bytes.len() {
        to.resize(at + bytes.len(), 0);
    }
    if let Some(room) = to.get_mut(at..at + bytes.len()) {
        room.copy_from_slice(bytes);
    }
}

impl Fs for SimFs {
    fn create_dir(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut disk = lock(&self.0);
        let file = *disk.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        disk.may_open()?;
        Ok(self.handle(&mut disk, file))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut disk = lock(&self.0);
        disk.may_name()?;
        disk.operate(1)?;
        if disk.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = disk.files.len();
        disk.files.push(Data::default());
        disk.rename(Naming::Make(path.to_path_buf(), file));
        Ok(self.handle(&mut disk, file))
    }

    fn create_unnamed(&self, _dir: &Path) -> io::Result<Arc<dyn File>> {
        let mut disk = lock(&self.0);
        disk.may_name()?;
        disk.operate(1)?;
        let file = disk.files.len();
        disk.files.push(Data::default());
        Ok(self.handle(&mut disk, file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = lock(&self.0);
        disk.may_name()?;
        disk.operate(0)?;
        if !disk.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        disk.rename(Naming::Move(from.to_path_buf(), to.to_path_buf()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = lock(&self.0);
        disk.may_name()?;
        disk.operate(0)?;
        if !disk.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        disk.rename(Naming::Drop(path.to_path_buf()));
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let disk = lock(&self.0);
        let names = disk.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(names.filter_map(|path| Some(path.file_name()?.to_str()?.to_string())).collect())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        let mut disk = lock(&self.0);
        disk.operate(0)?;
        let renamings = std::mem::take(&mut disk.renamings);
        renamings.iter().for_each(|naming| apply(&mut disk.durable_names, naming));
        Ok(())
    }

    fn lock(&self, _path: &Path) -> io::Result<Lock> {
        let mut disk = lock(&self.0);
        disk.may_open()?;
        if std::mem::replace(&mut disk.locked, true) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(SimLock { fs: self.clone(), age: disk.age }))
    }

    fn room(&self, _dir: &Path) -> Option<u64> {
        Some(lock(&self.0).left()).filter(|left| *left < u64::MAX)
    }

    fn random(&self) -> io::Result<u64> {
        Ok(lock(&self.0).random.bits())
    }

    fn sleep(&self, _time: Duration) {}
}

impl Disk {
    fn rename(&mut self, naming: Naming) {
        apply(&mut self.names, &naming);
        self.renamings.push(naming);
    }
}

struct SimLock {
    fs: SimFs,
    age: u64,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut disk = lock(&self.fs.0);
        if disk.age == self.age {
            disk.locked = false;
        }
    }
}

struct SimFile {
    fs: SimFs,
    file: usize,
    age: u64,
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut disk = lock(&self.fs.0);
        if disk.age == self.age {
            if let Some(data) = disk.files.get_mut(self.file) {
                data.handles -= 1;
            }
        }
    }
}

impl SimFile {
    /// Does something with the file, unless the handle is dead.
    fn with<T>(&self, act: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        let mut disk = lock(&self.fs.0);
        if disk.age != self.age {
            return Err(dead());
        }
        act(&mut disk)
    }

    fn resize(disk: &mut Disk, file: usize, len: u64) -> io::Result<()> {
        disk.may_write()?;
        let old = disk.file(file)?.now.len() as u64;
        disk.operate(len.saturating_sub(old))?;
        let data = disk.file(file)?;
        data.now.resize(len as usize, 0);
        data.pending.push(Pending::Length(len as usize));
        Ok(())
    }
}

impl File for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with(|disk| {
            if disk.stopped {
                return Err(dead());
            }
            let now = &disk.file(self.file)?.now;
            let from = now.get(offset as usize..).unwrap_or_default();
            let len = from.len().min(buf.len());
            buf.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            Ok(len)
        })
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.with(|disk| {
            disk.may_write()?;
            let grows = (offset + buf.len() as u64).saturating_sub(disk.file(self.file)?.now.len() as u64);
            let result = disk.operate(grows);
            // A write that fails has often been made in part.
            let done = match &result {
                Ok(()) => buf.len(),
                Err(_) => disk.random.below(buf.len() as u64) as usize / SECTOR * SECTOR,
            };
            let written = buf.get(..done).unwrap_or_default();
            if !disk.stopped && grows == 0 || result.is_ok() {
                let data = disk.file(self.file)?;
                put(&mut data.now, offset as usize, written);
                data.pending.push(Pending::Write(offset as usize, written.to_vec()));
            }
            result
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|disk| {
            let mut result = disk.operate(0);
            if std::mem::take(&mut disk.bad_sync) {
                result = result.and(Err(io::Error::from_raw_os_error(libc::EIO)));
            }
            let mut random = disk.random.clone();
            let stopped = disk.stopped;
            let data = disk.file(self.file)?;
            match result {
                Ok(()) => {
                    data.pending.clear();
                    data.durable.clone_from(&data.now);
                }
                // What could not be written is taken for written from now on: the next sync will not try again.
                Err(_) if !stopped => {
                    let kept = random.below(100);
                    data.settle(&mut random, kept);
                    disk.random = random;
                }
                Err(_) => {}
            }
            result
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|disk| Ok(disk.file(self.file)?.now.len() as u64))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|disk| SimFile::resize(disk, self.file, len))
    }

    fn allocate(&self, len: u64) -> io::Result<bool> {
        self.with(|disk| {
            if disk.file(self.file)?.now.len() as u64 >= len {
                return Ok(true);
            }
            SimFile::resize(disk, self.file, len).map(|()| true)
        })
    }

    fn map(&self, _offset: u64, _len: usize, _writable: bool) -> io::Result<Option<Mapping>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        Path::new("/store").join(name)
    }

    #[test]
    fn what_was_synced_survives_and_the_rest_may_not() {
        let (mut lost, mut torn, mut kept, mut nameless) = (0, 0, 0, 0);
        for seed in 0..200 {
            let fs = SimFs::new(seed);
            let file = fs.create(&path("a")).unwrap();
            file.write_at(&[1; 2048], 0).unwrap();
            file.sync().unwrap();
            fs.sync_dir(Path::new("/store")).unwrap();
            file.write_at(&[2; 2048], 0).unwrap();
            fs.create(&path("b")).unwrap();
            fs.crash();
            assert!(file.write_at(b"x", 0).is_err(), "dead handles do nothing");
            nameless += usize::from(fs.open(&path("b")).is_err());
            let mut bytes = [0; 2048];
            assert_eq!(fs.open(&path("a")).unwrap().read_at(&mut bytes, 0).unwrap(), 2048);
            assert!(bytes.chunks(SECTOR).all(|s| s.iter().all(|b| *b == s[0]) && (s[0] == 1 || s[0] == 2)));
            match bytes.iter().filter(|b| **b == 2).count() {
                0 => lost += 1,
                2048 => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(lost > 20 && torn > 20 && kept > 20 && nameless > 20, "{lost} {torn} {kept} {nameless}");
    }

    #[test]
    fn faults_happen_where_they_were_put() {
        let fs = SimFs::new(1);
        let file = fs.create(&path("a")).unwrap();
        file.write_at(&[1; 1000], 0).unwrap();
        fs.fault_at(fs.operations(), Fault::Full);
        assert_eq!(file.allocate(5000).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.len().unwrap(), 1000);
        fs.fault_at(fs.operations(), Fault::Error);
        assert!(file.sync().is_err());
        assert!(file.sync().is_ok());
        fs.fault_at(fs.operations(), Fault::Stop);
        assert!(file.sync().is_err() && file.write_at(b"x", 0).is_err() && fs.create(&path("b")).is_err());
        fs.kill();
        let file = fs.open(&path("a")).unwrap();
        fs.set_capacity(1500);
        assert!(file.allocate(1600).is_err() && file.allocate(1400).is_ok());
    }

    #[test]
    fn the_lock_ends_with_the_machine() {
        let fs = SimFs::new(1);
        let held = fs.lock(&path("lock")).unwrap();
        assert!(fs.lock(&path("lock")).is_err());
        fs.kill();
        let again = fs.lock(&path("lock")).unwrap();
        drop(held);
        assert!(fs.lock(&path("lock")).is_err());
        drop(again);
        assert!(fs.lock(&path("lock")).is_ok());
    }
}
