//! A superversion that could not be installed after its flip.
//!
//! What follows a flip must not fail, so memory for it is reserved before. Should there be none all the same, nothing is lost: the
//! pages that the flip gave up are in limbo as long as a superversion names them, so readers go on with the current one. But it
//! names runs that the manifest has no more, and whatever is merged or moved next would be planned by them. So that begins with
//! giving the current superversion the runs of the manifest.

use crate::error::Result;
use crate::host::Host;
use crate::tree::shared::Shared;
use crate::tree::version::SuperVersion;
use crate::tree::Tree;
use std::sync::atomic::Ordering::SeqCst;

impl<H: Host> Shared<H> {
    /// [`Shared::install`] of what a flip has made of runs that were there before.
    pub fn install_flipped(&self, edit: impl FnOnce(&SuperVersion) -> Result<SuperVersion>) -> Result<u64> {
        let installed = self.install(edit);
        if installed.is_err() {
            self.behind.store(true, SeqCst);
        }
        installed
    }

    pub fn is_behind(&self) -> bool {
        self.behind.load(SeqCst)
    }
}

impl<H: Host> Tree<'_, H> {
    /// Installs what earlier flips have made of the runs and could not install. The caller holds the maintenance lock; flushes may go on
    /// meanwhile.
    pub(super) fn catch_up(&self) -> Result<()> {
        if !self.shared.is_behind() {
            return Ok(());
        }
        let manifest = self.manifest();
        let oldest_first = manifest.runs.iter().map(|run| self.shared.share(run)).collect::<Result<Vec<_>>>()?;
        let installed = self.shared.install(|current| {
            let mut parts = current.edit();
            // A flush that is between its flip and its superversion brings its run itself.
            let is_known = |id| current.runs.iter().any(|run| run.id == id);
            let there = oldest_first.iter().rev().filter(|run| run.last_l0 <= current.flushed || is_known(run.id));
            parts.runs.retain(|run| run.id >= manifest.next_run);
            parts.runs.extend(there.cloned());
            SuperVersion::new(current.number + 1, parts)
        })?;
        self.shared.counters.left_out(1);
        self.shared.behind.store(false, SeqCst);
        self.shared.gone_before.fetch_min(installed, SeqCst);
        Ok(())
    }
}
