# Everything here sets itself up: a machine needs make and a Python of at least 3.11 with its venv module.
#
# Call `pytest`, never `python -m pytest` (nor `python -m` anything from this folder): `-m` puts the current folder first
# on the import path, where mailbox/ would shadow the standard library's module of that name.  For the same reason the
# programs below are started by their paths.

PYTHON      ?= python3
VENV        ?= .venv
DEMO        ?= supervisor/demo
BENCH       ?= benchmarks/bench.py
MODEL_CHECK ?= tests/model_check/__main__.py

# The everyday tests in a process a core: most of them wait for a disk or a process.  More than four gain nothing.
DIVIDED := --numprocesses=auto --maxprocesses=4 --dist=worksteal

PACKAGES := actors mailbox supervisor
BIN      := $(VENV)/bin

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PRECIOUS: $(VENV)/installed-%
.PHONY: help demo test sweep model-check bench test-dashboard test-claude test-codex test-opencode lint format typing clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/installed-run ## show the runtime surviving crashes
	$(BIN)/python $(DEMO) $(ARGS)

test: $(VENV)/installed-test ## run the everyday tests (ARGS="-k name" to choose)
	$(BIN)/pytest -q $(DIVIDED) -o faulthandler_timeout=120 -o faulthandler_exit_on_timeout=true $(ARGS)

test-dashboard: $(VENV)/installed-test ## try the dashboard in a real Chromium (Debian: chromium, chromium-driver)
	$(BIN)/pytest -q -m slow -o faulthandler_timeout=120 -o faulthandler_exit_on_timeout=true \
	    tests/bridge/test_dashboard_browser.py $(ARGS)

sweep: $(VENV)/installed-test ## run the long sweeps (FENCEPOST_SWEEP_SECONDS bounds them all together)
	$(BIN)/pytest -q -m slow $(ARGS)

model-check: $(VENV)/installed-test ## check the protocol models (ARGS go to the checker)
	$(BIN)/python $(MODEL_CHECK) $(ARGS)

bench: $(VENV)/installed-test ## measure; the numbers go to build/bench.json
	@mkdir -p build
	$(BIN)/python $(BENCH) $(ARGS)

# The real harness, in the version the adapter was proved on.  It is not ours to hand on, so it is fetched, once.
CLAUDE_VERSION := 2.1.197
CLAUDE_FOLDER  := build/claude-code-$(CLAUDE_VERSION)
CLAUDE_PACKAGE := @anthropic-ai/claude-code-linux-x64
CLAUDE         := $(CLAUDE_FOLDER)/node_modules/$(CLAUDE_PACKAGE)/claude

test-claude: $(VENV)/installed-test $(CLAUDE) ## run the real Claude Code against the bridge, offline (needs npm once)
	FENCEPOST_CLAUDE=$(abspath $(CLAUDE)) $(BIN)/pytest -q -m slow -o faulthandler_timeout=300 \
	    -o faulthandler_exit_on_timeout=true tests/e2e/test_claude*.py tests/e2e/test_options.py tests/bridge/test_channel_real.py $(ARGS)

$(CLAUDE):
	@command -v npm >/dev/null || { echo "npm gets $(CLAUDE_PACKAGE), and there is no npm here." >&2; exit 1; }
	npm install --prefix $(CLAUDE_FOLDER) --no-audit --no-fund --ignore-scripts --save-exact \
	    --fetch-retries=4 --fetch-retry-mintimeout=2000 --fetch-retry-maxtimeout=10000 $(CLAUDE_PACKAGE)@$(CLAUDE_VERSION) || { \
	    echo "npm's registry cannot be reached, or has no $(CLAUDE_PACKAGE)@$(CLAUDE_VERSION): nothing was tested." >&2; exit 1; }
	@$(CLAUDE) --version

# The same for Codex.  Its package holds a version a platform; this one is the native binary for Linux on x86-64.
CODEX_VERSION := 0.171.0
CODEX_FOLDER  := build/codex-$(CODEX_VERSION)
CODEX_PACKAGE := @openai/codex@$(CODEX_VERSION)-linux-x64
CODEX         := $(CODEX_FOLDER)/node_modules/@openai/codex/vendor/x86_64-unknown-linux-musl/bin/codex

test-codex: $(VENV)/installed-test $(CODEX) ## run the real Codex against the bridge, offline (needs npm once)
	FENCEPOST_CODEX=$(abspath $(CODEX)) $(BIN)/pytest -q -m slow -o faulthandler_timeout=300 \
	    -o faulthandler_exit_on_timeout=true tests/e2e/test_codex*.py tests/e2e/test_options.py $(ARGS)

# npm does not try a package again that it lost in the middle, so it is asked again.
$(CODEX):
	@command -v npm >/dev/null || { echo "npm gets $(CODEX_PACKAGE), and there is no npm here." >&2; exit 1; }
	for attempt in 1 2 3; do \
	    npm install --prefix $(CODEX_FOLDER) --no-audit --no-fund --ignore-scripts --save-exact --fetch-retries=2 \
	        --fetch-retry-mintimeout=1000 $(CODEX_PACKAGE) && break; sleep $$attempt; done; test -x $@ || { \
	    echo "npm's registry cannot be reached, or has no $(CODEX_PACKAGE): nothing was tested." >&2; exit 1; }
	@CODEX_HOME=$(CODEX_FOLDER) $@ --version

# The same for OpenCode: the native binary for Linux on x86-64.
OPENCODE_VERSION := 1.18.34
OPENCODE_FOLDER  := build/opencode-$(OPENCODE_VERSION)
OPENCODE_PACKAGE := opencode-linux-x64@$(OPENCODE_VERSION)
OPENCODE         := $(OPENCODE_FOLDER)/node_modules/opencode-linux-x64/bin/opencode

test-opencode: $(VENV)/installed-test $(OPENCODE) ## run the real OpenCode against the bridge, offline (needs npm once)
	FENCEPOST_OPENCODE=$(abspath $(OPENCODE)) $(BIN)/pytest -q -m slow -o faulthandler_timeout=300 \
	    -o faulthandler_exit_on_timeout=true tests/e2e/test_opencode*.py $(ARGS)

$(OPENCODE):
	@command -v npm >/dev/null || { echo "npm gets $(OPENCODE_PACKAGE), and there is no npm here." >&2; exit 1; }
	for attempt in 1 2 3; do \
	    npm install --prefix $(OPENCODE_FOLDER) --no-audit --no-fund --ignore-scripts --save-exact --fetch-retries=2 \
	        --fetch-retry-mintimeout=1000 $(OPENCODE_PACKAGE) && break; sleep $$attempt; done; test -x $@ || { \
	    echo "npm's registry cannot be reached, or has no $(OPENCODE_PACKAGE): nothing was tested." >&2; exit 1; }
	@HOME=$(abspath $(OPENCODE_FOLDER)) $@ --version

# Outside the packages: a test's arguments are fixtures, it tries what no program should, and what a union's member
# lacks fails the test itself.
RELAXED := --follow-imports=silent --allow-untyped-defs --allow-incomplete-defs --allow-untyped-calls \
           --allow-any-generics --no-warn-unreachable --no-warn-return-any \
           --no-warn-unused-ignores $(addprefix --disable-error-code=,arg-type assignment attr-defined list-item misc \
           return-value union-attr var-annotated)

lint: $(VENV)/installed-lint typing ## ruff, mypy and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(PACKAGES:%=-p fencepost.%)
	MYPYPATH=tests:benchmarks $(BIN)/mypy $(RELAXED) $(wildcard tests benchmarks examples)
	$(BIN)/pyright

format: $(VENV)/installed-lint ## rewrite the sources in the one format
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

clean: ## remove everything that these targets made
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find $(wildcard $(PACKAGES) tests benchmarks examples) -name __pycache__ -type d -prune -exec rm -rf {} +

# Type checkers follow no import hook, which is what an editable install is: they get a folder of links instead.
typing:
	@mkdir -p build/typing/fencepost
	@for package in $(PACKAGES); do ln -sfn ../../../$$package build/typing/fencepost/$$package; done

$(VENV)/made:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "fencepost needs Python 3.11 or newer, and there is no '$(PYTHON)'. Name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "fencepost needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -I -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "'$(PYTHON)' comes without its venv module. Install it (Debian and Ubuntu: apt install python3-venv) and run make again." >&2; exit 1; }
	$(PYTHON) -I -m venv --clear $(VENV)
	@touch $@

# An editable install: new modules need no new install, only a changed pyproject.toml does.
$(VENV)/installed-run: EXTRA :=
$(VENV)/installed-%: EXTRA = [$*]
$(VENV)/installed-%: pyproject.toml $(VENV)/made
	$(BIN)/python -I -m pip install --quiet --disable-pip-version-check --editable '.$(EXTRA)'
	@touch $@
