#!/usr/bin/env bash
# Restore campaign; see restore.py.
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/cluster.sh
exec python3 restore.py "$@"
