//! Which pages a walk over a run's data pages asks for before it comes to them.
//!
//! ```text
//! begin at 7, 3 more expected:   [7 8 9 10]                       one request, before 7 is read
//! on to 11, further than that:             [11 12]               half as many, before 11 is read: the end may be near
//! and on:                                         [13 .. 16]     twice as many each time, and early, in the middle of what was asked
//! ```
//!
//! A walk is short, as far as anybody knows, until it has gone on; so what is asked for doubles from request to request then, up
//! to a bound. A long walk forwards is left to the system below, where that has seen by then what goes on, and reads in larger pieces. Both
//! directions are one here: pages are counted from where the direction begins.

use std::ops::Range;

/// Most pages of one request.
const MOST: u32 = 32;
/// Pages after which a walk forwards asks for nothing any more, if the system below reads ahead by itself ...
const LONG: u32 = 128;
/// ... or for so many at once in all walks that go on side by side, and for so many at least in each.
const MOST_OF_LONG: u32 = 256;
const LEAST_OF_LONG: u32 = 16;

/// Who is to ask for the pages of a long walk forwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Long {
    /// Nobody: the system below reads ahead by itself.
    #[default]
    System,
    /// The walk, for so many pages at once.
    Walk { most: u32 },
}

impl Long {
    /// Each of so many walks asks for its own pages. What all of them have asked for waits in memory until they come to it.
    pub fn walks(count: usize) -> Long {
        let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
        Long::Walk { most: (MOST_OF_LONG / count).max(LEAST_OF_LONG) }
    }
}

/// What a walk has asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ahead {
    pub long: Long,
    backward: bool,
    /// Where the walk began, and where it is.
    from: u32,
    at: u32,
    /// The first page that was not asked for.
    until: u32,
    /// Pages of the last request.
    window: u32,
    requests: u32,
    /// Pages entered from their neighbour, ever.
    pub walked: u32,
}

impl Ahead {
    /// A walk begins at page `at` of so many; so many more are expected. What to ask for: that page, too.
    pub fn begin(&mut self, at: u32, backward: bool, pages: u32, more: u32) -> Range<u32> {
        let at = count(at, backward, pages);
        *self = Ahead { backward, from: at, at, walked: self.walked, long: self.long, ..Ahead::default() };
        self.window = more.saturating_add(1).min(MOST);
        self.requests = 1;
        self.ask(self.at, pages)
    }

    /// The walk comes to page `at`. What to ask for before it is read, if anything.
    #[inline]
    pub fn enter(&mut self, at: u32, backward: bool, pages: u32) -> Range<u32> {
        let at = count(at, backward, pages);
        if self.backward != backward || at != self.at.wrapping_add(1) {
            *self = Ahead { backward, from: at, until: at, walked: self.walked, long: self.long, ..Ahead::default() };
        }
        self.at = at;
        self.walked = self.walked.saturating_add(1);
        let left = self.until.saturating_sub(at);
        let early = self.requests > 1 && left <= self.window / 2;
        if (left > 0 && !early) || self.is_left_to_system() || self.until >= pages {
            return 0..0;
        }
        self.window = match self.requests {
            0 | 1 => self.window / 2,
            _ => self.window.saturating_mul(2),
        };
        self.window = self.window.clamp(2, self.most());
        self.requests = self.requests.saturating_add(1);
        self.ask(self.until.max(at), pages)
    }

    /// Pages of one request.
    fn most(&self) -> u32 {
        match self.long {
            Long::Walk { most } if self.is_long() => most,
            _ => MOST,
        }
    }

    fn is_long(&self) -> bool {
        !self.backward && self.at - self.from >= LONG
    }

    /// The walk asks for nothing any more: the system below has seen where it goes.
    #[inline]
    pub fn is_left_to_system(&self) -> bool {
        self.is_long() && self.long == Long::System
    }

    /// The window from `from` on, as the run counts its pages.
    fn ask(&mut self, from: u32, pages: u32) -> Range<u32> {
        self.until = from.saturating_add(self.window).min(pages);
        match self.backward {
            true => pages.saturating_sub(self.until)..pages.saturating_sub(from),
            false => from..self.until,
        }
    }
}

/// The page's number from where the direction begins.
fn count(at: u32, backward: bool, pages: u32) -> u32 {
    match backward {
        true => pages.saturating_sub(1).saturating_sub(at),
        false => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_asks_for_what_is_expected_then_for_less_and_then_for_more() {
        let mut ahead = Ahead::default();
        assert_eq!(ahead.begin(7, false, 100, 3), 7..11);
        (8..11).for_each(|at| assert!(ahead.enter(at, false, 100).is_empty()));
        assert_eq!(ahead.enter(11, false, 100), 11..13);
        assert_eq!(ahead.enter(12, false, 100), 13..17);
        (13..15).for_each(|at| assert!(ahead.enter(at, false, 100).is_empty()));
        assert_eq!(ahead.enter(15, false, 100), 17..25);
        assert_eq!(ahead.walked, 8);
    }

    #[test]
    fn every_page_is_asked_for_once_in_either_direction_and_none_beyond_the_end() {
        for (backward, begin) in [(false, 0u32), (true, 99)] {
            let (mut ahead, mut asked) = (Ahead::default(), Vec::new());
            asked.extend(ahead.begin(begin, backward, 100, 0));
            for step in 1..100 {
                let at = if backward { 99 - step } else { step };
                let request = ahead.enter(at, backward, 100);
                assert!(request.len() <= MOST as usize);
                asked.extend(request);
                assert!(asked.contains(&at), "page {at} is entered without having been asked for");
            }
            asked.sort_unstable();
            assert_eq!(asked, (0..100).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn a_long_walk_forwards_is_left_to_the_system_where_it_may_be() {
        let mut ahead = Ahead::default();
        ahead.begin(0, false, 1000, 0);
        let last = (1..1000).filter(|at| !ahead.enter(*at, false, 1000).is_empty()).last();
        assert!(last.is_some_and(|last| (LONG / 2..LONG).contains(&last)), "{last:?}");
        ahead.begin(999, true, 1000, 0);
        let last = (1..1000).filter(|step| !ahead.enter(999 - step, true, 1000).is_empty()).last();
        assert!(last.is_some_and(|last| last > 900), "{last:?}");
    }

    #[test]
    fn long_walks_side_by_side_ask_for_all_their_pages_and_for_less_at_once_the_more_they_are() {
        for (walks, most) in [(1, MOST_OF_LONG), (8, MOST_OF_LONG / 8), (1000, MOST)] {
            let mut ahead = Ahead { long: Long::walks(walks), ..Ahead::default() };
            ahead.begin(0, false, 1000, 0);
            let requests: Vec<usize> = (1..1000).map(|at| ahead.enter(at, false, 1000).len()).collect();
            assert_eq!(requests.iter().sum::<usize>(), 999);
            assert_eq!(requests.iter().max(), Some(&(most as usize)), "{walks}");
            assert!(requests[LONG as usize..].iter().all(|pages| *pages as u32 <= most.max(LEAST_OF_LONG)));
        }
    }

    #[test]
    fn a_walk_that_turns_or_jumps_begins_small_again() {
        let mut ahead = Ahead::default();
        ahead.begin(10, false, 100, 20);
        ahead.enter(11, false, 100);
        assert_eq!(ahead.enter(10, true, 100), 9..11);
        assert_eq!(ahead.enter(50, true, 100), 49..51);
    }
}
