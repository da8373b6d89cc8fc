"""The path of a run, spelled out: every other test asks `run_folder`."""

from pathlib import PurePath

import pytest
from run_folders import run_folder

from hifi_cli.run_paths import RUN_PATTERNS, names_in, relative_run_path, run_path_of

NAMES = {"protocol": "hifi", "backbone": "bert-large", "task": "rte", "method": "lora", "seed": 3}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({}, "runs/hifi/bert-large/rte/lora/seed3"),
        ({"variant": "r=8"}, "runs/hifi/bert-large/rte/lora/r--8/seed3"),
        ({"shots": 16}, "runs/hifi/bert-large/rte-16-shot/lora/seed3"),
        ({"backbone": "owner/name"}, "runs/hifi/owner--name/rte/lora/seed3"),
        ({"method": "../.."}, "runs/hifi/bert-large/rte/unnamed/seed3"),
    ],
)
def test_a_run_has_one_place_and_is_found_there(tmp_path, changes, path):
    names = NAMES | changes
    assert run_path_of(**names) == PurePath(path)
    folder = run_folder(tmp_path, **names)
    folder.mkdir(parents=True)
    found = [place for pattern in RUN_PATTERNS for place in tmp_path.glob(pattern)]
    assert found == [folder]


def test_names_are_read_back_as_far_as_a_path_has_them():
    read = {"protocol": "hifi", "backbone": "bert-large", "task": "rte", "method": "lora"}
    assert names_in(run_path_of(**NAMES)) == read
    assert names_in(str(run_path_of(**NAMES, variant="x"))) == read
    assert names_in("runs/hifi") == {"protocol": "hifi"}
    assert names_in("runs.jsonl, line 3") == {}


@pytest.mark.parametrize("before", ["", "results/", "/old/runs/x/"])
def test_a_path_from_runs_on_does_not_depend_on_the_results_directory(before):
    path = str(run_path_of(**NAMES))
    assert relative_run_path(f"{before}{path}") == path


@pytest.mark.parametrize("name", ["seed1", "seed20"])
def test_a_variant_does_not_lie_in_the_directory_of_a_run(hifi, name):
    answer = hifi(f"train --protocol demo --task demo-entailment --method bitfit variant={name}")
    assert (
        answer.code == 2
        and f"variant={name} would lie in the directory of a usual run" in answer.err
    )
