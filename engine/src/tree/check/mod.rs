//! Checks a table from its pages: every invariant that can be read there, and that memory agrees with them.
//!
//! | module | what |
//! |---|---|
//! | here | the runs of a pinned superversion: pages, values pointed to, writers of settled runs |
//! | `space` | meta page and manifest, extents and free space |
//! | `log` | the memtables and the row log |
//! | `keys` | all keys in order: row ids across runs (I2), and the key index (I3, I4) |
//!
//! It runs beside everything else. What it reads is held by a pin, as for any reader; what may change meanwhile is read
//! again until it stood still, or for the few keys in question while nothing is flushed or merged ([`Watch::alone`]).

mod keys;
mod log;
mod space;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use crate::host::{Horizon, Host};
use crate::key_text::hex;
use crate::manifest::{Manifest, RunDesc};
use crate::page::{PageKind, CAPACITY, CONTENT};
use crate::row::ValuePointer;
use crate::run::check::{check_run, Inspector};
use crate::run::PageSource;
use crate::tree::version::{Pinned, SuperVersion};
use crate::tree::Tree;
use crate::types::{Extent, ExtentSeq, Fate, Flags, PageNo, RowRef, Writer};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where: "manifest", "run 17", "key index", ...
    pub place: String,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// What a check is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Manifest,
    Runs,
    Log,
    Keys,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Manifest => "checking the manifest",
            Phase::Runs => "checking runs",
            Phase::Log => "checking the row log",
            Phase::Keys => "checking keys",
        }
    }
}

/// What a check asks of whoever started it.
pub trait Watch {
    /// So much is done (pages; row versions in the last two phases). An error ends the check.
    fn progress(&mut self, _phase: Phase, _done: u64, _total: u64) -> Result<()> {
        Ok(())
    }

    /// Does the work while nobody flushes or merges.
    fn alone(&mut self, work: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    /// The pages change by somebody else's hand (a standby): memory may lag behind them.
    fn is_follower(&self) -> bool {
        false
    }
}

/// Most findings of one place that say the same of different keys, rows or pages; the others are counted.
const MOST_OF_A_KIND: usize = 5;

/// Findings so far.
#[derive(Default)]
pub(super) struct Report {
    findings: Vec<Finding>,
    /// How often each kind was found in each place.
    counts: BTreeMap<(String, String), usize>,
}

/// A finding without what it speaks of: its words that have no digit.
fn kind(what: &str) -> String {
    let plain = |word: &&str| !word.bytes().any(|byte| byte.is_ascii_digit()) && !word.starts_with("\\x");
    what.split_whitespace().filter(plain).collect::<Vec<_>>().join(" ")
}

impl Report {
    fn add(&mut self, place: &str, what: impl Into<String>) {
        let what = what.into();
        let count = self.counts.entry((place.to_owned(), kind(&what))).or_default();
        *count += 1;
        if *count <= MOST_OF_A_KIND {
            self.findings.push(Finding { place: place.to_owned(), what });
        }
    }

    /// A finding, if the error speaks of bytes; else the error.
    fn note(&mut self, place: &str, error: Error) -> Result<()> {
        match error {
            Error::Corrupt { .. } | Error::Format { .. } | Error::Io { .. } => {
                self.add(place, error.to_string());
                Ok(())
            }
            other => Err(other),
        }
    }

    fn is_empty(&self) -> bool {
        self.findings.is_empty()
    }

    fn finish(mut self) -> Vec<Finding> {
        let mut more: BTreeMap<String, usize> = BTreeMap::new();
        for ((place, _), count) in self.counts {
            *more.entry(place).or_default() += count.saturating_sub(MOST_OF_A_KIND);
        }
        let more = more.into_iter().filter(|(_, count)| *count > 0);
        self.findings.extend(more.map(|(place, count)| Finding { place, what: format!("{count} more findings here") }));
        self.findings
    }
}

/// Pages that are verified when they are first read, by the host's own means.
struct Verified<'h, H> {
    host: &'h H,
    seen: RefCell<Seen>,
}

#[derive(Default)]
struct Seen {
    /// One bit a page: it has been verified.
    bits: Vec<u64>,
    bad: HashSet<u32>,
    reads: u64,
}

impl<'h, H: Host> Verified<'h, H> {
    fn new(host: &'h H) -> Verified<'h, H> {
        Verified { host, seen: RefCell::default() }
    }

    /// An error if the page's bytes are bad: the first time with the reason.
    fn verify(&self, no: PageNo) -> Result<()> {
        let (word, bit) = (no.0 as usize / 64, 1u64 << (no.0 % 64));
        let mut seen = self.seen.borrow_mut();
        if seen.bits.len() <= word {
            seen.bits.resize(word + 1, 0);
        }
        let known = seen.bits.get(word).is_some_and(|bits| bits & bit != 0);
        if known {
            return match seen.bad.contains(&no.0) {
                true => Err(Error::page(no, 0, "the page cannot be read")),
                false => Ok(()),
            };
        }
        seen.reads += 1;
        drop(seen);
        let verified = self.host.verify_page(no);
        let mut seen = self.seen.borrow_mut();
        if let Some(bits) = seen.bits.get_mut(word) {
            *bits |= bit;
        }
        if matches!(verified, Err(Error::Corrupt { .. } | Error::Io { .. })) {
            seen.bad.insert(no.0);
        }
        verified
    }
}

impl<H: Host> PageSource for Verified<'_, H> {
    type Page = H::Page;
    type Held = H::Held;

    fn page(&self, no: PageNo) -> Result<H::Page> {
        self.verify(no)?;
        self.host.read_page(no)
    }

    fn hold(&self, page: H::Page, spare: Option<H::Held>) -> H::Held {
        self.host.hold_page(page, spare)
    }
}

/// What all parts of a check share.
struct Check<'c, 't, 'a, H: Host> {
    tree: &'t Tree<'a, H>,
    pages: Verified<'t, H>,
    view: Pinned<H>,
    /// As it was when the superversion was pinned.
    manifest: Manifest,
    report: Report,
    watch: &'c mut dyn Watch,
}

impl<H: Host> Tree<'_, H> {
    /// Checks the table; returns what was found. An error means that the check could not be done.
    pub fn check(&self, watch: &mut dyn Watch) -> Result<Vec<Finding>> {
        let (view, manifest) = self.pin_with_manifest();
        let pages = Verified::new(&self.host);
        let mut check = Check { tree: self, pages, view, manifest, report: Report::default(), watch };
        check.manifest()?;
        check.runs()?;
        check.log()?;
        // What cannot be read cannot be compared, and has been told.
        if check.report.is_empty() {
            check.keys()?;
        }
        Ok(check.report.finish())
    }

    /// A superversion, and the manifest of its time where both can be had: a flip comes a moment before the superversion.
    fn pin_with_manifest(&self) -> (Pinned<H>, Manifest) {
        const ATTEMPTS: usize = 1000;
        for _ in 0..ATTEMPTS {
            let ledger = self.shared.ledger.lock();
            let view = self.pin();
            if agrees(&view, &ledger.manifest) {
                return (view, ledger.manifest.clone());
            }
            drop(ledger);
            std::thread::yield_now();
        }
        let ledger = self.shared.ledger.lock();
        (self.pin(), ledger.manifest.clone())
    }
}

fn agrees(view: &SuperVersion, manifest: &Manifest) -> bool {
    view.flushed == manifest.flushed
        && view.runs.len() == manifest.runs.len()
        && view.runs.iter().rev().zip(&manifest.runs).all(|(a, b)| a.id == b.id)
}

impl<H: Host> Check<'_, '_, '_, H> {
    fn runs(&mut self) -> Result<()> {
        let intervals: Vec<_> = self.view.runs.iter().rev().map(|r| (r.first_l0, r.last_l0)).collect();
        if let Err(failed) = crate::run_map::RunMap::build(&intervals) {
            self.report.note("runs", failed)?;
        }
        let total = self.view.runs.iter().map(|r| r.pages()).sum();
        let mut done = 0;
        let mut used: BTreeMap<ExtentSeq, u64> = BTreeMap::new();
        let runs: Vec<_> = self.view.runs.to_vec();
        for (at, desc) in runs.iter().enumerate() {
            let mut inspect = RunInspector {
                tree: self.tree,
                pages: &self.pages,
                desc,
                // An extent of a run that the manifest of the time does not name may be gone from it, too.
                values: self.manifest.runs.iter().any(|r| r.id == desc.id).then_some(&self.manifest.values),
                report: &mut self.report,
                watch: &mut *self.watch,
                place: format!("run {}", desc.id),
                horizon: self.tree.host.horizon(),
                last_writer: None,
                used: BTreeMap::new(),
                pages_done: done,
                total,
            };
            let run = desc.run();
            let l0 = self.view.merge_of(at).is_none().then_some((desc.first_l0, desc.last_l0));
            check_run(&run, l0, &self.pages, &mut inspect)?;
            let counted = std::mem::take(&mut inspect.used);
            let told: BTreeMap<_, _> = desc.values.iter().map(|v| (v.seq, v.bytes)).collect();
            // What a cut run has handed over still counts.
            let fits = match desc.cut {
                None => counted == told,
                Some(_) => counted.iter().all(|(seq, bytes)| told.get(seq).is_some_and(|told| bytes <= told)),
            };
            if !fits && self.pages.seen.borrow().bad.is_empty() {
                let place = format!("run {}", desc.id);
                self.report.add(&place, format!("points to value bytes {counted:?}, the manifest says {told:?}"));
            }
            for (seq, bytes) in told {
                *used.entry(seq).or_default() += bytes;
            }
            done += desc.pages();
        }
        for extent in &self.manifest.values {
            let bytes = used.get(&extent.seq).copied().unwrap_or(0);
            let being_merged = runs.iter().any(|run| run.cut.is_some());
            if bytes > u64::from(extent.pages) * CAPACITY as u64 && !being_merged {
                let what =
                    format!("extent {} has {} pages and is said to hold {bytes} bytes", extent.seq, extent.pages);
                self.report.add("value log", what);
            }
        }
        Ok(())
    }

    fn follower(&self) -> bool {
        self.watch.is_follower()
    }
}

/// Looks at the rows of one run.
struct RunInspector<'c, 't, 'a, H: Host> {
    tree: &'t Tree<'a, H>,
    pages: &'c Verified<'t, H>,
    desc: &'c RunDesc,
    values: Option<&'c Vec<Extent>>,
    report: &'c mut Report,
    watch: &'c mut dyn Watch,
    place: String,
    horizon: H::Horizon,
    last_writer: Option<Writer>,
    used: BTreeMap<ExtentSeq, u64>,
    pages_done: u64,
    total: u64,
}

impl<H: Host> Inspector for RunInspector<'_, '_, '_, H> {
    fn found(&mut self, what: String) {
        self.report.add(&self.place, what);
    }

    fn row(&mut self, row: &RowRef<'_>) -> Result<()> {
        if row.head.row_id >= self.tree.next_row_id() {
            self.found(format!("holds row {}, which has not been given out yet", row.head.row_id));
        }
        // Rows of one writer tend to stand together.
        if self.desc.settled && self.last_writer != Some(row.head.writer) {
            self.last_writer = Some(row.head.writer);
            if let Some(fate @ (Fate::InProgress | Fate::Aborted)) = self.horizon.known_fate(&row.head) {
                self.found(format!(
                    "is settled, and holds row {} of writer {} ({fate:?})",
                    row.head.row_id, row.head.writer
                ));
            }
        }
        if row.head.flags.has(Flags::POINTER) {
            match check_value(self.tree, self.pages, self.values, row) {
                Ok(pointer) => *self.used.entry(pointer.seq).or_default() += pointer.length,
                Err(failed) => crate::run::check::note(self, failed)?,
            }
        }
        Ok(())
    }

    fn looked(&mut self, pages: u64) -> Result<()> {
        self.pages_done += pages;
        self.watch.progress(Phase::Runs, self.pages_done, self.total)
    }
}

/// The value that a row points to stands where the pointer says, all of it.
fn check_value<H: Host>(
    tree: &Tree<'_, H>,
    pages: &Verified<'_, H>,
    extents: Option<&Vec<Extent>>,
    row: &RowRef<'_>,
) -> Result<ValuePointer> {
    let pointer = ValuePointer::decode(row.body)?;
    let beyond = |what: &str| {
        let (row, key) = (row.head.row_id, hex(row.key));
        Error::structure(format!("row {row} of key {key}: {pointer:?} {what}"))
    };
    let first = usize::from(pointer.offset).checked_sub(CONTENT).ok_or_else(|| beyond("points into a page's head"))?;
    let spanned = (first as u64 + pointer.length).div_ceil(CAPACITY as u64).max(1);
    let end = u64::from(pointer.start.0) + spanned;
    if let Some(extents) = extents {
        let extent = extents.iter().find(|e| e.seq == pointer.seq).ok_or_else(|| beyond("points into no extent"))?;
        if pointer.start < extent.start || end > u64::from(extent.end().0) {
            return Err(beyond(&format!("leads out of {extent:?}")));
        }
    }
    for no in pointer.start.0..u32::try_from(end).map_err(|_| beyond("leads past the last page"))? {
        let page = pages.page(PageNo(no))?;
        page.expect(PageNo(no), PageKind::Value, pointer.seq)?;
    }
    tree.for_each_piece(&pointer, 0..pointer.length, |_| Ok(()))?;
    Ok(pointer)
}
