//! Merging what several sources hold, key by key, newest version first.
//!
//! A source stands on one row version at a time: a memtable or a run. The sources are numbered by age, newest first, so
//! that among versions of one key the order of the sources is the order of the row ids (I2). A heap over the sources'
//! current keys yields the next one in the scan's direction; with equal keys the newest source comes first.
//!
//! A run that begins beyond where the scan is *waits*: its first key is known without a look at its pages, and it is opened when that
//! key is on top ([`Sources::open_top`]). So of runs whose keys follow each other a scan reads those that it comes to.

use crate::error::{Error, Result};
use crate::host::Host;
use crate::manifest::RunDesc;
use crate::memtable::{Memtable, NodeId, NodeRef};
use crate::mutation::{on, Mutation::I15BackwardOldest};
use crate::run::{Cut, RunCursor};
use crate::tree::ahead::Lane;
use crate::tree::reach;
use crate::tree::read::Pages;
use crate::tree::version::{Generation, SuperVersion};
use crate::tree::words::Words;
use crate::tree::{Direction, Hint, Tree};
use crate::types::{Head, RowBuf, RowRef};
use std::cmp::Ordering;
use std::ops::{Bound, Range};

/// Where one source stands.
pub(super) enum Source<H: Host> {
    /// In the memtable of this place among `SuperVersion::memtables`.
    Memtable { at: usize, node: Option<NodeId>, back: Option<Box<Back>> },
    /// In the run of this place among `SuperVersion::runs`.
    Run { at: usize, cursor: Box<RunCursor<H::Held>>, waits: Waits },
}

/// What a walk backwards in a memtable comes to next. What is linked meanwhile it may pass by: no reader who began before sees it.
#[derive(Default)]
pub(super) struct Back {
    /// The nearest last.
    found: Vec<NodeId>,
    /// From a higher level each time: a scan that goes on, goes on for long.
    level: usize,
}

/// A run that waits stands before its first key in this direction.
type Waits = Option<Direction>;

/// A source that is not at its end, in the heap.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    /// The word of its key.
    pub word: u64,
    /// Its place in `sources`.
    pub source: usize,
}

/// Sources in the order of a scan.
pub(super) struct Sources<H: Host> {
    /// Newest first.
    pub(super) sources: Vec<Source<H>>,
    /// The next key on top.
    pub(super) heap: Vec<Entry>,
    pub(super) words: Words,
    /// For [`super::ahead`]: one for each source, or none yet.
    pub(super) lanes: Vec<Lane>,
    direction: Direction,
    /// The table, if this is a scan: by [`reach`] it asks for pages when it begins.
    pub(super) scan_of: Option<u64>,
    /// The key that is being left, if other sources may have it, or this is a walk backwards.
    left: Vec<u8>,
}

impl<H: Host> Sources<H> {
    /// The memtables of `view` (all, or none for a merge of runs) and these runs.
    pub fn new(
        view: &SuperVersion,
        memtables: bool,
        runs: impl Iterator<Item = usize> + Clone,
        direction: Direction,
    ) -> Sources<H> {
        let count = if memtables { view.memtables().count() } else { 0 };
        let tables = (0..count).map(|at| Source::Memtable { at, node: None, back: None });
        let words = Words::of_runs(view, runs.clone());
        let walks = runs.clone().count();
        let cursors = runs.map(|at| {
            let mut cursor: Box<RunCursor<H::Held>> = Box::default();
            if H::MERGES_ASK && !memtables {
                cursor.ask_for_all(walks);
            }
            Source::Run { at, cursor, waits: None }
        });
        let sources = tables.chain(cursors).collect();
        let (heap, lanes, left) = Default::default();
        Sources { sources, heap, words, lanes, direction, scan_of: None, left }
    }

    /// Takes over cursors on the runs, in their order: what is looked for is on the pages that they have at hand, mostly.
    pub fn adopt(&mut self, mut cursors: Vec<Option<Box<RunCursor<H::Held>>>>) {
        for source in &mut self.sources {
            if let Source::Run { at, cursor, .. } = source {
                if let Some(Some(near)) = cursors.get_mut(*at).map(Option::take) {
                    *cursor = near;
                }
            }
        }
    }

    /// Puts every source on its first key at or beyond `from`, in the direction given; one whose key lies beyond `to` is left out of the
    /// merge. The top is to be opened before it is looked at.
    pub fn seek(
        &mut self,
        tree: &Tree<'_, H>,
        view: &SuperVersion,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
    ) -> Result<()> {
        self.direction = direction;
        self.heap.clear();
        self.heap.reserve(self.sources.len());
        self.approach(tree, view, from)?;
        for (at, source) in self.sources.iter_mut().enumerate() {
            source.seek(tree, view, from, direction)?;
            if let Some(key) = source.key(view).filter(|key| !beyond(key, to, direction)) {
                self.heap.push(Entry { word: self.words.word(key), source: at });
            }
        }
        for at in (0..self.heap.len() / 2).rev() {
            self.sift(view, at);
        }
        Ok(())
    }

    /// Sees to it that the version on top is at hand. After an error it may be called again.
    #[inline]
    pub fn open_top(&mut self, tree: &Tree<'_, H>, view: &SuperVersion) -> Result<()> {
        match self.heap.first().and_then(|top| self.sources.get_mut(top.source)) {
            Some(top) => top.open(tree, view),
            None => Ok(()),
        }
    }

    /// Asks for the pages where a scan begins in its runs, and for those that it will go on to, before it waits for the first.
    fn approach(&mut self, tree: &Tree<'_, H>, view: &SuperVersion, from: Bound<&[u8]>) -> Result<()> {
        let (Some(table), Bound::Included(key) | Bound::Excluded(key)) = (self.scan_of, from) else { return Ok(()) };
        let direction = self.direction;
        let around = |at: usize| view.runs.get(at).filter(|desc| matches!(side(desc, from, direction), Side::Around));
        let runs = || self.sources.iter().filter_map(Source::run).filter_map(around);
        let (whole, several) = (runs().map(|desc| desc.shape.rows).sum(), runs().nth(1).is_some());
        for source in &mut self.sources {
            let Source::Run { at, cursor, .. } = source else { continue };
            let Some(desc) = around(*at) else { continue };
            let more = reach::pages(table, desc.shape.rows, whole);
            if several || more > 0 {
                let (run, backward) = (desc.run(), direction == Direction::Backward);
                cursor.approach(&run, &Pages(&tree.host), key, backward, more)?;
            }
        }
        Ok(())
    }

    fn top(&self) -> Option<&Source<H>> {
        self.sources.get(self.heap.first()?.source)
    }

    /// The next key.
    #[inline]
    pub fn key<'a>(&'a self, view: &'a SuperVersion) -> Option<&'a [u8]> {
        self.top()?.key(view)
    }

    /// Place of the run that the version on top stands in; `None`: it is in a memtable.
    pub fn run_on_top(&self) -> Option<usize> {
        match self.top()? {
            Source::Memtable { .. } => None,
            Source::Run { at, .. } => Some(*at),
        }
    }

    /// For each run, in their order, what is left of it: `None` if nothing is.
    pub fn left(&self, view: &SuperVersion) -> Vec<Option<Cut>> {
        let left = |source: &Source<H>| match source {
            Source::Run { at, waits: Some(_), .. } => {
                let run = view.runs.get(*at)?;
                Some(Cut { key: run.min_key().to_vec(), pages: run.run().first_page() })
            }
            Source::Run { cursor, .. } => {
                let (page, ..) = cursor.window()?;
                Some(Cut { key: cursor.key().to_vec(), pages: page })
            }
            Source::Memtable { .. } => None,
        };
        self.sources.iter().map(left).collect()
    }

    /// The version on top: its head, and what is known of its writer.
    #[inline]
    pub fn with_head<R>(&self, view: &SuperVersion, see: impl FnOnce(&Head, &Hint<'_>) -> R) -> Option<R> {
        match self.top()? {
            Source::Memtable { at, node, .. } => {
                let node = node_at(memtable(view, *at)?, (*node)?);
                Some(see(&node.head(), &Hint::of_node(&node)))
            }
            Source::Run { at, cursor, .. } => Some(see(&cursor.row().head, &Hint::of_run(view.runs.get(*at)?))),
        }
    }

    /// The version on top, where it stands, if that is in a run.
    #[inline]
    pub fn run_row(&self) -> Option<RowRef<'_>> {
        match self.top()? {
            Source::Run { cursor, .. } => Some(cursor.row()),
            Source::Memtable { .. } => None,
        }
    }

    /// Copies the version on top.
    pub fn copy(&self, tree: &Tree<'_, H>, view: &SuperVersion, out: &mut RowBuf) -> Result<()> {
        match self.top() {
            Some(Source::Memtable { at, node: Some(node), .. }) => match memtable(view, *at) {
                Some(generation) => tree.copy_logged(generation, &node_at(generation, *node), out),
                None => Ok(()),
            },
            Some(Source::Run { cursor, .. }) => {
                out.set(&cursor.row());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The key at which [`Sources::older`], [`Sources::leave_key`] or [`Sources::open_top`] has just failed.
    pub fn key_failed(&self, view: &SuperVersion) -> Option<Vec<u8>> {
        match self.top()? {
            waiting @ Source::Run { waits: Some(_), .. } => waiting.key(view).map(<[u8]>::to_vec),
            // On the way back a cursor passes the older versions of the key before, and may fail there.
            _ if self.direction == Direction::Backward && !self.left.is_empty() => Some(self.left.clone()),
            Source::Run { cursor, .. } => Some(cursor.key().to_vec()),
            source => source.key(view).map(<[u8]>::to_vec),
        }
    }

    /// On to the next older version of the key on top. False: the next key came.
    pub fn older(&mut self, tree: &Tree<'_, H>, view: &SuperVersion) -> Result<bool> {
        self.left.clear();
        let Some(top) = self.heap.first().and_then(|top| self.sources.get_mut(top.source)) else { return Ok(false) };
        if top.older(tree, view)? {
            return Ok(true);
        }
        let more = self.next_source(tree, view)?;
        if more {
            self.open_top(tree, view)?;
        }
        Ok(more)
    }

    /// Past every version of the key on top.
    #[inline]
    pub fn leave_key(&mut self, tree: &Tree<'_, H>, view: &SuperVersion) -> Result<()> {
        while self.next_source(tree, view)? {}
        Ok(())
    }

    /// Moves the source on top past its key. Whether the key is still on top, for another source has it, too.
    #[inline]
    fn next_source(&mut self, tree: &Tree<'_, H>, view: &SuperVersion) -> Result<bool> {
        let rivals = match self.heap.as_slice() {
            [top, rivals @ ..] => rivals.iter().take(2).any(|rival| rival.word == top.word),
            [] => return Ok(false),
        };
        if rivals || self.direction == Direction::Backward {
            let mut key = std::mem::take(&mut self.left);
            key.clear();
            key.extend_from_slice(self.key(view).unwrap_or_default());
            self.left = key;
        }
        let direction = self.direction;
        if let Some(top) = self.heap.first().and_then(|top| self.sources.get_mut(top.source)) {
            top.advance(tree, view, direction)?;
        }
        self.settle_top(view);
        Ok(rivals && self.key(view) == Some(self.left.as_slice()))
    }

    /// The top has moved: back into order with it, or out of the heap.
    #[inline]
    fn settle_top(&mut self, view: &SuperVersion) {
        let word = self.top().and_then(|top| top.key(view)).map(|key| self.words.word(key));
        match (word, self.heap.first_mut()) {
            (Some(word), Some(top)) => top.word = word,
            (None, Some(_)) => {
                self.heap.swap_remove(0);
            }
            (_, None) => return,
        }
        self.sift(view, 0);
    }

    #[inline]
    fn sift(&mut self, view: &SuperVersion, mut at: usize) {
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.before(view, child, least) {
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

    #[inline]
    fn before(&self, view: &SuperVersion, a: usize, b: usize) -> bool {
        let (Some(a), Some(b)) = (self.heap.get(a), self.heap.get(b)) else { return false };
        let forward = self.direction == Direction::Forward;
        if a.word != b.word {
            return (a.word < b.word) == forward;
        }
        let (Some(x), Some(y)) = (self.sources.get(a.source), self.sources.get(b.source)) else { return false };
        let order = x.key(view).cmp(&y.key(view));
        let order = if forward { order } else { order.reverse() };
        order.then(a.source.cmp(&b.source)) == Ordering::Less
    }
}

impl<H: Host> Drop for Sources<H> {
    fn drop(&mut self) {
        if let Some(table) = self.scan_of {
            let walked = |source: &Source<H>| if let Source::Run { cursor, .. } = source { cursor.walked() } else { 0 };
            reach::note_pages(table, self.sources.iter().map(walked).fold(0, u32::saturating_add));
        }
    }
}

fn memtable(view: &SuperVersion, at: usize) -> Option<&Generation> {
    match at {
        0 => view.memtables().next().map(|g| &**g),
        _ => view.frozen.get(at - 1).map(|g| &**g),
    }
}

fn node_at(generation: &Generation, id: NodeId) -> NodeRef<'_> {
    // SAFETY: a source keeps ids of the memtable at its own place in the one superversion that it is used with.
    unsafe { generation.table.resume(id) }
}

/// Where the keys of a run are, seen from where a scan begins.
enum Side {
    /// All of them are yet to come.
    Beyond,
    Around,
    /// The scan will meet none of them.
    Behind,
}

fn side(run: &RunDesc, from: Bound<&[u8]>, direction: Direction) -> Side {
    let (Bound::Included(key) | Bound::Excluded(key)) = from else { return Side::Beyond };
    let (first, last) = match direction {
        Direction::Forward => (run.min_key().cmp(key), run.shape.max_key.as_slice().cmp(key)),
        Direction::Backward => (key.cmp(&run.shape.max_key), key.cmp(run.min_key())),
    };
    let included = matches!(from, Bound::Included(_));
    match (first, last) {
        (Ordering::Greater, _) => Side::Beyond,
        (Ordering::Equal, _) if included => Side::Beyond,
        (_, Ordering::Less) => Side::Behind,
        (_, Ordering::Equal) if !included => Side::Behind,
        _ => Side::Around,
    }
}

/// Those of the runs that a scan meets on its way from `from` to `to`.
pub(super) fn met<'a>(
    view: &'a SuperVersion,
    runs: Range<usize>,
    (from, to): (Bound<&'a [u8]>, Bound<&'a [u8]>),
    direction: Direction,
) -> impl Iterator<Item = usize> + 'a {
    let back = match direction {
        Direction::Forward => Direction::Backward,
        Direction::Backward => Direction::Forward,
    };
    let met = move |run: &RunDesc| {
        !beyond(first_key(run, direction), to, direction) && !beyond(first_key(run, back), from, back)
    };
    runs.filter(move |at| view.runs.get(*at).is_some_and(|run| met(run)))
}

/// Whether `key` lies beyond `end` in this direction.
pub(super) fn beyond(key: &[u8], end: Bound<&[u8]>, direction: Direction) -> bool {
    match (end, direction) {
        (Bound::Unbounded, _) => false,
        (Bound::Included(end), Direction::Forward) => key > end,
        (Bound::Excluded(end), Direction::Forward) => key >= end,
        (Bound::Included(end), Direction::Backward) => key < end,
        (Bound::Excluded(end), Direction::Backward) => key <= end,
    }
}

/// The key of a run that a scan in this direction comes to first.
fn first_key(run: &RunDesc, direction: Direction) -> &[u8] {
    match direction {
        Direction::Forward => run.min_key(),
        Direction::Backward => &run.shape.max_key,
    }
}

impl Back {
    /// The newest version of the key before this one. (Apart from what steps back in runs, which is to stay small.)
    #[inline(never)]
    fn step(&mut self, table: &Memtable, key: &[u8]) -> Option<NodeId> {
        if self.found.is_empty() {
            self.level += 1;
            table.some_before(key, self.level, &mut self.found);
        }
        self.found.pop()
    }
}

impl<H: Host> Source<H> {
    /// Place of the run, if it is one.
    fn run(&self) -> Option<usize> {
        match self {
            Source::Run { at, .. } => Some(*at),
            Source::Memtable { .. } => None,
        }
    }

    /// The key it stands on; `None`: it is at its end.
    #[inline]
    pub(super) fn key<'a>(&'a self, view: &'a SuperVersion) -> Option<&'a [u8]> {
        match self {
            Source::Memtable { at, node, .. } => Some(node_at(memtable(view, *at)?, (*node)?).key()),
            Source::Run { at, waits: Some(direction), .. } => Some(first_key(view.runs.get(*at)?, *direction)),
            Source::Run { cursor, .. } => cursor.valid().then(|| cursor.key()),
        }
    }

    fn seek(
        &mut self,
        tree: &Tree<'_, H>,
        view: &SuperVersion,
        from: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<()> {
        match self {
            Source::Memtable { at, node, back } => {
                let Some(generation) = memtable(view, *at) else { return Ok(()) };
                let table = &generation.table;
                if let Some(back) = back {
                    back.found.clear();
                    back.level = 0;
                }
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
            Source::Run { at, cursor, waits } => {
                let Some(desc) = view.runs.get(*at) else { return Ok(()) };
                *waits = None;
                match side(desc, from, direction) {
                    Side::Beyond => {
                        cursor.reset();
                        *waits = Some(direction);
                        return Ok(());
                    }
                    Side::Behind => {
                        cursor.reset();
                        return Ok(());
                    }
                    Side::Around => {}
                }
                let run = desc.run();
                let pages = Pages(&tree.host);
                match (direction, from) {
                    (Direction::Forward, Bound::Included(key)) => cursor.seek(&run, &pages, key)?,
                    (Direction::Forward, Bound::Excluded(key)) => {
                        cursor.seek(&run, &pages, key)? && (cursor.key() != key || cursor.next_key(&run, &pages)?)
                    }
                    (Direction::Backward, Bound::Included(key)) => cursor.seek_for_prev(&run, &pages, key)?,
                    (Direction::Backward, Bound::Excluded(key)) => cursor.seek_last_before(&run, &pages, key)?,
                    (_, Bound::Unbounded) => false,
                };
            }
        }
        Ok(())
    }

    /// Reads the first row of a run that waits.
    #[inline]
    fn open(&mut self, tree: &Tree<'_, H>, view: &SuperVersion) -> Result<()> {
        let Source::Run { at, cursor, waits } = self else { return Ok(()) };
        let (Some(direction), Some(desc)) = (*waits, view.runs.get(*at)) else { return Ok(()) };
        let (run, pages) = (desc.run(), Pages(&tree.host));
        match direction {
            Direction::Forward => cursor.first(&run, &pages)?,
            Direction::Backward => cursor.last(&run, &pages)?,
        };
        if !cursor.valid() || cursor.key() != first_key(desc, direction) {
            return Err(Error::structure(format!("run {} does not begin or end with the key that it names", desc.id)));
        }
        *waits = None;
        Ok(())
    }

    /// To the newest version of the next key.
    #[inline]
    fn advance(&mut self, tree: &Tree<'_, H>, view: &SuperVersion, direction: Direction) -> Result<()> {
        self.open(tree, view)?;
        match self {
            Source::Memtable { at, node, back } => {
                let Some(generation) = memtable(view, *at) else { return Ok(()) };
                let Some(from) = node.map(|id| node_at(generation, id)) else { return Ok(()) };
                *node = match direction {
                    Direction::Forward => from.next_key().map(|n| n.id()),
                    Direction::Backward => back.get_or_insert_default().step(&generation.table, from.key()),
                };
                if direction == Direction::Backward && on(I15BackwardOldest) {
                    while self.older(tree, view)? {}
                }
            }
            Source::Run { at, cursor, .. } => {
                let Some(desc) = view.runs.get(*at) else { return Ok(()) };
                let run = desc.run();
                match direction {
                    Direction::Forward => cursor.next_key(&run, &Pages(&tree.host))?,
                    Direction::Backward => cursor.prev_key(&run, &Pages(&tree.host))?,
                };
            }
        }
        Ok(())
    }

    /// To the next older version of the same key. False: there is none, and nothing has moved.
    fn older(&mut self, tree: &Tree<'_, H>, view: &SuperVersion) -> Result<bool> {
        match self {
            Source::Memtable { at, node, .. } => {
                let Some(generation) = memtable(view, *at) else { return Ok(false) };
                let older = node.and_then(|id| node_at(generation, id).older());
                if let Some(older) = &older {
                    *node = Some(older.id());
                }
                Ok(older.is_some())
            }
            Source::Run { at, cursor, .. } => {
                let Some(desc) = view.runs.get(*at) else { return Ok(false) };
                cursor.older(&desc.run(), &Pages(&tree.host))
            }
        }
    }
}
