//! LevelDB through its C API, as Debian packages it.

use super::{c, Result, Setup, Store};
use std::ffi::{c_char, c_int, c_uchar};
use std::path::Path;
use std::ptr;

#[repr(C)]
struct Opaque([u8; 0]);
type Handle = *mut Opaque;

#[link(name = "leveldb")]
unsafe extern "C" {
    fn leveldb_open(options: Handle, name: *const c_char, error: *mut *mut c_char) -> Handle;
    fn leveldb_close(db: Handle);
    fn leveldb_put(
        db: Handle,
        options: Handle,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn leveldb_get(
        db: Handle,
        options: Handle,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut c_char;
    fn leveldb_create_iterator(db: Handle, options: Handle) -> Handle;
    fn leveldb_iter_destroy(iterator: Handle);
    fn leveldb_iter_valid(iterator: Handle) -> c_uchar;
    fn leveldb_iter_seek_to_first(iterator: Handle);
    fn leveldb_iter_seek(iterator: Handle, key: *const c_char, key_len: usize);
    fn leveldb_iter_next(iterator: Handle);
    fn leveldb_iter_key(iterator: Handle, key_len: *mut usize) -> *const c_char;
    fn leveldb_iter_value(iterator: Handle, value_len: *mut usize) -> *const c_char;
    fn leveldb_iter_get_error(iterator: Handle, error: *mut *mut c_char);
    fn leveldb_options_create() -> Handle;
    fn leveldb_options_destroy(options: Handle);
    fn leveldb_options_set_create_if_missing(options: Handle, yes: c_uchar);
    fn leveldb_options_set_write_buffer_size(options: Handle, bytes: usize);
    fn leveldb_options_set_cache(options: Handle, cache: Handle);
    fn leveldb_options_set_filter_policy(options: Handle, policy: Handle);
    fn leveldb_options_set_compression(options: Handle, kind: c_int);
    fn leveldb_filterpolicy_create_bloom(bits: c_int) -> Handle;
    fn leveldb_filterpolicy_destroy(policy: Handle);
    fn leveldb_cache_create_lru(capacity: usize) -> Handle;
    fn leveldb_cache_destroy(cache: Handle);
    fn leveldb_readoptions_create() -> Handle;
    fn leveldb_readoptions_destroy(options: Handle);
    fn leveldb_writeoptions_create() -> Handle;
    fn leveldb_writeoptions_destroy(options: Handle);
    fn leveldb_free(pointer: *mut c_char);
    fn leveldb_major_version() -> c_int;
    fn leveldb_minor_version() -> c_int;
}

pub fn version() -> String {
    // SAFETY: plain functions of the library, without arguments.
    unsafe { format!("{}.{}", leveldb_major_version(), leveldb_minor_version()) }
}

struct LevelDb {
    db: Handle,
    options: Handle,
    cache: Handle,
    policy: Handle,
    read: Handle,
    write: Handle,
}

// SAFETY: the library says that a database may be used from several threads without synchronization; the option handles
// are only read.
unsafe impl Send for LevelDb {}
// SAFETY: as above.
unsafe impl Sync for LevelDb {}

pub fn open(dir: &Path, setup: &Setup) -> Result<Box<dyn Store>> {
    let name = c::path(dir)?;
    let mut error = ptr::null_mut();
    // SAFETY: handles are made here, used as the API says, and freed by `close`; the name outlives the call.
    unsafe {
        let options = leveldb_options_create();
        let cache = leveldb_cache_create_lru(setup.cache);
        let policy = leveldb_filterpolicy_create_bloom(Setup::FILTER_BITS as c_int);
        leveldb_options_set_create_if_missing(options, 1);
        leveldb_options_set_write_buffer_size(options, setup.memtable);
        leveldb_options_set_cache(options, cache);
        leveldb_options_set_filter_policy(options, policy);
        leveldb_options_set_compression(options, c_int::from(setup.compression));
        let db = leveldb_open(options, name.as_ptr(), &mut error);
        c::check(error)?;
        let (read, write) = (leveldb_readoptions_create(), leveldb_writeoptions_create());
        Ok(Box::new(LevelDb { db, options, cache, policy, read, write }))
    }
}

impl Store for LevelDb {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut error = ptr::null_mut();
        // SAFETY: open handles, slices that live through the call.
        unsafe {
            leveldb_put(
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
        // SAFETY: open handles; a returned value is `length` bytes and ours until freed here.
        unsafe {
            let value = leveldb_get(self.db, self.read, key.as_ptr().cast(), key.len(), &mut length, &mut error);
            c::check(error)?;
            if value.is_null() {
                return Ok(false);
            }
            show(c::bytes(value, length));
            leveldb_free(value);
        }
        Ok(true)
    }

    fn scan(&self, start: Option<&[u8]>, limit: u64, show: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let (mut error, mut length, mut seen) = (ptr::null_mut(), 0, 0);
        // SAFETY: open handles; key and value stay until the iterator moves.
        unsafe {
            let iterator = leveldb_create_iterator(self.db, self.read);
            match start {
                Some(key) => leveldb_iter_seek(iterator, key.as_ptr().cast(), key.len()),
                None => leveldb_iter_seek_to_first(iterator),
            }
            while seen < limit && leveldb_iter_valid(iterator) != 0 {
                let key = leveldb_iter_key(iterator, &mut length);
                let key = c::bytes(key, length);
                let value = leveldb_iter_value(iterator, &mut length);
                show(key, c::bytes(value, length));
                seen += 1;
                leveldb_iter_next(iterator);
            }
            leveldb_iter_get_error(iterator, &mut error);
            leveldb_iter_destroy(iterator);
        }
        c::check(error)?;
        Ok(seen)
    }

    fn close(self: Box<Self>) -> Result<()> {
        // SAFETY: nobody else holds the handles; the cache and the policy go after the database that uses them.
        unsafe {
            leveldb_close(self.db);
            leveldb_options_destroy(self.options);
            leveldb_cache_destroy(self.cache);
            leveldb_filterpolicy_destroy(self.policy);
            leveldb_readoptions_destroy(self.read);
            leveldb_writeoptions_destroy(self.write);
        }
        Ok(())
    }
}
