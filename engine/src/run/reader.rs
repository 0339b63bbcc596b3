//! Answers from one run: by key, by row id, by filter; and all its keys.
//!
//! A look-up by key goes from the root fence page down to one data page. Each page is checked for kind and extent when it is
//! read, and let go before the next is read. Nothing is allocated once the caller's [`Scratch`] has grown.

use super::data::{Contents, Layout, COMPRESSED, CONTINUED, CONTINUES};
use super::directory::Directory;
use super::fence::Fence;
use super::{keys, pack, Footer, PageSource, RunShape};
use crate::cpu::{prefetch, Near, LINE};
use crate::error::{Error, Result};
use crate::filter;
use crate::mutation::{on, Mutation::CutRowsShown};
use crate::page::{PageBuf, PageKind, CONTENT};
use crate::pieces::Pieces;
use crate::types::{ExtentSeq, PageNo, RowBuf, RowId, RowRef, Verdict};
use std::ops::{Deref, RangeInclusive};

/// Lines of a page that are fetched at once where the rest of a row is.
pub(super) const REST_LINES: usize = 4;
/// Lines of a data page that are fetched before a row is looked for: its head, and the numbers of most pages.
const HEAD_LINES: usize = 6;

/// A run as the manifest describes it.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    pub shape: &'a RunShape,
    pub extents: &'a Pieces,
    pub cut: Option<&'a Cut>,
}

/// What a merge that goes on has taken over from a run: its rows below a key. Who reads the run does not meet them any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The first key that is left.
    pub key: Vec<u8>,
    /// So many data pages, from the first on, have been given back.
    pub pages: u32,
}

/// A leaf of a run's row directory.
pub struct Leaf<P> {
    page: P,
    no: PageNo,
    span: RangeInclusive<RowId>,
}

/// A data page that has been read for one of its rows.
pub struct OnPage<P> {
    index: u32,
    page: P,
    no: PageNo,
    seq: ExtentSeq,
}

/// Working space of look-ups, owned by the caller and used again from call to call.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Pages read with this scratch, ever.
    pub pages_read: u64,
    unpacked: Unpacked,
    /// A row that is on two pages.
    joined: Vec<u8>,
    key: Vec<u8>,
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch::default()
    }
}

impl<'a> Run<'a> {
    pub fn new(shape: &'a RunShape, extents: &'a Pieces) -> Run<'a> {
        Run { shape, extents, cut: None }
    }

    /// The first data page that is left.
    #[inline]
    pub fn first_page(&self) -> u32 {
        self.cut.map_or(0, |cut| cut.pages)
    }

    /// Whether the run has handed over what it had of `key`.
    #[inline]
    pub(super) fn lacks(&self, key: &[u8]) -> bool {
        self.cut.is_some_and(|cut| key < cut.key.as_slice()) && !on(CutRowsShown)
    }

    #[inline]
    fn place_of(&self, index: u32) -> Option<(PageNo, ExtentSeq)> {
        self.extents.locate(index.checked_sub(self.first_page())?)
    }

    pub(super) fn locate(&self, index: u32) -> Result<(PageNo, ExtentSeq)> {
        self.place_of(index).ok_or_else(|| Error::structure(format!("page {index} of a run is outside its extents")))
    }

    /// Asks for these pages of the run beforehand.
    pub fn prefetch<S: PageSource>(&self, source: &S, pages: std::ops::Range<u32>) {
        let gone = self.first_page();
        let mut index = pages.start.max(gone);
        while let Some((first, there)) = self.extents.stretch(index - gone).filter(|_| index < pages.end) {
            let count = there.min(pages.end - index);
            source.prefetch(first, count);
            index += count;
        }
    }

    /// Lets the processor fetch these places of page `index`, which are looked at next.
    #[inline]
    pub(super) fn touch<S: PageSource>(&self, source: &S, index: u32, places: impl Iterator<Item = usize>) {
        self.fetch(source, index, places, Near::First);
    }

    /// The same, as near as is wanted.
    #[inline]
    pub(super) fn fetch<S: PageSource>(&self, source: &S, index: u32, places: impl Iterator<Item = usize>, near: Near) {
        if let Some((no, _)) = self.place_of(index) {
            source.touch(no, places, near);
        }
    }

    /// Reads page `index` of the run.
    #[inline]
    pub(super) fn read<S: PageSource>(&self, source: &S, index: u32) -> Result<(S::Page, PageNo, ExtentSeq)> {
        let (no, seq) = self.locate(index)?;
        Ok((source.page(no)?, no, seq))
    }

    /// As [`Run::read`], for one of many pages that are read in their order.
    pub(super) fn read_in_order<S: PageSource>(&self, source: &S, index: u32) -> Result<(S::Page, PageNo, ExtentSeq)> {
        let (no, seq) = self.locate(index)?;
        Ok((source.page_in_order(no)?, no, seq))
    }

    /// Which data page has the newest version of `key`, if any page has; and how many pages were read for it.
    pub(super) fn find_page<S: PageSource>(&self, source: &S, key: &[u8]) -> Result<(u32, u32)> {
        let Some(top) = self.shape.fence_pages.checked_sub(1) else { return Ok((0, 0)) };
        let (mut index, mut level, mut reads) = (top, None, 0);
        loop {
            let (page, no, seq) = self.read(source, self.shape.fence_start().saturating_add(index))?;
            reads += 1;
            let contents = page.expect(no, PageKind::Fence, seq)?;
            let fence = Fence::parse(no, contents)?;
            check_level(no, level, fence.level)?;
            let child = fence.first_child.saturating_add(fence.search(contents, key)? as u32);
            if fence.level == 0 {
                return self.data_index(no, child).map(|child| (child, reads));
            }
            (index, level) = (child, Some(fence.level));
        }
    }

    pub(super) fn data_index(&self, from: PageNo, child: u32) -> Result<u32> {
        if child < self.shape.data_pages {
            return Ok(child);
        }
        let pages = self.shape.data_pages;
        Err(Error::page(from, CONTENT, format!("points to data page {child} of {pages}")))
    }

    /// Shows the versions of `key`, newest first, until one is taken. False: none was.
    pub fn get<S: PageSource>(
        &self,
        source: &S,
        key: &[u8],
        scratch: &mut Scratch,
        mut show: impl FnMut(RowRef<'_>) -> Verdict,
    ) -> Result<bool> {
        if self.lacks(key) {
            return Ok(false);
        }
        let (mut index, reads) = self.find_page(source, key)?;
        scratch.pages_read += u64::from(reads);
        let mut first = true;
        while index < self.shape.data_pages {
            let (page, no, seq) = self.read(source, index)?;
            page.touch();
            scratch.pages_read += 1;
            let part = scratch.unpacked.image(&page, no, seq)?;
            let layout = Layout::parse(no, part.bytes, part.missing)?;
            let Ok(wanted) = layout.within_prefix(part.bytes, key) else { return Ok(false) };
            let start = if first { layout.search(part.bytes, key)? } else { 0 };
            for i in start..layout.rows() {
                let (suffix, head, body) = if layout.is_cut(part.bytes, i) {
                    if layout.suffix(part.bytes, i)? != wanted {
                        return Ok(false);
                    }
                    scratch.pages_read += 1;
                    self.join(source, index, &layout, part, false, &mut scratch.joined)?;
                    layout.joined_row(part.bytes, &scratch.joined)?
                } else {
                    layout.row(part.bytes, i)?
                };
                if suffix != wanted {
                    return Ok(false);
                }
                if show(RowRef { key, head, body }) == Verdict::Take {
                    return Ok(true);
                }
            }
            if start == layout.rows() || part.flags & CONTINUED == 0 {
                return Ok(false);
            }
            first = false;
            index += 1;
        }
        Ok(false)
    }

    /// Asks for the page that [`Run::get`] will read for `key`.
    pub fn ask_for<S: PageSource>(&self, source: &S, key: &[u8]) -> Result<()> {
        if !self.lacks(key) {
            let (index, _) = self.find_page(source, key)?;
            self.prefetch(source, index..index.saturating_add(1));
        }
        Ok(())
    }

    /// Copies out the row version with this row id. Whether it is the newest of its key in this run; `None`: it is not in
    /// this run.
    pub fn by_row<S: PageSource>(
        &self,
        source: &S,
        row: RowId,
        scratch: &mut Scratch,
        out: &mut RowBuf,
    ) -> Result<Option<bool>> {
        let Some(index) = self.page_left_of_row(source, row, scratch)? else { return Ok(None) };
        self.touch_head(source, index);
        let (page, no, seq) = self.read(source, index)?;
        page.touch();
        scratch.pages_read += 1;
        self.row_on(source, &OnPage { index, page, no, seq }, None, row, scratch, out)
    }

    /// As [`Run::page_left_of_row`], but by the leaf of the run's directory that was looked at last, if the row id is there.
    pub fn page_by_leaf<S: PageSource>(
        &self,
        source: &S,
        row: RowId,
        scratch: &mut Scratch,
        leaf: &mut Option<Leaf<S::Page>>,
    ) -> Result<Option<u32>> {
        if row < self.shape.min_row || row > self.shape.max_row || self.shape.rows == 0 {
            return Ok(None);
        }
        let index = match leaf.as_ref().filter(|leaf| leaf.span.contains(&row)) {
            Some(leaf) => {
                let directory = Directory::parse(leaf.no, leaf.page.contents())?;
                directory.search(row)?.map(|child| self.data_index(leaf.no, child)).transpose()?
            }
            None => self.page_of_row_in(source, row, scratch, Some(leaf))?,
        };
        Ok(index.filter(|index| *index >= self.first_page()))
    }

    /// Begins to fetch what is looked at first of a data page.
    #[inline]
    pub fn touch_head<S: PageSource>(&self, source: &S, index: u32) {
        self.touch(source, index, (0..HEAD_LINES).map(|line| line * LINE));
    }

    /// Reads the page of a row.
    pub fn open_page<S: PageSource>(&self, source: &S, index: u32, scratch: &mut Scratch) -> Result<OnPage<S::Page>> {
        let (page, no, seq) = self.read(source, index)?;
        scratch.pages_read += 1;
        Ok(OnPage { index, page, no, seq })
    }

    /// Place of a row on its page, which begins to be fetched; `None`: the page is compressed.
    pub fn find_on_page<P: Deref<Target = PageBuf>>(&self, on: &OnPage<P>, row: RowId) -> Result<Option<usize>> {
        if on.page.flags() & COMPRESSED != 0 {
            return Ok(None);
        }
        let contents = on.page.expect(on.no, PageKind::Data, on.seq)?;
        let Contents { image, missing, .. } = Contents::parse(on.no, contents, on.page.flags())?;
        let layout = Layout::parse(on.no, image, missing)?;
        let slot = layout.find_row(image, row)?;
        if let Some(slot) = slot {
            layout.places_of(image, slot).for_each(|place| prefetch(image.as_ptr().wrapping_add(place)));
        }
        Ok(slot)
    }

    /// As [`Run::by_row`], of a row whose page has been read, and its place on that, if it is known.
    pub fn row_on<S: PageSource>(
        &self,
        source: &S,
        on: &OnPage<S::Page>,
        slot: Option<usize>,
        row: RowId,
        scratch: &mut Scratch,
        out: &mut RowBuf,
    ) -> Result<Option<bool>> {
        let part = scratch.unpacked.image(&on.page, on.no, on.seq)?;
        let layout = Layout::parse(on.no, part.bytes, part.missing)?;
        let slot = if slot.is_some() { slot } else { layout.find_row(part.bytes, row)? };
        let Some(slot) = slot else {
            return Err(Error::page(on.no, CONTENT, format!("row {row} is not where the directory says")));
        };
        let (suffix, head, body) = if layout.is_cut(part.bytes, slot) {
            scratch.pages_read += 1;
            self.join(source, on.index, &layout, part, false, &mut scratch.joined)?;
            layout.joined_row(part.bytes, &scratch.joined)?
        } else {
            layout.row(part.bytes, slot)?
        };
        let prefix = layout.prefix(part.bytes);
        out.key.clear();
        out.key.extend_from_slice(prefix);
        out.key.extend_from_slice(suffix);
        if self.lacks(&out.key) {
            return Ok(None);
        }
        out.head = head;
        out.body.clear();
        out.body.extend_from_slice(body);
        let newest = match slot.checked_sub(1) {
            Some(before) => !layout.is_same_key(part.bytes, before, slot)?,
            None => part.flags & CONTINUES == 0,
        };
        Ok(Some(newest))
    }

    /// Which data page has this row id, of those that are left. (Where the run was cut, the first of them has rows that are not left.)
    pub fn page_left_of_row<S: PageSource>(
        &self,
        source: &S,
        row: RowId,
        scratch: &mut Scratch,
    ) -> Result<Option<u32>> {
        if row < self.shape.min_row || row > self.shape.max_row || self.shape.rows == 0 {
            return Ok(None);
        }
        let index = self.page_of_row(source, row, scratch)?;
        Ok(index.filter(|index| *index >= self.first_page()))
    }

    /// Which data page has this row id.
    pub(super) fn page_of_row<S: PageSource>(
        &self,
        source: &S,
        row: RowId,
        scratch: &mut Scratch,
    ) -> Result<Option<u32>> {
        self.page_of_row_in(source, row, scratch, None)
    }

    /// The same; keeps the leaf that tells it, if that is wanted.
    fn page_of_row_in<S: PageSource>(
        &self,
        source: &S,
        row: RowId,
        scratch: &mut Scratch,
        leaf: Option<&mut Option<Leaf<S::Page>>>,
    ) -> Result<Option<u32>> {
        let Some(top) = self.shape.directory_pages.checked_sub(1) else {
            return Err(Error::Invalid("the run has no row directory".into()));
        };
        let (mut index, mut level) = (top, None);
        loop {
            let (page, no, seq) = self.read(source, self.shape.directory_start().saturating_add(index))?;
            scratch.pages_read += 1;
            let directory = Directory::parse(no, page.expect(no, PageKind::Directory, seq)?)?;
            check_level(no, level, directory.level)?;
            let Some(child) = directory.search(row)? else { return Ok(None) };
            if directory.level == 0 {
                if let Some(leaf) = leaf {
                    let span = directory.span()?;
                    *leaf = Some(Leaf { page, no, span });
                }
                return self.data_index(no, child).map(Some);
            }
            (index, level) = (child, Some(directory.level));
        }
    }

    /// Whether the run may hold the key with this hash ([`filter::key_hash`]). True when the run has no filter.
    pub fn may_contain<S: PageSource>(&self, source: &S, hash: u64) -> Result<bool> {
        let pages = self.shape.filter_pages;
        if pages == 0 {
            return Ok(self.shape.rows > 0);
        }
        let index = self.shape.filter_start().saturating_add(filter::page_of(hash, pages));
        let (page, no, seq) = self.read(source, index)?;
        filter::probe(no, page.expect(no, PageKind::Filter, seq)?, hash, pages)
    }

    /// Lets the processor fetch what [`Run::may_contain`] looks at.
    #[inline]
    pub fn touch_filter<S: PageSource>(&self, source: &S, hash: u64) {
        let pages = self.shape.filter_pages;
        if pages > 0 {
            let index = self.shape.filter_start().saturating_add(filter::page_of(hash, pages));
            let place = filter::place_of(hash, pages);
            self.touch(source, index, [0, place - LINE, place].into_iter());
        }
    }

    /// Shows the keys of one piece of the run, with the tombstone bit of their newest version; returns the piece to go on
    /// with, `None` at the end. Pieces are pages, counted from 0: key pages, or data pages if the run has no key pages.
    pub fn for_each_key<S: PageSource>(
        &self,
        source: &S,
        from_page: u32,
        scratch: &mut Scratch,
        mut show: impl FnMut(&[u8], bool) -> Result<()>,
    ) -> Result<Option<u32>> {
        let by_keys = self.shape.key_pages > 0;
        let (start, pages) = match by_keys {
            true => (self.shape.keys_start(), self.shape.key_pages),
            false => (self.first_page(), self.shape.data_pages.saturating_sub(self.first_page())),
        };
        let mut show = |key: &[u8], tombstone| if self.lacks(key) { Ok(()) } else { show(key, tombstone) };
        if from_page >= pages {
            return Ok(None);
        }
        let next = (from_page + 1 < pages).then_some(from_page + 1);
        let (page, no, seq) = self.read_in_order(source, start.saturating_add(from_page))?;
        scratch.pages_read += 1;
        if by_keys {
            keys::for_each(no, page.expect(no, PageKind::Keys, seq)?, &mut scratch.key, &mut show)?;
            return Ok(next);
        }
        let Image { bytes, missing, flags } = scratch.unpacked.image(&page, no, seq)?;
        let layout = Layout::parse(no, bytes, missing)?;
        let mut last = if flags & CONTINUES != 0 { Some(layout.suffix(bytes, 0)?) } else { None };
        for i in 0..layout.rows() {
            let suffix = layout.suffix(bytes, i)?;
            if last == Some(suffix) {
                continue;
            }
            last = Some(suffix);
            scratch.key.clear();
            scratch.key.extend_from_slice(layout.prefix(bytes));
            scratch.key.extend_from_slice(suffix);
            show(&scratch.key, layout.flags(bytes, i).is_tombstone())?;
        }
        Ok(next)
    }

    /// Puts the last row of data page `index` together: that page has `part` of its image, and the next the rest. `in_order`: pages are
    /// read in their order.
    pub(super) fn join<S: PageSource>(
        &self,
        source: &S,
        index: u32,
        layout: &Layout,
        part: Image<'_>,
        in_order: bool,
        joined: &mut Vec<u8>,
    ) -> Result<()> {
        let next = index.saturating_add(1);
        self.touch(source, next, (0..REST_LINES).map(|line| line * LINE));
        joined.clear();
        joined.extend_from_slice(layout.last_part(part.bytes)?);
        let (page, no, seq) = if in_order { self.read_in_order(source, next)? } else { self.read(source, next)? };
        let Contents { rest, .. } = Contents::parse(no, page.expect(no, PageKind::Data, seq)?, page.flags())?;
        if rest.len() != part.missing {
            let what = format!("has {} bytes of the row before, which lacks {}", rest.len(), part.missing);
            return Err(Error::page(no, CONTENT, what));
        }
        joined.extend_from_slice(rest);
        Ok(())
    }

    /// Reads the footer and checks that it is this run's.
    pub fn check_footer<S: PageSource>(&self, source: &S) -> Result<Footer> {
        let (page, no, seq) = self.read(source, self.shape.footer_start())?;
        let footer = Footer::decode(no, page.expect(no, PageKind::Footer, seq)?)?;
        if footer.shape != *self.shape {
            return Err(Error::page(no, CONTENT, "the footer is that of another run"));
        }
        Ok(footer)
    }
}

/// Levels go down by one on the way from the root.
pub(super) fn check_level(page: PageNo, above: Option<u8>, found: u8) -> Result<()> {
    match above {
        Some(above) if above.checked_sub(1) != Some(found) => {
            Err(Error::page(page, CONTENT, format!("found level {found} below level {above}")))
        }
        _ => Ok(()),
    }
}

/// The image of a data page, as far as the page has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Image<'b> {
    pub bytes: &'b [u8],
    /// So many bytes of the last row are on the next page.
    pub missing: usize,
    pub flags: u16,
}

/// The image of the compressed page that was read last: who looks at one row after the other finds many of them on one page.
#[derive(Debug, Default)]
struct Unpacked {
    /// What it was made of. By this it is known again, whatever run the page may belong to by now.
    contents: Vec<u8>,
    image: Vec<u8>,
}

impl Unpacked {
    /// As [`image`], which is asked only if need be.
    #[inline]
    fn image<'b>(&'b mut self, page: &'b PageBuf, no: PageNo, seq: ExtentSeq) -> Result<Image<'b>> {
        if page.flags() & COMPRESSED == 0 {
            return image(page, no, seq, &mut self.image);
        }
        let contents = page.expect(no, PageKind::Data, seq)?;
        if contents == self.contents {
            return Ok(Image { bytes: &self.image, missing: 0, flags: page.flags() });
        }
        self.contents.clear();
        let part = image(page, no, seq, &mut self.image)?;
        self.contents.extend_from_slice(contents);
        Ok(part)
    }
}

/// The image of a data page, in place or decompressed into `buffer`.
#[inline]
pub(super) fn image<'b>(page: &'b PageBuf, no: PageNo, seq: ExtentSeq, buffer: &'b mut Vec<u8>) -> Result<Image<'b>> {
    let contents = page.expect(no, PageKind::Data, seq)?;
    let flags = page.flags();
    if flags & COMPRESSED == 0 {
        let Contents { image: bytes, missing, .. } = Contents::parse(no, contents, flags)?;
        return Ok(Image { bytes, missing, flags });
    }
    match pack::decompress(contents, buffer) {
        Some(()) => Ok(Image { bytes: buffer, missing: 0, flags }),
        None => Err(Error::page(no, CONTENT, "compressed rows cannot be read")),
    }
}
