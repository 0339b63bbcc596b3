#!/usr/bin/env bash
# Logical replication campaign; see logical.py. Before it, what logical decoding tells of each kind of change, beside heap.
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/cluster.sh
dir=$(mktemp -d "${TMPDIR:-/tmp}/loosekv-decoding.XXXXXX")
trap 'cluster_stop "$dir" || true; rm -rf "$dir"' EXIT
(
    export PGPORT=${PGPORT:-56040}
    cluster_start "$dir" "wal_level = logical" "loosekv.memtable_size = 256kB" "fsync = off"
    cd ..
    ./run-twins decoding/*.sql
)
cluster_stop "$dir"
python3 logical.py "$@"
