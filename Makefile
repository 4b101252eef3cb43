# The verbs of a working day. `make` alone lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help setup check test bench run prove

help:
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

setup: ## make the virtual environment and install the tree into it
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -e '.[dev]'

check: ## style, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit -q -c pyproject.toml -ll -r broker store journal index locker config tandemmq

test: ## the tests, with a small seeded sample of each long proof
	$(BIN)/pytest

bench: ## the load driver against a broker on the default port
	$(BIN)/tandemmq bench

run: ## a broker with its store in ./tandemmq-data
	$(BIN)/tandemmq run

prove: ## the long proofs in full: hundreds of kills under load, every image a power loss may leave of some forty lives
	TANDEMMQ_PROVE_KILLS=120 TANDEMMQ_PROVE_HISTORIES=20 TANDEMMQ_PROVE_IMAGES=2000 TANDEMMQ_PROVE_LIVES=200 TANDEMMQ_PROVE_ZOMBIES=100 \
	TANDEMMQ_PROVE_HANDOVERS=20 TANDEMMQ_PROVE_CLIENT_ROUNDS=20 TANDEMMQ_PROVE_DEPLOYMENT=5 TANDEMMQ_PROVE_SEEDS=10000 TANDEMMQ_PROVE_LOCKS=1 \
	TANDEMMQ_PROVE_MUTANTS=all \
	$(BIN)/pytest -m prove -s --timeout 7200
	TANDEMMQ_PROVE_JMS_PEER=1 TANDEMMQ_PROVE_JMS_KILLS=20 $(BIN)/pytest tests/interop/jms -s --timeout 7200
