//! All versions of all keys, whoever sees them: for who looks for those that nobody sees any more.

use crate::error::Result;
use crate::host::Host;
use crate::mutation::Pause;
use crate::tree::sources::Sources;
use crate::tree::{Direction, Hint, Tree};
use crate::types::Head;
use std::ops::Bound;

impl<H: Host> Tree<'_, H> {
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
        sources.seek(self, &view, Bound::Included(from), Direction::Forward)?;
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
