//! Runs the tests of the host's files that need no server, taken in by path: what log pages begin with, redo's decisions, what a
//! process lets go of at its end.

#![allow(dead_code)]

#[path = "../src/host/held.rs"]
mod held;
#[path = "../src/host/log_head.rs"]
mod log_head;
#[path = "../src/host/redo.rs"]
mod redo;
