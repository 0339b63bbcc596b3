//! Runs: sorted, immutable sequences of pages.
//!
//! ```text
//! | data pages | key pages? | directory pages? | filter pages? | fence pages (bottom-up, root last) | footer |
//! ```
//!
//! [`writer`] makes a run of row versions that come in order (what it needs at the end is kept `aside`), [`reader`] answers
//! from it, [`cursor`] walks over it (and asks `ahead` for pages), [`check`] looks whether all of it is sound. Each
//! kind of page has its own file, which describes its bytes: [`data`] (packed by `pack`), [`keys`], [`directory`],
//! [`crate::filter`], [`fence`], [`footer`]. Pages of a run are numbered from 0; where they stand is the affair of
//! [`crate::pieces`]. Decoders check everything they read: whatever the bytes are, the outcome is an answer or an error.

mod ahead;
pub(crate) mod aside;
mod bytes;
pub mod check;
pub mod cursor;
pub mod data;
pub mod directory;
pub mod fence;
pub mod footer;
pub(crate) mod fuzz;
pub mod keys;
mod pack;
pub mod reader;
pub mod writer;

#[cfg(test)]
mod golden;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub(crate) use bytes::shared_prefix;
pub use cursor::RunCursor;
pub use data::{Spot, MAX_ROW};
pub use footer::{Footer, RunShape};
pub use reader::{Cut, Leaf, OnPage, Run, Scratch};
pub use writer::RunWriter;

use crate::cpu::Near;
use crate::error::Result;
use crate::host::SideFile;
use crate::page::PageBuf;
use crate::types::{ExtentSeq, PageNo};
use std::ops::Deref;

/// Where a run is read from.
pub trait PageSource {
    type Page: Deref<Target = PageBuf>;
    /// A page that a cursor keeps between calls.
    type Held: Deref<Target = PageBuf>;
    fn page(&self, no: PageNo) -> Result<Self::Page>;
    /// As [`PageSource::page`], for one of many pages that are read in their order: the system below may read ahead.
    fn page_in_order(&self, no: PageNo) -> Result<Self::Page> {
        self.page(no)
    }
    /// Makes a page one that may be kept; `spare` is one that is kept no longer.
    fn hold(&self, page: Self::Page, spare: Option<Self::Held>) -> Self::Held;
    /// These pages, side by side, will be read soon.
    fn prefetch(&self, _first: PageNo, _pages: u32) {}
    /// These places of the page will be looked at: worth fetching into the processor's cache, if it is in memory.
    fn touch(&self, _page: PageNo, _places: impl Iterator<Item = usize>, _near: Near) {}
}

impl<S: PageSource> PageSource for &S {
    type Page = S::Page;
    type Held = S::Held;
    fn page(&self, no: PageNo) -> Result<Self::Page> {
        (**self).page(no)
    }
    fn page_in_order(&self, no: PageNo) -> Result<Self::Page> {
        (**self).page_in_order(no)
    }
    fn hold(&self, page: Self::Page, spare: Option<Self::Held>) -> Self::Held {
        (**self).hold(page, spare)
    }
    fn prefetch(&self, first: PageNo, pages: u32) {
        (**self).prefetch(first, pages);
    }
    fn touch(&self, page: PageNo, places: impl Iterator<Item = usize>, near: Near) {
        (**self).touch(page, places, near);
    }
}

/// Where a run is written to: its pages come in order, from page 0 on.
pub trait PageSink {
    /// Sequence number of the extent that will take the next page.
    fn seq_of_next(&self) -> ExtentSeq;
    fn put(&mut self, page: &mut PageBuf) -> Result<()>;
    /// How much memory may be taken for what is kept aside until the data pages are complete, in bytes ...
    fn memory(&self) -> usize;
    /// ... and where the rest goes.
    fn side_file(&self) -> Result<Box<dyn SideFile>>;
}
