# Two commands do everything: `make demo` and `make test`. Both set up .venv first; nothing else is needed but Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test benchmark docs qgis browser clean

demo: $(VENV)/.demo
	$(BIN)/hyperfuse demo
	@echo "look at it: $(BIN)/hyperfuse view demo/fused.tif --hsi demo/hsi.tif --msi demo/msi.tif --reference demo/reference.tif"

test: $(VENV)/.dev browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

# The notebooks are executed first, so that their pages show results; the site loads nothing from elsewhere.
docs: $(VENV)/.dev
	mkdir -p build/notebooks
	for source in notebooks/*.py; do $(BIN)/jupytext --quiet --to ipynb --set-kernel python3 \
	  --output build/notebooks/$$(basename $$source .py).ipynb $$source || exit 1; done
	$(BIN)/jupyter execute --inplace build/notebooks/*.ipynb
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html; with search: $(BIN)/python -m http.server -d site"

# The plug-in for QGIS: Plugins > Manage and Install Plugins > Install from ZIP.
DIST ?= dist
qgis:
	mkdir -p $(DIST)
	rm -rf build/hyperfuse_qgis && mkdir -p build/hyperfuse_qgis
	cp integrations/qgis/hyperfuse_qgis/*.* LICENSE build/hyperfuse_qgis
	$(PYTHON) -m zipfile -c $(DIST)/hyperfuse_qgis.zip build/hyperfuse_qgis
	@echo "$(DIST)/hyperfuse_qgis.zip"

benchmark: $(VENV)/.dev
	$(BIN)/pytest benchmarks --benchmark-enable
	$(BIN)/python benchmarks/throughput.py ratios

# The page is tested in Debian's chromium, which is installed where that is possible; elsewhere those tests are skipped and say so.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null && export DEBIAN_FRONTEND=noninteractive && \
	  { timeout 300 apt-get install -qq -y --no-install-recommends chromium || \
	    { timeout 120 apt-get update -qq && timeout 300 apt-get install -qq -y --no-install-recommends chromium; }; } >/dev/null 2>&1; } || \
	echo "no chromium here and none to be installed: the browser tests will be skipped"

# Where PYTHONDONTWRITEBYTECODE is set, as in many containers, every command would compile the package anew.
COMPILED := hatch_build.py src/hyperfuse/compiled.c

$(VENV)/.demo: pyproject.toml constraints.txt $(COMPILED) | $(BIN)/python
	$(BIN)/pip install -c constraints.txt -e '.[demo,view]'
	$(BIN)/python -m compileall -q src/hyperfuse
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(COMPILED) | $(BIN)/python
	$(BIN)/pip install -c constraints.txt -e '.[dev]'
	$(BIN)/python -m compileall -q src/hyperfuse
	touch $@ $(VENV)/.demo

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) demo build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
