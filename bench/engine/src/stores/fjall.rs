//! fjall: one keyspace of one database.

use super::{Result, Setup, Store};
use ::fjall::config::{BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use ::fjall::{compaction::Leveled, CompressionType, Database, Keyspace, KeyspaceCreateOptions};
use std::path::Path;
use std::sync::Arc;

/// As locked in Cargo.lock; the crate does not tell.
pub const VERSION: &str = "3.1.13";

/// fjall's own default size of a table, scaled down with the memtable as for the others.
const LARGEST_TABLE: u64 = 64 << 20;
/// fjall's own default size of its journals.
const JOURNALS: u64 = 512 << 20;

struct Fjall {
    db: Database,
    rows: Keyspace,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub fn open(dir: &Path, setup: &Setup) -> Result<Box<dyn Store>> {
    let db = Database::builder(dir)
        .cache_size(setup.cache as u64)
        .worker_threads(Setup::BACKGROUND_THREADS)
        .max_journaling_size(JOURNALS)
        .open()
        .map_err(text)?;
    let compression = if setup.compression { CompressionType::Lz4 } else { CompressionType::None };
    let options = || {
        let filter = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(Setup::FILTER_BITS as f32));
        KeyspaceCreateOptions::default()
            .max_memtable_size(setup.memtable as u64)
            .filter_policy(FilterPolicy::all(filter))
            .data_block_compression_policy(CompressionPolicy::all(compression))
            .compaction_strategy(Arc::new(
                Leveled::default().with_table_target_size(LARGEST_TABLE.min(setup.memtable as u64)),
            ))
    };
    let rows = db.keyspace("rows", options).map_err(text)?;
    Ok(Box::new(Fjall { db, rows }))
}

impl Store for Fjall {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.rows.insert(key, value).map_err(text)
    }

    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool> {
        match self.rows.get(key).map_err(text)? {
            Some(value) => {
                show(&value);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn scan(&self, start: Option<&[u8]>, limit: u64, show: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let rows = match start {
            Some(key) => self.rows.range(key..),
            None => self.rows.iter(),
        };
        let mut seen = 0;
        for row in rows {
            if seen == limit {
                break;
            }
            let (key, value) = row.into_inner().map_err(text)?;
            show(&key, &value);
            seen += 1;
        }
        Ok(seen)
    }

    fn busy(&self) -> Option<bool> {
        Some(self.db.active_compactions() > 0 || self.db.outstanding_flushes() > 0)
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Self { db, rows } = *self;
        drop(rows);
        drop(db);
        Ok(())
    }
}
