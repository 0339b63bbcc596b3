//! The fuzz corpus, and some thousand mutations of it, through every decoder: an answer or an error, never a panic, never
//! much memory.
//!
//! `LOOSEKV_FUZZ=n` makes it n mutations for each target; `LOOSEKV_FUZZ_SEED=s` other ones; `engine/fuzz` is for more.

use loosekv_engine::embedded::sim::Random;
use loosekv_engine::fuzz::{Target, TARGETS};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// Notes the largest block that this thread has asked for.
struct Watched;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
    /// What the last panic said, and where.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// No decoder needs more at once, whatever lengths it reads.
const MOST_MEMORY: usize = 16 << 20;

/// Mutations of a target's corpus.
const USUAL: u64 = 1500;
const LONGEST: usize = 64 << 10;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", dir.display());
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Tells what is wrong, if anything is.
fn trial(target: Target, bytes: &[u8]) -> Result<(), String> {
    LARGEST.set(0);
    if catch_unwind(|| target(bytes)).is_err() {
        return Err(SAID.take());
    }
    match LARGEST.get() {
        fine if fine <= MOST_MEMORY => Ok(()),
        much => Err(format!("took {much} bytes at once")),
    }
}

/// Bytes that decoders are likely to stumble over.
const SPECIAL: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX >> 1, u64::MAX - 1, u64::MAX];

fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    // Heads matter most, and most of a page is not one.
    let reach = if random.chance(50) { bytes.len().min(64) } else { bytes.len() };
    let at = random.below(reach as u64) as usize;
    let length = random.below(1 + (bytes.len() - at).min(40) as u64) as usize;
    match random.below(8) {
        0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.bits() as u8),
        2 | 3 => {
            let value = SPECIAL[random.below(SPECIAL.len() as u64) as usize].to_le_bytes();
            let width = 1 << random.below(4);
            bytes.iter_mut().skip(at).zip(value.into_iter().take(width)).for_each(|(to, from)| *to = from);
        }
        4 => drop(bytes.drain(at..at + length)),
        5 => {
            let piece = bytes[at..at + length].to_vec();
            bytes.splice(at..at, piece);
        }
        6 => bytes.truncate(at),
        _ => {
            let from = random.below(other.len() as u64) as usize;
            let piece = other[from..(from + length).min(other.len())].to_vec();
            bytes.splice(at..at + length, piece);
        }
    }
    bytes.truncate(LONGEST * 2);
}

#[test]
fn no_decoder_panics_whatever_the_bytes_are() {
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |n| n.parse().expect("a number"));
    let (count, seed) = (number("LOOSEKV_FUZZ", USUAL), number("LOOSEKV_FUZZ_SEED", 1));
    std::panic::set_hook(Box::new(|panic| SAID.set(panic.to_string())));
    let mut wrong = Vec::new();
    for (name, target) in TARGETS {
        let files = corpus(name);
        for (path, bytes) in &files {
            if let Err(what) = trial(target, bytes) {
                wrong.push(format!("{}: {what}", path.display()));
            }
        }
        let mut random = Random::new(seed);
        for at in 0..count {
            let mut pick = || &files[random.below(files.len() as u64) as usize].1;
            let (mut bytes, other) = (pick().clone(), pick());
            for _ in 0..1 + random.below(4) {
                mutate(&mut bytes, other, &mut random);
            }
            if let Err(what) = trial(target, &bytes) {
                let file = std::env::temp_dir().join(format!("loosekv-fuzz-{name}-{seed}-{at}"));
                fs::write(&file, &bytes).unwrap();
                wrong.push(format!("{name}, mutation {at} of seed {seed}, kept in {}: {what}", file.display()));
                break;
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
