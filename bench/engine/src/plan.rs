//! What a run measures: three forms, each piece of which can be replaced by an option.

use crate::cell::{Args, Workload, INDEX_PART};
use crate::generator::KEY_LEN;
use crate::stores::Kind;
use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct Plan {
    pub form: String,
    pub label: String,
    pub out: PathBuf,
    /// Where the stores live while they are measured.
    pub dir: PathBuf,
    pub stores: Vec<Kind>,
    pub sizes: Vec<usize>,
    pub compression: Vec<bool>,
    pub modes: Vec<String>,
    pub chains: Vec<String>,
    /// Steps that are wanted, after those that chains begin with; none named: all.
    pub steps: Vec<String>,
    pub rounds: u32,
    /// User bytes of a store; rows follow from the value size.
    pub data: u64,
    pub memtable: usize,
    pub cache: usize,
    /// Beyond memory: user bytes of a store, and what the whole process may use.
    pub beyond_data: u64,
    pub beyond_memtable: usize,
    pub beyond_cache: usize,
    pub limit: u64,
    /// See [`crate::cell::Cell::index_part`].
    pub index_part: u64,
    pub ratio: f64,
    pub threads: u32,
    pub seconds: f64,
    pub quiet_ms: u64,
    pub rest_ms: u64,
    pub open_rows: u64,
    pub resume: bool,
    /// See [`crate::quiet::Memory`].
    pub keep_memory: bool,
}

const MIB: u64 = 1 << 20;

/// Workloads that follow each other on one store.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    pub name: &'static str,
    pub steps: &'static [(&'static str, Workload)],
    pub in_memory: bool,
    pub beyond: bool,
    /// Measured at one value size, the first of the run, and without compression.
    pub once: bool,
}

pub const CHAINS: [Chain; 5] = [
    Chain { name: "fillseq", steps: &[("fillseq", Workload::FillSeq)], in_memory: true, beyond: false, once: false },
    Chain {
        name: "micro",
        steps: &[
            ("fillrandom", Workload::FillRandom),
            ("readrandom", Workload::ReadRandom),
            ("readmissing", Workload::ReadMissing),
            ("multiget100", Workload::MultiGet),
            ("readseq", Workload::ReadSeq),
            ("seek50", Workload::Seek50),
            ("overwrite", Workload::Overwrite),
            ("overwrite-2", Workload::Overwrite),
            ("overwrite-3", Workload::Overwrite),
            ("readrandom-aged", Workload::ReadRandom),
            ("readmissing-aged", Workload::ReadMissing),
            ("readseq-aged", Workload::ReadSeq),
            ("seek50-aged", Workload::Seek50),
        ],
        in_memory: true,
        beyond: true,
        once: false,
    },
    Chain {
        name: "ycsb",
        steps: &[
            ("load", Workload::Load),
            ("ycsb-a", Workload::YcsbA),
            ("ycsb-b", Workload::YcsbB),
            ("ycsb-c", Workload::YcsbC),
            ("ycsb-f", Workload::YcsbF),
            ("ycsb-d", Workload::YcsbD),
            ("ycsb-e", Workload::YcsbE),
        ],
        in_memory: true,
        beyond: true,
        once: false,
    },
    Chain {
        name: "paced",
        steps: &[("paced-peak", Workload::FillRandom), ("paced", Workload::Paced)],
        in_memory: true,
        beyond: false,
        once: true,
    },
    Chain {
        name: "open",
        steps: &[("open-fill", Workload::FillSeq), ("open", Workload::Open)],
        in_memory: true,
        beyond: false,
        once: true,
    },
];

/// Values of the store that is opened for the open time; small, for the keys are what counts.
pub const OPEN_VALUE_SIZE: usize = 100;
/// A paced writer goes at this share of its own peak.
pub const PACE: f64 = 0.7;

const OPTIONS: [&str; 27] = [
    "form",
    "label",
    "out",
    "dir",
    "stores",
    "sizes",
    "compression",
    "modes",
    "chains",
    "steps",
    "rounds",
    "data-mb",
    "memtable-mb",
    "cache-mb",
    "beyond-data-mb",
    "beyond-memtable-mb",
    "beyond-cache-mb",
    "limit-mb",
    "index-part",
    "ratio",
    "threads",
    "seconds",
    "quiet-ms",
    "rest-ms",
    "open-rows",
    "resume",
    "keep-memory",
];

impl Plan {
    fn form(name: &str) -> Result<Self, String> {
        let medium = Self {
            form: name.to_owned(),
            label: String::new(),
            out: PathBuf::new(),
            dir: PathBuf::new(),
            stores: Kind::ALL.into_iter().filter(|kind| kind.built()).collect(),
            sizes: vec![256],
            compression: vec![false, true],
            modes: vec!["memory".to_owned(), "beyond".to_owned()],
            chains: CHAINS.iter().map(|chain| chain.name.to_owned()).collect(),
            steps: Vec::new(),
            rounds: 2,
            data: 256 * MIB,
            memtable: 16 << 20,
            cache: 64 << 20,
            beyond_data: 256 * MIB,
            beyond_memtable: 8 << 20,
            beyond_cache: 32 << 20,
            limit: 128 * MIB,
            index_part: INDEX_PART,
            ratio: 0.5,
            threads: 1,
            seconds: 4.0,
            quiet_ms: 500,
            rest_ms: 12_000,
            open_rows: 2_000_000,
            resume: false,
            keep_memory: false,
        };
        match name {
            "short" => Ok(Self {
                compression: vec![false],
                rounds: 1,
                data: 16 * MIB,
                memtable: 1 << 20,
                cache: 4 << 20,
                beyond_data: 96 * MIB,
                beyond_memtable: 2 << 20,
                beyond_cache: 8 << 20,
                limit: 64 * MIB,
                seconds: 0.15,
                quiet_ms: 150,
                rest_ms: 0,
                open_rows: 200_000,
                ..medium
            }),
            "medium" => Ok(medium),
            "long" => Ok(Self {
                sizes: vec![256, 100, 512, 1024, 2048],
                rounds: 3,
                data: 512 * MIB,
                memtable: 16 << 20,
                cache: 128 << 20,
                beyond_data: 512 * MIB,
                beyond_memtable: 16 << 20,
                beyond_cache: 64 << 20,
                limit: 256 * MIB,
                seconds: 10.0,
                quiet_ms: 1000,
                open_rows: 10_000_000,
                ..medium
            }),
            _ => Err(format!("unknown form {name}: short, medium or long")),
        }
    }

    pub fn from_args(args: &Args) -> Result<Self, String> {
        args.only(&OPTIONS)?;
        let form = Self::form(args.text("form").unwrap_or("long"))?;
        let mib = |name: &str, otherwise: u64| args.get(name, otherwise / MIB).map(|n| n * MIB);
        let label = args.text("label").map_or_else(|| format!("{}-{}", form.form, today()), str::to_owned);
        let names = args.list("stores", form.stores.iter().map(|kind| kind.name().to_owned()).collect())?;
        let stores = names
            .iter()
            .map(|name| Kind::from_name(name).ok_or_else(|| format!("unknown store {name}")))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(kind) = stores.iter().find(|kind| !kind.built()) {
            return Err(format!("this program was built without {}", kind.name()));
        }
        let on_off = |flag: &bool| if *flag { "on" } else { "off" }.to_owned();
        let compression = args.list("compression", form.compression.iter().map(on_off).collect())?;
        let plan = Self {
            out: args
                .text("out")
                .map_or_else(|| PathBuf::from("bench/results").join(format!("engine-{label}")), PathBuf::from),
            dir: args.text("dir").map_or_else(|| std::env::temp_dir().join("loosekv-engine-bench"), PathBuf::from),
            stores,
            sizes: args.list("sizes", form.sizes)?,
            compression: compression.iter().map(|word| word == "on").collect(),
            modes: args.list("modes", form.modes)?,
            chains: args.list("chains", form.chains)?,
            steps: args.list("steps", form.steps)?,
            rounds: args.get("rounds", form.rounds)?,
            data: mib("data-mb", form.data)?,
            memtable: mib("memtable-mb", form.memtable as u64)? as usize,
            cache: mib("cache-mb", form.cache as u64)? as usize,
            beyond_data: mib("beyond-data-mb", form.beyond_data)?,
            beyond_memtable: mib("beyond-memtable-mb", form.beyond_memtable as u64)? as usize,
            beyond_cache: mib("beyond-cache-mb", form.beyond_cache as u64)? as usize,
            limit: mib("limit-mb", form.limit)?,
            index_part: args.get("index-part", form.index_part)?,
            ratio: args.get("ratio", form.ratio)?,
            threads: args.get("threads", form.threads)?,
            seconds: args.get("seconds", form.seconds)?,
            quiet_ms: args.get("quiet-ms", form.quiet_ms)?,
            rest_ms: args.get("rest-ms", form.rest_ms)?,
            open_rows: args.get("open-rows", form.open_rows)?,
            resume: args.get("resume", 0_u8)? != 0,
            keep_memory: args.get("keep-memory", 0_u8)? != 0,
            form: form.form,
            label,
        };
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), String> {
        if let Some(mode) = self.modes.iter().find(|mode| !["memory", "beyond"].contains(&mode.as_str())) {
            return Err(format!("unknown mode {mode}"));
        }
        if let Some(name) = self.chains.iter().find(|name| !CHAINS.iter().any(|chain| chain.name == name.as_str())) {
            return Err(format!("unknown chain {name}"));
        }
        let known = |step: &&String| CHAINS.iter().flat_map(|chain| chain.steps).any(|(name, _)| name == step);
        if let Some(step) = self.steps.iter().find(|step| !known(step)) {
            return Err(format!("unknown step {step}"));
        }
        if self.stores.is_empty() || self.sizes.is_empty() || self.sizes.contains(&0) {
            return Err("there is nothing to measure".to_owned());
        }
        Ok(())
    }

    fn wants(&self, step: &str) -> bool {
        self.steps.is_empty() || self.steps.iter().any(|wanted| wanted == step)
    }

    /// The short form overwrites once only.
    pub fn leaves_out(&self, step: &str) -> bool {
        let begins = CHAINS.iter().any(|chain| chain.steps.first().is_some_and(|(first, _)| *first == step));
        !(begins || self.wants(step)) || (self.form == "short" && ["overwrite-2", "overwrite-3"].contains(&step))
    }

    /// Everything that is measured side by side, one after the other.
    pub fn groups(&self) -> Vec<Group> {
        let mut groups = Vec::new();
        for mode in &self.modes {
            let beyond = mode == "beyond";
            for &compression in &self.compression {
                for (at, &value_size) in self.sizes.iter().enumerate() {
                    let named = CHAINS.iter().filter(|chain| self.chains.iter().any(|name| name == chain.name));
                    for chain in named.filter(|chain| chain.steps.iter().any(|(step, _)| self.wants(step))) {
                        let once_more = chain.once && (at > 0 || compression != self.compression[0]);
                        if once_more || !(if beyond { chain.beyond } else { chain.in_memory }) {
                            continue;
                        }
                        groups.push(self.group(*chain, beyond, compression, value_size));
                    }
                }
            }
        }
        groups
    }

    fn group(&self, chain: Chain, beyond: bool, compression: bool, value_size: usize) -> Group {
        let data = if beyond { self.beyond_data } else { self.data };
        let mut group = Group {
            chain,
            compression,
            value_size,
            rows: data / (KEY_LEN + value_size) as u64,
            memtable: if beyond { self.beyond_memtable } else { self.memtable },
            cache: if beyond { self.beyond_cache } else { self.cache },
            limit: if beyond { self.limit } else { 0 },
        };
        if chain.name == "open" {
            group.rows = self.open_rows;
            group.value_size = OPEN_VALUE_SIZE;
        }
        group
    }
}

/// One chain with one set of parameters, run on every store in turn.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub chain: Chain,
    pub compression: bool,
    pub value_size: usize,
    pub rows: u64,
    pub memtable: usize,
    pub cache: usize,
    pub limit: u64,
}

/// The date, for a label: civil from days, as Howard Hinnant wrote it down.
pub fn today() -> String {
    let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    date_of((seconds / 86_400) as i64)
}

fn date_of(days: i64) -> String {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        assert_eq!(date_of(0), "1970-01-01");
        assert_eq!(date_of(11_016), "2000-02-29");
        assert_eq!(date_of(19_723), "2024-01-01");
    }

    #[test]
    fn every_form_has_cells_and_options_replace_its_pieces() {
        for form in ["short", "medium", "long"] {
            let args = Args::new([format!("--form={form}"), "--sizes=100,512".to_owned()].into_iter()).unwrap();
            let plan = Plan::from_args(&args).unwrap();
            assert_eq!(plan.sizes, [100, 512]);
            assert!(plan.groups().iter().any(|group| group.limit > 0) && plan.groups().len() > 5);
        }
        for wrong in ["--sise=1", "--steps=readrandon"] {
            assert!(Plan::from_args(&Args::new([wrong.to_owned()].into_iter()).unwrap()).is_err(), "{wrong}");
        }
        let plan = Plan::from_args(&Args::new(["--steps=seek50".to_owned()].into_iter()).unwrap()).unwrap();
        assert!(plan.leaves_out("readrandom") && !plan.leaves_out("seek50") && !plan.leaves_out("fillrandom"));
        assert!(plan.groups().iter().all(|group| group.chain.name == "micro"));
    }
}
