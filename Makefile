# make demo    upscale photographs with the shipped checkpoint and show the gain over bicubic
# make test    run all tests
# make lint    ruff, mypy, codespell
# Every target makes .venv first, and again only when pyproject.toml changes.

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.srnet-installed

# One thread per process: two test workers share two cores, and torch threads that compete are slower than none.
TEST_ENV := OMP_NUM_THREADS=1 WANDB_MODE=disabled

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format clean distclean

help:
	@sed -n '/^# /s/^# //p' Makefile | head -4

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 10) <= v[:2] <= (3, 14) else "srnet needs Python 3.10 to 3.14, but %s is %d.%d; use make PYTHON=python3.12" % (sys.executable, v[0], v[1]))'
	@$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV) \
	  || { echo "cannot make $(VENV); on Debian and Ubuntu: apt install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python scripts/demo.py

test: $(STAMP)
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist worksteal -q

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist demo .pytest_cache .mypy_cache .ruff_cache
	find srnet scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
