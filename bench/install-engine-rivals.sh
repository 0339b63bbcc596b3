#!/bin/sh
# Installs what `make bench-engine` compares LooseKV with: LevelDB and RocksDB as Debian packages them. fjall comes with cargo.
set -eu

packages="libleveldb-dev librocksdb-dev libsnappy-dev"
missing=""
for package in $packages; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
if [ -z "$missing" ]; then
    echo "already installed: $packages"
    exit 0
fi
as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo"
$as_root apt-get update -qq
# shellcheck disable=SC2086 # the names are words
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing
