# Two commands matter: `make demo` and `make test`. Both make .venv on their own.
PYTHON ?= python3
BIN := .venv/bin
# Modules are compiled when they are first imported: to compile all would take longer than the rest of the installation.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable
# Where this is set, every process would compile all modules that it imports anew, which doubles the time of an import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint tests test-long bench notebooks gallery docs release clean

demo: .venv/.runtime
	$(BIN)/peerdescent compare --config examples/demo.toml --out demo
	@echo "open $$($(BIN)/peerdescent report demo) in a browser"

test:
	@$(MAKE) --no-print-directory --jobs 2 .venv/.developer .venv/.browser
	@$(MAKE) --no-print-directory --jobs 2 lint tests

lint: .venv/.developer
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

tests: .venv/.developer .venv/.browser
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# The same tests with random examples, which `make test` draws alike every time, and many more of them.
test-long: .venv/.developer .venv/.browser
	HYPOTHESIS_PROFILE=random $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --timeout 3600

# Measures the tables of docs/performance.md again and prints which steps are slower than in the committed table.
bench: .venv/.runtime
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/faults.py

# Runs the notebooks and stores what they show, and makes the pictures of docs/gallery.md.
notebooks: .venv/.developer
	cd examples/notebooks && ../../$(BIN)/python -c "import sys, nbformat, nbclient; \
	  [nbformat.write(nbclient.execute(nbformat.read(path, 4), record_timing=False), path) for path in sys.argv[1:]]" *.ipynb

gallery: .venv/.developer
	cd docs && PYTHONPATH=../src:../tests:../tests/docs ../$(BIN)/python -c "import test_docs; test_docs.run(test_docs.ROOT / 'docs/gallery.md')"

docs: .venv/.developer
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

# Everything up to the upload, which a person does: docs/releasing.md.
release: test .venv/.release
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	DIST=dist $(BIN)/python -m pytest -q tests/release
	@ls -l dist

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "peerdescent needs Python 3.11 or later: set PYTHON=/path/to/python3"; exit 1; }
	@echo "installing into .venv (a minute or two the first time)"
	$(PYTHON) -m venv .venv

.venv/.runtime: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) '.[report]'
	@touch $@

.venv/.developer: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) '.[dev,docs]'
	@touch .venv/.runtime $@

.venv/.browser: .venv/bin/python tests/browser/setup.sh tests/browser/package-lock.json
	@bash tests/browser/setup.sh
	@touch $@

.venv/.release: .venv/.developer
	$(INSTALL) '.[release]'
	@touch $@

clean:
	rm -rf .venv build demo dist docs/_build src/*.egg-info tests/browser/node_modules
