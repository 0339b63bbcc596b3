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

/// For how long nobody has written, or (see [`Calm`]) read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

/// How calm it is. Merges that are for an idle hour take the cores, the disk and the memory that keeps pages from whoever reads
/// meanwhile; so many reads put them off as well, but not for ever.
struct Calm {
    written: u64,
    read: u64,
    last_write: Instant,
    since: Instant,
    rest: Rest,
}

impl Calm {
    /// So many reads between two looks, of which there are about two a second, are many ...
    const MANY_READS: u64 = 100;
    /// ... and put off what is to be done for no longer than that.
    const LONGEST: Duration = Duration::from_secs(60);

    fn new(now: Instant) -> Calm {
        Calm { written: u64::MAX, read: 0, last_write: now, since: now, rest: Rest::Writing }
    }

    /// Takes a look. `work`: it is for work that has come up, and too early to tell.
    fn look(&mut self, now: Instant, written: u64, read: u64, work: bool) {
        if written != self.written {
            (self.written, self.read, self.last_write, self.since) = (written, read, now, now);
            self.rest = Rest::Writing;
            return;
        }
        if work && self.rest == Rest::Writing {
            return;
        }
        let many = read.saturating_sub(self.read) >= Calm::MANY_READS;
        if many && self.rest < Rest::Idle && now - self.last_write < Calm::LONGEST {
            (self.since, self.rest) = (now, Rest::Writing);
        } else {
            self.rest = Rest::after(now - self.since);
        }
        self.read = read;
    }
}

fn run(core: &Core, task: Task) {
    // What the last run of the store left to do.
    core.host().pace.wake(task);
    let _enlisted = core.host().pace.cores.enlist();
    stand_back(if task == Task::Flush { 0 } else { core.host().options.merge_nice });
    match task {
        Task::Flush => while core.host().pace.next(task, false) != Next::Stop && work(core, task) {},
        Task::Merge | Task::Sink => merge_and_rest(core),
    }
}

/// Merges; and does, the longer nothing is written, what is worth while only then.
fn merge_and_rest(core: &Core) {
    let pace = &core.host().pace;
    let mut calm = Calm::new(Instant::now());
    loop {
        let before = calm.rest;
        match pace.next(Task::Merge, before < Rest::Idle) {
            Next::Stop => return,
            next => calm.look(Instant::now(), core.changes(), core.reads(), next == Next::Work),
        }
        let rest = calm.rest;
        core.set_at_rest(rest >= Rest::Begun, rest >= Rest::Quiet);
        if rest >= Rest::Begun {
            pace.cores.leave_none();
        }
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
            Ok(true) => pace.set_trouble(task, None),
            Ok(false) => break,
            // It needs room to make room, and is in nobody's way: merges go on.
            Err(Error::NoSpace(_) | Error::MemoryFull { .. }) if task == Task::Sink => break,
            Err(Error::NoSpace(what)) => trouble(core, task, what),
            Err(e @ Error::MemoryFull { .. }) => trouble(core, task, e.to_string()),
            // What is under way is given up when the store is closed.
            Err(_) if pace.is_stopped() => return false,
            Err(e) => {
                core.host().health.fail(&format!("{task:?}: {e}"));
                pace.set_trouble(task, Some(e.to_string()));
                return false;
            }
        }
    }
    true
}

fn trouble(core: &Core, task: Task, what: String) {
    core.host().pace.set_trouble(task, Some(what));
    core.host().pace.rest();
}

/// One piece of work. False: there is none.
pub fn step(core: &Core, task: Task) -> Result<bool> {
    match task {
        Task::Flush => core.flush_one(),
        Task::Merge => match core.compact_one(false) {
            // What has no room on the disk does not keep the index from being built, which tells what a merge would drop.
            merged @ (Ok(false) | Err(Error::NoSpace(_))) => match core.index_one()? || core.sweep_one()? {
                true => Ok(true),
                false => merged,
            },
            merged => merged,
        },
        Task::Sink => core.sink_one(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the store rests after looks every half second, at each of which so many reads have come since the one before.
    fn rests(reads: &[u64]) -> Vec<Rest> {
        let begun = Instant::now();
        let mut calm = Calm::new(begun);
        calm.look(begun, 1, 0, false);
        let mut read = 0;
        let look = |(at, reads): (u32, &u64)| {
            read += reads;
            calm.look(begun + Duration::from_millis(500) * (at + 1), 1, read, false);
            calm.rest
        };
        (0..).zip(reads).map(look).collect()
    }

    #[test]
    fn a_store_rests_when_nobody_writes() {
        let rests = rests(&[1; 10]);
        assert_eq!(rests.iter().position(|rest| *rest >= Rest::Begun), Some(0));
        assert_eq!(rests.iter().position(|rest| *rest >= Rest::Quiet), Some(5));
        assert_eq!(rests.iter().position(|rest| *rest >= Rest::Idle), Some(9));
    }

    #[test]
    fn many_reads_put_the_rest_off_but_not_for_ever() {
        let busy = rests(&[1000; 200]);
        let first = busy.iter().position(|rest| *rest > Rest::Writing);
        assert_eq!(first, Some(119), "after a minute");
        assert_eq!(busy.last(), Some(&Rest::Idle));
        let some = rests(&[&[1000; 10][..], &[1; 10]].concat());
        assert_eq!(some.iter().position(|rest| *rest >= Rest::Idle), Some(19), "from the last of the reads on");
    }

    #[test]
    fn writes_end_the_rest() {
        let begun = Instant::now();
        let mut calm = Calm::new(begun);
        calm.look(begun, 1, 0, false);
        calm.look(begun + Rest::IDLE, 1, 0, false);
        assert!(calm.rest == Rest::Idle);
        calm.look(begun + 2 * Rest::IDLE, 2, 0, true);
        assert!(calm.rest == Rest::Writing);
        calm.look(begun + 3 * Rest::IDLE, 2, 0, true);
        assert!(calm.rest == Rest::Writing, "work that has come up tells nothing");
    }
}
