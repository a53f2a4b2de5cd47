# Plain `make` shows the targets. PYTHON=... chooses another interpreter than python3 (3.11 or newer).

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
BENCH  := $(VENV)/.ready-bench
PIP    := -m pip --disable-pip-version-check -qq install
# Tests run with bytecode, and it is kept in the environment: a caller who has turned it off would wait for every worker
# to compile all tests anew.
TESTS  := env PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/$(VENV)/bytecode $(BIN)/python

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run quick test docs coverage servers bench lint format sync pythons find-pythons clean

help: ## show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

run: $(READY) ## see locks at work: the demo
	@$(BIN)/holdfast demo

quick: lint ## style, types, and the tests that need neither a server nor patience: under two minutes
	@echo "==> pytest: no servers, nothing slow, no controls"
	@$(TESTS) -m pytest -m "not server and not slow and not control" --numprocesses 3 --hypothesis-profile quick --durations 10 -q

test: lint servers ## style, types and all tests, in parts; PARTS="contract command" chooses
	@$(TESTS) tools/parts.py $(PARTS)

coverage: $(READY) servers ## run the tests traced, and show what they do not reach; PARTS="plain" chooses
	@mkdir -p $(VENV)/coverage
	@$(TESTS) -m tools.cover $(PARTS)

servers: ## install the servers that the tests start (Debian's packages; needs root)
	@$(PYTHON) tools/servers.py

bench: $(BENCH) ## measure against the raw floor, the peers and the budgets
	@$(BIN)/python -m bench

lint: $(READY) ## ruff, mypy strict, and whether the _sync trees are up to date
	@echo "==> ruff check: lint"
	@$(BIN)/python -m ruff check --quiet
	@echo "==> ruff format: layout (fix it with: make format)"
	@$(BIN)/python -m ruff format --quiet --check
	@echo "==> mypy: types, strict"
	@$(BIN)/python -m mypy
	@echo "==> unasync: the _sync trees are what their _async sources give (fix it with: make sync)"
	@$(BIN)/python tools/unasync.py --check

docs: $(READY) ## write the generated tables of the pages anew, and run what tests the pages
	@$(BIN)/python -m tests.docs.tables
	@$(TESTS) -m pytest tests/docs --numprocesses 2

format: $(READY) ## lay out the code and mend what ruff can mend
	@$(BIN)/python -m ruff check --fix-only --quiet
	@$(BIN)/python -m ruff format

sync: $(READY) ## write the _sync trees anew from their _async sources
	@$(BIN)/python tools/unasync.py

pythons: $(READY) ## run the tests on every other Python (3.11 to 3.14) of this machine
	@own=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	found=$$($(MAKE) --silent find-pythons); failed=; \
	for version in 3.11 3.12 3.13 3.14; do \
		python=$$(echo "$$found" | sed -n "s/^$$version //p"); \
		if [ $$version = "$$own" ]; then echo "==> Python $$version: the one of make test"; continue; fi; \
		if [ -z "$$python" ]; then echo "==> Python $$version: not found"; continue; fi; \
		echo "==> Python $$version: found; all tests"; \
		venv=.venv-$$version; \
		{ [ -x $$venv/bin/pip ] || "$$python" -m venv --clear $$venv; } \
		&& $$venv/bin/python $(PIP) --editable '.[cli,redis,etcd,zookeeper,dev]' \
		&& $$venv/bin/python -m pytest --quiet \
		|| failed="$$failed $$version"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed on Python:$$failed" >&2; exit 1; fi

# One line for each version that works here: "3.12 <its executable>". A pyenv shim may exist and yet not run, so try each.
find-pythons:
	@for python in python3.11 python3.12 python3.13 python3.14 "$$(pyenv root 2>/dev/null)"/versions/3.1[1-4]*/bin/python; do \
		"$$python" -c 'import sys, ensurepip, sqlite3; print("%d.%d" % sys.version_info[:2], sys.executable)' 2>/dev/null; \
	done | sort -u -k1,1

clean: ## remove environments, caches and built files
	rm -rf $(VENV) .venv-3.* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "holdfast needs Python 3.11 or newer, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "==> environment: $(VENV), from $$($(PYTHON) --version) (once, and when pyproject.toml changes)"
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python $(PIP) --editable '.[cli,redis,etcd,zookeeper,dev]'
	@touch $@

$(BENCH): $(READY)
	@echo "==> environment: the peers that we measure against"
	@$(BIN)/python $(PIP) --editable '.[bench]'
	@touch $@
