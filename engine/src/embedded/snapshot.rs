//! A snapshot: the store as it stood at one moment.

use super::core::{in_pages, Core};
use super::iterator::Iter;
use super::sequence::Hold;
use crate::error::Result;
use crate::host::Host;
use crate::tree::{Asking, Direction};
use crate::types::RowBuf;
use std::ops::Bound;
use std::sync::Arc;

/// Sees what was visible when it was taken. While it is held, row versions that it sees are kept.
pub struct Snapshot {
    core: Arc<Core>,
    hold: Hold,
}

impl Snapshot {
    pub(super) fn new(core: &Arc<Core>) -> Snapshot {
        Snapshot { core: Arc::clone(core), hold: core.host().sequences.hold() }
    }

    /// The number of the newest write that it sees.
    pub fn sequence(&self) -> u64 {
        self.hold.sequence
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut row = RowBuf::default();
        Ok(self.get_into(key, &mut row)?.then_some(row.body))
    }

    /// Copies the value to `row.body`; false: the key is absent.
    pub fn get_into(&self, key: &[u8], row: &mut RowBuf) -> Result<bool> {
        let sequence = self.hold.sequence;
        self.core.find(key, |head| head.writer.0 <= sequence, row)
    }

    /// The values of several keys, in their order. Where pages have to be read from the device it gets to bring many at once.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut asking = Asking::default();
        let get = |(number, key): (usize, &K)| {
            let ahead = asking.come_to(number, keys.len(), self.core.host().pages_fetched());
            for key in keys.get(ahead).unwrap_or_default().iter().map(AsRef::as_ref).filter(|key| !key.is_empty()) {
                self.core.tree()?.ask_for(key).map_err(in_pages)?;
            }
            self.get(key.as_ref())
        };
        keys.iter().enumerate().map(get).collect()
    }

    /// An iterator over the keys within the bounds.
    pub fn range(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, direction: Direction) -> Result<Iter> {
        Iter::new(&self.core, self.hold.again(), lower, upper, direction)
    }

    /// An iterator over all keys, ascending.
    pub fn iter(&self) -> Result<Iter> {
        self.range(Bound::Unbounded, Bound::Unbounded, Direction::Forward)
    }
}
