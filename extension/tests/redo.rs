//! Runs the tests of redo's decisions, which need no server, taken in by path.

#[path = "../src/host/redo.rs"]
mod redo;
