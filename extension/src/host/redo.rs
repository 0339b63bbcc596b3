//! What redo decides about a record before it touches a page. Nobody vouches for the bytes: whatever they are, the answer is a
//! place within the page or a reason to stop.

use loosekv_engine::page::{PageKind, CONTENT, FORMAT};
use loosekv_engine::types::{HOST_HEADER, PAGE_SIZE};

/// Where the records of a log page begin: after the engine's head, generation, tail.
pub const RECORDS: usize = CONTENT + 16;

/// What a page says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub is_new: bool,
    pub kind: u8,
    /// End of its contents.
    pub lower: usize,
}

/// Where the bytes of an APPEND go.
pub fn append_at(page: Found, length: usize) -> Result<usize, String> {
    if page.is_new || page.kind != PageKind::Log as u8 || page.lower < RECORDS {
        return Err("the page to append to is no log page".into());
    }
    if length == 0 || page.lower.checked_add(length).is_none_or(|end| end > PAGE_SIZE) {
        return Err(format!("{length} bytes do not fit the log page at {}", page.lower));
    }
    Ok(page.lower)
}

/// Where the contents of the page of an APPEND_INIT end.
pub fn init_end(bytes: &[u8]) -> Result<usize, String> {
    let end = HOST_HEADER + bytes.len();
    let is_log = bytes.first() == Some(&(PageKind::Log as u8)) && bytes.get(1) == Some(&FORMAT);
    if !is_log || !(RECORDS..=PAGE_SIZE).contains(&end) {
        return Err(format!("{} bytes are no log page", bytes.len()));
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A linear congruential generator: the same numbers in every run.
    fn numbers() -> impl FnMut(u64) -> u64 {
        let mut state = 20_011u64;
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }

    #[test]
    fn append_stays_within_a_log_page_whatever_the_bytes_say() {
        let mut next = numbers();
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..200_000 {
            let page = Found { is_new: next(8) == 0, kind: next(8) as u8, lower: next(9000) as usize };
            let length = if next(20) == 0 { usize::MAX - next(100) as usize } else { next(9000) as usize };
            match append_at(page, length) {
                Ok(at) => {
                    assert!(at >= RECORDS && at + length <= PAGE_SIZE && length > 0);
                    assert!(!page.is_new && page.kind == PageKind::Log as u8);
                    taken += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(taken > 1000 && refused > 1000, "{taken} taken, {refused} refused");
    }

    #[test]
    fn a_fresh_page_is_a_log_page_and_not_larger_than_one() {
        let mut next = numbers();
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut bytes = vec![0; next(9000) as usize];
            bytes.iter_mut().take(2).for_each(|byte| *byte = next(8) as u8);
            match init_end(&bytes) {
                Ok(end) => {
                    assert!(end == HOST_HEADER + bytes.len() && (RECORDS..=PAGE_SIZE).contains(&end));
                    assert_eq!(bytes[..2], [PageKind::Log as u8, FORMAT]);
                    taken += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(taken > 50 && refused > 1000, "{taken} taken, {refused} refused");
    }

    #[test]
    fn the_ends_of_a_page() {
        let log = |lower| Found { is_new: false, kind: PageKind::Log as u8, lower };
        assert_eq!(append_at(log(RECORDS), PAGE_SIZE - RECORDS), Ok(RECORDS));
        assert!(append_at(log(RECORDS), PAGE_SIZE - RECORDS + 1).is_err());
        assert!(append_at(log(RECORDS - 1), 1).is_err());
        assert!(append_at(log(PAGE_SIZE), 1).is_err());
        assert!(append_at(log(PAGE_SIZE - 1), 0).is_err());
    }
}
