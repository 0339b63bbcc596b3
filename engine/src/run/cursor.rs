//! A position in a run, among its row versions, that moves both ways.
//!
//! The cursor keeps its data page (in a buffer its rows, if they are compressed there, and a row that ends on the next page) and the
//! lowest fence page on the way to it, in the way in which its page source lets pages be kept between calls. It names no run, the caller
//! gives it at each call and it has to be the same one. A seek looks at the page it is on first, then at the fence page it came by, and only
//! then goes down from the root: so a guided scan that always asks for a key close by reads each page once.

use super::ahead::{Ahead, Long};
use super::data::{Layout, Spot, COMPRESSED, CONTINUED, CONTINUES, LENGTH};
use super::fence::Fence;
use super::reader::{check_level, image, Image, REST_LINES};
use super::{PageSource, Run};
use crate::cpu::{Near, LINE};
use crate::error::{Error, Result};
use crate::page::{PageBuf, PageKind, CONTENT};
use crate::types::{Head, RowRef, PAGE_SIZE};
use std::ops::Deref;

/// Lines of a data page that a search looks at first, mostly: its head, and the heads of its keys.
const SEARCHED_LINES: usize = 4;
/// Rows of the next page that are fetched while those of this one are read.
const TOUCHED_ROWS: usize = 12;

pub struct RunCursor<P> {
    /// Pages read by this cursor, ever.
    pub pages_read: u64,
    page: Option<Loaded>,
    held: Option<P>,
    /// The rows of a compressed page.
    unpacked: Vec<u8>,
    /// The last row of a page that has not all of it, once somebody has come to it.
    joined: Vec<u8>,
    is_joined: bool,
    /// The key begins as those of the page at hand.
    prefixed: bool,
    /// Row on the page; meaningful while `valid`.
    slot: usize,
    valid: bool,
    key: Vec<u8>,
    head: Head,
    body: (usize, usize),
    fence: Option<(Fence, P)>,
    /// How often it went down from the root. The first time the fence page is not kept: there may be no other.
    descents: u32,
    ahead: Ahead,
    /// The page that [`RunCursor::approach`] has found, where the seek that follows looks first.
    approached: Option<u32>,
}

impl<P> Default for RunCursor<P> {
    fn default() -> RunCursor<P> {
        RunCursor {
            pages_read: 0,
            page: None,
            held: None,
            unpacked: Vec::new(),
            joined: Vec::new(),
            is_joined: false,
            prefixed: false,
            slot: 0,
            valid: false,
            key: Vec::new(),
            head: Head::default(),
            body: (0, 0),
            fence: None,
            descents: 0,
            ahead: Ahead::default(),
            approached: None,
        }
    }
}

/// The data page whose image is at hand.
#[derive(Clone, Copy)]
struct Loaded {
    index: u32,
    layout: Layout,
    compressed: bool,
    /// Where its image begins in the contents.
    start: usize,
    /// So many bytes of its last row are on the next page.
    missing: usize,
    /// The first key on the page began on the page before.
    continues: bool,
    /// The last key on the page goes on on the next.
    continued: bool,
}

impl<P: Deref<Target = PageBuf>> RunCursor<P> {
    pub fn new() -> RunCursor<P> {
        RunCursor::default()
    }

    /// The cursor is at a row version.
    pub fn valid(&self) -> bool {
        self.valid
    }

    /// The row version at the cursor; an empty one when it is not valid.
    #[inline]
    pub fn row(&self) -> RowRef<'_> {
        debug_assert!(self.valid);
        let from = if self.stands_on_joined() { self.joined.as_slice() } else { self.image() };
        RowRef { key: &self.key, head: self.head, body: from.get(self.body.0..self.body.1).unwrap_or_default() }
    }

    /// The head of the row version at the cursor.
    #[inline]
    pub fn head(&self) -> &Head {
        &self.head
    }

    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The page at hand: its number in the run, its rows, and the row at which the cursor stands.
    #[inline]
    pub fn window(&self) -> Option<(u32, &Layout, &[u8], usize)> {
        let page = self.page.as_ref().filter(|_| self.valid)?;
        Some((page.index, &page.layout, self.image(), self.slot))
    }

    /// So many rows of the page at hand are at hand, too: but for the last, if that is cut and nobody has come to it.
    #[inline]
    pub fn rows_at_hand(&self) -> usize {
        self.page.as_ref().map_or(0, |page| page.layout.rows() - usize::from(page.missing > 0 && !self.is_joined))
    }

    /// A row of the page at hand; its body, if it is one of [`RunCursor::rows_at_hand`].
    #[inline]
    pub fn spot(&self, row: usize) -> Option<Spot<'_>> {
        Spot::new(&self.page.as_ref()?.layout, self.image(), &self.joined, row)
    }

    /// Forgets everything: the cursor may be used for another run.
    pub fn reset(&mut self) {
        self.page = None;
        self.fence = None;
        self.approached = None;
        self.valid = false;
    }

    /// To the first version of the run. False: there is none; so with all moves.
    pub fn first<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S) -> Result<bool> {
        if let Some(cut) = run.cut {
            return self.seek(run, source, &cut.key);
        }
        if run.shape.rows == 0 {
            return self.leave();
        }
        self.load(run, source, 0, false)?;
        self.stand(run, source, 0)
    }

    /// To the newest version of the last key.
    pub fn last<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S) -> Result<bool> {
        let Some(index) = run.shape.data_pages.checked_sub(1) else { return self.leave() };
        self.load(run, source, index, false)?;
        self.stand_last(run, source)?;
        self.back_to_newest(run, source)
    }

    /// To the newest version of the first key not below `key`.
    pub fn seek<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S, key: &[u8]) -> Result<bool> {
        if run.shape.rows == 0 {
            return self.leave();
        }
        let slot = self.lower_bound(run, source, left_at(run, key))?;
        let page = self.loaded()?;
        if slot < page.layout.rows() {
            return self.stand(run, source, slot);
        }
        self.next_page(run, source, page.index)
    }

    /// As `seek`, for one who walks over the keys in order and so finds `key` next to where the cursor is, mostly.
    pub fn seek_near<S: PageSource<Held = P>>(
        &mut self,
        run: &Run<'_>,
        source: &S,
        key: &[u8],
        forward: bool,
    ) -> Result<bool> {
        if self.valid {
            let page = self.loaded()?;
            let next = if forward { self.slot + 1 } else { self.slot.wrapping_sub(1) };
            if next < page.layout.rows()
                && page.layout.within_prefix(self.image(), key).is_ok_and(|wanted| {
                    page.layout.suffix(self.image(), next).is_ok_and(|suffix| suffix == wanted)
                        && self.suffix_of_key(&page) != wanted
                })
            {
                self.stand(run, source, next)?;
                return if forward { Ok(true) } else { self.back_to_newest(run, source) };
            }
        }
        self.seek(run, source, key)
    }

    /// To the newest version of the last key not above `key`.
    pub fn seek_for_prev<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S, key: &[u8]) -> Result<bool> {
        self.seek_back(run, source, key, true)
    }

    /// To the newest version of the last key below `key`.
    pub fn seek_last_before<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S, key: &[u8]) -> Result<bool> {
        self.seek_back(run, source, key, false)
    }

    fn seek_back<S: PageSource<Held = P>>(
        &mut self,
        run: &Run<'_>,
        source: &S,
        key: &[u8],
        included: bool,
    ) -> Result<bool> {
        if run.shape.rows == 0 || run.lacks(key) {
            return self.leave();
        }
        let slot = self.lower_bound(run, source, key)?;
        let page = self.loaded()?;
        if slot < page.layout.rows() {
            self.stand(run, source, slot)?;
            if included && self.key == key {
                return Ok(true);
            }
        }
        if slot > 0 {
            self.stand(run, source, slot - 1)?;
        } else if !self.prev_page(run, source, page.index)? {
            return Ok(false);
        }
        if run.lacks(&self.key) {
            return self.leave();
        }
        self.back_to_newest(run, source)
    }

    /// To the next version: an older one of the same key, or the newest of the next key.
    #[inline]
    pub fn next<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S) -> Result<bool> {
        if !self.valid {
            return Ok(false);
        }
        let page = self.loaded()?;
        if self.slot + 1 < page.layout.rows() {
            return self.stand(run, source, self.slot + 1);
        }
        self.next_page(run, source, page.index)
    }

    /// To the next older version of the same key. False: there is none, and the cursor has not moved.
    pub fn older<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S) -> Result<bool> {
        if !self.valid {
            return Ok(false);
        }
        let page = self.loaded()?;
        if self.slot + 1 < page.layout.rows() {
            let same = page.layout.is_same_key(self.image(), self.slot, self.slot + 1)?;
            return if same { self.stand(run, source, self.slot + 1) } else { Ok(false) };
        }
        if !page.continued {
            return Ok(false);
        }
        self.next_page(run, source, page.index)
    }

    /// To the version before: a newer one of the same key, or the oldest of the key before.
    pub fn prev<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S) -> Result<bool> {
        if !self.valid {
            return Ok(false);
        }
        if self.slot > 0 {
            self.stand(run, source, self.slot - 1)?;
        } else {
            let page = self.loaded()?;
            self.prev_page(run, source, page.index)?;
        }
        if self.valid && run.lacks(&self.key) {
            return self.leave();
        }
        Ok(self.valid)
    }

    /// To the newest version of the next key.
    #[inline]
    pub fn next_key<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S) -> Result<bool> {
        let once = run.shape.has_each_key_once();
        while self.valid {
            let page = self.loaded()?;
            let mut slot = self.slot;
            while slot + 1 < page.layout.rows() {
                slot += 1;
                if once || !page.layout.is_same_key(self.image(), slot - 1, slot)? {
                    return self.stand(run, source, slot);
                }
            }
            if !self.next_page(run, source, page.index)? || !self.loaded()?.continues {
                break;
            }
        }
        Ok(self.valid)
    }

    /// To the newest version of the first key behind that of this row of the page at hand.
    pub fn next_key_after<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S, slot: usize) -> Result<bool> {
        self.valid = false;
        let layout = self.loaded()?.layout;
        let (mut key, mut prefixed) = (std::mem::take(&mut self.key), self.prefixed);
        let named = layout
            .suffix(self.image(), slot)
            .map(|suffix| name(&mut key, &mut prefixed, layout.prefix(self.image()), suffix));
        (self.key, self.prefixed) = (key, prefixed);
        named?;
        (self.valid, self.slot) = (true, slot);
        self.next_key(run, source)
    }

    /// To the newest version of the key before.
    pub fn prev_key<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S) -> Result<bool> {
        if !self.back_to_newest(run, source)? || !self.prev(run, source)? {
            return Ok(false);
        }
        self.back_to_newest(run, source)
    }

    /// To the newest version of the key at the cursor.
    fn back_to_newest<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S) -> Result<bool> {
        while self.valid {
            let page = self.loaded()?;
            let mut slot = self.slot;
            while slot > 0 && page.layout.is_same_key(self.image(), slot - 1, slot)? {
                slot -= 1;
            }
            if slot != self.slot {
                self.stand(run, source, slot)?;
            }
            if slot > 0 || !page.continues {
                break;
            }
            self.prev_page(run, source, page.index)?;
        }
        Ok(self.valid)
    }

    #[inline]
    fn suffix_of_key(&self, page: &Loaded) -> &[u8] {
        self.key.get(page.layout.prefix(self.image()).len()..).unwrap_or_default()
    }

    /// The rows of the page at hand.
    #[inline]
    fn image(&self) -> &[u8] {
        match (&self.page, &self.held) {
            (Some(page), Some(held)) if !page.compressed => held.contents().get(page.start..).unwrap_or_default(),
            _ => &self.unpacked,
        }
    }

    /// The row at the cursor is one that its page has not all of.
    #[inline]
    fn stands_on_joined(&self) -> bool {
        self.page.as_ref().is_some_and(|page| page.layout.is_cut(self.image(), self.slot))
    }

    fn loaded(&self) -> Result<Loaded> {
        self.page.ok_or_else(|| Error::structure("a run's cursor has no page"))
    }

    fn leave(&mut self) -> Result<bool> {
        self.valid = false;
        Ok(false)
    }

    fn next_page<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S, index: u32) -> Result<bool> {
        let next = index.saturating_add(1);
        if next >= run.shape.data_pages {
            return self.leave();
        }
        self.enter(run, source, next, false)?;
        self.stand(run, source, 0)
    }

    fn prev_page<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S, index: u32) -> Result<bool> {
        let Some(before) = index.checked_sub(1).filter(|before| *before >= run.first_page()) else {
            return self.leave();
        };
        self.enter(run, source, before, true)?;
        self.stand_last(run, source)
    }

    /// Where a walk with [`RunCursor::seek`] (forwards) or its like (backwards) from `key` begins: asks for that page, and for `more`,
    /// which the walk is expected to go on to. A seek that follows looks there first.
    pub fn approach<S: PageSource<Held = P>>(
        &mut self,
        run: &Run<'_>,
        source: &S,
        key: &[u8],
        backward: bool,
        more: u32,
    ) -> Result<()> {
        if run.shape.data_pages == 0 || self.on_this_page(run, key)?.is_some() {
            return Ok(());
        }
        let index = self.page_of(run, source, left_at(run, key))?;
        self.approached = Some(index);
        run.touch(source, index, (0..SEARCHED_LINES).map(|line| line * LINE));
        run.prefetch(source, self.ahead.begin(index, backward, run.shape.data_pages, more));
        Ok(())
    }

    /// Lets the processor fetch what a walk forwards looks at first when it comes to the next page: its head, and its first keys,
    /// which stand where they do on this page, mostly.
    #[inline]
    pub fn touch_next<S: PageSource<Held = P>>(&self, run: &Run<'_>, source: &S) {
        let Some(page) = self.page.filter(|page| page.index + 1 < run.shape.data_pages) else { return };
        let known = if page.compressed { 0 } else { TOUCHED_ROWS };
        // It begins with what this page lacks of a row; its own last row may end on the page after it, too.
        let begin = CONTENT + if page.missing > 0 { page.missing + 2 * LENGTH } else { 0 };
        let rows = page.layout.first_rows(known).map(|at| begin + at);
        run.touch(source, page.index + 1, [0, LINE].into_iter().chain(rows));
        if page.missing > 0 {
            let end = match page.layout.last_row_at() {
                // All of that row will be copied, after the others of the page. It is as long as this page's last one.
                Some(at) => {
                    let row = self.image().len().saturating_sub(at) + page.missing;
                    let lines = (begin + at + LINE..PAGE_SIZE).step_by(LINE);
                    run.fetch(source, page.index + 1, lines, Near::Second);
                    CONTENT + 2 * LENGTH + (begin + at + row).saturating_sub(PAGE_SIZE)
                }
                None => REST_LINES * LINE,
            };
            run.fetch(source, page.index + 2, (0..end).step_by(LINE), Near::Second);
        }
    }

    /// Asks for pages in long walks, too, of which there are so many side by side.
    pub fn ask_for_all(&mut self, walks: usize) {
        self.ahead.long = Long::walks(walks);
    }

    /// Pages that this cursor entered from their neighbour, ever.
    pub fn walked(&self) -> u32 {
        self.ahead.walked
    }

    /// Comes to a page from its neighbour.
    fn enter<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S, index: u32, backward: bool) -> Result<()> {
        run.prefetch(source, self.ahead.enter(index, backward, run.shape.data_pages));
        self.load(run, source, index, self.ahead.is_left_to_system())
    }

    fn stand_last<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S) -> Result<bool> {
        let rows = self.loaded()?.layout.rows();
        self.stand(run, source, rows.saturating_sub(1))
    }

    /// Stands at a row of the page at hand.
    #[inline]
    pub fn stand<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S, slot: usize) -> Result<bool> {
        self.valid = false;
        if self.loaded()?.layout.is_cut(self.image(), slot) {
            self.join(run, source)?;
        }
        self.stand_on(slot)
    }

    /// Puts the last row of the page at hand together, if it is cut.
    pub fn join<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S) -> Result<()> {
        let Loaded { index, layout, missing, .. } = self.loaded()?;
        if missing == 0 || self.is_joined {
            return Ok(());
        }
        let mut joined = std::mem::take(&mut self.joined);
        let part = Image { bytes: self.image(), missing, flags: 0 };
        let result = run.join(source, index, &layout, part, self.ahead.is_left_to_system(), &mut joined);
        self.joined = joined;
        self.pages_read += 1;
        self.is_joined = result.is_ok();
        result
    }

    /// Stands at a row of the page at hand that is not cut, or has been put together.
    #[inline]
    fn stand_on(&mut self, slot: usize) -> Result<bool> {
        let Some(page) = &self.page else { return Err(Error::structure("a run's cursor has no page")) };
        self.valid = false;
        let image = match &self.held {
            Some(held) if !page.compressed => held.contents().get(page.start..).unwrap_or_default(),
            _ => &self.unpacked,
        };
        let cut = page.layout.is_cut(image, slot);
        let (suffix, head, body) =
            if cut { page.layout.joined_row(image, &self.joined)? } else { page.layout.row(image, slot)? };
        name(&mut self.key, &mut self.prefixed, page.layout.prefix(image), suffix);
        self.head = head;
        let from = if cut { self.joined.as_ptr() } else { image.as_ptr() };
        let start = body.as_ptr() as usize - from as usize;
        self.body = (start, start + body.len());
        self.slot = slot;
        self.valid = true;
        Ok(true)
    }

    /// Copies a data page, unless it is at hand. `in_order`: it is one of many that are read in their order.
    fn load<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S, index: u32, in_order: bool) -> Result<()> {
        if self.page.is_some_and(|page| page.index == index) {
            return Ok(());
        }
        self.page = None;
        self.valid = false;
        let (page, no, seq) = if in_order { run.read_in_order(source, index)? } else { run.read(source, index)? };
        self.pages_read += 1;
        let part = image(&page, no, seq, &mut self.unpacked)?;
        let (flags, missing) = (part.flags, part.missing);
        let layout = Layout::parse(no, part.bytes, part.missing)?;
        (self.is_joined, self.prefixed) = (false, false);
        let compressed = flags & COMPRESSED != 0;
        let start = if compressed { 0 } else { page.contents().len() - part.bytes.len() };
        if !compressed {
            let spare = self.held.take();
            self.held = Some(source.hold(page, spare));
        }
        let (continues, continued) = (flags & CONTINUES != 0, flags & CONTINUED != 0);
        self.page = Some(Loaded { index, layout, compressed, start, missing, continues, continued });
        Ok(())
    }

    /// Loads the page where the first version not below `key` is, or would be; returns its slot there (the number of rows, when it is
    /// the first of the next page).
    fn lower_bound<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S, key: &[u8]) -> Result<usize> {
        self.valid = false;
        if let Some(slot) = self.on_this_page(run, key)? {
            self.approached = None;
            return Ok(slot);
        }
        if let Some(index) = self.approached.take() {
            self.load(run, source, index, false)?;
            if let Some(slot) = self.on_this_page(run, key)? {
                return Ok(slot);
            }
        }
        let from = self.page.map(|page| page.index);
        let index = self.page_of(run, source, key)?;
        match from {
            Some(from) if from.abs_diff(index) == 1 => self.enter(run, source, index, index < from)?,
            _ => self.load(run, source, index, false)?,
        }
        self.loaded()?.layout.search(self.image(), key)
    }

    /// The page where the first version not below `key` is, or at whose end it would be.
    fn page_of<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S, key: &[u8]) -> Result<u32> {
        match self.by_known_fence(run, key)? {
            Some(index) => Ok(index),
            None => self.descend(run, source, key),
        }
    }

    /// The slot of the lower bound, if the page at hand surely has it.
    fn on_this_page(&self, run: &Run<'_>, key: &[u8]) -> Result<Option<usize>> {
        let Some(page) = self.page else { return Ok(None) };
        let slot = page.layout.search(self.image(), key)?;
        let rows = page.layout.rows();
        let surely = if slot == 0 {
            let first = page.layout.suffix(self.image(), 0)?;
            page.index == 0 || (!page.continues && page.layout.within_prefix(self.image(), key) == Ok(first))
        } else {
            slot < rows || page.index + 1 == run.shape.data_pages
        };
        Ok(surely.then_some(slot))
    }

    /// The data page, if the fence page at hand surely knows it.
    fn by_known_fence(&self, run: &Run<'_>, key: &[u8]) -> Result<Option<u32>> {
        let Some((fence, page)) = &self.fence else { return Ok(None) };
        let child = fence.search(page.contents(), key)?;
        if run.shape.fence_levels > 1 && (child == 0 || child + 1 == fence.children) {
            return Ok(None);
        }
        let index = fence.first_child.saturating_add(child as u32);
        Ok((index < run.shape.data_pages).then_some(index))
    }

    /// Goes down from the root; keeps a copy of the lowest fence page.
    fn descend<S: PageSource<Held = P>>(&mut self, run: &Run<'_>, source: &S, key: &[u8]) -> Result<u32> {
        let Some(top) = run.shape.fence_pages.checked_sub(1) else { return Ok(0) };
        let (mut index, mut level) = (top, None);
        loop {
            let (page, no, seq) = run.read(source, run.shape.fence_start().saturating_add(index))?;
            self.pages_read += 1;
            let contents = page.expect(no, PageKind::Fence, seq)?;
            let fence = Fence::parse(no, contents)?;
            check_level(no, level, fence.level)?;
            let child = fence.first_child.saturating_add(fence.search(contents, key)? as u32);
            if fence.level == 0 {
                let child = run.data_index(no, child)?;
                self.descents = self.descents.saturating_add(1);
                if self.descents > 1 {
                    let spare = self.fence.take().map(|(_, page)| page);
                    self.fence = Some((fence, source.hold(page, spare)));
                }
                return Ok(child);
            }
            (index, level) = (child, Some(fence.level));
        }
    }
}

/// Makes the key of a row of the page at hand. Until then it is the one there was: who comes again after a failure goes on from that.
#[inline]
fn name(key: &mut Vec<u8>, prefixed: &mut bool, prefix: &[u8], suffix: &[u8]) {
    if *prefixed {
        key.truncate(prefix.len());
    } else {
        key.clear();
        key.extend_from_slice(prefix);
        *prefixed = true;
    }
    key.extend_from_slice(suffix);
}

/// Where a seek to `key` begins in what is left of the run.
#[inline]
fn left_at<'k>(run: &Run<'k>, key: &'k [u8]) -> &'k [u8] {
    match run.cut {
        Some(cut) if run.lacks(key) => &cut.key,
        _ => key,
    }
}
