"""Statements of many kinds, each once on heap and once on loosekv in turn: to find what is slow that no workload asks for.

The cases are in survey.sql. Their tables are at rest when the first one begins; those that a case makes itself are as it has left them:
with loosekv a table's latest rows are in memory then, in no run.
"""
import os
import re
import statistics
import time

import plan
from schema import STORES
from server import HERE, Server


class Case:
    """A title, what is done before, and what is timed."""

    def __init__(self, text):
        lines = text.strip().splitlines()
        self.title = lines[0].removeprefix("-- ")
        self.before = [line.removeprefix("--+ ").rstrip(";") for line in lines[1:] if line.startswith("--+ ")]
        self.timed = "\n".join(line for line in lines[1:] if not line.startswith("--"))


def cases():
    """The tables of survey.sql, and its cases."""
    with open(os.path.join(HERE, "survey.sql")) as file:
        tables, *texts = re.split(r"\n\n+(?=-- )", file.read().strip())
    return tables, [Case(text) for text in texts]


def load(connection, tables):
    connection.rows(tables)
    connection.rows("VACUUM ANALYZE")
    connection.rows("CHECKPOINT")


def seconds(connection, case):
    for sql in case.before:
        connection.rows(sql)
    begun = time.monotonic()
    connection.rows(case.timed)
    taken = time.monotonic() - begun
    connection.rows("ROLLBACK")
    connection.rows("RESET ALL")
    return taken


def run(options):
    tables, every = cases()
    settings = {**plan.COMMON, **plan.REGIMES["memory"].settings, "synchronous_commit": "off"}
    with Server(options.port, settings, options.dir) as server:
        server.connect().rows("CREATE EXTENSION loosekv")
        connections = {}
        for store in STORES:
            server.connect().rows(f"CREATE SCHEMA on_{store}")
            connections[store] = server.connect(search_path=f"on_{store}", default_table_access_method=store, client_min_messages="error")
            load(connections[store], tables)
        time.sleep(options.rest)
        print(f"Milliseconds, medians of {options.rounds}.\n\n| statement | heap | loosekv | heap / loosekv | in each round |\n| --- | ---: | ---: | ---: | --- |")
        for case in every:
            if options.only and not re.search(options.only, case.title):
                continue
            taken = {store: [] for store in STORES}
            for number in range(options.rounds):
                for store in STORES if number % 2 == 0 else STORES[::-1]:
                    taken[store].append(seconds(connections[store], case) * 1000)
            heap, loosekv = (statistics.median(taken[store]) for store in STORES)
            ratios = " ".join(f"{one / other:.2f}" for one, other in zip(*taken.values()))
            print(f"| {case.title} | {heap:.1f} | {loosekv:.1f} | {heap / loosekv:.2f} | {ratios} |", flush=True)
