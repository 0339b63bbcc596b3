//! Switches that break an invariant on purpose, where it is kept: a test that does not notice proves nothing.
//!
//! Compiled for tests alone; otherwise [`on`] is the constant `false` and nothing is left of a switch. A mutation is in
//! force for one thread. `tree::model::mutations` has the table of what catches which.

#[macro_use]
#[path = "../shm/src/switches.rs"]
mod switches;

switches! {
    /// One way to break an invariant of the design (the number in front, where it has one).
    Mutation {
        /// A merged run covers the L0 ids of its oldest input only.
        I1IntervalTooShort,
        /// A merged run takes the place of the newest run.
        I1MergedRunIsNewest,
        /// The newest frozen memtable is flushed first.
        I2NewestMemtableFirst,
        /// An append does not look whether something newer than observed came.
        I2ExpectationIgnored,
        /// What was observed is taken to hold, though runs have come since.
        I2LaterRunsIgnored,
        /// Tombstones get no index entry.
        I3TombstonesNotIndexed,
        /// A merge corrects index entries without looking whether a flush has raised them since.
        I3CorrectedUnseen,
        /// A rebuild replaces the entries that flushes have made meanwhile.
        I3RebuildReplaces,
        /// A key absent from the index is taken for absent, though the index does not cover all the runs.
        I4IncompleteIndexTrusted,
        /// Entries leave the index, and readers with an older superversion are not told.
        I4EvictionNotTold,
        /// A tombstone's entry is purged though a snapshot does not see the tombstone yet.
        I5PurgeBeforeSeen,
        /// A sweep removes an entry that has changed since it was looked at.
        I5RemovedUnseen,
        /// Readers forget that entries of tombstones were purged.
        I5PurgesForgotten,
        /// A rebuild forgets that entries of tombstones were purged.
        I5RebuildForgetsPurges,
        /// The superversion with the new run comes before its index entries.
        I6InstalledBeforeIndexed,
        /// The memtable goes before its run is there to read.
        I6MemtableDroppedFirst,
        /// The row log is forgotten before the flip.
        I6LogForgottenBeforeFlip,
        /// The flip does not wait for the pages.
        I6PagesNotSynced,
        /// A reader takes an index entry that is newer than its superversion for "not on disk".
        I7NewerEntryIsNone,
        /// A reader reads the index before it pins the superversion.
        I7IndexFirst,
        /// A merge installs an edit of the superversion that it began with.
        I8OldSuperversionEdited,
        /// A merge flips to an edit of the manifest that it began with.
        I8OldManifestEdited,
        /// A tombstone is dropped though an older run may hold the key.
        I9OlderRunsIgnored,
        /// A tombstone is dropped as soon as it is committed.
        I9DroppedBeforeSeen,
        /// A value is dropped early though not everybody sees the newer version yet.
        I10NotSeenByAll,
        /// A tombstone is dropped early, as values are, though older runs may hold the key.
        I10TombstoneDropped,
        /// All below the newest committed version is dropped.
        I11SnapshotsIgnored,
        /// An index entry is changed by taking it out and putting it in again.
        I12RemoveAndInsert,
        /// The key filter is not told of a key that was dead in its leaf and comes to life.
        RevivedKeyNotTold,
        /// What the key index's guide says is not made sure of.
        GuideTrusted,
        /// After a crash row ids go on from the meta page, whatever the row log holds.
        I13RowIdsReused,
        /// After a crash generations go on from the newest run, whatever the row log holds.
        I13GenerationsReused,
        /// A rebuild begins with the oldest run.
        I14OldestFirst,
        /// A guided scan does not look for older versions.
        I15OlderNotLookedFor,
        /// The row cache is asked by key alone, whatever run the index names.
        CachedRowOutlivesEntry,
        /// The row cache keeps what the reader was shown, of whatever writer.
        CachedRowOfAnyWriter,
        /// A row version found by its id is taken for the newest of its key.
        RowTakenForAlone,
        /// A barren stretch stays one though somebody writes there.
        BarrenNotStruckOff,
        /// A standby goes on to believe in barren stretches when rows have come in runs.
        BarrenNotForgotten,
        /// Who does not see all tombstones of a barren stretch jumps over it.
        BarrenToAll,
        /// Runs are scanned one after the other though they have keys in common.
        I15RunsTakenForApart,
        /// A guided scan begins its next piece with the key that it ended with.
        I15KeyTwice,
        /// A backward scan takes a memtable's oldest version of a key for its newest.
        I15BackwardOldest,
        /// A guided scan passes over a key that is not in the run that the index names.
        I15MissTakenForNone,
        /// A value extent is given up though runs point into it.
        I16RunsIgnored,
        /// A value extent is given up though rows of memtables may point into it.
        I16MemtablesIgnored,
        /// A value extent is given up though a writer has yet to link the row that points into it.
        I16WriterNotAwaited,
        /// A value extent is used again though a pinned superversion points into it.
        I16PinnedIgnored,
        /// A value extent is used again though the superversion that points to the moved values is yet to come.
        I16CurrentIgnored,
        /// The newest generation in the row log is not replayed.
        I17GenerationLost,
        /// What is torn at the end of the row log is believed.
        I17TornTailBelieved,
        /// A failed sync is tried again.
        I18SyncTriedAgain,
        /// What a flush wrote is known to memory alone.
        I19RunInMemoryOnly,
        /// A reader that has counted itself does not look whether the superversion is still the current one.
        PinNotRechecked,
        /// A superversion is freed though it is pinned.
        PinnedFreed,
        /// Extents are used again though a pinned superversion names them.
        ExtentsReusedPinned,
        /// Extents are used again though the current superversion names them.
        ExtentsReusedCurrent,
        /// What a run has moved away from, or was cut off from, is used again though a pinned superversion knows it there.
        MovedUnnamed,
        /// Readers look for what a run has handed over in that run.
        CutNotFollowed,
        /// A run that was cut goes on to show rows that it has handed over.
        CutRowsShown,
        /// Pages that slices and their merged run have in common are given up with the slices.
        SlicesGivenUpWhole,
        /// A tombstone's entry is purged though a slice holds a later one by the same L0 id.
        SliceNotAskedBeforePurge,
        /// Readers of an older superversion take coarse index entries for exact ones.
        CoarseTakenForExact,
        /// Readers of an older superversion do not learn that a merge has taken entries out of the index.
        GoneNotTold,
        /// What a failed flip had taken is not given back.
        FailedFlipLeaks,
        /// What an abandoned construction had taken is not given back.
        AbandonedLeaks,
        /// Pages by which the store could not grow are taken for free ones.
        RefusedPagesStay,
        NothingReserved,
        /// A row is left unread though not everybody sees it.
        UnreadNotSeenByAll,
        /// A tombstone is left unread, and taken for a row.
        UnreadTombstone,
        /// A scan takes whatever version it finds for the newest of the key.
        ScannedRowTakenForNewest,
        /// Entries of runs that the index does not cover are believed though they may be out of date.
        StrayEntryTrusted,
        /// They are though entries have left since before they were looked for, and strays may have come.
        StraysCameUnseen,
        /// A rebuild claims to have covered a run whose entries were evicted meanwhile.
        RebuildClaimsEvicted,
        /// A rebuild begins while entries are leaving the index, and claims what it has put in though it may be gone.
        EvictionNotAwaited,
        /// A writer who runs is taken for one who has ended, if one before him runs, too.
        RunningTakenForEnded,
    }
}

/// Runs `what` with a mutation in force in this thread.
#[cfg(test)]
pub(crate) fn with<R>(mutation: Option<Mutation>, what: impl FnOnce() -> R) -> R {
    struct Restore(Option<Mutation>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _restore = Restore(CURRENT.replace(mutation));
    what()
}

/// Places where a test may do other things in between ([`crate::tree::Tree::pause`]): no latch is held there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pause {
    /// A reader has pinned its superversion.
    Pinned,
    /// It has looked through the memtables.
    MemtablesRead,
    /// It has read the index.
    IndexRead,
    FlushWritten,
    FlushCommitted,
    FlushIndexed,
    FlushInstalled,
    MergeWritten,
    MergeCommitted,
    /// An index entry was read, to be corrected.
    MergeCorrecting,
    MergeIndexed,
    /// The manifest says something else of runs than before.
    Described,
    /// A run's pages were moved, and the manifest says so.
    Sunk,
    /// Runs left the index; their entries are still there.
    Evicting,
    Evicted,
    Rebuilding,
    Rebuilt,
}
