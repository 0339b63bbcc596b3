#!/usr/bin/env python3
"""Soak campaign: the mixed load for a while; memory, files, disk and what waits to be reclaimed stay flat.

    soak.py [MINUTES [SEED]]
"""
import os
import random
import sys
import time

import lib

SAMPLE = """SELECT sum(memtable_bytes), sum(index_bytes), sum(run_rows + memtable_rows), sum(pg_relation_size(relation)), sum(runs),
    sum(waiting_bytes) FROM loosekv.stats"""
# What was retired stays in one of these until no reader is left that may look at it.
MEMORY = "SELECT part || '|' || bytes FROM loosekv.memory WHERE part NOT IN ('free', 'kept for emergencies', 'all')"
# Bytes by which a figure may grow beside its share: an extent of a large run more or less, the memtables that may wait for their
# flush, a chunk of the heap for each table.
SLACK = {"waiting for readers, bytes": 4 << 20, "memtables, bytes": 8 << 20, "memtables in shared memory, bytes": 8 << 20}


def resident(pid):
    """Private memory of a process in kB: what it shares with the others is not its own."""
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        return sum(int(line.split()[1]) for line in rollup if line.startswith(("Private_Clean", "Private_Dirty")))


def sample(server):
    """Figures by name."""
    memtables, index, versions, file, runs, waiting = (int(float(n)) for n in server.sql(SAMPLE).split("|"))
    parts = {f"{part} in shared memory, bytes": int(n) for part, n in (line.split("|") for line in server.sql(MEMORY).splitlines())}
    memory, files = [], []
    for pid, title in server.processes().items():
        try:
            if "campaign" in title or "[local]" in title or "loosekv" in title:
                memory.append(resident(pid))
                files.append(len(os.listdir(f"/proc/{pid}/fd")))
        except OSError:
            pass
    return {"memory of the largest process, kB": max(memory, default=0), "open files of the busiest process": max(files, default=0),
            "memtables, bytes": memtables, "key index, bytes": index, "row versions": versions, "file, bytes": file, "runs": runs,
            "waiting for readers, bytes": waiting, **parts}


class Steady:
    """A session whose tables do not grow: the load that a soak needs."""

    def __init__(self, number):
        self.number = number

    def __call__(self, rng):
        first = self.number * 10_000
        k, s = first + rng.randrange(3000), rng.randrange(50)
        v = "v" * rng.choice((5, 50, 200, 1000))
        statement = rng.choice((
            f"INSERT INTO @1 VALUES ({k}, {s}, '{v}') ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v, n = @1.n + 1;\n",
            f"UPDATE @1 SET s = {s} WHERE k BETWEEN {k} AND {k} + 10 AND k < {first} + 3000;\n",
            f"DELETE FROM @1 WHERE k BETWEEN {k} AND {k} + 5;\n",
            f"SELECT count(*) FROM @1 WHERE s = {s};\n",
            f"SELECT count(*) FROM @1 WHERE k BETWEEN {k} AND {k} + 200;\n",
            f"INSERT INTO @2 VALUES ('{k % 500}-{self.number}', {s % 2}, '{v}') ON CONFLICT (a, b) DO UPDATE SET v = EXCLUDED.v;\n",
            f"SAVEPOINT a; UPDATE @1 SET v = '{v}' WHERE k = {k}; ROLLBACK TO a;\n",
        ))
        return f"BEGIN;\n{statement.replace('@', 'h')}{statement.replace('@', 'l')}{'ROLLBACK' if rng.random() < 0.05 else 'COMMIT'};\n"


def main(directory, servers):
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else (0.4 if lib.SHORT else 60)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    print(f"soak: seed {seed}", flush=True)
    server = lib.Server(os.path.join(directory, "cluster"), lib.BASE_PORT)
    servers.append(server)
    server.create("max_wal_size = '256MB'", "shared_buffers = '32MB'", "loosekv.memtable_size = '256kB'")
    server.sql(lib.twin_schema())
    load = lib.Load(server, directory, [Steady(i) for i in range(4)] + [lib.checkpoints], seed).start()
    # The first third fills the tables.
    seconds = minutes * 60
    begun, samples = time.monotonic(), []
    while time.monotonic() < begun + seconds:
        time.sleep(max(0.5, seconds / 200))
        if time.monotonic() > begun + seconds / 3:
            samples.append(sample(server))
    load.stop()
    complaints = load.complaints()
    if complaints:
        raise lib.Failure(f"seed {seed}: sessions were told: " + "\n".join(complaints[:10]))
    lib.verify(server)
    half = len(samples) // 2
    grown, figures = [], []
    for name in samples[0]:
        # The upper quartile of each half: what is freed late counts, a single peak does not.
        early, late = (sorted(s[name] for s in part)[len(part) * 3 // 4] for part in (samples[:half], samples[half:]))
        figures.append(f"{name} {early} and {late}")
        slack = 1.25 if minutes >= 5 else 2
        more = SLACK.get(name, 1 << 18 if "shared memory" in name else 2048 * ("kB" in name) + 4)
        if late > early * slack + more:
            grown.append(f"{name}: {early} before, {late} after")
    if grown:
        raise lib.Failure(f"seed {seed}: grows: " + "; ".join(grown))
    return f"{minutes:g} minutes, {sum(s.sent for s in load.sessions)} transactions, second and last third: {', '.join(figures)}; no difference"


if __name__ == "__main__":
    lib.run("soak", main)
