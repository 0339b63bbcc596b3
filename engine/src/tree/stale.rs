//! Stale values: what a merge need not carry on, for a newer run outside of it holds a version of the key that everybody
//! sees (I10).
//!
//! ```text
//! key -> key index -> a run that is newer than all that are merged -> settled, and all its writers are seen by all?
//!                                                                      then no snapshot looks further down for this key
//! ```
//!
//! One look-up in memory decides, no page is read. The index does not tell who wrote the version that it names, so a run
//! counts as a whole. Runs that flushes add while a long merge goes on count, too: the view is renewed every now and then.
//!
//! Never a tombstone: whether it may go is for retention to say, which looks whether an older run may hold the key (I9).

use crate::host::Host;
use crate::manifest::RunDesc;
use crate::mutation::{on, Mutation::I10NotSeenByAll};
use crate::tree::version::Pinned;
use crate::tree::Tree;
use crate::types::{L0Id, Writer};

/// So many keys in a row are looked up, and if fewer than one in so many of them is stale, so many are passed over before the next: a
/// look-up costs about as much as carrying a row on.
const LOOKED_UP: u32 = 256;
const ONE_IN: u32 = 32;
const PASSED_OVER: u32 = 8 * LOOKED_UP;

/// Keys are looked up only if the newer runs have at least this part of the merge's rows: else there is little to drop.
const LEAST_PART: u64 = if cfg!(test) { u64::MAX } else { 16 };

pub(super) struct Stale<'t, 'a, H: Host> {
    tree: &'t Tree<'a, H>,
    /// The newest generation in the merge, and how many rows it has.
    last_l0: L0Id,
    rows: u64,
    /// Committed writers below this one are seen by all.
    oldest: Writer,
    /// `None`: it rests.
    view: Option<Pinned<H>>,
    worthwhile: bool,
    /// Keys that are looked up before it is asked how many of them were stale, and how many were.
    to_look_up: u32,
    found: u32,
    /// Keys that are passed over.
    to_pass: u32,
}

impl<'t, 'a, H: Host> Stale<'t, 'a, H> {
    pub fn new(tree: &'t Tree<'a, H>, last_l0: L0Id, rows: u64, oldest: Writer) -> Self {
        let (view, worthwhile, to_look_up, found, to_pass) = (None, false, LOOKED_UP, 0, 0);
        let mut stale = Stale { tree, last_l0, rows, oldest, view, worthwhile, to_look_up, found, to_pass };
        stale.renew();
        stale
    }

    /// Takes note of the runs that have come since.
    pub fn renew(&mut self) {
        let view = self.tree.pin();
        let newer = view.runs.iter().filter(|run| run.first_l0 > self.last_l0 && self.is_seen(run));
        let rows: u64 = newer.map(|run| run.shape.rows).sum();
        self.worthwhile = rows > 0 && rows.saturating_mul(LEAST_PART) >= self.rows;
        self.view = Some(view);
    }

    /// Lets go of what would be kept for it, until it is renewed.
    pub fn rest(&mut self) {
        (self.view, self.worthwhile) = (None, false);
    }

    /// Whether everybody sees all that is in this run.
    fn is_seen(&self, run: &RunDesc) -> bool {
        run.settled && run.shape.max_writer < self.oldest || on(I10NotSeenByAll)
    }

    /// A writer not older than the one that made the merge's values of this key stale; `None`: they are not.
    pub fn since(&mut self, key: &[u8]) -> Option<Writer> {
        if !self.worthwhile {
            return None;
        }
        if self.to_pass > 0 {
            self.to_pass -= 1;
            return None;
        }
        let since = self.look_up(key);
        self.found += u32::from(since.is_some());
        self.to_look_up -= 1;
        if self.to_look_up == 0 {
            self.to_pass = if self.found < LOOKED_UP / ONE_IN { PASSED_OVER } else { 0 };
            (self.to_look_up, self.found) = (LOOKED_UP, 0);
        }
        since
    }

    fn look_up(&self, key: &[u8]) -> Option<Writer> {
        let entry = self.tree.shared.index.get(key)?;
        let view = self.view.as_ref()?;
        if entry.l0 <= self.last_l0 || entry.l0 > view.flushed {
            return None;
        }
        let at = view.run_with(entry.l0, key)?;
        // What the index says of runs that it does not cover, or no longer to the point, may be out of date.
        let certain = at < self.tree.shared.first_unindexed(view) && self.tree.shared.is_exact(view);
        let run = view.runs.get(at).filter(|run| certain && self.is_seen(run))?;
        Some(run.shape.max_writer)
    }
}
