"""SQuAD: the answer a model's logits point at, and the official comparison of answers."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hifi_cli.tasks.inputs import OUTSIDE, Example

BEST, LONGEST = 20, 30  # first and last tokens that are paired up; tokens of the longest answer: the official settings
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Answer(NamedTuple):
    """A predicted answer.

    Attributes:
        text: cut from the context; empty when no window had a possible one.
        start: logit of its first token.
        end: logit of its last token.
    """

    text: str
    start: float
    end: float


def best_answers(examples: Sequence[Example], logits: NDArray[np.float64]) -> list[Answer]:
    """The possible answer with the highest sum of logits, over all windows of a row.

    Args:
        logits: [windows, 2, tokens].

    Returns:
        One per row, in the order in which the rows first come; where no answer is possible an empty one, with the logits
        of the first token.
    """
    found: dict[str, Answer] = {}
    for example, (starts, ends) in zip(examples, logits, strict=True):
        best = found.get(example.row.id)
        here = _best_of_window(example, starts, ends)
        if here and (not best or not best.text or here.start + here.end > best.start + best.end):
            found[example.row.id] = here
        elif not best:
            found[example.row.id] = Answer("", float(starts[0]), float(ends[0]))
    return list(found.values())


def _best_of_window(example: Example, starts: NDArray[np.float64], ends: NDArray[np.float64]) -> Answer | None:
    context = example.row.sequences[0][1]
    tokens = len(example)
    best: Answer | None = None
    for first in _highest(starts[:tokens]):
        for last in _highest(ends[:tokens]):
            possible = first <= last < first + LONGEST and OUTSIDE not in (example.offsets[first], example.offsets[last])
            if possible and (not best or starts[first] + ends[last] > best.start + best.end):
                text = context[example.offsets[first][0] : example.offsets[last][1]]
                best = Answer(text, float(starts[first]), float(ends[last]))
    return best


def _highest(values: NDArray[np.float64]) -> list[int]:
    return [int(index) for index in np.argsort(-values, kind="stable")[:BEST]]


def normalised(text: str) -> list[str]:
    """An answer's words as the official script compares them: small letters, no punctuation, no articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(answer: str, accepted: Sequence[str]) -> float:
    """1 if the answer equals one of those accepted, else 0."""
    return float(any(normalised(answer) == normalised(other) for other in accepted))


def overlap(answer: str, accepted: Sequence[str]) -> float:
    """The highest F1 of the answer's words with those of an accepted one, in [0, 1]."""
    return max(_overlap(normalised(answer), normalised(other)) for other in accepted)


def _overlap(words: list[str], others: list[str]) -> float:
    common = sum((Counter(words) & Counter(others)).values())
    return 2 * common / (len(words) + len(others)) if common else 0.0
