//! `loosekv.check`, and `loosekv.progress` for whoever waits for it or for the worker.

use super::admin::{may_check, may_look, with_table};
use super::sight;
use crate::host::maintenance::Maintenance;
use crate::host::{global, interrupt, progress};
use crate::table::Open;
use loosekv_engine::error::Result;
use loosekv_engine::tree::{Finding, Phase, Watch};
use pgrx::iter::TableIterator;
use pgrx::pg_sys;
use pgrx::pg_sys::AclResult::ACLCHECK_OK;
use pgrx::pg_sys::Oid;
use pgrx::prelude::*;

struct Beside<'o> {
    open: &'o Open,
    phase: Option<Phase>,
    follower: bool,
}

impl Watch for Beside<'_> {
    fn progress(&mut self, phase: Phase, done: u64, total: u64) -> Result<()> {
        if self.phase.replace(phase) != Some(phase) {
            debug1!("table \"{}\": {}", self.open.name(), phase.name());
        }
        progress::report(self.open.rel, progress::Command::checking(phase), done, total);
        interrupt::poll()
    }

    fn alone(&mut self, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if self.follower {
            return work();
        }
        // SAFETY: the relation stays open.
        let _lock = unsafe { Maintenance::lock(self.open.rel) };
        work()
    }

    fn is_follower(&self) -> bool {
        self.follower
    }
}

fn check(open: &Open) -> Vec<Finding> {
    // SAFETY: reads a flag in shared memory.
    let follower = unsafe { pg_sys::RecoveryInProgress() };
    let mut findings = open.ok(open.sweeping_tree().check(&mut Beside { open, phase: None, follower }));
    progress::ended();
    findings.extend(unfrozen(open));
    for finding in &mut findings {
        finding.what = sight::of_message(open.rel, std::mem::take(&mut finding.what));
    }
    findings
}

/// Runs that need the commit log say so by relfrozenxid, so that it is kept for them.
fn unfrozen(open: &Open) -> Vec<Finding> {
    // SAFETY: the relation is open.
    let (frozen, oldest) = unsafe {
        let frozen = (*(*open.rel).rd_rel).relfrozenxid;
        (frozen, crate::host::writers::widen(frozen, crate::host::writers::next()))
    };
    if frozen == pg_sys::InvalidTransactionId {
        return Vec::new();
    }
    let next = crate::host::writers::next();
    let mut findings = Vec::new();
    for run in super::table_vacuum::runs(open) {
        let place = format!("run {}", run.id);
        if !run.settled && run.shape.min_writer < oldest && run.shape.min_writer.0 >= u64::from(FIRST_NORMAL) {
            let what = format!("is not settled, and holds writer {}; relfrozenxid is {oldest}", run.shape.min_writer);
            findings.push(Finding { place: place.clone(), what });
        }
        if run.shape.max_writer.0 >= next {
            let what = format!("holds writer {}, the next transaction is {next}", run.shape.max_writer);
            findings.push(Finding { place, what });
        }
    }
    findings
}

const FIRST_NORMAL: u32 = pg_sys::TransactionId::FIRST_NORMAL.into_inner();

/// Everything that is wrong with a table. No row: it is sound.
#[pg_extern(volatile, parallel_unsafe)]
fn loosekv_check(table: Oid) -> TableIterator<'static, (name!(place, String), name!(finding, String))> {
    let findings = with_table(table, pg_sys::AccessShareLock, may_check, check);
    TableIterator::new(findings.into_iter().map(|finding| (finding.place, finding.what)))
}

/// What is being done in this database: process, table, command, done, total, unit.
#[pg_extern(volatile, parallel_unsafe)]
#[allow(clippy::type_complexity)]
fn loosekv_progress_entries() -> TableIterator<
    'static,
    (
        name!(pid, i32),
        name!(relid, Oid),
        name!(command, String),
        name!(done, i64),
        name!(total, i64),
        name!(unit, String),
    ),
> {
    super::startup::require();
    // SAFETY: set at process start.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    let entries = global::get().map(|global| global.progress.of_database(database)).unwrap_or_default();
    let seen = entries.into_iter().filter(|entry| may_look(Oid::from(entry.relation)) == ACLCHECK_OK);
    TableIterator::new(seen.collect::<Vec<_>>().into_iter().map(|entry| {
        let (command, unit) = (entry.command.name().to_owned(), entry.command.unit().to_owned());
        (entry.pid, Oid::from(entry.relation), command, entry.done as i64, entry.total as i64, unit)
    }))
}
