"""The workloads: what each does, on which table, and what one row of it is.

Those with scripts run in pgbench; the others are single statements that this program times. A workload on the `base` table
finds what the ones before it left; one on a `fresh` table makes it, and drops it afterwards.
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    scripts: tuple = ()  # (name, weight)
    statement: str = ""  # with {table}, {rows}, {range_rows}, {first}
    before: tuple = ()  # what the statement needs
    after: tuple = ()  # puts back what it, or what was before it, made
    copy: str = ""  # name of the file that is copied in
    unit: str = "rows"
    rows: int = 1  # of a transaction
    inserts: tuple = ()  # rows that a transaction of each script adds to the base table
    table: str = "base"  # base, fresh, queue, none
    only: str = ""  # the one store that it is run on
    writes: bool = False
    count: str = ""  # of a statement: "rows" or "range_rows", how many rows it handles; "told": what it returns


def _script(name, title, script=None, **more):
    return Workload(name, title, scripts=((script or name, 1),), **more)


def _create_index(name, title, expression):
    return Workload(name, title, statement=f"CREATE INDEX kv_v ON kv ({expression})", after=("DROP INDEX kv_v",),
                    count="rows", writes=True)


def _by_other(name, title, other):
    """Some 500 of a million rows for each of a hundred values, none near another one."""
    value = "(get_byte(v, 8) * 8 + get_byte(v, 9) / 32)"
    return Workload(
        name, title, count="told",
        before=(f"CREATE INDEX kv_other ON kv ({value})", "ANALYZE kv", "SET enable_seqscan = off", f"SET enable_{other} = off"),
        statement="SELECT count(length(v)) FROM generate_series({first} % 1900, {first} % 1900 + 99) wanted, LATERAL "
                  f"(SELECT v FROM kv WHERE {value} = wanted OFFSET 0) found",
        after=("RESET enable_seqscan", f"RESET enable_{other}", "DROP INDEX kv_other"))


def _ycsb(letter, title, *scripts, inserts=(0, 0), writes=True):
    return Workload(f"ycsb-{letter}", f"YCSB {letter.upper()}: {title}", scripts=scripts, unit="operations",
                    inserts=inserts, writes=writes)


ORDERED = "SELECT sum(length(v)) FROM (SELECT v FROM kv {where}ORDER BY k{limit}) rows"

WORKLOADS = {workload.name: workload for workload in (
    _script("nothing", "no table: one key and value", table="none"),
    _script("nothing-100", "no table: 100 keys and values", table="none", rows=100),
    _script("commit", "no table: one key and value, and a commit", table="none"),
    Workload("load", "load of the table by COPY", copy="load", table="base", writes=True, count="rows"),
    _script("get", "get, hit"),
    _script("get-at", "a row by its place, without an index", only="heap"),
    _script("miss", "get, miss"),
    _script("any-100", "= ANY of 100 keys", rows=100),
    _script("limit-100", "ORDER BY k LIMIT 100", unit="statements"),
    # Where keys are consecutive.
    _script("between-10", "k BETWEEN, 10 rows", unit="statements"),
    _script("between-100", "k BETWEEN, 100 rows", unit="statements"),
    Workload("range", "long ordered range", count="range_rows",
             statement=ORDERED.format(where="WHERE k >= key({first}) ", limit=" LIMIT {range_rows}")),
    Workload("read-all", "ordered read of all", count="rows", statement=ORDERED.format(where="", limit="")),
    Workload("count", "count(*)", count="rows", statement="SELECT count(*) FROM kv"),
    Workload("scan", "full scan", count="rows", statement="SELECT sum(length(v)) FROM kv"),
    _by_other("by-other-bitmap", "rows by another index, bitmap", "indexscan"),
    _by_other("by-other-index", "rows by another index, one by one", "bitmapscan"),
    _ycsb("c", "100 % read", ("ycsb-read", 1), inserts=(0,), writes=False),
    _ycsb("b", "95 % read, 5 % update", ("ycsb-read", 95), ("ycsb-update", 5)),
    _ycsb("a", "50 % read, 50 % update", ("ycsb-read", 50), ("ycsb-update", 50)),
    _ycsb("f", "50 % read, 50 % read-modify-write", ("ycsb-read", 50), ("ycsb-modify", 50)),
    _ycsb("d", "95 % read of the latest, 5 % insert", ("ycsb-latest", 95), ("ycsb-insert", 5), inserts=(0, 1)),
    _ycsb("e", "95 % scan, 5 % insert", ("ycsb-scan", 95), ("ycsb-insert", 5), inserts=(0, 1)),
    _script("insert", "insert", inserts=(1,), writes=True),
    _script("insert-100", "insert of 100 rows", rows=100, inserts=(100,), writes=True),
    _script("upsert", "upsert", writes=True),
    _script("upsert-100", "upsert of 100 rows", rows=100, writes=True),
    _script("update", "update", writes=True),
    _script("queue", "queue: insert and delete", table="queue", writes=True),
    # Rows were inserted in the order of the numbers that their values begin with: heap hands them to the sort in order.
    _create_index("create-index", "CREATE INDEX in the order of insertion", "substr(v, 1, 8)"),
    _create_index("create-index-drawn", "CREATE INDEX in an order of its own", "substr(v, 9, 8)"),
    Workload("copy-random", "COPY, random keys", copy="load", table="fresh", writes=True, count="rows"),
    Workload("copy-sorted", "COPY, sorted keys", copy="sorted", table="fresh", writes=True, count="rows"),
    Workload("insert-select", "INSERT ... SELECT", table="fresh", writes=True, count="rows",
             statement="INSERT INTO fresh SELECT key(n), value(n) FROM generate_series(1, {rows}) n"),
)}
