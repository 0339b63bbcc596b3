//! What a worker does next: flushes before the rest, and of two equal needs the older one. Where a piece of work came to nothing for a
//! table, work of that kind rests there for a while, longer each time, and is not in the way of other tables, nor of other work: who
//! could not give back the end of a file is to flush it all the same.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// What is done to a table, most pressing first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// The oldest frozen memtable becomes a run.
    Flush,
    /// The memtable that rows go to is flushed before it is full: memory is short.
    Spill,
    /// One more run's keys come into the key index.
    Index,
    /// Some runs become one.
    Merge,
    /// Entries of deleted keys leave the key index.
    Sweep,
    /// Pages at the end of the file of an idle table move into the free space below.
    Sink,
    /// The free end of the file of an idle table is given back.
    Trim,
}

const TASKS: usize = Task::Trim as usize + 1;

/// How a piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// There was nothing to do, though it had looked so.
    Nothing,
    /// Somebody else has the table, or wanted it.
    GaveWay,
    Failed,
}

const SHORTEST_REST: Duration = Duration::from_millis(100);
const LONGEST_WAY: Duration = Duration::from_secs(2);
const LONGEST_REST: Duration = Duration::from_secs(300);

/// The needs of tables `K`. Times count from any moment.
pub struct Agenda<K> {
    tables: HashMap<K, Entry>,
    round: u64,
}

struct Entry {
    task: Task,
    /// When the need was noticed first, or last served.
    since: Duration,
    round: u64,
    rests: [Rest; TASKS],
}

/// Of work of one kind.
#[derive(Clone, Copy, Default)]
struct Rest {
    until: Duration,
    /// Pieces in a row that came to nothing.
    vain: u32,
}

impl Entry {
    fn rest(&self) -> Rest {
        self.rests[self.task as usize]
    }
}

impl<K: Copy + Eq + Hash> Agenda<K> {
    pub fn new() -> Agenda<K> {
        Agenda { tables: HashMap::new(), round: 0 }
    }

    /// A look at all tables begins.
    pub fn begin_round(&mut self) {
        self.round += 1;
    }

    /// A table with a need.
    pub fn note(&mut self, table: K, task: Task, now: Duration) {
        let round = self.round;
        let fresh = Entry { task, since: now, round, rests: [Rest::default(); TASKS] };
        let entry = self.tables.entry(table).or_insert(fresh);
        entry.round = round;
        if entry.task != task {
            entry.task = task;
            entry.since = now;
        }
    }

    /// Tables that have no need any more are forgotten.
    pub fn end_round(&mut self) {
        let round = self.round;
        self.tables.retain(|_, entry| entry.round == round);
    }

    pub fn next(&self, now: Duration) -> Option<(K, Task)> {
        let ready = self.tables.iter().filter(|(_, entry)| entry.rest().until <= now);
        let first = ready.min_by_key(|(_, entry)| (entry.task, entry.since))?;
        Some((*first.0, first.1.task))
    }

    /// A piece that the agenda did not ask for came to nothing.
    pub fn rest(&mut self, table: K, task: Task, outcome: Outcome, now: Duration) {
        self.note(table, task, now);
        self.ended(table, task, outcome, now);
    }

    pub fn is_resting(&self, table: K, task: Task, now: Duration) -> bool {
        self.tables.get(&table).is_some_and(|entry| entry.rests[task as usize].until > now)
    }

    /// A piece of work for the table has ended.
    pub fn ended(&mut self, table: K, task: Task, outcome: Outcome, now: Duration) {
        let Some(entry) = self.tables.get_mut(&table) else { return };
        entry.since = now;
        let place = &mut entry.rests[task as usize];
        if outcome == Outcome::Done {
            *place = Rest::default();
            return;
        }
        let longest = if outcome == Outcome::GaveWay { LONGEST_WAY } else { LONGEST_REST };
        let rest = SHORTEST_REST.saturating_mul(1 << place.vain.min(20)).min(longest);
        *place = Rest { until: now + rest, vain: place.vain + 1 };
    }

    /// How long until a table that rests is to be looked at again; `None`: no table has a need.
    pub fn wait(&self, now: Duration) -> Option<Duration> {
        self.tables.values().map(|entry| entry.rest().until.saturating_sub(now)).min()
    }

    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }
}

impl<K: Copy + Eq + Hash> Default for Agenda<K> {
    fn default() -> Self {
        Agenda::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn flushes_come_first_and_then_the_oldest() {
        let mut agenda = Agenda::new();
        agenda.begin_round();
        agenda.note('a', Task::Merge, at(1));
        agenda.note('b', Task::Merge, at(2));
        agenda.note('c', Task::Flush, at(3));
        agenda.end_round();
        assert_eq!(agenda.next(at(4)), Some(('c', Task::Flush)));
        agenda.begin_round();
        agenda.note('a', Task::Merge, at(4));
        agenda.note('b', Task::Merge, at(4));
        agenda.end_round();
        assert_eq!(agenda.next(at(4)), Some(('a', Task::Merge)));
        // A table that was served comes after those that wait.
        agenda.ended('a', Task::Merge, Outcome::Done, at(5));
        assert_eq!(agenda.next(at(5)), Some(('b', Task::Merge)));
    }

    #[test]
    fn failures_rest_longer_and_longer_and_do_not_hold_up_others() {
        let mut agenda = Agenda::new();
        agenda.note('a', Task::Flush, at(0));
        agenda.note('b', Task::Sweep, at(0));
        let (mut now, mut last) = (at(0), Duration::ZERO);
        for _ in 0..20 {
            agenda.ended('a', Task::Flush, Outcome::Failed, now);
            assert!(agenda.is_resting('a', Task::Flush, now));
            assert_eq!(agenda.next(now), Some(('b', Task::Sweep)));
            let rest = agenda.tables[&'a'].rest().until - now;
            assert!(rest >= last && rest <= LONGEST_REST);
            (now, last) = (now + rest, rest);
            assert_eq!(agenda.next(now), Some(('a', Task::Flush)));
        }
        assert_eq!(last, LONGEST_REST);
        agenda.ended('a', Task::Flush, Outcome::Done, now);
        agenda.ended('a', Task::Flush, Outcome::Failed, now);
        assert_eq!(agenda.tables[&'a'].rest().until - now, SHORTEST_REST);
    }

    #[test]
    fn what_came_to_nothing_does_not_hold_up_other_work_of_the_table() {
        let mut agenda = Agenda::new();
        agenda.note('a', Task::Trim, at(0));
        for _ in 0..20 {
            agenda.ended('a', Task::Trim, Outcome::Nothing, at(0));
        }
        assert_eq!(agenda.next(at(1)), None);
        agenda.note('a', Task::Flush, at(1));
        assert!(agenda.is_resting('a', Task::Trim, at(1)) && !agenda.is_resting('a', Task::Flush, at(1)));
        assert_eq!((agenda.next(at(1)), agenda.wait(at(1))), (Some(('a', Task::Flush)), Some(Duration::ZERO)));
        // And is not tried again because something else was done.
        agenda.ended('a', Task::Flush, Outcome::Done, at(2));
        agenda.note('a', Task::Trim, at(2));
        assert_eq!(agenda.next(at(2)), None);
        assert_eq!(agenda.next(at(301)), Some(('a', Task::Trim)));
    }

    #[test]
    fn waits_for_the_table_that_rests_least_and_for_nothing_when_empty() {
        let mut agenda = Agenda::new();
        assert_eq!(agenda.wait(at(0)), None);
        agenda.note('a', Task::Merge, at(0));
        agenda.ended('a', Task::Merge, Outcome::GaveWay, at(0));
        assert_eq!(agenda.wait(at(0)), Some(SHORTEST_REST));
        agenda.begin_round();
        agenda.end_round();
        assert!(agenda.is_empty());
    }
}
