//! For fuzzing: the embedded store's own files, of arbitrary bytes. Checksums are put right: else nothing else is reached.

use super::crc32c;
use super::fs::Fs;
use super::health::Health;
use super::log_segment::{seed, HEADER};
use super::meta_file::{MetaFile, META_NAME};
use super::page_file::{PageFile, Reads, PAGES_NAME};
use super::row_log::{segment_name, RowLog};
use super::sim::SimFs;
use crate::manifest::Manifest;
use crate::row::decode_record;
use crate::types::{L0Id, LogAddr, PageNo, PAGE_SIZE};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const STORAGE_ID: u64 = 7;
const GENERATION: L0Id = L0Id(1);
/// Bytes before a frame's payload, and the mark that adds four.
const FRAME: usize = 12;
const MARK: u32 = 1 << 31;

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(room) = bytes.get_mut(at..at + value.len()) {
        room.copy_from_slice(value);
    }
}

fn put_crc(bytes: &mut [u8], at: usize, crc: u32) {
    put(bytes, at, &crc.to_le_bytes());
}

/// A directory with one file of these bytes.
fn file(name: &str, bytes: &[u8]) -> Option<(Arc<dyn Fs>, PathBuf)> {
    let (fs, dir) = (SimFs::new(1), Path::new("/store"));
    fs.create_dir(dir).ok()?;
    fs.create(&dir.join(name)).ok()?.write_at(bytes, 0).ok()?;
    Some((Arc::new(fs), dir.to_path_buf()))
}

/// The meta file: two slots.
pub fn fuzz_meta_file(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    for slot in bytes.chunks_mut(PAGE_SIZE) {
        let crc = crc32c::checksum(slot.get(4..).unwrap_or_default());
        put_crc(slot, 0, crc);
    }
    let Some((fs, dir)) = file(META_NAME, &bytes) else { return };
    if let Ok(meta) = MetaFile::open(fs, &dir) {
        if let Ok(Some(page)) = meta.read() {
            let _ = Manifest::decode_meta(&page);
        }
    }
}

/// Some pages of the page file; whose they are, the last one tells.
pub fn fuzz_page_file(bytes: &[u8]) {
    let (mut bytes, mut own) = (bytes.to_vec(), 0);
    for page in bytes.chunks_mut(PAGE_SIZE) {
        let crc = crc32c::checksum(page.get(4..).unwrap_or_default());
        put_crc(page, 0, crc);
        own = id_of(page);
    }
    let Some((fs, dir)) = file(PAGES_NAME, &bytes) else { return };
    let Ok(pages) = PageFile::open(fs.as_ref(), &dir, Reads::Cached { bytes: 1 << 20 }, true) else { return };
    pages.set_storage_id(own);
    for page in (0..=pages.pages()).map(PageNo) {
        let verified = pages.verify(page).is_ok();
        for read in [pages.read(page), pages.read_in_order(page)] {
            assert_eq!(read.is_ok(), verified);
            let Ok(read) = read else { continue };
            assert_eq!((u32::from_le_bytes(read.bytes_at(4)), id_of(&read.0)), (page.0, own));
        }
    }
}

fn id_of(page: &[u8]) -> u64 {
    page.get(8..).and_then(|rest| rest.first_chunk()).map_or(0, |id| u64::from_le_bytes(*id))
}

/// A segment of the row log.
pub fn fuzz_log_segment(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    put(&mut bytes, 16, &STORAGE_ID.to_le_bytes());
    put(&mut bytes, 24, &GENERATION.0.to_le_bytes());
    let crc = crc32c::checksum(bytes.get(12..HEADER).unwrap_or_default());
    put_crc(&mut bytes, 8, crc);
    let (mut at, seed) = (HEADER, seed(STORAGE_ID, GENERATION));
    while let Some(shape) = bytes.get(at + 4..).and_then(|rest| rest.first_chunk()).map(|s| u32::from_le_bytes(*s)) {
        let marked = if shape & MARK != 0 { 4 } else { 0 };
        let end = at + FRAME + marked + (shape & !MARK) as usize;
        let Some(crc) = bytes.get(at + 4..end).map(|frame| crc32c::extend(seed, frame)) else { break };
        put_crc(&mut bytes, at, crc);
        at = end;
    }
    let Some((fs, dir)) = file(&segment_name(GENERATION), &bytes) else { return };
    let log = RowLog::new(fs, &dir, 4096, Arc::new(Health::default()));
    log.set_storage_id(STORAGE_ID);
    let _ = log.replay(L0Id(0), &mut |_, _, record| decode_record(record).map(|_| ()));
    for addr in [0, 1, HEADER as u64, HEADER as u64 + 12, bytes.len() as u64, u64::MAX] {
        let _ = log.row(GENERATION, LogAddr(addr));
    }
}
