//! Options of single tables: `WITH (loosekv.compression = 'zstd')`.
//!
//! They stand in pg_class.reloptions beside PostgreSQL's own, under their full names: `{fillfactor=90,loosekv.fan_in=4}`.
//! So psql shows them, and pg_dump writes them as `WITH ("loosekv.fan_in"='4')`, which is taken, too. PostgreSQL ignores
//! what it does not know there when it reads, but not when it writes: see [`super::hooks::options`].

use crate::settings;
use loosekv_engine::error::{Error, Result};
use loosekv_engine::options::{Compression, TreeOptions};
use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, Oid};
use std::ffi::{CStr, CString};

/// What the names in pg_class begin with.
pub const PREFIX: &str = "loosekv.";

/// Names, without the prefix, and what they are.
pub const NAMES: [&str; 9] = [
    "compression",
    "compression_level",
    "memtable_size",
    "fan_in",
    "filter_bits",
    "key_pages",
    "value_log_threshold",
    "space_percent",
    "tombstone_percent",
];

/// An option with its value.
pub type Pair = (String, String);

/// The options of an open table: what it says itself, and the settings for the rest.
pub fn of(rel: pg_sys::Relation) -> TreeOptions {
    // SAFETY: the relation is open.
    let relid = unsafe { (*rel).rd_id };
    let own = super::hooks::options::pending_for(rel).unwrap_or_else(|| stored(relid));
    let mut options = settings::tree_options();
    for (name, value) in &own {
        // What cannot be taken was written by another version of this library.
        let _ = set(&mut options, name, value);
    }
    options.memtable_bytes = settings::limit_memtable(options.memtable_bytes);
    options
}

/// Sets one option by its name without the prefix; the result is checked.
pub fn set(options: &mut TreeOptions, name: &str, value: &str) -> Result<()> {
    let mut changed = options.clone();
    match name {
        "compression_level" => {
            let level: i32 = value.trim().parse().map_err(|_| invalid(name, value, "a number from 1 to 19"))?;
            if !(1..=19).contains(&level) {
                return Err(invalid(name, value, "a number from 1 to 19"));
            }
            if changed.run.compression != Compression::None {
                changed.run.compression = Compression::Zstd(level);
            }
        }
        "compression" => {
            // The level may come from elsewhere.
            let level = match options.run.compression {
                Compression::Zstd(level) => level,
                Compression::None => settings::compression_level(),
            };
            changed.set(name, value)?;
            if value.trim().eq_ignore_ascii_case("zstd") {
                changed.run.compression = Compression::Zstd(level);
            }
        }
        "memtable_size" => {
            changed.memtable_bytes = size(name, value, pg_sys::GUC_UNIT_KB)?.saturating_mul(1024);
            if !(64 << 10..=16 << 30).contains(&changed.memtable_bytes) {
                return Err(invalid(name, value, "a size from 64kB to 16GB"));
            }
            return take(options, changed, true);
        }
        "value_log_threshold" => changed.value_log_threshold = size(name, value, pg_sys::GUC_UNIT_BYTE)?,
        "fan_in" | "filter_bits" | "key_pages" | "space_percent" | "tombstone_percent" => changed.set(name, value)?,
        _ => {
            let known = NAMES.join(", ");
            return Err(Error::Invalid(format!("unrecognized option \"{name}\" (known: {known})")));
        }
    }
    take(options, changed, false)
}

fn take(options: &mut TreeOptions, changed: TreeOptions, large: bool) -> Result<()> {
    // The engine's own limit on memtables is for hosts without a memory of their own.
    let checked = if large { TreeOptions { memtable_bytes: 64 << 20, ..changed.clone() } } else { changed.clone() };
    TreeOptions { memtable_bytes: checked.memtable_bytes.clamp(64 << 10, 4 << 30), ..checked }.validate()?;
    *options = changed;
    Ok(())
}

fn invalid(name: &str, value: &str, expected: &str) -> Error {
    Error::Invalid(format!("{name} = \"{value}\": expected {expected}"))
}

/// A size as settings take it.
fn size(name: &str, value: &str, unit: u32) -> Result<u64> {
    let text = CString::new(value.trim()).map_err(|_| invalid(name, value, "a size, such as 64MB"))?;
    let (mut number, mut hint) = (0, std::ptr::null());
    // SAFETY: guarded; the text is a C string.
    let parsed = unsafe { pg_sys::parse_int(text.as_ptr(), &mut number, unit as i32, &mut hint) };
    u64::try_from(number).ok().filter(|_| parsed).ok_or_else(|| invalid(name, value, "a size, such as 64MB"))
}

/// What stands in pg_class of a relation under our prefix, without it.
pub fn stored(relid: Oid) -> Vec<Pair> {
    let (ours, _) = split(relid);
    ours
}

/// The relation's options: ours, without the prefix, and the others.
pub fn split(relid: Oid) -> (Vec<Pair>, Vec<Pair>) {
    // SAFETY: a syscache look-up; what is taken of the tuple is copied before it is released.
    let all = unsafe {
        let cache = pg_sys::SysCacheIdentifier::RELOID as i32;
        let tuple = pg_sys::SearchSysCache1(cache, Datum::from(relid));
        if tuple.is_null() {
            return (Vec::new(), Vec::new());
        }
        let mut is_null = false;
        let attribute = pg_sys::Anum_pg_class_reloptions as i16;
        let datum = pg_sys::SysCacheGetAttr(cache, tuple, attribute, &mut is_null);
        let all = if is_null { Vec::new() } else { pairs(pg_sys::untransformRelOptions(datum)) };
        pg_sys::ReleaseSysCache(tuple);
        all
    };
    let (ours, others): (Vec<Pair>, Vec<Pair>) = all.into_iter().partition(|(name, _)| name.starts_with(PREFIX));
    let plain = |(name, value): Pair| (name.trim_start_matches(PREFIX).to_owned(), value);
    (ours.into_iter().map(plain).collect(), others)
}

/// Names and values of a list of DefElems.
unsafe fn pairs(list: *mut pg_sys::List) -> Vec<Pair> {
    // SAFETY: a list of DefElems.
    unsafe {
        let elements = super::catalog::nodes::<pg_sys::DefElem>(list);
        elements.map(|element| (text((*element).defname), value_of(element))).collect()
    }
}

/// # Safety
/// A C string, or null.
pub unsafe fn text(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by the contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The value of an element as text; an option without one is on.
///
/// # Safety
/// An element from the parser or from pg_class.
pub unsafe fn value_of(element: *mut pg_sys::DefElem) -> String {
    // SAFETY: by the contract.
    unsafe {
        if (*element).arg.is_null() {
            return "true".to_owned();
        }
        text(pg_sys::defGetString(element))
    }
}

/// Writes the relation's options anew. The relation is locked against others who would change them.
pub fn store(relid: Oid, ours: &[Pair], others: &[Pair]) {
    let ours = ours.iter().map(|(name, value)| format!("{PREFIX}{name}={value}"));
    let others = others.iter().map(|(name, value)| format!("{name}={value}"));
    let all: Vec<String> = others.chain(ours).collect();
    // SAFETY: catalog code as PostgreSQL's own: copy, change, update; then the change is made visible to this command.
    unsafe {
        let catalog = pg_sys::table_open(pg_sys::RelationRelationId, pg_sys::RowExclusiveLock as i32);
        let cache = pg_sys::SysCacheIdentifier::RELOID as i32;
        let tuple = pg_sys::SearchSysCacheCopy(cache, Datum::from(relid), 0.into(), 0.into(), 0.into());
        if !tuple.is_null() {
            let mut column = [pg_sys::Anum_pg_class_reloptions as i32];
            let mut is_null = [all.is_empty()];
            let array = pgrx::IntoDatum::into_datum(all).filter(|_| !is_null[0]);
            let mut values = [array.unwrap_or(Datum::from(0))];
            let changed = pg_sys::heap_modify_tuple_by_cols(
                tuple,
                (*catalog).rd_att,
                1,
                column.as_mut_ptr(),
                values.as_mut_ptr(),
                is_null.as_mut_ptr(),
            );
            pg_sys::CatalogTupleUpdate(catalog, &mut (*tuple).t_self, changed);
        }
        pg_sys::table_close(catalog, pg_sys::RowExclusiveLock as i32);
        pg_sys::CommandCounterIncrement();
    }
}
