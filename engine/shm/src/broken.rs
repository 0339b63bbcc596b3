//! Ways to break the latch and the stack, for the tests that explore their interleavings ([`crate::interleave`]).

switches! {
    /// One way to break this crate's code.
    Broken {
        /// A reader gets in beside a writer.
        LatchReaderBesideWriter,
        /// Who releases a latch does not wake a writer that waits.
        LatchWriterNotWoken,
        /// Who releases a latch does not wake readers that wait.
        LatchReadersNotWoken,
        /// A writer that has waited forgets that others may still wait.
        LatchOthersForgotten,
        /// A change of the stack leaves the tag as it was.
        StackTagStays,
    }
}
