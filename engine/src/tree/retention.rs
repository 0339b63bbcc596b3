//! Which versions of a key outlive a flush or a merge. Pure: the caller supplies what became of the writers.
//!
//! Shown the versions of one key, newest first, it keeps every version that some snapshot may still see: all that are
//! not yet visible to everybody, and the newest that is (I11). That last one goes too when it is a tombstone and no
//! older run can hold the key (I9). Versions of aborted writers go always.

use crate::mutation::{on, Mutation::*};
use crate::types::{Fate, Head, Writer};

/// What is to be done with one version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    Yes,
    No,
    /// A tombstone that everybody sees: to be kept only if an older run may hold the key.
    OverOlder,
}

/// The state between the versions of one key.
#[derive(Default, Debug)]
pub struct Retention {
    /// A version that everybody sees was shown: all older ones are beyond reach.
    closed: bool,
    /// Writer of the newest version shown that was not aborted.
    above: Option<Writer>,
}

impl Retention {
    /// The next key begins.
    pub fn next_key(&mut self) {
        *self = Retention::default();
    }

    /// Decides on the next older version. `superseded` learns of the writer that made a dropped version unreachable.
    pub fn decide(&mut self, head: &Head, fate: Fate, superseded: &mut Option<Writer>) -> Keep {
        if fate == Fate::Aborted {
            return Keep::No;
        }
        if self.closed {
            *superseded = (*superseded).max(self.above);
            return Keep::No;
        }
        self.above = Some(head.writer);
        let settled = fate == Fate::Committed
            && (on(I11SnapshotsIgnored) || on(I9DroppedBeforeSeen) && head.flags.is_tombstone());
        if fate != Fate::VisibleToAll && !settled {
            return Keep::Yes;
        }
        self.closed = true;
        if head.flags.is_tombstone() {
            Keep::OverOlder
        } else {
            Keep::Yes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Flags, RowId};
    use Fate::*;

    fn decide(versions: &[(Fate, bool)]) -> Vec<Keep> {
        let mut retention = Retention::default();
        let mut superseded = None;
        let count = versions.len() as u64;
        let heads = versions.iter().enumerate().map(|(at, (fate, tombstone))| {
            let flags = if *tombstone { Flags::TOMBSTONE } else { Flags::default() };
            (
                Head { row_id: RowId(count - at as u64), writer: Writer(count - at as u64), flags, ..Head::default() },
                *fate,
            )
        });
        heads.map(|(head, fate)| retention.decide(&head, fate, &mut superseded)).collect()
    }

    #[test]
    fn keeps_down_to_the_newest_that_everybody_sees() {
        let kept = decide(&[(InProgress, false), (Committed, false), (VisibleToAll, false), (VisibleToAll, false)]);
        assert_eq!(kept, [Keep::Yes, Keep::Yes, Keep::Yes, Keep::No]);
    }

    #[test]
    fn aborted_versions_close_nothing() {
        let kept = decide(&[(Aborted, true), (VisibleToAll, false), (Aborted, false), (Committed, false)]);
        assert_eq!(kept, [Keep::No, Keep::Yes, Keep::No, Keep::No]);
    }

    #[test]
    fn only_the_closing_tombstone_may_go() {
        let kept = decide(&[(Committed, true), (VisibleToAll, true), (VisibleToAll, false)]);
        assert_eq!(kept, [Keep::Yes, Keep::OverOlder, Keep::No]);
    }

    #[test]
    fn the_superseding_writer_is_the_next_newer_one() {
        let mut retention = Retention::default();
        let mut superseded = None;
        for writer in [9, 7, 3] {
            let head = Head { writer: Writer(writer), ..Head::default() };
            retention.decide(&head, VisibleToAll, &mut superseded);
        }
        assert_eq!(superseded, Some(Writer(9)));
    }
}
