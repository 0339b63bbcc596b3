//! How far the background is behind, and what that costs a writer.

/// Nanoseconds for each KiB at full pressure.
const FULL_DELAY: f64 = 400_000.0;
/// Runs that are not indexed count so many times as much.
const UNINDEXED: f64 = 2.0;
/// The delay at the hard limits, whichever of them.
const LIMIT_DELAY: u32 = (FULL_DELAY * UNINDEXED * UNINDEXED) as u32;
/// So many times the hard limits' runs are answered by a longer delay; more make no difference.
const MOST_EXCESS: f64 = 16.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    pub frozen: u32,
    /// Writers wait when so many are frozen.
    pub max_frozen: u32,
    /// Runs that no merge has seen yet.
    pub fresh_runs: u32,
    /// Of these, those that the key index does not cover: whoever writes a row asks the filter of each.
    pub unindexed: u32,
    /// As many are merged at once.
    pub fan_in: u32,
}

impl Backlog {
    /// Delay in nanoseconds for each KiB written: it grows with the square of the pressure. Nothing for one frozen memtable,
    /// for that is being flushed, nor for three times as many fresh runs as a merge takes; all of it at the hard limit of
    /// frozen memtables, and at eight times as many runs. Of runs that are not indexed fewer are put up with, and the delay is up to
    /// four times as long: each of them makes writing dearer, which leaves less of the processor to the merge that would make one of
    /// them. Where there are more runs than that all the same (memtables are tiny, or writers many) it grows with their number.
    pub fn delay(&self) -> u32 {
        let frozen = part(self.frozen, 1, self.max_frozen.max(2));
        let (most_fresh, most_unindexed) = (self.fan_in.saturating_mul(8), self.fan_in.saturating_mul(4));
        let runs = part(self.fresh_runs, self.fan_in.saturating_mul(3), most_fresh);
        let unindexed = part(self.unindexed, self.fan_in, most_unindexed);
        let pressure = frozen.max(runs).max(UNINDEXED * unindexed);
        let excess = excess(self.fresh_runs, most_fresh).max(excess(self.unindexed, most_unindexed));
        (pressure * pressure * excess * FULL_DELAY) as u32
    }
}

/// How many times as long as usual one sleep may be for such a delay.
pub fn longest(delay: u32) -> u32 {
    (delay / LIMIT_DELAY).max(1)
}

fn excess(now: u32, hard: u32) -> f64 {
    (f64::from(now) / f64::from(hard.max(1))).clamp(1.0, MOST_EXCESS)
}

/// From 0 at the soft limit to 1 at the hard one.
fn part(now: u32, soft: u32, hard: u32) -> f64 {
    let over = f64::from(now.saturating_sub(soft));
    (over / f64::from(hard.saturating_sub(soft).max(1))).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Backlog = Backlog { frozen: 0, max_frozen: 3, fresh_runs: 0, unindexed: 0, fan_in: 8 };

    #[test]
    fn nothing_while_the_background_keeps_up() {
        assert_eq!(Backlog { frozen: 1, fresh_runs: 24, unindexed: 8, ..CALM }.delay(), 0);
    }

    #[test]
    fn grows_with_either_backlog_up_to_the_full_delay() {
        let by_frozen: Vec<u32> = (1..6).map(|frozen| Backlog { frozen, max_frozen: 5, ..CALM }.delay()).collect();
        assert!(by_frozen.is_sorted() && by_frozen[1] > 0, "{by_frozen:?}");
        let by_runs: Vec<u32> = (24..65).map(|fresh_runs| Backlog { fresh_runs, ..CALM }.delay()).collect();
        assert!(by_runs.is_sorted() && by_runs[1] > 0, "{by_runs:?}");
        assert_eq!((by_frozen.last(), by_runs.last()), (Some(&400_000), Some(&400_000)));
        let unindexed = |runs| Backlog { fresh_runs: runs, unindexed: runs, ..CALM }.delay();
        assert!(unindexed(9) > 0 && unindexed(20) > unindexed(9) && unindexed(32) == 1_600_000);
        let both = Backlog { frozen: 2, fresh_runs: 30, ..CALM };
        assert_eq!(both.delay(), Backlog { fresh_runs: 0, ..both }.delay());
    }

    #[test]
    fn grows_on_with_runs_that_pile_up_all_the_same() {
        let fresh = |fresh_runs| Backlog { fresh_runs, ..CALM }.delay();
        assert_eq!((fresh(128), fresh(10_000)), (2 * fresh(64), 16 * fresh(64)));
        let unindexed = |runs| Backlog { fresh_runs: runs, unindexed: runs, ..CALM }.delay();
        assert_eq!((longest(fresh(64)), longest(unindexed(32)), longest(unindexed(320))), (1, 1, 10));
    }

    #[test]
    fn odd_limits_divide_by_nothing() {
        assert_eq!(Backlog { frozen: 9, max_frozen: 1, fresh_runs: 9, unindexed: 0, fan_in: 0 }.delay(), 9 * 400_000);
        assert_eq!(Backlog { frozen: 0, max_frozen: 0, fresh_runs: 9, unindexed: 9, fan_in: 0 }.delay(), 9 * 1_600_000);
    }
}
