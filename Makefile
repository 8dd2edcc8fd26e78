# Two commands do everything: `make quickstart` (install, compare, report) and `make test`.
# PYTHON may name another interpreter (3.11 to 3.13): make quickstart PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
QUICKSTART := runs/quickstart
PYTEST_FLAGS ?=

.DEFAULT_GOAL := help
.PHONY: help install quickstart browser test test-fast test-long quality style benchmark readme docs clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# The stamp is written last, so an interrupted installation is made again instead of being taken for a finished one.
$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else f"hf-semfocus needs Python 3.11 to 3.13; $(PYTHON) is {v.major}.{v.minor}: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

# Other implementations of sparse attention, to measure beside ours: nothing else needs them.
$(VENV)/bench-installed: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,bench]'
	@touch $@

install: $(VENV)/installed  ## make .venv with the tested versions

quickstart: install  ## the main job at a reduced size: table on the terminal, report in runs/quickstart
	$(BIN)/semfocus compare --preset quickstart --output $(QUICKSTART)

browser: install  ## a Chromium for the tests of the report, which are skipped without one
	command -v chromium || timeout 300 $(BIN)/playwright install chromium || apt-get install -y -q chromium || echo "no Chromium: tests of the report in a browser are skipped"

test: install  ## the whole test suite
	$(BIN)/pytest -n 2 $(PYTEST_FLAGS)

test-fast: install  ## the test suite without the tests marked slow
	$(BIN)/pytest -n 2 -m 'not slow and not long' $(PYTEST_FLAGS)

test-long: install  ## every pair of class and mask that compile or export, and what trains longest, a few minutes
	$(BIN)/pytest -n 2 -m long $(PYTEST_FLAGS)

quality: install  ## lint, format check, import layers and types, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

style: install  ## format and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(VENV)/bench-installed  ## what attention costs, what masks cost in a model, `semfocus train` over a bare loop, rows of data a second
	@mkdir -p runs
	OMP_NUM_THREADS=1 $(BIN)/python recipes/benchmarks/model_cost.py > runs/cost.txt
	OMP_NUM_THREADS=1 $(BIN)/python recipes/benchmarks/step_bound.py >> runs/cost.txt
	OMP_NUM_THREADS=1 $(BIN)/python recipes/benchmarks/step_bound.py --profile >> runs/cost.txt
	OMP_NUM_THREADS=1 $(BIN)/python recipes/benchmarks/step_before.py > runs/step_before.txt
	OMP_NUM_THREADS=1 COLUMNS=100 $(BIN)/semfocus bench data > runs/data.txt
	COLUMNS=100 $(BIN)/semfocus bench attention --output runs/attention
	COLUMNS=100 $(BIN)/semfocus bench attention --profile topk:32 4x2048 --output runs/attention
	@cat runs/cost.txt runs/step_before.txt runs/data.txt

readme: install  ## the figures of README and docs/, and model_cards/, from the last quickstart and benchmark
	$(BIN)/python -m recipes.reproduction.readme $(QUICKSTART) --cost runs/cost.txt --data runs/data.txt --attention runs/attention
	$(BIN)/semfocus card $(QUICKSTART) --output model_cards

docs: install  ## guides and API reference in docs/_build/html; a broken reference is an error
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/sphinx-build -q -W --keep-going docs docs/_build/html

clean:  ## remove the environment and the quickstart's run directory
	rm -rf $(VENV) $(QUICKSTART)
