//! LooseKV: a log-structured merge tree with tiered compaction behind an in-memory key index.
//!
//! The [`tree`] is host-neutral: it reaches pages, the row log, writers and latches through [`host`]. [`embedded`] is the
//! host for threads and files, and the store that an application opens. `docs/architecture.md` is the map.

// Errors are values. Where an index is bounded by what stands beside it, an `allow` says why.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

pub mod bytes;
pub mod cpu;
pub mod disk;
pub mod embedded;
pub mod error;
pub mod extent;
pub mod filter;
#[doc(hidden)]
pub mod fuzz;
pub mod host;
#[path = "../shm/src/interleave.rs"]
mod interleave;
pub mod key_index;
pub mod key_text;
pub mod manifest;
pub mod memtable;
pub(crate) mod mutation;
pub mod options;
pub mod page;
pub mod pieces;
pub mod row;
pub mod row_cache;
pub mod run;
pub mod run_map;
pub mod tree;
pub mod types;

// The simulator, for the mutations: they are switched on in this crate's own tests alone.
#[cfg(test)]
extern crate self as loosekv_engine;
#[cfg(test)]
#[path = "../tests/sim_store.rs"]
mod sim_store;
