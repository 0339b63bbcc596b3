//! The embedded store: the tree over files and threads, and the API an application uses.
//!
//! ```text
//! store, batch, snapshot, iterator, options, metrics   what the application sees
//! commit, sequence, pace, background, core             how writers, readers and threads work together
//! host                                                 the engine's host, made of:
//!   page_file (page_cache), meta_file                    pages
//!   row_log, log_segment                                 the row log
//!   fs, crc32c, health                                   files, checksums, the end of writing
//! sim                                                  a file system that forgets, for tests
//! ```
//!
//! Files of a store: `pages.lkv`, `meta.lkv`, `log-<generation>.lkv`, `lock`.

mod background;
mod batch;
mod commit;
mod core;
mod cores;
mod crc32c;
pub mod fs;
pub(crate) mod fuzz;
mod health;
mod host;
mod iterator;
mod log_segment;
mod meta_file;
mod metrics;
mod options;
mod pace;
mod page_cache;
mod page_file;
mod row_log;
mod sequence;
pub mod sim;
mod snapshot;
mod store;

pub use batch::{Batch, MAX_BATCH, MAX_VALUE};
pub use host::EmbeddedHost;
pub use iterator::{Iter, Pairs};
pub use metrics::{Level, Metrics, Statistics};
pub use options::{Background, Options, Reads, WriteOptions};
pub use pace::Task;
pub use snapshot::Snapshot;
pub use store::Store;
