//! From pages to shared state: a table's first page, and its first use after a start.
//!
//! The manifest is read, and the row log of the generations that are in no run is replayed into frozen memtables, which
//! will be flushed in the ordinary way. The key index begins empty ([`Tree::rebuild_index`] fills it); reads are right
//! meanwhile. Keeps I13, I17, I19.

use crate::error::{Consumer, Error, Result};
use crate::extent::FreeSpace;
use crate::host::{Flip, Host};
use crate::manifest::{try_copy, BodyRef, Manifest};
use crate::mutation::{on, Mutation::*};
use crate::options::TreeOptions;
use crate::page::{PageBuf, PageKind, CAPACITY};
use crate::row::decode_record;
use crate::row_cache::RowCache;
use crate::tree::shared::{first_generation, generation_of_log, reserve_version, share_run, Shared, BLANK};
use crate::tree::version::{Edit, Generation, SuperVersion};
use crate::tree::Tree;
use crate::types::{L0Id, PageNo, RowId, Writer};
use loosekv_shm::{heap, scope};
use std::collections::{BTreeMap, TryReserveError};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// Page 0 is the meta page.
pub(crate) const FIRST_PAGE: u32 = 1;
/// Row ids of one generation may come in any order, but not further apart than this.
const DISORDER: u64 = 1 << 30;

impl<H: Host> Tree<'_, H> {
    /// Makes an empty table: its first meta page.
    pub fn create(host: &H, storage_id: u64) -> Result<()> {
        let manifest = Manifest::new(storage_id);
        let mut page = manifest.encode_meta(&[])?;
        host.extend(FIRST_PAGE)?;
        host.flip(&mut page, &Flip::default())
    }

    /// Builds the shared state from the pages, to write on.
    pub fn load(host: &H, options: &TreeOptions) -> Result<Box<Shared<H>>> {
        let manifest = read_first(host)?;
        Self::load_with(host, options, manifest, |active, row, writer| {
            first_generation(active, row, writer, options.memtable_bytes)
        })
    }

    /// The same on a standby, where what comes next has been written already.
    pub fn load_to_follow(host: &H, options: &TreeOptions) -> Result<Box<Shared<H>>> {
        let manifest = read_first(host)?;
        Self::load_with(host, options, manifest, |active, row, writer| memtable_of_log(active, row, writer, options))
    }

    /// The same of a table whose first meta page is still to come: it is empty, until that is followed.
    pub fn blank_to_follow(host: &H, options: &TreeOptions) -> Result<Box<Shared<H>>> {
        let manifest = (Manifest::new(BLANK), Vec::new());
        Self::load_with(host, options, manifest, |active, row, writer| memtable_of_log(active, row, writer, options))
    }

    fn load_with(
        host: &H,
        options: &TreeOptions,
        (mut manifest, body): (Manifest, Vec<u8>),
        new_active: impl FnOnce(L0Id, RowId, Writer) -> Result<Arc<Generation>>,
    ) -> Result<Box<Shared<H>>> {
        // Whoever was building there is gone.
        manifest.pending.clear();
        let replayed = Replayed::read(host, &manifest, options)?;

        let mut free = FreeSpace::complement(FIRST_PAGE, manifest.allocated, manifest.owned())?;
        // After a crash the store may end before pages that were handed out and not written to.
        free.end_by(host.pages()?);
        let replayed_rows = if on(I13RowIdsReused) { RowId(0) } else { replayed.next_row };
        let next_row = manifest.next_row_id.max(replayed_rows);
        let newest = replayed.tables.keys().next_back().copied().max(Some(host.newest_log()));
        let last = newest.filter(|_| !on(I13GenerationsReused)).unwrap_or(L0Id(0));
        let active = L0Id(manifest.next_generation.0.max(last.0 + 1));
        let active = new_active(active, next_row, replayed.last_writer)?;
        let last_writer = replayed.last_writer;
        // A manifest may be too large for what memory there is.
        let full = || Error::no_memory(Consumer::Versions, 0);
        let frozen = shared_list(replayed.tables.into_values().rev().map(Some)).ok_or_else(full)?;
        let runs = shared_list(manifest.runs.iter().rev().map(share_run)).ok_or_else(full)?;
        let copies = || Ok((manifest.try_clone()?, try_copy(&body)?, free.try_clone()?));
        let (manifest, body, free) = scope::with(copies).map_err(|_: TryReserveError| full())?;
        reserve_version(runs.len(), Some(std::mem::size_of::<Shared<H>>())).map_err(|_| full())?;
        scope::with(|| {
            let indexed_from = L0Id(manifest.flushed.0 + 1);
            let parts = Edit { active, frozen, runs, flushed: manifest.flushed, indexed_from };
            let first = SuperVersion::new(host.first_version(), parts)?;
            let options = options.clone();
            let mut shared = Shared::assemble(options, manifest, body, free, first, next_row, last_writer);
            shared.note_overdue_at_load();
            shared.cached = host.row_cache().map(RowCache::new_table).unwrap_or_default();
            Ok(Box::new(shared))
        })
    }
}

/// A list in shared memory. `None`: there is no room for it, or for one of its members.
pub(super) fn shared_list<T>(members: impl ExactSizeIterator<Item = Option<T>>) -> Option<Vec<T>> {
    let mut list = Vec::new();
    scope::with(|| list.try_reserve_exact(members.len())).ok()?;
    for member in members {
        list.push(member?);
    }
    Some(list)
}

fn read_first<H: Host>(host: &H) -> Result<(Manifest, Vec<u8>)> {
    let page = host.read_meta()?.ok_or_else(|| Error::structure("the table has no meta page"))?;
    read_manifest(host, &page)
}

/// The whole manifest, and its body's bytes.
pub(super) fn read_manifest<H: Host>(host: &H, page: &PageBuf) -> Result<(Manifest, Vec<u8>)> {
    let (mut manifest, body) = Manifest::decode_meta(page)?;
    let mut bytes = Vec::with_capacity(body.length.min(1 << 24));
    let mut left = BodyRef::pages(body.length);
    for extent in &manifest.body {
        for at in 0..extent.pages.min(left) {
            let no = PageNo(extent.start.0 + at);
            let contents = host.read_page(no)?;
            let contents = contents.expect(no, PageKind::Manifest, extent.seq)?;
            bytes.extend_from_slice(contents.get(..contents.len().min(CAPACITY)).unwrap_or_default());
        }
        left -= extent.pages.min(left);
    }
    manifest.read_body(&body, &bytes)?;
    Ok((manifest, bytes))
}

/// A memtable for rows that are in the log already. `row` is about the lowest row id.
pub(super) fn memtable_of_log(
    generation: L0Id,
    row: RowId,
    writer: Writer,
    options: &TreeOptions,
) -> Result<Arc<Generation>> {
    // What was logged fitted a memtable of its time and place; give it room even if memtables are smaller here and now.
    let bytes = options.memtable_bytes.saturating_mul(4).max(256 << 20).max(heap::stats().size as u64);
    generation_of_log(generation, RowId(row.0.saturating_sub(DISORDER)), writer, bytes)
}

/// The row log of the generations that are in no run.
struct Replayed {
    tables: BTreeMap<L0Id, Arc<Generation>>,
    next_row: RowId,
    last_writer: Writer,
}

impl Replayed {
    fn read<H: Host>(host: &H, manifest: &Manifest, options: &TreeOptions) -> Result<Replayed> {
        // A memtable takes row ids from a base on, and a log may show them in any order: so first the lowest of each.
        let mut lowest: BTreeMap<L0Id, (RowId, Writer)> = BTreeMap::new();
        host.replay(manifest, &mut |generation, _, record| {
            let (row, _) = decode_record(record)?;
            let base = lowest.entry(generation).or_insert((row.head.row_id, row.head.writer));
            base.0 = base.0.min(row.head.row_id);
            Ok(())
        })?;
        if on(I17GenerationLost) {
            lowest.pop_last();
        }
        let mut replayed = Replayed { tables: BTreeMap::new(), next_row: RowId(0), last_writer: Writer(0) };
        for (generation, (base, writer)) in lowest {
            if generation <= manifest.flushed {
                return Err(Error::structure(format!("the row log shows generation {generation}, which is in a run")));
            }
            replayed.tables.insert(generation, memtable_of_log(generation, base, writer, options)?);
        }
        host.replay(manifest, &mut |generation, addr, record| {
            let (row, _) = decode_record(record)?;
            let Some(table) = replayed.tables.get(&generation) else {
                if on(I17GenerationLost) {
                    return Ok(());
                }
                return Err(Error::structure("the row log changed while it was replayed"));
            };
            let full = || Error::no_memory(Consumer::Memtable, options.memtable_bytes);
            let room = table.table.room(row.key.len(), &row.head).ok_or_else(full)?;
            let splice = table.table.probe_for(row.key, &room);
            table.table.link(&splice, room, row.key, &row.head, addr);
            table.logged.fetch_add((row.key.len() + row.body.len()) as u64, Relaxed);
            replayed.next_row = replayed.next_row.max(RowId(row.head.row_id.0 + 1));
            replayed.last_writer = replayed.last_writer.max(row.head.writer);
            Ok(())
        })?;
        Ok(replayed)
    }
}
