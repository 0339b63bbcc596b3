//! For fuzzing: whole runs of arbitrary bytes, and compressed pages.

use super::{data, pack, Footer, PageSource, Run, RunCursor, Scratch};
use crate::error::{Error, Result};
use crate::filter::key_hash;
use crate::page::{PageBuf, PageKind, CONTENT};
use crate::types::*;
use std::sync::Arc;

/// Rows and pages looked at, whatever a run says that it has.
const MOST: usize = 500;
const MOST_PAGES: usize = 16;
const SEQ: ExtentSeq = ExtentSeq(1);

struct Pages(Vec<Arc<PageBuf>>);

impl PageSource for Pages {
    type Page = Arc<PageBuf>;

    type Held = Box<PageBuf>;

    fn page(&self, no: PageNo) -> Result<Arc<PageBuf>> {
        self.0.get(no.0 as usize).cloned().ok_or_else(|| Error::page(no, 0, "past the end"))
    }

    fn hold(&self, page: Self::Page, spare: Option<Box<PageBuf>>) -> Box<PageBuf> {
        page.copy(spare)
    }
}

/// The pages of a run, the footer last. Its checksum, and the pages' extent, are put right: else nothing else is reached.
pub fn fuzz_run(bytes: &[u8]) {
    let page = |chunk: &[u8]| {
        let mut page = PageBuf::ZERO;
        page.0.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
        page.set_seq(SEQ);
        Arc::new(page)
    };
    let pages = Pages(bytes.chunks(PAGE_SIZE).take(MOST_PAGES).map(page).collect());
    let Some(last) = pages.0.last() else { return };
    let Ok(contents) = last.expect(PageNo(0), PageKind::Footer, SEQ) else { return };
    let Ok(Footer { shape, .. }) = Footer::decode(PageNo(0), &super::footer::with_checksum(contents)) else { return };
    let extents = vec![Extent { start: PageNo(0), pages: pages.0.len() as u32, seq: SEQ }].into();
    let (run, source) = (Run::new(&shape, &extents), &pages);
    let _ = run.check_footer(source);
    let mut scratch = Scratch::new();
    let some = bytes.get(CONTENT..CONTENT + 20).unwrap_or_default();
    for key in [shape.min_key.as_slice(), shape.max_key.as_slice(), some] {
        let mut left = MOST;
        let _ = run.get(source, key, &mut scratch, |_| {
            left -= 1;
            if left == 0 {
                Verdict::Take
            } else {
                Verdict::Skip
            }
        });
        let _ = run.may_contain(source, key_hash(key));
        walk(&run, source, key);
    }
    for row in [shape.min_row, shape.max_row, RowId(shape.min_row.0.wrapping_add(1))] {
        let _ = run.by_row(source, row, &mut scratch, &mut RowBuf::default());
    }
    let mut next = Some(0);
    for _ in 0..MOST_PAGES {
        let Some(page) = next else { break };
        let Ok(after) = run.for_each_key(source, page, &mut scratch, |_, _| Ok(())) else { break };
        next = after;
    }
}

/// Goes from a key both ways, over rows and over keys, until there is no more, or something is wrong.
fn walk(run: &Run<'_>, source: &Pages, key: &[u8]) {
    type Step = fn(&mut RunCursor<Box<PageBuf>>, &Run<'_>, &Pages) -> Result<bool>;
    let steps: [Step; 4] = [
        RunCursor::next::<Pages>,
        RunCursor::prev::<Pages>,
        RunCursor::next_key::<Pages>,
        RunCursor::prev_key::<Pages>,
    ];
    for step in steps {
        let mut cursor = RunCursor::new();
        if !matches!(cursor.seek(run, source, key), Ok(true)) {
            let _ = cursor.last(run, source);
        }
        for _ in 0..MOST {
            if !cursor.valid() || !matches!(step(&mut cursor, run, source), Ok(true)) {
                break;
            }
            let _ = cursor.row();
        }
    }
}

/// The contents of a compressed data page: length and frame.
pub fn fuzz_packed(contents: &[u8]) {
    let mut image = Vec::new();
    if pack::decompress(contents, &mut image).is_some() {
        data::fuzz_data(&image, image.get(data::MAX_ROW / 2..).unwrap_or(b"key"));
    }
}
