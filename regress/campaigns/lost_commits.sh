#!/usr/bin/env bash
# Commits that a crash takes back; see lost_commits.py.
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/cluster.sh
exec python3 lost_commits.py "$@"
