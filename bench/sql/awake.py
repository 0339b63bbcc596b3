"""Keeps the cores from sleeping while something is measured, where the system lets us, and tells what waking costs.

On some machines (virtual ones in virtual ones, most of all) a core that has gone to sleep takes a tenth of a millisecond to
wake up. Client and server wake each other for every statement: what would be measured is that.
"""
import contextlib
import os
import struct
import time

DEVICE = "/dev/cpu_dma_latency"
ROUND_TRIPS = 20_000


@contextlib.contextmanager
def cores():
    """Within it idle cores poll. The kernel drops the request when the file is closed."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(open(DEVICE, "wb", buffering=0)).write(struct.pack("i", 0))
        except OSError:
            yield False
        else:
            yield True


def round_trip_us():
    """What it takes two processes to wake each other once: a byte through a pipe, and one back."""
    there, back = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(there[1])
        while os.read(there[0], 1):
            os.write(back[1], b"x")
        os._exit(0)
    begin = time.perf_counter()
    for _ in range(ROUND_TRIPS):
        os.write(there[1], b"x")
        os.read(back[0], 1)
    took = time.perf_counter() - begin
    for end in there + back:
        os.close(end)
    os.waitpid(child, 0)
    return round(took / ROUND_TRIPS * 1e6, 1)
