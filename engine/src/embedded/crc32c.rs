//! CRC-32C (Castagnoli), as the processor computes it where it can, by table elsewhere.
//!
//! The checksum of every page, meta slot and log frame on disk is made here, so the polynomial and the conditioning
//! (all ones in, all ones out) belong to the disk format: they are held fast by golden values.

/// The reflected polynomial.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Eight tables: table `n` advances a byte's remainder by `n` further zero bytes.
const TABLES: [[u32; 256]; 8] = tables();

#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            remainder = if remainder & 1 == 1 { (remainder >> 1) ^ POLYNOMIAL } else { remainder >> 1 };
            bit += 1;
        }
        tables[0][byte] = remainder;
        byte += 1;
    }
    let mut n = 1;
    while n < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[n - 1][byte];
            tables[n][byte] = (before >> 8) ^ tables[0][(before & 255) as usize];
            byte += 1;
        }
        n += 1;
    }
    tables
}

/// Bytes of each of three lanes that are computed side by side: six of them are a page but for a few bytes.
const LANE: usize = 1360;

/// Table `n` advances byte `n` of a remainder by a lane of zero bytes.
const PAST_LANE: [[u32; 256]; 4] = past_lane_tables();

#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn past_lane_tables() -> [[u32; 256]; 4] {
    let mut of_bit = [0u32; 32];
    let mut bit = 0;
    while bit < 32 {
        let mut remainder = 1u32 << bit;
        let mut bytes = 0;
        while bytes < LANE {
            remainder = (remainder >> 8) ^ TABLES[0][(remainder & 255) as usize];
            bytes += 1;
        }
        of_bit[bit] = remainder;
        bit += 1;
    }
    let mut tables = [[0u32; 256]; 4];
    let mut n = 0;
    while n < 4 {
        let mut byte = 0;
        while byte < 256 {
            let mut bit = 0;
            while bit < 8 {
                if byte >> bit & 1 == 1 {
                    tables[n][byte] ^= of_bit[8 * n + bit];
                }
                bit += 1;
            }
            byte += 1;
        }
        n += 1;
    }
    tables
}

/// The remainder after a lane of zero bytes more.
#[cfg(target_arch = "x86_64")]
fn past_lane(remainder: u32) -> u32 {
    let [a, b, c, d] = remainder.to_le_bytes().map(usize::from);
    let [t0, t1, t2, t3] = &PAST_LANE;
    let of = |table: &[u32; 256], byte: usize| table.get(byte).copied().unwrap_or(0);
    of(t0, a) ^ of(t1, b) ^ of(t2, c) ^ of(t3, d)
}

/// The checksum of `bytes`.
pub fn checksum(bytes: &[u8]) -> u32 {
    extend(0, bytes)
}

/// The checksum of what `crc` is the checksum of, followed by `bytes`.
pub fn extend(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has SSE4.2.
        return unsafe { extend_sse42(crc, bytes) };
    }
    extend_by_table(crc, bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn extend_sse42(crc: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u64, _mm_crc32_u8};
    let mut state = u64::from(!crc);
    let (stretches, bytes) = bytes.as_chunks::<{ 3 * LANE }>();
    for stretch in stretches {
        // An instruction waits for the one before it, three times as long as it takes: three lanes side by side.
        let (a, rest) = stretch.split_at(LANE);
        let (b, c) = rest.split_at(LANE);
        let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0).zip(c.as_chunks::<8>().0);
        let (mut first, mut second, mut third) = (state, 0, 0);
        for ((a, b), c) in words {
            first = _mm_crc32_u64(first, u64::from_le_bytes(*a));
            second = _mm_crc32_u64(second, u64::from_le_bytes(*b));
            third = _mm_crc32_u64(third, u64::from_le_bytes(*c));
        }
        let both = past_lane(first as u32) ^ second as u32;
        state = u64::from(past_lane(both) ^ third as u32);
    }
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state = _mm_crc32_u64(state, u64::from_le_bytes(*word));
    }
    let mut state = state as u32;
    for byte in rest {
        state = _mm_crc32_u8(state, *byte);
    }
    !state
}

fn extend_by_table(crc: u32, bytes: &[u8]) -> u32 {
    let look_up = |table: &[u32; 256], byte: u64| table.get((byte & 255) as usize).copied().unwrap_or(0);
    let [t0, t1, t2, t3, t4, t5, t6, t7] = &TABLES;
    let (words, rest) = bytes.as_chunks::<8>();
    let mut state = !crc;
    for word in words {
        let word = u64::from_le_bytes(*word) ^ u64::from(state);
        state = look_up(t7, word)
            ^ look_up(t6, word >> 8)
            ^ look_up(t5, word >> 16)
            ^ look_up(t4, word >> 24)
            ^ look_up(t3, word >> 32)
            ^ look_up(t2, word >> 40)
            ^ look_up(t1, word >> 48)
            ^ look_up(t0, word >> 56);
    }
    for byte in rest {
        state = (state >> 8) ^ look_up(t0, u64::from(state) ^ u64::from(*byte));
    }
    !state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_values() {
        // From RFC 3720, appendix B.4, and the usual check value.
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        for f in [extend as fn(u32, &[u8]) -> u32, extend_by_table] {
            assert_eq!(f(0, b""), 0);
            assert_eq!(f(0, b"123456789"), 0xe306_9283);
            assert_eq!(f(0, &[0; 32]), 0x8a91_36aa);
            assert_eq!(f(0, &[0xff; 32]), 0x62a8_ab43);
            assert_eq!(f(0, &ascending), 0x46dd_794e);
            assert_eq!(f(0, &descending), 0x113f_db5c);
        }
    }

    #[test]
    fn instruction_and_table_agree_on_every_length_and_can_be_continued() {
        let bytes: Vec<u8> = (0..10_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let around = |lanes: usize| lanes * LANE - 9..lanes * LANE + 9;
        for len in (0..1000).chain(around(3)).chain(around(4)).chain(around(6)).chain([8188, 8192, bytes.len()]) {
            let whole = checksum(&bytes[..len]);
            assert_eq!(whole, extend_by_table(0, &bytes[..len]));
            let cut = len / 3;
            assert_eq!(whole, extend(checksum(&bytes[..cut]), &bytes[cut..len]));
        }
    }
}
