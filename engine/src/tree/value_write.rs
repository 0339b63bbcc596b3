//! Writing to the value log: what a flush or a merge takes out of its rows or moves, and bodies that no log record holds.
//!
//! Keeps I16: the bytes are written, and logged by the host, before anything that points to them.

use crate::error::{Error, Result};
use crate::host::Host;
use crate::manifest::ValueUse;
use crate::options::MAX_INLINE_ROW;
use crate::page::{PageBuf, PageKind, CAPACITY, CONTENT};
use crate::row::{max_record_len, ValuePointer};
use crate::tree::full_disk::Taker;
use crate::tree::ledger::{few_taken, most_taken};
use crate::tree::value_log::MAX_VALUE;
use crate::tree::{Appended, NewRow, Tree};
use crate::types::{Extent, ExtentSeq, Flags, PageNo, RowBuf, RowId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

/// Pages handed to the host at once.
const BATCH: usize = 32;
/// Pages that a flush or merge takes at once, unless a value is larger, or it has taken many; first, it does not know how much will be large.
const LEAST_TAKEN: u64 = 8;
const FIRST_TAKEN: u64 = 1024;
const MOST_TAKEN: u32 = 4096;

/// Pages that so many bytes fill.
pub(super) fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(CAPACITY as u64)
}

/// Fills an extent with bytes, back to back.
struct Filler {
    extent: Extent,
    /// Pages of the extent handed to the host.
    written: u32,
    batch: Vec<PageBuf>,
    /// Bytes that the last page of the batch has room for.
    room: usize,
}

impl Filler {
    fn new(extent: Extent) -> Filler {
        Filler { extent, written: 0, batch: Vec::new(), room: 0 }
    }

    fn begun(&self) -> u32 {
        self.written + self.batch.len() as u32
    }

    /// Bytes that the extent has room for.
    fn left(&self) -> u64 {
        u64::from(self.extent.pages - self.begun()) * CAPACITY as u64 + self.room as u64
    }

    /// Where the next byte goes.
    fn begin(&self, length: usize) -> ValuePointer {
        let (page, offset) = match self.room {
            0 => (self.begun(), CONTENT),
            room => (self.begun() - 1, CONTENT + CAPACITY - room),
        };
        let start = PageNo(self.extent.start.0 + page);
        ValuePointer { start, offset: offset as u16, seq: self.extent.seq, length: length as u64 }
    }

    fn push<H: Host>(&mut self, tree: &Tree<'_, H>, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.room == 0 {
                self.next_page(tree)?;
            }
            let Some(page) = self.batch.last_mut() else { break };
            let (piece, rest) = bytes.split_at(bytes.len().min(self.room));
            let used = page.used();
            match page.0.get_mut(used..used + piece.len()) {
                Some(room) => room.copy_from_slice(piece),
                None => return Err(Error::structure("a value page is fuller than it should be")),
            }
            page.set_used(used + piece.len());
            self.room -= piece.len();
            bytes = rest;
        }
        Ok(())
    }

    fn next_page<H: Host>(&mut self, tree: &Tree<'_, H>) -> Result<()> {
        if self.batch.len() == BATCH {
            self.flush(tree)?;
        }
        if self.begun() == self.extent.pages {
            return Err(Error::structure(format!("value extent {} is full", self.extent.seq)));
        }
        self.batch.push(PageBuf::ZERO);
        if let Some(page) = self.batch.last_mut() {
            page.init(PageKind::Value, self.extent.seq);
        }
        self.room = CAPACITY;
        Ok(())
    }

    /// Writes what is left. What comes later would begin a new page.
    fn flush<H: Host>(&mut self, tree: &Tree<'_, H>) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        tree.host.write_pages(PageNo(self.extent.start.0 + self.written), &mut self.batch)?;
        tree.shared.counters.value_pages.fetch_add(self.batch.len() as u64, Relaxed);
        self.written += self.batch.len() as u32;
        self.batch.clear();
        self.room = 0;
        Ok(())
    }
}

/// The value log's part of a flush or a merge: takes large bodies out of rows, moves values, and counts what the rows
/// point to. What it has taken is given back when it is dropped before it was committed.
pub(super) struct ValueWriter<'t, 'a, H: Host> {
    tree: &'t Tree<'a, H>,
    taker: Taker,
    /// Extents that are to be emptied.
    moved: BTreeSet<ExtentSeq>,
    uses: BTreeMap<ExtentSeq, u64>,
    taken: Vec<Extent>,
    filler: Option<Filler>,
    kept: Vec<Extent>,
    unused: Vec<Extent>,
    /// Bytes still to come, at a guess.
    expected: u64,
    committed: bool,
}

/// What a flush or merge has put into the value log, and what its run points to.
pub(super) struct Placed {
    pub extents: Vec<Extent>,
    pub uses: Vec<ValueUse>,
}

impl<'t, 'a, H: Host> ValueWriter<'t, 'a, H> {
    /// About so many bytes will come; values in the extents `moved` are to be moved out of them.
    pub fn new(tree: &'t Tree<'a, H>, taker: Taker, bytes: u64, moved: BTreeSet<ExtentSeq>) -> Self {
        ValueWriter {
            tree,
            taker,
            moved,
            uses: BTreeMap::new(),
            taken: Vec::new(),
            filler: None,
            kept: Vec::new(),
            unused: Vec::new(),
            expected: bytes,
            committed: false,
        }
    }

    /// After a piece of a merge was committed: for the next.
    pub fn like(other: &ValueWriter<'t, 'a, H>) -> Self {
        ValueWriter::new(other.tree, other.taker, other.expected, other.moved.clone())
    }

    /// The row is about to be written to a run: sees to it that a large body is in the value log.
    pub fn place(&mut self, row: &mut RowBuf) -> Result<()> {
        if row.head.flags.has(Flags::POINTER) {
            let old = ValuePointer::decode(&row.body)?;
            if !self.moved.contains(&old.seq) {
                self.count(&old);
                return Ok(());
            }
            let tree = self.tree;
            let (pointer, filler) = self.begin(old.length)?;
            tree.for_each_piece(&old, 0..old.length, |piece| filler.push(tree, piece))?;
            tree.shared.counters.values_moved.fetch_add(1, Relaxed);
            self.point(row, &pointer);
        } else if self.tree.is_large(row.key.len(), row.body.len()) {
            let tree = self.tree;
            let (pointer, filler) = self.begin(row.body.len() as u64)?;
            filler.push(tree, &row.body)?;
            row.head.flags = row.head.flags.with(Flags::POINTER);
            self.point(row, &pointer);
        }
        Ok(())
    }

    fn point(&mut self, row: &mut RowBuf, pointer: &ValuePointer) {
        row.body.clear();
        row.body.extend_from_slice(&pointer.encode());
        self.count(pointer);
    }

    fn count(&mut self, pointer: &ValuePointer) {
        *self.uses.entry(pointer.seq).or_default() += pointer.length;
    }

    /// Finds the place for a value.
    fn begin(&mut self, length: u64) -> Result<(ValuePointer, &mut Filler)> {
        if self.filler.as_ref().is_none_or(|filler| filler.left() < length) {
            self.end_extent()?;
            let most = match self.taken.len() {
                0 => FIRST_TAKEN,
                pieces => most_taken(MOST_TAKEN, pieces).into(),
            };
            let pages = pages_of(self.expected).clamp(LEAST_TAKEN, most).max(pages_of(length));
            let pages = u32::try_from(pages).map_err(|_| too_long(length))?;
            let few = few_taken(self.taken.len());
            let extent = self.tree.take_extent(self.taker, pages_of(length) as u32, few, pages)?;
            self.taken.push(extent);
            self.filler = Some(Filler::new(extent));
        }
        self.expected = self.expected.saturating_sub(length);
        let filler = self.filler.as_mut().ok_or_else(|| Error::structure("no value extent to fill"))?;
        Ok((filler.begin(length as usize), filler))
    }

    fn end_extent(&mut self) -> Result<()> {
        let Some(mut filler) = self.filler.take() else { return Ok(()) };
        filler.flush(self.tree)?;
        let (Extent { start, pages, seq }, used) = (filler.extent, filler.written);
        self.kept.push(Extent { start, pages: used, seq });
        if used < pages {
            self.unused.push(Extent { start: PageNo(start.0 + used), pages: pages - used, seq });
        }
        Ok(())
    }

    /// Writes what is left; adds those pieces of what was taken that are free again to `unused`.
    pub fn finish(&mut self, unused: &mut Vec<Extent>) -> Result<Placed> {
        self.end_extent()?;
        unused.append(&mut self.unused);
        let uses = std::mem::take(&mut self.uses);
        let uses = uses.into_iter().map(|(seq, bytes)| ValueUse { seq, bytes }).collect();
        Ok(Placed { extents: std::mem::take(&mut self.kept), uses })
    }

    /// Everything that was taken.
    pub fn taken(&self) -> &[Extent] {
        &self.taken
    }

    /// The manifest names it now.
    pub fn committed(&mut self) {
        self.committed = true;
    }
}

impl<H: Host> Drop for ValueWriter<'_, '_, H> {
    fn drop(&mut self) {
        if !self.committed && !self.taken.is_empty() {
            self.tree.give_extents(&self.taken);
        }
    }
}

impl<H: Host> Tree<'_, H> {
    /// Most bytes of a body that stays beside its key.
    pub(super) fn most_inline(&self) -> u64 {
        match self.shared.options.value_log_threshold() {
            0 => MAX_INLINE_ROW as u64,
            threshold => threshold.min(MAX_INLINE_ROW as u64),
        }
    }

    fn is_large(&self, key: usize, body: usize) -> bool {
        let threshold = self.shared.options.value_log_threshold();
        key + body > MAX_INLINE_ROW || (threshold > 0 && body as u64 >= threshold)
    }

    /// No record of the row log has room for the row.
    #[inline]
    pub(super) fn is_too_long(&self, row: &NewRow<'_>) -> bool {
        max_record_len(row.key.len(), row.body.len()) > H::MAX_RECORD
    }

    /// Appends rows some of which are too long for the row log: their bodies go to the value log first.
    #[cold]
    pub(super) fn append_large(&self, rows: &[NewRow<'_>]) -> Result<Appended> {
        if let [row] = rows {
            if row.expect.is_some_and(|expect| !self.is_as_observed(row.key, expect)) {
                return Ok(Appended { written: 0, first: RowId(0) });
            }
        }
        // Pinned until the rows are linked: meanwhile the extents stay, though nothing points into them.
        let view = self.pin();
        let bytes = rows.iter().filter(|r| self.is_too_long(r)).map(|r| r.body.len() as u64).sum::<u64>();
        let longest = rows.iter().map(|r| r.body.len()).max().unwrap_or(0);
        if longest > MAX_VALUE {
            return Err(too_long(longest as u64));
        }
        let pages = u32::try_from(pages_of(bytes)).map_err(|_| too_long(bytes))?;
        let mut filler = Filler::new(self.take_value_pages(pages, view.active().table.generation())?);
        let mut pointers = Vec::with_capacity(rows.len());
        for row in rows {
            pointers.push(match self.is_too_long(row) {
                true => {
                    let pointer = filler.begin(row.body.len());
                    filler.push(self, row.body)?;
                    Some(pointer.encode())
                }
                false => None,
            });
        }
        filler.flush(self)?;
        debug_assert_eq!(filler.written, pages);
        let pointed = rows.iter().zip(&pointers).map(|(row, pointer)| match pointer {
            Some(body) => NewRow { body, flags: row.flags.with(Flags::POINTER), ..*row },
            None => *row,
        });
        let appended = self.append_rows(&pointed.collect::<Vec<_>>())?;
        self.shared.counters.bytes_written.fetch_add(bytes, Relaxed);
        self.pin().active().apart.fetch_add(bytes, Relaxed);
        drop(view);
        Ok(appended)
    }
}

fn too_long(bytes: u64) -> Error {
    Error::Invalid(format!("a body of {bytes} bytes (up to {MAX_VALUE} are possible)"))
}
