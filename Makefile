# Fieldray: `make run` and `make test` are all a new machine needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Two stages of one environment: what the program needs, and with it TensorFlow and the developers' tools.
APP    := $(VENV)/.app-installed
STAMP  := $(VENV)/.installed

.PHONY: run test pythons check coverage faults powercut walk ends attack fuzz fuzz-structures mutation bench scale cluster-test cluster-bench offline-proof installer smoke update wheel release-check pictures docs translations clean

run: $(APP)                   ## screen openly licensed images with the pack that is for them, then show them
	$(BIN)/fieldray demo

test: check                   ## all that CI runs
	$(BIN)/python -m pytest -n auto --dist worksteal

pythons:                      ## the demo and a window on every other Python that is here
	$(PYTHON) tools/pythons.py

coverage: $(STAMP)            ## the suite once more, with the lines and branches that it runs; pages in build/coverage
	$(BIN)/python -m pytest -n auto --dist worksteal --cov --cov-report=term:skip-covered --cov-report=html:build/coverage

faults: $(STAMP)              ## a thousand fault events with the Edge TPU's test double; figures in build/faults.json
	$(BIN)/python tests/faults/run_faults.py --events 1000 --images 1000 --seed 1 --window

WALKS ?= 1000
walk: $(STAMP)                ## WALKS random walks through the whole window, off screen
	FIELDRAY_WALKS=$(WALKS) $(BIN)/python -m pytest tests/gui/test_window_walk.py --timeout 0

WINDOWS ?= 1000
ends: $(STAMP)                ## WINDOWS windows ended by a signal at random moments, on a loaded machine; figures in build/ends.json
	$(BIN)/python tests/ends/run_ends.py --windows $(WINDOWS)

SEED ?= 1
powercut: $(STAMP)            ## the power goes, disks and drives fail, at every moment; figures in build/powercut.json
	$(BIN)/python tests/powercut/run_powercut.py --seed $(SEED)

attack: $(STAMP)              ## all that was once tried against the program, a line per case; figures in build/attack.json
	$(BIN)/python tests/attack/run_attack.py

bench: $(STAMP)               ## from files to scores, compared with the usual script; JSON and a page in build/bench
	$(BIN)/python -m benchmarks pipeline --out build/bench

# SCALE_ROWS is how many images the run has; a million of them take 9 GB in the folder for temporary files (TMPDIR).
SCALE_ROWS ?= 1000000
scale: $(STAMP)               ## a million images in the window and in the store: pauses, memory, bytes, resuming, upkeep; pages in build/benchmarks
	$(BIN)/python -m benchmarks scale --rows $(SCALE_ROWS) --page scale
	$(BIN)/python -m benchmarks store --rows $(SCALE_ROWS) --page store

cluster-test: $(STAMP)        ## the longer tests of the cluster, beside those that `make test` holds
	$(BIN)/python -m pytest -m cluster tests

# CLUSTER_IMAGES is a folder of images to copy; without it, images drawn by the program. What is done is kept in
# build/cluster-bench: the same command again resumes, on the same commit. As root there is a part with three network namespaces.
CLUSTER_IMAGES ?=
CLUSTER_COUNT ?= 5000
CLUSTER_ROUNDS ?= 1
CLUSTER_PAGE ?= cluster
cluster-bench: $(STAMP)       ## an archive on a local cluster against fieldray screen, kills at random, a network; a page in build/benchmarks
	$(BIN)/python -m benchmarks cluster $(CLUSTER_IMAGES) --count $(CLUSTER_COUNT) --rounds $(CLUSTER_ROUNDS) --workers 1,2,4 --work build/cluster-bench/work --out build/cluster-bench --page $(CLUSTER_PAGE) -- --pack adult-normal-abnormal --ages-confirmed

installer:                    ## the installers this machine can build, into build/dist
	$(PYTHON) installer/build.py

smoke:                        ## try them in a root of their own, without Python and network (as root, after `make installer`)
	$(PYTHON) installer/smoke_test.py build/dist --pictures build/pictures

# PREVIOUS is the .deb of the version before.
update: $(STAMP)              ## try an update from PREVIOUS over a home full of results, and back (as root, after `make installer`)
	$(BIN)/python installer/update_test.py $(PREVIOUS) build/dist/fieldray_*.deb --portable build/dist/fieldray-*-linux-x86_64.tar.xz

wheel:                        ## `pip install` of the wheel in an environment of its own, also with the extra adapt
	$(PYTHON) installer/wheel_test.py
	$(PYTHON) installer/wheel_test.py --extra adapt

release-check: $(STAMP)       ## all of this on the commit that is released; hours, resumable; a page in build/release
	$(BIN)/python tools/release_check.py $(if $(PREVIOUS),--previous $(PREVIOUS))

# FUZZ_DATA is a folder of images to damage beside the phantoms, where there is one. FUZZ_MINUTES is how long inputs are
# led by the code that they reach: 60 before a release.
FUZZ_DATA ?= ../shared/data
FUZZ_MINUTES ?= 5
fuzz: $(VENV)/.robustness     ## ten thousand damaged files, and readers led to code not reached before; figures in build
	$(BIN)/python tests/fuzz/run_guided.py --minutes $(FUZZ_MINUTES) --seed $(SEED)
	$(BIN)/python tests/fuzz/run_fuzz.py --files 10000 --seed 1 --data $(FUZZ_DATA)

fuzz-structures: $(STAMP)     ## a million structures broken in meaning, a line per part of the program that reads them; figures in build
	$(BIN)/python tests/fuzz/run_structures.py --inputs 1000000 --seed 1

# ROOM is a room of tools/mutation.py, MODULES some of its files.
ROOM ?= domain
MODULES ?=
mutation: $(VENV)/.robustness ## change a room of the program in one place at a time: do its unit tests notice?
	$(BIN)/python tools/mutation.py $(ROOM) $(MODULES)

offline-proof: $(STAMP)       ## watch every socket the program asks for, and let it work without any network (Linux)
	$(BIN)/python tools/prove_offline.py --out build/offline.json

pictures: $(STAMP)            ## the screenshots of the user guide, in every language it is written in
	$(BIN)/python tools/screenshots.py docs/guide --language en
	$(BIN)/python tools/screenshots.py docs/guide --language uk

docs: $(VENV)-docs/.installed ## the documents, into build/docs/site: no network is needed to read them
	$(VENV)-docs/bin/python tools/build_docs.py

$(VENV)-docs/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

check: $(STAMP)               ## lint, format, types, import contracts, dead code, the size of the house, old libraries
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/dead_code.py
	$(BIN)/python tools/ratchet.py
	$(BIN)/python tools/libraries.py

translations: $(STAMP)        ## collect the texts into the .po files of assets/translations, and compile them
	$(BIN)/python tools/translations.py

# Python compiles a module when it is first imported; compiling all of them beforehand takes longer than the demo.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

$(VENV)/.made:
	bash tools/system_packages.sh
	$(PYTHON) -m venv $(VENV) || { echo "Python 3.11 or newer with venv is needed (Debian: apt-get install python3-venv)"; exit 1; }
	touch $@

$(APP): pyproject.toml | $(VENV)/.made
	$(INSTALL) -e '.[desktop]'
	touch $@

$(STAMP): pyproject.toml | $(VENV)/.made
	$(INSTALL) -e '.[desktop,adapt,cluster,dev]'
	touch $(APP) $@

$(VENV)/.robustness: $(STAMP)
	$(INSTALL) -e '.[robustness]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-docs build dist .hypothesis .pytest_cache .mypy_cache .ruff_cache
