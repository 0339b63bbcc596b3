//! Data pages: row versions in (key ascending, row id descending) order.
//!
//! ```text
//! image:
//!   0      2        4        6        8        9         10      11      12            14        18        26
//!   | rows | prefix | suffix | stride | widths | widths  | flags | marks | incarnation | command | row id  | writer |
//!  34                 .               .              .                 .
//!   | heads (2 a row)? | numbers ...  | prefix bytes | slots (2 a row)? | rows ...
//! numbers of a row:   | row id delta | writer delta | command delta | incarnation delta | flags? |
//! row:                | suffix length? | suffix | body |
//! ```
//!
//! What the rows of a page have in common stands in its head once: the key prefix, and the least row id, writer, command
//! and incarnation. The numbers of a row are the differences, in as many bytes as the page's widest needs (`widths`: four
//! nibbles), so that a row of a settled bulk load has no writer and no command at all. A head is the first two bytes of a
//! key suffix (filled up with zeros, as a number). Heads and numbers stand side by side: a search looks at a cache line
//! or two, and then at the one row that fits. Images that are compressed have no heads.
//!
//! `suffix` is the length of all key suffixes, or 0xffff: then each row has its own (varint). When all rows are of one
//! length, that is the `stride` and there are no slots; otherwise `stride` is 0 and each slot is the offset of its row in
//! the image. A row ends where the next begins. Marks: bit 0, rows have flags of their own; bit 1, there are heads.
//!
//! The image is the contents of the page, or, with [`COMPRESSED`], its length (2 bytes) and a zstd frame of it are.
//!
//! Where the rows are long, the last one may be split between two pages that are not compressed, so that little of a page stays empty:
//!
//! ```text
//! contents:  | missing bytes (2)? | length (2)? | rest of the row before? | image, as far as the page goes
//! ```
//!
//! With [`SPLIT`], the image lacks so many bytes at its end, of its last row's body; with [`REST`], the page has those that the one
//! before lacks: at its beginning, so that who reads them on comes by the page's head and nothing else. Such pages are of page
//! format 2.

use super::bytes::{mask_of, narrow_at, put_narrow, shared_prefix, u16_at, u32_at, u64_at, width_of};
use super::reader::REST_LINES;
use crate::bytes::{get_varint, put_varint, varint_len};
use crate::cpu::LINE;
use crate::error::{Error, Result};
use crate::page::{CAPACITY, CONTENT};
use crate::types::{Flags, Head, PageNo, RowId, RowRef, Writer};
use std::cmp::Ordering;
use std::ops::Bound;

/// Page flag: the image is compressed.
pub const COMPRESSED: u16 = 1;
/// Page flag: the first row has the key of the last row of the page before.
pub const CONTINUES: u16 = 2;
/// Page flag: the first row of the next page has the key of the last row of this one.
pub const CONTINUED: u16 = 4;

/// Page flag: the end of the last row is on the next page ...
pub const SPLIT: u16 = 8;
/// ... and page flag: the page has what the last row of the page before lacks.
pub const REST: u16 = 16;

const HEADER: usize = 34;
/// Bytes of a length before the image.
pub const LENGTH: usize = 2;
const HEAD: usize = 2;
const OWN_SUFFIX_LENGTH: usize = 0xffff;
const MARK_FLAGS: u8 = 1;
const MARK_HEADS: u8 = 2;

/// Longest image: slots are two bytes.
pub const MAX_IMAGE: usize = 0xffff;

/// Key and body of a row together may have so many bytes: then the row fits a page of its own.
pub const MAX_ROW: usize = CAPACITY - HEADER - HEAD - 8;

/// Contents that are not compressed, taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    pub image: &'a [u8],
    /// So many bytes of the last row are on the next page.
    pub missing: usize,
    /// What the last row of the page before lacks.
    pub rest: &'a [u8],
}

impl<'a> Contents<'a> {
    #[inline]
    pub fn parse(page: PageNo, contents: &'a [u8], flags: u16) -> Result<Contents<'a>> {
        match flags & (SPLIT | REST) {
            0 => Ok(Contents { image: contents, missing: 0, rest: &[] }),
            _ => Contents::take_apart(contents, flags)
                .ok_or_else(|| Error::page(page, CONTENT, "malformed head of a data page whose rows are split")),
        }
    }

    fn take_apart(contents: &'a [u8], flags: u16) -> Option<Contents<'a>> {
        let (mut image, mut missing, mut rest) = (contents, 0, &[][..]);
        let length = |from: &mut &'a [u8]| {
            let (length, behind) = from.split_first_chunk::<LENGTH>()?;
            *from = behind;
            Some(usize::from(u16::from_le_bytes(*length))).filter(|length| *length > 0)
        };
        if flags & SPLIT != 0 {
            missing = length(&mut image)?;
        }
        if flags & REST != 0 {
            let length = length(&mut image)?;
            (rest, image) = image.split_at_checked(length)?;
        }
        Some(Contents { image, missing, rest })
    }
}

/// The head of a page image, understood and checked against the image's length.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    page: PageNo,
    rows: usize,
    suffix: usize,
    stride: usize,
    numbers_at: usize,
    prefix_at: usize,
    /// Slots, or the first row when there is a stride.
    rows_at: usize,
    /// Where the last row ends: behind the image, if that lacks the row's end.
    end: usize,
    row_id_width: usize,
    writer_width: usize,
    command_width: usize,
    incarnation_width: usize,
    own_flags: bool,
    /// Bytes of the numbers of a row.
    head_len: usize,
    base: Head,
}

impl Layout {
    /// Of an image that lacks so many bytes at its end.
    pub fn parse(page: PageNo, image: &[u8], missing: usize) -> Result<Layout> {
        Layout::try_parse(page, image, missing)
            .ok_or_else(|| Error::page(page, CONTENT, "malformed head of a data page"))
    }

    fn try_parse(page: PageNo, image: &[u8], missing: usize) -> Option<Layout> {
        let head: &[u8; HEADER] = image.first_chunk()?;
        let rows = usize::from(u16_at(head, 0)?);
        let prefix = usize::from(u16_at(head, 2)?);
        let suffix = usize::from(u16_at(head, 4)?);
        let stride = usize::from(u16_at(head, 6)?);
        let (row_id_width, writer_width) = (usize::from(head[8] & 15), usize::from(head[8] >> 4));
        let (command_width, incarnation_width) = (usize::from(head[9] & 15), usize::from(head[9] >> 4));
        let own_flags = head[11] & MARK_FLAGS != 0;
        let base = Head {
            row_id: RowId(u64_at(head, 18)?),
            writer: Writer(u64_at(head, 26)?),
            command: u32_at(head, 14)?,
            flags: Flags(head[10]),
            incarnation: u16_at(head, 12)?,
        };
        let widths_known = row_id_width <= 8 && writer_width <= 8 && command_width <= 4 && incarnation_width <= 2;
        let has_heads = head[11] & MARK_HEADS != 0;
        let numbers_at = HEADER + if has_heads { HEAD * rows } else { 0 };
        let head_len = row_id_width + writer_width + command_width + incarnation_width + usize::from(own_flags);
        let prefix_at = numbers_at + rows * head_len;
        let rows_at = prefix_at + prefix;
        let end = image.len() + missing;
        let room = if stride == 0 { rows_at + 2 * rows <= image.len() } else { rows_at + stride * rows == end };
        if rows == 0 || !widths_known || !room {
            return None;
        }
        let layout = Layout {
            page,
            rows,
            suffix,
            stride,
            numbers_at,
            prefix_at,
            rows_at,
            end,
            row_id_width,
            writer_width,
            command_width,
            incarnation_width,
            own_flags,
            head_len,
            base,
        };
        Some(layout)
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn page(&self) -> PageNo {
        self.page
    }

    /// What the keys of the page begin with.
    #[inline]
    pub fn prefix<'a>(&self, image: &'a [u8]) -> &'a [u8] {
        image.get(self.prefix_at..self.rows_at).unwrap_or_default()
    }

    #[cold]
    fn malformed(&self, row: usize) -> Error {
        Error::page(self.page, CONTENT, format!("malformed row {row} of {} in a data page", self.rows))
    }

    /// Where row `i` begins and ends.
    #[inline]
    fn span(&self, image: &[u8], i: usize) -> Option<(usize, usize)> {
        if self.stride != 0 {
            let start = self.rows_at + i * self.stride;
            return Some((start, start + self.stride));
        }
        let slot = self.rows_at + 2 * i;
        let start = usize::from(u16_at(image, slot)?);
        let end = if i + 1 < self.rows { usize::from(u16_at(image, slot + 2)?) } else { self.end };
        Some((start, end))
    }

    /// The image lacks the end of row `i`.
    #[inline]
    pub fn is_cut(&self, image: &[u8], i: usize) -> bool {
        self.end > image.len() && i + 1 == self.rows
    }

    /// What the page has of the last row, which is cut.
    pub fn last_part<'a>(&self, image: &'a [u8]) -> Result<&'a [u8]> {
        let last = self.rows - 1;
        let start = self.span(image, last).map(|(start, _)| start);
        start.and_then(|start| image.get(start..)).ok_or_else(|| self.malformed(last))
    }

    /// Key suffix, head and body of the last row, which was cut and has been put together.
    pub fn joined_row<'a>(&self, image: &'a [u8], joined: &'a [u8]) -> Result<(&'a [u8], Head, &'a [u8])> {
        let last = self.rows - 1;
        let (suffix, body) = self.divide(joined).ok_or_else(|| self.malformed(last))?;
        Ok((suffix, self.head(image, last).ok_or_else(|| self.malformed(last))?, body))
    }

    /// Key suffix and body of row `i`, which is whole.
    #[inline]
    fn parts<'a>(&self, image: &'a [u8], i: usize) -> Option<(&'a [u8], &'a [u8])> {
        let (start, end) = self.span(image, i)?;
        self.divide(image.get(start..end)?)
    }

    #[inline]
    fn divide<'a>(&self, rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        if self.suffix == OWN_SUFFIX_LENGTH {
            let mut at = 0;
            let length = get_varint(rest, &mut at)? as usize;
            rest.get(at..)?.split_at_checked(length)
        } else {
            rest.split_at_checked(self.suffix)
        }
    }

    /// What follows the page's prefix in the key of row `i`, which need not be whole: no key is split.
    #[inline]
    pub fn suffix<'a>(&self, image: &'a [u8], i: usize) -> Result<&'a [u8]> {
        let parts = self.span(image, i).and_then(|(start, end)| self.divide(image.get(start..end.min(image.len()))?));
        parts.map(|(suffix, _)| suffix).ok_or_else(|| self.malformed(i))
    }

    /// Whether rows `i` and `j` are versions of one key.
    #[inline]
    pub fn is_same_key(&self, image: &[u8], i: usize, j: usize) -> Result<bool> {
        if self.numbers_at > HEADER {
            let head = |i: usize| image.get(HEADER + HEAD * i..HEADER + HEAD * (i + 1));
            if head(i) != head(j) {
                return Ok(false);
            }
        }
        Ok(self.suffix(image, i)? == self.suffix(image, j)?)
    }

    /// Key suffix, head and body of row `i`.
    #[inline]
    pub fn row<'a>(&self, image: &'a [u8], i: usize) -> Result<(&'a [u8], Head, &'a [u8])> {
        self.try_row(image, i).ok_or_else(|| self.malformed(i))
    }

    #[inline]
    fn try_row<'a>(&self, image: &'a [u8], i: usize) -> Option<(&'a [u8], Head, &'a [u8])> {
        let (suffix, body) = self.parts(image, i)?;
        Some((suffix, self.head(image, i)?, body))
    }

    #[inline]
    fn head(&self, image: &[u8], i: usize) -> Option<Head> {
        let mut at = self.numbers_at + i * self.head_len;
        let mut head = self.base;
        if self.row_id_width > 0 {
            head.row_id.0 = head.row_id.0.wrapping_add(narrow_at(image, at, self.row_id_width)?);
            at += self.row_id_width;
        }
        if self.writer_width > 0 {
            head.writer.0 = head.writer.0.wrapping_add(narrow_at(image, at, self.writer_width)?);
            at += self.writer_width;
        }
        if self.command_width > 0 {
            head.command = head.command.wrapping_add(narrow_at(image, at, self.command_width)? as u32);
            at += self.command_width;
        }
        if self.incarnation_width > 0 {
            head.incarnation = head.incarnation.wrapping_add(narrow_at(image, at, self.incarnation_width)? as u16);
            at += self.incarnation_width;
        }
        if self.own_flags {
            head.flags = Flags(*image.get(at)?);
        }
        Some(head)
    }

    /// Where the first rows are, at most so many; none, if that is not known without a look at the image.
    pub fn first_rows(&self, most: usize) -> impl Iterator<Item = usize> {
        let count = if self.stride == 0 { 0 } else { self.rows.min(most) };
        let (first, stride) = (self.rows_at, self.stride);
        (0..count).map(move |row| first + row * stride)
    }

    /// Where the last row is, if that is known without a look at the image: if rows are all of one length.
    pub fn last_row_at(&self) -> Option<usize> {
        (self.stride != 0).then(|| self.rows_at + self.rows.saturating_sub(1) * self.stride)
    }

    /// Looks whether every row is within the page.
    pub fn check_rows(&self, image: &[u8]) -> Result<()> {
        let rows = if self.stride != 0 && self.suffix != OWN_SUFFIX_LENGTH { 1 } else { self.rows };
        (0..rows).try_for_each(|i| match self.is_cut(image, i) {
            true => self.suffix(image, i).map(|_| ()),
            false => self.row(image, i).map(|_| ()),
        })
    }

    /// Whether every row has these flags and no others, as far as the page's head tells.
    pub fn all_have(&self, flags: Flags) -> bool {
        !self.own_flags && self.base.flags == flags
    }

    #[inline]
    pub fn flags(&self, image: &[u8], i: usize) -> Flags {
        self.head(image, i).map_or(self.base.flags, |head| head.flags)
    }

    /// First row whose key is not below `key`; the number of rows when there is none.
    #[inline]
    pub fn search(&self, image: &[u8], key: &[u8]) -> Result<usize> {
        let wanted = match self.within_prefix(image, key) {
            Ok(suffix) => suffix,
            Err(Ordering::Less) => return Ok(0),
            Err(_) => return Ok(self.rows),
        };
        let (mut low, mut high) = self.fitting_heads(image, suffix_head(wanted));
        while low < high {
            let middle = (low + high) / 2;
            if self.suffix(image, middle)? < wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// So many rows are not beyond the upper end of what is wanted.
    pub fn end(&self, image: &[u8], upper: Bound<&[u8]>) -> Result<usize> {
        let (key, included) = match upper {
            Bound::Unbounded => return Ok(self.rows),
            Bound::Included(key) => (key, true),
            Bound::Excluded(key) => (key, false),
        };
        let mut end = self.search(image, key)?;
        if let (true, Ok(wanted)) = (included, self.within_prefix(image, key)) {
            while end < self.rows && self.suffix(image, end)? == wanted {
                end += 1;
            }
        }
        Ok(end)
    }

    /// The rows whose heads are `head`: mostly one or none, but many when keys differ further back only. All, without heads.
    #[inline]
    fn fitting_heads(&self, image: &[u8], head: u16) -> (usize, usize) {
        let heads = image.get(HEADER..self.numbers_at).unwrap_or_default();
        if heads.is_empty() {
            return (0, self.rows);
        }
        let head_at =
            |i: usize| heads.get(HEAD * i..).and_then(|b| b.first_chunk()).map_or(0, |b| u16::from_le_bytes(*b));
        let (mut low, mut size) = (0, self.rows);
        while size > 0 {
            let half = size / 2;
            let below = head_at(low + half) < head;
            low = if below { low + half + 1 } else { low };
            size = if below { size - half - 1 } else { half };
        }
        let mut high = low;
        while high < self.rows && head_at(high) == head {
            high += 1;
        }
        (low, high)
    }

    /// What follows the page's prefix in `key`, or on which side of all the page's keys it lies.
    #[inline]
    pub fn within_prefix<'k>(&self, image: &[u8], key: &'k [u8]) -> std::result::Result<&'k [u8], Ordering> {
        let prefix = self.prefix(image);
        match key.strip_prefix(prefix) {
            Some(suffix) => Ok(suffix),
            None => Err(key.cmp(prefix)),
        }
    }

    /// The row with this row id.
    pub fn find_row(&self, image: &[u8], row_id: RowId) -> Result<Option<usize>> {
        let Some(delta) = row_id.0.checked_sub(self.base.row_id.0) else { return Ok(None) };
        let found = |i: usize| {
            let found = narrow_at(image, self.numbers_at + i * self.head_len, self.row_id_width);
            found.ok_or_else(|| self.malformed(i))
        };
        // Where rows have come in the order of their keys, and none between them went elsewhere.
        let guess = usize::try_from(delta).unwrap_or(usize::MAX);
        if guess < self.rows && found(guess)? == delta {
            return Ok(Some(guess));
        }
        // A word from each row's number on; behind the last ones stands less.
        let (mask, mut at, mut i) = (mask_of(self.row_id_width), self.numbers_at, 0);
        while let (Some(word), true) = (u64_at(image, at), i < self.rows) {
            if word & mask == delta {
                return Ok(Some(i));
            }
            (at, i) = (at + self.head_len, i + 1);
        }
        while i < self.rows {
            if found(i)? == delta {
                return Ok(Some(i));
            }
            i += 1;
        }
        Ok(None)
    }

    /// The places where row `i` is, as far as the image has it, and what its key is compared by with that of the row before.
    pub(super) fn places_of(&self, image: &[u8], i: usize) -> impl Iterator<Item = usize> {
        let (start, end) = self.span(image, i).unwrap_or_default();
        let last = end.min(start + REST_LINES * LINE).saturating_sub(1).max(start);
        [HEADER + HEAD * i].into_iter().chain((start..last).step_by(LINE)).chain([last])
    }
}

/// A row on a page that is at hand, whose rows have been looked at ([`Layout::check_rows`]).
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a> {
    layout: &'a Layout,
    image: &'a [u8],
    /// The last row, if that is cut on the page.
    joined: &'a [u8],
    row: usize,
}

impl<'a> Spot<'a> {
    #[inline]
    pub(super) fn new(layout: &'a Layout, image: &'a [u8], joined: &'a [u8], row: usize) -> Option<Spot<'a>> {
        (row < layout.rows).then_some(Spot { layout, image, joined, row })
    }

    #[inline]
    pub fn row_id(&self) -> RowId {
        let Layout { numbers_at, head_len, row_id_width, base, .. } = *self.layout;
        let delta = narrow_at(self.image, numbers_at + self.row * head_len, row_id_width);
        RowId(base.row_id.0.wrapping_add(delta.unwrap_or_default()))
    }

    #[inline]
    pub fn head(&self) -> Head {
        self.layout.head(self.image, self.row).unwrap_or_default()
    }

    /// What all keys of the page begin with, and the rest of this one.
    #[inline]
    pub fn key(&self) -> (&'a [u8], &'a [u8]) {
        (self.layout.prefix(self.image), self.layout.suffix(self.image, self.row).unwrap_or_default())
    }

    #[inline]
    pub fn body(&self) -> &'a [u8] {
        let parts = match self.layout.is_cut(self.image, self.row) {
            true => self.layout.divide(self.joined),
            false => self.layout.parts(self.image, self.row),
        };
        parts.map(|(_, body)| body).unwrap_or_default()
    }
}

/// The first two bytes, filled up with zeros, as a number: where two of them differ, they order as their suffixes do.
#[inline]
fn suffix_head(suffix: &[u8]) -> u16 {
    match suffix {
        [first, second, ..] => u16::from_be_bytes([*first, *second]),
        [first] => u16::from_be_bytes([*first, 0]),
        [] => 0,
    }
}

/// What the rows of a page to be have in common, and so how long its image will be.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    rows: usize,
    prefix: usize,
    /// Least and most of each number.
    row_ids: (u64, u64),
    writers: (u64, u64),
    commands: (u64, u64),
    incarnations: (u64, u64),
    flags: Flags,
    own_flags: bool,
    key_lens: (usize, usize),
    body_lens: (usize, usize),
    keys: usize,
    bodies: usize,
    /// Bytes for the lengths of suffixes, if they need any (counted as if there were no prefix).
    lengths: usize,
}

fn widen(range: (u64, u64), value: u64) -> (u64, u64) {
    (range.0.min(value), range.1.max(value))
}

impl Fit {
    pub fn of(row: &RowRef<'_>) -> Fit {
        let Head { row_id, writer, command, flags, incarnation } = row.head;
        Fit {
            rows: 1,
            prefix: row.key.len(),
            row_ids: (row_id.0, row_id.0),
            writers: (writer.0, writer.0),
            commands: (u64::from(command), u64::from(command)),
            incarnations: (u64::from(incarnation), u64::from(incarnation)),
            flags,
            own_flags: false,
            key_lens: (row.key.len(), row.key.len()),
            body_lens: (row.body.len(), row.body.len()),
            keys: row.key.len(),
            bodies: row.body.len(),
            lengths: varint_len(row.key.len() as u64),
        }
    }

    /// With one more row; `first` is the key of the first.
    pub fn with(&self, first: &[u8], row: &RowRef<'_>) -> Fit {
        let Head { row_id, writer, command, flags, incarnation } = row.head;
        let common = first.get(..self.prefix).unwrap_or(first);
        Fit {
            rows: self.rows + 1,
            prefix: shared_prefix(common, row.key),
            row_ids: widen(self.row_ids, row_id.0),
            writers: widen(self.writers, writer.0),
            commands: widen(self.commands, u64::from(command)),
            incarnations: widen(self.incarnations, u64::from(incarnation)),
            flags: self.flags,
            own_flags: self.own_flags || flags != self.flags,
            key_lens: (self.key_lens.0.min(row.key.len()), self.key_lens.1.max(row.key.len())),
            body_lens: (self.body_lens.0.min(row.body.len()), self.body_lens.1.max(row.body.len())),
            keys: self.keys + row.key.len(),
            bodies: self.bodies + row.body.len(),
            lengths: self.lengths + varint_len(row.key.len() as u64),
        }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    fn widths(&self) -> [usize; 4] {
        [self.row_ids, self.writers, self.commands, self.incarnations].map(|(least, most)| width_of(most - least))
    }

    fn head_len(&self) -> usize {
        self.widths().iter().sum::<usize>() + usize::from(self.own_flags)
    }

    fn one_key_len(&self) -> bool {
        self.key_lens.0 == self.key_lens.1
    }

    /// Length of every row, if all are alike.
    fn stride(&self) -> usize {
        if self.one_key_len() && self.body_lens.0 == self.body_lens.1 {
            self.key_lens.0 - self.prefix + self.body_lens.0
        } else {
            0
        }
    }

    /// The image takes at most so many bytes (with heads).
    pub fn size(&self) -> usize {
        let lengths = if self.one_key_len() { 0 } else { self.lengths };
        let slots = if self.stride() == 0 { 2 * self.rows } else { 0 };
        let suffixes = self.keys - self.rows * self.prefix;
        HEADER + HEAD * self.rows + self.prefix + slots + self.rows * self.head_len() + suffixes + lengths + self.bodies
    }
}

/// Writes the image of a page of these rows, which `fit` has counted.
pub fn encode<'a>(fit: &Fit, heads: bool, rows: impl Iterator<Item = RowRef<'a>> + Clone, image: &mut Vec<u8>) {
    image.clear();
    let widths = fit.widths();
    let stride = fit.stride();
    let suffix = if fit.one_key_len() { fit.key_lens.0 - fit.prefix } else { OWN_SUFFIX_LENGTH };
    for number in [fit.rows, fit.prefix, suffix, stride] {
        image.extend_from_slice(&(number as u16).to_le_bytes());
    }
    image.push((widths[0] | widths[1] << 4) as u8);
    image.push((widths[2] | widths[3] << 4) as u8);
    image.push(if fit.own_flags { 0 } else { fit.flags.0 });
    image.push(if fit.own_flags { MARK_FLAGS } else { 0 } | if heads { MARK_HEADS } else { 0 });
    image.extend_from_slice(&(fit.incarnations.0 as u16).to_le_bytes());
    image.extend_from_slice(&(fit.commands.0 as u32).to_le_bytes());
    image.extend_from_slice(&fit.row_ids.0.to_le_bytes());
    image.extend_from_slice(&fit.writers.0.to_le_bytes());
    debug_assert_eq!(image.len(), HEADER);
    if heads {
        let rest = |row: RowRef<'a>| row.key.get(fit.prefix..).unwrap_or_default();
        rows.clone().for_each(|row| image.extend_from_slice(&suffix_head(rest(row)).to_le_bytes()));
    }
    for RowRef { head: Head { row_id, writer, command, flags, incarnation }, .. } in rows.clone() {
        put_narrow(image, row_id.0 - fit.row_ids.0, widths[0]);
        put_narrow(image, writer.0 - fit.writers.0, widths[1]);
        put_narrow(image, u64::from(command) - fit.commands.0, widths[2]);
        put_narrow(image, u64::from(incarnation) - fit.incarnations.0, widths[3]);
        if fit.own_flags {
            image.push(flags.0);
        }
    }
    let first_key = rows.clone().next().map_or(&[][..], |row| row.key);
    image.extend_from_slice(first_key.get(..fit.prefix).unwrap_or_default());
    let mut slot = image.len();
    if stride == 0 {
        image.resize(slot + 2 * fit.rows, 0);
    }
    for row in rows {
        if stride == 0 {
            let at = (image.len() as u16).to_le_bytes();
            if let Some(place) = image.get_mut(slot..slot + 2) {
                place.copy_from_slice(&at);
            }
            slot += 2;
        }
        let rest = row.key.get(fit.prefix..).unwrap_or_default();
        if suffix == OWN_SUFFIX_LENGTH {
            put_varint(image, rest.len() as u64);
        }
        image.extend_from_slice(rest);
        image.extend_from_slice(row.body);
    }
    debug_assert!(image.len() <= fit.size());
}

/// For fuzzing: reads everything that arbitrary contents may hold.
pub fn fuzz_data(contents: &[u8], key: &[u8]) {
    for flags in [0, SPLIT, REST, SPLIT | REST] {
        let Ok(Contents { image, missing, rest }) = Contents::parse(PageNo(0), contents, flags) else { continue };
        let Ok(layout) = Layout::parse(PageNo(0), image, missing) else { continue };
        let _ = layout.search(image, key);
        let _ = layout.find_row(image, RowId(7));
        let _ = layout.check_rows(image);
        for i in 0..layout.rows() {
            let _ = layout.row(image, i);
        }
        if let Ok(part) = layout.last_part(image) {
            let _ = layout.joined_row(image, &[part, rest].concat());
        }
    }
}
