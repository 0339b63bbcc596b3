//! The tree: everything that the engine does with a table, over whatever [`crate::host::Host`] holds its bytes.
//!
//! | module | what |
//! |---|---|
//! | `shared` | the state that all processes see, a cache of the pages |
//! | `live_options` | options, which may change meanwhile |
//! | `version` | superversions and their pins |
//! | `write`, `read`, `scan` | what statements do |
//! | `by_row`, `together` | reading by row id, one row or several at once |
//! | `flush`, `compact`, `indexing` | what happens in the background |
//! | `retention`, `pick` | their decisions, pure |
//! | `worth` | whether the key index is worth its upkeep |
//! | `stale` | values that a merge drops early, for the key index knows a newer version |
//! | `sources`, `guide` | the two ways of a scan |
//! | `survey` | all versions of all keys, for who looks for the dead |
//! | `ahead`, `words` | which rows of a merge come next; eight bytes by which it compares keys |
//! | `asking` | which keys of a list are asked for before they are read |
//! | `reach` | how far scans go, and what they ask for beforehand |
//! | `behind` | a superversion that could not be installed after its flip |
//! | `barren` | where scans begin and nothing lives |
//! | `sink` | pages at the end of the store move down, so that the end can be given back |
//! | `full_disk` | what is kept back for a full disk, and done there |
//! | `ledger` | extents and flips: how the manifest changes |
//! | `value_log`, `value_write`, `value_space` | large bodies: reading, writing, what becomes of their extents |
//! | `load` | from pages to shared state |
//! | `check` | whether all of it is sound |
//! | `follow` | keeping up with pages that a standby's replay changes |

mod ahead;
mod apart;
mod asking;
mod barren;
mod behind;
mod by_row;
mod chain;
mod check;
mod compact;
mod count;
mod flush;
mod follow;
mod full_disk;
mod garbage;
mod given_up;
mod guide;
mod indexing;
#[cfg(test)]
mod interleaved;
mod latched;
mod ledger;
mod live_options;
pub(crate) mod load;
#[cfg(test)]
mod model;
mod pick;
mod reach;
mod read;
mod retention;
mod scan;
mod shared;
mod sink;
mod slices;
mod sources;
mod stale;
mod strays;
mod survey;
mod together;
mod value_log;
mod value_space;
#[cfg(test)]
mod value_tests;
mod value_write;
mod version;
mod words;
mod worth;
mod write;

pub use asking::Asking;
pub use by_row::Looked;
pub use check::{Finding, Phase, Watch};
pub use follow::{Holder, Next};
pub use full_disk::{for_deletes, is_much_room};
pub use live_options::LiveOptions;
pub use scan::Cursor;
pub use shared::{Counters, Coverage, Shared, BLANK};
pub use sink::Ebb;
pub use together::Placed;
pub use value_log::{fuzz_value, LargeValue, MAX_VALUE};
pub use version::{unpin_by_force, SuperVersion};
pub use write::MOST_STRIPED;

use crate::host::Host;
use crate::manifest::RunDesc;
use crate::memtable::NodeRef;
use crate::mutation::Pause;
use crate::types::{Fate, Flags, Head, L0Id, RowId, Writer};

/// A process's handle on a table: cheap to make, one for each use.
pub struct Tree<'a, H: Host> {
    shared: &'a Shared<H>,
    pub host: H,
}

impl<'a, H: Host> Tree<'a, H> {
    pub fn new(shared: &'a Shared<H>, host: H) -> Tree<'a, H> {
        Tree { shared, host }
    }

    pub fn shared(&self) -> &'a Shared<H> {
        self.shared
    }

    /// Here others may come in between; nothing is latched. Does nothing but in tests.
    #[inline(always)]
    fn pause(&self, _at: Pause) {
        #[cfg(test)]
        self.host.paused(self, _at);
    }
}

/// What is known of a version's writer where the version stands.
pub struct Hint<'a> {
    node: Option<NodeRef<'a>>,
    settled: bool,
}

impl<'a> Hint<'a> {
    fn of_node(node: &NodeRef<'a>) -> Hint<'a> {
        Hint { node: Some(*node), settled: false }
    }

    fn of_run(run: &RunDesc) -> Hint<'static> {
        Hint { node: None, settled: run.settled }
    }

    /// `Committed` or `Aborted`, if somebody noted it before; `Committed` in a settled run.
    pub fn get(&self) -> Option<Fate> {
        match &self.node {
            Some(node) => node.get_fate(),
            None => self.settled.then_some(Fate::Committed),
        }
    }

    /// Notes `Committed` or `Aborted` for those who come later.
    pub fn set(&self, fate: Fate) {
        if let Some(node) = &self.node {
            node.set_fate(fate);
        }
    }
}

/// What a look-up saw, for [`Tree::append`] to check that nothing came in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    version: u64,
    flushed: L0Id,
    /// The newest version of the key, whoever wrote it; of one that was not read ([`Observed::is_unread`]), no row's id.
    pub newest: Option<RowId>,
}

impl Observed {
    /// Stands for a version that [`Tree::find_or_leave`] left unread. No row version has this id.
    const UNREAD: RowId = RowId(u64::MAX);

    /// The key has a row that was not read.
    pub fn is_unread(&self) -> bool {
        self.newest == Some(Observed::UNREAD)
    }
}

/// How a look-up ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// A version was taken and is in the caller's buffer (it may be a tombstone).
    pub taken: bool,
    pub observed: Observed,
}

/// A row version to be written.
#[derive(Clone, Copy, Debug)]
pub struct NewRow<'a> {
    pub key: &'a [u8],
    pub body: &'a [u8],
    pub writer: Writer,
    pub command: u32,
    pub flags: Flags,
    pub incarnation: u16,
    /// There was no row with this key. For what is known of their number alone ([`Tree::rows_about`]).
    pub begins: bool,
    /// `None`: write whatever stands there. `Some`: only if the key is as it was seen.
    pub expect: Option<Observed>,
}

impl<'a> NewRow<'a> {
    /// The first version of a row, with this head but for its row id.
    pub fn first(key: &'a [u8], body: &'a [u8], head: &Head, expect: Option<Observed>) -> NewRow<'a> {
        let &Head { writer, command, flags, incarnation, .. } = head;
        NewRow { key, body, writer, command, flags, incarnation, begins: true, expect }
    }
}

/// What became of an append: `written` rows, in order, with consecutive row ids from `first`. Fewer than were given: there
/// were many, or more than the memtable had room for (go on with the next), or the next one's key is not as it was observed
/// any more (look again).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    pub written: usize,
    pub first: RowId,
}

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}
