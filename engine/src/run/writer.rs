//! Writes a run: row versions in, pages out.
//!
//! Data pages go out as they fill. What the other sections need is kept aside until the data is complete: the filter's hashes
//! (8 bytes a key), the directory's entries (8 bytes a row), the key pages' contents (about the keys' bytes); and in memory, one
//! separator a data page.

use super::directory;
use super::fence::{self, Separators};
use super::footer::{Footer, RunShape};
use super::keys;
use super::pack::{Packed, Packer};
use super::{PageSink, MAX_ROW};
use crate::error::{Error, Result};
use crate::filter::{key_hash, FilterBuilder};
use crate::options::{Compression, RunOptions};
use crate::page::{PageBuf, PageKind};
use crate::types::{L0Id, RowId, RowRef, Writer, MAX_KEY};

pub struct RunWriter<S: PageSink> {
    out: Out<S>,
    shape: RunShape,
    l0: (L0Id, L0Id),
    packer: Packer,
    last_key: Vec<u8>,
    last_row: RowId,
    /// Last key of the last data page written.
    page_end: Vec<u8>,
    separators: Separators,
    filter: FilterBuilder,
    keys: Option<keys::Builder>,
    directory: Option<directory::Builder>,
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
        self.page.fill(contents)?;
        self.sink.put(&mut self.page)
    }
}

impl<S: PageSink> RunWriter<S> {
    /// A writer of a run that covers the L0 ids from `first_l0` to `last_l0`.
    pub fn new(sink: S, options: &RunOptions, first_l0: L0Id, last_l0: L0Id) -> Result<RunWriter<S>> {
        options.validate()?;
        // Three things are kept aside.
        let memory = sink.memory() / 3;
        Ok(RunWriter {
            out: Out { sink, page: PageBuf::boxed() },
            shape: RunShape { compressed: options.compression != Compression::None, ..RunShape::default() },
            l0: (first_l0, last_l0),
            packer: Packer::new(options.compression)?,
            last_key: Vec::new(),
            last_row: RowId(0),
            page_end: Vec::new(),
            separators: Separators::default(),
            filter: FilterBuilder::new(options.filter_bits, memory),
            keys: options.key_pages.then(|| keys::Builder::new(memory)),
            directory: options.directory.then(|| directory::Builder::new(memory)),
        })
    }

    /// Rows added so far.
    pub fn rows(&self) -> u64 {
        self.shape.rows
    }

    /// Pages written so far.
    pub fn pages(&self) -> u32 {
        self.shape.data_pages
    }

    pub fn sink(&mut self) -> &mut S {
        &mut self.out.sink
    }

    /// Adds the next row version: by key ascending, within a key by row id descending.
    pub fn add(&mut self, row: &RowRef<'_>) -> Result<()> {
        check(row)?;
        let order = if self.shape.rows == 0 { std::cmp::Ordering::Less } else { self.last_key.as_slice().cmp(row.key) };
        let in_order = order.is_lt() || (order.is_eq() && row.head.row_id < self.last_row);
        if !in_order {
            // What comes from the pages of a log may have been changed there.
            return Err(Error::structure(format!("row version {} does not come in order", row.head.row_id)));
        }
        if order.is_lt() {
            self.new_key(row)?;
        }
        self.last_row = row.head.row_id;
        self.count(row);
        self.packer.push(row);
        while self.packer.due() {
            if !self.write_page(false)? {
                break;
            }
        }
        Ok(())
    }

    fn new_key(&mut self, row: &RowRef<'_>) -> Result<()> {
        let tombstone = row.head.flags.is_tombstone();
        self.shape.keys += 1;
        if self.shape.rows == 0 {
            self.shape.min_key = row.key.to_vec();
        }
        self.filter.add(key_hash(row.key), &self.out.sink)?;
        if let Some(keys) = &mut self.keys {
            keys.add(row.key, tombstone, &self.out.sink)?;
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(row.key);
        Ok(())
    }

    fn count(&mut self, row: &RowRef<'_>) {
        let (shape, head) = (&mut self.shape, &row.head);
        if shape.rows == 0 {
            (shape.min_row, shape.max_row) = (RowId::MAX, RowId(0));
            (shape.min_writer, shape.max_writer) = (Writer(u64::MAX), Writer(0));
        }
        shape.rows += 1;
        shape.tombstones += u64::from(head.flags.is_tombstone());
        shape.bytes += (row.key.len() + row.body.len()) as u64;
        (shape.min_row, shape.max_row) = (shape.min_row.min(head.row_id), shape.max_row.max(head.row_id));
        (shape.min_writer, shape.max_writer) = (shape.min_writer.min(head.writer), shape.max_writer.max(head.writer));
    }

    /// Writes one data page; false when the packer rather waits for more rows.
    fn write_page(&mut self, last: bool) -> Result<bool> {
        let Some(Packed { contents, flags, first_key, last_key, rows }) = self.packer.page(last)? else {
            return Ok(false);
        };
        if self.shape.data_pages == 0 {
            self.separators.push([&[], &[]]);
        } else if self.page_end == first_key {
            self.separators.push([first_key, &[0]]);
        } else {
            self.separators.push([fence::separator(&self.page_end, first_key), &[]]);
        }
        self.page_end.clear();
        self.page_end.extend_from_slice(last_key);
        self.out.put(PageKind::Data, flags, contents)?;
        if let Some(directory) = &mut self.directory {
            for head in (0..rows).map_while(|i| self.packer.head(i)) {
                directory.add(head.row_id, self.shape.data_pages, &self.out.sink)?;
            }
        }
        let Some(pages) = self.shape.data_pages.checked_add(1) else {
            return Err(Error::NoSpace("a run has 2^32 pages at most".into()));
        };
        self.shape.data_pages = pages;
        self.packer.drop_front(rows);
        Ok(true)
    }

    /// Writes what is left, and the other sections. A run without rows has no pages.
    pub fn finish(mut self) -> Result<(RunShape, S)> {
        while !self.packer.is_empty() {
            self.write_page(true)?;
        }
        let RunWriter { mut out, mut shape, l0, last_key, separators, filter, keys, directory, .. } = self;
        if shape.rows == 0 {
            return Ok((shape, out.sink));
        }
        shape.max_key = last_key;
        debug_assert_eq!(separators.children(), shape.data_pages as usize);
        // Where the keys are most of the data, the data pages serve as well.
        if let Some(keys) = keys.filter(|keys| keys.pages() * 2 <= shape.data_pages as usize) {
            keys.finish(|contents| section(&mut out, PageKind::Keys, contents, &mut shape.key_pages))?;
        }
        if let Some(directory) = directory {
            directory
                .finish(|contents| section(&mut out, PageKind::Directory, contents, &mut shape.directory_pages))?;
        }
        filter.finish(|contents| section(&mut out, PageKind::Filter, contents, &mut shape.filter_pages))?;
        shape.fence_levels =
            fence::build(separators, |contents| section(&mut out, PageKind::Fence, contents, &mut shape.fence_pages))?;
        let footer = Footer { first_l0: l0.0, last_l0: l0.1, shape };
        out.put(PageKind::Footer, 0, &footer.encode())?;
        Ok((footer.shape, out.sink))
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
