//! What the extension keeps at the start of its piece of shared memory; the shared heap follows it.
//!
//! ```text
//!  | Global: budgets, workers, counters | registry's slots | readers | progress | seen by workers | whereabouts of pages | row cache | shared heap ... |
//! ```
//!
//! Made by the postmaster at every start (and restart after a crash); all processes are its forks and find it at the same
//! address.

use crate::host::latch::LwLatch;
use crate::host::progress::{Entry, Progresses};
use crate::host::readers::{Reader, Readers};
use crate::host::registry::{Registry, Slot};
use crate::host::seen::{ByWorkers, OfWorkers};
use crate::host::whereabouts::Whereabouts;
use crate::settings;
use crate::work::claims::Claims;
use loosekv_engine::host::Budgets;
use loosekv_engine::row_cache::RowCache;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering::*};

/// Part of the heap that only operations which free memory may use.
const EMERGENCY: usize = 1 << 20;
/// The heap wants whole pages, the page table whole large ones.
const ALIGN: usize = 4096;

pub struct Global {
    pub budgets: Budgets,
    pub registry: Registry,
    pub readers: Readers,
    pub progress: Progresses,
    pub by_workers: ByWorkers,
    pub whereabouts: Whereabouts,
    pub row_cache: Option<RowCache<LwLatch>>,
    /// Which databases have a background worker.
    pub workers: Claims<LwLatch, pgrx::pg_sys::Latch>,
    pub counters: GlobalCounters,
}

#[derive(Default)]
pub struct GlobalCounters {
    /// Tables loaded from their pages since the server started.
    pub loads: AtomicU64,
    /// Numbers of superversions that were set aside for tables which were loaded.
    pub first_versions: AtomicU64,
    /// Tables whose memory was given up for others.
    pub evictions: AtomicU64,
    /// Memtables that were flushed, of any table.
    pub flushes: AtomicU64,
    /// When somebody last looked for memory in vain, in microseconds.
    pub wanted: AtomicU64,
    /// The end of the WAL when the server first had pages that it need not write.
    pub first_unwritten: AtomicU64,
    /// Processes that ended with something pinned.
    pub forced_unpins: AtomicU64,
}

static GLOBAL: AtomicPtr<Global> = AtomicPtr::new(std::ptr::null_mut());

/// The shared structures; `None` when the library was not preloaded.
#[inline]
pub fn get() -> Option<&'static Global> {
    // SAFETY: set once by `create`, for the life of the segment.
    unsafe { GLOBAL.load(Acquire).as_ref() }
}

/// Bytes to ask PostgreSQL for.
pub fn segment_size() -> usize {
    fixed_size() + align_up(settings::row_cache_bytes()) + settings::shared_memory_bytes() + ALIGN
}

fn align_up(size: usize) -> usize {
    size.next_multiple_of(ALIGN)
}

fn fixed_size() -> usize {
    align_up(size_of::<Global>())
        + align_up(table_slots() * size_of::<Slot>())
        + align_up(backends() * size_of::<Reader>())
        + align_up(backends() * size_of::<Entry>())
        + align_up(backends() * size_of::<OfWorkers>())
        + align_up(Whereabouts::wanted() * size_of::<AtomicI32>())
}

/// Tables that may be in memory at one time: one for every 32 kB, for that is what the least memtable takes.
fn table_slots() -> usize {
    (settings::shared_memory_bytes() >> 15).clamp(512, 65_536)
}

fn backends() -> usize {
    // SAFETY: set before shared memory is asked for.
    usize::try_from(unsafe { pgrx::pg_sys::MaxBackends }).unwrap_or(0)
}

/// Lays the segment out.
///
/// # Safety
/// `mem` is [`segment_size`] bytes of the segment that nothing else uses; no child has been forked since it was made.
pub unsafe fn create(mem: *mut u8) {
    let mem = mem.wrapping_add(mem.align_offset(ALIGN));
    let slots = table_slots();
    let first_slot = mem.wrapping_add(align_up(size_of::<Global>())).cast::<Slot>();
    let first_reader =
        mem.wrapping_add(align_up(size_of::<Global>()) + align_up(slots * size_of::<Slot>())).cast::<Reader>();
    let first_entry =
        first_reader.cast::<u8>().wrapping_add(align_up(backends() * size_of::<Reader>())).cast::<Entry>();
    let first_seen =
        first_entry.cast::<u8>().wrapping_add(align_up(backends() * size_of::<Entry>())).cast::<OfWorkers>();
    let first_place =
        first_seen.cast::<u8>().wrapping_add(align_up(backends() * size_of::<OfWorkers>())).cast::<AtomicI32>();
    let global = mem.cast::<Global>();
    // SAFETY: the pieces are aligned, do not overlap, and end within the segment.
    unsafe {
        for i in 0..slots {
            first_slot.add(i).write(Slot::free());
        }
        for i in 0..backends() {
            first_reader.add(i).write(Reader::default());
            first_entry.add(i).write(Entry::default());
            first_seen.add(i).write(OfWorkers::default());
        }
        first_place.write_bytes(0, Whereabouts::wanted());
        // The segment is new, and so what it has here is zeros: they are not touched before there are rows to keep.
        let (rows, bytes) = (mem.add(fixed_size()), settings::row_cache_bytes());
        global.write(Global {
            budgets: Budgets::default(),
            registry: Registry::new(first_slot, slots),
            readers: Readers::new(first_reader, backends()),
            progress: Progresses::new(first_entry, backends()),
            by_workers: ByWorkers::new(first_seen, backends()),
            whereabouts: Whereabouts::new(first_place, Whereabouts::wanted()),
            row_cache: RowCache::new(rows, bytes),
            workers: Claims::new(),
            counters: GlobalCounters::default(),
        });
        let limits = settings::budgets();
        (*global).budgets.memtables.limit.store(limits.memtables, Relaxed);
        (*global).budgets.key_index.limit.store(limits.key_index, Relaxed);
        loosekv_shm::heap::create(rows.add(align_up(bytes)), settings::shared_memory_bytes(), EMERGENCY);
        loosekv_shm::heap::limit_growth(limits.growth as usize, limits.left as usize);
    }
    GLOBAL.store(global, Release);
}
