//! The atomics of the code whose interleavings are tested, and where a thread waits there.
//!
//! They are the standard library's. In tests there is a *step* before each operation: within [`explore`] the scheduler of
//! shuttle may let another thread go on there, so that it is the scheduler who decides in which order things happen, the same
//! way again for the same seed. Outside of `explore` a step is a look at a thread-local.
//!
//! What is explored is sequentially consistent: that an ordering is too weak is not found here.

#![allow(dead_code, unused_imports, reason = "each of the crates that share this file uses another part of it")]

#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};
#[cfg(test)]
pub(crate) use stepped::*;

/// Where the scheduler comes in.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Steps {
    /// At the atomics of this module, and at [`pause`].
    Atomics,
    /// At [`pause`] alone.
    Pauses,
}

/// In which order it lets threads go on.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// In every order, if they are no more than this.
    All(usize),
    /// At random, so often.
    Random(usize),
    /// At random, with a change of priorities at so few places; so often.
    Few(usize, usize),
}

#[cfg(test)]
mod stepped {
    use super::{step, Steps};
    use std::sync::atomic::{self, Ordering};

    macro_rules! stepped {
        ($name:ident, $value:ty) => {
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub(crate) struct $name(atomic::$name);

            impl $name {
                pub const fn new(value: $value) -> Self {
                    $name(atomic::$name::new(value))
                }

                /// # Safety
                /// As for that of the standard library.
                pub unsafe fn from_ptr<'a>(value: *mut $value) -> &'a Self {
                    // SAFETY: the same bytes, and the caller's promise.
                    unsafe { &*value.cast::<Self>() }
                }

                pub fn as_ptr(&self) -> *mut $value {
                    self.0.as_ptr()
                }

                pub fn load(&self, order: Ordering) -> $value {
                    step(Steps::Atomics);
                    self.0.load(order)
                }

                pub fn store(&self, value: $value, order: Ordering) {
                    step(Steps::Atomics);
                    self.0.store(value, order);
                }

                pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    step(Steps::Atomics);
                    self.0.fetch_add(value, order)
                }

                pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                    step(Steps::Atomics);
                    self.0.fetch_sub(value, order)
                }

                pub fn compare_exchange(
                    &self,
                    now: $value,
                    next: $value,
                    done: Ordering,
                    failed: Ordering,
                ) -> Result<$value, $value> {
                    step(Steps::Atomics);
                    self.0.compare_exchange(now, next, done, failed)
                }

                pub fn compare_exchange_weak(
                    &self,
                    now: $value,
                    next: $value,
                    done: Ordering,
                    failed: Ordering,
                ) -> Result<$value, $value> {
                    step(Steps::Atomics);
                    self.0.compare_exchange(now, next, done, failed)
                }

                pub fn fetch_update(
                    &self,
                    done: Ordering,
                    failed: Ordering,
                    change: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    step(Steps::Atomics);
                    self.0.fetch_update(done, failed, change)
                }
            }
        };
    }

    stepped!(AtomicU32, u32);
    stepped!(AtomicU64, u64);

    #[derive(Debug)]
    #[repr(transparent)]
    pub(crate) struct AtomicPtr<T>(atomic::AtomicPtr<T>);

    impl<T> AtomicPtr<T> {
        pub const fn new(value: *mut T) -> Self {
            AtomicPtr(atomic::AtomicPtr::new(value))
        }

        pub fn load(&self, order: Ordering) -> *mut T {
            step(Steps::Atomics);
            self.0.load(order)
        }

        pub fn swap(&self, value: *mut T, order: Ordering) -> *mut T {
            step(Steps::Atomics);
            self.0.swap(value, order)
        }
    }
}

#[cfg(test)]
mod explored {
    use super::{Order, Steps};
    use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler};
    use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    thread_local! {
        static STEPS: Cell<Option<Steps>> = const { Cell::new(None) };
        static WAITING: RefCell<Vec<Waiter>> = const { RefCell::new(Vec::new()) };
    }

    struct Waiter {
        place: usize,
        thread: shuttle::thread::Thread,
        woken: Rc<Cell<bool>>,
    }

    const SEED: u64 = 20;
    /// Enough for pages on the stack.
    const STACK: usize = 1 << 20;
    const MOST_STEPS: usize = 20_000;

    /// Runs `body`, and the threads that it spawns with shuttle, in one order after the other, until something panics or nobody can
    /// go on. Returns how often it ran. In a thread of its own: what a panic leaves behind goes with it.
    pub(crate) fn explore(
        steps: Steps,
        order: Order,
        prepare: impl FnOnce() + Send + 'static,
        body: impl Fn() + Send + Sync + 'static,
    ) -> std::thread::Result<usize> {
        let run = move || {
            prepare();
            STEPS.set(Some(steps));
            let mut config = Config::new();
            config.stack_size = STACK;
            config.failure_persistence = FailurePersistence::None;
            config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
            config.silence_warnings = true;
            config.ungraceful_shutdown_config.immediately_return_on_panic = true;
            match order {
                Order::All(most) => Runner::new(DfsScheduler::new(Some(most), false), config).run(body),
                Order::Random(runs) => Runner::new(RandomScheduler::new_from_seed(SEED, runs), config).run(body),
                Order::Few(changes, runs) => {
                    Runner::new(PctScheduler::new_from_seed(SEED, changes, runs), config).run(body)
                }
            }
        };
        std::thread::spawn(run).join()
    }

    /// The scheduler may let somebody else go on.
    pub(crate) fn step(level: Steps) {
        if STEPS.get().is_some_and(|steps| steps == Steps::Atomics || level == Steps::Pauses)
            && !std::thread::panicking()
        {
            // A plain switch: a yield would tell the scheduler that this thread waits for others.
            shuttle::thread::sleep(std::time::Duration::ZERO);
        }
    }

    /// A place at which others may come in between.
    pub(crate) fn pause() {
        step(Steps::Pauses);
    }

    pub(crate) fn exploring() -> bool {
        STEPS.get().is_some()
    }

    /// Waits until [`wake`] is called for the same place. Nobody comes in between the caller's last look and this.
    pub(crate) fn wait(place: usize) {
        let woken = Rc::new(Cell::new(false));
        let thread = shuttle::thread::current();
        WAITING.with_borrow_mut(|waiting| waiting.push(Waiter { place, thread, woken: Rc::clone(&woken) }));
        while !woken.get() {
            shuttle::thread::park();
        }
    }

    /// Wakes up to `most` of those who wait at a place, and returns how many.
    pub(crate) fn wake(place: usize, most: usize) -> usize {
        let mut woken = WAITING.with_borrow_mut(|waiting| {
            let (mut here, others): (Vec<_>, Vec<_>) = waiting.drain(..).partition(|waiter| waiter.place == place);
            let rest = here.split_off(most.min(here.len()));
            waiting.extend(rest.into_iter().chain(others));
            here
        });
        let count = woken.len();
        for waiter in woken.drain(..) {
            waiter.woken.set(true);
            waiter.thread.unpark();
        }
        count
    }
}
#[cfg(test)]
pub(crate) use explored::{explore, exploring, pause, step, wait, wake};
