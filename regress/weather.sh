#!/usr/bin/env bash
# Bad weather: a corrupt page is an error that names relation and block; too little shared memory makes slow, or an error with a
# hint; and a statement that is cancelled or killed anywhere leaves the table as it was. Makes a cluster of its own (the extension
# is installed where PG_CONFIG says).
set -euo pipefail
cd "$(dirname "$0")"
. ../scripts/cluster.sh

dir=$(mktemp -d "${TMPDIR:-/tmp}/loosekv-weather.XXXXXX")
trap 'cluster_stop "$dir" || true; rm -rf "$dir"' EXIT
sql() { psql -X -q -At -v ON_ERROR_STOP=1 "$@"; }
fail() {
    echo "FAILED: $*" >&2
    tail -n 20 "$dir/log" >&2
    exit 1
}
errors() { # errors SQL: what psql says of it, which has to be an error
    local said
    if said=$(psql -X -q -At -v ON_ERROR_STOP=1 -v VERBOSITY=verbose -c "$1" 2>&1); then fail "no error from: $1"; fi
    echo "$said"
}
expect() { # expect TEXT PATTERN
    grep -qE "$2" <<<"$1" || fail "not '$2' in: $1"
}

cluster_start "$dir" "loosekv.shared_memory = 16MB" "loosekv.memtable_size = 256kB" "loosekv.workers = 0" "fsync = off" \
    "autovacuum = off" "shared_buffers = 16MB"
sql -c "CREATE EXTENSION loosekv"

corrupt_page() {
    sql -c "CREATE TABLE t (k int PRIMARY KEY, v text) USING loosekv" \
        -c "INSERT INTO t SELECT i, repeat(md5(i::text), 4) FROM generate_series(1, 20000) i" \
        -c "SELECT loosekv.flush('t')" -c "CREATE TABLE whole (k int PRIMARY KEY) USING loosekv" -c "INSERT INTO whole VALUES (1)" >/dev/null
    local file blocks block said
    file=$dir/data/$(sql -c "SELECT pg_relation_filepath('t')")
    blocks=$(sql -c "SELECT pg_relation_size('t') / 8192")
    cluster_stop "$dir"
    cp -p "$file" "$dir/sound"
    # Every page but the first one is damaged in the midst.
    for ((block = 1; block < blocks; block++)); do
        printf 'damaged!' | dd of="$file" bs=1 seek=$((block * 8192 + 4000)) conv=notrunc status=none
    done
    cluster_start "$dir"
    said=$(errors "SELECT count(*) FROM t")
    expect "$said" "invalid page in block [0-9]+ of relation base/[0-9]+/[0-9]+"
    expect "$said" "XX001"
    [ "$(sql -c "SELECT count(*) FROM whole")" = 1 ] || fail "another table suffers"
    cluster_stop "$dir"
    cp -p "$dir/sound" "$file"
    # A page of another table's, with a sound checksum of its own, in the wrong place.
    dd if="$dir/sound" of="$file" bs=8192 skip=1 seek=0 count=1 conv=notrunc status=none
    cluster_start "$dir"
    said=$(errors "SELECT count(*) FROM t")
    expect "$said" "table \"t\"|relation base/"
    expect "$said" "block 0|page 0"
    cluster_stop "$dir"
    cp -p "$dir/sound" "$file"
    cluster_start "$dir"
    [ "$(sql -c "SELECT count(*), sum(k) FROM t")" = "20000|200010000" ] || fail "the restored file has other rows"
}

full_memory() {
    # Far more keys than there is memory for: no error, or one with a hint, after which everything goes on.
    local said
    sql -c "CREATE TABLE sound (k int PRIMARY KEY, v text) USING loosekv" -c "INSERT INTO sound VALUES (1, 'sound')" \
        -c "CREATE TABLE large (k text PRIMARY KEY, v int) USING loosekv"
    if said=$(psql -X -q -At -v VERBOSITY=verbose -v ON_ERROR_STOP=1 2>&1 <<'SQL'
DO $$ BEGIN FOR i IN 1..400 LOOP
    EXECUTE format('CREATE TABLE full_%s (k int PRIMARY KEY, v text) USING loosekv', i);
    EXECUTE format('INSERT INTO full_%s SELECT g, md5(g::text) FROM generate_series(1, 300) g', i);
END LOOP; END $$;
INSERT INTO large SELECT repeat(md5(i::text), 20), i FROM generate_series(1, 60000) i;
SQL
    ); then
        [ "$(sql -c "SELECT count(*), sum(v) FROM large")" = "60000|1800030000" ] || fail "rows are missing"
        [ "$(sql -c "SELECT v FROM large WHERE k = repeat(md5('777'), 20)")" = 777 ] || fail "a row is not found"
    else
        expect "$said" "53200"
        expect "$said" "HINT:"
    fi
    sql -c "DROP TABLE large" -c "DO \$\$ BEGIN FOR i IN 1..400 LOOP EXECUTE format('DROP TABLE IF EXISTS full_%s', i); END LOOP; END \$\$" 2>/dev/null
    sql -c "INSERT INTO sound VALUES (2, 'after')" -c "UPDATE sound SET v = 'x' WHERE k = 1"
    [ "$(sql -c "SELECT count(*) FROM sound")" = 2 ] || fail "the server does not go on"
}

cancels() {
    cluster_stop "$dir"
    cluster_start "$dir"
    sql -c "CREATE TABLE c (k int PRIMARY KEY, v int) USING loosekv" -c "INSERT INTO c SELECT i, 0 FROM generate_series(1, 30000) i" \
        -c "CREATE INDEX ON c (v)"
    local statement milliseconds before after
    before=$(sql -c "SELECT count(*), sum(v), sum(k) FROM c")
    for milliseconds in 1 3 10 30 100; do
        for statement in "UPDATE c SET v = v + 1" "DELETE FROM c" "INSERT INTO c SELECT i, 0 FROM generate_series(30001, 10000000) i" \
            "UPDATE c SET k = k + 100000" "CREATE INDEX c_other ON c (k, v)" "VACUUM FULL c" "REINDEX TABLE c" "CLUSTER c USING c_pkey" \
            "ALTER TABLE c ADD COLUMN w float DEFAULT random()" "SELECT loosekv.flush('c')" "SELECT loosekv.compact('c')"; do
            psql -X -q -c "SET statement_timeout = $milliseconds" -c "BEGIN" -c "$statement" -c "ROLLBACK" >/dev/null 2>&1 || true
            psql -X -q -c "SET statement_timeout = $milliseconds" -c "BEGIN" -c "$statement" -c "SELECT pg_terminate_backend(pg_backend_pid())" >/dev/null 2>&1 || true
        done
        after=$(sql -c "SELECT count(*), sum(v), sum(k) FROM c")
        [ "$before" = "$after" ] || fail "timeouts of $milliseconds ms changed the table: $before, $after"
        after=$(sql -c "SET enable_seqscan = off" -c "SELECT count(*), sum(v), sum(k) FROM c WHERE v = 0")
        [ "$before" = "$after" ] || fail "timeouts of $milliseconds ms changed the index: $before, $after"
    done
    sql -c "UPDATE c SET v = 1"
    [ "$(sql -c "SELECT count(*) FROM c WHERE v = 1")" = 30000 ] || fail "not all rows can be updated"
}

# A library that calls exit() in the midst of a transaction: it is rolled back, and nobody waits for what it held.
library_exit() {
    cat >"$dir/leave.c" <<'C'
#include "postgres.h"
#include "fmgr.h"
PG_MODULE_MAGIC;
PG_FUNCTION_INFO_V1(leave);
Datum leave(PG_FUNCTION_ARGS) { exit(PG_GETARG_INT32(0)); }
C
    cc -shared -fPIC -I"$("$pgbin/pg_config" --includedir-server)" "$dir/leave.c" -o "$dir/leave.so"
    chmod 755 "$dir" "$dir/leave.so"
    sql -c "CREATE FUNCTION leave(int) RETURNS int AS '$dir/leave.so' LANGUAGE c" \
        -c "CREATE TABLE e (k int PRIMARY KEY, v text) USING loosekv" -c "INSERT INTO e SELECT i, 'a' FROM generate_series(1, 1000) i"
    local code
    for code in 0 1; do
        psql -X -q -At -v ON_ERROR_STOP=1 >/dev/null 2>&1 <<SQL && fail "the function returned"
BEGIN;
INSERT INTO e VALUES (2000, 'b');
SELECT * FROM e WHERE k = 7 FOR UPDATE;
CREATE TEMP TABLE own (k int PRIMARY KEY) USING loosekv;
INSERT INTO own VALUES (1);
DECLARE c CURSOR FOR SELECT * FROM e ORDER BY k;
FETCH 5 FROM c;
SAVEPOINT a;
UPDATE e SET v = 'c' WHERE k = 8;
SELECT leave($code);
SQL
        sql -c "SET statement_timeout = '20s'" -c "INSERT INTO e VALUES (2000, 'mine')" -c "UPDATE e SET v = 'd' WHERE k IN (7, 8)" \
            -c "DELETE FROM e WHERE k = 2000" || fail "what a process held that called exit($code) is still held"
    done
    [ "$(sql -c "SELECT count(*) FROM e")" = 1000 ] || fail "rows of a process that called exit() are there"
    [ -z "$(sql -c "SELECT * FROM loosekv.check('e')")" ] || fail "the check finds something"
    if grep -F "Thread Local Storage" "$dir/log" >&2; then fail "thread-locals were used after their end"; fi
}

for test in corrupt_page full_memory cancels library_exit; do
    "$test"
    echo "ok       $test"
done
if grep -E "PANIC|was terminated by signal|TRAP|reference leak" "$dir/log" >&2; then fail "the server's log has more than it should"; fi
