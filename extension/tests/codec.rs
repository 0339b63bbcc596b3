//! Runs the tests of the codec's files that know only bytes. The extension itself cannot be linked without a server, so the
//! files are taken in by path.

#![allow(dead_code)]

#[path = "../src/codec/bytes.rs"]
mod bytes;
#[path = "../src/codec/header.rs"]
mod header;
#[path = "../src/codec/network.rs"]
mod network;
#[path = "../src/codec/numeric.rs"]
mod numeric;
#[path = "../src/codec/temporal.rs"]
mod temporal;
