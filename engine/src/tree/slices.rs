//! Slices: a long merge needs little room, for it gives back what it has read while it goes on.
//!
//! ```text
//!            keys ->                after a slice              after the next                 at the end
//!  newest    aaaaaaaaaaaaaaa                aaaaaaaaaa                     aaaaa
//!            bbbbbbbbbbbbbbb                bbbbbbbbbb                     bbbbb            mmmmmmmmmmmmmmm
//!                                   sssss                           sssss
//!                                                              sssss
//! ```
//!
//! A slice is a run by itself: what the merge has written since the last one. With it the inputs are *cut*: they do not have the
//! rows below a key any more, and the pages before that are given back. The index goes on to name L0 ids of the inputs; who comes to
//! a run that has handed over what he looks for goes on to its older neighbour, and so to the slice ([`SuperVersion::run_with`]).
//! In the end the slices' data pages become those of the merged run; what leads to them is written once more.
//!
//! Between two slices a level of newer runs that has become full may be merged.
//!
//! After a crash, or an error, a merge that was begun is merged before all but full levels of newer runs ([`super::pick`]): its runs
//! and slices, whole.
//!
//! Keeps I1 (a slice covers no L0 ids of its own), I6 and I8 to I11, as every merge does.

use crate::error::{Error, Result};
use crate::host::{Ended, Flip, Host};
use crate::manifest::{close_gaps, RunDesc, ValueUse};
use crate::mutation::Pause;
use crate::pieces::Pieces;
use crate::run::{Cut, PageSink, RunWriter};
use crate::tree::compact::Merge;
use crate::tree::full_disk::slice_of;
use crate::tree::ledger::Building;
use crate::tree::value_write::ValueWriter;
use crate::tree::version::SuperVersion;
use crate::tree::Tree;
use crate::types::{Extent, L0Id, PageNo, RunId};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::Arc;

/// A slice has at least so many pages ...
const LEAST_SLICE: u32 = if cfg!(test) { 1 } else { 1024 };
/// ... and is about this part of the page store: that much room a merge needs.
const PART_OF_STORE: u32 = 32;
/// In tests, where all rows may fit a page, it has so many rows, or this part of all.
const ROWS_IN_TESTS: u64 = 5;
const PART_IN_TESTS: u64 = 32;

/// What a merge consists of so far.
pub(super) struct Slices {
    /// Data pages of a slice; `None`: the merge is done as a whole.
    each: Option<u32>,
    /// Those of the inputs.
    pub pages: u64,
    /// What is left of the inputs, newest first; `None`: nothing is.
    inputs: Vec<Option<RunDesc>>,
    pub first_l0: L0Id,
    pub last_l0: L0Id,
    ids: Vec<RunId>,
    data: Vec<Extent>,
    uses: Vec<ValueUse>,
}

impl Slices {
    /// `each`: data pages of a slice.
    pub fn new(inputs: &[Arc<RunDesc>], ended: &Ended, each: u32) -> Result<Slices> {
        let ends = inputs.last().zip(inputs.first()).map(|(old, new)| (old.first_l0, new.last_l0));
        let (first_l0, last_l0) = ends.ok_or_else(|| Error::structure("a merge of no runs"))?;
        let pages: u64 = inputs.iter().map(|run| run.pages()).sum();
        // Runs with writers who have not ended are not merged with others, and what was begun must be merged whole.
        let finished = inputs.iter().all(|run| run.is_finished(ended));
        let each = (finished && pages >= 2 * u64::from(each)).then_some(each);
        let inputs = inputs.iter().map(|run| Some((**run).clone())).collect();
        Ok(Slices { each, pages, inputs, first_l0, last_l0, ids: Vec::new(), data: Vec::new(), uses: Vec::new() })
    }

    /// Data pages of a slice, if there are any.
    pub fn each(&self) -> Option<u32> {
        self.each
    }

    /// The next one has so many, if there are any.
    pub fn go_on(&mut self, each: u32) {
        self.each = self.each.map(|_| each);
    }

    /// Whether enough was written since the last one.
    pub fn is_due<S: PageSink>(&self, writer: &RunWriter<S>) -> bool {
        match self.each {
            Some(_) if cfg!(test) => {
                let all: u64 = self.inputs.iter().flatten().map(|run| run.shape.rows).sum();
                let least = ROWS_IN_TESTS.max(all / PART_IN_TESTS);
                writer.of_slice().is_some_and(|shape| shape.rows >= least)
            }
            Some(pages) => writer.of_slice().is_some_and(|shape| shape.data_pages >= pages),
            None => false,
        }
    }

    /// Whether the run is of the merge: an input, or a slice.
    pub fn has(&self, id: RunId) -> bool {
        self.ids.contains(&id) || self.inputs.iter().flatten().any(|run| run.id == id)
    }

    /// The merged run's extents, of which `last` were written after the last slice.
    pub fn extents(&self, last: Vec<Extent>) -> Pieces {
        [self.data.as_slice(), &last].concat().into()
    }

    /// What the merged run points to, of which `last` came after the last slice.
    pub fn uses(&self, last: Vec<ValueUse>) -> Vec<ValueUse> {
        let mut uses = [self.uses.as_slice(), &last].concat();
        uses.sort_by_key(|used| used.seq);
        uses.dedup_by(|next, first| {
            let same = next.seq == first.seq;
            first.bytes += if same { next.bytes } else { 0 };
            same
        });
        uses
    }

    /// The inputs as they are when this is left of them, and those of which nothing is.
    fn cut(&self, left: Vec<Option<Cut>>) -> (Vec<Option<RunDesc>>, Vec<RunId>) {
        let mut gone = Vec::new();
        let mut last_l0 = Some(self.last_l0);
        let cut = |(input, left): (&Option<RunDesc>, Option<Cut>)| {
            let input = input.as_ref()?;
            let Some(cut) = left else {
                gone.push(input.id);
                return None;
            };
            let skipped = cut.pages - input.run().first_page().min(cut.pages);
            let extents = divide(&input.extents, skipped).1.into();
            // The newest that is left takes over the L0 ids of those that are gone.
            let last_l0 = last_l0.take().unwrap_or(input.last_l0);
            Some(RunDesc { extents, last_l0, cut: Some(cut), ..input.clone() })
        };
        let mut inputs: Vec<Option<RunDesc>> = self.inputs.iter().zip(left).map(cut).collect();
        let mut first = self.first_l0;
        for run in inputs.iter_mut().rev().flatten() {
            run.begin_at(first);
            first = L0Id(run.last_l0.0 + 1);
        }
        (inputs, gone)
    }
}

/// The first `pages` pages, and the others.
fn divide(extents: &[Extent], pages: u32) -> (Vec<Extent>, Vec<Extent>) {
    let (mut first, mut others, mut wanted) = (Vec::new(), Vec::new(), pages);
    for extent in extents {
        let here = extent.pages.min(wanted);
        wanted -= here;
        first.push(Extent { pages: here, ..*extent });
        others.push(Extent { start: PageNo(extent.start.0 + here), pages: extent.pages - here, ..*extent });
    }
    first.retain(|extent| extent.pages > 0);
    others.retain(|extent| extent.pages > 0);
    (first, others)
}

impl<H: Host> Tree<'_, H> {
    /// Data pages of a slice of a merge of so many pages, as things are.
    pub(super) fn slice_pages(&self, all: u64) -> u32 {
        let usual = LEAST_SLICE.max(self.shared.tail().1 / PART_OF_STORE);
        let small = |free| u32::try_from(slice_of(free, all)).unwrap_or(usual);
        self.shared.pages_for_merges().map_or(usual, |free| small(free).min(usual))
    }

    /// Makes a slice of what was written since the last one, and cuts the inputs: this is `left` of them. What is written next needs
    /// extents ([`Building::go_on`]).
    pub(super) fn end_slice(
        &self,
        merge: &mut Merge<'_>,
        writer: &mut RunWriter<&mut Building<'_, '_, H>>,
        values: &mut ValueWriter<'_, '_, H>,
        left: Vec<Option<Cut>>,
    ) -> Result<()> {
        let corrections = self.corrections(merge)?;
        let slices = &mut merge.slices;
        let shape = writer.end_slice()?;
        let data_pages = shape.data_pages;
        let building = writer.sink();
        let (used, mut unused) = building.finish()?;
        let large = values.finish(&mut unused)?;
        let (inputs, gone) = slices.cut(left);
        // A slice that is not the oldest has handed on, too: what is below its own keys.
        let cut = (!slices.ids.is_empty()).then(|| Cut { key: shape.min_key.clone(), pages: 0 });
        let (first_l0, last_l0) = (slices.first_l0, L0Id(slices.first_l0.0 - 1));
        let (data, uses) = (divide(&used, data_pages).0, large.uses.clone());
        let (id, level, settled) = (RunId(0), merge.job.level, !merge.in_progress);
        let (extents, values_there) = (used.into(), large.uses);
        let mut slice = RunDesc { id, level, first_l0, last_l0, extents, values: values_there, shape, settled, cut };
        // What comes after the flip must not fail.
        let changed = inputs.iter().flatten().map(|run| self.shared.share(run)).collect::<Result<Vec<_>>>()?;
        let mut installed_slice = self.shared.share(&slice)?;
        self.shared.reserve_install()?;
        self.pause(Pause::MergeWritten);
        self.commit(
            |next| {
                let at = next.runs.iter().position(|run| slices.has(run.id));
                let at = at.ok_or_else(|| Error::structure("a run vanished while it was merged"))?;
                slice.id = next.next_run;
                next.next_run = RunId(slice.id.0 + 1);
                next.values.extend(large.extents);
                next.runs.retain(|run| !gone.contains(&run.id));
                for run in &mut next.runs {
                    if let Some(changed) = inputs.iter().flatten().find(|changed| changed.id == run.id) {
                        run.clone_from(changed);
                    }
                }
                let slices_there = next.runs.iter().skip(at).take_while(|run| slices.ids.contains(&run.id)).count();
                next.runs.insert(at + slices_there, slice.clone());
                close_gaps(&mut next.runs);
                Ok(())
            },
            &[building.taken(), values.taken()].concat(),
            &unused,
            &Flip { superseded: merge.superseded, ..Flip::default() },
        )?;
        building.committed();
        values.committed();
        *values = ValueWriter::like(values);
        self.shared.counters.slices.fetch_add(1, Relaxed);
        self.pause(Pause::MergeCommitted);
        self.correct_index(merge.view, &corrections, slices.first_l0, slices.last_l0);
        self.pause(Pause::MergeIndexed);
        if let Some(installed) = Arc::get_mut(&mut installed_slice) {
            installed.id = slice.id;
        }
        let installed = self.shared.install_flipped(|current| {
            let mut parts = current.edit();
            let oldest =
                parts.runs.iter().rposition(|run| slices.inputs.iter().flatten().any(|input| input.id == run.id));
            let oldest = oldest.ok_or_else(|| Error::structure("a merged run is in no superversion"))?;
            parts.runs.insert(oldest + 1, installed_slice);
            parts.runs.retain(|run| !gone.contains(&run.id));
            for run in &mut parts.runs {
                if let Some(changed) = changed.iter().find(|changed| changed.id == run.id) {
                    *run = changed.clone();
                }
            }
            SuperVersion::new(current.number + 1, parts)
        })?;
        self.shared.counters.left_out(std::mem::take(&mut merge.dropped));
        self.shared.gone_before.fetch_min(installed, SeqCst);
        slices.inputs = inputs;
        slices.ids.push(slice.id);
        slices.data.extend(data);
        slices.uses = slices.uses(uses);
        Ok(())
    }
}
