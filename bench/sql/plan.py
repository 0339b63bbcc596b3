"""What is run: groups of cells. A group is a server with certain settings and a pair of tables; a cell is one workload with a
number of clients and a setting of synchronous_commit.

The long form takes of the whole product what tells something: every workload on uuid keys and 256-byte values in memory and
beyond it, the other keys and values with the workloads that depend on them. Options narrow or widen it.
"""
from dataclasses import dataclass, field, replace

MB = 1 << 20
# The same for both sides in every group. Autovacuum would come in the midst of some cells and not of others: what has been
# written is vacuumed after each, and that is counted apart.
COMMON = {
    "max_connections": "50",
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
    "jit": "off",
    "work_mem": "16MB",
    "maintenance_work_mem": "64MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "5min",
    "autovacuum": "off",
}


@dataclass(frozen=True)
class Regime:
    name: str
    title: str
    settings: dict
    limit: int = 0  # bytes of the control group; 0: none

    def shared_loosekv(self):
        """Bytes that loosekv's shared memory takes of the limit."""
        parts = ("loosekv.shared_memory", "loosekv.row_cache")
        return sum(int(self.settings[part].removesuffix("MB")) for part in parts if part in self.settings) * MB


@dataclass(frozen=True)
class Cell:
    workload: str
    clients: int = 1
    sync: str = "off"

    @property
    def id(self):
        return f"{self.workload}/{self.clients}/{self.sync}"


@dataclass(frozen=True)
class Amounts:
    """How much work a cell is: transactions for writes, so that both sides do the same; seconds for the rest, and for the queue,
    which holds the same rows whatever was done."""
    transactions: dict
    seconds: float
    mixed_seconds: float
    repeats: int
    range_rows: int
    warmup: float  # share of the cell's own work
    patience: float = 600.0
    quiet: float = 0.5
    # The same after writes: longer than the background waits before it tidies what was written.
    quiet_written: float = 5.0
    # Seconds for which a loaded table's size does not change when it is at rest: longer than the background waits.
    still: float = 30.0


@dataclass(frozen=True)
class Group:
    regime: Regime
    key: str
    value: int
    compression: str
    rows: int
    amounts: Amounts
    cells: tuple = field(default=())

    @property
    def id(self):
        return f"{self.regime.name}/{self.key}/{self.value}/{self.compression}"

    @property
    def title(self):
        packed = "" if self.compression == "none" else f", {self.compression}"
        return f"{self.regime.title}, {self.key} keys, values of {self.value} B{packed}"

    def settings(self):
        return {**COMMON, **self.regime.settings, "loosekv.compression": self.compression}


# Memory of loosekv counts within the limits.
REGIMES = {
    "memory": Regime("memory", "in memory", {"shared_buffers": "3GB", "loosekv.shared_memory": "1024MB"}),
    "cold": Regime("cold", "cold: 256 MB of buffers, 512 MB for the cluster",
                   {"shared_buffers": "256MB", "loosekv.shared_memory": "176MB", "loosekv.index_memory": "110MB",
                    "loosekv.row_cache": "32MB", "loosekv.memtable_size": "8MB"},
                   512 * MB),
    "far": Regime("far", "index far beyond memory: 64 MB of buffers, 192 MB for the cluster",
                  {"shared_buffers": "64MB", "loosekv.shared_memory": "48MB", "loosekv.row_cache": "0MB",
                   "maintenance_work_mem": "8MB", "max_wal_size": "2GB"}, 192 * MB),
}
SHORT_REGIMES = {
    "memory": replace(REGIMES["memory"], settings={"shared_buffers": "128MB", "loosekv.shared_memory": "64MB",
                                                   "loosekv.memtable_size": "1MB"}),
    "cold": Regime("cold", "cold, tiny: 16 MB of buffers, 96 MB for the cluster",
                   {"shared_buffers": "16MB", "loosekv.shared_memory": "32MB", "loosekv.row_cache": "2MB",
                    "loosekv.memtable_size": "1MB"}, 96 * MB),
}

WRITES = ("insert", "insert-100", "upsert", "upsert-100", "update")
READS = ("get", "get-at", "miss", "any-100", "limit-100")
BETWEEN = ("between-10", "between-100")
BY_OTHER = ("by-other-bitmap", "by-other-index")
SINGLE = ("range", "read-all", "count", "scan", "create-index", "create-index-drawn", "copy-random", "copy-sorted",
          "insert-select")
# In the order that YCSB's authors recommend; they load anew before E.
YCSB = ("ycsb-a", "ycsb-b", "ycsb-c", "ycsb-f", "ycsb-d", "ycsb-e")
FLOORS = ("nothing", "nothing-100")
ALL = (*FLOORS, "commit", "load", *READS, *SINGLE[:4], *BY_OTHER, *YCSB, *WRITES, "queue", *SINGLE[4:])
# What depends on the kind of key, on the size of the value and on compression.
CORE = ("load", "get", "miss", "limit-100", "range", "read-all", "scan", "insert", "insert-100", "upsert", "upsert-100",
        "copy-random", "copy-sorted")
COLD = ("load", *READS, "range", *YCSB, "insert", "insert-100", "upsert", "upsert-100", "update", "scan")
BY_CLIENTS = ("get", "limit-100", "insert", "insert-100", "upsert")
BY_SYNC = ("insert", "insert-100", "upsert")
SYNC_SHARE = 0.2  # of the transactions, where each waits for the disk
ONE_CLIENT = (*FLOORS, "load", *SINGLE, *BY_OTHER)

MEMORY_AMOUNTS = Amounts(
    transactions={"insert": 100_000, "insert-100": 2_500, "upsert": 200_000, "upsert-100": 3_000, "update": 200_000},
    seconds=10, mixed_seconds=15, repeats=3, range_rows=200_000, warmup=0.1)
COLD_AMOUNTS = replace(
    MEMORY_AMOUNTS,
    transactions={"insert": 200_000, "insert-100": 3_000, "upsert": 200_000, "upsert-100": 3_000, "update": 200_000},
    seconds=20, mixed_seconds=30, repeats=2, range_rows=50_000, warmup=0.2)
FAR_AMOUNTS = replace(COLD_AMOUNTS, transactions={"insert-100": 6_000, "upsert": 100_000})
SHORT_AMOUNTS = Amounts(
    transactions={"insert": 3_000, "insert-100": 100, "upsert": 3_000, "upsert-100": 60, "update": 3_000, "queue": 500,
                  "nothing": 3_000, "nothing-100": 100, "commit": 3_000, "get": 3_000, "get-at": 3_000, "miss": 3_000,
                  "any-100": 100, "limit-100": 300, "between-10": 1_000,
                  **{f"ycsb-{letter}": 1_500 for letter in "abcdf"}, "ycsb-e": 300},
    seconds=1, mixed_seconds=1, repeats=1, range_rows=5_000, warmup=0.0, patience=60.0, quiet=0.1, quiet_written=0.1, still=0.0)


def _cells(names, clients, more_clients=(), syncs=()):
    """Each workload with the usual clients; then those that are asked for with other numbers and with synchronous commits."""
    cells = []
    for name in names:
        if name in ONE_CLIENT:
            cells.append(Cell(name))
            continue
        cells.append(Cell(name, clients))
        cells += [Cell(name, other) for other in more_clients if name in BY_CLIENTS and other != clients]
        cells += [Cell(name, other, "on") for other in syncs if name in BY_SYNC]
    return tuple(cells)


def long():
    memory, cold, far = REGIMES["memory"], REGIMES["cold"], REGIMES["far"]

    def group(regime, key, value, compression, rows, amounts, cells):
        return Group(regime, key, value, compression, rows, amounts, cells)

    core = _cells(CORE, 2)
    return [
        group(memory, "uuid", 256, "none", 1_000_000, MEMORY_AMOUNTS, _cells(ALL, 2, (1, 8), (1, 8))),
        group(memory, "bigint-seq", 256, "none", 1_000_000, MEMORY_AMOUNTS, core + _cells(BETWEEN, 2)),
        group(memory, "bigint-random", 256, "none", 1_000_000, MEMORY_AMOUNTS, core),
        group(memory, "text16", 256, "none", 1_000_000, MEMORY_AMOUNTS, core),
        group(memory, "uuid", 100, "none", 1_000_000, MEMORY_AMOUNTS, core),
        group(memory, "uuid", 1024, "none", 1_000_000, MEMORY_AMOUNTS, core),
        group(memory, "uuid", 256, "zstd", 1_000_000, MEMORY_AMOUNTS, core),
        group(cold, "uuid", 256, "none", 5_000_000, COLD_AMOUNTS, _cells(COLD, 8, (2,))),
        group(cold, "uuid", 256, "zstd", 5_000_000, COLD_AMOUNTS, _cells(COLD, 8)),
        group(far, "uuid", 100, "none", 8_000_000, FAR_AMOUNTS, _cells(("load", "get", "miss", "insert-100", "upsert"), 8)),
    ]


def short():
    memory, cold = SHORT_REGIMES["memory"], SHORT_REGIMES["cold"]
    few = ("load", "get", "limit-100", "upsert-100", "insert-100")
    return [
        Group(memory, "uuid", 256, "none", 20_000, SHORT_AMOUNTS, _cells(ALL, 2)),
        Group(memory, "bigint-seq", 100, "zstd", 20_000, SHORT_AMOUNTS,
              (Cell("load"), Cell("insert", 1, "on"), Cell("range"), Cell("between-10", 1))),
        Group(cold, "uuid", 256, "none", 100_000, replace(SHORT_AMOUNTS, patience=120.0), _cells(few, 2)),
    ]


def wide():
    """The whole product in memory, and cold with the usual rows."""
    groups = []
    for regime, rows, amounts, names in ((REGIMES["memory"], 1_000_000, MEMORY_AMOUNTS, ALL),
                                         (REGIMES["cold"], 5_000_000, COLD_AMOUNTS, COLD)):
        for key in ("uuid", "bigint-random", "bigint-seq", "text16"):
            for value in (256, 100, 1024):
                for compression in ("none", "zstd"):
                    cells = tuple(cell if cell.workload in ONE_CLIENT else replace(cell, clients=clients, sync=sync)
                                  for cell in _cells(names, 2) for clients in (1, 2, 8) for sync in ("off", "on"))
                    groups.append(Group(regime, key, value, compression, rows, amounts, tuple(dict.fromkeys(cells))))
    return groups


FORMS = {"short": short, "long": long, "wide": wide}
ROUNDS = {"short": 1, "long": 3, "wide": 3}
