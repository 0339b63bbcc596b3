#!/usr/bin/env bash
# Starts a private cluster with the extension, runs the tour on it, and tells how to connect. A second run starts the
# same cluster again. `scripts/demo.sh stop` stops it and removes it.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/cluster.sh

dir=${LOOSEKV_DEMO:-/tmp/loosekv-demo}
export PGPORT=${PGPORT:-57432}
if [ "${1:-}" = stop ]; then
    cluster_stop "$dir"
    rm -rf "$dir"
    exit 0
fi
if [ ! -e "$dir/data/postmaster.pid" ]; then
    settings=()
    if [ ! -e "$dir/data/PG_VERSION" ]; then
        # Nothing of a first run that fails is left behind.
        trap 'cluster_stop "$dir" || true; rm -rf "$dir"' EXIT
        settings=("loosekv.shared_memory = '512MB'" "loosekv.memtable_size = '8MB'" "shared_buffers = '256MB'")
    fi
    cluster_start "$dir" "${settings[@]}"
else
    export PGHOST=$dir PGUSER=postgres PGDATABASE=postgres
fi
psql -X -f "${LOOSEKV_TOUR:-sql/examples/tour.sql}"
trap - EXIT
cat <<EOF

The cluster goes on running. Connect to it with
    psql -h $dir -p $PGPORT -U postgres
and stop and remove it with
    scripts/demo.sh stop
EOF
