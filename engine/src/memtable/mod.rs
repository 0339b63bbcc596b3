//! A memtable: the row versions of one generation, in key order, newest first within a key.
//!
//! ```text
//!   Memtable -- arena:     [head | node | node | table of 256 rows | node | ...]     (see arena.rs, node.rs)
//!            -- skip list:  key ascending, row id descending                         (skip_list.rs)
//!            -- guides:     what a key begins with -> a node nearby in the list      (guides.rs, scale.rs)
//!            -- key trie:   key -> its newest version, by hash                       (key_trie.rs)
//!            -- row index:  row id -> node                                           (row_index.rs)
//! ```
//!
//! Versions are added and never taken away or moved; the memtable goes as a whole. It holds keys, heads and log
//! addresses: the bodies are in the row log. Adding is in two steps: [`Memtable::room`] does everything that can fail
//! and changes nothing that a reader sees, [`Memtable::link`] cannot fail. Between the two the version is appended to
//! the log.
//!
//! A version being linked is in the list first, then in the trie, then in the row index: whoever looks meanwhile may meet it in
//! one and not in another.
//!
//! Readers need no lock. Several appenders may add at the same time, also versions of one key in any order of their row
//! ids (replay); it is for the caller to see that row-id order is version order (I2), by latching keys.

mod arena;
mod back;
mod guides;
mod in_order;
mod key_trie;
mod node;
mod row_index;
mod scale;
mod side_by_side;
mod skip_list;
#[cfg(test)]
mod tests;

use crate::cpu::{prefetch, LINE};
use crate::types::{Fate, Flags, Head, L0Id, LogAddr, RowId, Writer, MAX_KEY};
use arena::{Arena, LEAST_CHUNK, LITTLE, UNIT};
use guides::Guides;
use key_trie::KeyTrie;
use node::{is_far, Node, Shape, Want, MAX_HEIGHT};
use row_index::RowIndex;
use side_by_side::Wanted;
use skip_list::{Path, SkipList};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering};

/// Values of a hint cell, see [`NodeRef::hint`].
pub const HINT_UNKNOWN: u8 = 0;
pub const HINT_COMMITTED: u8 = 1;
pub const HINT_ABORTED: u8 = 2;

/// Rows between two looks at what the guides are good for.
const ROWS_A_WEIGHING: u64 = 1024;
/// Bytes of memory that a little memtable may take.
const MOST_OF_LITTLE: usize = 64 << 10;

/// What appenders count, on a cache line of its own.
#[repr(align(64))]
struct Counts {
    rows: AtomicU64,
    max_row: AtomicU64,
    min_writer: AtomicU64,
    max_writer: AtomicU64,
}

pub struct Memtable {
    list: SkipList,
    generation: L0Id,
    base_row: RowId,
    base_writer: Writer,
    /// Bytes of the arena that the first row found handed out.
    used_at_first: usize,
    counts: Counts,
    /// A node that was the last one when it was linked; others may have come after it.
    last: AtomicU32,
    guides: Guides,
    by_key: KeyTrie,
    by_row: RowIndex,
}

/// Space for one row version, to be used up by [`Memtable::link`].
#[must_use]
pub struct Room<'a> {
    table: &'a Memtable,
    /// Of the block, not of the node in it.
    block: u32,
    shape: Shape,
    row: u32,
    writer: Writer,
}

/// A place in the order where versions of one key belong, remembered from [`Memtable::probe`] for [`Memtable::link`].
#[derive(Clone, Copy)]
pub struct Splice<'a> {
    table: &'a Memtable,
    path: Path,
    newest: u32,
}

/// A row version in a memtable.
#[derive(Clone, Copy)]
pub struct NodeRef<'a> {
    table: &'a Memtable,
    offset: u32,
}

/// Names a row version of one memtable for as long as that lives, see [`Memtable::resume`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeId {
    offset: u32,
    head: u32,
    generation: L0Id,
}

impl Memtable {
    /// An empty memtable. Row ids below `base_row` (and 2^32 above it) have no room here; writers near `base_writer`
    /// take the least space. It never takes more than `capacity` bytes of memory, and is at its best with about
    /// `expected` rows. `None`: no memory.
    pub fn new(
        generation: L0Id,
        base_row: RowId,
        base_writer: Writer,
        capacity: usize,
        expected: u64,
    ) -> Option<Memtable> {
        Memtable::with_arena(Arena::new(capacity, LEAST_CHUNK)?, generation, base_row, base_writer, expected, None)
    }

    /// The same, for rows that are in the log already, all of which are to find memory.
    pub fn of_log(generation: L0Id, base_row: RowId, base_writer: Writer, capacity: usize) -> Option<Memtable> {
        let arena = Arena::new(capacity, LEAST_CHUNK)?.making_do();
        Memtable::with_arena(arena, generation, base_row, base_writer, 0, None)
    }

    /// The same, for keys like those of another memtable.
    pub fn like(
        before: &Memtable,
        generation: L0Id,
        base_row: RowId,
        base_writer: Writer,
        capacity: usize,
    ) -> Option<Memtable> {
        let (arena, rows) = (Arena::new(capacity, LEAST_CHUNK)?, before.rows());
        Memtable::with_arena(arena, generation, base_row, base_writer, rows, Some(&before.list))
    }

    /// An empty memtable for where memory is scarce: it takes little as long as it has few rows, and never has many.
    pub fn little(generation: L0Id, base_row: RowId, base_writer: Writer) -> Option<Memtable> {
        let arena = Arena::new(MOST_OF_LITTLE, LITTLE)?;
        Memtable::with_arena(arena, generation, base_row, base_writer, 0, None)
    }

    fn with_arena(
        arena: Arena,
        generation: L0Id,
        base_row: RowId,
        base_writer: Writer,
        expected: u64,
        before: Option<&SkipList>,
    ) -> Option<Memtable> {
        let counts = Counts {
            rows: AtomicU64::new(0),
            max_row: AtomicU64::new(0),
            min_writer: AtomicU64::new(u64::MAX),
            max_writer: AtomicU64::new(0),
        };
        let list = SkipList::new(arena)?;
        let by_key = KeyTrie::new(&list, expected)?;
        let guides = Guides::new(&list, expected, before);
        let (last, by_row, used_at_first) = (AtomicU32::new(0), RowIndex::new(), list.arena.used());
        Some(Memtable { list, generation, base_row, base_writer, used_at_first, counts, last, guides, by_key, by_row })
    }

    pub fn generation(&self) -> L0Id {
        self.generation
    }

    pub fn base_row(&self) -> RowId {
        self.base_row
    }

    pub fn base_writer(&self) -> Writer {
        self.base_writer
    }

    /// Row versions linked.
    pub fn rows(&self) -> u64 {
        self.counts.rows.load(Ordering::Acquire)
    }

    pub fn is_empty(&self) -> bool {
        self.rows() == 0
    }

    /// Whether half of the room for rows is gone: some of it stays lost when many rows have not found theirs.
    pub fn is_used_up(&self) -> bool {
        let room = self.list.arena.capacity().saturating_sub(self.used_at_first);
        self.bytes_used().saturating_sub(self.used_at_first) > room / 2
    }

    /// Bytes of arena handed out.
    pub fn bytes_used(&self) -> usize {
        self.list.arena.used()
    }

    /// Bytes of memory occupied, this structure included.
    pub fn memory_used(&self) -> usize {
        self.list.arena.memory() + std::mem::size_of::<Memtable>()
    }

    /// Highest row id linked, `None` when empty.
    pub fn max_row(&self) -> Option<RowId> {
        (!self.is_empty()).then(|| RowId(self.counts.max_row.load(Ordering::Acquire)))
    }

    /// Lowest writer linked, `None` when empty.
    pub fn min_writer(&self) -> Option<Writer> {
        (!self.is_empty()).then(|| Writer(self.counts.min_writer.load(Ordering::Acquire)))
    }

    /// Highest writer linked, `None` when empty.
    pub fn max_writer(&self) -> Option<Writer> {
        (!self.is_empty()).then(|| Writer(self.counts.max_writer.load(Ordering::Acquire)))
    }

    // Adding.

    /// Space for the version `head` (its row id and writer count) of a key of this length. `None`: the memtable is
    /// full, or the row id out of its span; nothing that anybody sees is changed then.
    pub fn room(&self, key_len: usize, head: &Head) -> Option<Room<'_>> {
        assert!(key_len <= MAX_KEY, "a key of {key_len} bytes");
        let row = u32::try_from(head.row_id.0.checked_sub(self.base_row.0)?).ok()?;
        let rows = self.counts.rows.load(Ordering::Relaxed);
        self.guides.begin(&self.list, rows);
        self.by_key.begin(&self.list, rows);
        // SAFETY: always this arena.
        if !unsafe { self.by_row.prepare(&self.list.arena, row) } {
            return None;
        }
        let height = height_of(head.row_id, self.generation);
        let shape = Shape::new(key_len, height);
        let far = is_far(head.writer, self.base_writer);
        let block = self.list.arena.alloc((shape.bytes(far) / UNIT) as u32)?;
        // Linking would wait for it.
        // SAFETY: the block is of this arena.
        let start = unsafe { self.list.arena.at(block) };
        [0, LINE].into_iter().for_each(|at| prefetch(start.wrapping_add(at)));
        Some(Room { table: self, block, shape, row, writer: head.writer })
    }

    /// Takes room back that was not needed after all (best effort: otherwise it is lost until the memtable goes).
    pub fn give_back(&self, room: Room<'_>) {
        assert!(std::ptr::eq(room.table, self), "room of another memtable");
        let far = is_far(room.writer, self.base_writer);
        self.list.arena.give_back(room.block, (room.shape.bytes(far) / UNIT) as u32);
    }

    /// Finds the place of a key. What is found is what was there at one moment; [`Memtable::refresh`] brings it up to
    /// date once the key is latched.
    pub fn probe(&self, key: &[u8]) -> Splice<'_> {
        let path = self.list.path(&Want::before(key));
        Splice { table: self, newest: self.if_key(path.next(), key), path }
    }

    /// Finds the place of a key for the version that is to have this room, which is cheaper than a place for any.
    pub fn probe_for(&self, key: &[u8], room: &Room<'_>) -> Splice<'_> {
        let want = Want::before(key);
        let in_trie = self.by_key.begin_insertion(&self.list, key);
        let path = self.guides.path(&self.list, &want, room.shape.height()).unwrap_or_else(|| self.list.path(&want));
        in_trie.prefetch(&self.list);
        Splice { table: self, newest: self.if_key(path.next(), key), path }
    }

    /// As [`Memtable::probe_for`], for many keys: their places are looked for side by side.
    pub fn probe_all<'k>(&self, wanted: impl Iterator<Item = (&'k [u8], &'k Room<'k>)>) -> Vec<Splice<'_>> {
        let wanted: Vec<Wanted<'_>> =
            wanted.map(|(key, room)| Wanted { want: Want::before(key), height: room.shape.height() }).collect();
        let paths = self.guides.paths(&self.list, &wanted);
        let splice = |(Wanted { want, .. }, path): (&Wanted<'_>, Option<Path>)| {
            let path = path.unwrap_or_else(|| self.list.path(want));
            Splice { table: self, newest: self.if_key(path.next(), want.key()), path }
        };
        wanted.iter().zip(paths).map(splice).collect()
    }

    /// Begins to fetch what looking up these keys will look at, and some of what adding versions of them will.
    pub fn prefetch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        self.by_key.prefetch(&self.list, keys);
    }

    /// Brings a splice of `key` up to date with what was linked since; cheap when little was. Returns the newest row
    /// id.
    pub fn refresh(&self, splice: &mut Splice<'_>, key: &[u8]) -> Option<RowId> {
        assert!(std::ptr::eq(splice.table, self), "splice of another memtable");
        let next = self.list.renew(&mut splice.path, &Want::before(key));
        splice.newest = self.if_key(next, key);
        splice.newest()
    }

    /// Adds a row version. Cannot fail. `room` is for this very version, `splice` for this key; the splice may be as
    /// old as it likes, and one of [`Memtable::probe`] serves for further versions of the key.
    pub fn link(&self, splice: &Splice<'_>, room: Room<'_>, key: &[u8], head: &Head, addr: LogAddr) -> NodeRef<'_> {
        assert!(std::ptr::eq(room.table, self) && std::ptr::eq(splice.table, self), "of another memtable");
        let same = room.shape.key_len() == key.len() && room.writer == head.writer;
        assert!(same && self.base_row.0 + u64::from(room.row) == head.row_id.0, "room for another version");
        assert!(room.shape.height() <= splice.path.levels(), "a splice for another room");
        debug_assert!(addr.0 >> 48 == 0);
        let offset = room.block + (room.shape.front(is_far(head.writer, self.base_writer)) / UNIT) as u32;
        let want = Want::row(key, room.row);
        // The splice's successors stand after all versions of the key, or begin with the newest of them: if that one is
        // older, they all stand after the new version.
        let exact = splice.newest().is_none_or(|newest| newest < head.row_id);
        // SAFETY: the block is large enough for the shape and nobody else knows it. The splice is of this list, and for
        // this key (of another key it would be a mistake in order, checked below).
        unsafe {
            self.list.node(offset).write(room.shape, room.row, self.base_writer, key, head, addr);
            self.list.insert(&splice.path, offset, room.shape, &want, exact);
        }
        self.check_order(offset);
        // SAFETY: the node has just been linked.
        if unsafe { self.list.next(offset) } == 0 {
            self.last.store(offset, Ordering::Release);
        }
        self.guides.note(&self.list, key, &splice.path, offset, room.shape.height());
        self.by_key.insert(&self.list, offset, key);
        // SAFETY: always this arena.
        if let Some(slot) = unsafe { self.by_row.slot(&self.list.arena, room.row) } {
            slot.store(offset, Ordering::Release);
        }
        self.count(head);
        NodeRef { table: self, offset }
    }

    fn count(&self, head: &Head) {
        raise(&self.counts.max_row, head.row_id.0);
        raise(&self.counts.max_writer, head.writer.0);
        if self.counts.min_writer.load(Ordering::Relaxed) > head.writer.0 {
            self.counts.min_writer.fetch_min(head.writer.0, Ordering::AcqRel);
        }
        // Last: who sees the memtable not empty sees the rest.
        let rows = self.counts.rows.fetch_add(1, Ordering::AcqRel);
        if rows.is_multiple_of(ROWS_A_WEIGHING) {
            self.guides.weigh(rows);
        }
    }

    /// A node just linked stands before its successor.
    fn check_order(&self, offset: u32) {
        if cfg!(debug_assertions) {
            let node = NodeRef { table: self, offset };
            if let Some(next) = node.next() {
                let order = node.key().cmp(next.key()).then(next.row_id().cmp(&node.row_id()));
                assert!(order.is_lt(), "a row version twice, or a splice of another key");
            }
        }
    }

    // Reading.

    /// The newest version of a key.
    pub fn newest(&self, key: &[u8]) -> Option<NodeRef<'_>> {
        if self.is_beyond_all(key) || self.first().is_none() {
            return None;
        }
        match self.by_key.find(&self.list, key) {
            Some(found) => self.at(found),
            None => self.at(self.if_key(self.seek(&Want::before(key)).1, key)),
        }
    }

    /// Whether the key is greater than all that are here; ascending keys mostly are. False also if that is not known.
    #[inline]
    fn is_beyond_all(&self, key: &[u8]) -> bool {
        let last = self.last.load(Ordering::Acquire);
        // SAFETY: 0, or the offset of a linked node.
        last != 0 && unsafe { self.list.node(last).is_before(&Want::before(key)) && self.list.next(last) == 0 }
    }

    /// The versions of a key, newest first.
    pub fn versions(&self, key: &[u8]) -> Versions<'_> {
        Versions(self.newest(key))
    }

    /// The row version with this row id.
    pub fn by_row(&self, row: RowId) -> Option<NodeRef<'_>> {
        let row = u32::try_from(row.0.checked_sub(self.base_row.0)?).ok()?;
        // SAFETY: always this arena.
        let slot = unsafe { self.by_row.slot(&self.list.arena, row)? };
        self.at(slot.load(Ordering::Acquire))
    }

    /// The newest version of the first key.
    pub fn first(&self) -> Option<NodeRef<'_>> {
        // SAFETY: the head is always there.
        self.at(unsafe { self.list.next(self.list.head()) })
    }

    /// The newest version of the last key.
    pub fn last(&self) -> Option<NodeRef<'_>> {
        // No key is longer, and none greater.
        let beyond = [u8::MAX; MAX_KEY];
        self.last_at_or_before(&beyond)
    }

    /// The newest version of the first key that is not below `key`.
    pub fn lower_bound(&self, key: &[u8]) -> Option<NodeRef<'_>> {
        self.at(self.seek(&Want::before(key)).1)
    }

    /// The newest version of the first key above `key`.
    pub fn upper_bound(&self, key: &[u8]) -> Option<NodeRef<'_>> {
        self.at(self.seek(&Want::after(key)).1)
    }

    /// The newest version of the last key below `key`.
    pub fn last_before(&self, key: &[u8]) -> Option<NodeRef<'_>> {
        self.newest_of(self.seek(&Want::before(key)).0)
    }

    /// The newest version of the last key that is not above `key`.
    pub fn last_at_or_before(&self, key: &[u8]) -> Option<NodeRef<'_>> {
        self.newest_of(self.seek(&Want::after(key)).0)
    }

    /// The row version that this id names.
    ///
    /// # Safety
    /// The id is of a row version of this very memtable.
    pub unsafe fn resume(&self, id: NodeId) -> NodeRef<'_> {
        assert!(id.head == self.list.head() && id.generation == self.generation, "an id of another memtable");
        NodeRef { table: self, offset: id.offset }
    }

    /// The newest version of the key whose oldest version this is (the head's: none).
    fn newest_of(&self, oldest: u32) -> Option<NodeRef<'_>> {
        if oldest == self.list.head() {
            return None;
        }
        let node = self.at(oldest)?;
        // At least that one is found: it does not vanish. (The trie might not have it yet.)
        self.at(self.if_key(self.seek(&Want::before(node.key())).1, node.key()))
    }

    /// The last node before the place (or the head), and the first one that is not (or 0).
    fn seek(&self, want: &Want<'_>) -> (u32, u32) {
        self.seek_on(0, want)
    }

    /// As [`Memtable::seek`], among the nodes that stand on a level.
    fn seek_on(&self, level: usize, want: &Want<'_>) -> (u32, u32) {
        self.guides.seek_on(&self.list, level, want).unwrap_or_else(|| self.list.seek_on(level, want))
    }

    fn at(&self, offset: u32) -> Option<NodeRef<'_>> {
        (offset != 0).then_some(NodeRef { table: self, offset })
    }

    /// The offset, if there is a node of this key; 0 otherwise.
    fn if_key(&self, offset: u32, key: &[u8]) -> u32 {
        match self.at(offset) {
            Some(node) if node.key() == key => offset,
            _ => 0,
        }
    }
}

impl fmt::Debug for Memtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Memtable");
        out.field("generation", &self.generation).field("rows", &self.rows()).field("bytes", &self.bytes_used());
        out.finish_non_exhaustive()
    }
}

fn raise(to: &AtomicU64, value: u64) {
    if to.load(Ordering::Relaxed) < value {
        to.fetch_max(value, Ordering::AcqRel);
    }
}

/// Every second node is higher than 1, every second of these higher than 2, and so on: with the fetch ahead this was
/// faster than every fourth, for 2 bytes a row. The row id serves as the random number: no state to share between
/// appenders, and keys have no say in it.
fn height_of(row: RowId, generation: L0Id) -> usize {
    let mut z =
        row.0.wrapping_add(generation.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (1 + z.trailing_zeros() as usize).min(MAX_HEIGHT)
}

impl Splice<'_> {
    /// The newest row id of the key here, when the splice was made or refreshed.
    pub fn newest(&self) -> Option<RowId> {
        self.table.at(self.newest).map(|node| node.row_id())
    }
}

impl<'a> Splice<'a> {
    /// The newest version of the key here, when the splice was made or refreshed.
    pub fn newest_node(&self) -> Option<NodeRef<'a>> {
        self.table.at(self.newest)
    }
}

impl<'a> NodeRef<'a> {
    /// Every use of it is sound: the offset is that of a linked node, and the memtable is borrowed.
    fn node(&self) -> Node {
        // SAFETY: only offsets of linked nodes get into a NodeRef.
        unsafe { self.table.list.node(self.offset) }
    }

    pub fn id(&self) -> NodeId {
        NodeId { offset: self.offset, head: self.table.list.head(), generation: self.table.generation }
    }

    pub fn generation(&self) -> L0Id {
        self.table.generation
    }

    pub fn key(&self) -> &'a [u8] {
        // SAFETY: see `node`; the memtable is borrowed for 'a.
        unsafe { self.node().key() }
    }

    pub fn row_id(&self) -> RowId {
        // SAFETY: see `node`.
        RowId(self.table.base_row.0 + u64::from(unsafe { self.node().row() }))
    }

    /// The head, with the flags as they are now.
    pub fn head(&self) -> Head {
        // SAFETY: see `node`; the bases are those that it was written with.
        unsafe { self.node().head(self.table.base_row, self.table.base_writer) }
    }

    pub fn addr(&self) -> LogAddr {
        // SAFETY: see `node`.
        unsafe { self.node().addr() }
    }

    pub fn flags(&self) -> Flags {
        // SAFETY: see `node`.
        Flags(unsafe { self.node().flags() }.load(Ordering::Acquire))
    }

    /// Confirms a speculative insertion.
    pub fn clear_speculative(&self) {
        // SAFETY: see `node`.
        unsafe { self.node().flags() }.fetch_and(!Flags::SPECULATIVE.0, Ordering::AcqRel);
    }

    /// The cell where the writer's fate is noted once it is final.
    pub fn hint(&self) -> &'a AtomicU8 {
        // SAFETY: see `node`; the memtable is borrowed for 'a.
        unsafe { self.node().hint() }
    }

    /// `Committed` or `Aborted`, if somebody noted it.
    pub fn get_fate(&self) -> Option<Fate> {
        match self.hint().load(Ordering::Relaxed) {
            HINT_COMMITTED => Some(Fate::Committed),
            HINT_ABORTED => Some(Fate::Aborted),
            _ => None,
        }
    }

    /// Notes a fate, if it is final.
    pub fn set_fate(&self, fate: Fate) {
        let value = match fate {
            Fate::Committed | Fate::VisibleToAll => HINT_COMMITTED,
            Fate::Aborted => HINT_ABORTED,
            Fate::InProgress => return,
        };
        self.hint().store(value, Ordering::Relaxed);
    }

    /// The next row version in order: the next older one of this key, or the newest of the next key.
    pub fn next(&self) -> Option<NodeRef<'a>> {
        // SAFETY: see `node`.
        self.table.at(unsafe { self.table.list.next(self.offset) })
    }

    /// The next older version of this key here.
    pub fn older(&self) -> Option<NodeRef<'a>> {
        self.next().filter(|next| next.key() == self.key())
    }

    /// The newest version of the next key.
    pub fn next_key(&self) -> Option<NodeRef<'a>> {
        // A few versions are walked over; a key with many is jumped.
        let mut node = *self;
        for _ in 0..8 {
            node = node.next()?;
            if node.key() != self.key() {
                return Some(node);
            }
        }
        self.table.upper_bound(self.key())
    }
}

impl fmt::Debug for NodeRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeRef").field("key", &self.key()).field("head", &self.head()).finish_non_exhaustive()
    }
}

/// See [`Memtable::versions`].
#[derive(Clone, Debug)]
pub struct Versions<'a>(Option<NodeRef<'a>>);

impl<'a> Iterator for Versions<'a> {
    type Item = NodeRef<'a>;

    fn next(&mut self) -> Option<NodeRef<'a>> {
        let node = self.0?;
        self.0 = node.older();
        Some(node)
    }
}
