//! Epochs: one collector for everything, and this process's (or thread's) pin on it.
//!
//! A reader pins; memory that was unlinked while it is pinned is freed only after it unpins. One stuck pin stops
//! reclamation for everybody, so a pin is short: no page access, no interrupt check, no error report under it
//! ([`pinned`] is for assertions), and a process that ends without unwinding calls [`force_unpin_all`].
//!
//! When a heap is attached the collector lies in it, and the process has one handle, used by one thread. Otherwise there
//! is a collector of the process and a handle in each thread. Only the outermost pin touches the collector.
//!
//! A pin may allocate a bag of garbage now and then, which must be shared: [`pin`] and the methods of [`Pin`] see to it.
//! Code that hands the plain `&Guard` to something which retires memory (a skip list) does so inside the scope, having
//! reserved [`RESERVE`].

use crate::chunks::Level;
use crate::heap::{self, OneThread};
use crate::reserve::{Full, Needs};
use crate::scope;
use crossbeam_epoch::{Collector, Guard, LocalHandle, Pointable, Shared};
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::OnceLock;

/// Bytes of a node of the collector's queue of garbage bags: epoch, 64 deferred functions of 4 words, count, next.
pub const BAG: usize = 8 + 64 * 32 + 8 + 8;
/// Bytes of what a process registers (a bag, counts, and an epoch on a cache line of its own).
pub const PARTICIPANT: usize = 2304;

/// The sizes that pinning, retiring and registering may allocate. A deferred function larger than three words is boxed in
/// addition to this: its size is the caller's to reserve.
pub const RESERVE: &[usize] = &[BAG, PARTICIPANT];
/// [`RESERVE`] as a set.
pub const NEEDS: Needs = Needs::of(RESERVE);

/// A participant: of the process when attached, else of a thread.
struct Slot {
    depth: Cell<u32>,
    handle: UnsafeCell<Option<LocalHandle>>,
    /// Initialised while `depth` > 0.
    guard: UnsafeCell<MaybeUninit<Guard>>,
}

impl Slot {
    const fn new() -> Slot {
        Slot { depth: Cell::new(0), handle: UnsafeCell::new(None), guard: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    #[inline(always)]
    fn enter(&self) {
        if self.depth.get() == 0 {
            // A pin can end up running destructors that pin: the depth changes when the guard is there.
            let guard = self.handle().pin();
            if self.depth.get() == 0 {
                // SAFETY: one thread uses a slot; at depth 0 nobody looks at the guard.
                unsafe { (*self.guard.get()).write(guard) };
            } else {
                debug_assert!(false, "a destructor kept a pin");
                drop(guard);
            }
        }
        self.depth.set(self.depth.get() + 1);
    }

    #[inline(always)]
    fn leave(&self) {
        match self.depth.get() {
            // Unpinned by force meanwhile.
            0 => {}
            1 => {
                self.depth.set(0);
                // SAFETY: initialised, since the depth was not 0, and now unreachable.
                unsafe { (*self.guard.get()).assume_init_drop() };
            }
            depth => self.depth.set(depth - 1),
        }
    }

    #[inline(always)]
    fn handle(&self) -> &LocalHandle {
        // SAFETY: one thread uses a slot, and nothing clears the handle while it is borrowed.
        match unsafe { &*self.handle.get() } {
            Some(handle) => handle,
            None => self.register(),
        }
    }

    #[inline(always)]
    fn registered(&self) -> bool {
        // SAFETY: one thread uses a slot; only looked at.
        unsafe { (*self.handle.get()).is_some() }
    }

    #[cold]
    #[inline(never)]
    fn register(&self) -> &LocalHandle {
        let handle = collector().register();
        // SAFETY: as in `handle`.
        unsafe { (*self.handle.get()).insert(handle) }
    }

    fn unpin_all(&self) {
        if self.depth.get() > 0 {
            self.depth.set(1);
            self.leave();
        }
    }

    /// Drops nothing: what the slot held belongs to another process or another heap.
    fn forget(&self) {
        self.depth.set(0);
        // SAFETY: one thread uses a slot; the write does not drop the old value.
        unsafe { ptr::write(self.handle.get(), None) };
    }
}

static PROCESS: OneThread<Slot> = OneThread::new(Slot::new());
thread_local! {
    static THREAD: Slot = const { Slot::new() };
}

#[inline(always)]
fn process() -> &'static Slot {
    // SAFETY: a static, only shared references to it are made, and one thread uses it.
    unsafe { &*PROCESS.get() }
}

/// Keeps what is retired meanwhile alive. Derefs to crossbeam's `Guard`; belongs to this thread.
#[must_use = "the pin ends where this is dropped"]
pub struct Pin {
    /// Of the slot, or a guard of this pin's own (in a thread whose thread-locals are gone).
    guard: *const Guard,
    own: bool,
    _this_thread: PhantomData<*const ()>,
}

/// Pins. Cheap; nests.
#[inline]
pub fn pin() -> Pin {
    if heap::attached() {
        if heap::low() & NEEDS.bits() != 0 {
            stock();
        }
        let slot = process();
        scope::with(|| slot.enter());
        return Pin { guard: slot.guard.get().cast(), own: false, _this_thread: PhantomData };
    }
    let guard = THREAD.try_with(|slot| {
        slot.enter();
        slot.guard.get().cast::<Guard>().cast_const()
    });
    match guard {
        Ok(guard) => Pin { guard, own: false, _this_thread: PhantomData },
        Err(_) => {
            let guard = Box::into_raw(Box::new(collector().register().pin()));
            Pin { guard, own: true, _this_thread: PhantomData }
        }
    }
}

/// Pinning must not fail: it may collect, which may take a bag. When nothing is left for this process, the last part of the
/// emergency area is there for that.
#[cold]
#[inline(never)]
fn stock() {
    for c in NEEDS.classes() {
        if !heap::stock(c, Level::Freeing) && !heap::has(NEEDS, 1) {
            heap::stock(c, Level::Last);
        }
    }
}

impl Deref for Pin {
    type Target = Guard;

    #[inline(always)]
    fn deref(&self) -> &Guard {
        debug_assert!(self.own || pinned(), "unpinned by force, and used");
        // SAFETY: initialised while pinned; a slot outlives its pins, which stay in their thread.
        unsafe { &*self.guard }
    }
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        if self.own {
            // SAFETY: from Box::into_raw in `pin`.
            drop(unsafe { Box::from_raw(self.guard.cast_mut()) });
        } else if ptr::eq(self.guard, process().guard.get().cast()) {
            process().leave();
        } else {
            // Thread-locals have no destructor order; after this one's the handle is gone and with it the guard.
            let _ = THREAD.try_with(Slot::leave);
        }
    }
}

/// `Guard`'s methods that may allocate, made safe to call outside the scope.
impl Pin {
    /// See [`Guard::defer_unchecked`].
    ///
    /// # Safety
    /// As there; and `f` may run in any process of the heap: it must not refer to private memory, nor may its captures.
    pub unsafe fn defer_unchecked<F: FnOnce() -> R, R>(&self, f: F) {
        // SAFETY: the caller's promise.
        scope::with(|| unsafe { (**self).defer_unchecked(f) });
    }

    /// See [`Guard::defer_destroy`].
    ///
    /// # Safety
    /// As there; the object and what its destructor touches are in the heap.
    pub unsafe fn defer_destroy<T: ?Sized + Pointable>(&self, ptr: Shared<'_, T>) {
        // SAFETY: the caller's promise.
        scope::with(|| unsafe { (**self).defer_destroy(ptr) });
    }

    /// Drops a box when nobody who is pinned now can see it any more.
    ///
    /// # Safety
    /// Nobody can reach the value from now on, except who is pinned already; the value and what its destructor touches are
    /// in the heap when one is attached.
    pub unsafe fn retire<T>(&self, value: *mut T) {
        crate::assert_shared(value);
        // SAFETY: the caller's promise.
        unsafe { self.defer_unchecked(move || drop(Box::from_raw(value))) };
    }
}

/// Makes sure that this process can pin: registers it while that can still be refused (the first [`pin`] of a process that
/// did not come by here aborts in an exhausted heap). Cheap when it is registered. Being refused can pass.
#[inline]
pub fn attach() -> Result<(), Full> {
    if heap::attached() && !process().registered() {
        return register_process();
    }
    Ok(())
}

#[cold]
fn register_process() -> Result<(), Full> {
    NEEDS.reserve_emergency()?;
    // One to register, and one to have.
    if !heap::has(NEEDS, 2) {
        return Err(heap::count_refusal());
    }
    let _ = scope::with(|| process().handle());
    Ok(())
}

/// The one collector, for `SkipList::new(collector().clone())`.
#[inline]
pub fn collector() -> &'static Collector {
    static PRIVATE: OnceLock<Collector> = OnceLock::new();
    if heap::attached() {
        heap::collector()
    } else {
        PRIVATE.get_or_init(Collector::new)
    }
}

/// Is this process (attached) or thread pinned? For assertions where a pin is forbidden.
#[inline]
pub fn pinned() -> bool {
    if heap::attached() {
        process().depth.get() > 0
    } else {
        THREAD.try_with(|slot| slot.depth.get() > 0).unwrap_or(false)
    }
}

/// Ends all pins of this process (attached) or thread, for exits and errors that skip drops. A `Pin` that still lives
/// must not be used any more; dropping it does nothing.
pub fn force_unpin_all() {
    if heap::attached() {
        process().unpin_all();
    } else {
        let _ = THREAD.try_with(Slot::unpin_all);
    }
}

/// Leaves the collector: garbage goes to the others. For the end of a process (attached) or thread, and before a fork. A
/// later [`pin`] registers again.
pub fn detach() {
    force_unpin_all();
    if !heap::attached() {
        // SAFETY: one thread uses a slot; it is not pinned, so nothing borrows the handle.
        let handle = THREAD.try_with(|slot| unsafe { (*slot.handle.get()).take() });
        return drop(handle);
    }
    // SAFETY: as above.
    let Some(handle) = (unsafe { (*process().handle.get()).take() }) else { return };
    if NEEDS.reserve_emergency().is_ok() {
        scope::with(|| drop(handle));
    } else {
        // Leaving takes a bag. An idle participant costs its memory and harms nobody.
        std::mem::forget(handle);
    }
}

/// Hands this process's garbage to everybody and tries to free some. False: there is no bag to be had for that, nor a place among those
/// who pin.
fn hand_over() -> bool {
    if heap::attached() {
        if attach().is_err() {
            return false;
        }
        stock();
        if !heap::has(NEEDS, 1) {
            return false;
        }
    }
    let pin = pin();
    scope::with(|| (*pin).flush());
    true
}

/// Tries to free what was retired, by `rounds` of handing over and collecting (three rounds free everything that this
/// process has retired, when nobody else is pinned and the queue is short).
pub fn collect(rounds: u32) {
    for _ in 0..rounds {
        if !hand_over() {
            return;
        }
    }
}

/// Frees what anybody has retired before, this process and others that have handed it over: garbage queues, and one round takes only
/// some of it. For at most so many rounds; somebody who is pinned all the time ends it, too. Whether all of it is freed.
pub fn drain(rounds: u32) -> bool {
    // The mark may fill a bag up.
    if pinned() || !hand_over() {
        return false;
    }
    let marks = if heap::attached() { &heap::header().marks } else { &PRIVATE_MARKS };
    let mine = marks.set.fetch_add(1, Relaxed) + 1;
    // SAFETY: it refers to nothing but the heap's own head, or a static.
    unsafe { pin().defer_unchecked(move || marks.met.fetch_max(mine, Relaxed)) };
    for round in 1..=rounds {
        if !hand_over() {
            return false;
        }
        if marks.met.load(Relaxed) >= mine {
            return true;
        }
        if round.is_multiple_of(ROUNDS_A_TURN) {
            // Whoever is pinned and waits for a core should get it.
            std::thread::yield_now();
        }
    }
    false
}

/// Rounds of [`drain`] between two turns for others.
const ROUNDS_A_TURN: u32 = 16;

/// Marks in the queue of garbage: how many were set, and the last that was met.
#[repr(C, align(128))]
pub(crate) struct Marks {
    set: AtomicU64,
    met: AtomicU64,
}

static PRIVATE_MARKS: Marks = Marks { set: AtomicU64::new(0), met: AtomicU64::new(0) };

/// Collects garbage because the heap is full; false if that is of no use or not safe now.
#[cold]
pub(crate) fn reclaim() -> bool {
    /// A collection comes with every 128th pin. It adds at most 8 entries to this process's bag, of 64.
    const PINS: u32 = 128 * 4;
    let slot = process();
    if !slot.registered() || pinned() {
        return false;
    }
    stock();
    if !heap::has(NEEDS, 1) {
        return false;
    }
    // This takes the one bag at most. The bag of this process is empty then, so what follows needs none.
    scope::with(|| {
        slot.enter();
        // SAFETY: initialised while pinned.
        unsafe { (*slot.guard.get()).assume_init_ref().flush() };
        slot.leave();
        for _ in 0..PINS {
            slot.enter();
            slot.leave();
        }
    });
    // Whoever is pinned and waits for a core should get it.
    std::thread::yield_now();
    true
}

/// Forgets this process's participation without leaving. See [`heap::create`].
pub(crate) fn forget() {
    process().forget();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::*};
    use std::sync::Arc;

    #[test]
    fn pins_nest_and_unpin_once() {
        assert!(!pinned());
        let outer = pin();
        {
            let _inner = pin();
            assert!(pinned());
        }
        assert!(pinned());
        drop(outer);
        assert!(!pinned());
    }

    #[test]
    fn pins_may_be_dropped_in_any_order() {
        let a = pin();
        let b = pin();
        drop(a);
        assert!(pinned());
        (*b).flush();
        drop(b);
        assert!(!pinned());
    }

    #[test]
    fn a_pin_dropped_after_force_does_nothing() {
        let lost = pin();
        force_unpin_all();
        assert!(!pinned());
        drop(lost);
        let again = pin();
        assert!(pinned());
        drop(again);
        detach();
        drop(pin());
    }

    #[test]
    fn retired_values_are_dropped_after_readers_leave() {
        struct Counted(Arc<AtomicUsize>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_add(1, SeqCst);
            }
        }
        let drops = Arc::new(AtomicUsize::new(0));
        let reader = pin();
        std::thread::scope(|s| {
            s.spawn(|| {
                let value = Box::into_raw(Box::new(Counted(drops.clone())));
                // SAFETY: nobody else knows the value.
                unsafe { pin().retire(value) };
                collect(8);
                detach();
            });
        });
        assert_eq!(drops.load(SeqCst), 0);
        drop(reader);
        for _ in 0..10_000 {
            collect(1);
            if drops.load(SeqCst) == 1 {
                return;
            }
            std::thread::yield_now(); // another test's thread may be pinned
        }
        panic!("never collected");
    }
    #[test]
    fn draining_frees_all_that_was_retired_before() {
        let freed = Arc::new(AtomicUsize::new(0));
        let retire = |count: usize| {
            for _ in 0..count {
                let freed = Arc::clone(&freed);
                // SAFETY: without a heap it stays in this process.
                unsafe { pin().defer_unchecked(move || freed.fetch_add(1, Relaxed)) };
            }
        };
        // Many times what a few rounds take; other tests of this process pin as well, but none of them for long.
        retire(20_000);
        while !drain(1000) {}
        assert_eq!(freed.load(Relaxed), 20_000);
        let (pinned, unpin) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let _pin = pin();
                pinned.wait();
                unpin.wait();
            });
            pinned.wait();
            retire(1);
            assert!(!drain(100), "somebody might still look at it");
            unpin.wait();
        });
        while !drain(1000) {}
        assert_eq!(freed.load(Relaxed), 20_001);
        let _pin = pin();
        assert!(!drain(1), "its own process is pinned");
    }
}
