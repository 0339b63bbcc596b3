//! Reading in the order of the key: a list of ranges, forwards and backwards, with a mark to come back to. Or all rows in whatever
//! order is the quickest, and backwards in the opposite one.

use super::mvcc::View;
use super::{last_look, recent, tid, unread, Open, TableCursor};
use crate::codec::bound::Range;
use crate::host::process_local::{later, Later};
use crate::pg::{batch, portal, ssi};
use loosekv_engine::error::Result;
use loosekv_engine::host::Host;
use loosekv_engine::run::Spot;
use loosekv_engine::tree::{Asking, Direction};
use loosekv_engine::types::{RowBuf, RowRef};
use pgrx::pg_sys;
use std::ops::Bound;

/// Most keys fit.
const KEY_ROOM: usize = 32;
/// Bytes of a row whose room is kept from scan to scan.
const MOST_SPARED: usize = 16 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Position {
    Unstarted,
    /// In the range with this number.
    In(usize),
    BeforeFirst,
    AfterLast,
}

/// A position to come back to, and the key there.
struct Mark {
    position: Position,
    key: Vec<u8>,
}

/// What is to be read.
enum Wanted {
    /// One key.
    Point(Vec<u8>),
    /// Disjoint and ascending.
    Ranges(Vec<Range>),
}

impl Wanted {
    fn ranges(&self) -> usize {
        match self {
            Wanted::Point(_) => 1,
            Wanted::Ranges(ranges) => ranges.len(),
        }
    }

    /// All rows, in one range?
    fn is_all(&self) -> bool {
        matches!(self, Wanted::Ranges(ranges) if matches!(ranges.as_slice(), [range] if range.is_all()))
    }

    /// The range with this number, if it is not a single key.
    fn range(&self, number: usize) -> Option<&Range> {
        match self {
            Wanted::Point(_) => None,
            Wanted::Ranges(ranges) => ranges.get(number).filter(|range| range.point().is_none()),
        }
    }

    /// The range with this number, if it is a single key.
    fn point(&self, number: usize) -> Option<&[u8]> {
        match self {
            Wanted::Point(key) => (number == 0).then_some(key),
            Wanted::Ranges(ranges) => ranges.get(number)?.point(),
        }
    }
}

/// A cursor, and where it is heading. It is large, and most scans want one key and have none.
type Walk = Box<(TableCursor, Direction)>;

pub struct KeyScan {
    pub view: View,
    snapshot: pg_sys::Snapshot,
    wanted: Wanted,
    position: Position,
    /// All rows are wanted, in any order: then these, which stand for as many ranges, give them. One that is missing goes by key.
    any_order: bool,
    parts: Vec<Option<Walk>>,
    /// Of the range where we are; none when it is a single key.
    cursor: Option<Walk>,
    /// The row found last, of a range of one key.
    single: RowBuf,
    /// Single keys that were asked for ahead, while the ranges are gone through in this direction.
    asking: (Direction, Asking),
    mark: Option<Mark>,
    /// After a return to the mark: the marked key itself is not to be returned again.
    skip: Option<Vec<u8>>,
    /// Nobody needs to be told of the rows that come next.
    may_step: bool,
}

/// Room for a row that the scan before has left: most statements read one.
static SPARE: Later<RowBuf> = later();

impl Drop for KeyScan {
    fn drop(&mut self) {
        if self.single.body.capacity() <= MOST_SPARED {
            self.single.key.clear();
            self.single.body.clear();
            SPARE.replace(std::mem::take(&mut self.single));
        }
    }
}

impl KeyScan {
    /// # Safety
    /// `snapshot` is valid, and stays so while the scan is used.
    pub unsafe fn new(open: &Open, snapshot: pg_sys::Snapshot, ranges: Vec<Range>) -> KeyScan {
        // SAFETY: by the contract.
        let view = unsafe { View::new(open.rel, snapshot) };
        KeyScan {
            view,
            snapshot,
            wanted: Wanted::Ranges(ranges),
            position: Position::Unstarted,
            any_order: false,
            parts: Vec::new(),
            cursor: None,
            single: SPARE.take(),
            asking: (Direction::Forward, Asking::default()),
            mark: None,
            skip: None,
            may_step: false,
        }
    }

    /// The order is of no matter as long as all rows are read.
    pub fn in_any_order(mut self) -> KeyScan {
        self.any_order = self.view.is_mvcc();
        self
    }

    pub fn everything() -> Vec<Range> {
        vec![Range { lower: Bound::Unbounded, upper: Bound::Unbounded }]
    }

    /// Begins anew with other ranges.
    pub fn restart(&mut self, ranges: Vec<Range>) {
        self.rewind();
        self.parts.clear();
        self.wanted = Wanted::Ranges(ranges);
        self.mark = None;
    }

    /// Begins anew with a single key, which `put` appends to a buffer. False: it is no single key after all, there is nothing
    /// to read yet.
    pub fn restart_at(&mut self, put: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        self.rewind();
        self.parts.clear();
        let mut key = match std::mem::replace(&mut self.wanted, Wanted::Ranges(Vec::new())) {
            Wanted::Point(mut key) => {
                key.clear();
                key
            }
            Wanted::Ranges(_) => Vec::with_capacity(KEY_ROOM),
        };
        let single = put(&mut key);
        if single {
            self.wanted = Wanted::Point(key);
        }
        self.mark = None;
        single
    }

    /// Begins anew. Rows come in the same order as the first time, for a cursor may count them; where that is the order of keys, any
    /// superversion has it.
    pub fn rewind(&mut self) {
        self.may_step = false;
        self.put_back();
        for part in &mut self.parts {
            *part = part.take().and_then(|walk| Some(Box::new((walk.0.again()?, walk.1))));
        }
        self.position = Position::Unstarted;
        self.cursor = None;
        self.skip = None;
        self.asking.1 = Asking::default();
    }

    /// The row found last; it stays where it is until the scan moves.
    #[inline]
    pub fn row(&self) -> RowRef<'_> {
        match &self.cursor {
            Some(walk) => walk.0.row(),
            None => self.single.as_ref(),
        }
    }

    /// On to the next row, if it was found ahead: then `spot` tells it, and so does `row`.
    #[inline]
    pub fn step(&mut self, direction: Direction) -> bool {
        match &mut self.cursor {
            Some(walk) if walk.1 == direction && self.may_step => walk.0.step(),
            _ => false,
        }
    }

    /// Forwards to the end, if this is a scan of one key and stands at it. As `next` does it, where nothing has to be let go of.
    #[inline]
    pub fn leave_only_key(&mut self) -> bool {
        let leaves = matches!(self.wanted, Wanted::Point(_)) && self.position == Position::In(0);
        if leaves {
            self.position = Position::AfterLast;
        }
        leaves
    }

    /// Where the row stands that was found last, if it was found ahead.
    #[inline]
    pub fn spot(&self) -> Option<Spot<'_>> {
        self.cursor.as_ref()?.0.spot()
    }

    /// The next row; `row` tells it then.
    pub fn next(&mut self, open: &Open, direction: Direction) -> Result<bool> {
        if self.any_order && self.position == Position::Unstarted && self.parts.is_empty() && self.wanted.is_all() {
            let parts = open.tree.scan_apart(direction)?;
            self.wanted = Wanted::Ranges(vec![Range { lower: Bound::Unbounded, upper: Bound::Unbounded }; parts.len()]);
            self.parts = parts.into_iter().map(|cursor| Some(Box::new((cursor, direction)))).collect();
        }
        loop {
            let range = match (self.position, direction) {
                (Position::In(range), _) => {
                    if self.next_in_range(open, direction)? {
                        break;
                    }
                    next_range(range, direction)
                }
                (Position::Unstarted | Position::BeforeFirst, Direction::Forward) => Some(0),
                (Position::Unstarted | Position::AfterLast, Direction::Backward) => self.wanted.ranges().checked_sub(1),
                (Position::BeforeFirst, Direction::Backward) | (Position::AfterLast, Direction::Forward) => {
                    return Ok(false)
                }
            };
            match range.filter(|range| *range < self.wanted.ranges()) {
                Some(range) => {
                    if self.enter(open, range, direction)? {
                        break;
                    }
                }
                None => {
                    self.put_back();
                    self.let_go();
                    self.position = match direction {
                        Direction::Forward => Position::AfterLast,
                        Direction::Backward => Position::BeforeFirst,
                    };
                    return Ok(false);
                }
            }
        }
        let noting = recent::is_noting();
        if noting && !tid::is_unread(self.row().head.row_id) {
            recent::note(open, self.row());
            if let (Some(walk), true) = (&self.cursor, self.view.is_mvcc()) {
                last_look::note_scanned(open, &walk.0);
            }
        }
        self.may_step = !noting;
        Ok(true)
    }

    /// Goes to a range; a range of one key is read at once.
    fn enter(&mut self, open: &Open, number: usize, direction: Direction) -> Result<bool> {
        self.put_back();
        self.position = Position::In(number);
        self.may_step = false;
        self.skip = None;
        if let Some(key) = self.wanted.point(number) {
            if self.view.is_dirty() {
                batch::before_look_at(open.rel, key);
            }
            if self.view.is_mvcc() {
                ssi::read_key(open.rel, key, self.snapshot);
            }
            let either = self.view.is_dirty() || self.view.is_mvcc();
            if either && unread::is_wanted(open.rel, self.view.is_dirty()) {
                return self.view.find_or_leave(open, key, &mut self.single);
            }
            if self.wanted.ranges() > 1 {
                ask_ahead(&mut self.asking, &self.wanted, open, number, direction)?;
            }
            return self.view.find(open, key, &mut self.single);
        }
        let Some(range) = self.wanted.range(number) else { return Ok(false) };
        if self.view.is_mvcc() {
            ssi::read_table(open.rel, self.snapshot);
        } else {
            batch::before_use(open.rel);
        }
        self.cursor = match self.parts.get_mut(number).and_then(Option::take) {
            Some(part) => Some(part),
            None => {
                let cursor = open.tree.scan(as_bound(&range.lower), as_bound(&range.upper), direction)?;
                Some(Box::new((cursor, direction)))
            }
        };
        Ok(false)
    }

    /// Leaves the range: a part stays where it is, for it may be come back to.
    fn put_back(&mut self) {
        let left = self.cursor.take();
        if let Position::In(number) = self.position {
            if let Some(place) = self.parts.get_mut(number) {
                *place = left;
            }
        }
    }

    /// At its end, of whichever it is, a scan of all rows needs no superversion: that would keep the memtables of its beginning, for as long
    /// as the statement takes, in each table that this has come to the end of. What is in the order of keys any superversion has.
    fn let_go(&mut self) {
        match self.parts.as_mut_slice() {
            [] => {}
            [part] => *part = None,
            _ if portal::may_go_back() => {}
            _ => {
                self.parts.clear();
                self.wanted = Wanted::Ranges(Self::everything());
            }
        }
    }

    fn next_in_range(&mut self, open: &Open, direction: Direction) -> Result<bool> {
        let Some(walk) = &mut self.cursor else { return Ok(false) };
        let (cursor, heading) = &mut **walk;
        if *heading != direction {
            cursor.turn(direction);
            *heading = direction;
        }
        while self.view.next_in_place(open, cursor)? {
            match self.skip.take() {
                Some(key) if key == cursor.row().key => {}
                _ => return Ok(true),
            }
        }
        Ok(false)
    }

    pub fn set_mark(&mut self) {
        self.mark = Some(Mark { position: self.position, key: self.row().key.to_vec() });
    }

    /// Goes back to the mark: the row after the marked one comes next.
    pub fn return_to_mark(&mut self, open: &Open) -> Result<()> {
        let Some(mark) = &self.mark else {
            self.rewind();
            return Ok(());
        };
        let (position, key) = (mark.position, mark.key.clone());
        let direction = self.cursor.as_ref().map_or(Direction::Forward, |walk| walk.1);
        self.cursor = None;
        self.skip = None;
        self.may_step = false;
        self.position = position;
        let Position::In(number) = position else { return Ok(()) };
        let Some(range) = self.wanted.range(number) else { return Ok(()) };
        let mut cursor = open.tree.scan(as_bound(&range.lower), as_bound(&range.upper), direction)?;
        cursor.seek(&key);
        self.cursor = Some(Box::new((cursor, direction)));
        self.skip = Some(key);
        Ok(())
    }
}

/// Asks for the pages of single keys that come next.
fn ask_ahead(
    asking: &mut (Direction, Asking),
    wanted: &Wanted,
    open: &Open,
    number: usize,
    direction: Direction,
) -> Result<()> {
    if asking.0 != direction {
        *asking = (direction, Asking::default());
    }
    let ranges = wanted.ranges();
    // Counted from where the direction begins.
    let turned = |number: usize| if direction == Direction::Forward { number } else { ranges - 1 - number };
    for ahead in asking.1.come_to(turned(number), ranges, open.tree.host.pages_fetched()) {
        if let Some(key) = wanted.point(turned(ahead)) {
            open.tree.ask_for(key)?;
        }
    }
    Ok(())
}

fn next_range(range: usize, direction: Direction) -> Option<usize> {
    match direction {
        Direction::Forward => Some(range + 1),
        Direction::Backward => range.checked_sub(1),
    }
}

fn as_bound(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}
