//! Runs the tests of the background work's files that need no server, taken in by path.

#![allow(dead_code)]

#[path = "../src/work/agenda.rs"]
mod agenda;
#[path = "../src/work/backlog.rs"]
mod backlog;
#[path = "../src/work/claims.rs"]
mod claims;
