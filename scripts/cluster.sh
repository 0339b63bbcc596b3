# To be sourced: a private PostgreSQL cluster with the extension, on a socket directory and a data directory of its own.
#
#   cluster_start DIR [setting=value ...]   makes the cluster in DIR and starts it; sets PGHOST, PGPORT, PGUSER
#   cluster_stop DIR                        stops it, if it runs
#   as_postgres COMMAND ...                 runs a command as the server's owner

pgbin=$("${PG_CONFIG:-/usr/lib/postgresql/15/bin/pg_config}" --bindir)
export PATH="$pgbin:$PATH"

as_postgres() {
    if [ "$(id -u)" -eq 0 ]; then
        # The environment is passed on; the home directory need not be readable.
        (cd /tmp && runuser -u postgres -- "$@")
    else
        "$@"
    fi
}

# A port is only part of the socket's name here: the cluster listens on no address unless a setting says so.
cluster_start() {
    local dir=$1 setting
    shift
    mkdir -p "$dir"
    if [ "$(id -u)" -eq 0 ]; then chown postgres "$dir"; fi
    chmod 755 "$dir"
    export PGHOST=$dir PGPORT=${PGPORT:-5432} PGUSER=postgres PGDATABASE=postgres
    if [ ! -e "$dir/data/PG_VERSION" ]; then
        as_postgres initdb -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 --data-checksums -N >/dev/null
        {
            echo "shared_preload_libraries = 'loosekv'"
            echo "listen_addresses = ''"
            echo "unix_socket_directories = '$dir'"
            echo "port = $PGPORT"
            echo "max_prepared_transactions = 10"
            echo "log_line_prefix = '%m [%p] %q%a '"
        } | as_postgres tee -a "$dir/data/postgresql.conf" >/dev/null
    fi
    for setting in "$@"; do
        echo "$setting" | as_postgres tee -a "$dir/data/postgresql.conf" >/dev/null
    done
    if ! as_postgres pg_ctl -D "$dir/data" -l "$dir/log" -w -t 60 start >/dev/null; then
        tail -n 20 "$dir/log" >&2
        return 1
    fi
}

cluster_stop() {
    if [ -e "$1/data/postmaster.pid" ]; then
        as_postgres pg_ctl -D "$1/data" -m fast -w -t 60 stop >/dev/null
    fi
}
