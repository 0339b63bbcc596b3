#!/usr/bin/env python3
"""Restore campaign: backups, points in time, prepared transactions, what recovery may meet, unlogged tables, minimal WAL, copied databases.

    restore.py [SEED]
"""
import os
import random
import subprocess
import sys
import time

import lib

STATE = "SELECT (SELECT md5(string_agg(t::text, ',' ORDER BY k)) FROM l1 t) || (SELECT md5(string_agg(t::text, ',' ORDER BY a, b)) FROM l2 t)"


def backup(server, target, *options):
    os.makedirs(target)
    subprocess.run(["chown", "postgres", target], check=True)
    os.chmod(target, 0o700)
    lib.shell("as_postgres", "pg_basebackup", "-h", server.directory, "-p", str(server.port), "-U", "postgres", "-D", target,
              "-c", "fast", "--no-sync", *options)


def restored(directory, name, port, source, servers, *settings):
    """A server on a copy of a data directory."""
    server = lib.Server(os.path.join(directory, name), port)
    os.makedirs(server.directory)
    subprocess.run(["chown", "postgres", server.directory], check=True)
    os.rename(source, server.data)
    server.configure(f"port = {port}", f"unix_socket_directories = '{server.directory}'", *settings)
    servers.append(server)
    return server


def points_in_time(directory, servers, server, load):
    archive = os.path.join(directory, "archive")
    for name in ("first", "second"):
        backup(server, os.path.join(directory, name), "-X", "stream")
        time.sleep(1)
    load.stop()
    server.sql("SELECT pg_create_restore_point('here')")
    state = server.sql(STATE)
    moment = server.sql("SELECT clock_timestamp()")
    time.sleep(0.1)
    more = lib.Load(server, directory, [lib.Writer(7), lib.maintenance], "more").start()
    time.sleep(1.5)
    more.stop()
    server.sql("SELECT pg_switch_wal()", "CHECKPOINT")
    for _ in range(200):
        if server.sql("SELECT last_archived_wal >= pg_walfile_name(pg_current_wal_lsn() - 16777216) FROM pg_stat_archiver") == "t":
            break
        time.sleep(0.1)
    alone = restored(directory, "alone", server.port + 1, os.path.join(directory, "first"), servers, "archive_mode = off")
    alone.start()
    lib.verify(alone)
    alone.kill_all()
    subprocess.run(["cp", "-a", os.path.join(directory, "second"), os.path.join(directory, "third")], check=True)
    for copy, target in (("second", "recovery_target_name = 'here'"), ("third", f"recovery_target_time = '{moment}'")):
        to_a_point(restored(directory, f"point-{copy}", server.port + 1, os.path.join(directory, copy), servers, "archive_mode = off",
                            f"restore_command = 'cp {archive}/%f %p'", target, "recovery_target_action = 'promote'"), state)


def to_a_point(point, state):
    """Replays the archive up to the target, where the state was this; goes on from there."""
    subprocess.run(["touch", os.path.join(point.data, "recovery.signal")], check=True)
    point.start()
    for _ in range(300):
        if point.sql("SELECT pg_is_in_recovery()") == "f":
            break
        time.sleep(0.1)
    lib.verify(point)
    if point.sql(STATE) != state:
        raise lib.Failure("the restored point is not what the server was")
    point.sql("INSERT INTO l1 VALUES (-99999, 1); INSERT INTO h1 VALUES (-99999, 1)")
    lib.verify(point)
    point.stop("fast")


def prepared(server):
    """Prepared transactions over a crash, with flushes and merges before and after."""
    both = "INSERT INTO {0}1 VALUES ({1}, 1, 'prepared'), ({1} + 1, 2, 'prepared'); DELETE FROM {0}1 WHERE k BETWEEN {1} + 100 AND {1} + 150;"
    server.sql(*[f"INSERT INTO {t}1 SELECT i, 5, 'p' FROM generate_series(5000000, 5001000) i" for t in "hl"])
    for name, first in (("yes", 5000100000), ("no", 5000200000)):
        server.sql(*[f"INSERT INTO {t}1 SELECT i, 5, 'p' FROM generate_series({first} + 100, {first} + 200) i" for t in "hl"])
        server.sql(stdin="BEGIN;" + both.format("h", first) + both.format("l", first) + f"PREPARE TRANSACTION '{name}';")
    for _ in range(2):
        lib.verify(server)
        server.sql("SELECT loosekv.flush('l1')", "SELECT loosekv.compact('l1')", "VACUUM l1")
        lib.verify(server)
        server.kill_all()
        server.start()
    blocked = server.try_sql("SET lock_timeout = '200ms'", "INSERT INTO l1 VALUES (5000100000)")
    if "55P03" not in blocked.stderr and "57014" not in blocked.stderr:
        raise lib.Failure(f"a key of a prepared transaction is free after a crash: {blocked.stderr}")
    server.sql("COMMIT PREPARED 'yes'", "ROLLBACK PREPARED 'no'")
    lib.verify(server)
    if server.sql("SELECT count(*) FROM l1 WHERE v = 'prepared'") != "2":
        raise lib.Failure("a prepared transaction did not come out as it was told to")


def missing_library(server):
    """Without the library recovery stops and says why; with it nothing is missing."""
    for t in "hl":
        server.sql(f"UPDATE {t}1 SET n = n + 1 WHERE k % 3 = 0")
    server.kill_all()
    server.configure("shared_preload_libraries = ''")
    if server.start(check=False):
        raise lib.Failure("recovery went on without the library")
    if "resource manager with ID" not in server.log_tail(30) or "shared_preload_libraries" not in server.log_tail(30):
        raise lib.Failure(f"no clear stop: {server.log_tail(30)}")
    server.bury()
    server.configure("shared_preload_libraries = 'loosekv'")
    server.start()
    lib.verify(server)


def dropped_and_cut(server):
    """Records for tables that are dropped, emptied or cut when they are replayed."""
    server.sql("CHECKPOINT", "CREATE TABLE gone (k int PRIMARY KEY, v text) USING loosekv", "CREATE TABLE emptied (k int PRIMARY KEY, v text) USING loosekv",
               "CREATE TABLE shortened (k int PRIMARY KEY, v text) USING loosekv")
    for table in ("gone", "emptied"):
        server.sql(f"INSERT INTO {table} SELECT i, repeat('v', 200) FROM generate_series(1, 5000) i", f"SELECT loosekv.flush('{table}')",
                   f"UPDATE {table} SET v = 'w' WHERE k < 3000", f"SELECT loosekv.compact('{table}')", f"INSERT INTO {table} SELECT i, 'log' FROM generate_series(5001, 5100) i")
    server.sql("DROP TABLE gone", "TRUNCATE emptied", "INSERT INTO emptied VALUES (1, 'x')")
    pages = cut(server)
    server.kill_all()
    server.start()
    found = server.sql("SELECT count(*) FROM emptied"), server.sql("SELECT count(*), sum(k) FROM shortened")
    if found != ("1", "1001|1500500"):
        raise lib.Failure(f"tables that were emptied or cut before a crash are not what they were: {found}")
    if int(server.sql("SELECT pg_relation_size('shortened') / 8192")) > pages[0] // 2 or server.sql("SELECT * FROM loosekv.check('shortened')"):
        raise lib.Failure("a table that was cut before a crash is long again, or not sound")
    server.sql("INSERT INTO shortened SELECT i, repeat('v', 200) FROM generate_series(2000001, 2005000) i", "SELECT loosekv.flush('shortened')")
    if server.sql("SELECT count(*), sum(k) FROM shortened") != "6001|10014003000":
        raise lib.Failure("a table that was cut before a crash cannot grow")
    server.sql("DROP TABLE emptied, shortened")


def cut(server):
    """Records for all of a long file, of which the background worker gives the end back. Its pages before and after."""
    server.sql("INSERT INTO shortened SELECT i, repeat('v', 200) FROM generate_series(1, 60000) i", "SELECT loosekv.compact('shortened')",
               "DELETE FROM shortened WHERE k > 1000", "SELECT loosekv.compact('shortened')")
    size = "SELECT pg_relation_size('shortened') / 8192"
    before, looks = int(server.sql(size)), 0
    while (after := int(server.sql(size))) > before // 2:
        if looks == 300:
            raise lib.Failure(f"the file was not cut: {before} pages, {after} later; " + server.sql("SELECT * FROM loosekv.table_stats('shortened')", "TABLE loosekv.horizon"))
        # What is left is written once more, to the front, when nobody looks at the front any more; then it has to be idle.
        if looks % 70 == 0:
            server.sql(*["UPDATE shortened SET v = v || 'x' WHERE k < 10", "SELECT loosekv.compact('shortened')"] * 2)
        looks += 1
        time.sleep(0.2)
    # A last record that is for the short file.
    server.sql("INSERT INTO shortened VALUES (1000000, 'after')")
    return before, after


def inspected(server):
    """pg_walinspect shows what the resource manager's records say."""
    start = server.sql("CREATE EXTENSION IF NOT EXISTS pg_walinspect", "CHECKPOINT", "SELECT pg_current_wal_lsn()").split()[-1]
    server.sql("CREATE TABLE seen (k int PRIMARY KEY, v text) USING loosekv", "INSERT INTO seen SELECT i, 'v' FROM generate_series(1, 10) i", "SELECT loosekv.flush('seen')",
               "INSERT INTO seen VALUES (11, 'v')", "INSERT INTO seen VALUES (12, 'v')", "DROP TABLE seen", "CREATE DATABASE seen",
               "DROP DATABASE seen", "SELECT pg_switch_wal()", "CHECKPOINT")
    found = dict(line.split("|", 1) for line in server.sql(
        "SELECT DISTINCT ON (record_type) record_type, description FROM pg_get_wal_records_info_till_end_of_wal("
        f"'{start}') WHERE resource_manager = 'loosekv' ORDER BY record_type, start_lsn").splitlines())
    if set(found) != {"APPEND", "APPEND+INIT", "FLIP", "DROP_DATABASE"} or "database" not in found["DROP_DATABASE"] or "generation" not in found["APPEND+INIT"] or "superseded" not in found["FLIP"] or "bytes" not in found["APPEND"]:
        raise lib.Failure(f"pg_walinspect shows {found}")


def unlogged(server):
    server.sql("CREATE UNLOGGED TABLE u (k int PRIMARY KEY, v text) USING loosekv", "CREATE INDEX ON u (v)",
               "INSERT INTO u SELECT i, i FROM generate_series(1, 5000) i", "SELECT loosekv.flush('u')",
               "INSERT INTO u SELECT i, i FROM generate_series(5001, 6000) i")
    server.stop("fast")
    server.start()
    if server.sql("SELECT count(*) FROM u") != "6000":
        raise lib.Failure("an unlogged table lost rows over a clean restart")
    server.kill_all()
    server.start()
    if server.sql("SELECT count(*) FROM u") != "0":
        raise lib.Failure("an unlogged table is not empty after a crash")
    server.sql("INSERT INTO u SELECT i, i FROM generate_series(1, 100) i", "SELECT loosekv.flush('u')")
    if server.sql("SET enable_seqscan = off", "SELECT count(*) FROM u WHERE v = '7'") != "1":
        raise lib.Failure("an unlogged table does not work after a crash")
    server.sql("ALTER TABLE u SET LOGGED")
    server.kill_all()
    server.start()
    if server.sql("SELECT count(*) FROM u") != "100":
        raise lib.Failure("SET LOGGED did not outlast a crash")
    server.sql("DROP TABLE u")


def copied_databases(server):
    for strategy in ("wal_log", "file_copy"):
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'campaign' AND pid <> pg_backend_pid()")
        subprocess.run(["psql", "-X", "-q", "-d", "template1", "-c", f"CREATE DATABASE copy_{strategy} TEMPLATE postgres STRATEGY {strategy}"],
                       env=server.environment(), check=True, timeout=120)
        for crash in (False, True):
            if crash:
                server.kill_all()
                server.start()
            done = subprocess.run(["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"], text=True, capture_output=True,
                                  input=lib.comparison(), env=dict(server.environment(), PGDATABASE=f"copy_{strategy}"), timeout=120)
            wrong = lib.differences(done.stdout)
            if wrong or done.returncode != 0:
                raise lib.Failure(f"a database copied by {strategy}: {wrong} {done.stderr}")
        before = server.sql(STATE)
        subprocess.run(["psql", "-X", "-q", "-d", f"copy_{strategy}", "-c", "DELETE FROM l1; SELECT loosekv.compact('l1')"],
                       env=server.environment(), check=True, timeout=120, stdout=subprocess.DEVNULL)
        if server.sql(STATE) != before:
            raise lib.Failure("a copied database shares something with its template")
        subprocess.run(["psql", "-X", "-q", "-d", "postgres", "-c", f"DROP DATABASE copy_{strategy}"], env=server.environment(),
                       check=True, timeout=120)


def minimal(directory, servers):
    """Under wal_level = minimal what a transaction writes to a file of its own is synced, not logged."""
    server = lib.Server(os.path.join(directory, "minimal"), lib.BASE_PORT + 9)
    servers.append(server)
    # The fewest buffers that there may be, too.
    server.create("wal_level = minimal", "max_wal_senders = 0", "wal_skip_threshold = 0", "shared_buffers = '128kB'")
    server.sql(lib.twin_schema())
    rows = "SELECT i, i % 50, repeat('v', i % 200) FROM generate_series(1, 5000) i"
    server.sql(stdin="".join(f"BEGIN; TRUNCATE {t}1; INSERT INTO {t}1 {rows}; COMMIT;\n" for t in "hl"))
    server.kill_all()
    server.start()
    lib.verify(server)
    server.sql(stdin="".join(
        f"BEGIN; TRUNCATE {t}1; INSERT INTO {t}1 {rows}; SAVEPOINT a; DELETE FROM {t}1 WHERE k < 100; ROLLBACK TO a;\n"
        f"UPDATE {t}1 SET n = n + 1 WHERE k % 7 = 0; COMMIT; DELETE FROM {t}1 WHERE k % 11 = 0;\n"
        f"BEGIN; ALTER TABLE {t}1 ALTER s TYPE bigint; UPDATE {t}1 SET v = 'x' WHERE k % 3 = 0; COMMIT;\n"
        f"BEGIN; TRUNCATE {t}2; INSERT INTO {t}2 SELECT 'a' || i, i, 'v' FROM generate_series(1, 3000) i; ROLLBACK;\n" for t in "hl"))
    server.sql("SELECT loosekv.flush('l1')")
    server.kill_all()
    server.start()
    lib.verify(server)
    server.stop("fast")


def checksums(server):
    server.stop("fast")
    done = lib.shell("as_postgres", "pg_checksums", "--check", "-D", server.data, check=False)
    if done.returncode != 0:
        raise lib.Failure(f"pg_checksums: {done.stdout}")


def main(directory, servers):
    seed = sys.argv[1] if len(sys.argv) > 1 else str(random.SystemRandom().randrange(1 << 32))
    print(f"restore: seed {seed}", flush=True)
    server = lib.Server(os.path.join(directory, "cluster"), lib.BASE_PORT + 7)
    servers.append(server)
    archive = os.path.join(directory, "archive")
    os.makedirs(archive)
    subprocess.run(["chown", "postgres", archive], check=True)
    # What pg_walinspect reads is not to be recycled.
    server.create("archive_mode = on", f"archive_command = 'cp %p {archive}/%f'", "max_wal_senders = 5", "wal_keep_size = '1GB'")
    server.sql(lib.twin_schema())
    load = lib.Load(server, directory, [lib.Writer(i) for i in range(3)] + [lib.maintenance], seed).start()
    time.sleep(1)
    points_in_time(directory, servers, server, load)
    complaints = load.complaints()
    if complaints:
        raise lib.Failure("sessions were told: " + "\n".join(complaints[:10]))
    prepared(server)
    missing_library(server)
    dropped_and_cut(server)
    inspected(server)
    unlogged(server)
    copied_databases(server)
    minimal(directory, servers)
    lib.verify(server)
    checksums(server)
    return ("backup under load restored alone, to a named point and to a time, prepared transactions, missing library, records of dropped and "
            "cut tables, pg_walinspect, unlogged table, copied databases, "
            "minimal WAL, checksums: no difference")


if __name__ == "__main__":
    lib.run("restore", main)
