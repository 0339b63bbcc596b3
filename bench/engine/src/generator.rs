//! The one source of keys, values and choices: every store is given the same ones, in the same order.
//!
//! Keys are 16 bytes. The micro workloads write even numbers in decimal, so that odd ones are absent keys that lie between
//! present ones: no store can refuse them by range. YCSB keys are "user" and twelve digits that scatter the record number.

pub const KEY_LEN: usize = 16;
pub type Key = [u8; KEY_LEN];

/// splitmix64: small, seedable, good enough to choose with.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform below `limit`, which must not be 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A bijection of 0..n that looks random: a four-round Feistel network, walked until it falls inside.
#[derive(Clone)]
pub struct Permutation {
    n: u64,
    half: u32,
    seed: u64,
}

impl Permutation {
    pub fn new(n: u64, seed: u64) -> Self {
        let bits = 64 - n.max(4).saturating_sub(1).leading_zeros();
        Self { n, half: bits.div_ceil(2), seed }
    }

    pub fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.n);
        let mask = (1_u64 << self.half) - 1;
        let mut value = index;
        loop {
            let (mut left, mut right) = (value >> self.half, value & mask);
            for round in 0..4 {
                let scrambled = mix(right ^ self.seed.wrapping_add(round << 56)) & mask;
                (left, right) = (right, left ^ scrambled);
            }
            value = (left << self.half) | right;
            if value < self.n {
                return value;
            }
        }
    }
}

/// The number in decimal, filling the key from `from` on.
fn digits(key: &mut Key, from: usize, mut number: u64) {
    for slot in key.iter_mut().skip(from).rev() {
        *slot = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

pub fn decimal_key(number: u64) -> Key {
    let mut key = [b'0'; KEY_LEN];
    digits(&mut key, 0, number);
    key
}

/// YCSB's hashed insert order, without its collisions.
pub struct UserKeys(Permutation);

impl UserKeys {
    pub fn new() -> Self {
        Self(Permutation::new(1_000_000_000_000, 7))
    }

    pub fn key(&self, record: u64) -> Key {
        let mut key = *b"user000000000000";
        digits(&mut key, 4, self.0.at(record));
        key
    }
}

/// Gray's Zipfian generator, as YCSB uses it: 0 is the most popular.
#[derive(Clone)]
pub struct Zipf {
    n: u64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    pub fn new(n: u64, theta: f64) -> Self {
        let zeta_of = |n: u64| (1..=n).map(|i| 1.0 / (i as f64).powf(theta)).sum::<f64>();
        let zeta = zeta_of(n);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - zeta_of(2) / zeta);
        Self { n, theta, alpha: 1.0 / (1.0 - theta), zeta, eta }
    }

    pub fn next(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5_f64.powf(self.theta) {
            return 1.min(self.n - 1);
        }
        ((self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64).min(self.n - 1)
    }

    /// Popularity spread over the whole key space instead of its beginning.
    pub fn scrambled(&self, random: &mut Random) -> u64 {
        mix(self.next(random).wrapping_add(0x5bd1_e995)) % self.n
    }
}

/// Values: slices of a pool whose 100-byte pieces compress to about `ratio`, headed by the number they belong to.
pub struct Values {
    pool: Vec<u8>,
    size: usize,
}

impl Values {
    const POOL: usize = 2 << 20;
    const PIECE: usize = 100;
    /// What heads a value, when it is long enough: the number of its key, for the reader to check.
    pub const HEAD: usize = 8;

    pub fn new(size: usize, ratio: f64) -> Self {
        let mut random = Random::new(301);
        let raw = ((Self::PIECE as f64 * ratio.clamp(0.01, 1.0)) as usize).max(1);
        let mut pool = Vec::with_capacity(Self::POOL + Self::PIECE);
        while pool.len() < Self::POOL {
            let piece: Vec<u8> = (0..raw).map(|_| b' ' + random.below(95) as u8).collect();
            pool.extend(piece.iter().cycle().take(Self::PIECE));
        }
        Self { pool, size }
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Fills `value` with what version `version` of key number `number` holds.
    pub fn fill(&self, number: u64, version: u64, value: &mut Vec<u8>) {
        let start = (mix(number ^ version.wrapping_mul(0x9e37_79b9)) % (self.pool.len() - self.size) as u64) as usize;
        value.clear();
        value.extend_from_slice(&self.pool[start..start + self.size]);
        if self.size >= Self::HEAD {
            value[..Self::HEAD].copy_from_slice(&number.to_le_bytes());
        }
    }

    /// Whether `value` can be what some version of key number `number` holds.
    pub fn check(&self, number: u64, value: &[u8]) -> bool {
        value.len() == self.size && (self.size < Self::HEAD || value[..Self::HEAD] == number.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutation_is_one_to_one() {
        for n in [1_u64, 2, 3, 100, 1000, 4097] {
            let permutation = Permutation::new(n, 42);
            let mut seen: Vec<u64> = (0..n).map(|i| permutation.at(i)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn keys_keep_the_order_of_numbers() {
        assert_eq!(&decimal_key(42), b"0000000000000042");
        assert!(decimal_key(99) < decimal_key(100));
        assert_ne!(UserKeys::new().key(1), UserKeys::new().key(2));
    }

    #[test]
    fn zipf_favours_the_first() {
        let zipf = Zipf::new(1000, 0.99);
        let mut random = Random::new(1);
        let mut counts = vec![0_u32; 1000];
        for _ in 0..100_000 {
            counts[zipf.next(&mut random) as usize] += 1;
        }
        // 1 / zeta(1000, 0.99) of all choices, about 13 %.
        assert!((12_000..15_000).contains(&counts[0]), "{}", counts[0]);
        assert!(counts[0] > counts[1] && counts[1] > counts[10] && counts[10] > counts[500]);
    }

    #[test]
    fn values_are_checked_by_their_head() {
        let values = Values::new(100, 0.5);
        let mut value = Vec::new();
        values.fill(7, 1, &mut value);
        assert_eq!(value.len(), 100);
        assert!(values.check(7, &value) && !values.check(8, &value) && !values.check(7, &value[1..]));
    }
}
