//! LooseKV as an embedded store.

use super::{Result, Setup, Store};
use loosekv_engine::embedded::{self, Options, Reads};
use loosekv_engine::options::Compression;
use loosekv_engine::tree::Direction;
use loosekv_engine::types::RowBuf;
use std::cell::RefCell;
use std::ops::Bound;
use std::path::Path;

/// One part in so many of a limited process's memory may go to what a merge keeps aside.
const ASIDE_PART: usize = 16;

struct LooseKv(embedded::Store);

thread_local! {
    /// The row that reads copy into; its memory is used again.
    static ROW: RefCell<RowBuf> = RefCell::new(RowBuf::default());
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub fn open(dir: &Path, setup: &Setup) -> Result<Box<dyn Store>> {
    let mut options = Options::default();
    options.tree.run.filter_bits = Setup::FILTER_BITS;
    options.tree.run.compression =
        if setup.compression { Compression::Zstd(Compression::DEFAULT_LEVEL) } else { Compression::None };
    // A memtable holds addresses of rows; the rows are in the log. What is given to it is heap, as for the others.
    options.tree.memtable_bytes = setup.memtable as u64;
    options.memtables_budget = 2 * setup.memtable as u64;
    // Log files are made in pieces; large ones would say more about themselves than about the store.
    options.log_chunk = options.log_chunk.min(setup.memtable as u64 / 4);
    if setup.limit > 0 {
        // A mapped page of 8 KiB is fetched by two faults, one after the other; a copied one by one read.
        options.reads = Reads::Cached { bytes: setup.cache };
        options.key_index_budget = setup.limit as u64 / setup.index_part.max(1);
        options.aside_memory = setup.limit / ASIDE_PART;
    }
    Ok(Box::new(LooseKv(embedded::Store::open(dir, &options).map_err(text)?)))
}

impl Store for LooseKv {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put(key, value).map_err(text)
    }

    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool> {
        ROW.with_borrow_mut(|row| {
            let found = self.0.get_into(key, row).map_err(text)?;
            if found {
                show(&row.body);
            }
            Ok(found)
        })
    }

    fn multi_get(&self, keys: &[Vec<u8>], show: &mut dyn FnMut(usize, &[u8])) -> Result<u64> {
        let values = self.0.multi_get(keys).map_err(text)?;
        let found = values.iter().enumerate().filter_map(|(number, value)| Some((number, value.as_deref()?)));
        Ok(found.inspect(|(number, value)| show(*number, value)).count() as u64)
    }

    fn scan(&self, start: Option<&[u8]>, limit: u64, show: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let lower = start.map_or(Bound::Unbounded, Bound::Included);
        let mut rows = self.0.range(lower, Bound::Unbounded, Direction::Forward).map_err(text)?;
        let mut seen = 0;
        while seen < limit && rows.next().map_err(text)? {
            show(rows.key(), rows.value());
            seen += 1;
        }
        Ok(seen)
    }

    fn wait_until_ready(&self) -> Result<()> {
        self.0.settle().map_err(text)
    }

    fn metrics(&self) -> Vec<(&'static str, f64)> {
        let metrics = self.0.metrics();
        let mut named = vec![
            ("gets_total", metrics.gets as f64),
            ("runs_looked_into_total", metrics.runs_looked_into as f64),
            ("pages_read_total", metrics.pages_read as f64),
            ("log_bytes_total", metrics.log_bytes as f64),
            ("page_bytes_written_total", metrics.page_bytes_written as f64),
            ("flushes_total", metrics.flushes as f64),
            ("merges_total", metrics.merges as f64),
            ("delayed_ms_total", metrics.delayed.as_secs_f64() * 1e3),
            ("stalled_ms_total", metrics.stalled.as_secs_f64() * 1e3),
        ];
        if let Ok(statistics) = self.0.statistics() {
            named.push(("runs", statistics.levels.iter().map(|level| level.runs as f64).sum()));
            named.push(("index_bytes", statistics.key_index_bytes as f64));
            named.push(("stored_rows", statistics.rows as f64));
        }
        named
    }

    fn close(self: Box<Self>) -> Result<()> {
        if let Some(trouble) = self.0.trouble() {
            return Err(text(trouble));
        }
        self.0.close().map_err(text)
    }
}
