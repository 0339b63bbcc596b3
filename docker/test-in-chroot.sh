#!/usr/bin/env bash
# Executes the steps of docker/Dockerfile in clean Debian 12 systems (debootstrap) instead of containers, and then runs what
# compose.yaml runs: a primary and a standby, each with its entrypoint, its health check, and SQL on both. Needs root.
#
#   GIVEN_DEB=FILE   takes the build stage's result from here instead of building it
#   PROFILE=dev      builds without optimization
#   CHROOT_BASE=DIR  keeps the base system here for the next time
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "chroot and mount take root" >&2; exit 1; }
command -v debootstrap >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends debootstrap; }

work=$(mktemp -d "${TMPDIR:-/tmp}/loosekv-docker.XXXXXX")
chmod 755 "$work"
servers=()
cleanup() {
    local mount name pid
    # The standby first, so that the primary has nobody to wait for. (What a script starts in the background ignores the
    # interrupt that would stop a container; the server itself does not.)
    for name in standby primary; do
        pid=$(head -n 1 "$work/$name/var/lib/loosekv/data/postmaster.pid" 2>/dev/null) || continue
        kill -INT "$pid" 2>/dev/null || continue
        for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    done
    for pid in "${servers[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
    for mount in $(awk -v work="$work/" 'index($2, work) == 1 {print $2}' /proc/mounts | tac); do umount "$mount"; done
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

base=${CHROOT_BASE:-$work/base}
[ -e "$base/bin/sh" ] || debootstrap --variant=minbase bookworm "$base" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >/dev/null

options=()
if [ -n "${GIVEN_DEB:-}" ]; then
    mkdir -p "$work/given/src/target/deb"
    cp "$GIVEN_DEB" "$work/given/src/target/deb/"
    options+=(--given "build=$work/given")
else
    # What the rust image brings.
    rustup=${RUSTUP_HOME:-$HOME/.rustup} cargo=${CARGO_HOME:-$HOME/.cargo}
    options+=(--bind "$rustup" --bind "$cargo" --env "RUSTUP_HOME=$rustup" --env "CARGO_HOME=$cargo" --env "PROFILE=${PROFILE:-release}"
        --env "PATH=$cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
fi
python3 docker/dockerfile.py docker/Dockerfile . "$base" "$work" "${options[@]}" >"$work/image.json"
image() { python3 -c 'import json, shlex, sys; image = json.load(open(sys.argv[1])); print(shlex.join(image[sys.argv[2]]) if isinstance(image[sys.argv[2]], list) else image[sys.argv[2]])' "$work/image.json" "$1"; }
root=$(image root) user=$(image user) entrypoint=$(image entrypoint) command=$(image command) health=$(image health)

# start NAME PORT VARIABLE=VALUE ...: a container's main process, on a port of its own, for they share the network here.
start() {
    local name=$1 port=$2
    shift 2
    cp -a "$root" "$work/$name"
    mount --bind /proc "$work/$name/proc"
    mount --bind /dev "$work/$name/dev"
    mount -t tmpfs tmpfs "$work/$name/dev/shm" 2>/dev/null || true
    chroot --userspec="$user" "$work/$name" env -i PATH=/usr/bin:/bin PGDATA=/var/lib/loosekv/data PGPORT="$port" \
        LOOSEKV_SHARED_MEMORY=64MB "$@" sh -c "exec $entrypoint $command" >"$work/$name.log" 2>&1 &
    servers+=($!)
    for _ in $(seq 300); do
        if chroot --userspec="$user" "$work/$name" env -i PATH=/usr/bin:/bin PGPORT="$port" sh -c "$health" 2>/dev/null; then
            return 0
        fi
        sleep 0.2
    done
    echo "$name does not become healthy:" >&2
    cat "$work/$name.log" >&2
    return 1
}

sql() { # sql NAME PORT TEXT
    chroot --userspec="$user" "$work/$1" env -i PATH=/usr/lib/postgresql/15/bin:/usr/bin:/bin PGPORT="$2" \
        psql -X -q -A -t -v ON_ERROR_STOP=1 -U postgres -d postgres -c "$3"
}

first=${PGPORT:-57435} second=$((${PGPORT:-57435} + 1))
start primary "$first" POSTGRES_PASSWORD=secret
start standby "$second" POSTGRES_PASSWORD=secret LOOSEKV_PRIMARY=127.0.0.1 LOOSEKV_PRIMARY_PORT="$first"
sql primary "$first" "CREATE TABLE kv (k uuid PRIMARY KEY, v text) USING loosekv WITH (loosekv.compression = 'zstd');
    INSERT INTO kv SELECT gen_random_uuid(), repeat('v', i % 500) FROM generate_series(1, 20000) i;
    SELECT loosekv.flush('kv')" >/dev/null
position=$(sql primary "$first" "SELECT pg_current_wal_lsn()")
for _ in $(seq 100); do
    [ "$(sql standby "$second" "SELECT pg_last_wal_replay_lsn() >= '$position'")" = t ] && break
    sleep 0.1
done
for place in "primary $first" "standby $second"; do
    # shellcheck disable=SC2086
    found=$(sql $place "SELECT count(*) || ' rows, ' || (SELECT count(*) FROM loosekv.check('kv')) || ' findings' FROM kv")
    [ "$found" = "20000 rows, 0 findings" ] || { echo "$place: $found" >&2; exit 1; }
done
echo "docker/Dockerfile: built, primary and standby healthy and sound"
