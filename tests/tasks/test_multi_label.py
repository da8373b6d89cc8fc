"""Multi-label classification: rows, loss, metrics, few-shot samples, and a run from training to export and prediction."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import pipeline

from hifi_cli.errors import UsageError
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.inference import evaluate
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks import metrics, own_data, task_spec
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks.kinds import MultiLabel
from hifi_cli.tasks.task_spec import EncodedExample, Row
from hifi_cli.training.losses import task_loss

TEXTS = [
    "the dog sees a cat",
    "a bird likes the fish",
    "the man hears a dog",
    "a girl knows the bird",
    "a big old fish now",
]
LABELS = [["dog", "cat"], ["bird", "fish"], ["dog"], ["bird"], []]


def write(path: Path, form: str) -> Path:
    """The same 40 rows as lists, or as texts with separators."""
    rows = [(f"{TEXTS[at % 5]} {at}", LABELS[at % 5]) for at in range(40)]
    if form == "lists":
        path.write_text(
            "".join(json.dumps({"text": text, "labels": labels}) + "\n" for text, labels in rows)
        )
    else:
        path.write_text(
            "text\tlabels\n" + "".join(f"{text}\t{form.join(labels)}\n" for text, labels in rows)
        )
    return path


def load(path, *overrides):
    spec = task_spec.load(own_data.register(str(path), overrides))
    return spec, task_sources.load(spec, data_dir=None)


@pytest.mark.parametrize(
    ("name", "form", "overrides"),
    [
        ("a.jsonl", "lists", []),
        ("b.tsv", "|", ["kind=multi-label"]),
        ("c.tsv", ",", ["separator=','"]),
        ("d.tsv", ",", ["separator=,"]),
        ("e.tsv", "#", ["separator=#"]),
        ("f.tsv", "|", ["separator=|"]),
    ],
)
def test_every_form_of_labels_gives_the_same_rows(tmp_path, name, form, overrides):
    spec, data = load(write(tmp_path / name, form), *overrides)
    assert (spec.kind, spec.labels, spec.inputs) == (
        "multi-label",
        ["bird", "cat", "dog", "fish"],
        ["text"],
    )
    rows = [*data.rows("train"), *data.rows("validation")]
    expected = {
        f"{TEXTS[at % 5]} {at}": tuple(int(label in LABELS[at % 5]) for label in spec.labels)
        for at in range(40)
    }
    assert {row.sequences[0][0]: row.label for row in rows} == expected


def test_a_wrong_label_is_named(tmp_path):
    path = write(tmp_path / "a.tsv", "|")
    with pytest.raises(
        UsageError, match=r"line 2, .* and 5 more: unknown label 'cat'; the labels are bird, dog"
    ):
        load(path, "labels=[bird,dog]", "kind=multi-label")
    with pytest.raises(UsageError, match="labels: one is named twice"):
        load(path, "labels=[bird,cat,dog,fish,cat]", "kind=multi-label")


def test_the_loss_is_the_binary_cross_entropy_by_hand():
    spec = task_spec.load("demo-topics").model_copy(update={"labels": ["a", "b", "c"]})
    examples = [
        EncodedExample(Row("0", (("x",),), (1, 0, 1)), ()),
        EncodedExample(Row("1", (("x",),), (0, 0, 0)), ()),
    ]
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.0, 1.0, -3.0]])
    probabilities = 1 / (1 + np.exp(-logits.double().numpy()))
    correct = np.array([[1, 0, 1], [0, 0, 0]])
    expected = -np.log(np.where(correct, probabilities, 1 - probabilities)).mean(1).sum()
    assert task_loss(spec, logits, examples).item() == pytest.approx(expected)
    assert spec.rules.predictions(examples, logits.numpy()).tolist() == [
        [1, 0, 1],
        [0, 1, 0],
    ]  # 0 is not above 1/2


def test_accuracy_is_about_whole_rows():
    labels = np.array([[1, 0, 1], [0, 0, 1], [1, 0, 0]], dtype=float)
    predictions = np.array([[1, 0, 0], [0, 0, 1], [0, 1, 0]], dtype=float)
    assert metrics.accuracy(labels, predictions) == pytest.approx(1 / 3)
    rules = MultiLabel(("a", "b", "c"))
    assert not rules.is_collapsed(predictions)
    assert rules.is_collapsed(np.array([[1.0, 0.0], [1.0, 0.0]]))


@pytest.fixture
def trained(make, tmp_path, small_demo):
    """A finished run on the demo data, made small, and its results directory."""
    workspace = Workspace(tmp_path / "results")
    config = make("full-ft", "epochs=8", "learning_rate=0.003", "log_every=2", task="demo-topics")
    return (
        runs.run(config, workspace),
        RunDirectory.of(config, workspace.results_dir).path,
        workspace,
    )


@pytest.mark.slow
def test_a_run_trains_evaluates_exports_and_predicts(hifi, trained, tmp_path):
    result, run, workspace = trained
    assert set(result.metrics) == {"f1_micro", "f1_macro"}
    lines = [
        line
        for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        if "loss" in line
    ]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert not evaluate(run, workspace).differing
    stored = RunDirectory(run).read_predictions()
    names = task_spec.load("demo-topics").labels
    assert all(
        row.prediction == [name for name, logit in zip(names, row.logits, strict=True) if logit > 0]
        for row in stored
    )
    (tmp_path / "new.jsonl").write_text('{"sentence": "the dog saw the box"}\n')
    predicted = json.loads(hifi(f"predict {run} {tmp_path}/new.jsonl").out)
    assert predicted["prediction"] == [
        name for name, value in predicted["probabilities"].items() if value > 0.5
    ]
    assert list(predicted["probabilities"]) == names
    assert hifi(f"export {run} --to {tmp_path}/model").code == 0
    opened = pipeline("text-classification", str(tmp_path / "model"), top_k=None)(
        ["the dog saw the box"]
    )[0]
    assert {item["label"]: item["score"] for item in opened} == pytest.approx(
        predicted["probabilities"], abs=1e-5
    )
    assert "top_k=None" in (tmp_path / "model" / "README.md").read_text()
