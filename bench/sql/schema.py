"""The tables and the functions that make their keys and values.

Schema `on_heap` and schema `on_loosekv` hold tables of the same names; a session's search_path chooses. Keys and values come
from row numbers, by functions that the planner inlines: nothing of them is looked up at run time, and both sides pay the
same (workload "nothing" tells how much).

Row numbers stay below 2^32, for the hash of a larger one may be that of a smaller one.

A value is eight bytes of its number, then bytes from a pool of random ones up to its half, then zeroes: it compresses to
about half, alone and among others.
"""
STORES = ("heap", "loosekv")
POOL_BYTES = 1 << 17
HASH = "int8send(hashint8extended(n, {}))"
KEYS = {
    "bigint-seq": ("bigint", "n"),
    "bigint-random": ("bigint", "hashint8extended(n, 0)"),
    "uuid": ("uuid", f"encode({HASH.format(0)} || {HASH.format(1)}, 'hex')::uuid"),
    "text16": ('text COLLATE "C"', f"encode({HASH.format(0)}, 'hex')"),
}
QUEUE_DEPTH = 10_000


def pool(size=POOL_BYTES):
    """Pseudo-random bytes, always the same."""
    import random
    return random.Random(1).randbytes(size)


def functions(key, value):
    """SQL that makes key(n) and value(n)."""
    kind, expression = KEYS[key]
    drawn = value // 2 - 8
    zeroes = "00" * (value - value // 2)
    places = POOL_BYTES - drawn
    return f"""
        CREATE SCHEMA bench;
        CREATE FUNCTION bench.key(n bigint) RETURNS {kind.split()[0]} LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
            $$ SELECT {expression} $$;
        CREATE FUNCTION bench.value(n bigint) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
            $$ SELECT int8send(n) || substr('\\x{pool().hex()}'::bytea, (1 + n * 7919 % {places})::int, {drawn})
                      || '\\x{zeroes}'::bytea $$"""


def table(store, key, name="kv"):
    return f"CREATE TABLE on_{store}.{name} (k {KEYS[key][0]} PRIMARY KEY, v bytea NOT NULL) USING {store}"


def search_path(store):
    return "bench" if store == "none" else f"on_{store},bench"


def session(store, sync, rows):
    """Settings of a session of pgbench whose statements handle that many rows."""
    options = {"search_path": search_path(store), "synchronous_commit": sync}
    if rows > 1:
        # The planner would plan a statement over generate_series anew each time, for it cannot know the number of rows.
        options["plan_cache_mode"] = "force_generic_plan"
    return options


def create(connection, key, value):
    connection.rows("CREATE EXTENSION loosekv")
    connection.rows(functions(key, value))
    for store in STORES:
        connection.rows(f"CREATE SCHEMA on_{store}")
