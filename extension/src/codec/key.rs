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

/// What is said of a key that is not checked at once.
pub fn deferrable() -> Unsupported {
    Unsupported::new(
        "DEFERRABLE primary keys are not supported on loosekv tables",
        "Declare the primary key without DEFERRABLE. Other unique constraints may be deferrable.",
    )
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
            if !(*form).indimmediate {
                return Err(deferrable());
            }
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

// What is written comes from PostgreSQL's values, which take a server to make; what is read back needs none.
#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn codec() -> KeyCodec {
        let column = |attno, kind, input_type: u32, collation: u32| KeyColumn {
            attno,
            kind,
            ordered: true,
            input_type: input_type.into(),
            collation: collation.into(),
        };
        KeyCodec::new(vec![
            column(1, Kind::Signed(4), 23, 0),
            column(3, Kind::Text, 25, 950),
            column(2, Kind::Bytea, 17, 0),
            column(5, Kind::Unsigned(8), 3220, 0),
            column(4, Kind::Text, 25, 950),
        ])
    }

    // Changing any of these bytes is a new format version.
    #[test]
    fn golden() {
        let key = b"\x7f\xff\xff\xfeab\0x\0\xffy\0\0\0\0\0\0\x01\x02\x03\x04end";
        let (codec, mut found, mut room) = (codec(), Vec::new(), vec![0u64; 16]);
        assert!(codec.room(key.len()) <= 8 * room.len());
        // SAFETY: nobody else looks at the room meanwhile.
        let mut arena = unsafe { Arena::new(room.as_mut_ptr().cast(), 8 * room.len()) };
        // SAFETY: a short value in the room: its length and that of its header, with the lowest bit set, and its bytes.
        let string = |value: Datum| unsafe {
            let start = value.cast_mut_ptr::<u8>();
            std::slice::from_raw_parts(start.add(1), usize::from(*start >> 1) - 1).to_vec()
        };
        assert!(codec.decode(key, &mut arena, |attno, value| found.push((attno, value))));
        let attnos: Vec<i16> = found.iter().map(|(attno, _)| *attno).collect();
        assert_eq!(attnos, [1, 3, 2, 5, 4]);
        assert_eq!((found[0].1.value() as i64, found[3].1.value()), (-2, 0x0102_0304));
        assert_eq!([1, 2, 4].map(|at| string(found[at].1)), [&b"ab"[..], b"x\0y", b"end"]);
        let mut key = Vec::new();
        KeyCodec::put_row_id(RowId(0x0102_0304), &mut key);
        assert_eq!(key, [0, 0, 0, 0, 1, 2, 3, 4]);
    }

    // As above.
    #[test]
    fn golden_definition() {
        let spec = codec().spec();
        let columns = [
            "8001 01 00000017 00000000 0104",
            "8003 01 00000019 000003b6 0e",
            "8002 01 00000011 00000000 0c",
            "8005 01 00000c94 00000000 0208",
            "8004 01 00000019 000003b6 0e",
        ];
        assert_eq!(hex(&spec), format!("0105{}", columns.concat().replace(' ', "")));
        assert_eq!(KeyCodec::from_spec(&spec), Some(codec()));
        assert_eq!(KeyCodec::from_spec(&[&[2], &spec[1..]].concat()), None, "of another format");
    }
}
