"""What a configuration key decides, said once, at its field.

Caches, the hash of a run and the comparison of runs ask for the keys with an effect. A key that is left
out of one of them would give a stale cache or a wrong mean without a word; so every field has a mark.
"""

from typing import Literal

from pydantic import BaseModel

Effect = Literal[
    # which run it is: the key is part of the configuration's hash
    "run",
    # the token ids of the examples, which are kept for the runs of a command
    "tokens",
    # the loaded encoder, which is kept too
    "encoder",
    # the weights after `scoring.warm_steps`, and with them stored head scores
    "warm-up",
    # whether a run has its protocol's settings: tables name a key that has not
    "settings",
]


class Decides:
    """A mark of a field: `learning_rate: Annotated[float, Decides("run", "warm-up", "settings")]`."""

    def __init__(self, *effects: Effect) -> None:
        self.effects = frozenset(effects)


def mark_of(model: type[BaseModel], field: str) -> Decides | None:
    """The mark of a field; None: it has none."""
    marks = [item for item in model.model_fields[field].metadata if isinstance(item, Decides)]
    return marks[0] if marks else None


def keys_that_decide(model: type[BaseModel], effect: Effect) -> set[str]:
    """The fields of a model that have an effect; those of a section are the section's own."""
    keys = set()
    for field in model.model_fields:
        mark = mark_of(model, field)
        if mark and effect in mark.effects:
            keys.add(field)
    return keys
