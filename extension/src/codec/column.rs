//! One column of a key: which encoding its type has, and datums to bytes and back.
//!
//! ```text
//! types                                             encoding                     given back   order
//! int2 int4 int8 date time timestamp[tz] money      signed                       yes          yes
//! oid bool "char" pg_lsn xid8                       unsigned                     yes          yes
//! uuid macaddr macaddr8 tid timetz inet cidr        as many bytes as they have   yes          yes
//! bytea, bit varbit                                 bytes [and length in bits]   yes          yes
//! text varchar name                                 text                         yes          C collations
//! char(n)                                           text without its blanks      no           C collations
//! float4 float8 numeric interval                    see there                    no           yes
//! enums                                             oid of the label             yes          no
//! arrays of these                                   see `put_array`              no           as the elements
//! ```

use super::bytes::{self, Reader};
use super::datum::{by_value, fixed, Arena, Flat};
use super::{collation, network, numeric, temporal, Unsupported};
use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, Oid};

/// An encoding. Its tag is part of the format: see [`Kind::put_spec`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Two, four or eight bytes.
    Signed(u8),
    /// One, four or eight bytes.
    Unsigned(u8),
    Float4,
    Float8,
    Numeric,
    Interval,
    TimeTz,
    Uuid,
    /// So many bytes by reference, aligned to four.
    Fixed(u8),
    Tid,
    Inet,
    Bytea,
    Bit,
    Text,
    Name,
    BpChar,
    Array(Box<Element>),
}

/// The elements of an array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Element {
    pub kind: Kind,
    type_id: Oid,
    len: i16,
    by_value: bool,
    align: i8,
}

impl Kind {
    /// The encoding for a column of this type under this operator family, and whether it keeps the family's order.
    pub fn for_type(type_id: Oid, family: Oid, input_type: Oid, collation: Oid) -> Result<(Kind, bool), Unsupported> {
        if u32::from(family) >= pg_sys::FirstNormalObjectId {
            return Err(refused(type_id));
        }
        let by_bytes = |kind| {
            if family == pg_sys::TEXT_PATTERN_BTREE_FAM_OID || family == pg_sys::BPCHAR_PATTERN_BTREE_FAM_OID {
                return Ok((kind, true));
            }
            Ok((kind, collation::orders_by_bytes(collation)?))
        };
        let kind = match input_type {
            pg_sys::INT2OID => Kind::Signed(2),
            pg_sys::INT4OID | pg_sys::DATEOID => Kind::Signed(4),
            pg_sys::INT8OID | pg_sys::TIMEOID | pg_sys::TIMESTAMPOID | pg_sys::TIMESTAMPTZOID | pg_sys::MONEYOID => {
                Kind::Signed(8)
            }
            pg_sys::BOOLOID | pg_sys::CHAROID => Kind::Unsigned(1),
            pg_sys::OIDOID => Kind::Unsigned(4),
            pg_sys::PG_LSNOID | pg_sys::XID8OID => Kind::Unsigned(8),
            pg_sys::FLOAT4OID => Kind::Float4,
            pg_sys::FLOAT8OID => Kind::Float8,
            pg_sys::NUMERICOID => Kind::Numeric,
            pg_sys::INTERVALOID => Kind::Interval,
            pg_sys::TIMETZOID => Kind::TimeTz,
            pg_sys::UUIDOID => Kind::Uuid,
            pg_sys::MACADDROID => Kind::Fixed(6),
            pg_sys::MACADDR8OID => Kind::Fixed(8),
            pg_sys::TIDOID => Kind::Tid,
            pg_sys::INETOID => Kind::Inet,
            pg_sys::BYTEAOID => Kind::Bytea,
            pg_sys::BITOID | pg_sys::VARBITOID => Kind::Bit,
            pg_sys::TEXTOID => return by_bytes(Kind::Text),
            pg_sys::NAMEOID => return by_bytes(Kind::Name),
            pg_sys::BPCHAROID => return by_bytes(Kind::BpChar),
            pg_sys::ANYENUMOID => return Ok((Kind::Unsigned(4), false)),
            pg_sys::ANYARRAYOID => return Kind::for_array(type_id, collation),
            _ => return Err(refused(type_id)),
        };
        Ok((kind, true))
    }

    fn for_array(type_id: Oid, collation: Oid) -> Result<(Kind, bool), Unsupported> {
        // SAFETY: look-ups in PostgreSQL's caches; the cache entry stands for the life of the backend.
        unsafe {
            let element = pg_sys::get_element_type(pg_sys::getBaseType(type_id));
            if element == pg_sys::InvalidOid {
                return Err(refused(type_id));
            }
            let cache = pg_sys::lookup_type_cache(element, pg_sys::TYPECACHE_BTREE_OPFAMILY as i32);
            let (kind, ordered) = Kind::for_type(element, (*cache).btree_opf, (*cache).btree_opintype, collation)?;
            let (mut len, mut by_value, mut align) = (0, false, 0);
            pg_sys::get_typlenbyvalalign(element, &mut len, &mut by_value, &mut align);
            Ok((Kind::Array(Box::new(Element { kind, type_id: element, len, by_value, align })), ordered))
        }
    }

    /// Appends the kind as part of a key's definition: a tag, then what the tag needs.
    pub fn put_spec(&self, out: &mut Vec<u8>) {
        match self {
            Kind::Signed(width) => out.extend_from_slice(&[1, *width]),
            Kind::Unsigned(width) => out.extend_from_slice(&[2, *width]),
            Kind::Float4 => out.push(3),
            Kind::Float8 => out.push(4),
            Kind::Numeric => out.push(5),
            Kind::Interval => out.push(6),
            Kind::TimeTz => out.push(7),
            Kind::Uuid => out.push(8),
            Kind::Fixed(len) => out.extend_from_slice(&[9, *len]),
            Kind::Tid => out.push(10),
            Kind::Inet => out.push(11),
            Kind::Bytea => out.push(12),
            Kind::Bit => out.push(13),
            Kind::Text => out.push(14),
            Kind::Name => out.push(15),
            Kind::BpChar => out.push(16),
            Kind::Array(element) => {
                out.push(17);
                out.extend_from_slice(&u32::from(element.type_id).to_be_bytes());
                out.extend_from_slice(&element.len.to_be_bytes());
                out.extend_from_slice(&[u8::from(element.by_value), element.align as u8]);
                element.kind.put_spec(out);
            }
        }
    }

    /// Reads what [`Kind::put_spec`] wrote. `depth` bounds how deep arrays nest (PostgreSQL has no arrays of arrays).
    pub fn get_spec(spec: &mut Reader<'_>, depth: u8) -> Option<Kind> {
        Some(match spec.byte()? {
            1 => Kind::Signed(spec.byte().filter(|w| [2, 4, 8].contains(w))?),
            2 => Kind::Unsigned(spec.byte().filter(|w| [1, 4, 8].contains(w))?),
            3 => Kind::Float4,
            4 => Kind::Float8,
            5 => Kind::Numeric,
            6 => Kind::Interval,
            7 => Kind::TimeTz,
            8 => Kind::Uuid,
            9 => Kind::Fixed(spec.byte().filter(|len| [6, 8].contains(len))?),
            10 => Kind::Tid,
            11 => Kind::Inet,
            12 => Kind::Bytea,
            13 => Kind::Bit,
            14 => Kind::Text,
            15 => Kind::Name,
            16 => Kind::BpChar,
            17 if depth > 0 => {
                let type_id = Oid::from(spec.u32()?);
                let len = spec.u16()? as i16;
                let by_value = spec.byte()? != 0;
                let align = spec.byte()? as i8;
                let kind = Kind::get_spec(spec, depth - 1)?;
                Kind::Array(Box::new(Element { kind, type_id, len, by_value, align }))
            }
            _ => return None,
        })
    }

    /// Whether the key gives back the value to the bit, so that the row need not keep it.
    pub fn is_lossless(&self) -> bool {
        !matches!(self, Kind::Float4 | Kind::Float8 | Kind::Numeric | Kind::Interval | Kind::BpChar | Kind::Array(_))
    }

    /// Most bytes that a value given back takes up beyond those it has in the key.
    pub fn room(&self) -> usize {
        match self {
            Kind::Name => pg_sys::NAMEDATALEN as usize,
            Kind::Bytea | Kind::Bit | Kind::Text | Kind::Inet | Kind::TimeTz | Kind::Fixed(_) | Kind::Tid => 16,
            _ => 0,
        }
    }

    /// Appends a value. `last`: nothing follows, so a byte string needs no end.
    ///
    /// # Safety
    /// `value` is a valid value of the type that the kind was made for.
    pub unsafe fn put(&self, out: &mut Vec<u8>, value: Datum, last: bool) {
        let raw = value.value();
        // SAFETY (whole match): the value is of the type, so it has the length and the form that the kind says.
        unsafe {
            match self {
                Kind::Signed(2) => bytes::put_i16(out, raw as i16),
                Kind::Signed(4) => bytes::put_i32(out, raw as i32),
                Kind::Signed(_) => bytes::put_i64(out, raw as i64),
                Kind::Unsigned(1) => out.push(raw as u8),
                Kind::Unsigned(4) => out.extend_from_slice(&(raw as u32).to_be_bytes()),
                Kind::Unsigned(_) => out.extend_from_slice(&(raw as u64).to_be_bytes()),
                Kind::Float4 => bytes::put_f32(out, f32::from_bits(raw as u32)),
                Kind::Float8 => bytes::put_f64(out, f64::from_bits(raw as u64)),
                Kind::Uuid => out.extend_from_slice(&fixed::<16>(value)),
                Kind::Fixed(6) => out.extend_from_slice(&fixed::<6>(value)),
                Kind::Fixed(_) => out.extend_from_slice(&fixed::<8>(value)),
                Kind::Interval => {
                    let interval = value.cast_mut_ptr::<pg_sys::Interval>().read_unaligned();
                    temporal::put_interval(out, interval.time, interval.day, interval.month);
                }
                Kind::TimeTz => {
                    let [time @ .., a, b, c, d] = fixed::<12>(value);
                    temporal::put_timetz(out, i64::from_ne_bytes(time), i32::from_ne_bytes([a, b, c, d]));
                }
                Kind::Tid => {
                    let [hi0, hi1, lo0, lo1, off0, off1] = fixed::<6>(value);
                    for half in [[hi0, hi1], [lo0, lo1], [off0, off1]] {
                        out.extend_from_slice(&u16::from_ne_bytes(half).to_be_bytes());
                    }
                }
                Kind::Name => put_string(out, name_bytes(value), last),
                _ => self.put_varlena(out, Flat::new(value).bytes(), last, value),
            }
        }
    }

    /// # Safety
    /// As [`Kind::put`]; `contents` are the bytes of `value`.
    unsafe fn put_varlena(&self, out: &mut Vec<u8>, contents: &[u8], last: bool, value: Datum) {
        match self {
            Kind::Text => put_string(out, contents, last),
            Kind::BpChar => {
                let end = contents.iter().rposition(|b| *b != b' ').map_or(0, |at| at + 1);
                put_string(out, contents.get(..end).unwrap_or(contents), last);
            }
            Kind::Bytea if last => bytes::put_last(out, contents),
            Kind::Bytea => bytes::put_bytes(out, contents),
            Kind::Bit => {
                let (bits, contents) = contents.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
                bytes::put_bytes(out, contents);
                bytes::put_i32(out, i32::from_ne_bytes(*bits));
            }
            Kind::Numeric => check(numeric::put_numeric(out, contents), "numeric"),
            Kind::Inet => check(network::put_inet(out, contents), "inet"),
            // SAFETY: the value is an array of these elements.
            Kind::Array(element) => unsafe { put_array(out, element, value) },
            _ => unreachable!("{self:?} has a fixed length"),
        }
    }

    /// Goes past one value in a key. `last` as it was written.
    pub fn skip(&self, key: &mut Reader<'_>, last: bool) -> Option<()> {
        match self {
            Kind::Signed(width) | Kind::Unsigned(width) | Kind::Fixed(width) => key.take(usize::from(*width)),
            Kind::Float4 => key.take(4),
            Kind::Float8 => key.take(8),
            Kind::Interval => key.take(temporal::INTERVAL_BYTES),
            Kind::TimeTz => key.take(12),
            Kind::Uuid => key.take(16),
            Kind::Tid => key.take(6),
            Kind::Numeric => key.skip_by(numeric::encoded_len),
            Kind::Inet => key.skip_by(network::encoded_len),
            Kind::Text | Kind::Name | Kind::BpChar | Kind::Bytea if last => key.last(),
            Kind::Text | Kind::Name | Kind::BpChar => key.text(),
            Kind::Bytea => key.escaped(),
            Kind::Bit => key.escaped().and_then(|_| key.take(4)),
            Kind::Array(element) => return skip_array(key, element),
        }
        .map(|_| ())
    }

    /// Reads one value from a key; `None` if the bytes are no such key. A uuid is not copied: the key must stay where it is
    /// as long as the value is used.
    ///
    /// To be asked of lossless kinds only.
    pub fn get(&self, key: &mut Reader<'_>, last: bool, arena: &mut Arena) -> Option<Datum> {
        Some(match self {
            Kind::Signed(2) => by_value(i64::from(key.i16()?)),
            Kind::Signed(4) => by_value(i64::from(key.i32()?)),
            Kind::Signed(_) => by_value(key.i64()?),
            Kind::Unsigned(1) => by_value(i64::from(key.byte()? as i8)),
            Kind::Unsigned(4) => by_value(i64::from(key.u32()? as i32)),
            Kind::Unsigned(_) => by_value(key.u64()? as i64),
            Kind::Uuid => Datum::from(key.take(16)?.as_ptr() as usize),
            Kind::Fixed(len) => {
                let bytes = key.take(usize::from(*len))?;
                arena.put(bytes.len(), 4, |room| room.copy_from_slice(bytes))?
            }
            Kind::Tid => {
                let halves = [key.u16()?, key.u16()?, key.u16()?].map(u16::to_ne_bytes);
                arena.put(6, 2, |room| room.copy_from_slice(halves.as_flattened()))?
            }
            Kind::TimeTz => {
                let (time, zone) = temporal::get_timetz(key)?;
                arena.put(12, 8, |room| {
                    if let Some((head, tail)) = room.split_first_chunk_mut::<8>() {
                        *head = time.to_ne_bytes();
                        tail.copy_from_slice(&zone.to_ne_bytes());
                    }
                })?
            }
            Kind::Inet => {
                let (family, bits, address) = network::get_inet(key)?;
                arena.put_varlena(2 + address.len(), |room| {
                    if let Some((head, tail)) = room.split_first_chunk_mut::<2>() {
                        *head = [family, bits];
                        tail.copy_from_slice(address);
                    }
                })?
            }
            Kind::Text | Kind::Bytea if last => put_back(arena, key.last()?)?,
            Kind::Text => put_back(arena, key.text()?)?,
            Kind::Bytea => {
                let escaped = key.escaped()?;
                arena.put_varlena(bytes::unescaped_len(escaped), |room| bytes::unescape(escaped, room))?
            }
            Kind::Bit => {
                let escaped = key.escaped()?;
                let bits = key.i32()?;
                arena.put_varlena(4 + bytes::unescaped_len(escaped), |room| {
                    if let Some((head, tail)) = room.split_first_chunk_mut::<4>() {
                        *head = bits.to_ne_bytes();
                        bytes::unescape(escaped, tail);
                    }
                })?
            }
            Kind::Name => {
                let name = if last { key.last()? } else { key.text()? };
                let size = pg_sys::NAMEDATALEN as usize;
                if name.len() >= size {
                    return None;
                }
                arena.put(size, 1, |room| {
                    let (head, tail) = room.split_at_mut(name.len());
                    head.copy_from_slice(name);
                    tail.fill(0);
                })?
            }
            _ => return None,
        })
    }
}

fn put_string(out: &mut Vec<u8>, contents: &[u8], last: bool) {
    if last {
        bytes::put_last(out, contents);
    } else {
        bytes::put_text(out, contents);
    }
}

fn put_back(arena: &mut Arena, contents: &[u8]) -> Option<Datum> {
    arena.put_varlena(contents.len(), |room| room.copy_from_slice(contents))
}

/// # Safety
/// `value` is a `name`.
pub unsafe fn name_bytes<'a>(value: Datum) -> &'a [u8] {
    // SAFETY: a name has so many bytes, and is filled up with zeros.
    let name = unsafe { std::slice::from_raw_parts(value.cast_mut_ptr::<u8>(), pg_sys::NAMEDATALEN as usize) };
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    name.get(..end).unwrap_or(name)
}

fn check(good: bool, type_name: &str) {
    if !good {
        pgrx::error!("malformed {type_name} value in a key column");
    }
}

/// Elements, each led by 01 (02: a null, which is above all values), then 00, then the shape: number of dimensions,
/// their sizes, their lower bounds. So a shorter array is below a longer one that begins like it, and the shape decides last.
///
/// # Safety
/// `value` is an array of these elements.
unsafe fn put_array(out: &mut Vec<u8>, element: &Element, value: Datum) {
    // SAFETY: the array is valid; PostgreSQL takes it apart and tells how many elements there are.
    unsafe {
        let array: *mut pg_sys::ArrayType = pg_sys::pg_detoast_datum(value.cast_mut_ptr()).cast();
        let (mut values, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        let Element { type_id, len, by_value, align, .. } = *element;
        pg_sys::deconstruct_array(array, type_id, len.into(), by_value, align, &mut values, &mut nulls, &mut count);
        for i in 0..count as usize {
            if *nulls.add(i) {
                out.push(2);
            } else {
                out.push(1);
                element.kind.put(out, *values.add(i), false);
            }
        }
        out.push(0);
        let dimensions = (*array).ndim as usize;
        out.push(dimensions as u8);
        // The header is followed by the sizes, then by the lower bounds.
        let shape: *const i32 = array.add(1).cast();
        for i in 0..2 * dimensions {
            bytes::put_i32(out, *shape.add(i));
        }
        if count > 0 {
            pg_sys::pfree(values.cast());
            pg_sys::pfree(nulls.cast());
        }
        if !std::ptr::eq(array.cast(), value.cast_mut_ptr::<pg_sys::ArrayType>()) {
            pg_sys::pfree(array.cast());
        }
    }
}

fn skip_array(key: &mut Reader<'_>, element: &Element) -> Option<()> {
    loop {
        match key.byte()? {
            0 => break,
            1 => element.kind.skip(key, false)?,
            2 => (),
            _ => return None,
        }
    }
    let dimensions = usize::from(key.byte()?);
    key.take(8 * dimensions).map(|_| ())
}

fn refused(type_id: Oid) -> Unsupported {
    // SAFETY: gives a name to any type, known or not, in memory that is ours.
    let name = unsafe { std::ffi::CStr::from_ptr(pg_sys::format_type_be(type_id)) };
    Unsupported::new(
        format!("type {} is not supported for primary keys of loosekv tables", name.to_string_lossy()),
        "Use a key of another type, or a table without a primary key with a unique index on the column.",
    )
}
