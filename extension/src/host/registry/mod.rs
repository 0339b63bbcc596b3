//! The tables that are in memory: file -> shared state of the tree.
//!
//! ```text
//!  buckets[hash] -> slot -> slot -> ...      a slot: file, tree, users, when it was last used
//! ```
//!
//! A table is known by its file (tablespace, database, relfilenode), for that is what its pages are cached under, and what
//! DROP, TRUNCATE and rewrites replace. A file number that is used again is told by the storage id in its meta page.
//!
//! - Nothing is read or written while the registry's latch is held. A missing table is loaded under a heavyweight lock on
//!   the relation, so that those who wait for it can be cancelled, and published when it is complete.
//! - A slot is in use as long as somebody counts in `users`. A table that is dropped meanwhile is *doomed*: it cannot be found
//!   any more, and the last user frees it.
//! - Everything here can be rebuilt from pages (I19), so idle tables are given up when memory or slots run short.

mod recent;
mod slot;

pub use slot::{FileKey, Slot, TableCounters};

use crate::host::held::HeldList;
use crate::host::latch::LwLatch;
use crate::host::process_local::ProcessLocal;
use crate::host::standby;
use crate::host::{global, interrupt, writers, PgHost};
use crate::pg::bindings_am::raw;
use crate::pg::{exit, startup, table_options, worker};
use crate::work::memory::{self, Patience};
use crate::work::{ask, need};
use loosekv_engine::error::{Consumer, Error, Result};
use loosekv_engine::manifest::Manifest;
use loosekv_engine::page::PageBuf;
use loosekv_engine::tree::{Shared, Tree, BLANK};
use loosekv_shm::RawLatch;
use pgrx::pg_sys;
use recent::RECENTLY;
use slot::{DOOMED, FREE, LIVE};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};

const BUCKETS: usize = 4096;
/// End of a chain, no slot.
const NONE: u32 = u32::MAX;
/// The "page" of the heavyweight lock under which a table is loaded; no file has it.
const LOAD_LOCK_PAGE: pg_sys::BlockNumber = pg_sys::InvalidBlockNumber - 1;
/// Attempts to load while the table changes.
const LOAD_ATTEMPTS: u32 = 8;
/// Attempts to find a place before the error is the user's, and the time to wait where nothing can be evicted now.
const MEMORY_ATTEMPTS: u32 = 100;
const NAP: std::time::Duration = std::time::Duration::from_millis(5);

/// Rounds of collecting that free what was just retired, if nobody is pinned.
const COLLECT_ROUNDS: u32 = 3;

/// All slots, a hash table over them, and the list of free ones.
pub struct Registry {
    latch: LwLatch,
    slots: *const Slot,
    len: u32,
    live: AtomicU32,
    /// Heads of chains; written with the latch held exclusively.
    free: AtomicU32,
    buckets: [AtomicU32; BUCKETS],
}

// SAFETY: `slots` points to the segment, which all processes see at this address.
unsafe impl Sync for Registry {}

impl Registry {
    /// # Safety
    /// `slots` are `len` free slots that live as long as the segment.
    pub unsafe fn new(slots: *const Slot, len: usize) -> Registry {
        let registry = Registry {
            latch: LwLatch::new(),
            slots,
            len: len as u32,
            live: AtomicU32::new(0),
            free: AtomicU32::new(0),
            buckets: std::array::from_fn(|_| AtomicU32::new(NONE)),
        };
        for i in 0..registry.len {
            let next = if i + 1 < registry.len { i + 1 } else { NONE };
            if let Some(slot) = registry.slot(i) {
                slot.next.store(next, Relaxed);
            }
        }
        registry
    }

    fn slot(&self, number: u32) -> Option<&'static Slot> {
        // SAFETY: within the array, which lives as long as the segment.
        (number < self.len).then(|| unsafe { &*self.slots.add(number as usize) })
    }

    fn number(&self, slot: &Slot) -> u32 {
        // SAFETY: every slot is in the array.
        unsafe { (slot as *const Slot).offset_from(self.slots) as u32 }
    }

    fn bucket(&self, key: &FileKey) -> &AtomicU32 {
        &self.buckets[key.hash() as usize % BUCKETS]
    }

    /// With the latch held.
    fn find(&self, key: &FileKey) -> Option<&'static Slot> {
        let mut at = self.bucket(key).load(Relaxed);
        while let Some(slot) = self.slot(at) {
            // SAFETY: the registry is latched.
            if unsafe { *slot.key.get() } == *key {
                return Some(slot);
            }
            at = slot.next.load(Relaxed);
        }
        None
    }

    /// Takes a slot out of its chain. With the latch held exclusively.
    fn unlink(&self, slot: &Slot) {
        // SAFETY: the registry is latched.
        let mut link = self.bucket(unsafe { &*slot.key.get() });
        let number = self.number(slot);
        while link.load(Relaxed) != number {
            match self.slot(link.load(Relaxed)) {
                Some(before) => link = &before.next,
                None => return,
            }
        }
        link.store(slot.next.load(Relaxed), Relaxed);
    }

    /// Finds or makes the slot, and counts the caller as a user. `None`: all slots are in use.
    fn enter(&self, key: &FileKey) -> Option<&'static Slot> {
        {
            let _latch = self.latch.read();
            if let Some(slot) = self.find(key) {
                slot.users.fetch_add(1, AcqRel);
                return Some(slot);
            }
        }
        let _latch = self.latch.write();
        let slot = match self.find(key) {
            Some(slot) => slot,
            None => {
                let slot = self.slot(self.free.load(Relaxed))?;
                self.free.store(slot.next.load(Relaxed), Relaxed);
                slot.occupy(*key);
                let bucket = self.bucket(key);
                slot.next.store(bucket.load(Relaxed), Relaxed);
                bucket.store(self.number(slot), Relaxed);
                self.live.fetch_add(1, Relaxed);
                slot
            }
        };
        slot.users.fetch_add(1, AcqRel);
        Some(slot)
    }

    /// Makes the slot of this file unfindable. It is freed now, or by its last user. (It may have become another table's since it was
    /// found: that one's users would go on beside those who load it anew.)
    fn doom(&self, slot: &'static Slot, key: &FileKey) {
        {
            let _latch = self.latch.write();
            // SAFETY: the registry is latched.
            if slot.state.load(Relaxed) != LIVE || unsafe { *slot.key.get() != *key } {
                return;
            }
            self.unlink(slot);
            self.live.fetch_sub(1, Relaxed);
            slot.state.store(DOOMED, Release);
        }
        self.reap(slot);
    }

    /// As [`Registry::doom`], but only if nobody uses the slot: a user goes on writing to what it has.
    ///
    /// A process that comes by [`Recent::find`] counts itself first and looks at the state second; here the state comes
    /// first. So one of the two sees the other.
    fn evict(&self, slot: &'static Slot) -> bool {
        {
            let _latch = self.latch.write();
            if slot.state.load(SeqCst) != LIVE {
                return false;
            }
            slot.state.store(DOOMED, SeqCst);
            if slot.users.load(SeqCst) != 0 {
                slot.state.store(LIVE, SeqCst);
                return false;
            }
            self.unlink(slot);
            self.live.fetch_sub(1, Relaxed);
        }
        self.reap(slot);
        true
    }

    /// Frees a doomed slot that nobody uses.
    fn reap(&self, slot: &'static Slot) {
        let tree = {
            let _latch = self.latch.write();
            if slot.state.load(Relaxed) != DOOMED || slot.users.load(Acquire) != 0 {
                return;
            }
            slot.state.store(FREE, Release);
            slot.stamp.fetch_add(1, AcqRel);
            let tree = slot.tree.swap(std::ptr::null_mut(), AcqRel);
            slot.next.store(self.free.load(Relaxed), Relaxed);
            self.free.store(self.number(slot), Relaxed);
            tree
        };
        if !tree.is_null() {
            // SAFETY: made by `Box::into_raw` when it was published; nobody uses it and nobody can find it.
            let tree = unsafe { Box::from_raw(tree) };
            if let Some(global) = global::get() {
                tree.index.uncount(&global.budgets.key_index);
            }
            drop(tree);
            // What it has retired is freed with it, not when somebody next retires something. (Replay comes by here, too.)
            if loosekv_shm::epoch::attach().is_ok() {
                loosekv_shm::epoch::collect(COLLECT_ROUNDS);
            }
        }
    }

    fn leave(&self, slot: &'static Slot) {
        if slot.users.fetch_sub(1, AcqRel) == 1 && slot.state.load(Acquire) == DOOMED {
            self.reap(slot);
        }
    }

    /// The table that has not been used for the longest time, and not since `before`.
    fn coldest(&self, before: u64) -> Option<&'static Slot> {
        let _latch = self.latch.read();
        let used = |slot: &&Slot| slot.used.load(Relaxed);
        (0..self.len)
            .filter_map(|i| self.slot(i))
            .filter(|slot| slot.state.load(Relaxed) == LIVE && slot.users.load(Relaxed) == 0)
            .min_by_key(used)
            .filter(|slot| used(slot) < before)
    }
}

fn registry() -> Result<&'static Registry> {
    let missing = || Error::Unavailable("loosekv is not in shared_preload_libraries".into());
    global::get().map(|global| &global.registry).ok_or_else(missing)
}

/// The uses of slots by this process, in case it ends without unwinding.
static IN_USE: HeldList = HeldList::new();

/// This process looks after tables that others use.
static CARETAKER: ProcessLocal<Cell<bool>> = ProcessLocal::new(Cell::new(false));

/// What this process does to tables from now on does not count as their use: they stay idle.
pub fn become_caretaker() {
    CARETAKER.set(true);
}

/// A table in use by this process.
pub struct Table {
    slot: &'static Slot,
    tree: &'static Shared<PgHost>,
}

impl Table {
    /// Counts this process as a user of `slot`, or takes over such a count.
    fn enter(slot: &'static Slot) -> Option<Table> {
        // SAFETY: while a user is counted the tree is not freed.
        let tree = unsafe { slot.tree.load(Acquire).as_ref() }?;
        // SAFETY: reads a process-local time.
        let begun = unsafe { raw::GetCurrentStatementStartTimestamp() } as u64;
        // A statement that takes long looks at the clock.
        if slot.used.load(Relaxed).abs_diff(begun) > 1_000_000 && !CARETAKER.get() {
            slot.used.store(worker::now() as u64, Relaxed);
        }
        Some(Table { slot, tree })
    }

    /// The same, with all that has been replayed. After the statement's snapshot was taken.
    fn caught_up(self, rel: pg_sys::Relation) -> Result<Table> {
        if self.slot.is_standby() {
            let mut attempts = 0;
            while let Err(error) = standby::catch_up(rel, self.slot, self.tree) {
                attempts += 1;
                if !matches!(error, Error::MemoryFull { .. }) || attempts > LOAD_ATTEMPTS || !make_room()? {
                    return Err(error);
                }
            }
        }
        Ok(self)
    }

    pub fn slot(&self) -> &'static Slot {
        self.slot
    }

    pub fn shared(&self) -> &Shared<PgHost> {
        self.tree
    }

    /// The tree over this table, through an open relation.
    pub fn tree(&self, rel: pg_sys::Relation) -> Tree<'_, PgHost> {
        Tree::new(self.tree, PgHost::new(rel, Some(self.slot)))
    }

    /// As [`Table::tree`], for reading much: through a ring of buffers.
    pub fn sweeping_tree(&self, rel: pg_sys::Relation) -> Tree<'_, PgHost> {
        Tree::new(self.tree, PgHost::new(rel, Some(self.slot)).sweeping())
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        release(self.slot);
    }
}

fn hold(slot: &'static Slot) {
    IN_USE.push(slot as *const Slot as usize);
    if let Some(global) = global::get() {
        global.readers.publish(slot as *const Slot as usize);
    }
}

fn release(slot: &'static Slot) {
    IN_USE.remove(slot as *const Slot as usize);
    if let Some(global) = global::get() {
        global.readers.withdraw(slot as *const Slot as usize);
    }
    if let Ok(registry) = registry() {
        registry.leave(slot);
    }
}

/// A relcache invalidation: the relation may have another file, or another table its file.
pub fn relation_changed(relid: pg_sys::Oid) {
    RECENTLY.forget(relid.to_u32());
}

/// The table of an open relation, loaded if need be; a relation without pages gets its first (on a standby it is empty).
pub fn open(rel: pg_sys::Relation) -> Result<Table> {
    startup::require();
    if loosekv_shm::epoch::attach().is_err() {
        attach_patiently()?;
    }
    // SAFETY: the relation is open.
    let key = unsafe { FileKey::of_relation(rel) };
    if let Some(slot) = RECENTLY.find(&key) {
        hold(slot);
        match Table::enter(slot) {
            Some(table) => return table.caught_up(rel),
            None => release(slot),
        }
    }
    open_slow(rel, key)
}

/// Gets this process its place among those who pin: without one it would have to abort where there is no memory left.
#[cold]
fn attach_patiently() -> Result<()> {
    let mut patience = Patience::begin();
    while loosekv_shm::epoch::attach().is_err() {
        if !patience.lasts(false) {
            return Err(Error::no_memory(Consumer::Tables, 0));
        }
        patience.make_rooms_or_wait()?;
    }
    Ok(())
}

#[cold]
fn open_slow(rel: pg_sys::Relation, key: FileKey) -> Result<Table> {
    let registry = registry()?;
    if key.backend != pg_sys::InvalidBackendId {
        forget_temporary(|node| {
            // SAFETY: guarded; the file of a temporary table of this session.
            !unsafe { pg_sys::smgrexists(pg_sys::smgropen(node, key.backend), pg_sys::ForkNumber::MAIN_FORKNUM) }
        });
    }
    let (mut attempts, mut patience) = (0, Patience::begin());
    loop {
        let Some(slot) = registry.enter(&key) else {
            if !make_room()? {
                if attempts == MEMORY_ATTEMPTS {
                    return Err(Error::no_memory(Consumer::Tables, 0));
                }
                interrupt::nap(NAP);
                attempts += 1;
            }
            continue;
        };
        hold(slot);
        let entered = InUse(slot);
        let host = PgHost::new(rel, Some(slot));
        if is_of_another_file(&host, slot)? {
            registry.doom(slot, &key);
            continue;
        }
        if slot.tree.load(Acquire).is_null() {
            match load_locked(&host, slot) {
                Ok(()) => {}
                Err(Error::MemoryFull { .. }) if patience.lasts(false) => {
                    patience.make_rooms_or_wait()?;
                    continue;
                }
                Err(error) => return Err(error),
            }
        }
        // SAFETY: the relation is open.
        RECENTLY.note(key, unsafe { (*rel).rd_id.to_u32() }, slot);
        if let Some(table) = Table::enter(slot) {
            std::mem::forget(entered);
            // Whatever has changed in the catalog or in the settings has brought this process here.
            table.tree.options.set(&table_options::of(rel));
            return table.caught_up(rel);
        }
    }
}

/// A counted use of a slot whose tree is not there yet.
struct InUse(&'static Slot);

impl Drop for InUse {
    fn drop(&mut self) {
        release(self.0);
    }
}

/// A file number was used again, or the file was emptied.
fn is_of_another_file(host: &PgHost, slot: &Slot) -> Result<bool> {
    // SAFETY: a user is counted, so the tree stays.
    let Some(tree) = (unsafe { slot.tree.load(Acquire).as_ref() }) else { return Ok(false) };
    // The file may be shorter than the slot says.
    let meta = if host.file_pages() == 0 { None } else { host.meta()? };
    Ok(!meta.map_or(tree.is_blank(), |meta| same_storage(tree, &meta)))
}

/// Whether the meta page is of the storage that the tree was loaded from.
fn same_storage(tree: &Shared<PgHost>, meta: &PageBuf) -> bool {
    Manifest::decode_meta(meta).is_ok_and(|(manifest, _)| tree.is_of(manifest.storage_id))
}

/// Loads under a lock that only loaders take.
fn load_locked(host: &PgHost, slot: &'static Slot) -> Result<()> {
    with_load_lock(host.rel(), || if slot.tree.load(Acquire).is_null() { load(host, slot) } else { Ok(()) })
}

/// One at a time for each table, and whoever waits can be cancelled.
pub(super) fn with_load_lock<R>(rel: pg_sys::Relation, work: impl FnOnce() -> R) -> R {
    let lock = pg_sys::ExclusiveLock as pg_sys::LOCKMODE;
    // SAFETY: guarded; released below, or by the transaction's abort after an ERROR.
    unsafe { pg_sys::LockPage(rel, LOAD_LOCK_PAGE, lock) };
    let result = work();
    // SAFETY: taken above.
    unsafe { pg_sys::UnlockPage(rel, LOAD_LOCK_PAGE, lock) };
    result
}

/// For replay: the slot of a table that is in memory, counted as used. (It publishes nothing: it reads no pages.)
pub(super) fn count_user(node: pg_sys::RelFileNode) -> Option<&'static Slot> {
    let registry = registry().ok()?;
    let _latch = registry.latch.read();
    let slot = registry.find(&FileKey::of(node, pg_sys::InvalidBackendId))?;
    slot.users.fetch_add(1, SeqCst);
    Some(slot)
}

/// Takes back what [`count_user`] counted.
pub(super) fn uncount_user(slot: &'static Slot) {
    if let Ok(registry) = registry() {
        registry.leave(slot);
    }
}

fn load(host: &PgHost, slot: &'static Slot) -> Result<()> {
    // SAFETY: reads a flag in shared memory.
    let standby = unsafe { pg_sys::RecoveryInProgress() };
    slot.note_flip(writers::next());
    let tree = if standby { standby::load(host, &slot.progress)? } else { load_on_primary(host)? };
    if let Some(global) = global::get() {
        global.counters.loads.fetch_add(1, Relaxed);
    }
    let unfinished = !standby && host.is_shared() && (need::after_load(&tree) || memory::is_short());
    slot.standby.store(standby, Relaxed);
    let before = slot.tree.swap(Box::into_raw(tree), AcqRel);
    debug_assert!(before.is_null(), "loaded under the load lock");
    if unfinished {
        ask::worker();
    }
    Ok(())
}

fn load_on_primary(host: &PgHost) -> Result<Box<Shared<PgHost>>> {
    interrupt::held(|| {
        create_if_missing(host)?;
        Tree::load(host, &table_options::of(host.rel()))
    })
}

/// Makes the first page. With the load lock, on a primary.
pub(super) fn create_if_missing(host: &PgHost) -> Result<()> {
    match host.meta()? {
        Some(_) => Ok(()),
        None => Tree::create(host, new_storage_id()?),
    }
}

fn new_storage_id() -> Result<u64> {
    let mut id = [0u8; 8];
    // SAFETY: fills the eight bytes.
    if unsafe { pg_sys::pg_strong_random(id.as_mut_ptr().cast(), id.len()) } {
        Ok(u64::from_ne_bytes(id).max(BLANK + 1))
    } else {
        Err(Error::Unavailable("the system gives no random numbers".into()))
    }
}

/// The file is gone, or will be as soon as the transaction has ended.
pub fn forget(node: pg_sys::RelFileNode) {
    forget_key(&FileKey::of(node, pg_sys::InvalidBackendId));
}

/// The relation's file was emptied (ON COMMIT DELETE ROWS, TRUNCATE of a table created in the same transaction).
pub fn forget_relation(rel: pg_sys::Relation) {
    // SAFETY: the relation is open.
    forget_key(unsafe { &FileKey::of_relation(rel) });
}

fn forget_key(key: &FileKey) {
    let Ok(registry) = registry() else { return };
    let found = {
        let _latch = registry.latch.read();
        registry.find(key)
    };
    if let Some(slot) = found {
        registry.doom(slot, key);
    }
}

/// Gives up the memory of the table that has been idle for the longest time. False: all are in use.
pub fn make_room() -> Result<bool> {
    make_room_of(u64::MAX)
}

/// The same, of a table that was not used since.
fn make_room_of(before: u64) -> Result<bool> {
    let registry = registry()?;
    while let Some(slot) = registry.coldest(before) {
        if registry.evict(slot) {
            if let Some(global) = global::get() {
                global.counters.evictions.fetch_add(1, Relaxed);
            }
            return Ok(true);
        }
    }
    Ok(false)
}

/// As [`make_room`], for up to `count` tables. False: all are in use.
pub fn make_rooms(count: u32) -> Result<bool> {
    make_rooms_of(count, u64::MAX)
}

/// The same, of tables that nobody has used for this many microseconds.
pub fn make_rooms_of_cold(count: u32, idle: u64) -> Result<bool> {
    make_rooms_of(count, (worker::now() as u64).saturating_sub(idle))
}

fn make_rooms_of(count: u32, before: u64) -> Result<bool> {
    let mut any = false;
    for _ in 0..count {
        if !make_room_of(before)? {
            break;
        }
        any = true;
    }
    // What was given up, now or earlier, is to be found by the next who allocates.
    loosekv_shm::epoch::collect(COLLECT_ROUNDS);
    Ok(any)
}

/// Whether any table is in memory.
pub fn any_open() -> bool {
    registry().is_ok_and(|registry| registry.live.load(Relaxed) > 0)
}

/// Shows the tables in memory: file, users, known pages, counters.
pub fn each(mut show: impl FnMut(FileKey, u32, &'static Slot)) {
    let Ok(registry) = registry() else { return };
    for slot in (0..registry.len).filter_map(|i| registry.slot(i)) {
        let key = {
            let _latch = registry.latch.read();
            // SAFETY: the registry is latched.
            (slot.state.load(Relaxed) == LIVE).then(|| unsafe { *slot.key.get() })
        };
        if let Some(key) = key {
            show(key, slot.users.load(Relaxed), slot);
        }
    }
}

/// Shows the trees of a database that are in memory, each counted as used meanwhile, and when each was last used, in
/// microseconds; temporary tables are not shown.
pub fn each_tree(database: u32, mut show: impl FnMut(FileKey, &Shared<PgHost>, u64)) {
    let Ok(registry) = registry() else { return };
    exit::attach();
    for slot in (0..registry.len).filter_map(|i| registry.slot(i)) {
        if slot.state.load(Relaxed) != LIVE {
            continue;
        }
        let key = {
            let _latch = registry.latch.read();
            // SAFETY: the registry is latched.
            let key = unsafe { *slot.key.get() };
            let wanted = key.database == database && key.backend == pg_sys::InvalidBackendId;
            if !wanted || slot.state.load(SeqCst) != LIVE {
                continue;
            }
            slot.users.fetch_add(1, SeqCst);
            key
        };
        hold(slot);
        let _entered = InUse(slot);
        // SAFETY: a user is counted, so the tree stays.
        if let Some(tree) = unsafe { slot.tree.load(Acquire).as_ref() } {
            if !slot.standby.load(Relaxed) {
                show(key, tree, slot.used.load(Relaxed));
            }
        }
    }
}

/// Lets go of what a process that ends without unwinding uses.
pub fn release_by_force() {
    let Ok(registry) = registry() else { return };
    while let Some(item) = IN_USE.pop() {
        // SAFETY: only slots are pushed, and slots live as long as the segment.
        registry.leave(unsafe { &*(item as *const Slot) });
    }
}

/// Forgets this session's temporary tables of which `gone` is true. PostgreSQL does not tell which it has dropped.
pub fn forget_temporary(gone: impl Fn(pg_sys::RelFileNode) -> bool) {
    // SAFETY: set at process start.
    let mine = unsafe { pg_sys::MyBackendId };
    forget_where(|key| key.backend != pg_sys::InvalidBackendId && key.backend == mine && gone(key.node()));
}

/// The files of a database are gone, or about to go, and nobody is in it.
pub fn forget_database(database: pg_sys::Oid) {
    forget_where(|key| key.database == database.to_u32());
}

fn forget_where(gone: impl Fn(&FileKey) -> bool) {
    let Ok(registry) = registry() else { return };
    each(|key, _, slot| {
        if gone(&key) {
            registry.doom(slot, &key);
        }
    });
}
