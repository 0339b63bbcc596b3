//! The store that an application opens.

use super::background::{step, Background};
use super::batch::{Batch, Change};
use super::commit::Work;
use super::core::Core;
use super::fs::{Fs, RealFs};
use super::iterator::Iter;
use super::metrics::{Metrics, Statistics};
use super::options::{Options, WriteOptions};
use super::pace::Task;
use super::snapshot::Snapshot;
use crate::error::{Error, Result};
use crate::tree::Direction;
use crate::types::RowBuf;
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// An ordered key-value store in a directory, for one process and any number of its threads.
///
/// Snapshots and iterators keep the store's files open, and its directory locked, until they are dropped.
pub struct Store {
    core: Arc<Core>,
    background: Background,
    closed: AtomicBool,
}

impl Store {
    /// Opens the store in `dir`, and makes it if [`Options::create`] says so.
    pub fn open(dir: impl AsRef<Path>, options: &Options) -> Result<Store> {
        Store::open_on(Arc::new(RealFs), dir, options)
    }

    /// Opens a store on a file system of the caller's.
    pub fn open_on(fs: Arc<dyn Fs>, dir: impl AsRef<Path>, options: &Options) -> Result<Store> {
        let core = Arc::new(Core::open(fs, dir.as_ref(), options)?);
        let background = match core.host().pace.has_threads() {
            true => Background::start(&core)?,
            false => Background::default(),
        };
        Ok(Store { core, background, closed: AtomicBool::new(false) })
    }

    /// Stops the threads, and leaves the files so that the next open is quick. What has not been closed is opened as after a
    /// crash: nothing is lost, but the log is read.
    pub fn close(self) -> Result<()> {
        self.shut(self.core.host().options.flush_on_close)
    }

    fn shut(&self, flush: bool) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let host = self.core.host();
        host.pace.stop();
        self.background.join();
        host.health.check()?;
        if flush {
            self.flush_all()?;
        }
        host.log.close()?;
        host.health.fail("it was closed");
        Ok(())
    }

    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.change(Change { key, value: Some(value) })
    }

    pub fn delete(&self, key: &[u8]) -> Result<()> {
        self.change(Change { key, value: None })
    }

    fn change(&self, change: Change<'_>) -> Result<()> {
        change.check()?;
        self.core.committer.commit(self.core.tree()?, Work::One(change), self.core.host().options.sync)
    }

    /// Writes all changes of the batch, or none.
    pub fn write(&self, batch: &Batch) -> Result<()> {
        self.write_with(batch, WriteOptions { sync: self.core.host().options.sync })
    }

    pub fn write_with(&self, batch: &Batch, options: WriteOptions) -> Result<()> {
        batch.check()?;
        if batch.is_empty() {
            return self.core.host().health.check();
        }
        self.core.committer.commit(self.core.tree()?, Work::Batch(batch), options.sync)
    }

    /// Makes every write acknowledged so far durable.
    pub fn sync(&self) -> Result<()> {
        self.core.host().log.sync()
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut row = RowBuf::default();
        Ok(self.get_into(key, &mut row)?.then_some(row.body))
    }

    /// Copies the value to `row.body`, whose memory is used again; false: the key is absent.
    pub fn get_into(&self, key: &[u8], row: &mut RowBuf) -> Result<bool> {
        self.core.find_newest(key, row)
    }

    /// The values of several keys as of one moment, in the keys' order.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        self.snapshot().multi_get(keys)
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(&self.core)
    }

    /// An iterator over all keys as of now, ascending.
    pub fn iter(&self) -> Result<Iter> {
        self.range(Bound::Unbounded, Bound::Unbounded, Direction::Forward)
    }

    /// An iterator over the keys within the bounds as of now.
    pub fn range(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, direction: Direction) -> Result<Iter> {
        Iter::new(&self.core, self.core.host().sequences.hold(), lower, upper, direction)
    }

    /// Writes everything that is in memory to runs.
    pub fn flush(&self) -> Result<()> {
        self.core.host().health.check()?;
        self.flush_all()
    }

    fn flush_all(&self) -> Result<()> {
        self.core.tree()?.rotate()?;
        while self.core.flush_one()? {}
        Ok(())
    }

    /// Flushes, and merges until there is nothing left to merge.
    pub fn compact(&self) -> Result<()> {
        self.flush()?;
        while self.core.compact_one(true)? {}
        Ok(())
    }

    /// Waits until the background has nothing to do.
    pub fn settle(&self) -> Result<()> {
        while self.core.flush_one()? {}
        while step(&self.core, Task::Merge)? {}
        Ok(())
    }

    /// Waits until the key index covers every run, so that a get looks into one run at the most. False: it has no room for that.
    pub fn wait_until_indexed(&self) -> Result<bool> {
        self.core.index_all()
    }

    /// Does one piece of work that a store without threads leaves to its caller. False: there is none of this kind.
    pub fn step(&self, task: Task) -> Result<bool> {
        step(&self.core, task)
    }

    pub fn metrics(&self) -> Metrics {
        self.core.metrics()
    }

    pub fn statistics(&self) -> Result<Statistics> {
        self.core.statistics()
    }

    /// Why the background is not getting on (a full disk, say), or why the store takes no writes any more.
    pub fn trouble(&self) -> Option<Error> {
        let trouble = self.core.host().pace.trouble().map(Error::Unavailable);
        self.core.host().health.check().err().or(trouble)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Whoever wants to know closes the store.
        let _ = self.shut(false);
    }
}
