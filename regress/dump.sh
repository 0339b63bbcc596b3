#!/usr/bin/env bash
# pg_dump and pg_restore: what is restored (plain, custom format, several jobs, data only, schema only) dumps to the same, and
# has the same rows; a dump of loosekv tables can be restored as heap tables and back. Needs a running cluster (PGHOST, PGPORT).
set -euo pipefail
cd "$(dirname "$0")"

work=$(mktemp -d "${TMPDIR:-/tmp}/loosekv-dump.XXXXXX")
trap 'rm -rf "$work"' EXIT
sql() { psql -X -q -At -v ON_ERROR_STOP=1 "$@"; }
fail() {
    echo "FAILED: $*" >&2
    exit 1
}
fresh() { # fresh DATABASE
    sql -d postgres -c "SET client_min_messages = warning" -c "DROP DATABASE IF EXISTS $1" -c "CREATE DATABASE $1"
}
rows() { # rows DATABASE: every row of every table, in the order of its text
    sql -d "$1" <<'SQL'
SELECT format('SELECT %L, x::text FROM %s x ORDER BY 2', oid::regclass, oid::regclass)
FROM pg_class WHERE relkind IN ('r', 'm') AND relnamespace = 'public'::regnamespace ORDER BY relname
\gexec
SQL
}
methods() { sql -d "$1" -c "SELECT relname, amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam
    WHERE relnamespace = 'public'::regnamespace ORDER BY 1"; }

fresh dump_source
sql -d dump_source -f dump.sql
pg_dump dump_source | grep -v '^\\\(un\)\?restrict ' >"$work/source.sql"
pg_dump -Fc dump_source >"$work/source.custom"
pg_dump -Fd -j 2 -f "$work/source.dir" dump_source

check() { # check DATABASE HOW
    pg_dump "$1" | grep -v '^\\\(un\)\?restrict ' >"$work/$1.sql"
    diff "$work/source.sql" "$work/$1.sql" >"$work/diff" || { head -n 40 "$work/diff"; fail "$2: another dump"; }
    [ "$(rows dump_source)" = "$(rows "$1")" ] || fail "$2: other rows"
    [ "$(methods dump_source)" = "$(methods "$1")" ] || fail "$2: other access methods"
    [ "$(rows "$1" | wc -l)" -gt 1000 ] || fail "$2: hardly any rows"
    sql -d "$1" -c "SET enable_seqscan = off" -c "SELECT count(*) FROM items WHERE tag = 't7'" | grep -qx 30 || fail "$2: an index lost rows"
    if sql -d "$1" -c "INSERT INTO items (k, name) VALUES (1, 'again')" 2>/dev/null; then fail "$2: the key is not unique"; fi
    if sql -d "$1" -c "DELETE FROM kinds WHERE id = 3" 2>/dev/null; then fail "$2: the foreign key is lost"; fi
    echo "ok       $2"
}

fresh dump_plain && sql -d dump_plain -f "$work/source.sql" >/dev/null && check dump_plain "plain"
fresh dump_custom && pg_restore --exit-on-error -d dump_custom "$work/source.custom" && check dump_custom "custom format"
fresh dump_jobs && pg_restore --exit-on-error -j 3 -d dump_jobs "$work/source.dir" && check dump_jobs "directory, three jobs"
fresh dump_parts && pg_restore --exit-on-error --section=pre-data -d dump_parts "$work/source.custom" \
    && pg_restore --exit-on-error --section=post-data --schema-only -t nothing -d dump_parts "$work/source.custom" \
    && pg_restore --exit-on-error --section=data -d dump_parts "$work/source.custom" \
    && pg_restore --exit-on-error --section=post-data -d dump_parts "$work/source.custom" && check dump_parts "section by section"
# Keys first, rows afterwards.
fresh dump_data && pg_restore --exit-on-error --schema-only -d dump_data "$work/source.custom" \
    && pg_restore --exit-on-error --data-only --disable-triggers -d dump_data "$work/source.custom" \
    && sql -d dump_data -c "REFRESH MATERIALIZED VIEW sums" && check dump_data "schema only, then data only"
# To heap tables, and back.
fresh dump_heap && pg_dump --no-table-access-method dump_source | sql -d dump_heap >/dev/null
[ "$(sql -d dump_heap -c "SELECT count(*) FROM pg_class c JOIN pg_am a ON a.oid = c.relam
    WHERE amname LIKE 'loosekv%' AND relnamespace = 'public'::regnamespace")" = 0 ] || fail "to heap: a loosekv table"
[ "$(rows dump_source)" = "$(rows dump_heap)" ] || fail "to heap: other rows"
fresh dump_back && pg_dump --no-table-access-method dump_heap | sed "/^CREATE EXTENSION/a SET default_table_access_method = loosekv;" | sql -d dump_back >/dev/null
[ "$(rows dump_source)" = "$(rows dump_back)" ] || fail "from heap: other rows"
echo "ok       to heap and back"
for database in source plain custom jobs parts data heap back; do sql -d postgres -c "DROP DATABASE dump_$database"; done
