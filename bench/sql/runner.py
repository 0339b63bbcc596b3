"""Runs the cells of a plan: heap and loosekv take turns within each cell, and again for every round.

The order of a group: its server is started, its tables are loaded (which is a cell itself), then the cells follow one
another on these tables. Work of writes is a number of transactions, so both sides end with the same rows; rows are
counted at the end of the group.
"""
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace

import pgbench
import plan
import schema
from connection import SqlError
from meter import Meter, PeakSize, difference, fsync_us
from results import run_key
from schema import STORES
from server import Server, disk_bytes
from statements import explain
from workloads import WORKLOADS

# From loosekv.stats, beside each run: counters as differences, the rest as it is afterwards.
COUNTERS = ("flushes", "compactions", "stalls", "guided_scans", "merged_scans", "gets", "runs_looked_into", "filter_probes")
STATS = (*COUNTERS, "runs", "write_amplification", "index_keys", "index_bytes", "indexed_runs")


class Wrong(Exception):
    """A table does not hold what was written to it."""


@dataclass
class Tables:
    """What one side's tables are expected to hold, and which row numbers are used."""
    rows: int
    first: int = field(init=False)
    expected: int = field(init=False)

    def __post_init__(self):
        self.first = 10 * self.rows
        self.expected = self.rows


class GroupRunner:
    def __init__(self, group, rounds, results, options):
        self.group, self.rounds, self.results, self.options = group, rounds, results, options
        self.done = results.keys()
        self.tables = {store: Tables(group.rows) for store in STORES}
        self.files = {}

    # The group.

    def missing(self):
        return [cell for cell in self.group.cells
                if any(not self._is_done(cell, store, round)
                       for round in range(self._rounds(cell)) for store in self._stores(cell))]

    def _rounds(self, cell):
        return 1 if cell.workload == "load" else self.rounds

    def _is_done(self, cell, store, round):
        return (self.group.id, cell.id, store, round) in self.done

    def _stores(self, cell):
        workload = WORKLOADS[cell.workload]
        return ("none",) if workload.table == "none" else (workload.only,) if workload.only else STORES

    def run(self):
        cells = self.missing()
        if not cells:
            return
        self._say(f"== {self.group.id}: {len(cells)} cells, {self.group.rows} rows")
        self.server = Server(self.options.port, self.group.settings(), self.options.dir)
        try:
            if self.group.regime.limit and not self.server.group.has_memory:
                self._say(f"   NOT RUN: no memory control group: {self.server.group.why}")
                self.results.describe(**{f"not run: {self.group.id}": self.server.group.why})
                return
            self.server.start()
            self.meter = Meter(self.server)
            self._describe()
            schema.create(self.server.connect(), self.group.key, self.group.value)
            self._load()
            for cell in cells:
                if cell.workload != "load":
                    self._run_cell(cell)
            self._count_rows()
        finally:
            self.server.stop()

    def _describe(self):
        settings = self.meter.connection.rows(
            "SELECT name, current_setting(name) FROM pg_settings WHERE source NOT IN ('default', 'override') AND name !~ "
            "'^(lc_|log_|TimeZone|Date|default_text|application|client_enc|unix_|port|listen|data_|hba|ident)' ORDER BY 1")
        limit = f"{self.group.regime.limit >> 20} MB" if self.group.regime.limit else "none"
        self.results.describe(control_groups=self.server.group.describe(),
                              **{f"settings of {self.group.id}": dict(settings, **{"memory limit": limit})})

    def _load(self):
        """Both tables, without a limit: what follows is measured under it."""
        self._make_file("load")
        for store in STORES:
            cell = replace(self.group.cells[0], workload="load", clients=1, sync="off")
            self._connection(store).rows(schema.table(store, self.group.key))
            record = self._measure(cell, store, 0, "kv", lambda store=store: self._copy(store, "kv", "load"))
            if not self._is_done(cell, store, 0) and any(cell.workload == "load" for cell in self.group.cells):
                self._keep(record)
            self._connection(store).rows("ANALYZE kv")
        if not any(WORKLOADS[cell.workload].copy for cell in self.missing() if cell.workload != "load"):
            self._forget_file("load")
        # The sessions that have loaded keep memory, which is no part of what is measured.
        for store in STORES:
            self._connections.pop(store).close()
        self.meter.settle(self.group.amounts.patience, self.group.amounts.quiet)
        self._say("   tables are loaded")

    def _count_rows(self):
        for store in STORES:
            found = int(self._connection(store).value("SELECT count(*) FROM kv"))
            if found != self.tables[store].expected:
                raise Wrong(f"{store}: {found} rows, {self.tables[store].expected} were written")
        self._say("   rows counted: both tables hold what was written")

    # One cell.

    def _run_cell(self, cell):
        workload = WORKLOADS[cell.workload]
        for round in range(self.rounds):
            stores = self._stores(cell)
            for store in stores if round % 2 == 0 else reversed(stores):
                if self._is_done(cell, store, round):
                    continue
                if workload.copy:
                    self._make_file(workload.copy)
                self._limit(store)
                self._keep(self._prepared(workload, cell, store, round))

    def _limit(self, store):
        """The limit holds for what a side uses: while heap runs, loosekv's idle shared memory is not heap's burden."""
        limit = self.group.regime.limit
        if limit:
            self.server.group.limit(limit if store == "loosekv" else limit + self.group.regime.shared_loosekv())

    def _prepared(self, workload, cell, store, round):
        """Makes the workload's table where it has one of its own, warms up, measures, and puts back."""
        connection = self._connection(store)
        table = {"base": "kv", "fresh": "fresh", "queue": "queue", "none": None}[workload.table]
        if workload.table == "fresh":
            connection.rows(schema.table(store, self.group.key, "fresh"))
        elif workload.table == "queue":
            connection.rows(schema.table(store, "bigint-seq", "queue"))
            connection.rows(f"INSERT INTO queue SELECT n, value(n) FROM generate_series(1, {schema.QUEUE_DEPTH}) n")
        if workload.scripts:
            work = self._pgbench(workload, cell, store, round)
        elif workload.copy:
            work = lambda: self._copy(store, table, workload.copy)
        else:
            work = self._statement(workload, store, round)
        try:
            for sql in workload.before:
                connection.rows(sql)
            return self._measure(cell, store, round, table, work)
        finally:
            for sql in workload.after:
                connection.rows(sql)
            if workload.table in ("fresh", "queue"):
                self._check_own(connection, workload)
                connection.rows(f"DROP TABLE {table}")

    def _check_own(self, connection, workload):
        expected = schema.QUEUE_DEPTH if workload.table == "queue" else self.group.rows
        found = int(connection.value(f"SELECT count(*) FROM {workload.table}"))
        if found != expected:
            raise Wrong(f"{workload.name}: {found} rows, {expected} were written")

    def _measure(self, cell, store, round, table, work):
        workload, amounts = WORKLOADS[cell.workload], self.group.amounts
        self.meter.settle(amounts.patience, amounts.quiet, workload.writes)
        paths = self.server.files(self._connection(store), table) if table else []
        fsync = fsync_us(self.server.directory) if cell.sync == "on" else None
        before, peak = self._stats(store, table), PeakSize(paths)
        peak.start()
        begin = self.meter.read()
        outcome = work()
        end = self.meter.read()
        settled = self.meter.settle(amounts.patience, amounts.quiet_written) if workload.writes else True
        if cell.workload == "load":
            self.meter.rest(lambda: disk_bytes(paths), amounts.still, amounts.patience)
        rest = self.meter.read()
        peak, size = peak.finish(), disk_bytes(paths)
        after = self._stats(store, table)
        vacuum = self._vacuum(store, table, rest) if workload.writes and workload.table == "base" else None
        return self._record(cell, store, round, outcome, difference(begin, end), difference(begin, rest), {
            "vacuum_us": vacuum and vacuum["cpu_ns"] / 1000 / outcome["rows"],
            "size": size, "size_peak": peak, "fsync_us": fsync, "settled": settled,
            "stats": {name: after[name] - (before.get(name, 0) if name in COUNTERS else 0) for name in after},
        })

    def _vacuum(self, store, table, begin):
        """What the next cell needs not pay for; statistics are taken once, after the load."""
        self._connection(store).rows(f"VACUUM {table}")
        self.meter.settle(self.group.amounts.patience, self.group.amounts.quiet)
        return difference(begin, self.meter.read())

    def _record(self, cell, store, round, outcome, run, rest, sizes):
        workload = WORKLOADS[cell.workload]
        rows = outcome["rows"]
        whole = rest if workload.writes else run
        return {
            "group": self.group.id, "group_title": self.group.title, "cell": cell.id, "store": store, "round": round,
            "workload": cell.workload, "title": workload.title, "unit": workload.unit, "clients": cell.clients,
            "sync": cell.sync, "row_bytes": self.row_bytes(), "base_rows": self.group.rows,
            "rows": rows, "seconds": outcome["seconds"], "rate": rows / outcome["seconds"],
            "p50": outcome["p50"], "p99": outcome["p99"], "p999": outcome["p999"], "max": outcome["max"],
            "cpu_us": whole["cpu_ns"] / 1000 / rows, "cpu_us_run": run["cpu_ns"] / 1000 / rows,
            "background_us": {kind: ns / 1000 / rows for kind, ns in whole["kinds_ns"].items() if ns},
            "wal": whole["wal"] / rows, "written": whole["written"] / rows, "read": whole["read"] / rows,
            "written_bounds": {name: bytes / rows for name, bytes in whole["written_bounds"].items()},
            "settle_seconds": rest["seconds"] - run["seconds"], "others_cores": run["others_cores"],
            "series": outcome.get("series"), "plan": outcome.get("plan"),
            # A label may hold the cells of several runs.
            "run": " ".join(sys.argv[1:]), "date": time.strftime("%Y-%m-%d"), "round_trip_us": self.options.round_trip_us,
            **sizes,
        }

    def row_bytes(self):
        return {"bigint-seq": 8, "bigint-random": 8, "uuid": 16, "text16": 17}[self.group.key] + self.group.value

    def _keep(self, record):
        self.results.add(record)
        self.done.add(run_key(record))
        self._say(f"   {record['cell']:24} {record['store']:8} round {record['round'] + 1}: {record['rate']:>11,.0f} "
                  f"{record['unit']}/s, {record['cpu_us']:8.2f} us of CPU, {record['written']:9,.0f} B written, "
                  f"p99.9 {record['p999'] / 1000:.2f} ms")

    # How work is done. Each gives rows, seconds, percentiles of the latency.

    def _pgbench(self, workload, cell, store, round):
        amounts, tables = self.group.amounts, self._numbers(workload, store)
        transactions = amounts.transactions.get(workload.name)
        if transactions and cell.sync == "on":
            transactions = int(transactions * plan.SYNC_SHARE)
        seconds = None if transactions else amounts.mixed_seconds if workload.name.startswith("ycsb") else amounts.seconds
        options = schema.session(store, cell.sync, workload.rows)
        variables = {"rows": self.group.rows}
        if workload.only == "heap":
            variables["pages"], variables["items"] = self._connection(store).rows(
                "SELECT relpages, floor(reltuples / relpages)::int FROM pg_class WHERE oid = 'kv'::regclass")[0]

        def once(share, seed):
            count = transactions and max(cell.clients, int(transactions * share))
            outcome = pgbench.run(
                self.server, workload.scripts, cell.clients, seed, {**variables, "first": tables.first},
                seconds=seconds and max(1, seconds * share), transactions=count, options=options)
            if any(workload.inserts) or workload.table == "queue":
                tables.first += (outcome.most_of_a_client + 2) * cell.clients * workload.rows
            if workload.inserts:
                tables.expected += sum(count * workload.inserts[script] for script, count in outcome.by_script.items())
            return outcome

        if amounts.warmup:
            once(amounts.warmup, 1000 + round)
            if not workload.writes:
                # A table may be put in order when it is read in order for the first time.
                self.meter.settle(amounts.patience, amounts.quiet_written, False)

        def work():
            outcome = once(1, round + 1)
            return {"rows": outcome.transactions * workload.rows, "seconds": outcome.seconds,
                    **quantiles(outcome.latencies), "max": max(outcome.latencies),
                    "series": pgbench.series(outcome.bins) if workload.writes and workload.inserts else None,
                    "plan": explain(self._connection(store), workload.scripts) if round == 0 else None}
        return work

    def _numbers(self, workload, store):
        """Of the table that the workload is on. The queue is made anew each time, and no table has none."""
        return self.tables[store] if workload.table == "base" else Tables(schema.QUEUE_DEPTH)

    def _copy(self, store, table, name):
        begun = time.perf_counter()
        self._connection(store).copy_in(f"COPY {table} FROM STDIN (FORMAT binary)", self.files[name])
        return self._timed([time.perf_counter() - begun], self.group.rows)

    def _statement(self, workload, store, round):
        amounts, connection = self.group.amounts, self._connection(store)
        rows = {"rows": self.tables[store].expected if workload.table == "base" else self.group.rows,
                "range_rows": amounts.range_rows}
        # The same for both sides.
        starts = [1 + (round * amounts.repeats + repeat) * 7919 % self.group.rows
                  for repeat in range(1 if workload.writes else amounts.repeats)]
        if workload.name == "range":
            starts = [self._start_of_range(store, start) for start in starts]

        def work():
            times, told = [], 0
            for start in starts:
                sql = workload.statement.format(first=start, rows=self.group.rows, range_rows=amounts.range_rows)
                begun = time.perf_counter()
                found = connection.rows(sql)
                times.append(time.perf_counter() - begun)
                told += int(found[0][0]) if workload.count == "told" else rows[workload.count]
            plan = explain(connection, (), sql) if round == 0 and not workload.writes else None
            return {**self._timed(times, told), "plan": plan}
        return work

    def _start_of_range(self, store, number):
        """A row number from there on whose key is in the lower half, so that a long range fits behind it; else the first."""
        found = self._connection(store).value(
            f"SELECT n FROM generate_series({number}::bigint, {number} + 200) n WHERE key(n) < "
            f"(SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY key(m)) FROM generate_series(1, {self.group.rows}, "
            f"greatest(1, {self.group.rows} / 1000)) m) LIMIT 1")
        return int(found or 1)

    def _timed(self, times, rows):
        micros = Counter(int(seconds * 1e6) for seconds in times)
        return {"rows": rows, "seconds": sum(times), **quantiles(micros), "max": max(micros)}

    # Small things.

    def _connection(self, store):
        if not hasattr(self, "_connections"):
            self._connections = {}
        if store not in self._connections:
            self._connections[store] = self.server.connect(search_path=schema.search_path(store))
        return self._connections[store]

    def _stats(self, store, table):
        if store != "loosekv" or not table:
            return {}
        columns = ", ".join(STATS)
        try:
            row = self._connection(store).rows(f"SELECT {columns} FROM loosekv.table_stats('{table}')")[0]
        except SqlError:
            return {}
        return {name: float(value or 0) for name, value in zip(STATS, row)}

    def _make_file(self, name):
        """What COPY loads, in a file outside of the cluster's memory."""
        if name in self.files:
            return
        order = "" if name == "load" else " ORDER BY 1"
        path = os.path.join(self.server.directory, f"{name}.copy")
        if self.server.group.has_memory and self.group.regime.limit:
            self.server.group.limit(None)
        with open(path, "wb") as file:
            subprocess.run(["psql", "-X", "-q", "-c",
                            f"COPY (SELECT key(n) AS k, value(n) FROM generate_series(1, {self.group.rows}) n{order}) "
                            "TO STDOUT (FORMAT binary)"],
                           env=self.server.environment(search_path="bench"), stdout=file, check=True)
        self.files[name] = path

    def _forget_file(self, name):
        os.unlink(self.files.pop(name))

    def _say(self, text):
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def quantiles(counts):
    return {name: pgbench.percentile(counts, share) for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))}


def run(groups, rounds, results, options):
    begun = time.monotonic()
    for group in groups:
        GroupRunner(group, rounds, results, options).run()
    busy = [record["others_cores"] for record in results.records]
    if busy:
        results.describe(others_cores_median=round(statistics.median(busy), 2), others_cores_most=round(max(busy), 2))
    print(f"{time.strftime('%H:%M:%S')} done in {time.monotonic() - begun:.0f} s", flush=True)
