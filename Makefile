# `make` alone lists the targets. Everything is installed into .venv, from pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export HF_HUB_OFFLINE := 1
export OMP_WAIT_POLICY := PASSIVE

.DEFAULT_GOAL := help
.PHONY: help install demo test test-portable test-slow test-matrix test-versions test-wheel test-faults check format bench clean

# Processes that share the tests: one takes a quarter of an hour.
WORKERS ?= 2

# The order of the tests in `make test-portable`: another one for every commit, the same whenever it is tested again.
ORDER ?= $(shell git rev-parse --short HEAD 2>/dev/null || echo 0)

# The sets of versions in `make test-versions`, of oldest, newest and newest-federated: all by default.
SETS ?=

# Seeds of the property tests in `make test-slow`: new ones every time, printed so that a run can be repeated.
SEEDS ?= $(shell od -An -N6 -tu2 /dev/urandom)

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

install: $(STAMP)  ## make .venv and install the package with its development tools

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/pip install --quiet --editable '.[dev]' -c constraints.txt
	touch $@

demo: $(STAMP)  ## run the main job on the built-in notes, offline, and write its report
	$(BIN)/python examples/demo.py

test: $(STAMP)  ## run the tests
	$(BIN)/python -m pytest -m 'not slow' -n $(WORKERS)

test-portable: $(STAMP)  ## run the tests without the processor's vector instructions, in an order drawn from the commit
	ATEN_CPU_CAPABILITY=default $(BIN)/python -m pytest -m 'not slow' -n $(WORKERS) --order=random:$(ORDER)

test-slow: $(STAMP)  ## run all tests, the slow ones too, and the property tests with three random seeds
	$(BIN)/python -m pytest -m 'not hypothesis' -n $(WORKERS)
	for seed in $(SEEDS); do echo "SEEDS=$$seed"; \
	  $(BIN)/python -m pytest -m hypothesis --hypothesis-profile=random --hypothesis-seed=$$seed || exit 1; done

test-matrix: $(STAMP)  ## run the tests under six settings of processor, threads and order (an hour)
	$(BIN)/python tests/matrix.py -m 'not slow' -n $(WORKERS)

test-versions: $(STAMP)  ## run the tests with the oldest and the newest versions of the dependencies; before a release
	UV_FIND_LINKS="$${UV_FIND_LINKS-$$PIP_FIND_LINKS}" $(BIN)/python tests/versions.py $(SETS) -- -m 'not slow or versions' -n $(WORKERS)

test-wheel: $(STAMP)  ## build the wheel, install it into a clean environment and run the README's first commands there
	$(BIN)/python tests/wheel.py

test-faults: $(STAMP)  ## plant known faults in a copy of the source, one at a time, and see the tests catch them
	$(BIN)/python tests/planted_faults.py

check: $(STAMP)  ## style, types and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/laws/test_imports.py

format: $(STAMP)  ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## measure against the peers, on the CPU
	$(BIN)/python -m benchmarks

clean:  ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .test-matrix .test-versions .test-wheel
