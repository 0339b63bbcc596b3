//! A cache of copied pages with a budget in bytes: shards of a clock each.
//!
//! While there is room every page is taken; then one that was offered before, not long ago: others pass by, as those of a scan do, and
//! stay where the operating system keeps what was read.
//!
//! A page that is being read is kept alive by its readers' references, so eviction never waits; memory in use can exceed the
//! budget by the pages being read at that moment.

use super::health::lock;
use crate::page::PageBuf;
use crate::types::{PageNo, PAGE_SIZE};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

const SHARDS: usize = 16;

pub struct PageCache {
    shards: Box<[Mutex<Shard>]>,
    /// Pages a shard may hold.
    room: usize,
}

#[derive(Default)]
struct Shard {
    places: HashMap<PageNo, usize>,
    slots: Vec<Slot>,
    hand: usize,
    /// Pages that were offered and not taken, and those of the time before that: as many as the shard has room for.
    offered: HashSet<PageNo>,
    offered_before: HashSet<PageNo>,
}

struct Slot {
    page: PageNo,
    buf: Arc<PageBuf>,
    /// Read since the hand last passed.
    used: bool,
}

impl PageCache {
    pub fn new(bytes: usize) -> PageCache {
        let room = bytes.div_ceil(PAGE_SIZE * SHARDS);
        let shards = if room == 0 { Box::default() } else { (0..SHARDS).map(|_| Mutex::default()).collect() };
        PageCache { shards, room }
    }

    fn shard(&self, page: PageNo) -> Option<&Mutex<Shard>> {
        // Neighbours go to different shards: a scan then takes turns.
        self.shards.get(page.0 as usize % SHARDS)
    }

    pub fn get(&self, page: PageNo) -> Option<Arc<PageBuf>> {
        let mut shard = lock(self.shard(page)?);
        let place = *shard.places.get(&page)?;
        let slot = shard.slots.get_mut(place)?;
        slot.used = true;
        Some(Arc::clone(&slot.buf))
    }

    pub fn has(&self, page: PageNo) -> bool {
        self.shard(page).is_some_and(|shard| lock(shard).places.contains_key(&page))
    }

    /// A page that was read. True: it is in the cache now.
    pub fn offer(&self, page: PageNo, buf: &Arc<PageBuf>) -> bool {
        let Some(shard) = self.shard(page) else { return false };
        let mut shard = lock(shard);
        let taken = shard.slots.len() < self.room || shard.was_offered(page, self.room);
        if taken {
            shard.insert(page, Arc::clone(buf), self.room);
        }
        taken
    }

    pub fn remove(&self, page: PageNo) {
        if let Some(shard) = self.shard(page) {
            lock(shard).remove(page);
        }
    }
}

impl Shard {
    /// Whether the page was offered before; it is noted that it is now.
    fn was_offered(&mut self, page: PageNo, room: usize) -> bool {
        if self.offered.remove(&page) || self.offered_before.remove(&page) {
            return true;
        }
        if self.offered.len() >= room {
            self.offered_before = std::mem::take(&mut self.offered);
        }
        self.offered.insert(page);
        false
    }

    fn insert(&mut self, page: PageNo, buf: Arc<PageBuf>, room: usize) {
        let slot = Slot { page, buf, used: false };
        if let Some(old) = self.places.get(&page).and_then(|place| self.slots.get_mut(*place)) {
            *old = slot;
            return;
        }
        if self.slots.len() < room {
            self.places.insert(page, self.slots.len());
            self.slots.push(slot);
            return;
        }
        // Two turns of the clock pass every slot once unused.
        for _ in 0..=2 * self.slots.len() {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len().max(1);
            let Some(old) = self.slots.get_mut(place) else { return };
            if !std::mem::take(&mut old.used) {
                self.places.remove(&old.page);
                *old = slot;
                self.places.insert(page, place);
                return;
            }
        }
    }

    fn remove(&mut self, page: PageNo) {
        if let Some(place) = self.places.remove(&page) {
            self.slots.swap_remove(place);
            if let Some(moved) = self.slots.get(place) {
                self.places.insert(moved.page, place);
            }
            self.hand = if self.slots.is_empty() { 0 } else { self.hand % self.slots.len() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(byte: u8) -> Arc<PageBuf> {
        let mut page = PageBuf::ZERO;
        page.0.fill(byte);
        Arc::new(page)
    }

    /// Until it is taken.
    fn insist(cache: &PageCache, no: PageNo, page: &Arc<PageBuf>) {
        assert!(cache.offer(no, page) || cache.offer(no, page), "offered twice");
    }

    #[test]
    fn holds_its_budget_and_keeps_what_is_read() {
        let cache = PageCache::new(PAGE_SIZE * SHARDS * 4);
        for round in 0..100u32 {
            let no = PageNo(round * SHARDS as u32);
            insist(&cache, no, &page(round as u8));
            // Page 0 is read all the time, and so outlives the others.
            assert_eq!(cache.get(PageNo(0)).unwrap().0[0], 0);
        }
        assert_eq!(lock(&cache.shards[0]).slots.len(), 4);
        assert_eq!(cache.get(PageNo(99 * SHARDS as u32)).unwrap().0[7], 99);
        cache.remove(PageNo(0));
        assert!(cache.get(PageNo(0)).is_none() && !cache.has(PageNo(0)));
        assert_eq!(lock(&cache.shards[0]).slots.len(), 3);
        insist(&cache, PageNo(99 * SHARDS as u32), &page(5));
        assert_eq!(cache.get(PageNo(99 * SHARDS as u32)).unwrap().0[7], 5);
    }

    #[test]
    fn pages_that_pass_by_displace_nothing() {
        let cache = PageCache::new(PAGE_SIZE * SHARDS * 4);
        let no = |n: u32| PageNo(n * SHARDS as u32);
        (0..4).for_each(|n| assert!(cache.offer(no(n), &page(n as u8)), "there is room"));
        (4..1000).for_each(|n| assert!(!cache.offer(no(n), &page(n as u8))));
        assert!((0..4).all(|n| cache.has(no(n))));
        // Not long ago, and long ago.
        assert!(cache.offer(no(998), &page(1)) && cache.has(no(998)));
        assert!(!cache.offer(no(900), &page(2)));
        let shard = lock(&cache.shards[0]);
        assert!(shard.offered.len() <= 4 && shard.offered_before.len() <= 4);
    }

    #[test]
    fn no_budget_holds_nothing() {
        let cache = PageCache::new(0);
        assert!(!cache.offer(PageNo(1), &page(1)));
        assert!(cache.get(PageNo(1)).is_none());
    }
}
