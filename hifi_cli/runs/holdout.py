"""`selection=holdout`: the part of the train split that chooses a run's epoch, and that nothing else may see."""

import torch

from hifi_cli.config.run_config import RunConfig
from hifi_cli.runs.resources import Workspace
from hifi_cli.tasks.inputs import Example


def cut(config: RunConfig, workspace: Workspace) -> tuple[list[str], list[str]]:
    """Ids of the train split's rows that a run trains on, and of those it holds out: two parts of one shuffle by its seed."""
    ids = list(dict.fromkeys(row.id for row in workspace.rows(config.task).rows("train")[: config.limit]))
    if config.shots or config.selection != "holdout":
        return ids, []
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(config.seed)).tolist()
    held = max(1, round(config.holdout * len(ids)))
    return [ids[index] for index in order[held:]], [ids[index] for index in order[:held]]


def seen(examples: list[Example], config: RunConfig, workspace: Workspace) -> list[Example]:
    """Those of the train split's examples that the run does not hold out."""
    held = set(cut(config, workspace)[1])
    return [example for example in examples if example.row.id not in held]
