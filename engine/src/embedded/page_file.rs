//! The page file: `pages.lkv`, page n at n * 8192.
//!
//! ```text
//! host header:  0        4             8            16         24
//!               | crc32c | page number | storage id | reserved | the engine's page ... |
//! ```
//!
//! The checksum covers the page from byte 4 on. Page number and storage id tell a page that was written to the wrong
//! place, or belongs to another store, from the right one.
//!
//! Mapped reads cost no copy and no system call: the file is mapped in regions of 8 GiB, each far past the file's end, so
//! that growing the file never moves anything. The checksum of a mapped page is verified when it is first read after
//! being written or after the open, and noted in a bitmap. Copied reads (for file systems without mappings, or to stay
//! within an exact memory budget) go through [`PageCache`] and are verified whenever they come from the file. What the
//! operating system keeps as well is memory lost: where it keeps so little that reads wait for the device, it is told to drop
//! what the cache has.

use super::crc32c;
use super::fs::{Advice, File, Fs, Mapping};
use super::health::{lock, Health};
use super::page_cache::PageCache;
use crate::cpu::{fetch, Near};
use crate::error::{Error, Result};
use crate::page::PageBuf;
use crate::types::{PageNo, PAGE_SIZE};
use std::ops::Deref;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

pub const PAGES_NAME: &str = "pages.lkv";

/// Pages in one mapped region.
const REGION_PAGES: u32 = 1 << 20;
const REGIONS: usize = 1 << 12;

/// The device is given pieces of this size, aligned to it, of what is written: the system keeps a file in pieces, and one that is
/// written to after it went out goes out, or counts as written, once more.
const WRITTEN_OUT: u64 = 1 << 20;

/// How pages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// From a mapping of the file: the operating system's cache is the only one.
    Mapped,
    /// Copied into a cache of so many bytes.
    Cached { bytes: usize },
}

/// A page being read.
pub enum Page {
    Mapped { page: NonNull<PageBuf>, _region: Arc<Region> },
    Copied(Arc<PageBuf>),
}

// SAFETY: a mapped page is read-only, and its region is kept mapped by the reference that travels along.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Deref for Page {
    type Target = PageBuf;

    fn deref(&self) -> &PageBuf {
        match self {
            // SAFETY: mapped, aligned to 8192 as the file's pages are, kept by `_region`. No page that a reader may hold is
            // written: the tree gives pages out again only when no superversion that names them is pinned any more.
            Page::Mapped { page, .. } => unsafe { page.as_ref() },
            Page::Copied(page) => page,
        }
    }
}

/// A mapped piece of the file and what is known of its pages.
pub struct Region {
    mapping: Mapping,
    /// One bit a page: its checksum has been verified since it was last written.
    verified: Box<[AtomicU64]>,
}

pub struct PageFile {
    file: Arc<dyn File>,
    /// The file once more, of which the system may read ahead; if pages are copied.
    in_order: Option<Arc<dyn File>>,
    name: String,
    storage_id: AtomicU64,
    /// Length in pages.
    pages: AtomicU32,
    verify: bool,
    /// Empty when reads are copied.
    regions: Box<[OnceLock<Arc<Region>>]>,
    mapping: Mutex<()>,
    cache: PageCache,
    waits: Waits,
    pub reads: AtomicU64,
    /// Pages that were copied from the file, for the cache did not have them.
    pub fetched: AtomicU64,
    pub written: AtomicU64,
}

/// How many of the reads wait for the device.
#[derive(Default)]
struct Waits {
    /// In 1024 of the last reads, about.
    share: AtomicU32,
}

impl Waits {
    /// A read that takes longer has waited for a device.
    const LONG: Duration = Duration::from_micros(12);
    /// Reads that count.
    const WINDOW: u32 = 32;
    const MANY: u32 = 1024 / 8;

    fn note(&self, time: Duration) {
        let share = self.share.load(Ordering::Relaxed);
        let now = if time > Waits::LONG { 1024 } else { 0 };
        // Rounded up, so that it comes to its end in both directions.
        let next = (share * (Waits::WINDOW - 1) + now).div_ceil(Waits::WINDOW);
        self.share.store(if now == 0 { next.min(share.saturating_sub(1)) } else { next }, Ordering::Relaxed);
    }

    /// Pages were asked for ahead: what spares the reads that follow their wait does not show that there is none.
    fn note_request(&self, time: Duration) {
        if time > Waits::LONG {
            self.share.store(1024, Ordering::Relaxed);
        }
    }

    fn are_many(&self) -> bool {
        self.share.load(Ordering::Relaxed) > Waits::MANY
    }
}

impl PageFile {
    /// Opens the file, or makes it.
    pub fn open(fs: &dyn Fs, dir: &Path, reads: Reads, verify: bool) -> Result<PageFile> {
        let path = dir.join(PAGES_NAME);
        let name = path.display().to_string();
        let file = match fs.open(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let file = fs.create(&path).map_err(|e| Error::io(format!("cannot create {name}"), e))?;
                fs.sync_dir(dir).map_err(|e| Error::io(format!("cannot sync {}", dir.display()), e))?;
                file
            }
            other => other.map_err(|e| Error::io(format!("cannot open {name}"), e))?,
        };
        let len = file.len().map_err(|e| Error::io(format!("cannot tell the length of {name}"), e))?;
        let pages =
            u32::try_from(len / PAGE_SIZE as u64).map_err(|_| Error::structure(format!("{name} is too long")))?;
        let probe = match reads {
            Reads::Mapped => file.map(0, PAGE_SIZE, false).map_err(|e| Error::io(format!("cannot map {name}"), e))?,
            Reads::Cached { .. } => None,
        };
        let in_order = match reads {
            Reads::Mapped => None,
            Reads::Cached { .. } => {
                file.advise(0, 0, Advice::Random);
                Some(fs.open(&path).map_err(|e| Error::io(format!("cannot open {name}"), e))?)
            }
        };
        let regions = if probe.is_some() { (0..REGIONS).map(|_| OnceLock::new()).collect() } else { Box::default() };
        let cache_bytes = match reads {
            Reads::Mapped => 0,
            Reads::Cached { bytes } => bytes,
        };
        Ok(PageFile {
            file,
            in_order,
            name,
            storage_id: AtomicU64::new(0),
            pages: AtomicU32::new(pages),
            verify,
            regions,
            mapping: Mutex::new(()),
            cache: PageCache::new(cache_bytes),
            waits: Waits::default(),
            reads: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            written: AtomicU64::new(0),
        })
    }

    /// Tells whose pages these are; before the first read or write.
    pub fn set_storage_id(&self, storage_id: u64) {
        self.storage_id.store(storage_id, Ordering::Release);
    }

    pub fn pages(&self) -> u32 {
        self.pages.load(Ordering::Acquire)
    }

    pub fn read(&self, page: PageNo) -> Result<Page> {
        self.read_by(page, &self.file)
    }

    /// As [`PageFile::read`], for one of many pages that are read in their order.
    pub fn read_in_order(&self, page: PageNo) -> Result<Page> {
        self.read_by(page, self.in_order.as_ref().unwrap_or(&self.file))
    }

    fn read_by(&self, page: PageNo, file: &Arc<dyn File>) -> Result<Page> {
        if page.0 >= self.pages() {
            return Err(self.damage(page, 0, format!("the file ends at page {}", self.pages())));
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.regions.is_empty() {
            return self.read_copied(page, file);
        }
        let (region, within) = self.region(page)?;
        let offset = within as usize * PAGE_SIZE;
        let Some(address) = region.mapping.at(offset, PAGE_SIZE) else {
            return Err(self.damage(page, 0, "past the mapped region".into()));
        };
        let mapped = Page::Mapped { page: address.cast(), _region: Arc::clone(region) };
        if self.verify {
            let bit = 1u64 << (within % 64);
            if let Some(word) = region.verified.get(within as usize / 64) {
                if word.load(Ordering::Acquire) & bit == 0 {
                    self.check(page, &mapped)?;
                    word.fetch_or(bit, Ordering::AcqRel);
                }
            }
        }
        Ok(mapped)
    }

    fn read_copied(&self, page: PageNo, file: &Arc<dyn File>) -> Result<Page> {
        if let Some(found) = self.cache.get(page) {
            return Ok(Page::Copied(found));
        }
        let mut copy = Arc::new(PageBuf::ZERO);
        let buf = Arc::get_mut(&mut copy).ok_or_else(|| Error::structure("a fresh page is shared"))?;
        let begun = Instant::now();
        let got = file.read_at(&mut buf.0, offset_of(page)).map_err(|e| self.io("read", page, e))?;
        self.waits.note(begun.elapsed());
        self.fetched.fetch_add(1, Ordering::Relaxed);
        if got != PAGE_SIZE {
            return Err(self.damage(page, got, "the file ends within the page".into()));
        }
        if self.verify {
            self.check(page, buf)?;
        }
        if self.cache.offer(page, &copy) && self.waits.are_many() {
            self.file.advise(offset_of(page), PAGE_SIZE, Advice::DontNeed);
        }
        Ok(Page::Copied(copy))
    }

    /// These pages will be read soon. Of a mapped file the system reads pages when they are looked at.
    pub fn prefetch(&self, first: PageNo, pages: u32) {
        if !self.regions.is_empty() || !self.waits.are_many() {
            return;
        }
        let mut wanted = first.0..first.0.saturating_add(pages);
        // Those in the middle are asked for again, if they have to be: it is one request.
        while !wanted.is_empty() && self.cache.has(PageNo(wanted.start)) {
            wanted.start += 1;
        }
        while !wanted.is_empty() && self.cache.has(PageNo(wanted.end - 1)) {
            wanted.end -= 1;
        }
        if wanted.is_empty() {
            return;
        }
        let begun = Instant::now();
        self.file.advise(offset_of(PageNo(wanted.start)), wanted.len() * PAGE_SIZE, Advice::WillNeed);
        self.waits.note_request(begun.elapsed());
    }

    /// Lets the processor fetch these places of a mapped page.
    #[inline]
    pub fn touch(&self, page: PageNo, places: impl Iterator<Item = usize>, near: Near) {
        let region = self.regions.get((page.0 / REGION_PAGES) as usize).and_then(OnceLock::get);
        let Some(region) = region.filter(|_| page.0 < self.pages()) else { return };
        let offset = (page.0 % REGION_PAGES) as usize * PAGE_SIZE;
        if let Some(address) = region.mapping.at(offset, PAGE_SIZE) {
            places.for_each(|at| fetch(address.as_ptr().wrapping_add(at), near));
        }
    }

    /// Reads the page from the file once more, whatever is known of it, and checks it.
    pub fn verify(&self, page: PageNo) -> Result<()> {
        let mut copy = PageBuf::boxed();
        let got = self.file.read_at(&mut copy.0, offset_of(page)).map_err(|e| self.io("read", page, e))?;
        if got != PAGE_SIZE {
            return Err(self.damage(page, got, "the file ends within the page".into()));
        }
        self.check(page, &copy)
    }

    /// The region of a page, mapped at first use, and the page's place in it.
    fn region(&self, page: PageNo) -> Result<(&Arc<Region>, u32)> {
        let (number, within) = (page.0 / REGION_PAGES, page.0 % REGION_PAGES);
        let slot =
            self.regions.get(number as usize).ok_or_else(|| self.damage(page, 0, "past the last region".into()))?;
        if let Some(region) = slot.get() {
            return Ok((region, within));
        }
        let _one = lock(&self.mapping);
        if slot.get().is_none() {
            let len = REGION_PAGES as usize * PAGE_SIZE;
            let mapping =
                self.file.map(u64::from(number) * len as u64, len, false).map_err(|e| self.io("map", page, e))?;
            let mapping = mapping.ok_or_else(|| Error::structure("the file can no longer be mapped"))?;
            let verified = (0..REGION_PAGES / 64).map(|_| AtomicU64::new(0)).collect();
            let _ = slot.set(Arc::new(Region { mapping, verified }));
        }
        slot.get().map(|region| (region, within)).ok_or_else(|| Error::structure("a region was not kept"))
    }

    fn check(&self, page: PageNo, buf: &PageBuf) -> Result<()> {
        let stored = u32::from_le_bytes(buf.bytes_at(0));
        let found = crc32c::checksum(buf.0.get(4..).unwrap_or_default());
        if stored != found {
            return Err(self.damage(page, 0, format!("checksum is {found:08x}, expected {stored:08x}")));
        }
        let number = u32::from_le_bytes(buf.bytes_at(4));
        if number != page.0 {
            return Err(self.damage(page, 4, format!("found page {number} in its place")));
        }
        let (id, own) = (u64::from_le_bytes(buf.bytes_at(8)), self.storage_id.load(Ordering::Acquire));
        if id != own {
            return Err(self.damage(page, 8, format!("belongs to store {id:016x}, not {own:016x}")));
        }
        Ok(())
    }

    /// Stamps and writes pages side by side.
    pub fn write(&self, start: PageNo, pages: &mut [PageBuf], health: &Health) -> Result<()> {
        health.check()?;
        let count = u32::try_from(pages.len()).unwrap_or(u32::MAX);
        if start.0.checked_add(count).is_none_or(|end| end > self.pages()) {
            return Err(Error::structure(format!("{count} pages at {start} are past the end of {}", self.name)));
        }
        let storage_id = self.storage_id.load(Ordering::Acquire);
        for (number, page) in (start.0..).zip(pages.iter_mut()) {
            stamp(page, number, storage_id);
            self.forget(PageNo(number));
        }
        // SAFETY: a page is its 8192 bytes and nothing else (repr(C), aligned to less), so pages in a slice are adjacent bytes.
        let bytes = unsafe { std::slice::from_raw_parts(pages.as_ptr().cast::<u8>(), pages.len() * PAGE_SIZE) };
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.file.write_at(bytes, offset_of(start)).map_err(|e| self.io("write", start, e))?;
        // Pieces that are whole now.
        let begun = |offset: u64| offset - offset % WRITTEN_OUT;
        let (from, until) = (begun(offset_of(start)), begun(offset_of(start) + bytes.len() as u64));
        if from < until {
            self.file.advise(from, (until - from) as usize, Advice::WriteOut);
        }
        Ok(())
    }

    /// The page's contents are about to change: what is known of the old ones no longer holds.
    fn forget(&self, page: PageNo) {
        self.cache.remove(page);
        if let Some(region) = self.regions.get((page.0 / REGION_PAGES) as usize).and_then(OnceLock::get) {
            let within = page.0 % REGION_PAGES;
            if let Some(word) = region.verified.get(within as usize / 64) {
                word.fetch_and(!(1u64 << (within % 64)), Ordering::AcqRel);
            }
        }
    }

    /// Makes the file at least so long, its room reserved.
    pub fn extend(&self, pages: u32) -> Result<()> {
        if pages > self.pages() {
            let name = &self.name;
            self.file.allocate(u64::from(pages) * PAGE_SIZE as u64).map_err(|e| match e.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    Error::NoSpace(format!("{name} cannot grow to {pages} pages: {e}"))
                }
                _ => Error::io(format!("cannot extend {name} to {pages} pages"), e),
            })?;
            self.pages.fetch_max(pages, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Cuts the file to so many pages.
    pub fn shrink(&self, pages: u32) -> Result<()> {
        let old = self.pages();
        if pages < old {
            self.pages.store(pages, Ordering::Release);
            (pages..old).for_each(|page| self.forget(PageNo(page)));
            let name = &self.name;
            self.file
                .set_len(u64::from(pages) * PAGE_SIZE as u64)
                .map_err(|e| Error::io(format!("cannot cut {name}"), e))?;
        }
        Ok(())
    }

    /// Makes everything written durable. A failure ends writing (I18).
    pub fn sync(&self, health: &Health) -> Result<()> {
        self.file.sync().map_err(|e| health.fatal(Error::io(format!("cannot sync {}", self.name), e)))
    }

    fn damage(&self, page: PageNo, offset: usize, what: String) -> Error {
        Error::page(page, offset, format!("{}: {what}", self.name))
    }

    fn io(&self, verb: &str, page: PageNo, source: std::io::Error) -> Error {
        Error::io_or_no_space(format!("cannot {verb} page {page} of {}", self.name), source)
    }
}

fn offset_of(page: PageNo) -> u64 {
    u64::from(page.0) * PAGE_SIZE as u64
}

fn stamp(page: &mut PageBuf, number: u32, storage_id: u64) {
    page.put_host_bytes(4, &number.to_le_bytes());
    page.put_host_bytes(8, &storage_id.to_le_bytes());
    page.put_host_bytes(16, &[0; 8]);
    let crc = crc32c::checksum(page.0.get(4..).unwrap_or_default());
    page.put_host_bytes(0, &crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::fs::tests::Scratch;
    use super::super::fs::RealFs;
    use super::*;
    use crate::page::PageKind;
    use crate::types::ExtentSeq;

    fn file(dir: &Scratch, reads: Reads) -> PageFile {
        let file = PageFile::open(&RealFs, &dir.0, reads, true).unwrap();
        file.set_storage_id(5);
        file
    }

    fn pages(from: u8, count: u8) -> Vec<PageBuf> {
        (from..from + count)
            .map(|byte| {
                let mut page = PageBuf::ZERO;
                page.init(PageKind::Data, ExtentSeq(3));
                page.fill(&[byte; 100]).unwrap();
                page
            })
            .collect()
    }

    // Changing any of these bytes is a new format version.
    #[test]
    fn golden_host_header() {
        let mut page = PageBuf::ZERO;
        page.init(PageKind::Data, ExtentSeq(3));
        page.fill(&[7; 4]).unwrap();
        stamp(&mut page, 9, 0x0102_0304_0506_0708);
        let found: String = page.0.iter().take(48).map(|b| format!("{b:02x}")).collect();
        let expected =
            "345b7b6f 09000000 0807060504030201 0000000000000000 04010000 2c000000 0300000000000000 0707070700000000";
        assert_eq!(found, expected.replace(' ', ""));
    }

    const BOTH: [Reads; 2] = [Reads::Mapped, Reads::Cached { bytes: 1 << 20 }];

    #[test]
    fn pages_come_back_as_written_and_rewritten() {
        for reads in BOTH {
            let dir = Scratch::new();
            let health = Health::default();
            let file = file(&dir, reads);
            file.extend(8).unwrap();
            file.write(PageNo(2), &mut pages(10, 4), &health).unwrap();
            assert_eq!(file.read(PageNo(4)).unwrap().0[50], 12);
            file.write(PageNo(4), &mut pages(77, 1), &health).unwrap();
            assert_eq!(file.read(PageNo(4)).unwrap().0[50], 77);
            file.sync(&health).unwrap();
            assert!(file.write(PageNo(7), &mut pages(1, 2), &health).is_err());
            file.shrink(5).unwrap();
            assert!(matches!(file.read(PageNo(5)), Err(Error::Corrupt { .. })));
            drop(file);
            let again = self::file(&dir, reads);
            assert_eq!(again.pages(), 5);
            assert_eq!(again.read(PageNo(3)).unwrap().0[50], 11);
        }
    }

    #[test]
    fn every_flipped_byte_is_found_and_named() {
        for reads in BOTH {
            let dir = Scratch::new();
            let written = file(&dir, reads);
            written.extend(4).unwrap();
            written.write(PageNo(0), &mut pages(1, 4), &Health::default()).unwrap();
            drop(written);
            let path = dir.0.join(PAGES_NAME);
            let good = std::fs::read(&path).unwrap();
            for at in (0..24).chain([40, 100, 4000, 8191]) {
                let mut bad = good.clone();
                bad[2 * PAGE_SIZE + at] ^= 0x10;
                std::fs::write(&path, &bad).unwrap();
                let file = file(&dir, reads);
                let said = file.read(PageNo(2)).err().unwrap().to_string();
                assert!(said.contains("page 2") && said.contains(PAGES_NAME), "{said}");
                assert!(file.read(PageNo(1)).is_ok());
            }
        }
    }

    #[test]
    fn misplaced_and_foreign_pages_are_found() {
        let dir = Scratch::new();
        let health = Health::default();
        let file = file(&dir, Reads::Mapped);
        file.extend(4).unwrap();
        file.write(PageNo(0), &mut pages(1, 4), &health).unwrap();
        let path = dir.0.join(PAGES_NAME);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.copy_within(0..PAGE_SIZE, PAGE_SIZE);
        std::fs::write(&path, &bytes).unwrap();
        let said = file.read(PageNo(1)).err().unwrap().to_string();
        assert!(said.contains("found page 0"), "{said}");
        file.set_storage_id(6);
        assert!(file.read(PageNo(2)).err().unwrap().to_string().contains("belongs to store"));
    }

    #[test]
    fn a_failed_store_writes_no_pages() {
        let dir = Scratch::new();
        let file = file(&dir, Reads::Mapped);
        file.extend(1).unwrap();
        let health = Health::default();
        health.fail("test");
        assert!(matches!(file.write(PageNo(0), &mut pages(1, 1), &health), Err(Error::Unavailable(_))));
    }
}
