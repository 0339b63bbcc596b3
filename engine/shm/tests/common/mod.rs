//! What the tests that fork share: a segment, children, random numbers, and an index in the shared heap.

#![allow(dead_code)]

use crossbeam_skiplist::base::SkipList;
use loosekv_shm::{epoch, heap, scope, Full, Needs, SharedAlloc};
use std::io::Write;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering::*};

#[global_allocator]
static ALLOC: SharedAlloc = SharedAlloc;

/// A segment that children share. Never unmapped.
pub fn segment(size: usize) -> *mut u8 {
    // SAFETY: a new mapping.
    let mem = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert_ne!(mem, libc::MAP_FAILED);
    mem.cast()
}

pub struct Child(pub i32);

/// Runs `f` in a forked process, which then leaves the heap in order and exits with 0, or with 101 after a panic.
pub fn fork(f: impl FnOnce()) -> Child {
    let _ = std::io::stdout().flush();
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        0 => {
            let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_ok();
            loosekv_shm::leave();
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(if ok { 0 } else { 101 }) }
        }
        pid => {
            assert!(pid > 0, "fork");
            Child(pid)
        }
    }
}

impl Child {
    /// How it ended: Ok, or the exit code (negative: the signal).
    pub fn wait(self) -> Result<(), i32> {
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
        match () {
            () if libc::WIFSIGNALED(status) => Err(-libc::WTERMSIG(status)),
            () if libc::WEXITSTATUS(status) != 0 => Err(libc::WEXITSTATUS(status)),
            () => Ok(()),
        }
    }

    pub fn kill(&self) {
        // SAFETY: our own child, not waited for yet.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

pub fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Keys of both kinds: short ones are all in the node, long ones have bytes in a box.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Debug)]
pub struct Key(pub u64, pub Box<[u8]>);

/// Whoever searches the list unlinks what others are about to, and retires it: in the scope.
pub struct Index(SkipList<Key, AtomicU64>);

/// Tower heights 1..=32, the longest key, a bag.
const NEEDS: Needs = {
    let fixed = 8 + 24 + 8;
    let mut sizes = [0; 34];
    let mut h = 0;
    while h < 32 {
        sizes[h] = fixed + 8 * (h + 1);
        h += 1;
    }
    sizes[32] = 16;
    sizes[33] = 32;
    Needs::of(&sizes).and(epoch::NEEDS)
};

/// The longest byte part of a key.
pub const LONGEST: usize = 32;

impl Index {
    /// A new one in the heap, reachable from root 0.
    pub fn create() {
        NEEDS.reserve().expect("room in a new heap");
        let index = scope::with(|| Box::into_raw(Box::new(Index(SkipList::new(epoch::collector().clone())))));
        loosekv_shm::assert_shared(index);
        heap::root(0).store(index as usize, Release);
    }

    pub fn get_shared() -> &'static Index {
        // SAFETY: `create` stored it, and nobody frees it.
        unsafe { &*(heap::root(0).load(Acquire) as *const Index) }
    }

    fn shared(key: &Key) -> Key {
        key.clone()
    }

    /// In-place: an existing key's value is stored into.
    pub fn put(&self, key: &Key, value: u64) -> Result<(), Full> {
        NEEDS.reserve()?;
        let pin = epoch::pin();
        scope::with(|| loop {
            let entry = self.0.get_or_insert(Self::shared(key), AtomicU64::new(value), &pin);
            if entry.value().load(Relaxed) != value {
                entry.value().store(value, Release);
            }
            let gone = entry.is_removed();
            entry.release(&pin);
            if !gone {
                return;
            }
        });
        Ok(())
    }

    pub fn get(&self, key: &Key) -> Option<u64> {
        let pin = epoch::pin();
        scope::with(|| self.0.get(key, &pin).map(|e| e.value().load(Acquire)))
    }

    pub fn remove(&self, key: &Key) -> Result<Option<u64>, Full> {
        epoch::NEEDS.reserve_emergency()?;
        let pin = epoch::pin();
        Ok(scope::with(|| {
            self.0.remove(key, &pin).map(|entry| {
                let value = entry.value().load(Acquire);
                entry.release(&pin);
                value
            })
        }))
    }

    /// Entries from `from` up to, not including, `to`, copied into private memory.
    pub fn scan(&self, from: &Key, to: &Key) -> Vec<(Key, u64)> {
        let pin = epoch::pin();
        let mut out = vec![];
        let mut entries = self.0.range((Bound::Included(from), Bound::Excluded(to)), &pin);
        while let Some(entry) = scope::with(|| entries.next()) {
            out.push((entry.key().clone(), entry.value().load(Acquire)));
        }
        assert!(!heap::contains(out.as_ptr()) || out.is_empty());
        out
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Key `j` of a client.
pub fn key(client: u64, j: u64) -> Key {
    let bytes = vec![j as u8; (mix(j) % (LONGEST as u64 + 1)) as usize];
    Key(client << 40 | (mix(j) & 0xff_ffff) << 16 | j & 0xffff, bytes.into_boxed_slice())
}

pub fn low(client: u64) -> Key {
    Key(client << 40, Box::default())
}

/// A value that says which key it was written for.
pub fn checked(key: u64, payload: u64) -> u64 {
    payload << 16 | (mix(key ^ mix(payload & 0xffff_ffff_ffff)) & 0xffff)
}

pub fn is_checked(key: u64, value: u64) -> bool {
    checked(key, value >> 16) == value
}
