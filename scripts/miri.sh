#!/bin/sh
# The engine's unsafe leaf modules under miri: shared heap's stack, classes and epochs, latches, memtable, key index.
#
# Miri needs a nightly toolchain with its component: rustup toolchain install nightly --component miri,rust-src
# Without one this says so and fails; it is no part of `make test`.
set -eu
cd "$(dirname "$0")/.."

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "scripts/miri.sh: no nightly toolchain with miri here; nothing was checked." >&2
    echo "    rustup toolchain install nightly --component miri,rust-src" >&2
    exit 1
fi

# Integers become pointers where a shared segment's offsets do, and crossbeam's epochs leave garbage to the end.
export MIRIFLAGS="-Zmiri-permissive-provenance -Zmiri-ignore-leaks -Zmiri-disable-isolation ${MIRIFLAGS:-}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri"

cargo +nightly miri test --package loosekv-shm --lib -- stack:: latch:: class:: reserve:: scope:: epoch::
cargo +nightly miri test --package loosekv-engine --lib -- \
    bytes:: row:: run_map:: extent:: key_index:: memtable:: tree::retention:: tree::pick:: "$@"
