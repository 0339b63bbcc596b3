//! All keys in order, over memtables and runs at once, beside the key index in its own order.
//!
//! The index belongs to the present, the superversion does not: what a flush or merge has changed since looks like a
//! finding. So keys in question are looked at once more at the end, while nothing is flushed or merged.

use super::{Check, Phase};
use crate::error::Result;
use crate::filter::key_hash;
use crate::host::Host;
use crate::key_index::{IndexEntry, KeyChunk};
use crate::key_text::hex;
use crate::run::Scratch;
use crate::tree::read::Pages;
use crate::tree::sources::Sources;
use crate::tree::version::Generation;
use crate::tree::{Direction, Tree};
use crate::types::{L0Id, Verdict};
use std::ops::Bound;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

const CHUNK: usize = 256;
const STEP: u64 = 1024;
/// Most keys that are looked at again.
const MOST_DOUBTS: usize = 1000;

impl<H: Host> Check<'_, '_, '_, H> {
    pub(super) fn keys(&mut self) -> Result<()> {
        let in_runs: u64 = self.view.runs.iter().map(|r| r.shape.rows).sum();
        let total = in_runs + self.view.memtables().map(|g| g.table.rows()).sum::<u64>();
        let (tree, view) = (self.tree, &*self.view);
        let mut index = IndexWalk::new(tree);
        let mut sources = Sources::new(view, true, 0..view.runs.len(), Direction::Forward);
        sources.seek(tree, view, (Bound::Unbounded, Bound::Unbounded), Direction::Forward)?;
        let (mut key, mut done, mut doubts) = (Vec::new(), 0, Vec::new());
        let doubt = |doubts: &mut Vec<Vec<u8>>, key: &[u8]| {
            if doubts.len() < MOST_DOUBTS {
                doubts.push(key.to_vec());
            }
        };
        while let Some(next) = sources.key(view) {
            key.clear();
            key.extend_from_slice(next);
            sources.open_top(tree, view)?;
            // The newest run with the key, and whether its newest version there is a tombstone.
            let (mut newest, mut above) = (None, None);
            loop {
                let place = sources.run_on_top();
                let Some(head) = sources.with_head(view, |head, _| *head) else { break };
                if above.is_some_and(|above| head.row_id >= above) {
                    let what = format!("row {} of key {} is not older than what is newer", head.row_id, hex(&key));
                    self.report.add("keys", what);
                }
                above = Some(head.row_id);
                if let Some(run) = place.filter(|_| newest.is_none()) {
                    newest = Some((run, head.flags.is_tombstone()));
                }
                done += 1;
                if done % STEP == 0 {
                    self.watch.progress(Phase::Keys, done, total.max(done))?;
                }
                if !sources.older(tree, view)? {
                    break;
                }
            }
            while let Some(stray) = index.next_below(&key) {
                doubt(&mut doubts, &stray);
            }
            let entry = index.entry_of(&key);
            let fits = match (newest, entry) {
                (None, None) => true,
                (None, Some(_)) => false,
                (Some(newest), entry) => tree.fits(view, &key, newest, entry),
            };
            if !fits {
                doubt(&mut doubts, &key);
            }
        }
        while let Some(stray) = index.next() {
            doubt(&mut doubts, &stray);
        }
        self.watch.progress(Phase::Keys, total, total)?;
        if doubts.is_empty() {
            return Ok(());
        }
        let (report, mut wrong) = (&mut self.report, Vec::new());
        self.watch.alone(&mut || {
            // The index may have been told already of a merge whose runs found no memory for their superversion.
            tree.catch_up()?;
            for key in &doubts {
                wrong.extend(tree.index_is_wrong(key)?);
            }
            Ok(())
        })?;
        wrong.into_iter().for_each(|what| report.add("key index", what));
        Ok(())
    }
}

impl<H: Host> Tree<'_, H> {
    /// Whether this entry is right for a key whose newest version on disk is in that run.
    fn fits(
        &self,
        view: &crate::tree::SuperVersion,
        key: &[u8],
        (run, tombstone): (usize, bool),
        entry: Option<IndexEntry>,
    ) -> bool {
        let unindexed = self.shared.first_unindexed(view);
        let covered = run < unindexed;
        let is_right = |entry: &IndexEntry| self.shared.is_right(&self.shared.before_look(), entry.l0);
        match entry {
            // Where the index is complete, a tombstone that everybody sees may have left it.
            None => !covered || tombstone && self.shared.purged.load(SeqCst) > 0,
            Some(entry) if entry.l0 > view.flushed => true,
            // What may be a stray is not believed.
            Some(entry) if !is_right(&entry) && view.run_of(entry.l0).is_none_or(|at| at >= unindexed) => !covered,
            Some(entry) => view.run_with(entry.l0, key) == Some(run) && entry.tombstone == tombstone,
        }
    }

    /// Looks at one key again; nothing is flushed or merged meanwhile.
    fn index_is_wrong(&self, key: &[u8]) -> Result<Option<String>> {
        let view = self.pin();
        let entry = self.shared.index.get(key);
        let (pages, hash) = (Pages(&self.host), key_hash(key));
        let mut newest = None;
        for (at, desc) in view.runs.iter().enumerate() {
            let run = desc.run();
            if !desc.spans(key) || !run.may_contain(&pages, hash)? {
                continue;
            }
            run.get(&pages, key, &mut Scratch::default(), |row| {
                newest = Some((at, row.head.flags.is_tombstone()));
                Verdict::Take
            })?;
            if newest.is_some() {
                break;
            }
        }
        let shown = hex(key);
        let l0 = |at: usize| view.runs.get(at).map_or(L0Id(0), |r| r.last_l0);
        Ok(match (newest, entry) {
            (Some(newest), entry) if !self.fits(&view, key, newest, entry) => Some(match entry {
                Some(entry) => format!("says {entry:?} of key {shown}, which is in the run up to {}", l0(newest.0)),
                None => format!("lacks key {shown}, which is in the run up to {}", l0(newest.0)),
            }),
            (None, Some(entry)) => {
                let unindexed = self.shared.first_unindexed(&view);
                // A flush that found no memory for its superversion has told the index; its memtable stays until that is made up for.
                let of_it = |frozen: &Arc<Generation>| frozen.table.generation() == entry.l0;
                let waits = view.frozen.iter().any(|frozen| of_it(frozen) && frozen.table.newest(key).is_some());
                let newer = entry.l0 > view.flushed && !waits;
                let right = self.shared.is_right(&self.shared.before_look(), entry.l0);
                let believed = newer || right || view.run_of(entry.l0).is_some_and(|at| at < unindexed);
                // An entry that could not be removed for want of memory is known to be inexact.
                let wrong = believed && self.shared.is_exact(&view);
                wrong.then(|| format!("says {entry:?} of key {shown}, which is in no run"))
            }
            _ => None,
        })
    }
}

/// The index in key order.
struct IndexWalk<'t, 'a, H: Host> {
    tree: &'t Tree<'a, H>,
    chunk: KeyChunk,
    at: usize,
    more: Option<Bound<Vec<u8>>>,
}

impl<'t, 'a, H: Host> IndexWalk<'t, 'a, H> {
    fn new(tree: &'t Tree<'a, H>) -> IndexWalk<'t, 'a, H> {
        IndexWalk { tree, chunk: KeyChunk::new(), at: 0, more: Some(Bound::Unbounded) }
    }

    /// The key that comes next, with its entry.
    fn peek(&mut self) -> Option<(&[u8], IndexEntry)> {
        if self.at >= self.chunk.len() {
            let from = self.more.take()?;
            self.at = 0;
            let from = crate::tree::scan::bound(&from);
            self.tree.shared.index.next_chunk(from, Direction::Forward, CHUNK, &mut self.chunk);
            if !self.chunk.is_complete() {
                self.more = self.chunk.last().map(|(key, _)| Bound::Excluded(key.to_vec()));
            }
        }
        self.chunk.get(self.at)
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let key = self.peek()?.0.to_vec();
        self.at += 1;
        Some(key)
    }

    /// The next key, if it comes before this one.
    fn next_below(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        if self.peek()?.0 >= key {
            return None;
        }
        self.next()
    }

    /// The entry of this key, if it is next.
    fn entry_of(&mut self, key: &[u8]) -> Option<IndexEntry> {
        let (next, entry) = self.peek()?;
        if next != key {
            return None;
        }
        self.at += 1;
        Some(entry)
    }
}
