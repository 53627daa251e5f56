#!/bin/sh
# Installs PgBouncer for the tests, which run the PostgreSQL store through it.
#
#   sh scripts/pgbouncer.sh
#
# Does nothing if it is installed. On Debian the packages are unpacked into .venv/pgbouncer, because installing them would
# start a service. On other systems it prints what to do.
set -eu

say() { printf '%s\n' "$*" >&2; }
stop() { say "pgbouncer: $*"; exit 1; }

PATH="$PATH:/usr/sbin:/usr/local/sbin"
place=.venv/pgbouncer
if command -v pgbouncer >/dev/null 2>&1 || [ -e "$place/usr/sbin/pgbouncer" ]; then exit 0; fi

command -v apt-get >/dev/null 2>&1 || stop "install pgbouncer with this system's package manager."
[ "$(id -u)" = 0 ] || stop "it is not installed. Run: sudo sh scripts/pgbouncer.sh"
say "pgbouncer: fetching it"
fetched=$(mktemp -d)
trap 'rm -rf "$fetched"' EXIT
mkdir -p "$fetched/partial"
apt-get update -qq
apt-get install -y -qq --download-only --no-install-recommends -o "Dir::Cache::archives=$fetched" pgbouncer >&2
for package in "$fetched"/*.deb; do dpkg -x "$package" "$fetched/root"; done
rm -rf "$place" && mv "$fetched/root" "$place"
