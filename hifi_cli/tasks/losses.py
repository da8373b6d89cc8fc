"""The loss of each kind of task."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from hifi_cli.tasks.inputs import Example
from hifi_cli.tasks.task_spec import TaskSpec


def loss(spec: TaskSpec, logits: Tensor, examples: Sequence[Example]) -> Tensor:
    """The loss, summed over examples.

    Cross-entropy over classes or choices, binary cross-entropy where two classes have one logit, squared error for
    a number, and for spans the mean of the cross-entropies of the first and the last token.

    Args:
        logits: [examples, classes or choices], [examples, 1], or for spans [examples, 2, tokens].
    """
    if spec.kind == "span":
        return _span_loss(logits, examples)
    labels = torch.tensor([example.row.label for example in examples], device=logits.device)
    if spec.kind == "regression":
        return functional.mse_loss(logits[:, 0], labels.float(), reduction="sum")
    if logits.shape[1] == 1 and len(spec.labels) == 2:
        return functional.binary_cross_entropy_with_logits(logits[:, 0], labels.float(), reduction="sum")
    return functional.cross_entropy(logits, labels, reduction="sum")


def _span_loss(logits: Tensor, examples: Sequence[Example]) -> Tensor:
    lengths = torch.tensor([len(example) for example in examples], device=logits.device)
    padding = torch.arange(logits.shape[2], device=logits.device) >= lengths[:, None, None]
    real = logits.masked_fill(padding, -torch.inf)  # what a batch is padded to must not change the loss
    targets = torch.tensor([example.answer for example in examples], device=logits.device)
    return functional.cross_entropy(real.flatten(0, 1), targets.flatten(), reduction="sum") / 2
