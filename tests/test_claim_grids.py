"""`hifi grid` on a file of claims: the runs that decide them, each once."""

import itertools
import json
from pathlib import Path

import pytest
import yaml

from hifi_cli.config import registry
from hifi_cli.grids import claim_runs
from hifi_cli.reports import claim_spec

OWN = """
description: My claims
protocol: demo
backbone: demo
tasks: [demo-entailment, demo-acceptability]
seeds: [1, 2, 5]
claims:
  probing: {kind: difference, text: Full-FT beats probing., where: here, first: full-ft, second: linear-probing}
  percent: {kind: number, text: T., where: here, measure: trained-percent, method: bitfit, at_most: 100}
  fast: {kind: number, text: Fast., where: here, measure: time, method: lora, at_most: 1.05}
"""


@pytest.fixture
def own_grid(hifi):  # in its own working directory
    Path("mine.yaml").write_text(OWN)
    Path("claims-mine.yaml").write_text("description: d\nclaims: mine.yaml\n")
    return lambda *words: hifi("grid", "claims-mine.yaml", "--print", "--format", "json", *words)


def printed_runs(answer):
    """Task, method and seed of each run that a grid would make."""
    assert answer.code == 0, answer.err
    runs = []
    for entry in json.loads(answer.out):
        words = entry["command"].split()
        tasks, methods, seeds = (words[words.index(option) + 1] for option in ("--task", "--method", "--seeds"))
        runs += itertools.product(tasks.split(","), methods.split(","), claim_seeds(seeds))
    return runs


def claim_seeds(text):
    """The numbers that `1,2,5` or `1-3` stands for."""
    ranges = [part.split("-") for part in text.split(",")]
    return [seed for ends in ranges for seed in range(int(ends[0]), int(ends[-1]) + 1)]


def test_the_grid_holds_each_run_once_with_the_seeds_of_the_file(own_grid):
    tasks = ("demo-entailment", "demo-acceptability")
    expected = [
        *itertools.product(tasks, ("full-ft", "linear-probing", "lora"), (1, 2, 5)),
        *itertools.product(tasks, ("bitfit",), (1,)),
    ]
    runs = printed_runs(own_grid())
    assert sorted(runs) == sorted(expected)  # a percentage is the same for every seed; a time is not
    assert {run[1] for run in printed_runs(own_grid("--claims", "probing"))} == {"full-ft", "linear-probing"}
    assert {run[2] for run in printed_runs(own_grid("--claims", "probing", "--seeds", "3-4"))} == {3, 4}


def test_the_shipped_claims_are_read_by_tables(hifi):
    for name in registry.names("claims"):
        shipped = claim_spec.load(name).model_copy(update={"seeds": [1]})
        cells = claim_runs.cells(shipped, "g")
        assert not any(cell.config.variant for cell in cells)
        assert len({cell.config.run_path for cell in cells}) == len(cells)
        if name == "hifi":
            assert {cell.config.shots for cell in cells} == {None, 16}


def test_keys_that_decide_which_runs_a_claim_reads_are_refused(own_grid):
    for key in ("shots=8", "variant=x"):
        answer = own_grid(key)
        assert answer.code == 2 and f"sets {key.partition('=')[0]}: leave it out" in answer.err, answer.err


def test_paths_of_own_files_serve_the_grid_and_the_claims(own_grid, hifi):
    copies = {"tasks/demo-entailment": "mytask.yaml", "methods/full-ft": "mymethod.yaml", "protocols/demo": "myprotocol.yaml"}
    for source, copy in copies.items():
        Path(copy).write_text((registry.configs_directory() / f"{source}.yaml").read_text())
    own = OWN.replace("protocol: demo", "protocol: myprotocol.yaml").replace("first: full-ft", "first: mymethod.yaml")
    Path("mine.yaml").write_text(own.replace("[demo-entailment,", "[mytask.yaml,"))
    answer = hifi("claims", "mine.yaml")
    assert answer.code == 0 and "missing: runs of probing, percent, fast: hifi grid mine.yaml" in answer.out, answer.err
    answer = own_grid("--claims", "probing")
    assert {run[:2] for run in printed_runs(answer)} == {
        *itertools.product(("mytask.yaml", "demo-acceptability"), ("mymethod.yaml", "linear-probing"))
    }
    assert "--protocol myprotocol.yaml" in answer.out


def test_a_grid_of_claims_has_nothing_else(hifi):
    Path("both.yaml").write_text(yaml.safe_dump({"claims": "hifi", "table": "demo"}))
    assert "claims define their own runs" in hifi("grid", "both.yaml").err
    answer = hifi("grid", "claims-hifi", "--methods", "bitfit")
    assert answer.code == 2 and "claims define their own methods and tasks" in answer.err
