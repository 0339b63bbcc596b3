//! Backwards: the list leads forwards only, so a walk back finds some keys at a time.
//!
//! ```text
//!   level 2   ---> a --------------------> e ------------------> i        wanted: the keys below h
//!   level 0   ---> a -> b -> b -> c -> d -> e -> e' -> f -> g -> h -> i   found from e on: f, g
//! ```
//!
//! A node on a higher level need not be the newest of its key, so that key is left for the next time.

use super::node::Want;
use super::{Memtable, NodeId, NodeRef};

/// The highest level from which keys are looked for: about 2^5 nodes.
pub(super) const MOST_BACK: usize = 5;

impl Memtable {
    /// Fills `found` with the newest versions of some keys below `key`, in ascending order; the last one is the nearest, and none is left
    /// out before it. About 2^`level` versions are gone through, or 2^5 at most. Empty: there are no such keys.
    #[inline(never)]
    pub fn some_before(&self, key: &[u8], level: usize, found: &mut Vec<NodeId>) {
        found.clear();
        let want = Want::before(key);
        let level = level.min(MOST_BACK);
        let (start, _) = self.seek_on(level, &want);
        let mut last_key = if start == self.list.head() { None } else { self.at(start).map(|node| node.key()) };
        // SAFETY: the head, or a node of this list.
        let mut next = unsafe { self.list.next(start) };
        // SAFETY: linked nodes are whole.
        while next != 0 && unsafe { self.list.node(next).is_before(&want) } {
            let node = NodeRef { table: self, offset: next };
            if last_key != Some(node.key()) {
                last_key = Some(node.key());
                found.push(node.id());
            }
            // SAFETY: a node of this list.
            next = unsafe { self.list.next(next) };
        }
        if found.is_empty() {
            found.extend(self.last_before(key).map(|node| node.id()));
        }
    }
}
