#!/usr/bin/env bash
# Builds the extension and installs it into the server that PG_CONFIG names, under DESTDIR if that is set. In release mode,
# unless PROFILE says dev.
set -euo pipefail
cd "$(dirname "$0")/.."

: "${PG_CONFIG:=/usr/lib/postgresql/15/bin/pg_config}"
case "$("$PG_CONFIG" --version)" in
    "PostgreSQL 15."*) ;;
    *)
        echo "LooseKV needs PostgreSQL 15; $PG_CONFIG is of $("$PG_CONFIG" --version)." >&2
        exit 1
        ;;
esac

PROFILE=${PROFILE:-release}
PGRX_PG_CONFIG_PATH=$PG_CONFIG cargo build --quiet --profile "$PROFILE" --package loosekv
target=${CARGO_TARGET_DIR:-target}/${PROFILE/#dev/debug}
lib=$("$PG_CONFIG" --pkglibdir)
share=$("$PG_CONFIG" --sharedir)/extension
install -d "${DESTDIR:-}$lib" "${DESTDIR:-}$share"
install -m 755 "$target/libloosekv.so" "${DESTDIR:-}$lib/loosekv.so"
install -m 644 extension/loosekv.control sql/loosekv--*.sql "${DESTDIR:-}$share/"
echo "Installed into ${DESTDIR:-}$lib and ${DESTDIR:-}$share."
echo "Add it to postgresql.conf: shared_preload_libraries = 'loosekv'"
