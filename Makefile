PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

DATA ?= uci

.PHONY: demo test lint types unit examples load without-compiler package wheels bench bench-quick bench-tuning bench-uci transfer probe lander lander-study lander-parts learn figures docs clean

demo: $(INSTALLED)
	$(BIN)/torchkrr transfer digits --backbone digits --layer middle.0 --budgets 30,100,300,all --seeds 3 --out runs/demo

test: lint types unit docs without-compiler package

# One intra-op thread per test process: the processes share the cores. A process takes neighboring tests, which share fixtures.
unit: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

# Those that take a minute too: Ray, and Spark if there is Java.
examples: $(INSTALLED)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "ray[data]" "dask[dataframe]" pyspark
	LONG_EXAMPLES=1 $(BIN)/python -m pytest tests/test_examples.py tests/stores/test_guides.py

# Eight threads that predict from a database while another writes: four minutes, best left alone.
load: $(INSTALLED)
	$(BIN)/python -m tests.stores.load --seconds 120 --threads 8 --out docs/results/stores-load.json

# The package as it is where there is no compiler: installed with none on the PATH, and its tests on the torch path.
BARE := build/without-compiler
without-compiler: $(INSTALLED)
	rm -rf $(BARE) && mkdir -p $(BARE)/source
	tar --exclude='*.so' --exclude='__pycache__' -cf - pyproject.toml setup.py MANIFEST.in README.md LICENSE src | tar -xf - -C $(BARE)/source
	cd $(BARE) && PATH=/nowhere $(abspath $(BIN))/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --target package ./source
	cd $(BARE) && PYTHONPATH=package $(abspath $(BIN))/python -c "import torchkrr; report = torchkrr.backend_report(); \
		print(report); assert 'without-compiler' in torchkrr.__file__ and report.library is None"
	OMP_NUM_THREADS=1 WITHOUT_COMPILER=1 PYTHONPATH=$(BARE)/package $(BIN)/python -m pytest -n auto --dist worksteal -q \
		tests/functional tests/test_identities.py tests/test_oracles.py

# Sdist and wheel, in an empty environment with torch and numpy alone, compiled and not. `wheels` tries every extra too,
# each in an environment of its own, and records what it found.
package: $(INSTALLED)
	$(BIN)/python -m tools.wheels --only core

wheels: $(INSTALLED)
	$(BIN)/python -m tools.wheels --record docs/results/wheels.json

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

# An hour on two cores, best left alone; with FEATURES=file (see benchmarks/search.py) searches among real features too. Peers that cannot be installed are named in the tables.
bench: $(INSTALLED)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.core --out benchmarks/results
	$(BIN)/python -m benchmarks.search --out benchmarks/results $(if $(FEATURES),--features $(FEATURES))
	$(BIN)/python -m benchmarks.peers --out benchmarks/results
	$(BIN)/python -m benchmarks.sharded --out benchmarks/results

# A minute, into runs/bench: the local solve beside plain torch and one matrix product.
bench-quick: $(INSTALLED)
	$(BIN)/python -m benchmarks.core --quick

# Needs the UCI tables: make bench-tuning DATA=folder
bench-tuning: $(INSTALLED)
	$(BIN)/python -m benchmarks.metric --data $(DATA) --out benchmarks/results
	$(BIN)/python -m benchmarks.coverage --data $(DATA) --out benchmarks/results
	$(BIN)/python -m benchmarks.sensitivity --data $(DATA) --out benchmarks/results

# Needs the same: the estimators beside gradient boosting and others. An hour on two cores; it resumes.
bench-uci: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.uci --data $(DATA) --out benchmarks/results
	$(BIN)/python -m benchmarks.table_cost --out benchmarks/results

# Heads on a frozen backbone, CIFAR-10: an hour and a half with the features; WEIGHTS is a folder of weight files. Goes on where it was.
transfer: $(INSTALLED)
	$(BIN)/python -m paper.transfer --weights $(WEIGHTS)
	cp runs/transfer-cifar10/report.md docs/results/transfer-cifar10.md
	cp runs/transfer-cifar10/records.jsonl docs/results/transfer-cifar10.jsonl
	cp runs/transfer-cifar10/figure.png docs/images/transfer-cifar10.png

# Probing two frozen networks at five depths; goes on where it was.
probe: $(INSTALLED)
	$(BIN)/python -m paper.probing --weights $(WEIGHTS)
	for name in vgg16 lite0; do cp runs/probe-$$name/report.md docs/results/probe-$$name.md; \
		cp runs/probe-$$name/records.jsonl docs/results/probe-$$name.jsonl; done
	cp runs/probe-vgg16/figure.png docs/images/probe-vgg16.png
	cp runs/probe-lite0/figure.png docs/images/probe-lite0.png

# The reinforcement learning experiment, one thread for each run: CartPole, LunarLander with ten seeds, and with the last part alone; then its study
# of variants. Both go on where they were.
lander: $(INSTALLED)
	$(BIN)/python -m paper.lander --environment CartPole-v1 --episodes 600 --seeds 2 --stop-when-solved --out runs/cartpole
	$(BIN)/python -m paper.lander --agent both --seeds 10 --episodes 500 --out runs/lander
	$(BIN)/python -m paper.lander --agent dqk --seeds 5 --episodes 500 --parts last --last-learning-rate 0.05 --out runs/lander-last
	for name in cartpole lander lander-last; do \
		for kind in report.md records.jsonl; do cp runs/$$name/$$kind docs/results/$$name.$${kind##*.}; done; done
	cp runs/lander/figure.png docs/images/lander.png
	$(BIN)/python -m paper.lander --watch runs/lander/dqk-seed4.pt --out docs/images/landing.gif

lander-study: $(INSTALLED)
	$(BIN)/python -m paper.lander --study --seeds 3 --episodes 200 --out runs/lander-study
	for kind in report.md records.jsonl; do cp runs/lander-study/$$kind docs/results/lander-study.$${kind##*.}; done

# What kernel parts contribute, of the agents that the two targets above have trained.
lander-parts: $(INSTALLED)
	$(BIN)/python -m benchmarks.q_parts runs/lander/dqk-seed*.pt runs/lander-last/dqk-seed*.pt runs/lander-study/fast-*-seed*.pt

# Two small networks on CIFAR-10, five depths, five seeds, two heads each, then one of them on all images; goes on where it was.
learn: $(INSTALLED)
	for network in vgg-small vit-small; do \
		$(BIN)/python -m paper.learning --dataset cifar10 --network $$network --samples 1000 --seeds 5 --out runs/learn-$$network || exit 1; \
		cp runs/learn-$$network/report.md docs/results/learn-$$network.md; \
		cp runs/learn-$$network/records.jsonl docs/results/learn-$$network.jsonl; \
		done
	$(BIN)/python -m paper.learning --dataset cifar10 --network vit-small --samples all --depths 0 --seeds 1 --epochs 20 --out runs/learn-vit-small-all
	for kind in report.md records.jsonl; do cp runs/learn-vit-small-all/$$kind docs/results/learn-vit-small-all.$${kind##*.}; done
	cp runs/learn-vgg-small/figure.png docs/images/learn-vgg-small.png
	cp runs/learn-vit-small/figure.png docs/images/learn-vit-small.png

# Every picture and number of the documentation.
figures: $(INSTALLED)
	$(BIN)/python docs/figures/make.py --all

# The documentation site, in site/: pictures that are missing or out of date, pages without a warning, a look by a browser.
docs: $(INSTALLED)
	$(BIN)/python docs/figures/make.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean
	SITE=site $(BIN)/python -m pytest -q tests/website

$(INSTALLED): pyproject.toml constraints.txt setup.py $(wildcard src/torchkrr/native/*.h src/torchkrr/native/*.cpp)
	@echo "Setting up $(VENV): torch and the development tools, about 2 GB when installed (more with CUDA). Several minutes."
	$(PYTHON) -m venv $(VENV)
	@echo "Downloading, installing, and compiling the solver; pip says nothing until it is done"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
