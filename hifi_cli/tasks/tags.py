"""Token classification: a model's tag of each word."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hifi_cli.tasks.entities import NO_ENTITY
from hifi_cli.tasks.tokenization import UNREAD, Example


class TaggedSentence(NamedTuple):
    """The predicted tags of a sentence.

    Attributes:
        prediction: the tag of each word; `O` for a word that the model did not read.
        logits: the logit of each word's tag; 0 for a word that the model did not read.
    """

    prediction: list[str]
    logits: list[float]


def predicted_tags(labels: Sequence[str], examples: Sequence[Example], logits: NDArray[np.float64]) -> list[TaggedSentence]:
    """Return for each sentence the tags with the highest logits, which are those of each word's first token.

    Args:
        labels: the tags in label order.
        examples: the tokenized sentences.
        logits: [sentences, tags, tokens].
    """
    return [
        TaggedSentence(
            [NO_ENTITY if token == UNREAD else labels[values[:, token].argmax()] for token in example.word_tokens],
            [0.0 if token == UNREAD else float(np.float32(values[:, token].max())) for token in example.word_tokens],
        )
        for example, values in zip(examples, logits, strict=True)
    ]
