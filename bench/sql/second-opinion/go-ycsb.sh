#!/usr/bin/env bash
# go-ycsb's workloads on heap and on loosekv alternately. SHORT=1: does it work? ROWS, OPERATIONS, CLIENTS, ROUNDS.
set -euo pipefail
if [ -n "${SHORT:-}" ]; then : "${ROWS:=2000}" "${OPERATIONS:=2000}" "${ROUNDS:=1}"; fi
: "${ROWS:=1000000}" "${OPERATIONS:=500000}" "${CLIENTS:=2}"
version=v1.0.1
tool=${YCSB:-${XDG_CACHE_HOME:-$HOME/.cache}/loosekv-bench/go-ycsb-$version}

# Its main program names the drivers of every store there is; built is the one for PostgreSQL alone.
build() {
    local source
    source=$(go mod download -json "github.com/pingcap/go-ycsb@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    mkdir -p "$tool"
    cp -r "$source" "$tool/source"
    chmod -R u+w "$tool/source"
    sed -i -E '/go-ycsb\/db\//{/db\/(pg|basic)"/!d}' "$tool/source/cmd/go-ycsb/main.go"
    (cd "$tool/source" && go build -mod=mod -o ../go-ycsb ./cmd/go-ycsb) >&2
}
if [ ! -x "$tool/go-ycsb" ]; then
    command -v go >/dev/null || { echo "go is needed to build go-ycsb (golang-go, or https://go.dev)" >&2; exit 1; }
    rm -rf "$tool"
    build
fi
. "$(dirname "$0")/lib.sh"

run_ycsb() { # run_ycsb COMMAND STORE WORKLOAD [property ...]
    local command=$1 store=$2 workload=$3 given=()
    shift 3
    for property in "pg.host=127.0.0.1" "pg.port=$PGPORT" "pg.user=postgres" "pg.db=on_$store" "pg.sslmode=disable" \
        "recordcount=$ROWS" "fieldcount=1" "fieldlength=256" "threadcount=$CLIENTS" "$@"; do
        given+=(-p "$property")
    done
    "$tool/go-ycsb" "$command" pg -P "$tool/source/workloads/workload$workload" "${given[@]}"
}

# The last lines of its output that count: one for each kind of operation, with how many and their rate.
operations() { sed -n '/Run finished/,$p' "$out/output" | sed -n 's/^[A-Z_]* *- .*Count: \([0-9]*\),.*/\1/p' | sort -n | tail -n 1; }
seconds() { sed -n 's/^Run finished, takes \(.*\)$/\1/p' "$out/output" | python3 -c '
import re, sys
units = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "µs": 1e-6}
print(sum(float(n) * units[u] for n, u in re.findall(r"([0-9.]+)(h|ms|µs|m|s)", sys.stdin.read())))'; }

measure() { # measure NAME ROUND STORE COMMAND WORKLOAD [property ...]
    local name=$1 round=$2 store=$3 before after
    shift 3
    idle
    before=$(server_ns)
    run_ycsb "$1" "$store" "$2" "${@:3}" >"$out/output"
    idle
    after=$(server_ns)
    record "$name" "$store" "$round" "$(operations)" "$(seconds)" $((after - before))
}

begin
for round in $(seq "$rounds"); do
    for store in $stores; do measure load "$round" "$store" load a "operationcount=$ROWS" "dropdata=true"; done
done
for workload in c b a f d e; do
    for round in $(seq "$rounds"); do
        for store in $stores; do measure "YCSB-${workload^^}" "$round" "$store" run "$workload" "operationcount=$OPERATIONS"; done
    done
done
table ROWS CLIENTS OPERATIONS
