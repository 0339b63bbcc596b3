//! Blocked Bloom filters: the filters of new runs, quickly made.
//!
//! ```text
//! contents of the page:
//!   0      1        2          24
//!   | kind | probes | reserved | 127 blocks of 64 bytes |
//! ```
//!
//! The hash of a key picks a block of its page (512 bits, aligned to a cache line as the page is), and the bits in it.

use super::{within, HEADER, SECRET, SPACE, SPREAD};
use crate::page::CAPACITY;

const BLOCK: usize = 64;
const BLOCKS: usize = SPACE / BLOCK;
const MAX_PROBES: u8 = 16;

/// Which block of its page.
#[inline]
fn block_of(hash: u64, pages: u32) -> usize {
    ((u128::from(within(hash, pages)) * BLOCKS as u128) >> 64) as usize
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

/// Makes a page of these hashes. Returns the number of probes.
#[allow(clippy::indexing_slicing, reason = "blocks and bits are reduced to what a page has")]
pub fn make(hashes: &[u64], pages: u32, bits_per_key: u32, contents: &mut [u8; CAPACITY]) -> u8 {
    let probes = probes_for(bits_per_key);
    for hash in hashes {
        let block = HEADER + block_of(*hash, pages) * BLOCK;
        for bit in bits_of(*hash, probes) {
            contents[block + bit / 8] |= 1 << (bit % 8);
        }
    }
    probes
}

/// Whether a page may have so many probes.
#[inline]
pub fn is_valid(probes: u8) -> bool {
    (1..=MAX_PROBES).contains(&probes)
}

/// Whether the page may have been made with this hash among others.
#[allow(clippy::indexing_slicing, reason = "blocks and bits are reduced to what a page has")]
#[inline]
pub fn probe(contents: &[u8; CAPACITY], probes: u8, hash: u64, pages: u32) -> bool {
    let block = HEADER + block_of(hash, pages) * BLOCK;
    bits_of(hash, probes).all(|bit| contents[block + bit / 8] >> (bit % 8) & 1 != 0)
}
