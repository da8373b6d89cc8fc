"""Scores that are no numbers: of a model whose weights are not finite, and of metrics that do not fit or are undefined."""

import math

import pytest
import torch
import yaml

from hifi_cli.config import registry
from hifi_cli.errors import UsageError
from hifi_cli.records.check import check
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.tasks import task_spec
from hifi_cli.training.loop import Trainer


@pytest.mark.parametrize(("task", "method"), [("stsb", "full-ft"), ("rte", "hifi-layerwise")])
def test_weights_that_the_last_step_spoils_are_a_diverged_run(
    make, workspace, monkeypatch, task, method
):
    """The loss of that step is from before its update."""
    train_step = Trainer.train_step

    def spoil(self, batch):
        train_step(self, batch)
        if self.progress.step == self.plan.total:
            with torch.no_grad():
                for parameter in self.method.trainable_parameters(self.model).values():
                    parameter.fill_(math.nan)

    monkeypatch.setattr(Trainer, "train_step", spoil)
    config = make(method, task=task)
    result = runs.run(config, workspace)
    assert (result.status, result.metrics) == ("diverged", {})
    assert result.reason.startswith("the logits are not finite at step ")
    assert RunDirectory.of(config, workspace.results_dir).read_result() == result
    assert check(workspace.results_dir).findings == {}


@pytest.mark.parametrize(
    ("task", "metric"),
    [
        ("cb", "f1"),
        ("stsb", "accuracy"),
        ("squad", "accuracy"),
        ("rte", "span_f1"),
        ("rte", "ner_f1"),
        ("rte", "question_em"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused(tmp_path, task, metric):
    content = registry.load("tasks", task) | {"metrics": [metric], "primary": metric}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(
        UsageError,
        match=f"metrics: {metric} does not fit a task of kind {task_spec.load(task).kind}",
    ):
        task_spec.load(str(tmp_path / "own.yaml"))


def test_a_metric_of_ones_own_among_hifis_is_pointed_to_its_key(tmp_path):
    content = registry.load("tasks", "rte") | {"evaluate": "mcc_of_mine", "metrics": ["mine"]}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UsageError, match="scores of mcc_of_mine come without being named here"):
        task_spec.load(str(tmp_path / "own.yaml"))
