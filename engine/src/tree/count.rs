//! About how many rows there are, for planners.

use crate::host::Host;
use crate::tree::{NewRow, Tree};
use std::sync::atomic::Ordering::Relaxed;

/// How many rows more there are by this version.
pub(super) fn more_by(row: &NewRow<'_>) -> i64 {
    match (row.flags.is_tombstone(), row.begins) {
        (true, _) => -1,
        (false, begins) => i64::from(begins),
    }
}

impl<H: Host> Tree<'_, H> {
    /// About how many rows there are, those of open and aborted writers included: a complete index knows what is on disk, and
    /// what was written to memtables was counted. For the moment of a flush its rows may count twice. `None`: nobody knows.
    pub fn rows_about(&self) -> Option<u64> {
        let view = self.pin();
        let balances = view.memtables().map(|memtable| Some(memtable.balance.as_ref()?.load(Relaxed)));
        let balance: i64 = balances.sum::<Option<i64>>()?;
        let complete = self.shared.first_unindexed(&view) == view.runs.len();
        complete.then(|| self.shared.index.rows().saturating_add_signed(balance))
    }
}
