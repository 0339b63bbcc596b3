//! The bytes of every kind of page. Changing any of them is a new format version.

use super::testing::{Pages, TestRun};
use super::{data, fence, footer, keys, pack, Footer, RunShape};
use crate::error::{Error, Result};
use crate::filter::{key_hash, FilterKind};
use crate::options::RunOptions;
use crate::page::PageKind;
use crate::types::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn row(key: &str, row_id: u64, writer: u64, flags: Flags, body: &str) -> RowBuf {
    let head = Head { row_id: RowId(row_id), writer: Writer(writer), command: 0, flags, incarnation: 0 };
    RowBuf { head, key: key.into(), body: body.into() }
}

fn rows() -> Vec<RowBuf> {
    let none = Flags::default();
    vec![
        row("key1", 300, 77, none, "one"),
        row("key2", 900, 79, Flags::TOMBSTONE, ""),
        row("key2", 12, 77, none, "two"),
        row("key33", 13, 77, none, "three"),
    ]
}

/// Rows of one length, of one writer: no slots, next to no heads.
fn even_rows() -> Vec<RowBuf> {
    (0..3).map(|i| row(&format!("k{i}"), 5 + i, 9, Flags::default(), "body")).collect()
}

fn contents(run: &TestRun, kind: PageKind) -> String {
    let page = run.pages.pages.iter().find(|page| page.kind() == Some(kind)).unwrap();
    hex(&page.0[40..page.used()])
}

#[test]
fn page_head() {
    let run = TestRun::write(&rows(), &RunOptions::default());
    let heads: Vec<String> = run.pages.pages.iter().map(|page| hex(&page.0[24..40])).collect();
    assert_eq!(
        heads,
        [
            "04010000810000006400000000000000",
            "07010000550000006400000000000000",
            "06010000002000006400000000000000",
            "09010000660000006400000000000000"
        ]
    );
}

/// That of the filter page of a settled run.
#[test]
fn ribbon_page_head() {
    let run = TestRun::write(&rows(), &RunOptions { filter: FilterKind::Ribbon, ..RunOptions::default() });
    let page = run.pages.pages.iter().find(|page| page.kind() == Some(PageKind::Filter)).unwrap();
    assert_eq!(hex(&page.0[24..44]), "06030000002000006400000000000000020a0000");
}

#[test]
fn data_page() {
    let run = TestRun::write(&rows(), &RunOptions::default());
    assert_eq!(
        contents(&run, PageKind::Data),
        concat!(
            "04000300ffff0000120000030000000000000c000000000000004d000000000000000031003200323333200100007803",
            "020100000000010000006b657945004a004c00510001316f6e650132013274776f0233337468726565",
        )
    );
    let run = TestRun::write(&even_rows(), &RunOptions::default());
    assert_eq!(
        contents(&run, PageKind::Data),
        concat!(
            "030001000100050001000002000000000000050000000000000009000000000000000030003100320001026b30626f64",
            "7931626f647932626f6479",
        )
    );
}

/// Pages that share a row: their heads, and what they begin with.
#[test]
fn split_row() {
    let body = |i: u8| (0..4400u16).map(|at| char::from(b'a' + (at % 7) as u8 + i)).collect::<String>();
    let rows: Vec<RowBuf> = (1..4u8).map(|i| row(&format!("k{i}"), i.into(), 0, Flags::default(), &body(i))).collect();
    let run = TestRun::write(&rows, &RunOptions::default());
    let found = |at: usize| {
        let page = &run.pages.pages[at];
        (hex(&page.0[24..40]), hex(&page.0[40..48]))
    };
    let wanted = [
        ("04020800002000006400000000000000", "b502020001000100"),
        ("04021000351400006400000000000000", "b502676869636465"),
    ];
    assert_eq!([found(0), found(1)], wanted.map(|(head, start)| (head.into(), start.into())));
}

// What zstd makes of an image may change; that these bytes mean this image may not.
#[test]
fn compressed_data_page() {
    let rows: Vec<RowBuf> =
        (0..100).map(|i| row(&format!("k{i:03}"), i + 1, 0, Flags::default(), "all bodies are alike here")).collect();
    let fit = rows[1..].iter().fold(data::Fit::of(&rows[0].as_ref()), |fit, r| fit.with(&rows[0].key, &r.as_ref()));
    let mut image = Vec::new();
    data::encode(&fit, false, rows.iter().map(RowBuf::as_ref), &mut image);
    let mut found = Vec::new();
    let fresh = || hex(&[&(image.len() as u16).to_le_bytes()[..], &zstd::bulk::compress(&image, 1).unwrap()].concat());
    assert!(pack::decompress(&unhex(COMPRESSED), &mut found).is_some() && found == image, "it is now {}", fresh());
}

const COMPRESSED: &str = concat!(
    "140b28b52ffd60140add0700928f34183030e50d0c986d03b0a8500417f6ae8888c0043d5001db4811bef7e6d58c11be",
    "f7e6d58411bef7e6d57c11bef7e6d5fc08df7bf36a7a84efbd79353bc2f7debc9a1ce17b6f5ecd8df0bd37afa646f8de",
    "9b57b39b75535b1783c9b8ad9b715b55077b51b936998ccbcc98948b8b827a726a625a524a423a322a221a120a02faf1",
    "e9e1d9d1c9c1b9b1a9a199918981797169615989f0bd37afa64a0aca894909c9884808c8874707c7b6a19181d1bab0a8",
    "a0989088807870686058504840383028201810080060adb495b6d25a1a4b6369af65a811905f8ffd3be0e7119c10ac10",
    "bcc70fc84d7efac94f3ff9e9273ffd3a12b8dbd5079a1a",
);

#[test]
fn key_page() {
    let mut builder = keys::Builder::new(usize::MAX);
    for (key, tombstone) in [("key1", false), ("key2", true), ("key33", false)] {
        builder.add(key.as_bytes(), tombstone, &Pages::default()).unwrap();
    }
    let mut pages = Vec::new();
    builder
        .finish(|contents| {
            pages.push(hex(contents));
            Ok(())
        })
        .unwrap();
    assert_eq!(pages, ["030000046b6579310f320c023333"]);
}

#[test]
fn directory_page() {
    let run = TestRun::write(&rows(), &RunOptions::default());
    assert_eq!(
        contents(&run, PageKind::Directory),
        "04000009000000000c000000000000000000801200000000d0feffffffffffff00000000000000003013008009"
    );
    let mut builder = super::directory::Builder::new(usize::MAX);
    (0..5u64)
        .for_each(|i| builder.add(RowId(1000 + 10 * i + i % 3), 7 + (i as u32 * 5) % 4, &Pages::default()).unwrap());
    let mut pages = Vec::new();
    builder
        .finish(|contents| {
            pages.push(hex(contents));
            Ok(())
        })
        .unwrap();
    assert_eq!(pages, ["0500000202000000e8030000000000000000a40000000000000000000000000007000000000000002400e400"]);
}

#[test]
fn fence_page() {
    let mut separators = fence::Separators::default();
    for separator in ["", "abcd", "abcdefghi", "abd", "abdzzz"] {
        separators.push([separator.as_bytes(), &[]]);
    }
    let mut pages = Vec::new();
    let levels = fence::build(separators, |contents| {
        pages.push(contents.to_vec());
        Ok(())
    });
    assert_eq!(levels.unwrap(), 1);
    assert_eq!(
        pages.iter().map(|p| hex(p)).collect::<Vec<_>>(),
        ["0500000000000000020000006162636400006364656664000000647a7a7a2640268029202980676869"]
    );
    let fence = fence::Fence::parse(PageNo(0), &pages[0]).unwrap();
    for (key, child) in
        [("a", 0), ("abc", 0), ("abcd", 1), ("abcdefghh", 1), ("abcdefghi", 2), ("abd", 3), ("abdzzzz", 4), ("b", 4)]
    {
        assert_eq!(fence.search(&pages[0], key.as_bytes()).unwrap(), child, "{key}");
    }
}

#[test]
fn filter_page() {
    let run = TestRun::write(&rows(), &RunOptions::default());
    let page = run.pages.pages.iter().find(|page| page.kind() == Some(PageKind::Filter)).unwrap();
    let nonzero: Vec<(usize, u8)> =
        page.0.iter().copied().enumerate().skip(40).filter(|(_, byte)| *byte != 0).collect();
    assert_eq!(
        nonzero,
        [
            (40, 1),
            (41, 6),
            (1762, 2),
            (1764, 16),
            (1776, 4),
            (1778, 8),
            (1784, 64),
            (1787, 4),
            (3072, 64),
            (3073, 2),
            (3075, 1),
            (3081, 1),
            (3124, 1),
            (7425, 32),
            (7443, 128),
            (7450, 64),
            (7456, 128),
            (7458, 8),
            (7479, 32)
        ]
    );
}

#[test]
fn footer_page() {
    let run = TestRun::write(&rows(), &RunOptions::default());
    let found = contents(&run, PageKind::Footer);
    assert_eq!(
        found,
        concat!(
            "4c6f6f736552756e030000000000000005000000000000001c00010403011c0100010100000c84074d4f00046b657931",
            "056b65793333695ee746880c8f80",
        )
    );
    let bytes = unhex(&found);
    let (checked, checksum) = bytes.split_at(bytes.len() - 8);
    assert_eq!(key_hash(checked).to_le_bytes(), checksum);
}

#[test]
fn other_formats_are_not_taken_for_these() {
    let run = TestRun::write(&rows(), &RunOptions::default());
    let refused = |read: Result<()>, format: u8, newest: u32| match read {
        Err(Error::Format { found, known }) => assert_eq!((found, known), (format.into(), newest)),
        other => panic!("{other:?}"),
    };
    let footer = run.pages.pages.iter().find(|page| page.kind() == Some(PageKind::Footer)).unwrap();
    let (mut shape, mut page) = (Vec::new(), run.pages.pages[0].clone());
    run.shape.encode(&mut shape);
    for format in [0, 4, 255] {
        let mut contents = footer.contents().to_vec();
        contents[26] = format;
        refused(Footer::decode(PageNo(3), &footer::with_checksum(&contents)).map(|_| ()), format, 1);
        shape[0] = format;
        refused(RunShape::decode(&shape).map(|_| ()), format, 1);
        page.set_format(format);
        refused(page.expect(PageNo(0), PageKind::Data, page.seq()).map(|_| ()), format, 3);
    }
}
