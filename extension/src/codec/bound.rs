//! Scan keys as ranges of encoded keys.
//!
//! Leading columns with `=` or `= ANY` make prefixes (one for each combination, in key order); the first column after them
//! may bound each prefix from below and above; nothing behind it can. What the ranges do not decide for certain is left to be
//! rechecked: a range may contain keys that do not match, but every match is in a range.

use super::bytes::to_successor;
use super::convert::{place, Place};
use super::key::{KeyCodec, KeyColumn, MAX_KEY};
use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, ScanKeyData};
use std::ops::Bound;

/// At most so many prefixes are made by combining the lists of several columns; one list alone may be longer.
const MAX_COMBINED: usize = 16_384;

/// Most bounds need no more behind their prefix.
const BOUND_ROOM: usize = 16;

/// A range of encoded keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    pub lower: Bound<Vec<u8>>,
    pub upper: Bound<Vec<u8>>,
}

impl Range {
    /// The whole key, if the range is one key.
    pub fn point(&self) -> Option<&[u8]> {
        match (&self.lower, &self.upper) {
            (Bound::Included(a), Bound::Included(b)) if a == b => Some(a),
            _ => None,
        }
    }

    /// All keys are within.
    pub fn is_all(&self) -> bool {
        matches!((&self.lower, &self.upper), (Bound::Unbounded, Bound::Unbounded))
    }

    fn is_empty(&self) -> bool {
        match (&self.lower, &self.upper) {
            (Bound::Included(a), Bound::Included(b)) => a > b,
            (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => a >= b,
            _ => false,
        }
    }
}

/// What a set of scan keys asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Search {
    /// Disjoint, in ascending order; none: no row can match.
    pub ranges: Vec<Range>,
    /// For each scan key: the ranges decide it, it need not be rechecked.
    pub decided: Vec<bool>,
}

impl Search {
    /// Every row in the ranges matches.
    pub fn is_exact(&self) -> bool {
        self.decided.iter().all(|d| *d)
    }
}

/// What the scan keys say of one column, encoded.
#[derive(Default)]
struct Limits {
    /// Ascending, each once.
    equal: Option<Vec<Vec<u8>>>,
    /// A value, and whether it is within.
    lower: Option<(Vec<u8>, bool)>,
    upper: Option<(Vec<u8>, bool)>,
    /// No value can match.
    none: bool,
    /// Scan keys that `equal` decides, and that `lower` and `upper` do.
    by_equal: Vec<usize>,
    by_range: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Strategy {
    Less,
    LessEqual,
    Equal,
    GreaterEqual,
    Greater,
}

impl Strategy {
    fn from_number(number: u16) -> Option<Strategy> {
        use Strategy::*;
        [Less, LessEqual, Equal, GreaterEqual, Greater].get(usize::from(number).checked_sub(1)?).copied()
    }

    fn is_upper(self) -> bool {
        matches!(self, Strategy::Less | Strategy::LessEqual)
    }

    fn is_inclusive(self) -> bool {
        matches!(self, Strategy::LessEqual | Strategy::GreaterEqual)
    }
}

impl KeyCodec {
    /// The commonest search without its cost: `=` on each column, in order. True: all that is asked for is the key that was
    /// appended to `out`, and nothing need be rechecked. False: `out` is to be forgotten, ask [`KeyCodec::search`].
    ///
    /// # Safety
    /// As for [`KeyCodec::search`].
    pub unsafe fn search_point(&self, keys: &[ScanKeyData], out: &mut Vec<u8>) -> bool {
        if keys.len() != self.columns().len() || self.is_row_id() {
            return false;
        }
        let from = out.len();
        for (i, (key, column)) in keys.iter().zip(self.columns()).enumerate() {
            // SAFETY: the caller's promise is passed on.
            unsafe {
                let Some(value) = self.plain(key, i).filter(|_| is_equal(key)) else { return false };
                column.kind.put(out, value, self.is_last(i));
            }
        }
        out.len() - from <= MAX_KEY
    }

    /// The next commonest, if this is one: `=` on some of the first columns, in order, and then at most one bound on either side of the
    /// next. Nothing need be rechecked then; there may be nothing between the bounds.
    ///
    /// # Safety
    /// As for [`KeyCodec::search`].
    unsafe fn search_range(&self, keys: &[ScanKeyData]) -> Option<Range> {
        let equal = keys.iter().zip(0..).take_while(|(key, i)| is_equal(key) && key.sk_attno == i + 1).count();
        let (equal, bounds) = keys.split_at_checked(equal)?;
        let column = self.columns().get(equal.len()).filter(|column| column.ordered)?;
        let last = self.is_last(equal.len());
        let (mut prefix, mut lower, mut upper) = (Vec::new(), None, None);
        for (i, key) in equal.iter().enumerate() {
            // SAFETY: the caller's promise is passed on.
            unsafe { self.columns().get(i)?.kind.put(&mut prefix, self.plain(key, i)?, self.is_last(i)) };
        }
        for key in bounds {
            let strategy = Strategy::from_number(key.sk_strategy).filter(|_| !is_equal(key))?;
            let mut at = Vec::with_capacity(prefix.len() + BOUND_ROOM);
            at.extend_from_slice(&prefix);
            // SAFETY: the caller's promise is passed on.
            unsafe { column.kind.put(&mut at, self.plain(key, equal.len())?, last) };
            let (side, bound) = match strategy.is_upper() {
                true => (&mut upper, upper_bound(at, strategy.is_inclusive(), last)),
                false => (&mut lower, lower_bound(at, strategy.is_inclusive(), last)),
            };
            if side.replace(bound).is_some() {
                return None;
            }
        }
        let lower = lower.unwrap_or_else(|| from_prefix(&prefix));
        let upper = upper.unwrap_or_else(|| to_prefix(&prefix));
        Some(Range { lower, upper }.within_max_key())
    }

    /// The value that a scan key compares this column with, if that is one of the column's own type and order.
    ///
    /// # Safety
    /// As for [`KeyCodec::search`].
    unsafe fn plain(&self, key: &ScanKeyData, column: usize) -> Option<Datum> {
        let of = self.columns().get(column)?;
        let in_order = of.collation == pg_sys::InvalidOid || key.sk_collation == of.collation;
        if key.sk_flags != 0 || key.sk_attno as usize != column + 1 || !in_order {
            return None;
        }
        // SAFETY: the caller's promise is passed on.
        match unsafe { place(of.input_type, key.sk_subtype, key.sk_argument) } {
            Place::At(value) => Some(value),
            _ => None,
        }
    }

    /// Whether [`KeyCodec::search`] and [`KeyCodec::search_point`] take PostgreSQL's memory, but for a moment, for these scan keys.
    pub fn takes_memory(&self, keys: &[ScanKeyData]) -> bool {
        keys.iter().any(|key| {
            let apart = key.sk_flags as u32 & (pg_sys::SK_SEARCHARRAY | pg_sys::SK_ROW_HEADER) != 0;
            let column = usize::try_from(key.sk_attno).ok().and_then(|attno| self.columns().get(attno.checked_sub(1)?));
            let texts = matches!(key.sk_subtype, pg_sys::NAMEOID | pg_sys::TEXTOID);
            apart || (texts && column.is_some_and(|column| column.input_type != key.sk_subtype))
        })
    }

    /// What these scan keys (of the index that the codec was made for) ask for.
    ///
    /// # Safety
    /// The scan keys are as the executor makes them, and their arguments valid. Memory is taken from the current context.
    pub unsafe fn search(&self, keys: &[ScanKeyData]) -> Search {
        // SAFETY: the caller's promise is passed on.
        if let Some(range) = unsafe { self.search_range(keys) } {
            let ranges = if range.is_empty() { Vec::new() } else { vec![range] };
            return Search { ranges, decided: vec![true; keys.len()] };
        }
        let mut limits: Vec<Limits> = self.columns().iter().map(|_| Limits::default()).collect();
        let mut decided = vec![false; keys.len()];
        let mut impossible = false;
        for (i, key) in keys.iter().enumerate() {
            let flags = key.sk_flags as u32;
            if flags & pg_sys::SK_ROW_HEADER != 0 {
                continue;
            }
            if flags & pg_sys::SK_SEARCHNOTNULL != 0 {
                // Key columns have no nulls.
                decided[i] = true;
            } else if flags & pg_sys::SK_ISNULL != 0 {
                // IS NULL, or a strict operator with a null.
                impossible = true;
            } else if let Some((column, limits)) = column_of(self, &mut limits, key.sk_attno) {
                // SAFETY: the caller's promise is passed on.
                unsafe { limits.add(i, key, &self.columns()[column], self.is_last(column)) };
            }
        }
        if impossible || limits.iter().any(|l| l.none) {
            return Search { ranges: Vec::new(), decided: vec![true; keys.len()] };
        }
        let (prefixes, column) = combine(&mut limits, &mut decided);
        // SAFETY: the caller's promise is passed on.
        let ranges = unsafe { self.ranges(keys, limits, prefixes, column, &mut decided) };
        Search { ranges: ranges.into_iter().map(Range::within_max_key).filter(|r| !r.is_empty()).collect(), decided }
    }

    /// The ranges that begin with these prefixes of so many columns.
    unsafe fn ranges(
        &self,
        keys: &[ScanKeyData],
        mut limits: Vec<Limits>,
        prefixes: Vec<Vec<u8>>,
        column: usize,
        decided: &mut [bool],
    ) -> Vec<Range> {
        if column == self.columns().len() && column > 0 {
            return prefixes
                .into_iter()
                .map(|p| Range { lower: Bound::Included(p.clone()), upper: Bound::Included(p) })
                .collect();
        }
        let Some(here) = limits.get_mut(column) else {
            return vec![Range { lower: Bound::Unbounded, upper: Bound::Unbounded }];
        };
        here.by_range.iter().for_each(|i| decided[*i] = true);
        let last = self.is_last(column);
        let mut lowers = vec![here.lower.take().map(|(value, within)| Edge { value, within, whole: last })];
        let mut uppers = vec![here.upper.take().map(|(value, within)| Edge { value, within, whole: last })];
        for (i, key) in keys.iter().enumerate() {
            if key.sk_flags as u32 & pg_sys::SK_ROW_HEADER != 0 {
                // SAFETY: the caller's promise is passed on.
                let row = unsafe { self.row_edge(key, column) };
                let Some((strategy, edge, exact)) = row else { continue };
                if strategy.is_upper() { &mut uppers } else { &mut lowers }.push(Some(edge));
                decided[i] = exact;
            }
        }
        let bound = |prefix: &Vec<u8>| {
            let lower = lowers.iter().flatten().map(|e| e.lower(prefix)).max_by(compare_lower);
            let upper = uppers.iter().flatten().map(|e| e.upper(prefix)).min_by(compare_upper);
            Range {
                lower: lower.unwrap_or_else(|| from_prefix(prefix)),
                upper: upper.unwrap_or_else(|| to_prefix(prefix)),
            }
        };
        prefixes.iter().map(bound).collect()
    }

    /// A row comparison as an edge, if its first member is this column; and whether the edge says all there is to say.
    unsafe fn row_edge(&self, header: &ScanKeyData, first: usize) -> Option<(Strategy, Edge, bool)> {
        let strategy = Strategy::from_number(header.sk_strategy).filter(|s| *s != Strategy::Equal)?;
        let mut member: *const ScanKeyData = header.sk_argument.cast_mut_ptr();
        let mut value = Vec::new();
        let mut column = first;
        // SAFETY (whole loop): the members of a row comparison stand in an array that ends with SK_ROW_END.
        unsafe {
            loop {
                let key = &*member;
                let flags = key.sk_flags as u32;
                let place = match self.columns().get(column) {
                    Some(c) if c.ordered && key.sk_attno as usize == column + 1 && flags & pg_sys::SK_ISNULL == 0 => {
                        place(c.input_type, key.sk_subtype, key.sk_argument)
                    }
                    _ => Place::Unknown,
                };
                let (Place::At(datum), Some(at)) = (place, self.columns().get(column)) else {
                    // Only the members so far; where they are equal the rest decides.
                    return (column > first).then_some((strategy, Edge { value, within: true, whole: false }, false));
                };
                at.kind.put(&mut value, datum, self.is_last(column));
                column += 1;
                if flags & pg_sys::SK_ROW_END != 0 {
                    let whole = column == self.columns().len();
                    return Some((strategy, Edge { value, within: strategy.is_inclusive(), whole }, true));
                }
                member = member.add(1);
            }
        }
    }
}

fn is_equal(key: &ScanKeyData) -> bool {
    u32::from(key.sk_strategy) == pg_sys::BTEqualStrategyNumber
}

fn column_of<'a>(codec: &KeyCodec, limits: &'a mut [Limits], attno: i16) -> Option<(usize, &'a mut Limits)> {
    let column = usize::try_from(attno).ok()?.checked_sub(1)?;
    debug_assert_eq!(codec.columns().len(), limits.len());
    limits.get_mut(column).map(|l| (column, l))
}

/// Combines the leading columns' lists to prefixes; tells how many columns those have.
fn combine(limits: &mut [Limits], decided: &mut [bool]) -> (Vec<Vec<u8>>, usize) {
    let mut prefixes = vec![Vec::new()];
    let mut column = 0;
    while let Some(values) = limits.get_mut(column).and_then(|l| l.equal.take()) {
        if prefixes.len() > 1 && values.len() > 1 && prefixes.len() * values.len() > MAX_COMBINED {
            break;
        }
        prefixes = prefixes.iter().flat_map(|p| values.iter().map(move |v| [p.as_slice(), v].concat())).collect();
        limits[column].by_equal.iter().for_each(|i| decided[*i] = true);
        // Ranges beside the list have been applied to it.
        limits[column].by_range.iter().for_each(|i| decided[*i] = true);
        column += 1;
    }
    (prefixes, column)
}

impl Limits {
    /// Adds what one scan key says.
    ///
    /// # Safety
    /// The scan key's argument is valid.
    unsafe fn add(&mut self, number: usize, key: &ScanKeyData, column: &KeyColumn, last: bool) {
        let Some(strategy) = Strategy::from_number(key.sk_strategy) else { return };
        if key.sk_collation != column.collation && column.collation != pg_sys::InvalidOid {
            return;
        }
        if strategy != Strategy::Equal && !column.ordered {
            return;
        }
        // SAFETY: the caller's promise is passed on.
        let encode = |value: Datum| unsafe {
            let mut out = Vec::new();
            column.kind.put(&mut out, value, last);
            out
        };
        // SAFETY: as above.
        let places: Vec<Place> = unsafe {
            arguments(key).into_iter().map(|value| place(column.input_type, key.sk_subtype, value)).collect()
        };
        if places.contains(&Place::Unknown) {
            return;
        }
        if strategy == Strategy::Equal {
            let values = places.into_iter().filter_map(|p| if let Place::At(v) = p { Some(encode(v)) } else { None });
            self.equal_any(values.collect());
            self.by_equal.push(number);
        } else {
            self.range_any(strategy, places, encode);
            self.by_range.push(number);
        }
        self.settle();
    }

    /// The value must be one of these.
    fn equal_any(&mut self, mut values: Vec<Vec<u8>>) {
        values.sort_unstable();
        values.dedup();
        if let Some(before) = self.equal.take() {
            values.retain(|v| before.binary_search(v).is_ok());
        }
        self.equal = Some(values);
    }

    /// The value must be on this side of one of these: of the one that leaves the most.
    fn range_any(&mut self, strategy: Strategy, places: Vec<Place>, encode: impl Fn(Datum) -> Vec<u8>) {
        let mut widest: Option<(Vec<u8>, bool)> = None;
        for place in places {
            let edge = match place {
                Place::At(value) => (encode(value), strategy.is_inclusive()),
                // Between this value and the next: the value itself is below, the next above.
                Place::Above(value) => (encode(value), strategy.is_upper()),
                Place::BelowAll if strategy.is_upper() => continue,
                Place::AboveAll if !strategy.is_upper() => continue,
                _ => return,
            };
            widest = Some(match widest {
                Some(before) if !looser(strategy, &edge, &before) => before,
                _ => edge,
            });
        }
        let Some(edge) = widest else {
            self.none = true;
            return;
        };
        let mine = if strategy.is_upper() { &mut self.upper } else { &mut self.lower };
        if mine.as_ref().is_none_or(|before| looser(strategy, before, &edge)) {
            *mine = Some(edge);
        }
    }

    /// Applies the range to the list.
    fn settle(&mut self) {
        let Some(values) = &mut self.equal else { return };
        values.retain(|v| {
            let above = self.lower.as_ref().is_none_or(|(l, within)| v > l || (*within && v == l));
            let below = self.upper.as_ref().is_none_or(|(u, within)| v < u || (*within && v == u));
            above && below
        });
        self.none |= values.is_empty();
    }
}

/// Whether edge `a` leaves more than `b`.
fn looser(strategy: Strategy, a: &(Vec<u8>, bool), b: &(Vec<u8>, bool)) -> bool {
    let by_value = if strategy.is_upper() { a.0.cmp(&b.0) } else { b.0.cmp(&a.0) };
    by_value.then(a.1.cmp(&b.1)).is_gt()
}

/// The values that a scan key compares with: one, or those in its array that are not null.
///
/// # Safety
/// The scan key's argument is valid.
unsafe fn arguments(key: &ScanKeyData) -> Vec<Datum> {
    if key.sk_flags as u32 & pg_sys::SK_SEARCHARRAY == 0 {
        return vec![key.sk_argument];
    }
    // SAFETY: the argument is an array; PostgreSQL takes it apart and tells how many elements there are.
    unsafe {
        let array: *mut pg_sys::ArrayType = pg_sys::pg_detoast_datum(key.sk_argument.cast_mut_ptr()).cast();
        let (mut len, mut by_value, mut align) = (0, false, 0);
        pg_sys::get_typlenbyvalalign((*array).elemtype, &mut len, &mut by_value, &mut align);
        let (mut values, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        let element = (*array).elemtype;
        pg_sys::deconstruct_array(array, element, len.into(), by_value, align, &mut values, &mut nulls, &mut count);
        (0..count as usize).filter(|i| !*nulls.add(*i)).map(|i| *values.add(i)).collect()
    }
}

/// Where a range begins or ends behind a prefix.
struct Edge {
    value: Vec<u8>,
    within: bool,
    /// The prefix and the value are a whole key: no key begins with them but that one.
    whole: bool,
}

impl Edge {
    fn lower(&self, prefix: &[u8]) -> Bound<Vec<u8>> {
        lower_bound([prefix, &self.value].concat(), self.within, self.whole)
    }

    fn upper(&self, prefix: &[u8]) -> Bound<Vec<u8>> {
        upper_bound([prefix, &self.value].concat(), self.within, self.whole)
    }
}

fn lower_bound(mut at: Vec<u8>, within: bool, whole: bool) -> Bound<Vec<u8>> {
    match (within, whole) {
        (true, _) => Bound::Included(at),
        (false, true) => Bound::Excluded(at),
        (false, false) if to_successor(&mut at) => Bound::Included(at),
        // Above everything: an encoding of all ones with nothing behind it. No key is longer than this.
        (false, false) => Bound::Excluded(vec![0xFF; MAX_KEY + 1]),
    }
}

fn upper_bound(mut at: Vec<u8>, within: bool, whole: bool) -> Bound<Vec<u8>> {
    match (within, whole) {
        (true, true) => Bound::Included(at),
        (false, _) => Bound::Excluded(at),
        (true, false) if to_successor(&mut at) => Bound::Excluded(at),
        (true, false) => Bound::Unbounded,
    }
}

fn from_prefix(prefix: &[u8]) -> Bound<Vec<u8>> {
    if prefix.is_empty() {
        Bound::Unbounded
    } else {
        Bound::Included(prefix.to_vec())
    }
}

fn to_prefix(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut end = prefix.to_vec();
    if to_successor(&mut end) {
        Bound::Excluded(end)
    } else {
        Bound::Unbounded
    }
}

fn compare_lower(a: &Bound<Vec<u8>>, b: &Bound<Vec<u8>>) -> std::cmp::Ordering {
    let rank = |bound: &Bound<Vec<u8>>| match bound {
        Bound::Unbounded => (None, false),
        Bound::Included(at) => (Some(at.clone()), false),
        Bound::Excluded(at) => (Some(at.clone()), true),
    };
    rank(a).cmp(&rank(b))
}

fn compare_upper(a: &Bound<Vec<u8>>, b: &Bound<Vec<u8>>) -> std::cmp::Ordering {
    let rank = |bound: &Bound<Vec<u8>>| match bound {
        Bound::Unbounded => (true, Vec::new(), false),
        Bound::Excluded(at) => (false, at.clone(), false),
        Bound::Included(at) => (false, at.clone(), true),
    };
    rank(a).cmp(&rank(b))
}

impl Range {
    /// The same range with no bound longer than a key can be. A key is never longer than that, so it is below a longer bound
    /// just if it is at most the bound's beginning. A point that is too long becomes an empty range.
    fn within_max_key(self) -> Range {
        let lower = match self.lower {
            Bound::Included(at) | Bound::Excluded(at) if at.len() > MAX_KEY => Bound::Excluded(cut(at)),
            other => other,
        };
        let upper = match self.upper {
            Bound::Included(at) | Bound::Excluded(at) if at.len() > MAX_KEY => Bound::Included(cut(at)),
            other => other,
        };
        Range { lower, upper }
    }
}

fn cut(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(MAX_KEY);
    bytes
}
