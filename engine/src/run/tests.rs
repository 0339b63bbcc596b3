use super::testing::*;
use super::*;
use crate::filter::{key_hash, FilterKind};
use crate::options::{Compression, KeyPages, RunOptions};
use crate::page::CONTENT;
use crate::types::*;
use std::collections::BTreeMap;

fn all_options() -> Vec<RunOptions> {
    let plain = RunOptions::default();
    let zstd =
        RunOptions { compression: Compression::Zstd(1), filter: FilterKind::Ribbon, key_pages: KeyPages::On, ..plain };
    let bare = RunOptions { filter_bits: 0, key_pages: KeyPages::Off, directory: true, ..plain };
    let bare_zstd = RunOptions { compression: Compression::Zstd(3), ..bare };
    vec![plain, zstd, bare, bare_zstd]
}

fn recipes() -> Vec<(&'static str, Vec<RowBuf>)> {
    let small =
        Recipe { keys: 3000, key_len: 1..24, body_len: 0..300, most_versions: 3, plain_heads: false, alphabet: 8 };
    let uniform =
        Recipe { keys: 5000, key_len: 16..17, body_len: 100..101, most_versions: 1, plain_heads: true, ..small };
    let long = Recipe { keys: 500, key_len: 1..MAX_KEY + 1, body_len: 0..6000, most_versions: 2, ..small };
    let versions = Recipe { keys: 20, key_len: 1..30, body_len: 0..400, most_versions: 300, ..small };
    let empty = Recipe { keys: 20_000, key_len: 8..9, body_len: 0..1, most_versions: 1, ..small };
    let noise = Recipe { keys: 2000, key_len: 1..40, body_len: 0..500, alphabet: 256, most_versions: 2, ..small };
    let dense = Recipe { keys: 20_000, key_len: 4..5, body_len: 10..60, alphabet: 1, most_versions: 1, ..small };
    let large =
        Recipe { keys: 700, key_len: 16..17, body_len: 2048..2049, most_versions: 1, plain_heads: true, ..small };
    let uneven = Recipe { keys: 400, key_len: 1..200, body_len: 600..5000, most_versions: 4, ..small };
    let single = Recipe { keys: 1, key_len: 5..6, body_len: 7..8, most_versions: 1, ..small };
    vec![
        ("small", small.rows(1)),
        ("uniform", uniform.rows(2)),
        ("long", long.rows(3)),
        ("versions", versions.rows(4)),
        ("empty", empty.rows(5)),
        ("noise", noise.rows(6)),
        ("dense", dense.rows(7)),
        ("single", single.rows(8)),
        ("large", large.rows(9)),
        ("uneven", uneven.rows(10)),
    ]
}

fn each(mut check: impl FnMut(&str, &[RowBuf], &TestRun, &RunOptions)) {
    for (name, rows) in recipes() {
        for options in all_options() {
            let run = TestRun::write(&rows, &options);
            check(&format!("{name} {options:?}"), &rows, &run, &options);
        }
    }
}

fn by_key(rows: &[RowBuf]) -> BTreeMap<&[u8], Vec<&RowBuf>> {
    let mut map: BTreeMap<&[u8], Vec<&RowBuf>> = BTreeMap::new();
    for row in rows {
        map.entry(&row.key).or_default().push(row);
    }
    map
}

#[test]
fn shape_tells_what_was_written() {
    each(|name, rows, t, options| {
        let model = by_key(rows);
        assert_eq!(t.shape.rows, rows.len() as u64, "{name}");
        assert_eq!(t.shape.keys, model.len() as u64);
        assert_eq!(t.shape.tombstones, rows.iter().filter(|r| r.head.flags.is_tombstone()).count() as u64);
        assert_eq!(t.shape.min_key, rows[0].key);
        assert_eq!(t.shape.max_key, rows[rows.len() - 1].key);
        assert_eq!(t.shape.min_row, rows.iter().map(|r| r.head.row_id).min().unwrap());
        assert_eq!(t.shape.max_writer, rows.iter().map(|r| r.head.writer).max().unwrap());
        assert!(
            t.shape.key_pages == 0 || (options.has_key_pages() && t.shape.key_pages * 2 <= t.shape.data_pages),
            "{name}"
        );
        assert!(t.shape.key_pages > 0 || !options.has_key_pages() || !name.starts_with("uniform"), "{name}");
        let footer = t.run().check_footer(&t.pages).unwrap();
        assert_eq!((footer.first_l0, footer.last_l0), (L0Id(3), L0Id(5)));
        let mut bytes = Vec::new();
        t.shape.encode(&mut bytes);
        let length = bytes.len();
        bytes.push(7);
        assert_eq!(RunShape::decode(&bytes).unwrap(), (t.shape.clone(), length));
        if name.starts_with("uniform") && options.compression != Compression::None {
            assert!(t.shape.data_pages * 10 <= rows.len() as u32 * 116 / 8192 * 7, "{} pages", t.shape.data_pages);
        }
    });
}

#[test]
fn little_memory_makes_the_same_run() {
    let mut side_files = 0;
    each(|name, rows, test, options| {
        for memory in [0, 3000] {
            let again = TestRun::write_within(memory, rows, options);
            let same = test.pages.pages.iter().zip(&again.pages.pages).all(|(one, other)| one.0 == other.0);
            assert!(same && test.pages.pages.len() == again.pages.pages.len(), "{name} with {memory} bytes");
            side_files += again.pages.side_files.get();
        }
        assert_eq!(test.pages.side_files.get(), 0);
    });
    assert!(side_files > 10, "{side_files} side files");
}

#[test]
fn get_shows_every_version_newest_first() {
    each(|name, rows, t, _| {
        let mut scratch = Scratch::new();
        for (key, versions) in by_key(rows) {
            for wanted in [0, versions.len() / 2, versions.len() - 1, versions.len()] {
                let mut shown = Vec::new();
                let mut copy = RowBuf::default();
                let taken = t
                    .run()
                    .get(&t.pages, key, &mut scratch, |row| {
                        copy.set(&row);
                        shown.push(copy.clone());
                        if shown.len() > wanted {
                            Verdict::Take
                        } else {
                            Verdict::Skip
                        }
                    })
                    .unwrap();
                assert_eq!(taken, wanted < versions.len(), "{name}");
                assert_eq!(shown.len(), (wanted + 1).min(versions.len()), "{name}");
                for (shown, row) in shown.iter().zip(&versions) {
                    assert_eq!(shown.as_ref(), row.as_ref(), "{name}");
                }
            }
        }
    });
}

#[test]
fn get_of_an_absent_key_shows_nothing() {
    each(|name, rows, t, _| {
        let model = by_key(rows);
        let mut random = Random(77);
        let mut scratch = Scratch::new();
        for i in 0..500 {
            let mut key = rows[random.below(rows.len())].key.clone();
            match i % 4 {
                0 => key.push(0),
                1 if key.len() > 1 => drop(key.pop()),
                2 => *key.last_mut().unwrap() ^= 1 << random.below(8),
                _ => key = random.bytes(5),
            }
            if !model.contains_key(key.as_slice()) {
                let found = t.run().get(&t.pages, &key, &mut scratch, |_| panic!("{name}")).unwrap();
                assert!(!found);
            }
        }
    });
}

#[test]
fn get_reads_one_page_a_level() {
    let rows = recipes().swap_remove(1).1;
    let t = TestRun::write(&rows, &RunOptions::default());
    assert_eq!(t.shape.fence_levels, 1);
    let mut scratch = Scratch::new();
    for row in &rows {
        let before = t.pages.reads.get();
        assert!(t.run().get(&t.pages, &row.key, &mut scratch, |_| Verdict::Take).unwrap());
        assert_eq!(t.pages.reads.get() - before, 2);
    }
    assert_eq!(scratch.pages_read, t.pages.reads.get());
}

#[test]
fn long_rows_leave_little_of_a_page_empty() {
    // Bodies, and by how much more the pages have than the rows, at most, in percent.
    for (body, most) in [(256, 5), (600, 4), (1024, 3), (1500, 6), (2048, 2), (3000, 2), (4000, 2)] {
        let recipe = Recipe {
            keys: 600,
            key_len: 16..17,
            body_len: body..body + 1,
            most_versions: 1,
            plain_heads: true,
            alphabet: 256,
        };
        let rows = recipe.rows(body as u64);
        let t = TestRun::write(&rows, &RunOptions::default());
        let bytes: usize = rows.iter().map(|row| row.key.len() + row.body.len()).sum();
        let taken = t.shape.data_pages as usize * crate::page::CAPACITY;
        assert!(taken * 100 <= bytes * (100 + most), "{body}: {taken} for {bytes}");
        // A row is on two pages at most, and most are on one.
        let (mut scratch, mut pages) = (Scratch::new(), 0);
        for row in &rows {
            let before = scratch.pages_read;
            let found = |found: RowRef<'_>| {
                assert_eq!(found, row.as_ref());
                Verdict::Take
            };
            assert!(t.run().get(&t.pages, &row.key, &mut scratch, found).unwrap());
            let read = scratch.pages_read - before - u64::from(t.shape.fence_levels);
            assert!((1..=2).contains(&read), "{body}: {read}");
            pages += read as usize;
        }
        let split = pages - rows.len();
        assert!(split < t.shape.data_pages as usize && (body > 600 || split == 0), "{body}: {split}");
    }
}

#[test]
fn a_split_row_that_does_not_find_its_rest_is_an_error() {
    let rows: Vec<RowBuf> = recipes().into_iter().find(|(name, _)| *name == "large").unwrap().1;
    let mut t = TestRun::write(&rows, &RunOptions::default());
    assert_eq!(found(&t.run(), &t.pages), [""; 0]);
    let ask = |t: &TestRun| {
        let mut cursor = RunCursor::new();
        let got = t.run().get(&t.pages, &rows[3].key, &mut Scratch::new(), |_| Verdict::Take);
        let mut walked = cursor.first(&t.run(), &t.pages);
        for _ in 0..3 {
            walked = walked.and_then(|_| cursor.next(&t.run(), &t.pages));
        }
        [got, walked].map(|answer| answer.map_err(|e| e.to_string()))
    };
    assert_eq!(ask(&t), [Ok(true), Ok(true)]);
    let whole = t.pages.pages[1].clone();
    // A byte less of it, as its length says and as the page's end does.
    let length_at = CONTENT + 2;
    let length = u16::from_le_bytes([whole.0[length_at], whole.0[length_at + 1]]);
    t.pages.pages[1].0[length_at..length_at + 2].copy_from_slice(&(length - 1).to_le_bytes());
    let error =
        format!("corrupt page 1 at offset 40: has {} bytes of the row before, which lacks {length}", length - 1);
    assert_eq!(ask(&t), [Err(error.clone()), Err(error)]);
    assert!(!found(&t.run(), &t.pages).is_empty());
    // No rest at all.
    t.pages.pages[1] = whole.clone();
    t.pages.pages[1].set_flags(whole.flags() & !data::REST);
    assert!(ask(&t).iter().all(|answer| answer.is_err()));
    let told = found(&t.run(), &t.pages).join("; ");
    assert!(told.contains("data pages 0 and 1 disagree about a split row"), "{told}");
    // Lengths that cannot be.
    t.pages.pages[1] = whole;
    t.pages.pages[1].0[CONTENT..CONTENT + 4].fill(0xff);
    assert!(ask(&t).iter().all(|answer| answer.is_err()));
}

#[test]
fn rows_are_found_by_row_id() {
    each(|name, rows, t, _| {
        let (mut scratch, mut out) = (Scratch::new(), RowBuf::default());
        for row in rows.iter().step_by(rows.len() / 1000 + 1) {
            assert!(t.run().by_row(&t.pages, row.head.row_id, &mut scratch, &mut out).unwrap().is_some(), "{name}");
            assert_eq!(out.as_ref(), row.as_ref(), "{name}");
            // The page at hand is the one that it was.
            assert!(t.run().by_row(&t.pages, row.head.row_id, &mut scratch, &mut out).unwrap().is_some(), "{name}");
            assert_eq!(out.as_ref(), row.as_ref(), "{name}");
        }
        for row in [RowId(0), RowId(12345), RowId::MAX] {
            let known = rows.iter().any(|r| r.head.row_id == row);
            assert_eq!(t.run().by_row(&t.pages, row, &mut scratch, &mut out).unwrap().is_some(), known);
        }
    });
}

#[test]
fn filter_knows_every_key() {
    each(|name, rows, t, options| {
        assert!(rows.iter().all(|row| t.run().may_contain(&t.pages, key_hash(&row.key)).unwrap()), "{name}");
        if options.filter_bits > 0 {
            let mut random = Random(5);
            let wrong = (0..2000).filter(|_| t.run().may_contain(&t.pages, random.next()).unwrap()).count();
            assert!(wrong < 60, "{name}: {wrong} of 2000");
        }
    });
}

#[test]
fn every_key_is_shown_once_with_its_newest_tombstone_bit() {
    each(|name, rows, t, _| {
        let mut scratch = Scratch::new();
        let mut found = Vec::new();
        let mut at = Some(0);
        while let Some(page) = at {
            let show = |key: &[u8], tombstone| {
                found.push((key.to_vec(), tombstone));
                Ok(())
            };
            at = t.run().for_each_key(&t.pages, page, &mut scratch, show).unwrap();
        }
        let expected: Vec<_> =
            by_key(rows).iter().map(|(key, rows)| (key.to_vec(), rows[0].head.flags.is_tombstone())).collect();
        assert!(found == expected, "{name}");
    });
}

#[test]
fn a_run_without_rows_has_no_pages() {
    let t = TestRun::write(&[], &RunOptions::default());
    assert_eq!(t.shape.pages(), 0);
    let mut cursor = RunCursor::new();
    assert!(!cursor.first(&t.run(), &t.pages).unwrap());
    assert!(!cursor.last(&t.run(), &t.pages).unwrap());
    assert!(!cursor.seek(&t.run(), &t.pages, b"a").unwrap());
    assert!(!t.run().get(&t.pages, b"a", &mut Scratch::new(), |_| Verdict::Take).unwrap());
    assert!(!t.run().may_contain(&t.pages, 1).unwrap());
}

#[test]
fn rows_that_cannot_be_stored_are_refused() {
    let mut writer = RunWriter::new(Pages::default(), &RunOptions::default(), L0Id(1), L0Id(1)).unwrap();
    let big = vec![0u8; MAX_ROW];
    let head = Head::default();
    for (key, body) in [(&[][..], &[][..]), (&big[..MAX_KEY + 1], &[]), (b"k", &big)] {
        assert!(writer.add(&RowRef { key, head, body }).is_err());
    }
    let head = Head { row_id: RowId(1 << 40), ..head };
    assert!(writer.add(&RowRef { key: b"k", head, body: b"" }).is_err());
}

#[test]
fn rows_of_the_greatest_length_fit() {
    for options in all_options() {
        let mut random = Random(3);
        let rows: Vec<RowBuf> = (1..40u8)
            .map(|i| {
                let mut key = random.bytes(1 + random.0 as usize % MAX_KEY);
                key[0] = i;
                let body = random.bytes(MAX_ROW - key.len());
                let head = Head {
                    row_id: RowId::MAX,
                    writer: Writer(u64::MAX),
                    command: u32::MAX,
                    flags: Flags(31),
                    incarnation: u16::MAX,
                };
                RowBuf { head: Head { row_id: RowId(RowId::MAX.0 - u64::from(i)), ..head }, key, body }
            })
            .collect();
        let t = TestRun::write(&rows, &options);
        let mut cursor = RunCursor::new();
        cursor.first(&t.run(), &t.pages).unwrap();
        for row in &rows {
            assert_eq!(cursor.row(), row.as_ref());
            cursor.next(&t.run(), &t.pages).unwrap();
        }
    }
}

#[test]
fn rows_out_of_order_are_refused() {
    let mut writer = RunWriter::new(Pages::default(), &RunOptions::default(), L0Id(1), L0Id(1)).unwrap();
    let head = Head::default();
    writer.add(&RowRef { key: b"b", head, body: b"" }).unwrap();
    for row in [RowRef { key: b"a", head, body: b"" }, RowRef { key: b"b", head, body: b"" }] {
        let refused = writer.add(&row).unwrap_err();
        assert!(refused.to_string().contains("does not come in order"), "{refused}");
    }
}

#[test]
fn cursor_walks_like_the_model() {
    each(|name, rows, t, _| {
        let (run, pages) = (t.run(), &t.pages);
        let mut cursor = RunCursor::new();
        let mut more = cursor.first(&run, pages).unwrap();
        for row in rows {
            assert!(more, "{name}");
            assert_eq!(cursor.row(), row.as_ref(), "{name}");
            more = cursor.next(&run, pages).unwrap();
        }
        assert!(!more && !cursor.valid());
        let newest: Vec<&RowBuf> = by_key(rows).values().map(|versions| versions[0]).collect();
        more = cursor.first(&run, pages).unwrap();
        for row in &newest {
            assert!(more);
            assert_eq!(cursor.row(), row.as_ref(), "{name}");
            more = cursor.next_key(&run, pages).unwrap();
        }
        assert!(!more);
        more = cursor.last(&run, pages).unwrap();
        for row in newest.iter().rev() {
            assert!(more);
            assert_eq!(cursor.row(), row.as_ref(), "{name}");
            more = cursor.prev_key(&run, pages).unwrap();
        }
        assert!(!more);
    });
}

#[test]
fn cursor_seeks_like_the_model() {
    each(|name, rows, t, _| cursor_seeks(name, rows, t));
}

#[test]
fn a_run_that_was_cut_has_the_rows_that_are_left() {
    for (part, every) in [(1, 2), (1, 50), (49, 50), (99, 100)] {
        for (name, rows) in recipes() {
            for options in all_options() {
                let from = rows[rows.len() * part / every].key.clone();
                let (gone, left) = rows.split_at(rows.partition_point(|row| row.key < from));
                let (run, mut scratch) = (TestRun::write(&rows, &options).cut(&from), Scratch::new());
                let name = format!("{name} {options:?} from {from:?}");
                assert_eq!(found(&run.run(), &run.pages), [] as [String; 0], "{name}");
                cursor_seeks(&name, left, &run);
                let (mut out, mut keys) = (RowBuf::default(), BTreeMap::new());
                for (row, there) in gone.iter().map(|row| (row, false)).chain(left.iter().map(|row| (row, true))) {
                    let mut seen = false;
                    let show = |found: RowRef<'_>| {
                        seen |= found.head == row.head;
                        Verdict::Skip
                    };
                    run.run().get(&run.pages, &row.key, &mut scratch, show).unwrap();
                    let by_row = run.run().by_row(&run.pages, row.head.row_id, &mut scratch, &mut out).unwrap();
                    assert_eq!((seen, by_row.is_some_and(|_| out.key == row.key)), (there, there), "{name}");
                }
                let mut next = Some(0);
                while let Some(piece) = next {
                    let show = |key: &[u8], tombstone| {
                        keys.insert(key.to_vec(), tombstone);
                        Ok(())
                    };
                    next = run.run().for_each_key(&run.pages, piece, &mut scratch, show).unwrap();
                }
                let newest = |(key, rows): (&&[u8], &Vec<&RowBuf>)| (key.to_vec(), rows[0].head.flags.is_tombstone());
                assert_eq!(keys, by_key(left).iter().map(newest).collect(), "{name}");
            }
        }
    }
}

#[test]
fn slices_are_runs_and_so_is_what_they_become() {
    for (name, rows) in recipes() {
        for options in all_options() {
            let (whole, mut random) = (TestRun::write(&rows, &options), Random(7));
            let mut writer = RunWriter::new(Pages::default(), &options, L0Id(3), L0Id(5)).unwrap();
            let filters = random.below(2) == 0;
            writer.make_slices(filters);
            // Slices: their shapes, pages and rows.
            let (mut slices, mut data, mut rows_from, mut pages_from) = (Vec::new(), Vec::new(), 0, 0);
            for (at, row) in rows.iter().enumerate() {
                writer.add(&row.as_ref()).unwrap();
                if random.below(rows.len().div_ceil(5)) == 0 && rows.get(at + 1).is_some_and(|next| next.key != row.key)
                {
                    let shape = writer.end_slice().unwrap();
                    let pages = pages_from..writer.sink().pages.len() as u32;
                    assert_eq!(shape.pages(), pages.len() as u32);
                    assert_eq!(shape.filter_pages > 0, filters && options.filter_bits > 0);
                    data.extend(extents(pages.start..pages.start + shape.data_pages));
                    slices.push((shape, extents(pages.clone()), rows_from..at + 1));
                    (rows_from, pages_from) = (at + 1, pages.end);
                }
            }
            let (shape, pages) = writer.finish().unwrap();
            data.extend(extents(pages_from..pages.pages.len() as u32));
            let name = format!("{name} {options:?}, {} slices", slices.len());
            for (shape, extents, range) in slices {
                let extents = extents.into();
                let slice = Run::new(&shape, &extents);
                assert_eq!(found(&slice, &pages), [] as [String; 0], "{name}");
                assert_eq!(rows_of(&slice, &pages), rows[range], "{name}");
            }
            let data = data.into();
            let merged = Run::new(&shape, &data);
            assert_eq!(found(&merged, &pages), [] as [String; 0], "{name}");
            assert_eq!(rows_of(&merged, &pages), rows, "{name}");
            assert_eq!((shape.rows, shape.keys), (whole.shape.rows, whole.shape.keys), "{name}");
        }
    }
}

/// What a check finds wrong.
fn found(run: &Run<'_>, pages: &Pages) -> Vec<String> {
    struct Found(Vec<String>);
    impl check::Inspector for Found {
        fn found(&mut self, what: String) {
            self.0.push(what);
        }
        fn row(&mut self, _: &RowRef<'_>) -> Result<()> {
            Ok(())
        }
        fn looked(&mut self, _: u64) -> Result<()> {
            Ok(())
        }
    }
    let mut found = Found(Vec::new());
    check::check_run(run, None, pages, &mut found).unwrap();
    found.0
}

fn rows_of(run: &Run<'_>, pages: &Pages) -> Vec<RowBuf> {
    let (mut cursor, mut rows) = (RunCursor::new(), Vec::new());
    let mut more = cursor.first(run, pages).unwrap();
    while more {
        let mut row = RowBuf::default();
        row.set(&cursor.row());
        rows.push(row);
        more = cursor.next(run, pages).unwrap();
    }
    rows
}

fn cursor_seeks(name: &str, rows: &[RowBuf], t: &TestRun) {
    let (run, pages) = (t.run(), &t.pages);
    let mut cursor = RunCursor::new();
    let mut random = Random(99);
    // Index in `rows` of the cursor, as the model has it.
    let mut at: Option<usize> = None;
    let newest = |mut i: usize| {
        while i > 0 && rows[i - 1].key == rows[i].key {
            i -= 1;
        }
        i
    };
    for step in 0..3000 {
        let near = at.map_or(0, |i| i + random.below(60)).min(rows.len() - 1);
        let mut key = rows[if step % 3 == 0 { random.below(rows.len()) } else { near }].key.clone();
        match random.below(6) {
            0 => key.push(0),
            1 if key.len() > 1 => drop(key.pop()),
            2 => key = random.bytes(3),
            _ => {}
        }
        let lower = rows.partition_point(|row| row.key < key);
        let upper = rows.partition_point(|row| row.key <= key);
        let found = match random.below(10) {
            0..=2 => {
                at = (lower < rows.len()).then_some(lower);
                cursor.seek(&run, pages, &key)
            }
            3 => {
                at = upper.checked_sub(1).map(newest);
                cursor.seek_for_prev(&run, pages, &key)
            }
            4 => {
                at = lower.checked_sub(1).map(newest);
                cursor.seek_last_before(&run, pages, &key)
            }
            5 => {
                at = at.map(|i| i + 1).filter(|i| *i < rows.len());
                cursor.next(&run, pages)
            }
            6 => {
                at = at.and_then(|i| i.checked_sub(1));
                cursor.prev(&run, pages)
            }
            7 => {
                at = at.map(|i| rows.partition_point(|r| r.key <= rows[i].key)).filter(|i| *i < rows.len());
                cursor.next_key(&run, pages)
            }
            8 => {
                at = at.and_then(|i| newest(i).checked_sub(1)).map(newest);
                cursor.prev_key(&run, pages)
            }
            _ => {
                at = Some(newest(rows.len() - 1));
                cursor.last(&run, pages)
            }
        };
        assert_eq!(found.unwrap(), at.is_some(), "{name} step {step}");
        assert_eq!(cursor.valid(), at.is_some());
        if let Some(i) = at {
            assert_eq!(cursor.row(), rows[i].as_ref(), "{name} step {step}");
        }
    }
}

#[test]
fn a_guided_scan_reads_each_page_once() {
    let rows = recipes().swap_remove(1).1;
    let t = TestRun::write(&rows, &RunOptions::default());
    let mut cursor = RunCursor::new();
    for row in rows.iter().step_by(3) {
        assert!(cursor.seek(&t.run(), &t.pages, &row.key).unwrap());
        assert_eq!(cursor.row(), row.as_ref());
    }
    assert!(cursor.pages_read <= u64::from(t.shape.data_pages) + 2, "{}", cursor.pages_read);
}

#[test]
fn walking_on_reads_ahead_each_page_once() {
    let rows = recipes().swap_remove(1).1;
    let t = TestRun::write(&rows, &RunOptions::default());
    let (run, mut cursor) = (t.run(), RunCursor::new());
    let places = |pages: std::ops::Range<u32>| pages.map(|i| t.extents.locate(i).unwrap().0).collect::<Vec<PageNo>>();
    cursor.seek(&run, &t.pages, &rows[0].key).unwrap();
    assert_eq!(t.pages.prefetched.borrow().len(), 0);
    while cursor.next_key(&run, &t.pages).unwrap() {}
    assert_eq!(t.pages.prefetched.take(), places(1..t.shape.data_pages));
    cursor.last(&run, &t.pages).unwrap();
    while cursor.prev(&run, &t.pages).unwrap() {}
    let mut back = t.pages.prefetched.take();
    back.sort_unstable();
    assert_eq!(back, places(0..t.shape.data_pages - 1));
}

#[test]
fn an_approach_asks_for_what_is_expected_and_the_seek_finds_the_same() {
    let rows = recipes().swap_remove(1).1;
    let t = TestRun::write(&rows, &RunOptions::default());
    let run = t.run();
    for (backward, step) in [(false, 7), (true, 11)] {
        for row in rows.iter().step_by(step) {
            let (mut cursor, mut plain) = (RunCursor::new(), RunCursor::new());
            cursor.approach(&run, &t.pages, &row.key, backward, 3).unwrap();
            let asked = t.pages.prefetched.take();
            let reads = t.pages.reads.get();
            let found = [&mut cursor, &mut plain].map(|cursor| match backward {
                true => cursor.seek_for_prev(&run, &t.pages, &row.key).unwrap(),
                false => cursor.seek(&run, &t.pages, &row.key).unwrap(),
            });
            assert_eq!(found, [true; 2]);
            assert_eq!((cursor.key(), cursor.head()), (plain.key(), plain.head()));
            let at = t.extents.locate(cursor.window().unwrap().0).unwrap().0;
            assert!((1..=4).contains(&asked.len()) && asked.contains(&at), "{asked:?} {at:?}");
            assert!(t.pages.reads.get() > reads);
        }
        t.pages.prefetched.take();
    }
}

/// Every answer that a run gives, or the error; what matters is that nothing panics.
fn ask_everything(t: &TestRun, keys: &[Vec<u8>], row_ids: &[RowId]) {
    let (run, pages) = (t.run(), &t.pages);
    let (mut scratch, mut out) = (Scratch::new(), RowBuf::default());
    for key in keys {
        let _ = run.get(pages, key, &mut scratch, |_| Verdict::Skip);
        let _ = run.may_contain(pages, key_hash(key));
    }
    for row in row_ids {
        let _ = run.by_row(pages, *row, &mut scratch, &mut out);
    }
    let mut at = Some(0);
    while let Some(page) = at {
        at = run
            .for_each_key(pages, page, &mut scratch, |_, _| Ok(()))
            .unwrap_or((page < t.shape.key_pages).then_some(page + 1));
    }
    let _ = run.check_footer(pages);
    let mut cursor = RunCursor::new();
    let mut steps = 0;
    let mut more = cursor.first(&run, pages).unwrap_or(false);
    while more && steps < 3000 {
        steps += 1;
        more = cursor.next(&run, pages).unwrap_or(false);
    }
    more = cursor.last(&run, pages).unwrap_or(false);
    while more && steps < 6000 {
        steps += 1;
        more = cursor.prev_key(&run, pages).unwrap_or(false);
    }
    for key in keys {
        let _ = cursor.seek(&run, pages, key);
        let _ = cursor.seek_for_prev(&run, pages, key);
        let _ = cursor.next_key(&run, pages);
    }
}

#[test]
fn damaged_pages_never_panic() {
    for (name, rows) in
        recipes().into_iter().filter(|(name, _)| ["small", "long", "versions", "single", "large"].contains(name))
    {
        let rows = &rows[..rows.len().min(600)];
        for options in all_options() {
            let mut t = TestRun::write(rows, &options);
            let keys: Vec<Vec<u8>> = rows.iter().step_by(rows.len() / 8 + 1).map(|r| r.key.clone()).collect();
            let row_ids: Vec<RowId> = rows.iter().step_by(rows.len() / 8 + 1).map(|r| r.head.row_id).collect();
            let mut random = Random(name.len() as u64);
            let whole = t.pages.pages.clone();
            for _ in 0..60 {
                let damaged = if random.below(2) == 0 {
                    random.below(whole.len())
                } else {
                    whole.len() - 1 - random.below(whole.len().min(6))
                };
                let page = &mut t.pages.pages[damaged];
                match random.below(4) {
                    0 => {
                        let used = page.used() - random.below(page.used() - 39).min(page.used() - 40);
                        page.set_used(used);
                    }
                    1 => page.0[40..60].iter_mut().for_each(|b| *b = random.next() as u8),
                    2 => page.0[40..].iter_mut().for_each(|b| *b = random.next() as u8),
                    _ => {
                        for _ in 0..1 + random.below(8) {
                            let near = if random.below(2) == 0 { 40 } else { 8152 };
                            page.0[40 + random.below(near)] ^= 1 << random.below(8);
                        }
                    }
                }
                ask_everything(&t, &keys, &row_ids);
                t.pages.pages[damaged] = whole[damaged].clone();
            }
        }
    }
}

#[test]
fn a_page_of_another_extent_or_kind_is_an_error() {
    let rows = recipes().swap_remove(1).1;
    let mut t = TestRun::write(&rows, &RunOptions::default());
    t.pages.pages[0].set_seq(ExtentSeq(99));
    let found = t.run().get(&t.pages, &rows[0].key, &mut Scratch::new(), |_| Verdict::Take);
    assert_eq!(found.unwrap_err().to_string(), "corrupt page 0 at offset 32: expected extent 100, found extent 99");
    t.pages.pages[0] = t.pages.pages[1].clone();
    t.pages.pages[0].0[24] = 8;
    let found = RunCursor::new().first(&t.run(), &t.pages);
    assert_eq!(found.unwrap_err().to_string(), "corrupt page 0 at offset 24: expected a Data page, found kind 8");
}

#[test]
fn arbitrary_bytes_never_panic() {
    let mut random = Random(1);
    for i in 0..20_000 {
        let n = random.below(200);
        let mut bytes = random.bytes(n);
        // Small numbers in the heads come closer to something that parses.
        let calm = if i % 2 == 0 { 1 } else { 0 };
        bytes.iter_mut().skip(calm).step_by(2).take(24).for_each(|b| *b &= random.next() as u8 & 7);
        data::fuzz_data(&bytes, b"key");
        data::fuzz_data(&bytes, &bytes[..n.min(9)]);
        fence::fuzz_fence(&bytes, b"key");
        fence::fuzz_fence(&bytes, &bytes[..n.min(20)]);
        directory::fuzz_directory(&bytes);
        keys::fuzz_keys(&bytes);
        footer::fuzz_footer(&bytes);
    }
}
