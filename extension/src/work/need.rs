//! What a table needs, by a look at its shared state: no page is read.

use super::agenda::Task;
use crate::host::{writers, PgHost};
use loosekv_engine::host::{Budgets, Standing};
use loosekv_engine::tree::{Ebb, Shared};
use std::sync::atomic::Ordering::Relaxed;

/// A free end of the file that is shorter than this, in pages, is left for the next run.
pub const WORTH_TRIMMING: u32 = 1024;

/// A memtable smaller than this, in bytes of memory, may stay one for as long as it likes.
const WORTH_SPILLING: usize = 256 << 10;

/// How long a table has been left alone.
#[derive(Clone, Copy)]
pub struct Calm {
    /// Nobody has written to it for a while.
    pub quiet: bool,
    /// Nobody has for long.
    pub rested: bool,
    /// Nobody has used it for a while.
    pub idle: bool,
}

/// The most pressing need of a table.
pub fn look(tree: &Shared<PgHost>, budgets: &Budgets, standing: &Standing, calm: Calm) -> Option<Task> {
    let Calm { quiet, rested, idle } = calm;
    tree.at_rest.store(quiet, Relaxed);
    tree.rested.store(rested, Relaxed);
    tree.tidy.store(is_scanned(tree, quiet) && quiet, Relaxed);
    let view = tree.current.pin::<PgHost>();
    if !view.frozen.is_empty() {
        return Some(Task::Flush);
    }
    // Reads are faster from runs, and a restart has less to read.
    if quiet && filling(tree) >= WORTH_SPILLING {
        return Some(Task::Spill);
    }
    if tree.run_to_index(&view, &budgets.key_index).is_some() {
        return Some(Task::Index);
    }
    if tree.merge_due(standing).is_some() {
        return Some(Task::Merge);
    }
    if tree.sweep_due(&view, standing.oldest) {
        return Some(Task::Sweep);
    }
    if !idle {
        return None;
    }
    match tree.ebb(WORTH_TRIMMING, writers::standbys()) {
        Some(Ebb::Sink) => Some(Task::Sink),
        Some(Ebb::Flush) if filling(tree) > 0 => Some(Task::Spill),
        _ => has_tail(tree).then_some(Task::Trim),
    }
}

/// Whether scans have begun in the runs since somebody last wrote: it is they for whom fewer runs are better.
fn is_scanned(tree: &Shared<PgHost>, quiet: bool) -> bool {
    let counters = &tree.counters;
    let scans = counters.guided_scans.load(Relaxed) + counters.merged_scans.load(Relaxed);
    if !quiet {
        tree.scans_while_written.store(scans, Relaxed);
    }
    scans > tree.scans_while_written.load(Relaxed)
}

/// Whether a good part of the file, at its end, is free.
fn has_tail(tree: &Shared<PgHost>) -> bool {
    let (tail, pages) = tree.tail();
    tail >= WORTH_TRIMMING && tail >= pages / 16
}

/// Whether a table that was just loaded has something for the background to do.
pub fn after_load(tree: &Shared<PgHost>) -> bool {
    let view = tree.current.pin::<PgHost>();
    !view.frozen.is_empty() || view.first_unindexed(view.indexed_from) < view.runs.len()
}

/// Whether memtables wait for their flush.
pub fn is_frozen(tree: &Shared<PgHost>) -> bool {
    !tree.current.pin::<PgHost>().frozen.is_empty()
}

/// Bytes of memory that the memtable takes which rows go to.
pub fn filling(tree: &Shared<PgHost>) -> usize {
    let view = tree.current.pin::<PgHost>();
    let active = &view.active().table;
    if active.is_empty() {
        0
    } else {
        active.memory_used()
    }
}
