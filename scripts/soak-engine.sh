#!/usr/bin/env bash
# The engine's own campaigns with seeds that nobody has run yet, again and again until the time is over. Fails with the first one that does,
# and says how to repeat it.
#
#   scripts/soak-engine.sh [minutes, 60] [first seed, by default one of the time]
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${1:-60}
seed=${2:-$(date +%s)}
seeds=20 # of each kind in one pass
end=$((SECONDS + minutes * 60))

# Builds what is to be run, so that the first pass counts.
cargo test --quiet --release --no-run --package loosekv-engine --package loosekv-shm

campaign() { # campaign NAME=value ARGUMENTS OF cargo test...
    local setting=$1 output
    shift
    if ! output=$(env "$setting" cargo test --quiet --release "$@" 2>&1); then
        printf '%s\n' "$output" | tail -n 60
        echo "FAILED; again: $setting cargo test --release $*"
        exit 1
    fi
}

pass=0
while [ "$SECONDS" -lt "$end" ]; do
    pass=$((pass + 1))
    range="$seed..$((seed + seeds))"
    campaign "LOOSEKV_SEEDS=$range" --package loosekv-engine --lib random_steps
    campaign "LOOSEKV_SIM_SEEDS=$range" --package loosekv-engine --test sim_store
    campaign "LOOSEKV_FUZZ_SEED=$seed" --package loosekv-engine --test fuzz_corpus
    campaign "LOOSEKV_STRESS_SECONDS=20" --package loosekv-engine --test index_processes
    campaign "LOOSEKV_STRESS_SECONDS=20" --package loosekv-shm --test stress
    echo "pass $pass: seeds $range, no difference; $(((end - SECONDS + 59) / 60)) minutes to go"
    seed=$((seed + seeds))
done
