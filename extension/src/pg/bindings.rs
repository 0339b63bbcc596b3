//! Declarations that pgrx lacks, and unguarded ones for the hot paths.
//!
//! pgrx wraps every function of `pg_sys` in a `sigsetjmp`, so that an ERROR becomes an unwinding panic and no Rust
//! destructor is skipped. The functions here are called without that guard. Each is safe to call so for one of two
//! reasons, which the group's comment names:
//!
//! - **quiet**: it raises nothing but "this cannot happen" errors about its own bookkeeping;
//! - **critical**: it is only called inside a critical section, or in the startup process, where PostgreSQL turns an
//!   ERROR into a PANIC or FATAL, which never returns and so never jumps over a Rust frame.

use pgrx::pg_sys;
use std::ffi::c_char;

extern "C-unwind" {
    // Quiet. An LWLock is refused only above 200 held at once; a buffer's lock is an LWLock.
    pub fn LWLockAcquire(lock: *mut pg_sys::LWLock, mode: pg_sys::LWLockMode::Type) -> bool;
    pub fn LWLockConditionalAcquire(lock: *mut pg_sys::LWLock, mode: pg_sys::LWLockMode::Type) -> bool;
    pub fn LWLockRelease(lock: *mut pg_sys::LWLock);
    pub fn LWLockInitialize(lock: *mut pg_sys::LWLock, tranche_id: i32);
    pub fn LockBuffer(buffer: pg_sys::Buffer, mode: i32);
    pub fn ReleaseBuffer(buffer: pg_sys::Buffer);
    pub fn UnlockReleaseBuffer(buffer: pg_sys::Buffer);
    pub fn BufTableHashCode(tag: *mut pg_sys::BufferTag) -> u32;
    pub fn BufTableLookup(tag: *mut pg_sys::BufferTag, hash: u32) -> i32;
    pub fn TransactionIdIsCurrentTransactionId(xid: pg_sys::TransactionId) -> bool;
    pub fn FileGetRawDesc(file: pg_sys::File) -> i32;

    pub fn RecoveryInProgress() -> bool;
    pub fn GetRedoRecPtr() -> pg_sys::XLogRecPtr;
    pub fn GetXLogInsertRecPtr() -> pg_sys::XLogRecPtr;
    pub fn LockBufHdr(buffer: *mut pg_sys::BufferDesc) -> u32;

    // Not quiet (it may be out of memory): to be called inside a guard. Not in pgrx's bindings.
    pub fn ReadRecentBuffer(
        node: pg_sys::RelFileNode,
        fork: pg_sys::ForkNumber::Type,
        block: pg_sys::BlockNumber,
        recent: pg_sys::Buffer,
    ) -> bool;

    // Not quiet: to be called inside a guard.
    pub fn XLogEnsureRecordSpace(max_block_id: i32, ndatas: i32);
    pub fn XLogRegisterBlock(
        block: u8,
        node: *mut pg_sys::RelFileNode,
        fork: pg_sys::ForkNumber::Type,
        number: pg_sys::BlockNumber,
        page: pg_sys::Page,
        flags: u8,
    );
    pub fn XLogFlush(upto: pg_sys::XLogRecPtr);

    // Critical.
    pub fn PageInit(page: pg_sys::Page, size: pg_sys::Size, special: pg_sys::Size);
    pub fn MarkBufferDirty(buffer: pg_sys::Buffer);
    pub fn XLogBeginInsert();
    pub fn XLogRegisterData(data: *mut c_char, len: u32);
    pub fn XLogRegisterBuffer(block: u8, buffer: pg_sys::Buffer, flags: u8);
    pub fn XLogRegisterBufData(block: u8, data: *mut c_char, len: u32);
    pub fn XLogInsert(rmid: pg_sys::RmgrId, info: u8) -> pg_sys::XLogRecPtr;

    // Critical: redo.
    pub fn XLogReadBufferForRedo(
        record: *mut pg_sys::XLogReaderState,
        block: u8,
        buffer: *mut pg_sys::Buffer,
    ) -> pg_sys::XLogRedoAction::Type;
    pub fn XLogInitBufferForRedo(record: *mut pg_sys::XLogReaderState, block: u8) -> pg_sys::Buffer;
    pub fn XLogRecGetBlockData(record: *mut pg_sys::XLogReaderState, block: u8, len: *mut pg_sys::Size) -> *mut c_char;
    pub fn ResolveRecoveryConflictWithSnapshotFullXid(
        latest_removed: pg_sys::FullTransactionId,
        node: pg_sys::RelFileNode,
    );
    pub fn GetXLogReceiptTime(received: *mut pg_sys::TimestampTz, from_stream: *mut bool);
    pub fn GetCurrentTimestamp() -> pg_sys::TimestampTz;
    pub fn BackendIdGetProc(backend: i32) -> *mut pg_sys::PGPROC;
    pub fn CancelVirtualTransaction(
        transaction: pg_sys::VirtualTransactionId,
        reason: pg_sys::ProcSignalReason::Type,
    ) -> i32;
    pub static max_standby_archive_delay: i32;
    pub static max_standby_streaming_delay: i32;

    // Not in pgrx's bindings: common/file_perm.h.
    pub static pg_file_create_mode: i32;

    // Not in pgrx's bindings: access/bufmask.h.
    pub fn mask_page_lsn_and_checksum(page: pg_sys::Page);
    pub fn mask_unused_space(page: pg_sys::Page);
}
