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
        self.entries.sort_unstable();
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

    /// All of them, in order.
    pub fn finish(mut self) -> Result<Sorted<E>> {
        self.entries.sort_unstable();
        let Some(file) = self.chunks.file.take() else {
            return Ok(Sorted::InMemory(self.entries.into_iter()));
        };
        self.chunks.add(file, &self.entries)?;
        let memory = self.most.saturating_mul(size_of::<E>());
        drop(self.entries);
        Merging::of(self.chunks, memory).map(Sorted::Aside)
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
