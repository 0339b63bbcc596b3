//! `loosekv.memory`: what the extension's shared memory is used for; `loosekv.row_cache`: what is in the row cache.

use super::startup;
use crate::host::global;
use loosekv_engine::host::Budget;
use loosekv_engine::row_cache::RowCache;
use loosekv_shm::heap;
use pgrx::iter::TableIterator;
use pgrx::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

/// The parts do not overlap, and add up to the whole, but for the key index: it is what small objects mostly are.
#[pg_extern(volatile, parallel_unsafe)]
fn loosekv_memory_parts(
) -> TableIterator<'static, (name!(part, String), name!(bytes, i64), name!(limit_bytes, Option<i64>))> {
    startup::require();
    let heap = heap::stats();
    let part = |name: &str, bytes: usize, limit: Option<u64>| {
        (name.to_owned(), i64::try_from(bytes).unwrap_or(i64::MAX), limit.and_then(|limit| i64::try_from(limit).ok()))
    };
    let budget =
        |name: &str, budget: &Budget| part(name, budget.used.load(Relaxed) as usize, Some(budget.limit.load(Relaxed)));
    let small = heap.carved.saturating_sub(heap.central + heap.mine) + heap.scraps;
    let mut parts = Vec::new();
    if let Some(global) = global::get() {
        // They may have what nobody else has; beyond their share the worker flushes them early.
        let memtables = (heap.blocks + heap.free.saturating_sub(heap.emergency)) as u64;
        parts.push(budget("key index", &global.budgets.key_index));
        parts.push(part("memtables", heap.blocks, Some(memtables)));
        parts.push(part("small objects", small, Some(crate::settings::budgets().growth)));
        parts.push(part("free small objects", heap.central + heap.mine, None));
        parts.push(part("free", heap.free.saturating_sub(heap.emergency), None));
        parts.push(part("kept for emergencies", heap.free.min(heap.emergency), None));
        parts.push(part("all", heap.size, None));
    }
    TableIterator::new(parts)
}

/// What `loosekv.row_cache` shows. Without a row cache it has no room.
#[pg_extern(volatile, parallel_unsafe)]
#[allow(clippy::type_complexity)]
fn loosekv_row_cache_counts() -> TableIterator<
    'static,
    (name!(rows, i64), name!(bytes, i64), name!(limit_bytes, i64), name!(found, i64), name!(kept, i64)),
> {
    startup::require();
    let cache = global::get().and_then(|global| global.row_cache.as_ref());
    let counts = cache.map(RowCache::counts).unwrap_or_default();
    let [rows, bytes, room, found, kept] =
        [counts.rows, counts.bytes, counts.room, counts.found, counts.kept].map(|count| count as i64);
    TableIterator::once((rows, bytes, room, found, kept))
}
