//! Runs in memory: what a look-up, a step and a row cost, and how many bytes each section takes.
//!
//! `cargo bench -p loosekv-engine --bench run [rows]`

use loosekv_engine::error::{Error, Result};
use loosekv_engine::filter::{self, key_hash, FilterBuilder, FilterKind};
use loosekv_engine::host::SideFile;
use loosekv_engine::options::{Compression, RunOptions};
use loosekv_engine::page::PageBuf;
use loosekv_engine::run::{PageSink, PageSource, Run, RunCursor, RunWriter, Scratch};
use loosekv_engine::types::*;
use std::hint::black_box;

#[derive(Default)]
struct Memory(Vec<PageBuf>);

impl PageSink for Memory {
    fn seq_of_next(&self) -> ExtentSeq {
        ExtentSeq(1)
    }
    fn put(&mut self, page: &mut PageBuf) -> Result<()> {
        self.0.push(page.clone());
        Ok(())
    }
    fn memory(&self) -> usize {
        usize::MAX
    }
    fn side_file(&self) -> Result<Box<dyn SideFile>> {
        Err(Error::structure("there are no side files here"))
    }
}

struct Source<'a>(&'a [PageBuf]);

impl<'a> PageSource for Source<'a> {
    type Page = &'a PageBuf;
    type Held = &'a PageBuf;
    fn hold(&self, page: &'a PageBuf, _spare: Option<&'a PageBuf>) -> &'a PageBuf {
        page
    }
    fn page(&self, no: PageNo) -> Result<&'a PageBuf> {
        self.0.get(no.0 as usize).ok_or_else(|| Error::structure("past the end"))
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Processor time of this thread in nanoseconds: what others do on the machine is left out.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The best of three rounds.
fn time<T>(what: &str, count: u64, mut work: impl FnMut() -> T) -> T {
    let (mut best, mut result) = (u64::MAX, None);
    for _ in 0..3 {
        let start = now();
        result = Some(work());
        best = best.min(now() - start);
    }
    println!("  {what:<34} {:>9.1} ns", best as f64 / count as f64);
    result.unwrap()
}

/// Bodies of which about half is random.
fn body(state: &mut u64, length: usize, out: &mut Vec<u8>) {
    out.clear();
    while out.len() < length {
        out.extend_from_slice(&random(state).to_le_bytes());
        out.extend_from_slice(b"constant");
    }
    out.truncate(length);
}

fn main() {
    let rows = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(1_000_000u64);
    let mut state = 42;
    let mut keys: Vec<(u128, u64)> =
        (0..rows).map(|i| (u128::from(random(&mut state)) << 64 | u128::from(random(&mut state)), i + 1)).collect();
    keys.sort_unstable();
    for (name, compression, wide) in [
        ("plain, row ids of a fresh run", Compression::None, false),
        ("plain, row ids over 40 bits", Compression::None, true),
        ("zstd 1, row ids of a fresh run", Compression::Zstd(1), false),
    ] {
        println!("{name}: {rows} rows of 16 + 256 bytes");
        measure(&keys, &RunOptions { compression, ..RunOptions::default() }, wide);
    }
    measure_filters(&keys);
}

/// Filters of both kinds: what a key costs, and how many other keys they do not tell from theirs.
fn measure_filters(keys: &[(u128, u64)]) {
    const OTHERS: u64 = 4_000_000;
    let rows = keys.len() as u64;
    println!("filters of {rows} keys, ten bits each");
    for kind in [FilterKind::Bloom, FilterKind::Ribbon] {
        let pages = time(&format!("{kind:?}: made, of a key"), rows, || {
            let (mut builder, mut pages) = (FilterBuilder::new(kind, 10, usize::MAX), Vec::new());
            for (key, _) in keys {
                builder.add(key_hash(&key.to_be_bytes()), &Memory::default()).unwrap();
            }
            let put = |contents: &[u8]| {
                pages.push(contents.to_vec());
                Ok(())
            };
            builder.finish(put).unwrap();
            pages
        });
        let count = pages.len() as u32;
        let answers_yes = |hash: u64| {
            let page = filter::page_of(hash, count);
            filter::probe(PageNo(page), &pages[page as usize], hash, count).unwrap()
        };
        assert!(keys.iter().all(|(key, _)| answers_yes(key_hash(&key.to_be_bytes()))));
        let wrong = time(&format!("{kind:?}: asked for another key"), OTHERS, || {
            let mut state = 1;
            (0..OTHERS).filter(|_| answers_yes(random(&mut state))).count()
        });
        println!("  {:<34} {:>9.3} %", format!("{kind:?}: false answers"), wrong as f64 * 100.0 / OTHERS as f64);
    }
}

fn measure(keys: &[(u128, u64)], options: &RunOptions, wide: bool) {
    let rows = keys.len() as u64;
    let (mut state, mut bytes) = (7, Vec::new());
    let mut bodies = Vec::with_capacity(keys.len() * 256);
    for _ in keys {
        body(&mut state, 256, &mut bytes);
        bodies.extend_from_slice(&bytes);
    }
    let row_id = |n: u64| RowId(if wide { n * (RowId::MAX.0 / rows) - n % 1000 } else { n });
    let start = now();
    let mut writer = RunWriter::new(Memory(Vec::with_capacity(keys.len() / 20)), options, L0Id(1), L0Id(1)).unwrap();
    for ((key, n), body) in keys.iter().zip(bodies.chunks_exact(256)) {
        let head = Head { row_id: row_id(*n), writer: Writer(1000), ..Head::default() };
        writer.add(&RowRef { key: &key.to_be_bytes(), head, body }).unwrap();
    }
    let data = now() - start;
    let (shape, memory) = writer.finish().unwrap();
    let all = now() - start;
    let per = |pages: u32| f64::from(pages) * 8192.0 / rows as f64;
    println!(
        "  bytes a row {:.1}: data {:.1}, keys {:.2}, directory {:.2}, filter {:.2}, fence {:.2} ({} levels)",
        per(shape.pages()),
        per(shape.data_pages),
        per(shape.key_pages),
        per(shape.directory_pages),
        per(shape.filter_pages),
        per(shape.fence_pages),
        shape.fence_levels
    );
    let used: usize = memory.0.iter().take(shape.data_pages as usize).map(PageBuf::used).sum();
    println!("  data pages are {:.1} % full", used as f64 * 100.0 / (f64::from(shape.data_pages) * 8192.0));
    let rate = |elapsed: u64| shape.bytes as f64 * 1e3 / elapsed as f64;
    println!(
        "  write {:.0} MB/s (data section {:.0} MB/s), {:.0} ns a row",
        rate(all),
        rate(data),
        all as f64 / rows as f64
    );

    let extents = vec![Extent { start: PageNo(0), pages: shape.pages(), seq: ExtentSeq(1) }].into();
    let run = Run::new(&shape, &extents);
    let source = Source(&memory.0);
    let picks: Vec<(u128, u64)> = (0..500_000).map(|_| keys[random(&mut state) as usize % keys.len()]).collect();
    let count = picks.len() as u64;
    let (mut scratch, mut out) = (Scratch::new(), RowBuf::default());
    time("get", count, || {
        for (key, _) in &picks {
            let found = run.get(&source, &key.to_be_bytes(), &mut scratch, |row| {
                black_box(row.body[0]);
                Verdict::Take
            });
            assert!(found.unwrap());
        }
    });
    time("get, one hot page", count, || {
        for i in 0..picks.len() {
            let key = keys[i % 25].0.to_be_bytes();
            run.get(&source, &key, &mut scratch, |row| {
                black_box(row.body[0]);
                Verdict::Take
            })
            .unwrap();
        }
    });
    time("may_contain, present", count, || {
        picks.iter().filter(|(key, _)| run.may_contain(&source, key_hash(&key.to_be_bytes())).unwrap()).count()
    });
    let wrong = time("may_contain, absent", count, || {
        picks.iter().filter(|(key, _)| run.may_contain(&source, key_hash(&(key ^ 1).to_be_bytes())).unwrap()).count()
    });
    println!("  false positives {:.2} %", wrong as f64 * 100.0 / count as f64);
    time("by_row", count, || {
        for (_, n) in &picks {
            assert!(run.by_row(&source, row_id(*n), &mut scratch, &mut out).unwrap().is_some());
        }
    });
    let mut cursor = RunCursor::new();
    time("cursor next", rows, || {
        let mut more = cursor.first(&run, &source).unwrap();
        let mut seen = 0;
        while more {
            seen += 1;
            black_box(cursor.row().body.len());
            more = cursor.next(&run, &source).unwrap();
        }
        assert_eq!(seen, rows);
    });
    time("cursor next_key", rows, || {
        let mut more = cursor.first(&run, &source).unwrap();
        while more {
            more = cursor.next_key(&run, &source).unwrap();
        }
    });
    time("cursor prev_key", rows, || {
        let mut more = cursor.last(&run, &source).unwrap();
        while more {
            more = cursor.prev_key(&run, &source).unwrap();
        }
    });
    for step in [1, 4, 40] {
        let what = format!("cursor seek, every {step}. key");
        time(&what, rows / step, || {
            for (key, _) in keys.iter().step_by(step as usize) {
                assert!(cursor.seek(&run, &source, &key.to_be_bytes()).unwrap());
            }
        });
    }
    time("cursor seek, random", count, || {
        for (key, _) in &picks {
            assert!(cursor.seek(&run, &source, &key.to_be_bytes()).unwrap());
        }
    });
    let shown = time("for_each_key", rows, || {
        let (mut at, mut shown) = (Some(0), 0);
        while let Some(page) = at {
            at = run
                .for_each_key(&source, page, &mut scratch, |_, _| {
                    shown += 1;
                    Ok(())
                })
                .unwrap();
        }
        shown
    });
    assert_eq!(shown, rows);
}
