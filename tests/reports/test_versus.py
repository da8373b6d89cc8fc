"""What a new method's runs beside stored ones can say: before they are trained, and afterwards."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from synthetic_runs import write_run, write_search

from hifi_cli.errors import MissingError
from hifi_cli.paired_tests import seeds_needed
from hifi_cli.records.study import Study
from hifi_cli.reports.versus import (
    NO_SEARCH,
    Baselines,
    CanaryResult,
    Search,
    best_rate,
    canary_limit,
    claims_of,
    comparable_with,
    further_seeds,
    joined,
    outlooks,
    result_tables,
)

DOZEN = (
    *("full-ft", "bitfit", "lora", "adapter", "linear-probing", "mixout"),
    *("rocoft-row", "compacter", "hifi-layerwise", "hifi-midtop", "hifi-random", "diff-pruning"),
)
KEYS = {"protocol": None, "backbone": None, "shots": None}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Two results directories: of the stored runs and of the new ones."""
    monkeypatch.chdir(tmp_path)
    return Path("stored"), Path("new")


def baselines_in(directory, methods=(), tasks=()):
    return Baselines.of(Study(directory), methods=methods, tasks=tasks, keys=KEYS)


def test_one_task_six_seeds_and_a_dozen_baselines_can_give_no_verdict(places):
    stored, _ = places
    for method, seed in itertools.product(DOZEN, range(1, 10)):
        write_run(stored, method, "rte", seed, 0.5 + 0.01 * seed)
    found = outlooks(baselines_in(stored), range(1, 7))
    assert len(found) == 12 and not any(outlook.can_decide for outlook in found)
    # 2 / 2^6 by the test, times 12; 2 / 2^n < 0.05 / 12 takes n = 9.
    assert {outlook.smallest_p for outlook in found} == {0.375}
    assert found[0].needed_seeds == 9
    assert "p would be 0.38 after Holm's correction for 12 comparisons" in str(found[0])
    assert all(outlook.can_decide for outlook in outlooks(baselines_in(stored), range(1, 10)))
    (alone,) = outlooks(baselines_in(stored, methods=["lora"]), range(1, 7))
    assert alone.can_decide and alone.smallest_p == 1 / 32


def test_a_run_that_differs_is_left_out_by_what_differs(places):
    stored, _ = places
    for seed in (1, 2):
        write_run(stored, "full-ft", "rte", seed, 0.5)
        write_run(stored, "bitfit", "rte", seed, 0.5, backbone_weights="other")
    baselines = baselines_in(stored)
    planned = baselines.runs[baselines.runs["method"] == "full-ft"].iloc[0].to_dict()
    rest, notes = comparable_with(baselines, {"rte": planned})
    assert rest.methods == ["full-ft"]
    assert notes == [
        "BitFit on RTE: 2 stored runs cannot be compared: different encoder (stored and here)"
    ]


def test_records_of_another_schema_are_not_compared(places):
    stored, _ = places
    write_run(stored, "full-ft", "rte", 1, 0.5)
    baselines = baselines_in(stored)
    planned = {**baselines.runs.iloc[0].to_dict(), "schema_version": 3}
    rest, (note,) = comparable_with(baselines, {"rte": planned})
    assert rest.runs.empty
    assert note.startswith("Full-FT on RTE: 1 stored run cannot be compared: different schema of")


def test_a_baseline_of_which_no_run_counts_is_named(places):
    stored, _ = places
    write_run(stored, "full-ft", "rte", 1, 0.5)
    write_run(stored, "bitfit", "rte", 1, 0.5, limited=True, setting="limit")
    with pytest.raises(MissingError, match="no stored run of bitfit counts") as told:
        baselines_in(stored)
    assert f"hifi table --results-dir {stored} says why" in str(told.value)
    assert baselines_in(stored, methods=["full-ft"]).methods == ["full-ft"]


def test_keys_are_shared_where_every_run_has_one_value(places):
    """A new run takes them over, so that it computes as the baselines did."""
    stored, _ = places
    for method, kernels in (("full-ft", "auto"), ("bitfit", "torch")):
        keys = {"tf32": True, "kernels": kernels, "precision": "auto"}
        write_run(stored, method, "rte", 1, 0.5, keys=keys, precision="bf16")
    names = ["tf32", "kernels", "precision", "padding_free"]
    assert baselines_in(stored).shared_values(names) == {"tf32": True, "precision": "bf16"}


def test_the_search_is_that_of_the_baseline_that_tried_most_rates(places):
    stored, _ = places
    search = {"keys": {"selection": "holdout", "holdout": 0.2}}
    for method in ("full-ft", "bitfit", "lora"):
        for task in ("rte", "cola"):
            write_run(stored, method, task, 1, 0.5)
    for number, rate in enumerate((1e-5, 2e-5, 3e-5)):
        keys = {"learning_rate": rate, **search["keys"]}
        places_of = {"variant": f"rate-{rate:g}", "selection": "holdout", "keys": keys}
        write_run(stored, "lora", "rte", 1, 0.5, **places_of)
        # Another protocol has as many, and so has a method that is no baseline.
        write_run(stored, "bitfit", "rte", 1, 0.5, protocol="laptop", **places_of)
        write_run(stored, "adapter", "rte", 1, 0.5, **places_of)
        if number == 0:
            # One rate is no search.
            write_run(stored, "full-ft", "rte", 1, 0.5, **places_of)
    assert baselines_in(stored, methods=["full-ft"]).search == NO_SEARCH
    assert baselines_in(stored, methods=["bitfit", "full-ft"]).search == NO_SEARCH
    found = baselines_in(stored, methods=["full-ft", "bitfit", "lora"]).search
    assert found == Search("lora", 3, ["rte"], [1], "holdout", 0.2)


def test_a_repetition_may_shift_as_seeds_of_one_task_do(places):
    """Tasks differ in their level, which is no chance: the limit is that of equal spreads of 1 point."""
    stored, _ = places
    for task, level in (("rte", 0.5), ("cola", 0.8)):
        for seed in (1, 2, 3):
            write_run(stored, "full-ft", task, seed, level + 0.01 * seed)
    # A difference of two runs has the variance 2, and its mean over two tasks the variance 1.
    limit = canary_limit(baselines_in(stored), "full-ft")
    assert limit == pytest.approx(stats.t.ppf(0.975, 4))


def test_the_rate_with_the_best_mean_rank_wins_and_the_lower_one_of_equal_ones(places):
    _, new = places
    # The rates are 1e-5, 2e-5 and 3e-5; one run diverges.
    write_search(new, "lora", "rte", [0.6, 0.7, None])
    write_search(new, "lora", "cola", [0.5, 0.4, 0.9])
    study = Study(new)
    # Mean ranks: (2 + 2) / 2, (1 + 3) / 2 and (3 + 1) / 2
    choice = best_rate(study, set(study.runs["path"]))
    assert choice.rate == 1e-5
    assert str(choice) == "collapsed to one class or diverged: 3e-05 on RTE; chosen: 1e-05"
    of_rte = study.runs["path"][study.runs["task"] == "rte"]
    assert best_rate(study, set(of_rte)).rate == 2e-5


def write_rate(directory, task, rate, score, **keys):
    """A run of LoRA with a learning rate."""
    variant = {"variant": f"learning_rate--{rate:g}", "keys": {"learning_rate": rate}}
    write_run(directory, "lora", task, 1, score, **variant, **keys)


@pytest.mark.parametrize("score", [0.5, 0.55, 0.9])
def test_a_rate_whose_runs_collapsed_loses_to_one_that_learns(places, score):
    """It has the score of the majority-class baseline, lower, equal or higher."""
    _, new = places
    write_rate(new, "rte", 1e-5, score, collapsed=True)
    write_rate(new, "rte", 2e-5, 0.55)
    # On other tasks it is the best.
    for task in ("cola", "mrpc"):
        write_rate(new, task, 1e-5, 0.9)
        write_rate(new, task, 2e-5, 0.8)
    study = Study(new)
    choice = best_rate(study, set(study.runs["path"]))
    assert (choice.rate, choice.failed_on) == (2e-5, {1e-5: ["rte"]})


def test_where_every_rate_collapsed_the_rank_decides_and_is_named(places):
    _, new = places
    write_rate(new, "rte", 1e-5, 0.5, collapsed=True)
    write_rate(new, "rte", 2e-5, 0.6, collapsed=True)
    study = Study(new)
    choice = best_rate(study, set(study.runs["path"]))
    assert str(choice) == (
        "collapsed to one class or diverged: 1e-05 on RTE; 2e-05 on RTE; chosen: 2e-05"
    )


@pytest.mark.parametrize(
    ("gap", "wobble", "sentence"),
    [
        (0.05, 0.001, "may be claimed: LoRA is 5.00 points above Full-FT (95 % interval +4."),
        (-0.05, 0.001, "may be claimed: LoRA is 5.00 points below Full-FT (95 % interval -5."),
        (0.01, 0.02, "may be claimed: no difference between LoRA and Full-FT was shown"),
    ],
)
def test_what_may_be_claimed(places, gap, wobble, sentence):
    stored, new = places
    seeds = range(1, 9)
    for seed in seeds:
        write_run(stored, "full-ft", "rte", seed, 0.6)
        write_run(new, "lora", "rte", seed, 0.6 + gap + wobble * (-1) ** seed)
    # Of other methods and seeds nothing enters.
    write_run(stored, "full-ft", "rte", 20, 0.1)
    write_run(new, "full-ft", "rte", 1, 0.1)
    own = Study(new)
    of_lora = own.runs["path"][own.runs["method"] == "lora"]
    both = joined(baselines_in(stored), own, set(of_lora))
    tables = result_tables(both, "lora", ["full-ft"])
    assert len(both.runs) == 16
    (found,) = claims_of(both, "lora", tables[0])
    assert found.startswith(sentence) and "8 pairs of runs on RTE" in found
    plans = further_seeds(both, "lora", tables[0])
    if "no difference" not in sentence:
        assert plans == []
        return
    differences = np.array([100 * (gap + wobble * (-1) ** seed) for seed in seeds])
    (plan,) = plans
    assert (plan.seeds, plan.tasks) == (seeds_needed([differences]), ["rte"])


def test_the_canary_names_the_differences_that_it_could_not_have_seen(places):
    """LoRA is 5 points above Full-FT and 1 point below BitFit."""
    stored, new = places
    for seed in range(1, 9):
        write_run(stored, "full-ft", "rte", seed, 0.55)
        write_run(stored, "bitfit", "rte", seed, 0.61)
        write_run(new, "lora", "rte", seed, 0.6 + 0.001 * (-1) ** seed)
    own = Study(new)
    both = joined(baselines_in(stored), own, set(own.runs["path"]))
    verdicts = result_tables(both, "lora", ["full-ft", "bitfit"])[0]
    said = {
        limit: CanaryResult("bitfit", 1, {"rte": 0.0}, limit).beside(verdicts)
        for limit in (0.5, 3.0, 9.0)
    }
    assert said[0.5].endswith("these runs are in no mean")
    assert "; the difference from BitFit is smaller than that: " in said[3.0]
    assert "; the differences from Full-FT and BitFit are smaller than that: " in said[9.0]


def test_no_seeds_are_planned_where_every_run_collapsed(places):
    stored, new = places
    for seed in (1, 2):
        write_run(stored, "full-ft", "rte", seed, 0.5, collapsed=True)
        write_run(new, "lora", "rte", seed, 0.6 + 0.1 * seed, collapsed=True)
    own = Study(new)
    both = joined(baselines_in(stored), own, set(own.runs["path"]))
    tables = result_tables(both, "lora", ["full-ft"])
    assert further_seeds(both, "lora", tables[0]) == []


def test_too_few_pairs_allow_no_claim(places):
    stored, new = places
    for seed in (1, 2):
        write_run(stored, "full-ft", "rte", seed, 0.6)
        write_run(new, "lora", "rte", seed, 0.7 + 0.001 * seed)
    own = Study(new)
    both = joined(baselines_in(stored), own, set(own.runs["path"]))
    tables = result_tables(both, "lora", ["full-ft"])
    (found,) = claims_of(both, "lora", tables[0])
    assert found.startswith("may be claimed: nothing about LoRA and Full-FT (")
