# The verbs of this repository. `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help up demo test lint format bench bench-peers interop proto lock build models fuzz soak clean

VENV := .venv/bin
export PYTHON

help: ## List the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

up: ## Build what is missing, serve the example models and show a first inference (UP="--port 9001" passes options)
	@tools/setup.sh local
	@exec $(VENV)/python tools/up.py $(UP)

demo: ## Ask the running stack for one image and two sentences
	@exec $(VENV)/python examples/models/demo.py

build: ## Prepare .venv and build the extension and the example models
	@tools/setup.sh local

models: ## Build the example models anew into models/
	@tools/setup.sh local
	@$(VENV)/python examples/models/build.py --out models

test: ## Everything that CI checks
	@tools/setup.sh dev
	@tools/test.sh

lint: ## The style and type checks of `make test`
	@tools/setup.sh dev
	@tools/lint.sh

format: ## Format everything
	@tools/setup.sh dev
	@$(VENV)/ruff check --quiet --fix-only .
	@$(VENV)/ruff format --quiet .
	@cargo fmt --all
	@cd protos && ../$(VENV)/buf format -w

proto: ## Generate the stubs anew from protos/
	@tools/setup.sh dev
	@$(VENV)/python protos/generate.py

lock: ## Compile the lock files anew (UPGRADE=--upgrade for the newest versions)
	@UPGRADE="$(UPGRADE)" tools/lock.sh

bench: ## Measure worker, gateway and Envoy on this machine
	@tools/setup.sh local
	@exec $(VENV)/python -m bench $(BENCH)

bench-peers: ## The same beside Triton, mosec, MLServer and grpc.aio
	@tools/setup.sh local
	@exec $(VENV)/python -m bench.peers $(BENCH)

interop: ## Check that our stubs live beside KServe's and MLServer's (installs both, each in its own environment)
	@tools/setup.sh dev
	@tools/interop.sh
	@$(VENV)/python -m pytest -q -m interop

fuzz: ## Fuzz the message parser and the HTTP/2 request path (SECONDS_EACH=60)
	@tools/fuzz.sh $(SECONDS_EACH)

soak: ## Some minutes of mixed load; memory must stay flat
	@tools/setup.sh dev
	@$(VENV)/python -m pytest tests/load -m slow --timeout=1800

clean: ## Remove what was built, but not .venv
	@rm -rf build dist models target .headrace
	@rm -rf .venv/stamps/extension .venv/stamps/models
