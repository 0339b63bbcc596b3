//! Which cores the store's threads work on.
//!
//! Where there are few, they leave the one to who writes on which he was seen last: a thread that is given a core keeps it until the
//! kernel's next tick, which is milliseconds, and thousands of writes that are late.

use super::health::lock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::Mutex;

/// With so few cores writers, a flush and a merge are in each other's way.
const FEW: usize = 2;
/// No core.
const NONE: usize = usize::MAX;

#[derive(Debug)]
pub struct Cores {
    few: bool,
    /// The threads that keep away from a core, and where each may be otherwise.
    threads: Mutex<Vec<imp::Thread>>,
    /// The core that is left to who writes, or [`NONE`].
    left: AtomicUsize,
}

impl Cores {
    pub fn new() -> Cores {
        Cores::few(std::thread::available_parallelism().is_ok_and(|cores| cores.get() <= FEW))
    }

    pub(super) fn few(few: bool) -> Cores {
        Cores { few, threads: Mutex::default(), left: AtomicUsize::new(NONE) }
    }

    pub fn are_few(&self) -> bool {
        self.few
    }

    /// The calling thread is one of the store's, for as long as what this returns lives.
    pub fn enlist(&self) -> Enlisted<'_> {
        let thread = imp::this_thread().filter(|_| self.few);
        let id = thread.as_ref().map(|thread| thread.id);
        lock(&self.threads).extend(thread);
        Enlisted { cores: self, id }
    }

    /// The calling thread writes: its core is left to it.
    pub fn leave_this(&self) {
        if self.few {
            self.leave(imp::here().unwrap_or(NONE));
        }
    }

    /// All cores are the store's.
    pub fn leave_none(&self) {
        self.leave(NONE);
    }

    fn leave(&self, core: usize) {
        if self.left.load(Relaxed) == core {
            return;
        }
        let threads = lock(&self.threads);
        self.left.store(core, Relaxed);
        threads.iter().for_each(|thread| imp::keep_from(thread, core));
    }
}

/// See [`Cores::enlist`]. A thread that has ended leaves its id to another one, of whatever process.
pub struct Enlisted<'a> {
    cores: &'a Cores,
    id: Option<i32>,
}

impl Drop for Enlisted<'_> {
    fn drop(&mut self) {
        lock(&self.cores.threads).retain(|thread| Some(thread.id) != self.id);
    }
}

#[cfg(target_os = "linux")]
mod imp {
    #[derive(Debug)]
    pub struct Thread {
        pub id: i32,
        pub cores: libc::cpu_set_t,
    }

    /// `None`: the system does not say.
    pub fn this_thread() -> Option<Thread> {
        // SAFETY: plain data, for which zeros are a value.
        let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: system calls about the calling thread, with a set of this size.
        let (id, told) = unsafe { (libc::gettid(), libc::sched_getaffinity(0, size_of_val(&cores), &raw mut cores)) };
        (told == 0).then_some(Thread { id, cores })
    }

    /// Where a thread has no other core it stays where it is.
    pub fn keep_from(thread: &Thread, core: usize) {
        let mut cores = thread.cores;
        if core < libc::CPU_SETSIZE as usize {
            // SAFETY: the set has this place.
            unsafe { libc::CPU_CLR(core, &mut cores) };
        }
        // SAFETY: plain data.
        if unsafe { libc::CPU_COUNT(&cores) } == 0 {
            cores = thread.cores;
        }
        // SAFETY: a system call about a thread of this process. That it may be refused does no harm.
        unsafe { libc::sched_setaffinity(thread.id, size_of_val(&cores), &raw const cores) };
    }

    pub fn here() -> Option<usize> {
        // SAFETY: a system call without arguments.
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    #[derive(Debug)]
    pub struct Thread {
        pub id: i32,
    }

    pub fn this_thread() -> Option<Thread> {
        None
    }

    pub fn keep_from(_thread: &Thread, _core: usize) {}

    pub fn here() -> Option<usize> {
        None
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    fn allowed() -> i32 {
        // SAFETY: plain data.
        imp::this_thread().map_or(0, |thread| unsafe { libc::CPU_COUNT(&thread.cores) })
    }

    #[test]
    fn a_thread_of_the_store_leaves_the_core_of_who_writes() {
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let (cores, all) = (Cores::few(true), allowed());
                let enlisted = cores.enlist();
                let fewer = if all > 1 { all - 1 } else { all };
                // It plays the writer, too, and is moved at once.
                let was = imp::here();
                cores.leave_this();
                assert_eq!(allowed(), fewer);
                assert!(all == 1 || imp::here() != was);
                cores.leave(usize::MAX - 1);
                assert_eq!(allowed(), all, "no such core");
                cores.leave_this();
                cores.leave_none();
                assert_eq!(allowed(), all);
                drop(enlisted);
                cores.leave_this();
                assert_eq!(allowed(), all, "one that has ended is nobody's business");
            });
            threads.spawn(|| {
                let (cores, all) = (Cores::few(false), allowed());
                let _enlisted = cores.enlist();
                cores.leave_this();
                assert_eq!(allowed(), all, "where there are many the system sees to it");
            });
        });
    }
}
