//! Words of keys: eight bytes by which a merge compares keys, before it looks at the keys themselves.
//!
//! They are taken from where keys first may differ: what all keys have in common, digits or the tenant's number, tells nothing.
//! A word never goes down while keys go up; keys with equal words have to be compared.

use crate::run::shared_prefix;
use crate::tree::version::SuperVersion;
use std::cmp::Ordering;
use std::ops::Bound;

#[derive(Default)]
pub(super) struct Words {
    /// What the keys begin with.
    common: Vec<u8>,
}

impl Words {
    /// For the keys of these runs.
    pub fn of_runs(view: &SuperVersion, runs: impl Iterator<Item = usize>) -> Words {
        let mut common: Option<&[u8]> = None;
        for run in runs.filter_map(|at| view.runs.get(at)) {
            for key in [run.shape.min_key.as_slice(), run.shape.max_key.as_slice()] {
                let length = common.map_or(key.len(), |common| shared_prefix(common, key));
                common = key.get(..length);
            }
            if common.is_none_or(<[u8]>::is_empty) {
                break;
            }
        }
        Words { common: common.unwrap_or_default().to_vec() }
    }

    /// Only keys between these are wanted.
    pub fn narrow(&mut self, lower: &Bound<Vec<u8>>, upper: &Bound<Vec<u8>>) {
        let (Some(lower), Some(upper)) = (bytes(lower), bytes(upper)) else { return };
        let length = shared_prefix(lower, upper);
        if length > self.common.len() {
            self.common.clear();
            self.common.extend_from_slice(lower.get(..length).unwrap_or_default());
        }
    }

    /// Whether so long a beginning of a key is what the keys have in common. (Comparing no bytes, at an address where there is nothing,
    /// takes some processors a hundred nanoseconds.)
    #[inline]
    fn is_common(&self, head: &[u8]) -> bool {
        self.common.is_empty() || head == self.common
    }

    #[inline]
    pub fn word(&self, key: &[u8]) -> u64 {
        match key.split_at_checked(self.common.len()) {
            Some((head, rest)) if self.is_common(head) => first_bytes(rest),
            _ => self.beside(key.cmp(&self.common)),
        }
    }

    /// Of a key in two pieces.
    #[inline]
    pub fn word_of_pieces(&self, (first, rest): (&[u8], &[u8])) -> u64 {
        match first.split_at_checked(self.common.len()) {
            Some((head, first)) if self.is_common(head) => joined(first_bytes(first), first.len(), rest),
            _ => self.word_across((first, rest)),
        }
    }

    /// What the pieces have in common with the keys may end in the second one.
    fn word_across(&self, (first, rest): (&[u8], &[u8])) -> u64 {
        match self.common.split_at_checked(first.len()) {
            Some((head, tail)) if head == first => match rest.split_at_checked(tail.len()) {
                Some((found, rest)) if found == tail => first_bytes(rest),
                _ => self.beside(rest.cmp(tail)),
            },
            _ => self.beside(first.cmp(&self.common)),
        }
    }

    /// The words of many keys that begin with `first`.
    pub fn of_page<'a>(&self, first: &'a [u8], rest: impl Iterator<Item = &'a [u8]>, words: &mut Vec<u64>) {
        match first.split_at_checked(self.common.len()) {
            Some((head, first)) if self.is_common(head) => {
                let (word, length) = (first_bytes(first), first.len());
                words.extend(rest.map(|rest| joined(word, length, rest)));
            }
            _ => words.extend(rest.map(|rest| self.word_across((first, rest)))),
        }
    }

    /// The word of a key that does not begin as the others do.
    #[cold]
    fn beside(&self, order: Ordering) -> u64 {
        if order == Ordering::Less {
            0
        } else {
            u64::MAX
        }
    }
}

fn bytes(bound: &Bound<Vec<u8>>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

/// Zero-padded, big-endian.
#[inline]
fn first_bytes(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk() {
        return u64::from_be_bytes(*first);
    }
    // Of a short key, both halves at once, or the first, the middle and the last byte; where they overlap they say the same.
    let length = key.len();
    match (key.first_chunk(), key.last_chunk(), key) {
        (Some(first), Some(last), _) => {
            u64::from(u32::from_be_bytes(*first)) << 32 | u64::from(u32::from_be_bytes(*last)) << (64 - 8 * length)
        }
        (_, _, [first, .., last]) => {
            let middle = key.get(length / 2).copied().unwrap_or(0);
            u64::from(*first) << 56
                | u64::from(middle) << (56 - 8 * (length / 2))
                | u64::from(*last) << (64 - 8 * length)
        }
        (_, _, [only]) => u64::from(*only) << 56,
        _ => 0,
    }
}

/// The word of a key of which the first bytes, `length` of them, are in `word`.
#[inline]
fn joined(word: u64, length: usize, rest: &[u8]) -> u64 {
    word | first_bytes(rest).checked_shr(8 * length as u32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way to make a word of a key makes the same, and words are in the order of the keys.
    #[test]
    fn words_are_in_the_order_of_the_keys() {
        let mut keys: Vec<Vec<u8>> = vec![vec![]];
        for length in 1..=6 {
            let longer = |key: &Vec<u8>| [0u8, 1, 255].map(|byte| [key.as_slice(), &[byte]].concat());
            let all: Vec<Vec<u8>> = keys.iter().filter(|key| key.len() == length - 1).flat_map(longer).collect();
            keys.extend(all);
        }
        keys.extend(keys.clone().into_iter().map(|key| [b"0123456789".as_slice(), &key].concat()));
        keys.sort();
        keys.dedup();
        for common in [&b""[..], &[1], &[1, 255], &[0, 0, 255], b"01234", b"0123456789", &[255, 255, 255]] {
            let words = Words { common: common.to_vec() };
            let all: Vec<u64> = keys.iter().map(|key| words.word(key)).collect();
            assert!(all.is_sorted(), "beginning with {common:?}");
            for (key, word) in keys.iter().zip(all) {
                for at in 0..=key.len() {
                    let (first, rest) = key.split_at(at);
                    assert_eq!(words.word_of_pieces((first, rest)), word, "{first:?} {rest:?}, {common:?}");
                    let mut page = Vec::new();
                    words.of_page(first, [rest].into_iter(), &mut page);
                    assert_eq!(page, [word], "{first:?} {rest:?}, {common:?}");
                }
            }
        }
    }

    #[test]
    fn bounds_may_tell_more_than_runs() {
        let included = |key: &[u8]| Bound::Included(key.to_vec());
        let mut words = Words { common: b"ab".to_vec() };
        words.narrow(&included(b"abc1"), &Bound::Unbounded);
        assert_eq!(words.common, b"ab");
        words.narrow(&included(b"a1"), &Bound::Excluded(b"a2".to_vec()));
        assert_eq!(words.common, b"ab");
        words.narrow(&included(b"abc1"), &Bound::Excluded(b"abc2".to_vec()));
        assert_eq!(words.common, b"abc");
        assert_eq!(words.word(b"abc2"), u64::from(b'2') << 56);
        assert_eq!((words.word(b"abd"), words.word(b"abb"), words.word(b"ab")), (u64::MAX, 0, 0));
    }
}
