#!/usr/bin/env bash
# Soak campaign; see soak.py.
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/cluster.sh
exec python3 soak.py "$@"
