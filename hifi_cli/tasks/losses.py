"""The loss of each kind of task."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hifi_cli.models.token_packing import copy_to_device
from hifi_cli.tasks.task_spec import UNREAD, Example, TaskSpec

_IGNORED = -100  # the target of a token that has no tag, transformers' convention


def loss(spec: TaskSpec, logits: Tensor, examples: Sequence[Example]) -> Tensor:
    """Return the loss, summed over examples, for token classification over their words; see `count`.

    Cross-entropy over classes or choices, binary cross-entropy for two classes with one logit, its
    mean over the classes for multi-label, squared error for regression, and for spans the mean of
    the cross-entropies of the first and the last token. For token classification the cross-entropy
    of each word's first token; other tokens have no loss.

    Args:
        spec: the task.
        logits: [examples, classes or choices], [examples, 1], for spans [examples, 2, tokens], for
            token classification [examples, tags, tokens].
        examples: the examples with their labels.
    """
    if spec.kind == "span":
        return _span_loss(logits, examples)
    if spec.kind == "token-classification":
        return _tag_loss(logits, examples)
    labels = copy_to_device([example.row.label for example in examples], logits.device)
    if spec.kind == "regression":
        return functional.mse_loss(logits[:, 0], labels.float(), reduction="sum")
    if spec.kind == "multi-label":
        return functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="sum") / len(spec.labels)
    if logits.shape[1] == 1 and len(spec.labels) == 2:
        return functional.binary_cross_entropy_with_logits(logits[:, 0], labels.float(), reduction="sum")
    return functional.cross_entropy(logits, labels, reduction="sum")


def count(spec: TaskSpec, examples: Sequence[Example]) -> int:
    """Return what `loss` sums over, for the mean: the number of examples, for token classification of words with a token."""
    if spec.kind != "token-classification":
        return len(examples)
    words = sum(len(example.word_tokens) - example.word_tokens.count(UNREAD) for example in examples)
    return max(words, 1)  # a batch of which no word was read has a loss of 0


def _tag_loss(logits: Tensor, examples: Sequence[Example]) -> Tensor:
    targets = np.full((len(examples), logits.shape[2]), _IGNORED, dtype=np.int64)
    for example, row in zip(examples, targets, strict=True):
        tokens, tags = np.array(example.word_tokens), np.array(example.row.label)
        row[tokens[tokens != UNREAD]] = tags[tokens != UNREAD]
    by_token = logits.transpose(1, 2).flatten(0, 1)
    return functional.cross_entropy(by_token, copy_to_device(targets.ravel(), logits.device), reduction="sum")


def _span_loss(logits: Tensor, examples: Sequence[Example]) -> Tensor:
    lengths = copy_to_device([len(example) for example in examples], logits.device)
    is_padding = torch.arange(logits.shape[2], device=logits.device) >= lengths[:, None, None]
    masked = logits.masked_fill(is_padding, -torch.inf)  # the padded length must not change the loss
    targets = copy_to_device([example.answer for example in examples], logits.device)
    return functional.cross_entropy(masked.flatten(0, 1), targets.flatten(), reduction="sum") / 2
