//! Runs the tests that stand in the extension's files. The library cannot be linked without a server; so its modules are taken in by
//! path, and what calls PostgreSQL is left out by the linker, as long as no test comes to it.

// Without the library's entry points nearly nothing is used; what is in use is seen where the library itself is compiled. The last one is
// the library's own.
#![allow(dead_code, unused_imports, clippy::not_unsafe_ptr_arg_deref)]

#[path = "../src/codec/mod.rs"]
mod codec;
#[path = "../src/host/mod.rs"]
mod host;
#[path = "../src/pg/mod.rs"]
mod pg;
#[path = "../src/settings.rs"]
mod settings;
#[path = "../src/table/mod.rs"]
mod table;
#[path = "../src/work/mod.rs"]
mod work;
