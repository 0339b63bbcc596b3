"""What loosekv has to reach beside heap + btree, and whether results say it does."""
from dataclasses import dataclass

import plan

MEMORY, COLD, FAR = "memory/uuid/256/none", "cold/uuid/256/none", "far/uuid/100/none"
SEQUENTIAL, ZSTD, COLD_ZSTD = "memory/bigint-seq/256/none", "memory/uuid/256/zstd", "cold/uuid/256/zstd"


@dataclass(frozen=True)
class Target:
    group: str
    what: str
    workload: str
    measure: str  # a ratio of `rate`, `written`, `size` by heap's; or `peak`: the largest size by the one at rest
    bound: float
    at_most: bool = False


def _speed(group, what, workload, bound):
    return Target(group, what, workload, "rate", bound)


def _bytes(group, what, workload, bound):
    return Target(group, f"{what}: bytes written", workload, "written", bound, True)


TARGETS = (
    _speed(FAR, "insert of 100 rows", "insert-100", 5),
    _bytes(FAR, "insert of 100 rows", "insert-100", 1 / 8),

    _speed(COLD, "upsert", "upsert", 2.5),
    _speed(COLD, "upsert of 100 rows", "upsert-100", 6),
    _bytes(COLD, "upsert", "upsert", 1 / 10),
    _bytes(COLD, "upsert of 100 rows", "upsert-100", 1 / 10),
    _bytes(COLD_ZSTD, "upsert", "upsert", 1 / 15),
    _bytes(COLD_ZSTD, "upsert of 100 rows", "upsert-100", 1 / 15),
    _speed(COLD, "insert", "insert", 1.2),
    _speed(COLD, "insert of 100 rows", "insert-100", 1.5),
    _bytes(COLD, "insert", "insert", 0.6),
    _bytes(COLD, "insert of 100 rows", "insert-100", 0.6),
    _speed(COLD, "ORDER BY k LIMIT 100", "limit-100", 6),
    _speed(COLD, "YCSB E", "ycsb-e", 6),
    _speed(COLD, "long ordered range", "range", 30),
    _speed(COLD, "get", "get", 1.4),
    _speed(COLD_ZSTD, "get", "get", 2),
    _speed(COLD, "miss", "miss", 1),
    _speed(COLD, "YCSB A", "ycsb-a", 1.5),
    _speed(COLD, "YCSB F", "ycsb-f", 1.5),
    _speed(COLD, "YCSB B", "ycsb-b", 1.3),
    _speed(COLD, "YCSB C", "ycsb-c", 1.3),
    _speed(COLD, "YCSB D", "ycsb-d", 1.3),

    _speed(MEMORY, "get", "get", 1),
    _speed(MEMORY, "miss", "miss", 1),
    _speed(MEMORY, "insert", "insert", 1.1),
    _speed(MEMORY, "insert of 100 rows", "insert-100", 1.3),
    _speed(MEMORY, "upsert", "upsert", 1.3),
    _speed(MEMORY, "upsert of 100 rows", "upsert-100", 1.3),
    _speed(MEMORY, "ORDER BY k LIMIT 100", "limit-100", 1.8),
    _speed(MEMORY, "long ordered range", "range", 4),
    _speed(MEMORY, "COPY, random keys", "copy-random", 1.3),
    _speed(MEMORY, "COPY, sorted keys", "copy-sorted", 0.9),
    _speed(SEQUENTIAL, "insert", "insert", 0.9),
    _speed(SEQUENTIAL, "insert of 100 rows", "insert-100", 0.9),
    _speed(MEMORY, "count(*)", "count", 0.8),
    _speed(MEMORY, "full scan", "scan", 0.8),

    Target(MEMORY, "size on disk after a random load", "load", "size", 0.8, True),
    Target(ZSTD, "size on disk after a random load", "load", "size", 0.45, True),
    Target(MEMORY, "largest size during a load, by size at rest", "load", "peak", 1.6, True),
)
FLOOR = 0.8  # for every workload in memory


@dataclass(frozen=True)
class Verdict:
    group: str
    what: str
    wanted: str
    found: float | None
    hit: bool | None


def _main_cell(results, group, workload):
    """Of a workload's cells the one with the plan's usual clients, which it has first, and asynchronous commits; in other forms, the first
    one that was run."""
    planned = [cell.id for other in plan.long() if other.id == group for cell in other.cells if cell.workload == workload]
    measured = [cell for cell in results.cells(group) if cell.split("/")[0] == workload and cell.endswith("/off")]
    return next((cell for cell in (*planned, *measured) if cell in measured), None)


def _found(results, target):
    cell = _main_cell(results, target.group, target.workload)
    if cell is None:
        return None
    if target.measure == "peak":
        peak, rest = (results.median(target.group, cell, "loosekv", name) for name in ("size_peak", "size"))
        return peak / rest if rest else None
    return results.ratio(target.group, cell, target.measure)


def judge(results):
    verdicts = []
    for target in TARGETS:
        found = _found(results, target)
        hit = None if found is None else found <= target.bound if target.at_most else found >= target.bound
        sign = "<=" if target.at_most else ">="
        verdicts.append(Verdict(target.group, target.what, f"{sign} {target.bound:.3g} x", found, hit))
    slow = below_floor(results)
    if slow is not None:
        worst = min((ratio for _, _, ratio in slow), default=None)
        measured = [ratio for ratio in _memory_ratios(results).values()]
        verdicts.append(Verdict("memory", "every workload", f">= {FLOOR} x", worst or min(measured), not slow))
    return verdicts


def _memory_ratios(results):
    found = {}
    for group in results.groups():
        if group.startswith("memory/"):
            for cell in results.cells(group):
                ratio = results.ratio(group, cell, "rate")
                if ratio is not None:
                    found[group, cell] = ratio
    return found


def below_floor(results):
    """Cells in memory that are slower than the floor for all; None when nothing was measured in memory."""
    ratios = _memory_ratios(results)
    if not ratios:
        return None
    return [(group, cell, ratio) for (group, cell), ratio in ratios.items() if ratio < FLOOR]
