#!/usr/bin/env python3
"""Hostile campaign: bytes flipped in tables, options of all kinds, and those who may not look.

Whatever stands in a file, reading it is an ERROR that names the table, or an answer; never a crash, never an endless loop.

    hostile.py [ROUNDS [SEED]]
"""
import os
import random
import shutil
import subprocess
import sys

import lib

READS = (
    "SELECT count(*), sum(length(v)) FROM t", "SELECT count(*) FROM (SELECT * FROM t ORDER BY k DESC) x", "SELECT sum(length(v)) FROM t WHERE s = 7",
    "SELECT sum(length(v)) FROM t WHERE k = ANY (ARRAY(SELECT generate_series(1, 6000, 50)))", "SELECT count(*) FROM t TABLESAMPLE SYSTEM (50)",
    "SELECT count(*) FROM t WHERE ctid = ANY (ARRAY['(0,1)', '(1,7)', '(9,200)']::tid[])", "SELECT count(*) FROM loosekv.runs('t')",
    "SELECT * FROM loosekv.table_stats('t')",
)
WRITES = (
    "INSERT INTO t SELECT i, i % 50, 'again' FROM generate_series(1, 200) i ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v",
    "UPDATE t SET s = s + 1 WHERE k BETWEEN 100 AND 160", "DELETE FROM t WHERE k < 50", "SELECT loosekv.flush('t')", "SELECT loosekv.compact('t')",
    "VACUUM t", "ANALYZE t", "REINDEX TABLE t",
)
PAGE = 8192


def damage(rng, data):
    """Changes a few places of the file, in one way or another. What was done."""
    data = bytearray(data)
    pages = len(data) // PAGE
    for _ in range(rng.choice((1, 1, 2, 8))):
        page = rng.choice((0, rng.randrange(pages), rng.randrange(pages)))
        start = page * PAGE
        kind = rng.randrange(7)
        if kind == 0:
            data[start + rng.randrange(PAGE)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            at = start + rng.choice((24, 40, rng.randrange(24, 200)))
            data[at:at + 8] = rng.randbytes(8)[:max(0, min(8, len(data) - at))]
        elif kind == 2:
            at = start + rng.randrange(24, PAGE - 64)
            data[at:at + 64] = rng.choice((b"\0", b"\xff", rng.randbytes(1))) * 64
        elif kind == 3:
            data[start + 24:start + PAGE] = rng.randbytes(PAGE - 24)
        elif kind == 4:
            other = rng.randrange(pages) * PAGE
            data[start:start + PAGE] = data[other:other + PAGE]
        elif kind == 5:
            at = start + rng.randrange(24, PAGE - 8) // 2 * 2
            data[at:at + 2] = rng.choice((0, 1, 0x7fff, 0xffff, 8192, rng.randrange(65536))).to_bytes(2, "little")
        else:
            del data[rng.randrange(1, pages) * PAGE if pages > 1 else 0:]
            if not data:
                data = bytearray(PAGE)
            pages = len(data) // PAGE
    return bytes(data)


# What a damaged table may say; naming it or its file.
ALLOWED = ("XX001", "XX002", "0A000", "55000", "54000", "53200", "57014", "53100", "58030", "XX000", "22021", "22P03", "22003", "22000")


def read_all(server, commands, name, told):
    """Each command gives an answer or a proper error."""
    for command in commands:
        done = server.try_sql("SET statement_timeout = '20s'", "SET enable_seqscan = on" if "=" not in command else "SET enable_seqscan = off", command, timeout=60)
        if done.returncode == 0:
            told["answers"] += 1
            continue
        error = next((line for line in done.stderr.splitlines() if "ERROR:" in line), None)
        if error is None or "server closed the connection" in done.stderr:
            raise lib.Failure(f"{command}: {done.stderr}\n{server.log_tail(20)}")
        code = error.split("ERROR:  ")[1][:5]
        if code == "57014":
            raise lib.Failure(f"{command} does not end: {done.stderr}")
        if code not in ALLOWED:
            raise lib.Failure(f"{command}: {error}")
        if code == "XX000" and "loosekv" not in error and '"t"' not in error and "could not" not in error and "invalid" not in error:
            raise lib.Failure(f"{command}: an error that does not say where: {error}")
        told["errors"] += 1


def flipped_bytes(server, rng, rounds):
    server.sql("CREATE TABLE t (k int PRIMARY KEY, s int, v text) USING loosekv", "ALTER TABLE t ALTER v SET STORAGE EXTERNAL", "CREATE INDEX t_s ON t (s)",
               "INSERT INTO t SELECT i, i % 50, repeat(md5(i::text), i % 9) FROM generate_series(1, 4000) i", "SELECT loosekv.flush('t')",
               "UPDATE t SET s = s + 1 WHERE k % 3 = 0", "INSERT INTO t SELECT i, 7, repeat('large', 4000) FROM generate_series(4001, 4020) i", "SELECT loosekv.flush('t')",
               "INSERT INTO t SELECT i, i % 50, 'in the log' FROM generate_series(5001, 5600) i", "CHECKPOINT")
    path = os.path.join(server.data, server.sql("SELECT pg_relation_filepath('t')"))
    server.sql("CREATE TABLE other (k int PRIMARY KEY, v text) USING loosekv", "INSERT INTO other SELECT i, i FROM generate_series(1, 500) i")
    server.stop("fast")
    with open(path, "rb") as file:
        whole = file.read()
    told = {"answers": 0, "errors": 0}
    for number in range(rounds):
        with open(path, "wb") as file:
            file.write(damage(rng, whole))
        server.start()
        began = server.postmaster(), server.sql("SELECT pg_postmaster_start_time()")
        read_all(server, READS, "t", told)
        read_all(server, rng.sample(WRITES, 3), "t", told)
        # No process may have fallen: a crash would have the server start anew.
        server.stood()
        if server.sql("SELECT count(*) FROM other") != "500":
            raise lib.Failure(f"round {number}: another table suffers")
        server.stop("immediate")
        os.truncate(server.log, 0)
        # Recovery is not to bring back pages of the round before.
        lib.shell("as_postgres", "pg_resetwal", "-f", server.data)
    with open(path, "wb") as file:
        file.write(whole)
    server.start()
    server.sql("DROP TABLE t, other")
    return told


def options(server, rng, rounds):
    """Settings and reloptions of all kinds: taken or refused, the server goes on."""
    names = server.sql("SELECT name FROM pg_settings WHERE name LIKE 'loosekv.%' AND context IN ('user', 'superuser', 'sighup')").split()
    values = ["-1", "0", "1", "64", "2147483647", "-2147483648", "99999999999999999999", "1e308", "nan", "''", "'x'", "on", "off", "none", "zstd", "'1kB'", "'16TB'", "'-5MB'", "0.5", "'0x10'"]
    done = server.try_sql(stdin="\\set ON_ERROR_STOP off\n" + "".join(f"ALTER SYSTEM SET {name} = {value};\n" for name in names for value in values))
    errors = [line for line in done.stderr.splitlines() if "ERROR:" in line]
    strange = [line for line in errors if "ERROR:  22023" not in line and "ERROR:  42601" not in line]
    if strange or done.returncode != 0:
        raise lib.Failure(f"a setting: {strange[:3]} {done.stderr[-500:]}")
    tried = len(names) * len(values)
    if not 0 < len(errors) < tried:
        raise lib.Failure(f"of {tried} settings {len(errors)} are refused")
    for _ in range(rounds):
        name, value = rng.choice(names), rng.choice(values)
        server.try_sql(f"ALTER SYSTEM SET {name} = {value}", "SELECT pg_reload_conf()")
        done = server.try_sql(f"CREATE TABLE o (k int PRIMARY KEY, v text) USING loosekv WITH ({rng.choice(('fillfactor', 'autovacuum_enabled', 'memtable_size', 'nonsense', 'toast_tuple_target', 'parallel_workers'))} = {value})")
        if done.returncode != 0 and not any(f"ERROR:  {code}" in done.stderr for code in ("22023", "42601", "0A000")):
            raise lib.Failure(f"reloption {value}: {done.stderr}")
        server.sql("CREATE TABLE IF NOT EXISTS o (k int PRIMARY KEY, v text) USING loosekv", "INSERT INTO o SELECT i, repeat('o', 100) FROM generate_series(1, 500) i",
                   "SELECT loosekv.flush('o')", "SELECT count(*) FROM o", "DROP TABLE o")
    server.sql("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")
    return f"{tried} settings ({len(errors)} refused)"


def refused(server, role, command, code="42501"):
    done = server.try_sql(f"SET SESSION AUTHORIZATION {role}", command)
    if f"ERROR:  {code}" not in done.stderr:
        raise lib.Failure(f"{role} may: {command}: {done.stdout} {done.stderr}")


def rights(server):
    """Only owners and granted roles read tables and statistics, or act on tables; row level security holds by every way."""
    server.sql("CREATE ROLE owner_role", "CREATE ROLE stranger", "CREATE ROLE reader", "CREATE ROLE watcher IN ROLE pg_read_all_stats", "GRANT CREATE ON SCHEMA public TO owner_role",
               "SET SESSION AUTHORIZATION owner_role", "CREATE TABLE secret (k int PRIMARY KEY, who name, v text) USING loosekv", "CREATE INDEX secret_who ON secret (who)",
               "INSERT INTO secret SELECT i, CASE WHEN i % 2 = 0 THEN 'reader' ELSE 'owner_role' END, 'v' || i FROM generate_series(1, 1000) i",
               "GRANT SELECT, UPDATE, DELETE ON secret TO reader", "ALTER TABLE secret ENABLE ROW LEVEL SECURITY", "CREATE POLICY own ON secret USING (who = current_user)")
    server.sql("SELECT loosekv.flush('secret')")
    for command in ("SELECT * FROM secret", "SELECT count(*) FROM loosekv.runs('secret')", "SELECT * FROM loosekv.table_stats('secret')", "SELECT loosekv.flush('secret')",
                    "SELECT loosekv.compact('secret')", "TRUNCATE secret", "CREATE INDEX ON secret (v)"):
        refused(server, "stranger", command)
    for command in ("SELECT loosekv.flush('secret')", "SELECT loosekv.compact('secret')", "INSERT INTO secret VALUES (5000)", "TRUNCATE secret"):
        refused(server, "reader", command)
    for command in ("SELECT loosekv.flush('secret')", "SELECT * FROM secret"):
        refused(server, "watcher", command)
    if server.sql("SET SESSION AUTHORIZATION stranger", "SELECT count(*) FROM loosekv.stats WHERE tablename = 'secret'") != "0":
        raise lib.Failure("a stranger sees statistics of the table")
    if server.sql("SET SESSION AUTHORIZATION watcher", "SELECT count(*) FROM loosekv.stats WHERE tablename = 'secret'") != "1":
        raise lib.Failure("pg_read_all_stats does not see the table's statistics")
    mine = ("SELECT count(*) FROM secret", "SELECT count(*) FROM secret WHERE k BETWEEN 1 AND 1000", "SELECT count(*) FROM secret WHERE who IN ('owner_role', 'reader')",
            "SELECT count(*) FROM secret TABLESAMPLE SYSTEM (100)")
    for command in mine:
        for path in ("SET enable_seqscan = on", "SET enable_seqscan = off"):
            if server.sql("SET SESSION AUTHORIZATION reader", path, command) != "500":
                raise lib.Failure(f"row level security does not hold: {command}")
    for command in ("SELECT count(*) FROM secret WHERE k = 1", "WITH u AS (UPDATE secret SET v = 'x' WHERE k < 10 AND k % 2 = 1 RETURNING 1) SELECT count(*) FROM u",
                    "WITH d AS (DELETE FROM secret WHERE k = 3 RETURNING 1) SELECT count(*) FROM d"):
        if server.sql("SET SESSION AUTHORIZATION reader", command) != "0":
            raise lib.Failure(f"row level security does not hold: {command}")
    # Whatever PUBLIC may call or read in the schema is meant for it; functions do not depend on the caller's search path.
    public = server.sql("SELECT string_agg(p.proname, ',' ORDER BY 1) FROM pg_proc p WHERE pronamespace = 'loosekv'::regnamespace AND proacl IS NULL AND prolang = (SELECT oid FROM pg_language WHERE lanname = 'c') AND prorettype = 'internal'::regtype")
    if public:
        raise lib.Failure(f"PUBLIC may call {public}")
    loose = server.sql("SELECT string_agg(p.proname, ',') FROM pg_proc p JOIN pg_language l ON l.oid = prolang WHERE pronamespace = 'loosekv'::regnamespace AND l.lanname IN ('sql', 'plpgsql') "
                       "AND NOT EXISTS (SELECT FROM unnest(proconfig) c WHERE c LIKE 'search_path=%')")
    if loose:
        raise lib.Failure(f"functions without a search path of their own: {loose}")
    definer = server.sql("SELECT string_agg(proname, ',') FROM pg_proc WHERE pronamespace = 'loosekv'::regnamespace AND prosecdef")
    if definer:
        raise lib.Failure(f"functions that run as their owner: {definer}")
    # Names that would be SQL if they were pasted into it.
    for name in ('"a""; DROP TABLE secret; --"', "\"it's\"", '"%s%n%s"', "pg_temp.hidden"):
        server.sql(f"CREATE TABLE {name} (\"k'\"\"\" int PRIMARY KEY, v text) USING loosekv; INSERT INTO {name} VALUES (1, 'v'), (2, 'w'); SELECT loosekv.flush('{name.replace(chr(39), chr(39) * 2)}'); "
                   f"SELECT * FROM loosekv.stats; DROP TABLE {name}")
        server.try_sql(f"INSERT INTO {name} VALUES (1)")
    server.sql("SELECT 1 FROM secret")


def main(directory, servers):
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else (8 if lib.SHORT else 300)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    print(f"hostile: seed {seed}", flush=True)
    server = lib.Server(os.path.join(directory, "cluster"), lib.BASE_PORT)
    servers.append(server)
    server.create("ignore_checksum_failure = off")
    server.sql("CREATE EXTENSION loosekv")
    rights(server)
    tried = options(server, rng, max(5, rounds // 10))
    server.stop()
    lib.shell("as_postgres", "pg_checksums", "--disable", "--no-sync", "-D", server.data)
    server.start()
    try:
        told = flipped_bytes(server, rng, rounds)
    except lib.Failure as failure:
        raise lib.Failure(f"seed {seed}: {failure}")
    return (f"{rounds} damaged files: {told['errors']} errors, {told['answers']} answers, no crash; {tried}; "
            "rights and row level security hold")


if __name__ == "__main__":
    lib.run("hostile", main)
