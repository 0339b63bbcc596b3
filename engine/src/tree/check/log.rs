//! The row log of what is not in runs: every row that memory knows is in it, and every row in it is known to memory.

use super::{check_value, Check, Phase};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::key_text::hex;
use crate::manifest::Manifest;
use crate::memtable::NodeRef;
use crate::row::decode_record;
use crate::tree::version::Generation;
use crate::types::{Flags, Head, PageNo};
use loosekv_shm::RawLatch;
use std::sync::Arc;

/// Rows between two reports.
const STEP: u64 = 1024;

impl<H: Host> Check<'_, '_, '_, H> {
    pub(super) fn log(&mut self) -> Result<()> {
        let tables: Vec<Arc<Generation>> = self.view.memtables().cloned().collect();
        let total = tables.iter().map(|g| g.table.rows()).sum();
        self.watch.progress(Phase::Log, 0, total)?;
        self.log_pages()?;
        let mut done = 0;
        for generation in &tables {
            let place = format!("memtable {}", generation.table.generation());
            let mut last: Option<NodeRef<'_>> = None;
            let mut next = generation.table.first();
            while let Some(node) = next {
                next = node.next();
                done += 1;
                if done % STEP == 0 {
                    self.watch.progress(Phase::Log, done, total.max(done))?;
                }
                if last.is_some_and(|last| (last.key(), node.row_id()) >= (node.key(), last.row_id())) {
                    self.report.add(&place, format!("row {} is out of order", node.row_id()));
                }
                last = Some(node);
                if let Err(failed) = self.logged(generation, &node) {
                    self.report.note(&place, failed)?;
                }
            }
        }
        if !self.manifest.log_extents.is_empty() && !self.follower() && self.report.is_empty() {
            self.replay(&tables)?;
        }
        Ok(())
    }

    /// The pages of the log, where they are the page store's. (The last ones may not have been written yet.)
    fn log_pages(&mut self) -> Result<()> {
        let end = self.tree.host.pages()?;
        let oldest = self.view.oldest_generation();
        let newest = self.view.active().table.generation();
        let extents: Vec<_> = self.manifest.log_extents.to_vec();
        for log in extents.iter().filter(|log| log.generation >= oldest && log.generation <= newest) {
            for no in log.extent.start.0..log.extent.end().0.min(end) {
                if let Err(failed) = self.pages.verify(PageNo(no)) {
                    self.report.note("row log", failed)?;
                }
            }
        }
        Ok(())
    }

    /// The record of a row is the row's.
    fn logged(&self, generation: &Generation, node: &NodeRef<'_>) -> Result<()> {
        let (id, head) = (generation.table.generation(), node.head());
        if head.row_id >= self.tree.next_row_id() {
            return Err(Error::structure(format!("row {} has not been given out yet", head.row_id)));
        }
        let by_row = || generation.table.by_row(head.row_id).map(|found| found.addr());
        if by_row() != Some(node.addr()) {
            // A row that is being linked is found by its key first.
            drop(self.tree.shared.rotation.write());
            if by_row() != Some(node.addr()) {
                return Err(Error::structure(format!("row {} is not found by its row id", head.row_id)));
            }
        }
        let record = self.tree.host.log_row(id, node.addr())?;
        let (row, _) = decode_record(&record)?;
        // That a speculative row was confirmed is known to memory alone.
        let plain = |head: &Head| Head { flags: head.flags.without(Flags::SPECULATIVE), ..*head };
        if row.key != node.key() || plain(&row.head) != plain(&head) {
            let (key, found) = (hex(node.key()), hex(row.key));
            let what = format!("row {} of key {key} is logged as row {} of key {found}", head.row_id, row.head.row_id);
            return Err(Error::structure(what));
        }
        if row.head.flags.has(Flags::POINTER) {
            check_value(self.tree, &self.pages, None, &row)?;
        }
        Ok(())
    }

    fn replay(&mut self, tables: &[Arc<Generation>]) -> Result<()> {
        let newest = self.view.active().table.generation();
        let mut manifest = Manifest { runs: Vec::new(), ..self.manifest.clone() };
        manifest.log_extents.retain(|log| log.generation <= newest && log.generation > self.view.flushed);
        let report = &mut self.report;
        let shown = self.tree.host.replay(&manifest, &mut |generation, addr, record| {
            let (row, _) = decode_record(record)?;
            let table = tables.iter().find(|g| g.table.generation() == generation);
            let known = table.and_then(|g| g.table.by_row(row.head.row_id)).map(|node| node.addr());
            if known != Some(addr) {
                let (id, key) = (row.head.row_id, hex(row.key));
                report.add("row log", format!("row {id} of key {key} in generation {generation} is in no memtable"));
            }
            Ok(())
        });
        shown.or_else(|failed| self.report.note("row log", failed))
    }
}
