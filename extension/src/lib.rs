//! LooseKV for PostgreSQL: `CREATE TABLE ... USING loosekv`.
//!
//! [`pg`] is the quarantine: every `extern "C-unwind"` function that PostgreSQL calls stands there. The rest is safe Rust
//! over it: [`codec`] turns keys and rows into bytes and back, [`host`] lends the engine PostgreSQL's pages, log, latches
//! and memory, [`table`] decides what a statement may read and write, [`work`] what is done in the background.

// Relations are handed around as PostgreSQL's own code does it: the pointer is to an open relation, by convention.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

pub mod codec;
pub mod host;
pub mod pg;
pub mod settings;
pub mod table;
pub mod work;

use pgrx::prelude::*;

pgrx::pg_module_magic!();

/// Values made inside `loosekv_shm`'s scope live in shared memory, all others in the process's.
#[global_allocator]
static ALLOCATOR: loosekv_shm::SharedAlloc = loosekv_shm::SharedAlloc;

/// Without preloading nothing is set up: [`pg::startup::require`] says so wherever the extension is entered.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    // SAFETY: a flag of the postmaster's.
    if unsafe { pgrx::pg_sys::process_shared_preload_libraries_in_progress } {
        // With these in the server's environment every ordinary error would be reported with a backtrace of this library, and
        // take its time to collect it. The postmaster is one thread, and its children inherit what it does here.
        std::env::remove_var("RUST_BACKTRACE");
        std::env::remove_var("RUST_LIB_BACKTRACE");
        settings::define();
        pg::rmgr::register();
        pg::startup::install_hooks();
        pg::hooks::install();
    }
}
