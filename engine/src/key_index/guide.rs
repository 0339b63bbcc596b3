//! The guide: which leaf a key belongs to, for a few lines of cache, where a search of the directory visits two nodes a level.
//!
//! ```text
//!   firsts   number of the first entry of each page
//!   page     up to 512 entries in groups of 16, and before them the number of the first of each group
//!   entry    [ number 16 ][ address of the leaf's place in the directory 8 ]
//! ```
//!
//! The number of a key ([`Reading`]) is what is in it at sixteen places where low keys differ. Numbers never fall as keys rise.
//!
//! - *A guide is a hint.* It is made of the whole directory now and then, and does not know of leaves that came since: the leaf
//!   that it names may have been split. Whoever takes one from it makes sure that it answers for the key, or asks the directory.
//! - *What it names is alive.* Before an entry leaves the directory it is taken out of the guides, the one in use and the one that is being
//!   made, so whoever is pinned and finds a place may look there.
//! - *Who has found a place meanwhile is told*: it is closed when its entry has left the directory.
//!
//! A directory of few entries has none, nor one whose numbers do not tell its entries apart, nor one for whose guide there is no room.

use super::key::{no_space, IndexKey, Probe};
use super::reading::{Reading, NONE};
use super::{KeyIndex, LeafSlot};
use crate::cpu::{prefetch, LINE};
use crate::host::Budget;
use crate::types::MAX_KEY;
use loosekv_shm::scope::{self, Scope};
use loosekv_shm::{epoch, reserve_growth, Full, Needs, RawLatch};
use std::alloc::Layout;
use std::ops::Bound;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// A directory of fewer entries has no guide.
const FEWEST: usize = if cfg!(test) { 8 } else { 256 };
/// One that has become this small gives its guide back.
const TOO_FEW: usize = FEWEST / 4;
/// Another guide is made when a part like this of the entries has come or gone.
const CHANGED: usize = 8;
/// The same when no more are about to come.
const CHANGED_AT_REST: usize = 64;
/// A guide takes at most this part of the room that is left: keys come first, but it is small and soon made.
const SHARE: u64 = 2;
/// Most entries in a row that have one number.
const MOST_ALIKE: usize = 16;
/// Places from where on low keys are sampled, and how many at each.
const SAMPLES: u32 = 8;
const SAMPLED_IN_A_ROW: usize = 4;
const GROUP: usize = 16;
const GROUPS: usize = 32;
const PAGE: usize = GROUP * GROUPS;
/// What a list of numbers may have, to be an object of the heap: 1024 pages, for some 40 million keys.
const MOST_PAGES: usize = Needs::MAX_BYTES / size_of::<u128>();

/// Numbers ascend. Places that have none behind them are empty, and their numbers above all that are looked for.
#[repr(C, align(64))]
struct Group {
    numbers: [u128; GROUP],
    places: [AtomicPtr<LeafSlot>; GROUP],
}

#[repr(C, align(64))]
struct Page {
    firsts: [u128; GROUPS],
    groups: [Group; GROUPS],
}

/// Lives in the heap with all that belongs to it.
pub(super) struct KeyGuide {
    reading: Reading,
    firsts: Vec<u128>,
    pages: Vec<Box<Page>>,
    entries: usize,
    /// The number of the last entry, and how many up to it have that.
    last: u128,
    alike: usize,
}

impl KeyGuide {
    /// For up to so many entries.
    fn new(entries: usize, reading: Reading) -> Result<Box<KeyGuide>, Full> {
        let count = entries.div_ceil(PAGE);
        if count > MOST_PAGES {
            return Err(Full);
        }
        reserve_growth(&[size_of::<KeyGuide>(), count * size_of::<u128>(), count * size_of::<Box<Page>>()])?;
        let mut guide = scope::with(|| {
            let (firsts, pages) = (Vec::with_capacity(count), Vec::with_capacity(count));
            Box::new(KeyGuide { reading, firsts, pages, entries: 0, last: NONE, alike: 0 })
        });
        for _ in 0..count {
            const { Needs::of_layout(Layout::new::<Page>()) }.reserve_growth()?;
            // SAFETY: zeros are a value of it.
            let mut page = scope::with(|| unsafe { Box::<Page>::new_zeroed().assume_init() });
            page.firsts = [NONE; GROUPS];
            page.groups.iter_mut().for_each(|group| group.numbers = [NONE; GROUP]);
            guide.pages.push(page);
        }
        Ok(guide)
    }

    fn bytes(&self) -> u64 {
        let page = size_of::<u128>() + size_of::<Box<Page>>() + size_of::<Page>();
        (size_of::<KeyGuide>() + self.pages.len() * page) as u64
    }

    /// Adds the entry that follows. False: it has no room, or too many before it have its number.
    fn push(&mut self, low: &IndexKey, place: &LeafSlot) -> bool {
        let number = self.reading.number(low.bytes(&mut no_space()));
        self.alike = if number == self.last { self.alike + 1 } else { 1 };
        let (page_at, group_at, at) = (self.entries / PAGE, self.entries % PAGE / GROUP, self.entries % GROUP);
        let Some(page) = self.pages.get_mut(page_at).filter(|_| self.alike <= MOST_ALIKE) else { return false };
        let (Some(group), Some(first)) = (page.groups.get_mut(group_at), page.firsts.get_mut(group_at)) else {
            return false;
        };
        if at == 0 {
            *first = number;
        }
        if self.entries.is_multiple_of(PAGE) {
            self.firsts.push(number);
        }
        if let (Some(to), Some(named)) = (group.numbers.get_mut(at), group.places.get_mut(at)) {
            (*to, *named.get_mut()) = (number, ptr::from_ref(place).cast_mut());
        }
        (self.last, self.entries) = (number, self.entries + 1);
        true
    }

    /// The page with the last entry whose number is not above this one. `None`: all are above.
    #[inline]
    fn page(&self, number: u128) -> Option<&Page> {
        let page = self.pages.get(self.firsts.partition_point(|first| *first <= number).checked_sub(1)?)?;
        fetch(&page.firsts);
        Some(page)
    }

    /// Takes an entry out that is about to leave the directory. The latch is held.
    fn forget(&self, low: &IndexKey, place: &LeafSlot) {
        let number = self.reading.number(low.bytes(&mut no_space()));
        let entry = |at: usize| {
            let group = self.pages.get(at / PAGE)?.groups.get(at % PAGE / GROUP)?;
            group.numbers.get(at % GROUP).zip(group.places.get(at % GROUP))
        };
        // The entries of one number follow one another, few as they are.
        let (mut from, mut to) = (0, self.entries);
        while from < to {
            let middle = (from + to) / 2;
            match entry(middle) {
                Some((found, _)) if *found < number => from = middle + 1,
                _ => to = middle,
            }
        }
        for (found, named) in (from..self.entries).map_while(entry).take(MOST_ALIKE) {
            if *found == number && named.load(Ordering::Relaxed).cast_const() == ptr::from_ref(place) {
                // Release: who looks for the entry in the directory instead does not find it half gone.
                return named.store(ptr::null_mut(), Ordering::Release);
            }
        }
    }
}

impl Page {
    /// The same of its groups.
    #[inline]
    fn group(&self, number: u128) -> Option<&Group> {
        let group = self.groups.get(self.firsts.partition_point(|first| *first <= number).checked_sub(1)?)?;
        fetch(group);
        Some(group)
    }
}

impl Group {
    /// The place of the last entry whose number is not above this one.
    ///
    /// # Safety
    /// For `'l` the caller is pinned, and found the guide since.
    #[inline]
    unsafe fn place<'l>(&self, number: u128) -> Option<&'l LeafSlot> {
        let at = self.numbers.partition_point(|found| *found <= number).checked_sub(1)?;
        // SAFETY: it was taken out before its entry left the directory, and what is removed there waits for those who are pinned.
        unsafe { self.places.get(at)?.load(Ordering::Acquire).as_ref() }
    }
}

/// Begins to fetch all of it.
#[inline]
fn fetch<T>(what: &T) {
    let start = ptr::from_ref(what).cast::<u8>();
    (0..size_of::<T>() / LINE).for_each(|line| prefetch(start.wrapping_add(line * LINE)));
}

/// The guides of an index.
#[derive(Default)]
pub(super) struct KeyGuides {
    used: AtomicPtr<KeyGuide>,
    /// One that is not complete yet; whoever looks at it holds the latch.
    making: AtomicPtr<KeyGuide>,
    /// How many have been begun: its maker knows by that whether it is its own still. Changed under the latch.
    begun: AtomicUsize,
    /// Entries that have come or gone since the one in use was begun. Changed under the latch.
    changes: AtomicUsize,
    /// There was no other to be had: it is tried again when there are so many entries. Changed under the latch.
    again: AtomicUsize,
}

/// Where a guide says that a key is.
#[derive(Clone, Copy)]
pub(super) struct Near<'g> {
    page: &'g Page,
    number: u128,
}

impl<'g> Near<'g> {
    /// # Safety
    /// The caller has been pinned since it asked the guides.
    #[inline]
    pub(super) unsafe fn place(self) -> Option<&'g LeafSlot> {
        // SAFETY: the caller's promise.
        unsafe { self.page.group(self.number)?.place(self.number) }
    }
}

impl KeyGuides {
    /// Begins to look for a key's leaf.
    ///
    /// # Safety
    /// For `'g` the caller is pinned.
    #[inline]
    pub(super) unsafe fn near<'g>(&self, key: &[u8]) -> Option<Near<'g>> {
        // SAFETY: a guide is retired when it has been taken out of its place, and the caller is pinned.
        let guide = unsafe { self.used.load(Ordering::Acquire).as_ref() }?;
        let number = guide.reading.number(key);
        guide.page(number).map(|page| Near { page, number })
    }

    /// An entry has come into the directory. The latch is held.
    pub(super) fn count_new(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// An entry is about to leave the directory. The latch is held.
    pub(super) fn forget(&self, low: &IndexKey, place: &LeafSlot) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        for guide in [&self.used, &self.making] {
            // SAFETY: only a holder of the latch takes it out or adds to it, and that are we.
            if let Some(guide) = unsafe { guide.load(Ordering::Relaxed).as_ref() } {
                guide.forget(low, place);
            }
        }
    }

    /// There is room again. The latch is held.
    pub(super) fn try_again(&self) {
        self.again.store(0, Ordering::Relaxed);
    }

    /// Is there something to do, for a directory of so many entries, of which a part like this may have changed? The latch is held.
    fn wanting(&self, entries: usize, part: usize) -> bool {
        if !self.making.load(Ordering::Relaxed).is_null() {
            return false;
        }
        match self.used.load(Ordering::Relaxed).is_null() {
            true => entries >= FEWEST.max(self.again.load(Ordering::Relaxed)),
            false if entries < TOO_FEW => true,
            false => {
                self.changes.load(Ordering::Relaxed) > entries / part && entries >= self.again.load(Ordering::Relaxed)
            }
        }
    }
}

impl Drop for KeyGuides {
    fn drop(&mut self) {
        for guide in [*self.used.get_mut(), *self.making.get_mut()] {
            if !guide.is_null() {
                // SAFETY: from `Box::into_raw`, and nobody else knows it any more.
                drop(unsafe { Box::from_raw(guide) });
            }
        }
    }
}

impl<L: RawLatch> KeyIndex<L> {
    /// Is another guide wanted? The latch is held.
    pub(super) fn wants_guide(&self) -> bool {
        self.guides.wanting(self.directory.len(), CHANGED)
    }

    /// Makes another guide, if that is wanted; `at_rest`: no more keys are about to come.
    pub(super) fn keep_guide(&self, at_rest: bool, budget: &Budget) {
        let part = if at_rest { CHANGED_AT_REST } else { CHANGED };
        let wanting = || self.guides.wanting(self.directory.len(), part);
        let reading = {
            let _held = self.latch.write();
            if !wanting() {
                return;
            }
            self.learn_reading()
        };
        let entries = self.directory.len();
        let made = reading.and_then(|reading| KeyGuide::new(entries + entries / CHANGED, reading).ok());
        let begun = {
            let _held = self.latch.write();
            if !wanting() {
                return;
            }
            let room = self.room_beside_keys(budget, SHARE);
            match made.filter(|made| entries >= TOO_FEW && made.bytes() <= room) {
                Some(made) => self.begin_guide(made, budget),
                None => return self.do_without(entries, budget),
            }
        };
        self.fill_guide(begun, budget);
    }

    /// From low keys here and there; `None` without entries. The latch is held.
    fn learn_reading(&self) -> Option<Reading> {
        let _scope = Scope::enter();
        let pin = epoch::pin();
        let (lowest, highest) = (self.directory.front(&pin)?, self.directory.back(&pin)?);
        let mut spaces = [no_space(), no_space(), no_space()];
        let [low, high, space] = &mut spaces;
        let (low, high) = (lowest.key().bytes(low), highest.key().bytes(high));
        let mut reading = Reading::of(low, high);
        for part in 0..SAMPLES {
            let (from, len) = reading.between(low, high, part, SAMPLES);
            let from = Probe::new(from.get(..len).unwrap_or_default());
            let mut entry = self.directory.lower_bound(Bound::Included(&*from), &pin);
            for _ in 0..SAMPLED_IN_A_ROW {
                let Some(found) = entry else { break };
                reading.learn(found.key().bytes(space));
                entry = found.next();
            }
        }
        Some(reading)
    }

    /// Which one it is of those that have been begun. The latch is held.
    fn begin_guide(&self, made: Box<KeyGuide>, budget: &Budget) -> usize {
        self.account(budget, made.bytes(), 0);
        self.guides.changes.store(0, Ordering::Relaxed);
        self.guides.again.store(0, Ordering::Relaxed);
        self.guides.making.store(Box::into_raw(made), Ordering::Relaxed);
        self.guides.begun.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Fills the guide that was begun, a page in one hold of the latch, and puts it to use.
    fn fill_guide(&self, begun: usize, budget: &Budget) {
        // Private memory, taken before the scope is entered.
        let (mut last, mut from_start) = (Vec::with_capacity(MAX_KEY), true);
        loop {
            let _held = self.latch.write();
            if self.guides.begun.load(Ordering::Relaxed) != begun {
                return;
            }
            // SAFETY: from `Box::into_raw`; whoever else looks at it holds the latch.
            let Some(guide) = (unsafe { self.guides.making.load(Ordering::Relaxed).as_mut() }) else { return };
            let filled = self.fill_page(guide, from_start, &mut last);
            from_start = false;
            match filled {
                Filled::Page => {}
                Filled::All if epoch::NEEDS.reserve_emergency().is_ok() => {
                    let made = self.guides.making.swap(ptr::null_mut(), Ordering::Relaxed);
                    return self.replace_guide(made, budget);
                }
                Filled::All | Filled::InVain => return self.give_up_guide(budget),
            }
        }
    }

    /// Adds the entries that follow the last one. The latch is held.
    fn fill_page(&self, guide: &mut KeyGuide, from_start: bool, last: &mut Vec<u8>) -> Filled {
        let _scope = Scope::enter();
        let pin = epoch::pin();
        let mut entry = match from_start {
            true => self.directory.front(&pin),
            false => self.directory.lower_bound(Bound::Excluded(&*Probe::new(last)), &pin),
        };
        for at in (0..PAGE).rev() {
            let Some(found) = entry else { return Filled::All };
            if !guide.push(found.key(), found.value()) {
                return Filled::InVain;
            }
            if at == 0 {
                last.clear();
                debug_assert!(found.key().len() <= last.capacity());
                last.extend_from_slice(found.key().bytes(&mut no_space()));
            }
            entry = found.next();
        }
        Filled::Page
    }

    /// There is no room for another guide: one that knows most of the entries serves on. The latch is held.
    fn do_without(&self, entries: usize, budget: &Budget) {
        let serves = !self.guides.used.load(Ordering::Relaxed).is_null() && entries >= TOO_FEW;
        if serves && self.guides.changes.load(Ordering::Relaxed) <= entries / 2 {
            return self.guides.again.store(entries + entries / CHANGED, Ordering::Relaxed);
        }
        self.give_up_guide(budget);
    }

    /// Until there are half as many entries more: there is no room, or a guide is of no use. The latch is held.
    pub(super) fn give_up_guide(&self, budget: &Budget) {
        let making = self.guides.making.swap(ptr::null_mut(), Ordering::Relaxed);
        if !making.is_null() {
            // SAFETY: from `Box::into_raw`, and only holders of the latch have known it.
            let making = unsafe { Box::from_raw(making) };
            self.account(budget, 0, making.bytes());
        }
        // Unless memory to retire it is missing.
        if epoch::NEEDS.reserve_emergency().is_ok() {
            self.replace_guide(ptr::null_mut(), budget);
        }
        let entries = self.directory.len();
        self.guides.again.store(entries + entries / 2, Ordering::Relaxed);
    }

    /// Puts a guide, or none, in the place of the one in use; what it takes to retire that has been reserved. The latch is held.
    fn replace_guide(&self, new: *mut KeyGuide, budget: &Budget) {
        let gone = self.guides.used.swap(new, Ordering::AcqRel);
        // SAFETY: only a holder of the latch takes it out, and that are we.
        if let Some(bytes) = unsafe { gone.as_ref() }.map(KeyGuide::bytes) {
            self.account(budget, 0, bytes);
            // SAFETY: who is not pinned already finds another one.
            unsafe { epoch::pin().retire(gone) };
        }
    }

    /// Bytes of the guides.
    #[cfg(test)]
    pub(crate) fn guide_bytes(&self) -> u64 {
        let _held = self.latch.write();
        let guides = [&self.guides.used, &self.guides.making];
        // SAFETY: the latch is held.
        guides.iter().filter_map(|at| unsafe { at.load(Ordering::Acquire).as_ref() }).map(KeyGuide::bytes).sum()
    }
}

/// How far a guide came.
enum Filled {
    Page,
    All,
    InVain,
}
