//! Barren stretches: where scans begin and nothing lives.
//!
//! A queue is read at its one end and written at the other. Until flush and merge have taken the tombstones away, every scan for
//! the first row steps over those of all rows that were taken before. So a table remembers a few stretches of keys, from where
//! scans have begun, of which a reader sees no row if he sees all writers below a certain one; a scan that begins
//! within one goes on at its end.
//!
//! ```text
//!  from              proven              proposed
//!   |--- nothing here ---|--- one scan came by ---|      later scans begin at `proven`
//! ```
//!
//! A scan that had to step over many dead keys, one after the other, *proposes* the stretch. A later scan, which pinned its
//! superversion after that, and finds all of it dead again, *proves* it. Whoever appends a row version looks, once it is
//! linked, whether its key lies in a stretch, and strikes that off. So a version that was linked before the second scan
//! came by was met by it; and one that was linked later strikes the stretch off before its statement ends, which is before
//! anybody reads who sees it. What flush, merge and purge do changes no reader's view: a stretch is indifferent to them.
//!
//! Dead is a key whose newest version is a tombstone of a committed writer below all that the scan's snapshot may not see.

use crate::mutation::{on, Mutation::*};
use crate::tree::latched::Latched;
use crate::types::Writer;
use loosekv_shm::RawLatch;
use std::ops::Bound;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering::SeqCst};

/// Dead keys in a row that are worth remembering.
pub(super) const MANY: u32 = if cfg!(test) { 2 } else { 64 };
/// Stretches that a table remembers.
const STRETCHES: usize = 4;
/// Longer keys are not remembered.
const LONGEST: usize = 64;

/// A key, or what comes right after one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Edge {
    bytes: [u8; LONGEST],
    /// After the bytes, for the order: keys are filled up with zeros.
    len: u8,
}

impl Edge {
    fn at(key: &[u8]) -> Option<Edge> {
        let mut edge = Edge { bytes: [0; LONGEST], len: u8::try_from(key.len()).ok()? };
        edge.bytes.get_mut(..key.len())?.copy_from_slice(key);
        Some(edge)
    }

    /// The least key that a scan finds which begins here.
    fn after(start: Bound<&[u8]>) -> Option<Edge> {
        match start {
            Bound::Unbounded => Edge::at(&[]),
            Bound::Included(key) => Edge::at(key),
            // Zeros stand behind it already.
            Bound::Excluded(key) if key.len() < LONGEST => Edge::at(key).map(|edge| Edge { len: edge.len + 1, ..edge }),
            Bound::Excluded(_) => None,
        }
    }

    fn key(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// Before this edge, and after the one before it, whoever sees all writers below `seen` sees nothing.
#[derive(Clone, Copy)]
struct Upto {
    edge: Edge,
    seen: Writer,
}

#[derive(Clone, Copy)]
struct Stretch {
    from: Edge,
    proven: Option<Upto>,
    proposed: Option<Upto>,
    /// Of the proposal: later ones have higher numbers.
    ticket: u64,
}

#[derive(Default)]
struct Known {
    stretches: [Option<Stretch>; STRETCHES],
    /// Which one makes room for the next.
    oldest: usize,
}

/// What a table knows of them.
pub struct Barren<L> {
    /// Whether any is remembered: mostly not, and then nobody takes the latch.
    any: AtomicU32,
    /// Proposals that there have been.
    tickets: AtomicU64,
    known: Latched<L, Known>,
}

/// A scan's walk over the dead keys where it began.
pub(super) struct Walk {
    from: Edge,
    sees_below: Writer,
    /// Proposals that there were before its superversion was pinned.
    begun: u64,
    dead: u32,
    last: Vec<u8>,
    /// Of the tombstones, the newest writer, plus one.
    seen: Writer,
}

impl<L: RawLatch> Barren<L> {
    pub fn new() -> Barren<L> {
        Barren { any: AtomicU32::new(0), tickets: AtomicU64::new(0), known: Latched::new(Known::default()) }
    }

    /// To be asked before a scan pins its superversion.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        let tickets = self.tickets.load(SeqCst);
        // What was linked by those who did not know of these proposals is seen from here on.
        fence(SeqCst);
        tickets
    }

    /// A scan begins at `start` whose reader sees all writers below `sees_below`. Returns its walk, unless the key is too
    /// long to be remembered, and the key where it may begin instead.
    pub(super) fn begin(&self, start: Bound<&[u8]>, sees_below: Writer, begun: u64) -> (Option<Walk>, Option<Vec<u8>>) {
        let Some(start) = Edge::after(start) else { return (None, None) };
        let mut walk = Walk { from: start, sees_below, begun, dead: 0, last: Vec::new(), seen: Writer(0) };
        if self.any.load(SeqCst) == 0 {
            return (Some(walk), None);
        }
        let known = self.known.lock();
        for stretch in known.stretches.iter().flatten().filter(|stretch| stretch.from <= start) {
            let seen = |upto: &Upto| upto.seen <= sees_below || on(BarrenToAll);
            if let Some(proven) = stretch.proven.filter(|upto| start < upto.edge && seen(upto)) {
                (walk.from, walk.seen) = (stretch.from, proven.seen);
                return (Some(walk), Some(proven.edge.key().to_vec()));
            }
        }
        (Some(walk), None)
    }

    /// A walk has ended.
    pub(super) fn end(&self, walk: &Walk) {
        if walk.dead < MANY {
            return;
        }
        let Some(last) = Edge::at(&walk.last) else { return };
        let mut known = self.known.lock();
        // First this, then the number: who begins after the proposal was not missed by a writer who knew of none.
        self.any.store(1, SeqCst);
        let ticket = self.tickets.fetch_add(1, SeqCst) + 1;
        let known = &mut *known;
        let proposed = Some(Upto { edge: last, seen: walk.seen });
        let place = known.stretches.iter().position(|place| place.is_some_and(|stretch| stretch.from == walk.from));
        match place.and_then(|place| known.stretches.get_mut(place)?.as_mut()) {
            Some(stretch) => {
                let proof = |upto: &Upto| stretch.ticket <= walk.begun && upto.edge <= last;
                if let Some(upto) = stretch.proposed.filter(proof) {
                    stretch.proven = Some(Upto { edge: upto.edge, seen: upto.seen.max(walk.seen) });
                }
                if stretch.proven.is_none_or(|proven| proven.edge < last) {
                    (stretch.proposed, stretch.ticket) = (proposed, ticket);
                }
            }
            None => {
                let free = known.stretches.iter().position(Option::is_none).unwrap_or_else(|| {
                    known.oldest = (known.oldest + 1) % STRETCHES;
                    known.oldest
                });
                if let Some(place) = known.stretches.get_mut(free) {
                    *place = Some(Stretch { from: walk.from, proven: None, proposed, ticket });
                }
            }
        }
    }

    /// Rows with these keys have just been linked. To be called before anybody may see them.
    #[inline]
    pub(super) fn written<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        // The links come first, for whoever proves a stretch.
        fence(SeqCst);
        if self.any.load(SeqCst) != 0 && !on(BarrenNotStruckOff) {
            self.strike(keys);
        }
    }

    /// Rows may have come that nobody has said of (a standby meets them in a run).
    pub(super) fn forget(&self) {
        let mut known = self.known.lock();
        *known = Known::default();
        self.any.store(0, SeqCst);
    }

    #[cold]
    fn strike<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let mut known = self.known.lock();
        for key in keys {
            // What begins alike is taken for the key itself.
            let Some(edge) = Edge::at(key.get(..LONGEST).unwrap_or(key)) else { continue };
            for place in &mut known.stretches {
                let Some(stretch) = place.filter(|stretch| stretch.from <= edge) else { continue };
                let within = |upto: Option<Upto>| upto.is_some_and(|upto| edge <= upto.edge);
                if within(stretch.proven) {
                    *place = None;
                } else if within(stretch.proposed) {
                    *place = stretch.proven.is_some().then_some(Stretch { proposed: None, ..stretch });
                }
            }
        }
        if known.stretches.iter().all(Option::is_none) {
            self.any.store(0, SeqCst);
        }
    }
}

impl Walk {
    /// A key with this newest version (a tombstone, or not) that the reader sees: whether it is dead, and the walk goes on.
    #[inline]
    pub(super) fn step(&mut self, key: &[u8], tombstone: bool, writer: Writer) -> bool {
        let dead = tombstone && writer < self.sees_below;
        if dead {
            self.dead = self.dead.saturating_add(1);
            self.seen = self.seen.max(Writer(writer.0.saturating_add(1)));
            self.last.clear();
            self.last.extend_from_slice(key);
        }
        dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loosekv_shm::ThreadLatch as Latch;

    fn walk(barren: &Barren<Latch>, keys: std::ops::Range<u8>, sees: u64) -> Option<Vec<u8>> {
        let (walk, jump) = barren.begin(Bound::Included(&[1]), Writer(sees), barren.now());
        let mut walk = walk.unwrap();
        for key in keys.filter(|key| jump.as_ref().is_none_or(|jump| jump.as_slice() <= [*key].as_slice())) {
            assert!(walk.step(&[key], true, Writer(u64::from(key))));
        }
        assert!(!walk.step(&[99], false, Writer(1)));
        barren.end(&walk);
        jump
    }

    #[test]
    fn two_walks_make_a_stretch() {
        let barren = Barren::new();
        assert_eq!(walk(&barren, 1..10, 50), None);
        assert_eq!(walk(&barren, 1..20, 50), None);
        assert_eq!(walk(&barren, 1..20, 50), Some(vec![9]));
        // Once more, further.
        assert_eq!(walk(&barren, 1..30, 50), Some(vec![19]));
        let begin = |from: Bound<&[u8]>, sees| barren.begin(from, Writer(sees), 0).1;
        assert_eq!(begin(Bound::Included(&[0]), 50), None, "before it");
        assert_eq!(begin(Bound::Excluded(&[0]), 50), None);
        assert_eq!(begin(Bound::Excluded(&[5]), 50), Some(vec![29 - 10]));
        assert_eq!(begin(Bound::Included(&[19]), 50), None, "beyond it");
        assert_eq!(begin(Bound::Included(&[5]), 19), None, "somebody older");
    }

    #[test]
    fn who_writes_there_strikes_it_off() {
        let barren = Barren::new();
        for _ in 0..2 {
            walk(&barren, 1..10, 50);
        }
        let stands = |barren: &Barren<Latch>| barren.begin(Bound::Included(&[1]), Writer(50), 0).1.is_some();
        barren.written([[0].as_slice(), [20].as_slice()].into_iter());
        assert!(stands(&barren));
        barren.written(std::iter::once([4].as_slice()));
        assert!(!stands(&barren));
        // A proposal, too; and one walk begins anew.
        walk(&barren, 1..10, 50);
        barren.written(std::iter::once([4, 7].as_slice()));
        walk(&barren, 1..10, 50);
        assert!(!stands(&barren));
        walk(&barren, 1..10, 50);
        assert!(stands(&barren));
    }

    #[test]
    fn a_walk_that_began_before_the_proposal_proves_nothing() {
        let barren = Barren::new();
        let begun = barren.now();
        walk(&barren, 1..10, 50);
        let (late, _) = barren.begin(Bound::Included(&[1]), Writer(50), begun);
        let mut late = late.unwrap();
        (1..10).for_each(|key| assert!(late.step(&[key], true, Writer(1))));
        barren.end(&late);
        assert_eq!(barren.begin(Bound::Included(&[1]), Writer(50), 0).1, None);
    }

    #[test]
    fn edges_order_as_keys_do() {
        let keys: [&[u8]; 6] = [b"", b"\0", b"a", b"a\0", b"a\0b", b"b"];
        let edges = keys.map(|key| Edge::at(key).unwrap());
        assert!(edges.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(Edge::after(Bound::Excluded(b"a")) == Edge::at(b"a\0"));
        assert!(Edge::at(&[7; LONGEST + 1]).is_none() && Edge::after(Bound::Excluded(&[7; LONGEST])).is_none());
    }

    #[test]
    fn what_is_too_long_is_struck_off_by_its_beginning() {
        let barren = Barren::new();
        for _ in 0..2 {
            walk(&barren, 1..10, 50);
        }
        barren.written(std::iter::once([3; 200].as_slice()));
        assert_eq!(barren.begin(Bound::Included(&[1]), Writer(50), 0).1, None);
    }
}
