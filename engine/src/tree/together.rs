//! Several rows read by their ids at once.
//!
//! ```text
//!   row ids -> pages, by the directory   (begins to fetch the heads of the data pages)
//!           -> places on the pages       (begins to fetch the rows)
//!           -> rows, and whether each is the newest of its key
//! ```
//!
//! Who reads one row waits for memory three times, one after the other: for the page's buffer, for its head, for the row. So each step is
//! done for several rows before the next one is. In the order of their ids most rows are told by the leaf of the directory that
//! told the one before.

use crate::error::Result;
use crate::host::{Host, Saw};
use crate::run::{Leaf, OnPage, Scratch};
use crate::tree::by_row::Looked;
use crate::tree::read::{Pages, SCRATCH};
use crate::tree::version::SuperVersion;
use crate::tree::{Hint, Tree};
use crate::types::{RowBuf, RowId};

/// Rows that go from step to step together: so many pages are in use at a time, at most.
const TOGETHER: usize = 8;
/// No more rows are read once their bodies have so many bytes.
const BYTES: usize = 64 << 10;

/// Where a row version was found.
#[derive(Clone, Copy)]
enum Found {
    Nowhere,
    Logged,
    /// In the run at this place, and whether it is the newest of its key there.
    InRun(usize, bool),
}

/// How far the way to a row has been gone.
enum Way<P> {
    Ended(Found),
    /// To this data page of the run at this place ...
    Page(usize, u32),
    /// ... and to the row on it.
    Row(usize, OnPage<P>),
}

/// What rows that are read together have in common.
struct Common<P> {
    /// The leaf of a row directory that was looked at last, and the place of its run.
    leaf: (usize, Option<Leaf<P>>),
    /// Whether the runs have each key once, if that is known.
    once: Option<bool>,
}

impl<H: Host> Tree<'_, H> {
    /// As [`Tree::look_at_row`], for several rows: `tell` is told of each in turn, with the hint of one that is alone. How many were
    /// looked at: not all, where they are large.
    pub fn look_at_rows(
        &self,
        rows: &[RowId],
        out: &mut [RowBuf],
        mut tell: impl FnMut(&RowBuf, Looked, Option<&Hint<'_>>),
    ) -> Result<usize> {
        let view = self.pin();
        let mut common = Common { leaf: (0, None), once: None };
        let (mut done, mut bytes) = (0, 0);
        for (rows, out) in rows.chunks(TOGETHER).zip(out.chunks_mut(TOGETHER)) {
            let found = self.rows_together(&view, rows, out, &mut common)?;
            for (found, out) in found.into_iter().zip(out).take(rows.len()) {
                done += 1;
                let alone = match found {
                    Found::Nowhere => {
                        tell(out, Looked::Gone, None);
                        continue;
                    }
                    Found::InRun(at, true) if self.is_newest_in(&view, at, &out.key, &mut common.once) => Some(at),
                    Found::InRun(..) | Found::Logged => None,
                };
                match alone.and_then(|at| view.runs.get(at)) {
                    Some(run) => tell(out, Looked::Alone, Some(&Hint::of_run(run))),
                    None => tell(out, Looked::Found, None),
                }
                self.resolve(out)?;
                bytes += out.body.len();
                if bytes > BYTES {
                    return Ok(done);
                }
            }
        }
        Ok(done)
    }

    /// Copies these rows; where each of them was found.
    fn rows_together(
        &self,
        view: &SuperVersion,
        rows: &[RowId],
        out: &mut [RowBuf],
        common: &mut Common<H::Page>,
    ) -> Result<[Found; TOGETHER]> {
        let pages = Pages(&self.host);
        let mut ways: [Way<H::Page>; TOGETHER] = std::array::from_fn(|_| Way::Ended(Found::Nowhere));
        let mut all_found = [Found::Nowhere; TOGETHER];
        SCRATCH.with_borrow_mut(|scratch| {
            for ((way, row), out) in ways.iter_mut().zip(rows).zip(&mut *out) {
                *way = match self.logged_row(view, *row, out)? {
                    true => Way::Ended(Found::Logged),
                    false => self.way_of(view, *row, scratch, common)?,
                };
            }
            for (way, row) in ways.iter_mut().zip(rows) {
                if let Way::Page(at, index) = *way {
                    let Some(desc) = view.runs.get(at) else { continue };
                    *way = Way::Row(at, desc.run().find_on_page(&pages, index, *row, scratch)?);
                }
            }
            for (((way, row), out), found) in ways.into_iter().zip(rows).zip(out).zip(&mut all_found) {
                *found = match way {
                    Way::Ended(found) => found,
                    Way::Page(..) => Found::Nowhere,
                    Way::Row(at, on_page) => {
                        let Some(desc) = view.runs.get(at) else { continue };
                        match desc.run().row_on(&pages, &on_page, *row, scratch, out)? {
                            Some(newest) => Found::InRun(at, newest),
                            // The run was cut and has it no more.
                            None => self.row_in_runs(view, *row, scratch, out)?.into(),
                        }
                    }
                };
            }
            Ok(all_found)
        })
    }

    /// The way to a row that is in no memtable, as far as its data page.
    fn way_of(
        &self,
        view: &SuperVersion,
        row: RowId,
        scratch: &mut Scratch,
        common: &mut Common<H::Page>,
    ) -> Result<Way<H::Page>> {
        let (of, leaf) = &mut common.leaf;
        for (at, desc) in view.runs.iter().enumerate() {
            if row < desc.shape.min_row || row > desc.shape.max_row {
                continue;
            }
            self.host.saw(Saw::Run, 1);
            if *of != at {
                (*of, *leaf) = (at, None);
            }
            if let Some(index) = desc.run().page_by_leaf(&Pages(&self.host), row, scratch, leaf)? {
                return Ok(Way::Page(at, index));
            }
        }
        Ok(Way::Ended(Found::Nowhere))
    }
}

impl From<Option<(usize, bool)>> for Found {
    fn from(read: Option<(usize, bool)>) -> Found {
        read.map_or(Found::Nowhere, |(at, newest)| Found::InRun(at, newest))
    }
}
