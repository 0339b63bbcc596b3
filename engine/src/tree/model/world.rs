//! The world of the model: what a crash leaves, the writers and their fates, the snapshots, and all that was ever written.

use super::steps::Kept;
use crate::error::{Error, Result};
use crate::page::PageBuf;
use crate::types::{Fate, Head, L0Id, LogAddr, PageNo, RowId, Verdict, Writer, MAX_KEY};
use std::collections::BTreeMap;
use std::ops::Bound;

pub(in crate::tree) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A version that was written once.
#[derive(Clone, Debug)]
pub(in crate::tree) struct Written {
    pub row: RowId,
    pub writer: u64,
    pub command: u32,
    pub tombstone: bool,
    pub body: Vec<u8>,
}

/// A key, and its body; none: a tombstone.
pub type OwnedRow = (Vec<u8>, Option<Vec<u8>>);

/// What a reader sees: writers below `before` that were not running, and what `own` had written before its command.
#[derive(Clone, Debug)]
pub(in crate::tree) struct Snapshot {
    pub before: u64,
    pub running: Vec<u64>,
    pub own: Option<(u64, u32)>,
}

impl Snapshot {
    /// It sees every writer below this that has committed.
    pub fn sees_below(&self) -> Writer {
        let own = self.own.map(|(own, _)| own);
        Writer(self.running.iter().copied().chain(own).fold(self.before, u64::min))
    }

    pub fn sees(&self, world: &World, writer: u64, command: u32) -> bool {
        if let Some((own, before)) = self.own {
            if own == writer {
                return command < before;
            }
        }
        writer < self.before
            && !self.running.contains(&writer)
            && matches!(world.fates.get(&writer), Some(Fate::Committed))
    }

    pub fn choose(&self, world: &World, head: &Head) -> Verdict {
        match self.sees(world, head.writer.0, head.command) {
            true => Verdict::Take,
            false => Verdict::Skip,
        }
    }
}

/// What survives a crash.
#[derive(Clone, Default)]
pub(in crate::tree) struct Disk {
    pub pages: Vec<PageBuf>,
    pub meta: Option<PageBuf>,
    pub logs: BTreeMap<L0Id, Vec<u8>>,
    /// The logs up to here may be gone.
    pub forgotten: L0Id,
}

#[derive(Default)]
pub(in crate::tree) struct Faults {
    /// Percent of the operations that fail.
    pub percent: u64,
    /// Those that failed since this was last looked at.
    pub met: u64,
    /// After so many flips the next one fails.
    pub flips: Option<u64>,
}

pub(in crate::tree) struct World {
    pub random: Random,
    pub disk: Disk,
    /// Pages that were read; the last of them; and those that were asked for beforehand.
    pub fetched: u64,
    pub last_read: Option<PageNo>,
    pub asked: Vec<PageNo>,
    /// So many of the next writes of pages fail.
    pub no_room: u32,
    /// The page store cannot grow beyond so many pages.
    pub room: Option<usize>,
    /// It had so many pages before a crash: those that were not written to may be missing since.
    pub had: usize,
    pub faults: Faults,
    pub fates: BTreeMap<u64, Fate>,
    /// Commands that running writers have begun.
    pub commands: BTreeMap<u64, u32>,
    pub next_writer: u64,
    /// Held snapshots by number.
    pub snapshots: BTreeMap<u64, Snapshot>,
    next_snapshot: u64,
    pub history: BTreeMap<Vec<u8>, Vec<Written>>,
    /// What was observed of keys, for those who write long after.
    pub kept: Vec<Kept>,
    /// Keys in use.
    pub keys: u64,
    /// So many runs are to come in the midst of merges.
    pub to_come: u64,
    /// These rows come while a run is put into the index, which may be no larger meanwhile.
    pub comes_between: Option<(u64, Vec<OwnedRow>)>,
    /// The next reader meets a rebuild before he looks into the index.
    pub reads_after_rebuild: bool,
    /// Who evicts meets a rebuild, and a read of this key.
    pub read_evicted: Option<Vec<u8>>,
    /// Whoever has flipped to a merge's run meets a writer of large values, and a read of this key.
    pub read_moved: Option<(Vec<u8>, Vec<u8>)>,
    /// What is going on, for what may be done in between.
    pub flushing: bool,
    pub merging: bool,
    pub appending: bool,
    /// Things done in between other things, one within the other.
    pub depth: u32,
    /// Counts what was done in between.
    pub acts: u64,
    /// Percent of the pauses that are used.
    pub restless: u64,
    /// Percent of the pauses at which the power might have failed.
    pub mortal: u64,
}

impl Default for World {
    fn default() -> World {
        World::new(0)
    }
}

impl World {
    pub fn new(seed: u64) -> World {
        World {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            disk: Disk::default(),
            fetched: 0,
            last_read: None,
            asked: Vec::new(),
            no_room: 0,
            room: None,
            had: 0,
            faults: Faults::default(),
            fates: BTreeMap::new(),
            commands: BTreeMap::new(),
            next_writer: 1,
            snapshots: BTreeMap::new(),
            next_snapshot: 0,
            history: BTreeMap::new(),
            kept: Vec::new(),
            keys: 1,
            to_come: 0,
            comes_between: None,
            reads_after_rebuild: false,
            read_evicted: None,
            read_moved: None,
            flushing: false,
            merging: false,
            appending: false,
            depth: 0,
            acts: 0,
            restless: 0,
            mortal: 0,
        }
    }

    pub fn running(&self) -> Vec<u64> {
        self.fates.iter().filter(|(_, f)| **f == Fate::InProgress).map(|(w, _)| *w).collect()
    }

    /// A snapshot taken now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { before: self.next_writer, running: self.running(), own: None }
    }

    pub fn hold(&mut self, snapshot: Snapshot) -> u64 {
        self.next_snapshot += 1;
        self.snapshots.insert(self.next_snapshot, snapshot);
        self.next_snapshot
    }

    /// Holds a snapshot of any age, one of a running writer's own perhaps.
    pub fn hold_any(&mut self) -> (u64, Snapshot) {
        let running = self.running();
        let held: Vec<_> = self.snapshots.values().filter(|s| s.own.is_none()).cloned().collect();
        let mut snapshot = match held.len() as u64 {
            held_now if held_now > 0 && self.random.chance(60) => held[self.random.below(held_now) as usize].clone(),
            _ => self.snapshot(),
        };
        if !running.is_empty() && self.random.chance(25) {
            let own = running[self.random.below(running.len() as u64) as usize];
            let begun = self.commands.get(&own).copied().unwrap_or(0);
            snapshot.own = Some((own, self.random.below(u64::from(begun) + 1) as u32));
        }
        (self.hold(snapshot.clone()), snapshot)
    }

    /// Every snapshot sees every committed writer below this.
    pub fn oldest(&self) -> u64 {
        let of = |s: &Snapshot| s.running.iter().copied().min().unwrap_or(s.before).min(s.before);
        self.snapshots.values().map(of).chain([of(&self.snapshot())]).min().unwrap_or(self.next_writer)
    }

    pub fn fate(&self, writer: Writer) -> Fate {
        self.fates.get(&writer.0).copied().unwrap_or(Fate::Aborted)
    }

    pub fn newest_seen(&self, key: &[u8], snapshot: &Snapshot) -> Option<&Written> {
        let versions = self.history.get(key)?;
        versions.iter().rev().find(|v| snapshot.sees(self, v.writer, v.command))
    }

    pub fn expected(&self, key: &[u8], snapshot: &Snapshot) -> Option<Vec<u8>> {
        self.newest_seen(key, snapshot).filter(|v| !v.tombstone).map(|v| v.body.clone())
    }

    pub fn expected_range(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        snapshot: &Snapshot,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let keys = self.history.keys().filter(|k| above(k, lower) && below(k, upper));
        keys.filter_map(|k| self.expected(k, snapshot).map(|body| (k.clone(), body))).collect()
    }

    pub fn key(&mut self) -> Vec<u8> {
        let n = self.random.below(self.keys);
        // Keys that are prefixes of each other, the least and the greatest ones among them, and keys of other lengths, up to the longest.
        match n % 3 {
            0 if n % 27 == 6 => format!("{:l<1$}{n:03}", "", MAX_KEY - 3).into_bytes(),
            0 => format!("k{n:03}").into_bytes(),
            1 => vec![[0, 255, b'k', b'k'][n as usize % 4]; 1 + (n / 3) as usize],
            _ => format!("a key that is rather longer than the others {n}").into_bytes(),
        }
    }

    pub fn body(&mut self) -> Vec<u8> {
        let len = match self.random.below(10) {
            0 => 0,
            1..=7 => self.random.below(60),
            8 => self.random.below(3000),
            _ => {
                let limit = if self.random.chance(50) { 9_000 } else { 60_000 };
                self.random.below(limit)
            }
        };
        let byte = self.random.next() as u8;
        (0..len).map(|i| byte.wrapping_add((i % 13) as u8)).collect()
    }

    /// A writer that may write this key now: a running one, or a new one. `None`: another one has it.
    pub fn writer_for(&mut self, key: &[u8]) -> Option<u64> {
        let running = self.running();
        let last = self.history.get(key).and_then(|v| v.last()).map(|v| v.writer);
        if let Some(busy) = last.filter(|last| running.contains(last)) {
            return self.random.chance(50).then_some(busy);
        }
        if running.is_empty() || (running.len() < 4 && self.random.chance(30)) {
            let writer = self.next_writer;
            self.next_writer += 1;
            self.fates.insert(writer, Fate::InProgress);
            return Some(writer);
        }
        Some(running[self.random.below(running.len() as u64) as usize])
    }

    /// Whether this writer may (still) write the key.
    pub fn may_write(&self, writer: u64, key: &[u8]) -> bool {
        let last = self.history.get(key).and_then(|v| v.last()).map(|v| v.writer);
        self.fates.get(&writer) == Some(&Fate::InProgress)
            && last.is_none_or(|last| last == writer || self.fates.get(&last) != Some(&Fate::InProgress))
    }

    pub fn next_command(&mut self, writer: u64) -> u32 {
        let command = self.commands.entry(writer).or_insert(0);
        *command += 1;
        *command - 1
    }

    pub fn end_writer(&mut self) {
        let running = self.running();
        let held = |writer: u64| self.snapshots.values().any(|s| s.own.is_some_and(|own| own.0 == writer));
        let Some(writer) = running.get(self.random.below(4) as usize).copied().filter(|w| !held(*w)) else { return };
        let fate = if self.random.chance(25) { Fate::Aborted } else { Fate::Committed };
        self.fates.insert(writer, fate);
    }

    /// The machine went down: nothing in memory is left.
    pub fn crash(&mut self) {
        self.snapshots.clear();
        self.kept.clear();
        for fate in self.fates.values_mut().filter(|f| **f == Fate::InProgress) {
            *fate = Fate::Aborted;
        }
        // The page store may end before pages that were handed out and not written to.
        if self.random.chance(50) {
            self.had = self.had.max(self.disk.pages.len());
            let written = self.disk.pages.iter().rposition(|page| page.0 != PageBuf::ZERO.0);
            self.disk.pages.truncate(written.map_or(1, |last| last + 1));
        }
        let forgotten = self.disk.forgotten;
        self.disk.logs.retain(|generation, _| *generation > forgotten);
    }

    /// Versions that somebody may still look for by row id.
    pub fn live(&self) -> Vec<(Vec<u8>, Written)> {
        let now = self.snapshot();
        let mut live = Vec::new();
        for (key, versions) in &self.history {
            let seen: Vec<RowId> =
                self.snapshots.values().chain([&now]).filter_map(|s| self.newest_seen(key, s)).map(|v| v.row).collect();
            let running = |v: &Written| self.fates.get(&v.writer) == Some(&Fate::InProgress);
            let wanted = versions.iter().filter(|v| running(v) || !v.tombstone && seen.contains(&v.row));
            live.extend(wanted.map(|v| (key.clone(), v.clone())));
        }
        live
    }

    /// Lets an operation fail now and then.
    pub fn fault(&mut self, what: &str) -> Result<()> {
        if self.faults.percent > 0 && self.random.chance(self.faults.percent) {
            self.faults.met += 1;
            return Err(Error::io(format!("{what}: injected"), std::io::Error::from_raw_os_error(5)));
        }
        Ok(())
    }

    /// The page store grows, if there is room: else perhaps by a part of what it should.
    pub fn extend(&mut self, pages: usize) -> Result<()> {
        let len = self.disk.pages.len();
        if let Some(room) = self.room.filter(|room| *room < pages && len < pages) {
            self.faults.met += 1;
            if self.random.chance(30) {
                self.disk.pages.resize(len.max(room), PageBuf::ZERO);
            }
            return Err(Error::NoSpace(format!("{pages} pages: injected")));
        }
        self.disk.pages.resize(len.max(pages), PageBuf::ZERO);
        Ok(())
    }

    /// The disk becomes full, or there is room again.
    pub fn change_room(&mut self) {
        let more = self.random.below(60) as usize;
        self.room = self.random.chance(40).then_some(self.disk.pages.len() + more.saturating_sub(20));
    }

    pub fn flip_fault(&mut self) -> Result<()> {
        self.fault("flip")?;
        match self.faults.flips {
            Some(0) => Err(Error::io("flip: injected", std::io::Error::from_raw_os_error(5))),
            left => {
                self.faults.flips = left.map(|left| left - 1);
                Ok(())
            }
        }
    }

    pub fn page(&self, page: PageNo) -> Result<PageBuf> {
        let found = self.disk.pages.get(page.0 as usize).cloned();
        found.ok_or_else(|| Error::page(page, 0, "past the end"))
    }

    pub fn log(&mut self, generation: L0Id, record: &[u8]) -> LogAddr {
        let log = self.disk.logs.entry(generation).or_default();
        let addr = LogAddr(log.len() as u64);
        log.extend_from_slice(record);
        addr
    }
}

pub(super) fn above(key: &[u8], lower: Bound<&[u8]>) -> bool {
    match lower {
        Bound::Unbounded => true,
        Bound::Included(l) => key >= l,
        Bound::Excluded(l) => key > l,
    }
}

pub(super) fn below(key: &[u8], upper: Bound<&[u8]>) -> bool {
    match upper {
        Bound::Unbounded => true,
        Bound::Included(u) => key <= u,
        Bound::Excluded(u) => key < u,
    }
}
