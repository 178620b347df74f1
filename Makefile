# `make demo` and `make test` work in a fresh clone; each needs only Python 3.11 or newer.
# Another interpreter gets an environment of its own: make test PYTHON=python3.12 uses .venv-3.12

PYTHON ?= python3
ifeq ($(PYTHON),python3)
VENV ?= .venv
else
VENV ?= .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
endif
# Two workers: compilation, which is most of a test's time, uses one core. The tests of a file share fits and compiled
# functions, so that they run in one worker. Files come in their own order, which ends with short ones, rather than by
# the number of their tests: the long tests of a file with few of them would keep one worker busy alone at the end.
ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
INSTALLED_DOCS := $(VENV)/.installed-docs
INSTALLED_NOTEBOOKS := $(VENV)/.installed-notebooks

# Mutants that `make mutation` tries.
NUM ?= 50

.PHONY: help demo test test-slow coverage mutation lint types docs notebooks results results-gpu results-check clean

help:
	@echo "make demo                fit eight schools, draw its posterior"
	@echo "make test                run the tests"
	@echo "make test-slow           run the tests that take minutes"
	@echo "make coverage            run the tests; fail where they reach less than 95 % of the code"
	@echo "make mutation            break the code in NUM=$(NUM) small ways, and see whether the tests notice"
	@echo "make lint                check style and formatting"
	@echo "make types               check the types"
	@echo "make docs                build the documentation into site/"
	@echo "make notebooks           write the tutorials as notebooks into notebooks/"
	@echo "make results             make every kept result anew that is older than its code (days; it can be interrupted)"
	@echo "make results-gpu         the same with the results that need a GPU"
	@echo "make results-check       name the results that are older than the code behind them"
	@echo "make clean               remove the environment and all caches"
	@echo "Variables: PYTHON=$(PYTHON) VENV=$(VENV)"

demo: $(INSTALLED)
	$(BIN)/bernflow demo

test: $(INSTALLED_DEV)
	$(BIN)/python -m pytest $(ARGS)

# Slow tests are few and long; the next one goes to whoever is free.
test-slow: ARGS = -n 2
test-slow: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -m slow $(ARGS)

coverage: $(INSTALLED_DEV)
	$(BIN)/python -m pytest $(ARGS) --cov --cov-report=term --cov-fail-under=95

mutation: $(INSTALLED_DEV)
	$(BIN)/python -m benchmarks.mutation --num $(NUM)

lint: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED_DEV)
	$(BIN)/mypy

docs: $(INSTALLED_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

notebooks: $(INSTALLED_NOTEBOOKS)
	$(BIN)/python docs/notebooks.py

results: $(INSTALLED_DEV)
	$(BIN)/python -m benchmarks.results make

results-gpu: $(INSTALLED_DEV)
	$(BIN)/python -m benchmarks.results make --gpu

results-check: $(INSTALLED_DEV)
	$(BIN)/python -m benchmarks.results check

clean:
	rm -rf $(VENV) demo site notebooks dist build .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Installed again only when the dependencies may have changed.
$(INSTALLED): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(INSTALLED_DEV): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(INSTALLED)

$(INSTALLED_DOCS): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@ $(INSTALLED)

$(INSTALLED_NOTEBOOKS): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[notebooks]'
	@touch $@ $(INSTALLED)
