"""The examples of a run: few-shot samples, holdouts and limits."""

from itertools import chain

import torch

from hifi_cli.config.run_config import RunConfig
from hifi_cli.runs.inputs import RunInputs
from hifi_cli.runs.size import holdout_size
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks.encode import epoch_batches
from hifi_cli.tasks.task_spec import EncodedExample, Row, Split, TaskSpec
from hifi_cli.training.loop import Splits


def load_splits(inputs: RunInputs) -> Splits:
    """Choose the examples of a run, as `shots`, `selection`, `holdout` and `limit` say.

    Raises:
        MissingError: the data lack a split.
        UsageError: there are too few rows for `shots`.
    """
    config = inputs.config
    # Not every copy of a task has its extra splits, such as MNLI's mismatched rows.
    extra = {}
    for suffix, split in inputs.task.extra_validation.items():
        if split in inputs.data.splits:
            extra[suffix] = _examples_within_limit(inputs, split)
    reported = _examples_within_limit(inputs, "validation")
    fewshot = None
    if config.epoch_rule.selects_apart:
        # Rows of the train split select the epoch: a holdout, or as many as the shots are.
        train_rows, selection_rows = split_train(config, inputs.task, inputs.data.rows("train"))
        train = inputs.tokenizer.tokenize(train_rows)
        selection = inputs.tokenizer.tokenize(selection_rows)
        if config.shots:
            fewshot = task_sources.few_shot_rows(train_rows, selection_rows)
    else:
        # The usual run: the validation rows both select the epoch and are reported.
        train = _examples_within_limit(inputs, "train")
        selection = reported
    # A method that chooses parameters by gradients, as Child-Tuning-D does, takes those of the
    # training rows; a few-shot run takes those of the full train split.
    gradient_examples = train
    if config.shots:
        gradient_examples = inputs.examples("train")
    return Splits(
        train=train,
        selection=selection,
        reported=reported,
        gradient_batches=epoch_batches(config, config.batch_size, gradient_examples, epoch=0),
        extra_validation=extra,
        fewshot=fewshot,
    )


def _examples_within_limit(inputs: RunInputs, split: Split) -> list[EncodedExample]:
    """Return the examples of a split, of its first `limit` rows if that is set."""
    limit = inputs.config.limit
    if limit is None:
        return inputs.examples(split)
    # The cache holds whole splits: a limited one is tokenized apart.
    return inputs.tokenizer.tokenize(inputs.data.rows(split)[:limit])


def split_train(config: RunConfig, task: TaskSpec, rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Return the train rows that a run trains on, and those that select its epoch, if any do.

    A few-shot run draws both by its seed, `shots` rows of each class (HiFi, section 4.1). A holdout
    is a part of a permutation that the run's seed draws. The rows of a group, as of one
    of MultiRC's questions, stay together: its metrics are about whole groups.

    Args:
        config: `shots`, `limit`, `selection`, `holdout` and the seed.
        task: of the run; its classes are what shots are counted of.
        rows: of the whole train split.

    Raises:
        UsageError: there are too few rows for `shots`.
    """
    if config.shots:
        return task_sources.few_shot_sample(task, rows, config.shots, config.seed)
    rows = rows[: config.limit]
    if config.selection != "holdout":
        return rows, []
    # A row without a group is a group of its own.
    members: dict[str, list[Row]] = {}
    for row in rows:
        members.setdefault(row.group or row.id, []).append(row)
    groups = list(members.values())
    # The fraction counts groups, not rows, so that no group is cut.
    size = holdout_size(config, len(groups))
    generator = torch.Generator().manual_seed(config.seed)
    order = torch.randperm(len(groups), generator=generator).tolist()
    holdout = list(chain.from_iterable(groups[index] for index in order[:size]))
    train = list(chain.from_iterable(groups[index] for index in order[size:]))
    return train, holdout
