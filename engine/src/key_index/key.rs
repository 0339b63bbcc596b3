//! A key in the directory of the key index: three words, compared as numbers.
//!
//! ```text
//!   up to 23 bytes    [ bytes 0..8, big-endian ] [ bytes 8..16 ] [ bytes 16..23 | length ]
//!   longer            [ bytes 0..8, big-endian ] [ address     ] [ length       |   255  ]
//! ```
//!
//! Short keys are padded with zeros: among them the order of the words is the order of the keys, because where the
//! bytes are equal up to the padding the length decides, and a key comes before its extensions.

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;

/// Longest key without a block of its own.
pub(super) const INLINE: usize = 23;

const BOXED: u64 = 255;

/// Owns its block, if it has one. Blocks come from whatever heap the scope chooses.
pub(super) struct IndexKey {
    words: [u64; 3],
}

/// A key to look for: an [`IndexKey`] that borrows.
pub(super) struct Probe<'k> {
    key: ManuallyDrop<IndexKey>,
    _bytes: PhantomData<&'k [u8]>,
}

/// Bytes of an inline key in their order, and their number.
pub(super) type Spelled = ([u8; 24], usize);

impl IndexKey {
    /// A copy of `key`; allocates only if it is longer than [`INLINE`].
    pub(super) fn new(key: &[u8]) -> IndexKey {
        if key.len() <= INLINE {
            return IndexKey::inline(key);
        }
        let block: Box<[u8]> = key.into();
        // Given back by Drop.
        let block = Box::into_raw(block);
        IndexKey { words: boxed_words(key, block.cast()) }
    }

    #[inline]
    fn inline(key: &[u8]) -> IndexKey {
        let mut bytes = [0; 24];
        for (to, from) in bytes.iter_mut().zip(key) {
            *to = *from;
        }
        bytes[INLINE] = key.len() as u8;
        let word =
            |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u64::from_be_bytes(*b));
        IndexKey { words: [word(0), word(8), word(16)] }
    }

    #[inline(always)]
    fn is_boxed(&self) -> bool {
        self.words[2] & 0xff == BOXED
    }

    pub(super) fn len(&self) -> usize {
        match self.words[2] & 0xff {
            BOXED => (self.words[2] >> 8) as usize,
            len => len as usize,
        }
    }

    fn boxed(&self) -> *mut [u8] {
        debug_assert!(self.is_boxed());
        let address = std::ptr::with_exposed_provenance_mut::<u8>(self.words[1] as usize);
        std::ptr::slice_from_raw_parts_mut(address, self.len())
    }

    fn spelled(&self) -> Spelled {
        debug_assert!(!self.is_boxed());
        let mut bytes = [0; 24];
        for (to, word) in bytes.chunks_exact_mut(8).zip(&self.words) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        (bytes, self.len())
    }

    /// The bytes; those of a short key are spelled out into `space`.
    #[inline]
    pub(super) fn bytes<'a>(&'a self, space: &'a mut Spelled) -> &'a [u8] {
        if self.is_boxed() {
            // SAFETY: the block lives as long as the key, and never changes.
            return unsafe { &*self.boxed() };
        }
        *space = self.spelled();
        space.0.get(..space.1).unwrap_or_default()
    }

    #[inline(never)]
    fn cmp_bytes(&self, other: &IndexKey) -> Ordering {
        self.bytes(&mut no_space()).cmp(other.bytes(&mut no_space()))
    }
}

pub(super) fn no_space() -> Spelled {
    ([0; 24], 0)
}

/// For a key whose bytes are at `block`.
fn boxed_words(key: &[u8], block: *const u8) -> [u64; 3] {
    let first = key.first_chunk().map_or(0, |b| u64::from_be_bytes(*b));
    [first, block.expose_provenance() as u64, (key.len() as u64) << 8 | BOXED]
}

/// For fuzzing: keys compare as their bytes do, and give them back. The first byte is the length of one, the rest the other.
pub fn fuzz_key_order(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first() else { return };
    let (a, b) = rest.split_at(usize::from(*length).min(rest.len()));
    let (key, other) = (IndexKey::new(a), IndexKey::new(b));
    assert_eq!(key.cmp(&other), a.cmp(b));
    assert_eq!(Probe::new(a).cmp(&other), a.cmp(b));
    assert_eq!(key.bytes(&mut no_space()), a);
    assert_eq!(key.len(), a.len());
}

impl Drop for IndexKey {
    fn drop(&mut self) {
        if self.is_boxed() {
            // SAFETY: the block was made by `new` and is freed only here (a probe never gets here).
            drop(unsafe { Box::from_raw(self.boxed()) });
        }
    }
}

impl Ord for IndexKey {
    #[inline(always)]
    fn cmp(&self, other: &IndexKey) -> Ordering {
        if self.words[0] != other.words[0] {
            return self.words[0].cmp(&other.words[0]);
        }
        if self.is_boxed() || other.is_boxed() {
            return self.cmp_bytes(other);
        }
        self.words[1].cmp(&other.words[1]).then(self.words[2].cmp(&other.words[2]))
    }
}

impl PartialOrd for IndexKey {
    #[inline(always)]
    fn partial_cmp(&self, other: &IndexKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for IndexKey {
    #[inline(always)]
    fn eq(&self, other: &IndexKey) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for IndexKey {}

impl<'k> Probe<'k> {
    #[inline]
    pub(super) fn new(key: &'k [u8]) -> Probe<'k> {
        let key = if key.len() <= INLINE {
            IndexKey::inline(key)
        } else {
            IndexKey { words: boxed_words(key, key.as_ptr()) }
        };
        Probe { key: ManuallyDrop::new(key), _bytes: PhantomData }
    }
}

impl Deref for Probe<'_> {
    type Target = IndexKey;

    #[inline]
    fn deref(&self) -> &IndexKey {
        &self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_that_of_bytes() {
        let mut keys: Vec<Vec<u8>> = vec![vec![], vec![0], vec![0; 23], vec![0; 24], vec![255; 23], vec![255; 24]];
        for stem in [b"a".as_slice(), b"abcdefg", b"abcdefgh", b"abcdefghijklmnop", b"abcdefghijklmnopqrstuvw"] {
            for tail in [b"".as_slice(), b"\0", b"\0\0", b"\x01", b"\xff", b"0123456789"] {
                keys.push([stem, tail].concat());
            }
        }
        for a in &keys {
            let (own, probe) = (IndexKey::new(a), Probe::new(a));
            assert_eq!(own.bytes(&mut no_space()), a);
            assert_eq!(own.len(), a.len());
            assert!(own == *probe);
            for b in &keys {
                assert_eq!(own.cmp(&IndexKey::new(b)), a.cmp(b), "{a:?} {b:?}");
                assert_eq!(own.cmp(&Probe::new(b)), a.cmp(b), "{a:?} {b:?}");
            }
        }
    }
}
