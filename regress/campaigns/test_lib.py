"""What the campaigns take for a crash of a server: `python3 -m unittest discover regress/campaigns`."""
import random
import re
import unittest

import lib


class Fallen(unittest.TestCase):
    def test_crashes(self):
        for line in ("LOG:  server process (PID 7) was terminated by signal 11: Segmentation fault",
                     "LOG:  background worker \"loosekv worker\" (PID 7) was terminated by signal 6: Aborted",
                     "LOG:  startup process (PID 7) was terminated by signal 7: Bus error",
                     "LOG:  server process (PID 7) was terminated by signal 99",
                     "PANIC:  block with WILL_INIT flag in WAL record must be zeroed by redo routine",
                     "thread '<unnamed>' panicked at engine/src/tree/mod.rs:1:1:",
                     "TRAP: FailedAssertion(\"false\", File: \"xact.c\", Line: 1, PID: 7)"):
            self.assertEqual(lib.fallen(["LOG:  checkpoint starting: immediate\n", line + "\n"]), [line])

    def test_kills(self):
        for line in ("LOG:  server process (PID 7) was terminated by signal 9: Killed", "LOG:  server process (PID 7) exited with exit code 2",
                     "WARNING:  terminating connection because of crash of another server process",
                     "LOG:  terminating any other active server processes", "LOG:  database system was interrupted"):
            self.assertEqual(lib.fallen([line]), [])

    def test_orphans(self):
        orphaned = "FATAL:  terminating connection due to unexpected postmaster exit"
        died = "PANIC:  cannot abort transaction 7, it was already committed"
        self.assertEqual(lib.fallen([orphaned, died]), [])
        self.assertEqual(lib.fallen([died]), [died])
        self.assertEqual(lib.fallen([orphaned, "LOG:  starting PostgreSQL 15.20 on x86_64-pc-linux-gnu", died]), [died])


class Keys(unittest.TestCase):
    def test_own_keys_are_not_shared(self):
        """A statement that finds nothing to lock in heap is ordered only against its own session's."""
        rng = random.Random(7)
        writers = [lib.Writer(number) for number in range(4)]
        own = {writer.number: {writer.key(rng) for _ in range(20 * lib.OWN)} for writer in writers}
        for writer in writers:
            first, last = map(int, re.fullmatch(r"k BETWEEN (\d+) AND (\d+)", writer.own()).groups())
            self.assertTrue(0 < first <= min(own[writer.number]) and max(own[writer.number]) <= last)
            for other in writers[:writer.number]:
                self.assertFalse(own[writer.number] & own[other.number])


if __name__ == "__main__":
    unittest.main()
