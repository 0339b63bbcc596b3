//! Memcomparable bytes of `numeric`. Knows nothing of PostgreSQL but the layout of a numeric value.
//!
//! ```text
//! 10                    -Infinity
//! 20 ~(weight digits)   below zero: all bits after the first byte flipped
//! 30                    zero
//! 40 weight digits      above zero
//! 50                    Infinity
//! 60                    NaN
//!
//! weight   of the first digit in base 10000: one byte 80+w for -60 <= w <= 60; else 00 or FF and two bytes, sign bit flipped
//! digits   base 10000, each two bytes: 2 * digit, plus one if another one follows; zeros at either end left out
//! ```
//!
//! The display scale is lost (1.0 = 1.00), so the column stays in the row.

const SIGN_MASK: u16 = 0xC000;
const NEGATIVE: u16 = 0x4000;
const SHORT: u16 = 0x8000;
const SPECIAL: u16 = 0xC000;
const SPECIAL_MASK: u16 = 0xF000;
const PLUS_INFINITY: u16 = 0xD000;
const MINUS_INFINITY: u16 = 0xF000;

const CODE_MINUS_INFINITY: u8 = 0x10;
const CODE_NEGATIVE: u8 = 0x20;
const CODE_ZERO: u8 = 0x30;
const CODE_POSITIVE: u8 = 0x40;
const CODE_INFINITY: u8 = 0x50;
const CODE_NAN: u8 = 0x60;

/// Encodes a numeric, given without its varlena header. False: these bytes are no numeric.
pub fn put_numeric(out: &mut Vec<u8>, value: &[u8]) -> bool {
    let Some((header, rest)) = split_u16(value) else { return false };
    let (negative, weight, digits) = match header & SIGN_MASK {
        SPECIAL => {
            out.push(match header & SPECIAL_MASK {
                PLUS_INFINITY => CODE_INFINITY,
                MINUS_INFINITY => CODE_MINUS_INFINITY,
                _ => CODE_NAN,
            });
            return true;
        }
        SHORT => {
            // Seven bits of weight in two's complement.
            let weight = (header << 9) as i16 >> 9;
            (header & 0x2000 != 0, weight, rest)
        }
        sign => {
            let Some((weight, rest)) = split_u16(rest) else { return false };
            (sign == NEGATIVE, weight as i16, rest)
        }
    };
    put_finite(out, negative, i32::from(weight), digits)
}

fn put_finite(out: &mut Vec<u8>, negative: bool, mut weight: i32, digits: &[u8]) -> bool {
    let mut digits = digits.as_chunks::<2>().0;
    while let Some(([0, 0], rest)) = digits.split_first() {
        digits = rest;
        weight -= 1;
    }
    while let Some(([0, 0], rest)) = digits.split_last() {
        digits = rest;
    }
    if digits.is_empty() {
        out.push(CODE_ZERO);
        return true;
    }
    out.push(if negative { CODE_NEGATIVE } else { CODE_POSITIVE });
    let from = out.len();
    put_weight(out, weight);
    for (i, digit) in digits.iter().enumerate() {
        let digit = u16::from_ne_bytes(*digit);
        if digit > 9999 {
            return false;
        }
        let more = u16::from(i + 1 < digits.len());
        out.extend_from_slice(&(digit << 1 | more).to_be_bytes());
    }
    if negative {
        out.iter_mut().skip(from).for_each(|b| *b = !*b);
    }
    true
}

fn put_weight(out: &mut Vec<u8>, weight: i32) {
    // Leading zeros may have taken the weight below an i16; there is no such number, but it must not wrap.
    let weight = weight.clamp(i32::from(i16::MIN), i32::from(i16::MAX));
    if (-60..=60).contains(&weight) {
        out.push((0x80 + weight) as u8);
    } else {
        out.push(if weight < 0 { 0x00 } else { 0xFF });
        out.extend_from_slice(&(weight as i16 as u16 ^ 0x8000).to_be_bytes());
    }
}

/// Length of an encoded numeric at the front of `key`.
pub fn encoded_len(key: &[u8]) -> Option<usize> {
    let flip = match *key.first()? {
        CODE_NEGATIVE => 0xFF,
        CODE_POSITIVE => 0x00,
        CODE_MINUS_INFINITY | CODE_ZERO | CODE_INFINITY | CODE_NAN => return Some(1),
        _ => return None,
    };
    let mut at = match key.get(1)? ^ flip {
        0x00 | 0xFF => 4,
        _ => 2,
    };
    loop {
        let low = key.get(at + 1)? ^ flip;
        at += 2;
        if low & 1 == 0 {
            return Some(at);
        }
    }
}

fn split_u16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<2>()?;
    Some((u16::from_ne_bytes(*head), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A numeric in the long format.
    fn long(negative: bool, weight: i16, digits: &[u16]) -> Vec<u8> {
        let mut value = (if negative { NEGATIVE } else { 0 } | 3u16).to_ne_bytes().to_vec();
        value.extend_from_slice(&weight.to_ne_bytes());
        digits.iter().for_each(|d| value.extend_from_slice(&d.to_ne_bytes()));
        value
    }

    /// The same in the short format.
    fn short(negative: bool, weight: i16, digits: &[u16]) -> Vec<u8> {
        assert!((-64..64).contains(&weight));
        let header = SHORT | if negative { 0x2000 } else { 0 } | 2 << 7 | (weight as u16 & 0x7F);
        let mut value = header.to_ne_bytes().to_vec();
        digits.iter().for_each(|d| value.extend_from_slice(&d.to_ne_bytes()));
        value
    }

    fn encode(value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(put_numeric(&mut out, value));
        assert_eq!(encoded_len(&[out.as_slice(), &[0x55; 9]].concat()), Some(out.len()));
        out
    }

    #[test]
    fn order_is_numeric_order() {
        // Ascending magnitudes: weight, digits.
        let magnitudes: &[(i16, &[u16])] = &[
            (-4096, &[1]),
            (-61, &[9999, 9999]),
            (-60, &[1]),
            (-1, &[1]),
            (-1, &[1, 1]),
            (-1, &[5000]),
            (-1, &[9999, 9999, 9999]),
            (0, &[1]),
            (0, &[1, 0, 1]),
            (0, &[1, 1]),
            (0, &[1, 9999]),
            (0, &[2]),
            (0, &[255]),
            (0, &[256]),
            (0, &[9999]),
            (1, &[1]),
            (1, &[1, 1]),
            (60, &[1]),
            (61, &[1]),
            (63, &[9999]),
            (200, &[1]),
            (32767, &[9999]),
        ];
        let mut encoded = vec![encode(&MINUS_INFINITY.to_ne_bytes())];
        encoded.extend(magnitudes.iter().rev().map(|(w, d)| encode(&long(true, *w, d))));
        encoded.push(encode(&long(false, 0, &[])));
        encoded.extend(magnitudes.iter().map(|(w, d)| encode(&long(false, *w, d))));
        encoded.push(encode(&PLUS_INFINITY.to_ne_bytes()));
        encoded.push(encode(&SPECIAL.to_ne_bytes()));
        for pair in encoded.windows(2) {
            assert!(pair[0] < pair[1], "{:x?} is not below {:x?}", pair[0], pair[1]);
        }
    }

    #[test]
    fn equal_numbers_encode_equal() {
        for weight in [-64, -61, -1, 0, 5, 63] {
            for negative in [false, true] {
                assert_eq!(encode(&short(negative, weight, &[12, 34])), encode(&long(negative, weight, &[12, 34])));
            }
        }
        assert_eq!(encode(&short(false, 0, &[1, 0, 0])), encode(&short(false, 0, &[1])));
        assert_eq!(encode(&short(false, 1, &[0, 7])), encode(&short(false, 0, &[7])));
        assert_eq!(encode(&short(true, 0, &[])), encode(&short(false, 3, &[0])));
        assert_eq!(encode(&short(false, 0, &[1])), [0x40, 0x80, 0, 2]);
    }

    #[test]
    fn nonsense_is_refused() {
        let mut out = Vec::new();
        assert!(!put_numeric(&mut out, &[1]));
        assert!(!put_numeric(&mut out, &long(false, 0, &[10_000])));
        assert_eq!(encoded_len(&[]), None);
        assert_eq!(encoded_len(&[0x40, 0x80, 0]), None);
        assert_eq!(encoded_len(&[0x41]), None);
    }
}
