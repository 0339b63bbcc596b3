#!/bin/sh
# Installs the package in the directory given, and PostgreSQL with it. For a clean Debian 12.
set -eu
export DEBIAN_FRONTEND=noninteractive
mkdir -p /etc/postgresql-common
echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
apt-get update -q
apt-get install -y -q --no-install-recommends "$1"/postgresql-15-loosekv_*.deb
rm -rf /var/lib/apt/lists/* "$1"
install -d -o postgres -g postgres -m 700 /var/lib/loosekv
