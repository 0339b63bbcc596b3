//! The guided way of a scan: the memtables and the key index tell the next key, the run map the run that holds it.
//!
//! ```text
//! memtables (merged) ---+
//!                       +--> next key -> in a memtable: its versions there
//! key index, in chunks -+             -> else index -> run map -> that run's cursor, moved to exactly this key
//!                                     -> nothing taken: an ordinary look-up among the older versions
//! ```
//!
//! The index is read in chunks under short epoch pins, so an entry may be older than the index is by now. That is no
//! harm: what a later flush or merge changed is not of the superversion that the scan has pinned, and a key that the
//! index lost meanwhile is one that no snapshot sees (I4).

use crate::error::{Error, Result};
use crate::host::{Host, Saw};
use crate::key_index::KeyChunk;
use crate::key_text::hex;
use crate::mutation::{on, Mutation::*, Pause};
use crate::run::RunCursor;
use crate::tree::reach;
use crate::tree::read::Pages;
use crate::tree::scan::Standing;
use crate::tree::sources::Sources;
use crate::tree::version::SuperVersion;
use crate::tree::{Direction, Hint, Tree};
use crate::types::{Head, RowBuf, RowRef, Verdict};
use std::cmp::Ordering;
use std::ops::Bound;

/// Keys fetched from the index at once: few at first, for a LIMIT may end the scan soon.
const FIRST_CHUNK: usize = if cfg!(test) { 4 } else { 32 };
const CHUNK: usize = if cfg!(test) { 16 } else { 128 };

pub(super) struct Guide<H: Host> {
    memtables: Sources<H>,
    /// One for each run, made when it is first looked into.
    cursors: Vec<Option<Box<RunCursor<H::Held>>>>,
    chunk: KeyChunk,
    at: usize,
    /// Where the next chunk begins; `None`: the index has no more.
    more: Option<Bound<Vec<u8>>>,
    direction: Direction,
    chunk_size: usize,
    /// The table, and the keys so far.
    table: u64,
    keys: u32,
}

impl<H: Host> Drop for Guide<H> {
    fn drop(&mut self) {
        reach::note_keys(self.table, self.keys);
        // Who goes on by merging has taken the cursors.
        if !self.cursors.is_empty() {
            let walked = self.cursors.iter().flatten().map(|cursor| cursor.walked());
            reach::note_pages(self.table, walked.fold(0, u32::saturating_add));
        }
    }
}

/// What a step of the scan came upon.
pub(super) enum Step {
    /// A key, and where the version of it stands that was taken.
    Key(Standing),
    /// No more within the bounds.
    End,
    /// Entries have left the index since the scan began: it has to go on by merging.
    Lost,
}

impl<H: Host> Guide<H> {
    pub fn begin(
        tree: &Tree<'_, H>,
        view: &SuperVersion,
        from: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Option<Guide<H>>> {
        let mut memtables = Sources::new(view, true, 0..0, direction);
        memtables.seek(tree, view, (from, Bound::Unbounded), direction)?;
        let cursors = (0..view.runs.len()).map(|_| None).collect();
        let more = Some(from.map(<[u8]>::to_vec));
        let chunk = KeyChunk::default();
        let (table, chunk_size) = (tree.shared.storage_id(), FIRST_CHUNK);
        let mut guide = Guide { memtables, cursors, chunk, at: 0, more, direction, chunk_size, table, keys: 0 };
        if !guide.fill(tree, view) {
            return Ok(None);
        }
        guide.approach(tree, view)?;
        Ok(Some(guide))
    }

    /// Asks for the pages where the first keys stand, as many as the scan is expected to come to, before it waits for one of them.
    fn approach(&mut self, tree: &Tree<'_, H>, view: &SuperVersion) -> Result<()> {
        let backward = self.direction == Direction::Backward;
        let whole = view.runs.iter().map(|desc| desc.shape.rows).sum();
        for at in 0..self.chunk.len().min(reach::keys(self.table) as usize) {
            let Some((key, entry)) = self.chunk.get(at) else { break };
            let Some(run) = view.run_with(entry.l0, key).filter(|_| entry.l0 <= view.flushed) else { continue };
            if let (Some(desc), Some(none @ None)) = (view.runs.get(run), self.cursors.get_mut(run)) {
                let more = reach::pages(self.table, desc.shape.rows, whole);
                let run = desc.run();
                tree.host.saw(Saw::Run, 1);
                none.insert(Box::default()).approach(&run, &Pages(&tree.host), key, backward, more)?;
            }
        }
        Ok(())
    }

    /// Its cursors on the runs, where they stand now, for who goes on by merging.
    pub fn take_cursors(&mut self) -> Vec<Option<Box<RunCursor<H::Held>>>> {
        std::mem::take(&mut self.cursors)
    }

    /// The row at which the cursor on a run stands.
    #[inline]
    pub fn row(&self, at: usize) -> Option<RowRef<'_>> {
        self.cursors.get(at)?.as_ref().filter(|cursor| cursor.valid()).map(|cursor| cursor.row())
    }

    /// The next key, which is put into `key`.
    #[allow(clippy::too_many_arguments)]
    pub fn next(
        &mut self,
        tree: &Tree<'_, H>,
        view: &SuperVersion,
        within: impl Fn(&[u8]) -> bool,
        choose: &mut impl FnMut(&Head, &Hint<'_>) -> Verdict,
        key: &mut Vec<u8>,
        buffer: &mut RowBuf,
    ) -> Result<Step> {
        if self.at >= self.chunk.len() && !self.fill(tree, view) {
            return Ok(Step::Lost);
        }
        let (in_memtable, in_index) = match (self.memtables.key(view), self.chunk.get(self.at).map(|(key, _)| key)) {
            (None, None) => return Ok(Step::End),
            (Some(_), None) => (true, false),
            (None, Some(_)) => (false, true),
            (Some(a), Some(b)) => {
                let order = if self.direction == Direction::Forward { a.cmp(b) } else { b.cmp(a) };
                (order != Ordering::Greater, order != Ordering::Less)
            }
        };
        key.clear();
        let next = if in_memtable { self.memtables.key(view) } else { self.chunk.get(self.at).map(|(key, _)| key) };
        key.extend_from_slice(next.unwrap_or_default());
        if !within(key) {
            return Ok(Step::End);
        }
        let standing = self.versions(tree, view, key, in_memtable, in_index, choose, buffer)?;
        self.at += usize::from(in_index);
        self.keys = self.keys.saturating_add(1);
        Ok(Step::Key(standing))
    }

    /// Shows the versions of `key` wherever they stand.
    #[allow(clippy::too_many_arguments)]
    fn versions(
        &mut self,
        tree: &Tree<'_, H>,
        view: &SuperVersion,
        key: &[u8],
        in_memtable: bool,
        in_index: bool,
        choose: &mut impl FnMut(&Head, &Hint<'_>) -> Verdict,
        buffer: &mut RowBuf,
    ) -> Result<Standing> {
        if in_memtable {
            loop {
                let taken =
                    self.memtables.with_head(view, |head, hint| (choose(head, hint), head.flags.is_tombstone()));
                if let Some((Verdict::Take, tombstone)) = taken {
                    // Nobody looks at a tombstone's row.
                    if !tombstone {
                        self.memtables.copy(tree, view, buffer)?;
                    }
                    self.memtables.leave_key(tree, view)?;
                    return Ok(Standing::Buffer);
                }
                if !self.memtables.older(tree, view)? {
                    break;
                }
            }
        }
        if !in_index {
            return Ok(Standing::Nowhere);
        }
        let Some((_, entry)) = self.chunk.get(self.at) else { return Ok(Standing::Nowhere) };
        let mut looked_into = 0;
        if entry.l0 <= view.flushed {
            let at = view.run_with(entry.l0, key).ok_or_else(|| Error::structure("the key index names no run"))?;
            if self.look_into(tree, view, at, key, choose)? {
                return Ok(Standing::Run(at));
            }
            looked_into = at + 1;
        }
        if on(I15OlderNotLookedFor) {
            return Ok(Standing::Nowhere);
        }
        // The reader is older than the newest version on disk.
        let found = tree.find_older(view, looked_into, key, choose, buffer)?;
        Ok(if found { Standing::Buffer } else { Standing::Nowhere })
    }

    /// Looks into one run, which holds the key. True: its cursor stands at the version taken.
    fn look_into(
        &mut self,
        tree: &Tree<'_, H>,
        view: &SuperVersion,
        at: usize,
        key: &[u8],
        choose: &mut impl FnMut(&Head, &Hint<'_>) -> Verdict,
    ) -> Result<bool> {
        let (Some(desc), Some(cursor)) = (view.runs.get(at), self.cursors.get_mut(at)) else {
            return Err(Error::structure("the run map names no run"));
        };
        let cursor = cursor.get_or_insert_with(|| {
            tree.host.saw(Saw::Run, 1);
            Box::default()
        });
        let (run, pages) = (desc.run(), Pages(&tree.host));
        cursor.seek_near(&run, &pages, key, self.direction == Direction::Forward)?;
        if !cursor.valid() || cursor.key() != key {
            if !tree.shared.is_exact(view) || on(I15MissTakenForNone) {
                return Ok(false);
            }
            return Err(Error::structure(format!("run {} lacks key {} that guides a scan to it", desc.id, hex(key))));
        }
        let hint = Hint::of_run(desc);
        loop {
            if choose(&cursor.row().head, &hint) == Verdict::Take {
                return Ok(true);
            }
            if !cursor.older(&run, &pages)? {
                return Ok(false);
            }
        }
    }

    /// Fetches the next keys of the index. False: the index does not cover all the runs, and cannot guide.
    fn fill(&mut self, tree: &Tree<'_, H>, view: &SuperVersion) -> bool {
        self.at = 0;
        let Some(from) = self.more.take() else {
            self.chunk = KeyChunk::new();
            return true;
        };
        tree.shared.index.next_chunk(super::scan::bound(&from), self.direction, self.chunk_size, &mut self.chunk);
        if !self.chunk.is_complete() {
            let end = if on(I15KeyTwice) { Bound::Included } else { Bound::Excluded };
            self.more = self.chunk.last().map(|(key, _)| end(key.to_vec()));
        }
        tree.pause(Pause::IndexRead);
        self.chunk_size = CHUNK;
        tree.shared.first_unindexed(view) == view.runs.len()
    }
}
