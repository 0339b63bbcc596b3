#!/bin/sh
# Healthy: the server takes connections, and the extension's shared memory is there.
exec /usr/lib/postgresql/15/bin/psql -X -q -A -t -U postgres -h "${PGSOCKET:-/var/run/postgresql}" -d postgres \
    -c "SELECT count(*) FROM loosekv.stats" >/dev/null
