# One command each; `make demo` and `make test` do all the set-up they need on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test slow check bench report

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(READY)  ## make .venv with the tested versions (quick the second time)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; try: make setup PYTHON=python3.11" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)  ## search bits and temperatures of a small network on embedded data
	rm -rf slb-runs/studies/digits_demo
	$(BIN)/slb-autotune search search_spaces/digits_demo.yaml

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

slow: $(READY)  ## run the tests with servers, browsers, clusters and kills, minutes
	$(BIN)/python -m pytest -m slow

check: $(READY)  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## measure the speed that the README quotes
	$(BIN)/slb-autotune bench step
	$(BIN)/slb-autotune bench epoch
	$(BIN)/slb-autotune bench harness
	$(BIN)/slb-autotune bench rungs
	$(BIN)/slb-autotune bench search

report: $(READY)  ## make results/tables and results/figures anew from results/runs
	$(BIN)/slb-autotune report
