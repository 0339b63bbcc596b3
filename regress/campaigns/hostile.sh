#!/usr/bin/env bash
# Hostile campaign; see hostile.py.
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/cluster.sh
exec python3 hostile.py "$@"
