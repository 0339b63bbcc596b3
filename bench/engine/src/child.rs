//! The measuring process: opens one store, runs one cell, and writes one result line.

use crate::cell::{Cell, Workload};
use crate::generator::{decimal_key, Values};
use crate::json::Json;
use crate::plan::PACE;
use crate::process::{self, Usage};
use crate::stores::{Result, Store};
use crate::workload::{self, Outcome};
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// The shares of the measured time that are spent on warming up.
const WARM_IN_MEMORY: f64 = 0.2;
const WARM_BEYOND: f64 = 0.5;
const OPENS: usize = 5;
/// A store that is still busy after so long counts as not settled.
const LONGEST_SETTLE: Duration = Duration::from_secs(300);
const SETTLE_LOOK: Duration = Duration::from_millis(50);
/// A store that uses less than this share of a core, and reads and writes nothing, is quiet.
const QUIET_CPU: f64 = 0.10;

pub fn run(cell: &Cell) -> Result<Json> {
    if let Some(group) = &cell.group {
        crate::cgroup::join(group).map_err(|e| format!("{}: {e}", group.display()))?;
    }
    let mut line = identity(cell);
    if cell.workload == Workload::Open {
        measure_open(cell, &mut line)?;
        return Ok(line);
    }
    let values = Values::new(cell.value_size, cell.ratio);
    let before = Usage::now();
    let begin = Instant::now();
    let store = cell.store.open(&cell.dir, &cell.setup())?;
    line.set("open_ms", millis(begin));
    store.wait_until_ready()?;
    line.set("ready_ms", millis(begin));
    if !cell.workload.fills() {
        warm_up(cell, store.as_ref(), &values)?;
    }
    let result = measure(cell, store.as_ref(), &values, before, &mut line);
    line.set("rss_peak", process::peak_resident());
    if cell.workload.settles() {
        std::thread::sleep(Duration::from_millis(cell.rest_ms));
        settle(store.as_ref(), Instant::now(), Duration::from_millis(cell.quiet_ms))?;
    }
    let begin = Instant::now();
    store.close()?;
    line.set("close_ms", millis(begin));
    line.set("disk_rest", process::disk_bytes(&cell.dir));
    result.map(|()| line)
}

impl Cell {
    fn setup(&self) -> crate::stores::Setup {
        crate::stores::Setup {
            memtable: self.memtable,
            cache: self.cache,
            index_part: self.index_part,
            compression: self.compression,
            limit: self.limit as usize,
        }
    }
}

fn millis(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

fn identity(cell: &Cell) -> Json {
    let mut line = Json::object();
    line.set("key", cell.key());
    line.set("mode", cell.mode());
    line.set("store", cell.store.name());
    line.set("step", cell.step.as_str());
    line.set("round", f64::from(cell.round));
    line.set("value_size", cell.value_size as f64);
    line.set("compression", if cell.compression { "on" } else { "off" });
    line.set("rows", cell.rows);
    line
}

fn warm_up(cell: &Cell, store: &dyn Store, values: &Values) -> Result<()> {
    if cell.limit == 0 {
        store.scan(None, u64::MAX, &mut |_, _| ())?;
    }
    let mut reads = cell.clone();
    if cell.workload.is_ycsb() {
        reads.workload = Workload::YcsbC;
    } else if cell.workload.writes() || cell.workload == Workload::ReadSeq {
        return Ok(());
    }
    let share = if cell.limit == 0 { WARM_IN_MEMORY } else { WARM_BEYOND };
    workload::warm(&reads, store, values, cell.seconds * share)
}

fn measure(cell: &Cell, store: &dyn Store, values: &Values, opened: Usage, line: &mut Json) -> Result<()> {
    let metrics_before = store.metrics();
    // A fill pays for creating its store; nobody else pays for what was there.
    let before = if cell.workload.fills() { opened } else { Usage::now() };
    let (begin, machine) = (Instant::now(), process::machine_cpu_ns());
    let own = Usage::now();
    let outcome = workload::run(cell, store, values)?;
    let after = Usage::now();
    // How much of the machine others took meanwhile, in cores: what to think of this cell's wall time.
    let others = process::machine_cpu_ns().saturating_sub(machine).saturating_sub(after.cpu_ns - own.cpu_ns);
    line.set("others_cores", others as f64 / begin.elapsed().as_nanos() as f64);
    note_outcome(cell, &outcome, line);
    let operations = outcome.operations as f64;
    line.set("read_bytes_per_op", (after.read - before.read) as f64 / operations);
    line.set("cpu_us_per_op", (after.cpu_ns - before.cpu_ns) as f64 / 1e3 / operations);
    line.set("major_faults_per_op", (after.major_faults - before.major_faults) as f64 / operations);
    if outcome.user_bytes > 0 {
        line.set("write_amp", (after.written - before.written) as f64 / outcome.user_bytes as f64);
    }
    if cell.workload.settles() {
        let (quiet_at, settled) = settle(store, begin, Duration::from_millis(cell.quiet_ms))?;
        let seconds = quiet_at.as_secs_f64().max(outcome.seconds);
        let usage = Usage::now();
        line.set("settled", settled);
        line.set("settled_s", seconds);
        line.set("settled_kops", operations / seconds / 1e3);
        line.set("settled_write_amp", (usage.written - before.written) as f64 / outcome.user_bytes as f64);
        line.set("settled_cpu_us_per_op", (usage.cpu_ns - before.cpu_ns) as f64 / 1e3 / operations);
    }
    let rows = if cell.workload.fills() { operations as u64 } else { cell.present + outcome.inserted };
    line.set("present", rows);
    note_metrics(&metrics_before, &store.metrics(), line);
    if let Some(bytes) = line.num("index_bytes") {
        line.set("index_bytes_per_key", bytes / rows as f64);
    }
    if let Some(gets) = line.num("gets_total").filter(|gets| *gets > 0.0) {
        for (name, total) in [("page_reads_per_get", "pages_read_total"), ("runs_per_get", "runs_looked_into_total")] {
            if let Some(total) = line.num(total) {
                line.set(name, total / gets);
            }
        }
    }
    // Last: what the store does when it is idle meanwhile is not told.
    if cell.workload == Workload::Paced && cell.rate > 0.0 {
        note_latency("nothing_", &workload::put_nothing(cell.rate, PACE, outcome.operations)?, line);
    }
    Ok(())
}

fn note_outcome(cell: &Cell, outcome: &Outcome, line: &mut Json) {
    line.set("ops", outcome.operations);
    line.set("seconds", outcome.seconds);
    line.set("kops", outcome.operations as f64 / outcome.seconds / 1e3);
    line.set("rows_read", outcome.rows_read);
    line.set("cut_off", outcome.cut_off);
    if cell.rate > 0.0 {
        line.set("rate", cell.rate);
    }
    note_latency("", &outcome.latency, line);
    if !outcome.put_latency.is_empty() && outcome.put_latency.len() < outcome.latency.len() {
        note_latency("put_", &outcome.put_latency, line);
    }
    if cell.workload.settles() {
        let pieces = outcome.series.piece.as_secs_f64();
        line.set("series_s", pieces);
        line.set(
            "series_kops",
            outcome.series.operations.iter().map(|n| (*n as f64 / pieces / 1e2).round() / 10.0).collect::<Vec<_>>(),
        );
        line.set(
            "series_max_us",
            outcome.series.longest_ns.iter().map(|n| (*n as f64 / 1e3).round()).collect::<Vec<_>>(),
        );
    }
}

fn note_latency(prefix: &str, latency: &Histogram<u64>, line: &mut Json) {
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
        line.set(&format!("{prefix}{name}_us"), latency.value_at_quantile(quantile) as f64 / 1e3);
    }
    line.set(&format!("{prefix}max_us"), latency.max() as f64 / 1e3);
}

/// Counters, by the ending of their name, are told as what this cell added; all else as it is now.
fn note_metrics(before: &[(&'static str, f64)], after: &[(&'static str, f64)], line: &mut Json) {
    for (name, value) in after {
        let earlier = before.iter().find(|(known, _)| known == name).map_or(0.0, |(_, value)| *value);
        let value = if name.ends_with("_total") { value - earlier } else { *value };
        line.set(name, value);
    }
}

/// Waits until the process has been quiet for `quiet`; tells when that began, and whether it ever came.
fn settle(store: &dyn Store, begin: Instant, quiet: Duration) -> Result<(Duration, bool)> {
    let mut last = Usage::now();
    let mut looked = Instant::now();
    let mut quiet_since = begin.elapsed();
    loop {
        std::thread::sleep(SETTLE_LOOK);
        let (now, usage) = (begin.elapsed(), Usage::now());
        let cpu = (usage.cpu_ns - last.cpu_ns) as f64 / looked.elapsed().as_nanos() as f64;
        let moved = usage.written != last.written || usage.read != last.read || cpu > QUIET_CPU;
        (last, looked) = (usage, Instant::now());
        if moved || store.busy() == Some(true) {
            quiet_since = now;
        }
        if now - quiet_since >= quiet {
            return Ok((quiet_since, true));
        }
        if now > LONGEST_SETTLE {
            return Ok((now, false));
        }
    }
}

fn measure_open(cell: &Cell, line: &mut Json) -> Result<()> {
    let (mut opens, mut gets, mut readies, mut closes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut open_once = |drop_cache: bool| -> Result<()> {
        if drop_cache {
            process::drop_from_cache(&cell.dir, true);
        }
        let begin = Instant::now();
        let store = cell.store.open(&cell.dir, &cell.setup())?;
        opens.push(millis(begin));
        if !store.get(&decimal_key(0), &mut |_| ())? {
            return Err("the first row is lost".to_owned());
        }
        gets.push(millis(begin));
        store.wait_until_ready()?;
        readies.push(millis(begin));
        note_metrics(&[], &store.metrics(), line);
        let begin = Instant::now();
        store.close()?;
        closes.push(millis(begin));
        Ok(())
    };
    // The first one may still have to finish what the last close left; it does not count.
    for _ in 0..=OPENS {
        open_once(false)?;
    }
    open_once(true)?;
    for (name, times) in
        [("open", &mut opens), ("first_get", &mut gets), ("ready", &mut readies), ("close", &mut closes)]
    {
        let cold = times.pop().unwrap_or(f64::NAN);
        times.remove(0);
        times.sort_by(f64::total_cmp);
        line.set(&format!("{name}_ms"), times.get(times.len() / 2).copied().unwrap_or(f64::NAN));
        line.set(&format!("{name}_cold_ms"), cold);
    }
    line.set("rss_peak", process::peak_resident());
    line.set("disk_rest", process::disk_bytes(&cell.dir));
    line.set("present", cell.present);
    Ok(())
}
