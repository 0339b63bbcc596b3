//! What an application may choose when it opens a store.

pub use super::page_file::Reads;
use crate::error::{Error, Result};
use crate::options::TreeOptions;

/// Who flushes and compacts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Two threads of the store: one flushes, one compacts and builds the key index.
    Threads,
    /// The application, by [`super::Store::step`]; writers that find no room flush themselves. Deterministic.
    Caller,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Make the store unless it exists.
    pub create: bool,
    /// Refuse a store that exists.
    pub create_new: bool,
    /// Sync every write whose [`WriteOptions`] are not given.
    pub sync: bool,
    /// Memtables, runs, compaction. A memtable is frozen when its rows take `memtable_bytes` of log; writers wait when
    /// `max_frozen` of them are.
    pub tree: TreeOptions,
    /// Writers are slowed from this many frozen memtables on.
    pub frozen_soft: u32,
    /// Writers are slowed from this many level-0 runs on ...
    pub runs_soft: u32,
    /// ... most of all at this many.
    pub runs_hard: u32,
    /// Memory for memtables altogether.
    pub memtables_budget: u64,
    /// Memory for the key index. Where it ends, the oldest runs are served by filters and fences.
    pub key_index_budget: u64,
    /// Memory for what is kept aside while a run is written (some 20 bytes a row); what is more goes to unnamed files in the
    /// store's directory.
    pub aside_memory: usize,
    pub reads: Reads,
    /// Verify the checksum of every page read: mapped pages once, copied ones whenever they are read from the file.
    pub verify_checksums: bool,
    /// Log files grow by this much at a time.
    pub log_chunk: u64,
    /// Writers that wait are written together, up to this many bytes.
    pub group_bytes: usize,
    pub background: Background,
    /// How far the merging thread stands back, as a nice value, 0 to 19, where the system knows threads with such values: where there
    /// are fewer cores than threads with work, writers and flushes go first. (0 where other work takes all cores all the time.)
    pub merge_nice: u8,
    /// On close, write the memtables to runs, so that the next open has no log to read.
    pub flush_on_close: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            create: true,
            create_new: false,
            sync: false,
            tree: TreeOptions { max_frozen: 6, value_log_threshold: 0, ..TreeOptions::default() },
            frozen_soft: 2,
            runs_soft: 20,
            runs_hard: 48,
            memtables_budget: 512 << 20,
            key_index_budget: 4 << 30,
            aside_memory: 64 << 20,
            reads: Reads::Mapped,
            verify_checksums: true,
            log_chunk: 16 << 20,
            group_bytes: 1 << 20,
            background: Background::Threads,
            merge_nice: 5,
            flush_on_close: true,
        }
    }
}

impl Options {
    /// Refuses what cannot work.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Invalid(what));
        self.tree.validate()?;
        if self.tree.memtable_bytes > 2 << 30 {
            return wrong(format!("memtable_bytes is {}, must be up to 2 GiB", self.tree.memtable_bytes));
        }
        if self.memtables_budget < 2 * self.tree.memtable_bytes {
            return wrong(format!("memtables_budget is {}, must hold two memtables", self.memtables_budget));
        }
        if self.frozen_soft == 0 || self.tree.max_frozen <= self.frozen_soft {
            return wrong(format!("frozen_soft is {}, must be below max_frozen", self.frozen_soft));
        }
        if self.runs_soft == 0 || self.runs_hard <= self.runs_soft {
            return wrong(format!("run limits are {} and {}", self.runs_soft, self.runs_hard));
        }
        if self.log_chunk < 4096 || self.log_chunk > 1 << 30 {
            return wrong(format!("log_chunk is {}, must be between 4096 and 1 GiB", self.log_chunk));
        }
        if self.merge_nice > 19 {
            return wrong(format!("merge_nice is {}, must be 0 to 19", self.merge_nice));
        }
        if self.group_bytes == 0 || self.group_bytes > 64 << 20 {
            return wrong(format!("group_bytes is {}, must be between 1 and 64 MiB", self.group_bytes));
        }
        match self.reads {
            Reads::Cached { bytes } if bytes > isize::MAX as usize => wrong(format!("a page cache of {bytes} bytes")),
            _ => Ok(()),
        }
    }
}

/// How a write is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Return only when it would survive a power failure.
    pub sync: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_work_and_nonsense_is_refused() {
        assert!(Options::default().check().is_ok());
        let bad: [fn(&mut Options); 8] = [
            |o| o.tree.memtable_bytes = 1,
            |o| o.memtables_budget = o.tree.memtable_bytes,
            |o| o.frozen_soft = 0,
            |o| o.tree.max_frozen = o.frozen_soft,
            |o| o.runs_hard = 1,
            |o| o.log_chunk = 0,
            |o| o.group_bytes = 0,
            |o| o.merge_nice = 20,
        ];
        for spoil in bad {
            let mut options = Options::default();
            spoil(&mut options);
            assert!(matches!(options.check(), Err(Error::Invalid(_))));
        }
    }
}
