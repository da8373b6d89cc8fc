"""The loss of each kind of task, and what makes a mean of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.models.token_packing import copy_to_device
from hifi_cli.tasks.examples import UNREAD, EncodedExample
from hifi_cli.tasks.kinds import Kind
from hifi_cli.tasks.task_spec import TaskSpec

# The target of a token that has no tag, by transformers' convention.
_IGNORED = -100
ClassWeights = Sequence[float] | None


@dataclass(frozen=True)
class Targets:
    """The labels that a loss compares logits with.

    Attributes:
        labels: of `label_array`, on the device of the logits.
        class_weights: of each class, as in torch's cross_entropy; None for equal weights.
        label_smoothing: as in torch's cross_entropy.
    """

    labels: Tensor
    class_weights: ClassWeights | Tensor = None
    label_smoothing: float = 0.0

    def cross_entropy(self, logits: Tensor, classes: Tensor) -> Tensor:
        """Return the cross-entropy, summed over rows.

        Args:
            logits: [rows, classes].
            classes: the index of each row's class, [rows]; -100 for a row without a loss.
        """
        weight = None
        if self.class_weights is not None:
            weight = torch.as_tensor(self.class_weights, device=logits.device)
        return functional.cross_entropy(
            logits, classes, weight, label_smoothing=self.label_smoothing, reduction="sum"
        )


def task_loss(
    spec: TaskSpec,
    logits: Tensor,
    examples: Sequence[EncodedExample],
    class_weights: ClassWeights = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the loss, summed over examples, or over words for tags.

    `loss_normalizer` says what the sum is divided by to be a mean.

    Args:
        spec: the task; the loss is the one of its kind in `LOSSES`.
        logits: [examples, classes or choices], [examples, 1], for spans [examples, 2, tokens], for
            token classification [examples, tags, tokens].
        examples: the examples with their labels.
        class_weights: as in torch's cross_entropy, where `check_loss` allows them.
        label_smoothing: as in torch's cross_entropy, where `check_loss` allows it.
    """
    labels = copy_to_device(label_array(spec, examples, logits.shape[-1]), logits.device)
    targets = Targets(labels, class_weights, label_smoothing)
    return LOSSES[spec.kind](logits, targets)


def label_array(spec: TaskSpec, examples: Sequence[EncodedExample], width: int) -> NDArray[Any]:
    """Return the labels of a batch as its task's loss reads them.

    Args:
        spec: the task.
        examples: the examples with their labels.
        width: tokens of the padded batch, of which some losses read each.

    Returns:
        [examples] or [examples, classes]; for spans the answer's first and last token and the number
        of tokens, [examples, 3]; for token classification each token's tag, [examples, tokens].
    """
    return _LABELS.get(spec.kind, _labels_of_rows)(examples, width)


def _labels_of_rows(examples: Sequence[EncodedExample], _: int) -> NDArray[Any]:
    """Return the label of each example's row."""
    return np.asarray([example.row.label for example in examples])


def _answers_and_lengths(examples: Sequence[EncodedExample], _: int) -> NDArray[np.int64]:
    """Return the answer's first and last token and the number of tokens, [examples, 3]."""
    return np.array([(*example.answer, len(example)) for example in examples])


def _tags_of_tokens(examples: Sequence[EncodedExample], width: int) -> NDArray[np.int64]:
    """Return the tag of each word's first token, [examples, tokens]; other tokens have no loss."""
    tags_of_tokens = np.full((len(examples), width), _IGNORED, dtype=np.int64)
    for example, row in zip(examples, tags_of_tokens, strict=True):
        tokens = np.array(example.word_tokens)
        tags = np.array(example.row.label)
        is_read = tokens != UNREAD
        row[tokens[is_read]] = tags[is_read]
    return tags_of_tokens


# The labels of the kinds whose loss reads more than one label of each example.
_LABELS: dict[Kind, Callable[[Sequence[EncodedExample], int], NDArray[Any]]] = {
    "span": _answers_and_lengths,
    "token-classification": _tags_of_tokens,
}


def logits_of(spec: TaskSpec, output: Any) -> Tensor:
    """Return a model's logits, float32, in the shape that the loss and the predictions of a kind read.

    Args:
        spec: the task.
        output: what a model of transformers returns: its logits are those of sequences, or of tokens
            [examples, tokens, tags]; a model for spans returns two vectors of each text.

    Returns:
        [examples, classes or choices]; for spans [examples, 2, tokens], for token classification
        [examples, tags, tokens].
    """
    if not spec.rules.reads_all_tokens:
        return output.logits.float()
    if hasattr(output, "start_logits"):
        return torch.stack((output.start_logits, output.end_logits), 1).float()
    return output.logits.float().transpose(1, 2)


# --- the losses


def _class_loss(logits: Tensor, targets: Targets) -> Tensor:
    """Return the cross-entropy over classes, for two classes with one logit the binary one."""
    labels = targets.labels
    if logits.shape[1] > 1:
        return targets.cross_entropy(logits, labels)
    # One logit of two classes. Weights and smoothing are those of a cross-entropy of both.
    if targets.class_weights is None and not targets.label_smoothing:
        return functional.binary_cross_entropy_with_logits(
            logits[:, 0], labels.float(), reduction="sum"
        )
    # The sigmoid of z is the softmax of 0 and z.
    of_both_classes = functional.pad(logits, (1, 0))
    return targets.cross_entropy(of_both_classes, labels)


def _choice_loss(logits: Tensor, targets: Targets) -> Tensor:
    """Return the cross-entropy over choices."""
    return targets.cross_entropy(logits, targets.labels)


def _multi_label_loss(logits: Tensor, targets: Targets) -> Tensor:
    """Return the binary cross-entropy, as its mean over the classes."""
    labels = targets.labels.float()
    total = functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return total / logits.shape[1]


def _regression_loss(logits: Tensor, targets: Targets) -> Tensor:
    """Return the squared error."""
    labels = targets.labels.float()
    return functional.mse_loss(logits[:, 0], labels, reduction="sum")


def _span_loss(logits: Tensor, targets: Targets) -> Tensor:
    """Return the mean of the cross-entropies of the answer's first and last token."""
    answers, lengths = targets.labels.split((2, 1), dim=1)
    is_padding = torch.arange(logits.shape[2], device=logits.device) >= lengths[:, None]
    # The padded length must not change the loss.
    masked = logits.masked_fill(is_padding, -torch.inf)
    both = functional.cross_entropy(masked.flatten(0, 1), answers.flatten(), reduction="sum")
    return both / 2


def _tag_loss(logits: Tensor, targets: Targets) -> Tensor:
    """Return the cross-entropy of each word's first token; other tokens have no loss."""
    of_tokens = logits.transpose(1, 2).flatten(0, 1)
    return targets.cross_entropy(of_tokens, targets.labels.flatten())


# The loss of each kind, summed over examples; logits as `logits_of` returns them.
LOSSES: dict[Kind, Callable[[Tensor, Targets], Tensor]] = {
    "classification": _class_loss,
    "multi-label": _multi_label_loss,
    "regression": _regression_loss,
    "multiple-choice": _choice_loss,
    "span": _span_loss,
    "token-classification": _tag_loss,
}


def loss_normalizer(
    spec: TaskSpec, examples: Sequence[EncodedExample], class_weights: ClassWeights = None
) -> float:
    """Return what makes a mean of `task_loss`: the number of examples, or of words with a token.

    With class weights it is the sum of the weights, as in torch's cross_entropy.

    Args:
        spec: the task.
        examples: those whose loss is summed.
        class_weights: of the loss.
    """
    if class_weights is None:
        return spec.rules.loss_terms(examples)
    total = sum(class_weights[target] for target in spec.rules.targets(examples))
    # A batch of which no word was read has a loss of 0.
    return total or 1.0


def balanced_weights(spec: TaskSpec, examples: Sequence[EncodedExample]) -> list[float]:
    """Return n / (classes * n_c) of each class, as scikit-learn's `balanced`.

    n is the number of examples (or of words), n_c that of the class, at least 1.
    """
    counts = np.bincount(spec.rules.targets(examples), minlength=len(spec.labels))
    weights = []
    for count in counts:
        weights.append(float(counts.sum() / (len(counts) * max(count, 1))))
    return weights


def check_loss(spec: TaskSpec, config: RunConfig) -> None:
    """Refuse `label_smoothing` and `class_weights` where a task's loss does not have them.

    Raises:
        UsageError: a setting does not fit the task's kind, or the number of weights its classes.
    """
    if config.label_smoothing and not spec.rules.smooths_labels:
        raise UsageError(
            f"label_smoothing: a task of kind {spec.kind} has no cross-entropy over classes;"
            " remove it"
        )
    weights = config.class_weights
    if weights is not None and not spec.rules.weights_classes:
        raise UsageError(
            f"class_weights: a task of kind {spec.kind} has no classes to weight; remove it"
        )
    classes = len(spec.labels)
    if isinstance(weights, list) and (len(weights) != classes or min(weights) <= 0):
        raise UsageError(
            f"class_weights: give {classes} positive weights, of the classes"
            f" {', '.join(spec.labels)}"
        )
