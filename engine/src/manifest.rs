//! The manifest: what the table consists of. The meta page holds its head; the runs stand in manifest pages beside it.
//!
//! ```text
//! meta page contents                                     manifest page contents
//! | magic u32 | format u32 | storage id u64 | sum u64 |   | a piece of the body ... |
//! | head: varints (version, high-water marks, ...)    |
//! | log extents | pending extents | host bytes        |   body: | number of runs | run | run | ...
//! | body: length, sum u64, extents                    |   | number of value extents | extent | extent | ...
//!
//! run: | id | level u8 | settled, cut: bits of a u8 | first, last L0 id | extents | number of uses | extent seq, bytes | ... |
//!      | shape | of what was cut: key, data pages |
//! ```
//!
//! The format is 2 while there are cuts, else 1. A change of the runs or of the value extents writes a new body into fresh pages and
//! then flips the meta page to it; a change of the log extents alone rewrites the meta page only. Sums are FNV-1a over the bytes, so that a body that belongs to another
//! flip is found even where the host's checksums are off.
//!
//! Keeps I1 (runs partition the L0 ids), I13 (high-water marks never fall), I16 (what a run points into is named).

use crate::bytes::{put_bytes, put_varint, Reader};
use crate::error::{Error, Result};
use crate::extent::FreeSpace;
use crate::host::Ended;
use crate::key_text::hex;
use crate::page::{PageBuf, PageKind, CAPACITY};
use crate::pieces::Pieces;
use crate::run::{Cut, Run, RunShape};
use crate::types::{Extent, ExtentSeq, L0Id, PageNo, RowId, RunId};
use std::collections::TryReserveError;

const MAGIC: u32 = 0x4c4b_5631;
const FORMAT: u32 = 1;
/// With runs that were cut.
const FORMAT_WITH_CUTS: u32 = 2;
/// Magic, format, storage id, sum.
const FIXED: usize = 4 + 4 + 8 + 8;

/// One run as the manifest names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDesc {
    pub id: RunId,
    pub level: u8,
    /// The contiguous interval of L0 ids that this run covers, both ends included (I1).
    pub first_l0: L0Id,
    pub last_l0: L0Id,
    pub extents: Pieces,
    /// What its rows point to in the value log, by extent, ascending.
    pub values: Vec<ValueUse>,
    /// Set once by the run writer.
    pub shape: RunShape,
    /// No writer of the run is in progress or aborted: its versions need no look-up of their writer's fate.
    pub settled: bool,
    /// Rows below a key are in older neighbours by now, which a merge that goes on has made of them (its slices), or which are
    /// themselves slices of that merge.
    pub cut: Option<Cut>,
}

const SETTLED: u8 = 1;
const CUT: u8 = 2;

impl RunDesc {
    /// For reading.
    #[inline]
    pub fn run(&self) -> Run<'_> {
        Run { cut: self.cut.as_ref(), ..Run::new(&self.shape, &self.extents) }
    }

    /// Whether all its writers have ended.
    pub fn is_finished(&self, ended: &Ended) -> bool {
        self.settled || ended.all_of(self.shape.min_writer, self.shape.max_writer)
    }

    /// The first key that it has.
    pub fn min_key(&self) -> &[u8] {
        self.cut.as_ref().map_or(&self.shape.min_key, |cut| &cut.key)
    }

    /// Whether the key is among those from its first to its last.
    pub fn spans(&self, key: &[u8]) -> bool {
        self.min_key() <= key && key <= self.shape.max_key.as_slice()
    }

    /// Whether its neighbour has what it had of the key.
    #[inline]
    pub fn lacks(&self, key: &[u8]) -> bool {
        self.cut.as_ref().is_some_and(|cut| key < cut.key.as_slice())
    }

    /// A slice of a merge that goes on covers no L0 ids: the way to it leads over the runs that were cut for it.
    pub fn is_slice(&self) -> bool {
        self.last_l0 < self.first_l0
    }

    /// Its L0 ids begin here; those of a slice, which has none, too.
    pub fn begin_at(&mut self, first: L0Id) {
        if self.is_slice() {
            self.last_l0 = L0Id(first.0 - 1);
        }
        self.first_l0 = first;
    }

    /// Row versions; about so many, if it was cut.
    pub fn rows(&self) -> u64 {
        self.left_of(self.shape.rows)
    }

    /// How much of something that the whole run had is left.
    pub fn left_of(&self, whole: u64) -> u64 {
        let (all, gone) = (u64::from(self.shape.data_pages.max(1)), self.cut.as_ref().map_or(0, |cut| cut.pages));
        let left = all.saturating_sub(u64::from(gone));
        (u128::from(whole) * u128::from(left) / u128::from(all)) as u64
    }

    /// Versions that are left of it which have a newer one of their key in it.
    pub fn outdated(&self) -> u64 {
        self.left_of(self.shape.rows - self.shape.keys)
    }

    pub fn pages(&self) -> u64 {
        self.extents.iter().map(|e| u64::from(e.pages)).sum()
    }

    /// Bytes in the value log that its rows point to.
    pub fn value_bytes(&self) -> u64 {
        self.values.iter().map(|v| v.bytes).sum()
    }

    pub fn uses(&self, seq: ExtentSeq) -> bool {
        self.values.binary_search_by_key(&seq, |v| v.seq).is_ok()
    }
}

/// How much of a value extent a run's rows point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueUse {
    pub seq: ExtentSeq,
    pub bytes: u64,
}

/// A piece of the row log that lives in the page store (hosts whose log is elsewhere have none).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogExtent {
    pub generation: L0Id,
    pub tail: u16,
    pub extent: Extent,
}

/// The table's durable state, all of it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Manifest {
    pub storage_id: u64,
    /// Counts flips.
    pub version: u64,
    /// Oldest first; their intervals are adjacent and ascending.
    pub runs: Vec<RunDesc>,
    pub log_extents: Vec<LogExtent>,
    /// The value log.
    pub values: Vec<Extent>,
    /// Extents under construction: nobody's after a crash.
    pub pending: Vec<Extent>,
    /// Where the body stands.
    pub body: Vec<Extent>,
    /// The newest generation that is in a run (generations above it are in the row log).
    pub flushed: L0Id,
    /// No generation from this one on was begun.
    pub next_generation: L0Id,
    pub next_row_id: RowId,
    pub next_run: RunId,
    pub next_seq: ExtentSeq,
    /// Pages from here on were never used.
    pub allocated: u32,
    /// The host's own durable bytes for the table (at most 64).
    pub host: Vec<u8>,
}

/// A copy of plain values that does not abort for want of memory.
pub fn try_copy<T: Copy>(from: &[T]) -> std::result::Result<Vec<T>, TryReserveError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(from.len())?;
    copy.extend_from_slice(from);
    Ok(copy)
}

impl RunDesc {
    pub fn try_clone(&self) -> std::result::Result<RunDesc, TryReserveError> {
        let RunDesc { id, level, first_l0, last_l0, settled, .. } = *self;
        let (min_key, max_key) = (try_copy(&self.shape.min_key)?, try_copy(&self.shape.max_key)?);
        let shape = RunShape { min_key, max_key, ..self.shape };
        let (extents, values) = (Pieces::try_of(&self.extents)?, try_copy(&self.values)?);
        let cut = match &self.cut {
            Some(Cut { key, pages }) => Some(Cut { key: try_copy(key)?, pages: *pages }),
            None => None,
        };
        Ok(RunDesc { id, level, first_l0, last_l0, extents, values, shape, settled, cut })
    }
}

impl Manifest {
    /// A copy in memory that may run out, such as the shared heap's: before the point of no return, for it may fail.
    pub fn try_clone(&self) -> std::result::Result<Manifest, TryReserveError> {
        let mut runs = Vec::new();
        runs.try_reserve_exact(self.runs.len())?;
        for run in &self.runs {
            runs.push(run.try_clone()?);
        }
        Ok(Manifest {
            runs,
            log_extents: try_copy(&self.log_extents)?,
            values: try_copy(&self.values)?,
            pending: try_copy(&self.pending)?,
            body: try_copy(&self.body)?,
            host: try_copy(&self.host)?,
            ..*self
        })
    }

    /// An empty table's.
    pub fn new(storage_id: u64) -> Manifest {
        Manifest {
            storage_id,
            next_generation: L0Id(1),
            next_run: RunId(1),
            next_seq: ExtentSeq(1),
            allocated: 1,
            ..Manifest::default()
        }
    }

    /// Every extent that has an owner after a crash.
    pub fn owned(&self) -> impl Iterator<Item = Extent> + '_ {
        let runs = self.runs.iter().flat_map(|r| r.extents.iter().copied());
        let logs = self.log_extents.iter().map(|l| l.extent);
        runs.chain(logs).chain(self.values.iter().copied()).chain(self.body.iter().copied())
    }

    /// Checks I1, I13 and I16 over the whole.
    pub fn check(&self) -> Result<()> {
        let mut next = L0Id(1);
        let mut named: Vec<ExtentSeq> = self.values.iter().map(|e| e.seq).collect();
        named.sort_unstable();
        for (at, run) in self.runs.iter().enumerate() {
            let ends = run.last_l0.0.checked_add(1);
            if run.first_l0 != next || ends.is_none_or(|end| end < next.0) {
                let found = format!("run {} covers {}..{} where {next} was to come", run.id, run.first_l0, run.last_l0);
                return Err(Error::structure(found));
            }
            if run.id >= self.next_run || run.shape.max_row >= self.next_row_id {
                return Err(Error::structure(format!("run {} is above the high-water marks", run.id)));
            }
            let unnamed = run.values.iter().find(|v| named.binary_search(&v.seq).is_err());
            if let Some(ValueUse { seq, .. }) = unnamed {
                return Err(Error::structure(format!("run {} points into value extent {seq}, which is gone", run.id)));
            }
            next = L0Id(ends.unwrap_or(u64::MAX));
            // The way to a slice, and from a run that was cut.
            let newer_is_cut = || self.runs.get(at + 1).is_some_and(|newer| newer.cut.is_some());
            if run.is_slice() && !newer_is_cut() || run.cut.is_some() && at == 0 {
                return Err(Error::structure(format!("run {} belongs to a merge that is not there", run.id)));
            }
        }
        if next.0 > self.flushed.0.saturating_add(1) || self.flushed >= self.next_generation {
            return Err(Error::structure(format!("runs end before {next}, flushed up to {}", self.flushed)));
        }
        Ok(())
    }

    /// The body as bytes, to be put into manifest pages.
    pub fn encode_body(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.runs.len() * 128);
        put_varint(&mut out, self.runs.len() as u64);
        for run in &self.runs {
            put_varint(&mut out, run.id.0);
            out.push(run.level);
            out.push(if run.settled { SETTLED } else { 0 } | if run.cut.is_some() { CUT } else { 0 });
            put_varint(&mut out, run.first_l0.0);
            put_varint(&mut out, run.last_l0.0);
            put_extents(&mut out, &run.extents);
            put_varint(&mut out, run.values.len() as u64);
            for used in &run.values {
                put_varint(&mut out, used.seq.0);
                put_varint(&mut out, used.bytes);
            }
            let mut shape = Vec::new();
            run.shape.encode(&mut shape);
            put_bytes(&mut out, &shape);
            if let Some(cut) = &run.cut {
                put_bytes(&mut out, &cut.key);
                put_varint(&mut out, u64::from(cut.pages));
            }
        }
        put_extents(&mut out, &self.values);
        out
    }

    /// The meta page. `body` is what `encode_body` gave when the body was last written.
    pub fn encode_meta(&self, body: &[u8]) -> Result<PageBuf> {
        let mut head = Vec::with_capacity(512);
        for value in [
            self.version,
            self.flushed.0,
            self.next_generation.0,
            self.next_row_id.0,
            self.next_run.0,
            self.next_seq.0,
            u64::from(self.allocated),
        ] {
            put_varint(&mut head, value);
        }
        put_varint(&mut head, self.log_extents.len() as u64);
        for log in &self.log_extents {
            put_varint(&mut head, log.generation.0);
            put_varint(&mut head, u64::from(log.tail));
            put_extent(&mut head, &log.extent);
        }
        put_extents(&mut head, &self.pending);
        put_bytes(&mut head, &self.host);
        put_varint(&mut head, body.len() as u64);
        head.extend_from_slice(&sum(body).to_le_bytes());
        put_extents(&mut head, &self.body);

        if FIXED + head.len() > CAPACITY {
            let (logs, pending) = (self.log_extents.len(), self.pending.len());
            let much = format!("{logs} extents of the log and {pending} under construction do not fit the meta page");
            return Err(Error::NoSpace(much));
        }
        let mut contents = Vec::with_capacity(FIXED + head.len());
        contents.extend_from_slice(&MAGIC.to_le_bytes());
        let cuts = self.runs.iter().any(|run| run.cut.is_some());
        let format = if cuts { FORMAT_WITH_CUTS } else { FORMAT };
        contents.extend_from_slice(&format.to_le_bytes());
        contents.extend_from_slice(&self.storage_id.to_le_bytes());
        contents.extend_from_slice(&sum(&head).to_le_bytes());
        contents.extend_from_slice(&head);
        let mut page = PageBuf::ZERO;
        page.init(PageKind::Meta, ExtentSeq(0));
        page.fill(&contents)?;
        Ok(page)
    }

    /// Reads the head from a meta page; the rest comes with [`Manifest::read_body`].
    pub fn decode_meta(page: &PageBuf) -> Result<(Manifest, BodyRef)> {
        let contents = page.expect(PageNo(0), PageKind::Meta, ExtentSeq(0))?;
        let mut reader = Reader::new(contents);
        if reader.u32()? != MAGIC {
            return Err(Error::page(PageNo(0), 0, "not a LooseKV meta page"));
        }
        let format = reader.u32()?;
        if !(FORMAT..=FORMAT_WITH_CUTS).contains(&format) {
            return Err(Error::Format { found: format, known: FORMAT_WITH_CUTS });
        }
        let storage_id = reader.u64()?;
        let expected = reader.u64()?;
        if sum(contents.get(FIXED..).unwrap_or_default()) != expected {
            return Err(Error::page(PageNo(0), 0, "the meta page's sum is wrong"));
        }
        let mut manifest = Manifest { storage_id, version: reader.varint()?, ..Manifest::default() };
        manifest.flushed = L0Id(reader.varint()?);
        manifest.next_generation = L0Id(reader.varint()?);
        manifest.next_row_id = RowId(reader.varint()?);
        manifest.next_run = RunId(reader.varint()?);
        manifest.next_seq = ExtentSeq(reader.varint()?);
        manifest.allocated = reader.varint32()?;
        for _ in 0..reader.varint()? {
            let generation = L0Id(reader.varint()?);
            let tail = reader.varint()? as u16;
            manifest.log_extents.push(LogExtent { generation, tail, extent: get_extent(&mut reader)? });
        }
        manifest.pending = get_extents(&mut reader)?;
        manifest.host = reader.bytes()?.to_vec();
        let length = reader.varint()? as usize;
        let sum = reader.u64()?;
        manifest.body = get_extents(&mut reader)?;
        Ok((manifest, BodyRef { length, sum }))
    }

    /// Fills in the runs and the value extents from the bytes of the manifest pages.
    pub fn read_body(&mut self, body: &BodyRef, bytes: &[u8]) -> Result<()> {
        if bytes.len() != body.length || sum(bytes) != body.sum {
            return Err(Error::structure("the manifest pages are not those that the meta page names"));
        }
        self.runs.clear();
        self.values.clear();
        if bytes.is_empty() {
            return Ok(());
        }
        let mut reader = Reader::new(bytes);
        for _ in 0..reader.varint()? {
            let id = RunId(reader.varint()?);
            let level = reader.byte()?;
            let flags = reader.byte()?;
            if flags & !(SETTLED | CUT) != 0 {
                return Err(Error::structure(format!("run {id} has unknown flags {flags:#x}")));
            }
            let first_l0 = L0Id(reader.varint()?);
            let last_l0 = L0Id(reader.varint()?);
            let extents = get_extents(&mut reader)?.into();
            let values = get_uses(&mut reader)?;
            let (shape, _) = RunShape::decode(reader.bytes()?)?;
            let settled = flags & SETTLED != 0;
            let cut = match flags & CUT {
                0 => None,
                _ => Some(get_cut(&mut reader, &shape)?),
            };
            self.runs.push(RunDesc { id, level, first_l0, last_l0, extents, values, shape, settled, cut });
        }
        self.values = get_extents(&mut reader)?;
        self.check()
    }
}

/// Lets each run (oldest first) begin where the one before it ends: where a merge has left nothing, the next newer run
/// takes over the interval. Manifest and superversions do so at every change, and so agree in whatever order flushes and
/// merges reach them.
pub fn close_gaps(oldest_first: &mut [RunDesc]) {
    let mut next = L0Id(1);
    for run in oldest_first {
        run.begin_at(next);
        next = L0Id(run.last_l0.0 + 1);
    }
}

/// What the meta page knows of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyRef {
    pub length: usize,
    sum: u64,
}

impl BodyRef {
    /// Manifest pages that the body fills.
    pub fn pages(length: usize) -> u32 {
        length.div_ceil(CAPACITY) as u32
    }
}

/// FNV-1a.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, b| (sum ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

fn put_extent(out: &mut Vec<u8>, extent: &Extent) {
    put_varint(out, u64::from(extent.start.0));
    put_varint(out, u64::from(extent.pages));
    put_varint(out, extent.seq.0);
}

fn put_extents(out: &mut Vec<u8>, extents: &[Extent]) {
    put_varint(out, extents.len() as u64);
    extents.iter().for_each(|e| put_extent(out, e));
}

fn get_extent(reader: &mut Reader<'_>) -> Result<Extent> {
    let start = PageNo(reader.varint32()?);
    let pages = reader.varint32()?;
    if start.0.checked_add(pages).is_none() {
        return Err(Error::structure(format!("an extent of {pages} pages begins at page {start}")));
    }
    Ok(Extent { start, pages, seq: ExtentSeq(reader.varint()?) })
}

fn get_extents(reader: &mut Reader<'_>) -> Result<Vec<Extent>> {
    let count = reader.varint()?;
    let mut extents = Vec::new();
    for _ in 0..count {
        extents.push(get_extent(reader)?);
    }
    Ok(extents)
}

fn get_cut(reader: &mut Reader<'_>, shape: &RunShape) -> Result<Cut> {
    let (key, pages) = (reader.bytes()?.to_vec(), reader.varint32()?);
    if key > shape.max_key || key < shape.min_key || pages >= shape.data_pages {
        let found = format!("a run of {} data pages was cut at page {pages}, key {}", shape.data_pages, hex(&key));
        return Err(Error::structure(found));
    }
    Ok(Cut { key, pages })
}

fn get_uses(reader: &mut Reader<'_>) -> Result<Vec<ValueUse>> {
    let mut uses: Vec<ValueUse> = Vec::new();
    for _ in 0..reader.varint()? {
        let used = ValueUse { seq: ExtentSeq(reader.varint()?), bytes: reader.varint()? };
        if uses.last().is_some_and(|last| last.seq >= used.seq) {
            return Err(Error::structure(format!("value extent {} is out of order", used.seq)));
        }
        uses.push(used);
    }
    Ok(uses)
}

/// For fuzzing: arbitrary contents of a meta page. The sum is put right: else nothing behind it is reached.
pub fn fuzz_meta(contents: &[u8]) {
    let mut contents = contents.to_vec();
    let sum = sum(contents.get(FIXED..).unwrap_or_default());
    if let Some(place) = contents.get_mut(FIXED - 8..FIXED) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
    let mut page = PageBuf::ZERO;
    page.init(PageKind::Meta, ExtentSeq(0));
    if page.fill(&contents).is_err() {
        return;
    }
    if let Ok((manifest, _)) = Manifest::decode_meta(&page) {
        let _ = FreeSpace::complement(1, manifest.allocated, manifest.owned());
        let _ = manifest.encode_meta(&[]);
        let _ = manifest.check();
    }
}

/// For fuzzing: arbitrary bytes of manifest pages.
pub fn fuzz_body(bytes: &[u8]) {
    let max = Manifest {
        flushed: L0Id(u64::MAX - 1),
        next_generation: L0Id(u64::MAX),
        next_run: RunId(u64::MAX),
        next_row_id: RowId(u64::MAX),
        allocated: u32::MAX,
        ..Manifest::new(1)
    };
    let read = |bytes: &[u8]| {
        let mut manifest = max.clone();
        manifest.read_body(&BodyRef { length: bytes.len(), sum: sum(bytes) }, bytes).map(|()| manifest)
    };
    if let Ok(manifest) = read(bytes) {
        let _ = FreeSpace::complement(1, manifest.allocated, manifest.owned());
        assert_eq!(read(&manifest.encode_body()).ok(), Some(manifest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::CONTENT;

    fn extent(start: u32, pages: u32, seq: u64) -> Extent {
        Extent { start: PageNo(start), pages, seq: ExtentSeq(seq) }
    }

    fn sample() -> Manifest {
        let used = |seq, bytes| ValueUse { seq: ExtentSeq(seq), bytes };
        let run = |id, first, last, values| RunDesc {
            id: RunId(id),
            level: 1,
            first_l0: L0Id(first),
            last_l0: L0Id(last),
            extents: vec![extent(9, 4, 6)].into(),
            values,
            shape: RunShape::default(),
            settled: true,
            cut: None,
        };
        Manifest {
            runs: vec![run(1, 1, 2, vec![]), run(2, 3, 3, vec![used(7, 300), used(8, 1 << 20)])],
            values: vec![extent(100, 200, 8), extent(50, 1, 7)],
            flushed: L0Id(3),
            next_generation: L0Id(4),
            next_run: RunId(3),
            next_row_id: RowId(1),
            next_seq: ExtentSeq(9),
            ..Manifest::new(5)
        }
    }

    fn reread(manifest: &Manifest, bytes: &[u8]) -> Result<Manifest> {
        let page = manifest.encode_meta(bytes)?;
        let (mut again, body) = Manifest::decode_meta(&page)?;
        again.read_body(&body, bytes)?;
        Ok(again)
    }

    #[test]
    fn round_trips() {
        let manifest = sample();
        assert_eq!(reread(&manifest, &manifest.encode_body()).unwrap(), manifest);
        assert_eq!(manifest.owned().map(|e| e.pages).sum::<u32>(), 4 + 4 + 200 + 1);
        assert_eq!(manifest.runs[1].value_bytes(), 300 + (1 << 20));
    }

    // Changing any of these bytes is a new format version.
    #[test]
    fn golden_value_extents() {
        let body = sample().encode_body();
        let shape = {
            let mut bytes = Vec::new();
            RunShape::default().encode(&mut bytes);
            bytes
        };
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let run = |head: &str| format!("{head}{:02x}{}", shape.len(), hex(&shape));
        let expected = format!(
            "02{}{}02 64c80108 320107",
            run("0101010102 01090406 00"),
            run("0201010303 01090406 0207ac0208808040")
        );
        assert_eq!(hex(&body), expected.replace(' ', ""));
    }

    /// A slice, and a run that was cut for it.
    fn cut() -> Manifest {
        let mut manifest = sample();
        let shape = RunShape { data_pages: 5, min_key: b"a".to_vec(), max_key: b"z".to_vec(), ..RunShape::default() };
        manifest.values.clear();
        for (run, last_l0) in manifest.runs.iter_mut().zip([0, 3]) {
            (run.first_l0, run.last_l0) = (L0Id(1), L0Id(last_l0));
            (run.values, run.shape) = (Vec::new(), shape.clone());
        }
        manifest.runs[1].cut = Some(Cut { key: b"key".to_vec(), pages: 2 });
        manifest
    }

    // As above.
    #[test]
    fn golden_cut() {
        let manifest = cut();
        let body = manifest.encode_body();
        assert_eq!(reread(&manifest, &body).unwrap(), manifest);
        let format = |manifest: &Manifest| manifest.encode_meta(&[]).unwrap().0[CONTENT + 4];
        assert_eq!((format(&sample()), format(&manifest)), (1, 2));
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let mut shape = Vec::new();
        manifest.runs[0].shape.encode(&mut shape);
        let shape = format!("{:02x}{}", shape.len(), hex(&shape));
        let expected = format!("02 0101010100 01090406 00 {shape} 0201030103 01090406 00 {shape} 036b657902 00");
        assert_eq!(hex(&body), expected.replace(' ', ""));
    }

    #[test]
    fn other_formats_are_not_taken_for_this_one() {
        let body = sample().encode_body();
        let page = sample().encode_meta(&body).unwrap();
        for format in [0, 3, 0x0100_0001, u32::MAX] {
            let mut other = page.clone();
            other.0[CONTENT + 4..CONTENT + 8].copy_from_slice(&format.to_le_bytes());
            let read = Manifest::decode_meta(&other);
            assert!(matches!(read, Err(Error::Format { found, known: 2 }) if found == format), "{read:?}");
        }
        // A run of another version in a manifest of this one: the version is the first byte of its shape.
        let mut shape = Vec::new();
        RunShape::default().encode(&mut shape);
        let at = body.windows(shape.len()).position(|bytes| bytes == shape).unwrap();
        let mut other = body;
        other[at] = 2;
        let read = reread(&sample(), &other);
        assert!(matches!(read, Err(Error::Format { found: 2, known: 1 })), "{read:?}");
    }

    #[test]
    fn a_slice_stands_behind_a_run_that_was_cut() {
        let mut manifest = cut();
        manifest.runs[1].cut = None;
        assert!(manifest.check().unwrap_err().to_string().contains("belongs to a merge that is not there"));
        let mut manifest = cut();
        manifest.runs.remove(0);
        assert!(manifest.check().unwrap_err().to_string().contains("belongs to a merge that is not there"));
        for (key, pages) in [(&b"A"[..], 2), (b"zz", 2), (b"key", 5)] {
            let mut manifest = cut();
            manifest.runs[1].cut = Some(Cut { key: key.to_vec(), pages });
            let said = reread(&manifest, &manifest.encode_body()).unwrap_err().to_string();
            assert!(said.contains("was cut at page"), "{said}");
        }
    }

    #[test]
    fn a_run_points_into_named_extents_only() {
        let mut manifest = sample();
        manifest.values.pop();
        let said = manifest.check().unwrap_err().to_string();
        assert!(said.contains("run 2 points into value extent 7, which is gone"), "{said}");
        let mut manifest = sample();
        manifest.runs[1].values.swap(0, 1);
        assert!(reread(&manifest, &manifest.encode_body()).is_err());
    }

    #[test]
    fn arbitrary_bodies_never_panic() {
        let body = sample().encode_body();
        let mut state = 3u64;
        for _ in 0..20_000 {
            let mut bytes = body.clone();
            for _ in 0..1 + state % 3 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 20) as u8;
                if state >> 60 == 0 {
                    bytes.truncate(at);
                    break;
                }
            }
            if !bytes.is_empty() {
                let _ = reread(&sample(), &bytes);
            }
        }
    }
}
