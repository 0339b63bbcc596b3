//! All versions of all keys, whoever sees them: for who looks for those that nobody sees any more; and whether there can be any.

use crate::error::Result;
use crate::host::Host;
use crate::manifest::RunDesc;
use crate::mutation::Pause;
use crate::tree::sources::Sources;
use crate::tree::{Direction, Hint, Tree};
use crate::types::Head;
use std::ops::Bound;
use std::sync::atomic::Ordering::SeqCst;

impl<H: Host> Tree<'_, H> {
    /// Whether a survey could find versions in the runs that are not the newest of their keys, or of writers that aborted. May be true though
    /// there are none.
    pub fn may_have_dead(&self) -> bool {
        let manifest = self.manifest();
        let whole = |run: &RunDesc| run.settled && run.cut.is_none() && run.shape.tombstones == 0;
        let versions: u64 = manifest.runs.iter().map(|run| run.shape.rows).sum();
        !self.shared.coverage().complete || !manifest.runs.iter().all(whole) || versions != self.shared.index.rows()
    }

    /// How many row versions flushes and merges have dropped since the table was loaded.
    pub fn rows_dropped(&self) -> u64 {
        self.shared.counters.rows_dropped.load(SeqCst)
    }

    /// What that was when the host last noted that nothing of its own points to such rows any more ([`Tree::note_cleaned`]).
    pub fn cleaned(&self) -> u64 {
        self.shared.cleaned.load(SeqCst)
    }

    pub fn note_cleaned(&self, dropped: u64) {
        self.shared.cleaned.store(dropped, SeqCst);
    }

    /// Shows the versions of up to so many keys, from `from` on, of each the newest first (then `show` is told so). The key to go on with;
    /// `None`: that was all. Nothing is pinned between two calls, so flushes and merges may drop versions meanwhile, and move others: each
    /// one that stays is shown.
    pub fn survey(
        &self,
        from: &[u8],
        keys: usize,
        mut show: impl FnMut(bool, &Head, &Hint<'_>),
    ) -> Result<Option<Vec<u8>>> {
        let view = self.pin();
        self.pause(Pause::Pinned);
        let mut sources = Sources::new(&view, true, 0..view.runs.len(), Direction::Forward);
        sources.seek(self, &view, (Bound::Included(from), Bound::Unbounded), Direction::Forward)?;
        for _ in 0..keys {
            if sources.key(&view).is_none() {
                return Ok(None);
            }
            sources.open_top(self, &view)?;
            let mut newest = true;
            loop {
                sources.with_head(&view, |head, hint| show(newest, head, hint));
                newest = false;
                if !sources.older(self, &view)? {
                    break;
                }
            }
        }
        Ok(sources.key(&view).map(<[u8]>::to_vec))
    }
}
