#!/usr/bin/env python3
"""Replicas campaign: a standby of a standby, how far a standby lags behind, failover, and the way back of the old primary, or of the new one.

    replicas.py [SECONDS [SEED]]
"""
import os
import random
import subprocess
import sys
import threading
import time

import lib
from standby import dump, make_standby, wait_for_replay, wait_until_cut


def same_everywhere(primary, *standbys):
    lib.verify(primary)
    text = dump(primary)
    for standby in standbys:
        wait_for_replay(primary, standby)
        lib.verify(standby)
        if dump(standby) != text:
            raise lib.Failure(f"the dump of {standby.directory} differs from the primary's")


def replayed_twice(primary, standby):
    """Killed before a restartpoint, a standby replays what it has replayed; its pages are partly written, partly not."""
    for _ in range(2):
        wait_for_replay(primary, standby)
        standby.kill_all()
        standby.start()
    wait_for_replay(primary, standby)
    lib.verify(standby)


LAG = "SELECT coalesce(extract(epoch FROM replay_lag) * 1000, 0), pg_wal_lsn_diff(sent_lsn, replay_lsn) FROM pg_stat_replication"


class Probe(threading.Thread):
    """Samples how far a standby is behind."""

    def __init__(self, primary):
        super().__init__(daemon=True)
        self.primary, self.halt, self.samples = primary, threading.Event(), []

    def run(self):
        while not self.halt.wait(0.1):
            milliseconds, behind = self.primary.sql(LAG).splitlines()[0].split("|")
            self.samples.append((float(milliseconds), float(behind)))


def lag(primary, am, seconds):
    """The same upserts into a table of this access method: how many, and how far behind the standby was, in the middle and at the worst."""
    primary.sql(f"CREATE TABLE lag_{am} (k bigint PRIMARY KEY, v text) USING {am}")
    script = os.path.join(primary.directory, f"lag-{am}.sql")
    with open(script, "w") as file:
        file.write(f"\\set k random(1, 1000000)\nINSERT INTO lag_{am} SELECT {{}}, repeat('v', 100) ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v;\n"
                   .replace("{}", ":k"))
    probe = Probe(primary)
    probe.start()
    # A fixed rate, so that both do the same.
    done = subprocess.run(["pgbench", "-n", "-c", "4", "-R", "1500", "-T", str(seconds), "-f", script], env=primary.environment(),
                          text=True, capture_output=True)
    probe.halt.set()
    probe.join()
    if done.returncode != 0:
        raise lib.Failure(f"pgbench: {done.stderr}")
    count = next(line.split()[-1].split("/")[0] for line in done.stdout.splitlines() if "actually processed" in line)
    samples = sorted(milliseconds for milliseconds, _ in probe.samples)
    behind = max(bytes_behind for _, bytes_behind in probe.samples)
    return f"{am}: {count} upserts, lag {samples[len(samples) // 2]:.1f} ms in the middle, {samples[-1]:.0f} ms and {behind / 1024:.0f} kB at most"


def there(server, *commands):
    """In the database `moving`."""
    done = subprocess.run(["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *[a for c in commands for a in ("-c", c)]], text=True,
                          env=dict(server.environment(), PGDATABASE="moving"), capture_output=True, timeout=120)
    if done.returncode != 0:
        raise lib.Failure(f"{commands}: {done.stderr}")
    return done.stdout.strip()


STATE = "SELECT count(*), sum(k), md5(string_agg(v, ',' ORDER BY k)) FROM m"


def moved_database(primary, standby):
    """A database goes to another tablespace and comes back; the standby reads it before, in between and afterwards."""
    primary.sql("SET allow_in_place_tablespaces = on", "CREATE TABLESPACE near LOCATION ''", "CREATE DATABASE moving TEMPLATE template1")
    there(primary, "CREATE EXTENSION loosekv", "CREATE TABLE m (k int PRIMARY KEY, v text) USING loosekv", "INSERT INTO m SELECT i, 'v' FROM generate_series(1, 3000) i")
    for number, target in enumerate(("near", "pg_default", "near", "pg_default")):
        wait_for_replay(primary, standby)
        if there(standby, STATE) != there(primary, STATE):
            raise lib.Failure(f"after {number} moves the standby reads a moved database otherwise than the primary")
        # Nobody may be in it, here or there.
        primary.sql(f"ALTER DATABASE moving SET TABLESPACE {target}")
        there(primary, f"UPDATE m SET v = v || '{number}' WHERE k % 3 = {number % 3}", f"DELETE FROM m WHERE k % 50 = {number}", "SELECT loosekv.flush('m')",
              "INSERT INTO m SELECT i, 'new' FROM generate_series(1, 3000, 7) i ON CONFLICT DO NOTHING", "SELECT loosekv.compact('m')" if number % 2 else "SELECT 1")
    wait_for_replay(primary, standby)
    if there(standby, STATE) != there(primary, STATE):
        raise lib.Failure("the standby reads a moved database otherwise than the primary")


def born_again(primary, standby):
    """Databases with one oid, one after the other, from one template: a standby reads each as it is, also one that had read those before."""
    there(primary, "INSERT INTO m SELECT i, 'log' FROM generate_series(10001, 10100) i")
    primary.sql("ALTER DATABASE moving RENAME TO model")
    for number, strategy in enumerate(("wal_log", "wal_log", "file_copy", "file_copy")):
        primary.sql(f"CREATE DATABASE moving TEMPLATE model STRATEGY {strategy} OID 70000")
        there(primary, f"INSERT INTO m SELECT i, 'again {number}' FROM generate_series({20001 + 50 * number}, 20100) i")
        wait_for_replay(primary, standby)
        if there(standby, STATE) != there(primary, STATE):
            raise lib.Failure(f"the standby takes database {number} with an oid, made by {strategy}, for another: {there(standby, STATE)}, {there(primary, STATE)}")
        primary.sql("DROP DATABASE moving")
    primary.sql("DROP DATABASE model", "DROP TABLESPACE near")


def table_file(server, table):
    return os.path.join(server.data, server.sql(f"SELECT pg_relation_filepath('{table}')"))


def left_empty(file, other):
    """How many blocks of a file are empty and those of another are not."""
    empty, count = bytes(8192), 0
    with open(file, "rb") as here, open(other, "rb") as there:
        while (block := here.read(8192)) and (its := there.read(8192)):
            count += block == empty != its
    return count


def cut_and_grown(primary, standby):
    """The file of a table is cut, and grows again, beyond the blocks that were written to before, to such as are empty still. Returns it,
    and what it is elsewhere."""
    primary.sql("DELETE FROM cut WHERE k > 500", "SELECT loosekv.compact('cut')")
    wait_until_cut(primary, "cut", 1000)
    standby.sql("CHECKPOINT")
    files = [table_file(server, "cut") for server in (primary, standby)]
    more, there = 100_000, os.path.getsize(files[1])
    while (here := os.path.getsize(files[0])) < there:
        if here > there // 2:
            primary.sql("CHECKPOINT")
            if left_empty(*files):
                return files
        primary.sql(f"INSERT INTO cut SELECT i, repeat('n', 500) FROM generate_series({more}, {more + 499}) i")
        more += 500
    raise lib.Failure("a file that was cut and has grown again has no empty blocks: nothing is tested")


def rewound(primary, standby, cascade, seed, directory):
    """The standby is promoted while the primary still writes. What only the old primary has is taken back by pg_rewind."""
    primary.sql("CREATE TABLE cut (k int PRIMARY KEY, v text) USING loosekv",
                "INSERT INTO cut SELECT i, repeat(md5(i::text), 8) FROM generate_series(1, 60000) i", "SELECT loosekv.compact('cut')")
    rows = "SELECT count(*), md5(string_agg(k || v, ',' ORDER BY k)) FROM cut"
    before = primary.sql(rows)
    # From here on pg_rewind will read the old primary's log.
    primary.sql("CHECKPOINT")
    wait_for_replay(primary, standby)
    standby.sql("SELECT pg_promote()")
    loads = [lib.Load(server, server.directory, [lib.Writer(i + first) for i in range(2)] + [lib.maintenance], f"{seed}-{first}").start()
             for server, first in ((primary, 10), (standby, 20))]
    time.sleep(3)
    for load in loads:
        load.stop()
        complaints = load.complaints()
        if complaints:
            raise lib.Failure("sessions were told: " + "\n".join(complaints[:10]))
    lib.verify(primary)
    same_everywhere(standby, cascade)
    files = cut_and_grown(primary, standby)
    standby.sql("CHECKPOINT")
    primary.stop("fast")
    done = lib.shell("as_postgres", "pg_rewind", "-D", primary.data, "--source-server", f"host={standby.directory} port={standby.port} user=postgres dbname=postgres",
                     "--no-sync", "-R", check=False)
    if done.returncode != 0:
        raise lib.Failure(f"pg_rewind: {done.stdout}")
    if left_empty(*files):
        raise lib.Failure(f"pg_rewind has left {left_empty(*files)} blocks empty of a file that was cut")
    # It brought the other's settings.
    primary.configure(f"port = {primary.port}", f"unix_socket_directories = '{primary.directory}'")
    primary.start()
    same_everywhere(standby, primary, cascade)
    for server in standby, primary, cascade:
        if server.sql(rows) != before or server.sql("SELECT * FROM loosekv.check('cut')"):
            raise lib.Failure(f"a table whose file the old primary had cut is not the same after pg_rewind in {server.directory}")


def wait_for_log(server, text, patience=60):
    deadline = time.monotonic() + patience
    while True:
        with open(server.log, errors="replace") as log:
            if text in log.read():
                return
        if time.monotonic() > deadline:
            raise lib.Failure(f"nothing of \"{text}\" in the log of {server.directory}: {server.log_tail()}")
        time.sleep(0.1)


def promoted_and_rewound(directory, servers):
    """What a promoted server has changed is taken back by pg_rewind, which begins at the last checkpoint record that it replayed. A
    restartpoint that had begun before, and goes on, did not write what that checkpoint covers; its own first checkpoint has to."""
    primary = lib.Server(os.path.join(directory, "ahead"), lib.BASE_PORT + 3)
    servers.append(primary)
    primary.create("max_wal_senders = 5", "wal_keep_size = '1GB'", "loosekv.workers = 0", "loosekv.memtable_size = '8MB'", "checkpoint_timeout = '1h'",
                   "max_wal_size = '4GB'", "bgwriter_lru_maxpages = 0", "autovacuum = off")
    primary.sql("CREATE EXTENSION loosekv", "CREATE TABLE h (k int PRIMARY KEY, v text) WITH (fillfactor = 50)", "INSERT INTO h SELECT i, repeat('v', 100) FROM generate_series(1, 50000) i",
                *[f"CREATE TABLE {table} (k int PRIMARY KEY, v text) USING loosekv" for table in ("l", "m")], "CHECKPOINT")
    standby = make_standby(primary, os.path.join(directory, "behind"), lib.BASE_PORT + 4,
                           "checkpoint_timeout = '30s'", "checkpoint_completion_target = 0.9", "log_checkpoints = on")
    servers.append(standby)
    primary.sql("UPDATE h SET v = v", "CHECKPOINT")
    wait_for_replay(primary, standby)
    # A backup begins with a restartpoint that takes its time.
    backup = subprocess.Popen(["psql", "-X", "-q", "-c", "SELECT pg_backup_start('slow')"], env=standby.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_log(standby, "restartpoint starting: force")
    time.sleep(1)
    primary.sql("INSERT INTO l SELECT i, repeat(md5(i::text), 6) FROM generate_series(1, 15000) i", "CHECKPOINT")
    wait_for_replay(primary, standby)
    standby.sql("SELECT pg_promote()")
    standby.sql("INSERT INTO m VALUES (1, 'first')", "SELECT loosekv.flush('m')", "UPDATE h SET v = v WHERE k % 2 = 0")
    wait_for_log(standby, "checkpoint starting: force", 90)
    with open(standby.log, errors="replace") as log:
        if "restartpoint complete" not in log.read():
            raise lib.Failure("no restartpoint went on when the standby was promoted: nothing is tested")
    for i in range(4):
        standby.sql(f"INSERT INTO l VALUES (-{i}, 'on one side')", "SELECT loosekv.flush('l')")
    wait_for_log(standby, " checkpoint complete", 90)
    backup.wait(60)
    standby.stop("fast")
    lib.shell("as_postgres", "pg_rewind", "-D", standby.data, "--source-server", f"host={primary.directory} port={primary.port} user=postgres dbname=postgres",
              "--no-sync", "-R")
    standby.configure(f"port = {standby.port}", f"unix_socket_directories = '{standby.directory}'")
    standby.start()
    wait_for_replay(primary, standby)
    rows = "SELECT count(*), md5(string_agg(k || v, ',' ORDER BY k)) FROM l"
    if standby.sql(rows) != primary.sql(rows):
        raise lib.Failure(f"a promoted standby that was rewound has {standby.sql(rows)}, the primary {primary.sql(rows)}")
    for server in standby, primary:
        server.stop("fast")
        server.stood()


def main(directory, servers):
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else (6 if lib.SHORT else 60)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    print(f"replicas: seed {seed}", flush=True)
    primary = lib.Server(os.path.join(directory, "primary"), lib.BASE_PORT)
    servers.append(primary)
    primary.create("max_wal_senders = 10", "wal_keep_size = '2GB'", "max_wal_size = '4GB'", "track_commit_timestamp = off")
    primary.sql(lib.twin_schema())
    standby = make_standby(primary, os.path.join(directory, "standby"), lib.BASE_PORT + 1)
    servers.append(standby)
    cascade = make_standby(standby, os.path.join(directory, "cascade"), lib.BASE_PORT + 2)
    servers.append(cascade)
    load = lib.Load(primary, directory, [lib.Writer(i) for i in range(4)] + [lib.maintenance, lib.checkpoints], seed).start()
    time.sleep(seconds / 2)
    cascade.kill_all()
    cascade.start()
    time.sleep(seconds / 2)
    load.stop()
    complaints = load.complaints()
    if complaints:
        raise lib.Failure(f"seed {seed}: sessions were told: " + "\n".join(complaints[:10]))
    same_everywhere(primary, standby, cascade)
    replayed_twice(primary, cascade)
    moved_database(primary, standby)
    born_again(primary, standby)
    figures = [lag(primary, am, seconds) for am in ("heap", "loosekv")]
    rewound(primary, standby, cascade, seed, directory)
    promoted_and_rewound(directory, servers)
    transactions = sum(session.sent for session in load.sessions)
    return f"{transactions} transactions on a cascade, {'; '.join(figures)}; replayed twice, a database moved and others made with one oid, promoted, pg_rewind of the old primary, and of a standby that had been promoted: no difference"


if __name__ == "__main__":
    lib.run("replicas", main)
