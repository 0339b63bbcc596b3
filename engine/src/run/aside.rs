//! What a writer keeps aside while a run's data pages go out: in memory, and when that becomes too much in side files.
//!
//! ```text
//! add -> entries in memory -> (full) sorted -> side file: | chunk | chunk | chunk |
//!                                                             \       |       /
//! finish:                                                       merge, in order
//! ```

use super::PageSink;
use crate::error::{Error, Result};
use crate::host::SideFile;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bytes written to a side file at once.
const WRITTEN_AT_ONCE: usize = 64 << 10;
/// Bytes of a chunk read at once: as many as the memory allows, within these bounds.
const READ_AT_ONCE: std::ops::RangeInclusive<usize> = 4 << 10..=256 << 10;
/// Entries are never fewer in memory.
const LEAST_ENTRIES: usize = 16;

/// Something to be sorted.
pub trait Entry: Ord + Copy {
    type Bytes: AsRef<[u8]>;
    const SIZE: usize = size_of::<Self::Bytes>();
    fn bytes(self) -> Self::Bytes;
    /// Does not fall from an entry to a greater one.
    fn rank(self) -> u64;
    /// What the entry says, from its bytes, in a form that has the same order and is common to kinds of entries that may follow
    /// on each other.
    fn read(bytes: &[u8]) -> u128;
}

/// Sorts more than is to be in memory.
pub struct Sorter<E> {
    entries: Vec<E>,
    /// How many may be in memory.
    most: usize,
    chunks: Chunks,
}

#[derive(Default)]
struct Chunks {
    file: Option<Box<dyn SideFile>>,
    end: u64,
    list: Vec<Chunk>,
    entries: u64,
}

/// Sorted entries in the side file.
struct Chunk {
    at: u64,
    until: u64,
    size: usize,
    read: fn(&[u8]) -> u128,
}

impl<E: Entry> Sorter<E> {
    /// `memory`: how many bytes may be taken before a side file is.
    pub fn new(memory: usize) -> Sorter<E> {
        Sorter { entries: Vec::new(), most: (memory / size_of::<E>()).max(LEAST_ENTRIES), chunks: Chunks::default() }
    }

    pub fn len(&self) -> u64 {
        self.chunks.entries + self.entries.len() as u64
    }

    #[inline]
    pub fn add(&mut self, entry: E, sink: &impl PageSink) -> Result<()> {
        if self.entries.len() == self.entries.capacity() {
            self.grow(sink)?;
        }
        self.entries.push(entry);
        Ok(())
    }

    #[cold]
    fn grow(&mut self, sink: &impl PageSink) -> Result<()> {
        if self.entries.len() >= self.most {
            return self.put_aside(sink);
        }
        let more = self.entries.len().max(1024).min(self.most - self.entries.len());
        self.entries.reserve_exact(more);
        Ok(())
    }

    fn put_aside(&mut self, sink: &impl PageSink) -> Result<()> {
        sort(&mut self.entries);
        let file = match self.chunks.file.take() {
            Some(file) => file,
            None => sink.side_file()?,
        };
        self.chunks.add(file, &self.entries)?;
        self.entries.clear();
        Ok(())
    }

    /// From now on entries are of another kind.
    pub fn change<W: Entry>(mut self, change: impl Fn(E) -> W, sink: &impl PageSink) -> Result<Sorter<W>> {
        let mut next = Sorter {
            entries: Vec::new(),
            most: (self.most * size_of::<E>() / size_of::<W>()).max(LEAST_ENTRIES),
            chunks: Chunks::default(),
        };
        if self.entries.len() > next.most {
            self.put_aside(sink)?;
        }
        next.entries = self.entries.into_iter().map(change).collect();
        next.chunks = self.chunks;
        Ok(next)
    }

    /// All of them, by group and in no order within one, if none have been put aside. Otherwise as they are.
    pub fn by_group(&mut self, groups: usize, group_of: impl Fn(E) -> usize) -> Option<Groups<'_, E>> {
        match self.chunks.file {
            Some(_) => None,
            None => Some(regroup(&mut self.entries, groups, group_of)),
        }
    }

    /// All of them, in order.
    pub fn finish(mut self) -> Result<Sorted<E>> {
        sort(&mut self.entries);
        let Some(file) = self.chunks.file.take() else {
            return Ok(Sorted::InMemory(self.entries.into_iter()));
        };
        self.chunks.add(file, &self.entries)?;
        let memory = self.most.saturating_mul(size_of::<E>());
        drop(self.entries);
        Merging::of(self.chunks, memory).map(Sorted::Aside)
    }
}

/// Entries that stand together by group.
pub struct Groups<'a, E> {
    entries: &'a mut [E],
    ends: Vec<usize>,
}

impl<E> Groups<'_, E> {
    pub fn get(&mut self, group: usize) -> &mut [E] {
        let from = group.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let until = self.ends.get(group).copied().unwrap_or(from);
        self.entries.get_mut(from..until).unwrap_or_default()
    }
}

/// Puts entries together by group, where they are: each is swapped with the one that stands where it belongs.
#[allow(
    clippy::indexing_slicing,
    reason = "each group has as many places as entries; others would be a mistake of the caller's"
)]
fn regroup<E: Copy>(entries: &mut [E], groups: usize, group_of: impl Fn(E) -> usize) -> Groups<'_, E> {
    let mut ends = vec![0; groups];
    entries.iter().for_each(|entry| ends[group_of(*entry)] += 1);
    let mut end = 0;
    let mut next: Vec<usize> = Vec::with_capacity(groups);
    for group in &mut ends {
        next.push(end);
        end += *group;
        *group = end;
    }
    for group in 0..groups {
        while next[group] < ends[group] {
            let mut entry = entries[next[group]];
            loop {
                let to = group_of(entry);
                let place = next[to];
                next[to] += 1;
                std::mem::swap(&mut entries[place], &mut entry);
                if to == group {
                    break;
                }
            }
        }
    }
    Groups { entries, ends }
}

/// Entries are put in order in groups of about so many.
const TOGETHER: usize = 512;

/// Puts entries in order. What they are like mostly is known: hashes, evenly spread; or the row ids of a few flushes, which
/// are numbers without a gap where no row was left out. So they are divided among groups by where they are between the least and
/// the greatest, and in a group without a gap each goes straight to its place.
fn sort<E: Entry>(entries: &mut [E]) {
    let (least, most) = bounds(entries);
    let bits = (most.saturating_sub(least)).checked_ilog2().map_or(0, |bit| bit + 1);
    let groups = (entries.len() / TOGETHER).checked_ilog2().unwrap_or(0);
    let shift = bits.saturating_sub(groups);
    let group_of = |entry: E| ((entry.rank() - least) >> shift) as usize;
    if groups == 0 {
        return entries.sort_unstable();
    }
    let count = ((most - least) >> shift) as usize + 1;
    let mut parts = regroup(entries, count, group_of);
    let mut placed = Vec::new();
    (0..count).for_each(|group| sort_group(parts.get(group), &mut placed));
}

fn bounds<E: Entry>(entries: &[E]) -> (u64, u64) {
    let ranks = entries.iter().map(|entry| entry.rank());
    ranks.fold((u64::MAX, 0), |(least, most), rank| (least.min(rank), most.max(rank)))
}

fn sort_group<E: Entry>(entries: &mut [E], placed: &mut Vec<E>) {
    let (least, most) = bounds(entries);
    if most.wrapping_sub(least) != (entries.len() as u64).wrapping_sub(1) {
        return entries.sort_unstable();
    }
    placed.clear();
    placed.extend_from_slice(entries);
    for entry in &*entries {
        if let Some(place) = placed.get_mut((entry.rank() - least) as usize) {
            *place = *entry;
        }
    }
    // If a rank came twice, another is missing.
    match (least..).zip(&*placed).all(|(rank, entry)| entry.rank() == rank) {
        true => entries.copy_from_slice(placed),
        false => entries.sort_unstable(),
    }
}

impl Chunks {
    fn add<E: Entry>(&mut self, mut file: Box<dyn SideFile>, sorted: &[E]) -> Result<()> {
        let at = self.end;
        let mut buffer = Vec::with_capacity(WRITTEN_AT_ONCE);
        for part in sorted.chunks(WRITTEN_AT_ONCE / E::SIZE) {
            buffer.clear();
            part.iter().for_each(|entry| buffer.extend_from_slice(entry.bytes().as_ref()));
            file.append(&buffer)?;
            self.end += buffer.len() as u64;
        }
        self.file = Some(file);
        self.entries += sorted.len() as u64;
        self.list.push(Chunk { at, until: self.end, size: E::SIZE, read: E::read });
        Ok(())
    }
}

/// Entries in order, in their common form.
pub enum Sorted<E> {
    InMemory(std::vec::IntoIter<E>),
    Aside(Merging),
}

impl<E: Entry> Sorted<E> {
    #[inline]
    pub fn next(&mut self) -> Result<Option<u128>> {
        match self {
            Sorted::InMemory(entries) => Ok(entries.next().map(|entry| E::read(entry.bytes().as_ref()))),
            Sorted::Aside(merging) => merging.next(),
        }
    }
}

/// The chunks of a side file, merged.
pub struct Merging {
    file: Option<Box<dyn SideFile>>,
    readers: Vec<Reader>,
    /// The next entry of each chunk.
    first: BinaryHeap<Reverse<(u128, usize)>>,
}

struct Reader {
    chunk: Chunk,
    buffer: Vec<u8>,
    used: usize,
    at_once: usize,
}

impl Merging {
    fn of(chunks: Chunks, memory: usize) -> Result<Merging> {
        let share = memory / chunks.list.len().max(1);
        let at_once = share.clamp(*READ_AT_ONCE.start(), *READ_AT_ONCE.end());
        let reader = |chunk: Chunk| {
            let at_once = at_once / chunk.size * chunk.size;
            Reader { chunk, buffer: Vec::new(), used: 0, at_once }
        };
        let readers: Vec<Reader> = chunks.list.into_iter().map(reader).collect();
        let mut merging = Merging { file: chunks.file, first: BinaryHeap::with_capacity(readers.len()), readers };
        for number in 0..merging.readers.len() {
            if let Some(entry) = merging.step(number)? {
                merging.first.push(Reverse((entry, number)));
            }
        }
        Ok(merging)
    }

    fn next(&mut self) -> Result<Option<u128>> {
        let Some(&Reverse((entry, number))) = self.first.peek() else { return Ok(None) };
        let following = self.step(number)?;
        if let Some(mut first) = self.first.peek_mut() {
            match following {
                Some(following) => *first = Reverse((following, number)),
                None => drop(std::collections::binary_heap::PeekMut::pop(first)),
            }
        }
        Ok(Some(entry))
    }

    /// The next entry of a chunk.
    fn step(&mut self, number: usize) -> Result<Option<u128>> {
        let (Some(reader), Some(file)) = (self.readers.get_mut(number), &mut self.file) else { return Ok(None) };
        if reader.used == reader.buffer.len() {
            let left = reader.chunk.until - reader.chunk.at;
            if left == 0 {
                return Ok(None);
            }
            let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(reader.at_once);
            reader.buffer.resize(bytes, 0);
            file.read(reader.chunk.at, &mut reader.buffer)?;
            reader.chunk.at += bytes as u64;
            reader.used = 0;
        }
        let entry = reader.buffer.get(reader.used..reader.used + reader.chunk.size);
        let entry = entry.ok_or_else(|| Error::structure("a side file ends within an entry"))?;
        reader.used += reader.chunk.size;
        Ok(Some((reader.chunk.read)(entry)))
    }
}

/// Pages' contents, kept until they can be written.
pub struct Contents {
    pages: Vec<Vec<u8>>,
    /// How many may be in memory.
    most: usize,
    file: Option<Box<dyn SideFile>>,
    /// Length of each that is in the file.
    aside: Vec<u16>,
}

impl Contents {
    pub fn new(memory: usize) -> Contents {
        Contents { pages: Vec::new(), most: (memory / crate::page::CAPACITY).max(1), file: None, aside: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.aside.len() + self.pages.len()
    }

    pub fn add(&mut self, contents: Vec<u8>, sink: &impl PageSink) -> Result<()> {
        self.pages.push(contents);
        if self.pages.len() > self.most {
            let file = match &mut self.file {
                Some(file) => file,
                None => self.file.insert(sink.side_file()?),
            };
            for page in self.pages.drain(..) {
                file.append(&page)?;
                self.aside.push(page.len() as u16);
            }
        }
        Ok(())
    }

    /// Hands them out in the order in which they came.
    pub fn finish(mut self, mut put: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut at = 0;
        let mut contents = Vec::new();
        if let Some(file) = &mut self.file {
            for length in self.aside {
                contents.resize(usize::from(length), 0);
                file.read(at, &mut contents)?;
                at += u64::from(length);
                put(&contents)?;
            }
        }
        self.pages.iter().try_for_each(|page| put(page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random numbers, the same each time.
    fn random(count: usize, of: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut state = 5u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state ^ state >> 29
        };
        (0..count).map(|_| of(next())).collect()
    }

    fn is_sorted(mut entries: Vec<u64>) {
        let mut wanted = entries.clone();
        wanted.sort_unstable();
        sort(&mut entries);
        assert!(entries == wanted);
    }

    #[test]
    fn entries_of_all_kinds_are_sorted() {
        for count in [0, 1, 2, 511, 512, 1023, 1024, 1025, 5000, 70_000] {
            is_sorted(random(count, |n| n));
            is_sorted(random(count, |n| n % 7));
            is_sorted(random(count, |n| 1 << (n % 64)));
            is_sorted(random(count, |n| u64::MAX - n % 3000));
            is_sorted(vec![u64::MAX; count]);
            let without_gaps = |from: u64| {
                let mut ranks: Vec<(u64, u64)> = random(count, |n| n).into_iter().zip(from..).collect();
                ranks.sort_unstable();
                ranks.into_iter().map(|(_, rank)| rank).collect::<Vec<_>>()
            };
            is_sorted(without_gaps(0));
            is_sorted(without_gaps(1 << 40));
            let mut one_twice = without_gaps(9);
            if let [first, .., last] = one_twice.as_mut_slice() {
                *first = *last;
            }
            is_sorted(one_twice);
        }
    }

    #[test]
    fn entries_stand_by_group() {
        for (count, groups) in [(0, 1), (1, 5), (1000, 1), (1000, 7), (5000, 5000)] {
            let mut entries = random(count, |n| n >> 20);
            let mut wanted = entries.clone();
            let group_of = |entry: u64| entry as usize % groups;
            let mut found = regroup(&mut entries, groups, group_of);
            for group in 0..groups {
                assert!(found.get(group).iter().all(|entry| group_of(*entry) == group));
            }
            assert_eq!(found.get(groups).len(), 0);
            wanted.sort_unstable();
            entries.sort_unstable();
            assert!(entries == wanted);
        }
    }
}
