//! The write throttle: writers slow down gradually while flushes and merges are behind, so that they meet the background's
//! rate before memory is full, rather than in stops and bursts.
//!
//! The delay for each KiB written is kept beside the table's shared state: a writer reads one number, and that is all while
//! nothing is behind. Whoever changes the backlog sets it anew; so does a writer that has slept.

use super::ask;
use super::backlog::{self, Backlog};
use crate::host::process_local::ProcessLocal;
use crate::host::{interrupt, PgHost};
use crate::settings;
use loosekv_engine::tree::Tree;
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Shorter delays are saved up.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// Delay that this process owes.
static OWED: ProcessLocal<Cell<Duration>> = ProcessLocal::new(Cell::new(Duration::ZERO));

/// The backlog has changed.
pub fn update(tree: &Tree<'_, PgHost>) {
    let Some(slot) = tree.host.slot() else { return };
    let backlog = {
        let view = tree.shared().current.pin::<PgHost>();
        let options = tree.shared().options.get();
        let fresh = view.runs.iter().take_while(|run| run.level == 0).count();
        Backlog {
            frozen: view.frozen.len() as u32,
            max_frozen: options.max_frozen,
            fresh_runs: fresh as u32,
            unindexed: fresh.saturating_sub(view.first_unindexed(view.indexed_from)) as u32,
            fan_in: options.fan_in,
        }
    };
    let mut nanos = backlog.delay();
    // Where nobody works in the background, waiting for it helps nobody.
    if nanos > 0 && !ask::is_served() {
        nanos = 0;
    }
    slot.write_delay.store(nanos, Relaxed);
}

/// A write of so many bytes is about to be made. No latch is held.
#[inline]
pub fn before_write(tree: &Tree<'_, PgHost>, bytes: usize) {
    if let Some(slot) = tree.host.slot() {
        let nanos = slot.write_delay.load(Relaxed);
        if nanos > 0 {
            slow_down(tree, nanos, bytes);
        }
    }
}

#[cold]
fn slow_down(tree: &Tree<'_, PgHost>, nanos: u32, bytes: usize) {
    // No worker comes to such a table before the transaction ends.
    if tree.host.is_alone() {
        return;
    }
    let limit = settings::write_throttle() * backlog::longest(nanos);
    let owed = OWED.get() + Duration::from_nanos(u64::from(nanos) * bytes as u64 / 1024);
    if limit.is_zero() {
        OWED.set(Duration::ZERO);
    } else if owed < SHORTEST_SLEEP {
        OWED.set(owed);
    } else {
        // What is owed beyond one sleep is forgiven: the pressure has changed by then.
        OWED.set(Duration::ZERO);
        interrupt::nap(owed.min(limit));
        update(tree);
    }
}
