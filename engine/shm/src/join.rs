//! Joins free objects that lie beside each other, when a larger one is wanted and there is no other memory for it: what has become of
//! small ones would else serve small ones for ever, as long as one object of each chunk is in use.
//!
//! ```text
//!   a chunk:   | used | free | free | free | used | free | used |     what is in hand is marked, unit by unit
//!                     \------- enough -----/      \ not /
//!              | used |   wanted    | rest | used | free | used |
//! ```
//!
//! A part of a pass of [`crate::give_back`]: one process at a time does it, with objects in hand that nobody else has.

use crate::carve::{cut, uncarve, UNIT};
use crate::chunks::CHUNK;
use crate::class;
use crate::give_back::{chunk_of, each_chunk, Back, InHand};
use crate::heap::{base_ptr, header};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

const UNITS: usize = CHUNK / UNIT;
/// Enough at once, in bytes: so much, or a part of what is in hand. What is joined would be cut up again for small ones.
const LEAST: usize = 8 * CHUNK;
const PART: usize = 8;

/// Makes objects of class `c` of those in hand. False: they make none.
pub(crate) fn join(c: usize, in_hand: InHand) -> bool {
    let mut back = Back::NOTHING;
    each_chunk().for_each(|chunk| header().use_of(chunk).in_hand.store(ptr::null_mut(), Relaxed));
    let mut bytes = 0;
    for (object, d) in in_hand {
        bytes += class::size(d);
        // SAFETY: in hand, so ours, and free; it goes to one place.
        unsafe {
            // What collecting has given back is for collecting only.
            if d == class::COLLECTING {
                back.add(object, d);
                continue;
            }
            let of = &header().use_of(chunk_of(object)).in_hand;
            let mut others = InHand(of.load(Relaxed));
            others.add(object, d);
            of.store(others.0, Relaxed);
        }
    }
    let (mut joined, enough) = (0, (bytes / PART).max(LEAST));
    for chunk in each_chunk() {
        header().use_of(chunk).found.store(0, Relaxed);
        let objects = InHand(header().use_of(chunk).in_hand.load(Relaxed));
        if objects.0.is_null() {
            continue;
        }
        let mut free = Free::none(header().offset_of(chunk));
        if joined < enough {
            objects.for_each(|(object, d)| free.units(offset(object), class::size(d)).fill(true));
            free.keep_room_for(c);
        }
        for (object, d) in objects {
            if free.is_at(offset(object)) {
                uncarve(d, offset(object));
            } else {
                // SAFETY: in hand, so ours, and free.
                unsafe { back.add(object, d) };
            }
        }
        for room in free.runs() {
            // SAFETY: what was of the objects in hand, none of which was put back, and has room.
            let made = unsafe { cut(c, free.start + room.start * UNIT, room.len() * UNIT) };
            joined += made.count as usize * class::size(c);
            // SAFETY: just made of free memory.
            unsafe { header().stack(c).push(base_ptr(), made) };
        }
    }
    back.push();
    joined > 0
}

fn offset(object: *mut u8) -> usize {
    object.addr() - base_ptr().addr()
}

/// Which units of a chunk are free, and in hand.
struct Free {
    /// Offset of the chunk.
    start: usize,
    units: [bool; UNITS],
}

impl Free {
    fn none(start: usize) -> Free {
        Free { start, units: [false; UNITS] }
    }

    fn units(&mut self, at: usize, bytes: usize) -> &mut [bool] {
        let first = (at - self.start) / UNIT;
        self.units.get_mut(first..first + bytes / UNIT).unwrap_or_default()
    }

    fn is_at(&self, at: usize) -> bool {
        self.units.get((at - self.start) / UNIT) == Some(&true)
    }

    /// Those that lie beside each other.
    fn runs(&self) -> impl Iterator<Item = Range<usize>> + use<'_> {
        let mut at = 0;
        self.units.chunk_by(|one, next| one == next).filter_map(move |run| {
            at += run.len();
            (run.first() == Some(&true)).then(|| at - run.len()..at)
        })
    }

    /// Without those in which there is no room for an object of class `c`.
    fn keep_room_for(&mut self, c: usize) {
        let has_room = |run: &Range<usize>| {
            let at = (self.start + run.start * UNIT).next_multiple_of(class::align(c));
            at + class::size(c) <= self.start + run.end * UNIT
        };
        let mut kept = [false; UNITS];
        for run in self.runs().filter(has_room) {
            kept.get_mut(run).unwrap_or_default().fill(true);
        }
        self.units = kept;
    }
}
