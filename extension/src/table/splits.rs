//! Cutting a table into pieces of about the same size for the workers of a parallel scan.
//!
//! The keys of some rows chosen at regular distances of row id are as good as random ones; sorted, they are the borders. Any
//! byte string is a valid border, so long keys are cut short.
//!
//! ```text
//! | count u16 | count times: length u8, bytes |
//! ```

use super::Open;
use crate::codec::bound::Range;
use loosekv_engine::error::Result;
use loosekv_engine::types::{RowBuf, RowId};
use std::ops::Bound;

const BORDERS: usize = 63;
const LONGEST: usize = 48;
/// Attempts for each border wanted: not every row id has a row.
const ATTEMPTS: usize = 2;

/// Room that [`encode`] needs at most.
pub const ROOM: usize = 2 + BORDERS * (1 + LONGEST);

/// Chooses the borders.
pub fn choose(open: &Open) -> Result<Vec<Vec<u8>>> {
    let rows = open.tree.next_row_id().0;
    let wanted = BORDERS * ATTEMPTS;
    let step = rows / (wanted as u64 + 1);
    if step == 0 {
        return Ok(Vec::new());
    }
    let mut keys = Vec::with_capacity(wanted);
    let mut row = RowBuf::default();
    for i in 1..=wanted as u64 {
        if open.tree.find_row(RowId(i * step), &mut row)? {
            row.key.truncate(LONGEST);
            keys.push(std::mem::take(&mut row.key));
        }
    }
    Ok(thin_out(keys))
}

/// Sorts, and keeps at most as many as there is room for.
fn thin_out(mut keys: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    keys.sort_unstable();
    keys.dedup();
    let every = keys.len().div_ceil(BORDERS).max(1);
    keys.into_iter().step_by(every).filter(|key| !key.is_empty()).collect()
}

pub fn encode(borders: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(ROOM);
    out.extend_from_slice(&(borders.len() as u16).to_le_bytes());
    for border in borders {
        debug_assert!(border.len() <= LONGEST);
        out.push(border.len() as u8);
        out.extend_from_slice(border);
    }
    out
}

/// Piece number `piece` of the table; `None`: there are no more.
pub fn piece(mut encoded: &[u8], piece: usize) -> Option<Range> {
    let (count, rest) = encoded.split_first_chunk::<2>()?;
    let count = usize::from(u16::from_le_bytes(*count));
    if piece > count {
        return None;
    }
    encoded = rest;
    let mut range = Range { lower: Bound::Unbounded, upper: Bound::Unbounded };
    for number in 0..=piece.min(count.saturating_sub(1)) {
        let Some((len, rest)) = encoded.split_first() else { break };
        let (border, rest) = rest.split_at_checked(usize::from(*len))?;
        encoded = rest;
        if number + 1 == piece {
            range.lower = Bound::Included(border.to_vec());
        }
        if number == piece {
            range.upper = Bound::Excluded(border.to_vec());
        }
    }
    Some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_each_other_without_gaps() {
        let borders = thin_out((0..200u8).map(|i| vec![i, 1]).collect());
        assert!(borders.len() <= BORDERS);
        let encoded = encode(&borders);
        assert!(encoded.len() <= ROOM);
        let mut lower = Bound::Unbounded;
        for number in 0..=borders.len() {
            let range = piece(&encoded, number).unwrap();
            assert_eq!(range.lower, lower);
            lower = match range.upper {
                Bound::Excluded(border) => Bound::Included(border),
                other => other,
            };
        }
        assert_eq!(lower, Bound::Unbounded);
        assert!(piece(&encoded, borders.len() + 1).is_none());
    }

    #[test]
    fn no_borders_make_one_piece() {
        let encoded = encode(&[]);
        assert_eq!(piece(&encoded, 0), Some(Range { lower: Bound::Unbounded, upper: Bound::Unbounded }));
        assert!(piece(&encoded, 1).is_none());
    }
}
