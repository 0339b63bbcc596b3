//! New leaves out of old ones and new keys.
//!
//! ```text
//!   plan:  old[0..17], new key, old[17..60], new key, ...     ->  cut into leaves  ->  each a draft, then published
//! ```
//!
//! A draft takes its memory from the heap, where that can still be refused; nothing is published before all is there.

use super::key::{IndexKey, INLINE};
use super::leaf::{room, weight, Leaf, LeafWriter, OwnLeaf, Shape, DEAD, MOST_KEYS, MOST_WEIGHT};
use super::Ahead;
use crate::filter::key_hash;
use loosekv_shm::{heap, Full};
use std::sync::atomic::Ordering::Relaxed;

/// Most leaves of a plan: so many directory nodes can be reserved at once.
pub(super) const MOST_LEAVES: usize = loosekv_shm::Needs::OBJECTS;

/// Keys of a leaf that is to have room: what random keys lead to in the long run.
const FILL: usize = MOST_KEYS * 3 / 4;

#[derive(Clone, Copy)]
enum Part<'p> {
    /// Keys of a leaf, all alive.
    Old {
        leaf: Leaf<'p>,
        from: usize,
        to: usize,
    },
    New {
        key: &'p [u8],
        value: u32,
    },
}

/// The keys of one or more new leaves, in order.
pub(super) struct Plan<'p> {
    pub ahead: Ahead,
    parts: Vec<Part<'p>>,
    keys: usize,
    weight: usize,
    /// Space for the first and the last key of a leaf.
    edges: (Vec<u8>, Vec<u8>),
}

/// A leaf that is not published yet, and the key under which it will be (`None`: in the place of the old one).
pub(super) struct Draft {
    pub key: Option<IndexKey>,
    pub key_len: usize,
    pub leaf: OwnLeaf,
}

/// Where a draft's memory comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    Growth,
    /// The same, if that is to be had at once.
    AtHand,
    /// What is built takes the place of something larger: the emergency area may serve it, unless more than that has been taken already.
    Freeing,
}

impl For {
    pub(super) fn reserve(self, size: usize) -> Result<(), Full> {
        match self {
            For::Growth => loosekv_shm::reserve_growth(&[size]),
            For::AtHand => loosekv_shm::reserve_at_hand(&[size]),
            For::Freeing if heap::is_exceeded() => loosekv_shm::reserve_at_hand(&[size]),
            For::Freeing => loosekv_shm::reserve_emergency(&[size]),
        }
    }
}

/// How large the leaves of a plan are to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sizes {
    /// All but the last are filled up, since what comes later goes behind them.
    Full,
    /// One leaf where all fits, else of many sizes with room for more.
    Many,
    /// So many times as many, and smaller ones: the heap may be out of larger objects, and have enough of these.
    Small(usize),
}

impl<'p> Plan<'p> {
    pub(super) fn before(ahead: Ahead) -> Plan<'p> {
        Plan { ahead, parts: Vec::new(), keys: 0, weight: 0, edges: Default::default() }
    }

    /// Empties it; it keeps its memory.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        (self.keys, self.weight) = (0, 0);
    }

    pub(super) fn keys(&self) -> usize {
        self.keys
    }

    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    pub(super) fn push_new(&mut self, key: &'p [u8], value: u32) {
        self.keys += 1;
        self.weight += weight(key.len());
        self.parts.push(Part::New { key, value });
    }

    /// The keys `from..to` of a leaf, except those that are dead.
    pub(super) fn push_old(&mut self, leaf: Leaf<'p>, from: usize, to: usize) {
        if leaf.dead() == 0 {
            return self.push_alive(leaf, from, to);
        }
        let mut start = from;
        for i in from..to {
            if leaf.value(i).load(Relaxed) == DEAD {
                self.push_alive(leaf, start, i);
                start = i + 1;
            }
        }
        self.push_alive(leaf, start, to);
    }

    fn push_alive(&mut self, leaf: Leaf<'p>, from: usize, to: usize) {
        if from < to {
            self.keys += to - from;
            self.weight += leaf.weight(from, to);
            self.parts.push(Part::Old { leaf, from, to });
        }
    }

    /// Does it fit one leaf?
    pub(super) fn is_small(&self) -> bool {
        self.keys <= MOST_KEYS && self.weight <= MOST_WEIGHT
    }

    /// Makes the leaves as they are wanted, or else smaller ones from what is there of smaller objects.
    pub(super) fn draft_any(
        &mut self,
        high: Option<&[u8]>,
        sizes: Sizes,
        purpose: For,
    ) -> Result<Option<Vec<Draft>>, Full> {
        let mut drafts = self.draft(high, sizes, purpose);
        for times in [2, 4] {
            drafts = drafts.or_else(|_| self.draft(high, Sizes::Small(times), For::AtHand));
        }
        drafts
    }

    /// Makes the leaves; the last one ends at `high`. `None`: they are too many.
    pub(super) fn draft(
        &mut self,
        high: Option<&[u8]>,
        sizes: Sizes,
        purpose: For,
    ) -> Result<Option<Vec<Draft>>, Full> {
        if self.is_small() && !matches!(sizes, Sizes::Small(_)) {
            let (first, last) = &mut self.edges;
            let leaf = write(&self.parts, high, purpose, first, last)?;
            return Ok(Some(vec![Draft { key: None, key_len: 0, leaf }]));
        }
        let Cut { parts, ends, .. } = self.cut(sizes);
        if ends.len() > MOST_LEAVES {
            return Ok(None);
        }
        let (first, last) = &mut self.edges;
        let mut drafts = Vec::with_capacity(ends.len());
        let (mut low, mut start) = (None::<Vec<u8>>, 0);
        for (nth, end) in ends.iter().enumerate() {
            let leaf = parts.get(start..*end).unwrap_or_default();
            start = *end;
            // The next leaf begins at the shortest key that is above all of this one.
            let mut next = None;
            if nth + 1 < ends.len() {
                edge_key(leaf.last(), true, last);
                edge_key(parts.get(start), false, first);
                first.truncate(common(last, first) + 1);
                next = Some(first.clone());
            }
            let own = write(leaf, next.as_deref().or(high), purpose, first, last)?;
            let key_len = low.as_ref().map_or(0, Vec::len);
            let key = low.as_deref().map(|low| own_key(low, purpose)).transpose()?;
            drafts.push(Draft { key, key_len, leaf: own });
            low = next;
        }
        Ok(Some(drafts))
    }

    /// Cuts the parts where leaves end.
    fn cut(&mut self, sizes: Sizes) -> Cut<'p> {
        let needed = self.keys.div_ceil(MOST_KEYS).max(self.weight.div_ceil(MOST_WEIGHT));
        let roomy = needed.max((self.keys + FILL / 2) / FILL);
        let leaves = match sizes {
            Sizes::Full => needed,
            Sizes::Many => roomy,
            Sizes::Small(times) => times * roomy,
        };
        edge_key(self.parts.first(), false, &mut self.edges.0);
        let mut cut = Cut {
            total: self.keys,
            leaves,
            sizes,
            seed: key_hash(&self.edges.0),
            most: 0,
            parts: Vec::with_capacity(self.parts.len() + leaves),
            ends: Vec::with_capacity(leaves + 1),
            keys: 0,
            weight: 0,
        };
        cut.most = cut.keys_of(0);
        for part in &self.parts {
            match *part {
                Part::New { key, .. } => {
                    cut.room_for(weight(key.len()));
                    cut.parts.push(*part);
                }
                Part::Old { leaf, from, to } => {
                    let mut start = from;
                    for i in from..to {
                        let weight = weight(leaf.key_len(i));
                        if start < i && cut.is_full(weight) {
                            cut.parts.push(Part::Old { leaf, from: start, to: i });
                            start = i;
                        }
                        cut.room_for(weight);
                    }
                    cut.parts.push(Part::Old { leaf, from: start, to });
                }
            }
        }
        cut.ends.push(cut.parts.len());
        cut
    }
}

/// A plan in pieces.
struct Cut<'p> {
    /// Keys in all, and how many leaves they shall make.
    total: usize,
    leaves: usize,
    sizes: Sizes,
    seed: u64,
    /// Most keys of the leaf that is being filled.
    most: usize,
    /// None goes beyond its leaf.
    parts: Vec<Part<'p>>,
    /// Where each leaf ends among the parts.
    ends: Vec<usize>,
    /// Of the leaf that is being filled.
    keys: usize,
    weight: usize,
}

impl Cut<'_> {
    /// Most keys of leaf number `nth`. Leaves are not alike in size, for then they would all grow together, and be split
    /// together: what one size has taken from the heap would be free when it is another one that is wanted everywhere.
    fn keys_of(&self, nth: usize) -> usize {
        if self.sizes == Sizes::Full || nth >= self.leaves {
            // Large keys make more leaves than there were to be.
            return MOST_KEYS;
        }
        (self.begin_of(nth + 1) - self.begin_of(nth)).clamp(1, MOST_KEYS)
    }

    /// With which key leaf number `nth` begins: up to a quarter of a leaf off, so that none becomes too large.
    fn begin_of(&self, nth: usize) -> usize {
        if nth == 0 || nth == self.leaves {
            return nth / self.leaves * self.total;
        }
        let room = (MOST_KEYS * self.leaves).saturating_sub(self.total).min(self.total / 2) / (2 * self.leaves);
        let random = (self.seed ^ nth as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        nth * self.total / self.leaves + random as usize % (2 * room + 1) - room
    }

    fn is_full(&self, more: usize) -> bool {
        self.keys == self.most || self.weight + more > MOST_WEIGHT
    }

    /// Counts a key, in a new leaf if this one has no room for it.
    fn room_for(&mut self, weight: usize) {
        if self.is_full(weight) {
            self.ends.push(self.parts.len());
            self.most = self.keys_of(self.ends.len());
            (self.keys, self.weight) = (0, 0);
        }
        self.keys += 1;
        self.weight += weight;
    }
}

fn own_key(key: &[u8], purpose: For) -> Result<IndexKey, Full> {
    if key.len() > INLINE {
        purpose.reserve(key.len())?;
    }
    Ok(loosekv_shm::scope::with(|| IndexKey::new(key)))
}

/// The first or last key of a part.
fn edge_key(part: Option<&Part<'_>>, last: bool, out: &mut Vec<u8>) {
    match part {
        Some(Part::Old { leaf, from, to }) => leaf.key(if last { to - 1 } else { *from }, out),
        Some(Part::New { key, .. }) => {
            out.clear();
            out.extend_from_slice(key);
        }
        None => out.clear(),
    }
}

/// Length of what both begin with.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Makes one leaf of these parts.
fn write(
    parts: &[Part<'_>],
    high: Option<&[u8]>,
    purpose: For,
    first: &mut Vec<u8>,
    last: &mut Vec<u8>,
) -> Result<OwnLeaf, Full> {
    edge_key(parts.first(), false, first);
    edge_key(parts.last(), true, last);
    // What the first and the last key share, all share.
    first.truncate(common(first, last));
    let shape = measure(parts, first.len(), high.map(<[u8]>::len));
    purpose.reserve(room(shape.size()))?;
    let mut writer = LeafWriter::new(shape, first, high);
    for part in parts {
        match *part {
            Part::New { key, value } => writer.push(key, value),
            Part::Old { leaf, from, to } if writer.is_alike(leaf) => writer.copy(leaf, from, to),
            Part::Old { leaf, from, to } => {
                for i in from..to {
                    leaf.key(i, last);
                    writer.push(last, leaf.value(i).load(Relaxed));
                }
            }
        }
    }
    Ok(writer.finish())
}

/// What the leaf of these parts looks like.
fn measure(parts: &[Part<'_>], prefix: usize, high: Option<usize>) -> Shape {
    let mut shape = Shape { count: 0, prefix, suffix: None, rests: 0, high };
    let (mut alike, mut length) = (true, None);
    let mut count = |keys: usize, key_len: usize| {
        let suffix = key_len - prefix;
        shape.count += keys;
        shape.rests += keys * suffix.saturating_sub(4);
        alike &= *length.get_or_insert(suffix) == suffix;
    };
    for part in parts {
        match *part {
            Part::New { key, .. } => count(1, key.len()),
            Part::Old { leaf, from, to } => match leaf.suffixes() {
                Some(suffix) => count(to - from, leaf.prefix().len() + suffix),
                None => (from..to).for_each(|i| count(1, leaf.key_len(i))),
            },
        }
    }
    shape.suffix = alike.then_some(length.unwrap_or(0));
    shape
}
