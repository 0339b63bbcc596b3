//! What this process holds of the shared structures, so that it can be let go of when the process ends without unwinding
//! (FATAL does not run destructors).

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

/// A set of addresses, with repetitions, in the process's own memory: it may grow while the shared heap is in scope. One
/// process, one thread; the atomics are for the language.
pub struct HeldList {
    items: AtomicPtr<usize>,
    len: AtomicUsize,
    room: AtomicUsize,
}

impl HeldList {
    pub const fn new() -> HeldList {
        HeldList { items: AtomicPtr::new(std::ptr::null_mut()), len: AtomicUsize::new(0), room: AtomicUsize::new(0) }
    }

    /// Grows the list so that `push` has room. False: the process is out of memory.
    fn reserve(&self) -> bool {
        let (len, room) = (self.len.load(Relaxed), self.room.load(Relaxed));
        if len < room {
            return true;
        }
        let wanted = (room * 2).max(32);
        // SAFETY: `items` is null or from the same allocator; on failure it stays as it is.
        let grown =
            unsafe { libc::realloc(self.items.load(Relaxed).cast(), wanted * size_of::<usize>()).cast::<usize>() };
        if grown.is_null() {
            return false;
        }
        self.items.store(grown, Relaxed);
        self.room.store(wanted, Relaxed);
        true
    }

    pub fn push(&self, item: usize) {
        // Without room the item is forgotten: it is then let go of by unwinding only.
        if self.reserve() {
            let len = self.len.load(Relaxed);
            // SAFETY: `reserve` made room for one more.
            unsafe { self.items.load(Relaxed).add(len).write(item) };
            self.len.store(len + 1, Relaxed);
        }
    }

    /// Takes one occurrence out; the last one pushed is the first looked at.
    pub fn remove(&self, item: usize) -> bool {
        let (items, len) = (self.items.load(Relaxed), self.len.load(Relaxed));
        for i in (0..len).rev() {
            // SAFETY: `i` and `len - 1` are within the list.
            unsafe {
                if *items.add(i) == item {
                    *items.add(i) = *items.add(len - 1);
                    self.len.store(len - 1, Relaxed);
                    return true;
                }
            }
        }
        false
    }

    pub fn pop(&self) -> Option<usize> {
        let len = self.len.load(Relaxed).checked_sub(1)?;
        self.len.store(len, Relaxed);
        // SAFETY: `len` was within the list.
        Some(unsafe { *self.items.load(Relaxed).add(len) })
    }

    pub fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for HeldList {
    fn default() -> Self {
        HeldList::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_repetitions_and_forgets_one_at_a_time() {
        let list = HeldList::new();
        for i in 0..100 {
            list.push(i);
            list.push(i);
        }
        assert!(list.remove(3) && list.remove(3) && !list.remove(3));
        assert_eq!(list.len(), 198);
        let mut seen = 0;
        while list.pop().is_some() {
            seen += 1;
        }
        assert_eq!(seen, 198);
        assert!(list.is_empty());
    }
}
