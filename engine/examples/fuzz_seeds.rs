//! Makes the seeds of the fuzz corpus: pages, files and records that real stores have written, and what one would write in the midst
//! of a long merge.
//!
//! `cargo run -p loosekv-engine --example fuzz_seeds` writes them to `engine/fuzz/corpus`, beside what stands there.

use loosekv_engine::embedded::{Background, Options, Store};
use loosekv_engine::error::Error;
use loosekv_engine::filter::{key_hash, ribbon, FilterKind};
use loosekv_engine::manifest::Manifest;
use loosekv_engine::options::{Compression, KeyPages, RunOptions, TreeOptions};
use loosekv_engine::page::{PageBuf, PageKind, CAPACITY, CONTENT, FORMAT_SHARED};
use loosekv_engine::row::{encode_record, ValuePointer};
use loosekv_engine::run::Cut;
use loosekv_engine::types::*;
use std::fs;
use std::io::Result;
use std::path::{Path, PathBuf};

fn main() -> Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let seeds = Seeds { corpus };
    let plain = RunOptions::default();
    let stores = [
        ("plain", plain, 0, 1500),
        ("bare", RunOptions { filter_bits: 0, key_pages: KeyPages::Off, ..plain }, 0, 1500),
        ("zstd", RunOptions { compression: Compression::Zstd(3), key_pages: KeyPages::On, ..plain }, 0, 1500),
        ("large", plain, 512, 1500),
        // Rows so long that pages share them.
        ("split", plain, 0, 4400),
    ];
    for (name, run, value_log_threshold, long) in stores {
        seeds.of_store(name, TreeOptions { run, value_log_threshold, fan_in: 3, ..TreeOptions::default() }, long)?;
    }
    seeds.records()?;
    seeds.settled_filter()?;
    seeds.put("options", "all", b"compression = zstd:3\nmemtable_bytes=8 MB\nfan_in = 4\nkey_pages=off\n")?;
    seeds.put("key_order", "inline", b"\x05abcdeabcdf")?;
    seeds.put("key_order", "long", b"\x1eabcdefghijklmnopqrstuvwxyz0123abcdefghijklmnopqrstuvwxyz01234")
}

struct Seeds {
    corpus: PathBuf,
}

impl Seeds {
    fn put(&self, target: &str, name: &str, bytes: &[u8]) -> Result<()> {
        let dir = self.corpus.join(target);
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(name), bytes)
    }

    /// What a small store leaves in its files. Some of its values are longer by so many bytes.
    fn of_store(&self, name: &str, tree: TreeOptions, long: u64) -> Result<()> {
        let dir = std::env::temp_dir().join(format!("loosekv-seeds-{}-{name}", std::process::id()));
        let tree = TreeOptions { max_frozen: 6, ..tree };
        let options = Options {
            tree,
            log_chunk: 4096,
            background: Background::Caller,
            flush_on_close: false,
            ..Options::default()
        };
        let store = Store::open(&dir, &options).map_err(std::io::Error::other)?;
        for round in 0..3u64 {
            for n in 0..150u64 {
                let key = match n % 3 {
                    0 => format!("key {n:06}").into_bytes(),
                    1 => vec![b'k'; 1 + n as usize],
                    _ => n.to_be_bytes().to_vec(),
                };
                let length = (n * 37 % 200 + if n % 40 == 7 { long } else { 0 }) as usize;
                let done = match (n + round) % 7 {
                    0 => store.delete(&key),
                    _ => store.put(&key, &vec![b'a' + (n % 23) as u8; length]),
                };
                done.map_err(std::io::Error::other)?;
            }
            if round < 2 {
                store.flush().map_err(std::io::Error::other)?;
            }
        }
        store.close().map_err(std::io::Error::other)?;
        let mut kinds = std::collections::BTreeMap::<String, usize>::new();
        let file = fs::read(dir.join("pages.lkv"))?;
        // These say the same of every store.
        let is_first = name == "plain";
        if is_first {
            self.put("page_file", name, file.get(..3 * PAGE_SIZE).unwrap_or(&file))?;
        }
        let pages = pages_of(&file);
        let shared = pages.iter().filter(|page| page.kind() == Some(PageKind::Data) && page.format() == FORMAT_SHARED);
        for (at, page) in shared.enumerate().take(2) {
            self.put("page_head", &format!("{name}-shared-{at}"), page.0.get(..64).unwrap_or_default())?;
        }
        for page in &pages {
            let Some(kind) = page.kind() else { continue };
            let contents = page.0.get(CONTENT..page.used()).unwrap_or_default();
            let with_key = |key: &[u8]| [&[key.len() as u8], key, contents].concat();
            let (target, bytes) = match kind {
                PageKind::Data if page.flags() & 1 != 0 => ("data_page_zstd", contents.to_vec()),
                PageKind::Data => ("data_page", with_key(b"key 000030")),
                PageKind::Fence => ("fence_page", with_key(b"key 000030")),
                PageKind::Filter => ("filter_page", contents.to_vec()),
                PageKind::Directory => ("directory_page", contents.to_vec()),
                PageKind::Keys => ("keys_page", contents.to_vec()),
                PageKind::Footer => ("footer_page", contents.to_vec()),
                PageKind::Manifest => ("manifest_body", contents.to_vec()),
                PageKind::Value => ("value_pages", value(page)),
                PageKind::Meta | PageKind::Log => continue,
            };
            let count = kinds.entry(target.to_string()).or_default();
            *count += 1;
            if *count <= 2 {
                self.put(target, &format!("{name}-{count}"), &bytes)?;
            }
            if *count == 1 {
                self.put("page_head", &format!("{name}-{target}"), page.0.get(..64).unwrap_or_default())?;
            }
        }
        for (at, run) in runs_of(&pages).into_iter().enumerate().take(2) {
            self.put("run", &format!("{name}-{at}"), &run)?;
        }
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            let bytes = fs::read(&path)?;
            match path.file_name().and_then(|n| n.to_str()) {
                Some("meta.lkv") => {
                    self.put("meta_file", name, &bytes)?;
                    let meta = pages_of(&bytes);
                    let contents = meta.first().and_then(|page| page.0.get(CONTENT..page.used()));
                    self.put("meta_page", name, contents.unwrap_or_default())?;
                    if let Some(meta) = meta.first().filter(|_| is_first) {
                        self.in_a_merge(name, meta, &pages).map_err(std::io::Error::other)?;
                    }
                }
                Some(log) if log.starts_with("log-") => {
                    // A part is enough, and its end is torn.
                    self.put("log_segment", name, bytes.get(..6000).unwrap_or(&bytes))?;
                }
                _ => {}
            }
        }
        fs::remove_dir_all(&dir)
    }

    /// The store's manifest as it would be in the midst of a merge of its runs, which were cut at what is in a slice already.
    fn in_a_merge(&self, name: &str, meta: &PageBuf, pages: &[PageBuf]) -> loosekv_engine::error::Result<()> {
        let (mut manifest, body) = Manifest::decode_meta(meta)?;
        let of_body = manifest.body.iter().flat_map(|e| pages.iter().skip(e.start.0 as usize).take(e.pages as usize));
        let mut bytes: Vec<u8> = of_body.flat_map(|page| page.contents()).copied().collect();
        bytes.truncate(body.length);
        manifest.read_body(&body, &bytes)?;
        let Some(mut slice) = manifest.runs.first().cloned() else { return Ok(()) };
        for run in &mut manifest.runs {
            run.cut = Some(Cut { key: run.shape.max_key.clone(), pages: run.shape.data_pages.saturating_sub(1) });
        }
        (slice.id, slice.first_l0, slice.last_l0) = (manifest.next_run, L0Id(1), L0Id(0));
        manifest.next_run.0 += 1;
        manifest.runs.insert(0, slice);
        manifest.check()?;
        let body = manifest.encode_body();
        let put = |target, bytes: &[u8]| self.put(target, &format!("{name}-cut"), bytes);
        put("manifest_body", &body)
            .and_then(|()| put("meta_page", manifest.encode_meta(&body).map_err(std::io::Error::other)?.contents()))
            .map_err(|e| Error::io("cannot write a seed", e))
    }

    /// That of a run which is larger than those of small stores.
    fn settled_filter(&self) -> Result<()> {
        let hashes: Vec<u64> = (0..6500u64).map(|n| key_hash(&n.to_be_bytes())).collect();
        let mut contents = Box::new([0; CAPACITY]);
        let width = ribbon::make(&hashes, 3, 10, &mut contents);
        let [kind, second, ..] = &mut *contents;
        (*kind, *second) = (FilterKind::Ribbon as u8, width);
        self.put("filter_page", "ribbon", contents.as_slice())
    }

    fn records(&self) -> Result<()> {
        let all =
            Head { row_id: RowId(1 << 33), writer: Writer(1 << 50), command: 7, flags: Flags(31), incarnation: 9 };
        for (name, head, body) in [("small", Head::default(), &b"body"[..]), ("full", all, &[b'x'; 300])] {
            let mut out = Vec::new();
            encode_record(&RowRef { key: b"a key", head, body }, &mut out);
            self.put("record", name, &out)?;
        }
        let pointer = ValuePointer { start: PageNo(7), offset: 40, seq: ExtentSeq(9), length: 12_345 };
        self.put("record", "pointer", &pointer.encode())
    }
}

fn pages_of(bytes: &[u8]) -> Vec<PageBuf> {
    let page = |chunk: &[u8]| {
        let mut page = PageBuf::ZERO;
        page.0.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
        page
    };
    bytes.chunks(PAGE_SIZE).map(page).collect()
}

/// The page, behind a pointer to a value on it.
fn value(page: &PageBuf) -> Vec<u8> {
    let length = (page.used() - CONTENT) as u64 / 2;
    let pointer = ValuePointer { start: PageNo(3), offset: CONTENT as u16 + 100, seq: page.seq(), length };
    [&pointer.encode()[..], &page.0].concat()
}

/// Runs of up to sixteen pages: those of one extent, up to a footer.
fn runs_of(pages: &[PageBuf]) -> Vec<Vec<u8>> {
    let mut runs = Vec::new();
    for (end, footer) in pages.iter().enumerate().filter(|(_, page)| page.kind() == Some(PageKind::Footer)) {
        let from = pages.iter().take(end).rposition(|page| page.seq() != footer.seq()).map_or(0, |at| at + 1);
        let run = pages.get(from..end + 1).unwrap_or_default();
        if run.len() <= 16 {
            runs.push(run.iter().flat_map(|page| page.0).collect());
        }
    }
    runs
}
