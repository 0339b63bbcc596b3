//! Ordered scans, both ways.
//!
//! Keeps I7, I15 (guided and merged scans give the same answers; a guided miss is corruption).

use crate::error::Result;
use crate::host::{Host, Saw};
use crate::mutation::{on, Mutation::ScannedRowTakenForNewest};
use crate::run::Spot;
use crate::tree::ahead::Found;
use crate::tree::barren::Walk;
use crate::tree::guide::{Guide, Step};
use crate::tree::shared::WORTH_TELLING;
use crate::tree::sources::{beyond, met, Sources};
use crate::tree::version::{Pinned, SuperVersion};
use crate::tree::{Direction, Hint, Observed, Tree};
use crate::types::{Flags, Head, RowBuf, RowRef, Verdict, Writer};
use std::cell::OnceCell;
use std::cmp::Ordering;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

/// Keys after which a guided scan goes over to merging, for each chain of runs: by then it has visited about as many pages.
const GUIDED_KEYS_A_RUN: usize = 4;
/// The least and the most of them.
const GUIDED_KEYS: (usize, usize) = if cfg!(test) { (8, 32) } else { (16, 256) };
/// Keys from which on a merge of several sources looks ahead: who wants but the first is spared a look at those that follow. With one
/// source it does so from the second on.
const AHEAD_FROM: u32 = 2;
/// Steps between two looks whether its superversion keeps memtables in memory.
const STEPS_A_LOOK: u32 = if cfg!(test) { 9 } else { 64 };
/// Chains of runs from which on guiding pays.
const GUIDED_RUNS: usize = if cfg!(test) { 3 } else { 12 };

/// How a scan finds its next key.
enum Way<H: Host> {
    /// Nothing was read yet.
    Fresh,
    /// The memtables and the key index tell the next key, and the run to look into: no page of a run is read that holds
    /// none of the keys asked for.
    Guided(Box<Guide<H>>),
    /// A cursor on every run: cheaper a key when every page is visited anyway.
    Merged(Box<Sources<H>>),
}

/// Where a scan stands.
enum Place {
    /// At the end that its first step comes from.
    Fresh,
    /// Before all keys.
    Start,
    /// After all keys.
    End,
    /// At, or beyond, a key.
    Key(Bound<Vec<u8>>),
    /// At the key found last: that on top of the merge, or in the scan's `key`.
    Found,
    /// At the key on top of the merge, which is to be looked at next.
    Next,
    /// At the row of the stretch that was found last; the merge has gone ahead to behind the stretch.
    Ahead,
}

/// Where the row is that a scan came upon last.
#[derive(Clone, Copy)]
pub(super) enum Standing {
    Nowhere,
    /// In the scan's own buffer.
    Buffer,
    /// On top of the merge.
    Top,
    /// Where the guide's cursor on this run stands.
    Run(usize),
    /// Where it was found ahead.
    Ahead(Found),
}

/// An ordered scan. Holds a superversion pinned, and no page but as the host lets it ([`Host::hold_page`]): it may rest
/// between calls. Its reader's snapshot has to hold the horizon back.
pub struct Cursor<H: Host> {
    view: Rc<Pinned<H>>,
    /// Only what comes from this run (and, of the newest, from the memtables), see [`crate::tree::apart`].
    run: Option<usize>,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    direction: Direction,
    way: Way<H>,
    at: Place,
    standing: Standing,
    /// Those of the row found last.
    flags: Flags,
    /// No newer version of its key was passed over.
    newest: bool,
    row: RowBuf,
    /// The key that a guided scan has found last.
    key: Vec<u8>,
    keys: u32,
    /// How often it has gone on by itself, not by rows that were found ahead.
    steps: u32,
    /// See [`crate::tree::barren`]: proposals before it was pinned; the walk from its beginning, as long as all keys are dead.
    begun: u64,
    walk: Option<Walk>,
    /// Rows that the merge has found ahead, how many of them the scan has come by, and whether they are the last within its bounds.
    stretch: Vec<Found>,
    passed: usize,
    is_last: bool,
    /// The key of the row found last, in one piece, if somebody has asked for it.
    whole_key: OnceCell<Vec<u8>>,
    /// The reader's, see [`Cursor::next_in_place`]; 0: it has to be asked about every row.
    sees_below: Writer,
}

impl<H: Host> Tree<'_, H> {
    /// A scan of the keys within the bounds.
    pub fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, direction: Direction) -> Result<Cursor<H>> {
        let begun = self.shared.barren.now();
        let mut cursor = Cursor::new(Rc::new(self.pin()), direction, begun);
        cursor.lower = lower.map(<[u8]>::to_vec);
        cursor.upper = upper.map(<[u8]>::to_vec);
        Ok(cursor)
    }
}

impl<H: Host> Cursor<H> {
    /// A scan of all keys.
    fn new(view: Rc<Pinned<H>>, direction: Direction, begun: u64) -> Cursor<H> {
        Cursor {
            view,
            run: None,
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
            direction,
            way: Way::Fresh,
            at: Place::Fresh,
            standing: Standing::Nowhere,
            flags: Flags::default(),
            newest: false,
            row: RowBuf::default(),
            key: Vec::new(),
            keys: 0,
            steps: 0,
            begun,
            walk: None,
            stretch: Vec::new(),
            passed: 0,
            is_last: false,
            whole_key: OnceCell::new(),
            sees_below: Writer(0),
        }
    }

    /// The same scan from its beginning, if it is one of [`Tree::scan_apart`], of several: in that place only rows of the same run may
    /// come, and no other superversion need have it.
    pub fn again(&self) -> Option<Cursor<H>> {
        let run = self.run?;
        Some(Cursor::of_run(&self.view, run, self.direction, self.begun))
    }

    /// A scan of one run and the memtables.
    pub(super) fn of_run(view: &Rc<Pinned<H>>, run: usize, direction: Direction, begun: u64) -> Cursor<H> {
        Cursor { run: Some(run), ..Cursor::new(Rc::clone(view), direction, begun) }
    }

    /// The next key in the scan's direction of which `choose` takes a version that is no tombstone: it is shown the versions of
    /// a key newest first, and each once. After an error it may be called again, and goes on where it was.
    pub fn next(
        &mut self,
        tree: &Tree<'_, H>,
        choose: impl FnMut(&Head, &Hint<'_>) -> Verdict,
        out: &mut RowBuf,
    ) -> Result<bool> {
        let found = self.next_lazy(tree, choose, out)?;
        if found {
            if let Err(failed) = tree.resolve(out) {
                self.stay();
                return Err(failed);
            }
        }
        Ok(found)
    }

    /// As [`Cursor::next`], but leaves a large body in the value log, as its pointer: until the cursor is dropped,
    /// [`Tree::resolve`] fetches it.
    pub fn next_lazy(
        &mut self,
        tree: &Tree<'_, H>,
        choose: impl FnMut(&Head, &Hint<'_>) -> Verdict,
        out: &mut RowBuf,
    ) -> Result<bool> {
        self.sees_below = Writer(0);
        let found = self.advance(tree, choose)?;
        if found {
            out.set(&self.row());
        }
        Ok(found)
    }

    /// As [`Cursor::next`]; the row stays where it is, to be looked at with [`Cursor::row`]. The reader sees whatever was
    /// committed by writers below `sees_below`: it need not be asked about runs that hold nothing else. (The highest number: it takes
    /// whatever is newest in a settled run, and is no snapshot of whose tombstones others may be told.)
    #[inline]
    pub fn next_in_place(
        &mut self,
        tree: &Tree<'_, H>,
        sees_below: Writer,
        choose: impl FnMut(&Head, &Hint<'_>) -> Verdict,
    ) -> Result<bool> {
        let whole = self.run.is_none() || self.view.runs.len() == 1;
        let snapshot = sees_below.0 > 0 && sees_below.0 < u64::MAX;
        if whole && snapshot && matches!(self.at, Place::Fresh) && self.direction == Direction::Forward {
            let (walk, jump) = tree.shared.barren.begin(bound(&self.lower), sees_below, self.begun);
            self.walk = walk;
            if let Some(key) = jump {
                self.leave(Place::Key(Bound::Included(key)));
            }
        }
        if self.step() {
            return Ok(true);
        }
        self.sees_below = sees_below;
        let found = self.advance(tree, choose)?;
        if found && self.flags.has(Flags::POINTER) {
            let mut row = std::mem::take(&mut self.row);
            if !matches!(self.standing, Standing::Buffer) {
                row.set(&self.row());
            }
            let resolved = tree.resolve(&mut row);
            (self.row, self.standing) = (row, Standing::Buffer);
            if let Err(failed) = resolved {
                self.stay();
                return Err(failed);
            }
        }
        Ok(found)
    }

    /// On to the next row, if it was found ahead: then it is [`Cursor::spot`].
    #[inline]
    pub fn step(&mut self) -> bool {
        let Some(found) = self.stretch.get(self.passed) else { return false };
        self.passed += 1;
        (self.standing, self.newest) = (Standing::Ahead(*found), true);
        if self.whole_key.get().is_some() {
            self.whole_key = OnceCell::new();
        }
        true
    }

    /// Where the row that was found last stands on its page, if it was found ahead. It stays there until the scan moves.
    #[inline]
    pub fn spot(&self) -> Option<Spot<'_>> {
        match (self.standing, &self.way) {
            (Standing::Ahead(found), Way::Merged(sources)) => sources.spot(found),
            _ => None,
        }
    }

    /// Puts the key of the row that was found last into `key`, whose memory is used again.
    #[inline]
    pub fn copy_key(&self, key: &mut Vec<u8>) {
        key.clear();
        match self.spot() {
            Some(spot) => {
                let (first, rest) = spot.key();
                key.extend_from_slice(first);
                key.extend_from_slice(rest);
            }
            None => key.extend_from_slice(self.row().key),
        }
    }

    /// The body of the row that was found last.
    #[inline]
    pub fn body(&self) -> &[u8] {
        match self.spot() {
            Some(spot) => spot.body(),
            None => self.row().body,
        }
    }

    /// The row that was found last; an empty one if there is none.
    #[inline]
    pub fn row(&self) -> RowRef<'_> {
        if let Some(spot) = self.spot() {
            let (first, rest) = spot.key();
            let key = self.whole_key.get_or_init(|| [first, rest].concat());
            return RowRef { key, head: spot.head(), body: spot.body() };
        }
        let standing = match (self.standing, &self.way) {
            (Standing::Top, Way::Merged(sources)) => sources.run_row(),
            (Standing::Run(at), Way::Guided(guide)) => guide.row(at),
            _ => None,
        };
        standing.unwrap_or(self.row.as_ref())
    }

    /// What was seen of the key of the row that was found last, for [`Tree::append`], if that row was the newest version.
    pub fn observed(&self) -> Option<Observed> {
        self.newest.then(|| Observed::new(&self.view, Some(self.row().head.row_id)))
    }

    /// The row found last could not be had: the next call is to find it again.
    fn stay(&mut self) {
        if let Some(key) = self.key_found() {
            self.leave(Place::Key(Bound::Included(key)));
        }
    }

    /// Gives up the way on which the scan is, to go on from `place` on another.
    fn leave(&mut self, place: Place) {
        self.at = place;
        self.way = Way::Fresh;
        self.standing = Standing::Nowhere;
        self.stretch.clear();
        self.passed = 0;
        self.is_last = false;
    }

    /// The key that was found last, if nothing has happened since.
    fn key_found(&self) -> Option<Vec<u8>> {
        match (&self.at, &self.way) {
            (Place::Found, Way::Merged(sources)) => sources.key(&self.view).map(<[u8]>::to_vec),
            (Place::Found, _) => Some(self.key.clone()),
            (Place::Ahead, _) => self.spot().map(|spot| [spot.key().0, spot.key().1].concat()),
            _ => None,
        }
    }

    fn advance(&mut self, tree: &Tree<'_, H>, choose: impl FnMut(&Head, &Hint<'_>) -> Verdict) -> Result<bool> {
        if self.step() {
            return Ok(true);
        }
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(STEPS_A_LOOK) {
            self.keep_up(tree);
        }
        let ahead = match self.at {
            Place::Found | Place::Ahead => self.look_ahead(tree)?,
            _ => self.begin_ahead(tree)?,
        };
        if ahead {
            return Ok(true);
        }
        self.standing = Standing::Nowhere;
        let result = self.try_advance(tree, choose);
        if result.is_err() {
            // Some of the cursors below have moved, others have not.
            let place = match (std::mem::replace(&mut self.at, Place::Fresh), &self.way) {
                (Place::Found, Way::Merged(sources)) => sources.key_failed(&self.view).map(Bound::Excluded),
                // What fails in a guided step is the look at its key.
                (Place::Found, _) => Some(Bound::Included(self.key.clone())),
                (Place::Next, Way::Merged(sources)) => sources.key_failed(&self.view).map(Bound::Included),
                (at, _) => {
                    self.leave(at);
                    return result;
                }
            };
            self.leave(place.map_or(Place::Fresh, Place::Key));
        }
        result
    }

    /// Goes on with the current superversion once all that its own one had in memtables is in runs: those would be in memory for as long
    /// as the scan takes, and several scans would leave nothing for who writes. What the scan's reader sees stands in every
    /// superversion, for its snapshot holds the horizon back.
    fn keep_up(&mut self, tree: &Tree<'_, H>) {
        if self.run.is_some() || self.walk.is_some() {
            return;
        }
        let current = tree.pin();
        if current.flushed < self.view.active().table.generation() {
            return;
        }
        if let Some(key) = self.key_found() {
            self.leave(Place::Key(Bound::Excluded(key)));
            self.view = Rc::new(current);
        }
    }

    /// Takes all rows ahead, the first as well, where they come from one run that has nothing else: a scan with an end is mostly read up to
    /// it. False: there are none, and the scan has not moved.
    fn begin_ahead(&mut self, tree: &Tree<'_, H>) -> Result<bool> {
        let begins = matches!(self.way, Way::Fresh) && self.sees_below.0 > 0 && self.direction == Direction::Forward;
        if !begins || matches!(self.upper, Bound::Unbounded) || !self.find_way(tree)? {
            return Ok(false);
        }
        let Cursor { way: Way::Merged(sources), view, sees_below, upper, stretch, .. } = self else { return Ok(false) };
        if !sources.is_one_run_of_rows(view, *sees_below) {
            return Ok(false);
        }
        let found = sources.open_top(tree, view);
        let found = found.and_then(|()| sources.look_ahead(tree, view, *sees_below, bound(upper), stretch));
        match found {
            Ok(is_last) => self.is_last = is_last,
            Err(failed) => {
                let place = std::mem::replace(&mut self.at, Place::Fresh);
                self.leave(place);
                return Err(failed);
            }
        }
        if self.stretch.is_empty() {
            self.is_last = false;
            return Ok(false);
        }
        if self.walk.is_some() {
            self.walk_on(tree, false, Writer(0));
        }
        self.keys = self.keys.saturating_add(1);
        (self.at, self.flags) = (Place::Ahead, Flags::default());
        Ok(self.step())
    }

    /// Lets the merge go ahead, and takes the first of the rows that it finds. False: there are none; if the scan was at a row of the
    /// merge, the next key is on top now.
    fn look_ahead(&mut self, tree: &Tree<'_, H>) -> Result<bool> {
        if self.is_last && matches!(self.at, Place::Ahead) {
            self.leave(Place::End);
            return Ok(false);
        }
        let alone = matches!(&self.way, Way::Merged(sources) if sources.heap.len() == 1);
        let long = self.keys >= AHEAD_FROM || alone || self.run.is_some();
        let may = long && self.sees_below.0 > 0 && self.direction == Direction::Forward && self.walk.is_none();
        let (true, Way::Merged(sources)) = (may || matches!(self.at, Place::Ahead), &mut self.way) else {
            return Ok(false);
        };
        self.key.clear();
        if let Standing::Ahead(found) = self.standing {
            let (first, rest) = sources.spot(found).map(|spot| spot.key()).unwrap_or_default();
            self.key.extend_from_slice(first);
            self.key.extend_from_slice(rest);
        } else {
            self.key.extend_from_slice(sources.key(&self.view).unwrap_or_default());
        }
        (self.standing, self.flags, self.passed) = (Standing::Nowhere, Flags::default(), 0);
        self.stretch.clear();
        let result = match self.at {
            Place::Ahead => Ok(()),
            _ => sources.leave_key(tree, &self.view),
        };
        let result = result.and_then(|()| match may {
            true => sources.look_ahead(tree, &self.view, self.sees_below, bound(&self.upper), &mut self.stretch),
            false => Ok(false),
        });
        let result = result.and_then(|is_last| {
            if self.stretch.is_empty() && !is_last {
                sources.stand(tree, &self.view)?;
            }
            Ok(is_last)
        });
        match result {
            Ok(is_last) => self.is_last = is_last,
            Err(failed) => {
                let key = std::mem::take(&mut self.key);
                self.leave(Place::Key(Bound::Excluded(key)));
                return Err(failed);
            }
        }
        match (self.stretch.is_empty(), self.is_last) {
            (false, _) => self.at = Place::Ahead,
            (true, false) => self.at = Place::Next,
            (true, true) => self.leave(Place::End),
        }
        Ok(self.step())
    }

    fn try_advance(&mut self, tree: &Tree<'_, H>, mut choose: impl FnMut(&Head, &Hint<'_>) -> Verdict) -> Result<bool> {
        while self.find_way(tree)? {
            let Cursor { way, view, run, lower, upper, direction, at, key, row, .. } = self;
            let quiet = run.is_some_and(|run| run > 0);
            let to = end(lower, upper, *direction);
            let within = |key: &[u8]| !beyond(key, to, *direction);
            let mut flags = Flags::default();
            let (mut shown, mut writer) = (0u32, Writer(0));
            let mut choose = |head: &Head, hint: &Hint<'_>| {
                flags = head.flags;
                shown = shown.saturating_add(1);
                writer = head.writer;
                choose(head, hint)
            };
            let step = match way {
                Way::Guided(guide) => guide.next(tree, view, within, &mut choose, key, row)?,
                Way::Merged(sources) => {
                    if matches!(at, Place::Found) {
                        sources.leave_key(tree, view)?;
                    }
                    *at = Place::Next;
                    next_merged(tree, view, sources, quiet, within, &mut choose, row)?
                }
                Way::Fresh => Step::End,
            };
            self.keys = self.keys.saturating_add(1);
            if self.walk.is_some() {
                let taken = matches!(step, Step::Key(standing) if !matches!(standing, Standing::Nowhere));
                self.walk_on(tree, taken && shown == 1 && flags.is_tombstone(), writer);
            }
            match step {
                // A merge that takes nothing of a key has gone on to the next.
                Step::Key(Standing::Nowhere) if matches!(self.way, Way::Merged(_)) => {}
                Step::Key(standing) => {
                    self.at = Place::Found;
                    if !matches!(standing, Standing::Nowhere) && !flags.is_tombstone() {
                        (self.standing, self.flags) = (standing, flags);
                        self.newest = shown == 1 || on(ScannedRowTakenForNewest);
                        return Ok(true);
                    }
                }
                Step::End => {
                    self.at = if self.direction == Direction::Forward { Place::End } else { Place::Start };
                    break;
                }
                Step::Lost => self.keys = u32::MAX,
            }
        }
        Ok(false)
    }

    /// The scan has come to another key since its beginning, or to its end; of the key's newest version: is it a tombstone that
    /// was taken, whose?
    fn walk_on(&mut self, tree: &Tree<'_, H>, tombstone: bool, writer: Writer) {
        let Some(mut walk) = self.walk.take() else { return };
        let key = match &self.way {
            Way::Merged(sources) => sources.key(&self.view).unwrap_or_default(),
            _ => &self.key,
        };
        if walk.step(key, tombstone, writer) {
            self.walk = Some(walk);
        } else {
            tree.shared.barren.end(&walk);
        }
    }

    /// Goes on in this direction from the last key returned (that key itself is not returned again). A scan that has
    /// come to an end goes back from there; one that has not moved yet begins at the other end.
    pub fn turn(&mut self, direction: Direction) {
        if direction != self.direction {
            let place = match (self.key_found(), std::mem::replace(&mut self.at, Place::Fresh)) {
                (Some(key), _) => Place::Key(Bound::Excluded(key)),
                (None, at) => at,
            };
            self.leave(place);
            self.direction = direction;
            self.walk = None;
        }
    }

    /// Goes on from `key` (included) in the current direction, but never before the bound where the scan began.
    pub fn seek(&mut self, key: &[u8]) {
        self.leave(Place::Key(Bound::Included(key.to_vec())));
        self.keys = 0;
        // One that a step which failed has left: it knows nothing of what lies between.
        self.walk = None;
    }

    /// Where to go on in the current direction: not before the bound where it begins.
    fn from(&self) -> Bound<&[u8]> {
        let (start, before) = match self.direction {
            Direction::Forward => (bound(&self.lower), Ordering::Less),
            Direction::Backward => (bound(&self.upper), Ordering::Greater),
        };
        let Place::Key(at) = &self.at else { return start };
        match (bound(at), start) {
            (Bound::Included(at) | Bound::Excluded(at), Bound::Included(first)) if at.cmp(first) == before => start,
            (Bound::Included(at) | Bound::Excluded(at), Bound::Excluded(first))
                if at == first || at.cmp(first) == before =>
            {
                start
            }
            (at, _) => at,
        }
    }

    fn guided_keys(&self) -> u32 {
        let (least, most) = GUIDED_KEYS;
        (self.view.chains * GUIDED_KEYS_A_RUN).clamp(least, most) as u32
    }

    /// Sees to it that the scan has a way to go on. False: it has come to an end.
    fn find_way(&mut self, tree: &Tree<'_, H>) -> Result<bool> {
        match (&self.at, &self.way) {
            (Place::Start, _) if self.direction == Direction::Backward => return Ok(false),
            (Place::End, _) if self.direction == Direction::Forward => return Ok(false),
            (_, Way::Merged(_)) => return Ok(true),
            (_, Way::Guided(_)) if self.keys < self.guided_keys() => return Ok(true),
            _ => {}
        }
        if let Some(key) = self.key_found() {
            self.at = Place::Key(Bound::Excluded(key));
        }
        let near = match &mut self.way {
            Way::Guided(guide) => guide.take_cursors(),
            _ => Vec::new(),
        };
        if self.run.is_none() && self.view.chains > 1 && near.is_empty() {
            let more = self.view.chains as u64 - 1;
            let before = tree.shared.sought.fetch_add(more, Relaxed);
            if (before + more) / WORTH_TELLING > before / WORTH_TELLING {
                tree.shared.told.store(true, Relaxed);
                tree.host.scanned();
            }
        }
        let from = self.from();
        let guided = self.keys < self.guided_keys() && self.view.chains >= GUIDED_RUNS && self.run.is_none();
        if let Some(guide) = guided.then(|| Guide::begin(tree, &self.view, from, self.direction)).transpose()?.flatten()
        {
            tree.shared.counters.guided_scans.fetch_add(1, Relaxed);
            tree.host.saw(Saw::GuidedScan, 1);
            self.way = Way::Guided(Box::new(guide));
        } else {
            if self.run.is_none_or(|run| run == 0) {
                tree.shared.counters.merged_scans.fetch_add(1, Relaxed);
                tree.host.saw(Saw::MergedScan, 1);
            }
            let to = end(&self.lower, &self.upper, self.direction);
            let runs = self.run.map_or(0..self.view.runs.len(), |run| run..run + 1);
            let runs: Vec<usize> = met(&self.view, runs, (from, to), self.direction).collect();
            tree.host.saw(Saw::Run, runs.len() as u64);
            let mut sources = Box::new(Sources::new(&self.view, true, runs.iter().copied(), self.direction));
            sources.scan_of = Some(tree.shared.storage_id());
            sources.words.narrow(&self.lower, &self.upper);
            sources.adopt(near);
            sources.seek(tree, &self.view, (from, to), self.direction)?;
            self.way = Way::Merged(sources);
        }
        Ok(true)
    }
}

/// The next key of the merge: the one on top. `quiet`: nothing that comes from a memtable.
#[inline]
#[allow(clippy::too_many_arguments)]
fn next_merged<H: Host>(
    tree: &Tree<'_, H>,
    view: &SuperVersion,
    sources: &mut Sources<H>,
    quiet: bool,
    within: impl Fn(&[u8]) -> bool,
    choose: &mut impl FnMut(&Head, &Hint<'_>) -> Verdict,
    buffer: &mut RowBuf,
) -> Result<Step> {
    let Some(next) = sources.key(view) else { return Ok(Step::End) };
    if !within(next) {
        return Ok(Step::End);
    }
    sources.open_top(tree, view)?;
    let tombstone = loop {
        match sources.with_head(view, |head, hint| (choose(head, hint), head.flags.is_tombstone())) {
            Some((Verdict::Take, tombstone)) => break tombstone,
            _ if !sources.older(tree, view)? => return Ok(Step::Key(Standing::Nowhere)),
            _ => {}
        }
    };
    if quiet && sources.run_on_top().is_none() {
        sources.leave_key(tree, view)?;
        return Ok(Step::Key(Standing::Nowhere));
    }
    // Nobody looks at a tombstone's row.
    if tombstone || sources.run_row().is_some() {
        return Ok(Step::Key(Standing::Top));
    }
    sources.copy(tree, view, buffer)?;
    Ok(Step::Key(Standing::Buffer))
}

/// Where a scan between these bounds ends.
fn end<'a>(lower: &'a Bound<Vec<u8>>, upper: &'a Bound<Vec<u8>>, direction: Direction) -> Bound<&'a [u8]> {
    match direction {
        Direction::Forward => bound(upper),
        Direction::Backward => bound(lower),
    }
}

pub(super) fn bound(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
    }
}
