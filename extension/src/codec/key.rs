//! A row's key as one string of bytes that compares (memcmp, shorter first) as btree compares the key columns.
//!
//! The columns' encodings follow each other in index order; [`super::column`] lists them. A table without a primary key is
//! keyed by row id: eight bytes, big endian.

use super::bytes::{self, Reader};
use super::column::Kind;
use super::datum::Arena;
use super::{KeyError, Unsupported};
use loosekv_engine::types::RowId;
pub use loosekv_engine::types::MAX_KEY;
use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, Oid};

const SPEC_FORMAT: u8 = 1;

/// A column of the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyColumn {
    /// Attribute number in the table, from 1.
    pub attno: i16,
    pub kind: Kind,
    /// The encoding compares as the index's operator class does, not merely equal where that does.
    pub ordered: bool,
    /// Type that the index's operators take on the left.
    pub input_type: Oid,
    pub collation: Oid,
}

/// How the keys of one table are encoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyCodec {
    columns: Vec<KeyColumn>,
    room: usize,
}

impl KeyCodec {
    /// The key of a table that has no primary key.
    pub fn row_id() -> KeyCodec {
        KeyCodec { columns: Vec::new(), room: 0 }
    }

    /// The key that this index (a primary key, complete or just being created) gives to its table.
    ///
    /// # Safety
    /// `index` is an open index.
    pub unsafe fn for_index(index: pg_sys::Relation) -> Result<KeyCodec, Unsupported> {
        // SAFETY: an open index has all of these, one for each of its key columns.
        unsafe {
            let form = (*index).rd_index;
            let count = usize::try_from((*form).indnkeyatts).unwrap_or(0);
            let attnos = (*form).indkey.values.as_slice(count);
            let desc = (*index).rd_att;
            let attributes = (*desc).attrs.as_slice(count);
            let mut columns = Vec::with_capacity(count);
            for (i, (&attno, attribute)) in attnos.iter().zip(attributes).enumerate() {
                if attno <= 0 {
                    return Err(Unsupported::new(
                        "expressions are not supported in primary keys of loosekv tables",
                        "Use a generated column.",
                    ));
                }
                if *(*index).rd_indoption.add(i) != 0 {
                    return Err(Unsupported::new(
                        "DESC and NULLS FIRST are not supported in primary keys of loosekv tables",
                        "Keys are stored in ascending order; they are read backwards as fast.",
                    ));
                }
                let input_type = *(*index).rd_opcintype.add(i);
                let collation = *(*index).rd_indcollation.add(i);
                let family = *(*index).rd_opfamily.add(i);
                let (kind, ordered) = Kind::for_type(attribute.atttypid, family, input_type, collation)?;
                columns.push(KeyColumn { attno, kind, ordered, input_type, collation });
            }
            Ok(KeyCodec::new(columns))
        }
    }

    fn new(columns: Vec<KeyColumn>) -> KeyCodec {
        let room = columns.iter().map(|c| c.kind.room()).sum();
        KeyCodec { columns, room }
    }

    pub fn is_row_id(&self) -> bool {
        self.columns.is_empty()
    }

    pub fn columns(&self) -> &[KeyColumn] {
        &self.columns
    }

    /// So many leading columns come in the order of the index's operator classes. Row-id keys: none.
    pub fn ordered_columns(&self) -> usize {
        self.columns.iter().take_while(|c| c.ordered).count()
    }

    /// Keys come in the order of the index: the planner may take it for granted, and push ranges down.
    pub fn is_ordered(&self) -> bool {
        self.ordered_columns() == self.columns.len()
    }

    /// Whether the body of a row leaves out this attribute (from 1), because the key gives it back.
    pub fn gives_back(&self, attno: i16) -> bool {
        self.columns.iter().any(|c| c.attno == attno && c.kind.is_lossless())
    }

    /// The key of a row id.
    pub fn put_row_id(row: RowId, out: &mut Vec<u8>) {
        out.extend_from_slice(&row.0.to_be_bytes());
    }

    /// Appends the key of these values, which are in index order.
    ///
    /// # Safety
    /// The values are valid and of the types of the index's columns.
    pub unsafe fn encode(&self, values: &[Datum], nulls: &[bool], out: &mut Vec<u8>) -> Result<(), KeyError> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.encode_picked(self.columns.len(), out, |i, _| (values[i], nulls[i])) }
    }

    /// Appends the key of a row, given by its attributes in the table's order.
    ///
    /// # Safety
    /// The values are valid and of the types of the table's columns.
    pub unsafe fn encode_row(&self, values: &[Datum], nulls: &[bool], out: &mut Vec<u8>) -> Result<(), KeyError> {
        let at = |column: &KeyColumn| column.attno as usize - 1;
        // SAFETY: the caller's promise is passed on.
        unsafe { self.encode_picked(self.columns.len(), out, |_, c| (values[at(c)], nulls[at(c)])) }
    }

    /// Appends what the keys that begin with these values begin with. All columns: the key itself.
    ///
    /// # Safety
    /// The values are valid and of the types of the index's first columns.
    pub unsafe fn encode_prefix(&self, values: &[Datum], out: &mut Vec<u8>) -> Result<(), KeyError> {
        debug_assert!(values.len() <= self.columns.len());
        // SAFETY: the caller's promise is passed on.
        unsafe { self.encode_picked(values.len(), out, |i, _| (values[i], false)) }
    }

    unsafe fn encode_picked(
        &self,
        count: usize,
        out: &mut Vec<u8>,
        pick: impl Fn(usize, &KeyColumn) -> (Datum, bool),
    ) -> Result<(), KeyError> {
        let from = out.len();
        for (i, column) in self.columns.iter().enumerate().take(count) {
            let (value, null) = pick(i, column);
            if null {
                return Err(KeyError::Null { column: i + 1 });
            }
            // SAFETY: the value is of the column's type.
            unsafe { column.kind.put(out, value, self.is_last(i)) };
        }
        match out.len() - from {
            bytes if bytes > MAX_KEY => Err(KeyError::TooLong { bytes }),
            _ => Ok(()),
        }
    }

    /// Whether nothing follows this column (from 0), so that its encoding needs no end.
    pub fn is_last(&self, column: usize) -> bool {
        column + 1 == self.columns.len()
    }

    /// Most bytes that [`KeyCodec::decode`] needs for the values of a key of this length.
    pub fn room(&self, key: usize) -> usize {
        if self.room == 0 {
            0
        } else {
            key + self.room
        }
    }

    /// Gives the values that the key holds to the bit to `take`, with their attribute numbers. False: it is no such key.
    ///
    /// Some values stay in `key`, which must not move while they are used.
    #[inline]
    pub fn decode(&self, key: &[u8], arena: &mut Arena, mut take: impl FnMut(i16, Datum)) -> bool {
        let mut reader = Reader::new(key);
        for (i, column) in self.columns.iter().enumerate() {
            let last = self.is_last(i);
            let read = if column.kind.is_lossless() {
                column.kind.get(&mut reader, last, arena).map(|value| take(column.attno, value))
            } else if last {
                return true;
            } else {
                column.kind.skip(&mut reader, last)
            };
            if read.is_none() {
                return false;
            }
        }
        self.is_row_id() || reader.is_empty()
    }

    /// The value of one column (from 0) of a key; `None` for a column that the key does not give back.
    pub fn decode_column(&self, column: usize, key: &[u8], arena: &mut Arena) -> Option<Datum> {
        let mut reader = Reader::new(key);
        for (i, before) in self.columns.iter().enumerate().take(column) {
            before.kind.skip(&mut reader, self.is_last(i))?;
        }
        let wanted = self.columns.get(column)?;
        wanted.kind.is_lossless().then(|| wanted.kind.get(&mut reader, self.is_last(column), arena))?
    }

    /// The definition as bytes: what must be known to read the rows of a table whatever has become of its index.
    ///
    /// ```text
    /// | format | count | for each column: attno, ordered, input type, collation, kind |
    /// ```
    pub fn spec(&self) -> Vec<u8> {
        let mut out = vec![SPEC_FORMAT, self.columns.len() as u8];
        for column in &self.columns {
            bytes::put_i16(&mut out, column.attno);
            out.push(u8::from(column.ordered));
            out.extend_from_slice(&u32::from(column.input_type).to_be_bytes());
            out.extend_from_slice(&u32::from(column.collation).to_be_bytes());
            column.kind.put_spec(&mut out);
        }
        out
    }

    /// Reads what [`KeyCodec::spec`] wrote. `None`: these bytes are no key definition known here.
    pub fn from_spec(spec: &[u8]) -> Option<KeyCodec> {
        let mut reader = Reader::new(spec);
        if reader.byte()? != SPEC_FORMAT {
            return None;
        }
        let count = usize::from(reader.byte()?);
        let mut columns = Vec::with_capacity(count);
        for _ in 0..count {
            columns.push(KeyColumn {
                attno: reader.i16().filter(|attno| *attno > 0)?,
                ordered: reader.byte()? != 0,
                input_type: Oid::from(reader.u32()?),
                collation: Oid::from(reader.u32()?),
                kind: Kind::get_spec(&mut reader, 1)?,
            });
        }
        reader.is_empty().then(|| KeyCodec::new(columns))
    }

    /// Whether keys and bodies written under the other definition read the same under this one.
    pub fn same_format(&self, other: &KeyCodec) -> bool {
        let same = |(a, b): (&KeyColumn, &KeyColumn)| a.attno == b.attno && a.kind == b.kind;
        self.columns.len() == other.columns.len() && self.columns.iter().zip(&other.columns).all(same)
    }
}
