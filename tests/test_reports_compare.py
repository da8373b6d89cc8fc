"""`hifi compare`: what is computed from paired runs, and what may be said about it."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from sklearn.metrics import f1_score
from synthetic_runs import write_run

from hifi_cli.config import registry


def grid(first, second, tasks=("rte",), seeds=range(1, 6), gap=0.01, **changes):
    for task, seed in itertools.product(tasks, seeds):
        wobble = 0.001 * ((seed * 7 + len(task)) % 5)
        write_run("results", second, task, seed, 0.6 + 0.02 * seed)
        write_run("results", first, task, seed, 0.6 + 0.02 * seed + gap + wobble, **changes)


def said(answer):
    assert answer.code == 0, answer.err
    main, per_task, *details = json.loads(answer.out)
    for row in main["rows"]:
        row["tasks"] = {task["name"]: task["cells"][row["name"]]["value"] for task in per_task["rows"]}
        for further in (other for table in details for other in table["rows"] if other["name"] == row["name"]):
            row["cells"] |= further["cells"]
    return main["rows"], main["notes"]


def test_five_seeds_on_one_task_allow_no_conclusion(hifi):
    grid("bitfit", "full-ft", gap=0.2)
    rows, notes = said(hifi("compare", "bitfit", "full-ft", "--format", "json"))
    assert rows[0]["cells"]["p_holm"]["value"] == 0.0625
    assert rows[0]["cells"]["mean"]["value"] == pytest.approx(20.2) == rows[0]["tasks"]["rte"]
    assert notes[0] == (
        "BitFit and Full-FT: no conclusion, 5 pairs, 5 of which differ, cannot reach p < 0.05 (smallest: 0.0625); 6 are needed"
    )


def test_a_comparison_fits_a_terminal(hifi, monkeypatch):
    grid("bitfit", "full-ft", tasks=("rte", "cola", "mrpc", "stsb", "cb", "copa", "wic", "qnli", "boolq"))
    printed = hifi("compare", "bitfit", "full-ft", "--details").out
    tables = [line for line in printed.splitlines() if not line.startswith("note: ")]
    assert sum(set(line) == {"─"} for line in tables) == 3 and max(map(len, tables)) <= 80


def test_enough_pairs_allow_one_and_name_its_limits(hifi):
    grid("bitfit", "full-ft", tasks=("rte", "cola"), seeds=range(1, 6))
    rows, notes = said(hifi("compare", "full-ft", "bitfit", "--format", "json"))
    assert rows[0]["cells"]["mean"]["value"] < 0 and rows[0]["verdict"] == "worse"
    low, high = rows[0]["cells"]["interval"]["value"]
    assert low < rows[0]["cells"]["mean"]["value"] < high < 0
    numbers = r"\(-1\.\d\d \[-1\.\d\d, -1\.\d\d\], p = 0\.00195; 2 tasks, 5 seeds\)"
    assert re.fullmatch(f"BitFit is better than Full-FT {numbers}", notes[0])
    assert "about these tasks and new seeds" in notes[1]
    rows, notes = said(hifi("compare", "full-ft", "bitfit", "--tasks", "rte", "--format", "json"))
    assert rows[0]["verdict"] == "no conclusion" and [*rows[0]["tasks"]] == ["rte"] and "no conclusion" in notes[0]


def test_a_difference_that_is_not_shown_is_not_equality(hifi):
    for seed in range(1, 9):
        write_run("results", "full-ft", "rte", seed, 0.6)
        write_run("results", "bitfit", "rte", seed, 0.6 + 0.01 * (-1) ** seed * seed)
    rows, notes = said(hifi("compare", "bitfit", "full-ft", "--format", "json"))
    assert rows[0]["verdict"] == "no difference shown"
    assert "no difference shown" in notes[0] and "which is not equality" in notes[0]


def test_pairs_without_a_difference_do_not_count(hifi):
    for seed, gap in enumerate((0.0, 0.0, 0.01, 0.02, 0.03, 0.04), 1):
        write_run("results", "full-ft", "rte", seed, 0.5)
        write_run("results", "bitfit", "rte", seed, 0.5 + gap)
    rows, notes = said(hifi("compare", "bitfit", "full-ft", "--details", "--format", "json"))
    assert rows[0]["cells"]["pairs"]["value"] == 6 and rows[0]["cells"]["p"]["value"] == 0.125
    assert "6 pairs, 4 of which differ, cannot reach p < 0.05 (smallest: 0.125)" in notes[0]


def test_several_methods_are_corrected_for(hifi):
    grid("bitfit", "full-ft", seeds=range(1, 7))
    grid("hifi-layerwise", "full-ft", seeds=range(1, 7), gap=0.02)
    rows, notes = said(hifi("compare", "full-ft", "bitfit", "hifi-layerwise", "--details", "--format", "json"))
    assert [row["cells"]["p"]["value"] for row in rows] == [0.03125, 0.03125]
    assert [row["cells"]["p_holm"]["value"] for row in rows] == [0.0625, 0.0625]
    assert all("no conclusion" in note and note.endswith("(smallest: 0.0625); 7 are needed") for note in notes[:2])


def test_the_smallest_possible_p_is_never_above_the_printed_one(hifi):
    grid("bitfit", "full-ft", seeds=range(1, 12))
    grid("hifi-layerwise", "full-ft", seeds=range(1, 6), gap=0.02)
    rows, notes = said(hifi("compare", "full-ft", "bitfit", "hifi-layerwise", "--format", "json"))
    # Holm: the smaller p (2 of 2^11) counts twice, the larger one (2 of 2^5) once
    assert [row["cells"]["p_holm"]["value"] for row in rows] == [2 * 2 / 2**11, 0.0625]
    assert "BitFit is better" in notes[0] and "p = 0.00195" in notes[0]
    assert "(smallest: 0.0625); 6 are needed" in notes[1]


def test_equal_differences_have_no_spread_and_say_so(hifi):
    for seed in range(1, 9):
        write_run("results", "full-ft", "rte", seed, 0.5)
        write_run("results", "bitfit", "rte", seed, 0.625)
    rows, notes = said(hifi("compare", "bitfit", "full-ft", "--format", "json"))
    assert rows[0]["cells"]["p_holm"]["value"] == 2 / 2**8 and rows[0]["cells"]["interval"]["value"] == [12.5, 12.5]
    assert "BitFit is better than Full-FT (+12.50 [+12.50, +12.50]" in notes[0]


def test_the_mean_is_over_tasks_as_in_the_table(hifi):
    for task, gap, seeds in (("rte", 0.02, range(1, 11)), ("cola", -0.03, (1, 2))):
        for seed in seeds:
            write_run("results", "full-ft", task, seed, 0.5)
            write_run("results", "bitfit", task, seed, 0.5 + gap + 0.001 * (-1) ** seed)
    rows, _ = said(hifi("compare", "bitfit", "full-ft", "--details", "--format", "json"))
    cells = rows[0]["cells"]
    assert cells["mean"]["value"] == pytest.approx((2.0 - 3.0) / 2)  # pooled over 12 pairs it would be +1.17
    assert cells["std_over_tasks"]["value"] == pytest.approx(5.0 / 2**0.5)
    assert rows[0]["tasks"] == pytest.approx({"cola": -3.0, "rte": 2.0})
    averages = {row["method"]: row["average"] for row in json.loads(hifi("table", "--format", "json").out)["rows"]}
    assert averages["bitfit"] - averages["full-ft"] == pytest.approx(cells["mean"]["value"])


def test_only_partners_are_paired(hifi):
    grid("bitfit", "full-ft", seeds=(1, 2, 3))
    write_run("results", "full-ft", "rte", 4, 0.0)
    write_run("results", "bitfit", "rte", 5, 1.0)
    write_run("results", "bitfit", "cola", 1, 1.0)
    rows, notes = said(hifi("compare", "bitfit", "full-ft", "--details", "--format", "json"))
    assert rows[0]["cells"]["pairs"]["value"] == 3 and 1.0 < rows[0]["cells"]["mean"]["value"] < 1.5
    assert "RTE: 2 runs left out: the other method has no run with the same seed" in notes
    assert "CoLA: 1 run left out: the other method has no run with the same seed" in notes


def test_scores_of_different_metrics_are_never_compared(hifi):
    for seed in (1, 2):
        both = {"accuracy": 0.6, "matthews": 0.5}
        write_run("results", "bitfit", "cola", seed, 0.5, primary_metric="matthews", metrics=both)
        other = {"accuracy": 0.7, "matthews": 0.4}
        write_run("results", "full-ft", "cola", seed, 0.7, primary_metric="accuracy", metrics=other)
    for words in ([], ["--include", "unequal"]):
        answer = hifi("compare", "bitfit", "full-ft", *words)
        assert answer.code == 3 and "differ in primary metric (matthews and accuracy)" in answer.err


def test_methods_that_collapse_unlike_get_a_verdict_for_both_countings(hifi):
    grid("bitfit", "full-ft", seeds=range(1, 8))
    write_run("results", "bitfit", "rte", 8, 0.2, collapsed=True)
    write_run("results", "full-ft", "rte", 8, 0.6)
    for words, pairs, mean in (((), 8, -4), (("--exclude", "collapsed"), 7, 1)):
        rows, notes = said(hifi("compare", "bitfit", "full-ft", *words, "--details", "--format", "json"))
        assert rows[0]["cells"]["pairs"]["value"] == pairs
        assert rows[0]["cells"]["mean"]["value"] == pytest.approx(mean, abs=0.5)
        if words:
            assert rows[0]["verdict"] == "better"
            assert "BitFit on RTE: 1 collapsed run left out (by --exclude collapsed)" in notes
            continue
        assert rows[0]["verdict"] == "depends on collapsed runs"
        counted, left_out = notes[0].split("Without them: ")
        assert "1 of BitFit's and 0 of Full-FT's 8 runs collapsed. With them: BitFit and Full-FT: no difference" in counted
        assert "BitFit is better than Full-FT" in left_out


def test_methods_that_collapse_alike_get_a_verdict_for_both_countings_too(hifi):
    grid("bitfit", "full-ft", seeds=range(1, 8))
    for method, seed in (("bitfit", 8), ("full-ft", 9)):
        for other in ("bitfit", "full-ft"):
            write_run("results", other, "rte", seed, 0.5, collapsed=other == method)
    rows, notes = said(hifi("compare", "bitfit", "full-ft", "--format", "json"))
    assert rows[0]["verdict"] == "better" and "Without them: BitFit is better" in notes[0]
    assert "1 of BitFit's and 1 of Full-FT's 9 runs collapsed" in notes[0]


def test_a_method_whose_every_run_collapsed_is_still_compared(hifi):
    grid("bitfit", "full-ft", seeds=range(1, 8), gap=-0.3, collapsed=True)
    _, notes = said(hifi("compare", "bitfit", "full-ft", "--format", "json"))
    assert "With them: Full-FT is better than BitFit" in notes[0]
    assert "Without them: BitFit and Full-FT: no conclusion, 0 pairs" in notes[0]
    answer = hifi("compare", "bitfit", "full-ft", "--exclude", "collapsed")
    assert (
        answer.code == 3
        and "share no task and seed with a usable run: BitFit on RTE: 7 collapsed runs left out (by --exclude collapsed)"
        in answer.err
    )


def test_the_method_that_diverged_more_often_is_not_called_better(hifi):
    grid("bitfit", "full-ft", seeds=range(1, 8))
    for seed in (8, 9):
        write_run("results", "bitfit", "rte", seed, 0.0, status="diverged", scores=None, metrics=None, collapsed=True)
    _, notes = said(hifi("compare", "bitfit", "full-ft", "--format", "json"))
    assert "no conclusion: BitFit is ahead (" in notes[0]
    assert "2 of its 9 runs diverged, 0 of 7 of Full-FT" in notes[0]
    grid("bitfit", "full-ft", seeds=range(1, 8), gap=-0.1)
    _, notes = said(hifi("compare", "bitfit", "full-ft", "--format", "json"))
    assert "Full-FT is better than BitFit" in notes[0]


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"epochs": 16}, "epochs (16 and 3)"),
        ({"report": "last"}, "reported epoch (last and best)"),
        ({"selection": "holdout"}, "selection (holdout and validation)"),
        ({"split": "test"}, "split (test and validation)"),
        ({"data": {"train": "other", "validation": "v"}}, "data"),
        ({"epochs": 5, "data": {}}, "epochs (5 and 3), data"),
    ],
)
def test_runs_under_other_conditions_are_refused_by_name(changes, differing, hifi):
    grid("bitfit", "full-ft", tasks=("rte", "cola"))
    grid("bitfit", "full-ft", tasks=("rte",), **changes)
    expected_note = f"RTE: left out: BitFit and Full-FT differ in {differing}; --include unequal compares them"
    rows, notes = said(hifi("compare", "bitfit", "full-ft", "--details", "--format", "json"))
    assert rows[0]["cells"]["pairs"]["value"] == 5 and expected_note in notes
    answer = hifi("compare", "bitfit", "full-ft", "--tasks", "rte")
    assert answer.code == 3 and expected_note in answer.err and len(answer.err.splitlines()) == 1
    rows, notes = said(hifi("compare", "bitfit", "full-ft", "--include", "unequal", "--details", "--format", "json"))
    assert rows[0]["cells"]["pairs"]["value"] == 10
    assert f"RTE: compared although BitFit and Full-FT differ in {differing}" in notes


def test_epochs_that_the_protocol_has_for_each_method_are_compared(hifi):
    """HiFi's table 2 trains BitFit for the 16 epochs of BitFit's own paper, and compares."""
    for seed, (method, epochs) in itertools.product(range(1, 6), (("hifi-layerwise", 5), ("bitfit", 16))):
        write_run("results", method, "rte", seed, 0.6 + 0.01 * seed, epochs=epochs)
    rows, notes = said(hifi("compare", "hifi-layerwise", "bitfit", "--details", "--format", "json"))
    assert rows[0]["cells"]["pairs"]["value"] == 5
    assert "RTE: epochs differ (5 and 16), as the protocol has them for the two methods" in notes
    assert "not compared" not in hifi("table", "hifi-2", "--tasks", "rte").out
    for seed in range(1, 6):
        write_run("results", "bitfit", "rte", seed, 0.6, epochs=15)
    assert "differ in epochs (5 and 15)" in hifi("compare", "hifi-layerwise", "bitfit").err


def test_another_reported_epoch_does_not_matter_where_one_is_asked_for(hifi):
    grid("bitfit", "full-ft", report="last")
    rows, notes = said(hifi("compare", "bitfit", "full-ft", "--score", "last", "--details", "--format", "json"))
    assert rows[0]["cells"]["pairs"]["value"] == 5 and not any("differ in" in note for note in notes)


@pytest.mark.parametrize(
    ("changes", "words", "too_high"),
    [
        ({}, [], True),
        ({}, ["--score", "last"], False),
        ({"shots": 16}, [], False),  # rows of the train split chose the epoch
        ({"selection": "holdout"}, [], False),
        ({"shots": 16}, ["--score", "max"], True),  # the highest on the reported split, whatever chose the epoch
        ({"selection": "holdout"}, ["--score", "max"], True),
    ],
)
def test_scores_are_called_too_high_where_the_reported_split_chose_the_epoch(hifi, changes, words, too_high):
    for method, seed in itertools.product(("bitfit", "full-ft"), range(1, 4)):
        write_run("results", method, "rte", seed, 0.6 + 0.01 * seed, **changes)
    _, notes = said(hifi("compare", "bitfit", "full-ft", *words, "--format", "json"))
    assert any("the epoch was chosen on the reported split" in note for note in notes) is too_high


def test_limits_must_agree_too(hifi):
    grid("bitfit", "full-ft", limited=True, limit=64)
    for seed in range(1, 6):
        write_run("results", "full-ft", "rte", seed, 0.6, limited=True, limit=128)
    answer = hifi("compare", "bitfit", "full-ft", "--include", "limited")
    assert "differ in limit (64 and 128)" in answer.err


def test_full_shot_is_never_compared_with_few_shot(hifi):
    for seed in range(1, 9):  # two methods of one score: the difference of 27.8 points is that of the data they saw
        write_run("results", "bitfit", "rte", seed, 0.778)
        write_run("results", "linear-probing", "rte", seed, 0.5, shots=16)
    answer = hifi("compare", "bitfit", "linear-probing")
    assert answer.code == 2 and len(answer.err.splitlines()) == 1
    assert "runs of several numbers of shots: choose one with --shots (bitfit: full; linear-probing: 16)" in answer.err
    answer = hifi("compare", "bitfit", "linear-probing", "--shots", "16")
    assert answer.code == 3 and "no finished run of bitfit --shots 16" in answer.err
    for seed in range(1, 9):
        write_run("results", "bitfit", "rte", seed, 0.55, shots=16)
        write_run("results", "linear-probing", "rte", seed, 0.7)
    for shots, mean in (("16", 5.0), ("full", 7.8)):
        answer = hifi("compare", "bitfit", "linear-probing", "--shots", shots, "--format", "json")
        assert said(answer)[0][0]["cells"]["mean"]["value"] == pytest.approx(mean)
        assert ("16-shot" in json.loads(answer.out)[0]["title"]) is (shots == "16")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["full-ft"], 2, "two or more different methods"),
        (["full-ft", "full-ft"], 2, "two or more different methods"),
        (["full-ft", "mixout"], 3, "no finished run of mixout"),
        (
            ["full-ft", "bitfit"],
            2,
            "several backbones: choose one with --backbone (full-ft: bert-large, minilm; bitfit: bert-large)",
        ),
        (["full-ft", "bitfit", "--shots", "few"], 2, "a number of training rows per class, or full, is required"),
        (
            ["full-ft", "bitfit", "--include", "collapsed"],
            2,
            "'collapsed' is not one of limited, unequal",
        ),
        (["full-ft", "bitfit", "--exclude", "limited"], 2, "'limited' is not one of collapsed"),
        (["full-ft", "bitfit", "--backbone", "bert-large", "--tasks", "cola"], 3, "share no task and seed"),
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
    Path("a").mkdir()
    Path("b").mkdir()
    answer = hifi("compare", *words)
    assert answer.code == code and message in answer.err and len(answer.err.splitlines()) == 1


def test_a_small_p_is_printed_as_below_the_smallest_printed_one(hifi):
    grid("bitfit", "full-ft", seeds=range(1, 21), gap=0.1)
    (row,), _ = said(hifi("compare", "bitfit", "full-ft", "--format", "json"))
    assert 0 < row["cells"]["p_holm"]["value"] < 0.0001
    for form in ("md", "text", "tex"):
        printed = hifi("compare", "bitfit", "full-ft", "--format", form).out
        assert "0.0000" not in printed and "0.0001" in printed


def test_a_report_says_that_the_compared_method_has_no_run(hifi):
    grid("lora", "full-ft")
    answer = hifi("report", "--compare", "bitfit")
    assert answer.code == 3 and "no finished run of bitfit; make one with hifi train --method bitfit" in answer.err
    answer = hifi("report", "--compare", "bitfitt")
    assert answer.code == 2 and "unknown method 'bitfitt'; did you mean 'bitfit'?" in answer.err


def write_predictions(method, seed, right, *, task="rte", **changes):
    """A run whose predictions are right on the first `right` of 50 examples."""
    labels = ["entailment", "not_entailment"] * 25
    others = {"entailment": "not_entailment", "not_entailment": "entailment"}
    rows = [
        {"id": str(i), "label": label, "prediction": label if i < right else others[label], "logits": [0.0, 1.0]}
        for i, label in enumerate(labels)
    ]
    folder = write_run("results", method, task, seed, right / 50, **changes)
    (folder / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_two_runs_are_compared_by_their_predictions(hifi):
    first, second = write_predictions("bitfit", 1, 40), write_predictions("full-ft", 1, 30)
    answer = hifi("compare", first, second, "--format", "json")
    content = json.loads(answer.out)
    assert [row["cells"]["score"]["value"] for row in content["rows"]] == [80.0, 60.0]
    difference, low, high, examples = re.match(
        r"first minus second: (\S+) points \[(\S+), (\S+)\] .* of (\d+)", content["notes"][0]
    ).groups()
    assert (difference, examples) == ("+20.00", "50") and 5 < float(low) < 12 and 28 < float(high) < 35
    other = write_predictions("bitfit", 1, 40, task="cola")
    assert "different tasks, rte and cola" in hifi("compare", first, other).err
    assert "differ in data" in hifi("compare", first, write_predictions("lora", 1, 40, data={})).err
    (second / "predictions.jsonl").unlink()
    assert hifi("compare", first, second).code == 3


def test_two_runs_of_a_multi_label_task_are_compared_by_its_metric(hifi):
    """scikit-learn's f1_micro of the stored label sets."""
    words = registry.load("tasks", "demo-topics")["labels"]
    rng = np.random.default_rng(1)
    labels = rng.random((30, len(words))) < 0.4
    folders, scores = [], []
    for method, noise in (("bitfit", 0.1), ("full-ft", 0.3)):
        said = labels ^ (rng.random(labels.shape) < noise)
        rows = [
            {"id": str(i), "label": named(words, labels[i]), "prediction": named(words, said[i]), "logits": [0.0]}
            for i in range(len(labels))
        ]
        scores.append(f1_score(labels, said, average="micro"))
        folder = write_run("results", method, "demo-topics", 1, scores[-1], primary_metric="f1_micro")
        (folder / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        folders.append(folder)
    content = json.loads(hifi("compare", *folders, "--format", "json").out)
    assert [row["cells"]["score"]["value"] for row in content["rows"]] == pytest.approx([100 * score for score in scores])


def named(words, row):
    return [word for word, is_set in zip(words, row, strict=True) if is_set]


def test_equality_within_a_margin_is_tested(hifi):
    grid("bitfit", "full-ft", seeds=range(1, 8))
    _, notes = said(hifi("compare", "bitfit", "full-ft", "--margin", "3", "--format", "json"))
    assert any(note.startswith("BitFit and Full-FT are equal within 3 points (two one-sided t-tests, p = ") for note in notes)
    _, notes = said(hifi("compare", "bitfit", "full-ft", "--margin", "1", "--format", "json"))
    assert any("BitFit and Full-FT are not shown to be equal within 1 points" in note for note in notes)


def test_runs_of_searches_are_left_out_by_name(hifi):
    grid("bitfit", "full-ft")
    source = Path("results/runs/hifi/bert-large/rte/bitfit/seed1")
    for name in ("a", "b"):
        copy = source.parent / name / "seed1"
        copy.mkdir(parents=True)
        for file in ("config.yaml", "results.json"):
            content = yaml.safe_load((source / file).read_text()) | {"variant": name}
            (copy / file).write_text(json.dumps(content))
    rows, notes = said(hifi("compare", "bitfit", "full-ft", "--details", "--format", "json"))
    assert rows[0]["cells"]["pairs"]["value"] == 5
    assert "2 runs of searches and other variants left out" in notes
