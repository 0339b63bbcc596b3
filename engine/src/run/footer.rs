//! What a finished run is: its shape, and the footer page that repeats it in the run itself.
//!
//! ```text
//! shape:     version (1) | rows, keys, tombstones, bytes, data, key, directory, filter, fence pages, fence levels,
//!            min row, max row, min writer, max writer, compressed (varints) | min key, max key (varint length, bytes)
//! contents:  magic (8) | first L0 id (8) | last L0 id (8) | length of the shape (2) | shape | checksum (8)
//! ```
//!
//! The checksum is the key hash of everything before it.

use super::bytes::{u16_at, u64_at};
use crate::bytes::{get_varint, put_varint};
use crate::error::{Error, Result};
use crate::filter::key_hash;
use crate::page::{CAPACITY, CONTENT};
use crate::types::{L0Id, PageNo, RowId, Writer, MAX_KEY};

const MAGIC: [u8; 8] = *b"LooseRun";
const SHAPE_VERSION: u8 = 1;
const SHAPE_AT: usize = 26;

/// What the run writer tells of a finished run; stored in the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RunShape {
    pub rows: u64,
    pub keys: u64,
    pub tombstones: u64,
    /// Bytes of keys and bodies before compression.
    pub bytes: u64,
    /// Pages of each section, in the order in which they stand in the run.
    pub data_pages: u32,
    pub key_pages: u32,
    pub directory_pages: u32,
    pub filter_pages: u32,
    pub fence_pages: u32,
    pub fence_levels: u8,
    pub min_key: Vec<u8>,
    pub max_key: Vec<u8>,
    pub min_row: RowId,
    pub max_row: RowId,
    pub min_writer: Writer,
    pub max_writer: Writer,
    pub compressed: bool,
}

impl RunShape {
    /// No key has a second version here.
    #[inline]
    pub fn has_each_key_once(&self) -> bool {
        self.rows == self.keys
    }

    /// Pages of the whole run, the footer among them. A run without rows has none.
    pub fn pages(&self) -> u32 {
        if self.rows == 0 {
            return 0;
        }
        self.footer_start().saturating_add(1)
    }

    /// Page of the run where the key pages begin. (The data pages begin at 0.)
    pub fn keys_start(&self) -> u32 {
        self.data_pages
    }

    pub fn directory_start(&self) -> u32 {
        self.keys_start().saturating_add(self.key_pages)
    }

    pub fn filter_start(&self) -> u32 {
        self.directory_start().saturating_add(self.directory_pages)
    }

    pub fn fence_start(&self) -> u32 {
        self.filter_start().saturating_add(self.filter_pages)
    }

    /// Page of the run that is its footer.
    pub fn footer_start(&self) -> u32 {
        self.fence_start().saturating_add(self.fence_pages)
    }

    /// Appends the shape; it tells its own length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(SHAPE_VERSION);
        self.numbers().into_iter().for_each(|number| put_varint(out, number));
        for key in [&self.min_key, &self.max_key] {
            put_varint(out, key.len() as u64);
            out.extend_from_slice(key);
        }
    }

    fn numbers(&self) -> [u64; 15] {
        [
            self.rows,
            self.keys,
            self.tombstones,
            self.bytes,
            u64::from(self.data_pages),
            u64::from(self.key_pages),
            u64::from(self.directory_pages),
            u64::from(self.filter_pages),
            u64::from(self.fence_pages),
            u64::from(self.fence_levels),
            self.min_row.0,
            self.max_row.0,
            self.min_writer.0,
            self.max_writer.0,
            u64::from(self.compressed),
        ]
    }

    /// Reads a shape; returns it and its length.
    pub fn decode(bytes: &[u8]) -> Result<(RunShape, usize)> {
        match bytes.first() {
            Some(&SHAPE_VERSION) => {}
            Some(&found) => return Err(Error::Format { found: u32::from(found), known: u32::from(SHAPE_VERSION) }),
            None => return Err(Error::structure("the shape of a run is missing")),
        }
        RunShape::try_decode(bytes).ok_or_else(|| Error::structure("malformed shape of a run"))
    }

    fn try_decode(bytes: &[u8]) -> Option<(RunShape, usize)> {
        let mut at = 1;
        let mut number = || get_varint(bytes, &mut at);
        let mut shape = RunShape {
            rows: number()?,
            keys: number()?,
            tombstones: number()?,
            bytes: number()?,
            data_pages: u32::try_from(number()?).ok()?,
            key_pages: u32::try_from(number()?).ok()?,
            directory_pages: u32::try_from(number()?).ok()?,
            filter_pages: u32::try_from(number()?).ok()?,
            fence_pages: u32::try_from(number()?).ok()?,
            fence_levels: u8::try_from(number()?).ok()?,
            min_row: RowId(number()?),
            max_row: RowId(number()?),
            min_writer: Writer(number()?),
            max_writer: Writer(number()?),
            compressed: match number()? {
                0 => false,
                1 => true,
                _ => return None,
            },
            ..RunShape::default()
        };
        for key in [&mut shape.min_key, &mut shape.max_key] {
            let length = usize::try_from(get_varint(bytes, &mut at)?).ok()?;
            if length > MAX_KEY {
                return None;
            }
            key.extend_from_slice(bytes.get(at..at + length)?);
            at += length;
        }
        Some((shape, at))
    }
}

/// What the footer page of a run holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    pub first_l0: L0Id,
    pub last_l0: L0Id,
    pub shape: RunShape,
}

impl Footer {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.first_l0.0.to_le_bytes());
        out.extend_from_slice(&self.last_l0.0.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        self.shape.encode(&mut out);
        let length = ((out.len() - SHAPE_AT) as u16).to_le_bytes();
        if let Some(place) = out.get_mut(SHAPE_AT - 2..SHAPE_AT) {
            place.copy_from_slice(&length);
        }
        let checksum = key_hash(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        debug_assert!(out.len() <= CAPACITY);
        out
    }

    pub fn decode(page: PageNo, contents: &[u8]) -> Result<Footer> {
        let wrong = |at: usize, what: &str| Error::page(page, CONTENT + at, what.to_string());
        if !contents.starts_with(&MAGIC) {
            return Err(wrong(0, "no footer of a run here"));
        }
        let (Some(first), Some(last), Some(length)) = (u64_at(contents, 8), u64_at(contents, 16), u16_at(contents, 24))
        else {
            return Err(wrong(8, "footer is cut off"));
        };
        let end = SHAPE_AT + usize::from(length);
        let (Some(checked), Some(checksum)) = (contents.get(..end), u64_at(contents, end)) else {
            return Err(wrong(24, "footer is cut off"));
        };
        if key_hash(checked) != checksum {
            return Err(wrong(end, "wrong checksum of a footer"));
        }
        let (shape, used) = RunShape::decode(checked.get(SHAPE_AT..).unwrap_or_default())?;
        if used != usize::from(length) {
            return Err(wrong(24, "wrong length of a footer"));
        }
        Ok(Footer { first_l0: L0Id(first), last_l0: L0Id(last), shape })
    }
}

/// For fuzzing: the same contents with the checksum that they should have.
pub(super) fn with_checksum(contents: &[u8]) -> Vec<u8> {
    let mut out = contents.to_vec();
    let end = SHAPE_AT + usize::from(u16_at(contents, SHAPE_AT - 2).unwrap_or(0));
    let checksum = contents.get(..end).map(key_hash).unwrap_or(0);
    if let Some(place) = out.get_mut(end..end + 8) {
        place.copy_from_slice(&checksum.to_le_bytes());
    }
    out
}

/// For fuzzing: reads arbitrary contents.
pub fn fuzz_footer(contents: &[u8]) {
    let _ = RunShape::decode(contents);
    let _ = Footer::decode(PageNo(0), contents);
    if let Ok(footer) = Footer::decode(PageNo(0), &with_checksum(contents)) {
        assert_eq!(Footer::decode(PageNo(0), &footer.encode()).ok(), Some(footer));
    }
}
