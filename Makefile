# One command per task.  Every target makes the environment it needs, in .venv, by itself.
#
#   PYTHON=python3.12 make demo     another interpreter (3.11 or newer)
#   WORKERS=4 make test             more test processes
#   TORCH=torch==2.13.0 make demo   whatever build of torch pip finds, also the large one for GPUs

PYTHON  ?= python3
WORKERS ?= 2

# The build of torch without CUDA is called 2.13.0+cpu on Linux, and plain 2.13.0 elsewhere.  It is
# asked for by its full name: where pip cannot find it, it downloads nothing rather than gigabytes.
TORCH ?= $(shell sed -n 's/^\(torch==[^ ]*\).*/\1/p' constraints.txt)$(if $(filter Linux,$(shell uname -s)),+cpu)

VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
OLDEST := .venv-oldest
AIM := .venv-aim
DEMO := $(VENV)/.demo
FRONT := $(VENV)/.front
TEST := $(VENV)/.test
DOCS := $(VENV)/.docs
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
TOGETHER := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Other files are not collected again: that takes half a minute, and one core of two is idle then.
ALONE = $(shell grep -rl 'pytest\.mark\.alone' tests --include='test_*.py')
QUICKSTART := notebooks/quickstart.ipynb
INSTALLED := $(VENV)/share/jupyter/labextensions/nbmgpu
WATCHED := build/labextensions
JLPM := cd labextension && PATH="$(CURDIR)/$(BIN):$$PATH" jlpm

.DEFAULT_GOAL := help
.PHONY: help demo lab env front watch docs docs-serve test test-oldest test-aim test-all matrix check format bench chromium slurm clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(DEMO)  ## run the quickstart notebook and print its result
	@$(BIN)/python tools/demo.py $(QUICKSTART) build/quickstart.ipynb

lab: $(DEMO) $(FRONT)  ## open the quickstart notebook in JupyterLab
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/$(QUICKSTART) \
		--LabApp.extra_labextensions_path=$(CURDIR)/$(WATCHED) \
		$(if $(filter 0,$(shell id -u)),--allow-root)

env: $(TEST) $(FRONT)  ## make the environment for development

front: $(FRONT)  ## build the front end: run panel, picker, JupyterLab's plugins (needs Node.js)

watch: $(FRONT)  ## rebuild the front end on every change; `make lab` and a reload show it
	@mkdir -p $(WATCHED)
	@ln -sfn $(CURDIR)/nbmgpu/labextension $(WATCHED)/nbmgpu
	@trap 'rm -f $(WATCHED)/nbmgpu' EXIT; $(JLPM) watch

docs: $(DOCS)  ## build the documentation site into build/site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Open build/site/index.html; its search needs a server: make docs-serve"

docs-serve: $(DOCS)  ## show the site at http://127.0.0.1:8000, and rebuild it on every change
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

test: $(TEST) $(FRONT) chromium slurm  ## run the tests, without the matrix (15 minutes on two cores)
	$(JLPM) test
	$(BIN)/python -m pytest $(TOGETHER) -m "not matrix and not alone"
	$(BIN)/python -m pytest -m "alone and not matrix" $(ALONE)

test-all: test matrix  ## run every test, with all combinations (another four hours)

# MATRIXFLAGS=--matrix-minutes=20 runs a part: see tests/conftest.py.
matrix: $(TEST) $(FRONT)
	$(BIN)/python -m pytest tests $(TOGETHER) -m "matrix and not alone" $(MATRIXFLAGS)
	$(if $(MATRIXFLAGS),,$(BIN)/python -m pytest -m "matrix and alone" $(ALONE))

# Environments that differ from .venv in what is installed on top of it.
define other_environment
	test -d $(1) || $(BIN)/python -m venv $(1)
	$(1)/bin/python -m pip --disable-pip-version-check install -qq $(2)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> $$($(1)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/others.pth
endef

test-oldest: $(TEST)  ## run tests of the kernel with IPython, ipykernel and ipywidgets as old as in Colab
	$(call other_environment,$(OLDEST),ipython==7.34.0 ipykernel==6.17.1 ipywidgets==7.7.1 'setuptools<81')
	PYTHONPATH=$(CURDIR) $(OLDEST)/bin/python -m pytest -W default -m "not matrix" -p no:xdist \
		tests/kernel/test_extension_loading.py tests/kernel/test_tutorial.py tests/kernel/test_cell_output.py

test-aim: $(TEST)  ## run the tests of Aim, which needs older versions of other packages
	$(call other_environment,$(AIM),aim==3.29.1 'setuptools<81')
	PYTHONPATH=$(CURDIR) $(AIM)/bin/python -m pytest -W default -p no:xdist tests/kernel/test_aim.py

check: $(TEST) $(FRONT)  ## lint and check types
	$(JLPM) check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(TEST) $(FRONT)  ## fix what can be fixed: layout, imports, outputs in notebooks
	$(BIN)/python tools/typescript_types.py
	$(JLPM) format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/jupyter nbconvert --log-level=WARN --clear-output --inplace notebooks/*.ipynb

# The other tools have their own environment: they pin versions and patch libraries.
bench: $(BENCH)  ## measure against other tools, and renew benchmarks/RESULTS.md (about an hour; a quiet machine)
	$(BENCH)/bin/python -m benchmarks $(or $(strip $(BENCHFLAGS)),--write)

$(BENCH): constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install -qq --constraint constraints.txt "$(TORCH)"
	SKIP_JUPYTER_BUILDER=1 $(BENCH)/bin/python -m pip install -qq --constraint constraints.txt \
		--editable . -r benchmarks/requirements.txt
	@touch $(BENCH)

# Tests of clusters run a Slurm of their own.  As with Chromium, they are skipped where it cannot be had.
slurm:
	@command -v slurmctld >/dev/null || test -x /usr/sbin/slurmctld || { test "$$(id -u)" = 0 \
		&& command -v apt-get >/dev/null && echo "Installing Slurm for the tests of clusters" \
		&& apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge; } \
		|| echo "No Slurm: its tests are skipped. To run them too: sudo apt-get install slurm-wlm munge"

# Browser tests drive the system's Chromium.  Where it can be had, it is installed; where it cannot,
# those tests are skipped.
chromium:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& echo "Installing Chromium for the browser tests" \
		&& apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } \
		|| echo "No Chromium: browser tests are skipped. To run them too: sudo apt-get install chromium"

clean:  ## remove everything that was made
	rm -rf $(VENV) $(BENCH) $(OLDEST) build dist .mypy_cache .pytest_cache .ruff_cache
	rm -rf nbmgpu/labextension nbmgpu/ui/static labextension/lib labextension/node_modules

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Development needs Python 3.11 or newer. Try: PYTHON=python3.12 make"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(DEMO): constraints.txt pyproject.toml | $(BIN)/python
	@echo "Installing torch, then JupyterLab and what the notebook uses: about two minutes, once"
	@$(PIP) install -qq --constraint constraints.txt "$(TORCH)" || { printf '%s\n' \
		"$(TORCH) could not be installed." \
		"If pip knows no such build (it reports conflicts), either say where torch's CPU builds are" \
		"  PIP_EXTRA_INDEX_URL=<the address for CPU on https://pytorch.org/get-started/locally/> make demo" \
		"or, on a machine with GPUs, take the build with CUDA (some gigabytes)" \
		"  TORCH=$(TORCH:+cpu=) make demo"; exit 1; }
	SKIP_JUPYTER_BUILDER=1 $(PIP) install -qq --constraint constraints.txt --editable ".[demo]"
	@touch $@

$(TEST): $(DEMO)
	SKIP_JUPYTER_BUILDER=1 $(PIP) install -qq --constraint constraints.txt --editable ".[test]"
	@touch $@

$(DOCS): $(DEMO)
	SKIP_JUPYTER_BUILDER=1 $(PIP) install -qq --constraint constraints.txt --editable ".[docs]"
	@touch $@

# The build is copied into the environment, as pip does it: a link there would let pip write into,
# and delete from, the source tree.  To see changes at once, use `make watch` and `make lab`.
$(FRONT): $(shell find labextension/src labextension/style labextension/schema -type f) \
		labextension/package.json labextension/yarn.lock Makefile | $(DEMO)
	@command -v node >/dev/null || { echo "The front end is built with Node.js 20 or newer."; exit 1; }
	@echo "Building the front end: two minutes the first time"
	@mkdir -p build
	@$(JLPM) install --immutable >../build/front.log 2>&1 || { cat ../build/front.log; exit 1; }
	@$(JLPM) build >../build/front.log 2>&1 || { cat ../build/front.log; exit 1; }
	@rm -rf $(INSTALLED)
	@mkdir -p $(INSTALLED)
	@cp -R nbmgpu/labextension/package.json nbmgpu/labextension/schemas nbmgpu/labextension/static \
		labextension/install.json $(INSTALLED)
	@touch $@
