"""What may decide a claim: tasks of the paper's table, above chance; runs with the paper's head and the protocol's settings."""

import json
from pathlib import Path

import pytest
import yaml
from json_output import claim_of
from run_folders import run_folder
from synthetic_runs import write_run

LAPTOP = ("--protocol", "laptop", "--format", "json")


def write_pairs(task, gap, *, seeds=range(1, 10), base=0.8, labels=None, predicted=None, **changes):
    """Runs of HiFi and Full-FT, `gap` points apart; with labels, the predictions of as many examples are stored: right ones, or one for all."""
    for seed in seeds:
        for method, score in (
            ("full-ft", base),
            ("hifi-layerwise", base + gap / 100 + 0.001 * (seed % 3 - 1)),
        ):
            run = write_run(
                "results",
                method,
                task,
                seed,
                score,
                protocol="laptop",
                backbone="minilm",
                **changes,
            )
            if labels:
                rows = [
                    {
                        "id": str(row),
                        "label": label,
                        "prediction": predicted or label,
                        "logits": [0.0],
                    }
                    for row, label in enumerate(labels)
                ]
                (run / "predictions.jsonl").write_text(
                    "".join(json.dumps(row) + "\n" for row in rows)
                )


def test_tasks_outside_of_the_papers_table_decide_nothing(hifi):
    for task in ("rte", "mrpc", "cola", "stsb", "cb"):
        write_pairs(task, 2.0 if task != "cb" else -30.0)
    cells, note, _ = claim_of(hifi("claims hifi/above-full-ft", *LAPTOP), "above-full-ft")
    assert cells["ours"] == pytest.approx(2.0) and cells["verdict"] == "reproduced"
    assert "On CoLA, MRPC, RTE, STS-B." in note
    hifi_rows = {"rte": 71.5, "mrpc": 89.7, "cola": 60.4, "stsb": 87.2}  # table 2; Full-FT below
    full_ft = {"rte": 71.2, "mrpc": 88.9, "cola": 59.6, "stsb": 86.6}
    published = sum(hifi_rows[task] - full_ft[task] for task in hifi_rows) / 4
    assert cells["published"] == pytest.approx(published)
    cells, note, missing = claim_of(
        hifi("claims hifi/above-full-ft --protocol demo --format json"),
        "above-full-ft",
    )
    assert cells["verdict"] == "not run" and not missing
    assert "no task asked about is in the paper's table" in note


def test_runs_without_the_papers_task_head_decide_nothing(hifi):
    for seed in range(1, 9):
        for method, score in (("eh-ft-bitfit", 0.9), ("full-ft", 0.8)):
            for task in ("rte", "copa", "cb", "wic"):
                write_run(
                    "results",
                    method,
                    task,
                    seed,
                    score + 0.001 * seed,
                    protocol="laptop",
                    backbone="minilm",
                )
                write_run(
                    "results",
                    method,
                    task,
                    seed,
                    score + 0.001 * seed,
                    protocol="ehft",
                    backbone="minilm",
                )
    words = ("claims", "ehft/small-tasks", "--backbone", "minilm", "--format", "json")
    cells, note, missing = claim_of(hifi(*words, "--protocol", "laptop"), "small-tasks")
    assert cells["verdict"] == "not run" and not missing
    assert (
        "the paper's methods train with task_head.kind=mlp, runs under protocol laptop with pooler"
        in note
    )
    cells, note, _ = claim_of(hifi(*words), "small-tasks")
    assert cells["verdict"] == "reproduced"
    assert hifi("grid claims-ehft --protocol laptop --print").out == ""


RTE = ["entailment"] * 55 + ["not_entailment"] * 45


@pytest.mark.parametrize(
    ("base", "labels", "is_left_out"),
    [
        (0.57, RTE, True),  # 2 points above the majority class
        (0.63, RTE, True),  # two standard errors of 100 examples are 10 points
        (0.63, 10 * RTE, False),  # and of 1,000 examples 3.1
        (0.57, 100 * RTE, True),  # never less than 3 points
        (0.40, RTE, True),
        (0.70, RTE, False),
    ],
)
def test_a_task_at_chance_is_left_out_by_name(hifi, base, labels, is_left_out):
    for task in ("mrpc", "cola", "stsb"):
        write_pairs(task, 2.0)
    write_pairs(
        "rte", -1.0, base=base, labels=labels, data={"train": "t", "validation": str(len(labels))}
    )
    cells, note, _ = claim_of(hifi("claims hifi/above-full-ft", *LAPTOP), "above-full-ft")
    mean = 100 * base - 0.5
    said = f"RTE decides nothing: its mean score of {mean:.1f} is not clearly above 55.0"
    assert (said in note) is is_left_out
    assert cells["ours"] == pytest.approx(2.0 if is_left_out else (3 * 2.0 - 1.0) / 4, abs=0.03)
    assert ("On CoLA, MRPC, STS-B." in note) is is_left_out


@pytest.mark.parametrize(("rival", "is_left_out"), [(0.85, False), (0.6, True)])
def test_all_comparisons_of_a_claim_are_about_the_same_tasks(hifi, rival, is_left_out):
    """All three have a mean of 66, and of 64 if HiFi counted in both comparisons: at chance is below 65."""
    claim = {"kind": "difference", "text": "t", "where": "w", "first": "hifi-layerwise"}
    file = {
        "description": "d",
        "protocol": "laptop",
        "backbone": "minilm",
        "tasks": ["rte", "cola"],
    }
    claims = {"mine": claim | {"second": ["full-ft", "bitfit"]}}
    Path("mine.yaml").write_text(yaml.safe_dump({**file, "claims": claims}))
    write_pairs("cola", 2.0)
    write_pairs("rte", 0.0, base=0.57, labels=RTE)
    for seed in range(1, 10):
        for task in ("rte", "cola"):
            write_run("results", "bitfit", task, seed, rival, protocol="laptop", backbone="minilm")
    _, note, _ = claim_of(hifi("claims mine.yaml --format json"), "mine")
    assert ("RTE decides nothing" in note) is is_left_out


def test_where_f1_is_the_score_accuracy_tells_whether_a_task_is_at_chance(hifi):
    """MRPC with 400 rows: one class has an F1 of 81.3 and an accuracy of 68.5; two standard errors are 4.6."""
    equivalent = ["equivalent"] * 274
    labels = [*equivalent, *["not_equivalent"] * 126]
    for task in ("rte", "cola", "stsb"):
        write_pairs(task, 2.0)
    for predicted, data in (("equivalent", "a"), (None, "b")):
        write_pairs(
            "mrpc", -1.0, base=0.83, labels=labels, predicted=predicted, data={"train": data}
        )
        answer = hifi("claims hifi/above-full-ft", *LAPTOP)
        cells, note, _ = claim_of(answer, "above-full-ft")
        said = "MRPC decides nothing: its mean accuracy of 68.5 is not clearly above 68.5"
        assert (said in note) is bool(predicted)
        assert cells["ours"] == pytest.approx(2.0 if predicted else (3 * 2.0 - 1.0) / 4, abs=0.03)


def write_claim(protocol, task):
    """A file of one claim, that HiFi scores higher than Full-FT on a task."""
    claim = {"kind": "difference", "text": "t", "where": "w"}
    claim |= {"first": "hifi-layerwise", "second": "full-ft"}
    file = {"description": "My claims", "protocol": protocol, "backbone": "minilm"}
    Path("mine.yaml").write_text(
        yaml.safe_dump({**file, "tasks": [task], "claims": {"mine": claim}})
    )


@pytest.mark.parametrize("metric", ["f1_micro", "f1_macro", "accuracy"])
def test_a_task_whose_rows_have_several_labels_may_decide(hifi, metric):
    write_claim("laptop", "demo-topics")
    labels = 20 * [["animal"], ["tool", "fruit"], []]
    write_pairs("demo-topics", 2.0, labels=labels, primary_metric=metric)
    cells, _, _ = claim_of(hifi("claims mine.yaml --format json"), "mine")
    assert cells["verdict"] == "reproduced"


def test_a_task_whose_yaml_is_not_here_may_decide(hifi):
    write_claim("laptop", "tickets")
    write_pairs("tickets", 2.0, labels=20 * ["praise", "other"])
    cells, _, _ = claim_of(hifi("claims mine.yaml --format json"), "mine")
    assert cells["verdict"] == "reproduced"


@pytest.mark.slow
def test_a_report_has_the_claims_about_a_protocol_of_ones_own(hifi):
    Path("own.yaml").write_text(yaml.safe_dump({"description": "d", "base": "laptop"}))
    write_claim("own.yaml", "rte")
    for seed in range(1, 9):
        for method, score in (("hifi-layerwise", 0.8 + 0.001 * seed), ("full-ft", 0.7)):
            write_run("results", method, "rte", seed, score, protocol="own", backbone="minilm")
    for words in (
        ["--claims", "mine.yaml"],
        ["--claims", "mine.yaml,hifi", "--protocol", "own.yaml"],
    ):
        answer = hifi("report", *words)
        assert answer.code == 0, answer.err
        page = Path(answer.out.strip()).read_text()
        assert "My claims" in page and "1 reproduced" in page
    # Nobody asks for a claim, and no shipped one is about the protocol.
    assert "My claims" not in Path(hifi("report").out.strip()).read_text()


def test_where_every_task_is_at_chance_nothing_is_decided(hifi):
    for task in ("rte", "mrpc", "cola", "stsb"):
        labels = {"rte": RTE, "stsb": [0.5, 4.0, 2.0]}.get(task, [1, 0, 1])
        data = {"train": "t", "validation": f"chance {task}"}
        write_pairs(task, 2.0, base=0.1, labels=labels, predicted=labels[0], data=data)
    cells, _, _ = claim_of(hifi("claims hifi/above-full-ft", *LAPTOP), "above-full-ft")
    assert cells["reason"] == "every task is at chance"


def test_a_verdict_must_hold_for_the_last_epochs(hifi):
    for task in ("rte", "mrpc", "cola", "stsb"):
        write_pairs(task, 2.0, last=0.7)  # both methods are as good after the last epoch
    cells, _, _ = claim_of(hifi("claims hifi/above-full-ft", *LAPTOP), "above-full-ft")
    assert cells["reason"] == "reproduced by the best epoch, not reproduced by the last epoch"
    cells, _, _ = claim_of(
        hifi("claims", "hifi/above-full-ft", *LAPTOP, "--score", "last"), "above-full-ft"
    )
    assert cells["verdict"] == "not reproduced"


def test_runs_with_other_settings_than_the_protocols_are_not_used(hifi):
    for task in ("rte", "mrpc", "cola", "stsb"):
        write_pairs(task, 2.0)
    for seed in range(1, 10):
        run = run_folder(protocol="laptop", backbone="minilm", seed=seed)
        config = yaml.safe_load((run / "config.yaml").read_text()) | {"learning_rate": 1e-5}
        changed = {"protocol": "laptop", "backbone": "minilm", "config": config}
        write_run("results", "full-ft", "rte", seed, 0.1, **changed)
    cells, note, missing = claim_of(hifi("claims hifi/above-full-ft", *LAPTOP), "above-full-ft")
    assert cells["ours"] == pytest.approx(2.0) and cells["reason"] == "3 of 4 tasks"
    said = "Full-FT on RTE: 9 runs left out: not the protocol's settings: learning_rate 1e-05 (protocol: "
    assert said in note
    assert not missing, "a finished run is not replaced without the user's word"
