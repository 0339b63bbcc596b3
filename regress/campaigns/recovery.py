#!/usr/bin/env python3
"""Recovery campaign: crashes in the midst of DROP, TRUNCATE, CREATE INDEX and rewrites, in recovery itself, and at first use.

    recovery.py [ROUNDS [SEED]]
"""
import os
import random
import sys
import threading
import time

import lib


class Ddl:
    """One session's tables h4 and l4, which come and go and change."""

    def __call__(self, rng):
        k = rng.randrange(1000)
        change = rng.choice((
            "DROP TABLE IF EXISTS @4;",
            "TRUNCATE @4;",
            f"TRUNCATE @4; INSERT INTO @4 (k, s) SELECT i, i % 9 FROM generate_series({k}, {k} + 300) i;",
            "CREATE INDEX IF NOT EXISTS @4_i ON @4 (s);",
            "DROP INDEX IF EXISTS @4_i;",
            "ALTER TABLE @4 ALTER s TYPE bigint;",
            "ALTER TABLE @4 ALTER s TYPE int;",
            "ALTER TABLE @4 ADD COLUMN IF NOT EXISTS x int DEFAULT 7;",
            "ALTER TABLE @4 DROP COLUMN IF EXISTS x;",
            "ALTER TABLE @4 DROP CONSTRAINT IF EXISTS @4_pkey;",
            "ALTER TABLE @4 DROP CONSTRAINT IF EXISTS @4_pkey; ALTER TABLE @4 ADD PRIMARY KEY (k);",
            "ALTER TABLE @4 ALTER k TYPE bigint;",
            "ALTER TABLE @4 ALTER k TYPE int;",
        ))
        write = rng.choice((
            f"INSERT INTO @4 (k, s, v) SELECT i, i % 9, repeat('v', i % 100) FROM generate_series({k}, {k} + 200) i WHERE NOT EXISTS (SELECT FROM @4 WHERE k = i);",
            f"UPDATE @4 SET s = s + 1 WHERE k < {k};",
            f"DELETE FROM @4 WHERE k > {k};",
            f"UPDATE @4 SET k = k + 2000 WHERE k < {k} AND k < 1000 AND NOT EXISTS (SELECT FROM @4 o WHERE o.k = @4.k + 2000);",
        ))
        create = "CREATE TABLE IF NOT EXISTS @4 (k int PRIMARY KEY, s int, v text) USING &;"
        parts = rng.choice(((change,), (write,), (write, change), (change, write), (change, create, write), (create, write),
                            (write, "SAVEPOINT a;", change, "ROLLBACK TO a;", write)))
        end = "ROLLBACK;" if rng.random() < 0.2 else "COMMIT;"
        text = "".join(part.replace("@", name).replace("&", am) + "\n" for part in parts
                       for name, am in ((("h", "heap"), ("l", "loosekv")) if "SAVEPOINT" not in part and "ROLLBACK" not in part
                                        else (("h", "heap"),)))
        text = f"BEGIN;\n{text}{end}\n"
        if rng.random() < 0.1:
            text += rng.choice(("VACUUM FULL l4;\n", "CLUSTER l4 USING l4_i;\n", "REINDEX TABLE l4;\n", "SELECT loosekv.flush('l4');\n"))
        return text


# Not there, or there already: it is the same for both.
lib.EXPECTED += ("42P01", "42703", "42704", "42P07", "42701", "23502", "22003", "42P16", "0A000")


def compare_changed(server):
    """h4 and l4: both or none, of the same columns and rows."""
    shapes = [server.sql(f"SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum) "
                         f"FROM pg_attribute WHERE attrelid = to_regclass('{name}4') AND attnum > 0 AND NOT attisdropped")
              for name in "hl"]
    if shapes[0] != shapes[1]:
        raise lib.Failure(f"h4 is ({shapes[0]}), l4 is ({shapes[1]})")
    if not shapes[0]:
        return False
    keys = [server.sql(f"SELECT count(*) FROM pg_constraint WHERE conrelid = '{name}4'::regclass AND contype = 'p'") for name in "hl"]
    if keys[0] != keys[1]:
        raise lib.Failure("only one of h4 and l4 has a primary key")
    wrong = lib.differences(server.sql(stdin=lib.comparison("4", ways=False)))
    by_index = server.sql(f"SELECT count(*) FROM (SELECT s, k FROM h4 EXCEPT ALL SELECT l4.s, l4.k FROM generate_series(-5, 2000) g(s), l4 WHERE l4.s = g.s) x WHERE s IS NOT NULL")
    if wrong or by_index != "0":
        raise lib.Failure(f"h4 and l4 differ: {wrong}, by index {by_index}")
    return True


def kill_in_recovery(server, rng):
    """Starts it and kills it while it recovers. False: it had been quicker."""
    starting = threading.Thread(target=server.start, kwargs={"check": False}, daemon=True)
    starting.start()
    while starting.is_alive() and not any("startup recovering" in title for title in server.processes().values()):
        time.sleep(0.001)
    time.sleep(0.3 * rng.random() ** 2)
    server.kill_all()
    starting.join()
    server.kill_all()
    return server.in_crash_recovery()


def main(directory, servers):
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else (6 if lib.SHORT else 40)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    print(f"recovery: seed {seed}", flush=True)
    server = lib.Server(os.path.join(directory, "cluster"), lib.BASE_PORT + 5)
    servers.append(server)
    server.create("max_wal_size = '256MB'", "checkpoint_timeout = '1h'")
    server.sql(lib.twin_schema())
    writers = [lib.Writer(i) for i in range(2)]
    in_recovery = at_first_use = changed = transactions = 0
    number = 0
    # More rounds where recovery was too quick to be met.
    while number < rounds or in_recovery < rounds:
        number += 1
        if number > 4 * rounds:
            raise lib.Failure(f"{in_recovery} of {4 * rounds} kills met a recovery")
        load = lib.Load(server, directory, writers + [Ddl(), lib.maintenance], f"{seed}-{number}").start()
        time.sleep(0.4 + 1.2 * rng.random())
        server.kill_all()
        # Without a server nothing is added to what recovery has to do.
        for session in load.sessions:
            session.halt.set()
        for _ in range(rng.randrange(1, 4)):
            if not kill_in_recovery(server, rng):
                break
            in_recovery += 1
        server.start()
        load.stop()
        for _ in range(rng.randrange(3)):
            uses = [threading.Thread(target=server.try_sql, kwargs={"stdin": lib.comparison()}, daemon=True) for _ in range(3)]
            for use in uses:
                use.start()
            time.sleep(0.15 * rng.random())
            if server.kill_one(rng, "campaign") or server.kill_one(rng, "[local]"):
                at_first_use += 1
            for use in uses:
                use.join()
            server.wait_ready()
        transactions += sum(session.sent for session in load.sessions)
        complaints = load.complaints()
        if complaints:
            raise lib.Failure(f"round {number} (seed {seed}): sessions were told: " + "\n".join(complaints[:10]))
        try:
            lib.verify(server)
            changed += compare_changed(server)
        except lib.Failure as failure:
            raise lib.Failure(f"round {number} (seed {seed}): {failure}")
        load.forget_complaints()
    return (f"{number} crashes in the midst of DDL ({changed} times the table was there afterwards), {in_recovery} in recovery (by its control file), "
            f"{at_first_use} at first use, {transactions} transactions, no difference")


if __name__ == "__main__":
    lib.run("recovery", main)
