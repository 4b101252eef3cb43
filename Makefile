# Commands of daily work. `make` without a target lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help setup check test affected test-all lists repeat bench run prove clients wheels docs

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

setup: ## create the virtual environment, and install the tree into it
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -e '.[dev]'

check: ## check style, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit -q -c pyproject.toml -ll -r tandemmq/*.py broker cli client config index journal locker pipeline simulator store

test: ## run the fast tests, which need no services: less than a minute
	$(BIN)/pytest -m fast

BASE ?= HEAD
affected: ## run the tests that uncommitted changes can affect, within a minute; with BASE=main, changes since main
	$(BIN)/python -m tests.affected --base $(BASE)

test-all: ## run all tests that can run here, with services and a small seeded sample of each long proof: most of the time of .ci/run
	TANDEMMQ_THOROUGH=1 $(BIN)/pytest --services

lists: ## write the generated lists of the pages, and the sizes that tests compare
	$(BIN)/python -m tests.support.lists

LEG ?= plain
repeat: ## run one test as CI ran it: make repeat SEED=7 LEG=compiled TEST=tests/...::test_name
	$(BIN)/python -m tests.support.ci repeat --leg $(LEG) --seed $(SEED) '$(TEST)'

bench: ## run the load driver against a broker on the default port
	$(BIN)/tandemmq bench

run: ## run a broker with its store in ./tandemmq-data
	$(BIN)/tandemmq run

prove: ## run the complete long proofs: hundreds of kills under load, each disk image that a power loss can leave of some forty runs
	TANDEMMQ_PROVE=full $(BIN)/pytest --services -m prove -s --timeout 7200
	TANDEMMQ_PROVE=full $(BIN)/pytest --services tests/interop/jms tests/contract/locker -s --timeout 7200
	$(BIN)/python -m tests.affected --judge 20
	$(BIN)/python -m tandemmq.bench --scenario instructions --check

CLIENTS ?=
clients: ## run real clients while the master is killed three times: all, or make clients CLIENTS="stompjs-ws camel-4"
	$(BIN)/python -m tests.support.interop.real_clients $(CLIENTS)

WHEELS ?= --into dist
wheels: ## build compiled wheels for Linux, for all Pythons that are here, x86-64 and arm64: make wheels WHEELS="--python 3.13"
	$(PYTHON) .ci/wheels.py $(WHEELS)

SITE ?= /tmp/tandemmq-site
docs: ## build the pages as a site in $SITE (/tmp/tandemmq-site), and check all links
	$(BIN)/pip install -q -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 TANDEMMQ_SITE=$(SITE) $(BIN)/mkdocs build --quiet
	@echo $(SITE)/index.html
