"""SQuAD: the best answer span by a model's logits, and the official comparison of answers."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hifi_cli.tasks.tokenization import OUTSIDE, Example

N_BEST, MAX_ANSWER_TOKENS = 20, 30  # of the official script: candidates for first and last token; longest answer
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Answer(NamedTuple):
    """A predicted answer.

    Attributes:
        text: part of the context; empty if no window has a valid answer.
        start: logit of the first token.
        end: logit of the last token.
    """

    text: str
    start: float
    end: float

    @property
    def prediction(self) -> str:
        """What was predicted."""
        return self.text

    @property
    def logits(self) -> list[float]:
        """Of the first and the last token."""
        return [self.start, self.end]


def best_answers(examples: Sequence[Example], logits: NDArray[np.float64]) -> list[Answer]:
    """Return for each row the valid answer with the highest sum of logits over all windows.

    Args:
        examples: the windows of all rows.
        logits: [windows, 2, tokens].

    Returns:
        One answer per row, in the order of the rows; if no span is valid, an empty answer with the logits of the first
        token.
    """
    answers: dict[str, Answer] = {}
    for example, (starts, ends) in zip(examples, logits, strict=True):
        best = answers.get(example.row.id)
        candidate = _best_of_window(example, starts, ends)
        if candidate and (not best or not best.text or candidate.start + candidate.end > best.start + best.end):
            answers[example.row.id] = candidate
        elif not best:
            answers[example.row.id] = Answer("", float(starts[0]), float(ends[0]))
    return list(answers.values())


def _best_of_window(example: Example, starts: NDArray[np.float64], ends: NDArray[np.float64]) -> Answer | None:
    context = example.row.sequences[0][1]
    tokens = len(example)
    best: Answer | None = None
    for first in _highest_indices(starts[:tokens]):
        for last in _highest_indices(ends[:tokens]):
            is_valid = first <= last < first + MAX_ANSWER_TOKENS and OUTSIDE not in (
                example.offsets[first],
                example.offsets[last],
            )
            if is_valid and (not best or starts[first] + ends[last] > best.start + best.end):
                text = context[example.offsets[first][0] : example.offsets[last][1]]
                best = Answer(text, float(starts[first]), float(ends[last]))
    return best


def _highest_indices(values: NDArray[np.float64]) -> list[int]:
    return [int(index) for index in np.argsort(-values, kind="stable")[:N_BEST]]


def normalize_answer(text: str) -> list[str]:
    """Return an answer's words as the official script compares them: lower case, no punctuation, no articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(answer: str, accepted: Sequence[str]) -> float:
    """Return 1 if the answer equals an accepted one after normalization, else 0."""
    return float(any(normalize_answer(answer) == normalize_answer(other) for other in accepted))


def word_f1(answer: str, accepted: Sequence[str]) -> float:
    """Return the highest F1 between the words of the answer and of an accepted one, in [0, 1]."""
    return max(_word_f1(normalize_answer(answer), normalize_answer(other)) for other in accepted)


def _word_f1(words: list[str], others: list[str]) -> float:
    common = sum((Counter(words) & Counter(others)).values())
    return 2 * common / (len(words) + len(others)) if common else 0.0
