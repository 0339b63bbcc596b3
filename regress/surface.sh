#!/usr/bin/env bash
# What an administrator does beyond SQL: dumps and restores options, reloads settings, watches progress, cancels merges, and has
# a damaged file checked. Needs a running cluster made by scripts/cluster.sh in the directory given (it is restarted).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/cluster.sh

cluster=$1
export PGDATABASE=surface
ask() { psql -X -q -A -t -v ON_ERROR_STOP=1 -c "$1"; }
expect() { # expect WHAT EXPECTED FOUND
    [ "$2" = "$3" ] || { echo "$1: expected \"$2\", found \"$3\"" >&2; exit 1; }
}
soon() { # soon WHAT QUERY: until it is true
    local deadline=$((SECONDS + 30))
    until [ "$(ask "$2")" = t ]; do
        [ "$SECONDS" -lt "$deadline" ] || { echo "$1: not within 30 s" >&2; exit 1; }
        sleep 0.02
    done
}
PGOPTIONS='-c client_min_messages=warning' psql -X -q -d postgres -c "DROP DATABASE IF EXISTS surface" -c "CREATE DATABASE surface" -c "DROP DATABASE IF EXISTS surface_copy" -c "CREATE DATABASE surface_copy"
ask "CREATE EXTENSION loosekv"

# Options survive a dump.
ask "CREATE TABLE kept (k int PRIMARY KEY, v text) USING loosekv
         WITH (loosekv.compression = 'zstd', loosekv.memtable_size = '1MB', fillfactor = 70);
     INSERT INTO kept SELECT i, 'v' FROM generate_series(1, 1000) i"
pg_dump surface | psql -X -q -v ON_ERROR_STOP=1 -d surface_copy >/dev/null
of="SELECT reloptions, (SELECT count(*) FROM kept) FROM pg_class WHERE relname = 'kept'"
expect "options after a dump" "{fillfactor=70,loosekv.compression=zstd,loosekv.memtable_size=1MB}|1000" "$(PGDATABASE=surface_copy ask "$of")"
expect "a dump of the dump" "$(pg_dump surface | grep -v '^\\')" "$(pg_dump surface_copy | grep -v '^\\')"

# Settings reach tables in use.
ask "CREATE TABLE used (k int PRIMARY KEY, v text) USING loosekv;
     INSERT INTO used SELECT i, repeat('used ', 20) FROM generate_series(1, 5000) i; SELECT loosekv.flush('used')" >/dev/null
expect "before the reload" f "$(ask "SELECT bool_or(compressed) FROM loosekv.runs('used')")"
ask "ALTER SYSTEM SET loosekv.compression = 'zstd'"
ask "SELECT pg_reload_conf()" >/dev/null
soon "the reload" "SELECT current_setting('loosekv.compression') = 'zstd'"
ask "SELECT loosekv.compact('used')" >/dev/null
ask "INSERT INTO used SELECT i, repeat('used ', 20) FROM generate_series(5001, 10000) i; SELECT loosekv.flush('used')" >/dev/null
expect "after the reload" t "$(ask "SELECT bool_or(compressed) FROM loosekv.runs('used')")"
ask "ALTER SYSTEM RESET loosekv.compression"
ask "SELECT pg_reload_conf()" >/dev/null

# Progress is seen, merges are cancelled without harm, and a flush does not wait for a merge.
ask "CREATE TABLE big (k bigint PRIMARY KEY, v text) USING loosekv WITH (loosekv.fan_in = 64);
     INSERT INTO big SELECT i * 7919::bigint % 400009, repeat('big ', 20) FROM generate_series(1, 200000) i" >/dev/null
psql -X -q -c "SET application_name = 'checks'" -c "SELECT count(*) FROM generate_series(1, 1000), LATERAL loosekv.check('big')" >/dev/null 2>&1 &
checks=$!
soon "progress of a check" "SELECT count(*) > 0 FROM loosekv.progress WHERE relation = 'big'::regclass AND command = 'checking runs' AND total > 0"
ask "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'checks'" >/dev/null
wait "$checks" || true
expect "progress after a cancel" 0 "$(ask "SELECT count(*) FROM loosekv.progress WHERE command LIKE 'checking%'")"
psql -X -q -c "SET application_name = 'merges'" -c "SELECT loosekv.compact('big')" >/dev/null 2>"$cluster/merges.err" &
merges=$!
soon "progress of a merge" "SELECT count(*) > 0 FROM loosekv.progress WHERE relation = 'big'::regclass AND command = 'merging runs'"
ask "INSERT INTO big VALUES (-1, 'while it merges'); SELECT loosekv.flush('big')" >/dev/null
ask "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'merges'" >/dev/null
wait "$merges" || grep -q "canceling statement due to user request" "$cluster/merges.err"
expect "rows after a cancelled merge" 200001 "$(ask "SELECT count(*) FROM big")"
expect "a cancelled merge" "" "$(ask "SELECT * FROM loosekv.check('big')")"

# Who holds the horizon.
ask "CREATE TABLE held (k int PRIMARY KEY) USING loosekv"
ask "BEGIN; INSERT INTO held VALUES (1); PREPARE TRANSACTION 'surface'"
expect "a prepared transaction" "prepared transaction|surface|surface" "$(ask "SELECT holder, name, database FROM loosekv.horizon WHERE holder = 'prepared transaction'")"
ask "COMMIT PREPARED 'surface'"
PGAPPNAME=holder psql -X -q -c "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM held; SELECT pg_sleep(60)" >/dev/null 2>&1 &
holder=$!
soon "a session with a snapshot" "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'holder' AND backend_xmin IS NOT NULL"
expect "a session" t "$(ask "SELECT count(*) = 1 AND bool_and(h.holder = 'session' AND h.database = 'surface' AND h.xmin = a.backend_xmin AND h.age >= 0)
    FROM pg_stat_activity a JOIN loosekv.horizon h USING (pid) WHERE h.name = 'holder'")"
ask "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holder'" >/dev/null
wait "$holder" || true
soon "the session's end" "SELECT count(*) = 0 FROM loosekv.horizon WHERE name = 'holder' OR holder = 'prepared transaction'"

# A damaged file: the check names the pages, and goes on.
ask "BEGIN; SELECT FROM held WHERE k = 1 FOR NO KEY UPDATE; PREPARE TRANSACTION 'locks'" >/dev/null
ask "CHECKPOINT"
file=$cluster/data/$(ask "SELECT pg_relation_filepath('used')")
cluster_stop "$cluster"
python3 - "$file" <<'PYTHON'
import sys
with open(sys.argv[1], "r+b") as file:
    pages = file.seek(0, 2) // 8192
    for page in range(1, pages):
        file.seek(page * 8192 + 24)
        if file.read(1) == b"\x04":  # a data page, perhaps one that is free by now
            file.seek(page * 8192 + 4000)
            byte = file.read(1)[0]
            file.seek(page * 8192 + 4000)
            file.write(bytes([byte ^ 1]))
PYTHON
cluster_start "$cluster"
export PGDATABASE=surface
found=$(ask "SELECT count(*) > 0, bool_or(finding ~ 'invalid page in block'), bool_and(place ~ '^run ') FROM loosekv.check('used')" 2>/dev/null)
expect "damaged pages" "t|t|t" "$found"
expect "the server goes on" 1000 "$(ask "SELECT count(*) FROM kept")"
ask "DROP TABLE used"

# Row locks of a prepared transaction are still there. Who waits for it keeps nobody away whom it lets pass.
PGAPPNAME=waits psql -X -q -c "DELETE FROM held WHERE k = 1" &
deleting=$!
soon "who waits for a prepared transaction" "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'waits' AND wait_event_type = 'Lock'"
expect "KEY SHARE beside it" 1 "$(ask "SELECT k FROM held WHERE k = 1 FOR KEY SHARE NOWAIT")"
expect "SHARE beside it" "" "$(ask "SELECT k FROM held WHERE k = 1 FOR SHARE SKIP LOCKED")"
ask "COMMIT PREPARED 'locks'"
wait "$deleting"
expect "the row that was waited for" 0 "$(ask "SELECT count(*) FROM held")"

# An upsert locks no partitions on heap but the one that it comes to.
ask "CREATE TABLE parts (k int PRIMARY KEY, v int) PARTITION BY RANGE (k);
     CREATE TABLE parts_old PARTITION OF parts FOR VALUES FROM (0) TO (10); CREATE TABLE parts_new PARTITION OF parts FOR VALUES FROM (10) TO (20)"
expect "partitions that an upsert locks" "parts_new" "$(ask "BEGIN; INSERT INTO parts VALUES (15, 1) ON CONFLICT (k) DO UPDATE SET v = excluded.v;
    SELECT relation::regclass FROM pg_locks WHERE relation IN ('parts_old'::regclass, 'parts_new'::regclass)")"
ask "DROP TABLE parts"

# The row cache: a row whose page had to be read from the disk, and what becomes of it when it is written.
ask "CREATE TABLE cached (k int PRIMARY KEY, v text) USING loosekv;
     INSERT INTO cached SELECT i, rpad('old ' || i, 300) FROM generate_series(1, 10000) i"
ask "SELECT loosekv.compact('cached')" >/dev/null
cluster_stop "$cluster"
cluster_start "$cluster"
export PGDATABASE=surface
row() { ask "SELECT rtrim(v) FROM cached WHERE k = 5"; }
how() { ask "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT v FROM cached WHERE k = 5" | grep -o "LooseKV.*"; }
soon "the key index" "SELECT index_coverage = 1 FROM loosekv.stats WHERE tablename = 'cached'"
expect "a row read" "old 5" "$(row)"
expect "a row is kept" "1|0" "$(ask "SELECT rows, found FROM loosekv.row_cache")"
expect "a cached row" "old 5" "$(row)"
expect "how it is found" 1 "$(how | grep -c "look-ups=1 runs looked into=0 .* cached rows=1$")"
ask "BEGIN; UPDATE cached SET v = 'lost' WHERE k = 5; SELECT loosekv.flush('cached'); ROLLBACK" >/dev/null
expect "after a rollback" "old 5" "$(row)"
ask "UPDATE cached SET v = 'new' WHERE k = 5"
expect "after an update" new "$(row)"
ask "SELECT loosekv.flush('cached')" >/dev/null
expect "after a flush" new "$(row)"
ask "SELECT loosekv.compact('cached')" >/dev/null
expect "after a merge" new "$(row)"
ask "DELETE FROM cached WHERE k = 5"
ask "SELECT loosekv.compact('cached')" >/dev/null
expect "after a delete" "" "$(row)"
ask "INSERT INTO cached VALUES (5, 'again')"
ask "SELECT loosekv.flush('cached')" >/dev/null
expect "inserted again" again "$(row)"
ask "BEGIN; TRUNCATE cached; INSERT INTO cached VALUES (5, 'truncated'); COMMIT"
ask "SELECT loosekv.flush('cached')" >/dev/null
expect "truncated" truncated "$(row)"

# Statistics do not wait for who has a table to himself, or waits for it, nor fail for one that goes.
watched="SET lock_timeout = '5s'; SELECT string_agg(tablename || ' ' || (runs IS NOT NULL) || ' ' || (file_bytes IS NOT NULL), ', ' ORDER BY tablename)
         FROM loosekv.stats WHERE tablename IN ('cached', 'kept')"
expect "statistics" "cached true true, kept true true" "$(ask "$watched")"
reader=$(mktemp -u)
mkfifo "$reader"
psql -X -q <"$reader" >/dev/null &
holder=$!
exec 9>"$reader"
rm "$reader"
echo "BEGIN; SELECT count(*) FROM cached;" >&9
soon "a reader" "SELECT count(*) > 0 FROM pg_locks WHERE relation = 'cached'::regclass AND pid <> pg_backend_pid()"
psql -X -q -c "ALTER TABLE cached ALTER v SET NOT NULL" &
altering=$!
soon "who waits for the table" "SELECT count(*) = 1 FROM pg_locks WHERE relation = 'cached'::regclass AND NOT granted"
expect "statistics of a table that somebody waits for" "cached false false, kept true true" "$(ask "$watched")"
echo "COMMIT; BEGIN; LOCK TABLE kept;" >&9
wait "$altering"
soon "the table's only user" "SELECT count(*) = 1 FROM pg_locks WHERE relation = 'kept'::regclass AND granted"
expect "statistics of a table that somebody has" "cached true true, kept false false" "$(ask "$watched")"
expect "its own statistics, for who has it" t "$(ask "BEGIN; LOCK TABLE cached; SELECT runs IS NOT NULL FROM loosekv.stats WHERE tablename = 'cached'")"
echo "ROLLBACK;" >&9
exec 9>&-
wait "$holder"

# A copy of a key that REINDEX CONCURRENTLY has left when it failed serves as long as the key is the same.
ask "CREATE TABLE copied (k int PRIMARY KEY, n text NOT NULL) USING loosekv; INSERT INTO copied SELECT i, 'v' || 200 - i FROM generate_series(1, 100) i"
psql -X -q -c "BEGIN" -c "UPDATE copied SET n = n WHERE k = 1" -c "SELECT pg_sleep(1)" -c "COMMIT" >/dev/null &
holder=$!
soon "the holder" "SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(1)' AND state = 'active'"
if PGOPTIONS="-c lock_timeout=100ms" ask "REINDEX INDEX CONCURRENTLY copied_pkey" 2>/dev/null; then echo "REINDEX should have failed" >&2; exit 1; fi
wait "$holder"
refused() { psql -X -q -v VERBOSITY=sqlstate -c "$1" 2>&1 || true; }
other_key="ALTER TABLE copied DROP CONSTRAINT copied_pkey, ADD PRIMARY KEY (n)"
expect "another key beside a copy" "ERROR:  0A000" "$(refused "$other_key")"
expect "another type beside a copy" "ERROR:  0A000" "$(refused "ALTER TABLE copied ALTER COLUMN k TYPE bigint")"
expect "another type of another column" "" "$(refused "ALTER TABLE copied ALTER COLUMN n TYPE varchar(50)")"
ask "REINDEX INDEX copied_pkey_ccnew"
ask "CREATE TABLE alike (LIKE copied INCLUDING INDEXES) USING loosekv" 2>/dev/null
expect "a copy of a copy" "alike_k_idx btree,alike_pkey loosekv_key" \
    "$(ask "SELECT string_agg(i.relname || ' ' || amname, ',' ORDER BY i.relname) FROM pg_index JOIN pg_class i ON i.oid = indexrelid JOIN pg_am a ON a.oid = relam WHERE indrelid = 'alike'::regclass")"
ask "DROP TABLE alike"
dumped=$(pg_dump --table copied --schema-only | sed 's/copied/restored/g')
psql -X -q -o /dev/null 2>/dev/null <<<"$dumped"
expect "a copy that was dumped" "restored_pkey,restored_pkey_ccnew" \
    "$(psql -X -A -t -c "SELECT string_agg(indexname, ',' ORDER BY indexname) FROM pg_indexes WHERE tablename = 'restored'")"
ask "DROP TABLE restored"
expect "no key beside a copy" "ERROR:  0A000" "$(refused "ALTER TABLE copied DROP CONSTRAINT copied_pkey")"
expect "rows" "100|1|100" "$(ask "SELECT count(*), min(k), max(k) FROM copied")"
expect "emptied beside a copy" "1" "$(ask "BEGIN; TRUNCATE copied; INSERT INTO copied VALUES (7, 'v'); SELECT count(*) FROM copied; ROLLBACK")"
ask "DROP INDEX copied_pkey_ccnew"
# One that is older than the key: this time it fails when the new one has taken its place, for a transaction, without a snapshot, has the table.
(echo "BEGIN; LOCK TABLE copied IN ACCESS SHARE MODE;"; sleep 1; echo "COMMIT;") | psql -X -q &
holder=$!
soon "another holder" "SELECT count(*) = 1 FROM pg_locks WHERE relation = 'copied'::regclass AND mode = 'AccessShareLock' AND pid <> pg_backend_pid()"
if PGOPTIONS="-c lock_timeout=100ms" ask "REINDEX INDEX CONCURRENTLY copied_pkey" 2>/dev/null; then echo "REINDEX should have failed" >&2; exit 1; fi
wait "$holder"
expect "emptied beside an older copy" "1" "$(ask "BEGIN; TRUNCATE copied; INSERT INTO copied VALUES (7, 'v'); SELECT count(*) FROM copied; ROLLBACK")"
ask "DROP INDEX copied_pkey_ccold"
ask "$other_key"
ask "INSERT INTO copied VALUES (5, 'new')"
expect "rows by another key" "2|101" "$(ask "SET enable_seqscan = off; SELECT (SELECT count(*) FROM copied WHERE k = 5), count(*) FROM copied")"

# A column that is only included in the key may be larger than an index of heap's takes.
ask "CREATE TABLE included (k int, v text, PRIMARY KEY (k) INCLUDE (v)) USING loosekv; INSERT INTO included SELECT i, 'x' FROM generate_series(1, 1000) i"
ask "ANALYZE included; INSERT INTO included SELECT 1001, string_agg(md5(i::text), '') FROM generate_series(1, 1000) i"
expect "a large included column" "1001|32000" "$(ask "SELECT k, length(v) FROM included WHERE k > 1000")"
# SERIALIZABLE, at the same moment: of a pair of rows at most one is 0, if whoever sets his to 0 has seen that both are not.
ask "CREATE TABLE pairs (k int PRIMARY KEY, n int) USING loosekv; INSERT INTO pairs SELECT i, 1 FROM generate_series(0, 7) i; CREATE TABLE seen (pair int) USING heap"
cat >"$cluster/skew.sql" <<'SCRIPT'
\set pair random(0, 3)
\set mine 2 * :pair + random(0, 1)
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT sum(n) AS total FROM pairs WHERE k IN (2 * :pair, 2 * :pair + 1) \gset
\if :total = 0
INSERT INTO seen VALUES (:pair);
\endif
UPDATE pairs SET n = CASE WHEN :total = 2 THEN 0 ELSE 1 END WHERE k = :mine;
COMMIT;
SCRIPT
pgbench -n -M prepared -c 4 -j 2 -T 8 --max-tries 1000 -f "$cluster/skew.sql" >/dev/null 2>"$cluster/skew.err" || { cat "$cluster/skew.err" >&2; exit 1; }
expect "pairs of zeros" 0 "$(ask "SELECT count(*) FROM seen")"
PGDATABASE=postgres psql -X -q -c "DROP DATABASE surface" -c "DROP DATABASE surface_copy"
echo "options, settings, progress, cancels, a damaged page, cached rows, pairs of rows: as they should be"
