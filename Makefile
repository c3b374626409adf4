# Two commands do everything, set-up included: `make study STUDY=kl_ablation` and `make test`.
# Variables: STUDY (name or YAML file), STUDIES (several), PROFILE, SET ("a.b=1 c.d=2"), JOBS, OUT, EXECUTOR, CLUSTER, NAME, DESIGN, TRIAL, PORT, PYTHON.

PYTHON ?= python3
STUDY ?= kl_ablation
STUDIES ?= $(STUDY)
VENV := .venv
BIN := $(VENV)/bin

ABLATE := $(BIN)/ablate
OPTIONS := $(if $(OUT),--out "$(OUT)")
PUBLISHED := reports/example/$(STUDY)/published_$(STUDY).yaml
CHOICE := $(if $(PROFILE),--profile $(PROFILE))
CHANGES := $(foreach assignment,$(SET),--set '$(assignment)')
WORKERS := $(if $(JOBS),--jobs $(JOBS)) $(if $(EXECUTOR),--executor $(EXECUTOR)) $(if $(CLUSTER),--cluster "$(CLUSTER)")

# The machine's own Python, when it is named; else .venv, where there is one. Nothing is installed.
CARD_PYTHON := $(if $(filter file,$(origin PYTHON)),$(or $(wildcard $(BIN)/python),$(PYTHON)),$(PYTHON))

.PHONY: help setup study run ui serve report published findings compare falsify plan new-study sync test test-slow lint format bench fuzz faults coverage gpu lock audit clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

# What is installed has one of the SHA-256 sums in locks/, and no package is built here. Torch is not in them: its build
# differs with the machine (CPU or CUDA). Python compiles what is imported; to compile all packages takes 25 s more.
# It keeps that in .venv even where it is told not to (as in many containers): else every process compiles it again.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
LOCKED := $(PIP_INSTALL) --require-hashes --no-deps --only-binary :all:

$(VENV)/.stamp: pyproject.toml constraints.txt locks/run.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 2; }
	$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(LOCKED) -r locks/run.txt
	$(PIP_INSTALL) -c constraints.txt "$$(grep -E '^torch==' constraints.txt)"
	$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@$(BIN)/python -m studies.definition.authoring
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp locks/dev.txt
	$(LOCKED) -r locks/dev.txt
	@touch $@

setup: $(VENV)/.stamp  ## create .venv and install the package

study: $(VENV)/.stamp  ## run or continue STUDY
	@$(ABLATE) study "$(STUDY)" $(CHOICE) $(CHANGES) $(WORKERS) $(OPTIONS)

run: $(VENV)/.stamp  ## run one trial with PROFILE
	@$(ABLATE) run $(CHOICE) $(CHANGES) $(if $(EXECUTOR),--executor $(EXECUTOR)) $(if $(CLUSTER),--cluster "$(CLUSTER)") $(OPTIONS)

plan: $(VENV)/.stamp  ## show what would run, what is cached, and whether it fits the budget
	@$(ABLATE) plan "$(STUDY)" $(CHOICE) $(CHANGES) $(OPTIONS)

new-study: $(VENV)/.stamp  ## write NAME.yaml, a commented study to start from (DESIGN: arms, grid, factors, search, command)
	@$(ABLATE) new-study "$(NAME)" $(if $(DESIGN),--design "$(DESIGN)")

report: $(VENV)/.stamp  ## redraw tables and figures from records
	@$(ABLATE) report "$(STUDY)" $(CHOICE) $(OPTIONS)

published: $(VENV)/.stamp  ## draw a published STUDY again from its data in reports/example, and judge its claims again
	@$(ABLATE) import "reports/example/$(STUDY)" --name "$(PUBLISHED)" --map plain --replace $(OPTIONS)
	@$(ABLATE) report "$(PUBLISHED)" $(OPTIONS)

compare: $(VENV)/.stamp  ## compare several studies in one table (STUDIES="a b", PROFILE="tiny chains")
	@$(ABLATE) compare $(STUDIES) $(PROFILE:%=--profile %) $(OPTIONS)

findings: $(VENV)/.stamp  ## run the studies that test findings of papers (hours, at low priority), and write one page of verdicts
	@$(ABLATE) findings $(if $(JOBS),--jobs $(JOBS)) $(OPTIONS)

falsify: $(VENV)/.stamp  ## evaluate STUDY's claims; make returns 2 unless all survive, `ablate falsify` gives the exact code
	@$(ABLATE) falsify "$(STUDY)" $(CHOICE) $(OPTIONS)

ui: $(VENV)/.stamp  ## browse the runs in MLflow on 127.0.0.1
	@$(ABLATE) ui $(OPTIONS)

serve: $(VENV)/.stamp  ## serve TRIAL (study/arm/seed, also while it trains, or an exported folder) on 127.0.0.1:PORT
	@$(ABLATE) serve "$(TRIAL)" $(if $(PORT),--port $(PORT)) $(CHOICE) $(OPTIONS)

sync: $(VENV)/.stamp  ## send STUDY's missing records to MLflow
	@$(ABLATE) sync "$(STUDY)" $(CHOICE) $(OPTIONS)

test: $(VENV)/.stamp-dev  ## style, types, layers, and all tests not marked slow
	@$(MAKE) --no-print-directory lint
	$(BIN)/pytest -n $(or $(JOBS),logical --maxprocesses 4) --dist worksteal -m "not slow"

test-slow: $(VENV)/.stamp-dev  ## the tests marked slow: whole trials that are killed, searched, measured, or run by two processes
	$(BIN)/pytest -n $(or $(JOBS),logical --maxprocesses 4) --dist worksteal -m slow

lint: $(VENV)/.stamp-dev  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.stamp-dev  ## apply ruff's fixes and formatting
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

bench: $(VENV)/.stamp-dev  ## speed and memory beside TRL (ARGS="--rounds 5 --size tiny"); a large study's report
	@PYTHONPATH=tests $(BIN)/python -m benchmarks $(ARGS)
	$(BIN)/python -m pytest tests/benchmarks -n 0 -s --benchmarks

fuzz: $(VENV)/.stamp-dev  ## feed every command bad files, names and settings, 10,000 by default (ARGS="--cases 500 --seed 1 -k study")
	$(BIN)/pytest tests/fuzz -n 0 --hypothesis-show-statistics --cases 10000 --seed 0 $(ARGS)

faults: $(VENV)/.stamp-dev  ## disturb a small study hundreds of times (kills, full disks, damaged files) and look for losses (ARGS="--runs 300")
	$(BIN)/pytest tests/faults -n 0 -v --runs 300 --seed 0 $(ARGS)

coverage: $(VENV)/.stamp-dev  ## measure by simulation how often intervals and verdicts are right (minutes; ARGS="--replicates 200")
	@OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m simulation $(ARGS)

gpu:  ## test and measure on a CUDA card within 10 minutes, without network or installation (PYTHON=python3); page in outputs/gpu
	@PYTHONPATH="$(CURDIR):$(CURDIR)/tests:$$PYTHONPATH" $(CARD_PYTHON) -m gpu $(ARGS)

# In an environment of their own: what they need is none of ours.
TOOLS := uv==0.13.9 pip-audit==2.10.1
$(VENV)/.stamp-tools:
	$(PYTHON) -m venv --clear $(VENV)/tools
	$(VENV)/tools/bin/pip install --quiet --disable-pip-version-check $(TOOLS)
	@touch $@

COMPILE := $(VENV)/tools/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command 'make lock' --constraints constraints.txt --no-emit-package torch
lock: $(VENV)/.stamp-tools  ## write the SHA-256 sums of all versions in constraints.txt to locks/ (asks the package index)
	$(COMPILE) pyproject.toml --output-file locks/run.txt
	$(COMPILE) pyproject.toml --extra dev --extra bench --extra ocr --output-file locks/dev.txt \
		$$(sed -nE 's/^([A-Za-z0-9_.-]+).*==.*/--no-emit-package \1/p' locks/run.txt)

audit: $(VENV)/.stamp-tools  ## ask the package index which of the locked versions have known vulnerabilities
	$(VENV)/tools/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

clean:  ## remove .venv and caches; outputs/ stays
	rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .hypothesis .import_linter_cache
