//! Errors are values with context: what was wrong, and where.

use crate::types::{ExtentSeq, PageNo};
use std::fmt;

pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong in the engine.
#[derive(Debug)]
pub enum Error {
    /// Bytes on disk are not what was written. `what` says what was expected and found.
    Corrupt { place: Place, what: String },
    /// The store was written by a format this build does not know.
    Format { found: u32, known: u32 },
    /// A consumer of memory finds none, or has used up its part of it; nothing was changed. `limit`: of so many bytes.
    MemoryFull { consumer: Consumer, limit: u64 },
    /// The page store has no room for another extent (disk full, or block numbers used up).
    NoSpace(String),
    /// The caller's input cannot be taken: empty or oversized key, unknown option.
    Invalid(String),
    /// The store is locked by another process, or closed.
    Unavailable(String),
    /// An operating system call failed.
    Io { what: String, source: std::io::Error },
}

/// Where corrupt bytes stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Page {
        page: PageNo,
        offset: u16,
        expected: Option<ExtentSeq>,
    },
    Log {
        generation: u64,
        offset: u64,
    },
    /// Not tied to one page: a relation between structures is broken.
    Structure,
}

/// Who uses shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumer {
    Memtable,
    KeyIndex,
    Versions,
    /// The state of another table.
    Tables,
}

impl Error {
    /// There is no memory for this. Where memory is the process's own: within `otherwise` bytes.
    pub fn no_memory(consumer: Consumer, otherwise: u64) -> Error {
        let shared = loosekv_shm::heap::stats().size as u64;
        Error::MemoryFull { consumer, limit: if shared > 0 { shared } else { otherwise } }
    }

    /// A corruption found in a page.
    pub fn page(page: PageNo, offset: usize, what: impl Into<String>) -> Error {
        let place = Place::Page { page, offset: u16::try_from(offset).unwrap_or(u16::MAX), expected: None };
        Error::Corrupt { place, what: what.into() }
    }

    /// Says which file the page is of, where it does not yet.
    pub fn in_file(self, name: impl Fn(PageNo) -> &'static str) -> Error {
        match self {
            Error::Corrupt { place: place @ Place::Page { page, .. }, what } if !what.contains(name(page)) => {
                Error::Corrupt { place, what: format!("{}: {what}", name(page)) }
            }
            other => other,
        }
    }

    pub fn structure(what: impl Into<String>) -> Error {
        Error::Corrupt { place: Place::Structure, what: what.into() }
    }

    pub fn io(what: impl Into<String>, source: std::io::Error) -> Error {
        Error::Io { what: what.into(), source }
    }

    /// As [`Error::io`], but want of room is told apart: it can be waited out.
    pub fn io_or_no_space(what: impl Into<String>, source: std::io::Error) -> Error {
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded | std::io::ErrorKind::FileTooLarge => {
                Error::NoSpace(format!("{}: {source}", what.into()))
            }
            _ => Error::io(what, source),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Corrupt { place, what } => write!(f, "corrupt {place}: {what}"),
            Error::Format { found, known } => {
                write!(f, "format version {found} is not known here (known: up to {known})")
            }
            Error::MemoryFull { consumer: Consumer::KeyIndex, limit } => {
                write!(f, "the key index has used up its {limit} bytes of memory")
            }
            Error::MemoryFull { consumer, limit } => write!(f, "{limit} bytes of memory have no room for {consumer}"),
            Error::NoSpace(what) => write!(f, "no space: {what}"),
            Error::Invalid(what) => write!(f, "invalid: {what}"),
            Error::Unavailable(what) => write!(f, "unavailable: {what}"),
            Error::Io { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Page { page, offset, expected: Some(seq) } => {
                write!(f, "page {page} (extent {seq}) at offset {offset}")
            }
            Place::Page { page, offset, expected: None } => write!(f, "page {page} at offset {offset}"),
            Place::Log { generation, offset } => write!(f, "log generation {generation} at offset {offset}"),
            Place::Structure => write!(f, "structure"),
        }
    }
}

impl fmt::Display for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Consumer::Memtable => "another memtable",
            Consumer::KeyIndex => "the key index",
            Consumer::Versions => "another list of runs",
            Consumer::Tables => "another table in use",
        })
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
