//! Checks one run from its pages alone: everything that a reader relies on.
//!
//! ```text
//! data pages in order -> each row: order, counts, directory entry    each key: key page entry, filter, search on its page
//! key, directory, filter, fence pages, footer: each read once, their structure followed
//! ```
//!
//! What is wrong is told to the [`Inspector`], and the check goes on with the next page. Errors that say nothing of the
//! bytes (an interrupt, no memory) end it.

use super::data::{Contents, Layout, COMPRESSED, CONTINUED, CONTINUES};
use super::directory::Directory;
use super::fence::Fence;
use super::reader::image;
use super::{Footer, PageSource, Run, Scratch};
use crate::error::{Error, Result};
use crate::filter::key_hash;
use crate::key_text::hex;
use crate::page::{PageBuf, PageKind};
use crate::types::{L0Id, PageNo, RowId, RowRef, Writer};
use std::collections::VecDeque;

/// Takes what the check of a run comes upon.
pub trait Inspector {
    /// Something is wrong.
    fn found(&mut self, what: String);
    /// A row version, in order; its page could be read.
    fn row(&mut self, row: &RowRef<'_>) -> Result<()>;
    /// So many pages more have been looked at.
    fn looked(&mut self, pages: u64) -> Result<()>;
}

/// A finding, if the error speaks of bytes; else the error.
pub fn note(inspector: &mut impl Inspector, error: Error) -> Result<()> {
    match error {
        Error::Corrupt { .. } | Error::Format { .. } | Error::Io { .. } => {
            inspector.found(error.to_string());
            Ok(())
        }
        other => Err(other),
    }
}

/// Checks the run, which covers the L0 ids from `l0.0` to `l0.1`; `None`: those are in the hands of a merge.
pub fn check_run<S: PageSource>(
    run: &Run<'_>,
    l0: Option<(L0Id, L0Id)>,
    source: &S,
    inspector: &mut impl Inspector,
) -> Result<()> {
    let there: u64 = run.extents.iter().map(|extent| u64::from(extent.pages)).sum();
    let named = there + u64::from(run.first_page());
    if named != u64::from(run.shape.pages()) {
        inspector.found(format!("has {named} pages in the manifest and {} by its shape", run.shape.pages()));
        return Ok(());
    }
    if run.shape.rows == 0 {
        inspector.found("has no rows".into());
        return Ok(());
    }
    check_footer(run, l0, source, inspector)?;
    check_fences(run, source, inspector)?;
    check_directory(run, source, inspector)?;
    check_filters(run, source, inspector)?;
    Data::new(run, source).check(inspector)
}

fn check_footer<S: PageSource>(
    run: &Run<'_>,
    l0: Option<(L0Id, L0Id)>,
    source: &S,
    inspector: &mut impl Inspector,
) -> Result<()> {
    match run.check_footer(source) {
        Ok(Footer { first_l0: begins, last_l0: ends, .. }) => {
            // A run takes over the interval of an older one that a merge has left empty.
            if let Some((first, last)) = l0.filter(|l0| ends != l0.1 || begins < l0.0 || begins > l0.1) {
                inspector.found(format!("covers L0 ids {first} to {last}, and its footer says {begins} to {ends}"));
            }
        }
        Err(failed) => note(inspector, failed)?,
    }
    inspector.looked(1)
}

/// Follows the fence pages level by level: their children are all data pages, or fence pages of the level below, once each.
fn check_fences<S: PageSource>(run: &Run<'_>, source: &S, inspector: &mut impl Inspector) -> Result<()> {
    let shape = run.shape;
    if (shape.fence_pages == 0) != (shape.data_pages == 1) {
        inspector.found(format!("{} fence pages stand over {} data pages", shape.fence_pages, shape.data_pages));
    }
    // The children of the level: the next one expected, and the end.
    let (mut level, mut next, mut end, mut level_start) = (0u8, 0u32, shape.data_pages, 0u32);
    for index in 0..shape.fence_pages {
        inspector.looked(1)?;
        let parsed = run.read(source, shape.fence_start().saturating_add(index)).and_then(|(page, no, seq)| {
            let contents = page.expect(no, PageKind::Fence, seq)?;
            Fence::parse(no, contents)
        });
        let fence = match parsed {
            Ok(fence) => fence,
            Err(failed) => return note(inspector, failed),
        };
        if next == end && fence.level == level.saturating_add(1) {
            (level, next, end, level_start) = (fence.level, level_start, index, index);
        }
        let children = u32::try_from(fence.children).unwrap_or(u32::MAX);
        if fence.level != level || fence.first_child != next || end - next < children {
            let first = fence.first_child;
            inspector.found(format!(
                "fence page {index} of level {} has {children} children from {first} on, where level {level} goes on \
                 with {next} of {end}",
                fence.level
            ));
            return Ok(());
        }
        next += children;
    }
    let levels = if shape.fence_pages == 0 { 0 } else { level.saturating_add(1) };
    let rooted = shape.fence_pages == 0 || next == end && level_start + 1 == shape.fence_pages;
    if !rooted || levels != shape.fence_levels {
        inspector.found(format!("its fence pages have {levels} levels, not {}, or no root", shape.fence_levels));
    }
    Ok(())
}

/// The leaves of the row directory have one entry for every row, ascending. That each leads to its row is asked row by row.
fn check_directory<S: PageSource>(run: &Run<'_>, source: &S, inspector: &mut impl Inspector) -> Result<()> {
    let shape = run.shape;
    if shape.directory_pages == 0 {
        return Ok(());
    }
    let (mut entries, mut last) = (0u64, None);
    for index in 0..shape.directory_pages {
        inspector.looked(1)?;
        let walked = run.read(source, shape.directory_start().saturating_add(index)).and_then(|(page, no, seq)| {
            let directory = Directory::parse(no, page.expect(no, PageKind::Directory, seq)?)?;
            if directory.level > 0 {
                return Ok(true);
            }
            entries += directory.rows() as u64;
            let mut ordered = true;
            for i in 0..directory.rows() {
                let row = directory.row(i)?;
                ordered &= last.is_none_or(|last| last < row);
                last = Some(row);
            }
            Ok(ordered)
        });
        match walked {
            Ok(true) => {}
            Ok(false) => inspector.found(format!("row ids on directory page {index} do not ascend")),
            Err(failed) => {
                entries = shape.rows;
                note(inspector, failed)?;
            }
        }
    }
    if entries != shape.rows {
        inspector.found(format!("its row directory has {entries} entries for {} rows", shape.rows));
    }
    Ok(())
}

fn check_filters<S: PageSource>(run: &Run<'_>, source: &S, inspector: &mut impl Inspector) -> Result<()> {
    for index in 0..run.shape.filter_pages {
        let read = run.read(source, run.shape.filter_start().saturating_add(index));
        let kind = read.and_then(|(page, no, seq)| page.expect(no, PageKind::Filter, seq).map(|_| ()));
        if let Err(failed) = kind {
            note(inspector, failed)?;
        }
        inspector.looked(1)?;
    }
    Ok(())
}

/// What the rows add up to, as the shape tells it.
#[derive(Debug, PartialEq, Eq)]
struct Totals {
    rows: u64,
    keys: u64,
    tombstones: u64,
    bytes: u64,
    row_ids: (RowId, RowId),
    writers: (Writer, Writer),
}

/// The walk over the data pages.
struct Data<'r, S> {
    run: &'r Run<'r>,
    source: &'r S,
    scratch: Scratch,
    buffer: Vec<u8>,
    joined: Vec<u8>,
    key_pages: KeyPages,
    totals: Totals,
    /// All data pages could be read.
    complete: bool,
    /// The last row seen; `None` at the beginning and behind a page that cannot be read.
    last: Option<(Vec<u8>, RowId)>,
    /// The page on which the newest version of the last key stands, and whether the last page's key is said to go on.
    key_page: u32,
    continued: bool,
    /// The page before, and whether it lacks the end of its last row.
    lacks: Option<(u32, bool)>,
    first_key: Vec<u8>,
    rows_of_page: Vec<u64>,
}

impl<'r, S: PageSource> Data<'r, S> {
    fn new(run: &'r Run<'r>, source: &'r S) -> Data<'r, S> {
        Data {
            run,
            source,
            scratch: Scratch::default(),
            buffer: Vec::new(),
            joined: Vec::new(),
            key_pages: KeyPages::default(),
            totals: Totals {
                rows: 0,
                keys: 0,
                tombstones: 0,
                bytes: 0,
                row_ids: (RowId(u64::MAX), RowId(0)),
                writers: (Writer(u64::MAX), Writer(0)),
            },
            complete: true,
            last: None,
            key_page: 0,
            continued: false,
            lacks: None,
            first_key: Vec::new(),
            rows_of_page: Vec::new(),
        }
    }

    fn check(mut self, inspector: &mut impl Inspector) -> Result<()> {
        for index in self.run.first_page()..self.run.shape.data_pages {
            if let Err(failed) = self.page(index, inspector) {
                note(inspector, failed)?;
                self.complete = false;
                self.last = None;
                self.key_pages.lost = true;
            }
            inspector.looked(1)?;
        }
        if self.complete {
            self.compare(inspector);
        }
        inspector.looked(u64::from(self.run.shape.key_pages))
    }

    fn page(&mut self, index: u32, inspector: &mut impl Inspector) -> Result<()> {
        let (page, no, seq) = self.run.read(self.source, index)?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = image(&page, no, seq, &mut buffer).and_then(|part| {
            self.shares(index, &page, no, part.missing, inspector)?;
            let layout = Layout::parse(no, part.bytes, part.missing)?;
            if part.missing > 0 {
                self.run.join(self.source, index, &layout, part, false, &mut self.joined)?;
            }
            self.rows(index, &layout, part.bytes, part.flags, inspector)
        });
        self.buffer = buffer;
        result
    }

    /// A page has the rest of a row if the one before lacks it. (That it has all of it is found by who puts the row together.)
    fn shares(
        &mut self,
        index: u32,
        page: &PageBuf,
        no: PageNo,
        missing: usize,
        inspector: &mut impl Inspector,
    ) -> Result<()> {
        let before = self.lacks.replace((index, missing > 0));
        let rest = match page.flags() & COMPRESSED {
            0 => Contents::parse(no, page.contents(), page.flags())?.rest,
            _ => &[],
        };
        let wanted = before.filter(|(of, _)| *of + 1 == index).map(|(_, lacks)| lacks);
        if wanted.is_some_and(|wanted| wanted == rest.is_empty()) || index == 0 && !rest.is_empty() {
            inspector.found(format!("data pages {} and {index} disagree about a split row", index.wrapping_sub(1)));
        }
        Ok(())
    }

    fn rows(
        &mut self,
        index: u32,
        layout: &Layout,
        image: &[u8],
        flags: u16,
        inspector: &mut impl Inspector,
    ) -> Result<()> {
        if flags & COMPRESSED != 0 && !self.run.shape.compressed {
            inspector.found(format!("data page {index} is compressed"));
        }
        self.rows_of_page.clear();
        let joined = std::mem::take(&mut self.joined);
        let mut key = Vec::new();
        for i in 0..layout.rows() {
            let (suffix, head, body) =
                if layout.is_cut(image, i) { layout.joined_row(image, &joined)? } else { layout.row(image, i)? };
            key.clear();
            key.extend_from_slice(layout.prefix(image));
            key.extend_from_slice(suffix);
            if self.run.lacks(&key) {
                continue;
            }
            let row = RowRef { key: &key, head, body };
            let same_key = self.last.as_ref().is_some_and(|(last, _)| *last == key);
            if i == 0 {
                self.edges(index, flags, same_key, inspector);
            }
            self.order(index, &row, same_key, inspector);
            let begins = !(same_key || i == 0 && self.last.is_none() && flags & CONTINUES != 0);
            if begins {
                self.key_page = index;
                self.new_key(&row, inspector)?;
            }
            if (begins || i == 0) && layout.search(image, &key)? != i {
                inspector.found(format!("key {} is not found where it stands on data page {index}", hex(&key)));
            }
            if (begins && i == 0 || i + 1 == layout.rows()) && (begins || self.last.is_some()) {
                self.fenced(&key, inspector)?;
            }
            self.count(&row);
            self.in_directory(index, head.row_id, inspector)?;
            inspector.row(&row)?;
            self.rows_of_page.push(head.row_id.0);
            self.last = Some((std::mem::take(&mut key), head.row_id));
        }
        self.joined = joined;
        self.continued = flags & CONTINUED != 0;
        self.rows_of_page.sort_unstable();
        if self.rows_of_page.windows(2).any(|pair| pair.first() == pair.last()) {
            inspector.found(format!("a row id stands twice on data page {index}"));
        }
        Ok(())
    }

    /// Both sides of the border between two pages say whether a key goes over it.
    fn edges(&self, index: u32, flags: u16, same_key: bool, inspector: &mut impl Inspector) {
        let known = index == 0 || self.last.is_some();
        if known && (flags & CONTINUES != 0) != same_key || self.last.is_some() && self.continued != same_key {
            inspector.found(format!("data pages {} and {index} disagree about a common key", index.wrapping_sub(1)));
        }
    }

    fn order(&self, index: u32, row: &RowRef<'_>, same_key: bool, inspector: &mut impl Inspector) {
        let Some((last, newer)) = &self.last else { return };
        if !same_key && row.key < last.as_slice() {
            inspector.found(format!("key {} on data page {index} comes after {}", hex(row.key), hex(last)));
        }
        if same_key && row.head.row_id >= *newer {
            let id = row.head.row_id;
            inspector.found(format!("row {id} on data page {index} comes after row {newer} of the same key"));
        }
    }

    /// The newest version of a key.
    fn new_key(&mut self, row: &RowRef<'_>, inspector: &mut impl Inspector) -> Result<()> {
        if self.totals.keys == 0 {
            self.first_key = row.key.to_vec();
        }
        self.totals.keys += 1;
        match self.run.may_contain(self.source, key_hash(row.key)) {
            Ok(true) => {}
            Ok(false) => inspector.found(format!("its filter denies key {}", hex(row.key))),
            Err(failed) => note(inspector, failed)?,
        }
        if self.run.shape.key_pages == 0 || self.key_pages.lost {
            return Ok(());
        }
        let told = match self.key_pages.next(self.run, self.source, &mut self.scratch) {
            Ok(told) => told,
            Err(failed) => {
                self.key_pages.lost = true;
                return note(inspector, failed);
            }
        };
        let expected = (row.key, row.head.flags.is_tombstone());
        if told.as_ref().map(|(key, tombstone)| (key.as_slice(), *tombstone)) != Some(expected) {
            self.key_pages.lost = true;
            inspector.found(format!("its key pages do not have key {} where it comes in the data", hex(row.key)));
        }
        Ok(())
    }

    /// The fences lead to the page on which the newest version of the key stands.
    fn fenced(&mut self, key: &[u8], inspector: &mut impl Inspector) -> Result<()> {
        match self.run.find_page(self.source, key) {
            Ok((page, _)) if page == self.key_page => {}
            Ok((page, _)) => {
                let stands = self.key_page;
                inspector.found(format!("key {} is on data page {stands}, the fences lead to {page}", hex(key)));
            }
            Err(failed) => note(inspector, failed)?,
        }
        Ok(())
    }

    fn in_directory(&mut self, index: u32, row: RowId, inspector: &mut impl Inspector) -> Result<()> {
        if self.run.shape.directory_pages == 0 {
            return Ok(());
        }
        match self.run.page_of_row(self.source, row, &mut self.scratch) {
            Ok(Some(page)) if page == index => {}
            Ok(Some(page)) => {
                inspector.found(format!("row {row} is on data page {index}, its directory says {page}"));
            }
            Ok(None) => inspector.found(format!("row {row} on data page {index} is not in its directory")),
            Err(failed) => note(inspector, failed)?,
        }
        Ok(())
    }

    fn count(&mut self, row: &RowRef<'_>) {
        let (totals, head) = (&mut self.totals, &row.head);
        totals.rows += 1;
        totals.tombstones += u64::from(head.flags.is_tombstone());
        totals.bytes += (row.key.len() + row.body.len()) as u64;
        totals.row_ids = (totals.row_ids.0.min(head.row_id), totals.row_ids.1.max(head.row_id));
        totals.writers = (totals.writers.0.min(head.writer), totals.writers.1.max(head.writer));
    }

    fn compare(&mut self, inspector: &mut impl Inspector) {
        let shape = self.run.shape;
        let told = Totals {
            rows: shape.rows,
            keys: shape.keys,
            tombstones: shape.tombstones,
            bytes: shape.bytes,
            row_ids: (shape.min_row, shape.max_row),
            writers: (shape.min_writer, shape.max_writer),
        };
        if self.totals != told && self.run.cut.is_none() {
            inspector.found(format!("holds {:?} where {told:?} is said of it", self.totals));
        }
        let last_key = self.last.take().map(|(key, _)| key).unwrap_or_default();
        let min_key = self.run.cut.map_or(&shape.min_key, |cut| &cut.key);
        if self.first_key != *min_key || last_key != shape.max_key {
            let (first, last) = (hex(&self.first_key), hex(&last_key));
            let (min, max) = (hex(min_key), hex(&shape.max_key));
            inspector.found(format!("its keys go from {first} to {last}, not from {min} to {max}"));
        }
        if shape.key_pages > 0 && !self.key_pages.lost {
            match self.key_pages.next(self.run, self.source, &mut self.scratch) {
                Ok(None) => {}
                Ok(Some((key, _))) => inspector.found(format!("its key pages go on with key {}", hex(&key))),
                Err(failed) => inspector.found(failed.to_string()),
            }
        }
    }
}

/// The keys of the key pages, one after the other.
#[derive(Default)]
struct KeyPages {
    next: u32,
    keys: VecDeque<(Vec<u8>, bool)>,
    /// They are not in step with the data any more.
    lost: bool,
}

impl KeyPages {
    fn next<S: PageSource>(
        &mut self,
        run: &Run<'_>,
        source: &S,
        scratch: &mut Scratch,
    ) -> Result<Option<(Vec<u8>, bool)>> {
        while self.keys.is_empty() && self.next < run.shape.key_pages {
            let keys = &mut self.keys;
            run.for_each_key(source, self.next, scratch, |key, tombstone| {
                keys.push_back((key.to_vec(), tombstone));
                Ok(())
            })?;
            self.next += 1;
        }
        Ok(self.keys.pop_front())
    }
}
