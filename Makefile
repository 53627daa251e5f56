# The daily commands. Each works from a fresh clone: what it needs is set up first.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
# One worker per core; `make test WORKERS=0` runs in one process, which reads better in a debugger.
WORKERS ?= auto
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n $(WORKERS) --dist loadgroup
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --quiet --upgrade \
	--no-annotate --no-header --no-emit-index-url --no-emit-find-links

.PHONY: help setup strace check test contract crash docs bench demo fix soak lock

help:  ## show this list
	@awk -F':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.model  ## environment, pinned packages, and the local model; a second time it does nothing

test: setup strace  ## everything, with real files and real processes
	$(PYTEST) $(PARALLEL)

check: .venv/.installed  ## formatting, lint, types, imports, stale docs; under 15 seconds
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python scripts/map.py --check
	$(BIN)/python scripts/reference.py --check

contract: setup  ## every promise of a store, on every backend
	$(PYTEST) $(PARALLEL) tests/contract

crash: setup strace  ## processes killed, frozen, without power, room or the right time; a table of what held
	$(PYTEST) -q tests/crash

docs: setup  ## regenerate what is generated, then run every block in the README and the docs
	$(BIN)/python scripts/map.py
	$(BIN)/python scripts/reference.py
	$(PYTEST) tests/docs

bench: .venv-bench/.installed setup  ## quality and speed beside the peers, in an environment of their own
	.venv-bench/bin/python benchmarks/retrieval.py
	.venv-bench/bin/python benchmarks/engine.py
	.venv-bench/bin/python benchmarks/processes.py

demo: setup  ## a first scene: remembered in one process, recalled by meaning in another
	$(BIN)/recollect demo

fix: .venv/.installed  ## format, repair what can be repaired, refresh what is generated
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format --quiet .
	$(BIN)/python scripts/map.py
	$(BIN)/python scripts/reference.py

soak: setup strace  ## the tests that look for rare faults, at length and with another seed each time: about an hour
	CRASH_SEED=$${CRASH_SEED:-$$(date +%s)} CRASH_KILLS=5000 CRASH_DRAWS=60 CRASH_ROUNDS=40 \
		CRASH_SECONDS=60 CRASH_CLOCK_SECONDS=120 $(PYTEST) -q tests/crash
	$(PYTEST) $(PARALLEL) --hypothesis-profile=soak tests/contract

strace:
	@sh scripts/strace.sh

lock:  ## choose new versions of all packages (needs uv)
	$(LOCK) --output-file requirements.lock > /dev/null
	$(LOCK) --group dev --output-file requirements-dev.lock > /dev/null

.venv/.installed: requirements-dev.lock pyproject.toml scripts/setup.sh
	sh scripts/setup.sh .venv requirements-dev.lock
	@touch $@

.venv/.model: .venv/.installed
	$(BIN)/recollect setup
	@touch $@

.venv-bench/.installed: benchmarks/requirements.txt requirements-dev.lock pyproject.toml scripts/setup.sh
	sh scripts/setup.sh .venv-bench requirements-dev.lock benchmarks/requirements.txt
	@touch $@
