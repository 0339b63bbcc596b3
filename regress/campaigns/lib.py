"""What the campaigns share: servers that can be killed, sessions that write twins, and the comparison of twins.

A twin is a pair of tables, heap `h*` and loosekv `l*`, that is written by the same statements in the same transactions.
Whatever happens to the server, afterwards both hold the same rows.
"""
import fcntl
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CLUSTER_SH = os.path.join(HERE, "..", "..", "scripts", "cluster.sh")
SHORT = os.environ.get("SHORT", "") not in ("", "0")
BASE_PORT = int(os.environ.get("PGPORT", "56040"))


class Failure(Exception):
    """The table did not keep its promise."""


# Sessions that lose their server are told the same whether a campaign killed it or it fell by itself: its log tells them apart.
# (Campaigns kill with signal 9 alone.)
FALLEN = re.compile(r"terminated by signal (?!9\b)|\bPANIC:|panicked at|\bTRAP:")
# PostgreSQL's own end of a process that is giving files away at its commit, waits for the checkpointer to note that, and finds
# the postmaster gone instead (RegisterSyncRequest): what it has committed is kept.
ORPHANED = re.compile(r"PANIC:  (XX000: )?cannot abort transaction \d+, it was already committed")


def fallen(lines):
    """Those of a server's log that say that a process crashed."""
    found, orphans = [], False
    for line in lines:
        if "starting PostgreSQL" in line:
            orphans = False
        orphans |= "due to unexpected postmaster exit" in line
        if FALLEN.search(line) and not (orphans and ORPHANED.search(line)):
            found.append(line.strip())
    return found


def work_directory(name):
    path = tempfile.mkdtemp(prefix=f"loosekv-{name.replace(' ', '-')}.", dir=os.environ.get("TMPDIR", "/tmp"))
    os.chmod(path, 0o755)
    return path


def shell(function, *arguments, check=True):
    """Calls something from scripts/cluster.sh."""
    script = '. "$0"; "$@"'
    done = subprocess.run(["bash", "-c", script, CLUSTER_SH, *function.split(), *arguments],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if check and done.returncode != 0:
        raise Failure(f"{function} {' '.join(arguments)}: {done.stdout.strip()}")
    return done


SETTINGS = [
    "loosekv.shared_memory = '64MB'",
    "loosekv.memtable_size = '64kB'",
    "loosekv.fan_in = 3",
    "shared_buffers = '16MB'",
    "fsync = off",  # a killed process loses nothing that it has written
    "max_connections = 40",
    "autovacuum_naptime = 1s",
    "log_min_messages = warning",
    "deadlock_timeout = 100ms",
    "log_checkpoints = off",
    "log_min_error_statement = panic",
]


class Server:
    """A server on a data directory of its own, which may die at any moment."""

    def __init__(self, directory, port):
        self.directory, self.port = directory, port
        self.data = os.path.join(directory, "data")
        self.log = os.path.join(directory, "log")
        self.may_fall = False  # its campaign provokes a PANIC

    def environment(self):
        return dict(os.environ, PGHOST=self.directory, PGPORT=str(self.port), PGUSER="postgres",
                    PGDATABASE="postgres", PGAPPNAME="campaign", PGCONNECT_TIMEOUT="10")

    def create(self, *settings):
        os.environ["PGPORT"] = str(self.port)
        shell("cluster_start", self.directory, *SETTINGS, *settings)

    def start(self, check=True, timeout=60):
        """Starts it again, after whatever has happened."""
        self.bury()
        done = shell("as_postgres", "pg_ctl", "-D", self.data, "-l", self.log, "-w", "-t", str(timeout), "start",
                     check=False)
        if done.returncode != 0 and check:
            raise Failure(f"the server does not start: {self.log_tail()}")
        return done.returncode == 0

    def stop(self, mode="fast", check=True):
        if os.path.exists(os.path.join(self.data, "postmaster.pid")) and self.processes():
            shell("as_postgres", "pg_ctl", "-D", self.data, "-m", mode, "-w", "-t", "60", "stop", check=check)

    def log_tail(self, lines=15):
        try:
            with open(self.log, errors="replace") as log:
                return "".join(log.readlines()[-lines:])
        except FileNotFoundError:
            return ""

    def fallen(self):
        """What its log says of processes that crashed by themselves."""
        try:
            with open(self.log, errors="replace") as log:
                return fallen(log)
        except FileNotFoundError:
            return []

    def stood(self):
        """No process of it has crashed, but those that were killed."""
        lines = self.fallen()
        if lines and not self.may_fall:
            raise Failure(f"a process of {self.directory} crashed: " + "\n".join(lines[:5]))

    def configure(self, *settings):
        with open(os.path.join(self.data, "postgresql.conf"), "a") as conf:
            conf.writelines(line + "\n" for line in settings)

    def reload(self, *settings):
        """Settings that need no restart; new sessions have them."""
        self.configure(*settings)
        self.sql("SELECT pg_reload_conf()")

    def in_crash_recovery(self):
        """Whether the control file says so: state 4, behind its identifier and two versions."""
        with open(os.path.join(self.data, "global", "pg_control"), "rb") as control:
            return int.from_bytes(control.read(20)[16:], "little") == 4

    # Processes.

    def processes(self):
        """Process id -> title, of the live processes that have the data directory."""
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                if os.readlink(f"/proc/{entry}/cwd") != self.data:
                    continue
                with open(f"/proc/{entry}/cmdline", "rb") as title:
                    title = title.read().replace(b"\0", b" ").decode(errors="replace").strip()
                with open(f"/proc/{entry}/stat") as stat:
                    state = stat.read().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if state != "Z" and title:
                found[int(entry)] = title
        return found

    def postmaster(self):
        try:
            with open(os.path.join(self.data, "postmaster.pid")) as file:
                return int(file.readline())
        except (FileNotFoundError, ValueError):
            return None

    def kill_all(self):
        """kill -9 of the postmaster with all children."""
        leader, victims = self.postmaster(), self.processes()
        for pid in ([leader] if leader in victims else []) + [p for p in victims if p != leader]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + 20
        while victims.keys() & self.processes().keys() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.bury()

    def kill_one(self, rng, kind):
        """kill -9 of a random process whose title has `kind`. The title, or None."""
        victims = [(pid, title) for pid, title in self.processes().items()
                   if kind in title and pid != self.postmaster()]
        if not victims:
            return None
        pid, title = rng.choice(sorted(victims))
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return title

    def bury(self, patience=20):
        """Waits until a killed server is gone, and takes its pid file away: the pid may stay, as a zombie."""
        deadline = time.monotonic() + patience
        while self.processes():
            if self.postmaster() in self.processes():
                return
            if time.monotonic() > deadline:
                raise Failure(f"processes stay: {self.processes()}")
            time.sleep(0.02)
        for path in (os.path.join(self.data, "postmaster.pid"), f"{self.directory}/.s.PGSQL.{self.port}.lock"):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass

    def wait_ready(self, patience=60):
        """Until it takes connections (after a crash of a child the postmaster starts anew by itself)."""
        deadline = time.monotonic() + patience
        while True:
            done = self.try_sql("SELECT 1")
            if done.returncode == 0:
                return
            if time.monotonic() > deadline:
                raise Failure(f"the server does not come back: {done.stderr.strip()}\n{self.log_tail()}")
            time.sleep(0.05)

    # SQL.

    def try_sql(self, *commands, stdin=None, timeout=120):
        arguments = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"]
        for command in commands:
            arguments += ["-c", command]
        return subprocess.run(arguments, env=self.environment(), input=stdin, text=True, timeout=timeout,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def activity(self):
        done = self.try_sql("SELECT pid, backend_type, state, wait_event_type, wait_event, pg_blocking_pids(pid), "
                            "left(query, 80) FROM pg_stat_activity WHERE pid <> pg_backend_pid()", timeout=20)
        return done.stdout + done.stderr

    def sql(self, *commands, stdin=None, timeout=120):
        for _ in range(20):
            done = self.try_sql(*commands, stdin=stdin, timeout=timeout)
            # On a standby, where it has only read: autovacuum of the primary may do that to anybody.
            if "conflict with recovery" not in done.stderr:
                break
        if done.returncode != 0:
            raise Failure(f"{' '.join(commands)[:400] or (stdin or '')[:400]}: {done.stderr.strip()}\n{self.log_tail(5)}")
        return done.stdout.strip()


# What a session may be told that says nothing against the table.
EXPECTED = (
    "40001", "40P01",  # serialization, deadlock
    "23505",  # duplicate key (see `suspicious`)
    "25P02",  # the transaction was aborted
    "57P01", "57P02", "57P03", "57P05", "08006", "08003",  # the server went away
    "55P03", "57014", "3B001",  # a savepoint that the aborted transaction never made
)


def suspicious(line):
    """A message that a session should not have been given."""
    if " ERROR:  " not in line and not line.startswith("ERROR:  ") and "FATAL:  " not in line and "PANIC:  " not in line:
        return False
    text = line.split(":  ", 1)[1]
    code = text.split(":")[0].strip()
    if code == "23505":
        # The heap twin comes first: what it lets pass is no duplicate.
        return 'constraint "l' in text
    if code == "40001" and "conflict with recovery" in text:
        return False
    if ORPHANED.search(line):
        # Whether it was one is to be seen in the log.
        return False
    return len(code) == 5 and code not in EXPECTED


class Psql:
    """One that does what it is told and waits for more. An error ends it."""

    def __init__(self, server, script="", **environment):
        self.psql = subprocess.Popen(["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"], env=server.environment() | environment, text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.ended = False
        self.first = self.tell(script)

    def tell(self, script):
        """The lines that the script prints, up to the session's end."""
        self.psql.stdin.write(script + "\\echo ready\n")
        self.psql.stdin.flush()
        lines = []
        while (line := self.psql.stdout.readline()) and line.strip() != "ready":
            lines.append(line.strip())
        self.ended = not line
        return lines

    def ask(self, script):
        """The lines that the script prints; it must not end the session."""
        lines = self.tell(script)
        if self.ended:
            raise Failure(f"a session ended: {self.finish()[1]}")
        return lines

    def finish(self, script="", timeout=60):
        """What it prints at last, and the error that ended it, or nothing."""
        output, error = self.psql.communicate(script, timeout=timeout)
        return output, error if self.psql.returncode != 0 else ""


class Session(threading.Thread):
    """Writes transactions to a psql until told to stop; connects again when the server was killed."""

    def __init__(self, server, seed, transactions, errors):
        super().__init__(daemon=True)
        self.server, self.seed = server, seed
        self.transactions = transactions  # rng -> text of a transaction
        self.halt = threading.Event()
        self.errors, self.sent = errors, 0
        self.psql = None

    def run(self):
        rng = random.Random(self.seed)
        while not self.halt.is_set():
            with open(self.errors, "a") as errors:
                self.psql = subprocess.Popen(
                    ["psql", "-X", "-q", "-A", "-t", "-v", "VERBOSITY=verbose", "-o", "/dev/null"],
                    env=self.server.environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
                    text=True)
            # What stands in the pipe is not done yet: little may.
            fcntl.fcntl(self.psql.stdin, fcntl.F_SETPIPE_SZ, 4096)
            try:
                while not self.halt.is_set():
                    self.psql.stdin.write(self.transactions(rng))
                    self.psql.stdin.flush()
                    self.sent += 1
            except (BrokenPipeError, OSError):
                pass
            if self.halt.is_set():
                # Its transaction commits or does not, like any other.
                self.psql.kill()
            try:
                self.psql.stdin.close()
            except OSError:
                pass
            self.psql.wait()
            if not self.halt.is_set():
                time.sleep(0.05)


class Load:
    """Several sessions."""

    def __init__(self, server, directory, makers, seed):
        self.errors = [os.path.join(directory, f"session-{i}.err") for i in range(len(makers))]
        self.sessions = [Session(server, f"{seed}-{i}", maker, self.errors[i]) for i, maker in enumerate(makers)]

    def start(self):
        for session in self.sessions:
            session.start()
        return self

    def halt(self):
        """Nothing more is begun."""
        for session in self.sessions:
            session.halt.set()

    def stop(self, patience=60):
        self.halt()
        for session in self.sessions:
            try:
                session.psql.kill()
            except (AttributeError, OSError):
                pass
            session.join(patience)
        server = self.sessions[0].server
        deadline = time.monotonic() + patience
        while True:
            left = server.try_sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'campaign' "
                                                    "AND pid <> pg_backend_pid()").stdout.strip()
            if left == "0":
                return
            if time.monotonic() > deadline:
                raise Failure("a session hangs: " + server.activity())
            time.sleep(0.02)

    def complaints(self):
        found = []
        for path in self.errors:
            if os.path.exists(path):
                with open(path, errors="replace") as errors:
                    found += [line.strip() for line in errors if suspicious(line)]
        return found

    def forget_complaints(self):
        for path in self.errors:
            if os.path.exists(path):
                os.truncate(path, 0)


# What may be refused.

FULL = "53200"


def attempt(server, *commands, codes, timeout=300):
    """Does it, or is told one of these codes, with a hint where memory is short. Whether it was done."""
    done = server.try_sql(*commands, timeout=timeout)
    if done.returncode == 0:
        return True
    error = next((line for line in done.stderr.splitlines() if "ERROR:" in line), done.stderr)
    if not any(f"ERROR:  {code}" in error for code in codes):
        raise Failure(f"{commands[-1][:200]}: {done.stderr}\n{server.log_tail(8)}")
    if f"ERROR:  {FULL}" in error and "HINT:" not in done.stderr:
        raise Failure(f"no hint: {done.stderr}")
    return False


# The twins.

def twin_schema():
    tables = []
    # One of ours is compressed: its runs have other pages.
    for name, am, compressed in (("h", "heap", ""), ("l", "loosekv", " WITH (loosekv.compression = zstd)")):
        tables.append(f"""
            CREATE TABLE {name}1 (k bigint PRIMARY KEY, s int, v text, n int NOT NULL DEFAULT 0) USING {am};
            CREATE INDEX {name}1_s ON {name}1 (s);
            CREATE TABLE {name}2 (a text COLLATE "C", b int, v text, n int NOT NULL DEFAULT 0, PRIMARY KEY (a, b)) USING {am}{compressed};
            CREATE TABLE {name}3 (k bigint, s int, v text) USING {am};
            CREATE INDEX {name}3_s ON {name}3 (s);""")
    return "CREATE EXTENSION loosekv;" + "".join(tables)


OWN = 400  # keys of a session, from 1: nobody else writes them
HOT = 40  # keys that all sessions write, from 0 downwards


class Writer:
    """Makes transactions for one session: its own keys freely, shared keys where heap's row locks order the sessions."""

    def __init__(self, number):
        self.number, self.fresh = number, number * 10_000_000

    def key(self, rng):
        return self.number * 100_000 + rng.randrange(1, OWN)

    def own(self):
        return f"k BETWEEN {self.number * 100_000 + 1} AND {self.number * 100_000 + OWN}"

    def value(self, rng):
        size = rng.choice((0, 3, 10, 30, 100, 300, 1500)) if rng.random() < 0.98 else rng.choice((6000, 20000))
        if size > 2000:
            return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=size))
        return "".join(rng.choice("abcdefgh") for _ in range(min(size, 16))) * (size // 16 + 1)

    def __call__(self, rng):
        if rng.random() < 0.02:
            return rng.choice(("SET synchronous_commit = off;\n", "SET synchronous_commit = on;\n"))
        if rng.random() < 0.25:
            return self.both(self.operation(rng), alone=True)
        repeatable = rng.random() < 0.3
        lines = ["BEGIN ISOLATION LEVEL REPEATABLE READ;\n" if repeatable else "BEGIN;\n"]
        depth = 0
        for _ in range(rng.randrange(1, 6)):
            lines.append(self.both(self.shared(rng) if repeatable and rng.random() < 0.5 else self.operation(rng)))
            what = rng.random()
            if what < 0.15:
                depth += 1
                lines.append(f"SAVEPOINT s{depth};\n")
            elif what < 0.25 and depth:
                lines.append(f"ROLLBACK TO s{rng.randrange(1, depth + 1)};\n")
                depth = int(lines[-1].split("s")[-1].rstrip(";\n"))
            elif what < 0.3 and depth:
                lines.append(f"RELEASE s{depth};\n")
                depth -= 1
            elif what < 0.32:
                lines.append("SELECT loosekv.flush('l1');\n")
        lines.append("ROLLBACK;\n" if rng.random() < 0.12 else "COMMIT;\n")
        return "".join(lines)

    def both(self, statement, alone=False):
        first, second = statement.replace("@", "h"), statement.replace("@", "l")
        return f"BEGIN;\n{first}{second}COMMIT;\n" if alone else first + second

    def operation(self, rng):
        k, k2, s, v = self.key(rng), self.key(rng), rng.randrange(50), self.value(rng)
        span = f"k BETWEEN {min(k, k2)} AND {min(k, k2) + 20}"
        return rng.choice((
            lambda: f"INSERT INTO @1 VALUES ({k}, {s}, '{v}') ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v, n = @1.n + 1;\n",
            lambda: f"INSERT INTO @1 VALUES ({k}, {s}, '{v}') ON CONFLICT DO NOTHING;\n",
            lambda: f"INSERT INTO @1 SELECT i, i % 50, '{v}' FROM generate_series({k}, {k} + 30) i ON CONFLICT DO NOTHING;\n",
            lambda: f"UPDATE @1 SET v = '{v}', n = n + 1 WHERE k = {k};\n",
            lambda: f"UPDATE @1 SET s = s + 1 WHERE {span};\n",
            lambda: f"UPDATE @1 SET n = n + 1 WHERE s = {s} AND {self.own()};\n",
            lambda: f"UPDATE @1 SET k = {k2} WHERE k = {k} AND NOT EXISTS (SELECT FROM @1 WHERE k = {k2});\n",
            lambda: f"DELETE FROM @1 WHERE k = {k};\n",
            lambda: f"DELETE FROM @1 WHERE {span};\n",
            lambda: self.copy(rng),
            lambda: f"INSERT INTO @2 VALUES ('{self.number}-{k % 100}', {s}, '{v}') ON CONFLICT (a, b) DO UPDATE SET v = EXCLUDED.v, n = @2.n + 1;\n",
            lambda: f"INSERT INTO @2 SELECT '{self.number}-{k % 100}', i, '{v}', {s} FROM generate_series({s}, {s} + 3) i ON CONFLICT (a, b) DO UPDATE SET v = EXCLUDED.v, n = EXCLUDED.n;\n",
            lambda: f"INSERT INTO @2 SELECT '{self.number}-{k % 100}', i, '{v[:500]}', i FROM generate_series({s}, 50) i ON CONFLICT (a, b) DO UPDATE SET v = EXCLUDED.v, n = EXCLUDED.n;\n",
            lambda: f"DELETE FROM @2 WHERE a = '{self.number}-{k % 100}' AND b < {s};\n",
            lambda: f"UPDATE @2 SET b = b + 100 WHERE a = '{self.number}-{k % 100}' AND b = {s} AND NOT EXISTS (SELECT FROM @2 WHERE a = '{self.number}-{k % 100}' AND b = {s} + 100);\n",
            lambda: f"INSERT INTO @3 SELECT {self.number}, i, '{v[:100]}' FROM generate_series(1, 5) i;\n",
            lambda: f"UPDATE @3 SET s = s + 1 WHERE k = {self.number} AND s = {s};\n",
            lambda: f"DELETE FROM @3 WHERE k = {self.number} AND s < {s};\n",
            # Shared keys: the upsert locks the key in heap before it does here.
            lambda: f"INSERT INTO @1 VALUES (-{k % HOT}, {s}, '{v[:50]}') ON CONFLICT (k) DO UPDATE SET n = @1.n + 1, s = EXCLUDED.s;\n",
            lambda: self.upsert_and_delete(k % HOT),
        ))()

    def upsert_and_delete(self, k):
        return f"INSERT INTO @1 VALUES (-{k}) ON CONFLICT (k) DO UPDATE SET n = @1.n + 1; DELETE FROM @1 WHERE k = -{k};\n"

    def shared(self, rng):
        """Under REPEATABLE READ both twins see the same rows, or the transaction fails."""
        k, s = rng.randrange(HOT), rng.randrange(50)
        return rng.choice((
            lambda: f"UPDATE @1 SET n = n + 1 WHERE k = -{k};\n",
            lambda: f"UPDATE @1 SET s = {s} WHERE k BETWEEN -{k} AND -{k} + 5 AND k <= 0;\n",
            lambda: f"DELETE FROM @1 WHERE k = -{k};\n",
            lambda: f"INSERT INTO @1 VALUES (-{k}, {s}, 'x');\n",
            lambda: f"DELETE FROM @1 WHERE k <= 0 AND s = {s};\n",
            lambda: f"UPDATE @1 SET k = k - 1000 WHERE k = -{k};\n",
            lambda: f"SELECT * FROM @1 WHERE k = -{k} FOR UPDATE;\n",
        ))()

    def copy(self, rng):
        count = rng.choice((1, 20, 200))
        rows = []
        for _ in range(count):
            self.fresh += 1
            rows.append(f"{1_000_000_000 + self.fresh}\t{rng.randrange(50)}\t{self.value(rng)[:200]}\t0\n")
        first = 1_000_000_000 + self.fresh - count
        self.fresh_below = first
        text = "COPY @1 FROM STDIN;\n" + "".join(rows) + "\\.\n"
        # Old ones go, so that the table does not grow for ever.
        if rng.random() < 0.3:
            text += f"DELETE FROM @1 WHERE k BETWEEN {1_000_000_000 + self.number * 10_000_000} AND {first - 400};\n"
        return text


class IndexWriter(Writer):
    """Reads by secondary indexes and changes keys and indexed columns, more than anything else; commits are mostly asynchronous."""

    def __call__(self, rng):
        begin = FORCED.replace("SET LOCAL", "SET") + " SET synchronous_commit = off;\n" if rng.random() < 0.01 else ""
        return begin + super().__call__(rng)

    def operation(self, rng):
        if rng.random() < 0.3:
            return super().operation(rng)
        k, k2, s = self.key(rng), self.key(rng), rng.randrange(50)
        return rng.choice((
            lambda: f"SELECT count(*), sum(k) FROM @1 WHERE s BETWEEN {s} AND {s} + 3;\n",
            lambda: f"SELECT count(*), sum(k) FROM @1 WHERE s = {s};\n",
            lambda: f"UPDATE @1 SET k = {k2} WHERE k = {k} AND NOT EXISTS (SELECT FROM @1 WHERE k = {k2});\n",
            lambda: f"UPDATE @1 SET k = {k2}, s = {s} WHERE k = {k} AND NOT EXISTS (SELECT FROM @1 WHERE k = {k2});\n",
            lambda: f"UPDATE @1 SET s = {s} WHERE k = {k};\n",
            lambda: f"UPDATE @1 SET s = s + 1 WHERE s = {s} AND {self.own()};\n",
            lambda: f"DELETE FROM @1 WHERE s = {s} AND {self.own()};\n",
            lambda: f"INSERT INTO @1 SELECT i, {s}, 'i' FROM generate_series({k}, {k} + 5) i ON CONFLICT (k) DO UPDATE SET s = EXCLUDED.s;\n",
        ))()


def maintenance(rng):
    """What the owner's session does."""
    table = rng.choice(("l1", "l1", "l2", "l3"))
    # psql sends these one by one; each is a transaction of its own.
    return rng.choice((
        f"SELECT loosekv.flush('{table}');\n",
        f"SELECT loosekv.flush('{table}');\n",
        f"SELECT loosekv.compact('{table}');\n",
        f"VACUUM {table};\n",
        f"VACUUM (ANALYZE) {table};\n",
        "DROP INDEX IF EXISTS l1_extra; CREATE INDEX l1_extra ON l1 (s, n);\n",
        "REINDEX INDEX l1_s;\n",
        # What is left of one that a crash or a deadlock ended goes first.
        "DROP INDEX IF EXISTS l1_concurrent; CREATE INDEX CONCURRENTLY l1_concurrent ON l1 (n, s);\n",
        "DROP INDEX IF EXISTS l1_s_ccnew, l1_s_ccnew1, l1_s_ccold, l1_s_ccold1; REINDEX INDEX CONCURRENTLY l1_s;\n",
        "SELECT pg_sleep(0.02);\n",
    ))


def checkpoints(rng):
    return f"CHECKPOINT; SELECT pg_sleep({rng.choice((0.1, 0.5, 2.0))});\n"


COMPARISONS = {
    "extra rows": "SELECT coalesce(string_agg(left(x::text, 80), '; '), '0') FROM (TABLE l{t} EXCEPT ALL TABLE h{t}) x",
    "missing rows": "SELECT coalesce(string_agg(left(x::text, 80), '; '), '0') FROM (TABLE h{t} EXCEPT ALL TABLE l{t}) x",
    "count": "SELECT (SELECT count(*) FROM l{t}) - (SELECT count(*) FROM h{t})",
}
FORCED = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_sort = off; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_memoize = off;"
def by_secondary_index(t):
    """0, or what is found for the values of `s` for which the twins differ: rows here with their TIDs, and rows in heap."""
    found = "(SELECT coalesce(array_agg({what} ORDER BY k)::text, '') FROM {name}{t} x WHERE x.s = g.s)"
    ours, theirs = (found.format(what="(k, n)", name=name, t=t) for name in "lh") if t == "1" else \
                   (found.format(what="(k, left(v, 5))", name=name, t=t) for name in "lh")
    named = found.format(what="(k, ctid)", name="l", t=t)
    return f"""SELECT coalesce(string_agg(g.s || ': here ' || {ours} || ' with ' || {named} || ' heap ' || {theirs}, '; '), '0')
            FROM generate_series(0, 120) g(s)
            WHERE (SELECT count(*) || '/' || coalesce(sum(k), 0) FROM l{t} WHERE l{t}.s = g.s)
               <> (SELECT count(*) || '/' || coalesce(sum(k), 0) FROM h{t} WHERE h{t}.s = g.s)"""


BY_ACCESS = {
    "1": {
        "by key": "SELECT count(*) FROM h1 LEFT JOIN l1 USING (k) WHERE l1.k IS NULL OR (h1.s, h1.v, h1.n) IS DISTINCT FROM (l1.s, l1.v, l1.n)",
        "by secondary index": by_secondary_index("1"),
        "ascending": """SELECT CASE WHEN (SELECT md5(string_agg(k || ':' || n, ',')) FROM (SELECT * FROM l1 ORDER BY k) x)
            IS DISTINCT FROM (SELECT md5(string_agg(k || ':' || n, ',')) FROM (SELECT * FROM h1 ORDER BY k) x) THEN 1 ELSE 0 END""",
        "descending": """SELECT CASE WHEN (SELECT md5(string_agg(k || ':' || n, ',')) FROM (SELECT * FROM l1 ORDER BY k DESC) x)
            IS DISTINCT FROM (SELECT md5(string_agg(k || ':' || n, ',')) FROM (SELECT * FROM h1 ORDER BY k DESC) x) THEN 1 ELSE 0 END""",
    },
    "2": {
        "by key": "SELECT count(*) FROM h2 LEFT JOIN l2 USING (a, b) WHERE l2.a IS NULL OR (h2.v, h2.n) IS DISTINCT FROM (l2.v, l2.n)",
        "ascending": """SELECT CASE WHEN (SELECT md5(string_agg(a || ':' || b || ':' || n, ',')) FROM (SELECT * FROM l2 ORDER BY a, b) x)
            IS DISTINCT FROM (SELECT md5(string_agg(a || ':' || b || ':' || n, ',')) FROM (SELECT * FROM h2 ORDER BY a, b) x) THEN 1 ELSE 0 END""",
    },
    "3": {
        "by secondary index": by_secondary_index("3"),
    },
}


def comparison(tables="123", ways=True):
    """One transaction, one snapshot: a line `what|number` for each comparison, 0 is right."""
    lines = ["BEGIN ISOLATION LEVEL REPEATABLE READ;\n"]
    for t in tables:
        for what, query in COMPARISONS.items():
            lines.append(f"SELECT '{what} in l{t}', ({query.format(t=t)});\n")
    if ways:
        lines.append(FORCED + "\n")
        for t in tables:
            for what, query in BY_ACCESS[t].items():
                lines.append(f"SELECT '{what} in l{t}', ({query});\n")
    lines.append("COMMIT;\n")
    return "".join(lines)


def differences(output):
    return [line for line in output.splitlines() if "|" in line and line.rsplit("|", 1)[1] != "0"]


def details(server):
    """Which rows the secondary indexes find in one twin alone, and whether it is still so."""
    text = ""
    for t in "13":
        by_index = ("SELECT x.s, x.k, x.ctid FROM generate_series(0, 120) g(s), "
                    "LATERAL (SELECT s, k, {c} ctid FROM {n}{t} WHERE {n}{t}.s = g.s) x")
        ours = by_index.format(n="l", t=t, c="ctid::text")
        theirs = by_index.format(n="h", t=t, c="''")
        done = server.try_sql("BEGIN", FORCED, f"SELECT 'l{t} by index only', * FROM ({ours}) l WHERE NOT EXISTS (SELECT FROM h{t} h WHERE (h.s, h.k) = (l.s, l.k)) LIMIT 10",
                              f"SELECT 'h{t} by index only', * FROM ({theirs}) h WHERE NOT EXISTS (SELECT FROM ({ours}) l WHERE (h.s, h.k) = (l.s, l.k)) LIMIT 10")
        text += "\n" + done.stdout + done.stderr
    again = differences(server.try_sql(stdin=comparison()).stdout)
    return text + "\nagain: " + ("; ".join(again) or "no difference any more")


def verify(server, tables="123", check=True):
    """The twins are the same in every way of reading."""
    wrong = differences(server.sql(stdin=comparison(tables)))
    if wrong:
        raise Failure("twins differ: " + "; ".join(wrong) + details(server))
    if check:
        for t in tables:
            found = server.sql(f"SELECT * FROM loosekv.check('l{t}')")
            if found:
                raise Failure(f"loosekv.check('l{t}'): {found[:2000]}")


def run(name, campaign):
    """Runs a campaign in a directory that is kept when it fails; prints one line."""
    directory = work_directory(name)
    begun = time.monotonic()
    servers = []

    def told_to_end(*_):
        raise Failure("told to end before it was done")

    signal.signal(signal.SIGTERM, told_to_end)
    try:
        summary = campaign(directory, servers)
        for server in servers:
            server.stood()
    except (Failure, subprocess.TimeoutExpired) as failure:
        for server in servers:
            server.kill_all()
            for line in server.fallen()[:5]:
                print(line, flush=True)
        print(f"{name}: FAILED after {time.monotonic() - begun:.0f} s: {failure}\nkept in {directory}", flush=True)
        sys.exit(1)
    except BaseException:
        for server in servers:
            server.kill_all()
        raise
    for server in servers:
        server.stop("immediate", check=False)
        server.kill_all()
    shutil.rmtree(directory, ignore_errors=True)
    print(f"{name}: {summary} in {time.monotonic() - begun:.0f} s", flush=True)
