//! Key pages: every key of a run, once, in order, without rows: what the key index is rebuilt from.
//!
//! ```text
//! contents:  keys (2) | entry ...
//! entry:     shared << 2 | same length << 1 | tombstone (varint) | length of the rest (varint)? | rest
//! ```
//!
//! `shared` is how many bytes the key has in common with the one before on the page (0 for the first). When the key is as
//! long as the one before, the length of the rest follows from that and is left out. The tombstone bit tells of the newest version
//! of the key in the run.

use super::aside::Contents;
use super::bytes::{shared_prefix, u16_at};
use super::PageSink;
use crate::bytes::{get_varint, put_varint, varint_len};
use crate::error::{Error, Result};
use crate::page::{CAPACITY, CONTENT};
use crate::types::{PageNo, MAX_KEY};

const TOMBSTONE: u64 = 1;
const SAME_LENGTH: u64 = 2;
const SHARED_SHIFT: u32 = 2;

/// Collects the contents of key pages; the keys come in order.
pub struct Builder {
    full: Contents,
    /// The page that is being filled; empty before the first key.
    page: Vec<u8>,
    keys: u16,
    last: Vec<u8>,
}

impl Builder {
    /// `memory`: how many bytes the pages may take before they go to a side file.
    pub fn new(memory: usize) -> Builder {
        Builder { full: Contents::new(memory), page: Vec::new(), keys: 0, last: Vec::new() }
    }

    pub fn add(&mut self, key: &[u8], tombstone: bool, sink: &impl PageSink) -> Result<()> {
        let entry = |last: &[u8]| {
            let shared = shared_prefix(last, key);
            let same = if last.len() == key.len() { SAME_LENGTH } else { 0 };
            let rest = key.get(shared..).unwrap_or_default();
            let length = if same == 0 { varint_len(rest.len() as u64) } else { 0 };
            let word = (shared as u64) << SHARED_SHIFT | same | if tombstone { TOMBSTONE } else { 0 };
            (word, rest, varint_len(word) + length + rest.len())
        };
        let (mut word, mut rest, size) = entry(&self.last);
        if self.page.is_empty() || self.page.len() + size > CAPACITY || self.keys == u16::MAX {
            if !self.page.is_empty() {
                let page = self.close();
                self.full.add(page, sink)?;
            }
            self.page.extend_from_slice(&[0; 2]);
            (word, rest, _) = entry(&[]);
        }
        put_varint(&mut self.page, word);
        if word & SAME_LENGTH == 0 {
            put_varint(&mut self.page, rest.len() as u64);
        }
        self.page.extend_from_slice(rest);
        debug_assert!(self.page.len() <= CAPACITY);
        self.keys += 1;
        self.last.clear();
        self.last.extend_from_slice(key);
        Ok(())
    }

    /// The page that was being filled; another begins.
    fn close(&mut self) -> Vec<u8> {
        if let Some(count) = self.page.first_chunk_mut() {
            *count = self.keys.to_le_bytes();
        }
        self.keys = 0;
        self.last.clear();
        std::mem::replace(&mut self.page, Vec::with_capacity(CAPACITY))
    }

    /// Pages so far.
    pub fn pages(&self) -> usize {
        self.full.len() + usize::from(!self.page.is_empty())
    }

    /// Hands out the contents of each page, in order.
    pub fn finish(mut self, mut put: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let page = self.close();
        self.full.finish(&mut put)?;
        if page.is_empty() {
            return Ok(());
        }
        put(&page)
    }
}

/// Shows every key of a page, with its tombstone bit. `key` is working space.
pub fn for_each(
    page: PageNo,
    contents: &[u8],
    key: &mut Vec<u8>,
    show: &mut impl FnMut(&[u8], bool) -> Result<()>,
) -> Result<()> {
    let malformed = |at: usize| Error::page(page, CONTENT + at, "malformed entry of a key page");
    let count = u16_at(contents, 0).ok_or_else(|| malformed(0))?;
    key.clear();
    let mut at = 2;
    for _ in 0..count {
        let start = at;
        let tombstone = step(contents, &mut at, key).ok_or_else(|| malformed(start))?;
        show(key, tombstone)?;
    }
    Ok(())
}

/// Makes `key` the key of the entry at `at`; returns its tombstone bit.
fn step(contents: &[u8], at: &mut usize, key: &mut Vec<u8>) -> Option<bool> {
    let word = get_varint(contents, at)?;
    let shared = usize::try_from(word >> SHARED_SHIFT).ok()?;
    let length = if word & SAME_LENGTH != 0 {
        key.len().checked_sub(shared)?
    } else {
        usize::try_from(get_varint(contents, at)?).ok()?
    };
    if shared > key.len() || length > MAX_KEY || shared + length > MAX_KEY {
        return None;
    }
    let rest = contents.get(*at..*at + length)?;
    key.truncate(shared);
    key.extend_from_slice(rest);
    *at += length;
    Some(word & TOMBSTONE != 0)
}

/// For fuzzing: reads arbitrary contents.
pub fn fuzz_keys(contents: &[u8]) {
    let _ = for_each(PageNo(0), contents, &mut Vec::new(), &mut |key, _| {
        assert!(key.len() <= MAX_KEY);
        Ok(())
    });
}
