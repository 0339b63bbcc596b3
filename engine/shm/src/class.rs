//! Size classes: which sizes the heap hands out from free lists, and what a layout is rounded up to.
//!
//! ```text
//!   16 ..=   128   step 8            15 classes
//!  144 ..=   512   step 16           24 classes
//!  576 ..= 16384   8 per doubling    40 classes     (at most 12.5 % lost to rounding)
//!  what collecting needs              1 class       (apart: nothing else takes what garbage has given back)
//! ```
//!
//! An object of a class lies at a multiple of the largest power of two that divides the class's size, up to
//! [`MAX_ALIGN`]. So an alignment is served by taking a class whose size it divides.

use crate::epoch::{BAG, PARTICIPANT};

const BY_8: usize = 15;
const BY_16: usize = 24;
const DOUBLINGS: usize = 5;

/// The class of what the collector allocates: for these objects memory is taken from beyond every bound, so others are not to live on
/// them.
pub(crate) const COLLECTING: usize = BY_8 + BY_16 + DOUBLINGS * 8;
/// How many classes there are. A set of classes fits a `u128`.
pub(crate) const COUNT: usize = COLLECTING + 1;
/// The largest size that has a class; larger ones are runs of chunks.
pub(crate) const MAX_SIZE: usize = 512 << DOUBLINGS;
/// The largest alignment that a class can promise.
pub(crate) const MAX_ALIGN: usize = 128;

const _: () = assert!(COUNT <= u128::BITS as usize);
const _: () = assert!(BAG <= PARTICIPANT && PARTICIPANT.is_multiple_of(MAX_ALIGN));

/// The class of objects of `size` bytes; `size` must not exceed [`MAX_SIZE`].
#[inline(always)]
pub(crate) const fn of(size: usize) -> usize {
    if size == BAG || size == PARTICIPANT {
        COLLECTING
    } else {
        smallest(size)
    }
}

/// The smallest class that holds so many bytes, of those that are there for all.
#[inline(always)]
pub(crate) const fn smallest(size: usize) -> usize {
    debug_assert!(size <= MAX_SIZE);
    if size <= 128 {
        let size = if size < 16 { 16 } else { size };
        size.div_ceil(8) - 2
    } else if size <= 512 {
        BY_8 + size.div_ceil(16) - 9
    } else {
        // 2^lg < size <= 2^(lg + 1)
        let lg = (usize::BITS - 1 - (size - 1).leading_zeros()) as usize;
        let eighth = ((size - 1) >> (lg - 3)) & 7;
        BY_8 + BY_16 + (lg - 9) * 8 + eighth
    }
}

/// Bytes of an object of class `c`.
#[inline(always)]
pub(crate) const fn size(c: usize) -> usize {
    if c == COLLECTING {
        PARTICIPANT
    } else if c < BY_8 {
        (c + 2) * 8
    } else if c < BY_8 + BY_16 {
        (c - BY_8 + 9) * 16
    } else {
        let geometric = c - BY_8 - BY_16;
        let (lg, eighth) = (geometric / 8 + 9, geometric % 8);
        (1 << lg) + ((eighth + 1) << (lg - 3))
    }
}

/// What every object of class `c` is aligned to.
#[inline]
pub(crate) const fn align(c: usize) -> usize {
    let natural = 1 << size(c).trailing_zeros();
    if natural < MAX_ALIGN {
        natural
    } else {
        MAX_ALIGN
    }
}

/// The class that serves `bytes` at `align`, or `None` when that takes whole chunks.
#[inline(always)]
pub(crate) const fn of_layout(bytes: usize, align: usize) -> Option<usize> {
    if align <= 8 || bytes == PARTICIPANT && align <= MAX_ALIGN {
        return if bytes <= MAX_SIZE { Some(of(bytes)) } else { None };
    }
    if align > MAX_ALIGN || bytes > MAX_SIZE {
        return None;
    }
    // MAX_SIZE is a multiple of every alignment that gets here, so the walk ends at its class.
    let mut c = smallest(bytes);
    while !size(c).is_multiple_of(align) {
        c += 1;
    }
    Some(c)
}

/// The largest class whose objects fit `bytes` at offset `at` (both multiples of 8), if any does.
pub(crate) fn largest_within(at: usize, bytes: usize) -> Option<usize> {
    debug_assert!(at.is_multiple_of(8) && bytes.is_multiple_of(8));
    let mut c = if bytes >= MAX_SIZE { COLLECTING - 1 } else { smallest(bytes) };
    loop {
        if size(c) <= bytes && at.is_multiple_of(align(c)) {
            return Some(c);
        }
        c = c.checked_sub(1)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_class_that_holds_it() {
        for s in 0..=MAX_SIZE {
            let c = of(s);
            assert!(c < COUNT && size(c) >= s, "size {s} class {c}");
            assert_eq!(c == COLLECTING, s == BAG || s == PARTICIPANT);
            assert!(
                c == 0 || c == COLLECTING || size(c - 1) < s.max(1),
                "size {s}: class {} would do",
                c.saturating_sub(1)
            );
        }
    }

    #[test]
    fn class_sizes_grow_and_are_their_own_class() {
        assert_eq!(of(size(COLLECTING)), COLLECTING);
        for c in 0..COLLECTING {
            assert_eq!(smallest(size(c)), c);
            assert!(size(c).is_multiple_of(8));
            assert!(c == 0 || size(c) > size(c - 1));
        }
        assert_eq!(size(COLLECTING - 1), MAX_SIZE);
    }

    #[test]
    fn rounding_loses_at_most_an_eighth_above_128() {
        for s in 129..=MAX_SIZE {
            assert!(size(of(s)) - s < s / 8 + 16, "size {s}");
        }
    }

    #[test]
    fn layouts_are_served_by_classes_they_divide() {
        for align in [1, 2, 4, 8, 16, 32, 64, 128] {
            for bytes in (0..=MAX_SIZE).step_by(7).chain([MAX_SIZE]) {
                let c = of_layout(bytes, align).expect("has a class");
                assert!(size(c) >= bytes && self::align(c) >= align, "{bytes} at {align}");
            }
        }
        assert_eq!(of_layout(MAX_SIZE + 1, 8), None);
        assert_eq!(of_layout(64, 256), None);
    }

    #[test]
    fn tails_are_cut_into_aligned_pieces() {
        for at in (0..512).step_by(8) {
            for bytes in (0..2048).step_by(8) {
                if let Some(c) = largest_within(at, bytes) {
                    assert!(size(c) <= bytes && at.is_multiple_of(align(c)));
                } else {
                    assert!(bytes < 24, "{at} {bytes}");
                }
            }
        }
    }
}
