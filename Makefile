# Start with `make run` or `make test`. Both first make the virtual environment.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The environment is made in two stages: the libraries of the program, then TensorFlow and the tools for developers.
APP    := $(VENV)/.app-installed
STAMP  := $(VENV)/.installed

.PHONY: run test pythons check coverage faults powercut walk ends attack fuzz fuzz-structures mutation bench scale cluster-test cluster-bench offline-proof installer smoke update wheel release-check pictures docs translations clean

run: $(APP)                   ## make the environment, screen openly licensed images (`fieldray demo`), and open the window with the results
	$(BIN)/fieldray demo

test: check                   ## run all checks and all tests, as in CI
	$(BIN)/python -m pytest -n auto --dist worksteal

pythons:                      ## test the demo and the window with every other Python version on this computer
	$(PYTHON) tools/pythons.py

coverage: $(STAMP)            ## run the tests, and measure which lines and branches they execute; pages in build/coverage
	$(BIN)/python -m pytest -n auto --dist worksteal --cov --cov-report=term:skip-covered --cov-report=html:build/coverage

faults: $(STAMP)              ## simulate a thousand faults with the Edge TPU's test double; figures in build/faults.json
	$(BIN)/python tests/faults/run_faults.py --events 1000 --images 1000 --seed 1 --window

WALKS ?= 1000
walk: $(STAMP)                ## walk WALKS times at random through the window, without a screen
	FIELDRAY_WALKS=$(WALKS) $(BIN)/python -m pytest tests/gui/test_window_walk.py --timeout 0

WINDOWS ?= 1000
ends: $(STAMP)                ## end WINDOWS windows by a signal at random moments on a busy computer; figures in build/ends.json
	$(BIN)/python tests/ends/run_ends.py --windows $(WINDOWS)

SEED ?= 1
powercut: $(STAMP)            ## simulate power cuts, full disks and removed drives at many moments; figures in build/powercut.json
	$(BIN)/python tests/powercut/run_powercut.py --seed $(SEED)

attack: $(STAMP)              ## repeat all known attacks on the program, with a line for each case; figures in build/attack.json
	$(BIN)/python tests/attack/run_attack.py

bench: $(STAMP)               ## measure the speed from files to scores, compared with the usual script; JSON and a page in build/bench
	$(BIN)/python -m benchmarks pipeline --out build/bench

# SCALE_ROWS is the number of images of the run. A million images need 9 GB in the folder for temporary files (TMPDIR).
SCALE_ROWS ?= 1000000
scale: $(STAMP)               ## measure window and results database with a million images; pages in build/benchmarks
	$(BIN)/python -m benchmarks scale --rows $(SCALE_ROWS) --page scale
	$(BIN)/python -m benchmarks store --rows $(SCALE_ROWS) --page store

cluster-test: $(STAMP)        ## run the long tests of the cluster, which `make test` leaves out
	$(BIN)/python -m pytest -m cluster tests

# CLUSTER_IMAGES is a folder with images to copy; if empty, synthetic images are drawn. Finished parts are stored in
# build/cluster-bench. Started again on the same commit, the benchmark resumes. The part with three computers in a network
# (network namespaces) needs root.
CLUSTER_IMAGES ?=
CLUSTER_COUNT ?= 5000
CLUSTER_ROUNDS ?= 1
CLUSTER_PAGE ?= cluster
cluster-bench: $(STAMP)       ## compare `archive screen` with `screen`, kill processes, simulate a network; a page in build/benchmarks
	$(BIN)/python -m benchmarks cluster $(CLUSTER_IMAGES) --count $(CLUSTER_COUNT) --rounds $(CLUSTER_ROUNDS) --workers 1,2,4 --work build/cluster-bench/work --out build/cluster-bench --page $(CLUSTER_PAGE) -- --pack adult-normal-abnormal --ages-confirmed

installer:                    ## build the installers that this computer can build, in build/dist
	$(PYTHON) installer/build.py

smoke:                        ## test the installers in a small system without Python and network (as root, after `make installer`)
	$(PYTHON) installer/smoke_test.py build/dist --pictures build/pictures

# PREVIOUS is the .deb package of the previous version.
update: $(STAMP)              ## test the update from PREVIOUS with existing results, and the way back (as root, after `make installer`)
	$(BIN)/python installer/update_test.py $(PREVIOUS) build/dist/fieldray_*.deb --portable build/dist/fieldray-*-linux-x86_64.tar.xz

wheel:                        ## test `pip install` of the wheel in a new virtual environment, with and without the extra adapt
	$(PYTHON) installer/wheel_test.py
	$(PYTHON) installer/wheel_test.py --extra adapt

release-check: $(STAMP)       ## run all checks of a release on this commit; takes hours, can be resumed; a page in build/release
	$(BIN)/python tools/release_check.py $(if $(PREVIOUS),--previous $(PREVIOUS))

# FUZZ_DATA is a folder with images to damage, in addition to synthetic images; it may be missing. FUZZ_MINUTES is the
# duration of the coverage-guided fuzzing: 60 minutes before a release.
FUZZ_DATA ?= ../shared/data
FUZZ_MINUTES ?= 5
fuzz: $(VENV)/.robustness     ## test by coverage-guided fuzzing, then with ten thousand damaged files; figures in build
	$(BIN)/python tests/fuzz/run_guided.py --minutes $(FUZZ_MINUTES) --seed $(SEED)
	$(BIN)/python tests/fuzz/run_fuzz.py --files 10000 --seed 1 --data $(FUZZ_DATA)

fuzz-structures: $(STAMP)     ## read a million well-formed inputs with wrong values; figures in build/fuzz-structures.json
	$(BIN)/python tests/fuzz/run_structures.py --inputs 1000000 --seed 1

# ROOM is a package that tools/mutation.py can change (domain, packs or store). MODULES are files of the package.
ROOM ?= domain
MODULES ?=
mutation: $(VENV)/.robustness ## change the code of a package in one place at a time, and check that the package's unit tests fail
	$(BIN)/python tools/mutation.py $(ROOM) $(MODULES)

offline-proof: $(STAMP)       ## record every network socket that the program opens, and run the program without a network (Linux)
	$(BIN)/python tools/prove_offline.py --out build/offline.json

pictures: $(STAMP)            ## take the screenshots of the user guide, in each of its languages
	$(BIN)/python tools/screenshots.py docs/guide --language en
	$(BIN)/python tools/screenshots.py docs/guide --language uk

docs: $(VENV)-docs/.installed ## build the documents as HTML pages in build/docs/site, which need no network
	$(VENV)-docs/bin/python tools/build_docs.py

$(VENV)-docs/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

check: $(STAMP)               ## check style, types, imports between packages, unused code, size limits and old libraries
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/dead_code.py
	$(BIN)/python tools/ratchet.py
	$(BIN)/python tools/libraries.py

translations: $(STAMP)        ## collect all texts into the .po files of assets/translations, and compile these files
	$(BIN)/python tools/translations.py

# --no-compile: Python compiles a module at its first import. Compiling all modules now would take longer than the demo.
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
