//! Filters: whether a run may hold a key, answered from one cache line of one page.
//!
//! ```text
//! filter page contents:
//!   0      1        2          8         24
//!   | kind | probes | reserved | ignored | 127 blocks of 64 bytes |
//! ```
//!
//! A blocked Bloom filter laid over whole pages: the hash of a key picks a page, a block of that page (512 bits, aligned to
//! a cache line as the page is), and the bits in it. The kind byte leaves room for other filters; whatever their kind, the page is
//! picked in the same way ([`page_of`]), so that a probe reads one page.

use crate::error::{Error, Result};
use crate::page::{PageBuf, CONTENT};
use crate::run::aside::{Entry, Sorter};
use crate::run::PageSink;
use crate::types::{PageNo, PAGE_SIZE};

/// Blocked Bloom filter.
pub const KIND_BLOCKED_BLOOM: u8 = 1;

const BLOCK: usize = 64;
/// First block of a page, counted from the start of the page.
const BLOCKS_AT: usize = 64;
const HEADER: usize = BLOCKS_AT - CONTENT;
const BLOCKS_PER_PAGE: usize = (PAGE_SIZE - BLOCKS_AT) / BLOCK;
const CONTENTS: usize = HEADER + BLOCKS_PER_PAGE * BLOCK;
const MAX_PROBES: u8 = 16;

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

/// The hash of a key. It is part of the format of filters: it never changes.
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

/// Which block of its page, of those that a page has. Uses hash bits below those that picked the page.
#[inline]
fn block_of(hash: u64, pages: u32) -> usize {
    let within = hash.wrapping_mul(u64::from(pages));
    ((u128::from(within) * BLOCKS_PER_PAGE as u128) >> 64) as usize
}

/// Where on its page a probe looks.
#[inline]
pub fn place_of(hash: u64, pages: u32) -> usize {
    BLOCKS_AT + block_of(hash, pages) * BLOCK
}

/// The nine-bit numbers of the bits in a block, one after the other.
#[inline]
fn bits_of(hash: u64, probes: u8) -> impl Iterator<Item = usize> {
    let mut state = (hash ^ hash >> 32).wrapping_mul(SECRET[1] | 1);
    (0..probes).map(move |_| {
        let bit = (state >> 55) as usize;
        state = state.wrapping_mul(SPREAD);
        bit
    })
}

/// Best number of probes for so many bits a key (ln 2 of them, fewer as blocks are unevenly full).
fn probes_for(bits_per_key: u32) -> u8 {
    match bits_per_key {
        0..=2 => 1,
        3 => 2,
        4..=5 => 3,
        6..=7 => 4,
        8..=9 => 5,
        10..=11 => 6,
        12..=13 => 7,
        14..=15 => 8,
        16..=18 => 9,
        19..=21 => 10,
        22..=25 => 11,
        _ => 12,
    }
}

/// Collects the hashes of a run's keys and makes the filter pages of them.
pub struct FilterBuilder {
    hashes: Sorter<u64>,
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
    pub fn new(bits_per_key: u32, memory: usize) -> FilterBuilder {
        FilterBuilder { hashes: Sorter::new(memory), bits_per_key }
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
        bits.div_ceil((BLOCKS_PER_PAGE * BLOCK * 8) as u64) as u32
    }

    /// Makes the pages one by one, in order; `put` is given each page's contents.
    pub fn finish(mut self, mut put: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let pages = self.pages();
        let probes = probes_for(self.bits_per_key);
        let mut contents = vec![0u8; CONTENTS];
        if let Some(mut hashes) = self.hashes.by_group(pages as usize, |hash| page_of(hash, pages) as usize) {
            for page in 0..pages {
                begin(&mut contents, probes);
                hashes.get(page as usize).iter().for_each(|hash| set(&mut contents, *hash, pages, probes));
                put(&contents)?;
            }
            return Ok(());
        }
        let mut hashes = self.hashes.finish()?;
        let mut next = hashes.next()?;
        for page in 0..pages {
            begin(&mut contents, probes);
            while let Some(hash) = next.map(|hash| hash as u64).filter(|hash| page_of(*hash, pages) <= page) {
                set(&mut contents, hash, pages, probes);
                next = hashes.next()?;
            }
            put(&contents)?;
        }
        debug_assert!(next.is_none());
        Ok(())
    }
}

/// Makes it a filter page that holds nothing.
#[allow(clippy::indexing_slicing, reason = "a page's contents are longer")]
fn begin(contents: &mut [u8], probes: u8) {
    contents.fill(0);
    contents[0] = KIND_BLOCKED_BLOOM;
    contents[1] = probes;
}

/// Puts a hash into its page.
#[allow(clippy::indexing_slicing, reason = "blocks and bits are reduced to what a page has")]
#[inline]
fn set(contents: &mut [u8], hash: u64, pages: u32, probes: u8) {
    let block = HEADER + block_of(hash, pages) * BLOCK;
    for bit in bits_of(hash, probes) {
        contents[block + bit / 8] |= 1 << (bit % 8);
    }
}

/// Whether the key with this hash may be in the run; `contents` are those of page [`page_of`] of the filter.
#[inline]
pub fn probe(page: PageNo, contents: &[u8], hash: u64, pages: u32) -> Result<bool> {
    let (kind, probes) = match contents {
        [kind, probes, ..] => (*kind, *probes),
        _ => return Err(Error::page(page, CONTENT, "filter page is empty")),
    };
    if kind != KIND_BLOCKED_BLOOM || probes == 0 || probes > MAX_PROBES {
        return Err(Error::page(page, CONTENT, format!("unknown filter kind {kind} with {probes} probes")));
    }
    let at = HEADER + block_of(hash, pages) * BLOCK;
    let Some(block) = contents.get(at..at + BLOCK) else {
        return Err(Error::page(page, at + CONTENT, "filter page is cut off"));
    };
    Ok(bits_of(hash, probes).all(|bit| block.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 != 0)))
}

/// For fuzzing: probes arbitrary contents.
pub fn fuzz_filter(bytes: &[u8]) {
    let mut page = PageBuf::ZERO;
    let bytes = bytes.get(..crate::page::CAPACITY).unwrap_or(bytes);
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

    fn build(keys: &[Vec<u8>], bits: u32) -> Vec<Vec<u8>> {
        let mut builder = FilterBuilder::new(bits, usize::MAX);
        keys.iter().for_each(|key| builder.add(key_hash(key), &Pages::default()).unwrap());
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

    fn ask(pages: &[Vec<u8>], key: &[u8]) -> bool {
        let hash = key_hash(key);
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

    const GOLDEN_HASHES: [u64; 7] = [
        0xa550_6ff5_2926_ac13,
        0xe249_2180_f9bc_29c4,
        0x9501_8d20_7a3b_a6ba,
        0x6132_b3b6_bc39_5efc,
        0xe609_3a35_da64_e5d3,
        0x9643_9445_669f_9e80,
        0x7483_6a08_26c9_7007,
    ];

    // Changing these bytes is a new format version.
    #[test]
    fn golden_page() {
        let pages = build(&[b"a".to_vec(), b"b".to_vec()], 10);
        assert_eq!(pages.len(), 1);
        let set: Vec<(usize, u8)> =
            pages[0].iter().enumerate().filter(|(_, b)| **b != 0).map(|(i, b)| (i, *b)).collect();
        assert_eq!(set, GOLDEN_PAGE);
    }

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
        for (bits, most) in [(10u32, 0.013), (16, 0.003)] {
            let keys: Vec<Vec<u8>> = (0..100_000u64).map(|i| i.to_be_bytes().to_vec()).collect();
            let pages = build(&keys, bits);
            assert!(keys.iter().all(|key| ask(&pages, key)));
            let wrong = (100_000..300_000u64).filter(|i| ask(&pages, &i.to_be_bytes())).count();
            let rate = wrong as f64 / 200_000.0;
            assert!(rate < most, "{bits} bits a key: {rate}");
        }
    }

    #[test]
    fn no_bits_no_pages() {
        assert!(build(&[b"a".to_vec()], 0).is_empty());
        assert!(build(&[], 10).is_empty());
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        for n in 0..200 {
            fuzz_filter(&vec![n as u8; n]);
        }
        fuzz_filter(&[1; 8152]);
    }
}
