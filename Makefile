# Everything runs in a virtual environment of its own, made from the pinned versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/made-from-constraints

.PHONY: venv demo test test-all cluster-test check format bench chaos clean

venv: $(READY)

# Bytecode is made here, on all cores: where PYTHONDONTWRITEBYTECODE is set, every process of Ray would compile everything again.
$(READY): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --requirement constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib iddpm_ray || true
	@touch $@

demo: $(READY)
	$(BIN)/python jobs/demo.py

test: $(READY)
	$(BIN)/python -m pytest tests/parity
	$(BIN)/python -m pytest -m "not slow" --ignore tests/parity -n 2 --dist loadfile

test-all: test
	$(BIN)/python -m pytest -m slow

cluster-test: $(READY)
	$(BIN)/python -m pytest -s tests/localkube
	$(BIN)/python -m pytest -s -m slow tests/kube/test_image.py tests/runtime/test_submit.py tests/runtime/test_preflight.py

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/test_layers.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python tests/bench/bench.py --write docs/benchmarks.md

chaos: $(READY)
	$(BIN)/python tests/chaos.py --kills 60 --write docs/chaos.md

clean:
	rm -rf demo build iddpm_ray.egg-info .pytest_cache .ruff_cache
	find iddpm_ray jobs tests -name __pycache__ -type d -prune -exec rm -rf {} +
