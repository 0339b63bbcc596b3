//! A scale: how far up a line of numbers a key belongs, learned from keys like it.
//!
//! ```text
//!   key:      | prefix that all have | byte | byte | byte | ... |
//!   rank:                            | r0   | r1   | r2   |          of so many values that were seen at this place
//!   number:    r0 * (values of places 1, 2, ...) + r1 * (values of places 2, ...) + ...
//! ```
//!
//! Random bytes are spread evenly along a line as they are. Digits are not: between '9' of one place and '0' of the next lie most of a
//! byte's values, and nothing is there. By their ranks they are.
//!
//! Numbers never fall as keys rise, whatever the keys: one that lies below or above the prefix gets the least or the greatest
//! number, and a byte that was not seen at its place the least number of the next one that was.

use super::node::first_word;

/// Longest prefix that is left out.
const MOST_PREFIX: usize = 64;
/// Places with ranks.
const PLACES: usize = 12;
/// Numbers that tell apart enough.
const ENOUGH: u64 = 1 << 32;
/// A place at which so many values were seen has all of them, most likely.
const ALL: u64 = 128;

pub(super) struct Scale {
    prefix: [u8; MOST_PREFIX],
    prefix_len: usize,
    /// How many places have ranks; 0: bytes are as good.
    places: usize,
    ranks: [Ranks; PLACES],
}

/// The values at one place.
#[derive(Clone, Copy)]
struct Ranks {
    seen: [u64; 4],
    values: u64,
    /// Numbers for each of them.
    weight: u64,
    /// How many of those seen are below a byte.
    below: [u8; 256],
}

const NOTHING_SEEN: Ranks = Ranks { seen: [0; 4], values: 0, weight: 0, below: [0; 256] };

impl Scale {
    /// A scale for keys like these, which come in order.
    pub(super) fn of<'k>(keys: impl Iterator<Item = &'k [u8]> + Clone) -> Scale {
        let (prefix, ranks) = ([0; MOST_PREFIX], [NOTHING_SEEN; PLACES]);
        let mut scale = Scale { prefix, prefix_len: 0, places: 0, ranks };
        let (Some(first), Some(last)) = (keys.clone().next(), keys.clone().last()) else { return scale };
        let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        scale.prefix_len = common.min(MOST_PREFIX);
        for (to, from) in scale.prefix.iter_mut().zip(first).take(scale.prefix_len) {
            *to = *from;
        }
        for key in keys {
            for (ranks, byte) in scale.ranks.iter_mut().zip(key.iter().skip(scale.prefix_len)) {
                ranks.see(*byte);
            }
        }
        scale.places = scale.places_needed();
        let mut weight = 1;
        for ranks in scale.ranks.iter_mut().take(scale.places).rev() {
            ranks.finish(weight);
            weight *= ranks.values;
        }
        scale
    }

    /// How many places tell enough keys apart; 0: from the second place on there are all values, and bytes do as they are.
    fn places_needed(&self) -> usize {
        let mut numbers = 1u64;
        for (at, ranks) in self.ranks.iter().enumerate() {
            let values = ranks.count();
            if values == 0 || numbers >= ENOUGH {
                return at;
            }
            if at == 1 && values > ALL {
                return 0;
            }
            numbers *= values;
        }
        PLACES
    }

    #[inline]
    pub(super) fn number(&self, key: &[u8]) -> u64 {
        let prefix = self.prefix.get(..self.prefix_len).unwrap_or_default();
        let Some(rest) = key.strip_prefix(prefix) else { return if key < prefix { 0 } else { u64::MAX } };
        if self.places == 0 {
            return first_word(rest);
        }
        let mut number = 0;
        for (ranks, byte) in self.ranks.iter().take(self.places).zip(rest) {
            let below = ranks.below.get(usize::from(*byte)).copied().map_or(0, u64::from);
            number += below * ranks.weight;
            if !ranks.has(*byte) {
                // Above all that were seen: the greatest number of the greatest.
                return number - u64::from(below == ranks.values);
            }
        }
        number
    }
}

impl Ranks {
    fn see(&mut self, byte: u8) {
        if let Some(word) = self.seen.get_mut(usize::from(byte >> 6)) {
            *word |= 1 << (byte & 63);
        }
    }

    #[inline]
    fn has(&self, byte: u8) -> bool {
        self.seen.get(usize::from(byte >> 6)).is_some_and(|word| word >> (byte & 63) & 1 != 0)
    }

    fn count(&self) -> u64 {
        self.seen.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// No more is to be seen.
    fn finish(&mut self, weight: u64) {
        (self.values, self.weight) = (self.count(), weight);
        let mut below = 0u8;
        for byte in 0..=u8::MAX {
            if let Some(at) = self.below.get_mut(usize::from(byte)) {
                *at = below;
            }
            below = below.saturating_add(u8::from(self.has(byte)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(keys: &[Vec<u8>]) -> Scale {
        Scale::of(keys.iter().map(Vec::as_slice))
    }

    /// Random numbers below a bound, the same each time.
    fn random(mut state: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }

    #[test]
    fn digits_are_spread_evenly() {
        let keys: Vec<Vec<u8>> = (0..1000).map(|n| format!("{:016}", n * 4321).into_bytes()).collect();
        let scale = scale(&keys);
        let of = |n: u64| scale.number(format!("{n:016}").as_bytes()) as f64;
        let (least, most) = (of(0), of(4_320_000));
        for n in (0..4_320_000).step_by(997) {
            let part = (of(n) - least) / (most - least);
            assert!((part - n as f64 / 4_320_000.0).abs() < 0.001, "{n} is at {part}");
        }
        assert_eq!(of(10_000_000) as u64, u64::MAX, "beyond the prefix");
    }

    #[test]
    fn random_bytes_are_taken_as_they_are() {
        let mut random = random(3);
        let mut keys: Vec<Vec<u8>> = (0..1000).map(|_| (0..16).map(|_| random(256) as u8).collect()).collect();
        keys.sort();
        let scale = scale(&keys);
        assert!(keys.iter().all(|key| scale.number(key) == first_word(key)));
        keys.iter_mut().for_each(|key| {
            key.splice(0..0, *b"before all: ");
        });
        let scale = super::tests::scale(&keys);
        assert!(keys.iter().all(|key| scale.number(key) == first_word(&key[12..])));
        assert_eq!((scale.number(b"before"), scale.number(b"before all; ")), (0, u64::MAX));
    }

    /// Keys of several alphabets and lengths; half of those asked about have bytes that the scale has not seen.
    #[test]
    fn numbers_never_fall_as_keys_rise() {
        let mut random = random(7);
        for round in 0..if cfg!(miri) { 3 } else { 200 } {
            let (first, values) = (random(200), 1 + random(56));
            let shortest = random(12);
            let mut key = |wide: bool| -> Vec<u8> {
                let length = shortest + random(6);
                let low = |random: &mut dyn FnMut(u64) -> u64| first + 3 * random(values) % 56;
                (0..length).map(|_| if wide && random(4) == 0 { random(256) } else { low(&mut random) } as u8).collect()
            };
            let mut seen: Vec<Vec<u8>> = (0..round * 5).map(|_| key(false)).collect();
            seen.sort();
            let scale = scale(&seen);
            let mut asked: Vec<Vec<u8>> = (0..500).map(|n| key(n % 2 == 0)).chain(seen).collect();
            asked.sort();
            for pair in asked.windows(2) {
                let (a, b) = (scale.number(&pair[0]), scale.number(&pair[1]));
                assert!(a <= b, "{:?} has {a}, {:?} has {b}", pair[0], pair[1]);
            }
        }
    }
}
