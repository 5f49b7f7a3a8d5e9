PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

DATA ?= uci

.PHONY: demo test lint types unit bench bench-tuning figures clean

demo: $(INSTALLED)
	$(BIN)/python examples/digits.py --out runs/demo

test: lint types unit

# One intra-op thread per test process: the processes share the cores.
unit: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.core --out benchmarks/results

# Needs the UCI tables: make bench-tuning DATA=folder
bench-tuning: $(INSTALLED)
	$(BIN)/python -m benchmarks.metric --data $(DATA) --out benchmarks/results
	$(BIN)/python -m benchmarks.coverage --data $(DATA) --out benchmarks/results
	$(BIN)/python -m benchmarks.sensitivity --data $(DATA) --out benchmarks/results

# Every picture and number of the documentation.
figures: $(INSTALLED)
	for script in $(filter-out docs/figures/style.py,$(wildcard docs/figures/*.py)); do $(BIN)/python $$script || exit 1; done
	$(BIN)/python examples/spread_centers.py --out runs/spread_centers
	cp runs/spread_centers/spread_centers.png docs/images/
	cp runs/spread_centers/spread_centers.json docs/results/

$(INSTALLED): pyproject.toml constraints.txt setup.py $(wildcard src/torchkrr/core/native/*.h src/torchkrr/core/native/*.cpp)
	@echo "Setting up $(VENV); this takes a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
