//! Memcomparable bytes of `inet` and `cidr`. Knows nothing of PostgreSQL but the layout of their value.
//!
//! ```text
//! | family | address with the host's bits cleared | bits | address |      1 + 4 + 1 + 4, or 1 + 16 + 1 + 16 bytes
//! ```
//!
//! btree compares the common network bits, then the number of bits, then the whole address. Clearing the host's bits gives
//! the same: where the common bits are equal, the shorter network has zeros where the longer has anything.

use super::bytes::Reader;

/// `PGSQL_AF_INET`: AF_INET on Linux; `PGSQL_AF_INET6` is the next number.
const FAMILY_V4: u8 = 2;
const FAMILY_V6: u8 = 3;

fn address_len(family: u8) -> Option<usize> {
    match family {
        FAMILY_V4 => Some(4),
        FAMILY_V6 => Some(16),
        _ => None,
    }
}

/// Encodes family, bits, address, given without the varlena header. False: these bytes are no inet.
pub fn put_inet(out: &mut Vec<u8>, value: &[u8]) -> bool {
    let [family, bits, address @ ..] = value else { return false };
    let Some(address) = address_len(*family).and_then(|len| address.get(..len)) else { return false };
    out.push(*family);
    for (i, byte) in address.iter().enumerate() {
        let kept = usize::from(*bits).saturating_sub(i * 8).min(8);
        out.push(byte & !(0xFFu16 >> kept) as u8);
    }
    out.push(*bits);
    out.extend_from_slice(address);
    true
}

/// Bytes of an encoded inet that begins with this byte.
pub fn encoded_len(key: &[u8]) -> Option<usize> {
    address_len(*key.first()?).map(|len| 2 + 2 * len)
}

/// Family, bits and address.
pub fn get_inet<'a>(reader: &mut Reader<'a>) -> Option<(u8, u8, &'a [u8])> {
    let family = reader.byte()?;
    let len = address_len(family)?;
    reader.take(len)?;
    let bits = reader.byte()?;
    Some((family, bits, reader.take(len)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(address: [u8; 4], bits: u8) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(put_inet(&mut out, &[&[FAMILY_V4, bits], address.as_slice()].concat()));
        assert_eq!(get_inet(&mut Reader::new(&out)), Some((FAMILY_V4, bits, address.as_slice())));
        assert_eq!(encoded_len(&out), Some(out.len()));
        out
    }

    #[test]
    fn order_is_network_then_bits_then_address() {
        let mut v6 = Vec::new();
        assert!(put_inet(&mut v6, &[&[FAMILY_V6, 128][..], &[0; 16]].concat()));
        assert_eq!(encoded_len(&v6), Some(v6.len()));
        let ascending = [
            v4([0, 0, 0, 0], 0),
            v4([9, 9, 9, 9], 0),
            v4([10, 0, 0, 0], 8),
            v4([10, 5, 0, 1], 8),
            v4([10, 5, 0, 0], 13),
            v4([10, 0, 0, 0], 16),
            v4([10, 0, 0, 7], 16),
            v4([10, 0, 0, 0], 32),
            v4([10, 0, 0, 1], 32),
            v4([10, 5, 0, 0], 16),
            v4([11, 0, 0, 0], 8),
            v4([255, 255, 255, 255], 32),
            v6,
        ];
        for pair in ascending.windows(2) {
            assert!(pair[0] < pair[1], "{:?} {:?}", pair[0], pair[1]);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut out = Vec::new();
        assert!(!put_inet(&mut out, &[]));
        assert!(!put_inet(&mut out, &[9, 8, 1, 1, 1, 1]));
        assert!(!put_inet(&mut out, &[FAMILY_V4, 8, 1]));
        assert_eq!(get_inet(&mut Reader::new(&[FAMILY_V4, 1])), None);
    }
}
