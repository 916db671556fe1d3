# make run    set everything up and train LeNet-5 on real MNIST images at 99.9 % sparsity
# make test   set everything up and run the tests
# make test-all   the same with the long form of some, as CI does
# make fuzz   feed every parser and decoder new bad input, at least 100,000 cases (FUZZ_ARGS: more for pytest)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUN_DIR ?= runs/quickstart
IMAGE ?= ggs:latest
IMAGE_ARGS ?=
FUZZ_ARGS ?=

.PHONY: setup run test test-all fuzz lint format image clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("GGS needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	# compat: a plain path; the default finder loses to a folder named like the package beside a script
	$(BIN)/python -m pip install --quiet --editable '.[dev]' --config-settings editable_mode=compat
	touch $@

run: setup
	$(BIN)/python entrypoint.py --config examples/quickstart.yaml --run-dir $(RUN_DIR) --overwrite

test: setup
	$(BIN)/python -m pytest -m "not full" --numprocesses 2 --dist worksteal

test-all: setup
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

fuzz: setup
	$(BIN)/python -m pytest -m fuzz --hypothesis-profile nightly --least-cases 100000 \
		--numprocesses 2 --dist worksteal --timeout 3600 $(FUZZ_ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

image:
	docker build -f docker/Dockerfile -t $(IMAGE) $(IMAGE_ARGS) .

clean:
	rm -rf $(VENV) runs build dist *.egg-info
