#!/usr/bin/env bash
# Standby campaign; see standby.py.
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/cluster.sh
exec python3 standby.py "$@"
