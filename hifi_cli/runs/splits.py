"""The examples of a run: few-shot samples, holdouts and limits."""

import torch

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.encode import epoch_batches
from hifi_cli.tasks.task_spec import EncodedExample, Row, Split, TaskSpec
from hifi_cli.training.loop import Splits


def load_splits(config: RunConfig, workspace: Workspace) -> Splits:
    """Load the examples of a run, as `shots`, `selection`, `holdout` and `limit` say.

    Raises:
        MissingError: the data are missing.
        UsageError: there are too few rows for `shots`.
    """
    task, data = task_spec.load(config.task), workspace.rows(config.task)

    def load(split: Split) -> list[EncodedExample]:
        if config.limit is None:
            return workspace.examples(config, split, config.max_length)
        return workspace.tokenize(config, data.rows(split)[: config.limit], config.max_length)

    extra = {
        name: load(split) for name, split in task.extra_validation.items() if split in data.splits
    }
    reported, fewshot = load("validation"), None
    if config.shots or config.selection == "holdout":
        parts = split_train(config, task, data.rows("train"))
        train, selection = (workspace.tokenize(config, rows, config.max_length) for rows in parts)
    else:
        train, selection = load("train"), reported
    for_gradients = train
    if config.shots:
        fewshot = task_sources.few_shot_rows(*parts)
        for_gradients = workspace.examples(config, "train", config.max_length)
    return Splits(
        train, selection, reported, epoch_batches(config, for_gradients, 0), extra, fewshot
    )


def split_train(config: RunConfig, task: TaskSpec, rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """The train rows that a run trains on, and those that select its epoch, if any do.

    A holdout is a part of a permutation that the run's seed draws. The rows of a group, as of one
    of MultiRC's questions, stay together: its metrics are about whole groups.

    Raises:
        UsageError: there are too few rows for `shots`.
    """
    if config.shots:
        return task_sources.few_shot_sample(task, rows, config.shots, config.seed)
    rows = rows[: config.limit]
    if config.selection != "holdout":
        return rows, []
    members: dict[str, list[Row]] = {}
    for row in rows:
        members.setdefault(row.group or row.id, []).append(row)
    groups = list(members.values())
    if len(groups) < 2:
        raise UsageError("selection=holdout takes at least two rows to train on, or groups of rows")
    generator = torch.Generator().manual_seed(config.seed)
    order = torch.randperm(len(groups), generator=generator).tolist()
    size = min(max(1, round(config.holdout * len(groups))), len(groups) - 1)
    train, holdout = (
        [row for number in part for row in groups[number]] for part in (order[size:], order[:size])
    )
    return train, holdout
