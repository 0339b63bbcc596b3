//! The names of things: newtypes and constants that every module shares.

use std::fmt;

/// Every page the engine reads or writes has this size (PostgreSQL's BLCKSZ).
pub const PAGE_SIZE: usize = 8192;

/// The first bytes of every page belong to the host (PostgreSQL's PageHeaderData; checksum and page number when embedded).
pub const HOST_HEADER: usize = 24;

/// Longest encoded key. Four keys and their overhead always fit one page.
pub const MAX_KEY: usize = 1900;

macro_rules! newtype {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

newtype!(
    /// A physical page: a block of the table's main fork, a page of the store's file.
    PageNo(u32)
);
newtype!(
    /// Unique number of an extent, stamped in each of its pages; never reused (a stale page is told from a live one). The
    /// pieces of an extent that was divided share it.
    ExtentSeq(u64)
);
newtype!(
    /// Number of a memtable generation, and of the level-0 run that it is flushed to. Never reused. The first is 1.
    L0Id(u64)
);
newtype!(
    /// Number of a run, unique in a table for ever.
    RunId(u64)
);
newtype!(
    /// Number of a row version, monotonic in a table, 40 bits used. The TID of a row version is its row id.
    RowId(u64)
);
newtype!(
    /// Who wrote a row version: a full transaction id in PostgreSQL, a sequence number when embedded.
    Writer(u64)
);
newtype!(
    /// Where in the row log a row version stands. 48 bits; what they mean is the host's affair.
    LogAddr(u64)
);

impl RowId {
    /// Highest row id that a TID can name.
    pub const MAX: RowId = RowId((1 << 40) - 1);
}

/// A contiguous piece of the page store with one owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    pub start: PageNo,
    pub pages: u32,
    pub seq: ExtentSeq,
}

impl Extent {
    /// First page after the extent.
    pub fn end(&self) -> PageNo {
        PageNo(self.start.0 + self.pages)
    }

    pub fn contains(&self, page: PageNo) -> bool {
        page >= self.start && page < self.end()
    }

    /// Whether they have a page in common that was taken as the same.
    pub fn shares(&self, other: &Extent) -> bool {
        self.seq == other.seq && self.start < other.end() && other.start < self.end()
    }
}

/// What a row version is, beside its key and body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// The key is deleted from here on; the body is empty (or, with MOVED, eight bytes: the row id it moved to).
    pub const TOMBSTONE: Flags = Flags(1);
    /// A tombstone left by an update that changed the key.
    pub const MOVED: Flags = Flags(2);
    /// Inserted speculatively (INSERT ... ON CONFLICT); only the memtable knows whether it has been confirmed.
    pub const SPECULATIVE: Flags = Flags(4);
    /// A tombstone that takes a speculative insertion back: to writers the pair is as good as never written.
    pub const KILLED: Flags = Flags(8);
    /// The body is a value pointer into the value log.
    pub const POINTER: Flags = Flags(16);

    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    #[must_use]
    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    #[must_use]
    pub fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    pub fn is_tombstone(self) -> bool {
        self.has(Flags::TOMBSTONE)
    }
}

/// The fixed part of a row version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Head {
    pub row_id: RowId,
    pub writer: Writer,
    /// Command within the writer's transaction.
    pub command: u32,
    pub flags: Flags,
    /// Counts the lives of a key: an insertion over a tombstone begins a new incarnation.
    pub incarnation: u16,
}

/// A row version where it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RowRef<'a> {
    pub key: &'a [u8],
    pub head: Head,
    pub body: &'a [u8],
}

/// What is known of a writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    InProgress,
    Aborted,
    Committed,
    /// Committed, and every snapshot taken or still to be taken sees it.
    VisibleToAll,
}

/// What a reader says of a row version that is shown to it, newest first within a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// This is the version the reader sees (a tombstone: the key is absent for it).
    Take,
    /// Not this one: show the next older.
    Skip,
}

/// A row version copied out for a caller; reused from call to call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowBuf {
    pub head: Head,
    pub key: Vec<u8>,
    pub body: Vec<u8>,
}

impl RowBuf {
    pub fn set(&mut self, row: &RowRef<'_>) {
        self.head = row.head;
        self.key.clear();
        self.key.extend_from_slice(row.key);
        self.body.clear();
        self.body.extend_from_slice(row.body);
    }

    pub fn as_ref(&self) -> RowRef<'_> {
        RowRef { key: &self.key, head: self.head, body: &self.body }
    }
}
