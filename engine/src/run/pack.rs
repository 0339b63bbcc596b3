//! The packer: takes rows in order and makes data page images of them, plain or compressed.
//!
//! A compressed page holds as many rows as fit it after compression. How many those are is estimated from the pages
//! before; a page is compressed three times at most, with fewer rows when it came out too long and with more when it left
//! much room. Where compression brings nothing, a plain page is made.
//!
//! Where pages are not compressed and the next row would leave much of one empty, it is split: the page takes what it has room for, the
//! next one the rest. It takes a whole row besides, so a row is on two pages at most, and the run's last page lacks nothing.

use super::data::{self, Fit, COMPRESSED, CONTINUED, CONTINUES, LENGTH, MAX_IMAGE, REST, SPLIT};
use crate::error::{Error, Result};
use crate::options::Compression;
use crate::page::CAPACITY;
use crate::types::{Head, RowRef};

const MAX_TRIES: u32 = 3;
/// How much of the page rows are to fill, by what is known of the pages before, and after a try that went wrong.
const AIM: f64 = 0.99;
const AIM_AGAIN: f64 = 0.98;
/// The image's length stands before the zstd frame.
const ROOM: usize = CAPACITY - LENGTH;
/// A row is split rather than leave so much of a page empty: its readers read two pages.
const MUCH_LEFT: usize = CAPACITY / 16;

/// One data page, ready to be written.
pub struct Packed<'a> {
    pub contents: &'a [u8],
    pub flags: u16,
    pub first_key: &'a [u8],
    pub last_key: &'a [u8],
    /// The rows on it: so many from [`Packer::head`] 0 on.
    pub rows: usize,
}

/// The row after those that a page takes whole.
enum Next {
    /// It is for the next page.
    Stays,
    /// The page takes what it can of it: so many rows in all.
    IsSplit(Fit),
    /// That depends on the row after it.
    Unknown,
}

struct Waiting {
    key: (usize, usize),
    end: usize,
    head: Head,
}

pub struct Packer {
    rows: Vec<Waiting>,
    /// Keys and bodies of the waiting rows.
    bytes: Vec<u8>,
    fit: Option<Fit>,
    /// Without the last row.
    fit_before: Option<Fit>,
    image: Vec<u8>,
    /// Contents of a page that shares a row with a neighbour.
    shared: Vec<u8>,
    /// What the last row of the page before lacks.
    rest: Vec<u8>,
    zstd: Option<Zstd>,
    /// The last key of the page before.
    previous: Vec<u8>,
}

struct Zstd {
    context: zstd::bulk::Compressor<'static>,
    /// Bytes of image for a byte of page, as of late.
    ratio: f64,
    /// Length of the image to wait for.
    target: usize,
    tries: u32,
    out: Vec<u8>,
    /// Contents that fit, and of how many rows.
    best: Vec<u8>,
    best_rows: usize,
}

impl Packer {
    pub fn new(compression: Compression) -> Result<Packer> {
        let zstd = match compression {
            Compression::None => None,
            Compression::Zstd(level) => Some(Zstd::new(level)?),
        };
        Ok(Packer {
            rows: Vec::new(),
            bytes: Vec::with_capacity(2 * CAPACITY),
            fit: None,
            fit_before: None,
            image: Vec::with_capacity(CAPACITY),
            shared: Vec::new(),
            rest: Vec::new(),
            zstd,
            previous: Vec::new(),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Takes one more row. A page may be due then: see [`Packer::due`].
    pub fn push(&mut self, row: &RowRef<'_>) {
        let first = self.rows.first().and_then(|w| self.bytes.get(w.key.0..w.key.1)).unwrap_or_default();
        self.fit_before = self.fit;
        self.fit = Some(match &self.fit {
            Some(fit) => fit.with(first, row),
            None => Fit::of(row),
        });
        let start = self.bytes.len();
        self.bytes.extend_from_slice(row.key);
        self.bytes.extend_from_slice(row.body);
        let key = (start, start + row.key.len());
        self.rows.push(Waiting { key, end: self.bytes.len(), head: row.head });
    }

    /// Enough rows wait for a page.
    #[inline]
    pub fn due(&self) -> bool {
        let size = self.fit.as_ref().map_or(0, Fit::size);
        match &self.zstd {
            None => size > self.room(),
            Some(zstd) => size > zstd.target,
        }
    }

    /// Bytes that the next page has for its own rows.
    fn room(&self) -> usize {
        match self.rest.len() {
            0 => CAPACITY,
            rest => CAPACITY.saturating_sub(rest + LENGTH),
        }
    }

    pub fn head(&self, i: usize) -> Option<&Head> {
        self.rows.get(i).map(|row| &row.head)
    }

    fn row(&self, i: usize) -> Option<RowRef<'_>> {
        let waiting = self.rows.get(i)?;
        let key = self.bytes.get(waiting.key.0..waiting.key.1)?;
        Some(RowRef { key, head: waiting.head, body: self.bytes.get(waiting.key.1..waiting.end)? })
    }

    /// Makes the next page of the rows that wait; `None`: it is better to wait for more. `last`: there are no more.
    /// When a page was made, [`Packer::drop_front`] is to be called with its number of rows.
    pub fn page(&mut self, last: bool) -> Result<Option<Packed<'_>>> {
        if self.rows.is_empty() || (!last && self.rows.len() < 2) {
            return Ok(None);
        }
        // The last row is held back: whether its key goes on, on the next page, must be known.
        let most = if last { self.rows.len() } else { self.rows.len() - 1 };
        let made = match self.zstd.take() {
            None => self.plain(most, last),
            Some(mut zstd) => {
                let compressed = self.compress(&mut zstd, most, last);
                self.zstd = Some(zstd);
                compressed?.map(|rows| match rows {
                    0 => (self.make_image(most, CAPACITY, true), 0),
                    _ => (rows, COMPRESSED),
                })
            }
        };
        let Some((rows, mut flags)) = made else { return Ok(None) };
        let key = |i: usize| self.row(i).map_or(&[][..], |row| row.key);
        if key(0) == self.previous {
            flags |= CONTINUES;
        }
        if key(rows) == key(rows - 1) {
            flags |= CONTINUED;
        }
        let contents = match &self.zstd {
            Some(zstd) if flags & COMPRESSED != 0 => &zstd.best,
            _ if flags & (SPLIT | REST) != 0 => &self.shared,
            _ => &self.image,
        };
        Ok(Some(Packed { contents, flags, first_key: key(0), last_key: key(rows - 1), rows }))
    }

    /// Makes a page that is not compressed of the first `most` rows, or as many of them as it takes. Returns how many, and the page's
    /// flags; `None`: it is better to wait for more.
    fn plain(&mut self, most: usize, last: bool) -> Option<(usize, u16)> {
        let room = self.room();
        let (fit, whole) = self.count(most, room);
        let fit = match self.next_row(&fit, whole, room, last) {
            Next::Stays => fit,
            Next::IsSplit(with) => with,
            Next::Unknown => return None,
        };
        Some((self.encode(&fit, true), self.share(room)))
    }

    /// Makes the image of as many of the first `most` rows as it takes in `limit` bytes, one at least. Returns how many.
    fn make_image(&mut self, most: usize, limit: usize, heads: bool) -> usize {
        let (fit, _) = self.count(most, limit);
        self.encode(&fit, heads)
    }

    /// As many of the first `most` rows as an image of `limit` bytes takes, one at least, and how many those are.
    fn count(&self, most: usize, limit: usize) -> (Fit, usize) {
        let counted = if most == self.rows.len() { self.fit } else { self.fit_before };
        // Almost always with plain pages: one row more than fit was waited for.
        if let Some(fit) = counted.filter(|fit| fit.rows() == most && fit.size() <= limit) {
            return (fit, most);
        }
        let first = self.row(0).unwrap_or_default();
        let (mut fit, mut rows) = (Fit::of(&first), 1);
        for row in (rows..most).map_while(|i| self.row(i)) {
            let more = fit.with(first.key, &row);
            if more.size() > limit {
                break;
            }
            fit = more;
            rows += 1;
        }
        (fit, rows)
    }

    fn encode(&mut self, fit: &Fit, heads: bool) -> usize {
        let mut image = std::mem::take(&mut self.image);
        data::encode(fit, heads, (0..fit.rows()).map_while(|i| self.row(i)), &mut image);
        self.image = image;
        fit.rows()
    }

    /// What becomes of the row after the `whole` ones that `fit` has counted.
    fn next_row(&self, fit: &Fit, whole: usize, room: usize, last: bool) -> Next {
        let left = room.saturating_sub(fit.size());
        if left < MUCH_LEFT || whole == self.rows.len() {
            return Next::Stays;
        }
        let (Some(first), Some(split)) = (self.row(0), self.row(whole)) else { return Next::Stays };
        let Some(after) = self.row(whole + 1) else {
            return if last { Next::Stays } else { Next::Unknown };
        };
        let with = fit.with(first.key, &split);
        let missing = (with.size() + LENGTH).saturating_sub(room);
        let is_room = missing + LENGTH + Fit::of(&after).size() <= CAPACITY;
        if missing <= split.body.len() && is_room {
            Next::IsSplit(with)
        } else {
            Next::Stays
        }
    }

    /// Puts what the page before lacks in front of the image, and takes away what there is no room for. Returns the page's flags.
    fn share(&mut self, room: usize) -> u16 {
        let is_split = self.image.len() > room;
        if self.rest.is_empty() && !is_split {
            return 0;
        }
        let (image, missing) = match is_split {
            true => self.image.split_at_checked(room.saturating_sub(LENGTH)).unwrap_or_default(),
            false => (self.image.as_slice(), &[][..]),
        };
        let mut flags = 0;
        self.shared.clear();
        for (flag, bytes) in [(SPLIT, missing), (REST, &self.rest)] {
            if !bytes.is_empty() {
                flags |= flag;
                self.shared.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
            }
        }
        self.shared.extend_from_slice(&self.rest);
        self.shared.extend_from_slice(image);
        self.rest.clear();
        self.rest.extend_from_slice(missing);
        flags
    }

    /// Tries to make compressed contents of up to `most` rows. Returns of how many rows they are, 0 when a plain page is
    /// as good, `None` when more rows should be waited for.
    fn compress(&mut self, zstd: &mut Zstd, most: usize, last: bool) -> Result<Option<usize>> {
        let mut limit = zstd.target.clamp(CAPACITY, MAX_IMAGE);
        loop {
            let rows = self.make_image(most, limit, false);
            let length = zstd.compress(&self.image)?;
            let ratio = self.image.len() as f64 / length.max(1) as f64;
            zstd.ratio = 0.5 * zstd.ratio + 0.5 * ratio;
            zstd.tries += 1;
            let fits = length <= ROOM;
            if fits {
                zstd.keep(length, self.image.len(), rows);
                let full = length > ROOM - ROOM / 20 || limit >= MAX_IMAGE;
                if full || zstd.tries >= MAX_TRIES || (last && rows == most) {
                    break;
                }
                limit = ((ratio * ROOM as f64 * AIM_AGAIN) as usize).clamp(CAPACITY, MAX_IMAGE);
                if rows == most {
                    zstd.target = limit.max(self.fit.as_ref().map_or(0, Fit::size));
                    return Ok(None);
                }
            } else {
                if zstd.tries >= MAX_TRIES || zstd.best_rows > 0 || self.image.len() <= CAPACITY {
                    break;
                }
                limit = (ratio * ROOM as f64 * AIM_AGAIN) as usize;
                if limit <= CAPACITY {
                    break;
                }
            }
        }
        let mut rows = std::mem::take(&mut zstd.best_rows);
        zstd.tries = 0;
        zstd.target = ((zstd.ratio * ROOM as f64 * AIM) as usize).clamp(CAPACITY, MAX_IMAGE - CAPACITY);
        if rows > 0 && rows <= self.plain_rows(rows + 1) {
            rows = 0;
        }
        Ok(Some(rows))
    }

    /// How many of the first `most` rows a plain page takes.
    fn plain_rows(&self, most: usize) -> usize {
        let Some(first) = self.row(0) else { return 0 };
        let mut fit = Fit::of(&first);
        for i in 1..most {
            let Some(row) = self.row(i) else { return i };
            fit = fit.with(first.key, &row);
            if fit.size() > CAPACITY {
                return i;
            }
        }
        most
    }

    /// Forgets the first `rows` rows: they are on a page.
    pub fn drop_front(&mut self, rows: usize) {
        if let Some(row) = self.rows.get(rows.saturating_sub(1)) {
            self.previous.clear();
            self.previous.extend_from_slice(self.bytes.get(row.key.0..row.key.1).unwrap_or_default());
        }
        let cut = self.rows.get(rows).map_or(self.bytes.len(), |row| row.key.0);
        self.bytes.drain(..cut);
        self.rows.drain(..rows.min(self.rows.len()));
        for row in &mut self.rows {
            row.key = (row.key.0 - cut, row.key.1 - cut);
            row.end -= cut;
        }
        (self.fit, self.fit_before) = (None, None);
        let Some(first) = self.row(0) else { return };
        let mut fit = Fit::of(&first);
        let mut before = None;
        for row in (1..self.rows.len()).map_while(|i| self.row(i)) {
            before = Some(fit);
            fit = fit.with(first.key, &row);
        }
        (self.fit, self.fit_before) = (Some(fit), before);
    }
}

impl Zstd {
    fn new(level: i32) -> Result<Zstd> {
        let context = zstd::bulk::Compressor::new(level).map_err(|e| Error::io("zstd context", e))?;
        let out = vec![0; zstd::zstd_safe::compress_bound(MAX_IMAGE)];
        let best = Vec::with_capacity(CAPACITY);
        Ok(Zstd { context, ratio: 2.0, target: 2 * CAPACITY, tries: 0, out, best, best_rows: 0 })
    }

    fn compress(&mut self, image: &[u8]) -> Result<usize> {
        let length = self.context.compress_to_buffer(image, self.out.as_mut_slice());
        length.map_err(|e| Error::io("zstd compression", e))
    }

    /// Keeps the frame of `length` bytes that was made last.
    fn keep(&mut self, length: usize, image: usize, rows: usize) {
        self.best.clear();
        self.best.extend_from_slice(&(image as u16).to_le_bytes());
        self.best.extend_from_slice(self.out.get(..length).unwrap_or_default());
        self.best_rows = rows;
    }
}

thread_local! {
    static DECOMPRESSOR: std::cell::RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { std::cell::RefCell::new(None) };
}

/// Puts the image of a compressed page into `image`. The context is the thread's own; nothing else is allocated once
/// `image` has grown.
pub fn decompress(contents: &[u8], image: &mut Vec<u8>) -> Option<()> {
    let (length, frame) = contents.split_first_chunk::<LENGTH>()?;
    let length = usize::from(u16::from_le_bytes(*length));
    image.resize(length, 0);
    DECOMPRESSOR.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = zstd::bulk::Decompressor::new().ok();
        }
        let found = slot.as_mut()?.decompress_to_buffer(frame, image.as_mut_slice()).ok()?;
        (found == length).then_some(())
    })
}
