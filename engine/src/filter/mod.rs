//! Filters: whether a run may hold a key, answered from a few neighbouring bytes of one page.
//!
//! ```text
//! contents of a filter page:
//!   0      1               2          24
//!   | kind | probes, width | reserved | what the kind has (8128 bytes) |
//! ```
//!
//! The hash of a key picks one of the run's filter pages ([`page_of`]), and where to look on it, so that a probe reads one page. There
//! are two kinds of them: [`bloom`] for new runs and [`ribbon`] for settled ones.

use crate::error::{Error, Result};
use crate::page::{PageBuf, CAPACITY, CONTENT};
use crate::run::aside::{Entry, Sorter};
use crate::run::PageSink;
use crate::types::PageNo;

pub mod bloom;
pub mod ribbon;

/// What the page has after its head.
const HEADER: usize = 24;
const SPACE: usize = CAPACITY - HEADER;

/// How the filter of a run is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilterKind {
    /// Quickly made and asked: one cache line.
    Bloom = 1,
    /// Fewer false answers of as many bits.
    Ribbon = 2,
}

const BLOOM: u8 = FilterKind::Bloom as u8;
const RIBBON: u8 = FilterKind::Ribbon as u8;

const SECRET: [u64; 3] = [0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db, 0x8ebc_6af0_9c88_c6e3];
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// The hash of a key. It is part of the format of filters: it never changes. Row locks go by it, too: two keys of one hash share theirs.
///
/// Multiply-and-fold over pairs of words, as wyhash does it; the last pair overlaps the one before when the key's
/// length is not a multiple of sixteen.
#[allow(clippy::indexing_slicing, reason = "within the length that the branch has just compared")]
#[inline]
pub fn key_hash(key: &[u8]) -> u64 {
    let n = key.len();
    let mut state = SECRET[0];
    let (a, b) = if n <= 16 {
        if n >= 8 {
            (word(key), word(&key[n - 8..]))
        } else {
            (word(key), 0)
        }
    } else {
        let mut rest = key;
        while rest.len() > 16 {
            let (pair, tail) = rest.split_at(16);
            state = mix(word(pair) ^ SECRET[1], word(&pair[8..]) ^ state);
            rest = tail;
        }
        (word(&key[n - 16..]), word(&key[n - 8..]))
    };
    mix(SECRET[2] ^ n as u64, mix(a ^ SECRET[1], b ^ state))
}

/// Which of `pages` filter pages knows of this hash.
#[inline]
pub fn page_of(hash: u64, pages: u32) -> u32 {
    ((u128::from(hash) * u128::from(pages)) >> 64) as u32
}

/// What the hash says of the place on its page, as a fraction of 2^64. Uses hash bits below those that picked the page.
#[inline]
fn within(hash: u64, pages: u32) -> u64 {
    hash.wrapping_mul(u64::from(pages))
}

/// Where on its page a probe looks: in this cache line or the one before, where it begins. Never in the first of the page.
#[inline]
pub fn place_of(hash: u64, pages: u32) -> usize {
    CONTENT + HEADER + ((u128::from(within(hash, pages)) * SPACE as u128) >> 64) as usize
}

/// Collects the hashes of a run's keys and makes the filter pages of them.
pub struct FilterBuilder {
    hashes: Sorter<u64>,
    kind: FilterKind,
    bits_per_key: u32,
}

impl Entry for u64 {
    type Bytes = [u8; 8];

    fn bytes(self) -> [u8; 8] {
        self.to_le_bytes()
    }

    fn rank(self) -> u64 {
        self
    }

    fn read(bytes: &[u8]) -> u128 {
        bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)).into()
    }
}

impl FilterBuilder {
    /// With no bits there is no filter. `memory`: how many bytes may be taken before the hashes go to a side file.
    pub fn new(kind: FilterKind, bits_per_key: u32, memory: usize) -> FilterBuilder {
        FilterBuilder { hashes: Sorter::new(memory), kind, bits_per_key }
    }

    pub fn add(&mut self, hash: u64, sink: &impl PageSink) -> Result<()> {
        if self.bits_per_key > 0 {
            self.hashes.add(hash, sink)?;
        }
        Ok(())
    }

    /// Pages that the filter will have.
    pub fn pages(&self) -> u32 {
        let bits = self.hashes.len() * u64::from(self.bits_per_key);
        bits.div_ceil(SPACE as u64 * 8) as u32
    }

    /// Makes the pages one by one, in order; `put` is given each page's contents.
    pub fn finish(mut self, mut put: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (pages, kind, bits_per_key) = (self.pages(), self.kind, self.bits_per_key);
        let mut contents = Box::new([0u8; CAPACITY]);
        let mut make = |hashes: &[u64]| {
            contents.fill(0);
            let second = match kind {
                FilterKind::Bloom => bloom::make(hashes, pages, bits_per_key, &mut contents),
                FilterKind::Ribbon => ribbon::make(hashes, pages, bits_per_key, &mut contents),
            };
            let [first_byte, second_byte, ..] = &mut *contents;
            (*first_byte, *second_byte) = (kind as u8, second);
            put(contents.as_slice())
        };
        if let Some(mut hashes) = self.hashes.by_group(pages as usize, |hash| page_of(hash, pages) as usize) {
            return (0..pages as usize).try_for_each(|page| make(hashes.get(page)));
        }
        let mut hashes = self.hashes.finish()?;
        let mut next = hashes.next()?;
        let mut of_page = Vec::new();
        for page in 0..pages {
            of_page.clear();
            while let Some(hash) = next.map(|hash| hash as u64).filter(|hash| page_of(*hash, pages) <= page) {
                of_page.push(hash);
                next = hashes.next()?;
            }
            make(&of_page)?;
        }
        debug_assert!(next.is_none());
        Ok(())
    }
}

/// Whether these are the contents of a page of a ribbon filter.
pub fn is_ribbon(contents: &[u8]) -> bool {
    contents.first() == Some(&RIBBON)
}

/// Whether the key with this hash may be in the run; `contents` are those of page [`page_of`] of the filter.
#[inline]
pub fn probe(page: PageNo, contents: &[u8], hash: u64, pages: u32) -> Result<bool> {
    match contents.first_chunk::<CAPACITY>() {
        Some(contents @ [BLOOM, probes, ..]) if bloom::is_valid(*probes) => {
            Ok(bloom::probe(contents, *probes, hash, pages))
        }
        Some(contents @ [RIBBON, width, ..]) if ribbon::is_valid(*width) => {
            Ok(ribbon::probe(contents, *width, hash, pages))
        }
        Some([kind, second, ..]) => {
            Err(Error::page(page, CONTENT, format!("unknown filter kind {kind} with {second} probes")))
        }
        _ => Err(Error::page(page, CONTENT, "filter page is cut off")),
    }
}

/// For fuzzing: probes arbitrary contents.
pub fn fuzz_filter(bytes: &[u8]) {
    let mut page = PageBuf::ZERO;
    let bytes = bytes.get(..CAPACITY).unwrap_or(bytes);
    if page.fill(bytes).is_ok() {
        for hash in [0, 1, u64::MAX, key_hash(bytes)] {
            let _ = probe(PageNo(0), bytes, hash, 3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::Pages;
    use std::collections::HashSet;

    const KINDS: [FilterKind; 2] = [FilterKind::Bloom, FilterKind::Ribbon];

    fn build(kind: FilterKind, hashes: &[u64], bits: u32, memory: usize) -> Vec<Vec<u8>> {
        let (mut builder, side) = (FilterBuilder::new(kind, bits, memory), Pages::default());
        hashes.iter().for_each(|hash| builder.add(*hash, &side).unwrap());
        let expected = builder.pages();
        let mut pages = Vec::new();
        builder
            .finish(|contents| {
                pages.push(contents.to_vec());
                Ok(())
            })
            .unwrap();
        assert_eq!(pages.len(), expected as usize);
        pages
    }

    fn hashes(numbers: std::ops::Range<u64>) -> Vec<u64> {
        numbers.map(|i| key_hash(&i.to_be_bytes())).collect()
    }

    fn ask(pages: &[Vec<u8>], hash: u64) -> bool {
        let page = page_of(hash, pages.len() as u32);
        probe(PageNo(page), &pages[page as usize], hash, pages.len() as u32).unwrap()
    }

    // Changing any of these numbers is a new format version.
    #[test]
    fn golden_hashes() {
        let long: Vec<u8> = (0..100).collect();
        let found: Vec<u64> =
            [&b""[..], b"a", b"1234567", b"12345678", b"0123456789abcdef", b"0123456789abcdefg", &long]
                .iter()
                .map(|key| key_hash(key))
                .collect();
        assert_eq!(found, GOLDEN_HASHES);
    }

    #[test]
    fn hashes_of_near_keys_differ() {
        let hashes: HashSet<u64> = (0u32..100_000).map(|i| key_hash(&i.to_be_bytes()) >> 33).collect();
        assert!(hashes.len() > 99_990);
        assert_ne!(key_hash(b"a"), key_hash(b"a\0"));
    }

    #[test]
    fn hashes_of_keys_of_unlike_lengths_differ() {
        let mut keys: Vec<Vec<u8>> = vec![vec![]];
        for length in 1..=6 {
            let longer = |key: &Vec<u8>| (0..5).map(|byte| [key.as_slice(), &[byte]].concat()).collect::<Vec<_>>();
            let all: Vec<Vec<u8>> = keys.iter().filter(|key| key.len() == length - 1).flat_map(longer).collect();
            keys.extend(all);
        }
        let hashes: HashSet<u64> = keys.iter().map(|key| key_hash(key)).collect();
        assert_eq!(hashes.len(), keys.len());
    }

    const GOLDEN_HASHES: [u64; 7] = [
        0xa550_6ff5_2926_ac13,
        0xe249_2180_f9bc_29c4,
        0x9501_8d20_7a3b_a6ba,
        0x6132_b3b6_bc39_5efc,
        0xe609_3a35_da64_e5d3,
        0x9643_9445_669f_9e80,
        0x7483_6a08_26c9_7007,
    ];

    fn not_nil(page: &[u8]) -> Vec<(usize, u8)> {
        page.iter().enumerate().filter(|(_, b)| **b != 0).map(|(i, b)| (i, *b)).collect()
    }

    // Changing these bytes is a new format version.
    #[test]
    fn golden_pages() {
        let hashes = [key_hash(b"a"), key_hash(b"b")];
        let pages = build(FilterKind::Bloom, &hashes, 10, usize::MAX);
        assert_eq!(pages.len(), 1);
        assert_eq!(not_nil(&pages[0]), GOLDEN_PAGE);
        let pages = build(FilterKind::Ribbon, &hashes, 10, usize::MAX);
        assert_eq!(pages.len(), 1);
        assert_eq!(pages[0][..HEADER], [&[2, 10][..], &[0; 22]].concat());
        assert_eq!(key_hash(&pages[0]), GOLDEN_RIBBON);
    }

    /// The hash of the page.
    const GOLDEN_RIBBON: u64 = 0xf6e1_b431_15c7_89bb;

    const GOLDEN_PAGE: &[(usize, u8)] = &[
        (0, 1),
        (1, 6),
        (167, 4),
        (175, 4),
        (192, 2),
        (196, 1),
        (203, 1),
        (212, 1),
        (7203, 4),
        (7209, 132),
        (7216, 1),
        (7221, 32),
        (7224, 64),
    ];

    #[test]
    fn finds_every_key_and_few_others() {
        use FilterKind::{Bloom, Ribbon};
        let (here, elsewhere) = (hashes(0..100_000), hashes(100_000..600_000));
        for (kind, bits, most) in [
            (Bloom, 10u32, 0.013),
            (Bloom, 16, 0.003),
            (Ribbon, 1, 0.6),
            (Ribbon, 5, 0.07),
            (Ribbon, 10, 0.003),
            (Ribbon, 16, 0.0001),
            (Ribbon, 30, 0.00001),
        ] {
            let pages = build(kind, &here, bits, usize::MAX);
            assert!(here.iter().all(|hash| ask(&pages, *hash)), "{kind:?}, {bits} bits");
            let wrong = elsewhere.iter().filter(|hash| ask(&pages, **hash)).count();
            let rate = wrong as f64 / elsewhere.len() as f64;
            assert!(rate < most, "{kind:?}, {bits} bits a key: {rate}");
        }
    }

    /// However many keys a page gets, and however often the same hash.
    #[test]
    fn finds_every_key_of_a_full_page() {
        for keys in [1, 2, 63, 64, 1000, 6502, 7000, 8128, 9000, 20_000] {
            let mut here = hashes(0..keys);
            here.extend_from_within(..here.len().min(100));
            for kind in KINDS {
                let mut contents = Box::new([0; CAPACITY]);
                let ask: &dyn Fn(&[u8; CAPACITY], u64) -> bool = match kind {
                    FilterKind::Bloom => {
                        let probes = bloom::make(&here, 1, 10, &mut contents);
                        &move |contents, hash| bloom::probe(contents, probes, hash, 1)
                    }
                    FilterKind::Ribbon => {
                        let width = ribbon::make(&here, 1, 10, &mut contents);
                        &move |contents, hash| ribbon::probe(contents, width, hash, 1)
                    }
                };
                assert!(here.iter().all(|hash| ask(&contents, *hash)), "{kind:?}, {keys} keys");
            }
        }
    }

    #[test]
    fn finds_every_key_with_little_memory() {
        let here = hashes(0..50_000);
        for kind in KINDS {
            let pages = build(kind, &here, 10, 4096);
            assert!(here.iter().all(|hash| ask(&pages, *hash)), "{kind:?}");
        }
    }

    #[test]
    fn no_bits_no_pages() {
        for kind in KINDS {
            assert!(build(kind, &hashes(0..1), 0, usize::MAX).is_empty());
            assert!(build(kind, &[], 10, usize::MAX).is_empty());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        for n in 0..200 {
            fuzz_filter(&vec![n as u8; n]);
        }
        fuzz_filter(&[1; 8152]);
    }
}
