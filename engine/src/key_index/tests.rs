//! The key index against a model, and its races.

use super::*;
use crate::tree::Direction;
use crate::types::MAX_KEY;
use loosekv_shm::ThreadLatch;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

type Index = KeyIndex<ThreadLatch>;
type Model = BTreeMap<Vec<u8>, IndexEntry>;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn key(&mut self) -> Vec<u8> {
        let mut key = [b"".as_slice(), b"a", b"aaaaaaaa", b"aaaaaaaaaaaaaaaaaaaaaa", &[b'b'; 60]]
            [self.below(5) as usize]
            .to_vec();
        for _ in 0..self.below(4) {
            key.push([0, 1, b'a', 255][self.below(4) as usize]);
        }
        key
    }

    fn entry(&mut self) -> IndexEntry {
        at(self.below(50), self.below(3) == 0)
    }
}

fn at(l0: u64, tombstone: bool) -> IndexEntry {
    IndexEntry { l0: L0Id(l0), tombstone }
}

fn budget(limit: u64) -> Budget {
    let budget = Budget::default();
    budget.limit.store(limit, Ordering::Relaxed);
    budget
}

fn plenty() -> Budget {
    budget(1 << 40)
}

fn used(budget: &Budget) -> u64 {
    budget.used.load(Ordering::Relaxed)
}

fn all(index: &Index, direction: Direction, max: usize) -> Vec<(Vec<u8>, IndexEntry)> {
    let mut chunk = KeyChunk::new();
    let mut seen = Vec::<(Vec<u8>, IndexEntry)>::new();
    loop {
        let from = seen.last().map(|(key, _)| key.clone());
        let bound = from.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_slice()));
        index.next_chunk(bound, direction, max, &mut chunk);
        assert!(chunk.len() <= max && (chunk.is_complete() || !chunk.is_empty()));
        seen.extend(chunk.iter().map(|(key, entry)| (key.to_vec(), entry)));
        assert_eq!(chunk.last().map(|l| l.0.to_vec()), chunk.iter().last().map(|l| l.0.to_vec()));
        if chunk.is_complete() {
            return seen;
        }
    }
}

fn check(index: &Index, model: &Model, budget: &Budget) {
    let expected: Vec<_> = model.iter().map(|(key, entry)| (key.clone(), *entry)).collect();
    for max in [1, 7, 1000] {
        assert_eq!(all(index, Direction::Forward, max), expected);
        assert!(all(index, Direction::Backward, max).iter().eq(expected.iter().rev()));
    }
    assert_eq!(index.len(), model.len());
    assert_eq!(index.rows(), model.values().filter(|entry| !entry.tombstone).count() as u64);
    let bytes = audit(index, model.len());
    assert_eq!((index.bytes(), used(budget)), (bytes, bytes));
}

/// Looks at the structure, which nobody changes meanwhile; returns the bytes that are in it, its filters and guides.
fn audit(index: &Index, keys: usize) -> u64 {
    let pin = epoch::pin();
    let (mut bytes, mut alive, mut last) = (0, 0, None::<Vec<u8>>);
    // SAFETY: pinned.
    let mut at = unsafe { index.first.load() }.map(|leaf| (leaf, index.directory.front(&pin)));
    assert!(at.is_some() || index.directory.is_empty());
    while let Some((leaf, next)) = at {
        bytes += leaf.size() as u64;
        let dead = (0..leaf.count()).filter(|i| leaf.value(*i).load(Ordering::Relaxed) == DEAD).count();
        assert_eq!(leaf.dead(), dead);
        assert!(2 * dead <= leaf.count() && leaf.count() <= leaf::MOST_KEYS);
        assert!(leaf.weight(0, leaf.count()) <= leaf::MOST_WEIGHT);
        alive += leaf.count() - dead;
        for i in 0..leaf.count() {
            let mut key = Vec::new();
            leaf.key(i, &mut key);
            assert!(key.len() == leaf.key_len(i) && leaf.covers(&key) && last.is_none_or(|last| last < key));
            assert_eq!(leaf.find(&key), Ok(i));
            last = Some(key);
        }
        let low = next.as_ref().map(|entry| entry.key().bytes(&mut key::no_space()).to_vec());
        assert_eq!(leaf.high(), low.as_deref(), "leaves follow one another");
        bytes += low.as_ref().map_or(0, |low| write::node_size(low.len()));
        // All keys of the next leaf are above its low key, which is above all of these.
        last = low.map(|mut low| {
            low.pop();
            low
        });
        // SAFETY: pinned.
        at = next.and_then(|entry| Some((unsafe { entry.value().load() }?, entry.next())));
    }
    assert_eq!(alive, keys);
    bytes + index.filter_bytes() + index.guide_bytes()
}

#[test]
fn random_against_model() {
    let (seeds, steps) = if cfg!(miri) { (1, 40) } else { (10, 3000) };
    for seed in 0..seeds {
        let (index, budget, mut model, mut rng) = (Index::new(), plenty(), Model::new(), Rng(seed));
        for step in 0..steps {
            let (key, entry) = (rng.key(), rng.entry());
            let old = model.get(&key).copied();
            assert_eq!(index.get(&key), old);
            match rng.below(5) {
                0 | 1 => {
                    index.raise(&key, entry, &budget).expect("room");
                    if old.is_none_or(|old| old.l0 <= entry.l0) {
                        model.insert(key, entry);
                    }
                }
                2 => {
                    let inserted = index.insert_if_absent(&key, entry, &budget).expect("room");
                    assert_eq!(inserted, old.is_none());
                    model.entry(key).or_insert(entry);
                }
                _ => {
                    let seen = if rng.below(3) == 0 { entry } else { old.unwrap_or(entry) };
                    let removed = index.remove_if(&key, seen, &budget);
                    assert_eq!(removed, old == Some(seen));
                    if removed {
                        model.remove(&key);
                    }
                }
            }
            if step % (steps / 4) == 0 {
                check(&index, &model, &budget);
            }
        }
        check(&index, &model, &budget);
        for key in (0..20).map(|_| rng.key()) {
            check_bounds(&index, &model, &key);
        }
        index.uncount(&budget);
        assert_eq!((used(&budget), index.bytes()), (0, 0));
    }
}

fn check_bounds(index: &Index, model: &Model, key: &[u8]) {
    let mut chunk = KeyChunk::new();
    for from in [Bound::Included(key), Bound::Excluded(key)] {
        index.next_chunk(from, Direction::Forward, 1, &mut chunk);
        let expected = model.range::<[u8], _>((from, Bound::Unbounded)).next();
        assert_eq!(chunk.get(0), expected.map(|(key, entry)| (key.as_slice(), *entry)));
        index.next_chunk(from, Direction::Backward, 1, &mut chunk);
        let expected = model.range::<[u8], _>((Bound::Unbounded, from)).next_back();
        assert_eq!(chunk.get(0), expected.map(|(key, entry)| (key.as_slice(), *entry)));
    }
}

#[test]
fn entries_move_forward_only() {
    let (index, budget) = (Index::new(), plenty());
    for (raised, expected) in [
        (at(5, false), at(5, false)),
        (at(4, true), at(5, false)),
        (at(5, true), at(5, true)),
        (at(9, false), at(9, false)),
        (at(8, true), at(9, false)),
    ] {
        index.raise(b"k", raised, &budget).expect("room");
        assert_eq!(index.get(b"k"), Some(expected));
    }
    assert!(!index.insert_if_absent(b"k", at(100, false), &budget).expect("room"));
    assert!(!index.remove_if(b"k", at(8, true), &budget));
    assert!(!index.remove_if(b"k", at(9, true), &budget));
    assert!(index.remove_if(b"k", at(9, false), &budget));
    assert!(index.get(b"k").is_none() && index.is_empty() && index.bytes() == 0);
    index.raise(b"k", at(1, true), &budget).expect("room");
    assert_eq!(index.get(b"k"), Some(at(1, true)), "a new life begins anywhere");
}

#[test]
fn full_index_takes_no_new_keys() {
    let (index, budget) = (Index::new(), budget(u64::MAX));
    let long = [7; 100];
    for key in [b"key-1".as_slice(), b"key-2", &long, b"key-3"] {
        index.raise(key, at(1, false), &budget).expect("room");
    }
    budget.limit.store(used(&budget), Ordering::Relaxed);
    let full = index.raise(b"key-4", at(1, false), &budget).expect_err("full");
    assert!(matches!(Error::from(full), Error::MemoryFull { consumer: Consumer::KeyIndex, .. }));
    assert!(index.insert_if_absent(&[8; 100], at(1, false), &budget).is_err());
    assert!(index.get(b"key-4").is_none() && index.len() == 4);
    for key in [b"key-1".as_slice(), &long] {
        index.raise(key, at(2, true), &budget).expect("existing keys always can");
        assert_eq!(index.get(key), Some(at(2, true)));
        assert!(!index.insert_if_absent(key, at(3, true), &budget).expect("existing keys always can"));
    }
    let model = [(b"key-1".as_slice(), 2), (b"key-2", 1), (&long, 2), (b"key-3", 1)];
    check(&index, &model.map(|(key, l0)| (key.to_vec(), at(l0, l0 == 2))).into(), &budget);
    assert!(index.remove_if(&long, at(2, true), &budget));
    assert!(index.remove_if(b"key-2", at(1, false), &budget));
    assert!(index.remove_if(b"key-1", at(2, true), &budget));
    index.raise(b"key-4", at(1, false), &budget).expect("room again");
}

/// Of a batch that meets a full index as many keys go in as there is room for, the first ones, and it is told how many.
#[test]
fn full_batches_go_in_up_to_the_limit() {
    for limit in [0, 100, 1000, 5000, 20_000] {
        let (index, budget, mut model, mut rng) = (Index::new(), budget(limit), Model::new(), Rng(limit));
        for l0 in 1..20 {
            let keys: std::collections::BTreeSet<_> = (0..200).map(|_| rng.key()).collect();
            let batch: Vec<_> = keys.iter().map(|key| (key.as_slice(), at(l0, false))).collect();
            let done = index.raise_batch(&batch, &budget).map_or_else(|full| full.done, |()| batch.len());
            for (i, (key, entry)) in batch.iter().enumerate() {
                if i < done || model.contains_key(*key) && index.get(key) == Some(*entry) {
                    model.insert(key.to_vec(), *entry);
                }
            }
            check(&index, &model, &budget);
            assert!(used(&budget) <= limit);
            if let Some((key, entry)) = batch.get(done) {
                assert!(!model.contains_key(*key));
                assert!(index.raise(key, *entry, &budget).is_err(), "there was room for one more");
            }
        }
        assert!(limit < 1000 || !model.is_empty());
    }
}

#[test]
fn l0_ids_without_a_value_are_full() {
    let (index, budget) = (Index::new(), plenty());
    let last = u64::from(L0_END) - 1;
    index.raise(b"a", at(last, true), &budget).expect("the last one");
    assert_eq!(index.get(b"a"), Some(at(last, true)));
    for l0 in [last + 1, last + 2, 1 << 32, u64::MAX] {
        let batch = [(b"a".as_slice(), at(last, false)), (b"b", at(last, false)), (b"c", at(l0, true))];
        assert_eq!(index.raise_batch(&batch, &budget).map_err(|full| full.done), Err(2));
        assert!(
            index.raise(b"a", at(l0, false), &budget).is_err()
                && !index.replace_if(b"a", at(last, false), at(l0, false))
        );
        assert_eq!((index.get(b"a"), index.get(b"c")), (Some(at(last, false)), None));
        let seen = index.get(b"b").expect("before the one that fails");
        assert!(index.remove_if(b"b", seen, &budget));
    }
}

#[test]
fn sweeps_go_in_bounded_pieces() {
    let keys = if cfg!(miri) { 60 } else { 2000 };
    let (index, budget, mut model, mut rng) = (Index::new(), plenty(), Model::new(), Rng(4));
    for i in 0..keys {
        let (key, entry) =
            (format!("key {i}, some of them longer: {:>1$}", i, (i % 40) as usize).into_bytes(), rng.entry());
        index.raise(&key, entry, &budget).expect("room");
        model.insert(key, entry);
    }
    let mut cursor = SweepCursor::new();
    let mut removed = 0;
    while !cursor.is_done() {
        let before = removed;
        removed += index.sweep_below(L0Id(20), &mut cursor, 50, &budget);
        assert!(removed - before <= 50);
    }
    model.retain(|_, entry| entry.l0 >= L0Id(20));
    assert_eq!(removed, keys as usize - model.len());
    check(&index, &model, &budget);
    assert_eq!(index.sweep_below(L0Id(100), &mut cursor, 50, &budget), 0, "done is done");

    let mut cursor = SweepCursor::default();
    while !cursor.is_done() {
        index.sweep_tombstones(|l0| l0.0 % 2 == 0, &mut cursor, 333, &budget);
    }
    model.retain(|_, entry| !(entry.tombstone && entry.l0.0 % 2 == 0));
    check(&index, &model, &budget);
    let mut cursor = SweepCursor::default();
    assert_eq!(index.sweep_below(L0Id(100), &mut cursor, usize::MAX, &budget), model.len());
    assert!(cursor.is_done());
    check(&index, &Model::new(), &budget);
}

#[test]
fn longest_keys_go_one_a_chunk() {
    let (index, budget, mut model) = (Index::new(), plenty(), Model::new());
    for i in 0..5 {
        let key = vec![i; MAX_KEY];
        index.raise(&key, at(1, false), &budget).expect("room");
        model.insert(key, at(1, false));
    }
    check(&index, &model, &budget);
}

/// A raise is never lost to a removal: after both are over the entry is there, unless the removal saw that very entry.
#[test]
fn raises_win_over_removals() {
    let rounds = if cfg!(miri) { 40 } else { 60_000 };
    let (index, budget) = (Index::new(), plenty());
    for long in [false, true] {
        let key = if long { [b'k'; 40].as_slice() } else { b"k" };
        let (index, budget, done) = (&index, &budget, &AtomicBool::new(false));
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(move || {
                    while !done.load(Ordering::Acquire) {
                        // Only tombstones, which are raised as even numbers.
                        if let Some(seen) = index.get(key).filter(|seen| seen.tombstone) {
                            index.remove_if(key, seen, budget);
                        }
                        let mut cursor = SweepCursor::new();
                        index.sweep_tombstones(|_| true, &mut cursor, 10, budget);
                    }
                });
            }
            threads.spawn(move || {
                let mut newest = 0;
                while !done.load(Ordering::Acquire) {
                    if let Some(entry) = index.get(key) {
                        assert!(entry.l0.0 >= newest, "backwards from {newest} to {entry:?}");
                        assert_eq!(entry.tombstone, entry.l0.0.is_multiple_of(2));
                        newest = entry.l0.0;
                    }
                }
            });
            for l0 in 1..rounds {
                index.raise(key, at(l0, l0 % 2 == 0), budget).expect("room");
                if l0 % 2 == 1 {
                    assert_eq!(index.get(key), Some(at(l0, false)), "nobody may remove this");
                }
            }
            done.store(true, Ordering::Release);
        });
        let left = index.get(key);
        if let Some(left) = left {
            assert!(index.remove_if(key, left, budget));
        }
        assert_eq!((index.len(), index.bytes(), used(budget)), (0, 0, 0), "each node is counted once");
    }
}

/// I12: a key that always exists is found by every look-up, whatever others do to it and its neighbours.
#[test]
fn raised_keys_are_never_missed() {
    let (keys, rounds) = if cfg!(miri) { (4, 15) } else { (64, 3000) };
    let (index, budget, done) = (Index::new(), plenty(), AtomicBool::new(false));
    let key =
        |i: u64| [b"key-".as_slice(), &i.to_be_bytes(), if i.is_multiple_of(3) { &[b'x'; 30] } else { b"" }].concat();
    let stable: Vec<_> = (0..keys).map(|i| key(2 * i)).collect();
    let passing: Vec<_> = (0..keys).map(|i| key(2 * i + 1)).collect();
    for key in &stable {
        index.raise(key, at(1, false), &budget).expect("room");
    }
    let raisers_left = AtomicU64::new(2);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                for round in 1..rounds {
                    for (stable, passing) in stable.iter().zip(&passing) {
                        index.raise(stable, at(round, false), &budget).expect("room");
                        index.insert_if_absent(passing, at(round, true), &budget).expect("room");
                        index.remove_if(passing, at(round, true), &budget);
                    }
                }
                if raisers_left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    done.store(true, Ordering::Release);
                }
            });
        }
        threads.spawn(|| {
            let mut chunk = KeyChunk::new();
            loop {
                let last = done.load(Ordering::Acquire);
                for key in &stable {
                    assert!(index.get(key).is_some(), "a key that exists is missed");
                }
                let direction = if chunk.len().is_multiple_of(2) { Direction::Forward } else { Direction::Backward };
                index.next_chunk(Bound::Unbounded, direction, 1000, &mut chunk);
                assert_eq!(chunk.iter().filter(|(_, entry)| !entry.tombstone).count(), stable.len());
                if last {
                    break;
                }
            }
        });
    });
    let model = stable.iter().map(|key| (key.clone(), at(rounds - 1, false))).collect();
    let mut cursor = SweepCursor::new();
    index.sweep_tombstones(|_| true, &mut cursor, usize::MAX, &budget);
    check(&index, &model, &budget);
}

/// Keys of one kind for the tests of structure: many, alike or of any length, with prefixes that come and go.
fn any_key(kind: u64, rng: &mut Rng, range: u64) -> Vec<u8> {
    let n = rng.below(range);
    match kind {
        0 => n.to_be_bytes().to_vec(),
        1 => [Rng(n).below(u64::MAX).to_be_bytes(), n.to_be_bytes()].concat(),
        2 => format!("tenant:{:03}:account:{n:06}", n % 7).into_bytes(),
        3 => format!("{n}").into_bytes(),
        4 => [vec![b'p'; (n % 5) as usize * 300], n.to_be_bytes()[5..].to_vec()].concat(),
        5 => vec![(n % 3) as u8; (n / 3 % 1900) as usize],
        _ => [n.to_be_bytes().to_vec(), vec![0; (n % 6) as usize]].concat(),
    }
}

/// Batches, single changes and sweeps over many leaves, which split, shrink, join and vanish.
#[test]
fn leaves_come_and_go_against_model() {
    let (rounds, range) = if cfg!(miri) { (6, 300) } else { (150, 4000) };
    for kind in 0..7 {
        let (index, budget, mut model, mut rng) = (Index::new(), plenty(), Model::new(), Rng(kind));
        for round in 0..rounds {
            match rng.below(8) {
                0..=2 => {
                    let (most, tombstone) = (1 + rng.below(600), rng.below(3) == 0);
                    let keys: std::collections::BTreeSet<_> =
                        (0..rng.below(most)).map(|_| any_key(kind, &mut rng, range)).collect();
                    let batch: Vec<_> = keys.iter().map(|key| (key.as_slice(), at(round, tombstone))).collect();
                    index.raise_batch(&batch, &budget).expect("room");
                    model.extend(keys.iter().map(|key| (key.clone(), at(round, tombstone))));
                }
                3 => {
                    for _ in 0..100 {
                        let (key, entry) = (any_key(kind, &mut rng, range), at(round, false));
                        index.raise(&key, entry, &budget).expect("room");
                        model.insert(key, entry);
                    }
                }
                4 | 5 => {
                    // Neighbours, so that whole leaves empty themselves.
                    let from = any_key(kind, &mut rng, range);
                    let gone: Vec<_> = model.range(from..).take(300).map(|(k, e)| (k.clone(), *e)).collect();
                    for (key, entry) in gone {
                        assert!(index.remove_if(&key, entry, &budget));
                        model.remove(&key);
                    }
                }
                6 => {
                    let floor = L0Id(rng.below(round + 1));
                    let (mut cursor, most) = (SweepCursor::new(), 1 + rng.below(300) as usize);
                    while !cursor.is_done() {
                        index.sweep_tombstones(|l0| l0 < floor, &mut cursor, most, &budget);
                    }
                    model.retain(|_, entry| !(entry.tombstone && entry.l0 < floor));
                }
                _ => {
                    let floor = L0Id(rng.below(round / 2 + 1));
                    let mut cursor = SweepCursor::new();
                    index.sweep_below(floor, &mut cursor, usize::MAX, &budget);
                    model.retain(|_, entry| entry.l0 >= floor);
                }
            }
            if round % 10 == 0 {
                check(&index, &model, &budget);
            } else {
                assert_eq!((audit(&index, model.len()), index.bytes()), (index.bytes(), used(&budget)));
            }
            for _ in 0..10 {
                let key = any_key(kind, &mut rng, range);
                assert_eq!(index.get(&key), model.get(&key).copied());
                check_bounds(&index, &model, &key);
            }
        }
        let mut cursor = SweepCursor::new();
        index.sweep_below(L0Id(rounds + 1), &mut cursor, usize::MAX, &budget);
        check(&index, &Model::new(), &budget);
        assert_eq!(used(&budget), 0, "nothing is left of an index without keys");
    }
}

/// Keys that come in ascending order fill their leaves, in batches and one by one.
#[test]
fn ascending_keys_fill_leaves() {
    for piece in [1, 1000] {
        let (index, budget) = (Index::new(), plenty());
        let keys: Vec<_> = (0..20_000u64).map(u64::to_be_bytes).collect();
        for piece in keys.chunks(piece) {
            let batch: Vec<_> = piece.iter().map(|key| (key.as_slice(), at(1, false))).collect();
            index.raise_batch(&batch, &budget).expect("room");
        }
        assert_eq!(index.directory.len() + 1, 20_000usize.div_ceil(leaf::MOST_KEYS));
        let bytes = index.bytes() - index.filter_bytes() - index.guide_bytes();
        assert!(bytes < 20_000 * 9, "{bytes} bytes");
        assert!((16_384..5 * 20_000).contains(&index.filter_bytes()), "{} bytes", index.filter_bytes());
    }
}

/// Readers beside a writer that splits, empties and joins leaves: what always exists is never missed, and no scan shows a
/// key twice or out of order.
#[test]
fn readers_beside_splits_and_joins() {
    let (stable, rounds, block) = if cfg!(miri) { (12, 3, 40) } else { (400, 120, 300) };
    let (index, budget, done) = (Index::new(), plenty(), AtomicBool::new(false));
    let key = |n: u64| [b"k".as_slice(), &n.to_be_bytes(), if n.is_multiple_of(3) { b"tail" } else { b"" }].concat();
    for n in 0..stable {
        index.raise(&key(n * 1000), at(1, false), &budget).expect("room");
    }
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut rng = Rng(7);
            for round in 2..rounds {
                for _ in 0..10 {
                    let start = rng.below(stable) * 1000 + 1;
                    let keys: Vec<_> = (start..start + block).map(key).collect();
                    let batch: Vec<_> = keys.iter().map(|key| (key.as_slice(), at(round, true))).collect();
                    index.raise_batch(&batch, &budget).expect("room");
                    let gone = rng.below(block) as usize;
                    for key in keys.iter().skip(gone).chain(keys.iter().take(gone)) {
                        assert!(index.remove_if(key, at(round, true), &budget));
                    }
                }
            }
            done.store(true, Ordering::Release);
        });
        for direction in [Direction::Forward, Direction::Backward] {
            let (index, done) = (&index, &done);
            threads.spawn(move || {
                let mut rng = Rng(9);
                loop {
                    let last = done.load(Ordering::Acquire);
                    for _ in 0..200 {
                        assert!(index.get(&key(rng.below(stable) * 1000)).is_some(), "a key that exists is missed");
                    }
                    let mut seen = all(index, direction, 1 + rng.below(500) as usize);
                    if direction == Direction::Backward {
                        seen.reverse();
                    }
                    assert!(seen.is_sorted_by(|a, b| a.0 < b.0), "twice or out of order");
                    assert_eq!(seen.iter().filter(|(_, entry)| !entry.tombstone).count() as u64, stable);
                    if last {
                        break;
                    }
                }
            });
        }
    });
    let model = (0..stable).map(|n| (key(n * 1000), at(1, false))).collect();
    check(&index, &model, &budget);
}

/// Leaves of one size would be split together, and leave the heap full of free blocks of the size that they had.
#[test]
fn leaves_are_of_many_sizes() {
    let (index, budget, mut rng) = (Index::new(), plenty(), Rng(1));
    let runs = if cfg!(miri) { 1 } else { 3 };
    for run in 0..runs {
        let keys: std::collections::BTreeSet<[u8; 8]> =
            (0..40_000).map(|_| rng.below(u64::MAX).to_be_bytes()).collect();
        let batch: Vec<_> = keys.iter().map(|key| (key.as_slice(), at(10 - run, false))).collect();
        batch.chunks(300).for_each(|piece| index.raise_first(piece, &budget).expect("room"));
        let mut sizes = [0usize; 8];
        let mut spot = index.spot_of(&[]);
        while let Some(leaf) = spot.leaf {
            sizes[(leaf.count() - 1) * 8 / leaf::MOST_KEYS] += 1;
            let Some(high) = leaf.high() else { break };
            spot = index.spot_of(high);
        }
        let (leaves, most) = (sizes.iter().sum::<usize>(), *sizes.iter().max().unwrap());
        assert!(leaves >= 300 && 3 * most < leaves, "{sizes:?}");
    }
}

/// However keys come, those that do not are told apart by the filter, mostly.
#[test]
fn the_filter_grows_with_the_index() {
    for (ascending, piece) in [(true, 700), (false, 700), (true, 1), (false, 50)] {
        let (index, budget) = (Index::new(), plenty());
        let key = |i: u64| if ascending { i * 2 } else { i.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }.to_be_bytes();
        let mut keys: Vec<_> = (0..40_000u64).map(key).collect();
        for piece in keys.chunks_mut(piece) {
            piece.sort_unstable();
            let batch: Vec<_> = piece.iter().map(|key| (key.as_slice(), at(1, false))).collect();
            index.raise_first(&batch, &budget).expect("room");
        }
        let _pin = epoch::pin();
        // SAFETY: pinned.
        let may_have = |key: &[u8]| unsafe { index.filters.look_for(key) }.is_none_or(|wanted| wanted.may_be_there());
        assert!(keys.iter().all(|key| may_have(key)));
        let wrong = keys.iter().filter(|key| may_have(&(u64::from_be_bytes(**key) ^ 1).to_be_bytes())).count();
        assert!(wrong < keys.len() / 20, "{wrong} of {} keys that are not there", keys.len());
    }
}

/// Keys come before the filter and the guide. But where some have had to go, these stay as others come and go, unless that keeps a run
/// outside.
#[test]
fn filter_and_guide_stay_where_keys_had_to_go() {
    let (index, budget) = (Index::new(), plenty());
    let key = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let raise = |n: u64| index.raise(&key(n), at(n / 20_000, false), &budget);
    (0..80_000).for_each(|n| raise(n).expect("room"));
    budget.limit.store(used(&budget), Ordering::Relaxed);
    let first = (80_000..).find(|n| raise(*n).is_err()).expect("full");
    assert!(index.filter_bytes() == 0 && index.guide_bytes() == 0 && first > 80_000);
    let mut n = first;
    for floor in 1..4 {
        index.sweep_below(L0Id(floor), &mut SweepCursor::new(), usize::MAX, &budget);
        index.keys_had_to_go();
        n = (n..).find(|n| raise(*n).is_err()).expect("full");
        assert!(index.filter_bytes() > 0 && index.guide_bytes() > 0 && index.len() > 60_000, "{} keys", index.len());
        let _pin = epoch::pin();
        // SAFETY: pinned.
        let may_have = |n| unsafe { index.filters.look_for(&key(n)) }.is_none_or(|wanted| wanted.may_be_there());
        assert!((20_000 * floor..n).all(may_have));
        let wrong = (n + 1..n + 2000).filter(|n| may_have(*n)).count();
        assert!(wrong < 300, "{wrong} of 2000 keys that are not there");
    }
    while index.raise_first(&[(&key(n), at(1, false))], &budget).is_ok() {
        n += 1;
    }
    assert_eq!((index.filter_bytes(), index.guide_bytes()), (0, 0));
}

/// Of all the keys, how many a guide leads to, and to no wrong leaf.
fn guided(index: &Index, keys: &std::collections::BTreeSet<Vec<u8>>) -> usize {
    let _pin = epoch::pin();
    let leads = |key: &[u8]| {
        // SAFETY: pinned.
        let leaf = unsafe { index.guides.near(key).and_then(|near| near.place()?.load()) };
        leaf.is_some_and(|leaf| leaf.find(key).is_ok())
    };
    keys.iter().filter(|key| leads(key)).count()
}

/// A guide knows the leaves of all keys but the lowest ones, whatever these look like, and goes with its directory.
#[test]
fn a_settled_guide_knows_all_leaves() {
    let number = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
    let kinds: [&dyn Fn(u64) -> Vec<u8>; 5] = [
        &number,
        &|n| n.to_be_bytes().to_vec(),
        &|n| [b"https://example.org/".as_slice(), format!("{}/{n}", n % 7).as_bytes()].concat(),
        &|n| [(n % 50).to_be_bytes().as_slice(), &number(n)].concat(),
        &|n| number(n)[..1 + (n % 8) as usize].to_vec(),
    ];
    let rows = if cfg!(miri) { 2000 } else { 30_000 };
    for key in kinds {
        let (index, budget) = (Index::new(), plenty());
        let keys: std::collections::BTreeSet<_> = (0..rows).map(key).collect();
        let all: Vec<_> = keys.iter().map(|key| (key.as_slice(), at(1, false))).collect();
        for piece in [0, 1, 2].map(|first| all.iter().skip(first).step_by(3).copied().collect::<Vec<_>>()) {
            index.raise_first(&piece, &budget).expect("room");
        }
        index.settle(&budget);
        assert!(index.guide_bytes() > 0);
        let (guided, lowest) = (guided(&index, &keys), 2 * leaf::MOST_KEYS);
        assert!(guided + lowest > keys.len(), "{guided} of {}", keys.len());
        keys.iter().for_each(|key| assert!(index.remove_if(key, at(1, false), &budget)));
        assert!(keys.iter().all(|key| index.get(key).is_none()));
        index.sweep_below(L0Id(9), &mut SweepCursor::new(), usize::MAX, &budget);
        index.settle(&budget);
        assert_eq!(index.guide_bytes(), 0);
    }
}

/// Where what follows the prefix is the same in too many leaves, the directory is asked.
#[test]
fn leaves_that_look_alike_have_no_guide() {
    let (index, budget) = (Index::new(), plenty());
    let key = |n: u64| [&[b'a' + (n % 2) as u8; 30][..], &n.to_be_bytes()].concat();
    let keys: std::collections::BTreeSet<_> = (0..8_000).map(key).collect();
    for key in &keys {
        index.raise(key, at(1, false), &budget).expect("room");
    }
    index.settle(&budget);
    assert_eq!((index.guide_bytes(), guided(&index, &keys)), (0, 0));
    assert!(keys.iter().all(|key| index.get(key) == Some(at(1, false))));
}

/// A guide serves on where there is no room for another one, as long as it knows most of the leaves.
#[test]
fn a_guide_serves_on_where_there_is_no_room_for_another() {
    let (index, budget) = (Index::new(), plenty());
    let key = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
    let raise = |n: u64| index.raise(&key(n), at(1, false), &budget).expect("room");
    (0..20_000).for_each(raise);
    index.settle(&budget);
    let bytes = index.guide_bytes();
    let raise_with_room = |n: u64, room: u64| {
        budget.limit.store(used(&budget) + room, Ordering::Relaxed);
        raise(n);
    };
    // Room for more keys, but not for two guides.
    let more = 20_000..24_000;
    more.clone().for_each(|n| raise_with_room(n, bytes * 3 / 2));
    assert_eq!(index.guide_bytes(), bytes);
    let known = |rows: u64| guided(&index, &(0..rows).map(key).collect()) as u64;
    let before = known(more.end);
    assert!((more.end / 2..more.end * 19 / 20).contains(&before), "{before} of {}", more.end);
    (more.end..30_000).for_each(|n| raise_with_room(n, bytes * 4));
    assert!(known(30_000) > 27_000, "there is room again, and {} of 30000 keys are known", known(30_000));
}

/// Keys come before the guide, where the index may not grow.
#[test]
fn a_guide_gives_way_to_keys() {
    let (index, budget) = (Index::new(), plenty());
    let keys: Vec<_> = (0..20_000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()).collect();
    keys.iter().for_each(|key| index.raise(key, at(1, false), &budget).expect("room"));
    assert!(index.guide_bytes() > 0);
    budget.limit.store(used(&budget), Ordering::Relaxed);
    let more = (0..1000u64).map(|n| (n << 40).to_be_bytes());
    assert!(more.filter(|key| index.raise(key, at(2, false), &budget).is_ok()).count() > 0);
    assert_eq!(index.guide_bytes(), 0);
    assert!(keys.iter().all(|key| index.get(key).is_some()));
}
