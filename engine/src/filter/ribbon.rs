//! Ribbon filters: those of settled runs, with a third as many false answers as blocked Bloom filters of the same size.
//!
//! ```text
//! contents of the page:
//!   0      1       2          24
//!   | kind | width | reserved | blocks: 64 slots each, as `width` words of 64 bits, the bits of all slots in each |
//! ```
//!
//! The hash of a key picks a slot, and which of the 64 slots from there on are the key's own, that one always among them. A slot has
//! `width` bits, such that the own slots of each key of the page add up (exclusive or) to nil; those of one other key of 2^`width`
//! do so, too. Each key is an equation over 64 neighbouring slots, and the slots are their solution: the equations are reduced, as keys
//! come, until each begins with a slot of its own, and then solved from the last slot to the first. Slots that begin none get bits
//! by chance, for slots that are all nil would be a solution, too. So a filter can always be made, whatever the hashes (a homogeneous
//! ribbon filter); but where there are not somewhat more slots than keys it has many more false answers (`width_for`).

use super::{mix, within, HEADER, SECRET, SPACE, SPREAD};
use crate::page::CAPACITY;

/// Slots of a block, and of how many in a row a key may have bits.
const ROW: usize = 64;
const WORD: usize = 8;
pub const MAX_WIDTH: u8 = 30;

/// Blocks of a page whose slots have so many bits.
#[inline]
fn blocks(width: u8) -> usize {
    SPACE / (usize::from(width).max(1) * WORD)
}

/// The widest slots of which a page has enough for so many keys, up to `most`: a tenth more than keys, or so. (The wider they are the
/// fewer false answers there should be, and the more it takes until those of crowded places do not stand out.)
fn width_for(keys: usize, most: u32) -> u8 {
    let most = most.clamp(1, MAX_WIDTH.into()) as u8;
    let enough = |width: &u8| blocks(*width) * ROW >= keys + keys * (40 + 6 * usize::from(*width)) / 1000;
    (1..=most).rev().find(enough).unwrap_or(1)
}

/// The first slot of a key, and which of those from there on are its own.
#[inline]
fn equation(hash: u64, pages: u32, width: u8) -> (usize, u64) {
    let firsts = blocks(width) * ROW - (ROW - 1);
    let first = ((u128::from(within(hash, pages)) * firsts as u128) >> 64) as usize;
    (first, mix(hash ^ SECRET[1], SPREAD) | 1)
}

#[inline]
fn parity(word: u64) -> u64 {
    u64::from(word.count_ones() & 1)
}

/// Makes a page of these hashes. Returns the width of its slots.
pub fn make(hashes: &[u64], pages: u32, bits_per_key: u32, contents: &mut [u8; CAPACITY]) -> u8 {
    let width = width_for(hashes.len(), bits_per_key);
    let rows = eliminate(hashes, pages, width);
    solve(&rows, width, contents);
    width
}

/// The equations so that each begins with a slot of its own; nil where a slot has none.
#[allow(clippy::indexing_slicing, reason = "a row begins with the first of its slots, which are those of the page")]
fn eliminate(hashes: &[u64], pages: u32, width: u8) -> Vec<u64> {
    let mut rows = vec![0u64; blocks(width) * ROW];
    for hash in hashes {
        let (mut first, mut own) = equation(*hash, pages, width);
        while own != 0 {
            let there = rows[first];
            if there == 0 {
                rows[first] = own;
                break;
            }
            // Both have the first slot: what is left of them begins with a later one, or is nothing (they say the same).
            own ^= there;
            let none = own.trailing_zeros();
            own = own.checked_shr(none).unwrap_or(0);
            first += none as usize;
        }
    }
    rows
}

/// Fills in the slots, from the last to the first.
fn solve(rows: &[u64], width: u8, contents: &mut [u8; CAPACITY]) {
    // The 64 slots from this one on, in each of their bits.
    let mut solved = [0u64; MAX_WIDTH as usize];
    let solved = solved.get_mut(..usize::from(width)).unwrap_or_default();
    let block = usize::from(width) * WORD;
    let space = contents.get_mut(HEADER..).unwrap_or_default();
    let mut chance = SECRET[0];
    for (rows, words) in rows.chunks_exact(ROW).zip(space.chunks_exact_mut(block)).rev() {
        for row in rows.iter().rev() {
            if *row == 0 {
                chance = mix(chance ^ SECRET[1], SPREAD);
            }
            for (bit, word) in solved.iter_mut().enumerate() {
                let others = *word << 1;
                let own = if *row == 0 { chance >> bit & 1 } else { parity(others & row) };
                *word = others | own;
            }
        }
        for (to, word) in words.chunks_exact_mut(WORD).zip(solved.iter()) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Whether slots of a page may be so wide.
#[inline]
pub fn is_valid(width: u8) -> bool {
    (1..=MAX_WIDTH).contains(&width)
}

/// Whether the page may have been made with this hash among others.
#[inline]
pub fn probe(contents: &[u8; CAPACITY], width: u8, hash: u64, pages: u32) -> bool {
    let (first, own) = equation(hash, pages, width);
    let block = usize::from(width) * WORD;
    let (skipped, begins) = (first % ROW, HEADER + first / ROW * block);
    let here = contents.get(begins..).unwrap_or_default().chunks_exact(WORD);
    if skipped == 0 {
        return here.take(width.into()).all(|word| parity(read(word) & own) == 0);
    }
    let next = contents.get(begins + block..).unwrap_or_default().chunks_exact(WORD);
    let (low, high) = (own << skipped, own >> (ROW - skipped));
    here.zip(next).take(width.into()).all(|(here, next)| parity(read(here) & low ^ read(next) & high) == 0)
}

#[inline(always)]
fn read(word: &[u8]) -> u64 {
    word.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
