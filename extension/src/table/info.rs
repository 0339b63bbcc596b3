//! What the catalog says of a table, as far as rows are concerned: its key, its row layout, its other unique indexes.
//!
//! A table's file has the format that its primary key gives it: bodies leave out what the key holds. Outside of DDL the
//! catalog's primary key *is* the file's; a transaction that adds or drops one, or rewrites the table, is between the two
//! for a while. [`note_format`] says then how a file was written. What it says stays true as long as the file exists, so it
//! need not be undone when a transaction is rolled back.

use crate::codec::key::KeyCodec;
use crate::codec::TableCodec;
use crate::host::process_local::{later, Later, WithBorrow};
use crate::pg::catalog;
use pgrx::pg_sys;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

pub struct Info {
    pub codec: Rc<TableCodec>,
    /// File for which this was found out.
    file: u32,
    /// The index of ours that is the table's key.
    pub key_index: Option<pg_sys::Oid>,
    /// There are unique indexes, or exclusion constraints, beside the key.
    other_unique: bool,
    /// Attributes of other indexes which a foreign key may point to.
    pub other_key_attributes: Vec<i16>,
}

impl Info {
    /// Rows are stored under their primary key (and not under a number).
    pub fn is_keyed(&self) -> bool {
        !self.codec.key.is_row_id()
    }

    pub fn has_other_unique(&self) -> bool {
        self.other_unique
    }

    /// The same table, its rows written under another key.
    pub fn with_key(rel: pg_sys::Relation, key: KeyCodec) -> Rc<Info> {
        // SAFETY: the relation is open, so its descriptor is valid.
        let (codec, file) = unsafe { (TableCodec::new((*rel).rd_att, key), catalog::file_of(rel)) };
        Rc::new(Info {
            codec: Rc::new(codec),
            file,
            key_index: None,
            other_unique: false,
            other_key_attributes: Vec::new(),
        })
    }
}

/// Oids are the server's own numbers: who chooses names has no say in them, so any hash will do.
#[derive(Default)]
struct OidHasher(u64);

impl Hasher for OidHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, oid: u32) {
        self.0 = (self.0 ^ u64::from(oid)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

static KNOWN: Later<HashMap<u32, Rc<Info>, BuildHasherDefault<OidHasher>>> = later();
static FORMATS: Later<HashMap<u32, KeyCodec>> = later();

/// The table's info; `rel` is open.
pub fn of(rel: pg_sys::Relation) -> Rc<Info> {
    // SAFETY: the relation is open.
    let (oid, file) = unsafe { (u32::from((*rel).rd_id), catalog::file_of(rel)) };
    let known = KNOWN.with_borrow(|known| known.get(&oid).filter(|info| info.file == file).cloned());
    if let Some(info) = known {
        return info;
    }
    let info = Rc::new(find_out(rel, file));
    KNOWN.with_borrow_mut(|known| known.insert(oid, info.clone()));
    info
}

fn find_out(rel: pg_sys::Relation, file: u32) -> Info {
    let indexes = catalog::indexes_of(rel);
    let key = indexes.iter().find(|index| index.is_key);
    let noted = FORMATS.with_borrow(|formats| formats.get(&file).cloned());
    let key_codec = match (noted, key) {
        (Some(noted), _) => noted,
        (None, Some(key)) => catalog::key_codec(key.oid),
        (None, None) => KeyCodec::row_id(),
    };
    // SAFETY: the relation is open, so its descriptor is valid.
    let codec = unsafe { TableCodec::new((*rel).rd_att, key_codec) };
    let others = || indexes.iter().filter(|index| !index.is_key);
    let referable = others().filter(|index| index.is_referable);
    let mut other_key_attributes: Vec<i16> = referable.flat_map(|index| index.attributes.iter().copied()).collect();
    other_key_attributes.sort_unstable();
    other_key_attributes.dedup();
    Info {
        codec: Rc::new(codec),
        file,
        key_index: key.map(|key| key.oid),
        other_unique: others().any(|index| index.is_unique),
        other_key_attributes,
    }
}

/// The catalog has changed; `None`: all of it.
pub fn forget(relid: Option<pg_sys::Oid>) {
    KNOWN.with_borrow_mut(|known| match relid {
        Some(relid) => {
            known.remove(&u32::from(relid));
        }
        None => known.clear(),
    });
}

/// The rows of this file are written under this key, whatever the catalog says.
pub fn note_format(relid: pg_sys::Oid, file: u32, key: KeyCodec) {
    FORMATS.with_borrow_mut(|formats| formats.insert(file, key));
    forget(Some(relid));
}

/// How the rows of a file were written, if somebody noted it.
pub fn noted_format(file: u32) -> Option<KeyCodec> {
    FORMATS.with_borrow(|formats| formats.get(&file).cloned())
}

/// The transaction is over: from here on the catalog and the files agree again.
pub fn end_of_transaction() {
    let any = FORMATS.with_borrow_mut(|formats| !std::mem::take(formats).is_empty());
    if any {
        forget(None);
    }
}
