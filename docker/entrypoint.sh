#!/bin/sh
# Starts the server; makes its data directory first if there is none.
#
#   POSTGRES_PASSWORD      password of the user postgres (needed for a new data directory, unless POSTGRES_HOST_AUTH=trust)
#   POSTGRES_HOST_AUTH     how clients from the network identify themselves: scram-sha-256, or trust
#   LOOSEKV_SHARED_MEMORY  loosekv.shared_memory of a new data directory
#   LOOSEKV_PRIMARY        host name of a primary: the data directory is copied from there, and the server is its standby
set -eu
bin=/usr/lib/postgresql/15/bin
PATH=$bin:$PATH
export PATH
: "${PGDATA:=/var/lib/loosekv/data}" "${POSTGRES_HOST_AUTH:=scram-sha-256}" "${LOOSEKV_SHARED_MEMORY:=256MB}"
export PGDATA

if [ "${1:-}" != postgres ]; then
    exec "$@"
fi

new_primary() {
    if [ -z "${POSTGRES_PASSWORD:-}" ] && [ "$POSTGRES_HOST_AUTH" != trust ]; then
        echo "Set POSTGRES_PASSWORD (or POSTGRES_HOST_AUTH=trust, if nobody else can reach the server)." >&2
        exit 1
    fi
    passwords=$(mktemp)
    printf '%s\n' "${POSTGRES_PASSWORD:-unused}" >"$passwords"
    initdb --username=postgres --pwfile="$passwords" --auth-local=peer --auth-host=scram-sha-256 --encoding=UTF8 \
        --locale=C.UTF-8 --data-checksums >/dev/null
    rm -f "$passwords"
    {
        echo "listen_addresses = '*'"
        echo "shared_preload_libraries = 'loosekv'"
        echo "loosekv.shared_memory = '$LOOSEKV_SHARED_MEMORY'"
        echo "hot_standby_feedback = on"
    } >>"$PGDATA/postgresql.conf"
    {
        echo "host all all all $POSTGRES_HOST_AUTH"
        echo "host replication postgres all $POSTGRES_HOST_AUTH"
    } >>"$PGDATA/pg_hba.conf"
    echo "CREATE EXTENSION loosekv;" | postgres --single -j template1 >/dev/null
    echo "CREATE EXTENSION loosekv;" | postgres --single -j postgres >/dev/null
}

new_standby() {
    export PGPASSWORD="${POSTGRES_PASSWORD:-}"
    until pg_basebackup --host="$LOOSEKV_PRIMARY" --port="${LOOSEKV_PRIMARY_PORT:-5432}" --username=postgres \
        --pgdata="$PGDATA" --wal-method=stream --write-recovery-conf; do
        echo "The primary $LOOSEKV_PRIMARY does not answer yet." >&2
        sleep 1
    done
}

if [ ! -s "$PGDATA/PG_VERSION" ]; then
    if [ -n "${LOOSEKV_PRIMARY:-}" ]; then new_standby; else new_primary; fi
fi
exec "$@"
