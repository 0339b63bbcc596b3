//! What the tests of runs share: pages in memory, seeded random rows.
use super::{Cut, PageSink, PageSource, Run, RunCursor, RunShape, RunWriter};
use crate::error::{Error, Result};
use crate::host::SideFile;
use crate::options::RunOptions;
use crate::page::PageBuf;
use crate::pieces::Pieces;
use crate::types::*;
use std::cell::{Cell, RefCell};

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

/// A side file in memory.
#[derive(Default)]
pub struct SideBytes(Vec<u8>);

impl SideFile for SideBytes {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(&self.0[at as usize..][..into.len()]);
        Ok(())
    }
}

/// Pages in memory, in extents of ten pages with gaps between them.
pub struct Pages {
    pub pages: Vec<PageBuf>,
    /// What its writer may keep aside in memory, and side files that it has taken.
    pub memory: usize,
    pub side_files: Cell<u32>,
    pub reads: Cell<u64>,
    pub prefetched: RefCell<Vec<PageNo>>,
}

impl Default for Pages {
    fn default() -> Pages {
        let (reads, prefetched, side_files) = Default::default();
        Pages { pages: Vec::new(), memory: usize::MAX, side_files, reads, prefetched }
    }
}

const EXTENT: u32 = 10;
const GAP: u32 = 3;

impl PageSink for Pages {
    fn seq_of_next(&self) -> ExtentSeq {
        ExtentSeq(100 + self.pages.len() as u64 / u64::from(EXTENT))
    }

    fn put(&mut self, page: &mut PageBuf) -> Result<()> {
        self.pages.push(page.clone());
        Ok(())
    }

    fn memory(&self) -> usize {
        self.memory
    }

    fn side_file(&self) -> Result<Box<dyn SideFile>> {
        self.side_files.set(self.side_files.get() + 1);
        Ok(Box::<SideBytes>::default())
    }
}

impl PageSource for Pages {
    type Page = Box<PageBuf>;
    type Held = Box<PageBuf>;

    fn page(&self, no: PageNo) -> Result<Box<PageBuf>> {
        self.reads.set(self.reads.get() + 1);
        let (extent, within) = (no.0 / (EXTENT + GAP), no.0 % (EXTENT + GAP));
        let page = self.pages.get((extent * EXTENT + within) as usize).filter(|_| within < EXTENT);
        page.map(|page| Box::new(page.clone())).ok_or_else(|| Error::structure("past the end"))
    }

    fn hold(&self, page: Box<PageBuf>, spare: Option<Box<PageBuf>>) -> Box<PageBuf> {
        page.copy(spare)
    }

    fn prefetch(&self, first: PageNo, pages: u32) {
        self.prefetched.borrow_mut().extend((first.0..first.0 + pages).map(PageNo));
    }
}

pub struct TestRun {
    pub shape: RunShape,
    pub extents: Pieces,
    pub pages: Pages,
    pub cut: Option<Cut>,
}

impl TestRun {
    pub fn write(rows: &[RowBuf], options: &RunOptions) -> TestRun {
        TestRun::write_within(usize::MAX, rows, options)
    }

    /// With so much memory for what is kept aside.
    pub fn write_within(memory: usize, rows: &[RowBuf], options: &RunOptions) -> TestRun {
        let sink = Pages { memory, ..Pages::default() };
        let mut writer = RunWriter::new(sink, options, L0Id(3), L0Id(5)).unwrap();
        for row in rows {
            writer.add(&row.as_ref()).unwrap();
        }
        let (shape, pages) = writer.finish().unwrap();
        assert_eq!(shape.pages() as usize, pages.pages.len());
        let extents = Pieces::from(extents(0..shape.pages()));
        TestRun { shape, extents, pages, cut: None }
    }

    /// Without what is below this key, which it has.
    pub fn cut(mut self, key: &[u8]) -> TestRun {
        let mut cursor = RunCursor::new();
        assert!(cursor.seek(&self.run(), &self.pages, key).unwrap() && cursor.key() == key);
        let pages = cursor.window().unwrap().0;
        self.extents = extents(pages..self.shape.pages()).into();
        self.pages.pages[..pages as usize].fill(PageBuf::ZERO);
        self.cut = Some(Cut { key: key.to_vec(), pages });
        self
    }

    pub fn run(&self) -> Run<'_> {
        Run { cut: self.cut.as_ref(), ..Run::new(&self.shape, &self.extents) }
    }
}

/// Where these pages stand, counted as the sink got them.
pub fn extents(pages: std::ops::Range<u32>) -> Vec<Extent> {
    let pieces = (pages.start / EXTENT..pages.end.div_ceil(EXTENT)).map(|i| {
        let (from, until) = (pages.start.max(i * EXTENT), pages.end.min((i + 1) * EXTENT));
        Extent { start: PageNo(from + i * GAP), pages: until - from, seq: ExtentSeq(100 + u64::from(i)) }
    });
    pieces.collect()
}

/// Random rows in the order of a run.
pub struct Recipe {
    pub keys: usize,
    pub key_len: std::ops::Range<usize>,
    pub body_len: std::ops::Range<usize>,
    pub most_versions: usize,
    pub plain_heads: bool,
    /// Distinct values of a body byte.
    pub alphabet: usize,
}

impl Recipe {
    pub fn rows(&self, seed: u64) -> Vec<RowBuf> {
        let mut random = Random(seed);
        let mut keys: Vec<Vec<u8>> = (0..self.keys)
            .map(|_| {
                let n = self.key_len.start + random.below(self.key_len.len());
                let alphabet = if random.below(2) == 0 { 2 } else { 256 };
                (0..n).map(|_| random.below(alphabet) as u8).collect()
            })
            .collect();
        keys.sort();
        keys.dedup();
        let mut row_ids: Vec<u64> = Vec::new();
        let mut rows = Vec::new();
        for key in keys {
            let versions = 1 + random.below(self.most_versions);
            row_ids.clear();
            row_ids.extend((0..versions).map(|_| random.next() >> 24));
            row_ids.sort_unstable_by(|a, b| b.cmp(a));
            row_ids.dedup();
            for row_id in &row_ids {
                let mut head = Head { row_id: RowId(*row_id), ..Head::default() };
                if !self.plain_heads {
                    head.writer = Writer(random.next() >> (random.below(8) * 8));
                    head.command = if random.below(3) == 0 { random.next() as u32 } else { 0 };
                    head.incarnation = if random.below(5) == 0 { random.next() as u16 } else { 0 };
                    head.flags = if random.below(9) == 0 { Flags::TOMBSTONE } else { Flags(0) };
                }
                let n = self.body_len.start + random.below(self.body_len.len());
                let body = (0..n).map(|_| random.below(self.alphabet) as u8).collect();
                let body = if head.flags.is_tombstone() { Vec::new() } else { body };
                rows.push(RowBuf { head, key: key.clone(), body });
            }
        }
        rows
    }
}
