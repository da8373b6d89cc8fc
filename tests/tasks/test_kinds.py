"""What kinds of tasks and metrics are has one home: every kind is complete, and nobody else asks for one."""

import ast
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import hifi_cli
from hifi_cli.config import registry
from hifi_cli.config.base import parse
from hifi_cli.config.run_config import TaskHeadConfig
from hifi_cli.errors import UsageError
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.reports.claims.spec import NumberClaim
from hifi_cli.tasks import scores, task_spec
from hifi_cli.tasks.kinds import KINDS, Kind, TaskKind
from hifi_cli.tasks.metrics import (
    METRICS,
    Metric,
    heading_of,
    hub_name_of,
    lowest_score,
    metric_of,
    metrics_for,
    sklearn_score,
)
from hifi_cli.tasks.task_spec import LocalFiles
from hifi_cli.training.losses import LOSSES, task_loss

PACKAGE = Path(hifi_cli.__file__).parent
# The modules that may ask which kind a task has.
HOMES = {PACKAGE / "tasks" / "kinds.py", PACKAGE / "training" / "losses.py"}


def test_every_kind_has_a_class_a_loss_and_metrics():
    assert {*get_args(Kind)} == KINDS.keys() == LOSSES.keys()
    for kind in KINDS.values():
        assert metrics_for(kind.predicts) and kind.formats


def constants_compared(path):
    """The texts that a module compares something with, and those of its `match` cases."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare | ast.MatchValue):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def test_no_other_module_asks_which_kind_a_task_has():
    modules = {*PACKAGE.rglob("*.py")} - HOMES
    assert len(modules) > 100
    asked = {
        f"{path.relative_to(PACKAGE)}: {text}"
        for path in modules
        for text in constants_compared(path)
        if text in KINDS
    }
    assert asked == set()
    templates = [*PACKAGE.rglob("*.j2")]
    assert templates and not any("task.kind" in path.read_text() for path in templates)


@pytest.mark.parametrize("name", registry.names("tasks"))
def test_a_label_is_read_back_from_what_is_stored(name):
    """`results check` computes scores from stored labels: they mean the same as the rows' own."""
    rules = task_spec.load(name).rules
    if rules.has_answers:
        row = task_spec.Row("3", (("q", "c"),), None, answers=(("a cat", 2), ("cat", 4)))
        if not rules.labels:
            assert rules.row_of_stored("3", rules.stored_label(row)).answers == (
                ("a cat", -1),
                ("cat", -1),
            )
        return
    label = {"MultiLabel": (0, 1, 1), "Regression": 2.5, "TokenClassification": (0, 2, 1)}.get(
        type(rules).__name__, 1
    )
    if isinstance(label, tuple) and rules.has_any_number_of_labels:
        label = (0, 1) + (0,) * (len(rules.labels) - 2)
    row = task_spec.Row("0-1-3", (("text",),), label)
    again = rules.row_of_stored("0-1-3", rules.stored_label(row))
    assert again.label == label
    # Answers to one question of MultiRC are measured together.
    assert again.group == ("0-1" if "question" in rules.predicts else "")


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=3))
def test_predictions_never_contradict_their_own_logits(values):
    logits = np.array([values])
    for name, labels in (
        ("classification", "abc"),
        ("multi-label", "abc"),
        ("multiple-choice", "abc"),
    ):
        rules = KINDS[name](labels)
        predictions = rules.predictions([], logits)
        assert not rules.contradicts_logits(predictions, logits.tolist()).any()
        if name != "multi-label" and len({*values}) == 3:
            others = (np.asarray(predictions) + 1) % 3
            assert rules.contradicts_logits(others, logits.tolist()).all()


def test_the_ends_of_a_range_are_in_it():
    rules = task_spec.load("stsb").rules
    assert [rules.parse_label(value, []) for value in ("0.000", "5.000")] == [0, 5]
    with pytest.raises(UsageError, match=r"'5\.001' is not a number in \[0, 5\]"):
        rules.parse_label("5.001", [])


def test_a_prediction_contradicts_one_logit_of_the_other_sign():
    rules = KINDS["classification"](("no", "yes"))
    assert rules.contradicts_logits(np.array([1, 1]), [[2.0], [-2.0]]).tolist() == [False, True]
    # Only two classes share a logit.
    three = KINDS["classification"](("no", "yes", "maybe"))
    assert three.logits_per_sequence(one_logit=True) == 3


def test_the_list_of_metrics_says_what_a_score_is():
    assert metric_of("accuracy_mismatched") is METRICS["accuracy"]
    assert metric_of("f1_macro") is METRICS["f1_macro"]
    assert metric_of("f1_macro_hans") is METRICS["f1_macro"]
    assert metric_of("bleu") is None
    assert [lowest_score(name) for name in ("matthews_axb", "f1", "bleu")] == [-1, 0, 0]
    assert [heading_of(name) for name in ("matthews_axb", "f1_macro", "bleu", "accuracy_hans")] == [
        "Matt.",
        "macro F1",
        "bleu",
        "accuracy_hans",
    ]


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_every_metric_is_for_a_task_or_for_stored_predictions(metric):
    assert bool(metric.fits) != (metric.needs in ("probabilities", "seeds"))
    assert bool(metric.description) == metric.lower_is_better
    assert (metric.function is None) == (metric.needs == "seeds")


def test_a_value_of_a_table_is_refused_by_the_names_of_the_table():
    """Formats of files and measures of claims are listed where their tables are, as a literal would be."""
    claim = {"text": "c", "where": "s", "kind": "number", "at_most": 1.0, "metric": "entropy"}
    with pytest.raises(UsageError, match="metric must be 'nll', 'brier' or 'ece', not 'entropy'"):
        parse(NumberClaim, claim, "claims.yaml")
    files = {"folder": ".", "files": {}, "reader": "xml"}
    with pytest.raises(UsageError, match=r"reader must be 'csv', .* or 'squad', not 'xml'"):
        parse(LocalFiles, files, "task.yaml")


def test_a_new_metric_is_one_entry(monkeypatch):
    """Whoever needs a fact of a metric asks the list: tasks, scores, tables, exports and checks."""
    kappa = Metric(
        "kappa",
        "labels",
        partial(sklearn_score, "cohen_kappa_score"),
        fits=("class",),
        heading="Kappa",
        hub_name="cohen_kappa",
        low=-1.0,
    )
    monkeypatch.setitem(METRICS, "kappa", kappa)
    spec = task_spec.load("rte").model_copy(update={"metrics": ["kappa"], "primary": "kappa"})
    task_spec.check(spec, "rte.yaml")
    rows = [task_spec.Row(str(at), (("a", "b"),), label) for at, label in enumerate([0, 0, 1, 1])]
    # Three of four agree, of which half would by chance.
    computed = scores.compute(spec, rows, np.array([0.0, 0, 1, 0]))
    assert computed == {"kappa": pytest.approx((3 / 4 - 1 / 2) / (1 / 2))}
    assert heading_of("kappa_axb") == "Kappa" and lowest_score("kappa") == -1
    assert hub_name_of("kappa") == "cohen_kappa"


class Ordinal(TaskKind):
    """One of several ordered classes, by a logit for each step to the next one."""

    predicts = ("class",)

    def logits_per_sequence(self, *, one_logit):
        return len(self.labels) - 1

    def predictions(self, examples, logits):
        return (logits > 0).sum(axis=1).astype(float)


def ordinal_loss(logits, targets):
    is_above = targets.labels[:, None] > torch.arange(logits.shape[1])
    return functional.binary_cross_entropy_with_logits(logits, is_above.float(), reduction="sum")


def test_a_new_kind_is_a_class_and_a_loss(monkeypatch):
    monkeypatch.setitem(KINDS, "ordinal", Ordinal)
    monkeypatch.setitem(LOSSES, "ordinal", ordinal_loss)
    changes = {"kind": "ordinal", "metrics": ["accuracy"], "primary": "accuracy"}
    spec = task_spec.load("cb").model_copy(update=changes)
    task_spec.check(spec, "cb.yaml")
    head = TaskHeadSpec("ordinal", spec.rules, TaskHeadConfig(kind="mlp"))
    assert head.is_own and head.outputs == 2
    rows = [task_spec.Row(str(at), (("a", "b"),), label) for at, label in enumerate([0, 1, 2])]
    examples = [task_spec.EncodedExample(row, ()) for row in rows]
    logits = torch.tensor([[-1.0, -2.0], [1.0, -1.0], [2.0, 1.0]])
    predictions = spec.rules.predictions(examples, logits.numpy())
    assert scores.compute(spec, rows, predictions) == {"accuracy": 1.0}
    # Every logit has the sign of its step, so that each adds log(1 + exp(-|logit|)).
    expected = np.log1p(np.exp(-logits.abs().numpy())).sum()
    assert task_loss(spec, logits, examples).item() == pytest.approx(expected)
