#!/usr/bin/env bash
# Power loss campaign; see powerloss.py.
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/cluster.sh
exec python3 powerloss.py "$@"
