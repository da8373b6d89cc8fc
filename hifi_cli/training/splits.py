"""The examples that a run trains on, selects its epoch by, and reports on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch

from hifi_cli.config.run_config import RunConfig
from hifi_cli.results.record import ExampleCounts, FewShotRows
from hifi_cli.tasks.encode import training_order
from hifi_cli.tasks.task_spec import Example, Row, Split, TaskSpec
from hifi_cli.training.resources import ResourceCache


@dataclass(frozen=True)
class Splits:
    """The examples of a run.

    Attributes:
        train: trained on.
        selection: select the best epoch.
        reported: what the scores of the run are measured on.
        calibration_batches: batches whose gradients a method may use when one of its phases starts: the train examples, in a
            few-shot run those of the full train split.
        extra_validation: extra validation splits that are reported, by the suffix of their metrics.
        fewshot: the ids of the rows of a few-shot run and their digest.
    """

    train: list[Example]
    selection: list[Example]
    reported: list[Example]
    calibration_batches: list[list[Example]]
    extra_validation: dict[str, list[Example]] = field(default_factory=dict)
    fewshot: FewShotRows | None = None

    def count(self, rows_in: Callable[[list[Example]], int]) -> ExampleCounts:
        """Numbers of rows of each split."""
        return ExampleCounts(train=rows_in(self.train), selection=rows_in(self.selection), reported=rows_in(self.reported))


def load_splits(config: RunConfig, resources: ResourceCache) -> Splits:
    """Load the examples of a run, as `shots`, `selection`, `holdout` and `limit` say.

    Raises:
        MissingError: the data are missing.
        UsageError: there are too few rows for `shots`.
    """
    task, data = resources.task(config.task), resources.rows(config.task)
    extra_validation = {
        name: _load_examples(config, resources, split) for name, split in task.extra_validation.items() if split in data.splits
    }
    if config.shots:
        from hifi_cli.tasks import fewshot

        sample = fewshot.sample(task, data.rows("train"), config.shots, config.seed)
        train, selection = (resources.tokenize(config, rows, config.max_length) for rows in (sample.train, sample.dev))
        batches = _batches(config, resources.examples(config, "train", config.max_length))
        reported = _load_examples(config, resources, "validation")
        return Splits(train, selection, reported, batches, extra_validation, sample.record())
    train, reported = _load_examples(config, resources, "train"), _load_examples(config, resources, "validation")
    if config.selection == "validation":
        return Splits(train, reported, reported, _batches(config, train), extra_validation)
    windows: dict[str, list[Example]] = {}
    for example in train:
        windows.setdefault(example.row.id, []).append(example)  # all windows of a row go to the same side
    train, holdout = ([example for row in ids for example in windows[row]] for ids in holdout_ids(config, data.rows("train")))
    return Splits(train, holdout, reported, _batches(config, train), extra_validation)


def holdout_ids(config: RunConfig, train_rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Ids of the train rows that a run trains on, and of those that select its epoch (`selection=holdout`).

    They are two parts of one permutation that the run's seed draws; the second is empty unless `selection` is `holdout`. The
    rows of a group, as of one of MultiRC's questions, stay together: its metrics are about whole groups.
    """
    if config.shots or config.selection != "holdout":
        return [row.id for row in train_rows[: config.limit]], []
    groups: dict[str, list[str]] = {}
    for row in train_rows[: config.limit]:
        groups.setdefault(row.group or row.id, []).append(row.id)
    ids = list(groups.values())
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(config.seed)).tolist()
    size = holdout_size(config, len(ids))
    train, holdout = (list(chain.from_iterable(ids[number] for number in part)) for part in (order[size:], order[:size]))
    return train, holdout


def holdout_size(config: RunConfig, groups: int) -> int:
    """How many of the train split's groups of rows are held out; a row of most tasks is a group by itself."""
    return max(1, round(config.holdout * groups))


def batch_size(config: RunConfig, task: TaskSpec) -> int:
    """Examples of a training step; few-shot runs train on all examples at once."""
    return config.shots * len(task.classes) if config.shots else config.batch_size


def without_holdout(config: RunConfig, train_rows: Sequence[Row], examples: list[Example]) -> list[Example]:
    """Those of the train split's examples that the run does not hold out."""
    holdout = set(holdout_ids(config, train_rows)[1])
    return [example for example in examples if example.row.id not in holdout]


def _batches(config: RunConfig, examples: list[Example]) -> list[list[Example]]:
    """Each example once, in batches of the configured size."""
    lengths = [len(example) for example in examples]
    order = training_order(lengths, config.batch_size, strategy=config.train_sampling_strategy, seed=config.seed, epoch=0)
    return [[examples[index] for index in batch] for batch in order]


def _load_examples(config: RunConfig, resources: ResourceCache, split: Split) -> list[Example]:
    """The examples of a split, or those of its first `limit` rows."""
    if config.limit is None:
        return resources.examples(config, split, config.max_length)
    return resources.tokenize(config, resources.rows(config.task).rows(split)[: config.limit], config.max_length)
