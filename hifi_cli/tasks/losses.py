"""The loss of each kind of task."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from hifi_cli.models.device_copy import copy_to_device
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.tasks.tokenization import Example


def loss(spec: TaskSpec, logits: Tensor, examples: Sequence[Example]) -> Tensor:
    """Return the loss, summed over examples.

    Cross-entropy over classes or choices, binary cross-entropy for two classes with one logit, its mean over the classes for
    multi-label, squared error for regression, and for spans the mean of the cross-entropies of the first and the last token.

    Args:
        spec: the task.
        logits: [examples, classes or choices], [examples, 1], or for spans [examples, 2, tokens].
        examples: the examples with their labels.
    """
    if spec.kind == "span":
        return _span_loss(logits, examples)
    labels = copy_to_device([example.row.label for example in examples], logits.device)
    if spec.kind == "regression":
        return functional.mse_loss(logits[:, 0], labels.float(), reduction="sum")
    if spec.kind == "multi-label":
        return functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="sum") / len(spec.labels)
    if logits.shape[1] == 1 and len(spec.labels) == 2:
        return functional.binary_cross_entropy_with_logits(logits[:, 0], labels.float(), reduction="sum")
    return functional.cross_entropy(logits, labels, reduction="sum")


def _span_loss(logits: Tensor, examples: Sequence[Example]) -> Tensor:
    lengths = copy_to_device([len(example) for example in examples], logits.device)
    is_padding = torch.arange(logits.shape[2], device=logits.device) >= lengths[:, None, None]
    masked = logits.masked_fill(is_padding, -torch.inf)  # the padded length must not change the loss
    targets = copy_to_device([example.answer for example in examples], logits.device)
    return functional.cross_entropy(masked.flatten(0, 1), targets.flatten(), reduction="sum") / 2
