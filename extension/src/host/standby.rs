//! Reading while WAL is being replayed.
//!
//! ```text
//!  statement: snapshot -> use the table (published) -> has the meta page or a tail moved? -> follow -> read
//!  replay:    meta page -> who holds what its extents are to overwrite? -> wait, then cancel -> on with the log
//! ```
//!
//! The snapshot comes first: all that it sees was logged, and so replayed, before the pages are looked at. Rows that are linked
//! come from pages stamped as their extent's, so they are right whatever happens to the extent later; but that *all* of them
//! were seen is only certain if no flush came in between, for a flush frees extents of the log (and its run has the rows).
//!
//! Replay writes into an extent only after a flip has named it. At that flip it waits for those who read what was there, for
//! as long as max_standby_streaming_delay (or _archive_delay) lets them, and then cancels them, and nobody else.

use crate::host::latch::LwLatch;
use crate::host::log_reader::Reached;
use crate::host::registry::{self, Slot};
use crate::host::{global, interrupt, PgHost};
use crate::pg::{bindings, table_options};
use loosekv_engine::error::{Error, Result};
use loosekv_engine::manifest::Manifest;
use loosekv_engine::page::PageBuf;
use loosekv_engine::tree::{Shared, Tree};
use loosekv_engine::types::{Extent, L0Id};
use loosekv_shm::RawLatch;
use pgrx::pg_sys;
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Flushes that may come while the log is being followed.
const ATTEMPTS: u32 = 200;
/// Flips that may come while the manifest is being read.
const LOAD_ATTEMPTS: u32 = 100;
/// Between two looks whether readers are gone.
const NAP: Duration = Duration::from_millis(1);

/// How far a table's shared state has got.
pub struct Progress {
    latch: LwLatch,
    reached: UnsafeCell<Reached>,
}

// SAFETY: `reached` is guarded by the latch.
unsafe impl Sync for Progress {}

impl Default for Progress {
    fn default() -> Progress {
        Progress { latch: LwLatch::new(), reached: UnsafeCell::new(Reached::default()) }
    }
}

impl Progress {
    fn get(&self) -> Reached {
        let _latch = self.latch.read();
        // SAFETY: latched.
        unsafe { *self.reached.get() }
    }

    pub(super) fn set(&self, reached: Reached) {
        let _latch = self.latch.write();
        // SAFETY: latched exclusively.
        unsafe { *self.reached.get() = reached }
    }
}

/// Whether this server replays WAL.
#[inline]
pub fn is_standby() -> bool {
    // SAFETY: looks at a flag.
    unsafe { bindings::RecoveryInProgress() }
}

/// Loads a table as it stood at some moment; [`catch_up`] does the rest. Of one that nobody has used where it was made there is no page
/// yet. So it has no row that anybody sees: of rows that are there the first page was logged before them.
///
/// A flip meanwhile may free what is being read, and others write there again. The manifest's sum tells whether it was read
/// whole. Of the log, rows may be missing then, but only of generations that have been flushed: following drops those.
pub(super) fn load(host: &PgHost, progress: &Progress) -> Result<Box<Shared<PgHost>>> {
    let mut attempts = 0;
    loop {
        let meta_lsn = host.meta_lsn()?;
        host.replayed.take();
        let loaded = interrupt::held(|| match host.meta()? {
            None => Tree::blank_to_follow(host, &table_options::of(host.rel())),
            Some(_) => Tree::load_to_follow(host, &table_options::of(host.rel())),
        });
        attempts += 1;
        if loaded.is_err() && attempts < LOAD_ATTEMPTS && host.meta_lsn()? != meta_lsn {
            continue;
        }
        if let Ok(tree) = &loaded {
            let log = Tree::new(&**tree, PgHost::new(host.rel(), None)).open_log();
            progress.set(Reached::of_replay(meta_lsn, &host.replayed.borrow(), &log));
        }
        return loaded;
    }
}

/// Brings a table that was loaded while WAL was replayed up to date; once the server is a primary, for good.
pub(super) fn catch_up(rel: pg_sys::Relation, slot: &'static Slot, tree: &'static Shared<PgHost>) -> Result<()> {
    let host = PgHost::new(rel, Some(slot));
    if is_standby() && is_current(&host, &slot.progress.get())? {
        return Ok(());
    }
    let tree = Tree::new(tree, host);
    registry::with_load_lock(rel, || {
        if !slot.is_standby() {
            return Ok(());
        }
        // Asked again: a promotion while we waited.
        let standby = is_standby();
        interrupt::held(|| {
            if !standby {
                registry::create_if_missing(&tree.host)?;
            }
            follow(&tree, slot)
        })?;
        if !standby {
            // Replay has cut the file, maybe, and told nobody.
            slot.file_pages.store(tree.host.file_pages(), Relaxed);
            tree.take_over()?;
            slot.is_primary_now();
        }
        Ok(())
    })
}

fn is_current(host: &PgHost, reached: &Reached) -> Result<bool> {
    Ok(host.meta_lsn()? == reached.meta_lsn && host.tails_end_at(reached)?)
}

fn follow(tree: &Tree<'_, PgHost>, slot: &Slot) -> Result<()> {
    let mut reached = slot.progress.get();
    for _ in 0..ATTEMPTS {
        let lsn = tree.host.meta_lsn()?;
        if lsn != reached.meta_lsn {
            let meta = tree.host.meta()?.ok_or_else(|| Error::structure("the table has no meta page any more"))?;
            let next = tree.read_next(&meta);
            if tree.host.meta_lsn()? != lsn {
                continue;
            }
            tree.follow_manifest(next?)?;
            reached.meta_lsn = lsn;
        }
        let log = tree.open_log();
        tree.host.follow_log(&log, &mut reached, &mut |generation, addr, record| {
            tree.follow_row(generation, addr, record)
        })?;
        slot.progress.set(reached);
        if tree.host.meta_lsn()? == lsn || !has_flushed(tree)? {
            return Ok(());
        }
    }
    Err(Error::Unavailable("the table changed again and again while it was being followed".into()))
}

/// Whether generations that are being followed in the log are in runs by now.
fn has_flushed(tree: &Tree<'_, PgHost>) -> Result<bool> {
    let flushed = tree.shared().current.pin::<PgHost>().flushed;
    let Some(meta) = tree.host.meta()? else { return Ok(true) };
    Ok(Manifest::decode_meta(&meta)?.0.flushed != flushed)
}

/// Called by replay when it has written this meta page: the extents that it newly names will be written next.
pub fn wait_for_readers(node: pg_sys::RelFileNode, meta: &PageBuf) {
    let Ok((manifest, _)) = Manifest::decode_meta(meta) else { return };
    let flushed = manifest.flushed;
    let logs = manifest.log_extents.iter().map(|log| log.extent);
    let named: Vec<Extent> = logs.chain(manifest.pending).chain(manifest.body).collect();
    let Some(slot) = registry::count_user(node) else { return };
    // SAFETY: a user is counted, so the tree stays.
    if let Some(tree) = unsafe { slot.tree().as_ref() } {
        while !let_go(tree, slot, &named, flushed) {
            std::thread::sleep(NAP);
        }
    }
    registry::uncount_user(slot);
}

/// Whether nobody reads what these extents held before. Cancels those who do, when their time is up.
fn let_go(tree: &Shared<PgHost>, slot: &Slot, named: &[Extent], flushed: L0Id) -> bool {
    let holders = tree.holders(named, flushed);
    if holders.is_empty() {
        return true;
    }
    let mut wanted: Vec<usize> = holders.iter().map(|holder| holder.version).collect();
    if holders.iter().any(|holder| holder.current) {
        // Who uses the table may pin it next.
        wanted.push(std::ptr::from_ref(slot) as usize);
    }
    let Some(global) = global::get() else { return true };
    let backends = global.readers.holding(&wanted);
    if backends.is_empty() {
        // A pin that is not published yet, or published no more.
        return !holders.iter().any(|holder| holder.pinned);
    }
    if is_time_up() {
        backends.into_iter().for_each(cancel);
    }
    false
}

/// What PostgreSQL decides for its own conflicts, by the same settings.
fn is_time_up() -> bool {
    let (mut received, mut streamed) = (0, false);
    // SAFETY: called by the startup process; two results are written.
    unsafe {
        bindings::GetXLogReceiptTime(&mut received, &mut streamed);
        let delay = if streamed { bindings::max_standby_streaming_delay } else { bindings::max_standby_archive_delay };
        delay >= 0 && bindings::GetCurrentTimestamp() >= received + i64::from(delay) * 1000
    }
}

fn cancel(backend: i32) {
    // SAFETY: processes' entries are never freed; a transaction that has ended meanwhile is not found.
    unsafe {
        let proc = bindings::BackendIdGetProc(backend);
        if !proc.is_null() && backend != pg_sys::MyBackendId && (*proc).lxid != 0 {
            let transaction = pg_sys::VirtualTransactionId { backendId: backend, localTransactionId: (*proc).lxid };
            bindings::CancelVirtualTransaction(
                transaction,
                pg_sys::ProcSignalReason::PROCSIG_RECOVERY_CONFLICT_SNAPSHOT,
            );
        }
    }
}
