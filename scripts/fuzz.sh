#!/bin/sh
# libFuzzer over every decoder of the engine: scripts/fuzz.sh [seconds a decoder, 60] [decoder ...]
#
# Needs a nightly toolchain and cargo-fuzz (cargo install cargo-fuzz). `cargo test` replays the corpus and some thousand
# mutations of it without either. What libFuzzer finds stays in engine/fuzz/artifacts; new seeds go to a copy of the corpus.
set -eu
cd "$(dirname "$0")/.."
seconds="${1:-60}"
[ $# -gt 0 ] && shift

if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "scripts/fuzz.sh: no nightly toolchain with cargo-fuzz here; nothing was fuzzed." >&2
    echo "    rustup toolchain install nightly && cargo install cargo-fuzz" >&2
    exit 1
fi

[ $# -gt 0 ] || set -- $(ls engine/fuzz/corpus)
for target; do
    grown="${CARGO_TARGET_DIR:-target}/fuzz-corpus/$target"
    mkdir -p "$grown"
    cargo +nightly fuzz run --fuzz-dir engine/fuzz "$target" "$grown" "engine/fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -rss_limit_mb=1024 -print_final_stats=1
done
