"""A method's model, prepared or trained, for tests that look inside."""

import torch

from hifi_cli.runs import workspace
from hifi_cli.runs.heads import heads_to_tune
from hifi_cli.runs.splits import load_splits
from hifi_cli.tasks.encode import collate


def prepare(make, resources, method, *overrides, **names):
    """A model that a method has prepared for training, and its configuration."""
    config = make(method, *overrides, **names)
    return workspace.prepare_run(config, resources, heads_to_tune(config, resources)), config


def first_batch(config, resources, count=6):
    """The first training examples as one padded batch."""
    return collate(
        load_splits(config, resources).train[:count], {"input_ids": 0, "token_type_ids": 0}
    )


def logits_of(model, batch):
    """A model's logits in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return model(**batch).logits
