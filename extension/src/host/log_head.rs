//! The head of a log page: the engine's, then the generation and tail that the records belong to, and where redo would have begun
//! when the page was: its lowest bytes, or 0 (see [`super::unwritten`]).
//!
//! ```text
//!  24                    40           48     50     56
//!  | kind Log, seq, used | generation | tail | redo | records back to back ... used
//! ```

use super::buffer::{KIND_AT, SEQ_AT, USED_AT};
use super::redo::RECORDS;
use loosekv_engine::page::{PageKind, CONTENT, FORMAT};
use loosekv_engine::types::{ExtentSeq, L0Id, HOST_HEADER};

const FORMAT_AT: usize = KIND_AT + 1;
pub const GENERATION_AT: usize = CONTENT;
const TAIL_AT: usize = GENERATION_AT + 8;
pub(super) const REDO_AT: usize = TAIL_AT + 2;

/// Where redo begins, as far as there is room for it: to be compared alone.
pub type RedoPoint = [u8; RECORDS - REDO_AT];

pub fn redo_point(lsn: u64) -> RedoPoint {
    let mut point = RedoPoint::default();
    point.iter_mut().zip(lsn.to_le_bytes()).for_each(|(byte, from)| *byte = from);
    point
}

/// What a log page says of itself; the first bytes of the contents of an APPEND_INIT record too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogHead {
    pub generation: L0Id,
    pub tail: u16,
    pub seq: ExtentSeq,
}

impl LogHead {
    pub const BYTES: usize = RECORDS - HOST_HEADER;

    /// The page's bytes from the host's header to the first record.
    pub fn encode(&self, redo: RedoPoint) -> [u8; LogHead::BYTES] {
        let mut head = [0; LogHead::BYTES];
        head[KIND_AT - HOST_HEADER] = PageKind::Log as u8;
        head[FORMAT_AT - HOST_HEADER] = FORMAT;
        head[USED_AT - HOST_HEADER..][..2].copy_from_slice(&(RECORDS as u16).to_le_bytes());
        head[SEQ_AT - HOST_HEADER..][..8].copy_from_slice(&self.seq.0.to_le_bytes());
        head[GENERATION_AT - HOST_HEADER..][..8].copy_from_slice(&self.generation.0.to_le_bytes());
        head[TAIL_AT - HOST_HEADER..][..2].copy_from_slice(&self.tail.to_le_bytes());
        head[REDO_AT - HOST_HEADER..].copy_from_slice(&redo);
        head
    }

    /// Reads what [`LogHead::encode`] made; `None` if the bytes are no log page's head.
    pub fn decode(head: &[u8]) -> Option<LogHead> {
        let from = |at: usize| head.get(at - HOST_HEADER..);
        let word = |at: usize| Some(u64::from_le_bytes(*from(at)?.first_chunk()?));
        if from(KIND_AT)?.first()? != &(PageKind::Log as u8) || from(FORMAT_AT)?.first()? != &FORMAT {
            return None;
        }
        Some(LogHead {
            seq: ExtentSeq(word(SEQ_AT)?),
            generation: L0Id(word(GENERATION_AT)?),
            tail: word(TAIL_AT)? as u16,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loosekv_engine::page::PageBuf;

    #[test]
    fn round_trips_and_is_a_page_head() {
        let head = LogHead { generation: L0Id(77), tail: 5, seq: ExtentSeq(991) };
        let bytes = head.encode(redo_point(0x77_8899));
        assert_eq!(LogHead::decode(&bytes), Some(head));
        assert_eq!(LogHead::decode(&bytes[..20]), None);
        let mut page = PageBuf::ZERO;
        page.0[HOST_HEADER..HOST_HEADER + bytes.len()].copy_from_slice(&bytes);
        assert_eq!((page.kind(), page.format()), (Some(PageKind::Log), FORMAT));
        assert_eq!((page.seq(), page.used()), (ExtentSeq(991), RECORDS));
        assert_eq!(CONTENT + 16, RECORDS);
    }

    // Changing any of these bytes is a new format version.
    #[test]
    fn golden() {
        let head = LogHead { generation: L0Id(0x0102_0304_0506_0708), tail: 0x090a, seq: ExtentSeq(0x0b0c_0d0e) };
        let hex: String = head.encode(redo_point(0x1122_3344_5566_7788)).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "03010000380000000e0d0c0b0000000008070605040302010a09887766554433");
    }
}
