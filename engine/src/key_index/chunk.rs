//! A piece of the key index, copied out for a scan; its memory is reused from piece to piece.

use super::{IndexEntry, IndexKey};
use crate::types::MAX_KEY;

/// Keys and entries in the order of the scan.
#[derive(Clone, Debug, Default)]
pub struct KeyChunk {
    /// All keys, one after the other.
    bytes: Vec<u8>,
    /// Where each key ends in `bytes`, and its entry.
    keys: Vec<(u32, IndexEntry)>,
    pub(super) complete: bool,
}

impl KeyChunk {
    pub fn new() -> KeyChunk {
        KeyChunk::default()
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Nothing follows the last key here.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    pub fn get(&self, index: usize) -> Option<(&[u8], IndexEntry)> {
        let (end, entry) = *self.keys.get(index)?;
        let start = match index.checked_sub(1) {
            Some(before) => self.keys.get(before)?.0,
            None => 0,
        };
        Some((self.bytes.get(start as usize..end as usize)?, entry))
    }

    pub fn last(&self) -> Option<(&[u8], IndexEntry)> {
        self.get(self.len().checked_sub(1)?)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], IndexEntry)> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Empties the chunk and makes space for `max` keys of usual length, and for one key of any length.
    pub(super) fn prepare(&mut self, max: usize) {
        self.bytes.clear();
        self.keys.clear();
        self.complete = false;
        self.bytes.reserve((max * 32).max(MAX_KEY));
        self.keys.reserve(max);
    }

    /// Adds a key, if that takes no allocation: the caller is in the scope.
    pub(super) fn push(&mut self, key: &IndexKey, entry: IndexEntry) -> bool {
        if self.keys.len() == self.keys.capacity() || !key.append_to(&mut self.bytes) {
            return false;
        }
        self.keys.push((self.bytes.len() as u32, entry));
        true
    }
}
