//! Searches for the places of many keys, by guides and side by side: while a node that one of them wants to look at is fetched, the others
//! look at theirs.
//!
//! ```text
//!   search (of a key, on a level):   slot --> a node near --> the one after it --> ... --> one that is not before the key
//!                                              '-- is not before the key: a node of the slots before --> the one after it --> ...
//! ```
//!
//! It is the search of [`Guides::path`], cut where it would wait for memory.

use super::guides::{Guides, LEVELS, MOST_STEPS};
use super::node::Want;
use super::skip_list::{Path, SkipList};

/// A key's place is wanted on the levels below `height`.
pub(super) struct Wanted<'k> {
    pub(super) want: Want<'k>,
    pub(super) height: usize,
}

/// On one level, for one of those that are wanted.
struct Search {
    of: usize,
    level: usize,
    /// Of that level.
    slot: usize,
    /// Stands before the place; 0: not known yet.
    before: u32,
    /// A node that is being fetched, to be looked at next; 0: what follows `before`, whose link is being fetched.
    at: u32,
    steps: u32,
}

enum Step {
    Next,
    /// The neighbours of the place.
    Found(u32, u32),
    GivenUp,
}

impl Guides {
    /// A path for each of those that are wanted. `None`: search from the head.
    pub(super) fn paths(&self, list: &SkipList, wanted: &[Wanted<'_>]) -> Vec<Option<Path>> {
        let Some(block) = self.block() else { return vec![None; wanted.len()] };
        let (mut paths, mut searches) = (Vec::with_capacity(wanted.len()), Vec::with_capacity(2 * wanted.len()));
        for (of, Wanted { want, height }) in wanted.iter().enumerate() {
            if *height > LEVELS {
                paths.push(None);
                continue;
            }
            let slot = self.slot_of(list, block, want.key());
            for level in 0..*height {
                crate::cpu::prefetch(self.slot(list, block, level, slot >> level));
                searches.push(Search { of, level, slot: slot >> level, before: 0, at: 0, steps: 0 });
            }
            let mut path = list.empty_path();
            path.slot = u32::try_from(slot).ok();
            paths.push(Some(path));
        }
        searches.retain_mut(|search| match self.near(list, block, search.level, search.slot) {
            Some(near) => {
                search.look_at(list, near);
                true
            }
            None => {
                forget(&mut paths, search.of);
                false
            }
        });
        while !searches.is_empty() {
            searches.retain_mut(|search| {
                let Some(wanted) = wanted.get(search.of) else { return false };
                match search.step(self, list, block, &wanted.want) {
                    Step::Next => return true,
                    Step::GivenUp => forget(&mut paths, search.of),
                    Step::Found(before, after) => {
                        if let Some(Some(path)) = paths.get_mut(search.of) {
                            path.set(search.level, before, after);
                        }
                    }
                }
                false
            });
        }
        paths
    }
}

fn forget(paths: &mut [Option<Path>], of: usize) {
    if let Some(path) = paths.get_mut(of) {
        *path = None;
    }
}

impl Search {
    fn look_at(&mut self, list: &SkipList, node: u32) {
        self.at = node;
        // SAFETY: the offset of a node of this list, or of its head.
        unsafe { list.node(node) }.prefetch();
    }

    /// What is wanted of memory has been fetched since the step before.
    #[inline]
    fn step(&mut self, guides: &Guides, list: &SkipList, block: u32, want: &Want<'_>) -> Step {
        let reaches = |at| {
            // SAFETY: slots and links of this level lead to whole nodes.
            at == list.head() || unsafe { list.node(at).is_before(want) }
        };
        match (self.before, self.at) {
            // It is in the place's own slot: nodes of slots before that stand before the place.
            (0, near) if !reaches(near) => {
                let before = match self.slot.checked_sub(1) {
                    Some(slot) => guides.near(list, block, self.level, slot),
                    None => Some(list.head()),
                };
                let Some(before) = before else { return Step::GivenUp };
                self.look_at(list, before);
                (self.before, self.at) = (before, 0);
                return Step::Next;
            }
            (0, near) => self.before = near,
            (_, 0) => {}
            (before, at) if !reaches(at) => return Step::Found(before, at),
            (_, at) => {
                self.steps += 1;
                if self.steps == MOST_STEPS {
                    guides.give_up();
                    return Step::GivenUp;
                }
                self.before = at;
            }
        }
        // SAFETY: it is linked on this level, or the head.
        match unsafe { list.on(self.before, self.level) } {
            0 => Step::Found(self.before, 0),
            next => {
                self.look_at(list, next);
                Step::Next
            }
        }
    }
}
