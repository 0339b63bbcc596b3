# To be sourced: a cluster with two databases, `on_heap` and `on_loosekv`, that differ in default_table_access_method alone.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../../../scripts/cluster.sh"
export PGPORT=${PGPORT:-57434}
stores="heap loosekv"
rounds=${ROUNDS:-3}
out=$(mktemp -d "${TMPDIR:-/tmp}/loosekv-second-opinion.XXXXXX")
chmod 755 "$out"
trap 'cluster_stop "$out" || true; rm -rf "$out"' EXIT
trap 'exit 130' INT TERM

begin() {
    cluster_start "$out" "listen_addresses = '127.0.0.1'" "shared_buffers = '2GB'" "loosekv.shared_memory = '1GB'" \
        "max_connections = 60" "max_wal_size = '4GB'" "synchronous_commit = off" "jit = off" "max_parallel_workers_per_gather = 0"
    local store
    for store in $stores; do
        # Text keys are read in order by the key's own order, which is that of collation C.
        psql -X -q -c "CREATE DATABASE on_$store TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C' ENCODING UTF8"
        psql -X -q -d "on_$store" -c "CREATE EXTENSION loosekv" \
            -c "ALTER DATABASE on_$store SET default_table_access_method = '$store'"
    done
}

# Nanoseconds of processor time of the whole server so far, ended processes included.
server_ns() {
    local leader total=0 pid spent
    leader=$(head -n 1 "$out/data/postmaster.pid")
    for pid in $leader $(cat "/proc/$leader/task/$leader/children"); do
        spent=$(cut -d ' ' -f 1 "/proc/$pid/schedstat" 2>/dev/null) || continue
        total=$((total + spent))
    done
    # Fields 16 and 17 of the line are the children's; the name in parentheses has no space here.
    set -- $(cat "/proc/$leader/stat")
    echo $((total + (${16} + ${17}) * 10000000))
}

# Waits until nothing goes on in the background.
idle() {
    local looks=0
    while [ "$looks" -lt 2 ]; do
        if [ "$(psql -X -At -c "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'
                OR backend_type = 'loosekv worker' AND state IS DISTINCT FROM 'idle'")" = 0 ]; then
            looks=$((looks + 1))
        else
            looks=0
        fi
        sleep 0.3
    done
    psql -X -q -c CHECKPOINT
}

# record WORKLOAD STORE ROUND OPERATIONS SECONDS NANOSECONDS
record() {
    echo "$*" >>"$out/records"
    echo "$1 $2 round $3: $(awk "BEGIN { printf \"%.0f /s, %.1f us of CPU\", $4 / $5, $6 / 1000 / $4 }")" >&2
}

# table VARIABLE ...: a Markdown table of the medians, and of the median of the rounds' ratios; by a call with these variables.
table() {
    local call="ROUNDS=$rounds" variable
    for variable in "$@"; do call+=" $variable=${!variable}"; done
    echo "### $(basename "$0" .sh)"
    echo
    echo "$(date -I), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), by \`$call bench/sql/second-opinion/$(basename "$0")\`:"
    echo
    python3 - "$out/records" <<'PYTHON'
import statistics
import sys

runs = {}
for line in open(sys.argv[1]):
    workload, store, round, operations, seconds, ns = line.split()
    runs.setdefault(workload, {}).setdefault(round, {})[store] = (
        float(operations) / float(seconds), float(ns) / 1000 / float(operations))
print("| workload | heap / s | loosekv / s | ratio | CPU us, heap | CPU us, loosekv | ratio |")
print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
for workload, rounds in runs.items():
    cells = [workload]
    for at in (0, 1):
        pairs = [(found["heap"][at], found["loosekv"][at]) for found in rounds.values()]
        cells += [f"{statistics.median(side):.1f}" for side in zip(*pairs)]
        cells.append(f"{statistics.median(ours / theirs for theirs, ours in pairs):.2f}")
    print("| " + " | ".join(cells) + " |")
PYTHON
}
