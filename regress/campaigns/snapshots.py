#!/usr/bin/env python3
"""Long snapshots campaign: a transaction that is held open goes on reading its own state; the garbage it held returns after it.

    snapshots.py [SECONDS [SEED]]
"""
import os
import random
import sys
import threading
import time

import lib


class Holder:
    """A session with a snapshot, and what it saw first."""

    LOOK = ("SELECT 'look', " + ", ".join(
        f"(SELECT md5(string_agg(t::text, ',' ORDER BY {key})) FROM {{t}}{n} t)" for n, key in (("1", "k"), ("2", "a, b"), ("3", "s, v, k"))) + ";\n")

    def __init__(self, server, cursor=False):
        self.session = lib.Psql(server, "BEGIN ISOLATION LEVEL REPEATABLE READ;\n", PGAPPNAME="holder")
        self.first = self.look("h")
        self.cursor = cursor
        if self.look("l") != self.first:
            raise lib.Failure("a fresh snapshot sees different twins")
        if cursor:
            self.session.ask("DECLARE c NO SCROLL CURSOR FOR SELECT 'c', k, md5((s, v, n)::text) FROM l1 ORDER BY k;\n"
                             "DECLARE d NO SCROLL CURSOR FOR SELECT 'd', k, md5((s, v, n)::text) FROM h1 ORDER BY k;\n")

    def look(self, twin):
        return self.session.ask(self.LOOK.format(t=twin))[0]

    def check(self):
        if self.look("l") != self.first:
            raise lib.Failure("a held snapshot does not see any more what it saw first")
        wrong = lib.differences("\n".join(self.session.ask(lib.comparison("123").split("\n", 1)[1].replace("COMMIT;\n", ""))))
        if wrong:
            raise lib.Failure(f"a held snapshot sees different twins: {wrong}")
        if self.cursor:
            rows = self.session.ask("FETCH 200 FROM c;\nFETCH 200 FROM d;\n")
            if [r[2:] for r in rows if r.startswith("c|")] != [r[2:] for r in rows if r.startswith("d|")]:
                raise lib.Failure("a held cursor returns other rows than heap's")

    def end(self):
        self.session.finish("COMMIT;\n")


def maintenance(rng):
    """What waits for nobody's snapshot: new indexes would."""
    table = rng.choice(("l1", "l1", "l2", "l3"))
    return rng.choice((f"SELECT loosekv.flush('{table}');\n", f"SELECT loosekv.compact('{table}');\n", f"VACUUM {table};\n", f"ANALYZE {table};\n", "SELECT pg_sleep(0.05);\n"))


def weight(server):
    """Row versions in runs and memtables, and bytes in use, after everything was cleaned up as far as may be."""
    for _ in range(2):
        server.sql(*[f"SELECT loosekv.compact('l{t}')" for t in "123"], *[f"VACUUM l{t}" for t in "123"])
    rows = server.sql("SELECT sum(run_rows + memtable_rows) FROM loosekv.stats")
    return int(rows), int(server.sql("SELECT sum(pg_relation_size(relation)) FROM loosekv.stats"))


def main(directory, servers):
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else (8 if lib.SHORT else 300)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    print(f"snapshots: seed {seed}", flush=True)
    server = lib.Server(os.path.join(directory, "cluster"), lib.BASE_PORT)
    servers.append(server)
    server.create()
    server.sql(lib.twin_schema())
    makers = [lib.Writer(i) for i in range(3)] + [maintenance]
    for t in "hl":
        server.sql(f"INSERT INTO {t}1 SELECT i, i % 50, 'first' FROM generate_series(2000000, 2002000) i")
    load = lib.Load(server, directory, makers, seed).start()
    # A look at much garbage takes long, and long looks under load make more garbage: the load ends in time.
    timer = threading.Timer(seconds, load.halt)
    timer.daemon = True
    timer.start()
    time.sleep(1)
    # One for the whole campaign, one with open cursors, and one that is changed now and then.
    lasting, reading, passing = Holder(server), Holder(server, cursor=True), Holder(server)
    looks, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.5 * rng.random())
        for holder in (lasting, reading, passing):
            holder.check()
            looks += 1
        if rng.random() < 0.3:
            passing.end()
            passing = Holder(server)
        server.sql(*[f"UPDATE {t}1 SET n = n + 1 WHERE k BETWEEN 2000000 AND 2002000" for t in "hl"])
    load.stop()
    transactions = sum(session.sent for session in load.sessions)
    complaints = load.complaints()
    if complaints:
        raise lib.Failure(f"seed {seed}: sessions were told: " + "\n".join(complaints[:10]))
    passing.end()
    held = weight(server)
    for holder in (lasting, reading):
        holder.check()
        holder.end()
    freed = weight(server)
    live = sum(int(server.sql(f"SELECT count(*) FROM l{t}")) for t in "123")
    lib.verify(server)
    if freed[0] > live * 1.02 + 10:
        raise lib.Failure(f"{freed[0]} row versions stay for {live} rows after all snapshots have ended")
    if held[0] <= live:
        raise lib.Failure("the held snapshots held nothing: nothing was tested")
    # What they held is room for what comes.
    load = lib.Load(server, directory, makers, f"{seed}-again").start()
    for _ in range(10):
        server.sql(*[f"UPDATE {t}1 SET n = n + 1 WHERE k BETWEEN 2000000 AND 2002000" for t in "hl"])
    load.stop()
    size = int(server.sql("SELECT sum(pg_relation_size(relation)) FROM loosekv.stats"))
    # (Looks at held snapshots pin what they read, while merges go on: the files may have grown until those ended.)
    room = max(held[1], freed[1])
    if size > room * 1.1:
        raise lib.Failure(f"the files grow from {room} to {size} bytes, though most of it was garbage that nobody holds any more")
    return (f"{transactions} transactions, {looks} looks by held snapshots; {held[0]} row versions while they were held, {freed[0]} after "
            f"({live} rows), files of {room >> 10} kB, and {size >> 10} kB after more load; no difference")


if __name__ == "__main__":
    lib.run("snapshots", main)
