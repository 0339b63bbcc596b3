#!/usr/bin/env python3
"""Writes isolation specs: every statement that writes or locks a row against every other.

    matrix.py DIRECTORY [--all]

One session's transaction has done its statement when another one's comes; then the first commits or rolls back; then both
look at what became of it. In every other permutation everything that was written is flushed and merged in between (on heap
that step does nothing). Without --all: READ COMMITTED, and a seeded sample of the other two levels.

The specs matrix_unread_* have a table with nothing but its key, whose rows are in a run: there an upsert that takes all of its
new row replaces the old one unread, and so does an UPDATE by key. One of them is one of the two statements in every permutation.
"""
import pathlib
import random
import sys

SETUP = """
setup
{
  CREATE TABLE t (k int PRIMARY KEY, v text, u int UNIQUE);
  CREATE TABLE child (id int PRIMARY KEY, k int REFERENCES t ON UPDATE CASCADE ON DELETE CASCADE);
  CREATE FUNCTION settle() RETURNS void LANGUAGE plpgsql AS $$
  BEGIN
    IF (SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE c.oid = 't'::regclass) = 'loosekv' THEN
      PERFORM loosekv.flush('t'), loosekv.compact('t'), loosekv.flush('child');
    END IF;
  END $$;
}
setup { INSERT INTO t VALUES (1, 'one', 10), (3, 'three', 30); }
teardown { DROP FUNCTION settle; DROP TABLE child, t; }
"""

SETUP_UNREAD = """
setup
{
  CREATE TABLE t (k int PRIMARY KEY, v text, u int);
  CREATE FUNCTION settle() RETURNS void LANGUAGE plpgsql AS $$
  BEGIN
    IF (SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE c.oid = 't'::regclass) = 'loosekv' THEN
      PERFORM loosekv.flush('t'), loosekv.compact('t');
    END IF;
  END $$;
}
setup { INSERT INTO t VALUES (1, 'one', 10), (3, 'three', 30); }
setup { SELECT settle(); }
teardown { DROP FUNCTION settle; DROP TABLE t; }
"""

# name: statement; 1 is a row that is there, 2 is none
WRITES = {
    "ins1": "INSERT INTO t VALUES (1, '{s}', {u})",
    "ins2": "INSERT INTO t VALUES (2, '{s}', {u})",
    "insu": "INSERT INTO t VALUES ({n}, '{s}', 20)",
    "nothing1": "INSERT INTO t VALUES (1, '{s}', {u}) ON CONFLICT DO NOTHING RETURNING *",
    "nothing2": "INSERT INTO t VALUES (2, '{s}', {u}) ON CONFLICT (k) DO NOTHING RETURNING *",
    "nothingu": "INSERT INTO t VALUES ({n}, '{s}', 20) ON CONFLICT (u) DO NOTHING RETURNING *",
    "upsert1": "INSERT INTO t VALUES (1, '{s}', {u}) ON CONFLICT (k) DO UPDATE SET v = t.v || excluded.v RETURNING *",
    "upsert2": "INSERT INTO t VALUES (2, '{s}', {u}) ON CONFLICT (k) DO UPDATE SET v = t.v || excluded.v RETURNING *",
    "upsertu": "INSERT INTO t VALUES ({n}, '{s}', 20) ON CONFLICT (u) DO UPDATE SET v = t.v || excluded.v RETURNING *",
    "upd": "UPDATE t SET v = v || '{s}' WHERE k = 1 RETURNING *",
    "updu": "UPDATE t SET u = 20 WHERE k = 1 RETURNING *",
    "updv": "UPDATE t SET v = v || '{s}' WHERE v LIKE 'one%' RETURNING *",
    "key": "UPDATE t SET k = 2 WHERE k = 1 RETURNING *",
    "keyback": "UPDATE t SET k = k + 4 WHERE k = 1; UPDATE t SET k = k - 4, v = v || '{s}' WHERE k = 5",
    "del": "DELETE FROM t WHERE k = 1 RETURNING *",
    "again": "DELETE FROM t WHERE k = 1; INSERT INTO t VALUES (1, 'again {s}', {u})",
    "merge1": "MERGE INTO t USING (VALUES (1)) s (k) ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = v || '{s}' "
    "WHEN NOT MATCHED THEN INSERT VALUES (s.k, '{s}', {u})",
    "merge2": "MERGE INTO t USING (VALUES (2)) s (k) ON t.k = s.k WHEN MATCHED THEN DELETE "
    "WHEN NOT MATCHED THEN INSERT VALUES (s.k, '{s}', {u})",
    "child": "INSERT INTO child VALUES ({n}, 1)",
    "forupd": "SELECT * FROM t WHERE k = 1 FOR UPDATE",
    "fornku": "SELECT * FROM t WHERE k = 1 FOR NO KEY UPDATE",
    "forsh": "SELECT * FROM t WHERE k = 1 FOR SHARE",
    "forks": "SELECT * FROM t WHERE k = 1 FOR KEY SHARE",
}
PUT = "INSERT INTO t VALUES (1, '{s}', {u}) ON CONFLICT (k) DO UPDATE SET (v, u) = (excluded.v, excluded.u)"
UPDATE = "UPDATE t SET (v, u) = ('{s}', {u}) WHERE k = 1"
PUTS = {
    "put": f"{PUT} RETURNING *",
    "puts": "INSERT INTO t SELECT i, '{s}', {u} FROM generate_series(1, 3) i ON CONFLICT (k) DO UPDATE SET (v, u) = (excluded.v, {u} + t.k)",
    "twice": f"{PUT}; {PUT} RETURNING *",
    "putdel": f"{PUT}; DELETE FROM t WHERE k = 1",
    "putagain": f"{PUT}; DELETE FROM t WHERE k = 1; INSERT INTO t VALUES (1, 'again {{s}}', {{u}})",
    "putkey": f"{PUT}; UPDATE t SET k = 2 WHERE k = 1",
    "putback": f"SAVEPOINT s; {PUT}; ROLLBACK TO s",
    "lockput": f"SELECT * FROM t WHERE k = 1 FOR UPDATE; {PUT}",
    "putupd": f"{PUT}; UPDATE t SET v = v || ' updated' WHERE k = 1",
    "uput": f"{UPDATE} RETURNING *",
    "uputs": "UPDATE t SET v = '{s}', u = {u} + k WHERE k IN (1, 2, 3) RETURNING *",
    "utwice": f"{UPDATE}; {UPDATE}",
    "uputagain": f"{UPDATE}; DELETE FROM t WHERE k = 1; INSERT INTO t VALUES (1, 'again {{s}}', {{u}})",
    "uputback": f"SAVEPOINT s; {UPDATE}; ROLLBACK TO s",
    "uputdel": f"{UPDATE}; DELETE FROM t WHERE k = 1 RETURNING *",
    "lockuput": f"SELECT * FROM t WHERE k = 1 FOR NO KEY UPDATE; {UPDATE}",
    "delput": f"DELETE FROM t WHERE k = 1; {PUT}",
}
READS = {
    f"{name}{way}": f"SELECT * FROM t WHERE k < 3 FOR {mode} {policy}"
    for name, mode in (("upd", "UPDATE"), ("nku", "NO KEY UPDATE"), ("sh", "SHARE"), ("ks", "KEY SHARE"))
    for way, policy in (("nw", "NOWAIT"), ("sl", "SKIP LOCKED"))
}
LEVELS = {"rc": "READ COMMITTED", "rr": "REPEATABLE READ", "ser": "SERIALIZABLE"}


def session(number, level, statements):
    words = {"s": f"s{number}", "u": 100 + number, "n": 50 + number}
    lines = [
        f"session s{number}",
        f"step b{number} {{ BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM t; }}",
    ]
    lines += [f"step {name}_{number} {{ {sql.format(**words)}; }}" for name, sql in statements.items()]
    lines += [
        f"step c{number} {{ COMMIT; }}",
        f"step r{number} {{ ROLLBACK; }}",
        f"step look{number} {{ SELECT * FROM t ORDER BY k; }}",
    ]
    return "\n".join(lines)


def write(name, setup, sessions, permutations):
    """The text of a spec: `permutations` are pairs of statements and an end."""
    lines = [f"# {name}", setup, *sessions, "session s3", "step settle { SELECT settle(); }"]
    lines += ["step look3 { SELECT * FROM t ORDER BY k; }"]
    child = "child" in setup
    if child:
        lines += ["step child3 { SELECT * FROM child ORDER BY id; }"]
    for number, (one, other, end) in enumerate(permutations):
        settle = "settle " if number % 2 else ""
        last = "child3" if child else "look3"
        lines.append(f"permutation b1 b2 {one}_1 {settle}{other}_2 {end} look2 c2 look1 {last}")
    return "\n".join(lines) + "\n"


def sample(permutations, name, most):
    return permutations if most is None or most >= len(permutations) else random.Random(name).sample(permutations, most)


def spec(name, everything):
    level = LEVELS[name]
    pairs = [(one, other) for one in WRITES for other in (*WRITES, *READS)]
    ends = [(one, other, end) for one, other in pairs for end in ("c1", "r1")]
    # Heap shows two rows with the same key to a snapshot that is older than the delete of the one and the insert of the
    # other; no statement of these levels may depend on that (see regress/differential.py).
    ends = sample(ends, name, None if everything else 500 if name == "rc" else 120)
    return write(level, SETUP, [session(1, level, WRITES), session(2, level, {**WRITES, **READS})], ends)


def spec_unread(name, everything):
    level = LEVELS[name]
    plain = {n: sql for n, sql in WRITES.items() if "child" not in sql and "(u)" not in sql and "{n}" not in sql}
    both = {**PUTS, **plain}
    pairs = [(one, other) for one in both for other in (*both, *READS) if one in PUTS or other in PUTS]
    # On a row that was changed and then taken away heap waits for a KEY SHARE lock whatever the policy says.
    left_out = {(one, other) for one in ("putdel", "putagain", "putkey", "uputagain", "uputdel") for other in ("ksnw", "kssl")}
    if name != "rc":
        # Heap shows two rows with the key to who inserts it where his snapshot still sees a deleted one, and changes both.
        gone = ("del", "key", "putdel", "putkey", "uputdel")
        left_out |= {(one, other) for one in gone for other in ("putupd", "putdel", "putagain", "putkey", "twice", "lockput")}
    ends = [(one, other, end) for one, other in pairs if (one, other) not in left_out for end in ("c1", "r1")]
    ends = sample(ends, f"unread {name}", None if everything else 300 if name == "rc" else 60)
    return write(level, SETUP_UNREAD, [session(1, level, both), session(2, level, {**both, **READS})], ends)


def main(arguments):
    directory = pathlib.Path(arguments[0])
    for name in LEVELS:
        (directory / f"matrix_{name}.spec").write_text(spec(name, "--all" in arguments))
        (directory / f"matrix_unread_{name}.spec").write_text(spec_unread(name, "--all" in arguments))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
