#!/usr/bin/env bash
# Upgrade campaign; see upgrade.py.
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/cluster.sh
exec python3 upgrade.py "$@"
