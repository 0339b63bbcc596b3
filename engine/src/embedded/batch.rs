//! A batch: puts and deletes that are written together or not at all, in order.

use crate::error::{Error, Result};
use crate::types::MAX_KEY;
use std::ops::Range;

/// Longest value: with the longest key it fits a frame of the log.
pub const MAX_VALUE: usize = (1 << 30) - (64 << 10);
/// Most bytes of keys and values in one batch, unless it is a single change. (And one memtable has to have room for its keys, each with
/// less than 100 bytes beside it: otherwise the write fails, with [`Error::MemoryFull`].)
pub const MAX_BATCH: usize = 64 << 20;

#[derive(Clone, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    changes: Vec<Place>,
}

#[derive(Clone, Debug)]
struct Place {
    key: Range<usize>,
    /// `None`: a delete.
    value: Option<Range<usize>>,
}

/// One change of a batch: the key, and its new value unless it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    pub key: &'a [u8],
    pub value: Option<&'a [u8]>,
}

impl Change<'_> {
    pub fn bytes(&self) -> usize {
        self.key.len() + self.value.map_or(0, <[u8]>::len)
    }

    /// Refuses what the store cannot hold.
    pub fn check(&self) -> Result<()> {
        if self.key.is_empty() || self.key.len() > MAX_KEY {
            return Err(Error::Invalid(format!("a key of {} bytes (1 to {MAX_KEY} are possible)", self.key.len())));
        }
        match self.value.map_or(0, <[u8]>::len) {
            long if long > MAX_VALUE => {
                Err(Error::Invalid(format!("a value of {long} bytes (up to {MAX_VALUE} are possible)")))
            }
            _ => Ok(()),
        }
    }
}

impl Batch {
    pub fn new() -> Batch {
        Batch::default()
    }

    pub fn put(&mut self, key: &[u8], value: &[u8]) -> &mut Batch {
        let key = self.keep(key);
        let value = Some(self.keep(value));
        self.changes.push(Place { key, value });
        self
    }

    pub fn delete(&mut self, key: &[u8]) -> &mut Batch {
        let key = self.keep(key);
        self.changes.push(Place { key, value: None });
        self
    }

    fn keep(&mut self, bytes: &[u8]) -> Range<usize> {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        from..self.bytes.len()
    }

    pub fn len(&self) -> usize {
        self.changes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.changes.clear();
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        let get = |range: &Range<usize>| self.bytes.get(range.clone()).unwrap_or_default();
        self.changes.iter().map(move |c| Change { key: get(&c.key), value: c.value.as_ref().map(get) })
    }

    /// Refuses what the store cannot hold.
    pub fn check(&self) -> Result<()> {
        if self.bytes.len() > MAX_BATCH && self.len() > 1 {
            return Err(Error::Invalid(format!(
                "a batch of {} bytes (up to {MAX_BATCH} are possible)",
                self.bytes.len()
            )));
        }
        self.changes().try_for_each(|c| c.check())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_back_in_order() {
        let mut batch = Batch::new();
        batch.put(b"a", b"1").delete(b"b").put(b"a", b"");
        let changes: Vec<Change<'_>> = batch.changes().collect();
        assert_eq!(changes[0], Change { key: b"a", value: Some(b"1") });
        assert_eq!(changes[1], Change { key: b"b", value: None });
        assert_eq!(changes[2], Change { key: b"a", value: Some(b"") });
        assert_eq!((batch.len(), batch.bytes()), (3, 4));
        batch.clear();
        assert!(batch.is_empty());
    }

    #[test]
    fn what_cannot_be_held_is_refused() {
        let largest = vec![2; MAX_VALUE + 1];
        let check =
            |key: usize, value: usize| Change { key: largest.get(..key).unwrap(), value: largest.get(..value) }.check();
        assert!(check(1, 0).is_ok());
        assert!(check(MAX_KEY, MAX_VALUE).is_ok());
        for (key, value) in [(0, 1), (MAX_KEY + 1, 1), (1, MAX_VALUE + 1)] {
            assert!(matches!(check(key, value), Err(Error::Invalid(_))));
        }
        assert!(Batch::new().delete(b"").check().is_err());
        assert!(Batch::new().put(b"a", largest.get(..=MAX_BATCH).unwrap()).check().is_ok());
        assert!(Batch::new().put(b"a", largest.get(..MAX_BATCH).unwrap()).delete(b"b").check().is_err());
    }
}
