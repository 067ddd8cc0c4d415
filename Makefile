# Every target works as the first command in a fresh clone: each installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOWEST := .venv-lowest
NEWEST := .venv-newest
# What an installation is made from, beside the Python code, which is used in its place.
SOURCES := pyproject.toml constraints.txt setup.py $(wildcard src/oneshot/compiled/*.c)

# $(call install,VENV,ARGUMENTS) makes the environment and installs; pip is heard only if it fails.
define install
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	@echo "installing into $(1) ..."
	@log=$$(mktemp) && trap 'rm -f "$$log"' EXIT && \
	if ! $(1)/bin/python -m pip install --progress-bar off --disable-pip-version-check \
		--constraint constraints.txt $(2) >"$$log" 2>&1; then tail -n 60 "$$log" >&2; exit 1; fi
endef

.PHONY: install demo docs test test-slow test-lowest test-newest test-matrix lint types bench clean

install: $(VENV)/.all  ## the package with all extras, in .venv
demo: $(VENV)/.demo    ## the main job on the bundled graph
	$(BIN)/oneshot demo

docs: $(VENV)/.docs    ## the documentation as a site, in site/; warnings are errors
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --fresh-env --conf-dir docs \
		--doctree-dir build/doctrees . site

test: lint types       ## lint, types and tests
	$(BIN)/python -m pytest

test-slow: $(VENV)/.test  ## the checks that take minutes
	$(BIN)/python -m pytest -m slow -n 0

# Old packages warn about newer Python and newer packages, which is no fault of ours.
test-lowest: $(LOWEST)/.test  ## the tests with the oldest dependencies that pyproject.toml allows
	PYTEST_ADDOPTS="-W default::DeprecationWarning -W default::PendingDeprecationWarning \
		-W default::FutureWarning" $(LOWEST)/bin/python -m pytest

test-newest:           ## the tests with today's newest dependencies; torch is as in constraints.txt
	$(call install,$(NEWEST),--upgrade --upgrade-strategy eager --editable ".[test]")
	$(NEWEST)/bin/python -m pytest

test-matrix: $(VENV)/.test  ## the tests under many settings of the machine; SETTINGS="name ..."
	BIN=$(BIN) scripts/test_matrix.sh $(SETTINGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/write_tables.py --check
	$(BIN)/python scripts/check_words.py --src

types: $(VENV)/.test
	$(BIN)/mypy
	MYPYPATH=src:. $(BIN)/mypy --explicit-package-bases scripts/*.py benchmarks/*.py

bench: $(VENV)/.all    ## the benchmarks, into benchmarks/results
	$(BIN)/python -m benchmarks.run

clean:
	rm -rf $(VENV) $(LOWEST) $(NEWEST) build dist demo site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
	find src -name '*.so' -delete

# One stamp a set of extras, renewed when the requirements or the kernels change.
$(VENV)/.all: EXTRAS := [all]
$(VENV)/.test: EXTRAS := [lint,test]
$(VENV)/.demo: EXTRAS := [plot]
$(VENV)/.docs: EXTRAS := [docs]
$(VENV)/.all $(VENV)/.test $(VENV)/.demo $(VENV)/.docs: $(SOURCES)
	$(call install,$(VENV),--editable ".$(EXTRAS)")
	@touch $@

# The oldest versions; but torch as pinned, whose older ones have no CPU build on every index.
$(LOWEST)/.test: $(SOURCES) scripts/lowest_versions.py
	@mkdir -p $(LOWEST)
	@$(PYTHON) scripts/lowest_versions.py test > $(LOWEST)/constraints.txt
	$(call install,$(LOWEST),--constraint $(LOWEST)/constraints.txt --editable ".[test]")
	@touch $@
