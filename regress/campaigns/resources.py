#!/usr/bin/env python3
"""Resources campaign: every limit is an ERROR with a hint, and everything goes on when there is room again.

    resources.py [TABLES [SEED]]       memory, locks, workers, connections, disk, WAL's disk, the OOM killer, a number of tables
    resources.py big GIGABYTES         a table of that size, with 256 MB of shared buffers
"""
import errno
import os
import random
import re
import shutil
import subprocess
import sys
import time

import lib
import row_locks
from lib import FULL, attempt

sys.path.append(os.path.join(lib.HERE, "..", "..", "bench", "sql"))
from control_group import ControlGroup  # noqa: E402

NO_DISK = "53100"


def twins(server, statement, codes):
    """In both or in none."""
    return attempt(server, f"BEGIN; {statement.replace('@', 'h')} {statement.replace('@', 'l')} COMMIT", codes=codes)


def cluster(directory, servers, name, *settings):
    server = lib.Server(os.path.join(directory, name), lib.BASE_PORT)
    servers.append(server)
    server.create(*settings)
    server.sql(lib.twin_schema())
    return server


def no_worker(server):
    """Memtables of many tables at once, with nobody to flush them but those who write."""
    full = 0
    for number in range(12):
        server.sql(*[f"CREATE TABLE {t}_m{number} (k int PRIMARY KEY, v text) USING {am}" for t, am in (("h", "heap"), ("l", "loosekv"))])
        full += not twins(server, f"INSERT INTO @_m{number} SELECT i, repeat('v', 400) FROM generate_series(1, 4000) i;", codes=(FULL,))
    for number in range(12):
        if server.sql(f"SELECT count(*) FROM (TABLE h_m{number} EXCEPT ALL TABLE l_m{number}) x") != "0":
            raise lib.Failure(f"tables m{number} differ")
        server.sql(f"DROP TABLE h_m{number}, l_m{number}")
    return full


def key_index(server):
    """More keys than the index may hold: the oldest runs are searched by filter, the answers stay right."""
    for start in range(0, 160_000, 20_000):
        twins(server, f"INSERT INTO @1 SELECT (i * 7919::bigint) % 1000003, i % 5000, md5(i::text) FROM generate_series({start}, {start} + 19999) i ON CONFLICT DO NOTHING;", codes=(FULL,))
        server.sql("SELECT loosekv.flush('l1')")
    limit, used, unindexed = server.sql("SELECT setting::bigint * 1048576, (SELECT index_bytes FROM loosekv.table_stats('l1')), "
                                        "(SELECT runs - indexed_runs FROM loosekv.table_stats('l1')) FROM pg_settings WHERE name = 'loosekv.index_memory'").split("|")
    if int(unindexed) == 0:
        raise lib.Failure(f"all runs are indexed, with {used} of {limit} bytes: nothing was tested")
    if int(used) > int(limit):
        raise lib.Failure(f"the index has {used} of {limit} bytes")
    lib.verify(server)
    return unindexed


def beyond_memory(directory, servers):
    """One statement with several times the keys that fit in all of the memory, then others; what tables had comes back."""
    server = cluster(directory, servers, "beyond", "loosekv.shared_memory = '16MB'", "loosekv.workers = 2", "fsync = off")
    rows = 1_000_000 if lib.SHORT else 4_000_000
    server.sql("CREATE TABLE beyond (k uuid PRIMARY KEY, v text) USING loosekv",
               f"INSERT INTO beyond SELECT md5(i::text)::uuid, i FROM generate_series(1, {rows}) i", timeout=1200)
    if int(server.sql("SELECT max(runs - indexed_runs) FROM loosekv.stats")) == 0:
        raise lib.Failure("all runs are indexed: nothing was tested")
    server.sql(f"INSERT INTO beyond SELECT md5(i::text)::uuid, -i FROM generate_series(1, {rows}, 7) i ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v", timeout=1200)
    wrong = server.sql(f"SELECT count(*) FROM generate_series(1, {rows}, 997) i LEFT JOIN beyond b ON b.k = md5(i::text)::uuid "
                       "WHERE v IS DISTINCT FROM (CASE WHEN i % 7 = 1 THEN -i ELSE i END)::text", timeout=600)
    if wrong != "0" or server.sql("SELECT count(*) FROM beyond", timeout=600) != str(rows):
        raise lib.Failure(f"{wrong} rows read by key are wrong, or some are missing")
    together(directory, server, rows)
    server.sql("DROP TABLE beyond")
    memory_came_back(server)
    return rows


def together(directory, server, rows):
    """Several sessions insert where key indexes have taken all that they may have: they may have to wait, and none is refused."""
    script = os.path.join(directory, "together.sql")
    with open(script, "w") as file:
        file.write("\\set i :i + 1\nINSERT INTO beyond SELECT md5(concat_ws(' ', :client_id, :i, j))::uuid, j FROM generate_series(1, 100) j;\n")
    sessions, times = 8, rows // 800 // 4
    done = subprocess.run(["pgbench", "--no-vacuum", f"--client={sessions}", "--jobs=2", f"--transactions={times}", "--define=i=0", f"--file={script}"],
                          env=server.environment(), text=True, capture_output=True, timeout=600)
    if done.returncode != 0:
        raise lib.Failure(f"of many sessions together some were refused: {done.stderr[-1500:]}")
    if server.sql("SELECT count(*) FROM beyond", timeout=600) != str(rows + sessions * times * 100):
        raise lib.Failure("rows of many sessions together are missing")


def read_of_all_partitions(directory, servers):
    """A query over so many partitions that their memtables alone take all of the memory; rows of all of them have just been written."""
    server = cluster(directory, servers, "partitions", "loosekv.shared_memory = '16MB'", "loosekv.workers = 2", "loosekv.memtable_size = '16MB'", "loosekv.fan_in = 8")
    server.sql("CREATE TABLE parted (k int PRIMARY KEY, v text) PARTITION BY HASH (k)",
               *[f"CREATE TABLE parted{n} PARTITION OF parted FOR VALUES WITH (MODULUS 150, REMAINDER {n}) USING loosekv" for n in range(150)])
    server.sql("INSERT INTO parted SELECT i, 'value ' || i FROM generate_series(1, 600000) i")
    for _ in range(2):
        time.sleep(2)
        if server.sql("SELECT count(*) FROM parted") != "600000":
            raise lib.Failure("rows of many partitions are missing")
    server.kill_all()


def writes_to_all_partitions(directory, servers):
    """Statements that write to so many partitions that a memtable for each takes more than all of the memory: small ones are flushed."""
    server = cluster(directory, servers, "written", "loosekv.shared_memory = '16MB'", "loosekv.workers = 2", "loosekv.memtable_size = '16MB'")
    server.sql("CREATE TABLE parted (k int PRIMARY KEY, v text) PARTITION BY HASH (k)",
               *[f"CREATE TABLE parted{n} PARTITION OF parted FOR VALUES WITH (MODULUS 250, REMAINDER {n}) USING loosekv" for n in range(250)])
    server.sql("INSERT INTO parted SELECT i, 'value ' || i FROM generate_series(1, 600000) i")
    update, delete = "UPDATE parted SET v = v || '!' WHERE k % 10 = {}", "DELETE FROM parted WHERE k % 10 = {}"
    insert = "INSERT INTO parted SELECT k + 600000, v || '?' FROM parted WHERE k % 10 = {} AND k <= 600000"
    # A query that has come to its end, but has not ended.
    cursor = "DECLARE c NO SCROLL CURSOR FOR SELECT k FROM parted; MOVE ALL c"
    for statements, found in (([update.format(0)], "600000|60000|0"), ([delete.format(1)], "540000|60000|0"), ([insert.format(2)], "600000|60000|60000"),
                              ([cursor, update.format(3)], "600000|120000|60000"),
                              ([update.format(4), delete.format(4), insert.format(5)], "600000|120000|120000"),
                              (["UPDATE parted SET v = v || '!'"], "600000|600000|0"), (["DELETE FROM parted"], "0|0|0")):
        server.sql("; ".join(["BEGIN", *statements, "COMMIT"]))
        seen = server.sql("SELECT count(*), count(*) FILTER (WHERE v LIKE '%!'), count(*) FILTER (WHERE v LIKE '%?') FROM parted")
        if seen != found:
            raise lib.Failure(f"after {statements}: {seen} instead of {found}")
    server.kill_all()


def memory_came_back(server):
    """Of tables that are gone nothing stays in memory."""
    parts = "coalesce(sum(bytes) FILTER (WHERE part = 'memtables') + sum(bytes) FILTER (WHERE part = 'key index'), -1)"
    deadline = time.monotonic() + 60
    while int(server.sql(f"SELECT {parts} FROM loosekv.memory")) > 1 << 20:
        if time.monotonic() > deadline:
            raise lib.Failure("memory of dropped tables is not free: " + server.sql("TABLE loosekv.memory").replace("\n", ", "))
        # What somebody still looked at when it was dropped is freed by whoever comes next.
        server.sql("INSERT INTO l3 VALUES (1, 1, 'x')", "SELECT loosekv.flush('l3')", "DELETE FROM l3 WHERE v = 'x'")
        time.sleep(0.1)


def connections(server):
    """All connections taken; those that are in go on, and the worker, too."""
    idle = [subprocess.Popen(["psql", "-X", "-q", "-v", "VERBOSITY=verbose", "-c", "INSERT INTO l3 VALUES (1, 1, 'x')", "-c", "SELECT pg_sleep(2)",
                              "-c", "INSERT INTO l3 VALUES (1, 1, 'x')"],
                             env=server.environment(), text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(45)]
    refused = 0
    for session in idle:
        error = session.communicate(timeout=120)[1]
        if session.returncode != 0 and "sorry, too many clients" not in error and "remaining connection slots" not in error:
            raise lib.Failure(f"with all connections taken: {error}")
        refused += session.returncode != 0
    if refused == 0:
        raise lib.Failure("nobody was refused: nothing was tested")
    if int(server.sql("SELECT count(*) FROM l3 WHERE v = 'x'")) != 2 * (45 - refused):
        raise lib.Failure("rows of sessions that were not refused are missing")
    server.sql("DELETE FROM l3 WHERE v = 'x'")
    return refused


def workers(server):
    """More databases than workers; none may starve for ever, writers flush for themselves meanwhile."""
    for number in range(3):
        server.sql(f"CREATE DATABASE other{number}")
        done = subprocess.run(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", f"other{number}", "-c", "CREATE EXTENSION loosekv",
                               "-c", "CREATE TABLE t (k int PRIMARY KEY, v text) USING loosekv",
                               "-c", "INSERT INTO t SELECT i, repeat('v', 200) FROM generate_series(1, 20000) i"], env=server.environment(),
                              text=True, capture_output=True, timeout=120)
        if done.returncode != 0:
            raise lib.Failure(f"in a database without a worker: {done.stderr}")
    for number in range(3):
        done = subprocess.run(["psql", "-X", "-A", "-t", "-d", f"other{number}", "-c", "SELECT count(*) FROM t"], env=server.environment(), text=True,
                              capture_output=True, timeout=60)
        if done.stdout.strip() != "20000":
            raise lib.Failure(f"rows are missing without a worker: {done.stdout} {done.stderr}")
        server.sql(f"DROP DATABASE other{number} WITH (FORCE)")


def worker_memory(server):
    """What merges have used of its private memory the worker gives back, though it goes on."""
    def private():
        pids = server.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'loosekv worker' AND datname = current_database()").split()
        kilobytes = 0
        for pid in pids:
            with open(f"/proc/{pid}/status") as status:
                kilobytes += sum(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))
        return kilobytes

    # It may have merged, and given back, before the last of these is done.
    writes = ("CREATE TABLE merged (k uuid PRIMARY KEY, v text) USING loosekv",
              "INSERT INTO merged SELECT gen_random_uuid(), repeat('x', 40) FROM generate_series(1, 600000)",
              "UPDATE merged SET v = 'y'", "DELETE FROM merged")
    writing = subprocess.Popen(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", *[part for write in writes for part in ("-c", write)]], env=server.environment())
    most = 0
    while writing.poll() is None:
        most = max(most, private())
        time.sleep(0.2)
    if writing.returncode != 0:
        raise lib.Failure("the worker's memory: a write failed")
    deadline = time.monotonic() + 60
    while (now := private()) > 6 << 10 or most < 10 << 10:
        most = max(most, now)
        if time.monotonic() > deadline:
            raise lib.Failure(f"the worker has {now} kB of its own, and had {most} at most")
        time.sleep(0.2)
    server.sql("DROP TABLE merged")
    return most


def each_table(server, count, statement, batch=50):
    """The statement for every table, `@` is its number."""
    text = statement.replace("'", "''").replace("@", "' || n || '")
    server.sql(stdin=f"DO $$ BEGIN FOR n IN 0..{count - 1} LOOP EXECUTE '{text}'; IF n % {batch} = {batch - 1} THEN COMMIT; END IF; END LOOP; END $$;\n", timeout=600)


def many_tables(server, count):
    """Each with a memtable, versions and a place in the registry; then each used again, and after a restart."""
    each_table(server, count, "CREATE TABLE many@ (k int PRIMARY KEY, v text) USING loosekv; INSERT INTO many@ VALUES (1, 'a'), (2, 'b')")
    for crash in (False, True):
        if crash:
            server.kill_all()
            server.start()
        for first in range(0, count, 50):
            names = [f"SELECT count(*) n FROM many{n}" for n in range(first, min(first + 50, count))]
            if server.sql(f"SELECT count(*) FROM ({' UNION ALL '.join(names)}) x WHERE n <> 2") != "0":
                raise lib.Failure(f"a table among {first}..{first + 50} lacks rows{' after a crash' if crash else ''}")
        each_table(server, count, "INSERT INTO many@ VALUES (3, 'c') ON CONFLICT DO NOTHING; DELETE FROM many@ WHERE k = 3")
    # More tables in one query than memory has places for at once: it is told so, and the next one is answered.
    every = " UNION ALL ".join(f"SELECT k FROM many{n}" for n in range(count))
    if attempt(server, f"SELECT count(*) FROM ({every}) x", codes=(FULL, "55000")) and count >= 1000:
        raise lib.Failure(f"{count} tables are in memory at once: nothing was tested")
    if server.sql("SELECT count(*) FROM many7") != "2":
        raise lib.Failure("a table cannot be read after a query of too many tables")
    # Some are dropped by a session that knows no more of them than the name of a prepared transaction.
    some = ", ".join(f"many{n}" for n in range(100))
    server.sql(stdin=f"BEGIN; DROP TABLE {some}; PREPARE TRANSACTION 'drop';")
    server.sql("COMMIT PREPARED 'drop'")
    each_table(server, count, "DROP TABLE IF EXISTS many@")
    memory_came_back(server)


def partitions(server, count):
    """More partitions in one statement than there is memory for: those that fit all work, else an ERROR says what to raise."""
    for number in (1200, count):
        server.sql("CREATE TABLE p (k int PRIMARY KEY, v text) PARTITION BY HASH (k)",
                   *[f"DO $$ BEGIN FOR i IN {first}..{min(first + 199, number - 1)} LOOP EXECUTE format('CREATE TABLE p%s PARTITION OF p "
                     f"FOR VALUES WITH (MODULUS {number}, REMAINDER %s) USING loosekv', i, i); END LOOP; END $$" for first in range(0, number, 200)])
        fits = number == 1200
        codes = () if fits else (FULL,)
        inserted = attempt(server, "INSERT INTO p SELECT i, 'v' FROM generate_series(1, 20000) i", codes=codes)
        if fits:
            taken = int(server.sql("SELECT sum(bytes) FROM loosekv.memory WHERE part IN ('memtables', 'small objects')")) // number
        read = attempt(server, "SELECT 1 / (count(*) = 20000)::int FROM p", codes=codes) if inserted else False
        if not fits and read:
            raise lib.Failure(f"{number} partitions are read at once: nothing was tested")
        if inserted and server.sql("SELECT count(*) FROM p WHERE k IN (1, 7, 20000)") != "3":
            raise lib.Failure(f"rows are missing in {number} partitions")
        for first in range(0, number, 200):
            server.sql(f"DROP TABLE {', '.join(f'p{i}' for i in range(first, min(first + 200, number)))}")
        server.sql("DROP TABLE p")
    memory_came_back(server)
    return taken


SMALL = 240


def same_small(server):
    """The small twins of memory_full, a few at a time: a query has something in memory of each of its tables."""
    for first in range(0, SMALL, 24):
        tables = [f"SELECT {n} t, k, v FROM {{0}}_f{n}" for n in range(first, first + 24)]
        ours, theirs = (f"({' UNION ALL '.join(tables).format(name)})" for name in "lh")
        if server.sql(f"SELECT (SELECT count(*) FROM ({ours} EXCEPT ALL {theirs}) x) + (SELECT count(*) FROM ({theirs} EXCEPT ALL {ours}) x)") != "0":
            raise lib.Failure(f"small twins {first} to {first + 23} differ")


def filled_up(server, what, statements):
    """A transaction that goes on until there is no memory; how many of the steps it could do."""
    done = server.try_sql(stdin="BEGIN;\nSET LOCAL enable_sort = off; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;\n" + "".join(f"{text}\n\\echo did {n}\n" for n, text in enumerate(statements)))
    if done.returncode == 0:
        raise lib.Failure(f"{what}: the memory was never full: nothing was tested")
    if f"ERROR:  {FULL}" not in done.stderr or "HINT:" not in done.stderr:
        raise lib.Failure(f"{what}: {done.stderr}\n{server.log_tail(8)}")
    same_small(server)
    return done.stdout.count("did")


def memory_full(directory, servers):
    """Memory that runs out: for memtables, because open cursors keep what is flushed, and for row locks. With the transaction it comes back."""
    server = cluster(directory, servers, "full", "loosekv.shared_memory = '16MB'", "loosekv.workers = 0", "max_locks_per_transaction = 256")
    for t, am in (("h", "heap"), ("l", "loosekv")):
        each_table(server, SMALL, f"CREATE TABLE {t}_f@ (k int PRIMARY KEY, v text) USING {am}")
    met = []
    rows = "SELECT i, repeat('v', 900) FROM generate_series(1, 300) i ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v || 'u'"
    written = [f"INSERT INTO {{}}_f{n} {rows};" for n in range(SMALL)]
    held = [text.format("h") + text.format("l") + f"DECLARE c{n}_{i} CURSOR FOR SELECT k FROM l_f{n} ORDER BY k; FETCH 1 FROM c{n}_{i};"
            for i in range(3) for n, text in enumerate(written)]
    met.append(f"{filled_up(server, 'memtables', held)} cursors")
    # All at once again, without anybody who holds them.
    server.sql(*[text.format(t) for text in written for t in "hl"])
    same_small(server)
    # More rows locked than there is room for, so that tables are locked as a whole; more tables than there is room for.
    for t, am in (("h", "heap"), ("l", "loosekv")):
        each_table(server, 10, f"CREATE TABLE {t}_wide@ (k int PRIMARY KEY) USING {am}; INSERT INTO {t}_wide@ SELECT generate_series(1, 8000)")
    locked = [f"SELECT count(*) FROM (SELECT FROM l_wide{n} FOR UPDATE) x;" for n in range(10)]
    locked += [f"UPDATE h_f{n} SET v = 'w'; UPDATE l_f{n} SET v = 'w'; SELECT count(*) FROM (SELECT FROM l_f{n} FOR UPDATE) x;" for n in range(SMALL)]
    met.append(f"{filled_up(server, 'row locks', locked) - 10} tables locked as a whole")
    server.sql(*[f"UPDATE {t}_f{n} SET v = 'x'" for n in range(SMALL) for t in "hl"])
    same_small(server)
    server.kill_all()
    server.configure("loosekv.workers = 2")
    server.start()
    same_small(server)
    each_table(server, SMALL, "DROP TABLE h_f@, l_f@")
    each_table(server, 10, "DROP TABLE h_wide@, l_wide@")
    memory_came_back(server)
    return server, " and ".join(met)


def soon(server, query, patience=30):
    """Waits until it is true."""
    deadline = time.monotonic() + patience
    while server.sql(query) != "t":
        if time.monotonic() > deadline:
            raise lib.Failure(f"not within {patience} s: {query}")
        time.sleep(0.05)


def left_meanwhile(server, others):
    """A table leaves memory, for others want it, and comes back while a statement waits that has looked for a key there: it looks again."""
    server.sql("CREATE TABLE contested (k int PRIMARY KEY, u int UNIQUE) USING loosekv")
    each_table(server, others, "CREATE TABLE other@ (k int PRIMARY KEY) USING loosekv; INSERT INTO other@ VALUES (1)")

    def session(text):
        return subprocess.Popen(["psql", "-X", "-A", "-t", "-c", text], env=server.environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for number in range(3):
        key = 10 * number
        holder = subprocess.Popen(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1"], env=server.environment(), text=True, stdin=subprocess.PIPE)
        holder.stdin.write(f"BEGIN; INSERT INTO contested VALUES ({key}, {key});\n")
        holder.stdin.flush()
        soon(server, f"SELECT count(*) = 1 FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%VALUES ({key}, {key})%'")
        waiter = session(f"INSERT INTO contested VALUES ({key + 1}, {key}) ON CONFLICT DO NOTHING")
        soon(server, "SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'INSERT INTO contested%' AND wait_event = 'transactionid'")
        server.sql(f"INSERT INTO contested VALUES ({key + 1}, {key + 1})")
        # The one that was used last leaves last, and autovacuum uses tables, too.
        for _ in range(40):
            each_table(server, others, "SELECT count(*) FROM other@", batch=1)
            if server.sql("SELECT rows_written FROM loosekv.table_stats('contested')") == "0":
                break
        else:
            raise lib.Failure("a table has not left memory: nothing was tested")
        holder.communicate("ROLLBACK;\n", timeout=60)
        told = waiter.communicate(timeout=60)[0].strip()
        if told != "INSERT 0 0" or server.sql(f"SELECT k, u FROM contested WHERE k = {key + 1}") != f"{key + 1}|{key + 1}":
            raise lib.Failure(f"who waited was told \"{told}\", the row is {server.sql(f'SELECT k, u FROM contested WHERE k = {key + 1}')}")
    each_table(server, others, "DROP TABLE other@")
    server.sql("DROP TABLE contested")


class SmallDisk:
    """A file system of a few megabytes, which can be filled and emptied."""

    def __init__(self, path, megabytes):
        self.path = path
        os.makedirs(path)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", path], capture_output=True, text=True)
        if done.returncode != 0:
            raise lib.Failure(f"a small file system is needed (as root): {done.stderr}")
        os.chmod(path, 0o777)
        os.makedirs(os.path.join(path, "space"))
        shutil.chown(os.path.join(path, "space"), "postgres")

    def fill(self, leave):
        """All but so many kilobytes."""
        status = os.statvfs(self.path)
        with open(os.path.join(self.path, "ballast"), "ab") as ballast:
            left = status.f_bavail * status.f_frsize - leave * 1024
            while left > 0:
                piece = min(left, 1 << 26)
                try:
                    os.posix_fallocate(ballast.fileno(), ballast.tell(), piece)
                    ballast.seek(piece, os.SEEK_CUR)
                    left -= piece
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    # Others write, too.
                    left //= 2

    def empty(self):
        os.unlink(os.path.join(self.path, "ballast"))

    def gone(self):
        subprocess.run(["umount", "-l", self.path], check=False)


SAME = "SELECT " + " + ".join(f"(SELECT count(*) FROM (TABLE {a} EXCEPT ALL TABLE {b}) x)" for a, b in (("h6", "l6"), ("l6", "h6")))


def use_up(server):
    """The table's file may have room for all that a round writes: goes on until it has none."""
    for first in range(1_000_000, 1_400_000, 2000):
        if not twins(server, f"INSERT INTO @6 SELECT i, i % 9, repeat('w', 300) FROM generate_series({first}, {first} + 1999) i;", codes=(NO_DISK,)):
            return 1
    raise lib.Failure("the disk was never full: nothing was tested")


def disk_full(directory, server, rng, rounds):
    """No space during append, flush, merge and the change of the manifest: an ERROR, twins stay twins, and it heals."""
    disk = SmallDisk(os.path.join(directory, "disk"), 48)
    met = {}
    try:
        server.sql(f"CREATE TABLESPACE small LOCATION '{disk.path}/space'")
        server.sql("CREATE TABLE h6 (k int PRIMARY KEY, s int, v text)", "CREATE TABLE l6 (k int PRIMARY KEY, s int, v text) USING loosekv TABLESPACE small",
                   "CREATE INDEX l6_s ON l6 (s)")
        same = SAME
        for number in range(rounds):
            for t in "hl":
                server.sql(f"DELETE FROM {t}6")
            server.sql("SELECT loosekv.compact('l6')", "VACUUM l6")
            twins(server, f"INSERT INTO @6 SELECT i, i % 9, repeat('v', 300) FROM generate_series(1, {rng.randrange(100, 8000)}) i;", codes=())
            disk.fill(rng.choice((0, 8, 16, 40, 80, 200, 500, 1000)))
            for step in range(12):
                first = rng.randrange(20000)
                what, done = rng.choice((
                    ("append", lambda: twins(server, f"INSERT INTO @6 SELECT i, i % 9, repeat('w', 300) FROM generate_series({first}, {first} + 300) i ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v, s = @6.s + 1;", codes=(NO_DISK,))),
                    ("one row", lambda: twins(server, f"INSERT INTO @6 VALUES ({first}, 1, 'one') ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v;", codes=(NO_DISK,))),
                    ("delete", lambda: twins(server, f"DELETE FROM @6 WHERE k BETWEEN {first} AND {first} + 500;", codes=(NO_DISK,))),
                    ("flush", lambda: attempt(server, "SELECT loosekv.flush('l6')", codes=(NO_DISK,))),
                    ("merge", lambda: attempt(server, "SELECT loosekv.compact('l6')", codes=(NO_DISK,))),
                    ("vacuum", lambda: attempt(server, "VACUUM l6", codes=(NO_DISK,))),
                ))
                if not done():
                    met[what] = met.get(what, 0) + 1
                if server.sql(same) != "0":
                    raise lib.Failure(f"twins differ after {what} on a full disk")
            if "append" not in met and number == rounds - 1:
                met["append"] = use_up(server)
                if server.sql(same) != "0":
                    raise lib.Failure("twins differ after append on a full disk")
            if rng.random() < 0.5:
                server.kill_all()
                server.start()
                if server.sql(same) != "0":
                    raise lib.Failure("twins differ after a crash on a full disk")
            disk.empty()
            server.sql("SELECT loosekv.flush('l6')", "SELECT loosekv.compact('l6')")
            twins(server, "UPDATE @6 SET v = v || 'u';", codes=())
            if server.sql(same) != "0":
                raise lib.Failure("twins differ after there was room again")
        server.sql("DROP TABLE h6, l6", "DROP TABLESPACE small")
        if server.sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'loosekv'") == "0":
            raise lib.Failure("the worker has not come back")
    finally:
        disk.gone()
    return ", ".join(f"{count} {what}" for what, count in sorted(met.items()))


def flush_on_full_disk(directory, servers, rng, rounds):
    """A flush that has room for all of its run but so many pages; for the run and not for the manifest; a merge, likewise."""
    server = cluster(directory, servers, "stages", "loosekv.workers = 0", "loosekv.memtable_size = '16MB'", "loosekv.fan_in = 8", "autovacuum = off")
    # So large that nothing is kept back for the flush while rows are written.
    disk = SmallDisk(os.path.join(directory, "stages-disk"), 1200)
    pages = "SELECT pg_relation_size('l6') / 8192"
    met = {}

    def fresh(act):
        """Twins as they are before the flush or merge; the pages of the table's file."""
        server.sql("DROP TABLE IF EXISTS h6, l6", "CREATE TABLE h6 (k int PRIMARY KEY, s int, v text)",
                   "CREATE TABLE l6 (k int PRIMARY KEY, s int, v text) USING loosekv TABLESPACE small")
        twins(server, "INSERT INTO @6 SELECT i, i % 9, repeat('v', 300) FROM generate_series(1, 1500) i;", codes=())
        if act == "compact":
            # Several runs: more than the freed room of the row log holds.
            for first in (1500, 3000, 4500):
                server.sql("SELECT loosekv.flush('l6')")
                twins(server, f"INSERT INTO @6 SELECT i, i % 9, repeat('w', 300) FROM generate_series({first}, {first} + 1500) i ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v;", codes=())
            server.sql("SELECT loosekv.flush('l6')")
        server.sql("CHECKPOINT")
        return int(server.sql(pages))

    try:
        server.sql(f"CREATE TABLESPACE small LOCATION '{disk.path}/space'")
        for act in ("flush", "compact"):
            before = fresh(act)
            server.sql(f"SELECT loosekv.{act}('l6')")
            need = int(server.sql(pages)) - before
            if need < 10:
                raise lib.Failure(f"{act} takes {need} pages: nothing is tested")
            # The manifest is what is written last.
            for left in [need - 1] * (act == "flush") + [rng.randrange(need - 1) for _ in range(rounds)]:
                what = "manifest" if (act, left) == ("flush", need - 1) else act
                before = fresh(act)
                disk.fill(left * 8)
                if attempt(server, f"SELECT loosekv.{act}('l6')", codes=(NO_DISK,)):
                    # In free pages of the file, which are too small pieces for it otherwise.
                    if what == "manifest" or int(server.sql(pages)) - before > left:
                        raise lib.Failure(f"{act} takes {need} pages, and does with {left}")
                    what += " in small pieces"
                if what == "manifest" and int(server.sql(pages)) - before != need - 1:
                    raise lib.Failure(f"not only the manifest's page was missing: {server.sql(pages)} pages, {before} before, {need} are needed")
                met[what] = met.get(what, 0) + 1
                same_checked(server, f"after a {what} on a full disk")
                if rng.random() < 0.5:
                    server.kill_all()
                    server.start()
                    same_checked(server, f"after a {what} on a full disk and a crash")
                disk.empty()
                server.sql("SELECT loosekv.flush('l6')", "SELECT loosekv.compact('l6')")
                twins(server, "UPDATE @6 SET v = v || 'u' WHERE k % 3 = 0;", codes=())
                same_checked(server, f"after a {what}, when there was room again")
        server.sql("DROP TABLE h6, l6", "DROP TABLESPACE small")
        server.kill_all()
    finally:
        disk.gone()
    return ", ".join(f"{count} {what}" for what, count in met.items())


def same_checked(server, when):
    found = server.sql("SELECT * FROM loosekv.check('l6')")
    if server.sql(SAME) != "0" or found:
        raise lib.Failure(f"twins differ {when}, or: {found[:500]}")


def free_pages_on_full_disk(directory, servers):
    """The disk is full, and the table's file has free pages: small changes and the cleaning up find room there, and the table is read after a
    restart or crash."""
    server = cluster(directory, servers, "free-pages", "loosekv.memtable_size = '256kB'", "loosekv.workers = 0", "autovacuum = off")
    disk = SmallDisk(os.path.join(directory, "free-pages-disk"), 24)
    rows, done = 26000, 0
    try:
        server.sql(f"CREATE TABLESPACE small LOCATION '{disk.path}/space'",
                   "CREATE TABLE l6 (k int PRIMARY KEY, v text, n int) USING loosekv TABLESPACE small",
                   f"INSERT INTO l6 SELECT i, repeat(md5(i::text), 8), 0 FROM generate_series(1, {rows}) i")
        if attempt(server, "BEGIN; " + "UPDATE l6 SET v = v || 'x'; " * 6 + "COMMIT", codes=(NO_DISK,)):
            raise lib.Failure("the disk was never full: nothing was tested")
        for how in ("refused", "stop", "kill"):
            if attempt(server, "CREATE INDEX l6_v ON l6 (v) TABLESPACE small", codes=(NO_DISK,)):
                raise lib.Failure("the disk has room: nothing was tested")
            if how == "stop":
                server.stop()
                server.start()
            elif how == "kill":
                server.kill_all()
                server.start()
            if server.sql("SELECT count(*) FROM l6 WHERE length(v) = 256") != str(rows):
                raise lib.Failure(f"rows are missing on a full disk ({how})")
            for command in ("UPDATE l6 SET n = n + 1 WHERE k = 1", "VACUUM l6", "UPDATE l6 SET n = n + 1 WHERE k = 1", "SELECT loosekv.flush('l6')"):
                server.sql(command)
                done += 1
            found = server.sql("SELECT n FROM l6 WHERE k = 1", "SELECT * FROM loosekv.check('l6')")
            if found != str(done // 2):
                raise lib.Failure(f"on a full disk ({how}) after {done} commands: {found[:500]}")
        server.kill_all()
    finally:
        disk.gone()
    return f"{done} changes in free pages"


def deletes_on_full_disk(directory, servers, rng):
    """A load has filled the disk. Rows can be deleted, also after a DELETE that was too large, and VACUUM finds room for others."""
    met = []
    kinds = [("", 8, 5000), ("WITH (loosekv.compression = zstd)", 8, 10000), ("", 320, 100)]
    for options, pieces, step in [rng.choice(kinds)] if lib.SHORT else kinds:
        server = cluster(directory, servers, f"deletes-{len(met)}", "loosekv.memtable_size = '1MB'", "autovacuum = off")
        disk = SmallDisk(os.path.join(directory, f"deletes-disk-{len(met)}"), 32)
        table = f"(k int PRIMARY KEY, v text) USING loosekv {options} TABLESPACE small"
        rows = f"INSERT INTO @6 SELECT i, (SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, {pieces}) j) FROM generate_series(%d, %d) i;"
        try:
            server.sql(f"CREATE TABLESPACE small LOCATION '{disk.path}/space'", "CREATE TABLE h6 (k int PRIMARY KEY, v text)", f"CREATE TABLE l6 {table}")
            first = 1
            while twins(server, rows % (first, first + step - 1), codes=(NO_DISK,)):
                first += step
            attempt(server, "BEGIN; DELETE FROM l6; ROLLBACK", codes=(NO_DISK,))
            server.sql("VACUUM l6")
            same_checked(server, "after a load that filled the disk")
            for part in range(6):
                twins(server, f"DELETE FROM @6 WHERE k % 6 = {part};", codes=())
                server.sql("VACUUM l6")
                same_checked(server, f"after {part + 1} sixths of the rows were deleted on a full disk")
            twins(server, rows % (1, first * 3 // 4), codes=())
            same_checked(server, "after a full disk was filled anew")
            met.append(str(first - 1))
            server.kill_all()
        finally:
            disk.gone()
    return f"{', '.join(met)} rows deleted"


def border_on_full_disk(directory, servers):
    """The disk is full when the first file of a table is, and the next cannot grow: that is no error of PostgreSQL's, who would end the statement,
    and small changes find room in what the refused one had taken."""
    server = cluster(directory, servers, "border", "loosekv.memtable_size = '256kB'", "loosekv.workers = 0", "autovacuum = off")
    disk = SmallDisk(os.path.join(directory, "border-disk"), 1024)
    try:
        server.sql(f"CREATE TABLESPACE border LOCATION '{disk.path}/space'",
                   "CREATE UNLOGGED TABLE l9 (k int PRIMARY KEY, v text) USING loosekv TABLESPACE border",
                   "ALTER TABLE l9 ALTER v SET STORAGE EXTERNAL")
        each, rows = 16, 0
        while attempt(server, f"INSERT INTO l9 SELECT i, repeat('v', 1 << 20) FROM generate_series({rows}, {rows + each - 1}) i", codes=(NO_DISK,)):
            rows += each
        server.sql("INSERT INTO l9 SELECT i, 'w' FROM generate_series(100000, 100999) i", "SELECT loosekv.flush('l9')")
        found = server.sql("SELECT count(*) FROM l9", "SELECT pg_relation_size('l9') >> 30", "SELECT * FROM loosekv.check('l9')")
        with open(server.log, errors="replace") as log:
            told = [line for line in log if "could not extend" in line]
        if found.split() != [str(rows + 1000), "1"] or told:
            raise lib.Failure(f"on a full disk at the border of two files, with {rows} rows: {found[:500]}, {told[:3]}")
        server.kill_all()
    finally:
        disk.gone()
    return "at the border of two files"


def killed_for(group):
    """How often the kernel has killed for want of memory in a control group."""
    path = group.paths["memory"]
    name = {1: "memory.oom_control", 2: "memory.events"}[group.versions["memory"]]
    with open(os.path.join(path, name)) as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))


def out_of_memory(directory, servers, rng, rounds):
    """The kernel's OOM killer takes a worker that merges or a backend that writes; where no control group can be made, kill -9 does."""
    server = cluster(directory, servers, "oom", "loosekv.shared_memory = '256MB'", "shared_buffers = '64MB'")
    group = ControlGroup(f"loosekv-oom-{os.getpid()}")
    done = {}
    try:
        if group.has_memory:
            # Before anybody is in it: what is held already need not be given back.
            group.limit(1 << 16)
        for number in range(rounds):
            kind = ("loosekv worker", "[local]")[number % 2]
            load = lib.Load(server, directory, [lib.Writer(i) for i in range(4)] + [lib.maintenance], f"oom-{number}").start()
            time.sleep(0.5 + rng.random())
            how = strike(server, group, kind, rng)
            done[how] = done.get(how, 0) + 1
            time.sleep(0.5)
            server.wait_ready()
            load.stop()
            complaints = load.complaints()
            if complaints:
                raise lib.Failure(f"after the end of a {kind} sessions were told: " + "\n".join(complaints[:5]))
            lib.verify(server)
        server.kill_all()
    finally:
        server.kill_all()
        group.remove()
    return " and ".join(f"{count} {how}" for how, count in sorted(done.items()))


def strike(server, group, kind, rng):
    """Ends a process of this kind; how."""
    def falls():
        with open(server.log, errors="replace") as log:
            return log.read().count("terminated by signal 9")

    before, deadline = falls(), time.monotonic() + 60
    killed = killed_for(group) if group.has_memory else 0
    while falls() == before:
        if time.monotonic() > deadline:
            raise lib.Failure(f"no {kind} was killed: {server.activity()}")
        victims = sorted(pid for pid, title in server.processes().items() if kind in title and "idle" not in title)
        if victims and group.has_memory:
            # What it takes from now on is counted here.
            try:
                with open(os.path.join(group.paths["memory"], "cgroup.procs"), "w") as procs:
                    procs.write(str(rng.choice(victims)))
            except ProcessLookupError:
                continue
        elif victims:
            server.kill_one(rng, kind)
        time.sleep(0.05)
    if not group.has_memory:
        return f"{kind.strip('[]')} by kill -9"
    if killed_for(group) == killed:
        raise lib.Failure("a process was killed, and not by the kernel's OOM killer")
    return f"{'backend' if kind == '[local]' else kind} by the OOM killer"


def wal_full(directory, servers, rng, rounds):
    """No space for WAL: the server stops with a PANIC, as PostgreSQL does; with space it comes back, and nothing is missing."""
    server = cluster(directory, servers, "wal", "max_wal_size = '64MB'", "min_wal_size = '32MB'", "wal_recycle = off")
    server.may_fall = True
    server.stop()
    disk = SmallDisk(os.path.join(directory, "wal-disk"), 160)
    try:
        inside, outside = os.path.join(server.data, "pg_wal"), os.path.join(disk.path, "space", "wal")
        shutil.move(inside, outside)
        os.symlink(outside, inside)
        subprocess.run(["chown", "-R", "-h", "postgres", inside, outside], check=True)
        server.start()
        for number in range(rounds):
            load = lib.Load(server, directory, [lib.Writer(i) for i in range(3)] + [lib.maintenance, lib.checkpoints], f"wal-{number}").start()
            time.sleep(0.5)
            disk.fill(rng.choice((0, 8000, 20000)))
            until = time.monotonic() + 30
            while sum("PANIC:" in line for line in server.fallen()) <= number and time.monotonic() < until:
                # Sessions may all have been stopped by the first one's error.
                server.try_sql("INSERT INTO l3 SELECT 9, 9, repeat('w', 1000) FROM generate_series(1, 5000)", "DELETE FROM l3 WHERE k = 9")
                time.sleep(0.1)
            panics = [line for line in server.fallen() if "PANIC:" in line]
            disk.empty()
            load.halt()
            time.sleep(0.3)
            if not server.processes():
                server.start()
            server.wait_ready()
            load.stop()
            odd = [line for line in server.fallen() if "No space left on device" not in line and "terminated by signal 6" not in line]
            if odd or len(panics) <= number:
                raise lib.Failure(f"{len(panics)} times no space for WAL in {number + 1} rounds; otherwise: {odd}")
            complaints = [line for line in load.complaints() if not re.search("53100|58030|checkpoint request failed", line)]
            if complaints:
                raise lib.Failure("with no space for WAL sessions were told: " + "\n".join(complaints[:5]))
            load.forget_complaints()
            server.sql("DELETE FROM l3 WHERE k = 9")
            lib.verify(server)
        server.kill_all()
    finally:
        server.kill_all()
        disk.gone()
    return len(panics)


def big(directory, servers, gigabytes):
    """Random keys, several times the memory, read back; how much the table weighs then."""
    server = lib.Server(os.path.join(directory, "big"), lib.BASE_PORT)
    servers.append(server)
    server.create("shared_buffers = '256MB'", "loosekv.shared_memory = '1GB'", "loosekv.memtable_size = '64MB'", "loosekv.fan_in = 8", "max_wal_size = '4GB'")
    server.sql("CREATE EXTENSION loosekv", "CREATE TABLE big (k bigint PRIMARY KEY, v text) USING loosekv")
    each, rows = 200_000, gigabytes * (1 << 30) // 1050
    begun = time.monotonic()
    for first in range(0, rows, each):
        # An odd multiplier is a permutation of the 31-bit numbers.
        server.sql(f"INSERT INTO big SELECT (i * 1103515245::bigint) & 2147483647, repeat(md5(i::text), 32) FROM generate_series({first}, {first} + {each} - 1) i", timeout=600)
    loaded = time.monotonic() - begun
    rows = (rows + each - 1) // each * each
    if server.sql("SELECT count(*) FROM big", timeout=3600) != str(rows):
        raise lib.Failure("rows are missing")
    wrong = server.sql(f"SELECT count(*) FROM generate_series(0, {rows - 1}, 997) i LEFT JOIN LATERAL (SELECT v FROM big WHERE k = (i * 1103515245::bigint) & 2147483647) b ON true "
                       "WHERE v IS DISTINCT FROM repeat(md5(i::text), 32)", timeout=3600)
    if wrong != "0":
        raise lib.Failure(f"{wrong} rows read by key are wrong")
    server.kill_all()
    # There are gigabytes to replay.
    server.start(timeout=1800)
    if server.sql("SELECT count(*) FROM big", timeout=3600) != str(rows):
        raise lib.Failure("rows are missing after a crash")
    size = int(server.sql("SELECT pg_relation_size('big')")) / (1 << 30)
    return f"{rows} rows, {size:.1f} GB with 256 MB of shared buffers, loaded in {loaded:.0f} s, read by scan and by key, and after a crash"


def main(directory, servers):
    if sys.argv[1:2] == ["big"]:
        return big(directory, servers, int(sys.argv[2]))
    tables = int(sys.argv[1]) if len(sys.argv) > 1 else (1000 if lib.SHORT else 3000)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    print(f"resources: seed {seed}", flush=True)
    alone = cluster(directory, servers, "alone", "loosekv.shared_memory = '16MB'", "loosekv.index_memory = 1", "loosekv.memtable_size = '16MB'", "loosekv.workers = 0")
    no_worker(alone)
    unindexed = key_index(alone)
    left_meanwhile(alone, 900)
    alone.kill_all()
    small, full = memory_full(directory, servers)
    many_tables(small, tables)
    small.kill_all()
    beyond = beyond_memory(directory, servers)
    servers[-1].kill_all()
    read_of_all_partitions(directory, servers)
    writes_to_all_partitions(directory, servers)
    server = cluster(directory, servers, "cluster", "loosekv.shared_memory = '64MB'", "loosekv.workers = 1", "max_connections = 25", "max_locks_per_transaction = 400")
    row_locks.used_up(server)
    row_locks.hot_rows(server, 3 if lib.SHORT else 30)
    refused = connections(server)
    workers(server)
    worker_memory(server)
    taken = partitions(server, 2500)
    full_disk = disk_full(directory, server, rng, 3 if lib.SHORT else 20)
    server.kill_all()
    stages = flush_on_full_disk(directory, servers, rng, 2 if lib.SHORT else 12)
    stages += f", {free_pages_on_full_disk(directory, servers)}, {deletes_on_full_disk(directory, servers, rng)}, {border_on_full_disk(directory, servers)}"
    killed = out_of_memory(directory, servers, rng, 2 if lib.SHORT else 20)
    panics = wal_full(directory, servers, rng, 1 if lib.SHORT else 5)
    return (f"memory full at {full}, {unindexed} runs beyond the index's memory, {beyond} rows with 16 MB, {refused} connections refused, {tables} tables, "
            f"{taken // 1024} kB for each partition in use; disk full at {full_disk}; at {stages}; {panics} times no space for WAL; "
            f"out of memory, killed: {killed}; no difference")


if __name__ == "__main__":
    lib.run("resources", main)
