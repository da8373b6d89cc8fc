"""A run's own model on its device, which the run's method has prepared."""

import copy
from dataclasses import dataclass

import torch

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Heads, Method, MethodContext
from hifi_cli.methods.find import build_method
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.pretrained import Pretrained, initialize_missing
from hifi_cli.runs import size
from hifi_cli.tasks.encode import padding_values
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.training.runner import ModelRunner


@dataclass
class PreparedRun(ModelRunner):
    """The runner of a run, with the method that has prepared its model: ready to train or predict.

    `prepare_run` makes it: for `run`, which trains it, and for `rebuild` of `runs/finished.py`,
    which loads the delta of a finished run into it. Whatever takes a `ModelRunner` takes it too.

    Attributes:
        task: with the primary metric that the configuration names.
        config: of the run.
        method: has prepared the model.
        pretrained: the pretrained model, which several runs share, its tokenizer and weights id.
    """

    method: Method
    pretrained: Pretrained

    @property
    def batch_size(self) -> int:
        """The examples of a training step; a few-shot run trains on all examples at once.

        `load_splits` and the scoring of heads keep the configured number, because they work on the
        full train split.
        """
        return size.batch_size(self.config, self.task)


def own_encoder(pretrained: Pretrained, seed: int) -> Encoder:
    """Copy a pretrained encoder for one run, with the task head that a seed draws.

    The runs of a command share the loaded encoder, and a method changes its copy in place.
    """
    model = copy.deepcopy(pretrained.model)
    initialize_missing(model, pretrained.missing_keys, seed)
    return Encoder(model)


def prepare_run(
    config: RunConfig,
    task: TaskSpec,
    pretrained: Pretrained,
    device: torch.device,
    heads: Heads | None,
) -> PreparedRun:
    """Build the run's method, and let it prepare a copy of the encoder on the device.

    Args:
        config: of the run.
        task: as its YAML has it.
        pretrained: the encoder with the task head, which is copied.
        device: where the run computes.
        heads: that the method tunes; None for a method that needs none.
    """
    encoder = own_encoder(pretrained, config.seed)
    # The task as the run is measured by it; digests and data are those of the task as its YAML has
    # it.
    task_as_run = task.with_primary(config.primary_metric)
    # The method may compute with the pretrained weights, as PiSSA does: on the run's device.
    encoder.model.to(device)
    method = build_and_prepare(config, encoder, heads, pretrained.missing_keys)
    pad = padding_values(pretrained.tokenizer)
    return PreparedRun(encoder, task_as_run, config, pad, device, method, pretrained)


def build_and_prepare(
    config: RunConfig, encoder: Encoder, heads: Heads | None, missing_keys: list[str]
) -> Method:
    """Build the method of a run, and let it prepare the model.

    Args:
        config: of the run.
        encoder: whose model the method changes in place.
        heads: that the method tunes; None for a method that needs none.
        missing_keys: names of parameters without pretrained values.

    Raises:
        UsageError: an unknown setting, a value that does not fit, a method that trains nothing, or
            `layer_decay` with parameters that it cannot place, or without layers that are trained.
    """
    method = build_method(config, MethodContext(heads, missing_keys, config.seed, config.stage1))
    # By these names, `_check_layer_decay` tells which parameters the method has added.
    before = {name for name, _ in encoder.model.named_parameters()}
    method.prepare(encoder)
    # The model is prepared for the first stage; a later stage prepares it when it begins.
    if not method.stages()[0].method.trainable_parameters(encoder.model):
        raise UsageError(
            f"method {config.method} trains nothing: after its prepare no parameter requires a gradient"
        )
    if config.layer_decay != 1:
        _check_layer_decay(config, method, encoder, before)
    return method


def _check_layer_decay(
    config: RunConfig, method: Method, encoder: Encoder, before: set[str]
) -> None:
    """Refuse `layer_decay` for a method whose parameters have no layer.

    Args:
        before: the names of the model's parameters before the method prepared it.

    Raises:
        UsageError: the method adds a parameter outside of all layers, or trains no layer.
    """
    trained: list[str] = []
    for stage in method.stages():
        trained += stage.method.trainable_parameters(encoder.model)
    outside = []
    for name in trained:
        if encoder.layer_of(name) is None and not encoder.is_in_embeddings(name):
            outside.append(name)
    problem = ""
    # The task head is in no layer either, but it was there before: it has the full learning rate.
    added = [name for name in outside if name not in before]
    if added:
        problem = f"adds {added[0]}, which is in no layer"
    # The second of two stages has not prepared the model yet. It may train the layers that the
    # first one freezes.
    elif len(outside) == len(trained) and not config.stage1:
        problem = "trains no layer"
    if problem:
        raise UsageError(f"layer_decay: method {config.method} {problem}; remove it")


def enter_last_stage(method: Method, encoder: Encoder, current_stage: int = 0) -> None:
    """Bring a model to its method's last stage.

    The stages between are prepared one after the other: each builds on the modules and on what
    trains in the one before.

    Args:
        method: of the run.
        encoder: with the model, which is changed in place.
        current_stage: the stage that the model is in, counted from 0.
    """
    for stage in method.stages()[current_stage + 1 :]:
        stage.prepare_model(encoder)
