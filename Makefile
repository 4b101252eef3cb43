# The verbs of a working day. `make` alone lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help setup check test affected test-all lists repeat bench run prove clients wheels docs

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

setup: ## make the virtual environment and install the tree into it
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -e '.[dev]'

check: ## style, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit -q -c pyproject.toml -ll -r tandemmq/*.py broker cli client config index journal locker pipeline simulator store

test: ## the fast tests, which need nothing: less than a minute
	$(BIN)/pytest -m fast

BASE ?= HEAD
affected: ## the tests that a change can affect, within a minute: of what is not committed, or since BASE=main
	$(BIN)/python -m tests.affected --base $(BASE)

test-all: ## all that can run here, with services and a small seeded sample of each long proof: the larger part of what .ci/run takes
	TANDEMMQ_THOROUGH=1 $(BIN)/pytest --services

lists: ## write the lists that pages hold and the sizes that tests compare
	$(BIN)/python -m tests.support.lists

LEG ?= plain
repeat: ## one test as CI ran it: make repeat SEED=7 LEG=compiled TEST=tests/...::test_name
	$(BIN)/python -m tests.support.ci repeat --leg $(LEG) --seed $(SEED) '$(TEST)'

bench: ## the load driver against a broker on the default port
	$(BIN)/tandemmq bench

run: ## a broker with its store in ./tandemmq-data
	$(BIN)/tandemmq run

prove: ## the long proofs in full: hundreds of kills under load, every image a power loss may leave of some forty lives
	TANDEMMQ_PROVE=full $(BIN)/pytest --services -m prove -s --timeout 7200
	TANDEMMQ_PROVE=full $(BIN)/pytest --services tests/interop/jms tests/contract/locker -s --timeout 7200
	$(BIN)/python -m tests.affected --judge 20

CLIENTS ?=
clients: ## real clients, each through three kills of the master: all, or make clients CLIENTS="stompjs-ws camel-4"
	$(BIN)/python -m tests.support.interop.real_clients $(CLIENTS)

WHEELS ?= --into dist
wheels: ## compiled wheels of Linux for all Pythons that are here, x86-64 and arm64: make wheels WHEELS="--python 3.13"
	$(PYTHON) .ci/wheels.py $(WHEELS)

SITE ?= /tmp/tandemmq-site
docs: ## the pages as a site in $SITE (/tmp/tandemmq-site), with all links checked
	$(BIN)/pip install -q -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 TANDEMMQ_SITE=$(SITE) $(BIN)/mkdocs build --quiet
	@echo $(SITE)/index.html
