//! Runs the plan: a child process per cell, stores taking turns, results kept as they come.

use crate::cell::{Cell, Workload};
use crate::cgroup::Group as MemoryGroup;
use crate::json::Json;
use crate::plan::{Group, Plan, PACE};
use crate::process;
use crate::quiet;
use crate::report;
use crate::results::{Results, MACHINE};
use crate::stores::Kind;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(10);
const SAMPLE: Duration = Duration::from_millis(100);
const LONGEST_CELL: Duration = Duration::from_secs(1800);

pub fn run(plan: &Plan) -> Result<(), String> {
    for dir in [&plan.out, &plan.dir] {
        fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    let results = if plan.resume { Results::load(&plan.out) } else { Results::empty(&plan.out)? };
    let awake = quiet::keep_cores_awake();
    let memory = if plan.keep_memory { Some(quiet::Memory::keep()?) } else { None };
    write_machine(plan, awake.is_some(), memory.as_ref().map(|kept| kept.told.as_str()))?;
    let groups = plan.groups();
    let cells: usize =
        groups.iter().map(|group| group.chain.steps.len() * plan.stores.len()).sum::<usize>() * plan.rounds as usize;
    let mut parent = Parent { plan, results, begin: Instant::now(), done: 0, cells, enforce: Enforce::find(plan) };
    for group in &groups {
        for round in 1..=plan.rounds {
            parent.chain(group, round)?;
            // A table of what is there so far: a long run can be looked at, and may be stopped.
            report::write(&plan.out)?;
        }
    }
    let _ = fs::remove_dir(&plan.dir);
    let errors: Vec<String> =
        parent.results.errors().map(|line| format!("{}: {}", line.text("key"), line.text("error"))).collect();
    eprintln!("results are in {}", plan.out.display());
    if errors.is_empty() {
        Ok(())
    } else {
        Err(format!("{} cells failed:\n{}", errors.len(), errors.join("\n")))
    }
}

fn write_machine(plan: &Plan, awake: bool, memory: Option<&str>) -> Result<(), String> {
    let mut machine = Json::object();
    machine.set("form", plan.form.as_str());
    machine.set("label", plan.label.as_str());
    machine.set("date", crate::plan::today());
    for (name, value) in process::machine(&plan.dir) {
        machine.set(name, value);
    }
    machine.set("cores kept awake", if awake { "yes" } else { "no" });
    machine.set("free memory kept from the host", memory.unwrap_or("no"));
    // Of stores that an earlier part of the run has measured, too.
    let before = fs::read_to_string(plan.out.join(MACHINE)).ok().filter(|_| plan.resume);
    let before = before.and_then(|text| Json::parse(&text)).unwrap_or(Json::Null);
    for kind in Kind::ALL {
        match before.get(kind.name()) {
            _ if plan.stores.contains(&kind) => machine.set(kind.name(), kind.version()),
            Some(version) => machine.set(kind.name(), version.clone()),
            None => {}
        }
    }
    machine.set("beyond memory", Enforce::find(plan).name());
    machine.set("rounds", f64::from(plan.rounds));
    machine.set("threads", f64::from(plan.threads));
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let sizes = |data: u64, memtable: usize, cache: usize| {
        format!("data {}, memtable {}, cache {}", mib(data), mib(memtable as u64), mib(cache as u64))
    };
    machine.set("in memory: each store", sizes(plan.data, plan.memtable, plan.cache));
    let beyond = sizes(plan.beyond_data, plan.beyond_memtable, plan.beyond_cache);
    machine.set("beyond memory: each store", format!("{beyond}, whole process {}", mib(plan.limit)));
    fs::write(plan.out.join(MACHINE), format!("{machine}\n")).map_err(|e| e.to_string())
}

/// How memory is kept short.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Enforce {
    Group,
    /// No control group may be made here: the store's files are dropped from the page cache ten times a second. What a
    /// store holds in its heap or has mapped is not limited, so this is the weaker form.
    Dropping,
}

impl Enforce {
    fn find(plan: &Plan) -> Self {
        match MemoryGroup::new(&format!("engine-bench-try-{}", std::process::id()), plan.limit.max(1 << 20)) {
            Ok(_) => Self::Group,
            Err(_) => Self::Dropping,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Group => "memory control group",
            Self::Dropping => "no control group here: files dropped from the page cache every 100 ms",
        }
    }
}

struct Parent<'a> {
    plan: &'a Plan,
    results: Results,
    begin: Instant,
    done: usize,
    cells: usize,
    enforce: Enforce,
}

/// How far a store is in the chain that is being run.
struct Progress {
    store: Kind,
    present: u64,
    peak: f64,
    failed: bool,
}

impl Parent<'_> {
    fn chain(&mut self, group: &Group, round: u32) -> Result<(), String> {
        let steps = group.chain.steps;
        let missing = |parent: &Self, kind: Kind| {
            (0..steps.len())
                .filter(|step| !parent.plan.leaves_out(steps[*step].0))
                .any(|step| parent.results.measured(&parent.cell(group, round, kind, step).key()).is_none())
        };
        let mut stores: Vec<Progress> = Vec::new();
        // Stores whose turn it is to go first change from round to round.
        for at in 0..self.plan.stores.len() {
            let store = self.plan.stores[(at + round as usize - 1) % self.plan.stores.len()];
            if missing(self, store) {
                self.remove(&self.store_dir(group, store));
                stores.push(Progress { store, present: 0, peak: 0.0, failed: false });
            } else {
                self.done += steps.len();
            }
        }
        for step in 0..steps.len() {
            for progress in &mut stores {
                self.step(group, round, progress, step)?;
            }
        }
        for progress in &stores {
            self.remove(&self.store_dir(group, progress.store));
        }
        Ok(())
    }

    fn step(&mut self, group: &Group, round: u32, progress: &mut Progress, step: usize) -> Result<(), String> {
        self.done += 1;
        if progress.failed || self.plan.leaves_out(group.chain.steps[step].0) {
            return Ok(());
        }
        let mut cell = self.cell(group, round, progress.store, step);
        cell.present = progress.present;
        if cell.workload == Workload::Paced {
            cell.rate = progress.peak * PACE;
        }
        if cell.workload.fills() && step > 0 {
            self.remove(&cell.dir);
        }
        let mut line = match self.run_cell(&mut cell) {
            Ok(line) => line,
            Err(error) => {
                progress.failed = true;
                failure(&cell, &error)
            }
        };
        progress.present = line.num("present").map_or(progress.present, |rows| rows as u64);
        progress.peak = line.num("kops").unwrap_or(0.0) * 1e3;
        self.tell(&cell, &line);
        // Runs that go on with earlier ones may be of other days, and of other machines.
        line.set("date", crate::plan::today());
        line.set("cpu", process::cpu());
        self.results.add(line)
    }

    fn cell(&self, group: &Group, round: u32, store: Kind, step: usize) -> Cell {
        let (name, workload) = group.chain.steps[step];
        // A store that is about to be read.
        let rests = workload.settles() && group.chain.steps.get(step + 1).is_some_and(|(_, next)| !next.writes());
        Cell {
            store,
            workload,
            step: name.to_owned(),
            round,
            dir: self.store_dir(group, store),
            rows: group.rows,
            present: 0,
            value_size: group.value_size,
            compression: group.compression,
            ratio: self.plan.ratio,
            memtable: group.memtable,
            cache: group.cache,
            index_part: self.plan.index_part,
            limit: group.limit,
            group: None,
            threads: self.plan.threads,
            seconds: self.plan.seconds,
            rate: 0.0,
            quiet_ms: self.plan.quiet_ms,
            rest_ms: if rests { self.plan.rest_ms } else { 0 },
        }
    }

    fn store_dir(&self, group: &Group, store: Kind) -> PathBuf {
        self.plan.dir.join(format!("{}-{}", group.chain.name, store.name()))
    }

    fn remove(&self, dir: &Path) {
        debug_assert!(dir.starts_with(&self.plan.dir));
        let _ = fs::remove_dir_all(dir);
    }

    fn run_cell(&self, cell: &mut Cell) -> Result<Json, String> {
        let mut memory = None;
        if cell.limit > 0 {
            process::drop_from_cache(&cell.dir, true);
            if self.enforce == Enforce::Group {
                let name = format!("engine-bench-{}", std::process::id());
                let group = MemoryGroup::new(&name, cell.limit).map_err(|e| format!("memory control group: {e}"))?;
                cell.group = Some(group.dir().to_owned());
                memory = Some(group);
            }
        }
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let child = Command::new(program)
            .arg("cell")
            .args(cell.to_args())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| e.to_string())?;
        let mut line = self.watch(cell, child)?;
        if let Some(memory) = &memory {
            line.set("group_peak", memory.peak());
        }
        Ok(line)
    }

    /// Samples the child until it is gone.
    fn watch(&self, cell: &Cell, mut child: Child) -> Result<Json, String> {
        let begin = Instant::now();
        let mut sampled = begin;
        let (mut disk_peak, mut anonymous_peak) = (0, 0);
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
                break status;
            }
            if begin.elapsed() > LONGEST_CELL {
                let _ = child.kill();
            }
            if sampled.elapsed() >= SAMPLE {
                sampled = Instant::now();
                disk_peak = disk_peak.max(process::disk_bytes(&cell.dir));
                anonymous_peak = anonymous_peak.max(process::anonymous(child.id()));
                if cell.limit > 0 && self.enforce == Enforce::Dropping {
                    process::drop_from_cache(&cell.dir, false);
                }
            }
            std::thread::sleep(LOOK);
        };
        let (mut text, mut complaint) = (String::new(), String::new());
        if let (Some(mut out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) {
            out.read_to_string(&mut text).map_err(|e| e.to_string())?;
            err.read_to_string(&mut complaint).map_err(|e| e.to_string())?;
        }
        if !status.success() {
            let last: Vec<&str> = complaint.lines().rev().take(3).collect();
            let killed = cell.limit > 0 && status.signal() == Some(libc::SIGKILL);
            let hint = if killed { "most likely it needed more memory than its group has" } else { "" };
            return Err(format!("{status}: {}{hint}", last.join(" | ")));
        }
        let mut line = Json::parse(text.trim()).ok_or_else(|| format!("the child wrote no result line: {text}"))?;
        line.set("disk_peak", disk_peak.max(line.num("disk_rest").unwrap_or(0.0) as u64));
        line.set("anonymous_peak", anonymous_peak);
        Ok(line)
    }

    fn tell(&self, cell: &Cell, line: &Json) {
        let compression = if cell.compression { "compressed" } else { "plain" };
        let spent = self.begin.elapsed().as_secs();
        let head = format!(
            "[{}/{} {}m{:02}s] round {} {} {} B {compression} {} {}",
            self.done,
            self.cells,
            spent / 60,
            spent % 60,
            cell.round,
            cell.mode(),
            cell.value_size,
            cell.step,
            cell.store.name()
        );
        if line.get("error").is_some() {
            eprintln!("{head}: FAILED: {}", line.text("error"));
            return;
        }
        if cell.workload == Workload::Open {
            eprintln!("{head}: {:.1} ms", line.num("open_ms").unwrap_or(f64::NAN));
            return;
        }
        let number = |name: &str| line.num(name).unwrap_or(f64::NAN);
        let settled = line
            .num("settled_kops")
            .map(|kops| format!(", settled {kops:.1}, {:.1} written/byte", number("settled_write_amp")));
        eprintln!(
            "{head}: {:.1} kops/s, p99 {:.1} us, max {:.1} ms{}",
            number("kops"),
            number("p99_us"),
            number("max_us") / 1e3,
            settled.unwrap_or_default()
        );
    }
}

fn failure(cell: &Cell, error: &str) -> Json {
    let mut line = Json::object();
    line.set("key", cell.key());
    line.set("mode", cell.mode());
    line.set("store", cell.store.name());
    line.set("step", cell.step.as_str());
    line.set("round", f64::from(cell.round));
    line.set("value_size", cell.value_size as f64);
    line.set("compression", if cell.compression { "on" } else { "off" });
    line.set("error", error);
    line
}
