# Every target does its own set-up: a virtual environment with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test test-slow lint format bench-wire bench-collect bench-journal bench-curate clean

demo: $(VENV)/.ludus
	$(BIN)/ludus collect reasoning_gym:chain_sum -n 200
	$(BIN)/ludus runs
	$(BIN)/ludus show runs/reasoning_gym-chain_sum-*
	$(BIN)/ludus curate runs/reasoning_gym-chain_sum-* --test 0.1 --overwrite -o data/chain_sum
	$(BIN)/ludus lint data/chain_sum

test: lint
	$(BIN)/pytest -n 2 --dist loadfile

# The minutes-long sweeps: every reasoning_gym variant, hundreds of seeds.
test-slow: $(VENV)/.dev
	$(BIN)/pytest -m slow --timeout 3600

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Steps per second beside OpenEnv's own server, in one run.
bench-wire: $(VENV)/.dev
	$(BIN)/python benchmarks/wire.py

# Episodes per second beside `openenv collect`, in one run.
bench-collect: $(VENV)/.dev
	$(BIN)/python benchmarks/collect.py

# A million episodes read back for a resumed run.
bench-journal: $(VENV)/.dev
	$(BIN)/python benchmarks/journal.py

# A million episodes filtered, deduplicated, split and written, beside a plain loop.
bench-curate: $(VENV)/.dev
	$(BIN)/python benchmarks/curate.py

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Ludus needs Python 3.11 or newer; name one: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) pip

$(VENV)/.ludus: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[all]'
	@touch $@

$(VENV)/.dev: $(VENV)/.ludus
	$(PIP) --group dev
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
