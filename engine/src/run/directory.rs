//! The row directory: from a row id to the data page that holds the row version.
//!
//! ```text
//! contents:
//!   0         2       3           4          5          8         16      24     32           36         40
//!   | entries | level | residual  | payload  | reserved | base id | slope | bias | base page  | reserved | residuals | payloads |
//!   |         |       | bits      | bits     |          |         |       |      |            |          | (packed)  | (packed)  |
//! ```
//!
//! Sorted by row id. The id of entry `i` is `base + (i * slope >> 20) + bias + residual[i]`: a straight line through the page's
//! ids, and how far each of them is off it. Row ids are given out in order, so they are not far off: the ids of a fresh run take next to no
//! bits. The payload of a leaf entry (level 0) is its data page, less `base page`. The pages above have one entry for each page
//! below (its first id) and no payloads: the children are neighbours, the first of them is `base page` of the section.
//! The root stands last. A row's slot is not stored: a page is searched for the row id when it has been read.

use super::aside::{Entry, Sorter};
use super::bytes::{bits_of, packed_at, u16_at, u32_at, u64_at, BitWriter};
use super::PageSink;
use crate::error::{Error, Result};
use crate::page::{CAPACITY, CONTENT};
use crate::types::{PageNo, RowId};
use std::ops::RangeInclusive;

const HEADER: usize = 40;
const SLOPE_BITS: u32 = 20;
/// Narrow entries have their page in the lower bits of a word, their row id in the upper 40.
const PAGE_BITS: u32 = 24;

/// Collects row id and data page of every row of a run: eight bytes a row (sixteen in a run of over 2^24 data pages).
pub enum Builder {
    Narrow(Sorter<Narrow>),
    Wide(Sorter<Wide>),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Narrow(u64);

/// The row id above 32 bits of page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wide(u128);

impl Narrow {
    fn widen(self) -> Wide {
        Wide::of(self.0 >> PAGE_BITS, self.0 as u32 & ((1 << PAGE_BITS) - 1))
    }
}

impl Wide {
    fn of(row: u64, page: u32) -> Wide {
        Wide(u128::from(row) << 32 | u128::from(page))
    }
}

impl Entry for Narrow {
    type Bytes = [u8; 8];

    fn bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    fn rank(self) -> u64 {
        self.0 >> PAGE_BITS
    }

    fn read(bytes: &[u8]) -> u128 {
        Narrow(bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))).widen().0
    }
}

impl Entry for Wide {
    type Bytes = [u8; 16];

    fn bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    fn rank(self) -> u64 {
        (self.0 >> 32) as u64
    }

    fn read(bytes: &[u8]) -> u128 {
        bytes.first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes))
    }
}

impl Builder {
    /// `memory`: how many bytes the entries may take before they go to a side file.
    pub fn new(memory: usize) -> Builder {
        Builder::Narrow(Sorter::new(memory))
    }

    pub fn add(&mut self, row: RowId, page: u32, sink: &impl PageSink) -> Result<()> {
        debug_assert!(row <= RowId::MAX);
        if let Builder::Narrow(entries) = self {
            if page >> PAGE_BITS == 0 {
                return entries.add(Narrow(row.0 << PAGE_BITS | u64::from(page)), sink);
            }
            let narrow = std::mem::replace(entries, Sorter::new(0));
            *self = Builder::Wide(narrow.change(Narrow::widen, sink)?);
        }
        match self {
            Builder::Wide(entries) => entries.add(Wide::of(row.0, page), sink),
            Builder::Narrow(_) => Ok(()),
        }
    }

    /// Makes the pages, bottom-up, the root last.
    pub fn finish(self, mut put: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut firsts = Vec::new();
        match self {
            Builder::Narrow(entries) => leaves(entries, &mut firsts, &mut put)?,
            Builder::Wide(entries) => leaves(entries, &mut firsts, &mut put)?,
        }
        let (mut level, mut children_start, mut written) = (1, 0, firsts.len() as u32);
        while firsts.len() > 1 {
            let below = std::mem::take(&mut firsts);
            let entries = below.iter().zip(children_start..).map(|(first, child)| (*first, child));
            let entries: Vec<(u64, u32)> = entries.collect();
            let mut pages = Packing { level, guess: FIRST_GUESS, firsts: &mut firsts };
            pages.pack(&entries, true, &mut put)?;
            children_start = written;
            written += firsts.len() as u32;
            level += 1;
        }
        Ok(())
    }
}

/// Entries that are looked at together: more than twice as many as a page takes.
const TOGETHER: usize = 2 * (u16::MAX as usize + 1);

fn leaves<E: Entry>(
    entries: Sorter<E>,
    firsts: &mut Vec<u64>,
    put: &mut impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut left = usize::try_from(entries.len()).unwrap_or(usize::MAX);
    let mut entries = entries.finish()?;
    let mut together: Vec<(u64, u32)> = Vec::with_capacity(left.min(TOGETHER));
    let mut pages = Packing { level: 0, guess: FIRST_GUESS, firsts };
    while left > 0 || !together.is_empty() {
        while together.len() < TOGETHER && left > 0 {
            let entry = entries.next()?.ok_or_else(|| Error::structure("entries of a row directory are missing"))?;
            together.push(((entry >> 32) as u64, entry as u32));
            left -= 1;
        }
        let packed = pages.pack(&together, left == 0, put)?;
        together.drain(..packed);
    }
    Ok(())
}

/// How the entries of one page are to be packed.
struct Plan {
    base: u64,
    slope: u64,
    bias: i64,
    residual_bits: u32,
    payload_bits: u32,
    base_page: u32,
}

impl Plan {
    fn of(entry: &impl Fn(usize) -> (u64, u32), from: usize, until: usize, level: u8) -> Plan {
        let (base, base_page) = entry(from);
        let last = entry(until - 1).0;
        let steps = (until - from - 1).max(1) as u64;
        let slope = ((u128::from(last - base) << SLOPE_BITS) / u128::from(steps)) as u64;
        let (mut least, mut most) = (i64::MAX, i64::MIN);
        let (mut least_page, mut most_page) = (base_page, base_page);
        for i in from..until {
            let (id, page) = entry(i);
            let off = (id - base) as i64 - line(slope, i - from) as i64;
            (least, most) = (least.min(off), most.max(off));
            (least_page, most_page) = (least_page.min(page), most_page.max(page));
        }
        let payload_bits = if level == 0 { bits_of(u64::from(most_page - least_page)) } else { 0 };
        Plan {
            base,
            slope,
            bias: least,
            residual_bits: bits_of((most - least) as u64),
            payload_bits,
            base_page: least_page,
        }
    }

    /// How many entries of these widths a page takes.
    fn room(&self) -> usize {
        let entry = (self.residual_bits + self.payload_bits).max(1) as usize;
        // Each of the two arrays is filled up to a byte.
        ((CAPACITY - HEADER - 2) * 8 / entry).min(usize::from(u16::MAX))
    }

    fn encode(&self, entry: &impl Fn(usize) -> (u64, u32), from: usize, until: usize, level: u8, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&((until - from) as u16).to_le_bytes());
        out.extend_from_slice(&[level, self.residual_bits as u8, self.payload_bits as u8, 0, 0, 0]);
        out.extend_from_slice(&self.base.to_le_bytes());
        out.extend_from_slice(&self.slope.to_le_bytes());
        out.extend_from_slice(&self.bias.to_le_bytes());
        out.extend_from_slice(&self.base_page.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let mut residuals = BitWriter::new(out);
        for i in from..until {
            let off = (entry(i).0 - self.base) as i64 - line(self.slope, i - from) as i64;
            residuals.put((off - self.bias) as u64, self.residual_bits);
        }
        residuals.finish();
        if self.payload_bits > 0 {
            let mut payloads = BitWriter::new(out);
            (from..until).for_each(|i| payloads.put(u64::from(entry(i).1 - self.base_page), self.payload_bits));
            payloads.finish();
        }
        debug_assert!(out.len() <= CAPACITY);
    }
}

#[inline]
fn line(slope: u64, i: usize) -> u64 {
    ((u128::from(slope) * i as u128) >> SLOPE_BITS) as u64
}

/// Entries of a page before it is known how well they pack.
const FIRST_GUESS: usize = 2000;

/// Packs entries of one level into pages, as many into each as go in; notes the first id of each page.
struct Packing<'a> {
    level: u8,
    /// How many entries the next page will take, about.
    guess: usize,
    firsts: &'a mut Vec<u64>,
}

impl Packing<'_> {
    /// Makes pages of the entries from the first on; how many it took. Unless these are the level's `last`, as many are left over
    /// as a page could take.
    fn pack(&mut self, entries: &[(u64, u32)], last: bool, put: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<usize> {
        const GROWTHS: usize = 3;
        let (count, level) = (entries.len(), self.level);
        let entry = |i: usize| entries.get(i).copied().unwrap_or((0, 0));
        let enough = if last { 1 } else { usize::from(u16::MAX) };
        let mut contents = Vec::with_capacity(CAPACITY);
        let mut from = 0;
        while count - from >= enough {
            let mut taken = count.min(from + self.guess);
            let mut plan = Plan::of(&entry, from, taken, level);
            while plan.room() < taken - from {
                taken = from + plan.room().min((taken - from) * 9 / 10).max(1);
                plan = Plan::of(&entry, from, taken, level);
            }
            for _ in 0..GROWTHS {
                let more = count.min(from + plan.room());
                if more - taken <= (taken - from) / 50 {
                    break;
                }
                let wider = Plan::of(&entry, from, more, level);
                if wider.room() < more - from {
                    break;
                }
                (taken, plan) = (more, wider);
            }
            plan.encode(&entry, from, taken, level, &mut contents);
            put(&contents)?;
            self.firsts.push(plan.base);
            self.guess = taken - from;
            from = taken;
        }
        Ok(from)
    }
}

/// A directory page, understood and checked against the length of its contents.
pub struct Directory<'a> {
    page: PageNo,
    entries: usize,
    pub level: u8,
    base: u64,
    slope: u64,
    bias: i64,
    base_page: u32,
    residual_bits: u32,
    payload_bits: u32,
    residuals: &'a [u8],
    payloads: &'a [u8],
}

impl<'a> Directory<'a> {
    pub fn parse(page: PageNo, contents: &'a [u8]) -> Result<Directory<'a>> {
        Directory::try_parse(page, contents)
            .ok_or_else(|| Error::page(page, CONTENT, "malformed head of a directory page"))
    }

    fn try_parse(page: PageNo, contents: &'a [u8]) -> Option<Directory<'a>> {
        let (head, packed) = contents.split_at_checked(HEADER)?;
        let entries = usize::from(u16_at(head, 0)?);
        let (residual_bits, payload_bits) = (u32::from(*head.get(3)?), u32::from(*head.get(4)?));
        if entries == 0 || residual_bits > 64 || payload_bits > 32 {
            return None;
        }
        let (residuals, payloads) = packed.split_at_checked((entries * residual_bits as usize).div_ceil(8))?;
        if payloads.len() != (entries * payload_bits as usize).div_ceil(8) {
            return None;
        }
        Some(Directory {
            page,
            entries,
            level: *head.get(2)?,
            base: u64_at(head, 8)?,
            slope: u64_at(head, 16)?,
            bias: u64_at(head, 24)? as i64,
            base_page: u32_at(head, 32)?,
            residual_bits,
            payload_bits,
            residuals,
            payloads,
        })
    }

    /// Entries on the page.
    pub fn rows(&self) -> usize {
        self.entries
    }

    /// The row id of entry `i`.
    pub fn row(&self, i: usize) -> Result<RowId> {
        self.id(i).map(RowId).ok_or_else(|| Error::page(self.page, CONTENT, "malformed directory page"))
    }

    fn id(&self, i: usize) -> Option<u64> {
        let residual = packed_at(self.residuals, i * self.residual_bits as usize, self.residual_bits)?;
        let off = self.bias.wrapping_add(residual as i64) as u64;
        Some(self.base.wrapping_add(line(self.slope, i)).wrapping_add(off))
    }

    /// The last entry not above `row`: its child, or data page. On a leaf the row id must be that of the entry.
    pub fn search(&self, row: RowId) -> Result<Option<u32>> {
        self.try_search(row).ok_or_else(|| Error::page(self.page, CONTENT, "malformed directory page"))
    }

    /// Between which entries the first one above `row` is: the straight line tells, but for how far entries may be off it.
    #[inline]
    fn around(&self, row: RowId) -> (usize, usize) {
        let most_off = u64::MAX.checked_shr(u64::BITS - self.residual_bits).unwrap_or(0);
        let off = row.0.wrapping_sub(self.base).wrapping_sub(self.bias as u64) as i64;
        // The first entry where the line is above this.
        let first_above = |id: i64| {
            let Ok(next) = u64::try_from(id.saturating_add(1)) else { return 0 };
            match next.leading_zeros() > SLOPE_BITS && self.slope > 0 {
                true => (next << SLOPE_BITS).div_ceil(self.slope).min(self.entries as u64) as usize,
                false => self.entries,
            }
        };
        let low = i64::try_from(most_off).map_or(0, |most_off| first_above(off.saturating_sub(most_off)));
        (low, first_above(off).max(low))
    }

    /// The row ids on a leaf: of a row id from the first of them to the last no other page knows anything.
    pub fn span(&self) -> Result<RangeInclusive<RowId>> {
        Ok(self.row(0)?..=self.row(self.entries.saturating_sub(1))?)
    }

    fn try_search(&self, row: RowId) -> Option<Option<u32>> {
        let (mut low, mut high) = self.around(row);
        while low < high {
            let middle = (low + high) / 2;
            if self.id(middle)? <= row.0 {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let Some(found) = low.checked_sub(1) else { return Some(None) };
        if self.level > 0 {
            return Some(Some(self.base_page.wrapping_add(found as u32)));
        }
        if self.id(found)? != row.0 {
            return Some(None);
        }
        let payload = packed_at(self.payloads, found * self.payload_bits as usize, self.payload_bits)?;
        Some(Some(self.base_page.wrapping_add(payload as u32)))
    }
}

/// For fuzzing: searches arbitrary contents.
pub fn fuzz_directory(contents: &[u8]) {
    if let Ok(directory) = Directory::parse(PageNo(0), contents) {
        for row in [0, 1, 1000, u64::MAX] {
            let _ = directory.search(RowId(row));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::Pages;

    fn build(entries: &[(u64, u32)]) -> Vec<Vec<u8>> {
        let pages = build_within(usize::MAX, entries);
        assert!(pages == build_within(entries.len(), entries), "with little memory");
        pages
    }

    fn build_within(memory: usize, entries: &[(u64, u32)]) -> Vec<Vec<u8>> {
        let mut builder = Builder::new(memory);
        entries.iter().for_each(|(row, page)| builder.add(RowId(*row), *page, &Pages::default()).unwrap());
        let mut pages = Vec::new();
        builder
            .finish(|contents| {
                pages.push(contents.to_vec());
                Ok(())
            })
            .unwrap();
        pages
    }

    fn find(pages: &[Vec<u8>], row: u64) -> Option<u32> {
        let mut at = pages.len() - 1;
        loop {
            let page = Directory::parse(PageNo(at as u32), &pages[at]).unwrap();
            match page.search(RowId(row)).unwrap() {
                Some(child) if page.level > 0 => at = child as usize,
                found => return found,
            }
        }
    }

    fn check(entries: &[(u64, u32)], most_bytes: f64) {
        let pages = build(entries);
        let bytes = pages.len() as f64 * 8192.0 / entries.len() as f64;
        assert!(bytes <= most_bytes || pages.len() == 1, "{bytes} bytes an entry");
        let step = entries.len() / 5000 + 1;
        for (row, page) in entries.iter().step_by(step) {
            assert_eq!(find(&pages, *row), Some(*page));
        }
        let known: std::collections::HashSet<u64> = entries.iter().map(|e| e.0).collect();
        for row in entries.iter().step_by(step).flat_map(|e| [e.0 + 1, e.0.saturating_sub(1), 0, RowId::MAX.0]) {
            if !known.contains(&row) {
                assert_eq!(find(&pages, row), None);
            }
        }
    }

    #[test]
    fn finds_rows_of_every_density() {
        let mix = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        check(&[(5, 0)], 8192.0);
        check(&[(0, 3), (RowId::MAX.0, 1)], 8192.0);
        check(&(0..100_000).map(|i| (i, (mix(i) >> 52) as u32)).collect::<Vec<_>>(), 1.7);
        check(&(0..100_000).map(|i| (i * 10 + mix(i) % 10, (mix(i) >> 52) as u32)).collect::<Vec<_>>(), 2.5);
        check(&(0..300_000).map(|i| (i * 1000 + mix(i) % 1000, (mix(i) >> 40) as u32)).collect::<Vec<_>>(), 5.0);
        let clumped: Vec<_> = (0..100_000u64).map(|i| (i + (i / 777) * 1_000_000, i as u32)).collect();
        check(&clumped, 8.0);
        let wide: Vec<_> = (0..50_000u64).map(|i| (i * 20_000_000, i as u32 * 1000)).collect();
        check(&wide, 8.0);
    }

    #[test]
    fn three_levels() {
        let mut id = 0u64;
        let mut state = 9u64;
        let entries: Vec<(u64, u32)> = (0..1_500_000)
            .map(|i| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                id += 1 + (state >> (44 + i / 300_000 * 4));
                (id, (state >> 8) as u32)
            })
            .collect();
        assert!(id < RowId::MAX.0);
        check(&entries, 9.0);
    }
}
