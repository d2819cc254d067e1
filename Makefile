# `make demo` and `make test` need Python 3.10 or newer and pip: each makes .venv first, once. `make help` lists the rest.

PYTHON ?= python3
TORCH := 2.13.0
BIN := .venv/bin
# One thread: the tests' tensors are too small for two, which only make their times vary.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest

# What the caller's shell may hold and what would reach into .venv.
unexport PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX PIP_USER

.PHONY: help setup demo test test-long lint types bench
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /make \1\t/p' Makefile

demo: setup ## the three forms agree, how their time grows, and a picture of the matrix (demo/matrix.png)
	$(BIN)/statedual demo

test: lint types ## everything that must hold: lint, types, import contract, tests
	$(PYTEST) -m "not long" -q

test-long: setup ## the tests that need minutes of compute
	$(PYTEST) -m long -q

lint: setup ## style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup ## strict types, and that no lower floor imports a higher one
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup ## speed and memory against the paper's Listing 1, in one run
	$(BIN)/statedual bench

setup: .venv/.installed ## the environment .venv, which every target makes first

# PyTorch comes first, by its exact version: pip takes the CPU build where its configuration offers one. The second
# install names the version again, so that no other package can replace it.
.venv/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "statedual needs Python 3.10 or newer; $(PYTHON) is `$(PYTHON) --version 2>&1`. Try: make PYTHON=python3.12" >&2; exit 1; }
	@echo "[1/3] .venv with `$(PYTHON) --version`"
	@$(PYTHON) -m venv .venv || { \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "[2/3] torch $(TORCH), about 200 MB for its CPU build"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH)
	@echo "[3/3] statedual with its tools"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH) -e '.[dev,hf,plots]'
	@$(BIN)/python -c 'import torch; v = torch.__version__; assert v.split("+")[0] == "$(TORCH)", v; \
	  print("torch", v, "(CPU build)" if torch.version.cuda is None else "(CUDA build: pip found no CPU build)")'
	@touch $@
