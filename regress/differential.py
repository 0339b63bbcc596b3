#!/usr/bin/env python3
"""Seeded differential fuzzer: random statements of three concurrent sessions, and random DDL, on a heap table and its
loosekv twin.

    differential.py DSN SEED STEPS          one run
    differential.py DSN SEED --seconds=N    runs of 1000 steps with seeds from SEED on, for that long

Every statement runs on both tables, in the same session and transaction, each under a savepoint of its own; results, command
tags and SQLSTATEs must be equal, and so must the tables. One statement runs at a time: where it would have to wait for another
session, lock_timeout ends it, on both tables alike.

Explained differences, which are passed over or not provoked:
- Under REPEATABLE READ heap shows two rows with the same key when a transaction inserts a key that its snapshot still
  sees and that somebody else has deleted since. A loosekv key has one visible version: the own one. So that level gets no
  inserts here.
- Which of several rows meets its error first depends on the order of rows. For statements over several rows a duplicate, a
  lock timeout and a serialization failure count as equal. Whether v=v+1 over rows (1,1) and (1,2) violates a unique index on (k,v)
  depends on it too: without a primary key there is none.
- SKIP LOCKED on heap may wait nevertheless, for the older transaction of a chain of updates. loosekv does not.
- Heap checks unique indexes in the order in which they were made, so that a key which was dropped and added again, or whose type
  was changed, comes last. loosekv's key is always the first. From then on a duplicate and a lock timeout count as equal, and
  for ON CONFLICT DO NOTHING a lock timeout and nothing done.
- ON CONFLICT DO NOTHING over two conflicts: heap waits for who has inserted and deleted the key in his transaction; loosekv finds
  that this key can be no conflict, and does nothing because of the other one.
- Under REPEATABLE READ a row that was changed since the snapshot cannot be locked or changed any more. Heap says so once those are
  gone who hold locks on the old version (55P03 here, as it may not wait); loosekv says so at once.
- SKIP LOCKED under REPEATABLE READ over a row that was changed since the snapshot: heap skips it while somebody holds a lock
  on the old version, and fails otherwise. loosekv's locks are on keys; it fails.
"""
import ctypes
import random
import sys
import time

pq = ctypes.CDLL("libpq.so.5")
for name, result in (
    ("PQconnectdb", ctypes.c_void_p),
    ("PQexec", ctypes.c_void_p),
    ("PQresultErrorField", ctypes.c_char_p),
    ("PQgetvalue", ctypes.c_char_p),
    ("PQcmdStatus", ctypes.c_char_p),
    ("PQerrorMessage", ctypes.c_char_p),
):
    getattr(pq, name).restype = result

TWINS = ("fuzz_heap", "fuzz_loosekv")
COMPARE = "(table {0} except all table {1}) union all (table {1} except all table {0})".format(*TWINS)
# The whole of the new row: without other indexes loosekv replaces the old one unread.
WHOLE = "v=excluded.v, w=excluded.w, u=excluded.u, large=excluded.large"
ORDER_DEPENDENT = {"23505", "55P03", "40001"}


class Session:
    def __init__(self, dsn):
        self.connection = ctypes.c_void_p(pq.PQconnectdb(dsn.encode()))
        if pq.PQstatus(self.connection) != 0:
            sys.exit(pq.PQerrorMessage(self.connection).decode())
        self.level = None
        self.savepoints = 0

    def close(self):
        pq.PQfinish(self.connection)

    def run(self, sql):
        """("ok", tag, rows) or ("error", SQLSTATE, message)"""
        result = ctypes.c_void_p(pq.PQexec(self.connection, sql.encode()))
        if pq.PQresultStatus(result) in (1, 2):
            columns = range(pq.PQnfields(result))

            def value(row, column):
                null = pq.PQgetisnull(result, row, column)
                return None if null else pq.PQgetvalue(result, row, column).decode()

            rows = [tuple(value(row, column) for column in columns) for row in range(pq.PQntuples(result))]
            outcome = ("ok", pq.PQcmdStatus(result).decode(), rows)
        else:
            state = pq.PQresultErrorField(result, ord("C"))
            message = pq.PQresultErrorField(result, ord("M")) or pq.PQerrorMessage(self.connection)
            outcome = ("error", (state or b"lost").decode(), (message or b"").decode())
        pq.PQclear(result)
        return outcome

    def run_on(self, table, sql):
        sql = sql.replace("TPKEY", f"{table}_pkey").replace("TINDEX", f"{table}_index")
        sql = f"{sql} ".replace(" T ", f" {table} ").replace("T.", f"{table}.").rstrip()
        if self.level:
            self.run("savepoint twin")
        outcome = self.run(sql)
        if self.level:
            if outcome[0] == "error":
                self.run("rollback to twin")
            self.run("release twin")
        if outcome[0] == "ok":
            # Without a key there may be rows that are equal in what is ordered by.
            order = [row[0] for row in outcome[2]] if "order by" in sql else []
            outcome = ("ok", outcome[1], sorted(outcome[2], key=str), order)
        return outcome


def statement(rnd):
    k, k2, v = rnd.randint(1, 12), rnd.randint(1, 12), rnd.randint(1, 5)
    u = rnd.choice(["null", str(rnd.randint(1, 20))])
    low, high = sorted((k, k2))
    return rnd.choice(
        [
            f"insert into T values ({k},{v},'a{v}',{u}) returning *",
            f"insert into T values ({k},{v},'a',null),({k2 + 12},{v},'b',{u})",
            f"insert into T values ({k},{v},'c',{u}) on conflict do nothing returning *",
            f"insert into T values ({k},{v},'c',{u}) on conflict (k) do nothing returning *",
            f"insert into T values ({k},{v},'d',{u}) on conflict (k) do update set v=T.v+excluded.v, w=excluded.w returning *",
            f"insert into T select i,{v},'s',null from generate_series({low},{high}) i on conflict (k) do update set v=T.v+1",
            f"insert into T values ({k},{v},'p{v}',{u}) on conflict (k) do update set {WHOLE} returning *",
            f"insert into T select i,{v},'q',null from generate_series({low},{high}) i on conflict (k) do update set {WHOLE}",
            f"update T set v=v+{v} where k={k} returning *",
            f"update T set v={v}, w='r{v}', u={u}, large=null where k={k} returning *",
            f"update T set v={v}, w=k::text, u=null, large='small' where k in ({k},{k2})",
            f"update T set v=v+1 where k between {low} and {high} returning k,v",
            f"update T set u={u} where k={k} returning *",
            f"update T set w=repeat('x',{v * 10}) where v={v} returning k",
            f"update T set large=(select string_agg(md5((i*{k})::text),'') from generate_series(1,{v * 60}) i) where k={k2} returning k",
            f"update T set k={k2} where k={k} returning *",
            f"update T set k=k+100 where k between {low} and {high} and k<100 returning k",
            "update T set k=k-100 where k>100 returning k",
            f"insert into T values ({k},{v},'e',{u}) on conflict (u) do update set v=T.v+1, w=T.w||'e' returning *",
            f"update T set v=T.v+s.v from (select sum(v) v from T where k={k2}) s where T.k={k} returning T.*",
            f"delete from T where k={k} returning *",
            f"delete from T where k between {low} and {low + 1} returning *",
            "select * from T order by k",
            f"select * from T where k={k}",
            f"select k,v from T where k between {low} and {high} order by k desc",
            f"select * from T where v={v}",
            f"select * from T where u={3 if u == 'null' else u}",
            f"select k,u from T where u between {low} and {high + 8} order by u, k",
            f"select count(*),sum(k) from T where v in ({v},{v + 1},{k})",
            f"select k,md5(large) from T where k>{low} and v>{v} order by k desc, v, w, u, large limit {v}",
            f"select k from T where k={k} for update",
            f"select k from T where k={k} for no key update",
            f"select k from T where k={k} for share",
            f"select k from T where k={k} for key share",
            f"select k from T where k between {low} and {high} order by k for update skip locked",
            "select k from T order by k for key share skip locked",
            f"select k from T where k={k} for update nowait",
            f"select k from T where k={k} for share nowait",
            f"with d as (delete from T where k={k} returning *) insert into T select k,v+1,w,u from d returning *",
            f"merge into T using (values ({k},{v})) s(k,v) on T.k=s.k when matched and T.v>3 then delete "
            "when matched then update set v=T.v+s.v when not matched then insert values (s.k,s.v,'m',null)",
        ]
    )


def definition(rnd):
    """A statement that changes the table's definition or its storage."""
    n, v = rnd.randint(1, 3), rnd.randint(1, 9)
    return rnd.choice(
        [
            f"alter table T add column x{n} int default {v}",
            f"alter table T add column x{n} text default repeat('d', {v})",
            f"alter table T add column x{n} int generated always as (v + {v}) stored",
            f"alter table T add column x{n} timestamptz default '2026-01-01'",
            f"alter table T drop column x{n}",
            f"alter table T drop column x{n}",
            "alter table T alter column v type bigint",
            "alter table T alter column v type int",
            "alter table T alter column v type numeric using v + 0.5",
            "alter table T alter column k type bigint",
            "alter table T alter column k type int",
            "alter table T alter column w type varchar(200)",
            f"alter table T add constraint positive check (v > {v - 9})",
            "alter table T drop constraint if exists positive",
            "alter table T drop constraint TPKEY, add constraint TPKEY primary key (k)",
            "alter table T drop constraint TPKEY, add constraint TPKEY primary key (k) include (v, w)",
            "alter table T alter column u set not null",
            "alter table T alter column u drop not null",
            "alter table T set unlogged",
            "alter table T set logged",
            "create index TINDEX on T (v, w)",
            "create index TINDEX on T using hash (v)",
            "create index TINDEX on T using brin (k)",
            "create index TINDEX on T ((v + 1)) include (u) where k > 3",
            "create unique index TINDEX on T (k, v)",
            "drop index if exists TINDEX",
            "drop index if exists TINDEX",
            "cluster T using TPKEY",
            "vacuum T",
            "vacuum (full, analyze) T",
            "reindex table T",
            "analyze T",
            "truncate T",
        ]
    )


class Fuzzer:
    def __init__(self, dsn, seed):
        self.rnd = random.Random(seed)
        self.seed = seed
        self.step = 0
        self.history = []
        self.watcher = Session(dsn)
        self.watcher.run("set client_min_messages=error")
        self.watcher.run(f"drop table if exists {', '.join(TWINS)}")
        # Nothing but the key, and flushed often.
        self.plain = self.rnd.random() < 0.3
        unique = " unique" if self.rnd.random() < 0.6 and not self.plain else ""
        self.keyless = self.rnd.random() < 0.2
        self.rekeyed = False
        key = "" if self.keyless else " primary key"
        for table, method in zip(TWINS, ("heap", "loosekv")):
            made = self.watcher.run(f"create table {table}(k int{key}, v int, w text, u int{unique}, large text) using {method}")
            indexed = ("ok",) if self.plain else self.watcher.run(f"create index on {table}(v)")
            if made[0] != "ok" or indexed[0] != "ok":
                sys.exit(f"{made} {indexed}")
        self.sessions = [Session(dsn) for _ in range(3)]
        for session in self.sessions:
            session.run("set lock_timeout='60ms'")
            session.run("set deadlock_timeout='10s'")
            session.run("set client_min_messages=error")

    def note(self, number, text):
        self.history.append(f"{number}: {text}")

    def fail(self, what):
        print(f"seed {self.seed} step {self.step}: {what}")
        for line in self.history[-60:]:
            print("   ", line[:240])
        sys.exit(1)

    def control(self, number, session, dice):
        """Transaction control and maintenance. False: a statement is wanted."""
        rnd = self.rnd
        if dice < 0.12 and not session.level:
            session.level = rnd.choice(["read committed", "read committed", "repeatable read"])
            session.run(f"begin isolation level {session.level}")
            self.note(number, f"begin {session.level}")
        elif dice < 0.12 or (dice < 0.17 and session.level):
            end = rnd.choice(["commit", "commit", "rollback"])
            session.run(end)
            session.level, session.savepoints = None, 0
            self.note(number, end)
        elif dice < 0.20 and session.level:
            if session.savepoints and rnd.random() < 0.6:
                session.run(f"rollback to s{session.savepoints}")
                self.note(number, f"rollback to s{session.savepoints}")
            else:
                session.savepoints += 1
                session.run(f"savepoint s{session.savepoints}")
                self.note(number, f"savepoint s{session.savepoints}")
        elif dice < 0.22 and not any(s.level for s in self.sessions if s is not session):
            self.define(number, session)
        elif dice < 0.225:
            setting = rnd.choice(["enable_seqscan", "enable_indexscan", "enable_bitmapscan", "enable_sort"])
            session.run(f"set {setting}={rnd.choice(['on', 'off'])}")
        elif dice < (0.3 if self.plain else 0.235):
            work = rnd.choice(["flush", "compact"])
            outcome = self.watch(f"select loosekv.{work}('{TWINS[1]}')")
            self.note(number, f"{work} {outcome[0]}")
        else:
            return False
        return True

    def twin_statement(self, number, session):
        sql = statement(self.rnd)
        while session.level == "repeatable read" and ("insert" in sql or "set k=" in sql):
            sql = statement(self.rnd)
        heap, ours = (session.run_on(table, sql) for table in TWINS)
        self.note(number, f"{sql} -> {heap}")
        changed_since = session.level == "repeatable read" and heap[0] == "ok" and ours[:2] == ("error", "40001")
        if "skip locked" in sql and (heap[:2] == ("error", "55P03") or changed_since):
            session.run("rollback")
            session.level, session.savepoints = None, 0
            return
        if heap[0] == ours[0] == "error":
            several = self.keyless or self.rekeyed or "between" in sql or "k>100" in sql or " v=" in sql
            if heap[1] == ours[1] or (several and {heap[1], ours[1]} <= ORDER_DEPENDENT):
                return
            if session.level == "repeatable read" and (heap[1], ours[1]) == ("55P03", "40001"):
                return
        nothing = "on conflict do nothing" in sql and {heap[:2], ours[:2]} == {("error", "55P03"), ("ok", "INSERT 0 0")}
        if heap != ours and not (nothing and (self.rekeyed or heap[0] == "error")):
            self.fail(f"{number}: {sql}\n    heap    {heap}\n    loosekv {ours}")

    def define(self, number, session):
        """DDL: alone, or in a transaction that may yet be rolled back."""
        sql = definition(self.rnd)
        if self.keyless:
            sql = sql.replace("unique index TINDEX on T (k, v)", "unique index TINDEX on T (k, w)")
        # Only an autovacuum can be in the way: it is told to go after deadlock_timeout.
        session.run("set lock_timeout='10s'")
        session.run("set deadlock_timeout='50ms'")
        heap, ours = (session.run_on(table, sql) for table in TWINS)
        session.run("set lock_timeout='60ms'")
        session.run("set deadlock_timeout='10s'")
        self.note(number, f"{sql} -> {heap[:2]}")
        self.rekeyed = self.rekeyed or heap[0] == "ok" and ("add constraint TPKEY" in sql or "alter column k type" in sql)
        if heap[:2] != ours[:2]:
            self.fail(f"{number}: {sql}\n    heap    {heap}\n    loosekv {ours}")

    def watch(self, sql):
        """Not for longer than a moment: a transaction that has changed the table's definition has it for itself."""
        self.watcher.run("set lock_timeout='60ms'")
        outcome = self.watcher.run(sql)
        self.watcher.run("reset lock_timeout")
        return outcome

    def compare(self):
        difference = self.watch(COMPARE)
        if difference[:2] == ("error", "55P03") and any(session.level for session in self.sessions):
            return
        if difference[0] != "ok" or difference[2]:
            self.fail(difference)

    def run(self, steps):
        for self.step in range(steps):
            number = self.rnd.randrange(len(self.sessions))
            session = self.sessions[number]
            if not self.control(number, session, self.rnd.random()):
                self.twin_statement(number, session)
            if self.step % 50 == 0:
                self.compare()
        for session in self.sessions:
            session.run("rollback")
        self.compare()
        print(f"seed {self.seed}: {steps} steps agree", flush=True)
        for session in (*self.sessions, self.watcher):
            session.close()


def main(dsn, seed, length):
    if not length.startswith("--seconds="):
        Fuzzer(dsn, seed).run(int(length))
        return
    end = time.monotonic() + float(length.partition("=")[2])
    while time.monotonic() < end:
        Fuzzer(dsn, seed).run(1000)
        seed += 1


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
