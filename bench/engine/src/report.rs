//! The table and the plots, made from result lines alone: they can be made again at any time.

use crate::json::Json;
use crate::plan::CHAINS;
use crate::results::{Config, Results, MACHINE};
use crate::stores::Kind;
use crate::svg::{self, short, Panel};
use crate::targets;
use std::fmt::Write;
use std::fs;
use std::path::Path;

const OWN: &str = "loosekv";
const LEVELDB: [&str; 1] = ["leveldb"];
const BEST: [&str; 3] = ["rocksdb-leveled", "rocksdb-universal", "fjall"];
/// Steps over value size and time, one panel each.
const SIZE_PANELS: [(&str, &str); 6] = [
    ("fillrandom", "settled_kops"),
    ("readrandom", "kops"),
    ("readmissing", "kops"),
    ("seek50", "kops"),
    ("ycsb-a", "kops"),
    ("ycsb-e", "kops"),
];
const TIME_PANELS: [&str; 3] = ["fillrandom", "overwrite-3", "paced"];

pub fn write(out: &Path) -> Result<(), String> {
    let report = Report { results: Results::load(out), machine: machine(out) };
    let mut plots = report.plots();
    let mut text = report.head();
    text += &report.verdicts();
    for config in report.results.configs() {
        text += &report.config(&config);
    }
    text += &report.opens();
    text += "\n## Plots\n";
    for (name, _) in &plots {
        let _ = write!(text, "\n![{name}]({name})\n");
    }
    plots.push(("report.md".to_owned(), text));
    for (name, content) in plots {
        let path = out.join(name);
        fs::write(&path, content).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

fn machine(out: &Path) -> Json {
    fs::read_to_string(out.join(MACHINE)).ok().and_then(|text| Json::parse(&text)).unwrap_or(Json::Null)
}

struct Report {
    results: Results,
    machine: Json,
}

fn title(config: &Config) -> String {
    let mode = if config.mode == "beyond" { "beyond memory" } else { "in memory" };
    let compression = if config.compression == "on" { "compressed" } else { "plain" };
    format!("{mode}, values of {} B, {compression}", config.value_size)
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    format!("| {} |\n", cells.into_iter().collect::<Vec<_>>().join(" | "))
}

fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let line = (0..head.len()).map(|at| if at == 0 { "---" } else { "---:" }.to_owned());
    let mut text = "\n".to_owned() + &row(head.iter().map(|cell| (*cell).to_owned())) + &row(line);
    for cells in rows {
        text += &row(cells.iter().cloned());
    }
    text
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, short)
}

impl Report {
    fn stores(&self) -> Vec<&'static str> {
        Kind::ALL.into_iter().map(Kind::name).filter(|name| self.results.knows(name)).collect()
    }

    /// Those of which anything was measured so.
    fn stores_in(&self, config: &Config) -> Vec<&'static str> {
        let steps = self.steps(config);
        let measured = |store: &&str| steps.iter().any(|step| self.results.last(Some(config), step, store).is_some());
        self.stores().into_iter().filter(measured).collect()
    }

    fn head(&self) -> String {
        let mut text = format!("# Engine benchmark {}\n", self.machine.text("label"));
        if let Json::Obj(members) = &self.machine {
            let rows: Vec<_> = members
                .iter()
                .map(|(name, value)| {
                    vec![name.clone(), if let Json::Str(words) = value { words.clone() } else { value.to_string() }]
                })
                .collect();
            text += &table(&["", ""], &rows);
        }
        text += "\nThroughput in 1000 operations a second, latencies in microseconds, medians over the rounds. Stores take \
                 turns, each cell in a process of its own; ratios are taken within a round. Writes are logged and not synced.\n";
        let errors: Vec<_> =
            self.results.errors().map(|line| format!("- {}: {}\n", line.text("key"), line.text("error"))).collect();
        if !errors.is_empty() {
            text += "\n## Failed cells\n\n";
            text += &errors.concat();
        }
        text
    }

    fn verdicts(&self) -> String {
        let rows: Vec<_> = targets::judge(&self.results)
            .into_iter()
            .map(|verdict| {
                let several = verdict.found.len() > 1;
                let found = verdict.found.iter().map(|(config, value)| {
                    if several {
                        format!("{} ({} B)", short(*value), config.value_size)
                    } else {
                        short(*value)
                    }
                });
                let found = found.collect::<Vec<_>>().join(", ");
                let hit = match verdict.hit {
                    None => "not measured",
                    Some(true) => "hit",
                    Some(false) => "**missed**",
                };
                vec![verdict.what, verdict.wanted, found, hit.to_owned()]
            })
            .collect();
        "\n## Targets\n".to_owned() + &table(&["target", "wanted", "found", ""], &rows)
    }

    fn steps(&self, config: &Config) -> Vec<&'static str> {
        let all =
            CHAINS.iter().filter(|chain| chain.name != "open").flat_map(|chain| chain.steps).map(|(name, _)| *name);
        all.filter(|step| self.stores().iter().any(|store| self.results.last(Some(config), step, store).is_some()))
            .collect()
    }

    fn config(&self, config: &Config) -> String {
        let mut text = format!("\n## {}\n", title(config));
        text += &self.throughput(config);
        text += "\nProcessor time per operation, background included, in microseconds (this hardly depends on what else the \
                 machine does), and how many cores others used meanwhile:\n";
        text += &self.processor(config);
        text += "\nLatency, p50 / p99 / p99.9 / longest:\n";
        text += &self.by_store(config, |step, store| self.latency(config, step, store, ""));
        text += &self.pauses(config);
        text += "\nBytes: written per user byte until settled; on disk at rest and at the peak, per live byte; \
                 read from disk per operation:\n";
        text += &self.by_store(config, |step, store| self.bytes(config, step, store));
        text += "\nMemory, MiB: peak resident (mapped files count) / peak heap (sampled):\n";
        text += &self.by_store(config, |step, store| {
            let mib = |name| self.results.median(Some(config), step, store, name).map(|bytes| bytes / 1048576.0);
            mib("rss_peak")
                .map_or_else(String::new, |rss| format!("{rss:.0} / {:.0}", mib("anonymous_peak").unwrap_or(0.0)))
        });
        text += &self.own(config);
        text
    }

    fn latency(&self, config: &Config, step: &str, store: &str, prefix: &str) -> String {
        let parts = ["p50_us", "p99_us", "p999_us", "max_us"]
            .map(|name| self.results.median(Some(config), step, store, &format!("{prefix}{name}")));
        if parts.iter().all(Option::is_none) {
            return String::new();
        }
        parts.map(number).join(" / ")
    }

    fn pauses(&self, config: &Config) -> String {
        let stores = self.stores_in(config);
        let told: Vec<String> = stores.iter().map(|store| self.latency(config, "paced", store, "nothing_")).collect();
        if told.iter().all(String::is_empty) {
            return String::new();
        }
        let head: Vec<&str> = std::iter::once("").chain(stores).collect();
        let row = std::iter::once("paced, of nothing".to_owned()).chain(told).collect();
        "\nThe same of a writer who goes at the same rate as each store's, and is as busy, but puts nothing, while another thread \
         keeps a second core busy: pauses that are the machine's own:\n"
            .to_owned()
            + &table(&head, &[row])
    }

    fn by_store(&self, config: &Config, cell: impl Fn(&str, &str) -> String) -> String {
        let stores = self.stores_in(config);
        let head: Vec<&str> = std::iter::once("").chain(stores.iter().copied()).collect();
        let rows = self.steps(config).into_iter().map(|step| {
            std::iter::once(step.to_owned()).chain(stores.iter().map(|store| cell(step, store))).collect::<Vec<_>>()
        });
        table(&head, &rows.collect::<Vec<_>>())
    }

    fn throughput(&self, config: &Config) -> String {
        let stores = self.stores_in(config);
        let mut head: Vec<&str> = std::iter::once("").chain(stores.iter().copied()).collect();
        head.extend(["/ LevelDB", "/ best of RocksDB, fjall"]);
        let mut rows = Vec::new();
        for step in self.steps(config) {
            for (name, ending) in [("kops", ""), ("settled_kops", ", settled")] {
                let values: Vec<_> =
                    stores.iter().map(|store| self.results.median(Some(config), step, store, name)).collect();
                if values.iter().all(Option::is_none) {
                    continue;
                }
                let mut cells = vec![format!("{step}{ending}")];
                cells.extend(values.into_iter().map(number));
                cells.push(number(self.results.ratio(Some(config), step, name, OWN, &LEVELDB)));
                cells.push(number(self.results.ratio(Some(config), step, name, OWN, &BEST)));
                rows.push(cells);
            }
        }
        table(&head, &rows)
    }

    fn processor(&self, config: &Config) -> String {
        let stores = self.stores_in(config);
        let mut head: Vec<&str> = std::iter::once("").chain(stores.iter().copied()).collect();
        head.extend(["LevelDB / LooseKV", "others' cores"]);
        let mut rows = Vec::new();
        for step in self.steps(config) {
            let settled =
                stores.iter().any(|store| self.results.median(Some(config), step, store, "settled_kops").is_some());
            let name = if settled { "settled_cpu_us_per_op" } else { "cpu_us_per_op" };
            let values = stores.iter().map(|store| number(self.results.median(Some(config), step, store, name)));
            let mut cells: Vec<String> = std::iter::once(step.to_owned()).chain(values).collect();
            cells.push(number(self.results.ratio(Some(config), step, name, OWN, &LEVELDB).map(|ratio| 1.0 / ratio)));
            let others =
                stores.iter().filter_map(|store| self.results.median(Some(config), step, store, "others_cores"));
            cells.push(number(crate::results::median(others.collect())));
            rows.push(cells);
        }
        table(&head, &rows)
    }

    fn bytes(&self, config: &Config, step: &str, store: &str) -> String {
        let median = |name: &str| self.results.median(Some(config), step, store, name);
        let mut parts = Vec::new();
        if let Some(written) = median("settled_write_amp").or_else(|| median("write_amp")) {
            parts.push(format!("{written:.1} written"));
            let live =
                median("present").map(|rows| rows * (config.value_size + crate::generator::KEY_LEN as u64) as f64);
            if let (Some(rest), Some(peak), Some(live)) = (median("disk_rest"), median("disk_peak"), live) {
                parts.push(format!("{:.2}, peak {:.2}", rest / live, peak / live));
            }
        }
        if let Some(read) = median("read_bytes_per_op").filter(|read| *read >= 0.5) {
            parts.push(format!("{read:.0} B read"));
        }
        parts.join("; ")
    }

    /// What only our store tells about itself.
    fn own(&self, config: &Config) -> String {
        const NAMES: [&str; 6] =
            ["index_bytes_per_key", "runs_per_get", "page_reads_per_get", "runs", "index_keys", "indexed_share"];
        let steps = self.steps(config);
        let value = |step: &str, name: &str| self.results.median(Some(config), step, OWN, name);
        let told: Vec<&str> =
            NAMES.into_iter().filter(|name| steps.iter().any(|step| value(step, name).is_some())).collect();
        if told.is_empty() {
            return String::new();
        }
        let row = |step: &&str| {
            std::iter::once((*step).to_owned())
                .chain(told.iter().map(|name| number(value(step, name))))
                .collect::<Vec<_>>()
        };
        let rows: Vec<_> = steps.iter().map(row).collect();
        let head: Vec<&str> = std::iter::once("").chain(told).collect();
        "\nLooseKV's own counters:\n".to_owned() + &table(&head, &rows)
    }

    fn opens(&self) -> String {
        let stores = self.stores();
        let mut rows = Vec::new();
        for (name, what) in [
            ("present", "rows"),
            ("open_ms", "open (ms)"),
            ("first_get_ms", "open and first get (ms)"),
            ("ready_ms", "background work of opening done (ms)"),
            ("open_cold_ms", "open, files not in memory (ms)"),
            ("first_get_cold_ms", "open and first get, files not in memory (ms)"),
            ("ready_cold_ms", "background work done, files not in memory (ms)"),
            ("close_ms", "close (ms)"),
        ] {
            let values: Vec<_> = stores.iter().map(|store| self.results.median(None, "open", store, name)).collect();
            if values.iter().any(Option::is_some) {
                rows.push(std::iter::once(what.to_owned()).chain(values.into_iter().map(number)).collect::<Vec<_>>());
            }
        }
        let head: Vec<&str> = std::iter::once("").chain(stores.iter().copied()).collect();
        if rows.is_empty() {
            String::new()
        } else {
            "\n## Opening a closed store\n".to_owned() + &table(&head, &rows)
        }
    }

    fn plots(&self) -> Vec<(String, String)> {
        let mut plots = Vec::new();
        for config in self.results.configs() {
            plots.push((
                format!("bars-{}-{}-{}.svg", config.mode, config.value_size, config.compression),
                self.bars(&config),
            ));
        }
        let mut groups: Vec<(String, String)> = Vec::new();
        for config in self.results.configs() {
            if !groups.contains(&(config.mode.clone(), config.compression.clone())) {
                groups.push((config.mode, config.compression));
            }
        }
        for (mode, compression) in groups {
            let configs: Vec<_> =
                self.results.configs().into_iter().filter(|c| c.mode == mode && c.compression == compression).collect();
            if configs.len() > 1 {
                plots.push((format!("sizes-{mode}-{compression}.svg"), self.sizes(&configs)));
            }
            if let Some(config) = configs.first() {
                plots.push((format!("time-{mode}-{compression}.svg"), self.time(config)));
            }
        }
        plots
    }

    /// Throughput of each store relative to LevelDB in memory, to the best of RocksDB and fjall beyond.
    fn bars(&self, config: &Config) -> String {
        let others: &[&str] = if config.mode == "beyond" { &BEST } else { &LEVELDB };
        let unit = if config.mode == "beyond" { "x best of RocksDB and fjall" } else { "x LevelDB" };
        let stores = self.stores();
        let mut groups = Vec::new();
        for step in self.steps(config).into_iter().filter(|step| !step.starts_with("paced")) {
            let name = if self.results.median(Some(config), step, others[0], "settled_kops").is_some() {
                "settled_kops"
            } else {
                "kops"
            };
            let values = stores.iter().map(|store| self.results.ratio(Some(config), step, name, store, others));
            groups.push((step.to_owned(), values.collect()));
        }
        svg::bars(&format!("Throughput, {unit}: {}", title(config)), "x", &stores, &groups, 3.0)
    }

    fn sizes(&self, configs: &[Config]) -> String {
        let stores = self.stores();
        let panels: Vec<Panel> = SIZE_PANELS
            .iter()
            .map(|(step, name)| Panel {
                title: format!("{step}{} over value size", if name.starts_with("settled") { ", settled" } else { "" }),
                unit: "kops/s",
                x_unit: "bytes",
                series: stores
                    .iter()
                    .map(|store| {
                        let point = |config: &Config| {
                            Some((config.value_size as f64, self.results.median(Some(config), step, store, name)?))
                        };
                        configs.iter().filter_map(point).collect()
                    })
                    .collect(),
                marks: true,
            })
            .collect();
        svg::lines(&stores, &panels)
    }

    fn time(&self, config: &Config) -> String {
        let stores = self.stores();
        let mut panels = Vec::new();
        for step in TIME_PANELS {
            for (name, unit, scale) in [("series_kops", "kops/s", 1.0), ("series_max_us", "longest put, ms", 1e-3)] {
                let series: Vec<Vec<(f64, f64)>> =
                    stores.iter().map(|store| self.series(config, step, store, name, scale)).collect();
                if series.iter().any(|points| !points.is_empty()) {
                    panels.push(Panel {
                        title: format!("{step}: {unit} over time"),
                        unit: "",
                        x_unit: "seconds",
                        series,
                        marks: false,
                    });
                }
            }
        }
        svg::lines(&stores, &panels)
    }

    fn series(&self, config: &Config, step: &str, store: &str, name: &str, scale: f64) -> Vec<(f64, f64)> {
        let Some(line) = self.results.last(Some(config), step, store) else { return Vec::new() };
        let piece = line.num("series_s").unwrap_or(1.0);
        line.numbers(name)
            .into_iter()
            .enumerate()
            .map(|(at, value)| ((at as f64 + 0.5) * piece, value * scale))
            .collect()
    }
}
