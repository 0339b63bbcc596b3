#!/usr/bin/env python3
"""Crash campaign: kills at random moments under a mixed load; afterwards the twins are the same.

    crash.py [ROUNDS [SEED [index]]]

With `index` the sessions read by secondary indexes and change keys more than anything else, and pages are written out long before
asynchronous commits are.
"""
import os
import random
import signal
import subprocess
import sys
import time

import lib

KINDS = ("everything", "everything", "everything", "immediate", "idle", "active", "checkpointer", "loosekv", "autovacuum",
         "walwriter", "background writer")


def kill(server, rng, kind):
    """Does it; what was done."""
    if kind == "everything":
        server.kill_all()
        return "postmaster"
    if kind == "immediate":
        server.stop("immediate")
        return "immediate"
    title = {"idle": "[local]", "active": "[local]"}.get(kind, kind)
    if server.kill_one(rng, title) is None:
        server.kill_all()
        return "postmaster"
    return "backend" if title == "[local]" else kind


def often_checkpoints(rng):
    """Full-page writes come and go between them: what redo finds on a page may be what the last checkpoint left there."""
    full_pages = f"ALTER SYSTEM SET full_page_writes = {rng.choice(('on', 'off'))};\nSELECT pg_reload_conf();\n" * (rng.random() < 0.3)
    return f"{full_pages}CHECKPOINT;\nSELECT pg_sleep({rng.choice((0, 0.05, 0.5))});\n"


def crash_noticed(server):
    """A backend that crashes by itself is found in the server's log: else sessions that lose their server would say nothing."""
    server.stood()
    sleeper = subprocess.Popen(["psql", "-X", "-q", "-c", "SELECT pg_sleep(60)"], env=server.environment(), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    find = "SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)'"
    while not (victim := server.sql(find)):
        time.sleep(0.05)
    os.kill(int(victim), signal.SIGSEGV)
    sleeper.wait(60)
    server.wait_ready()
    if not server.fallen():
        raise lib.Failure(f"a backend crashed, and nobody notices: {server.log_tail()}")
    server.may_fall = True


def slow_checkpoint(directory, servers):
    """While a checkpoint is on its way to them log pages are changed, become free, are begun anew and free again, and none of it is logged
    as an image: redo, which begins where that checkpoint did, comes by all of it."""
    server = lib.Server(os.path.join(directory, "slow"), lib.BASE_PORT + 1)
    servers.append(server)
    server.create("full_page_writes = off", "checkpoint_timeout = '30s'", "max_wal_size = '4GB'", "shared_buffers = '128MB'",
                  "bgwriter_lru_maxpages = 0", "loosekv.memtable_size = '256kB'", "autovacuum = off")
    # It comes to the table that was made first, and then to the other.
    server.sql("CREATE EXTENSION loosekv", "CREATE TABLE h (k int PRIMARY KEY, v text) WITH (fillfactor = 50)",
               "INSERT INTO h SELECT i, repeat('v', 100) FROM generate_series(1, 300000) i",
               "CREATE TABLE l (k uuid PRIMARY KEY, v text) USING loosekv")
    scripts = {"l": "INSERT INTO l SELECT gen_random_uuid(), repeat('v', 200) FROM generate_series(1, 20);\n",
               "h": "\\set k random(1, 300000)\nUPDATE h SET v = v WHERE k = :k;\n"}
    load = []
    for name, (clients, rate) in {"l": (4, 200), "h": (1, 2000)}.items():
        path = os.path.join(directory, f"{name}.sql")
        with open(path, "w") as file:
            file.write(scripts[name])
        command = ["pgbench", "-n", "-c", str(clients), "-R", str(rate), "-T", "120", "-f", path]
        load.append(subprocess.Popen(command, env=server.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    time.sleep(1)
    server.sql("CHECKPOINT")
    time.sleep(3)
    server.sql("SELECT pg_backup_start('a checkpoint that takes its time', false)")
    before = int(server.sql("SELECT count(*) FROM l"))
    server.kill_all()
    for client in load:
        client.wait(60)
    server.start()
    after, found = int(server.sql("SELECT count(*) FROM l")), server.sql("SELECT * FROM loosekv.check('l')")
    if after < before or found:
        raise lib.Failure(f"after a slow checkpoint: {after} of {before} rows and more, {found}")
    server.stop()
    return after


def main(directory, servers):
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else (6 if lib.SHORT else 30)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    print(f"crash: seed {seed}", flush=True)
    server = lib.Server(os.path.join(directory, "cluster"), lib.BASE_PORT)
    servers.append(server)
    by_index = sys.argv[3:] == ["index"] or (lib.SHORT and rng.random() < 0.5)
    server.create("checkpoint_timeout = '1h'", *(["shared_buffers = '2MB'", "wal_writer_delay = '10s'"] if by_index else []))
    server.sql(lib.twin_schema())
    done, transactions = {}, 0
    writers = [(lib.IndexWriter if by_index else lib.Writer)(i) for i in range(5)]
    for number in range(rounds):
        # Recovery has much to do, or begins at a checkpoint that was just made, or in the midst of one.
        often = rng.random() < 0.5
        server.reload(f"max_wal_size = '{'64MB' if often else '4GB'}'")
        load = lib.Load(server, directory, writers + [lib.maintenance] + [often_checkpoints] * often, f"{seed}-{number}").start()
        # Sometimes right after the last recovery, sometimes later.
        time.sleep(rng.choice((0.2, 1.0, 2.0, 3.0)) * rng.random() + 0.3)
        what = "?"
        for _ in range(rng.choice((1, 1, 1, 2))):
            what = kill(server, rng, rng.choice(KINDS))
            done[what] = done.get(what, 0) + 1
            if what in ("postmaster", "immediate"):
                server.start()
            else:
                server.wait_ready()
                # The load goes on over the postmaster's own restart.
                time.sleep(rng.random())
        load.stop()
        transactions += sum(session.sent for session in load.sessions)
        complaints = load.complaints()
        if complaints:
            raise lib.Failure(f"round {number} (seed {seed}, {what}): sessions were told: " + "\n".join(complaints[:10]))
        try:
            lib.verify(server)
        except lib.Failure as failure:
            raise lib.Failure(f"round {number} (seed {seed}, after {what}): {failure}")
        load.forget_complaints()
        if not lib.SHORT:
            print(f"  round {number}: {what}, {transactions} transactions", flush=True)
    crash_noticed(server)
    slow = slow_checkpoint(directory, servers)
    rows = server.sql("SELECT (SELECT count(*) FROM l1) + (SELECT count(*) FROM l2) + (SELECT count(*) FROM l3)")
    kills = ", ".join(f"{count} {what}" for what, count in sorted(done.items()))
    return f"{rounds} rounds, {sum(done.values())} kills ({kills}), {transactions} transactions, {rows} rows; {slow} rows over a slow checkpoint; no difference"


lib.run("crash", main)
