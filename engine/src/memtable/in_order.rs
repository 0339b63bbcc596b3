//! All row versions in order, for one who goes through the whole memtable.
//!
//! ```text
//!   level 3   s0 -----------------> s1 -----------------> s2 ----------> ...      segments: found one after the other
//!   level 0   s0 > n > n > n > n -> s1 > n > n ---------> s2 > n > n > n ...      walked side by side
//! ```
//!
//! A list in memory's random order costs a cache miss a link, and the next link is known only then. The links between the nodes
//! of a higher level divide it into segments, and the misses of many segments are waited for at one time.

use super::{Memtable, NodeRef};

/// Segments that are walked at one time; a processor waits for a dozen lines of cache or so.
const SEGMENTS: usize = 32;
/// The level whose nodes begin segments: of about 2^3 nodes.
const LEVEL: usize = 3;

/// See [`Memtable::in_order`].
pub struct InOrder<'a, T> {
    table: &'a Memtable,
    /// Is shown what will come soon.
    touch: T,
    /// Where the next segment begins: the head, a node of the level, or 0 at the end.
    from: u32,
    segments: [Segment; SEGMENTS],
    /// What comes next stands there in this segment.
    at: (usize, usize),
}

#[derive(Default)]
struct Segment {
    nodes: Vec<u32>,
    next: u32,
    end: u32,
}

impl Memtable {
    /// The row versions in order. `touch` is shown each of them some time before: what it is going to be asked for can be fetched.
    pub fn in_order<'a, T: FnMut(NodeRef<'a>)>(&'a self, touch: T) -> InOrder<'a, T> {
        let segments = std::array::from_fn(|_| Segment::default());
        InOrder { table: self, touch, from: self.list.head(), segments, at: (SEGMENTS, 0) }
    }
}

impl<'a, T: FnMut(NodeRef<'a>)> InOrder<'a, T> {
    /// Walks the next segments. False: there are none.
    #[inline(never)]
    fn fill(&mut self) -> bool {
        self.at = (0, 0);
        let list = &self.table.list;
        let any = self.from != 0;
        for segment in &mut self.segments {
            segment.nodes.clear();
            (segment.next, segment.end) = (0, 0);
            if self.from != 0 {
                // SAFETY: the head, or reached on this level; and each has the lowest one.
                let (first, end) = unsafe { (list.next(self.from), list.on(self.from, LEVEL)) };
                segment.next = if self.from == list.head() { first } else { self.from };
                segment.end = end;
                self.from = end;
            }
        }
        let mut walking = any;
        while walking {
            walking = false;
            for segment in &mut self.segments {
                if segment.next == segment.end {
                    continue;
                }
                walking = true;
                segment.nodes.push(segment.next);
                (self.touch)(NodeRef { table: self.table, offset: segment.next });
                // SAFETY: reached on the lowest level; where that leads is 0, or a node, and nothing is read there yet.
                unsafe {
                    segment.next = list.next(segment.next);
                    list.node(segment.next).prefetch_whole();
                }
            }
        }
        any
    }
}

impl<'a, T: FnMut(NodeRef<'a>)> Iterator for InOrder<'a, T> {
    type Item = NodeRef<'a>;

    #[inline]
    fn next(&mut self) -> Option<NodeRef<'a>> {
        loop {
            let (segment, node) = self.at;
            let nodes = self.segments.get(segment).map(|segment| &segment.nodes);
            if let Some(offset) = nodes.and_then(|nodes| nodes.get(node)) {
                self.at.1 += 1;
                return Some(NodeRef { table: self.table, offset: *offset });
            }
            if nodes.is_some() {
                self.at = (segment + 1, 0);
            } else if !self.fill() {
                return None;
            }
        }
    }
}
