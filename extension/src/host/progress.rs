//! How far flushes, merges, index builds and checks have come: one entry for each process, for the view loosekv.progress.
//!
//! A process writes its own entry alone. Whoever looks may see the parts of an entry from two moments: it is for the eye.

use crate::host::global;
use loosekv_engine::host::Work;
use loosekv_engine::tree::Phase;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// What a process does. The numbers stand in shared memory; 0 is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Command {
    Flush = 1,
    Merge = 2,
    Index = 3,
    CheckManifest = 4,
    CheckRuns = 5,
    CheckLog = 6,
    CheckKeys = 7,
}

impl Command {
    const ALL: [Command; 7] = [
        Command::Flush,
        Command::Merge,
        Command::Index,
        Command::CheckManifest,
        Command::CheckRuns,
        Command::CheckLog,
        Command::CheckKeys,
    ];

    pub fn of(work: Work) -> Command {
        match work {
            Work::Flush => Command::Flush,
            Work::Merge => Command::Merge,
            Work::Index => Command::Index,
        }
    }

    pub fn checking(phase: Phase) -> Command {
        match phase {
            Phase::Manifest => Command::CheckManifest,
            Phase::Runs => Command::CheckRuns,
            Phase::Log => Command::CheckLog,
            Phase::Keys => Command::CheckKeys,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Command::Flush => "flushing a memtable",
            Command::Merge => "merging runs",
            Command::Index => "building the key index",
            Command::CheckManifest => Phase::Manifest.name(),
            Command::CheckRuns => Phase::Runs.name(),
            Command::CheckLog => Phase::Log.name(),
            Command::CheckKeys => Phase::Keys.name(),
        }
    }

    /// What is counted.
    pub fn unit(self) -> &'static str {
        match self {
            Command::Index | Command::CheckManifest | Command::CheckRuns => "pages",
            _ => "rows",
        }
    }

    fn from_number(number: u32) -> Option<Command> {
        Command::ALL.into_iter().find(|command| *command as u32 == number)
    }
}

/// What one process has said last.
#[repr(align(64))]
#[derive(Default)]
pub struct Entry {
    command: AtomicU32,
    pid: AtomicI32,
    database: AtomicU32,
    relation: AtomicU32,
    done: AtomicU64,
    total: AtomicU64,
}

/// An entry as somebody sees it.
pub struct Shown {
    pub pid: i32,
    pub relation: u32,
    pub command: Command,
    pub done: u64,
    pub total: u64,
}

/// All processes' entries, by backend number.
pub struct Progresses {
    first: *const Entry,
    len: usize,
}

// SAFETY: points to the segment, which all processes see at this address.
unsafe impl Sync for Progresses {}

impl Progresses {
    /// # Safety
    /// `first` is the first of `len` entries that live as long as the segment.
    pub unsafe fn new(first: *const Entry, len: usize) -> Progresses {
        Progresses { first, len }
    }

    fn entries(&self) -> &[Entry] {
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }

    fn mine(&self) -> Option<&Entry> {
        // SAFETY: set at process start.
        let at = usize::try_from(unsafe { pg_sys::MyBackendId }).ok()?.checked_sub(1)?;
        self.entries().get(at)
    }

    /// What is being done in a database.
    pub fn of_database(&self, database: u32) -> Vec<Shown> {
        let shown = |entry: &Entry| {
            let command = Command::from_number(entry.command.load(Acquire))?;
            (entry.database.load(Relaxed) == database).then(|| Shown {
                pid: entry.pid.load(Relaxed),
                relation: entry.relation.load(Relaxed),
                command,
                done: entry.done.load(Relaxed),
                total: entry.total.load(Relaxed),
            })
        };
        self.entries().iter().filter_map(shown).collect()
    }
}

/// This process has come so far.
pub fn report(rel: pg_sys::Relation, command: Command, done: u64, total: u64) {
    let Some(entry) = global::get().and_then(|global| global.progress.mine()) else { return };
    // SAFETY: the relation is open; numbers that are set when a process starts.
    let (relation, pid, database) =
        unsafe { ((*rel).rd_id.to_u32(), pg_sys::MyProcPid, pg_sys::MyDatabaseId.to_u32()) };
    entry.relation.store(relation, Relaxed);
    entry.pid.store(pid, Relaxed);
    entry.database.store(database, Relaxed);
    entry.done.store(done, Relaxed);
    entry.total.store(total, Relaxed);
    entry.command.store(command as u32, Release);
}

/// This process does nothing of the kind any more.
pub fn ended() {
    if let Some(entry) = global::get().and_then(|global| global.progress.mine()) {
        if entry.command.load(Relaxed) != 0 {
            entry.command.store(0, Release);
        }
    }
}
