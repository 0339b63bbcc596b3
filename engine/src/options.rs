//! What may be set about a table's tree and its runs.
//!
//! Options are named and set by strings too ([`TreeOptions::set`]), so that the host can take them from whatever its users
//! write: reloptions of a table, a configuration file.

use crate::error::{Error, Result};
use crate::filter::FilterKind;
use std::fmt;
use std::str::FromStr;

/// How data pages are packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    None,
    /// zstd with this level, 1 to 19.
    Zstd(i32),
}

impl Compression {
    pub const DEFAULT_LEVEL: i32 = 1;
}

impl FromStr for Compression {
    type Err = Error;

    fn from_str(text: &str) -> Result<Compression> {
        let text = text.trim().to_ascii_lowercase();
        match text.as_str() {
            "none" | "off" => Ok(Compression::None),
            "zstd" | "on" => Ok(Compression::Zstd(Compression::DEFAULT_LEVEL)),
            other => match other.strip_prefix("zstd:").map(str::parse) {
                Some(Ok(level)) => Ok(Compression::Zstd(level)),
                _ => Err(Error::Invalid(format!("compression \"{other}\": expected none, zstd or zstd:LEVEL"))),
            },
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::None => f.write_str("none"),
            Compression::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

/// Which runs have pages of keys alone, from which the key index is rebuilt without reading the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeyPages {
    /// Those that are not compressed: who compresses wants them small, and reads the less to rebuild the index.
    #[default]
    Auto,
    On,
    Off,
}

impl KeyPages {
    pub const ALL: [KeyPages; 3] = [KeyPages::Auto, KeyPages::On, KeyPages::Off];
}

impl FromStr for KeyPages {
    type Err = Error;

    fn from_str(text: &str) -> Result<KeyPages> {
        if text.trim().eq_ignore_ascii_case("auto") {
            return Ok(KeyPages::Auto);
        }
        match switch("key_pages", text) {
            Ok(true) => Ok(KeyPages::On),
            Ok(false) => Ok(KeyPages::Off),
            Err(_) => Err(Error::Invalid(format!("key_pages = \"{text}\": expected auto, on or off"))),
        }
    }
}

/// How a run is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunOptions {
    pub compression: Compression,
    /// Bits of filter a key; 0: no filter.
    pub filter_bits: u32,
    /// What kind of filter ([`RunOptions::at_level`] chooses it).
    pub filter: FilterKind,
    /// Which runs have pages of keys alone. (None where the keys are most of the data: there they would save little.)
    pub key_pages: KeyPages,
    /// Write the row directory (row id -> data page).
    pub directory: bool,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            compression: Compression::None,
            filter_bits: 10,
            filter: FilterKind::Bloom,
            key_pages: KeyPages::Auto,
            directory: true,
        }
    }
}

impl RunOptions {
    pub fn validate(&self) -> Result<()> {
        if let Compression::Zstd(level) = self.compression {
            if !(1..=19).contains(&level) {
                return Err(Error::Invalid(format!("compression level {level} is out of range (1 to 19)")));
            }
        }
        range("filter_bits", u64::from(self.filter_bits), 0, MOST_FILTER_BITS.into())
    }

    /// Is a run written with pages of keys?
    pub fn has_key_pages(&self) -> bool {
        match self.key_pages {
            KeyPages::Auto => self.compression == Compression::None,
            KeyPages::On => true,
            KeyPages::Off => false,
        }
    }

    /// How a run of this level is written, where the first levels have larger filters than the others: by `step` bits a key for each
    /// level that is between. Who looks for a key that is not there asks every filter, and every wrong answer costs the read of a page; the
    /// runs of the first levels are the most, and have the fewest keys. Those that merges have made stay for longer, and are worth a filter
    /// with fewer wrong answers, which takes longer to make.
    pub fn at_level(self, level: u8, step: u32) -> RunOptions {
        let more = step * LEVELS_WITH_MORE.saturating_sub(level.into());
        let filter_bits = match self.filter_bits {
            0 => 0,
            bits => (bits + more).min(MOST_FILTER_BITS),
        };
        let filter = if level < FIRST_SETTLED { FilterKind::Bloom } else { FilterKind::Ribbon };
        RunOptions { filter_bits, filter, ..self }
    }
}

const MOST_FILTER_BITS: u32 = 30;
/// So many levels have larger filters than those below them.
const LEVELS_WITH_MORE: u32 = 3;
/// The first level whose runs count as settled.
const FIRST_SETTLED: u8 = 1;

/// How a tree is kept.
#[derive(Clone, PartialEq, Debug)]
pub struct TreeOptions {
    pub run: RunOptions,
    /// A memtable is frozen when it holds so many bytes.
    pub memtable_bytes: u64,
    /// Writers are held up when so many frozen memtables wait for their flush.
    pub max_frozen: u32,
    /// A level is full with so many runs: then they become one run of the next. So this is how many times as large as those of
    /// one level the runs of the next are, and the number of levels follows from it.
    pub fan_in: u32,
    /// Garbage on disk, in percent of the live data, that starts a compaction.
    pub space_percent: u32,
    /// Tombstones, in percent of a run's rows, that start its compaction.
    pub tombstone_percent: u32,
    /// Bodies of this length and above go to the value log; 0: only those that do not fit a page.
    pub value_log_threshold: u64,
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        TreeOptions {
            run: RunOptions::default(),
            memtable_bytes: 64 << 20,
            max_frozen: 3,
            fan_in: 8,
            space_percent: 25,
            tombstone_percent: 30,
            value_log_threshold: crate::types::PAGE_SIZE as u64 / 4,
        }
    }
}

/// Most bytes of a body that stay beside the key in any case: larger ones go to the value log whatever the threshold.
pub const MAX_INLINE_ROW: usize = crate::run::MAX_ROW;

impl TreeOptions {
    /// Names that [`TreeOptions::set`] knows.
    pub const NAMES: [&'static str; 10] = [
        "compression",
        "filter_bits",
        "key_pages",
        "directory",
        "memtable_bytes",
        "max_frozen",
        "fan_in",
        "space_percent",
        "tombstone_percent",
        "value_log_threshold",
    ];

    pub fn validate(&self) -> Result<()> {
        self.run.validate()?;
        range("memtable_bytes", self.memtable_bytes, 64 << 10, 4 << 30)?;
        range("max_frozen", u64::from(self.max_frozen), 1, 64)?;
        range("fan_in", u64::from(self.fan_in), 2, 64)?;
        range("space_percent", u64::from(self.space_percent), 1, 1000)?;
        range("tombstone_percent", u64::from(self.tombstone_percent), 1, 100)?;
        if self.value_log_threshold != 0 {
            range("value_log_threshold", self.value_log_threshold, 128, u64::MAX)?;
        }
        Ok(())
    }

    /// Sets one option by name. The names are those of the fields; sizes take the suffixes kB, MB and GB.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name.trim() {
            "compression" => self.run.compression = value.parse()?,
            "filter_bits" => self.run.filter_bits = number(name, value)?,
            "key_pages" => self.run.key_pages = value.parse()?,
            "directory" => self.run.directory = switch(name, value)?,
            "memtable_bytes" => self.memtable_bytes = size(name, value)?,
            "max_frozen" => self.max_frozen = number(name, value)?,
            "fan_in" => self.fan_in = number(name, value)?,
            "space_percent" => self.space_percent = number(name, value)?,
            "tombstone_percent" => self.tombstone_percent = number(name, value)?,
            "value_log_threshold" => self.value_log_threshold = size(name, value)?,
            other => {
                let known = TreeOptions::NAMES.join(", ");
                return Err(Error::Invalid(format!("unknown option \"{other}\" (known: {known})")));
            }
        }
        Ok(())
    }

    /// The default options with these changes, checked.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<TreeOptions> {
        let mut options = TreeOptions::default();
        for (name, value) in pairs {
            options.set(name, value)?;
        }
        options.validate()?;
        Ok(options)
    }
}

fn range(name: &str, value: u64, least: u64, most: u64) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::Invalid(format!("{name} = {value} is out of range ({least} to {most})")))
}

fn number(name: &str, value: &str) -> Result<u32> {
    value.trim().parse().map_err(|_| Error::Invalid(format!("{name} = \"{value}\": expected a number")))
}

fn switch(name: &str, value: &str) -> Result<bool> {
    match value.trim().to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" | "1" => Ok(true),
        "off" | "false" | "no" | "0" => Ok(false),
        _ => Err(Error::Invalid(format!("{name} = \"{value}\": expected on or off"))),
    }
}

fn size(name: &str, value: &str) -> Result<u64> {
    let text = value.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "kb" => 10,
        "mb" => 20,
        "gb" => 30,
        _ => 64,
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(1u64.checked_shl(shift)?))
        .ok_or_else(|| Error::Invalid(format!("{name} = \"{value}\": expected a size, such as 64MB")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_of_the_first_levels_may_be_larger() {
        let bits = |filter_bits, step| {
            let options = RunOptions { filter_bits, ..RunOptions::default() };
            [0, 1, 2, 3, 9].map(|level| options.at_level(level, step).filter_bits)
        };
        assert_eq!(bits(10, 3), [19, 16, 13, 10, 10]);
        assert_eq!(bits(10, 0), [10; 5]);
        assert_eq!(bits(25, 3), [30, 30, 28, 25, 25], "none is larger than the largest that can be asked for");
        assert_eq!(bits(0, 3), [0; 5], "no filter");
    }

    #[test]
    fn compressed_runs_have_key_pages_if_told_so() {
        let has = |key_pages, compression| {
            let all = [("key_pages", key_pages), ("compression", compression)];
            TreeOptions::parse(all).unwrap().run.has_key_pages()
        };
        assert_eq!(["auto", "on", "off"].map(|key_pages| has(key_pages, "none")), [true, true, false]);
        assert_eq!(["auto", "on", "off"].map(|key_pages| has(key_pages, "zstd")), [false, true, false]);
    }

    #[test]
    fn defaults_are_valid_and_every_name_is_known() {
        TreeOptions::default().validate().unwrap();
        for name in TreeOptions::NAMES {
            let value = if name == "compression" { "zstd" } else { "1" };
            TreeOptions::default().set(name, value).unwrap();
            assert!(TreeOptions::default().set(name, "many").is_err(), "{name}");
        }
    }

    #[test]
    fn parses() {
        let options =
            TreeOptions::parse([("compression", "zstd:3"), ("memtable_bytes", "8 MB"), ("key_pages", "off")]).unwrap();
        assert_eq!(options.run.compression, Compression::Zstd(3));
        assert_eq!(options.memtable_bytes, 8 << 20);
        assert_eq!(options.run.key_pages, KeyPages::Off);
        assert_eq!(options.run.compression.to_string().parse::<Compression>().unwrap(), Compression::Zstd(3));
    }

    #[test]
    fn says_what_is_wrong() {
        let message = |name, value| TreeOptions::parse([(name, value)]).unwrap_err().to_string();
        assert_eq!(message("fan_in", "1"), "invalid: fan_in = 1 is out of range (2 to 64)");
        assert!(message("fan_out", "1").starts_with("invalid: unknown option \"fan_out\" (known: compression, "));
        assert_eq!(
            message("memtable_bytes", "64 XB"),
            "invalid: memtable_bytes = \"64 XB\": expected a size, such as 64MB"
        );
        assert!(message("compression", "lz4").contains("expected none, zstd or zstd:LEVEL"));
        assert!(message("compression", "zstd:40").contains("out of range"));
        assert!(message("key_pages", "some").contains("expected auto, on or off"));
        assert!(message("memtable_bytes", "99999999999999999999").contains("expected a size"));
    }
}
