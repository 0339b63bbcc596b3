//! Pages that a scan keeps between its calls: by a pin, as PostgreSQL's own scans do.
//!
//! A pin belongs to the resource owner in whose name it was taken. A scan that PostgreSQL ends gives its pins back, under the same owner,
//! as a heap scan does. After an error nobody ends the scan: its owner has released all its pins by the time the memory context
//! goes that the scan lives in, and what is dropped then ([`abandon`]) gives nothing back.
//!
//! A process keeps no more pins than its share of the buffers; beyond that pages are copied.

use super::pages::Page;
use crate::host::process_local::ProcessLocal;
use crate::pg::bindings;
use loosekv_engine::page::PageBuf;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ops::Deref;

/// Most pins that a process keeps.
const MOST: usize = 32;

static KEPT: ProcessLocal<Cell<usize>> = ProcessLocal::new(Cell::new(0));
static ABANDONED: ProcessLocal<Cell<bool>> = ProcessLocal::new(Cell::new(false));

/// A page that stays where it is until this is dropped.
pub enum HeldPage {
    Pinned(Pin, *const PageBuf),
    Copied(Box<PageBuf>),
}

/// A pin that is kept.
pub struct Pin(pg_sys::Buffer);

impl HeldPage {
    /// Keeps `page`; `spare` is kept no longer.
    #[inline]
    pub fn keep(page: Page, spare: Option<HeldPage>) -> HeldPage {
        let room = match spare {
            Some(HeldPage::Copied(room)) => Some(room),
            Some(HeldPage::Pinned(..)) | None => None,
        };
        match page {
            Page::Pinned { buffer, page: at } if KEPT.get() < most() => {
                std::mem::forget(page);
                KEPT.set(KEPT.get() + 1);
                HeldPage::Pinned(Pin(buffer), at)
            }
            _ => HeldPage::Copied(page.copy(room)),
        }
    }
}

impl Deref for HeldPage {
    type Target = PageBuf;

    #[inline]
    fn deref(&self) -> &PageBuf {
        match self {
            // SAFETY: pinned until this is dropped, or until an error ends the scan, which then reads no more.
            HeldPage::Pinned(_, page) => unsafe { &**page },
            HeldPage::Copied(page) => page,
        }
    }
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        KEPT.set(KEPT.get().saturating_sub(1));
        if !ABANDONED.get() {
            // SAFETY: taken over in `keep`, released once, and not yet released by the owner: that happens after an error alone.
            unsafe { bindings::ReleaseBuffer(self.0) }
        }
    }
}

/// Runs what drops something that nobody has ended: whatever that keeps pinned was given back by its owner.
pub fn abandon(drop: impl FnOnce()) {
    let before = ABANDONED.replace(true);
    drop();
    ABANDONED.set(before);
}

/// How many of the buffers a process may keep pinned: half of an equal share.
pub fn most() -> usize {
    // SAFETY: set at server start.
    let (buffers, backends) = unsafe { (pg_sys::NBuffers, pg_sys::MaxBackends) };
    usize::try_from(buffers / backends.max(1) / 2).unwrap_or(0).min(MOST)
}
