"""What a machine does of its own while something is measured, and what is done against it for so long.

Cores are kept from sleeping, where the system lets us. On some machines (virtual ones in virtual ones, most of all) one that has
gone to sleep takes a tenth of a millisecond to wake up. Client and server wake each other for every statement: what would be
measured is that.

Free memory is kept from the host of a virtual machine, for who asks for that: it is a setting of the kernel, which is put back
at the end. Otherwise the host takes it, and whoever needs a page of it again waits until two megabytes have come back: five
milliseconds on a machine where that was looked at.
"""
import contextlib
import mmap
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


REPORTING = "/sys/module/page_reporting/parameters"
# A switch that some kernels have; the order of the least that the host is told of, of which the largest is not the same everywhere.
SILENCE = {"free_bitmap_enable": ("N",), "page_reporting_order": ("11", "10")}
LEFT = 2 << 30  # bytes of memory that are left alone


@contextlib.contextmanager
def memory(wanted):
    """Within it free memory stays here, if that is wanted."""
    before = {name: value for name, value in map(_silence, SILENCE) if value} if wanted else {}
    try:
        if wanted and not before:
            raise SystemExit(f"nothing in {REPORTING} could be changed")
        if wanted:
            _fetch(_available() - LEFT)
        yield
    finally:
        for name, value in before.items():
            _write(name, value)


def _write(name, value):
    with open(os.path.join(REPORTING, name), "w") as file:
        file.write(value)


def _silence(name):
    """The name, and what stood there before it was changed; None where it could not be."""
    for value in SILENCE[name]:
        try:
            with open(os.path.join(REPORTING, name)) as file:
                before = file.read().strip()
            _write(name, value)
            return name, before
        except OSError:
            continue
    return name, None


def _available():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def _fetch(size):
    """Touches so much memory, which the host gives for that, and frees it."""
    if size > 0:
        with contextlib.closing(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)) as taken:
            taken.madvise(23)  # MADV_POPULATE_WRITE


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
