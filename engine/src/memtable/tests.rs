//! The memtable against a model, alone and with several threads.

use super::arena::test_heap::TestHeap;
use super::back::MOST_BACK;
use super::*;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

type Model = BTreeMap<Place, (Head, LogAddr)>;

const BASE: u64 = 1000;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Few different keys, many of them prefixes of each other or equal in their first bytes.
    fn key(&mut self) -> Vec<u8> {
        let alphabet = [0, 1, b'a', 255];
        let stem = [b"".as_slice(), b"a", b"aaaaaaa", b"aaaaaaaa", b"aaaaaaaaaaaaaaaa"][self.below(5) as usize];
        let mut key = stem.to_vec();
        for _ in 0..self.below(4) {
            key.push(alphabet[self.below(4) as usize]);
        }
        key
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

fn head(rng: &mut Rng, row: u64) -> Head {
    let writer = match rng.below(4) {
        0 => rng.next(),
        _ => 50 + rng.below(100),
    };
    let flags = Flags(rng.below(32) as u8);
    Head {
        row_id: RowId(row),
        writer: Writer(writer),
        command: rng.next() as u32,
        flags,
        incarnation: rng.next() as u16,
    }
}

fn put(table: &Memtable, key: &[u8], head: &Head, addr: LogAddr) -> bool {
    let Some(room) = table.room(key.len(), head) else { return false };
    let splice = if head.row_id.0.is_multiple_of(2) { table.probe(key) } else { table.probe_for(key, &room) };
    table.link(&splice, room, key, head, addr);
    true
}

fn seen(node: NodeRef<'_>) -> (Place, (Head, LogAddr)) {
    ((node.key().to_vec(), Reverse(node.head().row_id.0)), (node.head(), node.addr()))
}

type Place = (Vec<u8>, Reverse<u64>);

/// The newest version of the first key of a range of the model.
fn newest<'m>(mut range: impl Iterator<Item = &'m Place>) -> Option<&'m Place> {
    range.next()
}

fn same(found: Option<NodeRef<'_>>, expected: Option<&Place>) {
    assert_eq!(found.map(|n| seen(n).0).as_ref(), expected);
}

fn check_all(table: &Memtable, model: &Model) {
    assert_eq!(table.rows(), model.len() as u64);
    let mut node = table.first();
    for (place, value) in model {
        let found = node.expect("as many nodes as in the model");
        assert_eq!(seen(found), (place.clone(), *value));
        assert_eq!(table.by_row(RowId(place.1 .0)).map(|n| n.id()), Some(found.id()));
        // SAFETY: of this memtable.
        assert_eq!(seen(unsafe { table.resume(found.id()) }).0, *place);
        node = found.next();
    }
    assert!(node.is_none());
    let mut touched = Vec::new();
    let in_order: Vec<_> = table.in_order(|node| touched.push(node.row_id())).collect();
    assert!(in_order.iter().map(|node| seen(*node)).eq(model.iter().map(|(place, value)| (place.clone(), *value))));
    touched.sort();
    let mut rows: Vec<RowId> = in_order.iter().map(|node| node.row_id()).collect();
    rows.sort();
    assert_eq!(touched, rows, "each is shown once");
    assert_eq!(table.max_row(), model.keys().map(|k| RowId(k.1 .0)).max());
    assert_eq!(table.max_writer(), model.values().map(|v| v.0.writer).max());
    assert_eq!(table.min_writer(), model.values().map(|v| v.0.writer).min());
    let keys: Vec<&Vec<u8>> = {
        let mut keys: Vec<_> = model.keys().map(|k| &k.0).collect();
        keys.dedup();
        keys
    };
    let mut forward = Vec::new();
    let mut node = table.first();
    while let Some(n) = node {
        forward.push(n.key().to_vec());
        node = n.next_key();
    }
    assert!(forward.iter().eq(keys.iter().copied()));
    for level in 0..=MOST_BACK + 1 {
        let mut node = table.last();
        let mut back = Vec::new();
        for key in keys.iter().rev() {
            let n = node.expect("as many keys as in the model");
            assert_eq!(n.key(), key.as_slice());
            assert_eq!(Some(n.id()), table.newest(key).map(|n| n.id()));
            if back.is_empty() {
                table.some_before(key, level, &mut back);
            }
            // SAFETY: of this memtable.
            node = back.pop().map(|id| unsafe { table.resume(id) });
        }
        assert!(node.is_none());
    }
}

fn check_place(table: &Memtable, model: &Model, key: &[u8]) {
    let (first, last) = ((key.to_vec(), Reverse(u64::MAX)), (key.to_vec(), Reverse(0)));
    same(table.lower_bound(key), newest(model.range(first.clone()..).map(|e| e.0)));
    same(table.upper_bound(key), newest(model.range(last.clone()..).map(|e| e.0)));
    let of_key = |k: &Place| model.range((k.0.clone(), Reverse(u64::MAX))..).next().map(|e| e.0);
    same(table.last_before(key), model.range(..first.clone()).next_back().and_then(|e| of_key(e.0)));
    same(table.last_at_or_before(key), model.range(..last.clone()).next_back().and_then(|e| of_key(e.0)));
    let versions: Vec<_> = table.versions(key).map(|n| seen(n).0).collect();
    assert!(versions.iter().eq(model.range(first..last).map(|e| e.0)));
    assert_eq!(table.probe(key).newest(), versions.first().map(|v| RowId(v.1 .0)));
    assert_eq!(table.newest(key).map(|n| n.row_id()), table.probe(key).newest());
}

fn in_both_memories(test: impl Fn(Memtable)) {
    test(Memtable::new(L0Id(7), RowId(BASE), Writer(60), 1 << 20, 4000).expect("memory"));
    let heap = TestHeap::new(if cfg!(miri) { 256 << 10 } else { 2 << 20 });
    let arena = Arena::in_test_heap(&heap, 1 << 20, LEAST_CHUNK);
    test(Memtable::with_arena(arena, L0Id(8), RowId(BASE), Writer(60), 0, None).expect("memory"));
    assert_eq!(heap.live.load(Ordering::Relaxed), 0, "all chunks are freed");
}

#[test]
fn empty() {
    in_both_memories(|table| {
        check_all(&table, &Model::new());
        for key in [b"".as_slice(), b"a", &[255; MAX_KEY]] {
            check_place(&table, &Model::new(), key);
        }
        assert!(table.is_empty() && table.max_row().is_none() && table.min_writer().is_none());
        assert!(table.by_row(RowId(BASE)).is_none() && table.by_row(RowId(1)).is_none());
    });
}

#[test]
fn random_against_model() {
    let (seeds, rows) = if cfg!(miri) { (2, 25) } else { (20, 800) };
    for seed in 0..seeds {
        in_both_memories(|table| {
            let mut rng = Rng(seed);
            let mut model = Model::new();
            // Replay links in any order.
            let mut rows: Vec<u64> = (0..rows).map(|i| BASE + i * (1 + seed % 3 * 100)).collect();
            if seed % 2 == 1 {
                rng.shuffle(&mut rows);
            }
            for row in rows {
                let (key, head, addr) = (rng.key(), head(&mut rng, row), LogAddr(rng.next() >> 16));
                assert!(put(&table, &key, &head, addr));
                model.insert((key, Reverse(row)), (head, addr));
                if rng.below(20) == 0 {
                    let key = rng.key();
                    check_place(&table, &model, &key);
                }
            }
            check_all(&table, &model);
            let keys: Vec<_> = model.keys().map(|k| k.0.clone()).collect();
            for key in keys.iter().step_by(7) {
                check_place(&table, &model, key);
            }
        });
    }
}

#[test]
fn longest_keys() {
    in_both_memories(|table| {
        let mut model = Model::new();
        let mut rng = Rng(3);
        for (i, len) in [MAX_KEY, MAX_KEY - 1, MAX_KEY, 1024, MAX_KEY].into_iter().enumerate() {
            let key = vec![255; len];
            let head = head(&mut rng, BASE + i as u64);
            assert!(put(&table, &key, &head, LogAddr(i as u64)));
            model.insert((key, Reverse(head.row_id.0)), (head, LogAddr(i as u64)));
        }
        check_all(&table, &model);
    });
}

#[test]
fn stale_and_reused_splices() {
    in_both_memories(|table| {
        let mut rng = Rng(1);
        let mut model = Model::new();
        let old = table.probe(b"m");
        let mut refreshed = table.probe(b"m");
        let mut add = |splice: &Splice<'_>, key: &[u8], row: u64| {
            let head = head(&mut rng, row);
            let room = table.room(key.len(), &head).expect("room");
            let node = table.link(splice, room, key, &head, LogAddr(row));
            assert_eq!(node.head(), head);
            model.insert((key.to_vec(), Reverse(row)), (head, LogAddr(row)));
        };
        for row in 0..if cfg!(miri) { 26 } else { 100 } {
            let key = [b'a' + (row % 26) as u8];
            add(&table.probe(&key), &key, BASE + row);
        }
        for row in [250, 210, 290, 220, 201] {
            add(&old, b"m", BASE + row);
        }
        assert_eq!(table.refresh(&mut refreshed, b"m"), Some(RowId(BASE + 290)));
        assert_eq!(refreshed.newest_node().map(|n| n.row_id()), Some(RowId(BASE + 290)));
        for row in [300, 280, 301, 200] {
            add(&refreshed, b"m", BASE + row);
        }
        check_all(&table, &model);
    });
}

/// Puts rows of random keys until the memtable is full.
fn fill_up(table: &Memtable) -> Model {
    let mut rng = Rng(9);
    let mut model = Model::new();
    for row in BASE.. {
        let (key, head, addr) = (rng.key(), head(&mut rng, row), LogAddr(row));
        if !put(table, &key, &head, addr) {
            assert!(table.by_row(RowId(row)).is_none());
            break;
        }
        model.insert((key, Reverse(row)), (head, addr));
    }
    model
}

#[test]
fn full_is_found_beforehand() {
    let capacities: &[usize] = if cfg!(miri) { &[5000] } else { &[4096, 9000, 40_000] };
    for &capacity in capacities {
        let heap = TestHeap::new(256 << 10);
        let arena = Arena::in_test_heap(&heap, capacity, LEAST_CHUNK);
        let in_heap = Memtable::with_arena(arena, L0Id(1), RowId(BASE), Writer(0), 0, None);
        for table in [in_heap, Memtable::new(L0Id(1), RowId(BASE), Writer(0), capacity, 0)].into_iter().flatten() {
            let model = fill_up(&table);
            assert!(table.bytes_used() <= capacity.next_multiple_of(4096) && !model.is_empty());
            check_all(&table, &model);
        }
    }
}

/// Where the heap has no block any more a memtable begins with less, and takes rows as long as that lasts.
#[test]
fn a_little_memtable_needs_no_block() {
    let heap = TestHeap::new(LITTLE + 1024);
    let begun_with = |first| {
        let arena = Arena::in_test_heap(&heap, MOST_OF_LITTLE, first);
        Memtable::with_arena(arena, L0Id(1), RowId(BASE), Writer(0), 0, None)
    };
    let little = begun_with(LITTLE).expect("room");
    let model = fill_up(&little);
    assert!(model.len() > 20 && little.memory_used() < LEAST_CHUNK, "{} rows", model.len());
    check_all(&little, &model);
    assert!(begun_with(LEAST_CHUNK).is_none());
}

/// Rows of the log find memory as long as there is any, be it in small objects.
#[test]
fn a_memtable_of_the_log_makes_do_with_small_objects() {
    let heap = TestHeap::new(3 * LITTLE + 4 * LINE);
    let arena = |makes_do: bool| {
        let arena = Arena::in_test_heap(&heap, 1 << 20, LEAST_CHUNK + LITTLE);
        if makes_do {
            arena.making_do()
        } else {
            arena
        }
    };
    let made = |arena| Memtable::with_arena(arena, L0Id(1), RowId(BASE), Writer(0), 0, None);
    assert!(made(arena(false)).is_none());
    let table = made(arena(true)).expect("a small object");
    let model = fill_up(&table);
    assert_eq!(table.memory_used() - std::mem::size_of::<Memtable>(), 3 * LITTLE);
    check_all(&table, &model);
    drop(table);
    assert_eq!(heap.live.load(Ordering::Relaxed), 0, "all chunks are freed");
}

#[test]
fn rows_out_of_span_have_no_room() {
    let table = Memtable::new(L0Id(1), RowId(BASE), Writer(0), 1 << 16, 0).expect("memory");
    let room = |row| table.room(3, &Head { row_id: RowId(row), ..Head::default() });
    assert!(room(BASE - 1).is_none() && room(0).is_none());
    assert!(room(BASE + (1 << 32)).is_none() && room(u64::MAX).is_none());
    assert!(room(BASE).is_some() && room(BASE + (1 << 32) - 1).is_some());
    let used = table.bytes_used();
    for _ in 0..20 {
        table.give_back(room(BASE).expect("room"));
    }
    assert_eq!(table.bytes_used(), used);
}

#[test]
fn flags_and_hints_change_in_place() {
    let table = Memtable::new(L0Id(1), RowId(0), Writer(0), 1 << 16, 0).expect("memory");
    let flags = Flags::SPECULATIVE.with(Flags::POINTER);
    let head = Head { row_id: RowId(5), writer: Writer(9), command: 1, flags, incarnation: 3 };
    assert!(put(&table, b"key", &head, LogAddr(77)));
    let node = table.newest(b"key").expect("there");
    assert_eq!((node.get_fate(), node.hint().load(Ordering::Relaxed)), (None, HINT_UNKNOWN));
    node.set_fate(Fate::InProgress);
    assert_eq!(node.get_fate(), None);
    node.set_fate(Fate::Aborted);
    assert_eq!(node.get_fate(), Some(Fate::Aborted));
    node.set_fate(Fate::VisibleToAll);
    assert_eq!(node.get_fate(), Some(Fate::Committed));
    node.clear_speculative();
    assert_eq!(node.head(), Head { flags: Flags::POINTER, ..head });
    assert_eq!((node.addr(), node.generation()), (LogAddr(77), L0Id(1)));
}

#[test]
#[should_panic(expected = "room for another version")]
fn room_is_for_one_version() {
    let table = Memtable::new(L0Id(1), RowId(0), Writer(0), 1 << 16, 0).expect("memory");
    let head = Head { row_id: RowId(5), ..Head::default() };
    let room = table.room(3, &head).expect("room");
    table.link(&table.probe(b"abc"), room, b"abc", &Head { row_id: RowId(6), ..head }, LogAddr(0));
}

#[test]
#[should_panic(expected = "another memtable")]
fn ids_are_of_one_memtable() {
    let one = Memtable::new(L0Id(1), RowId(0), Writer(0), 1 << 16, 0).expect("memory");
    let two = Memtable::new(L0Id(2), RowId(0), Writer(0), 1 << 16, 0).expect("memory");
    assert!(put(&one, b"k", &Head::default(), LogAddr(0)));
    let id = one.first().expect("there").id();
    // SAFETY: not kept, which is what the memtable finds out.
    unsafe { two.resume(id) };
}

/// Appenders with rows of their own, over the same few keys, while readers check that order and what was found before
/// stay.
#[test]
fn appenders_and_readers_at_once() {
    let (appenders, rows, rounds) = if cfg!(miri) { (3, 12, 1) } else { (4, 4000, 3) };
    for round in 0..rounds {
        in_both_memories(|table| {
            let table = &table;
            let done = AtomicBool::new(false);
            std::thread::scope(|threads| {
                let reader = threads.spawn(|| {
                    let mut passes = 0;
                    let mut before = 0;
                    while !done.load(Ordering::Acquire) || passes == 0 {
                        before = check_order(table, before);
                        passes += 1;
                    }
                });
                let appending: Vec<_> =
                    (0..appenders).map(|a| threads.spawn(move || append(table, round, a, appenders, rows))).collect();
                let mut model = Model::new();
                for thread in appending {
                    model.extend(thread.join().expect("no panic"));
                }
                done.store(true, Ordering::Release);
                reader.join().expect("no panic");
                check_all(table, &model);
            });
        });
    }
}

fn append(table: &Memtable, round: u64, appender: u64, appenders: u64, rows: u64) -> Model {
    let mut rng = Rng(round << 8 | appender);
    let mut model = Model::new();
    for i in 0..rows {
        let row = BASE + i * appenders + appender;
        let (key, head) = (rng.key(), head(&mut rng, row));
        let (addr, mut splice) = (LogAddr(row), table.probe(&key));
        let Some(room) = table.room(key.len(), &head) else { break };
        if rng.below(2) == 0 {
            table.refresh(&mut splice, &key);
        }
        let node = table.link(&splice, room, &key, &head, addr);
        assert_eq!(node.head(), head);
        assert!(table.versions(&key).any(|n| n.row_id() == head.row_id));
        assert_eq!(table.by_row(RowId(row)).map(|n| n.id()), Some(node.id()));
        model.insert((key, Reverse(row)), (head, addr));
    }
    model
}

fn check_order(table: &Memtable, at_least: u64) -> u64 {
    let mut count = 0;
    let mut node = table.first();
    while let Some(n) = node {
        count += 1;
        node = n.next();
        if let Some(next) = node {
            assert!(n.key().cmp(next.key()).then(next.row_id().cmp(&n.row_id())).is_lt());
        }
        // What can be found by its row id was linked before, and is found by its key.
        if table.by_row(n.row_id()).is_some() {
            assert!(table.newest(n.key()).expect("it does not vanish").row_id() >= n.row_id());
        }
    }
    assert!(count >= at_least, "nothing vanishes: {count} < {at_least}");
    count
}

/// Rows that have found the last room of a memtable are found as fast as the others: by the trie, which needs room of its own.
#[test]
fn a_full_memtable_knows_its_keys() {
    const BATCH: u64 = 64;
    let mut rng = Rng(23);
    // Where it is known how many rows there will be, and where it is not, the root is as large as it has to be, or small.
    for expected in [0, 60_000] {
        let capacity = if cfg!(miri) { 64 << 10 } else { 4 << 20 };
        let table = Memtable::new(L0Id(1), RowId(0), Writer(0), capacity, expected).expect("memory");
        let mut linked: Vec<Vec<u8>> = Vec::new();
        loop {
            let first = linked.len() as u64;
            let head = |n: u64| Head { row_id: RowId(first + n), ..Head::default() };
            let keys: Vec<Vec<u8>> =
                (0..BATCH).map(|_| [rng.next().to_be_bytes(), rng.next().to_be_bytes()].concat()).collect();
            let rooms: Vec<Room<'_>> = (0..BATCH).map_while(|n| table.room(16, &head(n))).collect();
            let splices = table.probe_all(keys.iter().map(Vec::as_slice).zip(&rooms));
            for (((key, room), splice), n) in keys.iter().zip(rooms).zip(&splices).zip(0..) {
                table.link(splice, room, key, &head(n), LogAddr(n));
                linked.push(key.clone());
            }
            if linked.len() as u64 - first < BATCH {
                break;
            }
        }
        assert!(cfg!(miri) || linked.len() > 30_000, "{} rows", linked.len());
        for key in linked {
            let found = table.by_key.find(&table.list, &key);
            assert!(found.is_some_and(|found| found != 0) || cfg!(miri), "a key is not found by the trie");
            assert!(table.newest(&key).is_some_and(|node| node.key() == key));
        }
    }
}

/// Keys of which guides should know the place, and others: every look-up by guides is compared with one from the list's head.
#[test]
fn guides_lead_to_the_same_places() {
    let mut rng = Rng(17);
    let evenly = |rng: &mut Rng, _: u64| rng.next().to_be_bytes().to_vec();
    let ascending = |_: &mut Rng, n: u64| (n << 20).to_be_bytes().to_vec();
    let clustered = |rng: &mut Rng, _: u64| [b"the same for all".as_slice(), &rng.next().to_be_bytes()].concat();
    let short = |rng: &mut Rng, _: u64| rng.key();
    type Keys<'a> = &'a dyn Fn(&mut Rng, u64) -> Vec<u8>;
    let digits = |rng: &mut Rng, _: u64| format!("{:016}", rng.below(5_000_000)).into_bytes();
    let kinds: [(Keys<'_>, bool); 5] =
        [(&evenly, true), (&ascending, true), (&clustered, true), (&digits, true), (&short, false)];
    let rows = if cfg!(miri) { 300 } else { 40_000 };
    for (key, useful) in kinds {
        let first = Memtable::new(L0Id(1), RowId(0), Writer(0), 64 << 20, 1 << 16).expect("memory");
        fill(&first, rows, |n| key(&mut rng, n));
        let next = Memtable::like(&first, L0Id(2), RowId(0), Writer(0), 64 << 20).expect("memory");
        fill(&next, rows, |n| key(&mut rng, n));
        // Of ascending keys the first table knows the place of new ones alone.
        for (table, least) in [(&first, rows), (&next, 2 * rows)] {
            let mut guided = 0;
            let keys: Vec<Vec<u8>> = (0..rows / 8).map(|n| key(&mut rng, n % 3 * (rows / 2) + n)).collect();
            for keys in keys.chunks(100) {
                let wanted = || {
                    keys.iter().zip(0..).map(|(key, n)| Wanted { want: Want::before(key), height: 1 + n % MAX_HEIGHT })
                };
                let wanted: Vec<Wanted<'_>> = wanted().collect();
                for (wanted, path) in wanted.iter().zip(table.guides.paths(&table.list, &wanted)) {
                    let from_head = table.list.path(&wanted.want);
                    assert!(path.is_none_or(|path| path.leads_where(&from_head, wanted.height)));
                }
            }
            for n in 0..rows {
                let key = key(&mut rng, n % 3 * (rows / 2) + n);
                for want in [Want::before(&key), Want::after(&key)] {
                    let found = table.guides.seek_on(&table.list, 0, &want);
                    assert!(found.is_none_or(|found| found == table.list.seek_on(0, &want)));
                    guided += u64::from(found.is_some());
                }
            }
            assert!(cfg!(miri) || !useful || guided * 10 > least * 9, "{guided} of {} were guided", 2 * rows);
        }
    }
}

fn fill(table: &Memtable, rows: u64, mut key: impl FnMut(u64) -> Vec<u8>) {
    let mut model = BTreeMap::new();
    for n in 0..rows {
        let (key, head) = (key(n), Head { row_id: RowId(n), ..Head::default() });
        let room = table.room(key.len(), &head).expect("room");
        table.prefetch([key.as_slice(), b"another"].into_iter());
        let splice = table.probe_for(&key, &room);
        assert_eq!(splice.newest(), model.get(&key).copied().map(RowId));
        table.link(&splice, room, &key, &head, LogAddr(n));
        model.insert(key, n);
    }
    let mut node = table.first();
    for (key, row) in &model {
        let at = node.expect("as many keys");
        assert_eq!((at.key(), at.row_id()), (key.as_slice(), RowId(*row)));
        node = at.next_key();
    }
    assert!(node.is_none());
}
