//! Sequence numbers: what is visible, and which snapshots are held.
//!
//! Writers ascend with the row ids that were next when they wrote (see [`super::commit`]), and none above `visible` has been
//! acknowledged. A snapshot sees the writers up to its number. Taking one and computing a horizon exclude each other, so that no
//! flush or merge drops what a snapshot taken meanwhile sees (I11).

use super::health::lock;
use crate::host::{Ended, Horizon};
use crate::types::{Fate, Head, Writer};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Debug, Default)]
pub struct Sequences {
    visible: AtomicU64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Ticket of each reader that holds a snapshot, and the snapshot's number.
    tickets: BTreeMap<u64, u64>,
    next_ticket: u64,
}

impl Sequences {
    /// The newest writer whose rows are to be seen.
    pub fn visible(&self) -> u64 {
        self.visible.load(Ordering::Acquire)
    }

    /// The rows of every writer up to this one are linked (and synced, if that was asked for).
    pub fn publish(&self, upto: u64) {
        self.visible.fetch_max(upto, Ordering::AcqRel);
    }

    /// Takes a snapshot of what is visible now.
    pub fn hold(self: &Arc<Self>) -> Hold {
        let mut held = lock(&self.held);
        let sequence = self.visible();
        Hold::new(self, &mut held, sequence)
    }

    /// How many snapshots are held, and the oldest's number.
    pub fn held(&self) -> (usize, Option<u64>) {
        let held = lock(&self.held);
        (held.tickets.len(), held.tickets.values().min().copied())
    }

    pub fn horizon(&self) -> SequenceHorizon {
        let held = lock(&self.held);
        let visible = self.visible();
        let oldest = held.tickets.values().min().copied().unwrap_or(visible);
        debug_assert!(oldest <= visible);
        SequenceHorizon { visible, oldest }
    }
}

/// A snapshot that is held until dropped.
#[derive(Debug)]
pub struct Hold {
    of: Arc<Sequences>,
    ticket: u64,
    pub sequence: u64,
}

impl Hold {
    fn new(of: &Arc<Sequences>, held: &mut Held, sequence: u64) -> Hold {
        let ticket = held.next_ticket;
        held.next_ticket += 1;
        held.tickets.insert(ticket, sequence);
        Hold { of: Arc::clone(of), ticket, sequence }
    }

    /// Another reader of the same snapshot.
    pub fn again(&self) -> Hold {
        Hold::new(&self.of, &mut lock(&self.of.held), self.sequence)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = lock(&self.of.held);
        let was = held.tickets.remove(&self.ticket);
        debug_assert_eq!(was, Some(self.sequence));
    }
}

/// How things stood when a flush or a merge began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceHorizon {
    visible: u64,
    /// The oldest snapshot, or what was visible.
    oldest: u64,
}

impl Horizon for SequenceHorizon {
    fn fate(&mut self, head: &Head) -> Fate {
        match head.writer.0 {
            writer if writer > self.visible => Fate::InProgress,
            writer if writer > self.oldest => Fate::Committed,
            _ => Fate::VisibleToAll,
        }
    }

    fn oldest(&self) -> Writer {
        Writer(self.oldest + 1)
    }

    fn ended(&self) -> Ended {
        Ended::below(Writer(self.visible + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_horizon_follows_the_oldest_snapshot() {
        let sequences = Arc::new(Sequences::default());
        sequences.publish(10);
        let first = sequences.hold();
        sequences.publish(20);
        let second = sequences.hold();
        sequences.publish(30);
        let fate = |writer| {
            let head = Head { writer: Writer(writer), ..Head::default() };
            sequences.horizon().fate(&head)
        };
        assert_eq!((first.sequence, second.sequence), (10, 20));
        assert_eq!(
            [10, 11, 30, 31].map(fate),
            [Fate::VisibleToAll, Fate::Committed, Fate::Committed, Fate::InProgress]
        );
        assert_eq!((sequences.horizon().oldest(), sequences.horizon().ended().below), (Writer(11), Writer(31)));
        let again = first.again();
        drop(first);
        assert_eq!(sequences.horizon().oldest(), Writer(11));
        drop(again);
        assert_eq!(sequences.horizon().oldest(), Writer(21));
        drop(second);
        assert_eq!(sequences.horizon().oldest(), Writer(31));
        assert_eq!(sequences.held(), (0, None));
    }
}
