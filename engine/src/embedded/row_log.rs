//! The row log: the segments of all generations that are not in runs yet, appended to, synced, replayed, forgotten.
//!
//! What a crash leaves is always a prefix of what was appended: frames are numbered through all segments, and replay stops
//! at the first number that is missing. A sync makes older segments durable before newer ones, so what has been
//! synced is within that prefix, unless the device lost it: a later frame's mark tells (see [`super::log_segment`]), and then
//! replay refuses with the place. What stands behind the end of the prefix is cut off at once, before anything new is
//! appended: it must not come back (I17). What has been replayed may stand in the operating system's cache alone, its sync
//! having failed and never to be tried again: frames above all marks are written once more before they are believed.

use super::fs::Fs;
use super::health::{lock, Health};
use super::log_segment::{
    encode_frame, search, seed, stored_len, Frame, Grant, Granted, Header, LogRow, Segment, SegmentReader, HEADER,
};
use super::metrics::add_alone;
use crate::error::{Error, Place, Result};
use crate::row::are_tombstones;
use crate::types::{L0Id, LogAddr, PAGE_SIZE};
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub struct RowLog {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// Files grow by this much at a time.
    chunk: u64,
    storage_id: AtomicU64,
    health: Arc<Health>,
    segments: RwLock<Segments>,
    tail: Mutex<Tail>,
    /// End of the newest segment; changed by the appender alone.
    end: AtomicU64,
    /// One sync at a time.
    syncing: Mutex<()>,
    /// Every frame up to this number is durable, here or in a run.
    synced: AtomicU64,
    /// What the last run of the store left has been put in order.
    mended: AtomicBool,
    pub counters: LogCounters,
}

/// Is shown the records of a replay.
pub type Show<'a> = dyn FnMut(L0Id, LogAddr, &[u8]) -> Result<()> + 'a;

/// How many bytes the log may take of the disk: at least so many, or so many that it would like to have; whether for deletes alone.
pub type Room<'a> = dyn Fn(u64, u64, bool) -> Result<u64> + 'a;

#[derive(Default)]
struct Segments {
    /// Ascending generations.
    live: Vec<Arc<Segment>>,
    /// Forgotten and removed, but readers that have their memtable pinned may still look into them.
    retired: Vec<Arc<Segment>>,
}

#[derive(Debug, Default)]
pub struct LogCounters {
    pub frames: AtomicU64,
    pub bytes: AtomicU64,
    pub syncs: AtomicU64,
}

/// A run has so many pages at least, beside those for its rows.
const LEAST_RUN: u64 = 8;

/// Bytes of frames whose memory is kept from one to the next.
const MOST_KEPT: usize = 4 << 20;

struct Tail {
    /// Number of the next frame; the first is 1.
    next_frame: u64,
    /// The highest `synced` that a frame has told of.
    marked: u64,
    frame: Vec<u8>,
    /// The last segment of `live`, if anything has been appended to it: appenders need not ask for it.
    newest: Option<Arc<Segment>>,
    /// Segments with bytes that are not synced, oldest first.
    dirty: Vec<Arc<Segment>>,
    /// Files were made whose names are not synced.
    new_names: bool,
}

pub fn segment_name(generation: L0Id) -> String {
    format!("log-{:012}.lkv", generation.0)
}

fn generation_of(name: &str) -> Option<L0Id> {
    let digits = name.strip_prefix("log-")?.strip_suffix(".lkv")?;
    let generation = L0Id(digits.parse().ok()?);
    (segment_name(generation) == name).then_some(generation)
}

fn no_segment(generation: L0Id, addr: LogAddr) -> Error {
    let place = Place::Log { generation: generation.0, offset: addr.0 };
    Error::Corrupt { place, what: "this generation has no log segment (any more)".into() }
}

impl RowLog {
    pub fn new(fs: Arc<dyn Fs>, dir: &Path, chunk: u64, health: Arc<Health>) -> RowLog {
        let (frame, dirty) = (Vec::new(), Vec::new());
        let tail = Tail { next_frame: 1, marked: 0, frame, newest: None, dirty, new_names: false };
        RowLog {
            fs,
            dir: dir.to_path_buf(),
            chunk: chunk.max(HEADER as u64),
            storage_id: AtomicU64::new(0),
            health,
            segments: RwLock::default(),
            tail: Mutex::new(tail),
            end: AtomicU64::new(0),
            syncing: Mutex::default(),
            synced: AtomicU64::new(0),
            mended: AtomicBool::new(false),
            counters: LogCounters::default(),
        }
    }

    pub fn set_storage_id(&self, storage_id: u64) {
        self.storage_id.store(storage_id, Ordering::Release);
    }

    /// The generations whose segments stand in the directory, ascending.
    pub fn generations_on_disk(fs: &dyn Fs, dir: &Path) -> Result<Vec<L0Id>> {
        let names = fs.list(dir).map_err(|e| Error::io(format!("cannot list {}", dir.display()), e))?;
        let mut found: Vec<L0Id> = names.iter().filter_map(|name| generation_of(name)).collect();
        found.sort();
        Ok(found)
    }

    fn segments(&self) -> RwLockReadGuard<'_, Segments> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Segments> {
        self.segments.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of segments that are not in runs.
    pub fn segment_count(&self) -> usize {
        self.segments().live.len()
    }

    /// Generation of the newest segment, which may be empty; 0: there is none.
    pub fn newest_generation(&self) -> L0Id {
        self.segments().live.last().map_or(L0Id(0), |newest| newest.generation)
    }

    /// Bytes in them.
    pub fn bytes(&self) -> u64 {
        self.segments().live.iter().map(|segment| segment.end()).sum()
    }

    /// Bytes in the newest segment.
    pub fn newest_bytes(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }

    fn segment(&self, generation: L0Id) -> Option<Arc<Segment>> {
        let segments = self.segments();
        segments.live.iter().rev().chain(&segments.retired).find(|s| s.generation == generation).cloned()
    }

    pub fn row(&self, generation: L0Id, addr: LogAddr) -> Result<LogRow> {
        self.segment(generation).ok_or_else(|| no_segment(generation, addr))?.row(addr)
    }

    pub fn reader(&self, generation: L0Id) -> Result<SegmentReader> {
        let segment = self.segment(generation).ok_or_else(|| no_segment(generation, LogAddr(0)))?;
        Ok(SegmentReader(segment))
    }

    /// Pages that the runs may have which the segments become, or could become if they were full.
    pub fn pages(&self) -> u32 {
        let segments = self.segments();
        let newest = segments.live.last().map(|segment| segment.generation);
        // One to which nothing was appended before the next was begun becomes no run.
        let counts = |segment: &&Arc<Segment>| segment.end() > HEADER as u64 || Some(segment.generation) == newest;
        let of_run = |segment: &Arc<Segment>| segment.allocated().div_ceil(PAGE_SIZE as u64) + LEAST_RUN;
        u32::try_from(segments.live.iter().filter(counts).map(of_run).sum::<u64>()).unwrap_or(u32::MAX)
    }

    /// Appends the records as one frame, then tells their addresses. Nothing has changed when it fails.
    pub fn append(
        &self,
        generation: L0Id,
        records: &[&[u8]],
        room: &Room<'_>,
        link: &mut dyn FnMut(usize, LogAddr),
    ) -> Result<()> {
        self.health.check()?;
        let deletes = || are_tombstones(records);
        let ask = |least, wanted| match room(least, wanted, false) {
            Err(Error::NoSpace(_)) if deletes() => Ok(Granted { bytes: room(least, wanted, true)?, open: false }),
            granted => Ok(Granted { bytes: granted?, open: true }),
        };
        let grant = Grant { room: &ask, deletes: &deletes };
        let mut tail = lock(&self.tail);
        let tail = &mut *tail;
        if tail.newest.as_ref().is_none_or(|newest| newest.generation != generation) {
            tail.newest = Some(self.newest_or_new(generation, tail, &grant)?);
        }
        let Some(segment) = &tail.newest else { return Err(no_segment(generation, LogAddr(0))) };
        segment.touch_end();
        let number = tail.next_frame - segment.first_frame;
        let number =
            u32::try_from(number).map_err(|_| Error::NoSpace(format!("{} has too many frames", segment.name)))?;
        let synced = self.synced.load(Ordering::Acquire);
        let behind = u32::try_from(tail.next_frame - synced).ok().filter(|_| synced > tail.marked);
        let payload = encode_frame(segment.seed, number, behind, records, &mut tail.frame)?;
        self.put(segment, &tail.frame, &grant)?;
        let mut at = segment.end() + payload as u64;
        segment.publish(tail.frame.len() as u64);
        self.end.store(segment.end(), Ordering::Relaxed);
        add_alone(&self.counters.frames, 1);
        add_alone(&self.counters.bytes, tail.frame.len() as u64);
        tail.next_frame += 1;
        if behind.is_some() {
            tail.marked = synced;
        }
        if !tail.dirty.last().is_some_and(|s| Arc::ptr_eq(s, segment)) {
            tail.dirty.push(Arc::clone(segment));
        }
        for (i, record) in records.iter().enumerate() {
            link(i, LogAddr(at));
            at += stored_len(record.len()) as u64;
        }
        if tail.frame.capacity() > MOST_KEPT {
            tail.frame = Vec::new();
        }
        Ok(())
    }

    fn put(&self, segment: &Segment, frame: &[u8], grant: &Grant<'_>) -> Result<()> {
        segment.make_room(frame.len() as u64, self.chunk, grant)?;
        // A write that failed half-way is written over by the next one, or cut off by replay.
        let context = |e| Error::io_or_no_space(format!("cannot write {}", segment.name), e);
        segment.write(frame).map_err(|e| match context(e) {
            full @ Error::NoSpace(_) => full,
            other => self.health.fatal(other),
        })
    }

    /// The segment to append to: the newest, or a new one for a newer generation.
    fn newest_or_new(&self, generation: L0Id, tail: &mut Tail, grant: &Grant<'_>) -> Result<Arc<Segment>> {
        let newest = self.segments().live.last().cloned();
        match newest {
            Some(segment) if segment.generation == generation => Ok(segment),
            Some(segment) if segment.generation > generation => Err(Error::structure(format!(
                "append to log generation {generation}, but {} has begun",
                segment.generation
            ))),
            previous => self.begin(generation, previous.as_deref(), tail, grant),
        }
    }

    fn begin(
        &self,
        generation: L0Id,
        previous: Option<&Segment>,
        tail: &mut Tail,
        grant: &Grant<'_>,
    ) -> Result<Arc<Segment>> {
        let granted = match (grant.room)(HEADER as u64, self.chunk) {
            Ok(granted) if granted.bytes >= self.chunk => granted,
            // Nobody writes to the previous one any more. What it keeps if it cannot be cut goes with it.
            _ => {
                let _ = previous.map(Segment::trim);
                (grant.room)(HEADER as u64, self.chunk)?
            }
        };
        let len = granted.bytes.min(self.chunk);
        let header = Header {
            storage_id: self.storage_id.load(Ordering::Acquire),
            generation,
            first_frame: tail.next_frame,
            previous: previous.map_or(L0Id(0), |p| p.generation),
            previous_first: previous.map_or(0, |p| p.first_frame),
        };
        let path = self.dir.join(segment_name(generation));
        let name = path.display().to_string();
        let made = self.fs.create(&path).and_then(|file| {
            let made = file.allocate(len).and_then(|r| file.write_at(&header.encode(), 0).map(|()| r));
            match made {
                Ok(reserved) => Ok((file, reserved)),
                Err(e) => self.fs.remove(&path).and(Err(e)),
            }
        });
        let (file, reserved) = made.map_err(|e| Error::io_or_no_space(format!("cannot make {name}"), e))?;
        let segment = Arc::new(Segment::new(&header, name, file, HEADER as u64, len, reserved));
        if !granted.open {
            segment.shut();
        }
        tail.new_names = true;
        // Even if no frame follows: the segments after it are found only as long as its header is there.
        tail.dirty.push(Arc::clone(&segment));
        self.change().live.push(Arc::clone(&segment));
        Ok(segment)
    }

    /// Makes everything appended so far durable, oldest first. A failure ends writing (I18).
    pub fn sync(&self) -> Result<()> {
        let _one = lock(&self.syncing);
        self.health.check()?;
        let (upto, dirty, new_names) = {
            let mut tail = lock(&self.tail);
            (tail.next_frame - 1, std::mem::take(&mut tail.dirty), std::mem::take(&mut tail.new_names))
        };
        let failed = |what: &str, e| self.health.fatal(Error::io(format!("cannot sync {what}"), e));
        for segment in &dirty {
            segment.file.sync().map_err(|e| failed(&segment.name, e))?;
            self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        }
        if new_names {
            self.fs.sync_dir(&self.dir).map_err(|e| failed(&self.dir.display().to_string(), e))?;
        }
        self.synced.fetch_max(upto, Ordering::AcqRel);
        Ok(())
    }

    /// Ends the log cleanly: everything is synced, a last frame says so, and no file is longer than its frames.
    pub fn close(&self) -> Result<()> {
        self.sync()?;
        let segments = self.segments().live.clone();
        if let Some(newest) = segments.last().filter(|_| self.synced.load(Ordering::Acquire) > 0) {
            lock(&self.tail).marked = 0;
            match self.append(newest.generation, &[], &|least, _, _| Ok(least), &mut |_, _| {}) {
                // The next open reads it as after a crash.
                Err(Error::NoSpace(_)) => {}
                appended => appended?,
            }
        }
        for segment in &segments {
            segment.trim().map_err(|e| Error::io(format!("cannot cut {}", segment.name), e))?;
            segment
                .file
                .sync()
                .map_err(|e| self.health.fatal(Error::io(format!("cannot sync {}", segment.name), e)))?;
        }
        self.sync()
    }

    /// The generations up to this one are in runs: their files go. Readers may still look into them, until
    /// [`RowLog::release`].
    pub fn forget(&self, upto: L0Id) -> Result<()> {
        let gone = {
            let mut segments = self.change();
            let gone: Vec<_> = segments.live.extract_if(.., |s| s.generation <= upto).collect();
            segments.retired.extend_from_slice(&gone);
            gone
        };
        {
            let mut tail = lock(&self.tail);
            tail.dirty.retain(|s| s.generation > upto);
            tail.newest.take_if(|newest| newest.generation <= upto);
            // The appender would need the tail to begin another one.
            if self.segments().live.is_empty() {
                self.end.store(0, Ordering::Relaxed);
            }
        }
        gone.iter().try_for_each(|s| self.remove(s.generation))
    }

    /// No reader has the memtable of another generation pinned than of these. False: no log was kept for one.
    pub fn release(&self, in_use: &[RangeInclusive<L0Id>]) -> bool {
        let is_used = |segment: &Arc<Segment>| in_use.iter().any(|range| range.contains(&segment.generation));
        let gone: Vec<_> = self.change().retired.extract_if(.., |segment| !is_used(segment)).collect();
        // Unmapping takes its time, and it is not locked here.
        !gone.is_empty()
    }

    fn remove(&self, generation: L0Id) -> Result<()> {
        let path = self.dir.join(segment_name(generation));
        match self.fs.remove(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("cannot remove {}", path.display()), e))
            }
            _ => Ok(()),
        }
    }

    /// Shows every record after generation `flushed` in order of arrival, cuts off what is behind the end, and makes what was
    /// shown durable. Called before the first append, as often as need be.
    pub fn replay(&self, flushed: L0Id, show: &mut Show<'_>) -> Result<()> {
        let mut replay = Replay {
            log: self,
            flushed,
            previous: None,
            expected: None,
            gap: None,
            kept: Vec::new(),
            cut: Vec::new(),
            durable: 0,
            milestones: Vec::new(),
        };
        for generation in Self::generations_on_disk(self.fs.as_ref(), &self.dir)? {
            if generation <= flushed {
                self.remove(generation)?;
            } else {
                replay.segment(generation, show)?;
            }
        }
        let Replay { kept, cut, expected, durable, milestones, .. } = replay;
        // Those who replay twice see the same twice; there is nothing left to mend then.
        if !self.mended.swap(true, Ordering::AcqRel) {
            self.mend(&kept, &cut)?;
            self.rewrite(&kept, &milestones, durable)?;
        }
        let mut tail = lock(&self.tail);
        tail.next_frame = expected.unwrap_or(1);
        // The next frame tells that all before it are durable.
        tail.marked = 0;
        self.synced.store(tail.next_frame - 1, Ordering::Release);
        tail.newest = None;
        self.end.store(kept.last().map_or(0, |newest| newest.end()), Ordering::Relaxed);
        drop(tail);
        self.change().live = kept;
        Ok(())
    }

    /// Newest first, so that a crash in between leaves a state that ends at the same frame.
    fn mend(&self, kept: &[Arc<Segment>], cut: &[L0Id]) -> Result<()> {
        for generation in cut.iter().rev() {
            self.remove(*generation)?;
        }
        self.fs.sync_dir(&self.dir).map_err(|e| Error::io(format!("cannot sync {}", self.dir.display()), e))?;
        for segment in kept.iter().rev() {
            segment.trim().map_err(|e| Error::io(format!("cannot cut {}", segment.name), e))?;
        }
        Ok(())
    }

    /// Writes what no mark covers once more, and syncs it: older segments first, as ever.
    fn rewrite(&self, kept: &[Arc<Segment>], milestones: &[(u64, usize, u64)], durable: u64) -> Result<()> {
        let sure = milestones.partition_point(|(number, ..)| *number <= durable + 1);
        let (first, from) = match sure.checked_sub(1).and_then(|at| milestones.get(at)) {
            Some((_, segment, offset)) if *offset > HEADER as u64 => (*segment, *offset),
            // The header, too.
            Some((_, segment, _)) => (*segment, 0),
            None => (0, 0),
        };
        for (at, segment) in kept.iter().enumerate().skip(first) {
            segment.rewrite(if at == first { from } else { 0 }, REWRITE)?;
        }
        Ok(())
    }
}

/// Bytes between two milestones of a replay.
const MILESTONE: usize = 64 << 10;
/// Bytes that are written once more in one go.
const REWRITE: usize = 1 << 20;

/// Where a replay stands.
struct Replay<'a> {
    log: &'a RowLog,
    flushed: L0Id,
    /// The last segment seen.
    previous: Option<L0Id>,
    /// Number of the next frame, once it is known.
    expected: Option<u64>,
    gap: Option<Gap>,
    kept: Vec<Arc<Segment>>,
    /// Segments that come after a gap.
    cut: Vec<L0Id>,
    /// The highest frame that a mark covers.
    durable: u64,
    /// Frames by the way: number, place of the segment in `kept`, offset.
    milestones: Vec<(u64, usize, u64)>,
}

/// The end of the prefix, with more behind it.
struct Gap {
    generation: L0Id,
    offset: u64,
    name: String,
    /// Number of the first missing frame, once it is known.
    first: Option<u64>,
}

impl Replay<'_> {
    fn segment(&mut self, generation: L0Id, show: &mut Show<'_>) -> Result<()> {
        let path = self.log.dir.join(segment_name(generation));
        let name = path.display().to_string();
        let io = |verb: &str, e| Error::io(format!("cannot {verb} {name}"), e);
        let file = self.log.fs.open(&path).map_err(|e| io("open", e))?;
        let len = file.len().map_err(|e| io("read", e))?;
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let got = file.read_at(&mut bytes, 0).map_err(|e| io("read", e))?;
        bytes.truncate(got);

        let header = Header::decode(&bytes)?;
        let storage_id = self.log.storage_id.load(Ordering::Acquire);
        if let Some(header) = header {
            if header.storage_id != storage_id || header.generation != generation {
                let what = format!("{name}: is generation {} of store {:016x}", header.generation, header.storage_id);
                return Err(Error::Corrupt { place: Place::Log { generation: generation.0, offset: 0 }, what });
            }
        }
        let follows = header.is_some_and(|h| self.follows(&h));
        if self.gap.is_none() && !follows {
            let first = self.expected.or(header.filter(|h| h.previous > self.flushed).map(|h| h.previous_first));
            // Its own header is missing, or a whole segment; or else the one before it ends too early.
            let early = self.kept.last().filter(|last| header.is_some_and(|h| h.previous == last.generation));
            self.gap = Some(match early {
                Some(last) => Gap { generation: last.generation, offset: last.end(), name: last.name.clone(), first },
                None => Gap { generation, offset: 0, name: name.clone(), first },
            });
        }
        self.previous = Some(generation);
        let seed = seed(storage_id, generation);
        let Some(header) = header.filter(|_| self.gap.is_none()) else {
            self.cut.push(generation);
            return self.behind_gap(header.as_ref(), &bytes, seed);
        };
        let mut number = 0;
        let (mut at, mut milestone) = (HEADER, HEADER);
        while let Some(frame) = Frame::decode(&bytes, at, seed).filter(|f| f.number == number) {
            let global = header.first_frame + u64::from(number);
            if at == HEADER || at - milestone >= MILESTONE {
                milestone = at;
                self.milestones.push((global, self.kept.len(), at as u64));
            }
            let upto = frame.durable.and_then(|upto| header.first_frame.checked_add_signed(upto));
            self.durable = self.durable.max(upto.unwrap_or(0));
            frame.records(&bytes, |offset, record| show(generation, LogAddr(offset as u64), record))?;
            number += 1;
            at = frame.payload.end;
        }
        let expected = header.first_frame + u64::from(number);
        self.expected = Some(expected);
        let gap = Gap { generation, offset: at as u64, name: name.clone(), first: Some(expected) };
        self.kept.push(Arc::new(Segment::new(&header, name, file, at as u64, len, false)));
        let mut durable = None;
        if search(&bytes, at, seed, i64::from(number) - 1, |f| durable = durable.max(f.durable)) {
            self.gap = Some(gap);
            self.refuse_if(durable.is_some_and(|upto| upto >= i64::from(number)))?;
        }
        Ok(())
    }

    /// Whether nothing is missing between what has been seen and this segment.
    fn follows(&self, header: &Header) -> bool {
        match (self.previous, self.expected) {
            (Some(previous), Some(expected)) => header.previous == previous && header.first_frame == expected,
            _ => header.previous <= self.flushed,
        }
    }

    /// Looks whether a segment that comes after a gap (or has no header) tells that what is missing had been synced.
    fn behind_gap(&mut self, header: Option<&Header>, bytes: &[u8], seed: u32) -> Result<()> {
        let mut durable: Option<i64> = None;
        search(bytes, HEADER.min(bytes.len()), seed, -1, |f| durable = durable.max(f.durable));
        let Some(gap) = self.gap.as_mut() else { return Ok(()) };
        if let Some(header) = header.filter(|h| h.previous == gap.generation) {
            gap.first.get_or_insert(header.previous_first);
        }
        let lost = match (durable, header) {
            (None, _) => false,
            // Its own first frame had been synced, and so the header and all segments before it.
            (Some(upto), None) => upto >= 0,
            // Frames up to this one had been synced. (Its own header is there: the gap is before its first frame.)
            (Some(upto), Some(header)) => {
                let first = gap.first.unwrap_or(header.first_frame.saturating_sub(1));
                i128::from(header.first_frame) + i128::from(upto) >= i128::from(first)
            }
        };
        self.refuse_if(lost)
    }

    fn refuse_if(&self, lost: bool) -> Result<()> {
        match self.gap.as_ref().filter(|_| lost) {
            Some(gap) => {
                let what = format!("{}: a synced batch is damaged or missing, later ones are there", gap.name);
                Err(Error::Corrupt { place: Place::Log { generation: gap.generation.0, offset: gap.offset }, what })
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fs::tests::Scratch;
    use super::super::fs::RealFs;
    use super::super::sim::{Fault, Random, SimFs};
    use super::*;

    const DIR: &str = "/store";

    fn log(fs: &Arc<dyn Fs>, dir: &Path) -> RowLog {
        let log = RowLog::new(Arc::clone(fs), dir, 4096, Arc::default());
        log.set_storage_id(42);
        log
    }

    #[test]
    fn the_newest_segment_is_known_until_it_is_forgotten() {
        let scratch = Scratch::new();
        let fs: Arc<dyn Fs> = Arc::new(RealFs);
        let first = log(&fs, &scratch.0);
        replay(&first, 0).unwrap();
        assert_eq!(first.newest_bytes(), 0);
        append(&first, 1, &[b"one"]).unwrap();
        append(&first, 2, &[b"a longer one"]).unwrap();
        let end = first.newest_bytes();
        assert!(end > HEADER as u64);
        first.forget(L0Id(1)).unwrap();
        assert_eq!((first.newest_bytes(), first.segment_count()), (end, 1));
        first.sync().unwrap();
        drop(first);
        let second = log(&fs, &scratch.0);
        assert_eq!(replay(&second, 1).unwrap().len(), 1);
        assert_eq!(second.newest_bytes(), end);
        second.forget(L0Id(2)).unwrap();
        assert_eq!(second.newest_bytes(), 0, "though nothing was appended to it");
        append(&second, 2, &[b"another"]).unwrap();
        assert!(second.newest_bytes() > HEADER as u64);
        second.forget(L0Id(2)).unwrap();
        assert_eq!((second.newest_bytes(), second.segment_count()), (0, 0));
        // What follows goes to a segment that is there.
        let wanted = append(&second, 3, &[b"the last"]).unwrap();
        assert_eq!(replay(&log(&fs, &scratch.0), 2).unwrap(), wanted);
        assert!(append(&second, 2, &[b"too late"]).is_err());
    }

    type Records = Vec<(u64, u64, Vec<u8>)>;

    fn replay(log: &RowLog, flushed: u64) -> Result<Records> {
        let mut all = Vec::new();
        log.replay(L0Id(flushed), &mut |g, a, r| {
            all.push((g.0, a.0, r.to_vec()));
            Ok(())
        })?;
        Ok(all)
    }

    fn append(log: &RowLog, generation: u64, records: &[&[u8]]) -> Result<Records> {
        let mut all = Vec::new();
        let link = &mut |i: usize, a: LogAddr| all.push((generation, a.0, records[i].to_vec()));
        log.append(L0Id(generation), records, &|_, wanted, _| Ok(wanted), link)?;
        Ok(all)
    }

    #[test]
    fn rows_are_read_back_mapped_or_not_before_and_after_a_replay() {
        let scratch = Scratch::new();
        let kinds: [(Arc<dyn Fs>, PathBuf); 2] =
            [(Arc::new(RealFs), scratch.0.clone()), (Arc::new(SimFs::new(1)), DIR.into())];
        for (fs, dir) in kinds {
            let log = log(&fs, &dir);
            assert_eq!(replay(&log, 0).unwrap(), []);
            let mut written = Vec::new();
            for generation in 1..4 {
                for n in 0..100 {
                    let records = [vec![n as u8; n * 7], vec![n as u8 + 1; 130]];
                    written.extend(append(&log, generation, &[&records[0], &records[1]]).unwrap());
                }
            }
            let check = |log: &RowLog| {
                for (generation, addr, record) in &written {
                    assert_eq!(&*log.row(L0Id(*generation), LogAddr(*addr)).unwrap(), record.as_slice());
                }
                assert!(log.row(L0Id(9), LogAddr(64)).is_err());
                assert!(log.row(L0Id(1), LogAddr(1 << 40)).is_err());
                assert!(append(log, 1, &[b"late"]).is_err());
            };
            check(&log);
            log.close().unwrap();
            let again = self::log(&fs, &dir);
            assert_eq!(replay(&again, 0).unwrap(), written);
            check(&again);
            append(&again, 3, &[b"more"]).unwrap();
            append(&again, 7, &[b"more"]).unwrap();
            again.forget(L0Id(2)).unwrap();
            assert!(again.row(L0Id(1), LogAddr(written[0].1)).is_ok());
            assert!(!again.release(&[L0Id(1)..=L0Id(3)]));
            assert!(again.row(L0Id(1), LogAddr(written[0].1)).is_ok());
            assert!(again.release(&[L0Id(2)..=L0Id(3)]));
            assert!(again.row(L0Id(1), LogAddr(written[0].1)).is_err());
            assert_eq!(replay(&self::log(&fs, &dir), 2).unwrap().len(), 202);
        }
    }

    /// Appends at random over a few generations, with syncs in between, and crashes: what is replayed is a prefix that holds
    /// everything synced, and is the same once more after another crash.
    #[test]
    fn a_crash_leaves_a_prefix_with_all_that_was_synced() {
        let (mut shorter, mut whole) = (0, 0);
        for seed in 0..400 {
            let sim = SimFs::new(seed);
            let fs: Arc<dyn Fs> = Arc::new(sim.clone());
            let dir = Path::new(DIR);
            let mut random = Random::new(seed);
            let (mut written, mut flushed, mut generation): (Records, u64, u64) = (Vec::new(), 0, 1);
            for _ in 0..4 {
                let log = log(&fs, dir);
                let found = replay(&log, flushed).unwrap();
                assert_eq!(found, written, "seed {seed}");
                let mut synced = written.len();
                for _ in 0..random.below(60) {
                    match random.below(12) {
                        0 => generation += 1 + random.below(2),
                        1 => {
                            log.sync().unwrap();
                            synced = written.len();
                        }
                        2 if generation > flushed + 1 => {
                            // A flush makes the oldest generation durable in another way.
                            flushed += 1;
                            let before = written.len();
                            written.retain(|(g, ..)| *g > flushed);
                            synced = synced.saturating_sub(before - written.len());
                            log.forget(L0Id(flushed)).unwrap();
                        }
                        _ => {
                            let record = vec![random.bits() as u8; random.below(900) as usize];
                            let records: Vec<&[u8]> = (0..=random.below(3)).map(|_| record.as_slice()).collect();
                            written.extend(append(&log, generation, &records).unwrap());
                        }
                    }
                }
                sim.crash();
                drop(log);
                let log = self::log(&fs, dir);
                let found = replay(&log, flushed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                assert!(written.starts_with(&found), "seed {seed}: not a prefix");
                assert!(found.len() >= synced, "seed {seed}: lost");
                if found.len() < written.len() {
                    shorter += 1
                } else {
                    whole += 1
                }
                written = found;
                sim.crash();
            }
        }
        assert!(shorter > 100 && whole > 100, "{shorter} {whole}");
    }

    #[test]
    fn damage_to_what_was_synced_is_an_error_that_names_the_place() {
        let sim = SimFs::new(3);
        let fs: Arc<dyn Fs> = Arc::new(sim.clone());
        let log = log(&fs, Path::new(DIR));
        for generation in 1..4 {
            for n in 0..5 {
                append(&log, generation, &[&[n; 50]]).unwrap();
            }
        }
        log.close().unwrap();
        drop(log);
        let files: Vec<_> = sim.files().into_iter().filter(|(name, _)| name.ends_with(segment_name(L0Id(2)))).collect();
        let (path, len) = files[0].clone();
        for at in 0..len {
            sim.damage(&path, at, 0x20);
            let error = replay(&self::log(&fs, Path::new(DIR)), 0).err();
            let said = error.unwrap_or_else(|| panic!("byte {at} was damaged unnoticed")).to_string();
            assert!(said.contains("log generation 2") && said.contains("log-000000000002.lkv"), "{said}");
            sim.damage(&path, at, 0x20);
        }
        // The last segment: all but the closing frame itself.
        let (path, len) = sim.files().into_iter().find(|(name, _)| name.ends_with(segment_name(L0Id(3)))).unwrap();
        for at in 0..len - 16 {
            sim.damage(&path, at, 0x20);
            assert!(replay(&self::log(&fs, Path::new(DIR)), 0).is_err(), "byte {at}");
            sim.damage(&path, at, 0x20);
        }
        assert_eq!(replay(&self::log(&fs, Path::new(DIR)), 0).unwrap().len(), 15);
    }

    #[test]
    fn no_room_changes_nothing_and_a_failed_sync_ends_writing() {
        let sim = SimFs::new(4);
        let fs: Arc<dyn Fs> = Arc::new(sim.clone());
        let log = log(&fs, Path::new(DIR));
        let mut written = append(&log, 1, &[b"first"]).unwrap();
        sim.set_full(true);
        assert!(matches!(append(&log, 1, &[&[1; 5000]]), Err(Error::NoSpace(_))));
        assert!(matches!(append(&log, 2, &[b"x"]), Err(Error::NoSpace(_))));
        written.extend(append(&log, 1, &[b"small"]).unwrap());
        sim.set_full(false);
        written.extend(append(&log, 2, &[&[1; 5000]]).unwrap());
        log.sync().unwrap();
        sim.crash();
        let again = self::log(&fs, Path::new(DIR));
        assert_eq!(replay(&again, 0).unwrap(), written);
        append(&again, 2, &[b"y"]).unwrap();
        sim.fault_at(sim.operations(), Fault::Error);
        assert!(matches!(again.sync(), Err(Error::Io { .. })));
        for _ in 0..2 {
            assert!(matches!(append(&again, 2, &[b"z"]), Err(Error::Unavailable(_))));
            assert!(matches!(again.sync(), Err(Error::Unavailable(_))));
        }
    }
}
