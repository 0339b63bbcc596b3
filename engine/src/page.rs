//! A page in memory, and the head that every page of the engine carries.
//!
//! ```text
//!  0        24      25        26     28     30         32           40                used          8192
//!  | host   | kind  | format  | flags| used | reserved | extent seq | contents ...    | zero          |
//! ```
//!
//! `used` is the end of the contents, counted from the start of the page; what follows is zero, so that a host may leave
//! the hole out of its log and its images. The host's bytes are filled in by the host when it writes the page. The format is 1; 2
//! for data pages that share a row with a neighbour; 3 for filter pages of a kind that came later than the first.

use crate::cpu::{prefetch, LINE};
use crate::error::{Error, Result};
use crate::types::{ExtentSeq, PageNo, HOST_HEADER, PAGE_SIZE};

/// Where the contents begin.
pub const CONTENT: usize = HOST_HEADER + 16;
/// Room for contents in a page.
pub const CAPACITY: usize = PAGE_SIZE - CONTENT;
/// Version of the page formats that this build writes, ...
pub const FORMAT: u8 = 1;
/// ... that of data pages that share a row with a neighbour, ...
pub const FORMAT_SHARED: u8 = 2;
/// ... and that of ribbon filters.
pub const FORMAT_RIBBON: u8 = 3;

const KIND_AT: usize = HOST_HEADER;
const FORMAT_AT: usize = HOST_HEADER + 1;
const FLAGS_AT: usize = HOST_HEADER + 2;
const USED_AT: usize = HOST_HEADER + 4;
const SEQ_AT: usize = HOST_HEADER + 8;

/// What a page holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PageKind {
    Meta = 1,
    Manifest = 2,
    Log = 3,
    Data = 4,
    Fence = 5,
    Filter = 6,
    Directory = 7,
    Keys = 8,
    Footer = 9,
    Value = 10,
}

impl PageKind {
    fn from_byte(byte: u8) -> Option<PageKind> {
        use PageKind::*;
        [Meta, Manifest, Log, Data, Fence, Filter, Directory, Keys, Footer, Value]
            .into_iter()
            .find(|k| *k as u8 == byte)
    }
}

/// Eight KiB, aligned so that whole words in it can be read in place. (No stricter: for that allocators take more room.)
#[derive(Clone)]
#[repr(C, align(16))]
pub struct PageBuf(pub [u8; PAGE_SIZE]);

impl PageBuf {
    pub const ZERO: PageBuf = PageBuf([0; PAGE_SIZE]);

    pub fn boxed() -> Box<PageBuf> {
        Box::new(PageBuf::ZERO)
    }

    /// Empties the page and writes its head.
    pub fn init(&mut self, kind: PageKind, seq: ExtentSeq) {
        self.0.fill(0);
        self.0[KIND_AT] = kind as u8;
        self.0[FORMAT_AT] = FORMAT;
        self.0[SEQ_AT..SEQ_AT + 8].copy_from_slice(&seq.0.to_le_bytes());
        self.set_used(CONTENT);
    }

    /// The bytes at `at`; zeros where the page has ended.
    #[inline]
    pub fn bytes_at<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0.get(at + i).copied().unwrap_or(0))
    }

    /// Writes bytes that are the host's.
    pub fn put_host_bytes(&mut self, at: usize, bytes: &[u8]) {
        debug_assert!(at + bytes.len() <= HOST_HEADER);
        if let Some(room) = self.0.get_mut(at..at + bytes.len()) {
            room.copy_from_slice(bytes);
        }
    }

    pub fn kind(&self) -> Option<PageKind> {
        PageKind::from_byte(self.0[KIND_AT])
    }

    pub fn seq(&self) -> ExtentSeq {
        ExtentSeq(u64::from_le_bytes(self.bytes_at(SEQ_AT)))
    }

    pub fn set_seq(&mut self, seq: ExtentSeq) {
        self.0[SEQ_AT..SEQ_AT + 8].copy_from_slice(&seq.0.to_le_bytes());
    }

    pub fn flags(&self) -> u16 {
        u16::from_le_bytes([self.0[FLAGS_AT], self.0[FLAGS_AT + 1]])
    }

    pub fn set_flags(&mut self, flags: u16) {
        self.0[FLAGS_AT..FLAGS_AT + 2].copy_from_slice(&flags.to_le_bytes());
    }

    pub fn format(&self) -> u8 {
        self.0[FORMAT_AT]
    }

    pub fn set_format(&mut self, format: u8) {
        self.0[FORMAT_AT] = format;
    }

    /// End of the contents, counted from the start of the page.
    pub fn used(&self) -> usize {
        usize::from(u16::from_le_bytes([self.0[USED_AT], self.0[USED_AT + 1]]))
    }

    pub fn set_used(&mut self, used: usize) {
        debug_assert!((CONTENT..=PAGE_SIZE).contains(&used));
        let used = used.min(PAGE_SIZE) as u16;
        self.0[USED_AT..USED_AT + 2].copy_from_slice(&used.to_le_bytes());
    }

    /// Checks the head: the page must be of this kind, of this extent, and of a known format. Returns the contents.
    pub fn expect(&self, page: PageNo, kind: PageKind, seq: ExtentSeq) -> Result<&[u8]> {
        if self.kind() != Some(kind) {
            return Err(Error::page(
                page,
                KIND_AT,
                format!("expected a {kind:?} page, found kind {}", self.0[KIND_AT]),
            ));
        }
        if !(FORMAT..=FORMAT_RIBBON).contains(&self.format()) {
            return Err(Error::Format { found: u32::from(self.format()), known: u32::from(FORMAT_RIBBON) });
        }
        if self.seq() != seq {
            return Err(Error::page(page, SEQ_AT, format!("expected extent {seq}, found extent {}", self.seq())));
        }
        self.0
            .get(CONTENT..self.used())
            .ok_or_else(|| Error::page(page, USED_AT, format!("contents end at {}", self.used())))
    }

    /// Begins to fetch what a search of it looks at first, and where the rest is: the processor may have to look that up, too.
    #[inline]
    pub fn touch(&self) {
        for place in [0, LINE, 2 * LINE, 3 * LINE, PAGE_SIZE / 2] {
            prefetch(self.0.as_ptr().wrapping_add(place));
        }
    }

    /// The contents of a page whose head has been checked.
    #[inline]
    pub fn contents(&self) -> &[u8] {
        self.0.get(CONTENT..self.used()).unwrap_or_default()
    }

    /// A copy, in `spare` if there is one.
    pub fn copy(&self, spare: Option<Box<PageBuf>>) -> Box<PageBuf> {
        let mut copy = spare.unwrap_or_else(PageBuf::boxed);
        let used = self.used().min(PAGE_SIZE);
        if let (Some(to), Some(from)) = (copy.0.get_mut(..used), self.0.get(..used)) {
            to.copy_from_slice(from);
        }
        copy
    }

    /// Fills the page with `contents` (at most [`CAPACITY`] bytes).
    pub fn fill(&mut self, contents: &[u8]) -> Result<()> {
        let end = CONTENT + contents.len();
        match self.0.get_mut(CONTENT..end) {
            Some(room) => room.copy_from_slice(contents),
            None => return Err(Error::structure(format!("{} bytes do not fit one page", contents.len()))),
        }
        self.set_used(end);
        Ok(())
    }
}
