//! Everything that decodes bytes from outside, for fuzzing: whatever the bytes are, the outcome is a value or an error.
//!
//! A target panics only if the code is wrong. `engine/fuzz` has a libFuzzer program for each, and the corpus;
//! `tests/fuzz_corpus.rs` replays the corpus and some thousand mutations of it.

use crate::options::TreeOptions;
use crate::page::{PageBuf, PageKind};
use crate::types::{ExtentSeq, PageNo};
use crate::{embedded, filter, key_index, manifest, row, run, tree};

pub type Target = fn(&[u8]);

/// Their names, which are those of the folders of the corpus.
pub const TARGETS: [(&str, Target); 18] = [
    ("data_page", data_page),
    ("data_page_zstd", run::fuzz::fuzz_packed),
    ("directory_page", run::directory::fuzz_directory),
    ("fence_page", fence_page),
    ("filter_page", filter::fuzz_filter),
    ("footer_page", run::footer::fuzz_footer),
    ("key_order", key_index::fuzz_key_order),
    ("keys_page", run::keys::fuzz_keys),
    ("log_segment", embedded::fuzz::fuzz_log_segment),
    ("manifest_body", manifest::fuzz_body),
    ("meta_file", embedded::fuzz::fuzz_meta_file),
    ("meta_page", manifest::fuzz_meta),
    ("options", options),
    ("page_file", embedded::fuzz::fuzz_page_file),
    ("page_head", page_head),
    ("record", row::fuzz_record),
    ("run", run::fuzz::fuzz_run),
    ("value_pages", tree::fuzz_value),
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|target| target.0 == name).map(|target| target.1)
}

/// A key, after its length in one byte, and the rest.
fn with_key(bytes: &[u8]) -> (&[u8], &[u8]) {
    let Some((length, rest)) = bytes.split_first() else { return (&[], &[]) };
    rest.split_at(usize::from(*length).min(rest.len()))
}

fn data_page(bytes: &[u8]) {
    let (key, image) = with_key(bytes);
    run::data::fuzz_data(image, key);
}

fn fence_page(bytes: &[u8]) {
    let (key, contents) = with_key(bytes);
    run::fence::fuzz_fence(contents, key);
}

fn page_head(bytes: &[u8]) {
    let mut page = PageBuf::ZERO;
    page.0.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let seq = page.seq();
    for kind in [PageKind::Meta, PageKind::Data, PageKind::Value] {
        let _ = page.expect(PageNo(1), kind, seq);
        let _ = page.expect(PageNo(1), kind, ExtentSeq(0));
    }
    let _ = (page.kind(), page.flags(), page.used());
}

/// Lines of `name = value`.
fn options(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = TreeOptions::parse(text.lines().filter_map(|line| line.split_once('=')));
}
