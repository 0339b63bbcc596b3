"""Where a full scan begins to win over an index: in time, and by the planner's costs.

For each part of the table a query is run through the index, through a bitmap, and through a full scan, and once as the planner
likes. It is right as long as its choice is not much slower than the fastest.
"""
import re
import statistics

import plan
from server import Server

PARTS = (0.0001, 0.001, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8)
WAYS = {
    "index": "SET enable_seqscan = off; SET enable_bitmapscan = off",
    "bitmap": "SET enable_seqscan = off; SET enable_indexscan = off",
    "full scan": "SET enable_indexscan = off; SET enable_bitmapscan = off",
    "planner": "SELECT",
}
INDEXES = {"secondary index": "n", "primary key": "k"}


def load(connection, store, rows):
    connection.rows(f"CREATE TABLE t_{store} (k bigint PRIMARY KEY, n int, v text) USING {store}")
    # Odd multipliers are permutations of the numbers below a power of two; keys and n are in different random orders.
    connection.rows(f"INSERT INTO t_{store} SELECT (i * 1103515245::bigint) & 1073741823, i, repeat(md5(i::text), 6) "
                    f"FROM (SELECT (i * 7919::bigint) % {rows} AS i FROM generate_series(1, {rows}) i) i")
    connection.rows(f"CREATE INDEX ON t_{store} (n)")
    connection.rows(f"VACUUM ANALYZE t_{store}")


def measure(connection, store, column, below, way, rounds):
    """Median milliseconds, the cost, and the node that reads the table."""
    connection.rows("RESET ALL; SET max_parallel_workers_per_gather = 0")
    connection.rows(WAYS[way])
    times = []
    for _ in range(rounds):
        lines = [row[0] for row in connection.rows(
            f"EXPLAIN (ANALYZE, TIMING off) SELECT count(v) FROM t_{store} WHERE {column} < {below}")]
        times.append(float(re.search(r"Execution Time: ([\d.]+)", lines[-1])[1]))
    scan = next(line for line in lines if " on t_" in line)
    cost = float(re.search(r"cost=[\d.]+\.\.([\d.]+)", lines[0])[1])
    return statistics.median(times), cost, re.search(r"(\w+(?: \w+)*) Scan", scan)[1].replace("Bitmap Heap", "Bitmap")


def run(options):
    settings = {**plan.COMMON, **plan.REGIMES["memory"].settings}
    with Server(options.port, settings, options.dir) as server:
        connection = server.connect()
        connection.rows("CREATE EXTENSION loosekv")
        for store in ("heap", "loosekv"):
            load(connection, store, options.rows)
        print(f"{options.rows} rows, medians of {options.rounds}: ms (cost)")
        worst = {}
        for name, column in INDEXES.items():
            for store in ("heap", "loosekv"):
                print(f"\n{store}, {name}\n\n| part | " + " | ".join(WAYS) + " | chosen | planner / fastest |")
                print("|---|" + "---|" * (len(WAYS) + 2))
                for part in PARTS:
                    most = options.rows if column == "n" else 1 << 30
                    cells = {way: measure(connection, store, column, int(most * part), way, options.rounds) for way in WAYS}
                    fastest = min(ms for ms, _, _ in cells.values())
                    loss = cells["planner"][0] / fastest
                    worst[store] = max(worst.get(store, 0), loss)
                    print(f"| {part:.2%} | " + " | ".join(f"{ms:.1f} ({cost:.0f})" for ms, cost, _ in cells.values())
                          + f" | {cells['planner'][2]} | {loss:.2f} |", flush=True)
        print("\nAt the worst the planner's choice takes " + ", ".join(f"{loss:.1f} x the fastest on {store}" for store, loss in worst.items()))
