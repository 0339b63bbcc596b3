//! Ordered scans, both ways.
//!
//! Keeps I7, I15 (guided and merged scans give the same answers; a guided miss is corruption).

use crate::error::Result;
use crate::host::Host;
use crate::tree::guide::{Guide, Step};
use crate::tree::sources::Sources;
use crate::tree::version::{Pinned, SuperVersion};
use crate::tree::{Direction, Hint, Tree};
use crate::types::{Head, RowBuf, Verdict};
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;

/// Keys after which a guided scan goes over to merging: by then it has visited about as many pages.
const GUIDED_KEYS: u32 = if cfg!(test) { 32 } else { 256 };
/// Runs from which on guiding pays.
const GUIDED_RUNS: usize = 3;

/// How a scan finds its next key.
enum Way {
    /// Nothing was read yet.
    Fresh,
    /// The memtables and the key index tell the next key, and the run to look into: no page of a run is read that holds
    /// none of the keys asked for.
    Guided(Box<Guide>),
    /// A cursor on every run: cheaper a key when every page is visited anyway.
    Merged(Box<Sources>),
}

/// Where a scan stands.
enum Place {
    /// At the end that its first step comes from.
    Fresh,
    /// Before all keys.
    Start,
    /// After all keys.
    End,
    /// At, or beyond, the last key seen or sought.
    Key(Bound<Vec<u8>>),
}

/// An ordered scan. Holds a superversion pinned, but no page: it may rest between calls.
pub struct Cursor<H: Host> {
    view: Pinned<H>,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    direction: Direction,
    way: Way,
    at: Place,
    keys: u32,
}

impl<H: Host> Tree<'_, H> {
    /// A scan of the keys within the bounds.
    pub fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, direction: Direction) -> Result<Cursor<H>> {
        let (lower, upper) = (lower.map(<[u8]>::to_vec), upper.map(<[u8]>::to_vec));
        Ok(Cursor { view: self.pin(), lower, upper, direction, way: Way::Fresh, at: Place::Fresh, keys: 0 })
    }
}

impl<H: Host> Cursor<H> {
    /// The next key in the scan's direction of which `choose` takes a version that is no tombstone. After an error it may be
    /// called again, and goes on where it was.
    pub fn next(
        &mut self,
        tree: &Tree<'_, H>,
        choose: impl FnMut(&Head, &Hint<'_>) -> Verdict,
        out: &mut RowBuf,
    ) -> Result<bool> {
        let found = self.next_lazy(tree, choose, out)?;
        if found {
            if let Err(failed) = tree.resolve(out) {
                self.at = Place::Key(Bound::Included(out.key.clone()));
                self.way = Way::Fresh;
                return Err(failed);
            }
        }
        Ok(found)
    }

    /// As [`Cursor::next`], but leaves a large body in the value log, as its pointer: until the cursor is dropped,
    /// [`Tree::resolve`] fetches it.
    pub fn next_lazy(
        &mut self,
        tree: &Tree<'_, H>,
        choose: impl FnMut(&Head, &Hint<'_>) -> Verdict,
        out: &mut RowBuf,
    ) -> Result<bool> {
        let result = self.try_next(tree, choose, out);
        if result.is_err() {
            // Some of the cursors below have moved, others have not.
            self.way = Way::Fresh;
        }
        result
    }

    fn try_next(
        &mut self,
        tree: &Tree<'_, H>,
        mut choose: impl FnMut(&Head, &Hint<'_>) -> Verdict,
        out: &mut RowBuf,
    ) -> Result<bool> {
        while self.find_way(tree)? {
            let Cursor { way, view, lower, upper, direction, .. } = self;
            let within = |key: &[u8]| match direction {
                Direction::Forward => !beyond(key, upper, *direction),
                Direction::Backward => !beyond(key, lower, *direction),
            };
            let taken = match way {
                Way::Guided(guide) => match guide.next(tree, view, within, &mut choose, out)? {
                    Step::Key(taken) => Some(taken),
                    Step::End => None,
                    Step::Lost => {
                        self.keys = GUIDED_KEYS;
                        continue;
                    }
                },
                Way::Merged(sources) => next_merged(tree, view, sources, within, &mut choose, out)?,
                Way::Fresh => None,
            };
            let Some(taken) = taken else {
                self.at = if *direction == Direction::Forward { Place::End } else { Place::Start };
                break;
            };
            self.keys += 1;
            self.set_from(&out.key);
            if taken && !out.head.flags.is_tombstone() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Goes on in this direction from the last key returned (that key itself is not returned again). A scan that has
    /// come to an end goes back from there; one that has not moved yet begins at the other end.
    pub fn turn(&mut self, direction: Direction) {
        if direction != self.direction {
            self.direction = direction;
            self.way = Way::Fresh;
        }
    }

    /// Goes on from `key` (included) in the current direction, but never before the bound where the scan began.
    pub fn seek(&mut self, key: &[u8]) {
        self.at = Place::Key(Bound::Included(key.to_vec()));
        self.way = Way::Fresh;
        self.keys = 0;
    }

    /// Where to go on in the current direction: not before the bound where it begins.
    fn from(&self) -> Bound<&[u8]> {
        let (start, before) = match self.direction {
            Direction::Forward => (bound(&self.lower), Ordering::Less),
            Direction::Backward => (bound(&self.upper), Ordering::Greater),
        };
        let Place::Key(at) = &self.at else { return start };
        match (bound(at), start) {
            (Bound::Included(at) | Bound::Excluded(at), Bound::Included(first)) if at.cmp(first) == before => start,
            (Bound::Included(at) | Bound::Excluded(at), Bound::Excluded(first))
                if at == first || at.cmp(first) == before =>
            {
                start
            }
            (at, _) => at,
        }
    }

    fn set_from(&mut self, key: &[u8]) {
        match &mut self.at {
            Place::Key(Bound::Excluded(at)) => {
                at.clear();
                at.extend_from_slice(key);
            }
            at => *at = Place::Key(Bound::Excluded(key.to_vec())),
        }
    }

    /// Sees to it that the scan has a way to go on. False: it has come to an end.
    fn find_way(&mut self, tree: &Tree<'_, H>) -> Result<bool> {
        match (&self.at, &self.way) {
            (Place::Start, _) if self.direction == Direction::Backward => return Ok(false),
            (Place::End, _) if self.direction == Direction::Forward => return Ok(false),
            (_, Way::Merged(_)) => return Ok(true),
            (_, Way::Guided(_)) if self.keys < GUIDED_KEYS => return Ok(true),
            _ => {}
        }
        let from = self.from();
        let guided = self.keys < GUIDED_KEYS && self.view.runs.len() >= GUIDED_RUNS;
        if let Some(guide) = guided.then(|| Guide::begin(tree, &self.view, from, self.direction)).transpose()?.flatten()
        {
            tree.shared.counters.guided_scans.fetch_add(1, Relaxed);
            self.way = Way::Guided(Box::new(guide));
        } else {
            tree.shared.counters.merged_scans.fetch_add(1, Relaxed);
            let mut sources = Box::new(Sources::new(&self.view, true, 0..self.view.runs.len(), self.direction));
            sources.seek(tree, &self.view, from, self.direction)?;
            self.way = Way::Merged(sources);
        }
        Ok(true)
    }
}

/// The next key of the merge. `None`: no more within the bounds; else whether one of its versions was taken.
fn next_merged<H: Host>(
    tree: &Tree<'_, H>,
    view: &SuperVersion,
    sources: &mut Sources,
    within: impl Fn(&[u8]) -> bool,
    choose: &mut impl FnMut(&Head, &Hint<'_>) -> Verdict,
    out: &mut RowBuf,
) -> Result<Option<bool>> {
    let Some(key) = sources.key() else { return Ok(None) };
    if !within(key) {
        return Ok(None);
    }
    let mut key = std::mem::take(&mut out.key);
    key.clear();
    key.extend_from_slice(sources.key().unwrap_or_default());
    let taken = loop {
        if sources.with_head(view, |head, hint| choose(head, hint)) == Some(Verdict::Take) {
            sources.copy(tree, view, out)?;
            sources.skip_key(tree, view, &key)?;
            break true;
        }
        if !sources.older(tree, view, &key)? {
            break false;
        }
    };
    out.key = key;
    Ok(Some(taken))
}

/// Whether `key` lies beyond `end` in this direction.
fn beyond(key: &[u8], end: &Bound<Vec<u8>>, direction: Direction) -> bool {
    match (end, direction) {
        (Bound::Unbounded, _) => false,
        (Bound::Included(end), Direction::Forward) => key > end.as_slice(),
        (Bound::Excluded(end), Direction::Forward) => key >= end.as_slice(),
        (Bound::Included(end), Direction::Backward) => key < end.as_slice(),
        (Bound::Excluded(end), Direction::Backward) => key <= end.as_slice(),
    }
}

pub(super) fn bound(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
    }
}
