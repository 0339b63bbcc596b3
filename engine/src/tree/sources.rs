//! Merging what several sources hold, key by key, newest version first.
//!
//! A source stands on one row version at a time: a memtable or a run. The sources are numbered by age, newest first, so
//! that among versions of one key the order of the sources is the order of the row ids (I2). A heap over the sources'
//! current keys yields the next one in the scan's direction; with equal keys the newest source comes first.

use crate::error::Result;
use crate::host::Host;
use crate::memtable::{NodeId, NodeRef};
use crate::mutation::{on, Mutation::I15BackwardOldest};
use crate::run::{Run, RunCursor};
use crate::tree::read::Pages;
use crate::tree::version::{Generation, SuperVersion};
use crate::tree::{Direction, Hint, Tree};
use crate::types::{Head, RowBuf};
use std::cmp::Ordering;
use std::ops::Bound;

/// Where one source stands.
enum Place {
    /// In the memtable of this place among `SuperVersion::memtables`.
    Memtable { at: usize, node: Option<NodeId> },
    /// In the run of this place among `SuperVersion::runs`.
    Run { at: usize, cursor: Box<RunCursor> },
}

struct Source {
    place: Place,
    /// The key it stands on; meaningless once `done`.
    key: Vec<u8>,
    /// The first eight bytes of the key, zero-padded, big-endian.
    prefix: u64,
    done: bool,
}

/// Sources in the order of a scan.
pub(super) struct Sources {
    /// Newest first.
    sources: Vec<Source>,
    /// Heap of places in `sources`, the next key on top.
    heap: Vec<usize>,
    direction: Direction,
}

impl Sources {
    /// The memtables of `view` (all, or none for a merge of runs) and the runs in `runs`.
    pub fn new(view: &SuperVersion, memtables: bool, runs: std::ops::Range<usize>, direction: Direction) -> Sources {
        let count = if memtables { view.memtables().count() } else { 0 };
        let tables = (0..count).map(|at| Place::Memtable { at, node: None });
        let cursors = runs.map(|at| Place::Run { at, cursor: Box::default() });
        let source = |place| Source { place, key: Vec::new(), prefix: 0, done: true };
        Sources { sources: tables.chain(cursors).map(source).collect(), heap: Vec::new(), direction }
    }

    /// Puts every source on its first key at or beyond `from`, in the direction given.
    pub fn seek<H: Host>(
        &mut self,
        tree: &Tree<'_, H>,
        view: &SuperVersion,
        from: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<()> {
        self.direction = direction;
        self.heap.clear();
        for at in 0..self.sources.len() {
            let Some(source) = self.sources.get_mut(at) else { break };
            source.seek(tree, view, from, direction)?;
            if !source.done {
                self.heap.push(at);
            }
        }
        for at in (0..self.heap.len() / 2).rev() {
            self.sift(at);
        }
        Ok(())
    }

    /// The source whose key is next, and its key.
    pub fn key(&self) -> Option<&[u8]> {
        self.top().map(|s| s.key.as_slice())
    }

    fn top(&self) -> Option<&Source> {
        self.heap.first().and_then(|at| self.sources.get(*at))
    }

    /// The version on top: its head, and what is known of its writer.
    pub fn with_head<R>(&self, view: &SuperVersion, see: impl FnOnce(&Head, &Hint<'_>) -> R) -> Option<R> {
        match &self.top()?.place {
            Place::Memtable { at, node } => {
                let node = node_at(memtable(view, *at)?, (*node)?);
                Some(see(&node.head(), &Hint::of_node(&node)))
            }
            Place::Run { at, cursor } => Some(see(&cursor.row().head, &Hint::of_run(view.runs.get(*at)?))),
        }
    }

    /// Copies the version on top.
    pub fn copy<H: Host>(&self, tree: &Tree<'_, H>, view: &SuperVersion, out: &mut RowBuf) -> Result<()> {
        let Some(top) = self.top() else { return Ok(()) };
        match &top.place {
            Place::Memtable { at, node } => match (memtable(view, *at), node) {
                (Some(generation), Some(node)) => tree.copy_logged(generation, &node_at(generation, *node), out),
                _ => Ok(()),
            },
            Place::Run { cursor, .. } => {
                out.set(&cursor.row());
                Ok(())
            }
        }
    }

    /// On to the next older version of the key on top. False: the next key came.
    pub fn older<H: Host>(&mut self, tree: &Tree<'_, H>, view: &SuperVersion, key: &[u8]) -> Result<bool> {
        let direction = self.direction;
        if let Some(top) = self.heap.first().and_then(|at| self.sources.get_mut(*at)) {
            if !top.older(tree, view)? {
                top.advance(tree, view, direction)?;
            }
            self.settle_top();
        }
        Ok(self.key() == Some(key))
    }

    /// Past every version of `key`, which is the one on top.
    pub fn skip_key<H: Host>(&mut self, tree: &Tree<'_, H>, view: &SuperVersion, key: &[u8]) -> Result<()> {
        let direction = self.direction;
        while self.key() == Some(key) {
            if let Some(top) = self.heap.first().and_then(|at| self.sources.get_mut(*at)) {
                top.advance(tree, view, direction)?;
            }
            self.settle_top();
        }
        Ok(())
    }

    /// The top has moved: back into order with it, or out of the heap.
    fn settle_top(&mut self) {
        if self.top().is_some_and(|s| s.done) {
            self.heap.swap_remove(0);
        }
        self.sift(0);
    }

    fn sift(&mut self, mut at: usize) {
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.before(child, least) {
                    least = child;
                }
            }
            if least == at {
                return;
            }
            self.heap.swap(at, least);
            at = least;
        }
    }

    fn before(&self, a: usize, b: usize) -> bool {
        let (Some(&a), Some(&b)) = (self.heap.get(a), self.heap.get(b)) else { return false };
        let (Some(x), Some(y)) = (self.sources.get(a), self.sources.get(b)) else { return false };
        let order = x.prefix.cmp(&y.prefix).then_with(|| x.key.cmp(&y.key));
        let order = if self.direction == Direction::Backward { order.reverse() } else { order };
        order.then(a.cmp(&b)) == Ordering::Less
    }
}

fn memtable(view: &SuperVersion, at: usize) -> Option<&Generation> {
    match at {
        0 => Some(&view.active),
        _ => view.frozen.get(at - 1).map(|g| &**g),
    }
}

fn node_at(generation: &Generation, id: NodeId) -> NodeRef<'_> {
    // SAFETY: a source keeps ids of the memtable at its own place in the one superversion that it is used with.
    unsafe { generation.table.resume(id) }
}

impl Source {
    fn seek<H: Host>(
        &mut self,
        tree: &Tree<'_, H>,
        view: &SuperVersion,
        from: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<()> {
        match &mut self.place {
            Place::Memtable { at, node } => {
                let Some(generation) = memtable(view, *at) else { return Ok(()) };
                let table = &generation.table;
                let found = match (direction, from) {
                    (Direction::Forward, Bound::Unbounded) => table.first(),
                    (Direction::Forward, Bound::Included(key)) => table.lower_bound(key),
                    (Direction::Forward, Bound::Excluded(key)) => table.upper_bound(key),
                    (Direction::Backward, Bound::Unbounded) => table.last(),
                    (Direction::Backward, Bound::Included(key)) => table.last_at_or_before(key),
                    (Direction::Backward, Bound::Excluded(key)) => table.last_before(key),
                };
                *node = found.map(|n| n.id());
            }
            Place::Run { at, cursor } => {
                let Some(desc) = view.runs.get(*at) else { return Ok(()) };
                let run = Run::new(&desc.shape, &desc.extents);
                let pages = Pages(&tree.host);
                match (direction, from) {
                    (Direction::Forward, Bound::Unbounded) => cursor.first(&run, &pages)?,
                    (Direction::Forward, Bound::Included(key)) => cursor.seek(&run, &pages, key)?,
                    (Direction::Forward, Bound::Excluded(key)) => {
                        cursor.seek(&run, &pages, key)? && (cursor.key() != key || cursor.next_key(&run, &pages)?)
                    }
                    (Direction::Backward, Bound::Unbounded) => cursor.last(&run, &pages)?,
                    (Direction::Backward, Bound::Included(key)) => cursor.seek_for_prev(&run, &pages, key)?,
                    (Direction::Backward, Bound::Excluded(key)) => cursor.seek_last_before(&run, &pages, key)?,
                };
            }
        }
        self.note_key(view);
        Ok(())
    }

    /// To the newest version of the next key.
    fn advance<H: Host>(&mut self, tree: &Tree<'_, H>, view: &SuperVersion, direction: Direction) -> Result<()> {
        match &mut self.place {
            Place::Memtable { at, node } => {
                let Some(generation) = memtable(view, *at) else { return Ok(()) };
                let from = node.map(|id| node_at(generation, id));
                let next = match direction {
                    Direction::Forward => from.and_then(|n| n.next_key()),
                    Direction::Backward if on(I15BackwardOldest) => {
                        let mut oldest = generation.table.last_before(&self.key);
                        while let Some(older) = oldest.and_then(|n| n.older()) {
                            oldest = Some(older);
                        }
                        oldest
                    }
                    Direction::Backward => generation.table.last_before(&self.key),
                };
                *node = next.map(|n| n.id());
            }
            Place::Run { at, cursor } => {
                let Some(desc) = view.runs.get(*at) else { return Ok(()) };
                let run = Run::new(&desc.shape, &desc.extents);
                match direction {
                    Direction::Forward => cursor.next_key(&run, &Pages(&tree.host))?,
                    Direction::Backward => cursor.prev_key(&run, &Pages(&tree.host))?,
                };
            }
        }
        self.note_key(view);
        Ok(())
    }

    /// To the next older version of the same key. False: there is none, and nothing has moved.
    fn older<H: Host>(&mut self, tree: &Tree<'_, H>, view: &SuperVersion) -> Result<bool> {
        match &mut self.place {
            Place::Memtable { at, node } => {
                let Some(generation) = memtable(view, *at) else { return Ok(false) };
                let older = node.and_then(|id| node_at(generation, id).older());
                if let Some(older) = &older {
                    *node = Some(older.id());
                }
                Ok(older.is_some())
            }
            Place::Run { at, cursor } => {
                let Some(desc) = view.runs.get(*at) else { return Ok(false) };
                cursor.older(&Run::new(&desc.shape, &desc.extents), &Pages(&tree.host))
            }
        }
    }

    /// Remembers the key that the source stands on now.
    fn note_key(&mut self, view: &SuperVersion) {
        self.key.clear();
        self.done = match &self.place {
            Place::Memtable { at, node } => match (memtable(view, *at), node) {
                (Some(generation), Some(node)) => {
                    self.key.extend_from_slice(node_at(generation, *node).key());
                    false
                }
                _ => true,
            },
            Place::Run { cursor, .. } if cursor.valid() => {
                self.key.extend_from_slice(cursor.row().key);
                false
            }
            Place::Run { .. } => true,
        };
        let mut prefix = [0; 8];
        let len = self.key.len().min(8);
        if let (Some(to), Some(from)) = (prefix.get_mut(..len), self.key.get(..len)) {
            to.copy_from_slice(from);
        }
        self.prefix = u64::from_be_bytes(prefix);
    }
}
