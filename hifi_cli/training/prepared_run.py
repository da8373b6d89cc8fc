"""What a run is made from, resolved once from its configuration, and its model as its method prepares it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import RunFailed
from hifi_cli.methods import base as methods
from hifi_cli.methods.base import Heads, Method
from hifi_cli.models.cpu_kernels import install_row_linears
from hifi_cli.models.delta import DeltaMetadata
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.pretrained import Pretrained
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.results.record import ParameterCounts, Prediction
from hifi_cli.tasks import metrics
from hifi_cli.tasks.encode import padding_values, rows_of
from hifi_cli.tasks.metrics import Predictions, Values
from hifi_cli.tasks.task_spec import Example, Split, TaskData, TaskSpec
from hifi_cli.training.device import uses_cpu_kernels
from hifi_cli.training.model_runner import ModelRunner
from hifi_cli.training.resources import ResourceCache
from hifi_cli.training.splits import Splits, batch_size, load_splits


@dataclass(frozen=True)
class ModelInputs:
    """What the model of a run is made from.

    Attributes:
        task: with the primary metric that the configuration names.
        encoder: the run's own copy of the pretrained model, with the task head that the run's seed draws.
        pretrained: the pretrained model, which several runs share, its tokenizer, missing keys and weights id.
        attention_heads: the heads that the method tunes; None for a method that needs none.
    """

    config: RunConfig
    task: TaskSpec
    task_head: TaskHeadSpec
    encoder: Encoder
    pretrained: Pretrained
    attention_heads: Heads | None

    @classmethod
    def resolve(cls, config: RunConfig, resources: ResourceCache, attention_heads: Heads | None) -> "ModelInputs":
        """Load the backbone; the attention heads are known, for example from the delta of a finished run."""
        encoder, pretrained = resources.encoder(config)
        return cls(config, resources.task_of(config), resources.task_head(config), encoder, pretrained, attention_heads)


@dataclass(frozen=True)
class RunInputs:
    """Everything that a run is made from."""

    model: ModelInputs
    splits: Splits
    data: TaskData

    @classmethod
    def resolve(cls, config: RunConfig, resources: ResourceCache) -> "RunInputs":
        """Select the attention heads, load the examples and the backbone.

        Raises:
            MissingError: data or weights are missing.
            UsageError: a setting does not fit the task or the backbone.
        """
        attention_heads = select_attention_heads(config, resources)
        splits = load_splits(config, resources)
        data = resources.rows(config.task)
        model = ModelInputs.resolve(config, resources, attention_heads)
        return cls(model, splits, data)


def select_attention_heads(config: RunConfig, resources: ResourceCache) -> Heads | None:
    """The attention heads that a run tunes: given, or selected by their scores; None for a method that needs none."""
    if not methods.needs_heads(config):
        return None
    from hifi_cli.training import head_selection

    return config.heads.given or head_selection.load_or_select_heads(config, resources)[0].heads


@dataclass(frozen=True)
class PreparedRun:
    """A run ready to train, or a finished one ready to predict.

    Attributes:
        plain_parameters: number of parameters of the model before the method prepared it.
    """

    inputs: ModelInputs
    method: Method
    runner: ModelRunner
    plain_parameters: int

    @property
    def encoder(self) -> Encoder:
        """The model under the names that all architectures share."""
        return self.inputs.encoder

    @property
    def task(self) -> TaskSpec:
        """The task, with the primary metric that the configuration names."""
        return self.inputs.task

    @property
    def task_head(self) -> TaskHeadSpec:
        """The head of the task."""
        return self.inputs.task_head

    @property
    def delta_metadata(self) -> DeltaMetadata:
        """What a delta of this run belongs to."""
        config, weights_id = self.inputs.config, self.inputs.pretrained.weights_id
        return DeltaMetadata(
            method=config.method, backbone=config.backbone.name, backbone_weights_id=weights_id, heads=self.method.context.heads
        )


def prepare(inputs: ModelInputs) -> PreparedRun:
    """Let the method of a run prepare its model, and move the model to its device."""
    config, encoder, pretrained = inputs.config, inputs.encoder, inputs.pretrained
    plain_parameters = encoder.num_parameters
    # scoring and masks of few-shot runs are those of the full-shot setting; only training has the whole set as a batch
    config = config.model_copy(update={"batch_size": batch_size(config, inputs.task)})
    runner = ModelRunner(encoder, inputs.task, config, padding_values(pretrained.tokenizer))
    method = methods.attach(config, encoder, inputs.attention_heads, pretrained.missing_keys)
    if uses_cpu_kernels(config):
        install_row_linears(encoder)
    runner.to_device()
    return PreparedRun(inputs, method, runner, plain_parameters)


def count_parameters(prepared: PreparedRun) -> ParameterCounts:
    """How many numbers train, in all and in the backbone, a delta stores (and its bytes), and the plain model has."""
    trainable, trainable_backbone = count_trainable(prepared)
    stored = prepared.method.delta(prepared.encoder.model).values()
    return ParameterCounts(
        trainable=trainable,
        trainable_backbone=trainable_backbone,
        stored=sum(tensor.numel() for tensor in stored if tensor.is_floating_point()),
        stored_bytes=sum(tensor.numel() * tensor.element_size() for tensor in stored),
        total=prepared.plain_parameters,
    )


def count_trainable(prepared: PreparedRun) -> tuple[int, int]:
    """How many numbers train in the current phase, in all and in the backbone."""
    task_head = set(methods.task_head_names(prepared.encoder))
    trained = prepared.method.trainable_counts(prepared.encoder.model)
    return sum(trained.values()), sum(count for name, count in trained.items() if name not in task_head)


class NonFiniteLogits(RunFailed):
    """A model gives logits that are not finite: its weights are not, or are too large."""


def measure(prepared: PreparedRun, examples: list[Example], split: Split = "validation") -> tuple[dict[str, float], Values]:
    """Compute every metric of the task on some examples of a split; returns their logits too.

    Raises:
        NonFiniteLogits: a logit is not finite.
    """
    logits = prepared.runner.predict(examples)
    if np.isnan(logits).any() or np.isposinf(logits).any():  # -inf is beyond a batch's tokens
        raise NonFiniteLogits("the model's logits are not finite; try a smaller learning_rate=...")
    predictions = metrics.predictions_of(prepared.task, examples, logits)
    return metrics.compute(prepared.task.on_split(split), rows_of(examples), predictions), logits


def measure_extra_validation(prepared: PreparedRun, extra_validation: Mapping[str, list[Example]]) -> dict[str, float]:
    """Compute every metric on each extra validation split, as `metric_split`."""
    return {
        f"{metric}_{split}": score
        for split, examples in extra_validation.items()
        for metric, score in measure(prepared, examples, f"validation_{split}")[0].items()
    }


def prediction_rows(task: TaskSpec, examples: list[Example], logits: Values, predictions: Predictions) -> list[Prediction]:
    """Lines of predictions.jsonl: id, label, prediction (labels, numbers, answers or tags) and logits; see `Prediction`."""

    def label_word(value: Any) -> str | float | list[str] | None:
        if value is None or task.kind == "regression":
            return None if value is None else float(value)
        if task.kind == "multi-label":
            return [label for label, is_present in zip(task.labels, value, strict=True) if is_present]
        if task.kind == "token-classification":
            return [task.labels[tag] for tag in value]
        return task.labels[int(value)]

    if not isinstance(predictions, np.ndarray):
        return [
            Prediction(
                id=row.id,
                label=[text for text, _ in row.answers] if task.kind == "span" else label_word(row.label),
                prediction=output.prediction,
                logits=output.logits,
            )
            for row, output in zip(rows_of(examples), predictions, strict=True)
        ]
    return [
        Prediction(
            id=example.row.id,
            label=label_word(example.row.label),
            prediction=label_word(predicted),
            logits=[float(np.float32(value)) for value in row],
        )
        for example, row, predicted in zip(examples, logits, predictions, strict=True)
    ]
