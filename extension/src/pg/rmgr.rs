//! The WAL resource manager: what a flush of the log means to recovery.
//!
//! ```text
//! APPEND         block 0: bytes that follow the page's contents (where, the page's own end tells)
//! APPEND_INIT    block 0: a fresh log page from its engine head on (generation, tail, extent, records)
//! FLIP           data: FlipRecord; block 0: full image of the meta page
//! DROP_DATABASE  data: oid (4); comes between PostgreSQL's own record of the drop and the commit of its transaction
//! CHANGE         data: ChangeRecord, new tuple, old tuple; for logical decoding alone
//! ```
//!
//! Pages of runs travel in PostgreSQL's own full-page records. Blocks that are cut off a file are named in logical messages of no
//! database with the prefix `loosekv`, for `pg_rewind` alone: replay does nothing at them.
//!
//! Redo works on one page, is idempotent by the page's LSN, and changes nothing in shared memory (I19), but that the tables of a
//! dropped database are forgotten there. A record that does not fit its page stops recovery, as PostgreSQL's own do.

use crate::host::buffer::RawPage;
use crate::host::log_head::LogHead;
use crate::host::{redo, registry, standby};
use crate::pg::{bindings, exit, logical};
use loosekv_engine::page::PageBuf;
use loosekv_engine::types::HOST_HEADER;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::ffi::{c_char, CString};
use std::mem::offset_of;

/// Registered range begins at 128, which is for development.
pub const ID: pg_sys::RmgrId = pg_sys::RM_EXPERIMENTAL_ID as pg_sys::RmgrId;
pub const APPEND: u8 = 0x00;
pub const APPEND_INIT: u8 = 0x10;
pub const FLIP: u8 = 0x20;
pub const DROP_DATABASE: u8 = 0x30;
pub const CHANGE: u8 = 0x40;

/// What a FLIP record tells a standby before it may show the new meta page.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FlipRecord {
    /// Snapshots that do not see this transaction may miss a row from now on; 0: none.
    pub superseded: u64,
    /// 0. (Who reads extents that are written again is known where they are read.)
    pub reused: u64,
    pub node: pg_sys::RelFileNode,
    pub reserved: u32,
}

// Changing any of these places is a new format of WAL, and so are other numbers for the records above.
const _: () = {
    assert!(size_of::<FlipRecord>() == 32 && offset_of!(FlipRecord, superseded) == 0);
    assert!(offset_of!(FlipRecord, reused) == 8 && offset_of!(FlipRecord, node) == 16);
    assert!(offset_of!(pg_sys::RelFileNode, spcNode) == 0 && offset_of!(pg_sys::RelFileNode, dbNode) == 4);
    assert!(offset_of!(pg_sys::RelFileNode, relNode) == 8 && offset_of!(FlipRecord, reserved) == 28);
};

/// To be called while shared_preload_libraries are loaded.
pub fn register() {
    let mut rmgr = pg_sys::RmgrData {
        rm_name: c"loosekv".as_ptr(),
        rm_redo: Some(redo),
        rm_desc: Some(desc),
        rm_identify: Some(identify),
        rm_startup: None,
        rm_cleanup: None,
        rm_mask: Some(mask),
        rm_decode: Some(logical::decode),
    };
    // SAFETY: PostgreSQL copies the struct; the name is static.
    unsafe { pg_sys::RegisterCustomRmgr(ID, &mut rmgr) }
}

/// Tells standbys that a database has been dropped. While its transaction still has it locked: before there can be another with
/// its oid, the record has been written. (A drop that a crash ends here has to be done once more.)
pub fn log_dropped_database(database: pg_sys::Oid) {
    let mut data = database.to_u32().to_le_bytes();
    // SAFETY: guarded, and the closure owns nothing; the data is copied.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            bindings::XLogBeginInsert();
            bindings::XLogRegisterData(data.as_mut_ptr().cast(), data.len() as u32);
            bindings::XLogInsert(ID, DROP_DATABASE);
        });
    }
}

/// # Safety
/// `record` is a record as PostgreSQL hands it to a resource manager.
pub unsafe fn info(record: *mut pg_sys::XLogReaderState) -> u8 {
    // SAFETY: the reader holds a decoded record.
    unsafe { (*(*record).record).header.xl_info & !(pg_sys::XLR_INFO_MASK as u8) }
}

/// # Safety
/// As for [`info`].
unsafe fn block_data<'a>(record: *mut pg_sys::XLogReaderState) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: the data stays where it is until the next record is read; it is absent when an image replaces it.
    unsafe {
        let data = bindings::XLogRecGetBlockData(record, 0, &mut len);
        if data.is_null() {
            &[]
        } else {
            std::slice::from_raw_parts(data.cast(), len)
        }
    }
}

/// # Safety
/// As for [`info`].
pub unsafe fn main_bytes<'a>(record: *mut pg_sys::XLogReaderState) -> &'a [u8] {
    // SAFETY: the main data has the length that the record tells, and stays where it is until the next record is read.
    unsafe {
        let decoded = (*record).record;
        match (*decoded).main_data_len {
            0 => &[],
            len => std::slice::from_raw_parts((*decoded).main_data.cast(), len as usize),
        }
    }
}

/// # Safety
/// As for [`info`]; any bytes are a `T`.
unsafe fn main_data<T>(record: *mut pg_sys::XLogReaderState) -> Option<T> {
    // SAFETY: there are so many bytes.
    unsafe {
        let bytes = main_bytes(record);
        (bytes.len() >= size_of::<T>()).then(|| bytes.as_ptr().cast::<T>().read_unaligned())
    }
}

/// # Safety
/// As for [`info`].
unsafe fn flip_record(record: *mut pg_sys::XLogReaderState) -> Option<FlipRecord> {
    // SAFETY: numbers only.
    unsafe { main_data(record) }
}

/// # Safety
/// As for [`info`].
unsafe fn dropped_database(record: *mut pg_sys::XLogReaderState) -> Option<pg_sys::Oid> {
    // SAFETY: numbers only.
    unsafe { main_data::<[u8; 4]>(record) }.map(|oid| u32::from_le_bytes(oid).into())
}

/// Runs in the startup process, where an ERROR ends the process and never jumps over these frames.
unsafe extern "C-unwind" fn redo(record: *mut pg_sys::XLogReaderState) {
    // SAFETY: called by PostgreSQL with a decoded record.
    unsafe {
        match info(record) {
            APPEND => redo_append(record),
            APPEND_INIT => redo_append_init(record),
            FLIP => redo_flip(record),
            DROP_DATABASE => redo_drop_database(record),
            CHANGE => {}
            other => stop(record, &format!("operation {other:#x} is not known")),
        }
    }
}

/// # Safety
/// As for [`info`].
unsafe fn redo_append(record: *mut pg_sys::XLogReaderState) {
    let mut buffer = 0;
    // SAFETY: the buffer comes pinned and locked exclusively, unless it is 0.
    unsafe {
        let action = bindings::XLogReadBufferForRedo(record, 0, &mut buffer);
        if action == pg_sys::XLogRedoAction::BLK_NEEDS_REDO {
            let (page, bytes) = (RawPage::of(buffer), block_data(record));
            let found = redo::Found { is_new: page.is_new(), kind: page.kind(), lower: page.lower() };
            let at = redo::append_at(found, bytes.len()).unwrap_or_else(|why| stop(record, &why));
            page.write(at, bytes);
            page.set_used(at + bytes.len());
            finish(record, buffer, page);
        }
        if buffer != 0 {
            bindings::UnlockReleaseBuffer(buffer);
        }
    }
}

/// # Safety
/// As for [`info`].
unsafe fn redo_append_init(record: *mut pg_sys::XLogReaderState) {
    // SAFETY: the buffer comes pinned and locked exclusively.
    unsafe {
        let bytes = block_data(record);
        let end = redo::init_end(bytes).unwrap_or_else(|why| stop(record, &why));
        let buffer = bindings::XLogInitBufferForRedo(record, 0);
        let page = RawPage::of(buffer);
        page.init();
        page.write(HOST_HEADER, bytes);
        page.set_used(end);
        finish(record, buffer, page);
        bindings::UnlockReleaseBuffer(buffer);
    }
}

/// # Safety
/// As for [`info`].
unsafe fn redo_flip(record: *mut pg_sys::XLogReaderState) {
    // SAFETY: called by PostgreSQL with a decoded record.
    unsafe {
        let Some(flip) = flip_record(record) else { stop(record, "the data is too short") };
        let hot = pg_sys::standbyState >= pg_sys::HotStandbyState::STANDBY_SNAPSHOT_PENDING;
        if hot && flip.superseded != 0 {
            // First the readers that must not see it, then the page.
            bindings::ResolveRecoveryConflictWithSnapshotFullXid(
                pg_sys::FullTransactionId { value: flip.superseded },
                flip.node,
            );
        }
        let mut buffer = 0;
        if bindings::XLogReadBufferForRedo(record, 0, &mut buffer) != pg_sys::XLogRedoAction::BLK_RESTORED {
            stop(record, "the image of the meta page is missing");
        }
        let mut meta = PageBuf::ZERO;
        RawPage::of(buffer).copy_to(&mut meta);
        bindings::UnlockReleaseBuffer(buffer);
        if hot {
            // Then those who still read what the extents that it names held before: they are written to after it.
            standby::wait_for_readers(flip.node, &meta);
        }
    }
}

/// PostgreSQL has ended the sessions in the database, and nobody can come into one whose files are gone.
///
/// # Safety
/// As for [`info`].
unsafe fn redo_drop_database(record: *mut pg_sys::XLogReaderState) {
    // SAFETY: called by PostgreSQL with a decoded record.
    let Some(database) = (unsafe { dropped_database(record) }) else { stop(record, "the data is too short") };
    exit::attach();
    registry::forget_database(database);
}

/// # Safety
/// `buffer` is pinned and locked exclusively, `page` is its page.
unsafe fn finish(record: *mut pg_sys::XLogReaderState, buffer: pg_sys::Buffer, page: RawPage) {
    // SAFETY: the caller's word.
    unsafe {
        page.set_lsn((*record).EndRecPtr);
        bindings::MarkBufferDirty(buffer);
    }
}

/// Stops recovery: the log contradicts the pages, and going on would spread it.
fn stop(record: *mut pg_sys::XLogReaderState, why: &str) -> ! {
    // SAFETY: called by redo with the record at hand.
    let lsn = unsafe { (*record).ReadRecPtr };
    let why = format!("LooseKV: WAL record at {:X}/{:X} cannot be replayed: {why}", lsn >> 32, lsn as u32);
    ErrorReport::new(PgSqlErrorCode::ERRCODE_DATA_CORRUPTED, why, "redo").report(PgLogLevel::PANIC);
    unreachable!("PANIC returned")
}

#[pg_guard]
unsafe extern "C-unwind" fn desc(buf: pg_sys::StringInfo, record: *mut pg_sys::XLogReaderState) {
    // SAFETY: called by PostgreSQL with a decoded record.
    let text = unsafe {
        let bytes = block_data(record);
        match (info(record), LogHead::decode(bytes), flip_record(record), dropped_database(record)) {
            (APPEND_INIT, Some(head), ..) => format!(
                "generation {}, tail {}, extent {}, {} bytes",
                head.generation,
                head.tail,
                head.seq,
                bytes.len() - LogHead::BYTES
            ),
            (FLIP, _, Some(flip), _) => format!("superseded {}, reused {}", flip.superseded, flip.reused),
            (DROP_DATABASE, _, _, Some(database)) => format!("database {database}"),
            (CHANGE, ..) => logical::describe(record),
            _ => format!("{} bytes", bytes.len()),
        }
    };
    if let Ok(text) = CString::new(text) {
        // SAFETY: guarded; the text is copied.
        unsafe { pg_sys::appendStringInfoString(buf, text.as_ptr()) }
    }
}

unsafe extern "C-unwind" fn identify(info: u8) -> *const c_char {
    match info & !(pg_sys::XLR_INFO_MASK as u8) {
        APPEND => c"APPEND".as_ptr(),
        APPEND_INIT => c"APPEND+INIT".as_ptr(),
        FLIP => c"FLIP".as_ptr(),
        DROP_DATABASE => c"DROP_DATABASE".as_ptr(),
        CHANGE => c"CHANGE".as_ptr(),
        _ => std::ptr::null(),
    }
}

/// Takes out of a page what may differ between primary and standby.
unsafe extern "C-unwind" fn mask(page: *mut c_char, _block: pg_sys::BlockNumber) {
    // SAFETY: called by PostgreSQL with a copy of a page.
    unsafe {
        bindings::mask_page_lsn_and_checksum(page);
        bindings::mask_unused_space(page);
    }
}
