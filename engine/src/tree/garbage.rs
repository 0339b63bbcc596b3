//! Garbage: row versions that a merge of everything would drop.

use crate::host::{Ended, Host, Standing};
use crate::manifest::RunDesc;
use crate::tree::compact::infos;
use crate::tree::pick::space;
use crate::tree::shared::Shared;
use crate::tree::version::SuperVersion;
use crate::types::Writer;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// While rows are being written, so many times as much may be new if nobody knows whether it is garbage.
const UNKNOWN_WHILE_WRITING: u64 = 2;

/// Row versions that a merge of everything would drop, as far as is known, and the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage {
    pub dead: u64,
    pub live: u64,
}

/// What is known of the garbage, if anything, and how much of it is put up with, in percent of what is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub garbage: Option<Garbage>,
    pub percent: u64,
}

impl Garbage {
    /// How much more of it there is than this many percent of what is live, as a part of what is live.
    pub fn beyond(self, percent: u64) -> f64 {
        let allowed = self.live.saturating_mul(percent) / 100;
        self.dead.saturating_sub(allowed) as f64 / self.live.max(1) as f64
    }
}

impl<H: Host> Shared<H> {
    /// How much garbage there is, and may be: more as long as rows are `written`, for every merge is written, too.
    pub(super) fn room(&self, view: &SuperVersion, written: bool) -> Room {
        let garbage = self.garbage(view);
        let factor = match garbage {
            _ if !written => 1,
            Some(_) => H::GARBAGE_WHILE_WRITING,
            None => UNKNOWN_WHILE_WRITING,
        };
        Room { garbage, percent: u64::from(self.options.get().space_percent) * factor }
    }

    /// How much garbage there is: a complete index knows how many keys there are, and all versions but one of each are
    /// garbage. `None`: nobody knows.
    pub(super) fn garbage(&self, view: &SuperVersion) -> Option<Garbage> {
        let rows: u64 = view.runs.iter().map(|run| run.rows()).sum();
        if view.first_unindexed(view.indexed_from) == view.runs.len() {
            let live = self.index.rows();
            return Some(Garbage { dead: rows.saturating_sub(live), live });
        }
        // Who looks at a key before he writes it says what he has replaced.
        let dead = self.counters.rows_replaced.load(Relaxed);
        let blind = self.counters.rows_blind.load(Relaxed);
        (blind == 0).then(|| Garbage { dead: dead.min(rows), live: rows.saturating_sub(dead) })
    }

    /// Whether a merge of everything will be due, for the garbage, once nothing has been written for long, or a snapshot has gone that
    /// holds it up.
    pub fn awaits_rest(&self) -> bool {
        let view = self.current.pin::<H>();
        let room = self.room(&view, false);
        let (kept, rows) = (kept_by_merges(&view.runs, Writer(0)), view.runs.iter().map(|run| run.rows()).sum::<u64>());
        let kept = Garbage { dead: kept, live: rows.saturating_sub(kept) };
        kept.beyond(room.percent) > 0.0 || (!self.rested.load(Relaxed) && self.is_dirty(&view, room))
    }

    /// How many versions merges had to keep for those who do not see all that was committed by writers from `oldest` on.
    pub fn held_up(&self, oldest: Writer) -> u64 {
        let view = self.current.pin::<H>();
        let held = view.runs.iter().filter(|run| run.shape.max_writer >= oldest);
        held.map(|run| run.outdated()).sum()
    }

    /// Whether there is more garbage than this.
    fn is_dirty(&self, view: &SuperVersion, room: Room) -> bool {
        let nobody = Standing { oldest: Writer(0), ended: Ended::default() };
        space(&infos(&view.runs, view.flushed, &nobody), room, &self.options.get()).is_some()
    }

    /// By how much a merge of everything that is due, or goes on, is behind: so much more garbage there is than starts it, as a part of
    /// what is live. What earlier merges had to keep, for somebody may see it, does not count.
    pub fn garbage_beyond(&self) -> f64 {
        let view = self.current.pin::<H>();
        let Some(oldest) = view.runs.len().checked_sub(1) else { return 0.0 };
        let room = self.room(&view, true);
        let due = || self.is_dirty(&view, room);
        let Some(garbage) = room.garbage.filter(|_| view.merge_of(oldest).is_some() || due()) else { return 0.0 };
        let kept = kept_by_merges(&view.runs, Writer(0));
        Garbage { dead: garbage.dead.saturating_sub(kept), ..garbage }.beyond(room.percent)
    }
}

/// Versions of these runs (all of a tree, newest first) that the merges which made them had to keep, for somebody may see them who does
/// not see all from writer `unseen` on.
pub(super) fn kept_by_merges(runs: &[Arc<RunDesc>], unseen: Writer) -> u64 {
    let oldest = runs.len().saturating_sub(1);
    let kept = |(at, run): (usize, &Arc<RunDesc>)| {
        let tombstones = if at == oldest || run.is_slice() { run.shape.tombstones } else { 0 };
        run.left_of(run.shape.rows - run.shape.keys + tombstones)
    };
    runs.iter().enumerate().filter(|(_, run)| run.shape.max_writer >= unseen).map(kept).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_what_is_allowed() {
        let garbage = |dead, live| Garbage { dead, live };
        assert_eq!(garbage(50, 100).beyond(50), 0.0);
        assert_eq!(garbage(75, 100).beyond(50), 0.25);
        assert_eq!(garbage(0, 0).beyond(50), 0.0);
    }
}
