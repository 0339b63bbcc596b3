//! A cache of copied pages with a budget in bytes: shards of a clock each.
//!
//! A page that is being read is kept alive by its readers' references, so eviction never waits; memory in use can exceed the
//! budget by the pages being read at that moment.

use super::health::lock;
use crate::page::PageBuf;
use crate::types::{PageNo, PAGE_SIZE};
use std::collections::HashMap;
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

    pub fn insert(&self, page: PageNo, buf: &Arc<PageBuf>) {
        if let Some(shard) = self.shard(page) {
            lock(shard).insert(page, Arc::clone(buf), self.room);
        }
    }

    pub fn remove(&self, page: PageNo) {
        if let Some(shard) = self.shard(page) {
            lock(shard).remove(page);
        }
    }
}

impl Shard {
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

    #[test]
    fn holds_its_budget_and_keeps_what_is_read() {
        let cache = PageCache::new(PAGE_SIZE * SHARDS * 4);
        for round in 0..100u32 {
            let no = PageNo(round * SHARDS as u32);
            cache.insert(no, &page(round as u8));
            // Page 0 is read all the time, and so outlives the others.
            assert_eq!(cache.get(PageNo(0)).unwrap().0[0], 0);
        }
        assert_eq!(lock(&cache.shards[0]).slots.len(), 4);
        assert_eq!(cache.get(PageNo(99 * SHARDS as u32)).unwrap().0[7], 99);
        cache.remove(PageNo(0));
        assert!(cache.get(PageNo(0)).is_none());
        assert_eq!(lock(&cache.shards[0]).slots.len(), 3);
        cache.insert(PageNo(99 * SHARDS as u32), &page(5));
        assert_eq!(cache.get(PageNo(99 * SHARDS as u32)).unwrap().0[7], 5);
    }

    #[test]
    fn no_budget_holds_nothing() {
        let cache = PageCache::new(0);
        cache.insert(PageNo(1), &page(1));
        assert!(cache.get(PageNo(1)).is_none());
    }
}
