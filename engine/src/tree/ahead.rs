//! Looking ahead in a merge: which rows come next, page by page instead of row by row.
//!
//! ```text
//! run a, page:   k1 k4 k7 | .      --+
//! run b, page:   k2 k3 k9 k10        +--> stretch: a0 b0 b1 a1 a2    (a's page is at its end)
//! a memtable:    k8                --+    up to k8, which has to be asked about
//! ```
//!
//! In a settled run all of whose writers the reader sees, the newest version of each key is the one to take: nobody need be asked.
//! Such runs are merged by the [words](super::words) of their keys, which are taken from many rows of a page at once; the keys
//! themselves are only looked at where these are equal. The rows stay on their pages until the scan has gone past them. Forwards only.
//!
//! A stretch ends before the next key of a source that has to be asked about, before a row whose body is in the value log, and
//! where a page ends. The cursors stay behind where it began, and follow when one of the sources is wanted for itself
//! ([`Sources::stand`]).

use crate::error::Result;
use crate::host::Host;
use crate::manifest::RunDesc;
use crate::run::data::Layout;
use crate::run::Spot;
use crate::tree::read::Pages;
use crate::tree::sources::{Entry, Source, Sources};
use crate::tree::version::SuperVersion;
use crate::tree::words::Words;
use crate::tree::Tree;
use crate::types::{Flags, Writer};
use std::cmp::Ordering;
use std::ops::Bound;

/// A row found ahead: its source, and its place on the page that the source's cursor has at hand.
#[derive(Clone, Copy)]
pub(super) struct Found {
    source: u16,
    row: u16,
}

/// A run's part in the merge, ahead of its cursor.
#[derive(Default)]
pub(super) struct Lane {
    /// It needs no asking.
    open: bool,
    /// No key has a second version in the run.
    once: bool,
    /// `next` is beyond where the cursor stands.
    moved: bool,
    /// The first row that was in no stretch yet.
    next: usize,
    rows: usize,
    /// So many of them can be taken: but for the last, if that has not been put together.
    at_hand: usize,
    /// So many of them are within the scan's bounds; known once this is the only source.
    end: Option<usize>,
    /// The data page of which the rest tells.
    page: Option<u32>,
    /// No row on the page is a tombstone or a pointer.
    plain: bool,
    /// The word of each row's key, from `next` on when they were first wanted, up to where they have been wanted.
    words: Vec<u64>,
}

/// Rows of a run whose words are taken at once.
const WORDS_AT_ONCE: usize = 12;

/// Rows that a stretch has at hand room for.
const FOUND_AT_ONCE: usize = 64;

/// What stops a stretch: a key, and its word.
type Limit<'a> = Option<(u64, &'a [u8])>;

impl<H: Host> Sources<H> {
    /// Finds the rows that come next, for a reader that sees what was committed by writers below `sees_below`; `found` is empty
    /// if the next key has to be looked at in the ordinary way. The rows that were found before are gone. Whether nothing comes after
    /// them within the bounds, if that is known.
    pub fn look_ahead(
        &mut self,
        tree: &Tree<'_, H>,
        view: &SuperVersion,
        sees_below: Writer,
        upper: Bound<&[u8]>,
        found: &mut Vec<Found>,
    ) -> Result<bool> {
        found.reserve(FOUND_AT_ONCE);
        if self.lanes.is_empty() {
            self.lanes.resize_with(self.sources.len(), Lane::default);
        }
        let moved = |entry: &Entry| self.lanes.get(entry.source).is_some_and(|lane| lane.moved);
        let asked = |entry: &Entry| !self.is_open(view, sees_below, entry.source);
        if self.heap.first().is_none_or(asked) && !self.heap.iter().any(moved) {
            return Ok(false);
        }
        loop {
            self.catch_up(tree, view)?;
            self.open_lanes(tree, view, sees_below, upper)?;
            let Sources { sources, heap, lanes, words, .. } = self;
            let is_last = match heap.as_slice() {
                [only] => match (sources.get(only.source), lanes.get_mut(only.source)) {
                    (Some(source), Some(lane)) if lane.open => lane.take_all(source, only.source, found)?,
                    _ => return Ok(false),
                },
                _ => {
                    let upper = match upper {
                        Bound::Included(key) | Bound::Excluded(key) => Some((words.word(key), key)),
                        Bound::Unbounded => None,
                    };
                    let limit = limit(sources, heap, lanes, view, upper);
                    merge(sources, heap, lanes, view, words, limit, found)?;
                    false
                }
            };
            let ended = |entry: &Entry| self.lanes.get(entry.source).is_some_and(Lane::has_ended);
            if is_last || !found.is_empty() || !self.heap.iter().any(ended) {
                return Ok(is_last);
            }
        }
    }

    /// A row that was found ahead.
    #[inline]
    pub fn spot(&self, found: Found) -> Option<Spot<'_>> {
        match self.sources.get(usize::from(found.source))? {
            Source::Run { cursor, .. } => cursor.spot(usize::from(found.row)),
            Source::Memtable { .. } => None,
        }
    }

    /// Lets the cursors follow: every source stands at its first row that was in no stretch.
    pub fn stand(&mut self, tree: &Tree<'_, H>, view: &SuperVersion) -> Result<()> {
        self.catch_up(tree, view)?;
        let Sources { sources, heap, lanes, .. } = self;
        for entry in heap.iter() {
            match (sources.get_mut(entry.source), lanes.get_mut(entry.source)) {
                (Some(Source::Run { at, cursor, .. }), Some(lane)) if lane.moved => {
                    let Some(desc) = view.runs.get(*at) else { continue };
                    cursor.stand(&desc.run(), &Pages(&tree.host), lane.next)?;
                    lane.moved = false;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Nothing is left but one run, of which nothing has to be asked, and which has one version of each key, and that is a row.
    pub fn is_one_run_of_rows(&self, view: &SuperVersion, sees_below: Writer) -> bool {
        let [only] = self.heap.as_slice() else { return false };
        let Some(Source::Run { at, .. }) = self.sources.get(only.source) else { return false };
        let rows = |desc: &RunDesc| desc.shape.has_each_key_once() && desc.shape.tombstones == 0;
        view.runs.get(*at).is_some_and(|desc| rows(desc)) && self.is_open(view, sees_below, only.source)
    }

    /// A run of which nothing has to be asked.
    fn is_open(&self, view: &SuperVersion, sees_below: Writer, source: usize) -> bool {
        match self.sources.get(source) {
            Some(Source::Run { at, .. }) => {
                view.runs.get(*at).is_some_and(|desc| desc.settled && desc.shape.max_writer < sees_below)
            }
            _ => false,
        }
    }

    /// Goes on to the next page where a stretch has come to the end of one, and puts the heap in order.
    fn catch_up(&mut self, tree: &Tree<'_, H>, view: &SuperVersion) -> Result<()> {
        let Sources { sources, heap, lanes, words, .. } = self;
        let mut moved = false;
        for entry in heap.iter_mut() {
            let (Some(Source::Run { at, cursor, .. }), Some(lane)) =
                (sources.get_mut(entry.source), lanes.get_mut(entry.source))
            else {
                continue;
            };
            moved |= lane.moved;
            if lane.has_ended() {
                let Some(desc) = view.runs.get(*at) else { continue };
                cursor.next_key_after(&desc.run(), &Pages(&tree.host), lane.rows.saturating_sub(1))?;
                (lane.moved, lane.page) = (false, None);
                entry.word = words.word(cursor.key());
            } else if lane.moved {
                entry.word = cursor.spot(lane.next).map_or(0, |spot| words.word_of_pieces(spot.key()));
            }
        }
        if moved {
            heap.retain(|entry| match sources.get(entry.source) {
                Some(Source::Run { cursor, waits, .. }) => waits.is_some() || cursor.valid(),
                _ => true,
            });
            order(sources, lanes, view, heap);
        }
        Ok(())
    }

    /// Finds out which sources need no asking, and looks at the pages where their cursors stand.
    fn open_lanes(
        &mut self,
        tree: &Tree<'_, H>,
        view: &SuperVersion,
        sees_below: Writer,
        upper: Bound<&[u8]>,
    ) -> Result<()> {
        let alone = self.heap.len() == 1;
        for entry in &self.heap {
            let open = self.is_open(view, sees_below, entry.source);
            let Some(lane) = self.lanes.get_mut(entry.source) else { continue };
            lane.open = false;
            let source = self.sources.get_mut(entry.source);
            let (true, Some(Source::Run { at, cursor, .. })) = (open, source) else { continue };
            let Some((index, layout, image, row)) = cursor.window() else { continue };
            let Some(desc) = view.runs.get(*at) else { continue };
            let entered = lane.page != Some(index);
            if entered {
                layout.check_rows(image)?;
                (lane.page, lane.rows, lane.plain) = (Some(index), layout.rows(), layout.all_have(Flags::default()));
                lane.words.clear();
                lane.end = None;
            }
            let end = match (alone, lane.end) {
                (true, None) => layout.end(image, upper)?,
                (_, known) => known.unwrap_or(lane.rows),
            };
            lane.end = alone.then_some(end);
            if entered && end == lane.rows {
                cursor.touch_next(&desc.run(), &Pages(&tree.host));
            }
            if !lane.moved {
                lane.next = row;
            }
            if lane.next + 1 >= lane.rows || (alone && end == lane.rows) {
                cursor.join(&desc.run(), &Pages(&tree.host))?;
            }
            lane.at_hand = cursor.rows_at_hand();
            lane.once = desc.shape.has_each_key_once();
            lane.open = true;
        }
        Ok(())
    }
}

impl Lane {
    fn has_ended(&self) -> bool {
        self.moved && self.next >= self.rows
    }

    #[inline]
    fn word(&self) -> Option<u64> {
        self.words.get(self.next).copied()
    }

    fn fill_words<H: Host>(&mut self, source: &Source<H>, words: &Words) {
        let Source::Run { cursor, .. } = source else { return };
        if let (true, Some((_, layout, image, _))) = (self.words.len() <= self.next, cursor.window()) {
            self.words.reserve(self.rows.saturating_sub(self.words.len()));
            // Each row is a line of cache to fetch, and of a run that has few of the rows few are wanted.
            let end = if self.once { self.rows.min(self.next + WORDS_AT_ONCE) } else { self.rows };
            self.words.resize(self.next, 0);
            let suffixes = (self.next..end).map(|row| layout.suffix(image, row).unwrap_or_default());
            words.of_page(layout.prefix(image), suffixes, &mut self.words);
        }
    }

    /// Takes the rows from `next` on, up to the first whose word is not below `stop`. False: one stands in the way.
    #[inline]
    fn take_below(
        &mut self,
        (layout, image): (&Layout, &[u8]),
        source: usize,
        stop: Option<u64>,
        found: &mut Vec<Found>,
    ) -> Result<bool> {
        while let Some(word) = self.word().filter(|word| stop.is_none_or(|stop| *word < stop)) {
            if !self.take((layout, image), source, found) {
                return Ok(false);
            }
            self.next += 1;
            while !self.once && self.word() == Some(word) && layout.is_same_key(image, self.next - 1, self.next)? {
                self.next += 1;
            }
        }
        Ok(true)
    }

    /// The only source left: the rest of its page, within the bounds. Whether those end there.
    fn take_all<H: Host>(&mut self, source: &Source<H>, number: usize, found: &mut Vec<Found>) -> Result<bool> {
        let Source::Run { cursor, .. } = source else { return Ok(false) };
        let Some((_, layout, image, _)) = cursor.window() else { return Ok(false) };
        let end = self.end.unwrap_or(self.rows);
        if self.once && self.plain {
            let source = number as u16;
            let stop = self.at_hand.min(end);
            found.extend((self.next..stop).map(|row| Found { source, row: row as u16 }));
            (self.moved, self.next) = (true, stop.max(self.next));
        }
        while self.next < end && self.take((layout, image), number, found) {
            self.next += 1;
            while !self.once && self.next < end && layout.is_same_key(image, self.next - 1, self.next)? {
                self.next += 1;
            }
        }
        Ok(self.next >= end && end < self.rows)
    }

    /// Takes the row at `next`. False: its body is elsewhere, or not at hand.
    #[inline]
    fn take(&mut self, (layout, image): (&Layout, &[u8]), source: usize, found: &mut Vec<Found>) -> bool {
        let flags = if self.plain { Flags::default() } else { layout.flags(image, self.next) };
        if flags.has(Flags::POINTER) || self.next >= self.at_hand {
            return false;
        }
        self.moved = true;
        if !flags.is_tombstone() {
            found.push(Found { source: source as u16, row: self.next as u16 });
        }
        true
    }

    /// Past the key at `next`, if that is this one.
    fn skip<H: Host>(&mut self, source: &Source<H>, key: (&[u8], &[u8])) -> Result<()> {
        let Source::Run { cursor, .. } = source else { return Ok(()) };
        while cursor.spot(self.next).is_some_and(|spot| compare(spot.key(), key).is_eq()) {
            self.moved = true;
            self.next += 1;
            if self.once {
                break;
            }
        }
        Ok(())
    }
}

/// The least key that has to be asked about, or where the scan ends.
fn limit<'a, H: Host>(
    sources: &'a [Source<H>],
    heap: &[Entry],
    lanes: &[Lane],
    view: &'a SuperVersion,
    upper: Limit<'a>,
) -> Limit<'a> {
    let asked = heap.iter().filter(|entry| !lanes.get(entry.source).is_some_and(|lane| lane.open));
    let keys = asked.filter_map(|entry| Some((entry.word, sources.get(entry.source)?.key(view)?)));
    keys.chain(upper).min()
}

/// Takes rows of the open lanes in the order of their keys.
fn merge<H: Host>(
    sources: &[Source<H>],
    heap: &mut [Entry],
    lanes: &mut [Lane],
    view: &SuperVersion,
    words: &Words,
    limit: Limit<'_>,
    found: &mut Vec<Found>,
) -> Result<()> {
    while let [top, rivals @ ..] = &mut *heap {
        let number = top.source;
        let (Some(source), Some(lane)) = (sources.get(number), lanes.get_mut(number)) else { break };
        let Source::Run { cursor, .. } = source else { break };
        let (true, Some((_, layout, image, _))) = (lane.open, cursor.window()) else { break };
        lane.fill_words(source, words);
        let rival = rivals.iter().take(2).map(|rival| rival.word).min();
        let stop = [rival, limit.map(|(word, _)| word)].into_iter().flatten().min();
        if !lane.take_below((layout, image), number, stop, found)? {
            break;
        }
        let Some(word) = lane.word() else {
            if lane.next < lane.rows {
                continue;
            }
            break;
        };
        top.word = word;
        sift(sources, lanes, view, heap, 0);
        if heap.first().is_some_and(|top| top.source != number) {
            continue;
        }
        // Still the first, but as far as words tell others may be so as well.
        let (Some(lane), Some(entries)) = (lanes.get_mut(number), heap.get(1..)) else { break };
        let Some(spot) = cursor.spot(lane.next) else { break };
        let reached = |(at, key): (u64, &[u8])| word > at || (word == at && compare(spot.key(), (key, &[])).is_ge());
        if limit.is_some_and(reached) || !lane.take((layout, image), number, found) {
            break;
        }
        lane.skip(source, spot.key())?;
        for entry in entries.iter().filter(|entry| entry.word == word) {
            if let (Some(source), Some(lane)) = (sources.get(entry.source), lanes.get_mut(entry.source)) {
                if lane.open {
                    lane.skip(source, spot.key())?;
                }
            }
        }
        let mut ended = false;
        for entry in heap.iter_mut().filter(|entry| entry.word == word) {
            if let (Some(source), Some(lane)) = (sources.get(entry.source), lanes.get_mut(entry.source)) {
                if lane.moved {
                    lane.fill_words(source, words);
                    ended |= lane.has_ended();
                    entry.word = lane.word().unwrap_or(word);
                }
            }
        }
        if ended {
            break;
        }
        order(sources, lanes, view, heap);
    }
    Ok(())
}

/// Makes a heap of the entries.
fn order<H: Host>(sources: &[Source<H>], lanes: &[Lane], view: &SuperVersion, heap: &mut [Entry]) {
    for at in (0..heap.len() / 2).rev() {
        sift(sources, lanes, view, heap, at);
    }
}

#[inline]
fn sift<H: Host>(sources: &[Source<H>], lanes: &[Lane], view: &SuperVersion, heap: &mut [Entry], mut at: usize) {
    loop {
        let mut least = at;
        for child in [2 * at + 1, 2 * at + 2] {
            if let (Some(a), Some(b)) = (heap.get(child), heap.get(least)) {
                let before = a.word < b.word
                    || (a.word == b.word && compare_entries(sources, lanes, view, a, b) == Ordering::Less);
                least = if before { child } else { least };
            }
        }
        if least == at {
            return;
        }
        heap.swap(at, least);
        at = least;
    }
}

fn compare_entries<H: Host>(
    sources: &[Source<H>],
    lanes: &[Lane],
    view: &SuperVersion,
    a: &Entry,
    b: &Entry,
) -> Ordering {
    let key = |entry: &Entry| {
        let source = sources.get(entry.source)?;
        match (source, lanes.get(entry.source)) {
            (Source::Run { cursor, .. }, Some(lane)) if lane.moved => cursor.spot(lane.next).map(|spot| spot.key()),
            _ => source.key(view).map(|key| (key, &[][..])),
        }
    };
    let order = match (key(a), key(b)) {
        (Some(a), Some(b)) => compare(a, b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    };
    order.then(a.source.cmp(&b.source))
}

/// Compares keys that are in two pieces.
fn compare(a: (&[u8], &[u8]), b: (&[u8], &[u8])) -> Ordering {
    if a.0 == b.0 {
        return a.1.cmp(b.1);
    }
    a.0.iter().chain(a.1).cmp(b.0.iter().chain(b.1))
}
