# Everything here needs python3 (3.11 or newer), pip and make; the rest is installed into .venv
# from a lock on first use: a few packages for `make demo`, all of them for every other target.
# `make help` lists the targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LOCK   := requirements/dev.txt
SMALL  := requirements/demo.txt
PIP    := $(BIN)/python -m pip --disable-pip-version-check --no-input

# Three stamps: what the demo needs; all locked packages, which change rarely; the editable install
# of this package.
DEMO   := $(VENV)/.demo
LOCKED := $(VENV)/.locked
READY  := $(VENV)/.ready

# Tests start hundreds of processes. Without bytecode each of them compiles the whole package, which
# takes longer than its work.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo docs studio screenshots bench-studio demo-postgres demo-cluster test frameworks adapters quick shaky mutants check format torture bench dist dist-check licences venv lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(DEMO) ## An agent asks, is killed, goes on and moves: nothing is lost or done twice
	@PYTHONPATH=src $(BIN)/python examples/demo.py

STORE ?= limpet-demo/office.db
studio: $(READY) ## Look at what the demo left in a browser, or at another store (STORE=support.db)
	@$(BIN)/limpet studio $(STORE)

demo-postgres: $(READY) ## The same on a PostgreSQL server, which is stopped and crashed as well
	@$(BIN)/python examples/demo_postgres.py

demo-cluster: $(READY) ## Three servers: the primary is killed under load, and nothing acknowledged is lost
	@$(BIN)/python examples/demo_cluster.py

# With `auto` a worker more than there are cores: see tests/conftest.py.
test: $(READY) ## Run every test that needs no agent framework, on every core
	@$(BIN)/python -m pytest --numprocesses auto --dist worksteal --ignore tests/adapters; code=$$?; \
	echo 'Left out: suites with agent frameworks or a browser (make adapters), long ones (make torture).'; \
	exit $$code

quick: $(READY) ## Under half a minute: what needs neither a file nor a server
	LIMPET_QUICK=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal -m quick

screenshots: $(READY) ## Take the pictures of docs/studio.md; needs `make frameworks` and a Chromium
	PYTHONPATH=src:. .venv-browser/bin/python -m tests.support.studio_screenshots docs/images

bench-studio: $(READY) ## Measure the studio in a browser; needs `make frameworks` and a Chromium
	PYTHONPATH=src:. .venv-browser/bin/python -m bench.studio

frameworks: $(READY) ## Install the agent frameworks, each in an environment of its own
	$(BIN)/python -m tests.support.venvs

# With ANY=1 the suites of those that could be installed run, and the others are listed as skipped.
adapters: $(READY) ## Install the agent frameworks and test the adapters with them
	$(BIN)/python -m tests.support.venvs || [ -n "$(ANY)" ]
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal tests/adapters

check: $(READY) ## Lint, formatting, types, layers, cycles, names; prints the shape of the package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q --numprocesses 0 tests/unit/test_cycles.py tests/unit/test_house.py tests/unit/test_docstrings.py
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src
	-@$(BIN)/python -m tools.shape

format: $(READY) ## Rewrite the code as `make check` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

torture: $(READY) ## Run the tests that take minutes, on fresh seeds: hundreds of kills
	LIMPET_SEED=$${LIMPET_SEED:-fresh} $(BIN)/python -m pytest -m "torture or deeper" -o faulthandler_timeout=3600

shaky: $(READY) ## Run the tests on a machine that stands still at the wrong moments
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -p tests.support.shaky

mutants: $(READY) ## Break guarded modules a line at a time; list what no test noticed (ONLY="fold plan")
	$(BIN)/python -m mutants $(if $(ONLY),--only $(ONLY))

bench: $(READY) ## Measure, beside the raw limit, in one run
	$(BIN)/python -m bench

dist: $(READY) ## Build the wheel, the sdist and the bill of materials: the same bytes everywhere
	$(BIN)/python -m tools.dist

dist-check: dist ## Install the wheel in new environments: every Python here, every extra alone
	$(BIN)/python -m tools.dist_check

licences: $(READY) ## List the licence of every package that an extra may bring
	@$(BIN)/python -m tools.licences

venv: $(READY) ## Only set up .venv

define check_python
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "limpet needs Python 3.11 or newer; name one: make PYTHON=python3.11 …")'
endef

# The demo runs from src, so nothing is built. Wheels only, and none is compiled ahead of use: most
# of what they bring is never imported. To put pip into .venv takes longer than all of this, so the
# pip of $(PYTHON) is used; one before 22.3 cannot install for another Python.
$(DEMO): $(SMALL)
	$(check_python)
	$(PYTHON) -m venv --clear --without-pip $(VENV)
	@$(PYTHON) -m pip --python $(BIN)/python --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@if [ -x $(BIN)/pip ]; then pip='$(PIP)'; else pip='$(PYTHON) -m pip --python $(BIN)/python'; fi; \
	set -x; $$pip install --quiet --disable-pip-version-check --no-input --require-hashes --no-deps \
		--only-binary :all: --no-compile -r $(SMALL)
	@touch $@

# A changed lock rebuilds the environment from nothing: what left the lock leaves .venv too. The
# demo's packages are among these, in the same versions.
$(LOCKED): $(LOCK)
	$(check_python)
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet --require-hashes -r $(LOCK)
	@touch $(DEMO) $@

# No dependencies and no build isolation: nothing is installed that the lock does not name.
# `pip check` then fails if the lock lacks something that pyproject.toml asks for.
$(READY): pyproject.toml $(LOCKED)
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@$(PIP) check
	@touch $@

# Its own environment, so that the resolver is not among the packages it locks.
# --no-config and the cleared environment keep one machine's settings out of everybody's lock.
UV_VERSION := 0.13.7
COMPILE := env -u UV_INDEX -u UV_DEFAULT_INDEX -u UV_INDEX_URL -u UV_EXTRA_INDEX_URL -u UV_FIND_LINKS \
	.venv-lock/bin/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	--upgrade --quiet --no-config --no-header --no-emit-index-url --no-emit-find-links
docs: .venv-docs/lock.sha256 ## Build the documentation site into build/site, without a network
	.venv-docs/bin/python -m tools.site

# The packages are fetched once; later builds need no network.
.venv-docs/lock.sha256: requirements/docs.txt
	$(PYTHON) -m tests.support.venvs docs

lock: ## Resolve the newest versions that pyproject.toml allows into the locks
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip --disable-pip-version-check install --quiet uv==$(UV_VERSION)
	$(COMPILE) --extra cli --extra otel --extra postgres --extra protobuf --extra state --group dev -o $(LOCK)
	$(COMPILE) --group demo --constraint $(LOCK) --no-annotate -o $(SMALL)
	$(COMPILE) --extra all --extra parquet --extra pkcs11 --constraint $(LOCK) -o requirements/extras.txt
	$(COMPILE) --extra cli --extra postgres --extra state --group adk --no-annotate -o requirements/adk.txt
	$(COMPILE) --extra postgres --group openai-agents --no-annotate -o requirements/openai-agents.txt
	$(COMPILE) --extra langgraph --extra postgres --extra state --extra vectors --group langgraph --no-annotate -o requirements/langgraph.txt
	$(COMPILE) --extra postgres --group providers --no-annotate -o requirements/providers.txt
	$(COMPILE) --extra cli --extra client --extra mcp --extra postgres --group mcp --no-annotate -o requirements/mcp.txt
	$(COMPILE) --extra postgres --extra server --group claude-agent-sdk --no-annotate -o requirements/claude-agent-sdk.txt
	$(COMPILE) --extra postgres --extra server --group agent-framework --no-annotate -o requirements/agent-framework.txt
	$(COMPILE) --extra cli --extra postgres --extra server --group agent-libraries --no-annotate -o requirements/agent-libraries.txt
	$(COMPILE) --extra cli --extra client --extra postgres --extra server --extra state --group browser --no-annotate -o requirements/browser.txt
	$(COMPILE) --extra postgres --group anthropic-0 --no-annotate -o requirements/anthropic-0.txt
	$(COMPILE) --extra postgres --group anthropic-1 --no-annotate -o requirements/anthropic-1.txt
	$(COMPILE) --extra postgres --group schemathesis --no-annotate -o requirements/schemathesis.txt
	$(COMPILE) --group pyright --no-annotate -o requirements/pyright.txt
	$(COMPILE) --extra postgres --group analytics --no-annotate -o requirements/analytics.txt
	$(COMPILE) --group docs --no-annotate -o requirements/docs.txt
	@if grep -nE '://|^-|(^|[ =])/' requirements/*.txt; then \
		echo 'a lock names an index, an option or a path: remove it'; exit 1; fi

clean: ## Remove .venv, caches and build output
	rm -rf .venv .venv-* build dist limpet-demo \
		.mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
