//! Which keys of a list a reader asks for before it comes to them, so that the device has many to bring at once.
//!
//! ```text
//! at 0: read.  It waited.  at 1: asks for [2 3 4 5], reads 1.   at 3: [6 .. 11]   at 7: [12 .. 23] ...
//! ```
//!
//! Nothing is asked for while the pages are in memory. How many are asked for doubles from time to time, up to a bound, for the reader may
//! not come to the end of the list; and is halved where no page had to be fetched since the last time.

use std::ops::Range;

/// Most keys that are asked for ahead of the one that is read, if nothing else is said; and the fewest.
const MOST: usize = 32;
const FEWEST: usize = 4;

/// What was asked for, of one list.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    most: usize,
    /// Keys that are asked for ahead.
    window: usize,
    /// The first that was not asked for.
    until: usize,
    /// What the host had fetched then.
    fetched: Option<u64>,
}

impl Default for Asking {
    fn default() -> Asking {
        Asking::of_up_to(MOST)
    }
}

impl Asking {
    /// For so many keys ahead of the one that is read, at most.
    pub fn of_up_to(most: usize) -> Asking {
        Asking { most, window: 0, until: 0, fetched: None }
    }

    /// The reader comes to the key with this number of so many; `fetched`: what the host has fetched so far
    /// ([`crate::host::Host::pages_fetched`]). The numbers of those to ask for.
    #[inline]
    pub fn come_to(&mut self, number: usize, keys: usize, fetched: u64) -> Range<usize> {
        let next = number + 1;
        let from = self.until.max(next);
        if from - next > self.window / 2 {
            return next..next;
        }
        self.window = match self.fetched.replace(fetched).is_some_and(|before| before != fetched) {
            true => (2 * self.window).clamp(FEWEST, self.most),
            false => self.window / 2,
        };
        self.until = (next + self.window).min(keys).max(from);
        from..self.until
    }

    /// For another list, of which as much is asked for ahead as of this one at last.
    pub fn anew(self) -> Asking {
        Asking { until: 0, ..self }
    }

    /// How many keys may be read at once from this one on, of so many: others are on their way meanwhile.
    pub fn at_once(&self, number: usize, most: usize) -> usize {
        match self.window {
            0 => most,
            _ => (self.until.saturating_sub(number) / 2).clamp(1, most.max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is asked for at each key where these had to be fetched.
    fn asked(keys: usize, has_to_fetch: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
        let (mut asking, mut fetched) = (Asking::default(), 7);
        let come_to = |number| {
            let asked = asking.come_to(number, keys, fetched);
            fetched += u64::from(has_to_fetch(number));
            asked
        };
        (0..keys).map(come_to).collect()
    }

    #[test]
    fn nothing_is_asked_for_in_memory() {
        assert!(asked(100, |_| false).iter().all(Range::is_empty));
    }

    #[test]
    fn each_key_is_asked_for_once_before_it_is_read_and_ever_more_at_once() {
        let asked = asked(200, |_| true);
        assert_eq!(asked[0..2], [1..1, 2..6]);
        let mut until = 2;
        for (number, range) in asked.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            assert_eq!(range.start, until, "{asked:?}");
            assert!(range.start > number && range.end <= number + 1 + MOST, "{asked:?}");
            until = range.end;
        }
        assert_eq!(until, 200);
        assert!(asked.iter().any(|range| range.len() > MOST / 2));
        assert!(asked.iter().filter(|range| !range.is_empty()).count() < 20, "{asked:?}");
    }

    #[test]
    fn keys_are_read_at_once_that_were_asked_for_before() {
        let (mut asking, mut fetched, mut number, mut until) = (Asking::default(), 0, 0, 0);
        while number < 500 {
            until = asking.come_to(number, 500, fetched).end.max(until);
            let count = asking.at_once(number, if number == 0 { 1 } else { 100 });
            assert!(number == 0 || number + count <= until.max(number + 1), "{number} {count} {until}");
            assert!(
                number < 100 || until == 500 || (until - number - count >= 8 && count >= 8),
                "{number} {count} {until}"
            );
            (number, fetched) = (number + count, fetched + count as u64);
        }
        assert_eq!(Asking::default().at_once(7, 100), 100);
    }

    #[test]
    fn it_ends_where_pages_are_in_memory_again() {
        let asked = asked(300, |number| number < 100);
        assert!(asked[..100].iter().any(|range| !range.is_empty()));
        assert!(asked[200..].iter().all(Range::is_empty), "{asked:?}");
    }

    #[test]
    fn a_short_list_is_no_more_than_it_is() {
        assert!(asked(1, |_| true).iter().all(Range::is_empty));
        assert_eq!(asked(3, |_| true), [1..1, 2..3, 3..3]);
    }
}
