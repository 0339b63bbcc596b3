//! The last look for the newest version of a key.
//!
//! A statement that changes a row finds it, by key or by a scan, locks it and replaces it, and each of these steps asks for the
//! newest version of the same key. What the step before saw still holds if nobody has written the key since, and that a glance
//! at the memtable tells (or at the key index, if a memtable was flushed meanwhile): no run is asked again. Kept within one
//! statement.

use super::mvcc::{Newest, Standing};
use super::{recent, Open, TableCursor};
use crate::host::process_local::{ProcessLocal, WithBorrow};
use crate::pg::xact;
use loosekv_engine::tree::Observed;
use loosekv_engine::types::{Flags, RowBuf};
use std::cell::RefCell;

struct Look {
    /// File of the table; 0: nothing is known.
    file: u32,
    key: Vec<u8>,
    newest: Option<Newest>,
    observed: Observed,
}

impl Look {
    fn is_about(&self, open: &Open, key: &[u8]) -> bool {
        self.file == open.file() && self.key == key
    }
}

static LAST: ProcessLocal<RefCell<Option<Look>>> = ProcessLocal::new(RefCell::new(None));

/// Notes the newest version of the key whose writer did not abort; only what cannot change unseen is kept.
pub fn note(open: &Open, key: &[u8], newest: Option<Newest>, observed: Observed) {
    if !recent::is_noting() {
        return;
    }
    let passing = Flags::SPECULATIVE.0 | Flags::KILLED.0;
    let lasting = newest.is_none_or(|newest| {
        newest.head.flags.0 & passing == 0
            && matches!(newest.standing, Standing::Mine | Standing::Committed)
            && observed.newest == Some(newest.head.row_id)
    });
    LAST.with_borrow_mut(|last| {
        if !lasting || (newest.is_none() && observed.newest.is_some()) {
            *last = None;
            return;
        }
        let mut space = last.take().map(|look| look.key).unwrap_or_default();
        space.clear();
        space.extend_from_slice(key);
        *last = Some(Look { file: open.file(), key: space, newest, observed });
    });
}

/// Notes what an MVCC snapshot's scan has found, if that is the newest version of its key.
pub fn note_scanned(open: &Open, cursor: &TableCursor) {
    if let Some(observed) = cursor.observed() {
        let row = cursor.row();
        note(open, row.key, Some(Newest::seen(row.head)), observed);
    }
}

/// What was observed with this row version, if it was the newest of its key, committed, and the last that was looked at.
pub fn observed(open: &Open, row: &RowBuf) -> Option<Observed> {
    LAST.with_borrow(|last| {
        let look = last.as_ref().filter(|look| look.is_about(open, &row.key))?;
        let is_it = |newest: &Newest| newest.head.row_id == row.head.row_id && newest.standing == Standing::Committed;
        look.newest.as_ref().is_some_and(is_it).then_some(look.observed)
    })
}

/// What was noted, if it is about this key and still true.
pub fn recall(open: &Open, key: &[u8]) -> Option<(Option<Newest>, Observed)> {
    let (newest, observed) = LAST.with_borrow(|last| {
        let look = last.as_ref().filter(|look| look.is_about(open, key))?;
        Some((look.newest, look.observed))
    })?;
    // A savepoint may have been rolled back.
    let lost = newest.is_some_and(|n| n.standing == Standing::Mine && !xact::is_mine(n.head.writer));
    match lost {
        true => None,
        false => open.tree.renew(key, observed).map(|observed| (newest, observed)),
    }
}

/// Another statement begins, or another table may get the file's number.
pub fn forget() {
    LAST.with_borrow_mut(|last| *last = None);
}
