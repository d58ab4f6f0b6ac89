# Everything runs in .venv, which the first target that needs it creates.
# PYTHON=/path/to/python3 chooses the interpreter; ARGS="..." is handed to the program of the target.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOADTEST_STAMP := $(VENV)/.installed-loadtest
CANDIDATES := $(PYTHON) python3 python3.13 python3.12 python3.11 python3.10 python3.14
USABLE := import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench loadtest faults clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(STAMP) ## See it work, on an embedded PostgreSQL: no database needed
	$(BIN)/pgcairn demo $(ARGS)

test: $(STAMP) ## Run all tests; they start their own PostgreSQL servers
	$(BIN)/python -m pytest $(ARGS)

check: $(STAMP) ## Lint, formatting, types, architecture, change fragments
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python changes/assemble.py --check

format: $(STAMP) ## Format the code and fix what can be fixed by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Run the benchmarks
	$(BIN)/python -m bench $(ARGS)

faults: $(STAMP) ## Make every fault for a minute while 24 tasks work, and show what happened
	$(BIN)/python -m tests.faults $(ARGS)

loadtest: $(LOADTEST_STAMP) ## Load a web service around an agent, and verify every acknowledged turn
	$(BIN)/python -m loadtest $(ARGS)

clean: ## Remove .venv and all caches
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(STAMP): pyproject.toml
	@python=; \
	for candidate in $(CANDIDATES); do \
	  if "$$candidate" -c '$(USABLE)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "No Python 3.10 or newer with the venv module found (tried: $(strip $(CANDIDATES)))." >&2; \
	  echo "Install one (on Debian and Ubuntu: apt install python3 python3-venv) or say which:" >&2; \
	  echo "  make PYTHON=/path/to/python3 ..." >&2; \
	  exit 1; \
	fi; \
	if ! $(BIN)/python -c '$(USABLE)' >/dev/null 2>&1; then \
	  echo "Creating $(VENV) with $$python ..."; \
	  "$$python" -m venv --clear $(VENV); \
	fi
	@echo "Installing pgcairn and what its tests, demo and benchmarks need ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[all,bench]" --group dev
	@touch $@

$(LOADTEST_STAMP): $(STAMP)
	@echo "Installing what the load test needs ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[loadtest]"
	@touch $@
