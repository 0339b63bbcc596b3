//! The store's two threads: one flushes; one merges, and builds the key index.
//!
//! Want of room is waited out: the task is tried again, and writers who reach the hard limit meanwhile are told why. Any
//! other error ends writing, and is kept.

use super::core::Core;
use super::health::lock;
use super::pace::{Next, Task};
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

#[derive(Default)]
pub struct Background {
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    pub fn start(core: &Arc<Core>) -> Result<Background> {
        let background = Background::default();
        for (name, task) in [("loosekv-flush", Task::Flush), ("loosekv-merge", Task::Merge)] {
            let core = Arc::clone(core);
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(&core, task));
            lock(&background.threads).push(thread.map_err(|e| Error::io("cannot start a thread", e))?);
        }
        Ok(background)
    }

    /// Waits for the threads, which were told to stop.
    pub fn join(&self) {
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            // A panic there has ended the thread; the store is at its end as well.
            let _ = thread.join();
        }
    }
}

fn run(core: &Core, task: Task) {
    let pace = &core.host().pace;
    // What the last run of the store left to do.
    pace.wake(task);
    // The merging thread looks, once after each time that something was written, whether the store is at rest by now.
    let (mut settled, mut written) = (task == Task::Flush, u64::MAX);
    loop {
        match pace.next(task, !settled) {
            Next::Stop => return,
            Next::Work => {
                settled = task == Task::Flush;
                core.set_at_rest(false);
            }
            Next::Quiet => {
                let now = core.changes();
                settled = now == written;
                written = now;
                core.set_at_rest(settled);
            }
        }
        while !pace.is_stopped() {
            match step(core, task) {
                Ok(true) => pace.set_trouble(None),
                Ok(false) => break,
                Err(Error::NoSpace(what)) => trouble(core, what),
                Err(e @ Error::MemoryFull { .. }) => trouble(core, e.to_string()),
                // A merge is given up when the store is closed.
                Err(_) if pace.is_stopped() => return,
                Err(e) => {
                    core.host().health.fail(&format!("{task:?}: {e}"));
                    pace.set_trouble(Some(e.to_string()));
                    return;
                }
            }
        }
    }
}

fn trouble(core: &Core, what: String) {
    core.host().pace.set_trouble(Some(what));
    core.host().pace.rest();
}

/// One piece of work. False: there is none.
pub fn step(core: &Core, task: Task) -> Result<bool> {
    match task {
        Task::Flush => core.flush_one(),
        Task::Merge => Ok(core.compact_one(false)? || core.index_one()? || core.sweep_one()?),
    }
}
