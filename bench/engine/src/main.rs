//! engine-bench: LooseKV beside LevelDB, RocksDB and fjall, driven by one generator in one run.
//!
//! `engine-bench run [--form=short|medium|long] …` starts one child process for every cell (store × workload), stores
//! taking turns, and writes result lines, a table and plots. `engine-bench report --out=<dir>` makes table and plots
//! again. `engine-bench cell …` is the child.

mod cell;
mod cgroup;
mod child;
mod generator;
mod json;
mod parent;
mod plan;
mod process;
mod quiet;
mod report;
mod results;
mod stores;
mod svg;
mod targets;
mod workload;

use cell::{Args, Cell};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let done = match Args::new(args) {
        Err(error) => Err(error),
        Ok(args) => match command.as_str() {
            "cell" => Cell::from_args(&args).and_then(|cell| child::run(&cell)).map(|line| println!("{line}")),
            "run" => plan::Plan::from_args(&args).and_then(|plan| parent::run(&plan)),
            "report" => args
                .text("out")
                .ok_or_else(|| "--out is missing".to_owned())
                .and_then(|out| report::write(out.as_ref())),
            _ => Err("usage: engine-bench run|report|cell --name=value …; see bench/engine/README.md".to_owned()),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("engine-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
