#!/usr/bin/env python3
"""Standby campaign: what a standby shows under load is a prefix of what the primary did, or a recovery conflict.

    standby.py [SECONDS [SEED]]
"""
import hashlib
import os
import random
import re
import subprocess
import sys
import threading
import time

import lib

# A reader may be told this, and nothing else.
CONFLICTS = ("40001", "40P01", "57P01", "57P02", "57P03", "08006")


# hot_standby_feedback, and whose redo is checked byte by byte (wal_consistency_checking).
PHASES = (("off", "loosekv"), ("on", ""))
KINDS = {"row versions that must be removed": "rows", "relation lock": "lock", "buffer pin": "pin"}


class Reader(threading.Thread):
    """Compares the twins on the standby, inside one snapshot each time."""

    def __init__(self, server, seed, slow, tables):
        super().__init__(daemon=True)
        self.server, self.rng, self.slow, self.tables = server, random.Random(seed), slow, tables
        self.halt = threading.Event()
        self.done, self.conflicts, self.wrong = 0, {}, []

    def script(self):
        rng = self.rng
        if not self.slow:
            kind = rng.random()
            if kind < 0.3:
                return lib.comparison("1", ways=rng.random() < 0.5)
            if kind < 0.4:
                return lib.comparison("23")
            # Point reads by key.
            keys = ",".join(str(rng.randrange(5) * 100_000 + rng.randrange(lib.OWN)) for _ in range(40))
            return ("BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off;\n"
                    f"SELECT 'points', (SELECT count(*) FROM unnest(ARRAY[{keys}]::bigint[]) g(k) WHERE "
                    "(SELECT s || v || n FROM l1 WHERE l1.k = g.k) IS DISTINCT FROM (SELECT s || v || n FROM h1 WHERE h1.k = g.k));\nCOMMIT;\n")
        # An old snapshot, an open cursor, and another look with the same snapshot.
        again = lib.comparison("1").split("\n", 1)[1]
        return ("BEGIN ISOLATION LEVEL REPEATABLE READ;\n"
                "DECLARE c CURSOR FOR SELECT 'c', k, md5((s, v, n)::text) FROM l1 ORDER BY k;\n"
                "DECLARE d CURSOR FOR SELECT 'd', k, md5((s, v, n)::text) FROM h1 ORDER BY k;\n"
                "FETCH 5 FROM c;\nFETCH 5 FROM d;\n"
                f"SELECT pg_sleep({rng.random() * 2:.2f});\nFETCH 50 FROM c;\nFETCH 50 FROM d;\n"
                f"SELECT pg_sleep({rng.random() * 2:.2f});\nFETCH ALL FROM c;\nFETCH ALL FROM d;\n") + again

    def run(self):
        while not self.halt.is_set():
            done = self.server.try_sql(stdin=self.script(), timeout=180)
            if done.returncode == 0:
                lines = done.stdout.splitlines()
                # Not to be taken for comparisons.
                c = [line[2:] for line in lines if line.startswith("c|")]
                d = [line[2:] for line in lines if line.startswith("d|")]
                if c != d:
                    odd = sorted(set(c) ^ set(d))[:6]
                    self.wrong.append(f"cursors: {len(c)} rows here, {len(d)} in heap: {odd}")
                rest = "\n".join(line for line in lines if not line.startswith(("c|", "d|")))
                self.wrong += lib.differences(rest)
                self.done += 1
            elif any(f"{code}: " in done.stderr for code in CONFLICTS) or "server closed the connection" in done.stderr \
                    or "connection to server" in done.stderr:
                kind = next((kind for text, kind in KINDS.items() if text in done.stderr), "connection")
                self.conflicts[kind] = self.conflicts.get(kind, 0) + 1
                time.sleep(0.02)
            elif self.lost_index(done.stderr):
                self.conflicts["index"] = self.conflicts.get("index", 0) + 1
            else:
                self.wrong.append(done.stderr.strip()[:600])
            if self.wrong:
                return

    def lost_index(self, error):
        """Nobody on a standby waits for readers when an index is replaced or dropped concurrently: those of heap tables are told the same."""
        gone = re.search(r"could not open relation with OID (\d+)", error)
        return gone and gone.group(1) not in self.tables


def wait_for_replay(primary, standby, patience=60):
    lsn = primary.sql("SELECT pg_current_wal_insert_lsn()")
    deadline = time.monotonic() + patience
    while standby.sql(f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'") != "t":
        if time.monotonic() > deadline:
            raise lib.Failure(f"the standby does not reach {lsn}: {standby.log_tail()}")
        time.sleep(0.05)


# What an older snapshot of the standby begins with.
OLDER = "BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT count(*) FROM h2;\n"


def cancelled(error):
    return "conflict with recovery" in error or "server closed" in error


def between_passes(primary, standby):
    """A row that came after the first pass of CREATE INDEX CONCURRENTLY, of a writer who did not know the index yet, and went before the
    second, is not in the index. A snapshot of the standby that sees it finds it nevertheless, or is cancelled."""
    primary.sql("CREATE FUNCTION held(s int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS "
                "'BEGIN PERFORM pg_advisory_lock_shared(77), pg_advisory_unlock_shared(77); RETURN s; END'",
                "CREATE TABLE l8 (k int PRIMARY KEY, s int) USING loosekv", "INSERT INTO l8 SELECT i, i FROM generate_series(1, 1000) i")
    holder = lib.Psql(primary, "SELECT pg_advisory_lock(77);\n")
    build = subprocess.Popen(["psql", "-X", "-q", "-c", "CREATE INDEX CONCURRENTLY l8_s ON l8 (held(s))"], env=primary.environment(), text=True,
                             stderr=subprocess.PIPE)
    wait_until(primary, "SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", "the index is not being built")
    primary.sql("INSERT INTO l8 VALUES (5000, 5000)")
    wait_for_replay(primary, standby)
    session = lib.Psql(standby, OLDER)
    primary.sql("DELETE FROM l8 WHERE k = 5000")
    holder.finish()
    error = build.communicate(timeout=60)[1]
    if build.returncode != 0:
        raise lib.Failure(f"CREATE INDEX CONCURRENTLY: {error}")
    wait_for_replay(primary, standby)
    output, error = session.finish("SET LOCAL enable_seqscan = off;\nSELECT 'found', k FROM l8 WHERE held(s) = 5000;\n")
    if "found|5000" not in output and not cancelled(error):
        raise lib.Failure(f"a row that went between the passes of CREATE INDEX CONCURRENTLY is not found on the standby: {output} {error}")
    primary.sql("DROP TABLE l8", "DROP FUNCTION held")


def marked_entries(primary, standby):
    """Hash and GiST indexes take out entries that scans have marked as dead when a page is full. Who on the standby may need them is cancelled."""
    for index, column, value, same in ("hash", "int", "{}", "="), ("gist", "point", "point({}, 1)", "~="):
        look = f"SELECT count(*) FROM l7 WHERE s {same} {value.format(5)}"
        by_index = "SET enable_seqscan = off", "SET enable_bitmapscan = off"
        primary.sql(f"CREATE TABLE l7 (k int PRIMARY KEY, s {column}) USING loosekv", f"CREATE INDEX l7_s ON l7 USING {index} (s)",
                    f"INSERT INTO l7 SELECT i, {value.format(5)} FROM generate_series(1, 100) i")
        wait_for_replay(primary, standby)
        session = lib.Psql(standby, OLDER)
        primary.sql(f"UPDATE l7 SET s = {value.format(6)}", *by_index, look, look, f"INSERT INTO l7 SELECT i, {value.format(5)} FROM generate_series(1001, 1600) i")
        wait_for_replay(primary, standby)
        output, error = session.finish("".join(f"{line};\n" for line in (*by_index, look)))
        if output.split()[-1:] != ["100"] and not cancelled(error):
            raise lib.Failure(f"what an older snapshot of the standby finds by a {index} index is {output.split()[-1:]} instead of 100 {error}")
        primary.sql("DROP TABLE l7")


def old_snapshots(primary, standby):
    """What takes rows out of a secondary index alone must not pull them away from older snapshots, here or on the standby."""
    changes = ["VACUUM l1", "REINDEX INDEX l1_s", "DROP INDEX IF EXISTS l1_new; CREATE INDEX l1_new ON l1 (s, n)"]
    if standby is not primary:
        # On the primary it would wait until the older snapshot has gone.
        changes += ["REINDEX INDEX CONCURRENTLY l1_s", "DROP INDEX l1_new; CREATE INDEX CONCURRENTLY l1_new ON l1 (s, n)"]
    for change in changes:
        if standby is not primary:
            wait_for_replay(primary, standby)
        session = lib.Psql(standby, OLDER)
        primary.sql(*[f"UPDATE {t}1 SET s = (s + 1) % 50 WHERE k % 3 = 0" for t in "hl"], "SELECT txid_current()")
        primary.sql(*[part for part in change.split("; ")])
        if standby is not primary:
            wait_for_replay(primary, standby)
        output, error = session.finish(lib.comparison("1").split("\n", 1)[1], timeout=120)
        wrong = lib.differences(output)
        if wrong or error and (standby is primary or not cancelled(error)):
            raise lib.Failure(f"an older snapshot of the {'primary' if standby is primary else 'standby'}, after {change}: {wrong} {error}")


def changed_keys(primary, standby):
    """A change of the key writes as frozen what everybody on the primary sees. Snapshots of the standby that do not see it yet are cancelled."""
    primary.sql("CREATE TABLE l8 (k int NOT NULL) USING loosekv", "CREATE TABLE l9 (k int PRIMARY KEY) USING loosekv")
    wait_for_replay(primary, standby)
    session = lib.Psql(standby, OLDER)
    primary.sql("INSERT INTO l8 VALUES (1)", "INSERT INTO l9 VALUES (1)", "ALTER TABLE l8 ADD PRIMARY KEY (k)", "ALTER TABLE l9 DROP CONSTRAINT l9_pkey")
    wait_for_replay(primary, standby)
    output, error = session.finish("SELECT 'seen', k FROM l8 UNION ALL SELECT 'seen', k FROM l9;\n")
    if "seen" in output or error and not cancelled(error):
        raise lib.Failure(f"an older snapshot of the standby, after a change of the key: {output} {error}")
    primary.sql("DROP TABLE l8, l9")


def written_frozen(primary, standby):
    """Tables that were written as frozen can be read while their rows are still in the memtable."""
    tables = {"l8": "VACUUM FULL l8", "l9": "CLUSTER l9 USING l9_pkey", "l10": "ALTER TABLE l10 DROP CONSTRAINT l10_pkey, ADD PRIMARY KEY (v)"}
    for table, rewrite in tables.items():
        primary.sql(f"CREATE TABLE {table} (k int PRIMARY KEY, v int NOT NULL) USING loosekv", f"INSERT INTO {table} SELECT i, i FROM generate_series(1, 50) i", rewrite)
    wait_for_replay(primary, standby)
    for table, rewrite in tables.items():
        found = standby.sql(f"SELECT count(*) FROM {table}", f"SELECT v FROM {table} WHERE k = 7")
        if found.split() != ["50", "7"]:
            raise lib.Failure(f"read on the standby after {rewrite}: {found}")
    primary.sql(f"DROP TABLE {', '.join(tables)}")


def access_methods(primary, standby):
    """A table goes to heap and back, and its key with it: a session of the standby that has read it before reads what it is now."""
    primary.sql("CREATE TABLE l7 (k int PRIMARY KEY, v int UNIQUE) USING heap", "INSERT INTO l7 SELECT i, -i FROM generate_series(1, 1000) i",
                "ALTER TABLE l7 SET ACCESS METHOD loosekv", "CREATE TABLE refers (k int REFERENCES l7)")
    wait_for_replay(primary, standby)
    reads = ("SELECT count(*) || ' of ' || sum(v) FROM l7 WHERE k BETWEEN 1 AND 500;\nSELECT 'row', k FROM l7 WHERE k = {0};\n"
             "SELECT 'by v', k FROM l7 WHERE v = -{0};\n")
    # Its reads are not to be cancelled.
    standby.reload("max_standby_streaming_delay = '30s'")
    session = lib.Psql(standby, "SET enable_seqscan = off;\n" + reads.format(1))
    for n, method in enumerate(("heap", "loosekv", "heap", "loosekv"), 2):
        primary.sql(f"ALTER TABLE l7 SET ACCESS METHOD {method}", f"UPDATE l7 SET v = v - 1000 WHERE k = {1000 - n}", f"INSERT INTO refers VALUES ({n})")
        wait_for_replay(primary, standby)
        seen = session.ask(reads.format(n))
        if seen != ["500 of -125250", f"row|{n}", f"by v|{n}"]:
            raise lib.Failure(f"read on the standby after SET ACCESS METHOD {method}: {seen}")
    session.finish()
    standby.reload("max_standby_streaming_delay = '0'")
    primary.sql("DROP TABLE refers, l7")


def wait_until_cut(primary, table, pages):
    """Until the file of a table that nobody uses has become as short. Its end is free; rows with keys below 10 are updated."""
    size, looks = f"SELECT pg_relation_size('{table}') / 8192", 0
    primary.sql("CREATE TABLE beside (k int PRIMARY KEY) USING loosekv")
    while int(primary.sql(size)) > pages:
        looks += 1
        if looks > 300:
            raise lib.Failure(f"the file of an idle table has {primary.sql(size)} pages still, and not {pages}")
        if looks % 80 == 1:
            primary.sql(*[f"UPDATE {table} SET v = v || 'x' WHERE k < 10", f"SELECT loosekv.compact('{table}')"] * 2)
        time.sleep(0.2)
        if looks % 5 == 0:
            primary.sql(f"INSERT INTO beside VALUES ({looks})")
    primary.sql("DROP TABLE beside")


def cut_file(primary, standby):
    """Who knows how long a file is on the standby goes on to read it when the primary has cut it off."""
    primary.sql("CREATE TABLE cut (k int PRIMARY KEY, v text) USING loosekv",
                "INSERT INTO cut SELECT i, repeat('v', 200) FROM generate_series(1, 60000) i", "SELECT loosekv.compact('cut')")
    wait_for_replay(primary, standby)
    standby.sql("SELECT count(*) FROM cut")
    primary.sql("DELETE FROM cut WHERE k > 1000", "SELECT loosekv.compact('cut')")
    wait_until_cut(primary, "cut", int(primary.sql("SELECT pg_relation_size('cut') / 8192")) // 2)
    wait_for_replay(primary, standby)
    standby.sql("SELECT count(*) FROM cut")
    # The row log grows beyond the file's end, page by page.
    for more in range(1, 41):
        primary.sql(f"INSERT INTO cut SELECT {1000 + 20 * more} - i, repeat('after', 100) FROM generate_series(0, 19) i")
        wait_for_replay(primary, standby)
        found = standby.try_sql("SELECT count(*) FROM cut")
        if found.stdout.strip() != str(1000 + 20 * more):
            raise lib.Failure(f"of a table whose file was cut a standby says: {found.stdout}{found.stderr}")
    primary.sql("DROP TABLE cut")


UNTOUCHED = ("created", "created in a subtransaction", "emptied", "emptied in the midst", "rewritten")


def make_untouched(primary):
    """Tables whose files nobody has read or written on the primary since they were made."""
    names = [f'"{name}"' for name in UNTOUCHED]
    created, inside, emptied, midst, rewritten = names
    columns = "(a int, v text) USING loosekv WITH (autovacuum_enabled = off)"
    primary.sql(*[f"CREATE TABLE {name} {columns}" for name in (created, rewritten, emptied)],
                f"INSERT INTO {emptied} SELECT i, 'v' FROM generate_series(1, 100) i", f"TRUNCATE {emptied}", f"ALTER TABLE {rewritten} ALTER a TYPE bigint")
    primary.sql(stdin=f"BEGIN; SAVEPOINT s; CREATE TABLE {inside} {columns}; RELEASE s; COMMIT;\n"
                      f"BEGIN; CREATE TABLE {midst} {columns}; INSERT INTO {midst} VALUES (1); SAVEPOINT s; INSERT INTO {midst} VALUES (2);\n"
                      f"TRUNCATE {midst}; ROLLBACK TO s; TRUNCATE {midst}; COMMIT;\n")
    return names


def untouched(primary, standby):
    """Tables whose files have no pages yet are empty on a standby, too, and then have what comes to them."""
    names = make_untouched(primary)
    wait_for_replay(primary, standby)
    for name in names:
        if standby.sql(f"SELECT pg_relation_size('{name}')") != "0":
            raise lib.Failure(f"the file of table {name}, which nobody has used, has pages: nothing is tested")
    looks = [f"SELECT count(*), sum(a) FROM {name}" for name in names]
    for name in names:
        standby.sql(f"EXPLAIN SELECT * FROM {name}", f"EXPLAIN ANALYZE SELECT * FROM {name} WHERE a = 1")
        for look, expected in ((f"SELECT count(*) FROM {name}", "0"), (f"SELECT * FROM loosekv.check('{name}')", ""),
                               (f"SELECT * FROM loosekv.runs('{name}')", ""), (f"SELECT count(*) FROM loosekv.stats WHERE tablename = '{name.strip(chr(34))}'", "1")):
            found = standby.sql(look)
            if found != expected:
                raise lib.Failure(f"of table {name}, which nobody has used, a standby says at {look}: {found}")
    tables = [part for name in names for part in ("-t", name)]
    done = subprocess.run(["pg_dump", "--no-sync", *tables], env=standby.environment(), text=True, capture_output=True, timeout=120)
    if done.returncode != 0:
        raise lib.Failure(f"pg_dump on a standby, of tables that nobody has used: {done.stderr}")
    # Snapshots from before the first row, and those who read while it comes.
    session = lib.Psql(standby, "BEGIN ISOLATION LEVEL REPEATABLE READ;\n" + "".join(f"{look};\n" for look in looks))
    for number, name in enumerate(names):
        primary.sql(f"INSERT INTO {name} SELECT i, repeat('w', 200) FROM generate_series(1, 3000) i", *[f"SELECT loosekv.flush('{name}')"] * (number % 2))
        primary.sql(f"DELETE FROM {name} WHERE a % 3 = 0", f"INSERT INTO {name} VALUES (-1)")
        wait_for_replay(primary, standby)
        if standby.sql(looks[number]) != primary.sql(looks[number]) or standby.sql(f"SELECT * FROM loosekv.check('{name}')"):
            raise lib.Failure(f"table {name}, which a standby has read before it had a page, is there: {standby.sql(looks[number])}")
    output, error = session.finish("".join(f"SELECT 'then', count(*) FROM {name};\n" for name in names) + "COMMIT;\n")
    if error and "conflict with recovery" not in error or "then" in output.replace("then|0", ""):
        raise lib.Failure(f"a snapshot from before the first rows of tables sees: {output} {error}")
    primary.sql(f"DROP TABLE {', '.join(names)}")


def old_cursor(primary, standby):
    """With feedback, a transaction of the standby is not cancelled however much is rewritten beside it."""
    rows = "SELECT i, repeat(md5((i * {0})::text), 6) FROM generate_series(1, 20000) i"
    standby.sql("ALTER SYSTEM SET hot_standby_feedback = on", "ALTER SYSTEM SET max_standby_streaming_delay = '500ms'", "SELECT pg_reload_conf()")
    primary.sql("CREATE TABLE l9 (k int PRIMARY KEY, v text) USING loosekv", f"INSERT INTO l9 {rows.format(1)}", "SELECT loosekv.flush('l9')")
    wait_for_replay(primary, standby)
    session = lib.Psql(standby, "BEGIN ISOLATION LEVEL REPEATABLE READ;\nDECLARE c CURSOR FOR SELECT md5(k || v) FROM l9;\nFETCH 1 FROM c;\n"
                       "SELECT sum(length(v)), md5(string_agg(v, ',' ORDER BY k)) FROM l9;\n")
    before = session.first
    deadline = time.monotonic() + 30
    while primary.sql("SELECT count(*) FROM pg_stat_replication WHERE backend_xmin IS NOT NULL") == "0":
        if time.monotonic() > deadline:
            raise lib.Failure("the standby reports no snapshot")
        time.sleep(0.1)
    waiting = 0
    for number in range(2, 5):
        primary.sql("UPDATE l9 SET v = v || 'u'", "DELETE FROM l9 WHERE k % 7 = 0", f"INSERT INTO l9 {rows.format(number)} ON CONFLICT DO NOTHING", "VACUUM l9",
                    "SELECT loosekv.flush('l9')", "SELECT loosekv.compact('l9')")
        wait_for_replay(primary, standby)
        waiting = max(waiting, int(primary.sql("SELECT waiting_bytes * 2 - file_bytes FROM loosekv.stats WHERE tablename = 'l9'")))
        time.sleep(0.8)
    if waiting <= 0:
        raise lib.Failure("less than half of the file waits for the standby: too little was tested")
    output, error = session.finish("FETCH ALL FROM c;\nSELECT sum(length(v)), md5(string_agg(v, ',' ORDER BY k)) FROM l9;\nCOMMIT;\n", timeout=120)
    after = output.split()
    if error or before[1:] != after[-1:] or len(after) != 20000:
        raise lib.Failure(f"a transaction of the standby, with feedback: {len(after)} rows, {before[1:]}, then {after[-1:]}. {error}")
    # Once it has ended, what waited for it is used again.
    deadline = time.monotonic() + 60
    while True:
        primary.sql("UPDATE l9 SET v = v || 'w' WHERE k < 2000", "SELECT loosekv.compact('l9')")
        if primary.sql("SELECT waiting_bytes * 4 < file_bytes FROM loosekv.stats WHERE tablename = 'l9'") == "t":
            break
        if time.monotonic() > deadline:
            raise lib.Failure("what waited for the standby still does: " + primary.sql("SELECT waiting_bytes, file_bytes FROM loosekv.stats WHERE tablename = 'l9'"))
        time.sleep(0.2)
    # Nothing waits for a standby that has gone.
    standby.kill_all()
    wait_until(primary, "SELECT count(*) = 0 FROM pg_stat_replication", "the standby is still there")
    for _ in range(5):
        primary.sql("UPDATE l9 SET v = v || 'x' WHERE k < 2000", "SELECT loosekv.compact('l9')")
    if primary.sql("SELECT waiting_bytes * 4 < file_bytes FROM loosekv.stats WHERE tablename = 'l9'") != "t":
        raise lib.Failure("what is given up waits for a standby that has gone: " + primary.sql("SELECT waiting_bytes, file_bytes FROM loosekv.stats WHERE tablename = 'l9'"))
    standby.start()
    primary.sql("DROP TABLE l9")
    standby.sql("ALTER SYSTEM RESET hot_standby_feedback", "ALTER SYSTEM RESET max_standby_streaming_delay", "SELECT pg_reload_conf()")


class Waiting:
    """A session on the standby with a snapshot that is older than what the primary does next."""

    def __init__(self, standby):
        self.session = lib.Psql(standby, "BEGIN ISOLATION LEVEL REPEATABLE READ;\n")
        self.first = self.look()

    def look(self):
        return self.session.ask("SELECT count(*) || ' ' || sum(v) FROM late;\n")

    def sleep(self, seconds):
        """Whether it was cancelled."""
        error = self.session.finish(f"SELECT pg_sleep({seconds});\n", timeout=seconds + 60)[1]
        if error and "conflict with recovery" not in error:
            raise lib.Failure(f"a session on the standby was told: {error}")
        return error != ""


def wait_until(primary, query, otherwise):
    deadline = time.monotonic() + 60
    while primary.sql(query) != "t":
        if time.monotonic() > deadline:
            raise lib.Failure(f"{otherwise}: " + primary.sql("TABLE loosekv.horizon"))
        time.sleep(0.1)


def named_in_horizon(primary, slot):
    """The standby's feedback is that of its process, or of the slot that it uses."""
    sender = "(SELECT pid FROM pg_stat_replication)"
    named = f"holder = 'replication slot' AND name = '{slot}' AND pid = {sender}" if slot else f"holder = 'standby' AND pid = {sender}"
    wait_until(primary, f"SELECT count(*) = 1 AND count(*) = (SELECT count(*) FROM loosekv.horizon) FROM loosekv.horizon WHERE {named} AND xmin IS NOT NULL",
               f"loosekv.horizon does not name the {'slot' if slot else 'standby'} alone")


def delays(primary, standby):
    """max_standby_streaming_delay: -1 has replay wait, a delay has it wait as long and no longer; feedback has nobody wait."""
    primary.sql("CREATE TABLE late (k int PRIMARY KEY, v int) USING loosekv", "INSERT INTO late SELECT i, 1 FROM generate_series(1, 500) i", "SELECT loosekv.flush('late')")
    # Nobody else may keep the old versions.
    primary.reload("autovacuum = off")
    wait_until(primary, "SELECT count(*) = 0 FROM loosekv.horizon", "somebody holds the horizon")
    change = ("UPDATE late SET v = v + 1", "SELECT loosekv.compact('late')", "SELECT txid_current()")

    def behind():
        return primary.sql(f"SELECT pg_current_wal_insert_lsn() > '{standby.sql('SELECT pg_last_wal_replay_lsn()')}'") == "t"

    primary.sql("SELECT pg_create_physical_replication_slot('campaign')")
    for delay, feedback, slot in (("-1", "off", ""), ("2s", "off", ""), ("0", "on", ""), ("0", "on", "campaign")):
        standby.reload(f"max_standby_streaming_delay = '{delay}'", f"hot_standby_feedback = {feedback}", f"primary_slot_name = '{slot}'")
        wait_for_replay(primary, standby)
        session = Waiting(standby)
        if feedback == "on":
            named_in_horizon(primary, slot)
        begun = time.monotonic()
        primary.sql(*change)
        if delay == "-1":
            time.sleep(1)
            if not behind() or session.look() != session.first:
                raise lib.Failure("replay does not wait for a snapshot, though it may wait for ever")
        ended = session.sleep(10 if delay == "2s" else 1)
        waited = time.monotonic() - begun
        if ended != (delay == "2s") or (ended and not 2 <= waited < 10):
            raise lib.Failure(f"with a delay of {delay} and feedback {feedback} a session was {'' if ended else 'not '}cancelled, after {waited:.1f} s")
        wait_for_replay(primary, standby)
    primary.sql("DROP TABLE late")
    standby.reload("primary_slot_name = ''", "hot_standby_feedback = off")
    wait_until(primary, "SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'campaign'", "the standby does not leave its slot")
    primary.sql("SELECT pg_drop_replication_slot('campaign')")
    primary.reload("autovacuum = on")


def restartpoints(standby):
    with open(standby.log, errors="replace") as log:
        return log.read().count("restartpoint complete")


def dump(server):
    for _ in range(20):
        done = subprocess.run(["pg_dump", "--no-sync", "-t", "l1", "-t", "l2"], env=server.environment(), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        if "conflict with recovery" not in done.stderr:
            break
    if done.returncode != 0:
        raise lib.Failure(f"pg_dump: {done.stderr}")
    return [line for line in done.stdout.splitlines() if not line.startswith(("--", "\\restrict", "\\unrestrict"))]


def make_standby(primary, directory, port, *settings):
    standby = lib.Server(directory, port)
    os.makedirs(directory)
    subprocess.run(["chown", "postgres", directory], check=True)
    lib.shell("as_postgres", "pg_basebackup", "-h", primary.directory, "-p", str(primary.port), "-U", "postgres", "-D", standby.data,
              "-X", "stream", "-R", "-c", "fast", "--no-sync")
    standby.configure(f"port = {port}", f"unix_socket_directories = '{directory}'", *settings)
    standby.start()
    return standby


def main(directory, servers):
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else (18 if lib.SHORT else 120)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    print(f"standby: seed {seed}", flush=True)
    primary = lib.Server(os.path.join(directory, "primary"), lib.BASE_PORT + 2)
    servers.append(primary)
    primary.create("max_wal_senders = 10", "wal_keep_size = '16GB'")
    primary.sql(lib.twin_schema())
    writers = [lib.Writer(i) for i in range(4)]
    primary.sql("INSERT INTO h1 SELECT i, i % 50, 'first' FROM generate_series(2000000, 2003000) i",
                "INSERT INTO l1 SELECT i, i % 50, 'first' FROM generate_series(2000000, 2003000) i")
    load = lib.Load(primary, directory, writers + [lib.maintenance, lib.checkpoints], seed).start()
    # A base backup under load.
    standby = make_standby(primary, os.path.join(directory, "standby"), lib.BASE_PORT + 3,
                           "max_standby_streaming_delay = '3s'", "wal_receiver_status_interval = 1", "log_checkpoints = on")
    servers.append(standby)
    load.stop()
    delays(primary, standby)
    old_snapshots(primary, primary)
    old_snapshots(primary, standby)
    between_passes(primary, standby)
    marked_entries(primary, standby)
    changed_keys(primary, standby)
    written_frozen(primary, standby)
    access_methods(primary, standby)
    cut_file(primary, standby)
    untouched(primary, standby)
    old_cursor(primary, standby)
    load = lib.Load(primary, directory, writers + [lib.maintenance, lib.checkpoints], f"{seed}-").start()
    tables = primary.sql("SELECT oid FROM pg_class WHERE relkind = 'r'").split()
    readers = [Reader(standby, f"{seed}-{i}", slow, tables) for i, slow in enumerate((False, False, True))]
    for reader in readers:
        reader.start()
    deadline, kills = time.monotonic() + seconds, 0
    next_kill = time.monotonic() + seconds / 4
    feedback, checked = PHASES[0]
    primary.reload(f"wal_consistency_checking = '{checked}'")
    standby.reload(f"hot_standby_feedback = {feedback}", "max_standby_streaming_delay = '3s'")
    while time.monotonic() < deadline:
        time.sleep(0.2)
        if any(reader.wrong for reader in readers):
            break
        if rng.random() < 0.1:
            standby.try_sql("CHECKPOINT")
        if time.monotonic() > next_kill and kills < 3:
            kills += 1
            if kills % 2:
                # What follows a restartpoint is replayed, on pages that it has written.
                primary.sql("CHECKPOINT")
                wait_for_replay(primary, standby, patience=120)
                standby.sql("CHECKPOINT")
                time.sleep(rng.random())
            feedback, checked = PHASES[kills % 2]
            primary.reload(f"wal_consistency_checking = '{checked}'")
            standby.configure(f"hot_standby_feedback = {feedback}")
            standby.kill_all()
            standby.start()
            next_kill = time.monotonic() + seconds / 4
    load.stop()
    complaints = load.complaints()
    for reader in readers:
        reader.halt.set()
    for reader in readers:
        reader.join(200)
    wrong = [text for reader in readers for text in reader.wrong]
    if wrong:
        raise lib.Failure(f"seed {seed}: a reader was told: " + "\n".join(wrong[:5]) + "\n" + standby.log_tail())
    if complaints:
        raise lib.Failure(f"seed {seed}: sessions were told: " + "\n".join(complaints[:10]))
    lib.verify(primary)
    wait_for_replay(primary, standby)
    lib.verify(standby)
    if dump(primary) != dump(standby):
        raise lib.Failure("the dumps of primary and standby differ")
    promoted(primary, standby, writers, directory, seed)
    transactions = sum(session.sent for session in load.sessions)
    done = sum(r.done for r in readers)
    conflicts = ", ".join(f"{sum(r.conflicts.get(kind, 0) for r in readers)} {kind}" for kind in (*KINDS.values(), "index", "connection"))
    if done == 0 or not restartpoints(standby) or kills < 2:
        raise lib.Failure(f"{done} answers, {restartpoints(standby)} restartpoints, {kills} kills: nothing was tested")
    return (f"{transactions} transactions, {done} comparisons on the standby, conflicts: {conflicts}, {kills} kills of the standby, "
            f"{restartpoints(standby)} restartpoints, with feedback and without, redo checked and not, delays kept, dumps equal, promoted with "
            f"prepared transactions and an unlogged table, no difference")


def outlasted(server):
    """After a promotion: prepared transactions still hold their keys and end as they are told to, an unlogged table is empty."""
    for k in (6_000_000_001, 6_000_000_002):
        blocked = server.try_sql("SET lock_timeout = '200ms'", f"INSERT INTO l1 VALUES ({k})").stderr
        if "ERROR:  55P03" not in blocked:
            raise lib.Failure(f"a key of a prepared transaction is free after a promotion: {blocked}")
    server.sql("COMMIT PREPARED 'yes'", "ROLLBACK PREPARED 'no'")
    if server.sql("SELECT string_agg(k::text, ',') FROM l1 WHERE v = 'prepared'") != "6000000001":
        raise lib.Failure("a prepared transaction did not come out as it was told to after a promotion")
    if server.sql("SELECT count(*) FROM fleeting") != "0":
        raise lib.Failure("an unlogged table is not empty after a promotion")
    server.sql("INSERT INTO fleeting SELECT i, i FROM generate_series(1, 3000) i", "SELECT loosekv.flush('fleeting')")
    if server.sql("SET enable_seqscan = off", "SELECT k FROM fleeting WHERE s = 77") != "77" or server.sql("SELECT * FROM loosekv.check('fleeting')"):
        raise lib.Failure("an unlogged table does not work after a promotion")
    for number, name in enumerate(UNTOUCHED):
        name = f'"{name}"'
        first = [f"SELECT count(*) FROM {name}", f"INSERT INTO {name} SELECT i, 'v' FROM generate_series(1, 1000) i", f"DELETE FROM {name} WHERE a % 2 = 0"]
        server.sql(*first[number % 2:], f"SELECT loosekv.flush('{name}')", f"INSERT INTO {name} VALUES (0, 'v')")


def used_at_last(server):
    """Tables that nobody had used before the promotion."""
    for name in UNTOUCHED:
        found = server.sql(f"SELECT count(*), sum(a) FROM \"{name}\"", f"SELECT * FROM loosekv.check('\"{name}\"')")
        if found != "501|250000":
            raise lib.Failure(f"table {name}, which nobody had used before a promotion, is after it: {found}")


def promoted(primary, standby, writers, directory, seed):
    """An open cursor of the standby's time, promotion, then writes with flushes beside it."""
    primary.sql(stdin="".join(f"BEGIN; INSERT INTO h1 VALUES ({k}, 1, 'prepared'); INSERT INTO l1 VALUES ({k}, 1, 'prepared'); PREPARE TRANSACTION '{name}';\n"
                              for k, name in ((6_000_000_001, "yes"), (6_000_000_002, "no"))))
    primary.sql("CREATE UNLOGGED TABLE fleeting (k int PRIMARY KEY, s int) USING loosekv", "CREATE INDEX fleeting_s ON fleeting (s)",
                "INSERT INTO fleeting SELECT i, i FROM generate_series(1, 3000) i", "SELECT loosekv.flush('fleeting')", "INSERT INTO fleeting VALUES (5000, 5000)")
    names = make_untouched(primary)
    wait_for_replay(primary, standby)
    standby.sql(*[f"SELECT count(*) FROM {name}" for name in names[1:]])
    for what in "fleeting", "loosekv.check('fleeting')", "loosekv.runs('fleeting')":
        told = standby.try_sql(f"SELECT count(*) FROM {what}").stderr
        if "ERROR:  0A000" not in told:
            raise lib.Failure(f"who asks for {what}, of an unlogged table on a standby, is told: {told}")
    if standby.sql("SELECT bool_and(runs IS NULL) FILTER (WHERE tablename = 'fleeting'), count(runs) > 0 FROM loosekv.stats") != "t|t":
        raise lib.Failure("loosekv.stats on a standby, beside an unlogged table")
    for function in "flush", "compact":
        told = standby.try_sql(f"SELECT loosekv.{function}('l1')").stderr
        if "ERROR:  25006" not in told:
            raise lib.Failure(f"who calls loosekv.{function} on a standby is told: {told}")
    primary.stop("immediate")
    cursor = lib.Psql(standby, "BEGIN ISOLATION LEVEL REPEATABLE READ;\nDECLARE c CURSOR FOR SELECT k, md5((s, v, n)::text) FROM l1 ORDER BY k;\n"
                         "SELECT 'h', md5(string_agg(k || md5((s, v, n)::text), ',' ORDER BY k)) FROM h1;\nFETCH 10 FROM c;\n")
    lines = cursor.first
    standby.sql("SELECT pg_promote()")
    outlasted(standby)
    load = lib.Load(standby, directory, writers + [lib.maintenance, lib.checkpoints], f"{seed}-promoted").start()
    time.sleep(4)
    rest, error = cursor.finish("FETCH ALL FROM c;\nCOMMIT;\n", timeout=120)
    load.stop()
    if error:
        raise lib.Failure(f"a cursor over the promotion: {error}")
    rows = [line.split("|") for line in lines[1:] + rest.splitlines() if "|" in line]
    ours = hashlib.md5(",".join(k + value for k, value in rows).encode()).hexdigest()
    if ours != lines[0].split("|")[1]:
        raise lib.Failure(f"a cursor over the promotion returned other rows ({len(rows)})")
    complaints = load.complaints()
    if complaints:
        raise lib.Failure("after the promotion sessions were told: " + "\n".join(complaints[:10]))
    lib.verify(standby)
    used_at_last(standby)
    standby.kill_all()
    standby.start()
    lib.verify(standby)
    used_at_last(standby)


if __name__ == "__main__":
    lib.run("standby", main)
