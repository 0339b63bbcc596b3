#!/usr/bin/env python3
"""Commits that a crash takes back: what a deletion hid is there again afterwards, for every way of reading.

An asynchronous commit is seen by everybody before it is on disk. A reader who finds by it that an index entry points to a dead row
marks the entry, by a hint that is not logged. If the index page is written out before the commit is, a crash brings the row
back and leaves the mark. So no mark may be made before the commit is on disk. (With data checksums the first hint on a page is logged,
after the commit, and so does no harm; this server has none.)

    lost_commits.py [ROUNDS]
"""
import os
import signal
import sys

import lib

KEYS = 40


def session(server, *commands):
    """The answers of the commands, given one after the other in one session."""
    done = server.try_sql("SET synchronous_commit = off", "SET enable_seqscan = off", "SET enable_bitmapscan = off", *commands)
    if done.returncode != 0:
        raise lib.Failure(f"{commands}: {done.stderr}")
    return done.stdout.split()


DIRTY = "SELECT count(*) FROM pg_buffercache WHERE isdirty AND relfilenode = pg_relation_filenode('{0}_s')"
EVICT = "SELECT count(v) FROM filler WHERE k BETWEEN {0} AND {0} + 10"
# Keeps what the deletion wrote among the buffers: when that page is written out, its commit goes with it.
TOUCH = "SELECT FROM l WHERE ctid = ANY (ARRAY(SELECT ('(0,' || i || ')')::tid FROM generate_series(1, 200) i))"
UNSAVED = "SELECT pg_current_wal_flush_lsn() < '{0}'"


def attempt(server, table, key):
    """Deletes the key asynchronously, reads by the index, has the index written out, crashes. Whether the commit was lost."""
    writer = [pid for pid, title in server.processes().items() if "walwriter" in title]
    # Nothing is flushed but by those who need it.
    os.kill(writer[0], signal.SIGSTOP)
    reads = [f"SELECT count(*) FROM {table} WHERE s = {key}"] * 2
    lsn = session(server, f"DELETE FROM {table} WHERE k = {key}", "SELECT pg_current_wal_insert_lsn()", *reads)[0]
    for step in range(600):
        dirty, unsaved = session(server, TOUCH, EVICT.format(step * 10 % 600), DIRTY.format(table), UNSAVED.format(lsn))[-2:]
        if dirty == "0" or unsaved == "f":
            break
    server.kill_all()
    server.start()
    by_key, by_index = session(server, f"SELECT count(*) FROM {table} WHERE k = {key}", f"SELECT count(*) FROM {table} WHERE s = {key}")
    if by_key != by_index:
        raise lib.Failure(f"after a lost commit {by_key} row of {table} is found by key and {by_index} by index")
    return by_key == "1" and dirty == "0"


def main(directory, servers):
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else (3 if lib.SHORT else 20)
    server = lib.Server(os.path.join(directory, "cluster"), lib.BASE_PORT)
    servers.append(server)
    server.create("shared_buffers = '1MB'", "autovacuum = off", "bgwriter_lru_maxpages = 0", "wal_writer_delay = '10s'",
                  "checkpoint_timeout = '1h'", "loosekv.workers = 0")
    server.stop()
    lib.shell("as_postgres", "pg_checksums", "--disable", "--no-sync", "-D", server.data)
    server.start()
    server.sql("CREATE EXTENSION loosekv", "CREATE EXTENSION pg_buffercache",
               "CREATE TABLE filler (k int PRIMARY KEY, v text) WITH (fillfactor = 10)",
               "INSERT INTO filler SELECT i, repeat('f', 500) FROM generate_series(1, 700) i")
    lost = 0
    for number in range(rounds):
        server.sql("DROP TABLE IF EXISTS l", "CREATE TABLE l (k int PRIMARY KEY, s int, v text) USING loosekv",
                   "CREATE INDEX l_s ON l (s)", f"INSERT INTO l SELECT i, i, 'v' FROM generate_series(1, {KEYS}) i")
        # A deletion that is on disk, so that the next one finds its log page begun and changes no other page.
        server.sql("VACUUM (FREEZE)", "CHECKPOINT", f"DELETE FROM l WHERE k = {KEYS}", "SELECT pg_sleep(0.1)")
        lost += attempt(server, "l", 1 + number % (KEYS - 1))
    if lost == 0:
        raise lib.Failure("no commit was lost: nothing was tested")
    return f"{rounds} crashes, {lost} commits lost, their rows found by key and by index"


lib.run("lost commits", main)
