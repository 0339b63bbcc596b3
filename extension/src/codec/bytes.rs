//! Memcomparable bytes of the simple kinds: integers, floats and byte strings. Knows nothing of PostgreSQL.
//!
//! ```text
//! signed     big endian, sign bit flipped
//! unsigned   big endian
//! float      positive: sign bit set; negative: all bits flipped; -0 as 0; every NaN as all ones, above infinity
//! text       the bytes (never a zero among them), 00
//! bytes      the bytes with 00 as 00 FF, then 00 00
//! last       a byte string at the end of a key needs no terminator: the bytes as they are, led by 00 if they are empty or
//!            begin with 00 (so that no key is empty, and the order stays)
//! ```
//!
//! Every encoding but `last` ends itself: none is a prefix of another of the same kind. So the encodings of several columns
//! one after the other compare as the columns do.

pub fn put_i16(out: &mut Vec<u8>, value: i16) {
    out.extend_from_slice(&(value as u16 ^ 0x8000).to_be_bytes());
}

pub fn put_i32(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&(value as u32 ^ 0x8000_0000).to_be_bytes());
}

pub fn put_i64(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(&(value as u64 ^ (1 << 63)).to_be_bytes());
}

pub fn put_f32(out: &mut Vec<u8>, value: f32) {
    let bits = match value {
        v if v.is_nan() => u32::MAX,
        0.0 => 1 << 31,
        v if v.is_sign_negative() => !v.to_bits(),
        v => v.to_bits() | 1 << 31,
    };
    out.extend_from_slice(&bits.to_be_bytes());
}

pub fn put_f64(out: &mut Vec<u8>, value: f64) {
    let bits = match value {
        v if v.is_nan() => u64::MAX,
        0.0 => 1 << 63,
        v if v.is_sign_negative() => !v.to_bits(),
        v => v.to_bits() | 1 << 63,
    };
    out.extend_from_slice(&bits.to_be_bytes());
}

/// A byte string without zeros.
pub fn put_text(out: &mut Vec<u8>, bytes: &[u8]) {
    debug_assert!(!bytes.contains(&0));
    out.extend_from_slice(bytes);
    out.push(0);
}

/// Any byte string.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    for part in bytes.split_inclusive(|b| *b == 0) {
        out.extend_from_slice(part);
        if part.last() == Some(&0) {
            out.push(0xFF);
        }
    }
    out.extend_from_slice(&[0, 0]);
}

/// A byte string at the end of a key.
pub fn put_last(out: &mut Vec<u8>, bytes: &[u8]) {
    if bytes.first().is_none_or(|b| *b == 0) {
        out.push(0);
    }
    out.extend_from_slice(bytes);
}

/// Makes `bytes` the smallest string that is above every string beginning with it. False: there is none.
pub fn to_successor(bytes: &mut Vec<u8>) -> bool {
    while let Some(last) = bytes.pop() {
        if last < 0xFF {
            bytes.push(last + 1);
            return true;
        }
    }
    false
}

/// Reads a key from front to back. `None` everywhere means: these bytes are no such key.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    pub fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    /// Takes as many bytes as `len` finds at the front.
    pub fn skip_by(&mut self, len: impl Fn(&[u8]) -> Option<usize>) -> Option<&'a [u8]> {
        self.take(len(self.rest)?)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub fn i16(&mut self) -> Option<i16> {
        self.u16().map(|v| (v ^ 0x8000) as i16)
    }

    pub fn i32(&mut self) -> Option<i32> {
        self.u32().map(|v| (v ^ 0x8000_0000) as i32)
    }

    pub fn i64(&mut self) -> Option<i64> {
        self.u64().map(|v| (v ^ (1 << 63)) as i64)
    }

    /// What [`put_text`] wrote.
    pub fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.rest.iter().position(|b| *b == 0)?;
        let text = self.take(end)?;
        self.take(1)?;
        Some(text)
    }

    /// What [`put_bytes`] wrote, still escaped and without its terminator; [`unescape`] gives the bytes.
    pub fn escaped(&mut self) -> Option<&'a [u8]> {
        let mut end = 0;
        loop {
            end += self.rest.get(end..)?.iter().position(|b| *b == 0)?;
            match self.rest.get(end + 1)? {
                0xFF => end += 2,
                0 => break,
                _ => return None,
            }
        }
        let escaped = self.take(end)?;
        self.take(2)?;
        Some(escaped)
    }

    /// What [`put_last`] wrote: all that is left.
    pub fn last(&mut self) -> Option<&'a [u8]> {
        let rest = std::mem::take(&mut self.rest);
        match rest {
            [] => None,
            [0] => Some(&[]),
            [0, tail @ ..] if tail.first() == Some(&0) => Some(tail),
            [0, ..] => None,
            _ => Some(rest),
        }
    }
}

/// How many bytes [`unescape`] gives.
pub fn unescaped_len(escaped: &[u8]) -> usize {
    escaped.len() - escaped.iter().filter(|b| **b == 0).count()
}

/// Takes out what [`put_bytes`] put in. `out` has [`unescaped_len`] bytes.
pub fn unescape(escaped: &[u8], out: &mut [u8]) {
    let mut from = escaped.iter();
    for place in out {
        let Some(byte) = from.next() else { return };
        *place = *byte;
        if *byte == 0 {
            from.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded<T>(put: impl Fn(&mut Vec<u8>, T), value: T) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, value);
        out
    }

    fn check_order(strings: &[Vec<u8>]) {
        for pair in strings.windows(2) {
            assert!(pair[0] < pair[1], "{:?} is not below {:?}", pair[0], pair[1]);
        }
    }

    #[test]
    fn integers_keep_their_order_and_come_back() {
        let values = [i64::MIN, i64::MIN + 1, -70_000, -256, -255, -1, 0, 1, 255, 256, 70_000, i64::MAX];
        check_order(&values.map(|v| encoded(put_i64, v)));
        for v in values {
            assert_eq!(Reader::new(&encoded(put_i64, v)).i64(), Some(v));
            assert_eq!(Reader::new(&encoded(put_i32, v as i32)).i32(), Some(v as i32));
            assert_eq!(Reader::new(&encoded(put_i16, v as i16)).i16(), Some(v as i16));
        }
        let narrow = [i32::MIN, -65_536, -1, 0, 1, 65_536, i32::MAX];
        check_order(&narrow.map(|v| encoded(put_i32, v)));
        check_order(&[i16::MIN, -256, -1, 0, 1, 256, i16::MAX].map(|v| encoded(put_i16, v)));
        assert_eq!(encoded(put_i32, -2), [0x7F, 0xFF, 0xFF, 0xFE]);
    }

    #[test]
    fn floats_keep_their_order() {
        let values = [
            f64::NEG_INFINITY,
            f64::MIN,
            -1.5,
            -1.0,
            -f64::MIN_POSITIVE,
            -5e-324,
            0.0,
            5e-324,
            f64::MIN_POSITIVE,
            1.0,
            1.5,
            f64::MAX,
            f64::INFINITY,
            f64::NAN,
        ];
        check_order(&values.map(|v| encoded(put_f64, v)));
        let narrow = [f32::NEG_INFINITY, f32::MIN, -1.0, -1e-45, 0.0, 1e-45, 1.0, f32::MAX, f32::INFINITY, f32::NAN];
        check_order(&narrow.map(|v| encoded(put_f32, v)));
        assert_eq!(encoded(put_f64, 0.0), encoded(put_f64, -0.0));
        assert_eq!(encoded(put_f32, 0.0), encoded(put_f32, -0.0));
        assert_eq!(encoded(put_f64, f64::NAN), encoded(put_f64, -f64::NAN));
        assert_eq!(encoded(put_f32, f32::NAN), encoded(put_f32, -f32::NAN));
        assert_eq!(encoded(put_f64, 1.0), [0xBF, 0xF0, 0, 0, 0, 0, 0, 0]);
    }

    /// All byte strings up to three bytes over the bytes that matter, in order.
    fn nasty_strings() -> Vec<Vec<u8>> {
        let alphabet = [0x00, 0x01, 0x61, 0xFE, 0xFF];
        let mut all = vec![vec![]];
        let mut grown = vec![vec![]];
        for _ in 0..3 {
            grown = grown
                .iter()
                .flat_map(|s: &Vec<u8>| alphabet.iter().map(move |b| [s.as_slice(), &[*b]].concat()))
                .collect();
            all.extend(grown.iter().cloned());
        }
        all.sort();
        all
    }

    #[test]
    fn byte_strings_keep_their_order_and_come_back() {
        let strings = nasty_strings();
        check_order(&strings.iter().map(|s| encoded(put_bytes, s.as_slice())).collect::<Vec<_>>());
        check_order(&strings.iter().map(|s| encoded(put_last, s.as_slice())).collect::<Vec<_>>());
        for s in &strings {
            let key = [encoded(put_bytes, s.as_slice()), vec![7]].concat();
            let mut reader = Reader::new(&key);
            let escaped = reader.escaped().unwrap();
            let mut out = vec![9; unescaped_len(escaped)];
            unescape(escaped, &mut out);
            assert_eq!(&out, s);
            assert_eq!(reader.byte(), Some(7));
            let key = encoded(put_last, s.as_slice());
            assert!(!key.is_empty());
            assert_eq!(Reader::new(&key).last(), Some(s.as_slice()));
        }
        let texts: Vec<_> = strings.iter().filter(|s| !s.contains(&0)).collect();
        check_order(&texts.iter().map(|s| encoded(put_text, s.as_slice())).collect::<Vec<_>>());
        for s in texts {
            assert_eq!(Reader::new(&encoded(put_text, s.as_slice())).text(), Some(s.as_slice()));
        }
    }

    #[test]
    fn pairs_compare_column_by_column() {
        let strings = nasty_strings();
        let mut pairs = Vec::new();
        for a in strings.iter().step_by(3) {
            for b in strings.iter().step_by(7) {
                let mut key = encoded(put_bytes, a.as_slice());
                put_last(&mut key, b);
                pairs.push(((a, b), key));
            }
        }
        pairs.sort();
        check_order(&pairs.into_iter().map(|(_, key)| key).collect::<Vec<_>>());
    }

    #[test]
    fn a_successor_is_above_all_that_begin_with_the_prefix() {
        let next = |mut v: Vec<u8>| to_successor(&mut v).then_some(v);
        assert_eq!(next(vec![1, 2]), Some(vec![1, 3]));
        assert_eq!(next(vec![1, 0xFF, 0xFF]), Some(vec![2]));
        assert_eq!(next(vec![0xFF, 0xFF]), None);
        assert_eq!(next(vec![]), None);
    }

    #[test]
    fn reading_nonsense_gives_nothing() {
        assert_eq!(Reader::new(&[1, 2, 3]).u32(), None);
        assert_eq!(Reader::new(&[1, 2, 3]).text(), None);
        assert_eq!(Reader::new(&[1, 0]).escaped(), None);
        assert_eq!(Reader::new(&[1, 0, 5]).escaped(), None);
        assert_eq!(Reader::new(&[0, 5]).last(), None);
        assert_eq!(Reader::new(&[]).last(), None);
    }
}
