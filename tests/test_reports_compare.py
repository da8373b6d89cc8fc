"""`hifi compare`: what is computed from paired runs, and what may be said about it."""

import itertools
import json
import re

import numpy as np
import pytest
from scipy import stats
from synthetic import write_run

from hifi_cli.reports.statistics import evidence, holm, pairs_needed, smallest_p


def brute_force_p(differences):
    """Two-sided signed-rank p by going through all signs; zero differences dropped, ties given their mean rank."""
    values = np.array([value for value in np.round(differences, 9) if value])
    ranks = stats.rankdata(abs(values))
    sums = [sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign > 0) for signs in itertools.product((1, -1), repeat=len(values))]
    own, middle = sum(ranks[values > 0]), sum(ranks) / 2
    return float(np.mean([abs(one - middle) >= abs(own - middle) - 1e-9 for one in sums]))


@pytest.mark.parametrize(
    "differences",
    [
        [1.0, 2.0, 3.0, 4.0, 5.0],
        [0.1, 0.1, 0.1, 0.1, 0.1, 0.1],  # ties: the normal approximation would say 0.014
        [0.3, 0.1 + 0.2, -0.3, 0.5],  # a tie but for rounding
        [0.0, 1.0, -2.0, 3.0, 4.0, 0.0, 2.5],
        [1.0, -1.0, 2.0, -0.5, 0.7, 0.2, 3.0, -0.1],
    ],
)
def test_the_signed_rank_test_is_exact(differences):
    assert evidence(differences).p == pytest.approx(brute_force_p(differences))
    assert evidence(differences).p >= evidence(differences).smallest_p - 1e-12


def test_no_difference_at_all_gives_no_evidence():
    found = evidence([0.0, 0.0, 0.0])
    assert (found.p, found.interval, found.smallest_p) == (1.0, None, 1.0)
    with pytest.raises(ValueError, match="no pairs"):
        evidence([])


def test_five_seeds_cannot_reach_five_percent():
    assert smallest_p(5) == 0.0625
    assert (pairs_needed(), pairs_needed(2), pairs_needed(9)) == (6, 7, 9)
    assert evidence([5.0, 6.0, 7.0, 8.0, 9.0]).p == 0.0625


def test_the_interval_is_scipys_bca_and_the_same_every_time():
    differences = list(np.random.default_rng(3).normal(0.8, 1.0, 24))
    found = evidence(differences)
    assert found.interval == evidence(differences).interval
    wanted = stats.bootstrap((differences,), np.mean, method="BCa", n_resamples=9999, rng=np.random.default_rng(0)).confidence_interval
    assert found.interval == tuple(wanted)
    assert found.interval[0] < found.mean < found.interval[1]
    assert found.mean == pytest.approx(np.mean(differences))


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = [low < 1.0 < high for low, high in (evidence(list(rng.exponential(1.0, 30)), resamples=499).interval for _ in range(200))]
    assert 0.88 <= np.mean(hits) <= 0.99


def test_holms_correction():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]


def grid(first, second, tasks=("rte",), seeds=range(1, 6), gap=0.01, **changes):
    for task, seed in itertools.product(tasks, seeds):
        wobble = 0.001 * ((seed * 7 + len(task)) % 5)
        write_run("results", second, task, seed, 0.6 + 0.02 * seed)
        write_run("results", first, task, seed, 0.6 + 0.02 * seed + gap + wobble, **changes)


def said(answer):
    assert answer.code == 0, answer.err
    content = json.loads(answer.out)
    return content["rows"], content["notes"]


def test_five_seeds_on_one_task_allow_no_conclusion(hifi):
    grid("bitfit", "full-ft", gap=0.2)
    rows, notes = said(hifi("compare", "bitfit", "full-ft", "--format", "json"))
    assert rows[0]["cells"]["p"]["mean"] == 0.0625
    assert rows[0]["cells"]["Mean"]["mean"] == pytest.approx(20.2)
    assert "nothing may be concluded about which is better" in notes[0]
    assert "5 pairs cannot reach p < 0.05 two-sided (smallest possible: 0.0625), at least 6 that differ are needed" in notes[0]


def test_enough_pairs_allow_one_and_name_its_limits(hifi):
    grid("bitfit", "full-ft", tasks=("rte", "cola"), seeds=range(1, 6))
    rows, notes = said(hifi("compare", "full-ft", "bitfit", "--format", "json"))
    assert rows[0]["cells"]["Pairs"]["mean"] == 10
    assert rows[0]["cells"]["Mean"]["mean"] < 0
    assert re.match(r"BitFit is better than Full-FT on CoLA, RTE \(2 tasks, 5 seeds\): by 1\.\d\d points on average", notes[0])
    assert "nothing is said about other tasks" in notes[0]
    rows, notes = said(hifi("compare", "full-ft", "bitfit", "--tasks", "rte", "--format", "json"))
    assert next(iter(rows[0]["cells"])) == "RTE" and "nothing may be concluded" in notes[0]


def test_a_difference_that_is_not_shown_is_not_equality(hifi):
    for seed in range(1, 9):
        write_run("results", "full-ft", "rte", seed, 0.6)
        write_run("results", "bitfit", "rte", seed, 0.6 + 0.01 * (-1) ** seed * seed)
    _, notes = said(hifi("compare", "bitfit", "full-ft", "--format", "json"))
    assert "a difference is not shown" in notes[0] and "neither is that they are equal" in notes[0]


def test_pairs_without_a_difference_do_not_count(hifi):
    for seed, gap in enumerate((0.0, 0.0, 0.01, 0.02, 0.03, 0.04), 1):
        write_run("results", "full-ft", "rte", seed, 0.5)
        write_run("results", "bitfit", "rte", seed, 0.5 + gap)
    rows, notes = said(hifi("compare", "bitfit", "full-ft", "--format", "json"))
    assert rows[0]["cells"]["Pairs"]["mean"] == 6 and rows[0]["cells"]["p"]["mean"] == 0.125
    assert "smallest possible: 0.125" in notes[0] and "nothing may be concluded" in notes[0]


def test_several_methods_are_corrected_for(hifi):
    grid("bitfit", "full-ft", seeds=range(1, 7))
    grid("hifi-layerwise", "full-ft", seeds=range(1, 7), gap=0.02)
    rows, notes = said(hifi("compare", "full-ft", "bitfit", "hifi-layerwise", "--format", "json"))
    assert [row["cells"]["p"]["mean"] for row in rows] == [0.03125, 0.03125]
    assert [row["cells"]["p (Holm)"]["mean"] for row in rows] == [0.0625, 0.0625]
    assert all("nothing may be concluded" in note and "at least 7" in note for note in notes[:2])


def test_only_partners_are_paired(hifi):
    grid("bitfit", "full-ft", seeds=(1, 2, 3))
    write_run("results", "full-ft", "rte", 4, 0.0)
    write_run("results", "bitfit", "rte", 5, 1.0)
    write_run("results", "bitfit", "cola", 1, 1.0)
    rows, notes = said(hifi("compare", "bitfit", "full-ft", "--format", "json"))
    assert rows[0]["cells"]["Pairs"]["mean"] == 3 and 1.0 < rows[0]["cells"]["Mean"]["mean"] < 1.5
    assert "RTE: 2 runs without a partner of the same seed left out" in notes
    assert "CoLA: 1 run without a partner of the same seed left out" in notes


def test_collapsed_runs_are_counted_and_what_that_means_is_told(hifi):
    grid("bitfit", "full-ft", seeds=(1, 2, 3))
    write_run("results", "bitfit", "rte", 4, 0.5, collapsed=True)
    write_run("results", "full-ft", "rte", 4, 0.6)
    rows, notes = said(hifi("compare", "bitfit", "full-ft", "--exclude", "collapsed", "--format", "json"))
    assert rows[0]["cells"]["Collapsed"]["text"] == "1 / 0" and rows[0]["cells"]["Pairs"]["mean"] == 3
    assert "leaving them out flatters" in notes[0]
    rows, _ = said(hifi("compare", "bitfit", "full-ft", "--format", "json"))
    assert rows[0]["cells"]["Pairs"]["mean"] == 4


def test_runs_on_other_data_are_no_partners(hifi):
    grid("bitfit", "full-ft", tasks=("rte",), data={"train": "other", "validation": "v"})
    assert "share no task and seed" in hifi("compare", "bitfit", "full-ft").err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["full-ft"], 2, "two or more different methods"),
        (["full-ft", "full-ft"], 2, "two or more different methods"),
        (["full-ft", "mixout"], 3, "no finished run of mixout"),
        (["full-ft", "bitfit"], 2, "several backbones: say which with --backbone (bert-large, minilm)"),
        (["full-ft", "bitfit", "--backbone", "bert-large", "--tasks", "cola"], 3, "share no task and seed"),
    ],
)
def test_wrong_usage(words, code, message, hifi):
    grid("bitfit", "full-ft")
    write_run("results", "full-ft", "rte", 1, 0.5, backbone="minilm")
    answer = hifi("compare", *words)
    assert answer.code == code and message in answer.err and len(answer.err.splitlines()) == 1
