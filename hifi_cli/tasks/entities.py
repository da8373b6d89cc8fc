"""Entities in sentences of tagged words (IOB2 and its variants), and their scores by the rules of the script conlleval."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NO_ENTITY = "O"
_TAG = re.compile(r"O|[BIESLU]-.+")
_BEGINS, _CONTINUES = "BI", "IEL"  # prefixes that an entity can go on after, and prefixes that can go on with it

Tags = Sequence[str]  # of a sentence's words


class Entity(NamedTuple):
    """An entity of a sentence: its type, and its first and last word."""

    type: str
    first: int
    last: int


class Scores(NamedTuple):
    """Precision, recall and their harmonic mean, in [0, 1]; 0 where there is nothing to divide by."""

    precision: float
    recall: float
    f1: float


def mark_entities(labels: Iterable[str]) -> bool:
    """Return whether all tags are `O` or a prefix with an entity type: IOB1, IOB2, IOBES or BILOU."""
    return all(_TAG.fullmatch(label) for label in labels)


def type_of(tag: str) -> str | None:
    """Return the entity type of a tag; None for `O`."""
    return tag.partition("-")[2] or None


def entities(tags: Tags) -> list[Entity]:
    """Return the entities of a sentence, by the rules of conlleval.

    A word belongs to the entity of the word before it if its tag continues one of the same type. Every other word whose tag
    is not `O` begins an entity, with whichever prefix.
    """
    result: list[Entity] = []
    previous = NO_ENTITY
    for word, tag in enumerate(tags):
        continues = tag[0] in _CONTINUES and previous[0] in _BEGINS and type_of(tag) == type_of(previous)
        if tag == NO_ENTITY:
            pass
        elif continues:
            result[-1] = result[-1]._replace(last=word)
        else:
            result.append(Entity(tag.partition("-")[2], word, word))
        previous = tag
    return result


def scores(labels: Sequence[Tags], predictions: Sequence[Tags]) -> Scores:
    """Compare the entities of all sentences: a predicted one is correct if its type, first and last word are.

    Args:
        labels: the correct tags of each sentence.
        predictions: the predicted tags of each sentence.
    """
    pairs = [(set(entities(label)), set(entities(tags))) for label, tags in zip(labels, predictions, strict=True)]
    correct = sum(len(label & predicted) for label, predicted in pairs)
    in_labels, in_predictions = (sum(map(len, side)) for side in zip(*pairs, strict=True))
    return Scores(
        correct / in_predictions if in_predictions else 0.0,
        correct / in_labels if in_labels else 0.0,
        2 * correct / (in_labels + in_predictions) if correct else 0.0,
    )
