//! Writes a run: row versions in, pages out.
//!
//! Data pages go out as they fill. What the other sections need is kept aside until the data is complete: the filter's hashes
//! (8 bytes a key), the directory's entries (8 bytes a row), the key pages' contents (about the keys' bytes); and in memory, one
//! separator a data page.
//!
//! A long merge takes the run out in *slices*: what was written since the last one becomes a run of its own for the time being, with
//! the same data pages. It has neither filter nor key pages.

use super::data::{REST, SPLIT};
use super::directory;
use super::fence::{self, Separators};
use super::footer::{Footer, RunShape};
use super::keys;
use super::pack::{Packed, Packer};
use super::{PageSink, MAX_ROW};
use crate::error::{Error, Result};
use crate::filter::{self, key_hash, FilterBuilder};
use crate::options::{Compression, RunOptions};
use crate::page::{PageBuf, PageKind, FORMAT_RIBBON, FORMAT_SHARED};
use crate::types::{L0Id, RowId, RowRef, Writer, MAX_KEY};

pub struct RunWriter<S: PageSink> {
    out: Out<S>,
    l0: (L0Id, L0Id),
    packer: Packer,
    last_key: Vec<u8>,
    last_row: RowId,
    /// Last key of the last data page written.
    page_end: Vec<u8>,
    whole: Part,
    keys: Option<keys::Builder>,
    /// If slices are made: what there is since the last one.
    slice: Option<Part>,
    options: RunOptions,
    /// Bytes that may be kept aside in memory of each thing.
    memory: usize,
}

/// Rows that are being written, and what leads to them.
struct Part {
    shape: RunShape,
    separators: Separators,
    directory: Option<directory::Builder>,
    filter: Option<FilterBuilder>,
}

impl Part {
    fn new(options: &RunOptions, filter: bool, memory: usize) -> Part {
        let compressed = options.compression != Compression::None;
        Part {
            shape: RunShape { compressed, ..RunShape::default() },
            separators: Separators::default(),
            directory: options.directory.then(|| directory::Builder::new(memory)),
            filter: filter.then(|| FilterBuilder::new(options.filter, options.filter_bits, memory)),
        }
    }

    /// A row version is added, `first` of its key.
    fn count(&mut self, row: &RowRef<'_>, first: bool) {
        let (shape, head) = (&mut self.shape, &row.head);
        if shape.rows == 0 {
            shape.min_key = row.key.to_vec();
            (shape.min_row, shape.max_row) = (RowId::MAX, RowId(0));
            (shape.min_writer, shape.max_writer) = (Writer(u64::MAX), Writer(0));
        }
        shape.rows += 1;
        shape.keys += u64::from(first);
        shape.tombstones += u64::from(head.flags.is_tombstone());
        shape.bytes += (row.key.len() + row.body.len()) as u64;
        (shape.min_row, shape.max_row) = (shape.min_row.min(head.row_id), shape.max_row.max(head.row_id));
        (shape.min_writer, shape.max_writer) = (shape.min_writer.min(head.writer), shape.max_writer.max(head.writer));
    }

    /// A data page will be written whose first key follows on `before`.
    fn begin_page(&mut self, before: &[u8], first_key: &[u8]) {
        if self.shape.data_pages == 0 {
            self.separators.push([&[], &[]]);
        } else if before == first_key {
            self.separators.push([first_key, &[0]]);
        } else {
            self.separators.push([fence::separator(before, first_key), &[]]);
        }
    }

    /// The data page has these rows.
    fn end_page(&mut self, rows: impl Iterator<Item = RowId>, sink: &impl PageSink) -> Result<()> {
        if let Some(directory) = &mut self.directory {
            for row in rows {
                directory.add(row, self.shape.data_pages, sink)?;
            }
        }
        let Some(pages) = self.shape.data_pages.checked_add(1) else {
            return Err(Error::NoSpace("a run has 2^32 pages at most".into()));
        };
        self.shape.data_pages = pages;
        Ok(())
    }

    /// Writes the sections behind the data pages; slices do not have the `first` of them.
    fn finish<S: PageSink>(
        self,
        out: &mut Out<S>,
        l0: (L0Id, L0Id),
        max_key: Vec<u8>,
        first: impl FnOnce(&mut Out<S>, &mut RunShape) -> Result<()>,
    ) -> Result<RunShape> {
        let Part { mut shape, separators, directory, filter } = self;
        shape.max_key = max_key;
        debug_assert_eq!(separators.children(), shape.data_pages as usize);
        first(out, &mut shape)?;
        if let Some(directory) = directory {
            directory.finish(|contents| section(out, PageKind::Directory, contents, &mut shape.directory_pages))?;
        }
        if let Some(filter) = filter {
            filter.finish(|contents| section(out, PageKind::Filter, contents, &mut shape.filter_pages))?;
        }
        shape.fence_levels =
            fence::build(separators, |contents| section(out, PageKind::Fence, contents, &mut shape.fence_pages))?;
        let footer = Footer { first_l0: l0.0, last_l0: l0.1, shape };
        out.put(PageKind::Footer, 0, &footer.encode())?;
        Ok(footer.shape)
    }
}

/// The sink, and the page on its way there.
struct Out<S> {
    sink: S,
    page: Box<PageBuf>,
}

impl<S: PageSink> Out<S> {
    fn put(&mut self, kind: PageKind, flags: u16, contents: &[u8]) -> Result<()> {
        self.page.init(kind, self.sink.seq_of_next());
        self.page.set_flags(flags);
        if kind == PageKind::Data && flags & (SPLIT | REST) != 0 {
            self.page.set_format(FORMAT_SHARED);
        }
        if kind == PageKind::Filter && filter::is_ribbon(contents) {
            self.page.set_format(FORMAT_RIBBON);
        }
        self.page.fill(contents)?;
        self.sink.put(&mut self.page)
    }
}

impl<S: PageSink> RunWriter<S> {
    /// A writer of a run that covers the L0 ids from `first_l0` to `last_l0`.
    pub fn new(sink: S, options: &RunOptions, first_l0: L0Id, last_l0: L0Id) -> Result<RunWriter<S>> {
        options.validate()?;
        // Three things are kept aside, two of them twice where there are slices.
        let memory = sink.memory() / 5;
        Ok(RunWriter {
            out: Out { sink, page: PageBuf::boxed() },
            l0: (first_l0, last_l0),
            packer: Packer::new(options.compression)?,
            last_key: Vec::new(),
            last_row: RowId(0),
            page_end: Vec::new(),
            whole: Part::new(options, true, memory),
            keys: options.has_key_pages().then(|| keys::Builder::new(memory)),
            slice: None,
            options: *options,
            memory,
        })
    }

    /// From now on the rows can be taken out in slices, which have filters if somebody is going to ask those. To be called before the first
    /// row is added.
    pub fn make_slices(&mut self, filters: bool) {
        self.slice = Some(Part::new(&self.options, filters, self.memory));
    }

    /// Rows added so far.
    pub fn rows(&self) -> u64 {
        self.whole.shape.rows
    }

    /// Data pages written so far.
    pub fn pages(&self) -> u32 {
        self.whole.shape.data_pages
    }

    /// What was written since the last slice.
    pub fn of_slice(&self) -> Option<&RunShape> {
        self.slice.as_ref().map(|slice| &slice.shape)
    }

    pub fn sink(&mut self) -> &mut S {
        &mut self.out.sink
    }

    /// Adds the next row version: by key ascending, within a key by row id descending.
    pub fn add(&mut self, row: &RowRef<'_>) -> Result<()> {
        check(row)?;
        let order = match self.whole.shape.rows {
            0 => std::cmp::Ordering::Less,
            _ => self.last_key.as_slice().cmp(row.key),
        };
        let in_order = order.is_lt() || (order.is_eq() && row.head.row_id < self.last_row);
        if !in_order {
            // What comes from the pages of a log may have been changed there.
            return Err(Error::structure(format!("row version {} does not come in order", row.head.row_id)));
        }
        if order.is_lt() {
            self.new_key(row)?;
        }
        self.last_row = row.head.row_id;
        self.whole.count(row, order.is_lt());
        if let Some(slice) = &mut self.slice {
            slice.count(row, order.is_lt());
        }
        self.packer.push(row);
        while self.packer.due() {
            if !self.write_page(false)? {
                break;
            }
        }
        Ok(())
    }

    fn new_key(&mut self, row: &RowRef<'_>) -> Result<()> {
        let hash = key_hash(row.key);
        for filter in std::iter::once(&mut self.whole).chain(&mut self.slice).filter_map(|part| part.filter.as_mut()) {
            filter.add(hash, &self.out.sink)?;
        }
        if let Some(keys) = &mut self.keys {
            keys.add(row.key, row.head.flags.is_tombstone(), &self.out.sink)?;
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(row.key);
        Ok(())
    }

    /// Writes one data page; false when the packer rather waits for more rows.
    fn write_page(&mut self, last: bool) -> Result<bool> {
        let Some(Packed { contents, flags, first_key, last_key, rows }) = self.packer.page(last)? else {
            return Ok(false);
        };
        for part in std::iter::once(&mut self.whole).chain(&mut self.slice) {
            part.begin_page(&self.page_end, first_key);
        }
        self.page_end.clear();
        self.page_end.extend_from_slice(last_key);
        self.out.put(PageKind::Data, flags, contents)?;
        for part in std::iter::once(&mut self.whole).chain(&mut self.slice) {
            let ids = (0..rows).map_while(|i| self.packer.head(i)).map(|head| head.row_id);
            part.end_page(ids, &self.out.sink)?;
        }
        self.packer.drop_front(rows);
        Ok(true)
    }

    fn write_rest(&mut self) -> Result<()> {
        while !self.packer.is_empty() {
            self.write_page(true)?;
        }
        Ok(())
    }

    /// Ends a slice: all versions of its last key were added. What was written since the last one is a run by itself, once the
    /// sink's pages are.
    pub fn end_slice(&mut self) -> Result<RunShape> {
        self.write_rest()?;
        let slice = self.slice.as_mut().ok_or_else(|| Error::structure("a run that is not made in slices"))?;
        let next = Part::new(&self.options, slice.filter.is_some(), self.memory);
        std::mem::replace(slice, next).finish(&mut self.out, self.l0, self.last_key.clone(), |_, _| Ok(()))
    }

    /// Writes what is left, and the other sections. A run without rows has no pages.
    pub fn finish(mut self) -> Result<(RunShape, S)> {
        self.write_rest()?;
        let RunWriter { mut out, l0, last_key, whole, keys, .. } = self;
        if whole.shape.rows == 0 {
            return Ok((whole.shape, out.sink));
        }
        // Where the keys are most of the data, the data pages serve as well.
        let keys = keys.filter(|keys| keys.pages() * 2 <= whole.shape.data_pages as usize);
        let key_pages = |out: &mut Out<S>, shape: &mut RunShape| match keys {
            Some(keys) => keys.finish(|contents| section(out, PageKind::Keys, contents, &mut shape.key_pages)),
            None => Ok(()),
        };
        let shape = whole.finish(&mut out, l0, last_key, key_pages)?;
        Ok((shape, out.sink))
    }
}

fn section<S: PageSink>(out: &mut Out<S>, kind: PageKind, contents: &[u8], pages: &mut u32) -> Result<()> {
    *pages += 1;
    out.put(kind, 0, contents)
}

fn check(row: &RowRef<'_>) -> Result<()> {
    if row.key.is_empty() || row.key.len() > MAX_KEY {
        return Err(Error::Invalid(format!("a key has 1 to {MAX_KEY} bytes, not {}", row.key.len())));
    }
    if row.key.len() + row.body.len() > MAX_ROW {
        let length = row.key.len() + row.body.len();
        return Err(Error::Invalid(format!("a row of {length} bytes does not fit a page ({MAX_ROW} at most)")));
    }
    if row.head.row_id > RowId::MAX {
        return Err(Error::Invalid(format!("row id {} is above {}", row.head.row_id, RowId::MAX)));
    }
    Ok(())
}
