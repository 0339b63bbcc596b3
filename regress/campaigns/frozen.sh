#!/usr/bin/env bash
# Rows whose writers the commit log has forgotten: transaction ids go on by two hundred million, everything is frozen, the log is cut
# off, and tables that were vacuumed before then are rewritten, given other keys and clustered. And the other way round: rewritten
# first, then the log is cut off. In the end the horizon goes back behind what is known of subtransactions, as it does when a standby
# with an older query connects again. Heap is the oracle.
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
        [ "$heap" = "$loosekv" ] || { echo "$1 $what: expected \"$heap\", found \"$loosekv\"" >&2; exit 1; }
        found=$(ask -c "SELECT * FROM loosekv.check('$1_${what}_loosekv')")
        [ -z "$found" ] || { echo "$1 $what: $found" >&2; exit 1; }
    done
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
if grep -E "PANIC|terminated by signal" "$dir/log"; then exit 1; fi
echo "frozen: 20 tables rewritten before and after the commit log of their writers went, and read after a crash; no difference"
