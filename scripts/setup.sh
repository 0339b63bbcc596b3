#!/usr/bin/env bash
# Installs what building and testing need, where it is missing: PostgreSQL 15 with its server headers, a C compiler for
# the bindings, and a Rust toolchain. Does nothing on a machine that has it all.
set -euo pipefail

packages=()
need() { # need COMMAND-OR-FILE PACKAGE...
    local what=$1
    shift
    command -v "$what" >/dev/null 2>&1 || [ -e "$what" ] || packages+=("$@")
}
need /usr/lib/postgresql/15/bin/postgres postgresql-15
need /usr/lib/postgresql/15/bin/pgbench postgresql-15
need /usr/include/postgresql/15/server/postgres.h postgresql-server-dev-15
need /usr/lib/postgresql/15/lib/pgxs/src/test/regress/pg_regress postgresql-server-dev-15
need clang clang
need cc gcc libc6-dev
need make make
need pkg-config pkg-config
need python3 python3
if ! ls /usr/lib/llvm-*/lib/libclang*.so* >/dev/null 2>&1; then
    packages+=(libclang-dev)
fi
if ! command -v cargo >/dev/null 2>&1; then
    packages+=(rustup)
fi

if [ "${#packages[@]}" -gt 0 ]; then
    if [ "$(id -u)" -ne 0 ]; then
        echo "These packages are missing, and installing them takes root: ${packages[*]}" >&2
        exit 1
    fi
    # A package's own cluster would only be in the way.
    if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
        mkdir -p /etc/postgresql-common
        echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -y -q --no-install-recommends "${packages[@]}"
fi

required=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
found=$(cargo --version 2>/dev/null | sed 's/^cargo \([0-9.]*\).*/\1/')
if [ -z "$found" ] || [ "$(printf '%s\n' "$required" "$found" | sort -V | head -n 1)" != "$required" ]; then
    echo "Rust $required or newer is needed, found ${found:-none}: install it with rustup (rustup toolchain install $required)." >&2
    exit 1
fi
