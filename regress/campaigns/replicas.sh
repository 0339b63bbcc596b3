#!/usr/bin/env bash
# Replicas campaign; see replicas.py.
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/cluster.sh
exec python3 replicas.py "$@"
