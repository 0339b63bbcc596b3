#!/usr/bin/env bash
# The background worker: started on demand, gives way to DDL, ends with its database, is missed by nobody when it is killed.
# Makes a cluster of its own (the extension is installed where PG_CONFIG says). Arguments: tests to run instead of all.
set -euo pipefail
cd "$(dirname "$0")"
. ../scripts/cluster.sh

dir=$(mktemp -d "${TMPDIR:-/tmp}/loosekv-worker.XXXXXX")
load_pids=()
cleanup() {
    stop_load
    cluster_stop "$dir" || true
    rm -rf "$dir"
}
trap cleanup EXIT

fail() {
    echo "FAILED: $*" >&2
    psql -X -c "SELECT pid, backend_type, state, wait_event, query FROM pg_stat_activity WHERE datname IS NOT NULL" >&2 || true
    tail -n 30 "$dir/log" >&2
    exit 1
}

sql() { # sql STATEMENT [DATABASE]
    psql -X -At -v ON_ERROR_STOP=1 -c "$1" "${2:-$PGDATABASE}"
}

worker_pid() { # worker_pid [DATABASE]
    sql "SELECT pid FROM pg_stat_activity WHERE backend_type = 'loosekv worker' AND datname = '${1:-$PGDATABASE}'" postgres
}

# Waits until the SQL condition holds: until SECONDS CONDITION [DATABASE]
until_true() {
    local deadline=$((SECONDS + $1))
    while [ "$(sql "SELECT $2" "${3:-postgres}")" != t ]; do
        [ "$SECONDS" -lt "$deadline" ] || fail "not within $1 s: $2"
        sleep 0.05
    done
}

worker_there="EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'loosekv worker' AND datname = '%s')"
# shellcheck disable=SC2059
expect_worker() { until_true 20 "$(printf "$worker_there" "${1:-postgres}")"; }
# shellcheck disable=SC2059
expect_no_worker() { until_true 20 "NOT $(printf "$worker_there" "${1:-postgres}")"; }

# Runs the statement, which may take this many milliseconds: within MILLISECONDS STATEMENT [DATABASE]
within() {
    local begun ended
    begun=$(date +%s%3N)
    sql "$2" "${3:-postgres}" >/dev/null || fail "$2"
    ended=$(date +%s%3N)
    [ $((ended - begun)) -le "$1" ] || fail "$2 took $((ended - begun)) ms"
    echo "         $2: $((ended - begun)) ms"
}

fill() { # fill TABLE FROM TO [DATABASE]
    sql "INSERT INTO $1 SELECT i, repeat(md5(i::text), 8) FROM generate_series($2, $3) i" "${4:-postgres}" >/dev/null
}

fill_mixed() { # the same, not in the order of the keys, so that there is something to merge
    sql "INSERT INTO $1 SELECT i, repeat(md5(i::text), 8) FROM generate_series($2, $3) i ORDER BY md5(i::text)" "${4:-postgres}" >/dev/null
}

start_load() { # start_load TABLE [DATABASE]: writers until stop_load
    cat >"$dir/load.sql" <<SQL
\set k random(1, 200000)
INSERT INTO $1 VALUES (:k, repeat(md5(:k::text), 8)) ON CONFLICT (k) DO UPDATE SET v = excluded.v || 'x';
SQL
    pgbench -n -f "$dir/load.sql" -c 3 -T 600 "${2:-postgres}" >"$dir/load.out" 2>&1 &
    load_pids+=($!)
}

stop_load() {
    for pid in "${load_pids[@]}"; do kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; done
    load_pids=()
}

table() { # table NAME [DATABASE]
    sql "DROP TABLE IF EXISTS $1; CREATE TABLE $1 (k int PRIMARY KEY, v text) USING loosekv" "${2:-postgres}" >/dev/null 2>&1
}

setting() { # setting NAME VALUE
    sql "ALTER SYSTEM SET $1 = '$2'" >/dev/null
    sql "SELECT pg_reload_conf()" >/dev/null
}

restart() {
    as_postgres pg_ctl -D "$dir/data" -l "$dir/log" -m fast -w restart >/dev/null 2>&1 || fail "restart"
}

test_on_demand() {
    expect_no_worker
    table t
    fill t 1 20000
    expect_worker
    until_true 20 "(SELECT state = 'idle' AND backend_xmin IS NULL AND xact_start IS NULL AND wait_event = 'Extension'
                    FROM pg_stat_activity WHERE backend_type = 'loosekv worker')"
    [ "$(sql "SELECT count(*), sum(length(v)) FROM t")" = "20000|5120000" ] || fail "rows are missing"
}

test_idle_exit() {
    table t
    fill t 1 5000
    expect_worker
    setting loosekv.worker_naptime 20
    expect_no_worker
    sql "ALTER SYSTEM RESET loosekv.worker_naptime" >/dev/null
    sql "SELECT pg_reload_conf()" >/dev/null
    fill t 5001 10000
    expect_worker
}

# Scans that have begun in several runs long enough call for a worker, if there is none, to make those runs one.
test_scans() {
    table scanned
    sql "ALTER SYSTEM SET loosekv.workers = 0" >/dev/null
    sql "SELECT pg_reload_conf()" >/dev/null
    expect_no_worker
    for from in 1 2 3; do
        sql "INSERT INTO scanned SELECT i * 3 + $from, repeat('v', 100) FROM generate_series(1, 200) i" >/dev/null
        sql "SELECT loosekv.flush('scanned')" >/dev/null
    done
    runs="SELECT runs FROM loosekv.table_stats('scanned')"
    [ "$(sql "$runs")" = 3 ] || fail "there should be three runs"
    sql "ALTER SYSTEM RESET loosekv.workers" >/dev/null
    setting loosekv.worker_naptime 20
    expect_no_worker
    sql "DO \$\$ BEGIN FOR i IN 1..10000 LOOP PERFORM FROM scanned WHERE k >= i % 600 ORDER BY k LIMIT 1; END LOOP; END \$\$" >/dev/null
    until_true 20 "($runs) = 1"
    sql "ALTER SYSTEM RESET loosekv.worker_naptime" >/dev/null
    sql "SELECT pg_reload_conf()" >/dev/null
    [ "$(sql "SELECT count(*) FROM scanned")" = 600 ] || fail "rows are missing"
}

test_terminate() {
    table t
    start_load t
    for _ in 1 2 3 4 5; do
        expect_worker
        sql "SELECT pg_terminate_backend($(worker_pid | head -n 1))" >/dev/null || true
        sleep 0.2
    done
    for _ in 1 2 3 4 5; do
        expect_worker
        sql "SELECT pg_cancel_backend($(worker_pid | head -n 1))" >/dev/null || true
        sleep 0.1
    done
    expect_worker
    stop_load
    sql "SELECT count(*) = count(DISTINCT k) FROM t" | grep -qx t || fail "a key came twice"
}

test_long_merge() {
    # Slow compression makes the merge long: DDL waits for a few pages of it, not for all.
    local round statement begun
    for round in 1 2; do
        for statement in "ALTER TABLE t ADD COLUMN c$round int" "TRUNCATE t" "DROP TABLE t"; do
            setting loosekv.workers 0
            expect_no_worker
            table t
            fill_mixed t 1 60000
            setting loosekv.compression zstd
            setting loosekv.compression_level 19
            setting loosekv.workers 4
            begun=$SECONDS
            fill_mixed t 100000 101000
            until [ "$(sql "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'merging%' AND state = 'active'
                            AND backend_type = 'loosekv worker'")" = 1 ]; do
                [ $((SECONDS - begun)) -lt 20 ] || fail "no merge to be seen"
            done
            within 1000 "$statement"
            sql "ALTER SYSTEM RESET loosekv.compression" >/dev/null
        done
    done
    sql "ALTER SYSTEM RESET loosekv.compression_level" >/dev/null
    sql "ALTER SYSTEM RESET loosekv.workers" >/dev/null
    sql "SELECT pg_reload_conf()" >/dev/null
}

test_own_table() {
    # To a table that a transaction has for itself no worker comes: nobody is to wait for one.
    within 4000 "CREATE TABLE mine (k int PRIMARY KEY, v text) USING loosekv WITH (loosekv.memtable_size = '1MB', loosekv.fan_in = 8);
                 INSERT INTO mine SELECT i, repeat(md5(i::text), 4) FROM generate_series(1, 200000) i"
    within 4000 "VACUUM FULL mine"
    within 4000 "ALTER TABLE mine ALTER k TYPE bigint"
    within 4000 "CREATE TABLE copied USING loosekv WITH (loosekv.memtable_size = '1MB', loosekv.fan_in = 8) AS SELECT * FROM mine"
    sql "SELECT count(*) = 200000 AND sum(k) = 20000100000 FROM mine" | grep -qx t || fail "rows were lost"
    sql "DROP TABLE mine, copied" >/dev/null
}

test_ddl() {
    table t
    table other
    fill_mixed t 1 200000
    expect_worker
    start_load other
    # A merge of everything is under way, or flushes follow each other: none may hold these up.
    for _ in 1 2 3; do
        within 3000 "ALTER TABLE t ADD COLUMN c int"
        within 3000 "ALTER TABLE t DROP COLUMN c"
        fill_mixed t 1000000 1030000
        within 3000 "TRUNCATE t"
        fill_mixed t 1 60000
    done
    within 3000 "DROP TABLE t"
    start_load other
    within 3000 "ALTER TABLE other ADD COLUMN c int"
    stop_load
    within 3000 "DROP TABLE other"
}

test_drop_database() {
    local round
    for round in 1 2 3; do
        sql "CREATE DATABASE d$round" >/dev/null
        sql "CREATE EXTENSION loosekv" "d$round" >/dev/null
        table t "d$round"
        fill_mixed t 1 60000 "d$round"
        expect_worker "d$round"
        if [ "$round" = 1 ]; then within 5000 "CREATE DATABASE copy TEMPLATE d1"; fi
        if [ "$round" = 2 ]; then within 5000 "ALTER DATABASE d2 RENAME TO d4"; within 5000 "ALTER DATABASE d4 RENAME TO d2"; fi
        fill_mixed t 60001 100000 "d$round"
        within 5000 "DROP DATABASE d$round"
        expect_no_worker "d$round"
    done
    [ "$(sql "SELECT count(*) FROM t" copy)" = 60000 ] || fail "the copy is not whole"
    within 5000 "DROP DATABASE copy"
    # A database's owner need not be a superuser to drop it by force.
    sql "CREATE ROLE owner LOGIN CREATEDB" >/dev/null
    sql "CREATE DATABASE d OWNER owner" >/dev/null
    sql "CREATE EXTENSION loosekv" d >/dev/null
    table t d
    fill_mixed t 1 60000 d
    expect_worker d
    PGUSER=owner within 5000 "DROP DATABASE d WITH (FORCE)"
}

test_without_worker() {
    setting loosekv.workers 0
    expect_no_worker
    table t
    fill t 1 60000
    [ -z "$(worker_pid)" ] || fail "a worker was started"
    [ "$(sql "SELECT count(*) FROM t")" = 60000 ] || fail "rows are missing"
    # No process to be had: the same.
    sql "ALTER SYSTEM RESET loosekv.workers" >/dev/null
    setting max_worker_processes 0
    restart
    fill t 60001 120000
    [ -z "$(worker_pid)" ] || fail "a worker was started"
    [ "$(sql "SELECT count(*) FROM t")" = 120000 ] || fail "rows are missing"
    sql "ALTER SYSTEM RESET max_worker_processes" >/dev/null
    restart
    table t
    fill t 1 60000
    # One worker for two databases: the second one goes without while the first one's has work, and gets one in the end.
    setting loosekv.workers 1
    sql "CREATE DATABASE second" >/dev/null
    sql "CREATE EXTENSION loosekv" second >/dev/null
    table t second
    fill t 60001 90000
    expect_worker
    fill t 1 60000 second
    [ "$(sql "SELECT count(*) FROM t" second)" = 60000 ] || fail "rows are missing in the second database"
    expect_no_worker
    fill t 60001 70000 second
    expect_worker second
    sql "ALTER SYSTEM RESET loosekv.workers" >/dev/null
    sql "SELECT pg_reload_conf()" >/dev/null
    within 5000 "DROP DATABASE second"
}

test_many_tables() {
    sql "DO \$\$ BEGIN FOR i IN 1..500 LOOP
             EXECUTE format('CREATE TABLE many_%s (k int PRIMARY KEY, v text) USING loosekv', i); END LOOP; END \$\$" >/dev/null
    for _ in 1 2; do
        sql "DO \$\$ BEGIN FOR i IN 1..500 LOOP EXECUTE format('INSERT INTO many_%s
                 SELECT g, repeat(md5(g::text), 4) FROM generate_series(1, 400) g
                 ON CONFLICT (k) DO UPDATE SET v = excluded.v', i); END LOOP; END \$\$" >/dev/null
    done
    local total
    total=$(sql "SELECT sum((xpath('/row/c/text()', query_to_xml('SELECT count(*) AS c FROM ' || relname, false, true, '')))[1]::text::int)
                 FROM pg_class WHERE relname LIKE 'many\_%' AND relkind = 'r'")
    [ "$total" = 200000 ] || fail "500 tables hold $total rows"
    sql "DO \$\$ BEGIN FOR i IN 1..500 LOOP EXECUTE format('DROP TABLE many_%s', i);
             IF i % 50 = 0 THEN COMMIT; END IF; END LOOP; END \$\$" >/dev/null
}

test_short_memory() {
    # 600 tables whose memtables do not fit into memory all at once.
    setting loosekv.shared_memory 16MB
    restart
    sql "DO \$\$ BEGIN FOR i IN 1..600 LOOP
             EXECUTE format('CREATE TABLE short_%s (k int PRIMARY KEY, v text) USING loosekv', i); END LOOP; END \$\$" >/dev/null
    for _ in 1 2; do
        sql "DO \$\$ BEGIN FOR i IN 1..600 LOOP EXECUTE format('INSERT INTO short_%s AS t
                 SELECT g, repeat(md5(g::text), 2) FROM generate_series(1, 400) g
                 ON CONFLICT (k) DO UPDATE SET v = t.v || ''x''', i); COMMIT; END LOOP; END \$\$" >/dev/null
    done
    local total
    total=$(sql "SELECT sum((xpath('/row/c/text()', query_to_xml('SELECT sum(length(v)) AS c FROM ' || relname, false, true, '')))[1]::text::int)
                 FROM pg_class WHERE relname LIKE 'short\_%' AND relkind = 'r'")
    [ "$total" = $((600 * 400 * 65)) ] || fail "600 tables hold $total bytes"
    # All the memory is in small pieces, of tables that nobody uses any more: it is given up for the memtables of one that is written.
    local flushes before
    flushes="SELECT flushes FROM loosekv.table_stats('alone')"
    sleep 11
    sql "CREATE TABLE alone (k int PRIMARY KEY, v text) USING loosekv WITH (loosekv.memtable_size = '16MB')" >/dev/null
    fill alone 1 50000
    before=$(sql "$flushes")
    fill alone 50001 150000
    echo "         $(($(sql "$flushes") - before)) memtables for 100000 rows, after $before for 50000"
    [ $(($(sql "$flushes") - before)) -le 100 ] || fail "memtables stay little"
    sql "DROP TABLE alone" >/dev/null
    sql "DO \$\$ BEGIN FOR i IN 1..600 LOOP EXECUTE format('DROP TABLE short_%s', i);
             IF i % 50 = 0 THEN COMMIT; END IF; END LOOP; END \$\$" >/dev/null
    sql "ALTER SYSTEM RESET loosekv.shared_memory" >/dev/null
    restart
}

# Garbage that writers are spared is merged away when nobody has written for a minute; the worker does not leave before.
test_garbage_at_rest() {
    local part runs
    sql "CREATE TABLE dirty (k int PRIMARY KEY, v text) USING loosekv WITH (loosekv.memtable_size = '16MB', loosekv.fan_in = 8)" >/dev/null
    setting loosekv.worker_naptime 50
    for part in "1, 20000" "1, 3500" "3501, 7000"; do
        sql "INSERT INTO dirty SELECT i, repeat(md5(i::text), 4) FROM generate_series($part) i
            ON CONFLICT (k) DO UPDATE SET v = excluded.v" >/dev/null
        sql "SELECT loosekv.flush('dirty')" >/dev/null
    done
    runs="SELECT runs FROM loosekv.table_stats('dirty')"
    sleep 8
    [ "$(sql "$runs")" = 3 ] || fail "there should be three runs"
    until_true 90 "($runs) = 1"
    expect_no_worker
    sql "ALTER SYSTEM RESET loosekv.worker_naptime" >/dev/null
    sql "SELECT pg_reload_conf()" >/dev/null
    sql "DROP TABLE dirty" >/dev/null
}

# What stands at the end of an idle table's file moves down, and the file gets shorter.
test_moved_end() {
    local before sum rows
    sql "CREATE TABLE moved (k uuid PRIMARY KEY, v text) USING loosekv WITH (loosekv.compression = 'zstd')" >/dev/null
    sql "INSERT INTO moved SELECT md5(i::text)::uuid, (SELECT string_agg(md5(i::text || j), '') FROM generate_series(1, 8) j)
        FROM generate_series(1, 200000) i" >/dev/null
    sql "SELECT loosekv.compact('moved')" >/dev/null
    sql "DELETE FROM moved WHERE hashtext(k::text) % 2 = 0" >/dev/null
    sql "SELECT loosekv.compact('moved')" >/dev/null
    # Its log stands at the end, and its memtable is too small to be flushed for the memory.
    sql "INSERT INTO moved SELECT md5(i::text)::uuid, 'few' FROM generate_series(200001, 200100) i" >/dev/null
    before=$(sql "SELECT pg_relation_size('moved')")
    sum=$(sql "SELECT sum(hashtext(k || v)) FROM moved")
    rows=$(sql "SELECT count(*) FROM moved")
    expect_worker
    until_true 60 "pg_relation_size('moved') < $before * 3 / 4"
    until_true 60 "(SELECT free_bytes * 4 < file_bytes FROM loosekv.stats WHERE tablename = 'moved')"
    [ "$(sql "SELECT sum(hashtext(k || v)) FROM moved")" = "$sum" ] || fail "rows are missing"
    [ -z "$(sql "SELECT * FROM loosekv.check('moved')")" ] || fail "the check finds something"
    sql "INSERT INTO moved SELECT md5(i::text)::uuid, 'new' FROM generate_series(200101, 230000) i" >/dev/null
    [ "$(sql "SELECT count(*) = $rows + 29900 FROM moved")" = t ] || fail "rows are missing"
    sql "DROP TABLE moved" >/dev/null
}

# A merge with little memory keeps what it needs at the end in temporary files; where those are limited, in memory after all.
test_side_files() {
    local begun limit
    for limit in -1 64; do
        table t
        fill_mixed t 1 100000
        fill_mixed t 100001 200000
        begun=$(sql "SELECT temp_files FROM pg_stat_database WHERE datname = 'postgres'")
        sql "SET maintenance_work_mem = '1MB'; SET temp_file_limit = $limit; SELECT loosekv.compact('t')" >/dev/null
        [ -z "$(sql "SELECT * FROM loosekv.check('t')")" ] || fail "the check finds something"
        [ "$(sql "SELECT count(*), count(DISTINCT k), sum(length(v)) FROM t")" = "200000|200000|51200000" ] || fail "rows are missing"
        if [ "$limit" = -1 ]; then
            until_true 20 "temp_files > $begun FROM pg_stat_database WHERE datname = 'postgres'"
        fi
    done
    [ -z "$(ls "$dir"/data/base/pgsql_tmp 2>/dev/null)" ] || fail "a temporary file is left"
}

test_idle_tail() {
    local before
    table t
    fill t 1 300000
    sql "SELECT loosekv.compact('t')" >/dev/null
    sql "DELETE FROM t WHERE k > 1000" >/dev/null
    sql "SELECT loosekv.compact('t')" >/dev/null
    # What is left is written once more, to the front.
    sql "UPDATE t SET v = v || 'x' WHERE k < 10" >/dev/null
    sql "SELECT loosekv.compact('t')" >/dev/null
    before=$(sql "SELECT pg_relation_size('t')")
    expect_worker
    until_true 40 "pg_relation_size('t') < $before / 2"
    [ "$(sql "SELECT count(*) FROM t")" = 1000 ] || fail "rows are missing"
    fill t 1000000 1030000
    [ "$(sql "SELECT count(*) FROM t")" = 31001 ] || fail "rows are missing"
}

test_restart() {
    table t
    fill t 1 60000
    restart
    expect_no_worker
    [ "$(sql "SELECT k FROM t WHERE k = 17")" = 17 ] || fail "a row is missing"
    # Its index is built in the background, unasked.
    expect_worker
    [ "$(sql "SELECT count(*) FROM t")" = 60000 ] || fail "rows are missing"
}

test_kill() {
    local round pid
    table t
    for round in 1 2 3; do
        start_load t
        expect_worker
        sql "CREATE TABLE IF NOT EXISTS twin (k int PRIMARY KEY, v text) USING heap; TRUNCATE twin" >/dev/null 2>&1
        sql "INSERT INTO twin SELECT k + 1000000, v FROM t" >/dev/null
        sql "INSERT INTO t SELECT * FROM twin ON CONFLICT (k) DO UPDATE SET v = excluded.v" >/dev/null
        sleep "0.$((RANDOM % 10))"
        pid=$(worker_pid | head -n 1)
        if [ -z "$pid" ]; then expect_worker; pid=$(worker_pid | head -n 1); fi
        local starts deadline=$((SECONDS + 60))
        starts=$(grep -c "database system is ready" "$dir/log")
        kill -9 "$pid"
        stop_load
        until [ "$(grep -c "database system is ready" "$dir/log")" -gt "$starts" ]; do
            [ "$SECONDS" -lt "$deadline" ] || fail "the server did not come back"
            sleep 0.2
        done
        local lost
        lost=$(sql "SELECT count(*) FROM (SELECT * FROM twin EXCEPT ALL SELECT * FROM t WHERE k > 1000000) d")
        [ "$lost" = 0 ] || fail "round $round: $lost rows lost"
        sql "SELECT count(*) = count(DISTINCT k) FROM t" | grep -qx t || fail "a key came twice"
        fill t $((2000000 + round * 10000)) $((2000000 + round * 10000 + 9999))
        expect_worker
        sql "DELETE FROM t WHERE k > 1000000" >/dev/null
    done
}

same_as_twin() { # same_as_twin WHEN
    local differ
    differ=$(sql "SELECT (SELECT count(*) FROM (TABLE t EXCEPT ALL TABLE twin) a) + (SELECT count(*) FROM (TABLE twin EXCEPT ALL TABLE t) b)")
    [ "$differ" = 0 ] || fail "$1: $differ rows differ"
    differ=$(sql "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
                  SELECT count(*) FROM generate_series(1, 200000, 3) k LEFT JOIN twin USING (k) LEFT JOIN t USING (k)
                  WHERE twin.v IS DISTINCT FROM t.v" | tail -n 1)
    [ "$differ" = 0 ] || fail "$1: $differ rows differ by key"
    [ -z "$(sql "SELECT * FROM loosekv.check('t')")" ] || fail "$1: the check finds something"
}

sums_as_twin() { # sums_as_twin WHEN: the same in short, where something is not to be over before it is looked at
    local sums="SELECT count(*), sum(hashtext(v)), sum(hashtext(v)::bigint * k) FROM"
    [ "$(sql "$sums t")" = "$(sql "$sums twin")" ] || fail "$1: rows differ"
}

merge_begun="EXISTS (SELECT FROM loosekv.runs('t') WHERE last_l0 < first_l0)"

begin_long_merge() { # begin_long_merge ROWS: table t, its twin in heap, and a merge of all of t, so slow that it is met when some of it is done
    setting loosekv.workers 0
    expect_no_worker
    table t
    # Of values that hardly compress there are more slices.
    sql "INSERT INTO t SELECT i, (SELECT string_agg(encode(sha512((i::text || j)::bytea), 'base64'), '') FROM generate_series(1, 4) j)
        FROM generate_series(1, $1) i ORDER BY md5(i::text)" >/dev/null
    sql "UPDATE t SET v = v || 'x'" >/dev/null
    sql "DELETE FROM t WHERE k % 7 = 0" >/dev/null
    sql "DROP TABLE IF EXISTS twin; CREATE TABLE twin (k int PRIMARY KEY, v text) USING heap; INSERT INTO twin TABLE t" >/dev/null 2>&1
    size=$(sql "SELECT pg_table_size('t')")
    setting loosekv.compression zstd
    setting loosekv.compression_level 19
    sql "SELECT loosekv.compact('t')" >/dev/null 2>&1 &
    load_pids+=($!)
    until_true 60 "$merge_begun"
}

crash_long_merge() { # kills who merges; what was done of the merge is there, and all rows are
    local pid starts
    sums_as_twin "while it is merged"
    pid=$(sql "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT loosekv.compact%'")
    [ -n "$pid" ] || fail "the long merge was over too soon"
    starts=$(grep -c "database system is ready" "$dir/log")
    kill -9 "$pid"
    wait "${load_pids[@]}" || true
    load_pids=()
    until [ "$(grep -c "database system is ready" "$dir/log")" -gt "$starts" ]; do sleep 0.2; done
    [ "$(sql "SELECT $merge_begun")" = t ] || fail "nothing was left of the merge"
    same_as_twin "after the crash"
    setting loosekv.compression none
}

after_long_merge() {
    sql "ALTER SYSTEM RESET loosekv.compression" >/dev/null
    sql "ALTER SYSTEM RESET loosekv.compression_level" >/dev/null
    sql "ALTER SYSTEM RESET loosekv.workers" >/dev/null
    sql "SELECT pg_reload_conf()" >/dev/null
}

test_begun_merge() {
    # A merge of all, cut short by a crash when some of it is done: what it has handed over is there, and it goes on.
    local size grown
    begin_long_merge 200000
    crash_long_merge
    setting loosekv.workers 4
    fill t 300001 320000
    sql "DELETE FROM t WHERE k > 300000" >/dev/null
    until_true 60 "NOT $merge_begun"
    sql "SELECT loosekv.compact('t')" >/dev/null
    same_as_twin "in the end"
    grown=$(sql "SELECT pg_table_size('t') * 100 / $size")
    echo "         the largest size is $grown % of that before"
    [ "$grown" -le 115 ] || fail "the table grew to $grown % of its size"
    after_long_merge
}

test_levels_meanwhile() {
    # Writers do not wait for the end of a long merge: levels of newer runs that become full are merged between two of its slices.
    local size last table round=0
    begin_long_merge 400000
    last=$(sql "SELECT max(last_l0) FROM loosekv.runs('t')")
    until [ "$(sql "SELECT $merge_begun AND EXISTS (SELECT FROM loosekv.runs('t') WHERE first_l0 > $last AND last_l0 > first_l0)")" = t ]; do
        round=$((round + 1))
        [ "$round" -lt 200 ] || fail "no newer level was merged meanwhile"
        [ "$(sql "SELECT $merge_begun")" = t ] || fail "the long merge was over too soon"
        for table in t twin; do
            sql "INSERT INTO $table SELECT $round * 97 + i * 389, md5((i + $round)::text) || 'new'
                 FROM generate_series(1, 500) i ORDER BY md5(i::text) ON CONFLICT (k) DO UPDATE SET v = excluded.v || 'again'" >/dev/null
            sql "DELETE FROM $table WHERE k BETWEEN $round * 800 AND $round * 800 + 20" >/dev/null
        done
    done
    crash_long_merge
    sql "SELECT loosekv.compact('t')" >/dev/null
    [ "$(sql "SELECT $merge_begun")" = f ] || fail "the merge was not ended"
    same_as_twin "in the end"
    after_long_merge
}

bytes_read() { # bytes_read PID
    awk '/^rchar/ {print $2}' "/proc/$1/io"
}

# Whoever merges reads through a small ring of buffers. A flush in the midst of it wants the log in the order of the keys: read that
# way from the disk, each row would cost a page.
test_flush_in_merge() {
    local pid before read last rows=24000
    setting loosekv.memtable_size 1MB
    sql "ALTER SYSTEM SET shared_buffers = '32MB'" >/dev/null
    restart
    sql "CREATE EXTENSION IF NOT EXISTS pg_prewarm" >/dev/null 2>&1
    begin_long_merge 200000
    sql "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT loosekv.compact%'" >/dev/null
    wait "${load_pids[@]}" && fail "the long merge was over too soon"
    load_pids=()
    [ "$(sql "SELECT $merge_begun")" = t ] || fail "nothing was left of the merge"
    sql "SELECT loosekv.flush('t')" >/dev/null
    last=$(sql "SELECT max(last_l0) FROM loosekv.runs('t')")
    # Another table's rows call the worker, which goes on with the merge.
    setting loosekv.workers 1
    table other
    sql "INSERT INTO other SELECT i, '' FROM generate_series(1, 60000) i" >/dev/null
    until_true 20 "EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'loosekv worker' AND query LIKE 'merging%')"
    pid=$(worker_pid)
    # Rows in no order, a part of a memtable, whose log is pushed out of the buffers.
    fill_mixed t 300001 $((300000 + rows))
    sql "SELECT pg_prewarm('twin')" >/dev/null
    [ "$(sql "SELECT max(last_l0) FROM loosekv.runs('t')")" = "$last" ] || fail "the memtable was flushed too soon"
    before=$(bytes_read "$pid")
    until [ "$(sql "SELECT EXISTS (SELECT FROM loosekv.runs('t') WHERE first_l0 > $last)")" = t ]; do
        [ "$rows" -lt 200000 ] || fail "no memtable was flushed in the midst of the merge"
        fill_mixed t $((300001 + rows)) $((304000 + rows))
        rows=$((rows + 4000))
        sleep 0.2
    done
    read=$(($(bytes_read "$pid") - before))
    [ "$(sql "SELECT $merge_begun")" = t ] || fail "the long merge was over too soon"
    echo "         the worker read $((read >> 20)) MB while $rows rows were flushed"
    # The log is 300 bytes a row, a page 8192; the merge has read a little, too.
    [ "$read" -le $((rows * 300 * 3)) ] || fail "the worker read $read bytes to flush $rows rows"
    after_long_merge
    sql "ALTER SYSTEM RESET loosekv.memtable_size" >/dev/null
    sql "ALTER SYSTEM RESET shared_buffers" >/dev/null
    restart
    sql "DROP TABLE other; SELECT loosekv.compact('t')" >/dev/null
    [ "$(sql "SELECT count(*) FROM t WHERE k > 300000")" = "$rows" ] || fail "rows are missing"
}

test_kinds_of_tables() {
    sql "CREATE UNLOGGED TABLE unlogged (k int PRIMARY KEY, v text) USING loosekv" >/dev/null
    fill unlogged 1 40000
    expect_worker
    [ "$(sql "SELECT count(*) FROM unlogged")" = 40000 ] || fail "rows are missing in the unlogged table"
    sql "CREATE TEMP TABLE own (k int PRIMARY KEY, v text) USING loosekv;
         INSERT INTO own SELECT i, repeat('x', 200) FROM generate_series(1, 40000) i;
         SELECT count(*) FROM own" | grep -qx 40000 || fail "rows are missing in the temporary table"
    # A table that nobody else can see yet.
    sql "BEGIN; CREATE TABLE fresh (k int PRIMARY KEY, v text) USING loosekv;
         INSERT INTO fresh SELECT i, repeat('x', 200) FROM generate_series(1, 40000) i;
         SELECT pg_sleep(1); COMMIT" >/dev/null
    [ "$(sql "SELECT count(*) FROM fresh")" = 40000 ] || fail "rows are missing in the fresh table"
    within 3000 "DROP TABLE unlogged, fresh"
}

test_horizon() {
    # The worker's transactions have no snapshot: VACUUM of other tables is not held up by a merge.
    table t
    fill t 1 200000
    for _ in $(seq 40); do
        local held
        held=$(sql "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'loosekv worker' AND backend_xmin IS NOT NULL
                    AND query LIKE 'merging%'")
        [ "$held" = 0 ] || fail "a merge holds a snapshot"
        sleep 0.02
    done
}

# Rows are merged as they are written while somebody keeps a snapshot for long, or a transaction open that wrote a row once, and all that
# can be is merged when that is asked for.
begin_rest() { # begin_rest STATEMENT: a transaction that begins with it, and rests until end_rest
    mkfifo "$dir/resting"
    psql -X postgres <"$dir/resting" >/dev/null &
    load_pids+=($!)
    exec 3>"$dir/resting"
    echo "BEGIN ISOLATION LEVEL REPEATABLE READ; $1; SELECT 'resting';" >&3
    until_true 20 "EXISTS (SELECT FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%resting%')"
}

end_rest() {
    exec 3>&-
    stop_load
    rm "$dir/resting"
}

expect_few_runs() { # expect_few_runs WHO STATEMENT: rows are written beside a transaction that began with the statement
    local most=0 now round
    table t
    begin_rest "$2"
    for round in $(seq 200); do
        # A memtable has some of these statements and a part of another.
        sql "INSERT INTO t SELECT 1000 * $round + i, md5(i::text) FROM generate_series(1, 300) i ORDER BY md5(i::text)" >/dev/null
        now=$(sql "SELECT count(*) FROM loosekv.runs('t')")
        most=$((now > most ? now : most))
    done
    sql "SELECT loosekv.compact('t')" >/dev/null
    now=$(sql "SELECT count(*) FROM loosekv.runs('t')")
    end_rest
    echo "         with an old $1: up to $most runs, compacted $now"
    [ "$most" -le 20 ] || fail "with an old $1: $most runs"
    [ "$now" -le 2 ] || fail "with an old $1: $now runs after everything was merged"
}

hold_versions() { # hold_versions: of table t, by a snapshot, over a merge of everything; until end_rest
    table t
    fill t 1 1000
    begin_rest "SELECT count(*) FROM t"
    for _ in $(seq 30); do sql "UPDATE t SET v = v || 'x'" >/dev/null; done
    sql "VACUUM t" >/dev/null
    sql "SELECT loosekv.compact('t')" >/dev/null
    [ "$(sql "SELECT run_rows FROM loosekv.table_stats('t')")" = 31000 ] || fail "a snapshot keeps no versions"
}

# What a merge had to keep for a snapshot goes once that has gone: by VACUUM at once, and by the worker, too.
test_after_snapshot() {
    local rows="SELECT run_rows FROM loosekv.table_stats('t')"
    setting loosekv.workers 0
    hold_versions
    sql "VACUUM t" >/dev/null
    [ "$(sql "$rows")" = 31000 ] || fail "VACUUM drops what a snapshot sees"
    end_rest
    sql "VACUUM t" >/dev/null
    [ "$(sql "$rows")" = 1000 ] || fail "VACUUM leaves $(sql "$rows") versions of 1000 rows"
    sql "ALTER SYSTEM RESET loosekv.workers" >/dev/null
    sql "SELECT pg_reload_conf()" >/dev/null
    hold_versions
    expect_worker
    end_rest
    until_true 30 "($rows) = 1000"
    [ "$(sql "SELECT count(*), sum(length(v)) FROM t")" = "1000|286000" ] || fail "rows are not what they were"
}

test_old_transactions() {
    expect_few_runs snapshot "SELECT count(*) FROM t"
    expect_few_runs writer "INSERT INTO t VALUES (0, '')"
}

# A cursor that rests keeps entries of deleted keys in the key index: the worker does not look for them again and again meanwhile.
test_resting_cursor() {
    local pid reader begun used
    table t
    fill t 1 500
    sql "SELECT loosekv.flush('t')" >/dev/null
    sql "DELETE FROM t WHERE k % 20 = 0" >/dev/null
    fill t 3001 3300
    (echo "BEGIN; DECLARE c CURSOR FOR TABLE t ORDER BY k; FETCH 1 FROM c; SELECT 'resting';"; sleep 8) | psql -X postgres >/dev/null &
    reader=$!
    load_pids+=("$reader")
    until_true 20 "EXISTS (SELECT FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%resting%')"
    sql "SELECT loosekv.flush('t')" >/dev/null
    fill t 2001 2010
    expect_worker
    sleep 1
    pid=$(worker_pid | head -n 1)
    begun=$(awk '{ print $14 + $15 }' "/proc/$pid/stat")
    sleep 2
    used=$(($(awk '{ print $14 + $15 }' "/proc/$pid/stat") - begun))
    [ "$used" -lt "$(getconf CLK_TCK)" ] || fail "the worker was busy for $used ticks of two seconds"
    wait "$reader" || fail "the reader"
    load_pids=()
}

test_waits() {
    # What a session shows that waits: for a worker that has stopped in the midst of its work, and for another's row.
    local pid waits="EXISTS (SELECT FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%s' AND wait_event_type || '/' || wait_event = '%s')"
    setting loosekv.write_throttle 1000
    table t
    fill t 1 20000
    expect_worker
    pid=$(worker_pid | head -n 1)
    kill -STOP "$pid"
    fill t 20001 120000 &
    load_pids+=($!)
    # shellcheck disable=SC2059
    until_true 20 "$(printf "$waits" "INSERT INTO t%" Extension/Extension)"
    kill -CONT "$pid"
    wait "${load_pids[0]}" || fail "the stalled writer"
    load_pids=()
    [ "$(sql "SELECT count(*) FROM t")" = 120000 ] || fail "rows are missing"
    sql "BEGIN; UPDATE t SET v = 'mine' WHERE k = 7; SELECT pg_sleep(2); COMMIT" >/dev/null &
    load_pids+=($!)
    # shellcheck disable=SC2059
    until_true 20 "$(printf "$waits" "%pg_sleep(2)%" Timeout/PgSleep)"
    sql "UPDATE t SET v = v || ' and yours' WHERE k = 7" >/dev/null &
    load_pids+=($!)
    # shellcheck disable=SC2059
    until_true 20 "$(printf "$waits" "UPDATE t SET v = v%" Lock/transactionid)"
    wait "${load_pids[@]}" || fail "those who waited"
    load_pids=()
    [ "$(sql "SELECT v FROM t WHERE k = 7")" = "mine and yours" ] || fail "an update is lost"
    sql "ALTER SYSTEM RESET loosekv.write_throttle" >/dev/null
    sql "SELECT pg_reload_conf()" >/dev/null
}

all=(on_demand idle_exit scans terminate ddl own_table long_merge drop_database without_worker kinds_of_tables horizon old_transactions after_snapshot resting_cursor waits many_tables short_memory idle_tail garbage_at_rest moved_end side_files begun_merge levels_meanwhile flush_in_merge restart kill)
tests=("$@")
[ "${#tests[@]}" -gt 0 ] || tests=("${all[@]}")
cluster_start "$dir" "loosekv.memtable_size = '64kB'" "loosekv.fan_in = 4" "log_min_messages = info" "fsync = off" \
    "max_locks_per_transaction = 256"
sql "CREATE EXTENSION loosekv" >/dev/null
for name in "${tests[@]}"; do
    echo "test     $name"
    begun_test=$SECONDS
    "test_$name"
    echo "ok       $name ($((SECONDS - begun_test)) s)"
done
if grep -E "PANIC|assertion|own a lock|leak|could not (flush|merge|sweep|rebuild)" "$dir/log" >&2; then
    fail "the server's log has more than it should"
fi
