# Everything a newcomer needs is Python 3.11 or newer; `make help` lists what there is.
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
endif
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
WORKERS ?= auto
# Tests start controllers hundreds of times: with compiled modules that costs 2 CPU seconds each, without 5.5.
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/build/pycache
unexport PYTHONDONTWRITEBYTECODE
export KUBERNETES
CASES ?= ../shared/conformance/cases
ONLY ?=
# A control plane's tests mostly wait: three control planes side by side play them, and then one alone the few that load
# it. What the tests of a module share is set up once: a module stays with one worker.
E2E = $(PYTEST) e2e --durations=25 -o cache_dir=build/e2e-cache
E2E_WORKERS ?= 3
E2E_ALONE = $(or $(ONLY),$(FAILED),$(KUBECONFIG),$(filter 0,$(E2E_WORKERS)))
E2E_BOTH = { $(E2E) -n $(E2E_WORKERS) --dist loadfile --no-loadscope-reorder -m "not alone"; side=$$?; $(E2E) -m alone && [ $$side = 0 ]; }
E2E_ONE = $(E2E) $(if $(KUBECONFIG),--kubeconfig $(KUBECONFIG)) $(if $(ONLY),-k "$(ONLY)") $(if $(FAILED),--last-failed --last-failed-no-failures none)

.DEFAULT_GOAL := help
.PHONY: bench-cluster bench-kueue soak help setup demo test lint format e2e e2e-older e2e-kind up conformance bench bench-placement crds lock clean

help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'

$(READY): pyproject.toml uv.lock
	@test -n "$(PYTHON)" || { echo "Muster needs Python 3.11 or newer; set PYTHON=/path/to/python"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv sync --quiet --frozen --group dev --inexact
	@touch $@

setup: $(READY) ## make the environment in .venv (done by the others when needed)

demo: $(READY) ## a day of three teams on a small GPU cluster, in a sandbox; SERVE=1 keeps it up, REAL=1 plays it on a real control plane
	@$(BIN)/python -m admission.cli demo $(if $(SERVE),--serve) $(if $(REAL),--real)

test: $(READY) ## the fast suite; THOROUGH=1 runs the long forms
	@$(PYTEST) -n $(WORKERS) --dist worksteal

lint: $(READY) ## style, types, import arrows
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports --no-cache

format: $(READY) ## rewrite the sources in the one style
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

e2e: $(READY) ## the suite on a real control plane (built once from pinned sources, needs Go; KUBERNETES=1.37 for a newer one; or KUBECONFIG=... for a cluster of yours)
	@$(if $(KUBECONFIG),,$(BIN)/python -m e2e.build --kubernetes "$(KUBERNETES)" &&) $(if $(E2E_ALONE),$(E2E_ONE),$(E2E_BOTH))

e2e-older: $(READY) ## the chart on Kubernetes without the policies that hold (built once from pinned sources, needs Go)
	@$(BIN)/python -m e2e.build etcd kubectl kwok jobset-controller kubernetes-1.31 kubernetes-1.34 && $(PYTEST) e2e/test_older.py -n0 -o cache_dir=build/e2e-cache

e2e-kind: $(READY) ## the portable part of the suite on kind (needs Docker and kind)
	@kind create cluster --name muster-e2e --config e2e/kind.yaml --kubeconfig build/kind.kubeconfig && \
	 $(PYTEST) e2e -p no:cacheprovider --kubeconfig build/kind.kubeconfig; status=$$?; \
	 kind delete cluster --name muster-e2e; exit $$status

up: $(READY) ## a real control plane with Muster and NODES=4 to play with, until Ctrl-C
	@$(BIN)/python -m e2e.build && $(BIN)/python -m e2e.up --muster $(if $(NODES),--nodes $(NODES))

conformance: $(READY) ## replay cases with known answers; CASES=DIR ONLY=regex VERBOSE=1
	@$(BIN)/python -m tests.conformance.replay --cases $(CASES) $(if $(ONLY),--only "$(ONLY)") $(if $(VERBOSE),--verbose)

bench-placement: $(READY) ## replay the openb traces; figures under build/bench
	@$(BIN)/python -m tests.bench.openb

bench: $(READY) ## speed of the engine, as ratios and counts per second, with plots; ONLY=regex SMALL=1; figures under build/bench
	@$(BIN)/uv sync --quiet --frozen --group dev --group bench --inexact
	@$(if $(ONLY),,$(BIN)/python -m tests.bench.placement)
	@ONLY='$(ONLY)' $(BIN)/python -m tests.bench.engine $(if $(SMALL),--small) && $(BIN)/python -m tests.bench.plots

bench-cluster: $(READY) ## Kueue's scheduling benchmark on a real API server; ONLY=baseline|large_scale|topology SCALE=0.1; figures under build/bench
	@$(BIN)/python -m e2e.build etcd kube-apiserver && $(BIN)/python -m e2e.bench $(if $(ONLY),--only $(ONLY)) $(if $(SCALE),--scale $(SCALE)) $(if $(CHECK),--check)

bench-kueue: $(READY) ## Kueue's own runner, built from pinned sources, against Muster; ONLY=baseline|large-scale|tas CONTROLLERS="floor muster kueue unlimited"
	@$(BIN)/python -m e2e.bench.kueue $(ONLY) $(if $(CONTROLLERS),--controllers $(CONTROLLERS))

soak: $(READY) ## load without end on a real API server; MINUTES=10 TINY=20000
	@$(BIN)/python -m e2e.build etcd kube-apiserver && $(BIN)/python -m e2e.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(TINY),--tiny $(TINY))

crds: $(READY) ## generate crds/, config/, the chart and docs/reference from the code
	@$(BIN)/python -m admission.api.crd
	@for part in policies roles priority; do $(BIN)/python -m admission.controller.policies $$part > config/$$part.yaml; done
	@$(BIN)/python -m charts.generate && $(BIN)/python -m charts.reference

lock: ## resolve the dependencies anew
	@$(BIN)/uv lock

clean: ## remove what was built
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
