//! Who reads what on a standby: each process publishes the tables it uses and the superversions it has pinned, so that the
//! replay of WAL can tell whom it would pull pages away from.
//!
//! ```text
//!  readers[backend number] -> address | address | ... | how many more there was no room for
//! ```
//!
//! A process writes its own entry alone; replay reads all of them. On a primary nobody publishes anything.

use crate::pg::bindings;
use pgrx::pg_sys;
use std::sync::atomic::{fence, AtomicU32, AtomicUsize, Ordering::*};

const ITEMS: usize = 63;

/// What one process holds.
#[repr(align(128))]
pub struct Reader {
    items: [AtomicUsize; ITEMS],
    /// Held, too, but there was no room: it may be anything.
    more: AtomicU32,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader { items: std::array::from_fn(|_| AtomicUsize::new(0)), more: AtomicU32::new(0) }
    }
}

impl Reader {
    fn add(&self, item: usize) {
        match self.items.iter().find(|place| place.load(Relaxed) == 0) {
            Some(place) => place.store(item, Release),
            None => {
                self.more.fetch_add(1, Release);
            }
        }
    }

    /// False: it was not there.
    fn remove(&self, item: usize) -> bool {
        match self.items.iter().find(|place| place.load(Relaxed) == item) {
            Some(place) => place.store(0, Release),
            None if self.more.load(Relaxed) > 0 => {
                self.more.fetch_sub(1, Release);
            }
            None => return false,
        }
        true
    }

    fn clear(&self) {
        self.items.iter().for_each(|place| place.store(0, Release));
        self.more.store(0, Release);
    }

    fn may_hold(&self, wanted: &[usize]) -> bool {
        self.more.load(Acquire) > 0 || self.items.iter().any(|place| wanted.contains(&place.load(Acquire)))
    }
}

/// All processes' entries, by backend number.
pub struct Readers {
    first: *const Reader,
    len: usize,
}

// SAFETY: points to the segment, which all processes see at this address.
unsafe impl Sync for Readers {}

/// Things that this process has published.
static PUBLISHED: AtomicU32 = AtomicU32::new(0);

impl Readers {
    /// # Safety
    /// `first` is the first of `len` entries that live as long as the segment.
    pub unsafe fn new(first: *const Reader, len: usize) -> Readers {
        Readers { first, len }
    }

    fn of(&self, backend: i32) -> Option<&Reader> {
        let at = usize::try_from(backend).ok()?.checked_sub(1)?;
        // SAFETY: within the array.
        (at < self.len).then(|| unsafe { &*self.first.add(at) })
    }

    fn mine(&self) -> Option<&Reader> {
        // SAFETY: set at process start.
        self.of(unsafe { pg_sys::MyBackendId })
    }

    /// This process holds what stands at this address, from now on.
    #[inline]
    pub fn publish(&self, item: usize) {
        // SAFETY: looks at a flag.
        if unsafe { bindings::RecoveryInProgress() } {
            if let Some(reader) = self.mine() {
                reader.add(item);
                PUBLISHED.fetch_add(1, Relaxed);
                // Replay writes the meta page first and looks here second; we come here first and read that page second.
                fence(SeqCst);
            }
        }
    }

    /// This process does not hold it any more (once less, if it does so several times).
    #[inline]
    pub fn withdraw(&self, item: usize) {
        if PUBLISHED.load(Relaxed) > 0 && self.mine().is_some_and(|reader| reader.remove(item)) {
            PUBLISHED.fetch_sub(1, Relaxed);
        }
    }

    /// The process ends.
    pub fn clear(&self) {
        if let Some(reader) = self.mine().filter(|_| PUBLISHED.swap(0, Relaxed) > 0) {
            reader.clear();
        }
    }

    /// Numbers of the backends that hold one of these.
    pub fn holding(&self, wanted: &[usize]) -> Vec<i32> {
        fence(SeqCst);
        (1..=self.len as i32).filter(|n| self.of(*n).is_some_and(|reader| reader.may_hold(wanted))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_keeps_count_of_what_it_has_no_room_for() {
        let reader = Reader::default();
        let all = ITEMS + 3;
        (1..=all).for_each(|item| reader.add(item));
        assert!(reader.may_hold(&[1]) && reader.may_hold(&[9999]), "one of the three may be it");
        (1..=all).for_each(|item| assert!(reader.remove(item)));
        assert!(!reader.remove(1));
        assert!(!(1..=all).any(|item| reader.may_hold(&[item])));
        reader.add(7);
        reader.add(7);
        assert!(reader.remove(7) && reader.may_hold(&[7]) && !reader.may_hold(&[8]));
        reader.clear();
        assert!(!reader.may_hold(&[7]));
    }
}
