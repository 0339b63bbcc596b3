#!/usr/bin/env python3
"""Hostile campaign: bytes flipped in tables, WAL records changed, options of all kinds, and those who may not look.

Whatever stands in a file, reading it is an ERROR that names the table, or an answer; never a crash, never an endless loop. Whatever
stands in a record of the WAL, recovery ends, or stops with a PANIC that says why.

    hostile.py [ROUNDS [SEED]]
"""
import os
import random
import re
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


def read_all(server, commands, name, told, named=True):
    """Each command gives an answer or a proper error, which says where."""
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
        if named and code == "XX000" and "loosekv" not in error and '"t"' not in error and "could not" not in error and "invalid" not in error:
            raise lib.Failure(f"{command}: an error that does not say where: {error}")
        told["errors"] += 1


def swapped_pages(server, path, whole):
    """Data pages of runs in another order: a check tells the owner which keys stand wrong, and nobody else."""
    data, at, swapped = bytearray(whole), PAGE, 0
    while at + 2 * PAGE <= len(data):
        one, other = data[at:at + PAGE], data[at + PAGE:at + 2 * PAGE]
        # Kind of page, and number of its extent.
        if one[24] == 4 and (one[24], one[32:40]) == (other[24], other[32:40]):
            data[at:at + 2 * PAGE], swapped, at = other + one, swapped + 1, at + PAGE
        at += PAGE
    with open(path, "wb") as file:
        file.write(data)
    server.start()
    check = "SELECT finding FROM loosekv.check('t')"
    here, there = server.sql(check), server.sql("SET SESSION AUTHORIZATION monitor", check)
    server.stop("immediate")
    lib.shell("as_postgres", "pg_resetwal", "-f", server.data)
    if here.count("\\x") == 0 or "\\x" in there or there.count("(hidden)") != here.count("\\x"):
        raise lib.Failure(f"{swapped} pages swapped, and the check tells its owner: {here[:2000]}\nand a monitor: {there[:2000]}")


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
    swapped_pages(server, path, whole)
    with open(path, "wb") as file:
        file.write(whole)
    server.start()
    server.sql("DROP TABLE t, other")
    return told


OPTIONS = (*(f"loosekv.{name}" for name in ("compression", "compression_level", "memtable_size", "fan_in", "filter_bits", "key_pages",
                                           "value_log_threshold", "space_percent", "tombstone_percent", "nonsense")),
           "fillfactor", "toast_tuple_target", "nonsense")


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
    server.sql("CREATE TABLE altered (k int PRIMARY KEY, v text) USING loosekv")
    done = server.try_sql(stdin="\\set ON_ERROR_STOP off\n" + "".join(f"ALTER TABLE altered SET ({option} = {value});\n" for option in OPTIONS for value in values))
    spurned, all_options = [line for line in done.stderr.splitlines() if "ERROR:" in line], len(OPTIONS) * len(values)
    strange = [line for line in spurned if not any(f"ERROR:  {code}" in line for code in ("22023", "42601", "22003"))]
    if strange or not 0 < len(spurned) < all_options:
        raise lib.Failure(f"of {all_options} options {len(spurned)} are refused: {strange[:3]} {done.stderr[-500:]}")
    for _ in range(rounds):
        name, value = rng.choice(names), rng.choice(values)
        server.try_sql(f"ALTER SYSTEM SET {name} = {value}", "SELECT pg_reload_conf()")
        option = f"{rng.choice(OPTIONS)} = {rng.choice(values)}"
        for statement in (f"CREATE TABLE o (k int PRIMARY KEY, v text) USING loosekv WITH ({option})", f"ALTER TABLE altered SET ({option})"):
            done = server.try_sql(statement)
            if done.returncode != 0 and not any(f"ERROR:  {code}" in done.stderr for code in ("22023", "42601", "22003")):
                raise lib.Failure(f"{statement}: {done.stderr}")
        server.sql("CREATE TABLE IF NOT EXISTS o (k int PRIMARY KEY, v text) USING loosekv")
        for table in ("o", "altered"):
            server.sql(f"INSERT INTO {table} SELECT i, repeat('o', 100) FROM generate_series(1, 500) i ON CONFLICT (k) DO UPDATE SET v = {table}.v || 'p'",
                       f"SELECT loosekv.flush('{table}')", f"SELECT count(*) FROM {table}")
        server.sql("DROP TABLE o")
    found = server.sql("SELECT count(*) FROM altered", "SELECT * FROM loosekv.check('altered')", "DROP TABLE altered")
    if found != "500":
        raise lib.Failure(f"a table has lost rows by its options: {found}")
    server.sql("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")
    return f"{tried} settings ({len(errors)} refused), {all_options} options ({len(spurned)} refused)"


def refused(server, role, command, code="42501"):
    done = server.try_sql(f"SET SESSION AUTHORIZATION {role}", command)
    if f"ERROR:  {code}" not in done.stderr:
        raise lib.Failure(f"{role} may: {command}: {done.stdout} {done.stderr}")


PUBLIC = "check compact flush memory_parts progress_entries row_cache_counts runs table_stats"


def search_path(server):
    """Whoever calls what the extension has does not call what somebody else has put into the search path."""
    names = ("=", "<>", "<", ">", "<=", ">=", "+", "-", "*", "/", "||", "~")
    types = ("int4, int4", "int8, int8", "int4, int8", "oid, oid", "name, name", "name, text", "text, text", "xid, xid", "regclass, regclass", "regclass, oid")
    server.sql("CREATE SCHEMA evil", "CREATE SEQUENCE evil.called", "CREATE TABLE evil.pg_class (oid oid)", "CREATE TABLE evil.pg_am (oid oid)", "CREATE VIEW evil.pg_stat_activity AS SELECT nextval('evil.called')")
    for kind in types:
        left, right = kind.split(", ")
        server.sql(f"CREATE FUNCTION evil.act({left}, {right}) RETURNS bool LANGUAGE sql AS $$ SELECT pg_catalog.nextval('evil.called') OPERATOR(pg_catalog.>) 0 $$",
                   *[f"CREATE OPERATOR evil.{name} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = evil.act)" for name in names])
    for signature, result in (("age(xid)", "int"), ("pg_relation_size(regclass)", "int8"), ("pg_backend_pid()", "int"), ("current_database()", "name"), ("now()", "timestamptz"),
                              ("has_table_privilege(oid, text)", "bool"), ("pg_has_role(name, text)", "bool"), ("pg_is_other_temp_schema(oid)", "bool")):
        value = "NULL::" + result
        server.sql(f"CREATE FUNCTION evil.{signature} RETURNS {result} LANGUAGE sql AS $$ SELECT CASE WHEN pg_catalog.nextval('evil.called') IS NULL THEN {value} END $$")
    path = "SET search_path = evil, pg_catalog, public"
    called = "SELECT is_called FROM evil.called"
    if server.sql(path, "CREATE TABLE public.lured (k int PRIMARY KEY, s int, v text) USING loosekv", "CREATE INDEX ON public.lured (s)",
                  "INSERT INTO public.lured VALUES (1, 2, 'three'), (4, 5, 'six')", "SELECT loosekv.flush('public.lured')", "SELECT loosekv.compact('public.lured')",
                  "VACUUM public.lured", "TABLE loosekv.stats", "TABLE loosekv.memory", "TABLE loosekv.row_cache", "TABLE loosekv.progress", "TABLE loosekv.horizon", "SELECT loosekv.runs('public.lured')",
                  "SELECT loosekv.check('public.lured')", "SELECT loosekv.table_stats('public.lured')", "ALTER TABLE public.lured ALTER s TYPE bigint", "DROP TABLE public.lured",
                  called).split()[-1] != "f":
        raise lib.Failure("the extension calls what the caller's search path has")
    # The bait is one.
    if server.sql(path, "SELECT age('3'::xid), 'a'::name = 'b'::name", called).split()[-1] != "t":
        raise lib.Failure("nobody calls what the search path has: nothing was tested")
    server.sql("SET client_min_messages = error", "DROP SCHEMA evil CASCADE")


def rights(server):
    """Only owners and granted roles read tables and statistics, or act on tables; row level security holds by every way."""
    server.sql("CREATE ROLE owner_role", "CREATE ROLE stranger", "CREATE ROLE reader", "CREATE ROLE watcher IN ROLE pg_read_all_stats", "GRANT CREATE ON SCHEMA public TO owner_role",
               "SET SESSION AUTHORIZATION owner_role", "CREATE TABLE secret (k int PRIMARY KEY, who name, v text) USING loosekv", "CREATE INDEX secret_who ON secret (who)",
               "INSERT INTO secret SELECT i, CASE WHEN i % 2 = 0 THEN 'reader' ELSE 'owner_role' END, 'v' || i FROM generate_series(1, 1000) i",
               "GRANT SELECT, UPDATE, DELETE ON secret TO reader", "ALTER TABLE secret ENABLE ROW LEVEL SECURITY", "CREATE POLICY own ON secret USING (who = current_user)")
    server.sql("SELECT loosekv.flush('secret')")
    for command in ("SELECT * FROM secret", "SELECT count(*) FROM loosekv.runs('secret')", "SELECT * FROM loosekv.table_stats('secret')", "SELECT loosekv.flush('secret')",
                    "SELECT loosekv.compact('secret')", "SELECT * FROM loosekv.check('secret')", "TRUNCATE secret", "CREATE INDEX ON secret (v)"):
        refused(server, "stranger", command)
    for command in ("SELECT loosekv.flush('secret')", "SELECT loosekv.compact('secret')", "SELECT * FROM loosekv.check('secret')", "INSERT INTO secret VALUES (5000)", "TRUNCATE secret"):
        refused(server, "reader", command)
    for command in ("SELECT loosekv.flush('secret')", "SELECT * FROM secret"):
        refused(server, "watcher", command)
    if server.sql("SET SESSION AUTHORIZATION stranger", "SELECT count(*) FROM loosekv.stats WHERE tablename = 'secret'") != "0":
        raise lib.Failure("a stranger sees statistics of the table")
    if server.sql("SET SESSION AUTHORIZATION watcher", "SELECT count(*) FROM loosekv.stats WHERE tablename = 'secret'") != "1":
        raise lib.Failure("pg_read_all_stats does not see the table's statistics")
    # Keys are data.
    all_keys, no_keys = "t|t|f", "t|f|t"
    keys = "SELECT count(*) > 0, count(*) = count(min_key) + count(max_key) - count(*), count(min_key) + count(max_key) = 0 FROM loosekv.runs('secret')"
    server.sql("CREATE ROLE by_column", "CREATE ROLE beside", "CREATE ROLE monitor IN ROLE pg_monitor", "GRANT SELECT (k) ON secret TO by_column", "GRANT SELECT (v) ON secret TO beside",
               "GRANT pg_read_all_stats TO by_column, beside")
    for role, seen in (("owner_role", all_keys), ("reader", no_keys), ("watcher", no_keys), ("by_column", no_keys)):
        if server.sql(f"SET SESSION AUTHORIZATION {role}", keys) != seen:
            raise lib.Failure(f"keys that {role} sees under row level security: not {seen}")
    server.sql("ALTER TABLE secret DISABLE ROW LEVEL SECURITY")
    for role, seen in (("owner_role", all_keys), ("reader", all_keys), ("watcher", no_keys), ("by_column", all_keys), ("beside", no_keys)):
        if server.sql(f"SET SESSION AUTHORIZATION {role}", keys) != seen:
            raise lib.Failure(f"keys that {role} sees: not {seen}")
    server.sql("ALTER TABLE secret ENABLE ROW LEVEL SECURITY")
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
    # What PUBLIC may call is meant for it, and checks rights itself.
    public = server.sql("SELECT string_agg(p.proname, ' ' ORDER BY p.proname) FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass "
                        "JOIN pg_extension e ON e.oid = d.refobjid WHERE extname = 'loosekv' AND has_function_privilege('public', p.oid, 'EXECUTE')")
    if public != PUBLIC:
        raise lib.Failure(f"PUBLIC may call {public}, and is meant to call {PUBLIC}")
    search_path(server)
    definer = server.sql("SELECT string_agg(proname, ',') FROM pg_proc WHERE pronamespace = 'loosekv'::regnamespace AND prosecdef")
    if definer:
        raise lib.Failure(f"functions that run as their owner: {definer}")
    # Names that would be SQL if they were pasted into it.
    for name in ('"a""; DROP TABLE secret; --"', "\"it's\"", '"%s%n%s"', "pg_temp.hidden"):
        server.sql(f"CREATE TABLE {name} (\"k'\"\"\" int PRIMARY KEY, v text) USING loosekv; INSERT INTO {name} VALUES (1, 'v'), (2, 'w'); SELECT loosekv.flush('{name.replace(chr(39), chr(39) * 2)}'); "
                   f"SELECT * FROM loosekv.stats; DROP TABLE {name}")
        server.try_sql(f"INSERT INTO {name} VALUES (1)")
    server.sql("SELECT 1 FROM secret")


SEGMENT = 16 << 20
APPEND, APPEND_INIT, FLIP = 0x00, 0x10, 0x20


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xffffffff


def crc_table():
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
        table.append(crc)
    return table


CRC_TABLE = crc_table()


class Records:
    """The loosekv records of a segment of the WAL, which can be changed so that they count as whole."""

    def __init__(self, server, start):
        name = server.sql(f"SELECT pg_walfile_name('{start}')")
        self.path = os.path.join("pg_wal", name)
        server.kill_all()
        # It ends with an error, where the WAL does.
        listed = lib.shell("as_postgres", "pg_waldump", "-p", os.path.join(server.data, "pg_wal"), "-s", start, "--rmgr=custom128", check=False).stdout
        with open(os.path.join(server.data, self.path), "rb") as file:
            self.wal = file.read()
        self.places = {APPEND: [], APPEND_INIT: [], FLIP: []}
        for line in listed.splitlines():
            found = re.search(r"len \(rec/tot\): +\d+/ *(\d+),.* lsn: ([0-9A-F]+)/([0-9A-F]+)", line)
            if not found or int(found[3], 16) // SEGMENT != int(start.split("/")[1], 16) // SEGMENT:
                continue
            places = self.bytes_of(int(found[3], 16) % SEGMENT, int(found[1]))
            if places:
                self.places[self.wal[places[16]] & 0xf0].append(places)
        if not all(self.places.values()):
            raise lib.Failure(f"no records of some kind: { {kind: len(found) for kind, found in self.places.items()} }")

    @staticmethod
    def bytes_of(offset, count):
        """Where the bytes of a record are: pages have headers."""
        places = []
        while len(places) < count:
            if offset % PAGE == 0:
                offset += 24 if offset else 40
            if offset >= SEGMENT:
                return []
            places.append(offset)
            offset += 1
        return places

    @staticmethod
    def believed(record):
        """The bytes of the reference to a block that PostgreSQL believes before anybody is asked: the fork, where an image has its hole, the
        block's number. Others there crash recovery of heap's records too, or have it extend the file up to that block."""
        image = record[25] & 0x10  # BKPBLOCK_HAS_IMAGE
        return {25, 30, 31, *range(45, 49)} if image else {25, *range(40, 44)}

    def changed(self, rng):
        """The segment, with one or a few records changed."""
        wal = bytearray(self.wal)
        for _ in range(rng.choice((1, 1, 2, 5))):
            kind = rng.choice((APPEND, APPEND_INIT, FLIP))
            places = rng.choice(self.places[kind])
            record = bytearray(wal[at] for at in places)
            # After the header, and the reference to the block.
            body = min(24 + (30 if kind == FLIP else 40), len(record) - 1)
            at, how = rng.randrange(body, len(record)), rng.randrange(6)
            if how == 0:
                record[16] = record[16] & 0x0f | rng.choice((0, 0x10, 0x20, 0x30, 0xf0))
            elif how == 1:
                record[at] ^= 1 << rng.randrange(8)
            elif how == 2:
                length = min(len(record) - at, rng.choice((1, 2, 4, 8, 16)))
                record[at:at + length] = rng.choice((b"\0", b"\xff", b"\x7f")) * length
            elif how == 3:
                record[body:] = rng.randbytes(len(record) - body)
            elif how == 4:
                length = min(32, len(record) - body)
                record[-length:] = rng.choice((rng.randbytes(length), b"\xff" * length))
            else:
                record[rng.choice(sorted(set(range(24, len(record))) - self.believed(record)))] = rng.randrange(256)
            record[20:24] = crc32c(record[24:] + record[:20]).to_bytes(4, "little")
            for place, byte in zip(places, record):
                wal[place] = byte
        return bytes(wal)


def changed_records(directory, servers, rng, rounds):
    """Recovery of changed records ends with a start, or with a PANIC that says why; then the table can be read, or says what is wrong."""
    server = lib.Server(os.path.join(directory, "wal"), lib.BASE_PORT + 1)
    servers.append(server)
    server.create("autovacuum = off", "bgwriter_lru_maxpages = 0", "checkpoint_timeout = '1h'", "loosekv.workers = 0")
    server.sql("CREATE EXTENSION loosekv", "CREATE TABLE t (k int PRIMARY KEY, s int, v text) USING loosekv", "CREATE INDEX t_s ON t (s)",
               "INSERT INTO t SELECT i, i % 50, repeat('v', i % 90) FROM generate_series(1, 3000) i", "SELECT pg_switch_wal()", "CHECKPOINT")
    start = server.sql("SELECT redo_lsn FROM pg_control_checkpoint()")
    for first in range(3000, 6000, 300):
        server.sql(f"INSERT INTO t SELECT i, i % 50, repeat('v', i % 90) FROM generate_series({first} + 1, {first} + 300) i", f"UPDATE t SET s = s + 1 WHERE k = {first}",
                   *["SELECT loosekv.flush('t')"] * (first % 900 == 0))
    records = Records(server, start)
    saved = server.data + ".saved"
    os.rename(server.data, saved)
    told, outcomes = {"answers": 0, "errors": 0}, {"started": 0, "stopped": 0}
    for number in range(rounds):
        shutil.rmtree(server.data, ignore_errors=True)
        subprocess.run(["cp", "-a", saved, server.data], check=True)
        if number:
            with open(os.path.join(server.data, records.path), "r+b") as file:
                file.write(records.changed(rng))
        open(server.log, "w").close()
        started = server.start(check=number == 0, timeout=30)
        outcomes["started" if started else "stopped"] += 1
        if started:
            # What a record with a right checksum says is believed when it is replayed: an internal error may not know where it was.
            read_all(server, READS + ("SELECT * FROM loosekv.check('t')",), "t", told, named=False)
            read_all(server, rng.sample(WRITES, 3), "t", told, named=False)
            server.stop("immediate")
            server.stood()
        else:
            lines = server.fallen()
            odd = [line for line in lines if "PANIC:" not in line and "terminated by signal 6" not in line]
            if odd or not any("PANIC:" in line for line in lines):
                raise lib.Failure(f"recovery of changed records ends otherwise than by a PANIC: {odd} {server.log_tail()}")
        server.kill_all()
    open(server.log, "w").close()
    if outcomes["stopped"] == 0 and rounds > 20:
        raise lib.Failure("no changed record stopped recovery: nothing was tested")
    return f"{outcomes['started']} starts, {outcomes['stopped']} stops, {told['errors']} errors, {told['answers']} answers"


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
    tried = options(server, rng, max(5, rounds // 4))
    server.stop()
    lib.shell("as_postgres", "pg_checksums", "--disable", "--no-sync", "-D", server.data)
    server.start()
    try:
        told = flipped_bytes(server, rng, rounds)
    except lib.Failure as failure:
        raise lib.Failure(f"seed {seed}: {failure}")
    server.stop()
    try:
        wal = changed_records(directory, servers, rng, 5 if lib.SHORT else rounds)
    except lib.Failure as failure:
        raise lib.Failure(f"seed {seed}: {failure}")
    return (f"{rounds} damaged files: {told['errors']} errors, {told['answers']} answers, no crash; changed WAL records: {wal}; {tried}; "
            "rights and row level security hold")


if __name__ == "__main__":
    lib.run("hostile", main)
