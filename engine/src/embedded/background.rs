//! The store's two threads: one flushes; one merges, builds the key index, tidies up when
//! nobody writes, and makes the page file of an idle store shorter.
//!
//! Want of room is waited out: the task is tried again, and writers who reach the hard limit meanwhile are told why. Any
//! other error ends writing, and is kept.

use super::core::Core;
use super::health::lock;
use super::pace::{Next, Task};
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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

/// For so long a background thread keeps its core from others, on systems where that can be said.
#[cfg(target_os = "linux")]
const TURN: Duration = Duration::from_micros(500);

/// For how long nobody has written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rest {
    Writing,
    /// The store is at rest.
    Begun,
    /// Nobody is going to write soon, most likely.
    Quiet,
    /// The store is idle.
    Idle,
}

impl Rest {
    const QUIET: Duration = Duration::from_secs(3);
    const IDLE: Duration = Duration::from_secs(5);

    fn after(time: Duration) -> Rest {
        match time {
            time if time >= Rest::IDLE => Rest::Idle,
            time if time >= Rest::QUIET => Rest::Quiet,
            _ => Rest::Begun,
        }
    }
}

fn run(core: &Core, task: Task) {
    // What the last run of the store left to do.
    core.host().pace.wake(task);
    stand_back(if task == Task::Flush { 0 } else { core.host().options.merge_nice });
    match task {
        Task::Flush => while core.host().pace.next(task, false) != Next::Stop && work(core, task) {},
        Task::Merge | Task::Sink => merge_and_rest(core),
    }
}

/// Merges; and does, the longer nothing is written, what is worth while only then.
fn merge_and_rest(core: &Core) {
    let pace = &core.host().pace;
    let (mut written, mut since, mut rest) = (u64::MAX, Instant::now(), Rest::Writing);
    loop {
        let next = pace.next(Task::Merge, rest < Rest::Idle);
        let (now, before) = (core.changes(), rest);
        match next {
            Next::Stop => return,
            _ if now != written => (written, since, rest) = (now, Instant::now(), Rest::Writing),
            Next::Work if rest == Rest::Writing => {}
            Next::Work | Next::Quiet => rest = Rest::after(since.elapsed()),
        }
        core.set_at_rest(rest >= Rest::Begun, rest >= Rest::Quiet);
        if rest >= Rest::Quiet && before < Rest::Quiet && core.write_out() {
            // What comes of it is to take part in what is done next.
            continue;
        }
        if !work(core, Task::Merge) || (rest == Rest::Idle && !work(core, Task::Sink)) {
            return;
        }
    }
}

/// Lets other threads go first where there are fewer cores than threads with work: writers and readers wait for those, and for
/// flushes. Merges that lag behind cost nobody anything until there are so many runs that writers are slowed. And who gets his core
/// back waits for no more than a short turn; that a thread of ours has been woken takes no core away from anybody.
#[cfg(target_os = "linux")]
fn stand_back(nice: u8) {
    // SAFETY: plain data, for which zeros are a value.
    let mut wish: libc::sched_attr = unsafe { std::mem::zeroed() };
    wish.size = size_of::<libc::sched_attr>() as u32;
    wish.sched_policy = libc::SCHED_BATCH as u32;
    wish.sched_nice = nice.into();
    wish.sched_runtime = TURN.as_nanos() as u64;
    // SAFETY: a system call, about the calling thread alone. That it may be refused does no harm; systems that know nothing of
    // turns pass over that.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wish, 0) };
}

#[cfg(not(target_os = "linux"))]
fn stand_back(_nice: u8) {}

/// Does all there is of it. False: the thread is to end.
fn work(core: &Core, task: Task) -> bool {
    let (pace, before) = (&core.host().pace, core.changes());
    while !pace.is_stopped() {
        if task == Task::Sink && core.changes() != before {
            break;
        }
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
