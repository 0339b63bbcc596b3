//! The meta page on disk: `meta.lkv`, two slots of one page each.
//!
//! ```text
//! slot, host header:  0        4       6        8            16          24
//!                     | crc32c | slot  | format | storage id | flip count | the tree's meta page ... |
//! ```
//!
//! A flip writes one slot, syncs, writes the other, syncs. Whatever moment a crash strikes, one slot is whole; and once a
//! flip has returned both hold the same page, so that a damaged slot is never the only witness of a newer state: the whole
//! slot with the higher count is always the right one. Slots that differ when the file is opened are made equal first: the
//! newer page may stand in the operating system's cache alone, its sync having failed. The file comes into being complete, by a rename: a store with
//! a `meta.lkv` in which neither slot is whole is damaged, not new.

use super::crc32c;
use super::fs::{File, Fs};
use super::health::{lock, Health};
use crate::error::{Error, Result};
use crate::page::PageBuf;
use crate::types::{PageNo, PAGE_SIZE};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

pub const META_NAME: &str = "meta.lkv";
const NEW_NAME: &str = "meta.new";
/// Version of the files' layout: this file, the page file's headers, the log.
pub const FILES_FORMAT: u16 = 1;
const SLOTS: u16 = 2;

pub struct MetaFile {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// `None` until the first flip of a new store.
    state: Mutex<Option<Open>>,
}

struct Open {
    file: Arc<dyn File>,
    count: u64,
    storage_id: u64,
    /// The slot to be written first by the next flip: never the only whole one.
    first: u16,
}

impl MetaFile {
    /// Opens the file if there is one.
    pub fn open(fs: Arc<dyn Fs>, dir: &Path) -> Result<MetaFile> {
        let path = dir.join(META_NAME);
        let names = fs.list(dir).map_err(|e| Error::io(format!("cannot list {}", dir.display()), e))?;
        let state = if names.iter().any(|name| name == META_NAME) {
            let file = fs.open(&path).map_err(|e| Error::io(format!("cannot open {}", path.display()), e))?;
            let mut best = read_best(file.as_ref(), &path)?;
            let mut open =
                Open { file, count: best.count, storage_id: best.storage_id, first: (best.slot + 1) % SLOTS };
            if !best.agreed {
                // The best slot first: should this tear it, the other one is the durable one.
                open.first = best.slot;
                open.write(&mut best.page).map_err(|e| Error::io(format!("cannot write {}", path.display()), e))?;
            }
            Some(open)
        } else {
            None
        };
        Ok(MetaFile { fs, dir: dir.to_path_buf(), state: Mutex::new(state) })
    }

    pub fn exists(&self) -> bool {
        lock(&self.state).is_some()
    }

    pub fn storage_id(&self) -> Option<u64> {
        lock(&self.state).as_ref().map(|open| open.storage_id)
    }

    pub fn read(&self) -> Result<Option<PageBuf>> {
        match lock(&self.state).as_ref() {
            Some(open) => Ok(Some(*read_best(open.file.as_ref(), &self.dir.join(META_NAME))?.page)),
            None => Ok(None),
        }
    }

    /// Replaces the meta page, durably. What it refers to is durable already. A failure leaves it open which of the two is
    /// found after a crash, so it ends writing.
    pub fn flip(&self, meta: &mut PageBuf, storage_id: u64, health: &Health) -> Result<()> {
        let mut state = lock(&self.state);
        let result = match state.as_mut() {
            Some(open) => open.flip(meta),
            None => self.create(meta, storage_id).map(|open| *state = Some(open)),
        };
        result.map_err(|e| health.fatal(Error::io(format!("cannot write {META_NAME}"), e)))
    }

    fn create(&self, meta: &mut PageBuf, storage_id: u64) -> std::io::Result<Open> {
        let (new, path) = (self.dir.join(NEW_NAME), self.dir.join(META_NAME));
        if self.fs.list(&self.dir)?.iter().any(|name| name == NEW_NAME) {
            self.fs.remove(&new)?;
        }
        let file = self.fs.create(&new)?;
        for slot in 0..SLOTS {
            write_slot(file.as_ref(), meta, slot, 1, storage_id)?;
        }
        file.sync()?;
        self.fs.rename(&new, &path)?;
        self.fs.sync_dir(&self.dir)?;
        Ok(Open { file, count: 1, storage_id, first: 0 })
    }
}

impl Open {
    fn flip(&mut self, meta: &mut PageBuf) -> std::io::Result<()> {
        self.count += 1;
        self.write(meta)
    }

    fn write(&mut self, meta: &mut PageBuf) -> std::io::Result<()> {
        for slot in [self.first, (self.first + 1) % SLOTS] {
            write_slot(self.file.as_ref(), meta, slot, self.count, self.storage_id)?;
            self.file.sync()?;
        }
        Ok(())
    }
}

/// A whole slot.
struct Slot {
    slot: u16,
    page: Box<PageBuf>,
    storage_id: u64,
    count: u64,
    /// The other one says the same.
    agreed: bool,
}

fn write_slot(file: &dyn File, meta: &mut PageBuf, slot: u16, count: u64, storage_id: u64) -> std::io::Result<()> {
    meta.put_host_bytes(4, &slot.to_le_bytes());
    meta.put_host_bytes(6, &FILES_FORMAT.to_le_bytes());
    meta.put_host_bytes(8, &storage_id.to_le_bytes());
    meta.put_host_bytes(16, &count.to_le_bytes());
    let crc = crc32c::checksum(meta.0.get(4..).unwrap_or_default());
    meta.put_host_bytes(0, &crc.to_le_bytes());
    file.write_at(&meta.0, u64::from(slot) * PAGE_SIZE as u64)
}

/// The newest whole slot.
fn read_best(file: &dyn File, path: &Path) -> Result<Slot> {
    let mut best: Option<Slot> = None;
    let mut damage = String::new();
    for slot in 0..SLOTS {
        match read_slot(file, path, slot)? {
            Ok(found) => {
                let agreed = best.as_ref().is_some_and(|other| other.count == found.count);
                if best.as_ref().is_none_or(|other| found.count >= other.count) {
                    best = Some(Slot { agreed, ..found });
                }
            }
            Err(what) => damage = what,
        }
    }
    best.ok_or_else(|| Error::page(PageNo(0), 0, format!("no slot of {} is whole: {damage}", path.display())))
}

/// The outer error is the file system's (or a format from the future), the inner one says what is wrong with the slot.
fn read_slot(file: &dyn File, path: &Path, slot: u16) -> Result<std::result::Result<Slot, String>> {
    let mut page = PageBuf::boxed();
    let offset = u64::from(slot) * PAGE_SIZE as u64;
    let got = file.read_at(&mut page.0, offset).map_err(|e| Error::io(format!("cannot read {}", path.display()), e))?;
    if got != PAGE_SIZE {
        return Ok(Err(format!("slot {slot} has {got} bytes")));
    }
    let stored = u32::from_le_bytes(page.bytes_at(0));
    let found = crc32c::checksum(page.0.get(4..).unwrap_or_default());
    if stored != found {
        return Ok(Err(format!("slot {slot} has checksum {found:08x}, expected {stored:08x}")));
    }
    let format = u16::from_le_bytes(page.bytes_at(6));
    if format != FILES_FORMAT {
        return Err(Error::Format { found: u32::from(format), known: u32::from(FILES_FORMAT) });
    }
    if u16::from_le_bytes(page.bytes_at(4)) != slot {
        return Ok(Err(format!("slot {slot} is a copy of another")));
    }
    let (storage_id, count) = (u64::from_le_bytes(page.bytes_at(8)), u64::from_le_bytes(page.bytes_at(16)));
    Ok(Ok(Slot { slot, page, storage_id, count, agreed: false }))
}

#[cfg(test)]
mod tests {
    use super::super::fs::tests::Scratch;
    use super::super::fs::RealFs;
    use super::*;
    use crate::types::HOST_HEADER;

    fn page(byte: u8) -> PageBuf {
        let mut page = PageBuf::ZERO;
        page.0[HOST_HEADER..].fill(byte);
        page
    }

    fn open(dir: &Scratch) -> Result<MetaFile> {
        MetaFile::open(Arc::new(RealFs), &dir.0)
    }

    fn flip_byte(dir: &Scratch, at: usize) {
        let path = dir.0.join(META_NAME);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }

    #[test]
    fn the_newest_page_is_read_back_even_with_either_slot_damaged() {
        let dir = Scratch::new();
        let meta = open(&dir).unwrap();
        assert!(!meta.exists() && meta.read().unwrap().is_none());
        for byte in 1..6 {
            meta.flip(&mut page(byte), 77, &Health::default()).unwrap();
            assert_eq!(meta.read().unwrap().unwrap().0[100], byte);
            for slot in 0..2 {
                let at = slot * PAGE_SIZE + 500;
                flip_byte(&dir, at);
                let reopened = open(&dir).unwrap();
                assert_eq!(reopened.read().unwrap().unwrap().0[100], byte);
                assert_eq!(reopened.storage_id(), Some(77));
                // The open has mended it.
                assert!(
                    read_best(reopened.state.lock().unwrap().as_ref().unwrap().file.as_ref(), &dir.0).unwrap().agreed
                );
            }
        }
    }

    // Changing any of these bytes is a new format version.
    #[test]
    fn golden_slots() {
        let dir = Scratch::new();
        let meta = open(&dir).unwrap();
        (0..2).for_each(|_| meta.flip(&mut page(5), 77, &Health::default()).unwrap());
        let bytes = std::fs::read(dir.0.join(META_NAME)).unwrap();
        let head = |at: usize| bytes[at..at + 28].iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(bytes.len(), 2 * PAGE_SIZE);
        let rest = "0100 4d00000000000000 0200000000000000 05050505".replace(' ', "");
        assert_eq!(head(0), format!("173b49880000{rest}"));
        assert_eq!(head(PAGE_SIZE), format!("df11c5d80100{rest}"));
    }

    #[test]
    fn two_damaged_slots_and_unknown_formats_are_errors() {
        let dir = Scratch::new();
        open(&dir).unwrap().flip(&mut page(1), 77, &Health::default()).unwrap();
        flip_byte(&dir, 900);
        flip_byte(&dir, PAGE_SIZE + 900);
        assert!(matches!(open(&dir), Err(Error::Corrupt { .. })));
        std::fs::remove_file(dir.0.join(META_NAME)).unwrap();

        let mut bytes = page(1).0.to_vec();
        bytes[6] = 9;
        let crc = crc32c::checksum(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        std::fs::write(dir.0.join(META_NAME), [bytes.clone(), bytes].concat()).unwrap();
        assert!(matches!(open(&dir), Err(Error::Format { found: 9, known: 1 })));
    }
}
