"""`selection=holdout`: the part of the train split that chooses a run's epoch, and that nothing else may see."""

import torch

from hifi_cli.config.run_config import RunConfig
from hifi_cli.runs.resources import ResourceCache
from hifi_cli.tasks.tokenization import Example


def cut(config: RunConfig, resources: ResourceCache) -> tuple[list[str], list[str]]:
    """Ids of the train split's rows that a run trains on, and of those it holds out: two parts of one shuffle by its seed."""
    ids = list(dict.fromkeys(row.id for row in resources.rows(config.task).rows("train")[: config.limit]))
    if config.shots or config.selection != "holdout":
        return ids, []
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(config.seed)).tolist()
    held = max(1, round(config.holdout * len(ids)))
    return [ids[index] for index in order[held:]], [ids[index] for index in order[:held]]


def seen(examples: list[Example], config: RunConfig, resources: ResourceCache) -> list[Example]:
    """Those of the train split's examples that the run does not hold out."""
    held = set(cut(config, resources)[1])
    return [example for example in examples if example.row.id not in held]
