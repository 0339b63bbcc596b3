//! The manifest as it stands on its pages; extents and free space.

use super::{Check, Phase};
use crate::error::{Error, Result};
use crate::extent::FreeSpace;
use crate::host::Host;
use crate::manifest::{BodyRef, Manifest};
use crate::tree::load::{read_manifest, FIRST_PAGE};
use crate::types::{Extent, ExtentSeq, PageNo};
use std::collections::BTreeMap;

/// Attempts to read meta page and body between two flips; then flips wait.
const ATTEMPTS: usize = 8;
const PLACE: &str = "manifest";

impl<H: Host> Check<'_, '_, '_, H> {
    pub(super) fn manifest(&mut self) -> Result<()> {
        if self.follower() && self.tree.shared.is_blank() {
            // Its first page is still to come.
            return Ok(());
        }
        self.watch.progress(Phase::Manifest, 0, 1)?;
        let read = match self.read_twice()? {
            Some(read) => read,
            None => {
                let ledger = self.tree.shared.ledger.lock();
                let read = self.tree.host.read_meta().and_then(|page| match page {
                    Some(page) => read_manifest(&self.tree.host, &page).map(|(manifest, _)| manifest),
                    None => Err(Error::structure("the table has no meta page")),
                });
                drop(ledger);
                read
            }
        };
        match read {
            Ok(manifest) => {
                self.extents(&manifest)?;
                self.marks(&manifest);
                self.agreement(&manifest);
            }
            Err(failed) => self.report.note(PLACE, failed)?,
        }
        if !self.follower() {
            self.free_space()?;
        }
        self.watch.progress(Phase::Manifest, 1, 1)
    }

    /// The manifest, or what is wrong with it; `None`: it changed every time.
    fn read_twice(&mut self) -> Result<Option<Result<Manifest>>> {
        let host = &self.tree.host;
        if let Err(failed) = host.verify_page(PageNo(0)) {
            return Ok(Some(Err(failed)));
        }
        for _ in 0..ATTEMPTS {
            self.watch.progress(Phase::Manifest, 0, 1)?;
            let Some(page) = host.read_meta()? else {
                return Ok(Some(Err(Error::structure("the table has no meta page"))));
            };
            let read = Manifest::decode_meta(&page).and_then(|(head, body)| {
                verify_body(host, &head, &body)?;
                read_manifest(host, &page).map(|(manifest, _)| manifest)
            });
            let again = host.read_meta()?;
            if again.is_some_and(|again| again.0.get(crate::page::CONTENT..) == page.0.get(crate::page::CONTENT..)) {
                return Ok(Some(read));
            }
        }
        Ok(None)
    }

    /// Nothing has two owners, and everything stands within the file.
    fn extents(&mut self, manifest: &Manifest) -> Result<()> {
        let pages = if self.follower() { u32::MAX } else { self.tree.host.pages()? };
        let mut named: Vec<(Extent, String)> = Vec::new();
        for run in &manifest.runs {
            named.extend(run.extents.iter().map(|e| (*e, format!("run {}", run.id))));
        }
        let logs = manifest.log_extents.iter();
        named.extend(manifest.body.iter().map(|e| (*e, "the manifest".to_owned())));
        // The others need not be full: after a crash the file may end before what nobody has written to.
        let written = named.iter().map(|(extent, _)| extent.end().0).max().unwrap_or(0);
        if written > pages {
            self.report.add(PLACE, format!("pages up to {written} have been written to, and there are {pages}"));
        }
        named.extend(logs.map(|l| (l.extent, format!("the log of generation {}", l.generation))));
        named.extend(manifest.values.iter().map(|e| (*e, "the value log".to_owned())));
        let owned = named.len();
        named.extend(manifest.pending.iter().map(|e| (*e, "something under construction".to_owned())));
        // The pieces of a run that was moved have one number.
        let mut owners = BTreeMap::new();
        for (extent, owner) in named.iter().take(owned) {
            if extent.pages > 0 && owners.insert(extent.seq, owner).is_some_and(|other| other != owner) {
                self.report.add(PLACE, format!("extent number {} of {owner} is used twice", extent.seq));
            }
        }
        named.sort_by_key(|(extent, _)| (extent.start, extent.pages));
        let mut last: Option<&(Extent, String)> = None;
        for one in named.iter().filter(|(extent, _)| extent.pages > 0) {
            let (extent, owner) = one;
            let (start, end) = (extent.start, extent.end());
            if start.0 < FIRST_PAGE || end.0 > manifest.allocated {
                let known = manifest.allocated;
                self.report
                    .add(PLACE, format!("pages {start} to {end} of {owner} are not within the {known} that there are"));
            }
            if extent.seq >= manifest.next_seq || extent.seq == ExtentSeq(0) {
                self.report.add(PLACE, format!("extent number {} of {owner} was not given out", extent.seq));
            }
            if let Some((before, other)) = last.filter(|(before, _)| before.end() > start) {
                let upto = before.end();
                self.report.add(PLACE, format!("page {start} belongs to {owner}, and to {other} up to page {upto}"));
            }
            if last.is_none_or(|(before, _)| before.end() < end) {
                last = Some(one);
            }
        }
        Ok(())
    }

    /// High-water marks (I13).
    fn marks(&mut self, manifest: &Manifest) {
        for log in &manifest.log_extents {
            let generation = log.generation;
            if generation <= manifest.flushed || generation >= manifest.next_generation {
                let (flushed, next) = (manifest.flushed, manifest.next_generation);
                let what = format!(
                    "names a log of generation {generation}, flushed are those up to {flushed}, the next is {next}"
                );
                self.report.add(PLACE, what);
            }
        }
        if manifest.next_row_id > self.tree.next_row_id() && !self.follower() {
            let (told, known) = (manifest.next_row_id, self.tree.next_row_id());
            self.report.add(PLACE, format!("row ids up to {told} were given out, memory goes on with {known}"));
        }
    }

    /// Memory's copy is the same, if it is of the same flip (I19).
    fn agreement(&mut self, manifest: &Manifest) {
        let ledger = self.tree.shared.ledger.lock();
        let known = &ledger.manifest;
        if known.version != manifest.version {
            return;
        }
        let mut differs = Vec::new();
        for (name, same) in [
            ("storage id", known.storage_id == manifest.storage_id),
            ("runs", known.runs == manifest.runs),
            ("value extents", known.values == manifest.values),
            ("log extents", known.log_extents == manifest.log_extents),
            ("body", known.body == manifest.body),
            ("flushed generation", known.flushed == manifest.flushed),
        ] {
            if !same {
                differs.push(name);
            }
        }
        drop(ledger);
        if !differs.is_empty() {
            self.report.add(PLACE, format!("memory and pages differ in: {}", differs.join(", ")));
        }
    }

    /// What memory takes for free is nobody's.
    fn free_space(&mut self) -> Result<()> {
        let ledger = self.tree.shared.ledger.lock();
        let waiting = ledger.limbo.iter().map(|l| l.extent).chain(ledger.held.iter().map(|h| h.extent));
        let taken: Vec<Extent> = ledger.manifest.owned().chain(waiting).collect();
        let unowned = FreeSpace::complement(FIRST_PAGE, ledger.free.high(), taken.into_iter());
        let stray = unowned.map(|unowned| unowned.first_stray(&ledger.free));
        drop(ledger);
        match stray {
            Ok(None) => Ok(()),
            Ok(Some(page)) => {
                self.report.add("free space", format!("page {page} is taken for free, and has an owner"));
                Ok(())
            }
            Err(failed) => self.report.note("free space", failed),
        }
    }
}

fn verify_body<H: Host>(host: &H, head: &Manifest, body: &BodyRef) -> Result<()> {
    let mut left = BodyRef::pages(body.length);
    for extent in &head.body {
        for at in 0..extent.pages.min(left) {
            host.verify_page(PageNo(extent.start.0.saturating_add(at)))?;
        }
        left -= extent.pages.min(left);
    }
    Ok(())
}
