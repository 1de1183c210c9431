# Needs Python 3.11 or newer, make and a package index; nothing else. Everything is installed into
# .venv, from envs/requirements.lock, by the first target that needs it.

SHELL := /bin/sh
.DEFAULT_GOAL := help

PYTHON ?= python3
CORES ?= all
RESULTS ?= results
PORT ?= 5000
PIECE ?= core
ARGS ?=

BIN := .venv/bin
READY := .venv/.ready
IN_ENV := PATH="$(CURDIR)/$(BIN):$$PATH"
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock" $(ARGS)

# Containers often forbid Python to keep what it has compiled. Each of hundreds of processes would
# then compile the suite again.
unexport PYTHONDONTWRITEBYTECODE

export UV_HTTP_TIMEOUT ?= 300
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## Print this list
	@echo "clipnoise: a benchmark suite for differentially private optimizers"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r name what; do \
		printf '%-27s%s\n' "$$name" "$$what"; done
	@echo
	@echo "PYTHON=python3.12 chooses the interpreter, CORES=4 how many jobs run at once, ARGS=\"…\""
	@echo "adds options to the tool behind a target: make test ARGS=\"-k replay\"."

.PHONY: quickstart
quickstart: $(READY) ## Run the embedded study, from digits to reports/quickstart/report.pdf
	@$(IN_ENV) snakemake --cores $(CORES) $(ARGS)

# One process more would fill the waits for a browser or a clock, but import everything once more.
.PHONY: test
test: $(READY) ## Run the tests (ARGS="-m ''" for the long ones, too)
	@$(IN_ENV) OMP_NUM_THREADS=1 python -m pytest -m "not long" --dist loadfile --no-loadscope-reorder \
		-n $$(getconf _NPROCESSORS_ONLN) $(ARGS)

.PHONY: lint
lint: $(READY) ## Check style, types and the workflow's form
	@$(IN_ENV) ruff check .
	@$(IN_ENV) ruff format --check .
	@$(IN_ENV) snakefmt --check Snakefile workflow
	@$(IN_ENV) mypy
	@$(IN_ENV) snakemake --lint

.PHONY: benchmark
benchmark: $(READY) ## Time clipped sums against Opacus, into benchmarks/results/
	@$(IN_ENV) python benchmarks/speed.py $(ARGS)

.PHONY: cost
cost: $(READY) ## Count the papers' runs and estimate their GPU hours
	@$(IN_ENV) python benchmarks/papers.py $(ARGS)

.PHONY: scale
scale: $(READY) ## Measure how planning and collecting grow with the number of runs
	@$(IN_ENV) python benchmarks/scale.py $(ARGS)

.PHONY: libraries
libraries: $(READY) ## Judge training loops of DP libraries, into docs/libraries.md
	@$(IN_ENV) python benchmarks/libraries/judge_libraries.py $(ARGS)

# mutmut and its dependencies are added to those of .venv for this call alone.
.PHONY: mutants
mutants: $(READY) ## See which small changes of the code no test notices (PIECE=core)
	@$(IN_ENV) uv run --quiet --no-project --with mutmut==3.8.1 \
		python benchmarks/mutants.py $(PIECE) $(ARGS)

.PHONY: mlflow
mlflow: $(READY) ## Browse the runs, those that train among them, on 127.0.0.1 (PORT=5000)
	@$(IN_ENV) exec clipnoise mlflow-ui --results "$(RESULTS)" --port $(PORT) $(ARGS)

.PHONY: site
site: $(READY) ## Build the documentation as a site, into site/
	@$(IN_ENV) clipnoise --markdown docs/commands.md
	@$(IN_ENV) zensical build --strict --clean $(ARGS)

.PHONY: pages
pages: $(READY) ## Write the pages that are made from the code, and the recipes made from the lock
	@$(IN_ENV) clipnoise methods --markdown docs/methods.md
	@$(IN_ENV) clipnoise models --markdown docs/models.md
	@$(IN_ENV) clipnoise samplers --markdown docs/samplers.md
	@$(IN_ENV) clipnoise data list --markdown docs/datasets.md
	@$(IN_ENV) clipnoise papers --markdown docs/papers
	@$(IN_ENV) clipnoise report-items --markdown docs/study-keys.md
	@$(IN_ENV) python envs/generate.py

.PHONY: doctor
doctor: $(READY) ## Show what this machine has, and what to do about what it lacks
	@$(IN_ENV) clipnoise doctor

.PHONY: lock
lock: $(READY) ## Pin every package again and rewrite what is made from the pins (ARGS=--upgrade)
	$(COMPILE) pyproject.toml --all-extras -o envs/requirements.lock
	$(COMPILE) --group pyproject.toml:installer -o envs/installer.lock
	$(BIN)/python envs/generate.py

.PHONY: audit-dependencies
audit-dependencies: $(READY) ## Ask an advisory service about every locked package
	@$(IN_ENV) python envs/audit.py $(ARGS)

.PHONY: environment
environment: $(READY) ## Build .venv, or bring it up to date

.PHONY: clean
clean: ## Remove the environment and the tools' caches; results and reports stay
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .mutants
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so that an interrupted installation is repeated from the start.
# uv installs everything but itself: it takes packages from the index only, whereas pip may be
# configured to prefer files on a local disk.
$(READY): envs/requirements.lock envs/installer.lock pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "$(PYTHON): not found. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; \
		exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$$("$(PYTHON)" --version) is too old: Python 3.11 or newer is needed. Name one: make PYTHON=/path/to/python3.12" >&2; \
		exit 2; }
	@test -f $@ || "$(PYTHON)" -m venv --clear .venv || { \
		echo "Python's venv module is incomplete. On Debian and Ubuntu: apt-get install python3-venv" >&2; \
		exit 2; }
	@echo "Installing the environment into .venv (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --require-hashes -r envs/installer.lock
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes --compile-bytecode \
		--build-constraints envs/requirements.lock envs/requirements.lock || { \
		echo "The packages did not install. Python 3.11 to 3.13 need no compiler; a newer one may." >&2; \
		exit 1; }
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@
