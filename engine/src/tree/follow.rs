//! Following: a standby's shared state keeps up with pages that somebody else writes.
//!
//! ```text
//!  a changed meta page  ->  runs of the new manifest, memtables above what it has flushed  ->  superversion
//!  new log records      ->  linked into the memtable of their generation
//! ```
//!
//! A table that has no meta page yet is followed from nothing on ([`Tree::blank_to_follow`]): it has no rows before its first one.
//!
//! Nothing is written. Records may be shown again and in any order of the tails, for the row id tells which are there already.
//! What a new manifest no longer names waits in limbo as it does where it is written, so that it can be told who still reads
//! an extent that is about to be used again ([`Shared::holders`]). When the standby becomes a primary, the same state goes on
//! ([`Tree::take_over`]).
//!
//! One follower at a time: the caller sees to it. Keeps I1, I13, I19.

use crate::error::{Consumer, Error, Result};
use crate::extent::FreeSpace;
use crate::host::Host;
use crate::manifest::{try_copy, LogExtent, Manifest, RunDesc};
use crate::mutation::{on, Mutation::BarrenNotForgotten};
use crate::page::PageBuf;
use crate::row::decode_record;
use crate::tree::given_up::{given_up, without};
use crate::tree::load::{memtable_of_log, read_manifest, shared_list, FIRST_PAGE};
use crate::tree::shared::{reserve_version, share_run, Limbo, Owner, Shared};
use crate::tree::value_space::limbo_of_values;
use crate::tree::version::{Generation, SuperVersion};
use crate::tree::Tree;
use crate::types::{Extent, L0Id, LogAddr, RowId, Writer};
use loosekv_shm::{scope, RawLatch};
use std::collections::TryReserveError;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// A manifest that was read but not installed yet: whoever read it may find that its pages changed meanwhile.
pub struct Next {
    manifest: Manifest,
    body: Vec<u8>,
}

/// A superversion that names an extent which is to be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its address: what [`Host::note_pin`] was told.
    pub version: usize,
    /// It can still be pinned anew.
    pub current: bool,
    pub pinned: bool,
}

impl<H: Host> Tree<'_, H> {
    /// Reads the manifest that a meta page names.
    pub fn read_next(&self, meta: &PageBuf) -> Result<Next> {
        let (manifest, body) = read_manifest(&self.host, meta)?;
        if !self.shared.is_of(manifest.storage_id) {
            return Err(Error::structure("the meta page is of another storage"));
        }
        Ok(Next { manifest, body })
    }

    /// Goes on to a newer manifest.
    pub fn follow_manifest(&self, next: Next) -> Result<()> {
        let Next { manifest, body } = next;
        let flushed = manifest.flushed;
        let highest = self.pin().memtables().map(|m| m.table.generation().0).max().unwrap_or(0);
        let fresh = self.memtable(L0Id(manifest.next_generation.0.max(highest.max(flushed.0) + 1)))?;

        let mut ledger = self.shared.ledger.lock();
        let old = &ledger.manifest;
        let more_is_in_runs = flushed > old.flushed;
        let mut waiting = given_up(old, &manifest);
        waiting.extend(limbo_of_values(old, &manifest));
        let full = || self.shared.full(Consumer::Versions);
        let copies = scope::with(|| Ok((manifest.try_clone()?, try_copy(&body)?)));
        let copies = copies.map_err(|_: TryReserveError| full())?;
        let current = self.pin();
        let runs = shared_list(manifest.runs.iter().rev().map(|run| shared_run(&current, run))).ok_or_else(full)?;
        drop(current);
        reserve_version(runs.len() + 1, None).map_err(|_| full())?;
        self.shared.install(|current| {
            let mut parts = current.edit();
            parts.runs = runs;
            parts.frozen.retain(|m| m.table.generation() > flushed);
            if parts.active.table.generation() <= flushed {
                parts.active = fresh;
                if let Some(newest) = newest_first(&mut parts.frozen) {
                    parts.active = newest;
                }
            }
            parts.flushed = flushed;
            self.shared.strays.come(L0Id(flushed.0 + 1));
            parts.indexed_from = L0Id(flushed.0 + 1);
            SuperVersion::new(current.number + 1, parts)
        })?;
        if more_is_in_runs && !on(BarrenNotForgotten) {
            self.shared.barren.forget();
        }
        self.shared.become_of(manifest.storage_id);
        self.shared.next_row.fetch_max(manifest.next_row_id.0, Relaxed);
        scope::with(|| {
            (ledger.manifest, ledger.body) = copies;
            ledger.limbo.extend(waiting);
            // What is free matters to those who write alone: see `take_over`.
            ledger.free = FreeSpace::default();
        });
        self.shared.unnamed(&mut ledger);
        Ok(())
    }

    /// Links a record of the row log, unless that was done before. Its generation is above what the manifest has flushed.
    pub fn follow_row(&self, generation: L0Id, addr: LogAddr, record: &[u8]) -> Result<()> {
        let (row, _) = decode_record(record)?;
        let mut view = self.pin();
        if generation <= view.flushed {
            return Ok(());
        }
        if !view.memtables().any(|m| m.table.generation() == generation) {
            self.add_memtable(generation, row.head.row_id, row.head.writer)?;
            view = self.pin();
        }
        let table = view.memtables().find(|m| m.table.generation() == generation);
        let table = table.ok_or_else(|| Error::structure("a memtable vanished while the log was followed"))?;
        self.shared.next_row.fetch_max(row.head.row_id.0 + 1, Relaxed);
        self.shared.last_writer.fetch_max(row.head.writer.0, Relaxed);
        if table.table.by_row(row.head.row_id).is_none() {
            let _rotation = self.shared.rotation.read();
            let full = || self.shared.full(Consumer::Memtable);
            let room = table.table.room(row.key.len(), &row.head).ok_or_else(full)?;
            let splice = table.table.probe_for(row.key, &room);
            table.table.link(&splice, room, row.key, &row.head, addr);
            self.shared.barren.written(std::iter::once(row.key));
            table.logged.fetch_add((row.key.len() + row.body.len()) as u64, Relaxed);
        }
        Ok(())
    }

    fn memtable(&self, generation: L0Id) -> Result<Arc<Generation>> {
        let (row, writer) = (self.shared.next_row.load(Relaxed), self.shared.last_writer.load(Relaxed));
        memtable_of_log(generation, RowId(row), Writer(writer), &self.shared.options.get())
    }

    /// A memtable for a generation of which the first record has come, in its place by age.
    fn add_memtable(&self, generation: L0Id, row: RowId, writer: Writer) -> Result<()> {
        let added = memtable_of_log(generation, row, writer, &self.shared.options.get())?;
        self.shared.install(|current| {
            let mut parts = current.edit();
            parts.frozen.push(parts.active);
            parts.frozen.push(added);
            let newest = newest_first(&mut parts.frozen);
            parts.active = newest.ok_or_else(|| Error::structure("no memtable"))?;
            SuperVersion::new(current.number + 1, parts)
        })?;
        Ok(())
    }

    /// The log extents of the generations that are in no run.
    pub fn open_log(&self) -> Vec<LogExtent> {
        let ledger = self.shared.ledger.lock();
        let manifest = &ledger.manifest;
        manifest.log_extents.iter().filter(|log| log.generation > manifest.flushed).copied().collect()
    }

    /// From now on this is where the table is written. Everything has been followed; nobody writes yet. What was logged will be
    /// flushed in the ordinary way; new rows go to a new generation (I13).
    pub fn take_over(&self) -> Result<()> {
        let pages = self.host.pages()?;
        let mut ledger = self.shared.ledger.lock();
        self.shared.unnamed(&mut ledger);
        // What others own by now cannot be waiting: its last reader has gone, or a piece of it was never used.
        let mut taken: Vec<Extent> = ledger.manifest.owned().collect();
        let waiting = std::mem::take(&mut ledger.limbo);
        scope::with(|| {
            for Limbo { extent, owner } in waiting {
                for extent in without(extent, taken.iter()) {
                    taken.push(extent);
                    ledger.limbo.push(Limbo { extent, owner });
                }
            }
        });
        let allocated = ledger.manifest.allocated;
        let mut free = scope::with(|| FreeSpace::complement(FIRST_PAGE, allocated, taken.into_iter()))?;
        // Pages that were handed out and not written to need not be here.
        free.end_by(pages);
        let highest = self.pin().memtables().map(|m| m.table.generation().0).max().unwrap_or(0);
        let active = self.shared.generation(L0Id(ledger.manifest.next_generation.0.max(highest + 1)))?;
        self.shared.install(|current| {
            let mut parts = current.edit();
            parts.frozen.insert(0, std::mem::replace(&mut parts.active, active));
            parts.frozen.retain(|m| !m.table.is_empty());
            SuperVersion::new(current.number + 1, parts)
        })?;
        ledger.free = free;
        scope::with(|| ledger.manifest.pending.clear());
        Ok(())
    }
}

impl<H: Host> Shared<H> {
    /// The superversions that name pages of these extents as another's, when generations up to `flushed` are in runs.
    pub fn holders(&self, reused: &[Extent], flushed: L0Id) -> Vec<Holder> {
        let ledger = self.ledger.lock();
        let overlaps = |extent: &Extent| reused.iter().any(|new| new.seq != extent.seq && overlap(new, extent));
        let runs = ledger.manifest.runs.iter().flat_map(|r| r.extents.iter().map(|e| (*e, Owner::Run(*e))));
        let logs = ledger.manifest.log_extents.iter().map(|log| (log.extent, Owner::Log(log.generation)));
        let values = ledger.manifest.values.iter().map(|extent| (*extent, Owner::Values(extent.seq, flushed)));
        let limbo = ledger.limbo.iter().map(|waiting| (waiting.extent, waiting.owner));
        let owners: Vec<Owner> = runs
            .chain(logs)
            .chain(values)
            .chain(limbo)
            .filter(|found| overlaps(&found.0))
            .map(|found| found.1)
            .collect();
        if owners.is_empty() {
            return Vec::new();
        }
        let versions = self.versions.lock();
        let names = |version: &SuperVersion| owners.iter().any(|owner| version.names(*owner));
        let holder = |version: &SuperVersion, current| Holder {
            version: version as *const SuperVersion as usize,
            current,
            pinned: version.is_pinned(),
        };
        // SAFETY: the current superversion is replaced, and freed, with the versions latched.
        let current = unsafe { self.current.peek() };
        let now = names(current).then(|| holder(current, true));
        let retired = versions.retired.iter().filter(|v| v.is_pinned() && names(v)).map(|v| holder(v, false));
        now.into_iter().chain(retired).collect()
    }
}

fn overlap(a: &Extent, b: &Extent) -> bool {
    a.start < b.end() && b.start < a.end()
}

/// The run as the current superversion has it, if it is the same.
fn shared_run(current: &SuperVersion, run: &RunDesc) -> Option<Arc<RunDesc>> {
    let known = current.runs.iter().find(|known| ***known == *run);
    known.cloned().or_else(|| share_run(run))
}

/// Sorts memtables by age and takes the newest.
fn newest_first(tables: &mut Vec<Arc<Generation>>) -> Option<Arc<Generation>> {
    tables.sort_unstable_by_key(|m| std::cmp::Reverse(m.table.generation()));
    (!tables.is_empty()).then(|| tables.remove(0))
}
