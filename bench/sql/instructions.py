"""How many instructions of the server a statement takes, counted by callgrind: no clock is involved, so the machine's noise is not either.

A server runs under valgrind. pgbench runs each workload twice, with few transactions and with many, each time in a session of
its own; what the second takes more, divided, is what a transaction takes of its session's process. What the kernel, the client and
other processes do is not in it.
"""
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter

import pgbench
import plan
import schema
from connection import SqlError
from schema import STORES
from server import CLUSTER_SH, Server
from workloads import WORKLOADS

# Sessions need some transactions until what they remember is complete: plans, the catalog, memory.
FEW = 300
SETTINGS = {"shared_buffers": "1GB", "loosekv.shared_memory": "256MB", "log_disconnections": "on"}
# One row in so many is read before anything is counted: there are some thirty on a page.
WARM_EVERY = 4
UP_AND_DOWN = 120
OURS, TOTAL = "loosekv.so", "all"
EVENTS = {"Ir": "instructions", "I1mr": "lines of code fetched", "D1mr": "lines of data fetched"}


def run(options):
    if not shutil.which("valgrind"):
        sys.exit("bench/sql instructions needs valgrind (apt-get install valgrind).")
    server = Counted(options)
    try:
        server.load()
        with_callgrind(server, options)
    finally:
        server.stop()


def with_callgrind(server, options):
    print(f"A transaction's share of its session's process, {options.rows} rows, means of {options.transactions}:\n")
    heads = [f"{store}, {what}" for what in EVENTS.values() for store in STORES]
    print(f"| workload | {' | '.join(heads)} | loosekv by heap, instructions | of them loosekv.so's |")
    print("|---|" + "---:|" * (len(heads) + 2), flush=True)
    server.start_counting()
    for name in options.workloads:
        counts = {store: server.count(WORKLOADS[name], store) for store in STORES}
        numbers = [f"{counts[store][event, TOTAL]:,.0f}" for event in EVENTS for store in STORES]
        ours = counts["loosekv"]
        ratio = ours["Ir", TOTAL] / counts["heap"]["Ir", TOTAL]
        print(f"| {WORKLOADS[name].title} | {' | '.join(numbers)} | {ratio:.2f} | {ours['Ir', OURS]:,.0f} |", flush=True)


class Counted(Server):
    """A server whose processes are counted."""

    def __init__(self, options):
        settings = {**plan.COMMON, **SETTINGS}
        super().__init__(options.port, settings, options.dir)
        self.options, self.callgrind, self.used = options, None, 0
        self.counts = os.path.join(self.directory, "counts")

    def load(self):
        self.start()
        schema.create(self.connect(), "uuid", 256)
        for store in STORES:
            connection = self.connect(search_path=schema.search_path(store))
            connection.rows(schema.table(store, "uuid"))
            connection.rows(f"INSERT INTO kv SELECT key(n), value(n) FROM generate_series(1, {self.options.rows}) n")
            connection.rows("VACUUM ANALYZE kv")
        self.down()

    def start_counting(self):
        os.mkdir(self.counts)
        os.chmod(self.counts, 0o777)
        command = f'. "$0"; as_postgres valgrind -q --tool=callgrind --trace-children=yes --cache-sim=yes ' \
                  f'--callgrind-out-file={self.counts}/%p "$pgbin/postgres" -D {self.data}'
        self.log = os.path.join(self.directory, "counted.log")
        with open(self.log, "w") as log:
            self.callgrind = subprocess.Popen(["bash", "-c", command, CLUSTER_SH], stdout=log, stderr=log)
        self._wait(self._is_up)
        # After a start the key index is made again in the background. Then nothing goes on there any more: what it moves would have to be
        # read in again, by whichever session comes to it first.
        connection = self.connect(search_path=schema.search_path("loosekv"))
        self._wait(lambda: connection.value("SELECT index_coverage FROM loosekv.table_stats('kv')") == "1")
        connection.rows("ALTER SYSTEM SET loosekv.workers = 0")
        connection.rows("SELECT pg_reload_conf()")
        for store in STORES:
            connection = self.connect(search_path=schema.search_path(store), enable_hashjoin="off", enable_mergejoin="off")
            connection.rows(f"SELECT count(v) FROM generate_series(1, {self.options.rows}, {WARM_EVERY}) n, LATERAL "
                            "(SELECT v FROM kv WHERE k = key(n) OFFSET 0) found")

    def _is_up(self):
        try:
            self.connect()
            return True
        except SqlError:
            if self.callgrind.poll() is not None:
                raise
            return False

    def _wait(self, until):
        begun = time.monotonic()
        while not until():
            if time.monotonic() - begun > UP_AND_DOWN:
                raise RuntimeError("the server under callgrind does not get ready")
            time.sleep(0.5)

    def count(self, workload, store):
        """(event, library) -> a transaction's share."""
        connection = self.connect(search_path=schema.search_path(store))
        if workload.table == "queue":
            connection.rows(schema.table(store, "bigint-seq", "queue"))
            connection.rows(f"INSERT INTO queue SELECT n, value(n) FROM generate_series(1, {schema.QUEUE_DEPTH}) n")
        few, many = (self._session(workload, store, count) for count in (FEW, FEW + self.options.transactions))
        if workload.table == "queue":
            connection.rows("DROP TABLE queue")
        return {name: (many[name] - few[name]) / self.options.transactions for name in many}

    def _session(self, workload, store, transactions):
        self.used += 1
        first = 10 * self.options.rows + self.used * 100 * (FEW + self.options.transactions)
        with open(self.log) as log:
            log.seek(0, os.SEEK_END)
            # The same rows for both stores, and whatever is counted before.
            pgbench.run(self, workload.scripts, 1, transactions, {"rows": self.options.rows, "first": first},
                        transactions=transactions, options=schema.session(store, "off", workload.rows))
            return read_counts(os.path.join(self.counts, self._ended(log)))

    def _ended(self, log):
        """Number of the session's process, which has written what it counted. pgbench has a session before, for itself."""
        begun = time.monotonic()
        found = ""
        while time.monotonic() - begun < UP_AND_DOWN:
            found += log.read()
            sessions = re.findall(r"\[(\d+)\] pgbench LOG:  disconnection", found)
            if len(sessions) > 1 and not os.path.exists(f"/proc/{sessions[-1]}"):
                return sessions[-1]
            time.sleep(0.05)
        raise RuntimeError(f"no session of pgbench has ended:\n{found[-600:]}")

    def stop(self):
        if self.callgrind and self.callgrind.poll() is None:
            self.down(check=False)
            self.callgrind.wait(UP_AND_DOWN)
        super().stop()


def read_counts(path):
    """(event, library) -> what callgrind counted in its functions themselves, and (event, TOTAL)."""
    counts, names, events, library, is_call = Counter(), {}, [], "", False
    with open(path) as file:
        for line in file:
            if line.startswith("events:"):
                events = line.split()[1:]
            elif line.startswith("ob="):
                number, _, name = line[3:].strip().partition(" ")
                library = names.setdefault(number, os.path.basename(name))
            elif line.startswith("cob="):
                number, _, name = line[4:].strip().partition(" ")
                names.setdefault(number, os.path.basename(name))
            elif line.startswith("calls="):
                is_call = True
            elif line[0] in "0123456789+-*":
                # What a call took altogether is counted where it was spent.
                if not is_call:
                    for event, count in zip(events, line.split()[1:]):
                        counts[event, library] += int(count)
                        counts[event, TOTAL] += int(count)
                is_call = False
    return counts
