"""The size of a run: the rows of its splits, its batches, and its steps. Without torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.records.record import RunResult
from hifi_cli.tasks.task_spec import TaskSpec

# An evaluation has the forward pass of a training step, about a third of its work.
_EVALUATION = 1 / 3


def batch_size(config: RunConfig, task: TaskSpec) -> int:
    """Count the examples of a training step; a few-shot run trains on all examples at once."""
    if config.shots:
        return config.shots * len(task.classes)
    return config.batch_size


def holdout_size(config: RunConfig, groups: int) -> int:
    """Count the groups of train rows that a run holds out; both parts have at least one.

    Args:
        config: says which fraction.
        groups: number of all groups; rows of most tasks are groups of their own.

    Raises:
        UsageError: there are fewer than two.
    """
    if groups < 2:
        raise UsageError("selection=holdout takes at least two rows to train on, or groups of rows")
    return min(max(1, round(config.holdout * groups)), groups - 1)


@dataclass(frozen=True)
class RunSize:
    """The rows that a run trains on and evaluates.

    Attributes:
        train: rows that are trained on in an epoch.
        selection: rows that only select the epoch; 0: the reported ones select it.
        reported: rows whose predictions are stored.
        batch: rows of a training step.
        epochs: passes over the train rows.
        evaluations: how often the reported rows are evaluated.
    """

    train: int
    selection: int
    reported: int
    batch: int
    epochs: int
    evaluations: int

    @classmethod
    def of(cls, config: RunConfig, task: TaskSpec, rows: Mapping[str, int]) -> Self | None:
        """Return the size of a run that is to be trained, where every row is an example.

        Args:
            config: of the run.
            task: of the run.
            rows: number of rows of the splits `train` and `validation`, before any are left out.

        Returns:
            None: the number of train rows is unknown.
        """
        train = rows.get("train", 0)
        reported = rows.get("validation", 0)
        if config.limit:
            train = min(train, config.limit)
            reported = min(reported, config.limit)
        batch = batch_size(config, task)
        selection = 0
        if config.shots:
            train = batch
            selection = batch
        elif config.selection == "holdout" and train > 1:
            selection = holdout_size(config, train)
            train -= selection
        if not train or not batch:
            return None
        rule = config.epoch_rule
        evaluations = config.epochs if rule.measures_every_epoch else 1
        return cls(train, selection, reported, batch, config.epochs, evaluations)

    @classmethod
    def of_record(cls, result: RunResult) -> Self | None:
        """Return the size of a finished run; None: it diverged, or its record has no rows."""
        train = result.n_examples["train"]
        if not result.epochs or not train:
            return None
        epochs = result.epochs.total
        rule = result.epoch_rule
        selection = 0
        if rule.selects_apart:
            selection = result.n_examples["selection"]
        batch = train
        if not result.shots:
            batch = result.config.get("batch_size", 0) or train
        evaluations = epochs if rule.measures_every_epoch else 1
        reported = result.n_examples["reported"]
        return cls(train, selection, reported, batch, epochs, evaluations)

    @property
    def steps(self) -> int:
        """The optimizer steps, as `StepPlan` counts them."""
        return self.epochs * math.ceil(self.train / self.batch)

    @property
    def work(self) -> float:
        """The rows of all epochs that are trained on, and a third of those that are evaluated."""
        evaluated = self.epochs * self.selection + self.evaluations * self.reported
        return self.epochs * self.train + _EVALUATION * evaluated
