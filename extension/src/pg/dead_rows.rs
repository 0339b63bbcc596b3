//! Which entries of an index VACUUM takes out: those of row versions that are gone, or that nobody will see again.
//!
//! An index has its entries in another order than the table its rows, so whoever looked at the row of each entry would come to every
//! page again and again. Instead the versions that are dead and still stand in the table are found beforehand, for all indexes
//! at once, in a pass over the table. Then of each entry only the row directory is asked, whether its row version is still there.

use crate::host::maintenance;
use crate::table::by_row::{self, ByRow};
use crate::table::mvcc::{self, Sight, Standing, View};
use crate::table::Open;
use loosekv_engine::types::{RowId, Writer};
use pgrx::pg_sys;

/// Keys that are looked at before VACUUM may pause.
const KEYS_AT_ONCE: usize = 1 << 14;

/// The dead of one table, as far as they still stand in it.
pub struct DeadRows {
    open: Open,
    /// Writers below this one are seen by all.
    oldest: u64,
    /// A newer version took their place. Ascending, as the next.
    superseded: Vec<RowId>,
    /// Their writers aborted.
    aborted: Vec<RowId>,
    /// They were too many to be kept in memory.
    incomplete: bool,
    by_row: ByRow,
    /// Standbys know that rows of older snapshots are leaving the indexes.
    told: bool,
}

impl DeadRows {
    pub fn find(open: Open, oldest: u64) -> DeadRows {
        let (superseded, aborted, by_row) = Default::default();
        let mut dead = DeadRows { open, oldest, superseded, aborted, incomplete: false, by_row, told: false };
        dead.survey();
        dead.superseded.sort_unstable();
        dead.aborted.sort_unstable();
        dead
    }

    fn survey(&mut self) {
        let mut room = maintenance::work_memory() / size_of::<RowId>();
        let tree = self.open.sweeping_tree();
        // A version above was written by one whom all see.
        let mut covered = false;
        let mut from = Some(Vec::new());
        while let Some(key) = from.filter(|_| !self.incomplete) {
            by_row::let_others();
            let next = tree.survey(&key, KEYS_AT_ONCE, |newest, head, hint| {
                covered &= !newest;
                let standing = mvcc::standing(head, hint);
                let dead = match standing {
                    Standing::Aborted => Some(&mut self.aborted),
                    _ => covered.then_some(&mut self.superseded),
                };
                if let Some(dead) = dead.filter(|_| !head.flags.is_tombstone()) {
                    self.incomplete |= room == 0;
                    if !self.incomplete {
                        dead.push(head.row_id);
                        room -= 1;
                    }
                }
                covered |= standing == Standing::Committed && head.writer.0 < self.oldest;
            });
            from = self.open.ok(next);
        }
    }

    /// Whether an entry that points there may go. What has died since is left to the next VACUUM.
    pub fn is_dead(&mut self, tid: &pg_sys::ItemPointerData) -> bool {
        let Some(row) = mvcc::row_id_of_tid(tid) else { return true };
        if !self.open.ok(self.open.tree.has_row(row)) || self.aborted.binary_search(&row).is_ok() {
            return true;
        }
        let superseded = self.superseded.binary_search(&row).is_ok();
        if superseded {
            self.tell();
        }
        superseded || (self.incomplete && self.looks_dead(tid))
    }

    /// By a look at the row itself.
    fn looks_dead(&mut self, tid: &pg_sys::ItemPointerData) -> bool {
        let own = &raw mut pg_sys::SnapshotSelfData;
        // SAFETY: PostgreSQL's constant snapshot.
        let mut view = unsafe { View::new(self.open.rel, own) };
        let sight = self.open.ok(self.by_row.fetch(&self.open, &mut view, own, tid));
        let dead = sight.is_dead_to_all(|| self.oldest);
        if dead && matches!(sight, Sight::Superseded(_)) {
            self.tell();
        }
        dead
    }

    /// A row that is gone was told of when it went. One still stands in the tree.
    fn tell(&mut self) {
        if !self.told {
            self.open.ok(self.open.tree.tell_superseded(Writer(self.oldest)));
            self.told = true;
        }
    }
}
