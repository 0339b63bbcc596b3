//! Runs the codec's tests. The extension itself cannot be linked without a server, so the codec is taken in by path, and what calls
//! PostgreSQL is left out by the linker, as long as no test comes to it.

#![allow(dead_code)]

#[path = "../src/codec/mod.rs"]
mod codec;
