//! The settings (`loosekv.*`).

use loosekv_engine::options::{self, TreeOptions};
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use std::ffi::{c_void, CStr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum Compression {
    #[name = c"none"]
    None,
    #[name = c"zstd"]
    Zstd,
}

static SHARED_MEMORY: GucSetting<i32> = GucSetting::<i32>::new(256);
static INDEX_MEMORY: GucSetting<i32> = GucSetting::<i32>::new(-1);
static ROW_CACHE: GucSetting<i32> = GucSetting::<i32>::new(-1);
static MEMTABLE_SIZE: GucSetting<i32> = GucSetting::<i32>::new(16 * 1024);
static FAN_IN: GucSetting<i32> = GucSetting::<i32>::new(8);
static COMPRESSION: GucSetting<Compression> = GucSetting::<Compression>::new(Compression::None);
static COMPRESSION_LEVEL: GucSetting<i32> = GucSetting::<i32>::new(1);
static WORKERS: GucSetting<i32> = GucSetting::<i32>::new(4);
static WORKER_NAPTIME: GucSetting<i32> = GucSetting::<i32>::new(1000);
static WRITE_THROTTLE: GucSetting<i32> = GucSetting::<i32>::new(10);

/// Limits on memory, in bytes.
pub struct Limits {
    pub memtables: u64,
    pub key_index: u64,
    /// What key indexes may make of the heap into blocks of their sizes: what they count, and what is free of it.
    pub growth: u64,
    /// What key indexes and memtables leave free in any case: without a list of runs nothing can be flushed, to free memory.
    pub left: u64,
}

pub fn shared_memory_bytes() -> usize {
    (SHARED_MEMORY.get() as usize) << 20
}

/// Shared memory for the row cache, which is not part of the rest.
pub fn row_cache_bytes() -> usize {
    match ROW_CACHE.get() {
        -1 => shared_memory_bytes() / 8,
        megabytes => (megabytes as usize) << 20,
    }
}

/// How the shared memory is divided. An eighth is left for versions, run maps and whatever else is small.
pub fn budgets() -> Limits {
    let all = shared_memory_bytes() as u64;
    let usable = all - all / 8;
    let key_index = match INDEX_MEMORY.get() {
        -1 => all / 2,
        megabytes => (megabytes as u64) << 20,
    };
    // Whatever is asked for the index, memtables keep a quarter: without them nothing can be written.
    let growth = usable - all / 4;
    let key_index = key_index.min(growth);
    Limits { memtables: usable - key_index, key_index, growth, left: all / 32 }
}

/// Bytes of rows after which a memtable is frozen and flushed. A quarter of all memtables' memory at the most, so that one
/// can be flushed while another fills.
pub fn memtable_bytes() -> u64 {
    limit_memtable((MEMTABLE_SIZE.get() as u64) << 10)
}

/// The size of a memtable, as far as memory allows: a quarter of all memtables' at the most.
pub fn limit_memtable(bytes: u64) -> u64 {
    bytes.min(budgets().memtables / 4)
}

pub fn compression_level() -> i32 {
    COMPRESSION_LEVEL.get()
}

/// How tables are kept that say nothing else.
pub fn tree_options() -> TreeOptions {
    let mut options =
        TreeOptions { memtable_bytes: memtable_bytes(), fan_in: FAN_IN.get() as u32, ..TreeOptions::default() };
    options.run.compression = match COMPRESSION.get() {
        Compression::None => options::Compression::None,
        Compression::Zstd => options::Compression::Zstd(COMPRESSION_LEVEL.get()),
    };
    options
}

pub fn workers() -> usize {
    WORKERS.get() as usize
}

pub fn worker_naptime() -> std::time::Duration {
    std::time::Duration::from_millis(WORKER_NAPTIME.get() as u64)
}

/// Longest delay of one write when flushes and merges fall behind.
pub fn write_throttle() -> std::time::Duration {
    std::time::Duration::from_millis(WRITE_THROTTLE.get() as u64)
}

/// Makes the settings known. To be called while shared_preload_libraries are loaded.
pub fn define() {
    define_memory();
    define_shape();
    define_work();
    // SAFETY: the name is static.
    unsafe { pgrx::pg_sys::MarkGUCPrefixReserved(c"loosekv".as_ptr()) }
}

/// A setting that tables take over: whoever comes to one after a reload looks again (see the registry).
#[allow(clippy::too_many_arguments)]
fn int_of_tables(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<i32>,
    least: i32,
    most: i32,
    flags: GucFlags,
) {
    let context = GucContext::Sighup;
    // SAFETY: the hook cannot fail.
    unsafe {
        GucRegistry::define_int_guc_with_hooks(
            name,
            short,
            long,
            setting,
            least,
            most,
            context,
            flags,
            None,
            Some(assigned),
            None,
        );
    }
}

fn enum_of_tables(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<Compression>,
    flags: GucFlags,
) {
    let context = GucContext::Sighup;
    // SAFETY: the hook cannot fail.
    unsafe {
        GucRegistry::define_enum_guc_with_hooks(name, short, long, setting, context, flags, None, Some(assigned), None);
    }
}

unsafe extern "C-unwind" fn assigned(_value: i32, _extra: *mut c_void) {
    crate::host::registry::relation_changed(pgrx::pg_sys::Oid::INVALID);
}

fn define_memory() {
    let none = GucFlags::default();
    GucRegistry::define_int_guc(
        c"loosekv.shared_memory",
        c"Shared memory for key indexes and memtables of all tables.",
        c"It is taken at server start, in addition to shared_buffers.",
        &SHARED_MEMORY,
        16,
        1 << 20,
        GucContext::Postmaster,
        none | GucFlags::UNIT_MB,
    );
    GucRegistry::define_int_guc(
        c"loosekv.index_memory",
        c"Part of loosekv.shared_memory for key indexes.",
        c"When it is used up, keys in the oldest runs are looked for by filter instead. -1 takes half; memtables keep \
          a quarter in any case.",
        &INDEX_MEMORY,
        -1,
        1 << 20,
        GucContext::Postmaster,
        none | GucFlags::UNIT_MB,
    );
    GucRegistry::define_int_guc(
        c"loosekv.row_cache",
        c"Shared memory for rows whose pages are read from the disk again and again.",
        c"It is taken at server start, in addition to loosekv.shared_memory, and used as such rows are read. -1 takes an \
          eighth as much as that, 0 keeps none.",
        &ROW_CACHE,
        -1,
        1 << 20,
        GucContext::Postmaster,
        none | GucFlags::UNIT_MB,
    );
    int_of_tables(
        c"loosekv.memtable_size",
        c"Size of a table's memtable at which it is written to a run.",
        c"At most a quarter of the memory that loosekv.shared_memory leaves for memtables is used for one.",
        &MEMTABLE_SIZE,
        64,
        16 << 20,
        none | GucFlags::UNIT_KB,
    );
}

fn define_shape() {
    let none = GucFlags::default();
    int_of_tables(
        c"loosekv.fan_in",
        c"Number of runs of one level that are merged into one run of the next.",
        c"More runs mean fewer rewrites of each row and slower scans.",
        &FAN_IN,
        2,
        64,
        none,
    );
    enum_of_tables(
        c"loosekv.compression",
        c"Compression of the pages of new runs.",
        c"Existing runs are rewritten when they are merged.",
        &COMPRESSION,
        none,
    );
    int_of_tables(
        c"loosekv.compression_level",
        c"Compression level for zstd.",
        c"Higher levels take more time when runs are written, and not when they are read.",
        &COMPRESSION_LEVEL,
        1,
        19,
        none,
    );
}

fn define_work() {
    let none = GucFlags::default();
    GucRegistry::define_int_guc(
        c"loosekv.workers",
        c"Largest number of background workers, one for a database, that flush and merge.",
        c"Without a worker, whoever fills a memtable flushes it. They count towards max_worker_processes.",
        &WORKERS,
        0,
        super::work::claims::PLACES as i32,
        GucContext::Sighup,
        none,
    );
    GucRegistry::define_int_guc(
        c"loosekv.worker_naptime",
        c"Time after which a background worker looks for work unasked.",
        c"Whoever makes work wakes the worker; this is for what becomes due as time goes by.",
        &WORKER_NAPTIME,
        10,
        3_600_000,
        GucContext::Sighup,
        none | GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"loosekv.write_throttle",
        c"Longest delay of one write when flushing and merging fall behind; 0 delays nothing.",
        c"The delay grows with the backlog, so that writers slow down before memory is full. \
           It may be up to sixteen times as long where runs pile up all the same.",
        &WRITE_THROTTLE,
        0,
        1000,
        GucContext::Sighup,
        none | GucFlags::UNIT_MS,
    );
}
