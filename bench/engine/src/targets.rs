//! What LooseKV has to reach, and whether a run says it does.

use crate::results::{Config, Results};

const OWN: &str = "loosekv";
const LEVELDB: [&str; 1] = ["leveldb"];
/// In the competition beyond memory; LevelDB is none there, its mapped files are read around by the megabyte.
const BEST: [&str; 3] = ["rocksdb-leveled", "rocksdb-universal", "fjall"];

enum Measure {
    /// A number of ours by the same of the best of others; at least the bound.
    Against(&'static [&'static str], &'static str),
    /// A number of ours; at most the bound.
    AtMost(&'static str),
    /// Disk bytes at rest or at their peak by user bytes that live; at most the bound.
    Space(&'static str),
    /// Disk bytes a row; at most the bound.
    RowBytes,
}

struct Target {
    what: &'static str,
    mode: &'static str,
    step: &'static str,
    measure: Measure,
    bound: f64,
    /// One value size only.
    size: Option<u64>,
    /// With compression only, without it only.
    compressed: bool,
}

pub struct Verdict {
    pub what: String,
    pub wanted: String,
    /// By configuration, in their order.
    pub found: Vec<(Config, f64)>,
    pub hit: Option<bool>,
}

impl Target {
    const fn memory(what: &'static str, step: &'static str, name: &'static str, bound: f64) -> Self {
        Self {
            what,
            mode: "memory",
            step,
            measure: Measure::Against(&LEVELDB, name),
            bound,
            size: None,
            compressed: false,
        }
    }

    const fn beyond_memory(what: &'static str, step: &'static str, bound: f64) -> Self {
        Self {
            what,
            mode: "beyond",
            step,
            measure: Measure::Against(&BEST, "kops"),
            bound,
            size: None,
            compressed: false,
        }
    }

    const fn limit(what: &'static str, step: &'static str, measure: Measure, bound: f64) -> Self {
        Self { what, mode: "memory", step, measure, bound, size: None, compressed: false }
    }

    const fn beyond(mut self) -> Self {
        self.mode = "beyond";
        self
    }

    const fn at_size(mut self, size: u64) -> Self {
        self.size = Some(size);
        self
    }

    const fn compressed(mut self) -> Self {
        self.compressed = true;
        self
    }
}

fn targets() -> Vec<Target> {
    let mut all = vec![
        Target::memory("fillrandom, settled", "fillrandom", "settled_kops", 2.28),
        Target::limit("write amplification with log", "fillrandom", Measure::AtMost("settled_write_amp"), 4.0)
            .at_size(256),
        Target::memory("readrandom", "readrandom", "kops", 1.26),
        Target::memory("readmissing", "readmissing", "kops", 5.0),
        Target::memory("readseq", "readseq", "kops", 1.0),
        Target::memory("seek+50", "seek50", "kops", 1.0),
        Target::memory("readseq after overwrites", "readseq-aged", "kops", 1.0),
        Target::memory("seek+50 after overwrites", "seek50-aged", "kops", 1.0),
        Target::memory("YCSB load", "load", "kops", 1.97),
        Target::memory("YCSB A", "ycsb-a", "kops", 1.2),
    ];
    for (what, step) in
        [("YCSB B", "ycsb-b"), ("YCSB C", "ycsb-c"), ("YCSB D", "ycsb-d"), ("YCSB E", "ycsb-e"), ("YCSB F", "ycsb-f")]
    {
        all.push(Target::memory(what, step, "kops", 1.0));
    }
    all.push(Target::beyond_memory("readrandom", "readrandom", 1.2));
    all.push(Target::beyond_memory("seek+50", "seek50", 1.2));
    all.push(
        Target::limit("readmissing: bytes read from disk", "readmissing", Measure::AtMost("read_bytes_per_op"), 1.0)
            .beyond(),
    );
    all.push(
        Target::limit("readrandom: bytes read from disk", "readrandom", Measure::AtMost("read_bytes_per_op"), 8192.0)
            .beyond(),
    );
    all.push(
        Target::limit("readrandom: runs looked into per get", "readrandom", Measure::AtMost("runs_per_get"), 1.0)
            .beyond(),
    );
    for (what, step) in [
        ("YCSB load", "load"),
        ("YCSB A", "ycsb-a"),
        ("YCSB B", "ycsb-b"),
        ("YCSB C", "ycsb-c"),
        ("YCSB D", "ycsb-d"),
        ("YCSB E", "ycsb-e"),
        ("YCSB F", "ycsb-f"),
    ] {
        all.push(Target::beyond_memory(what, step, 1.0));
    }
    all.push(Target::limit("put at 70 % of its peak: p99.9 (us)", "paced", Measure::AtMost("p999_us"), 2_000.0));
    all.push(Target::limit("put at 70 % of its peak: longest (us)", "paced", Measure::AtMost("max_us"), 50_000.0));
    for beyond in [false, true] {
        for (what, step, measure, bound) in [
            ("space at rest / live data, filled", "fillrandom", Measure::Space("disk_rest"), 1.3),
            ("space at rest / live data, overwritten", "overwrite-3", Measure::Space("disk_rest"), 1.3),
            ("space at its peak / live data, filled", "fillrandom", Measure::Space("disk_peak"), 1.8),
            ("space at its peak / live data, overwritten", "overwrite-3", Measure::Space("disk_peak"), 1.8),
        ] {
            let target = Target::limit(what, step, measure, bound);
            all.push(if beyond { target.beyond() } else { target });
        }
    }
    all.push(
        Target::limit("bytes a row, compressed", "fillrandom", Measure::RowBytes, 155.0).at_size(256).compressed(),
    );
    all.push(Target::limit("open of a closed store (ms)", "open", Measure::AtMost("open_ms"), 100.0));
    all
}

/// Every target with what was measured for it; targets of cells that were not run are left undecided.
pub fn judge(results: &Results) -> Vec<Verdict> {
    let configs = results.configs();
    targets().iter().map(|target| judge_one(target, results, &configs)).collect()
}

fn judge_one(target: &Target, results: &Results, configs: &[Config]) -> Verdict {
    let mut found = Vec::new();
    let fitting = configs.iter().filter(|config| {
        config.mode == target.mode
            && (config.compression == "on") == target.compressed
            && target.size.is_none_or(|size| size == config.value_size)
    });
    for config in fitting {
        // The store that is opened has rows of its own size, and belongs to no configuration.
        let place = (target.step != "open").then_some(config);
        if let Some(value) = measured(target, results, place) {
            found.push((config.clone(), value));
        }
        if place.is_none() {
            break;
        }
    }
    let least = matches!(target.measure, Measure::Against(..));
    let met = |value: f64| if least { value >= target.bound } else { value <= target.bound };
    let hit = (!found.is_empty()).then(|| found.iter().all(|(_, value)| met(*value)));
    let against = match &target.measure {
        Measure::Against(others, _) if others.len() == 1 => " x LevelDB",
        Measure::Against(..) => " x best of RocksDB, fjall",
        _ => "",
    };
    let mode = if target.mode == "beyond" { ", beyond memory" } else { "" };
    Verdict {
        what: format!("{}{mode}", target.what),
        wanted: format!("{} {}{against}", if least { ">=" } else { "<=" }, target.bound),
        found,
        hit,
    }
}

fn measured(target: &Target, results: &Results, config: Option<&Config>) -> Option<f64> {
    let number = |name: &str| results.median(config, target.step, OWN, name);
    match &target.measure {
        Measure::Against(others, name) => results.ratio(config, target.step, name, OWN, others),
        Measure::AtMost(name) => number(name),
        Measure::Space(name) => {
            let row = config?.value_size as f64 + crate::generator::KEY_LEN as f64;
            Some(number(name)? / (number("present")? * row))
        }
        Measure::RowBytes => Some(number("disk_rest")? / number("present")?),
    }
}
