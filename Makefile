# Fieldray: `make run` and `make test` are all a new machine needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: run test check faults clean

run: $(STAMP)                 ## screen synthetic studies with the shipped pack, then show them
	$(BIN)/fieldray demo

test: check                   ## all that CI runs
	$(BIN)/python -m pytest

faults: $(STAMP)              ## a thousand accidents with the stick's test double; figures in build/faults.json
	$(BIN)/python tests/faults/run_faults.py --events 1000 --films 1000 --seed 1 --window

check: $(STAMP)               ## lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(STAMP): pyproject.toml
	bash tools/system_packages.sh
	$(PYTHON) -m venv $(VENV) || { echo "Python 3.11 or newer with venv is needed (Debian: apt-get install python3-venv)"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[desktop,adapt,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
