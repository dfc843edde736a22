# Two commands matter: `make demo` and `make test`. Both make .venv on their own.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: demo test lint tests test-long bench docs clean

demo: .venv/.runtime
	$(BIN)/peerdescent compare --config examples/demo.toml --out demo
	@echo "open $$($(BIN)/peerdescent report demo) in a browser"

test: .venv/.developer
	@$(MAKE) --no-print-directory --jobs 2 lint tests
	$(BIN)/python benchmarks/step.py --check

lint: .venv/.developer
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

tests: .venv/.developer
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# The same tests with random examples, which `make test` draws alike every time, and many more of them.
test-long: .venv/.developer
	HYPOTHESIS_PROFILE=random $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --timeout 3600

bench: .venv/.runtime
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/faults.py

docs: .venv/.developer
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

.venv/.runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "peerdescent needs Python 3.11 or later: set PYTHON=/path/to/python3"; exit 1; }
	@echo "installing into .venv (a minute or two the first time)"
	$(PYTHON) -m venv .venv
	$(INSTALL) .
	@touch $@

.venv/.developer: .venv/.runtime
	$(INSTALL) '.[dev,docs]'
	@bash tests/browser/setup.sh
	@touch $@

clean:
	rm -rf .venv build demo docs/_build src/*.egg-info tests/browser/node_modules
