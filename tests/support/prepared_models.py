"""A method's model, prepared or trained, for tests that look inside."""

import torch

from hifi_cli.runs.heads import selected_heads
from hifi_cli.runs.splits import load_splits
from hifi_cli.runs.workspace import prepare_run
from hifi_cli.tasks.encode import collate


def prepare(make, workspace, method, *overrides, **names):
    """A model that a method has prepared for training, and its configuration."""
    config = make(method, *overrides, **names)
    return prepare_run(config, workspace, selected_heads(config, workspace)), config


def first_batch(config, workspace, count=6):
    """The first training examples as one padded batch."""
    return collate(
        load_splits(config, workspace).train[:count], {"input_ids": 0, "token_type_ids": 0}
    )


def logits_of(model, batch):
    """A model's logits in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return model(**batch).logits
