//! The value log: bodies too large to be moved by every merge. They are written once, and row versions point to them
//! ([`ValuePointer`]).
//!
//! ```text
//! value extent:  | page | page | page | ...          every page: | head: kind Value, extent seq | bytes ... used |
//! value:              [ bytes ...........)           back to back, over as many pages as it takes, within one extent
//! pointer:       start page, offset on it, extent seq, length
//! ```
//!
//! All pages that a value spans are full but the last, so any byte of it is found by arithmetic. Where the bytes come from:
//!
//! - a body that a record of the row log has room for is logged with its row, and leaves it when its memtable is flushed
//!   (or, if the threshold was lowered since, when its run is merged). Those of one flush stand back to back in extents that
//!   the flush's flip names: no page is wasted, a version that does not outlive its memtable never gets here, and a crash
//!   leaves nothing behind.
//! - a body that no record has room for ([`Host::MAX_RECORD`]) is written first, and the record holds the pointer
//!   (`value_write`). A crash in between leaves bytes that nobody points to, never a pointer to nothing; half of its last
//!   page is wasted on average.
//!
//! By the bytes: a body of a quarter page costs, in its own size, 2 for the row log and 2 for the value log (page and WAL
//! image), once, and then nothing for all merges to come; beside its key it costs 2 for every rewrite, and up to a third
//! of the data page stays empty. What it is charged for is a second page to read. So a quarter page is the default threshold.
//!
//! A pointer is good for as long as a superversion is pinned in which its row version was found. See `value_space` for
//! what becomes of the extents. Keeps I16.

use crate::error::{Error, Result};
use crate::host::Host;
use crate::page::{PageBuf, PageKind, CAPACITY, CONTENT};
use crate::row::ValuePointer;
use crate::tree::version::Pinned;
use crate::tree::{Found, Hint, Tree};
use crate::types::{Flags, Head, PageNo, RowBuf, RowId, Verdict, PAGE_SIZE};
use std::ops::{Deref, Range};

/// Most bytes of a body.
pub const MAX_VALUE: usize = 1 << 30;

/// Values of more pages are known to be whole before memory is taken for them.
const TRUSTED: u64 = 64 * CAPACITY as u64;

/// A large body that was found but not read yet. Keeps the superversion pinned that it was found in.
pub struct LargeValue<H: Host> {
    pointer: ValuePointer,
    _view: Pinned<H>,
}

impl<H: Host> LargeValue<H> {
    /// Bytes of the body.
    pub fn length(&self) -> u64 {
        self.pointer.length
    }

    /// Replaces `out` by the body.
    pub fn read(&self, tree: &Tree<'_, H>, out: &mut Vec<u8>) -> Result<()> {
        tree.read_value(&self.pointer, out)
    }

    /// Fills `out` with what stands at `offset` of the body, which has to have so many bytes.
    pub fn read_at(&self, tree: &Tree<'_, H>, offset: u64, out: &mut [u8]) -> Result<()> {
        tree.read_value_at(&self.pointer, offset, out)
    }
}

impl<H: Host> Tree<'_, H> {
    /// As [`Tree::find`], but a large body is not read: `out` holds no body then, and what is returned reads it.
    pub fn find_lazy(
        &self,
        key: &[u8],
        choose: impl FnMut(&Head, &Hint<'_>) -> Verdict,
        out: &mut RowBuf,
    ) -> Result<(Found, Option<LargeValue<H>>)> {
        let view = self.pin();
        let found = self.find_in(&view, key, choose, out)?;
        let large = if found.taken { LargeValue::of(out, view)? } else { None };
        Ok((found, large))
    }

    /// As [`Tree::find_row`], but a large body is not read; see [`Tree::find_lazy`].
    pub fn find_row_lazy(&self, row: RowId, out: &mut RowBuf) -> Result<(bool, Option<LargeValue<H>>)> {
        let view = self.pin();
        let found = self.find_row_in(&view, row, out)?;
        let large = if found { LargeValue::of(out, view)? } else { None };
        Ok((found, large))
    }

    /// Puts the body in the place of a pointer to it. The row's superversion is still pinned.
    pub fn resolve(&self, row: &mut RowBuf) -> Result<()> {
        if row.head.flags.has(Flags::POINTER) {
            let pointer = ValuePointer::decode(&row.body)?;
            self.read_value(&pointer, &mut row.body)?;
            row.head.flags = row.head.flags.without(Flags::POINTER);
        }
        Ok(())
    }

    pub(super) fn read_value(&self, pointer: &ValuePointer, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        if pointer.length > TRUSTED && pointer.length <= MAX_VALUE as u64 {
            // A length that is not what was written must not take a GiB: the last page has to be the value's.
            self.for_each_piece(pointer, pointer.length - 1..pointer.length, |_| Ok(()))?;
        }
        self.for_each_piece(pointer, 0..pointer.length, |piece| {
            if out.capacity() == 0 || out.capacity() - out.len() < piece.len() {
                let length = usize::try_from(pointer.length).unwrap_or(usize::MAX);
                let enough = out.try_reserve_exact(length.saturating_sub(out.len()).max(piece.len()));
                enough.map_err(|_| Error::Unavailable(format!("no memory for a value of {length} bytes")))?;
            }
            out.extend_from_slice(piece);
            Ok(())
        })
    }

    pub(super) fn read_value_at(&self, pointer: &ValuePointer, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(out.len() as u64);
        if end > pointer.length {
            let what = format!("bytes up to {end} of a value that has {}", pointer.length);
            return Err(Error::Invalid(what));
        }
        let mut left = out;
        self.for_each_piece(pointer, offset..end, |piece| {
            let Some((room, rest)) = std::mem::take(&mut left).split_at_mut_checked(piece.len()) else {
                return Err(Error::structure("a piece of a value is longer than was asked for"));
            };
            room.copy_from_slice(piece);
            left = rest;
            Ok(())
        })
    }

    /// Shows the bytes of the range, page by page.
    pub(super) fn for_each_piece(
        &self,
        pointer: &ValuePointer,
        range: Range<u64>,
        see: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        for_each_piece(|no| self.host.read_page(no), pointer, range, see)
    }
}

fn for_each_piece<P: Deref<Target = PageBuf>>(
    read: impl Fn(PageNo) -> Result<P>,
    pointer: &ValuePointer,
    range: Range<u64>,
    mut see: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let offset = usize::from(pointer.offset);
    if !(CONTENT..PAGE_SIZE).contains(&offset) || pointer.length > MAX_VALUE as u64 || range.end > pointer.length {
        return Err(Error::structure(format!("{pointer:?} points to no value")));
    }
    let mut left = range.end.saturating_sub(range.start) as usize;
    let from = (offset - CONTENT) as u64 + range.start;
    let (mut index, mut at) = ((from / CAPACITY as u64) as u32, (from % CAPACITY as u64) as usize);
    while left > 0 {
        let no = pointer.start.0.checked_add(index).map(PageNo);
        let no = no.ok_or_else(|| Error::structure(format!("{pointer:?} leads past the last page")))?;
        let page = read(no)?;
        let contents = page.expect(no, PageKind::Value, pointer.seq)?;
        let length = left.min(CAPACITY - at);
        let piece = contents.get(at..at + length).ok_or_else(|| {
            Error::page(no, CONTENT + contents.len(), format!("a value should go on for {length} bytes from {at}"))
        })?;
        see(piece)?;
        left -= length;
        index += 1;
        at = 0;
    }
    Ok(())
}

/// For fuzzing: a pointer, and the pages that follow the one it points to.
pub fn fuzz_value(bytes: &[u8]) {
    let Some((pointer, pages)) = bytes.split_at_checked(ValuePointer::ENCODED) else { return };
    let Ok(pointer) = ValuePointer::decode(pointer) else { return };
    let read = |no: PageNo| {
        let at = no.0.wrapping_sub(pointer.start.0) as usize;
        let bytes = pages.chunks(PAGE_SIZE).nth(at).ok_or_else(|| Error::page(no, 0, "past the end"))?;
        let mut page = PageBuf::boxed();
        page.0.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Ok(page)
    };
    let middle = pointer.length / 2..pointer.length;
    for range in [0..pointer.length, middle] {
        let (wanted, mut found) = (range.end - range.start, 0);
        let count = |piece: &[u8]| {
            found += piece.len() as u64;
            Ok(())
        };
        if for_each_piece(read, &pointer, range, count).is_ok() {
            assert_eq!(found, wanted);
        }
    }
}

impl<H: Host> LargeValue<H> {
    /// The value that a row found in `view` points to, which is taken from the row.
    fn of(row: &mut RowBuf, view: Pinned<H>) -> Result<Option<LargeValue<H>>> {
        if !row.head.flags.has(Flags::POINTER) {
            return Ok(None);
        }
        let pointer = ValuePointer::decode(&row.body)?;
        row.body.clear();
        row.head.flags = row.head.flags.without(Flags::POINTER);
        Ok(Some(LargeValue { pointer, _view: view }))
    }
}
