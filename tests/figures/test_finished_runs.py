"""Figures of finished runs: the numbers against tables and comparisons, from run directories and packed studies."""

import hashlib
import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from synthetic_runs import write_run

from hifi_cli.drawing.looks import looks_of

WORDS = ("--protocol", "laptop", "--backbone", "minilm")


def grid(methods=("full-ft", "lora", "bitfit"), tasks=("rte", "cola"), seeds=(1, 2, 3)):
    """Runs with scores of their own, three epochs and logged losses."""
    generator = np.random.default_rng(4)
    for task in tasks:
        metric = "matthews" if task == "cola" else "accuracy"
        for method in methods:
            for seed in seeds:
                score = float(generator.uniform(0.5, 0.9))
                epochs = [{"epoch": at, metric: score - 0.1 / at} for at in (1, 2, 3)]
                steps = [{"step": at, "loss": score / at, "learning_rate": 0.1} for at in (10, 20)]
                place = {"protocol": "laptop", "backbone": "minilm"}
                write_run("results", method, task, seed, score, curve=[*steps, *epochs], **place)


def numbers(hifi, name, *words):
    answer = hifi("figure", name, *WORDS, "--out", "picture.svg", *words)
    assert answer.code == 0, answer.err
    path = answer.err.partition("numbers: ")[2].splitlines()[0]
    return pd.read_csv(path), answer


def test_scores_are_those_of_the_table(hifi):
    grid()
    data, _ = numbers(hifi, "scores")
    table = json.loads(hifi("table", *WORDS, "--format", "json").out)
    for row in table["rows"]:
        for task in ("rte", "cola"):
            cell = data[(data["method"] == row["method"]) & (data["task"] == task)]
            assert cell["mean"].iloc[0] == pytest.approx(row[task])
            assert cell["score"].std() == pytest.approx(row[f"{task}_std"])
            interval = stats.t.interval(0.95, 2, cell["score"].mean(), stats.sem(cell["score"]))
            lowest = -100 if task == "cola" else 0
            ends = np.clip(interval, lowest, 100)
            assert cell[["low", "high"]].iloc[0].tolist() == pytest.approx(ends)


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["scores", "curves", "forest"])
def test_panels_have_the_labels_of_own_tasks(hifi, figure):
    grid(tasks=("tickets", "rte"), seeds=(1, 2))
    for run in Path("results").glob("runs/*/*/tickets/*/seed*"):
        kept = run / "own" / "tasks" / "tickets.yaml"
        kept.parent.mkdir(parents=True)
        kept.write_text("description: Support tickets\nlabel: Tickets!\n")
    numbers(hifi, figure)
    titles = Path("picture.svg").read_text()
    assert "Tickets!" in titles and "tickets" not in titles and "RTE" in titles


def test_an_interval_ends_where_the_score_ends(hifi):
    for seed, score in enumerate((0.61, 0.92, 0.97), start=1):
        write_run("results", "lora", "rte", seed, score, protocol="laptop", backbone="minilm")
    write_run("results", "bitfit", "rte", 1, 0.8, protocol="laptop", backbone="minilm")
    both, _ = numbers(hifi, "scores")
    # A single seed has no interval.
    assert both.loc[both["method"] == "bitfit", ["low", "high"]].isna().all(axis=None)
    data = both[both["method"] == "lora"]
    low, high = stats.t.interval(0.95, 2, 83 + 1 / 3, stats.sem([61, 92, 97]))
    assert high > 100
    assert data[["low", "high"]].iloc[0].tolist() == pytest.approx([low, 100])


@pytest.mark.parametrize("kind", ["scores", "forest"])
def test_the_score_may_be_that_of_the_last_epoch(hifi, kind):
    place = {"protocol": "laptop", "backbone": "minilm"}
    for seed in (1, 2):
        write_run("results", "full-ft", "rte", seed, 0.9, last=0.5 + seed / 100, **place)
        write_run("results", "lora", "rte", seed, 0.9, last=0.6 + seed / 50, **place)
    Path("mine.yaml").write_text(
        f"{{description: d, kind: {kind}, tasks: [], methods: [], seeds: [], backbone: minilm,"
        " protocol: laptop, settings: {score: last}}"
    )
    data, _ = numbers(hifi, "mine.yaml")
    of_lora = data[data["method"] == "lora"].iloc[0]
    shown = {"scores": "mean", "forest": "difference"}[kind]
    assert of_lora[shown] == pytest.approx({"mean": 63, "difference": 11.5}[shown])


@pytest.mark.parametrize("name", ["scores", "forest"])
def test_runs_of_one_backbone_need_no_option_that_names_it(hifi, name):
    place = {"protocol": "mine", "backbone": "my-encoder"}
    for method in ("full-ft", "lora"):
        for seed in (1, 2):
            write_run("results", method, "rte", seed, 0.6 + seed / 100, **place)
    answer = hifi(f"figure {name} --protocol mine --out picture.svg")
    assert answer.code == 0, answer.err
    assert "my-encoder" in Path("picture.svg").read_text()
    write_run("results", "lora", "rte", 1, 0.7, protocol="mine", backbone="another")
    answer = hifi(f"figure {name} --protocol mine --out picture.svg")
    assert answer.code == 3 and "(backbone another)" in answer.err


@pytest.mark.parametrize("name", ["scores", "forest", "curves"])
def test_limited_and_few_shot_runs_are_in_no_figure(hifi, name):
    grid()
    before, _ = numbers(hifi, name)
    place = {"protocol": "laptop", "backbone": "minilm"}
    write_run("results", "lora", "rte", 9, 0.1, limit=20, **place)
    # Few-shot runs are another table's, also where there are more of them.
    for method in ("full-ft", "lora", "bitfit"):
        for seed in range(1, 8):
            write_run("results", method, "rte", seed, 0.2, shots=16, **place)
    after, answer = numbers(hifi, name)
    pd.testing.assert_frame_equal(before, after)
    assert "1 run left out: limited" in answer.err


@pytest.mark.parametrize("word", ["--train", "epochs=9"])
def test_what_changes_no_finished_run_is_refused(hifi, word):
    grid(tasks=("rte",))
    answer = hifi("figure scores", *WORDS, word, "--out", "picture.svg")
    assert answer.code == 2 and f"{word}: this figure shows finished runs" in answer.err
    assert not Path("picture.svg").exists()


def test_differences_are_those_of_compare(hifi):
    grid()
    data, _ = numbers(hifi, "forest")
    main, per_task = json.loads(hifi("compare lora,full-ft", *WORDS, "--format", "json").out)
    of_lora = data[data["method"] == "lora"].set_index("task")
    overall = of_lora[of_lora.index.isna()].iloc[0]
    assert overall[["difference", "low", "high"]].tolist() == pytest.approx(
        [main["rows"][0][key] for key in ("mean", "low", "high")]
    )
    assert (overall["pairs"], overall["tasks"]) == (6, 2)
    for row in per_task["rows"]:
        assert of_lora.loc[row["method"], "difference"] == pytest.approx(row["full-ft"])
    assert "minus Full-FT [points]" in Path("picture.svg").read_text()


def test_the_first_of_the_methods_is_the_reference(hifi):
    grid()
    data, _ = numbers(hifi, "forest", "--methods", "bitfit,lora")
    assert {*data["method"]} == {"lora"} and {*data["reference"]} == {"BitFit"}


def test_the_words_of_the_command_choose_and_order_what_is_shown(hifi):
    grid()
    words = ("--tasks", "rte,cola", "--methods", "lora,bitfit", "--seeds", "1,3")
    data, _ = numbers(hifi, "scores", *words)
    shown = data[["task", "method", "run_seed"]].agg(tuple, axis=1)
    assert shown.tolist() == [*product(("rte", "cola"), ("lora", "bitfit"), (1, 3))]
    data, _ = numbers(hifi, "curves", "--tasks", "rte", "--seeds", "2")
    assert {*data["task"]} == {"rte"}
    # One seed has no deviation.
    assert {*data["seeds"]} == {1} and {*data["std"]} == {0}


def test_curves_are_means_over_seeds(hifi):
    grid(tasks=("rte",))
    # This seed was stopped early, so that the others go on to where no mean is of all seeds.
    short = [{"step": 10, "loss": 0.08, "learning_rate": 0.1}]
    short += [{"epoch": at, "accuracy": 0.8 - 0.1 / at} for at in (1, 2)]
    write_run("results", "lora", "rte", 4, 0.8, curve=short, protocol="laptop", backbone="minilm")
    data, _ = numbers(hifi, "curves", "--methods", "lora")
    runs = hifi("ls runs --format json").out
    scores = [run["score"] for run in json.loads(runs) if run["method"] == "lora"]
    of_scores = data[data["curve"] == "score"].set_index("x")
    assert of_scores.loc[2, "mean"] == pytest.approx(np.mean(scores) - 5)
    assert of_scores.loc[2, "std"] == pytest.approx(np.std(scores, ddof=1))
    assert of_scores.index.tolist() == [1, 2]
    of_losses = data[data["curve"] == "loss"].set_index("x")
    assert of_losses["mean"].to_dict() == pytest.approx({10: np.mean(scores) / 1000})
    text = Path("picture.svg").read_text()
    assert "training loss" in text and "optimizer step" in text


def test_a_packed_study_has_scores_and_no_losses(hifi):
    grid(tasks=("rte",))
    assert hifi("results pack results --out packed").code == 0
    data, answer = numbers(hifi, "curves", "--results-dir", "packed")
    assert {*data["curve"]} == {"score"} and "has no training losses" in answer.err
    for name in ("scores", "forest"):
        unpacked, _ = numbers(hifi, name)
        assert numbers(hifi, name, "--results-dir", "packed")[0].equals(unpacked)


def test_the_numbers_stand_beside_the_picture_and_not_in_the_study(hifi, tmp_path):
    grid(tasks=("rte",))
    assert hifi("results pack results --out packed").code == 0
    before = sorted((tmp_path / "packed").rglob("*"))
    answer = hifi("figure", "scores", *WORDS, "--results-dir", "packed", "--out", "mine.pdf")
    assert answer.out == "mine.pdf\n" and (tmp_path / "mine.pdf.csv").is_file()
    assert sorted((tmp_path / "packed").rglob("*")) == before
    answer = hifi("figure", "scores", *WORDS)
    assert answer.out == "results/figures/scores-laptop.png\n"
    assert (tmp_path / "results/figures/scores-laptop.csv").is_file()


def test_new_runs_are_in_the_next_picture(hifi):
    grid(tasks=("rte",), methods=("full-ft", "lora"))
    assert {*numbers(hifi, "scores")[0]["method"]} == {"full-ft", "lora"}
    grid(tasks=("rte",), methods=("bitfit",))
    assert {*numbers(hifi, "scores")[0]["method"]} == {"full-ft", "lora", "bitfit"}


def test_a_method_has_its_color_in_every_picture(hifi):
    grid()
    looks = looks_of(["lora", "bitfit"])
    for name in ("scores", "forest", "curves"):
        numbers(hifi, name)
        text = Path("picture.svg").read_text().lower()
        assert all(look.color.lower() in text for look in looks.values()), name


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["scores", "epochs=1"], 2, "epochs=1: this figure shows finished runs"),
        (
            ["scores", "--protocol", "demo"],
            3,
            "no finished run of --protocol demo --backbone minilm",
        ),
        (["scores", "--methods", "dora"], 3, "no usable run of dora on"),
        (["forest", "--methods", "lora,dora"], 3, "no method shares a task and seed with lora"),
    ],
)
def test_what_cannot_be_shown_is_told(hifi, words, code, message):
    grid()
    answer = hifi("figure", words[0], *WORDS, *words[1:])
    assert answer.code == code and message in answer.err, answer.err


def test_a_grid_of_such_a_figure_is_refused_and_others_need_tasks(hifi, tmp_path):
    answer = hifi("grid figure-scores --print --protocol laptop")
    assert answer.code == 2 and "shows the finished runs that there are" in answer.err
    (tmp_path / "mine.yaml").write_text(
        "description: d\nkind: sweep\ntasks: []\nbackbone: demo\nsettings: {key: heads.k, values: [1]}\n"
    )
    answer = hifi("figure mine.yaml")
    assert answer.code == 2 and "tasks: one or more are required" in answer.err


def figures_findings(hifi):
    """What a check finds of figures, and the figures that name no runs."""
    checked = json.loads(hifi("results check --format json").out)
    findings = checked["findings"].items()
    of_figures = {name: found for name, found in findings if name.startswith("figures/")}
    return of_figures, checked["figures_without_runs"]


def test_a_check_proves_that_numbers_are_of_the_runs_that_are_here(hifi):
    grid(methods=("full-ft", "lora"), tasks=("rte",), seeds=(1, 2))
    assert hifi("figure scores", *WORDS).code == 0
    (csv,) = Path("results/figures").glob("*.csv")
    beside = csv.with_suffix(".runs.json")
    stored = json.loads(beside.read_text())
    assert stored["csv_sha256"] == hashlib.sha256(csv.read_bytes()).hexdigest()
    folder = "runs/laptop/minilm/rte"
    paths = [f"{folder}/{method}/seed{seed}" for method in ("full-ft", "lora") for seed in (1, 2)]
    assert sorted(run["run"] for run in stored["runs"]) == paths
    assert all(run["is_finished"] for run in stored["runs"])
    assert figures_findings(hifi) == ({}, [])
    name = f"figures/{csv.name}"

    changed = Path("results") / paths[0] / "results.json"
    before = changed.read_text()
    changed.write_text(json.dumps({**json.loads(before), "backbone_weights": "0" * 64}))
    text = f"rests on another {paths[0]}, which differs in backbone_weights"
    assert figures_findings(hifi) == ({name: [text]}, [])
    answer = hifi("results check")
    assert answer.code == 1 and f"{name}: not of the runs that are here" in answer.err
    changed.unlink()
    assert figures_findings(hifi) == ({name: [f"rests on {paths[0]}, which is not here"]}, [])
    changed.write_text(before)

    numbers = csv.read_text()
    csv.write_text(numbers.replace("lora", "adapter"))
    text = f"has other bytes than {beside.name} says (csv_sha256)"
    assert figures_findings(hifi) == ({name: [text]}, [])
    csv.write_text(numbers)
    beside.write_text("{}")
    assert "is damaged" in figures_findings(hifi)[0][name][0]
    beside.unlink()
    assert figures_findings(hifi) == ({}, [name])
    assert f"{name}: note: does not say which runs it rests on" in hifi("results check").out
