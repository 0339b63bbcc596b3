#!/usr/bin/env bash
# A cheap look at the Debian package: it holds what it should, installs into a private root, and a server that is laid out
# there loads it. (docker/test-in-chroot.sh installs it into a clean system.)
set -euo pipefail
cd "$(dirname "$0")/.."

deb=$(scripts/deb.sh | tail -n 1)
root=$(mktemp -d "${TMPDIR:-/tmp}/loosekv-deb.XXXXXX")
cleanup() {
    if [ -e "$root/cluster" ]; then (. scripts/cluster.sh && cluster_stop "$root/cluster") || true; fi
    rm -rf "$root"
}
trap cleanup EXIT
chmod 755 "$root"

listing=$(dpkg-deb --contents "$deb" | awk '{print $1, $2, $6}')
for wanted in "-rwxr-xr-x root/root ./usr/lib/postgresql/15/lib/loosekv.so" \
    "-rw-r--r-- root/root ./usr/share/postgresql/15/extension/loosekv.control" \
    "-rw-r--r-- root/root ./usr/share/postgresql/15/extension/loosekv--0.1.0.sql" \
    "-rw-r--r-- root/root ./usr/share/doc/postgresql-15-loosekv/copyright"; do
    grep -qxF -- "$wanted" <<<"$listing" || { echo "$deb lacks: $wanted" >&2; exit 1; }
done
if grep -vE '^(d|-)[rwx-]{9} root/root \./(usr/.*)?$' <<<"$listing" >&2; then
    echo "$deb holds what it should not" >&2
    exit 1
fi
dpkg-deb --field "$deb" Depends | grep -q 'postgresql-15, libc6 (>= ' || { echo "$deb depends on too little" >&2; exit 1; }

# A server with the layout of the real one, and the package's files in it.
mkdir -p "$root/usr/lib/postgresql" "$root/usr/share/postgresql"
cp -a /usr/lib/postgresql/15 "$root/usr/lib/postgresql/"
cp -a /usr/share/postgresql/15 "$root/usr/share/postgresql/"
rm -f "$root"/usr/lib/postgresql/15/lib/loosekv.so "$root"/usr/share/postgresql/15/extension/loosekv*
dpkg-deb --extract "$deb" "$root"
export PG_CONFIG=$root/usr/lib/postgresql/15/bin/pg_config PGPORT=${PGPORT:-57433}
. scripts/cluster.sh
cluster_start "$root/cluster"
psql -X -q -f "$root/usr/share/doc/postgresql-15-loosekv/tour.sql" >"$root/tour.log" 2>&1 || { cat "$root/tour.log" >&2; exit 1; }
expected=$(psql -X -A -t -c "SELECT count(*) > 0 FROM sessions")
[ "$expected" = t ] || { echo "the tour left nothing behind" >&2; exit 1; }
findings=$(psql -X -A -t -c "SELECT count(*) FROM loosekv.stats s, loosekv.check(s.relation)")
[ "$findings" = 0 ] || { echo "loosekv.check has $findings findings after the tour" >&2; exit 1; }
echo "$(basename "$deb"): sound"
