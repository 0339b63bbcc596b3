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
//!
//! Where many rows are wanted, and in any order, they are read in that of their *places*: each page once for all of its rows.

use crate::error::Result;
use crate::host::{Host, Saw};
use crate::run::{Leaf, OnPage, Scratch};
use crate::tree::by_row::Looked;
use crate::tree::read::{Pages, SCRATCH};
use crate::tree::version::SuperVersion;
use crate::tree::{Hint, Tree};
use crate::types::{RowBuf, RowId};
use std::ops::Range;

/// Rows that go from step to step together: so many pages are in use at a time, at most.
const TOGETHER: usize = 8;
/// Pages between which there are fewer than so many are asked for together, with those between them.
const NEIGHBOURS: u32 = 4;
/// No more rows are read once their bodies have so many bytes.
const BYTES: usize = 64 << 10;

/// A row version, and where it was when somebody has looked for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    place: Place,
    pub row: RowId,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Place {
    /// The superversion's number; 0: nobody has looked.
    view: u64,
    /// Number of the run, from 1; 0: it was in a memtable.
    run: u32,
    page: u32,
}

impl Placed {
    /// Nobody has looked.
    pub fn unknown(row: RowId) -> Placed {
        Placed { place: Place::default(), row }
    }

    /// Who wants many in the order of this comes to each page once.
    pub fn order(&self) -> u64 {
        u64::from(self.place.run) << 32 | u64::from(self.place.page)
    }

    /// Somebody has looked, and it may be elsewhere by now.
    pub fn is_outdated<H: Host>(&self, tree: &Tree<'_, H>) -> bool {
        self.place.view > 0 && self.place.view != tree.pin().number
    }

    /// Place of the run that has it, and its page, as far as this superversion is the one in which it was looked for.
    fn page_in(&self, view: &SuperVersion) -> Option<(usize, u32)> {
        let Place { view: of, run, page } = self.place;
        (of == view.number).then(|| run.checked_sub(1)).flatten().map(|at| (at as usize, page))
    }
}

/// Where a row version was found.
#[derive(Clone, Copy)]
enum Found {
    Nowhere,
    Logged,
    /// In the run at this place, and whether it is the newest of its key there.
    InRun(usize, bool),
}

/// How far the way to a row has been gone.
enum Way {
    Ended(Found),
    /// To this data page of the run at this place ...
    Page(usize, u32),
    /// ... and to its place on the page, if that is known, which is the one with this number of those that were opened.
    Row(usize, Option<usize>),
}

/// What rows that are read together have in common.
struct Common<P> {
    /// The leaf of a row directory that was looked at last, and the place of its run.
    leaf: (usize, Option<Leaf<P>>),
    /// Whether the runs have each key once, if that is known.
    once: Option<bool>,
}

impl<P> Default for Common<P> {
    fn default() -> Common<P> {
        Common { leaf: (0, None), once: None }
    }
}

impl<H: Host> Tree<'_, H> {
    /// As [`Tree::look_at_row`], for several rows: `tell` is told of each in turn, with the hint of one that is alone. How many were
    /// looked at: not all, where they are large.
    pub fn look_at_rows(
        &self,
        rows: &[Placed],
        out: &mut [RowBuf],
        mut tell: impl FnMut(&RowBuf, Looked, Option<&Hint<'_>>),
    ) -> Result<usize> {
        let view = self.pin();
        let mut common = Common::default();
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

    /// Tells of those of these rows that there are (still), and where they are; no data page is read. One of them may turn out to have
    /// just been dropped.
    pub fn locate_rows(&self, rows: &[RowId], mut tell: impl FnMut(Placed)) -> Result<()> {
        let view = self.pin();
        let mut common = Common::default();
        SCRATCH.with_borrow_mut(|scratch| {
            for row in rows {
                let (run, page) = match view.memtables().any(|generation| generation.table.by_row(*row).is_some()) {
                    true => (0, 0),
                    false => match self.page_of_row(&view, *row, scratch, &mut common)? {
                        Some((at, page)) => (at as u32 + 1, page),
                        None => continue,
                    },
                };
                tell(Placed { place: Place { view: view.number, run, page }, row: *row });
            }
            Ok(())
        })
    }

    /// These row versions will be looked at: asks for their data pages, of neighbours with one request. A hint.
    pub fn ask_for_rows(&self, rows: &[Placed]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let view = self.pin();
        let ask = |(at, pages): (usize, Range<u32>)| {
            if let Some(desc) = view.runs.get(at) {
                desc.run().prefetch(&Pages(&self.host), pages);
            }
        };
        let mut asked: Option<(usize, Range<u32>)> = None;
        for placed in rows {
            let Some((at, page)) = placed.page_in(&view) else {
                self.ask_for_row(placed.row)?;
                continue;
            };
            match &mut asked {
                Some((of, pages)) if *of == at && (pages.start..pages.end + NEIGHBOURS).contains(&page) => {
                    pages.end = pages.end.max(page + 1);
                }
                _ => asked.replace((at, page..page + 1)).into_iter().for_each(ask),
            }
        }
        asked.into_iter().for_each(ask);
        Ok(())
    }

    /// Whether there is a row version with this row id (still).
    pub fn has_row(&self, row: RowId) -> Result<bool> {
        let mut has = false;
        self.locate_rows(&[row], |_| has = true)?;
        Ok(has)
    }

    /// Copies these rows; where each of them was found.
    fn rows_together(
        &self,
        view: &SuperVersion,
        rows: &[Placed],
        out: &mut [RowBuf],
        common: &mut Common<H::Page>,
    ) -> Result<[Found; TOGETHER]> {
        let pages = Pages(&self.host);
        let mut ways = [const { Way::Ended(Found::Nowhere) }; TOGETHER];
        // With the place of its run.
        let mut opened: [Option<(usize, OnPage<H::Page>)>; TOGETHER] = [const { None }; TOGETHER];
        let mut all_found = [Found::Nowhere; TOGETHER];
        SCRATCH.with_borrow_mut(|scratch| {
            let mut touched = None;
            for ((way, placed), out) in ways.iter_mut().zip(rows).zip(&mut *out) {
                let page = match placed.page_in(view) {
                    Some(page) => Some(page),
                    None if self.logged_row(view, placed.row, out)? => {
                        *way = Way::Ended(Found::Logged);
                        continue;
                    }
                    None => self.page_of_row(view, placed.row, scratch, common)?,
                };
                let Some((at, index)) = page else { continue };
                if touched.replace((at, index)) != page {
                    if let Some(desc) = view.runs.get(at) {
                        desc.run().touch_head(&pages, index);
                    }
                }
                *way = Way::Page(at, index);
            }
            let (mut count, mut last) = (0, None);
            for (way, Placed { row, .. }) in ways.iter_mut().zip(rows) {
                let Way::Page(at, index) = *way else { continue };
                let Some(desc) = view.runs.get(at) else { continue };
                let run = desc.run();
                if last.replace((at, index)) != Some((at, index)) {
                    let page = run.open_page(&pages, index, scratch)?;
                    if let Some(place) = opened.get_mut(count) {
                        *place = Some((at, page));
                        count += 1;
                    }
                }
                if let Some((_, page)) = opened.get(count - 1).and_then(Option::as_ref) {
                    *way = Way::Row(count - 1, run.find_on_page(page, *row)?);
                }
            }
            for (((way, Placed { row, .. }), out), found) in ways.iter().zip(rows).zip(out).zip(&mut all_found) {
                *found = match way {
                    Way::Ended(found) => *found,
                    Way::Page(..) => Found::Nowhere,
                    Way::Row(number, slot) => {
                        let Some((at, page)) = opened.get(*number).and_then(Option::as_ref) else { continue };
                        let Some(desc) = view.runs.get(*at) else { continue };
                        match desc.run().row_on(&pages, page, *slot, *row, scratch, out)? {
                            Some(newest) => Found::InRun(*at, newest),
                            // The run was cut and has it no more.
                            None => self.row_in_runs(view, *row, scratch, out)?.into(),
                        }
                    }
                };
            }
            Ok(all_found)
        })
    }

    /// Place of the run that has a row which is in no memtable, and its data page.
    fn page_of_row(
        &self,
        view: &SuperVersion,
        row: RowId,
        scratch: &mut Scratch,
        common: &mut Common<H::Page>,
    ) -> Result<Option<(usize, u32)>> {
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
                return Ok(Some((at, index)));
            }
        }
        Ok(None)
    }
}

impl From<Option<(usize, bool)>> for Found {
    fn from(read: Option<(usize, bool)>) -> Found {
        read.map_or(Found::Nowhere, |(at, newest)| Found::InRun(at, newest))
    }
}
