//! How keys are read as numbers: what is in them at places where some of them, the samples, differ.
//!
//! ```text
//!   samples    tenant:0007:account:0000123     tenant:0932:account:0004711
//!   prefix     tenant:0
//!   pattern            007:account:0000123
//!   differs            xxx            xxxx
//!   number             007            0123  ...    sixteen bytes of those, padded with zeros
//! ```
//!
//! Numbers never fall as keys rise, whatever the keys: one that differs from the samples where they all are alike is read up to there, and
//! then as if all lesser, or all greater, bytes followed. So is one that lies below or above the prefix.

/// Longest prefix that is left out.
const MOST_PREFIX: usize = 64;
/// Bytes behind it that may be left out.
const PATTERN: usize = 64;
/// Bytes of a number.
const BYTES: usize = size_of::<u128>();

/// No key has this number.
pub(super) const NONE: u128 = u128::MAX;

#[derive(Clone, Debug)]
pub(super) struct Reading {
    prefix: [u8; MOST_PREFIX],
    prefix_len: usize,
    /// What the lowest sample has behind the prefix.
    pattern: [u8; PATTERN],
    /// At which of these places samples differ, from the lowest bit on. Where the lowest sample has ended they do.
    differs: u64,
}

impl Reading {
    /// For keys between these two.
    pub(super) fn of(low: &[u8], high: &[u8]) -> Reading {
        let mut reading = Reading { prefix: [0; MOST_PREFIX], prefix_len: 0, pattern: [0; PATTERN], differs: 0 };
        reading.prefix_len = low.iter().zip(high).take(MOST_PREFIX).take_while(|(a, b)| a == b).count();
        let (prefix, rest) = low.split_at(reading.prefix_len);
        reading.prefix.iter_mut().zip(prefix).for_each(|(to, byte)| *to = *byte);
        reading.pattern.iter_mut().zip(rest).for_each(|(to, byte)| *to = *byte);
        reading.differs = u64::MAX.checked_shl(rest.len() as u32).unwrap_or(0);
        reading.learn(high);
        reading
    }

    /// A key that lies between these two, number `part` of `parts`.
    pub(super) fn between(&self, low: &[u8], high: &[u8], part: u32, parts: u32) -> ([u8; MOST_PREFIX + BYTES], usize) {
        let [low, high] = [low, high].map(|key| packed(key.get(self.prefix_len..).unwrap_or_default()));
        let middle = low + high.saturating_sub(low) / u128::from(parts) * u128::from(part);
        let mut key = [0; MOST_PREFIX + BYTES];
        let bytes = self.prefix.iter().take(self.prefix_len).copied().chain(middle.to_be_bytes());
        key.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        (key, self.prefix_len + BYTES)
    }

    /// Another sample, between the two.
    pub(super) fn learn(&mut self, key: &[u8]) {
        for (at, (found, byte)) in self.pattern.iter().zip(key.iter().skip(self.prefix_len)).enumerate() {
            self.differs |= u64::from(found != byte) << at;
        }
    }

    /// Below [`NONE`].
    #[inline]
    pub(super) fn number(&self, key: &[u8]) -> u128 {
        let prefix = self.prefix.get(..self.prefix_len).unwrap_or_default();
        let Some(rest) = key.strip_prefix(prefix) else { return if key < prefix { 0 } else { NONE - 1 } };
        if self.differs.trailing_ones() as usize >= BYTES {
            return packed(rest).min(NONE - 1);
        }
        self.pick(rest).min(NONE - 1)
    }

    #[inline(never)]
    fn pick(&self, rest: &[u8]) -> u128 {
        let (mut number, mut free) = (0, u128::BITS);
        for (at, byte) in rest.iter().enumerate() {
            let alike = self.pattern.get(at).filter(|_| self.differs >> at & 1 == 0);
            match alike {
                Some(alike) if byte == alike => {}
                Some(alike) if byte < alike => break,
                Some(_) => return number | (NONE >> (u128::BITS - free)),
                None => {
                    free -= 8;
                    number |= u128::from(*byte) << free;
                }
            }
            if free == 0 {
                break;
            }
        }
        number
    }
}

/// The first bytes as a number.
#[inline]
fn packed(bytes: &[u8]) -> u128 {
    match bytes.first_chunk() {
        Some(bytes) => u128::from_be_bytes(*bytes),
        None => {
            let mut padded = [0; BYTES];
            padded.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
            u128::from_be_bytes(padded)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(mut state: u64) -> impl FnMut(usize) -> usize {
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        }
    }

    fn of(samples: &[Vec<u8>]) -> Reading {
        let mut reading = Reading::of(&samples[0], &samples[samples.len() - 1]);
        samples.iter().for_each(|key| reading.learn(key));
        reading
    }

    #[test]
    fn what_all_have_takes_no_place() {
        let key = |tenant: u64, account: u64| format!("tenant:{tenant:04}:account:{account:012}").into_bytes();
        let mut keys: Vec<_> = (0..900).map(|n| key(n % 90, n * 7_654_321)).collect();
        keys.sort();
        let reading = of(&keys);
        let numbers: std::collections::BTreeSet<_> = keys.iter().map(|key| reading.number(key)).collect();
        assert_eq!(numbers.len(), keys.len());
        // Lesser and greater than what all have.
        let [less, more] = ["tenant:0007 account", "tenant:0007~"].map(|key| reading.number(key.as_bytes()));
        assert!(less <= reading.number(&key(7, 0)) && reading.number(&key(7, 999_999_999_999)) <= more);
        assert!(reading.number(&key(6, 999_999_999_999)) <= less && more <= reading.number(&key(8, 0)));
    }

    #[test]
    fn a_key_between_lies_between() {
        for (low, high) in [(b"user:1".as_slice(), b"user:9".as_slice()), (b"", b"zz"), (b"abcdefgh", b"abcdefgi")] {
            let reading = Reading::of(low, high);
            for part in 1..8 {
                let (key, len) = reading.between(low, high, part, 8);
                assert!(low <= &key[..len] && &key[..len] <= high, "{part} of 8 between {low:?} and {high:?}");
            }
        }
    }

    /// Keys of few and many bytes and of several lengths; half of those asked about are unlike the samples.
    #[test]
    fn numbers_never_fall_as_keys_rise() {
        let mut random = random(5);
        for round in 0..if cfg!(miri) { 5 } else { 400 } {
            let (prefix, length, values) = (random(70), 1 + random(30), 1 + random(5));
            let constant: Vec<bool> = (0..100).map(|_| random(2) == 0).collect();
            let mut key = |wide: bool| -> Vec<u8> {
                let body = length - random(length.min(3));
                (0..prefix + body)
                    .map(|at| match wide && random(12) == 0 {
                        true => random(256) as u8,
                        false if at < prefix || constant[at - prefix] => 77,
                        false => 70 + 7 * random(values) as u8,
                    })
                    .collect()
            };
            let mut samples: Vec<_> = (0..2 + round % 40).map(|_| key(false)).collect();
            samples.sort();
            let reading = of(&samples);
            let mut asked: Vec<_> = (0..300).map(|n| key(n % 2 == 0)).chain(samples).collect();
            asked.sort();
            for pair in asked.windows(2) {
                let (a, b) = (reading.number(&pair[0]), reading.number(&pair[1]));
                assert!(a <= b && b < NONE, "{:?} has {a}, {:?} has {b}", pair[0], pair[1]);
            }
        }
    }
}
