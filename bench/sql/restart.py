"""How long a table's key index is not whole after a restart, with pages of keys and without, and what those pages take.

The server is stopped after a checkpoint, what the kernel has of its files is dropped where that is allowed, and it is started
again. Then one row is got, which opens the table, and from there the time runs until the index has all keys.
"""
import statistics
import time

import plan
import schema
from server import Server

VARIANTS = [(compression, pages) for compression in ("none", "zstd") for pages in ("on", "off")]
PATIENCE = 600


def load(connection, options):
    connection.rows("CREATE EXTENSION loosekv")
    connection.rows(schema.functions("uuid", options.value))
    for compression, pages in VARIANTS:
        table = f"kv_{compression}_{pages}"
        connection.rows(f"CREATE TABLE {table} (k uuid PRIMARY KEY, v bytea NOT NULL) USING loosekv "
                        f"WITH (loosekv.compression = {compression}, loosekv.key_pages = {pages})")
        connection.rows(f"INSERT INTO {table} SELECT bench.key(n), bench.value(n) FROM generate_series(1, {options.rows}) n")
        connection.rows(f"SELECT loosekv.compact('{table}')")
    connection.rows("CHECKPOINT")


def drop_caches():
    """False: only the superuser may."""
    try:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")
    except OSError:
        return False
    return True


def measure(connection, table, rows):
    """Milliseconds of the first get, and seconds until the index is whole."""
    begun = time.monotonic()
    connection.rows(f"SELECT v FROM {table} WHERE k = bench.key(1)")
    first = time.monotonic() - begun
    while (keys := int(connection.rows(f"SELECT index_keys FROM loosekv.table_stats('{table}')")[0][0])) < rows:
        if time.monotonic() - begun > PATIENCE:
            raise RuntimeError(f"{table}: {keys} of {rows} keys in the index after {PATIENCE} s")
        time.sleep(0.01)
    return first * 1000, time.monotonic() - begun


def run(options):
    settings = {**plan.COMMON, **plan.REGIMES["memory"].settings}
    with Server(options.port, settings, options.dir) as server:
        connection = server.connect()
        load(connection, options)
        sizes = {variant: int(connection.rows("SELECT sum(pages) * 8192 FROM loosekv.runs('kv_{}_{}')".format(*variant))[0][0])
                 for variant in VARIANTS}
        times = {variant: [] for variant in VARIANTS}
        for number in range(options.rounds):
            for variant in VARIANTS if number % 2 == 0 else VARIANTS[::-1]:
                server.down()
                dropped = drop_caches()
                server.start()
                times[variant].append(measure(server.connect(), "kv_{}_{}".format(*variant), options.rows))
        print(f"{options.rows} rows, uuid keys, values of {options.value} B, medians of {options.rounds}; "
              f"files {'not ' if dropped else ''}in the page cache\n")
        print("| compression | key pages | bytes a row | first get, ms | index whole after, s |\n| --- | --- | ---: | ---: | ---: |")
        for variant in VARIANTS:
            first, whole = (statistics.median(values) for values in zip(*times[variant]))
            print(f"| {variant[0]} | {variant[1]} | {sizes[variant] / options.rows:.1f} | {first:.1f} | {whole:.2f} |")
