"""The loss of each kind of task, and what makes a mean of it."""

from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.models.token_packing import copy_to_device
from hifi_cli.tasks.task_spec import UNREAD, EncodedExample, TaskSpec

_IGNORED = -100  # the target of a token that has no tag, transformers' convention
ClassWeights = Sequence[float] | None


def task_loss(
    spec: TaskSpec,
    logits: Tensor,
    examples: Sequence[EncodedExample],
    class_weights: ClassWeights = None,
    label_smoothing: float = 0.0,
    labels: Tensor | None = None,
) -> Tensor:
    """Return the loss, summed over examples, of tags over their words; see `loss_normalizer`.

    Cross-entropy over classes or choices, binary cross-entropy for two classes with one logit, its
    mean over the classes for multi-label, squared error for regression, and for spans the mean of
    the cross-entropies of the first and the last token. For token classification the cross-entropy
    of each word's first token; other tokens have no loss.

    Args:
        spec: the task.
        logits: [examples, classes or choices], [examples, 1], for spans [examples, 2, tokens], for
            token classification [examples, tags, tokens].
        examples: the examples with their labels.
        class_weights, label_smoothing: as in torch's cross_entropy, where `check_loss` allows them.
        labels: those of the examples, which are then not read, where each example has one.
    """
    if spec.kind == "span":
        return _span_loss(logits, examples)
    weight = None if class_weights is None else torch.tensor(class_weights, device=logits.device)
    cross_entropy = partial(
        functional.cross_entropy, weight=weight, label_smoothing=label_smoothing, reduction="sum"
    )
    if spec.kind == "token-classification":
        return cross_entropy(logits.transpose(1, 2).flatten(0, 1), _tag_targets(logits, examples))
    if labels is None:
        labels = copy_to_device([example.row.label for example in examples], logits.device)
    if spec.kind == "regression":
        return functional.mse_loss(logits[:, 0], labels.float(), reduction="sum")
    if spec.kind == "multi-label":
        return functional.binary_cross_entropy_with_logits(
            logits, labels.float(), reduction="sum"
        ) / len(spec.labels)
    if logits.shape[1] == 1 and len(spec.labels) == 2:
        if weight is None and not label_smoothing:
            return functional.binary_cross_entropy_with_logits(
                logits[:, 0], labels.float(), reduction="sum"
            )
        logits = functional.pad(logits, (1, 0))  # the sigmoid of z is the softmax of 0 and z
    return cross_entropy(logits, labels)


def loss_normalizer(
    spec: TaskSpec, examples: Sequence[EncodedExample], class_weights: ClassWeights = None
) -> float:
    """Return what makes a mean of `task_loss`: the number of examples, or of words with a token.

    With class weights the sum of theirs, as in torch's cross_entropy.
    """
    if class_weights is not None:
        return sum(class_weights[target] for target in loss_targets(spec, examples)) or 1.0
    if spec.kind != "token-classification":
        return len(examples)
    # a batch of which no word was read has a loss of 0
    return max(len(loss_targets(spec, examples)), 1)


def loss_targets(spec: TaskSpec, examples: Sequence[EncodedExample]) -> list[int]:
    """Return the class of each example, for token classification of each word with a token."""
    if spec.kind != "token-classification":
        return [cast(int, example.row.label) for example in examples]
    tagged = (
        zip(example.word_tokens, cast(Sequence[int], example.row.label), strict=True)
        for example in examples
    )
    return [tag for words in tagged for token, tag in words if token != UNREAD]


def balanced_weights(spec: TaskSpec, examples: Sequence[EncodedExample]) -> list[float]:
    """Return n / (classes * n_c) of each class, as scikit-learn's `balanced`; n_c is at least 1."""
    counts = np.bincount(loss_targets(spec, examples), minlength=len(spec.labels))
    return [float(counts.sum() / (len(counts) * max(count, 1))) for count in counts]


def check_loss(spec: TaskSpec, config: RunConfig) -> None:
    """Refuse `label_smoothing` and `class_weights` where a task's loss does not have them.

    Raises:
        UsageError: a setting does not fit the task's kind, or the number of weights its classes.
    """
    weights, classes = config.class_weights, len(spec.labels)
    has_classes = spec.kind in ("classification", "token-classification")
    if config.label_smoothing and not (has_classes or spec.kind == "multiple-choice"):
        raise UsageError(
            f"label_smoothing: a task of kind {spec.kind} has no cross-entropy over classes;"
            " remove it"
        )
    if weights is not None and not has_classes:
        raise UsageError(
            f"class_weights: a task of kind {spec.kind} has no classes to weight; remove it"
        )
    if isinstance(weights, list) and (len(weights) != classes or min(weights) <= 0):
        raise UsageError(
            f"class_weights: give {classes} positive weights, of the classes"
            f" {', '.join(spec.labels)}"
        )


def _tag_targets(logits: Tensor, examples: Sequence[EncodedExample]) -> Tensor:
    tags_of_tokens = np.full((len(examples), logits.shape[2]), _IGNORED, dtype=np.int64)
    for example, row in zip(examples, tags_of_tokens, strict=True):
        tokens, tags = np.array(example.word_tokens), np.array(example.row.label)
        row[tokens[tokens != UNREAD]] = tags[tokens != UNREAD]
    return copy_to_device(tags_of_tokens.ravel(), logits.device)


def _span_loss(logits: Tensor, examples: Sequence[EncodedExample]) -> Tensor:
    lengths = copy_to_device([len(example) for example in examples], logits.device)
    is_padding = torch.arange(logits.shape[2], device=logits.device) >= lengths[:, None, None]
    # the padded length must not change the loss
    masked = logits.masked_fill(is_padding, -torch.inf)
    answers = copy_to_device([example.answer for example in examples], logits.device)
    return functional.cross_entropy(masked.flatten(0, 1), answers.flatten(), reduction="sum") / 2
