#!/bin/sh
# Installs strace and checks that it works: the power-loss tests record system calls with it.
#
#   sh scripts/strace.sh
#
# Does nothing if it works. As root on Debian it installs the package; on other systems it prints the command.
set -eu

say() { printf '%s\n' "$*" >&2; }
stop() { say "strace: $*"; exit 1; }

if ! command -v strace >/dev/null 2>&1; then
    command -v apt-get >/dev/null 2>&1 || stop "install strace with this system's package manager."
    [ "$(id -u)" = 0 ] || stop "it is not installed. Run: sudo apt-get install strace"
    say "strace: installing it"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends strace >&2
fi

# A container may be kept from tracing even its own children.
strace -qq -e trace=none true 2>/dev/null || stop "tracing is not allowed here. In a container: --cap-add=SYS_PTRACE"
