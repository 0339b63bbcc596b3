//! Reservations: make sure that what follows can allocate, or say [`Full`] while nothing has been touched yet.
//!
//! Rust aborts when an allocation fails, and an abort restarts the whole cluster. So whoever is about to allocate in the
//! scope first reserves the sizes it may need. A reservation is this process's own: magazines (or held blocks) that no
//! other process can empty. Before it is refused it tries to reclaim what was retired. It lasts until used, at most [`Needs::OBJECTS`] objects of each size. Sizes of one class
//! share their guarantee.

use crate::chunks::Level;
use crate::{class, epoch, heap};
use std::fmt;

/// The shared heap has no room. The caller reports it (and what to do about it); nothing has been changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the shared heap is full")
    }
}

impl std::error::Error for Full {}

/// A set of sizes up to [`Needs::MAX_BYTES`], made once (it can be a constant) and checked in about a nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs(u128);

impl Needs {
    /// The largest size a set can hold.
    pub const MAX_BYTES: usize = class::MAX_SIZE;
    /// How many objects of each size are guaranteed.
    pub const OBJECTS: usize = heap::RESERVED as usize;

    /// Panics (at compile time in a constant) if a size exceeds [`Needs::MAX_BYTES`].
    #[allow(clippy::indexing_slicing, reason = "below the length, as the loop says")]
    pub const fn of(sizes: &[usize]) -> Needs {
        let mut set = 0;
        let mut i = 0;
        while i < sizes.len() {
            assert!(sizes[i] <= Needs::MAX_BYTES, "too large for a set of sizes");
            set |= 1 << class::of(sizes[i]);
            i += 1;
        }
        Needs(set)
    }

    /// For one layout; its alignment counts.
    pub const fn of_layout(layout: std::alloc::Layout) -> Needs {
        match class::of_layout(layout.size(), layout.align()) {
            Some(c) => Needs(1 << c),
            None => panic!("too large for a set of sizes"),
        }
    }

    /// Both sets.
    pub const fn and(self, other: Needs) -> Needs {
        Needs(self.0 | other.0)
    }

    pub(crate) const fn bits(self) -> u128 {
        self.0
    }

    pub(crate) fn classes(self) -> impl Iterator<Item = usize> {
        (0..class::COUNT).filter(move |c| self.0 >> c & 1 == 1)
    }

    /// Guarantees the set; `Ok` at once when no heap is attached.
    #[inline(always)]
    pub fn reserve(self) -> Result<(), Full> {
        if heap::attached() && heap::low() & self.0 != 0 {
            stock(self.0, Level::Normal, false)
        } else {
            Ok(())
        }
    }

    /// As [`Needs::reserve`], for what grows with the data and can do with less: refused at the bound that
    /// [`heap::limit_growth`] set.
    #[inline(always)]
    pub fn reserve_growth(self) -> Result<(), Full> {
        if heap::attached() && heap::low() & self.0 != 0 {
            stock(self.0, Level::Growth, false)
        } else {
            Ok(())
        }
    }

    /// As [`Needs::reserve`], for operations that end up freeing memory: may use the emergency area, and when that is used
    /// up makes do with one object of each size, which is enough to retire
    /// 50 objects. Being refused can pass: a pinned process may only be waiting for a core.
    #[inline(always)]
    pub fn reserve_emergency(self) -> Result<(), Full> {
        if heap::attached() && heap::low() & self.0 != 0 {
            stock(self.0, Level::Freeing, true)
        } else {
            Ok(())
        }
    }
}

/// What an emergency reservation makes do with when there is no more: enough for an operation that frees something, for
/// the bag that it takes comes back. But once bags were needed that only collecting may take, those must suffice to work
/// off all the garbage there may be: 64 bags, whose nodes go into one, for each and for the one that is being filled.
const LAST: u32 = 1;
/// How often a reservation tries to reclaim retired memory before it is refused.
const RECLAIMS: u32 = 4;

#[cold]
#[inline(never)]
fn stock(set: u128, level: Level, makes_do: bool) -> Result<(), Full> {
    for attempt in 0..=RECLAIMS {
        let mut todo = heap::low() & set;
        while todo != 0 && heap::stock(todo.trailing_zeros() as usize, level) {
            todo &= todo - 1;
        }
        if todo == 0 {
            return Ok(());
        }
        if attempt == RECLAIMS || !epoch::reclaim() {
            break;
        }
    }
    let set = Needs(set);
    let last_resort = || heap::has(set, LAST) && (!heap::last_was_needed() || heap::has_one_in(set, 64));
    if makes_do && last_resort() {
        return Ok(());
    }
    Err(heap::count_refusal())
}

/// Guarantees that this process can allocate, in the scope, [`Needs::OBJECTS`] objects of each of these sizes (alignment
/// up to 8, or a power of two that divides the size). Of a size above [`Needs::MAX_BYTES`] one object each time it is
/// named, at most 8 in all; such blocks are kept until used, displaced by a reservation of other sizes, or given back by
/// [`heap::release_reserved`]. `Ok` at once when no heap is attached.
///
/// Where the sizes are known beforehand, a [`Needs`] is faster.
#[inline]
pub fn reserve(sizes: &[usize]) -> Result<(), Full> {
    reserve_sizes(sizes, Level::Normal, false)
}

/// As [`reserve`], for what grows with the data and can do with less. See [`Needs::reserve_growth`].
#[inline]
pub fn reserve_growth(sizes: &[usize]) -> Result<(), Full> {
    reserve_sizes(sizes, Level::Growth, false)
}

/// As [`reserve_growth`], without collecting garbage for it: for who can do with something else.
#[inline]
pub fn reserve_at_hand(sizes: &[usize]) -> Result<(), Full> {
    let set = sizes.iter().fold(0, |set, &bytes| set | 1 << class::of(bytes));
    if !heap::attached() || heap::low() & set == 0 {
        return Ok(());
    }
    match Needs(set).classes().all(|c| heap::stock(c, Level::Growth)) {
        true => Ok(()),
        false => Err(Full),
    }
}

/// As [`reserve`], for operations that end up freeing memory. See [`Needs::reserve_emergency`].
#[inline]
pub fn reserve_emergency(sizes: &[usize]) -> Result<(), Full> {
    reserve_sizes(sizes, Level::Freeing, true)
}

/// As [`reserve_emergency`], for those that cannot make do with less than what they ask for.
#[inline]
pub fn reserve_all_of_it(sizes: &[usize]) -> Result<(), Full> {
    reserve_sizes(sizes, Level::Freeing, false)
}

#[inline]
fn reserve_sizes(sizes: &[usize], level: Level, makes_do: bool) -> Result<(), Full> {
    if !heap::attached() {
        return Ok(());
    }
    let large = |bytes: &usize| *bytes > Needs::MAX_BYTES;
    let set = sizes.iter().filter(|s| !large(s)).fold(0, |set, &bytes| set | 1 << class::of(bytes));
    if heap::low() & set != 0 {
        stock(set, level, makes_do)?;
    }
    if !sizes.iter().any(large) {
        return Ok(());
    }
    for attempt in 0..=RECLAIMS {
        if heap::hold(sizes.iter().copied().filter(large), level) {
            return Ok(());
        }
        if attempt == RECLAIMS || !epoch::reclaim() {
            break;
        }
    }
    Err(heap::count_refusal())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKIP_LIST: Needs = Needs::of(&[32, 40, 48, 56]);

    #[test]
    fn sets_are_unions_of_classes() {
        assert_eq!(SKIP_LIST, Needs::of(&[25, 33]).and(Needs::of(&[48, 41, 56])));
        assert_ne!(SKIP_LIST, Needs::of(&[32, 40, 48]));
        let aligned = std::alloc::Layout::from_size_align(100, 64).expect("valid");
        assert_eq!(Needs::of_layout(aligned), Needs::of(&[128]));
    }

    #[test]
    fn without_a_heap_everything_is_granted() {
        assert_eq!(SKIP_LIST.reserve(), Ok(()));
        assert_eq!(reserve(&[1 << 40]), Ok(()));
        assert_eq!(reserve_emergency(&[1 << 40]), Ok(()));
    }
}
