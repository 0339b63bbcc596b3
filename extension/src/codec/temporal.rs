//! Memcomparable bytes of `interval` and `timetz`, and days against microseconds. Knows nothing of PostgreSQL.
//!
//! ```text
//! interval   the span as btree compares it (a month is 30 days, a day 24 hours) in microseconds: ten bytes, sign bit flipped.
//!            Many intervals have the same span, so the column stays in the row.
//! timetz     the instant in UTC (i64), then the zone (i32)
//! ```

use super::bytes::{put_i32, put_i64, Reader};

pub const MICROS_PER_DAY: i64 = 86_400_000_000;
const MICROS_PER_SECOND: i64 = 1_000_000;
pub const INTERVAL_BYTES: usize = 10;

pub fn put_interval(out: &mut Vec<u8>, time: i64, day: i32, month: i32) {
    let days = i128::from(month) * 30 + i128::from(day);
    let span = days * i128::from(MICROS_PER_DAY) + i128::from(time);
    // |days| < 2^36 and a day is less than 2^37 microseconds, so that ten bytes are enough.
    let biased = (span + (1 << 79)) as u128;
    debug_assert!(biased >> 80 == 0);
    out.extend(biased.to_be_bytes().iter().skip(16 - INTERVAL_BYTES));
}

pub fn put_timetz(out: &mut Vec<u8>, time: i64, zone: i32) {
    put_i64(out, time.wrapping_add(i64::from(zone) * MICROS_PER_SECOND));
    put_i32(out, zone);
}

/// Time and zone.
pub fn get_timetz(reader: &mut Reader<'_>) -> Option<(i64, i32)> {
    let instant = reader.i64()?;
    let zone = reader.i32()?;
    Some((instant.wrapping_sub(i64::from(zone) * MICROS_PER_SECOND), zone))
}

/// The day that a timestamp (microseconds from the epoch of the days) falls into, and whether it is its first moment.
pub fn day_of(timestamp: i64) -> (i64, bool) {
    (timestamp.div_euclid(MICROS_PER_DAY), timestamp.rem_euclid(MICROS_PER_DAY) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(time: i64, day: i32, month: i32) -> Vec<u8> {
        let mut out = Vec::new();
        put_interval(&mut out, time, day, month);
        assert_eq!(out.len(), INTERVAL_BYTES);
        out
    }

    #[test]
    fn intervals_compare_by_span() {
        let ascending = [
            interval(i64::MIN, i32::MIN, i32::MIN),
            interval(0, 0, i32::MIN),
            interval(0, -31, 0),
            interval(0, 0, -1),
            interval(-1, 0, 0),
            interval(0, 0, 0),
            interval(1, 0, 0),
            interval(MICROS_PER_DAY - 1, 0, 0),
            interval(0, 1, 0),
            interval(0, 0, 1),
            interval(1, 0, 1),
            interval(0, i32::MAX, 0),
            interval(i64::MAX, i32::MAX, i32::MAX),
        ];
        for pair in ascending.windows(2) {
            assert!(pair[0] < pair[1]);
        }
        assert_eq!(interval(0, 30, 0), interval(0, 0, 1));
        assert_eq!(interval(MICROS_PER_DAY, 0, 0), interval(0, 1, 0));
        assert_eq!(interval(-MICROS_PER_DAY, 31, -1), interval(0, 0, 0));
    }

    #[test]
    fn timetz_compares_by_instant_then_zone() {
        let encode = |time: i64, zone: i32| {
            let mut out = Vec::new();
            put_timetz(&mut out, time, zone);
            assert_eq!(get_timetz(&mut Reader::new(&out)), Some((time, zone)));
            out
        };
        let noon = 12 * 3600 * MICROS_PER_SECOND;
        let hour = 3600 * MICROS_PER_SECOND;
        assert!(encode(noon, -3600) < encode(noon, 0));
        assert!(encode(noon, -3600) > encode(noon - hour, -3600));
        assert!(encode(noon + hour, -3600) < encode(noon, 0));
        assert!(encode(0, 57_599) > encode(MICROS_PER_DAY, -57_599));
    }

    #[test]
    fn days_are_floored() {
        assert_eq!(day_of(0), (0, true));
        assert_eq!(day_of(-1), (-1, false));
        assert_eq!(day_of(-MICROS_PER_DAY), (-1, true));
        assert_eq!(day_of(MICROS_PER_DAY + 1), (1, false));
    }
}
