//! Strays: what the key index says of runs that it does not cover, and may be out of date.
//!
//! Otherwise an entry is right whether its run is covered or not. Whatever is newer has an entry of its own in its place, or has lost it
//! and left none: a run comes into the index when all newer ones are covered, and puts in no key that is there. So what there is room
//! for is kept of runs that have left, and a key that has an entry is known to be where that says. There are two exceptions:
//!
//! - A run comes that the index does not cover, for its flush found no room. Its keys may have entries by older runs.
//! - Entries leave while an older run is coming in: it puts in a key by that run where the entry by a newer one has just gone.
//!
//! From then on nothing is believed of what was named before and is not covered, until all of that has gone.

use crate::host::Host;
use crate::mutation::{on, Mutation::*};
use crate::tree::shared::Shared;
use crate::types::L0Id;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

#[derive(Default)]
pub struct Strays {
    /// What is named below this L0 id may be one. 0: nothing is.
    below: AtomicU64,
    /// A run is coming into the index.
    coming: AtomicBool,
}

impl Strays {
    /// What is named below this L0 id may be one from now on.
    pub fn come(&self, below: L0Id) {
        self.below.fetch_max(below.0, SeqCst);
    }

    /// The same if a run is coming into the index, for entries are about to leave. Says whether one is.
    pub fn come_beside_a_run(&self, below: L0Id) -> bool {
        let coming = self.coming.load(SeqCst);
        if coming {
            self.come(below);
        }
        coming
    }

    /// Of what is named below the id there may be strays; `None`: there are none.
    pub fn below(&self) -> Option<L0Id> {
        match self.below.load(SeqCst) {
            0 => None,
            below => Some(L0Id(below)),
        }
    }

    /// What was named below this L0 id, and is not covered, has gone: there are none any more, unless others have come meanwhile.
    pub fn have_gone(&self, below: L0Id) {
        let _ = self.below.compare_exchange(below.0, 0, SeqCst, SeqCst);
    }
}

/// As long as it lives a run is coming into the index, and whoever makes room in it says that there are strays now.
pub struct Coming<'s>(&'s Strays);

impl<'s> Coming<'s> {
    /// To be followed by a look at whether entries are leaving: who began that before knows nothing of it. The caller holds the
    /// maintenance lock.
    pub fn begin(strays: &'s Strays) -> Coming<'s> {
        strays.coming.store(true, SeqCst);
        Coming(strays)
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.0.coming.store(false, SeqCst);
    }
}

/// What is asked before the index is, by who wants to believe what it says of runs that it does not cover.
pub struct Look {
    evictions: u64,
    strays: L0Id,
}

impl<H: Host> Shared<H> {
    /// To be asked once the superversion is pinned.
    pub fn before_look(&self) -> Look {
        // In this order: who makes room says that there are strays before he counts, and counts before any of them comes.
        let evictions = self.evictions.load(SeqCst);
        Look { evictions, strays: self.strays.below().unwrap_or_default() }
    }

    /// Whether this was right of a run that the index does not cover, when it was found there after the look.
    pub fn is_right(&self, look: &Look, named: L0Id) -> bool {
        let unseen = self.evictions.load(SeqCst) != look.evictions && !on(StraysCameUnseen);
        (named >= look.strays || on(StrayEntryTrusted)) && !unseen
    }
}
