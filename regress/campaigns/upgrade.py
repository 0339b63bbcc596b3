#!/usr/bin/env python3
"""Upgrade campaign: dump and restore, pg_upgrade by copy and by link, tablespaces, dropped databases, checksums off and on.

    upgrade.py [SEED]
"""
import glob
import os
import random
import re
import shutil
import subprocess
import sys
import time

import lib
from restore import STATE


def dumped(server, directory, servers):
    """pg_dump into a fresh server, with data."""
    fresh = lib.Server(os.path.join(directory, "fresh"), lib.BASE_PORT + 1)
    servers.append(fresh)
    fresh.create()
    dump = subprocess.run(["pg_dump"], env=server.environment(), capture_output=True, text=True, timeout=120)
    if dump.returncode != 0:
        raise lib.Failure(f"pg_dump: {dump.stderr}")
    fresh.sql(stdin=dump.stdout)
    lib.verify(fresh)
    if fresh.sql(STATE) != server.sql(STATE):
        raise lib.Failure("the dump restored is not what was dumped")
    fresh.stop()


def upgraded(server, directory, servers, how, port):
    """pg_upgrade of a stopped server into a new one; `how`: --copy or --link."""
    state = server.sql(STATE)
    server.stop()
    new = lib.Server(os.path.join(directory, f"new{how}"), port)
    servers.append(new)
    new.create()
    new.stop()
    done = lib.shell("as_postgres", "env", "-C", new.directory, "pg_upgrade", "-b", bindir(),
                     "-B", bindir(), "-d", server.data, "-D", new.data, "-U", "postgres", *([how] if how == "--link" else []), "-s", new.directory, check=False)
    if done.returncode != 0:
        raise lib.Failure(f"pg_upgrade {how}: {done.stdout[-3000:]}")
    new.start()
    lib.verify(new)
    if new.sql(STATE) != state:
        raise lib.Failure(f"pg_upgrade {how} changed something")
    return new


def bindir():
    return lib.shell("as_postgres", "pg_config", "--bindir").stdout.strip()


def use(server, directory, seed):
    """It can be written to, flushed, merged and crashed as before."""
    load = lib.Load(server, directory, [lib.Writer(30), lib.Writer(31), lib.maintenance], seed).start()
    time.sleep(1.5)
    load.stop()
    complaints = load.complaints()
    if complaints:
        raise lib.Failure("sessions were told: " + "\n".join(complaints[:10]))
    lib.verify(server)
    server.kill_all()
    server.start()
    lib.verify(server)


def relation_files(spaces):
    """The files of relations in these tablespaces."""
    return [(space, file) for space, path in spaces.items() for file in glob.glob(os.path.join(path, "PG_*", "*", "*"))]


def without_orphans(server, spaces):
    """Removes what moves cut short by a crash have left in empty tablespaces: no relation has these files, with heap as well as here."""
    server.sql("CHECKPOINT")
    for space, file in relation_files(spaces):
        node = re.match(r"\d+", os.path.basename(file)).group()
        owner = server.sql(f"SELECT pg_filenode_relation(oid, {node}) FROM pg_tablespace WHERE spcname = '{space}'")
        if owner:
            raise lib.Failure(f"{file} of {owner} is still in {space}")
        os.remove(file)


def tablespaces(server, directory, rng):
    """Moves of tables, of a whole database, and crashes right after or in the midst of them."""
    spaces = {}
    for number in range(2):
        path = os.path.join(directory, f"space{number}")
        os.makedirs(path)
        if os.geteuid() == 0:
            shutil.chown(path, "postgres")
        server.sql(f"CREATE TABLESPACE space{number} LOCATION '{path}'")
        spaces[f"space{number}"] = path
    for number in range(4):
        target = rng.choice([*spaces, "pg_default"])
        for t in "123":
            server.sql(*[f"UPDATE {twin}{t} SET v = v || 'm' WHERE length(v) % 5 = {number}" for twin in "hl"])
        if number % 2:
            before = len(relation_files(spaces))
            moving = subprocess.Popen(["psql", "-X", "-q", "-c", f"ALTER TABLE l1 SET TABLESPACE {target}"], env=server.environment(),
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if number == 1:
                time.sleep(rng.random() * 0.15)
            else:
                # The moment its new file is there.
                while moving.poll() is None and len(relation_files(spaces)) == before:
                    pass
            server.kill_all()
            moving.wait()
            server.start()
        else:
            server.sql(f"ALTER TABLE l1 SET TABLESPACE {target}", f"ALTER TABLE l2 SET TABLESPACE {target}", f"ALTER INDEX l1_s SET TABLESPACE {target}")
            lib.verify(server)
            server.kill_all()
            server.start()
        lib.verify(server)
    # A database of its own, with a worker at work in it.
    elsewhere = dict(server.environment(), PGDATABASE="moving")
    server.sql("CREATE DATABASE moving TEMPLATE template1")

    def there(*commands):
        done = subprocess.run(["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *[a for c in commands for a in ("-c", c)]], env=elsewhere,
                              text=True, capture_output=True, timeout=120)
        if done.returncode != 0:
            raise lib.Failure(f"{commands}: {done.stderr}")
        return done.stdout.strip()

    there("CREATE EXTENSION loosekv", "CREATE TABLE m (k int PRIMARY KEY, v text) USING loosekv",
          "INSERT INTO m SELECT i, repeat('m', 100) FROM generate_series(1, 20000) i")
    for target in (*spaces, "pg_default"):
        server.sql(f"ALTER DATABASE moving SET TABLESPACE {target}")
        if there("SELECT count(*), sum(k) FROM m") != "20000|200010000":
            raise lib.Failure(f"rows were lost on the way to {target}")
        there("UPDATE m SET v = v || 'x'")
    server.sql("DROP DATABASE moving")
    server.sql("CREATE DATABASE moving TEMPLATE template1")
    there("CREATE EXTENSION loosekv", "CREATE TABLE m (k int PRIMARY KEY) USING loosekv", "INSERT INTO m SELECT generate_series(1, 50000)")
    server.sql("DROP DATABASE moving WITH (FORCE)")
    server.sql("ALTER TABLE l1 SET TABLESPACE pg_default", "ALTER TABLE l2 SET TABLESPACE pg_default", "ALTER INDEX l1_s SET TABLESPACE pg_default")
    without_orphans(server, spaces)
    server.sql(*[f"DROP TABLESPACE {space}" for space in spaces])
    server.kill_all()
    server.start()
    lib.verify(server)


def checksums(server):
    for option in ("--disable", "--enable", "--check"):
        server.stop()
        done = lib.shell("as_postgres", "pg_checksums", option, "--no-sync", "-D", server.data, check=False)
        if done.returncode != 0:
            raise lib.Failure(f"pg_checksums {option}: {done.stdout}")
        server.start()
        lib.verify(server)


def main(directory, servers):
    seed = sys.argv[1] if len(sys.argv) > 1 else str(random.SystemRandom().randrange(1 << 32))
    print(f"upgrade: seed {seed}", flush=True)
    server = lib.Server(os.path.join(directory, "cluster"), lib.BASE_PORT)
    servers.append(server)
    server.create()
    server.sql(lib.twin_schema())
    load = lib.Load(server, directory, [lib.Writer(i) for i in range(3)] + [lib.maintenance], seed).start()
    time.sleep(2 if lib.SHORT else 10)
    load.stop()
    tablespaces(server, directory, random.Random(seed))
    checksums(server)
    server.sql("ALTER TABLE l1 SET ACCESS METHOD heap", "ALTER TABLE l2 SET ACCESS METHOD heap", "ALTER TABLE l2 SET ACCESS METHOD loosekv")
    server.kill_all()
    server.start()
    server.sql("ALTER TABLE l1 SET ACCESS METHOD loosekv")
    lib.verify(server)
    dumped(server, directory, servers)
    copied = upgraded(server, directory, servers, "--copy", lib.BASE_PORT + 2)
    use(copied, directory, f"{seed}-copied")
    linked = upgraded(copied, directory, servers, "--link", lib.BASE_PORT + 3)
    use(linked, directory, f"{seed}-linked")
    return "tables and a database moved between tablespaces over crashes, checksums off and on, dump restored, pg_upgrade by copy and by link: no difference"


if __name__ == "__main__":
    lib.run("upgrade", main)
