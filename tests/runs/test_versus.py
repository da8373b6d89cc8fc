"""`hifi versus`: a new method against stored baselines, through the command."""

import json
import re
import shutil
from pathlib import Path
from statistics import mean

import pytest
from run_folders import demo_folder

from hifi_cli.config.sources import resolve
from hifi_cli.runs.cost import CostEstimator, MeasuredStep, results_in
from hifi_cli.tasks import task_spec

METHOD = """
from hifi_cli.methods.base import Method
from hifi_cli.methods.common import freeze_except


class NormTuning(Method):
    def prepare(self, encoder):
        norms = [name for name, _ in encoder.model.named_parameters() if "LayerNorm" in name]
        freeze_except(encoder, [*encoder.task_head, *norms])
"""
YAML = """
description: Train the LayerNorms and the task head
label: NormTuning
source: mine
implementation: ./norm_tuning.py
config: {learning_rate: 5.5e-3}
"""
TASKS = ("demo-entailment", "demo-acceptability")
SEEDS = (1, 2, 3)
# Eight steps a run: few, and scores of methods and seeds differ.
SETTINGS = "epochs=1 batch_size=8"
VERSUS = f"versus norm-tuning.yaml --study study {SETTINGS}"


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Packs a study once: two baselines, of which one was searched."""
    place = tmp_path_factory.mktemp("packed") / "study"

    def make(hifi):
        tasks = ",".join(TASKS)
        train = f"train --protocol demo {SETTINGS} --results-dir stored"
        assert hifi(f"{train} --task {tasks} --method bitfit,full-ft --seeds 1-3").code == 0
        for rate in ("5e-4", "1e-5"):
            answer = hifi(
                f"{train} --task demo-entailment --method full-ft learning_rate={rate}"
                f" selection=holdout holdout=0.3 variant=rate-{rate}"
            )
            assert answer.code == 0, answer.err
        assert hifi("results pack stored --out", place).code == 0

    def packed_study(hifi):
        if not place.exists():
            make(hifi)
        return place

    return packed_study


@pytest.fixture
def study(request, packed, hifi, tmp_path):
    """The packed study in the working directory, beside a method of one's own."""
    if request.config.getoption("--no-training"):
        pytest.skip("it trains")
    (tmp_path / "norm_tuning.py").write_text(METHOD)
    (tmp_path / "norm-tuning.yaml").write_text(YAML)
    shutil.copytree(packed(hifi), tmp_path / "study")
    return tmp_path / "study"


def falsify(study, change):
    """Change the record of every stored run."""
    lines = [json.loads(line) for line in (study / "runs.jsonl").read_text().splitlines()]
    for line in lines:
        change(line["record"])
    (study / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def stored_scores(study, method):
    """Points by task and seed, of runs that are no variants."""
    scores = {}
    for line in (study / "runs.jsonl").read_text().splitlines():
        record = json.loads(line)["record"]
        if record["method"] == method and record["variant"] is None:
            points = 100 * record["scores"][record["report"]]
            scores[record["task"], record["seed"]] = points
    return scores


def new_scores():
    """The same of the new method's runs."""
    scores = {}
    for task in TASKS:
        for seed in SEEDS:
            folder = demo_folder(task=task, method="norm-tuning", seed=seed)
            record = json.loads((folder / "results.json").read_text())
            scores[task, seed] = 100 * record["scores"][record["report"]]
    return scores


def lines_of(answer):
    """The lines of a plan by their names."""
    assert answer.code == 0, answer.err
    lines = {}
    for line in answer.out.splitlines():
        name, _, text = line.partition(" ")
        lines.setdefault(name, []).append(text.strip())
    return lines


def test_a_dry_run_says_what_would_be_trained_and_spent_and_writes_nothing(hifi, study):
    plan = lines_of(hifi(f"{VERSUS} --against bitfit --dry-run"))
    assert plan["baselines"] == ["BitFit (protocol demo, demo)"]
    assert plan["device"][0].endswith("fp32, as the stored runs")
    assert "seed 1, once on each task: 2 runs, in no mean" in plan["canary"][0]
    assert "seeds 1,2,3: 6 runs" in plan["method"][0]
    assert plan["cost"][0].startswith("8 runs, 0 of them finished; about ")
    assert "core-minutes" in plan["cost"][0]
    assert plan["verdict"] == ["BitFit: 6 pairs on 2 tasks, a verdict is possible"]
    assert not Path("results").exists()


def test_steps_are_measured_on_the_first_task(hifi, study, monkeypatch):
    measured = []

    def measured_step(config, workspace):
        measured.append((config.method, config.task))
        return 60.0

    monkeypatch.setattr("hifi_cli.runs.versus.measured_step", measured_step)
    words = f"{VERSUS} --against bitfit --tasks {','.join(TASKS)} --seeds 1,2 --without-verdict"
    plan = lines_of(hifi(f"{words} --dry-run"))
    assert measured == [("bitfit", TASKS[0]), ("norm-tuning", TASKS[0])]
    # Twice as many runs of the method as of the canary, with as many steps of a minute each.
    numbers = re.search(r"canary ([\d.]+), search 0.00, method ([\d.]+)", plan["cost"][0])
    assert float(numbers[2]) == pytest.approx(2 * float(numbers[1]), abs=0.02)


def test_the_cost_is_that_of_the_estimator(hifi, study, monkeypatch):
    """The steps that were measured, and the stored runs for other tasks and for rows."""
    steps = {"bitfit": 30.0, "norm-tuning": 90.0}
    monkeypatch.setattr(
        "hifi_cli.runs.versus.measured_step", lambda config, workspace: steps[config.method]
    )
    plan = lines_of(hifi(f"{VERSUS} --against bitfit --dry-run"))
    # The commands train the first task of the baselines first, by name.
    first = min(TASKS)
    measured = {method: MeasuredStep(first, 8, seconds) for method, seconds in steps.items()}
    estimator = CostEstimator(results_in(study), measured=measured)
    minutes = {}
    for method, seeds in (("bitfit", 1), ("norm-tuning.yaml", len(SEEDS))):
        minutes[method] = 0.0
        for task in TASKS:
            how = {"backbone": "demo", "protocol": "demo", "overrides": SETTINGS.split()}
            config = resolve(task=task, method=method, **how)
            cost = estimator.cost(config, task_spec.load(task), None)
            minutes[method] += seeds * cost.seconds.value / 60
    numbers = re.search(r"canary ([\d.]+), search 0.00, method ([\d.]+)", plan["cost"][0])
    told = [float(number) for number in numbers.groups()]
    assert told == pytest.approx([*minutes.values()], abs=0.006)
    # 60 rows in batches of 8, and 30 that are evaluated.
    by_hand = 30.0 / 8 * (60 + 30 / 3) / 60
    assert told[0] == pytest.approx(2 * by_hand, rel=0.5)
    assert plan["disk"][0].startswith("about ")


def test_what_can_give_no_verdict_is_refused_before_it_trains(hifi, study):
    # Six pairs have p = 1/32 at least, and Holm doubles it for two comparisons.
    answer = hifi(VERSUS)
    assert answer.code == 2
    reason = (
        "BitFit: 6 pairs on 2 tasks, no verdict is possible: even if all pairs agreed, p would be"
    )
    reason += " 0.062 after Holm's correction for 2 comparisons, and a verdict takes p < 0.05"
    # The plan has the reason, and the error what to do about it.
    assert answer.err.count(reason) == 1
    error = answer.err.splitlines()[-1]
    assert error == (
        "hifi: no verdict is possible: choose 4 seeds or more (the study has 3 seeds), or more tasks,"
        " or fewer baselines (--against), or train nevertheless with --without-verdict"
    )
    assert not Path("results").exists()
    answer = hifi(f"{VERSUS} --without-verdict --dry-run")
    assert answer.code == 0 and "no verdict is possible" in answer.out


def test_one_baseline_cannot_be_fewer(hifi, study):
    answer = hifi(f"{VERSUS} --against bitfit --seeds 1,2")
    assert answer.code == 2 and "choose 3 seeds or more" in answer.err
    assert "fewer baselines" not in answer.err and "Holm" not in answer.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--against bitfit --budget 0", 2, "more than --budget 0"),
        ("--against bitfit --rates 1e-3,1e-2", 2, "no baseline of this study tried more than 1"),
        ("--against bitfit --rates 1e-3,x", 2, "give learning rates such as"),
        ("--against lora", 3, "no finished run of lora"),
        ("--against bitfit --canary full-ft", 2, "no stored run can be repeated as the canary"),
        ("--against bitfit precision=bf16", 3, "different precision (fp32 and bf16)"),
        ("--against bitfit --seeds 7", 2, "has none of the seeds on all tasks"),
    ],
)
def test_refused_before_training(hifi, study, words, code, message):
    answer = hifi(f"{VERSUS} {words}")
    assert answer.code == code and message in answer.err, answer.err
    assert not Path("results").exists()


def test_a_method_of_the_study_is_no_new_one(hifi, study):
    answer = hifi("versus bitfit --study study --against full-ft")
    assert answer.code == 2 and "hifi compare compares them" in answer.err


def test_baselines_in_the_own_results_directory(hifi, study):
    """The second command finds the new method's runs there, which are no baseline."""
    assert hifi("results merge study").code == 0
    words = f"versus norm-tuning.yaml {SETTINGS} --tasks demo-entailment --seeds 1,2"
    words += " --without-verdict --against bitfit"
    assert hifi(words).code == 0
    plan = lines_of(hifi(f"{words} --dry-run"))
    assert plan["baselines"] == ["BitFit (protocol demo, demo)"]
    assert plan["cost"][0].startswith("3 runs, 3 of them finished")
    all_methods = hifi(words.replace("--against bitfit", "--dry-run"))
    assert lines_of(all_methods)["baselines"] == ["BitFit, Full-FT (protocol demo, demo)"]
    assert hifi(f"{words},norm-tuning").code == 2


@pytest.mark.parametrize(
    ("part", "value", "name"),
    [
        ("backbone_weights", "0" * 64, "encoder"),
        ("data", {"train": "0" * 64, "validation": "0" * 64}, "data"),
        ("task_digest", "0" * 64, "task as read"),
    ],
)
def test_stored_runs_of_something_else_are_refused_by_its_name(hifi, study, part, value, name):
    falsify(study, lambda record: record.update({part: value}))
    answer = hifi(f"{VERSUS} --against bitfit")
    assert answer.code == 3 and f"cannot be compared: different {name}" in answer.err, answer.err
    assert not Path("results").exists()


def test_an_error_says_which_keys_make_runs_comparable(hifi, study):
    words = VERSUS.replace("epochs=1 ", "")
    assert words != VERSUS
    answer = hifi(f"{words} --against bitfit")
    assert answer.code == 3
    assert "different epochs (1 and 3) (stored and here); add epochs=1" in answer.err
    assert hifi(f"{words} epochs=1 --against bitfit --dry-run").code == 0
    # No key makes another encoder the same.
    falsify(study, lambda record: record.update({"backbone_weights": "0" * 64}))
    answer = hifi(f"{words} --against bitfit")
    assert answer.code == 3 and "encoder" in answer.err and "; add " not in answer.err


def test_a_task_on_which_nothing_can_be_compared_is_not_trained(hifi, study):
    def other_data(record):
        if record["task"] == "demo-acceptability":
            record["data"] = {"train": "0" * 64, "validation": "0" * 64}

    falsify(study, other_data)
    plan = lines_of(hifi(f"{VERSUS} --against bitfit --dry-run --without-verdict"))
    assert "NormTuning on demo-entailment, seeds 1,2,3: 3 runs" in plan["method"][0]
    (left_out,) = plan["left"]
    assert left_out.startswith("out  BitFit on Accept.: 3 stored runs cannot be compared")


def test_a_new_method_is_trained_and_compared(hifi, study):
    answer = hifi(f"{VERSUS} --against bitfit --format json")
    assert answer.code == 0, answer.err
    verdicts, _, scores = json.loads(answer.out)
    stored = stored_scores(study, "bitfit")
    new = new_scores()
    expected = mean(new[place] - stored[place] for place in new)
    (row,) = verdicts["rows"]
    assert expected != 0 and row["pairs"] == 6 and row["mean"] == pytest.approx(expected)
    assert row["low"] < expected < row["high"]
    notes = verdicts["notes"]
    assert notes[0].startswith("may be claimed: ")
    (canary,) = [note for note in notes if note.startswith("canary: ")]
    assert "Entail. +0.00" in canary and "mean +0.00 points" in canary
    assert any(note.startswith("cost: 8 runs trained here") for note in notes)
    assert {row["method"] for row in scores["rows"]} == {"norm-tuning", "bitfit"}
    # The canary has a place of its own: tables do not find it.
    assert (demo_folder("results/canary", method="bitfit") / "results.json").is_file()
    assert not demo_folder(method="bitfit").exists()
    assert not demo_folder("results/canary", method="bitfit", seed=2).exists()
    # The same command trains nothing again, and prints LaTeX below the tables.
    again = hifi(f"{VERSUS} --against bitfit")
    assert "8 runs, 8 of them finished; about 0.00" in again.err
    assert r"\begin{table}" in again.out and "may be claimed" in again.out


def test_a_failed_canary_ends_the_command_before_the_method_trains(hifi, study):
    def falsified(record):
        if record["variant"] is not None:
            return
        record["scores"] = {name: score - 0.4 for name, score in record["scores"].items()}

    falsify(study, falsified)
    answer = hifi(f"{VERSUS} --against bitfit")
    assert answer.code == 1
    assert "the stored runs are not used: canary: BitFit, seed 1" in answer.err
    assert "mean +40.00 points" in answer.err
    assert not demo_folder(method="norm-tuning").exists()


def test_as_many_rates_are_tried_as_a_baseline_had(hifi, study):
    words = f"{VERSUS} --against full-ft"
    (rates,) = lines_of(hifi(f"{words} --dry-run"))["rates"]
    assert rates == (
        "learning rates 0.002, 0.0055 (Full-FT tried 2, the most of all baselines), by the mean rank"
        " over demo-entailment, seed 1, on holdout 0.3 of the train split"
    )
    refused = hifi(f"{words} --rates 1e-3,2e-3,3e-3")
    assert refused.code == 2 and "no baseline of this study tried more than 2" in refused.err
    answer = hifi(f"{words} --rates 1e-9,5e-3 --format json")
    assert answer.code == 0, answer.err
    tried = {}
    for rate in ("1e-09", "0.005"):
        variant = f"versus--learning_rate--{rate}"
        folder = demo_folder(task="demo-entailment", method="norm-tuning", variant=variant)
        record = json.loads((folder / "results.json").read_text())
        assert record["selection"] == "holdout" and record["config"]["holdout"] == 0.3
        tried[float(rate)] = max(line["selection"] for line in record["epoch_metrics"])
    # The lower one of equal ones
    best = max(sorted(tried), key=tried.get)
    notes = json.loads(answer.out)[0]["notes"]
    assert any(note.endswith(f"; chosen: {best:g}") for note in notes)
    record = json.loads((demo_folder(method="norm-tuning") / "results.json").read_text())
    assert record["config"]["learning_rate"] == best
