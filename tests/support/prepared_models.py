"""What a run is made of, and a method's model, prepared or trained, for tests that look inside."""

import torch

from hifi_cli.runs.heads import HeadSelector
from hifi_cli.runs.inputs import load_task
from hifi_cli.runs.prepare import own_encoder, prepare_run
from hifi_cli.runs.splits import load_splits
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.encode import collate
from hifi_cli.training.device import set_up_device


def inputs_of(config, workspace):
    """What a run computes from."""
    return workspace.inputs(config, load_task(config))


def splits_of(config, workspace):
    """The examples of a run."""
    return load_splits(inputs_of(config, workspace))


def examples_of(config, workspace, split="train", max_length=None):
    """The examples of a whole split."""
    return inputs_of(config, workspace).examples(split, max_length)


def pretrained_of(config, workspace):
    """The pretrained encoder that runs share."""
    return workspace.pretrained(config, load_task(config))


def encoder_of(config, workspace):
    """A run's own copy of its encoder, before a method prepares it."""
    return own_encoder(pretrained_of(config, workspace), config.seed)


def data_of(task, workspace):
    """The rows of every split of a task, by its name."""
    return workspace.data(task_spec.load(task))


def heads_of(config, workspace):
    """The heads that a run tunes; None if its method needs none."""
    return HeadSelector.of(config, workspace).heads_to_tune()


def prepared_run(config, workspace, heads=None):
    """A run ready to train."""
    task = load_task(config)
    pretrained = workspace.pretrained(config, task)
    return prepare_run(config, task, pretrained, set_up_device(config), heads)


def prepare(make, workspace, method, *overrides, **names):
    """A model that a method has prepared for training, and its configuration."""
    config = make(method, *overrides, **names)
    return prepared_run(config, workspace, heads_of(config, workspace)), config


def first_batch(config, workspace, count=6):
    """The first training examples as one padded batch."""
    examples = splits_of(config, workspace).train[:count]
    return collate(examples, {"input_ids": 0, "token_type_ids": 0})


def logits_of(model, batch):
    """A model's logits in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return model(**batch).logits
