//! What happens in the background, and its pace.
//!
//! A database has at most one worker. It is started when a memtable is frozen (or a table is loaded whose index is
//! missing) and nobody serves the database, looks for tables that need something, does it piece by piece, and leaves when
//! nothing has been asked of it for a while. Everything works without it: a writer that finds no room flushes.
//!
//! | module | what it is |
//! |---|---|
//! | [`claims`] | which databases have a worker: the claims in shared memory |
//! | [`need`] | what a table needs, by a look at its shared state |
//! | [`agenda`] | which need comes first, and which tables rest after a failure |
//! | [`backlog`], [`pace`] | how much writers are slowed down while the background is behind |
//! | [`memory`] | what is done when memory for memtables runs short |
//! | [`ask`] | how those who make work tell the worker, and start one |
//!
//! The worker's own process, with transactions and locks, is [`crate::pg::worker`].

pub mod agenda;
pub mod ask;
pub mod backlog;
pub mod claims;
pub mod memory;
pub mod need;
pub mod pace;
