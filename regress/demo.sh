#!/usr/bin/env bash
# The demo of the README, twice: the second run starts what the first one left, is quick, and shows the same.
set -euo pipefail
cd "$(dirname "$0")/.."

LOOSEKV_DEMO=$(mktemp -d "${TMPDIR:-/tmp}/loosekv-demo.XXXXXX")/demo
export LOOSEKV_DEMO PGPORT=$((${PGPORT:-57431} + 7))
chmod 755 "$(dirname "$LOOSEKV_DEMO")"
unset PGHOST PGUSER PGDATABASE
cleanup() {
    scripts/demo.sh stop || true
    rm -rf "$(dirname "$LOOSEKV_DEMO")"
}
trap cleanup EXIT

for run in first second; do
    scripts/demo.sh >"$LOOSEKV_DEMO.$run" 2>&1 || { cat "$LOOSEKV_DEMO.$run" >&2; exit 1; }
    for line in "psql -h $LOOSEKV_DEMO -p $PGPORT -U postgres" "duplicate key value violates unique constraint"; do
        grep -qF -- "$line" "$LOOSEKV_DEMO.$run" || { echo "the $run demo does not show: $line" >&2; exit 1; }
    done
done
rows=$(psql -X -A -t -h "$LOOSEKV_DEMO" -U postgres -c "SELECT count(*) FROM sessions")
[ "$rows" = 300000 ] || { echo "the demo's table has $rows rows" >&2; exit 1; }
scripts/demo.sh stop
[ ! -e "$LOOSEKV_DEMO" ] || { echo "$LOOSEKV_DEMO is still there" >&2; exit 1; }

# A tour that fails is a demo that fails, and leaves nothing behind.
if LOOSEKV_TOUR=/dev/null/none scripts/demo.sh >/dev/null 2>&1; then
    echo "a demo without its tour is a success" >&2
    exit 1
fi
[ ! -e "$LOOSEKV_DEMO" ] || { echo "a demo that failed leaves $LOOSEKV_DEMO" >&2; exit 1; }
echo "the demo runs, runs again, and goes"
