//! A piece of the key index, copied out for a scan; its memory is reused from piece to piece.

use super::leaf::Leaf;
use super::IndexEntry;
use crate::types::MAX_KEY;
use std::sync::atomic::Ordering;

/// Beyond the last key there is space for a wide copy.
const SLACK: usize = 64;

/// Keys and entries in the order of the scan.
#[derive(Clone, Debug, Default)]
pub struct KeyChunk {
    /// All keys, one after the other.
    bytes: Vec<u8>,
    /// Where each key ends in `bytes`, and its value.
    keys: Vec<(u32, u32)>,
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
        let (end, value) = *self.keys.get(index)?;
        let start = match index.checked_sub(1) {
            Some(before) => self.keys.get(before)?.0,
            None => 0,
        };
        Some((self.bytes.get(start as usize..end as usize)?, IndexEntry::decode(value)?))
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
        self.bytes.reserve((max * 32).max(MAX_KEY) + SLACK);
        self.keys.reserve(max);
    }

    /// Adds these keys of a leaf, except the dead ones, up to `max` keys in all and while that takes no allocation: the
    /// caller is in the scope. False: not all of them had room.
    pub(super) fn extend(&mut self, leaf: Leaf<'_>, places: impl Iterator<Item = usize>, max: usize) -> bool {
        let max = max.min(self.keys.capacity());
        for at in places {
            let value = leaf.value(at).load(Ordering::Acquire);
            if IndexEntry::decode(value).is_none() {
                continue;
            }
            if self.keys.len() == max || !leaf.append_key(at, &mut self.bytes) {
                return false;
            }
            self.keys.push((self.bytes.len() as u32, value));
        }
        true
    }
}
