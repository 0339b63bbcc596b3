#!/usr/bin/env bash
# Snapshots campaign; see snapshots.py.
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/cluster.sh
exec python3 snapshots.py "$@"
