#!/usr/bin/env python3
"""Power loss campaign: what was written and not synced is gone, all of it or a random part, torn at 512 bytes.

A preloaded library (powerloss/powerloss.c) keeps what a disk would still hold if the power went. After a cut the server starts on that,
and has every transaction that it acknowledged: those of a ledger by number, the twins' by each other. That the cuts do harm is
shown by a disk that lies about fsync for tables, and by fsync = off: both must be found out.

    powerloss.py [ROUNDS [SEED]]
"""
import os
import random
import shutil
import subprocess
import sys
import threading
import time

import lib
from recovery import Ddl, compare_changed

SOURCE = os.path.join(lib.HERE, "powerloss", "powerloss.c")


def compile_shim(directory):
    library, program = os.path.join(directory, "powerloss.so"), os.path.join(directory, "powerloss")
    for output, options in ((library, ["-fPIC", "-shared", "-ldl"]), (program, ["-DCUT"])):
        subprocess.run(["cc", "-std=gnu11", "-O1", "-o", output, SOURCE, *options], check=True)
        os.chmod(output, 0o755)
    return library, program


class Fading(lib.Server):
    """A server whose disk forgets what was not synced."""

    def __init__(self, directory, port, tools, deaf=None):
        super().__init__(directory, port)
        self.library, self.program = tools
        self.area, self.deaf = os.path.join(directory, "area"), deaf

    def start(self, check=True, timeout=60):
        shutil.rmtree(self.area, ignore_errors=True)
        os.makedirs(self.area)
        if os.geteuid() == 0:
            shutil.chown(self.area, "postgres")
        shim = {"LD_PRELOAD": self.library, "POWERLOSS_AREA": self.area, "POWERLOSS_DATA": self.data}
        if self.deaf:
            shim["POWERLOSS_DEAF"] = self.deaf
        os.environ.update(shim)
        try:
            return super().start(check, timeout)
        finally:
            for name in shim:
                del os.environ[name]

    def cut(self, rng, how):
        """The power goes. What it took, in words."""
        self.kill_all()
        done = subprocess.run([self.program, self.data, self.area, how, str(rng.randrange(1 << 32))], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise lib.Failure(f"powerloss: {done.stdout}")
        return [int(part.split()[0]) for part in done.stdout.split(",")]


class Ledger(threading.Thread):
    """Writes numbers, and notes those that the server said it has."""

    def __init__(self, server, number):
        super().__init__(daemon=True)
        self.server, self.number = server, number
        self.acknowledged = set()
        self.next = 0

    def begin(self):
        self.psql = subprocess.Popen(["psql", "-X", "-q", "-A", "-t"], env=self.server.environment(), text=True, stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.writer = threading.Thread(target=self.write, daemon=True)
        self.writer.start()

    def write(self):
        try:
            while True:
                self.next += 1
                self.psql.stdin.write(f"WITH h AS (INSERT INTO h5 VALUES ({self.next}, {self.number})) INSERT INTO l5 VALUES ({self.next}, {self.number});\n"
                                      f"\\if :ERROR\n\\else\n\\echo {self.next}\n\\endif\n")
                self.psql.stdin.flush()
                time.sleep(0.001)
        except (BrokenPipeError, OSError):
            pass

    def read(self):
        for line in self.psql.stdout:
            self.acknowledged.add(int(line))

    def end(self):
        self.psql.wait(60)
        self.reader.join(60)
        self.writer.join(60)
        try:
            self.psql.stdin.close()
        except OSError:
            pass

    def check(self):
        for table in ("h5", "l5"):
            there = {int(n) for n in self.server.sql(f"SELECT n FROM {table} WHERE s = {self.number}").split()}
            lost = self.acknowledged - there
            if lost:
                raise lib.Failure(f"{len(lost)} acknowledged transactions of {len(self.acknowledged)} are not in {table}: {sorted(lost)[:10]}")


SCHEMA = "".join(f"CREATE TABLE {name}5 (n bigint, s int, PRIMARY KEY (n, s)) USING {am};" for name, am in (("h", "heap"), ("l", "loosekv")))
QUIET = ("fsync = on", "full_page_writes = on", "max_wal_size = '64MB'", "wal_init_zero = off")
MINIMAL = ("wal_level = minimal", "max_wal_senders = 0", "wal_skip_threshold = 0")


class Campaign:
    def __init__(self, directory, servers, seed):
        self.directory, self.servers, self.rng, self.seed = directory, servers, random.Random(seed), seed
        self.tools = compile_shim(directory)
        self.count, self.transactions, self.acknowledged = 0, 0, 0
        self.took = [0] * 5
        template = lib.Server(os.path.join(directory, "template"), lib.BASE_PORT)
        servers.append(template)
        template.create(*QUIET)
        template.sql(lib.twin_schema() + SCHEMA)
        template.stop()
        self.template = template

    def server(self, *settings, deaf=None):
        self.count += 1
        server = Fading(os.path.join(self.directory, f"cluster{self.count}"), lib.BASE_PORT, self.tools, deaf)
        subprocess.run(["cp", "-a", self.template.directory, server.directory], check=True)
        server.configure(f"unix_socket_directories = '{server.directory}'", *settings)
        self.servers.append(server)
        server.start()
        return server

    def round(self, server, name, how, ddl=False, check=True):
        """Load, a cut, recovery; whether the server came back right (check: if it did not, that is a failure)."""
        # Without checkpoints all that is in the data files may go, with them what they promise has to be there.
        makers = [lib.Writer(i) for i in range(3)] + [lib.maintenance] + [lib.checkpoints] * (not check or self.rng.random() < 0.6) + [Ddl()] * ddl
        load = lib.Load(server, self.directory, makers, f"{self.seed}-{name}").start()
        ledgers = [Ledger(server, i + 10 * self.count) for i in range(2)]
        for ledger in ledgers:
            offset = server.sql(f"SELECT coalesce(max(n), 0) FROM h5 WHERE s = {ledger.number}")
            ledger.next = int(offset)
            ledger.begin()
        time.sleep(1 + 2 * self.rng.random())
        for session in load.sessions:
            session.halt.set()
        took = server.cut(self.rng, how)
        for ledger in ledgers:
            ledger.end()
        for session in load.sessions:
            session.join(60)
        self.transactions += sum(session.sent for session in load.sessions)
        self.acknowledged += sum(len(ledger.acknowledged) for ledger in ledgers)
        complaints = load.complaints()
        load.forget_complaints()
        try:
            if complaints:
                raise lib.Failure("sessions were told: " + "\n".join(complaints[:10]))
            server.start(timeout=30 if not check else 60)
            for ledger in ledgers:
                ledger.check()
            lib.verify(server)
            if ddl:
                compare_changed(server)
        except lib.Failure as failure:
            if check:
                raise lib.Failure(f"{name} (seed {self.seed}, {how} lost): {failure}")
            return False
        self.took = [a + b for a, b in zip(self.took, took)]
        return True

    def drop(self, server):
        server.kill_all()
        server.stood()
        shutil.rmtree(server.directory, ignore_errors=True)

    def honest(self, rounds, *settings, ddl=False):
        server = self.server(*settings)
        for number in range(rounds):
            self.round(server, f"round {number} {' '.join(settings)}", ("all", "random")[number % 2], ddl)
        self.drop(server)

    def dishonest(self, rounds, *settings, deaf=None):
        """How often it was found out that the disk does not keep what it should."""
        found = 0
        # By chance one cut may lose nothing that matters.
        for number in range(max(rounds, 6)):
            if number >= rounds and found:
                break
            server = self.server(*settings, deaf=deaf)
            server.may_fall = True
            found += not self.round(server, f"bite {number}", "all", check=False)
            self.drop(server)
        if not found:
            raise lib.Failure(f"{max(rounds, 6)} cuts of a disk that keeps nothing ({deaf or settings}) were not noticed")
        return f"{found} of {rounds}"


    def own_sync(self):
        """What a transaction writes to a new file under wal_level minimal is there by its sync at commit alone: without it, for loosekv's
        files and no others, that is noticed."""
        for deaf in (None, "pg_tblspc/"):
            server = self.server(*MINIMAL, "allow_in_place_tablespaces = on", "checkpoint_timeout = '1h'", deaf=deaf)
            server.may_fall = deaf is not None
            server.sql("CREATE TABLESPACE near LOCATION ''")
            server.sql(stdin="".join(f"BEGIN; CREATE TABLE {name}6 (k int PRIMARY KEY, v text) USING {am};\n"
                                     f"INSERT INTO {name}6 SELECT i, repeat('v', i % 200) FROM generate_series(1, 5000) i; DELETE FROM {name}6 WHERE k % 7 = 0; COMMIT;\n"
                                     for name, am in (("h", "heap TABLESPACE pg_default"), ("l", "loosekv TABLESPACE near"))))
            server.cut(self.rng, "all")
            server.start(check=deaf is None)
            done = server.try_sql("SELECT count(*) FROM h6", "SELECT (SELECT count(*) FROM (TABLE h6 EXCEPT ALL TABLE l6) x) + (SELECT count(*) FROM (TABLE l6 EXCEPT ALL TABLE h6) x)",
                                  "SELECT count(*) FROM loosekv.check('l6')")
            whole = done.returncode == 0 and done.stdout.split()[1:] == ["0", "0"]
            if whole != (deaf is None) or (server.processes() and done.stdout.split()[:1] != ["4286"]):
                raise lib.Failure(f"(seed {self.seed}) a table that {'is not' if deaf else 'is'} synced at commit is {'whole' if whole else 'not whole'} after a cut: {done.stdout} {done.stderr}")
            self.drop(server)


def main(directory, servers):
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else (4 if lib.SHORT else 30)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    print(f"powerloss: seed {seed}", flush=True)
    campaign = Campaign(directory, servers, seed)
    campaign.honest(rounds)
    minimal = max(2, rounds // 3)
    campaign.honest(minimal, *MINIMAL, ddl=True)
    transactions, acknowledged, took = campaign.transactions, campaign.acknowledged, campaign.took
    bites = max(1, rounds // 10)
    lying = campaign.dishonest(bites, deaf="base/")
    unsynced = campaign.dishonest(bites, "fsync = off")
    campaign.own_sync()
    if took[0] == 0 or acknowledged == 0:
        raise lib.Failure("nothing was lost, or nothing acknowledged: nothing was tested")
    return (f"{rounds} + {minimal} (wal_level minimal) cuts, {took[0]} blocks lost, {took[1]} torn, {took[2]} unsynced ones kept, {took[3]} files cut short; "
            f"{transactions} transactions, {acknowledged} acknowledged ones in the ledger, no difference; found out: lying disk {lying}, fsync off {unsynced}, a table's own sync missing at commit 1 of 1")


if __name__ == "__main__":
    lib.run("powerloss", main)
