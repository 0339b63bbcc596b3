//! Fence pages: which child page may hold a key.
//!
//! ```text
//! contents:
//!   0          2       3          4             8        10         12
//!   | children | level | reserved | first child | prefix | reserved | prefix bytes | heads (4) | slots (2) | tails |
//! ```
//!
//! The children of a fence page are neighbours: data pages for level 0, fence pages of the level below for the others. Between two
//! children stands a separator, the shortest string above the last key of the one and not above the first key of the
//! other. When one key fills the end of a page and the beginning of the next, the separator is that key and a zero byte: so
//! the way to a key leads to the page where its newest version is.
//!
//! What all separators of a page begin with stands there once; of the rest, the first four bytes (filled up with zeros) stand in
//! an array of their own, in an order that is that of the separators, so that a search touches few cache lines. A slot has
//! in its upper three bits how many of the four bytes are meant (0 to 4), in the others where the tail begins, counted
//! from the start of the contents. A tail ends where the next begins.

use super::bytes::{shared_prefix, u16_at, u32_at};
use crate::error::{Error, Result};
use crate::page::{CAPACITY, CONTENT};
use crate::types::PageNo;
use std::cmp::Ordering;

const HEADER: usize = 12;
const HEAD: usize = 4;
const ENTRY: usize = HEAD + 2;
const OFFSET_BITS: u32 = 13;

/// The shortest string that is above `last` and not above `next`.
pub fn separator<'a>(last: &[u8], next: &'a [u8]) -> &'a [u8] {
    debug_assert!(last < next);
    next.get(..shared_prefix(last, next) + 1).unwrap_or(next)
}

/// The separators of one level: entry `i` stands before child `i`, entry 0 is empty.
#[derive(Default)]
pub struct Separators {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Separators {
    pub fn push(&mut self, parts: [&[u8]; 2]) {
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.ends.push(self.bytes.len());
    }

    /// How many there are: one for each child.
    pub fn children(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, i: usize) -> &[u8] {
        let start = i.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(i).and_then(|end| self.bytes.get(start..*end)).unwrap_or_default()
    }

    /// How many children, from `from` on, one page takes; and the prefix of their separators.
    fn fit(&self, from: usize) -> (usize, usize) {
        let tail = |i: usize, prefix: usize| self.get(i).len().saturating_sub(prefix + HEAD);
        let (mut prefix, mut tails) = (0, 0);
        let mut until = from + 1;
        while until < self.children() {
            let narrowed = match until - from {
                1 => self.get(until).len(),
                _ => shared_prefix(self.get(from + 1).get(..prefix).unwrap_or_default(), self.get(until)),
            };
            let grown = if narrowed == prefix {
                tails + tail(until, prefix)
            } else {
                (from + 1..=until).map(|i| tail(i, narrowed)).sum()
            };
            if HEADER + narrowed + (until - from) * ENTRY + grown > CAPACITY {
                break;
            }
            (prefix, tails) = (narrowed, grown);
            until += 1;
        }
        (until - from, prefix)
    }

    fn encode(&self, level: u8, first: usize, children: usize, first_child: u32, prefix: usize, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&(children as u16).to_le_bytes());
        out.extend_from_slice(&[level, 0]);
        out.extend_from_slice(&first_child.to_le_bytes());
        out.extend_from_slice(&(prefix as u16).to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(self.get(first + 1).get(..prefix).unwrap_or_default());
        let rest = |i: usize| self.get(i).get(prefix..).unwrap_or_default();
        for i in first + 1..first + children {
            out.extend_from_slice(&head(rest(i)).to_be_bytes());
        }
        let mut tail_at = out.len() + 2 * (children - 1);
        for i in first + 1..first + children {
            let length = rest(i).len();
            let slot = tail_at as u16 | (length.min(HEAD) as u16) << OFFSET_BITS;
            out.extend_from_slice(&slot.to_le_bytes());
            tail_at += length.saturating_sub(HEAD);
        }
        for i in first + 1..first + children {
            out.extend_from_slice(rest(i).get(HEAD..).unwrap_or_default());
        }
        debug_assert!(out.len() == tail_at && out.len() <= CAPACITY);
    }
}

/// Makes the fence pages, bottom-up, the root last. `put` is given each page's contents. Returns the number of levels;
/// a single data page needs none.
pub fn build(mut separators: Separators, mut put: impl FnMut(&[u8]) -> Result<()>) -> Result<u8> {
    let mut level = 0u8;
    // Where the children of this level begin: in the run for level 0 (they are data pages), in the section for the others.
    let mut children_start = 0u32;
    let mut written = 0u32;
    let mut contents = Vec::with_capacity(CAPACITY);
    while separators.children() > 1 {
        let mut above = Separators::default();
        let mut first = 0;
        let level_start = written;
        while first < separators.children() {
            let (children, prefix) = separators.fit(first);
            let first_child = children_start + first as u32;
            separators.encode(level, first, children, first_child, prefix, &mut contents);
            put(&contents)?;
            written += 1;
            above.push([separators.get(first), &[]]);
            first += children;
        }
        children_start = level_start;
        separators = above;
        level += 1;
    }
    Ok(level)
}

/// The first four bytes, filled up with zeros, as a number that orders as they do.
#[inline]
fn head(rest: &[u8]) -> u32 {
    match rest.first_chunk::<HEAD>() {
        Some(chunk) => u32::from_be_bytes(*chunk),
        None => {
            let mut filled = [0; HEAD];
            filled.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            u32::from_be_bytes(filled)
        }
    }
}

/// The head of a fence page, understood and checked against the length of the contents.
#[derive(Clone, Copy, Debug)]
pub struct Fence {
    page: PageNo,
    pub children: usize,
    pub level: u8,
    pub first_child: u32,
    prefix: usize,
}

impl Fence {
    pub fn parse(page: PageNo, contents: &[u8]) -> Result<Fence> {
        let parsed = || {
            let children = usize::from(u16_at(contents, 0)?);
            let prefix = usize::from(u16_at(contents, 8)?);
            let fits = children > 0 && HEADER + prefix + (children - 1) * ENTRY <= contents.len();
            let (level, first_child) = (*contents.get(2)?, u32_at(contents, 4)?);
            fits.then_some(Fence { page, children, level, first_child, prefix })
        };
        parsed().ok_or_else(|| Error::page(page, CONTENT, "malformed head of a fence page"))
    }

    /// Which child, counted from 0, has the newest version of `key` if the run holds the key at all.
    #[inline]
    pub fn search(&self, contents: &[u8], key: &[u8]) -> Result<usize> {
        let prefix = contents.get(HEADER..HEADER + self.prefix).unwrap_or_default();
        let Some(wanted) = key.strip_prefix(prefix) else {
            return Ok(if key < prefix { 0 } else { self.children - 1 });
        };
        let wanted_head = head(wanted);
        let heads_at = HEADER + self.prefix;
        let heads = contents.get(heads_at..heads_at + HEAD * (self.children - 1)).unwrap_or_default();
        let (mut low, mut high) = (0, self.children - 1);
        while low < high {
            let middle = (low + high) / 2;
            let found = heads.get(HEAD * middle..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b));
            let not_above = match found.cmp(&wanted_head) {
                Ordering::Less => true,
                Ordering::Greater => false,
                Ordering::Equal => self.tail_not_above(contents, middle, wanted).ok_or_else(|| self.malformed())?,
            };
            if not_above {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    #[cold]
    fn malformed(&self) -> Error {
        Error::page(self.page, CONTENT, "malformed separator in a fence page")
    }

    /// Whether separator `i`, whose head is that of `wanted`, is not above it.
    fn tail_not_above(&self, contents: &[u8], i: usize, wanted: &[u8]) -> Option<bool> {
        let slots_at = HEADER + self.prefix + HEAD * (self.children - 1);
        let slot = u16_at(contents, slots_at + 2 * i)?;
        let meant = usize::from(slot >> OFFSET_BITS);
        if meant < HEAD || wanted.len() < HEAD {
            return Some(meant <= wanted.len().min(HEAD));
        }
        let start = usize::from(slot & ((1 << OFFSET_BITS) - 1));
        let end = if i + 2 < self.children {
            usize::from(u16_at(contents, slots_at + 2 * i + 2)? & ((1 << OFFSET_BITS) - 1))
        } else {
            contents.len()
        };
        Some(contents.get(start..end)? <= wanted.get(HEAD..)?)
    }
}

/// For fuzzing: searches arbitrary contents.
pub fn fuzz_fence(contents: &[u8], key: &[u8]) {
    if let Ok(fence) = Fence::parse(PageNo(0), contents) {
        if let Ok(child) = fence.search(contents, key) {
            assert!(child < fence.children);
        }
    }
}
