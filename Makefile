# The commands of this repository. Everything runs in one virtual environment, made on first use.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
KNOWN_GOOD := matrix/environments/known-good.txt
INSTALLED := $(VENV)/.installed

export OMP_NUM_THREADS ?= 1
export HF_HUB_DISABLE_TELEMETRY = 1

.PHONY: demo test check test-slow docs wheel clean

demo: $(INSTALLED)
	@PATH="$(CURDIR)/$(BIN):$$PATH" OMP_NUM_THREADS=$$(nproc) bash scripts/demo.sh

test: check
	$(BIN)/python -m pytest -n 2 --dist loadscope -m "not slow and not gpu"

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/quantlab matrix lint

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m "slow and not gpu"

docs: $(INSTALLED)
	$(BIN)/python scripts/generate_docs.py

wheel: $(INSTALLED)
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf demo dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(INSTALLED): pyproject.toml $(KNOWN_GOOD)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint $(KNOWN_GOOD) --editable ".[all,dev]"
	@touch $@
