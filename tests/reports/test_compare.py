"""`hifi compare`: what is computed from paired runs, and what may be said about it."""

import itertools
import json
from pathlib import Path

import pytest
from synthetic_runs import write_run

from hifi_cli.records.study import Study
from hifi_cli.reports.comparable import ComparableRuns
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.pairs import pair


def grid(first, second, tasks=("rte",), seeds=range(1, 6), gap=0.01, **changes):
    for task, seed in itertools.product(tasks, seeds):
        wobble = 0.001 * ((seed * 7 + len(task)) % 5)
        write_run("results", second, task, seed, 0.6 + 0.02 * seed)
        write_run("results", first, task, seed, 0.6 + 0.02 * seed + gap + wobble, **changes)


def said(answer):
    """The rows, each with its differences by task, and the notes."""
    assert answer.code == 0, answer.err
    main, per_task = json.loads(answer.out)
    for row in main["rows"]:
        row["tasks"] = {task["method"]: task[row["method"]] for task in per_task["rows"]}
    return main["rows"], main["notes"]


def test_latex_has_minus_signs_in_differences_and_intervals(hifi):
    for seed in (1, 2, 3):
        write_run("results", "full-ft", "rte", seed, 0.6 + seed / 100)
        write_run("results", "lora", "rte", seed, 0.5 + seed / 200)
    text = hifi("compare lora full-ft --format tex").out
    assert "$-$11.00 & [$-$12.24, $-$9.76]" in text


def test_five_seeds_on_one_task_allow_no_conclusion(hifi):
    grid("bitfit", "full-ft", gap=0.2)
    rows, notes = said(hifi("compare bitfit full-ft --format json"))
    assert rows[0]["p_holm"] == 0.0625
    assert rows[0]["mean"] == pytest.approx(20.2) == rows[0]["tasks"]["rte"]
    assert notes[0] == (
        "Full-FT: the interval excludes 0, but the sign-flip test has p = 0.062;"
        " 5 of 5 pairs of runs differ, and p < 0.05 takes at least 6: train more seeds"
    )


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        # Five equal differences and a small one of the other sign: 4 of 64 patterns reach the sum
        ([1, 1, 1, 1, 1, -0.01], "the interval excludes 0, but the sign-flip test has p = 0.062"),
        # Six positive differences, one of them large: 2 of 64 patterns reach the sum
        (
            [0.1, 0.1, 0.1, 0.1, 0.1, 10],
            "the sign-flip test has p = 0.031, but the interval includes 0",
        ),
    ],
)
def test_a_verdict_that_interval_and_test_do_not_share_says_so(hifi, points, reason):
    for seed, difference in enumerate(points, start=1):
        write_run("results", "full-ft", "rte", seed, 0.5)
        write_run("results", "bitfit", "rte", seed, 0.5 + difference / 100)
    rows, notes = said(hifi("compare bitfit full-ft --format json"))
    assert rows[0]["verdict"] == "no difference shown"
    assert notes[0].startswith(f"Full-FT: {reason}; no difference shown is not equality")


def test_a_comparison_fits_a_terminal(hifi, monkeypatch):
    grid(
        "bitfit",
        "full-ft",
        tasks=("rte", "cola", "mrpc", "stsb", "cb", "copa", "wic", "qnli", "boolq"),
    )
    printed = hifi("compare bitfit full-ft").out
    drawn = printed[: printed.index("each run's best epoch")].splitlines()[1:]
    assert any(set(line) == {"─"} for line in drawn) and max(map(len, drawn)) <= 80


def test_enough_pairs_allow_one_and_name_its_limits(hifi):
    grid("bitfit", "full-ft", tasks=("rte", "cola"), seeds=range(1, 6))
    rows, notes = said(hifi("compare full-ft bitfit --format json"))
    assert rows[0]["mean"] < 0 and rows[0]["verdict"] == "worse"
    low, high = rows[0]["low"], rows[0]["high"]
    assert low < rows[0]["mean"] < high < 0
    assert rows[0]["p_holm"] == pytest.approx(2 / 2**10) and any(
        "about these tasks and new seeds" in note for note in notes
    )
    rows, notes = said(hifi("compare full-ft bitfit --tasks rte --format json"))
    assert (
        rows[0]["verdict"] == "no conclusion"
        and [*rows[0]["tasks"]] == ["rte"]
        and "5 pairs" in notes[0]
    )


def test_one_seed_decides_nothing_on_however_many_tasks(hifi):
    tasks = ("rte", "cola", "mrpc", "stsb", "cb", "copa", "wic")
    grid("bitfit", "full-ft", tasks=tasks, seeds=[1])
    rows, notes = said(hifi("compare bitfit full-ft --format json"))
    assert rows[0]["p_holm"] == pytest.approx(2 / 2**7)
    assert rows[0]["low"] is None
    assert rows[0]["verdict"] == "no conclusion"
    assert notes[0].startswith("Full-FT: a task has one pair of runs alone")
    grid("bitfit", "full-ft", tasks=tasks, seeds=[2])
    rows, _ = said(hifi("compare bitfit full-ft --format json"))
    assert rows[0]["verdict"] == "better"


def test_a_small_p_is_printed_as_it_is(hifi):
    tasks = ("rte", "cola", "mrpc", "stsb", "cb", "copa", "wic")
    grid("bitfit", "full-ft", tasks=tasks, seeds=range(1, 6))
    expected = 2 / 2**35
    rows, _ = said(hifi("compare bitfit full-ft --format json"))
    assert rows[0]["p_holm"] == pytest.approx(expected)
    for form in ("text", "md", "tex"):
        assert f"{expected:.3g}" in hifi("compare bitfit full-ft --format", form).out


def test_a_difference_has_the_same_digits_in_both_directions_and_in_its_interval(hifi):
    for seed in range(1, 9):
        write_run("results", "full-ft", "rte", seed, 0.5)
        write_run("results", "bitfit", "rte", seed, 0.53125)
    forth = hifi("compare bitfit full-ft").out
    assert "+3.13" in forth and "[+3.13, +3.13]" in forth and "3.12" not in forth
    back = hifi("compare full-ft bitfit").out
    assert "-3.13" in back and "[-3.13, -3.13]" in back and "3.12" not in back


def test_a_difference_that_is_not_shown_is_not_equality(hifi):
    for seed in range(1, 9):
        write_run("results", "full-ft", "rte", seed, 0.6)
        write_run("results", "bitfit", "rte", seed, 0.6 + 0.01 * (-1) ** seed * seed)
    rows, notes = said(hifi("compare bitfit full-ft --format json"))
    assert rows[0]["verdict"] == "no difference shown"
    assert notes[0].startswith("Full-FT: no difference shown is not equality")


def write_collapsed(scores_of_full_ft, scores_of_bitfit, task="rte"):
    """Runs of both methods that predict one class each, with seeds from 1 on."""
    scores = {"full-ft": scores_of_full_ft, "bitfit": scores_of_bitfit}
    for method, of_method in scores.items():
        for seed, score in enumerate(of_method, start=1):
            write_run("results", method, task, seed, score, collapsed=True)


@pytest.mark.parametrize(
    "scores_of_bitfit",
    [
        pytest.param([0.5] * 3, id="equal"),
        # A run may collapse to the other class, whose share is another one.
        pytest.param([0.5, 0.47, 0.5], id="another class"),
    ],
)
def test_collapsed_runs_are_not_told_to_train_more_seeds(hifi, scores_of_bitfit):
    write_collapsed([0.5] * 3, scores_of_bitfit)
    rows, notes = said(hifi("compare bitfit full-ft --format json"))
    assert rows[0]["verdict"] == "no conclusion"
    assert notes[0].startswith("Full-FT: every run collapsed to one class")
    assert "train longer, or change the learning rate" in notes[0]
    assert "train more seeds" not in " ".join(notes)


def test_one_run_that_learnt_makes_seeds_count_again(hifi):
    write_collapsed([0.5] * 3, [0.5] * 3)
    write_run("results", "bitfit", "rte", 3, 0.6)
    _, notes = said(hifi("compare bitfit full-ft --format json"))
    assert "1 of 3 pairs of runs differ" in notes[0] and notes[0].endswith("train more seeds")


@pytest.mark.parametrize("seeds", [3, 8])
@pytest.mark.parametrize("collapsed", [False, True])
def test_an_interval_without_width_is_not_read_as_equality(hifi, seeds, collapsed):
    for seed in range(1, seeds + 1):
        for method in ("full-ft", "bitfit"):
            write_run("results", method, "rte", seed, 0.5 + seed / 100, collapsed=collapsed)
    rows, notes = said(hifi("compare bitfit full-ft --format json"))
    assert rows[0]["low"] == rows[0]["high"] == 0 and rows[0]["p_holm"] == 1
    assert notes[0].endswith(
        "an interval without width does not show equality: equal scores have no spread"
    )
    assert "would show one as large as now" not in notes[0]


def test_the_tables_name_protocol_and_backbone(hifi):
    grid("bitfit", "full-ft")
    verdicts, per_task = json.loads(hifi("compare bitfit full-ft --format json").out)
    conditions = "(protocol hifi, backbone bert-large)"
    assert verdicts["title"] == f"BitFit minus each other method, in points {conditions}"
    assert per_task["title"] == f"BitFit minus each other method, per task {conditions}"


def test_the_mean_is_over_tasks_as_in_the_table(hifi):
    for task, gap, seeds in (("rte", 0.02, range(1, 11)), ("cola", -0.03, (1, 2))):
        for seed in seeds:
            write_run("results", "full-ft", task, seed, 0.5)
            write_run("results", "bitfit", task, seed, 0.5 + gap + 0.001 * (-1) ** seed)
    rows, _ = said(hifi("compare bitfit full-ft --format json"))
    assert rows[0]["mean"] == pytest.approx(
        (2.0 - 3.0) / 2
    )  # pooled over 12 pairs it would be +1.17
    assert rows[0]["tasks"] == pytest.approx({"cola": -3.0, "rte": 2.0})
    averages = {
        row["method"]: row["average"] for row in json.loads(hifi("table --format json").out)["rows"]
    }
    assert averages["bitfit"] - averages["full-ft"] == pytest.approx(rows[0]["mean"])
    study = Study(Path("results"))
    runs = ComparableRuns.of(study, study.runs, ReportOptions())
    assert pair(runs, "full-ft", "bitfit").is_better
    assert not pair(runs, "bitfit", "full-ft").is_better


def test_only_partners_are_paired(hifi):
    grid("bitfit", "full-ft", seeds=(1, 2, 3))
    write_run("results", "full-ft", "rte", 4, 0.0)
    write_run("results", "bitfit", "rte", 5, 1.0)
    write_run("results", "bitfit", "cola", 1, 1.0)
    rows, notes = said(hifi("compare bitfit full-ft --format json"))
    assert rows[0]["pairs"] == 3 and 1.0 < rows[0]["mean"] < 1.5
    assert "BitFit and Full-FT: 3 runs without a partner (same task and seed)" in notes


def test_runs_without_the_metric_asked_for_are_counted(hifi):
    for seed in (1, 2, 3):
        write_run("results", "full-ft", "rte", seed, 0.6, metrics={"f1": 0.5})
        write_run("results", "bitfit", "rte", seed, 0.6, metrics={"f1": 0.4} if seed < 3 else {})
    words = ("--metric", "f1", "--format", "json")
    rows, notes = said(hifi("compare bitfit full-ft", *words))
    assert rows[0]["pairs"] == 2
    said_so = "BitFit and Full-FT: 2 runs without a partner with f1 (same task and seed)"
    assert said_so in notes


def test_the_second_of_two_comparisons_needs_fewer_seeds(hifi):
    """Holm's correction multiplies only the smaller p by two: nine pairs differ, then six."""
    grid("bitfit", "full-ft", tasks=("rte", "cola", "mrpc"), seeds=(1, 2, 3), gap=-0.2)
    grid("lora", "full-ft", tasks=("rte", "cola"), seeds=(1, 2, 3), gap=-0.1)
    rows, _ = said(hifi("compare full-ft bitfit lora --format json"))
    assert [(row["p_holm"], row["verdict"]) for row in rows] == [
        (pytest.approx(4 / 2**9), "better"),
        (pytest.approx(2 / 2**6), "better"),
    ]


def test_two_comparisons_need_a_pair_more_than_one(hifi):
    for other in ("bitfit", "lora"):
        grid("full-ft", other, seeds=range(1, 7), gap=0.1)
    rows, notes = said(hifi("compare full-ft bitfit lora --format json"))
    assert [(row["p_holm"], row["verdict"]) for row in rows] == [(0.0625, "no conclusion")] * 2
    assert "6 of 6 pairs of runs differ, and p < 0.05 takes at least 7" in notes[0]


def test_scores_of_different_metrics_are_never_compared(hifi):
    for seed in (1, 2):
        both = {"accuracy": 0.6, "matthews": 0.5}
        write_run("results", "bitfit", "cola", seed, 0.5, primary_metric="matthews", metrics=both)
        other = {"accuracy": 0.7, "matthews": 0.4}
        write_run("results", "full-ft", "cola", seed, 0.7, primary_metric="accuracy", metrics=other)
    for words in ([], ["--include", "unequal"]):
        answer = hifi("compare bitfit full-ft", *words)
        assert answer.code == 3 and "differ in primary metric (matthews and accuracy)" in answer.err
        # No flag makes one number of them.
        assert "--include" not in answer.err


def test_collapsed_runs_are_compared_and_counted(hifi):
    grid("bitfit", "full-ft", seeds=range(1, 8))
    write_run("results", "bitfit", "rte", 8, 0.2, collapsed=True)
    write_run("results", "full-ft", "rte", 8, 0.6)
    rows, notes = said(hifi("compare bitfit full-ft --format json"))
    assert (rows[0]["verdict"], rows[0]["pairs"]) == ("no difference shown", 8)
    assert rows[0]["mean"] == pytest.approx(-4, abs=0.5)
    assert "BitFit on RTE: 1 run collapsed, included" in notes


def test_the_method_that_diverged_more_often_is_not_called_better(hifi):
    grid("bitfit", "full-ft", seeds=range(1, 8))
    for seed in (8, 9):
        write_run(
            "results",
            "bitfit",
            "rte",
            seed,
            0.0,
            status="diverged",
            scores=None,
            metrics=None,
            collapsed=True,
        )
    _, notes = said(hifi("compare bitfit full-ft --format json"))
    assert (
        notes[0]
        == "Full-FT: BitFit is ahead, but 2 runs of it diverged, 0 of Full-FT: these have no score"
    )
    grid("bitfit", "full-ft", seeds=range(1, 8), gap=-0.1)
    rows, _ = said(hifi("compare bitfit full-ft --format json"))
    assert rows[0]["verdict"] == "worse"


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"report": "last"}, "epoch of the score (last and best)"),
        ({"split": "test"}, "split (test and validation)"),
        ({"backbone_weights": "u"}, "encoder"),
        ({"epochs": 5, "data": {}}, "epochs (5 and 3), data"),
    ],
)
def test_runs_under_other_conditions_are_refused_by_name(changes, differing, hifi):
    grid("bitfit", "full-ft", tasks=("rte", "cola"), seeds=(1, 2))
    grid("bitfit", "full-ft", tasks=("rte",), seeds=(1, 2), **changes)
    note = (
        f"RTE: left out: BitFit and Full-FT differ in {differing}; --include unequal compares them"
    )
    rows, notes = said(hifi("compare bitfit full-ft --format json"))
    assert rows[0]["pairs"] == 2 and note in notes
    answer = hifi("compare bitfit full-ft --tasks rte")
    assert answer.code == 3 and note in answer.err and len(answer.err.splitlines()) == 1
    rows, notes = said(hifi("compare bitfit full-ft --include unequal --format json"))
    assert (
        rows[0]["pairs"] == 4
        and f"RTE: compared although BitFit and Full-FT differ in {differing}" in notes
    )


def test_epochs_that_the_protocol_has_for_each_method_are_compared(hifi):
    """HiFi's table 2 trains BitFit for the 16 epochs of BitFit's own paper, and compares."""
    for seed, (method, epochs) in itertools.product(
        range(1, 6), (("hifi-layerwise", 5), ("bitfit", 16))
    ):
        write_run("results", method, "rte", seed, 0.6 + 0.01 * seed, epochs=epochs)
    rows, notes = said(hifi("compare hifi-layerwise bitfit --format json"))
    assert rows[0]["pairs"] == 5
    assert not any("differ in" in note for note in notes)
    assert "not compared" not in hifi("table hifi-2 --tasks rte").out
    for epochs in (15, 17):
        for seed in range(1, 6):
            write_run("results", "bitfit", "rte", seed, 0.6, epochs=epochs)
        answer = hifi("compare hifi-layerwise bitfit")
        assert f"differ in epochs (5 and {epochs})" in answer.err


def test_runs_that_stopped_early_are_compared_by_the_epochs_that_they_might_have_had(hifi):
    for method, trained in (("full-ft", 2), ("bitfit", 3)):
        for patience, task in ((2, "rte"), (None, "cola")):
            keys = {"patience": patience, "epochs": 3}
            write_run("results", method, task, 1, 0.6, epochs=trained, keys=keys)
    rows, notes = said(hifi("compare bitfit full-ft --format json"))
    assert [*rows[0]["tasks"]] == ["rte"]
    assert any("CoLA: left out: BitFit and Full-FT differ in epochs (3 and 2)" in n for n in notes)


def test_a_backbone_with_the_name_of_a_method_is_not_labelled_as_the_method(hifi):
    for backbone, seed in itertools.product(("minilm", "bitfit"), (1, 2)):
        write_run("results", "full-ft", "rte", seed, 0.6 + 0.01 * seed, backbone=backbone)
    for words in ("compare full-ft", "table --method full-ft"):
        answer = hifi(f"{words} --backbones minilm,bitfit")
        assert answer.code == 0
        assert "bitfit" in answer.out and "BitFit" not in answer.out


def test_where_versus_has_trained_the_baselines_are_in_its_study(hifi):
    for seed in range(1, 6):
        write_run("stored", "bitfit", "rte", seed, 0.6)
        write_run("results", "lora", "rte", seed, 0.7)
    words = "compare lora bitfit"
    assert "STUDY" not in hifi(words).err
    write_run("results/canary", "bitfit", "rte", 1, 0.6)
    answer = hifi(words)
    hint = "hifi results merge STUDY --results-dir results"
    assert answer.code == 3 and answer.err.rstrip().endswith(hint)
    assert hifi(hint.removeprefix("hifi ").replace("STUDY", "stored")).code == 0
    assert hifi(words).code == 0


def test_another_reported_epoch_does_not_matter_where_one_is_asked_for(hifi):
    grid("bitfit", "full-ft", report="last")
    rows, notes = said(hifi("compare bitfit full-ft --score last --format json"))
    assert rows[0]["pairs"] == 5 and not any("differ in" in note for note in notes)


@pytest.mark.parametrize(
    ("changes", "words", "too_high"),
    [
        ({}, [], True),
        ({}, ["--score", "last"], False),
        ({"shots": 16}, [], False),  # rows of the train split chose the epoch
        ({"selection": "holdout"}, [], False),
        (
            {"shots": 16},
            ["--score", "max"],
            True,
        ),  # the highest on the reported split, whatever chose the epoch
        ({"selection": "holdout"}, ["--score", "max"], True),
        ({"epochs": 1}, [], False),  # nothing was chosen
    ],
)
def test_scores_are_called_too_high_where_the_reported_split_chose_the_epoch(
    hifi, changes, words, too_high
):
    for method, seed in itertools.product(("bitfit", "full-ft"), range(1, 4)):
        write_run("results", method, "rte", seed, 0.6 + 0.01 * seed, **changes)
    _, notes = said(hifi("compare", "bitfit", "full-ft", *words, "--format", "json"))
    assert (
        any("each run's best epoch, chosen on the same rows" in note for note in notes) is too_high
    )


def test_full_shot_is_never_compared_with_few_shot(hifi):
    for seed in (1, 2):
        write_run("results", "bitfit", "rte", seed, 0.778)
        write_run("results", "linear-probing", "rte", seed, 0.5, shots=16)
    answer = hifi("compare bitfit linear-probing")
    assert (
        answer.code == 2
        and "runs of several shots: choose one with --shots (16, full)" in answer.err
    )
    answer = hifi("compare bitfit linear-probing --shots 16")
    made = "hifi train --task rte --method bitfit --protocol hifi --backbone bert-large --seeds 1,2 shots=16"
    assert f"no finished run of bitfit --shots 16; make one with {made}" in answer.err
    assert answer.code == 3
    for seed in (1, 2):
        write_run("results", "bitfit", "rte", seed, 0.55, shots=16)
    answer = hifi("compare bitfit linear-probing --shots 16 --format json")
    assert (
        said(answer)[0][0]["mean"] == pytest.approx(5.0)
        and "16-shot" in json.loads(answer.out)[0]["title"]
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["full-ft"], 2, "two or more different methods"),
        (["full-ft", "full-ft"], 2, "two or more different methods"),
        (
            ["full-ft", "mixout"],
            3,
            "no finished run of mixout; make one with hifi train --task rte --method mixout --protocol hifi --seeds 1,2,3",
        ),
        (
            ["full-ft", "bitfit"],
            2,
            "several backbones: choose one with --backbone (bert-large, minilm)",
        ),
        (
            ["full-ft", "bitfit", "--shots", "few"],
            2,
            "a number of training rows per class, or full, is required",
        ),
        (
            ["full-ft", "bitfit", "--include", "collapsed"],
            2,
            "'collapsed' is not one of limited, unequal",
        ),
        (
            ["full-ft", "bitfit", "--backbone", "bert-large", "--tasks", "cola"],
            3,
            "no finished run of full-ft --tasks cola --backbone bert-large; make one with hifi train --task cola --method",
        ),
        (
            ["full-ft", "bitfit", "--backbone", "bert-large", "--tasks", "rte,rtee"],
            2,
            "unknown task 'rtee'; did you mean 'rte'?",
        ),
    ],
)
def test_wrong_usage(words, code, message, hifi):
    grid("bitfit", "full-ft")
    write_run("results", "full-ft", "rte", 1, 0.5, backbone="minilm")
    answer = hifi("compare", *words)
    assert answer.code == code and message in answer.err and len(answer.err.splitlines()) == 1


def test_two_backbones_are_compared_under_one_method(hifi):
    for seed in range(1, 9):
        for backbone, score in (("qwen3-0.6b", 0.7), ("modernbert-base", 0.66)):
            weights = {"backbone_weights": backbone}
            write_run(
                "results", "lora", "rte", seed, score + 0.01 * seed, backbone=backbone, **weights
            )
            write_run("results", "full-ft", "rte", seed, 0.5, backbone=backbone, **weights)
    words = ("--backbones", "modernbert-base,qwen3-0.6b", "--format", "json")
    answer = hifi("compare lora", *words)
    rows, _ = said(answer)
    assert [(row["method"], row["verdict"], row["pairs"]) for row in rows] == [
        ("qwen3-0.6b", "worse", 8)
    ]
    assert rows[0]["mean"] == pytest.approx(-4)
    assert "modernbert-base minus each other backbone" in answer.out and "method lora" in answer.out
    write_run("results", "lora", "rte", 1, 0.9, backbone="qwen3-0.6b", backbone_weights="others")
    rows, notes = said(hifi("compare lora", *words))
    assert rows[0]["pairs"] == 7 and any("left out: different encoder" in note for note in notes)
    command = "hifi train --task rte --method lora --protocol hifi --backbone minilm --seeds 1,2,"
    answer = hifi("compare lora --backbones minilm,qwen3-0.6b")
    assert f"no finished run of minilm; make one with {command}" in answer.err
    assert "under one method" in hifi("compare lora full-ft", *words).err
