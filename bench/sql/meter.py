"""What the server used between two moments: processor time, disk bytes, WAL; and how large a table was meanwhile.

- Processor time is the control group's, exact to the nanosecond and with all processes that have ended; without a group
  it is the sum over the postmaster and its children, ended ones included, by /proc.
- Disk bytes written cannot be counted exactly for one program. There are three upper bounds: what the server's processes gave
  to write calls (pages that are written again before they reach the disk count twice), what they made dirty in the page
  cache (the kernel counts a large folio as a whole when a part of it gets dirty), and what the device wrote, by whomever.
  Each is kept; `written` is the least of them. All dirty pages are written out before and after. What ended is in the
  postmaster's own counts.
- A run is over when the server is idle: no flush, merge or vacuum goes on, and a checkpoint has written all out.
"""
import os
import resource
import threading
import time
from dataclasses import dataclass

from server import disk_bytes

TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
KINDS = {"loosekv worker": "worker", "checkpointer": "checkpointer", "walwriter": "walwriter",
         "background writer": "bgwriter", "autovacuum": "autovacuum"}
IDLE = """
    SELECT count(*) FROM pg_stat_activity
    WHERE backend_type = 'loosekv worker' AND state IS DISTINCT FROM 'idle' OR backend_type = 'autovacuum worker'"""


@dataclass
class Reading:
    time: float
    cpu_ns: int
    others_ns: int
    written: dict  # upper bounds by name
    read: int
    wal: int
    kinds: dict  # processor time of the background processes by kind


def _io(pid):
    with open(f"/proc/{pid}/io") as file:
        return {name: int(value) for name, value in (line.split(": ") for line in file)}


def _cpu_ns(pid):
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0])


def _machine_ns():
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return sum(ticks[at] for at in (0, 1, 2, 5, 6, 7)) * TICK_NS


def _own_ns():
    return int(1e9 * sum(usage.ru_utime + usage.ru_stime for usage in
                         (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))))


def _device_written(directory):
    """Bytes written to the disk that the directory is on; 0 where it is on none."""
    number = os.stat(directory).st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    try:
        with open(f"/sys/dev/block/{name}/stat") as file:
            return int(file.read().split()[6]) * 512
    except OSError:
        return 0


class Meter:
    """Reads the counters of one server, on a connection of its own."""

    def __init__(self, server):
        self.server, self.connection = server, server.connect()

    def read(self):
        server = self.server
        wal = int(self.connection.value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))
        written, read, cpu = {"calls": 0, "dirty": 0, "device": _device_written(server.data)}, 0, 0
        kinds = dict.fromkeys(KINDS.values(), 0)
        for pid, title in server.processes().items():
            try:
                counts = _io(pid)
                spent = _cpu_ns(pid)
            except OSError:
                continue
            cpu += spent
            written["calls"] += counts["wchar"]
            written["dirty"] += counts["write_bytes"]
            read += counts["read_bytes"]
            for words, kind in KINDS.items():
                if words in title:
                    kinds[kind] += spent
        if server.group.has_cpu:
            cpu = server.group.cpu_ns()
        else:
            with open(f"/proc/{server.postmaster}/stat") as file:
                cpu += sum(int(word) for word in file.read().rsplit(")", 1)[1].split()[13:15]) * TICK_NS
        return Reading(time.monotonic(), cpu, _machine_ns() - cpu - _own_ns(), written, read,
                       wal, kinds)

    def settle(self, patience, quiet, write_out=True):
        """Waits until nothing goes on in the background and writes all out. False when patience ended."""
        deadline = time.monotonic() + patience
        looks, settled = 0, True
        while looks < 2:
            looks = looks + 1 if self.connection.value(IDLE) == "0" else 0
            if time.monotonic() > deadline:
                settled = False
                break
            if looks < 2:
                time.sleep(quiet)
        self.connection.rows("CHECKPOINT")
        if write_out:
            os.sync()
        return settled

    @staticmethod
    def rest(size, still, patience):
        """Waits until `size()` has been the same for so many seconds: tables that nobody uses give their free end back."""
        deadline = time.monotonic() + patience
        last, since = size(), time.monotonic()
        while time.monotonic() < min(since + still, deadline):
            time.sleep(min(still, 0.5))
            now = size()
            if now != last:
                last, since = now, time.monotonic()


def difference(begin, end):
    """What was used from one reading to another, by name."""
    seconds = max(end.time - begin.time, 1e-9)
    bounds = {name: end.written[name] - begin.written[name] for name in end.written}
    return {
        "cpu_ns": end.cpu_ns - begin.cpu_ns,
        "written": min(bytes for name, bytes in bounds.items() if end.written[name]),
        "written_bounds": bounds,
        "read": end.read - begin.read,
        "wal": end.wal - begin.wal,
        "kinds_ns": {kind: max(end.kinds[kind] - begin.kinds[kind], 0) for kind in end.kinds},
        "others_cores": max(end.others_ns - begin.others_ns, 0) / 1e9 / seconds,
        "seconds": seconds,
    }


class PeakSize(threading.Thread):
    """Looks at the files of a table ten times a second and keeps the largest sum."""

    def __init__(self, paths):
        super().__init__(daemon=True)
        self.paths, self.peak, self.halt = paths, 0, threading.Event()

    def run(self):
        while not self.halt.wait(0.1):
            self.peak = max(self.peak, disk_bytes(self.paths))

    def finish(self):
        self.halt.set()
        self.join()
        return max(self.peak, disk_bytes(self.paths))


def fsync_us(directory, rounds=40):
    """Median of the time that 8 KB take to get to the disk, at this moment."""
    path = os.path.join(directory, "fsync-probe")
    times = []
    handle = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        for _ in range(rounds):
            begun = time.perf_counter()
            os.pwrite(handle, b"x" * 8192, 0)
            os.fdatasync(handle)
            times.append(time.perf_counter() - begun)
    finally:
        os.close(handle)
        os.unlink(path)
    return sorted(times)[rounds // 2] * 1e6
