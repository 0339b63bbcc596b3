//! Which databases have a background worker, or are about to get one.
//!
//! ```text
//!          claim               arrive               leave
//!   free --------> starting ------------> serving --------> free
//!    ^                |
//!    +----------------+  withdraw, or nobody arrived for START_TIMEOUT
//! ```
//!
//! A place is claimed before the worker is registered with PostgreSQL, so that of many who miss a worker one starts it. The
//! worker takes the place over when it arrives, and gives it up on its way out, whatever way that is; a worker that is
//! killed takes the whole of shared memory with it. Nothing waits while the latch is held.

use loosekv_shm::RawLatch;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// Databases that may have a background worker at one time.
pub const PLACES: usize = 64;
/// A worker that has not arrived after this time, in microseconds, is not expected any more.
const START_TIMEOUT: u64 = 10_000_000;

/// `L` guards the places; `W` is what a worker is woken by.
pub struct Claims<L, W> {
    latch: L,
    places: [Place<W>; PLACES],
    /// A database went without a worker for want of a place: workers without work make room at once.
    wanted: AtomicBool,
    /// Workers that have arrived since the server started.
    pub arrivals: AtomicU64,
}

/// One worker's place. `database` and `pid` change with the latch held exclusively.
#[repr(align(64))]
struct Place<W> {
    /// 0: free.
    database: AtomicU32,
    /// 0: not arrived yet.
    pid: AtomicI32,
    /// When it was claimed.
    since: AtomicI64,
    /// Counts requests; the worker goes on until it has seen the last.
    requests: AtomicU64,
    /// Somebody wants the database for himself.
    stop: AtomicBool,
    waker: AtomicPtr<W>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<W> {
    /// A worker serves the database: wake it.
    Serving(*mut W),
    /// One is being started.
    Starting,
    /// There is none.
    Nobody,
}

/// A worker's own place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    place: usize,
    pid: i32,
}

/// What a worker is to do when it has found no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// There were requests meanwhile: look again.
    Asked,
    Wait,
    /// Its place is given up.
    Left,
}

impl<W> Place<W> {
    fn free() -> Place<W> {
        Place {
            database: AtomicU32::new(0),
            pid: AtomicI32::new(0),
            since: AtomicI64::new(0),
            requests: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            waker: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn is_free(&self) -> bool {
        self.database.load(Acquire) == 0
    }

    /// Also where the clock was set back meanwhile: by how much, nobody knows.
    fn is_overdue(&self, now: i64) -> bool {
        !self.is_free() && self.pid.load(Acquire) == 0 && now.abs_diff(self.since.load(Relaxed)) > START_TIMEOUT
    }

    fn clear(&self) {
        self.waker.store(std::ptr::null_mut(), Release);
        self.pid.store(0, Release);
        self.stop.store(false, Relaxed);
        self.database.store(0, Release);
    }
}

impl<L: RawLatch, W> Claims<L, W> {
    pub fn new() -> Claims<L, W> {
        Claims {
            latch: L::new(),
            places: std::array::from_fn(|_| Place::free()),
            wanted: AtomicBool::new(false),
            arrivals: AtomicU64::new(0),
        }
    }

    /// With the latch held.
    fn of(&self, database: u32) -> Option<(usize, &Place<W>)> {
        self.places.iter().enumerate().find(|(_, place)| place.database.load(Acquire) == database)
    }

    /// Notes that the database has work.
    pub fn ask(&self, database: u32, now: i64) -> Asked<W> {
        let _latch = self.latch.read();
        let Some((_, place)) = self.of(database) else { return Asked::Nobody };
        place.requests.fetch_add(1, AcqRel);
        if place.pid.load(Acquire) != 0 {
            Asked::Serving(place.waker.load(Acquire))
        } else if place.is_overdue(now) {
            Asked::Nobody
        } else {
            Asked::Starting
        }
    }

    /// Claims a place for a worker that is to be started; `limit` workers at the most. False: somebody else has done so, or
    /// there is no place.
    pub fn claim(&self, database: u32, limit: usize, now: i64) -> bool {
        debug_assert!(database != 0);
        let _latch = self.latch.write();
        self.places.iter().filter(|place| place.is_overdue(now)).for_each(Place::clear);
        if self.of(database).is_some() {
            return false;
        }
        let taken = self.places.iter().filter(|place| !place.is_free()).count();
        let Some(place) = self.places.iter().find(|place| place.is_free()).filter(|_| taken < limit) else {
            self.wanted.store(true, Relaxed);
            return false;
        };
        place.since.store(now, Relaxed);
        place.database.store(database, Release);
        true
    }

    /// The worker could not be started after all.
    pub fn withdraw(&self, database: u32) {
        let _latch = self.latch.write();
        if let Some((_, place)) = self.of(database) {
            if place.pid.load(Acquire) == 0 {
                place.clear();
            }
        }
    }

    /// A worker takes its place. `None`: another serves the database, or the place was given away because it took so long.
    pub fn arrive(&self, database: u32, pid: i32, waker: *mut W) -> Option<Seat> {
        debug_assert!(pid != 0 && !waker.is_null());
        let _latch = self.latch.write();
        let (at, place) = self.of(database).filter(|(_, place)| place.pid.load(Acquire) == 0)?;
        place.waker.store(waker, Release);
        place.pid.store(pid, Release);
        self.arrivals.fetch_add(1, Relaxed);
        Some(Seat { place: at, pid })
    }

    fn mine(&self, seat: Seat) -> Option<&Place<W>> {
        self.places.get(seat.place).filter(|place| place.pid.load(Acquire) == seat.pid)
    }

    /// The worker goes. Does nothing if it has gone already.
    pub fn leave(&self, seat: Seat) {
        let _latch = self.latch.write();
        if let Some(place) = self.mine(seat) {
            place.clear();
        }
    }

    /// Requests so far, to be read before looking for work.
    pub fn requests(&self, seat: Seat) -> u64 {
        self.mine(seat).map_or(0, |place| place.requests.load(Acquire))
    }

    /// The worker is to end what it does and go.
    pub fn is_stopped(&self, seat: Seat) -> bool {
        self.mine(seat).is_none_or(|place| place.stop.load(Acquire))
    }

    /// The worker has found no work. `seen`: the requests when it began to look. `long`: it was idle for long enough.
    pub fn idle(&self, seat: Seat, seen: u64, long: bool) -> Idle {
        let leave = long || self.wanted.load(Relaxed);
        let _latch = self.latch.write();
        let Some(place) = self.mine(seat) else { return Idle::Left };
        if place.stop.load(Acquire) {
            place.clear();
            Idle::Left
        } else if place.requests.load(Acquire) != seen {
            Idle::Asked
        } else if leave {
            self.wanted.store(false, Relaxed);
            place.clear();
            Idle::Left
        } else {
            Idle::Wait
        }
    }

    /// Whether a worker is there, or about to come.
    pub fn is_served(&self, database: u32) -> bool {
        let _latch = self.latch.read();
        self.of(database).is_some()
    }

    /// Asks a database's worker to go. `None`: there is none (any more).
    pub fn stop(&self, database: u32) -> Option<*mut W> {
        let _latch = self.latch.read();
        let (_, place) = self.of(database)?;
        place.stop.store(true, Release);
        Some(place.waker.load(Acquire))
    }

    /// Shows the workers: database and process (0: on its way).
    pub fn each(&self, mut show: impl FnMut(u32, i32)) {
        for place in self.places.iter() {
            let (database, pid) = {
                let _latch = self.latch.read();
                (place.database.load(Acquire), place.pid.load(Acquire))
            };
            if database != 0 {
                show(database, pid);
            }
        }
    }
}

impl<L: RawLatch, W> Default for Claims<L, W> {
    fn default() -> Self {
        Claims::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loosekv_shm::ThreadLatch;

    type Tested = Claims<ThreadLatch, u8>;

    fn waker() -> *mut u8 {
        std::ptr::dangling_mut()
    }

    #[test]
    fn one_of_many_starts_the_worker() {
        let claims = Tested::new();
        let started: usize = std::thread::scope(|s| {
            let claim = || usize::from(claims.ask(7, 0) == Asked::Nobody && claims.claim(7, 4, 0));
            let all: Vec<_> = (0..8).map(|_| s.spawn(claim)).collect();
            all.into_iter().map(|one| one.join().unwrap()).sum()
        });
        assert_eq!(started, 1);
        assert_eq!(claims.ask(7, 0), Asked::Starting);
        let seat = claims.arrive(7, 100, waker()).unwrap();
        assert_eq!(claims.ask(7, 0), Asked::Serving(waker()));
        claims.leave(seat);
        assert_eq!(claims.ask(7, 0), Asked::Nobody);
    }

    #[test]
    fn the_limit_holds_and_an_idle_worker_makes_room() {
        let claims = Tested::new();
        assert!(claims.claim(1, 2, 0) && claims.claim(2, 2, 0));
        let seat = claims.arrive(1, 100, waker()).unwrap();
        let seen = claims.requests(seat);
        assert_eq!(claims.idle(seat, seen, false), Idle::Wait);
        assert!(!claims.claim(3, 2, 0));
        assert_eq!(claims.idle(seat, seen, false), Idle::Left);
        assert!(claims.claim(3, 2, 0));
        assert!(!claims.claim(4, 0, 0));
    }

    #[test]
    fn a_request_is_not_lost_between_the_last_look_and_leaving() {
        let claims = Tested::new();
        claims.claim(1, 1, 0);
        let seat = claims.arrive(1, 100, waker()).unwrap();
        let seen = claims.requests(seat);
        claims.ask(1, 0);
        assert_eq!(claims.idle(seat, seen, true), Idle::Asked);
        let seen = claims.requests(seat);
        assert_eq!(claims.idle(seat, seen, true), Idle::Left);
        assert_eq!(claims.ask(1, 0), Asked::Nobody);
        claims.leave(seat);
    }

    #[test]
    fn a_worker_that_never_came_is_replaced_and_one_that_comes_late_goes() {
        let claims = Tested::new();
        let (hour, late) = (3_600_000_000, START_TIMEOUT as i64 + 1);
        assert!(claims.claim(1, 1, hour));
        assert_eq!(claims.ask(1, hour - late), Asked::Nobody, "the clock was set back");
        assert!(claims.claim(1, 1, 0));
        assert!(!claims.claim(1, 1, late - 1));
        assert_eq!(claims.ask(1, late), Asked::Nobody);
        assert!(claims.claim(1, 1, late));
        assert!(claims.arrive(1, 100, waker()).is_some());
        assert!(claims.arrive(1, 101, waker()).is_none());
        // Its place may also be another database's by then.
        let claims = Tested::new();
        assert!(claims.claim(1, 1, 0) && claims.claim(2, 1, late));
        assert!(claims.arrive(1, 100, waker()).is_none());
        assert!(claims.arrive(2, 101, waker()).is_some());
    }

    #[test]
    fn withdrawing_does_not_touch_a_worker_that_serves() {
        let claims = Tested::new();
        claims.claim(1, 1, 0);
        claims.withdraw(1);
        assert_eq!(claims.ask(1, 0), Asked::Nobody);
        claims.claim(1, 1, 0);
        claims.arrive(1, 100, waker());
        claims.withdraw(1);
        assert_eq!(claims.ask(1, 0), Asked::Serving(waker()));
    }

    #[test]
    fn a_worker_that_is_stopped_leaves() {
        let claims = Tested::new();
        claims.claim(1, 1, 0);
        let seat = claims.arrive(1, 100, waker()).unwrap();
        assert_eq!(claims.stop(1), Some(waker()));
        assert!(claims.is_stopped(seat));
        claims.ask(1, 0);
        assert_eq!(claims.idle(seat, 0, false), Idle::Left);
        assert_eq!(claims.stop(1), None);
        assert!(claims.is_stopped(seat));
    }
}
