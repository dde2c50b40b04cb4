PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PLUGINS := $(patsubst %/pyproject.toml,-e %,$(wildcard plugins/*/pyproject.toml))
SOURCES := pyproject.toml constraints.txt $(wildcard plugins/*/pyproject.toml)

MINUTES ?= 10
CASES ?= 1000000

.PHONY: help demo test test-fast test-kit test-packages test-ranks test-lowest check docs bench bench-quick torture torture-quick fuzz format weights clean

# List the targets.
help:
	@awk '/^# /{note=substr($$0,3)} /^[a-z-]+:/{split($$1,t,":"); if (note) printf "  %-14s %s\n", t[1], note; note=""} /^$$/{note=""}' $(MAKEFILE_LIST)

# Set up and run RLCD on the embedded data set.
demo: $(VENV)/installed
	$(BIN)/gcdbench run --config configs/demo.toml

# Set up with test tools and pass the tests.
test: $(VENV)/installed-dev
	$(BIN)/python -m pytest

# The tests without the slow ones.
test-fast: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m "not slow and not torture and not packages and not ranks and not clusters and not kit"

# Every check of the conformance kit on every plugin, and a run of each on digits (about eight minutes).
test-kit: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m kit tests plugins

# Build, install, run and remove real plugin packages (about a minute).
test-packages: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m packages tests

# The tests with the lowest versions that are declared, in an environment of its own.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet uv
	VIRTUAL_ENV=.venv-lowest .venv-lowest/bin/uv pip install --resolution lowest-direct --group test -e '.[report,tensorboard]' $(PLUGINS)
	.venv-lowest/bin/python -m pytest

# Several processes on one run, and real Ray and submitit on this machine (about four minutes).
test-ranks: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 3 -m "ranks or clusters" tests

# Lint, formatting, types and generated pages.
check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/generate.py --check

# Write the reference pages in docs/ from the source, and the pages of results from their records.
docs: $(VENV)/installed-dev
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/results/make.py

# Measure speed and exactness at ViT-B/16 geometry (about eight minutes; quick: two).
bench: $(VENV)/installed
	$(BIN)/python -m benchmarks --output bench.json

# The same, smaller and noisier.
bench-quick: $(VENV)/installed
	$(BIN)/python -m benchmarks --quick

# Break runs on purpose for MINUTES, continue them, and compare every bit with an undisturbed run.
torture: $(VENV)/installed-dev
	$(BIN)/python -m tests.torture --minutes $(MINUTES)

# Every fault once, and SIGKILL at twenty moments.
torture-quick: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m torture tests
	$(BIN)/python -m tests.torture --rounds 1

# Read CASES damaged files with every parser of an outside format (a few minutes).
fuzz: $(VENV)/installed-dev
	$(BIN)/python -m tests.fuzz --cases $(CASES)

# Fix lint and formatting.
format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Train the shipped backbone of the embedded digits again (about eight minutes) and say whether it is the same.
weights: $(VENV)/installed
	$(BIN)/python -m gcdbench.backbone.pretrain_digits $(VENV)/digits_vit.safetensors

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "gcdbench needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python $(SOURCES)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[report]' $(PLUGINS)
	touch $@

$(VENV)/installed-dev: $(VENV)/bin/python $(SOURCES)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt 'pip>=25.1'  # knows dependency groups
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --group dev -e '.[ray,report,slurm,tensorboard]' $(PLUGINS)
	touch $@ $(VENV)/installed

# Remove what was installed and built.
clean:
	rm -rf $(VENV) .venv-lowest dist build *.egg-info plugins/*/*.egg-info plugins/*/build
