//! An iterator over a range of keys, as of one snapshot, in both directions.

use super::core::{in_pages, Core};
use super::host::EmbeddedHost;
use super::sequence::Hold;
use crate::error::Result;
use crate::tree::{Cursor, Direction};
use crate::types::{Head, Verdict, Writer};
use std::ops::Bound;
use std::sync::Arc;

/// Begins at the end of the range that its first step comes from. Each step copies one row; between steps it holds no page.
pub struct Iter {
    cursor: Cursor<EmbeddedHost>,
    direction: Direction,
    /// It has neither moved nor sought.
    fresh: bool,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    /// The key that the last step found; empty if it found none.
    key: Vec<u8>,
    hold: Hold,
    /// Last, for the cursor refers to what it keeps.
    core: Arc<Core>,
}

#[allow(clippy::should_implement_trait)] // It lends its rows, and so is no `Iterator`; `pairs` makes one.
impl Iter {
    pub(super) fn new(
        core: &Arc<Core>,
        hold: Hold,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Iter> {
        let cursor = core.tree()?.scan(lower, upper, direction)?;
        let (lower, upper) = (lower.map(<[u8]>::to_vec), upper.map(<[u8]>::to_vec));
        Ok(Iter { cursor, direction, fresh: true, lower, upper, key: Vec::new(), hold, core: Arc::clone(core) })
    }

    /// Goes to the next larger key within the bounds. False: there is none.
    pub fn next(&mut self) -> Result<bool> {
        self.step(Direction::Forward)
    }

    /// Goes to the next smaller key within the bounds. False: there is none.
    pub fn prev(&mut self) -> Result<bool> {
        self.step(Direction::Backward)
    }

    fn step(&mut self, direction: Direction) -> Result<bool> {
        if direction != self.direction && self.fresh {
            self.restart(direction)?;
        } else if direction != self.direction {
            self.cursor.turn(direction);
            self.direction = direction;
        }
        self.fresh = false;
        let tree = self.core.tree()?;
        let sequence = self.hold.sequence;
        let choose = |head: &Head| if head.writer.0 <= sequence { Verdict::Take } else { Verdict::Skip };
        let found = self.cursor.next_in_place(tree, Writer(sequence + 1), |head, _| choose(head)).map_err(in_pages)?;
        if found {
            self.cursor.copy_key(&mut self.key);
        } else {
            self.key.clear();
        }
        Ok(found)
    }

    /// Goes on from `key`: the next step finds it, if it is there.
    pub fn seek(&mut self, key: &[u8]) {
        self.fresh = false;
        self.key.clear();
        self.cursor.seek(key);
    }

    /// Begins anew, in this direction: before the first key or behind the last.
    pub fn restart(&mut self, direction: Direction) -> Result<()> {
        let (lower, upper) = (self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice));
        self.cursor = self.core.tree()?.scan(lower, upper, direction)?;
        self.direction = direction;
        self.fresh = true;
        self.key.clear();
        Ok(())
    }

    /// The key that the last step found; empty if there was none.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value that the last step found; empty if there was none.
    pub fn value(&self) -> &[u8] {
        if self.key.is_empty() {
            return &[];
        }
        self.cursor.body()
    }

    /// The remaining pairs, in the iterator's direction.
    pub fn pairs(self) -> Pairs {
        Pairs { iter: self, ended: false }
    }
}

/// Owned pairs; ends after the first error.
pub struct Pairs {
    iter: Iter,
    ended: bool,
}

impl Iterator for Pairs {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        match self.iter.step(self.iter.direction) {
            Ok(true) => Some(Ok((self.iter.key().to_vec(), self.iter.value().to_vec()))),
            Ok(false) => {
                self.ended = true;
                None
            }
            Err(e) => {
                self.ended = true;
                Some(Err(e))
            }
        }
    }
}
