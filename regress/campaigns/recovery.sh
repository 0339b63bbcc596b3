#!/usr/bin/env bash
# Recovery campaign; see recovery.py.
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/cluster.sh
exec python3 recovery.py "$@"
