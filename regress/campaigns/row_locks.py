"""Row locks: more than there is room for, and of rows that many want at once."""
import os
import subprocess
import tempfile

import lib
from lib import FULL, attempt

# What each transaction does with a row that the others want, too.
CHANGES = {
    "update": "UPDATE hot SET n = n + 1 WHERE k = :k;",
    "unread": "UPDATE hot SET n = 0, v = 'x' WHERE k = :k;",
    "locked": "BEGIN; SELECT n FROM hot WHERE k = :k FOR UPDATE; UPDATE hot SET n = n + 1 WHERE k = :k; END;",
    "changed twice": "BEGIN; UPDATE hot SET n = n + 1 WHERE k = :k; UPDATE hot SET n = n + 1 WHERE k = :k; END;",
    "unread twice": "BEGIN; UPDATE hot SET n = 0, v = 'x' WHERE k = :k; UPDATE hot SET n = 1, v = 'y' WHERE k = :k; END;",
    "upsert": "INSERT INTO hot VALUES (:k, 0, 'x') ON CONFLICT (k) DO UPDATE SET n = hot.n + 1;",
}


def used_up(server):
    """More rows locked than the lock table holds, by one and by many; others still have to wait."""
    server.sql("CREATE TABLE locked (k int PRIMARY KEY, v int) USING loosekv", "INSERT INTO locked SELECT i, 0 FROM generate_series(1, 50000) i")
    holder = lib.Psql(server, "BEGIN;\nSELECT count(*) FROM (SELECT k FROM locked FOR UPDATE) x;\n")
    if attempt(server, "SET lock_timeout = '200ms'", "UPDATE locked SET v = 1 WHERE k = 49999", codes=("55P03",)):
        raise lib.Failure("a locked row was updated")
    holder.finish("COMMIT;\n")
    # Many transactions that lock many rows each, in tables of their own.
    for number in range(20):
        server.sql(f"CREATE TABLE locked{number} (k int PRIMARY KEY) USING loosekv", f"INSERT INTO locked{number} SELECT generate_series(1, 5000)")
    lockers = [subprocess.Popen(["psql", "-X", "-q", "-v", "VERBOSITY=verbose", "-c", f"BEGIN; SELECT count(*) FROM (SELECT k FROM locked{n} WHERE k % 2 = 0 FOR UPDATE) x; SELECT pg_sleep(0.5); COMMIT"],
                                env=server.environment(), text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for n in range(20)]
    for locker in lockers:
        error = locker.communicate(timeout=120)[1]
        if locker.returncode != 0 and f"ERROR:  {FULL}" not in error:
            raise lib.Failure(f"locking: {error}")
    server.sql("UPDATE locked SET v = 1 WHERE k = 49999", *[f"DROP TABLE locked{n}" for n in range(20)], "DROP TABLE locked")


def hot_rows(server, seconds):
    """Many who change a few rows, one in each transaction, never wait for each other in a circle."""
    server.sql("CREATE TABLE hot (k int PRIMARY KEY, n int, v text) USING loosekv", "INSERT INTO hot SELECT i, 0, 'x' FROM generate_series(1, 30) i",
               "ALTER SYSTEM SET deadlock_timeout = '3ms'", "SELECT pg_reload_conf()")
    with tempfile.TemporaryDirectory() as scripts:
        for name, text in CHANGES.items():
            script = os.path.join(scripts, name)
            with open(script, "w") as file:
                file.write(f"\\set k random_zipfian(1, 30, 1.1)\n{text}\n")
            done = subprocess.run(["pgbench", "-n", "-c", "20", "-j", "2", "-T", str(seconds), "-f", script], env=server.environment(), text=True, capture_output=True)
            if done.returncode != 0 or "number of failed transactions: 0 " not in done.stdout:
                raise lib.Failure(f"{name}: {done.stdout}{done.stderr}{server.log_tail(8)}")
    server.sql("ALTER SYSTEM RESET deadlock_timeout", "SELECT pg_reload_conf()", "DROP TABLE hot")
