#!/bin/sh
# Creates a virtual environment and installs a lock with checked hashes, then this project.
#
#   sh scripts/setup.sh DIRECTORY LOCK [MORE_REQUIREMENTS]
#
# Uses uv when it is on the PATH, pip otherwise. Installing again into the same directory brings it up to date.
set -eu

venv=$1
lock=$2
more=${3:-}

say() { printf '%s\n' "$*" >&2; }
stop() { say "setup: $*"; exit 1; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if command -v "$name" >/dev/null 2>&1 && is_new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    stop "Recollect needs Python 3.11 or newer, and $(python3 --version 2>/dev/null || echo 'no python3') is here." \
        "Install one (Debian: apt-get install python3 python3-venv), name it with PYTHON=..., or install uv."
}

# Debian ships the venv module without the pip that goes into the environment: a package of its own.
need_venv_module() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    package=$("$1" -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}-venv")')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "setup: installing $package"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >&2
        return
    fi
    stop "this Python cannot make virtual environments. Run: sudo apt-get install $package   (or install uv)"
}

# The project itself is built with the locked build tool, so that step downloads nothing.
install_all() {
    "$@" --require-hashes -r "$lock" &&
        "$@" --no-deps --no-build-isolation --editable . &&
        { [ -z "$more" ] || "$@" -r "$more"; }
}

with_uv() {
    { [ -x "$venv/bin/python" ] || uv venv --quiet --python "${PYTHON:->=3.11}" "$venv"; } &&
        install_all uv pip install --quiet --python "$venv/bin/python"
}

with_pip() {
    if [ ! -x "$venv/bin/python" ]; then
        python=$(find_python)
        need_venv_module "$python"
        "$python" -m venv "$venv"
    elif ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        # An environment that uv made has no pip in it.
        need_venv_module "$venv/bin/python"
        "$venv/bin/python" -m ensurepip >/dev/null
    fi
    install_all "$venv/bin/python" -m pip install --quiet --disable-pip-version-check
}

if command -v uv >/dev/null 2>&1; then
    with_uv && exit
    say "setup: uv did not succeed; trying pip"
fi
with_pip
