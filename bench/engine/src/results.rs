//! Result lines: read, kept, selected.

use crate::json::Json;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

pub const LINES: &str = "results.jsonl";
pub const MACHINE: &str = "machine.json";

/// The lines of one result directory, the newest of each cell.
pub struct Results {
    path: PathBuf,
    lines: Vec<Json>,
}

/// Which cells to look at. Steps and stores are asked for one by one.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub mode: String,
    pub value_size: u64,
    pub compression: String,
}

impl Results {
    pub fn load(dir: &Path) -> Self {
        let path = dir.join(LINES);
        let mut results = Self { path, lines: Vec::new() };
        let text = fs::read_to_string(&results.path).unwrap_or_default();
        for line in text.lines().filter_map(Json::parse) {
            results.keep(line);
        }
        results
    }

    pub fn empty(dir: &Path) -> Result<Self, String> {
        let path = dir.join(LINES);
        fs::write(&path, "").map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Self { path, lines: Vec::new() })
    }

    fn keep(&mut self, line: Json) {
        match self.lines.iter_mut().find(|old| old.text("key") == line.text("key")) {
            Some(old) => *old = line,
            None => self.lines.push(line),
        }
    }

    pub fn add(&mut self, line: Json) -> Result<(), String> {
        let file = fs::OpenOptions::new().create(true).append(true).open(&self.path);
        file.and_then(|mut file| writeln!(file, "{line}")).map_err(|e| format!("{}: {e}", self.path.display()))?;
        self.keep(line);
        Ok(())
    }

    /// Whether anything was measured of this store.
    pub fn knows(&self, store: &str) -> bool {
        self.lines.iter().any(|line| line.text("store") == store && line.get("error").is_none())
    }

    /// The line of a cell that was measured without error.
    pub fn measured(&self, key: &str) -> Option<&Json> {
        self.lines.iter().find(|line| line.text("key") == key && line.get("error").is_none())
    }

    pub fn errors(&self) -> impl Iterator<Item = &Json> {
        self.lines.iter().filter(|line| line.get("error").is_some())
    }

    pub fn configs(&self) -> Vec<Config> {
        let mut configs: Vec<Config> = Vec::new();
        for line in self.lines.iter().filter(|line| !line.text("step").starts_with("open")) {
            let config = Config {
                mode: line.text("mode").to_owned(),
                value_size: line.num("value_size").unwrap_or(0.0) as u64,
                compression: line.text("compression").to_owned(),
            };
            if !configs.contains(&config) {
                configs.push(config);
            }
        }
        configs.sort_by_key(|config| (config.mode == "beyond", config.compression == "on", config.value_size));
        configs
    }

    fn of(&self, config: Option<&Config>, step: &str, store: &str) -> impl Iterator<Item = &Json> {
        let (config, step, store) = (config.cloned(), step.to_owned(), store.to_owned());
        self.lines.iter().filter(move |line| {
            line.get("error").is_none()
                && line.text("step") == step
                && line.text("store") == store
                && config.as_ref().is_none_or(|config| {
                    line.text("mode") == config.mode
                        && line.text("compression") == config.compression
                        && line.num("value_size") == Some(config.value_size as f64)
                })
        })
    }

    /// A number of all rounds, as (round, value).
    pub fn rounds(&self, config: Option<&Config>, step: &str, store: &str, name: &str) -> Vec<(u32, f64)> {
        self.of(config, step, store).filter_map(|line| Some((line.num("round")? as u32, line.num(name)?))).collect()
    }

    pub fn median(&self, config: Option<&Config>, step: &str, store: &str, name: &str) -> Option<f64> {
        median(self.rounds(config, step, store, name).into_iter().map(|(_, value)| value).collect())
    }

    /// The line of the last round.
    pub fn last(&self, config: Option<&Config>, step: &str, store: &str) -> Option<&Json> {
        self.of(config, step, store).last()
    }

    /// The median over rounds of one store's number divided by the best of others' in the same round.
    pub fn ratio(&self, config: Option<&Config>, step: &str, name: &str, store: &str, others: &[&str]) -> Option<f64> {
        let own = self.rounds(config, step, store, name);
        let others: Vec<_> = others.iter().map(|other| self.rounds(config, step, other, name)).collect();
        let ratios = own.into_iter().filter_map(|(round, value)| {
            let same_round = others.iter().flatten().filter(|(other, _)| *other == round).map(|(_, value)| *value);
            let best = same_round.fold(f64::NAN, f64::max);
            (best > 0.0).then(|| value / best)
        });
        median(ratios.collect())
    }
}

pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(store: &str, round: u32, kops: f64) -> Json {
        let mut line = Json::object();
        for (name, text) in [("mode", "memory"), ("compression", "off"), ("step", "fillrandom"), ("store", store)] {
            line.set(name, text);
        }
        line.set("key", format!("{store} {round}"));
        line.set("value_size", 100.0);
        line.set("round", f64::from(round));
        line.set("kops", kops);
        line
    }

    #[test]
    fn ratios_are_taken_within_a_round_against_the_best() {
        let dir = std::env::temp_dir().join(format!("engine-bench-results-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut results = Results::empty(&dir).unwrap();
        for (store, round, kops) in
            [("a", 1, 10.0), ("b", 1, 5.0), ("c", 1, 4.0), ("a", 2, 30.0), ("b", 2, 5.0), ("c", 2, 10.0)]
        {
            results.add(line(store, round, kops)).unwrap();
        }
        results.add(line("a", 1, 20.0)).unwrap();
        let results = Results::load(&dir);
        let config = &results.configs()[0];
        // Round 1: 20 / 5, round 2: 30 / 10.
        assert_eq!(results.ratio(Some(config), "fillrandom", "kops", "a", &["b", "c"]), Some(3.5));
        assert_eq!(results.ratio(Some(config), "fillrandom", "kops", "a", &["d"]), None);
        assert_eq!(results.median(Some(config), "fillrandom", "a", "kops"), Some(25.0));
        fs::remove_dir_all(&dir).unwrap();
    }
}
