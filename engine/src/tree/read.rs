//! Point reads: by key and by row id.
//!
//! ```text
//! pin superversion -> memtables, newest first -> key index -> run map -> the one run -> fence -> page
//!                                                   | absent: nothing on disk, or the runs that are not indexed
//!                     the reader is older than what was found: on to older runs, by their filters
//! ```
//!
//! Keeps I4, I7 (superversion first, index second), I15 (a guided miss is corruption).

use crate::cpu::Near;
use crate::error::{Error, Result};
use crate::filter::key_hash;
use crate::host::{Host, Saw};
use crate::key_index::IndexEntry;
use crate::key_text::hex;
use crate::manifest::RunDesc;
use crate::memtable::NodeRef;
use crate::mutation::{on, Mutation::*, Pause};
use crate::row::decode_record;
use crate::row_cache::Name;
use crate::run::{PageSource, Scratch};
use crate::tree::strays::Look;
use crate::tree::version::{Generation, Pinned, SuperVersion};
use crate::tree::{Found, Hint, Observed, Tree};
use crate::types::{Flags, Head, L0Id, PageNo, RowBuf, RowId, Verdict, Writer};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// A host as a source of run pages.
pub(super) struct Pages<'h, H>(pub &'h H);

impl<H: Host> PageSource for Pages<'_, H> {
    type Page = H::Page;
    type Held = H::Held;

    fn page(&self, no: PageNo) -> Result<H::Page> {
        debug_assert!(!loosekv_shm::epoch::pinned(), "page access while an epoch is pinned");
        self.0.read_page(no)
    }

    fn page_in_order(&self, no: PageNo) -> Result<H::Page> {
        debug_assert!(!loosekv_shm::epoch::pinned(), "page access while an epoch is pinned");
        self.0.read_page_in_order(no)
    }

    fn hold(&self, page: H::Page, spare: Option<H::Held>) -> H::Held {
        self.0.hold_page(page, spare)
    }

    fn prefetch(&self, first: PageNo, pages: u32) {
        self.0.prefetch(first, pages);
    }

    #[inline]
    fn touch(&self, page: PageNo, places: impl Iterator<Item = usize>, near: Near) {
        self.0.touch_page(page, places, near);
    }
}

/// What the filters of so many runs have for a key is on its way while the filter of one is asked.
const TOUCHED_AHEAD: usize = 8;

thread_local! {
    pub(super) static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
    /// A row of the row cache.
    static CACHED: RefCell<RowBuf> = RefCell::new(RowBuf::default());
}

/// No row is to be left unread.
const READ: Option<fn(Writer) -> bool> = None;

/// Where a search among the runs begins.
struct Start {
    at: usize,
    /// The run there holds the key, says the index.
    certain: bool,
}

impl<H: Host> Tree<'_, H> {
    pub(super) fn pin(&self) -> Pinned<H> {
        self.shared.current.pin::<H>()
    }

    /// Shows the versions of `key`, newest first and each once, to `choose` until it takes one; that one is copied to `out`.
    pub fn find(&self, key: &[u8], choose: impl FnMut(&Head, &Hint<'_>) -> Verdict, out: &mut RowBuf) -> Result<Found> {
        let read_first = on(I7IndexFirst).then(|| self.shared.index.get(key));
        if read_first.is_some() {
            self.pause(Pause::IndexRead);
        }
        let view = self.pin();
        self.pause(Pause::Pinned);
        let found = self.find_with(&view, key, read_first, choose, Some(out), READ)?;
        if found.taken {
            self.resolve(out)?;
        }
        Ok(found)
    }

    /// As [`Tree::find`], for those who need to know no more than `choose` is shown.
    pub fn find_head(&self, key: &[u8], choose: impl FnMut(&Head, &Hint<'_>) -> Verdict) -> Result<Found> {
        self.find_with(&self.pin(), key, None, choose, None, READ)
    }

    /// As [`Tree::find`], for those who need not know the row that is there, as long as it is there: where the index tells alone
    /// that the newest version of the key is a row which everybody sees, no run is read, and nothing is taken
    /// ([`Observed::is_unread`]). `seen_by_all`: whether everybody sees what writers up to this one have written.
    pub fn find_or_leave(
        &self,
        key: &[u8],
        seen_by_all: impl FnOnce(Writer) -> bool,
        choose: impl FnMut(&Head, &Hint<'_>) -> Verdict,
        out: &mut RowBuf,
    ) -> Result<Found> {
        let view = self.pin();
        self.pause(Pause::Pinned);
        let found = self.find_with(&view, key, None, choose, Some(out), Some(seen_by_all))?;
        if found.taken {
            self.resolve(out)?;
        }
        Ok(found)
    }

    /// As [`Tree::find`], but leaves a large body in the value log, as its pointer.
    pub(super) fn find_in(
        &self,
        view: &SuperVersion,
        key: &[u8],
        choose: impl FnMut(&Head, &Hint<'_>) -> Verdict,
        out: &mut RowBuf,
    ) -> Result<Found> {
        self.find_with(view, key, None, choose, Some(out), READ)
    }

    /// `leave`: the row may stay unread, if this says that everybody sees its writer.
    fn find_with(
        &self,
        view: &SuperVersion,
        key: &[u8],
        read_first: Option<Option<IndexEntry>>,
        mut choose: impl FnMut(&Head, &Hint<'_>) -> Verdict,
        out: Option<&mut RowBuf>,
        leave: Option<impl FnOnce(Writer) -> bool>,
    ) -> Result<Found> {
        self.shared.counters.gets.fetch_add(1, Relaxed);
        self.host.saw(Saw::Get, 1);
        let mut newest = None;
        for generation in view.memtables() {
            for node in generation.table.versions(key) {
                let head = node.head();
                newest.get_or_insert(head.row_id);
                if choose(&head, &Hint::of_node(&node)) == Verdict::Take {
                    if let Some(out) = out {
                        self.copy_logged(generation, &node, out)?;
                    }
                    return Ok(Found::new(true, view, newest));
                }
            }
        }
        let look = self.shared.before_look();
        self.pause(Pause::MemtablesRead);
        let entry = read_first.unwrap_or_else(|| self.shared.index.get(key));
        self.pause(Pause::IndexRead);
        let start = self.start_of(view, key, entry, &look)?;
        let run = self.run_with_row(view, entry, &start);
        let run = run.filter(|run| run.settled || on(CachedRowOfAnyWriter));
        if let (Some(leave), None, Some(run)) = (leave, newest, run.filter(|run| run.settled)) {
            if on(UnreadNotSeenByAll) || leave(run.shape.max_writer) {
                self.shared.counters.left_unread.fetch_add(1, Relaxed);
                return Ok(Found::new(false, view, Some(Observed::UNREAD)));
            }
        }
        let taken = match (start, entry, run) {
            (None, ..) => false,
            (Some(start), Some(entry), Some(run)) => {
                self.search_cache(view, start, (key, entry, run), &mut newest, &mut choose, out)?
            }
            (Some(start), ..) => self.search_runs(view, start, key, &mut newest, &mut choose, out)?,
        };
        Ok(Found::new(taken, view, newest))
    }

    /// A look-up of `key` will follow: asks for the page that it will read, if it will read one. A hint.
    pub fn ask_for(&self, key: &[u8]) -> Result<()> {
        let view = self.pin();
        self.pause(Pause::Pinned);
        if view.memtables().any(|generation| generation.table.newest(key).is_some()) {
            return Ok(());
        }
        let look = self.shared.before_look();
        self.pause(Pause::MemtablesRead);
        let entry = self.shared.index.get(key);
        self.pause(Pause::IndexRead);
        let Some(start) = self.start_of(&view, key, entry, &look)? else { return Ok(()) };
        if let (Some(cache), Some(entry)) = (self.host.row_cache(), entry) {
            if cache.seems_to_have(&Name { table: self.shared.cached, l0: entry.l0, key }) {
                return Ok(());
            }
        }
        let (pages, mut hash) = (Pages(&self.host), None);
        for (at, desc) in view.runs.iter().enumerate().skip(start.at) {
            let certain = start.certain && at == start.at;
            let mut may_contain = || desc.run().may_contain(&pages, *hash.get_or_insert_with(|| key_hash(key)));
            if certain || (desc.spans(key) && may_contain()?) {
                return desc.run().ask_for(&pages, key);
            }
        }
        Ok(())
    }

    /// As [`Tree::search_runs`], where the index tells alone that the newest version on disk is a committed row: asks the row cache
    /// first, and tells it of rows whose pages had to be fetched.
    fn search_cache(
        &self,
        view: &SuperVersion,
        start: Start,
        (key, entry, run): (&[u8], IndexEntry, &RunDesc),
        newest: &mut Option<RowId>,
        choose: &mut impl FnMut(&Head, &Hint<'_>) -> Verdict,
        mut out: Option<&mut RowBuf>,
    ) -> Result<bool> {
        let Some(cache) = self.host.row_cache() else {
            return self.search_runs(view, start, key, newest, choose, out);
        };
        let l0 = if on(CachedRowOutlivesEntry) { L0Id(0) } else { entry.l0 };
        let name = Name { table: self.shared.cached, l0, key };
        let mut passed_over = None;
        let taken = CACHED.with_borrow_mut(|row| {
            if !cache.get(&name, out.is_some(), row) {
                return false;
            }
            self.host.saw(Saw::CachedRow, 1);
            newest.get_or_insert(row.head.row_id);
            let taken = choose(&row.head, &Hint::of_run(run)) == Verdict::Take;
            match out.as_deref_mut() {
                Some(out) if taken => out.set(&row.as_ref()),
                _ => passed_over = Some(row.head.row_id),
            }
            taken
        });
        if taken {
            return Ok(true);
        }
        let mut once = |head: &Head, hint: &Hint<'_>| match passed_over {
            Some(row) if row == head.row_id => Verdict::Skip,
            _ => choose(head, hint),
        };
        let fetched = self.host.pages_fetched();
        let taken = self.search_runs(view, start, key, newest, &mut once, out.as_deref_mut())?;
        if let (true, Some(row)) = (taken && self.host.pages_fetched() != fetched, out) {
            // A pointer may be moved, and a version that others passed over is not the newest one.
            if *newest == Some(row.head.row_id) && row.head.flags.0 & (Flags::POINTER.0 | Flags::TOMBSTONE.0) == 0 {
                cache.read_for(&name, &row.as_ref());
            }
        }
        Ok(taken)
    }

    /// The newest L0 id by which the run that has the newest version of the key on disk may have got it, if the index knows. To be asked
    /// once the memtables were looked at.
    pub(super) fn newest_flush(&self, view: &SuperVersion, key: &[u8]) -> Option<L0Id> {
        let entry = self.shared.index.get(key)?;
        let first_unindexed = view.runs.get(self.shared.first_unindexed(view));
        let covered = first_unindexed.is_none_or(|run| entry.l0 > run.last_l0) && entry.l0 <= view.flushed;
        // A slice has no L0 ids of its own: it may have what any run of the merge has had.
        covered.then(|| view.run_with(entry.l0, key)).flatten().map(|at| view.newest_l0(at))
    }

    /// The run that has the newest version on disk, if the index entry, by which a search begins at `start`, tells alone that
    /// this is a row; it is a committed one where the run is settled.
    fn run_with_row<'v>(
        &self,
        view: &'v SuperVersion,
        entry: Option<IndexEntry>,
        start: &Option<Start>,
    ) -> Option<&'v RunDesc> {
        let (entry, start) = (entry?, start.as_ref()?);
        let run = view.runs.get(start.at)?;
        let exact = self.shared.is_exact(view);
        let is_row = !entry.tombstone || on(UnreadTombstone);
        (start.certain && exact && is_row).then_some(run)
    }

    /// The versions of `key` in the runs from this one on, for a reader that is older than what the index names.
    pub(super) fn find_older(
        &self,
        view: &SuperVersion,
        from: usize,
        key: &[u8],
        choose: &mut impl FnMut(&Head, &Hint<'_>) -> Verdict,
        out: &mut RowBuf,
    ) -> Result<bool> {
        self.search_runs(view, Start { at: from, certain: false }, key, &mut None, choose, Some(out))
    }

    fn search_runs(
        &self,
        view: &SuperVersion,
        start: Start,
        key: &[u8],
        newest: &mut Option<RowId>,
        choose: &mut impl FnMut(&Head, &Hint<'_>) -> Verdict,
        mut out: Option<&mut RowBuf>,
    ) -> Result<bool> {
        let pages = Pages(&self.host);
        let mut hash = None;
        let touch = |runs: Range<usize>, hash| {
            for desc in view.runs.get(runs).unwrap_or_default() {
                desc.run().touch_filter(&pages, hash);
            }
        };
        SCRATCH.with_borrow_mut(|scratch| {
            for (at, desc) in view.runs.iter().enumerate().skip(start.at) {
                let certain = start.certain && at == start.at;
                let run = desc.run();
                if !certain && !desc.spans(key) {
                    continue;
                }
                if !certain {
                    self.shared.counters.filter_probes.fetch_add(1, Relaxed);
                    self.host.saw(Saw::FilterProbe, 1);
                    let end = (at + TOUCHED_AHEAD + 1).min(view.runs.len());
                    let hash = match hash {
                        Some(hash) => {
                            touch((at + TOUCHED_AHEAD).min(end)..end, hash);
                            hash
                        }
                        None => {
                            let first = *hash.insert(key_hash(key));
                            touch(at + 1..end, first);
                            first
                        }
                    };
                    if !run.may_contain(&pages, hash)? {
                        continue;
                    }
                    self.shared.counters.filter_hits.fetch_add(1, Relaxed);
                    self.host.saw(Saw::FilterHit, 1);
                }
                self.shared.counters.runs_looked_into.fetch_add(1, Relaxed);
                self.host.saw(Saw::Run, 1);
                let mut shown = false;
                let hint = Hint::of_run(desc);
                let taken = run.get(&pages, key, scratch, |row| {
                    shown = true;
                    newest.get_or_insert(row.head.row_id);
                    let verdict = choose(&row.head, &hint);
                    if let (Verdict::Take, Some(out)) = (verdict, out.as_deref_mut()) {
                        out.set(&row);
                    }
                    verdict
                })?;
                if taken {
                    return Ok(true);
                }
                if certain && !shown && self.shared.is_exact(view) && !on(I15MissTakenForNone) {
                    return Err(guided_miss(key, desc));
                }
            }
            Ok(false)
        })
    }

    /// Where in the runs (newest first) to begin to look for a key whose index entry, read after the superversion was
    /// pinned, by this `look`, is this one; `None`: nowhere.
    fn start_of(
        &self,
        view: &SuperVersion,
        key: &[u8],
        entry: Option<IndexEntry>,
        look: &Look,
    ) -> Result<Option<Start>> {
        // Before it is asked what is indexed: a rebuild forgets the purges once it has told that it begins anew.
        let purged = L0Id(if on(I5PurgesForgotten) { 0 } else { self.shared.purged.load(SeqCst) });
        let at = self.shared.first_unindexed(view);
        let covered = |l0| view.runs.get(at).is_none_or(|newest| l0 > newest.last_l0);
        let is_right = |entry: &IndexEntry| covered(entry.l0) || self.shared.is_right(look, entry.l0);
        let Some(entry) = entry.filter(is_right) else {
            if on(I4IncompleteIndexTrusted) {
                return Ok(None);
            }
            // A key may be absent for its tombstone was purged: that one has to be met before an older version is.
            let at_purged = view.runs.partition_point(|r| r.first_l0 > purged);
            let gone = view.number < self.shared.gone_before.load(SeqCst) && !on(GoneNotTold);
            let first = if gone { 0 } else { at.min(at_purged) };
            return Ok((at < view.runs.len()).then_some(Start { at: first, certain: false }));
        };
        if entry.l0 > view.flushed {
            if on(I7NewerEntryIsNone) {
                return Ok(None);
            }
            return Ok((!view.runs.is_empty()).then_some(Start { at: 0, certain: false }));
        }
        match view.run_with(entry.l0, key) {
            Some(at) => Ok(Some(Start { at, certain: true })),
            None => Err(Error::structure(format!("the key index names run {} which does not exist", entry.l0))),
        }
    }

    /// The hint of a version that is still in a memtable, for those who found out about its writer elsewhere.
    pub fn with_node<R>(&self, row: RowId, see: impl FnOnce(&NodeRef<'_>) -> R) -> Option<R> {
        let view = self.pin();
        let found = view.memtables().find_map(|g| g.table.by_row(row).map(|node| (g, node)));
        found.map(|(_, node)| see(&node))
    }

    /// Copies the row version of `node` from the row log.
    pub(super) fn copy_logged(&self, generation: &Generation, node: &NodeRef<'_>, out: &mut RowBuf) -> Result<()> {
        copy_record(&self.host.log_row(generation.table.generation(), node.addr())?, node, out)
    }
}

/// Copies the row version of `node` from its record.
pub(super) fn copy_record(record: &[u8], node: &NodeRef<'_>, out: &mut RowBuf) -> Result<()> {
    let (row, _) = decode_record(record)?;
    let head = node.head();
    if row.head.row_id != head.row_id || row.key != node.key() {
        return Err(log_moved(node));
    }
    out.set(&row);
    out.head = head;
    Ok(())
}

impl Observed {
    pub(super) fn new(view: &SuperVersion, newest: Option<RowId>) -> Observed {
        Observed { version: view.number, flushed: view.flushed, newest }
    }
}

impl Found {
    fn new(taken: bool, view: &SuperVersion, newest: Option<RowId>) -> Found {
        Found { taken, observed: Observed::new(view, newest) }
    }
}

fn log_moved(node: &NodeRef<'_>) -> Error {
    let place = crate::error::Place::Log { generation: node.generation().0, offset: node.addr().0 };
    Error::Corrupt { place, what: format!("expected row {}, found another", node.head().row_id) }
}

#[cold]
fn guided_miss(key: &[u8], desc: &RunDesc) -> Error {
    Error::structure(format!("run {} does not hold key {} that the key index finds there", desc.id, hex(key)))
}
