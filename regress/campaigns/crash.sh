#!/usr/bin/env bash
# Crash campaign; see crash.py.
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/cluster.sh
exec python3 crash.py "$@"
