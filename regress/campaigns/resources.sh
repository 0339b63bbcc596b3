#!/usr/bin/env bash
# Resources campaign; see resources.py.
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/cluster.sh
exec python3 resources.py "$@"
