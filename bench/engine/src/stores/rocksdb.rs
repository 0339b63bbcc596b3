//! RocksDB through its C API, as Debian packages it: leveled or universal compaction.

use super::{c, Result, Setup, Store};
use std::ffi::{c_char, c_double, c_int, c_uchar, CStr};
use std::path::Path;
use std::ptr;

#[repr(C)]
struct Opaque([u8; 0]);
type Handle = *mut Opaque;

#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_open(options: Handle, name: *const c_char, error: *mut *mut c_char) -> Handle;
    fn rocksdb_close(db: Handle);
    fn rocksdb_put(
        db: Handle,
        options: Handle,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_get_pinned(
        db: Handle,
        options: Handle,
        key: *const c_char,
        key_len: usize,
        error: *mut *mut c_char,
    ) -> Handle;
    fn rocksdb_multi_get(
        db: Handle,
        options: Handle,
        count: usize,
        keys: *const *const c_char,
        key_lens: *const usize,
        values: *mut *mut c_char,
        value_lens: *mut usize,
        errors: *mut *mut c_char,
    );
    fn rocksdb_pinnableslice_value(slice: Handle, value_len: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: Handle);
    fn rocksdb_property_int(db: Handle, name: *const c_char, value: *mut u64) -> c_int;
    fn rocksdb_create_iterator(db: Handle, options: Handle) -> Handle;
    fn rocksdb_iter_destroy(iterator: Handle);
    fn rocksdb_iter_valid(iterator: Handle) -> c_uchar;
    fn rocksdb_iter_seek_to_first(iterator: Handle);
    fn rocksdb_iter_seek(iterator: Handle, key: *const c_char, key_len: usize);
    fn rocksdb_iter_next(iterator: Handle);
    fn rocksdb_iter_key(iterator: Handle, key_len: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(iterator: Handle, value_len: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(iterator: Handle, error: *mut *mut c_char);
    fn rocksdb_options_create() -> Handle;
    fn rocksdb_options_destroy(options: Handle);
    fn rocksdb_options_set_create_if_missing(options: Handle, yes: c_uchar);
    fn rocksdb_options_set_write_buffer_size(options: Handle, bytes: usize);
    fn rocksdb_options_set_max_write_buffer_number(options: Handle, count: c_int);
    fn rocksdb_options_set_max_background_jobs(options: Handle, count: c_int);
    fn rocksdb_options_set_compression(options: Handle, kind: c_int);
    fn rocksdb_options_set_compaction_style(options: Handle, style: c_int);
    fn rocksdb_options_set_target_file_size_base(options: Handle, bytes: u64);
    fn rocksdb_options_set_max_bytes_for_level_base(options: Handle, bytes: u64);
    fn rocksdb_options_set_block_based_table_factory(options: Handle, table: Handle);
    fn rocksdb_block_based_options_create() -> Handle;
    fn rocksdb_block_based_options_destroy(table: Handle);
    fn rocksdb_block_based_options_set_block_cache(table: Handle, cache: Handle);
    fn rocksdb_block_based_options_set_filter_policy(table: Handle, policy: Handle);
    fn rocksdb_filterpolicy_create_bloom_full(bits: c_double) -> Handle;
    fn rocksdb_cache_create_lru(capacity: usize) -> Handle;
    fn rocksdb_cache_destroy(cache: Handle);
    fn rocksdb_readoptions_create() -> Handle;
    fn rocksdb_readoptions_destroy(options: Handle);
    fn rocksdb_writeoptions_create() -> Handle;
    fn rocksdb_writeoptions_destroy(options: Handle);
}

const ZSTD: c_int = 7;
const UNIVERSAL: c_int = 1;
/// RocksDB's own default: the first level holds four memtables (256 MiB of 64 MiB).
const MEMTABLES_IN_LEVEL_BASE: u64 = 4;

/// The C API does not tell; the packaged library's file name does.
pub fn version() -> String {
    std::fs::read_to_string("/proc/self/maps")
        .ok()
        .and_then(|maps| maps.lines().find_map(|line| Some(line.rsplit_once("librocksdb.so.")?.1.trim().to_owned())))
        .unwrap_or_else(|| "unknown".to_owned())
}

struct RocksDb {
    db: Handle,
    options: Handle,
    table: Handle,
    cache: Handle,
    read: Handle,
    write: Handle,
}

// SAFETY: the library says that a database may be used from several threads; the option handles are only read.
unsafe impl Send for RocksDb {}
// SAFETY: as above.
unsafe impl Sync for RocksDb {}

pub fn open(dir: &Path, setup: &Setup, universal: bool) -> Result<Box<dyn Store>> {
    let name = c::path(dir)?;
    let mut error = ptr::null_mut();
    // SAFETY: handles are made here, used as the API says, and freed by `close`; the policy belongs to the table options.
    unsafe {
        let options = rocksdb_options_create();
        let table = rocksdb_block_based_options_create();
        let cache = rocksdb_cache_create_lru(setup.cache);
        rocksdb_block_based_options_set_block_cache(table, cache);
        let policy = rocksdb_filterpolicy_create_bloom_full(c_double::from(Setup::FILTER_BITS));
        rocksdb_block_based_options_set_filter_policy(table, policy);
        rocksdb_options_set_block_based_table_factory(options, table);
        rocksdb_options_set_create_if_missing(options, 1);
        rocksdb_options_set_write_buffer_size(options, setup.memtable);
        rocksdb_options_set_max_write_buffer_number(options, 2);
        rocksdb_options_set_max_background_jobs(options, Setup::BACKGROUND_THREADS as c_int);
        rocksdb_options_set_target_file_size_base(options, setup.memtable as u64);
        rocksdb_options_set_max_bytes_for_level_base(options, MEMTABLES_IN_LEVEL_BASE * setup.memtable as u64);
        rocksdb_options_set_compression(options, if setup.compression { ZSTD } else { 0 });
        if universal {
            rocksdb_options_set_compaction_style(options, UNIVERSAL);
        }
        let db = rocksdb_open(options, name.as_ptr(), &mut error);
        c::check(error)?;
        let (read, write) = (rocksdb_readoptions_create(), rocksdb_writeoptions_create());
        Ok(Box::new(RocksDb { db, options, table, cache, read, write }))
    }
}

impl RocksDb {
    fn property(&self, name: &CStr) -> u64 {
        let mut value = 0;
        // SAFETY: an open database, a null-terminated name.
        unsafe { rocksdb_property_int(self.db, name.as_ptr(), &mut value) };
        value
    }
}

impl Store for RocksDb {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut error = ptr::null_mut();
        // SAFETY: open handles, slices that live through the call.
        unsafe {
            rocksdb_put(
                self.db,
                self.write,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                &mut error,
            )
        };
        c::check(error)
    }

    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let (mut error, mut length) = (ptr::null_mut(), 0);
        // SAFETY: open handles; the pinned bytes stay until the slice is destroyed.
        unsafe {
            let slice = rocksdb_get_pinned(self.db, self.read, key.as_ptr().cast(), key.len(), &mut error);
            c::check(error)?;
            if slice.is_null() {
                return Ok(false);
            }
            let value = rocksdb_pinnableslice_value(slice, &mut length);
            show(c::bytes(value, length));
            rocksdb_pinnableslice_destroy(slice);
        }
        Ok(true)
    }

    fn multi_get(&self, keys: &[Vec<u8>], show: &mut dyn FnMut(usize, &[u8])) -> Result<u64> {
        let (starts, lens): (Vec<*const c_char>, Vec<usize>) =
            keys.iter().map(|key| (key.as_ptr().cast(), key.len())).unzip();
        let (mut values, mut errors) = (vec![ptr::null_mut(); keys.len()], vec![ptr::null_mut(); keys.len()]);
        let mut value_lens = vec![0; keys.len()];
        // SAFETY: open handles, as many of each array as there are keys; the values are malloc-ed, and ours then.
        unsafe {
            rocksdb_multi_get(
                self.db,
                self.read,
                keys.len(),
                starts.as_ptr(),
                lens.as_ptr(),
                values.as_mut_ptr(),
                value_lens.as_mut_ptr(),
                errors.as_mut_ptr(),
            );
            let mut found = 0;
            for (number, (value, len)) in values.iter().zip(&value_lens).enumerate() {
                if !value.is_null() {
                    show(number, c::bytes(*value, *len));
                    libc::free(value.cast());
                    found += 1;
                }
            }
            errors.into_iter().try_for_each(c::check)?;
            Ok(found)
        }
    }

    fn scan(&self, start: Option<&[u8]>, limit: u64, show: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let (mut error, mut length, mut seen) = (ptr::null_mut(), 0, 0);
        // SAFETY: open handles; key and value stay until the iterator moves.
        unsafe {
            let iterator = rocksdb_create_iterator(self.db, self.read);
            match start {
                Some(key) => rocksdb_iter_seek(iterator, key.as_ptr().cast(), key.len()),
                None => rocksdb_iter_seek_to_first(iterator),
            }
            while seen < limit && rocksdb_iter_valid(iterator) != 0 {
                let key = rocksdb_iter_key(iterator, &mut length);
                let key = c::bytes(key, length);
                let value = rocksdb_iter_value(iterator, &mut length);
                show(key, c::bytes(value, length));
                seen += 1;
                rocksdb_iter_next(iterator);
            }
            rocksdb_iter_get_error(iterator, &mut error);
            rocksdb_iter_destroy(iterator);
        }
        c::check(error)?;
        Ok(seen)
    }

    fn busy(&self) -> Option<bool> {
        // "compaction-pending" is no sign: universal compaction says so for ever while there is nothing it would pick.
        let pending =
            [c"rocksdb.num-running-flushes", c"rocksdb.num-running-compactions", c"rocksdb.mem-table-flush-pending"];
        Some(pending.into_iter().any(|name| self.property(name) != 0))
    }

    fn close(self: Box<Self>) -> Result<()> {
        // SAFETY: nobody else holds the handles; the cache goes after the database that uses it.
        unsafe {
            rocksdb_close(self.db);
            rocksdb_options_destroy(self.options);
            rocksdb_block_based_options_destroy(self.table);
            rocksdb_cache_destroy(self.cache);
            rocksdb_readoptions_destroy(self.read);
            rocksdb_writeoptions_destroy(self.write);
        }
        Ok(())
    }
}
