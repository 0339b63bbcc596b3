use super::testing::Own;
use super::*;
use loosekv_shm::ThreadLatch;

fn name(table: u64, l0: u64, key: &[u8]) -> Name<'_> {
    Name { table: CachedTable(table), l0: L0Id(l0), key }
}

/// The row that the tests keep under a name.
fn row_of(name: &Name<'_>, body_bytes: usize) -> RowBuf {
    let seed = name.table.0 % 1000 * 31 + name.l0.0 * 7 + name.key.iter().map(|b| u64::from(*b)).sum::<u64>();
    let head = Head {
        row_id: RowId(RowId::MAX.0 - seed),
        writer: Writer(seed << 33),
        command: seed as u32,
        flags: Flags::MOVED,
        incarnation: 0xfedc,
    };
    RowBuf { head, key: name.key.to_vec(), body: (0..body_bytes).map(|i| (seed + i as u64) as u8).collect() }
}

fn read(cache: &RowCache<ThreadLatch>, name: &Name<'_>, body_bytes: usize) {
    cache.read_for(name, &row_of(name, body_bytes).as_ref());
}

fn found(cache: &RowCache<ThreadLatch>, name: &Name<'_>) -> Option<RowBuf> {
    let mut out = RowBuf::default();
    cache.get(name, true, &mut out).then_some(out)
}

/// So many rows that are read once.
fn pass_by(cache: &RowCache<ThreadLatch>, table: u64, rows: u32) {
    for i in 0..rows {
        read(cache, &name(table, 1, &i.to_be_bytes()), 200);
    }
}

#[test]
fn a_row_is_kept_as_it_is() {
    let cache = Own::new(1 << 16);
    let one = name(1, 5, b"one");
    assert_eq!((found(&cache, &one), cache.counts().bytes), (None, 0));
    read(&cache, &one, 300);
    assert_eq!(found(&cache, &one), Some(row_of(&one, 300)));
    let mut out = RowBuf::default();
    assert!(cache.get(&one, false, &mut out));
    assert_eq!((out.head, out.body.len()), (row_of(&one, 0).head, 0));
    read(&cache, &one, 300);
    let Counts { rows, kept, found, .. } = cache.counts();
    assert_eq!((rows, kept, found), (1, 1, 2), "it is kept once");
}

#[test]
fn rows_that_are_asked_for_while_young_stay_and_others_go() {
    let cache = Own::new(1 << 17);
    let (asked, not) = (name(1, 5, b"asked"), name(1, 5, b"not"));
    read(&cache, &asked, 200);
    read(&cache, &not, 200);
    assert!(found(&cache, &asked).is_some());
    pass_by(&cache, 2, 5000);
    assert_eq!(found(&cache, &asked), Some(row_of(&asked, 200)), "a pass over many rows has pushed it out");
    assert_eq!(found(&cache, &not), None);
}

#[test]
fn a_row_that_is_read_again_soon_stays() {
    let cache = Own::new(1 << 17);
    let (again, late) = (name(1, 5, b"again"), name(1, 5, b"late"));
    read(&cache, &again, 200);
    read(&cache, &late, 200);
    pass_by(&cache, 2, 200);
    assert_eq!((found(&cache, &again), found(&cache, &late)), (None, None));
    read(&cache, &again, 200);
    pass_by(&cache, 3, 5000);
    assert_eq!(found(&cache, &again), Some(row_of(&again, 200)));
    // Its name is long forgotten: it is young once more.
    read(&cache, &late, 200);
    pass_by(&cache, 4, 5000);
    assert_eq!(found(&cache, &late), None);
}

#[test]
fn names_are_told_apart() {
    let cache = Own::new(1 << 16);
    let names = [name(1, 5, b"key"), name(2, 5, b"key"), name(1, 6, b"key"), name(1, 5, b"kez"), name(1, 5, b"ke")];
    for name in names.iter().take(4) {
        read(&cache, name, 40);
        read(&cache, name, 40);
    }
    for name in names.iter().take(4) {
        assert_eq!(found(&cache, name), Some(row_of(name, 40)));
    }
    assert_eq!(found(&cache, names.last().unwrap()), None);
}

#[test]
fn empty_bodies_and_large_rows() {
    let cache = Own::new(RowCache::<ThreadLatch>::LEAST);
    for (bytes, kept) in [(0, true), (1, true), (MOST_BYTES - 3, true), (MOST_BYTES - 2, false)] {
        let name = name(1, bytes as u64, b"key");
        read(&cache, &name, bytes);
        read(&cache, &name, bytes);
        assert_eq!(found(&cache, &name), kept.then(|| row_of(&name, bytes)), "{bytes} bytes");
    }
    // SAFETY: looks at the size only.
    assert!(unsafe { RowCache::<ThreadLatch>::new(std::ptr::null_mut(), RowCache::<ThreadLatch>::LEAST - 1) }.is_none());
}

#[test]
fn a_row_that_is_wanted_stays_and_the_others_go() {
    let cache = Own::new(1 << 17);
    let hot = name(1, 1, b"hot");
    read(&cache, &hot, 256);
    read(&cache, &hot, 256);
    let mut rests = 0;
    for i in 0..5000u32 {
        let key = i.to_be_bytes();
        let passing = name(1, 2, &key);
        read(&cache, &passing, 256);
        read(&cache, &passing, 256);
        if i % 16 == 0 {
            assert_eq!(found(&cache, &hot), Some(row_of(&hot, 256)), "after {i} others");
        }
        rests += u32::from(found(&cache, &passing).is_some());
    }
    assert!(rests > 4950, "{rests} of 5000 were kept at first");
    let Counts { rows, bytes, room, kept, .. } = cache.counts();
    assert!(bytes <= room && rows > 200 && kept > 4950, "{rows} rows in {bytes} bytes, {kept} were kept");
    let left = (0..5000u32).filter(|i| found(&cache, &name(1, 2, &i.to_be_bytes())).is_some()).count();
    assert!(left as u64 <= rows && left > 100, "{left} of {rows}");
}

/// All rows are wanted: still each new one finds room, in the smallest ring and with rows of all sizes.
#[test]
fn wanted_rows_go_too_when_there_is_nothing_else() {
    for bytes in [RowCache::<ThreadLatch>::LEAST, 1 << 15, 1 << 17] {
        let cache = Own::new(bytes);
        for i in 0..3000u32 {
            let key = i.to_be_bytes();
            let one = name(1, 1, &key);
            let size = (i * 7919 % 2040) as usize;
            read(&cache, &one, size);
            read(&cache, &one, size);
            for back in 0..i.min(40) {
                let key = (i - back).to_be_bytes();
                let name = name(1, 1, &key);
                let size = ((i - back) * 7919 % 2040) as usize;
                assert!(found(&cache, &name).is_none_or(|row| row == row_of(&name, size)));
            }
        }
        assert!(cache.counts().bytes <= cache.counts().room);
    }
}

#[test]
fn readers_beside_keepers_find_whole_rows() {
    let cache = Own::new(1 << 15);
    let rounds = if cfg!(miri) { 300 } else { 60_000 };
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let cache = &cache;
            scope.spawn(move || {
                let mut state = 0x1234_5678_9abc_def1 ^ thread << 40;
                let mut out = RowBuf::default();
                for _ in 0..rounds {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let key = ((state >> 20) % 96).to_be_bytes();
                    let name = name(1, state >> 60, &key);
                    let size = (name.l0.0 * 40 + u64::from(*key.last().unwrap())) as usize;
                    if cache.get(&name, true, &mut out) {
                        assert_eq!(out, row_of(&name, size));
                    } else {
                        read(cache, &name, size);
                    }
                }
            });
        }
    });
    assert!(cache.counts().found > 0);
}
