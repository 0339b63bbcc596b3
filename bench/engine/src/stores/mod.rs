//! The stores that are compared, behind one narrow face.

pub mod fjall;
pub mod leveldb;
#[cfg(feature = "loosekv")]
pub mod loosekv;
pub mod rocksdb;

use std::path::Path;

pub type Result<T> = std::result::Result<T, String>;

/// What every store is given alike.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Bytes of one memtable; two of them may live at a time.
    pub memtable: usize,
    /// Bytes of block or page cache.
    pub cache: usize,
    /// One part in so many of a limited process's memory may go to the key index, of a store that has one.
    pub index_part: u64,
    pub compression: bool,
    /// Bytes of memory the whole process may use, 0 for no limit. Only a store that has such an option looks at it.
    pub limit: usize,
}

impl Setup {
    pub const FILTER_BITS: u32 = 10;
    pub const BACKGROUND_THREADS: usize = 2;
}

/// An open store. All calls may come from several threads. Writes are logged, not synced.
pub trait Store: Send + Sync {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Shows the value, if there is one, and tells whether.
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool>;
    /// Shows the values that there are of several keys, with the number of the key, and tells how many.
    fn multi_get(&self, keys: &[Vec<u8>], show: &mut dyn FnMut(usize, &[u8])) -> Result<u64> {
        let mut found = 0;
        for (number, key) in keys.iter().enumerate() {
            found += u64::from(self.get(key, &mut |value| show(number, value))?);
        }
        Ok(found)
    }
    /// Shows up to `limit` rows from `start` on (`None`: from the first), in key order, and tells how many.
    fn scan(&self, start: Option<&[u8]>, limit: u64, show: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64>;
    /// Waits until background work that belongs to opening is done.
    fn wait_until_ready(&self) -> Result<()> {
        Ok(())
    }
    /// Whether the store itself says that background work is pending. `None`: it does not tell.
    fn busy(&self) -> Option<bool> {
        None
    }
    /// What only this store can tell, by name.
    fn metrics(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
    fn close(self: Box<Self>) -> Result<()>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    LooseKv,
    LevelDb,
    RocksLeveled,
    RocksUniversal,
    Fjall,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::LooseKv, Kind::LevelDb, Kind::RocksLeveled, Kind::RocksUniversal, Kind::Fjall];

    pub fn name(self) -> &'static str {
        match self {
            Kind::LooseKv => "loosekv",
            Kind::LevelDb => "leveldb",
            Kind::RocksLeveled => "rocksdb-leveled",
            Kind::RocksUniversal => "rocksdb-universal",
            Kind::Fjall => "fjall",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether this build can drive it.
    pub fn built(self) -> bool {
        self != Kind::LooseKv || cfg!(feature = "loosekv")
    }

    pub fn version(self) -> String {
        match self {
            Kind::LooseKv => concat!(env!("CARGO_PKG_VERSION"), " (this tree)").to_owned(),
            Kind::LevelDb => leveldb::version(),
            Kind::RocksLeveled | Kind::RocksUniversal => rocksdb::version(),
            Kind::Fjall => fjall::VERSION.to_owned(),
        }
    }

    pub fn open(self, dir: &Path, setup: &Setup) -> Result<Box<dyn Store>> {
        match self {
            #[cfg(feature = "loosekv")]
            Kind::LooseKv => loosekv::open(dir, setup),
            #[cfg(not(feature = "loosekv"))]
            Kind::LooseKv => Err("built without the feature loosekv".to_owned()),
            Kind::LevelDb => leveldb::open(dir, setup),
            Kind::RocksLeveled => rocksdb::open(dir, setup, false),
            Kind::RocksUniversal => rocksdb::open(dir, setup, true),
            Kind::Fjall => fjall::open(dir, setup),
        }
    }
}

/// Declarations shared by the two C APIs.
mod c {
    use std::ffi::{c_char, CString};
    use std::path::Path;

    pub fn path(dir: &Path) -> super::Result<CString> {
        use std::os::unix::ffi::OsStrExt;
        CString::new(dir.as_os_str().as_bytes()).map_err(|e| e.to_string())
    }

    /// Turns an error out-parameter into a result, freeing it.
    pub fn check(error: *mut c_char) -> super::Result<()> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: both libraries hand out a malloc-ed, null-terminated string, which is ours now.
        unsafe {
            let text = std::ffi::CStr::from_ptr(error).to_string_lossy().into_owned();
            libc::free(error.cast());
            Err(text)
        }
    }

    /// The bytes a library points at; valid as long as the library says.
    ///
    /// # Safety
    /// `data` points at `length` readable bytes (it may be anything when `length` is 0) that stay for `'a`.
    pub unsafe fn bytes<'a>(data: *const c_char, length: usize) -> &'a [u8] {
        if length == 0 {
            return &[];
        }
        // SAFETY: the caller promises it.
        unsafe { std::slice::from_raw_parts(data.cast(), length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_keeps_what_it_is_given() {
        let setup = Setup { memtable: 1 << 20, cache: 1 << 20, index_part: 2, compression: true, limit: 0 };
        for kind in Kind::ALL.into_iter().filter(|kind| kind.built()) {
            let dir = std::env::temp_dir().join(format!("engine-bench-test-{}-{}", kind.name(), std::process::id()));
            let _ = std::fs::remove_dir_all(&dir);
            let store = kind.open(&dir, &setup).unwrap();
            for i in 0..1000_u32 {
                store.put(format!("key{i:05}").as_bytes(), format!("value{i}").as_bytes()).unwrap();
            }
            store.close().unwrap();
            let store = kind.open(&dir, &setup).unwrap();
            store.wait_until_ready().unwrap();
            let mut seen = Vec::new();
            assert!(store.get(b"key00042", &mut |value| seen = value.to_vec()).unwrap(), "{}", kind.name());
            assert_eq!(seen, b"value42");
            assert!(!store.get(b"key00042x", &mut |_| ()).unwrap());
            let several = ["key00007", "nobody", "key00999"].map(|key| key.as_bytes().to_vec());
            let mut values = Vec::new();
            let found = store.multi_get(&several, &mut |number, value| values.push((number, value.to_vec()))).unwrap();
            assert_eq!(
                (found, values),
                (2, vec![(0, b"value7".to_vec()), (2, b"value999".to_vec())]),
                "{}",
                kind.name()
            );
            let mut keys = Vec::new();
            assert_eq!(store.scan(Some(b"key00990"), 50, &mut |key, _| keys.push(key.to_vec())).unwrap(), 10);
            assert_eq!(keys.first().map(Vec::as_slice), Some(&b"key00990"[..]));
            assert_eq!(store.scan(None, u64::MAX, &mut |_, _| ()).unwrap(), 1000, "{}", kind.name());
            store.close().unwrap();
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }
}
