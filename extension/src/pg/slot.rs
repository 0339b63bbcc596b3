//! The tuple slot of our tables: holds a row as key and body, and takes out attributes only as they are asked for.
//!
//! ```text
//! buffer (in the slot's memory context, kept from row to row):
//! | body, at a multiple of eight | key | room for values that the key gives back |
//! ```
//!
//! A slot is empty, or holds a row of ours (its values point into the buffer), or was filled with values by the executor
//! (ExecStoreVirtualTuple), like a virtual slot; materializing copies those into the buffer. A row of ours is the slot's own,
//! so that nothing is pinned or borrowed, but for one case: a scan of the whole table lends its rows, and keeps the page. Nothing of
//! a lent row is looked at but what is asked for. Its values point into the page where they may stand as they are; if one is
//! not aligned there, or the row has to stay, it is copied and becomes the slot's own. A lent row stands until the scan
//! moves or ends, and nobody asks the slot for it after that.
//!
//! A row that a statement has left unread has its key, and a body of no attributes; who asks for others after all has it read.
//!
//! Values that were taken out stay where they are until the slot gets another row, or is materialized: the executor hands them on, and
//! then asks for more attributes. So where a row is copied in between, the buffer with the values that its key gave back is put by.

use super::palloc;
use super::slot_values::{copy_value, size_of_value};
use crate::codec::datum::Arena;
use crate::codec::header::align_up;
use crate::codec::row::{BadBody, Progress, RowLayout};
use crate::codec::TableCodec;
use crate::table::tid;
use loosekv_engine::run::Spot;
use loosekv_engine::types::{Head, RowId, RowRef, Writer};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{Datum, TupleTableSlot, TupleTableSlotOps};
use pgrx::prelude::*;
use std::rc::Rc;

/// A buffer larger than this is given back when the slot is cleared.
const KEEP: usize = 1 << 20;
const SMALLEST: usize = 256;
const MAX_ALIGN: usize = 8;

/// The callbacks of our slots. A slot is ours just if it has these.
pub static SLOT_OPS: TupleTableSlotOps = TupleTableSlotOps {
    base_slot_size: size_of::<Slot>(),
    init: Some(init),
    release: Some(release),
    clear: Some(clear),
    getsomeattrs: Some(get_some_attributes),
    getsysattr: Some(get_system_attribute),
    materialize: Some(materialize),
    copyslot: Some(copy_slot),
    get_heap_tuple: None,
    get_minimal_tuple: None,
    copy_heap_tuple: Some(copy_heap_tuple),
    copy_minimal_tuple: Some(copy_minimal_tuple),
};

/// Begins as PostgreSQL's slot; made by it, all zeros.
#[repr(C)]
struct Slot {
    base: TupleTableSlot,
    buffer: *mut u8,
    capacity: usize,
    /// The buffer that the row had before, or null.
    put_by: *mut u8,
    /// From `Rc::into_raw`, or null: no row was stored yet.
    codec: *const TableCodec,
    /// The slot's descriptor is not the codec's (a rewrite reads rows under the old one): its own layout, from `Box::into_raw`.
    layout: *const RowLayout,
    body: usize,
    key: usize,
    progress: Progress,
    row: RowId,
    writer: Writer,
    command: u32,
    /// Where the row stands, if it is not in the buffer.
    lent: Option<Spot<'static>>,
    /// Rows that are not aligned where they stand had to be copied lately.
    copies: bool,
    /// The values that the key gives back have been taken out.
    key_decoded: bool,
    /// Key and body are in the buffer, or lent.
    holds_row: bool,
    /// The values were given by the executor and have been copied into the buffer.
    holds_values: bool,
    /// `row`, `writer` and `command` tell of the row.
    has_head: bool,
    /// Its writer had locked the row before he wrote this version, which heap says by its `xmax`.
    was_locked: bool,
}

/// The TID of a row version: its row id.
pub fn tid_of(row: RowId) -> pg_sys::ItemPointerData {
    let block = (row.0 >> 8) as u32;
    pg_sys::ItemPointerData {
        ip_blkid: pg_sys::BlockIdData { bi_hi: (block >> 16) as u16, bi_lo: block as u16 },
        ip_posid: (row.0 & 0xFF) as u16 + 1,
    }
}

/// The row id that a TID names; `None` for TIDs that no row has.
pub fn row_of(tid: &pg_sys::ItemPointerData) -> Option<RowId> {
    let block = u64::from(tid.ip_blkid.bi_hi) << 16 | u64::from(tid.ip_blkid.bi_lo);
    let offset = u64::from(tid.ip_posid.checked_sub(1)?);
    (offset < 256).then_some(RowId(block << 8 | offset))
}

/// Whether the slot has our callbacks.
///
/// # Safety
/// `slot` is a valid slot.
#[inline]
pub unsafe fn is_ours(slot: *mut TupleTableSlot) -> bool {
    // SAFETY: the caller's promise.
    std::ptr::eq(unsafe { (*slot).tts_ops }, &SLOT_OPS)
}

/// Puts a row version into a slot of its table. The codec must know the rows as they were written; the slot's descriptor
/// may be an older one.
///
/// # Safety
/// `slot` is a valid slot with a descriptor of the table.
pub unsafe fn store(slot: *mut TupleTableSlot, table: pg_sys::Oid, codec: &Rc<TableCodec>, row: RowRef<'_>) {
    // SAFETY (whole function): a slot with our callbacks is a `Slot`; the others are filled by PostgreSQL's own functions.
    unsafe {
        if is_ours(slot) {
            (*slot.cast::<Slot>()).store(codec, row);
        } else {
            let through = pg_sys::MakeSingleTupleTableSlot((*slot).tts_tupleDescriptor, &SLOT_OPS);
            (*through.cast::<Slot>()).store(codec, row);
            (*through).tts_tid = tid_of(row.head.row_id);
            (*through).tts_tableOid = table;
            if let Some(copy) = (*(*slot).tts_ops).copyslot {
                pg_sys::ffi::pg_guard_ffi_boundary(|| copy(slot, through));
            }
            pg_sys::ExecDropSingleTupleTableSlot(through);
        }
        (*slot).tts_tid = tid_of(row.head.row_id);
        (*slot).tts_tableOid = table;
    }
}

/// As [`store`], for the row of which the slot has the key already: what was taken out of it stays where it is.
///
/// # Safety
/// As there.
pub unsafe fn complete(slot: *mut TupleTableSlot, table: pg_sys::Oid, codec: &Rc<TableCodec>, row: RowRef<'_>) {
    // SAFETY: a slot with our callbacks is a `Slot`.
    unsafe {
        if !is_ours(slot) {
            return store(slot, table, codec, row);
        }
        let ours = slot.cast::<Slot>();
        (*ours).put_by();
        let put_by = std::mem::replace(&mut (*ours).put_by, std::ptr::null_mut());
        store(slot, table, codec, row);
        (*ours).put_by = put_by;
    }
}

/// Whether [`lend`] may be used: the slot is one of ours, and knows the rows of this table.
///
/// # Safety
/// `slot` is a valid slot.
#[inline]
pub unsafe fn may_be_lent(slot: *mut TupleTableSlot, codec: &Rc<TableCodec>) -> bool {
    // SAFETY: a slot with our callbacks is a `Slot`.
    unsafe { is_ours(slot) && std::ptr::eq((*slot.cast::<Slot>()).codec, Rc::as_ptr(codec)) }
}

/// As [`store`], but the row is left where it stands. Raises nothing.
///
/// # Safety
/// [`may_be_lent`]; and the row stays where it is until the slot is cleared or gets another row, or is not asked any more.
#[inline]
pub unsafe fn lend(slot: *mut TupleTableSlot, table: pg_sys::Oid, spot: Spot<'_>) {
    // SAFETY: the caller's promise, by which the row outlives its use.
    unsafe {
        let slot = &mut *slot.cast::<Slot>();
        let spot = std::mem::transmute::<Spot<'_>, Spot<'static>>(spot);
        slot.forget_put_by();
        slot.lent = Some(spot);
        slot.row = spot.row_id();
        slot.hold_row();
        slot.base.tts_tid = tid_of(slot.row);
        slot.base.tts_tableOid = table;
    }
}

/// Tells a slot that its values have just been written as this row version.
///
/// # Safety
/// `slot` is a valid slot, not empty.
pub unsafe fn mark_written(slot: *mut TupleTableSlot, table: pg_sys::Oid, head: &Head) {
    // SAFETY: a slot with our callbacks is a `Slot`.
    unsafe {
        (*slot).tts_tid = tid_of(head.row_id);
        (*slot).tts_tableOid = table;
        if is_ours(slot) {
            (*slot.cast::<Slot>()).set_head(head);
        }
    }
}

/// Tells a slot with the version just written that its writer had locked the row before.
///
/// # Safety
/// `slot` is a valid slot, and [`mark_written`] has seen it.
pub unsafe fn mark_locked(slot: *mut TupleTableSlot) {
    // SAFETY: a slot with our callbacks is a `Slot`.
    unsafe {
        if is_ours(slot) {
            (*slot.cast::<Slot>()).was_locked = true;
        }
    }
}

/// All attributes of any slot, as its descriptor has them.
///
/// # Safety
/// `slot` is a valid slot, not empty. What is returned stands as long as the slot holds the row.
pub unsafe fn all_attributes<'a>(slot: *mut TupleTableSlot) -> (&'a [Datum], &'a [bool]) {
    // SAFETY: a slot has arrays for so many attributes, and they are valid up to `tts_nvalid`.
    unsafe {
        let natts = (*(*slot).tts_tupleDescriptor).natts;
        if i32::from((*slot).tts_nvalid) < natts {
            pg_sys::slot_getsomeattrs_int(slot, natts);
        }
        let natts = natts as usize;
        (std::slice::from_raw_parts((*slot).tts_values, natts), std::slice::from_raw_parts((*slot).tts_isnull, natts))
    }
}

impl Slot {
    /// # Safety
    /// This is a slot that PostgreSQL made with our callbacks.
    #[inline]
    unsafe fn store(&mut self, codec: &Rc<TableCodec>, row: RowRef<'_>) {
        // SAFETY: the buffer has been made large enough for all that is copied.
        unsafe {
            self.forget_put_by();
            if !std::ptr::eq(self.codec, Rc::as_ptr(codec)) {
                self.adopt(codec);
            }
            let (body, key) = (row.body.len(), row.key.len());
            self.reserve(body + key + codec.key.room(key));
            std::ptr::copy_nonoverlapping(row.body.as_ptr(), self.buffer, body);
            std::ptr::copy_nonoverlapping(row.key.as_ptr(), self.buffer.add(body), key);
            (self.body, self.key) = (body, key);
        }
        self.lent = None;
        self.set_head(&row.head);
        self.hold_row();
    }

    /// The slot has got a row; nothing of it has been taken out yet.
    #[inline]
    fn hold_row(&mut self) {
        self.progress = Progress::default();
        self.key_decoded = false;
        self.holds_row = true;
        self.holds_values = false;
        (self.has_head, self.was_locked) = (true, false);
        self.base.tts_nvalid = 0;
        self.base.tts_flags &= !(pg_sys::TTS_FLAG_EMPTY as u16);
    }

    /// The same where what was taken out has to stay.
    unsafe fn own_too(&mut self) {
        self.put_by();
        // SAFETY: the caller's promise.
        unsafe { self.own() }
    }

    /// Leaves the values that the key gave back where they are, until the slot gets another row. The buffer is another one then.
    fn put_by(&mut self) {
        if self.key_decoded {
            debug_assert!(self.put_by.is_null(), "a row is copied once");
            self.put_by = std::mem::replace(&mut self.buffer, std::ptr::null_mut());
            self.capacity = 0;
        }
    }

    #[inline]
    fn forget_put_by(&mut self) {
        if !self.put_by.is_null() {
            let put_by = std::mem::replace(&mut self.put_by, std::ptr::null_mut());
            // SAFETY: it was allocated by `grow`, for this slot alone.
            unsafe { palloc::free(put_by) };
        }
    }

    /// Copies a lent row into the buffer. What was taken out of it has to be taken out once more.
    unsafe fn own(&mut self) {
        if let Some(spot) = self.lent.take() {
            let (body, (first, rest)) = (spot.body(), spot.key());
            let key = first.len() + rest.len();
            // SAFETY: the row stands where it was lent; the buffer has been made large enough; the codec is adopted.
            unsafe {
                self.reserve(body.len() + key + (*self.codec).key.room(key));
                let to = self.buffer;
                std::ptr::copy_nonoverlapping(body.as_ptr(), to, body.len());
                std::ptr::copy_nonoverlapping(first.as_ptr(), to.add(body.len()), first.len());
                std::ptr::copy_nonoverlapping(rest.as_ptr(), to.add(body.len() + first.len()), rest.len());
            }
            (self.body, self.key) = (body.len(), key);
            self.set_head(&spot.head());
            self.hold_row();
        }
    }

    /// Makes known who wrote a row that is lent.
    fn know_head(&mut self) {
        if let Some(spot) = self.lent {
            self.set_head(&spot.head());
        }
    }

    fn set_head(&mut self, head: &Head) {
        (self.row, self.writer, self.command) = (head.row_id, head.writer, head.command);
        (self.has_head, self.was_locked) = (true, false);
    }

    /// Uses this codec from now on.
    #[cold]
    unsafe fn adopt(&mut self, codec: &Rc<TableCodec>) {
        self.disown();
        // SAFETY: the slot has a descriptor.
        unsafe {
            if !codec.layout.fits(self.base.tts_tupleDescriptor) {
                let layout = RowLayout::new(self.base.tts_tupleDescriptor, &codec.key);
                self.layout = Box::into_raw(Box::new(layout));
            }
        }
        self.codec = Rc::into_raw(Rc::clone(codec));
    }

    fn disown(&mut self) {
        if !self.codec.is_null() {
            // SAFETY: it came from `Rc::into_raw` in `adopt`, and is forgotten here.
            drop(unsafe { Rc::from_raw(self.codec) });
            self.codec = std::ptr::null();
        }
        if !self.layout.is_null() {
            // SAFETY: it came from `Box::into_raw` in `adopt`, and is forgotten here.
            drop(unsafe { Box::from_raw(self.layout.cast_mut()) });
            self.layout = std::ptr::null();
        }
    }

    /// Makes the buffer at least so large. What it held is lost.
    #[inline]
    unsafe fn reserve(&mut self, size: usize) {
        if size > self.capacity {
            // SAFETY: the buffer is ours.
            unsafe { self.grow(size) };
        }
    }

    #[cold]
    unsafe fn grow(&mut self, size: usize) {
        let capacity = size.checked_next_power_of_two().filter(|s| *s <= KEEP).unwrap_or(size).max(SMALLEST);
        self.free_buffer();
        // SAFETY: the context lives as long as the slot.
        self.buffer = unsafe { palloc::allocate(self.base.tts_mcxt, capacity).cast() };
        self.capacity = capacity;
    }

    fn free_buffer(&mut self) {
        if !self.buffer.is_null() {
            let buffer = std::mem::replace(&mut self.buffer, std::ptr::null_mut());
            self.capacity = 0;
            // SAFETY: it was allocated by `grow`, for this slot alone.
            unsafe { palloc::free(buffer) };
        }
    }

    fn clear(&mut self) {
        self.forget_put_by();
        self.lent = None;
        self.key_decoded = false;
        self.holds_row = false;
        self.holds_values = false;
        self.has_head = false;
        self.base.tts_nvalid = 0;
        self.base.tts_flags |= pg_sys::TTS_FLAG_EMPTY as u16;
        self.base.tts_tid =
            pg_sys::ItemPointerData { ip_blkid: pg_sys::BlockIdData { bi_hi: 0xFFFF, bi_lo: 0xFFFF }, ip_posid: 0 };
    }

    /// Takes out the attributes up to this number.
    unsafe fn decode(&mut self, upto: usize) {
        // SAFETY: by the contract of `try_decode`. A row that is the slot's own is aligned.
        unsafe {
            let mut result = self.try_decode(upto);
            if self.lent.is_some() && result.is_err() {
                self.own_too();
                result = self.try_decode(upto);
                self.copies = result.is_ok();
            }
            match result {
                Ok(()) => {}
                Err(Failed::Key) => corrupt(self.row, "its key"),
                Err(Failed::Begin) => corrupt(self.row, "its body has no beginning"),
                Err(Failed::Body(bad)) => {
                    corrupt(self.row, &format!("attribute {} at offset {} of its body", bad.attribute, bad.offset))
                }
                Err(Failed::Missing) if tid::is_unread(self.row) => {
                    super::slots::read_unread(std::ptr::from_mut(self).cast());
                    self.decode(upto);
                }
                Err(Failed::Missing) => {
                    let (stored, upto) = (self.progress.stored as i32, upto as i32);
                    pg_sys::slot_getmissingattrs(&mut self.base, stored, upto);
                    self.base.tts_nvalid = upto as i16;
                }
            }
        }
    }

    /// The same, and raises nothing.
    ///
    /// # Safety
    /// The slot holds a row, and has been made with so many attributes at least.
    #[inline]
    unsafe fn try_decode(&mut self, upto: usize) -> Result<(), Failed> {
        // SAFETY: the slot has a descriptor.
        debug_assert!(self.holds_row && upto <= unsafe { (*self.base.tts_tupleDescriptor).natts } as usize);
        // SAFETY: body and key are in the buffer, and the room behind them is what `store` reserved, or the row is lent; the slot's
        // arrays have room for all attributes of its descriptor, to which the layout fits. The codec stands as long as it is adopted.
        unsafe {
            if self.copies
                && !self.key_decoded
                && self.lent.is_some_and(|spot| !(spot.body().as_ptr() as usize).is_multiple_of(MAX_ALIGN))
                && self.fits()
            {
                self.own();
            }
            let codec = &*self.codec;
            let layout = if self.layout.is_null() { &codec.layout } else { &*self.layout };
            if !self.key_decoded && !codec.key.is_row_id() {
                self.decode_key(codec, layout.len())?;
            }
            let body = match &self.lent {
                Some(spot) => spot.body(),
                None => std::slice::from_raw_parts(self.buffer, self.body),
            };
            if self.base.tts_nvalid == 0 {
                self.progress = RowLayout::begin(body).ok_or(Failed::Begin)?;
            }
            let (values, nulls) = (self.base.tts_values, self.base.tts_isnull);
            layout.decode(body, &mut self.progress, upto, values, nulls).map_err(Failed::Body)?;
            if (self.progress.stored as usize) < upto {
                return Err(Failed::Missing);
            }
        }
        self.base.tts_nvalid = upto as i16;
        Ok(())
    }

    /// Tries it once more with a copy of a row that is lent, if that needs no other buffer. Raises nothing.
    #[cold]
    unsafe fn decode_copy(&mut self, upto: usize) -> bool {
        if self.lent.is_none() || self.key_decoded || !self.fits() {
            return false;
        }
        // SAFETY: as for `try_decode`; there is room.
        unsafe {
            self.own();
            self.copies = self.try_decode(upto).is_ok();
        }
        self.copies
    }

    /// Whether the buffer has room for the row that is lent.
    fn fits(&self) -> bool {
        self.lent.is_some_and(|spot| {
            let key = spot.key().0.len() + spot.key().1.len();
            // SAFETY: a slot that was lent a row has a codec.
            spot.body().len() + key + unsafe { (*self.codec).key.room(key) } <= self.capacity
        })
    }

    /// Puts the values that the key gives back where they belong. They stand beyond `tts_nvalid` at first, until the
    /// attributes before them have been taken out as well.
    #[inline]
    unsafe fn decode_key(&mut self, codec: &TableCodec, natts: usize) -> Result<(), Failed> {
        // SAFETY: as in `try_decode`.
        unsafe {
            let (key, mut arena) = match &self.lent {
                Some(spot) => {
                    let (first, rest) = spot.key();
                    let len = first.len() + rest.len();
                    if len + codec.key.room(len) > self.capacity {
                        return Err(Failed::Key);
                    }
                    let start = if first.is_empty() && codec.key.room(len) == 0 {
                        rest.as_ptr()
                    } else {
                        std::ptr::copy_nonoverlapping(first.as_ptr(), self.buffer, first.len());
                        std::ptr::copy_nonoverlapping(rest.as_ptr(), self.buffer.add(first.len()), rest.len());
                        self.buffer
                    };
                    (std::slice::from_raw_parts(start, len), Arena::new(self.buffer.add(len), self.capacity - len))
                }
                None => {
                    let used = self.body + self.key;
                    let key = std::slice::from_raw_parts(self.buffer.add(self.body), self.key);
                    (key, Arena::new(self.buffer.add(used), self.capacity - used))
                }
            };
            let (values, nulls) = (self.base.tts_values, self.base.tts_isnull);
            let good = codec.key.decode(key, &mut arena, |attno, value| {
                let at = attno as usize - 1;
                if at < natts {
                    *values.add(at) = value;
                    *nulls.add(at) = false;
                }
            });
            if !good {
                return Err(Failed::Key);
            }
        }
        self.key_decoded = true;
        Ok(())
    }

    /// Copies the values that the executor gave into the buffer.
    unsafe fn copy_values(&mut self) {
        // SAFETY (whole function): a slot that was filled with values has one for each attribute of its descriptor.
        unsafe {
            let natts = (*self.base.tts_tupleDescriptor).natts as usize;
            let attributes = (*self.base.tts_tupleDescriptor).attrs.as_slice(natts);
            let mut size = 0;
            let mut overlaps = false;
            for (i, attribute) in attributes.iter().enumerate() {
                if attribute.attbyval || *self.base.tts_isnull.add(i) {
                    continue;
                }
                let value = (*self.base.tts_values.add(i)).value();
                overlaps |= (self.buffer as usize..self.buffer as usize + self.capacity).contains(&value);
                size = align_up(size, MAX_ALIGN) + size_of_value(attribute.attlen, value as *const u8);
            }
            // Values may come from the buffer itself: it is freed only after they have been copied.
            let old = if overlaps {
                self.capacity = 0;
                std::mem::replace(&mut self.buffer, std::ptr::null_mut())
            } else {
                std::ptr::null_mut()
            };
            self.reserve(size);
            let mut at = 0;
            for (i, attribute) in attributes.iter().enumerate() {
                if attribute.attbyval || *self.base.tts_isnull.add(i) {
                    continue;
                }
                at = align_up(at, MAX_ALIGN);
                let place = self.buffer.add(at);
                let value: *const u8 = (*self.base.tts_values.add(i)).cast_mut_ptr();
                at += copy_value(attribute.attlen, value, place);
                *self.base.tts_values.add(i) = Datum::from(place as usize);
            }
            debug_assert!(at == size);
            if !old.is_null() {
                palloc::free(old);
            }
        }
        self.holds_values = true;
    }

    /// Becomes a copy of a slot of ours that holds a row. False: the descriptors are too different.
    unsafe fn copy_row(&mut self, from: &Slot) -> bool {
        // SAFETY: a slot that holds a row has a codec, and key and body in its buffer.
        unsafe {
            let codec = &*from.codec;
            let layout = if from.layout.is_null() { &codec.layout } else { &*from.layout };
            let desc = self.base.tts_tupleDescriptor;
            if !std::ptr::eq(desc, from.base.tts_tupleDescriptor) && !layout.fits(desc) {
                return false;
            }
            if !std::ptr::eq(self.codec, from.codec) {
                Rc::increment_strong_count(from.codec);
                let codec = Rc::from_raw(from.codec);
                self.adopt(&codec);
            }
            if from.lent.is_some() {
                self.lent = from.lent;
                self.own();
                return true;
            }
            let used = from.body + from.key;
            self.reserve(used + codec.key.room(from.key));
            std::ptr::copy_nonoverlapping(from.buffer, self.buffer, used);
        }
        (self.body, self.key) = (from.body, from.key);
        // Decoding starts over: the other slot's progress was made with values in the other slot's buffer.
        let has_head = self.has_head;
        self.hold_row();
        self.has_head = has_head;
        true
    }

    /// Makes a heap tuple that was formed from this row look as if it came from a table: a fresh one is a composite value,
    /// whose type stands where a row has its transaction.
    unsafe fn label(&self, tuple: pg_sys::HeapTuple) {
        // SAFETY: the tuple was just formed.
        unsafe {
            (*tuple).t_self = self.base.tts_tid;
            (*tuple).t_tableOid = self.base.tts_tableOid;
            if self.has_head {
                let header = &mut *(*tuple).t_data;
                header.t_choice.t_heap.t_xmin = pg_sys::TransactionId::from(self.writer.0 as u32);
                header.t_choice.t_heap.t_xmax = pg_sys::InvalidTransactionId;
                header.t_choice.t_heap.t_field3.t_cid = self.command;
                header.t_ctid = self.base.tts_tid;
                header.t_infomask &= !(pg_sys::HEAP_XACT_MASK as u16);
                header.t_infomask |= pg_sys::HEAP_XMAX_INVALID as u16;
                header.t_infomask2 &= !(pg_sys::HEAP2_XACT_MASK as u16);
            }
        }
    }
}

/// Why a row could not be taken out.
enum Failed {
    Key,
    Begin,
    Body(BadBody),
    /// The rest of the attributes has been added to the table later.
    Missing,
}

fn corrupt(row: RowId, what: &str) -> ! {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_DATA_CORRUPTED,
        format!("row {row} of a loosekv table cannot be read: {what}"),
        "loosekv",
    )
    .report(PgLogLevel::ERROR);
    unreachable!("an error report returned")
}

/// Without a guard: nothing can fail. So are `release` and `clear`.
unsafe extern "C-unwind" fn init(slot: *mut TupleTableSlot) {
    // SAFETY: PostgreSQL calls this on slots with our callbacks, all zeros; a reference is not made before all of it is a `Slot`.
    unsafe { (&raw mut (*slot.cast::<Slot>()).lent).write(None) };
}

unsafe extern "C-unwind" fn release(slot: *mut TupleTableSlot) {
    // SAFETY: PostgreSQL calls this on slots with our callbacks, as the last thing.
    let slot = unsafe { &mut *slot.cast::<Slot>() };
    slot.disown();
    slot.forget_put_by();
    slot.free_buffer();
}

unsafe extern "C-unwind" fn clear(slot: *mut TupleTableSlot) {
    // SAFETY: PostgreSQL calls this on slots with our callbacks.
    unsafe {
        let ours = &mut *slot.cast::<Slot>();
        ours.clear();
        if ours.capacity > KEEP {
            shrink(slot);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn shrink(slot: *mut TupleTableSlot) {
    // SAFETY: as in `clear`; the slot is empty.
    unsafe { (*slot.cast::<Slot>()).free_buffer() };
}

/// Without a guard where nothing can fail.
unsafe extern "C-unwind" fn get_some_attributes(slot: *mut TupleTableSlot, natts: i32) {
    // SAFETY: PostgreSQL calls this on slots with our callbacks, with no more attributes than the descriptor has.
    unsafe {
        let ours = &mut *slot.cast::<Slot>();
        let natts_wanted = natts as usize;
        if !ours.holds_row || !(ours.try_decode(natts_wanted).is_ok() || ours.decode_copy(natts_wanted)) {
            get_attributes_or_fail(slot, natts);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn get_attributes_or_fail(slot: *mut TupleTableSlot, natts: i32) {
    // SAFETY: as in `get_some_attributes`.
    unsafe {
        let slot = &mut *slot.cast::<Slot>();
        if !slot.holds_row {
            error!("attributes beyond those given were asked of a slot with given values");
        }
        slot.decode(natts as usize);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn get_system_attribute(slot: *mut TupleTableSlot, attno: i32, null: *mut bool) -> Datum {
    // SAFETY: PostgreSQL calls this on slots with our callbacks, and wants to know of nulls.
    let slot = unsafe {
        *null = false;
        if (*slot.cast::<Slot>()).holds_row && tid::is_unread((*slot.cast::<Slot>()).row) {
            super::slots::read_unread(slot);
        }
        let known = &mut *slot.cast::<Slot>();
        known.know_head();
        if !known.has_head && !known.holds_row {
            if let Some(head) = super::slots::head_of(slot) {
                (*slot.cast::<Slot>()).set_head(&head);
            }
        }
        &mut *slot.cast::<Slot>()
    };
    if !slot.has_head {
        ereport!(
            ERROR,
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
            "cannot retrieve a system column in this context"
        );
    }
    match attno {
        pg_sys::MinTransactionIdAttributeNumber => Datum::from(slot.writer.0 as u32),
        pg_sys::MaxTransactionIdAttributeNumber => Datum::from(if slot.was_locked { slot.writer.0 as u32 } else { 0 }),
        pg_sys::MinCommandIdAttributeNumber | pg_sys::MaxCommandIdAttributeNumber => Datum::from(slot.command),
        _ => error!("invalid system attribute number {attno}"),
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn materialize(slot: *mut TupleTableSlot) {
    // SAFETY: PostgreSQL calls this on slots with our callbacks.
    unsafe {
        let slot = &mut *slot.cast::<Slot>();
        slot.own();
        if !slot.holds_row && !slot.holds_values && u32::from(slot.base.tts_flags) & pg_sys::TTS_FLAG_EMPTY == 0 {
            slot.copy_values();
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn copy_slot(to: *mut TupleTableSlot, from: *mut TupleTableSlot) {
    // SAFETY: PostgreSQL calls this on two slots, the first with our callbacks, the second with no more attributes than it.
    unsafe {
        let target = &mut *to.cast::<Slot>();
        target.clear();
        let source: *const Slot = from.cast();
        let ours = is_ours(from);
        if ours {
            // What was taken out of it may be in use: it is not copied into its own buffer.
            (*from.cast::<Slot>()).know_head();
        }
        let copied = ours && (*source).holds_row && target.copy_row(&*source);
        if !copied {
            let (values, nulls) = all_attributes(from);
            std::ptr::copy_nonoverlapping(values.as_ptr(), target.base.tts_values, values.len());
            std::ptr::copy_nonoverlapping(nulls.as_ptr(), target.base.tts_isnull, nulls.len());
            // Attributes that the source does not have read as null.
            for i in values.len()..(*target.base.tts_tupleDescriptor).natts as usize {
                *target.base.tts_values.add(i) = Datum::from(0usize);
                *target.base.tts_isnull.add(i) = true;
            }
            target.base.tts_nvalid = (*target.base.tts_tupleDescriptor).natts as i16;
            target.base.tts_flags &= !(pg_sys::TTS_FLAG_EMPTY as u16);
            target.copy_values();
        }
        if ours && (*source).has_head {
            (target.row, target.writer, target.command) = ((*source).row, (*source).writer, (*source).command);
            (target.has_head, target.was_locked) = (true, (*source).was_locked);
        }
        target.base.tts_tid = (*from).tts_tid;
        target.base.tts_tableOid = (*from).tts_tableOid;
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn copy_heap_tuple(slot: *mut TupleTableSlot) -> pg_sys::HeapTuple {
    // SAFETY: PostgreSQL calls this on slots with our callbacks that are not empty.
    unsafe {
        all_attributes(slot);
        (*slot.cast::<Slot>()).know_head();
        let slot = &*slot.cast::<Slot>();
        let base = &slot.base;
        let tuple = pg_sys::heap_form_tuple(base.tts_tupleDescriptor, base.tts_values, base.tts_isnull);
        slot.label(tuple);
        tuple
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn copy_minimal_tuple(slot: *mut TupleTableSlot) -> pg_sys::MinimalTuple {
    // SAFETY: PostgreSQL calls this on slots with our callbacks that are not empty.
    unsafe {
        all_attributes(slot);
        pg_sys::heap_form_minimal_tuple((*slot).tts_tupleDescriptor, (*slot).tts_values, (*slot).tts_isnull)
    }
}
