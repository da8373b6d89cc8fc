"""Marks that say at each field what a configuration key decides.

Caches, the hash of a run and the comparison of runs ask for the keys with an effect. A key that is left
out of one of them would give a stale cache or a wrong mean without a word; so every field has a mark.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from hifi_cli.config.base import fields_by_key, flatten, section_of

# Each effect is what a key decides.
Effect = Literal[
    # Which run it is: the key is part of the configuration's hash, which a checkpoint must share.
    "run",
    # The token ids of the examples, which are kept for the runs of a command.
    "tokens",
    # The loaded encoder, which is kept too.
    "encoder",
    # The weights after `scoring.warm_steps`, and with them the stored scores of heads.
    "warm-up",
    # Whether a run is as its protocol says: tables name a key that has another value.
    "protocol",
    # Whether two runs may be compared: they need the same value.
    "comparison",
    # How numbers are computed, not which ones: such a key may be given to any command.
    "computation",
    # The training rows by which attention heads are scored.
    "scored rows",
]


class Decides:
    """A mark of a field: `learning_rate: Annotated[float, Decides("run", "warm-up", "protocol")]`.

    A section has a mark, and so has each of its fields. A key in a section has the effects that both
    have: `stage1` is not trained in a warm-up, so that `stage1.learning_rate` does not decide it.
    """

    def __init__(self, *effects: Effect) -> None:
        self.effects = frozenset(effects)


def mark_of(model: type[BaseModel], field: str) -> Decides | None:
    """Return the mark of a field; None: it has none, or there is no such field."""
    if field not in model.model_fields:
        return None
    marks = [item for item in model.model_fields[field].metadata if isinstance(item, Decides)]
    return marks[0] if marks else None


def decides(model: type[BaseModel], key: str, effect: Effect) -> bool:
    """Return whether a dotted key of a configuration has an effect.

    A key within a mapping of free names, as `settings.r`, has the effects of the mapping.

    Args:
        model: the class of the configuration.
        key: dotted. It must have the effect itself, and so must every section that it is in.
        effect: that is asked about.
    """
    within = model
    for name in key.split("."):
        mark = mark_of(within, name)
        if mark is None or effect not in mark.effects:
            return False
        section = section_of(within.model_fields[name])
        if section is None:
            # The rest is a name in a mapping, which has no fields.
            return True
        within = section
    return True


def keys_that_decide(model: type[BaseModel], effect: Effect) -> list[str]:
    """Return the dotted keys of a model that have an effect, in the order of its fields."""
    return [key for key in fields_by_key(model) if decides(model, key, effect)]


def values_that_decide(
    model: type[BaseModel], content: Mapping[str, Any], effect: Effect
) -> dict[str, Any]:
    """Return the values with an effect, by dotted key.

    Args:
        model: the configuration's class.
        content: its values, nested as in config.yaml.
        effect: what the values decide.
    """
    return {key: value for key, value in flatten(content).items() if decides(model, key, effect)}
