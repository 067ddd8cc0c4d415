# Every target works as the first command in a fresh clone: each installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: install demo test test-slow lint types bench clean

install: $(VENV)/.all  ## the package with all extras, in .venv
demo: $(VENV)/.demo    ## the main job on the bundled graph
	$(BIN)/oneshot demo

test: lint types       ## lint, types and tests
	$(BIN)/python -m pytest

test-slow: $(VENV)/.test  ## the checks that take minutes
	$(BIN)/python -m pytest -m slow -n 0

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/write_tables.py --check

types: $(VENV)/.test
	$(BIN)/mypy
	MYPYPATH=src:benchmarks $(BIN)/mypy scripts/*.py benchmarks/*.py

bench: $(VENV)/.all    ## the benchmarks, into benchmarks/results
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) build dist demo src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

# One stamp a set of extras, renewed when the requirements change.
$(VENV)/.all: EXTRAS := [all]
$(VENV)/.test: EXTRAS := [test]
$(VENV)/.demo: EXTRAS := [plot]
$(VENV)/.all $(VENV)/.test $(VENV)/.demo: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the package$(EXTRAS) into $(VENV) ..."
	@$(PIP) --editable ".$(EXTRAS)"
	@touch $@
