"""Inserts for a long time: are there pauses, and is the last tenth as fast as the first?

One store after the other, each on a server of its own, with random keys into a table that begins empty. The disk is
watched: the soak ends early, and says so, when it gets full.
"""
import os
import shutil
import threading
import time
from collections import Counter

import pgbench
import plan
import report
import schema
import svg
from meter import Meter, PeakSize, difference
from server import Server, disk_bytes

PAUSE_MS = 250
LEAST_FREE = 8 << 30
SETTINGS = {**plan.COMMON, **plan.REGIMES["memory"].settings, "autovacuum": "on"}
LAST_TENTH = 0.8


class DiskGuard(threading.Thread):
    """Cancels the clients when the disk has too little room left."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.halt, self.full = server, threading.Event(), False

    def run(self):
        while not self.halt.wait(5):
            if shutil.disk_usage(self.server.directory).free < LEAST_FREE:
                self.full = True
                self.halt.set()
                self.server.connect().rows(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbench'")


def tenths(bins, rows):
    """Rows a second in each tenth of the time."""
    length = max(bins) + 1
    edges = [length * at // 10 for at in range(11)]
    return [sum(bins[b] for b in range(begin, end)) * rows / max((end - begin) * pgbench.BIN, pgbench.BIN)
            for begin, end in zip(edges, edges[1:])]


def longest_gap(bins):
    """Seconds in which no statement of any client ended, in steps of a tenth."""
    longest = run = 0
    for at in range(max(bins) + 1):
        run = 0 if bins[at] else run + 1
        longest = max(longest, run)
    return longest * pgbench.BIN


def run(options, results):
    from results import machine_facts
    results.describe(minutes=options.minutes, clients=options.soak_clients, rows_per_statement=options.rows_per_statement,
                     value_bytes=options.value, **machine_facts())
    done = {record["store"] for record in results.records}
    for store in options.stores:
        if store not in done:
            results.add(_soak(options, results, store))
    report.save(results, "report.md", text(results))
    print(text(results))


def _soak(options, results, store):
    settings = {**SETTINGS, **dict(given.split("=", 1) for given in options.setting)}
    server = Server(options.port, settings, options.dir)
    try:
        server.start()
        connection = server.connect(search_path=schema.search_path(store))
        schema.create(connection, "uuid", options.value)
        connection.rows(schema.table(store, "uuid"))
        results.describe(settings=settings)
        print(f"{time.strftime('%H:%M:%S')} {store}: {options.minutes:g} minutes", flush=True)
        return _measured(options, server, connection, store)
    finally:
        server.stop()


def _measured(options, server, connection, store):
    meter, paths = Meter(server), server.files(connection, "kv")
    peak, guard = PeakSize(paths), DiskGuard(server)
    begin = meter.read()
    peak.start()
    guard.start()
    script = "insert" if options.rows_per_statement == 1 else "insert-100"
    try:
        outcome = pgbench.run(server, ((script, 1),), options.soak_clients, 1, {"rows": 1, "first": 0},
                              seconds=options.minutes * 60, log_directory=server.directory,
                              options=schema.session(store, "off", options.rows_per_statement))
    except pgbench.PgbenchError:
        if guard.full:
            raise RuntimeError(f"{store}: the disk got full; give it less time (--minutes) or more room (--dir)") from None
        raise
    finally:
        guard.halt.set()
    meter.settle(600, 0.5)
    rest = meter.read()
    rows = outcome.transactions * options.rows_per_statement
    found = int(connection.value("SELECT count(*) FROM kv"))
    if found != rows:
        raise RuntimeError(f"{store}: {found} rows, {rows} were written")
    used, latencies = difference(begin, rest), outcome.latencies
    return {
        "store": store, "rows": rows, "seconds": outcome.seconds, "rate": rows / outcome.seconds,
        "tenths": tenths(outcome.bins, options.rows_per_statement), "longest_gap": longest_gap(outcome.bins),
        "p50": outcome.percentile(0.5), "p99": outcome.percentile(0.99), "p999": outcome.percentile(0.999),
        "max": max(latencies), "pauses": pauses(latencies), "cpu_us": used["cpu_ns"] / 1000 / rows,
        "wal": used["wal"] / rows, "written": used["written"] / rows, "size_peak": peak.finish(), "size": disk_bytes(paths),
        "others_cores": used["others_cores"],
        "series": [(at, rate * options.rows_per_statement) for at, rate in pgbench.series(outcome.bins, 600)],
    }


def pauses(latencies):
    """How many statements took longer than a pause may."""
    return sum(count for micros, count in Counter(latencies).items() if micros > PAUSE_MS * 1000)


def verdicts(record):
    """(what, wanted, found, hit)"""
    first, last = record["tenths"][0], record["tenths"][-1]
    return [("p99.9 of an insert (ms)", f"<= {PAUSE_MS}", record["p999"] / 1000, record["p999"] <= PAUSE_MS * 1000),
            ("last tenth by first tenth", f">= {LAST_TENTH}", last / first, last >= LAST_TENTH * first)]


def text(results, where=""):
    """The part of a page about it."""
    number = report.number
    facts = results.machine
    rows = [[r["store"], number(r["rows"] / 1e6), number(r["rate"]),
             *(number(r[name] / 1000) for name in ("p50", "p99", "p999", "max")), r["pauses"],
             *(number(r[name]) for name in ("longest_gap", "cpu_us", "wal", "written")),
             number(r["size"] / 1e6), number(r["size_peak"] / 1e6)] for r in results.records]
    head = ["store", "million rows", "rows/s", "p50 ms", "p99 ms", "p99.9 ms", "longest ms", f"above {PAUSE_MS} ms",
            "longest time without an answer, s", "CPU us a row", "WAL B a row", "written B a row", "MB at rest", "MB at most"]
    out = (f"## Inserts for {facts.get('minutes', 0):g} minutes\n\n{facts.get('clients')} clients, "
           f"{facts.get('rows_per_statement')} row(s) a statement, uuid keys, values of {facts.get('value_bytes')} B, "
           f"asynchronous commits.\n\n{report.table(head, rows)}\n")
    out += report.table(["store", *(f"tenth {at}" for at in range(1, 11))],
                        [[r["store"], *(number(rate) for rate in r["tenths"])] for r in results.records]) + "\n"
    judged = [[r["store"], what, wanted, number(found), "hit" if hit else "**missed**"]
              for r in results.records if r["store"] == "loosekv" for what, wanted, found, hit in verdicts(r)]
    out += report.table(["store", "what", "wanted", "found", ""], judged, left=2)
    series = {r["store"]: r["series"] for r in results.records}
    report.save(results, "time.svg", svg.lines("Inserts over time", "rows/s", "seconds", series))
    return out + f"\n![throughput over time]({where}time.svg)\n"
