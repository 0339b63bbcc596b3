//! Chains: neighbours in age whose keys follow each other, as those of rows that come in the order of their keys do.
//!
//! ```text
//!   run, newest first     keys
//!   4                              [71 ---- 90]      chain of three
//!   3                     [50 - 70]
//!   2            [20 - 49]
//!   1      [0 ----------------- 60]                  overlaps: another chain begins
//! ```
//!
//! A scan reads the runs of a chain one after the other, and waits in one at a time.

use crate::manifest::RunDesc;

/// The keys of a chain as far as it has come.
pub(super) struct Chain<'v> {
    min: &'v [u8],
    max: &'v [u8],
}

impl<'v> Chain<'v> {
    pub fn begin(run: &'v RunDesc) -> Chain<'v> {
        Chain { min: run.min_key(), max: &run.shape.max_key }
    }

    /// Takes in the next older run, if all its keys are beside those that are there.
    pub fn take_in(&mut self, run: &'v RunDesc) -> bool {
        let (min, max) = (run.min_key(), run.shape.max_key.as_slice());
        if max < self.min {
            self.min = min;
        } else if min > self.max {
            self.max = max;
        } else {
            return false;
        }
        true
    }
}

/// How many chains these runs are, newest first; a run by itself is one, too.
pub(super) fn count<'v>(runs: impl Iterator<Item = &'v RunDesc>) -> usize {
    let (mut chain, mut count): (Option<Chain<'v>>, _) = (None, 0);
    for run in runs {
        if !chain.as_mut().is_some_and(|chain| chain.take_in(run)) {
            chain = Some(Chain::begin(run));
            count += 1;
        }
    }
    count
}
