//! A skip list of nodes in an arena: insert-only, links are 32-bit offsets, insertion by compare-and-swap.
//!
//! ```text
//!   level 2   head ----------------------------> n4 ------------------> 0
//!   level 1   head ----------> n2 -------------> n4 ------------------> 0
//!   level 0   head --> n1 --> n2 --> n3 -------> n4 --> n5 --> n6 ----> 0
//! ```
//!
//! Nodes never move and never vanish, so a predecessor once found is a predecessor for ever; it may only have stopped
//! being the nearest one. A node is in the list when level 0 leads to it; the levels above are short cuts, linked
//! upwards.

use super::arena::{Arena, UNIT};
use super::node::{tower_bytes, Node, Shape, Want, MAX_HEIGHT};
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) struct SkipList {
    pub(super) arena: Arena,
    /// The node before all others; it has only a tower.
    head: u32,
    /// Levels in use.
    height: AtomicU32,
}

/// Neighbours of a place on every level.
#[derive(Clone, Copy)]
pub(super) struct Path {
    before: [u32; MAX_HEIGHT],
    /// The node that followed when the search was there.
    after: [u32; MAX_HEIGHT],
    /// Levels that were searched; of those above nothing is known.
    levels: usize,
    /// The key's slot in the guides, where these have told the way.
    pub(super) slot: Option<u32>,
}

impl Path {
    pub(super) fn next(&self) -> u32 {
        self.after[0]
    }

    pub(super) fn levels(&self) -> usize {
        self.levels
    }

    /// Whether both have the same neighbours on the levels below `height`.
    #[cfg(test)]
    pub(super) fn leads_where(&self, other: &Path, height: usize) -> bool {
        let neighbours = |path: &Path| path.before.into_iter().zip(path.after).take(height).collect::<Vec<_>>();
        self.levels == height && neighbours(self) == neighbours(other)
    }

    /// Sets the neighbours on a level; the levels below it follow.
    pub(super) fn set(&mut self, level: usize, before: u32, after: u32) {
        if let (Some(to_before), Some(to_after)) = (self.before.get_mut(level), self.after.get_mut(level)) {
            (*to_before, *to_after) = (before, after);
            self.levels = self.levels.max(level + 1);
        }
    }
}

impl SkipList {
    pub(super) fn new(arena: Arena) -> Option<SkipList> {
        // The word behind the tower is never read, but its address is taken: it belongs to the block.
        let bytes = tower_bytes(MAX_HEIGHT) + UNIT;
        let block = arena.alloc((bytes / UNIT) as u32)?;
        // SAFETY: the block is ours; all zeros are empty links.
        unsafe { arena.at(block).write_bytes(0, bytes) };
        let head = block + (tower_bytes(MAX_HEIGHT) / UNIT) as u32;
        Some(SkipList { arena, head, height: AtomicU32::new(1) })
    }

    pub(super) fn head(&self) -> u32 {
        self.head
    }

    /// # Safety
    /// The offset is the head's or that of a node of this list.
    #[inline(always)]
    pub(super) unsafe fn node(&self, offset: u32) -> Node {
        // SAFETY: the caller's promise.
        Node(unsafe { self.arena.at(offset) })
    }

    /// # Safety
    /// The offset is the head's or that of a node of this list, higher than `level`.
    #[inline(always)]
    pub(super) unsafe fn link(&self, offset: u32, level: usize) -> &AtomicU32 {
        // SAFETY: the caller's promise.
        unsafe { self.node(offset).next(level) }
    }

    /// The node after this one, 0 at the end.
    ///
    /// # Safety
    /// The offset is the head's or that of a node of this list.
    pub(super) unsafe fn next(&self, offset: u32) -> u32 {
        // SAFETY: every node has level 0.
        unsafe { self.on(offset, 0) }
    }

    /// Where the node's, or the head's, link on a level leads; 0 at the end.
    ///
    /// # Safety
    /// The offset is the head's or that of a node of this list, higher than `level`.
    pub(super) unsafe fn on(&self, offset: u32, level: usize) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { self.link(offset, level).load(Ordering::Acquire) }
    }

    /// The nodes that stand on a level, in order.
    pub(super) fn on_level(&self, level: usize) -> impl Iterator<Item = Node> + Clone + '_ {
        let level = level.min(MAX_HEIGHT - 1);
        // SAFETY: the head has all levels; the others are reached on this one, and linked nodes are whole.
        let next = move |before: &u32| match unsafe { self.on(*before, level) } {
            0 => None,
            next => Some(next),
        };
        // SAFETY: as above.
        std::iter::successors(next(&self.head), next).map(|at| unsafe { self.node(at) })
    }

    /// Begins to fetch where a level below leads.
    ///
    /// # Safety
    /// As for [`SkipList::link`].
    #[inline(always)]
    unsafe fn prefetch(&self, before: u32, level: usize) {
        if level > 0 {
            // SAFETY: the caller's promise; every node has the levels below its highest.
            unsafe { self.node(self.link(before, level - 1).load(Ordering::Relaxed)) }.prefetch();
        }
    }

    fn levels(&self) -> usize {
        // Bounded where it is stored; the bound is repeated for the arrays' sake.
        (self.height.load(Ordering::Relaxed) as usize).min(MAX_HEIGHT)
    }

    /// Goes along a level, from a node before the place, until the next one is not: these two. `after` is where the level above
    /// stopped.
    ///
    /// # Safety
    /// `before` has this level.
    #[inline(always)]
    unsafe fn along(&self, level: usize, mut before: u32, after: u32, want: &Want<'_>) -> (u32, u32) {
        loop {
            // SAFETY: `before` was reached on this level or a higher one.
            let next = unsafe { self.link(before, level) }.load(Ordering::Acquire);
            if next == after {
                return (before, after);
            }
            // The comparison waits for memory; if it says to go down, this is the node after that.
            // SAFETY: as above.
            unsafe { self.prefetch(before, level) };
            // SAFETY: linked nodes are whole. (Only 0 is no node: the end.)
            if next == 0 || !unsafe { self.node(next).is_before(want) } {
                return (before, next);
            }
            before = next;
        }
    }

    /// Of the nodes that stand on a level, the last one before the place (or the head) and the first one that is not (or 0), at one
    /// moment neighbours.
    pub(super) fn seek_on(&self, level: usize, want: &Want<'_>) -> (u32, u32) {
        let mut before = self.head;
        // Where the level above stopped: no need to compare with that node again.
        let mut after = 0;
        for level in (level..self.levels()).rev() {
            // SAFETY: `before` was reached on a higher level, or is the head.
            (before, after) = unsafe { self.along(level, before, after, want) };
        }
        (before, after)
    }

    /// A path of which no level has been searched.
    pub(super) fn empty_path(&self) -> Path {
        Path { before: [self.head; MAX_HEIGHT], after: [0; MAX_HEIGHT], levels: 0, slot: None }
    }

    /// As [`SkipList::seek_on`], with the neighbours on all levels.
    pub(super) fn path(&self, want: &Want<'_>) -> Path {
        // Levels not in use yet begin and end at the head.
        let mut path = Path { levels: MAX_HEIGHT, ..self.empty_path() };
        let mut before = self.head;
        let mut after = 0;
        let neighbours = path.before.iter_mut().zip(&mut path.after).enumerate();
        for (level, (to_before, to_after)) in neighbours.take(self.levels()).rev() {
            // SAFETY: `before` was reached on a higher level, or is the head.
            (before, after) = unsafe { self.along(level, before, after, want) };
            *to_before = before;
            *to_after = after;
        }
        path
    }

    /// Brings the lowest level of a path up to date with what was linked since; returns the node that follows.
    pub(super) fn renew(&self, path: &mut Path, want: &Want<'_>) -> u32 {
        // SAFETY: the path's nodes are of this list and stand before `want`.
        let (before, after) = unsafe { self.advance(path.before[0], 0, want) };
        path.before[0] = before;
        path.after[0] = after;
        after
    }

    /// From a node before the place to its neighbours on this level.
    ///
    /// # Safety
    /// `before` is the head's offset or that of a node of this list, higher than `level`.
    #[inline]
    unsafe fn advance(&self, mut before: u32, level: usize, want: &Want<'_>) -> (u32, u32) {
        loop {
            // SAFETY: the caller's promise, or reached on this level.
            let next = unsafe { self.link(before, level) }.load(Ordering::Acquire);
            // SAFETY: linked nodes are whole.
            if next == 0 || !unsafe { self.node(next).is_before(want) } {
                return (before, next);
            }
            before = next;
        }
    }

    /// Links a node, whose place is `want`. `exact`: the path's successors are known to stand after that place, so that
    /// only what came since then is looked at. The path stays as it is: its predecessors stand before all versions of
    /// the key, which those found here need not.
    ///
    /// # Safety
    /// The node is whole but for its tower, of this shape, in this list's arena and linked nowhere. The path is of this
    /// list, and its predecessors stand before `want`.
    pub(super) unsafe fn insert(&self, path: &Path, new: u32, shape: Shape, want: &Want<'_>, exact: bool) {
        let height = shape.height();
        if height > self.levels() {
            self.height.fetch_max(height as u32, Ordering::Relaxed);
        }
        for (level, (before, after)) in path.before.iter().zip(&path.after).enumerate().take(height) {
            let (mut before, mut after) = (*before, *after);
            if !exact {
                // SAFETY: the path reaches its level.
                (before, after) = unsafe { self.advance(before, level, want) };
            }
            loop {
                // SAFETY: the node is this high. Until it is linked on this level nobody else touches this link.
                unsafe { self.link(new, level) }.store(after, Ordering::Relaxed);
                // SAFETY: the path, and what is found from it, reaches its level.
                let link = unsafe { self.link(before, level) };
                // Release: who finds the node finds it whole.
                if link.compare_exchange(after, new, Ordering::Release, Ordering::Relaxed).is_ok() {
                    break;
                }
                // SAFETY: as above.
                (before, after) = unsafe { self.advance(before, level, want) };
            }
        }
    }
}
