//! Group commit: one writer leads, and writes the batches of all who wait together.
//!
//! ```text
//! writer -> nobody leads? lead : queue, and wait until done or asked to lead
//! leader -> own batch and those in the queue (bounded) -> one append -> one sync, if any of them asked -> visible -> wake
//! ```
//!
//! All batches of a group are one frame of the log, so each is whole or absent after a crash. A batch's writer is the row id that was
//! next for its first row, plus one (0 is what an empty store shows); the group becomes visible in one step, when nothing of it can fail
//! any more. The row may get a later id, for a memtable that turns out to be full uses ids up: writers ascend all the same, and none is
//! above the row id that is next once the group is written.

use super::batch::{Batch, Change};
use super::health::lock;
use super::host::EmbeddedHost;
use super::metrics::{add, add_alone, nanos};
use super::options::Options;
use crate::error::{Error, Result};
use crate::tree::{NewRow, Tree};
use crate::types::{Flags, Head, Writer};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

#[derive(Default)]
pub struct Committer {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    led: bool,
    waiting: VecDeque<Arc<Ticket>>,
}

/// A batch that waits.
struct Ticket {
    batch: Batch,
    sync: bool,
    state: Mutex<Turn>,
    changed: Condvar,
}

/// Most that a row takes in a memtable beside its key, on average over a few.
const ROOM_BESIDE_KEY: u64 = 96;

impl Ticket {
    /// About as much as a memtable needs for it, at most.
    fn room(&self) -> u64 {
        self.batch.changes().map(|change| change.key.len() as u64 + ROOM_BESIDE_KEY).sum()
    }
}

#[derive(Default)]
enum Turn {
    #[default]
    Waiting,
    Lead,
    Done(Result<()>),
}

/// What a writer brings.
pub enum Work<'a> {
    One(Change<'a>),
    Batch(&'a Batch),
}

impl Work<'_> {
    fn bytes(&self) -> usize {
        match self {
            Work::One(change) => change.bytes(),
            Work::Batch(batch) => batch.bytes(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Work::One(_) => 1,
            Work::Batch(batch) => batch.len(),
        }
    }

    fn owned(&self) -> Batch {
        match self {
            Work::Batch(batch) => (*batch).clone(),
            Work::One(change) => {
                let mut batch = Batch::new();
                match change.value {
                    Some(value) => batch.put(change.key, value),
                    None => batch.delete(change.key),
                };
                batch
            }
        }
    }
}

impl Committer {
    /// Writes, alone or together with others. The work has been checked.
    pub fn commit(&self, tree: &Tree<'_, EmbeddedHost>, work: Work<'_>, sync: bool) -> Result<()> {
        let host = &tree.host;
        host.health.check()?;
        if let Some(time) = host.pace.delay(work.bytes()) {
            add(&host.counters.delays, 1);
            add(&host.counters.delayed_nanos, nanos(time));
            host.fs.sleep(time);
        }
        let mut queue = lock(&self.queue);
        if !queue.led {
            queue.led = true;
            drop(queue);
            let _leads = Leads(self);
            return write(tree, &[work], sync);
        }
        let ticket = Arc::new(Ticket { batch: work.owned(), sync, state: Mutex::default(), changed: Condvar::new() });
        queue.waiting.push_back(Arc::clone(&ticket));
        drop(queue);
        let mut turn = lock(&ticket.state);
        loop {
            match std::mem::take(&mut *turn) {
                Turn::Done(result) => return result,
                Turn::Lead => break,
                Turn::Waiting => turn = ticket.changed.wait(turn).unwrap_or_else(PoisonError::into_inner),
            }
        }
        drop(turn);
        self.lead(tree)
    }

    /// Writes the group at the head of the queue, whose first is the caller's.
    fn lead(&self, tree: &Tree<'_, EmbeddedHost>) -> Result<()> {
        let _leads = Leads(self);
        let group = self.take_group(&tree.host.options);
        let works: Vec<Work<'_>> = group.iter().map(|t| Work::Batch(&t.batch)).collect();
        let result = write(tree, &works, group.iter().any(|t| t.sync));
        if matches!(result, Err(Error::NoSpace(_))) && group.len() > 1 {
            // Deletes find room where others do not, and small batches where large ones do not.
            return each_alone(tree, &group);
        }
        for ticket in group.iter().skip(1) {
            let same = result.as_ref().copied().map_err(|e| shared(e, tree));
            *lock(&ticket.state) = Turn::Done(same);
            ticket.changed.notify_one();
        }
        result
    }

    /// Not more than one memtable has room for: what fits alone must not fail for others.
    fn take_group(&self, options: &Options) -> Vec<Arc<Ticket>> {
        let mut queue = lock(&self.queue);
        let (mut bytes, mut room) = (options.group_bytes, options.tree.memtable_bytes / 2);
        let mut group = Vec::new();
        while let Some(ticket) = queue.waiting.front() {
            let (left, room_left) = (bytes.checked_sub(ticket.batch.bytes()), room.checked_sub(ticket.room()));
            if !group.is_empty() && (left.is_none() || room_left.is_none()) {
                break;
            }
            (bytes, room) = (left.unwrap_or(0), room_left.unwrap_or(0));
            group.extend(queue.waiting.pop_front());
        }
        group
    }

    /// The leader is done: the first who waits leads next.
    fn hand_over(&self) {
        let mut queue = lock(&self.queue);
        match queue.waiting.front() {
            Some(next) => {
                *lock(&next.state) = Turn::Lead;
                next.changed.notify_one();
            }
            None => queue.led = false,
        }
    }
}

/// Hands over however the leader ends: nobody shall wait for one that is gone.
struct Leads<'a>(&'a Committer);

impl Drop for Leads<'_> {
    fn drop(&mut self) {
        self.0.hand_over();
    }
}

/// Writes the batches of a group one by one. The first one's result is the caller's.
#[cold]
fn each_alone(tree: &Tree<'_, EmbeddedHost>, group: &[Arc<Ticket>]) -> Result<()> {
    let mut first = None;
    for ticket in group {
        let result = write(tree, &[Work::Batch(&ticket.batch)], ticket.sync);
        if first.is_none() {
            first = Some(result);
            continue;
        }
        *lock(&ticket.state) = Turn::Done(result);
        ticket.changed.notify_one();
    }
    first.unwrap_or(Ok(()))
}

/// The error of a group, for each of its members.
fn shared(error: &Error, tree: &Tree<'_, EmbeddedHost>) -> Error {
    match error {
        Error::NoSpace(what) => Error::NoSpace(what.clone()),
        Error::MemoryFull { consumer, limit } => Error::MemoryFull { consumer: *consumer, limit: *limit },
        Error::Invalid(what) => Error::Invalid(what.clone()),
        other => match tree.host.health.check() {
            Err(e) => e,
            Ok(()) => Error::Unavailable(format!("a write in the same group failed: {other}")),
        },
    }
}

/// Appends the works as one unit, and makes them visible.
fn write(tree: &Tree<'_, EmbeddedHost>, works: &[Work<'_>], sync: bool) -> Result<()> {
    let host = &tree.host;
    host.health.check()?;
    let first = tree.next_row_id().0;
    let count = works.iter().map(Work::len).sum::<usize>() as u64;
    let appended = match works {
        [Work::One(change)] => tree.append(&[row(change, first + 1)])?,
        _ => {
            let mut rows = Vec::with_capacity(count as usize);
            for work in works {
                let writer = first + 1 + rows.len() as u64;
                match work {
                    Work::One(change) => rows.push(row(change, writer)),
                    Work::Batch(batch) => rows.extend(batch.changes().map(|c| row(&c, writer))),
                }
            }
            tree.append(&rows)?
        }
    };
    if appended.first.0 < first || appended.written as u64 != count {
        let what = format!("expected rows {first} and {count}, got {} and {}", appended.first, appended.written);
        return Err(host.health.fatal(Error::structure(what)));
    }
    if sync {
        host.log.sync()?;
    }
    host.sequences.publish(appended.first.0 + count);
    // One leads at a time.
    add_alone(&host.counters.groups, 1);
    add_alone(&host.counters.writes, works.len() as u64);
    add_alone(&host.counters.changes, count);
    add_alone(&host.counters.user_bytes, works.iter().map(Work::bytes).sum::<usize>() as u64);
    if host.log.newest_bytes() >= host.options.tree.memtable_bytes {
        // The rows are written: what goes wrong with the rotation is the next writer's concern.
        let _ = tree.rotate();
    }
    Ok(())
}

fn row<'a>(change: &Change<'a>, writer: u64) -> NewRow<'a> {
    let flags = if change.value.is_some() { Flags::default() } else { Flags::TOMBSTONE };
    let body = change.value.unwrap_or_default();
    NewRow::first(change.key, body, &Head { writer: Writer(writer), flags, ..Head::default() }, None)
}
