//! A cell: one workload on one store with one set of parameters, measured in a process of its own.

use crate::stores::Kind;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Keys in order, into an empty store.
    FillSeq,
    /// Every key once, in random order, into an empty store.
    FillRandom,
    /// As many puts as there are rows, of random present keys.
    Overwrite,
    ReadRandom,
    /// Gets of absent keys that lie between present ones.
    ReadMissing,
    /// The whole store from the first row to the last, again and again.
    ReadSeq,
    /// A seek and 50 rows.
    Seek50,
    /// YCSB's load: an empty store, keys in hashed order.
    Load,
    /// Half reads, half updates, zipfian.
    YcsbA,
    /// 95 % reads, 5 % updates, zipfian.
    YcsbB,
    /// Reads, zipfian.
    YcsbC,
    /// 95 % reads of the latest, 5 % inserts.
    YcsbD,
    /// 95 % scans of 1 to 100 rows, 5 % inserts.
    YcsbE,
    /// Half reads, half read-modify-writes, zipfian.
    YcsbF,
    /// `FillRandom` at a fixed rate.
    Paced,
    /// Opens and closes the store several times.
    Open,
    /// Keys that are there, a hundred at a time.
    MultiGet,
}

impl Workload {
    const NAMES: [(Workload, &'static str); 17] = [
        (Workload::FillSeq, "fillseq"),
        (Workload::FillRandom, "fillrandom"),
        (Workload::Overwrite, "overwrite"),
        (Workload::ReadRandom, "readrandom"),
        (Workload::ReadMissing, "readmissing"),
        (Workload::ReadSeq, "readseq"),
        (Workload::Seek50, "seek50"),
        (Workload::Load, "load"),
        (Workload::YcsbA, "ycsb-a"),
        (Workload::YcsbB, "ycsb-b"),
        (Workload::YcsbC, "ycsb-c"),
        (Workload::YcsbD, "ycsb-d"),
        (Workload::YcsbE, "ycsb-e"),
        (Workload::YcsbF, "ycsb-f"),
        (Workload::Paced, "paced"),
        (Workload::Open, "open"),
        (Workload::MultiGet, "multiget100"),
    ];

    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(workload, _)| *workload == self).map_or("", |(_, name)| name)
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(workload, _)| *workload)
    }

    /// Begins with an empty store.
    pub fn fills(self) -> bool {
        matches!(self, Self::FillSeq | Self::FillRandom | Self::Load | Self::Paced)
    }

    /// Writes every row there is, so that waiting for compaction afterwards means something.
    pub fn settles(self) -> bool {
        self.fills() || self == Self::Overwrite
    }

    pub fn writes(self) -> bool {
        self.settles() || matches!(self, Self::YcsbA | Self::YcsbB | Self::YcsbD | Self::YcsbE | Self::YcsbF)
    }

    pub fn is_ycsb(self) -> bool {
        self == Self::Load || self.name().starts_with("ycsb")
    }
}

/// What [`Cell::index_part`] is unless it is given.
pub const INDEX_PART: u64 = 2;

/// Everything a child needs to know. Travels as `--name=value` arguments.
#[derive(Clone, Debug)]
pub struct Cell {
    pub store: Kind,
    pub workload: Workload,
    /// The workload's place in its chain: "readrandom" and "readrandom-aged" are the same workload.
    pub step: String,
    pub round: u32,
    pub dir: PathBuf,
    /// Rows that a fill writes.
    pub rows: u64,
    /// Rows that are there already.
    pub present: u64,
    pub value_size: usize,
    pub compression: bool,
    /// What a value's pieces compress to.
    pub ratio: f64,
    pub memtable: usize,
    pub cache: usize,
    /// One part in so many of a limited process's memory may go to the key index, of a store that has one.
    pub index_part: u64,
    /// Bytes of memory for the whole process; 0: no limit, and the data are brought into memory before reading.
    pub limit: u64,
    pub group: Option<PathBuf>,
    pub threads: u32,
    /// Operations that do not fill end after so many seconds.
    pub seconds: f64,
    /// Puts a second, 0 for as fast as it goes.
    pub rate: f64,
    pub quiet_ms: u64,
    /// How long a store is left alone, after it has settled, before its size is taken: some tidy up when they are idle.
    pub rest_ms: u64,
}

impl Cell {
    pub fn mode(&self) -> &'static str {
        if self.limit == 0 {
            "memory"
        } else {
            "beyond"
        }
    }

    /// What must be equal for an old result to stand for a new one.
    pub fn key(&self) -> String {
        let index = if self.index_part == INDEX_PART { String::new() } else { format!(" i{}", self.index_part) };
        format!(
            "{} {} {} r{} n{} v{} {} x{} m{} c{} l{} t{} s{}{index}",
            self.mode(),
            self.store.name(),
            self.step,
            self.round,
            self.rows,
            self.value_size,
            if self.compression { "on" } else { "off" },
            self.ratio,
            self.memtable,
            self.cache,
            self.limit,
            self.threads,
            self.seconds,
        )
    }

    pub fn to_args(&self) -> Vec<String> {
        let mut args: Vec<String> = [
            ("store", self.store.name().to_owned()),
            ("workload", self.workload.name().to_owned()),
            ("step", self.step.clone()),
            ("round", self.round.to_string()),
            ("dir", self.dir.display().to_string()),
            ("rows", self.rows.to_string()),
            ("present", self.present.to_string()),
            ("value-size", self.value_size.to_string()),
            ("compression", self.compression.to_string()),
            ("ratio", self.ratio.to_string()),
            ("memtable", self.memtable.to_string()),
            ("cache", self.cache.to_string()),
            ("index-part", self.index_part.to_string()),
            ("limit", self.limit.to_string()),
            ("threads", self.threads.to_string()),
            ("seconds", self.seconds.to_string()),
            ("rate", self.rate.to_string()),
            ("quiet-ms", self.quiet_ms.to_string()),
            ("rest-ms", self.rest_ms.to_string()),
        ]
        .into_iter()
        .map(|(name, value)| format!("--{name}={value}"))
        .collect();
        if let Some(group) = &self.group {
            args.push(format!("--group={}", group.display()));
        }
        args
    }

    pub fn from_args(args: &Args) -> Result<Self, String> {
        let store = args.text("store").ok_or("--store is missing")?;
        let workload = args.text("workload").ok_or("--workload is missing")?;
        Ok(Self {
            store: Kind::from_name(store).ok_or_else(|| format!("unknown store {store}"))?,
            workload: Workload::from_name(workload).ok_or_else(|| format!("unknown workload {workload}"))?,
            step: args.text("step").unwrap_or(workload).to_owned(),
            round: args.get("round", 0)?,
            dir: args.text("dir").ok_or("--dir is missing")?.into(),
            rows: args.get("rows", 100_000)?,
            present: args.get("present", 0)?,
            value_size: args.get("value-size", 256)?,
            compression: args.get("compression", false)?,
            ratio: args.get("ratio", 0.5)?,
            memtable: args.get("memtable", 4 << 20)?,
            cache: args.get("cache", 8 << 20)?,
            index_part: args.get("index-part", INDEX_PART)?,
            limit: args.get("limit", 0)?,
            group: args.text("group").map(PathBuf::from),
            threads: args.get("threads", 1)?,
            seconds: args.get("seconds", 5.0)?,
            rate: args.get("rate", 0.0)?,
            quiet_ms: args.get("quiet-ms", 500)?,
            rest_ms: args.get("rest-ms", 0)?,
        })
    }
}

/// Arguments of the form `--name=value`.
pub struct Args(Vec<(String, String)>);

impl Args {
    pub fn new(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let pairs = args.map(|arg| {
            let pair = arg.strip_prefix("--").and_then(|rest| rest.split_once('='));
            pair.map(|(name, value)| (name.to_owned(), value.to_owned()))
                .ok_or_else(|| format!("--name=value expected: {arg}"))
        });
        Ok(Self(pairs.collect::<Result<_, _>>()?))
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn get<T: std::str::FromStr>(&self, name: &str, otherwise: T) -> Result<T, String> {
        match self.text(name) {
            None => Ok(otherwise),
            Some(text) => text.parse().map_err(|_| format!("--{name}: {text} is not understood")),
        }
    }

    pub fn list<T: std::str::FromStr>(&self, name: &str, otherwise: Vec<T>) -> Result<Vec<T>, String> {
        let Some(text) = self.text(name) else { return Ok(otherwise) };
        text.split(',').map(|item| item.parse().map_err(|_| format!("--{name}: {item} is not understood"))).collect()
    }

    /// Fails on a name that nobody knows: a typing error must not measure something else.
    pub fn only(&self, known: &[&str]) -> Result<(), String> {
        match self.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            Some((name, _)) => Err(format!("unknown option --{name}; known: {}", known.join(", "))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_survives_its_arguments() {
        let args =
            Args::new(["--store=leveldb", "--workload=ycsb-e", "--dir=/x", "--limit=5"].map(String::from).into_iter());
        let cell = Cell::from_args(&args.unwrap()).unwrap();
        let again = Cell::from_args(&Args::new(cell.to_args().into_iter()).unwrap()).unwrap();
        assert_eq!(format!("{cell:?}"), format!("{again:?}"));
        assert_eq!(cell.mode(), "beyond");
    }
}
