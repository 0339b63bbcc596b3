#!/usr/bin/env bash
# Rows whose writers the commit log has forgotten: transaction ids go on by two hundred million, everything is frozen, the log is cut
# off, and tables that were vacuumed before then are rewritten, given other keys and clustered. And the other way round: rewritten
# first, then the log is cut off. Then the horizon goes back behind what is known of subtransactions, as it does when a standby with an
# older query connects again. In the end the log is cut off while the server runs, and those still ask about older writers who meet row
# locks of prepared transactions, index entries of rows that were updated, rows that replication looks for, or what an open cursor has
# before it. Heap is the oracle.
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/cluster.sh
export PGPORT=${PGPORT:-57436}
dir=$(mktemp -d "${TMPDIR:-/tmp}/loosekv-frozen.XXXXXX")
trap 'cluster_stop "$dir" || true; rm -rf "$dir"' EXIT
ask() { psql -X -q -A -t -v ON_ERROR_STOP=1 "$@"; }

cluster_start "$dir" "fsync = off" "autovacuum = off" "max_connections = 20" "loosekv.shared_memory = '64MB'"
ask -c "CREATE EXTENSION loosekv"

# The transaction id that will be given out next.
go_to() {
    local segment
    segment=$(printf %04X $(($1 / 1048576)))
    cluster_stop "$dir"
    as_postgres pg_resetwal -x "$1" -D "$dir/data" >/dev/null
    as_postgres dd if=/dev/zero of="$dir/data/pg_xact/$segment" bs=256k count=1 2>/dev/null
    cluster_start "$dir"
}

each() { # each STATEMENT CONDITION: of tables
    echo "SELECT format('$1 %s', oid::regclass) FROM pg_class WHERE $2 \\gexec" | ask -f - >/dev/null
}

# Everything is frozen, and what nobody needs of the commit log goes.
freeze() { # freeze [TABLES]: a condition on names of tables that are left out in this database
    local database
    for database in template1 template0; do
        ask -c "ALTER DATABASE $database ALLOW_CONNECTIONS on"
        ask -d "$database" -c "VACUUM (FREEZE)"
    done
    ask -c "ALTER DATABASE template0 ALLOW_CONNECTIONS off"
    each "VACUUM (FREEZE)" "relkind IN ('r', 'm', 't') AND NOT (${1:-false})"
    ask -c "VACUUM (FREEZE) pg_database" -c "CHECKPOINT"
}

make() { # make PREFIX: the same tables in heap and in loosekv
    local method
    for method in heap loosekv; do
        for what in full cluster dropped other added; do
            ask -c "CREATE TABLE $1_${what}_$method (k int, v text, n int) USING $method" \
                -c "INSERT INTO $1_${what}_$method SELECT i, 'v' || i, i % 10 FROM generate_series(1, 500) i"
            if [ "$what" != added ]; then ask -c "ALTER TABLE $1_${what}_$method ADD CONSTRAINT $1_${what}_${method}_key PRIMARY KEY (k)"; fi
            ask -c "CREATE INDEX $1_${what}_${method}_n ON $1_${what}_$method (n)" \
                -c "UPDATE $1_${what}_$method SET v = 'u' WHERE k % 3 = 0" -c "DELETE FROM $1_${what}_$method WHERE k % 7 = 0"
        done
    done
}

rewrite() { # rewrite PREFIX
    local method
    for method in heap loosekv; do
        ask -c "VACUUM FULL $1_full_$method" -c "CLUSTER $1_cluster_$method USING $1_cluster_${method}_n" \
            -c "ALTER TABLE $1_dropped_$method DROP CONSTRAINT $1_dropped_${method}_key" \
            -c "ALTER TABLE $1_other_$method DROP CONSTRAINT $1_other_${method}_key, ADD PRIMARY KEY (k, n)" \
            -c "ALTER TABLE $1_added_$method ADD PRIMARY KEY (k)"
    done
}

differ() { # differ WHAT EXPECTED FOUND
    [ "$2" = "$3" ] || { echo "$1: expected \"$2\", found \"$3\"" >&2; exit 1; }
}

compare() { # compare PREFIX
    local what heap loosekv method found
    for what in full cluster dropped other added; do
        for method in heap loosekv; do
            found=$(ask -c "SELECT count(*), sum(hashtext(x::text)) FROM $1_${what}_$method x" \
                -c "SET enable_seqscan = off" -c "SELECT count(*) FROM $1_${what}_$method WHERE n = 4" \
                -c "UPDATE $1_${what}_$method SET v = 'w' WHERE k = 8 RETURNING k, v, n" -c "DELETE FROM $1_${what}_$method WHERE k = 9 RETURNING k" \
                -c "VACUUM $1_${what}_$method" -c "SELECT count(*), sum(hashtext(x::text)) FROM $1_${what}_$method x")
            declare "$method=$found"
        done
        differ "$1 $what" "$heap" "$loosekv"
        found=$(ask -c "SELECT * FROM loosekv.check('$1_${what}_loosekv')")
        [ -z "$found" ] || { echo "$1 $what: $found" >&2; exit 1; }
    done
}

both() { # both WHAT STATEMENTS: with tables whose names end in @
    local expected found
    expected=$(ask <<<"${2//@/heap}")
    found=$(ask <<<"${2//@/loosekv}" 2>&1) || true
    differ "$1" "$expected" "$found"
}

# To VACUUM everything is old that is older than what runs in this database; to the snapshot of VACUUM FULL, which comes next, what runs
# in others is younger. A row that was frozen must not get its writer back.
ask -d template1 -c "BEGIN" -c "SELECT pg_current_xact_id()" -c "PREPARE TRANSACTION 'elsewhere'" >/dev/null
ask -c "CREATE TABLE again (k int PRIMARY KEY) USING loosekv" -c "INSERT INTO again VALUES (1)" -c "VACUUM again" -c "VACUUM FULL again"
found=$(ask -c "BEGIN" -c "INSERT INTO again VALUES (2)" -c "DO 'BEGIN PERFORM loosekv.flush(''again''); END'" \
    -c "SELECT * FROM loosekv.check('again')" -c "COMMIT")
[ -z "$found" ] || { echo "frozen again: $found" >&2; exit 1; }
ask -d template1 -c "COMMIT PREPARED 'elsewhere'" >/dev/null

make after
make before
# Older than the commit log will be, and rewritten while it is still there.
go_to 104857600
rewrite before
each VACUUM "relname LIKE 'after%' AND relkind = 'r'"
go_to 210315200
freeze "relname LIKE 'before%'"
[ ! -e "$dir/data/pg_xact/0000" ] || { echo "the commit log is still there" >&2; exit 1; }
rewrite after
compare after
compare before
# What was written must last.
as_postgres pg_ctl -D "$dir/data" -m immediate -w stop >/dev/null
cluster_start "$dir"
compare after
compare before

for method in heap loosekv; do
    ask -c "CREATE TABLE subs_$method (k int NOT NULL, n int) USING $method" -c "INSERT INTO subs_$method SELECT i, 0 FROM generate_series(1, 9) i" \
        -c "BEGIN; UPDATE subs_$method SET n = 1; SAVEPOINT a; UPDATE subs_$method SET n = 2 WHERE k < 5; DELETE FROM subs_$method WHERE k = 9; COMMIT"
done
go_to 210763776
ask -c "CHECKPOINT" -c "ALTER SYSTEM SET vacuum_defer_cleanup_age = 1000000" -c "SELECT pg_reload_conf()" >/dev/null
until [ "$(ask -c "SHOW vacuum_defer_cleanup_age")" = 1000000 ]; do sleep 0.1; done
for method in heap loosekv; do ask -c "ALTER TABLE subs_$method ADD PRIMARY KEY (k)"; done
found=$(ask -c "(TABLE subs_heap EXCEPT TABLE subs_loosekv) UNION ALL (TABLE subs_loosekv EXCEPT TABLE subs_heap)" -c "SELECT * FROM loosekv.check('subs_loosekv')")
[ -z "$found" ] || { echo "subtransactions: $found" >&2; exit 1; }

ask -c "ALTER SYSTEM RESET vacuum_defer_cleanup_age"
cluster_stop "$dir"
cluster_start "$dir" "wal_level = logical"
# At the end of a prepared transaction its row locks stay in shared memory, for others to find out that they are of no use any more.
for method in heap loosekv; do
    ask -c "CREATE TABLE locked_$method (k int PRIMARY KEY, v int) USING $method" \
        -c "INSERT INTO locked_$method SELECT i, 0 FROM generate_series(1, 24) i"
    row=0
    for mode in "KEY SHARE" "SHARE" "NO KEY UPDATE" "UPDATE"; do
        for end in COMMIT ROLLBACK; do
            row=$((row + 1))
            ask -c "BEGIN" -c "SELECT FROM locked_$method WHERE k % 8 + 1 = $row FOR $mode" -c "PREPARE TRANSACTION 'locks'" \
                -c "$end PREPARED 'locks'" >/dev/null
        done
    done
    ask -c "CREATE TABLE updated_$method (k int PRIMARY KEY, n int, v text) USING $method" \
        -c "CREATE INDEX updated_${method}_n ON updated_$method (n)" -c "CREATE UNIQUE INDEX updated_${method}_v ON updated_$method (v)" \
        -c "INSERT INTO updated_$method SELECT i, 1, 'v' || i FROM generate_series(1, 50) i"
done
ask -c "DO 'BEGIN PERFORM loosekv.flush(''updated_loosekv''); END'"
for method in heap loosekv; do ask -c "UPDATE updated_$method SET n = 2, v = 'w' || k WHERE k <= 20"; done
ask -c "CREATE TABLE applied (k int, v text) USING loosekv" -c "INSERT INTO applied SELECT i, 'v' || i FROM generate_series(1, 20) i"
# A reader remembers what became of some writers: these are too many.
for table in memory run; do
    ask -c "CREATE TABLE $table (k int PRIMARY KEY, v text) USING loosekv"
    ask -c "DO 'BEGIN
        FOR i IN 1 .. 1000 LOOP
            BEGIN INSERT INTO $table VALUES (i, ''v'' || i); EXCEPTION WHEN division_by_zero THEN END;
        END LOOP;
        IF ''$table'' = ''run'' THEN PERFORM loosekv.flush(''$table''); END IF;
    END'"
done
ask -c "CREATE FUNCTION rest(cursor refcursor) RETURNS text LANGUAGE plpgsql AS 'DECLARE
        line record;
        lines int = 0;
        hash bigint = 0;
    BEGIN
        LOOP
            FETCH cursor INTO line;
            EXIT WHEN NOT found;
            lines = lines + 1;
            hash = hash + hashtext(line::text);
        END LOOP;
        RETURN lines || '' rows, '' || hash;
    EXCEPTION WHEN OTHERS THEN RETURN sqlerrm;
    END'"

# The next transaction ids, up to another segment of the commit log.
segment=$(printf %04X $(($(ask -c "SELECT pg_current_xact_id()") / 1048576)))
ask -c "CREATE TEMP TABLE burnt (i int)" -c "DO 'BEGIN
    FOR i IN pg_current_xact_id()::text::bigint % 1048576 .. 1048576 LOOP
        BEGIN INSERT INTO burnt VALUES (i); EXCEPTION WHEN division_by_zero THEN END;
    END LOOP;
END'" -c "DROP TABLE burnt"
[ -e "$dir/data/pg_xact/$segment" ] || { echo "the commit log is gone already" >&2; exit 1; }

# Entries of rows that were updated stay in the indexes.
for method in heap loosekv; do ask -c "VACUUM (FREEZE, INDEX_CLEANUP OFF) updated_$method"; done
# A cursor goes on with what the table was when it was opened: its writers are asked about, though VACUUM finds that all have committed.
exec {session}> >(ask -v ON_ERROR_STOP=off >"$dir/cursors" 2>&1)
reader=$!
cat >&"$session" <<END
BEGIN;
DECLARE expected CURSOR FOR SELECT i, 'v' || i FROM generate_series(1, 1000) i;
DECLARE memory CURSOR FOR TABLE memory;
DECLARE run CURSOR FOR TABLE run;
DECLARE sorted CURSOR FOR TABLE run ORDER BY k;
MOVE expected; MOVE memory; MOVE run; MOVE sorted;
SELECT 'opened';
END
until grep -q . "$dir/cursors"; do sleep 0.1; done
freeze "relname LIKE 'updated%'"
cat >&"$session" <<END
SELECT format('%s: expected "%s", found "%s"', c, expected, found)
FROM rest('expected') expected, unnest('{memory,run,sorted}'::refcursor[]) c, rest(c) found WHERE found <> expected;
END
exec {session}>&-
wait "$reader"
differ "cursors" "opened" "$(cat "$dir/cursors")"
# Nothing else has kept the commit log.
ask -c "VACUUM (FREEZE) memory" -c "VACUUM (FREEZE) run" -c "VACUUM (FREEZE) pg_database"
[ ! -e "$dir/data/pg_xact/$segment" ] || { echo "the commit log is still there" >&2; exit 1; }

both "row locks, FOR UPDATE" "SELECT k FROM locked_@ WHERE k <= 8 FOR UPDATE"
both "row locks, SKIP LOCKED" "SELECT k FROM locked_@ WHERE k > 8 AND k <= 16 FOR UPDATE SKIP LOCKED"
both "row locks, UPDATE" "UPDATE locked_@ SET k = k + 100, v = 1 WHERE k > 16 RETURNING k, v"
both "index entries" "SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(v), sum(k) FROM updated_@ WHERE n = 1"
both "index entries, unique" "INSERT INTO updated_@ VALUES (51, 3, 'v1'); SELECT * FROM updated_@ WHERE v IN ('v1', 'w1') ORDER BY k"

ask -c "CREATE DATABASE published TEMPLATE template0"
ask -d published -c "CREATE TABLE applied (k int, v text)" -c "INSERT INTO applied SELECT i, 'v' || i FROM generate_series(1, 20) i" \
    -c "ALTER TABLE applied REPLICA IDENTITY FULL" -c "CREATE PUBLICATION changes FOR TABLE applied" \
    -c "SELECT pg_create_logical_replication_slot('changes', 'pgoutput')" >/dev/null
ask -c "CREATE SUBSCRIPTION changes CONNECTION 'host=$dir port=$PGPORT user=postgres dbname=published' PUBLICATION changes
    WITH (create_slot = false, copy_data = false, disable_on_error)"
ask -d published -c "BEGIN; UPDATE applied SET v = 'u' WHERE k % 3 = 0; DELETE FROM applied WHERE k % 7 = 0" \
    -c "INSERT INTO applied VALUES (21, 'new'); COMMIT"
until [ "$(ask -c "SELECT NOT subenabled OR EXISTS (SELECT FROM applied WHERE v = 'new') FROM pg_subscription")" = t ]; do sleep 0.1; done
[ "$(ask -c "SELECT subenabled FROM pg_subscription")" = t ] || { echo "replication: $(grep ERROR "$dir/log" | tail -n 1)" >&2; exit 1; }
rows="SELECT * FROM applied ORDER BY k"
differ "replication" "$(ask -d published -c "$rows")" "$(ask -c "$rows")"

for table in locked_loosekv updated_loosekv memory run applied; do
    found=$(ask -c "SELECT * FROM loosekv.check('$table')")
    [ -z "$found" ] || { echo "$table: $found" >&2; exit 1; }
done
if grep -E "PANIC|terminated by signal" "$dir/log"; then exit 1; fi
echo "frozen: 20 tables rewritten before and after the commit log of their writers went, and read after a crash; row locks, index entries," \
    "replication and cursors from before it went; no difference"
