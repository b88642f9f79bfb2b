# Everything from a clean clone: each target first makes the virtual environment it needs.
#   make demo    the whole path on a sample video, with numbers
#   make test    the test suite, two files at a time; ARGS="-k name" goes to pytest (ARGS="-n 0": one)
#   make soak    kills processes at every labelled step, N=1000 of them: docs/faults.md
#   make verify  the protocol's model, all of it: minutes, and several GB of memory
#   make bench   the benchmarks; ARGS=--json for JSON
#   make lint    ruff, mypy --strict, pyright
#   make clean   removes what these made, except downloads in the user's cache

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
N ?= 1000

bin := $(VENV)/bin
stamp := $(VENV)/installed
sources := $(wildcard native/include/*.h native/src/*.[ch] native/src/*/*.[ch])
benches := stream readers streams serving naive_mcp mcp prepare writing decode leaks chaos

.PHONY: demo test soak verify bench lint install clean

demo: $(stamp)
	@$(bin)/mcpd demo $(ARGS)

# A file's tests stay in one process, for they share daemons and programs; files begin in order.
# What else stays together: tests/conftest.py.
test: $(stamp)
	@$(bin)/python -P -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

soak: $(stamp)
	@$(bin)/python -m tests.faults.soak --kills $(N) $(ARGS)

verify: $(stamp)
	@$(bin)/python -m tests.model.verify $(ARGS)

bench: $(stamp)
	@set -e; for name in $(benches); do $(bin)/python -m bench.$$name $(ARGS); echo; done

lint: $(stamp)
	@$(bin)/ruff check .
	@$(bin)/ruff format --check -q .
	@$(bin)/mypy --strict
	@$(bin)/pyright --pythonpath $(bin)/python

install: $(stamp)

# The extension is compiled into the tree, so a change of its sources installs again.
$(stamp): pyproject.toml $(sources)
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) is missing: apt-get install python3 (3.11 or newer)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$$($(PYTHON) -V) is too old: 3.11 or newer is needed, make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "venv is missing: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; \
	  sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || { \
	  echo "Python.h is missing: apt-get install python3-dev" >&2; exit 1; }
	@command -v $${CC:-gcc} >/dev/null || { \
	  echo "the C compiler $${CC:-gcc} is missing: apt-get install gcc libc6-dev" >&2; exit 1; }
	@echo "installing into $(VENV), once"
	@test -x $(bin)/python || $(PYTHON) -m venv $(VENV)
	@$(bin)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info native/tests/build .pytest_cache .mypy_cache .ruff_cache \
	  .hypothesis mcpd-demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f native/*.so
