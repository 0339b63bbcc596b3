//! A constant of one type against a column of another, where btree's operator families compare across types.

use super::column::name_bytes;
use super::datum::{by_value, Flat};
use super::temporal::{day_of, MICROS_PER_DAY};
use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, Oid};

/// Where a constant stands among the values that the column can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// It equals this value of the column's type.
    At(Datum),
    /// It is above this value and below the next.
    Above(Datum),
    /// It is below all values.
    BelowAll,
    /// It is above all values.
    AboveAll,
    /// Not known here: the operator itself must decide.
    Unknown,
}

/// Places a constant of type `from` among the values of type `column`, which is what the index's operators take on the left.
///
/// # Safety
/// `value` is a valid value of type `from`.
pub unsafe fn place(column: Oid, from: Oid, value: Datum) -> Place {
    if from == column || from == pg_sys::InvalidOid {
        return Place::At(value);
    }
    // SAFETY (whole match): the value is of the type that the branch reads it as.
    unsafe {
        match (column, from) {
            (pg_sys::INT2OID | pg_sys::INT4OID | pg_sys::INT8OID, _) => integer(column, from, value),
            (pg_sys::FLOAT8OID, pg_sys::FLOAT4OID) => {
                Place::At(Datum::from(f64::from(f32::from_bits(value.value() as u32)).to_bits() as usize))
            }
            (pg_sys::FLOAT4OID, pg_sys::FLOAT8OID) => float4(f64::from_bits(value.value() as u64)),
            (pg_sys::DATEOID, pg_sys::TIMESTAMPOID) => date(value.value() as i64),
            (pg_sys::TIMESTAMPOID, pg_sys::DATEOID) => timestamp(value.value() as i32),
            (pg_sys::TIMESTAMPTZOID, pg_sys::DATEOID) => match timestamp(value.value() as i32) {
                Place::At(local) => zoned(local),
                _ => Place::Unknown,
            },
            (pg_sys::TIMESTAMPTZOID, pg_sys::TIMESTAMPOID) => zoned(value),
            (pg_sys::TEXTOID, pg_sys::NAMEOID) => {
                let name = name_bytes(value);
                Place::At(Datum::from(pg_sys::cstring_to_text_with_len(name.as_ptr().cast(), name.len() as i32)))
            }
            (pg_sys::NAMEOID, pg_sys::TEXTOID) => name(Flat::new(value).bytes()),
            _ => Place::Unknown,
        }
    }
}

fn integer(column: Oid, from: Oid, value: Datum) -> Place {
    let value = match from {
        pg_sys::INT2OID => i64::from(value.value() as i16),
        pg_sys::INT4OID => i64::from(value.value() as i32),
        pg_sys::INT8OID => value.value() as i64,
        _ => return Place::Unknown,
    };
    let (min, max) = match column {
        pg_sys::INT2OID => (i64::from(i16::MIN), i64::from(i16::MAX)),
        pg_sys::INT4OID => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (i64::MIN, i64::MAX),
    };
    if value < min {
        Place::BelowAll
    } else if value > max {
        Place::AboveAll
    } else {
        Place::At(by_value(value))
    }
}

fn float4(value: f64) -> Place {
    let datum = |v: f32| by_value(i64::from(v.to_bits() as i32));
    let near = value as f32;
    if value.is_nan() || f64::from(near) == value {
        return Place::At(datum(near));
    }
    Place::Above(datum(if f64::from(near) < value { near } else { near.next_down() }))
}

/// A timestamp among the dates. The infinities of both types are their outermost values, and equal.
fn date(timestamp: i64) -> Place {
    match timestamp {
        i64::MIN => Place::At(by_value(i64::from(i32::MIN))),
        i64::MAX => Place::At(by_value(i64::from(i32::MAX))),
        _ => match day_of(timestamp) {
            (day, true) => Place::At(by_value(day)),
            (day, false) => Place::Above(by_value(day)),
        },
    }
}

/// A date among the timestamps. Dates reach further; those out there are above every timestamp but infinity.
fn timestamp(date: i32) -> Place {
    const LAST_TIMESTAMP: i64 = 9_223_371_331_199_999_999;
    match date {
        i32::MIN => Place::At(by_value(i64::MIN)),
        i32::MAX => Place::At(by_value(i64::MAX)),
        _ => match i64::from(date).checked_mul(MICROS_PER_DAY) {
            Some(micros) if micros <= LAST_TIMESTAMP => Place::At(by_value(micros)),
            _ => Place::Above(by_value(LAST_TIMESTAMP)),
        },
    }
}

/// A timestamp without time zone, or a date as one, among those with one: as the session's time zone has it.
unsafe fn zoned(local: Datum) -> Place {
    const FAR: i64 = 250_000 * 365 * MICROS_PER_DAY;
    let micros = local.value() as i64;
    if micros == i64::MIN || micros == i64::MAX {
        return Place::At(local);
    }
    if !(-4700 * 365 * MICROS_PER_DAY..FAR).contains(&micros) {
        // Near the ends of the type the conversion may fail where the comparison does not.
        return Place::Unknown;
    }
    let convert = Oid::from(pg_sys::F_TIMESTAMPTZ_TIMESTAMP);
    // SAFETY: the function takes one timestamp.
    Place::At(unsafe { pg_sys::OidFunctionCall1Coll(convert, pg_sys::InvalidOid, local) })
}

/// A text among the names, which have at most 63 bytes: a longer text is above the name that it begins with.
unsafe fn name(text: &[u8]) -> Place {
    const SIZE: usize = pg_sys::NAMEDATALEN as usize;
    let kept = text.len().min(SIZE - 1);
    // SAFETY: fresh memory of that size, zeroed.
    let name = unsafe {
        let name: *mut u8 = pg_sys::palloc0(SIZE).cast();
        std::ptr::copy_nonoverlapping(text.as_ptr(), name, kept);
        Datum::from(name as usize)
    };
    if kept == text.len() {
        Place::At(name)
    } else {
        Place::Above(name)
    }
}
