#!/usr/bin/env bash
# Builds the Debian package postgresql-15-loosekv into target/deb/. The library is built and laid out by scripts/install.sh;
# PROFILE=dev packs a debug build.
set -euo pipefail
cd "$(dirname "$0")/.."

package=postgresql-15-loosekv
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)-1
architecture=$(dpkg --print-architecture)
export PG_CONFIG=${PG_CONFIG:-/usr/lib/postgresql/15/bin/pg_config}
out=${CARGO_TARGET_DIR:-target}/deb
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"

DESTDIR=$stage scripts/install.sh >/dev/null
library=$stage$("$PG_CONFIG" --pkglibdir)/loosekv.so
strip --strip-debug "$library"

# The oldest C library that has every symbol that is asked for.
libc=$(objdump -T "$library" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
install -d "$stage/usr/share/doc/$package" "$stage/DEBIAN"
install -m 644 README.md sql/examples/tour.sql "$stage/usr/share/doc/$package/"
install -m 644 LICENSE "$stage/usr/share/doc/$package/copyright"
cat >"$stage/DEBIAN/control" <<CONTROL
Package: $package
Version: $version
Architecture: $architecture
Section: database
Priority: optional
Maintainer: LooseKV <loosekv@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$stage" | cut -f 1)
Depends: postgresql-15, libc6 (>= $libc), libgcc-s1
Description: tables in a log-structured merge tree for PostgreSQL 15
 CREATE TABLE ... USING loosekv: ordinary tables for ordinary SQL, whose rows
 live in a log-structured merge tree ordered by the primary key. For
 write-heavy key-value tables: random keys, high ingest, more data than memory.
 .
 The server has to be told: shared_preload_libraries = 'loosekv'.
CONTROL
cat >"$stage/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -z "$2" ]; then
    echo "Add 'loosekv' to shared_preload_libraries in postgresql.conf, restart the server, and run CREATE EXTENSION loosekv."
fi
exit 0
POSTINST
chmod 755 "$stage/DEBIAN/postinst"
mkdir -p "$out"
file=$out/${package}_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$stage" "$file" >/dev/null
echo "$file"
