#!/usr/bin/env bash
# sysbench's OLTP workloads on heap and on loosekv alternately. SHORT=1: does it work? ROWS, SECONDS_EACH, CLIENTS, ROUNDS.
set -euo pipefail
if [ -n "${SHORT:-}" ]; then : "${ROWS:=5000}" "${SECONDS_EACH:=1}" "${ROUNDS:=1}"; fi
: "${ROWS:=1000000}" "${SECONDS_EACH:=30}" "${CLIENTS:=2}"
. "$(dirname "$0")/lib.sh"

if ! command -v sysbench >/dev/null; then
    as_root=""
    [ "$(id -u)" = 0 ] || as_root=sudo
    $as_root apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends sysbench >&2
fi

run_sysbench() { # run_sysbench STORE WORKLOAD COMMAND [option ...]
    local store=$1 workload=$2 command=$3
    shift 3
    sysbench "$workload" --db-driver=pgsql --pgsql-host="$PGHOST" --pgsql-port="$PGPORT" --pgsql-user=postgres \
        --pgsql-db="on_$store" --tables=1 --table-size="$ROWS" --threads="$CLIENTS" --percentile=99 "$@" "$command"
}

begin
for store in $stores; do run_sysbench "$store" oltp_read_write prepare >&2; done
for workload in oltp_point_select oltp_read_only oltp_update_non_index oltp_update_index oltp_read_write oltp_write_only \
    oltp_delete oltp_insert; do
    for round in $(seq "$rounds"); do
        for store in $stores; do
            idle
            before=$(server_ns)
            run_sysbench "$store" "$workload" run --time="$SECONDS_EACH" --rand-type=uniform >"$out/output"
            idle
            after=$(server_ns)
            operations=$(sed -n 's/^ *transactions: *\([0-9]*\) .*/\1/p' "$out/output")
            seconds=$(sed -n 's/^ *total time: *\([0-9.]*\)s/\1/p' "$out/output")
            record "$workload" "$store" "$round" "$operations" "$seconds" $((after - before))
        done
    done
done
table ROWS CLIENTS SECONDS_EACH
