//! The table of row locks, in shared memory.
//!
//! A lock is an entry (key, mode, writer), and it holds as long as its writer runs: nobody has to take it away, whoever
//! meets the entry of an ended writer does so. (Its own process does at the transaction's end, to keep the table small.)
//! Waiting is waiting for the writer, as with heap, so deadlocks are found.
//!
//! ```text
//! | partition: 256 chains, 1024 entries | ... 64 times | whole tables: 128 |      each with an LWLock
//! ```
//!
//! A transaction that locks very many rows of a table, or finds no room, locks the whole table instead, in the same mode. That
//! means all of its rows but those that others hold at that moment, by an entry of their own or by a new version of the row: so
//! nobody has to be waited for. What a whole table keeps from others are new entries ([`ask_wholes`]). Rows are locked, and
//! wholes asked about, in one hold of the partition's lock: who locks a whole table and looks into a chain after that sees
//! all entries that were made without regard to it.

use super::bindings::{LWLockAcquire, LWLockRelease};
use super::bindings_am::raw;
use super::xact;
use loosekv_engine::types::Writer;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

const PARTITIONS: usize = 64;
const CHAINS: usize = 256;
const ENTRIES: usize = 1024;
const WHOLES: usize = 128;
const NONE: u32 = u32::MAX;
const TRANCHE: &CStr = c"loosekv_row_locks";

/// What is locked: a key of a table of a database, by their hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    pub database: u32,
    pub table: u32,
    pub key: u64,
}

impl Tag {
    /// The key's own hash is spread by its upper bits alone where keys of eight bytes differ in the last ones (bigint).
    fn hash(&self) -> u64 {
        let mut hash =
            self.key ^ u64::from(self.table).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(self.database) << 32;
        for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
            hash = (hash ^ hash >> 33).wrapping_mul(factor);
        }
        hash ^ hash >> 33
    }

    fn partition(&self) -> usize {
        self.hash() as usize % PARTITIONS
    }

    fn chain(&self) -> usize {
        (self.hash() >> 8) as usize % CHAINS
    }

    fn is_of_same_table(&self, other: &Tag) -> bool {
        self.table == other.table && self.database == other.database
    }
}

/// A mode, in the order of strength: KEY SHARE, SHARE, NO KEY UPDATE, UPDATE (PostgreSQL's LockTupleMode).
pub type Mode = u32;

pub fn conflict(one: Mode, other: Mode) -> bool {
    // By how strong the other may at most be: see the table in crate::table::lock.
    const STRONGEST_COMPATIBLE: [i64; 4] = [2, 1, 0, -1];
    let strongest = STRONGEST_COMPATIBLE.get(one as usize).copied().unwrap_or(-1);
    i64::from(other) > strongest
}

#[derive(Clone, Copy)]
struct Entry {
    tag: Tag,
    writer: u64,
    mode: Mode,
    next: u32,
}

struct Partition {
    free: u32,
    chains: [u32; CHAINS],
    entries: [Entry; ENTRIES],
}

#[derive(Clone, Copy)]
struct Whole {
    tag: Tag,
    writer: u64,
    mode: Mode,
}

struct Table {
    partitions: [UnsafeCell<Partition>; PARTITIONS],
    wholes: UnsafeCell<[Whole; WHOLES]>,
    /// Entries of `wholes` in use; those come first.
    whole_count: AtomicU32,
    /// One of these: are there prepared transactions from before this server?
    prepared_before: AtomicU32,
}

const UNKNOWN: u32 = 0;
const NO: u32 = 1;
const PERHAPS: u32 = 2;

static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());
static LOCKS: AtomicPtr<pg_sys::LWLockPadded> = AtomicPtr::new(std::ptr::null_mut());
static mut PREVIOUS_REQUEST: pg_sys::shmem_request_hook_type = None;
static mut PREVIOUS_STARTUP: pg_sys::shmem_startup_hook_type = None;

/// To be called while shared_preload_libraries are loaded.
pub fn install() {
    // SAFETY: the postmaster is one thread.
    unsafe {
        PREVIOUS_REQUEST = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        PREVIOUS_STARTUP = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn request() {
    // SAFETY: in the hook for that.
    unsafe {
        if let Some(previous) = PREVIOUS_REQUEST {
            previous();
        }
        pg_sys::RequestAddinShmemSpace(size_of::<Table>() + 128);
        pg_sys::RequestNamedLWLockTranche(TRANCHE.as_ptr(), PARTITIONS as i32 + 1);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn startup() {
    // SAFETY: the segment's piece is ours; it is laid out before anybody else runs.
    unsafe {
        if let Some(previous) = PREVIOUS_STARTUP {
            previous();
        }
        let mut found = false;
        let piece = pg_sys::ShmemInitStruct(c"LooseKV row locks".as_ptr(), size_of::<Table>(), &mut found);
        let table = piece.cast::<Table>();
        for partition in &(*table).partitions {
            clear(partition.get());
        }
        (&raw mut (*table).whole_count).write(AtomicU32::new(0));
        (&raw mut (*table).prepared_before).write(AtomicU32::new(UNKNOWN));
        LOCKS.store(pg_sys::GetNamedLWLockTranche(TRANCHE.as_ptr()), Release);
        TABLE.store(table, Release);
    }
}

/// # Safety
/// `partition` is memory of its own.
unsafe fn clear(partition: *mut Partition) {
    let none = Tag { database: 0, table: 0, key: 0 };
    // SAFETY: by the contract; every field is written before it is read.
    unsafe {
        (*partition).chains = [NONE; CHAINS];
        for i in 0..ENTRIES {
            let next = if i + 1 < ENTRIES { i as u32 + 1 } else { NONE };
            (&raw mut (*partition).entries[i]).write(Entry { tag: none, writer: 0, mode: 0, next });
        }
        (*partition).free = 0;
    }
}

/// Runs `work` under a partition's lock. It calls nothing that raises errors.
fn latched<T>(number: usize, work: impl FnOnce(&Table) -> T) -> T {
    let table = TABLE.load(Acquire);
    assert!(!table.is_null(), "the library was not preloaded");
    // SAFETY: laid out at startup; an LWLock that is held only here.
    unsafe {
        let lock = &raw mut (*LOCKS.load(Acquire).add(number)).lock;
        LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let result = work(&*table);
        LWLockRelease(lock);
        result
    }
}

fn in_partition<T>(number: usize, work: impl FnOnce(&mut Partition) -> T) -> T {
    // SAFETY: the partition is used under its lock only.
    latched(number, |table| work(unsafe { &mut *table.partitions[number].get() }))
}

/// The whole tables locked. The closure may shorten the list, or fill one more place and say so by the new length.
fn in_wholes<T>(work: impl FnOnce(&mut [Whole; WHOLES], &mut usize) -> T) -> T {
    latched(PARTITIONS, |table| {
        let mut count = table.whole_count.load(SeqCst) as usize;
        // SAFETY: used under its lock only.
        let result = work(unsafe { &mut *table.wholes.get() }, &mut count);
        table.whole_count.store(count as u32, SeqCst);
        result
    })
}

impl Partition {
    fn walk(&self, chain: usize) -> impl Iterator<Item = (u32, &Entry)> {
        let mut at = self.chains[chain];
        std::iter::from_fn(move || {
            let number = at;
            let entry = self.entries.get(number as usize)?;
            at = entry.next;
            Some((number, entry))
        })
    }

    fn add(&mut self, chain: usize, entry: Entry) -> bool {
        let number = self.free;
        let Some(place) = self.entries.get_mut(number as usize) else { return false };
        self.free = place.next;
        *place = Entry { next: self.chains[chain], ..entry };
        self.chains[chain] = number;
        true
    }

    /// Removes the entries of a chain that are not worth keeping.
    fn sweep(&mut self, chain: usize, mut goes: impl FnMut(&Entry) -> bool) {
        let mut before = NONE;
        let mut at = self.chains[chain];
        while let Some(entry) = self.entries.get(at as usize).copied() {
            if goes(&entry) {
                match self.entries.get_mut(before as usize) {
                    Some(before) => before.next = entry.next,
                    None => self.chains[chain] = entry.next,
                }
                self.entries[at as usize].next = self.free;
                self.free = at;
            } else {
                before = at;
            }
            at = entry.next;
        }
    }
}

/// How an attempt to lock ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// A new entry was made.
    Taken,
    /// This transaction has this lock, or a stronger one, already.
    Held,
    /// This writer, who was running when he made his entry, is in the way.
    Blocked(Writer),
    Full,
}

/// One attempt to lock a key, without waiting for anybody. `changed`: the newest version of the row is this transaction's, and
/// stands for a lock in this mode.
pub fn attempt(tag: Tag, mode: Mode, me: Writer, changed: Option<Mode>) -> Attempt {
    in_partition(tag.partition(), |partition| {
        let (mut mine, mut others) = (None, None);
        for (_, entry) in partition.walk(tag.chain()).filter(|(_, entry)| entry.tag == tag) {
            let writer = Writer(entry.writer);
            if xact::is_mine(writer) {
                mine = mine.max(Some(entry.mode));
            } else if changed.is_some_and(|changed| conflict(entry.mode, changed)) {
                // He has come since we changed the row, is about to notice, and waits for us then, with the lock or without.
            } else if conflict(entry.mode, mode) {
                return Attempt::Blocked(writer);
            } else {
                others = others.max(Some(entry.mode));
            }
        }
        if mine >= Some(mode) {
            return Attempt::Held;
        }
        if let Some(attempt) = ask_wholes(&tag, mode, mine.max(changed), others) {
            return attempt;
        }
        match partition.add(tag.chain(), Entry { tag, writer: me.0, mode, next: NONE }) {
            true => Attempt::Taken,
            false => Attempt::Full,
        }
    })
}

/// What those who have locked the whole table mean for a row which no entry keeps from us. `mine` and `others`: the strongest
/// mode in which the row is held by itself, by us (or changed) and by others.
///
/// A row is excepted from a whole table as long as somebody else goes on holding it, by itself, in a mode that conflicts with the
/// whole's: he cannot have begun with that later. So he may lock it in a stronger mode, too, while to the owner of the whole
/// table it is a row like any other, which he locks by itself.
fn ask_wholes(tag: &Tag, mode: Mode, mine: Option<Mode>, others: Option<Mode>) -> Option<Attempt> {
    let table = TABLE.load(Acquire);
    // SAFETY: laid out at startup (a lock was taken on it just now).
    if unsafe { (*table).whole_count.load(SeqCst) } == 0 {
        return None;
    }
    let excepted = |whole: &Whole, held: Option<Mode>| held.is_some_and(|held| conflict(whole.mode, held));
    in_wholes(|wholes, count| {
        let mut held = false;
        for whole in wholes.iter().take(*count).filter(|whole| whole.tag.is_of_same_table(tag)) {
            let writer = Writer(whole.writer);
            if xact::is_mine(writer) {
                held |= covers(whole.mode, mode) && !excepted(whole, others);
            } else if conflict(whole.mode, mode) && !excepted(whole, mine) {
                return Some(Attempt::Blocked(writer));
            }
        }
        held.then_some(Attempt::Held)
    })
}

/// A whole table in one mode makes locks of its rows in another one needless. KEY SHARE is no part of a stronger one: it may be had
/// on a row that somebody else has changed, whom a stronger whole does not keep from changing it again, nor its key.
pub fn covers(whole: Mode, mode: Mode) -> bool {
    whole == mode || whole > mode && mode > pg_sys::LockTupleMode::LockTupleKeyShare
}

/// Whether there may be row locks of which this table knows nothing: those of transactions that were prepared before the server
/// started. They are all there again before anybody can write; so the first who asks finds out for all, by looking whether
/// there are prepared transactions at all.
pub fn may_outlive_a_server() -> bool {
    // SAFETY: plain variables; as many processes stand for prepared transactions, in memory that is there as long as the server.
    unsafe {
        let most = usize::try_from(raw::max_prepared_xacts).unwrap_or(0);
        if most == 0 {
            return false;
        }
        let Some(table) = TABLE.load(Acquire).as_ref() else { return true };
        if table.prepared_before.load(Relaxed) == UNKNOWN {
            let first = pg_sys::PreparedXactProcs;
            let any =
                (0..most).any(|at| (&raw const (*first.add(at)).xid).read_volatile() != pg_sys::InvalidTransactionId);
            table.prepared_before.store(if any { PERHAPS } else { NO }, Relaxed);
        }
        table.prepared_before.load(Relaxed) != NO
    }
}

/// This transaction has locked the key, in this mode or a stronger one.
pub fn holds(tag: &Tag, mode: Mode) -> bool {
    in_partition(tag.partition(), |partition| {
        let mut locks = partition.walk(tag.chain()).filter(|(_, entry)| entry.tag == *tag && entry.mode >= mode);
        locks.any(|(_, entry)| xact::is_mine(Writer(entry.writer)))
    })
}

/// This transaction has locked the whole table (but for rows that others hold), in this mode or a stronger one.
pub fn holds_whole(tag: &Tag, mode: Mode) -> bool {
    in_wholes(|wholes, count| {
        let mut mine = wholes.iter().take(*count).filter(|whole| whole.tag.is_of_same_table(tag) && whole.mode >= mode);
        mine.any(|whole| xact::is_mine(Writer(whole.writer)))
    })
}

/// Removes one entry that [`attempt`] made.
pub fn give_back(tag: Tag, mode: Mode, me: Writer) {
    in_partition(tag.partition(), |partition| {
        let mut once = true;
        partition.sweep(tag.chain(), |entry| {
            once && entry.tag == tag && entry.writer == me.0 && entry.mode == mode && {
                once = false;
                true
            }
        });
    });
}

/// Removes the entries of a writer for this key that are not stronger than `mode`.
pub fn give_back_weaker(tag: Tag, mode: Mode, me: Writer) {
    in_partition(tag.partition(), |partition| {
        partition.sweep(tag.chain(), |entry| entry.tag == tag && entry.writer == me.0 && entry.mode <= mode);
    });
}

/// Removes one entry of ours that a whole table in this mode, locked since, makes needless. False: it does not, for somebody else
/// holds the row as well, which may so be excepted.
pub fn give_back_to_whole(tag: Tag, mode: Mode, me: Writer, whole: Mode) -> bool {
    let needless = covers(whole, mode)
        && in_partition(tag.partition(), |partition| {
            let mut entries = partition.walk(tag.chain()).filter(|(_, entry)| entry.tag == tag);
            !entries.any(|(_, entry)| conflict(entry.mode, whole) && !xact::is_mine(Writer(entry.writer)))
        });
    if needless {
        give_back(tag, mode, me);
    }
    needless
}

/// A writer has ended: removes what he has in this key's chain, and whole tables.
pub fn forget_writer(tag: &Tag, writer: Writer) {
    in_partition(tag.partition(), |partition| partition.sweep(tag.chain(), |entry| entry.writer == writer.0));
    forget_wholes(|whole| whole.writer == writer.0);
}

fn forget_wholes(goes: impl Fn(&Whole) -> bool) {
    let table = TABLE.load(Acquire);
    // SAFETY: laid out at startup, if at all.
    if table.is_null() || unsafe { (*table).whole_count.load(SeqCst) } == 0 {
        return;
    }
    in_wholes(|wholes, count| {
        let mut kept = 0;
        for at in 0..*count {
            if !goes(&wholes[at]) {
                wholes[kept] = wholes[at];
                kept += 1;
            }
        }
        *count = kept;
    });
}

/// Whole tables of this transaction, when it ends, or the part of it that took them.
pub fn forget_own_wholes(writers: &[Writer]) {
    forget_wholes(|whole| writers.contains(&Writer(whole.writer)));
}

/// Makes room in a partition: removes the entries of writers that have ended.
pub fn tidy(tag: &Tag) {
    let number = tag.partition();
    let mut writers: Vec<u64> = in_partition(number, |partition| {
        (0..CHAINS).flat_map(|chain| partition.walk(chain).map(|(_, entry)| entry.writer).collect::<Vec<_>>()).collect()
    });
    writers.sort_unstable();
    writers.dedup();
    writers.retain(|writer| xact::has_ended(Writer(*writer)));
    in_partition(number, |partition| {
        for chain in 0..CHAINS {
            partition.sweep(chain, |entry| writers.binary_search(&entry.writer).is_ok());
        }
    });
}

/// Makes room for whole tables: removes those of writers that have ended.
pub fn tidy_wholes() {
    let mut writers: Vec<u64> =
        in_wholes(|wholes, count| wholes.iter().take(*count).map(|whole| whole.writer).collect());
    writers.retain(|writer| xact::has_ended(Writer(*writer)));
    forget_wholes(|whole| writers.contains(&whole.writer));
}

/// Locks a whole table, as far as others do not hold rows of it. It is blocked only by those who have locked it as well.
pub fn attempt_whole(tag: Tag, mode: Mode, me: Writer) -> Attempt {
    in_wholes(|wholes, count| {
        for whole in wholes.iter().take(*count).filter(|whole| whole.tag.is_of_same_table(&tag)) {
            let writer = Writer(whole.writer);
            match xact::is_mine(writer) {
                true if whole.mode == mode => return Attempt::Held,
                false if conflict(whole.mode, mode) => return Attempt::Blocked(writer),
                _ => {}
            }
        }
        let Some(place) = wholes.get_mut(*count) else { return Attempt::Full };
        *place = Whole { tag, writer: me.0, mode };
        *count += 1;
        Attempt::Taken
    })
}

/// Whether others hold rows of the table in modes that conflict with this one.
pub fn others_hold_rows(tag: &Tag, mode: Mode) -> bool {
    let conflicting_row = |number| {
        in_partition(number, |partition| {
            let mut entries = (0..CHAINS).flat_map(|chain| partition.walk(chain).map(|(_, entry)| entry));
            entries
                .find(|entry| {
                    entry.tag.is_of_same_table(tag)
                        && conflict(entry.mode, mode)
                        && !xact::is_mine(Writer(entry.writer))
                })
                .map(|entry| (entry.tag, Writer(entry.writer)))
        })
    };
    (0..PARTITIONS).any(|number| match conflicting_row(number) {
        Some((found, writer)) if xact::has_ended(writer) => {
            tidy(&found);
            conflicting_row(number).is_some()
        }
        found => found.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::{conflict, Tag, CHAINS, PARTITIONS};
    use loosekv_engine::filter::key_hash;
    use std::collections::HashMap;

    #[test]
    fn keys_are_spread_evenly() {
        let most = |places: &mut dyn Iterator<Item = usize>| {
            let mut count = HashMap::new();
            places.for_each(|place| *count.entry(place).or_insert(0) += 1);
            count.into_values().max().unwrap_or(0)
        };
        let keys = |width: usize| (0..8192u64).map(move |i| key_hash(&i.to_be_bytes()[8 - width..]));
        for width in [4, 8] {
            let tags: Vec<Tag> = keys(width).map(|key| Tag { database: 5, table: 16400, key }).collect();
            // Evenly these are 128 and 32.
            assert!(most(&mut tags.iter().map(Tag::partition)) < 2 * tags.len() / PARTITIONS, "keys of {width} bytes");
            assert!(most(&mut tags.iter().map(Tag::chain)) < 3 * tags.len() / CHAINS, "keys of {width} bytes");
        }
    }

    #[test]
    fn modes_conflict_as_heaps_do() {
        let table = [
            [false, false, false, true],
            [false, false, true, true],
            [false, true, true, true],
            [true, true, true, true],
        ];
        for one in 0..4u32 {
            for other in 0..4u32 {
                assert_eq!(conflict(one, other), table[one as usize][other as usize], "{one} and {other}");
            }
        }
    }
}
