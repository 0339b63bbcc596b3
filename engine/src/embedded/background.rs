//! The store's two threads: one flushes; one merges, builds the key index, and makes the page file of an idle store shorter.
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

/// Looks in a row, each after a quiet while, after which the store is idle: 10 seconds.
const IDLE: u32 = 20;

fn run(core: &Core, task: Task) {
    let pace = &core.host().pace;
    // What the last run of the store left to do.
    pace.wake(task);
    // The merging thread looks, after each time that something was written, whether the store is at rest by now, and then
    // whether it is idle.
    let (mut looks, mut written) = (0, u64::MAX);
    loop {
        match pace.next(task, task == Task::Merge && looks < IDLE) {
            Next::Stop => return,
            Next::Work => looks = 0,
            Next::Quiet => {
                let now = core.changes();
                looks = if now == written { looks + 1 } else { 0 };
                written = now;
            }
        }
        if task == Task::Merge {
            core.set_at_rest(looks > 0);
        }
        if !work(core, task) || (looks == IDLE && !work(core, Task::Sink)) {
            return;
        }
    }
}

/// Does all there is of it. False: the thread is to end.
fn work(core: &Core, task: Task) -> bool {
    let pace = &core.host().pace;
    while !pace.is_stopped() {
        match step(core, task) {
            Ok(true) => pace.set_trouble(None),
            Ok(false) => break,
            // It needs room to make room, and is in nobody's way: merges go on.
            Err(Error::NoSpace(_) | Error::MemoryFull { .. }) if task == Task::Sink => break,
            Err(Error::NoSpace(what)) => trouble(core, what),
            Err(e @ Error::MemoryFull { .. }) => trouble(core, e.to_string()),
            // What is under way is given up when the store is closed.
            Err(_) if pace.is_stopped() => return false,
            Err(e) => {
                core.host().health.fail(&format!("{task:?}: {e}"));
                pace.set_trouble(Some(e.to_string()));
                return false;
            }
        }
    }
    true
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
        Task::Sink => core.sink_one(),
    }
}
