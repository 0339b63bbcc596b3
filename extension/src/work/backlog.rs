//! How far the background is behind, and what that costs a writer.

/// Nanoseconds for each KiB at full pressure.
const FULL_DELAY: f64 = 400_000.0;

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
    /// them.
    pub fn delay(&self) -> u32 {
        let frozen = part(self.frozen, 1, self.max_frozen.max(2));
        let runs = part(self.fresh_runs, self.fan_in.saturating_mul(3), self.fan_in.saturating_mul(8));
        let unindexed = part(self.unindexed, self.fan_in, self.fan_in.saturating_mul(4));
        let pressure = frozen.max(runs).max(2.0 * unindexed);
        (pressure * pressure * FULL_DELAY) as u32
    }
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
        let by_runs: Vec<u32> = (24..100).map(|fresh_runs| Backlog { fresh_runs, ..CALM }.delay()).collect();
        assert!(by_runs.is_sorted() && by_runs[1] > 0, "{by_runs:?}");
        assert_eq!((by_frozen.last(), by_runs.last()), (Some(&400_000), Some(&400_000)));
        let unindexed = |runs| Backlog { fresh_runs: runs, unindexed: runs, ..CALM }.delay();
        assert!(unindexed(9) > 0 && unindexed(20) > unindexed(9) && unindexed(32) == 1_600_000);
        let both = Backlog { frozen: 2, fresh_runs: 30, ..CALM };
        assert_eq!(both.delay(), Backlog { fresh_runs: 0, ..both }.delay());
    }

    #[test]
    fn odd_limits_divide_by_nothing() {
        assert_eq!(Backlog { frozen: 9, max_frozen: 1, fresh_runs: 9, unindexed: 0, fan_in: 0 }.delay(), 400_000);
        assert_eq!(Backlog { frozen: 0, max_frozen: 0, fresh_runs: 9, unindexed: 9, fan_in: 0 }.delay(), 1_600_000);
    }
}
